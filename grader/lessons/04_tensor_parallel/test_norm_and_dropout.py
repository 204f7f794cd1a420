"""Checks of 04_tensor_parallel, TODOs 11 and 12: norm and dropout.

| TODO | achievement | evidence | needs |
|------|-------------|----------|-------|
| 11 | the norm, each gradient once | values; the model, clipped, with and without sequence parallelism | 2 to 9 |
| 12 | dropout alike, and different | masks of both generators on 4 ranks; where which is used |  |
"""

import math

import torch

from grader.kit import check_sent, check_tensor, count_of, expect, hinted, numbers_in, ring_bytes, todo

from .common import GIVEN, REL, check_training, in_one_run, training_job
from .ranks import CHOSEN, CLIP, MANY, PLACES, SHARDS, ZERO, dropped_on_rank, gradients_for, norm_on_rank

# ---------------------------------------------------------------------------------------------------
# TODOs 7, 9 and 11: the whole model


def whole_norm(chosen, seeds, common, dtype):
    """The norm of the chosen gradients over all ranks; those that are not sharded count once."""
    squares = 0.0
    for rank, seed in enumerate(seeds):
        every = gradients_for(seed, common, dtype, rank)
        parts = [every[n] for n in chosen if every[n].grad is not None]
        squares += sum(p.grad.double().square().sum().item() for p in parts if p.sharded or rank == 0)
    return math.sqrt(squares)


def counted(norm, chosen, seeds, common, dtype):
    """What a wrong norm counts too often or not at all; "" if no single one of these mistakes gives it."""
    shards, copies = (
        whole_norm([n for n in chosen if (n in (*SHARDS, ZERO)) == cut], seeds, common, dtype) ** 2
        for cut in (True, False)
    )
    named = {
        ": each copy is counted once on every rank": math.sqrt(shards + len(seeds) * copies),
        ": copies are left out": math.sqrt(shards),
        ": shards are left out": math.sqrt(copies),
        ": that is its square": shards + copies,
        ": two norms are added, not their squares": math.sqrt(shards) + math.sqrt(copies),
    }
    found = [words for words, wrong in named.items() if math.isclose(norm, wrong, rel_tol=REL)]
    return found[0] if len(found) == 1 else ""


@todo(11, needs=(2, 3, 4, 5, 6, 7, 8, 9))
def test_todo11_norm(student):
    common = student.draw("common").randrange(1 << 40)
    jobs = []
    for world, dtype in ((1, "float32"), (2, "bfloat16"), (3, "float32"), (4, "float32")):
        jobs.append((world, norm_on_rank, dict(common=common, dtype=dtype), dtype))
    jobs += [training_job(student, world, clip=CLIP) for world in (2, 3)]
    jobs.append(training_job(student, 4, sequence=True, clip=CLIP))
    done = in_one_run(student, jobs)
    for world, dtype, ranks, marked in done[norm_on_rank]:
        seeds = student.seeds(4)[:world]
        for number, chosen in enumerate(CHOSEN):
            what = (
                "shards, copies and a frozen one",
                "shards",
                "copies",
                "a frozen one",
                "a shard that is zero on all ranks but 0",
            )[number]
            told = f"gradient_norm of {what}, {dtype}, on {count_of(world, 'rank')}"
            right = whole_norm(chosen, seeds, common, dtype)
            for rank, seen in enumerate(ranks):
                mine = seen[number]
                expect(
                    not mine["fault"],
                    f"{told} is {mine['fault']} on rank {rank}",
                    "a 0-dim tensor",
                    mine["fault"],
                    rank,
                    "The norm is one number, also where there is nothing to add up. As what do the sums start?",
                )
                expect(
                    math.isclose(mine["norm"].item(), right, rel_tol=REL, abs_tol=1e-9),
                    f"{told} is wrong on rank {rank}{counted(mine['norm'].item(), chosen, seeds, common, dtype)}",
                    right,
                    mine["norm"].item(),
                    rank,
                )
                expect(mine["kept"], f"{told}: the gradients are changed by it", "as they were", "changed", rank, GIVEN)
                expect(
                    mine["dtype"] == "float32",
                    f"{told} has dtype {mine['dtype']} on rank {rank}",
                    "float32",
                    mine["dtype"],
                    rank,
                    "The result has one dtype, whatever the gradients have. In which one are squares taken and added"
                    " up?",
                )
                calls = [event for event in marked[2 * number][rank] if event["e"] == "op"]
                expect(
                    len(calls) <= 1 and sum(map(numbers_in, calls)) <= 1,
                    f"{told}: rank {rank} sends more than one message of one number",
                    "one call of one number",
                    f"{len(calls)} calls of {sum(map(numbers_in, calls))} numbers",
                    rank,
                    ONE_NUMBER,
                )
            if 1 in chosen:
                due = ring_bytes(8, world), ring_bytes(4, world)
                check_sent(told, marked[2 * number], *due, "one number is enough", hint=ONE_NUMBER)
    check_training(done)


ONE_NUMBER = "Of all its shards, what must a rank tell the others? What can it add up before it sends anything?"


# ---------------------------------------------------------------------------------------------------
# TODO 12: dropout


@todo(12)
def test_todo12_dropout(student):
    world, draw = 4, student.draw("dropout")
    p, seed = draw.choice((0.1, 0.25, 0.4)), draw.randrange(1 << 30)
    ranks = student.call(dropped_on_rank, world=world, group=False, seed=seed, p=p).evidence
    for rank, mine in enumerate(ranks):
        expect(
            mine["made"],
            f"make_generators on rank {rank} does not return two generators",
            "two torch.Generator",
            "something else",
            rank,
            "Two generators, the common one first. What does manual_seed of a generator return?",
        )
        for kind, torchs_own in zip(("common", "own"), mine["torch's own"]):
            message = (
                f"the {kind} generator on rank {rank} is torch's default one: every other draw on the rank advances it"
            )
            expect(not torchs_own, message, "a new torch.Generator", "torch.default_generator", rank, GLOBAL)
        told = f"dropout with p = {p} on rank {rank}"
        same, hint = "a tensor of the same shape", PRODUCT
        expect(not mine["fault"], f"{told} returns {mine['fault']}", same, mine["fault"], rank, hint)
        for mask in mine["masks"]:
            check_mask(told, mine["x"], mask, p, rank)
        check_repeated(told, mine, rank)
    check_same_masks(ranks)
    check_many(ranks[0]["of many"])
    check_alike(ranks[0]["alike"])


GLOBAL = "Which call makes a generator, and which one seeds the generator that everything else draws from?"


SCALED = "What stays is scaled so that the mean is as before. By what, if a fraction p is gone?"


EACH = "With which probability is each number dropped, whatever happens to the others?"


PRODUCT = "Dropout is a product of x with a mask of its shape. Which line makes something else of it?"


def check_mask(told, x, mask, p, rank):
    """Numbers that are dropped, in the share that is asked for; the others, scaled, forward and backward alike."""
    dropped = mask["y"] == 0
    kept = (~dropped).float() / (1 - p)
    check_tensor(f"{told}: what stays, which is divided by 1 - p,", mask["y"], x * kept, 1e-5, rank, hint=SCALED)
    for dim, alike in (("first", (dropped == dropped[:1]).all()), ("second", (dropped == dropped[:, :1]).all())):
        message = f"{told}: all entries along the {dim} dimension are dropped together"
        expect(not alike, message, "a draw for each number", "a mask that repeats", rank, EACH)
    share = dropped.float().mean().item()
    # Five standard deviations of 2000 draws.
    near_p = abs(share - p) < 5 * math.sqrt(p * (1 - p) / 2000)
    expect(near_p, f"{told}: {share:.1%} of the numbers are dropped", f"about {p:.0%}", f"{share:.1%}", rank, EACH)
    than = "what the same mask gives"
    check_tensor(f"{told}: the gradient", mask["gradient"], kept, 1e-5, rank, than=than, hint=PRODUCT)


SEEDS = (
    "Write down the seeds of both generators on ranks 0, 1 and 2, for two values of `seed`. Which must be equal, and"
    " which must all differ?"
)


def check_repeated(told, mine, rank):
    """What one rank draws again: from the same generator, with p = 0, in bfloat16, from the same seed, from another."""
    for kind, (first, second) in (("common", (0, 1)), ("own", (2, 3))):
        expect(
            not torch.equal(mine["masks"][first]["y"], mine["masks"][second]["y"]),
            f"{told} draws the same mask twice from the {kind} generator",
            "the generator moves on",
            "the same mask",
            rank,
            "From which generator does the mask come: the one that is given, or one that this very call makes?",
        )
    none = f"dropout with p = 0 changes its input on rank {rank}"
    hint = "With p = 0 nothing may be dropped. Which is the smallest number that torch.rand draws?"
    expect(mine["none"], none, "the input", "something else", rank, hint)
    expect(
        mine["half"] == "torch.bfloat16",
        "dropout of a bfloat16 tensor has a different dtype",
        "bfloat16",
        mine["half"].removeprefix("torch."),
        rank,
        "A product of two dtypes has the larger one. Which of the factors is not in the dtype of x?",
    )
    told = f"the same seed gives rank {rank} a different mask the second time"
    expect(mine["again"], told, "the same mask", "a different one", rank, SEEDS)
    expect(
        not mine["seed"],
        f"a different seed gives rank {rank} the same mask",
        "a different mask",
        "the same",
        rank,
        SEEDS,
    )


@hinted(SEEDS)
def check_same_masks(ranks):
    """The common generator gives all ranks one mask, their own give each a different one."""
    for rank, mine in enumerate(ranks):
        common, own = mine["masks"][0]["y"], mine["masks"][2]["y"]
        expect(
            torch.equal(common, ranks[0]["masks"][0]["y"]),
            f"the generator that should be the same on all ranks gives rank {rank} a different mask from rank 0's",
            "the same mask",
            "a different one",
            rank,
        )
        told = f"rank {rank}'s own generator draws the common mask"
        expect(not torch.equal(own, common), told, "a different one", "the same", rank)
        for other in range(rank):
            told = f"ranks {other} and {rank} draw the same mask from their own generators"
            expect(not torch.equal(own, ranks[other]["masks"][2]["y"]), told, "different masks", "the same", rank)


@hinted("Here are many ranks, and once the seed is 0. Which two of the numbers that you seed with are equal?")
def check_many(draws):
    """The generators of many ranks, for two seeds: no two of them draw the same."""
    for seed_zero, (common, *drawn) in enumerate(draws):
        told = f"of {MANY} ranks{', with seed 0' if seed_zero else ''}"
        twins = [r for r in range(MANY) if drawn[r] in drawn[:r]]
        first, second = (drawn.index(drawn[twins[0]]), twins[0]) if twins else (0, 0)
        expect(
            not twins,
            f"{told}, ranks {first} and {second} draw the same from their own generators",
            f"{MANY} different generators",
            f"{len(set(drawn))} different ones",
        )
        expect(
            common not in drawn,
            f"{told}, rank {drawn.index(common) if common in drawn else 0}'s own generator draws like the common one",
            "a different one",
            "the same",
        )


def check_alike(answers):
    for place in PLACES:
        for sequence, seen in zip((False, True), answers[place]):
            right = place in ("embedding", "residual") and not sequence
            expect(
                seen is right,
                f"draws_alike({place!r}, sequence={sequence}) is wrong: there "
                f"{'every rank has the same numbers' if right else 'each rank has its own part'}",
                right,
                seen,
            )
