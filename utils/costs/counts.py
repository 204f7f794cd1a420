"""Parameters, FLOPs, and each rank's part of them.

The head counts as a product, tied or not; the table of embeddings is only looked up.
"""

from functools import cache

from utils.plan import Model, Plan

TAUGHT_IN = "10_strategy"


def parameters(model: Model) -> int:
    """All parameters: the embeddings of words and positions, the blocks, the last norm, the head."""
    dense, experts = block_parameters(model)
    head = 0 if model.tied else model.vocabulary * model.hidden
    embeddings = (model.vocabulary + positions(model)) * model.hidden
    return embeddings + model.layers * (dense + experts) + norm_parameters(model) + head


def positions(model: Model) -> int:
    """Rows of the table of positions. Rotary positions are computed."""
    return model.sequence if model.block == "gpt" else 0


def norm_parameters(model: Model) -> int:
    """Parameters of one norm: LayerNorm has weights and biases, RMSNorm weights."""
    return (2 if model.block == "gpt" else 1) * model.hidden


def attention_parameters(model: Model) -> int:
    """Parameters of the products for queries, keys, values and the output."""
    return model.hidden * (2 * model.queries + 2 * model.keys)


def mlp_parameters(model: Model) -> int:
    """Of one MLP."""
    return model.matrices * model.hidden * model.inner


def small_parameters(model: Model) -> int:
    """Parameters of a block's norms and router, which no axis splits."""
    return (1 if model.parallel else 2) * norm_parameters(model) + model.experts * model.hidden


def block_parameters(model: Model) -> tuple[int, int]:
    """Parameters of one block: those that every token needs, and all experts'."""
    shared = attention_parameters(model) + small_parameters(model)
    if not model.experts:
        return shared + mlp_parameters(model), 0
    return shared, model.experts * mlp_parameters(model)


def block_products(model: Model) -> int:
    """Parameters of a block that a token is multiplied by: no norms, and only the active experts."""
    mlps = mlp_parameters(model) * (model.active if model.experts else 1)
    return attention_parameters(model) + mlps + model.experts * model.hidden


def matmul_parameters(model: Model) -> int:
    """Parameters of the whole model that a token is multiplied by."""
    return model.layers * block_products(model) + model.vocabulary * model.hidden


def flops(model: Model, tokens: float) -> float:
    """FLOPs of forward and backward pass: 6 times `matmul_parameters`, plus 12 L h s for attention, per token.

    A parameter takes a multiplication and an addition in the forward pass, and twice as much in the backward pass.
    Attention's scores are counted without a causal mask, as is usual (PaLM, appendix B; PTD-P, section 5.1, has the
    same and a third more, for recomputing). Recomputation is not counted.
    """
    attention = 12 * model.layers * model.queries * model.sequence
    return tokens * (6 * matmul_parameters(model) + attention)


# What a rank has


def layers_of(model: Model, plan: Plan, stage: int) -> int:
    """Blocks of a pipeline's rank. If there is a remainder, the first and last stage have fewer: they hold the
    tables."""
    each, more = divmod(model.layers, plan.pp)
    last = plan.pp - 1
    turn = last if stage == last else last - 1 if stage == 0 else stage - 1  # the middle first, then 0, then the last
    return each + (turn < more)


def most_layers(model: Model, plan: Plan) -> int:
    """Blocks of the rank that has the most."""
    return -(-model.layers // plan.pp)


@cache
def parts(model: Model, plan: Plan, stage: int) -> tuple[float, float, float]:
    """Parameters of a pipeline's rank after splitting over tp and ep: of one block without experts, of one block's
    experts, and outside the blocks.

    Tensor parallel cuts all matrices, the embeddings and the head by words (Megatron, section 3); norms and positions
    are on every rank.
    """
    h, t = model.hidden, plan.tp
    dense, experts = block_parameters(model)
    small = small_parameters(model)
    rest = 0.0
    if stage == 0:
        rest += model.vocabulary * h / t + positions(model) * h
    if stage == plan.pp - 1:
        rest += norm_parameters(model) + (0 if model.tied and plan.pp == 1 else model.vocabulary * h / t)
    return (dense - small) / t + small, experts / (t * plan.ep), rest


def held_parameters(model: Model, plan: Plan, stage: int) -> float:
    """Parameters of a pipeline's rank, before `shard` divides them."""
    dense, experts, rest = parts(model, plan, stage)
    return layers_of(model, plan, stage) * (dense + experts) + rest
