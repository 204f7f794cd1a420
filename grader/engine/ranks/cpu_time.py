"""The CPU time of ranks shows which ranks compute, wait, or run endlessly.

On a busy machine a rank that could continue may look asleep for seconds: one of its threads, perhaps gloo's, waits for
a processor. So a rank's own time advances while it runs or waits, and stops while any of its threads, or of the threads
of processes that it started, is ready but gets no processor. Its silence is the part of that time in which all of them
wait. A thread that wakes every few milliseconds only to look, as in torch's FileStore, adds little to the time awake.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from grader.engine.ranks.diagnose import Fault, Unjudged, Where, place
from grader.engine.ranks.linux_processes import Task, descendants, tasks_of, wakes_by_itself

SILENT_CPU = 1.5  # seconds of CPU without an event: an endless loop
STARTED_CPU = 10.0  # the same, for the processes that a rank started
GPU_START = 6.0  # seconds added to SILENT_CPU and SLEEP_LIMIT, since CUDA and NCCL start on each rank
TOTAL_CPU = 60.0  # seconds of CPU that one rank may use in all
# Seconds with every rank asleep: in a sleep, a lock, a read that never ends, or waiting for such a rank. Twice as long
# for a rank in a collective that all ranks have called, which ends on its own.
SLEEP_LIMIT = 4.0
TICK = 0.05  # seconds between looks at the ranks' CPU time
ASLEEP = 6 * TICK
STARVED = 300.0  # seconds without an event after which the machine is to blame: it gives the ranks no processor


@dataclass
class Sign:
    """A rank's last sign of activity."""

    at: float  # seconds, by our clock
    asleep: float = 0.0  # seconds of its own time in which it was asleep
    cpu: float = 0.0  # seconds of CPU, its own
    started_cpu: float = 0.0  # and of the processes it started


class Pulse:
    """The CPU time of each rank, as far as known."""

    def __init__(self, world: int, started: float, on_gpu: bool = False) -> None:
        self.on_gpu = on_gpu
        self.silent_cpu, self.sleep_limit = (usual + GPU_START * on_gpu for usual in (SILENT_CPU, SLEEP_LIMIT))
        self.processes: dict[int, psutil.Process] = {}
        self.cpu_at_event = dict.fromkeys(range(world), 0.0)
        self.started_at_event = dict.fromkeys(range(world), 0.0)
        self.cpu = dict.fromkeys(range(world), 0.0)
        self.started_cpu = dict.fromkeys(range(world), 0.0)
        self.own = dict.fromkeys(range(world), 0.0)
        self.asleep = dict.fromkeys(range(world), 0.0)
        self.signs = {n: Sign(started) for n in range(world)}
        self.tasks: dict[int, dict[int, Task] | None] = dict.fromkeys(range(world))  # None: not read at the last look
        self.children: dict[int, list[int]] = {n: [] for n in range(world)}
        self.wakes: set[int] = set()  # ranks in a sleep that ends on its own
        self.spoke: set[int] = set()  # ranks that have sent an event since the last look
        self.looked = started

    def heard(self, rank: int) -> None:
        """A rank has sent an event."""
        self.cpu_at_event[rank] = self.cpu[rank]
        self.started_at_event[rank] = self.started_cpu[rank]
        self.spoke.add(rank)
        self.moved(rank)

    def moved(self, rank: int) -> None:
        """A rank is not asleep."""
        self.wakes.discard(rank)
        self.signs[rank] = Sign(time.monotonic(), self.asleep[rank], self.cpu[rank], self.started_cpu[rank])

    def silent(self, rank: int) -> float:
        """Seconds of its own time for which a rank has been asleep without sending an event."""
        return self.asleep[rank] - self.signs[rank].asleep

    def sleepers(self) -> set[int]:
        """Ranks that have been asleep without an event for several looks, and that will not wake on their own."""
        return {rank for rank in self.signs if self.silent(rank) > ASLEEP} - self.wakes

    def look(
        self,
        pids: dict[int, int | None],
        waiting: Callable[[int], bool],
        complete: Callable[[int], bool],
        where_now: Callable[[int], list[Where]],
        elsewhere: Callable[[int], str] = lambda rank: "",
    ) -> Fault | None:
        """Read the CPU time of each living rank, by process id, to tell a loop from a wait.

        `complete`: whether a rank waits for something that will complete, since no rank is missing. `elsewhere`: where
        the ranks other than this one are, in words.

        Raises:
            Unjudged: the machine has let no rank run for minutes.
        """
        now = time.monotonic()
        elapsed = min(now - self.looked, 2 * TICK)  # the judge itself was held up, and saw no more than that
        self.looked = now
        for rank, pid in pids.items():
            if pid is None:
                continue  # it has sent no event yet: its own time has not started
            try:
                if rank not in self.processes:
                    self.processes[rank] = psutil.Process(pid)
                times, status = self.processes[rank].cpu_times(), self.processes[rank].status()
            except psutil.Error:  # it ended between two looks; the server will report that
                continue
            self.cpu[rank] = times.user + times.system
            if rank in self.spoke:  # it runs, so its dozens of threads need not be read
                self.own[rank] += elapsed
                self.tasks[rank] = None
            else:
                self.pass_time(rank, pid, elapsed)
            sign = self.signs[rank]
            used, started = self.cpu[rank] - sign.cpu, self.started_cpu[rank] - sign.started_cpu
            awake = not self.tasks[rank] and status != psutil.STATUS_SLEEPING  # all that a system without tasks tells
            # gloo's own thread uses a little; code uses more
            if awake or max(used, started) > 0.1 * self.silent(rank) + 0.02:
                self.moved(rank)
            if fault := self.endless(rank, TOTAL_CPU if self.on_gpu and complete(rank) else self.silent_cpu, where_now):
                return fault
        self.spoke.clear()
        if pids and all(self.silent(n) > (2 * self.sleep_limit if complete(n) else self.sleep_limit) for n in pids):
            rank = min(pids, key=lambda n: (waiting(n), n))
            where, *callers = where_now(rank) or [None]
            return Fault(
                "hang",
                f"rank {rank} sleeps at {place(where)} and nothing will wake it{elsewhere(rank)}",
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
        """Advance a rank's own time: of the time that has passed, the part in which it was not held up, and the part of
        that in which it was asleep.
        """
        before, now = self.tasks[rank], tasks_of(pid)
        if before is None:  # its time goes on from here
            self.tasks[rank] = now
            return
        for child in self.children[rank]:
            threads = tasks_of(child)
            self.started_cpu[rank] += sum(t.ran - before[n].ran for n, t in threads.items() if n in before)
            now |= threads
        known = [(task, before[n]) for n, task in now.items() if n in before]
        held_up = [task.held_up(earlier, elapsed) for task, earlier in known]
        awake = [held + task.ran - earlier.ran for held, (task, earlier) in zip(held_up, known)]
        self.own[rank] += elapsed - max(held_up, default=0.0)
        self.asleep[rank] += max(elapsed - max(awake, default=0.0), 0.0)
        self.tasks[rank] = now
        if self.silent(rank) > ASLEEP:
            self.children[rank] = list(descendants(pid))
            self.wakes.discard(rank)
            if wakes_by_itself(pid):
                self.wakes.add(rank)

    def endless(self, rank: int, limit: float, where_now: Callable[[int], list[Where]]) -> Fault | None:
        """The fault of a rank that computes, itself or in processes it started, without sending events.

        `limit`: seconds of its CPU. A rank spins while NCCL starts a group, which takes longer the more groups start.
        """
        silent = self.cpu[rank] - self.cpu_at_event[rank]
        started = self.started_cpu[rank] - self.started_at_event[rank]
        if silent <= limit and started <= STARTED_CPU and self.cpu[rank] <= TOTAL_CPU:
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
