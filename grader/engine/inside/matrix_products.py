"""Reports each matrix product of a rank, in its place among messages and waits; and records the peak of live bytes.

{"e": "product", "size": 4096}   the rank computed a product with so many multiplications
"""

import math
from typing import Any

from grader.engine.inside.observe import Reporter
from utils.memory import Peak


def multiplications(name: str, args: tuple) -> int:
    """The multiplications of one operation, given the dispatcher's name for it; 0 if it is not a matrix product."""
    if name.startswith("_scaled_dot_product"):
        # Fused attention has two products: queries with keys, weights with values. Its backward pass, whose first
        # argument is a gradient, has five.
        products, (query, key) = (5, args[1:3]) if "backward" in name else (2, args[:2])
        return products * math.prod(query.shape) * key.shape[-2]
    if name in ("mm", "bmm", "mv", "addmm", "baddbmm", "addmm_", "baddbmm_"):
        first, second = args[1:3] if "add" in name else args[:2]
        return first.numel() * (second.shape[-1] if second.dim() > 1 else 1)
    return 0


class watch_products(Peak):
    """While it is active, it reports each matrix product, and records in `most` the largest number of bytes alive at
    once.

    Args:
        tensors: those that existed before.
    """

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        size = multiplications(operation.overloadpacket.__name__, args)
        if size:
            Reporter.mine.say(e="product", size=size)
        return result
