"""Tokens per second of the course's model, against a plain GPT of the same size.

    python benchmarks/throughput.py
    python benchmarks/throughput.py --dtype float32 bfloat16 --batch 32 8 --nanogpt nanoGPT/model.py

Both train on the same random tokens, in turns, in one process: one step of one, one step of
the other. The plain one is built as in nanoGPT (github.com/karpathy/nanoGPT, model.py): one
matrix for q, k and v, the head tied to the embedding, all logits at once, `cross_entropy`,
and its optimizer, which is fused on a GPU only. With --nanogpt it is nanoGPT's own.
With several dtypes ours is compared with the plain one in its own, and in the first of them.
The table shows medians, and the ratio of each pair with its spread. On a machine that is busy
with other work, --cpu-time with one thread counts seconds of CPU.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from utils import costs, devices
from utils.model import TransformerLM
from utils.plan import Model
from utils.training import make_optimizer


class PlainBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim, bias=False), nn.LayerNorm(dim, bias=False)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        q, k, v = (part.view(B, T, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(D, dim=2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class PlainGPT(nn.Module):
    def __init__(self, vocab: int, dim: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        self.blocks = nn.Sequential(*(PlainBlock(dim, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(dim, bias=False)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        logits = self.head(self.norm(self.blocks(h)))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=7, help="of timed steps, after one that is not")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--dtype",
        nargs="+",
        choices=("float32", "bfloat16"),
        default=["float32"],
        help="of the matrix products; with both, bfloat16 is shown beside float32, too",
    )
    parser.add_argument(
        "--peak",
        type=float,
        help="TFLOP/s of the processor in the dtype, to show the share used (MFU); 989 for an H100 in bfloat16",
    )
    parser.add_argument("--compile", action="store_true", help="torch.compile both")
    for name, default in (("dim", 128), ("heads", 4), ("layers", 2), ("vocab", 33278), ("length", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--batch", type=int, nargs="+", default=[32], help="sequences in a step; a table for each")
    parser.add_argument("--nanogpt", type=Path, help="nanoGPT's model.py, to train its GPT as the plain one")
    parser.add_argument("--cpu-time", action="store_true", help="count this process's seconds of CPU")
    parser.add_argument("--json", type=Path, help="write every measurement to this file, too")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device(devices.accelerator() or "cpu")
    named = {}
    for batch in args.batch:
        seconds = measure(args, batch, device)
        show(args, batch, device, seconds)
        named |= {f"{batch} {' '.join(what)}": each for what, each in seconds.items()}
    if args.json:
        args.json.write_text(
            json.dumps({"torch": torch.__version__, "device": str(device), "seconds": named}, indent=1) + "\n"
        )


def plain(args: argparse.Namespace) -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor]]:
    """The model to compare with, and its loss."""
    if not args.nanogpt:
        model = PlainGPT(args.vocab, args.dim, args.heads, args.layers, args.length)
        return model, model
    spec = importlib.util.spec_from_file_location("nanogpt", args.nanogpt)
    nanogpt = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nanogpt)
    sizes = {"n_layer": args.layers, "n_head": args.heads, "n_embd": args.dim}
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its size
        model = nanogpt.GPT(nanogpt.GPTConfig(block_size=args.length, vocab_size=args.vocab, bias=False, **sizes))
    return model, lambda x, y: model(x, y)[1]


def measure(args: argparse.Namespace, batch: int, device: torch.device) -> dict[tuple[str, str], list[float]]:
    """Seconds of each step, by model and dtype. All take turns, so that what slows the machine down slows down all."""
    clock = time.process_time if args.cpu_time else time.perf_counter
    runs = {}
    for dtype in args.dtype:
        torch.manual_seed(0)
        model = TransformerLM(args.vocab, args.dim, args.heads, args.layers, args.length).to(device)
        asked = argparse.Namespace(optimizer="adamw", lr=1e-3, weight_decay=0.01, dtype=dtype)
        runs["ours", dtype] = torch.compile(model) if args.compile else model, make_optimizer(model, asked)
        model, loss = plain(args)
        optimizer = torch.optim.AdamW(model.to(device).parameters(), lr=1e-3, fused=device.type != "cpu")
        runs["plain", dtype] = torch.compile(loss) if args.compile else loss, optimizer
    x, y = torch.randint(args.vocab, (2, batch, args.length), device=device)
    seconds: dict[tuple[str, str], list[float]] = {what: [] for what in runs}
    for turn in track(range(args.pairs + 1), "measuring", console=Console(stderr=True), transient=True):
        for name, dtype in runs if turn % 2 else reversed(runs):
            loss_of, optimizer = runs[name, dtype]
            began = clock()
            with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
                loss = loss_of(x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if device.type != "cpu":
                torch.accelerator.synchronize()
            if turn:
                seconds[name, dtype].append(clock() - began)
    return seconds


def show(
    args: argparse.Namespace, batch: int, device: torch.device, seconds: dict[tuple[str, str], list[float]]
) -> None:
    tokens = batch * args.length
    flops = costs.flops(Model(args.dim, args.layers, args.heads, args.vocab, args.length), tokens=1)
    unit = "tokens/s of CPU" if args.cpu_time else "tokens/s (MFU)" if args.peak else "tokens/s"
    table = Table(
        "ours",
        unit,
        "nanoGPT" if args.nanogpt else "plain GPT",
        unit,
        "ratio",
        "least … most",
        title_justify="left",
        title=(
            f"{tokens} tokens a step, dim {args.dim}, {args.layers} layers, {args.vocab} words; "
            f"{'cpu' if device.type == 'cpu' else devices.name(device)},"
            f" {args.threads} threads, torch {torch.__version__}, load before {os.getloadavg()[0]:.1f}"
        ),
    )
    for dtype in args.dtype:
        for other in dict.fromkeys((dtype, args.dtype[0])):
            ours, plain = seconds["ours", dtype], seconds["plain", other]
            ratios = [theirs / own for own, theirs in zip(ours, plain, strict=True)]
            speeds = [tokens / statistics.median(each) for each in (ours, plain)]
            shown = [
                f"{speed:,.0f}" + (f" ({speed * flops / args.peak / 1e12:.1%})" if args.peak else "")
                for speed in speeds
            ]
            table.add_row(
                dtype,
                shown[0],
                other,
                shown[1],
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f} … {max(ratios):.2f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
