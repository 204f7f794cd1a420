"""On ranks, for the checks of 05_pipeline_parallel: evaluation."""

import torch

from grader.kit import kind_of, mark, merciless_messages
from utils.data import IGNORE
from utils.memory import Storages

from .common import Work, batch_for, counted_in, share_of_loss, targets_of

# ---------------------------------------------------------------------------------------------------
# TODO 12: evaluation


def tell_on_rank(code, rank, world, values):
    return [number_in(code.on_all_ranks(value, rank, world)) for value in values]


def number_in(value):
    single = isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.numel() == 1)
    return float(value) if single else kind_of(value)


def evaluate_on_rank(code, rank, world, seed, v, ms, rows, width, dtype):
    """Two evaluations in a row, of two batches each, the second batch with fewer targets. One chunk is in training
    mode, the others are not.
    """
    merciless_messages()
    sizes = v, rows, width, dtype
    return [
        evaluation(code, rank, world, seed + 500 * n, m, elsewhere, *sizes)
        for n, (m, elsewhere) in enumerate(zip(ms, (-1, IGNORE), strict=True))
    ]


def evaluation(code, rank, world, seed, m, elsewhere, v, rows, width, dtype):
    """`elsewhere`: what stands in place of targets where they mean nothing."""
    mark(kind="trial")
    kind, watch = getattr(torch, dtype), Storages()
    chunks = [Work(c * world + rank, seed + 10 + c, width, kind, watch) for c in range(v)]
    for number, chunk in enumerate(chunks):
        chunk.train(number == rank % v)
    batches = []
    for number in range(2):
        batch = batch_for(code, seed + 100 * number, rank, world, m + number, rows, width, dtype)
        ys = [torch.full_like(y, elsewhere) for y in batch.ys]
        if rank == world - 1:
            ys = evaluated_targets(seed, number, m, rows, width)
        batches.append(batch._replace(ys=ys, loss_of=share_of_loss(counted_in(ys))))
    mean = code.evaluate(chunks, batches, rank, world)
    return {
        "mean": number_in(mean),
        "modes": [[module.training for module in chunk.modules()] for chunk in chunks],
        "grads": torch.is_grad_enabled(),
        "learned": any(p.grad is not None for chunk in chunks for p in chunk.parameters()),
    }


def evaluated_targets(seed, number, m, rows, width):
    """In the second batch few targets count, and in its last micro-batch none."""
    ys = targets_of(seed + 100 * number, m + number, rows, width)
    if number:
        for y in ys[1:]:
            y[1:] = IGNORE
        ys[-1][:] = IGNORE
    return ys
