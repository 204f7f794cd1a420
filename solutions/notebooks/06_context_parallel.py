# %% [markdown]
# # Context parallel: a sequence that no rank holds
#
# Data-parallel training gives each rank different sequences, and sharding gives each rank different weights. Neither
# helps when **one** sequence is too long: a book, an hour of video, a repository of code. What a layer keeps for its
# backward pass grows with every token, until the activations of a single sequence fill the GPU.
#
# So cut the sequence. With **context parallel** training each of $N$ ranks holds $1/N$ of the tokens, through the whole
# model. Embeddings, norms, MLPs and the loss look at one token at a time, so for them nothing changes. Only attention
# looks at other tokens, and those are on other ranks. There are two ways to bring them together, and you build both:
#
# - **Ring attention** ([arXiv:2310.01889](https://arxiv.org/abs/2310.01889)): queries stay, keys and values rotate.
# - **Ulysses** ([arXiv:2309.14509](https://arxiv.org/abs/2309.14509)): during attention, each rank exchanges
#   its share of the tokens for a share of the heads.
#
# At the end you train the course's model on a sequence that no rank ever sees as a whole.
#
# *Builds on*: messages, rings and all-to-all (`01_collectives`); losses as sums and counts (`02_data_parallel`).

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
# The sum in the denominator runs over the whole sequence, and no rank has the whole sequence. But a sum can be computed
# in pieces. When a query has attended to some keys, two things are enough to continue with more keys: the output so
# far, and the denominator so far. Since $e^{S}$ overflows at a score of 89, you store the logarithm of the sum, the
# **log-sum-exp** $L_i = \log \sum_j e^{S_{ij}}$.
#
# Two pieces with $(o, L)$ and $(o', L')$ combine to
#
# $$L'' = \log\left(e^{L} + e^{L'}\right), \qquad o'' = e^{L - L''}\, o + e^{L' - L''}\, o'$$
#
# so the old output is scaled down whenever a larger score appears. This is the *online softmax*
# ([arXiv:1805.02867](https://arxiv.org/abs/1805.02867)), the core of FlashAttention
# ([arXiv:2205.14135](https://arxiv.org/abs/2205.14135)). These calls subtract the maximum before they use `exp`, so
# nothing overflows:
#
# | call | |
# |---|---|
# | `x.logsumexp(dim=-1)` | $\log \sum e^x$ over the last dimension; $-\infty$ where all of them are |
# | `torch.logaddexp(a, b)` | $\log(e^a + e^b)$, number by number |
# | `x.clamp(min=…)` | replaces smaller numbers by that number; `torch.finfo(x.dtype).min` is the smallest number of a dtype |
#
# One case needs care. A causal mask may hide a whole piece from a query. Then its log-sum-exp is $-\infty$, its
# output is 0, and $-\infty - (-\infty)$ is not 0 but `nan`. One `nan` is enough to ruin a training run.
#
# (Letters in names are shapes, as in the model: B sequences, H heads, T queries, S keys, K numbers per head.)


# %%
def scores(q_BHTK: Tensor, k_BHSK: Tensor, mask_TS: Tensor | None) -> Tensor:
    """The score of each query with each key, (B, H, T, S); minus infinity where the mask is False."""
    scores_BHTS = q_BHTK @ k_BHSK.transpose(-2, -1) / math.sqrt(q_BHTK.shape[-1])
    return scores_BHTS if mask_TS is None else scores_BHTS.masked_fill(~mask_TS, -math.inf)


def finite(lse: Tensor) -> Tensor:
    """The same, but never minus infinity, so that minus infinity minus this is still minus infinity."""
    return lse.clamp(min=torch.finfo(lse.dtype).min)


# %% nbgrader={"grade": false, "grade_id": "todo_1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def attend(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask_TS: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention to one piece of the keys and values: the output (B, H, T, K),
    and the log-sum-exp (B, H, T).
    """
    # TODO 1: Attend to a sequence in pieces. First, to one piece. If a query sees none of its keys,
    # the output is 0 and the log-sum-exp is minus infinity.
    ### BEGIN SOLUTION
    scores_BHTS = scores(q_BHTK, k_BHSK, mask_TS)
    lse_BHT = scores_BHTS.logsumexp(dim=-1)
    weights_BHTS = (scores_BHTS - finite(lse_BHT)[..., None]).exp()
    return weights_BHTS @ v_BHSK, lse_BHT
    ### END SOLUTION


def merge(
    out_BHTK: Tensor, lse_BHT: Tensor, new_out_BHTK: Tensor, new_lse_BHT: Tensor
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of two pieces together, from the output and log-sum-exp of each piece."""
    # TODO 1, again: combine two pieces. Either of them, or both, may have been hidden from a query.
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
print(f"keys 0 to 2, 3 and 4, 5 to 7, one after the other: {apart:.1g} from all keys at once")

# %% nbgrader={"grade": true, "grade_id": "test_1", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("06_context_parallel/1")

# %% [markdown]
# ## Rotate keys and values
#
# Now each rank has its own tokens' queries, keys and values. It attends to its own piece. Then it sends its keys and
# values to its right neighbour, receives its left neighbour's, and attends to them. After $N$ steps its queries have
# seen all keys, and it has never held more than its own piece, the current piece, and the next one.
#
# ![Four ranks in four steps: queries stay, keys and values move to the next rank, from the last to the first](../images/context_ring.svg)
#
# A list of **blocks** says which scores are needed: `(rows, columns, mask)` are the queries, the keys, and
# which query sees which key. For now every query sees every key, so there is one block with everything. The causal mask
# comes later, and needs no change to the ring. In your ring, `blocks(source)` is the list for the keys of rank
# `source`.

# %%
# rows of queries, columns of keys, and a mask (None: all are seen)
Block = tuple[slice, slice, Tensor | None]


def everything(source: int) -> list[Block]:
    """Without a causal mask, every query of this rank sees every key of every rank."""
    return [(slice(None), slice(None), None)]


def nothing_yet(q_BHTK: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of queries that have not seen any key."""
    return torch.zeros_like(q_BHTK), q_BHTK.new_full(q_BHTK.shape[:-1], -math.inf)


def attend_blocks(
    out_BHTK: Tensor, lse_BHT: Tensor, q_BHTK: Tensor, k: Tensor, v: Tensor, blocks: list[Block]
) -> None:
    """Attend to these blocks of the keys, and merge the results into output and log-sum-exp,
    in place.
    """
    for rows, columns, mask in blocks:
        piece = attend(q_BHTK[:, :, rows], k[:, :, columns], v[:, :, columns], mask)
        out_BHTK[:, :, rows], lse_BHT[:, :, rows] = merge(
            out_BHTK[:, :, rows], lse_BHT[:, :, rows], *piece
        )


# %% [markdown]
# Messages work as in lesson 01: `dist.isend(tensor, to)` and `dist.irecv(tensor, source)` return at once with a
# *work*, and the message is complete after `work.wait()`. A tensor that is sent, or
# received into, must be contiguous: its numbers are one after the other in memory. The model's keys are not;
# `tensor.contiguous()` returns a tensor that is. (`torch.empty_like(tensor)` may keep the strides of `tensor`: make
# room for what arrives from a contiguous one.)
#
# **Predict** which rank's keys a rank holds in step $s$. The first step is $s = 0$.


# %% nbgrader={"grade": false, "grade_id": "todo_2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def at_hand(rank: int, step: int, world: int) -> int:
    """The rank whose keys and values a rank holds in this step, counted from 0."""
    # TODO 2: Rotate keys and values through a ring. First your prediction: which rank's are here
    # in each step?
    ### BEGIN SOLUTION
    return (rank - step) % world
    ### END SOLUTION


def start_to_pass_on(
    tensors: list[Tensor], rank: int, world: int
) -> tuple[list[Tensor], list[dist.Work]]:
    """Start to send tensors to the right neighbour, and to receive as many from the left neighbour.

    Returns:
        What arrives, to be read when all works are complete; and the works. A ring of one rank sends
        nothing: then the given tensors "arrive", and there are no works.
    """
    # TODO 2, again: one round. The caller waits.
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
    """The same, and wait: returns what the left neighbour had."""
    arriving, works = start_to_pass_on(tensors, rank, world)
    for work in works:
        work.wait()
    return arriving


def ring_forward(
    q_BHTK: Tensor,
    k_BHTK: Tensor,
    v_BHTK: Tensor,
    blocks: Callable[[int], list[Block]],
    rank: int,
    world: int,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of this rank's queries, over the keys and values of all ranks."""
    # TODO 2, again: the ring. There are N steps, but N - 1 rounds of messages: after the last step no
    # rank needs keys and values. Do not keep pieces that have passed.
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
# ## The backward pass
#
# Autograd cannot follow a tensor through a message, and it would keep every piece that passed. So write the backward
# pass yourself. With the log-sum-exp $L$ of the **whole** row, the weights of any block can be recomputed, as
# FlashAttention does, and no scores are stored. For a block, with $\mathrm{d}O$ the gradient of the output $O$:
#
# $$P_{ij} = e^{S_{ij} - L_i}, \qquad \mathrm{d}V = P^T \mathrm{d}O, \qquad \mathrm{d}P = \mathrm{d}O\, V^T$$
#
# $$D_i = \sum_k \mathrm{d}O_{ik} O_{ik}, \qquad \mathrm{d}S_{ij} = P_{ij}\, (\mathrm{d}P_{ij} - D_i), \qquad
# \mathrm{d}Q = \frac{\mathrm{d}S\, K}{\sqrt K}, \qquad \mathrm{d}K = \frac{\mathrm{d}S^T Q}{\sqrt K}$$
#
# $O$ and $L$ belong to the whole row, not to the block: the softmax couples all keys of a row, and $D_i$ is
# everything that a block needs to know about the others. (The $K$ under the root is the width of a head.)
#
# The gradient of the queries stays with the queries. But keys and values rotate again, and every rank has a
# contribution to their gradients. So these gradients **travel along**: a rank adds its contribution to the gradient of
# the current keys, and sends both on. After the last step the gradients are at the left neighbour of the rank to which
# they belong. How many rounds does it take until they are back?
#
# ![Three ranks: gradients travel with keys and values, and return in a last round](../images/context_backward.svg)


# %% nbgrader={"grade": false, "grade_id": "todo_3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def attend_backward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lse: Tensor, delta: Tensor, grad_out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What one block of scores adds to the gradients of its queries, keys and values.

    Args:
        lse, delta: (B, H, T), of the whole rows: the log-sum-exp, and the sum of gradient times output
        (D above).
        grad_out: (B, H, T, K), the gradient of the output.
    """
    # TODO 3: Bring the gradients back to their ranks. First, the gradients of one block. A query may see
    # no key at all.
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
    """Add to the gradients of q, k and v, in place, what these blocks add. ``of_rows``: lse,
    delta and grad_out.
    """
    grad_q, grad_k, grad_v = grads
    for rows, columns, mask in blocks:
        known = [tensor[:, :, rows] for tensor in of_rows]
        piece = attend_backward(q[:, :, rows], k[:, :, columns], v[:, :, columns], mask, *known)
        grad_q[:, :, rows] += piece[0]
        grad_k[:, :, columns] += piece[1]
        grad_v[:, :, columns] += piece[2]


def ring_backward(
    q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor,
    out_BHTK: Tensor, lse_BHT: Tensor, grad_out_BHTK: Tensor,
    blocks: Callable[[int], list[Block]], rank: int, world: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of this rank's queries, keys and values; for keys and values,
    from the queries of all ranks.
    """
    # TODO 3, again: the ring. Keys and values are sent on N - 1 times. How often are their gradients?
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
# | `forward(ctx, …)` | computes; autograd records nothing inside it |
# | `ctx.save_for_backward(a, b)` | keeps tensors for the backward pass; everything else is an attribute: `ctx.world = world` |
# | `backward(ctx, grad)` | gets the gradient of what `forward` returned, and has the tensors in `ctx.saved_tensors` |
# | | returns a gradient for each argument of `forward`, `None` for arguments that are not tensors |
#
# What you save is the activation memory of a layer. Save nothing that grows with the number of ranks.


# %% nbgrader={"grade": false, "grade_id": "todo_3_function", "locked": false, "schema_version": 3, "solution": true, "task": false}
class RingAttention(torch.autograd.Function):
    """`RingAttention.apply(q, k, v, blocks, rank, world)` is this rank's output, (B, H, T, K)."""

    @staticmethod
    def forward(
        ctx, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, blocks: Callable, rank: int, world: int
    ) -> Tensor:
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
# ## The causal mask, and balance
#
# In a language model a token sees only itself and earlier tokens, so half of all scores are not needed. Take four ranks
# that each hold a quarter of the sequence, in order. Rank 0's queries see only rank 0's keys: in three of four steps it
# has nothing to do. Rank 3's queries see almost everything. All ranks wait for rank 3, so the mask saves no time.
#
# The solution is to cut the sequence into $2N$ pieces, twice as many as there are ranks, and to give each rank two of
# them, an early one and a late one, so that all ranks have the same work. This is called **zig-zag**; work out which
# two these are.
#
# From now on, everything about a token depends on its place in the whole sequence: which keys its query sees, its
# position in the model, its target. Its place on the rank does not matter.
#
# **Predict** the work of a rank: the number of pairs of a query and a key that it sees. A query also sees itself.


# %% nbgrader={"grade": false, "grade_id": "todo_4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def pairs_of(pieces: list[int], size: int) -> int:
    """The number of (query, visible key) pairs of a rank whose queries are the tokens of these pieces.

    Pieces have ``size`` tokens each, and are numbered from 0 through the whole sequence.
    """
    # TODO 4: Compute only what the causal mask lets a query see, and balance the work. First your
    # prediction: the work of a rank.
    ### BEGIN SOLUTION
    return sum(piece * size * size + size * (size + 1) // 2 for piece in pieces)
    ### END SOLUTION


def pieces_of(rank: int, world: int) -> list[int]:
    """The numbers of the two pieces, of 2 * world, that a rank has: zig-zag."""
    # TODO 4, again: which two pieces belong together, so that all ranks have the same work? Any rank may
    # have any of these pairs, in either order.
    ### BEGIN SOLUTION
    return [rank, 2 * world - 1 - rank]
    ### END SOLUTION


def positions_of(pieces: list[int], size: int) -> Tensor:
    """The positions in the whole sequence of the tokens of these pieces, one piece after the other:
    int64, 1-D.
    """
    # TODO 4, again: where are a rank's tokens in the sequence? Pieces are given in any order.
    ### BEGIN SOLUTION
    return torch.cat([torch.arange(piece * size, (piece + 1) * size) for piece in pieces])
    ### END SOLUTION


def causal_blocks(mine: list[int], theirs: list[int], size: int) -> list[Block]:
    """The blocks of scores that queries in the pieces ``mine`` need with keys in the pieces ``theirs``.

    Queries and keys are in memory piece after piece, in the order of the lists. Each list may have one
    piece or several.
    """
    # TODO 4, again: a block for each pair of pieces in which anything is visible, and none for the
    # others. If everything is visible, the mask is None. `torch.ones(n, n, dtype=torch.bool).tril()` is
    # True on and below the diagonal.
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
    """For the ring: what a rank's queries see of another rank's keys,
    if the sequence is distributed in zig-zag.
    """
    return lambda source: causal_blocks(pieces_of(rank, world), pieces_of(source, world), size)


def in_order(rank: int, world: int, size: int) -> Callable[[int], list[Block]]:
    """The same, if rank r has piece r, one of N."""
    return lambda source: causal_blocks([rank], [source], size)


# %% nbgrader={"grade": true, "grade_id": "test_4", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("06_context_parallel/4")

# %% [markdown]
# The picture shows both ways. Llama 3 was trained with zig-zag
# ([arXiv:2407.21783](https://arxiv.org/abs/2407.21783), section 3.3.2).
#
# ![The scores of four ranks: in order, from 36 to 228; in zig-zag, 132 each](../images/context_blocks.svg)
#
# Count the work of your own blocks, on four ranks with a sequence of 32 tokens. The pale part is computed
# and then masked: a triangle is half a square. Smaller pieces have smaller triangles.


# %%
def count_pairs(dealt: str, rank: int, world: int) -> dict[str, int]:
    """Pairs of query and key that a rank computes for its 8 tokens, and how many of them are visible."""
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
# sending only reads the current ones. So **start** the exchange first, compute, and wait when nothing else is left to
# do. If the products of a step take longer than its messages, the messages are hidden.
#
# ![Two timelines: compute and exchange in turns, and at the same time](../images/context_overlap.svg)
#
# In the backward pass, keys and values can be sent ahead in the same way. Their gradients cannot: a rank must add its
# contribution before it sends them on. (With one more buffer you can hide these messages, too: compute the contribution
# separately while the sum of the others arrives, then add.)
#
# The judge sees every message, every wait and every matrix product (`@`, `torch.einsum`, attention). At least half of a
# step's work must be between the start of an exchange and the first wait for it.


# %% nbgrader={"grade": false, "grade_id": "todo_5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def overlapped_forward(
    q_BHTK: Tensor,
    k_BHTK: Tensor,
    v_BHTK: Tensor,
    blocks: Callable[[int], list[Block]],
    rank: int,
    world: int,
) -> tuple[Tensor, Tensor]:
    """What `ring_forward` returns."""
    # TODO 5: Let the next keys and values travel while this rank computes. First, forward. The
    # budget of the ring is the same: N - 1 rounds, and no piece is kept after it has passed.
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
    q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor,
    out_BHTK: Tensor, lse_BHT: Tensor, grad_out_BHTK: Tensor,
    blocks: Callable[[int], list[Block]], rank: int, world: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """What `ring_backward` returns."""
    # TODO 5, again: backward. Keys and values travel while this rank computes; their gradients may
    # travel at any time.
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
# Attention mixes tokens, but it never mixes heads. So a rank can just as well have **all tokens of some heads**
# instead of some tokens of all heads. An all-to-all exchanges one for the other, before the attention and after it:
#
# ![A table of heads and tokens: before, a rank has columns; after, rows](../images/context_ulysses.svg)
#
# In between, any attention of one process works, including the fastest kernel. The price: there cannot be more ranks
# than heads, and the number of ranks must divide the number of heads. Here the sequence is distributed **in order**
# (rank 0 has the first tokens): each rank has the whole sequence while it attends, so there is nothing to balance.
#
# | call | |
# |---|---|
# | `dist.all_to_all_single(output, input)` | part $j$ of `input` goes to rank $j$; part $i$ of `output` comes from rank $i$ |
# | | the parts are $N$ equal pieces of the first dimension, and both tensors must be contiguous |
# | `x.unflatten(dim, (a, b))`, `x.flatten(dim, dim + 1)` | splits one dimension into two, and joins two neighbours |
# | `x.movedim(a, b)` | the same tensor with dimension `a` at place `b` |
#
# What about the backward pass? Gradients return on the same path: the gradient of one exchange is the other exchange.
#
# **Budget**: a rank sends its queries, keys and values once and receives its output once; the same for their
# gradients in the backward pass. A rank's own $1/N$ of each need not be sent. No rank has room for all heads
# of all tokens: it holds a few copies of its share, and the scores of its heads if your attention computes
# them.


# %% nbgrader={"grade": false, "grade_id": "todo_6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def tokens_to_heads(x_BHTK: Tensor, world: int) -> Tensor:
    """From this rank's tokens of all heads to all tokens of its heads:
    (B, H, T, K) to (B, H / N, N * T, K).
    """
    # TODO 6: Exchange tokens for heads, attend, and exchange back. First tokens for heads. Rank r has
    # the r-th H / N heads.
    ### BEGIN SOLUTION
    leaving = x_BHTK.unflatten(1, (world, -1)).movedim(1, 0).contiguous()  # N, B, H / N, T, K
    arriving = torch.empty_like(leaving)
    dist.all_to_all_single(arriving, leaving)
    return arriving.movedim(0, 2).flatten(2, 3)
    ### END SOLUTION


def heads_to_tokens(x_BHTK: Tensor, world: int) -> Tensor:
    """The inverse: (B, H / N, N * T, K) to (B, H, T, K)."""
    # TODO 6, again: the way back.
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
        # TODO 6, again: the gradient of this rank's tokens, from the gradient of its heads.
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
        # TODO 6, again: the gradient of this rank's heads, from the gradient of its tokens.
        ### BEGIN SOLUTION
        return tokens_to_heads(grad, ctx.world), None
        ### END SOLUTION


def ulysses(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, world: int) -> Tensor:
    """Causal attention of this rank's queries, (B, H, T, K). Rank r has the r-th T tokens of the
    sequence.

    Raises:
        ValueError: the number of ranks does not divide the number of heads.
    """
    # TODO 6, again: causal attention. Before anything is sent, refuse what cannot work with a ValueError
    # whose text has both numbers, heads and ranks.
    ### BEGIN SOLUTION
    heads = q_BHTK.shape[1]
    if heads % world:
        raise ValueError(f"{heads} heads cannot be divided evenly among {world} ranks")
    q_BHTK, k_BHTK, v_BHTK = (TokensToHeads.apply(tensor, world) for tensor in (q_BHTK, k_BHTK, v_BHTK))
    out_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
    return HeadsToTokens.apply(out_BHTK, world)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_6", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("06_context_parallel/6")

# %% [markdown]
# ## Which one, when?
#
# Let $S$ be the bytes of one rank's queries in a layer: $B \cdot H \cdot T/N \cdot K$ numbers, for sequences of $T$
# tokens. Keys and values have as many. **Predict** what a rank sends in the forward pass of one layer, in how many
# rounds or collectives, and when the ring's messages are hidden:
#
# - In the ring, keys and values of a step are sent at the same time: one round.
# - A product of an $m \times k$ and a $k \times n$ matrix takes $2mkn$ floating-point operations (FLOPs). In a step
#   of the ring a rank has $c = T/N$ queries and as many keys; there are two products, and without a mask both are
#   computed completely. With the causal mask in zig-zag, half of that in each step except the first.
# - A GPU computes $F$ FLOPs per second and sends $W$ bytes per second. The larger $c$, the more work per byte.


# %% nbgrader={"grade": false, "grade_id": "todo_7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def ring_cost(nbytes: int, world: int) -> tuple[int, float]:
    """The number of rounds, and the bytes that a rank sends, in the ring's forward pass of one layer.

    A rank's queries have ``nbytes`` bytes; so have its keys and its values.
    """
    # TODO 7: Predict what both ways cost. First the ring.
    ### BEGIN SOLUTION
    return world - 1, 2 * (world - 1) * nbytes
    ### END SOLUTION


def ulysses_cost(nbytes: int, world: int) -> tuple[int, float]:
    """The number of all-to-alls, and the bytes that a rank sends to others, in Ulysses' forward pass of
    one layer.

    Queries, keys, values and output have ``nbytes`` bytes each on a rank, and each has its own
    all-to-all.
    """
    # TODO 7, again: Ulysses. With one rank there are also four; they send nothing.
    ### BEGIN SOLUTION
    return 4, 4 * (world - 1) / world * nbytes
    ### END SOLUTION


def most_ranks(heads: int, available: int) -> int:
    """The largest number of ranks, out of those available,
    with which Ulysses works for this number of heads.
    """
    # TODO 7, again: the limit of Ulysses.
    ### BEGIN SOLUTION
    return max(ranks for ranks in range(1, available + 1) if heads % ranks == 0)
    ### END SOLUTION


def hiding_length(flops: float, bandwidth: float, itemsize: int, causal: bool) -> float:
    """The fewest tokens per rank with which a step of the ring computes for as long as it sends.

    Args:
        flops: floating-point operations per second.
        bandwidth: bytes per second.
        itemsize: bytes per number.
        causal: whether only half of a step's scores are computed, as in zig-zag.
    """
    # TODO 7, again: at what length does the ring begin to hide its messages?
    ### BEGIN SOLUTION
    # Whole step: 4 B H c² K FLOPs, and 2 B H c K numbers to send.
    length = itemsize * flops / (2 * bandwidth)
    return 2 * length if causal else length
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_7", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("06_context_parallel/7")

# %%
for name, bandwidth in (("within a node, 450 GB/s", 450e9), ("between nodes, 50 GB/s", 50e9)):
    length = hiding_length(400e12, bandwidth, 2, causal=True)
    print(f"{name}: the ring's messages are hidden at {length:,.0f} tokens per rank or more")


# %%
def sent_by(way: str, rank: int, world: int) -> int:
    """One forward pass of 8 heads and 64 tokens, on any number of ranks,
    to count its messages and collectives.
    """
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
    "Ulysses": {
        n: sum(c.sent for c in run.collectives if c.rank == 0) for n, run in ulysses_runs.items()
    },
}
predicted = {
    "ring": {n: ring_cost(run.results[0], n)[1] for n, run in ring_runs.items()},
    "Ulysses": {n: ulysses_cost(run.results[0], n)[1] for n, run in ulysses_runs.items()},
}
plots.sent(measured, predicted)

# %% [markdown]
# For one sequence of fixed length, a rank of the ring sends more with each additional rank: half of the sequence's
# keys and values on 2 ranks, and nearly all of them on many. A rank of Ulysses sends less and less. But Ulysses waits
# for its messages, while the ring hides them; and the ring works with any number of ranks.

# %% [markdown]
# ## The whole model
#
# All other layers look at one token at a time, so a rank runs the model on its own tokens. Four things must follow the
# distribution of the tokens:
#
# - the **tokens** and their **targets**, cut from the sequence in the same way,
# - their **positions**: the model takes them as `model(x, y, positions)`,
# - the **attention**: you may set a block's `block.attention.attend` to any function of `(q_BHTK, k_BHTK, v_BHTK)`,
# - the **loss**: `model(x, y, positions)` is the mean over *this rank's* targets that count (`y != IGNORE`). We need
#   the mean over the targets of *all* ranks, and ranks may have unequal numbers of them, or none: then the model
#   returns 0, and gradients of 0. If no rank has any, the loss of the whole sequence is 0, too.
#
# What about the gradients? Each rank has the same weights, but different tokens. The loss is a *sum* over ranks, since each
# divides by the number of all targets; so the gradients are a sum over ranks, too. An average would be wrong
# by a factor of $N$, and the loss would not show it.


# %% nbgrader={"grade": false, "grade_id": "todo_8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def my_share(x_BT: Tensor, y_BT: Tensor, rank: int, world: int) -> tuple[Tensor, Tensor, Tensor]:
    """This rank's tokens, their targets, and their positions, distributed in zig-zag.

    Raises:
        ValueError: 2 * world does not divide the number of tokens.
    """
    # TODO 8: Train the model on a sequence that no rank holds. First, distribute it. Refuse wrong
    # lengths with a ValueError whose text has both numbers, the tokens and the 2 * world pieces.
    # `x[:, positions]` takes columns.
    ### BEGIN SOLUTION
    tokens = x_BT.shape[1]
    if tokens % (2 * world):
        raise ValueError(
            f"{tokens} tokens cannot be divided into {2 * world} equal pieces,"
            f" two for each of {world} ranks"
        )
    positions = positions_of(pieces_of(rank, world), tokens // (2 * world))
    return x_BT[:, positions], y_BT[:, positions], positions
    ### END SOLUTION


def use_ring(model: TransformerLM, rank: int, world: int) -> None:
    """From now on, let the model's blocks attend with `RingAttention`, in zig-zag,
    for any length of input.
    """

    # TODO 8, again: the attention of each block. How long is a piece? Half of the rank's tokens.
    ### BEGIN SOLUTION
    def attend_in_ring(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
        blocks = in_zigzag(rank, world, q_BHTK.shape[2] // 2)
        return RingAttention.apply(q_BHTK, k_BHTK, v_BHTK, blocks, rank, world)

    for block in model.blocks:
        block.attention.attend = attend_in_ring
    ### END SOLUTION


def backward_pass(model: TransformerLM, x_BT: Tensor, y_BT: Tensor, positions_T: Tensor) -> float:
    """The loss over the targets of all ranks. Leaves its gradient in each parameter's ``grad``, the same
    on all ranks.

    The arguments are this rank's share. Gradients are None before the call.
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
# Train it: the same 64 tokens on one, two and four ranks. Look at the losses and at the bytes that are alive between
# the forward and the backward pass, without the weights. With every additional rank, each holds less.


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
# | torch's `context_parallel`, as torchtitan uses it | zig-zag; all-gathers keys and values by default, and can rotate them |
# | Megatron-LM's `--context-parallel-size` | a ring, or all-to-alls, in zig-zag |
# | DeepSpeed-Ulysses' `DistributedAttention` | `ulysses`, around any attention |
# | Llama 3 ([arXiv:2407.21783](https://arxiv.org/abs/2407.21783)) | zig-zag; keys and values, which are small, are gathered |
#
# (Llama 3 has 8 heads of keys and values for 32, 64 or 128 heads of queries, which makes keys and values small. One
# all-gather also works with any mask, for example where several documents are in one sequence.)

# %% [markdown]
# ## When to use it
#
# - **Use it** when one sequence does not fit: activations, which no stage of ZeRO divides, are divided by $N$. Weights,
#   gradients and optimizer state are not; shard those in addition, over the same ranks.
# - **Do not use it** for short sequences. As long as there are enough sequences, data-parallel ranks send less: nothing
#   within a layer.
# - **Ulysses** as long as the number of ranks divides the number of heads, best within a node, where an all-to-all is
#   fast. Together with tensor parallelism the heads are divided twice.
# - **The ring** beyond that, between nodes, for sequences so long that computation hides it. Both can be combined:
#   Ulysses within a node, a ring across nodes.

# %% [markdown]
# ## Recap
#
# 1. Only attention mixes tokens; all other layers work on a rank's own tokens.
# 2. Output and log-sum-exp are enough to combine attention over pieces of the keys, in any order.
# 3. In the ring, keys and values rotate; in the backward pass their gradients travel along, and return in one more
#    round.
# 4. Zig-zag gives all ranks the same work under a causal mask; tokens, targets and positions follow it.
# 5. Ulysses exchanges tokens for heads: fewer bytes, any attention kernel, at most as many ranks as heads.
#
# *Papers.* Ring attention: [arXiv:2310.01889](https://arxiv.org/abs/2310.01889). Striped:
# [arXiv:2311.09431](https://arxiv.org/abs/2311.09431). Ulysses: [arXiv:2309.14509](https://arxiv.org/abs/2309.14509).
# Both combined: [arXiv:2405.07719](https://arxiv.org/abs/2405.07719). Online softmax and FlashAttention:
# [arXiv:1805.02867](https://arxiv.org/abs/1805.02867), [arXiv:2205.14135](https://arxiv.org/abs/2205.14135).
#
# Next: `07_expert_parallel`, where an all-to-all brings each token to its expert.
