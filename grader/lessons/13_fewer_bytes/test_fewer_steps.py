"""Checks of 13_fewer_bytes, TODOs 7 and 10: exchanges every H steps, and when to use which method.

| TODO | achievement        | evidence                                                                                    | needs |
|------|--------------------|---------------------------------------------------------------------------------------------|-------|
| 7    | DiLoCo             | the ranks played through in one process; H = 1 is plain SGD; resumed between two exchanges  |       |
| 10   | the fastest method | seconds, choices, and the bandwidths where two methods are equal                            |       |
"""  # noqa: E501

import math

import torch

from grader.kit import (
    cases,
    check_answers,
    check_calls,
    check_sent,
    check_tensor,
    collectives,
    expect,
    hinted,
    same_numbers,
    todo,
)

from .common import short_ring
from .ranks import choices_on_rank, copies, diloco_on_rank, inner_optimizer, inner_step, outer_model

HINTS = {
    "step": "Delta points from the mean back to the anchor. Write down velocity, anchor and weights, in this order.",
    "plain": "With momentum 0 and a rate of 1, the new anchor is the mean of the weights, and so is the model.",
    "resumed": "Between two exchanges the weights are not the anchor. What does the next outer step need of the past?",
    "loaded": "Both the run and the checkpoint keep writing into what they hold. Whose memory is it after loading?",
    "frozen": "A frozen parameter is the same on all ranks. Is it sent?",
    "calls": "`mean_over_ranks` takes a list. How many lists does an exchange have?",
    "bytes": "A ring sends every number 2 (N - 1) / N times. How often is there one, per inner step?",
}


# ---------------------------------------------------------------------------------------------------
# TODO 7: DiLoCo


def played(seeds, h, steps, lr, momentum, nesterov=True):
    """Weights after each outer step; all ranks in one process."""
    models = [outer_model() for _ in seeds]
    optimizers = [inner_optimizer(model) for model in models]
    anchor = copies(models[0].parameters())
    velocity = [torch.zeros_like(t) for t in anchor]
    found = []
    for step in range(steps):
        for model, optimizer, seed in zip(models, optimizers, seeds, strict=True):
            inner_step(model, optimizer, seed, step)
        if (step + 1) % h == 0:
            with torch.no_grad():
                for number, weights in enumerate(zip(*(model.parameters() for model in models), strict=True)):
                    delta = anchor[number] - torch.stack(list(weights)).mean(dim=0)
                    velocity[number] = momentum * velocity[number] + delta
                    way = delta + momentum * velocity[number] if nesterov else velocity[number]
                    anchor[number] = anchor[number] - lr * way
                    for weight in weights:
                        weight.copy_(anchor[number])
            found.append(copies(anchor))
    return found


def moved(weights, first):
    return torch.cat([(a - b).flatten() for a, b in zip(weights, first, strict=True)])


def serial(seeds, steps):
    """Plain data-parallel training: one process, the mean gradient of all ranks."""
    model, found = outer_model(), []
    optimizer = inner_optimizer(model)
    for step in range(steps):
        total = None
        for seed in seeds:
            twin = outer_model()
            twin.load_state_dict(model.state_dict())
            inner_step(twin, torch.optim.SGD(twin.parameters(), lr=0.0), seed, step)
            grads = [p.grad for p in twin.parameters() if p.grad is not None]
            total = grads if total is None else [a + b for a, b in zip(total, grads, strict=True)]
        for p, g in zip([p for p in model.parameters() if p.requires_grad], total, strict=True):
            p.grad = g / len(seeds)
        optimizer.step()
        found.append(copies(model.parameters()))
    return found


@todo(7)
def test_todo7_diloco(student):
    draw = student.draw("diloco")
    world, h = draw.choice((2, 3)), draw.randrange(2, 4)
    lr, momentum = draw.uniform(0.5, 0.8), draw.uniform(0.5, 0.9)
    seeds, steps = student.seeds(world), 3 * h
    stop = h + 1
    rights, first = played(seeds, h, steps, lr, momentum), copies(outer_model().parameters())
    for wrong, other in (
        ("momentum without Nesterov's step", played(seeds, h, steps, lr, momentum, nesterov=False)),
        ("no momentum", played(seeds, h, steps, lr, 0.0)),
        ("the mean of the weights", played(seeds, h, steps, 1.0, 0.0)),
    ):
        apart = moved(rights[-1], other[-1]).norm()
        student.premise(apart > 1e-2 * moved(rights[-1], first).norm(), wrong)
    plain = serial(seeds, 3)
    sizes = [(1000, 1, 2), (124_000_000, 500, 8), (77, 3, 3), (draw.randrange(100, 999), 7, 1)]
    right = {("bytes_of_diloco", s): short_ring(4 * s[0], s[2]) / s[1] for s in sizes}
    check_answers(student, right, hints={"bytes_of_diloco": HINTS["bytes"]})
    options = {"world": world, "mine": seeds}
    run = student.call(diloco_on_rank, h=1, steps=3, lr=1.0, momentum=0.0, stop=-1, **options)
    for rank, seen in enumerate(run.evidence):
        for step, (mine, right) in enumerate(zip(seen["weights"], plain, strict=True)):
            whole, due = (torch.cat([t.flatten() for t in tensors]) for tensors in (mine, right))
            told = f"H = 1, rate 1, no momentum, on {world} ranks: the model of rank {rank} after step {step + 1}"
            # A difference from the anchor and back loses a last bit: 1e-7 of the weights a step.
            check_tensor(told, whole, due, 1e-6, rank, than="what plain data-parallel SGD gives", hint=HINTS["plain"])
    run = student.call(diloco_on_rank, h=h, steps=steps, lr=lr, momentum=momentum, stop=stop, **options)
    for rank, seen in enumerate(run.evidence):
        for name, mine in (("", seen["weights"]), (f", resumed after {stop} steps", seen["later"])):
            for number, (weights, right) in enumerate(zip(reversed(mine), reversed(rights))):
                told = (
                    f"H = {h} on {world} ranks{name}: how far rank {rank} has come at exchange {len(rights) - number}"
                )
                hint = HINTS["resumed"] if name else HINTS["step"]
                check_tensor(told, moved(weights, first), moved(right, first), 1e-4, rank, hint=hint)
        same = seen["unchanged"]
        expect(
            same, "what was saved is changed by steps after loading it", "as it was", "changed", rank, HINTS["loaded"]
        )
    numbers = sum(p.numel() for p in outer_model().parameters() if p.requires_grad)
    for events in cases(run.events)[:1]:
        budget = short_ring(4 * numbers, world)
        check_sent("in an exchange", events, budget, 0.99 * budget, "trained parameters alone", hint=HINTS["frozen"])
        with hinted(HINTS["calls"]):
            check_calls("in an exchange", collectives(events), 1, "")


# ---------------------------------------------------------------------------------------------------
# TODO 10: when to use which


def seconds_of(run, link):
    steps, compute, messages, nbytes = run
    return steps * (compute + messages * link[0] + nbytes / link[1])


def crossing(plain, other, latency):
    saved = plain[0] * plain[3] - other[0] * other[3]
    added = other[0] * (other[1] + other[2] * latency) - plain[0] * (plain[1] + plain[2] * latency)
    if saved <= 0:
        return 0.0
    return math.inf if added <= 0 else saved / added


@todo(10)
def test_todo10_choice(student):
    draw = student.draw("choice")
    base = draw.uniform(1e6, 2e6)
    runs = {
        "plain": (100, 0.010, 2.0, base),
        "8 bits": (100, 0.014, 3.0, base / 4),
        "thin": (draw.randrange(120, 140), 0.012, 5.0, base / 20),
        "alone": (draw.randrange(200, 250), 0.010, 0.25, base / 64),
        "one like plain": (100, 0.010, 2.0, base),  # by name, it is before plain
    }
    links = [(1e-5, 1e12), (1e-5, 1e8), (1e-5, 3e7), (0.2, 1e9), (1e-5, 1e5)]
    right = [min(runs, key=lambda name: seconds_of(runs[name], link)) for link in links]
    student.premise(len(set(right)) > 2, "the same method for each link")
    plain, latency = runs["plain"], draw.uniform(1e-5, 1e-4)
    more, quick = (100, 0.005, 2.0, 2 * base), (90, 0.009, 1.0, base / 2)
    others = [runs["8 bits"], runs["thin"], runs["alone"], plain, more, quick, (300, 0.01, 2.0, base / 2)]
    pairs = [[plain, other, latency] for other in others] + [[runs["8 bits"], runs["alone"], 0.1]]
    (seen,) = student.call(choices_on_rank, world=1, group=False, runs=runs, links=links, pairs=pairs).evidence
    for link, found, name, chosen in zip(links, seen["seconds"], seen["fastest"], right, strict=True):
        told = f"with a latency of {link[0]} s and {link[1]:.3g} bytes per second"
        due = [seconds_of(run, link) for run in runs.values()]
        expect(same_numbers(found, due), f"{told}, seconds are wrong", due, found, hint=HOW["seconds"])
        expect(name == chosen, f"{told}, the wrong run is the fastest", chosen, name, hint=HOW["fastest"])
    for (a, b, latency), found in zip(pairs, seen["below"], strict=True):
        due = crossing(a, b, latency)
        told = f"worth_below(Run{tuple(a)}, Run{tuple(b)}, {latency:.3g}) is wrong"
        expect(same_numbers(math.inf if found == "inf" else found, due), told, due, found, hint=HOW["below"])


HOW = {
    "seconds": "Each step computes, waits for its messages, and for its bytes. All of that, times the steps.",
    "fastest": "Which of the dictionary's names has the fewest seconds? `min` takes a `key`.",
    "below": (
        "Write down when both take the same time, with 1 / bandwidth as the unknown. What do the signs of its two sides"
        " say?"
    ),
}
