"""Checks of 02_data_parallel, TODOs 8 and 9: unequal shares.

| TODO | achievement                              | evidence                                                                  | needs |
|------|------------------------------------------|---------------------------------------------------------------------------|-------|
| 8    | unequal shares                           | gradients of shares of 4, 0 and 3 samples; the factor of 70,001; bytes    |       |
| 9    | torch's own                              | as 6 and 7, from ranks that begin apart                                   |       |
"""  # noqa: E501

import math

import torch

from grader.kit import PARTED, expect, hinted, numbers_in, ones_in_turn, operations, ring_bytes, sent_by, todo

from .common import REL, check_gradients, check_scaled, check_waited, fewest, gradient_bytes, ops, parts, serial, upto
from .ranks import (
    CAP,
    COUNTS,
    TORCH,
    WORLD,
    factor_on_rank,
    gradients,
    made_model,
    micro_batch,
    torch_on_rank,
    weighted_on_rank,
)

# ---------------------------------------------------------------------------------------------------
# TODO 8: unequal shares


# Tokens of 4 ranks: neither they nor their sum need fit into a byte or float16.
MANY = (((70_001, 300, 0, 5), "float32"), ((100, 100, 60, 90), "float32"), ((70_001, 300, 0, 500), "float16"))


def serial_shares(counts, seeds):
    model = made_model().eval()
    x, y = (
        torch.cat(shares)
        for shares in zip(
            *(micro_batch(seed, 0, samples=count) for seed, count in zip(seeds, counts, strict=True) if count)
        )
    )
    model(x, y).backward()
    return gradients(model)


@todo(8)
def test_todo8_weighted(student):
    seeds = student.seeds(WORLD)
    with hinted(PARTED, "hang"):
        run = student.call(weighted_on_rank, world=WORLD, seed=seeds)
    ranks = run.evidence
    for case, counts in enumerate((COUNTS, (2, 2, 2))):
        what = f"weighted, on ranks with {', '.join(map(str, counts))} samples"
        right = student.reference(serial_shares, counts=counts, seeds=[*seeds])
        check_waited(what, [parts(mine)[2 * case] for mine in run.events])
        for rank, seen in enumerate(ranks):
            check_gradients(what, seen[case], right, rank)
            calls = ops(parts(run.events[rank])[2 * case])
            budget = ring_bytes(sum(call["bytes"] for call in calls), WORLD)  # a gather of one from each sends more
            expect(
                len(calls) <= 1 and sum(map(numbers_in, calls)) <= 1 and sent_by(calls, rank) <= budget + 0.5,
                f"{what}: rank {rank} sends more than an all-reduce of one number does",
                "one all-reduce of one number",
                f"{len(calls)} calls of {sum(map(numbers_in, calls))} numbers, by {operations(calls)}",
                rank,
                "What must a rank know of all the others together, to find its factor?",
            )
    shares = [*MANY, *((counts, "float32") for counts in ones_in_turn(student.draw("single"), 4))]
    for rank, factors in enumerate(student.call(factor_on_rank, world=4, shares=shares).evidence):
        for (counts, dtype), factor in zip(shares, factors, strict=True):
            right = counts[rank] * 4 / sum(counts)
            in_dtype = "" if dtype == "float32" else f", in {dtype},"
            expect(
                math.isclose(factor, right, rel_tol=REL if dtype == "float32" else 4e-3),  # float16 keeps 1e-3
                f"weighted, on 4 ranks with {', '.join(f'{n:,}' for n in counts)} tokens: the loss{in_dtype} of rank"
                f" {rank} is multiplied by the wrong factor. Is it N times its count over all counts, and can their"
                " dtype hold such numbers?",
                right,
                factor,
                rank,
                "What is the largest number that a tensor of this dtype can hold? And in which dtype are the counts"
                " added up?",
            )


# ---------------------------------------------------------------------------------------------------
# TODO 9: torch's own


@todo(9)
def test_todo9_torch(student):
    world = 2
    seeds = student.seeds(world)
    run = student.call(torch_on_rank, world=world, seed=seeds)
    ranks = run.evidence
    sizes, first = gradient_bytes(), dict(made_model().named_parameters())
    for case, passes in enumerate(TORCH):
        what = f"with_torch on {len(passes)} micro-batches" + (
            ", and rank 1 uses a layer in the first only" if case else ", and two of them are the same"
        )
        right = student.reference(serial, passes=passes, seeds=[*seeds])
        for rank, seen in enumerate(ranks):
            equal = all(torch.equal(seen[case]["weights"][name], weight) for name, weight in first.items())
            told = f"{what}: the weights of rank {rank} and of rank 0 differ"
            hint = "Before, you made the first weights equal yourself. What in DDP does that, and for which model?"
            expect(equal, told, "rank 0's weights", "different", rank, hint)
        for rank, seen in enumerate(ranks):
            mine = seen[case]
            expect(
                mine["kind"] == "DistributedDataParallel" and mine["wraps"],
                f"{what}: rank {rank} does not return the given model in a DistributedDataParallel",
                "DistributedDataParallel",
                mine["kind"],
                rank,
            )
            passes_seen = parts(parts(run.events[rank])[case], "backward")
            expect(
                len(passes_seen) > 0, f"{what}: rank {rank} makes no backward pass", f"{len(passes)} passes", 0, rank
            )
            for number, quiet in enumerate(passes_seen[:-1], start=1):
                expect(
                    not reduced(quiet),
                    f"{what}: rank {rank} sends gradients in backward pass {number} of {len(passes_seen)}; only the"
                    " last one needs to",
                    "none",
                    f"{sum(reduced(quiet))} bytes",
                    rank,
                    "One method of DDP is your `sync = False`. What must be inside of it: the backward pass alone?",
                )
            check_scaled(what, mine["grads"], right, rank, len(passes))
            with hinted("Which module is called in each pass: the model, or what knows of the other ranks?"):
                check_gradients(what, mine["grads"], right, rank, world)
            check_buckets(what, passes_seen[-1], sizes, rank)


def check_buckets(what, last_pass, sizes, rank):
    """Each gradient is sent once, in few messages of about the cap's size, and before the backward pass is over."""
    nbytes = sum(sizes)
    sent = reduced(last_pass)
    expect(
        sum(sent) <= nbytes,
        f"{what}: rank {rank} gives {sum(sent)} bytes of gradients to its all-reduces",
        f"{nbytes} bytes, each gradient once",
        sum(sent),
        rank,
    )
    expect(
        len(sent) > 1 and max(sent) < 2 * CAP,
        f"{what}: rank {rank} sends buckets of {', '.join(map(str, sent))} bytes where the cap is {CAP}",
        f"buckets of about {CAP} bytes",
        f"{len(sent)} buckets",
        rank,
    )
    # torch closes a bucket a little later than `assign_buckets` does, and its first bucket is small
    most = fewest(sizes, CAP) + 1
    expect(
        len(sent) <= most,
        f"{what}: rank {rank} sends its gradients in {len(sent)} messages where buckets of {CAP} bytes need"
        f" {most} at most",
        f"at most {most}",
        len(sent),
        rank,
    )
    expect(
        bool(reduced(upto(last_pass, "backward over"))),
        f"{what}: rank {rank} begins to send gradients after the last backward pass, not in it",
        "messages in the last pass",
        "none",
        rank,
        "The last pass is the one that sends. Is it outside of all that keeps DDP from sending?",
    )


def reduced(events):
    """Bytes of each all-reduce of floating-point numbers: a bitmap of used parameters is none."""
    return [
        event["bytes"] for event in ops(events) if event["op"] == "all_reduce" and event["dtype"].startswith("float")
    ]
