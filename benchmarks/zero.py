"""Seconds of a step of the lesson's ZeRO-3, beside PyTorch's `fully_shard`.

    python benchmarks/zero.py

The functions come from the reference solution, solutions/notebooks/03_zero.py. Both train the course's model on the
same batches, on ranks that talk by gloo, in turns: one step of one, one step of the other, each from barrier to
barrier. The losses must agree. The table shows medians, and the ratio of each pair with its spread.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from reference import functions, on_ranks, paired
from rich.console import Console
from torch import nn
from torch.distributed.fsdp import fully_shard

from utils.model import TransformerLM


def ours(model: nn.Module, rank: int, world: int) -> list[nn.Parameter]:
    """Shard the model as the lesson does; returns what the optimizer trains."""
    zero = functions("03_zero")
    units = zero["make_units"](model, rank, world)
    for unit in units:
        zero["attach"](unit)
    return [shard for unit in units for shard in unit.shards]


def theirs(model: nn.Module, rank: int, world: int) -> list[nn.Parameter]:
    """The same by fully_shard, as fsdp_training does it: the root stays whole between the passes."""
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model, reshard_after_forward=False)
    return list(model.parameters())


def measure(rank: int, world: int, args: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each step on this rank, ours and theirs."""
    steps = {}
    for name, shard in (("ours", ours), ("fully_shard", theirs)):
        torch.manual_seed(0)
        model = TransformerLM(args.vocab, args.dim, args.heads, args.layers, args.length)
        steps[name] = model, torch.optim.AdamW(shard(model, rank, world), lr=1e-3)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(args.pairs + 2):  # the first two are not counted
        torch.manual_seed(1000 * turn + rank)
        x, y = torch.randint(args.vocab, (2, args.batch, args.length))
        losses = []
        for name in steps if turn % 2 else reversed(steps):
            model, optimizer = steps[name]
            dist.barrier()
            began = time.perf_counter()
            loss = model(x, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            dist.barrier()
            losses.append(loss.item())
            if turn > 1:
                seconds[name].append(time.perf_counter() - began)
        if abs(losses[0] - losses[1]) > 1e-4 * losses[0]:
            raise RuntimeError(f"the two do not compute the same: losses {losses} in turn {turn}")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=9, help="of timed steps, after two that are not")
    parser.add_argument("--ranks", type=int, default=2)
    for name, default in (("dim", 256), ("heads", 4), ("layers", 4), ("vocab", 2000), ("batch", 8), ("length", 128)):
        parser.add_argument(
            f"--{name}", type=int, default=default, help="of each rank" if name == "batch" else "of the model"
        )
    parser.add_argument("--json", type=Path, help="write every measurement to this file, too")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    seconds = on_ranks(measure, args.ranks, args)
    show(args, seconds, load)
    if args.json:
        args.json.write_text(
            json.dumps({"torch": torch.__version__, "load": load, "seconds": seconds}, indent=1) + "\n"
        )


def show(args: argparse.Namespace, seconds: dict[str, list[float]], load: float) -> None:
    size = sum(
        p.numel() for p in TransformerLM(args.vocab, args.dim, args.heads, args.layers, args.length).parameters()
    )
    title = (
        f"{size:,} parameters, {args.batch * args.length} tokens a rank and step; {args.ranks} ranks of a thread"
        f" each, gloo, torch {torch.__version__}, load before {load:.1f}"
    )
    table, _ = paired(title, "fully_shard", seconds["ours"], seconds["fully_shard"])
    Console().print(table)


if __name__ == "__main__":
    main()
