"""Checks of resilient_training, TODOs 6 and 7: signals.

| TODO | achievement                      | evidence                                                                    | needs |
|------|----------------------------------|-----------------------------------------------------------------------------|-------|
| 6    | signals are noted                | listen(): both signals, twice                                               |       |
| 7    | all stop together                | agree_to_stop() on 3 ranks, each asked alone in turn                        |       |
"""  # noqa: E501

import signal

import torch

from grader.kit import expect, todo

from .ranks import ASKED, agree_on_rank, listen_on_rank

# ---------------------------------------------------------------------------------------------------
# TODOs 6 and 7: asked to stop


@todo(6)
def test_todo6_listen(student):
    (seen,) = student.call(listen_on_rank, world=1, group=False).evidence
    names = [signal.Signals(number).name for number in dict.fromkeys(seen["unheeded"])]
    expect(not names, f"{' and '.join(names)} would end the process: no handler records it", "a handler", "none")
    told = f"a handler raises {seen['raised']}, in the middle of a step"
    hint = "In the middle of a step nothing can be saved. What is the least that a handler can do?"
    expect(not seen["raised"], told, "a note", seen["raised"], hint=hint)
    expect(seen["counts"][0] == 0, "`came` is not empty before a signal came", 0, seen["counts"][0])
    for number, count in zip(("SIGUSR1", "SIGTERM"), seen["counts"][1:]):
        hint = "A handler is called with the number of its signal. In which list does it leave it?"
        expect(count > 0, f"after {number} the list that listen() returned is still empty", "a note", "none", hint=hint)
    right = [int(number) for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1)]
    told = "after SIGUSR1, SIGTERM and again SIGUSR1 the list does not have the numbers of these signals"
    expect(
        seen["came"] == right,
        told,
        right,
        seen["came"],
        hint="One note for each signal. What is a handler called with?",
    )
    hint = "A scheduler sends two signals. Every other one keeps the handler that it has."
    expect(not seen["changed"], "Ctrl-C (SIGINT) no longer ends the run", "its own handler", "a new one", hint=hint)


@todo(7)
def test_todo7_agree(student):
    run = student.call(agree_on_rank, world=3)
    ranks = run.evidence
    for case, (asked, numbers) in enumerate(ASKED):
        who = {0: "no rank", 3: "every rank"}.get(len(asked), f"rank {' and rank '.join(map(str, asked))} alone")
        names = {signal.Signals(number).name: numbers.count(number) for number in numbers}
        by = " and ".join(f"{name}, {count} times" if count > 1 else name for name, count in names.items())
        by = by and f" by {by}"
        for rank, answers in enumerate(ranks):
            expect(
                answers[case] == bool(asked),
                f"where {who} has been asked to stop{by}, rank {rank} " + ("stops" if answers[case] else "continues"),
                bool(asked),
                answers[case],
                rank,
            )
    last = [answers[-1] for answers in ranks]
    told = "if a signal reaches rank 1 while the ranks are agreeing, some of them stop and the others continue"
    expect(len(set(last)) == 1, told, "the same on all ranks", last, 1, LATE)
    sums = [(rank, event["dtype"]) for rank, mine in enumerate(run.events) for event in mine if is_sum(event)]
    for rank, dtype in sums:
        told = f"rank {rank} adds up answers in {dtype}: where all of 256 ranks are asked to stop, the sum is 0"
        fits = getattr(torch, dtype).itemsize > 1
        expect(fits, told, "a sum that cannot be 0, or the largest", f"a sum in {dtype}", rank, EIGHT_BITS)


def is_sum(event):
    return event["e"] == "op" and event["op"] == "all_reduce" and event["detail"] == "SUM"


EIGHT_BITS = (
    "How many ranks may a job have, and how far does this dtype count? Or is there an operation that cannot overflow?"
)


LATE = (
    "What a rank learns after the ranks have agreed belongs to the next step. When does each rank look at its own list?"
)
