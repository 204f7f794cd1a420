"""What every training script has: the data, the optimizer, a number to report."""

import argparse
import importlib.util
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler

from utils.data import DataError, Windows, load_corpus
from utils.distributed import fail

Sets = tuple[Windows, Windows, Windows]  # train, validation, test
Samplers = tuple[Sampler | None, Sampler | None, Sampler | None]
Loaders = tuple[DataLoader, DataLoader, DataLoader]


def make_sets(args: argparse.Namespace) -> tuple[Sets, int]:
    """The three sets, and how many words there are to choose from. Exits with code 2 where there is too little text."""
    try:
        corpus = load_corpus(args.data)
    except DataError as problem:
        fail(problem)
    train = Windows(corpus.train, args.seq_len, corpus.eos, drop_last=True)
    validation = Windows(corpus.validation, args.seq_len, corpus.eos, drop_last=False)
    test = Windows(corpus.test, args.seq_len, corpus.eos, drop_last=False)
    if len(train) < args.batch_size:
        fail(
            f"{corpus.name} has {len(train)} sequences of --seq-len {args.seq_len} to train on, fewer than one "
            f"--batch-size {args.batch_size}: make one of them smaller, or use more text"
        )
    return (train, validation, test), len(corpus.vocab)


def make_optimizer(model: nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    """What --optimizer, --lr and --weight-decay ask for, of the parameters that the model has now."""
    if args.optimizer == "muon":
        from utils import after_13_fewer_bytes as taught  # imported here: see check_muon

        parameters = list(model.named_parameters())
        matrices = [p for name, p in parameters if "blocks." in name and p.dim() == 2]
        others = [p for _, p in parameters if not any(p is matrix for matrix in matrices)]
        dtype = torch.bfloat16 if args.dtype == "bfloat16" else torch.float32
        return taught.Muon(matrices, others, lr=args.lr, weight_decay=args.weight_decay, dtype=dtype)
    parameters = list(model.parameters())
    if args.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=args.lr, weight_decay=args.weight_decay)
    # Fused: one pass over weights, gradients and moments, where separate operations make a dozen. It takes all
    # parameters at once, and DTensor has no operation over several meshes.
    fused = len({getattr(p, "device_mesh", None) for p in parameters}) == 1
    return torch.optim.AdamW(parameters, lr=args.lr, weight_decay=args.weight_decay, fused=fused)


def check_muon(args: argparse.Namespace) -> None:
    """Exit with code 2 if --optimizer muon is asked for where its module is sealed, as it is in a release at first."""
    if args.optimizer == "muon" and importlib.util.find_spec("utils.after_13_fewer_bytes") is None:
        fail(
            "--optimizer muon needs utils/after_13_fewer_bytes.py, which opens when 13_fewer_bytes/8-9 are right;"
            " ./workbook open muon opens it now"
        )


def check_position(
    position: dict[str, Any], args: argparse.Namespace, same: Sequence[str], total_steps: int, of: object
) -> None:
    """Exit with code 2 if the run saved as `of` cannot continue: flags in `same` have changed, or it is too long."""
    for name in same:
        if position[name] != getattr(args, name):
            fail(f"{of}: it was saved with --{name.replace('_', '-')} {position[name]}")
    if position["step"] > total_steps:
        fail(f"{of}: it has already taken {position['step']} steps, and this run has {total_steps}")


def perplexity(loss: float) -> float:
    """The effective number of words that the model chooses from; infinite for a run that diverged."""
    return math.inf if loss > 700 else math.exp(loss)
