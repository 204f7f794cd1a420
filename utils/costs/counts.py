"""Parameters, FLOPs, and each rank's part of them.

The head counts as a product, tied or not; the table of embeddings is only looked up.
"""

from functools import cache

from utils.plan import Model, Plan

TAUGHT_IN = "10_strategy"


def parameters(model: Model) -> int:
    """All parameters: the embeddings of words and positions, the blocks, the last norm, the head."""
    dense, experts = block_parameters(model)
    blocks = model.layers * dense + mixtures(model) * experts + model.dense * mlp_parameters(model)
    head = 0 if model.tied else model.vocabulary * model.hidden
    embeddings = (model.vocabulary + positions(model)) * model.hidden
    return embeddings + blocks - unshared(model) + norm_parameters(model) + head


def active_parameters(model: Model) -> int:
    """Those that a token uses: of a mixture without the experts that it does not go to."""
    idle = (model.experts - model.active) * expert_parameters(model) if model.experts else 0
    return parameters(model) - mixtures(model) * idle


def mixtures(model: Model) -> int:
    """Blocks with experts."""
    return model.layers - model.dense if model.experts else 0


def unshared(model: Model) -> int:
    """Parameters of routers and shared experts that the first blocks, which have an MLP instead, do not have."""
    return model.dense * (model.shared * expert_parameters(model) + model.experts * model.hidden)


def positions(model: Model) -> int:
    """Rows of the table of positions. Rotary positions are computed."""
    return model.sequence if model.block == "gpt" else 0


def norm_parameters(model: Model) -> int:
    """Parameters of one norm: LayerNorm has weights and biases, RMSNorm weights."""
    return (2 if model.block == "gpt" else 1) * model.hidden


def attention_parameters(model: Model) -> int:
    """Parameters of the products for queries, keys, values and the output."""
    h, out = model.hidden, model.hidden * model.attended
    if not model.key_latent:
        return h * (model.queries + model.keys + model.values) + out
    latents = h * (model.query_latent + model.key_latent + model.rotary)
    queries = (model.query_latent or h) * model.queries
    return latents + queries + model.key_latent * (model.values + model.attended) + out


def mlp_parameters(model: Model) -> int:
    """Of one MLP."""
    return model.matrices * model.hidden * model.inner


def expert_parameters(model: Model) -> int:
    """Of one expert."""
    return model.matrices * model.hidden * (model.expert or model.inner)


def small_parameters(model: Model) -> int:
    """Parameters of a block's norms and router, which no axis splits."""
    latents = model.query_latent + model.key_latent
    return (1 if model.parallel else 2) * norm_parameters(model) + model.experts * model.hidden + latents


def block_parameters(model: Model) -> tuple[int, int]:
    """Parameters of one block: those that every token needs, and all experts'."""
    shared = attention_parameters(model) + small_parameters(model)
    if not model.experts:
        return shared + mlp_parameters(model), 0
    return shared + model.shared * expert_parameters(model), model.experts * expert_parameters(model)


def block_products(model: Model) -> int:
    """Parameters of a block that a token is multiplied by: no norms, and only the active experts."""
    if not model.experts:
        return attention_parameters(model) + mlp_parameters(model)
    experts = (model.active + model.shared) * expert_parameters(model)
    return attention_parameters(model) + experts + model.experts * model.hidden


def matmul_parameters(model: Model) -> int:
    """Parameters of the whole model that a token is multiplied by."""
    first = attention_parameters(model) + mlp_parameters(model)
    return (model.layers - model.dense) * block_products(model) + model.dense * first + model.vocabulary * model.hidden


def flops(model: Model, tokens: float) -> float:
    """FLOPs of forward and backward pass: 6 times `matmul_parameters`, plus 12 L h s for attention, per token.

    A parameter takes a multiplication and an addition in the forward pass, and twice as much in the backward pass.
    Attention's scores are counted without a causal mask, as is usual (PaLM, appendix B; PTD-P, section 5.1, has the
    same and a third more, for recomputing). Recomputation is not counted.
    """
    attention = 12 * model.layers * model.scored * model.sequence
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
    experts (a mean, where the first blocks have none), and outside the blocks.

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
    if model.dense and stage == 0:
        blocks = layers_of(model, plan, 0)
        plain = min(1.0, model.dense / blocks)
        dense += plain * (mlp_parameters(model) - unshared(model) / model.dense)
        experts *= 1 - plain
    return (dense - small) / t + small, experts / (t / plan.folded * plan.ep), rest


def held_parameters(model: Model, plan: Plan, stage: int) -> float:
    """Parameters of a pipeline's rank, before `shard` and `cp` divide them."""
    dense, experts, rest = parts(model, plan, stage)
    return layers_of(model, plan, stage) * (dense + experts) + rest


def own_parameters(model: Model, plan: Plan, stage: int) -> float:
    """Parameters of a pipeline's rank whose optimizer's state it has."""
    dense, experts, rest = parts(model, plan, stage)
    layers, divided = layers_of(model, plan, stage), plan.zero > 0
    shared = (layers * dense + rest) / (plan.sharers if divided else 1)
    return shared + layers * experts / (plan.expert_sharers if divided else 1)
