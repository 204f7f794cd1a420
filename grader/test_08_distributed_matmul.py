"""Checks and hints of 08_distributed_matmul.

| TODO | achievement                         | evidence                                                         | needs |
|------|-------------------------------------|------------------------------------------------------------------|-------|
| 1    | places, lines and blocks            | the numbers, for grids of one to four axes                       |       |
| 2    | products cut along one axis         | results, forward and backward; bytes sent, on 1 to 8 ranks       |       |
| 3    | Cannon's algorithm                  | the same on 1, 4 and 9; bytes alive; messages at their worst     | 1     |
| 4    | SUMMA                               | tables of 1 to 8 ranks; bytes that arrive, bytes alive           | 1     |
| 5    | AxoNN's product on three axes       | boxes of 1 to 8 ranks; bytes kept; compared with FSDP, Megatron  | 1     |
| 6    | an MLP, its second layer transposed | losses and gradients against one process's; bytes sent    | 1, 5  |
| 7    | the best grid                       | the formulas; the choice is one of the fastest                   | 5     |
| 8    | when the network sets the pace      | the formulas                                                     |       |

The matrices of TODOs 2 to 5 hold whole numbers: their products are exact in any order of the sums, so that results must
be equal, not close. Those in float64 are too long for float32. m, k and n differ, and are seldom divisible; some blocks are empty. A rank is given its own
blocks and nothing else.

On 2 × 2 ranks, left and right are the same, and Cannon without its skew is right on the diagonal: so 3 × 3 ranks run,
too, and all are judged.
"""  # noqa: E501

import itertools
import math
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from grader.kit import (
    CROSSED,
    Given,
    check_given,
    as_evidence,
    check_tensor,
    moved_by,
    near,
    Fault,
    Private,
    Wrong,
    cases,
    check_answers,
    check_calls,
    check_refusals,
    collectives,
    crossed,
    count_of,
    expect,
    hinted,
    lengths,
    mark,
    merciless_messages,
    plain,
    raised,
    rectangles,
    smaller_world,
    check_delivery,
    todo,
)
from utils.memory import SettledPeak, Storages

BUILDS = "matrix products on 1-D, 2-D and 3-D grids: Cannon, SUMMA, AxoNN; the best grid"


# ---------------------------------------------------------------------------------------------------
# Grids and matrices, as the checks have them


def piece(length, parts, number):
    ends = [0]
    for n in range(parts):
        ends.append(ends[-1] + length // parts + (n < length % parts))
    return slice(ends[number], ends[number + 1])


def coordinates(rank, shape):
    return list(itertools.product(*map(range, shape)))[rank]


def members(rank, shape, axis):
    """The ranks of the line through a rank."""
    mine = coordinates(rank, shape)
    places = list(itertools.product(*map(range, shape)))
    return [
        r for r, other in enumerate(places) if all(a == b for n, (a, b) in enumerate(zip(mine, other)) if n != axis)
    ]


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


def shard(tensor, parts, number):
    size = -(-tensor.numel() // parts)
    mine = tensor.reshape(-1)[number * size : (number + 1) * size]
    return F.pad(mine, (0, size - len(mine)))


def given(tensor):
    """A tensor as an input of a job can hold it, whatever its shape."""
    return {"shape": list(tensor.shape), "numbers": tensor.reshape(-1).tolist()}


def taken(mine, dtype, turned=False):
    """`turned`: not contiguous, as a transposed matrix."""
    tensor = torch.tensor(mine["numbers"], dtype=getattr(torch, dtype)).view(mine["shape"])
    return tensor.T.contiguous().T if turned else tensor


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


def check_alive(told, ranks, why, hint):
    for rank, mine in enumerate(ranks):
        expect(
            mine["most"] <= mine["limit"],
            f"{told}: rank {rank} has {mine['most']:,} bytes of tensors at once; {why}",
            f"at most {mine['limit']:,} bytes",
            f"{mine['most']:,} bytes",
            rank,
            hint,
        )


def nbytes(*tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# ---------------------------------------------------------------------------------------------------
# TODO 1: places, lines and blocks


def places_on_rank(code, rank, world, lengths, shapes):
    blocks = []
    for length, parts in lengths:
        found = [code.block(length, parts, number) for number in range(parts)]
        blocks.append(
            [[plain(s.start), plain(s.stop), plain(s.step)] if isinstance(s, slice) else repr(s) for s in found]
        )
    places, lines = [], []
    for shape in map(tuple, shapes):
        ranks, axes = range(math.prod(shape)), range(len(shape))
        places.append([plain(code.place(r, shape)) for r in ranks])
        lines.append([[plain(code.line(r, shape, axis)) for axis in axes] for r in ranks])
    return {"blocks": blocks, "places": places, "lines": lines}


@todo(
    1,
    minutes=20,
    why=(
        "A product on a grid is right if every rank knows which rows and columns are its own, and which ranks"
        " it communicates with. If rows and columns are swapped, square matrices often hide it; so none of "
        "yours will be square."
    ),
    hints=(
        (
            "Draw the 2 × 3 grid with the numbers 0 to 5 in it. How far is a rank from its neighbour on the "
            "right, and how far from the one below?"
        ),
        (
            "block: divmod(length, parts) gives the size of the short pieces, and how many are longer by one."
            " place: divmod by the last side of the shape, then by the one before it. line: neighbours on an "
            "axis differ by the product of all later sides."
        ),
        (
            "A piece starts after the pieces before it, and the first few are longer. The remainders of divmod come"
            " last axis first. A line starts at the rank whose coordinate on this axis is 0, and continues in steps of"
            " one stride."
        ),
    ),
)
def test_todo1_grids(student):
    draw = student.draw("grids")
    asked = [(n, parts) for parts in (1, 2, draw.randrange(3, 6), draw.randrange(6, 10)) for n in lengths(draw, parts)]
    shapes = [*rectangles(draw), (draw.randrange(2, 7),), (2, 2, 2), (1, 4, 2), (2, 1, 3, 2)]
    shapes.append((draw.randint(2, 5), draw.randint(2, 5), draw.randint(2, 4)))
    (seen,) = student.call(places_on_rank, world=1, group=False, lengths=asked, shapes=shapes).evidence
    for (length, parts), blocks in zip(asked, seen["blocks"], strict=True):
        for number, found in enumerate(blocks):
            right = piece(length, parts, number)
            told = f"block({length}, {parts}, {number}) is not a slice"
            expect(isinstance(found, list), told, repr(right), found, hint=HINTS["block"])
            expect(
                found[:2] == [right.start, right.stop] and found[2] in (None, 1),
                f"block({length}, {parts}, {number}) is not piece {number} of {parts} of {length}",
                f"{right.start} to before {right.stop}",
                f"{found[0]} to before {found[1]}",
                hint=HINTS["block"],
            )
    for shape, places, lines in zip(shapes, seen["places"], seen["lines"], strict=True):
        for rank, found in enumerate(places):
            right = list(coordinates(rank, shape))
            told = f"place({rank}, {shape}) is not where rank {rank} is"
            expect(found == right, told, tuple(right), found, hint=HINTS["place"])
        for rank, found in enumerate(lines):
            for axis, ranks in enumerate(found):
                right = members(rank, shape, axis)
                expect(
                    ranks == right,
                    f"line({rank}, {shape}, {axis}) is not the line through rank {rank} along axis {axis}",
                    right,
                    ranks,
                )


# ---------------------------------------------------------------------------------------------------
# TODO 2: one axis

CUTS = {
    "rows": (("x_mK", "shard"), ("dx_mK", "the shard of dW")),
    "columns": (("x_MK", "w_Kn"), ("dx_MK", "dw_Kn")),
    "inner": (("x_Mk", "w_kN"), ("dx_Mk", "dw_kN")),
}


AGAIN = 3  # ranks on which a forward pass with other weights comes before the backward pass


def one_axis_on_rank(code, rank, world, todo):
    """For each number of ranks: the three products, forward and backward."""
    seen = []
    for case in todo:
        inside = smaller_world(case["ranks"], rank)
        found = {}
        for cut in CUTS:
            again = case["ranks"] == AGAIN
            if not inside:
                mark(), mark(), again and mark()
                continue
            x, w, dy = (taken(part, case["dtype"]) for part in case[cut])
            shape = (tuple(case["shape"]),) if cut == "rows" else ()
            all_given = Given(x=x, w=w, dy=dy)
            mark()
            y = getattr(code, f"by_{cut}")(x, w, *shape)
            mark()
            gradients = getattr(code, f"by_{cut}_backward")(dy, x, w, *shape)
            found[cut] = {"y": as_evidence(y), "gradients": as_evidence(gradients), "changes": all_given.changes()}
            if again:
                mark()
                getattr(code, f"by_{cut}")(x, 1 - w, *shape)
                found[cut]["again"] = as_evidence(getattr(code, f"by_{cut}_backward")(dy, x, w, *shape))
        seen.append(found)
    return seen


def one_axis_blocks(x, w, dy, ranks, rank):
    """For each cut: what a rank is given of X, W and dY, and what is right of Y, dX and dW."""
    y, dx, dw = x @ w, dy @ w.T, x.T @ dy
    (m, k), n = x.shape, w.shape[1]
    rows, inner, columns = (piece(length, ranks, rank) for length in (m, k, n))
    return {
        "rows": ([x[rows], shard(w, ranks, rank), dy[rows]], [y[rows], dx[rows], shard(dw, ranks, rank)]),
        "columns": ([x, w[:, columns], dy[:, columns]], [y[:, columns], dx, dw[:, columns]]),
        "inner": ([x[:, inner], w[inner], dy], [y, dx[:, inner], dw[inner]]),
    }


@todo(
    2,
    minutes=35,
    why=(
        "Every scheme that cuts a layer is one of these three, or several of them at once. Which one sends "
        "least depends on whether the tokens or the weights are many; you have just written down how."
    ),
    hints=(
        (
            "For each of the three sums (Y over k, dX over n, dW over m), ask: is the dimension that is "
            "summed over cut? Only then must ranks add anything up."
        ),
        (
            "y = x @ w; dx = dy @ w.T; dw = x.T @ dy, with the blocks at hand. gather(shard, shape) makes W "
            "whole, reduce_to_shard sums its gradient; dist.all_reduce(tensor) sums over all ranks, in place."
            " A pass around the ring sends (world - 1) / world of the numbers."
        ),
        (
            "Rows: gather in both passes, reduce_to_shard for the gradient of W. Of the other two, one "
            "all-reduces in its forward pass and one in its backward pass: the one that sums over the "
            "dimension that is cut."
        ),
    ),
)
def test_todo2_one_axis(student):
    answers = {}
    for m, k, n, world in ((24, 40, 56, 8), (31, 7, 11, 5), (12, 8, 20, 1)):
        around = (world - 1) / world
        for ending, times in (("whole", (1, 1, 2)), ("cut", (0, 0, 1))):
            for cut, often in zip(CUTS, times):
                answers["numbers_to_end", (cut, ending, m, n, world)] = often * around * m * n
        for cut, pair in zip(CUTS, ((k * n, 2 * k * n), (0, 2 * m * k), (2 * m * n, 0))):
            answers["numbers_sent_1d", (cut, m, k, n, world)] = tuple(around * numbers for numbers in pair)
    plans = []
    for ranks in range(8, 0, -1):
        draw = student.draw("one axis", ranks)
        m, k, n = draw.sample(range(3, 16), 3)
        dtype = ("float32", "float64", "bfloat16")[ranks % 3]
        matrices = [matrix(draw, *size, dtype) for size in ((m, k), (k, n), (m, n))]
        plans.append((ranks, dtype, matrices))
        held, _ = one_axis_blocks(*matrices, ranks, 0)["inner"]
        added_up = ranks == 1 or not near(held[0] @ held[1], matrices[0] @ matrices[1])
        student.premise(added_up, "a product of parts that are not added up")
    check_answers(student, answers, wrong="is not what will happen", hints=HINTS)
    plans, todo = student.several(plans, 3), Private()
    for rank in range(8):
        mine = []
        for ranks, dtype, (x, w, dy) in plans:
            case = {"ranks": ranks, "dtype": dtype, "shape": list(w.shape)}
            if rank < ranks:
                case |= {
                    cut: [given(t) for t in held] for cut, (held, _) in one_axis_blocks(x, w, dy, ranks, rank).items()
                }
            mine.append(case)
        todo.append(mine)
    run = student.call(one_axis_on_rank, world=8, todo=todo)
    calls = iter(cases(run.events))
    for number, (ranks, dtype, (x, w, dy)) in enumerate(plans):
        size = getattr(torch, dtype).itemsize
        (m, k), n = x.shape, w.shape[1]
        right = [one_axis_blocks(x, w, dy, ranks, rank) for rank in range(ranks)]
        for cut in CUTS:
            told = f"by_{cut} on {count_of(ranks, 'rank')}, m = {m}, k = {k}, n = {n}, {dtype}"
            seen = [run.evidence[rank][number][cut] for rank in range(ranks)]
            check_results(told, ["Y"], [mine["y"] for mine in seen], [mine[cut][1][0] for mine in right], dtype)
            gradients = [mine["gradients"] for mine in seen]
            check_results(told, CUTS[cut][1], gradients, [mine[cut][1][1:] for mine in right], dtype)
            check_kept(told, seen)
            turn = (ranks - 1) * size  # once around the ring, for each number of a shard
            share = {"W": -(-k * n // ranks), "Y": -(-m * n // ranks), "dX": -(-m * k // ranks)}
            most = {
                "rows": (share["W"], 2 * share["W"]),
                "columns": (0, 2 * share["dX"]),
                "inner": (2 * share["Y"], 0),
            }[cut]
            for direction, numbers in zip(("forward", "backward"), most):
                what, why = f"{told}, {direction}", "more than what has to be added up or gathered"
                check_moved(what, next(calls), [turn * numbers] * ranks, why, hint=HINTS["one axis"])
            if ranks == AGAIN:
                next(calls)
                told += ", where a forward pass with other weights comes before the backward pass"
                gradients, rights = [mine["again"] for mine in seen], [mine[cut][1][1:] for mine in right]
                check_results(told, CUTS[cut][1], gradients, rights, dtype, HINTS["again"])


# ---------------------------------------------------------------------------------------------------
# Two axes


def two_axes_blocks(x, w, dy, shape, rank):
    """What a rank of a table is given of X, W and dY, and what is right of Y, dX and dW."""
    row, column = coordinates(rank, shape)

    def part(tensor):
        return tensor[piece(tensor.shape[0], shape[0], row), piece(tensor.shape[1], shape[1], column)]

    return [part(t) for t in (x, w, dy)], [part(t) for t in (x @ w, dy @ w.T, x.T @ dy)]


def largest(length, parts):
    return -(-length // parts)


# ---------------------------------------------------------------------------------------------------
# TODO 3: Cannon


def cannon_on_rank(code, rank, world, todo):
    seen = []
    for case in todo:
        if not smaller_world(case["ranks"], rank):
            mark(), mark()
            seen.append(None)
            continue
        x, w, dy = (taken(part, case["dtype"]) for part in case["blocks"])
        grid = code.Grid(tuple(case["shape"]), rank, case["ranks"])
        all_given = Given(x=x, w=w, dy=dy)
        if case["merciless"]:
            merciless_messages()
        mark()
        if case["limit"]:
            with SettledPeak([x, w], case["limit"]) as peak:
                y = code.cannon(x, w, case["sizes"][1], grid)
            most = peak.most
        else:
            y, most = code.cannon(x, w, case["sizes"][1], grid), 0
        y = as_evidence(y)
        mark()
        gradients = as_evidence(code.cannon_backward(dy, x, w, tuple(case["sizes"]), grid))
        seen.append(
            {"y": y, "gradients": gradients, "most": most, "limit": case["limit"], "changes": all_given.changes()}
        )
    return seen


def refused_on_rank(code, rank, world, todo):
    """What cannon() says about each grid."""
    said = []
    for case in todo:
        inside = smaller_world(case["ranks"], rank)
        mark()
        if inside:
            x, w = (taken(part, "float32") for part in case["blocks"])
            grid = code.Grid(tuple(case["shape"]), rank, case["ranks"])
            said.append(raised(lambda x=x, w=w, grid=grid: code.cannon(x, w, 12, grid)))
    return said


# 4 is a square number, and has other grids, too. The one that is not a mistake comes last.
GRIDS = ((6, 1), (3, 2), (2, 3), (1, 6), (4, 1), (1, 4), (2, 2))


@hinted(
    "On which grids does every block of X meet its block of W, if each moves one place a step? All others are"
    " refused before anything is sent."
)
def check_squares(student):
    """Cannon's grids are squares; others are refused before anything is sent."""
    draw, todo = student.draw("refused"), Private([[] for _ in range(6)])
    x, w, dy = matrix(draw, 6, 12), matrix(draw, 12, 9), matrix(draw, 6, 9)
    for rank, shape in itertools.product(range(6), GRIDS):
        ranks = math.prod(shape)
        blocks = two_axes_blocks(x, w, dy, shape, rank)[0][:2] if rank < ranks else ()
        todo[rank].append({"ranks": ranks, "shape": list(shape), "blocks": [given(t) for t in blocks]})
    try:
        run = student.call(refused_on_rank, world=6, todo=todo)
    except Fault as fault:
        begun = min(sum(event["e"] == "mark" for event in mine) for mine in fault.events[:4])
        if fault.cause == "crash" or begun in (0, len(GRIDS)):
            raise
        raise Wrong(
            f"cannon on a grid of {spoken(GRIDS[begun - 1])} is not refused before anything is sent: {fault.message}",
            "a ValueError",
            "messages",
        ) from None
    grids = [[shape for shape in GRIDS if rank < math.prod(shape)] for rank in range(6)]
    check_refusals(
        [zip(*tried, strict=True) for tried in zip(grids, run.evidence, strict=True)],
        refused=lambda rows, columns: rows != columns,
        told=lambda *shape: f"cannon on a grid of {spoken(shape)}",
        words=lambda *shape: shape,
    )
    for shape, events in zip(GRIDS, cases(run.events), strict=True):
        sent = any(event["e"] == "op" and event["bytes"] for mine in events for event in mine)
        told = f"cannon on a grid of {spoken(shape)} is refused only after something was sent"
        expect(shape == (2, 2) or not sent, told, "nothing sent", "messages")


def must_skew(student, side, matrices):
    """A premise: without the skew a block off the diagonal is a different one. One of the two may be empty."""
    if side == 1:
        return
    blocks = [two_axes_blocks(*matrices, (side, side), rank) for rank in range(side * side)]
    held, right = [mine for mine, _ in blocks], [mine[0] for _, mine in blocks]

    def unskewed(row, column):
        return sum(held[side * row + inner][0] @ held[side * inner + column][1] for inner in range(1, side))

    differs = any(not near(unskewed(row, column), right[side * row + column]) for row, column in ((0, 1), (1, 0)))
    student.premise(differs, "a product without the skew")


@todo(
    3,
    minutes=25,
    further=True,
    needs=(1,),
    why=(
        "Without the skew, blocks that do not match meet on every rank except the diagonal; and since the "
        "diagonal is right, looking at rank 0 reveals nothing. Cannon's algorithm is the oldest that holds "
        "only a few blocks, and the ring of ring attention works in the same way."
    ),
    hints=(
        (
            "Write on a 3 × 3 table which block of X and which of W each rank has at first. At (1, 2) the two"
            " inner indices must become equal: which block moves how far?"
        ),
        (
            "In step 0 a block of X goes `row` places to the left, and a block of W `column` places up; later"
            " each goes one place. exchange(block, to, source, shape) takes ranks: grid.lines[1][(column - "
            "places) % side] is the one to the left. In step s the inner index inner_index(row, column, s, "
            "side) arrives, and block(k, side, index) tells its size."
        ),
        (
            "A loop of `side` steps, each with two exchanges and one product. Source and destination are "
            "equally far away, in opposite directions."
        ),
    ),
)
def test_todo3_cannon(student):
    plans = []
    # Once the blocks of the result are far smaller than the others, and do not hide what is alive of these; and once
    # far larger.
    small, large = ([4, 5, 7, 8], [25, 26, 28, 29]), ([25, 26, 28, 29], [4, 5, 7, 8])
    empty = [1, 2], [1, 2, 25, 26]  # fewer rows, or columns, than the grid has
    for ranks, dtype, merciless, (outer, inner) in (
        (9, "float32", False, small),
        (9, "float64", False, large),
        (9, "float32", True, empty),
        (4, "float64", True, small),
        (1, "float32", True, small),
    ):
        draw = student.draw("cannon", ranks, dtype, merciless)
        m, n = draw.sample(outer, 2)
        k = draw.choice(inner)
        matrices = [matrix(draw, *size, dtype) for size in ((m, k), (k, n), (m, n))]
        plans.append((ranks, dtype, merciless, matrices))
        must_skew(student, math.isqrt(ranks), matrices)
    answers = {}
    for side in (3, 4):
        for row, column, step in itertools.product(range(side), repeat=3):
            answers["inner_index", (row, column, step, side)] = (row + column + step) % side
    check_answers(student, answers, wrong="is not what will happen")
    check_squares(student)
    plans = student.several(plans, 2)
    todo = Private([[cannon_case(plan, rank) for plan in plans] for rank in range(9)])
    with hinted(NO_RECEIVER, "hang"), hinted(OTHER_BLOCK, "mismatch"):
        run = student.call(cannon_on_rank, world=9, todo=todo)
    calls = iter(cases(run.events))
    for number, plan in enumerate(plans):
        forward, _ = next(calls), next(calls)
        check_cannon(plan, [run.evidence[rank][number] for rank in range(plan[0])], forward)


NO_RECEIVER = (
    "A block goes to a rank that does not expect it. In the skew, all blocks of X in one row of the grid move by the"
    " same number of places, and all blocks of W in one column: which number is that for this row, or this column?"
)
OTHER_BLOCK = (
    "A block arrives that is not as large as the one that is expected: so it is a different block. Which inner index"
    " does it have, on a 3 × 3 table, and which one is expected in this step?"
)


def cannon_case(plan, rank):
    """What a rank is given for one product, and how many bytes it may hold; 0: any."""
    ranks, dtype, merciless, (x, w, dy) = plan
    (m, k), n, side = x.shape, w.shape[1], math.isqrt(ranks)
    case = {
        "ranks": ranks,
        "dtype": dtype,
        "merciless": merciless,
        "shape": [side, side],
        "sizes": [m, k, n],
        "limit": 0,
    }
    if rank < ranks:
        held, (y, *_) = two_axes_blocks(x, w, dy, (side, side), rank)
        case["blocks"] = [given(t) for t in held]
        if ranks == 9:  # with fewer, a rank may hold a whole row of blocks
            blocks = largest(k, side) * (held[0].shape[0] + held[1].shape[1])
            numbers = held[0].numel() + held[1].numel() + 2 * blocks + 2 * y.numel()
            case["limit"] = numbers * (4 if dtype == "float32" else 8)
    return case


def check_cannon(plan, seen, forward):
    ranks, dtype, _, (x, w, dy) = plan
    (m, k), n, side = x.shape, w.shape[1], math.isqrt(ranks)
    told = f"cannon on {side} × {side} ranks, m = {m}, k = {k}, n = {n}, {dtype}"
    right = [two_axes_blocks(x, w, dy, (side, side), rank)[1] for rank in range(ranks)]
    check_results(told, ["Y"], [mine["y"] for mine in seen], [mine[0] for mine in right], dtype)
    gradients = [mine["gradients"] for mine in seen]
    rights = [mine[1:] for mine in right]
    check_results(f"{told}, backward", ["dX", "dW"], gradients, rights, dtype, HINTS["cannon back"])
    check_kept(told, seen)
    check_delivery(told, forward)
    size = 4 if dtype == "float32" else 8
    check_moved(
        told,
        forward,
        [size * side * largest(k, side) * sum(y.shape) * (ranks > 1) for y, *_ in right],
        f"{side} blocks of X and {side} of W are enough",
        hint=HINTS["cannon moved"],
    )
    if seen[0]["limit"]:
        why = "apart from its own blocks it needs two more of X and of W, and two of the result's size"
        check_alive(told, seen, why, HINTS["cannon alive"])


# ---------------------------------------------------------------------------------------------------
# TODO 4: SUMMA


def panels_of(k, shape):
    rows, columns = shape
    starts = sorted({piece(k, parts, number).start for parts in shape for number in range(parts)} | {k})
    found = []
    for begin, end in itertools.pairwise(starts):
        column = next(c for c in range(columns) if piece(k, columns, c).start <= begin < piece(k, columns, c).stop)
        row = next(r for r in range(rows) if piece(k, rows, r).start <= begin < piece(k, rows, r).stop)
        found.append([begin, end, column, row])
    return found


def panels_on_rank(code, rank, world, asked):
    return [plain(code.panels(k, tuple(shape))) for k, shape in asked]


def summa_on_rank(code, rank, world, todo):
    seen = []
    for case in todo:
        if not smaller_world(case["ranks"], rank):
            mark(), mark()
            seen.append(None)
            continue
        x, w, dy = (taken(part, case["dtype"], case["turned"]) for part in case["blocks"])
        grid = code.Grid(tuple(case["shape"]), rank, case["ranks"])
        all_given = Given(x=x, w=w, dy=dy)
        mark()
        with SettledPeak([x, w], case["limits"][0]) as peak:
            y = code.summa(x, w, case["k"], grid)
        forward = {"most": peak.most, "limit": case["limits"][0]}
        mark()
        with SettledPeak([x, w, dy], case["limits"][1]) as peak:
            gradients = code.summa_backward(dy, x, w, case["k"], grid)
        backward = {"most": peak.most, "limit": case["limits"][1]}
        seen.append(
            {
                "y": as_evidence(y),
                "gradients": as_evidence(gradients),
                "changes": all_given.changes(),
                "forward": forward,
                "backward": backward,
            }
        )
    return seen


@todo(
    4,
    minutes=60,
    further=True,
    needs=(1,),
    why=(
        "SUMMA runs on any table of ranks, and the bytes that arrive at a rank shrink with the square root of"
        " their number. Gathering a whole row of blocks first moves the same numbers, and runs out of memory"
        " where SUMMA would not."
    ),
    hints=(
        (
            "Draw k as a line, and mark where X cuts it and where W cuts it. Between two marks is a panel; "
            "each has one column of the grid for X, and one row for W."
        ),
        (
            "A panel is the overlap of a piece of X and a piece of W, if it is not empty: from the larger "
            "start to the smaller stop. To broadcast, the owner takes the panel's columns of its block, "
            "contiguous, and the others make an empty tensor; src is grid.lines[1][panel.column]. The "
            "gradients: dy_mn @ w.T is a part of dX's panel, reduced along my row; x.T @ dy_mn is a part of "
            "dW's panel, reduced along my column."
        ),
        (
            "For each panel: y_mn += x_panel(…) @ w_panel(…). Backward, each of the two products is followed by"
            " dist.reduce to the owner, which writes it into its block, counted from where the block starts."
        ),
    ),
)
def test_todo4_summa(student):
    check_panels(student)
    plans, shapes = [], []
    for ranks in range(8, 0, -1):  # as near to a square as may be; of 8 ranks, and of a prime, a row or a column, maybe
        tables = boxes(ranks, 2)
        near = tables[len(tables) // 2] if len(tables) > 2 else None
        others = [student.draw("table", ranks).choice([t for t in tables if t != near])]
        shapes += [near] * bool(near) + others * (ranks == 8 or not near)
    for number, shape in enumerate(shapes):
        draw = student.draw("summa", shape)
        # Of 7 ranks in a row or a column, some have nothing of the result, and panels all the same.
        m, n = (4, 6) if math.prod(shape) == 7 else draw.sample(range(5, 12), 2)
        k = draw.choice([25, 26, 27, 29, 30])
        dtype = "float64" if number % 2 else "float32"
        plans.append((shape, dtype, [matrix(draw, *size, dtype) for size in ((m, k), (k, n), (m, n))]))
    plans = student.several(plans, 2)
    todo = Private([[summa_case(plan, rank) for plan in plans] for rank in range(8)])
    run = student.call(summa_on_rank, world=8, todo=todo)
    calls = iter(cases(run.events))
    for number, plan in enumerate(plans):
        seen = [run.evidence[rank][number] for rank in range(math.prod(plan[0]))]
        check_summa(plan, seen, forward=next(calls), backward=next(calls))


def check_panels(student):
    draw = student.draw("panels")
    asked = [
        [10, [2, 3]],
        [12, [3, 3]],
        [7, [1, 4]],
        [3, [2, 5]],
        [draw.randint(30, 60), [draw.randint(2, 4), draw.randint(5, 7)]],
    ]
    (seen,) = student.call(panels_on_rank, world=1, group=False, asked=asked).evidence
    for (k, shape), found in zip(asked, seen, strict=True):
        right = panels_of(k, shape)
        expect(
            found == right,
            f"panels({k}, {tuple(shape)}) are not the widest that lie in one block of X and one of W",
            right,
            found,
        )


def summa_case(plan, rank):
    """What a rank is given for one product, and how many bytes it may hold, forward and backward."""
    shape, dtype, (x, w, dy) = plan
    case = {"ranks": math.prod(shape), "shape": list(shape), "dtype": dtype, "k": x.shape[1], "turned": turned(shape)}
    if rank < math.prod(shape):
        held, right = two_axes_blocks(x, w, dy, shape, rank)
        widest = max(end - begin for begin, end, *_ in panels_of(x.shape[1], shape))
        each = widest * (len(held[0]) + held[1].shape[1])  # a panel of X and one of W, or of their gradients
        sizes = [t.numel() for t in (*held, *right)]
        limits = (sum(sizes[:2]) + 2 * each + 2 * sizes[3], sum(sizes[:3]) + sum(sizes[4:]) + 4 * each)
        case |= {
            "blocks": [given(t) for t in held],
            "limits": [limit * (4 if dtype == "float32" else 8) for limit in limits],
        }
    return case


def turned(shape):
    """Whether what ranks of a table of this shape are given is not contiguous."""
    return math.prod(shape) == 4


def check_summa(plan, seen, forward, backward):
    shape, dtype, (x, w, dy) = plan
    ranks, (m, k), n = math.prod(shape), x.shape, w.shape[1]
    told = f"summa on {spoken(shape)} ranks, m = {m}, k = {k}, n = {n}, {dtype}"
    told += ", blocks that are not contiguous" if turned(shape) else ""
    blocks = [two_axes_blocks(x, w, dy, shape, rank) for rank in range(ranks)]
    check_results(told, ["Y"], [mine["y"] for mine in seen], [right[0] for _, right in blocks], dtype, HINTS["panel"])
    gradients, rights = [mine["gradients"] for mine in seen], [right[1:] for _, right in blocks]
    check_results(f"{told}, backward", ["dX", "dW"], gradients, rights, dtype, HINTS["panel back"])
    check_kept(told, seen)
    size = 4 if dtype == "float32" else 8
    lacking = [len(hx) * (k - hx.shape[1]) + (k - hw.shape[0]) * hw.shape[1] for (hx, hw, _), _ in blocks]
    most = [1.1 * size * numbers for numbers in lacking]  # blocks differ by one, and a neighbour's may be larger
    why, hint = "only the panels that it lacks must arrive", HINTS["panel moved"]
    check_moved(told, forward, most, why, "takes part with", hint)
    check_moved(
        f"{told}, backward",
        backward,
        [2 * mine for mine in most],
        "only the panels that it lacks, and as many sums, must be moved",
        "takes part with",
        hint,
    )
    panels = len(panels_of(k, shape))
    with hinted("Each panel goes along a line of the grid in one call. Which loop makes several?"):
        why = f"for {panels} panels, a broadcast of X and of W each"
        check_calls(f"{told}:", collectives(forward), 2 * panels, why)
        why = f"for {panels} panels, two broadcasts and two sums each"
        check_calls(f"{told}, backward:", collectives(backward), 4 * panels, why)
    check_alive(
        told,
        [mine["forward"] for mine in seen],
        "apart from its blocks it needs two panels of each matrix at most, and two tensors of the result's size",
        HINTS["panel alive"],
    )
    check_alive(
        f"{told}, backward",
        [mine["backward"] for mine in seen],
        "apart from its blocks and gradients it needs two panels of each matrix and of each gradient at most",
        HINTS["panel alive"],
    )


# ---------------------------------------------------------------------------------------------------
# TODO 5: three axes


def three_axes_blocks(x, w, dy, shape, axes, rank):
    """What a rank of a box is given of X, W and dY, the shape of its block of W, and what is right of Y, dX and dW.

    W and dW are shards of its block.
    """
    inner, outer, depth = axes
    at = coordinates(rank, shape)
    rows = piece(x.shape[0], shape[depth], at[depth])
    between = piece(x.shape[1], shape[inner], at[inner])
    columns = piece(w.shape[1], shape[outer], at[outer])
    block = w[between, columns]
    held = [x[rows, between], shard(block, shape[depth], at[depth]), dy[rows, columns]]
    y, dx, dw = x @ w, dy @ w.T, x.T @ dy
    return (
        held,
        list(block.shape),
        [y[rows, columns], dx[rows, between], shard(dw[between, columns], shape[depth], at[depth])],
    )


def three_axes_moved(m, k, n, inner, outer, depth, size):
    """Bytes that a rank sends forward and backward, at most; each tensor is cut into pieces that are rounded up."""
    rows, between, columns = largest(m, depth), largest(k, inner), largest(n, outer)
    weights = (depth - 1) * -(-between * columns // depth)
    y = 2 * (inner - 1) * -(-rows * columns // inner)
    dx = 2 * (outer - 1) * -(-rows * between // outer)
    return size * (weights + y), size * (2 * weights + dx)


# The first two for the products that are made at the same time.
AXES_5 = ((1, 0, 2), (0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 2, 0), (2, 0, 1))


def three_axes_on_rank(code, rank, world, todo):
    seen, both = [], crossed_on_ranks(code, rank, todo[:2])  # while all ranks are there
    for case in todo:
        if not smaller_world(case["ranks"], rank):
            mark(), mark()
            seen.append(None)
            continue
        x, w, dy = (taken(part, case["dtype"]) for part in case["blocks"])
        grid = code.Grid(tuple(case["shape"]), rank, case["ranks"])
        x.requires_grad_(), w.requires_grad_()
        all_given = Given(x=x, w=w, dy=dy)
        mark()
        with Storages([x, w]) as storages:
            y = code.Product.apply(x, w, tuple(case["of_w"]), code.Axes(*case["axes"]), grid)
            if not (isinstance(y, torch.Tensor) and y.shape == dy.shape):
                mark()
                seen.append({"y": as_evidence(y), "gradients": [None, None], "extra": 0, "changes": {}})
                continue
            extra = 0
            for _ in range(100):  # gloo's own thread lets go of a tensor a moment after its message is over
                extra = storages.by_kind({"mine": [x, w, y]})["other"]
                if not extra:
                    break
                time.sleep(0.001)
        found = {"y": as_evidence(y), "extra": extra, "gradients": [None, None]}
        mark()
        if y.requires_grad:
            y.backward(dy)
            found["gradients"] = [as_evidence(t.grad) for t in (x, w)]
        seen.append(found | {"changes": all_given.changes(gradients=False)})
    return {"alone": seen, "crossed": both}


def crossed_on_ranks(code, rank, todo):
    """Products on all ranks, with different axes, at the same time."""
    passes = []
    for case in todo:
        grid = code.Grid(tuple(case["shape"]), rank, case["ranks"])

        def product(x, w, case=case, grid=grid):
            return code.Product.apply(x, w, tuple(case["of_w"]), code.Axes(*case["axes"]), grid)

        x, w, dy = (taken(part, case["dtype"]) for part in case["blocks"])
        passes.append((product, [x.requires_grad_(), w.requires_grad_()], dy))
    return crossed(passes)


@todo(
    5,
    minutes=25,
    needs=(1,),
    why=(
        "This one product contains data-parallel, sharded and tensor-parallel training, and everything in between. A"
        " sum along the wrong axis adds what does not belong to it, or leaves out what does; and on a cube, where all"
        " lines have the same length, the shapes do not reveal it."
    ),
    hints=(
        (
            "For each of Y, dX and dW: which dimension is summed over, and along which axis of the grid is it"
            " cut? Its collective runs along this axis, and along no other."
        ),
        (
            "Forward: gather along the depth, multiply, dist.all_reduce along the inner axis. Backward: "
            "gather again; dy @ w.T is all-reduced along the outer axis, x.T @ dy goes through "
            "reduce_to_shard along the depth. The group of an axis is grid.groups[axis]."
        ),
        (
            "Each prediction is a factor (1 or 2), times (length - 1) / length of the line, times the numbers"
            " of one block: k n / (inner outer) for W, m n / (depth outer) for Y, m k / (depth inner) for dX."
            " backward returns as many values as forward takes, None for the last three."
        ),
    ),
)
def test_todo5_three_axes(student):
    check_numbers_sent(student)
    plans = []
    for ranks in range(8, 0, -1):
        draw = student.draw("boxes", ranks)
        shapes = boxes(ranks, 3)
        cube = [(2, 2, 2)] * 2 if ranks == 8 else []  # all lines are equally long: shapes do not tell a wrong axis
        for shape in cube + [draw.choice(shapes)]:
            axes = AXES_5[len(plans) % len(AXES_5)]
            divides = ranks == 4  # there the formula holds to the byte
            m, k, n = draw.sample([4, 8, 12, 16], 3) if divides else draw.sample(range(3, 14), 3)
            dtype = draw.choice(["float32", "float64"])
            if shape == (2, 2, 2) and len(plans) < 2:  # the two that are made at the same time: only the axes differ
                m, k, n = (8, 4, 12)
                dtype = "float32"
            plans.append((shape, axes, dtype, [matrix(draw, *size, dtype) for size in ((m, k), (k, n), (m, n))]))
    plans[2:] = student.several(plans[2:], 2)
    todo = Private([[three_axes_case(plan, rank) for plan in plans] for rank in range(8)])
    run = student.call(three_axes_on_rank, world=8, todo=todo)
    calls = iter(cases(run.events))
    for number, (shape, axes, dtype, (x, w, dy)) in enumerate(plans):
        ranks, (m, k), n = math.prod(shape), x.shape, w.shape[1]
        inner, outer, depth = (shape[axis] for axis in axes)
        told = f"Product on {spoken(shape)} ranks, axes {axes}, m = {m}, k = {k}, n = {n}, {dtype}"
        right = [three_axes_blocks(x, w, dy, shape, axes, rank)[2] for rank in range(ranks)]
        seen = [run.evidence[rank]["alone"][number] for rank in range(ranks)]
        check_results(told, ["Y"], [mine["y"] for mine in seen], [mine[0] for mine in right], dtype)
        gradients = [mine["gradients"] for mine in seen]
        check_results(f"{told}, backward", ["dX", "the shard of dW"], gradients, [mine[1:] for mine in right], dtype)
        check_kept(told, seen)
        for rank, mine in enumerate(seen):
            expect(
                mine["extra"] == 0,
                f"{told}: after the forward pass rank {rank} keeps {mine['extra']:,} bytes more than X, its shard and "
                "Y, for the backward pass",
                "0 bytes",
                f"{mine['extra']:,} bytes",
                rank,
                HINTS["saved"],
            )
        most = three_axes_moved(m, k, n, inner, outer, depth, 4 if dtype == "float32" else 8)
        for direction, limit in zip(("forward", "backward"), most):
            check_moved(f"{told}, {direction}", next(calls), [limit] * ranks, "more than the formula says")
    with hinted(CROSSED):
        check_crossed(plans, [mine["crossed"] for mine in run.evidence])
    check_corners(student)


def check_crossed(plans, seen):
    for number, (shape, axes, dtype, matrices) in enumerate(plans[:2]):
        told = f"Product on {spoken(shape)} ranks with the axes of two layers, both forward passes first: axes {axes}"
        right = [three_axes_blocks(*matrices, shape, axes, rank)[2][1:] for rank in range(8)]
        check_results(told, ["dX", "the shard of dW"], [mine[number] for mine in seen], right, dtype)


def check_numbers_sent(student):
    answers = {}
    for m, k, n, x, y, z in (
        (48, 96, 144, 2, 3, 4),
        (48, 96, 144, 1, 1, 8),
        (40, 24, 16, 1, 4, 1),
        (40, 24, 16, 4, 1, 1),
        (6, 4, 10, 1, 1, 1),
    ):
        gathered = (z - 1) / z * k * n / (x * y)
        answers["numbers_sent_3d", (m, k, n, x, y, z)] = (
            2 * gathered,
            gathered,
            2 * (x - 1) / x * m * n / (z * y),
            2 * (y - 1) / y * m * k / (z * x),
        )
    check_answers(student, answers, wrong="is not what will happen")


def three_axes_case(plan, rank):
    """What a rank is given for one product."""
    shape, axes, dtype, (x, w, dy) = plan
    case = {"ranks": math.prod(shape), "shape": list(shape), "axes": list(axes), "dtype": dtype}
    if rank < math.prod(shape):
        held, of_w, _ = three_axes_blocks(x, w, dy, shape, axes, rank)
        case |= {"blocks": [given(t) for t in held], "of_w": of_w}
    return case


# The layers of the lessons before, in short: what the corners of the box must do.


class Copied(torch.autograd.Function):
    """Megatron's f: nothing forward, an all-reduce of the gradient backward."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        dy = dy.clone()
        dist.all_reduce(dy)
        return dy


class Reduced(torch.autograd.Function):
    """Megatron's g: an all-reduce forward, nothing backward."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, dy):
        return dy


class Unsharded(torch.autograd.Function):
    """A weight of ZeRO's stage 3: gathered, and its gradient reduced to shards. Who uses it gathers it twice."""

    @staticmethod
    def forward(ctx, mine, shape):
        shards = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(shards, mine.detach())
        return torch.cat(shards)[: math.prod(shape)].view(shape)

    @staticmethod
    def backward(ctx, dw):
        world = dist.get_world_size()
        shards = [shard(dw, world, number).contiguous() for number in range(world)]
        mine = torch.empty_like(shards[0])
        dist.reduce_scatter(mine, shards)
        return mine, None


def corners_on_rank(code, rank, world, todo):
    """Each corner by the student's product, and by the earlier lesson's layer."""
    seen = []
    for case in todo:
        x, w, dy = (taken(part, "float32") for part in case["blocks"])
        grid = code.Grid(tuple(case["shape"]), rank, world)
        shape = tuple(case["of_w"])
        found = []
        for theirs in (False, True):
            x.grad = w.grad = None
            x.requires_grad_(), w.requires_grad_()
            mark()
            if not theirs:
                y = code.Product.apply(x, w, shape, code.Axes(0, 1, 2), grid)
            elif case["layer"] == "FSDP":
                # Makes the forward pass, and with it the all-gather, once more.
                from torch.utils.checkpoint import checkpoint

                y = checkpoint(lambda x, w: x @ Unsharded.apply(w, shape), x, w, use_reentrant=False)
            elif case["layer"] == "column-parallel":
                y = Copied.apply(x) @ w.view(shape)
            else:
                y = Reduced.apply(x @ w.view(shape))
            y.backward(dy)
            found.append([as_evidence(t) for t in (y, x.grad, w.grad)])
        seen.append(found)
    return seen


@hinted(
    "At a corner of the box, two of the three axes have one rank each. Which collectives are left, and what does"
    " the other layer send there?"
)
def check_corners(student):
    """FSDP and Megatron are corners: the same numbers and the same bytes as the layers of the lessons before."""
    world = 4
    corners = {"FSDP": (1, 1, world), "column-parallel": (1, world, 1), "row-parallel": (world, 1, 1)}
    draw = student.draw("corners")
    m, k, n = draw.sample([4, 8, 12, 16, 20], 3)
    x, w, dy = (matrix(draw, *size) for size in ((m, k), (k, n), (m, n)))
    todo = Private()
    for rank in range(world):
        mine = []
        for layer, shape in corners.items():
            held, of_w, _ = three_axes_blocks(x, w, dy, shape, (0, 1, 2), rank)
            mine.append({"layer": layer, "shape": list(shape), "of_w": of_w, "blocks": [given(t) for t in held]})
        todo.append(mine)
    run = student.call(corners_on_rank, world=world, todo=todo)
    calls = iter(cases(run.events))
    for number, (layer, shape) in enumerate(corners.items()):
        own, theirs = ([moved_by(mine, rank) for rank, mine in enumerate(next(calls))] for _ in range(2))
        told = f"on {spoken(shape)} ranks Product is not a {layer} layer"
        pairs = [run.evidence[rank][number] for rank in range(world)]
        check_results(told, ["Y", "dX", "the shard of dW"], [a for a, _ in pairs], [b for _, b in pairs])
        for rank in range(world):
            expect(
                abs(own[rank] - theirs[rank]) < 1,
                f"{told}: rank {rank} sends {own[rank]:,.0f} bytes, and there {theirs[rank]:,.0f}",
                f"{theirs[rank]:,.0f} bytes",
                f"{own[rank]:,.0f} bytes",
                rank,
            )


# ---------------------------------------------------------------------------------------------------
# TODO 6: an MLP

# Losses and weights differ from one process's by the order in which float32 numbers are added.
# Gradients are compared by their norms. A missing sum, or replicas that count twice, change them by a tenth and more.
CLOSE = 1e-4
RATE, STEPS = 0.5, 2


def layer_axes(layer):
    return (0, 1, 2) if layer % 2 == 0 else (1, 0, 2)


def mlp_on_rank(code, rank, world, todo):
    seen = []
    for case in todo:
        inside = smaller_world(case["ranks"], rank)
        if not inside:
            for _ in range(1 + 2 * STEPS):
                mark()
            seen.append(None)
            continue
        grid = code.Grid(tuple(case["shape"]), rank, case["ranks"])
        x, target = (taken(part, case["dtype"]) for part in case["blocks"])
        shards = [taken(part, case["dtype"]).requires_grad_() for part in case["shards"]]
        shapes = [tuple(shape) for shape in case["shapes"]]
        axes = code.Axes(*case["last"])
        found = {"losses": [], "parts": [], "gradients": [], "broken": None}
        mark()
        products_alone(code, x, shards, shapes, grid)
        for _ in range(STEPS):
            mark()
            y = None if found["broken"] else code.mlp(x, shards, shapes, grid)
            mark()
            if found["broken"]:
                continue
            if not (isinstance(y, torch.Tensor) and y.shape == target.shape):
                found["broken"] = [
                    "mlp",
                    f"a tensor of shape {tuple(target.shape)}",
                    f"shape {tuple(y.shape)}" if isinstance(y, torch.Tensor) else type(y).__name__,
                ]
                continue
            pair = code.squared_error(y, target, case["numbers"], axes, grid)
            if not (
                isinstance(pair, (tuple, list))
                and len(pair) == 2
                and all(isinstance(t, torch.Tensor) and t.dim() == 0 for t in pair)
            ):
                shown = (
                    [list(t.shape) if isinstance(t, torch.Tensor) else type(t).__name__ for t in pair]
                    if isinstance(pair, (tuple, list))
                    else type(pair).__name__
                )
                found["broken"] = ["squared_error", "two 0-dim tensors", str(shown)]
                continue
            mine, loss = pair
            if loss.requires_grad or not mine.requires_grad:
                found["broken"] = [
                    "squared_error",
                    "a part with a gradient and a loss without one",
                    "the part has none" if not mine.requires_grad else "the loss has one",
                ]
                continue
            gradients = torch.autograd.grad(mine, shards, allow_unused=True)
            found["losses"].append(loss.double().item())
            of_its_block = (y.detach().double() - target.double()).square().sum() / case["numbers"]
            found["parts"].append([mine.double().item(), of_its_block.item()])
            found["gradients"].append([as_evidence(g) for g in gradients])
            with torch.no_grad():
                for one, g in zip(shards, gradients):
                    if g is not None and g.shape == one.shape:
                        one -= RATE * g
        seen.append(found)
    return seen


@torch.no_grad()
def products_alone(code, x, shards, shapes, grid):
    """The products of an MLP, and nothing between them."""
    for layer, (one, shape) in enumerate(zip(shards, shapes)):
        inner, outer, depth = layer_axes(layer)
        x = code.Product.apply(x, one, shape, code.Axes(inner, outer, depth), grid)


def serial_mlp(x, target, weights):
    x, target = (taken(part, "float64") for part in (x, target))
    weights = [taken(part, "float64").requires_grad_() for part in weights]
    found = {"losses": [], "gradients": []}
    for _ in range(STEPS):
        y = x
        for layer, w in enumerate(weights):
            y = (F.gelu(y) if layer else y) @ w
        loss = (y - target).square().mean()
        gradients = torch.autograd.grad(loss, weights)
        found["losses"].append(loss.item())
        found["gradients"].append(list(gradients))
        with torch.no_grad():
            for w, g in zip(weights, gradients):
                w -= RATE * g
    return found


def normal(draw, rows, columns, scale):
    return torch.tensor([draw.gauss(0, scale) for _ in range(rows * columns)], dtype=torch.float64).view(rows, columns)


def check_axes(student):
    (axes,) = student.call(axes_on_rank, world=1, group=False, layers=5).evidence
    for layer, found in enumerate(axes):
        expect(
            found == list(layer_axes(layer)),
            f"axes_of({layer}) does not fit the blocks that the layer before it leaves",
            "inner {}, outer {}, depth {}".format(*layer_axes(layer)),
            found,
        )


@todo(
    6,
    minutes=20,
    further=True,
    needs=(1, 5),
    why=(
        "Two layers that fit together without a message in between are what made Megatron's scheme cheap; on "
        "three axes it is the same idea. And each part of the loss must count once: a sum over all ranks "
        "counts every replica."
    ),
    hints=(
        (
            "After the first product, along which axis are the columns of Y cut? That must be the inner axis "
            "of the next one. For the loss: along which axis do the ranks have the same block of Y?"
        ),
        (
            "Even layers have inner 0 and outer 1, odd ones the other way round. Product.apply(x_mk, shard, "
            "shape, axes, grid) for each layer, F.gelu between two. This rank's part of the loss is a sum "
            "over its block divided by `numbers`."
        ),
        (
            "The loss to print is a detached clone of that part, all-reduced along two of the three axes: all"
            " but the one whose ranks have the same block."
        ),
    ),
)
def test_todo6_mlp(student):
    plans = []
    for shape in ((2, 2, 2), (7, 1, 1), (3, 1, 2), (1, 1, 5), (2, 2, 1), (1, 2, 1), (1, 1, 1)):
        draw = student.draw("mlp", shape)
        layers = 3 if shape in ((2, 2, 2), (3, 1, 2), (2, 2, 1)) else 2
        m, *dims = draw.sample(range(5, 14), 2 + layers)
        m = 4 if shape == (1, 1, 5) else m  # one rank has no rows
        matrices = [normal(draw, m, dims[0], 1.0), normal(draw, m, dims[-1], 1.0)]
        weights = [normal(draw, k, n, k**-0.5) for k, n in itertools.pairwise(dims)]
        plans.append((shape, draw.choice(["float32", "float64"]), matrices, weights))
    plans = student.several(plans, 2)
    whole = [[given(x), given(target), [given(w) for w in weights]] for _, _, (x, target), weights in plans]
    serial = [student.reference(serial_mlp, x=x, target=target, weights=weights) for x, target, weights in whole]
    for right in serial:
        student.premise(right["losses"][-1] < 0.999 * right["losses"][0], "a model that does not train")
    check_axes(student)
    todo = Private([[mlp_case(plan, rank) for plan in plans] for rank in range(8)])
    run = student.call(mlp_on_rank, world=8, todo=todo)
    calls = iter(cases(run.events))
    for number, plan in enumerate(plans):
        seen = [run.evidence[rank][number] for rank in range(math.prod(plan[0]))]
        alone, *parts = [next(calls, [[]] * 8) for _ in range(1 + 2 * STEPS)]
        steps = [[a + b for a, b in zip(*parts[step : step + 2])] for step in range(0, 2 * STEPS, 2)]
        check_mlp(plan, seen, serial[number], steps)
        check_nothing_between(plan[0], seen, alone, parts[0])


def mlp_case(plan, rank):
    """What a rank is given for one MLP: its blocks of x and of the target, its shards of the weights."""
    shape, dtype, (x, target), weights = plan
    last = layer_axes(len(weights) - 1)
    case = {
        "ranks": math.prod(shape),
        "shape": list(shape),
        "dtype": dtype,
        "last": list(last),
        "numbers": target.numel(),
    }
    if rank < math.prod(shape):
        at = coordinates(rank, shape)
        rows = piece(len(x), shape[2], at[2])
        case["blocks"] = [
            given(x[rows, piece(x.shape[1], shape[0], at[0])]),
            given(target[rows, piece(target.shape[1], shape[last[1]], at[last[1]])]),
        ]
        blocks = [weight_block(w, layer, shape, at) for layer, w in enumerate(weights)]
        case |= {
            "shards": [given(shard(w, shape[2], at[2])) for w in blocks],
            "shapes": [list(w.shape) for w in blocks],
        }
    return case


def check_mlp(plan, seen, right, steps):
    shape, dtype, (x, target), weights = plan
    ranks = math.prod(shape)
    sizes = " → ".join(str(size) for size in (weights[0].shape[0], *(w.shape[1] for w in weights)))
    told = f"an MLP of {sizes} on {spoken(shape)} ranks, {len(x)} tokens, {dtype}"
    size = 4 if dtype == "float32" else 8
    most = 64.0  # for the loss
    for layer, w in enumerate(weights):
        inner, outer, depth = (shape[axis] for axis in layer_axes(layer))
        most += sum(three_axes_moved(len(x), *w.shape, inner, outer, depth, size))
    for rank, mine in enumerate(seen):
        if mine["broken"]:
            name, expected, found = mine["broken"]
            what = f"{told}: {name} does not return what it should on rank {rank}"
            raise Wrong(what, expected, found, rank, HINTS[name])
    for step in range(STEPS):
        for rank, mine in enumerate(seen):
            loss, found = right["losses"][step], mine["losses"][step]
            if step == 0:
                check_gradients(told, mine["gradients"][0], right["gradients"][0], shape, rank, dtype)
            expect(
                abs(found - loss) <= CLOSE * loss,
                f"{told}: the loss of step {step + 1} on rank {rank} differs from one process's",
                loss,
                found,
                rank,
                HINTS["printed"],
            )
            part, of_its_block = mine["parts"][step]
            expect(
                abs(part - of_its_block) <= CLOSE * loss,
                f"{told}: the part of the loss that squared_error returns on rank {rank} is not its block's",
                of_its_block,
                part,
                rank,
                HINTS["part"],
            )
            if step == STEPS - 1:
                last = mine["gradients"][-1], right["gradients"][-1]
                check_gradients(f"{told}, step {STEPS}", *last, shape, rank, dtype)
        why = "more than the products and the loss need"
        check_moved(f"{told}, a step", steps[step], [most] * ranks, why, hint=HINTS["between"])


def check_nothing_between(shape, seen, alone, forward):
    for rank in range(len(seen)):
        most, made = (len([e for e in part[rank] if e["e"] == "op"]) for part in (alone, forward))
        expect(
            made <= most,
            f"mlp on {spoken(shape)} ranks sends more than its products: rank {rank} makes {count_of(made, 'call')},"
            f" and the products alone make {most}",
            f"{most} calls",
            made,
            rank,
            HINTS["between"],
        )


def weight_block(w, layer, shape, at):
    inner, outer, _ = layer_axes(layer)
    return w[piece(w.shape[0], shape[inner], at[inner]), piece(w.shape[1], shape[outer], at[outer])]


def check_gradients(told, seen, right, shape, rank, dtype):
    at = coordinates(rank, shape)
    for layer, (found, whole) in enumerate(zip(seen, right, strict=True)):
        expected = shard(weight_block(whole, layer, shape, at), shape[2], at[2])
        check_tensor(
            f"{told}: the gradient of layer {layer} on rank {rank}",
            found,
            expected,
            CLOSE,
            rank,
            dtype=getattr(torch, dtype),
            scale=whole.norm().item() / math.prod(shape) ** 0.5,
            than="its shard of one process's",
            hint=HINTS["gradient"],
        )


def axes_on_rank(code, rank, world, layers):
    return [plain(code.axes_of(layer)) for layer in range(layers)]


# ---------------------------------------------------------------------------------------------------
# TODOs 7 and 8: predictions


def grids_on_rank(code, rank, world, worlds, asked):
    return {
        "factorings": [plain(code.factorings(n)) for n in worlds],
        "seconds": [
            [plain(code.mlp_seconds(*sizes, tuple(shape), code.Machine(*machine))) for shape in shapes]
            for sizes, shapes, machine in asked
        ],
        "best": [
            plain(code.best_grid(*sizes, math.prod(shapes[0]), code.Machine(*machine)))
            for sizes, shapes, machine in asked
        ],
    }


def mlp_time(m, dim, hidden, shape, alpha, beta, speed, cores):
    world = math.prod(shape)
    total = 12 * m * dim * hidden / world / speed * max(1, world / cores)
    for k, n, (inner, outer, depth) in ((dim, hidden, shape), (hidden, dim, (shape[1], shape[0], shape[2]))):
        numbers = 3 * (depth - 1) / depth * k * n / (inner * outer) + 2 * (inner - 1) / inner * m * n / (depth * outer)
        numbers += 2 * (outer - 1) / outer * m * k / (depth * inner)
        total += (3 * (depth - 1) + 2 * (inner - 1) + 2 * (outer - 1)) * alpha + 4 * numbers * beta
    return total


@todo(
    7,
    minutes=20,
    needs=(5,),
    why=(
        "A search over all grids takes a millisecond; trying them on a cluster takes a day. But a prediction "
        "that forgets that ranks share cores, or that messages have a latency, chooses a different grid."
    ),
    hints=(
        (
            "Take the sum apart: FLOPs for each rank over its speed; rounds times alpha; bytes times beta. "
            "For each layer write down which of x, y and z is inner, outer and depth."
        ),
        (
            "There are 3 (depth - 1) rounds for W and its gradient, 2 (inner - 1) for Y and 2 (outer - 1) for"
            " dX. Two layers of three products, 2 m dim hidden FLOPs each. With fewer cores than ranks the "
            "arithmetic takes world / cores times as long. A number has 4 bytes."
        ),
        (
            "layer_cost once for each layer; for the second, dim and hidden change places, and so do x and y."
            " best_grid is a min over factorings with a key."
        ),
    ),
)
def test_todo7_best_grid(student):
    draw = student.draw("costs")
    answers = layer_costs(draw)
    worlds, asked = (1, 4, 7, 8, 12, 64), []
    for world, sizes, machine in (
        (8, (4096, 64, 256), (2e-4, 1e-9, 2e10, 2)),
        (8, (4096, 64, 256), (2e-2, 1e-9, 2e10, 2)),  # the same on a machine with slower messages
        (8, (64, 512, 2048), (2e-4, 1e-9, 2e10, 2)),
        (64, (16384, 4096, 16384), (5e-6, 4e-11, 1e14, 64)),
        (64, (1024, 4096, 16384), (5e-6, 4e-11, 1e14, 64)),
        (6, (24, 12, 60), (1e-3, 1e-9, 1e9, 4)),
        (1, (24, 12, 60), (1e-3, 1e-9, 1e9, 2)),
        (
            draw.choice([12, 16, 24]),
            tuple(draw.randrange(48, 4800, 48) for _ in range(3)),
            (draw.uniform(1e-6, 1e-3), draw.uniform(1e-11, 1e-8), 1e11, 8),
        ),
        *(uneven(draw, axes) for axes in ((0,), (1,), (2,), (0, 1, 2))),
    ):
        shapes = (
            boxes(world, 3) if world < 30 else [(a, b, world // (a * b)) for a in (1, 2, 4, 8) for b in (1, 2, 4, 8)]
        )
        asked.append([sizes, shapes, machine])
    every = [
        {tuple(shape): mlp_time(*sizes, shape, *machine) for shape in all_boxes(math.prod(shapes[0]))}
        for sizes, shapes, machine in asked
    ]
    student.premise(len({max(min(times, key=times.get)) for times in every}) > 1, "always the same kind of grid")
    check_answers(student, answers, wrong="is not what the layer sends", hints=HINTS)
    (seen,) = student.call(grids_on_rank, world=1, group=False, worlds=worlds, asked=asked).evidence
    for world, found in zip(worlds, seen["factorings"], strict=True):
        check_factorings(world, found)
    for (sizes, shapes, machine), all_of_them, times, best in zip(
        asked, every, seen["seconds"], seen["best"], strict=True
    ):
        for shape, found in zip(shapes, times, strict=True):
            right = mlp_time(*sizes, shape, *machine)
            close = isinstance(found, (int, float)) and math.isclose(found, right, rel_tol=1e-9)
            expect(
                close,
                f"mlp_seconds{(*sizes, shape)} with alpha {machine[0]:.3g}, beta {machine[1]:.3g}, speed "
                f"{machine[2]:.3g} and {machine[3]} cores is not what the formulas give",
                right,
                found,
            )
        check_best(sizes, all_of_them, best)


def divides(shape, m, dim, hidden):
    x, y, z = shape
    return m % z == 0 and dim % x == 0 and hidden % y == 0


def uneven(draw, axes):
    """A world, sizes and a machine, drawn such that the fastest grid does not divide the sizes; grids that do, if any,
    are slower. Which of m, dim and hidden are one more than a multiple of the world: `axes`.
    """
    while True:
        world = draw.choice([8, 12, 16, 24])
        sizes = tuple(draw.randrange(48, 4800, 48) + (axis in axes) for axis in range(3))
        machine = (draw.uniform(1e-6, 1e-3), draw.uniform(1e-11, 1e-8), 1e11, 8)
        times = {tuple(shape): mlp_time(*sizes, shape, *machine) for shape in all_boxes(world)}
        even = [time for shape, time in times.items() if divides(shape, *sizes)]
        if min(even, default=math.inf) > 1.01 * min(times.values()):
            return world, sizes, machine


@hinted(HINTS["best"])
def check_best(sizes, all_of_them, best):
    world = math.prod(next(iter(all_of_them)))
    fastest = min(all_of_them, key=all_of_them.get)
    chosen = tuple(best) if isinstance(best, list) else best
    expect(
        chosen in all_of_them,
        f"best_grid for {world} ranks does not return a grid of {count_of(world, 'rank')}",
        fastest,
        best,
    )
    expect(
        math.isclose(all_of_them[chosen], all_of_them[fastest], rel_tol=1e-9),
        f"best_grid for m, dim, hidden = {sizes} on {count_of(world, 'rank')} is not the fastest one: it takes "
        f"{all_of_them[chosen] / all_of_them[fastest]:.2f} times as long",
        fastest,
        chosen,
        hint="" if divides(fastest, *sizes) else "The grid need not divide a dimension evenly. Which grids are tried?",
    )


def layer_costs(draw):
    """(layer_cost, its arguments) -> messages, and numbers sent."""
    answers = {}
    for inner, outer, depth in ((1, 1, 1), (2, 1, 1), (1, 3, 1), (1, 1, 4), (2, 4, 3)):
        m, k, n = (draw.randrange(24, 480, 24) for _ in range(3))
        numbers = 3 * (depth - 1) / depth * k * n / (inner * outer) + 2 * (inner - 1) / inner * m * n / (depth * outer)
        numbers += 2 * (outer - 1) / outer * m * k / (depth * inner)
        answers["layer_cost", (m, k, n, inner, outer, depth)] = (
            3 * (depth - 1) + 2 * (inner - 1) + 2 * (outer - 1),
            numbers,
        )
    return answers


@hinted(HINTS["factorings"])
def check_factorings(world, found):
    right = all_boxes(world)
    expect(
        isinstance(found, list) and all(isinstance(shape, list) for shape in found),
        f"factorings({world}) is not a list of grids",
        f"{len(right)} grids",
        found,
    )
    expect(
        sorted(found) == right,
        f"factorings({world}) do not contain each grid of three axes exactly once",
        f"{len(right)} grids",
        f"{len(found)} grids: {found}"[:300],
    )
    expect(found == right, f"factorings({world}) are not in ascending order", right, found)


def all_boxes(world):
    return [[x, y, world // (x * y)] for x in range(1, world + 1) for y in range(1, world + 1) if world % (x * y) == 0]


@todo(
    8,
    minutes=15,
    why=(
        "A cut that makes a rank's part too small turns a fast GPU into one that waits. The size at which that happens "
        "follows from two numbers of a data sheet, and for tensor parallelism more tokens do not help."
    ),
    hints=(
        (
            "Write the FLOPs of one rank's product and the bytes of its messages as functions of b, or of m, "
            "n and k / world. Which letters are left once you divide one by the other?"
        ),
        (
            "Seconds of a product: 2 FLOPs for each pair that is multiplied, over the speed. Seconds of "
            "messages: bytes over the bandwidth. An all-reduce takes two passes around the ring, each of "
            "(world - 1) / world of the result."
        ),
        "Both are some factor times itemsize * speed / bandwidth. Set the two times equal and solve.",
    ),
)
def test_todo8_network(student):
    draw = student.draw("roofline")
    answers = {}
    for itemsize, world in ((2, 2), (4, 3), (8, 8), (2, 1)):  # one rank sends nothing
        speed, bandwidth = draw.uniform(1e12, 9e14), draw.uniform(1e10, 5e12)
        answers["smallest_block", (speed, bandwidth, itemsize)] = itemsize * speed / bandwidth
        width = (world - 1) / world * itemsize * speed / bandwidth
        answers["smallest_width", (speed, bandwidth, itemsize, world)] = width
    check_answers(student, answers, wrong="is not the size at which both take the same time")
