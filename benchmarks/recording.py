"""What --record costs: steps of training with and without, in turns.

    python benchmarks/recording.py

A fresh recorder looks closely at its first 15 steps and only samples after them, so
both kinds of steps are shown beside steps without any.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from utils.model import TransformerLM
from utils.report.recorder import PROFILED, TIMED, WARM, Recorder

CLOSE = WARM + TIMED + PROFILED  # steps that are looked at closely


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5, help="of blocks of steps, with and without")
    parser.add_argument("--after", type=int, default=CLOSE, help="steps of a block after the first ones")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write every measurement to this file, too")
    args = parser.parse_args()
    seconds = measured(args)
    Console().print(compared(seconds, args.threads))
    if args.json:
        args.json.write_text(json.dumps({"torch": torch.__version__, "seconds": seconds}, indent=1) + "\n")


def measured(args: argparse.Namespace) -> dict[str, list[list[float]]]:
    """The seconds of each step, block by block, with the recorder and without."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = TransformerLM(8000, 128, 4, 2, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randint(8000, (2, 12, 64))

    def step() -> float:
        began = time.perf_counter()
        loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return time.perf_counter() - began

    for _ in range(WARM):
        step()
    seconds: dict[str, list[list[float]]] = {"without": [], "with": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in track(range(args.pairs), "measuring", console=Console(stderr=True), transient=True):
            for kind in ("without", "with") if turn % 2 else ("with", "without"):
                with Recorder(Path(folder), 0) if kind == "with" else nullcontext():
                    seconds[kind].append([step() for _ in range(CLOSE + args.after)])
    return seconds


def compared(seconds: dict[str, list[list[float]]], threads: int) -> Table:
    """Medians of the steps that are looked at closely, and of those that follow."""
    table = Table(
        "steps",
        "without, ms",
        "with, ms",
        "ratio",
        "least … most",
        title_justify="left",
        title=f"medians; {threads} threads, torch {torch.__version__}, load before {os.getloadavg()[0]:.1f}",
    )
    for name, part in (
        (f"{WARM + 1} to {CLOSE}, by the clock and the profiler", slice(WARM, CLOSE)),
        (f"from {CLOSE + 1} on, sampled", slice(CLOSE, None)),
    ):
        pairs = [
            [statistics.median(block[part]) for block in blocks]
            for blocks in zip(seconds["without"], seconds["with"], strict=True)
        ]
        without, recorded = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
        ratios = [after / before for before, after in pairs]
        table.add_row(
            name,
            f"{without:.1f}",
            f"{recorded:.1f}",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f} … {max(ratios):.2f}",
        )
    return table


if __name__ == "__main__":
    main()
