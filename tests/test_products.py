"""Products in bfloat16: right to its rounding, whether or not the processor has units for it."""

import pytest
import torch
import torch.nn.functional as F

from utils import products
from utils.loss import head_loss
from utils.model import TransformerLM

ROUNDING = 2**-8  # of one bfloat16, relative; a sum in another order may round to its neighbour


@pytest.fixture(params=[True, False], ids=["with units", "without"])
def units(request, monkeypatch):
    """Both ways are right on any processor; one of them is slow."""
    monkeypatch.setattr(products, "has_units", lambda device_type: request.param)


@pytest.mark.parametrize(
    "mkldnn, amx, avx512, machine, units",
    [
        (True, True, True, "x86_64", "AMX"),
        (True, False, True, "x86_64", "AVX512_BF16"),
        (True, False, False, "x86_64", ""),  # a Xeon with AVX-512 alone: oneDNN says yes, and takes three times as long
        (False, False, False, "x86_64", ""),
        (True, False, False, "aarch64", "bf16"),
        (False, False, False, "arm64", ""),
    ],
)
def test_the_processors_instructions_decide(monkeypatch, mkldnn, amx, avx512, machine, units):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: mkldnn)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(products.platform, "machine", lambda: machine)
    monkeypatch.setattr(products, "CPU_UNITS", products.cpu_units())
    assert products.CPU_UNITS == units and products.has_units("cpu") == bool(units) and products.has_units("cuda")
    assert (units or "multiplied in float32") in products.bfloat16_way("cpu")


def sample(*shape: int, seed: int = 0, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_()


@pytest.mark.parametrize("how", ["autocast", "parameters"])
def test_linear_is_torchs_in_bfloat16(units, how):
    dtype = torch.float32 if how == "autocast" else torch.bfloat16
    x, weight, upstream = sample(6, 40, dtype=dtype), sample(30, 40, seed=1, dtype=dtype), sample(6, 30, seed=2)
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        seen, right = products.linear(x, weight), F.linear(x, weight)
    assert seen.dtype == right.dtype == torch.bfloat16
    torch.testing.assert_close(seen, right, rtol=ROUNDING, atol=1e-6)
    grads = [torch.autograd.grad((y * upstream).sum(), (x, weight)) for y in (seen, right)]
    for a, b in zip(*grads, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a, b, rtol=ROUNDING, atol=1e-6)
    exact = F.linear(x.float(), weight.float())
    assert not torch.allclose(seen.float(), exact, rtol=1e-4), "else nothing was rounded"


def test_a_layer_with_a_bias_is_torchs_too(units):
    torch.manual_seed(0)
    layer, x = products.Linear(40, 30), sample(6, 40)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(layer(x), torch.nn.Linear.forward(layer, x), rtol=ROUNDING, atol=1e-3)
    assert torch.equal(layer(x), torch.nn.Linear.forward(layer, x))


def test_attention_is_torchs_in_bfloat16(units):
    q, k, v = (sample(2, 3, 8, 16, seed=seed) for seed in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        seen = products.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert seen.dtype == torch.bfloat16
    torch.testing.assert_close(
        seen.float(), F.scaled_dot_product_attention(q, k, v, is_causal=True), rtol=0.02, atol=0.02
    )


@pytest.mark.parametrize("dtype, autocast", [(torch.float32, False), (torch.float64, True)])
def test_what_is_not_to_be_rounded_is_left_alone(units, dtype, autocast):
    x, weight = sample(6, 40, dtype=dtype), sample(30, 40, seed=1, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert (
            torch.equal(products.linear(x, weight), F.linear(x, weight)) and products.linear(x, weight).dtype == dtype
        )


@pytest.mark.parametrize("how", ["autocast", "parameters"])
def test_a_step_of_the_model_is_the_same_either_way(monkeypatch, how):
    """Losses agree better than with float32's; gradients go through a dozen roundings, so all three are a hundredth
    apart.
    """
    torch.manual_seed(0)
    model = TransformerLM(60, 32, 2, 2, 16)
    x, y = torch.randint(60, (2, 4, 16))

    def step(units: bool | None) -> tuple[float, torch.Tensor]:
        monkeypatch.setattr(products, "has_units", lambda device_type: units)
        own = TransformerLM(**model.config)
        own.load_state_dict(model.state_dict())
        if how == "parameters" and units is not None:
            own.bfloat16()
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast" and units is not None):
            loss = own(x, y)
        loss.backward()
        return loss.item(), torch.cat([parameter.grad.float().flatten() for parameter in own.parameters()])

    (with_units, a), (without, b), (exact, c) = step(True), step(False), step(None)
    assert (
        with_units == pytest.approx(without, rel=1e-3)
        and without == pytest.approx(exact, rel=1e-2)
        and without != exact
    )
    for one, other in ((a, b), (a, c), (b, c)):
        assert 1e-4 * c.norm() < (one - other).norm() < 0.02 * c.norm()


def test_the_heads_loss_either_way(units):
    h, weight = sample(300, 16), sample(50, 16, seed=1)
    y = torch.randint(50, (300,), generator=torch.Generator().manual_seed(2))
    with torch.autocast("cpu", torch.bfloat16):
        seen = head_loss(h, weight, y, -100)
    torch.testing.assert_close(seen, F.cross_entropy(h @ weight.T, y), rtol=ROUNDING, atol=0)
