# %% [markdown]
# # Context parallel: a sequence that no rank holds
#
# Data-parallel training gives each rank other sequences, and sharding gives each rank other weights. Neither helps when
# **one** sequence is too long: a book, an hour of video, a repository of code. What a layer keeps for its backward
# pass grows with every token, until the activations of a single sequence fill the GPU.
#
# So cut the sequence. With **context parallel** training each of $N$ ranks holds $1/N$ of the tokens, through the whole
# model. Embeddings, norms, MLPs and the loss look at one token at a time and do not notice. Only attention
# looks at other tokens, and those are on other ranks. There are two ways to bring them together, and you build both:
#
# - **Ring attention** ([arXiv:2310.01889](https://arxiv.org/abs/2310.01889)): queries stay, keys and values go round.
# - **Ulysses** ([arXiv:2309.14509](https://arxiv.org/abs/2309.14509)): for the time of the attention, each rank swaps
#   its share of the tokens for a share of the heads.
#
# At the end you train the course's model on a sequence that no rank ever sees as a whole.

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import sys
from pathlib import Path

here = Path.cwd().resolve()
course = next(folder for folder in (here, *here.parents) if (folder / "grader").is_dir())
sys.path.insert(0, str(course))

from grader import check

# %%
import math
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from grader import run_on_ranks
from utils.plots import context_parallel as plots
from utils.data import IGNORE
from utils.memory import Storages
from utils.model import TransformerLM

# %% [markdown]
# ## Attention in pieces
#
# Each query takes the mean of all values, weighted by the softmax of its scores with all keys:
#
# $$S_{ij} = \frac{q_i \cdot k_j}{\sqrt K}, \qquad o_i = \frac{\sum_j e^{S_{ij}}\, v_j}{\sum_j e^{S_{ij}}}$$
#
# The sum below the line runs over the whole sequence, and on no rank is the whole sequence. But a sum can be made
# in pieces. If a query has attended to some keys, two things are enough to go on with others: the output so far,
# and how large the sum below the line was. Since $e^{S}$ overflows at a score of 89, one keeps the sum's logarithm, the
# **log-sum-exp** $L_i = \log \sum_j e^{S_{ij}}$.
#
# Two pieces with $(o, L)$ and $(o', L')$ are one with
#
# $$L'' = \log\left(e^{L} + e^{L'}\right), \qquad o'' = e^{L - L''}\, o + e^{L' - L''}\, o'$$
#
# so the output that was there is scaled down whenever a larger score comes along: this is the *online softmax*
# ([arXiv:1805.02867](https://arxiv.org/abs/1805.02867)), the heart of FlashAttention
# ([arXiv:2205.14135](https://arxiv.org/abs/2205.14135)). These calls subtract the maximum before they use `exp`, so
# nothing overflows:
#
# | call | |
# |---|---|
# | `x.logsumexp(dim=-1)` | $\log \sum e^x$ over the last dimension; $-\infty$ where all of them are |
# | `torch.logaddexp(a, b)` | $\log(e^a + e^b)$, number by number |
# | `x.clamp(min=…)` | numbers below become that number; `torch.finfo(x.dtype).min` is the smallest one of a dtype |
#
# Mind one case. A causal mask may hide a whole piece from a query. Its log-sum-exp is $-\infty$, its output is 0, and
# $-\infty - (-\infty)$ is not 0 but `nan`. One `nan` is enough to lose a training run.
#
# (Letters in names are shapes, as in the model: B sequences, H heads, T queries, S keys, K numbers a head.)


# %%
def scores(q_BHTK: Tensor, k_BHSK: Tensor, mask_TS: Tensor | None) -> Tensor:
    """The score of each query with each key, (B, H, T, S); minus infinity where the mask is False."""
    scores_BHTS = q_BHTK @ k_BHSK.transpose(-2, -1) / math.sqrt(q_BHTK.shape[-1])
    return scores_BHTS if mask_TS is None else scores_BHTS.masked_fill(~mask_TS, -math.inf)


def finite(lse: Tensor) -> Tensor:
    """The same, but never minus infinity: so that what is minus infinity, less this, still is."""
    return lse.clamp(min=torch.finfo(lse.dtype).min)


# %% nbgrader={"grade": false, "grade_id": "todo_1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def attend(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_TS: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Attention to one piece of the keys and values: the output (B, H, T, K), and the log-sum-exp (B, H, T)."""
    # TODO 1: Attend to a sequence in pieces. First, to one piece. Where a query sees none of its keys,
    # the output is 0 and the log-sum-exp minus infinity.
    ### BEGIN SOLUTION
    scores_BHTS = scores(q_BHTK, k_BHSK, mask_TS)
    lse_BHT = scores_BHTS.logsumexp(dim=-1)
    weights_BHTS = (scores_BHTS - finite(lse_BHT)[..., None]).exp()
    return weights_BHTS @ v_BHSK, lse_BHT
    ### END SOLUTION


def merge(out_BHTK: Tensor, lse_BHT: Tensor, new_out_BHTK: Tensor, new_lse_BHT: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of two pieces together, from those of each."""
    # TODO 1, again: two pieces become one. Either of them, or both, may have been hidden from a query.
    ### BEGIN SOLUTION
    both_BHT = torch.logaddexp(lse_BHT, new_lse_BHT)
    old_share_BHT, new_share_BHT = ((lse - finite(both_BHT)).exp() for lse in (lse_BHT, new_lse_BHT))
    return old_share_BHT[..., None] * out_BHTK + new_share_BHT[..., None] * new_out_BHTK, both_BHT
    ### END SOLUTION


# %%
q, k, v = (torch.randn(1, 1, 8, 4, generator=torch.Generator().manual_seed(n)) for n in range(3))
out, lse = attend(q, k[:, :, :3], v[:, :, :3])
for piece in (slice(3, 5), slice(5, 8)):
    out, lse = merge(out, lse, *attend(q, k[:, :, piece], v[:, :, piece]))
apart = (out - F.scaled_dot_product_attention(q, k, v)).abs().max().item()
print(f"keys 0 to 2, 3 and 4, 5 to 7, one after the other: {apart:.1g} away from all at once")

# %% nbgrader={"grade": true, "grade_id": "test_1", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("06_context_parallel/1")

# %% [markdown]
# ## Keys and values go round
#
# Now each rank has the queries, keys and values of its own tokens. It attends to its own piece; then it passes
# keys and values on to its right neighbour, the left one's arrive, and it attends to those. After $N$ steps its
# queries have seen all keys, and it never held more than its own piece, the piece at hand, and the one that arrives.
#
# ![Four ranks in four steps: queries stay, keys and values move to the next rank, from the last to the first](../images/context_ring.svg)
#
# Which scores are needed is said by a list of **blocks**: `(rows, columns, mask)` are the queries, the keys, and
# which sees which. For now everybody sees everything, so there is one block: all of it. The causal mask comes
# later, and needs no change to the ring. In your ring, `blocks(source)` is the list for the keys that belong to rank
# `source`.

# %%
Block = tuple[slice, slice, Tensor | None]  # rows of queries, columns of keys, and a mask (None: all are seen)


def everything(source: int) -> list[Block]:
    """Without a causal mask, every query of mine sees every key of any rank's."""
    return [(slice(None), slice(None), None)]


def nothing_yet(q_BHTK: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of queries that have seen no key."""
    return torch.zeros_like(q_BHTK), q_BHTK.new_full(q_BHTK.shape[:-1], -math.inf)


def attend_blocks(out_BHTK: Tensor, lse_BHT: Tensor, q_BHTK: Tensor, k: Tensor, v: Tensor, blocks: list[Block]) -> None:
    """Attend to these blocks of the keys, and merge what comes of it into output and log-sum-exp, in place."""
    for rows, columns, mask in blocks:
        piece = attend(q_BHTK[:, :, rows], k[:, :, columns], v[:, :, columns], mask)
        out_BHTK[:, :, rows], lse_BHT[:, :, rows] = merge(out_BHTK[:, :, rows], lse_BHT[:, :, rows], *piece)


# %% [markdown]
# Messages are those of lesson 01: `dist.isend(tensor, to)` and `dist.irecv(tensor, source)` come back at once with a
# *work*, and the message is over after `work.wait()`. A tensor that is sent, or
# received into, must be contiguous, its numbers one after the other in memory. The model's keys are not;
# `tensor.contiguous()` gives a tensor that is.
#
# **Predict** whose keys a rank has at hand in step $s$, where the first step is $s = 0$.


# %% nbgrader={"grade": false, "grade_id": "todo_2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def at_hand(rank: int, step: int, world: int) -> int:
    """Whose keys and values a rank has at hand in this step, from 0."""
    # TODO 2: Pass keys and values round a ring. First your prediction: whose are at hand?
    ### BEGIN SOLUTION
    return (rank - step) % world
    ### END SOLUTION


def start_to_pass_on(tensors: list[Tensor], rank: int, world: int) -> tuple[list[Tensor], list[dist.Work]]:
    """Begin to send tensors to the right neighbour, and to receive as many from the left one.

    Returns:
        What arrives, to be read when all works are over; and the works. A ring of one rank passes nothing on: there
        the tensors that were given "arrive", and there are no works.
    """
    # TODO 2, again: one round. Waiting is up to the caller.
    ### BEGIN SOLUTION
    if world == 1:
        return tensors, []
    leaving = [tensor.contiguous() for tensor in tensors]
    arriving = [torch.empty_like(tensor) for tensor in leaving]
    works = [dist.isend(tensor, (rank + 1) % world) for tensor in leaving]
    works += [dist.irecv(tensor, (rank - 1) % world) for tensor in arriving]
    return arriving, works
    ### END SOLUTION


def pass_on(tensors: list[Tensor], rank: int, world: int) -> list[Tensor]:
    """The same, and wait: what the left neighbour had."""
    arriving, works = start_to_pass_on(tensors, rank, world)
    for work in works:
        work.wait()
    return arriving


def ring_forward(
    q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, blocks: Callable[[int], list[Block]], rank: int, world: int
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of this rank's queries, over the keys and values of all ranks."""
    # TODO 2, again: the ring. N steps, and N - 1 rounds in which keys and values are passed on: in the last step
    # nobody waits for them. What has gone by is not kept.
    ### BEGIN SOLUTION
    out_BHTK, lse_BHT = nothing_yet(q_BHTK)
    for step in range(world):
        attend_blocks(out_BHTK, lse_BHT, q_BHTK, k_BHTK, v_BHTK, blocks(at_hand(rank, step, world)))
        if step < world - 1:
            k_BHTK, v_BHTK = pass_on([k_BHTK, v_BHTK], rank, world)
    return out_BHTK, lse_BHT
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_2", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("06_context_parallel/2")


# %%
def one_forward(seed: int, rank: int, world: int) -> Tensor:
    """The output of this rank's eight queries."""
    q_BHTK, k_BHTK, v_BHTK = torch.randn(3, 1, 2, 8, 16, generator=torch.Generator().manual_seed(seed))
    return ring_forward(q_BHTK, k_BHTK, v_BHTK, everything, rank, world)[0]


# %%
run = run_on_ranks("06_context_parallel/one_forward", [0, 1, 2, 3])
plots.messages(run.messages, "ring_forward")

# %% [markdown]
# ## The way back
#
# Autograd cannot follow a tensor through a message, and it would keep every piece that went by. So write the backward
# pass yourself. With the log-sum-exp $L$ of the **whole** row, the weights of any block can be computed again, as
# FlashAttention does; no scores are kept. For a block, with $\mathrm{d}O$ the gradient of the output $O$:
#
# $$P_{ij} = e^{S_{ij} - L_i}, \qquad \mathrm{d}V = P^T \mathrm{d}O, \qquad \mathrm{d}P = \mathrm{d}O\, V^T$$
#
# $$D_i = \sum_k \mathrm{d}O_{ik} O_{ik}, \qquad \mathrm{d}S_{ij} = P_{ij}\, (\mathrm{d}P_{ij} - D_i), \qquad
# \mathrm{d}Q = \frac{\mathrm{d}S\, K}{\sqrt K}, \qquad \mathrm{d}K = \frac{\mathrm{d}S^T Q}{\sqrt K}$$
#
# $O$ and $L$ are those of the whole row, not of the block: the softmax ties all keys of a row together, and $D_i$ is
# all that a block needs to know of the others. (The $K$ below the root is the width of a head.)
#
# The gradient of the queries stays with the queries. But keys and values go round again, and every rank has something
# to add to their gradients. So these **travel along**: a rank adds its share to the gradient of the keys at
# hand, and passes both on. After the last step the gradients are at the left neighbour of the rank they
# belong to. How many rounds does it take until they are home?
#
# ![Three ranks: gradients travel with keys and values, and return in a last round](../images/context_backward.svg)


# %% nbgrader={"grade": false, "grade_id": "todo_3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def attend_backward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lse: Tensor, delta: Tensor, grad_out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What one block of scores adds to the gradients of its queries, keys and values.

    Args:
        lse, delta: (B, H, T), of the whole rows: the log-sum-exp, and the sum of gradient times output (D above).
        grad_out: (B, H, T, K), the gradient of the output.
    """
    # TODO 3: Send the gradients home. First, the gradients of one block. A query may see no key at all.
    ### BEGIN SOLUTION
    weights_BHTS = (scores(q, k, mask) - finite(lse)[..., None]).exp()
    grad_weights_BHTS = grad_out @ v.transpose(-2, -1)
    grad_scores_BHTS = weights_BHTS * (grad_weights_BHTS - delta[..., None]) / math.sqrt(q.shape[-1])
    return (
        grad_scores_BHTS @ k,
        grad_scores_BHTS.transpose(-2, -1) @ q,
        weights_BHTS.transpose(-2, -1) @ grad_out,
    )
    ### END SOLUTION


def blocks_backward(
    grads: list[Tensor], q: Tensor, k: Tensor, v: Tensor, of_rows: list[Tensor], blocks: list[Block]
) -> None:
    """Add to the gradients of q, k and v, in place, what these blocks add. ``of_rows``: lse, delta and grad_out."""
    grad_q, grad_k, grad_v = grads
    for rows, columns, mask in blocks:
        known = [tensor[:, :, rows] for tensor in of_rows]
        piece = attend_backward(q[:, :, rows], k[:, :, columns], v[:, :, columns], mask, *known)
        grad_q[:, :, rows] += piece[0]
        grad_k[:, :, columns] += piece[1]
        grad_v[:, :, columns] += piece[2]


def ring_backward(
    q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, out_BHTK: Tensor, lse_BHT: Tensor, grad_out_BHTK: Tensor,
    blocks: Callable[[int], list[Block]], rank: int, world: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of this rank's queries, keys and values; those of keys and values from the queries of all ranks."""
    # TODO 3, again: the ring. Keys and values are passed on N - 1 times. And their gradients?
    ### BEGIN SOLUTION
    delta_BHT = (grad_out_BHTK * out_BHTK).sum(dim=-1)
    grad_q, grad_k, grad_v = (torch.zeros_like(tensor) for tensor in (q_BHTK, k_BHTK, v_BHTK))
    for step in range(world):
        needed = blocks(at_hand(rank, step, world))
        of_rows = [lse_BHT, delta_BHT, grad_out_BHTK]
        blocks_backward([grad_q, grad_k, grad_v], q_BHTK, k_BHTK, v_BHTK, of_rows, needed)
        if step < world - 1:
            k_BHTK, v_BHTK = pass_on([k_BHTK, v_BHTK], rank, world)
        grad_k, grad_v = pass_on([grad_k, grad_v], rank, world)
    return grad_q, grad_k, grad_v
    ### END SOLUTION


# %% [markdown]
# Now let autograd call it. A `torch.autograd.Function` has two static methods:
#
# | | |
# |---|---|
# | `forward(ctx, …)` | computes; autograd records nothing of what happens inside |
# | `ctx.save_for_backward(a, b)` | keeps tensors for the backward pass; the rest are attributes: `ctx.world = world` |
# | `backward(ctx, grad)` | gets the gradient of what `forward` returned, and has the tensors in `ctx.saved_tensors` |
# | | returns a gradient for each argument of `forward`, `None` for what is no tensor |
#
# What is saved is what a layer's activations cost. Save nothing that grows with the number of ranks.


# %% nbgrader={"grade": false, "grade_id": "todo_3_function", "locked": false, "schema_version": 3, "solution": true, "task": false}
class RingAttention(torch.autograd.Function):
    """`RingAttention.apply(q, k, v, blocks, rank, world)` is this rank's output, (B, H, T, K)."""

    @staticmethod
    def forward(ctx, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, blocks: Callable, rank: int, world: int) -> Tensor:
        # TODO 3, again: compute the output, and save what the backward pass needs.
        ### BEGIN SOLUTION
        out_BHTK, lse_BHT = ring_forward(q_BHTK, k_BHTK, v_BHTK, blocks, rank, world)
        ctx.save_for_backward(q_BHTK, k_BHTK, v_BHTK, out_BHTK, lse_BHT)
        ctx.ring = blocks, rank, world
        return out_BHTK
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad_out_BHTK: Tensor) -> tuple[Tensor | None, ...]:
        # TODO 3, again: a gradient for each of the six arguments.
        ### BEGIN SOLUTION
        return *ring_backward(*ctx.saved_tensors, grad_out_BHTK, *ctx.ring), None, None, None
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_3", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("06_context_parallel/3")

# %% [markdown]
# ## The causal mask, and who works how much
#
# A language model's token sees only what is before it, so half of all scores are not needed. Take four ranks that each
# hold a quarter of the sequence, in order. Rank 0's queries see only rank 0's keys: in three of four steps it has
# nothing to do. Rank 3's queries see almost everything. All wait for rank 3, and nothing was gained by the mask.
#
# The way out is to cut the sequence into $2N$ pieces, more than there are ranks, and to give each rank two of them,
# an early one and a late one, so that all have the same work. It is called **zig-zag**, and which two these are you will
# find yourself.
#
# From now on everything about a token goes by its place in the whole sequence: which keys its query sees, its
# position in the model, its target. Nothing goes by its place on the rank.
#
# **Predict** the work of a rank: how many pairs of a query and a key that it sees. A query sees itself, too.


# %% nbgrader={"grade": false, "grade_id": "todo_4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def pairs_of(pieces: list[int], size: int) -> int:
    """How many pairs of a query and a key that it sees a rank has whose queries are those of these pieces.

    Pieces have ``size`` tokens each, and are numbered from 0 through the whole sequence.
    """
    # TODO 4: Compute only what the causal mask lets a query see, and share it out evenly. First your prediction:
    # the work of a rank.
    ### BEGIN SOLUTION
    return sum(piece * size * size + size * (size + 1) // 2 for piece in pieces)
    ### END SOLUTION


def pieces_of(rank: int, world: int) -> list[int]:
    """The numbers of the two pieces, of 2 * world, that a rank has: zig-zag."""
    # TODO 4, again: who has which pieces, so that all have the same work?
    ### BEGIN SOLUTION
    return [rank, 2 * world - 1 - rank]
    ### END SOLUTION


def positions_of(pieces: list[int], size: int) -> Tensor:
    """The positions in the whole sequence of the tokens of these pieces, one piece after the other: int64, 1-D."""
    # TODO 4, again: where are a rank's tokens in the sequence? Pieces are given in any order.
    ### BEGIN SOLUTION
    return torch.cat([torch.arange(piece * size, (piece + 1) * size) for piece in pieces])
    ### END SOLUTION


def causal_blocks(mine: list[int], theirs: list[int], size: int) -> list[Block]:
    """The blocks of scores that queries in the pieces ``mine`` need of keys in the pieces ``theirs``.

    Queries and keys lie in memory one piece after the other, as the lists say. Each list may have one piece or several.
    """
    # TODO 4, again: a block for each pair of pieces in which anything is to be seen, and none for the others. Where
    # all of it is to be seen, the mask is None. `torch.ones(n, n, dtype=torch.bool).tril()` is True on and below the diagonal.
    ### BEGIN SOLUTION
    blocks = []
    for i, piece in enumerate(mine):
        for j, other in enumerate(theirs):
            rows, columns = slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size)
            if other < piece:
                blocks.append((rows, columns, None))
            elif other == piece:
                blocks.append((rows, columns, torch.ones(size, size, dtype=torch.bool).tril()))
    return blocks
    ### END SOLUTION


# %%
def in_zigzag(rank: int, world: int, size: int) -> Callable[[int], list[Block]]:
    """For the ring: what a rank's queries see of another rank's keys, if the sequence is dealt out in zig-zag."""
    return lambda source: causal_blocks(pieces_of(rank, world), pieces_of(source, world), size)


def in_order(rank: int, world: int, size: int) -> Callable[[int], list[Block]]:
    """The same, if rank r has piece r, one of N."""
    return lambda source: causal_blocks([rank], [source], size)


# %% nbgrader={"grade": true, "grade_id": "test_4", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("06_context_parallel/4")

# %% [markdown]
# In colours, it looks like this. Llama 3 was trained so
# ([arXiv:2407.21783](https://arxiv.org/abs/2407.21783), section 3.3.2).
#
# ![The scores of four ranks: in order, from 36 to 228; in zig-zag, 132 each](../images/context_blocks.svg)
#
# Count the work of your own blocks, on four ranks with a sequence of 32 tokens. Pale is what a block computes
# and the mask throws away: a triangle is half a square. Smaller pieces have smaller triangles.


# %%
def count_pairs(dealt: str, rank: int, world: int) -> dict[str, int]:
    """Pairs of query and key that a rank computes for 8 tokens a rank, and how many of them are seen."""
    blocks_of = in_zigzag(rank, world, 4) if dealt == "zig-zag" else in_order(rank, world, 8)
    indices, computed, seen = torch.arange(8), 0, 0
    for source in range(world):
        for rows, columns, mask in blocks_of(source):
            area = len(indices[rows]) * len(indices[columns])
            computed += area
            seen += area if mask is None else int(mask.sum())
    return {"computed": computed, "seen": seen}


# %%
ways = ("in order", "zig-zag")
work = {dealt: run_on_ranks("06_context_parallel/count_pairs", [dealt] * 4).results for dealt in ways}
predicted_work = {
    "in order": [pairs_of([rank], 8) for rank in range(4)],
    "zig-zag": [pairs_of(pieces_of(rank, 4), 4) for rank in range(4)],
}
plots.work(work, predicted_work)

# %% [markdown]
# ## Send while you compute
#
# Your ring computes, then waits for a message, then computes. But the next keys are needed only in the next step, and
# what
# is being sent is only read. So **start** the exchange first, compute, and wait when there is nothing else left to do.
# If a step's products take longer than its messages, the messages are for free.
#
# ![Two timelines: compute and exchange in turns, and at the same time](../images/context_overlap.svg)
#
# In the backward pass, keys and values can be sent ahead in the same way. Their gradients cannot: a rank must add its
# share before it passes them on. (With one more buffer those can hide, too: compute the share by
# itself while the sum of the others arrives, then add.)
#
# The judge sees every message, every wait and every matrix product (`@`, `torch.einsum`, attention). Of a step's work
# at least half must lie between the start of an exchange and the first wait for it.


# %% nbgrader={"grade": false, "grade_id": "todo_5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def overlapped_forward(
    q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, blocks: Callable[[int], list[Block]], rank: int, world: int
) -> tuple[Tensor, Tensor]:
    """What `ring_forward` returns."""
    # TODO 5: Let the next keys and values travel while this rank computes. First, forward. The
    # ring's budget is as before: N - 1 rounds, and nothing is kept that has gone by.
    ### BEGIN SOLUTION
    out_BHTK, lse_BHT = nothing_yet(q_BHTK)
    for step in range(world):
        last = step == world - 1
        next_pair, works = ([], []) if last else start_to_pass_on([k_BHTK, v_BHTK], rank, world)
        attend_blocks(out_BHTK, lse_BHT, q_BHTK, k_BHTK, v_BHTK, blocks(at_hand(rank, step, world)))
        for work in works:
            work.wait()
        if not last:
            k_BHTK, v_BHTK = next_pair
    return out_BHTK, lse_BHT
    ### END SOLUTION


def overlapped_backward(
    q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, out_BHTK: Tensor, lse_BHT: Tensor, grad_out_BHTK: Tensor,
    blocks: Callable[[int], list[Block]], rank: int, world: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """What `ring_backward` returns."""
    # TODO 5, again: backward. Keys and values travel while this rank computes; their gradients as you like.
    ### BEGIN SOLUTION
    delta_BHT = (grad_out_BHTK * out_BHTK).sum(dim=-1)
    grad_q, grad_k, grad_v = (torch.zeros_like(tensor) for tensor in (q_BHTK, k_BHTK, v_BHTK))
    for step in range(world):
        last = step == world - 1
        next_pair, works = ([], []) if last else start_to_pass_on([k_BHTK, v_BHTK], rank, world)
        needed = blocks(at_hand(rank, step, world))
        of_rows = [lse_BHT, delta_BHT, grad_out_BHTK]
        blocks_backward([grad_q, grad_k, grad_v], q_BHTK, k_BHTK, v_BHTK, of_rows, needed)
        for work in works:
            work.wait()
        if not last:
            k_BHTK, v_BHTK = next_pair
        grad_k, grad_v = pass_on([grad_k, grad_v], rank, world)
    return grad_q, grad_k, grad_v
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_5", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("06_context_parallel/5")

# %% [markdown]
# ## Ulysses: heads for tokens
#
# Attention mixes tokens, but it never mixes heads. So a rank may as well have **all tokens of some heads** in place of
# some tokens of all heads. An all-to-all swaps the one for the other, before the attention and after it:
#
# ![A table of heads and tokens: before, a rank has columns; after, rows](../images/context_ulysses.svg)
#
# In between, the attention is any attention of one process, its fastest kernel included. The price: there cannot be
# more ranks than heads, and the ranks must divide the heads. The sequence is dealt out **in order** here (rank 0 has
# the
# first tokens): each rank has all of it while it attends, so there is nothing to balance.
#
# | call | |
# |---|---|
# | `dist.all_to_all_single(output, input)` | part $j$ of `input` goes to rank $j$; part $i$ of `output` is of $i$ |
# | | parts are $N$ equal ones of the first dimension, and both tensors must be contiguous |
# | `x.unflatten(dim, (a, b))`, `x.flatten(dim, dim + 1)` | makes two dimensions of one, and one of two neighbours |
# | `x.movedim(a, b)` | the same tensor with dimension `a` at place `b` |
#
# And its backward pass? What was sent comes back on the same way: the gradient of the one swap is the other swap.
#
# **Budget**: what a rank holds of queries, keys and values goes out once, and the output comes back once; and in the
# backward pass their gradients. Of each, a rank's own $1/N$ need not travel. And no rank has room for all heads of all
# tokens: what it holds are some copies of its share, and the scores of its heads if your attention makes them.


# %% nbgrader={"grade": false, "grade_id": "todo_6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def tokens_to_heads(x_BHTK: Tensor, world: int) -> Tensor:
    """This rank's tokens of all heads for all tokens of its heads: (B, H, T, K) becomes (B, H / N, N * T, K)."""
    # TODO 6: Swap tokens for heads, attend, and swap back. First the swap. Rank r's heads are the r-th H / N of them.
    ### BEGIN SOLUTION
    leaving = x_BHTK.unflatten(1, (world, -1)).movedim(1, 0).contiguous()  # N, B, H / N, T, K
    arriving = torch.empty_like(leaving)
    dist.all_to_all_single(arriving, leaving)
    return arriving.movedim(0, 2).flatten(2, 3)
    ### END SOLUTION


def heads_to_tokens(x_BHTK: Tensor, world: int) -> Tensor:
    """The way back: (B, H / N, N * T, K) becomes (B, H, T, K)."""
    # TODO 6, again: and back.
    ### BEGIN SOLUTION
    leaving = x_BHTK.unflatten(2, (world, -1)).movedim(2, 0).contiguous()  # N, B, H / N, T, K
    arriving = torch.empty_like(leaving)
    dist.all_to_all_single(arriving, leaving)
    return arriving.movedim(0, 1).flatten(1, 2)
    ### END SOLUTION


class TokensToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_BHTK: Tensor, world: int) -> Tensor:
        ctx.world = world
        return tokens_to_heads(x_BHTK, world)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        # TODO 6, again: the gradient of this rank's tokens, from that of its heads.
        ### BEGIN SOLUTION
        return heads_to_tokens(grad, ctx.world), None
        ### END SOLUTION


class HeadsToTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_BHTK: Tensor, world: int) -> Tensor:
        ctx.world = world
        return heads_to_tokens(x_BHTK, world)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        # TODO 6, again: the gradient of this rank's heads, from that of its tokens.
        ### BEGIN SOLUTION
        return tokens_to_heads(grad, ctx.world), None
        ### END SOLUTION


def ulysses(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, world: int) -> Tensor:
    """Causal attention of this rank's queries, (B, H, T, K). Rank r has the r-th T tokens of the sequence.

    Raises:
        ValueError: the ranks do not divide the heads.
    """
    # TODO 6, again: causal attention. Before anything is sent, refuse what can not work: a ValueError whose text
    # has both numbers, heads and ranks.
    ### BEGIN SOLUTION
    heads = q_BHTK.shape[1]
    if heads % world:
        raise ValueError(f"{heads} heads do not divide by {world} ranks")
    q_BHTK, k_BHTK, v_BHTK = (TokensToHeads.apply(tensor, world) for tensor in (q_BHTK, k_BHTK, v_BHTK))
    out_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
    return HeadsToTokens.apply(out_BHTK, world)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_6", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("06_context_parallel/6")

# %% [markdown]
# ## Which one, when?
#
# Let $S$ be the bytes of one rank's queries of a layer, $B \cdot H \cdot T/N \cdot K$ numbers of a sequence of $T$
# tokens.
# Keys and values have as many. **Predict** what a rank sends in the forward pass of one layer, in how many rounds or
# collectives, and when the ring's messages are hidden:
#
# - In the ring, keys and values of a step go at the same time: one round.
# - A product of an $m \times k$ and a $k \times n$ matrix takes $2mkn$ floating-point operations (FLOPs). In a step
#   of the ring a rank has $c = T/N$ queries and as many keys; there are two products, and without a mask all of it is
#   computed.
#   With the causal mask in zig-zag it is half of that in each step but the first.
# - A GPU computes $F$ FLOPs a second and sends $W$ bytes a second. The larger $c$, the more work for each byte.


# %% nbgrader={"grade": false, "grade_id": "todo_7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def ring_cost(nbytes: int, world: int) -> tuple[int, float]:
    """Rounds, and bytes that a rank sends, in the ring's forward pass of one layer.

    A rank's queries have ``nbytes`` bytes, and so have its keys and its values.
    """
    # TODO 7: Predict what both ways cost. First the ring.
    ### BEGIN SOLUTION
    return world - 1, 2 * (world - 1) * nbytes
    ### END SOLUTION


def ulysses_cost(nbytes: int, world: int) -> tuple[int, float]:
    """All-to-alls, and bytes that a rank sends to others, in Ulysses' forward pass of one layer.

    Each of queries, keys, values and output has ``nbytes`` bytes on a rank, and an all-to-all of its own.
    """
    # TODO 7, again: Ulysses. With one rank there are four, too; they send nothing.
    ### BEGIN SOLUTION
    return 4, 4 * (world - 1) / world * nbytes
    ### END SOLUTION


def most_ranks(heads: int, available: int) -> int:
    """With how many ranks, at most, Ulysses works for this number of heads, if so many ranks are available."""
    # TODO 7, again: the limit of Ulysses.
    ### BEGIN SOLUTION
    return max(ranks for ranks in range(1, available + 1) if heads % ranks == 0)
    ### END SOLUTION


def hiding_length(flops: float, bandwidth: float, itemsize: int, causal: bool) -> float:
    """How many tokens a rank needs for a step of the ring to compute for as long as it sends.

    Args:
        flops: floating-point operations a second.
        bandwidth: bytes a second.
        itemsize: bytes of a number.
        causal: whether half of a step's scores are computed, as in zig-zag, and not all of them.
    """
    # TODO 7, again: from which length on does the ring hide its messages?
    ### BEGIN SOLUTION
    # Whole step: 4 B H c² K FLOPs, and 2 B H c K numbers to send.
    length = itemsize * flops / (2 * bandwidth)
    return 2 * length if causal else length
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_7", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("06_context_parallel/7")

# %%
for name, bandwidth in (("within a node, 450 GB/s", 450e9), ("between nodes, 50 GB/s", 50e9)):
    print(f"{name}: the ring hides from {hiding_length(400e12, bandwidth, 2, causal=True):,.0f} tokens a rank on")


# %%
def sent_by(way: str, rank: int, world: int) -> int:
    """For its messages and collectives: one forward pass of 8 heads and 64 tokens, whatever the ranks."""
    q_BHTK, k_BHTK, v_BHTK = torch.randn(3, 1, 8, 64 // world, 4)
    if way == "ring":
        ring_forward(q_BHTK, k_BHTK, v_BHTK, everything, rank, world)
    else:
        ulysses(q_BHTK, k_BHTK, v_BHTK, world)
    return q_BHTK.numel() * q_BHTK.element_size()


# %%
ring_runs = {n: run_on_ranks("06_context_parallel/sent_by", ["ring"] * n) for n in (2, 4, 8)}
ulysses_runs = {n: run_on_ranks("06_context_parallel/sent_by", ["Ulysses"] * n) for n in (2, 4, 8)}
measured = {
    "ring": {n: sum(m.bytes for m in run.messages if m.source == 0) for n, run in ring_runs.items()},
    "Ulysses": {n: sum(c.sent for c in run.collectives if c.rank == 0) for n, run in ulysses_runs.items()},
}
predicted = {
    "ring": {n: ring_cost(run.results[0], n)[1] for n, run in ring_runs.items()},
    "Ulysses": {n: ulysses_cost(run.results[0], n)[1] for n, run in ulysses_runs.items()},
}
plots.sent(measured, predicted)

# %% [markdown]
# For one sequence of a fixed length, a rank of the ring sends more with each rank that joins, from one sequence's keys
# and values (2 ranks) up to less than two (many), while a rank of Ulysses sends less and less. But Ulysses' messages are in the way, the ring's are not, and for the ring any number of ranks will do.
#
# ## The whole model
#
# All other layers look at one token at a time, so a rank runs the model on its own tokens. Four things must follow the
# deal:
#
# - the **tokens** and their **targets**, cut from the sequence in the same way,
# - their **positions**: the model takes them as `model(x, y, positions)`,
# - the **attention**: a block's `block.attention.attend` may be set to any function of `(q_BHTK, k_BHTK, v_BHTK)`,
# - the **loss**: `model(x, y, positions)` is the mean over *this rank's* targets that count (`y != IGNORE`). What
#   is wanted is the mean over those of *all* ranks, and ranks may have unequal numbers of them, or none: then the model
#   returns 0, and gradients of 0.
#
# And the gradients? Each rank has the same weights, and other tokens. With the loss a *sum* over ranks, each of which
# divides by the number of all targets, the gradients are a sum over ranks, too. An average would be wrong by a factor
# of $N$, and the loss would not show it.


# %% nbgrader={"grade": false, "grade_id": "todo_8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def my_share(x_BT: Tensor, y_BT: Tensor, rank: int, world: int) -> tuple[Tensor, Tensor, Tensor]:
    """This rank's tokens, their targets, and their positions, dealt out in zig-zag.

    Raises:
        ValueError: the tokens do not divide by 2 * world.
    """
    # TODO 8: Train the model on a sequence that no rank holds. First, deal it out. Refuse, by a ValueError whose
    # text has both numbers, the tokens and the 2 * world pieces. `x[:, positions]` takes columns.
    ### BEGIN SOLUTION
    tokens = x_BT.shape[1]
    if tokens % (2 * world):
        raise ValueError(f"{tokens} tokens do not divide by {2 * world} pieces, two for each of {world} ranks")
    positions = positions_of(pieces_of(rank, world), tokens // (2 * world))
    return x_BT[:, positions], y_BT[:, positions], positions
    ### END SOLUTION


def use_ring(model: TransformerLM, rank: int, world: int) -> None:
    """From now on, let the model's blocks attend by `RingAttention`, in zig-zag, whatever the length of their input."""

    # TODO 8, again: the attention of each block. How long is a piece? Half of what the rank has.
    ### BEGIN SOLUTION
    def attend_in_ring(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
        blocks = in_zigzag(rank, world, q_BHTK.shape[2] // 2)
        return RingAttention.apply(q_BHTK, k_BHTK, v_BHTK, blocks, rank, world)

    for block in model.blocks:
        block.attention.attend = attend_in_ring
    ### END SOLUTION


def backward_pass(model: TransformerLM, x_BT: Tensor, y_BT: Tensor, positions_T: Tensor) -> float:
    """The loss over the targets of all ranks; and each parameter's ``grad`` is then that of it, the same on all ranks.

    The arguments are this rank's share. Gradients are None before.
    """
    # TODO 8, again: loss and gradients. dist.all_reduce(tensor) adds up over the ranks, in place.
    ### BEGIN SOLUTION
    mine = (y_BT != IGNORE).sum()
    everybodys = mine.clone()
    dist.all_reduce(everybodys)
    loss = model(x_BT, y_BT, positions_T) * mine / everybodys.clamp(min=1)
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    total = loss.detach()
    dist.all_reduce(total)
    return total.item()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_8", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("06_context_parallel/8")

# %% [markdown]
# Train it: the same 64 tokens on one, two and four ranks, and look at the losses and at the bytes that are alive
# between
# the forward and the backward pass, less the weights. With every rank that joins, each holds less.


# %%
def train(steps: int, rank: int, world: int) -> dict:
    """Losses of some steps, and the bytes of activations after the first forward pass."""
    torch.manual_seed(0)
    model = TransformerLM(vocab_size=29, dim=32, n_heads=4, n_layers=2, max_len=64)
    tokens = torch.randint(29, (2, 65), generator=torch.Generator().manual_seed(1))
    share = my_share(tokens[:, :-1], tokens[:, 1:], rank, world)
    use_ring(model, rank, world)
    with Storages(model.parameters()) as storages:
        loss = model(*share)
        activations = storages.by_kind({"weights": model.parameters()})["other"]
    del loss
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(backward_pass(model, *share))
        optimizer.step()
    return {"losses": losses, "activations": activations}


# %%
trained = {n: run_on_ranks("06_context_parallel/train", [10] * n).results for n in (1, 2, 4)}
for n, ranks in trained.items():
    print(f"world size {n}: losses {', '.join(f'{loss:.5f}' for loss in ranks[0]['losses'][:5])} …")
plots.trained(trained)

# %% [markdown]
# ## In the libraries
#
# | there | here |
# |---|---|
# | torch's `context_parallel`, as torchtitan uses it | deals tensors out in zig-zag; a ring in place of attention |
# | Megatron-LM's `--context-parallel-size` | a ring, or all-to-alls, in zig-zag |
# | DeepSpeed-Ulysses' `DistributedAttention` | `ulysses`, around any attention |
# | Llama 3 ([arXiv:2407.21783](https://arxiv.org/abs/2407.21783)) | zig-zag; the few keys and values are gathered |
#
# (Llama 3 has 8 heads of keys and values for 64 or 128 of queries or more, which makes them small; and one all-gather
# does with
# any mask, also where several documents share a sequence.)
#
# ## What comes of it
#
# - **Use it** when one sequence does not fit: activations, which no stage of ZeRO touches, are divided by $N$. Weights,
#   gradients and optimizer state are not: on top, shard them, over the same ranks.
# - **Do not use it** for short sequences. As long as there are sequences enough, data-parallel ranks send less: nothing
#   in a layer.
# - **Ulysses** while the ranks divide the heads, best within a node, where an all-to-all is fast. With tensor
#   parallelism the
#   heads are divided twice.
# - **The ring** beyond that, between nodes, for sequences so long that the products hide it. Both can be combined:
#   Ulysses within
#   a node, a ring over the nodes.
# - Next: `07_expert_parallel`, where an all-to-all brings each token to its expert.
