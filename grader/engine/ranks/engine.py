"""The judge's side of the ranks: an `Engine` owns one fork-server, and each `run` starts fresh ranks for one job."""

import json
import math
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from grader.engine.lesson import lessons
from grader.engine.ranks import backends, keeper
from grader.engine.ranks.diagnose import Fault
from grader.engine.ranks.run import Run
from grader.engine.ranks.session import Session
from grader.engine.walls import sandbox

ANSWERS = 30.0  # seconds in which a server that is ready answers, unless the machine is busy
BUSY = 10  # times that long: then it never will


class ServerGone(RuntimeError):
    """The fork-server ended."""


class Engine:
    """A warm fork-server. Use as a context manager, or `close` it: it leaves nothing running.

    Args:
        outside: the engine from whose server this one's is forked; then its ranks run in a sandbox
        guards: with these walls
        course: and see this course.
        modules: what both shall have loaded.
        kept: use the server of an earlier command, or leave one to the next, where that is wanted (see `keeper`).
        backend: what the ranks talk by; it may be set later, too.
    """

    def __init__(
        self,
        outside: "Engine | None" = None,
        guards: sandbox.Guards = sandbox.NONE,
        course: Path = lessons.COURSE,
        modules: Sequence[str] = (),
        kept: bool = False,
        backend: backends.Backend = backends.GLOO,
    ) -> None:
        self.backend = backend
        self.kept = kept and keeper.wanted()
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
        if self.sandbox or (self.process and self.process.poll() is None) or (self.kept and self.socket):
            return
        self.ready, self.heard, self.rest = False, [], b""
        if self.kept and (line := keeper.connect(keeper.address())):
            self.socket = line
            return
        self.socket, theirs = socket.socketpair()
        if self.outside:
            self._start_inside(theirs)
            return
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(lessons.COURSE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            # No GPU for the server: CUDA does not survive a fork. A rank that is to have one sets this anew.
            "CUDA_VISIBLE_DEVICES": "",
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if self.kept:
            keeper.start(theirs, keeper.address(), environment)
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "grader.engine.ranks.server", str(theirs.fileno())],
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
        self.sandbox = sandbox.Sandbox(self.guards, self.course, gpus=bool(self.backend.gpus))
        self.outside.ask(
            [theirs],
            enter=self.sandbox.first,
            doors=self.sandbox.group.doors() if self.sandbox.group else [],
            landlock=self.guards is sandbox.LANDLOCK,
            gpus=bool(self.backend.gpus),
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
        if self.kept and self.socket:
            self.socket.close()  # the child that attends to us kills what still runs, and ends; its parent stays
            self.socket = None
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

    def stopped(self) -> bool:
        """Whether somebody has sent the server SIGSTOP, as far as we know which process it is."""
        for pid in filter(None, (self.process and self.process.pid, self.middle)):
            with suppress(psutil.Error):
                if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                    return True
        return False

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
        late = 0
        while not self.heard:
            try:
                data = self.socket.recv(1 << 16)
            except TimeoutError:
                late += 1
                if late < BUSY and not self.stopped():
                    continue
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
        on_gpus: bool = False,
    ) -> Run:
        """Run `units` on `world` fresh ranks; see `rank.py` for the job's fields. Never raises for the student's
        faults.

        Args:
            on_gpus: if this engine's backend is NCCL, on GPUs.
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
            devices=self.backend.devices(world) if on_gpus else [],
        )
        try:
            return self._run(units, **how)
        except ServerGone:
            self.close()
        # The system may have killed it, short of memory, or `./workbook stop` has: what happens twice is the code's.
        if self.outside or self.kept:
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
        devices: list[str],
    ) -> Run:
        self.start()
        try:
            self.await_ready()
        except ServerGone as gone:  # no rank was there yet
            why = f"{keeper.last_words()} (more in {keeper.log()})" if self.kept else gone
            raise RuntimeError(f"the fork-server does not start: {why}") from None
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
                devices=devices,
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
