"""From the ranks' events to a diagnosis: what went wrong, on which rank, at which line.

Pure logic, without processes or clocks. The k-th collective that each rank of a
group issues is one call of the group: the signatures must agree, otherwise it is
a mismatch. A rank inside a wait is stuck if its call lacks a member that is gone
or stuck itself. When every living rank is stuck, nothing can ever move again:
that is a deadlock, detected at once.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

Where = list  # [unit, line, function]
IN_FLIGHT = 500  # calls of one rank that have started and that it has not waited for; right answers have 222 at most


# The hint where ranks make different groups.
GROUPS = (
    "dist.new_group is a call of all ranks: each rank makes every group, in the same order, even the groups that it is"
    " not in."
)


class Fault(Exception):
    """Why a run failed. `cause` is crash, mismatch or hang; `where` is a line of the student's code."""

    def __init__(
        self,
        cause: str,
        message: str,
        rank: int | None = None,
        where: Where | None = None,
        expected: str | None = None,
        seen: str | None = None,
        also: Sequence[Where] = (),
        callers: Sequence[Where] = (),
        ops: Sequence["Op"] = (),
        hint: str = "",
    ) -> None:
        super().__init__(message)
        self.cause, self.message, self.rank, self.where = cause, message, rank, where
        self.expected, self.seen = expected, seen
        self.also = also  # lines where the cause may be as well: those that called `where`, and where another rank was
        self.callers = callers  # the lines that called `where`, the innermost first
        self.hint = hint  # for this failure; the TODO's own hints come after it
        self.ops = ops  # calls that the message names with their lines, in order
        self.events: list[list[dict]] = []  # the events of each rank up to then
        self.scenario = ""  # the check's case in which it happened, in words; the message begins with it


class Unjudged(RuntimeError):
    """There is no verdict, because of the machine or the check, not the student: so no zero marks, either."""

    def __str__(self) -> str:
        return f"no verdict, for a reason outside the code: {super().__str__()}"

    def _render_traceback_(self) -> list[str]:
        """Shown by a notebook instead of a traceback."""
        return [str(self)]


@dataclass
class Op:
    """One call of one rank."""

    rank: int
    event: dict
    index: int  # its index among the calls of its group (or its pair of ranks) on this rank

    @property
    def where(self) -> Where | None:
        return self.event["where"]

    def __str__(self) -> str:
        event = self.event
        shape = "" if event["shape"] is None else f" of shape {tuple(event['shape'])} {event['dtype']}"
        detail = f" ({event['detail']})" if event["detail"] and event["op"] != "init_process_group" else ""
        peer = ""
        if "peer" in event:
            peer = f" {'to' if event['op'] == 'send' else 'from'} rank {event['peer']}"
        return f"{event['op']}{detail}{shape}{peer}"

    @property
    def callers(self) -> list[Where]:
        return self.event.get("callers", [])

    @property
    def line(self) -> str:
        """The place of the call, in words."""
        if not self.where:
            return "a line of the check" if self.event.get("ours") else "a line inside torch"
        calls = "".join(
            f", called at {place([unit, line, name]) if ', cell ' in unit else f'line {line}'}"
            for unit, line, name in self.callers[-1:]
            if unit == self.where[0]
        )
        return f"{place(self.where)}{calls}"

    def at(self) -> str:
        return f"{self} at {self.line}"

    @property
    def function(self) -> str:
        """The outermost function of the student's code; "<module>" in a script."""
        return (self.callers or [self.where])[-1][2]

    def beyond(self, other: "Op") -> str:
        """If this call is the check's own and the other is not: what this rank has already done and the other has not,
        since the check makes the same calls on all ranks, in the same order. Otherwise "".
        """
        if not self.event.get("ours") or not other.where:
            return ""
        script = other.function == "<module>"
        return "come to the end of the script" if script else f"returned from {other.function}"


@dataclass
class RankState:
    """The state of one rank, from its events."""

    ops: list[Op] = field(default_factory=list)
    complete: int = 0  # so many calls, counted from the first, no longer lack a rank
    waiting: bool = False
    waits_for: Op | None = None  # the message, if the wait is for one
    messages: dict[int, Op] = field(default_factory=dict)  # by number
    from_anybody: dict[int, dict] = field(default_factory=dict)  # receives whose sender is not yet known
    in_flight: set[tuple[str, int]] = field(default_factory=set)  # messages ("of") and collectives ("work"), by number
    gone: str | None = None  # how it ended, in words
    last: Where | None = None  # the last line of the student's code in an event


class Diagnosis:
    """Takes the events of all ranks in order of arrival; says what is wrong as soon as it is certain."""

    def __init__(self, world: int) -> None:
        self.ranks = [RankState() for _ in range(world)]
        self.calls: dict[str, list[list[Op]]] = defaultdict(lambda: [[] for _ in range(world)])
        self.pairs: dict[tuple, dict[str, list[Op]]] = defaultdict(lambda: {"send": [], "recv": []})
        self.joined: dict[int, int] = {}
        self.parted: tuple[str, int] | None = None  # group and index of the first call in which ranks differ

    def add(self, rank: int, event: dict) -> Fault | None:
        """Add an event of one rank. Returns a mismatch if this event proves one; see also `parted`."""
        state = self.ranks[rank]
        state.last = event.get("where") or state.last
        aside = event.get("aside")  # a wait in another thread does not stop the rank
        if event["e"] in ("done", "future"):
            state.in_flight -= {(kind, event[kind]) for kind in ("of", "work") if kind in event}
        if event["e"] in ("wait", "done"):
            if not aside:
                state.waiting = event["e"] == "wait"
                state.waits_for = state.messages.get(event.get("of")) if state.waiting else None
            if "source" in event and event["of"] in state.from_anybody:
                return self.message(rank, state.from_anybody.pop(event["of"]) | {"peer": event["source"]})
        elif event["e"] in ("starts", "started"):
            state.waiting = state.waiting if aside else event["e"] == "starts"
        elif event["e"] == "joins":
            return self.join(rank, event)
        elif event["e"] == "again":
            return self.waited_twice(rank, event)
        elif event["e"] == "op":
            if fault := self.too_many(rank, event):
                return fault
            if event["op"] in ("send", "recv"):
                return self.message(rank, event)
            self.collective(rank, event)
        return None

    def too_many(self, rank: int, event: dict) -> Fault | None:
        """An endless loop that starts calls: each is an event, so silence does not show it."""
        calls = self.ranks[rank].in_flight
        calls |= {(kind, event[name]) for kind, name in (("of", "id"), ("work", "work")) if name in event}
        if len(calls) <= IN_FLIGHT:
            return None
        op = Op(rank, event, 0)
        return Fault(
            "hang",
            f"rank {rank} starts {op.at()}, while {IN_FLIGHT:,} earlier calls are in flight: it waits for none of them,"
            " and starts more without end",
            rank,
            op.where,
            expected="the code ends",
            seen=f"more than {IN_FLIGHT:,} calls in flight",
            also=op.callers,
            callers=op.callers,
            ops=[op],
        )

    def join(self, rank: int, event: dict) -> Fault | None:
        other = self.joined.setdefault(event["rank"], rank)
        if other != rank:
            wrong = other if rank == event["rank"] else rank  # whichever came first, either may be right
            return Fault(
                "mismatch",
                f"ranks {other} and {rank} both join the process group as rank {event['rank']}",
                wrong,
                event["where"],
                expected=f"rank {wrong}",
                seen=f"rank {event['rank']}",
            )
        return None

    def waited_twice(self, rank: int, event: dict) -> Fault | None:
        """In gloo, a second wait for a message waits for another message, which no rank sends."""
        op = self.ranks[rank].messages.get(event["of"])
        if op is None:
            return None
        return Fault(
            "hang",
            f"rank {rank} waits twice for one message: {op.at()}, whose wait had ended. Gloo then waits for another"
            " message, forever",
            rank,
            event["where"],
            expected="one wait for each message",
            seen="a second one",
            also=[*([op.where] if op.where else []), *op.callers],
            ops=[op],
        )

    def collective(self, rank: int, event: dict) -> None:
        calls = self.calls[event["name"]]
        op = Op(rank, event, len(calls[rank]))
        calls[rank].append(op)
        if not event.get("aside"):
            self.ranks[rank].ops.append(op)
        others = [mine[op.index] for mine in calls if len(mine) > op.index]
        if self.parted is None and any(differ(op.event, other.event) for other in others):
            self.parted = event["name"], op.index

    def mismatch(self, final: bool = True) -> Fault | None:
        """A mismatch: ranks are in different calls (`parted`), because one skipped a call or made it differently.

        The majority shows which rank is the odd one: None while a rank has not arrived yet, unless this is `final`.
        """
        name, index = self.parted
        came = [mine[index] for mine in self.calls[name] if len(mine) > index]
        if len(came) < len(came[0].event["group"]) and not final:
            return None
        usual = max(came, key=lambda op: sum(not differ(op.event, other.event) for other in came))
        odd = next(op for op in came if differ(op.event, usual.event))
        first, second = sorted((usual, odd), key=lambda op: op.rank)
        if first.where != second.where:
            return self.skipped(first, second)
        what = {
            "op": "different operations",
            "shape": "different shapes",
            "dtype": "different dtypes",
            "detail": "different roots or reductions",
        }[differ(first.event, second.event)]
        if first.event["op"] == second.event["op"] == "new_group":
            what = "new_group for different groups"
        return Fault(
            "mismatch",
            f"the ranks call {what}: rank {first.rank} {first.at()}, rank {second.rank} {second.at()}",
            odd.rank,
            odd.where or usual.where,
            expected=str(usual),
            seen=str(odd),
            also=odd.callers,
            callers=odd.callers,
            ops=(first, second),
            hint=hint_of((first, second)),
        )

    def skipped(self, first: Op, second: Op) -> Fault:
        """Two ranks are in calls on different lines: one of them left out a call."""
        skipper, waiter = self.skipper(first, second)
        ops = (waiter, skipper) if skipper else (first, second)

        def stands(op: Op, other: Op) -> str:
            return f"has {done}" if (done := op.beyond(other)) else f"is in {op.at()}"

        if skipper:
            text = (
                f"rank {skipper.rank} skipped a call that the others make, or makes one that they do not: rank"
                f" {waiter.rank} {stands(waiter, skipper)}, while rank {skipper.rank} {stands(skipper, waiter)}"
            )
        else:
            skipper, waiter = (first, second) if first.beyond(second) else (second, first)
            text = (
                f"the ranks part: rank {first.rank} {stands(first, second)}, rank {second.rank}"
                f" {stands(second, first)}; one of them skipped a call, or made one too many"
            )
        expected, seen = waiter.beyond(skipper) or str(waiter), skipper.beyond(waiter) or str(skipper)
        lines = waiter if waiter.where else skipper
        if expected == seen:  # two calls alike, on two lines
            expected, seen = waiter.at(), skipper.at()
        return Fault(
            "hang",
            f"{text}. Every rank of a group must make the same calls in the same order",
            skipper.rank,
            lines.where,
            expected=expected,
            seen=seen,
            also=[*skipper.callers, *([skipper.where] if skipper.where else []), *waiter.callers],
            callers=lines.callers,
            ops=[op for op in ops if op.where],
            hint=hint_of(ops),
        )

    def skipper(self, first: Op, second: Op) -> tuple[Op, Op] | tuple[None, None]:
        """Which of two ranks at different lines skipped a call, and which did not; None if that is unknown.

        A majority is right if there is one. Of two ranks in one function, the one at a line that all have passed before
        is right, otherwise the one at the earlier line.
        """
        if not all(op.where or op.event.get("ours") for op in (first, second)):
            return None, None
        calls = self.calls[first.event["name"]]

        def followers(op: Op) -> int:
            return sum(mine[op.index].where == op.where for mine in calls if len(mine) > op.index)

        def known(op: Op) -> int:
            return sum(any(o.where == op.where for o in mine[: op.index]) for mine in calls)

        if followers(first) != followers(second):
            return tuple(sorted((first, second), key=followers))
        if not first.where or not second.where or first.where[2] != second.where[2]:
            return None, None
        return tuple(sorted((first, second), key=lambda op: (known(op), -op.where[1])))

    def message(self, rank: int, event: dict) -> Fault | None:
        peer = event["peer"]
        if peer is None:  # from any source: its sender is known when it ends
            self.ranks[rank].from_anybody[event["id"]] = event
            return None
        if peer == rank:
            verb = "sends to" if event["op"] == "send" else "receives from"
            op = Op(rank, event, 0)
            return Fault(
                "crash",
                f"rank {rank} {verb} itself, at {op.line}: there is no such message; copy the tensor",
                rank,
                event["where"],
                expected="messages between two ranks",
                seen=f"{event['op']} on rank {rank}, {rank} at the other end",
                also=op.callers,
                callers=op.callers,
                ops=[op],
            )
        source, target = (rank, peer) if event["op"] == "send" else (peer, rank)
        pair = self.pairs[event["name"], source, target, event["tag"]]
        op = Op(rank, event, len(pair[event["op"]]))
        pair[event["op"]].append(op)
        if not event.get("aside"):
            self.ranks[rank].ops.append(op)
        self.ranks[rank].messages[event.get("id")] = op
        other = pair["recv" if event["op"] == "send" else "send"]
        if op.index < len(other) and length(event) != length(other[op.index].event):
            sent, received = sorted((op, other[op.index]), key=lambda o: o.event["op"] == "recv")
            return Fault(
                "mismatch",
                f"a message and its receiver differ: rank {sent.rank} {sent.at()}, "
                f"rank {received.rank} {received.at()}",
                received.rank,
                received.where,
                expected=str(sent),
                seen=str(received),
                also=[*received.callers, *sent.callers],
                callers=received.callers,
                ops=(sent, received),
            )
        return None

    def missing(self, op: Op) -> list[int]:
        """The ranks that `op` still needs. Empty: it will complete on its own."""
        if "peer" in op.event:
            source, target = (op.rank, op.event["peer"]) if op.event["op"] == "send" else (op.event["peer"], op.rank)
            pair = self.pairs[op.event["name"], source, target, op.event["tag"]]
            other = pair["recv" if op.event["op"] == "send" else "send"]
            return [] if op.index < len(other) else [op.event["peer"]]
        calls = self.calls[op.event["name"]]
        return [member for member in op.event["group"] if len(calls[member]) <= op.index]

    def blocked(self, rank: int) -> tuple[Op, list[int]] | None:
        """The first call of this rank that still lacks ranks, and which."""
        state = self.ranks[rank]
        if state.waits_for:
            lacking = self.missing(state.waits_for)
            return (state.waits_for, lacking) if lacking else None
        while state.complete < len(state.ops):
            if lacking := self.missing(op := state.ops[state.complete]):
                return op, lacking
            state.complete += 1
        return None

    def deadlock(self, asleep: set[int] = frozenset()) -> Fault | None:
        """The deadlock, if no living rank can ever move again; else None.

        `asleep` are ranks that the system reports as asleep although no wait of theirs is known: those inside DDP's
        reducer, which waits in C++.
        """
        living = [n for n, state in enumerate(self.ranks) if not state.gone]
        stuck = {}
        for rank in living:
            if not (self.ranks[rank].waiting or rank in asleep) or (block := self.blocked(rank)) is None:
                return None
            stuck[rank] = block
        return self.story_of(stuck) if stuck else None

    def story_of(self, stuck: dict[int, tuple[Op, list[int]]]) -> Fault:
        """A deadlock in words. `stuck`: for each living rank, the call in which it waits, and the ranks that this call
        lacks.
        """
        # A rank that lacks only ranks that can still move is not stuck; here none can.
        # The check's own call is blamed last.
        rank, (op, lacking) = min(
            stuck.items(),
            key=lambda item: (
                bool(item[1][0].event.get("ours")),
                not any(self.ranks[m].gone for m in item[1][1]),
                item[0],
            ),
        )
        finished = [member for member in lacking if self.ranks[member].gone == "it has finished"]
        stories = [f"{numbers(finished)} never come: they have finished"] if len(finished) > 1 else []
        ops = [op]
        short = [f"{numbers(finished)} finished"] if len(finished) > 1 else []
        waiting = [n for n, (o, _) in stuck.items() if o is op or (o.where == op.where and "peer" not in op.event)]
        back = [n for n, (o, lacks) in stuck.items() if o.beyond(op) and {*waiting} & {*lacks}]
        if back:
            done = stuck[back[0]][0].beyond(op)
            stories.append(f"{numbers(back)} {'has' if len(back) == 1 else 'have'} {done}")
            short.append(f"{numbers(back)} {done}")
        for member in lacking:
            if member in back or (len(finished) > 1 and member in finished):
                continue
            if gone := self.ranks[member].gone:
                stories.append(f"rank {member} never comes: {gone}")
                short.append(f"rank {member}: {gone.removeprefix('it ')}")
            else:
                other, _ = stuck[member]
                ops.append(other)
                stories.append(f"rank {member} waits in {other.at()}")
                short.append(f"rank {member} in {other}")
        skipper = next((member for member in lacking if self.ranks[member].gone), None)
        verb = "waits" if len(waiting) == 1 else "wait"
        expected = f"every rank in {op}"
        if "peer" in op.event:
            expected = (
                f"rank {op.event['peer']} in {'recv from' if op.event['op'] == 'send' else 'send to'} rank {op.rank}"
            )
        group, among = op.event.get("group", []), ""
        if "peer" not in op.event and len(group) < len(self.ranks):
            among = f", by rank {op.rank} in the group of {numbers(group)}"
        return Fault(
            "hang",
            f"deadlock: {numbers(waiting)} {verb} in {op.at()}{among}; " + "; ".join(stories),
            rank if skipper is None else skipper,
            op.where,
            expected=expected,
            seen="; ".join(short),
            also=op.callers,
            callers=op.callers,
            ops=ops,
            hint=hint_of(ops[:1]),
        )


def hint_of(ops: Sequence[Op]) -> str:
    return GROUPS if any(op.event["op"] == "new_group" for op in ops) else ""


def differ(first: dict, second: dict) -> str | None:
    """The name of the first property in which two calls of one group differ."""
    if first["op"] != second["op"]:
        return "op"
    if first["shape"] != second["shape"] and size(first) != size(second):
        return "shape"
    if first["dtype"] != second["dtype"]:
        return "dtype"
    if first["op"] != "init_process_group" and first["detail"] != second["detail"]:
        return "detail"
    return None


def length(event: dict) -> tuple:
    """What must agree between a message and its receiver: gloo ends the process if the byte counts differ."""
    return size(event), event.get("bytes")


def size(event: dict) -> list | None:
    """What must agree about shapes: the number of elements of each tensor (gloo and NCCL move flat buffers)."""

    def count(shape: list[int]) -> int:
        total = 1
        for length in shape:
            total *= length
        return total

    shape = event["shape"]
    if shape is None:
        return None
    return [count(part) for part in shape] if shape and isinstance(shape[0], list) else [count(shape)]


def place(where: Where | None) -> str:
    """A line of the student's code in words."""
    if not where:
        return "an unknown line"
    return f"{where[0]}, line {where[1]}" if ", cell " in where[0] else f"{where[0]}:{where[1]}"


def numbers(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks[:-1])) + f" and {ranks[-1]}"
