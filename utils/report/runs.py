"""Reads what runs left in their folders.

A run leaves metrics.jsonl, and with --record a file for each rank in usage/ (see recorder.py).
"""

import itertools
import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from utils.arguments import SIZES

# The parts of a step, in the order in which they are drawn.
PARTS = ("data", "forward", "backward", "waiting", "communication", "optimizer")
COMPARED = "compare.json"  # written by hybrid_training --compare: rows of name, predicted, measured
Line = dict[str, Any]


@dataclass
class Rank:
    """The records of one rank."""

    start: Line
    usage: list[Line] = field(default_factory=list)
    steps: list[Line] = field(default_factory=list)  # seconds of each part of a step
    communication: Line | None = None
    end: Line | None = None
    refused: Line | None = None  # why this rank ended the run: out of memory, or a loss that is not finite

    @property
    def parts(self) -> dict[str, float]:
        """Median seconds of each part of a step; time in which only messages were in flight is a separate part."""
        if not self.steps:
            return {}
        parts = {part: statistics.median(step[part] for step in self.steps) for part in self.steps[0]}
        shares = self.communication["shares"] if self.communication else {}
        alone = {part: seconds * shares.get(part, 0.0) for part, seconds in parts.items()}
        parts = {part: parts[part] - alone[part] for part in parts}
        return {part: sum(alone.values()) if part == "communication" else parts.get(part, 0.0) for part in PARTS}

    @property
    def peak(self) -> int:
        """Peak bytes of the process."""
        return (self.end or {}).get("peak_memory") or max((line["memory"] for line in self.usage), default=0)

    @property
    def device_memory(self) -> int | None:
        """Peak bytes of its tensors on the device, as counted for --device-memory; None if they were not counted."""
        counted = [line.get("device_memory") for line in (*self.usage, *([self.end] if self.end else []))]
        return max((nbytes for nbytes in counted if nbytes is not None), default=None)


@dataclass
class Run:
    """The records of a run."""

    folder: Path
    lines: list[Line]  # of metrics.jsonl
    ranks: list[Rank]

    def of(self, kind: str) -> list[Line]:
        return [line for line in self.lines if line["kind"] == kind]

    @property
    def refused(self) -> str:
        """Why the run ended early, if a rank reported a reason."""
        lines = [rank.refused for rank in self.ranks if rank.refused]
        return min(lines, key=lambda line: line["time"])["why"] if lines else ""

    @property
    def tokens_per_s(self) -> float:
        """The tokens of all steps over the time that they took, without the first line, which includes the start."""
        known = [before["step"] for before in ({"step": 0}, *self.lines)]
        windows = [
            (line["step"] - before, line["tokens_per_s"])
            for before, line in zip(known, self.lines, strict=False)
            if line["kind"] == "step"
        ]
        windows = [(steps, speed) for steps, speed in windows[1:] or windows if speed and steps > 0]
        steps = sum(steps for steps, _ in windows)
        return steps / sum(steps / speed for steps, speed in windows) if windows else 0.0

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step at that speed; None where the tokens of a step are not known."""
        model, sequences = self.ranks[0].start.get("model") if self.ranks else None, batch_of(self)
        if not model or not sequences.isdecimal() or not self.tokens_per_s:
            return None
        return int(sequences) * model["max_len"] / self.tokens_per_s


def read(folder: Path) -> Run:
    """Read the run in a folder. Raises ValueError if there is none that took a step, or reported why it could not."""
    lines = read_lines(folder / "metrics.jsonl")
    ranks = []
    for file in sorted((folder / "usage").glob("rank-*.jsonl"), key=lambda path: int(path.stem.removeprefix("rank-"))):
        by_kind: dict[str, list[Line]] = {}
        for line in read_lines(file):
            by_kind.setdefault(line["kind"], []).append(line)
        if start := by_kind.get("start"):
            steps = [step for line in by_kind.get("parts", []) for step in line["steps"]]
            ranks.append(
                Rank(
                    start[0],
                    by_kind.get("usage", []),
                    steps,
                    *(by_kind.get(kind, [None])[0] for kind in ("communication", "end", "refused")),
                )
            )
    run = Run(folder, lines, ranks)
    if not run.of("step") and not run.refused:
        raise ValueError(f"there is no run in {folder}: its metrics.jsonl is missing, or has no steps yet")
    return run


def memory_of(line: Line) -> int:
    """Bytes in use, from a line of usage: on the GPU if there is one, else of the process."""
    return line.get("gpu_memory", line["memory"])


def records(folder: Path) -> list[Path]:
    """The metrics.jsonl of the folder's own run and of its runs on several numbers of processes, newest last."""
    return sorted(
        [*folder.glob("metrics.jsonl"), *folder.glob("nproc-*/metrics.jsonl")], key=lambda path: path.stat().st_mtime
    )


def newest(folder: Path) -> float:
    """The time when a run in the folder last wrote a line; seconds since 1970, 0 if none did."""
    return max((path.stat().st_mtime for path in records(folder)), default=0.0)


def arguments(run: Run) -> list[str]:
    """The command of a run, without its folder."""
    command = run.ranks[0].start["command"] if run.ranks else []
    return [part for before, part in zip(["", *command], command, strict=False) if "--out" not in (before, part)]


def given(run: Run, flag: str) -> str:
    """The last value of a flag in a run's command; "" if it is not given."""
    command = [part for word in (run.ranks[0].start["command"] if run.ranks else []) for part in word.split("=", 1)]
    return ([""] + [after for word, after in itertools.pairwise(command) if word == flag])[-1]


def scaling(run: Run) -> str:
    """The kind of scaling of such runs: "weak" if each rank has its own batch, else "strong"."""
    return "weak" if given(run, "--batch-size-per-rank") else "strong"


def batch_of(run: Run) -> str:
    """Sequences per step, as given in the command."""
    if each := given(run, "--batch-size-per-rank"):
        return f"{each} a rank"
    return given(run, "--batch-size") or str(SIZES[given(run, "--size") or "laptop"]["batch_size"])


def speed_rows(runs: dict[int, Run]) -> list[dict[str, float]]:
    """For each number of processes: tokens_per_s, speed_up, efficiency, and the largest relative difference of a loss
    (in strong scaling; in weak scaling the batches, and so the losses, differ).
    """
    fewest, base = next(iter(runs.items()))
    losses = {line["step"]: line["loss"] for line in base.of("step")}
    rows = []
    for nproc, run in runs.items():
        speed_up = run.tokens_per_s / (base.tokens_per_s or 1.0)
        differences = [
            abs(line["loss"] / losses[line["step"]] - 1) for line in run.of("step") if losses.get(line["step"])
        ]
        rows.append(
            dict(
                processes=nproc,
                tokens_per_s=run.tokens_per_s,
                speed_up=speed_up,
                efficiency=speed_up * fewest / nproc,
                difference=max(differences, default=0.0),
            )
        )
    return rows


def read_lines(path: Path) -> list[dict]:
    """The JSON lines of a record; a run that was killed may have left half of the last one, or none."""
    lines = []
    for text in path.read_text("utf-8").splitlines() if path.is_file() else []:
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines
