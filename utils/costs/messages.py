"""What a rank sends in a step, on each axis: bytes and messages."""

import math
from typing import NamedTuple

from utils.costs.counts import most_layers, parts, positions
from utils.costs.memory import rows_of_experts, stream_bytes, tokens
from utils.plan import Model, Plan

TAUGHT_IN = "10_strategy"

BUCKET = 25 * 2**20  # bytes that DDP sends at a time


class Sent(NamedTuple):
    """What a rank sends in a step on one axis. A ring takes N - 1 messages for an all-gather, 2 (N - 1) for an
    all-reduce."""

    bytes: float
    messages: float


def messages(model: Model, plan: Plan) -> dict[str, Sent]:
    """What a rank sends in a step, by axis: "tp", "cp", "ep", "pp", "shard", "dp". Axes of one rank send nothing."""
    return {
        "tp": tensor_messages(model, plan),
        "cp": context_messages(model, plan),
        "ep": expert_messages(model, plan),
        "pp": pipeline_messages(model, plan),
        "shard": shard_messages(model, plan),
        "dp": replica_messages(model, plan),
    }


def all_reduce(nbytes: float, ranks: int) -> Sent:
    """By a ring: a reduce-scatter, then an all-gather."""
    return Sent(2 * (ranks - 1) / ranks * nbytes, 2 * (ranks - 1))


def all_gather(nbytes: float, ranks: int) -> Sent:
    """By a ring, of `nbytes` in all; a reduce-scatter sends as much."""
    return Sent((ranks - 1) / ranks * nbytes, ranks - 1)


def times(number: float, sent: Sent) -> Sent:
    return Sent(number * sent.bytes, number * sent.messages)


def together(*sent: Sent) -> Sent:
    return Sent(sum(each.bytes for each in sent), sum(each.messages for each in sent))


def tensor_messages(model: Model, plan: Plan) -> Sent:
    """Megatron, section 3: an all-reduce for each half of a block, forward and backward; one for parallel halves. When
    a block is recomputed, its last sum is not needed.

    With sequence parallelism each is an all-gather and a reduce-scatter, which is as much (Korthikanti, section 4.2.2).
    """
    if plan.tp == 1:
        return Sent(0, 0)
    stream = all_gather(stream_bytes(model, plan), plan.tp)  # twice that is an all-reduce
    halves = 1 if model.parallel else 2
    of_block = 4 * halves + (halves if plan.sequence_parallel == "regather" else 0)
    if plan.recompute in ("full", "ops"):
        left_out = (1 if plan.sequence_parallel != "off" else 2) if plan.early_stop else 0
        of_block += 2 * halves - left_out
    ends = 4 if plan.pp == 1 else 2  # the embedding's sum, the head's input
    once = Sent(0, 0)
    if plan.sequence_parallel != "off":  # each rank had its own tokens: gradients of norms and positions
        numbers = (model.layers / plan.pp * 4 + positions(model)) * model.hidden
        once = all_reduce(plan.bytes.reduced * numbers, plan.tp)
    ways = of_block * most_layers(model, plan) + ends
    return together(times(plan.micro_batches * ways, stream), once)


def context_messages(model: Model, plan: Plan) -> Sent:
    """Ring attention: keys and values rotate, and in the backward pass once more with their gradients, which return to
    their own ranks. Ulysses: all-to-alls of queries, keys, values and the output, and of their gradients. "gather":
    keys and values are gathered for each pass, and their gradients reduced (Llama 3, section 3.3.2).
    """
    c = plan.cp
    if c == 1:
        return Sent(0, 0)
    number = tokens(model, plan) * plan.bytes.activation / plan.tp
    pair = number * (model.keys + model.values)  # bytes of a rank's keys and values
    if plan.context == "ring":
        forward, backward = Sent((c - 1) * pair, 2 * (c - 1)), Sent((2 * c - 1) * pair, 4 * c - 2)
    elif plan.context == "gather":
        forward = all_gather(c * pair, c)
        backward = times(2, forward)
    else:  # an all-to-all keeps one part of c, too
        own = number * (model.queries + model.attended)
        forward = backward = Sent((c - 1) / c * (own + pair), 4 * (c - 1))
    recomputed = forward if plan.recompute == "full" else Sent(0, 0)
    return times(plan.micro_batches * most_layers(model, plan), together(forward, backward, recomputed))


def expert_messages(model: Model, plan: Plan) -> Sent:
    """Rows go to their experts and back, twice, with the even load that a balancing loss aims at. If experts are
    dropless, counts go first; with a capacity, all places are sent.

    Ranks of tp that have different experts each send their own tokens: a tp-th of them.
    """
    if plan.ep == 1 or not model.experts:
        return Sent(0, 0)
    stream = rows_of_experts(model, plan) * stream_bytes(model, plan) / plan.folded
    rows = all_gather(stream, plan.ep)  # an all-to-all keeps one part, too
    counts = Sent(0, 0) if plan.capacity else Sent(8 * model.experts * (1 - 1 / plan.ep), plan.ep - 1)
    ways = 6 if plan.recompute == "full" else 4
    if plan.fp8 and plan.once_per_node:  # on the way there, in both passes (arXiv:2412.19437, section 3.3.3)
        ways *= 3 / 4
    layer = together(times(ways, rows), counts)
    return times(plan.micro_batches * most_layers(model, plan), layer)


def pipeline_messages(model: Model, plan: Plan) -> Sent:
    """A rank in the middle passes each micro-batch on, and its gradient back, once for each of its chunks."""
    p, v = plan.pp, plan.chunks
    if p == 1:
        return Sent(0, 0)
    in_parts = plan.tp if plan.scatter or plan.sequence_parallel != "off" else 1  # PTD-P, section 4.1
    boundaries = 2 * v if p > 2 else 2 * v - 1  # of two ranks, the first sends nothing back, the last nothing on
    return times(plan.micro_batches * boundaries, Sent(stream_bytes(model, plan) / in_parts, 1))


def shard_messages(model: Model, plan: Plan) -> Sent:
    """ZeRO, section 7. Stages 1 and 2: gradients are reduced to shards, new weights gathered. Stage 3: weights are
    gathered for each pass. A unit is a block, and the rest. Experts are divided by ep first. cp's ranks divide the
    state, too.
    """
    n = plan.sharers
    if n == 1:
        return Sent(0, 0)
    dense, experts, rest = parts(model, plan, 0)
    layers, m = most_layers(model, plan), plan.micro_batches
    blocks, root = all_gather(dense, n), all_gather(rest, n)
    if experts and plan.expert_sharers > 1:
        blocks = together(blocks, all_gather(experts, int(plan.expert_sharers)))
    reduced = together(times(layers, blocks), root)
    if plan.zero < 3:
        return Sent((plan.bytes.gathered + plan.bytes.reduced) * reduced.bytes, 2 * reduced.messages)
    passes = 1 if plan.pp > 1 else m  # torch's stages free nothing before their last backward pass
    block_times = passes if plan.reshard == "none" else 2 * m
    root_times = 2 * m if plan.reshard == "all" else passes
    gathers = together(times(block_times * layers, blocks), times(root_times, root))
    reductions = times(1 if plan.pp > 1 else m, reduced)
    return Sent(
        plan.bytes.gathered * gathers.bytes + plan.bytes.reduced * reductions.bytes,
        gathers.messages + reductions.messages,
    )


def replica_messages(model: Model, plan: Plan) -> Sent:
    """Once per step, replicas sum their gradients; if these are sharded, each rank sums its own shard's. If nothing is
    sharded, ranks that split a sequence are replicas, too. Experts have fewer.
    """
    layers = most_layers(model, plan)
    dense, experts, rest = parts(model, plan, 0)
    gradients = (layers * dense + rest) * plan.bytes.reduced / plan.sharers
    buckets = max(1, math.ceil(gradients / BUCKET))
    sent = times(buckets, all_reduce(gradients / buckets, plan.copies))
    of_experts = layers * experts * plan.bytes.reduced / plan.expert_sharers
    return together(sent, all_reduce(of_experts, int(plan.expert_copies))) if experts else sent
