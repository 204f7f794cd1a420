"""Checks of hybrid_training, TODOs 1 and 2: mesh and stages.

| TODO | achievement | evidence | needs |
| --- | --- | --- | --- |
| 1 | the order of the axes | make_mesh() on 8 and 6 ranks: which ranks each rank finds on each axis | |
| 2 | this rank's stages | cut() on 4 ranks: numbers, groups, layers, no memory; one and two stages a rank | |

Stages are cut, split and sharded by the check itself, unless the check is about that: so a TODO can be judged before or
without the others. They are in float64 where no data type is part of the question: there rounding hides nothing.
"""

import torch

from grader.kit import Fault, expect, todo

from .common import shaped
from .ranks import AXES, cut_on_rank, mesh_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 1: the mesh


SHAPES_1 = {
    8: ((1, 2, 2, 1, 2), (2, 2, 1, 1, 2), (2, 1, 2, 1, 2), (1, 4, 2, 1, 1), (2, 1, 1, 2, 2), (1, 1, 2, 2, 2)),
    6: ((3, 1, 1, 1, 2), (1, 2, 3, 1, 1), (1, 2, 1, 3, 1)),
}


@todo(1)
def test_todo1_mesh(student):
    for world, shapes in student.several(SHAPES_1.items()):
        for rank, found in enumerate(student.call(mesh_on_rank, world=world, shapes=shapes).evidence):
            what = found[0].get("type")
            expect(what is None, "make_mesh returns no mesh", "a DeviceMesh", what, rank)
            for shape, seen in zip(shapes, found, strict=True):
                told, names = f"with {shaped(shape)} on {world} ranks", seen["names"]
                expect(
                    sorted(names) == sorted(AXES),
                    f"{told} the axes have the wrong names, and they are looked up by name",
                    list(AXES),
                    names,
                    rank,
                )
                grid = torch.arange(world).view(shape)
                place = [int(i) for i in (grid == rank).nonzero()[0]]
                for k, axis in reversed(list(enumerate(AXES))):
                    index = [*place]
                    index[k] = slice(None)
                    right, mine = grid[tuple(index)].tolist(), seen["axes"][axis]
                    expect(
                        len(mine) == len(right),
                        f"{told} rank {rank} finds {len(mine)} ranks on the axis {axis}",
                        right,
                        mine,
                        rank,
                    )
                    where = "no neighbours" if axis == "tp" else "not those that the order of the axes asks for"
                    expect(
                        mine == right, f"{told} the ranks of rank {rank}'s axis {axis} are {where}", right, mine, rank
                    )
                right = grid[place[0], :, :, place[3], place[4]].tolist()
                expect(
                    seen["data"] == right,
                    f'{told} mesh["dp", "shard"], over which fully_shard copies and shards, is a different grid',
                    right,
                    seen["data"],
                    rank,
                )


# ---------------------------------------------------------------------------------------------------
# TODO 2: this rank's stages


CUTS = [
    (2, 1, 1, 1, 2, "1f1b"),
    (4, 1, 1, 1, 1, "zero-bubble"),
    (2, 2, 1, 1, 1, "interleaved"),
    (4, 1, 1, 1, 1, "interleaved"),
]


@todo(2)
def test_todo2_cut(student):
    cuts, layers = student.several(CUTS), student.draw("cut").choice((8, 9, 11))
    try:
        run = student.call(cut_on_rank, world=4, cuts=cuts, layers=layers)
    except Fault as fault:
        if "group size" in fault.message:  # of torch's PipelineStage
            fault.hint = "Without a group, PipelineStage makes a pipeline of all ranks. Which group is this axis's?"
        raise
    for rank, left in enumerate(run.evidence):
        for (*shape, schedule), stages in zip(cuts, left, strict=True):
            told = f"with {shaped(shape)} and --schedule {schedule}, {layers} blocks,"
            expect(isinstance(stages, list), f"{told} cut returns no list of PipelineStage", "a list", stages, rank)
            p, place = shape[0], rank * shape[0] // 4  # pp is the first axis
            chunks = 2 if schedule == "interleaved" else 1
            right, seen = [place + k * p for k in range(chunks)], [stage["stage"] for stage in stages]
            expect(
                seen == right,
                f"{told} rank {rank}, which is rank {place} of its pipeline, does not have its own stages",
                right,
                seen,
                rank,
            )
            group = [rank % (4 // p) + k * (4 // p) for k in range(p)]
            for stage in stages:
                number = stage["stage"]
                expect(
                    stage["of"] == p * chunks,
                    f"{told} stage {number} is given the wrong number of stages",
                    p * chunks,
                    stage["of"],
                    rank,
                )
                expect(
                    stage["group"] == group,
                    f"{told} stage {number} sends to ranks outside its pipeline",
                    group,
                    stage["group"],
                    rank,
                )
                expect(
                    stage["names"] == stage["right"],
                    f"{told} stage {number} has the wrong layers",
                    f"{len(stage['right'])} weights",
                    f"{len(stage['names'])} weights",
                    rank,
                )
                expect(
                    stage["held"] == 0,
                    f"{told} stage {number} has memory for {stage['held']:,} weights before it is split",
                    "none",
                    f"{stage['held']:,} weights",
                    rank,
                )
                expect(
                    stage["own"],
                    f"{told} the layers of stage {number} are copies of the model's",
                    "the model's own",
                    "copies",
                    rank,
                )
