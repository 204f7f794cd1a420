"""What every training script has: the data, the optimizer, a number to report."""

import argparse
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
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[args.optimizer]
    return kind(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)


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
