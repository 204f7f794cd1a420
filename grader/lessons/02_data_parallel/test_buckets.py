"""Checks of 02_data_parallel, TODOs 5 to 7: buckets.

| TODO | achievement                              | evidence                                                                  | needs |
|------|------------------------------------------|---------------------------------------------------------------------------|-------|
| 5    | parameters assigned to buckets           | the assignment, of sizes that fit, do not fit, and are larger than the cap |      |
| 6    | buckets, overlapped                      | as 4, also where ranks do not use the same parameters                     | 5     |
| 7    | accumulation                             | gradients of 3, 1 and 5 micro-batches; nothing is sent before the last one | 5, 6 |
"""  # noqa: E501

from grader.kit import count_of, expect, hinted, todo

from .common import (
    check_budget,
    check_gradients,
    check_no_wait_inside,
    check_scaled,
    check_step,
    check_waited,
    fewest,
    gradient_bytes,
    ops,
    parts,
    serial,
    upto,
)
from .ranks import CAP, MICRO, ONLY_ZEROS, ZEROS, accumulate_on_rank, bucketed_on_rank, fills_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 5: buckets


FILLS = (
    ([4, 4, 4, 4], 8),
    ([4, 4, 4, 4, 4], 8),
    ([10, 20, 30, 40], 50),
    ([3, 100, 3, 3], 10),
    ([0, 100, 0], 10),
    ([100], 10),
    ([0, 10], 10),  # nothing is left in the bucket, and what has no bytes fits in
    ([0, 5, 0, 5, 0], 10),
    ([], 10),
    ([5, 5, 5], 1000),
    ([6, 5, 6, 5], 10),
    ([112, 16, 16, 96, 24, 144, 24, 48, 8], 150),
)


@todo(5)
def test_todo5_buckets(student):
    draw = student.draw("sizes")
    fills = [*FILLS]
    for largest in (10, 10, 40, 40):
        fills.append(([draw.randrange(largest) for _ in range(draw.randrange(12, 20))], draw.randrange(40, 90)))
    (seen,) = student.call(fills_on_rank, world=1, group=False, fills=fills).evidence
    for (sizes, cap), buckets in zip(fills, seen, strict=True):
        what = f"assign_buckets({sizes}, {cap})"
        expect(isinstance(buckets, list), f"{what} is not a list of lists of indices", "lists of indices", buckets)
        flat = [index for bucket in buckets for index in bucket]
        expect(
            sorted(flat) == list(range(len(sizes))),
            f"{what} does not have each parameter in one bucket",
            "each index once",
            buckets,
        )
        expect(
            flat == sorted(flat, reverse=True),
            f"{what} does not go from the last parameter to the first",
            sorted(flat, reverse=True),
            flat,
        )
        for bucket in buckets:
            held = sum(sizes[index] for index in bucket)
            hint = "When is a bucket opened: when one is full, or when there is something to put in?"
            expect(bucket, f"{what} has an empty bucket", "no empty bucket", buckets, hint=hint)
            expect(
                held <= cap or len(bucket) == 1,
                f"{what} puts {held} bytes into a bucket for {cap}",
                f"at most {cap}, unless it is a single parameter",
                buckets,
            )
        least = fewest(sizes, cap)
        expect(
            len(buckets) <= least,
            f"{what} takes {len(buckets)} buckets; {least} would do",
            count_of(least, "bucket"),
            buckets,
        )


# ---------------------------------------------------------------------------------------------------
# TODOs 6 and 7: DDP with buckets


# For each step of one reducer its passes, as `loss_of` has them; all but the last without sync.
STEPS = (
    ("Bucketed", [[0, [0, 1, 2]]]),
    ("Bucketed in its second step, which is like the first", [[11, [0, 1, 2]]]),
    ("Bucketed where rank 1 does not use a layer", [[1, [0, 2]]]),
    ("Bucketed with a pass without sync, after a step in which a layer went unused", [[2, [0, 1, 2]], [3, [0, 1, 2]]]),
    (
        "Bucketed where the last pass of rank 1 does not use a layer that an earlier one did",
        [[4, [0, 1, 2]], [5, [0, 2]]],
    ),
    ("Bucketed where no rank uses a layer", [[6, []]]),
    ("Bucketed where the pass of rank 1 uses no parameter", [[12, [0, 2], [1]]]),
    ("Bucketed after a step in which the pass of rank 1 used no parameter", [[13, [0, 1, 2]]]),
    ("Bucketed" + ZEROS, [[14, [0, 1, 2], [], [1]]]),
    ("Bucketed" + ONLY_ZEROS, [[15, [0, 1, 2], [], [0, 1, 2]]]),
)


STEPS_OF_TWO = (
    ("Bucketed on 2 ranks, with a larger cap and matrices that are not contiguous", [[7, [0, 1]]]),
    ("Bucketed on 2 ranks, with two passes without sync", [[8, [0, 1]], [9, [0]], [10, [0, 1]]]),
)


BUCKETED = {3: (CAP, STEPS), 2: (2 * CAP, STEPS_OF_TWO)}


@todo(6, in_place=("parameter",), needs=(5,))
def test_todo6_bucketed(student):
    for world, (cap, steps) in student.several(BUCKETED.items()):
        seeds, steps = student.seeds(world), student.several(steps, 3)
        passes_of_steps = [passes for _, passes in steps]
        with hinted(NOT_ASKED, "hang"):
            run = student.call(bucketed_on_rank, world=world, seed=seeds, cap=cap, steps=passes_of_steps)
        rights = [student.reference(serial, passes=passes, seeds=[*seeds]) for passes in passes_of_steps]
        for case, ((what, passes), right) in enumerate(zip(steps, rights, strict=True)):
            check_bucketed(what, right, case, run, world, cap, passes)
        for case, later in enumerate((0, 50)):
            what = f"the {('first', 'second')[case]} of two models, each with its Bucketed, whose passes alternate"
            right = student.reference(serial, passes=[[0, [*range(world)]]], seeds=[seed + later for seed in seeds])
            for rank, seen in enumerate(run.evidence):
                with hinted("Two reducers are at work. What do both of them use that each must have for itself?"):
                    check_gradients(what, seen[len(steps) + case], right, rank, world)
        what = "Bucketed of a model whose last layer computes first"  # its last gradient lets all buckets start
        for rank, events in enumerate(run.events):
            with hinted("A bucket that becomes full may have kept others waiting. How many can start now?"):
                check_all_begun(what, parts(events)[len(steps) + 1], rank, fewest([4 * 36] * 4, cap))
        for rank, seen in enumerate(run.evidence):
            *_, before, after = seen[-1]
            expect(
                after <= before,
                f"Bucketed: after the fourth of four equal steps rank {rank} holds {after - before:,} bytes more than"
                " after the third",
                f"{before:,} bytes",
                f"{after:,} bytes",
                rank,
                "What does a pass put into a list, or into an attribute, that finish does not take out again?",
            )


def check_bucketed(what, right, case, run, world, cap, passes):
    sizes = gradient_bytes()
    buckets = fewest(sizes, cap)
    events = [parts(mine)[case] for mine in run.events]
    check_waited(what, events, AGAIN if what == STEPS[1][0] else "")
    all_users = all(len(users) == world for _, users, *_ in passes)
    for rank, seen in enumerate(run.evidence):
        check_no_wait_inside(what, events[rank], rank)
        *silent, last = parts(events[rank], "backward")
        for quiet in silent:
            expect(
                not ops(quiet),
                f"{what}: rank {rank} communicates in a backward pass although sync is False",
                "no call",
                f"{len(ops(quiet))} calls",
                rank,
                "sync says whether this pass is the step's last one. Which part of a hook's work is for the last one"
                " alone?",
            )
        with hinted(AGAIN if what == STEPS[1][0] else bucketed_hint(passes, all_users)):
            check_step(what, seen[case], right, rank, world)
        check_budget(what, last, rank, buckets, sum(sizes), "bucket", world)
        if all_users:
            check_begun_early(what, last, rank, buckets)


NOT_ASKED = (
    "In which order does a rank start its buckets? And which ones if its pass used few parameters or none, or if its"
    " gradients are zeros?"
)


AGAIN = "The first step is right. What does a pass count or collect, and who sets it back for the next one?"


def bucketed_hint(passes, all_users):
    """For a wrong gradient after these passes."""
    if not all_users:
        return "Where a rank does not use a layer, no hook is called. What does finish() do in its place, on that rank?"
    if len(passes) > 1:
        return "What passes without sync have left is in p.grad. What of it is in the vector when that is sent?"
    return "Follow one gradient: to its place in a vector, through the sum, and back. Where is it divided?"


def check_begun_early(what, events, rank, buckets):
    """When the last gradient becomes ready, all buckets but its own are under way."""
    last = max((place for place, event in enumerate(events) if event["e"] == "ready"), default=0)
    begun = len(ops(events[:last]))
    expect(
        begun >= buckets - 1,
        f"{what}: on rank {rank}, {begun} of {buckets} buckets are under way when the last gradient becomes ready; all"
        " but the bucket of that gradient were full before",
        f"{buckets - 1} under way",
        begun,
        rank,
    )
    check_all_begun(what, events, rank, buckets)


def check_all_begun(what, events, rank, buckets):
    over = next(place for place, event in enumerate(events) if event["e"] == "backward over")
    begun = len(ops(events[:over]))
    expect(
        begun >= buckets,
        f"{what}: on rank {rank}, {begun} of {buckets} buckets are under way when the backward pass ends, though all"
        " are full",
        f"{buckets} under way",
        begun,
        rank,
    )


@todo(7, in_place=("parameter",), needs=(5, 6))
def test_todo7_accumulate(student):
    world = 2
    seeds = student.seeds(world)
    run = student.call(accumulate_on_rank, world=world, seed=seeds)
    ranks = run.evidence
    sizes = gradient_bytes()
    for step, numbers in enumerate(MICRO):
        count = len(numbers)
        what = (
            f"accumulate over {count} micro-batch{'es' if count > 1 else ''}"
            + (f", in step {step + 1} of one reducer" if step else "")
            + (", and one occurs twice" if len(set(numbers)) < count else "")
        )
        right = student.reference(serial, passes=[[number, [0, 1]] for number in numbers], seeds=[*seeds])
        events = [parts(mine)[step] for mine in run.events]
        for rank in range(world):
            passes = parts(events[rank], "backward")
            expect(len(passes) > 0, f"{what}: rank {rank} makes no backward pass", f"{count} passes", 0, rank)
            expect(
                len(passes) == count,
                f"{what}: rank {rank} makes {len(passes)} backward pass{'es' * (len(passes) > 1)}. Each micro-batch"
                " needs one of its own: only then are its activations freed before the next one's are made",
                f"{count} passes",
                len(passes),
                rank,
                "When are the activations of a micro-batch freed? Its backward pass must be over before the next"
                " begins.",
            )
            for number, quiet in enumerate(passes[:-1], start=1):
                expect(
                    not ops(quiet),
                    f"{what}: rank {rank} communicates in or after backward pass {number} of {len(passes)}; only the"
                    " last one needs to",
                    "no call",
                    f"{len(ops(quiet))} calls",
                    rank,
                )
        check_waited(what, events)
        for rank, seen in enumerate(ranks):
            passes = parts(events[rank], "backward")
            check_scaled(what, seen[step], right, rank, count)
            with hinted(
                "What do all the backward passes leave in p.grad, and is all of it in what the last one sends?"
            ):
                check_gradients(what, seen[step], right, rank, world)
            check_budget(what, events[rank], rank, fewest(sizes, CAP), sum(sizes), "bucket", world)
            expect(
                ops(upto(passes[-1], "backward over")),
                f"{what}: rank {rank} begins to communicate after the last backward pass, not in it",
                "calls in the last pass",
                "none",
                rank,
                hint="The last micro-batch is number len(micro_batches), also where there is only one.",
            )
