"""A fork-server that outlives the command that started it, so that the next command does not load torch again.

There is one for each user, course folder and state of the preloaded files. Its address contains a digest of these
files: after a change, commands no longer find the old server. It forks a separate server for each command that asks
(`attend`), and can run a whole command, which then does not load the checks either (`hand_over`). It ends when no
command has asked for a while, or with `./workbook stop`. Tests, grading and CI never use it.
"""

import hashlib
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from grader.engine.lesson import lessons
from utils import interfaces

UNUSED = 300.0  # seconds without a command after which it ends
IDLE = 0.5  # seconds without a command after which it has time for itself
LONGEST = 107 - 32  # bytes: the limit of unix(7) for an address, minus a server's own name
STOP, ATTEND, RUN = b"s", b"a", b"r"  # the first message of a command


def wanted() -> bool:
    """Whether a command should use a server and leave one running: a student is at work here, and there is a valid
    address.
    """
    if sys.platform != "linux" or any(
        name in os.environ for name in ("CI", "PYTEST_CURRENT_TEST", "WORKBOOK_NO_SERVER")
    ):
        return False
    try:
        folder()
    except OSError:  # without a server a command is slower, but works
        return False
    return True


def folder() -> Path:
    """The folder of the addresses of this user's servers, which no other user may enter. Raises OSError if that is
    impossible.
    """
    path = Path(tempfile.gettempdir()) / f"workbook-{os.getuid()}"
    if len(os.fsencode(path)) > LONGEST:
        raise OSError(f"{path} is too long for a socket's address")
    path.mkdir(mode=0o700, exist_ok=True)
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise OSError(f"{path} is not this user's alone")
    return path


def address() -> Path:
    """The address of the server for this course as it is now."""
    course = hashlib.sha256(str(lessons.COURSE).encode()).hexdigest()[:10]
    return folder() / f"{course}-{state()[:10]}"


def state() -> str:
    """A digest of the course's modules, the texts and the register of its lessons, and the interpreter."""
    found = hashlib.sha256(f"{sys.executable} {sys.version}".encode())
    files = [file for part in ("grader", "utils") for file in (lessons.COURSE / part).rglob("*.py")]
    files += [*lessons.folder("").glob("*/texts.md"), *lessons.folder("").glob("*.toml")]
    for file in sorted(files):
        about = file.stat()
        found.update(f"{file} {about.st_mtime_ns} {about.st_size}".encode())
    return found.hexdigest()


def connect(path: Path, word: bytes = ATTEND) -> socket.socket | None:
    """A connection to the server at this address; None if there is none."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
        connection.sendall(word)
        return connection
    except OSError:
        connection.close()
        return None


def log() -> Path:
    """The log file of a kept server."""
    return lessons.COURSE / ".workbook" / "server.log"


def last_words() -> str:
    """The last line in the log of a kept server."""
    lines = log().read_text("utf-8", "replace").split("\n") if log().is_file() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it has said nothing")


def environment() -> dict[str, str]:
    """A fork-server's, from this process's."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(lessons.COURSE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        **interfaces.here(),
        "TOKENIZERS_PARALLELISM": "false",
    }


def start(connection: socket.socket, path: Path) -> None:
    """Start a server at this address; `connection` is the first that it serves."""
    log().parent.mkdir(exist_ok=True)
    with log().open("w") as said:
        subprocess.Popen(
            [sys.executable, "-m", "grader.engine.ranks.fork_server", str(connection.fileno()), str(path)],
            pass_fds=[connection.fileno()],
            env=environment(),
            cwd=lessons.COURSE,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )


def hand_over(arguments: list[str], started: bool = False) -> int | None:
    """Have a server execute this command on this terminal. `started`: start one if there is none; so torch is loaded
    once, and not by the command as well.

    Returns the exit code; None if there is no server, or if it ended before it started the command, or if this is one.
    """
    if taken_over or not wanted():
        return None
    connection = connect(address(), RUN)
    if connection is None and not started:
        return None
    if connection is None:
        connection, theirs = socket.socketpair()
        start(theirs, address())
        theirs.close()
        connection.sendall(RUN)
    with connection, connection.makefile() as heard:
        try:
            socket.send_fds(connection, [b" "], [0, 1, 2])
            connection.sendall(json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode() + b"\n")
            pid = heard.readline()
        except (BrokenPipeError, ConnectionResetError):
            pid = ""
        if not pid:
            return None
        while True:
            try:
                if code := heard.readline():
                    return int(code)
                print("workbook: the server that ran this was ended; call it again", file=sys.stderr)
                return 70
            except KeyboardInterrupt:  # the terminal signals only this process
                os.kill(int(pid), signal.SIGINT)


taken_over: list[str] = []  # the command that this process, a server's child, executes


def take_over(connection: socket.socket, main: Callable[[], None]) -> None:
    """The server's end of `hand_over`: run the command in this process."""
    _, terminal, _, _ = socket.recv_fds(connection, 1, 3)
    heard = connection.makefile()
    arguments, here, environment = json.loads(heard.readline())
    for number, descriptor in enumerate(terminal):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(here)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    taken_over.extend(arguments)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        setattr(sys, name, open(getattr(sys, f"__{name}__").fileno(), mode, closefd=False))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.sendall(f"{os.getpid()}\n".encode())
    code = 70
    try:
        main()
    except SystemExit as end:
        code = int(end.code) if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(f"{code}\n".encode())


def stop() -> int:
    """End all of this user's servers for this course, also those for an older state of it. Returns their number."""
    course = address().name.partition("-")[0]
    count = 0
    for path in folder().glob(f"{course}-*"):
        connection = connect(path, STOP)
        if connection is None:
            path.unlink(missing_ok=True)
            continue
        count += 1
        connection.settimeout(5)
        with connection, suppress(OSError):
            connection.recv(1)  # it hangs up when it has ended
    return count


def keep(
    first: socket.socket, path: Path, does: dict[bytes, Callable[[socket.socket], None]], rest: Callable[[], None]
) -> None:
    """The main loop of a kept server: a child serves each caller; `first` is served at once. `rest` is called once,
    when no caller is there.
    """
    signal.signal(signal.SIGCHLD, lambda *_: None)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    children: set[int] = set()
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(part))
        door.listen()
        part.rename(path)
        mine = path.stat().st_ino
        try:
            if word := first.recv(1):
                children.add(_fork(first, door, does[word]))
            for connection, word in _callers(door, children, rest):
                children.add(_fork(connection, door, does[word]))
        finally:
            with suppress(OSError):
                if path.stat().st_ino == mine:  # another server may have taken the address
                    path.unlink()


def _callers(
    door: socket.socket, children: set[int], rest: Callable[[], None]
) -> Iterator[tuple[socket.socket, bytes]]:
    """The connections of calling commands, until one says stop, or none has called for a while."""
    rested = False
    while True:
        ready, _, _ = select.select([door], [], [], UNUSED if rested else IDLE)
        for pid in list(children):
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    children.discard(pid)
        if not ready and not children:
            if rested:
                return
            rest()
            rested = True
        if ready:
            connection, _ = door.accept()
            connection.settimeout(5)
            try:
                word = connection.recv(1)
            except OSError:
                word = b""
            connection.settimeout(None)
            if word in (ATTEND, RUN):
                yield connection, word
            else:
                connection.close()
            if word == STOP:
                for pid in children:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGTERM)
                return


def _fork(connection: socket.socket, door: socket.socket, do: Callable[[socket.socket], None]) -> int:
    pid = os.fork()
    if pid:
        connection.close()
        return pid
    status = 70
    try:
        door.close()
        os.setsid()
        do(connection)
        status = 0
    finally:
        os._exit(status)
