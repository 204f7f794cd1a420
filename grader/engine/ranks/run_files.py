"""Reads what ranks leave in the folder of their run: printed lines, stacks, evidence, files."""

import os
import re
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from grader.engine.ranks.diagnose import Fault, Where
from grader.engine.ranks.run import Run
from grader.engine.walls import sandbox
from grader.engine.walls.sanitize import plain_bytes

PRINTED = 1_000_000  # the most bytes kept of what a rank prints
ANSWER = 5.0  # seconds that a rank has to report where it is; it is immediate unless the machine is busy
# What faulthandler writes: a frame, and how a stack ends, at the server's own first frame or after a hundred.
FRAME = re.compile(r'^  File "(.+)", line (\d{1,9}) in (.+)\n', re.MULTILINE)
WHOLE = re.compile(r"^  (?:File .+ in _run_module_as_main|\.\.\.|<no Python frame>)\n", re.MULTILINE)
# What gloo prints on standard output in older torch (2.8, 2.9), whenever a group connects; no student asked for it.
GLOO = re.compile(r"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\. Expected number of .*\n")
ONE_FILE, ALL_FILES = 50_000_000, 200_000_000  # the most bytes kept of what the ranks write


class Traces:
    """The folder of a run; its contents may be hostile. `units` are the names of the student's files or cells."""

    def __init__(self, folder: Path, units: Collection[str]) -> None:
        self.folder, self.units = folder, units

    def text(self, rank: int, name: str) -> str:
        """The beginning of a text that a rank left in its folder; "" if there is none."""
        try:
            return plain_bytes(self.folder / str(rank) / name, PRINTED, cut=True).decode(errors="replace")
        except OSError:
            return ""

    def last_words(self, rank: int) -> str:
        """The last line that a rank wrote to stderr, or the reason that C++ gives there when it aborts the process."""
        lines = [line.strip() for line in self.text(rank, "stderr").splitlines() if line.strip()]
        reasons = [line.removeprefix("what():").strip() for line in lines if line.startswith("what():")]
        return (reasons or lines or [""])[-1]

    def stack(self, rank: int) -> list[Where]:
        """The lines of the student's code in what faulthandler wrote, innermost first."""
        frames = FRAME.findall(self.text(rank, "stacks"))
        return [[unit, int(line), function] for unit, line, function in frames if unit in self.units]

    def where_now(self, rank: int, pid: int | None) -> list[Where]:
        """Ask a rank where it is: faulthandler writes its stack, whatever the rank is doing."""
        if pid is None:
            return []
        try:
            os.kill(pid, signal.SIGUSR1)
        except ProcessLookupError:
            return []
        deadline = time.monotonic() + ANSWER
        while not WHOLE.search(self.text(rank, "stacks")) and time.monotonic() < deadline:
            time.sleep(0.005)  # bounded: a rank that cannot even dump its stack is known by its last event
        return self.stack(rank)

    def collect(self, run: Run) -> None:
        """What each rank printed, its evidence, and the files that the ranks wrote."""
        from grader.engine.ranks import evidence

        for rank in range(run.world):
            for name, kept in (("stdout", run.stdout), ("stderr", run.stderr)):
                kept.append(GLOO.sub("", self.text(rank, name)))
            try:
                run.evidence.append(evidence.read(self.folder / str(rank) / "evidence"))
            except Exception:
                run.evidence.append(None)
                run.fault = run.fault or Fault("crash", f"rank {rank} left no evidence", rank)
        left = ALL_FILES
        for name in ["common", *map(str, range(run.world))]:
            work = self.folder / name / "work"
            for path in [] if work.is_symlink() else sorted(sandbox.plain_files(work)):
                with suppress(OSError):  # not a plain file, or too long
                    content = plain_bytes(path, min(left, ONE_FILE))
                    left -= len(content)
                    run.files.setdefault(str(path.relative_to(work)), content)
