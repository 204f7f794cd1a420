"""Matrix products in the dtype that is asked for, on every processor: `Linear` and `scaled_dot_product_attention` stand
in for torch's.

bfloat16 is the first half of a float32. Units for it multiply such numbers exactly and sum up in
float32. A CPU without them is many times slower at it than at float32; there the factors are rounded to
bfloat16 and multiplied in float32: the same numbers, but for the order of a sum and less rounding within.
"""

import functools
import platform
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils import private


def cpu_units() -> str:
    """This processor's instructions for products in bfloat16; "" if it has none, or torch does not use them.

    On x86, oneDNN's own answer does not help: it accepts bfloat16 wherever there is AVX-512, and then converts number
    by number, at a third of float32's speed.
    """
    if not private.onednn_takes_bfloat16():
        return ""
    if private.has_amx():
        return "AMX"
    if private.has_avx512_bf16():
        return "AVX512_BF16"
    return "bf16" if platform.machine() in ("aarch64", "arm64") else ""


CPU_UNITS = cpu_units()


def has_units(device_type: str) -> bool:
    """Whether products in bfloat16 are faster there than in float32, or at least not much slower."""
    return bool(CPU_UNITS) or device_type != "cpu"


def bfloat16_way(device_type: str) -> str:
    """How products in bfloat16 are made there, in words."""
    if device_type != "cpu":
        return "by the GPU's own units"
    if CPU_UNITS:
        return f"by the processor's own units ({CPU_UNITS})"
    return "rounded to bfloat16 and multiplied in float32, for the processor has no units"


def product_dtype(x: Tensor) -> torch.dtype:
    """What a product of x is made in: autocast's dtype, which leaves float64 alone, else x's own."""
    device = x.device.type
    return (
        torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) and x.dtype != torch.float64 else x.dtype
    )


def only_rounds(x: Tensor) -> bool:
    """Whether a product of x is asked for in bfloat16, and made in float32."""
    return product_dtype(x) == torch.bfloat16 and not has_units(x.device.type)


def factor(x: Tensor) -> Tensor:
    """x, rounded as a factor of a product, in the dtype to multiply it in."""
    rounded = x.to(product_dtype(x))
    return rounded.float() if only_rounds(x) else rounded


def in_products_dtype(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`product`, a function of tensors that all are to be rounded, with its result rounded like its factors."""

    @functools.wraps(product)
    def multiply(*tensors: Tensor, **how) -> Tensor:
        if not only_rounds(tensors[0]):
            return product(*tensors, **how)
        factors = [factor(tensor) for tensor in tensors]
        with torch.autocast(tensors[0].device.type, enabled=False):
            return product(*factors, **how).to(torch.bfloat16)

    return multiply


linear = in_products_dtype(F.linear)
attention = in_products_dtype(F.scaled_dot_product_attention)


def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, **how) -> Tensor:
    """torch's. k and v may have fewer heads than q, (…, heads, tokens, numbers): each is then for a group of them."""
    return attention(q, with_heads_of(q, k), with_heads_of(q, v), **how)


def with_heads_of(q: Tensor, k: Tensor) -> Tensor:
    """Keys or values with as many heads as q, (…, heads, tokens, numbers): each head is repeated for the consecutive
    heads of its group (arXiv:2305.13245).
    """
    return k if k.shape[-3] == q.shape[-3] else k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)


class Linear(nn.Linear):
    """torch's."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight) if self.bias is None else linear(x, self.weight, self.bias)
