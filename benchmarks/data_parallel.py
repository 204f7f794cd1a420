"""Seconds of a training step: the buckets of 02_data_parallel's reference solution, beside torch's DDP.

    python benchmarks/data_parallel.py

Two ranks train two copies of the course's model on random tokens, in turns, by gloo: one step of one, one step of the
other. Both have buckets of the same size. The table shows each pair, and the ratio's median and spread.
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
from torch.nn.parallel import DistributedDataParallel

from utils.model import TransformerLM


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=7, help="of timed steps, after two that are not")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--cap", type=int, default=25 * 2**20, help="bytes in a bucket")
    for name, default in (("dim", 128), ("heads", 4), ("layers", 2), ("vocab", 33278), ("batch", 8), ("length", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path, help="write every measurement to this file, too")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    seconds = on_ranks(measure, args.ranks, args)
    show(args, seconds, load)
    if args.json:
        args.json.write_text(json.dumps({"torch": torch.__version__, "seconds": seconds}, indent=1) + "\n")


def measure(rank: int, world: int, args: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each step on this rank, ours and torch's."""
    lesson = functions("02_data_parallel")
    models = {}
    for name in ("ours", "torch"):
        torch.manual_seed(0)
        models[name] = TransformerLM(args.vocab, args.dim, args.heads, args.layers, args.length)
    lesson["broadcast_state"](models["ours"])
    reducer = lesson["Bucketed"](models["ours"], args.cap)
    models["torch"] = DistributedDataParallel(models["torch"], bucket_cap_mb=args.cap / 2**20)
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=1e-3) for name, model in models.items()}
    draw = torch.Generator().manual_seed(rank)
    x, y = torch.randint(args.vocab, (2, args.batch, args.length), generator=draw)
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(args.pairs + 2):  # torch orders its buckets anew after its first step
        for name in models if turn % 2 else reversed(models):
            dist.barrier()
            began = time.perf_counter()
            optimizers[name].zero_grad()
            models[name](x, y).backward()
            if name == "ours":
                reducer.finish()
            optimizers[name].step()
            dist.barrier()
            if turn > 1:
                seconds[name].append(time.perf_counter() - began)
    pairs = zip(models["ours"].parameters(), models["torch"].parameters(), strict=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs), "the two trained different models"
    return seconds


def show(args: argparse.Namespace, seconds: dict[str, list[float]], load: float) -> None:
    title = (
        f"{args.ranks} ranks, {args.batch * args.length} tokens a rank and step, dim {args.dim}, {args.layers}"
        f" layers, {args.vocab} words; buckets of {args.cap / 2**20:.3g} MiB; a thread each, torch"
        f" {torch.__version__}, load before {load:.1f}"
    )
    table, _ = paired(title, "torch's DDP", seconds["ours"], seconds["torch"])
    Console().print(table)


if __name__ == "__main__":
    main()
