"""Checks and hints of 11_when_it_hangs.

| TODO | achievement                    | evidence                                                                    |
|------|--------------------------------|-----------------------------------------------------------------------------|
| 1    | a barrier on every rank        | 2 and 3 ranks get through and meet once more; their calls after the save    |
| 2    | one order on all ranks         | means of gradients whose norms are ordered differently on each rank; the order of bytes |
| 3    | equally many samples           | each rank's samples, for random lengths on 1 to 4 ranks                     |
| 4    | an error that is not swallowed | the loss; the error that comes out when the model raises on one rank        |
| 5    | one address for all nodes      | what each of two nodes would start, with stand-ins                          |
| 6    | no sample lost                 | batches of intact samples; the error for one that is not intact             |
| 7    | a mean of nothing              | loss and gradient, for random losses with all, some and no targets          |
| 8    | work that not every step needs | which rank draws in which steps                                             |
| 9    | different data                 | draws of 1 to 4 ranks, step by step, against one process's                  |
| 10   | one start                      | weights and buffers on ranks that start apart                               |

Each TODO has a question as well, about the run as given. Its answers come from real runs (torch 2.13, gloo); a verdict
says which part is wrong, and not what would be right.
"""  # noqa: E501

from argparse import Namespace

import torch
import torch.distributed as dist
from torch import nn

from grader.kit import (
    Reporter,
    Unit,
    answers_on_rank,
    as_evidence,
    check_shape,
    count_of,
    expect,
    first_node,
    hinted,
    is_first_node,
    mark,
    plain,
    saved_file,
    stand_ins,
    todo,
)

BUILDS = "ten broken runs: logs of each rank, time limits, stacks, fingerprints, the flight recorder, norms, checksums"

ANSWERS = "The fix is right; this is about the question below it. "


# Where the answer is: in the logs of the run as given, or with the fix.
AS_GIVEN = (
    "Put the given lines back for a moment (`./workbook diff 11_when_it_hangs` shows what you have changed), run the"
    " story's cell, and read the logs of all ranks again."
)
FIXED = "Run the story's cell with your fix in it, and read the log of the rank that failed, to its last line."


def check_story(student, number, right, parts, where=AS_GIVEN):
    """The answer to a story's question: `right` has its parts, and `parts` names each in words."""
    with hinted(ANSWERS + where):
        (seen,), *_ = student.call(answers_on_rank, world=1, group=False, calls=[[f"story_{number}", []]]).evidence
        expect(
            isinstance(seen, list) and len(seen) == len(right),
            f"story_{number}() does not return {len(right)} values",
            f"{len(right)} values",
            seen,
        )
        for said, answer, part in zip(seen, right, parts, strict=True):
            same = said == answer and type(said) is type(plain(answer))
            expect(same, f"story_{number}(): {part} is not {said!r}", "what the run showed", repr(said))


# ---------------------------------------------------------------------------------------------------
# 1: save_checkpoint


def savings(events):
    """What a rank did from the beginning of each saving until the function returned."""
    first = [number for number, event in enumerate(events) if "epoch" in event]
    for begin, end in zip(first, [*first[1:], len(events)], strict=True):
        returned = next(n for n in range(begin, end) if events[n].get("what") == "returned")
        yield events[begin:returned]


def calls_before(events):
    """How many calls rank 0 begins in a saving before the file is there; None if there is no later one."""
    calls = [event["there"] for event in events if event["e"] == "op"]
    return calls.index(True) if True in calls else None


def waits_for_all(events, before):
    """Whether a call has ended that was not among the first `before`: ranks make the same calls in the same order."""
    begun = 0
    for event in events:
        begun += event["e"] == "op"
        if event["e"] == "done" and begun > before:
            return True
    return False


def save_on_rank(code, rank, world):
    torch.manual_seed(0)
    save, say, kept = torch.save, Reporter.mine.say, []

    def seen(*args, **kwargs):
        save(*args, **kwargs)
        mark(what="saved")

    torch.save = seen
    for epoch in (7, 8):
        path = saved_file().with_name(f"{epoch}.pt")
        # The events of a call tell whether the file is there when it begins.
        Reporter.mine.say = lambda path=path, **event: say(**event, there=path.is_file())
        model = nn.Linear(3, 2)
        mark(epoch=epoch)
        code.save_checkpoint_1(Wrapped(model) if epoch == 8 else model, {"dim": 3}, path, epoch)
        mark(what="returned")
        Reporter.mine.say = say
        dist.all_reduce(torch.ones(2, dtype=torch.float64))  # as the script continues
        kept.append(contents(torch.load(path, weights_only=True)) if path.is_file() else None)
    return kept


class Wrapped(nn.Module):
    """Has the model where DDP has it."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def contents(saved):
    """What a checkpoint has, by name; of the model the names of its weights."""
    return saved | {"model": sorted(saved["model"])} if isinstance(saved, dict) and "model" in saved else str(saved)


@todo(
    1,
    minutes=25,
    why=(
        "A collective in a branch that only some ranks take is the most common hang. No rank fails: they wait for each"
        " other, in different calls, until a time limit is over."
    ),
    hints=(
        "Which ranks call the barrier, and which must, for it to end?",
        "Only rank 0 may write; `save0` does nothing on the others, so all may call it.",
        "A barrier that all ranks reach is outside the if, after the save.",
    ),
)
def test_todo01_save_checkpoint(student):
    for world in (2, 3):
        run = student.call(save_on_rank, world=world, common=True)
        saves = [rank for rank, mine in enumerate(run.events) if any(e.get("what") == "saved" for e in mine)]
        expect(saves == [0], f"ranks {saves} write the checkpoint", "rank 0 alone", f"ranks {saves}")
        for mine in run.evidence:
            for epoch, found in zip((7, 8), mine, strict=True):
                whole = {"model": ["bias", "weight"], "config": {"dim": 3}, "epoch": epoch}
                expect(
                    found == whole,
                    "the file does not have the given content, with the plain model's weights",
                    whole,
                    found,
                )
        before = [calls_before(saving) for saving in savings(run.events[0])]
        for rank, mine in enumerate(run.events):
            waits = zip(savings(mine), before, strict=True)
            expect(
                all(first is not None and waits_for_all(saving, first) for saving, first in waits),
                f"on {count_of(world, 'rank')}: rank {rank} returns"
                + (
                    " before the others can know that the file is complete"
                    if rank == 0
                    else ", whether the file is complete or not"
                ),
                "a call on all ranks that begins when the file is complete, and ends before the return",
                "none",
                rank,
                hint="No rank hangs now. But what does the docstring promise, and what keeps that promise?",
            )
    check_story(
        student,
        1,
        (0, "barrier", "global_mean"),
        ("the rank that waits alone", "its call", "the function in which the other rank waits"),
    )


# ---------------------------------------------------------------------------------------------------
# 2: the order of calls

SHAPES = ((5,), (3, 4), (2, 2), (4, 3), (4, 3), (5,))


def gradients(seed):
    """One rank's gradients: their norms, and how many of their numbers are not 0, as where a rank has not read a word,
    are in a shuffled order.
    """
    draw = torch.Generator().manual_seed(seed)
    scales = torch.rand(len(SHAPES), generator=draw) * 9 + 1
    found = [torch.randn(shape, generator=draw) * scale for shape, scale in zip(SHAPES, scales, strict=True)]
    for gradient in found:
        zeros = int(torch.randint(gradient.numel(), (), generator=draw))
        gradient.view(-1)[:zeros] = 0
    return found


# What a rank finds in its own gradients; ranks must not sort by it.
OWN = {
    "an order by the norm": lambda gradient: gradient.norm().item(),
    "an order by the size, and by the norm where sizes are equal": lambda gradient: (
        gradient.numel(),
        gradient.norm().item(),
    ),
    "an order by the numbers that are not 0": lambda gradient: int(gradient.count_nonzero()),
}


def largest_first(found):
    """The places of these in a list of them, sorted; of equals, the first one first."""
    return tuple(sorted(range(len(found)), key=found.__getitem__, reverse=True))


def average_on_rank(code, rank, world, seeds):
    model = nn.ParameterList([torch.zeros(shape) for shape in SHAPES])
    for parameter, gradient in zip(model, gradients(seeds), strict=True):
        parameter.grad = gradient
    code.average_gradients_2(model)
    return [parameter.grad for parameter in model]


@todo(
    2,
    minutes=20,
    why=(
        "Calls are matched only by their order. An order that depends on a rank's own data (norms, a set, a file"
        " listing) makes different tensors meet; if their sizes agree, nothing fails, and the numbers are wrong."
    ),
    hints=(
        "What is the list sorted by, and is that number the same on each rank?",
        "Before the mean, gradients differ from rank to rank. Shapes do not.",
        "sorted(…, key=…, reverse=True), with the number of elements in place of the norm.",
    ),
)
def test_todo02_average_gradients(student):
    own_of = {world: [gradients(seed) for seed in student.seeds(world)] for world in (2, 3)}
    for own in own_of.values():
        for wrong, key in OWN.items():
            orders = {largest_first([key(gradient) for gradient in mine]) for mine in own}
            student.premise(len(orders) > 1, wrong)
    for world, own in own_of.items():
        seeds = student.seeds(world)
        run = student.call(average_on_rank, world=world, seeds=seeds)
        right = [sum(parts) / world for parts in zip(*own, strict=True)]
        for rank, mine in enumerate(run.evidence):
            for shape, gradient, mean in zip(SHAPES, mine, right, strict=True):
                expect(
                    torch.allclose(gradient, mean, rtol=1e-5, atol=1e-5),
                    f"on {count_of(world, 'rank')}: the gradient of shape {shape} is not the mean over the ranks",
                    mean,
                    gradient,
                    rank,
                )
        sizes = [e["bytes"] for e in run.events[0] if e["e"] == "op" and e["op"] == "all_reduce"]
        expect(sizes == sorted(sizes, reverse=True), "small gradients go before large ones", "the largest first", sizes)
    check_story(student, 2, ("shape", False), ("where the fingerprints differ", "whether DETAIL sees equal shapes"))


# ---------------------------------------------------------------------------------------------------
# 3: equally many samples


@todo(
    3,
    minutes=20,
    why=(
        "A rank with one batch more calls the collectives of one step more. Whether it happens depends on the length of"
        " the text and the number of ranks, so the run that worked last week hangs today."
    ),
    hints=(
        "For 47 samples on 2 ranks: how many does each have, and how many batches of 6 is that?",
        "Training drops the remainder before it divides the samples: the last len(order) % world samples.",
        "order[rank:stop:world], where stop is the largest multiple of world up to len(order).",
    ),
)
def test_todo03_my_part(student):
    draw = student.draw("lengths")
    for world in (1, 2, 3, 4):
        fewer, more = range(world), [world * draw.randrange(3, 9) + extra for extra in range(world)]
        for n in (*more, *fewer):
            order = draw.sample(range(n), n)
            calls = [["my_part_3", [order, rank, world]] for rank in range(world)]
            (parts,) = student.call(answers_on_rank, world=1, group=False, calls=calls).evidence
            told = f"{count_of(n, 'sample')} on {count_of(world, 'rank')}"
            expect(all(isinstance(part, list) for part in parts), f"{told}: no list", "lists", parts)
            lengths = [len(part) for part in parts]
            expect(len(set(lengths)) == 1, f"{told}: the ranks have {lengths} samples", "equally many", lengths)
            everything = [sample for part in parts for sample in part]
            expect(
                len(everything) == len(set(everything)), f"{told}: a sample is read twice", "each at most once", parts
            )
            steps = [sorted(step) for step in zip(*parts, strict=True)]
            right = [sorted(order[k : k + world]) for k in range(0, n - n % world, world)]
            expect(
                steps == right,
                f"{told}: a step does not take the samples that one process would take",
                f"first {right[0] if right else []}, {len(right)} for each rank",
                f"first {steps[0] if steps else []}, {len(steps)} for each rank",
            )
    check_story(
        student,
        3,
        (0, "train_epoch", "global_mean"),
        ("the rank with one batch too many", "the function it was in", "the function that the other rank was in"),
    )


# ---------------------------------------------------------------------------------------------------
# 4: an error that is swallowed


class Short(nn.Module):
    """A model that runs out of memory, on one rank."""

    def __init__(self, fails):
        super().__init__()
        self.weight, self.fails = nn.Parameter(torch.tensor(3.0)), fails

    def forward(self, x, y):
        if self.fails:
            self.fails = False  # once: a second try that fits would hide it
            raise RuntimeError("can't allocate memory: you tried to allocate 2814 bytes")
        return (self.weight * x - y).square().mean()


def loss_on_rank(code, rank, world, fails, x):
    model, x = Short(rank == fails), torch.tensor(x)
    try:
        loss = code.compute_loss_4(model, x, torch.zeros_like(x), Namespace(lr=0.1, batch_size=len(x)))
    except Exception as error:
        chain = []
        while error is not None:
            chain.append(f"{type(error).__name__}: {error}")
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)  # as a traceback
        return {"raised": " < ".join(chain)}
    except SystemExit as end:
        return {"ended": str(end.code)}
    loss.backward()
    return {"loss": loss.item(), "gradient": None if model.weight.grad is None else model.weight.grad.item()}


@todo(
    4,
    minutes=20,
    why=(
        "A rank that handles an error alone leaves the others in a collective. The logs show their errors, or a later"
        " one: the cause is gone from all of them."
    ),
    hints=(
        "What do the other ranks do while this one skips a batch?",
        "The rank that fails must end, with its own error; torchrun then ends the others.",
        "Remove the try, or raise again.",
    ),
)
def test_todo04_compute_loss(student):
    x = [student.draw("x").uniform(1, 2) for _ in range(3)]
    right = sum(9 * value**2 for value in x) / 3
    for fails in (None, 1):
        run = student.call(loss_on_rank, world=2, fails=fails, x=x)
        for rank, seen in enumerate(run.evidence):
            if rank == fails:
                ended = "ended" in seen
                expect(
                    "raised" in seen,
                    f"the model raises on rank {rank}, out of memory, and compute_loss_4 "
                    + ("ends the process without this error" if ended else "returns as if nothing had happened"),
                    "the error comes out",
                    f"exit code {seen['ended']}" if ended else f"a loss of {seen.get('loss')}",
                    rank,
                    "What does the log of this rank say afterwards?" if ended else "",
                )
                expect(
                    "2814 bytes" in seen["raised"],
                    "the error that comes out does not say what happened: the cause is lost",
                    "the model's error, or an error raised from it",
                    seen["raised"],
                    rank,
                )
            else:
                expect(
                    abs(seen.get("loss", 0) - right) < 1e-4 and seen.get("gradient"),
                    "where nothing fails, the loss, or its gradient, is wrong",
                    right,
                    seen.get("loss", seen),
                    rank,
                )
    check_story(student, 4, (1, 4 << 50), ("the rank", "the number of bytes"), FIXED)


# ---------------------------------------------------------------------------------------------------
# 5: where ranks meet


def batch_file_on_rank(code, rank, world):
    return str(code.batch_file_5())


@todo(
    5,
    minutes=20,
    further=True,
    why=(
        "Ranks that look for each other in different places wait for minutes, and the message names only an address. In"
        " nearly all such cases, the question is where a variable is expanded: on the first node or on each."
    ),
    hints=(
        "On which node does each line run? Text in quotes, '…', is expanded by each node's own shell.",
        'scontrol show hostnames "$SLURM_JOB_NODELIST" lists the nodes of the job, one on a line.',
        "Export MASTER_ADDR before srun, which passes the environment on; each node has nothing left to do, `:`.",
    ),
)
def test_todo05_meeting_place(student):
    (text,) = student.call(batch_file_on_rank, world=1, group=False).evidence
    unit = Unit("sbatch/when_it_hangs.sbatch", text, "")
    for nodes in stand_ins.JOBS:
        ranks = student.submit(unit, nodes)
        told = f"in a job of {count_of(nodes, 'node')}"
        expect(
            len(ranks) == nodes and not any(mine.refused for mine in ranks),
            f"{told}: not every node starts a torchrun",
            f"{nodes} torchrun",
            [mine.refused or mine.how for mine in ranks],
        )
        places = [mine.place or mine.address for mine in ranks]
        for mine, address in zip(ranks, places, strict=True):
            place = address.rpartition(":")[0]
            expect(
                is_first_node(place),
                f"{told}: node {mine.node} looks for the others at “{place}”, which is not the first node",
                first_node(unit.name),
                place or "nothing",
            )
        apart = f"{told}: the nodes look for each other at different ports"
        expect(len({*places}) == 1, apart, "one address and port", ", ".join(places))
    check_story(
        student,
        5,
        (4, 8),
        ("how many ranks wait at node 0's store", "how many ranks look where no store is"),
        "For each of the three nodes, write down what MASTER_ADDR is there, and which of them starts a store.",
    )


# ---------------------------------------------------------------------------------------------------
# 6: a worker's error


def collate_on_rank(code, rank, world, batches):
    seen = []
    for words in batches:
        samples = [(torch.tensor(row), torch.tensor(row) + 1) for row in words]
        try:
            x, y = code.collate_6(samples)
        except Exception as error:
            seen.append({"raised": f"{type(error).__name__}: {error}"})
        else:
            seen.append({"x": x.tolist(), "y": y.tolist()})
    return seen


@todo(
    6,
    minutes=15,
    why=(
        "A short batch raises no error: its mean only weighs samples differently, and the parallel run is no longer the"
        " serial one. An error that a worker catches appears in no log."
    ),
    hints=(
        "How many samples does a step have, over all ranks? See the logs.",
        "An exception that leaves collate_fn reaches the rank, with the worker's traceback. What stops it?",
        "default_collate of all samples, each of them `checked`, without any except.",
    ),
)
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


def mean_on_rank(code, rank, world, losses, targets):
    seen = []
    for number in range(len(targets)):
        row = targets[(number + rank) % len(targets)]  # each rank has a batch of its own
        losses_N = torch.tensor(losses, requires_grad=True)
        mean = code.masked_mean_7(losses_N, torch.tensor(row))
        if not isinstance(mean, torch.Tensor) or not mean.requires_grad:
            seen.append({"mean": str(plain(mean)), "gradient": None})
            continue
        mean.backward()
        seen.append({"mean": mean.detach(), "gradient": losses_N.grad})
    return seen


@todo(
    7,
    minutes=15,
    why=(
        "The mean over ranks spreads one rank's NaN to all in one step. Hiding it later (nan_to_num, a skipped step)"
        " costs the step, or makes the ranks differ; the cause is a 0/0."
    ),
    hints=(
        "What is the mean of no numbers? And its gradient?",
        "A denominator of at least 1 does not change the mean of one or more numbers.",
        "Tensor.clamp(min=…).",
    ),
)
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


def notes_on_rank(code, rank, world, log_every):
    drawn, step, model = [], 0, nn.Linear(2, 2)
    code.histograms = lambda model: drawn.append(step)
    first = [p.detach().clone() for p in model.parameters()]
    for step in range(1, 3 * log_every + 2):
        code.note_8(model, step, log_every)
        dist.all_reduce(torch.ones(1))
    same = all(torch.equal(p, was) and p.requires_grad for p, was in zip(model.parameters(), first, strict=True))
    return {"drawn": drawn, "as before": same and model.training}


@todo(
    8,
    minutes=20,
    why="Every step is as slow as the slowest rank, and all ranks show the same time: only its parts tell them apart.",
    hints=(
        "Which rank spends the least time in the part where ranks wait for each other?",
        "The docstring says in which steps to draw.",
        "step % log_every == 0.",
    ),
)
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


def windows_on_rank(code, rank, world, calls):
    """What starts_9 returns, with its dtype."""
    return [as_evidence(getattr(code, name)(*arguments)) for name, arguments in calls]


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


@todo(
    9,
    minutes=20,
    why=(
        "Ranks that read the same samples compute the same gradient: n devices do the work of one, without an error. A"
        " seed for each rank makes them differ, but then a different number of ranks is a different run."
    ),
    hints=(
        "Compare the checksums of the ranks. What in the draw depends on the rank?",
        "All ranks can make the same draw, of the whole batch, and each take a part of it.",
        "torch.randint(…, (batch_size,), …), then every world-th, starting with number rank.",
    ),
)
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


def wrap_on_rank(code, rank, world, seeds):
    torch.manual_seed(seeds)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model[1].running_mean.normal_()
    model[1].num_batches_tracked.fill_(seeds % 1000 + rank)  # the one buffer with whole numbers
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    wrapped = code.wrap_10(model, torch.device("cpu"))
    own = getattr(wrapped, "module", wrapped)
    return {
        "before": before,
        "after": {name: tensor.detach().clone() for name, tensor in own.state_dict().items()},
        "trains": all(parameter.requires_grad for parameter in own.parameters()),
    }


@todo(
    10,
    minutes=20,
    why=(
        "Equal gradients keep different weights as far apart as they were. Each rank's loss falls, but gradients of"
        " different models are averaged. A checksum of the weights, compared once, finds it."
    ),
    hints=(
        "Do the checksums of the ranks ever meet? What arrives where?",
        "broadcast writes into the tensor it is given. Which one is that, on a rank that receives?",
        "state_dict() returns the model's own tensors, already detached.",
    ),
)
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
