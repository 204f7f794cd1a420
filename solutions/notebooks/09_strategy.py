# %% [markdown]
# # Strategy: all at once, and how to choose
#
# You have built each axis of parallel training by itself. Large models are trained on several of them at the same
# time, and small ones are not. This lesson is about both halves of that sentence: how the axes are put together, so
# that the parallel run is still the serial run, and how to choose them, with a pencil, before anything runs.
#
# Why choose at all? Because models have outgrown their machines:
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
from utils import plots_strategy
from utils.plan import Link, Machine, Model, Plan

# %% [markdown]
# ## The axes are orthogonal
#
# | axis | its ranks | what they send, and how often |
# |---|---|---|
# | `dp`, data | hold the same weights, read other samples | gradients, once a step |
# | `shard`, sharded data (FSDP) | hold a shard of those weights each, read other samples | weights and gradients, for each block |
# | `cp`, context | read other tokens of the same samples | keys and values, in each layer |
# | `tp`, tensor | have a part of each layer, compute on the same tokens | activations, several times in each layer |
# | `pp`, pipeline | have other layers | activations, at the border of two stages |
#
# Each rank has a place on every axis at once. So the ranks form a box, as in lesson 08, with
# dp · shard · cp · tp · pp places; a rank communicates along its lines, one for each axis, and the axes know nothing
# of each other. That is called 3-D parallelism, or 4-D, or 5-D, by the number of axes that are longer than 1
# ([arXiv:2410.06511](https://arxiv.org/abs/2410.06511) has them all in one small code base).
#
# But one thing they share: the cables. Within a node GPUs have fast links, between nodes slow ones. Ranks are numbered
# node by node, the box is numbered row by row, so the **order of the axes** decides whose lines leave the node:
#
# ![Eight ranks on two nodes: with the tensor axis innermost, and with the tensor axis outermost](../images/strategy_mesh.svg)
#
# For counting: on a line of `dp`, `shard`, `cp` or `tp` data goes round a ring, in which each rank sends to the next
# one, and the last one to the first. On a line of `pp`, which is no ring, each stage sends activations to the next,
# and as many bytes of gradients come back.
#
# **Predict**: in the drawing each rank sends 8 GB along `tp`, 3 GB along `dp` and 0.1 GB each way along `pp`. How many
# bytes leave a node, with either order?


# %% nbgrader={"grade": false, "grade_id": "todo_1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def bytes_between_nodes(order: Sequence[str], sizes: dict[str, int], sent: dict[str, float], per_node: int) -> float:
    """Bytes of one step that go from one node to another, those of all ranks together.

    Args:
        order: names of the axes, the outermost first: the place on the last one changes fastest.
        sizes: how many ranks a line of each axis has.
        sent: bytes that a rank sends to the next one of its line; along "pp" the next one sends as many back.
        per_node: ranks a node. Node 0 has the first so many ranks, node 1 the next.
    """
    # TODO 1: Count the bytes that leave a node, for each order of the axes. A line of one rank sends nothing.
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
    """The order of the axes with which the fewest bytes go between nodes; of several, any."""
    # TODO 1, again: try them all. `itertools.permutations` has the orders.
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
check("09_strategy/1")

# %% [markdown]
# The rule that comes of it holds for nearly all models: **who sends most sits closest.** From the inside: `tp`, then
# `cp`, then `shard`, then `dp`; and `pp`, which sends least, goes across.
#
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
# Messages go to a rank by its number among all ranks. Along the pipeline, whose number is that?


# %% nbgrader={"grade": false, "grade_id": "todo_2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def make_mesh(sizes: dict[str, int], sent: dict[str, float], per_node: int) -> DeviceMesh:
    """All ranks as a mesh on the CPU, with an axis for each name in ``sizes``, also for those of one rank."""
    # TODO 2: Make the mesh that sends the fewest bytes between nodes, and find the neighbours in the pipeline.
    # First, the mesh.
    ### BEGIN SOLUTION
    order = best_order(sizes, sent, per_node)
    return init_device_mesh("cpu", tuple(sizes[axis] for axis in order), mesh_dim_names=order)
    ### END SOLUTION


def stage_neighbours(mesh: DeviceMesh) -> tuple[int | None, int | None]:
    """The ranks that hold the stages before and after mine, for the same samples and the same part of each layer.

    None where there is none: before the first stage, and after the last.
    """
    # TODO 2, again: by their numbers among all ranks, wherever "pp" stands in the mesh.
    ### BEGIN SOLUTION
    line, stage = dist.get_process_group_ranks(mesh.get_group("pp")), mesh.get_local_rank("pp")
    before = line[stage - 1] if stage > 0 else None
    after = line[stage + 1] if stage + 1 < len(line) else None
    return before, after
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_2", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("09_strategy/2")

# %% [markdown]
# Does your count agree with what ranks really send? Here are eight of them, for all six orders, as if four were a node.
# Along each axis they pass a tensor on to the next of the line, of a millionth of the bytes above:


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
    messages = run_on_ranks("09_strategy/pass_on", [list(order)] * 8).messages
    measured[order] = sum(message.bytes for message in messages if message.source // 4 != message.target // 4)
    predicted[order] = bytes_between_nodes(order, SIZES, SENT, per_node=4) / 1e6
plots_strategy.orders(predicted, measured)

# %% [markdown]
# ## Who reads what
#
# A sampler deals samples out to ranks. Dealt out over all ranks of the world, as DDP does it, they would be wrong here:
# two ranks with halves of one layer must compute on **the same** sample, or they add up halves of different sums. No
# error is raised, and the loss even falls, only more slowly.
#
# - Along `dp` and along `shard` ranks read different samples. Both are data parallel: sharding changes who *holds* a
#   weight, not who reads what.
# - Along `tp` and `pp` they read the same samples.
# - Along `cp` they read the same samples, and each rank takes its part of the tokens.
#
# The law of this course still holds: step $k$ takes the same samples on any mesh. A `DistributedSampler` deals one
# permutation out card by card, so for that it is enough to tell it the number of players, and who I am:
#
# | call | |
# |---|---|
# | `DistributedSampler(data, players, me, shuffle=True, seed=seed, drop_last=True)` | card me, me + players, me + 2 · players, … of the permutation of this seed and epoch |
#
# **Predict**: on a mesh of pp 2 × dp 2 × shard 2 × tp 2, how many players are there, and which ranks get the same
# cards?


# %% nbgrader={"grade": false, "grade_id": "todo_3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def data_place(mesh: DeviceMesh) -> tuple[int, int]:
    """My number among those who read different samples, from 0, and how many they are.

    The mesh has some or all of the axes pp, dp, shard, cp and tp, in any order.
    """
    # TODO 3: Deal samples out along the data axes alone, and tokens along the context axis. First, who plays?
    ### BEGIN SOLUTION
    number, players = 0, 1
    for axis in ("dp", "shard"):
        if axis in mesh.mesh_dim_names:
            number = number * mesh[axis].size() + mesh.get_local_rank(axis)
            players *= mesh[axis].size()
    return number, players
    ### END SOLUTION


def make_sampler(data: Dataset, mesh: DeviceMesh, seed: int) -> Sampler[int]:
    """The samples of this rank, shuffled anew in each epoch (``set_epoch``); those that do not divide are dropped."""
    # TODO 3, again: the samples.
    ### BEGIN SOLUTION
    number, players = data_place(mesh)
    return DistributedSampler(data, players, number, shuffle=True, seed=seed, drop_last=True)
    ### END SOLUTION


def my_tokens(x_BT: Tensor, y_BT: Tensor, mesh: DeviceMesh) -> tuple[Tensor, Tensor, Tensor]:
    """This rank's part of a batch: words (B, t), targets (B, t), and the places of the words in their sequences (t,).

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
check("09_strategy/3")


# %% [markdown]
# Look at it: which samples does each rank read in the first step? Ranks in one colour read the same ones.


# %%
def first_samples(shape: dict[str, int], rank: int, world: int) -> list[int]:
    """The first four samples of this rank."""
    mesh = init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
    return list(itertools.islice(make_sampler(range(64), mesh, seed=0), 4))


# %%
shape = {"pp": 2, "dp": 2, "tp": 2}
plots_strategy.samples(run_on_ranks("09_strategy/first_samples", [shape] * 8).results, shape)

# %% [markdown]
# ## Each axis's gradients
#
# After the backward pass every rank has a gradient for each parameter it holds. On the way to the serial run's
# gradient, something else is due on each axis:
#
# ![What the gradients of two ranks are along each axis, and that of the serial run, as bars with numbers](../images/strategy_gradients.svg)
#
# Ask two questions. **Who else holds this parameter?** With those who do not, there is nothing to share. And of those
# who do: **do they have the same gradient already**, or a **part** of the sum each, or the gradient of **other
# samples**?
#
# - The *same*: leave it. Who adds it up makes it t times too large.
# - A *part*: add up.
# - *Other samples*: average, as long as each rank's loss is a mean over its own samples. (Here it is: a rank divides by
#   all tokens of its samples, also those that its neighbours along `cp` and `tp` have.)
#
# That depends on the parameter. Three facts decide:


# %%
class Fact(NamedTuple):
    """What is known of a parameter on a rank."""

    cut: bool  # along "tp" each rank has another part of it
    some: bool  # along "tp" each rank has used it on other tokens (else on the same ones)
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
# **Predict** the table before you write it: five axes, and a parameter that is cut; one that is not, used on the same
# tokens; one used on some.


# %% nbgrader={"grade": false, "grade_id": "todo_4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def due(axis: str, fact: Fact) -> str:
    """What is due along an axis, "dp", "shard", "cp", "tp" or "pp": "average", "sum" or "leave"."""
    # TODO 4: Give each parameter the serial run's gradient. First, what is due along each axis?
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
    parameters: dict[str, nn.Parameter], facts: dict[str, Fact], mesh: DeviceMesh, ends: dist.ProcessGroup | None
) -> None:
    """Make each parameter's .grad that of the serial run.

    Args:
        mesh: has some or all of the five axes, in any order.
        ends: the first and the last stage of this rank's pipeline; None if it is neither, or both.
    """
    # TODO 4, again: do it. A tied parameter is shared by the two ends, not by all stages. Of each gradient, nothing is
    # sent that is not due: at most one all-reduce along each axis. Here "shard" is treated as "dp": nothing is
    # sharded.
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
# To prove it takes a model that really runs on all axes. Here is the smallest one: a tied table and some layers $x +
# \text{down}(\text{gelu}(\text{up}(\text{norm} \cdot x))) + \text{bias}$, in stages, cut along `tp`, with or without
# sequence parallel. Tokens do not look at each other (that was lesson 06), so `cp` just cuts them. Nothing in it is
# new; read it as far as you like.


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
    """Into a layer that is cut: Megatron's f, or with sequence parallel g-bar's mirror, an all-gather."""

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
    """What one rank of a mesh holds of the model: its stage's layers, and of those its part."""

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
    """A forward and a backward pass on this rank's tokens. Returns this rank's part of the loss; 0 but at the end.

    Args:
        x_N: the words of my samples, as far as they are mine along "cp".
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
check("09_strategy/4")

# %% [markdown]
# ## The norm of the whole gradient
#
# To clip a gradient you need the length of *all* of it, and each rank has a piece. The squares add up, but each number
# must count **once**: not once for each rank that holds it, and not only where it is at hand. Where a rank clips by a
# norm of its own, the ranks scale their parts differently, and it is no longer one gradient. With Adam the loss shows
# little of that.
#
# All gradients are synchronized already. **Predict**: along which axes do squares have to be added up, for a parameter
# that is cut? For one that is not? And who counts the tied table?


# %% nbgrader={"grade": false, "grade_id": "todo_5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def gradient_norm(parameters: dict[str, nn.Parameter], facts: dict[str, Fact], mesh: DeviceMesh) -> float:
    """The norm of the whole model's gradient, the same on all ranks. The mesh has the axes "pp" and "tp" at least."""
    # TODO 5: Find the norm of the whole gradient, over all axes. A rank sends some numbers, however large the model is.
    # A stage may hold nothing that is cut, or nothing that is not.
    ### BEGIN SOLUTION
    mine = torch.zeros(2, dtype=torch.float64)  # of what is cut, and of what is not
    for name, parameter in parameters.items():
        if facts[name].tied and mesh.get_local_rank("pp") > 0:
            continue  # the first stage counts it
        mine[0 if facts[name].cut else 1] += parameter.grad.double().square().sum()
    dist.all_reduce(mine[:1], group=mesh.get_group("tp"))
    dist.all_reduce(mine, group=mesh.get_group("pp"))
    return mine.sum().sqrt().item()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_5", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("09_strategy/5")

# %% [markdown]
# All five together: the same model and samples on one process, and on eight in many shapes. This is the law of the
# course on all axes at once.

# %%
WORDS, DIM, HIDDEN, LAYERS, LENGTH, BATCH, STEPS = 29, 8, 16, 4, 16, 8, 12


def train(how: dict, rank: int, world: int) -> list[list[float]]:
    """The loss of the whole batch, and the norm of its gradient, in each step."""
    shape = how["shape"]
    mesh = init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
    piece, ends = Piece(first_weights(WORDS, DIM, HIDDEN, LAYERS), mesh, how["sequence_parallel"]), group_of_ends(mesh)
    draw = torch.Generator().manual_seed(1)
    text = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=draw)  # one batch, to be learned by heart
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
        dist.all_reduce(loss)  # parts along cp (and tp), means of other samples along dp, and copies along tp
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
    told = run_on_ranks("09_strategy/train", [how] * math.prod(shape.values())).results[0]
    name = " × ".join(f"{axis} {size}" for axis, size in shape.items() if size > 1) or "one process"
    runs[name + (", sequence parallel" if sequence_parallel else "")] = told
plots_strategy.training(runs)

# %% [markdown]
# ## Does it fit?
#
# Now the choice. It begins with memory, since a plan that does not fit need not be fast. A model, a plan and a machine
# are described in `utils/plan.py`:
#
# - `Model`: `hidden` (h), `layers` (L), `heads`, `vocabulary` (V), `sequence` (s); and `experts` in each block, of
#   which a token goes to `active` ones. With `experts=0` there is one MLP, as if there were one expert.
# - `Plan`: `batch` (sequences in a step, over all ranks) and `micro_batch` (b, sequences at a time); the five axes, and
#   `ep`, the ranks among which experts are spread; `recompute`, "none" or "full". It knows its `world`, its `replicas`
#   (dp · shard) and its `micro_batches` (m, of each replica). Its other fields are for the planner at the end; here
#   they stay as they are.
# - `Machine`: `peak`, `memory`, `node` (GPUs in one), and its links; more in the next section.
#
# Take a rank of stage $r$ (from 0) of $p$. For counting, a block has $4h^2$ numbers in its attention and $8h^2$ in each
# MLP; the embedding table is on the first stage, the head on the last, $Vh$ each; norms, biases and positions are left
# out, and layers divide by stages.
#
# | kind | what a rank holds of it |
# |---|---|
# | weights, gradients, state | mixed precision as in lesson 03: 2, 2 and 12 bytes for each of its numbers. `tp` cuts them, `shard` shards them |
# | gathered | with `shard` > 1, for a moment: one block's weights and gradients as they are without sharding, and, as in `fsdp_training`, those of table and head all the time; 2 bytes each |
# | activations | of each block and micro-batch: `tp` with sequence parallel and `cp` cut the tokens; a token keeps 34 bytes for each of its h numbers ([arXiv:2205.05198](https://arxiv.org/abs/2205.05198), scores not kept), 15 for attention and norms, 19 for each MLP it goes to |
# | … recomputed | 2 bytes for each number between the blocks, and once, for the block at hand, all of it |
# | … in a pipeline | 1F1B (lesson 05): stage $r$ keeps those of min(m, p - r) micro-batches, for its own blocks |
#
# Experts are special: `ep` ranks have other ones each. Those ranks are taken from `shard` first, then from `dp`; what
# is left of the two shards and replicates the experts:


# %%
def of_experts(plan: Plan) -> tuple[int, int]:
    """Ranks that replicate, and ranks that shard, the experts of a rank. Without experts, `ep` is 1: dp and shard."""
    if plan.ep <= plan.shard:
        return plan.dp, plan.shard // plan.ep
    return plan.dp * plan.shard // plan.ep, 1


# %% [markdown]
# **Predict**: a model of 7 billion parameters on 8 GPUs of 40 GB. Which of these make it fit: dp 8, shard 8, tp 4 × pp
# 2? And which kind takes the most memory then?


# %% nbgrader={"grade": false, "grade_id": "todo_6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def rank_numbers(model: Model, plan: Plan, stage: int) -> tuple[float, float]:
    """Numbers on a rank of this stage, as they are without sharding: of attention, table and head; and of MLPs."""
    # TODO 6: Predict what a rank holds, by kind. First, the numbers, of which `shard` will take its part.
    # `tp` cuts all of them; `ep` spreads the experts.
    ### BEGIN SOLUTION
    blocks, ends = model.layers / plan.pp, (stage == 0) + (stage == plan.pp - 1)
    dense = blocks * 4 * model.hidden**2 + ends * model.vocabulary * model.hidden
    mlps = blocks * 8 * model.hidden**2 * max(1, model.experts) / plan.ep
    return dense / plan.tp, mlps / plan.tp
    ### END SOLUTION


def activation_bytes(model: Model, plan: Plan, stage: int) -> float:
    """Bytes that a rank of this stage keeps for the backward pass, at most."""
    # TODO 6, again: the activations.
    ### BEGIN SOLUTION
    numbers = plan.micro_batch * model.sequence / (plan.cp * plan.tp) * model.hidden
    block = numbers * (15 + 19 * model.active)
    alive = model.layers / plan.pp * min(plan.micro_batches, plan.pp - stage)
    return alive * 2 * numbers + block if plan.recompute == "full" else alive * block
    ### END SOLUTION


def memory(model: Model, plan: Plan, stage: int) -> dict[str, float]:
    """Bytes on a rank of this stage: of "weights", "gradients", "state", "gathered" and "activations"."""
    # TODO 6, again: all kinds. `of_experts` says who shards MLPs; where nobody does, they are not gathered.
    ### BEGIN SOLUTION
    dense, mlps = rank_numbers(model, plan, stage)
    shards = of_experts(plan)[1]
    held = dense / plan.shard + mlps / shards
    blocks = model.layers / plan.pp
    attention = blocks * 4 * model.hidden**2 / plan.tp
    gathered = 0.0
    if plan.shard > 1:
        gathered += attention / blocks + (dense - attention)
    if shards > 1:
        gathered += mlps / blocks
    return {
        "weights": 2 * held,
        "gradients": 2 * held,
        "state": 12 * held,
        "gathered": (2 + 2) * gathered,
        "activations": activation_bytes(model, plan, stage),
    }
    ### END SOLUTION


def most_memory(model: Model, plan: Plan) -> float:
    """Bytes on the rank that holds most."""
    # TODO 6, again: which stage is it?
    ### BEGIN SOLUTION
    return max(sum(memory(model, plan, stage).values()) for stage in range(plan.pp))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_6", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("09_strategy/6")

# %% [markdown]
# Your prediction for 8 GPUs of 40 GB (the dashed line):

# %%
SEVEN = Model(hidden=4096, layers=32, heads=32, vocabulary=32000, sequence=2048)
CLUSTER = Machine(
    "GPUs of 40 GB, four a node", peak=312e12, memory=40e9, memory_bandwidth=1.5e12, node=4,
    inside=Link(bandwidth=250e9, latency=5e-6), between=Link(bandwidth=12.5e9, latency=10e-6),
    device_share=0.5, link_share=0.8,
)  # fmt: skip
shown = {}
for axes in ({"dp": 8}, {"shard": 8}, {"tp": 4, "pp": 2}, {"shard": 2, "tp": 4}, {"shard": 8, "recompute": "full"}):
    plan = Plan(batch=64, **axes)
    kinds = [memory(SEVEN, plan, stage) for stage in range(plan.pp)]
    shown[", ".join(f"{axis} {size}" for axis, size in axes.items())] = max(kinds, key=lambda kind: sum(kind.values()))
plots_strategy.memory(shown, CLUSTER.memory)

# %% [markdown]
# ## How long is a step?
#
# The time of a step has three parts: computing, waiting for messages, and the pipeline's bubble.
#
# **Computing.** A number that multiplies a token takes 6 FLOPs, forward and backward, and the head counts, but the
# embedding table does not: nothing is multiplied by it. Of the experts the active ones count. Attention's scores take
# $12Lhs$ more for each token. Recomputing all blocks adds a third to everything (we count the head, too). A GPU does
# `peak · device_share` FLOPs a second.
#
# **Messages.** What a rank of the first stage sends in a step, each number having 2 bytes, with $b$, $m$ as above and
# $n = b \cdot s/\text{cp}$ tokens of a micro-batch on a rank; each line has been the result of a lesson:
#
# | axis | is used for | numbers that are sent | messages |
# |---|---|---|---|
# | `tp` | each block and micro-batch: 4 all-gathers, 4 reduce-scatters; recomputed, 6 and 6 | a ring's, of $nh$ | $t - 1$ each |
# | `cp` | the same: K and V go round forward; K, V and their gradients backward; recomputed, no more (only the planner at the end counts that round, too) | 3 pairs of $nh/t$, to cp - 1 others | cp - 1 for each pair |
# | `ep` | the same: 4 all-to-alls; recomputed, 6 | what leaves the rank, of (active · $nh/t$) | ep - 1 each |
# | `pp` | each micro-batch: activations to the next stage, and the gradients that come back: waited for, too, and so counted here | $nh$ each way | 1 each way |
# | `shard` | each micro-batch: 2 all-gathers, a reduce-scatter | a ring's, of all that the rank's unit has unsharded | as many rings of $N - 1$ for each block, and for table and head together |
# | `dp` | once a step: an all-reduce over dp · cp ranks, as along `cp` gradients are added up, too | a ring's, of all that the rank holds | $2(N - 1)$ |
#
# For `shard` and `dp`, MLPs go by `of_experts`; the messages are those of the dense part, with or without experts. A
# line of one rank sends nothing.
#
# **Links.** A rank's lines are placed from the inside in the order tp, cp, shard, dp, pp (and `ep` lies on shard's
# side: it spans ep · cp · tp ranks). A line whose span (its length times all that is inside it: for `dp`, dp · shard ·
# cp · tp) is at most a node's GPUs uses `machine.inside`, any other `machine.between`. It takes bytes / (bandwidth ·
# `link_share`) + messages · latency.
#
# **What overlaps.** `tp`, `ep` and `pp` are waited for. `shard` and `dp` go on beside the computation, and `cp` beside
# attention's scores, which have the share $12Lhs$ of a token's FLOPs, and of the computing's time, recomputed or not: of
# those only what is longer counts.
#
# **Bubble.** The micro-batches' time (computing, and what is waited for, cp's included) times $(p - 1)/m$.


# %% nbgrader={"grade": false, "grade_id": "todo_7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def token_flops(model: Model) -> float:
    """FLOPs of a token, forward and backward, without recomputing."""
    # TODO 7: Predict the time of a step. First, the work.
    ### BEGIN SOLUTION
    h = model.hidden
    numbers = model.layers * (4 * h**2 + 8 * h**2 * model.active) + model.vocabulary * h
    return 6 * numbers + 12 * model.layers * h * model.sequence
    ### END SOLUTION


def sent(model: Model, plan: Plan) -> dict[str, tuple[float, int]]:
    """Bytes and messages that a rank of stage 0 sends in a step, on "tp", "cp", "ep", "pp", "shard" and "dp"."""
    # TODO 7, again: the messages. `rank_numbers` has the numbers of a rank.
    ### BEGIN SOLUTION
    t, cp, ep, m = plan.tp, plan.cp, plan.ep, plan.micro_batches
    blocks = model.layers // plan.pp
    numbers = plan.micro_batch * model.sequence / cp * model.hidden
    again = 1.5 if plan.recompute == "full" else 1
    dense, mlps = rank_numbers(model, plan, 0)
    replicas, shards = of_experts(plan)

    def ring(length: int, numbers: float) -> float:
        return (length - 1) / length * numbers

    copies = plan.dp * cp
    rings = round(8 * again) * blocks * m
    swaps = round(4 * again) * blocks * m
    return {
        "tp": (2 * rings * ring(t, numbers), rings * (t - 1)),
        "cp": (2 * 3 * blocks * m * (cp - 1) * 2 * numbers / t, 3 * blocks * m * (cp - 1)),
        "ep": (2 * swaps * ring(ep, model.active * numbers / t), swaps * (ep - 1)),
        "pp": (2 * 2 * m * numbers, 2 * m) if plan.pp > 1 else (0.0, 0),
        "shard": (2 * 3 * m * (ring(plan.shard, dense) + ring(shards, mlps)), 3 * m * (blocks + 1) * (plan.shard - 1)),
        "dp": (2 * 2 * (ring(copies, dense / plan.shard) + ring(replicas * cp, mlps / shards)), 2 * (copies - 1)),
    }
    ### END SOLUTION


def link(axis: str, plan: Plan, machine: Machine) -> Link:
    """Over which link a line of this axis goes."""
    # TODO 7, again: does the line leave the node?
    ### BEGIN SOLUTION
    if axis == "ep":
        span = plan.ep * plan.cp * plan.tp
    else:
        inside = ("tp", "cp", "shard", "dp", "pp")
        span = math.prod(getattr(plan, name) for name in inside[: inside.index(axis) + 1])
    return machine.inside if span <= machine.node else machine.between
    ### END SOLUTION


def step_seconds(model: Model, plan: Plan, machine: Machine) -> dict[str, float]:
    """Seconds of a step: "computing", "tp", "ep", "pp", "cp", "bubble" and "data", whose sum is the step."""
    # TODO 7, again: the time. "data" is what shard and dp take together, beyond the computing.
    ### BEGIN SOLUTION
    flops = token_flops(model)
    scores = 12 * model.layers * model.hidden * model.sequence / flops
    again = 4 / 3 if plan.recompute == "full" else 1
    computing = plan.batch * model.sequence * flops * again / (plan.world * machine.peak * machine.device_share)
    took = {}
    for axis, (count, messages) in sent(model, plan).items():
        cable = link(axis, plan, machine)
        took[axis] = count / (cable.bandwidth * machine.link_share) + messages * cable.latency
    found = {"computing": computing} | {axis: took[axis] for axis in ("tp", "ep", "pp")}
    found["cp"] = max(0.0, took["cp"] - computing * scores)
    found["bubble"] = sum(found.values()) * (plan.pp - 1) / plan.micro_batches
    found["data"] = max(0.0, took["shard"] + took["dp"] - computing)
    return found
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_7", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("09_strategy/7")

# %% [markdown]
# The 7-billion model on 64 GPUs, some plans beside each other. Which part would a network of twice the speed shorten?

# %%
shown = {}
for axes in (
    {"shard": 64},
    {"dp": 16, "shard": 4},
    {"dp": 16, "tp": 4},
    {"tp": 16, "shard": 4},
    {"dp": 8, "tp": 4, "pp": 2},
):
    plan = Plan(batch=256, recompute="full", **axes)
    shown[" × ".join(f"{axis} {size}" for axis, size in axes.items())] = step_seconds(SEVEN, plan, CLUSTER)
plots_strategy.seconds(shown)

# %% [markdown]
# ## Choose
#
# Now let the machine try all plans. Here they are, a thousand or so for 64 GPUs, good and bad. Yours is to reject those
# that cannot be, and to take the fastest of the others.


# %%
def factorings(number: int, factors: int) -> list[tuple[int, ...]]:
    """All ways to write a number as a product of so many factors, in order."""
    if factors == 1:
        return [(number,)]
    first = [side for side in range(1, number + 1) if number % side == 0]
    return [(side, *rest) for side in first for rest in factorings(number // side, factors - 1)]


def axes_and_copies(plan: Plan) -> tuple[int, int]:
    """By which the simplest plans come first: how many axes there are, and how many plain copies."""
    return sum(size > 1 for size in (plan.dp, plan.shard, plan.tp, plan.pp, plan.cp)), -plan.dp


def candidates(model: Model, gpus: int, batch: int) -> list[Plan]:
    """Plans for so many GPUs, whatever comes of them, the simplest first; with 1, 2 or 4 sequences at a time, and
    recomputed or not.
    """
    found = []
    for dp, shard, cp, tp, pp in factorings(gpus, 5):
        spread = [ep for ep in (1, 2, 4, 8, 16) if ep == 1 or (model.experts and dp * shard % ep == 0)]
        for ep, micro_batch, recompute in itertools.product(spread, (1, 2, 4), ("none", "full")):
            if ep <= shard and shard % ep == 0 or ep > shard and ep % shard == 0:
                found.append(Plan(batch, micro_batch, dp, shard, tp, pp, cp, ep, recompute=recompute))
    return sorted(found, key=axes_and_copies)


# %% nbgrader={"grade": false, "grade_id": "todo_8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def why_not(model: Model, plan: Plan, machine: Machine) -> str:
    """In a few words, why this plan cannot be; "" if it can."""
    # TODO 8: Find the best plan for a model and a machine. First, what cannot be: pieces of unequal size (heads on tp,
    # layers on pp, tokens on cp · tp, experts on ep, the batch on micro-batches of replicas), fewer micro-batches than
    # stages, a tensor axis that leaves the node, or more memory than there is.
    ### BEGIN SOLUTION
    if model.heads % plan.tp:
        return f"{model.heads} heads on tp {plan.tp}"
    if model.layers % plan.pp:
        return f"{model.layers} layers on pp {plan.pp}"
    if model.sequence % (plan.cp * plan.tp):
        return f"{model.sequence} tokens on cp {plan.cp} and tp {plan.tp}"
    if model.experts and model.experts % plan.ep:
        return f"{model.experts} experts on ep {plan.ep}"
    if plan.batch % (plan.replicas * plan.micro_batch):
        return f"a batch of {plan.batch} on {plan.replicas} replicas, {plan.micro_batch} at a time"
    if plan.micro_batches < plan.pp:
        return f"{plan.micro_batches} micro-batches for {plan.pp} stages"
    if plan.tp > machine.node:
        return f"tp {plan.tp} leaves the node"
    needed = most_memory(model, plan)
    if needed > machine.memory:
        return f"{needed / 1e9:.0f} GB on a GPU of {machine.memory / 1e9:.0f}"
    return ""
    ### END SOLUTION


def best_plan(model: Model, gpus: int, batch: int, machine: Machine) -> Plan | None:
    """The fastest of the `candidates` that can be; None if none can."""
    # TODO 8, again: choose.
    ### BEGIN SOLUTION
    good = [plan for plan in candidates(model, gpus, batch) if not why_not(model, plan, machine)]
    return min(good, key=lambda plan: sum(step_seconds(model, plan, machine).values()), default=None)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_8", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("09_strategy/8")

# %% [markdown]
# Four cases. **Predict** the axes of each, on paper, then look:
#
# 1. a small model on 4 GPUs,
# 2. one that does not fit on a GPU,
# 3. a long sequence,
# 4. a mixture of experts.


# %%
def spoken_plan(plan: Plan) -> str:
    """The axes that are longer than 1, and how it is run."""
    axes = [f"{axis} {size}" for axis in ("dp", "shard", "ep", "cp", "tp", "pp") if (size := getattr(plan, axis)) > 1]
    recomputed = ", recomputed" if plan.recompute == "full" else ""
    return f"{' × '.join(axes) or 'one GPU'}; {plan.micro_batch} at a time{recomputed}"


CASES = {
    "a small model": (Model(768, 12, 12, 32000, 1024), 4, 64),
    "one that does not fit": (SEVEN, 8, 64),
    "a long sequence": (Model(2048, 24, 16, 32000, 131072), 16, 2),
    "a mixture of experts": (Model(2048, 12, 16, 32000, 2048, experts=32, active=2), 16, 256),
}


def show_cases() -> None:
    for name, (model, gpus, batch) in CASES.items():
        plan = best_plan(model, gpus, batch, CLUSTER)
        seconds, needed = sum(step_seconds(model, plan, CLUSTER).values()), most_memory(model, plan)
        print(f"{name}, {gpus} GPUs: {spoken_plan(plan)}; {seconds:.2f} s a step, {needed / 1e9:.0f} GB")


plots_strategy.Later(show_cases)  # it is called when the page shows it, and not on each rank of each check

# %% [markdown]
# The course of the ALCF, the home of the Polaris machine, puts the choice in one sentence: *a simple model: data
# parallel; a large language model: all of it.* Is that so? Let your own choice answer, for models from 0.1 to 500
# billion parameters on 512 GPUs: on how many axes is the best plan for each? **Predict** where the pipeline comes in.

# %%
FAMILY = [
    Model(768, 12, 12, 32000, 2048), Model(2048, 24, 16, 32000, 2048), SEVEN, Model(6144, 48, 48, 32000, 2048),
    Model(8192, 80, 64, 32000, 2048), Model(12288, 96, 96, 32000, 2048), Model(16384, 160, 128, 32000, 2048),
]  # fmt: skip


def axes_of(plan: Plan) -> set[str]:
    """The axes that are longer than 1; both kinds of data parallel are one."""
    names = {"dp": "data", "shard": "data", "cp": "context", "tp": "tensor", "pp": "pipeline"}
    return {name for axis, name in names.items() if getattr(plan, axis) > 1}


def show_family() -> plots_strategy.Picture:
    chosen = {}
    for model in FAMILY:
        billions = (model.layers * 12 * model.hidden**2 + 2 * model.vocabulary * model.hidden) / 1e9
        chosen[billions] = best_plan(model, 512, 1024, CLUSTER)
        print(f"{billions:6.1f} billion: {spoken_plan(chosen[billions]) if chosen[billions] else 'does not fit'}")
    simple, *_, large = (plan for billions, plan in chosen.items() if plan and billions < 200)
    print("a simple model: data parallel:", axes_of(simple) == {"data"})
    print("a large language model: all of it:", axes_of(large) >= {"data", "tensor", "pipeline"})
    return plots_strategy.axes(chosen)


plots_strategy.Later(show_family)

# %% [markdown]
# ## When to stop adding GPUs
#
# More GPUs make a step faster, up to a point. There are two questions, and two words:
#
# - **Strong scaling**: the same batch on more GPUs. Each has less to do, but gradients and weights stay as large as
#   they are. The efficiency on $N$ GPUs is $T_1 / (N \, T_N)$.
# - **Weak scaling**: as much work for each GPU, and so a larger batch. The efficiency is $T_1 / T_N$. It stays high for
#   long; but is a larger batch worth as much as more steps?
#
# **From measurements.** If a share $f$ of the work does not get faster at all, $N$ GPUs take
# $T_1 (f + (1 - f)/N)$: Amdahl's law. So from one pair of measurements follows $f$, and from $f$ the number of GPUs
# beyond which you pay more for waiting than for work.
#
# **From the network.** The GPUs of FSDP send weights and gradients, $3 \cdot 2\Psi$ bytes (2 Ψ for each collective, on
# many GPUs), while each computes $6 \Psi$ FLOPs for each of its tokens. Ψ cancels: whether the network keeps up depends
# on the **tokens of a GPU** alone. With DDP it is an all-reduce, $2 \cdot 2\Psi$. As the batch is shared among more
# GPUs, tokens become fewer, until communication overtakes.
#
# **From the data.** Beyond the *critical batch*, larger batches bring little
# ([arXiv:1812.06162](https://arxiv.org/abs/1812.06162), section 2.2). To reach the same loss with batches of $B$ takes
# $S = S_\text{min} (1 + B_\text{crit}/B)$ steps: at $B_\text{crit}$ twice as many as the fewest.


# %% nbgrader={"grade": false, "grade_id": "todo_9", "locked": false, "schema_version": 3, "solution": true, "task": false}
def efficiency(seconds: dict[int, float], scaling: str) -> dict[int, float]:
    """The efficiency for each number of GPUs, by measured seconds. ``scaling`` is "strong" or "weak".

    The fewest GPUs that were measured, which may be more than one, have efficiency 1.
    """
    # TODO 9: Find when to stop adding GPUs. First, what was measured.
    ### BEGIN SOLUTION
    fewest = min(seconds)
    return {
        gpus: seconds[fewest] / took * (fewest / gpus if scaling == "strong" else 1) for gpus, took in seconds.items()
    }
    ### END SOLUTION


def serial_share(gpus: int, seconds_one: float, seconds_many: float) -> float:
    """Amdahl's f, from the seconds on one GPU and on several."""
    # TODO 9, again: what does not get faster?
    ### BEGIN SOLUTION
    return (seconds_many / seconds_one - 1 / gpus) / (1 - 1 / gpus)
    ### END SOLUTION


def most_gpus(share: float, least: float) -> int:
    """The most GPUs whose strong-scaling efficiency is ``least`` or more, if a share f > 0 does not get faster."""
    # TODO 9, again: and so, how many GPUs? Mind rounding errors: within 1e-9 of a whole number counts as that number.
    ### BEGIN SOLUTION
    return math.floor((1 / least - 1 + share) / share + 1e-9)
    ### END SOLUTION


def needed_bandwidth(tokens: float, speed: float, scheme: str) -> float:
    """Bytes a second that each of many GPUs must send so that communication takes as long as computing.

    ``tokens`` are those of a GPU in a step, ``speed`` its FLOPs a second, ``scheme`` "ddp" or "fsdp".
    """
    # TODO 9, again: what network do they need? Attention's scores are left out.
    ### BEGIN SOLUTION
    return (3 if scheme == "fsdp" else 2) * 2 / 6 * speed / tokens
    ### END SOLUTION


def overtaken_at(batch: float, scheme: str, machine: Machine) -> int:
    """The fewest GPUs on which communication takes longer than computing, for batches of so many tokens in all.

    For few GPUs a ring's factor (N - 1)/N counts. Up to a node of them use the links inside, more those between.
    Latency is left out.
    """
    # TODO 9, again: strong scaling. Where is the crossing? One GPU sends nothing.
    ### BEGIN SOLUTION
    speed = machine.peak * machine.device_share
    gpus = 2
    while True:
        cable = machine.inside if gpus <= machine.node else machine.between
        needed = needed_bandwidth(batch / gpus, speed, scheme) * (gpus - 1) / gpus
        if needed > cable.bandwidth * machine.link_share:
            return gpus
        gpus += 1
    ### END SOLUTION


def samples_needed(batch: float, critical: float, fewest_steps: float) -> float:
    """Samples until the same loss is reached, with this batch."""
    # TODO 9, again: weak scaling. What does a larger batch cost?
    ### BEGIN SOLUTION
    return batch * fewest_steps * (1 + critical / batch)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_9", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("09_strategy/9")

# %% [markdown]
# The course at Jülich from which `ddp_training` comes measured its script: 1 h 32 min on one GPU, 25 min on four, 14
# min on eight. What do they tell?

# %%
minutes = {1: 92, 4: 25, 8: 14}
for gpus, value in efficiency(minutes, "strong").items():
    print(f"{gpus} GPUs: {minutes[gpus]} min, efficiency {value:.2f}, {gpus * minutes[gpus]} GPU-minutes")
share = serial_share(8, minutes[1], minutes[8])
print(f"{100 * share:.1f}% do not get faster; at half the efficiency, stop at {most_gpus(share, 0.5)} GPUs")

speed = CLUSTER.peak * CLUSTER.device_share
for tokens in (1024, 4096, 16384):
    print(f"FSDP with {tokens:6,} tokens a GPU needs {needed_bandwidth(tokens, speed, 'fsdp') / 1e9:5.1f} GB/s of each")
million = 4e6
for scheme in ("ddp", "fsdp"):
    print(f"{scheme}: batches of 4 million tokens are overtaken on {overtaken_at(million, scheme, CLUSTER)} GPUs")

# %% [markdown]
# So that is why **FSDP needs a fast network**: with few tokens on each GPU, tens of GB/s from every GPU of a node at
# the same time. Where it is missing, shard within a node and replicate across (`--sharding hybrid` in `fsdp_training`),
# or let a pipeline go across, or give each GPU more tokens.
#
# The best plan at every size, with the batch fixed and with a batch that grows:


# %%
def show_scaling() -> plots_strategy.Picture:
    strong, weak = {}, {}
    for gpus in (8, 16, 32, 64, 128, 256):
        strong[gpus] = step_seconds(SEVEN, best_plan(SEVEN, gpus, 256, CLUSTER), CLUSTER)
        weak[gpus] = step_seconds(SEVEN, best_plan(SEVEN, gpus, 4 * gpus, CLUSTER), CLUSTER)
    runs = {"strong scaling: the same batch": strong, "weak scaling: 4 sequences a GPU": weak}
    return plots_strategy.scaling(runs, efficiency)


plots_strategy.Later(show_scaling)

# %% [markdown]
# ## Who did it first
#
# Most axes were invented by frameworks that each had one or two of them. This is the table of the course at the
# University of Maryland (after the survey [arXiv:2111.04949](https://arxiv.org/abs/2111.04949)), with what each of them
# does; the largest runs are those of its authors at the time, and DeepSpeed is added:
#
# | framework | largest run, parameters | what it does |
# |---|---|---|
# | FlexFlow ([1807.05358](https://arxiv.org/abs/1807.05358)) | 64 GPUs, 24 M | searches, for each operation by itself, how to cut its samples and how to cut its parameters |
# | PipeDream ([1806.03377](https://arxiv.org/abs/1806.03377)) | 16 GPUs, 138 M | puts layers into stages, works on several micro-batches at a time, and gives slow stages several copies that share out the samples |
# | DDP ([2006.15704](https://arxiv.org/abs/2006.15704)) | 256 GPUs, 345 M | averages the gradients of whole copies in buckets, while the backward pass goes on |
# | GPipe ([1811.06965](https://arxiv.org/abs/1811.06965)) | 8 GPUs, 557 M | puts layers into stages, and cuts a batch into micro-batches; all go forward, then all go back |
# | Mesh TensorFlow ([1811.02084](https://arxiv.org/abs/1811.02084)) | 512 TPU cores, 4.9 B | gives every dimension of a tensor a name, and maps names to axes of a mesh: the batch to one, the hidden layer to the other |
# | Megatron-LM, first version ([1909.08053](https://arxiv.org/abs/1909.08053)) | 512 GPUs, 8.3 B | cuts each MLP by columns, then by rows, and attention by heads, over 8 GPUs of a node; 64 such groups average their gradients |
# | TorchGPipe ([2004.09910](https://arxiv.org/abs/2004.09910)) | 8 GPUs, 15.8 B | GPipe, in PyTorch, with recomputing |
# | KARMA ([2008.11421](https://arxiv.org/abs/2008.11421)) | 2048 GPUs, 17 B | each GPU trains a whole copy on its own samples; layers that do not fit are swapped to the host's memory, or recomputed |
# | LBANN ([1903.06681](https://arxiv.org/abs/1903.06681)) | 3072 CPUs, 78.6 B | cuts each layer's input, be it along height and width or along channels, over some ranks; such groups take other samples |
# | ZeRO ([1910.02054](https://arxiv.org/abs/1910.02054)) | 400 GPUs, 100 B | every rank reads its own samples, and holds a part of weights, gradients and state |
# | AxoNN, first version ([2110.13005](https://arxiv.org/abs/2110.13005)) | 384 GPUs, 100 B | passes activations from stage to stage by messages that nobody waits for; several such rows of stages average their gradients |
# | DeepSpeed, 3-D ([2020](https://www.microsoft.com/en-us/research/blog/deepspeed-extreme-scale-model-training-for-everyone/)) | 800 GPUs, 1 T | ZeRO's first stage over copies of a pipeline, whose stages' layers are cut as Megatron does |
#
# Which axes does each use? Read what is **cut**: the samples alone ("data"), the samples and what a rank holds of
# weights, gradients or state ("sharded"), the layers among stages ("pipeline"), or a layer itself, or its input
# ("tensor"). To swap is no axis, nor are micro-batches, which one after the other go through the same ranks; and
# "sharded" stands in place of "data", not beside it.


# %% nbgrader={"grade": false, "grade_id": "todo_10", "locked": false, "schema_version": 3, "solution": true, "task": false}
def axes_of_frameworks() -> dict[str, set[str]]:
    """For each framework of the table, by its name up to a comma: some of "data", "sharded", "tensor" and "pipeline"."""
    # TODO 10: Say which axes twelve frameworks use, and where in this course you built each. First, the axes.
    ### BEGIN SOLUTION
    return {
        "FlexFlow": {"data", "tensor"},
        "PipeDream": {"data", "pipeline"},
        "DDP": {"data"},
        "GPipe": {"pipeline"},
        "Mesh TensorFlow": {"data", "tensor"},
        "Megatron-LM": {"data", "tensor"},
        "TorchGPipe": {"pipeline"},
        "KARMA": {"data"},
        "LBANN": {"data", "tensor"},
        "ZeRO": {"sharded"},
        "AxoNN": {"data", "pipeline"},
        "DeepSpeed": {"sharded", "tensor", "pipeline"},
    }
    ### END SOLUTION


def built_in() -> dict[str, str]:
    """The notebook of this course in which you built each of the four axes, by its name, as "01_collectives"."""
    # TODO 10, again: and where did you build it?
    ### BEGIN SOLUTION
    return {
        "data": "02_data_parallel",
        "sharded": "03_zero",
        "tensor": "04_tensor_parallel",
        "pipeline": "05_pipeline_parallel",
    }
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_10", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("09_strategy/10")

# %% [markdown]
# Not one of the older ones has all axes; what has them today was put together from these papers: Megatron-Core,
# DeepSpeed, AxoNN's later versions (with the products of lesson 08, [2502.08145](https://arxiv.org/abs/2502.08145)),
# and PyTorch itself, with what `torchtitan` shows.
#
# ## The planner
#
# Your formulas decide among axes. The course has finer ones, in `utils/costs.py`: norms, biases and positions counted,
# other precisions, schedules and stages of ZeRO, the time of what is not a product, and two numbers fitted to published
# runs. On the command line it is
#
# ```bash
# ./workbook plan --model 7b --gpus 64 --machine jureca
# ```
#
# and here, with sliders. (Without widgets, as on a page that only shows the notebook, there is a table.) Compare with
# your `best_plan`: they may choose other plans whose times are close. Where they are not, find out which part of the
# time differs.

# %%
plots_strategy.planner()

# %% [markdown]
# ## hybrid_training
#
# Next, the script: `hybrid_training` does all that with PyTorch's own pieces, on the course's model.
#
# | here | there |
# |---|---|
# | `make_mesh` | `make_mesh`: `--pp --dp --shard --tp` give one `init_device_mesh`, the pipeline outermost, the tensor axis innermost |
# | `data_place`, `make_sampler` | `my_share`, `make_samplers` |
# | `Piece` | `parallelize(model, mesh, args)`: first `cut`, this rank's stages; then `split`, its part of their layers (DTensor); then what is recomputed; then `shard` (FSDP over shard, copies over dp) |
# | `forward_backward` | a schedule of `torch.distributed.pipelining`, chosen by `--schedule`, with many micro-batches |
# | `sync_gradients` | FSDP averages along dp and shard, DTensor takes care of what is cut along tp, `add_up_norms` of what is whole there; the course's model is untied, so along pp nothing is due |
# | `gradient_norm` | `clip_gradients`: DTensor adds up over shards and parts, the script over stages |
# | `memory`, `step_seconds` | the plan's prediction, beside the run in its report |
#
# One thing it does otherwise than your formula: with a pipeline, it keeps a block's gathered weights until the step's
# last backward pass. Less is sent, and more is held. Which number of micro-batches makes that worth while?
#
# ## What comes of it
#
# - **What it costs.** Each axis has its price: `dp` memory for copies, `shard` the gathering of weights, `tp` waiting
#   in every layer, `cp` keys and values, `ep` two exchanges a layer, `pp` a bubble. And together they cost complexity:
#   a bug in one axis shows as a slightly worse loss.
# - **Four questions** decide: how large is the model, how many GPUs are there, what can the network do, and what is
#   already implemented? An axis that you would have to write first is seldom the best one.
# - **When which.** A model that fits: `dp`, and nothing else. One that does not: `shard`, as long as each GPU has
#   thousands of tokens. Layers too wide, or too few tokens: `tp`, in a node. More nodes than the network can feed: `pp`
#   across them. Sequences too long for a GPU: `cp`. Experts: `ep`, in a node if it can be. Whatever you add, add the
#   one that is needed, and measure.
# - **When not.** Before you add a GPU: is the first one busy? And before an axis: does recomputing, or a smaller
#   micro-batch, make it fit?
# - **The order** of the axes is half the speed: who sends most sits closest.
# - **The law** is what keeps all that honest: the parallel run is the serial run, its losses, its gradients, its norm.
#   You have shown it for every axis, and now for all of them at once.
#
# This was the last axis of the course. What is left is to keep such a run alive for days: `resilient_training`.
