"""Seconds of an all-reduce: the ring of 01_collectives' reference solution, against the library's.

    python benchmarks/ring.py

Both add up the same vectors, in turns, by gloo. The table shows medians, and the ratio of each pair with its spread.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from reference import functions, on_ranks
from rich.console import Console
from rich.table import Table

SIZES = {"1 KB": 1000, "1 MB": 1_000_000, "64 MB": 64_000_000}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=7, help="of timed turns, after one that is not")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--json", type=Path, help="write every measurement to this file, too")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    found = {world: on_ranks(measure, world, args.pairs) for world in args.ranks}
    show(found, load)
    if args.json:
        args.json.write_text(json.dumps({"torch": torch.__version__, "seconds": found}, indent=1) + "\n")


def measure(rank: int, world: int, pairs: int) -> dict[str, dict[str, list[float]]]:
    """For each size, seconds of one all-reduce in each turn, ours and the library's."""
    ring = functions("01_collectives")["ring_all_reduce"]
    calls = {"ours": lambda tensor: ring(tensor, rank, world), "library": dist.all_reduce}
    seconds = {size: {name: [] for name in calls} for size in SIZES}
    for size, nbytes in SIZES.items():
        repeats = max(1, min(100, 10_000_000 // nbytes))  # of short calls, several make a turn
        for turn in range(pairs + 1):
            for name in calls if turn % 2 else reversed(calls):
                tensors = [torch.full((nbytes // 4,), float(rank)) for _ in range(repeats)]
                dist.barrier()
                began = time.perf_counter()
                for tensor in tensors:
                    total = calls[name](tensor)
                dist.barrier()
                if turn:
                    seconds[size][name].append((time.perf_counter() - began) / repeats)
                total = tensor if total is None else total  # the library's is in place
                assert total[0] == total[-1] == world * (world - 1) / 2
    return seconds


def show(found: dict[int, dict[str, dict[str, list[float]]]], load: float) -> None:
    table = Table(
        "ranks",
        "size",
        "ring, ms",
        "dist.all_reduce, ms",
        "speed of the ring to the library's",
        "least … most",
        title_justify="left",
        title=f"gloo, a thread each, torch {torch.__version__}, load before {load:.1f}",
    )
    for world, sizes in found.items():
        for size, seconds in sizes.items():
            ratios = [theirs / ours for ours, theirs in zip(seconds["ours"], seconds["library"], strict=True)]
            medians = [1000 * statistics.median(seconds[name]) for name in ("ours", "library")]
            table.add_row(
                str(world),
                size,
                *(f"{median:.3g}" for median in medians),
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f} … {max(ratios):.2f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
