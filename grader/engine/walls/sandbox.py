"""Walls around a stranger's code: bubblewrap's, or, on request, Landlock's or limits alone.

A fork-server takes seconds to load torch; a fork of it does not. So a loaded server, which has never seen a submission,
forks another server for each submission, and that one enters the namespaces of a sandbox made by bubblewrap: its own
processes, a network with only loopback, no capabilities, and these files:

    the course        without solutions, read-only, at the path of the instructor's own course
    Python, /usr      read-only
    /runs             its own folder of runs, in memory and of limited size; the judge outside reads the results there

What each rank then shuts itself off from, the other ranks among it, is in `inside.py`.

The judge's drawn numbers, the references, other submissions and the gradebook stay outside.
"""

import dataclasses
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grader.engine.lesson import lessons
from grader.engine.walls.landlock import DEVICES, SYSTEM, landlock_version, python_folders
from grader.engine.walls.seccomp import filter_of

GIB = 1 << 30
MEMORY = 4 * GIB  # bytes of address space of one process; torch alone takes three quarters of a GiB
LIBRARIES = 3 * GIB  # added if torch is built for CUDA: its libraries take this much before any code runs
WRITTEN = GIB // 16  # bytes of one file
CPU = 180  # seconds of CPU of one process
PROCESSES = 2000  # of one user, including threads; without effect for root, whom the judge's own count stops
DESCRIPTORS = 1024
TOTAL_MEMORY = 6 * GIB  # resident, of all processes of a submission; the judge counts
GPU_MEMORY = 8 * GIB  # added if the ranks are on GPUs: CUDA and NCCL take host memory on each
TOTAL_PROCESSES = 200
TOTAL_THREADS = 2000  # threads of all processes; 8 ranks of a right answer, with groups for three axes, had 1091
TOTAL_FILES = 10_000  # in /runs, and in each rank's /tmp and /dev/shm
MOST_STORE = GIB // 1024  # bytes that are looked at of the file by which ranks meet; 8 right ranks had 50 KB
IN_MEMORY = {"/runs": GIB, "/dev": GIB // 4, "/dev/shm": GIB // 4}  # bytes, at most
A_RANKS = GIB // 16  # bytes of its /tmp, and of its /dev/shm
MOST_RANKS = 8  # of a check
TOTAL_SOCKETS = MOST_RANKS * DESCRIPTORS  # each holds memory that belongs to no process


class NoSandbox(RuntimeError):
    """The requested walls are not available; the message says why."""


@dataclasses.dataclass(frozen=True)
class Guards:
    """The guards between a submission and the machine."""

    files: str
    processes: str
    network: str
    limits: str

    def __str__(self) -> str:
        return "; ".join(f"{name}: {value}" for name, value in vars(self).items())


LIMITS = (
    f"{MEMORY // GIB} GiB of addresses, {CPU} s of CPU and files of {WRITTEN >> 20} MiB a process; "
    f"{TOTAL_MEMORY // GIB} GiB and {TOTAL_PROCESSES} processes in all"
)
# CUDA reserves addresses for all memory of all GPUs and of the host, so a limit on them would end every rank.
ON_GPUS = f"; on GPUs no limit of addresses, none of the GPUs' own memory, and {GPU_MEMORY // GIB} GiB more in all"
BUBBLEWRAP = Guards(
    "bubblewrap: the course without solutions, read-only; folders of its own in memory, of limited size",
    "its own namespace, no capability",
    "loopback of its own",
    LIMITS,
)
LANDLOCK = Guards(
    "Landlock: reads Python, /usr and the course's library; writes its own folder. OPEN: size, your files' permissions",
    "no signal to the outside",
    "OPEN: nothing keeps it from the network, nor from another submission's ports",
    LIMITS,
)
NONE = Guards(
    "OPEN: all that you may read and write",
    "OPEN: it may signal your processes",
    "OPEN: nothing keeps it from the network",
    LIMITS,
)


BY_NAME = {"bubblewrap": BUBBLEWRAP, "landlock": LANDLOCK, "off": NONE}


def lacking(guards: Guards) -> str:
    """Why these walls are not available on this machine (tried, not guessed); "" if they are."""
    try:
        filter_of(services=True)
    except OSError as problem:
        return f"{problem} (apt-get install libseccomp2)"
    if guards is BUBBLEWRAP:
        if not shutil.which("bwrap"):
            return "bubblewrap is not installed (apt-get install bubblewrap)"
        tried = subprocess.run(
            ["bwrap", *NAMESPACES, "--ro-bind", "/", "/", "true"], capture_output=True, text=True, check=False
        )
        return f"it does not start here: {tried.stderr.strip()[:200]}" if tried.returncode else ""
    if guards is LANDLOCK and landlock_version() < 6:
        return "this system has no Landlock of version 6, as Linux 6.12 and later have"
    return ""


NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts")


class Sandbox:
    """Walls for one submission; when they end, everything inside ends.

    Attributes:
        folder: where its runs lie, as the ranks see it.
        seen: the same, as the judge sees it.
        guards: its walls.
        first: the process id of the first process inside; None without bubblewrap.
        memory: the most bytes that all processes may hold together.
        gpus: whether the GPUs can be reached.
    """

    def __init__(self, guards: Guards, course: Path, lesson: str = "", gpus: bool = False) -> None:
        """`course`: the course that is visible inside, without solutions and checks, and without the library's answers
        to `lesson` and later lessons.
        """
        self.gpus = gpus
        self.memory = TOTAL_MEMORY + (GPU_MEMORY if gpus else 0)
        self.guards = dataclasses.replace(guards, limits=guards.limits + (ON_GPUS if gpus else ""))
        self.process: subprocess.Popen | None = None
        self.first: int | None = None
        self.folder: Path | None = None
        self.door = -1  # to /runs
        try:
            if guards is BUBBLEWRAP:
                self._wrap(course, lesson)
                self.folder = Path("/runs")
                # Opened before a stranger's code runs: whatever replaces it later, this stays the real folder.
                self.door = os.open(f"/proc/{self.first}/root/runs", os.O_RDONLY | os.O_DIRECTORY)
                self.seen = descriptor(self.door)
            else:
                self.folder = self.seen = Path(tempfile.mkdtemp(prefix="wb-inside-"))
        except BaseException:
            self.end()
            self.remove()
            raise

    def _wrap(self, course: Path, lesson: str) -> None:
        heard, told = os.pipe()
        command = ["bwrap", *NAMESPACES, "--die-with-parent", "--new-session", "--proc", "/proc"]
        for place, size in IN_MEMORY.items():
            command += ["--size", str(size), "--tmpfs", place]
        command += ["--dir", "/tmp"]
        for device in DEVICES:
            command += ["--dev-bind", device, device]
        if self.gpus:  # and /sys, where NCCL reads how devices are connected
            command += ["--ro-bind", "/sys", "/sys"]
            for device in sorted(map(str, Path("/dev").glob("nvidia*"))):
                command += ["--dev-bind", device, device]
        for top in (*SYSTEM, "/sbin", "/etc/ld.so.conf", "/etc/passwd"):
            command += (
                ["--symlink", os.readlink(top), top]
                if os.path.islink(top) and top != "/etc/localtime"
                else ["--ro-bind-try", top, top]
            )
        command += ["--ro-bind", str(course), str(lessons.COURSE)]
        for path in [*lessons.ahead(lesson, lessons.taught(course)), *(course / "grader").glob("test_*.py")]:
            command += ["--ro-bind", "/dev/null", str(lessons.COURSE / path.relative_to(course))]
        for folder in ("sealed", "mutants"):
            if (course / "grader" / folder).is_dir():
                command += ["--tmpfs", str(lessons.COURSE / "grader" / folder)]
        for place in python_folders():
            command += ["--ro-bind", os.path.realpath(place), place]
        # Root could write files in /proc/sys, such as the kernel's core_pattern, without any capability.
        for place in ("/proc", "/dev", "/"):
            command += ["--remount-ro", place]
        command += ["--chdir", "/", "--info-fd", str(told), "sh", "-c", "echo up; cat"]
        # cat ends when its input is closed, that is, with us
        self.process = subprocess.Popen(
            command, pass_fds=[told], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        os.close(told)
        up = self.process.stdout.readline()  # bwrap names its first process long before all walls are up
        with open(heard) as lines:
            said = lines.read()
        if not up:
            raise NoSandbox(f"bubblewrap: {self.process.communicate()[1].decode(errors='replace').strip()}")
        self.first = json.loads(said)["child-pid"]

    def wire(self) -> int | None:
        """The bytes sent so far over the sandbox's own network, as counted by the kernel. None without a network of its
        own, or after it has ended.
        """
        if self.first is None:
            return None
        try:
            with open(f"/proc/{self.first}/net/dev") as table:
                loopback = next(line for line in table if line.strip().startswith("lo:"))
        except OSError:
            return None
        return int(loopback.split(":")[1].split()[8])

    def sockets(self) -> int:
        """The number of sockets in the sandbox's own network, as counted by the kernel. 0 without such a network."""
        if self.first is not None:
            with suppress(OSError), open(f"/proc/{self.first}/net/sockstat") as table:
                return int(table.readline().split()[2])  # sockets: used 12
        return 0

    def end(self) -> None:
        """End the namespace's first process, and with it all others."""
        if self.process:
            with suppress(ProcessLookupError, TypeError):
                os.kill(self.first, signal.SIGKILL)
            self.process.kill()
            self.process.communicate()

    def remove(self) -> None:
        """Called when nothing is left inside."""
        if self.door >= 0:
            os.close(self.door)  # after that, nothing of /runs is left
        elif self.folder:
            remove(self.folder)


def plain_files(folder: Path) -> list[Path]:
    """The plain files in a folder, at any depth that paths can reach: follows no link, sees no more than allowed."""
    left, found, seen = [os.fspath(folder)], [], 0
    while left and seen <= TOTAL_FILES:
        with suppress(OSError), os.scandir(left.pop()) as entries:
            for entry in itertools.islice(entries, TOTAL_FILES):
                seen += 1
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    found.append(Path(entry.path))
    return found


def descriptor(number: int) -> Path:
    """A path to a folder that we hold open, valid for this process and its children."""
    return Path(f"/proc/{os.getpid()}/fd/{number}")


@contextmanager
def held(folder: Path) -> Iterator[Path]:
    """A path that keeps leading to this folder, whatever a stranger's code moves or links to its place (on Linux)."""
    if sys.platform != "linux":
        yield folder
        return
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor(number)
    finally:
        os.close(number)


def remove(folder: Path) -> None:
    """Delete a folder that a stranger's code wrote in: by now it may be too deep for Python, closed to its owner, or a
    link.
    """
    if not os.path.lexists(folder):  # it was inside a sandbox that is gone
        return
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        command = '[ -L "$1" ] || chmod -R u+rwx "$1"; rm -rf "$1"'
        subprocess.run(["sh", "-c", command, "sh", str(folder)], stderr=subprocess.DEVNULL, check=False)


def guards_of(fields: dict) -> Guards:
    """The guards with these fields."""
    return next(guards for guards in BY_NAME.values() if vars(guards) == fields)
