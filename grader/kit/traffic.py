"""Bytes that ranks send, in collectives and in messages; and the budgets for them."""

import math
from collections.abc import Sequence

import torch

from grader.engine.judge.verdict import count_of, expect
from grader.engine.ranks.message_rounds import Collective, collectives

ROOTED = ("broadcast", "reduce", "scatter", "gather")  # collectives in which one rank differs from the others


def sent_by(mine: list[dict], rank: int) -> float:
    """Bytes that a rank sends in its events. Collectives are done by rings; one with a root sends the whole tensor."""
    messages = sum(event["bytes"] for event in mine if event["e"] == "op" and event["op"] == "send")
    return messages + sum(call.sent for call in collectives([[]] * rank + [mine]))


def moved_by(mine: list[dict], rank: int) -> float:
    """Bytes that a rank moves: as `sent_by`, but a broadcast counts where it arrives, a sum towards one rank where it
    leaves, a message where it arrives.
    """
    total = sum(call.sent for call in collectives([[]] * rank + [mine]) if call.op not in ROOTED)
    for event in mine:
        if event["e"] == "op" and event["op"] == "recv":
            total += event["bytes"]
        elif event["e"] == "op" and event["op"] in ROOTED and len(event["group"]) > 1:
            root = event["group"][int(event["detail"].removeprefix("root "))]
            total += event["bytes"] if rank != root else 0
    return total


def numbers_in(event: dict) -> int:
    """How many numbers a rank gives to a call, whatever their dtype."""
    return event["bytes"] // getattr(torch, event["dtype"]).itemsize if event["bytes"] else 0


def operations(mine: list[dict]) -> str:
    """What a rank calls to send, by name."""
    ops = {event["op"] for event in mine if event["e"] == "op" and event["op"] != "recv" and event["bytes"]}
    return " and ".join(sorted(ops)) or "nothing"


def ring_bytes(nbytes: float, world: int) -> float:
    """Bytes that a rank sends in an all-reduce of so many."""
    return 2 * (world - 1) / world * nbytes


def check_calls(told: str, calls: Sequence[Collective], most: int, why: str) -> None:
    """No rank makes more than `most` of these collectives. Where one message is enough, a second for a number beside
    it costs nothing that could be measured; one for each weight does.
    """
    for rank in sorted({call.rank for call in calls}):
        made = sum(call.rank == rank for call in calls)
        expect(made <= most, f"{told} rank {rank} calls {made} collectives {why}", f"at most {most}", made, rank)


def check_parts_travel(told: str, events: Sequence[list[dict]], due: float, steps: int) -> None:
    """Where the parallel run must equal the serial one, each rank does a part of it: ranks that each compute all of it
    have its numbers, too, and send nothing.

    `due`: bytes that each rank sends in these steps at least. Half is asked for, which is less than any other way
    needs; and one call in each step.
    """
    check_sent(told, events, math.inf, due / 2)
    for rank, mine in enumerate(events):
        calls = sum(e["e"] == "op" and e["op"] != "recv" and e["bytes"] > 0 for e in mine)
        expect(
            calls >= steps,
            f"{told}: rank {rank} makes {count_of(calls, 'call')} to send, in {count_of(steps, 'step')}",
            f"at least {steps}",
            calls,
            rank,
        )


def check_sent(
    told: str,
    events: Sequence[list[dict]],
    most: float | Sequence[float],
    least: float | Sequence[float] = 0.0,
    why: str = "fewer are enough",
    ranks: Sequence[int] | None = None,
    hint: str = "",
) -> None:
    """`most` and `least` are bytes that each rank sends, or each of these ranks: a number for all, or one for each."""
    for rank in range(len(events)) if ranks is None else ranks:
        limit, due = (bound if isinstance(bound, (int, float)) else bound[rank] for bound in (most, least))
        sent, by = sent_by(events[rank], rank), operations(events[rank])
        expect(
            sent <= limit + 0.5,
            f"{told}: rank {rank} sends {sent:,.0f} bytes, by {by}; {why}",
            f"at most {limit:,.0f} bytes",
            f"{sent:,.0f} bytes",
            rank,
            hint,
        )
        expect(
            sent >= due - 0.5,
            f"{told}: rank {rank} sends only {sent:,.0f} bytes, by {by}",
            f"{due:,.0f} bytes or more",
            f"{sent:,.0f} bytes",
            rank,
            hint,
        )
