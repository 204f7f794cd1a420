# %% [markdown]
# # Distributed matrix products
#
# A linear layer is a matrix product $Y = XW$. $X$ has a row for each token, $m$ of them, with $k$ numbers each; $W$ is
# $k \times n$. Almost all the work of a Transformer is in such products, and every scheme in this course that divides
# a layer is really a way to cut a product into blocks.
#
# So this lesson is about products only. You cut them along one, two and three axes of a grid of ranks, count what each
# cut sends, and find that FSDP and Megatron's layers are two special cases of one scheme.
#
# *Builds on*: collectives and what they cost (`01_collectives`), shards (`03_zero`), the roofline (`00_one_device`).
# Megatron's layers (`04_tensor_parallel`) appear as a special case.
#
# ![Three ways to cut one product over two ranks: what each rank has of X, W and Y](../images/matmul_one_d.svg)
#
# *Shapes*: a suffix says how a matrix is cut. `x_mK` has *some* of X's rows (small letter) and *all* of its columns
# (capital letter).

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import sys
from pathlib import Path

here = Path.cwd().resolve()
course = next(folder for folder in (here, *here.parents) if (folder / "grader").is_dir())
sys.path.insert(0, str(course))

from grader import check

# %%
import math
import os
import time
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from grader import run_on_ranks
from utils.plots import distributed_matmul as plots
from utils.model import MLP

# %% [markdown]
# ## A grid of ranks
#
# Ranks have numbers, but a matrix has rows and columns. So the ranks are arranged as a **grid**: a table of 2 × 3, say,
# or a box of 2 × 2 × 2. They are numbered row by row, like the elements of a tensor in memory: the last coordinate
# changes fastest. A **line** along an axis is made of the ranks that differ in that one coordinate only. Lines are the
# groups in which a grid communicates.
#
# The grid need not divide a dimension evenly. As in `tensor_split`, the first few pieces then get one more; this holds
# for the whole lesson.
#
# ![A matrix of 5 × 7 on a grid of 2 × 3](../images/matmul_grid.svg)
#
# **Predict**, before you write code: on the 2 × 3 grid, which ranks are in rank 4's lines, and how large is its block?


# %% nbgrader={"grade": false, "grade_id": "todo_1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def block(length: int, parts: int, number: int) -> slice:
    """Where piece ``number`` lies if a dimension of this length is cut into ``parts``.
    It may be empty.
    """
    # TODO 1: Find each rank's place in a grid, its lines, and its block of a matrix. First, one
    # dimension: lengths differ by at most one, and the longer pieces come first.
    ### BEGIN SOLUTION
    size, longer = divmod(length, parts)
    start = number * size + min(number, longer)
    return slice(start, start + size + (number < longer))
    ### END SOLUTION


def place(rank: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The coordinates of a rank in a grid of this shape, one for each axis."""
    # TODO 1, again: from the number to the place, for any number of axes.
    ### BEGIN SOLUTION
    coordinates = []
    for length in reversed(shape):
        rank, coordinate = divmod(rank, length)
        coordinates.insert(0, coordinate)
    return tuple(coordinates)
    ### END SOLUTION


def line(rank: int, shape: tuple[int, ...], axis: int) -> list[int]:
    """The ranks of the line through ``rank`` along ``axis``, itself included,
    in the order of that coordinate.
    """
    # TODO 1, again: how far apart, in numbers, are two neighbours on this axis?
    ### BEGIN SOLUTION
    stride = math.prod(shape[axis + 1 :])
    first = rank - stride * place(rank, shape)[axis]
    return [first + stride * step for step in range(shape[axis])]
    ### END SOLUTION


# %%
shape = (2, 3)
for rank in range(6):
    row, column = place(rank, shape)
    rows, columns = block(5, 2, row), block(7, 3, column)
    held = f"rows {rows.start} to {rows.stop - 1}, columns {columns.start} to {columns.stop - 1}"
    lines = line(rank, shape, 0), line(rank, shape, 1)
    print(f"rank {rank} at {row, column}: {held}; its lines are {lines[0]} and {lines[1]}")

# %% nbgrader={"grade": true, "grade_id": "test_1", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("08_distributed_matmul/1")


# %% [markdown]
# From your functions, this class makes the process groups. On a line of one rank, a collective sends nothing.


# %%
class Grid:
    """A rank's place in a grid of this shape, and for each axis the line through it: its ranks, and its
    process group.

    Raises:
        ValueError: the shape has more or fewer places than there are ranks.
    """

    def __init__(self, shape: tuple[int, ...], rank: int, world: int) -> None:
        if math.prod(shape) != world:
            needed = " × ".join(map(str, shape))
            raise ValueError(f"a grid of {needed} takes {math.prod(shape)} ranks, and there are {world}")
        self.shape, self.rank = tuple(shape), rank
        self.place = place(rank, self.shape)
        self.lines = [line(rank, self.shape, axis) for axis in range(len(shape))]
        self.groups = [dist.new_group(ranks, use_local_synchronization=True) for ranks in self.lines]

    def block(self, length: int, axis: int) -> slice:
        """This rank's piece of a dimension that is cut along an axis of the grid."""
        return block(length, self.shape[axis], self.place[axis])


# %% [markdown]
# ## Cut along one axis
#
# A product has three dimensions, $m$, $k$ and $n$, and each can be cut. Look at the drawing at the top again. In the
# backward pass, $\bar Y$, the gradient of $Y$, is given, and the other two gradients are
#
# $$\bar X = \bar Y W^\top \qquad \bar W = X^\top \bar Y$$
#
# | cut | a rank has | its $Y$ | its $\bar X$ | its $\bar W$ |
# |---|---|---|---|---|
# | rows, $m$ | `x_mK`, and a shard of $W$ | `y_mN` | `dx_mK` | a sum over ranks, as a shard |
# | columns, $n$ | `x_MK`, `w_Kn` | `y_Mn` | a sum over ranks, whole | `dw_Kn` |
# | the inner dimension, $k$ | `x_Mk`, `w_kN` | a sum over ranks, whole | `dx_Mk` | `dw_kN` |
#
# You know all three. Cut by rows, it is data-parallel training; with $W$ in shards as in lesson 03, it is ZeRO's stage
# 3, FSDP. Cut by columns, it is the first layer of a Megatron MLP
# ([arXiv:1909.08053](https://arxiv.org/abs/1909.08053)), and cut along the inner dimension it is its second.
#
# A dimension that is *summed* over and cut costs a collective, since each rank has only a part of each sum. Which
# collective depends on **where the result must end up**: an all-reduce if every rank needs it whole, a reduce-scatter
# if each rank keeps a part. And a result that is cut, but must be whole, costs an all-gather.
#
# **Predict** the numbers (of 4 bytes each, say) that a rank sends, with rings as in lesson 01.


# %% nbgrader={"grade": false, "grade_id": "todo_2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def numbers_to_end(cut: str, ending: str, m: int, n: int, world: int) -> float:
    """Numbers that a rank sends after its own product, so that Y ends up "whole" on all ranks, or "cut".

    ``cut`` is "rows", "columns" or "inner", as in the table. For "inner", "cut" means that each has a
    shard of Y.
    """
    # TODO 2: Multiply on one axis, cut by rows, by columns and along the inner dimension. First your
    # prediction: what does it cost to get the result where it is needed? (Take all sizes as multiples of
    # the ranks.)
    ### BEGIN SOLUTION
    once_around = (world - 1) / world * m * n
    if cut == "inner":
        return 2 * once_around if ending == "whole" else once_around
    return once_around if ending == "whole" else 0.0
    ### END SOLUTION


def numbers_sent_1d(cut: str, m: int, k: int, n: int, world: int) -> tuple[float, float]:
    """Numbers that a rank sends in the forward and in the backward pass,
    if everything ends up as in the table.
    """
    # TODO 2, again: both passes. If rows are cut, each pass gathers the weights, and does not keep them.
    ### BEGIN SOLUTION
    around = (world - 1) / world
    if cut == "rows":
        return around * k * n, 2 * around * k * n
    if cut == "columns":
        return 0.0, 2 * around * m * k
    return 2 * around * m * n, 0.0
    ### END SOLUTION


# %% [markdown]
# Now build them. Shards are as in `03_zero`: the tensor as one long vector, cut into equal pieces, the last ones padded
# with zeros. These three functions are what you wrote there, for one tensor and with a sum in place of the mean;
# `group=None` means all ranks.


# %%
def shard_of(tensor: Tensor, parts: int, number: int) -> Tensor:
    """Shard ``number`` of a tensor that is sharded over ``parts`` ranks: 1-D, in its own memory."""
    size = -(-tensor.numel() // parts)
    mine = tensor.reshape(-1)[number * size : (number + 1) * size]
    shard = mine.new_zeros(size)
    shard[: len(mine)] = mine
    return shard


def gather(shard: Tensor, shape: tuple[int, int], group: dist.ProcessGroup | None = None) -> Tensor:
    """The whole tensor, of this shape, from the shards of the group's ranks. One all-gather."""
    whole = shard.new_empty(dist.get_world_size(group), len(shard))
    dist.all_gather(list(whole), shard, group=group)
    return whole.view(-1)[: math.prod(shape)].view(tuple(shape))


def reduce_to_shard(tensor: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """This rank's shard of the sum of all tensors in the group. One reduce-scatter."""
    world = dist.get_world_size(group)
    shards = [shard_of(tensor, world, number) for number in range(world)]
    mine = torch.empty_like(shards[0])
    dist.reduce_scatter(mine, shards, group=group)
    return mine


# %% nbgrader={"grade": false, "grade_id": "todo_2_rows", "locked": false, "schema_version": 3, "solution": true, "task": false}
def by_rows(x_mK: Tensor, shard: Tensor, shape: tuple[int, int]) -> Tensor:
    """y_mN. ``shard`` is this rank's of W, whose shape is ``shape``."""
    # TODO 2, again: cut by rows, forward. One all-gather.
    ### BEGIN SOLUTION
    return x_mK @ gather(shard, shape)
    ### END SOLUTION


def by_rows_backward(
    dy_mN: Tensor, x_mK: Tensor, shard: Tensor, shape: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """dx_mK, and this rank's shard of the gradient of W."""
    # TODO 2, again: cut by rows, backward. One all-gather and one reduce-scatter.
    ### BEGIN SOLUTION
    dx_mK = dy_mN @ gather(shard, shape).T
    return dx_mK, reduce_to_shard(x_mK.T @ dy_mN)
    ### END SOLUTION


def by_columns(x_MK: Tensor, w_Kn: Tensor) -> Tensor:
    """y_Mn."""
    # TODO 2, again: cut by columns, forward. Nothing is sent.
    ### BEGIN SOLUTION
    return x_MK @ w_Kn
    ### END SOLUTION


def by_columns_backward(dy_Mn: Tensor, x_MK: Tensor, w_Kn: Tensor) -> tuple[Tensor, Tensor]:
    """dx_MK, the same on all ranks, and dw_Kn."""
    # TODO 2, again: cut by columns, backward. One all-reduce.
    ### BEGIN SOLUTION
    dx_MK = dy_Mn @ w_Kn.T
    dist.all_reduce(dx_MK)
    return dx_MK, x_MK.T @ dy_Mn
    ### END SOLUTION


def by_inner(x_Mk: Tensor, w_kN: Tensor) -> Tensor:
    """y_MN, the same on all ranks."""
    # TODO 2, again: cut along the inner dimension, forward. One all-reduce.
    ### BEGIN SOLUTION
    y_MN = x_Mk @ w_kN
    dist.all_reduce(y_MN)
    return y_MN
    ### END SOLUTION


def by_inner_backward(dy_MN: Tensor, x_Mk: Tensor, w_kN: Tensor) -> tuple[Tensor, Tensor]:
    """dx_Mk and dw_kN."""
    # TODO 2, again: cut along the inner dimension, backward. Nothing is sent.
    ### BEGIN SOLUTION
    return dy_MN @ w_kN.T, x_Mk.T @ dy_MN
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_2", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("08_distributed_matmul/2")

# %% [markdown]
# This is what the three cuts send for a layer of 2048 × 8192 on 8 ranks, with few tokens and with many:

# %%
for tokens in (512, 65536):
    sent = {
        cut: sum(numbers_sent_1d(cut, tokens, 2048, 8192, 8)) for cut in ("rows", "columns", "inner")
    }
    told = ", ".join(f"{cut} {numbers / 1e6:,.0f} million" for cut, numbers in sent.items())
    print(f"{tokens:6,} tokens, numbers sent: {told}")

# %% [markdown]
# If rows are cut, weights travel; otherwise activations do. So many tokens favour cutting rows, and large weights
# favour the other two. But each of the three needs one whole matrix on every rank for a while, however many ranks there
# are. With a second axis, no matrix is ever whole.

# %% [markdown]
# ## Two axes: Cannon's algorithm
#
# The ranks form a square, $p \times p$, and each of $X$, $W$ and $Y$ is cut along both axes: the rank at $(i, j)$ has
# only block $(i, j)$ of each. Its block of the result needs a whole row of blocks of $X$, and a whole column of $W$:
#
# $$Y_{ij} = \sum_{l} X_{il} W_{lj}$$
#
# Cannon's algorithm (1969) multiplies one block of each at a time. All ranks multiply what they have, then pass their
# block of $X$ to the left and their block of $W$ up, $p - 1$ times; rows and columns wrap around. But at the start the
# rank at $(i, j)$ has $X_{ij}$ and $W_{ij}$, which do not match unless $i = j$. So the first step is a **skew**: row
# $i$ of $X$ moves $i$ places to the left, and column $j$ of $W$ moves $j$ places up.
#
# **Predict**, with pencil and paper, for 3 × 3 ranks: which inner index $l$ do the blocks at $(i, j)$ have in step $s$,
# counted from 0?
#
# `exchange` sends and receives as in `01_collectives`. If a block stays where it is, no message is sent.


# %%
def exchange(tensor: Tensor, to: int, source: int, shape: tuple[int, int]) -> Tensor:
    """Send a tensor to rank ``to``, and return the one, of this shape,
    that arrives from rank ``source``.
    """
    if to == source == dist.get_rank():
        return tensor
    leaving, arriving = tensor.contiguous(), tensor.new_empty(shape)
    works = [dist.isend(leaving, to), dist.irecv(arriving, source)]
    for work in works:
        work.wait()
    return arriving


# %% nbgrader={"grade": false, "grade_id": "todo_3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def inner_index(row: int, column: int, step: int, side: int) -> int:
    """The inner index of both blocks that the rank at (row, column) of a square multiplies in a step."""
    # TODO 3: Multiply on a square by Cannon's algorithm. First your prediction: which blocks meet where?
    ### BEGIN SOLUTION
    return (row + column + step) % side
    ### END SOLUTION


def cannon(x_mk: Tensor, w_kn: Tensor, k: int, grid: Grid) -> Tensor:
    """y_mn. The inner dimension is k in all; it is cut along axis 1 of the grid in X, along axis 0 in W.

    Raises:
        ValueError: the grid is not square; the text is one line that names the grid. Nothing has been
            sent before.
    """
    # TODO 3, again: the product. Each message has one block. A rank sends at most ``side`` blocks of
    # each matrix, and never holds more than the two it was given, two more of each (one leaving, one
    # arriving), and two of the result's size. ``grid.lines[1]`` are the ranks of my row, by column;
    # ``grid.lines[0]`` the ranks of my column, by row. If k is not divisible, blocks have different
    # sizes: ``block`` gives the size of the one that arrives. (If you send messages yourself: a work
    # handle that you keep also keeps its tensor alive.)
    ### BEGIN SOLUTION
    if grid.shape[0] != grid.shape[1]:
        raise ValueError(
            f"Cannon needs a square of ranks, and the grid is {grid.shape[0]} × {grid.shape[1]}"
        )
    side, (row, column) = grid.shape[0], grid.place
    rows, columns = len(x_mk), w_kn.shape[1]
    my_row, my_column = grid.lines[1], grid.lines[0]
    y_mn = x_mk.new_zeros(rows, columns)
    for step in range(side):
        left, up = (row, column) if step == 0 else (1, 1)  # by how many places the blocks move
        piece = block(k, side, inner_index(row, column, step, side))
        size = piece.stop - piece.start
        x_mk = exchange(
            x_mk, my_row[(column - left) % side], my_row[(column + left) % side], (rows, size)
        )
        w_kn = exchange(
            w_kn, my_column[(row - up) % side], my_column[(row + up) % side], (size, columns)
        )
        y_mn += x_mk @ w_kn
    return y_mn
    ### END SOLUTION


# %% [markdown]
# The backward pass needs nothing new: $\bar X = \bar Y W^\top$ and $\bar W = X^\top \bar Y$ are products as well. But
# block $(i, j)$ of a transposed matrix is at $(j, i)$, so each rank first swaps blocks with the rank at the mirrored
# place.


# %%
def transposed(tensor: Tensor, shape: tuple[int, int], grid: Grid) -> Tensor:
    """This rank's block, of this shape, of a matrix transposed; ``tensor``: its block before.
    The grid is a square.
    """
    row, column = grid.place
    mirror = column * grid.shape[1] + row
    return exchange(tensor.T, mirror, mirror, shape)


def cannon_backward(
    dy_mn: Tensor, x_mk: Tensor, w_kn: Tensor, sizes: tuple[int, int, int], grid: Grid
) -> tuple[Tensor, Tensor]:
    """dx_mk and dw_kn. ``sizes`` are m, k and n of the whole matrices."""
    m, k, n = sizes

    def size(length: int, axis: int) -> int:
        piece = grid.block(length, axis)
        return piece.stop - piece.start

    w_nk = transposed(w_kn, (size(n, 0), size(k, 1)), grid)
    x_km = transposed(x_mk, (size(k, 0), size(m, 1)), grid)
    return cannon(dy_mn, w_nk, n, grid), cannon(x_km, dy_mn, m, grid)


# %% nbgrader={"grade": true, "grade_id": "test_3", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("08_distributed_matmul/3")

# %% [markdown]
# On 3 × 3 ranks you have built this:
#
# ![The skew and the three steps of Cannon's algorithm on 3 × 3 ranks](../images/matmul_cannon.svg)
#
# Look at the messages. In a round of the middle picture each rank sends one; the skew, and then each of two steps,
# takes at least two rounds.


# %%
def cannon_on_ranks(sizes: list[int], rank: int, world: int) -> float:
    """The largest difference from a product on one rank."""
    m, k, n = sizes
    grid = Grid((math.isqrt(world), math.isqrt(world)), rank, world)
    torch.manual_seed(0)
    x_MK, w_KN = torch.randn(m, k), torch.randn(k, n)
    y_mn = cannon(
        x_MK[grid.block(m, 0), grid.block(k, 1)], w_KN[grid.block(k, 0), grid.block(n, 1)], k, grid
    )
    return (y_mn - (x_MK @ w_KN)[grid.block(m, 0), grid.block(n, 1)]).abs().max().item()


# %%
run = run_on_ranks("08_distributed_matmul/cannon_on_ranks", [[60, 90, 30]] * 9)
print(f"largest difference on any rank: {max(run.results):.1e}")
plots.messages(run.messages, "Cannon's algorithm on 3 × 3 ranks")

# %% [markdown]
# ## Two axes of any length: SUMMA
#
# Few machines have a square number of GPUs. **SUMMA** (van de Geijn and Watts, 1997) works on any grid of $p \times q$
# ranks, without shifts. It takes the inner dimension in **panels**: some columns of $X$, and the same rows of $W$. Each
# rank that has a piece of the panel broadcasts it: pieces of $X$ along the rows of the grid, pieces of $W$ along its
# columns. Then all ranks multiply, and add the product to their block of $Y$.
#
# ![One panel of SUMMA on 2 × 3 ranks](../images/matmul_summa.svg)
#
# How wide is a panel? The inner dimension is cut into $q$ pieces in $X$ and into $p$ pieces in $W$, at different
# places. A panel should lie in one piece of each: so a panel starts wherever a piece of either starts.


# %%
class Panel(NamedTuple):
    """Columns ``begin`` to ``end`` of X, and the same rows of W."""

    begin: int
    end: int
    column: int  # the column of the grid whose ranks hold the panel of X
    row: int  # the row of the grid whose ranks hold the panel of W


# %% [markdown]
# In the backward pass broadcasts turn into sums. $\bar X = \bar Y W^\top$ sums over $n$, which is cut along axis 1
# of the grid: for each panel, $W$ is broadcast as before, and the products are summed *on the rank that has this panel
# of X*. $\bar W$ likewise, along the columns.
#
# | call | |
# |---|---|
# | `dist.broadcast(tensor, src=rank, group=group)` | copies the tensor of `src` into the tensors of all other ranks |
# | `dist.reduce(tensor, dst=rank, group=group)` | sums all ranks' tensors into the one of `dst`; afterwards, the other ranks' tensors are undefined |
#
# `src` and `dst` are global rank numbers, as in `grid.lines[axis]`; the group is `grid.groups[axis]`. Both calls need
# contiguous tensors; `tensor[:, 2:4]` is not contiguous, its `.contiguous()` is.


# %% nbgrader={"grade": false, "grade_id": "todo_4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def panels(k: int, shape: tuple[int, int]) -> list[Panel]:
    """The panels of an inner dimension k on a grid of this shape, in order. None is empty."""
    # TODO 4: Multiply on any table of ranks with SUMMA. First, the panels: as wide as possible, but each
    # within one block of X and one block of W.
    ### BEGIN SOLUTION
    rows, columns = shape
    of_w = [block(k, rows, row) for row in range(rows)]
    of_x = [block(k, columns, column) for column in range(columns)]
    found = []
    for column, x_piece in enumerate(of_x):
        for row, w_piece in enumerate(of_w):
            begin, end = max(x_piece.start, w_piece.start), min(x_piece.stop, w_piece.stop)
            if begin < end:
                found.append(Panel(begin, end, column, row))
    return found
    ### END SOLUTION


def x_panel(x_mk: Tensor, panel: Panel, k: int, grid: Grid) -> Tensor:
    """The panel's columns of X, in this rank's rows: on every rank."""
    # TODO 4, again: one broadcast along this rank's row of the grid. Its ranks are ``grid.lines[1]``.
    ### BEGIN SOLUTION
    if grid.place[1] == panel.column:
        first = grid.block(k, 1).start
        piece = x_mk[:, panel.begin - first : panel.end - first].contiguous()
    else:
        piece = x_mk.new_empty(len(x_mk), panel.end - panel.begin)
    dist.broadcast(piece, src=grid.lines[1][panel.column], group=grid.groups[1])
    return piece
    ### END SOLUTION


def w_panel(w_kn: Tensor, panel: Panel, k: int, grid: Grid) -> Tensor:
    """The panel's rows of W, in this rank's columns: on every rank."""
    # TODO 4, again: the same for W.
    ### BEGIN SOLUTION
    if grid.place[0] == panel.row:
        first = grid.block(k, 0).start
        piece = w_kn[panel.begin - first : panel.end - first].contiguous()
    else:
        piece = w_kn.new_empty(panel.end - panel.begin, w_kn.shape[1])
    dist.broadcast(piece, src=grid.lines[0][panel.row], group=grid.groups[0])
    return piece
    ### END SOLUTION


def summa(x_mk: Tensor, w_kn: Tensor, k: int, grid: Grid) -> Tensor:
    """y_mn."""
    # TODO 4, again: the product. In addition to its blocks, a rank holds at most two panels of each
    # matrix, the last and the next, and two tensors of the result's size.
    ### BEGIN SOLUTION
    y_mn = x_mk.new_zeros(len(x_mk), w_kn.shape[1])
    for panel in panels(k, grid.shape):
        y_mn += x_panel(x_mk, panel, k, grid) @ w_panel(w_kn, panel, k, grid)
    return y_mn
    ### END SOLUTION


def summa_backward(
    dy_mn: Tensor, x_mk: Tensor, w_kn: Tensor, k: int, grid: Grid
) -> tuple[Tensor, Tensor]:
    """dx_mk and dw_kn."""
    # TODO 4, again: the gradients. For each panel the two broadcasts again, and two sums, each on the
    # rank that has the panel: an all-reduce would send the sum to ranks that do not need it. A rank
    # holds at most two panels of each gradient, too.
    ### BEGIN SOLUTION
    dx_mk, dw_kn = torch.empty_like(x_mk), torch.empty_like(w_kn)
    x_first, w_first = grid.block(k, 1).start, grid.block(k, 0).start
    for panel in panels(k, grid.shape):
        dx_panel = dy_mn @ w_panel(w_kn, panel, k, grid).T
        dist.reduce(dx_panel, dst=grid.lines[1][panel.column], group=grid.groups[1])
        if grid.place[1] == panel.column:
            dx_mk[:, panel.begin - x_first : panel.end - x_first] = dx_panel
        dw_panel = x_panel(x_mk, panel, k, grid).T @ dy_mn
        dist.reduce(dw_panel, dst=grid.lines[0][panel.row], group=grid.groups[0])
        if grid.place[0] == panel.row:
            dw_kn[panel.begin - w_first : panel.end - w_first] = dw_panel
    return dx_mk, dw_kn
    ### END SOLUTION


# %%
for panel in panels(10, (2, 3)):
    print(panel)

# %% nbgrader={"grade": true, "grade_id": "test_4", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("08_distributed_matmul/4")

# %% [markdown]
# On a square of $N$ ranks, $mk/\sqrt N$ numbers of $X$ and $kn/\sqrt N$ of $W$ arrive at each rank: with more ranks, each
# receives less. With one axis, each rank received a whole matrix, however many ranks there were.

# %% [markdown]
# ## Three axes
#
# On a box of $G_x \times G_y \times G_z$ ranks, each of the three dimensions is cut along its own axis. This is
# AxoNN's product ([arXiv:2305.13525](https://arxiv.org/abs/2305.13525)), made for layers of neural networks: weights
# are stored in shards, and activations stay where they are.
#
# | axis | cuts | and so |
# |---|---|---|
# | $x$, the *inner* one | $k$: columns of $X$, rows of $W$ | $Y$ is a sum over it |
# | $y$, the *outer* one | $n$: columns of $W$ and of $Y$ | $\bar X$ is a sum over it |
# | $z$, the *depth* | $m$: rows of $X$ and of $Y$ | $\bar W$ is a sum over it |
#
# Each matrix is indexed by two of the three axes. So a block of $X$ is the same on all ranks of a line along $y$, and a
# block of $Y$ on all ranks of a line along $x$. A block of $W$ would be the same along $z$; instead, each rank has
# a shard of it. The block is gathered in the forward pass, dropped, and gathered again in the backward pass.
#
# ![Eight ranks as a box: what each has of X, W and Y, and the collectives along the axes](../images/matmul_three_d.svg)
#
# **Predict** the numbers that a rank sends in a forward and a backward pass.


# %%
class Axes(NamedTuple):
    """Along which axis of the grid each dimension of a product is cut."""

    inner: int  # k
    outer: int  # n
    depth: int = 2  # m, and the shards of a block of W


# %% nbgrader={"grade": false, "grade_id": "todo_5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def numbers_sent_3d(
    m: int, k: int, n: int, inner: int, outer: int, depth: int
) -> tuple[float, float, float, float]:
    """Numbers that a rank sends: for W (twice), for its gradient, for Y and for the gradient of X.

    ``inner``, ``outer`` and ``depth`` are the numbers of ranks along these axes, and divide the sizes.
    """
    # TODO 5: Multiply on three axes, forward and backward. First your prediction: for each collective,
    # which block does it send, along which line?
    ### BEGIN SOLUTION
    w_around = (depth - 1) / depth * k * n / (inner * outer)
    y_sum = 2 * (inner - 1) / inner * m * n / (depth * outer)
    dx_sum = 2 * (outer - 1) / outer * m * k / (depth * inner)
    return 2 * w_around, w_around, y_sum, dx_sum
    ### END SOLUTION


class Product(torch.autograd.Function):
    """Y = XW on a grid of three axes."""

    @staticmethod
    def forward(
        ctx, x_mk: Tensor, shard: Tensor, shape: tuple[int, int], axes: Axes, grid: Grid
    ) -> Tensor:
        """y_mn, the same along the inner axis. ``shard`` is this rank's, along the depth, of its block
        of W.

        The block has this shape.
        """
        # TODO 5, again: the forward pass. Keep only what you were given for the backward pass:
        # ``ctx.save_for_backward(tensor, …)`` for tensors, attributes of ``ctx`` for the rest.
        ### BEGIN SOLUTION
        ctx.save_for_backward(x_mk, shard)
        ctx.shape, ctx.axes, ctx.grid = shape, axes, grid
        y_mn = x_mk @ gather(shard, shape, grid.groups[axes.depth])
        dist.all_reduce(y_mn, group=grid.groups[axes.inner])
        return y_mn
        ### END SOLUTION

    @staticmethod
    def backward(ctx, dy_mn: Tensor) -> tuple[Tensor | None, ...]:
        """dx_mk, this rank's shard of the gradient of W, and None for each other argument of
        ``forward``.
        """
        # TODO 5, again: the backward pass. ``ctx.saved_tensors`` are what you saved.
        ### BEGIN SOLUTION
        x_mk, shard = ctx.saved_tensors
        axes, groups = ctx.axes, ctx.grid.groups
        dx_mk = dy_mn @ gather(shard, ctx.shape, groups[axes.depth]).T
        dist.all_reduce(dx_mk, group=groups[axes.outer])
        return dx_mk, reduce_to_shard(x_mk.T @ dy_mn, groups[axes.depth]), None, None, None
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_5", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("08_distributed_matmul/5")

# %% [markdown]
# ## You know its special cases
#
# If an axis has one rank, its collectives send nothing. With $G_x = G_y = 1$, only the two all-gathers of weights and
# the reduce-scatter of their gradient are left: that is FSDP. With $G_z = 1$, and $G_x$ or $G_y$ 1 as well,
# there is one all-reduce of activations, in one of the passes: a Megatron layer.
#
# Try it yourself. The next cell runs each special case of your product and PyTorch's own layer: sharded by
# `fully_shard` (FSDP2), or cut by `ColwiseParallel` or `RowwiseParallel`, as in `tp_training`. (The library's layers
# distribute their weights when they are made. You will see this as a scatter, which happens only once.)

# %%
CORNERS = {
    "FSDP": (1, 1, 4),
    "Megatron, by columns": (1, 4, 1),
    "Megatron, by the inner dimension": (4, 1, 1),
}
M, K, N = 64, 32, 96


def whole_matrices() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(M, K), torch.randn(K, N)


def corner(name: str, rank: int, world: int) -> Tensor:
    """The squared gradient of this rank's weights, summed, from your product;
    the loss is the sum of y².
    """
    grid, axes = Grid(CORNERS[name], rank, world), Axes(inner=0, outer=1)
    x_MK, w_KN = whole_matrices()
    x_mk = x_MK[grid.block(M, axes.depth), grid.block(K, axes.inner)].clone().requires_grad_()
    w_kn = w_KN[grid.block(K, axes.inner), grid.block(N, axes.outer)]
    shard = shard_of(w_kn, grid.shape[axes.depth], grid.place[axes.depth]).requires_grad_()
    loss = Product.apply(x_mk, shard, tuple(w_kn.shape), axes, grid).square().sum()
    loss.backward()
    return shard.grad.square().sum()


def library_corner(name: str, rank: int, world: int) -> Tensor:
    """The same from PyTorch's own layers."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    x_MK, w_KN = whole_matrices()
    layer = torch.nn.Linear(K, N, bias=False)
    layer.weight.data.copy_(w_KN.T)
    mesh, factor = init_device_mesh("cpu", (world,)), 1
    if name == "FSDP":
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
        factor = world  # it takes the mean over the ranks, but we want the sum
        x = x_MK[block(M, world, rank)]
    elif name == "Megatron, by columns":
        parallelize_module(layer, mesh, ColwiseParallel())
        x = x_MK
    else:
        parallelize_module(layer, mesh, RowwiseParallel())
        x = x_MK[:, block(K, world, rank)]
    loss = factor * layer(x.clone().requires_grad_()).square().sum()
    loss.backward()
    return layer.weight.grad.to_local().square().sum()


# %%
for name in CORNERS:
    mine = run_on_ranks("08_distributed_matmul/corner", [name] * 4)
    library = run_on_ranks("08_distributed_matmul/library_corner", [name] * 4)
    squares = sum(mine.results), sum(library.results)
    print(f"{name}: the sum of squares of W's gradient, {squares[0]:.6g} and {squares[1]:.6g}")
    for whose, run in (("your product", mine), ("the library", library)):
        calls = [call for call in run.collectives if call.rank == 0]
        told = ", ".join(f"{call.op} of {call.sent:,.0f} bytes" for call in calls)
        predicted = 4 * sum(numbers_sent_3d(M, K, N, *CORNERS[name]))
        print(f"    {whose:12}: {told}; predicted {predicted:,.0f} bytes in all")

# %% [markdown]
# ## Two layers: transpose the second
#
# An MLP is two products with an activation function in between. After the first one, a rank has a block of $Y$ whose
# rows are cut along $z$ and whose columns along $y$. The next product needs its input cut along its inner axis. Should
# the activations be redistributed? No: change the *names* of the axes. For the second layer $y$ is the inner axis, and
# $x$ the outer one. Its output is cut like the input of the first layer, so a third layer would be like the first.
#
# ![The blocks of two layers; the axes of the second one are swapped](../images/matmul_two_layers.svg)
#
# With $G_x = G_z = 1$, the first is cut by columns and the second along the inner dimension: that is Megatron's MLP.
#
# The loss is the mean squared difference from a target, over *all* of its numbers. A rank has the sum over its block.
# That partial sum is enough for the backward pass, since the gradient of a sum is the sum of the gradients, and
# `Product` sums what must be summed. To *print* the loss, the parts must be summed, but each block once: which other
# ranks have the same block?


# %% nbgrader={"grade": false, "grade_id": "todo_6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def axes_of(layer: int) -> Axes:
    """The axes of a layer's product; layer 0, the first, has axes 0 (inner), 1 (outer) and 2 (depth)."""
    # TODO 6: Train an MLP whose second layer is transposed. First, which axis is which, for any number
    # of layers.
    ### BEGIN SOLUTION
    return Axes(inner=0, outer=1) if layer % 2 == 0 else Axes(inner=1, outer=0)
    ### END SOLUTION


def mlp(x_mk: Tensor, shards: list[Tensor], shapes: list[tuple[int, int]], grid: Grid) -> Tensor:
    """This rank's block of the output. For each layer: its shard of its block of W, and the shape of
    that block.

    GELU is between two layers.
    """
    # TODO 6, again: the forward pass. Only the products send anything.
    ### BEGIN SOLUTION
    for layer, (shard, shape) in enumerate(zip(shards, shapes, strict=True)):
        if layer > 0:
            x_mk = F.gelu(x_mk)
        x_mk = Product.apply(x_mk, shard, shape, axes_of(layer), grid)
    return x_mk
    ### END SOLUTION


def squared_error(
    y_mn: Tensor, target_mn: Tensor, numbers: int, axes: Axes, grid: Grid
) -> tuple[Tensor, Tensor]:
    """This rank's part of the loss, for the backward pass, and the loss itself, the same on all ranks
    and detached.

    The whole output has ``numbers`` numbers. ``axes`` belong to the last layer.
    """
    # TODO 6, again: the loss. Both are 0-dim tensors.
    ### BEGIN SOLUTION
    mine = (y_mn - target_mn).square().sum() / numbers
    loss = mine.detach().clone()
    dist.all_reduce(loss, group=grid.groups[axes.depth])
    dist.all_reduce(loss, group=grid.groups[axes.outer])
    return mine, loss
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_6", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("08_distributed_matmul/6")


# %% [markdown]
# Train it. The model is the MLP of the course's Transformer (whose `Linear` keeps its weight transposed), and the
# target is the output of a second such MLP for the same input. First, on one process.

# %%
TOKENS, DIM, STEPS, RATE = 96, 24, 30, 2.0


def training_set() -> tuple[MLP, Tensor, Tensor]:
    """The MLP at the start, the input and the target: all from one seed, the same on every rank."""
    torch.manual_seed(0)
    student, teacher, x_MK = MLP(DIM), MLP(DIM), torch.randn(TOKENS, DIM)
    with torch.no_grad():
        return student, x_MK, teacher(x_MK)


def train_serial() -> list[float]:
    model, x_MK, target = training_set()
    losses = []
    for _ in range(STEPS):
        loss = F.mse_loss(model(x_MK), target)
        losses.append(loss.item())
        for weight, gradient in zip(
            model.parameters(), torch.autograd.grad(loss, model.parameters()), strict=True
        ):
            weight.data -= RATE * gradient
    return losses


def train_on_grid(shape: list[int], rank: int, world: int) -> list[float]:
    grid = Grid(shape, rank, world)
    model, x_MK, target = training_set()
    shards, shapes = [], []
    for layer, weight in enumerate((model.up.weight.T, model.down.weight.T)):
        axes, (k, n) = axes_of(layer), weight.shape
        w_kn = weight.detach()[grid.block(k, axes.inner), grid.block(n, axes.outer)]
        shards.append(shard_of(w_kn, grid.shape[axes.depth], grid.place[axes.depth]).requires_grad_())
        shapes.append(tuple(w_kn.shape))
    x_mk = x_MK[grid.block(TOKENS, 2), grid.block(DIM, 0)]
    target_mn = target[grid.block(TOKENS, 2), grid.block(DIM, axes.outer)]
    losses = []
    for _ in range(STEPS):
        mine, loss = squared_error(mlp(x_mk, shards, shapes, grid), target_mn, TOKENS * DIM, axes, grid)
        losses.append(loss.item())
        for shard, gradient in zip(shards, torch.autograd.grad(mine, shards), strict=True):
            shard.data -= RATE * gradient
    return losses


# %%
on_grids = {}
for shape in ((1, 1, 4), (1, 4, 1), (2, 2, 1), (2, 1, 2)):
    run = run_on_ranks("08_distributed_matmul/train_on_grid", [list(shape)] * 4)
    on_grids[plots.spoken_grid(shape)] = run.results[0]
plots.losses({"one process": train_serial()} | on_grids)

# %% [markdown]
# ## Which grid is the best?
#
# For 8 ranks there are ten boxes, from 8 × 1 × 1 to 1 × 1 × 8. All of them do the same work, and send different
# amounts. A formula says how much: so try them all on paper, as AxoNN does.
#
# A step takes the time of its FLOPs plus the time of its messages. A ring's all-gather or reduce-scatter on $N$ ranks
# makes $N - 1$ rounds, an all-reduce twice as many, and each round costs its latency $\alpha$; each byte costs $\beta$
# (lesson 01). A product of $m \times k$ by $k \times n$ takes $2mkn$ FLOPs: that is, a multiplication and an addition
# for each. The backward pass has two such products.
#
# Take your own machine into account: if it has fewer cores than ranks, the ranks take turns, and each product takes
# longer by the factor max(1, ranks / cores). Parallel products on two cores prove that the *numbers* are right. They
# cannot prove a speed-up.


# %%
class Machine(NamedTuple):
    """What a prediction needs to know."""

    alpha: float  # seconds a round
    beta: float  # seconds a byte
    speed: float  # FLOPs a second of one rank, if it has a core to itself
    cores: int  # on which the ranks run


# %% nbgrader={"grade": false, "grade_id": "todo_7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def factorings(world: int) -> list[tuple[int, int, int]]:
    """All grids of three axes for this many ranks, each once, in ascending order."""
    # TODO 7: Find the best grid for given shapes. First, which grids are there?
    ### BEGIN SOLUTION
    sides = [side for side in range(1, world + 1) if world % side == 0]
    return [(x, y, world // (x * y)) for x in sides for y in sides if world % (x * y) == 0]
    ### END SOLUTION


def layer_cost(m: int, k: int, n: int, inner: int, outer: int, depth: int) -> tuple[int, float]:
    """Rounds and numbers that a rank sends in a forward and a backward pass of one product,
    with rings.
    """
    # TODO 7, again: what a layer sends. You have the numbers already.
    ### BEGIN SOLUTION
    rounds = 3 * (depth - 1) + 2 * (inner - 1) + 2 * (outer - 1)
    return rounds, sum(numbers_sent_3d(m, k, n, inner, outer, depth))
    ### END SOLUTION


def mlp_seconds(m: int, dim: int, hidden: int, shape: tuple[int, int, int], machine: Machine) -> float:
    """Seconds of a forward and a backward pass of an MLP, dim → hidden → dim, in float32,
    on a grid of this shape.
    """
    # TODO 7, again: the time of both layers. The second one is transposed. Nothing overlaps.
    ### BEGIN SOLUTION
    x, y, z = shape
    world = x * y * z
    first, second = layer_cost(m, dim, hidden, x, y, z), layer_cost(m, hidden, dim, y, x, z)
    flops = 2 * 3 * 2 * m * dim * hidden  # two layers, of three products each
    computing = flops / world / machine.speed * max(1.0, world / machine.cores)
    return computing + (first[0] + second[0]) * machine.alpha + 4 * (first[1] + second[1]) * machine.beta
    ### END SOLUTION


def best_grid(m: int, dim: int, hidden: int, world: int, machine: Machine) -> tuple[int, int, int]:
    """The grid on which the MLP is fastest."""
    # TODO 7, again: your choice.
    ### BEGIN SOLUTION
    return min(factorings(world), key=lambda shape: mlp_seconds(m, dim, hidden, shape, machine))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_7", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("08_distributed_matmul/7")

# %% [markdown]
# First on paper: an MLP of 4,096 → 16,384 → 4,096 on 64 GPUs with 100 TFLOP/s, 5 µs and 25 GB/s each. Watch how the
# best grid changes as the number of tokens grows:

# %%
cluster = Machine(alpha=5e-6, beta=1 / 25e9, speed=100e12, cores=64)
for tokens in (1024, 16384, 131072, 1048576):
    chosen = best_grid(tokens, 4096, 16384, 64, cluster)
    seconds = mlp_seconds(tokens, 4096, 16384, chosen, cluster)
    worst = max(mlp_seconds(tokens, 4096, 16384, shape, cluster) for shape in factorings(64))
    name = plots.spoken_grid(chosen)
    print(
        f"{tokens:9,} tokens: {name}, {1000 * seconds:.1f} ms;"
        f" the worst grid takes {1000 * worst:,.1f} ms"
    )

# %% [markdown]
# Then on your machine. Measure the speed of a product on one rank, and all-reduces of several sizes on four ranks,
# from which $\alpha$ and $\beta$ are fitted as in lesson 01. Then time the MLP on all six grids of four ranks.


# %%
def fastest(action, tries: int = 7) -> float:
    """Seconds of the fastest try, since every disturbance only adds time. All ranks begin together."""
    seconds = []
    for _ in range(tries):
        dist.barrier()
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def time_all_reduces(sizes: list[int], rank: int, world: int) -> list[float]:
    """Seconds of an all-reduce, for each size in bytes."""
    tensors = [torch.zeros(size // 4) for size in sizes]
    return [fastest(lambda tensor=tensor: dist.all_reduce(tensor)) for tensor in tensors]


def time_product(sizes: list[int], rank: int, world: int) -> float:
    """FLOPs a second of one product."""
    m, k, n = sizes
    x, w = torch.randn(m, k), torch.randn(k, n)
    return 2 * m * k * n / fastest(lambda: x @ w)


def time_mlp(inputs: list, rank: int, world: int) -> float:
    """Seconds of a forward and a backward pass on a grid."""
    (m, dim, hidden), shape = inputs
    grid, shards, shapes = Grid(shape, rank, world), [], []
    for layer, (k, n) in enumerate(((dim, hidden), (hidden, dim))):
        axes = axes_of(layer)
        w_kn = torch.randn(k, n)[grid.block(k, axes.inner), grid.block(n, axes.outer)]
        shards.append(shard_of(w_kn, grid.shape[axes.depth], grid.place[axes.depth]).requires_grad_())
        shapes.append(tuple(w_kn.shape))
    x_mk = torch.randn(m, dim)[grid.block(m, 2), grid.block(dim, 0)].requires_grad_()

    def step() -> None:
        torch.autograd.grad(mlp(x_mk, shards, shapes, grid).sum(), [x_mk, *shards])

    return fastest(step)


# %%
RANKS, SIZES = 4, [8192, 64, 512]
message_sizes = [4096, 65536, 262144, 1048576, 4194304]
all_reduces = run_on_ranks(
    "08_distributed_matmul/time_all_reduces", [message_sizes] * RANKS, timed=True
).results[0]
speed = run_on_ranks("08_distributed_matmul/time_product", [[2048, 64, 512]], timed=True).results[0]

rounds = 2 * (RANKS - 1)
costs = torch.tensor([[rounds, rounds / RANKS * size] for size in message_sizes], dtype=torch.float64)
seconds = torch.tensor(all_reduces, dtype=torch.float64)
weights = 1 / seconds[:, None]  # relative differences count, or the largest message alone would decide
fitted = torch.linalg.lstsq(costs * weights, seconds[:, None] * weights).solution.flatten()
alpha, beta = fitted.clamp(min=1e-12).tolist()
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
machine = Machine(alpha, beta, speed, cores)
print(
    f"alpha {1e6 * alpha:.0f} µs, beta {1e9 * beta:.2f} ns a byte,"
    f" {speed / 1e9:.0f} GFLOP/s a rank, {cores} cores"
)

# %%
grids = factorings(RANKS)
predicted = {shape: mlp_seconds(*SIZES, shape, machine) for shape in grids}
measured = {}
for shape in grids:
    ranks = run_on_ranks(
        "08_distributed_matmul/time_mlp", [[SIZES, list(shape)]] * RANKS, timed=True
    ).results
    measured[shape] = max(ranks)
chosen, fastest_grid = best_grid(*SIZES, RANKS, machine), min(grids, key=measured.get)
print(f"best: {plots.spoken_grid(chosen)} as predicted, {plots.spoken_grid(fastest_grid)} as measured")
plots.grids(predicted, measured)

# %% [markdown]
# The **rank correlation** (Spearman's) compares only the order: it is 1 if prediction and measurement put the grids in
# the same order, about 0 if the prediction says nothing, and -1 if the order is reversed. To choose a grid, you need
# only the order. On a machine that also does other work, the correlation varies from run to run.

# %% [markdown]
# ## Does the network set the pace?
#
# In `00_one_device`, the roofline compared the FLOPs of a product with the bytes that come from the memory. Messages
# are a second, lower roof: the same comparison, with the bytes that come over the network. If messages and products
# overlap, a step takes the longer of the two.
#
# - **SUMMA** on a large square of ranks: for each product of two blocks of $b \times b$ numbers, two such blocks
#   arrive.
# - **A tensor-parallel layer**, cut along the inner dimension (`by_inner`): on $t$ ranks each multiplies $m \times k/t$
#   by $k/t \times n$ numbers, and the ranks' results are summed by a ring's all-reduce.
#
# **Predict**: how large must a rank's part be, so that computing takes at least as long as communicating? And which of
# the two gains from more tokens?


# %% nbgrader={"grade": false, "grade_id": "todo_8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def smallest_block(speed: float, bandwidth: float, itemsize: int) -> float:
    """The side b of SUMMA's blocks at which products and messages take equally long.

    ``speed``: FLOPs a second; ``bandwidth``: bytes a second that arrive at a rank, or leave it;
    ``itemsize``: bytes a number.
    """
    # TODO 8: Find when the network sets the pace. First, for SUMMA's blocks.
    ### BEGIN SOLUTION
    return itemsize * speed / bandwidth
    ### END SOLUTION


def smallest_width(speed: float, bandwidth: float, itemsize: int, world: int) -> float:
    """A rank's part k / world of the inner dimension at which a tensor-parallel layer's product takes as
    long as the all-reduce of its result.
    """
    # TODO 8, again: for a tensor-parallel layer, in its forward pass.
    ### BEGIN SOLUTION
    return (world - 1) / world * itemsize * speed / bandwidth
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_8", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("08_distributed_matmul/8")

# %% [markdown]
# According to its data sheet, an A100 has 312 TFLOP/s in bfloat16, and sends 300 GB/s each way within a node; between nodes it
# may have 25 GB/s:

# %%
for where, bandwidth in (("within a node", 300e9), ("between nodes", 25e9)):
    width = smallest_width(312e12, bandwidth, 2, 8)
    print(f"{where}: blocks of {smallest_block(312e12, bandwidth, 2):,.0f}")
    print(f"{where}: a layer on 8 ranks needs {width:,.0f} columns on each, {8 * width:,.0f} in all")

# %% [markdown]
# SUMMA's blocks grow with the batch. In the tensor-parallel layer the tokens cancel: product and message both grow with
# them. Only a wider layer helps, or a faster link. That is why tensor parallelism stays within a node.
#
# There is no script for this lesson. Its parts appear elsewhere:
#
# | here | there |
# |---|---|
# | `by_rows`; the corner 1 × 1 × N | `fully_shard` in `fsdp_training` |
# | `by_columns`, then `by_inner`; axes swapped | `ColwiseParallel`, then `RowwiseParallel` in `tp_training` |
# | `Grid`, its lines and groups | `init_device_mesh`, and its `get_group` |
# | depth and the other axes | the data-parallel and the tensor-parallel axis of the mesh in `hybrid_training` |
# | `best_grid` | the choice of a plan in `10_strategy` |
#
# AxoNN does two more things: it overlaps the collectives of one layer with the products of another, and searches only
# grids whose inner axes stay within a node.

# %% [markdown]
# ## Recap
#
# - **The cost of a cut** can be read off the product: a dimension that is summed over, and cut, costs a collective, and
#   the place where the result must end up decides which one.
# - **One axis** is simple, and enough for most: FSDP with many tokens for each rank, Megatron's layers within a node.
#   The bytes that it sends do not shrink with the number of ranks.
# - **Two axes**: the more ranks, the less each of them sends, and no rank ever holds a whole matrix. Cannon needs a square;
#   SUMMA does not, and is what libraries for large dense matrices (ScaLAPACK) use. For layers of a few thousand on some
#   dozens of GPUs it seldom pays.
# - **Three axes** contain both: FSDP and Megatron are corners. On many GPUs, a search over all boxes finds a compromise
#   that no corner offers.
# - **Do not cut** what one GPU can do alone: with parts smaller than you predicted, the network sets the pace.
#
# Papers: SUMMA, [van de Geijn and Watts
# 1997](https://doi.org/10.1002/(SICI)1096-9128(199704)9:4%3C255::AID-CPE250%3E3.0.CO;2-2); AxoNN's product,
# [2305.13525](https://arxiv.org/abs/2305.13525), and at scale [2502.08145](https://arxiv.org/abs/2502.08145);
# Megatron-LM, [1909.08053](https://arxiv.org/abs/1909.08053).
#
# Next: `09_mesh`.
