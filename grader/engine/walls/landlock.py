"""Confines a process to one folder to write in and a few to read from, by Landlock."""

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from grader.engine.lesson import lessons

SYS_LANDLOCK_CREATE_RULESET, SYS_LANDLOCK_ADD_RULE, SYS_LANDLOCK_RESTRICT_SELF = 444, 445, 446


# Landlock, https://docs.kernel.org/userspace-api/landlock.html

READ = 1 << 0 | 1 << 2 | 1 << 3  # execute, read a file, list a folder
ALL = (1 << 16) - 1  # all rights on files in version 5
SCOPES = 1 << 0 | 1 << 1  # abstract sockets and signals: version 6

# What a lesson needs of the system, to read; and its devices
SYSTEM = "/bin /lib /lib64 /usr /etc/ld.so.cache /etc/alternatives /etc/localtime".split()
DEVICES = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")]


def landlock_version() -> int:
    return max(0, ctypes.CDLL(None).syscall(SYS_LANDLOCK_CREATE_RULESET, None, 0, 1)) if sys.platform == "linux" else 0


def keep_to_itself() -> None:
    """From now on this process and its children signal, look into, and meet at sockets without a path, only one
    another: where the system has a Landlock of version 6.
    """
    if landlock_version() >= 6:
        libc = ctypes.CDLL(None, use_errno=True)
        rules = (ctypes.c_uint64 * 3)(0, 0, SCOPES)
        restrict(libc, libc.syscall(SYS_LANDLOCK_CREATE_RULESET, rules, ctypes.sizeof(rules), 0))


def confine(own: Sequence[str]) -> None:
    """From now on this process and its children read only what a lesson needs, write only in their `own` places,
    signal only one another.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    rules = (ctypes.c_uint64 * 3)(ALL, 0, SCOPES)  # files, network (gloo must be free to bind), scopes
    ruleset = libc.syscall(SYS_LANDLOCK_CREATE_RULESET, rules, ctypes.sizeof(rules), 0)
    grader = lessons.COURSE / "grader"  # not all of it: it contains checks, mutants and seals
    library = [lessons.COURSE / "utils", grader / "engine", grader / "kit", grader / "__init__.py"]
    # /sys: gloo lists the network cards; cpuinfo: torch chooses its kernels, and different ones draw different weights
    read = [*SYSTEM, "/sys", "/proc/cpuinfo", *python_folders(), *map(str, library)]
    for path, rights in [*((path, READ) for path in read), *((path, ALL) for path in (*DEVICES, *own))]:
        if not os.path.exists(path):
            continue
        if not os.path.isdir(path):
            rights &= 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # the rights that apply to a file
        opened = os.open(path, os.O_PATH)
        rule = (ctypes.c_byte * 12).from_buffer_copy(rights.to_bytes(8, "little") + opened.to_bytes(4, "little"))
        if libc.syscall(SYS_LANDLOCK_ADD_RULE, ruleset, 1, rule, 0):
            raise OSError(ctypes.get_errno(), f"Landlock: {path}")
        os.close(opened)
    restrict(libc, ruleset)


def restrict(libc: ctypes.CDLL, ruleset: int) -> None:
    if ruleset < 0 or libc.syscall(SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0):
        raise OSError(ctypes.get_errno(), "Landlock")
    os.close(ruleset)


def python_folders() -> list[str]:
    """The folders of this Python and its packages, except /usr and the course's own files."""
    places = {sys.prefix, sys.base_prefix, os.path.realpath(sys.prefix)}
    places |= {
        os.path.dirname(os.path.realpath(sys.executable)),
        *map(os.path.abspath, filter(os.path.isdir, sys.path)),
    }
    kept: list[str] = []
    for place in map(Path, sorted(places)):
        of_course = place.is_relative_to(lessons.COURSE) and str(place) != sys.prefix
        if not of_course and not any(map(place.is_relative_to, ("/usr", *kept))):
            kept.append(str(place))
    return kept
