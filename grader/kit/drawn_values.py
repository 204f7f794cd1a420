"""Values that checks draw: by class, so that every class that decides comes with every seed.

Tame numbers let wrong answers pass: all positive, whole, sorted, different, small. `tests/test_draws.py` counts which
class comes how often. Nothing here knows a judge or a rank: it may be called on both sides.
"""

import random
from collections.abc import Sequence

import torch

GRAIN = 1 / 64  # sums of its multiples are exact, also in float32
LARGE = 1 << 33  # no int32, no float16; a fraction added to it is lost in float32
STALE = 64.0  # a gradient from before
FAR = 1000.0  # exp of it is infinite, and exp of its negative 0, even in float64


def numbers(draw: random.Random, n: int, *classes: str, most: int = 9) -> list[float]:
    """`n` multiples of GRAIN, neither ascending nor descending; most are not whole numbers, and between 1 and `most`.

    Each of `classes` comes once or more: "negative", "zero", "whole", "tie" (a number that comes twice), "large". So
    `n` is at least three, and greater than their number.
    """
    found = [draw.randrange(1, most) + draw.randrange(1, round(1 / GRAIN)) * GRAIN for _ in range(n)]
    spare, *places = draw.sample(range(n), 1 + len(classes))
    of_class = {
        "negative": lambda number: -number,
        "zero": lambda number: 0.0,
        "whole": lambda number: float(int(number)),
        "tie": lambda number: found[spare],
        "large": lambda number: number + LARGE,
    }
    for place, name in zip(places, classes, strict=True):
        found[place] = of_class[name](found[place])
    return unsorted(draw, found)


def unsorted(draw: random.Random, items: Sequence) -> list:
    """The same in a drawn order, neither ascending nor descending. They are three or more, and not all equal."""
    found = draw.sample(items, len(items))
    while found in (sorted(found), sorted(found, reverse=True)):
        draw.shuffle(found)
    return found


def logits(seed: int, *shape: int) -> torch.Tensor:
    """float32 logits (…, words). Of four rows in turn one is usual, one far above and one far below zero, where
    exponentials overflow and vanish, and in one a single word stands out, so that the others' probabilities are 0.
    """
    draw = torch.Generator().manual_seed(seed)
    rows = 2 * torch.randn(*shape, generator=draw).flatten(0, -2)
    turn = (torch.arange(len(rows)) + seed) % 4
    rows += FAR * ((turn == 1).float() - (turn == 2).float())[:, None]
    best = torch.randint(shape[-1], (len(rows),), generator=draw)
    rows[torch.arange(len(rows)), best] += FAR * (turn == 3)
    return rows.view(shape)


def mixed_dtypes(draw: random.Random) -> list[tuple[str, str]]:
    """(dtype of inputs, dtype of weights), which differ, in a drawn order: float32 weights and bfloat16 or float16
    inputs, and the other way about.
    """
    pairs = [(low, "float32") for low in ("bfloat16", "float16")]
    pairs += [pair[::-1] for pair in pairs]
    return draw.sample(pairs, len(pairs))


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in a tensor that is not contiguous: its first two dimensions are swapped in memory. A vector,
    or what is still contiguous then, lies at every second place.
    """
    swapped = tensor.transpose(0, 1).contiguous().transpose(0, 1) if tensor.dim() > 1 else tensor
    return torch.stack([swapped, -swapped], dim=-1)[..., 0] if swapped.is_contiguous() else swapped


def columns(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers as the last columns of a wider tensor: not contiguous from two rows on, though the last stride
    is 1.
    """
    return torch.cat([-tensor, tensor], dim=-1)[..., tensor.shape[-1] :]


def zeros_in_turn(items: Sequence, rank: int, world: int) -> list:
    """What a rank contributes to sums over `world` ranks, of its numbers or tensors: item n is all zeros on rank
    n % `world`. A rank that asks its own numbers whether it makes a call keeps the others waiting there.
    """
    return [0 * item if number % world == rank else item for number, item in enumerate(items)]


def frozen_in_turn(draw: random.Random, n: int) -> list[tuple[int, int]]:
    """Three cases, in a drawn order, of `n` parameters, three or more: which of them is frozen (the first, one in the
    middle, the last), and which other one is trainable and gets no gradient.
    """
    cases = [0, draw.randrange(1, n - 1), n - 1]
    draw.shuffle(cases)
    return [(place, draw.choice([other for other in range(n) if other != place])) for place in cases]
