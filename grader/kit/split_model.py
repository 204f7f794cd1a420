"""A model that ranks split, compared part by part with one process's; `split_on_rank.py` makes it."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from grader.engine.judge.student_in_checks import Student
from grader.engine.judge.verdict import Wrong, expect
from grader.kit.predictions import known
from grader.kit.tensors import check_tensor

EXACT = 1e-9  # of float64 sums in another order: 1e-15 was measured, 1e-3 and more for a wrong one


def drawn_sizes(student: Student, tp: int, *purpose: Any, words: Sequence[int], layers: int = 2) -> dict[str, int]:
    """A small model whose heads divide by `tp`, and whose words divide by nothing; B and T of a batch for it."""
    draw = student.draw("sizes", tp, *purpose)
    heads = tp * draw.choice((1, 2))
    length = tp * draw.choice((2, 3))
    return {
        "vocab": draw.choice(words),
        "heads": heads,
        "dim": heads * draw.choice((3, 4, 5)),
        "length": length,
        "batch": draw.choice((2, 3)),
        "layers": layers,
    }


# What ranks left, against what one process has


def check_refused(told: str, what: str, ranks: Sequence[dict]) -> None:
    for rank, seen in enumerate(ranks):
        why = seen.get("refused")
        expect(why is None, f"{told}, {what} does not work: {why}", "what torch can run", why, rank)


def piece_of(whole: torch.Tensor, part: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's part of a tensor, and the same part of `whole`: of nan, where the rank's tensor has another shape."""
    if not isinstance(part, dict):
        return part, whole
    if part["shape"] != list(whole.shape):
        return part["part"], whole.new_full(part["part"].shape, math.nan)
    return part["part"], whole[tuple(slice(first, first + n) for first, n in zip(part["first"], part["part"].shape))]


def check_part(
    told: str,
    name: str,
    seen: Any,
    whole: torch.Tensor,
    rank: int,
    rel: float = EXACT,
    what: str = "gradient",
    than: str = "what it should be",
) -> None:
    """A rank's part of one tensor equals that part of `whole`."""
    mine, wanted = piece_of(whole, seen)
    cut = f" (its part, {tuple(mine.shape)} of {tuple(whole.shape)})" if mine.shape != whole.shape else ""
    check_tensor(
        f"{told}, the {what} of {name}{cut} on rank {rank}",
        mine,
        wanted,
        rel,
        rank,
        scale=whole.norm().item(),
        than=than,
    )


def must_have_gradients(student: Student, grads: dict[str, torch.Tensor]) -> None:
    """A premise of `check_parts`: none of these gradients is zero."""
    student.premise(all(grad.norm() > 0 for grad in grads.values()), "a gradient of zero")


def check_parts(
    told: str,
    ranks: Sequence[dict[str, Any]],
    right: dict[str, torch.Tensor],
    rel: float = EXACT,
    what: str = "gradient",
) -> None:
    """Each rank's part of each tensor, by name. The first rank that is wrong is told."""
    for name, tensor in right.items():
        for rank, seen in enumerate(ranks):
            expect(name in seen, f"{told}, {name} has no {what} on rank {rank}", f"a {what}", "none", rank)
            check_part(told, name, seen[name], tensor, rank, rel, what, "what one process has")


# Hints for a norm that is not the whole gradient's.
AFTER_CLIPPING = "Is it taken before the gradient is scaled, or after?"
NO_NORM = "The norm is returned whether or not there is a limit. Which line returns before it is known?"
LESS = "What is left out: some of the parameters, or other ranks' parts of them?"
MORE = "Squares add up, norms do not; and what several ranks hold counts once. Which of these two rules is broken here?"


def check_norm(
    told: str,
    norm: Any,
    right: float,
    clip: float,
    rank: int,
    rel: float = 1e-5,
    wrongs: dict[str, tuple[float, str]] | None = None,
) -> None:
    """What clip_gradients returns, with this --clip.

    Args:
        rel: rounding; torch may find a norm of float64 norms in float32.
        wrongs: what the number is -> that number, and a hint. It is told if it alone fits.
    """
    returned = f"{told} clip_gradients returns {norm} on rank {rank}"
    hint = "The norm is printed and compared as a number. Which call makes one of a tensor?"
    expect(isinstance(norm, (int, float)), returned, "a float", norm, rank, hint)
    if math.isclose(norm, right, rel_tol=rel):
        return
    mistakes = dict(wrongs or {})
    if 0 < clip < right:
        mistakes["--clip, the norm after clipping"] = clip, AFTER_CLIPPING
    named = {words: [mistake[0]] for words, mistake in mistakes.items()}
    done = known([norm], [right], named, lambda seen, mistake: math.isclose(seen, mistake, rel_tol=1e-3))
    if done:
        what, hint = done, mistakes[done][1]
    elif norm == 0:
        what, hint = "0, and the gradient is not", NO_NORM
    elif norm < right:
        what, hint = "smaller than the norm of the whole gradient: is it the norm of a part?", LESS
    else:
        what, hint = "larger than the norm of the whole gradient: does something count twice?", MORE
    raise Wrong(f"{told} clip_gradients returns the wrong norm on rank {rank}: it is {what}", right, norm, rank, hint)
