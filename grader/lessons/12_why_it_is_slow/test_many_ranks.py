"""Checks of 12_why_it_is_slow, TODOs 6 to 10: ranks that send, and ranks that wait. No clock is read.

| TODO | achievement                        | what is counted                                                     |
|------|------------------------------------|---------------------------------------------------------------------|
| 6    | one message for all gradients      | messages and bytes; the means, on 2 and 3 ranks                     |
| 7    | one average a step                 | bytes of two steps; the gradients, against one process's            |
| 8    | a metric is a few numbers          | messages and bytes; the fraction, on 2 and 3 ranks                  |
| 9    | equal work                         | sequences of each rank; each document once                          |
| 10   | training continues during a save   | what the thread that trains writes or waits for; the file's weights |
"""

import math

import torch

from grader.kit import (
    Private,
    REL,
    answers_on_rank,
    cases,
    check_calls,
    check_sent,
    check_story,
    check_tensor,
    collectives,
    count_of,
    expect,
    hinted,
    ring_bytes,
    todo,
)

from .common import BOTH
from .ranks import (
    accumulate_on_rank,
    accuracy_on_rank,
    average_on_rank,
    gradients,
    losses_of,
    save_on_rank,
    summed_gradients,
)

HINTS = {
    "sum": "An all-reduce adds up. What makes a mean of a sum?",
    "written": "The mean must get from the message into the gradient itself: a piece with a new name changes nothing.",
    "pieces": "Which numbers of the message belong to which gradient? In the same order and shape as they went in.",
    "frozen": "A parameter without a gradient takes no part in the message, and gets none.",
    "bytes": "The message has the gradients in their own dtype, and nothing else, once around.",
    "rows": "Parts are small because no more fits: one part at a time, and its backward pass before the next one.",
    "divided": "Each part's mean loss is one of as many. What makes the sum of their gradients a mean?",
    "adds": "A gradient that is there before the call must be in the sum afterwards.",
    "once": "All parts' gradients must be in the average, of all ranks. Which backward pass is the last one?",
    "loss": "This rank's loss is the mean over its parts, not their sum or the last one, and not over the ranks.",
    "fraction": "First sum over the ranks, then divide: all words weigh the same. The dtype must hold the sums.",
    "no words": "A rank without words has no mean of its own, but two sums, and the others wait for its message.",
    "lists": "Each rank gets a list, an empty one if there is no document for it.",
    "lost": "Does the number of documents divide evenly? Which of them are left over otherwise?",
    "places": "A document is named by its place in `lengths`, not by its length, and one rank has it.",
}

# ---------------------------------------------------------------------------------------------------
# 6: messages


@todo(6, in_place=("model",))
def test_todo06_average_gradients(student):
    draw = student.draw("shapes")
    shapes = [[draw.randrange(1, 5) for _ in range(draw.randrange(1, 4))] for _ in range(6)]
    frozen = draw.randrange(6)
    for world in (2, 3):
        seeds, told = student.seeds(world), f"on {count_of(world, 'rank')}:"
        run = student.call(average_on_rank, world=world, seeds=seeds, shapes=shapes, frozen=frozen)
        each = zip(*(gradients(seed, shapes) for seed in seeds), strict=True)
        sums = [sum(parts) for parts in each]
        right = [total / world for total in sums]
        for rank, mine in enumerate(run.evidence):
            for number, (found, mean) in enumerate(zip(mine, right, strict=True)):
                what = f"{told} the gradient of shape {tuple(shapes[number])}"
                if number == frozen:
                    has = f"{told} a frozen parameter has a gradient"
                    expect(found is None, has, None, "a gradient", rank, HINTS["frozen"])
                else:
                    wrongs = {"the sum over the ranks, not the mean": (sums[number], HINTS["sum"])}
                    mine_alone = gradients(seeds[rank], shapes)[number]
                    wrongs["this rank's own, as it was"] = (mine_alone, HINTS["written"])
                    than = "the mean over the ranks"
                    check_tensor(what, found, mean, REL, rank, wrongs=wrongs, than=than, hint=HINTS["pieces"])
        (step,) = cases(run.events)
        sent = 4 * sum(mean.numel() for number, mean in enumerate(right) if number != frozen)
        most, why = ring_bytes(sent, world) * 1.01 + 8, "the gradients are fewer bytes"
        check_sent(f"{told} a step", step, most, why=why, hint=HINTS["bytes"])
        check_calls(told, collectives(step), 1, "for five gradients")
    check_story(student, 6, (15, False), ("the number of messages as given", "whether it sends fewer bytes"), BOTH)


# ---------------------------------------------------------------------------------------------------
# 7: accumulation


@todo(7, in_place=("model",))
def test_todo07_accumulate(student):
    draw = student.draw("parts")
    parts, rows, seed, world = draw.randrange(3, 6), draw.randrange(1, 3), draw.randrange(1000), 2
    seeds = student.seeds(world)
    steps = [[[mine + step, parts, rows] for mine in seeds] for step in range(2)]
    right = [student.reference(summed_gradients, seed=seed, batches=batches) for batches in steps]
    right[1] = {name: gradient + right[0][name] for name, gradient in right[1].items()}  # it adds
    losses = [[student.reference(losses_of, seed=seed, batch=batch) for batch in batches] for batches in steps]
    run = student.call(accumulate_on_rank, world=world, seed=seed, seeds=seeds, parts=parts, rows=rows)
    nbytes = 4 * sum(gradient.numel() for gradient in right[0].values())
    for rank, mine in enumerate(run.evidence):
        for step, got in enumerate(mine):
            told = f"step {step + 1} with {parts} micro-batches"
            expect(
                got["rows"] <= rows,
                f"{told}: a forward pass has {count_of(got['rows'], 'sample')}, and would not fit",
                f"at most {rows}, one micro-batch",
                got["rows"],
                rank,
                HINTS["rows"],
            )
            expect(
                not got["alive"],
                f"{told}: when a forward pass begins, the activations of an earlier micro-batch are still kept, and"
                " both would not fit",
                "none: its backward pass is done",
                count_of(got["alive"], "tensor"),
                rank,
                HINTS["rows"],
            )
            for name, gradient in right[step].items():
                what = f"{told}: the gradient of {name}"
                wrongs = {f"{parts} times one process's": (parts * gradient, HINTS["divided"])}
                if step:
                    alone = gradient - right[0][name]
                    wrongs["the gradient of this step alone: step 1's is gone"] = (alone, HINTS["adds"])
                seen = got["gradients"][name]
                options = dict(scale=1e-6, wrongs=wrongs, than="one process's", hint=HINTS["once"])
                check_tensor(what, seen, gradient, REL, rank, **options)
            loss = got["loss"].item() if isinstance(got["loss"], torch.Tensor) else math.nan
            is_mean = math.isclose(loss, losses[step][rank], rel_tol=REL)
            what = f"{told}: it does not return this rank's mean loss"
            expect(is_mean, what, losses[step][rank], loss, rank, HINTS["loss"])
    # DDP may send a few numbers more, where it has found the order of its buckets.
    for step, events in enumerate(cases(run.events)):
        told = f"step {step + 1} with {parts} micro-batches"
        check_sent(told, events, 1.5 * ring_bytes(nbytes, world), why="the gradient is averaged more than once")
    check_story(student, 7, (4, 0.75), ("the number of all-reduces as given", "the fraction of bytes saved"), BOTH)


# ---------------------------------------------------------------------------------------------------
# 8: a metric


def drawn_guesses(student, draw, world):
    """For each rank whether its words were guessed; and the fraction over all ranks."""
    sizes = draw.sample(range(200, 400), world)
    each = [[int(draw.random() < (rank + 1) / (world + 1)) for _ in range(n)] for rank, n in enumerate(sizes)]
    means = [sum(mine) / len(mine) for mine in each]
    student.premise(abs(sum(means) / world - fraction(each)) > 1e-4, "the mean of the ranks' fractions")
    return each


def fraction(each):
    return sum(map(sum, each)) / sum(map(len, each))


@todo(8)
def test_todo08_accuracy(student):
    draw = student.draw("guesses")
    guesses = {world: drawn_guesses(student, draw, world) for world in (2, 3)}
    for world, each in guesses.items():
        idle = draw.randrange(world)  # in a second call, this rank has no word
        calls = [each, [mine if rank != idle else [] for rank, mine in enumerate(each)]]
        by_rank = list(zip(*calls, strict=True))
        with hinted(HINTS["no words"], "mismatch", "hang"):
            run = student.call(accuracy_on_rank, world=world, guesses=Private(by_rank))
        for number, (guessed, events) in enumerate(zip(calls, cases(run.events), strict=True)):
            told = f"on {count_of(world, 'rank')}{f', rank {idle} without words' * number}:"
            right, hint = fraction(guessed), HINTS["no words" if number else "fraction"]
            for rank, both in enumerate(run.evidence):
                seen, what = both[number], f"{told} it does not return the fraction over the words of all ranks"
                same = isinstance(seen, float) and math.isclose(seen, right, rel_tol=1e-6)
                expect(same, what, right, seen, rank, hint)
            check_sent(f"{told} a call", events, 64 * world, why="a fraction needs two numbers of each rank")
            check_calls(told, collectives(events), 1, "for one fraction")
    check_story(student, 8, (2, 1), ("the number of messages as given", "the number with the fix"), BOTH)


# ---------------------------------------------------------------------------------------------------
# 9: equal work


def check_dealt_once(told, lengths, parts):
    seen = sorted(number for part in parts for number in part)
    lacking = sorted({*range(len(lengths))} - {*seen})
    lost = f"{told}: no rank computes documents {lacking[:6]}, so the step lacks them"
    expect(not lacking, lost, "each", seen, hint=HINTS["lost"])
    twice = f"{told}: a document is computed twice, or there is none"
    expect(seen == [*range(len(lengths))], twice, "each once", seen, hint=HINTS["places"])


def documents(student, draw, world):
    """The lengths of the documents of several steps."""
    steps = [[draw.randrange(1, 60) for _ in range(draw.randrange(2 * world, 4 * world))] for _ in range(3)]
    # Sorted, and the three longest are far longer: the last of equal pieces has them all.
    ordered = sorted([draw.randrange(1, 6) for _ in range(3 * world - 3)] + [draw.randrange(30, 60) for _ in range(3)])
    # Long and short ones in turn: every world-th one, unsorted, is long.
    in_turn = [20 + draw.randrange(9) if i % world == 0 else draw.randrange(1, 4) for i in range(3 * world)]
    as_read = [range(len(in_turn))[rank::world] for rank in range(world)]
    student.premise(spread(in_turn, as_read) > max(in_turn), "every so many-th one, in the order as given")
    each = -(-len(ordered) // world)
    pieces = [range(len(ordered))[rank * each : (rank + 1) * each] for rank in range(world)]
    student.premise(spread(ordered, pieces) > max(ordered), "pieces of the sorted list")
    return [*steps, ordered, in_turn, [draw.randrange(1, 9) for _ in range(world - 1)]]


@todo(9)
def test_todo09_deal(student):
    draw = student.draw("documents")
    calls = [(world, lengths) for world in (2, 3, 4) for lengths in documents(student, draw, world)]
    asked = [["deal_9", [lengths, world]] for world, lengths in calls]
    (dealt,) = student.call(answers_on_rank, world=1, group=False, calls=asked).evidence
    for (world, lengths), parts in zip(calls, dealt, strict=True):
        told = f"documents of {', '.join(map(str, lengths))} sequences on {count_of(world, 'rank')}"
        lists = isinstance(parts, list) and all(isinstance(part, list) for part in parts)
        what = f"{told}: not a list for each rank"
        expect(lists and len(parts) == world, what, world, parts, hint=HINTS["lists"])
        check_dealt_once(told, lengths, parts)
        sums = [sum(lengths[number] for number in part) for part in parts]
        expect(
            max(sums) - min(sums) <= max(lengths),
            f"{told}: rank {sums.index(max(sums))} has {max(sums)} of {sum(lengths)} sequences, and all wait for it",
            f"at most {max(lengths)} more than rank {sums.index(min(sums))}",
            sums,
        )
    check_story(student, 9, (0, 4), ("the rank that the other waits for", "how many times the other's FLOPs"))


def spread(lengths, parts):
    """Sequences of the busiest rank, less the sequences of the least busy one."""
    sums = [sum(lengths[number] for number in part) for part in parts]
    return max(sums) - min(sums)


# ---------------------------------------------------------------------------------------------------
# 10: a checkpoint that is written while training continues

# What `Gate` notes -> what is wrong, and a hint.
STANDS = {
    "written by the thread that trains": (
        "training stands still until the checkpoint is written",
        "Which thread calls `write_10`? One that is only told what to call, and with what, begins by itself.",
    ),
    "waited for": (
        "training stands still until the thread that writes is done",
        "A thread for which the call waits at once helps nothing. Which later moment has to wait for it?",
    ),
    "a thread that ends with the program": (
        "the last checkpoint may be lost: its thread ends with the program, finished or not",
        "What does `daemon` mean for a thread?",
    ),
}


@todo(10, in_place=("model", "content"))
def test_todo10_save_checkpoint(student):
    draw = student.draw("weights")
    values = [draw.uniform(1, 9) for _ in range(2)]
    (first, *others), overlapping = zip(
        *((mine["each"], mine["overlapping"]) for mine in student.call(save_on_rank, world=2, values=values).evidence),
        strict=True,
    )
    for rank, mine in enumerate(others, 1):
        wrote = any(left["file"] is not None or left["how"] for left in mine)
        told, hint = f"rank {rank} writes a checkpoint", "The ranks' weights are the same. Whose file is it?"
        expect(not wrote, told, "rank 0 alone", f"rank {rank}, too", rank, hint)
    for epoch, (value, left) in enumerate(zip(values, first, strict=True)):
        for how, (told, hint) in STANDS.items():
            expect(how not in left["how"], told, "it is written meanwhile, and in any case", how, 0, hint)
        saved = left["file"]
        none, begun = (
            "there is no file after training has continued",
            "Has the thread been started, and what does it call?",
        )
        expect(saved is not None, none, "a checkpoint", "none", 0, begun)
        about = {name: saved.get(name) for name in ("config", "epoch")} if isinstance(saved, dict) else saved
        kept = "Pass `write_10` all that the given code passes; only the weights are copies."
        whole = about == {"config": {"dim": 3}, "epoch": epoch}
        expect(whole, "the file lacks what it was given", "all of it", about, 0, kept)
        weights = saved.get("model")
        plain = isinstance(weights, dict) and [*weights] == ["weight"]
        expect(plain, "the file's weights are not named as the plain model's", ["weight"], weights, 0, kept)
        check_tensor(
            "the file's weight",
            weights["weight"],
            torch.full((1, 2), value),
            rank=0,
            than="what it was at the moment of the call",
            hint="state_dict() returns the model's own tensors. What has training made of them by the time they are"
            " written?",
        )
    for value, saved in zip(values, overlapping[0], strict=True):
        right = saved is not None and bool((saved["model"]["weight"] == value).all())
        expect(
            right,
            "a checkpoint is saved while an earlier one is still being written, and a file has the wrong weights",
            value,
            saved and saved["model"]["weight"],
            0,
            "Two threads may write at a time. Which copy does each of them write, and when may it be overwritten?",
        )
    check_story(
        student,
        10,
        (2, 2, 0),
        ("the number of checkpoints", "the number of ranks that stand still", "the number with the fix"),
        BOTH,
    )
