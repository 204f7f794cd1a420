"""Checks of 08_distributed_matmul, TODOs 1 and 2: one axis.

| TODO | achievement                         | evidence                                                         | needs |
|------|-------------------------------------|------------------------------------------------------------------|-------|
| 1    | places, lines and blocks            | the numbers, for grids of one to four axes                       |       |
| 2    | products cut along one axis         | results, forward and backward; bytes sent, on 1 to 8 ranks       |       |

The matrices of TODOs 2 to 5 hold whole numbers: their products are exact in any order of the sums, so that results must
be equal, not close. Those in float64 are too long for float32. m, k and n differ, and are seldom divisible; some blocks are empty. A rank is given its own
blocks and nothing else.

On 2 × 2 ranks, left and right are the same, and Cannon without its skew is right on the diagonal: so 3 × 3 ranks run,
too, and all are judged.
"""  # noqa: E501

import itertools

import torch

from grader.kit import Private, cases, check_answers, count_of, expect, lengths, near, rectangles, todo

from .common import HINTS, check_kept, check_moved, check_results, coordinates, given, matrix, piece
from .ranks import AGAIN, CUTS, one_axis_on_rank, places_on_rank, shard

# ---------------------------------------------------------------------------------------------------
# Grids and matrices, as the checks have them


def members(rank, shape, axis):
    """The ranks of the line through a rank."""
    mine = coordinates(rank, shape)
    places = list(itertools.product(*map(range, shape)))
    return [
        r for r, other in enumerate(places) if all(a == b for n, (a, b) in enumerate(zip(mine, other)) if n != axis)
    ]


# ---------------------------------------------------------------------------------------------------
# TODO 1: places, lines and blocks


@todo(1)
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


@todo(2)
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
