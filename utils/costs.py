"""What a plan costs: FLOPs, memory, messages, and the time of a step.

A chapter of formulas. The descriptions, `Model`, `Plan` and `Machine`, are in `utils/plan.py`. Symbols are the papers':
h hidden size, L layers, a heads, V words, s tokens of a sequence, b sequences of a micro-batch, t tensor-parallel
ranks, p stages, m micro-batches, v chunks on a rank. Sources, cited by these names:

    ZeRO          Rajbhandari et al. 2019, arXiv:1910.02054
    Megatron      Shoeybi et al. 2019, arXiv:1909.08053
    PTD-P         Narayanan et al. 2021, arXiv:2104.04473
    Korthikanti   et al. 2022, arXiv:2205.05198
    PaLM          Chowdhery et al. 2022, arXiv:2204.02311
    zero bubble   Qi et al. 2023, arXiv:2401.10241

Whatever differs between ranks is that of the rank that has most: it is the one that runs out of memory, and the one
that all others wait for. Rounding is left out: a shard of n numbers on N ranks is n / N.
"""

import itertools
import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import NamedTuple

from utils.plan import Link, Machine, Model, Plan

TAUGHT_IN = "09_strategy"  # no rank of that lesson's checks, or of an earlier one's, can import this
# What earlier lessons ask to predict; a release keeps this module sealed until they are right.
GIVES_AWAY = """
01_collectives/6 02_data_parallel/1 03_zero/1 03_zero/7 04_tensor_parallel/1 04_tensor_parallel/10
05_pipeline_parallel/1 05_pipeline_parallel/11 06_context_parallel/7 07_expert_parallel/8
"""

BUCKET = 25 * 2**20  # bytes that DDP sends at a time
PIECE = 16_000_000  # logits that the course's loss makes at a time
USABLE = 0.9  # of a device's memory; the driver, the libraries and the gaps between tensors have the rest


class Sent(NamedTuple):
    """What a rank sends in a step on one axis. A ring takes N - 1 messages to gather, 2 (N - 1) to sum up."""

    bytes: float
    messages: float


class Choice(NamedTuple):
    """One of the plans for a job. `rejected` says in a line why it cannot be; it is "" for one that can."""

    plan: Plan
    rejected: str
    memory: dict[str, float]
    seconds: dict[str, float]


# Parameters and FLOPs


def parameters(model: Model) -> int:
    """All parameters: the embeddings of words and positions, the blocks, the last norm, the head."""
    dense, experts = block_parameters(model)
    head = 0 if model.tied else model.vocabulary * model.hidden
    embeddings = (model.vocabulary + model.sequence) * model.hidden
    return embeddings + model.layers * (dense + experts) + 2 * model.hidden + head


def block_parameters(model: Model) -> tuple[int, int]:
    """Parameters of one block: those that every token needs, and all experts'. Two norms have 4 h."""
    attention, mlp, norms = 4 * model.hidden**2, 8 * model.hidden**2, 4 * model.hidden
    if not model.experts:
        return attention + mlp + norms, 0
    router = model.experts * model.hidden
    return attention + norms + router, model.experts * mlp


def matmul_parameters(model: Model) -> int:
    """Parameters that a token is multiplied by: no embeddings, no norms, and of the experts only the active ones.

    The head counts, tied or not: it is a product. The table of embeddings is only looked up.
    """
    mlp = 8 * model.hidden**2 * model.active + model.experts * model.hidden if model.experts else 8 * model.hidden**2
    return model.layers * (4 * model.hidden**2 + mlp) + model.vocabulary * model.hidden


def flops(model: Model, tokens: float) -> float:
    """FLOPs of forward and backward pass: 6 times `matmul_parameters`, plus 12 L h s for attention, a token.

    A parameter takes a multiplication and an addition in the forward pass, and twice as much in the backward pass.
    Attention's scores are counted without a causal mask, as is usual (PaLM, appendix B; PTD-P, section 5.1, has the
    same and a third more, for recomputing). What is computed a second time is not counted.
    """
    attention = 12 * model.layers * model.hidden * model.sequence
    return tokens * (6 * matmul_parameters(model) + attention)


# What a rank has


def layers_of(model: Model, plan: Plan, stage: int) -> int:
    """Blocks of a pipeline's rank. If they do not divide, the first ranks have one more."""
    return model.layers // plan.pp + (stage < model.layers % plan.pp)


def parts(model: Model, plan: Plan, stage: int) -> tuple[float, float, float]:
    """Parameters of a pipeline's rank after cutting by tp and ep: one block's without experts, one block's experts, and
    those of no block.

    Tensor parallel cuts all matrices, the embeddings and the head by words (Megatron, section 3); norms and positions
    are on every rank.
    """
    h, t = model.hidden, plan.tp
    dense, experts = block_parameters(model)
    small = 4 * h + model.experts * h  # norms, router
    rest = 0.0
    if stage == 0:
        rest += model.vocabulary * h / t + model.sequence * h
    if stage == plan.pp - 1:
        rest += 2 * h + (0 if model.tied and plan.pp == 1 else model.vocabulary * h / t)
    return (dense - small) / t + small, experts / (t * plan.ep), rest


def held_parameters(model: Model, plan: Plan, stage: int) -> float:
    """Parameters of a pipeline's rank, before `shard` divides them."""
    dense, experts, rest = parts(model, plan, stage)
    return layers_of(model, plan, stage) * (dense + experts) + rest


# Memory


def memory(model: Model, plan: Plan, stage: int | None = None) -> dict[str, float]:
    """Bytes of a rank of a pipeline's stage by kind, as `moments` has them, at the moment when it holds most; by
    default of the stage that holds most.
    """
    stages = {0, plan.pp - 1} if stage is None else {stage}  # a later one keeps fewer micro-batches; the last the head
    found = [kinds for stage in stages for kinds in moments(model, plan, stage).values()]
    return max(found, key=lambda kinds: sum(kinds.values()))


def moments(model: Model, plan: Plan, stage: int) -> dict[str, dict[str, float]]:
    """Bytes of a rank of this stage by kind, in the four moments of which one is the fullest.

    "head": the last forward pass is over, and the loss is made. "turn": the backward pass is in the last block, whose
    activations are back. "end": it is in the first block; the gradients have come while the activations went. "step":
    the optimizer's, when nothing else is left.

    Kinds: "weights", "gradients", "state" (the optimizer's), "activations" (kept for the backward pass, and their
    gradients), "gathered" (weights and gradients that are whole for a while, though they are shared out), "logits".
    """
    size, layers = plan.bytes, layers_of(model, plan, stage)
    dense, experts, rest = parts(model, plan, stage)
    shared, own = layers * dense + rest, layers * experts
    own_shard = max(1, plan.shard / plan.ep)  # ep divides experts already, and takes its ranks from shard

    def bytes_of(each: int, from_zero: int) -> float:
        """ZeRO, figure 1: what stage `from_zero` and those above it share out."""
        return each * (shared / plan.shard + own / own_shard if plan.zero >= from_zero else shared + own)

    whole = 0.0  # gradients, before they are reduced to shards
    gradients = earlier = bytes_of(size.gradient, 2)
    if plan.shares and plan.pp > 1 and plan.micro_batches > 1:  # summed up whole, reduced once
        whole, earlier = shared + own, 0.0
    elif plan.micro_batches == 1 and (plan.shares or plan.dp * plan.cp == 1):  # DDP's buckets keep their place
        earlier = 0.0
    head = model.vocabulary * model.hidden / plan.tp if stage == plan.pp - 1 else 0.0
    block = dense + (experts if plan.shard > plan.ep else 0)
    in_passes = layers if plan.reshard == "none" else 0
    fetched = in_passes or min(layers, 2 if plan.overlap else 1)
    kept, of_block = activations(model, plan, stage), block_activations(model, plan, recompute="none")
    again = of_block - block_activations(model, plan)  # what is computed again
    passing = stream_bytes(model, plan) * (1 + 4 / plan.tp)  # gradients of the stream, and of the MLP's hidden numbers
    states = {"weights": bytes_of(size.weight, 3), "state": bytes_of(size.state, 1)}
    return {
        "head": states
        | {
            "gradients": earlier,
            "activations": kept,
            "gathered": gathered(plan, in_passes * block + rest, whole),
            "logits": logits(model, plan) if head else 0.0,
        },
        "turn": states
        | {
            "gradients": max(earlier, 0.0 if plan.shares else size.gradient * head),
            "activations": kept + again + passing,
            "gathered": gathered(plan, fetched * block + rest, whole or block + head),
            "logits": (alive(plan, stage) - 1) * kept_logits(model, plan) if head else 0.0,
        },
        "end": states
        | {  # those that are still whole have no shard yet
            "gradients": earlier or gradients - (size.gradient * (whole or rest) / plan.shard if plan.shares else 0.0),
            "activations": of_block + passing,
            "gathered": gathered(plan, block + rest, whole or block + rest),
            "logits": 0.0,
        },
        "step": states | {"gradients": gradients, "activations": 0.0, "gathered": 0.0, "logits": 0.0},
    }


def gathered(plan: Plan, weights: float, gradients: float) -> float:
    """Bytes of so many weights and gradients that are whole for a while, if ZeRO's stage shares them out."""
    if not plan.shares:
        return 0.0
    return plan.bytes.gathered * (weights + gradients) if plan.zero == 3 else plan.bytes.gradient * gradients


def tokens(model: Model, plan: Plan) -> float:
    """Tokens of a micro-batch that a rank sees: context parallel cuts each sequence."""
    return plan.micro_batch * model.sequence / plan.cp


def block_activations(model: Model, plan: Plan, recompute: str | None = None) -> float:
    """Bytes that one block keeps of a micro-batch for its backward pass (Korthikanti, section 4).

    With 16 bits, dropout and unfused attention: s b h (10 + 24 / t + 5 a s / (h t)), their equation 2.
    """
    w, mask = plan.bytes.activation, int(plan.dropout)
    h, recompute = model.hidden, recompute or plan.recompute
    in_parts = plan.tp if plan.sequence_parallel != "off" else 1
    stream = 2 * w * h / in_parts  # the block's input, and what attention makes of it
    if recompute == "full":
        return tokens(model, plan) * stream / 2
    norms = 2 * w * h / (plan.tp if plan.sequence_parallel == "regather" else 1)  # what q, k, v and up are made from
    masks = 2 * mask * h / in_parts
    attention = 4 * w * h  # queries, keys, values, and what comes out
    hidden = 8 * w * h  # before and after GELU
    if model.experts:  # a row for each expert of a token: it goes in, through both products, and comes out
        hidden = model.active * (8 + 2) * w * h
    scores = 0.0
    if not plan.fused_attention and recompute == "none":  # the softmax, its mask, and what dropout leaves
        scores = model.heads * model.sequence * (w + mask * (w + 1))
    return tokens(model, plan) * (stream + norms + masks + (attention + hidden + scores) / plan.tp)


def activations(model: Model, plan: Plan, stage: int) -> float:
    """Bytes of all blocks of a rank, of all micro-batches that wait for their backward pass; and of the last norm."""
    kept = layers_of(model, plan, stage) * block_activations(model, plan) * alive(plan, stage)
    if stage == plan.pp - 1:
        stream = stream_bytes(model, plan)
        before = stream / (plan.tp if plan.sequence_parallel != "off" else 1)
        after = stream / (plan.tp if plan.sequence_parallel == "regather" else 1)
        kept += alive(plan, stage) * (before + after)
    return kept


def alive(plan: Plan, stage: int) -> float:
    """Activations that a rank keeps at most, as a multiple of those of one micro-batch in all its layers.

    1F1B: PTD-P, section 2.2.1; interleaved: Korthikanti, section 4.2.3; zero bubble H1: as much as 1F1B's first stage.
    """
    p, m, v = plan.pp, plan.micro_batches, plan.chunks
    if p == 1:
        return 1
    if plan.schedule == "interleaved":
        return min(m * v, 2 * (p - 1 - stage) + (v - 1) * p + 1) / v
    return {"gpipe": m, "1f1b": min(m, p - stage), "zero-bubble": min(m, p)}[plan.schedule]


def logits(model: Model, plan: Plan) -> float:
    """Bytes of the head's results, while the last of them are made or go back.

    In pieces, a piece is turned into the gradients of the head and of its input; only these are kept, and when their
    turn comes, they are scaled: for a moment there are two of each.
    """
    waiting = alive(plan, plan.pp - 1) * kept_logits(model, plan)
    if plan.whole_logits:
        return waiting
    w = plan.bytes.activation
    piece = min(PIECE, tokens(model, plan) * model.vocabulary / plan.tp) * (4 if w == 4 else 4 + w)
    return waiting + max(piece, kept_logits(model, plan))


def kept_logits(model: Model, plan: Plan) -> float:
    """Bytes that are kept of a micro-batch's logits for the backward pass."""
    words, rows = model.vocabulary / plan.tp, tokens(model, plan)
    if plan.whole_logits:
        return rows * words * 4  # in float32 (Korthikanti, section 4.3)
    return (4 * words + plan.bytes.activation * rows) * model.hidden


# Messages


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


def stream_bytes(model: Model, plan: Plan) -> float:
    """b s h numbers: what goes from block to block."""
    return tokens(model, plan) * model.hidden * plan.bytes.activation


def tensor_messages(model: Model, plan: Plan) -> Sent:
    """Megatron, section 3: an all-reduce for each half of a block, forward and backward. Computed again, a block's last
    sum is needed by nobody.

    With sequence parallelism each is an all-gather and a reduce-scatter, which is as much (Korthikanti, section 4.2.2).
    """
    if plan.tp == 1:
        return Sent(0, 0)
    stream = all_gather(stream_bytes(model, plan), plan.tp)  # twice that is an all-reduce
    of_block = 8 + (2 if plan.sequence_parallel == "regather" else 0)
    if plan.recompute == "full":
        of_block += (3 if plan.sequence_parallel != "off" else 2) if plan.early_stop else 4
    ends = 4 if plan.pp == 1 else 2  # the embedding's sum, the head's input
    once = Sent(0, 0)
    if plan.sequence_parallel != "off":  # each rank had its own tokens: gradients of norms and positions
        once = all_reduce(plan.bytes.reduced * (model.layers / plan.pp * 4 + model.sequence) * model.hidden, plan.tp)
    ways = of_block * layers_of(model, plan, 0) + ends
    return together(times(plan.micro_batches * ways, stream), once)


def context_messages(model: Model, plan: Plan) -> Sent:
    """Ring attention: keys and values go round, and in the backward pass once more with their gradients, which go all
    the way home. Ulysses: all-to-alls of queries, keys, values and the output, and of their gradients.
    """
    c = plan.cp
    if c == 1:
        return Sent(0, 0)
    heads = stream_bytes(model, plan) / plan.tp  # bytes of a rank's queries, and of its keys, and of its values
    if plan.context == "ring":
        forward, backward = Sent(2 * (c - 1) * heads, 2 * (c - 1)), Sent((4 * c - 2) * heads, 4 * c - 2)
    else:
        forward = backward = times(4, all_gather(heads, c))  # an all-to-all keeps one part of c, too
    recomputed = forward if plan.recompute == "full" else Sent(0, 0)
    return times(plan.micro_batches * layers_of(model, plan, 0), together(forward, backward, recomputed))


def expert_messages(model: Model, plan: Plan) -> Sent:
    """Rows go to their experts and back, twice, with the even load that a balancing loss aims at. Counts go first."""
    if plan.ep == 1 or not model.experts:
        return Sent(0, 0)
    rows = all_gather(model.active * stream_bytes(model, plan), plan.ep)  # an all-to-all keeps one part, too
    counts = Sent(8 * model.experts * (1 - 1 / plan.ep), plan.ep - 1)
    ways = 6 if plan.recompute == "full" else 4
    layer = together(times(ways, rows), counts)
    return times(plan.micro_batches * layers_of(model, plan, 0), layer)


def pipeline_messages(model: Model, plan: Plan) -> Sent:
    """A rank in the middle hands each micro-batch on, and its gradient back, once for each of its chunks."""
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
    layers, m = layers_of(model, plan, 0), plan.micro_batches
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
    """Once a step, replicas sum up their gradients; if these are shared out, each rank those of its shard.

    To the weights, ranks that divide a sequence are replicas, too. Experts have fewer: dp · shard / ep.
    """
    layers = layers_of(model, plan, 0)
    dense, experts, rest = parts(model, plan, 0)
    gradients = (layers * dense + rest) * plan.bytes.reduced / plan.shard
    buckets = max(1, math.ceil(gradients / BUCKET))
    sent = times(buckets, all_reduce(gradients / buckets, plan.dp * plan.cp))
    copies = (plan.dp if plan.shard > plan.ep else plan.replicas // plan.ep) * plan.cp
    of_experts = layers * experts * plan.bytes.reduced / max(1, plan.shard / plan.ep)
    return together(sent, all_reduce(of_experts, copies)) if experts else sent


# Time


def bubble(plan: Plan, work: tuple[float, float, float] = (1.0, 1.0, 1.0)) -> float:
    """The share of a step, from 0 to 1, in which a pipeline's ranks wait, if all stages take equally long.

    `work`: seconds of a micro-batch's forward pass in all layers of a rank, of the gradients that go back through them,
    and of the weights' gradients.
    """
    waiting = waits(plan, work)
    return waiting / (plan.micro_batches * sum(work) + waiting)


def waits(plan: Plan, work: tuple[float, float, float]) -> float:
    """Seconds that a rank waits in a step: (p - 1) / v micro-batches (PTD-P, section 2.2; zero bubble, section 2.3)."""
    forward, inputs, weights = work
    if plan.schedule == "zero-bubble":
        return (plan.pp - 1) * (forward + inputs - weights)
    return (plan.pp - 1) * (forward + inputs + weights) / plan.chunks


def step_time(model: Model, plan: Plan, machine: Machine) -> dict[str, float]:
    """Seconds of a step by what they go to; their sum is the step.

    "products" (of matrices), "traffic" (what only reads and writes memory: norms, GELU, softmax, …), "recompute", then
    messages: "tp", "cp" (a ring hides some), "ep", "pp", "data" (what nothing hides of shard and dp); and "bubble",
    "optimizer".
    """
    m, layers = plan.micro_batches, layers_of(model, plan, 0)
    block, head = block_seconds(model, plan, machine), head_seconds(model, plan, machine)
    sent = {
        axis: seconds_of(each, link_of(axis, plan, machine), machine) for axis, each in messages(model, plan).items()
    }
    forward = layers * (block["products"] + block["traffic"])
    backward = layers * (block["products back"] + block["traffic back"] + block["recompute"])
    if plan.context == "ring" and plan.overlap:  # keys and values pass on while those at hand are used
        sent["cp"] = max(0.0, sent["cp"] - m * layers * block["attention"])
    passing = sent["tp"] + sent["cp"] + sent["ep"]  # within the passes, of all micro-batches
    one = forward + backward + passing / m  # micro-batch, of all layers of a rank
    split = (forward + passing / m / 2, one / 2 - forward / 2, one / 2 - forward / 2)
    waiting = waits(plan, split) if plan.pp > 1 else 0.0
    seconds = {
        "products": m * (layers * (block["products"] + block["products back"]) + head["products"]),
        "traffic": m * (layers * (block["traffic"] + block["traffic back"]) + head["traffic"]),
        "recompute": m * layers * block["recompute"],
        "tp": sent["tp"],
        "cp": sent["cp"],
        "ep": sent["ep"],
        "pp": sent["pp"] * (m + (plan.pp - 1) / plan.chunks) / m,
        "bubble": waiting,
        "optimizer": optimizer_seconds(model, plan, machine),
    }
    return seconds | {"data": exposed(plan, sent, m * one, backward, layers)}


def block_seconds(model: Model, plan: Plan, machine: Machine) -> dict[str, float]:
    """Seconds of one block and micro-batch: products and traffic of the forward pass, those of the backward pass, and
    what that computes again. Of the products, those of attention.
    """
    h, w, t = model.hidden, plan.bytes.activation, plan.tp
    rows, mask = tokens(model, plan), int(plan.dropout)
    in_parts = t if plan.sequence_parallel != "off" else 1

    weights = matmul_parameters(replace(model, vocabulary=0)) / model.layers / t
    numbers = rows * (2 * h + (4 + 9) * h / t)  # read and written by a block's products, beside its weights
    dense = product_seconds(2 * rows * weights, w * (weights + numbers), machine)
    # Fused, attention leaves out what the mask hides, half of it, and does the rest at about half the speed of a large
    # product (FlashAttention-2, arXiv:2307.08691, section 4.1), so that all counts; going back it makes five products.
    attention = product_seconds(4 * rows * model.sequence * h / t, 0.0, machine)
    attention_back = (2.5 if plan.fused_attention else 2) * attention

    # Bytes of a token. Norms read and write the stream, residuals read two and write one.
    stream = (10 * w + 2 * mask) * h / in_parts
    stream_back = (8 * w + mask * 2 * (2 * w + 1)) * h / in_parts
    gelu, gelu_back = 8 * w * h / t, 12 * w * h / t
    scores = scores_back = 0.0
    if not plan.fused_attention:  # written, softmax, dropout, read; back: twice as many products read and write them
        scores = model.heads * model.sequence / t * (4 * w + mask * (2 * w + 1))
        scores_back = model.heads * model.sequence / t * (7 * w + mask * (2 * w + 1))
    speed = machine.memory_bandwidth * machine.device_share
    again = 0.0
    if plan.recompute == "full":
        again = dense + attention + rows * (stream + gelu + scores) / speed
    elif plan.recompute == "selective" and not plan.fused_attention:
        again = attention + rows * scores / speed
    return {
        "products": dense + attention,
        "products back": 2 * dense + attention_back,
        "attention": attention + attention_back,
        "traffic": rows * (stream + gelu + scores) / speed,
        "traffic back": rows * (stream_back + gelu_back + scores_back) / speed,
        "recompute": again,
    }


def head_seconds(model: Model, plan: Plan, machine: Machine) -> dict[str, float]:
    """Seconds of the head and its loss, of one micro-batch, on the rank that has them. All ranks wait for it."""
    rows, words = tokens(model, plan), model.vocabulary / plan.tp
    weights = words * model.hidden
    operands = plan.bytes.activation * (weights + rows * (model.hidden + words))
    passes = 8 * 4 * rows * words  # the softmax and its gradient go over the logits about eight times, in float32
    return {
        "products": 3 * product_seconds(2 * rows * weights, operands, machine),
        "traffic": passes / (machine.memory_bandwidth * machine.device_share),
    }


def product_seconds(operations: float, nbytes: float, machine: Machine) -> float:
    """As if it first moved its matrices, then computed: smooth where the roofline (Williams et al. 2009), which takes
    the longer of the two, has its edge. Products of small matrices are slower.
    """
    return (operations / machine.peak + nbytes / machine.memory_bandwidth) / machine.device_share


def optimizer_seconds(model: Model, plan: Plan, machine: Machine) -> float:
    """Memory sets its pace. It reads gradients three times, for clipping too; state and weights it reads and writes."""
    size = plan.bytes
    own = held_parameters(model, plan, 0) / plan.shard
    each = 3 * size.gradient + 2 * size.state + 2 * size.weight
    return own * each / (machine.memory_bandwidth * machine.device_share)


def link_of(axis: str, plan: Plan, machine: Machine) -> Link:
    """What a rank of this axis sends over, in the order of ranks that `Plan` has.

    A ring that leaves the node crosses its edge once for each member that it has there, with as many network adapters.
    """
    strides = {"tp": 1, "cp": plan.tp, "shard": plan.tp * plan.cp, "dp": plan.tp * plan.cp * plan.shard}
    strides |= {"ep": strides["shard"], "pp": plan.world // plan.pp}
    sizes = {"tp": plan.tp, "cp": plan.cp, "shard": plan.shard, "dp": plan.dp, "ep": plan.ep, "pp": plan.pp}
    stride, size = strides[axis], sizes[axis]
    if stride * size <= machine.node:  # with dp, those of cp are in it, too
        return machine.inside
    if axis in ("pp", "ep"):
        return machine.between
    neighbours = max(1, min(size, machine.node // stride))
    if axis == "dp":
        neighbours *= max(1, min(plan.cp, machine.node // plan.tp))
    return Link(min(machine.inside.bandwidth, neighbours * machine.between.bandwidth), machine.between.latency)


def seconds_of(sent: Sent, link: Link, machine: Machine) -> float:
    return sent.messages * link.latency + sent.bytes / (link.bandwidth * machine.link_share)


def exposed(plan: Plan, sent: dict[str, float], computing: float, backward: float, layers: int) -> float:
    """Seconds of the data-parallel messages that nothing hides.

    Stage 3 gathers and reduces a block while others compute, in every micro-batch; all else is sent once, while the
    last micro-batch goes back. The last unit of all is waited for.
    """
    if not plan.overlap:
        return sent["shard"] + sent["dp"]
    throughout = sent["shard"] if plan.zero == 3 else 0.0
    at_the_end = sent["shard"] + sent["dp"] - throughout
    last = (throughout / plan.micro_batches + at_the_end) / (layers + 1)
    return max(0.0, throughout - computing) + max(0.0, at_the_end - backward) + last


def share_of_peak(model: Model, plan: Plan, machine: Machine) -> float:
    """MFU, model FLOPs utilization (PaLM): `flops` of the batch as a share of what all devices could do in a step."""
    seconds = sum(step_time(model, plan, machine).values())
    return flops(model, plan.batch * model.sequence) / (plan.world * machine.peak * seconds)


# Choosing


AXES = ("dp", "shard", "tp", "pp", "cp", "ep")


def plans(
    model: Model,
    gpus: int,
    machine: Machine,
    batch: int,
    like: Plan | None = None,
    choose: Collection[str] = (*AXES, "micro_batch", "recompute"),
) -> list[Choice]:
    """All ways to train a model with this global batch: first those that can be, the fastest first, then the rejected.

    `like` has the settings of all plans: schedule, precision, and so on; and of what is not in `choose`.
    """
    like = replace(like or Plan(batch), batch=batch)
    found = [judge(model, plan, machine) for plan in layouts(model, gpus, like, choose)]
    return sorted(found, key=rank_of)


def rank_of(choice: Choice) -> tuple[bool, float]:
    return bool(choice.rejected), sum(choice.seconds.values()) or math.inf


def layouts(model: Model, gpus: int, like: Plan, choose: Collection[str]) -> Iterator[Plan]:
    """Every way to write `gpus` as a product of the axes' sizes, and every setting of each."""

    def sizes(axis: str, ranks: int) -> list[int]:
        return divisors(ranks) if axis in choose else [getattr(like, axis)]

    for tp, pp, cp in itertools.product(sizes("tp", gpus), sizes("pp", gpus), sizes("cp", gpus)):
        if gpus % (tp * pp * cp):
            continue
        replicas = gpus // (tp * pp * cp)
        for shard in sizes("shard", replicas):
            if replicas % shard == 0 and ("dp" in choose or replicas == shard * like.dp):
                layout = replace(like, tp=tp, pp=pp, cp=cp, shard=shard, dp=replicas // shard)
                eps = sizes("ep", replicas) if model.experts else [1]
                for ep, micro_batch, recompute in itertools.product(eps, *settings(layout, choose)):
                    yield replace(layout, ep=ep, micro_batch=micro_batch, recompute=recompute)


def settings(layout: Plan, choose: Collection[str]) -> tuple[list[int], list[str]]:
    """Micro-batches, powers of two, and ways to compute again."""
    of_rank = max(1, layout.batch // layout.replicas)
    micro_batches = [2**power for power in range(of_rank.bit_length())]
    ways = ["none", "full"] if layout.fused_attention else ["none", "selective", "full"]
    return (
        micro_batches if "micro_batch" in choose else [layout.micro_batch],
        ways if "recompute" in choose else [layout.recompute],
    )


def divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def judge(model: Model, plan: Plan, machine: Machine) -> Choice:
    """A plan with what it costs, and why it cannot be."""
    if reason := does_not_divide(model, plan):
        return Choice(plan, reason, {}, {})
    held, seconds = memory(model, plan), step_time(model, plan, machine)
    reason = ""
    if sum(held.values()) > USABLE * machine.memory:
        kinds = ", ".join(f"{kind} {count / 1e9:.1f}" for kind, count in held.items() if count)
        reason = f"memory: {sum(held.values()) / 1e9:.1f} GB of {USABLE * machine.memory / 1e9:.1f} ({kinds})"
    else:
        axis = max(("tp", "cp", "ep", "pp", "data"), key=seconds.__getitem__)
        if seconds[axis] > sum(seconds.values()) / 2:
            reason = f"network: {axis} sends for {seconds[axis]:.2f} s of a step of {sum(seconds.values()):.2f} s"
    return Choice(plan, reason, held, seconds)


def does_not_divide(model: Model, plan: Plan) -> str:
    """Why a plan is none: the first thing that cannot be divided; "" if all can."""
    m, stages = plan.micro_batches, plan.pp * (plan.chunks if plan.pp > 1 else 1)
    cuts = [
        (model.heads, plan.tp * (plan.cp if plan.context == "ulysses" else 1), "heads", "tp"),
        (model.sequence, plan.cp * (plan.tp if plan.sequence_parallel != "off" else 1), "tokens", "cp and tp"),
        (plan.batch, plan.replicas * plan.micro_batch, "sequences", "dp · shard micro-batches"),
        (model.layers, stages, "layers", "stages"),
        (plan.replicas, plan.ep, "data-parallel ranks", "ep"),
        (model.experts, plan.ep, "experts", "ep"),
    ]
    for number, by, what, whom in cuts:
        if number % by:
            return f"divisibility: {number} {what} by {by} ({whom})"
    if plan.pp > 1 and plan.schedule == "interleaved" and m % plan.pp:
        return f"divisibility: {m} micro-batches by {plan.pp} stages (interleaved)"
    if plan.pp > 1 and m < plan.pp:
        return f"divisibility: {m} micro-batch{'es' if m > 1 else ''} for {plan.pp} stages"
    return ""
