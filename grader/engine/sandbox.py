"""Walls around a stranger's code: bubblewrap where it is, else Landlock and limits alone.

A fork-server takes seconds to load torch, a fork of it none. So one that is loaded and that has seen nothing of
anybody forks another one for each submission, and this one steps into the namespaces of a sandbox that bubblewrap
has made: processes of its own, a network with nothing but loopback, no capability, and these files:

    the course        without solutions, read-only, at the place where the instructor's own course is
    Python, /usr      read-only
    one folder        of its own, where its runs lie; the judge outside reads there what they left
    /tmp, /dev/shm    its own, empty

What the judge draws, the references, other submissions and the gradebook are outside, and stay there.
"""

import ctypes
import dataclasses
import errno
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from grader.engine import cgroup, lessons

GIB = 1 << 30
MEMORY = 4 * GIB  # addresses of one process; torch alone takes three quarters of one
WRITTEN = GIB // 4  # bytes of one file
CPU = 180  # seconds of CPU of one process
PROCESSES = 512  # of one user; without effect for root, whom the judge's own count stops
DESCRIPTORS = 1024
TOTAL_MEMORY = 6 * GIB  # resident, of all processes of a submission; the judge counts
TOTAL_PROCESSES = 200
TOTAL_WRITTEN = 1 * GIB
TOTAL_FILES = 10_000
IN_MEMORY = GIB // 4  # of /tmp, of /dev/shm, of /dev
# What the kernel holds them to, where it can: more than the judge does, since it counts threads and what lies in /tmp,
# too.
KEPT_MEMORY, KEPT_PROCESSES = TOTAL_MEMORY + 3 * IN_MEMORY, 4 * TOTAL_PROCESSES

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 4, 38, 24  # linux/prctl.h
CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h
SYS_LANDLOCK_CREATE_RULESET, SYS_LANDLOCK_ADD_RULE, SYS_LANDLOCK_RESTRICT_SELF = 444, 445, 446


class NoSandbox(RuntimeError):
    """The walls that were asked for can not be had; the message says why."""


@dataclasses.dataclass(frozen=True)
class Guards:
    """What stands between a submission and the machine."""

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
BUBBLEWRAP = Guards(
    "bubblewrap: the course without solutions, read-only; one folder of its own",
    "its own namespace, no capability",
    "loopback of its own",
    LIMITS,
)
LANDLOCK = Guards(
    "Landlock: reads Python, /usr and the course's library; writes its own folder",
    "no signal to the outside",
    "OPEN: nothing keeps it from the network",
    LIMITS,
)
NONE = Guards(
    "OPEN: all that you may read",
    "OPEN: it may signal your processes",
    "OPEN: nothing keeps it from the network",
    LIMITS,
)


def available() -> Guards:
    """The best walls of this machine, tried, not guessed."""
    if sys.platform != "linux":
        return NONE
    if shutil.which("bwrap"):
        works = subprocess.run(["bwrap", *NAMESPACES, "--ro-bind", "/", "/", "true"], capture_output=True, check=False)
        if works.returncode == 0:
            return BUBBLEWRAP
    return LANDLOCK if landlock_version() >= 6 else NONE


NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts")


class Sandbox:
    """Walls for one submission; ends with all that is inside.

    Attributes:
        folder: where its runs lie.
        guards: what walls it has, control groups among them where they can be had.
        group: of control; None where there is none.
        first: the process id of the first process inside; None without bubblewrap.
    """

    def __init__(self, guards: Guards, course: Path) -> None:
        """`course`: the course that is shown inside, without solutions."""
        self.group = cgroup.make(KEPT_MEMORY, KEPT_PROCESSES) if sys.platform == "linux" else None
        self.guards = dataclasses.replace(guards, limits=f"{guards.limits}; control groups") if self.group else guards
        self.folder = Path(tempfile.mkdtemp(prefix="wb-inside-"))
        self.process: subprocess.Popen | None = None
        self.first: int | None = None
        if guards is BUBBLEWRAP:
            try:
                self._wrap(course)
            except BaseException:
                self.remove()
                raise

    def _wrap(self, course: Path) -> None:
        heard, told = os.pipe()
        command = ["bwrap", *NAMESPACES, "--die-with-parent", "--new-session", "--proc", "/proc"]
        for place in ("/dev", "/dev/shm", "/tmp"):  # they lie in memory, which nobody counts
            command += ["--size", str(IN_MEMORY), "--tmpfs", place]
        for device in ("null", "zero", "full", "random", "urandom"):
            command += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
        for top in (
            "/bin",
            "/sbin",
            "/lib",
            "/lib64",
            "/usr",
            "/etc/ld.so.cache",
            "/etc/ld.so.conf",
            "/etc/alternatives",
            "/etc/passwd",
            "/etc/localtime",
        ):
            command += (
                ["--symlink", os.readlink(top), top]
                if os.path.islink(top) and top != "/etc/localtime"
                else ["--ro-bind-try", top, top]
            )
        command += ["--ro-bind", str(course), str(lessons.COURSE)]
        for place in python_folders():
            command += ["--ro-bind", os.path.realpath(place), place]
        command += [
            "--bind",
            str(self.folder),
            str(self.folder),
            "--remount-ro",
            "/",
            "--chdir",
            "/",
            "--info-fd",
            str(told),
            "sh",
            "-c",
            "echo up; cat",
        ]
        # cat ends when its input does, that is, with us
        self.process = subprocess.Popen(
            command, pass_fds=[told], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        os.close(told)
        up = self.process.stdout.readline()  # bwrap names its first process long before all walls stand
        with open(heard) as lines:
            said = lines.read()
        if not up:
            raise NoSandbox(f"bubblewrap: {self.process.communicate()[1].decode(errors='replace').strip()}")
        self.first = json.loads(said)["child-pid"]

    def wire(self) -> int | None:
        """Bytes that have gone over the sandbox's own network so far: the kernel's count. None without one, or where
        it has ended.
        """
        if self.first is None:
            return None
        try:
            with open(f"/proc/{self.first}/net/dev") as table:
                loopback = next(line for line in table if line.strip().startswith("lo:"))
        except OSError:
            return None
        return int(loopback.split(":")[1].split()[8])

    def end(self) -> None:
        """With the first process of a namespace go all."""
        if self.process:
            with suppress(ProcessLookupError, TypeError):
                os.kill(self.first, signal.SIGKILL)
            self.process.kill()
            self.process.communicate()

    def remove(self) -> None:
        """When nothing is left inside."""
        remove(self.folder)
        if self.group:
            self.group.remove()


def below(folder: Path) -> Iterator[os.DirEntry]:
    """All that lies in a folder, at any depth, as far as paths reach: no link is followed, and not more is counted
    than is allowed.
    """
    left, count = [os.fspath(folder)], 0
    while left and count <= TOTAL_FILES:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    count += 1
                    yield entry
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    if count > TOTAL_FILES:
                        return
        except OSError:
            continue


def sizes(folder: Path) -> list[int]:
    """The bytes of all entries in a folder."""
    found = []
    for entry in below(folder):
        with suppress(OSError):
            found.append(entry.stat(follow_symlinks=False).st_size)
    return found


def plain_files(folder: Path) -> list[Path]:
    return [Path(entry.path) for entry in below(folder) if entry.is_file(follow_symlinks=False)]


def remove(folder: Path) -> None:
    """Delete a folder that a stranger's code wrote in: it may be too deep for Python, or closed to its owner."""
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        subprocess.run(
            ["sh", "-c", 'chmod -R u+rwx "$1"; rm -rf "$1"', "sh", str(folder)], stderr=subprocess.DEVNULL, check=False
        )


def python_folders() -> list[str]:
    """Where this Python and its packages lie, /usr and the course's own files aside."""
    own = str(lessons.COURSE)
    places = {
        sys.prefix,
        sys.base_prefix,
        *(os.path.abspath(path) for path in sys.path if path and os.path.isdir(path)),
    }
    places |= {os.path.realpath(sys.prefix), os.path.dirname(os.path.realpath(sys.executable))}
    kept: list[str] = []
    for place in sorted(places):
        if (
            place == own
            or place.startswith("/usr/")
            or place == "/usr"
            or (place.startswith(f"{own}/") and place != sys.prefix)
        ):
            continue
        if not any(place == other or place.startswith(f"{other}/") for other in kept):
            kept.append(place)
    return kept


# Inside: what a forked server does to itself


def enter(first: int | None, doors: list[str]) -> None:
    """Step into the namespaces of a sandbox, for good, and give up what could lead out. Returns in a child process.

    `first` is the sandbox's first process; None where there is no bubblewrap. `doors` are those of its control group.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    opened = [os.open(door, os.O_WRONLY) for door in doors]  # inside they can not be seen
    if first is not None:
        for kind in ("user", "ipc", "uts", "net", "pid", "mnt"):
            namespace = os.open(f"/proc/{first}/ns/{kind}", os.O_RDONLY)
            if libc.setns(namespace, 0):
                raise OSError(ctypes.get_errno(), f"setns {kind}: {os.strerror(ctypes.get_errno())}")
            os.close(namespace)
        os.chdir("/")
        if child := os.fork():  # only what is forked from here on is inside the namespace of processes
            os.waitpid(child, 0)
            os._exit(0)
    for door in opened:
        os.write(door, b"0")
        os.close(door)
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    if libc.capset(header, (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "capset")
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    forbid_calls(libc)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # no rank can look into the server's memory, or another rank's
    for what, most in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, WRITTEN),
        (resource.RLIMIT_CPU, CPU),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, DESCRIPTORS),
        (resource.RLIMIT_NPROC, PROCESSES),
    ):
        _, hard = resource.getrlimit(what)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # too large a file is an error that can be caught


# System calls that no lesson needs and that lead around a wall: namespaces of one's own (with all capabilities in
# them), memory that is no process's, other processes' memory, the kernel's rarely used corners. seccomp answers them
# with EPERM.
X86, ARM = 0xC000003E, 0xC00000B7  # AUDIT_ARCH_X86_64, AUDIT_ARCH_AARCH64 of linux/audit.h
FORBIDDEN = {  # name: its number on x86_64 (asm/unistd_64.h) and on aarch64 (asm-generic/unistd.h)
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "mq_open": (240, 180),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
}
CLONE = (56, 220)
CLONE3 = (
    435  # its flags lie in memory, where seccomp can not look: it is not there, and the C library takes clone instead
)
CLONE_NEWUSER = 0x10000000
PR_SET_SECCOMP, FILTER = 22, 2
LOAD, EQUAL, ANY_BIT, RETURN = (
    0x20,
    0x15,
    0x45,
    0x06,
)  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JSET|K, BPF_RET|K of linux/bpf_common.h
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000  # SECCOMP_RET_…; REFUSE | errno


def forbid_calls(libc: ctypes.CDLL) -> None:
    """From now on this process and its children can not make these calls. Nothing where the processor is another one."""
    machine = {"x86_64": 0, "aarch64": 1}.get(os.uname().machine)
    if sys.platform != "linux" or machine is None:
        return
    # struct seccomp_data: the call's number at 0, the architecture at 4, the first argument at 16
    program = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, (X86, ARM)[machine]), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]
    if machine == 0:
        program += [
            (0x35, 0, 1, 0x40000000),
            (RETURN, 0, 0, KILL),
        ]  # BPF_JMP|JGE|K: the same calls by their x32 numbers
    for numbers in FORBIDDEN.values():
        program += [(EQUAL, 0, 1, numbers[machine]), (RETURN, 0, 0, REFUSE | errno.EPERM)]
    program += [
        (EQUAL, 0, 1, CLONE3),
        (RETURN, 0, 0, REFUSE | errno.ENOSYS),
        (EQUAL, 0, 3, CLONE[machine]),
        (LOAD, 0, 0, 16),
        (ANY_BIT, 0, 1, CLONE_NEWUSER),
        (RETURN, 0, 0, REFUSE | errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *step) for step in program)
    text = ctypes.create_string_buffer(code, len(code))
    if libc.prctl(PR_SET_SECCOMP, FILTER, struct.pack("HxxxxxxP", len(program), ctypes.addressof(text)), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


# Landlock, https://docs.kernel.org/userspace-api/landlock.html

READ = 1 << 0 | 1 << 2 | 1 << 3  # execute, read a file, list a folder
ALL = (1 << 16) - 1  # every right on files, of version 5
SCOPES = 1 << 0 | 1 << 1  # abstract sockets, signals: version 6


def landlock_version() -> int:
    return max(0, ctypes.CDLL(None).syscall(SYS_LANDLOCK_CREATE_RULESET, None, 0, 1)) if sys.platform == "linux" else 0


def landlock(folder: str) -> None:
    """From now on this process and its children read only what a lesson needs, write only in `folder`, signal only one
    another.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    rules = (ctypes.c_uint64 * 3)(ALL, 0, SCOPES)  # files, network (gloo must be free to bind), scopes
    ruleset = libc.syscall(SYS_LANDLOCK_CREATE_RULESET, rules, ctypes.sizeof(rules), 0)
    course = lessons.COURSE
    library = [course / "utils", course / "grader" / "engine", *(course / "grader").glob("*.py")]
    devices = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")]
    places = [
        (path, READ)
        for path in (
            "/bin",
            "/lib",
            "/lib64",
            "/usr",
            "/etc/ld.so.cache",
            "/etc/alternatives",
            "/etc/localtime",
            "/proc/cpuinfo",
            "/sys",
            *python_folders(),
            *map(str, library),
        )
    ]
    # /sys: gloo lists the network cards; cpuinfo: torch chooses its kernels, and others would draw other first weights
    for path, rights in [*places, *((device, ALL) for device in devices), (folder, ALL)]:
        if not os.path.exists(path):
            continue
        if not os.path.isdir(path):
            rights &= 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # those that a file can have
        opened = os.open(path, os.O_PATH)
        rule = (ctypes.c_byte * 12).from_buffer_copy(rights.to_bytes(8, "little") + opened.to_bytes(4, "little"))
        if libc.syscall(SYS_LANDLOCK_ADD_RULE, ruleset, 1, rule, 0):
            raise OSError(ctypes.get_errno(), f"Landlock: {path}")
        os.close(opened)
    if ruleset < 0 or libc.syscall(SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0):
        raise OSError(ctypes.get_errno(), "Landlock")
    os.close(ruleset)


def named(walls: dict) -> Guards:
    """The guards whose fields these are."""
    return next(guards for guards in (BUBBLEWRAP, LANDLOCK, NONE) if vars(guards) == walls)
