"""What messages the ranks sent one another, in which rounds, and whether they get through whatever is buffered; and their collectives.

Pure logic over the events of a run that has ended. Where small messages are stored on the way, as MPI does, ranks that all
send before they receive come through, by luck; gloo of torch 2.13 stores none, so there they are stuck at any size. What a
verdict says must not depend on it. So the run is rehearsed: each rank's events once more, where a send is over when its
receive has begun, and not before. If that gets stuck, it is the deadlock that it would be without buffers.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from grader.engine.diagnose import Fault, Observer, Op, Where

END = {"e": "end"}


class Message(NamedTuple):
    """One message that was sent and received."""

    source: int
    target: int
    bytes: int
    round: int  # from 1: when it goes if a message takes one unit of time, and a rank sends one at a time
    sent: float  # seconds: when the sender called,
    arrived: float  # and when the receiver had it


def cases(events: Sequence[list[dict]]) -> list[list[list[dict]]]:
    """The events of each rank (inner list) in each case that a check marked (outer list)."""
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
    """The messages in these events, in rounds; and the deadlock if there would be one without buffers."""
    ends = [{event["of"]: event for event in mine if event["e"] == "done" and "of" in event} for mine in events]
    left = [deque(with_source(event, ends[n]) for event in [*mine, END]) for n, mine in enumerate(events)]
    observer = Observer(len(events))
    to_send: list[list[Op]] = [[] for _ in events]  # calls of each rank, first come, first served
    over: set[tuple[int, int]] = set()  # (rank, its message)
    messages: list[Message] = []
    number_of_round = 0
    while True:
        for number, rank in enumerate(observer.ranks):  # each as far as it comes
            while left[number] and (rank.waits_for is None or (number, rank.waits_for.event["id"]) in over):
                event = left[number].popleft()
                observer.add(number, event)
                if event["e"] == "end":
                    rank.gone = "it has finished"
                elif event.get("op") == "send":
                    to_send[number].append(rank.messages[event["id"]])
        going = [next((op for op in calls if not observer.missing(op)), None) for calls in to_send]
        if not any(going):
            return messages, observer.deadlock()
        number_of_round += 1
        for source, op in enumerate(going):
            if op:
                target = op.event["peer"]
                received = observer.pairs[op.event["name"], source, target, op.event["tag"]]["recv"][op.index].event["id"]
                over |= {(source, op.event["id"]), (target, received)}
                to_send[source].remove(op)
                arrived = ends[target].get(received, op.event)["t"]
                messages.append(Message(source, target, op.event["bytes"], number_of_round, op.event["t"], arrived))


def with_source(event: dict, ends: dict[int, dict]) -> dict:
    """A receive that took from anybody: whose message it was is known by its end."""
    if "id" in event and event["peer"] is None:
        return {**event, "peer": ends.get(event["id"], {}).get("source", 0)}
    return event


class Collective(NamedTuple):
    """One collective that one rank called."""

    rank: int
    op: str
    bytes: int
    began: float  # seconds: when it was called,
    over: float | None  # and when the wait for it was over; None where Python did not wait
    written: bool  # whether its tensor was written to before that
    where: Where | None


def collectives(events: Sequence[list[dict]]) -> list[Collective]:
    """All of them, rank by rank in the order of the calls."""
    found = []
    for number, mine in enumerate(events):
        over = {event["work"]: event["t"] for event in mine if event["e"] in ("done", "future") and "work" in event}
        written = {event["work"] for event in mine if event["e"] == "changed" and "work" in event}
        found += [Collective(number, event["op"], event["bytes"], event["t"], over.get(event["work"]), event["work"] in written, event["where"])
                  for event in mine if event["e"] == "op" and "work" in event]
    return found


class Loose(NamedTuple):
    """A call that the rank did not see through."""

    rank: int
    op: str
    peer: int
    where: Where | None

    @property
    def call(self) -> str:
        return f"i{self.op} {'to' if self.op == 'send' else 'from'} rank {self.peer}"


def left_in_flight(events: Sequence[list[dict]]) -> list[Loose]:
    """Messages that nobody waited for."""
    return [loose for number, mine in enumerate(events) for loose in _calls(number, mine, {e["of"] for e in mine if e["e"] == "done" and "of" in e}, False)]


def written_in_flight(events: Sequence[list[dict]]) -> list[Loose]:
    """Messages whose tensor was written to before they were over."""
    return [loose for number, mine in enumerate(events) for loose in _calls(number, mine, {e["of"] for e in mine if e["e"] == "changed" and "of" in e}, True)]


def _calls(number: int, events: list[dict], chosen: set[int], among: bool) -> list[Loose]:
    """The messages of one rank that are `among` the chosen, or are not."""
    return [Loose(number, event["op"], event["peer"], event["where"]) for event in events if "id" in event and (event["id"] in chosen) == among]
