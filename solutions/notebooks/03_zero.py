# %% [markdown]
# # ZeRO: no rank holds what another rank has
#
# In data-parallel training every rank holds all weights, all gradients and the whole optimizer state: the same on all
# ranks. That gains speed, but saves no memory: a model that is too large for one GPU is too large for a thousand.
#
# ZeRO, the *zero redundancy optimizer* ([arXiv:1910.02054](https://arxiv.org/abs/1910.02054)),
# divides them instead: each rank holds one of $N$ parts, a **shard**. The results stay
# the same up to rounding. There are three stages. In this lesson you build
# all of them, and count the bytes that each rank really holds.
#
# *Builds on*: reduce-scatter and all-gather (`01_collectives`); averaged gradients, hooks and buckets
# (`02_data_parallel`); the memory of a step (`00_one_device`).
#
# ![What three ranks hold of weights, gradients and optimizer state, in each stage](../images/zero_stages.svg)

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import sys
from pathlib import Path

here = Path.cwd().resolve()
course = next(folder for folder in (here, *here.parents) if (folder / "grader").is_dir())
sys.path.insert(0, str(course))

from grader import check

# %%
import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from grader import run_on_ranks
from utils.plots import zero as plots
from utils.memory import Storages, held
from utils.model import TransformerLM

# %% [markdown]
# ## Sixteen bytes per parameter
#
# AdamW keeps two moving averages for each parameter. So in float32 a parameter needs
# 4 bytes for its weight, 4 for its gradient and 8 for the optimizer state. With **mixed
# precision** the model computes in bfloat16, so weights and gradients take 2 bytes each; but
# the optimizer has its own float32 copy of the weight, the *master weight*, in addition to the two
# averages. (TODO 10 will show what happens to small steps without it.)
#
# Either way it is 16 bytes. A model of 7 billion parameters takes 112 GB, more than
# most GPUs have, and activations are not yet included.
#
# Each stage divides more among the ranks:
#
# | stage | weights | gradients | optimizer state |
# |---|---|---|---|
# | 0: plain data parallel | whole | whole | whole |
# | 1 | whole | whole | sharded |
# | 2 | whole | sharded | sharded |
# | 3 | sharded | sharded | sharded |
#
# **Predict** what a rank holds. How much of the 112 GB remains on each of 64 ranks, in each stage?


# %% nbgrader={"grade": false, "grade_id": "todo_1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def bytes_a_parameter(precision: str) -> tuple[int, int, int]:
    """Bytes that the weight, gradient and AdamW state of one parameter take,
    for "float32" or "mixed".
    """
    # TODO 1: Predict the bytes that each rank holds. First the bytes of one parameter, on one rank.
    # A master weight counts as optimizer state.
    ### BEGIN SOLUTION
    return (4, 4, 8) if precision == "float32" else (2, 2, 12)
    ### END SOLUTION


def predicted_bytes(
    parameters: int, world: int, stage: int, precision: str
) -> tuple[float, float, float]:
    """Bytes of weights, gradients and optimizer state that one of ``world`` ranks holds in a stage
    from 0 to 3.

    Assume that parameters can be divided evenly, whatever their number: a share need not be a whole
    number.
    """
    # TODO 1, again: what a rank holds of each.
    ### BEGIN SOLUTION
    weight, gradient, state = bytes_a_parameter(precision)
    share = parameters / world
    return (
        weight * (share if stage >= 3 else parameters),
        gradient * (share if stage >= 2 else parameters),
        state * (share if stage >= 1 else parameters),
    )
    ### END SOLUTION


# %%
for stage in range(4):
    gigabytes = sum(predicted_bytes(7_000_000_000, 64, stage, "mixed")) / 1e9
    print(f"7 billion parameters, 64 ranks, stage {stage}: {gigabytes:6.2f} GB on each rank")

# %% nbgrader={"grade": true, "grade_id": "test_1", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("03_zero/1")

# %% [markdown]
# ## Cut a tensor
#
# A shard is a piece of the tensor, laid out as one long vector. All messages of a collective
# have the same length, and so must all shards: $n$ numbers on $N$ ranks give $n/N$, rounded up.
# Rank 0 has the first numbers, rank 1 the next. The last ranks may have fewer numbers than
# that, or none; they are padded with zeros.
#
# ![Seven numbers on three ranks: parts of 3, 3 and 1, and two zeros](../images/zero_shards.svg)
#
# You need this in two forms. A rank's **part** is a view of the tensor: it takes no memory, and
# writing into it writes into the tensor. A **shard** is padded and has its own memory,
# so that the tensor can be freed. That matters: a view of a hundred bytes keeps the whole tensor alive.


# %% nbgrader={"grade": false, "grade_id": "todo_2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def shard_size(numel: int, world: int) -> int:
    """How many numbers each shard of a tensor of ``numel`` numbers has."""
    # TODO 2: Cut a tensor into shards, and put it back together. First: how long are the shards?
    ### BEGIN SOLUTION
    return -(-numel // world)
    ### END SOLUTION


def my_part(tensor: Tensor, rank: int, world: int) -> Tensor:
    """A rank's numbers of a (contiguous) tensor: a 1-D view, at most shard_size long, possibly empty."""
    # TODO 2, again: the part, as a view.
    ### BEGIN SOLUTION
    size = shard_size(tensor.numel(), world)
    return tensor.view(-1)[rank * size : (rank + 1) * size]
    ### END SOLUTION


def filled(part: Tensor, size: int) -> Tensor:
    """A shard: a part followed by zeros, in its own memory, of exactly ``size`` numbers."""
    # TODO 2, again: the shard.
    ### BEGIN SOLUTION
    shard = part.new_zeros(size)
    shard[: len(part)] = part
    return shard
    ### END SOLUTION


def joined(shards: Tensor, shape: torch.Size) -> Tensor:
    """The tensor of this shape from ``shards``: the shards of all ranks, in order,
    in one long vector.
    """
    # TODO 2, again: put the shards back together, without the padding.
    ### BEGIN SOLUTION
    return shards[: shape.numel()].view(shape)
    ### END SOLUTION


# %%
tensor = torch.arange(1.0, 8.0)
print("parts: ", [my_part(tensor, rank, 3).tolist() for rank in range(3)])
print("shards:", [filled(my_part(tensor, rank, 3), shard_size(7, 3)).tolist() for rank in range(3)])

# %% nbgrader={"grade": true, "grade_id": "test_2", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("03_zero/2")

# %% [markdown]
# ## Many tensors in one message
#
# A block of the model has ten or more parameters, some of them tiny. A message costs its
# latency, whatever its size, so tensors that are needed together should be sent together: **one** collective
# for a list of tensors.
#
# Mind the order. A rank sends its shards of all tensors, one after the other, so what arrives is
# first everything from rank 0, then everything from rank 1. But each tensor needs *its* shards, from all ranks, side
# by side. Think of a table with one row per rank; a tensor is a few of its columns.
#
# `dist.all_gather(list_of_tensors, tensor)` and `dist.reduce_scatter(tensor, list_of_tensors)` take
# a list with one entry for each rank. Rows of a table are tensors too: `list(table)`.


# %% nbgrader={"grade": false, "grade_id": "todo_3", "locked": false, "schema_version": 3, "solution": true, "task": false}
@torch.no_grad()
def gather_shards(shards: list[Tensor], world: int) -> list[Tensor]:
    """For each tensor, the shards of all ranks, in order, in one long vector.

    ``shards`` are this rank's shards, one per tensor, all of the same dtype.
    """
    # TODO 3: Gather and reduce a list of tensors, with one collective each. First gather shards.
    ### BEGIN SOLUTION
    mine = torch.cat(shards)
    table = mine.new_empty(world, len(mine))
    dist.all_gather(list(table), mine)
    return [columns.reshape(-1) for columns in table.split([len(shard) for shard in shards], dim=1)]
    ### END SOLUTION


@torch.no_grad()
def reduce_to_shards(tensors: list[Tensor], world: int) -> list[Tensor]:
    """For each tensor, this rank's shard of its mean over all ranks,
    whose ``tensors`` have equal shapes and dtype.
    """
    # TODO 3, again: reduce, so that each rank gets its own shards of the mean and no others. `my_part`
    # and `filled` make a rank's shard.
    ### BEGIN SOLUTION
    sizes = [shard_size(tensor.numel(), world) for tensor in tensors]
    rows = [
        torch.cat(
            [
                filled(my_part(tensor, rank, world), size)
                for tensor, size in zip(tensors, sizes, strict=True)
            ]
        )
        for rank in range(world)
    ]
    mine = torch.empty_like(rows[0])
    dist.reduce_scatter(mine, rows)
    mine /= world  # gloo in older releases has no mean
    return list(mine.split(sizes))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_3", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("03_zero/3")

# %% [markdown]
# ## Stage 1: each rank steps its part
#
# Adam updates each number independently of the others. So a rank can update its own parts, with optimizer state for
# those only, and then gather the parts that the other ranks have updated:
#
# 1. average the gradients over the ranks; each rank needs only its parts of the mean;
# 2. let a plain torch optimizer, which knows only this rank's parts, take its step;
# 3. gather the weights.
#
# The class below does this in order. It accepts any optimizer that works number by number (AdamW
# or SGD, but not Adafactor or Muon, which look at whole matrices), and **parameter groups** as
# torch's optimizers do: usually two, since norms and biases get no weight decay.


# %%
class ShardedOptimizer:
    """A torch optimizer, divided among the ranks: stages 1 and 2.

    Args:
        groups: parameter groups, dictionaries with "params" and, optionally, options. Frozen parameters
            are ignored.
        kind: the class of the optimizer; ``options`` are its arguments.
    """

    def __init__(
        self, groups: list[dict], kind: type, rank: int, world: int, stage: int = 1, **options
    ) -> None:
        self.rank, self.world, self.stage = rank, world, stage
        groups = [
            {**group, "params": [p for p in group["params"] if p.requires_grad]} for group in groups
        ]
        self.parameters = [p for group in groups for p in group["params"]]
        self.optimizer = kind(parts_in_groups(groups, rank, world), **options)
        self.parts = [p for group in self.param_groups for p in group["params"]]
        if stage == 2:
            reduce_when_ready(self.parameters, self.parts, world)

    @property
    def param_groups(self) -> list[dict]:
        return self.optimizer.param_groups

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        if self.stage == 1:
            share_gradients(self.parameters, self.parts, self.world)
        self.optimizer.step()
        for part in self.parts:
            part.grad = None
        gather_weights(self.parameters, self.rank, self.world)

    def state_dict(self) -> dict:
        return whole_state(self.optimizer.state_dict(), self.parameters, self.world)

    def load_state_dict(self, whole: dict) -> None:
        self.optimizer.load_state_dict(state_of_parts(whole, self.rank, self.world))


# %% nbgrader={"grade": false, "grade_id": "todo_4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def parts_in_groups(groups: list[dict], rank: int, world: int) -> list[dict]:
    """The same groups with the same options, but with this rank's trainable part in place of each
    parameter.
    """
    # TODO 4: Step only this rank's parts (ZeRO stage 1). First, the optimizer's input.
    # A step on a part must change the weight itself, and need no memory except for the state: use views.
    # An optimizer takes leaf tensors that require a gradient. Leave the given groups unchanged.
    # (In this lesson every trained parameter has a gradient when the optimizer steps.)
    ### BEGIN SOLUTION
    return [
        {**group, "params": [my_part(p.detach(), rank, world).requires_grad_() for p in group["params"]]}
        for group in groups
    ]
    ### END SOLUTION


def share_gradients(parameters: list[Tensor], parts: list[Tensor], world: int) -> None:
    """Set the ``grad`` of each part to its part of the mean gradient over all ranks."""
    # TODO 4, again: before the step, with one collective. Shards may be longer than parts. An empty part
    # gets an empty gradient, so that the optimizer keeps state for it and all ranks' states have the
    # same entries.
    ### BEGIN SOLUTION
    shards = reduce_to_shards([p.grad for p in parameters], world)
    for part, shard in zip(parts, shards, strict=True):
        part.grad = shard[: len(part)]
    ### END SOLUTION


@torch.no_grad()
def gather_weights(parameters: list[Tensor], rank: int, world: int) -> None:
    """Bring every rank's updated parts of the parameters to all ranks."""
    # TODO 4, again: after the step, with one collective.
    ### BEGIN SOLUTION
    shards = [filled(my_part(p, rank, world), shard_size(p.numel(), world)) for p in parameters]
    for p, whole in zip(parameters, gather_shards(shards, world), strict=True):
        p.copy_(joined(whole, p.shape))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_4", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("03_zero/4")

# %% [markdown]
# Now train with it, and measure. `Storages` tracks all memory that tensors use and says how many bytes
# of it are alive; `held` sorts them by kind. They are counted before the second step (the first one
# creates the state). Stage 0 is for comparison: it all-reduces gradients, and every rank steps everything.
#
# The model is a small version of the one that all lessons train, and each rank has its own batch.


# %%
def small_model() -> TransformerLM:
    torch.manual_seed(0)
    return TransformerLM(vocab_size=97, dim=20, n_heads=2, n_layers=3, max_len=16)


def in_two_groups(model: nn.Module) -> list[dict]:
    """Matrices decay, norms do not."""
    return [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]


def batch_of(rank: int) -> Tensor:
    return torch.randint(97, (2, 17), generator=torch.Generator().manual_seed(rank))


class PlainOptimizer(torch.optim.AdamW):
    """Stage 0, like DDP: all ranks all-reduce all gradients, and all ranks step all weights."""

    def step(self) -> None:
        for parameter in (p for group in self.param_groups for p in group["params"]):
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        super().step()


def measure(stage: int, rank: int, world: int) -> dict[str, int]:
    """Bytes that this rank holds before the second step, in stage 0, 1 or 2."""
    model = small_model()
    groups = in_two_groups(model)
    with Storages(model.parameters()) as storages:
        optimizer = (
            ShardedOptimizer(groups, torch.optim.AdamW, rank, world, stage)
            if stage
            else PlainOptimizer(groups)
        )
        for step in range(2):
            tokens = batch_of(rank)
            optimizer.zero_grad()
            model(tokens[:, :-1], tokens[:, 1:]).backward()
            if step == 0:
                optimizer.step()
        return held(storages, model.parameters(), getattr(optimizer, "optimizer", optimizer))


# %%
n_parameters = sum(p.numel() for p in small_model().parameters())
bytes_held = {f"stage {stage}": run_on_ranks("03_zero/measure", [stage] * 3).results for stage in (0, 1)}
predictions = {f"stage {stage}": predicted_bytes(n_parameters, 3, stage, "float32") for stage in (0, 1)}
plots.held(bytes_held, predictions)

# %% [markdown]
# These are the bytes that remain just before the second step. While gradients are reduced and weights gathered, a
# copy of them exists for a moment; libraries keep it small by working in buckets.

# %% [markdown]
# ## Save on some ranks, load on others
#
# A checkpoint should not depend on the number of ranks. So the state dictionary is the dictionary of the *plain*
# optimizer: once gathered, it can be loaded by one process, or by more ranks than before. (To keep it short, every
# rank gets the whole state here. `fsdp_training` writes sharded files.)
#
# A torch optimizer's state dictionary has the groups under `"param_groups"`, and under `"state"` a dictionary for
# each parameter, by its number. For AdamW that is `step`, a single number, and `exp_avg` and `exp_avg_sq`, as large
# as the parameter. Parameters are numbered consecutively over all groups. You may use as many collectives as you
# like, since checkpoints are rare.


# %% nbgrader={"grade": false, "grade_id": "todo_5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def whole_state(state_dict: dict, parameters: list[Tensor], world: int) -> dict:
    """The state dictionary that a plain optimizer of ``parameters`` would have, from the state of this
    rank's parts.

    Change neither ``state_dict`` nor what it refers to: the optimizer continues to use it.
    """
    # TODO 5: Save and load the state of all ranks. First, put it together. Every tensor that is as long
    # as the part becomes as large as the parameter; keep single numbers, and whatever is not a tensor.
    ### BEGIN SOLUTION
    state = {}
    for number, values in state_dict["state"].items():
        shape, size = parameters[number].shape, shard_size(parameters[number].numel(), world)
        state[number] = {
            name: joined(gather_shards([filled(value, size)], world)[0], shape)
            if is_long(value)
            else value
            for name, value in values.items()
        }
    return {**state_dict, "state": state}
    ### END SOLUTION


def state_of_parts(whole: dict, rank: int, world: int) -> dict:
    """This rank's part of a whole state dictionary. Changes nothing in ``whole``,
    and keeps none of it alive.
    """
    # TODO 5, again: take this rank's part.
    ### BEGIN SOLUTION
    state = {
        number: {
            name: my_part(value, rank, world).clone() if is_long(value) else copy.deepcopy(value)
            for name, value in values.items()
        }
        for number, values in whole["state"].items()
    }
    return {**whole, "state": state}
    ### END SOLUTION


def is_long(value: object) -> bool:
    """Whether a value in an optimizer's state has one number for each number of the parameter."""
    return isinstance(value, Tensor) and value.dim() > 0


# %% nbgrader={"grade": true, "grade_id": "test_5", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("03_zero/5")

# %% [markdown]
# ## Stage 2: free gradients as soon as they are reduced
#
# In stage 1 all gradients exist, whole, until the step. But a rank needs only its part of
# their mean. So reduce each gradient as soon as the backward pass has computed it, keep the
# part, and free the rest before the next one is computed: the gradients never coexist.
#
# `parameter.register_post_accumulate_grad_hook(function)` makes autograd call `function(parameter)` whenever
# `parameter.grad` is complete in a backward pass. A weight that is used twice (a tied head) gets its
# gradient once. But there may be several backward passes before a step: then gradients **accumulate**,
# here in the parts.


# %% nbgrader={"grade": false, "grade_id": "todo_6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def reduce_when_ready(parameters: list[Tensor], parts: list[Tensor], world: int) -> None:
    """From now on, when a gradient is ready: reduce it, add this rank's part to the part's ``grad``,
    and free it.
    """

    # TODO 6: Reduce gradients in the backward pass, and free them (ZeRO stage 2).
    # One reduce-scatter for each parameter and backward pass. An empty part gets a gradient, too.
    ### BEGIN SOLUTION
    def reduce(parameter: Tensor, part: Tensor) -> None:
        (shard,) = reduce_to_shards([parameter.grad], world)
        mine = shard[: len(part)]
        part.grad = mine if part.grad is None else part.grad + mine
        parameter.grad = None

    for parameter, part in zip(parameters, parts, strict=True):
        parameter.register_post_accumulate_grad_hook(lambda p, part=part: reduce(p, part))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_6", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("03_zero/6")

# %%
bytes_held["stage 2"] = run_on_ranks("03_zero/measure", [2] * 3).results
predictions["stage 2"] = predicted_bytes(n_parameters, 3, 2, "float32")
plots.held(bytes_held, predictions)

# %% [markdown]
# ## What it costs
#
# This saves memory; how many more bytes does it send? Plain data-parallel training has one all-reduce of the gradients.
# Stages 1 and 2 have a reduce-scatter of the gradients and an all-gather of the weights.
#
# In stage 3, which comes next, a rank holds only shards of the weights. They are gathered for the forward pass,
# freed, and gathered again for the backward pass; gradients are reduced as in stage 2.
#
# **Predict** the bytes that a rank sends in a step. All collectives are rings, as in lesson 01.


# %% nbgrader={"grade": false, "grade_id": "todo_7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def sent_bytes(nbytes: int, world: int, stage: int) -> float:
    """Bytes each rank sends per step, with ``nbytes`` of weights, as many of gradients,
    and a stage from 0 to 3.
    """
    # TODO 7: Predict what a rank sends in a step. Assume even division: the result need not be a whole
    # number.
    ### BEGIN SOLUTION
    rings = 3 if stage == 3 else 2
    return rings * (world - 1) / world * nbytes
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_7", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("03_zero/7")

# %% [markdown]
# ## Stage 3: gather weights when they are needed
#
# A **unit** is a set of parameters that are gathered together: here, each block's parameters, and last those that
# belong to no block. A unit holds its shards, and the optimizer trains these.
#
# The model's own parameters must stay the same objects, because layers and autograd refer to them. But the memory
# behind them may come and go. A tensor is a view of a *storage*, whose size can be changed:
#
# | | |
# |---|---|
# | `parameter.untyped_storage().resize_(0)` | frees the memory; the parameter keeps its shape |
# | `parameter.untyped_storage().resize_(nbytes)` | allocates memory again; its content is undefined |
# | `parameter.untyped_storage().nbytes()` | the number of bytes there now |
#
# What the forward pass saves for the backward pass, such as a transposed weight, is a view of the same storage. So
# autograd, too, works with a unit that is freed after its forward pass and filled again before its backward pass. There
# is one obstacle: autograd raises an error if a saved weight was written to in between. Write into `parameter.data`:
# that is the same memory, and autograd does not count the write. (FSDP2 frees and refills storages, too.)


# %%
class Unit:
    """Parameters that are gathered together, and this rank's shards of them.

    ``module`` is what uses them: they are whole while it computes, and have no memory otherwise.
    """

    def __init__(self, module: nn.Module, parameters: list[nn.Parameter], rank: int, world: int) -> None:
        self.module, self.parameters, self.world = module, parameters, world
        self.shards = [
            nn.Parameter(
                filled(my_part(p.detach(), rank, world), shard_size(p.numel(), world)), p.requires_grad
            )
            for p in parameters
        ]
        reshard(self)


def make_units(model: TransformerLM, rank: int, world: int) -> list[Unit]:
    """A unit for each block, and one for the rest.
    A parameter that is used by two layers is in one unit, once.
    """
    in_blocks = {p for block in model.blocks for p in block.parameters()}
    rest = [p for p in model.parameters() if p not in in_blocks]
    members = [(block, list(block.parameters())) for block in model.blocks]
    return [Unit(module, parameters, rank, world) for module, parameters in [*members, (model, rest)]]


# %% nbgrader={"grade": false, "grade_id": "todo_8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def unshard(unit: Unit) -> None:
    """Allocate the unit's parameters and fill them from all ranks' shards. If they are already whole,
    do nothing.
    """
    # TODO 8: Make the parameters of a unit whole, and free them again. First, whole: with one
    # all-gather.
    ### BEGIN SOLUTION
    if unit.parameters[0].untyped_storage().nbytes():
        return
    for parameter, shards in zip(unit.parameters, gather_shards(unit.shards, unit.world), strict=True):
        parameter.untyped_storage().resize_(parameter.numel() * parameter.element_size())
        parameter.data.copy_(joined(shards, parameter.shape))
    ### END SOLUTION


def reshard(unit: Unit) -> None:
    """Free the memory of the unit's parameters. The shards stay."""
    # TODO 8, again: free them.
    ### BEGIN SOLUTION
    for parameter in unit.parameters:
        parameter.untyped_storage().resize_(0)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_8", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("03_zero/8")

# %% [markdown]
# ## Through the whole step
#
# Now each unit must be whole at the right times: while its module computes, forward and backward.
#
# ![A forward and a backward pass with two blocks: units gathered, computed, freed and reduced, and the memory that weights take](../images/zero_step.svg)
#
# (Here the rest, the root unit, stays whole between the two passes, as in FSDP, because its backward pass comes at
# once. You may also free it like a block.) In this picture everything happens in turn. FSDP gathers the next unit, and
# reduces the gradients of the previous one, while a unit computes; this costs memory, because two units are whole at
# once. [FSDP, step by step](../images/fsdp_steps.html) shows it frame by frame (arrow keys, offline).
#
# ![A step of three blocks in turns and with prefetch: gathers and reduce-scatters run while other blocks compute](../images/fsdp_prefetch.svg)
#
# PyTorch calls your functions at these moments:
#
# | call | when the function is called |
# |---|---|
# | `module.register_forward_pre_hook(f)` | before each forward pass, as `f(module, args)` |
# | `module.register_forward_hook(f)` | after it, as `f(module, args, output)` |
# | `tensor.register_hook(f)` | when the gradient of this tensor is ready, as `f(gradient)`; for a module's output: before its backward pass |
# | `parameter.register_post_accumulate_grad_hook(f)` | when its gradient is ready, as `f(parameter)` |
#
# A hook's return value replaces the argument, output or gradient, so return nothing. (Where autograd is off,
# as in an evaluation, an output has no gradient and can have no hook: see `output.requires_grad`.)
#
# When is a unit's backward pass complete? When all of its gradients are ready. (There is a
# `register_full_backward_hook`, but if a module's input needs no gradient, it is called too early.)
# Frozen parameters get no gradient. Each unit here has at least one trainable parameter.


# %% nbgrader={"grade": false, "grade_id": "todo_9", "locked": false, "schema_version": 3, "solution": true, "task": false}
def finish(unit: Unit) -> None:
    """After the unit's backward pass: add reduced gradients to the shards;
    free whole gradients and weights.
    """
    # TODO 9: Gather, free and reduce through a whole step (ZeRO stage 3). First, the work to do when
    # all gradients of a unit are ready: one reduce-scatter, and no whole tensor remains.
    ### BEGIN SOLUTION
    trained = [
        (p, shard) for p, shard in zip(unit.parameters, unit.shards, strict=True) if p.requires_grad
    ]
    means = reduce_to_shards([p.grad for p, _ in trained], unit.world)
    for (p, shard), mean in zip(trained, means, strict=True):
        shard.grad = mean if shard.grad is None else shard.grad + mean
        p.grad = None
    reshard(unit)
    ### END SOLUTION


def attach(unit: Unit) -> None:
    """From now on, keep the unit whole while its module computes, forward and backward,
    and finish it afterwards.
    """
    # TODO 9, again: decide when unshard, reshard and finish are called. Each forward pass and each
    # backward pass gathers a unit at most once, and each backward pass reduces it once. Between the two
    # passes a block is freed (the rest may stay whole); after an evaluation, which has no backward pass,
    # nothing stays whole.
    ### BEGIN SOLUTION
    trained = [p for p in unit.parameters if p.requires_grad]
    missing = set(trained)

    def before(module: nn.Module, args: tuple) -> None:
        unshard(unit)

    def after(module: nn.Module, args: tuple, output: Tensor) -> None:
        reshard(unit)
        if output.requires_grad:
            output.register_hook(lambda gradient: unshard(unit))

    def ready(parameter: Tensor) -> None:
        missing.discard(parameter)
        if not missing:
            finish(unit)
            missing.update(trained)

    unit.module.register_forward_pre_hook(before)
    unit.module.register_forward_hook(after)
    for parameter in trained:
        parameter.register_post_accumulate_grad_hook(ready)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_9", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("03_zero/9")

# %% [markdown]
# Now measure stage 3, too. The optimizer is a plain one, which knows only the shards.


# %%
def measure_stage_3(_: None, rank: int, world: int) -> dict[str, int]:
    model = small_model()
    groups = in_two_groups(model)
    with Storages(model.parameters()) as storages:
        units = make_units(model, rank, world)
        for unit in units:
            attach(unit)
        shard_of = {
            p: shard for unit in units for p, shard in zip(unit.parameters, unit.shards, strict=True)
        }
        groups = [{**group, "params": [shard_of[p] for p in group["params"]]} for group in groups]
        optimizer = torch.optim.AdamW(groups)
        for step in range(2):
            tokens = batch_of(rank)
            optimizer.zero_grad()
            model(tokens[:, :-1], tokens[:, 1:]).backward()
            if step == 0:
                optimizer.step()
        return held(storages, model.parameters(), optimizer)


def one_step(stage: int, rank: int, world: int) -> None:
    """One step, for its communication."""
    model = small_model()
    if stage == 3:
        units = make_units(model, rank, world)
        for unit in units:
            attach(unit)
        optimizer = torch.optim.AdamW([shard for unit in units for shard in unit.shards])
    elif stage:
        optimizer = ShardedOptimizer(in_two_groups(model), torch.optim.AdamW, rank, world, stage)
    else:
        optimizer = PlainOptimizer(in_two_groups(model))
    tokens = batch_of(rank)
    model(tokens[:, :-1], tokens[:, 1:]).backward()
    optimizer.step()


# %%
bytes_held["stage 3"] = run_on_ranks("03_zero/measure_stage_3", [None] * 3).results
predictions["stage 3"] = predicted_bytes(n_parameters, 3, 3, "float32")
for name, ranks in bytes_held.items():
    most = max(sum(mine.values()) for mine in ranks)
    print(f"{name}: {most:,} bytes held, {sum(predictions[name]):,.1f} predicted")
plots.held(bytes_held, predictions)

# %% [markdown]
# The small excess over the prediction is padding: each tensor has its own.
#
# What did it cost? Each bar shows the bytes that one rank sends in a step; the lines are your predictions.

# %%
collectives = {
    f"stage {stage}": run_on_ranks("03_zero/one_step", [stage] * 3).collectives for stage in range(4)
}
plots.sent(collectives, {f"stage {stage}": sent_bytes(4 * n_parameters, 3, stage) for stage in range(4)})

# %% [markdown]
# ## Mixed precision
#
# bfloat16 has 8 significant bits. Its largest number below 1 is 0.99609. Since 1 - 0.001 is closer to 1 than to that,
# it is rounded to 1: a small step is lost, and so are a thousand small steps.

# %%
short, master = torch.tensor(1.0, dtype=torch.bfloat16), torch.tensor(1.0)
for _ in range(1000):
    short -= 0.001
    master -= 0.001
print(f"1 minus 1000 × 0.001 in bfloat16: {short.item():.3f}, in float32: {master.item():.3f}")

# %% [markdown]
# So the model computes in bfloat16, and the optimizer steps master weights in float32. How does ZeRO help?
# From stage 1 on each rank optimizes only its parts, so only those need masters: $12/N$ of the 16 bytes.
#
# Sums over many ranks lose small numbers in the same way, so gradients are added up in float32. They are also sent in
# float32, 4 bytes each, and meanwhile a float32 copy of them exists.


# %%
class MixedOptimizer:
    """Stage 1 for parameters in bfloat16, with master weights in float32.
    The rest is as in ShardedOptimizer.
    """

    def __init__(self, groups: list[dict], kind: type, rank: int, world: int, **options) -> None:
        self.rank, self.world = rank, world
        groups = [
            {**group, "params": [p for p in group["params"] if p.requires_grad]} for group in groups
        ]
        self.parameters = [p for group in groups for p in group["params"]]
        self.optimizer = kind(masters_in_groups(groups, rank, world), **options)
        self.masters = [p for group in self.optimizer.param_groups for p in group["params"]]

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        share_in_float32(self.parameters, self.masters, self.world)
        self.optimizer.step()
        for master in self.masters:
            master.grad = None
        write_back(self.parameters, self.masters, self.rank, self.world)
        gather_weights(self.parameters, self.rank, self.world)


# %% nbgrader={"grade": false, "grade_id": "todo_10", "locked": false, "schema_version": 3, "solution": true, "task": false}
def masters_in_groups(groups: list[dict], rank: int, world: int) -> list[dict]:
    """The same groups and options, but with a master in place of each parameter:
    this rank's part in float32.
    """
    # TODO 10: Train bfloat16 weights with float32 masters. First, the masters. They have their own
    # memory.
    ### BEGIN SOLUTION
    return [
        {
            **group,
            "params": [
                my_part(p.detach(), rank, world).float().requires_grad_() for p in group["params"]
            ],
        }
        for group in groups
    ]
    ### END SOLUTION


def share_in_float32(parameters: list[Tensor], masters: list[Tensor], world: int) -> None:
    """Give each master its part of the mean gradient over all ranks,
    added up in float32 from bfloat16 gradients.
    """
    # TODO 10, again: before the step. An empty master gets a gradient, too.
    ### BEGIN SOLUTION
    shards = reduce_to_shards([p.grad.float() for p in parameters], world)
    for master, shard in zip(masters, shards, strict=True):
        master.grad = shard[: len(master)]
    ### END SOLUTION


@torch.no_grad()
def write_back(parameters: list[Tensor], masters: list[Tensor], rank: int, world: int) -> None:
    """Round the masters into this rank's parts of the parameters.
    The parameters gathered afterwards are bfloat16.
    """
    # TODO 10, again: after the step, and before the weights are gathered.
    ### BEGIN SOLUTION
    for parameter, master in zip(parameters, masters, strict=True):
        my_part(parameter, rank, world).copy_(master)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_10", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("03_zero/10")


# %%
def measure_mixed(_: None, rank: int, world: int) -> dict[str, int]:
    model = small_model().to(torch.bfloat16)
    with Storages(model.parameters()) as storages:
        optimizer = MixedOptimizer(in_two_groups(model), torch.optim.AdamW, rank, world)
        for step in range(2):
            tokens = batch_of(rank)
            optimizer.zero_grad()
            model(tokens[:, :-1], tokens[:, 1:]).backward()
            if step == 0:
                optimizer.step()
        return held(storages, model.parameters(), optimizer.optimizer)


# %%
bytes_held["stage 1, mixed"] = run_on_ranks("03_zero/measure_mixed", [None] * 3).results
predictions["stage 1, mixed"] = predicted_bytes(n_parameters, 3, 1, "mixed")
plots.held(bytes_held, predictions)

# %% [markdown]
# ## The law, with your own code
#
# **The parallel run is the serial run**, however little each rank holds. Train the course's model with your stage 3: no
# rank ever has more than one whole block, plus the rest. The text is a random chain of words.


# %%
def made_text() -> Tensor:
    """3000 words out of 97, each drawn from the four that may follow the word before."""
    draw = torch.Generator().manual_seed(0)
    followers = torch.randint(97, (97, 4), generator=draw)
    words = [0]
    for choice in torch.randint(4, (2999,), generator=draw).tolist():
        words.append(int(followers[words[-1], choice]))
    return torch.tensor(words)


def step_of(text: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """The global batch of a step: 12 windows of 16 words, and the words that follow.
    The same on every rank.
    """
    starts = torch.randint(len(text) - 16, (12,), generator=torch.Generator().manual_seed(step))
    windows = torch.stack([text[start : start + 17] for start in starts.tolist()])
    return windows[:, :-1], windows[:, 1:]


STEPS = 60


def train_alone(text: Tensor) -> list[float]:
    """The loss of each step on one process."""
    model, losses = small_model(), []
    optimizer = torch.optim.SGD(in_two_groups(model), lr=0.3, momentum=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(*step_of(text, step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_in_shards(text: Tensor, rank: int, world: int) -> list[float]:
    """The same in stage 3: this rank's losses, of its share of each batch."""
    model, losses = small_model(), []
    groups = in_two_groups(model)
    units = make_units(model, rank, world)
    for unit in units:
        attach(unit)
    shard_of = {
        p: shard for unit in units for p, shard in zip(unit.parameters, unit.shards, strict=True)
    }
    groups = [{**group, "params": [shard_of[p] for p in group["params"]]} for group in groups]
    optimizer = torch.optim.SGD(groups, lr=0.3, momentum=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = step_of(text, step)
        loss = model(x[rank::world], y[rank::world])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# %%
text = made_text()
shares = run_on_ranks("03_zero/train_in_shards", [text] * 3).results
plots.losses(
    train_alone(text), {"3 ranks, your stage 3": [sum(step) / 3 for step in zip(*shares, strict=True)]}
)

# %% [markdown]
# On the left the dots lie on the line; the right-hand picture shows the difference: the rounding of sums in a different
# order.

# %% [markdown]
# ## In the script
#
# `fsdp_training` shards the language model with PyTorch's own `fully_shard` (FSDP2). You have built what it does:
#
# | in `fsdp_training` | here |
# |---|---|
# | `fully_shard(block)` for each block, then `fully_shard(model)` | `make_units` and `attach`: units, and hooks that gather and free them |
# | parameters are DTensors, cut along their first dimension | `unit.shards`, cut as one long vector |
# | `--sharding full`: `reshard_after_forward=True` | stage 3: three rings per step |
# | `--sharding grad`: `reshard_after_forward=False` | weights are gathered once, and stay until the end of the backward pass: two rings per step |
# | the root with `reshard_after_forward=False` | its backward pass follows at once, so freeing it would be wasted |
# | `--sharding hybrid` | shards within a node, copies across nodes: `reduce_to_shards` in the node, then an all-reduce over the copies |
# | `MixedPrecisionPolicy(param_dtype=…, reduce_dtype=…)` | shards stay float32 and serve as masters: 4 + 4 + 8 bytes, all sharded; gathered in bfloat16, reduced in float32 |
# | the optimizer is made after sharding | it trains the shards |
# | `set_state_dict`, `dcp.save`, `dcp.load` | `whole_state`, `state_of_parts`, without ever building the whole |
#
# (A **DTensor** is a tensor that knows how it is distributed over ranks. **DCP** is `torch.distributed.checkpoint`.)
#
# FSDP adds overlap: on a GPU it gathers the next unit, and reduces the gradients of the previous one, while the current
# unit computes, so the GPU seldom waits for a message.
#
# It hides the gathers only if the network is fast enough. A unit with $P$ parameters computes for about $2 P \cdot$
# tokens FLOPs in its forward pass, and receives $2P$ bytes in bfloat16: with few tokens per GPU, or across a slow
# network, FSDP waits. Then use larger batches per GPU, hybrid sharding, or pipelines (lesson 05).

# %% [markdown]
# ## Recap
#
# 1. Training takes 16 bytes per parameter, in float32 as well as in mixed precision, plus activations.
# 2. Stages 1, 2 and 3 divide optimizer state, then gradients, then weights by the number of ranks. Every rank still
#    computes every layer, for its own samples.
# 3. Stages 1 and 2 send as many bytes as data parallel that adds up in the same precision: a reduce-scatter and an
#    all-gather are an all-reduce.
# 4. Stage 3 gathers weights twice: with gradients and weights in the same precision, half as many bytes again.
# 5. Activations are not sharded. Recomputing them helps (`--recompute`); lessons 04 and 06 divide them.
#
# *Papers.* ZeRO: [arXiv:1910.02054](https://arxiv.org/abs/1910.02054). PyTorch's FSDP:
# [arXiv:2304.11277](https://arxiv.org/abs/2304.11277). Mixed precision and master weights:
# [arXiv:1710.03740](https://arxiv.org/abs/1710.03740). Offloading to host memory:
# [arXiv:2101.06840](https://arxiv.org/abs/2101.06840).
#
# Next: [`train/fsdp_training.py`](../train/fsdp_training.py).
