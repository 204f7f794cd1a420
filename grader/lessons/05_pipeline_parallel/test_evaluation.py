"""Checks of 05_pipeline_parallel, TODO 12: evaluation.

| TODO | achievement                    | evidence                                                                    | needs    |
|------|--------------------------------|-----------------------------------------------------------------------------|----------|
| 12   | evaluation                     | values on all ranks; modes; memory kept; two evaluations in a row          | 4, 5, 6  |
"""  # noqa: E501

import math

import torch
import torch.nn.functional as F

from grader.kit import Private, check_delivery, count_of, expect, hinted, numbers, pipelines, todo
from utils.data import IGNORE

from .common import (
    BYTES,
    REL,
    bytes_between,
    check_actions,
    check_messages,
    events_of_trials,
    length_of,
    notes,
    schedules_of,
    sizes_drawn,
    stage_seed,
)
from .ranks.common import Work, counted_in, inputs_of
from .ranks.evaluation import evaluate_on_rank, evaluated_targets, tell_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 12: evaluation


def evaluated_alone(seeds, v, m, rows, width, dtype):
    world, kind = len(seeds), getattr(torch, dtype)
    stages = [Work(s, stage_seed(seeds, s, world), width, kind, tell=lambda **_: None) for s in range(world * v)]
    sums, counts = [], []
    for number in range(2):
        ys = evaluated_targets(seeds[-1], number, m, rows, width)
        total = 0.0
        for x, y in zip(inputs_of(seeds[0] + 100 * number, m + number, rows, width, kind), ys):
            for stage in stages:
                x = stage(x)
            total += F.cross_entropy(x[:, 1:], y, ignore_index=IGNORE, reduction="sum").item()
        sums.append(total)
        counts.append(counted_in(ys))
    return {"mean": sum(sums) / sum(counts), "mean of means": sum(s / c for s, c in zip(sums, counts)) / 2}


@todo(12, needs=(4, 5, 6))
def test_todo12_evaluation(student):
    draw = student.draw("evaluation")
    trials = [evaluation_trial(student, draw, world, v) for world, v in ((2, 2), (3, 1))]
    with hinted("Which rank has the value, and which dtype keeps all its digits?"):
        check_told(student, draw)
    with hinted("Only forward passes. In which order do they go through the chunks, so that no rank waits?"):
        check_forward_only(student, draw)
    for world, ms, how, rights in trials:
        with hinted("Targets mean something on one rank only. Which ranks count them, and divide?", "crash"):
            run, v = student.call(evaluate_on_rank, world=world, seed=student.seeds(world), ms=ms, **how), how["v"]
        for number, (m, right, events) in enumerate(zip(ms, rights, events_of_trials(run.events, 2), strict=True)):
            again = ", the second evaluation in this process," if number else ","
            told = f"evaluate{again} two batches on {count_of(world, 'rank')}" + (
                f" with {v} chunks each" if v > 1 else ""
            )
            with hinted(
                "Follow one batch: which mode, which schedule, which numbers are added where, which mode comes back?"
            ):
                check_evaluation(told, events, [left[number] for left in run.evidence], right, v, m, how)


def evaluation_trial(student, draw, world, v):
    """Two evaluations of two batches each, whose means differ: (ranks, micro-batches, sizes, what is right)."""
    ms, how, rights = [draw.randrange(3, 5), 3], dict(v=v, **sizes_drawn(draw)), []
    for number, m in enumerate(ms):
        seeds = [seed + 500 * number for seed in student.seeds(world)]
        right = student.reference(evaluated_alone, seeds=seeds, m=m, **how)
        apart = abs(right["mean"] - right["mean of means"]) > 1e-3 * right["mean"]
        student.premise(apart, "a mean of the batches' means")
        rights.append(right)
    return world, ms, how, rights


def check_told(student, draw):
    """A loss is positive, but the value may be any number, and none of its digits may be lost."""
    for world in (1, 2, 3):
        values = numbers(draw, 5, "negative", "zero", "whole", "large") + [draw.uniform(1, 9) + 1e-11]
        inputs = Private([[None] * len(values)] * (world - 1) + [values])
        for rank, seen in enumerate(student.call(tell_on_rank, world=world, values=inputs).evidence):
            for value, got in zip(values, seen, strict=True):
                expect(
                    got == value,
                    f"on_all_ranks: the last of {count_of(world, 'rank')} has {value!r}, rank {rank} gets"
                    " a different number",
                    value,
                    got,
                    rank,
                )


def check_forward_only(student, draw):
    sizes = pipelines(draw, chunks=(1, 2, 3))
    for (p, m, v), schedule in zip(sizes, schedules_of(student, "forward_only", sizes), strict=True):
        told = f"forward_only({p}, {m}, {v})"
        check_actions(told, schedule, p, m, v, "F")
        if v == 1 or m >= p:
            took, limit = length_of(schedule, {"F": 1}), m * v + p - 1
            expect(took <= limit, f"{told}: with F of 1 s it takes {took} s", f"{limit} s", f"{took} s")


def check_evaluation(told, events, ranks, right, v, m, how):
    world = len(ranks)
    check_delivery(told, events)
    for rank, seen in enumerate(ranks):
        mean = seen["mean"]
        close = isinstance(mean, float) and math.isclose(mean, right["mean"], rel_tol=REL["float32"])
        of_means = isinstance(mean, float) and math.isclose(mean, right["mean of means"], rel_tol=1e-4)
        means = ": it is the mean of the batches' means" if of_means and not close else ""
        expect(
            close,
            f"{told}: on rank {rank} the mean differs from one process's{means}",
            f"{right['mean']:.6f}",
            mean,
            rank,
        )
        last = ranks[-1]["mean"]
        expect(mean == last, f"{told}: rank {rank} does not have the last rank's mean", last, mean, rank)
        check_evaluating(told, events[rank], seen, rank, v * (2 * m + 1))
        modes = [[number == rank % v] * len(mine) for number, mine in enumerate(seen["modes"])]
        whole = [mine[0] for mine in seen["modes"]] == [mine[0] for mine in modes]
        expect(
            seen["modes"] == modes,
            f"{told}: after it {'layers inside ' if whole else ''}the chunks of rank {rank} are not back in their mode",
            "training" if modes[0][0] else "eval mode",
            "the other mode",
            rank,
        )
        expect(seen["grads"], f"{told}: after it autograd is off on rank {rank}", "on", "off", rank)
    nbytes = how["rows"] * (1 + how["width"]) * BYTES[how["dtype"]]
    sizes = bytes_between(world, v, (2 * m + 1) * nbytes, back=False)
    # The loss may be sent in messages: 8 bytes, or two numbers.
    check_messages(told, events, sizes, collectives_allowed=True, more=16)


def check_evaluating(told, events, seen, rank, wanted):
    passes = [e for e in events if e["e"] == "mark" and e.get("kind") == "forward"]
    message = f"{told}: rank {rank} computes {len(passes)} forward passes"
    expect(len(passes) == wanted, message, wanted, len(passes), rank)
    for mode, words in (("train", "in training mode, with dropout"), ("mixed", "with layers in training mode")):
        expect(
            all(e["mode"] != mode for e in passes),
            f"{told}: rank {rank} evaluates {words}",
            "eval mode",
            "training mode",
            rank,
        )
    expect(
        not any(e["grad"] for e in passes),
        f"{told}: rank {rank} evaluates with autograd on, which keeps activations",
        "no_grad",
        "autograd",
        rank,
    )
    expect(
        not seen["learned"] and not notes(events, ("back",)),
        f"{told}: rank {rank} runs a backward pass in an evaluation",
        "forward passes only",
        "a backward pass",
        rank,
    )
