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
    check_grids,
    check_norm,
    check_parts,
    check_row_samplers,
    check_sent,
    drawn_sizes,
    hinted,
    must_have_gradients,
    todo,
)

from .common import WORDS, serial_step
from .ranks import clip_on_rank, samplers_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 1: the grid, and the samples


LAST_AXIS = (
    "One axis divides the samples, the other one the layers. Which of the two needs consecutive ranks, and so comes"
    " last?"
)


@todo(1)
def test_todo1_layout(student):
    check_grids(student, "--tp", ["data", "tensor"], ["--dim", "24", "--heads", "12"], LAST_AXIS)
    check_row_samplers(student, samplers_on_rank, "split each layer")


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
