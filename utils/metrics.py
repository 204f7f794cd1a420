"""The record of a run, one JSON object per line; and on the screen a progress bar, or a line now and then."""

import json
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from utils import run_folder
from utils.device_memory import OutOfMemory
from utils.distributed import fail, from_rank0, is_rank0
from utils.stop_together import Parting, end_all
from utils.report.runs import read_lines
from utils.atomic_write import no_room, written_whole

PULSE = 30.0  # seconds from one line to the next, where there is no terminal for a bar


class NotFinite(ValueError):
    """A loss is infinite, or not a number."""


class Metrics:
    """Write `folder/metrics.jsonl`; rank 0 does. The folder is this run's alone, until the run is over.

    Use it as a context manager. On a terminal a progress bar is below the printed lines; elsewhere, as in a batch job's
    output, a line says every half minute how far the run is. A full disk, a device whose memory is used up, or a loss
    that is not finite ends all ranks with one line and exit code 2.

    Args:
        folder: made if missing; an old record in it is replaced.
        rank: this process's.
        total_steps: where the bar ends.
        tensorboard: write event files into `folder/tensorboard`, too.
        record: on every rank, write what it uses into `folder/usage`, for `./workbook report`.
        after: continue an old record after so many steps, as a resumed run does.
        validated: the epoch that ends with step `after` has its line already.
    """

    def __init__(
        self,
        folder: str | Path,
        rank: int = 0,
        total_steps: int = 0,
        tensorboard: bool = False,
        record: bool = False,
        after: int = 0,
        validated: bool = False,
    ) -> None:
        self.run = self.file = self.writer = self.bar = self.recorder = None
        self.total_steps, self.first, self.said = total_steps, None, time.monotonic()
        self.folder, self.parting = Path(folder), Parting()
        # A script that does not know its rank yet takes itself for rank 0; its launcher knows better.
        writes = rank == 0 and os.environ.get("RANK", "0") == "0"
        if problem := from_rank0(self.take(after, validated) if writes else ""):
            fail(f"--out {folder}: {problem}; choose another folder")
        if record:
            from utils.report.recorder import Recorder

            try:
                self.recorder = Recorder(self.folder, rank)
            except (OSError, run_folder.Taken) as problem:
                fail(f"--out {folder}: {getattr(problem, 'strerror', problem)}; choose another folder")
        if not writes:
            return
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(self.folder / "tensorboard"), purge_step=after + 1)
        if sys.stdout.isatty() or sys.stderr.isatty():
            self.bar = _progress_bar()
            self.task = self.bar.add_task("", total=total_steps or None, loss="loss –", speed="")

    def take(self, after: int, validated: bool) -> str:
        """Make the folder this run's, with what its record says up to step `after`; or say why not."""
        try:
            self.run = run_folder.take(self.folder)
            path = self.folder / "metrics.jsonl"
            lines = read_lines(path) if path.is_file() and after else []
            kept = [line for line in lines if is_before(line, after, validated)]
            with written_whole(path) as part:
                part.write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")
            self.file = path.open("a", encoding="utf-8")
        except run_folder.Taken as who:
            return f"{who} writes into it"
        except OSError as problem:
            return no_room(problem) or problem.strerror
        return ""

    def log(self, kind: str, step: int, **values: float) -> None:
        """Add a line at once, so that a run that is killed leaves its record.

        Args:
            kind: "step", "epoch" or "test".
            step: optimizer steps done so far.
            values: what was measured, such as epoch, loss (nats a token),
                tokens_per_s (over all ranks), seconds (since the run began); or lists of numbers.

        Raises:
            NotFinite: a loss is not. All ranks of a run know the same losses, and all raise it.
        """
        if self.recorder is not None:
            self.recorder.parts.skip()
        for name, value in values.items():
            if name.endswith("loss") and not math.isfinite(value):
                raise NotFinite(f"the {name.replace('_', ' ')} at step {step} is {value}: see --lr and --clip")
        if self.file is None:
            return
        print(json.dumps({"kind": kind, "step": step, **values}), file=self.file, flush=True)
        if self.writer is not None:
            for name, value in flat(kind, values):
                self.writer.add_scalar(name, value, step)
        if self.bar is not None and kind == "step":
            loss, speed = f"loss {values['loss']:.3f}", f"{values['tokens_per_s']:,.0f} tokens/s"
            self.bar.update(self.task, completed=step, loss=loss, speed=speed)
        elif kind == "step" and is_rank0():
            self.say_progress(step, values["loss"], values["tokens_per_s"])

    def say_progress(self, step: int, loss: float, tokens_per_s: float) -> None:
        """A line, unless there was one just now. The time left is the steps' time, without evaluation."""
        now = time.monotonic()
        if self.first is None:
            self.first = step, now
        if now - self.said < PULSE:
            return
        self.said = now
        line = f"step {step}/{self.total_steps or '?'}: loss {loss:.3f}, {tokens_per_s:,.0f} tokens/s"
        before, begun = self.first
        if step > before and self.total_steps:
            minutes = (self.total_steps - step) * (now - begun) / (step - before) / 60
            line += f", about {minutes:.0f} min left" if minutes >= 1 else ", less than a minute left"
        print(line, flush=True)

    def __enter__(self) -> "Metrics":
        self.parting.__enter__()
        if self.recorder is not None:
            self.recorder.__enter__()
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.parting.__exit__(None, None, None)
        refused = str(error) if isinstance(error, (NotFinite, OutOfMemory)) else ""
        if refused and self.recorder is not None:
            self.recorder.write("refused", why=refused)
        full = no_room(error)
        for close in (
            self.recorder and self.recorder.close,
            self.bar and self.bar.stop,
            self.writer and self.writer.close,
            self.file and self.file.close,
            self.run and self.run.close,
        ):
            try:
                if close:
                    close()
            except OSError as problem:  # what could not be written before is tried once more
                full = full or no_room(problem)
        if full:
            end_all(f"--out {self.folder}: {full}; the run ends here, and what is there is whole")
        if refused:
            end_all(refused)


def flat(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Every number in dictionaries and lists, with the path to it: load/0/3."""
    if not isinstance(value, (dict, list)):
        yield name, value
        return
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from flat(f"{name}/{key}", part)


def is_before(line: dict[str, Any], after: int, validated: bool) -> bool:
    """Whether a resumed run does not write this line once more. A checkpoint is saved after the line on its step, and
    before the one on the epoch that this step ends, unless that was `validated` before.
    """
    kinds = ("step", "epoch") if validated else ("step",)
    return line["step"] < after or (line["step"] == after and line["kind"] in kinds)


def _progress_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    # A stream is led around the bar only if it ends on the terminal; one that goes
    # into a file stays there.
    on_stdout = sys.stdout.isatty()
    return Progress(
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[loss]}"),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        console=Console(stderr=not on_stdout),
        redirect_stdout=on_stdout,
        redirect_stderr=sys.stderr.isatty(),
        transient=True,
    )
