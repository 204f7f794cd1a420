# %% [markdown]
# # ZeRO: no rank holds what another one has
#
# With data-parallel training every rank holds all weights, all gradients and the whole state
# of the optimizer, and all ranks hold the same. That buys speed, but no memory: a model that
# is too large for one GPU is too large for a thousand.
#
# ZeRO, the *zero redundancy optimizer* ([arXiv:1910.02054](https://arxiv.org/abs/1910.02054)),
# shares them out instead: each rank holds one part of $N$, a **shard**. What is computed stays
# the same to the last rounding error. There are three stages, and in this lesson you build
# all of them, and count the bytes that each rank really holds.
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
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from grader import run_on_ranks
from utils.plots import zero as plots
from utils.memory import Storages, held
from utils.model import TransformerLM

# %% [markdown]
# ## Sixteen bytes a parameter
#
# AdamW keeps two moving averages for each parameter, so that in float32 a parameter needs
# 4 bytes for its weight, 4 for its gradient and 8 for the optimizer's state. With **mixed
# precision** the model computes in bfloat16, so weights and gradients take 2 bytes each; but
# the optimizer has its own copy of the weight in float32, the *master weight*, beside the two
# averages. (Why? TODO 10 will show what becomes of small steps without it.)
#
# So it is 16 bytes either way. A model of 7 billion parameters takes 112 GB, more than
# most GPUs have, and activations are not counted yet.
#
# The stages share out more and more:
#
# | stage | weights | gradients | optimizer state |
# |---|---|---|---|
# | 0: plain data parallel | whole | whole | whole |
# | 1 | whole | whole | shared out |
# | 2 | whole | shared out | shared out |
# | 3 | shared out | shared out | shared out |
#
# **Predict** what a rank holds. How much of the 112 GB is left on each of 64 ranks, in each stage?


# %% nbgrader={"grade": false, "grade_id": "todo_1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def bytes_a_parameter(precision: str) -> tuple[int, int, int]:
    """Bytes that weight, gradient and AdamW's state of one parameter take, for "float32" or "mixed"."""
    # TODO 1: Predict the bytes that each rank holds. First those of one parameter, on one rank.
    # A master weight counts as state of the optimizer.
    ### BEGIN SOLUTION
    return (4, 4, 8) if precision == "float32" else (2, 2, 12)
    ### END SOLUTION


def predicted_bytes(parameters: int, world: int, stage: int, precision: str) -> tuple[float, float, float]:
    """Bytes of weights, gradients and optimizer state that one of ``world`` ranks holds in a stage from 0 to 3.

    As if parameters could be shared out evenly, whatever their number: a share need not be a whole number.
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
# have one length, so all shards have: with $n$ numbers on $N$ ranks it is $n/N$, rounded up.
# Rank 0 has the first so many numbers, rank 1 the next; the last ranks have fewer numbers than
# that, or none, and fill up with zeros.
#
# ![Seven numbers on three ranks: parts of 3, 3 and 1, and two zeros](../images/zero_shards.svg)
#
# You need it in two ways. A rank's **part** is a view of the tensor: it takes no memory, and
# who writes into it writes into the tensor. A **shard** is filled up, and has memory of its own,
# so that the tensor may go. That matters: a view of a hundred bytes keeps the whole tensor alive.


# %% nbgrader={"grade": false, "grade_id": "todo_2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def shard_size(numel: int, world: int) -> int:
    """How many numbers each shard has of a tensor of ``numel`` numbers."""
    # TODO 2: Cut a tensor into shards, and put it together again. First, how long are the shards?
    ### BEGIN SOLUTION
    return -(-numel // world)
    ### END SOLUTION


def my_part(tensor: Tensor, rank: int, world: int) -> Tensor:
    """The numbers of a (contiguous) tensor that belong to a rank: a 1-D view, at most shard_size long, maybe empty."""
    # TODO 2, again: the part, as a view.
    ### BEGIN SOLUTION
    size = shard_size(tensor.numel(), world)
    return tensor.view(-1)[rank * size : (rank + 1) * size]
    ### END SOLUTION


def filled(part: Tensor, size: int) -> Tensor:
    """A shard: a part and zeros behind it, in memory of its own, of exactly ``size`` numbers."""
    # TODO 2, again: the shard.
    ### BEGIN SOLUTION
    shard = part.new_zeros(size)
    shard[: len(part)] = part
    return shard
    ### END SOLUTION


def joined(shards: Tensor, shape: torch.Size) -> Tensor:
    """The tensor of this shape whose shards, by rank, ``shards`` has in one long vector."""
    # TODO 2, again: and back. What was filled up falls away.
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
# A block of the model has ten parameters and more, some of them tiny. A message costs its
# latency, whatever its size, so what is needed together should go together: **one** collective
# for a list of tensors.
#
# Mind the order. What leaves a rank are its shards, one behind the other; what arrives is that
# of rank 0, then that of rank 1. But each tensor needs *its* shards, of all ranks, side by side.
# Think of a table with a row for each rank; a tensor is a few columns of it.
#
# `dist.all_gather(list_of_tensors, tensor)` and `dist.reduce_scatter(tensor, list_of_tensors)` have
# a list with one entry for each rank. Rows of a table are tensors as well: `list(table)`.


# %% nbgrader={"grade": false, "grade_id": "todo_3", "locked": false, "schema_version": 3, "solution": true, "task": false}
@torch.no_grad()
def gather_shards(shards: list[Tensor], world: int) -> list[Tensor]:
    """For each tensor the shards of all ranks, by rank, in one long vector. ``shards`` are this rank's, one a tensor.

    All have the same dtype.
    """
    # TODO 3: Gather and reduce a list of tensors, by one collective each. First gather shards.
    ### BEGIN SOLUTION
    mine = torch.cat(shards)
    table = mine.new_empty(world, len(mine))
    dist.all_gather(list(table), mine)
    return [columns.reshape(-1) for columns in table.split([len(shard) for shard in shards], dim=1)]
    ### END SOLUTION


@torch.no_grad()
def reduce_to_shards(tensors: list[Tensor], world: int) -> list[Tensor]:
    """For each tensor this rank's shard of its mean over all ranks. The ranks' ``tensors`` have the same shapes and dtype."""
    # TODO 3, again: reduce, so that each rank gets its shards of the mean. `my_part` and `filled` tell what each rank gets.
    ### BEGIN SOLUTION
    sizes = [shard_size(tensor.numel(), world) for tensor in tensors]
    rows = [
        torch.cat([filled(my_part(tensor, rank, world), size) for tensor, size in zip(tensors, sizes, strict=True)])
        for rank in range(world)
    ]
    mine = torch.empty_like(rows[0])
    dist.reduce_scatter(mine, rows)
    mine /= world  # gloo, older ones at least, has no mean of its own
    return list(mine.split(sizes))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_3", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("03_zero/3")

# %% [markdown]
# ## Stage 1: each rank steps its part
#
# Adam works on each number by itself. So a rank can step its parts alone, with a state for
# those only, and then all ranks gather what the others have stepped:
#
# 1. the gradients' mean over the ranks, of which each rank needs its parts only,
# 2. the step of a plain torch optimizer that knows nothing but this rank's parts,
# 3. the weights, gathered.
#
# The class below does it in this order. It takes any optimizer that works number by number (AdamW
# or SGD, but not Adafactor or Muon, which look at whole matrices), and **parameter groups** as
# torch's optimizers do: usual are two, since norms and biases get no weight decay.


# %%
class ShardedOptimizer:
    """A torch optimizer of which each rank has a part: stages 1 and 2.

    Args:
        groups: parameter groups, dictionaries with "params" and, maybe, options of their own. Frozen parameters are left out.
        kind: the class of the optimizer; ``options`` are its arguments.
    """

    def __init__(self, groups: list[dict], kind: type, rank: int, world: int, stage: int = 1, **options) -> None:
        self.rank, self.world, self.stage = rank, world, stage
        groups = [{**group, "params": [p for p in group["params"] if p.requires_grad]} for group in groups]
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
    """The same groups with the same options, and in place of each parameter this rank's part of it, to be trained."""
    # TODO 4: Step only this rank's parts (ZeRO stage 1). First, what the optimizer is given.
    # A step on a part must change the weight itself, and take no memory but the state: so, views.
    # An optimizer takes leaf tensors that require a gradient. The groups you are given stay as they are.
    # (In this lesson every trained parameter has a gradient when the optimizer steps.)
    ### BEGIN SOLUTION
    return [
        {**group, "params": [my_part(p.detach(), rank, world).requires_grad_() for p in group["params"]]}
        for group in groups
    ]
    ### END SOLUTION


def share_gradients(parameters: list[Tensor], parts: list[Tensor], world: int) -> None:
    """Give each part as its ``grad`` its part of the mean gradient over all ranks."""
    # TODO 4, again: before the step. It takes one collective. Shards may be longer than parts. An empty part
    # gets an empty gradient: so the optimizer has a state for it, and the ranks' states have the same entries.
    ### BEGIN SOLUTION
    shards = reduce_to_shards([p.grad for p in parameters], world)
    for part, shard in zip(parts, shards, strict=True):
        part.grad = shard[: len(part)]
    ### END SOLUTION


@torch.no_grad()
def gather_weights(parameters: list[Tensor], rank: int, world: int) -> None:
    """Bring every rank's parts of the parameters, as they are after the step, to all ranks."""
    # TODO 4, again: after the step. It takes one collective.
    ### BEGIN SOLUTION
    shards = [filled(my_part(p, rank, world), shard_size(p.numel(), world)) for p in parameters]
    for p, whole in zip(parameters, gather_shards(shards, world), strict=True):
        p.copy_(joined(whole, p.shape))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_4", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("03_zero/4")

# %% [markdown]
# Now train with it, and measure. `Storages` notes every memory that tensors use and says how many bytes
# of it are alive; `held` sorts them. They are counted before the second step (the first one
# makes the state). Stage 0 is for comparison: it reduces gradients, and steps everything on every rank.
#
# The model is the one that all lessons train, made small, and each rank has its own batch.


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
    """Stage 0, as DDP does it: all gradients are reduced on all ranks, and all ranks step all weights."""

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
        optimizer = ShardedOptimizer(groups, torch.optim.AdamW, rank, world, stage) if stage else PlainOptimizer(groups)
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
# These are the bytes that stay, looked at just before the second step. While gradients are shared and weights gathered, a
# copy of them is there as well, for a moment; libraries keep it small by doing it in buckets.
#
# ## Save it, load it elsewhere
#
# A checkpoint should not depend on how many ranks there were. So the state dictionary is that of
# the *plain* optimizer: gathered, it can be loaded by one process, or by more ranks than before.
# (Here every rank gets the whole of it, to keep it short. `fsdp_training` writes sharded files.)
#
# A torch optimizer's state dictionary has the groups under `"param_groups"`, and under `"state"`, for
# each parameter by its number, a dictionary: for AdamW `step`, a single number, and `exp_avg` and
# `exp_avg_sq`, as large as the parameter. Parameters are numbered through all groups. How many collectives it
# takes is up to you: it is done once in a while.


# %% nbgrader={"grade": false, "grade_id": "todo_5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def whole_state(state_dict: dict, parameters: list[Tensor], world: int) -> dict:
    """The state dictionary that a plain optimizer of ``parameters`` would have. ``state_dict`` is that of this rank's parts.

    It is not changed, nor is what it refers to: the optimizer goes on with it.
    """
    # TODO 5: Save and load the state of all ranks. First put it together. Every tensor that is as long
    # as the part becomes as large as the parameter; single numbers, and what is no tensor, stay.
    ### BEGIN SOLUTION
    state = {}
    for number, values in state_dict["state"].items():
        shape, size = parameters[number].shape, shard_size(parameters[number].numel(), world)
        state[number] = {
            name: joined(gather_shards([filled(value, size)], world)[0], shape) if is_long(value) else value
            for name, value in values.items()
        }
    return {**state_dict, "state": state}
    ### END SOLUTION


def state_of_parts(whole: dict, rank: int, world: int) -> dict:
    """Out of a whole state dictionary, which is not changed, that of this rank's parts. It keeps nothing else alive."""
    # TODO 5, again: what of it is this rank's.
    ### BEGIN SOLUTION
    state = {
        number: {
            name: my_part(value, rank, world).clone() if is_long(value) else value for name, value in values.items()
        }
        for number, values in whole["state"].items()
    }
    return {**whole, "state": state}
    ### END SOLUTION


def is_long(value: object) -> bool:
    """Whether a value of an optimizer's state has a number for each of the parameter's."""
    return isinstance(value, Tensor) and value.dim() > 0


# %% nbgrader={"grade": true, "grade_id": "test_5", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("03_zero/5")

# %% [markdown]
# ## Stage 2: gradients go when they are ready
#
# In stage 1 the gradients wait for the step, all of them whole. But a rank needs only its part of
# their mean. So reduce each gradient as soon as the backward pass has made it, keep the
# part, and free the rest before the next one comes: never are all of them there.
#
# `parameter.register_post_accumulate_grad_hook(function)` has `function(parameter)` called whenever
# `parameter.grad` has become what it is after a backward pass. A weight that is used twice (a tied head)
# gets its gradient in one go. But there may be several backward passes before a step: gradients
# **accumulate**, now in the parts.


# %% nbgrader={"grade": false, "grade_id": "todo_6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def reduce_when_ready(parameters: list[Tensor], parts: list[Tensor], world: int) -> None:
    """From now on, whenever a parameter has its gradient: reduce it, add this rank's part to that of the part, and free it."""

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
# Less memory, and how many more bytes to send? Plain data-parallel training has its all-reduce. Stages 1 and 2
# have a reduce-scatter of the gradients and an all-gather of the weights.
#
# In stage 3, which comes next, a rank holds only shards of the weights. They are gathered for the forward pass,
# thrown away, and gathered once more for the backward pass; and gradients are reduced as in stage 2.
#
# **Predict** the bytes that a rank sends in a step. All collectives are done by rings, as in lesson 01.


# %% nbgrader={"grade": false, "grade_id": "todo_7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def sent_bytes(nbytes: int, world: int, stage: int) -> float:
    """Bytes that each rank sends in one step with weights of ``nbytes`` bytes, and gradients of as many. Stages are 0 to 3."""
    # TODO 7: Predict what a rank sends in a step. As if all could be cut evenly: it need not be a whole number.
    ### BEGIN SOLUTION
    rings = 3 if stage == 3 else 2
    return rings * (world - 1) / world * nbytes
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_7", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("03_zero/7")

# %% [markdown]
# ## Stage 3: weights come when they are needed
#
# A **unit** is what is gathered together: here, each block's parameters, and as the last one those that
# belong to no block. A unit holds its shards, and those are what the optimizer trains.
#
# The model's own parameters must stay what they are, for the layers and autograd refer to them. But
# the memory behind them may come and go. A tensor is a view of a *storage*, whose size can be changed:
#
# | | |
# |---|---|
# | `parameter.untyped_storage().resize_(0)` | frees the memory; the parameter keeps its shape |
# | `parameter.untyped_storage().resize_(nbytes)` | takes memory again; what is in it is rubbish |
# | `parameter.untyped_storage().nbytes()` | how much there is now |
#
# What the forward pass notes for the backward pass, a weight seen as transposed, say, is a view of the
# same storage. So a unit that is freed after its forward pass and filled again before its backward pass
# is right for autograd, too. One thing is in the way: autograd stops when a weight was written to in
# between. Write into `parameter.data`: that is the same memory, and autograd does not count it.
# (FSDP2 frees and refills storages, too.)


# %%
class Unit:
    """Parameters that are gathered together, and this rank's shards of them.

    ``module`` is what needs them: they are whole when it computes, and else without memory.
    """

    def __init__(self, module: nn.Module, parameters: list[nn.Parameter], rank: int, world: int) -> None:
        self.module, self.parameters, self.world = module, parameters, world
        self.shards = [
            nn.Parameter(filled(my_part(p.detach(), rank, world), shard_size(p.numel(), world)), p.requires_grad)
            for p in parameters
        ]
        reshard(self)


def make_units(model: TransformerLM, rank: int, world: int) -> list[Unit]:
    """A unit for each block, and one for the rest. A parameter that two layers share is in one unit, once."""
    in_blocks = {p for block in model.blocks for p in block.parameters()}
    rest = [p for p in model.parameters() if p not in in_blocks]
    members = [(block, list(block.parameters())) for block in model.blocks]
    return [Unit(module, parameters, rank, world) for module, parameters in [*members, (model, rest)]]


# %% nbgrader={"grade": false, "grade_id": "todo_8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def unshard(unit: Unit) -> None:
    """Make the unit's parameters whole: memory for them, and in it what the ranks' shards say. If they are whole, do nothing."""
    # TODO 8: Make the parameters of a unit whole, and free them again. First, whole: by one all-gather.
    ### BEGIN SOLUTION
    if unit.parameters[0].untyped_storage().nbytes():
        return
    for parameter, shards in zip(unit.parameters, gather_shards(unit.shards, unit.world), strict=True):
        parameter.untyped_storage().resize_(parameter.numel() * parameter.element_size())
        parameter.data.copy_(joined(shards, parameter.shape))
    ### END SOLUTION


def reshard(unit: Unit) -> None:
    """Free the memory of the unit's parameters. The shards stay."""
    # TODO 8, again: and free them.
    ### BEGIN SOLUTION
    for parameter in unit.parameters:
        parameter.untyped_storage().resize_(0)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_8", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("03_zero/8")

# %% [markdown]
# ## Through the whole step
#
# Now each unit has to be whole at the right time: while its module computes, forward and backward.
#
# ![A forward and a backward pass with two blocks: what is gathered, computed, freed and reduced, and the memory that weights take](../images/zero_step.svg)
#
# That is in turns. FSDP gathers the next unit, and reduces the last one's gradients, while another computes; the
# price is memory, for two units are whole at once. [FSDP, step by step](../images/fsdp_steps.html) pages through it
# (arrow keys, offline).
#
# ![A step of three blocks in turns and with prefetch: gathers and reduce-scatters run while other blocks compute](../images/fsdp_prefetch.svg)
#
# PyTorch calls you there:
#
# | call | and the function is called |
# |---|---|
# | `module.register_forward_pre_hook(f)` | before each forward pass, `f(module, args)` |
# | `module.register_forward_hook(f)` | after it, `f(module, args, output)` |
# | `tensor.register_hook(f)` | when the gradient of this tensor is there, `f(gradient)`; of a module's output: before its backward pass |
# | `parameter.register_post_accumulate_grad_hook(f)` | when its gradient is there, `f(parameter)` |
#
# What a hook returns takes the place of the argument, output or gradient: so return nothing. (And where autograd is off,
# as in an evaluation, an output has no gradient, and can have no hook: see `output.requires_grad`.)
#
# When is a unit's backward pass over? When all of its gradients are there. (There is a
# `register_full_backward_hook`, but where a module's input needs no gradient it is called too early.)
# Frozen parameters get none. Each unit here trains at least one.


# %% nbgrader={"grade": false, "grade_id": "todo_9", "locked": false, "schema_version": 3, "solution": true, "task": false}
def finish(unit: Unit) -> None:
    """After the unit's backward pass: add the reduced gradients to those of the shards, free the whole ones, and the weights."""
    # TODO 9: Gather, free and reduce through a whole step (ZeRO stage 3). First, what is to be done when
    # all gradients of a unit are there: one reduce-scatter, and no whole tensor is left.
    ### BEGIN SOLUTION
    trained = [(p, shard) for p, shard in zip(unit.parameters, unit.shards, strict=True) if p.requires_grad]
    means = reduce_to_shards([p.grad for p, _ in trained], unit.world)
    for (p, shard), mean in zip(trained, means, strict=True):
        shard.grad = mean if shard.grad is None else shard.grad + mean
        p.grad = None
    reshard(unit)
    ### END SOLUTION


def attach(unit: Unit) -> None:
    """From now on, let the unit be whole while its module computes, forward and backward, and finish it afterwards."""
    # TODO 9, again: who calls unshard, reshard and finish, and when. A unit is gathered once, at most, for each
    # forward and for each backward pass, and reduced once for each backward pass. Between the two a block is freed (the
    # rest may stay whole); after an evaluation, which has no backward pass, nothing stays whole.
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
# Now measure stage 3, too. The optimizer is a plain one: it trains the shards, and knows of nothing else.


# %%
def measure_stage_3(_: None, rank: int, world: int) -> dict[str, int]:
    model = small_model()
    groups = in_two_groups(model)
    with Storages(model.parameters()) as storages:
        units = make_units(model, rank, world)
        for unit in units:
            attach(unit)
        shard_of = {p: shard for unit in units for p, shard in zip(unit.parameters, unit.shards, strict=True)}
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
    """For its communication."""
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
    print(f"{name}: {max(sum(mine.values()) for mine in ranks):,} bytes held, {sum(predictions[name]):,.1f} predicted")
plots.held(bytes_held, predictions)

# %% [markdown]
# What is a little above the prediction is rounding up: each tensor has its own.
#
# And what did it cost? Each bar is a rank's step; the lines are your predictions.

# %%
collectives = {f"stage {stage}": run_on_ranks("03_zero/one_step", [stage] * 3).collectives for stage in range(4)}
plots.sent(collectives, {f"stage {stage}": sent_bytes(4 * n_parameters, 3, stage) for stage in range(4)})

# %% [markdown]
# ## Mixed precision
#
# bfloat16 has 8 bits for the number itself. Between 1 and 1.0078 there is none, so that
# 1 - 0.001 is 1: a small step is lost, and a thousand small steps, too.

# %%
short, master = torch.tensor(1.0, dtype=torch.bfloat16), torch.tensor(1.0)
for _ in range(1000):
    short -= 0.001
    master -= 0.001
print(f"1 less 1000 × 0.001 in bfloat16: {short.item():.3f}, in float32: {master.item():.3f}")

# %% [markdown]
# So the model computes in bfloat16, and the optimizer steps master weights in float32. Where does ZeRO
# come in? In stage 1 only parts have an optimizer, and so only they need masters: $12/N$ of the 16 bytes.
#
# Sums over many ranks lose small numbers in the same way: gradients are added up in float32. So they are sent in
# float32, too, 4 bytes each, and for that moment there is a copy of them in it.


# %%
class MixedOptimizer:
    """Stage 1 for parameters in bfloat16, with master weights in float32. Otherwise as ShardedOptimizer."""

    def __init__(self, groups: list[dict], kind: type, rank: int, world: int, **options) -> None:
        self.rank, self.world = rank, world
        groups = [{**group, "params": [p for p in group["params"] if p.requires_grad]} for group in groups]
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
    """The same groups with the same options, and in place of each parameter its master: this rank's part, in float32."""
    # TODO 10: Train bfloat16 weights by float32 masters. First, the masters. They have memory of their own.
    ### BEGIN SOLUTION
    return [
        {**group, "params": [my_part(p.detach(), rank, world).float().requires_grad_() for p in group["params"]]}
        for group in groups
    ]
    ### END SOLUTION


def share_in_float32(parameters: list[Tensor], masters: list[Tensor], world: int) -> None:
    """Give each master its part of the mean gradient over all ranks, added up in float32. The gradients are bfloat16."""
    # TODO 10, again: before the step. An empty master gets a gradient, too.
    ### BEGIN SOLUTION
    shards = reduce_to_shards([p.grad.float() for p in parameters], world)
    for master, shard in zip(masters, shards, strict=True):
        master.grad = shard[: len(master)]
    ### END SOLUTION


@torch.no_grad()
def write_back(parameters: list[Tensor], masters: list[Tensor], rank: int, world: int) -> None:
    """Round the masters to this rank's parts of the parameters. What is gathered afterwards is bfloat16."""
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
# ## The law, met by your own code
#
# **The parallel run is the serial run**, however little each rank holds. Train the course's model by your stage 3: no rank
# ever has more than one block whole, and the rest. The text is made up; most of its words follow from the one before.


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
    """The global batch of a step: 12 windows of 16 words, and the words that follow. The same on every rank."""
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
    shard_of = {p: shard for unit in units for p, shard in zip(unit.parameters, unit.shards, strict=True)}
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
plots.losses(train_alone(text), {"3 ranks, your stage 3": [sum(step) / 3 for step in zip(*shares, strict=True)]})

# %% [markdown]
# On the left the dots lie on the line; on the right is what lies between them: the rounding of sums in another order.
#
# ## In the script
#
# `fsdp_training` shards the language model with PyTorch's own `fully_shard` (FSDP2). You have built what it does:
#
# | in `fsdp_training` | here |
# |---|---|
# | `fully_shard(block)` for each block, then `fully_shard(model)` | `make_units` and `attach`: units, and hooks that gather and free them |
# | parameters are DTensors, cut along their first dimension | `unit.shards`, cut as one long vector |
# | `--sharding full`: `reshard_after_forward=True` | stage 3: three rings a step |
# | `--sharding grad`: `reshard_after_forward=False` | weights are gathered once, and stay until the backward pass is over: two rings a step |
# | the root with `reshard_after_forward=False` | its backward pass comes at once, so to free it would be for nothing |
# | `--sharding hybrid` | shards in a node, copies over nodes: `reduce_to_shards` in the node, then an all-reduce over the copies |
# | `MixedPrecisionPolicy(param_dtype=…, reduce_dtype=…)` | shards stay float32, and are their own masters: 4 + 4 + 8 bytes, shared out; gathered in bfloat16, reduced in float32 |
# | the optimizer is made after sharding | it trains the shards |
# | `set_state_dict`, `dcp.save`, `dcp.load` | `whole_state`, `state_of_parts`, without ever putting it together |
#
# What it adds is overlap: on a GPU it gathers the next unit, and reduces the gradients of the one before, while this one
# computes, so that the GPU seldom waits for a message.
#
# ## What comes of it
#
# - Stage 1 costs nothing but a little code: no byte more is sent than by data-parallel training that adds up in the same
#   precision, and of the 16 bytes a parameter the optimizer's 8, or with mixed precision 12, are shared out.
# - Stage 3 costs half as many bytes again, and what a rank holds shrinks with every rank that joins.
# - Activations are not in any of these numbers. Recomputing them is one way out (`--recompute`); to shard them, too, needs
#   lessons 04 and 06.
# - Next: `fsdp_training`.
