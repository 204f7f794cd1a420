"""What a rank computes: each matrix product, told in its place among messages and waits; and the most bytes alive.

{"e": "product", "size": 4096}   the rank has made a product of so many multiplications
"""

import math
from typing import Any

from grader.engine.inside.observe import Line
from utils.memory import Peak


def multiplications(name: str, args: tuple) -> int:
    """Of one operation, by the dispatcher's name for it; 0 if it is not a matrix product."""
    if name.startswith("_scaled_dot_product"):
        # Fused: queries with keys, weights with values. The backward pass, whose first argument is a gradient, has
        # five.
        products, (query, key) = (5, args[1:3]) if "backward" in name else (2, args[:2])
        return products * math.prod(query.shape) * key.shape[-2]
    if name in ("mm", "bmm", "mv", "addmm", "baddbmm", "addmm_", "baddbmm_"):
        first, second = args[1:3] if "add" in name else args[:2]
        return first.numel() * (second.shape[-1] if second.dim() > 1 else 1)
    return 0


class watch_products(Peak):
    """While it is entered, it reports each matrix product, and records the `most` bytes that were alive at a time.

    Args:
        tensors: what was there before.
    """

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        size = multiplications(operation.overloadpacket.__name__, args)
        if size:
            Line.mine.say(e="product", size=size)
        return result
