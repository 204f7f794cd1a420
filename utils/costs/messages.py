"""What a rank sends in a step, on each axis: bytes and messages."""

import math
from typing import NamedTuple

from utils.costs.counts import most_layers, parts, positions
from utils.costs.memory import stream_bytes, tokens
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
    keys, queries = number * model.keys, number * model.queries  # bytes of a rank's keys, and as many of its values
    if plan.context == "ring":
        forward, backward = Sent(2 * (c - 1) * keys, 2 * (c - 1)), Sent((4 * c - 2) * keys, 4 * c - 2)
    elif plan.context == "gather":
        forward = all_gather(2 * c * keys, c)
        backward = times(2, forward)
    else:
        of_each = all_gather(queries, c), all_gather(keys, c)  # an all-to-all keeps one part of c, too
        forward = backward = times(2, together(*of_each))
    recomputed = forward if plan.recompute == "full" else Sent(0, 0)
    return times(plan.micro_batches * most_layers(model, plan), together(forward, backward, recomputed))


def expert_messages(model: Model, plan: Plan) -> Sent:
    """Rows go to their experts and back, twice, with the even load that a balancing loss aims at. Counts go first."""
    if plan.ep == 1 or not model.experts:
        return Sent(0, 0)
    rows = all_gather(model.active * stream_bytes(model, plan), plan.ep)  # an all-to-all keeps one part, too
    counts = Sent(8 * model.experts * (1 - 1 / plan.ep), plan.ep - 1)
    ways = 6 if plan.recompute == "full" else 4
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
    gathered for each pass. A unit is a block, and the rest. Experts are divided by ep first.
    """
    n = plan.shard
    if n == 1:
        return Sent(0, 0)
    dense, experts, rest = parts(model, plan, 0)
    block = dense + (experts if n > plan.ep else 0)
    layers, m = most_layers(model, plan), plan.micro_batches
    blocks, root = all_gather(block, n), all_gather(rest, n)
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
    """Once per step, replicas sum their gradients; if these are sharded, each rank sums its own shard's. For the
    weights, ranks that split a sequence are replicas, too. Experts have fewer: dp · shard / ep.
    """
    layers = most_layers(model, plan)
    dense, experts, rest = parts(model, plan, 0)
    gradients = (layers * dense + rest) * plan.bytes.reduced / plan.shard
    buckets = max(1, math.ceil(gradients / BUCKET))
    sent = times(buckets, all_reduce(gradients / buckets, plan.dp * plan.cp))
    copies = (plan.dp if plan.shard > plan.ep else plan.replicas // plan.ep) * plan.cp
    of_experts = layers * experts * plan.bytes.reduced / max(1, plan.shard / plan.ep)
    return together(sent, all_reduce(of_experts, copies)) if experts else sent
