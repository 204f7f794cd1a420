# %% [markdown]
# # Pipeline parallelism: each rank has some of the layers
#
# In data parallelism each rank has all layers and a part of the batch. In pipeline parallelism each rank has some of
# the layers, a **stage**, and the whole batch passes through all stages. Only activations and their gradients travel,
# from one rank to its neighbour: no weights, no gradients of weights, and no collective. Those messages are not
# always small. But while one is in flight, both ranks can compute something else, so pipelines tolerate slow
# networks.
#
# The price is waiting. A stage can start only when the stage before it is done; until then it is idle, and that idle
# time is the **bubble**. In part 1 you cut a model into stages, run it, and write a program that executes any schedule;
# then you fill it with the two classical schedules, GPipe and 1F1B. Part 2 makes the bubble smaller, predicts it, and
# evaluates the model.
#
# *Builds on*: messages between ranks (`01_collectives`), and a loss that is summed over micro-batches, then divided
# once (`02_data_parallel`). *Shapes*: B sequences of T tokens, model width D, V words in the vocabulary. The tensor
# (B, T, D) that flows from block to block is called the **stream**.
#
# ![A model cut into four stages; activations go forward, gradients come back](../images/pipeline_stages.svg)

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import sys
from pathlib import Path

here = Path.cwd().resolve()
course = next(folder for folder in (here, *here.parents) if (folder / "grader").is_dir())
sys.path.insert(0, str(course))

from grader import check

# %%
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from grader import run_on_ranks
from utils.plots import pipeline_parallel as plots
from utils.data import IGNORE
from utils.memory import Storages
from utils.model import TransformerLM

# %% [markdown]
# # Part 1: from one stage at a time to 1F1B

# %% [markdown]
# ## Cut by cost
#
# The course's model is a chain of **pieces**: the embeddings (piece 0), the blocks (pieces 1 to $L$), and the last
# norm with the head (piece $L+1$). A stage is a run of consecutive pieces.
#
# A pipeline is as fast as its slowest stage: all others wait for it. So cut by what the pieces *cost*, not by how
# many there are. The product of an $n \times k$ matrix with a $k \times m$ matrix takes $2nkm$ operations. Count the
# products of a forward pass, for one token:
#
# - a block has the weights $q$, $k$, $v$ and $out$, each $D \times D$, and the two of the MLP, $D \times 4D$ and $4D
#   \times D$. Its attention compares the token with all $T$ tokens, then sums the values of all $T$: twice $2TD$
#   operations. (A kernel that skips masked pairs saves up to half of that.)
# - the head has one weight, $D \times V$.
# - everything else, embeddings and norms included, is neglected.
#
# The backward pass takes twice as many operations everywhere, so it does not change where to cut.
#
# **Predict** which piece of a small model is the most expensive: 4 blocks, $D = 64$, $T = 64$, $V = 2000$.
#
# Then build a stage. It holds its own pieces and *no other weights*: that is why it needs less memory. Keep the names
# that the parameters have in the whole model, so that the stages' state dictionaries together form a checkpoint of
# the model: an `nn.ModuleDict` names its entries as an `nn.ModuleList` does, and may skip some. (Here each rank
# builds the whole model first and keeps its part, so that the first weights are the serial run's. A model that is too
# large for that is built on the meta device, where tensors have a shape and no memory.)
#
# | call | meaning |
# |---|---|
# | `itertools.combinations(range(1, n), k)` | all ways to choose k of the numbers 1 to n − 1, each in ascending order |
# | `itertools.pairwise(numbers)` | neighbours: (first, second), (second, third), … |
# | `nn.ModuleDict({"2": block})` | a module whose parameters are named `2.…` |


# %% nbgrader={"grade": false, "grade_id": "todo_1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def costs_of_pieces(n_layers: int, dim: int, length: int, vocab_size: int) -> list[float]:
    """Operations of a forward pass for one token, for each of the ``n_layers`` + 2 pieces."""
    # TODO 1: Cut the model into stages by cost. First, what does each piece cost?
    ### BEGIN SOLUTION
    block = 2 * (4 * dim * dim + 8 * dim * dim) + 4 * length * dim
    return [0.0] + [float(block)] * n_layers + [2.0 * dim * vocab_size]
    ### END SOLUTION


def cut(costs: Sequence[float], stages: int) -> list[list[int]]:
    """The numbers of the pieces in each stage, in order: the cut whose most expensive stage costs least.

    Raises:
        ValueError: there are fewer pieces than stages.
    """
    # TODO 1, again: cut. Every piece is in one stage, and every stage has at least one piece. There are
    # few ways to cut a model (11,628 for 20 pieces and 6 stages), so you may try them all.
    ### BEGIN SOLUTION
    n = len(costs)
    if n < stages:
        raise ValueError(f"{n} pieces cannot be cut into {stages} stages")
    best: list[tuple[int, ...]] = []
    lowest = math.inf
    for places in combinations(range(1, n), stages - 1):
        bounds = (0, *places, n)
        slowest = max(sum(costs[a:b]) for a, b in pairwise(bounds))
        if slowest < lowest:
            lowest, best = slowest, [bounds]
    return [list(range(a, b)) for a, b in pairwise(best[0])]
    ### END SOLUTION


class Stage(nn.Module):
    """Some pieces of a model, with their weights under the names that they have in the model."""

    def __init__(self, model: TransformerLM, pieces: Sequence[int]) -> None:
        super().__init__()
        # TODO 1, again: keep what belongs to these pieces, and nothing else of the model.
        # (Piece 0 ends with `model.dropout`.)
        ### BEGIN SOLUTION
        last = len(model.blocks) + 1
        if 0 in pieces:
            self.token_embedding = model.token_embedding
            self.position_embedding = model.position_embedding
            self.dropout = model.dropout
        self.blocks = nn.ModuleDict({str(n - 1): model.blocks[n - 1] for n in pieces if 0 < n < last})
        if last in pieces:
            self.norm, self.head = model.norm, model.head
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """From tokens (B, T), or the stream (B, T, D), to the stream; in the last stage,
        to the logits (B, T, V).
        """
        # TODO 1, again: compute these pieces as TransformerLM.forward does.
        ### BEGIN SOLUTION
        if hasattr(self, "token_embedding"):
            positions_T = torch.arange(x.shape[1], device=x.device)
            x = self.dropout(self.token_embedding(x) + self.position_embedding(positions_T))
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x)) if hasattr(self, "head") else x
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_1", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("05_pipeline_parallel/1")

# %% [markdown]
# Now compare with the clock: the model of your prediction in three stages, cut by the number of pieces and cut by
# cost.

# %%
MODEL = {"vocab_size": 2000, "dim": 64, "n_heads": 4, "n_layers": 4, "max_len": 64}


def small_model() -> TransformerLM:
    torch.manual_seed(0)
    return TransformerLM(**MODEL)


def seconds_of_stages(cuts: list[list[int]], rank: int, world: int) -> list[float]:
    """The seconds of each stage's forward and backward pass on this machine: the best of five tries."""
    model, best = small_model(), [math.inf] * len(cuts)
    for _ in range(5):
        x = torch.randint(MODEL["vocab_size"], (8, MODEL["max_len"]))
        for number, pieces in enumerate(cuts):
            stage, began = Stage(model, pieces), time.perf_counter()
            output = stage(x)
            output.backward(torch.ones_like(output))
            best[number] = min(best[number], time.perf_counter() - began)
            x = output.detach().requires_grad_()
    return best


# %%
costs = costs_of_pieces(MODEL["n_layers"], MODEL["dim"], MODEL["max_len"], MODEL["vocab_size"])
for name, cuts in (("by number", [[0, 1], [2, 3], [4, 5]]), ("by cost", cut(costs, 3))):
    (seconds,) = run_on_ranks("05_pipeline_parallel/seconds_of_stages", [cuts], timed=True).results
    for number, pieces in enumerate(cuts):
        predicted = sum(costs[piece] for piece in pieces) / sum(costs)
        print(
            f"{name}, stage {number}, pieces {pieces}: predicted {predicted:.0%} of a step, "
            f"measured {seconds[number] / sum(seconds):.0%}"
        )

# %% [markdown]
# ## One stage at a time
#
# The simplest way to use several devices: the batch passes through all stages, and then its gradients come back. It is
# what `model.part1.to(0)`, `model.part2.to(1)` does. It makes room for a larger model, but it is no faster, as you will
# see.
#
# A rank receives the stream from the rank before it. What has arrived is a fresh tensor, unknown to autograd, so
# `x.requires_grad_()` asks for its gradient, which must be sent back. And what comes back from the next rank is not a
# loss but a gradient.
#
# | call | meaning |
# |---|---|
# | `torch.empty_like(tensor)` | an uninitialized tensor of the same shape and dtype |
# | `dist.send(tensor, rank)`, `dist.recv(tensor, rank)` | a message; it is complete when the call returns |
# | `tensor.detach()` | the same numbers without their history: a message needs none |
# | `output.backward(gradient)` | the backward pass from a tensor that is not a loss, given the loss's gradient for it |
#
# From now on a stage may be any module: the first takes the batch's inputs, each passes on a tensor with the shape and
# dtype of `like`, and `loss_of(output, y)` makes the loss from the last one's output.


# %% nbgrader={"grade": false, "grade_id": "todo_2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def naive_step(
    stage: nn.Module, x: Tensor, y: Tensor, like: Tensor, loss_of: Callable, rank: int, world: int
) -> Tensor | None:
    """Forward and backward pass of the whole batch through the stages of all ranks.

    This stage's parameters get their ``grad``.

    Args:
        x: the batch's inputs; only the first rank's are meaningful.
        y: its targets; only the last rank's are meaningful.
        like: has the shape and dtype of the tensor that a stage passes on. Its values are meaningless.

    These three belong to the caller and are not changed.

    Returns:
        The loss, without history, on the last rank; None elsewhere.
    """
    # TODO 2: Send activations forward and gradients back, one stage at a time.
    # With a single rank, nothing is sent. The first rank has no rank before it, so it sends no gradient.
    ### BEGIN SOLUTION
    if rank > 0:
        x = torch.empty_like(like)
        dist.recv(x, rank - 1)
        x.requires_grad_()
    output = stage(x)
    if rank == world - 1:
        loss = loss_of(output, y)
        loss.backward()
    else:
        dist.send(output.detach(), rank + 1)
        gradient = torch.empty_like(like)
        dist.recv(gradient, rank + 1)
        output.backward(gradient)
    if rank > 0:
        dist.send(x.grad, rank - 1)
    return loss.detach() if rank == world - 1 else None
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_2", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("05_pipeline_parallel/2")

# %% [markdown]
# Which rank worked when? To see a bubble, each rank needs its own processor, and your machine may have fewer than
# four. So the stages of the next cells do not compute. They *wait*, a known time for the forward pass (F), for the
# gradient of the input (I) and for the weights' gradients (W). Any number of processes can wait side by side, so you
# see the bubble that four devices would have. Everything else is real: autograd, messages, your code.

# %%
SECONDS = {"F": 0.04, "I": 0.04, "W": 0.04}  # of a whole rank's layers and one micro-batch
SECONDS["B"] = SECONDS["I"] + SECONDS["W"]
Note = tuple[str, int, int, float, float]  # kind, micro-batch, chunk, and from when to when


class Wait(torch.autograd.Function):
    """The tensor as it is. Its backward pass calls ``work``."""

    @staticmethod
    def forward(ctx, tensor: Tensor, work: Callable) -> Tensor:
        ctx.work = work
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.work()
        return gradient, None


class Scale(nn.Module):
    """A layer with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, work: Callable | None = None) -> Tensor:
        return x * (Wait.apply(self.weight, work) if work else self.weight)


class WaitingStage(nn.Module):
    """Two layers that take no time, and waits in place of work.

    F is waited for in the forward pass, I between the two layers in the backward pass, W where the
    second weight gets its gradient.
    """

    def __init__(self, log: list[Note], chunk: int = 0, chunks: int = 1) -> None:
        super().__init__()
        self.first, self.second = Scale(), Scale()
        self.log, self.chunk, self.chunks, self.microbatches = log, chunk, chunks, 0

    def wait(self, kind: str, microbatch: int) -> None:
        began = time.monotonic()  # one clock for all ranks of a machine
        time.sleep(SECONDS[kind] / self.chunks)
        self.log.append((kind, microbatch, self.chunk, began, time.monotonic()))

    def forward(self, x: Tensor) -> Tensor:
        microbatch = self.microbatches
        self.microbatches += 1
        self.wait("F", microbatch)
        between = Wait.apply(self.first(x), lambda: self.wait("I", microbatch))
        return self.second(between, lambda: self.wait("W", microbatch))


def wait_naively(_: None, rank: int, world: int) -> list[Note]:
    """What this rank did when."""
    log: list[Note] = []
    dist.barrier()
    naive_step(WaitingStage(log), torch.ones(4), torch.ones(4), torch.ones(4), F.mse_loss, rank, world)
    return log


# %%
run = run_on_ranks("05_pipeline_parallel/wait_naively", [None] * 4, timed=True)
plots.timelines({"one stage at a time": run.results})

# %% [markdown]
# Only one rank works at a time. Four devices are as fast as one.

# %% [markdown]
# ## Micro-batches
#
# So cut the batch: while rank 1 works on one **micro-batch**, rank 0 can work on the next. The law of this course
# holds: loss and gradients equal the whole batch's. Gradients of several backward passes accumulate, so the
# micro-batches' losses must *add up to* the loss. They are therefore not means: the loss is the mean over all targets
# of the batch that count, and one micro-batch may have more targets equal to `IGNORE` than another.
#
# And all micro-batches must have one shape, because a rank allocates the tensor that it receives into before the
# message arrives. Where $m$ does not divide the batch, fill it with padding rows, which the loss ignores.
#
# | call | meaning |
# |---|---|
# | `tensor.new_full((rows, columns), value)` | a tensor of the same dtype, filled with a value |
# | `torch.cat([a, b])`, `tensor.split(rows)` | joins rows; cuts into pieces of `rows` rows each |
# | `F.cross_entropy(logits_NV, y_N, ignore_index=IGNORE, reduction="sum")` | the sum over the targets that count, not their mean. N = B · T: `logits.flatten(0, -2)`, `y.flatten()` |


# %% nbgrader={"grade": false, "grade_id": "todo_3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def split(x: Tensor, y: Tensor, m: int) -> tuple[list[Tensor], list[Tensor]]:
    """A batch, tokens (B, T) and targets (B, T), as m micro-batches of ceil(B / m) rows each, in order.

    Padding rows, at the end, have token 0 and target IGNORE.
    """
    # TODO 3: Cut the batch into micro-batches whose losses add up to its loss. First, cut inputs and
    # targets.
    ### BEGIN SOLUTION
    rows = math.ceil(len(x) / m)
    missing = m * rows - len(x)
    x = torch.cat([x, x.new_full((missing, x.shape[1]), 0)])
    y = torch.cat([y, y.new_full((missing, y.shape[1]), IGNORE)])
    return list(x.split(rows)), list(y.split(rows))
    ### END SOLUTION


def loss_of_batch(y: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """For a batch with targets ``y``: a function of a micro-batch's logits and targets.

    It returns the micro-batch's share of the batch's loss.
    """

    # TODO 3, again: the shares add up to the mean over all targets of the batch that count; if none
    # counts, to 0.
    ### BEGIN SOLUTION
    counted = max(1, int((y != IGNORE).sum()))

    def loss_of(logits: Tensor, y_part: Tensor) -> Tensor:
        logits_NV, y_N = logits.flatten(0, -2), y_part.flatten()
        return F.cross_entropy(logits_NV, y_N, ignore_index=IGNORE, reduction="sum") / counted

    return loss_of
    ### END SOLUTION


def accumulate(model: nn.Module, x: Tensor, y: Tensor, m: int) -> Tensor:
    """The loss of the batch, without history; in one process, micro-batch by micro-batch.

    The batch's gradients are added to the parameters' ``grad``, which is None before.
    """
    # TODO 3, again: forward and backward pass of one micro-batch, then of the next, so that only one at
    # a time keeps its activations.
    ### BEGIN SOLUTION
    loss_of = loss_of_batch(y)
    losses = []
    for x_part, y_part in zip(*split(x, y, m), strict=True):
        loss = loss_of(model(x_part), y_part)
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_3", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("05_pipeline_parallel/3")

# %% [markdown]
# ## A schedule is data
#
# Which rank does what, in which order? A **schedule** says so: it has, for each rank, a list of actions. An action is the
# forward pass (F) or the backward pass (B) of one micro-batch through one stage. (In part 2 a rank has several
# stages, its **chunks**, and B is split into I and W. The program that you write now can already do all that.)


# %%
class Action(NamedTuple):
    # "F" forward, "B" backward; or B in two parts: "I" for the input's gradient, "W" for the weights'
    kind: str
    microbatch: int  # from 0
    chunk: int = 0  # of this rank's chunks: chunk c of rank r is stage c * world + r

    def __repr__(self) -> str:
        return f"{self.kind}{self.microbatch}" + (f"/{self.chunk}" if self.chunk else "")


Schedule = list[list[Action]]  # for each rank, its actions in order


def stage_of(action: Action, rank: int, world: int) -> int:
    return action.chunk * world + rank


# %% [markdown]
# The simplest schedule with micro-batches is **GPipe** ([arXiv:1811.06965](https://arxiv.org/abs/1811.06965)): all
# forward passes, then all backward passes.
#
# ![GPipe and 1F1B on four ranks with eight micro-batches](../images/pipeline_schedules.svg)
#
# A schedule says in which order a rank works, not when. A rank starts an action as soon as it has finished the
# previous one and the action's inputs are there. That is enough to compute all times, without running anything. What
# does an action need?
#
# | action of stage $s$ | needs |
# |---|---|
# | F | the F of the same micro-batch on stage $s-1$; on stage 0 nothing |
# | B or I | the B or I of the same micro-batch on stage $s+1$; on the last stage its own F, that is, the loss |
# | W | the I of the same micro-batch on the same stage |
#
# If a schedule is wrong, ranks may wait for each other forever. The simulator detects it: no rank can continue, and
# some have not finished.


# %% nbgrader={"grade": false, "grade_id": "todo_4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def gpipe(world: int, m: int) -> Schedule:
    """All forward passes of the m micro-batches, then all backward passes;
    on all ranks in the same order.
    """
    # TODO 4: Write the first schedule, and say when each action begins and ends. First, GPipe.
    ### BEGIN SOLUTION
    forward = [Action("F", j) for j in range(m)]
    backward = [Action("B", j) for j in range(m)]
    return [forward + backward for _ in range(world)]
    ### END SOLUTION


def simulate(schedule: Schedule, seconds: dict[str, float]) -> list[list[tuple[float, float]]]:
    """When each action of each rank starts and ends; the first one starts at 0. Messages take no time.

    Args:
        seconds: how long an action of each kind takes.

    Raises:
        ValueError: some ranks would wait forever. The text names the lowest of them, and the action that
            it cannot start, as `Action` writes it: "B0".
    """
    # TODO 4, again: the times. Visit the ranks in turn, let each do what it can, and stop when no rank
    # can do anything more. The last stage is the largest number that occurs in the schedule.
    ### BEGIN SOLUTION
    world = len(schedule)
    stages = [stage_of(a, rank, world) for rank, actions in enumerate(schedule) for a in actions]
    last = max(stages, default=0)
    # (forward or backward, micro-batch, stage) -> when it was there
    ends: dict[tuple[str, int, int], float] = {}
    times: list[list[tuple[float, float]]] = [[] for _ in schedule]

    def needed(action: Action, stage: int) -> tuple[str, int, int] | None:
        if action.kind == "F":
            return ("forward", action.microbatch, stage - 1) if stage else None
        if action.kind == "W":
            return ("backward", action.microbatch, stage)
        if stage == last:
            return ("forward", action.microbatch, last)
        return ("backward", action.microbatch, stage + 1)

    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(schedule):
            for action in actions[len(times[rank]) :]:
                stage = stage_of(action, rank, world)
                need = needed(action, stage)
                if need and need not in ends:
                    break
                free = times[rank][-1][1] if times[rank] else 0.0
                start = max(free, ends.get(need, 0.0))
                times[rank].append((start, start + seconds[action.kind]))
                if action.kind != "W":
                    done = "forward" if action.kind == "F" else "backward"
                    ends[done, action.microbatch, stage] = times[rank][-1][1]
                moved = True
    for rank, actions in enumerate(schedule):
        if len(times[rank]) < len(actions):
            raise ValueError(f"rank {rank} waits forever for what {actions[len(times[rank])]} needs")
    return times
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_4", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("05_pipeline_parallel/4")


# %%
def predicted(schedule: Schedule) -> list[list[Note]]:
    """The simulator's timeline. A rank's chunks divide its time."""
    chunks = 1 + max(action.chunk for actions in schedule for action in actions)
    times = simulate(schedule, {kind: seconds / chunks for kind, seconds in SECONDS.items()})
    return [
        [(*action, *span) for action, span in zip(*rank, strict=True)]
        for rank in zip(schedule, times, strict=True)
    ]


# %%
plots.timelines(
    {"GPipe, 2 micro-batches": predicted(gpipe(4, 2)), "GPipe, 8 micro-batches": predicted(gpipe(4, 8))}
)

# %% [markdown]
# The **bubble** is the fraction of the ranks' time that they spend waiting. It shrinks as the number of micro-batches
# grows.

# %% [markdown]
# ## Do one action
#
# To execute a schedule, a rank takes its actions one by one. Leave the messages aside at first: assume that the
# tensor that an action needs from another stage has `arrived`, and that the tensor that it returns will be sent on.
#
# A micro-batch that has passed forward through a stage, and not yet backward, is **alive**: its activations are kept.
# The given `Passed` runs a stage and holds what the backward pass starts from. Between the two passes of one
# micro-batch, others pass forward and backward; so a rank keeps one `Passed` for each micro-batch that is alive, and
# no others. In training, this is where the memory goes.


# %%
class Batch(NamedTuple):
    """A batch for a pipeline."""

    xs: list[Tensor]  # inputs, by micro-batch; meaningful only on the first stage's rank
    ys: list[Tensor]  # targets, by micro-batch; meaningful only on the last stage's rank
    like: Tensor  # shape and dtype of what a stage passes on; meaningless values
    # (the last stage's output, targets) -> share of the batch's loss
    loss_of: Callable[[Tensor, Tensor], Tensor]


class Passed:
    """A micro-batch that has passed forward through a stage: the tensors that its backward pass starts
    from.

    ``layers`` lists the modules on the way that own weights, each with its output. (TODO 9 will need
    it.)
    """

    def __init__(self, stage: nn.Module, x: Tensor) -> None:
        self.input, self.layers = x, []
        own_weights = [
            layer for layer in stage.modules() if any(True for _ in layer.parameters(recurse=False))
        ]
        hooks = [layer.register_forward_hook(self.note) for layer in own_weights]
        self.output = stage(x)
        for hook in hooks:
            hook.remove()

    def note(self, layer: nn.Module, args: tuple, output: Tensor) -> None:
        self.layers.append((layer, output))


# %% [markdown]
# | kind | what to do | what it needs from another stage |
# |---|---|---|
# | F | a `Passed` of the chunk and its input; on the last stage `batch.loss_of` turns its output into the loss | the stream, except on stage 0, which takes `batch.xs` |
# | B | `backward(passed, gradient)` | the gradient, except on the last stage |
# | I | `backward_input(passed, gradient)`, from TODO 9 | the same |
# | W | `backward_weights(passed)`, from TODO 9 | nothing |


# %% nbgrader={"grade": false, "grade_id": "todo_5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def backward(passed: Passed, gradient: Tensor | None) -> Tensor | None:
    """The whole backward pass of a micro-batch through one stage; weights' gradients are added to their
    ``grad``.

    Args:
        gradient: of the loss with respect to ``passed.output``; None where that is the loss itself.

    Returns:
        The gradient for ``passed.input``; None where the input needs none, as on the first stage.
    """
    # TODO 5: Do one action of a schedule, and keep what later ones need. First, the backward pass.
    # `tensor.backward(None)` is `tensor.backward()`.
    ### BEGIN SOLUTION
    passed.output.backward(gradient)
    return passed.input.grad
    ### END SOLUTION


class Worker:
    """Executes a rank's part of a schedule: its chunks, its batch, and what it keeps between actions."""

    def __init__(self, chunks: Sequence[nn.Module], batch: Batch, rank: int, world: int) -> None:
        self.chunks, self.batch, self.rank, self.world = chunks, batch, rank, world
        self.stages = len(chunks) * world  # on all ranks together; each has the same number
        self.passed: dict[tuple[int, int], Passed] = {}  # (micro-batch, stage) -> what is alive
        # on the rank of the last stage: micro-batch -> its share of the loss
        self.losses: dict[int, Tensor] = {}

    def act(self, action: Action, arrived: Tensor | None) -> Tensor | None:
        """Do one action of this rank.

        Args:
            arrived: what the action needs from another stage, a fresh tensor without history; None if it
                needs nothing.

        Returns:
            What another stage needs: for F the chunk's output, without history; for B and I the gradient
            for the chunk's input. Where no stage needs a result, it is ignored.
        """
        # TODO 5, again: the four kinds of actions. Ask for the gradient of what arrives for F. Free
        # everything that is no longer needed: nothing of a micro-batch stays after its B, or its W.
        # Where autograd is off (`output.requires_grad` is False), as in an evaluation, no backward pass
        # will come, so keep nothing at all. `losses` are kept without history.
        ### BEGIN SOLUTION
        j, stage = action.microbatch, stage_of(action, self.rank, self.world)
        if action.kind == "F":
            x = self.batch.xs[j] if stage == 0 else arrived.requires_grad_(torch.is_grad_enabled())
            passed = Passed(self.chunks[action.chunk], x)
            if stage == self.stages - 1:
                passed.output = self.batch.loss_of(passed.output, self.batch.ys[j])
                self.losses[j] = passed.output.detach()
            if passed.output.requires_grad:
                self.passed[j, stage] = passed
            return passed.output.detach()
        if action.kind == "I":
            return backward_input(self.passed[j, stage], arrived)
        if action.kind == "W":
            return backward_weights(self.passed.pop((j, stage)))
        return backward(self.passed.pop((j, stage)), arrived)
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_5", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("05_pipeline_parallel/5")

# %% [markdown]
# ## Send the results
#
# The messages are the difficult part:
#
# - *No buffers.* A send may block until its receive is posted: gloo buffers nothing, and NCCL does not promise to.
#   In the picture above, rank 0 sends an activation to rank 1 while rank 1 sends a gradient to rank 0. If both call
#   `dist.send` first, both wait forever.
# - *The same order at both ends.* Messages between two ranks arrive in the order in which they were sent, but a rank
#   may use them in a different order. (Tags would tell them apart. gloo has them, NCCL does not.)
# - *Nothing in flight at the end.* A rank that returns before its messages are complete has not finished.
#
# One idea solves the first two problems: all ranks agree on one order of all messages, and each rank posts its side
# of them, `isend` or `irecv`, in that order. The order comes from the schedule, which all ranks know. Let each action
# take one **tick** of an imaginary clock; the given `in_ticks` says which actions happen in which tick. In each tick
# a rank does its own action, if it has one, and *then* posts its side of the messages that this tick's actions send,
# in the order of the senders. With one common order, ranks cannot wait in a circle, with buffers or without. And a
# wrong schedule stops in the simulator, before anything runs.
#
# | call | meaning |
# |---|---|
# | `dist.isend(tensor, rank)`, `dist.irecv(tensor, rank)` | start a message and return a *work* at once |
# | `work.wait()` | returns when the message is complete. Until then, the tensor belongs to the message |
#
# When to wait? Wait for a receive when the tensor is needed, so that it can travel while the rank computes. Wait for
# a send too early, and the sender is blocked until its neighbour reaches that tick; wait for all sends at the end,
# and their tensors stay in memory, $m$ of them, though only a few micro-batches are alive. A few ticks later is
# right: by then the neighbour has posted its receive.


# %%
def in_ticks(schedule: Schedule) -> list[dict[int, Action]]:
    """For each tick, the actions that happen in it: rank -> action, in the order of the ranks."""
    starts = [
        [int(start) for start, _ in times] for times in simulate(schedule, dict.fromkeys("FBIW", 1))
    ]
    ticks: list[dict[int, Action]] = [
        {} for _ in range(1 + max((max(mine, default=-1) for mine in starts), default=-1))
    ]
    for rank, (actions, mine) in enumerate(zip(schedule, starts, strict=True)):
        for action, start in zip(actions, mine, strict=True):
            ticks[start][rank] = action
    return ticks


# %% nbgrader={"grade": false, "grade_id": "todo_6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def goes_to(action: Action, source: int, world: int, stages: int) -> tuple[int, int] | None:
    """The stage that needs the result of an action of rank ``source``, and that stage's rank; None if no
    stage does.

    There are ``stages`` stages in all.
    """
    # TODO 6: Execute any schedule, with messages that rely on no buffer. First, where do results go?
    # The result of F goes to the next stage, the result of B or I to the previous stage, and W has none.
    # The last stage has no next stage, and the first has no previous one.
    ### BEGIN SOLUTION
    step = {"F": 1, "B": -1, "I": -1, "W": 0}[action.kind]
    stage = stage_of(action, source, world) + step
    return (stage, stage % world) if step and 0 <= stage < stages else None
    ### END SOLUTION


def execute(
    schedule: Schedule, chunks: Sequence[nn.Module], batch: Batch, rank: int, world: int
) -> list[Tensor]:
    """Do this rank's part of a schedule. The gradients of the chunks' weights are added to their
    ``grad``.

    However many micro-batches there are, only a few sends are in flight at once.

    Args:
        chunks: this rank's stages; chunk c is stage c * world + rank. All ranks have the same number.

    Returns:
        On the rank of the last stage the losses by micro-batch, without history; elsewhere an empty
        list.

    Raises:
        ValueError: before anything is computed or sent, if the ranks would wait forever.
    """
    # TODO 6, again: the messages. A `Worker` does the actions. For each micro-batch, one message crosses
    # each boundary between two stages forward, and one back; between two chunks of the same rank,
    # nothing is sent. What arrives has the shape and dtype of `batch.like`. While a message travels that
    # is not needed yet, this rank computes.
    ### BEGIN SOLUTION
    worker = Worker(chunks, batch, rank, world)
    # (forward?, micro-batch, stage) -> what arrives
    arriving: dict[tuple[bool, int, int], tuple[Tensor, dist.Work | None]] = {}
    sending: deque[dist.Work] = deque()
    for tick in in_ticks(schedule):
        leaving = None
        if rank in tick:
            action = tick[rank]
            place = action.kind == "F", action.microbatch, stage_of(action, rank, world)
            arrived, work = arriving.pop(place, (None, None))
            if work:
                work.wait()
            leaving = worker.act(action, arrived)
        for source, action in tick.items():
            stage, target = goes_to(action, source, world, worker.stages) or (None, None)
            place = action.kind == "F", action.microbatch, stage
            if source == target == rank:
                arriving[place] = leaving, None
            elif source == rank and target is not None:
                sending.append(dist.isend(leaving, target))
            elif target == rank:
                room = torch.empty_like(batch.like)
                arriving[place] = room, dist.irecv(room, source)
        # posted so many ticks ago that the receive is posted, too, or soon will be
        while len(sending) > 2 * world:
            sending.popleft().wait()
    for work in sending:
        work.wait()
    return [worker.losses[j] for j in sorted(worker.losses)]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_6", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("05_pipeline_parallel/6")

# %% [markdown]
# Here is a real run, below the prediction. The boxes show the numbers of the micro-batches; the titles give the
# bubble.


# %%
def schedule_of(name: str, world: int, m: int) -> Schedule:
    makers = {
        "GPipe": lambda: gpipe(world, m),
        "1F1B": lambda: one_f_one_b(world, m),
        "interleaved": lambda: interleaved(world, m, 2),
        "zero bubble": lambda: zero_bubble(world, m),
    }
    return makers[name]()


def wait_by_schedule(name: str, rank: int, world: int) -> list[Note]:
    """What this rank did when, with eight micro-batches."""
    schedule, log = schedule_of(name, world, 8), []
    chunks = 1 + max(action.chunk for actions in schedule for action in actions)
    stages = [WaitingStage(log, chunk, chunks) for chunk in range(chunks)]
    batch = Batch([torch.ones(4)] * 8, [torch.zeros(4)] * 8, torch.ones(4), F.mse_loss)
    dist.barrier()
    execute(schedule, stages, batch, rank, world)
    return log


def measured(name: str) -> list[list[Note]]:
    """The timeline of a real run on four ranks. Where B is one action,
    its two waits are drawn as one.
    """
    run = run_on_ranks("05_pipeline_parallel/wait_by_schedule", [name] * 4, timed=True)
    whole = any(action.kind == "B" for action in schedule_of(name, 4, 8)[0])
    return plots.with_whole_backwards(run.results) if whole else run.results


# %%
plots.timelines({"GPipe, predicted": predicted(gpipe(4, 8)), "GPipe, measured": measured("GPipe")})

# %% [markdown]
# ## 1F1B
#
# With GPipe, a rank keeps the activations of all $m$ micro-batches until the backward passes begin: more
# micro-batches mean a smaller bubble, but more memory. **1F1B** (one forward, one backward) starts each backward pass
# as early as possible: rank $r$ starts with one forward pass for each rank *after* it, then alternates forward and
# backward passes until no forward pass is left; the remaining actions are backward passes.
#
# **Predict** how many micro-batches are alive at most on rank $r$ of $p$.


# %% nbgrader={"grade": false, "grade_id": "todo_7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def one_f_one_b(world: int, m: int) -> Schedule:
    """1F1B: as fast as GPipe; at most min(m, world - r) micro-batches are alive on rank r."""
    # TODO 7: Run one forward, one backward. It must also be right for fewer micro-batches than ranks.
    ### BEGIN SOLUTION
    schedule = []
    for rank in range(world):
        early = min(m, world - 1 - rank)
        actions = [Action("F", j) for j in range(early)]
        for j in range(m - early):
            actions += [Action("F", early + j), Action("B", j)]
        actions += [Action("B", j) for j in range(m - early, m)]
        schedule.append(actions)
    return schedule
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_7", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("05_pipeline_parallel/7")

# %%
plots.timelines({"1F1B, predicted": predicted(one_f_one_b(4, 8)), "1F1B, measured": measured("1F1B")})

# %% [markdown]
# The bubble is the same as GPipe's; the memory has changed. Here it is in bytes, for stages of the language model:
# all tensors that autograd keeps for the backward pass, at the peak.


# %%
def peak_bytes(name: str, rank: int, world: int) -> dict[str, float]:
    """Bytes of activations that autograd keeps on this rank: at the peak, and for one micro-batch."""
    model, m = small_model(), 8
    stage = Stage(model, [[0, 1], [2], [3], [4, 5]][rank])
    del model
    own = {p.untyped_storage().data_ptr() for p in stage.parameters()}
    x, y = torch.randint(MODEL["vocab_size"], (2, m, 16), generator=torch.Generator().manual_seed(1))
    batch = make_batch(x, y, m)
    kept, alive = Storages(), {"most": 0, "one": 0}
    passes = []

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept.note([tensor])
            alive["most"] = max(alive["most"], sum(kept.bytes_alive().values()))
            if len(passes) == 1:
                alive["one"] = alive["most"]
        return tensor.detach()  # the tensor itself would refer to the graph that keeps it

    stage.register_forward_pre_hook(lambda *_: passes.append("forward"))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        execute(schedule_of(name, world, m), [stage], batch, rank, world)
    return alive


def make_batch(x: Tensor, y: Tensor, m: int) -> Batch:
    """A batch of tokens and targets for a pipeline of the small model."""
    xs, ys = split(x, y, m)
    return Batch(xs, ys, torch.empty(*xs[0].shape, MODEL["dim"]), loss_of_batch(y))


# %%
peaks = {
    name: run_on_ranks("05_pipeline_parallel/peak_bytes", [name] * 4).results
    for name in ("GPipe", "1F1B")
}
plots.alive(peaks, {"GPipe": [8] * 4, "1F1B": [min(8, 4 - rank) for rank in range(4)]})

# %% [markdown]
# Now train the language model with both schedules, and in one process, on the same batches. Only the rank of the last
# stage has the losses.


# %%
def batch_of(step: int, rows: int = 8) -> tuple[Tensor, Tensor]:
    """Tokens and targets; some targets are IGNORE."""
    draw = torch.Generator().manual_seed(step)
    x, y = torch.randint(MODEL["vocab_size"], (2, rows, 16), generator=draw)
    return x, torch.where(
        torch.rand(y.shape, generator=draw) < 0.3 * torch.rand(rows, 1, generator=draw), IGNORE, y
    )


def train(name: str, rank: int, world: int) -> tuple[list[nn.Module], list[float]]:
    """This rank's chunks after five steps, and the steps' losses;
    these are empty except on the last rank.
    """
    model, m = small_model(), 4
    v = 2 if name == "interleaved" else 1
    stages = cut(costs_of_pieces(4, MODEL["dim"], 16, MODEL["vocab_size"]), world * v)
    chunks = [Stage(model, stages[chunk * world + rank]) for chunk in range(v)]
    del model
    optimizer = torch.optim.SGD([p for chunk in chunks for p in chunk.parameters()], lr=0.5)
    losses = []
    for step in range(5):
        mine = execute(schedule_of(name, world, m), chunks, make_batch(*batch_of(step), m), rank, world)
        losses += [float(sum(mine))] if mine else []
        optimizer.step()
        optimizer.zero_grad()
    return chunks, losses


def losses_by(name: str, rank: int, world: int) -> list[float]:
    return train(name, rank, world)[1]


def losses_alone(_: None, rank: int, world: int) -> list[float]:
    """The same in one process; and the loss of an evaluation, for part 2."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for step in range(5):
        loss = model(*batch_of(step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    x, y = (torch.cat(parts) for parts in zip(batch_of(100), batch_of(101, rows=3), strict=True))
    with torch.no_grad():
        return [*losses, model(x, y).item()]


# %%
alone = run_on_ranks("05_pipeline_parallel/losses_alone", [None]).results[0]
print(f"{'loss of step':12}", *(f"{step:7}" for step in range(1, 6)))
print(f"{'one process':12}", *(f"{loss:.5f}" for loss in alone[:5]))
for name in ("GPipe", "1F1B"):
    losses = run_on_ranks("05_pipeline_parallel/losses_by", [name] * 2).results[-1]
    print(f"{name:12}", *(f"{loss:.5f}" for loss in losses))

# %% [markdown]
# ### What you have now
#
# - A stage is a run of layers, cut by cost, because all wait for the slowest. It holds no other stage's weights.
# - Activations go forward and gradients back; the losses of the micro-batches add up to the batch's loss.
# - A schedule is data: a simulator gives its times, and finds a deadlock before anything is sent.
# - A common order of all messages keeps ranks from waiting in a circle, with buffers or without.
# - GPipe and 1F1B have the same bubble, smaller with more micro-batches. GPipe keeps $m$ alive, 1F1B at most $p-r$.
#
# This is a good place to stop. 1F1B is what most training runs use. The script `pipeline_training` needs only this
# part.

# %% [markdown]
# # Part 2: smaller bubbles
#
# *Recap.* A schedule is, for each rank, a list of actions: F and B of a micro-batch, on one of the rank's chunks.
# `simulate` computes its times, `execute` runs it, and `one_f_one_b` is the schedule to beat: each rank waits $p-1$
# times for a forward and a backward pass. (If you come back to this notebook, run the cells of part 1 first.)

# %% [markdown]
# ## Interleaved
#
# At the start, a rank waits until the first micro-batch has come down the pipeline. It arrives earlier if the stages
# are smaller. So give each rank $v \ge 2$ chunks ([arXiv:2104.04473](https://arxiv.org/abs/2104.04473)): with $p$
# ranks the model is cut into $vp$ stages, and chunk $c$ of rank $r$ is stage $cp + r$. A micro-batch visits each rank
# $v$ times. The bubble is $v$ times smaller, and there are $v$ times as many messages.
#
# The order of a rank's forward passes: the first $p$ micro-batches through chunk 0, the same $p$ through chunk 1, and
# so on through all chunks; then the next $p$ micro-batches likewise. So $m$ must be a multiple of $p$. Backward passes
# come in the same order of micro-batches, but from the last chunk to the first.
#
# ![Interleaved, and zero bubble, on four ranks with eight micro-batches](../images/pipeline_late_schedules.svg)
#
# Again a rank starts with some forward passes, then alternates forward and backward passes, and ends with backward
# passes. How many come first? For the last rank, just those before its first pass through its *last chunk*: $(v-1)p$.
# Each rank before it needs two more than the next rank: its activations travel one step further to the last rank, and
# the gradients one step further back. (In the simulator one more would be enough, and keep less: its messages take no
# time. Real messages do, and the second forward pass hides it.)


# %% nbgrader={"grade": false, "grade_id": "todo_8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def interleaved(world: int, m: int, v: int) -> Schedule:
    """1F1B with v chunks on each rank, v of 2 or more.

    On rank r, at most min(m v, 2 (world - 1 - r) + (v - 1) world + 1) passes are alive: a pass is one
    micro-batch in one chunk.

    Raises:
        ValueError: m is not a multiple of ``world``.
    """
    # TODO 8: Interleave chunks.
    ### BEGIN SOLUTION
    if m % world:
        raise ValueError(f"{m} micro-batches are not a multiple of {world} ranks")
    order = [
        (first + j, chunk) for first in range(0, m, world) for chunk in range(v) for j in range(world)
    ]
    forward = [Action("F", j, chunk) for j, chunk in order]
    backward = [Action("B", j, v - 1 - chunk) for j, chunk in order]
    schedule = []
    for rank in range(world):
        early = min(m * v, 2 * (world - 1 - rank) + (v - 1) * world)
        actions = forward[:early]
        for f, b in zip(forward[early:], backward, strict=False):
            actions += [f, b]
        schedule.append(actions + backward[m * v - early :])
    return schedule
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_8", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("05_pipeline_parallel/8")

# %%
plots.timelines(
    {
        "interleaved, predicted": predicted(interleaved(4, 8, 2)),
        "interleaved, measured": measured("interleaved"),
    }
)

# %% [markdown]
# The two shades are the two chunks. A chunk waits half as long as a stage did before, since it has half as many layers.

# %% [markdown]
# ## Split the backward pass
#
# A backward pass makes two kinds of gradients. The previous rank waits for the *input's*. No rank waits for the
# *weights'*: they are needed only in the optimizer's step. So compute them separately
# ([arXiv:2401.10241](https://arxiv.org/abs/2401.10241)): I as early as possible, and W where the rank would be idle.
#
# Autograd can do either, without any new kernel:
#
# | call | meaning |
# |---|---|
# | `torch.autograd.grad(output, tensors, gradient)` | the gradients for these tensors only, as a tuple. No `grad` is set, and nothing else is computed. `output` may be a list, with a list of gradients |
# | `…, retain_graph=True` | autograd keeps what it needs for a backward pass, so that a second one is possible |
#
# There is one trap. `grad(output, weights)` for W would go back through the whole stage once more, and compute all
# the gradients between the layers *again*: together, I and W would take one and a half times as long as B. So let I
# ask for more than the input's gradient, and keep what it gets, so that W can go from each layer's own output to that
# layer's own weights and no gradient is computed twice. `passed.layers` has the layers and their outputs. (This
# assumes that each weight is used once in a pass: a weight used twice would be reached through its other use as
# well.)


# %% nbgrader={"grade": false, "grade_id": "todo_9", "locked": false, "schema_version": 3, "solution": true, "task": false}
def backward_input(passed: Passed, gradient: Tensor | None) -> Tensor | None:
    """The first part of a backward pass: returns the gradient for ``passed.input``, or None where the
    input needs none.

    ``gradient`` is as for `backward`. No ``grad`` is changed, not even ``passed.input.grad``. Keep in
    attributes of ``passed`` what `backward_weights` will need.
    """
    # TODO 9: Split the backward pass in two. First, the input's part.
    # If everything before a layer is frozen, its output needs no gradient, and autograd cannot be asked
    # for one.
    ### BEGIN SOLUTION
    passed.layers = [(layer, output) for layer, output in passed.layers if output.requires_grad]
    inputs = [passed.input] if passed.input.requires_grad else []
    outputs = [output for _, output in passed.layers]
    found = torch.autograd.grad(passed.output, inputs + outputs, gradient, retain_graph=True)
    passed.gradients = found[len(inputs) :]
    return found[0] if inputs else None
    ### END SOLUTION


def backward_weights(passed: Passed) -> None:
    """The second part: the weights' gradients are added to their ``grad``."""
    # TODO 9, again: the weights' part. A ``grad`` may still be None. Frozen weights (`requires_grad` is
    # False) get none.
    ### BEGIN SOLUTION
    for (layer, output), gradient in zip(passed.layers, passed.gradients, strict=True):
        weights = [weight for weight in layer.parameters(recurse=False) if weight.requires_grad]
        if not weights:
            continue
        found = torch.autograd.grad(output, weights, gradient, retain_graph=True)
        for weight, new in zip(weights, found, strict=True):
            weight.grad = new if weight.grad is None else weight.grad + new
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_9", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("05_pipeline_parallel/9")

# %% [markdown]
# ## Zero bubble
#
# Now the schedule, **H1** of the paper. The forward passes and I are in the order of 1F1B, with I in place of B. Rank
# $r$ postpones its first $r$ W: from its I of micro-batch $r$ on, each I is followed by the oldest W that is left;
# the W still left at the end come last. So the last ranks, which start late, fill their bubble with W. On each rank
# at most $p$ micro-batches are alive, counted until their W: no more than 1F1B needs on rank 0. (From I to W, the
# gradients of the layers' outputs are kept as well.)


# %% nbgrader={"grade": false, "grade_id": "todo_10", "locked": false, "schema_version": 3, "solution": true, "task": false}
def zero_bubble(world: int, m: int) -> Schedule:
    """Schedule H1: at most min(m, world) micro-batches are alive on a rank, counted until their W."""
    # TODO 10: Fill the bubble with the weights' part.
    ### BEGIN SOLUTION
    schedule = []
    for rank, actions in enumerate(one_f_one_b(world, m)):
        mine, weights = [], deque(range(m))
        for action in actions:
            mine.append(action if action.kind == "F" else action._replace(kind="I"))
            if action.kind == "B" and action.microbatch >= rank:
                mine.append(Action("W", weights.popleft()))
        schedule.append(mine + [Action("W", j) for j in weights])
    return schedule
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_10", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("05_pipeline_parallel/10")

# %%
plots.timelines(
    {
        "zero bubble, predicted": predicted(zero_bubble(4, 8)),
        "zero bubble, measured": measured("zero bubble"),
    }
)

# %% [markdown]
# ## Predict
#
# You have seen four schedules in pictures. To choose between them, you need formulas. Let the layers of one rank, all
# its chunks together, take $F$ seconds for the forward pass of a micro-batch, $I$ for the gradients between the
# layers and of the input, $W$ for the weights'. A rank works $m(F+I+W)$, whatever the schedule; the bubble adds to
# that. Look at rank 0 in the pictures: what does it wait for?
#
# - GPipe, 1F1B: until the first micro-batch is back, it waits for the forward and backward passes of $p-1$ other ranks.
# - Interleaved: the same, but the passes are through chunks, $v$ times shorter.
# - Zero bubble H1: no rank waits for W, and each rank fills a part of its bubble with the W that it has postponed.
#   What remains is $(p-1)(F+I-W)$. (For $m \ge p$ and $W \le I$. The paper's H2 has $(p-1)(F+I-2W)$, with up to
#   $2p-1$ micro-batches alive.)
#
# **Predict** the time of a step, its bubble as a fraction of that time, and how much memory a rank needs for
# activations, as a multiple of the activations of one micro-batch in all its layers.


# %% nbgrader={"grade": false, "grade_id": "todo_11", "locked": false, "schema_version": 3, "solution": true, "task": false}
def step_seconds(name: str, p: int, m: int, v: int, f: float, i: float, w: float) -> float:
    """Seconds of a step with "GPipe", "1F1B", "interleaved" or "zero bubble".

    v is the number of chunks on a rank: 2 or more for "interleaved", else 1.
    """
    # TODO 11: Predict time, bubble and memory of each schedule. First, the time.
    ### BEGIN SOLUTION
    bubble = (p - 1) * (f + i - w if name == "zero bubble" else (f + i + w) / v)
    return m * (f + i + w) + bubble
    ### END SOLUTION


def bubble_share(name: str, p: int, m: int, v: int, f: float, i: float, w: float) -> float:
    """The fraction of the ranks' time that they spend waiting, from 0 to 1."""
    # TODO 11, again: the bubble.
    ### BEGIN SOLUTION
    return 1 - m * (f + i + w) / step_seconds(name, p, m, v, f, i, w)
    ### END SOLUTION


def most_alive(name: str, p: int, m: int, v: int, rank: int) -> float:
    """The most activations that a rank keeps,
    as a multiple of one micro-batch's in all layers of the rank.
    """
    # TODO 11, again: the memory. The docstrings of your schedules say how many passes are alive, and a
    # pass in one of v chunks is 1 / v of a micro-batch.
    ### BEGIN SOLUTION
    if name == "interleaved":
        return min(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1) / v
    return {"GPipe": m, "1F1B": min(m, p - rank), "zero bubble": min(m, p)}[name]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_11", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("05_pipeline_parallel/11")

# %%
for name in ("GPipe", "1F1B", "interleaved", "zero bubble"):
    v = 2 if name == "interleaved" else 1
    work = SECONDS["F"], SECONDS["I"], SECONDS["W"]
    share, ideal = bubble_share(name, 4, 8, v, *work), plots.bubble(predicted(schedule_of(name, 4, 8)))
    print(
        f"{name:12} {step_seconds(name, 4, 8, v, *work):.2f} s, bubble {share:.1%} from the formula,"
        f" {ideal:.1%} from the simulator; rank 0 keeps {most_alive(name, 4, 8, v, 0):.1f} micro-batches"
    )

# %% [markdown]
# Try other values: 64 micro-batches, 16 ranks, a W that is shorter than I. Is a smaller bubble worth $v$ times the
# messages? What happens to the memory of rank 0?

# %% [markdown]
# ## Evaluation, and the log
#
# Only the last rank knows the loss. But rank 0 writes the log, and all ranks must agree on the best checkpoint; so
# all need it. Evaluation is a pipeline, too, with forward passes only, without autograd, which keep nothing. The mean
# is taken over all targets that count, in all batches.
#
# | call | meaning |
# |---|---|
# | `dist.broadcast(tensor, rank)` | copies this rank's tensor to all ranks |
# | `module.train(mode)`, `module.eval()`, `module.training` | switches dropout and the like, in the module and all its children; tells which mode it is in |


# %% nbgrader={"grade": false, "grade_id": "todo_12", "locked": false, "schema_version": 3, "solution": true, "task": false}
def on_all_ranks(value: float | None, rank: int, world: int) -> float:
    """The last rank's ``value``, on all ranks, with float64 precision.
    On the others ``value`` is None.
    """
    # TODO 12: Evaluate through the pipeline, and tell all ranks the loss. First, send it from the last
    # rank to all.
    ### BEGIN SOLUTION
    box = torch.tensor([value if rank == world - 1 else 0.0], dtype=torch.float64)
    dist.broadcast(box, world - 1)
    return box.item()
    ### END SOLUTION


def forward_only(world: int, m: int, v: int) -> Schedule:
    """The forward passes of m micro-batches through v chunks on each rank.

    Any order is right if it does not deadlock and if no rank waits once it has started, when all passes
    take the same time. (With several chunks and m < world, ranks may wait.)
    """
    # TODO 12, again: the schedule.
    ### BEGIN SOLUTION
    return [[Action("F", j, chunk) for chunk in range(v) for j in range(m)] for _ in range(world)]
    ### END SOLUTION


def evaluate(chunks: Sequence[nn.Module], batches: Sequence[Batch], rank: int, world: int) -> float:
    """The mean loss over the targets of all batches together, on every rank. Only targets that are not
    IGNORE count; each batch has at least one.

    Evaluated in eval mode, without autograd; afterwards each chunk is back in its mode.
    """
    # TODO 12, again: evaluate. The losses that `execute` returns add up to the mean of their batch, and
    # another batch may have more targets.
    ### BEGIN SOLUTION
    modes = [chunk.training for chunk in chunks]
    total, count = 0.0, 0
    for chunk in chunks:
        chunk.eval()
    with torch.no_grad():
        for batch in batches:
            losses = execute(forward_only(world, len(batch.xs), len(chunks)), chunks, batch, rank, world)
            if rank == world - 1:
                counted = sum(int((y != IGNORE).sum()) for y in batch.ys)
                total += counted * sum(loss.double().item() for loss in losses)
                count += counted
    for chunk, mode in zip(chunks, modes, strict=True):
        chunk.train(mode)
    return on_all_ranks(total / count if rank == world - 1 else None, rank, world)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_12", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("05_pipeline_parallel/12")

# %% [markdown]
# Now everything together: the language model, trained with each schedule on the same batches as in one process, and
# evaluated. The printed numbers come from rank 0, which has neither the losses nor the head.


# %%
def train_and_evaluate(name: str, rank: int, world: int) -> list[float]:
    """Losses of five steps, and of an evaluation on two batches of unequal size; on every rank."""
    chunks, losses = train(name, rank, world)
    losses = [on_all_ranks(losses[step] if losses else None, rank, world) for step in range(5)]
    batches = [make_batch(*batch_of(100), 4), make_batch(*batch_of(101, rows=3), 4)]
    return [*losses, evaluate(chunks, batches, rank, world)]


# %%
print(f"{'loss of step':12}", *(f"{step:7}" for step in range(1, 6)), "  evaluation")
print(f"{'one process':12}", *(f"{loss:.5f}" for loss in alone))
for name in ("GPipe", "1F1B", "interleaved", "zero bubble"):
    losses = run_on_ranks("05_pipeline_parallel/train_and_evaluate", [name] * 2).results[0]
    print(f"{name:12}", *(f"{loss:.5f}" for loss in losses))

# %% [markdown]
# ## What it costs, and when to use it
#
# - **Bytes.** Each boundary between two stages is crossed by $B \cdot T \cdot D$ numbers each way, for the whole
#   batch, however many weights the stages have. That can be more than data parallelism sends: a model of 7 billion
#   weights in 8 copies of 8 stages, 2,048 sequences of 2,048 tokens per step, in 16 bits, sends 8.6 GB through each
#   boundary and back, and sums 3.3 GB of gradients. What counts is what waits. A stage's message travels while its
#   ranks work on another micro-batch; the sum of the gradients comes at the end of the step, and tensor parallelism
#   waits for the stream several times *in each layer*.
# - **Time.** The bubble. It is small with many micro-batches: $m \ge 4p$ for GPipe and 1F1B gives less than 20 %. But
#   the batch cannot grow without limit, and micro-batches that are too small do not fill a GPU.
# - **Memory.** Weights, gradients and optimizer state are divided among the stages. Activations are not: rank 0 of a
#   1F1B pipeline keeps $p$ micro-batches in $1/p$ of the layers, as much as one device keeps for one micro-batch in all
#   layers. GPipe keeps $m/p$ times as much.
# - **Balance.** All ranks wait for the slowest stage. In a small model, the head with its large vocabulary is worth a
#   separate stage. And a weight that two stages use, such as a tied head, would need its gradients summed over both.
#
# Use a pipeline **when** the model does not fit a node and the network between nodes is slow: tensor parallelism
# within a node, pipelines across nodes, data parallelism over everything. **Do not** use it when the model fits with
# FSDP and the network is fast enough: FSDP is simpler and has no bubble. It is not for small batches either, such as
# answering one request, or for layers, or samples, with very different costs.
#
# | schedule | when |
# |---|---|
# | GPipe | to understand it, or when each micro-batch is recomputed anyway |
# | 1F1B | the default: the same time, less memory |
# | interleaved | few micro-batches, many layers, and a network fast enough for $v$ times the messages |
# | zero bubble | the same, without more messages; keeps the activations until W |

# %% [markdown]
# ## In the script
#
# `pipeline_training` trains the course's model with `torch.distributed.pipelining`. You have built what it does:
#
# | in `pipeline_training` | here |
# |---|---|
# | `--pp N`; the other ranks are data-parallel | `world`: all ranks are one pipeline |
# | `cut`: every stage has a block | `cut` |
# | `PipelineStage(module, index, number, device)` | `Stage`, and the stage's number |
# | `--schedule gpipe`, `1f1b`, `interleaved`, `zero-bubble` | `gpipe`, `one_f_one_b`, `interleaved`, `zero_bubble`. torch's first two, `ScheduleGPipe` and `Schedule1F1B`, are loops written by hand; `ScheduleInterleaved1F1B` and `ScheduleInterleavedZeroBubble` are lists of actions for each rank, as here. The last is not H1 but an interleaved schedule that also postpones W |
# | `--microbatches M` | m |
# | `schedule.step(*inputs, target=y, losses=…)` on all ranks: the first stage takes x, the last one y | `execute` |
# | `loss_fn` is a sum of losses, and all gradients are divided once | `loss_of_batch` |
# | `schedule.eval(…)` | `evaluate` |
# | the loss is summed over all ranks | `on_all_ranks` |
#
# It adds the gradients' all-reduce over the data-parallel ranks, once a step and not in each micro-batch; a norm for
# clipping that is summed over all stages; and one checkpoint that the serial script can load.

# %% [markdown]
# ## In five lines
#
# - Stages divide the weights, not the activations; they are cut by cost, because all wait for the slowest.
# - The bubble is $(p-1)/(m+p-1)$ of the time for GPipe and 1F1B: more micro-batches make it smaller.
# - 1F1B keeps $p-r$ micro-batches on rank $r$ where GPipe keeps $m$, in the same time.
# - Interleaved divides the bubble by $v$ and multiplies the messages by $v$; zero bubble fills it with W.
# - One order of all messages, known to all ranks, and no reliance on buffers: so a schedule cannot deadlock.
#
# *Papers.* GPipe: [arXiv:1811.06965](https://arxiv.org/abs/1811.06965). 1F1B: PipeDream,
# [arXiv:1806.03377](https://arxiv.org/abs/1806.03377), and with one version of the weights, as here,
# [arXiv:2006.09503](https://arxiv.org/abs/2006.09503). Interleaved: Megatron-LM,
# [arXiv:2104.04473](https://arxiv.org/abs/2104.04473). Zero bubble:
# [arXiv:2401.10241](https://arxiv.org/abs/2401.10241). Both directions at once, in a run of 671 billion parameters:
# DeepSeek-V3, [arXiv:2412.19437](https://arxiv.org/abs/2412.19437).
#
# Next: `pipeline_training`.
