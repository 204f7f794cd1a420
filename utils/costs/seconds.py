"""The time of a step, by kind of work.

The speed of a device depends on the work. A product takes the time of its FLOPs at a fraction of the peak, plus the
time of its matrices at a fraction of the memory's bandwidth: so small products are slower. All other operations only
read and write memory. A message takes the time of its bytes at a fraction of the link's bandwidth, and a latency for
each step of its ring or tree. Only these three fractions are fitted, and all else is counted;
`utils/costs/published.py` says on which runs they were fitted.
"""

import math
from dataclasses import replace
from typing import NamedTuple

from utils.costs.counts import (
    attention_parameters,
    block_products,
    expert_parameters,
    flops,
    layers_of,
    mlp_parameters,
    most_layers,
    own_parameters,
)
from utils.costs.memory import every_second, rows_of_experts, tokens, widest
from utils.costs.messages import Sent, messages
from utils.plan import Link, Machine, Model, Plan

TAUGHT_IN = "10_strategy"


def step_time(model: Model, plan: Plan, machine: Machine) -> dict[str, float]:
    """Seconds of a step by kind; their sum is the step.

    "products" (of matrices), "traffic" (what only reads and writes memory: norms, GELU, softmax, …), "recompute", then
    messages: "tp", "cp" (a ring hides some), "ep", "pp", "data" (what nothing hides of shard and dp); and "launch" (of
    kernels, in mixtures), "bubble", "optimizer".
    """
    m, block, head = plan.micro_batches, block_seconds(model, plan, machine), head_seconds(model, plan, machine)
    layers, heads = slowest_stage(model, plan, block, head)
    counted = messages(model, plan)
    sent = {axis: seconds_of(axis, each, plan, machine) for axis, each in counted.items()}
    sent["ep"] = all_to_all_seconds(model, counted["ep"], plan, machine)
    # Messages that overlap with computing are read from memory and written to it, and use its bandwidth meanwhile.
    passing_by = 2 * (counted["shard"].bytes + counted["dp"].bytes) if plan.overlap else 0.0
    passing_by /= machine.memory_bandwidth * machine.memory_share
    forward = layers * (block["products"] + block["traffic"])
    backward = layers * (block["products back"] + block["traffic back"] + block["recompute"])
    if plan.context == "ring" and plan.overlap:  # keys and values pass on while those at hand are used
        sent["cp"] = max(0.0, sent["cp"] - m * layers * block["attention"])
    beside = m * layers * (block["products"] + block["products back"] - block["attention"])
    if plan.overlap_tp:  # in t pieces: one waits, the others overlap with products, which are slower in pieces
        hidden = sent["tp"] * (1 - 1 / plan.tp) * machine.reached.hidden
        sent["tp"] -= min(hidden, beside)
    if plan.overlap_ep:
        sent["ep"] = max(0.0, sent["ep"] - m * (forward + backward))
    passing = sent["tp"] + sent["cp"] + sent["ep"]  # within the passes, of all micro-batches
    launch = 0.0  # the device waits for its processor, which in dropless blocks waits for the numbers of rows, too
    if model.experts and not plan.fused_experts:
        launches = m * layers * machine.reached.launch / (2 if plan.capacity else 1)
        launch = max(0.0, launches - m * (forward + backward) - passing)
    passing += launch
    one = forward + backward + passing / m  # micro-batch, of all layers of a rank
    split = (forward + passing / m / 2, one / 2 - forward / 2, one / 2 - forward / 2)
    seconds = {
        "products": m * (layers * (block["products"] + block["products back"]) + heads * head["products"]),
        "traffic": m * (layers * (block["traffic"] + block["traffic back"]) + heads * head["traffic"]) + passing_by,
        "recompute": m * layers * block["recompute"],
        "tp": sent["tp"],
        "cp": sent["cp"],
        "ep": sent["ep"],
        "launch": launch,
        "pp": sent["pp"] * ((0 if plan.overlap_pp else m) + (plan.pp - 1) / plan.chunks) / m,
        "bubble": waits(plan, split) if plan.pp > 1 else 0.0,
        "optimizer": optimizer_seconds(model, plan, machine),
    }
    return seconds | {"data": exposed(plan, sent, m * one, forward, backward, layers)}


def slowest_stage(model: Model, plan: Plan, block: dict[str, float], head: dict[str, float]) -> tuple[int, int]:
    """Blocks and heads of the stage that all others wait for: the last, which has the head, or one with more blocks."""
    last, most = layers_of(model, plan, plan.pp - 1), most_layers(model, plan)
    one = sum(block.values()) - block["attention"]
    return (last, 1) if last * one + sum(head.values()) >= most * one else (most, 0)


# Computing


def block_seconds(model: Model, plan: Plan, machine: Machine) -> dict[str, float]:
    """Seconds of one block and micro-batch: products and traffic of the forward pass, of the backward pass, and what
    that recomputes. Of the products, attention's.
    """
    rows, speed = tokens(model, plan), machine.memory_bandwidth * machine.memory_share
    dense = all_products(model, plan, machine)
    attention, attention_back = attention_seconds(model, plan, machine)
    passes, scores = passes_of_block(model, plan), passes_of_scores(model, plan)
    traffic, traffic_back = (rows * (one + other) / speed for one, other in zip(passes, scores, strict=True))
    again = {
        "none": 0.0,
        "selective": 0.0 if plan.fused_attention else attention + rows * scores.forward / speed,
        "ops": dense * every_second(model)[1] / block_products(model) + rows * passes.forward / speed,
        "full": dense + attention + traffic,
    }[plan.recompute]
    if plan.recompute == "full" and plan.early_stop:  # the last product's result is needed by nothing
        again -= dense * mlp_parameters(model) / model.matrices / block_products(model)
    return {
        "products": dense + attention,
        "products back": 2 * dense + attention_back,
        "attention": attention + attention_back,
        "traffic": traffic,
        "traffic back": traffic_back,
        "recompute": again,
    }


EDGE = 880  # tokens


def attention_seconds(model: Model, plan: Plan, machine: Machine) -> tuple[float, float]:
    """Of attention's two products in the forward pass, and of four, or fused five, in the backward pass.

    Fused, it leaves out what the mask hides, half of it. Short sequences are slower: a kernel's first and last blocks
    are not full, and half of the blocks at the mask's edge is wasted. On an H100, FlashAttention-3 makes 616
    TFLOP/s with the mask where it makes 649 without, with 16,384 tokens (arXiv:2407.08608, figure 5): as if a sequence
    had 880 more. Backward it reaches 63 % of the peak where the forward pass reaches 73 % (arXiv:2307.08691). In
    Triton, FlashAttention is 1.5 times slower than in its second version (the same, section 4.1).
    """
    work = 4 * tokens(model, plan) * model.sequence * model.scored / plan.tp
    if not plan.fused_attention:
        seconds = work / (machine.peak * machine.device_share)
        return seconds, 2 * seconds
    shares = {"triton": machine.flash2 / 1.5, "flash2": machine.flash2, "tuned": machine.attention}
    speed = machine.peak * shares[plan.attention] * machine.reached.attention
    if plan.cp > 1 and plan.context == "ring":
        speed *= machine.reached.ring
    seconds = work / 2 * (1 + EDGE / model.sequence) / speed
    return seconds, 5 / 2 * 73 / 63 * seconds


def all_products(model: Model, plan: Plan, machine: Machine) -> float:
    """The forward pass of a block's matrix products, without attention's."""
    h, t, w, rows = model.hidden, plan.tp, plan.bytes.activation, tokens(model, plan)
    # Numbers of a token that the products read and write.
    attended = 2 * h + (model.queries + model.keys + model.values + model.attended) / t
    if not model.experts:
        numbers = attended + 2 * h + model.inner * model.matrices / t
        return product_seconds(block_products(model) / t, rows, numbers, w, machine, plan.fp8)
    width = model.expert or model.inner
    always = attention_parameters(model) + model.shared * expert_parameters(model) + model.experts * h
    numbers = attended + 2 * h * min(1, model.shared) + model.shared * width * model.matrices / t
    seconds = product_seconds(always / t, rows, numbers, w, machine, plan.fp8)
    cut = t / plan.folded  # ranks that have parts of the same expert
    own = model.experts / plan.ep * expert_parameters(model) / cut  # weights; each row needs a few of them
    rows *= rows_of_experts(model, plan) / plan.folded
    numbers = 2 * h + width * model.matrices / cut
    slower = replace(machine, device_share=machine.device_share * machine.reached.experts)
    experts = expert_parameters(model) / cut
    return seconds + product_seconds(experts, rows, numbers, w, slower, plan.fp8, own, plan.fused_experts)


class Passes(NamedTuple):
    """Bytes that a token has read and written, apart from the products."""

    forward: float
    backward: float


def passes_of_block(model: Model, plan: Plan) -> Passes:
    """Of norms, residuals, positions and the MLP's function, operation by operation.

    w bytes are read or written of a number. "gpt": a norm reads and writes the stream, a residual reads two and writes
    one; GELU reads and writes, and has its bias added. "llama": not fused, RMSNorm and rotary positions are some
    operations each, in float32 for 16 bits; fused, a residual and the norm after it are one pass.
    """
    w, h, t = plan.bytes.activation, model.hidden, plan.tp
    mask, norms = int(plan.dropout), 1 if model.parallel else 2
    in_parts = t if plan.sequence_parallel != "off" else 1
    inner = widest(model) / t
    rotated = (model.queries + model.keys) / t
    if model.key_latent:  # each head's two parts are put together
        rotated *= 2
    # Rows are sorted by their experts, and back again; each time they are read and written, if not by products.
    moved = (2 if plan.fused_experts else 4) * w * h * rows_of_experts(model, plan) / plan.folded
    moved *= bool(model.experts)
    if model.block == "gpt":
        forward = norms * (5 * w + mask) * h / in_parts + 2 * w * inner
        backward = norms * (4 * w + mask * (2 * w + 1)) * h / in_parts + 3 * w * inner
        return Passes(forward + moved, backward + moved)
    if plan.compiled:  # norm: read two, write two; rotate: in place; SwiGLU: read two, write one; back: two and two
        forward = norms * 4 * w * h / in_parts + 2 * w * rotated + 3 * w * inner
        backward = norms * 5 * w * h / in_parts + 2 * w * rotated + 5 * w * inner
        return Passes(forward + moved, backward + moved)
    casts = 2 * (w + 4) if w < 4 else 0  # to float32 and back
    norm = casts + 8 + 4 + 8 + 2 * w  # square, mean, scale, times the weight
    rotate = casts + 8
    forward = norms * (norm + 3 * w) * h / in_parts + rotate * rotated + 5 * w * inner
    backward = norms * (2 * norm + 3 * w) * h / in_parts + rotate * rotated + 9 * w * inner
    return Passes(forward + moved, backward + moved)


def passes_of_scores(model: Model, plan: Plan) -> Passes:
    """Of attention's scores, where they are written: softmax and dropout read and write them; back, twice as many
    products do, too.
    """
    if plan.fused_attention:
        return Passes(0.0, 0.0)
    w, mask = plan.bytes.activation, int(plan.dropout)
    scores = model.heads * model.sequence / plan.tp
    return Passes(scores * (4 * w + mask * (2 * w + 1)), scores * (7 * w + mask * (2 * w + 1)))


def product_seconds(
    parameters: float,
    rows: float,
    numbers: float,
    w: int,
    machine: Machine,
    fp8: bool,
    weights: float = 0.0,
    fused: bool = False,
) -> float:
    """The forward pass of products with so many parameters, whose operands and results have so many numbers a row. If
    rows go to different experts, all their `weights` are read, which are more.

    As if it first moved its matrices, then computed: smooth where the roofline (Williams et al. 2009), which takes the
    longer of the two, has its edge. In 8 bits the speed is higher, but what goes in (half the numbers) is read once
    more for its largest number, and read and written to be cast (arXiv:2209.05433; torchao's float8). Weights are cast
    once a step, as shards. `fused`: the operation before writes them so.
    """
    speed, peak = machine.memory_bandwidth * machine.memory_share, machine.peak
    weights = weights or parameters
    nbytes = w * (weights + rows * numbers)
    if fp8 and machine.peak_fp8:
        peak = machine.peak_fp8 * machine.reached.fp8
        nbytes = weights + ((1 if fused else 2 * w + 2) + w) * rows * numbers / 2
    return 2 * rows * parameters / (peak * machine.device_share) + nbytes / speed


def head_seconds(model: Model, plan: Plan, machine: Machine) -> dict[str, float]:
    """Seconds of the head and its loss, of one micro-batch, on the rank that has them.

    The softmax and its gradient go over the logits about eight times in float32; fused, three.
    """
    rows, words, w = tokens(model, plan), model.vocabulary / plan.tp, plan.bytes.activation
    passes = (3 if plan.compiled else 8) * 4 * rows * words
    product = product_seconds(words * model.hidden, rows, model.hidden + words, w, machine, fp8=False)
    return {"products": 3 * product, "traffic": passes / (machine.memory_bandwidth * machine.memory_share)}


def optimizer_seconds(model: Model, plan: Plan, machine: Machine) -> float:
    """Memory sets its pace. It reads gradients three times, for clipping too; state and weights it reads and writes."""
    size = plan.bytes
    own = own_parameters(model, plan, 0)
    each = 3 * size.gradient + 2 * size.state + 2 * size.weight
    return own * each / (machine.memory_bandwidth * machine.memory_share)


# Waiting


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


def ranks_of(axis: str, plan: Plan) -> tuple[int, int]:
    """Ranks of a line of this axis, and how far apart two neighbours are, in the order of ranks that `Plan` has."""
    strides = {"tp": 1, "cp": plan.tp, "shard": plan.tp, "dp": plan.tp * plan.sharers}
    strides |= {"ep": plan.tp // plan.folded, "pp": plan.world // plan.pp}
    sizes = {"tp": plan.tp, "cp": plan.cp, "shard": plan.sharers, "dp": plan.copies, "ep": plan.ep, "pp": plan.pp}
    return sizes[axis], strides[axis]


def link_of(axis: str, plan: Plan, machine: Machine) -> Link:
    """What a rank of this axis sends over.

    A ring that leaves the node crosses its edge once for each member that it has there, with as many network adapters.
    """
    size, stride = ranks_of(axis, plan)
    if stride * size <= machine.node:
        return machine.inside
    if axis in ("pp", "ep"):
        return machine.between
    neighbours = max(1, min(size, machine.node // stride))
    return Link(min(machine.inside.bandwidth, neighbours * machine.between.bandwidth), machine.between.latency)


def seconds_of(axis: str, sent: Sent, plan: Plan, machine: Machine) -> float:
    """Bytes over the link, and latencies: of a ring's steps; sums over many ranks take a double binary tree's (Sanders
    et al. 2009, as in NCCL), twice its depth.
    """
    link = link_of(axis, plan, machine)
    steps = sent.messages
    if axis == "dp" and (ranks := plan.copies) > 1:
        steps *= min(1.0, math.ceil(math.log2(ranks)) / (ranks - 1))
    return steps * link.latency + sent.bytes / (link.bandwidth * machine.link_share)


def all_to_all_seconds(model: Model, sent: Sent, plan: Plan, machine: Machine) -> float:
    """Rows for experts of the same node, and for the others, each over their own link at the same time. Each rank has
    one adapter for what leaves the node.
    """
    if plan.ep == 1:
        return 0.0
    size, stride = ranks_of("ep", plan)
    here = max(1, min(size, machine.node // stride))  # members of its node
    away = sent.bytes * (size - here) / (size - 1)
    within = sent.bytes - away
    if plan.once_per_node and away:  # then the links inside carry those rows on
        within = sent.bytes * (here - 1) / here * size / (size - 1)
        nodes = size / here
        visited = nodes * (1 - (1 - 1 / nodes) ** model.active)
        away *= min(visited, model.nodes or visited) / model.active
    seconds = max(within / machine.inside.bandwidth, away / machine.between.bandwidth) / machine.link_share
    return seconds + sent.messages * (machine.between if away else machine.inside).latency


def exposed(
    plan: Plan, sent: dict[str, float], computing: float, forward: float, backward: float, layers: int
) -> float:
    """Seconds of the data-parallel messages that nothing hides.

    Stage 3 gathers and reduces a block while others compute, in every micro-batch; all else is sent once: gradients
    while the last micro-batch goes back, and stage 1's and 2's new weights while the first goes forward. Where a rank
    has several chunks, that is p micro-batches in all but one of them. The last unit of all is waited for.
    """
    if not plan.overlap:
        return sent["shard"] + sent["dp"]
    throughout = sent["shard"] if plan.zero == 3 else 0.0
    at_the_end = sent["shard"] + sent["dp"] - throughout
    last = (throughout / plan.micro_batches + at_the_end) / (layers + 1)
    beside = (backward + (forward if plan.zero in (1, 2) else 0.0)) * (1 + plan.pp * (1 - 1 / plan.chunks))
    return max(0.0, throughout - computing) + max(0.0, at_the_end - beside) + last


def share_of_peak(model: Model, plan: Plan, machine: Machine) -> float:
    """MFU, model FLOPs utilization (PaLM): `flops` of the batch as a share of what all devices could do in a step."""
    seconds = sum(step_time(model, plan, machine).values())
    return flops(model, plan.batch * model.sequence) / (plan.world * machine.peak * seconds)
