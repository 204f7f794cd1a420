"""The judge's connection to a fork-server: starts it, talks to it, and leaves nothing of it running.

The other end is `server.py`, whose docstring lists the messages.
"""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from grader.engine.lesson import lessons
from grader.engine.ranks import kept_server
from grader.engine.ranks.linux_processes import Process, processes_below
from grader.engine.walls import sandbox

ANSWERS = 30.0  # seconds within which a ready server answers, unless the machine is busy
BUSY = 10  # times that long: after that, it never will


class ServerGone(RuntimeError):
    """The fork-server ended."""


class Connection:
    """A connection to one fork-server, which is started when needed and ended by `close`.

    Args:
        outside: the connection to the server from which this one is forked; then it and its ranks live in a sandbox.
        walls: what surrounds that sandbox: bubblewrap, users or off.
        course: the course that is visible inside.
        packages: loaded by both servers in addition to what all lessons need.
        lesson: answers of this lesson and later ones are not visible in the sandbox.
        kept: use the server of an earlier command, or leave one to the next, if that is wanted (see `kept_server.py`).
        from_here: fork the server from this process if that has nothing in memory which the ranks must not see, and has
            not loaded torch yet.
    """

    def __init__(
        self,
        outside: "Connection | None",
        walls: str,
        course: Path,
        packages: Sequence[str],
        lesson: str,
        kept: bool,
        from_here: bool = False,
    ) -> None:
        self.from_here = from_here
        self.kept = kept and kept_server.wanted()
        self.outside, self.walls, self.course = outside, walls, course
        self.packages, self.lesson = list(packages), lesson
        self.socket: socket.socket | None = None
        self.process: psutil.Process | None = None
        self.sandbox: sandbox.Sandbox | None = None
        self.middle = 0  # the process that holds the sandboxed server
        self.until = math.inf  # time.monotonic() at which the time for the sandbox is up

    def start(self, gpus: bool = False, many: bool = False) -> None:
        """Start the fork-server, if it is not up; does not wait until it is ready.

        Args:
            gpus: whether the GPUs are accessible in a sandbox that is made now.
            many: whether it is going to fork many ranks.
        """
        if self.sandbox or self._runs() or (self.kept and self.socket):
            return
        self.ready, self.heard, self.rest = False, [], b""
        if self.kept and (connected := kept_server.connect(kept_server.address())):
            self.socket = connected
            return
        self.socket, theirs = socket.socketpair()
        if self.outside:
            self._start_inside(theirs, gpus)
            return
        if self.kept:
            self.socket.sendall(kept_server.ATTEND)
            kept_server.start(theirs, kept_server.address())
        elif self.from_here and "torch" not in sys.modules and threading.active_count() == 1:
            self.process = psutil.Process(self._fork(theirs, many))
        else:
            self.process = psutil.Popen(
                [sys.executable, "-m", "grader.engine.ranks.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=kept_server.environment(),
                cwd=lessons.COURSE,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        theirs.close()

    def _fork(self, theirs: socket.socket, many: bool) -> int:
        """Fork the server from this process, where torch is loaded as the server needs it: for one thread."""
        environment, threads = kept_server.environment(), os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = environment["OMP_NUM_THREADS"]
        from grader.engine.ranks import fork_server

        if threads is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = threads
        return fork_server.fork_from_command(theirs, self.socket, environment, many)

    def _runs(self) -> bool:
        """Whether a server that this connection has started is still there."""
        if self.process is None:
            return False
        try:
            self.process.wait(timeout=0)
            return False
        except psutil.TimeoutExpired:
            return True

    def _start_inside(self, theirs: socket.socket, gpus: bool) -> None:
        self.outside.start()
        self.outside.await_ready()
        self.sandbox = sandbox.Sandbox(self.walls, self.course, self.lesson, gpus)
        self.outside.ask(
            [theirs], enter=self.sandbox.first, walls=self.walls, gpus=gpus, packages=self.packages, lesson=self.lesson
        )
        theirs.close()
        while "entered" not in (answer := self.outside.answer()):
            pass  # messages about its own ranks
        self.middle = answer["entered"]

    def await_ready(self) -> None:
        if not self.ready:
            self.answer()
            self.socket.settimeout(ANSWERS)
            self.ready = True

    def close(self) -> None:
        if self.kept and self.socket:
            self.socket.close()  # the child that serves us kills what still runs, and ends; its parent stays
            self.socket = None
        if self.sandbox:
            self.socket.close()
            self.sandbox.end()
            for process in self.inside():  # without bubblewrap there is no process whose end ends all others
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            self.sandbox.remove()
            self.sandbox = None
        if self.process:
            self.socket.close()  # the server kills what still runs, and ends
            try:
                self.process.wait(timeout=2)
            except psutil.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def stopped(self) -> bool:
        """Whether the server was stopped by SIGSTOP, if we know its process id."""
        for pid in filter(None, (self.process and self.process.pid, self.middle)):
            with suppress(psutil.Error):
                if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                    return True
        return False

    def inside(self) -> list[Process]:
        """All processes in the sandbox."""
        return processes_below({self.middle, self.sandbox.first} - {0, None})

    def ask(self, sockets: Sequence[socket.socket] = (), **message: Any) -> None:
        """Send the server a message, together with the ranks' ends of their connections."""
        try:
            if sockets:
                socket.send_fds(self.socket, [b" "], [one.fileno() for one in sockets])
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
            except ConnectionResetError:  # it ended, and had not read all that it was sent
                data = b""
            if not data:
                raise ServerGone("the fork-server ended; its message is above")
            *lines, self.rest = (self.rest + data).split(b"\n")
            self.heard += [json.loads(line) for line in lines]
        return self.heard.pop(0)
