"""Checks of 03_zero, TODO 10: mixed precision.

| TODO | achievement                             | evidence                                                                                       | needs   |
|------|-----------------------------------------|------------------------------------------------------------------------------------------------|---------|
| 10   | bfloat16 weights by float32 masters     | masters against one process's, on 2 and 3 ranks; bytes held; dtypes sent                | 2, 3    |
"""  # noqa: E501

import math

import torch
from torch import nn

from grader.kit import cases, collectives, count_of, expect, name_of, near, todo

from .common import HINTS, MOVED, REL, check_held, check_state, own, put_together, shapes_of, share
from .ranks import OPTIONS, batch, in_groups, made_model, mixed_on_rank, mixed_step_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 10: mixed precision


def mixed_serial(seeds, steps, kind="AdamW"):
    """One process: gradients of each rank's batch in bfloat16, their mean and the step in float32."""
    model = made_model().to(torch.bfloat16)
    masters = {p: nn.Parameter(p.detach().float()) for p in model.parameters()}
    optimizer = getattr(torch.optim, kind)(
        [{**group, "params": [masters[p] for p in group["params"]]} for group in in_groups(list(masters))],
        **OPTIONS[kind],
    )
    first = {name: masters[p].detach().clone() for name, p in model.named_parameters()}
    for step in range(steps):
        gradients = []
        for seed in seeds:
            model.zero_grad()
            model(*batch(seed, step, 0)).backward()
            gradients.append([p.grad.float() for p in masters])
        for master, *mine in zip(masters.values(), *gradients):
            master.grad = sum(mine) / len(seeds)
        optimizer.step()
        with torch.no_grad():
            for p, master in masters.items():
                p.copy_(master)
    return {"first": first, "masters": {name: masters[p] for name, p in model.named_parameters()}}


@todo(10, in_place=("masters", "parameters"), needs=(2, 3))
def test_todo10_mixed(student):
    world, steps = 2, 4
    seeds = student.seeds(world)
    right = student.reference(mixed_serial, on_gpus=True, seeds=[*seeds], steps=steps)
    for name, master in right["masters"].items():
        student.premise(not torch.equal(master, right["first"][name]), f"a {name} that never moves")
        apart = (master - master.bfloat16().float()).norm() > 3e-4 * master.norm()
        student.premise(apart or name == "gain", "masters in bfloat16")
    run = student.call(mixed_on_rank, world=world, seed=seeds, steps=steps)
    ranks = run.evidence
    told = f"AdamW on {count_of(world, 'rank')}, weights in bfloat16"
    everything, _ = shapes_of()
    psi, shard = sum(map(math.prod, everything)), share(everything, world)
    events = cases(run.events)[0]
    calls = collectives(events)
    for rank, mine in enumerate(ranks):
        check_masters(told, mine, rank)
        part = own(everything, world, rank)
        limits = {"weights": (2 * psi, 2 * psi), "gradients": (2 * psi, 2 * psi), "optimizer": (12 * part, 12 * shard)}
        check_held(told, mine["held"], limits, rank, {"weights": 2 * psi, "gradients": 2 * psi, "optimizer": 12 * psi})
        check_state(told, mine["stateless"], rank)
        check_mixed_messages(
            told, [call for call in calls if call.rank == rank], events[rank], shard * (world - 1), rank
        )
    check_mixed_numbers(told, steps, ranks, right)
    check_mean_in_float32(student)


def check_masters(told, mine, rank):
    """The masters are leaves in float32, in groups as given; the weights stay in bfloat16."""
    expect(
        mine["dtypes"] == ["torch.float32"],
        f"{told}: the masters are {', '.join(mine['dtypes'])}",
        "float32",
        mine["dtypes"],
        rank,
        "bfloat16 has 8 significant bits. In which dtype can steps of a thousandth of the weight add up?",
    )
    expect(
        mine["leaves"],
        f"{told}: an optimizer takes leaf tensors that require a gradient, and the masters are not",
        "leaves",
        "others",
        rank,
        HINTS["leaves"],
    )
    expect(
        mine["groups"] == [{"lr": 0.01, "weight_decay": 0.3}, {"lr": 0.02, "weight_decay": 0.0}],
        f"{told}: the groups' options differ from those that were given",
        "lr and weight_decay as given",
        mine["groups"],
        rank,
        HINTS["options"],
    )
    expect(
        mine["dtype of weights"] == ["torch.bfloat16"],
        f"{told}: after a step the weights are {', '.join(mine['dtype of weights'])}",
        "bfloat16",
        mine["dtype of weights"],
        rank,
        "The model keeps computing with the same weight tensors: only their numbers are new.",
    )


def check_mixed_messages(told, calls, events, numbers_sent, rank):
    """Gradients are added up in float32, and weights are gathered in bfloat16: each number once."""
    operations = [event for event in events if event["e"] == "op"]
    gathers = [event for event in operations if event["op"] in ("all_gather", "broadcast")]
    others = [event for event in operations if event["op"] not in ("all_gather", "broadcast")]
    for what, dtype, found in (
        ("gradients are added up", torch.float32, others),
        ("weights are gathered", torch.bfloat16, gathers),
    ):
        dtypes, ops = sorted({event["dtype"] for event in found}), {event["op"] for event in found}
        expect(
            dtypes == [name_of(dtype)],
            f"{told}: {what} in {' and '.join(dtypes) or 'no collective'} on rank {rank}",
            f"in {name_of(dtype)}",
            dtypes,
            rank,
            "The arguments decide the dtype of the message, and of a sum. Masters stay where they are.",
        )
        sent, most = sum(call.sent for call in calls if call.op in ops), dtype.itemsize * numbers_sent
        expect(
            sent <= most,
            f"{told}, rank {rank} sends {sent:,.0f} bytes by {', '.join(ops)} in a step",
            f"at most {most:,} bytes",
            f"{sent:,.0f} bytes",
            rank,
            "How often is each number sent, and in how many bytes?",
        )


def check_mixed_numbers(told, steps, ranks, right):
    """The masters are one process's, and the weights are the masters, rounded."""
    for name, master in right["masters"].items():
        moved = (master - right["first"][name]).norm()
        seen = put_together([mine["masters"][name] for mine in ranks], master.shape)
        # Two numbers have the same sum in either order, so the difference is the rounding within a step.
        expect(
            near(seen - right["first"][name], master - right["first"][name], 1e-3),
            f"{told}: after {steps} steps the masters of {name} differ from one process's",
            f"moved by {moved:.5g}",
            f"moved by {(seen - right['first'][name]).norm():.5g}, and {(seen - master).norm():.2g} away",
            hint="Follow one number: gradient, mean, step, master. Where is it rounded, or is it another rank's?",
        )
        for rank, mine in enumerate(ranks):
            rounded = put_together([other["masters"][name] for other in ranks], master.shape).bfloat16()
            expect(
                torch.equal(mine["weights"][name], rounded),
                f"{told}: after the last step, {name} on rank {rank} is not its masters, rounded",
                "the masters in bfloat16",
                "others",
                rank,
                "Which line rounds the masters, and into which memory? It must be in the weights that are gathered.",
            )


def check_mean_in_float32(student):
    """On 3 ranks, because a division by 2 is exact in bfloat16, too."""
    world = 3
    seeds = student.seeds(world)
    ranks = student.call(mixed_step_on_rank, world=world, seed=seeds).evidence
    right = student.reference(mixed_serial, on_gpus=True, seeds=[*seeds], steps=1, kind="SGD")
    for name, master in right["masters"].items():
        moved = (master - right["first"][name]).norm()
        seen = put_together([mine[name] for mine in ranks], master.shape)
        # A gradient that is rounded once more, to the 8 bits of bfloat16, is wrong by 1e-3 of its norm; sums of three
        # numbers in a different order, and masters that are rounded to float32, differ by 1e-6 of it and less.
        expect(
            near(seen - right["first"][name], master - right["first"][name], REL, MOVED),
            f"SGD on {count_of(world, 'rank')}, weights in bfloat16: after a step the masters of {name} differ from one"
            " process's, which takes the mean of the gradients in float32",
            f"moved by {moved:.6g}",
            f"moved by {(seen - right['first'][name]).norm():.6g}, and {(seen - master).norm():.2g} away",
            hint="A mean is a sum and a division. In which dtype is each of them?",
        )
