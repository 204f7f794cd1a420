"""Checks of 03_zero, TODOs 8 and 9: stage 3.

| TODO | achievement                             | evidence                                                                                       | needs   |
|------|-----------------------------------------|------------------------------------------------------------------------------------------------|---------|
| 8    | a unit made whole, and freed            | values, bytes, collectives; autograd's view of it                                              | 2, 3    |
| 9    | stage 3: through the whole step         | as of 4 and 6; weights alive in forward pass, backward pass and evaluation                     | 2, 3, 8 |
"""  # noqa: E501

import math

import torch

from grader.kit import Private, cases, check_tensor, collectives, count_of, expect, scale_of, todo

from .common import HINTS, REL, check_stage, share, stage_trials
from .ranks import Tiny, made_input, unit_on_rank

# ---------------------------------------------------------------------------------------------------
# TODOs 8 and 9: units


def unit_serial(factors, dtype):
    """On one process; rank r has multiplied its shards by factor r."""
    module = Tiny().to(getattr(torch, dtype))
    with torch.no_grad():
        for p in module.parameters():
            for part, factor in zip(p.view(-1).split(math.ceil(p.numel() / len(factors))), factors):
                part.mul_(factor)
    x = made_input(dtype)
    module(x).square().sum().backward()
    return {
        "weights": module.state_dict(),
        "gradients": {"x": x.grad} | {name: p.grad for name, p in module.named_parameters() if p.grad is not None},
    }


@todo(8, in_place=("parameters",), needs=(2, 3))
def test_todo8_unit(student):
    for world, dtype in ((3, "float32"), (2, "bfloat16"), (1, "float32")):
        factors = [factor / 50 for factor in student.draw("unit", world).sample(range(2, 100), world)]
        run = student.call(unit_on_rank, world=world, factor=Private(factors), dtype=dtype)
        right = student.reference(unit_serial, on_gpus=dtype == "bfloat16", factors=factors, dtype=dtype)
        check_unit(run, right, world, dtype)


def check_unit(run, right, world, dtype):
    ranks, a_number = run.evidence, getattr(torch, dtype).itemsize
    on = f"on {count_of(world, 'rank')}" + (f", in {dtype}" if dtype != "float32" else "")
    shapes = [p.shape for p in right["weights"].values()]
    psi = sum(map(math.prod, shapes))
    for rank, seen in enumerate(ranks):
        weights = max(seen.get(moment, {"weights": 0})["weights"] for moment in ("at first", "in between"))
        expect(
            weights == 0,
            f"a unit of {a_number * psi} bytes {on}: after reshard, rank {rank} still has {weights} bytes of whole"
            " weights",
            "0 bytes",
            f"{weights} bytes",
            rank,
        )
        expect(
            not seen["lacking"],
            f"after unshard {on}, rank {rank}'s {', '.join(seen['lacking'])} does not have the memory it needs",
            "all of its bytes",
            "less",
            rank,
        )
    first, again, _ = cases(run.events)
    for rank, seen in enumerate(ranks):
        held_by_shards = seen["at first"]["shards"]
        expect(
            held_by_shards == a_number * share(shapes, world),
            "the shards of a unit have the wrong sizes",
            a_number * share(shapes, world),
            held_by_shards,
            rank,
        )
        check_unsharded(on, seen, right, a_number * psi, rank)
        check_unshard_sends(on, first, again, a_number * share(shapes, world) * (world - 1), rank)
        check_resharded(seen, right, world, rank)
        expect(
            seen["kept"] <= 0,
            f"a unit that computes and is then freed: rank {rank} still has {seen['kept']} bytes more than the"
            " activations, because autograd keeps the weights alive",
            "0 bytes",
            f"{seen['kept']} bytes",
            rank,
            "Autograd keeps the memory of what it has seen. Did it see that a parameter was filled, or a new tensor?",
        )
        scale = scale_of(right["gradients"].values())
        for name, gradient in right["gradients"].items():
            told = f"forward pass, reshard, unshard, backward pass: the gradient of {name} on rank {rank}"
            hint = "Autograd goes back through the same tensors. Are they filled with the same numbers, in its memory?"
            check_tensor(told, seen["gradients"].get(name), gradient, REL, rank, scale=scale, hint=hint)
        expect(
            seen["at last"]["weights"] == 0,
            f"after the last reshard, rank {rank} still has whole weights",
            "0 bytes",
            f"{seen['at last']['weights']} bytes",
            rank,
        )
        check_unsharded_again(on, seen, right, rank)


def check_unsharded(on, seen, right, nbytes, rank):
    """After unshard: the memory, the weights, and the same parameters."""
    expect(
        seen["taken"] == nbytes,
        f"after unshard {on}, rank {rank}'s weights take {seen['taken']} bytes; they need {nbytes}",
        f"{nbytes} bytes",
        f"{seen['taken']} bytes",
        rank,
        "A storage is measured in bytes. How many numbers does the parameter have, and how many bytes has each?",
    )
    for name, weight in right["weights"].items():
        told = f"after unshard {on}, {name} on rank {rank}"
        hint = "The memory is there. Where do the numbers come from, in which order, and which of them are padding?"
        than = "the numbers from the ranks' shards"
        check_tensor(told, seen["whole"][name], weight, rank=rank, than=than, hint=hint)
    expect(
        seen["same"],
        f"after unshard, rank {rank}'s module has different parameters now: layers, hooks and the optimizer's list"
        " refer to the old ones",
        "the same parameters",
        "others",
        rank,
        "Layers, hooks and the optimizer all have this very object. What of it can you change so that they see it?",
    )


def check_unsharded_again(on, seen, right, rank):
    """After a step on the shards the weights are new."""
    for name, weight in right["weights"].items():
        told = f"resharded, stepped and unsharded again {on}, {name} on rank {rank}"
        wrongs = {"what it was before the step": weight}
        hint = "Between two passes the optimizer changes the shards. Where does unshard get its numbers?"
        check_tensor(told, seen["whole again"][name], 2 * weight, rank=rank, wrongs=wrongs, hint=hint)


def check_unshard_sends(on, first, again, most, rank):
    """One collective, of at most so many bytes, or none by a single rank; and none where the unit is whole already."""
    mine = [call for call in collectives(first) if call.rank == rank]
    expect(
        (len(mine) == 1 or on == ALONE and not mine) and sum(call.sent for call in mine) <= most,
        f"unshard takes {len(mine)} collectives on rank {rank}, in which it sends"
        f" {sum(call.sent for call in mine):.0f} bytes",
        f"one of at most {most} bytes",
        [call.op for call in mine],
        rank,
        HINTS["collectives"],
    )
    more = [event["op"] for event in again[rank] if event["e"] == "op"]
    expect(
        not more,
        f"unshard {on} of a unit that is already whole gathers once more, on rank {rank}",
        "nothing",
        more,
        rank,
        "Two hooks may ask for the same unit. How can you tell that it is whole already?"
        + " A single rank's shard is as long as the parameter." * (on == ALONE),
    )


ALONE = "on 1 rank"


def check_resharded(seen, right, world, rank):
    """After reshard the parameters and the shards are what they were."""
    shapes = [p.shape for p in right["weights"].values()]
    expect(
        seen["shapes"] == [list(shape) for shape in shapes],
        f"after reshard, rank {rank}'s parameters have different shapes",
        [list(shape) for shape in shapes],
        seen["shapes"],
        rank,
        "Only the memory is freed. Which of your lines changes the tensor instead?",
    )
    for shape, name, shard in zip(shapes, right["weights"], seen["shards"], strict=True):
        size = math.ceil(math.prod(shape) / world)
        part = right["weights"][name].view(-1)[rank * size : (rank + 1) * size]
        expect(
            torch.equal(shard[: len(part)], part),
            f"after reshard, rank {rank}'s shard of {name} has changed",
            part.tolist(),
            shard.tolist(),
            rank,
            "The shards are what the optimizer steps, and they stay. Do they have memory of their own?",
        )


@todo(9, needs=(2, 3, 8))
def test_todo9_stage_3(student):
    check_stage(student, 3, stage_trials(student, 3))
