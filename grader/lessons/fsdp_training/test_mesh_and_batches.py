"""Checks of fsdp_training, TODOs 1 and 2: mesh and batches.

| TODO | achievement                     | evidence                                                              | needs      |
|------|---------------------------------|-----------------------------------------------------------------------|------------|
| 1    | the ranks in a grid             | make_mesh() for each strategy on 6 ranks                              |            |
| 2    | all ranks in step               | evaluate() of a sharded model, where shares differ and one is empty   |            |

Models here are sharded by the check itself, unless sharding is being checked: so a TODO can be judged before or without
the others. Elements and bytes are counted in padded shards: of n rows, S ranks hold ceil(n / S) each.
"""  # noqa: E501

import math

import torch

from grader.kit import REL, expect, lengths, todo

from .common import STRATEGIES
from .ranks import ROWS, evaluate_on_rank, grid, made_model, mesh_on_rank, text

# ---------------------------------------------------------------------------------------------------
# TODO 1: the mesh


@todo(1)
def test_todo1_mesh(student):
    world = 6  # 2 copies on 3 ranks each are not 3 copies on 2
    flags = [["--sharding", strategy] for strategy in STRATEGIES] + [
        ["--sharding", "hybrid", "--replicas", n] for n in "316"
    ]
    for rank, meshes in enumerate(student.call(mesh_on_rank, world=world, flags=flags).evidence):
        for more, mesh in zip(flags, meshes, strict=True):
            seen, told = mesh["ranks"], f"with {' '.join(more)} on {world} ranks"
            copies, shards = (int(more[3]), world // int(more[3])) if len(more) > 2 else grid(more[1], world)
            right = [list(range(row * shards, (row + 1) * shards)) for row in range(copies)]
            expect(
                all(isinstance(row, list) for row in seen),
                f"{told} the ranks are not in a grid of rows and columns",
                right,
                seen,
                rank,
                "A grid has two axes, also where one of them has a single entry. How long is each?",
            )
            size = (len(seen), len(seen[0]))
            expect(
                size == (copies, shards),
                f"{told} the grid is {size[0]} × {size[1]}: {size[0]} cop{'y' if size[0] == 1 else 'ies'} of the model,"
                f" held by {size[1]} rank{'s' if size[1] > 1 else ''} each",
                f"{copies} × {shards}",
                f"{size[0]} × {size[1]}",
                rank,
            )
            hint = (
                "The grid is filled row by row. Do the ranks of a row hold one copy together, or parts of different"
                " ones?"
            )
            expect(seen == right, f"{told} neighbours do not hold the same copy", right, seen, rank, hint)
            expect(
                mesh["names"] == ["replicate", "shard"],
                f"{told} the axes do not have the names by which the script looks them up",
                ["replicate", "shard"],
                mesh["names"],
                rank,
                "Each axis has a name, given where the grid is made. Which name belongs to the rows, which to the"
                " columns?",
            )


# ---------------------------------------------------------------------------------------------------
# TODO 2: in step


def drawn_lengths(student, world):
    """One sample more than whole batches on all ranks, so that one rank has a batch more; and fewer than ranks."""
    draw, step = student.draw("lengths"), world * ROWS
    more = next(n for n in lengths(draw, step) if n > step and n % step == 1)
    return more, next(n for n in lengths(draw, world) if 0 < n < world)


def serial_evaluation(sizes):
    model, means = made_model(seed=0), []
    for length in sizes:
        x, y = (torch.stack(parts) for parts in zip(*text(length)))
        means.append(model(x, y).item())
    return means


@todo(2, in_place=("model",))  # its mode
def test_todo2_in_step(student):
    world = 3
    sizes = drawn_lengths(student, world)
    right = student.reference(serial_evaluation, sizes=sizes)
    student.premise(abs(right[0] - right[1]) > 1e-3, "the wrong set")
    ranks = student.call(evaluate_on_rank, world=world, sizes=sizes).evidence
    for rank, seen in enumerate(ranks):
        for length, (mean, passes), wanted in zip(sizes, seen, right, strict=True):
            most = math.ceil(math.ceil(length / world) / ROWS)
            told = f"evaluate() of {length} sample{'s' * (length > 1)} on {world} ranks"
            expect(
                passes == most,
                f"{told}, in batches of {ROWS}, makes {passes} forward"
                f" pass{'es' if passes != 1 else ''} on rank {rank}; the rank with the most batches has {most}",
                most,
                passes,
                rank,
            )
            expect(
                math.isclose(mean, wanted, rel_tol=REL),
                f"{told} gives rank {rank} a different loss from one process: is each sample counted once, and nothing"
                " else?",
                wanted,
                mean,
                rank,
                "The additional passes are made for their messages alone. Which of their targets count in the loss?",
            )
