"""The CPU time of ranks: it tells who computes, who waits and who runs without end."""

import time
from collections.abc import Callable

import psutil

from grader.engine.ranks.diagnose import Fault, Where, place

SILENT_CPU = 1.5  # seconds of CPU without a sign of life: a loop that never ends
GPU_START = 6.0  # seconds more of either, for CUDA and NCCL start on each rank
TOTAL_CPU = 60.0  # seconds of CPU that one rank may use in all
IDLE = 4.0  # seconds of every rank asleep, none in a collective: a sleep, a lock, a read that never ends
TICK = 0.05  # seconds between looks at the ranks' CPU time


class Pulse:
    """What is known of the CPU time of each rank."""

    def __init__(self, world: int, started: float, on_gpu: bool = False) -> None:
        self.silent, self.idle = (usual + GPU_START * on_gpu for usual in (SILENT_CPU, IDLE))
        self.processes: dict[int, psutil.Process] = {}
        self.cpu_at_event = dict.fromkeys(range(world), 0.0)
        self.cpu = dict.fromkeys(range(world), 0.0)
        self.quiet = {n: (started, 0.0) for n in range(world)}  # since when, and its CPU time then

    def heard(self, number: int) -> None:
        """A rank has given a sign of life."""
        self.cpu_at_event[number] = self.cpu[number]
        self.quiet[number] = time.monotonic(), self.cpu[number]

    def sleepers(self) -> set[int]:
        """Ranks that have been asleep, without a word, for several looks."""
        return {number for number, (since, _) in self.quiet.items() if time.monotonic() - since > 6 * TICK}

    def look(
        self, pids: dict[int, int | None], waiting: Callable[[int], bool], where_now: Callable[[int], Where | None]
    ) -> Fault | None:
        """Read the CPU time of each living rank, by its process id: it tells a loop from a wait."""
        for number, pid in pids.items():
            if pid is None:
                continue  # it has not said a word yet
            try:
                process = self.processes.setdefault(number, psutil.Process(pid))
                times, status = process.cpu_times(), process.status()
            except psutil.Error:  # it ended between two looks; the server will say so
                continue
            used = times.user + times.system
            self.cpu[number] = used
            since, then = self.quiet[number]
            if status != psutil.STATUS_SLEEPING or used - then > 0.1 * (time.monotonic() - since) + 0.02:
                self.quiet[number] = time.monotonic(), used  # gloo's own thread takes a little; code takes more
            silent = used - self.cpu_at_event[number]
            if silent > self.silent or used > TOTAL_CPU:
                where = where_now(number)
                return Fault(
                    "hang",
                    f"rank {number} runs without end at {place(where)}: {silent:.1f} s of CPU without "
                    "a collective, a step or an end",
                    number,
                    where,
                    expected="the code ends",
                    seen=f"an endless loop at {place(where)}",
                )
        if pids and all(time.monotonic() - self.quiet[n][0] > self.idle for n in pids):
            number = min(pids, key=lambda n: (waiting(n), n))
            where = where_now(number)
            return Fault(
                "hang",
                f"rank {number} sleeps at {place(where)} and nothing will wake it",
                number,
                where,
                expected="the code ends",
                seen=f"asleep at {place(where)}",
            )
        return None
