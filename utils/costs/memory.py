"""Bytes on a rank: model state, activations, and gathered buffers.

Where ranks differ, numbers are for the rank that has the most: it runs out of memory first. Rounding is ignored: a
shard of n numbers on N ranks is n / N.
"""

from utils.costs.counts import layers_of, parts
from utils.plan import Model, Plan

TAUGHT_IN = "10_strategy"


def memory(model: Model, plan: Plan, stage: int | None = None) -> dict[str, float]:
    """Bytes of a rank of a pipeline stage by kind, as in `moments`, at its peak; by default of the stage with the
    highest peak.
    """
    stages = {stage}
    if stage is None:
        # Later stages keep fewer micro-batches, but the second may have a block more; the last has the head.
        second = plan.pp > 1 and layers_of(model, plan, 1) > layers_of(model, plan, 0)
        stages = {0, int(second), plan.pp - 1}
    found = [kinds for stage in stages for kinds in moments(model, plan, stage).values()]
    return max(found, key=lambda kinds: sum(kinds.values()))


def moments(model: Model, plan: Plan, stage: int) -> dict[str, dict[str, float]]:
    """Bytes of a rank of this stage by kind, at four moments; one of them is the peak.

    "head": the last forward pass is over, and the loss is computed. "turn": the backward pass is in the last block,
    whose activations have been recomputed. "end": it is in the first block; gradients have replaced the activations.
    "step": the optimizer's step, when nothing else is left.

    Kinds: "weights", "gradients", "state" (the optimizer's), "activations" (kept for the backward pass, and their
    gradients), "gathered" (weights and gradients that are temporarily whole, though they are sharded), "logits".
    """
    size, layers = plan.bytes, layers_of(model, plan, stage)
    dense, experts, rest = parts(model, plan, stage)
    shared, own = layers * dense + rest, layers * experts

    def bytes_of(each: int, from_zero: int) -> float:
        """ZeRO, figure 1: divides what stage `from_zero` and higher stages shard."""
        return each * (shared / plan.sharers + own / plan.expert_sharers if plan.zero >= from_zero else shared + own)

    whole = 0.0  # gradients, before they are reduced to shards
    gradients = earlier = bytes_of(size.gradient, 2)
    if plan.shares and plan.pp > 1 and plan.micro_batches > 1:  # summed up whole, reduced once
        whole, earlier = shared + own, 0.0
    elif plan.micro_batches == 1 and (plan.shares or plan.copies == 1):  # DDP's buckets keep their place
        earlier = 0.0
    head = model.vocabulary * model.hidden / plan.tp if stage == plan.pp - 1 else 0.0
    block = dense + (experts if plan.expert_sharers > 1 else 0)
    in_passes = layers if plan.reshard == "none" else 0
    fetched = in_passes or min(layers, 2 if plan.overlap else 1)
    kept, of_block = activations(model, plan, stage), block_activations(model, plan, recompute="none")
    again = of_block - block_activations(model, plan)  # recomputed
    passing = stream_bytes(model, plan) * (1 + widest(model) / model.hidden / plan.tp)  # gradients of both
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
            "gradients": earlier
            or gradients - (size.gradient * (whole or rest) / plan.sharers if plan.shares else 0.0),
            "activations": of_block + passing,
            "gathered": gathered(plan, block + rest, whole or block + rest),
            "logits": 0.0,
        },
        "step": states | {"gradients": gradients, "activations": 0.0, "gathered": 0.0, "logits": 0.0},
    }


def gathered(plan: Plan, weights: float, gradients: float) -> float:
    """Bytes of this many weights and gradients that are temporarily whole, if ZeRO's stage shards them."""
    if not plan.shares:
        return 0.0
    if plan.zero < 3:
        return plan.bytes.gradient * gradients
    added_up = plan.pp > 1 and plan.micro_batches > 1  # FSDP adds whole gradients up in the type that it reduces
    return plan.bytes.gathered * weights + (plan.bytes.reduced if added_up else plan.bytes.gathered) * gradients


def tokens(model: Model, plan: Plan) -> float:
    """Tokens of a micro-batch that a rank sees: context parallel cuts each sequence."""
    return plan.micro_batch * model.sequence / plan.cp


def stream_bytes(model: Model, plan: Plan) -> float:
    """b s h numbers: the stream from block to block."""
    return tokens(model, plan) * model.hidden * plan.bytes.activation


def block_activations(model: Model, plan: Plan, recompute: str | None = None) -> float:
    """Bytes that one block keeps for a micro-batch's backward pass (Korthikanti, section 4).

    For a "gpt" block with 16 bits, dropout and unfused attention: s b h (10 + 24 / t + 5 a s / (h t)), their equation
    2. For a "llama" block, fused kernels keep only the operands of its products, and recompute norms and SwiGLU.
    """
    w, mask = plan.bytes.activation, int(plan.dropout)
    h, recompute = model.hidden, recompute or plan.recompute
    in_parts = plan.tp if plan.sequence_parallel != "off" else 1
    stream = 2 * w * h / in_parts  # the block's input, and what attention makes of it
    if recompute == "full":
        return tokens(model, plan) * stream / 2
    if recompute == "ops":
        return tokens(model, plan) * (stream / 2 + w * (model.attended + every_second(model)[0]) / plan.tp)
    whole = plan.tp if plan.sequence_parallel == "regather" else 1
    norms = 2 * plan.bytes.operand * h / whole  # what q, k, v and up are made from
    attention = w * (model.queries + model.keys + model.values + model.attended)  # the last is what comes out
    if model.key_latent:  # queries, and keys with values, are made again from what they were made from
        attention = w * (model.query_latent + model.key_latent + 2 * model.attended)
    width = model.expert if model.experts and model.expert else model.inner
    hidden = (w + plan.bytes.operand) * width  # before and after GELU
    if model.block == "llama":
        if plan.compiled:  # made again, but for what other ranks would have to send again
            norms = norms if plan.tp > 1 and plan.sequence_parallel == "keep" else 0.0
        else:
            norms += rms_copies(plan) * h / in_parts
        hidden = (2 if plan.compiled else 4) * w * width  # gate and up; and SiLU's result, and the product
    masks = 2 * mask * h / in_parts
    if model.experts:  # a row for each expert of a token: it goes in, through the products, and comes out
        row = plan.bytes.operand * h + (0 if plan.compiled else w * h)  # fused, it is weighted before it comes out
        hidden = rows_of_experts(model, plan) * (hidden + row) + model.shared * hidden
    scores = 0.0
    if not plan.fused_attention and recompute == "none":  # the softmax, its mask, and what dropout leaves
        scores = model.heads * model.sequence * (w + mask * (w + 1))
    return tokens(model, plan) * (stream + norms + masks + (attention + hidden + scores) / plan.tp)


def rows_of_experts(model: Model, plan: Plan) -> float:
    """Rows of a token, one for each of its experts; with a capacity, those that experts have places for."""
    return model.active * (plan.capacity or 1.0)


def widest(model: Model) -> float:
    """Numbers of a token inside a block's MLPs."""
    if not model.experts:
        return model.inner
    return (model.active + model.shared) * (model.expert or model.inner)


def rms_copies(plan: Plan) -> int:
    """Bytes that a block's two RMSNorms keep of a number beside their results, one operation at a time: with 16 bits
    the input in float32, and the normalized one.
    """
    return 2 * (4 + 2) if plan.bytes.activation == 2 else 0


def every_second(model: Model) -> tuple[int, int]:
    """Of a block's products, and each of them gives results of some width: the widths that torchtitan's selective
    checkpointing keeps, which are every second one's, added up; and the parameters of those computed again.
    """
    h, f, q, k = model.hidden, widest(model), model.attended, model.keys
    if model.block == "llama":  # q, k, v, out, gate, up, down
        return q + k + f + h, h * (k + q + f)
    return (q + 2 * k) + f, h * (q + f)  # q k v in one, out, up, down


def activations(model: Model, plan: Plan, stage: int) -> float:
    """Activation bytes in all blocks of a rank, for all micro-batches that wait for their backward pass; and in the
    last norm."""
    here = max(0, layers_of(model, plan, stage) - plan.offload)
    kept = here * block_activations(model, plan) * alive(plan, stage)
    if stage == plan.pp - 1:
        stream = stream_bytes(model, plan)
        before = stream / (plan.tp if plan.sequence_parallel != "off" else 1)
        after = stream / (plan.tp if plan.sequence_parallel == "regather" else 1)
        kept += alive(plan, stage) * (before + after)
    return kept


def alive(plan: Plan, stage: int) -> float:
    """The most activations that a rank keeps, as a multiple of one micro-batch's in all its layers.

    1F1B: PTD-P, section 2.2.1; interleaved: Korthikanti, section 4.2.3; zero bubble H1: as much as 1F1B's first stage.
    """
    p, m, v = plan.pp, plan.micro_batches, plan.chunks
    if p == 1:
        return 1
    if plan.schedule == "interleaved":
        return min(m * v, 2 * (p - 1 - stage) + (v - 1) * p + 1) / v
    return {"gpipe": m, "1f1b": min(m, p - stage), "zero-bubble": min(m, p)}[plan.schedule]


def logits(model: Model, plan: Plan) -> float:
    """Bytes of the head's results, while the last of them are computed or differentiated.

    In pieces, each piece is turned at once into gradients of the head and of its input; only these are kept, and in the
    backward pass they are scaled: for a moment there are two of each. Whole ones of 16 bits go through torch's loss in
    float32: its backward pass holds two more of them, and what the 16 bits took is too small for these, and stays with
    the allocator. `fused_loss` writes gradients in their place.
    """
    waiting, w = alive(plan, plan.pp - 1) * kept_logits(model, plan), plan.bytes.activation
    if plan.fused_loss:
        return waiting
    if plan.whole_logits:
        return waiting + (5 / 2 * kept_logits(model, plan) if w == 2 else 0.0)
    piece = min(plan.piece, tokens(model, plan) * model.vocabulary / plan.tp) * (4 if w == 4 else 4 + w)
    return waiting + max(piece, kept_logits(model, plan))


def kept_logits(model: Model, plan: Plan) -> float:
    """Bytes of a micro-batch's logits that are kept for the backward pass."""
    words, rows = model.vocabulary / plan.tp, tokens(model, plan)
    if plan.fused_loss:
        return rows * words * plan.bytes.activation
    if plan.whole_logits:
        return rows * words * 4  # in float32 (Korthikanti, section 4.3)
    return (4 * words + plan.bytes.activation * rows) * model.hidden
