"""Checks of 05_pipeline_parallel, TODOs 9 and 10: split backward.

| TODO | achievement                    | evidence                                                                    | needs    |
|------|--------------------------------|-----------------------------------------------------------------------------|----------|
| 9    | the backward pass in two parts | gradients of either part, and which part computes them                      |          |
| 10   | zero bubble                    | as of 7; the order of W                                                     | 4 – 7, 9 |
"""  # noqa: E501

import itertools

from grader.kit import check_tensor, expect, hinted, near, pipelines, todo

from .common import (
    REL,
    check_actions,
    check_alive,
    check_gradients,
    check_trials,
    fixed_trial,
    length_of,
    notes,
    schedules_of,
)
from .ranks.split_backward import parts_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 9: the backward pass in two parts


@todo(9)
def test_todo9_parts(student):
    (seen,) = student.call(parts_on_rank, world=1, group=False).evidence
    for case in seen:
        told = (
            f"{'the first' if case['first'] else 'a'} stage{', some weights frozen' if case['frozen'] else ''}"
            f"{', the loss at its end' if case['last'] else ''}"
        )
        with hinted("I: which gradients are asked for, and in which order do they come back?"):
            check_input_part(told, case)
        with hinted("W: from which tensor does each layer's call start, and with which gradient?"):
            check_weights_part(told, case)


def check_input_part(told, case):
    for number, (got, right) in enumerate(zip(case["inputs"], case["right inputs"], strict=True)):
        what = f"backward_input, {told}:"
        if right is None:
            expect(got is None, f"{what} its input needs no gradient, and it returns one", "None", "a tensor")
            continue
        there = f"{what} no gradient comes back for micro-batch {number}, although its input needs one"
        expect(got is not None, there, f"{right.abs().max():.5g} at most", "None")
        check_tensor(f"{what} the gradient of the input of micro-batch {number}", got, right, 1e-4)
    expect(
        not case["early"],
        f"backward_input, {told}: it sets the grad of {', '.join(case['early'][:3])}",
        "no grad is changed",
        case["early"][:3],
    )
    in_input = [call for call in case["in input"] if call[0] == "weights"]
    expect(
        not in_input,
        f"backward_input, {told}: it computes the weights' gradients of {len(in_input)} layers: nothing is left for"
        " later",
        "only gradients between the layers",
        f"{len(in_input)} of weights",
    )


def check_weights_part(told, case):
    again = [call for call in case["in weights"] if call[0] == "input"]
    expect(
        not again,
        f"backward_weights, {told}: it computes gradients between the layers again, {len(again)} times: backward_input"
        " must keep what it has computed",
        "none",
        f"{len(again)}",
    )
    right, got = (
        {name: gradient for name, gradient in case[which].items() if not name.startswith("shift")}
        for which in ("right", "gradients")
    )
    check_gradients(f"backward_weights, {told}, two micro-batches", right, got, 0, 0, REL["float32"])
    for name in ("shift.one", "shift.other"):
        right, got = case["right"][name], case["gradients"][name]
        expect(
            near(got, right, 1e-4),
            f"backward_weights, {told}: of two weights that are both added to the stream, one has the wrong gradient"
            " after two micro-batches; autograd may use one tensor for both: did you write into it?",
            right,
            got,
        )
    learning = [n for n in range(3) if not (case["frozen"] and n == 1)]
    calls = [call for call in case["in weights"] if call[0] == "weights"]
    expect(
        len(calls) == 2 * len(learning),
        f"backward_weights, {told}: the gradients of {len(learning)} layers' weights for two micro-batches are computed"
        f" {len(calls)} times",
        2 * len(learning),
        len(calls),
    )
    expect(
        case["gone"],
        f"backward_weights, {told}: after it, something still refers to the finished micro-batch",
        "it can be freed",
        "it is kept",
    )


# ---------------------------------------------------------------------------------------------------
# TODO 10: zero bubble


@todo(10, needs=(4, 5, 6, 7, 9))
def test_todo10_zero_bubble(student):
    draw = student.draw("zero bubble")
    sizes = [(p, m) for p, m, _ in pipelines(draw)] + [(3, draw.randrange(4, 7))]  # the last one is run
    *_, run = schedules = schedules_of(student, "zero_bubble", sizes)
    for (p, m), schedule in zip(sizes, schedules, strict=True):
        told = f"zero_bubble({p}, {m})"
        check_actions(told, schedule, p, m, 1, "FIW")
        check_alive(told, schedule, "W", [min(m, p)] * p)
        check_split_length(told, schedule, p, m)
        check_oldest_first(told, schedule)
    (events,) = check_trials(student, [fixed_trial(draw, "zero bubble", run, sizes[-1][1])])
    for rank, mine in enumerate(events):
        wanted = [number for kind, number, _ in run[rank] if kind == "W"]
        seen = [number for number, _ in itertools.groupby(number for _, _, number in notes(mine, ("weights",)))]
        told = (
            f"zero bubble on 3 ranks: rank {rank} computes the weights' gradients in an order that is not the"
            " schedule's"
        )
        expect(seen == wanted, told, wanted, seen, rank)


def check_oldest_first(told, schedule):
    """The text says which W comes next: with another order neither the time nor the number of passes alive differs."""
    for rank, actions in enumerate(schedule):
        weights = [number for kind, number, _ in actions if kind == "W"]
        early = next((number for place, number in enumerate(weights) if number != sorted(weights)[place]), None)
        message = f"{told}: rank {rank} does W{early} while an older W is left"
        expect(early is None, message, sorted(weights), weights, rank)


def check_split_length(told, schedule, p, m):
    if m < p:
        return
    for f, i, w in ((1, 1, 1), (2, 3, 1), (3, 3, 2)):
        took, limit = length_of(schedule, {"F": f, "I": i, "W": w}), m * (f + i + w) + (p - 1) * (f + i - w)
        message = f"{told}: with {f}, {i} and {w} s for F, I and W it takes {took} s; H1 takes {limit} s"
        expect(took <= limit, message, f"{limit} s", f"{took} s")
