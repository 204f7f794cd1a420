"""The judge's side of a run: start ranks, listen, stop them, collect what they left.

`Engine` owns one fork-server. `Engine.run` starts fresh ranks for one job and
returns a `Run`, or says by a `Fault` in it why the run failed. It waits for
events, not for a while: a rank's silence is judged by its CPU time, a
deadlock by who waits for whom.
"""

import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from grader.engine import lessons
from grader.engine.diagnose import Fault, Observer, Where, place

SILENT_CPU = 1.5  # seconds of CPU without a sign of life: a loop that never ends
TOTAL_CPU = 60.0  # seconds of CPU that one rank may use in all
IDLE = 4.0  # seconds of every rank asleep, none in a collective: a sleep, a lock, a read that never ends
PATIENCE = 0.3  # seconds to hear who else comes to a call that is wrong already
TICK = 0.05  # seconds between looks at the ranks' CPU time


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


class Engine:
    """A warm fork-server. Use as a context manager, or `close` it: it leaves nothing running."""

    def __init__(self) -> None:
        self.socket: socket.socket | None = None
        self.process: subprocess.Popen | None = None

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the fork-server, if it is not up; does not wait until it is ready."""
        if self.process and self.process.poll() is None:
            return
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(lessons.COURSE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep), "CUDA_VISIBLE_DEVICES": "",
                       "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0", "TOKENIZERS_PARALLELISM": "false"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "grader.engine.server", str(theirs.fileno())],
            pass_fds=[theirs.fileno()], env=environment, cwd=lessons.COURSE, stdin=subprocess.DEVNULL,
            start_new_session=True)
        theirs.close()
        self.socket, self.ready = ours, False
        self.heard, self.rest = [], b""

    def close(self) -> None:
        if self.process:
            self.socket.close()  # the server kills what still runs, and ends
            try:
                self.process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def ask(self, **message: Any) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def answer(self) -> dict:
        """The server's next message."""
        while not self.heard:
            data = self.socket.recv(1 << 16)
            if not data:
                raise RuntimeError("the fork-server ended; its message is above")
            *lines, self.rest = (self.rest + data).split(b"\n")
            self.heard += [json.loads(line) for line in lines]
        return self.heard.pop(0)

    def run(self, units: list[lessons.Unit], *, module: str, world: int = 2, nodes: int = 1, argv: list[str] | None = None,
            function: str | None = None, inputs: dict | None = None, group: bool = True, gpus: int = 0,
            files: dict[str, str] | None = None) -> Run:
        """Run `units` on `world` fresh ranks; see `rank.py` for the job's fields. Never raises for the student's faults."""
        self.start()
        folder = Path(tempfile.mkdtemp(prefix="wb-"))
        try:
            job = dict(units=[{"name": u.name, "text": u.text} for u in units],
                       file=str(lessons.COURSE / units[0].name.partition(",")[0]) if units else None,
                       notebook=any(", cell " in u.name for u in units), argv=argv, module=module, function=function,
                       inputs=inputs or {}, world=world, nodes=nodes, group=group, gpus=gpus)
            (folder / "job.json").write_text(json.dumps(job))
            for name, text in (files or {}).items():
                target = folder / "work" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(folder / "judge.sock"))
            listener.listen(world)
            try:
                return Session(self, folder, listener, world, module).watch()
            except BaseException:  # an interrupt, say: what the server still owes us is unknown
                self.close()
                raise
            finally:
                listener.close()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def end_group(pid: int) -> None:
    """Kill a rank and its process group; a rank that was just forked has no group of its own yet."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


class Session:
    """One run, from the fork of its ranks to the end of the last."""

    def __init__(self, engine: Engine, folder: Path, listener: socket.socket, world: int, module: str) -> None:
        self.engine, self.folder, self.listener, self.world = engine, folder, listener, world
        if not engine.ready:
            engine.answer()
            engine.ready = True
        engine.ask(folder=str(folder), world=world, module=module)
        self.started = time.monotonic()
        while "pids" not in (answer := engine.answer()):
            pass  # news of the run before
        self.pids = answer["pids"]
        self.observer = Observer(world)
        self.run = Run(world, events=[[] for _ in range(world)])
        self.fault: Fault | None = None
        self.parted_at: float | None = None
        self.rest: dict[socket.socket, bytes] = {}
        self.owner: dict[socket.socket, int] = {}
        self.ended: dict[int, dict] = {}  # rank -> its last word: end, crash or exit
        self.gone: dict[int, int] = {}  # rank -> wait status
        self.processes: dict[int, psutil.Process] = {}
        self.cpu_at_event = dict.fromkeys(range(world), 0.0)
        self.cpu = dict.fromkeys(range(world), 0.0)
        self.quiet = {n: (self.started, 0.0) for n in range(world)}  # since when, and its CPU time then

    def watch(self) -> Run:
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ, "new")
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
            self.kill()
            for key in list(self.selector.get_map().values()):
                if key.data == "rank":
                    key.fileobj.close()
            self.selector.close()
        self.run.fault = self.fault
        self.collect()
        return self.run

    def hear(self, key: selectors.SelectorKey) -> None:
        """Take a new rank's call, or read what a rank said."""
        if key.data == "new":
            connection, _ = self.listener.accept()
            self.selector.register(connection, selectors.EVENT_READ, "rank")
            self.rest[connection] = b""
            return
        connection = key.fileobj
        try:
            data = connection.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self.selector.unregister(connection)
            connection.close()
            return
        *lines, self.rest[connection] = (self.rest[connection] + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if event["e"] == "rank":
                self.owner[connection] = event["rank"]
                continue
            number = self.owner[connection]
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
        if news["gone"] not in self.pids:
            return  # of the run before
        number = self.pids.index(news["gone"])
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

    def crash(self, number: int) -> Fault:
        """A rank that is gone without having reported its end."""
        word = self.ended.get(number, {})
        if word.get("e") == "crash":
            frames = [f for f in word["frames"] if f[0] in self.units()]
            where = frames[-1] if frames else None
            text = f"rank {number} stopped with {word['type']}: {word['text'].strip().splitlines()[0] if word['text'].strip() else 'no message'}"
            if word["type"] == "NotImplementedError" and word["text"].startswith("TODO "):
                text = f"a part of {word['text']} is still to be written"
            if where:
                text += f", at {place(where)}"
            return Fault("crash", text, number, where, expected="every rank ends normally", seen=f"{word['type']}: {word['text']}")
        where = word.get("where") or self.stack(number) or self.observer.ranks[number].last
        where = where or next((rank.last for rank in self.observer.ranks if rank.last), None)  # where its peers are
        how = self.how_it_ended(number)
        if not os.WIFSIGNALED(self.gone[number]):
            text = f"rank {number} left without reporting: {how}, at {place(where)}. An exit code is never a pass"
        else:
            text = f"rank {number} is gone: {how}, last seen at {place(where)}"
        return Fault("crash", text, number, where, expected="every rank ends normally", seen=how)

    def units(self) -> set[str]:
        return {unit["name"] for unit in json.loads((self.folder / "job.json").read_text())["units"]}

    def sleepers(self) -> set[int]:
        """Ranks that have been asleep, without a word, for several looks."""
        return {number for number, (since, _) in self.quiet.items() if time.monotonic() - since > 6 * TICK}

    def look(self) -> Fault | None:
        """Read each living rank's CPU time: it tells a loop from a wait."""
        for number in set(range(self.world)) - set(self.over()):
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
                return Fault("hang", f"rank {number} runs without end at {place(where)}: {silent:.1f} s of CPU without "
                             "a collective, a step or an end", number, where,
                             expected="the code ends", seen=f"an endless loop at {place(where)}")
        living = set(range(self.world)) - set(self.over())
        if living and all(time.monotonic() - self.quiet[n][0] > IDLE for n in living):
            number = min(living, key=lambda n: (self.observer.ranks[n].waiting, n))
            where = self.where_now(number)
            return Fault("hang", f"rank {number} sleeps at {place(where)} and nothing will wake it", number, where,
                         expected="the code ends", seen=f"asleep at {place(where)}")
        return None

    def where_now(self, number: int) -> Where | None:
        """Ask a rank for the line it is at: faulthandler writes it, whatever the rank is doing."""
        stacks = self.folder / f"stacks-{number}"
        try:
            os.kill(self.pids[number], signal.SIGUSR1)
        except ProcessLookupError:
            return self.observer.ranks[number].last
        deadline = time.monotonic() + 1.0
        while "File" not in stacks.read_text() and time.monotonic() < deadline:
            time.sleep(0.005)  # bounded: a rank that can not even dump its stack is known by its last event
        return self.stack(number) or self.observer.ranks[number].last

    def stack(self, number: int) -> Where | None:
        """The innermost line of the student's code in what faulthandler wrote."""
        stacks = self.folder / f"stacks-{number}"
        if not stacks.exists():
            return None
        for line in stacks.read_text().splitlines():
            for unit in self.units():
                if line.strip().startswith(f'File "{unit}", line '):
                    number_part, _, function = line.strip().removeprefix(f'File "{unit}", line ').partition(" in ")
                    return [unit, int(number_part), function]
        return None

    def kill(self) -> None:
        """End every rank and all it started."""
        for number, pid in enumerate(self.pids):
            if number not in self.gone:
                end_group(pid)
        self.engine.ask(sweep=True)
        while "swept" not in self.engine.answer():
            pass  # news of ranks

    def collect(self) -> None:
        from grader.engine import evidence  # torch: here, so that the server can load its own meanwhile

        for number in range(self.world):
            for name, kept in (("stdout", self.run.stdout), ("stderr", self.run.stderr)):
                path = self.folder / f"{name}-{number}"
                kept.append(path.read_text(errors="replace")[:1_000_000] if path.exists() else "")
            try:
                self.run.evidence.append(evidence.read(self.folder / f"evidence-{number}"))
            except Exception:
                self.run.evidence.append(None)
                self.run.fault = self.run.fault or Fault("crash", f"rank {number} left no evidence", number)
        work = self.folder / "work"
        for path in sorted(work.rglob("*")) if work.exists() else []:
            if path.is_file() and not path.is_symlink() and path.stat().st_size < 50_000_000:
                self.run.files[str(path.relative_to(work))] = path.read_bytes()
