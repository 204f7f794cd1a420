"""The pipeline of the lesson: its bubbles, its memory, its losses, and its speed beside PyTorch's `Schedule1F1B`.

    python benchmarks/pipeline.py

The functions come from the reference solution, solutions/notebooks/05_pipeline_parallel.py.

- `bubbles` runs each schedule on four ranks with eight micro-batches. The stages' work is to wait, 160 ms each for F, I
  and W (a chunk's 80 ms), so that two cores show the bubble of four devices; they should do little else. The measured
  bubble must be within a tenth of the formula's.
- `losses` trains the course's model for 50 steps by each schedule on 2 and 4 ranks, against one process.
- `speed` trains it on two ranks, in turns with the lesson's 1F1B and torch's, each step from barrier to barrier.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from reference import functions, on_ranks, paired
from rich.console import Console
from rich.table import Table
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from utils.plots import pipeline_parallel as plots
from utils.model import TransformerLM

NAMES = ("GPipe", "1F1B", "interleaved", "zero bubble")
RANKS, MICROBATCHES, CHUNKS = 4, 8, 2
CLOSE = 0.1  # of the formula's bubble


def chunks_of(name: str) -> int:
    return CHUNKS if name == "interleaved" else 1


def on_every_rank(value: object, world: int) -> list:
    values = [None] * world
    dist.all_gather_object(values, value)
    return values


def seconds_of(timeline: plots.Timeline) -> float:
    first, last = plots.span(timeline)
    return last - first


def wait(rank: int, world: int, seconds: float, repeats: int) -> dict[str, dict[str, list]]:
    """For each schedule the timeline of a run, and what the ranks kept of the language model's activations."""
    lesson = functions("05_pipeline_parallel")
    lesson["SECONDS"].update(F=seconds, I=seconds, W=seconds, B=2 * seconds)
    lesson["wait_by_schedule"]("1F1B", rank, world)  # to warm up
    found = {}
    for name in NAMES:
        runs = [on_every_rank(lesson["wait_by_schedule"](name, rank, world), world) for _ in range(repeats)]
        timeline = min(runs, key=seconds_of)
        peaks = on_every_rank(lesson["peak_bytes"](name, rank, world), world) if chunks_of(name) == 1 else []
        found[name] = {"timeline": timeline, "peaks": peaks}
    return found


def bubbles(args: argparse.Namespace, console: Console) -> dict:
    lesson = functions("05_pipeline_parallel")
    found = on_ranks(wait, RANKS, args.wait, args.repeats)
    title = (
        f"{RANKS} ranks, {MICROBATCHES} micro-batches; F, I and W of {1000 * args.wait:.0f} ms each; "
        f"the shortest of {args.repeats} runs; load before {args.load:.1f}"
    )
    columns = (
        "schedule",
        "formula, s",
        "measured, s",
        "bubble, formula",
        "measured",
        "off by",
        "alive on ranks 0 … 3, formula",
        "in bytes",
    )
    table = Table(*columns, title=title, title_justify="left")
    drawn, result = {}, {}
    for name in NAMES:
        v, work = chunks_of(name), (args.wait,) * 3
        timeline = found[name]["timeline"]
        whole = plots.with_whole_backwards(timeline) if name != "zero bubble" else timeline
        predicted = (
            lesson["step_seconds"](name, RANKS, MICROBATCHES, v, *work),
            lesson["bubble_share"](name, RANKS, MICROBATCHES, v, *work),
        )
        measured = seconds_of(whole), plots.bubble(whole)
        off = measured[1] / predicted[1] - 1
        alive = [lesson["most_alive"](name, RANKS, MICROBATCHES, v, rank) for rank in range(RANKS)]
        bytes_kept = [peak["most"] / peak["one"] for peak in found[name]["peaks"]]
        shown = [
            f"{predicted[0]:.2f}",
            f"{measured[0]:.2f}",
            f"{predicted[1]:.1%}",
            f"{measured[1]:.1%}",
            f"{off:+.1%}",
        ]
        table.add_row(name, *shown, " ".join(f"{n:g}" for n in alive), " ".join(f"{n:.2f}" for n in bytes_kept))
        lesson["SECONDS"].update(F=args.wait, I=args.wait, W=args.wait, B=2 * args.wait)
        drawn |= {
            f"{name}, predicted": lesson["predicted"](lesson["schedule_of"](name, RANKS, MICROBATCHES)),
            f"{name}, measured": whole,
        }
        result[name] = {"predicted": predicted, "measured": measured, "off": off, "alive": alive, "bytes": bytes_kept}
    console.print(table)
    if args.png:
        args.png.write_bytes(plots.timelines(drawn)._repr_png_())
    return result


def train(rank: int, world: int, names: list[str], steps: int) -> dict[str, list[float]]:
    """Losses by each schedule; "serial": by one process."""
    lesson = functions("05_pipeline_parallel")
    model_of = {"vocab_size": 97, "dim": 16, "n_heads": 2, "n_layers": 8, "max_len": 16}
    losses: dict[str, list[float]] = {}
    for name in names:
        torch.manual_seed(0)
        model, v = TransformerLM(**model_of), chunks_of(name)
        if name == "serial":
            chunks = [model]
        else:
            cuts = lesson["cut"](lesson["costs_of_pieces"](8, 16, 16, 97), world * v)
            chunks = [lesson["Stage"](model, cuts[chunk * world + rank]) for chunk in range(v)]
        optimizer = torch.optim.SGD([p for chunk in chunks for p in chunk.parameters()], lr=0.5)
        losses[name] = []
        for step in range(steps):
            draw = torch.Generator().manual_seed(step)
            x, y = torch.randint(97, (2, 8, 16), generator=draw)
            y[torch.rand(y.shape, generator=draw) < torch.rand(8, 1, generator=draw)] = lesson["IGNORE"]
            if name == "serial":
                loss = model(x, y)
                loss.backward()
                losses[name].append(loss.item())
            else:
                xs, ys = lesson["split"](x, y, 4)
                batch = lesson["Batch"](xs, ys, torch.empty(2, 16, 16), lesson["loss_of_batch"](y))
                mine = lesson["execute"](lesson["schedule_of"](name, world, 4), chunks, batch, rank, world)
                losses[name].append(lesson["on_all_ranks"](float(sum(mine)) if mine else None, rank, world))
            optimizer.step()
            optimizer.zero_grad()
    return losses


def losses(args: argparse.Namespace, console: Console) -> dict:
    right = on_ranks(train, 1, ["serial"], args.steps)["serial"]
    title = f"{args.steps} steps of SGD against one process, whose loss goes from {right[0]:.3f} to {right[-1]:.3f}"
    table = Table("ranks", "schedule", "largest relative difference of a loss", title=title, title_justify="left")
    result = {}
    for world in (2, 4):
        for name, mine in on_ranks(train, world, list(NAMES), args.steps).items():
            off = max(abs(a - b) / b for a, b in zip(mine, right, strict=True))
            table.add_row(str(world), name, f"{off:.1e}")
            result[f"{name}, {world} ranks"] = off
    console.print(table)
    return result


def race(rank: int, world: int, args: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each step on this rank, with the lesson's 1F1B and with torch's."""
    lesson = functions("05_pipeline_parallel")
    costs = lesson["costs_of_pieces"](args.layers, args.dim, args.length, args.vocab)
    stages, now = {}, {}
    for name in ("ours", "torch"):
        torch.manual_seed(0)
        model = TransformerLM(args.vocab, args.dim, args.heads, args.layers, args.length)
        stages[name] = lesson["Stage"](model, lesson["cut"](costs, world)[rank])
    optimizers = {name: torch.optim.SGD(stage.parameters(), lr=0.1) for name, stage in stages.items()}
    pipeline = PipelineStage(stages["torch"], rank, world, torch.device("cpu"))
    theirs = Schedule1F1B(
        pipeline, args.microbatches, loss_fn=lambda logits, y: now["loss_of"](logits, y), scale_grads=False
    )
    mine = lesson["one_f_one_b"](world, args.microbatches)

    def step(name: str, x: torch.Tensor, y: torch.Tensor) -> float | None:
        now["loss_of"] = lesson["loss_of_batch"](y)
        if name == "ours":
            xs, ys = lesson["split"](x, y, args.microbatches)
            batch = lesson["Batch"](xs, ys, torch.empty(*xs[0].shape, args.dim), now["loss_of"])
            found = lesson["execute"](mine, [stages[name]], batch, rank, world)
        else:
            found = []
            theirs.step(*([x] if rank == 0 else []), **({"target": y, "losses": found} if rank == world - 1 else {}))
        optimizers[name].step()
        optimizers[name].zero_grad()
        return float(sum(found).detach()) if rank == world - 1 else None

    seconds: dict[str, list[float]] = {name: [] for name in stages}
    for turn in range(args.pairs + 2):  # the first two are not counted
        torch.manual_seed(1000 * turn)
        x, y = torch.randint(args.vocab, (2, args.batch, args.length))
        found = {}
        for name in stages if turn % 2 else reversed(stages):
            dist.barrier()
            began = time.perf_counter()
            found[name] = step(name, x, y)
            dist.barrier()
            if turn > 1:
                seconds[name].append(time.perf_counter() - began)
        if rank == world - 1 and abs(found["ours"] - found["torch"]) > 1e-4 * found["torch"]:
            raise RuntimeError(f"the two do not compute the same: losses {found} in turn {turn}")
    return seconds


def speed(args: argparse.Namespace, console: Console) -> dict:
    seconds = on_ranks(race, 2, args)
    size = sum(
        p.numel() for p in TransformerLM(args.vocab, args.dim, args.heads, args.layers, args.length).parameters()
    )
    title = (
        f"{size:,} parameters, {args.batch * args.length} tokens a step in {args.microbatches} micro-batches; 2 ranks"
        f" of one thread each, gloo, torch {torch.__version__}, load before {args.load:.1f}"
    )
    table, ratio = paired(title, "Schedule1F1B", seconds["ours"], seconds["torch"])
    console.print(table)
    return seconds | {"ratio": ratio}


PARTS = {"bubbles": bubbles, "losses": losses, "speed": speed}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all, if none is named")
    parser.add_argument(
        "--wait", type=float, default=0.16, help="bubbles: seconds of F, of I and of W; of a chunk, half"
    )
    parser.add_argument("--repeats", type=int, default=3, help="bubbles: runs of each schedule; the shortest counts")
    parser.add_argument("--png", type=Path, help="bubbles: draw the timelines, predicted and measured, into this file")
    parser.add_argument("--steps", type=int, default=50, help="losses: steps of training")
    parser.add_argument("--pairs", type=int, default=9, help="speed: timed pairs of steps, after two that are not")
    for name, default in (
        ("dim", 256),
        ("heads", 4),
        ("layers", 6),
        ("vocab", 2000),
        ("batch", 16),
        ("length", 128),
        ("microbatches", 4),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help="speed: of the model and its batch")
    parser.add_argument("--json", type=Path, help="write every measurement to this file, too")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    args.load = os.getloadavg()[0]
    console = Console(width=None if sys.stdout.isatty() else 170)
    found = {name: part(args, console) for name, part in PARTS.items() if name in (args.parts or PARTS)}
    if args.json:
        args.json.write_text(json.dumps({"torch": torch.__version__, "load": args.load, **found}, indent=1) + "\n")
    far = [name for name, seen in found.get("bubbles", {}).items() if abs(seen["off"]) > CLOSE]
    if far:
        sys.exit(f"the bubble of {', '.join(far)} is not within {CLOSE:.0%} of the formula's")


if __name__ == "__main__":
    main()
