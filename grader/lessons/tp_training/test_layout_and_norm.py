"""Checks of tp_training, TODOs 1 and 2: layout and norm.

| TODO | achievement | evidence | needs |
| --- | --- | --- | --- |
| 1 | the grid, and its samples | make_mesh() for several --tp on 4 and 6 ranks; make_samplers() over two epochs |  |
| 2 | the norm over both axes | clip_gradients() on 2 × 2 ranks, norms whole and cut; bytes sent |  |

Models here are split and sharded by the check itself, unless the check is about that: so a TODO can be judged before or
without the others. They are in float64 where no data type is part of the question: there rounding hides nothing.
"""

import math

from grader.kit import (
    Private,
    cases,
    check_dealt,
    check_norm,
    check_parts,
    check_sent,
    drawn_sizes,
    each_once,
    expect,
    hinted,
    must_have_gradients,
    rectangles,
    todo,
)

from .common import WORDS, serial_step
from .ranks import clip_on_rank, mesh_on_rank, samplers_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 1: the grid, and the samples


def check_mesh(student):
    for world, tps in student.several(((4, (1, 2, 4)), (6, (2, 3)))):
        for rank, meshes in enumerate(student.call(mesh_on_rank, world=world, tps=tps).evidence):
            expect("type" not in meshes[0], "make_mesh returns no mesh", "a DeviceMesh", meshes[0].get("type"), rank)
            for tp, mesh in zip(tps, meshes, strict=True):
                seen, told = mesh["ranks"], f"with --tp {tp} on {world} ranks"
                right = [list(range(row, row + tp)) for row in range(0, world, tp)]
                expect(
                    all(isinstance(row, list) for row in seen),
                    f"{told} the ranks are not in a grid, with rows and columns",
                    right,
                    seen,
                    rank,
                    "A grid has two axes, also where one of them has a single entry. How long is each?",
                )
                axes = " and ".join(mesh["names"]) or "nothing"
                expect(
                    mesh["names"] == ["data", "tensor"],
                    f"{told} the axes of the grid are called {axes}, in this order",
                    ["data", "tensor"],
                    mesh["names"],
                    rank,
                    LAST_AXIS,
                )
                size, wanted = f"{len(seen)} × {len(seen[0])}", f"{world // tp} × {tp}"
                expect(
                    size == wanted,
                    f"{told} the grid is {size}: each layer is on {len(seen[0])} rank{'s' if len(seen[0]) > 1 else ''}",
                    wanted,
                    size,
                    rank,
                )
                expect(seen == right, f"{told} the ranks of a row do not have consecutive numbers", right, seen, rank)


LAST_AXIS = (
    "One axis divides the samples, the other one the layers. Which of the two needs consecutive ranks, and so comes"
    " last?"
)


@todo(1)
def test_todo1_layout(student):
    check_mesh(student)
    check_samplers(student)


def check_samplers(student):
    draw = student.draw("samplers")
    sizes = (draw.choice((35, 37, 41)), draw.choice((11, 13)), draw.choice((7, 13)))
    seed = draw.randrange(100)
    for rows, tp in student.several(grid for grid in rectangles(draw, most=6) if grid[1] > 1):  # 1: rows are ranks
        batch, told = 4 * rows, f"on {rows} × {tp} ranks"
        ranks = student.call(samplers_on_rank, world=rows * tp, grid=(rows, tp), sizes=sizes, seed=seed).evidence
        for rank, mine in enumerate(ranks):
            expect(
                "type" not in mine,
                f"{told} make_samplers returns a {mine.get('type')}",
                "three samplers",
                mine.get("type"),
                rank,
            )
            first = ranks[rank - rank % tp]
            for name in ("train", "validation", "test"):
                expect(
                    mine[name] == first[name],
                    f"{told} ranks {rank - rank % tp} and {rank} split each layer, and read different {name} samples",
                    first[name],
                    mine[name],
                    rank,
                    "Ranks that split a layer work on the same samples. How many different readers are there, then, and"
                    " which coordinate of the grid numbers them?",
                )
        row_by_row = ranks[::tp]
        for name, size in zip(("validation", "test"), sizes[1:], strict=True):
            with hinted(
                "Each of these samples is read in one row, once. Which sampler sees to that, and which two numbers"
                " does it need?"
            ):
                each_once(name, [mine[name] for mine in row_by_row], size)
        with hinted(
            "In each step, the rows together train on what one process would. What determines the order, and what is"
            " dropped?"
        ):
            check_dealt(told, [mine["train"] for mine in row_by_row], sizes[0], seed, batch)


# ---------------------------------------------------------------------------------------------------
# TODO 2: the norm


def by_row(student, rows, tp):
    """A separate seed for each row of ranks: the ranks of a row read the same samples."""
    seeds = student.draw("rows", rows, tp).sample(range(1 << 40), rows)
    return seeds, Private([seeds[rank // tp] for rank in range(rows * tp)])


@todo(2)
def test_todo2_clip(student):
    rows, tp = 2, 2
    sizes = drawn_sizes(student, tp, "clip", words=WORDS, layers=1)
    seeds, private = by_row(student, rows, tp)
    grads = student.reference(serial_step, sizes=sizes, seeds=seeds)["grads"]
    must_have_gradients(student, grads)
    right = math.sqrt(sum(grad.square().sum().item() for grad in grads.values()))
    cuts = student.several((False, True))
    clips = student.several((0.8 * right, 0.0, 4 * right))  # the first: more than the norm of one of two groups
    how = dict(grid=(rows, tp), sizes=sizes, seed=private, cuts=cuts, clips=clips)
    run = student.call(clip_on_rank, world=rows * tp, **how)
    events = cases(run.events)[::2]  # from clip_gradients' beginning to its end
    whole = 8 * sum(grad.numel() for grad in grads.values())
    for case, (cut, clip) in enumerate((cut, clip) for cut in cuts for clip in clips):
        held = "norms that all ranks of a row hold" if cut else "layers cut"
        told = f"with --clip {clip:.3g}, a gradient of norm {right:.4g} and {held}, on 2 × 2 ranks"
        for rank, mine in enumerate(run.evidence):
            check_norm(told, mine[case]["norm"], right, clip, rank)
        factor = min(1.0, clip / right) if clip else 1.0
        with hinted(
            "The norm is right. By which single number are the gradients of all groups scaled, and when are they left"
            " alone?"
        ):
            check_parts(
                f"{told}, after clip_gradients",
                [mine[case]["grads"] for mine in run.evidence],
                {name: grad * factor for name, grad in grads.items()},
                rel=1e-5,
            )
        hint = "A norm is one number, and each rank can take the squares of its own part. Which tensor is made whole?"
        check_sent(told, events[case], whole / 8, why="assembles whole gradients to find a norm", hint=hint)
