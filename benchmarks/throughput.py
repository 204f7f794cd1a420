"""Tokens per second of the course's model, beside a plain GPT of the same size.

    python benchmarks/throughput.py

Both train on the same random tokens, in turns, in one process: one step of one, one step of
the other. The plain one is built as in nanoGPT (github.com/karpathy/nanoGPT, model.py): one
matrix for q, k and v, the head tied to the embedding, all logits at once, `cross_entropy`.
The table shows medians, and the ratio of each pair with its spread.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from utils.model import TransformerLM


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
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7, help="of timed steps, after one that is not")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", nargs="+", choices=("float32", "bfloat16"), default=["float32"])
    parser.add_argument("--compile", action="store_true", help="torch.compile both")
    for name, default in (("dim", 128), ("heads", 4), ("layers", 2), ("vocab", 33278), ("batch", 32), ("length", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path, help="write every measurement to this file, too")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = {dtype: measure(args, device, dtype) for dtype in args.dtype}
    show(args, device, found)
    if args.json:
        args.json.write_text(json.dumps({"torch": torch.__version__, "device": str(device), "seconds": found}, indent=1) + "\n")


def measure(args: argparse.Namespace, device: torch.device, dtype: str) -> dict[str, list[float]]:
    """Seconds of each step, ours and the plain one's."""
    torch.manual_seed(0)
    models = {
        "ours": TransformerLM(args.vocab, args.dim, args.heads, args.layers, args.length),
        "plain": PlainGPT(args.vocab, args.dim, args.heads, args.layers, args.length),
    }
    models = {name: model.to(device) for name, model in models.items()}
    optimizers = {name: torch.optim.AdamW(model.parameters(), lr=1e-3) for name, model in models.items()}
    run = {name: torch.compile(model) if args.compile else model for name, model in models.items()}
    x, y = torch.randint(args.vocab, (2, args.batch, args.length), device=device)
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for turn in track(range(args.pairs + 1), f"measuring {dtype}", console=Console(stderr=True), transient=True):
        for name in models if turn % 2 else reversed(models):
            began = time.perf_counter()
            with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
                loss = run[name](x, y)
            optimizers[name].zero_grad()
            loss.backward()
            optimizers[name].step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def show(args: argparse.Namespace, device: torch.device, found: dict[str, dict[str, list[float]]]) -> None:
    tokens = args.batch * args.length
    table = Table("dtype", "ours, tokens/s", "plain GPT, tokens/s", "ratio", "least … most", title_justify="left",
                  title=f"{tokens} tokens a step, dim {args.dim}, {args.layers} layers, {args.vocab} words; {device}, {args.threads} threads, "
                  f"torch {torch.__version__}, load before {os.getloadavg()[0]:.1f}")  # fmt: skip
    for dtype, seconds in found.items():
        ratios = [plain / ours for ours, plain in zip(seconds["ours"], seconds["plain"], strict=True)]
        ours, plain = (tokens / statistics.median(seconds[name]) for name in ("ours", "plain"))
        table.add_row(dtype, f"{ours:,.0f}", f"{plain:,.0f}", f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f} … {max(ratios):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
