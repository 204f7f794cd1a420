"""Bytes and losses of the methods of 13_fewer_bytes: bytes measured and by formula, losses over tokens and bytes.

    python benchmarks/fewer_bytes.py --data FOLDER --ranks 8

The functions come from the reference solution, solutions/notebooks/13_fewer_bytes.py. Every method trains the course's
model on the same batches of the corpus, whose words are reduced to the most frequent ones. Bytes are counted where
torch.distributed is called, as rings. `--loss` is the target for the last columns: the steps until it is reached, and
the bandwidth of a rank below which that is sooner than with plain all-reduces (worth_below, at 50 µs a message, and
as much computing in each step as `--compute` says).
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from reference import functions, on_ranks
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from utils.data import load_corpus
from utils.model import TransformerLM

SMOOTHED, H, R, KEPT = 10, 10, 2, 50  # losses in a mean; inner steps; PowerSGD's rank; one number in so many for top-k
METHODS = ("float32", "8 bits", "top 2 %", "top 2 %, no memory", "PowerSGD, r = 2", "DiLoCo, H = 10", "Muon")


def reduced(tokens: Tensor, size: int) -> Tensor:
    """The same text with ids by frequency; all but the most frequent words are the last id."""
    order = [word for word, _ in Counter(tokens.tolist()).most_common(size - 1)]
    ids = torch.full((int(tokens.max()) + 1,), size - 1)
    ids[torch.tensor(order)] = torch.arange(len(order))
    return ids[tokens]


def count_bytes() -> dict[str, float]:
    """From now on, add up what this rank sends in collectives that Python calls, as rings."""
    counted = {"bytes": 0.0, "calls": 0}
    world = dist.get_world_size()
    factors = {
        "all_reduce": lambda tensor, *_: 2 * (world - 1) / world * tensor.nbytes,
        "all_gather": lambda _, tensor, *__: (world - 1) * tensor.nbytes,
        "all_to_all_single": lambda _, tensor, __=None, sizes=None, *___: sent_away(tensor, sizes, world),
    }
    for name, factor in factors.items():
        call = getattr(dist, name)

        def counting(*args: Any, call: Any = call, factor: Any = factor, **kwargs: Any) -> Any:
            counted["bytes"] += factor(*args)
            counted["calls"] += 1
            return call(*args, **kwargs)

        setattr(dist, name, counting)
    return counted


def sent_away(tensor: Tensor, sizes: list[int] | None, world: int) -> float:
    """Bytes of an all-to-all that leave this rank."""
    own = sizes[dist.get_rank()] * tensor.element_size() if sizes else tensor.nbytes / world
    return tensor.nbytes - own


def predicted(method: str, lesson: dict[str, Any], model: TransformerLM, rank: int, world: int) -> float:
    """Bytes of a step by the lesson's formulas."""
    numbers = sum(p.numel() for p in model.parameters())
    plain = 2 * (world - 1) / world * 4
    if method == "8 bits":
        return lesson["bytes_in_8_bits"](numbers, world)
    if method.startswith("top"):
        return 8 * (numbers // KEPT) * (world - 1)
    if method.startswith("PowerSGD"):
        thin = [p.shape for p in model.parameters() if p.dim() == 2 and R * sum(p.shape) < p.numel()]
        rest = numbers - sum(shape.numel() for shape in thin)
        return plain * rest + sum(lesson["bytes_of_low_rank"](*shape, R, world) for shape in thin)
    if method.startswith("DiLoCo"):
        return lesson["bytes_of_diloco"](numbers, H, world)
    if method == "Muon":
        shapes = [tuple(p.shape) for p in lesson["hidden_matrices"](model)]
        owner = lesson["owners"](shapes, world)
        rest = numbers - sum(m * n for m, n in shapes)
        return plain * rest + lesson["bytes_of_muon"](shapes, owner, rank, world)
    return plain * numbers


def train(rank: int, world: int, args: argparse.Namespace) -> dict[str, Any]:
    """Of each method: the mean loss of each step, bytes and calls of rank 0, and the predicted bytes."""
    lesson, found = functions("13_fewer_bytes"), {}
    corpus = load_corpus(args.data)
    text = reduced(corpus.train, args.vocab)
    add_up, counted = dist.all_reduce, count_bytes()
    for method in METHODS:
        torch.manual_seed(0)
        model = TransformerLM(args.vocab, args.dim, 4, args.layers, args.length)
        step_of = trainer(method, lesson, model, rank, world)
        losses, counted["bytes"], counted["calls"] = [], 0.0, 0
        for step in range(args.steps):
            draw = torch.Generator().manual_seed(step)
            starts = torch.randint(len(text) - args.length - 1, (args.batch,), generator=draw)[rank::world]
            windows = torch.stack([text[start : start + args.length + 1] for start in starts.tolist()])
            loss = step_of(windows[:, :-1], windows[:, 1:], step)
            add_up(loss)
            losses.append(loss.item() / world)
        due = predicted(method, lesson, model, rank, world)
        found[method] = {"losses": losses, "bytes": counted["bytes"] / args.steps, "predicted": due}
        found[method]["calls"] = counted["calls"] / args.steps
    return found


def trainer(method: str, lesson: dict[str, Any], model: TransformerLM, rank: int, world: int) -> Any:
    """A function (x, y, step) that takes a step and returns this rank's loss. AdamW throughout, so that methods differ
    in what they send alone; Muon has it for all but the hidden matrices.
    """
    trained, parameters = model, list(model.parameters())
    numbers = sum(p.numel() for p in parameters)
    memory, noise = lesson["Feedback"](numbers, numbers // KEPT), torch.Generator().manual_seed(rank)
    outer = muon = None
    if method.startswith("PowerSGD"):
        trained = DistributedDataParallel(model)
        trained.register_comm_hook(lesson["PowerSGD"](model, R), lesson["power_sgd_hook"])
    elif method.startswith("DiLoCo"):
        outer = lesson["DiLoCo"](model, 0.7, 0.6)
    elif method == "Muon":
        muon = lesson["ShardedMuon"](lesson["hidden_matrices"](model), lr=0.02)
        parameters = [p for p in parameters if not any(p is matrix for matrix in muon.matrices)]
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)

    def step_of(x: Tensor, y: Tensor, step: int) -> Tensor:
        model.zero_grad()
        loss = trained(x, y)
        loss.backward()
        if trained is model and not outer:
            lesson["exchanged"](method, model, memory, noise, parameters)
        optimizer.step()
        if muon:
            muon.step()
        if outer and (step + 1) % H == 0:
            outer.step()
        return loss.detach()

    return step_of


def steps_until(losses: list[float], target: float) -> int | None:
    means = [sum(losses[n - SMOOTHED : n]) / SMOOTHED for n in range(SMOOTHED, len(losses) + 1)]
    return next((n for n, mean in enumerate(means, start=SMOOTHED) if mean <= target), None)


def show(args: argparse.Namespace, found: dict[str, Any]) -> None:
    lesson = functions("13_fewer_bytes")
    tokens = args.batch * args.length
    title = f"{args.ranks} ranks, {args.steps} steps of {tokens} tokens, {args.data}, torch {torch.__version__}"
    heads = (
        "method",
        "kB a step",
        "formula",
        "calls",
        "last loss",
        f"steps to {args.loss}",
        "kB to it",
        "worth below, Mbit/s",
    )
    table = Table(*heads, title=title, title_justify="left")
    plain = None
    for method, one in found.items():
        steps = steps_until(one["losses"], args.loss)
        run = lesson["Run"](steps, args.compute, one["calls"], one["bytes"]) if steps else None
        plain = plain or run
        worth = lesson["worth_below"](plain, run, 50e-6) * 8e-6 if run and run is not plain else None
        table.add_row(
            method,
            f"{one['bytes'] / 1e3:,.1f}",
            f"{one['predicted'] / 1e3:,.1f}",
            f"{one['calls']:.1f}",
            f"{sum(one['losses'][-SMOOTHED:]) / SMOOTHED:.3f}",
            str(steps or "–"),
            f"{steps * one['bytes'] / 1e3:,.0f}" if steps else "–",
            "–" if worth is None else f"{worth:,.0f}",
        )
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--data", default="builtin", help="wikitext-2, builtin, or a folder with train.txt and so on")
    for name, default in (("ranks", 4), ("steps", 100), ("batch", 24), ("length", 32), ("dim", 64), ("layers", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--vocab", type=int, default=500, help="words; the others become one")
    parser.add_argument("--loss", type=float, default=3.7, help="the target")
    parser.add_argument("--compute", type=float, default=0.1, help="seconds that a step computes, for the last column")
    parser.add_argument("--json", type=Path, help="write every measurement to this file, too")
    parser.add_argument("--figure", type=Path, help="draw losses over tokens and over bytes into this file")
    args = parser.parse_args()
    found = on_ranks(train, args.ranks, args)
    show(args, found)
    if args.json:
        args.json.write_text(json.dumps({"torch": torch.__version__, "methods": found}, indent=1) + "\n")
    if args.figure:
        from utils.plots import fewer_bytes as plots

        curves = {method: one["losses"] for method, one in found.items()}
        sent = {method: one["bytes"] for method, one in found.items()}
        plots.losses(curves, sent, args.batch * args.length).save(args.figure)


if __name__ == "__main__":
    main()
