"""A model that ranks split: drawn, made alike on each of them, and compared part by part with one process's."""

import math
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from grader.engine.judge.student import Student
from grader.engine.judge.verdict import Wrong, expect
from grader.kit.on_rank import plain_name
from grader.kit.predictions import known
from grader.kit.tensors import check_tensor
from utils.data import IGNORE
from utils.model import TransformerLM

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


# On a rank, as in one process


def drawn_model(seed: int, sizes: dict[str, int]) -> TransformerLM:
    """In float64, where rounding hides nothing."""
    torch.manual_seed(seed)
    model = TransformerLM(sizes["vocab"], sizes["dim"], sizes["heads"], sizes["layers"], sizes["length"]).double()
    with torch.no_grad():
        for p in model.parameters():  # at the first weights, attention and the norms hardly matter
            p += 0.2 * torch.randn_like(p)
    return model


def drawn_batch(seed: int, sizes: dict[str, int], rows: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """x and y, (rows, length) each; some targets do not count, and not equally many in each batch."""
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.randint(sizes["vocab"], (2, rows or sizes["batch"], sizes["length"]), generator=draw)
    y[0, : 1 + seed % 2] = IGNORE
    return x, y


def parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {plain_name(name): p for name, p in model.named_parameters()}


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """By name. What DTensor has still to add up over the ranks, as it does before anyone uses it, is added up here."""
    found = {}
    for name, p in parameters(model).items():
        if p.grad is not None:
            partial = hasattr(p.grad, "placements") and any(placement.is_partial() for placement in p.grad.placements)
            found[name] = p.grad.redistribute(placements=p.placements) if partial else p.grad
    return found


def attempt(step: Callable[[], Any]) -> Any:
    """What `step` returns; or, where torch refuses what was made of a model, its reason. A crash in the student's lines
    stays one.
    """
    try:
        return step()
    except Exception as error:
        if any(frame.filename.startswith("train/") for frame in traceback.extract_tb(error.__traceback__)):
            raise
        return {"refused": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"[:300]}


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
