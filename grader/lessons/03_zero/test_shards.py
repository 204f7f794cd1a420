"""Checks of 03_zero, TODOs 1 to 3: shards.

| TODO | achievement                             | evidence                                                                                       | needs   |
|------|-----------------------------------------|------------------------------------------------------------------------------------------------|---------|
| 1    | bytes a rank holds, predicted           | the formulas                                                                                   |         |
| 2    | a tensor cut into shards, and joined    | values; which tensors share memory; bytes of a shard                                          |         |
| 3    | many tensors by one collective          | values and number of collectives on 3 and 2 ranks, in float32 and float64                      | 2       |

The model is the course's, so small that 2 and 3 ranks divide few of its sizes, and with a parameter of one number, of
which some ranks have nothing. Tensors of TODOs 2 and 3 may also be empty. With `odd`, its head is tied and some of its parameters are frozen.

Bytes are counted in live storages just before the second step, and after its other backward passes. A rank's share of a
tensor has n / N numbers, rounded up; the padding of the last ranks may exist or not.
"""  # noqa: E501

import math

import torch
import torch.nn.functional as F

from grader.kit import (
    OWN_ZEROS,
    Private,
    cases,
    check_answers,
    check_tensor,
    collectives,
    count_of,
    expect,
    hinted,
    near,
    todo,
)

from .common import HINTS, VIEWS, undivided
from .ranks import SHAPES, cut_on_rank, lists_on_rank, numbers, own_shard, tensors_with_zeros, zeros_in_lists_on_rank

# ---------------------------------------------------------------------------------------------------
# TODOs 1 and 7: predictions


@todo(1)
def test_todo1_bytes(student):
    right = {}
    for precision, each in (("float32", (4, 4, 8)), ("mixed", (2, 2, 12))):
        right["bytes_a_parameter", (precision,)] = each
    sizes = [(7_000_000_000, 1), (7_000_000_000, 64), (120, 3), (10, 4), *undivided(student)]
    for precision, each in (("float32", (4, 4, 8)), ("mixed", (2, 2, 12))):
        for parameters, world in sizes:
            for stage in range(4):
                shared = [n for n, first in zip(each, (3, 2, 1)) if stage >= first]
                whole = [n for n, first in zip(each, (3, 2, 1)) if stage < first]
                right["predicted_bytes", (parameters, world, stage, precision)] = (
                    *(n * parameters for n in whole),
                    *(n * parameters / world for n in shared),
                )
    check_answers(student, right, wrong="is not what will happen")


# ---------------------------------------------------------------------------------------------------
# TODOs 2 and 3: shards, and how they are sent


@todo(2)
def test_todo2_shards(student):
    worlds = (1, 2, 3, 4, 7)
    (seen,) = student.call(cut_on_rank, world=1, group=False, worlds=worlds).evidence
    for found, (shape, n) in zip(seen, [(shape, n) for shape in SHAPES for n in worlds], strict=True):
        tensor = 1 + torch.arange(float(math.prod(shape)))
        size, what = math.ceil(len(tensor) / n), f"a tensor of shape {shape} on {count_of(n, 'rank')}"
        expect(
            found["size"] == size,
            f"shard_size({len(tensor)}, {n}) is wrong: a shard that is too short loses numbers, one that is too long"
            " wastes memory",
            size,
            found["size"],
        )
        for r in range(n):
            part, shard = tensor[r * size : (r + 1) * size], found["shards"][r]
            check_tensor(f"{what}: my_part of rank {r}", found["parts"][r], part, rank=r)
            right = F.pad(part, (0, size - len(part)))
            hint = "Shards are equally long on all ranks, also where a part is shorter. What is behind the part then?"
            check_tensor(f"{what}: the shard of rank {r}", shard, right, rank=r, hint=hint)
            expect(
                found["bytes"][r] == 4 * size,
                f"{what}: the shard of rank {r} keeps {found['bytes'][r]} bytes alive, its {size} numbers need"
                f" {4 * size}: it is a view of something larger",
                f"{4 * size} bytes",
                f"{found['bytes'][r]} bytes",
                r,
                OWN_MEMORY,
            )
            expect(
                near(found["shards afterwards"][r], right),
                f"{what}: a shard changes when the tensor is written to: its memory is not its own",
                right,
                found["shards afterwards"][r],
                r,
                OWN_MEMORY,
            )
        expect(
            found["dtype"] == "torch.bfloat16",
            "a part in bfloat16 is padded to a shard of a different dtype",
            "bfloat16",
            found["dtype"],
            hint="Zeros have a dtype, too. How can a tensor make zeros like itself?",
        )
        expect(
            found["written"].view(-1).tolist() == (tensor + 100).tolist(),
            f"{what}: writing into my_part does not change the tensor: my_part is a copy",
            (tensor + 100).tolist(),
            found["written"].view(-1).tolist(),
            hint=VIEWS,
        )
        hint = "joined undoes the cut. Which of the numbers are padding, and which shape do the others have?"
        check_tensor(f"{what}: what joined returns", found["whole"], tensor.view(shape), hint=hint)
    sizes = {(1_000_000_001, 4): 250_000_001, (1_000_000_000, 8): 125_000_000}  # as many as a model has
    check_answers(
        student,
        {("shard_size", given): size for given, size in sizes.items()},
        wrong="is wrong: a shard that is too short loses numbers, one that is too long wastes memory",
    )


OWN_MEMORY = "A shard must last when the tensor is freed or written to, so it has memory of its own. " + VIEWS


@todo(3, needs=(2,))
def test_todo3_lists(student):
    # In float64 whole numbers that float32 cannot hold.
    for world, dtype, smallest in ((3, "float32", 1), (2, "float64", 1 << 30)):
        of_rank = [smallest + drawn for drawn in student.draw("lists", world).sample(range(100), world)]
        run = student.call(lists_on_rank, world=world, mine=Private(of_rank), dtype=dtype)
        check_lists(run, of_rank, dtype)
    check_zeros(student, of_rank)


def check_zeros(student, of_rank):
    """Where rank 0 has only zeros, as it may of a layer that it has not used."""
    world = len(of_rank)
    with hinted(OWN_ZEROS, "hang", "mismatch"):
        ranks = student.call(zeros_in_lists_on_rank, world=world, mine=Private(of_rank)).evidence
    wholes = [torch.stack(parts).mean(dim=0) for parts in zip(*map(tensors_with_zeros, range(world), of_rank))]
    for rank, seen in enumerate(ranks):
        for number, (got, whole) in enumerate(zip(seen, wholes, strict=True)):
            size = math.ceil(whole.numel() / world)
            right = whole.view(-1)[rank * size : (rank + 1) * size]
            told = f"reduce_to_shards, where rank 0 has only zeros: what rank {rank} gets for tensor {number}"
            check_tensor(told, got, F.pad(right, (0, size - len(right))), rank=rank, hint=OWN_ZEROS)


def check_lists(run, of_rank, dtype):
    world, kind, a_number = len(of_rank), getattr(torch, dtype), getattr(torch, dtype).itemsize
    on = f"on {count_of(world, 'rank')}" + (f", in {dtype}" if dtype != "float32" else "")
    marked = [collectives(case) for case in cases(run.events)]
    sizes = [math.ceil(math.prod(shape) / world) for shape in SHAPES]
    for rank, seen in enumerate(run.evidence):
        for name, results in (("gather_shards", seen["gathered"]), ("reduce_to_shards", seen["reduced"])):
            expect(
                isinstance(results, list) and len(results) == len(SHAPES),
                f"{name} of {len(SHAPES)} tensors {on} does not return a list with a tensor for each",
                f"{len(SHAPES)} tensors",
                f"{len(results)} entries" if isinstance(results, list) else results,
                rank,
                "One buffer is sent, and a list is returned. What cuts the buffer into the entries of the list?",
            )
        for number, shape in enumerate(SHAPES):
            check_tensor(
                f"gather_shards {on}: what rank {rank} gets for tensor {number}",
                seen["gathered"][number],
                torch.cat([own_shard(sizes[number], number, mine) for mine in of_rank]),
                rank=rank,
                dtype=kind,
                than="the ranks' shards of it, in the order of the ranks",
            )
            mean = torch.stack([numbers(shape, number, mine) for mine in of_rank]).mean(dim=0).view(-1)
            right = mean[rank * sizes[number] : (rank + 1) * sizes[number]]
            right = F.pad(right, (0, sizes[number] - len(right)))
            summed = world * right, "The sum is in the right places: which division is missing?"
            check_tensor(
                f"reduce_to_shards {on}: what rank {rank} gets for tensor {number} of shape {shape}",
                seen["reduced"][number],
                right,
                rank=rank,
                dtype=kind,
                wrongs={"the sum, not the mean": summed} if right.any() else {},
                hint=(
                    "Rank 1 gets one row: its shard of each tensor, one after the other. Where does each of its"
                    " numbers come from?"
                ),
            )
        expect(
            seen["bytes"] == a_number * sum(sizes),
            f"rank {rank}: what reduce_to_shards returns keeps {seen['bytes']} bytes alive; its shards {on} need "
            f"{a_number * sum(sizes)}: they are views of something larger",
            f"{a_number * sum(sizes)} bytes",
            f"{seen['bytes']} bytes",
            rank,
            "While a view is kept, all that it was cut from is alive. What are these shards cut from?",
        )
    most = a_number * sum(sizes) * (world - 1)
    check_one_collective("gather_shards", "all_gather", marked[0], world, most)
    check_one_collective("reduce_to_shards", "reduce_scatter", marked[1], world, most)


def check_one_collective(name, op, calls, world, most):
    """Each rank makes one for the whole list, and sends at most so many bytes: `op` does."""
    for rank in range(world):
        mine = [call for call in calls if call.rank == rank]
        told = f"{name} of {len(SHAPES)} tensors takes {len(mine)} collectives on rank {rank}"
        expect(len(mine) == 1, told, "one", len(mine), rank, HINTS["collectives"])
        expect(
            mine[0].sent <= most,
            f"{name}: rank {rank} sends {mine[0].sent:.0f} bytes, in {mine[0].op}; more than its shards to the others",
            f"at most {most} bytes: {op}",
            f"{mine[0].sent:.0f} bytes",
            rank,
            "Which numbers does a rank need from each of the others? One collective sends just these.",
        )
