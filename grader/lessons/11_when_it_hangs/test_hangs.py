"""Checks of 11_when_it_hangs, TODOs 1 to 5: hangs.

| TODO | achievement                    | evidence                                                                    |
|------|--------------------------------|-----------------------------------------------------------------------------|
| 1    | a barrier on every rank        | 2 and 3 ranks get through and meet once more; their calls after the save    |
| 2    | one order on all ranks         | means of gradients whose norms are ordered differently on each rank; the order of bytes |
| 3    | equally many samples           | each rank's samples, for random lengths on 1 to 4 ranks                     |
| 4    | an error that is not swallowed | the loss; the error that comes out when the model raises on one rank        |
| 5    | one address for all nodes      | what each of two nodes would start, with stand-ins                          |

Each TODO has a question as well, about the run as given. Its answers come from real runs (torch 2.13, gloo); a verdict
says which part is wrong, and not what would be right.
"""  # noqa: E501

import torch

from grader.kit import Unit, answers_on_rank, check_story, count_of, expect, first_node, is_first_node, stand_ins, todo

from .common import FIXED
from .ranks import SHAPES, average_on_rank, batch_file_on_rank, gradients, loss_on_rank, save_on_rank

# ---------------------------------------------------------------------------------------------------
# 1: save_checkpoint


def savings(events):
    """What a rank did from the beginning of each saving until the function returned."""
    first = [number for number, event in enumerate(events) if "epoch" in event]
    for begin, end in zip(first, [*first[1:], len(events)], strict=True):
        returned = next(n for n in range(begin, end) if events[n].get("what") == "returned")
        yield events[begin:returned]


def calls_before(events):
    """How many calls rank 0 begins in a saving before the file is there; None if there is no later one."""
    calls = [event["there"] for event in events if event["e"] == "op"]
    return calls.index(True) if True in calls else None


def waits_for_all(events, before):
    """Whether a call has ended that was not among the first `before`: ranks make the same calls in the same order."""
    begun = 0
    for event in events:
        begun += event["e"] == "op"
        if event["e"] == "done" and begun > before:
            return True
    return False


@todo(1)
def test_todo01_save_checkpoint(student):
    for world in (2, 3):
        run = student.call(save_on_rank, world=world, common=True)
        saves = [rank for rank, mine in enumerate(run.events) if any(e.get("what") == "saved" for e in mine)]
        expect(saves == [0], f"ranks {saves} write the checkpoint", "rank 0 alone", f"ranks {saves}")
        for mine in run.evidence:
            for epoch, found in zip((7, 8), mine, strict=True):
                whole = {"model": ["bias", "weight"], "config": {"dim": 3}, "epoch": epoch}
                expect(
                    found == whole,
                    "the file does not have the given content, with the plain model's weights",
                    whole,
                    found,
                )
        before = [calls_before(saving) for saving in savings(run.events[0])]
        for rank, mine in enumerate(run.events):
            waits = zip(savings(mine), before, strict=True)
            expect(
                all(first is not None and waits_for_all(saving, first) for saving, first in waits),
                f"on {count_of(world, 'rank')}: rank {rank} returns"
                + (
                    " before the others can know that the file is complete"
                    if rank == 0
                    else ", whether the file is complete or not"
                ),
                "a call on all ranks that begins when the file is complete, and ends before the return",
                "none",
                rank,
                hint="No rank hangs now. But what does the docstring promise, and what keeps that promise?",
            )
    check_story(
        student,
        1,
        (0, "barrier", "global_mean"),
        ("the rank that waits alone", "its call", "the function in which the other rank waits"),
    )


# ---------------------------------------------------------------------------------------------------
# 2: the order of calls


# What a rank finds in its own gradients; ranks must not sort by it.
OWN = {
    "an order by the norm": lambda gradient: gradient.norm().item(),
    "an order by the size, and by the norm where sizes are equal": lambda gradient: (
        gradient.numel(),
        gradient.norm().item(),
    ),
    "an order by the numbers that are not 0": lambda gradient: int(gradient.count_nonzero()),
}


def largest_first(found):
    """The places of these in a list of them, sorted; of equals, the first one first."""
    return tuple(sorted(range(len(found)), key=found.__getitem__, reverse=True))


@todo(2)
def test_todo02_average_gradients(student):
    own_of = {world: [gradients(seed) for seed in student.seeds(world)] for world in (2, 3)}
    for own in own_of.values():
        for wrong, key in OWN.items():
            orders = {largest_first([key(gradient) for gradient in mine]) for mine in own}
            student.premise(len(orders) > 1, wrong)
    for world, own in own_of.items():
        seeds = student.seeds(world)
        run = student.call(average_on_rank, world=world, seeds=seeds)
        right = [sum(parts) / world for parts in zip(*own, strict=True)]
        for rank, mine in enumerate(run.evidence):
            for shape, gradient, mean in zip(SHAPES, mine, right, strict=True):
                expect(
                    torch.allclose(gradient, mean, rtol=1e-5, atol=1e-5),
                    f"on {count_of(world, 'rank')}: the gradient of shape {shape} is not the mean over the ranks",
                    mean,
                    gradient,
                    rank,
                )
        sizes = [e["bytes"] for e in run.events[0] if e["e"] == "op" and e["op"] == "all_reduce"]
        expect(sizes == sorted(sizes, reverse=True), "small gradients go before large ones", "the largest first", sizes)
    check_story(student, 2, ("shape", False), ("where the fingerprints differ", "whether DETAIL sees equal shapes"))


# ---------------------------------------------------------------------------------------------------
# 3: equally many samples


def check_lengths(told, parts):
    """In each step all ranks have a sample."""
    lengths = [len(part) for part in parts]
    last = max(lengths) - 1
    rank, other = lengths.index(min(lengths)), lengths.index(max(lengths))
    expect(
        len(set(lengths)) == 1,
        f"{told}: in step {last}, rank {rank} has no sample, while rank {other} still trains",
        "equally many samples on all ranks",
        f"{lengths} samples",
        rank,
    )


def check_once(told, parts):
    """No sample is read twice."""
    first = {}
    for rank, part in enumerate(parts):
        for step, sample in enumerate(part):
            before = first.setdefault(sample, (rank, step))
            expect(
                before == (rank, step),
                f"{told}: a sample is read twice, by rank {before[0]} in step {before[1]} and by rank {rank} in"
                f" step {step}",
                "each at most once",
                f"sample {sample}",
                rank,
            )


def check_steps(told, order, parts):
    """Each step that one process can fill is there, and takes the samples of that step."""
    world = len(parts)
    whole = len(order) - len(order) % world
    step_of = {sample: place // world for place, sample in enumerate(order[:whole])}
    for rank, part in enumerate(parts):
        for step, sample in enumerate(part):
            belongs = f"belongs to step {step_of[sample]}" if sample in step_of else "belongs to no full step"
            expect(
                step_of.get(sample) == step,
                f"{told}: a step does not take the samples that one process would take: what rank {rank} reads in step"
                f" {step} {belongs}",
                f"one of {order[step * world : (step + 1) * world]}",
                f"sample {sample}",
                rank,
            )
    steps = len(parts[0])
    expect(
        steps == whole // world,
        f"{told}: step {steps} is missing on {'every rank' if world > 1 else 'rank 0'}, though a sample is left for"
        " each",
        count_of(whole // world, "step"),
        count_of(steps, "step"),
    )


@todo(3)
def test_todo03_my_part(student):
    draw = student.draw("lengths")
    for world in (2, 3, 4, 1):  # one rank last: on several, a verdict can name the one that differs
        fewer, more = range(world), [world * draw.randrange(3, 9) + extra for extra in range(world)]
        for n in (*more, *fewer):
            order = draw.sample(range(n), n)
            calls = [["my_part_3", [order, rank, world]] for rank in range(world)]
            (parts,) = student.call(answers_on_rank, world=1, group=False, calls=calls).evidence
            told = f"{count_of(n, 'sample')} on {count_of(world, 'rank')}"
            expect(all(isinstance(part, list) for part in parts), f"{told}: no list", "lists", parts)
            check_lengths(told, parts)
            check_once(told, parts)
            check_steps(told, order, parts)
    check_story(
        student,
        3,
        (0, "train_epoch", "global_mean"),
        ("the rank with one batch too many", "the function it was in", "the function that the other rank was in"),
    )


# ---------------------------------------------------------------------------------------------------
# 4: an error that is swallowed


@todo(4)
def test_todo04_compute_loss(student):
    draw = student.draw("x")
    x = [draw.uniform(1, 2) for _ in range(3)]
    right = sum(9 * value**2 for value in x) / 3
    for fails in (None, 1):
        run = student.call(loss_on_rank, world=2, fails=fails, x=x)
        for rank, seen in enumerate(run.evidence):
            if rank == fails:
                ended = "ended" in seen
                expect(
                    "raised" in seen,
                    f"the model raises on rank {rank}, out of memory, and compute_loss_4 "
                    + ("ends the process without this error" if ended else "returns as if nothing had happened"),
                    "the error comes out",
                    f"exit code {seen['ended']}" if ended else f"a loss of {seen.get('loss')}",
                    rank,
                    "What does the log of this rank say afterwards?" if ended else "",
                )
                expect(
                    "2814 bytes" in seen["raised"],
                    "the error that comes out does not say what happened: the cause is lost",
                    "the model's error, or an error raised from it",
                    seen["raised"],
                    rank,
                )
            else:
                expect(
                    abs(seen.get("loss", 0) - right) < 1e-4 and seen.get("gradient"),
                    "where nothing fails, the loss, or its gradient, is wrong",
                    right,
                    seen.get("loss", seen),
                    rank,
                )
    check_story(student, 4, (1, 4 << 50), ("the rank", "the number of bytes"), FIXED)


# ---------------------------------------------------------------------------------------------------
# 5: where ranks meet


@todo(5)
def test_todo05_meeting_place(student):
    (text,) = student.call(batch_file_on_rank, world=1, group=False).evidence
    unit = Unit("sbatch/when_it_hangs.sbatch", text, "")
    for nodes in stand_ins.JOBS:
        ranks = student.submit(unit, nodes)
        told = f"in a job of {count_of(nodes, 'node')}"
        expect(
            len(ranks) == nodes and not any(mine.refused for mine in ranks),
            f"{told}: not every node starts a torchrun",
            f"{nodes} torchrun",
            [mine.refused or mine.how for mine in ranks],
        )
        places = [mine.place or mine.address for mine in ranks]
        for mine, address in zip(ranks, places, strict=True):
            place = address.rpartition(":")[0]
            expect(
                is_first_node(place),
                f"{told}: node {mine.node} looks for the others at “{place}”, which is not the first node",
                first_node(unit.name),
                place or "nothing",
            )
        apart = f"{told}: the nodes look for each other at different ports"
        expect(len({*places}) == 1, apart, "one address and port", ", ".join(places))
    check_story(
        student,
        5,
        (4, 8),
        ("how many ranks wait at node 0's store", "how many ranks look where no store is"),
        "For each of the three nodes, write down what MASTER_ADDR is there, and which of them starts a store.",
    )
