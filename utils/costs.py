"""What a plan costs: FLOPs, memory, messages, and the time of a step.

A chapter of formulas. The descriptions, `Model`, `Plan` and `Machine`, are in `utils/plan.py`. Symbols as in the papers:
h hidden size, L layers, a heads, V words, s tokens of a sequence, b sequences of a micro-batch, t tensor-parallel ranks,
p stages, m micro-batches, v chunks on a rank. Sources, cited by these names:

    ZeRO          Rajbhandari et al. 2019, arXiv:1910.02054
    Megatron      Shoeybi et al. 2019, arXiv:1909.08053
    PTD-P         Narayanan et al. 2021, arXiv:2104.04473
    Korthikanti   et al. 2022, arXiv:2205.05198
    PaLM          Chowdhery et al. 2022, arXiv:2204.02311
    zero bubble   Qi et al. 2023, arXiv:2401.10241

Whatever differs between ranks is that of the rank that has most: it is the one that runs out of memory, and the one that
all others wait for.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from utils.plan import Link, Machine, Model, Plan

TAUGHT_IN = "09_strategy"  # no rank of that lesson's checks, or of an earlier one's, can import this


class Sent(NamedTuple):
    """What a rank sends in a step on one axis. A collective is a ring's: N - 1 messages to gather, 2(N - 1) to sum up."""

    bytes: float
    messages: int


class Choice(NamedTuple):
    """One of the plans for a job. `rejected` says in a line why it cannot be; "" for one that can."""

    plan: Plan
    rejected: str
    memory: dict[str, float]
    seconds: dict[str, float]


# Parameters and FLOPs


def parameters(model: Model) -> int:
    """All parameters: embeddings of words and positions, blocks, last norm, head."""
    raise NotImplementedError


def matmul_parameters(model: Model) -> int:
    """Parameters that a token is multiplied by: no embeddings, no norms, and of the experts only the active ones."""
    raise NotImplementedError


def flops(model: Model, tokens: int) -> float:
    """FLOPs of forward and backward pass, attention's included: 6 times matmul_parameters, plus 12 L h s, a token.

    A factor's parameter takes a multiplication and an addition in the forward pass, and twice that in the backward pass.
    Attention's scores are counted without a causal mask, as is usual (PaLM, appendix B). What is computed once more in
    the backward pass is not counted.
    """
    raise NotImplementedError


# Memory


def memory(model: Model, plan: Plan, stage: int | None = None) -> dict[str, float]:
    """Bytes that a rank of a pipeline's stage holds at most, by kind; by default of the stage that holds most.

    Kinds: "weights", "gradients", "state" (the optimizer's), "activations" (kept for the backward pass), "gathered"
    (weights and gradients of others' shards, for a moment), "logits".
    """
    raise NotImplementedError


def alive(plan: Plan, stage: int) -> float:
    """Activations that a stage keeps at most, as a multiple of those of one micro-batch in all layers of the rank."""
    raise NotImplementedError


# Messages


def messages(model: Model, plan: Plan) -> dict[str, Sent]:
    """What a rank sends in a step, by axis: "tp", "cp", "ep", "pp", "shard", "dp". Axes of one rank send nothing."""
    raise NotImplementedError


# Time


def bubble(plan: Plan) -> float:
    """The share of a step, from 0 to 1, in which a pipeline's ranks wait, if all stages take equally long."""
    raise NotImplementedError


def step_time(model: Model, plan: Plan, machine: Machine) -> dict[str, float]:
    """Seconds of a step by what they go to; their sum is the step.

    "products" (matrix products), "traffic" (all that reads and writes memory: norms, GELU, softmax, …), "recompute",
    "tp", "cp", "ep", "pp" (messages), "data" (those of shard and dp that nothing hides), "bubble", "optimizer".
    """
    raise NotImplementedError


def share_of_peak(model: Model, plan: Plan, machine: Machine) -> float:
    """MFU, model FLOPs utilization: `flops` of the batch as a share of what all devices could compute in a step."""
    raise NotImplementedError


# Choosing


def plans(model: Model, gpus: int, machine: Machine, batch: int) -> list[Choice]:
    """All ways to train a model with this global batch: first those that can be, the fastest first, then the rejected."""
    raise NotImplementedError
