"""Checks of 06_context_parallel, TODO 6: ulysses.

| TODO | achievement                 | evidence                                                         | needs   |
|------|-----------------------------|------------------------------------------------------------------|---------|
| 6    | Ulysses                     | both swaps, values, gradients on 1 to 8 ranks; bytes sent, alive |         |
"""

import torch

from grader.kit import cases, check_delivery, collectives, expect, todo

from .common import TRACKED, check_gradients, check_part, check_refused, nbytes, some_ranks, spoken, tolerance, whole
from .ranks import DTYPES, draw, swaps_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 6: Ulysses


# Ranks -> heads, numbers per head. One of 4 to 7 is drawn. On 8 ranks the live bytes are checked; there a head has so
# many numbers that the scores, which a student may hold, are small in comparison.
ULYSSES = {1: (3, 4), 2: (4, 4), 3: (6, 4), 4: (8, 4), 5: (5, 4), 6: (12, 4), 7: (7, 4), 8: (8, 64)}


# What may be alive at a time, in multiples of one rank's queries, and of the scores of its heads. On 8 ranks the
# solution needs 11 in the forward pass and 15 in the backward pass; with queries, keys and values in one tensor it is
# 17. An answer that makes room for all heads of all tokens needs 32 and 45.
ALIVE, ALIVE_SCORES = 20, 8


@todo(6)
def test_todo6_ulysses(student):
    pick = student.draw("ulysses")
    for world in student.several((1, 2, 3, some_ranks(student, "ulysses"), 8), but=(1, 8)):
        heads, numbers_a_head = ULYSSES[world]
        shape = (pick.randrange(1, 3), heads, pick.randrange(2, 4), numbers_a_head)
        seeds, (B, H, T, K) = student.seeds(world), shape
        right = student.reference(whole, seeds=[*seeds], shape=shape, loud=1.0, dealt="in order")
        dtype = "float64" if world == 2 else "float32"
        run = student.call(swaps_on_rank, world=world, seed=seeds, shape=shape, dtype=dtype)
        rel = tolerance(dtype, right["largest"])
        everyones = torch.cat([draw(seed, shape, dtype, 1)[0] for seed in seeds], dim=2)
        of_heads = torch.cat([draw(seed + 1, (B, H // world, world * T, K), dtype, 1)[0] for seed in seeds], dim=1)
        told = spoken(shape, dtype, world)
        for rank, mine in enumerate(run.evidence):
            group = slice(rank * H // world, (rank + 1) * H // world)
            for name, got, good in (
                ("tokens_to_heads", mine["there"], everyones[:, group]),
                ("heads_to_tokens", mine["back"], of_heads[:, :, rank * T : (rank + 1) * T]),
            ):
                check_part(f"what {name} returns on {told},", got, good.double(), 0.0, rank, dtype)
            what, good = f"the output of ulysses on {told}", right["ranks"][rank]["out"]
            check_part(what, mine["out"], good, 4 * rel, rank, dtype, hint=SWAPPED)
            expect(
                mine["learns"],
                f"ulysses on {told}: the output on rank {rank} needs no gradient, though q, k and v do",
                "requires_grad",
                "none",
                rank,
                TRACKED,
            )
        grads = [mine["grads"] for mine in run.evidence]
        check_gradients(f"ulysses on {told}", grads, right["ranks"], 16 * rel, dtype, SWAPPED_BACK)
        unit = nbytes(shape, dtype)
        for direction, events in zip(("forward", "backward"), cases(run.events), strict=True):
            check_swaps(f"the {direction} pass of ulysses on {told}", events, 4 * (world - 1) / world * unit)
        if world == 8:
            scores = B * (H // world) * (world * T) ** 2 * DTYPES[dtype].itemsize
            check_alive(told, run.evidence, unit, ALIVE * unit + ALIVE_SCORES * scores)
    check_refused(student, "ulysses", "head", parts=1)


SWAPPED = "Both exchanges are right. What goes through the first, what is computed with all tokens, what comes back?"


SWAPPED_BACK = (
    "The forward pass is right. Where must the gradient of what was swapped go, and which exchange takes it there?"
)


SHARE_SENT = "How many tensors are exchanged, and which part of each can stay on its rank?"


def check_swaps(told, events, budget):
    """Each rank sends the bytes that the others need from it, and no more."""
    messages, calls = check_delivery(told, events), collectives(events)
    for rank in range(len(events)):
        waits = [event for event in events[rank] if event["e"] == "op" and event["op"] == "barrier"]
        expect(
            not waits,
            f"{told}: rank {rank} also waits at a barrier, though the exchanges wait for everything needed",
            "no barrier",
            f"{len(waits)} of them",
            rank,
            "An exchange ends when its tensors are there. What else would a rank wait for?",
        )
        sent = sum(message.bytes for message in messages if message.source == rank)
        sent += sum(call.sent for call in calls if call.rank == rank)
        expect(
            sent <= budget * 1.001,
            f"{told}: rank {rank} sends {sent:,.0f} bytes, more than the budget",
            f"at most {budget:,.0f} bytes",
            f"{sent:,.0f} bytes",
            rank,
            SHARE_SENT,
        )
        expect(
            sent >= budget * 0.999,
            f"{told}: rank {rank} sends {sent:,.0f} bytes, which is less than the others need from it",
            f"{budget:,.0f} bytes",
            f"{sent:,.0f} bytes",
            rank,
            SHARE_SENT,
        )


def check_alive(told, ranks, unit, most):
    for rank, mine in enumerate(ranks):
        for direction, alive in mine["most"].items():
            expect(
                alive <= most,
                f"the {direction} pass of ulysses on {told}: rank {rank} has {alive:,} bytes alive at a time; its "
                f"queries have {unit:,}. It needs its own heads of all tokens, and its own tokens of all heads: a "
                "few copies of these, and the scores",
                f"at most {most:,} bytes",
                f"{alive:,} bytes",
                rank,
                "Which tensor has all heads of all tokens? No rank needs that at any moment.",
            )
