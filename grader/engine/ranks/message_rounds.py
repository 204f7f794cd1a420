"""Which messages the ranks sent each other, in which rounds, and whether they would get through without buffers; and
their collectives.

Pure logic over the events of a finished run. If small messages are buffered, as in MPI, ranks that all send before they
receive finish by luck; gloo in torch 2.13 buffers none, so there they are stuck at any size. A verdict must not depend
on that. So the run is rehearsed: each rank's events are replayed, and a send completes only when its receive has
started. If the replay gets stuck, the run would deadlock without buffers.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from grader.engine.ranks.diagnose import Diagnosis, Fault, Op, Where

END = {"e": "end"}


class Message(NamedTuple):
    """One message that was sent and received."""

    source: int
    target: int
    bytes: int
    round: int  # from 1: when it is sent if a message takes one unit of time, and a rank sends one at a time
    sent: float  # seconds: when the sender called
    arrived: float  # seconds: when the receiver had it


class Collective(NamedTuple):
    """One collective, as one rank took part in it."""

    rank: int
    op: str
    world: int  # ranks in its group
    bytes: int  # of the whole tensor; for an all-gather or reduce-scatter, of the rank's part
    began: float = 0.0  # seconds: when it was called
    over: float | None = None  # seconds: when the wait for it ended; None if Python did not wait
    written: bool = False  # whether its tensor was written to before that
    where: Where | None = None  # where it was started
    pieces: tuple[tuple[int, int], ...] = ()  # for an all-to-all: (rank, bytes for it), for each other rank
    written_at: Where | None = None  # where it was written to

    @property
    def sent(self) -> float:
        """The bytes that the rank sends with ring algorithms; for a broadcast or anything else, the whole tensor."""
        if self.pieces:
            return sum(nbytes for _, nbytes in self.pieces)
        rings = {"all_gather": self.world, "reduce_scatter": self.world, "all_reduce": 2.0, "all_to_all": 1.0}.get(
            self.op
        )
        return self.bytes if rings is None else rings * (self.world - 1) / self.world * self.bytes

    @property
    def least(self) -> float:
        """The rank's part of the bytes that must travel, by any algorithm: to a broadcast, a reduce and the like, each
        rank but one contributes.
        """
        rings = self.op in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
        return self.sent if rings else (self.world - 1) / self.world * self.bytes


def collectives(events: Sequence[list[dict]]) -> list[Collective]:
    """The collectives in these events, rank by rank, without those that move nothing, such as a rank's with itself
    alone.
    """
    found = []
    for number, mine in enumerate(events):
        over = {event["work"]: event["t"] for event in mine if event["e"] in ("done", "future") and "work" in event}
        written = {event["work"]: event.get("where") for event in mine if event["e"] == "changed" and "work" in event}
        for event in mine:
            if event["e"] == "op" and "id" not in event and event["bytes"] and len(event["group"]) > 1:
                work = event.get("work")
                to = tuple(
                    (rank, nbytes) for rank, nbytes in zip(event["group"], event.get("pieces", ())) if rank != number
                )
                found.append(
                    Collective(
                        number,
                        event["op"],
                        len(event["group"]),
                        event["bytes"],
                        event["t"],
                        over.get(work),
                        work in written,
                        event["where"],
                        to,
                        written.get(work),
                    )
                )
    return found


def cases(events: Sequence[list[dict]]) -> list[list[list[dict]]]:
    """The events of each rank (inner list) in each of the cases that a check marked (outer list)."""
    found: list[list[list[dict]]] = []
    for number, mine in enumerate(events):
        case = -1
        for event in mine:
            if event["e"] == "mark":
                case += 1
                if len(found) <= case:
                    found.append([[] for _ in events])
            elif case >= 0 and event["e"] != "end":
                found[case][number].append(event)
    return found


def rehearse(events: Sequence[list[dict]]) -> tuple[list[Message], Fault | None]:
    """The messages in these events, in rounds; and the deadlock, if there would be one without buffers."""
    ends = [{event["of"]: event for event in mine if event["e"] == "done" and "of" in event} for mine in events]
    left = [deque(with_source(event, ends[n]) for event in [*mine, END]) for n, mine in enumerate(events)]
    diagnosis = Diagnosis(len(events))
    to_send: list[list[Op]] = [[] for _ in events]  # calls of each rank, in order
    over: set[tuple[int, int]] = set()  # (rank, its message)
    messages: list[Message] = []
    number_of_round = 0
    while True:
        for number, rank in enumerate(diagnosis.ranks):  # each as far as it gets
            while left[number] and (rank.waits_for is None or (number, rank.waits_for.event["id"]) in over):
                event = left[number].popleft()
                diagnosis.add(number, event)
                if event["e"] == "end":
                    rank.gone = "it has finished"
                elif event.get("op") == "send":
                    to_send[number].append(rank.messages[event["id"]])
        going = [next((op for op in calls if not diagnosis.missing(op)), None) for calls in to_send]
        if not any(going):
            return messages, diagnosis.deadlock()
        number_of_round += 1
        for source, op in enumerate(going):
            if op:
                target = op.event["peer"]
                received = diagnosis.pairs[op.event["name"], source, target, op.event["tag"]]["recv"][op.index].event[
                    "id"
                ]
                over |= {(source, op.event["id"]), (target, received)}
                to_send[source].remove(op)
                arrived = ends[target].get(received, op.event)["t"]
                messages.append(Message(source, target, op.event["bytes"], number_of_round, op.event["t"], arrived))


def with_source(event: dict, ends: dict[int, dict]) -> dict:
    """Fill in the source of receives from any source: it is known only when they end."""
    if "id" in event and event["peer"] is None:
        return {**event, "peer": ends.get(event["id"], {}).get("source", 0)}
    return event


def least_bytes(events: Sequence[list[dict]]) -> int:
    """The least number of bytes that must have travelled between the ranks if these events are true: the sum of what
    each rank must have sent.
    """
    sent = sum(event["bytes"] for mine in events for event in mine if event["e"] == "op" and event["op"] == "send")
    return int(sent + sum(call.least for call in collectives(events)))


class Loose(NamedTuple):
    """A call that the rank did not complete."""

    rank: int
    op: str
    peer: int
    where: Where | None  # where it was started
    written_at: Where | None = None  # where its tensor was written to before it completed

    @property
    def call(self) -> str:
        return f"i{self.op} {'to' if self.op == 'send' else 'from'} rank {self.peer}"


def left_in_flight(events: Sequence[list[dict]]) -> list[Loose]:
    """Messages that were never waited for."""
    return [
        loose
        for number, mine in enumerate(events)
        for loose in _calls(number, mine, {e["of"] for e in mine if e["e"] == "done" and "of" in e}, False)
    ]


def written_in_flight(events: Sequence[list[dict]]) -> list[Loose]:
    """Messages whose tensor was written to before they completed."""
    found = []
    for number, mine in enumerate(events):
        at = {e["of"]: e.get("where") for e in mine if e["e"] == "changed" and "of" in e}
        for event in mine:
            if event.get("id") in at and "id" in event:
                found.append(Loose(number, event["op"], event["peer"], event["where"], at[event["id"]]))
    return found


def _calls(number: int, events: list[dict], chosen: set[int], among: bool) -> list[Loose]:
    """The messages of one rank that are, or are not, `among` the chosen ones."""
    return [
        Loose(number, event["op"], event["peer"], event["where"])
        for event in events
        if "id" in event and (event["id"] in chosen) == among
    ]
