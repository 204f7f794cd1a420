"""Walls around a stranger's code: bubblewrap's, or, on request, those between users, or limits alone.

A fork-server takes seconds to load torch; a fork of it does not. So a loaded server, which has never seen a submission,
forks another server for each submission, and that one enters the namespaces of a sandbox made by bubblewrap: its own
processes, a network with only loopback, no capabilities, and these files:

    the course        without solutions, read-only, at the path of the instructor's own course
    Python, /usr      read-only
    /runs             its own folder of runs, in memory and of limited size; the judge outside reads the results there

What each rank then shuts itself off from, the other ranks among it, is in `inside.py`.

The judge's drawn numbers, the references, other submissions and the gradebook stay outside.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from grader.engine.lesson import lessons
from grader.engine.walls.seccomp import filter_of

GIB = 1 << 30
MEMORY = 3 * GIB  # bytes of addresses of one process, beside those that it has at its start
WRITTEN = GIB // 16  # bytes of one file
CPU = 180  # seconds of CPU of one process
PROCESSES = 2000  # of one user, including threads; without effect for root, whom the judge's own count stops
DESCRIPTORS = 1024
TOTAL_MEMORY = 6 * GIB  # resident, of all processes of a submission, as added up by the judge
GPU_MEMORY = 14 * GIB  # the same, if ranks are on GPUs: CUDA and NCCL take host memory on each
TOTAL_PROCESSES = 200
TOTAL_THREADS = 2000  # threads of all processes; 8 ranks of a right answer, with groups for three axes, had 1091
TOTAL_FILES = 10_000  # in /runs, and in each rank's /tmp and /dev/shm
MOST_STORE = GIB // 1024  # bytes that are looked at of the file by which ranks meet; 8 right ranks had 50 KB
IN_MEMORY = {"/runs": GIB, "/dev": GIB // 4, "/dev/shm": GIB // 4}  # bytes, at most
A_RANKS = GIB // 16  # bytes of its /tmp, and of its /dev/shm
MOST_RANKS = 8  # of a check
TOTAL_SOCKETS = MOST_RANKS * DESCRIPTORS  # each holds memory that belongs to no process

SETTINGS = "ld.so.cache ld.so.conf alternatives localtime passwd".split()  # passwd: Python asks for the user's name
SYSTEM = ["/bin", "/sbin", "/lib", "/lib64", "/usr", *(f"/etc/{name}" for name in SETTINGS)]  # to read
DEVICES = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")]
NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts")
# Rank 0's, between users. Neither systemd nor Debian uses 65520 to 65533 (https://systemd.io/UIDS-GIDS/).
A_USER = 65_520

GUARDS = {
    "bubblewrap": "Each submission runs in bubblewrap: it sees the course without solutions, read-only, and its own "
    "folders in memory, of limited size; it has its own processes and network, and no capabilities.",
    "users": "Each rank runs as one of several users: a user of its own, without bubblewrap. OPEN: it can read what "
    "every user may read, fill the disk and /tmp, where ranks can find each other's files, and reach the network and "
    "other submissions' ports.",
    "off": "The sandbox is off: there is none. OPEN: a submission can do whatever you can do.",
}
BUBBLEWRAP, USERS, OFF = GUARDS
LIMITS = (
    f"{MEMORY // GIB} GiB of addresses, {CPU} s of CPU and files of {WRITTEN >> 20} MiB a process, "
    f"{TOTAL_MEMORY // GIB} GiB and {TOTAL_PROCESSES} processes in all"
)
# CUDA reserves addresses for all memory of all GPUs and of the host, so a limit on them would end every rank.
ON_GPUS = f"; on GPUs no limit of addresses, none of the GPUs' own memory, and {GPU_MEMORY // GIB} GiB in all"


class NoSandbox(RuntimeError):
    """The requested walls are not available; the message says why."""


def guards(walls: str, gpus: bool = False) -> str:
    """What is between a submission and the machine, and what is not."""
    return f"{GUARDS[walls]} Limits: {LIMITS}{ON_GPUS if gpus else ''}."


def lacking(walls: str) -> str:
    """Why these walls are not available on this machine (tried, not guessed); "" if they are."""
    command, other = ["true"], {}
    if walls == BUBBLEWRAP:
        command = ["bwrap", *NAMESPACES, "--ro-bind", "/", "/", "true"]
    elif walls == USERS:
        if os.geteuid() != 0:
            return "only root has other users, as in a container"
        needs = "import os, sys, grader, torch; os.stat(sys.argv[1])"  # that is, to get through the folder of runs
        command = ["env", sys.executable, "-c", needs, os.path.join(tempfile.gettempdir(), ".")]
        other = {"user": A_USER, "group": A_USER, "extra_groups": []}
    try:
        tried = subprocess.run(command, capture_output=True, text=True, check=False, cwd=lessons.COURSE, **other)
        filter_of(services=True)
    except OSError as problem:
        return f"{problem} (apt-get install bubblewrap libseccomp2)"
    return f"it does not start here: {tried.stderr.strip()[-200:]}" if tried.returncode else ""


class Sandbox:
    """Walls for one submission; when they end, everything inside ends.

    Attributes:
        folder: where its runs lie, as the ranks see it.
        seen: the same, as the judge sees it.
        walls: bubblewrap, users or off.
        first: the process id of the first process inside; None without bubblewrap.
        memory: the most bytes that all processes may hold together.
        gpus: whether the GPUs can be reached.
    """

    def __init__(self, walls: str, course: Path, lesson: str = "", gpus: bool = False) -> None:
        """`course`: the course that is visible inside, without solutions and checks, and without the library's answers
        to `lesson` and later lessons.
        """
        self.walls, self.gpus = walls, gpus
        self.memory = GPU_MEMORY if gpus else TOTAL_MEMORY
        self.process: subprocess.Popen | None = None
        self.first: int | None = None
        self.doors = ExitStack()
        if walls == BUBBLEWRAP:
            self._wrap(course, lesson)
            self.folder = Path("/runs")
            # Opened before a stranger's code runs: whatever replaces it later, this stays the real folder.
            self.seen = self.doors.enter_context(held(Path(f"/proc/{self.first}/root/runs")))
        else:
            self.folder = self.seen = Path(tempfile.mkdtemp(prefix="wb-inside-"))
            self.folder.chmod(0o711)  # other users may pass through, and see no names

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
        for top in SYSTEM:
            command += (
                ["--symlink", os.readlink(top), top]
                if os.path.islink(top) and top != "/etc/localtime"
                else ["--ro-bind-try", top, top]
            )
        command += ["--ro-bind", str(course), str(lessons.COURSE)]
        for path in lessons.ahead(lesson, lessons.taught(course)):
            command += ["--ro-bind", "/dev/null", str(lessons.COURSE / path.relative_to(course))]
        for folder in ("sealed", "lessons"):
            if (course / "grader" / folder).is_dir():
                command += ["--tmpfs", str(lessons.COURSE / "grader" / folder)]
        register = course / "grader" / "lessons" / "course.toml"
        command += ["--ro-bind", str(register), str(lessons.COURSE / register.relative_to(course))]
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

    def give(self, run: Path) -> None:
        """Between users, before any rank runs: a rank's folder becomes its user's, and all may write to the rest."""
        for path in (run, *run.rglob("*")):
            name = next((part for part in path.relative_to(run).parts if part != "second"), "")
            if name.isdigit():
                os.chown(path, A_USER + int(name), -1)
            else:
                path.chmod(0o777 if name else 0o711)

    def _network(self, table: str, line: str, field: int) -> int | None:
        """A number that the kernel reports about the sandbox's network. None without one, or after it has ended."""
        with suppress(OSError), open(f"/proc/{self.first}/net/{table}") as lines:
            return next(int(known.split()[field]) for known in lines if known.split()[0] == line)
        return None

    def wire(self) -> int | None:
        """The bytes sent so far over the sandbox's own network; None without one, or after it has ended."""
        return self._network("dev", "lo:", 9)

    def sockets(self) -> int:
        """The number of sockets in the sandbox's own network; 0 without one."""
        return self._network("sockstat", "sockets:", 2) or 0

    def end(self) -> None:
        """End the namespace's first process, and with it all others."""
        if self.process:
            with suppress(ProcessLookupError):
                os.kill(self.first, signal.SIGKILL)
            self.process.kill()
            self.process.communicate()

    def remove(self) -> None:
        """Called when nothing is left inside."""
        self.doors.close()  # after that, nothing of /runs is left
        if self.walls != BUBBLEWRAP:
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


@contextmanager
def held(folder: Path) -> Iterator[Path]:
    """A path that keeps leading to this folder, whatever a stranger's code moves or links to its place (on Linux). It
    is valid for this process and its children.
    """
    if sys.platform != "linux":
        yield folder
        return
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield Path(f"/proc/{os.getpid()}/fd/{number}")
    finally:
        os.close(number)


def remove(folder: Path) -> None:
    """Delete a folder, if it is there, that a stranger's code wrote in: by now it may be too deep for Python, closed to
    its owner, or a link.
    """
    with suppress(OSError, RecursionError):
        shutil.rmtree(folder)
    if os.path.lexists(folder):
        command = '[ -L "$1" ] || chmod -R u+rwx "$1"; rm -rf "$1"'
        subprocess.run(["sh", "-c", command, "sh", str(folder)], stderr=subprocess.DEVNULL, check=False)


def python_folders() -> list[str]:
    """The folders of this Python and its packages, except /usr and the course's own files."""
    named = {sys.prefix, sys.base_prefix, os.path.realpath(sys.prefix), *filter(os.path.isdir, sys.path)}
    places = {Path(name).absolute() for name in named | {os.path.dirname(os.path.realpath(sys.executable))}}
    places -= {place for place in places if place.is_relative_to(lessons.COURSE) and str(place) != sys.prefix}
    return sorted(str(place) for place in places if not {Path("/usr"), *places} & {*place.parents})
