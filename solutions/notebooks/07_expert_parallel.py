# %% [markdown]
# # Experts: more weights, the same work
#
# A **mixture of experts** replaces one MLP by many, the *experts*, and a small *router* that
# selects one or two of them for each token ([arXiv:1701.06538](https://arxiv.org/abs/1701.06538)).
# With 64 experts, a layer has 64 times the weights, but a token is still computed by only one or two.
#
# ![A token's way through a block: the router gives it two of four experts, and their outputs are added by weight](../images/experts.svg)
#
# The weights must be stored somewhere. With **expert parallelism** each rank holds some of the experts
# and has its own tokens, as in data-parallel training. Each token travels to the ranks that
# hold its experts, and the results travel back. In this lesson you build that exchange, forward and backward,
# and train the course's model with it. As always, the parallel run is the serial run.
#
# *Builds on*: the all-to-all (`01_collectives`); averaged gradients and unequal shares (`02_data_parallel`).

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import sys
from pathlib import Path

here = Path.cwd().resolve()
course = next(folder for folder in (here, *here.parents) if (folder / "grader").is_dir())
sys.path.insert(0, str(course))

from grader import check

# %%
import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from grader import run_on_ranks
from utils.plots import expert_parallel as plots
from utils.model import MLP, TransformerLM

# %% [markdown]
# Shapes are in the names: N tokens, D width, E experts, K experts per token, W ranks, L
# experts on a rank ($E = WL$), and R rows: one for each token and expert that it is sent to.

# %% [markdown]
# ## Route
#
# The router is one matrix. It gives each token a logit for each expert; softmax turns logits into probabilities
# $p$, and the K most probable experts are chosen. Their outputs are added up, each times its **gate**:
#
# - $K = 1$, as in the Switch Transformer ([arXiv:2101.03961](https://arxiv.org/abs/2101.03961)): the gate is
#   the probability $p$ of the expert itself. (If it were always 1, the router could not learn.)
# - $K > 1$, as in Mixtral ([arXiv:2401.04088](https://arxiv.org/abs/2401.04088)): the chosen probabilities,
#   divided by their sum, so that the gates of a token sum to 1.
#
# Two things make a router fragile. In bfloat16, logits that differ become equal, so the router works in **float32**,
# whatever the dtype of the tokens. And if logits *are* equal, the choice must not depend on the machine: here the
# expert with the lower number comes first. `torch.topk` does not promise that. (Sort the logits, not the
# probabilities: far below the largest one, different logits all give the probability 0.)
#
# | call | meaning |
# |---|---|
# | `x.argsort(dim=-1, descending=True, stable=True)` | positions from the largest to the smallest; equal numbers keep their order |
# | `x.gather(1, index_NK)` | from each row the numbers in these columns; differentiable |
# | `x.softmax(dim=-1)` | probabilities; large logits do not overflow |


# %% nbgrader={"grade": false, "grade_id": "todo_1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def route(h_ND: Tensor, router_ED: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The router's choice for each token.

    Args:
        h_ND: tokens, of any floating dtype.
        router_ED: the router's matrix; logits are products of tokens with its rows.

    Returns:
        gates_NK: float32; experts_NK: int64, from the most to the least probable; probs_NE: float32, of
            all experts.
    """
    # TODO 1: Route each token to its k most probable experts. Gates and probabilities are
    # differentiable.
    ### BEGIN SOLUTION
    logits_NE = h_ND.float() @ router_ED.float().T
    probs_NE = logits_NE.softmax(dim=-1)
    experts_NK = logits_NE.argsort(dim=-1, descending=True, stable=True)[:, :k]
    gates_NK = probs_NE.gather(1, experts_NK)
    if k > 1:
        gates_NK = gates_NK / gates_NK.sum(dim=-1, keepdim=True)
    return gates_NK, experts_NK, probs_NE
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_1", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("07_expert_parallel/1")

# %% [markdown]
# ## Compute it on one process
#
# First the serial run, the reference for everything else: a loop over all experts. Each computes the tokens
# that chose it **and no others**, which is the point of a mixture. Its outputs, times their gates, are added to
# the results of those tokens.
#
# Two details will matter later. An expert of **-1** means "none": nothing is computed for that choice, and it
# adds nothing. And an expert that no token chose still computes, on zero rows. This costs nothing, and its gradient
# is then zero instead of missing, so that it can take part in an all-reduce.
#
# | call | meaning |
# |---|---|
# | `(experts_NK == e).nonzero(as_tuple=True)` | two vectors: the token and the choice of each match |
# | `out.index_add(0, index_R, rows_RD)` | a copy of `out` with each row added to row `index`; differentiable |


# %% nbgrader={"grade": false, "grade_id": "todo_2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def mixture(h_ND: Tensor, gates_NK: Tensor, experts_NK: Tensor, experts: Sequence[nn.Module]) -> Tensor:
    """The gated sum of each token's experts, (N, D), in the dtype of h. ``experts[e]`` maps (rows,
    D) to (rows, D).
    """
    # TODO 2: Compute the mixture on one process. Each expert is called once, even on zero rows.
    ### BEGIN SOLUTION
    out_ND = torch.zeros_like(h_ND)
    for number, expert in enumerate(experts):
        token_R, choice_R = (experts_NK == number).nonzero(as_tuple=True)
        gates_R1 = gates_NK[token_R, choice_R, None]
        out_ND = out_ND.index_add(0, token_R, (gates_R1 * expert(h_ND[token_R])).to(h_ND.dtype))
    return out_ND
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_2", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("07_expert_parallel/2")

# %% [markdown]
# ## Send tokens to their experts
#
# Now rank $r$ holds the experts $rL$ to $rL + L - 1$, and each rank has N tokens. A token and one of its choices make
# a **slot**: slot $nK + j$ is choice $j$ of token $n$. For each slot with an expert, a row is sent.
#
# ![Two ranks: rows are sorted by expert, exchanged, regrouped by expert, computed, and sent back the same way](../images/expert_dispatch.svg)
#
# 1. **Sort** the slots by expert. Then the rows for each rank are adjacent, and within them the rows for each expert.
# 2. **Exchange counts.** A receiver must know how many rows arrive before it can make room for them.
# 3. **Exchange rows**, with an all-to-all whose pieces have unequal lengths.
# 4. **Regroup.** Rows arrive sorted by source, and for each source by expert. The experts need the rows of all
#    sources together.
#
# The all-to-all of lesson 01 exists as one call. Its tensors are cut along the first dimension and must be contiguous
# in memory (`x.contiguous()`). (`dist.all_to_all`, with lists of tensors, cannot replace it: gloo refuses lists with
# pieces of unequal length.)
#
# | call | meaning |
# |---|---|
# | `dist.all_to_all_single(arriving, leaving, group=group)` | piece $j$ of `leaving` goes to rank $j$; all pieces have the same length |
# | `dist.all_to_all_single(arriving, leaving, rows_in, rows_out, group=group)` | lengths by rank, as lists: first of the arriving pieces, then of the leaving ones |
# | `dist.get_world_size(group)` | the number of ranks in the group; `None` stands for all |
# | `x.argsort(stable=True)` | where to find the smallest, the next, …; equal numbers keep their order |
# | `torch.bincount(x, minlength=E)` | how often each of the numbers 0, 1, 2, … occurs; x must not be negative |
# | `x.repeat_interleave(counts)` | each number as many times as its count says |
#
# Every rank makes every call, even if it has no token to send or receive: the others wait for it.


# %% nbgrader={"grade": false, "grade_id": "todo_3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def sort_slots(experts_NK: Tensor, n_experts: int) -> tuple[Tensor, Tensor]:
    """Slots sorted by expert, and each expert's slots in order; and the number of slots of each expert.

    Returns:
        slots_R: int64, numbers of slots, without those whose expert is -1. counts_E: int64.
    """
    # TODO 3: Bring every row to the rank that holds its expert. First, sort the slots.
    ### BEGIN SOLUTION
    experts_S = experts_NK.flatten()
    chosen = experts_S >= 0
    slots_R = experts_S.argsort(stable=True)[(~chosen).sum() :]
    return slots_R, torch.bincount(experts_S[chosen], minlength=n_experts)
    ### END SOLUTION


def exchange_counts(counts_E: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The number of rows that arrive from each rank of the group for each of my experts: int64 (W, L).

    ``counts_E`` is the number of rows that leave this rank for each expert.
    """
    # TODO 3, again: the counts. A rank learns only about its own experts.
    ### BEGIN SOLUTION
    arriving_E = torch.empty_like(counts_E)
    dist.all_to_all_single(arriving_E, counts_E, group=group)
    return arriving_E.view(dist.get_world_size(group), -1)
    ### END SOLUTION


def exchange_rows(
    rows_RD: Tensor, leaving: list[int], arriving: list[int], group: dist.ProcessGroup | None
) -> Tensor:
    """The arriving rows, by source. ``leaving[r]`` of my rows go to rank r,
    and ``arriving[r]`` rows come from it.
    """
    # TODO 3, again: the rows. Send nothing unnecessary: each row goes to one rank.
    # Rows may have any dtype, and need not be contiguous (gradients often are not).
    ### BEGIN SOLUTION
    arrived_RD = rows_RD.new_empty(sum(arriving), rows_RD.shape[1])
    dist.all_to_all_single(arrived_RD, rows_RD.contiguous(), arriving, leaving, group=group)
    return arrived_RD
    ### END SOLUTION


def regroup(arriving_WL: Tensor) -> Tensor:
    """The places, among the arrived rows, of the rows of my first expert, then of the next: int64
    (rows,).

    Rows arrive by source, and from each source by expert. Rows of one expert stay in the order of their
    sources.
    """
    # TODO 3, again: the order in which the experts need them. `arrived_RD[regroup(arriving_WL)]` is
    # sorted by expert.
    ### BEGIN SOLUTION
    W, L = arriving_WL.shape
    expert_R = torch.arange(L).repeat(W).repeat_interleave(arriving_WL.flatten())
    return expert_R.argsort(stable=True)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_3", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("07_expert_parallel/3")

# %% [markdown]
# ## Bring the results back
#
# The results return through the same exchange, with leaving and arriving swapped. But first the regrouping must be
# undone: results that return in the order of the experts, instead of the order in which the rows arrived, end at *the
# wrong tokens*. All shapes are right then, and all numbers wrong. Back on the token's rank, row $i$ belongs to slot
# `slots_R[i]`. It is multiplied by the gate of **that** slot and added to that slot's token.
#
# The backward pass is the same exchange in reverse. A collective of `torch.distributed` is invisible
# to autograd, so you must define its gradient: a row's gradient goes back to where the row came from.
# `torch.autograd.Function` does this: `Exchange.apply(rows_RD, leaving, arriving, group)` calls `forward`,
# and later autograd calls `backward` with the gradient of the result; it returns a gradient for each
# argument, and `None` for arguments without one.
#
# The gates are applied on the token's rank, where the router's logits are. So the gradient of a rank's logits
# includes the contributions of **all** experts to its tokens. Implementations that combine only the outputs of local
# experts lose the rest: the loss is right, and the router learns something else.


# %% nbgrader={"grade": false, "grade_id": "todo_4", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Exchange(torch.autograd.Function):
    """`exchange_rows`, with its gradient."""

    @staticmethod
    def forward(
        ctx, rows_RD: Tensor, leaving: list[int], arriving: list[int], group: dist.ProcessGroup | None
    ) -> Tensor:
        ctx.leaving, ctx.arriving, ctx.group = leaving, arriving, group
        return exchange_rows(rows_RD, leaving, arriving, group)

    @staticmethod
    def backward(ctx, grad_RD: Tensor) -> tuple[Tensor | None, ...]:
        # TODO 4: Combine the experts' results, and let gradients travel back. First, the gradient of an
        # exchange.
        ### BEGIN SOLUTION
        return exchange_rows(grad_RD, ctx.arriving, ctx.leaving, ctx.group), None, None, None
        ### END SOLUTION


def combine(returned_RD: Tensor, slots_R: Tensor, gates_NK: Tensor) -> Tensor:
    """Each token's gated sum, (N, D), in the dtype of the rows.
    Row i is the result for slot ``slots_R[i]``.
    """
    # TODO 4, again: the results that have returned. A token without a slot gets zeros.
    ### BEGIN SOLUTION
    N, K = gates_NK.shape
    gated_RD = gates_NK.flatten()[slots_R, None] * returned_RD
    sums_ND = returned_RD.new_zeros(N, returned_RD.shape[1])
    return sums_ND.index_add(0, slots_R // K, gated_RD.to(returned_RD.dtype))
    ### END SOLUTION


def parallel_mixture(
    h_ND: Tensor,
    gates_NK: Tensor,
    experts_NK: Tensor,
    mine: Sequence[nn.Module],
    group: dist.ProcessGroup | None,
) -> Tensor:
    """`mixture`, with the experts spread over the group: rank r holds ``mine``,
    the L experts from number r L on.
    """
    # TODO 4, again: the whole exchange. Each expert is called once.
    # Budget: the counts; and each row once to its expert, and once back.
    ### BEGIN SOLUTION
    K, world = experts_NK.shape[1], dist.get_world_size(group)
    slots_R, counts_E = sort_slots(experts_NK, world * len(mine))
    arriving_WL = exchange_counts(counts_E, group)
    leaving, arriving = counts_E.view(world, -1).sum(dim=1).tolist(), arriving_WL.sum(dim=1).tolist()
    rows_RD = Exchange.apply(h_ND[slots_R // K], leaving, arriving, group)
    order_R = regroup(arriving_WL)
    parts = rows_RD[order_R].split(arriving_WL.sum(dim=0).tolist())
    results_RD = torch.cat([expert(part) for expert, part in zip(mine, parts, strict=True)])
    returned_RD = Exchange.apply(results_RD[order_R.argsort()], arriving, leaving, group)
    return combine(returned_RD, slots_R, gates_NK)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_4", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("07_expert_parallel/4")

# %% [markdown]
# Look at a real exchange: four ranks with eight experts, and an untrained router. On the right are
# the bytes that each rank sends to each other rank in the forward and the backward pass.


# %%
def one_layer(_: None, rank: int, world: int) -> list[int]:
    """One mixture on this rank's tokens, forward and backward;
    returns the number of rows for each expert.
    """
    torch.manual_seed(0)
    dim, n_experts, k = 32, 2 * world, 2
    router_ED = torch.randn(n_experts, dim, requires_grad=True)
    experts = [MLP(dim) for _ in range(n_experts)][2 * rank : 2 * rank + 2]
    h_ND = torch.randn(100, dim, generator=torch.Generator().manual_seed(rank)).requires_grad_()
    gates_NK, experts_NK, _ = route(h_ND, router_ED, k)
    parallel_mixture(h_ND, gates_NK, experts_NK, experts, None).sum().backward()
    return torch.bincount(experts_NK.flatten(), minlength=n_experts).tolist()


# %%
run = run_on_ranks("07_expert_parallel/one_layer", [None] * 4)
plots.journey(run.results, run.collectives)

# %% [markdown]
# ## A limit on an expert's rows
#
# The tokens decide how many rows an expert gets. On some batches one expert gets half of them: its
# rank needs the memory for them, and all other ranks wait for it. Switch and GShard set a limit, the
# **capacity**: of its N tokens, a rank sends each expert at most
#
# $$C = \lceil \text{factor} \cdot NK / E \rceil$$
#
# rows, which is `factor` times an even share. Further slots are **dropped**. First choices come before second ones,
# and among equal choices earlier tokens before later ones. The gates of the remaining slots do not change. A token
# whose slots were all dropped gets zeros from the mixture; the block adds them to the residual stream, so the token
# passes through unchanged.
#
# ![Six tokens and three experts that take three rows each: first choices are placed first](../images/expert_capacity.svg)
#
# Each rank drops slots by its own counts. So the number of ranks determines which slots are kept, and a serial run
# equals the parallel run only if it drops slots in shares, as the ranks do.
#
# **Dropless** mixtures (MegaBlocks, [arXiv:2211.15841](https://arxiv.org/abs/2211.15841)) have no limit. Your
# exchange has pieces of any length, so it can do both. With equal pieces of C rows each, as in the first
# implementations, a capacity would be necessary.


# %% nbgrader={"grade": false, "grade_id": "todo_5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def capacity(tokens: int, k: int, n_experts: int, factor: float) -> int:
    """The number of rows that a rank with this many tokens may send to each expert."""
    # TODO 5: Drop slots beyond an expert's capacity. First, the capacity.
    ### BEGIN SOLUTION
    return math.ceil(factor * tokens * k / n_experts)
    ### END SOLUTION


def drop(experts_NK: Tensor, n_experts: int, limit: int) -> Tensor:
    """A copy of ``experts_NK`` with -1 for each slot beyond its expert's limit. An existing -1 stays."""
    # TODO 5, again: which slots are kept? First choices before second ones, earlier tokens before later
    # ones. `x.cumsum(dim=0)` adds up along the rows.
    ### BEGIN SOLUTION
    experts_KN = experts_NK.T
    taken_SE = experts_KN.reshape(-1, 1) == torch.arange(n_experts)
    before_S = ((taken_SE.cumsum(dim=0) - 1) * taken_SE).sum(dim=1)
    return experts_KN.where(before_S.view_as(experts_KN) < limit, -1).T
    ### END SOLUTION


def drop_in_shares(experts_NK: Tensor, n_experts: int, factor: float, shares: int) -> Tensor:
    """What the serial run keeps: the same as ranks with equal shares of the tokens,
    in the order of the ranks.
    """
    # TODO 5, again: the serial run drops what the ranks drop. The number of shares divides the tokens.
    ### BEGIN SOLUTION
    N, K = experts_NK.shape
    limit = capacity(N // shares, K, n_experts, factor)
    return torch.cat([drop(share, n_experts, limit) for share in experts_NK.split(max(N // shares, 1))])
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_5", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("07_expert_parallel/5")

# %% [markdown]
# ## Balance the load
#
# Without a correction, routers collapse: an expert that is slightly better gets more tokens, learns more, and gets
# better still. Switch adds a second loss ([arXiv:2101.03961](https://arxiv.org/abs/2101.03961), eq. 4). Let $f_e$ be
# the fraction of all slots that chose expert $e$, before anything is dropped, and $P_e$ its mean probability over all
# tokens:
#
# $$L = E \sum_e f_e P_e$$
#
# It is 1 if both are even, and more if the experts that are chosen most are also the most probable. $f$
# is a count, so it has no gradient; through $P$ the router learns to give crowded experts lower probabilities.
#
# "All tokens" means the tokens of **all ranks**. The product of two means is not the mean of the products: rank 0 may
# send all its tokens to expert 0, and rank 1 to expert 1. On average that is even, though on each rank it is as
# uneven as possible. So reduce $f$ and $P$ first, then multiply.
#
# What about the gradient? Autograd does not see an all-reduce in place. A rank's backward pass needs to reach only its
# own contribution to $P$. In the end the ranks' gradients are *averaged*, like their losses. For the average to be
# right, each rank must give $W$ times the derivative of $L$ with respect to its own probabilities. One line can do
# this: `own + (total - own).detach()` has the value of `total` and the gradient of `own`. If `own` is $W$ times the
# rank's number, the value is still the total, and the gradient is $W$ times as large.


# %% nbgrader={"grade": false, "grade_id": "todo_6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def balancing_loss(probs_NE: Tensor, experts_NK: Tensor, world: int) -> Tensor:
    """The balancing loss over the tokens of all ranks (the default group): a float32 scalar, the same on
    all ranks.

    Its backward pass gives ``probs_NE`` ``world`` times the derivative, so that an average over ranks is
    right.
    """
    # TODO 6: Balance the load with a loss over all ranks' tokens. Ranks may have different numbers of
    # them, even none.
    # Budget: a few numbers per expert are sent, however many tokens there are.
    ### BEGIN SOLUTION
    E = probs_NE.shape[1]
    slots_E = torch.bincount(experts_NK.flatten(), minlength=E).float()
    own_E = probs_NE.sum(dim=0)
    totals = torch.cat([slots_E, own_E.detach(), own_E.new_tensor([experts_NK.shape[0]])])
    dist.all_reduce(totals)
    all_slots_E, all_probs_E, tokens = totals[:E], totals[E:-1], totals[-1]
    f_E = all_slots_E / (tokens * experts_NK.shape[1])
    P_E = (world * own_E + (all_probs_E - world * own_E).detach()) / tokens
    return E * (f_E * P_E).sum()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_6", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("07_expert_parallel/6")

# %% [markdown]
# ## Which gradients are averaged over which ranks
#
# With many ranks, one set of all experts is spread over only some of them, say over $S$, and there are $W / S$ sets.
# This is **data × expert parallelism**. Tokens stay within a set, which is best placed within a node. So there
# are two kinds of groups:
#
# ![Four ranks in two sets: tokens are exchanged along rows, experts' gradients reduced along columns](../images/expert_groups.svg)
#
# Every rank has different tokens, so parameters that all ranks hold (attention, norms, embeddings, **the router**)
# have their gradients averaged over **all** ranks. An expert's gradients are summed with those of its
# copies in the other sets, and with no others.
#
# By what number must an expert's gradients be divided? Each rank's loss is the mean over its own tokens, and the
# whole loss is the mean over the $W$ ranks. In the backward pass an expert receives the gradients of the rows of *all*
# ranks in its set, added up. **Predict** the divisor, before you read the check's message.
#
# | call | meaning |
# |---|---|
# | `dist.new_group(ranks)` | a group of these ranks. **Every** rank makes **every** such call, in the same order, even for groups that it is not in |
# | `dist.all_reduce(tensor, group=group)` | the sum over a group, in place |


# %% nbgrader={"grade": false, "grade_id": "todo_7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def make_groups(rank: int, world: int, spread: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """The ranks that exchange tokens with this one, and the ranks that hold the same experts; both
    include this one.

    The first ``spread`` ranks hold one set of all experts, the next ones another. ``spread`` divides
    ``world``.
    """
    # TODO 7: Average each gradient over the ranks that hold its parameter. First, the groups.
    ### BEGIN SOLUTION
    sets = [list(range(first, first + spread)) for first in range(0, world, spread)]
    copies = [list(range(place, world, spread)) for place in range(spread)]
    set_groups = [dist.new_group(ranks) for ranks in sets]
    copy_groups = [dist.new_group(ranks) for ranks in copies]
    return set_groups[rank // spread], copy_groups[rank % spread]
    ### END SOLUTION


def average_gradients(
    shared: Sequence[nn.Parameter],
    experts: Sequence[nn.Parameter],
    copies: dist.ProcessGroup,
    world: int,
) -> None:
    """Turn every gradient into the gradient of the mean of all ranks' losses, in place. No gradient is
    missing.

    Args:
        shared: parameters that all ranks hold.
        experts: parameters of this rank's experts; ``copies`` are the ranks that hold the same ones.
    """
    # TODO 7, again: the gradients.
    ### BEGIN SOLUTION
    for parameter in shared:
        dist.all_reduce(parameter.grad)
        parameter.grad /= world
    for parameter in experts:
        dist.all_reduce(parameter.grad, group=copies)
        parameter.grad /= world
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_7", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("07_expert_parallel/7")

# %% [markdown]
# ## What it costs
#
# Everything follows from one table: how many rows rank $r$ sends to expert $e$. Rows that stay on their rank are not
# sent.
#
# - **Forward**, a rank sends its counts (int64 numbers, one for each expert on another rank), its rows, and later the
#   results of the rows that came from others.
# - **Backward**, the same rows again, as gradients, without counts.
# - A **message** goes from one rank to another. An all-to-all is one message to each other rank, even if
#   it is empty.
#
# Unlike weights in FSDP or activations in tensor parallelism, the bytes depend on the tokens: they differ from rank
# to rank and from step to step. The work varies with them. All ranks wait for the rank whose experts have the most
# rows, so **the busiest rank sets the time**.


# %% nbgrader={"grade": false, "grade_id": "todo_8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def layer_bytes(rows: list[list[int]], rank: int, dim: int, element_size: int) -> tuple[int, int]:
    """Bytes that a rank sends to others, forward and backward, in one layer.

    ``rows[r][e]``: how many rows rank r sends to expert e. A row has ``dim`` numbers of ``element_size``
    bytes.
    """
    # TODO 8: Predict bytes, messages, and the slowest rank. First the bytes. All ranks hold the same
    # number of experts.
    ### BEGIN SOLUTION
    rows_WE = torch.tensor(rows)
    W, E = rows_WE.shape
    mine = slice(rank * (E // W), (rank + 1) * (E // W))
    stays = rows_WE[rank, mine].sum()
    there = rows_WE[rank].sum() - stays
    back = rows_WE[:, mine].sum() - stays
    both = int(there + back) * dim * element_size
    return both + 8 * (E - E // W), both
    ### END SOLUTION


def layer_messages(world: int) -> tuple[int, int]:
    """Messages that a rank sends, forward and backward, in one layer."""
    # TODO 8, again: the messages.
    ### BEGIN SOLUTION
    return 3 * (world - 1), 2 * (world - 1)
    ### END SOLUTION


def slowdown(rows: list[list[int]]) -> float:
    """The experts' time relative to an even load. A rank's time is proportional to its experts' rows."""
    # TODO 8, again: the busiest rank. At least one row is sent.
    ### BEGIN SOLUTION
    rows_WE = torch.tensor(rows, dtype=torch.float64)
    work_W = rows_WE.sum(dim=0).view(len(rows), -1).sum(dim=1)
    return (work_W.max() / work_W.mean()).item()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_8", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("07_expert_parallel/8")

# %% [markdown]
# Compare with the run above. The line is your prediction for each rank.

# %%
predicted = [layer_bytes(run.results, rank, dim=32, element_size=4) for rank in range(4)]
print(f"the busiest rank takes {slowdown(run.results):.2f} times as long as with an even load")
plots.layer(run.collectives, predicted)

# %% [markdown]
# ## Train the course's model
#
# Now replace each block's MLP with experts. The model needs no change: `block.mlp = …` replaces a submodule. This is
# the serial version. It stores its last balancing loss and the number of slots that chose each expert, for you to add
# up and look at.


# %%
class Mixture(nn.Module):
    """All experts on one process, in place of an MLP.

    Args:
        factor: of the capacity; None drops nothing. Slots are dropped as on ``shares`` ranks.
    """

    def __init__(
        self, dim: int, n_experts: int, k: int, factor: float | None = None, shares: int = 1
    ) -> None:
        super().__init__()
        self.k, self.factor, self.shares = k, factor, shares
        self.router = nn.Parameter(torch.randn(n_experts, dim) / math.sqrt(dim))
        self.experts = nn.ModuleList(MLP(dim) for _ in range(n_experts))

    def forward(self, x_BTD: Tensor) -> Tensor:
        h_ND, n_experts = x_BTD.flatten(0, 1), len(self.experts)
        gates_NK, experts_NK, probs_NE = route(h_ND, self.router, self.k)
        self.balance = balancing_loss(probs_NE, experts_NK, world=1)
        self.load = torch.bincount(experts_NK.flatten(), minlength=n_experts)
        if self.factor is not None:
            experts_NK = drop_in_shares(experts_NK, n_experts, self.factor, self.shares)
        return mixture(h_ND, gates_NK, experts_NK, self.experts).view_as(x_BTD)


class ParallelMixture(nn.Module):
    """The same with only this rank's experts;
    ``tokens`` is the group over which one set of all experts is spread.
    """

    def __init__(self, whole: Mixture, world: int, tokens: dist.ProcessGroup) -> None:
        super().__init__()
        self.k, self.factor, self.world, self.tokens = whole.k, whole.factor, world, tokens
        self.router, self.n_experts = whole.router, len(whole.experts)
        each = self.n_experts // dist.get_world_size(tokens)
        first = each * dist.get_rank(tokens)
        self.experts = nn.ModuleList(whole.experts[first : first + each])

    def forward(self, x_BTD: Tensor) -> Tensor:
        return parallel_forward(self, x_BTD)


# %% nbgrader={"grade": false, "grade_id": "todo_9", "locked": false, "schema_version": 3, "solution": true, "task": false}
def parallel_forward(layer: ParallelMixture, x_BTD: Tensor) -> Tensor:
    """The same as `Mixture.forward`, for this rank's tokens. ``layer.load`` counts these tokens' slots.

    The next call may have a different number of tokens.
    """
    # TODO 9: Train the model with its experts spread over the ranks. First, the layer.
    ### BEGIN SOLUTION
    h_ND = x_BTD.flatten(0, 1)
    gates_NK, experts_NK, probs_NE = route(h_ND, layer.router, layer.k)
    layer.balance = balancing_loss(probs_NE, experts_NK, layer.world)
    layer.load = torch.bincount(experts_NK.flatten(), minlength=layer.n_experts)
    if layer.factor is not None:
        limit = capacity(len(h_ND), layer.k, layer.n_experts, layer.factor)
        experts_NK = drop(experts_NK, layer.n_experts, limit)
    return parallel_mixture(h_ND, gates_NK, experts_NK, layer.experts, layer.tokens).view_as(x_BTD)
    ### END SOLUTION


def spread_experts(
    model: TransformerLM, world: int, tokens: dist.ProcessGroup
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Replace each `Mixture` by a `ParallelMixture`. Returns the parameters that all ranks have,
    and my experts'.
    """
    # TODO 9, again: the model. Each of its parameters is in one of the two lists, once.
    ### BEGIN SOLUTION
    for block in model.blocks:
        block.mlp = ParallelMixture(block.mlp, world, tokens)
    experts = [parameter for block in model.blocks for parameter in block.mlp.experts.parameters()]
    of_experts = set(experts)
    return [parameter for parameter in model.parameters() if parameter not in of_experts], experts
    ### END SOLUTION


def whole_loss(model: TransformerLM, x: Tensor, y: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """The language model's loss on this rank;
    and the same plus ``weight`` times each block's balancing loss.
    """
    # TODO 9, again: the loss.
    ### BEGIN SOLUTION
    loss = model(x, y)
    return loss, loss + weight * sum(block.mlp.balance for block in model.blocks)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_9", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("07_expert_parallel/9")

# %% [markdown]
# The proof: the same model and the same batches on one process, on two, on three, and on four in two sets.
# The text is random but can be learned: most words follow from the word before.

# %%
WORDS, DIM, EXPERTS, STEPS = 64, 32, 6, 60


def mixture_model(k: int, factor: float | None, shares: int) -> TransformerLM:
    torch.manual_seed(0)
    model = TransformerLM(WORDS, dim=DIM, n_heads=2, n_layers=2, max_len=16)
    for block in model.blocks:
        block.mlp = Mixture(DIM, EXPERTS, k, factor, shares)
    return model


def batch_of(step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
    """This rank's share of 12 sequences. Some words are frequent, most are rare."""
    draw = torch.Generator().manual_seed(step)
    surprise = (WORDS * torch.rand(12, 17, generator=draw) ** 3).long()
    words = surprise.clone()
    for t in range(1, 17):
        words[:, t] = torch.where(
            surprise[:, t] % 4 == 0, surprise[:, t], (5 * words[:, t - 1] + 3) % WORDS
        )
    mine = words.chunk(world)[rank]
    return mine[:, :-1], mine[:, 1:]


def train(settings: dict, rank: int, world: int) -> dict[str, list]:
    """Losses of this rank and, for each step,
    how many of its slots chose each expert of the last block.
    """
    model = mixture_model(settings["k"], settings["factor"], settings["shares"])
    if world > 1:
        tokens, copies = make_groups(rank, world, settings["spread"])
        shared, experts = spread_experts(model, world, tokens)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["lr"], momentum=0.9)
    losses, loads = [], []
    for step in range(settings["steps"]):
        optimizer.zero_grad()
        loss, total = whole_loss(model, *batch_of(step, rank, world), settings["weight"])
        total.backward()
        if world > 1:
            average_gradients(shared, experts, copies, world)
        optimizer.step()
        losses.append(loss.item())
        loads.append(model.blocks[-1].mlp.load.tolist())
    return {"losses": losses, "loads": loads}


# %%
settings = {"k": 2, "factor": 1.25, "weight": 0.01, "lr": 0.1, "steps": 12}
for world, spread in ((2, 2), (3, 3), (4, 2)):
    how = settings | {"shares": world, "spread": spread}
    (serial,) = run_on_ranks("07_expert_parallel/train", [how]).results
    ranks = run_on_ranks("07_expert_parallel/train", [how] * world).results
    means = [sum(losses) / world for losses in zip(*(mine["losses"] for mine in ranks), strict=True)]
    apart = max(abs(a - b) / b for a, b in zip(means, serial["losses"], strict=True))
    print(
        f"{world} ranks, experts over {spread}: loss {means[0]:.4f} → {means[-1]:.4f},"
        f" at most {apart:.1e} from the serial run"
    )

# %% [markdown]
# And the experts' load during training, with one expert per token, with and without the balancing loss:

# %%
loads = {}
for weight in (0.0, 0.05):
    how = {"k": 1, "factor": None, "weight": weight, "lr": 0.3, "steps": STEPS, "shares": 2, "spread": 2}
    ranks = run_on_ranks("07_expert_parallel/train", [how] * 2).results
    loads[f"weight of the balancing loss: {weight}"] = [mine["loads"] for mine in ranks]
plots.loads(loads)

# %% [markdown]
# ## In libraries
#
# | there | here |
# |---|---|
# | Megatron-Core `TopKRouter`, `--moe-router-dtype fp32` | `route` |
# | its `MoEAlltoAllTokenDispatcher`; `permute`, `unpermute` | `sort_slots`, `exchange_rows`, `regroup`; `combine` |
# | grouped matrix products, one kernel for all experts of a rank (MegaBlocks, `torch.nn.functional.grouped_mm`) | the loop over `mine` |
# | `--expert-model-parallel-size`; expert data-parallel groups | `spread`; `copies` |
# | DeepEP: kernels that send a token only once to a rank that has two of its experts | a row for each slot |
# | the expert bias of DeepSeek-V3 ([arXiv:2412.19437](https://arxiv.org/abs/2412.19437)): added for the choice, never to the gate | `balancing_loss`, without its gradient |

# %% [markdown]
# ## When to use it
#
# - Memory: a rank holds $1/S$ of the experts, and none of them is ever gathered. Work: a token is computed by $K$
#   experts, however many there are.
# - Bytes: up to $4KD$ numbers per token and layer in a step, however large the experts are. FSDP sends weights, however
#   few tokens there are. So spread experts over ranks if the experts are large and the tokens few; otherwise shard them
#   with FSDP.
# - An all-to-all between nodes is slow and harder to hide than FSDP's gathers: keep a set within a node,
#   or overlap two micro-batches. A small model does not need experts: the router, the exchange and the
#   imbalance cost more than they save.
# - Watch the load from the first step. A collapsed router shows only in a slightly worse loss, and in a rank that is
#   always late.

# %% [markdown]
# ## Recap
#
# 1. A router chooses K experts for each token, in float32; gates weight their outputs and carry its gradient.
# 2. Two all-to-alls of unequal pieces bring rows to their experts and results back; first the counts.
# 3. The gradient of an exchange is the reverse exchange.
# 4. A capacity limits memory and drops slots; a balancing loss over all ranks' tokens keeps the load even.
# 5. Gradients of experts are summed over their copies, all other gradients over all ranks; both are divided by the
#    number of all ranks.
#
# *Papers.* Sparsely gated mixtures: [arXiv:1701.06538](https://arxiv.org/abs/1701.06538). GShard:
# [arXiv:2006.16668](https://arxiv.org/abs/2006.16668). Switch: [arXiv:2101.03961](https://arxiv.org/abs/2101.03961).
# MegaBlocks: [arXiv:2211.15841](https://arxiv.org/abs/2211.15841). Mixtral:
# [arXiv:2401.04088](https://arxiv.org/abs/2401.04088). DeepSeek-V3:
# [arXiv:2412.19437](https://arxiv.org/abs/2412.19437).
#
# Next: `08_distributed_matmul`.
