"""The judge's side of a run: start ranks, listen, stop them, collect what they left.

`Engine` owns one fork-server. `Engine.run` starts fresh ranks for one job and
returns a `Run`, or says by a `Fault` in it why the run failed. It waits for
events, not for a while: a rank's silence is judged by its CPU time, a
deadlock by who waits for whom.
"""

import json
import linecache
import math
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from grader.engine import events, lessons, sandbox
from grader.engine.diagnose import Fault, Observer, Where, place

SILENT_CPU = 1.5  # seconds of CPU without a sign of life: a loop that never ends
TOTAL_CPU = 60.0  # seconds of CPU that one rank may use in all
IDLE = 4.0  # seconds of every rank asleep, none in a collective: a sleep, a lock, a read that never ends
PATIENCE = 0.3  # seconds to hear who else comes to a call that is wrong already
ANSWERS = 30.0  # seconds in which a server that is ready answers, or it never will
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


class ServerGone(RuntimeError):
    """The fork-server ended."""


class Engine:
    """A warm fork-server. Use as a context manager, or `close` it: it leaves nothing running.

    Args:
        outside: the engine from whose server this one's is forked; then its ranks run in a sandbox
        guards: with these walls
        course: and see this course.
        modules: what both shall have loaded.
    """

    def __init__(
        self,
        outside: "Engine | None" = None,
        guards: sandbox.Guards = sandbox.NONE,
        course: Path = lessons.COURSE,
        modules: Sequence[str] = (),
    ) -> None:
        self.outside, self.guards, self.course, self.modules = outside, guards, course, list(modules)
        self.socket: socket.socket | None = None
        self.process: subprocess.Popen | None = None
        self.sandbox: sandbox.Sandbox | None = None
        self.middle = 0  # the process that holds the sandboxed server
        self.until = math.inf  # time.monotonic() when its time is up

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the fork-server, if it is not up; does not wait until it is ready."""
        if self.sandbox or (self.process and self.process.poll() is None):
            return
        ours, theirs = socket.socketpair()
        self.socket, self.ready = ours, False
        self.heard, self.rest = [], b""
        if self.outside:
            self._start_inside(theirs)
            return
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(lessons.COURSE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "CUDA_VISIBLE_DEVICES": "",
            "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "grader.engine.server", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            cwd=lessons.COURSE,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()

    def _start_inside(self, theirs: socket.socket) -> None:
        self.outside.start()
        self.outside.await_ready()
        self.sandbox = sandbox.Sandbox(self.guards, self.course)
        self.outside.ask(
            [theirs],
            enter=self.sandbox.first,
            doors=self.sandbox.group.doors() if self.sandbox.group else [],
            landlock=self.guards is sandbox.LANDLOCK,
            modules=self.modules,
        )
        theirs.close()
        while "entered" not in (answer := self.outside.answer()):
            pass  # news of its own ranks
        self.middle = answer["entered"]

    def await_ready(self) -> None:
        if not self.ready:
            self.answer()
            self.socket.settimeout(ANSWERS)
            self.ready = True

    def close(self) -> None:
        if self.sandbox:
            self.socket.close()
            self.sandbox.end()
            for process in self.inside():  # without bubblewrap there is nobody whose end is the end of all
                with suppress(psutil.Error):
                    process.kill()
            self.sandbox.remove()
            self.sandbox = None
        if self.process:
            self.socket.close()  # the server kills what still runs, and ends
            try:
                self.process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def inside(self) -> list[psutil.Process]:
        """All processes of the sandbox."""
        found = []
        for pid in (self.middle, self.sandbox.first):
            with suppress(psutil.Error):
                found += psutil.Process(pid).children(recursive=True) if pid else []
        return found

    def ask(self, lines: Sequence[socket.socket] = (), **message: Any) -> None:
        """Send the server a message, and the ranks' ends of their lines with it."""
        try:
            if lines:
                socket.send_fds(self.socket, [b" "], [line.fileno() for line in lines])
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            raise ServerGone("the fork-server ended; its message is above") from None

    def answer(self) -> dict:
        """The server's next message."""
        while not self.heard:
            try:
                data = self.socket.recv(1 << 16)
            except TimeoutError:  # somebody has stopped it
                data = b""
            if not data:
                raise ServerGone("the fork-server ended; its message is above")
            *lines, self.rest = (self.rest + data).split(b"\n")
            self.heard += [json.loads(line) for line in lines]
        return self.heard.pop(0)

    def run(
        self,
        units: list[lessons.Unit],
        *,
        module: str,
        world: int = 2,
        nodes: int = 1,
        argv: list[str] | None = None,
        function: str | None = None,
        inputs: dict | None = None,
        group: bool = True,
        gpus: int = 0,
        files: dict[str, str] | None = None,
    ) -> Run:
        """Run `units` on `world` fresh ranks; see `rank.py` for the job's fields. Never raises for the student's
        faults.
        """
        how = dict(
            module=module,
            world=world,
            nodes=nodes,
            argv=argv,
            function=function,
            inputs=inputs or {},
            group=group,
            gpus=gpus,
            files=files or {},
        )
        try:
            return self._run(units, **how)
        except ServerGone:
            self.close()
        if self.outside:  # the system may have killed it, short of memory: what happens twice is the submission's
            try:
                return self._run(units, **how)
            except ServerGone:
                self.close()
        # it was up, and only the ranks were with it
        return Run(
            world,
            Fault(
                "crash",
                "the process that starts the ranks was killed: a rank may end itself, and nothing else",
                None,
                expected="every rank ends normally",
                seen="a rank kills its parent",
            ),
            [None] * world,
            [[] for _ in range(world)],
        )

    def _run(
        self,
        units: list[lessons.Unit],
        *,
        module: str,
        world: int,
        nodes: int,
        argv: list[str] | None,
        function: str | None,
        inputs: dict,
        group: bool,
        gpus: int,
        files: dict[str, str],
    ) -> Run:
        self.start()
        try:
            self.await_ready()
        except ServerGone as gone:  # no rank was there yet
            raise RuntimeError(f"the fork-server does not start: {gone}") from None
        folder = Path(tempfile.mkdtemp(prefix="wb-", dir=self.sandbox and self.sandbox.folder))
        try:
            job = dict(
                folder=str(folder),
                units=[{"name": u.name, "text": u.text} for u in units],
                file=str(lessons.COURSE / units[0].name.partition(",")[0]) if units else None,
                notebook=any(", cell " in u.name for u in units),
                argv=argv,
                module=module,
                function=function,
                world=world,
                nodes=nodes,
                group=group,
                gpus=gpus,
            )
            for name, text in files.items():
                target = folder / "work" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
            try:
                return Session(self, folder, job, [for_rank(number, inputs) for number in range(world)]).watch()
            except ServerGone:
                raise
            except BaseException:  # an interrupt, say: what the server still owes us is unknown
                self.close()
                raise
        finally:
            sandbox.remove(folder)


class Private(list):
    """One value for each rank: as an input of a job, rank r is given value r and never sees the others'."""


def for_rank(number: int, inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: value[number] if isinstance(value, Private) else value for name, value in inputs.items()}


def end_group(pid: int) -> None:
    """Kill a rank and its process group; a rank that was just forked has no group of its own yet."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


class Session:
    """One run, from the fork of its ranks to the end of the last."""

    def __init__(self, engine: Engine, folder: Path, job: dict, inputs: list[dict]) -> None:
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
        self.observer = Observer(world)
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
                if self.observer.parted:
                    self.fault = self.fault or self.mismatch()
                self.fault = self.fault or self.crashed() or self.observer.deadlock(self.sleepers())
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
                self.observer.ranks[number].last,
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
            self.observer.ranks[number].gone = self.how_it_ended(number)
        self.fault = self.fault or self.observer.add(number, event)

    def reap(self, news: dict) -> None:
        """The server says that a rank's process is gone; first hear what the ranks still had to say."""
        if news["gone"] not in self.names:
            return  # of the run before
        number = self.names.index(news["gone"])
        self.gone[number] = news["status"]
        self.drain()  # before its end is news, its last words are
        self.observer.ranks[number].gone = self.how_it_ended(number)

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
        return self.observer.mismatch(final=bool(self.over()) or time.monotonic() - self.parted_at > PATIENCE)

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
        where = word.get("where") or self.stack(number) or self.observer.ranks[number].last
        where = where or next((rank.last for rank in self.observer.ranks if rank.last), None)  # where its peers are
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
            number = min(living, key=lambda n: (self.observer.ranks[n].waiting, n))
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
            return self.observer.ranks[number].last
        deadline = time.monotonic() + 1.0
        while "File" not in self.text(f"stacks-{number}") and time.monotonic() < deadline:
            time.sleep(0.005)  # bounded: a rank that can not even dump its stack is known by its last event
        return self.stack(number) or self.observer.ranks[number].last

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
        from grader.engine import evidence  # torch: here, so that the server can load its own meanwhile

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
                content = evidence.plain_bytes(path, min(left, ONE_FILE))
                left -= len(content)
                self.run.files[str(path.relative_to(work))] = content

    def text(self, name: str) -> str:
        """The beginning of a text that a rank left in the run's folder; "" if there is none."""
        from grader.engine import evidence

        try:
            return evidence.plain_bytes(self.folder / name, PRINTED, cut=True).decode(errors="replace")
        except OSError:
            return ""
