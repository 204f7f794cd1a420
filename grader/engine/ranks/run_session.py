"""One run: listens to its ranks, stops them, collects what they left.

It waits for events, not for a fixed time: a silent rank is judged by its CPU time, a deadlock by which rank waits for
which.
"""

import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from grader.engine.ranks import events, sandbox_limits, cpu_time
from grader.engine.ranks.server_connection import Connection
from grader.engine.ranks.diagnose import Diagnosis, Fault, Unjudged, Where, place
from grader.engine.ranks.rank_endings import Endings
from grader.engine.ranks.job import Job
from grader.engine.ranks.cpu_time import TICK, Pulse
from grader.engine.ranks.run import Run
from grader.engine.ranks.run_files import Traces

PATIENCE = 0.3  # seconds of the ranks' own time to wait for more ranks at a call that is already wrong
# The most bytes and events that a rank may report in one run; right answers need 290,000 bytes and 2,100 events.
TOO_MUCH, TOO_MANY = 5_000_000, 20_000
LINUX = sys.platform == "linux"
SO_PASSCRED = 16  # asm-generic/socket.h: the kernel reports which process sent a message
CREDENTIALS = struct.Struct("3i")  # process, user, group: struct ucred of linux/socket.h


def end_group(pid: int) -> None:
    """Kill a rank and its process group; a rank that was just forked has no group of its own yet."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


class Session:
    """One run, from the fork of its ranks to the end of the last one."""

    def __init__(self, server: Connection, job: Job, folder: Path, inner: Path, devices: list[str]) -> None:
        """`folder` is the run's folder as the judge sees it, `inner` its path on the ranks, which may be in a sandbox.

        `devices`: the GPU of each rank, as CUDA_VISIBLE_DEVICES names it; empty: the ranks are on CPUs.
        """
        self.server, self.job, self.folder = server, job, folder
        self.world = world = job.world
        # A connection for each rank. Its other end goes through the server to that rank, so no rank can impersonate
        # another.
        pairs = [socket.socketpair() for _ in range(world)]
        self.owner = {ours: rank for rank, (ours, _) in enumerate(pairs)}
        if LINUX:
            for end in self.owner:
                end.setsockopt(socket.SOL_SOCKET, SO_PASSCRED, 1)
        # Read before the ranks can have sent anything. Traffic between GPUs does not go over the network.
        self.wire_before = server.sandbox.wire() if server.sandbox and not devices else None
        server.ask([theirs for _, theirs in pairs], **job.message(inner, devices))
        for _, theirs in pairs:
            theirs.close()
        self.started = time.monotonic()
        for end, rank in self.owner.items():
            with suppress(BrokenPipeError, ConnectionResetError):  # a rank that is dead already; the server will say so
                end.sendall(json.dumps(job.inputs_of(rank)).encode() + b"\n")
        while "pids" not in (answer := server.answer()):
            pass  # messages about the previous run
        self.names = answer["pids"]  # the ids that the server uses; in a sandbox they differ from ours
        self.pids: list[int | None] = [None] * world if LINUX else list(self.names)
        self.fault: Fault | None = None
        self.lost = False  # whether the ranks end only with the sandbox
        self.rest: dict[socket.socket, bytes] = dict.fromkeys(self.owner, b"")
        self.on_gpu = bool(devices)
        self.pulse = Pulse(world, self.started, on_gpu=self.on_gpu)
        self.unfit = ""  # why the machine, not the student's code, prevents a rank from running
        self.first: Run | None = None  # results of the first of two calls, once the second one has started
        self.begin(folder, {})

    def begin(self, folder: Path, status: dict[int, int]) -> None:
        """Reset for the start of the first or second call. `status`: wait status of the ranks whose process is gone."""
        self.traces = Traces(folder, {unit.name for unit in self.job.units})
        self.diagnosis = Diagnosis(self.world)
        self.run = Run(self.world, events=[[] for _ in range(self.world)])
        self.endings = Endings(self.traces, self.job.lesson, self.run.strange, status)
        self.parted_at: dict[int, float] | None = None  # each rank's own time then
        self.cause: int | None = None  # the rank whose crash was reported first
        self.crashed_at: dict[int, float] = {}  # each rank's own time then
        self.said = dict.fromkeys(range(self.world), 0)  # bytes
        self.marks: list[list[str]] = [[] for _ in range(self.world)]  # each rank's cases so far, in words

    def watch(self) -> Run:
        self.selector = selectors.DefaultSelector()
        for end in self.owner:
            self.selector.register(end, selectors.EVENT_READ, "rank")
        self.selector.register(self.server.socket, selectors.EVENT_READ, "server")
        looked = time.monotonic()
        try:
            while self.fault is None and (len(self.over()) < self.world or self.goes_on()):
                ready = [key for key, _ in self.selector.select(TICK)]
                for key in ready:
                    if key.data != "server":
                        self.hear(key)
                if self.unfit:
                    raise RuntimeError(self.unfit)
                # A rank may have ended before we knew that it started: then both messages came together.
                if self.server.heard or any(key.data == "server" for key in ready):
                    self.reap(self.server.answer())
                    while self.server.heard:
                        self.reap(self.server.answer())
                if self.diagnosis.parted:
                    self.fault = self.fault or self.mismatch()
                self.fault = self.fault or self.crashed()
                if self.cause is None:
                    self.fault = self.fault or self.diagnosis.deadlock(self.pulse.sleepers())
                if time.monotonic() - looked > TICK:
                    looked = time.monotonic()
                    self.fault = self.fault or self.beyond_limits() or self.look()
        finally:
            self.run.fault_after = time.monotonic() - self.started
            self.run.own_time = max(self.pulse.own.values())
            if self.wire_before is not None and not self.lost and (wire := self.server.sandbox.wire()) is not None:
                (self.first or self.run).wire = wire - self.wire_before
            self.kill()
            for key in list(self.selector.get_map().values()):
                if key.data == "rank":
                    key.fileobj.close()
            self.selector.close()
        if self.fault and (told := self.scenario(self.fault)):
            self.fault.scenario, self.fault.message = told, f"{told}: {self.fault.message}"
        self.run.fault = self.fault
        self.collect()
        if self.first:
            self.first.second = self.run
        return self.first or self.run

    def scenario(self, fault: Fault) -> str:
        """The check's case in which a fault happened, in words: the rank's own; where ranks wait for each other, the
        one of the rank that is furthest behind.
        """
        living = [rank for rank in range(self.world) if not self.endings.over(rank)]
        if fault.cause == "hang" and living:
            cases = min((self.marks[rank] for rank in living), key=len)
        else:
            cases = self.marks[fault.rank] if fault.rank is not None else []
        return cases[-1] if cases else ""

    def goes_on(self) -> bool:
        """Called when all ranks are over. If they returned from the first of two calls, the second starts."""
        words = [word.get("e") for word in self.endings.last_word.values()]
        if self.job.second is None or self.first or words != ["boundary"] * self.world or self.endings.status:
            return False
        self.run.own_time = max(self.pulse.own.values())
        self.collect()
        self.fault = self.run.fault
        if self.fault:
            return False
        self.first = self.run
        self.begin(self.folder / "second", self.endings.status)
        for end, rank in self.owner.items():
            self.pulse.heard(rank)
            with suppress(OSError):  # a rank that is dead already
                end.send(b"\n", socket.MSG_DONTWAIT)
        return True

    def hear(self, key: selectors.SelectorKey) -> None:
        """Read a rank's messages."""
        connection, rank = key.fileobj, self.owner[key.fileobj]
        try:
            data, about, _, _ = connection.recvmsg(1 << 16, socket.CMSG_SPACE(CREDENTIALS.size))
        except ConnectionResetError:
            data = b""
        if not data:
            self.selector.unregister(connection)
            connection.close()
            return
        if self.pids[rank] is None and about:
            # reported by the kernel, with our process ids
            self.pids[rank], _, _ = CREDENTIALS.unpack(about[0][2][: CREDENTIALS.size])
        *lines, self.rest[connection] = (self.rest[connection] + data).split(b"\n")
        self.said[rank] += len(data)
        if (
            self.said[rank] > TOO_MUCH
            or len(self.run.events[rank]) > TOO_MANY
            or len(self.rest[connection]) > events.LONGEST
        ):
            self.fault = self.fault or self.without_end(rank)
            return
        for line in lines:
            try:
                self.take(rank, events.read(line, self.world))
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                self.fault = self.fault or Fault(
                    "crash",
                    f"rank {rank} told the judge what makes no sense ({type(error).__name__}: {error})",
                    rank,
                    expected="the course's own records",
                    seen=line[:80].decode(errors="replace"),
                )

    def without_end(self, rank: int) -> Fault:
        """The fault of a rank that reports more than any right answer: a loop that communicates and does not end."""
        reported, last = len(self.run.events[rank]), self.diagnosis.ranks[rank].last
        return Fault(
            "hang",
            f"rank {rank} makes one call after another without end, now at {place(last)}",
            rank,
            last,
            expected="the code ends",
            seen=f"{reported:,} events, and more to come",
        )

    def take(self, rank: int, event: dict) -> None:
        """Handle an event of a rank."""
        if event["e"] == "here":
            return
        if event["e"] == "unfit":
            if not self.on_gpu or self.run.events[rank]:
                raise ValueError("whether a rank can use its GPU is said first, and where there are GPUs")
            self.unfit = self.unfit or f"rank {rank} cannot use its GPU: {event['text']}"
            return
        if event["e"] == "boundary" and (self.job.second is None or self.first or self.endings.returned(rank)):
            raise ValueError("no call ends here")
        if event["e"] in ("touched", "overwritten"):
            self.run.touched.setdefault(rank, []).append(event)
            return
        if event["e"] == "strange":
            if rank not in self.run.strange or event["returned"] == events.NOTHING:
                self.run.strange[rank] = event
            return
        if event["e"] == "mark":
            self.marks[rank].append(event.get("told", ""))
        self.run.events[rank].append(event | {"e": "end"} if event["e"] == "boundary" else event)
        self.pulse.heard(rank)
        if event["e"] == "broken" and rank == 0:
            self.run.broken.append(event)
        if event["e"] in ("end", "boundary", "crash", "exit", "kill"):
            self.endings.last_word[rank] = event
        if event["e"] in ("end", "boundary", "crash"):
            self.diagnosis.ranks[rank].gone = self.endings.how_it_ended(rank)
        self.fault = self.fault or self.diagnosis.add(rank, event)

    def reap(self, news: dict) -> None:
        """Handle the server's message that a rank's process is gone, after reading the ranks' last messages."""
        if news["gone"] not in self.names:
            return  # of the previous run
        rank = self.names.index(news["gone"])
        self.endings.status[rank] = news["status"]
        self.drain()  # its last messages come before the news of its end
        self.diagnosis.ranks[rank].gone = self.endings.how_it_ended(rank)

    def drain(self) -> None:
        """Read all unread messages of the ranks."""
        while ready := [key for key, _ in self.selector.select(0) if key.data != "server"]:
            for key in ready:
                self.hear(key)

    def over(self) -> list[int]:
        """The ranks that reported their end, or are gone without doing so."""
        return list(filter(self.endings.over, range(self.world)))

    def mismatch(self) -> Fault | None:
        """The mismatch of ranks in different calls, after a short wait for more ranks to arrive at that call."""
        own = self.pulse.own
        self.parted_at = self.parted_at or dict(own)
        waited = min(own[rank] - then for rank, then in self.parted_at.items())
        return self.diagnosis.mismatch(final=bool(self.over()) or waited > PATIENCE)

    def crashed(self) -> Fault | None:
        """The fault of a rank that is over without reporting its end: the cause before its consequences.

        If several stop in the same way, the lowest is named: which one reports first is random.
        """
        last = [rank.last for rank in self.diagnosis.ranks]
        broken = [n for n in self.over() if not self.endings.returned(n)]
        # A rank whose peer vanished stops with its own error; the message about the peer follows.
        causes = [n for n in broken if not self.endings.lost_a_peer(n)]
        if not causes:
            return self.endings.crash(broken[0], last) if broken and len(self.over()) == self.world else None
        if self.cause is None:
            self.cause, self.crashed_at = causes[0], dict(self.pulse.own)
        if self.others_may_crash():
            return None
        return self.endings.crash(next(n for n in causes if self.endings.alike(n, self.cause)), last)

    def others_may_crash(self) -> bool:
        """Whether a rank may still get to where another rank stopped."""
        for rank in set(range(self.world)) - set(self.over()):
            stuck = self.diagnosis.ranks[rank].waiting and self.diagnosis.blocked(rank) is not None
            if not stuck and self.pulse.own[rank] - self.crashed_at[rank] <= PATIENCE:
                return True
        return False

    def beyond_limits(self) -> Fault | None:
        """The fault of a submission that exceeds its limits, or that ends only with its sandbox."""
        if self.server.sandbox is None:
            return None
        fault = sandbox_limits.beyond(self.server)
        self.lost = self.lost or fault is not None
        return fault

    def collect(self) -> None:
        """What the ranks have left, at the end of a call."""
        if self.server.sandbox and not self.on_gpu:
            self.run.posted = sandbox_limits.posted(self.traces.folder / "store")
        self.traces.collect(self.run)

    def look(self) -> Fault | None:
        """The fault of a rank that runs endlessly, or that nothing will wake."""
        living = {n: pid for n, pid in enumerate(self.pids) if not self.endings.over(n)}

        def waiting(rank: int) -> bool:
            return self.diagnosis.ranks[rank].waiting

        def complete(rank: int) -> bool:
            return waiting(rank) and self.diagnosis.blocked(rank) is None

        def where_now(rank: int) -> list[Where]:
            last = self.diagnosis.ranks[rank].last
            return self.traces.where_now(rank, self.pids[rank]) or ([last] if last else [])

        def elsewhere(asleep: int) -> str:
            return "".join(f"; rank {n} {self.whereabouts(n, where_now)}" for n in range(self.world) if n != asleep)

        try:
            return self.pulse.look(living, waiting, complete, where_now, elsewhere)
        except Unjudged:
            if self.server.sandbox and (fault := sandbox_limits.crowded_out(self.server, self.pids, cpu_time.STARVED)):
                self.lost = True
                return fault
            raise

    def whereabouts(self, rank: int, where_now: Callable[[int], list[Where]]) -> str:
        """Where a rank is now, in words."""
        if self.endings.over(rank):
            return f"is not there: {self.endings.how_it_ended(rank)}"
        block = self.diagnosis.blocked(rank) if self.diagnosis.ranks[rank].waiting else None
        return f"waits in {block[0].at()}" if block else f"is at {place(next(iter(where_now(rank)), None))}"

    def kill(self) -> None:
        """End every rank and everything it started."""
        beyond = None if self.lost else self.beyond_limits()
        self.fault = self.fault or beyond
        if self.lost:  # in case the server cannot
            self.server.close()
            return
        for rank, pid in enumerate(self.pids):
            if rank not in self.endings.status and pid is not None:
                end_group(pid)
        self.server.ask(sweep=True)
        while "swept" not in self.server.answer():
            pass  # news of ranks
