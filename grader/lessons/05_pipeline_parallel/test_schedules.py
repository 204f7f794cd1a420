"""Checks of 05_pipeline_parallel, TODOs 7, 8 and 11: schedules.

| TODO | achievement                    | evidence                                                                    | needs    |
|------|--------------------------------|-----------------------------------------------------------------------------|----------|
| 7    | 1F1B                           | actions, simulated time, passes alive; a run, and the bytes alive in it     | 4, 5, 6  |
| 8    | interleaved                    | the same                                                                    | 4, 5, 6  |
| 11   | predictions                    | the formulas                                                                |          |
"""  # noqa: E501

from grader.kit import check_answers, check_refusals, count_of, expect, hinted, numbers, pipelines, todo

from .common import check_actions, check_alive, check_trials, fixed_trial, length_of, schedules_of
from .ranks.common import schedules_on_rank
from .ranks.schedules import bubbles_on_rank

# ---------------------------------------------------------------------------------------------------
# TODOs 7 and 8: 1F1B and interleaved


@todo(7, needs=(4, 5, 6))
def test_todo7_one_f_one_b(student):
    draw = student.draw("1F1B")
    sizes = [(p, m) for p, m, _ in pipelines(draw)] + [(3, draw.randrange(4, 7))]  # the last one is run
    schedules = schedules_of(student, "one_f_one_b", sizes)
    for (p, m), schedule in zip(sizes, schedules, strict=True):
        told = f"one_f_one_b({p}, {m})"
        check_actions(told, schedule, p, m, 1, "FB")
        check_alive(told, schedule, "B", [min(m, p - rank) for rank in range(p)])
        check_length(told, schedule, [(m + p - 1) * (f + b) for f, b in WORK], "GPipe's")
    check_trials(student, [fixed_trial(draw, "1F1B", schedules[-1], sizes[-1][1])])


WORK = ((1, 2), (3, 3), (5, 2))  # seconds of F and B


def check_length(told, schedule, limits, whose):
    """Its simulated time, for several seconds of F and B of a whole rank. A rank's chunks divide it."""
    chunks = 1 + max(chunk for actions in schedule for _, _, chunk in actions)
    for (f, b), limit in zip(WORK, limits, strict=True):
        took = length_of(schedule, {"F": f / chunks, "B": b / chunks})
        expect(
            took <= limit * (1 + 1e-9),
            f"{told}: where the layers of a rank take {f} s forward and {b} s backward, it takes {took:g} s, more than"
            f" {whose} {limit:g} s",
            f"{limit:g} s",
            f"{took:g} s",
        )


@todo(8, needs=(4, 5, 6))
def test_todo8_interleaved(student):
    draw = student.draw("interleaved")
    sizes = pipelines(draw, chunks=(2, 3, 4), groups=True) + pipelines(draw, chunks=(4, 2, 3), groups=True)
    sizes.append(draw.choice([(2, 4, 2), (2, 2, 3), (3, 3, 2)]))  # is run
    schedules = schedules_of(student, "interleaved", sizes)
    for size, schedule in zip(sizes, schedules, strict=True):
        check_interleaved(schedule, *size)
    with hinted("Which numbers of micro-batches cannot be divided into groups of `world`?"):
        check_groups(student)
    check_trials(student, [fixed_trial(draw, "interleaved", schedules[-1], *sizes[-1][1:])])


def check_interleaved(schedule, p, m, v):
    told = f"interleaved({p}, {m}, {v})"
    check_actions(told, schedule, p, m, v, "FB")
    check_alive(told, schedule, "B", [min(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1) for rank in range(p)])
    limits = [m * (f + b) + (p - 1) * (f + b) / v for f, b in WORK]
    check_length(told, schedule, limits, f"a bubble that is {v} times smaller allows:")
    # Messages are hidden by the second forward pass for each rank behind: simulated with such as take time.
    f, b = 1 / v, 2 / v
    took, best = (length_of(one, {"F": f, "B": b}, message=f / 2) for one in (schedule, interleaved_schedule(p, m, v)))
    expect(
        took <= best * (1 + 1e-9),
        f"{told}: where a message takes half as long as a forward pass of one chunk, and a backward pass twice as long,"
        f" it takes as long as {took / f:g} forward passes instead of {best / f:g}: ranks wait for messages, since too"
        " few forward passes come first",
        f"{best / f:g} forward passes of a chunk",
        f"{took / f:g}",
    )


def check_groups(student):
    grid = [(p, m, v) for p in (1, 2, 3, 4, 5) for m in range(1, 11) for v in (2, 3)]
    (seen,) = student.call(schedules_on_rank, world=1, group=False, name="interleaved", sizes=[], grid=grid).evidence
    check_refusals(
        [zip(grid, seen["refused"], strict=True)],
        refused=lambda p, m, v: m % p != 0,
        told=lambda p, m, v: f"interleaved{p, m, v}, {m} micro-batch{'es' if m > 1 else ''} on {count_of(p, 'rank')},",
    )


def interleaved_schedule(p, m, v):
    """As the text describes it."""
    order = [(first + j, chunk) for first in range(0, m, p) for chunk in range(v) for j in range(p)]
    forward = [["F", j, chunk] for j, chunk in order]
    backward = [["B", j, v - 1 - chunk] for j, chunk in order]
    schedule = []
    for rank in range(p):
        early = min(m * v, 2 * (p - 1 - rank) + (v - 1) * p)
        pairs = [action for pair in zip(forward[early:], backward) for action in pair]
        schedule.append(forward[:early] + pairs + backward[m * v - early :])
    return schedule


# ---------------------------------------------------------------------------------------------------
# TODO 11: predictions


@todo(11)
def test_todo11_predictions(student):
    draw = student.draw("predictions")
    times, alive = predicted_times(draw), predicted_memory(draw)
    # Sums of a few numbers of float64, and a difference of two that may be close to each other.
    with hinted("For GPipe, work it out by hand: one rank's work, plus what p - 1 ranks add before it comes back."):
        right = {key: answer for key, answer in times.items() if answer != 0}
        check_answers(student, right, rel=1e-6, wrong="is not what the schedule gives")
    with hinted(
        "Which number do the docstrings of gpipe, one_f_one_b, interleaved and zero_bubble give for this rank?"
    ):
        check_answers(student, alive, rel=1e-6, wrong="is not what the schedule keeps")
    nothing = [key for key, answer in times.items() if answer == 0]
    questions = [list(arguments) for _, arguments in nothing]
    (seen,) = student.call(bubbles_on_rank, world=1, group=False, questions=questions).evidence
    for (name, arguments), answer in zip(nothing, seen, strict=True):
        none = isinstance(answer, float) and abs(answer) < 1e-9
        expect(none, f"{name}{arguments}: one rank waits for no other", 0.0, answer)


def predicted_times(draw):
    """The answers of step_seconds and bubble_share."""
    right = {}
    work = [(4, 8, 1.0, 1.0, 1.0), (8, 64, 0.03, 0.04, 0.02)]
    work += [(p, m, *numbers(draw, 3)) for p, m, _ in pipelines(draw)]
    for p, m, f, i, w in work:
        bubbles = [("GPipe", 1, f + i + w), ("1F1B", 1, f + i + w), ("zero bubble", 1, f + i - w)]
        bubbles += [("interleaved", v, (f + i + w) / v) for v in (2, 5)]
        for name, v, bubble in bubbles:
            took = m * (f + i + w) + (p - 1) * bubble
            right["step_seconds", (name, p, m, v, f, i, w)] = took
            right["bubble_share", (name, p, m, v, f, i, w)] = 1 - m * (f + i + w) / took
    return right


def predicted_memory(draw):
    """The answers of most_alive, for sizes that the schedules accept: for interleaved, whole groups of p."""
    right = {}
    for p, m, v in pipelines(draw) + pipelines(draw, chunks=(2, 3, 4), groups=True):
        for rank in range(p):
            alive = {"GPipe": m, "1F1B": min(m, p - rank), "zero bubble": min(m, p)}
            if v > 1:
                alive = {"interleaved": min(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1) / v}
            right |= {("most_alive", (name, p, m, v, rank)): float(passes) for name, passes in alive.items()}
    return right
