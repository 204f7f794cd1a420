# %% [markdown]
# # Tensor parallelism: one matrix product on several ranks
#
# ZeRO divides what is *held*: before a layer computes, its weights are gathered, and every rank computes the whole
# layer, on its own samples. Tensor parallelism divides what is *computed*: each rank permanently keeps its part of
# every weight matrix and multiplies by it, and the ranks exchange activations. All ranks work on **the same samples**.
#
# This allows layers that are too large for one device, speeds up a step on a single sequence, and shrinks activations.
# The price: the ranks communicate in the middle of every layer, twice forward and twice backward.
#
# In this lesson you build the layers of Megatron-LM ([arXiv:1909.08053](https://arxiv.org/abs/1909.08053)) by hand,
# build the course's language model from them, and compare its training with the serial run. Part 1 has the layers; part 2 has
# sequence parallelism, memory and dropout, and shows where tensor parallelism stops paying.
#
# *Builds on*: collectives and their cost (`01_collectives`), averaged gradients (`02_data_parallel`), shards
# (`03_zero`). *Shapes*: B sequences of T tokens, width D, V words, $t$ ranks; `x_BTD` is a tensor of shape (B, T, D).
# The tensor (B, T, D) that flows from block to block is called the **stream**.
#
# ![An MLP on two ranks: the first weight is cut by columns, the second by rows](../images/tensor_parallel_mlp.svg)

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import sys
from pathlib import Path

here = Path.cwd().resolve()
course = next(folder for folder in (here, *here.parents) if (folder / "grader").is_dir())
sys.path.insert(0, str(course))

from grader import check

# %%
import copy
import time
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from grader import run_on_ranks
from utils.plots import tensor_parallel as plots
from utils.data import IGNORE
from utils.memory import Storages, at_rest
from utils.model import MLP, Attention, Block, TransformerLM

# %% [markdown]
# # Part 1: the layers

# %% [markdown]
# ## What does it cost?
#
# A block of the course's model has six matrices. The attention's `q`, `k`, `v` and `out` are $D \times D$, the MLP's
# `up` and `down` are $4D \times D$ and $D \times 4D$; none has a bias. Its two norms have $2D$ numbers each.
#
# On $t$ ranks every matrix is cut into $t$ parts, one for each rank. Each rank has the whole norms. In a step, a block
# takes **four all-reduces** of an activation of $B \times T \times D$ numbers: one after the attention and one after
# the MLP, and two more in the backward pass.
#
# FSDP cuts all parameters of the block into $N$ parts, norms included. It gathers the whole block for the forward pass,
# gathers it again for the backward pass, and reduce-scatters the gradients.
#
# (From `01_collectives`: a ring all-reduce of $S$ bytes on $N$ ranks sends $2\frac{N-1}{N}S$ bytes from each rank; an
# all-gather or a reduce-scatter sends half of that.)
#
# These formulas say what a rank holds and sends, in float32:


# %%
def block_weights(dim: int, world: int) -> float:
    """Numbers that a rank holds of one block's parameters with tensor parallelism on ``world`` ranks."""
    return 12 * dim**2 / world + 4 * dim  # the norms are copies


def tensor_parallel_bytes(batch: int, length: int, dim: int, world: int) -> float:
    """Bytes that a rank sends for one block in a step: batch × length tokens of ``dim`` numbers."""
    return 4 * 2 * (world - 1) / world * (4 * batch * length * dim)


def fsdp_bytes(dim: int, world: int) -> float:
    """The same with FSDP on ``world`` ranks, each with its own samples."""
    return 3 * (world - 1) / world * 4 * (12 * dim**2 + 4 * dim)


# %% [markdown]
# **Predict** before you continue: both train on the same batch, on the same ranks. Which of the two sends more? For how
# many tokens does that change?


# %% nbgrader={"grade": false, "grade_id": "todo_1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def even_tokens(dim: int, world: int) -> float:
    """The tokens in a batch, not rounded, at which a rank sends as many bytes with tensor parallelism as
    with FSDP.

    The ``world`` ranks, 2 or more, train on this batch together: it is the whole batch, not one rank's
    part.
    """
    # TODO 1: Find the batch size at which tensor parallelism and FSDP send the same number of bytes.
    ### BEGIN SOLUTION
    return fsdp_bytes(dim, world) / tensor_parallel_bytes(1, 1, dim, world)
    ### END SOLUTION


# %%
for tokens in (1_000, 4_000, 16_000, 64_000):
    sent = {"tensor parallelism": tensor_parallel_bytes(1, tokens, 4096, 8), "FSDP": fsdp_bytes(4096, 8)}
    print(f"{tokens:6,} tokens of width 4096, on 8 ranks, for one block:")
    for how, nbytes in sent.items():
        each, share = nbytes / 1e9, nbytes / tokens / 1e3
        print(f"    {how:18} {each:5.2f} GB from each rank, {share:6,.0f} kB a token")
print(f"equal at {even_tokens(4096, 8):,.0f} tokens")

# %% nbgrader={"grade": true, "grade_id": "test_1", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("04_tensor_parallel/1")

# %% [markdown]
# FSDP's bytes depend on the weights alone, tensor parallelism's on the tokens and the width. They meet at about
# $4.5\,D$ tokens in the batch, on any number of ranks: with more, FSDP sends less. (Two counts of tokens are easily
# confused here: a tensor-parallel rank works on all tokens of that batch, an FSDP rank on $1/N$ of them.)
#
# One difference appears in no formula here: FSDP can gather the next block while this one computes. A tensor-parallel
# layer *waits* for its all-reduce, since what comes next needs the sum. Asynchronous tensor parallelism hides part of
# that: it cuts product and message into pieces, and sends one piece while it computes the next
# ([arXiv:2410.06511](https://arxiv.org/abs/2410.06511)).

# %% [markdown]
# ## Two functions, f and g
#
# Look at the picture again. The input $X$ and the output $Z$ are the same on all ranks; in between, each rank has
# different numbers. Autograd must be told what happens at the two boundaries. The paper calls them $f$ and $g$:
#
# | | forward | backward |
# |---|---|---|
# | $f$, where the parallel part begins | nothing: every rank has $X$ | the **sum** over the ranks |
# | $g$, where it ends | the **sum** over the ranks | nothing: every rank has the gradient of $Z$ |
#
# Why the sum in $f$? Each rank knows only how *its* part of the layer depends on $X$. Why nothing in $g$? The gradient
# of a sum is the gradient of each summand.
#
# They are a conjugate pair: each is the backward pass of the other. Two existing calls seem to fit, but do not:
#
# - A plain `dist.all_reduce` works, but autograd does not see it. As $f$ it would never be called in the backward
#   pass.
# - `torch.distributed.nn.functional.all_reduce` has a gradient: it sums in the backward pass as well. As $g$ it makes
#   the gradients of everything before it $t$ times as large. The first loss does not show it, and Adam hides most of
#   it.
#
# | call | what it does |
# |---|---|
# | `class My(torch.autograd.Function)` | a function with a backward pass of your own |
# | `My.apply(x)` | calls its `forward(ctx, x)` |
# | `backward(ctx, gradient)` | is given the gradient of the output, and returns the gradient of `x` |
# | `dist.all_reduce(tensor)` | sums over the ranks, in place; the tensor must be contiguous |
# | `tensor.clone(memory_format=torch.contiguous_format)` | a contiguous copy, whatever the tensor's strides |
#
# `forward` and `backward` do not own their arguments: do not write into them.


# %% nbgrader={"grade": false, "grade_id": "todo_2", "locked": false, "schema_version": 3, "solution": true, "task": false}
class CopyToRanks(torch.autograd.Function):
    """f: where a parallel part begins."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        # TODO 2: Write the conjugate pair f and g. First f, forward. Budget for each sum: the bytes of
        # one all-reduce, 2 (t - 1)/t of the tensor; gathering all summands on each rank sends t/2 times
        # as many.
        ### BEGIN SOLUTION
        return x.view_as(x)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        # TODO 2, again: f, backward.
        ### BEGIN SOLUTION
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total
        ### END SOLUTION


class SumOverRanks(torch.autograd.Function):
    """g: where a parallel part ends."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        # TODO 2, again: g, forward.
        ### BEGIN SOLUTION
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        # TODO 2, again: g, backward.
        ### BEGIN SOLUTION
        return gradient
        ### END SOLUTION


def f(x: Tensor) -> Tensor:
    return CopyToRanks.apply(x)


def g(x: Tensor) -> Tensor:
    return SumOverRanks.apply(x)


# %% nbgrader={"grade": true, "grade_id": "test_2", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("04_tensor_parallel/2")

# %% [markdown]
# Now watch them work. The scalar $z = \sum_r (r+1)\,x$ has one summand on each rank. Its gradient is $1 + 2 + \dots +
# t$.


# %%
def slopes(value: float, rank: int, world: int) -> dict[str, float]:
    x = torch.tensor(value, requires_grad=True)
    z = g((rank + 1) * f(x))
    z.backward()
    return {"z": z.item(), "gradient": x.grad.item()}


# %%
print(run_on_ranks("04_tensor_parallel/slopes", [1.0, 1.0, 1.0]).results)

# %% [markdown]
# ## Cut a linear layer
#
# A linear layer computes $Y = X A^\top + b$, where torch's `weight` $A$ has a **row for each output** and a **column
# for each input**. There are two ways to cut it:
#
# - **Column parallel** (named after the columns of $A^\top$): a rank has some of the outputs, so some rows of
#   `weight`. It needs the whole $X$ and computes its columns of $Y$. A bias is cut in the same way.
# - **Row parallel**: a rank has some of the inputs, so some columns of `weight`. It needs only those columns of $X$
#   and computes a partial sum, a term of the whole $Y$; $g$ adds them up. A bias is whole on each rank, and is added **once**:
#   after the sum.
#
# $f$ does not belong to the column-parallel layer: a parallel part may begin with several such layers (`q`, `k` and
# `v`), and then one $f$ serves them all.
#
# All parts are cut from the whole layer, so the first weights are the serial model's. A dimension of $n$ is cut as
# `torch.chunk` and DTensor cut it: each rank gets $n/t$, rounded up, and the last one the rest. (A *DTensor* is
# PyTorch's tensor that knows how it is cut; `tp_training` uses it.) In this lesson no rank's part is empty.
#
# | call | what it does |
# |---|---|
# | `tensor.split(size, dim)` | views of `size` along a dimension; the last one may be shorter |
# | `-(-a // b)` | $a/b$, rounded up |
# | `F.linear(x, weight, bias)` | $X A^\top + b$; `bias` may be None |
# | `sharded(tensor, dim, rank, world)` | below: this rank's shard as a parameter, marked as a shard |
# | `replicated(tensor)` | below: a parameter that is whole on every rank |


# %%
def sharded(whole: Tensor, dim: int, rank: int, world: int) -> nn.Parameter:
    """This rank's shard of a parameter, as a parameter. It is marked,
    since shards and copies differ later.
    """
    shard = nn.Parameter(my_shard(whole.detach(), dim, rank, world), whole.requires_grad)
    shard.sharded = True
    return shard


def replicated(whole: Tensor) -> nn.Parameter:
    return nn.Parameter(whole.detach().clone(), whole.requires_grad)


def is_sharded(parameter: Tensor) -> bool:
    return getattr(parameter, "sharded", False)


# %% nbgrader={"grade": false, "grade_id": "todo_3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def my_shard(whole: Tensor, dim: int, rank: int, world: int) -> Tensor:
    """This rank's part of a tensor, cut along ``dim``: contiguous, in its own memory,
    so the whole can be freed.
    """
    # TODO 3: Cut linear layers by columns and by rows. First, this rank's part of a tensor.
    ### BEGIN SOLUTION
    size = -(-whole.shape[dim] // world)
    return whole.split(size, dim)[rank].clone(memory_format=torch.contiguous_format)
    ### END SOLUTION


class ColumnLinear(nn.Module):
    """This rank's outputs of a linear layer, from the whole input."""

    def __init__(self, whole: nn.Linear, rank: int, world: int) -> None:
        super().__init__()
        # TODO 3, again: self.weight and self.bias, with `sharded` or `replicated`. A layer without a
        # bias has None.
        ### BEGIN SOLUTION
        self.weight = sharded(whole.weight, 0, rank, world)
        self.bias = None if whole.bias is None else sharded(whole.bias, 0, rank, world)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """x: (…, inputs) -> (…, this rank's outputs). It sends nothing."""
        # TODO 3, again: the product.
        ### BEGIN SOLUTION
        return F.linear(x, self.weight, self.bias)
        ### END SOLUTION


class RowLinear(nn.Module):
    """All outputs of a linear layer, from this rank's inputs and a sum over the ranks."""

    def __init__(self, whole: nn.Linear, rank: int, world: int) -> None:
        super().__init__()
        # TODO 3, again: self.weight and self.bias of a row-parallel layer.
        ### BEGIN SOLUTION
        self.weight = sharded(whole.weight, 1, rank, world)
        self.bias = None if whole.bias is None else replicated(whole.bias)
        ### END SOLUTION

    def forward(self, x: Tensor, join: Callable[[Tensor], Tensor] = g) -> Tensor:
        """x: (…, this rank's inputs) -> (…, outputs), whole. ``join`` sums over the ranks, as g does."""
        # TODO 3, again: the product, joined, and the bias.
        ### BEGIN SOLUTION
        y = join(F.linear(x, self.weight))
        return y if self.bias is None else y + self.bias
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_3", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("04_tensor_parallel/3")

# %% [markdown]
# ## The MLP
#
# $Z = \mathrm{gelu}(X A^\top)\,B^\top$. GELU is applied to each number separately, but it is not linear:
# $\mathrm{gelu}(a + b)$ is not $\mathrm{gelu}(a) + \mathrm{gelu}(b)$. So no sum over ranks may be pending when it is applied.
# Which of the two layers is cut by columns, which by rows? If you choose well, a rank's columns of the hidden layer are
# exactly what its part of the second product needs: no rank ever has the whole hidden layer, and one all-reduce forward
# and one backward are enough.
#
# The boundary functions come as arguments, ``enter`` and ``join``: $f$ and $g$ now, and in part 2 a pair that gathers
# and scatters tokens, so the result of ``enter`` may have more tokens than its argument. The serial MLP is in
# `utils/model.py`:
#
# ```python
# def forward(self, x_BTD):
#     return self.down(F.gelu(self.up(x_BTD)))
# ```


# %% nbgrader={"grade": false, "grade_id": "todo_4", "locked": false, "schema_version": 3, "solution": true, "task": false}
class ParallelMLP(nn.Module):
    """An MLP on all ranks: two linear layers, ``whole.up`` and ``whole.down``, and GELU between them."""

    def __init__(
        self, whole: MLP, rank: int, world: int, enter: Callable = f, join: Callable = g
    ) -> None:
        super().__init__()
        self.enter, self.join = enter, join
        # TODO 4: Build an MLP with one all-reduce forward and one backward. First self.up and self.down.
        ### BEGIN SOLUTION
        self.up = ColumnLinear(whole.up, rank, world)
        self.down = RowLinear(whole.down, rank, world)
        ### END SOLUTION

    def forward(self, x_BTD: Tensor) -> Tensor:
        # TODO 4, again: from one boundary to the other.
        ### BEGIN SOLUTION
        return self.down(F.gelu(self.up(self.enter(x_BTD))), self.join)
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_4", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("04_tensor_parallel/4")

# %% [markdown]
# ## Attention
#
# The heads of attention are independent until `out` mixes them. So whole heads are divided among the ranks: a rank has
# the rows of `q`, `k` and `v` that make up its heads, computes their attention, and its columns of `out` give a partial
# sum of the result.
#
# `q`, `k` and `v` read the same input. With an $f$ for each of them, the backward pass has three all-reduces where
# one is enough.
#
# Heads cannot be split: 4 heads on 3 ranks is an error, and a clear error at once is better than an obscure one later.
# (Without it, the code below would fail much later, in a `view`, with sizes that are hard to recognize. Worse, it
# might silently compute something else.)
#
# The serial attention, in `utils/model.py`:
#
# ```python
# def forward(self, x_BTD):
#     B, T, _ = x_BTD.shape
#     q_BHTK, k_BHTK, v_BHTK = (
#         project(x_BTD).view(B, T, -1, self.head_dim).transpose(1, 2) for project in (self.q, self.k, self.v)
#     )
#     y_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
#     return self.out(y_BHTK.transpose(1, 2).reshape(B, T, -1))
# ```
#
# (H heads of K numbers each.)


# %% nbgrader={"grade": false, "grade_id": "todo_5", "locked": false, "schema_version": 3, "solution": true, "task": false}
class ParallelAttention(nn.Module):
    """Causal self-attention on all ranks, by whole heads. ``whole`` has layers q, k, v and out, and
    ``head_dim``.

    Raises:
        ValueError: the number of heads is not divisible by the number of ranks.
    """

    def __init__(
        self, whole: Attention, rank: int, world: int, enter: Callable = f, join: Callable = g
    ) -> None:
        super().__init__()
        self.enter, self.join, self.head_dim = enter, join, whole.head_dim
        # TODO 5: Divide the heads of attention among the ranks. First refuse what cannot be divided,
        # with a ValueError whose text names both numbers, heads and ranks; then the layers.
        ### BEGIN SOLUTION
        heads = whole.q.out_features // whole.head_dim
        if heads % world:
            raise ValueError(f"{heads} heads cannot be divided evenly among {world} ranks")
        self.q = ColumnLinear(whole.q, rank, world)
        self.k = ColumnLinear(whole.k, rank, world)
        self.v = ColumnLinear(whole.v, rank, world)
        self.out = RowLinear(whole.out, rank, world)
        ### END SOLUTION

    def forward(self, x_BTD: Tensor) -> Tensor:
        # TODO 5, again: one all-reduce forward, one backward.
        ### BEGIN SOLUTION
        x_BTD = self.enter(x_BTD)
        B, T, _ = x_BTD.shape
        q_BHTK, k_BHTK, v_BHTK = (
            project(x_BTD).view(B, T, -1, self.head_dim).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        y_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        return self.out(y_BHTK.transpose(1, 2).reshape(B, T, -1), self.join)
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_5", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("04_tensor_parallel/5")

# %% [markdown]
# Many libraries compute `q`, `k` and `v` with one matrix of $3D$ rows. Cut into $t$ contiguous parts, it has the right
# shapes but the wrong heads: with $t = 3$, rank 0 would have all of `q` and no keys. Each of the three parts of such a
# matrix must be cut separately.

# %% [markdown]
# ## The embedding
#
# The vocabulary is often the largest dimension of a model. Its table is cut by words: a rank has $V/t$ rows, rounded
# up, and the last one the rest. A rank looks up the words that it has and uses zeros for the others. Each word is on
# one rank, so the sum over the ranks is right.
#
# In practice the vocabulary is padded with rows that no token uses: Megatron-LM takes a multiple of $128\,t$, so that
# GPT-2's 50,257 words become 50,432 for two ranks. Equal parts take equal time, round sizes are fast, and sharding
# can cut the parts once more without remainders. Here nothing is padded, so your results are exactly one rank's.
#
# ![Four tokens on two ranks: each looks up its own words, the rest is zero](../images/tensor_parallel_words.svg)
#
# Beware: another rank's word has no row here. `F.embedding(x, weight)` rejects numbers outside the table, so look up
# *some* row in its place, and then make it zero.
#
# | call | what it does |
# |---|---|
# | `F.embedding(x, weight)` | row `x[…]` of the table, for each number in `x` |
# | `tensor.where(condition, 0)` | 0 where the condition (of the same shape, or one that broadcasts) does not hold |
# | `mask[..., None]` | adds a last dimension of 1 |


# %% nbgrader={"grade": false, "grade_id": "todo_6", "locked": false, "schema_version": 3, "solution": true, "task": false}
class ParallelEmbedding(nn.Module):
    """A table of words; each rank has some of its rows."""

    def __init__(self, whole: nn.Embedding, rank: int, world: int, join: Callable = g) -> None:
        super().__init__()
        self.join = join
        # TODO 6: Divide the words of the embedding among the ranks. First self.weight, and the index of
        # its first word.
        ### BEGIN SOLUTION
        self.weight = sharded(whole.weight, 0, rank, world)
        self.first = rank * -(-whole.num_embeddings // world)
        ### END SOLUTION

    def forward(self, x_BT: Tensor) -> Tensor:
        """x_BT: int64, numbers of words of the whole vocabulary -> (B, T, D)."""
        # TODO 6, again: the rows of this rank's words, zeros for the others, joined.
        ### BEGIN SOLUTION
        mine_BT = (x_BT >= self.first) & (x_BT < self.first + len(self.weight))
        rows_BTD = F.embedding((x_BT - self.first).where(mine_BT, 0), self.weight)
        return self.join(rows_BTD.where(mine_BT[..., None], 0))
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_6", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("04_tensor_parallel/6")

# %% [markdown]
# ## The loss
#
# The head is a column-parallel layer: each rank has the logits of its words. Gathering them would be the largest
# message of the whole step. You can avoid it. The loss of a token with logits $l$ and target $y$ is
#
# $$\log \sum_v e^{l_v - m} \;-\; (l_y - m), \qquad m = \max_v l_v,$$
#
# which takes three numbers a token from all ranks: the largest logit, the sum of the exponentials, and the
# target's logit, which only one rank has. Without $m$, $e^{100}$ is infinite in float32.
#
# Once $g$ makes these sums, autograd does the rest, and sends nothing: a rank's part of the gradient, softmax minus one
# at the target, needs only what the rank already has. $m$ cancels out of the formula and needs no gradient, so compute
# it from `logits.detach()`.
#
# The loss is the mean over the tokens that count. A target that equals ``ignore`` does not count. If no target counts,
# the loss is 0, with a gradient of 0. (torch's own `loss_parallel` gives nan there.) It is computed in float32, even if
# the logits are bfloat16.
#
# | call | what it does |
# |---|---|
# | `dist.all_reduce(tensor, dist.ReduceOp.MAX)` | the largest over the ranks, number by number, in place |
# | `tensor.amax(dim=-1)` | the largest along the last dimension |
# | `tensor.gather(-1, index)` | the numbers at `index`, along the last dimension; both have the same number of dimensions |
# | `torch.stack([a, b])` | both in one tensor, so that one message carries both; `a, b = tensor` separates them |
# | `count.clamp(min=1)` | at least 1 |


# %% nbgrader={"grade": false, "grade_id": "todo_7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def parallel_loss(logits: Tensor, y: Tensor, first: int, ignore: int) -> Tensor:
    """Mean cross-entropy in nats, a float32 scalar, the same on all ranks; 0 where no target counts.

    Args:
        logits: (…, words of this rank), float32 or bfloat16; ``first`` is the number of the first of
            these words.
        y: int64 (…), the targets, as numbers of the whole vocabulary; ``ignore`` does not count.
    """
    # TODO 7: Compute the loss while no rank has all logits. The messages of both passes have at most
    # four numbers a token.
    ### BEGIN SOLUTION
    logits = logits.float()
    maximum = logits.detach().amax(dim=-1)
    dist.all_reduce(maximum, dist.ReduceOp.MAX)
    logits = logits - maximum[..., None]
    mine = (y >= first) & (y < first + logits.shape[-1])
    at_target = logits.gather(-1, (y - first).where(mine, 0)[..., None])[..., 0].where(mine, 0)
    total, at_target = g(torch.stack([logits.exp().sum(dim=-1), at_target]))
    counts = y != ignore
    return ((total.log() - at_target) * counts).sum() / counts.sum().clamp(min=1)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_7", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("04_tensor_parallel/7")

# %% [markdown]
# Torch has such a loss, too: within `loss_parallel()`, `cross_entropy` takes logits as a DTensor, cut along the words.
# It holds all of a rank's logits at once; the next cell shows what it returns if no target of a batch counts.


# %%
def loss_by_torch(_: None, rank: int, world: int) -> list[float]:
    """Torch's loss of sharded logits and yours: for four targets that count,
    then for four that do not.
    """
    # imported here, since it takes a moment on each rank
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import loss_parallel

    torch.manual_seed(0)
    logits, y, first = torch.randn(4, 6), torch.tensor([0, 5, 2, 3]), rank * 6 // world
    found = []
    for targets in (y, torch.full_like(y, IGNORE)):
        with loss_parallel():
            cut = distribute_tensor(logits, init_device_mesh("cpu", (world,)), [Shard(1)])
            found.append(F.cross_entropy(cut, targets, ignore_index=IGNORE).item())
        mine = logits[:, first : first + 6 // world]
        found.append(parallel_loss(mine, targets, first, IGNORE).item())
    return found


# %%
some, yours_some, none, yours_none = run_on_ranks(
    "04_tensor_parallel/loss_by_torch", [None] * 2
).results[0]
print(f"all targets count: torch {some:.4f}, yours {yours_some:.4f}")
print(f"none counts:       torch {none:.4f}, yours {yours_none:.4f}")

# %% [markdown]
# A nan in one micro-batch is a nan in every weight after the step. (On one process, torch's plain `cross_entropy` gives
# nan there as well; the course's own loss does not.)

# %% [markdown]
# ## The whole model
#
# Now the course's language model can be built from your layers. The rest (norms, the embedding of the positions)
# is copied. Everything keeps the name that it has in the serial model. (`sequence` is for part 2.)


# %%
class ParallelBlock(nn.Module):
    def __init__(
        self, whole: Block, rank: int, world: int, enter: Callable = f, join: Callable = g
    ) -> None:
        super().__init__()
        self.attention_norm = copy.deepcopy(whole.attention_norm)
        self.attention = ParallelAttention(whole.attention, rank, world, enter, join)
        self.mlp_norm = copy.deepcopy(whole.mlp_norm)
        self.mlp = ParallelMLP(whole.mlp, rank, world, enter, join)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD))
        return x_BTD + self.mlp(self.mlp_norm(x_BTD))


class ParallelLM(nn.Module):
    """The course's model, made of this rank's layers. Its dropout is 0.

    Args:
        sequence: between the parallel parts, each rank has only its part of the sequence.
    """

    def __init__(self, whole: TransformerLM, rank: int, world: int, sequence: bool = False) -> None:
        super().__init__()
        self.rank, self.sequence = rank, sequence
        self.enter, self.join = (gather_sequence, scatter_sequence) if sequence else (f, g)
        self.first_word = rank * -(-whole.config["vocab_size"] // world)
        self.token_embedding = ParallelEmbedding(whole.token_embedding, rank, world, self.join)
        self.position_embedding = copy.deepcopy(whole.position_embedding)
        self.blocks = nn.ModuleList(
            ParallelBlock(block, rank, world, self.enter, self.join) for block in whole.blocks
        )
        self.norm = copy.deepcopy(whole.norm)
        self.head = ColumnLinear(whole.head, rank, world)

    def forward(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        h_BTD = self.token_embedding(x_BT)
        T = h_BTD.shape[1]  # with sequence parallelism, of this rank
        first = self.rank * T if self.sequence else 0
        h_BTD = h_BTD + self.position_embedding(torch.arange(first, first + T))
        for block in self.blocks:
            h_BTD = block(h_BTD)
        logits_BTV = self.head(self.enter(self.norm(h_BTD)))
        return parallel_loss(logits_BTV, y_BT, self.first_word, IGNORE)


# %%
def small_model() -> TransformerLM:
    torch.manual_seed(0)
    return TransformerLM(vocab_size=97, dim=24, n_heads=4, n_layers=2, max_len=16)


def small_batch(step: int) -> tuple[Tensor, Tensor]:
    """The same on all ranks: tensor-parallel ranks work on the same samples."""
    tokens = torch.randint(97, (4, 17), generator=torch.Generator().manual_seed(step))
    return tokens[:, :-1], tokens[:, 1:]


def one_step(sequence: bool, rank: int, world: int) -> dict[str, float]:
    """The first loss, and the norms of three gradients."""
    model = ParallelLM(small_model(), rank, world, sequence)
    loss = model(*small_batch(0))
    loss.backward()
    names = ("blocks.0.attention.q.weight", "blocks.1.mlp.down.weight", "norm.weight")
    return {"loss": loss.item()} | {name: model.get_parameter(name).grad.norm().item() for name in names}


# %%
ranks = run_on_ranks("04_tensor_parallel/one_step", [False] * 2).results
serial = small_model()
serial(*small_batch(0)).backward()
print(f"serial: norm.weight {serial.norm.weight.grad.norm().item():.5f}")
for rank, seen in enumerate(ranks):
    print(f"rank {rank}:", {name: round(value, 5) for name, value in seen.items()})

# %% [markdown]
# `norm.weight`'s gradient is the serial one, on both ranks. The two matrices' gradients are shards of the serial ones:
# they differ.
#
# A warning for your own work: **the first loss proves nothing.** Without $f$'s all-reduce, or with an extra one in
# $g$'s backward pass, it is exact to the last digit, since no gradient has been used yet. Compare the gradient of every
# parameter, and everything that should be the same on all ranks.
#
# > **A place to stop.** These layers are what Megatron-LM's first version does, and `tp_training` needs no others before
# > its TODO 5. If you come back to this notebook, run the cells of part 1 first.
# >
# > *Recap.* Columns first, then rows: nothing is summed before GELU, or before `out`. $f$ sums backward, $g$ forward: four
# > all-reduces for each block. Attention is divided by whole heads, the embedding by rows (words), and the loss needs
# > three numbers a token.

# %% [markdown]
# # Part 2: sequence parallelism, and the costs

# %% [markdown]
# ## Cut the sequence
#
# One thing is still done $t$ times: every rank computes the norms, the residuals and everything between the parallel
# parts on the same numbers, and keeps them for the backward pass. [arXiv:2205.05198](https://arxiv.org/abs/2205.05198)
# divides this along the **sequence**: between the parallel parts a rank has $T/t$ tokens, with all their $D$ numbers.
#
# ![A block with f and g, and with all-gather and reduce-scatter](../images/tensor_parallel_sequence.svg)
#
# An all-reduce is a reduce-scatter and an all-gather. So take it apart:
#
# - Where a parallel part begins, tokens are **gathered**, in place of $f$. In the backward pass each rank has a
#   partial sum of every token's gradient, and needs the whole sum for its own tokens: a reduce-scatter.
# - Where it ends, the partial sums are **reduced and scattered**, in place of $g$: each rank gets the sum for its
#   own tokens. In the backward pass, gradients are gathered.
#
# This sends exactly as many bytes as before.
#
# | call | what it does |
# |---|---|
# | `dist.all_gather(tensors, tensor)` | fills a list: one tensor for each rank, all like `tensor` and contiguous |
# | `dist.reduce_scatter(tensor, tensors)` | `tensor` becomes this rank's entry of the list, summed over the ranks; all must be contiguous, and chunks along dimension 1 are not |
# | `tensor.chunk(world, dim=1)` | `world` views, cut along dimension 1 |
# | `torch.cat(tensors, dim=1)` | joined along dimension 1 |
#
# $T$ is a multiple of the number of ranks.


# %% nbgrader={"grade": false, "grade_id": "todo_8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def gathered(x_BTD: Tensor) -> Tensor:
    """(B, T, D): the tokens of all ranks, in order, from each rank's (B, T / ranks, D).
    Autograd does not see it.
    """
    # TODO 8: Gather and scatter along the sequence. First, gather: one message, of this rank's tokens.
    ### BEGIN SOLUTION
    pieces = [
        torch.empty_like(x_BTD, memory_format=torch.contiguous_format)
        for _ in range(dist.get_world_size())
    ]
    dist.all_gather(pieces, x_BTD.contiguous())
    return torch.cat(pieces, dim=1)
    ### END SOLUTION


def reduced(x_BTD: Tensor) -> Tensor:
    """(B, T / ranks, D): this rank's tokens of the sum of all ranks' (B, T, D).
    Autograd does not see it.
    """
    # TODO 8, again: reduce and scatter. An all-reduce would send twice as much.
    ### BEGIN SOLUTION
    pieces = [piece.contiguous() for piece in x_BTD.chunk(dist.get_world_size(), dim=1)]
    mine = torch.empty_like(pieces[0])
    dist.reduce_scatter(mine, pieces)
    return mine
    ### END SOLUTION


class GatherSequence(torch.autograd.Function):
    """Where a parallel part begins."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return gathered(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        # TODO 8, again: the gradient of this rank's tokens.
        ### BEGIN SOLUTION
        return reduced(gradient)
        ### END SOLUTION


class ScatterSequence(torch.autograd.Function):
    """Where it ends."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return reduced(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        # TODO 8, again: the gradient of this rank's partial sum.
        ### BEGIN SOLUTION
        return gathered(gradient)
        ### END SOLUTION


def gather_sequence(x: Tensor) -> Tensor:
    return GatherSequence.apply(x)


def scatter_sequence(x: Tensor) -> Tensor:
    return ScatterSequence.apply(x)


# %% nbgrader={"grade": true, "grade_id": "test_8", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("04_tensor_parallel/8")

# %% [markdown]
# ## Which gradients are complete?
#
# This is the most common mistake with sequence parallelism. Run the step from above with it, and look at `norm.weight`:

# %%
for rank, seen in enumerate(run_on_ranks("04_tensor_parallel/one_step", [True] * 2).results):
    print(f"rank {rank}:", {name: round(value, 5) for name, value in seen.items()})

# %% [markdown]
# The loss is right. The gradient of the norm is wrong, and not even the same on both ranks. Each rank has used its copy
# of the norm on its own tokens only, so it has the gradient for these tokens only. Nothing fails; the copies simply
# drift apart, step by step.
#
# A gradient is complete if the parameter was used on all tokens, or if it belongs to this rank alone. Which parameters
# have seen only some of the tokens? Their gradients must be **summed** over the ranks, after the backward pass and
# before they are used. (`is_sharded` tells which parameters belong to one rank alone. What about the bias of a
# row-parallel layer? It is added after the scatter.)


# %% nbgrader={"grade": false, "grade_id": "todo_9", "locked": false, "schema_version": 3, "solution": true, "task": false}
def finish_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """After a backward pass with sequence parallelism: complete the gradients that cover only some of
    the tokens.

    A parameter without a gradient (a frozen one) has none on all ranks, and keeps none. There may be
    nothing to do.
    """
    # TODO 9: Sum the gradients of those parameters, and only those, that have seen only this rank's
    # tokens.
    ### BEGIN SOLUTION
    for parameter in parameters:
        if not is_sharded(parameter) and parameter.grad is not None:
            dist.all_reduce(parameter.grad)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_9", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("04_tensor_parallel/9")

# %% [markdown]
# ## What a block keeps
#
# For the backward pass, autograd keeps what the derivatives need. For each token, a block of the course's model keeps:
#
# | kept | numbers | used by |
# |---|---|---|
# | the block's input | $D$ | the attention's norm, residual |
# | its norm | $D$ | `q`, `k`, `v` |
# | queries, keys, values | $3D$ | attention |
# | attention's result | $D$ | attention, `out` |
# | the stream after the attention | $D$ | the MLP's norm, residual |
# | its norm | $D$ | `up` |
# | the result of `up` | $4D$ | GELU |
# | the result of GELU | $4D$ | `down` |
#
# That is $16D$ numbers, 64 bytes $\times BTD$ in float32. On $t$ ranks, everything inside a parallel part is divided by
# heads or by hidden units. Everything outside is whole with $f$ and $g$ (``"tensor"``), and has $T/t$ tokens with
# sequence parallelism (``"sequence"``).
#
# Megatron-LM goes one step further. Where a product's backward pass needs an input that was gathered, it keeps only
# this rank's tokens, and gathers the rest **again** (``"sequence, gathered again"``), at the cost of one more
# all-gather in each half of the block.
#
# **Predict** the bytes kept each way. For each row of the table, ask which tensor a product or a norm on *this rank*
# received: look at `GatherSequence` and `ColumnLinear`.


# %% nbgrader={"grade": false, "grade_id": "todo_10", "locked": false, "schema_version": 3, "solution": true, "task": false}
def block_keeps(batch: int, length: int, dim: int, world: int, how: str) -> float:
    """Bytes of activations that a rank keeps of one block between the passes, in float32.

    ``how`` is "tensor", "sequence" or "sequence, gathered again".
    """
    # TODO 10: Predict what sequence parallelism saves: which rows of the table does each of the three
    # ways divide?
    ### BEGIN SOLUTION
    stream, norms, inside = 2, 2, 12  # times `dim` numbers a token
    numbers = inside / world
    numbers += stream if how == "tensor" else stream / world
    numbers += norms / world if how == "sequence, gathered again" else norms
    return 4 * batch * length * dim * numbers
    ### END SOLUTION


def block_sends(batch: int, length: int, dim: int, world: int, how: str) -> float:
    """Bytes that a rank sends for one block in a step, forward and backward."""
    # passes around the ring; an all-reduce takes two
    ways = 10 if how == "sequence, gathered again" else 8
    return ways * (world - 1) / world * 4 * batch * length * dim


# %% nbgrader={"grade": true, "grade_id": "test_10", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("04_tensor_parallel/10")

# %% [markdown]
# Now measure. `Storages` records the memory of every tensor that is made; `at_rest` says how many bytes of it are still
# used once gloo has freed its last message. (That message is as large as the stream: if it counted, each of four ranks
# would seem to keep a seventh more.)


# %%
def measure_block(sequence: bool, rank: int, world: int) -> float:
    """Bytes that are alive between the passes of a block, without its weights and its result."""
    torch.manual_seed(0)
    enter, join = (gather_sequence, scatter_sequence) if sequence else (f, g)
    block = ParallelBlock(Block(48, 4, dropout=0.0), rank, world, enter, join)
    x_BTD = torch.randn(2, 64 // world if sequence else 64, 48, requires_grad=True)
    with Storages([x_BTD]) as storages:
        y_BTD = block(x_BTD)
        kept = at_rest(storages, {"weights": block.parameters(), "returned": [y_BTD]})["other"]
    y_BTD.sum().backward()
    return kept


# %%
kept, sent = {}, {}
for how, sequence in (("tensor", False), ("sequence", True)):
    run = run_on_ranks("04_tensor_parallel/measure_block", [sequence] * 4)
    kept[how] = max(run.results)  # all keep the same
    sent[how] = sum(call.sent for call in run.collectives if call.rank == 0)
    print(f"{how}: {kept[how]:,} bytes kept, {block_keeps(2, 64, 48, 4, how):,.0f} predicted")
    print(
        f"{' ' * len(how)}  {sent[how]:,.0f} bytes sent, {block_sends(2, 64, 48, 4, how):,.0f} predicted"
    )
predicted = {
    how: block_keeps(2, 64, 48, 4, how) for how in ("tensor", "sequence", "sequence, gathered again")
}
plots.kept(kept, predicted, serial=block_keeps(2, 64, 48, 1, "tensor"))

# %% [markdown]
# The measurement is a little above the prediction, because of small buffers: two numbers a token for each norm, and one a head
# for the softmax.

# %% [markdown]
# ## The norm of all gradients
#
# Before a step, gradients are usually clipped: if the norm of all gradients together is too large, all are scaled down.
# A tensor-parallel rank has *shards* of some gradients, and *copies* of others. What is the sum of all squares? A rank
# that looks only at its own numbers misses the other ranks' shards. If all ranks' sums are added up, every copy counts
# $t$ times. Each number of the serial model counts **once**.
#
# If the ranks disagree about the norm, they scale differently, and their copies drift apart.


# %% nbgrader={"grade": false, "grade_id": "todo_11", "locked": false, "schema_version": 3, "solution": true, "task": false}
def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The norm of the whole model's gradient, 0-dim float32, the same on all ranks. The gradients are
    finished.

    Parameters without a gradient do not count.
    """
    # TODO 11: Count each gradient once in the norm. Budget: one message of one number.
    ### BEGIN SOLUTION
    shards, copies = torch.zeros(()), torch.zeros(())
    for parameter in parameters:
        if parameter.grad is not None:
            squares = shards if is_sharded(parameter) else copies
            squares += parameter.grad.float().square().sum()
    dist.all_reduce(shards)
    return (shards + copies).sqrt()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_11", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("04_tensor_parallel/11")

# %% [markdown]
# ## Dropout
#
# Data-parallel ranks draw their dropout masks independently. Here that is right in some places, and wrong in others:
#
# - Where an activation is the **same** on all ranks, the mask must be the same, too. Otherwise the copies are no longer
#   copies.
# - Where each rank has a **part** (its heads, its columns of the hidden layer, its tokens), the masks must differ.
#   Otherwise head 0 and head 2 lose the same connections, in every step.
#
# So a rank needs two random generators: a common one, the same on all ranks, and its own, which differs from every
# other rank's and from the common one. (With data parallelism, each copy of the model needs different masks, too. Leave
# room between their seeds: with `seed + data_rank`, rank 0's own masks in copy 0 could be the common masks of copy 1. A
# multiple, like `seed + 1000 * data_rank`, keeps them apart.)
#
# Dropout makes a number 0 with probability $p$, and divides the others by $1 - p$. torch's dropout takes no generator,
# so write your own.
#
# | call | what it does |
# |---|---|
# | `torch.Generator().manual_seed(number)` | a generator; the same number gives the same draws |
# | `torch.rand(shape, generator=generator)` | uniform between 0 and 1 |


# %% nbgrader={"grade": false, "grade_id": "todo_12", "locked": false, "schema_version": 3, "solution": true, "task": false}
def make_generators(seed: int, rank: int) -> tuple[torch.Generator, torch.Generator]:
    """The generator that is the same on all ranks, and this rank's own.
    All ranks are given the same seed.
    """
    # TODO 12: Draw the same mask where the ranks have copies, and different ones where they have parts.
    # First, the generators.
    ### BEGIN SOLUTION
    return torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1 + rank)
    ### END SOLUTION


def dropout(x: Tensor, p: float, generator: torch.Generator) -> Tensor:
    """x with each number dropped with probability p < 1, the others scaled;
    the mask is drawn from the generator.
    """
    # TODO 12, again: dropout with a generator.
    ### BEGIN SOLUTION
    kept = torch.rand(x.shape, generator=generator) >= p
    return x * kept / (1 - p)
    ### END SOLUTION


def draws_alike(place: str, sequence: bool) -> bool:
    """Whether all ranks draw the same mask, with and without sequence parallelism, in one of these
    places:

    "embedding": on the sum of the two embeddings. "attention": on the weights with which a head mixes
    the values.
    "hidden": on the result of the MLP's GELU. "residual": on what attention or MLP adds to the stream.
    """
    # TODO 12, again: which generator is used where.
    ### BEGIN SOLUTION
    return place in ("embedding", "residual") and not sequence
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_12", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("04_tensor_parallel/12")

# %% [markdown]
# ## Where it stops paying
#
# With more ranks each product gets narrower, but the messages do not get smaller. Where is the limit?
#
# EleutherAI measured how fast an A100 multiplies narrow matrices ([cookbook](https://github.com/EleutherAI/cookbook),
# `sizing/results/gemm_data/mm`): half precision, 27,648 rows of 4,096 numbers times a matrix of 4,096 × *width*. Below a
# width of about 256 there is not enough work for each byte read (the roofline of `00_one_device`):
#
# | width | 64 | 128 | 256 | 384 | more |
# |---|---|---|---|---|---|
# | TFLOP/s | 69.6 | 137.9 | 227.2 | 242.6 | about 240 |
#
# (Round widths matter, too: with 258 columns the speed is 116.6. A vocabulary or a hidden layer that does not divide
# evenly makes all ranks slow, not just the one that gets less.)
#
# From this, the cell below computes how long all products of a block of width 4,096 take on one of $t$ ranks, forward
# and backward. The messages travel over NVLink within a node, and over the network between nodes. A node of JURECA-DC
# or Polaris has 4 A100s, which send 300 GB/s each, and at most two links of 25 GB/s lead out of it. A ring over several
# nodes is as slow as its slowest link.
#
# An all-reduce of $S$ bytes on a ring takes $2(t-1)$ rounds; each costs a latency $\alpha$ and sends $S/t$ bytes. The
# **efficiency** of $t$ ranks is the time of one rank, divided by $t$ times the time of $t$ ranks (strong scaling).

# %%
TOKENS, DIM = 27_648, 4_096
# FLOP/s by the width of the second factor
RATES = {64: 69.6e12, 128: 137.9e12, 256: 227.2e12, 384: 242.6e12}
WIDE = 240e12

NVLINK, NETWORK = (10e-6, 300e9), (20e-6, 50e9)  # seconds of latency, bytes per second


def product_seconds(width: int, dim: int = DIM) -> float:
    return 2 * TOKENS * dim * width / RATES.get(width, WIDE)


def products_of_a_block(world: int, dim: int = DIM) -> float:
    """Attention's four products, each D / t wide; the MLP's two, 4 D / t wide;
    the backward pass does each of them twice.
    """
    return 3 * (4 * product_seconds(dim // world, dim) + 2 * product_seconds(4 * dim // world, dim))


products = [(world, products_of_a_block(world)) for world in (1, 2, 4, 8, 16, 32, 64)]
for world, seconds in products:
    print(
        f"{world:2} ranks: {1000 * seconds:6.1f} ms of products a block,"
        f" {products[0][1] / seconds:4.1f} times as fast as on one"
    )


# %% nbgrader={"grade": false, "grade_id": "todo_13", "locked": false, "schema_version": 3, "solution": true, "task": false}
def all_reduce_seconds(nbytes: float, world: int, link: tuple[float, float]) -> float:
    """The seconds of a ring all-reduce over a link with (latency in seconds, bytes per second)."""
    # TODO 13: Say where tensor parallelism stops paying. First, one all-reduce.
    ### BEGIN SOLUTION
    latency, bandwidth = link
    return 2 * (world - 1) * (latency + nbytes / world / bandwidth)
    ### END SOLUTION


def block_seconds(
    products: float,
    nbytes: float,
    world: int,
    per_node: int,
    within: tuple[float, float],
    between: tuple[float, float],
) -> float:
    """The seconds of a block in a step: its products, and its four all-reduces of ``nbytes``, none of
    them hidden.

    A node has ``per_node`` ranks; links are ``within`` a node and ``between`` nodes.
    """
    # TODO 13, again: a block.
    ### BEGIN SOLUTION
    return products + 4 * all_reduce_seconds(nbytes, world, within if world <= per_node else between)
    ### END SOLUTION


def largest_worthwhile(
    products: list[tuple[int, float]],
    nbytes: float,
    per_node: int,
    within: tuple[float, float],
    between: tuple[float, float],
    least: float,
) -> int:
    """The largest number of ranks in the table whose efficiency is ``least`` or more.

    ``products`` has (ranks, seconds of a block's products on each); its first entry is for one rank.
    """
    # TODO 13, again: the answer.
    ### BEGIN SOLUTION
    alone = products[0][1]
    return max(
        world
        for world, seconds in products
        if alone >= least * world * block_seconds(seconds, nbytes, world, per_node, within, between)
    )
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_13", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("04_tensor_parallel/13")

# %%
machines = {"4 GPUs per node": 4, "8 GPUs per node": 8, "64 GPUs on NVLink": 64}
activation = 2 * TOKENS * DIM  # bytes, in half precision
efficiencies = {}
for name, per_node in machines.items():
    seconds = [(n, block_seconds(s, activation, n, per_node, NVLINK, NETWORK)) for n, s in products]
    efficiencies[name] = [(n, products[0][1] / (n * s)) for n, s in seconds]
    most = [
        largest_worthwhile(products, activation, per_node, NVLINK, NETWORK, least)
        for least in (0.7, 0.5)
    ]
    print(f"{name}: up to {most[0]} ranks at 70 %, {most[1]} at 50 %")
plots.efficiency(efficiencies)

# %% [markdown]
# The drop comes where the ranks no longer fit into a node: that is why tensor parallelism stays within it, and why vendors build ever
# larger "nodes". At 70 %, though, a node of 64 GPUs allows no more ranks than one of 8: on 16 ranks, messages
# already take three quarters as long as the products. At 50 % it allows 16.
#
# Tensor parallelism is for **wide** layers: the products of a block grow with the square of its width, its messages
# with the width alone. **Predict**: eight ranks of one node are how efficient at a quarter of this width, and at four
# times?

# %%
for dim in (1_024, 2_048, 4_096, 8_192, 16_384):
    seconds = block_seconds(products_of_a_block(8, dim), 2 * TOKENS * dim, 8, 8, NVLINK, NETWORK)
    print(f"width {dim:6,}: {products_of_a_block(1, dim) / (8 * seconds):.0%} on 8 ranks")

# %% [markdown]
# How fast are narrow products on your machine, on one rank? (On a CPU the curve may be flat.)


# %%
def product_curve(size: int, rank: int, world: int) -> list[tuple[int, float]]:
    """FLOP/s of size × size by size × width, the best of five tries."""
    x, curve = torch.randn(size, size), []
    for width in (8, 16, 32, 64, 128, 256, 512):
        weight, seconds = torch.randn(size, width), []
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(10):
                torch.mm(x, weight)
            seconds.append((time.perf_counter() - began) / 10)
        curve.append((width, 2 * size**2 * width / min(seconds)))
    return curve


# %%
(measured,) = run_on_ranks("04_tensor_parallel/product_curve", [512], timed=True).results
plots.rates({"A100, half precision": list(RATES.items()), "here, float32": measured})

# %% [markdown]
# ## Fewer key heads than ranks
#
# Many models have **grouped queries** ([arXiv:2305.13245](https://arxiv.org/abs/2305.13245)): consecutive heads of
# queries use one head of keys and values together. Llama 3 70B has 64 heads of queries, and 8 of keys and values.
#
# As long as each rank gets whole heads of keys, nothing is new. With more ranks than heads of keys, a head of keys is
# needed on several ranks, in a row: a rank has its own heads of queries, and a **copy** of the head of keys that they use.
# Each copy learns from its own rank's queries only, so the gradients of the copies must be summed, over the ranks that
# have this head and no others. Otherwise the copies drift apart, without any error.
#
# (The other way, which Megatron-LM and this course's `--block llama` take, is to give each rank a part of the head, and
# to gather the keys and values of all its tokens. That sends more, and no weight is held twice.)
#
# | call | what it does |
# |---|---|
# | `dist.new_subgroups(n)` | makes groups of `n` consecutive ranks each; all ranks call it. Returns this rank's group, and all groups |
# | `summed(tensor, group)` | below: the tensor itself; the gradients that reach it are summed over the ranks of the group |
# | `tensor.repeat_interleave(n, dim)` | each entry along `dim` `n` times in a row |


# %%
class SumGradients(torch.autograd.Function):
    """f, over the ranks of a group."""

    @staticmethod
    def forward(ctx, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


def summed(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    return SumGradients.apply(tensor, group)


# %% nbgrader={"grade": false, "grade_id": "todo_14", "locked": false, "schema_version": 3, "solution": true, "task": false}
class GroupedAttention(nn.Module):
    """Causal self-attention with grouped queries, by whole heads. ``whole`` has layers q, k, v and out,
    without biases, and ``head_dim``; k and v have fewer outputs than q, or as many. A rank has an even
    part of the heads of queries.

    Raises:
        ValueError: the ranks cannot divide the heads of queries evenly; or the number of ranks does not
            divide the number of key heads, nor the other way round.
    """

    def __init__(self, whole: nn.Module, rank: int, world: int) -> None:
        super().__init__()
        self.head_dim = whole.head_dim
        # TODO 14: Give each rank the heads of keys that its queries use, also where there are fewer than
        # ranks. First refuse what cannot be divided, with a ValueError whose text names all three
        # numbers: heads of queries, heads of keys, and ranks. Then the layers q, k, v and out: of keys
        # and values, hold no head that this rank's queries do not use.
        ### BEGIN SOLUTION
        heads, key_heads = (layer.out_features // whole.head_dim for layer in (whole.q, whole.k))
        if heads % world or (key_heads % world and world % key_heads):
            raise ValueError(
                f"{heads} heads of queries and {key_heads} of keys cannot be divided among {world} ranks"
            )
        parts = min(key_heads, world)
        copies = world // parts
        self.q = ColumnLinear(whole.q, rank, world)
        self.k = ColumnLinear(whole.k, rank // copies, parts)
        self.v = ColumnLinear(whole.v, rank // copies, parts)
        self.out = RowLinear(whole.out, rank, world)
        self.group, _ = dist.new_subgroups(copies)
        ### END SOLUTION

    def forward(self, x_BTD: Tensor) -> Tensor:
        # TODO 14, again: as in ParallelAttention, one all-reduce forward and one backward of the stream;
        # and backward, one of each weight that several ranks hold, among these ranks alone. Weights that
        # one rank holds are not sent.
        ### BEGIN SOLUTION
        x_BTD = f(x_BTD)
        B, T, _ = x_BTD.shape
        k, v = (F.linear(x_BTD, summed(layer.weight, self.group)) for layer in (self.k, self.v))
        q_BHTK, k_BHTK, v_BHTK = (
            part.view(B, T, -1, self.head_dim).transpose(1, 2) for part in (self.q(x_BTD), k, v)
        )
        each = q_BHTK.shape[1] // k_BHTK.shape[1]
        k_BHTK, v_BHTK = (part.repeat_interleave(each, 1) for part in (k_BHTK, v_BHTK))
        y_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        return self.out(y_BHTK.transpose(1, 2).reshape(B, T, -1))
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_14", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("04_tensor_parallel/14")

# %% [markdown]
# In the norm of the gradient, a head of keys that several ranks hold counts once: `gradient_norm` would count it once a
# copy, since `ColumnLinear` has marked it as a shard.

# %% [markdown]
# ## The parallel run is the serial run
#
# Finally, train the model that you have built, and compare it with the serial one: 20 steps of SGD, clipped. Adam would hide a wrong
# scale; SGD does not.


# %%
def serial_losses(steps: int) -> list[float]:
    model = small_model()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for step in range(steps):
        loss = model(*small_batch(step % 4))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def parallel_losses(sequence: bool, rank: int, world: int) -> list[float]:
    model = ParallelLM(small_model(), rank, world, sequence)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for step in range(20):
        loss = model(*small_batch(step % 4))
        loss.backward()
        if sequence:
            finish_gradients(model.parameters())
        scale = (1.0 / gradient_norm(model.parameters())).clamp(max=1.0)
        for parameter in model.parameters():
            parameter.grad *= scale
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


# %%
tensor = run_on_ranks("04_tensor_parallel/parallel_losses", [False] * 2)
sequence = run_on_ranks("04_tensor_parallel/parallel_losses", [True] * 4)
losses = {
    "tensor parallel, 2 ranks": tensor.results[0],
    "and sequence parallel, 4 ranks": sequence.results[0],
}
plots.losses(serial_losses(20), losses)

# %% [markdown]
# ## In the script
#
# `tp_training` trains the language model with DTensor. A *plan* says for each layer how its weight is cut and how its
# input and output are laid out on the ranks; DTensor adds the communication. You have built what it does:
#
# | in `tp_training` | here |
# |---|---|
# | `--tp N`, a mesh (a grid of ranks with named axes) of `("data", "tensor")` | one row of that grid: a tensor-parallel group with different samples |
# | the sampler divides the samples along the data axis alone | all ranks work on the same `small_batch` |
# | `ColwiseParallel()` for `q`, `k`, `v`, `up` | `ColumnLinear` |
# | `RowwiseParallel()` for `out`, `down` | `RowLinear` with `g` |
# | `PrepareModuleInput` before attention and MLP | `enter`: without it, `q`, `k`, `v` have an all-reduce each |
# | `RowwiseParallel` for the token embedding | `ParallelEmbedding` |
# | the head: `vocab_parallel_head_loss` | `ColumnLinear` and `parallel_loss`, for a piece of the tokens at a time |
# | `SequenceParallel()` for the norms, `--sequence-parallel` | `gather_sequence`, `scatter_sequence` |
# | the position embedding, used on $T/t$ tokens | `finish_gradients`: DTensor does not do this for you |
# | the norm over both axes of the grid | `gradient_norm` |
# | refuses heads that cannot be divided evenly, and `--dropout` with `--tp` | the `ValueError` of `ParallelAttention`; TODO 12 |
# | FSDP2 over the data axis | lesson 03, on the shards of this one |
# | checkpoints that load with a different `--tp` | shards cut from the whole weight, and reassembled |

# %% [markdown]
# ## Recap
#
# - Columns, then rows: four all-reduces of the stream for each block; after each, the next product waits for it.
# - Use it **when a layer, or one sequence's activations, do not fit a device**. FSDP alone cannot help there: it
#   gathers whole layers, and each rank needs at least one whole sequence. Use it also **when the global batch must not
#   grow**.
# - Keep it **within a node**, on the fastest link there is, and do not use it for small models: products narrower than
#   about 256 columns waste the device. If the model fits, data parallelism is faster and simpler.
# - Sequence parallelism sends no additional bytes and saves activations: always use it with tensor parallelism. Then
#   sum the gradients of all parameters that saw only some tokens.
# - In the norm each number counts once; dropout is the same on copies and different on parts.
#
# Papers: Megatron-LM, [1909.08053](https://arxiv.org/abs/1909.08053); sequence parallelism and what a block keeps,
# [2205.05198](https://arxiv.org/abs/2205.05198); both combined with a pipeline,
# [2104.04473](https://arxiv.org/abs/2104.04473); asynchronous tensor parallelism,
# [2410.06511](https://arxiv.org/abs/2410.06511).
#
# Lesson 05 puts layers on different devices, and lesson 06 divides very long sequences. Large models combine all axes
# (`09_mesh`). Next: `tp_training`.
