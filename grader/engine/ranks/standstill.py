"""A run that stands still: whether it may continue or never can, from its ranks' notes, in words.

Pure logic: the notes, the existing processes and the time are given. The judge's diagnosis (`diagnose`) says what is
certain. A run is hopeless if all its ranks wait for something that can never happen, because a rank is gone or two
ranks are in calls that never match, and if nothing has moved for a while. Anything else, such as a rank that saves for
ten minutes while the others wait, is reported once and left alone.
"""

from dataclasses import dataclass

from grader.engine.ranks.diagnose import Diagnosis, Fault, Op, differ, numbers, place
from utils.watched.record import LAST, Seen

PROOF = 5.0  # seconds without any movement before a run is called hopeless
STANDSTILL = 180.0  # seconds after which a standstill that may still end is reported
IDLE = 0.1  # of a processor: less, and a rank in its backward pass waits for others (DDP's reducer waits in C++)
BACKWARD = "_engine_run_backward"
LOST = ("closed by peer", "reset by peer", "Broken pipe", "Connection refused")  # a rank whose peer was gone earlier


@dataclass
class Finding:
    text: str
    hopeless: bool


class Standing:
    """Looks at the ranks' notes repeatedly, and reports what it finds."""

    def __init__(self) -> None:
        self.since: float | None = None  # when the run was last seen to move
        self.last: list[tuple] = []
        self.cpu: dict[int, float] = {}  # the state of each rank then
        self.reported = False  # about this standstill
        self.known: set[str] = set()  # lines that were reported

    def look(self, seen: list[Seen], gone: dict[int, str], now: float) -> Finding | None:
        """`gone`: how ranks ended whose process no longer exists; `now`: seconds, on any clock."""
        state = [(one.count, one.waiting, one.of, one.who["pid"], one.rank in gone) for one in seen]
        if self.since is None or state != self.last:
            self.since, self.last, self.reported = now, state, False
            self.cpu = {one.rank: one.beat.get("cpu", 0.0) for one in seen}
            return None
        still = now - self.since
        if still < PROOF or len(seen) < 2 or len(gone) == len(seen):
            return None
        asleep = {one.rank for one in seen if self.asleep(one, still)}
        if fault := proof(seen, gone, asleep):
            return Finding(fault.message, True)
        living = [one for one in seen if one.rank not in gone]
        lines = str([one.beat.get("lines") for one in living])
        if still < STANDSTILL or self.reported or lines in self.known:
            return None
        self.reported = True
        self.known.add(lines)
        return Finding("; ".join(map(story, living)), False)

    def asleep(self, one: Seen, still: float) -> bool:
        """Whether a rank is in its backward pass and idle."""
        used = one.beat.get("cpu", 0.0) - self.cpu[one.rank]
        return one.beat.get("in", "").endswith(BACKWARD) and used < IDLE * still


def proof(seen: list[Seen], gone: dict[int, str], asleep: set[int]) -> Fault | None:
    """Why no living rank can ever move again; None if one may."""
    living = [one for one in seen if one.rank not in gone]
    if not all(one.waiting or one.rank in asleep for one in living):
        return None
    diagnosis, ops = aligned(seen)
    waits = {one.rank: waited_for(diagnosis, ops[one.rank], one) for one in living}
    for first in waits.values():
        for second in filter(None, waits.values()):
            if first and unlike(first, second):
                diagnosis.parted = first.event["name"], first.index
                return diagnosis.mismatch()
    if not all(waits.values()):
        return None
    for one in living:
        diagnosis.ranks[one.rank].waiting, diagnosis.ranks[one.rank].waits_for = True, waits[one.rank]
    for rank, how in gone.items():
        diagnosis.ranks[rank].gone = how
    return diagnosis.deadlock()


def unlike(first: Op, second: Op) -> bool:
    """Whether these are the same call of one group, made differently."""
    same = (first.event["name"], first.index) == (second.event["name"], second.index)
    return same and "peer" not in first.event and "peer" not in second.event and bool(differ(first.event, second.event))


def aligned(seen: list[Seen]) -> tuple[Diagnosis, list[dict[int, Op]]]:
    """The judge's diagnosis of the calls that are still known for all ranks; and each rank's calls, by number.

    Only the last calls are kept, so each stream (a group's collectives, or the messages from one rank to another) is
    compared from the first call on that all of its ranks still have.
    """
    base: dict[str, int] = {}
    for one in seen:
        shown: dict[str, int] = {}
        for call in one.calls:
            shown.setdefault(key(one, call), call["index"])
        counts = {key(one, {"stream": stream}): count for stream, count in one.beat.get("counts", {}).items()}
        if one.count <= LAST:  # all ranks have noted something
            counts = {}
        for stream, first in (counts | shown).items():
            base[stream] = max(base.get(stream, 0), first)
    diagnosis, ops = Diagnosis(len(seen)), []
    for one in seen:
        mine: dict[int, Op] = {}
        for call in one.calls:
            group = one.groups.get(call["name"])
            if group is not None and call["index"] >= base[key(one, call)] and call.get("peer", 0) is not None:
                diagnosis.add(one.rank, {**call, "e": "op", "group": group, "id": call["n"]})
                mine[call["n"]] = diagnosis.ranks[one.rank].ops[-1]
        ops.append(mine)
    return diagnosis, ops


def key(one: Seen, call: dict) -> str:
    """A stream's name, the same at both ends. On a rank it is the group's name, or "group send peer tag"."""
    words = call["stream"].rsplit(" ", 3)
    if len(words) < 4 or words[1] not in ("send", "recv"):
        return call["stream"]
    source, target = (one.rank, words[2]) if words[1] == "send" else (words[2], one.rank)
    return f"{words[0]} {source} to {target} {words[3]}"


def waited_for(diagnosis: Diagnosis, ops: dict[int, Op], one: Seen) -> Op | None:
    """The call that a waiting rank waits for: the one it named, else its main thread's first call that lacks a rank or
    that another rank makes differently.
    """
    if one.of in ops:
        return ops[one.of]
    for op in ops.values():
        peers = [mine[op.index] for mine in diagnosis.calls[op.event["name"]] if len(mine) > op.index]
        if not op.event["aside"] and (diagnosis.missing(op) or any(unlike(op, other) for other in peers)):
            return op
    return None


# In words


def story(one: Seen) -> str:
    """The place of a rank now."""
    last = one.calls[-1] if one.calls else None
    call = next((call for call in one.calls if call["n"] == one.of), last)
    if one.waiting and call:
        return f"rank {one.rank} waits in {Op(one.rank, call, 0).at()}"
    lines, inside = one.beat.get("lines") or [None], one.beat.get("in", "")
    if inside.endswith(BACKWARD):
        inside = "the backward pass"
    return f"rank {one.rank} is at {place(lines[0])}" + (f", in {inside}" if inside else "")


def ending(seen: list[Seen], gone: dict[int, str]) -> str:
    """Why a run failed: calls that do not match; otherwise which rank ended first and where, and which ranks waited for
    it and where.
    """
    diagnosis, _ = aligned(seen)
    if diagnosis.parted:  # gloo ends a process if one has more bytes than the other
        return diagnosis.mismatch().message
    first = [one for one in seen if one.rank in gone and not any(words in gone[one.rank] for words in LOST)]
    if not first:
        return ""
    # First killed ranks, which leave no message; then the earliest that stopped with an error; then those that
    # finished.
    cause = min(first, key=lambda one: (bool(one.gone), not one.gone.get("how"), one.gone.get("time", 0.0)))
    lines = cause.gone.get("lines") or cause.beat.get("lines") or [None]
    text = f"rank {cause.rank} is gone: {gone[cause.rank]}, at {place(lines[0])}"
    waiting = [one for one in seen if one is not cause and one.waiting and one.calls]
    by_line: dict[str, list[int]] = {}
    for one in waiting:
        call = next((call for call in one.calls if call["n"] == one.of), one.calls[-1])
        by_line.setdefault(Op(one.rank, call, 0).at(), []).append(one.rank)
    for where, ranks in by_line.items():
        text += f"; {numbers(ranks)} waited in {where}"
    return text
