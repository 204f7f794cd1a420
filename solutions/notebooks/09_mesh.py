# %% [markdown]
# # The mesh: all axes at once
#
# You have built each axis of parallel training separately. Large models are trained on several of them at the same
# time. This lesson combines the axes so that the parallel run is still the serial run; the next one, `10_strategy`,
# chooses among them.
#
# *Builds on*: `02_data_parallel`, `03_zero`, `04_tensor_parallel`, `05_pipeline_parallel` and `06_context_parallel`,
# one axis from each. Why combine them at all? Because models have outgrown their machines:
#
# ![Sizes of published networks from 2012 to 2026, and what one GPU can train](../images/strategy_sizes.svg)

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import sys
from pathlib import Path

here = Path.cwd().resolve()
course = next(folder for folder in (here, *here.parents) if (folder / "grader").is_dir())
sys.path.insert(0, str(course))

from grader import check

# %%
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils.data import Dataset, Sampler
from torch.utils.data.distributed import DistributedSampler

from grader import run_on_ranks
from utils.plots import mesh as plots
from utils.plan import Link, Machine, Model, Plan

# %% [markdown]
# ## The axes are orthogonal
#
# | axis | its ranks | what they send, and how often |
# |---|---|---|
# | `dp`, data | hold the same weights, read different samples | gradients, once a step |
# | `shard`, sharded data (FSDP) | each hold a shard of those weights, read different samples | weights and gradients, for each block |
# | `cp`, context | read different tokens of the same samples | keys and values, in each layer |
# | `tp`, tensor | hold a part of each layer, work on the same tokens | activations, several times in each layer |
# | `pp`, pipeline | hold different layers | activations, from each stage to the next |
#
# Each rank has a place on every axis at once. So the ranks form a box, as in lesson 08, with dp · shard · cp · tp · pp
# places; a rank communicates along its lines, one for each axis, and the axes are independent of each other. That is
# called 3-D, 4-D or 5-D parallelism, after the number of axes that are longer than 1
# ([arXiv:2410.06511](https://arxiv.org/abs/2410.06511) has them all in one small code base). Experts have no axis of
# their own in it: ranks of `shard` and `cp`, which have different tokens and the same layers, divide them.
#
# But all axes use the same cables. GPUs have fast links within a node, and slow ones between nodes. Ranks are
# numbered node by node, and the box row by row, so the **order of the axes** decides which lines leave the node:
#
# ![Eight ranks on two nodes: with the tensor axis innermost, and with the tensor axis outermost](../images/strategy_mesh.svg)
#
# For counting: on a line of `dp`, `shard`, `cp` or `tp`, data moves around a ring: each rank sends to the next one, and
# the last one to the first. A line of `pp` is not a ring: each stage sends activations to the next one, and gradients
# of the same size come back.
#
# **Predict**: in the drawing each rank sends 8 GB along `tp`, 3 GB along `dp` and 0.1 GB each way along `pp`. How many
# bytes leave a node, with either order?


# %% nbgrader={"grade": false, "grade_id": "todo_1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def bytes_between_nodes(
    order: Sequence[str], sizes: dict[str, int], sent: dict[str, float], per_node: int
) -> float:
    """Bytes that go from one node to another in one step, over all ranks.

    Args:
        order: names of the axes, the outermost first: the place on the last one changes fastest.
        sizes: how many ranks are on a line of each axis.
        sent: bytes that a rank sends to the next one of its line; along "pp" the next rank sends as many
            back.
        per_node: ranks in a node. Node 0 has the first of them, node 1 the next.
    """
    # TODO 1: Count the bytes that leave a node, for each order of the axes. A line of one rank sends
    # nothing.
    ### BEGIN SOLUTION
    shape = [sizes[axis] for axis in order]
    total = 0.0
    for rank in range(math.prod(shape)):
        stride = math.prod(shape)
        for axis, length in zip(order, shape, strict=True):
            stride //= length
            place = rank // stride % length
            if axis == "pp" and place == length - 1:
                continue
            following = rank + ((place + 1) % length - place) * stride
            if following // per_node != rank // per_node:
                total += sent[axis] * (2 if axis == "pp" else 1)
    return total
    ### END SOLUTION


def best_order(sizes: dict[str, int], sent: dict[str, float], per_node: int) -> tuple[str, ...]:
    """The order of the axes with which the fewest bytes go between nodes; if there are several,
    any of them.
    """
    # TODO 1, again: try them all. `itertools.permutations` gives the orders.
    ### BEGIN SOLUTION
    orders = itertools.permutations(sizes)
    return min(orders, key=lambda order: bytes_between_nodes(order, sizes, sent, per_node))
    ### END SOLUTION


# %%
SIZES, SENT = {"pp": 2, "dp": 2, "tp": 2}, {"pp": 0.1e9, "dp": 3e9, "tp": 8e9}
for order in itertools.permutations(SIZES):
    gigabytes = bytes_between_nodes(order, SIZES, SENT, per_node=4) / 1e9
    print(f"{' × '.join(order)}: {gigabytes:5.1f} GB leave their node")
print("best:", best_order(SIZES, SENT, per_node=4))

# %% nbgrader={"grade": true, "grade_id": "test_1", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("09_mesh/1")

# %% [markdown]
# For given bytes, this count finds the best order. In real training it matters **which axis can wait**. The ranks of
# `tp` wait for every message, in every layer, so they are placed closest together. `cp` hides its messages behind
# attention, `shard` behind the blocks before, `dp` behind the last backward pass: the better an axis can hide its
# messages, the further out it is placed. Ranks wait for `pp` as well, but only the next stage does, and it has other
# micro-batches to work on. So `pp` goes across nodes, although it may send more than `dp`: a 7B model on dp 8 ×
# pp 8, with 2,048 sequences, sends 8.6 GB along `pp` and 6.6 GB along `dp`. From the inside out: `tp`, `cp`, `shard`,
# `dp`, `pp`.

# %% [markdown]
# ## A mesh
#
# In PyTorch a box of ranks with named axes is a *mesh*. Its first axis is the outermost:
#
# | call | |
# |---|---|
# | `mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))` | ranks 0 to 7, row by row; makes the process groups of all lines. Every rank calls it |
# | `mesh.mesh_dim_names` | the names, `("dp", "tp")` |
# | `mesh["tp"].size()` | ranks on a line of this axis |
# | `mesh.get_local_rank("tp")` | my place on my line |
# | `mesh.get_group("tp")` | the process group of my line |
# | `dist.get_process_group_ranks(group)` | its ranks, by their numbers among all, in the order of their places |
#
# Messages are addressed by global rank number. Which ranks are your neighbours in the pipeline?


# %% nbgrader={"grade": false, "grade_id": "todo_2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def make_mesh(sizes: dict[str, int], sent: dict[str, float], per_node: int) -> DeviceMesh:
    """All ranks as a mesh on the CPU, with an axis for each name in ``sizes``,
    even if it has only one rank.
    """
    # TODO 2: Make the mesh that sends the fewest bytes between nodes, and find the neighbours in the
    # pipeline. First, the mesh.
    ### BEGIN SOLUTION
    order = best_order(sizes, sent, per_node)
    return init_device_mesh("cpu", tuple(sizes[axis] for axis in order), mesh_dim_names=order)
    ### END SOLUTION


def stage_neighbours(mesh: DeviceMesh) -> tuple[int | None, int | None]:
    """The ranks that hold the stages before and after mine, for the same samples and the same part of
    each layer.

    None where there is none: before the first stage, and after the last.
    """
    # TODO 2, again: by their numbers among all ranks, wherever "pp" is in the mesh.
    ### BEGIN SOLUTION
    line, stage = dist.get_process_group_ranks(mesh.get_group("pp")), mesh.get_local_rank("pp")
    before = line[stage - 1] if stage > 0 else None
    after = line[stage + 1] if stage + 1 < len(line) else None
    return before, after
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_2", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("09_mesh/2")

# %% [markdown]
# Does your count agree with what ranks really send? Here are eight ranks, for all six orders, as if a node had four.
# Each rank sends a tensor to the next rank on each of its lines, with a millionth of the bytes above:


# %%
def pass_on(order: list[str], rank: int, world: int) -> None:
    """Send along each line what `SENT` says, in kilobytes for gigabytes."""
    mesh = init_device_mesh("cpu", tuple(SIZES[axis] for axis in order), mesh_dim_names=tuple(order))
    works = []
    for axis in order:
        line, place = dist.get_process_group_ranks(mesh.get_group(axis)), mesh.get_local_rank(axis)
        tensor = torch.zeros(round(SENT[axis] / 1e6), dtype=torch.uint8)
        peers = [line[(place + 1) % len(line)]], [line[place - 1]]
        if axis == "pp":
            before, after = stage_neighbours(mesh)
            peers = ([peer for peer in (before, after) if peer is not None],) * 2
        works += [dist.isend(tensor, peer) for peer in peers[0]]
        works += [dist.irecv(torch.empty_like(tensor), peer) for peer in peers[1]]
    for work in works:
        work.wait()


# %%
predicted, measured = {}, {}
for order in itertools.permutations(SIZES):
    messages = run_on_ranks("09_mesh/pass_on", [list(order)] * 8).messages
    measured[order] = sum(
        message.bytes for message in messages if message.source // 4 != message.target // 4
    )
    predicted[order] = bytes_between_nodes(order, SIZES, SENT, per_node=4) / 1e6
plots.orders(predicted, measured)

# %% [markdown]
# ## Which rank reads what
#
# A sampler divides the samples among ranks. Dividing them among all ranks of the world, as DDP does, would be wrong
# here: two ranks with halves of one layer must compute on **the same** sample, or they add halves of different sums. No
# error is raised, and the loss even falls, only more slowly.
#
# - Along `dp` and along `shard` ranks read different samples. Both are data parallel: sharding changes which rank
#   *holds* a weight, not which samples it reads.
# - Along `tp` and `pp` they read the same samples.
# - Along `cp` they read the same samples, and each rank takes its part of the tokens.
#
# The law of this course still holds: step $k$ takes the same samples on any mesh. A `DistributedSampler` deals one
# permutation like cards, so it only needs the number of players, and which of them this rank is:
#
# | call | |
# |---|---|
# | `DistributedSampler(data, players, me, shuffle=True, seed=seed, drop_last=True)` | card me, me + players, me + 2 · players, … of the permutation of this seed and epoch |
#
# **Predict**: on a mesh of pp 2 × dp 2 × shard 2 × tp 2, how many players are there, and which ranks get the same
# cards?


# %% nbgrader={"grade": false, "grade_id": "todo_3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def data_place(mesh: DeviceMesh) -> tuple[int, int]:
    """This rank's number among the players, which read different samples, from 0; and the number of
    players.

    The mesh has some or all of the axes pp, dp, shard, cp and tp, in any order.
    """
    # TODO 3: Deal samples along the data axes alone, and tokens along the context axis. First, count the
    # players.
    ### BEGIN SOLUTION
    number, players = 0, 1
    for axis in ("dp", "shard"):
        if axis in mesh.mesh_dim_names:
            number = number * mesh[axis].size() + mesh.get_local_rank(axis)
            players *= mesh[axis].size()
    return number, players
    ### END SOLUTION


def make_sampler(data: Dataset, mesh: DeviceMesh, seed: int) -> Sampler[int]:
    """The samples of this rank, reshuffled in each epoch (``set_epoch``);
    samples left over are dropped.
    """
    # TODO 3, again: the samples.
    ### BEGIN SOLUTION
    number, players = data_place(mesh)
    return DistributedSampler(data, players, number, shuffle=True, seed=seed, drop_last=True)
    ### END SOLUTION


def my_tokens(x_BT: Tensor, y_BT: Tensor, mesh: DeviceMesh) -> tuple[Tensor, Tensor, Tensor]:
    """This rank's part of a batch: words (B, t), targets (B, t), and the places of the words in their
    sequences (t,).

    Along "cp" T is cut into equal parts, which lie in order (no zig-zag); places are int64.
    """
    # TODO 3, again: the tokens.
    ### BEGIN SOLUTION
    parts, part = 1, 0
    if "cp" in mesh.mesh_dim_names:
        parts, part = mesh["cp"].size(), mesh.get_local_rank("cp")
    t = x_BT.shape[1] // parts
    mine = slice(part * t, (part + 1) * t)
    return x_BT[:, mine], y_BT[:, mine], torch.arange(mine.start, mine.stop)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_3", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("09_mesh/3")


# %% [markdown]
# Which samples does each rank read in the first step? Ranks in one colour read the same ones.


# %%
def first_samples(shape: dict[str, int], rank: int, world: int) -> list[int]:
    """The first four samples of this rank."""
    mesh = init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
    return list(itertools.islice(make_sampler(range(64), mesh, seed=0), 4))


# %%
shape = {"pp": 2, "dp": 2, "tp": 2}
plots.samples(run_on_ranks("09_mesh/first_samples", [shape] * 8).results, shape)

# %% [markdown]
# ## Each axis's gradients
#
# After the backward pass, every rank has a gradient for each parameter that it holds. What it takes to make this the
# serial run's gradient depends on the axis:
#
# ![The gradients of two ranks along each axis, and the serial run's](../images/strategy_gradients.svg)
#
# Ask two questions. **Which other ranks hold this parameter?** Ranks that do not hold it do not matter. And do the
# ranks that hold it already have **the same** gradient, each a **part** of the sum, or the gradients of **different
# samples**?
#
# - The *same*: leave it. A sum would be t times too large.
# - A *part*: sum.
# - *Different samples*: average, as long as each rank's loss is a mean over its own samples. (Here it is: a rank
#   divides by all tokens of its samples, including those on its neighbours along `cp` and `tp`.)
#
# That depends on the parameter. Three facts decide:


# %%
class Fact(NamedTuple):
    """The facts about a parameter on a rank."""

    cut: bool  # along "tp", each rank has a different part of it
    some: bool  # along "tp", each rank has used it on different tokens (otherwise on the same ones)
    tied: bool  # the first and the last stage both hold it, whole, and each has used it in its own place


# %% [markdown]
# - The matrices of a layer that Megatron cuts (lesson 04) are `cut`.
# - Norms, and biases that are added after the sum, are whole on every rank of `tp`. In lesson 04's plain layers all
#   these ranks use them on the same tokens, with **sequence parallel** on `some`.
# - A table that is both the embedding and the head, as in GPT-2, is `tied`: with a pipeline it lives in two places,
#   which must stay equal.
#
# | call | |
# |---|---|
# | `dist.all_reduce(tensor, group=group)` | the sum over the group, in place |
#
# **Predict** the table before you write it, for five axes and three kinds of parameters: one that is cut; one that is
# not, and is used on the same tokens; one that is not, and is used on some.


# %% nbgrader={"grade": false, "grade_id": "todo_4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def due(axis: str, fact: Fact) -> str:
    """What to do along an axis, "dp", "shard", "cp", "tp" or "pp": "average", "sum" or "leave"."""
    # TODO 4: Give each parameter the serial run's gradient. First, decide what to do along each axis.
    ### BEGIN SOLUTION
    if axis in ("dp", "shard"):
        return "average"
    if axis == "cp":
        return "sum"
    if axis == "tp":
        return "sum" if fact.some and not fact.cut else "leave"
    return "sum" if fact.tied else "leave"
    ### END SOLUTION


def sync_gradients(
    parameters: dict[str, nn.Parameter],
    facts: dict[str, Fact],
    mesh: DeviceMesh,
    ends: dist.ProcessGroup | None,
) -> None:
    """Make each parameter's .grad the serial run's.

    Args:
        mesh: has some or all of the five axes, in any order.
        ends: the first and the last stage of this rank's pipeline; None if it is neither, or both.
    """
    # TODO 4, again: do it. A tied parameter is on the two ends, not on all stages. Send no more than
    # needed: at most one all-reduce for each gradient along each axis. Here "shard" is treated as "dp":
    # nothing is sharded.
    ### BEGIN SOLUTION
    for name, parameter in parameters.items():
        for axis in mesh.mesh_dim_names:
            what = due(axis, facts[name])
            group = ends if axis == "pp" else mesh.get_group(axis)
            if what == "leave" or group is None:
                continue
            dist.all_reduce(parameter.grad, group=group)
            if what == "average":
                parameter.grad /= mesh[axis].size()
    ### END SOLUTION


# %% [markdown]
# To prove it, you need a model that really runs on all axes. Here is the smallest one: a tied table and some layers $x
# + \text{down}(\text{gelu}(\text{up}(\text{norm} \cdot x))) + \text{bias}$, in stages, cut along `tp`, with or without
# sequence parallelism. Tokens do not attend to each other (that was lesson 06), so `cp` just splits them. It contains
# nothing new; skim it.


# %%
def gathered(x_ND: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The tokens of all ranks of the group."""
    parts = [torch.empty_like(x_ND) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x_ND.contiguous(), group=group)
    return torch.cat(parts)


def summed(x_ND: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum over the ranks of the group."""
    total = x_ND.clone()
    dist.all_reduce(total, group=group)
    return total


def scattered(x_ND: Tensor, group: dist.ProcessGroup) -> Tensor:
    """This rank's tokens of the sum over the ranks of the group."""
    parts = [part.contiguous() for part in x_ND.chunk(dist.get_world_size(group))]
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, parts, group=group)
    return mine


class Enter(torch.autograd.Function):
    """Into a layer that is cut: Megatron's f, or with sequence parallel g-bar's conjugate,
    an all-gather.
    """

    @staticmethod
    def forward(ctx, x_ND: Tensor, group: dist.ProcessGroup, sequence_parallel: bool) -> Tensor:
        ctx.group, ctx.sequence_parallel = group, sequence_parallel
        return gathered(x_ND, group) if sequence_parallel else x_ND.view_as(x_ND)

    @staticmethod
    def backward(ctx, grad_ND: Tensor) -> tuple[Tensor | None, ...]:
        back = scattered if ctx.sequence_parallel else summed
        return back(grad_ND, ctx.group), None, None


class Leave(torch.autograd.Function):
    """Out of it: Megatron's g, or with sequence parallel a reduce-scatter."""

    @staticmethod
    def forward(ctx, x_ND: Tensor, group: dist.ProcessGroup, sequence_parallel: bool) -> Tensor:
        ctx.group, ctx.sequence_parallel = group, sequence_parallel
        return (scattered if sequence_parallel else summed)(x_ND, group)

    @staticmethod
    def backward(ctx, grad_ND: Tensor) -> tuple[Tensor | None, ...]:
        return (gathered(grad_ND, ctx.group) if ctx.sequence_parallel else grad_ND), None, None


def first_weights(words: int, dim: int, hidden: int, layers: int) -> dict[str, Tensor]:
    """All weights of the model, by name."""
    draw = torch.Generator().manual_seed(0)
    weights = {"table": torch.randn(words, dim, generator=draw)}
    for layer in range(layers):
        weights[f"{layer}.norm"] = 1 + 0.1 * torch.randn(dim, generator=draw)
        weights[f"{layer}.up"] = torch.randn(dim, hidden, generator=draw) / dim**0.5
        weights[f"{layer}.down"] = torch.randn(hidden, dim, generator=draw) / hidden**0.5
        weights[f"{layer}.bias"] = 0.1 * torch.randn(dim, generator=draw)
    return weights


class Piece:
    """The part of the model that one rank of a mesh holds: its part of each of its stage's layers."""

    def __init__(self, weights: dict[str, Tensor], mesh: DeviceMesh, sequence_parallel: bool) -> None:
        self.mesh, self.sequence_parallel = mesh, sequence_parallel
        self.before, self.after = stage_neighbours(mesh)
        layers, stages = len(weights) // 4, mesh["pp"].size()
        first = mesh.get_local_rank("pp") * layers // stages
        self.layers = range(first, first + layers // stages)
        self.parameters: dict[str, nn.Parameter] = {}
        self.facts: dict[str, Fact] = {}
        if self.before is None or self.after is None:
            self.hold("table", weights["table"], tied=True)
        for layer in self.layers:
            self.hold(f"{layer}.norm", weights[f"{layer}.norm"])
            self.hold(f"{layer}.up", self.part(weights[f"{layer}.up"], dim=1), cut=True)
            self.hold(f"{layer}.down", self.part(weights[f"{layer}.down"], dim=0), cut=True)
            self.hold(f"{layer}.bias", weights[f"{layer}.bias"])

    def part(self, weight: Tensor, dim: int) -> Tensor:
        return weight.chunk(self.mesh["tp"].size(), dim)[self.mesh.get_local_rank("tp")]

    def hold(self, name: str, weight: Tensor, cut: bool = False, tied: bool = False) -> None:
        self.parameters[name] = nn.Parameter(weight.clone())
        self.facts[name] = Fact(cut, some=self.sequence_parallel and not cut, tied=tied)

    def run(self, x_ND: Tensor) -> Tensor:
        """This stage's layers."""
        group, p = self.mesh.get_group("tp"), self.parameters
        for layer in self.layers:
            h_ND = Enter.apply(x_ND * p[f"{layer}.norm"], group, self.sequence_parallel)
            h_ND = F.gelu(h_ND @ p[f"{layer}.up"]) @ p[f"{layer}.down"]
            x_ND = x_ND + Leave.apply(h_ND, group, self.sequence_parallel) + p[f"{layer}.bias"]
        return x_ND


def forward_backward(piece: Piece, x_N: Tensor, y_N: Tensor, count: int) -> float:
    """A forward and a backward pass on this rank's tokens. Returns its part of the loss: 0 except on the
    last stage.

    Args:
        x_N: the words of my samples, or my part of them along "cp".
        count: all tokens of my samples.
    """
    if piece.sequence_parallel:
        x_N, y_N = (piece.part(tokens, dim=0) for tokens in (x_N, y_N))
    if piece.before is None:
        start_ND = piece.parameters["table"][x_N]
    else:
        start_ND = torch.empty(len(x_N), piece.parameters[f"{piece.layers[0]}.norm"].numel())
        dist.recv(start_ND, piece.before)
        start_ND.requires_grad_()
    end_ND = piece.run(start_ND)
    loss = 0.0
    if piece.after is None:
        logits_NV = end_ND @ piece.parameters["table"].T
        part = F.cross_entropy(logits_NV, y_N, reduction="sum") / count
        part.backward()
        loss = part.item()
    else:
        dist.send(end_ND.detach(), piece.after)
        grad_ND = torch.empty_like(end_ND)
        dist.recv(grad_ND, piece.after)
        end_ND.backward(grad_ND)
    if piece.before is not None:
        dist.send(start_ND.grad, piece.before)
    return loss


def group_of_ends(mesh: DeviceMesh) -> dist.ProcessGroup | None:
    """The first and the last stage of this rank's pipeline; None if it is neither, or both."""
    mine = None
    for line in pipelines(mesh):
        group = dist.new_group([line[0], line[-1]]) if len(line) > 1 else None
        if dist.get_rank() in (line[0], line[-1]):
            mine = group
    return mine


def pipelines(mesh: DeviceMesh) -> list[list[int]]:
    """The ranks of every line along "pp", by stage."""
    axis = mesh.mesh_dim_names.index("pp")
    return mesh.mesh.movedim(axis, -1).reshape(-1, mesh.mesh.shape[axis]).tolist()


# %% nbgrader={"grade": true, "grade_id": "test_4", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("09_mesh/4")

# %% [markdown]
# ## The norm of the whole gradient
#
# To clip a gradient you need the norm of *all* of it, and each rank has a piece. Squares can be summed, but each
# number must count **once**: not once for each rank that holds it. If each rank clips with its own norm, the ranks
# scale their parts differently, and together they no longer form one gradient. With Adam, the loss hardly shows it.
#
# All gradients are already synchronized. **Predict**: along which axes must squares be summed for a parameter that is
# cut? For one that is not? And which stage counts the tied table?


# %% nbgrader={"grade": false, "grade_id": "todo_5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def gradient_norm(
    parameters: dict[str, nn.Parameter], facts: dict[str, Fact], mesh: DeviceMesh
) -> float:
    """The norm of the whole model's gradient, the same on all ranks.
    The mesh has the axes "pp" and "tp" at least.
    """
    # TODO 5: Find the norm of the whole gradient, over all axes. A rank sends a few numbers for a model
    # of any size. A stage may hold nothing that is cut, or nothing that is not.
    ### BEGIN SOLUTION
    mine = torch.zeros(2, dtype=torch.float64)  # cut parameters, and whole ones
    for name, parameter in parameters.items():
        if facts[name].tied and mesh.get_local_rank("pp") > 0:
            continue  # the first stage counts it
        mine[0 if facts[name].cut else 1] += parameter.grad.double().square().sum()
    dist.all_reduce(mine[:1], group=mesh.get_group("tp"))
    dist.all_reduce(mine, group=mesh.get_group("pp"))
    return mine.sum().sqrt().item()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_5", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("09_mesh/5")

# %% [markdown]
# All five together: the same model and samples on one process, and on eight in several shapes. This is the law of the
# course on all axes at once.

# %%
WORDS, DIM, HIDDEN, LAYERS, LENGTH, BATCH, STEPS = 29, 8, 16, 4, 16, 8, 12


def train(how: dict, rank: int, world: int) -> list[list[float]]:
    """The loss of the whole batch, and the norm of its gradient, in each step."""
    shape = how["shape"]
    mesh = init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
    piece = Piece(first_weights(WORDS, DIM, HIDDEN, LAYERS), mesh, how["sequence_parallel"])
    ends = group_of_ends(mesh)
    draw = torch.Generator().manual_seed(1)
    # one batch, which the model memorizes
    text = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=draw)
    number, players = data_place(mesh)
    mine = text[number::players]
    x, y, _ = my_tokens(mine[:, :-1], mine[:, 1:], mesh)
    told = []
    for _ in range(STEPS):
        for parameter in piece.parameters.values():
            parameter.grad = None
        loss = torch.tensor(forward_backward(piece, x.flatten(), y.flatten(), count=len(mine) * LENGTH))
        sync_gradients(piece.parameters, piece.facts, mesh, ends)
        norm = gradient_norm(piece.parameters, piece.facts, mesh)
        with torch.no_grad():
            for parameter in piece.parameters.values():
                parameter -= 0.2 * parameter.grad * min(1.0, 1 / norm)
        # parts along cp (and tp), means of other samples along dp, and copies along tp
        dist.all_reduce(loss)
        copies = players * (1 if how["sequence_parallel"] else shape["tp"])
        told.append([loss.item() / copies, norm])
    return told


# %%
def as_shape(pp: int, dp: int, cp: int, tp: int) -> dict[str, int]:
    return {"pp": pp, "dp": dp, "cp": cp, "tp": tp}


runs = {}
for shape, sequence_parallel in (
    (as_shape(1, 1, 1, 1), False),
    (as_shape(2, 2, 1, 2), False),
    (as_shape(2, 2, 1, 2), True),
    (as_shape(1, 2, 2, 2), True),
    (as_shape(4, 1, 2, 1), False),
):
    how = {"shape": shape, "sequence_parallel": sequence_parallel}
    told = run_on_ranks("09_mesh/train", [how] * math.prod(shape.values())).results[0]
    name = " × ".join(f"{axis} {size}" for axis, size in shape.items() if size > 1) or "one process"
    runs[name + (", sequence parallel" if sequence_parallel else "")] = told
plots.training(runs)

# %% [markdown]
# ## Recap
#
# - Each rank has a place on every axis, and communicates along its lines, one for each axis.
# - The order of the axes decides which lines leave the node. Axes that wait for every message belong closest together.
# - `dp` and `shard` read different samples, `cp` different tokens; `tp` and `pp` read the same ones.
# - Gradients are averaged over different samples, summed over parts, and left alone where they are equal.
# - In the norm, each number counts once: cut parameters over `tp`, stages over `pp`, a tied table on one end.
#
# Papers: the mesh and its axes, [2410.06511](https://arxiv.org/abs/2410.06511); tensor, pipeline and data parallelism
# together, [2104.04473](https://arxiv.org/abs/2104.04473); sequence parallelism and what it does to norms,
# [2205.05198](https://arxiv.org/abs/2205.05198).
#
# Next: `10_strategy`. Does a plan fit, how long is a step, and which plan is the best?
