"""The CPU time of ranks: it tells which ranks compute, wait, or run without end.

On a busy machine a rank that could go on may look asleep for seconds: a thread of it, gloo's own perhaps, waits for a
processor. So a rank's silence is measured in its own time, which goes on while it runs or waits, and stands still while
any thread of it, or of a process that it has started, is held up.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from grader.engine.ranks.diagnose import Fault, Unjudged, Where, place
from grader.engine.ranks.tasks import Task, descendants, tasks_of, wakes_by_itself

SILENT_CPU = 1.5  # seconds of CPU without a sign of life: a loop that never ends
STARTED_CPU = 10.0  # the same, of the processes that a rank has started
GPU_START = 6.0  # seconds more of SILENT_CPU and SLEEP_LIMIT, for CUDA and NCCL start on each rank
TOTAL_CPU = 60.0  # seconds of CPU that one rank may use in all
# Seconds of every rank asleep: in a sleep, a lock, a read that never ends, or in waiting for such a rank. Twice as long
# for a rank in a collective that all have called, which ends by itself.
SLEEP_LIMIT = 4.0
TICK = 0.05  # seconds between looks at the ranks' CPU time
ASLEEP = 6 * TICK
STARVED = 300.0  # seconds without a sign of life after which the machine is to blame: it gives the ranks no processor


@dataclass
class Sign:
    """When a rank last did something."""

    at: float  # seconds, by our clock
    own: float = 0.0  # seconds of its own time
    cpu: float = 0.0  # seconds of CPU, its own
    started_cpu: float = 0.0  # and of what it has started


class Pulse:
    """The CPU time of each rank, as far as known."""

    def __init__(self, world: int, started: float, on_gpu: bool = False) -> None:
        self.silent_cpu, self.sleep_limit = (usual + GPU_START * on_gpu for usual in (SILENT_CPU, SLEEP_LIMIT))
        self.processes: dict[int, psutil.Process] = {}
        self.cpu_at_event = dict.fromkeys(range(world), 0.0)
        self.started_at_event = dict.fromkeys(range(world), 0.0)
        self.cpu = dict.fromkeys(range(world), 0.0)
        self.started_cpu = dict.fromkeys(range(world), 0.0)
        self.own = dict.fromkeys(range(world), 0.0)
        self.signs = {n: Sign(started) for n in range(world)}
        self.tasks: dict[int, dict[int, Task]] = {n: {} for n in range(world)}
        self.children: dict[int, list[int]] = {n: [] for n in range(world)}
        self.wakes: set[int] = set()  # ranks in a sleep that ends on its own
        self.looked = started

    def heard(self, rank: int) -> None:
        """A rank has given a sign of life."""
        self.cpu_at_event[rank] = self.cpu[rank]
        self.started_at_event[rank] = self.started_cpu[rank]
        self.moved(rank)

    def moved(self, rank: int) -> None:
        """A rank is not asleep."""
        self.wakes.discard(rank)
        self.signs[rank] = Sign(time.monotonic(), self.own[rank], self.cpu[rank], self.started_cpu[rank])

    def silent(self, rank: int) -> float:
        """Seconds of its own time for which a rank has been asleep, without a word."""
        return self.own[rank] - self.signs[rank].own

    def sleepers(self) -> set[int]:
        """Ranks that have been asleep, without a word, for several looks, and that will not wake by themselves."""
        return {rank for rank in self.signs if self.silent(rank) > ASLEEP} - self.wakes

    def look(
        self,
        pids: dict[int, int | None],
        waiting: Callable[[int], bool],
        complete: Callable[[int], bool],
        where_now: Callable[[int], list[Where]],
    ) -> Fault | None:
        """Read the CPU time of each living rank, by its process id: it tells a loop from a wait.

        `complete`: whether a rank waits for something that only takes time, since no rank is missing.

        Raises:
            Unjudged: for minutes the machine has let no rank run.
        """
        now = time.monotonic()
        elapsed = min(now - self.looked, 2 * TICK)  # a judge who was held up himself has seen no more
        self.looked = now
        for rank, pid in pids.items():
            if pid is None:
                continue  # it has not said a word yet: its own time has not begun
            try:
                if rank not in self.processes:
                    self.processes[rank] = psutil.Process(pid)
                times, status = self.processes[rank].cpu_times(), self.processes[rank].status()
            except psutil.Error:  # it ended between two looks; the server will say so
                continue
            self.cpu[rank] = times.user + times.system
            self.pass_time(rank, pid, elapsed)
            sign = self.signs[rank]
            used, started = self.cpu[rank] - sign.cpu, self.started_cpu[rank] - sign.started_cpu
            # gloo's own thread takes a little; code takes more
            if status != psutil.STATUS_SLEEPING or max(used, started) > 0.1 * self.silent(rank) + 0.02:
                self.moved(rank)
            if fault := self.endless(rank, where_now):
                return fault
        if pids and all(self.silent(n) > (2 * self.sleep_limit if complete(n) else self.sleep_limit) for n in pids):
            rank = min(pids, key=lambda n: (waiting(n), n))
            where, *callers = where_now(rank) or [None]
            return Fault(
                "hang",
                f"rank {rank} sleeps at {place(where)} and nothing will wake it",
                rank,
                where,
                expected="the code ends",
                seen=f"asleep at {place(where)}",
                also=callers,
                callers=callers,
            )
        if pids and all(now - self.signs[n].at > STARVED for n in pids):
            raise Unjudged(f"for {STARVED:.0f} s this machine has hardly let the ranks run: it is too busy")
        return None

    def pass_time(self, rank: int, pid: int, elapsed: float) -> None:
        """So much time has passed; how much of it was the rank's own?"""
        before, now = self.tasks[rank], tasks_of(pid)
        for child in self.children[rank]:
            threads = tasks_of(child)
            self.started_cpu[rank] += sum(t.ran - before[n].ran for n, t in threads.items() if n in before)
            now |= threads
        held_up = [task.held_up(before[n], elapsed) for n, task in now.items() if n in before]
        self.own[rank] += elapsed - max(held_up, default=0.0)
        self.tasks[rank] = now
        if self.silent(rank) > ASLEEP:
            self.children[rank] = list(descendants(pid))
            self.wakes.discard(rank)
            if wakes_by_itself(pid):
                self.wakes.add(rank)

    def endless(self, rank: int, where_now: Callable[[int], list[Where]]) -> Fault | None:
        """A rank that computes, or lets others compute, and gives no sign of life."""
        silent = self.cpu[rank] - self.cpu_at_event[rank]
        started = self.started_cpu[rank] - self.started_at_event[rank]
        if silent <= self.silent_cpu and started <= STARTED_CPU and self.cpu[rank] <= TOTAL_CPU:
            return None
        where, *callers = where_now(rank) or [None]
        return Fault(
            "hang",
            f"rank {rank} runs without end at {place(where)}: {max(silent, started):.1f} s of CPU without "
            "a collective, a step or an end",
            rank,
            where,
            expected="the code ends",
            seen=f"an endless loop at {place(where)}",
            also=callers,
            callers=callers,
        )
