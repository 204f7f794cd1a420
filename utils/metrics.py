"""The record of a run: one JSON object a line, and for whoever watches a progress bar, or a line now and then."""

import json
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from utils.distributed import fail, is_rank0


PULSE = 30.0  # seconds from one line to the next, where there is no terminal for a bar


class Metrics:
    """Write `folder/metrics.jsonl`; rank 0 does.

    Use it as a context manager. On a terminal a progress bar stands below what is
    printed; elsewhere, as in a batch job's output, a line says every half minute how far the run is.

    Args:
        folder: made if missing; an old record in it is replaced, unless `append`.
        rank: this process's.
        total_steps: where the bar ends.
        tensorboard: write event files into `folder/tensorboard`, too.
        record: on every rank, write what it uses into `folder/usage`, for `./workbook report`.
        append: go on with an old record, as a run does that was resumed.
    """

    def __init__(
        self,
        folder: str | Path,
        rank: int = 0,
        total_steps: int = 0,
        tensorboard: bool = False,
        record: bool = False,
        append: bool = False,
    ) -> None:
        self.file = self.writer = self.bar = self.recorder = None
        self.total_steps, self.first, self.said = total_steps, None, time.monotonic()
        folder = Path(folder)
        try:
            if record:
                from utils.recorder import Recorder

                self.recorder = Recorder(folder, rank)
            if rank != 0:
                return
            folder.mkdir(parents=True, exist_ok=True)
            self.file = (folder / "metrics.jsonl").open("a" if append else "w", encoding="utf-8")
        except OSError as problem:
            fail(f"--out {folder}: {problem.strerror}; choose another folder")
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(folder / "tensorboard"))
        if sys.stdout.isatty() or sys.stderr.isatty():
            self.bar = _progress_bar()
            self.task = self.bar.add_task("", total=total_steps or None, loss="loss –", speed="")

    def log(self, kind: str, step: int, **values: float) -> None:
        """Add a line at once, so that a run that is killed leaves its record.

        Args:
            kind: "step", "epoch" or "test".
            step: optimizer steps done so far.
            values: what was measured, such as epoch, loss (nats a token),
                tokens_per_s (over all ranks), seconds (since the run began).
        """
        if self.recorder is not None:
            self.recorder.parts.skip()
        if self.file is None:
            return
        print(json.dumps({"kind": kind, "step": step, **values}), file=self.file, flush=True)
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(f"{kind}/{name}", value, step)
        if self.bar is not None and kind == "step":
            loss, speed = f"loss {values['loss']:.3f}", f"{values['tokens_per_s']:,.0f} tokens/s"
            self.bar.update(self.task, completed=step, loss=loss, speed=speed)
        elif kind == "step" and is_rank0():
            self.say_progress(step, values["loss"], values["tokens_per_s"])

    def say_progress(self, step: int, loss: float, tokens_per_s: float) -> None:
        """A line, unless there was one just now. The time left is that of the steps, without evaluation."""
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
        if self.recorder is not None:
            self.recorder.__enter__()
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        recorder = self.recorder and self.recorder.__exit__
        for part in (
            recorder,
            self.bar and self.bar.stop,
            self.writer and self.writer.close,
            self.file and self.file.close,
        ):
            if part:
                part()


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
