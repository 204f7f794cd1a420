"""The same tensor or not, and the words for how two differ.

`check_tensor` compares shape, dtype and numbers, in this order, and tells them apart. `near` says yes or no to
all three.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from grader.engine.judge.verdict import BadCheck, Wrong, expect
from grader.kit.predictions import known

# The hint where `crossed` passes are wrong.
CROSSED = (
    "Here a second forward pass comes before the backward pass of the first one. What belongs to one call must be kept"
    " where no other call writes: in its own ctx."
)
# The hint where what a tensor in channels_last should have received is lacking.
COPIED = (
    "In channels_last a tensor is dense, but not in the order of its dimensions, so contiguous() copies it. Into which"
    " tensor does the call write?"
)
SIMPLE = [n for k in range(2, 33) for n in (float(k), 1 / k)]  # factors that a single number may have


def check_shape(
    what: str,
    seen: Any,
    shape: Sequence[int],
    dtype: torch.dtype | None = None,
    rank: int | None = None,
    hint: str = "",
) -> None:
    """`seen` is a tensor of this shape, and of this dtype if one is given."""
    right = f"a tensor of shape {tuple(shape)}" + (f" and dtype {name_of(dtype)}" if dtype else "")
    kind = seen if isinstance(seen, str) else "None" if seen is None else f"a {type(seen).__name__}"
    if isinstance(seen, dict) and {"part", "first", "shape"} == seen.keys():  # as ranks leave it
        kind = "a DTensor"
    expect(
        isinstance(seen, torch.Tensor),
        f"{what} is {kind}, not a {'plain ' * (kind == 'a DTensor')}tensor",
        right,
        kind,
        rank,
        hint,
    )
    got = f"a tensor of shape {tuple(seen.shape)}" + (f" and dtype {name_of(seen.dtype)}" if dtype else "")
    expect(
        tuple(seen.shape) == tuple(shape),
        f"{what} has shape {tuple(seen.shape)}, not {tuple(shape)}",
        right,
        got,
        rank,
        hint,
    )
    expect(
        dtype is None or seen.dtype == dtype,
        f"{what} is in {name_of(seen.dtype)}, not in {name_of(dtype)}",
        right,
        got,
        rank,
        hint,
    )


def check_tensor(
    what: str,
    seen: Any,
    right: torch.Tensor,
    rel: float = 0.0,
    rank: int | None = None,
    *,
    dtype: torch.dtype | None = None,
    scale: float = 0.0,
    wrongs: dict[str, torch.Tensor | tuple[torch.Tensor, str]] | None = None,
    than: str = "what it should be",
    hint: str = "",
) -> None:
    """`seen` is `right`: a tensor of its shape and dtype, and its numbers but for rounding.

    Args:
        what: in words, the subject of the verdict's sentence, in the singular: "is" follows.
        rel: the norm of the difference relative to the norm of `right`, or to `scale` where that is larger; 0: equal.
        dtype: where `right` is more precise than what is asked for.
        wrongs: what was done -> the tensor that comes of it, or that and a hint. It is told if it alone fits.
        than: what `right` is, in words.
    """
    if not isinstance(what, str) or not isinstance(right, torch.Tensor):
        raise BadCheck("check_tensor is called with something else than (what, seen, right): a text and two tensors")
    check_shape(what, seen, right.shape, dtype or right.dtype, rank, hint)
    if not close(seen, right, rel, scale):
        mistakes = {
            words: wrong if isinstance(wrong, tuple) else (wrong, hint) for words, wrong in (wrongs or {}).items()
        }
        named = {words: [mistake[0]] for words, mistake in mistakes.items()}
        done = known([seen], [right], named, lambda seen, mistake: close(seen, mistake, max(rel, 1e-6), scale))
        told = f"is {done}" if done else difference(seen, right, rel, scale, than)
        raise Wrong(f"{what} {told}", right, seen, rank, mistakes[done][1] if done else hint)


def scale_of(gradients: Iterable[torch.Tensor | None]) -> float:
    """With what `check_tensor` compares a model's smaller gradients: a hundredth of the norm of all of them together.

    Some vanish, such as a query's where each word attends to itself alone. Of those, rounding leaves something that
    differs from one processor to the next, and is in proportion to what was added up, not to itself.
    """
    return 1e-2 * math.hypot(*(gradient.double().norm().item() for gradient in gradients if gradient is not None))


def near(
    seen: torch.Tensor, right: torch.Tensor, rel: float = 0.0, scale: float = 0.0, dtype: torch.dtype | None = None
) -> bool:
    """Whether two tensors are of one shape and dtype, and equal but for rounding. `dtype`: where `right` is more
    precise than what is asked for.
    """
    return isinstance(seen, torch.Tensor) and seen.dtype == (dtype or right.dtype) and close(seen, right, rel, scale)


def close(seen: torch.Tensor, right: torch.Tensor, rel: float = 0.0, scale: float = 0.0) -> bool:
    """The same, whatever their dtypes. Infinite numbers must be infinite in both."""
    if seen.shape != right.shape:
        return False
    a, b = seen.double(), right.double()
    if torch.equal(a, b):  # a tenth of the time of what follows
        return True
    finite = b.isfinite()
    if not torch.equal(a.isfinite(), finite) or not torch.equal(a[b.isinf()], b[b.isinf()]):
        return False
    apart = (a - b)[finite].norm().item()
    return apart <= rel * max(b[finite].norm().item(), scale) if rel else apart == 0


def difference(
    seen: torch.Tensor, right: torch.Tensor, rel: float = 0.0, scale: float = 0.0, than: str = "what it should be"
) -> str:
    """How it differs from a tensor of its shape, in words: "is twice what it should be"."""
    nans = int((seen.isnan() & ~right.isnan()).sum())
    if nans:
        return f"is nan at {'each place' if nans == seen.numel() else f'{nans} of {seen.numel()} places'}"
    if right.any() and not seen.any():
        return f"is all zeros, and so not {than}"
    if seen.dtype == torch.float64 and close(seen, right, 1e-6, scale) and not close(seen, right, 1e-8, scale):
        return f"is not {than}: the first six digits agree, as if it had passed through float32"
    factor = factor_of(seen, right)
    if factor:
        return f"is {'twice' if factor == 2 else f'{factor:.4g} times'} {than}"
    order = ": the numbers are right, but in a different order" if reordered(seen, right, rel, scale) else ""
    return f"is not {than}{places(seen, right, rel, scale)}{order}"


def reordered(seen: torch.Tensor, right: torch.Tensor, rel: float, scale: float) -> bool:
    """Whether it has the same numbers at different places. If few of them differ, that may be chance."""
    return right.unique().numel() > 8 and close(seen.flatten().sort().values, right.flatten().sort().values, rel, scale)


def factor_of(seen: torch.Tensor, right: torch.Tensor) -> float:
    """How many times `right` it is, if nothing else is wrong; 0.0 otherwise. Of one number everything is a multiple:
    there it must be a simple one.
    """
    a, b = seen.double().flatten(), right.double().flatten()
    if not b.any() or not (a.isfinite().all() and b.isfinite().all()):
        return 0.0
    factor = ((a * b).sum() / b.square().sum()).item()
    if abs(factor - 1) < 1e-3 or not close(a, factor * b, 1e-3):
        return 0.0
    simple = next((n for n in (*SIMPLE, -1.0) if math.isclose(n, factor, rel_tol=1e-4)), 0.0)
    return simple or (factor if int(b.count_nonzero()) > 1 else 0.0)


def places(seen: torch.Tensor, right: torch.Tensor, rel: float, scale: float) -> str:
    """Where it differs: the first place, and how many there are."""
    gap = (seen.double() - right.double()).abs().nan_to_num(math.inf, math.inf)
    wrong = gap > max(rel * max(right.double().abs().nan_to_num(0, 0, 0).max().item(), scale), 0.0)
    count = int(wrong.sum())
    if count in (0, seen.numel()) or not seen.dim():  # rounding that has added up, or the whole tensor
        return ""
    first = wrong.nonzero()[0].tolist()
    return f", first at {first}" + (f" ({count} of {seen.numel()} numbers differ)" if count > 1 else "")


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_given(told: str, changes: dict[str, str], rank: int | None = None, hint: str = "") -> None:
    """What a function was given is as it was. `changes` are those that `Given` found."""
    for name, change in changes.items():
        raise Wrong(f"{told}: {name}, which it is given, {change}", "as it was", change, rank, hint)
