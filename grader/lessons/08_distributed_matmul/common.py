"""What several files with checks of 08_distributed_matmul use."""

import itertools
import math

import torch

from grader.kit import check_given, check_tensor, expect, moved_by, near

# ---------------------------------------------------------------------------------------------------
# Grids and matrices, as the checks have them


def piece(length, parts, number):
    ends = [0]
    for n in range(parts):
        ends.append(ends[-1] + length // parts + (n < length % parts))
    return slice(ends[number], ends[number + 1])


def coordinates(rank, shape):
    return list(itertools.product(*map(range, shape)))[rank]


def boxes(world, axes):
    """All grids of so many axes for so many ranks."""
    sides = itertools.product(range(1, world + 1), repeat=axes)
    return [shape for shape in sides if math.prod(shape) == world]


def spoken(shape):
    return " × ".join(map(str, shape))


# float64: float32 cannot hold these. All sums of up to 31 products of two such numbers are exact in their dtype.
NUMBERS = {"bfloat16": (1, 2), "float32": range(1, 10), "float64": range((1 << 24) + 1, (1 << 24) + 10, 2)}


def matrix(draw, rows, columns, dtype="float32"):
    """Whole numbers, none of them 0, that only this dtype and longer ones can hold."""
    numbers = [draw.choice((-1, 1)) * draw.choice(NUMBERS[dtype]) for _ in range(rows * columns)]
    return torch.tensor(numbers, dtype=torch.float64).view(rows, columns)


def given(tensor):
    """A tensor as an input of a job can hold it, whatever its shape."""
    return {"shape": list(tensor.shape), "numbers": tensor.reshape(-1).tolist()}


# Hints for parts of a check that the first hint of its TODO is not about.
HINTS = {
    "block": "The pieces differ by one at most. How many are longer, and how many numbers come before this piece?",
    "place": (
        "The last coordinate changes from each rank to the next. After how many ranks does the one before it change?"
    ),
    "numbers_to_end": (
        "What does a rank have of Y after each of the three products, and what must it have at the end?"
    ),
    "kept": "An in-place sum over the ranks writes into its argument. Whose tensor is that here?",
    "one axis": (
        "Which sums run over a dimension that is cut, and which tensors must be gathered? Nothing else has to be sent."
    ),
    "again": "The backward pass is given X and W. What else does it use that an earlier forward pass has left?",
    "cannon back": (
        "The gradients are two more products by cannon. Which size or block in it is right for X and W alone?"
    ),
    "cannon moved": (
        "A block moves once for the skew, and once in each step but the last. Which move is one too many?"
    ),
    "cannon alive": "What does a rank need at one moment: what it multiplies, what arrives, and what else?",
    "panel": "Take one panel. Which rank of a row has X's, which rank of a column has W's, and what do the others do?",
    "panel back": (
        "For one panel of dX or dW, each rank of a line has a summand. Along which line is it summed, and which rank"
        " keeps the sum?"
    ),
    "panel moved": "Which panels does a rank have itself? Only the others have to reach it, once in each pass.",
    "panel alive": "When a panel has been used, what still refers to it? The next one takes its place.",
    "saved": "From X and the shard, everything else can be gathered or computed again. What more does ctx keep?",
    "mlp": "Which block of Y does a layer leave on a rank? The next layer starts from just that.",
    "squared_error": "There are two results. Which one is differentiated, and which one is only printed?",
    "gradient": (
        "What stands between two layers, and after the last one? By which number is the sum of squares divided?"
    ),
    "part": "A rank's part is a sum over its block alone. By which count is it divided?",
    "printed": "Each block of Y counts once. Along which axis do the ranks have the same one?",
    "between": "Two layers that fit need no message between them. Which call sends here, beside products and loss?",
    "layer_cost": (
        "W, Y and dX take part. How often does each go around its axis, in how many rounds, and in which pieces?"
    ),
    "factorings": "If two sides are chosen, how many choices has the third? Try all first sides, and all second ones.",
    "best": "Each grid has its seconds, for these sizes and this machine. Which grids are compared, and by what?",
}


def check_results(told, names, ranks, rights, dtype="float32", hint=""):
    """What each rank's function returned, one tensor or as many as there are names, against what is right of each."""
    if len(names) == 1:
        ranks, rights = [[seen] for seen in ranks], [[right] for right in rights]
    for rank, seen in enumerate(ranks):
        whole = isinstance(seen, list) and len(seen) == len(names)
        returned = f"{' and '.join(names)} are not returned on rank {rank}"
        expect(whole, f"{told}: {returned}", f"{len(names)} tensors", short(seen), rank)
    for number, name in enumerate(names):
        columns = [seen[number] for seen in ranks], [right[number] for right in rights]
        good = [rank for rank, pair in enumerate(zip(*columns)) if near(*pair)]
        for rank, (seen, right) in enumerate(zip(*columns)):
            than = "what it should be"
            if len(ranks) > 1:
                than += f" ({f'it is right on {spoken_ranks(good)}' if good else 'it is wrong on all ranks'})"
            what = f"{told}: {name} on rank {rank}"
            check_tensor(what, seen, right, rank=rank, dtype=getattr(torch, dtype), than=than, hint=hint)


def spoken_ranks(ranks):
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def short(value):
    """What was returned in place of a tensor or several, in a few words."""
    if isinstance(value, torch.Tensor):
        return f"one tensor of shape {tuple(value.shape)}"
    return f"{len(value)} things" if isinstance(value, list) else str(value)


def check_kept(told, ranks):
    for rank, mine in enumerate(ranks):
        check_given(f"{told}, rank {rank}", mine["changes"], rank, HINTS["kept"])


# ---------------------------------------------------------------------------------------------------
# Messages, and memory


def check_moved(told, events, most, why, whose="sends", hint=""):
    """`most` has the bytes of each rank; rings give fractions of bytes."""
    for rank, limit in enumerate(most):
        found = moved_by(events[rank], rank)
        expect(
            found <= limit + 1e-6,
            f"{told}: rank {rank} {whose} {found:,.0f} bytes; {why}",
            f"at most {limit:,.0f} bytes",
            f"{found:,.0f} bytes",
            rank,
            hint,
        )


# ---------------------------------------------------------------------------------------------------
# Two axes


def largest(length, parts):
    return -(-length // parts)
