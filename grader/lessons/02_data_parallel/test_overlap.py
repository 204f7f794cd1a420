"""Checks of 02_data_parallel, TODO 4: overlap.

| TODO | achievement                              | evidence                                                                  | needs |
|------|------------------------------------------|---------------------------------------------------------------------------|-------|
| 4    | overlapped by hooks                      | the same; the order of gradients, calls and waits; the predicted end      |       |
"""  # noqa: E501

from grader.kit import OWN_ZEROS, check_answers, count_of, expect, hinted, todo

from .common import check_budget, check_no_wait_inside, check_step, check_waited, gradient_bytes, parts, serial
from .ranks import OF_ZEROS, WORLD, overlapped_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 4: as soon as a gradient is ready


EARLIER = {WORLD: [], 2: [7]}  # for each number of ranks, passes before the call of reduce_when_ready


PASSES = (
    ("reduce_when_ready", [0]),
    ("reduce_when_ready, in a second pass on top of the first one's gradients", [0, 1]),
)


# When gradients are ready, how long their all-reduces take, and when the last one is over.
ENDS = (
    ((1.0, 2.0, 3.0), (0.5, 0.5, 0.5), 3.5),
    ((1.0, 2.0, 3.0), (2.0, 2.0, 2.0), 7.0),
    ((1.0, 2.0, 8.0), (2.0, 2.0, 1.0), 9.0),
    ((4.0, 4.0, 4.0), (1.0, 2.0, 3.0), 10.0),
    ((2.0,), (3.0,), 5.0),
    ((0.0, 0.0, 1.0, 6.0, 6.5), (0.25, 0.5, 8.0, 0.25, 1.0), 10.25),
)


@todo(4)
def test_todo4_overlapped(student):
    check_answers(
        student,
        {("communication_ends", (ready, seconds)): end for ready, seconds, end in ENDS},
        wrong="is not when the last one ends",
    )
    for world, earlier in EARLIER.items():
        seeds = student.seeds(world)
        with hinted(OWN_ZEROS, "hang", "mismatch"):
            run = student.call(overlapped_on_rank, world=world, seed=seeds, earlier=earlier)
        asked = [[[number, [*range(world)]] for number in (*earlier, *later)] for _, later in PASSES]
        means = [student.reference(serial, passes=one, seeds=[*seeds]) for one in asked]
        for case, ((what, _), passes, mean) in enumerate(zip(PASSES, asked, means, strict=True)):
            right = {name: grad * len(passes) for name, grad in mean.items()}
            what += f", on {count_of(world, 'rank')}"
            what += ", called after an earlier pass, of a model in channels_last" * bool(earlier)
            check_overlapped(what, right, OVERLAPPED[len(passes) > 1], case, run, world)
        for case, (which, one) in enumerate(OF_ZEROS.items(), start=len(PASSES)):
            right = student.reference(serial, passes=[one], seeds=[*seeds])
            what = f"reduce_when_ready on {count_of(world, 'rank')}{which}"
            check_overlapped(what, right, OWN_ZEROS, case, run, world)


def check_overlapped(what, right, hint, case, run, world):
    sizes = gradient_bytes()
    events = [parts(mine)[case] for mine in run.events]
    check_waited(what, events, LEFT if case == 1 else "")
    for rank, seen in enumerate(run.evidence):
        check_no_wait_inside(what, events[rank], rank)
        with hinted(hint):
            check_step(what, seen[case], right, rank, world)
        check_budget(what, events[rank], rank, len(sizes), sum(sizes), "trainable parameter", world)
        check_begun_at_once(what, events[rank], rank)


LEFT = "The first pass is right. What has it left in a list, and which line takes it out before the second pass?"


OVERLAPPED = (
    "Which tensor does a hook all-reduce, is it complete by then, and when is it divided?",
    "Here p.grad had something in it before the pass. Is it still there, and does a hook see all of it, or only what"
    " this pass adds?",
)


def check_begun_at_once(what, events, rank):
    """Each all-reduce starts before the next gradient is ready."""
    ready = begun = 0
    last = ""
    for event in events:
        if event["e"] in ("ready", "backward over"):
            expect(
                begun >= ready,
                f"{what}: on rank {rank}, the gradient of {last} is ready, but its all-reduce does not begin before "
                + (
                    f"the gradient of {event['name']} is ready, too"
                    if event["e"] == "ready"
                    else "the backward pass is over"
                ),
                f"{ready} all-reduces started",
                begun,
                rank,
                "What is the first line that runs when this gradient is complete, and what does it start?",
            )
            if event["e"] == "backward over":
                return
            ready, last = ready + 1, event["name"]
        begun += event["e"] == "op"
