"""Checks of 05_pipeline_parallel, TODO 4: simulation.

| TODO | achievement                    | evidence                                                                    | needs    |
|------|--------------------------------|-----------------------------------------------------------------------------|----------|
| 4    | GPipe; times of any schedule   | actions; times of drawn schedules; messages for those that get stuck |          |
"""  # noqa: E501

import math
import re

from grader.kit import count_of, expect, hinted, numbers, pipelines, todo

from .common import STUCK, check_actions, gpipe_schedule, length_of, random_schedule, schedules_of, spoken_action
from .ranks.common import times_of
from .ranks.simulation import simulate_on_rank

# ---------------------------------------------------------------------------------------------------
# Schedules


# On two ranks: the last stage is on the first one.
THREE_STAGES = [[["F", 0, 0], ["F", 0, 1], ["B", 0, 1], ["B", 0, 0]], [["F", 0, 0], ["B", 0, 0]]]


# ---------------------------------------------------------------------------------------------------
# TODO 4: GPipe, and times


@todo(4)
def test_todo4_gpipe_and_times(student):
    draw = student.draw("times")
    with hinted("GPipe: every rank does the same, in the same order."):
        check_gpipe(student, draw)
    schedules = [gpipe_schedule(3, 4), gpipe_schedule(2, 3)]
    schedules += [
        random_schedule(draw, p, m, v, split)
        for p, m, v, split in (
            (1, 2, 1, False),
            (2, 3, 1, False),
            (3, 4, 1, True),
            (4, 3, 1, False),
            (2, 2, 3, False),
            (3, 3, 2, True),
            (5, 2, 1, True),
        )
    ]
    schedules.append(THREE_STAGES)
    trials = [(schedule, dict(zip("FBIW", numbers(draw, 4)))) for schedule in schedules]
    trials[1][1]["F"] = 0.0  # an action that takes no time: the first one ends at 0
    inputs = dict(trials=trials, stuck=list(STUCK.values()), seconds=trials[0][1])
    (seen,) = student.call(simulate_on_rank, world=1, group=False, **inputs).evidence
    for (schedule, seconds), times in zip(trials, seen["times"], strict=True):
        check_times(schedule, times, seconds)
    with hinted("When a whole round moves no rank, which ranks are not done, and what is the next action of each?"):
        check_stuck(seen["stuck"])


def check_gpipe(student, draw):
    sizes = [(1, 1)] + [(p, m) for p, m, _ in pipelines(draw)]
    for (p, m), schedule in zip(sizes, schedules_of(student, "gpipe", sizes), strict=True):
        told = f"gpipe({p}, {m})"
        check_actions(told, schedule, p, m, 1, "FB")
        for rank, actions in enumerate(schedule):
            kinds = "".join(kind for kind, _, _ in actions)
            expect(
                kinds == "F" * m + "B" * m,
                f"{told}: rank {rank} does not do all forward passes, then all backward passes",
                "F" * m + "B" * m,
                kinds,
                rank,
            )
        took, fastest = length_of(schedule, {"F": 2, "B": 5}), (m + p - 1) * 7
        expect(
            took <= fastest,
            f"{told}: with 2 s for F and 5 s for B it takes {took} s: the ranks' orders do not match",
            f"{fastest} s",
            f"{took} s",
        )


def check_times(schedule, times, seconds):
    ranks = len(schedule)
    spoken = {kind: round(value, 3) for kind, value in seconds.items()}
    told = (
        f"simulate, a schedule of {count_of(ranks, 'rank')} that begins with"
        f" {spoken_actions(schedule[-1])} on rank {ranks - 1}; seconds: {spoken}"
    )
    right, _ = times_of(schedule, seconds)
    expect(isinstance(times, list), f"{told}: it gives {times}", "times", times)
    lengths, wanted = [len(mine) for mine in times], [len(mine) for mine in right]
    expect(lengths == wanted, f"{told}: there is not one time for each action", wanted, lengths)
    for rank, (mine, due) in enumerate(zip(times, right, strict=True)):
        for action, span, true in zip(schedule[rank], mine, due, strict=True):
            same = len(span) == 2 and all(math.isclose(a, b, abs_tol=1e-9) for a, b in zip(span, true))
            expect(
                same,
                f"{told}: {spoken_action(action)} on rank {rank} is at the wrong time",
                f"from {true[0]:g} to {true[1]:g} s",
                f"from {span[0]:g} to {span[-1]:g} s" if span else "nothing",
                rank,
            )


def check_stuck(errors):
    for (why, schedule), found in zip(STUCK.items(), errors, strict=True):
        error, text = (found["error"], found["text"]) if found else ("nothing", "")
        told = f"simulate: a schedule that gets stuck ({why})"
        expect(error == "ValueError", f"{told} raises {error}", "ValueError", error)
        _, (rank, action) = times_of(schedule, dict.fromkeys("FBIW", 1))
        name = f"{action[0]}{action[1]}" + f"/{action[2]}" * (action[2] > 0)
        numbers = re.findall(r"\d+", re.sub(r"[FBIW]\d+(/\d+)?", "", text))
        named = str(rank) in numbers and re.search(rf"{name}(?![/\d])", text) is not None
        wanted = f"rank {rank} and {name}"
        expect(named, f"{told}: the message does not name the lowest rank that waits, and its action", wanted, text)


def spoken_actions(actions):
    return ", ".join(spoken_action(action) for action in actions[:5])
