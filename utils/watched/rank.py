"""Runs on a rank: notes each call before it is made, each wait, and once a second what the program is doing.

`--watch` enables it, which `./workbook run` passes to the script. It uses no port and stops no rank; the notes are read
from outside (`record`). On a GPU a wait returns as soon as it is on the stream: there, the running lines show where a
rank is.
"""

import atexit
import os
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import psutil
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from utils.distributed import Launch
from utils.watched.calls import aside, described, intercept, members_of
from utils.watched.record import Record

PERIOD = 1.0  # seconds between notes of the running lines
MOST = 64  # calls in flight whose wait is recognized; older ones without a wait are forgotten
COURSE = Path(__file__).resolve().parents[2]


def begin(folder: Path, launch: Launch, several_nodes: bool) -> None:
    """From now on, note what this process does; `folder` is the run's. If it cannot be written, a line says so."""
    try:
        rank = Rank(folder, launch, several_nodes)
    except OSError as problem:
        print(f"{folder}: {problem.strerror}; this run cannot be watched", file=sys.stderr)
        return
    rank.watch()


class Rank:
    """This process, and its record."""

    def __init__(self, folder: Path, launch: Launch, several_nodes: bool) -> None:
        self.record = Record(
            folder,
            launch.rank,
            launch.world_size,
            created=psutil.Process().create_time(),
            life=f"{os.environ.get('SLURM_RESTART_COUNT', 0)}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}",
        )
        self.rank, self.several_nodes = launch.rank, several_nodes
        self.pid, self.main = os.getpid(), threading.main_thread().ident
        self.script = str(Path(sys.argv[0]).resolve())
        self.names: dict[str, str] = {}  # names of the course's files, as they are displayed
        self.calls = 0
        self.counts: dict[str, int] = defaultdict(int)
        # A work is recognized as long as it is referenced: until its wait, and at most MOST of them.
        self.in_flight: dict[dist.Work, int] = {}
        self.lock = threading.Lock()
        self.gone = False

    def watch(self) -> None:
        self.kernels = intercept(self.reporting)
        self.watch_waits()
        old = sys.excepthook

        def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self.leave(f"{kind.__name__}: {' '.join(str(error).split())[:400]}", trace)
            old(kind, error, trace)

        sys.excepthook = excepthook
        atexit.register(self.leave, "")
        threading.Thread(target=self.beat, daemon=True).start()

    def reporting(self, operation: Any, name: str, below: Any) -> Any:
        """The kernel of one operation."""
        arguments = [argument.name for argument in operation._schema.arguments]
        blocks = name in ("wait_tensor", "monitored_barrier_")

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            if os.getpid() != self.pid:
                return operation.redispatch(keys & below, *args, **kwargs)
            given = dict(zip(arguments, args)) | kwargs
            number = self.called(name, given) if "process_group" in given else -1
            if blocks:
                return self.waited(number, operation.redispatch, keys & below, *args, **kwargs)
            answer = operation.redispatch(keys & below, *args, **kwargs)
            boxed = answer[-1] if isinstance(answer, tuple) else answer
            # A caller in C++, such as DDP's reducer, also waits in C++.
            if number >= 0 and boxed is not None and sys._getframe(1).f_code.co_filename == c10d.__file__:
                with self.lock:
                    self.in_flight[dist.Work.unbox(boxed)] = number
                    if len(self.in_flight) > MOST:
                        self.in_flight.pop(next(iter(self.in_flight)))
            return answer

        return kernel

    def called(self, name: str, given: dict) -> int:
        """Note a collective or message that is about to start; returns its number on this rank."""
        group = dist.ProcessGroup.unbox(given["process_group"])
        if group not in kept:
            self.meet(group)
        own = stream = group.group_name
        event = described(name, given, kept[group])
        if "peer" in event:
            stream = f"{own} {event['op']} {event['peer']} {event['tag']}"
        where, *callers = self.lines(sys._getframe(1)) or [None]
        beside = aside()
        with self.lock:
            event["index"], number = self.counts[stream], self.calls
            self.counts[stream] += 1
            self.calls += 1
            event.update(name=own, where=where, callers=callers, stream=stream, aside=beside)
            self.record.call(number, event)
            if not beside:
                self.record.state(self.calls, False)
        return number

    def meet(self, group: dist.ProcessGroup) -> None:
        """Note a group at its first call."""
        kept[group] = members_of(group)
        self.record.put("groups", {each.group_name: sorted(members) for each, members in kept.items()})

    def watch_waits(self) -> None:
        plain = c10d.Work.wait

        def wait(work: dist.Work, *args: Any, **kwargs: Any) -> Any:
            with self.lock:
                number = self.in_flight.pop(work, -1)
            return self.waited(number, plain, work, *args, **kwargs)

        c10d.Work.wait = wait

    def waited(self, number: int, wait: Any, *args: Any, **kwargs: Any) -> Any:
        if aside():
            return wait(*args, **kwargs)
        self.record.state(self.calls, True, number)
        try:
            return wait(*args, **kwargs)
        finally:
            self.record.state(self.calls, False)

    def lines(self, frame: FrameType | None) -> list[list]:
        """The lines of the script on the stack, innermost first; without a script, the course's."""
        found: list[list] = []
        while frame is not None:
            code = frame.f_code
            name = self.names.get(code.co_filename)
            if name is None:
                name = self.names[code.co_filename] = self.spoken(code.co_filename)
            if name:
                found.append([name, frame.f_lineno, code.co_name])
            frame = frame.f_back
        script = self.names.get(self.script) or self.script
        own = [line for line in found if line[0] == script] or found
        # The line, and its caller; the call of main is omitted.
        return [line for line in own if line[2] != "<module>"][:2]

    def spoken(self, file: str) -> str:
        """A file's path in the course; "" for a file outside the course, and for this file."""
        path = Path(file)
        if path.parent == Path(__file__).parent or not path.is_file():
            return ""
        path = path.resolve()
        inside = path.is_relative_to(COURSE) and "site-packages" not in path.parts
        if not inside and str(path) != self.script:
            return ""
        name = path.relative_to(COURSE).as_posix() if inside else path.name
        if str(path) == self.script:
            self.names[self.script] = name
        return name

    def beat(self) -> None:
        """Once a second, note where the main thread is, and whether it computes."""
        number = 0
        while not self.gone:
            frame = sys._current_frames().get(self.main)
            inner = f"{Path(frame.f_code.co_filename).name}: {frame.f_code.co_name}" if frame else ""
            beat = {"n": number, "cpu": time.process_time(), "lines": self.lines(frame), "in": inner}
            with self.lock:
                counts = dict(self.counts)
            del frame
            if not self.record.put("beat", {**beat, "counts": counts}):
                self.record.put("beat", beat)
            if self.several_nodes:
                self.record.map.flush()  # only then does a network file system show it to other nodes
            number += 1
            time.sleep(PERIOD)

    def leave(self, how: str, trace: TracebackType | None = None) -> None:
        """Note that the process ends: with an error, or "" for a normal end."""
        if self.gone or os.getpid() != self.pid:
            return
        self.gone, frame = True, None
        while trace is not None:
            frame, trace = trace.tb_frame, trace.tb_next
        self.record.put("gone", {"how": how, "lines": self.lines(frame), "time": time.time()})
        if self.several_nodes:
            self.record.map.flush()


# Groups, with their ranks: global rank -> rank in the group. They live as long as the process: gloo's destructor joins
# its threads with the GIL held, and a thread that drops the last reference to a tensor that Python has seen needs the
# GIL: deadlock.
kept: dict[dist.ProcessGroup, dict[int, int]] = {}
