"""Checks of 08_distributed_matmul, TODOs 3 and 4: two axes.

| TODO | achievement                         | evidence                                                         | needs |
|------|-------------------------------------|------------------------------------------------------------------|-------|
| 3    | Cannon's algorithm                  | the same on 1, 4 and 9; bytes alive; messages at their worst     | 1     |
| 4    | SUMMA                               | tables of 1 to 8 ranks; bytes that arrive, bytes alive           | 1     |
"""  # noqa: E501

import itertools
import math

from grader.kit import (
    Fault,
    Private,
    Wrong,
    cases,
    check_answers,
    check_calls,
    check_delivery,
    check_refusals,
    collectives,
    expect,
    hinted,
    near,
    todo,
)

from .common import (
    HINTS,
    boxes,
    check_kept,
    check_moved,
    check_results,
    coordinates,
    given,
    largest,
    matrix,
    piece,
    spoken,
)
from .ranks import cannon_on_rank, panels_on_rank, refused_on_rank, summa_on_rank

# ---------------------------------------------------------------------------------------------------
# Messages, and memory


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


# ---------------------------------------------------------------------------------------------------
# Two axes


def two_axes_blocks(x, w, dy, shape, rank):
    """What a rank of a table is given of X, W and dY, and what is right of Y, dX and dW."""
    row, column = coordinates(rank, shape)

    def part(tensor):
        return tensor[piece(tensor.shape[0], shape[0], row), piece(tensor.shape[1], shape[1], column)]

    return [part(t) for t in (x, w, dy)], [part(t) for t in (x @ w, dy @ w.T, x.T @ dy)]


# ---------------------------------------------------------------------------------------------------
# TODO 3: Cannon


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


@todo(3, needs=(1,))
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


@todo(4, needs=(1,))
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
