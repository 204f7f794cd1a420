"""The ten stories of 12_why_it_is_slow, slow and mended: seconds of a step in turns, and what is counted in it.

    python benchmarks/slow.py
    python benchmarks/slow.py 6 7 --steps 20

Two ranks by gloo, with a thread each. The functions are the notebook's, as given and with its solutions; a step is as
small as the story allows, so that what is slow shows. Counts are of rank 0, for one step.
"""

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from reference import functions, on_ranks
from utils.model import TransformerLM
from utils.report.traces import MESSAGES

LESSON = "12_why_it_is_slow"
WORDS = 1000
Step = Callable[[], Any]


class Story(NamedTuple):
    """A step of a story, made of its functions; and what is counted in one."""

    title: str
    unit: str
    make: Callable[[SimpleNamespace, int], Step]
    count: Callable[[SimpleNamespace, Step], float]


def model_of(layers: int = 2, dim: int = 64) -> TransformerLM:
    torch.manual_seed(0)
    return TransformerLM(WORDS, dim, 4, layers, 64)


def batch_of(rows: int, length: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = torch.randint(WORDS, (2, rows, length), generator=torch.Generator().manual_seed(1))
    return x, y


def trained(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    loss = model(x, y)
    loss.backward()
    return loss


# Each story's step.


def noting(told: SimpleNamespace, rank: int) -> Step:
    model, noted = model_of(), []
    x, y = batch_of(4)
    return lambda: told.note_loss_1(noted, trained(model, x, y), 1000)


def loading(told: SimpleNamespace, rank: int) -> Step:
    model, path = model_of(), Path(tempfile.mkdtemp(), "text.txt")
    path.write_text(" ".join(f"w{i % WORDS}" for i in range(64 * 1000 + 1)))
    batch = told.batches_2(path, 64)
    return lambda: trained(model, *batch([1, 2, 3, 4]))


def recomputing(told: SimpleNamespace, rank: int) -> Step:
    model = model_of(layers=4)
    told.recompute_3(model, 40_000, 130_000)
    x, y = batch_of(4)
    return lambda: trained(model, x, y)


def validating(told: SimpleNamespace, rank: int) -> Step:
    model, batches = model_of(), [batch_of(4)] * 4
    return lambda: told.evaluate_4(model, batches, torch.device("cpu"), None)


def padding(told: SimpleNamespace, rank: int) -> Step:
    """Six batches with a compiled model that has seen no shape yet."""

    def step() -> None:
        torch.compiler.reset()
        model, (x, y) = torch.compile(model_of(), backend="eager", dynamic=False), batch_of(1)
        for length in (20, 50, 40, 14, 64, 56):
            trained(model, *told.pad_5([(x[0, :length], y[0, :length])]))

    return step


def averaging(told: SimpleNamespace, rank: int) -> Step:
    model = model_of(layers=8, dim=16)
    trained(model, *batch_of(1))
    return lambda: told.average_gradients_6(model)


def accumulating(told: SimpleNamespace, rank: int) -> Step:
    model, parts = DistributedDataParallel(model_of()), [batch_of(1, 16)] * 4

    def step() -> None:
        model.zero_grad()
        told.accumulate_7(model, parts)

    return step


def measuring(told: SimpleNamespace, rank: int) -> Step:
    right = torch.rand(100_000, generator=torch.Generator().manual_seed(rank)) < 0.3
    return lambda: told.accuracy_8(right)


def dealing(told: SimpleNamespace, rank: int) -> Step:
    model, lengths = DistributedDataParallel(model_of()), [8, 8, 4, 4, 2, 2, 1, 1]
    rows = sum(lengths[number] for number in told.deal_9(lengths, 2)[rank])
    x, y = batch_of(rows)
    return lambda: trained(model, x, y)


def saving(told: SimpleNamespace, rank: int) -> Step:
    """Until training may continue."""
    model, path = model_of(layers=4, dim=256), Path(tempfile.mkdtemp(), "model.pt")

    def step() -> None:
        told.save_checkpoint_10(model, {}, path, 1)
        dist.barrier()

    return step


# What is counted.


def calls(*names: str) -> Callable[[SimpleNamespace, Step], float]:
    """How often a step calls the operations whose names begin like one of these."""

    def count(told: SimpleNamespace, step: Step) -> float:
        with torch.profiler.profile() as profile:
            step()
        return sum(event.name.startswith(names) for event in profile.events())

    return count


def noted(name: str, weigh: Callable[..., float] = lambda *_: 1) -> Callable[[SimpleNamespace, Step], float]:
    """How often a step calls this function of the notebook, or the sum of what `weigh` makes of its arguments."""

    def count(told: SimpleNamespace, step: Step) -> float:
        names, seen = told.names, []
        plain = names[name]
        names[name] = lambda *args: (seen.append(weigh(*args)), plain(*args))[1]
        try:
            step()
        finally:
            names[name] = plain
        return sum(seen)

    return count


def widths(told: SimpleNamespace, step: Step) -> float:
    """Graphs: dynamic=False makes one for each shape."""
    x, y = batch_of(1)
    return len({told.pad_5([(x[0, :n], y[0, :n])])[0].shape for n in (20, 50, 40, 14, 64, 56)})


def flops(told: SimpleNamespace, step: Step) -> float:
    with FlopCounterMode(display=False) as counter:
        step()
    return round(counter.get_total_flops() / 1e6)


def standing(told: SimpleNamespace, step: Step) -> float:
    """Checkpoints that the thread that trains writes itself."""
    return noted("write_10", lambda *_: threading.current_thread() is threading.main_thread())(told, step)


STORIES = {
    1: Story("a loss read in each step", "numbers read", noting, calls("aten::_local_scalar_dense")),
    2: Story("a text decoded for each batch", "decodings", loading, noted("decode_2")),
    3: Story("blocks recomputed that fit", "GELUs forward", recomputing, calls("aten::gelu")),
    4: Story("a validation that keeps graphs", "tensors kept", validating, noted("keep")),
    5: Story("a shape for each batch", "graphs", padding, widths),
    6: Story("a message for each parameter", "messages", averaging, calls(*MESSAGES)),
    7: Story("an average for each micro-batch", "messages", accumulating, calls(*MESSAGES)),
    8: Story("a metric in a pickle", "messages", measuring, calls(*MESSAGES)),
    9: Story("long documents on one rank", "MFLOP", dealing, flops),
    10: Story("a checkpoint for which all wait", "written meanwhile", saving, standing),
}


def told_by(solved: bool) -> SimpleNamespace:
    """The notebook's functions, as given or with its solutions; `names` is where they look each other up."""
    names = functions(LESSON, solved)
    return SimpleNamespace(**names, names=names)


def all_measured(rank: int, world: int, numbers: list[int], pairs: int, steps: int) -> list[dict[str, list[float]]]:
    """`measured`, for each of these stories: starting ranks takes longer than most of them."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # otherwise the profiler prints its start and end
    return [measured(rank, number, pairs, steps) for number in numbers]


def measured(rank: int, number: int, pairs: int, steps: int) -> dict[str, list[float]]:
    """Seconds of a step, pair by pair, and counts, for the slow and the mended story."""
    story, out, others = STORIES[number], {}, set(threading.enumerate())

    def settled() -> None:
        """Wait for what a step left to a thread: a checkpoint is complete before the next one goes to the same path."""
        for thread in set(threading.enumerate()) - others:
            thread.join()

    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        told = {kind: told_by(kind == "mended") for kind in ("slow", "mended")}
        made = {kind: story.make(told[kind], rank) for kind in told}
        for kind, step in made.items():
            step()
            settled()
            out[f"{kind} counts"] = [float(story.count(told[kind], step))]
            settled()
            out[kind] = []
        for pair in range(pairs):
            for kind in ("slow", "mended") if pair % 2 else ("mended", "slow"):
                dist.barrier()
                seconds = 0.0
                for _ in range(steps):
                    began = time.perf_counter()
                    made[kind]()
                    seconds += time.perf_counter() - began
                    settled()  # not counted: between two checkpoints of a run lies a long time
                began = time.perf_counter()
                dist.barrier()
                out[kind].append((seconds + time.perf_counter() - began) / steps)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("stories", type=int, nargs="*", help="their numbers; by default all")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="of a turn")
    args = parser.parse_args()
    if unknown := [number for number in args.stories if number not in STORIES]:
        parser.error(f"there is no story {unknown[0]}; there are 1 to {len(STORIES)}")
    table = Table("story", "slow, ms", "mended, ms", "ratio, least … most", "counted", "slow", "mended")
    table.title = f"medians of {args.pairs} pairs; torch {torch.__version__}, load before {os.getloadavg()[0]:.0f}"
    numbers = args.stories or [*STORIES]
    for number, seen in zip(numbers, on_ranks(all_measured, 2, numbers, args.pairs, args.steps), strict=True):
        ratios = [slow / mended for slow, mended in zip(seen["slow"], seen["mended"], strict=True)]
        slow, mended = (1000 * statistics.median(seen[kind]) for kind in ("slow", "mended"))
        ratio = f"{statistics.median(ratios):.2f}, {min(ratios):.2f} … {max(ratios):.2f}"
        counts = [f"{seen[f'{kind} counts'][0]:,.0f}" for kind in ("slow", "mended")]
        story = STORIES[number]
        table.add_row(f"{number} {story.title}", f"{slow:.1f}", f"{mended:.1f}", ratio, story.unit, *counts)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
