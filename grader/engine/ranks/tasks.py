"""What Linux says about threads: which wait, which wait for a processor, and how much CPU time each has had.

https://docs.kernel.org/scheduler/sched-stats.html and proc(5). Elsewhere there is nothing to read.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

TIMED = ("nanosleep",)  # in what the kernel calls a sleep that ends on its own, as time.sleep does


class Task(NamedTuple):
    """One thread."""

    state: str  # R: it runs, or waits for a processor; S: it waits; D: it waits for a disk
    ran: float  # seconds on a processor
    in_line: float  # seconds in which it could have run and was not let; known once it runs again

    def held_up(self, before: "Task", seconds: float) -> float:
        """How many of the last `seconds` it was kept from running, if it was as `before` at their beginning."""
        if self.state in "RD":
            kept = seconds - (self.ran - before.ran)
        else:
            kept = self.in_line - before.in_line
        return min(max(kept, 0.0), seconds)


def tasks_of(pid: int) -> dict[int, Task]:
    """The threads of a process, by their ids; none where the system does not tell."""
    found = {}
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError, ValueError, IndexError):  # it ended between two reads
                state = read_kernel(f"/proc/{pid}/task/{thread}/stat").rpartition(")")[2].split(None, 1)[0]
                ran, in_line, _ = map(int, read_kernel(f"/proc/{pid}/task/{thread}/schedstat").split())
                found[int(thread)] = Task(state, ran / 1e9, in_line / 1e9)
    return found


def read_kernel(file: str) -> str:
    """What a file of the kernel's says, read at a third of what `Path.read_text` takes: a rank of many groups has
    dozens of threads.
    """
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 16).decode()
    finally:
        os.close(descriptor)


def descendants(pid: int) -> Iterator[int]:
    """The processes that a process has started, and theirs: the workers of its data loaders, say."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                for child in read_kernel(f"/proc/{pid}/task/{thread}/children").split():
                    yield int(child)
                    yield from descendants(int(child))


def wakes_by_itself(pid: int) -> bool:
    """Whether the main thread is in a sleep that ends on its own. False where the kernel does not say."""
    with suppress(OSError):
        return any(word in read_kernel(f"/proc/{pid}/wchan") for word in TIMED)
    return False
