"""Limits that the kernel itself enforces on all processes of a submission together: control groups, if we may create
them.

The judge counts memory and processes twenty times a second, and reports any excess; control groups stop what is faster
than that. Version 2 has one tree of groups (https://docs.kernel.org/admin-guide/cgroup-v2.html), version 1 has one for
each kind of limit.
"""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

TREE = Path("/sys/fs/cgroup")
GONE = 30.0  # seconds, at most, for killed processes to leave a group: on a busy machine this takes a while


class Group:
    """A group below our own: one folder, or in version 1 one folder for each kind of limit."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders

    def doors(self) -> list[str]:
        """The files through which to enter: a process that writes 0 into them joins the group, with everything that it
        starts afterwards.
        """
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def remove(self) -> None:
        for folder in self.folders:
            inside = []
            with suppress(OSError):
                for pid in (folder / "cgroup.procs").read_text().split():
                    with suppress(psutil.NoSuchProcess):  # it has left in the meantime
                        inside.append(psutil.Process(int(pid)))
            psutil.wait_procs(inside, timeout=GONE)  # they were killed; a group with processes in it cannot be removed
            with suppress(OSError):
                folder.rmdir()


def make(memory: int, processes: int, tree: Path = TREE, own: str | None = None) -> Group | None:
    """A new group with these limits, in bytes and in processes (threads count as processes); None if none can be made.

    `own` is the text of /proc/self/cgroup.
    """
    folders: list[Path] = []
    try:
        for parent, limits in places(memory, processes, tree, own or Path("/proc/self/cgroup").read_text()):
            for left in parent.glob("workbook-*"):  # left by a worker that was killed
                owner = left.name.split("-")[1]
                if owner.isdigit() and not psutil.pid_exists(int(owner)):
                    with suppress(OSError):
                        left.rmdir()
            folders.append(Path(tempfile.mkdtemp(prefix=f"workbook-{os.getpid()}-", dir=parent)))
            for name, most in limits.items():
                (folders[-1] / name).write_text(str(most))
    except OSError:
        Group(folders).remove()
        return None
    return Group(folders) if folders else None


def places(memory: int, processes: int, tree: Path, own: str) -> list[tuple[Path, dict[str, int]]]:
    """(folder in which a group can be made, its limits): one in version 2, two in version 1, empty without either."""
    ours = {kind: path.strip("/") for _, kind, path in (line.split(":", 2) for line in own.splitlines())}
    if "" in ours:
        here = tree / ours[""]
        # Usually, a group with processes in it cannot have groups with limits below it.
        for parent in (here, here.parent) if here != tree else (here,):
            with suppress(OSError):
                if {"memory", "pids"} <= set((parent / "cgroup.subtree_control").read_text().split()):
                    return [(parent, {"memory.max": memory, "pids.max": processes})]
    limits = {"memory": {"memory.limit_in_bytes": memory}, "pids": {"pids.max": processes}}
    return [(tree / kind / ours[kind], limits[kind]) for kind in limits] if limits.keys() <= ours.keys() else []
