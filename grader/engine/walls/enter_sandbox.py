"""What a server does to itself when it enters a sandbox, and each of its ranks before any code of a student's.

A rank sees, of what can be written, its own folder, the store by which the ranks meet, and a folder that all have in
common if its job asks for one. So it is told nothing by another rank but what goes over the network:

    /runs             these folders; the judge outside sees all
    /tmp, /dev/shm    its own, in memory and of a size, empty but for a course or a Python that lies there
    /proc             its own processes

By NCCL, ranks on GPUs meet in /dev/shm and by sockets with names: those, and /proc, are left to them in common.

Without bubblewrap a rank may be a user of its own, to whom its folder belongs.
"""

import ctypes
import os
import resource
import signal
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

from grader.engine.lesson import lessons
from grader.engine.walls import sandbox
from grader.engine.walls.seccomp import filter_of, forbid_calls

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 4, 38, 24  # linux/prctl.h
CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000  # linux/sched.h
SYS_LANDLOCK_CREATE_RULESET, SYS_LANDLOCK_RESTRICT_SELF, LANDLOCK_SCOPES = 444, 446, 3  # linux/landlock.h
# linux/mount.h
READ_ONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, RECURSIVE, PRIVATE = (1 << bit for bit in (0, 1, 2, 3, 5, 12, 14, 18))


def enter(first: int | None, gpus: bool = False) -> None:
    """Enter the namespaces of a sandbox, permanently. Returns in a child process, which forks ranks and runs nothing of
    a student's.

    `first` is the sandbox's first process; None where there is no bubblewrap. With `gpus` addresses are not limited,
    since that does not fit CUDA.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    filter_of(services=first is not None)  # made here, once for all ranks
    if first is not None:
        for kind in ("user", "ipc", "uts", "net", "pid", "mnt"):
            namespace = os.open(f"/proc/{first}/ns/{kind}", os.O_RDONLY)
            succeed(libc.setns(namespace, 0), f"setns {kind}")
            os.close(namespace)
        os.chdir("/")
        limits = f"size={sandbox.IN_MEMORY['/runs']},nr_inodes={sandbox.TOTAL_FILES}"  # bubblewrap limits the size only
        succeed(libc.mount(b"none", b"/runs", b"", REMOUNT | NOSUID | NODEV, limits.encode()), "limit the files")
        if child := os.fork():  # only processes forked from here on are inside the namespace of processes
            os.waitpid(child, 0)
            os._exit(0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # no rank can look into the server's memory, or another rank's
    for what, most in (
        (resource.RLIMIT_AS, resource.RLIM_INFINITY if gpus else psutil.Process().memory_info().vms + sandbox.MEMORY),
        (resource.RLIMIT_FSIZE, sandbox.WRITTEN),
        (resource.RLIMIT_CPU, sandbox.CPU),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, sandbox.DESCRIPTORS),
        (resource.RLIMIT_NPROC, sandbox.PROCESSES),
    ):
        _, hard = resource.getrlimit(what)
        most = min((limit for limit in (most, hard) if limit != resource.RLIM_INFINITY), default=most)
        resource.setrlimit(what, (most, most))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # too large a file is an error that can be caught


def shut_in(places: Sequence[str], number: int, walls: str, gpus: bool) -> None:
    """In rank `number`: from now on these are the folders and files that it writes to, and every way back is closed."""
    libc = ctypes.CDLL(None, use_errno=True)
    wrapped = walls == sandbox.BUBBLEWRAP
    if wrapped:
        see_alone(libc, places, gpus)
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    if walls == sandbox.USERS:
        become_a_user(sandbox.A_USER + number)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    succeed(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    if wrapped and not gpus:
        keep_to_itself(libc)
    forbid_calls(services=wrapped)


def become_a_user(user: int) -> None:
    """Permanently. Every user may write to what this one makes in a shared folder."""
    os.umask(0)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def try_out(shut_in: Callable[[Sequence[str], int], None]) -> None:
    """Raise OSError if a rank could not be shut in here: that is the machine's failure, and no rank's."""
    if (child := os.fork()) == 0:
        with suppress(BaseException):
            shut_in([], 0)
            os._exit(0)
        os._exit(1)
    if os.waitpid(child, 0)[1]:
        raise OSError("the ranks' walls cannot be had")


def see_alone(libc: ctypes.CDLL, places: Sequence[str], gpus: bool) -> None:
    """Have a view of the files that no other rank has."""

    def mount(source: str, target: str, flags: int, kind: str = "", data: str = "") -> None:
        words = (word.encode() for word in (source, target, kind))
        succeed(libc.mount(*words, ctypes.c_ulong(flags), data.encode()), f"mount {target}")

    succeed(libc.unshare(CLONE_NEWNS), "unshare mounts")
    mount("none", "/", RECURSIVE | PRIVATE)
    held = {place: os.open(place, os.O_PATH) for place in places}
    needed = (str(lessons.COURSE), *sandbox.python_folders())
    hidden = {place: os.open(place, os.O_PATH) for place in needed if place.startswith(("/tmp/", "/dev/shm/"))}
    mount("none", "/runs", NOSUID | NODEV, "tmpfs", "size=64k,mode=755")
    for place, number in held.items():
        if stat.S_ISDIR(os.fstat(number).st_mode):
            os.makedirs(place)
        else:  # the store: nothing can lie beside it, and it cannot be removed
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.mknod(place)
        mount(f"/proc/self/fd/{number}", place, BIND)
        os.close(number)
    mount("none", "/runs", REMOUNT | BIND | READ_ONLY | NOSUID | NODEV)
    for place in ("/tmp",) if gpus else ("/tmp", "/dev/shm"):
        mount("none", place, NOSUID | NODEV, "tmpfs", f"size={sandbox.A_RANKS},nr_inodes={sandbox.TOTAL_FILES}")
    for place, number in hidden.items():  # shown again, read-only as it was
        os.makedirs(place, exist_ok=True)
        mount(f"/proc/self/fd/{number}", place, BIND | RECURSIVE)
        os.close(number)
    if not gpus:
        # Of processes it shows those whose memory may be looked into. Another rank's are not among them: none is
        # dumpable, and what it starts belongs to its namespace of users.
        mount("proc", "/proc", READ_ONLY | NOSUID | NODEV | NOEXEC, "proc", "hidepid=ptraceable")
        succeed(libc.unshare(CLONE_NEWUSER), "unshare users")


def keep_to_itself(libc: ctypes.CDLL) -> None:
    """From now on this process and its children signal, and meet at sockets without a path, only one another: by
    Landlock, https://docs.kernel.org/userspace-api/landlock.html, where the system has its version 6.
    """
    rules = (ctypes.c_uint64 * 3)(0, 0, LANDLOCK_SCOPES)
    ruleset = libc.syscall(SYS_LANDLOCK_CREATE_RULESET, rules, ctypes.sizeof(rules), 0)
    if ruleset >= 0:  # an older system does not know these
        succeed(libc.syscall(SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0), "Landlock")
        os.close(ruleset)


def succeed(answer: int, what: str) -> None:
    if answer:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
