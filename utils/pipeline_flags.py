"""The flags of a pipeline, and their constraints; stages with equally many blocks."""

import argparse
import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from utils import releases
from utils.arguments import whole
from utils.distributed import fail, set_batch_size

# `eval` has come with 2.9, `return_outputs` with 2.10.
SCHEDULES_SINCE = ("2.10", "a pipeline's schedule that evaluates and keeps no outputs")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")


def add_pipeline_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--pp", type=whole(0), default=0, help="ranks in a pipeline; 0: all. Several pipelines divide the batch")
    add("--schedule", choices=SCHEDULES, default="1f1b", help="order of the work; interleaved has two stages per rank")
    add("--microbatches", type=whole(1), default=6, help="micro-batches in a pipeline's part of the batch")


def check_schedules() -> None:
    """Stop with one line where torch's schedules lack what the scripts call."""
    if lacking := releases.lacks(*SCHEDULES_SINCE):
        fail(lacking)


def check_pipeline(args: argparse.Namespace, ranks: int) -> None:
    """Stop with one line unless these flags fit this number of ranks. Fills in --pp."""
    p = args.pp = args.pp or ranks
    if ranks % p:
        fail(f"--pp {p}: {ranks} ranks cannot be divided into pipelines of {p}")
    n_stages = p * stages_a_rank(p, args)
    if n_stages > args.layers:
        fail(
            f"--layers {args.layers} is too few for {n_stages} stages (--pp {p}, --schedule {args.schedule}): "
            "each needs a block"
        )
    pipelines = ranks // p
    set_batch_size(args, pipelines, "data-parallel ranks")
    share, m = args.batch_size // pipelines, args.microbatches
    if share % m:
        fail(
            f"--microbatches {m} does not divide the {share} sequences of a pipeline "
            f"(--batch-size {args.batch_size} on {pipelines} data-parallel ranks)"
        )
    if m < p and args.schedule != "gpipe":
        fail(f"--schedule {args.schedule} with --pp {p} needs --microbatches {p} or more, not {m}")
    if m < p and (lacking := releases.lacks("2.11", f"--schedule gpipe with --pp {p} and only {m} micro-batches")):
        fail(lacking)
    if m >= p and m % (m // p) and args.schedule in ("interleaved", "zero-bubble"):
        fail(f"--schedule {args.schedule} with --pp {p}: take a multiple of {p} for --microbatches, not {m}")
    if args.schedule == "zero-bubble" and not splits_backward():
        fail(
            f"--schedule zero-bubble: torch {torch.__version__} cannot split the backward pass of the head's loss; use"
            " torch 2.13, or another schedule"
        )
    if args.dropout and p > 1:
        fail(
            f"--dropout {args.dropout:g} with --pp {p}: stages with separate generators cannot draw the numbers that"
            " one process would"
        )


class Same(torch.autograd.Function):
    """A function with a backward pass of its own, like the head's loss."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def splits_backward() -> bool:
    """Whether this torch can compute the gradients of such a function's inputs at one time, and of its weights at
    another, as the zero-bubble schedule does: 2.13 can, 2.12 cannot.
    """
    try:
        Same.apply(torch.ones((), requires_grad=True)).grad_fn._input_metadata  # which torch then reads
    except (AttributeError, RuntimeError):
        return False
    return True


def stages_a_rank(p: int, args: argparse.Namespace) -> int:
    """How many stages each of the p ranks of a pipeline has; a single rank has one."""
    return 2 if args.schedule == "interleaved" and p > 1 else 1


def by_number(blocks: int, n_stages: int) -> list[range]:
    """The blocks of each stage: equally many, or some with one more if there is a remainder."""
    borders = [math.ceil(k * blocks / n_stages) for k in range(n_stages + 1)]
    return [range(begin, end) for begin, end in pairwise(borders)]
