"""Checks of 11_when_it_hangs, TODOs 6 to 10: wrong results.

| TODO | achievement                    | evidence                                                                    |
|------|--------------------------------|-----------------------------------------------------------------------------|
| 6    | no sample lost                 | batches of intact samples; the error for one that is not intact             |
| 7    | a mean of nothing              | loss and gradient, for random losses with all, some and no targets          |
| 8    | work that not every step needs | which rank draws in which steps                                             |
| 9    | different data                 | draws of 1 to 4 ranks, step by step, against one process's                  |
| 10   | one start                      | weights and buffers on ranks that start apart                               |
"""

import torch

from grader.kit import check_shape, check_story, count_of, expect, todo

from .common import FIXED
from .ranks import collate_on_rank, mean_on_rank, notes_on_rank, windows_on_rank, wrap_on_rank

# ---------------------------------------------------------------------------------------------------
# 6: a worker's error


@todo(6)
def test_todo06_collate(student):
    draw = student.draw("words")
    words = [w for w in range(31) if w != 22]
    sound = [[draw.choice(words) for _ in range(4)] for _ in range(5)]
    sound[2][1] = 22  # not its first word
    broken = [[[22, *row[1:]] if at == place else row for at, row in enumerate(sound)] for place in range(5)]
    batches = [sound, *broken, broken[0][:1]]  # one of five, in each place; and one alone
    ((first, *others),) = student.call(collate_on_rank, world=1, group=False, batches=batches).evidence
    expect(first.get("x") == sound, "from intact samples it does not make a batch of all", sound, first)
    expect(first.get("y") == [[w + 1 for w in row] for row in sound], "the targets are not the samples'", None, first)
    for batch, seen in zip(batches[1:], others, strict=True):
        count = len(seen.get("x", ()))
        expect(
            "raised" in seen,
            f"one sample of {len(batch)} is not intact, without any error: a batch of {count} comes back",
            "an exception",
            f"a batch of {count}",
        )
        expect(
            "checksum" in seen["raised"],
            "the error that comes out does not say what is wrong",
            "the sample's error",
            seen["raised"],
        )
    check_story(student, 6, ("ValueError", "a worker"), ("the exception", "where it was caught"), FIXED)


# ---------------------------------------------------------------------------------------------------
# 7: NaN


def check_mean(told, losses, targets, got, rank):
    counts = targets != -100
    many = max(int(counts.sum()), 1)
    right, slope = losses[counts].sum() / many, counts.float() / many
    expect(
        got["gradient"] is not None,
        f"{told}: the mean has no gradient, or none that reaches the losses",
        "a gradient" if bool(counts.any()) else "a gradient of zeros",
        got["mean"],
        rank,
    )
    near = torch.allclose(got["mean"], right, rtol=1e-5)
    expect(near, f"{told}: the mean is wrong", right.item(), got["mean"].item(), rank)
    near = torch.allclose(got["gradient"], slope, rtol=1e-5)
    expect(near, f"{told}: the gradient is wrong", slope, got["gradient"], rank)


@todo(7)
def test_todo07_masked_mean(student):
    draw = student.draw("losses")
    losses = [draw.uniform(1, 4) for _ in range(6)]
    some = [draw.randrange(9) for _ in range(6)]
    padding, certain = draw.sample(range(6), 2)
    some[padding], losses[certain] = -100, 0.0  # a target that is certain counts, too
    batches = {
        "all targets count": [4] * 6,
        "one is padding": some,
        "all but one are padding": [-100] * 5 + [3],
        "all are padding": [-100] * 6,
    }
    ranks = student.call(mean_on_rank, world=2, losses=losses, targets=[*batches.values()]).evidence
    for rank, seen in enumerate(ranks):
        for number, got in enumerate(seen):
            told, row = list(batches.items())[(number + rank) % len(batches)]
            check_mean(told, torch.tensor(losses), torch.tensor(row), got, rank)
    check_story(
        student, 7, (1, 3, 0), ("the rank", "the step", "the number of ranks with a finite gradient one step later")
    )


# ---------------------------------------------------------------------------------------------------
# 8: a straggler


@todo(8)
def test_todo08_note(student):
    every = student.draw("every").randrange(2, 5)
    right = [every, 2 * every, 3 * every]
    run = student.call(notes_on_rank, world=2, log_every=every)
    for rank, seen in enumerate(run.evidence):
        wanted, drawn = right if rank == 0 else [], seen["drawn"]
        expect(
            drawn == wanted,
            f"with log_every={every}, rank {rank} draws in {len(drawn)} of {3 * every + 1} steps",
            wanted,
            drawn,
            rank,
        )
        expect(seen["as before"], "note_8 changes the model that it draws", "the model as it was", "changed", rank)
        calls = [event["op"] for event in run.events[rank] if event["e"] == "op" and not event["ours"]]
        expect(not calls, "note_8 makes the ranks wait for each other once more", "no collective", calls[:3], rank)
    check_story(
        student, 8, (0, "communication"), ("the rank that all wait for", "the part in which the others spend more time")
    )


# ---------------------------------------------------------------------------------------------------
# 9: data that all ranks read alike


INT64 = "The docstring says which dtype the windows have. What does torch.randint make, unless it is told?"


def check_short(student, seed):
    """A text of 16 windows: in a step of 12 some are drawn twice, and in 40 steps each comes."""
    batch, length, world = 12, 16, 2
    calls = [["starts_9", [step, batch, length, rank, world, seed]] for step in range(40) for rank in range(world)]
    (parts,) = student.call(windows_on_rank, world=1, group=False, calls=calls).evidence
    told, fewest = f"in a text of {length} windows", min(map(len, parts))
    least = batch // world
    expect(fewest == least, f"{told}, a rank has fewer samples where one is drawn twice", least, fewest)
    lacking = {*range(length)} - {start for part in parts for start in part.tolist()}
    expect(not lacking, f"{told}, some are never drawn in 40 steps", "all of them", f"all but {sorted(lacking)}")


@todo(9)
def test_todo09_starts(student):
    draw = student.draw("starts")
    batch, length, seed = 12, draw.randrange(10_000, 20_000), draw.randrange(1000)
    steps = (0, 1, 7)
    by_world = {}
    for world in (1, 2, 3, 4):
        calls = [
            ["starts_9", [step, batch, length, rank, world, a_seed]]
            for a_seed in (seed, seed + 1)
            for step in steps
            for rank in range(world)
        ]
        (parts,) = student.call(windows_on_rank, world=1, group=False, calls=calls).evidence
        expect(
            all(isinstance(part, torch.Tensor) and len(part) == batch // world for part in parts),
            f"on {count_of(world, 'rank')}, not every rank has {batch // world} of the {batch} samples",
            batch // world,
            [len(part) if isinstance(part, torch.Tensor) else part for part in parts],
        )
        for part in parts:
            check_shape("what starts_9 returns", part, (batch // world,), torch.int64, hint=INT64)
        groups = [[part.tolist() for part in parts[i : i + world]] for i in range(0, len(parts), world)]
        for group in groups:
            expect(
                world == 1 or len({tuple(part) for part in group}) == world,
                f"on {count_of(world, 'rank')}, ranks read the same windows in one step",
                "different windows",
                group[0],
            )
            expect(
                all(0 <= s < length for part in group for s in part),
                "a window starts outside the text",
                f"0 … {length - 1}",
                group,
            )
        by_world[world] = [sorted(start for part in group for start in part) for group in groups]
    check_short(student, seed)
    serial = by_world[1]
    expect(
        len({tuple(step) for step in serial}) == len(serial), "every step, or seed, draws the same", "new draws", serial
    )
    expect(all(len(set(step)) > batch // 2 for step in serial), "a step repeats its windows", "new draws", serial[0])
    for world, drawn in by_world.items():
        expect(
            drawn == serial,
            f"in a step, {world} ranks together do not read what one process reads: the parallel run is a different"
            " run",
            serial[0],
            drawn[0],
        )
    check_story(
        student,
        9,
        (3, 12),
        ("the number of windows as given", "the number after the fix"),
        "Compare the checksums of the four ranks in one step, with the given lines and with your fix.",
    )


# ---------------------------------------------------------------------------------------------------
# 10: weights that were never synchronised


@todo(10)
def test_todo10_wrap(student):
    for world in (2, 3):
        run = student.call(wrap_on_rank, world=world, seeds=student.seeds(world))
        first = run.evidence[0]["before"]
        for rank, seen in enumerate(run.evidence):
            for name, tensor in first.items():
                kept = torch.equal(seen["after"][name], seen["before"][name])
                expect(
                    torch.equal(seen["after"][name], tensor),
                    f"on {count_of(world, 'rank')}: {name} is not rank 0's" + (", but as before" if kept else ""),
                    tensor,
                    seen["after"][name],
                    rank,
                )
            expect(seen["trains"], "a parameter no longer trains", "requires_grad", "frozen", rank)
    check_story(student, 10, (True, False), ("whether each loss falls", "whether the checksums meet"))
