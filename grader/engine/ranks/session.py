"""One run: listen to its ranks, stop them, collect what they left.

It waits for events, not for a while: a rank's silence is judged by its CPU time, a deadlock by who waits for whom.
"""

import json
import linecache
import os
import selectors
import signal
import socket
import struct
import sys
import textwrap
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from grader.engine.ranks import events
from grader.engine.ranks.diagnose import Diagnosis, Fault, Where, place
from grader.engine.walls import sandbox
from grader.engine.walls.plain import plain_bytes

if TYPE_CHECKING:
    from grader.engine.ranks.engine import Engine

SILENT_CPU = 1.5  # seconds of CPU without a sign of life: a loop that never ends
TOTAL_CPU = 60.0  # seconds of CPU that one rank may use in all
IDLE = 4.0  # seconds of every rank asleep, none in a collective: a sleep, a lock, a read that never ends
PATIENCE = 0.3  # seconds to hear who else comes to a call that is wrong already
TICK = 0.05  # seconds between looks at the ranks' CPU time
TOO_MUCH, TOO_MANY = 50_000_000, 100_000  # bytes and events that a rank may tell of what it does in one run
PRINTED = 1_000_000  # bytes of what a rank prints that are kept
ONE_FILE, ALL_FILES = 50_000_000, 200_000_000  # bytes of what the ranks write that are kept
LINUX = sys.platform == "linux"
SO_PASSCRED = 16  # asm-generic/socket.h: the kernel says which process sent something
CREDENTIALS = struct.Struct("3i")  # process, user, group: struct ucred of linux/socket.h


@dataclass
class Run:
    """What one job left: for each rank its evidence, its events, what it printed."""

    world: int
    fault: Fault | None = None
    evidence: list[Any] = field(default_factory=list)
    events: list[list[dict]] = field(default_factory=list)
    stdout: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)
    broken: list[dict] = field(default_factory=list)  # cells that did not load, as rank 0 saw them
    files: dict[str, bytes] = field(default_factory=dict)  # what the ranks wrote into the work folder
    fault_after: float = 0.0  # seconds from the start of the run to the diagnosis
    wire: int | None = None  # bytes that the kernel saw between the ranks; None outside of a sandbox


def end_group(pid: int) -> None:
    """Kill a rank and its process group; a rank that was just forked has no group of its own yet."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


class Session:
    """One run, from the fork of its ranks to the end of the last."""

    def __init__(self, engine: "Engine", folder: Path, job: dict, inputs: list[dict]) -> None:
        self.engine, self.folder = engine, folder
        self.world = world = job["world"]
        self.units = {unit["name"] for unit in job["units"]}
        self.module = job["module"]  # of the check
        # A line for each rank. The rank's end travels through the server to the rank, so nobody can speak in another's
        # name.
        pairs = [socket.socketpair() for _ in range(world)]
        self.owner = {ours: number for number, (ours, _) in enumerate(pairs)}
        if LINUX:
            for line in self.owner:
                line.setsockopt(socket.SOL_SOCKET, SO_PASSCRED, 1)
        self.wire_before = engine.sandbox.wire() if engine.sandbox else None  # before the ranks can have said anything
        engine.ask([theirs for _, theirs in pairs], **job)
        for _, theirs in pairs:
            theirs.close()
        self.started = time.monotonic()
        for line, number in self.owner.items():
            with suppress(BrokenPipeError, ConnectionResetError):  # a rank that is dead already; the server will say so
                line.sendall(json.dumps(inputs[number]).encode() + b"\n")
        while "pids" not in (answer := engine.answer()):
            pass  # news of the run before
        self.names = answer["pids"]  # what the server calls them; in a sandbox it counts otherwise than we do
        self.pids: list[int | None] = [None] * world if LINUX else list(self.names)
        self.diagnosis = Diagnosis(world)
        self.run = Run(world, events=[[] for _ in range(world)])
        self.fault: Fault | None = None
        self.lost = False  # whether only the end of the sandbox is the end of the ranks
        self.parted_at: float | None = None
        self.rest: dict[socket.socket, bytes] = dict.fromkeys(self.owner, b"")
        self.ended: dict[int, dict] = {}  # rank -> its last word: end, crash or exit
        self.gone: dict[int, int] = {}  # rank -> wait status
        self.processes: dict[int, psutil.Process] = {}
        self.cpu_at_event = dict.fromkeys(range(world), 0.0)
        self.cpu = dict.fromkeys(range(world), 0.0)
        self.said = dict.fromkeys(range(world), 0)  # bytes
        self.quiet = {n: (self.started, 0.0) for n in range(world)}  # since when, and its CPU time then

    def watch(self) -> Run:
        self.selector = selectors.DefaultSelector()
        for line in self.owner:
            self.selector.register(line, selectors.EVENT_READ, "rank")
        self.selector.register(self.engine.socket, selectors.EVENT_READ, "server")
        looked = time.monotonic()
        try:
            while self.fault is None and len(self.over()) < self.world:
                ready = [key for key, _ in self.selector.select(TICK)]
                for key in ready:
                    if key.data != "server":
                        self.hear(key)
                if any(key.data == "server" for key in ready):
                    self.reap(self.engine.answer())
                    while self.engine.heard:
                        self.reap(self.engine.answer())
                if self.diagnosis.parted:
                    self.fault = self.fault or self.mismatch()
                self.fault = self.fault or self.crashed() or self.diagnosis.deadlock(self.sleepers())
                if time.monotonic() - looked > TICK:
                    looked = time.monotonic()
                    self.fault = self.fault or self.look()
        finally:
            self.run.fault_after = time.monotonic() - self.started
            if self.wire_before is not None and not self.lost and (wire := self.engine.sandbox.wire()) is not None:
                self.run.wire = wire - self.wire_before
            self.kill()
            for key in list(self.selector.get_map().values()):
                if key.data == "rank":
                    key.fileobj.close()
            self.selector.close()
        self.run.fault = self.fault
        self.collect()
        return self.run

    def hear(self, key: selectors.SelectorKey) -> None:
        """Read what a rank said."""
        connection, number = key.fileobj, self.owner[key.fileobj]
        try:
            data, about, _, _ = connection.recvmsg(1 << 16, socket.CMSG_SPACE(CREDENTIALS.size))
        except ConnectionResetError:
            data = b""
        if not data:
            self.selector.unregister(connection)
            connection.close()
            return
        if self.pids[number] is None and about:
            self.pids[number] = CREDENTIALS.unpack(about[0][2][: CREDENTIALS.size])[
                0
            ]  # the kernel says so, as we count processes
        *lines, self.rest[connection] = (self.rest[connection] + data).split(b"\n")
        self.said[number] += len(data)
        if (
            self.said[number] > TOO_MUCH
            or len(self.run.events[number]) > TOO_MANY
            or len(self.rest[connection]) > events.LONGEST
        ):
            self.fault = self.fault or Fault(
                "hang",
                f"rank {number} makes more calls than a judge can follow",
                number,
                self.diagnosis.ranks[number].last,
                expected="the code ends",
                seen=f"{len(self.run.events[number])} calls",
            )
            return
        for line in lines:
            try:
                self.take(number, events.read(line, self.world))
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                self.fault = self.fault or Fault(
                    "crash",
                    f"rank {number} told the judge what makes no sense ({type(error).__name__}: {error})",
                    number,
                    expected="the course's own records",
                    seen=line[:80].decode(errors="replace"),
                )

    def take(self, number: int, event: dict) -> None:
        """What a rank said is so; what follows?"""
        if event["e"] == "here":
            return
        self.run.events[number].append(event)
        self.cpu_at_event[number] = self.cpu[number]
        self.quiet[number] = time.monotonic(), self.cpu[number]
        if event["e"] == "broken" and number == 0:
            self.run.broken.append(event)
        if event["e"] in ("end", "crash", "exit", "kill"):
            self.ended[number] = event
        if event["e"] in ("end", "crash"):
            self.diagnosis.ranks[number].gone = self.how_it_ended(number)
        self.fault = self.fault or self.diagnosis.add(number, event)

    def reap(self, news: dict) -> None:
        """The server says that a rank's process is gone; first hear what the ranks still had to say."""
        if news["gone"] not in self.names:
            return  # of the run before
        number = self.names.index(news["gone"])
        self.gone[number] = news["status"]
        self.drain()  # before its end is news, its last words are
        self.diagnosis.ranks[number].gone = self.how_it_ended(number)

    def drain(self) -> None:
        """Hear all that lies unread on the ranks' lines."""
        while ready := [key for key, _ in self.selector.select(0) if key.data != "server"]:
            for key in ready:
                self.hear(key)

    def over(self) -> list[int]:
        """The ranks that have said their last word, or are gone without one."""
        return [n for n in range(self.world) if n in self.gone or self.ended.get(n, {}).get("e") in ("end", "crash")]

    def mismatch(self) -> Fault | None:
        """Ranks met in different calls; hear who else comes to that call, if they come soon."""
        self.parted_at = self.parted_at or time.monotonic()
        return self.diagnosis.mismatch(final=bool(self.over()) or time.monotonic() - self.parted_at > PATIENCE)

    def crashed(self) -> Fault | None:
        """A rank that is over without having reported its end: the cause before its consequences."""
        broken = [n for n in self.over() if self.ended.get(n, {}).get("e") != "end"]
        for number in broken:
            if not self.lost_a_peer(number):
                return self.crash(number)
        # A rank whose peer vanished stops with an error of its own; the news of the peer follows.
        return self.crash(broken[0]) if broken and len(self.over()) == self.world else None

    def lost_a_peer(self, number: int) -> bool:
        text = self.ended.get(number, {}).get("text", "")
        return any(words in text for words in ("closed by peer", "reset by peer", "Broken pipe", "Connection refused"))

    def how_it_ended(self, number: int) -> str:
        word = self.ended.get(number, {}).get("e")
        if word == "end":
            return "it has finished"
        if word == "crash":
            return f"it stopped with {self.ended[number]['type']}"
        status = self.gone[number]
        if os.WIFSIGNALED(status):
            return f"it was killed by {signal.Signals(os.WTERMSIG(status)).name}"
        return f"it left by os._exit({os.waitstatus_to_exitcode(status)})"

    def line_of_check(self, frames: list) -> str:
        """The check's own line that broke on what the student's code had returned; nothing if another's code did."""
        file = Path(getattr(sys.modules.get(self.module), "__file__", None) or "")
        lines = [
            line
            for path, line, _ in frames
            if file.name.startswith("test_") and Path(path).parts[-2:] == file.parts[-2:]
        ]
        return textwrap.shorten(linecache.getline(str(file), lines[-1]).strip(), 120, placeholder=" …") if lines else ""

    def crash(self, number: int) -> Fault:
        """A rank that is gone without having reported its end."""
        word = self.ended.get(number, {})
        if word.get("e") == "crash":
            frames = [f for f in word["frames"] if f[0] in self.units]
            where = frames[-1] if frames else None
            text = (
                f"rank {number} stopped with {word['type']}:"
                f" {word['text'].strip().splitlines()[0] if word['text'].strip() else 'no message'}"
            )
            if word["type"] == "NotImplementedError" and word["text"].startswith("TODO "):
                text = f"a part of {word['text']} is still to be written"
            if where:
                text += f", at {place(where)}"
            elif line := self.line_of_check(word["frames"]):
                text += f", where the check says: {line}"
            return Fault(
                "crash",
                text,
                number,
                where,
                expected="every rank ends normally",
                seen=f"{word['type']}: {word['text']}",
                callers=frames[-2::-1],
            )
        where = word.get("where") or self.stack(number) or self.diagnosis.ranks[number].last
        where = where or next((rank.last for rank in self.diagnosis.ranks if rank.last), None)  # where its peers are
        how = self.how_it_ended(number)
        if not os.WIFSIGNALED(self.gone[number]):
            text = f"rank {number} left without reporting: {how}, at {place(where)}. An exit code is never a pass"
        else:
            text = f"rank {number} is gone: {how}, last seen at {place(where)}"
        return Fault("crash", text, number, where, expected="every rank ends normally", seen=how)

    def sleepers(self) -> set[int]:
        """Ranks that have been asleep, without a word, for several looks."""
        return {number for number, (since, _) in self.quiet.items() if time.monotonic() - since > 6 * TICK}

    def look(self) -> Fault | None:
        """Read each living rank's CPU time: it tells a loop from a wait."""
        if self.engine.sandbox and (excess := self.excess() or self.stopped()):
            return excess
        for number in set(range(self.world)) - set(self.over()):
            if self.pids[number] is None:
                continue  # it has not said a word yet
            try:
                process = self.processes.setdefault(number, psutil.Process(self.pids[number]))
                times, status = process.cpu_times(), process.status()
            except psutil.Error:  # it ended between two looks; the server will say so
                continue
            used = times.user + times.system
            self.cpu[number] = used
            since, then = self.quiet[number]
            if status != psutil.STATUS_SLEEPING or used - then > 0.1 * (time.monotonic() - since) + 0.02:
                self.quiet[number] = time.monotonic(), used  # gloo's own thread takes a little; code takes more
            silent = used - self.cpu_at_event[number]
            if silent > SILENT_CPU or used > TOTAL_CPU:
                where = self.where_now(number)
                return Fault(
                    "hang",
                    f"rank {number} runs without end at {place(where)}: {silent:.1f} s of CPU without "
                    "a collective, a step or an end",
                    number,
                    where,
                    expected="the code ends",
                    seen=f"an endless loop at {place(where)}",
                )
        living = set(range(self.world)) - set(self.over())
        if living and all(time.monotonic() - self.quiet[n][0] > IDLE for n in living):
            number = min(living, key=lambda n: (self.diagnosis.ranks[n].waiting, n))
            where = self.where_now(number)
            return Fault(
                "hang",
                f"rank {number} sleeps at {place(where)} and nothing will wake it",
                number,
                where,
                expected="the code ends",
                seen=f"asleep at {place(where)}",
            )
        return None

    def excess(self) -> Fault | None:
        """A submission that takes more of the machine than it is given."""
        memory = written = 0
        processes = self.engine.inside()
        for process in processes:
            with suppress(psutil.Error):
                memory += process.memory_info().rss
        files = sandbox.sizes(self.engine.sandbox.folder)
        written = sum(files)
        gib = sandbox.GIB
        for what, seen, most in (
            (
                "memory",
                f"{memory / gib:.1f} GiB",
                memory > sandbox.TOTAL_MEMORY and f"{sandbox.TOTAL_MEMORY // gib} GiB",
            ),
            (
                "processes",
                f"{len(processes)}",
                len(processes) > sandbox.TOTAL_PROCESSES and f"{sandbox.TOTAL_PROCESSES}",
            ),
            (
                "files",
                f"{written / gib:.1f} GiB",
                written > sandbox.TOTAL_WRITTEN and f"{sandbox.TOTAL_WRITTEN // gib} GiB",
            ),
            ("files", f"{len(files)}", len(files) > sandbox.TOTAL_FILES and f"{sandbox.TOTAL_FILES}"),
            ("time", "its end is not in sight", time.monotonic() > self.engine.until and "its share"),
        ):
            if most:
                self.lost = True
                return Fault(
                    "crash",
                    f"the ranks take more {what} than a submission is given: {seen}, where {most} is allowed",
                    None,
                    expected=f"at most {most}",
                    seen=seen,
                )
        return None

    def stopped(self) -> Fault | None:
        """A process that neither runs nor waits: somebody has sent it SIGSTOP, and the judge would wait for it."""
        for process in self.engine.inside():
            with suppress(psutil.Error):
                if process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                    self.lost = True
                    return Fault(
                        "crash",
                        "a process was stopped by a signal, and nobody will let it go on",
                        None,
                        expected="every rank ends normally",
                        seen="a process that is stopped",
                    )
        return None

    def where_now(self, number: int) -> Where | None:
        """Ask a rank for the line it is at: faulthandler writes it, whatever the rank is doing."""
        if self.pids[number] is None:
            return None
        try:
            os.kill(self.pids[number], signal.SIGUSR1)
        except ProcessLookupError:
            return self.diagnosis.ranks[number].last
        deadline = time.monotonic() + 1.0
        while "File" not in self.text(f"stacks-{number}") and time.monotonic() < deadline:
            time.sleep(0.005)  # bounded: a rank that can not even dump its stack is known by its last event
        return self.stack(number) or self.diagnosis.ranks[number].last

    def stack(self, number: int) -> Where | None:
        """The innermost line of the student's code in what faulthandler wrote."""
        for line in self.text(f"stacks-{number}").splitlines():
            for unit in self.units:
                if line.strip().startswith(f'File "{unit}", line '):
                    number_part, _, function = line.strip().removeprefix(f'File "{unit}", line ').partition(" in ")
                    return [unit, int(number_part), function]
        return None

    def kill(self) -> None:
        """End every rank and all it started."""
        if self.engine.sandbox and not self.lost:
            self.fault = self.fault or self.stopped()
        if self.lost:  # the server may not be able to
            self.engine.close()
            return
        for number, pid in enumerate(self.pids):
            if number not in self.gone and pid is not None:
                end_group(pid)
        self.engine.ask(sweep=True)
        while "swept" not in self.engine.answer():
            pass  # news of ranks

    def collect(self) -> None:
        from grader.engine.ranks import evidence

        for number in range(self.world):
            for name, kept in (("stdout", self.run.stdout), ("stderr", self.run.stderr)):
                kept.append(self.text(f"{name}-{number}"))
            try:
                self.run.evidence.append(evidence.read(self.folder / f"evidence-{number}"))
            except Exception:
                self.run.evidence.append(None)
                self.run.fault = self.run.fault or Fault("crash", f"rank {number} left no evidence", number)
        work, left = self.folder / "work", ALL_FILES
        for path in sorted(sandbox.plain_files(work)):
            with suppress(OSError):  # no plain file, or too long
                content = plain_bytes(path, min(left, ONE_FILE))
                left -= len(content)
                self.run.files[str(path.relative_to(work))] = content

    def text(self, name: str) -> str:
        """The beginning of a text that a rank left in the run's folder; "" if there is none."""
        try:
            return plain_bytes(self.folder / name, PRINTED, cut=True).decode(errors="replace")
        except OSError:
            return ""
