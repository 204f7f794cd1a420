# %% [markdown]
# # Pipeline parallelism: each rank has some of the layers
#
# Data parallelism gives each rank all layers and a part of the batch. Pipeline parallelism gives each rank some of the
# layers, a **stage**, and the whole batch goes through all stages. Only activations, and their gradients, go from one
# rank to the next: no weights, no gradients of weights, and no collective. No other scheme sends so little, and so
# large runs put pipelines across slow networks.
#
# The price is waiting. A stage can begin only when the stage before it is done, and until then it is idle: the
# **bubble**. In this lesson you cut a model into stages, run it, and build the four classical schedules that keep the
# bubble small.
#
# ![A model cut into four stages; activations go forward, gradients come back](../images/pipeline_stages.png)

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
from utils import plots_pipeline
from utils.data import IGNORE
from utils.memory import Storages
from utils.model import TransformerLM

# %% [markdown]
# ## Cut by cost
#
# The course's model is a chain of **pieces**: the embeddings (piece 0), the blocks (pieces 1 to $L$), and the last
# norm with the head (piece $L+1$). A stage is some pieces in a row.
#
# A pipeline is as fast as its slowest stage: all others wait for it. So cut by what the pieces *cost*, not by how many
# there are. A product of an $n \times k$ matrix with a $k \times m$ matrix takes $2nkm$ operations. Count the products
# of a forward pass, for one token:
#
# - a block has the weights $q$, $k$, $v$ and $out$, each $D \times D$, and two of the MLP, $D \times 4D$ and $4D
#   \times D$. Its attention compares the token with all $T$ tokens, and then adds up the values of all $T$: twice
#   $2TD$ operations. (A kernel that leaves out what is masked saves up to half of that.)
# - the head has one weight, $D \times V$.
# - all else, embeddings and norms included, counts as nothing.
#
# The backward pass takes twice as much of everything, so it changes nothing about where to cut.
#
# **Predict** which piece of a small model is the most expensive: 4 blocks, $D = 64$, $T = 64$, $V = 2000$.
#
# Then build a stage. It has its own pieces and *no other weights*: that is why it needs less memory. Keep the names
# that parameters have in the whole model, so that the stages' state dictionaries together are a checkpoint of the
# model: an `nn.ModuleDict` names its entries as an `nn.ModuleList` does, and may leave some out. (Here each rank
# builds the whole model first and keeps its part, so that the first weights are the serial run's. A model that is too
# large for that is built on the meta device.)


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
    # TODO 1, again: cut. Every piece is in one stage, and every stage has at least one piece. There are few
    # ways to cut a model (for 20 pieces and 6 stages 11,628), so you may try them all:
    # `combinations(range(1, n), k)` has all ways to choose k places out of n - 1, and `pairwise` goes through
    # neighbours.
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
    """Some pieces of a model, with their weights and with the names that these have in the model."""

    def __init__(self, model: TransformerLM, pieces: Sequence[int]) -> None:
        super().__init__()
        # TODO 1, again: keep what belongs to these pieces, and nothing else of the model.
        # (Piece 0 ends with `model.dropout`.)
        ### BEGIN SOLUTION
        last = len(model.blocks) + 1
        if 0 in pieces:
            self.token_embedding, self.position_embedding = model.token_embedding, model.position_embedding
            self.dropout = model.dropout
        self.blocks = nn.ModuleDict({str(n - 1): model.blocks[n - 1] for n in pieces if 0 < n < last})
        if last in pieces:
            self.norm, self.head = model.norm, model.head
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """From tokens (B, T), or the stream (B, T, D), to the stream, or in the last stage the logits (B, T, V)."""
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
    """Seconds that forward and backward pass of each stage take here: the best of five tries."""
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
# The plainest way to use several devices: the batch goes through all stages, and its gradients come back. It is what
# `model.part1.to(0)`, `model.part2.to(1)` does. It makes room for a larger model, but no speed, as you will see.
#
# A rank receives the stream from the rank before it. What has arrived is a fresh tensor of which autograd knows
# nothing, so `x.requires_grad_()` asks for its gradient: that is what must be sent back. And what comes back from the
# next rank is not a loss but a gradient.
#
# | call | meaning |
# |---|---|
# | `torch.empty_like(tensor)` | room for a tensor of this shape and dtype |
# | `dist.send(tensor, rank)`, `dist.recv(tensor, rank)` | a message; it is over when the call comes back |
# | `tensor.detach()` | the same numbers without their history: what is sent needs none |
# | `output.backward(gradient)` | the backward pass from a tensor that is no loss, given the loss's gradient for it |
#
# From now on the stages may be any modules: the first one takes the batch's inputs, each gives something of the shape
# and dtype of `like` to the next one, and `loss_of(output, y)` makes the loss of what the last one gives.


# %% nbgrader={"grade": false, "grade_id": "todo_2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def naive_step(
    stage: nn.Module, x: Tensor, y: Tensor, like: Tensor, loss_of: Callable, rank: int, world: int
) -> Tensor | None:
    """Forward and backward pass of the whole batch through the stages of all ranks.

    This stage's parameters get their ``grad``.

    Args:
        x: the batch's inputs, of use on the first rank only.
        y: its targets, of use on the last rank only.
        like: of the shape and dtype of what goes from a stage to the next one. What is in it is rubbish.

    Returns:
        The loss, without history, on the last rank; None elsewhere.
    """
    # TODO 2: Send activations forward and gradients back, one stage at a time.
    # With one rank alone, nothing is sent. The first rank has nobody to send a gradient to.
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
# Who worked when? To see a bubble, each rank needs a processor of its own, and your machine may have fewer than four.
# So the stages of the next cells do not compute: their work is to *wait*, a known time for the forward pass (F), for
# the gradient of the input (I) and for those of the weights (W). Any number of processes can wait side by side, so
# what you see is the bubble that four devices would have. All else is real: autograd, messages, your code.

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

    F is waited for in the forward pass, I between the two layers in the backward pass, W where the second weight gets
    its gradient.
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
plots_pipeline.timelines({"one stage at a time": run.results})

# %% [markdown]
# At each moment one rank works. Four devices are as fast as one.
#
# ## Micro-batches
#
# So cut the batch: while rank 1 works on one **micro-batch**, rank 0 can work on the next one. The law of this course
# holds: loss and gradients are those of the whole batch. Gradients of several backward passes add up by themselves, so
# the micro-batches' losses must *add up to* the loss. So they are not means: the loss is the mean over all targets of
# the batch, and one micro-batch may have more targets equal to `IGNORE` than another.
#
# And all micro-batches must have one shape, since a rank makes room for what it receives before it knows what comes.
# Where $m$ does not divide the batch, fill it up with rows that count nothing.
#
# | call | meaning |
# |---|---|
# | `tensor.new_full((rows, columns), value)` | a tensor of the same dtype, filled with a value |
# | `torch.cat([a, b])`, `tensor.split(rows)` | rows joined, and cut into pieces of so many rows |
# | `F.cross_entropy(logits_NV, y_N, ignore_index=IGNORE, reduction="sum")` | the sum over the targets that count, not their mean |


# %% nbgrader={"grade": false, "grade_id": "todo_3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def split(x: Tensor, y: Tensor, m: int) -> tuple[list[Tensor], list[Tensor]]:
    """A batch, tokens (B, T) and targets (B, T), as m micro-batches of ceil(B / m) rows each, in order.

    Rows that are missing in the last ones are token 0 and target IGNORE.
    """
    # TODO 3: Cut the batch into micro-batches whose losses add up to its loss. First, cut inputs and targets.
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

    # TODO 3, again: the shares add up to the mean over all targets of the batch that count. Where none counts, to 0.
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
    # TODO 3, again: forward and backward pass of one micro-batch, then of the next one, so that only one is alive
    # at a time.
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
# Who does what, in which order? That is a **schedule**: for each rank a list of actions. An action is the forward pass
# (F) or backward pass (B) of one micro-batch. (A rank may have several **chunks** of the model, but that comes later;
# so do I and W.)


# %%
class Action(NamedTuple):
    kind: str  # "F" forward, "B" backward; or B in two parts: "I" for the input's gradient, and "W" for the weights'
    microbatch: int  # from 0
    chunk: int = 0  # of this rank's chunks: chunk c of rank r is stage c * world + r

    def __repr__(self) -> str:
        return f"{self.kind}{self.microbatch}" + (f"/{self.chunk}" if self.chunk else "")


Schedule = list[list[Action]]  # for each rank what it does, in order


def stage_of(action: Action, rank: int, world: int) -> int:
    return action.chunk * world + rank


# %% [markdown]
# The simplest schedule with micro-batches is **GPipe** ([arXiv:1811.06965](https://arxiv.org/abs/1811.06965)): all
# forward passes, then all backward passes.
#
# ![GPipe and 1F1B on four ranks with eight micro-batches](../images/pipeline_schedules.png)
#
# A schedule says in which order a rank works, not when. A rank begins an action when it is done with the one before
# and when what the action needs is there. That is enough to compute all times, without running anything. What does an
# action need?
#
# | action of stage $s$ | needs |
# |---|---|
# | F | the F of the same micro-batch on stage $s-1$; on stage 0 nothing |
# | B or I | the B or I of the same micro-batch on stage $s+1$; on the last stage its own F, that is, the loss |
# | W | the I of the same micro-batch on the same stage |
#
# If a schedule is wrong, ranks may wait for each other for ever. The simulator sees it: none can go on, and some are
# not done.


# %% nbgrader={"grade": false, "grade_id": "todo_4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def gpipe(world: int, m: int) -> Schedule:
    """All forward passes of the m micro-batches, then all backward passes."""
    # TODO 4: Write the first schedule, and say when each action begins and ends. First, GPipe.
    ### BEGIN SOLUTION
    forward = [Action("F", j) for j in range(m)]
    backward = [Action("B", j) for j in range(m)]
    return [forward + backward for _ in range(world)]
    ### END SOLUTION


def simulate(schedule: Schedule, seconds: dict[str, float]) -> list[list[tuple[float, float]]]:
    """When each action of each rank begins and ends; the first one begins at 0. Messages take no time.

    Args:
        seconds: what an action of each kind takes.

    Raises:
        ValueError: some ranks would wait for ever; the text names the first of them, and the action that it cannot begin.
    """
    # TODO 4, again: the times. Go round the ranks and let each do what it can, until none can do any more.
    # The last stage is the largest number that occurs in the schedule.
    ### BEGIN SOLUTION
    world = len(schedule)
    last = max((stage_of(a, rank, world) for rank, actions in enumerate(schedule) for a in actions), default=0)
    ends: dict[tuple[str, int, int], float] = {}  # (forward or backward, micro-batch, stage) -> when it was there
    times: list[list[tuple[float, float]]] = [[] for _ in schedule]

    def needed(action: Action, stage: int) -> tuple[str, int, int] | None:
        if action.kind == "F":
            return ("forward", action.microbatch, stage - 1) if stage else None
        if action.kind == "W":
            return ("backward", action.microbatch, stage)
        return ("forward", action.microbatch, stage) if stage == last else ("backward", action.microbatch, stage + 1)

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
                begin = max(free, ends.get(need, 0.0))
                times[rank].append((begin, begin + seconds[action.kind]))
                if action.kind != "W":
                    ends["forward" if action.kind == "F" else "backward", action.microbatch, stage] = times[rank][-1][1]
                moved = True
    for rank, actions in enumerate(schedule):
        if len(times[rank]) < len(actions):
            raise ValueError(f"rank {rank} waits for ever for what {actions[len(times[rank])]} needs")
    return times
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_4", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("05_pipeline_parallel/4")


# %%
def predicted(schedule: Schedule) -> list[list[Note]]:
    """The simulator's timeline. A rank's chunks share its time."""
    chunks = 1 + max(action.chunk for actions in schedule for action in actions)
    times = simulate(schedule, {kind: seconds / chunks for kind, seconds in SECONDS.items()})
    return [
        [(*action, *span) for action, span in zip(*rank, strict=True)] for rank in zip(schedule, times, strict=True)
    ]


# %%
plots_pipeline.timelines(
    {"GPipe, 2 micro-batches": predicted(gpipe(4, 2)), "GPipe, 8 micro-batches": predicted(gpipe(4, 8))}
)

# %% [markdown]
# The **bubble** is the share of the ranks' time in which they wait. It shrinks as the number of micro-batches grows.
#
# ## Execute any schedule
#
# To walk through a list of actions is easy. The messages are the difficult part:
#
# - *No buffers.* A send may last until its receive is posted: gloo stores nothing on the way, and NCCL does not
#   promise to. In the picture above, rank 0 sends an activation to rank 1 while rank 1 sends a gradient to rank 0. If
#   both call `dist.send` first, both wait for ever.
# - *The same order at both ends.* Messages between two ranks arrive in the order in which they were sent, but a rank
#   may use them in another one.
# - *Nothing in flight.* Whoever returns before a message is over has not finished.
#
# One idea solves the first two problems: all ranks agree on one order of all messages, and each rank posts its ends
# of them, `isend` and `irecv`, in that order. Where does the order come from? From the schedule, which all ranks know.
# Let each action take one **tick** of an imagined clock: `in_ticks` says who does what in which tick. In each tick a
# rank does its own action, if it has one, and *then* posts its ends of what the actions of that tick send, by the
# number of the sender. A rank waits for what it receives only when it needs it. The one order
# keeps ranks from waiting in a circle, whatever is stored on the way. To wait for each send at once would be right,
# too, but slow: the sender would stand still until its neighbour reaches that tick. So it waits for its sends at the
# very end. And a schedule that is wrong stops in the simulator, before anything runs.
#
# (The check asks that all messages get through where none is stored on the way, and that each is taken for what it is.
# How you see to that is up to you.)


# %%
class Batch(NamedTuple):
    """A batch for a pipeline."""

    xs: list[Tensor]  # inputs, by micro-batch; of use on the rank of the first stage only
    ys: list[Tensor]  # targets, by micro-batch; of use on the rank of the last stage only
    like: Tensor  # of the shape and dtype of what a stage gives to the next one
    loss_of: Callable[
        [Tensor, Tensor], Tensor
    ]  # of what the last stage gives, and targets: the micro-batch's share of the loss


class Passed:
    """A micro-batch that has gone forward through a stage: what its backward pass starts from.

    ``layers`` has the modules on the way that have weights of their own, and what each gave. (TODO 8 will need it.)
    """

    def __init__(self, stage: nn.Module, x: Tensor) -> None:
        self.input, self.layers = x, []
        own_weights = [layer for layer in stage.modules() if any(True for _ in layer.parameters(recurse=False))]
        hooks = [layer.register_forward_hook(self.note) for layer in own_weights]
        self.output = stage(x)
        for hook in hooks:
            hook.remove()

    def note(self, layer: nn.Module, args: tuple, output: Tensor) -> None:
        self.layers.append((layer, output))


def in_ticks(schedule: Schedule) -> list[dict[int, Action]]:
    """For each tick the actions of the ranks that do something in it: rank -> action, by rank."""
    begins = [[int(begin) for begin, _ in times] for times in simulate(schedule, dict.fromkeys("FBIW", 1))]
    ticks: list[dict[int, Action]] = [
        {} for _ in range(1 + max((max(mine, default=-1) for mine in begins), default=-1))
    ]
    for rank, (actions, mine) in enumerate(zip(schedule, begins, strict=True)):
        for action, begin in zip(actions, mine, strict=True):
            ticks[begin][rank] = action
    return ticks


# %% [markdown]
# `dist.isend(tensor, rank)` and `dist.irecv(tensor, rank)` return a *work* at once, and `work.wait()` comes back when
# the message is over. Until then the tensor belongs to the message. (Tags would be another way to tell messages apart,
# which gloo has, but NCCL has not.)


# %% nbgrader={"grade": false, "grade_id": "todo_5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def goes_to(action: Action, source: int, world: int, stages: int) -> tuple[int, int] | None:
    """The stage that needs what an action of rank ``source`` makes, and the rank of that stage; None if no stage does.

    There are ``stages`` stages in all.
    """
    # TODO 5: Execute any schedule, with messages that rely on no buffer. First, where do results go?
    # The result of F goes to the next stage, that of B or I to the stage before, that of W to nobody. The last
    # stage has no next one, and the first stage none before it.
    ### BEGIN SOLUTION
    step = {"F": 1, "B": -1, "I": -1, "W": 0}[action.kind]
    stage = stage_of(action, source, world) + step
    return (stage, stage % world) if step and 0 <= stage < stages else None
    ### END SOLUTION


def backward(passed: Passed, gradient: Tensor | None) -> Tensor | None:
    """The whole backward pass of a micro-batch through one stage; weights' gradients are added to their ``grad``.

    Args:
        gradient: the loss's for ``passed.output``; None where that is the loss itself.

    Returns:
        The gradient for ``passed.input``; None where that needs none, as on the first stage.
    """
    # TODO 5, again: the backward pass. `tensor.backward(None)` is `tensor.backward()`.
    ### BEGIN SOLUTION
    passed.output.backward(gradient)
    return passed.input.grad
    ### END SOLUTION


def execute(schedule: Schedule, chunks: Sequence[nn.Module], batch: Batch, rank: int, world: int) -> list[Tensor]:
    """Do this rank's part of a schedule: of the chunks' weights, gradients are added to ``grad``.

    Args:
        chunks: this rank's stages; chunk c is stage c * world + rank. All ranks have equally many.

    Returns:
        On the rank of the last stage the losses by micro-batch, without history; elsewhere an empty list.

    Raises:
        ValueError: before anything is sent, if the ranks would wait for ever.
    """
    # TODO 5, again: the actions and the messages. For B call `backward`, for I `backward_input` with the same
    # arguments, for W `backward_weights(passed)` (TODO 8 writes these two). For each micro-batch, one message crosses
    # each boundary between two stages forward, and one back; between two chunks on the same rank, nothing is sent.
    # Free what is not needed any more: of a micro-batch nothing stays after its backward pass, and where autograd is
    # off (`output.requires_grad` is False) nothing is kept at all.
    ### BEGIN SOLUTION
    stages = len(chunks) * world
    passed: dict[tuple[int, int], Passed] = {}  # (micro-batch, stage) -> what its backward pass needs
    arriving: dict[tuple[bool, int, int], tuple[Tensor, dist.Work | None]] = {}  # (forward?, micro-batch, stage)
    sending: deque[dist.Work] = deque()
    losses: dict[int, Tensor] = {}

    def take(key: tuple[bool, int, int]) -> Tensor:
        tensor, work = arriving.pop(key)
        if work:
            work.wait()
        return tensor

    def forward(j: int, stage: int) -> Tensor:
        x = batch.xs[j] if stage == 0 else take((True, j, stage)).requires_grad_(torch.is_grad_enabled())
        result = Passed(chunks[stage // world], x)
        if stage == stages - 1:
            result.output = batch.loss_of(result.output, batch.ys[j])
            losses[j] = result.output.detach()
        if result.output.requires_grad:
            passed[j, stage] = result
        return result.output.detach()

    def act(action: Action) -> Tensor | None:
        j, stage = action.microbatch, stage_of(action, rank, world)
        if action.kind == "F":
            return forward(j, stage)
        if action.kind == "W":
            return backward_weights(passed.pop((j, stage)))
        gradient = None if stage == stages - 1 else take((False, j, stage))
        if action.kind == "I":
            return backward_input(passed[j, stage], gradient)
        return backward(passed.pop((j, stage)), gradient)

    for tick in in_ticks(schedule):
        leaving = act(tick[rank]) if rank in tick else None
        for source, action in tick.items():
            stage, target = goes_to(action, source, world, stages) or (None, None)
            key = action.kind == "F", action.microbatch, stage
            if source == target == rank:
                arriving[key] = leaving, None
            elif source == rank and target is not None:
                sending.append(dist.isend(leaving, target))
            elif target == rank:
                room = torch.empty_like(batch.like)
                arriving[key] = room, dist.irecv(room, source)
        while len(sending) > 2 * world:  # posted so many ticks ago that the other end is posted as well, or soon
            sending.popleft().wait()
    for work in sending:
        work.wait()
    return [losses[j] for j in sorted(losses)]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_5", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("05_pipeline_parallel/5")

# %% [markdown]
# Look at a real run, below what was predicted. The boxes have the numbers of the micro-batches; the bubble stands
# beside them.


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
    """The timeline of a real run on four ranks. Where B is one action, its two waits are drawn as one."""
    run = run_on_ranks("05_pipeline_parallel/wait_by_schedule", [name] * 4, timed=True)
    whole = any(action.kind == "B" for action in schedule_of(name, 4, 8)[0])
    return plots_pipeline.with_whole_backwards(run.results) if whole else run.results


# %%
plots_pipeline.timelines({"GPipe, predicted": predicted(gpipe(4, 8)), "GPipe, measured": measured("GPipe")})

# %% [markdown]
# ## 1F1B
#
# With GPipe, a rank keeps the activations of all $m$ micro-batches until the backward passes begin: more micro-batches
# mean a smaller bubble, but more memory. **1F1B** (one forward, one backward) starts each backward pass as early as it
# can: rank $r$ begins with one forward pass for each rank *after* it, and then does one forward and one backward pass in
# turns, until there are no more forward passes; the rest are backward passes.
#
# **Predict** how many micro-batches are alive at most on rank $r$ of $p$, that is, gone forward and not yet back.


# %% nbgrader={"grade": false, "grade_id": "todo_6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def one_f_one_b(world: int, m: int) -> Schedule:
    """1F1B: as fast as GPipe; at most min(m, world - r) micro-batches are alive on rank r."""
    # TODO 6: Run one forward, one backward. It must also be right for fewer micro-batches than ranks.
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


# %% nbgrader={"grade": true, "grade_id": "test_6", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("05_pipeline_parallel/6")

# %%
plots_pipeline.timelines({"1F1B, predicted": predicted(one_f_one_b(4, 8)), "1F1B, measured": measured("1F1B")})

# %% [markdown]
# The bubble is that of GPipe. What has changed is the memory. Here it is in bytes, for stages of the language model:
# those of all tensors that autograd keeps at once for the backward pass, at the worst moment.


# %%
def peak_bytes(name: str, rank: int, world: int) -> dict[str, float]:
    """Bytes of activations that autograd keeps on this rank: at most, and of one micro-batch."""
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
            alive["most"] = max(alive["most"], sum(kept.live().values()))
            if len(passes) == 1:
                alive["one"] = alive["most"]
        return tensor.detach()  # itself would refer to the graph that keeps it

    stage.register_forward_pre_hook(lambda *_: passes.append("forward"))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        execute(schedule_of(name, world, m), [stage], batch, rank, world)
    return alive


def make_batch(x: Tensor, y: Tensor, m: int) -> Batch:
    """A batch of tokens and targets for a pipeline of the small model."""
    xs, ys = split(x, y, m)
    return Batch(xs, ys, torch.empty(*xs[0].shape, MODEL["dim"]), loss_of_batch(y))


# %%
peaks = {name: run_on_ranks("05_pipeline_parallel/peak_bytes", [name] * 4).results for name in ("GPipe", "1F1B")}
plots_pipeline.alive(peaks, {"GPipe": [8] * 4, "1F1B": [min(8, 4 - rank) for rank in range(4)]})

# %% [markdown]
# ## Interleaved
#
# In the bubble a rank waits for the first micro-batch to come down the pipeline. It comes earlier if the stages are
# smaller. So give each rank $v$ chunks ([arXiv:2104.04473](https://arxiv.org/abs/2104.04473)): with $p$ ranks the
# model is cut into $vp$ stages, and chunk $c$ of rank $r$ is stage $cp + r$. A micro-batch goes round all ranks $v$
# times. The bubble is $v$ times smaller, and messages are $v$ times more.
#
# The order of a rank's forward passes: the first $p$ micro-batches through chunk 0, the same $p$ through chunk 1, and
# so on through all chunks; then the next $p$ micro-batches likewise. So $m$ must be a multiple of $p$. Backward passes
# come in the same order of micro-batches, but from the last chunk to the first.
#
# ![Interleaved, and zero bubble, on four ranks with eight micro-batches](../images/pipeline_late_schedules.png)
#
# Again a rank begins with some forward passes, then does one forward and one backward pass in turns, and ends with
# backward passes. How many are the first ones? For the last rank, just those that come before its first *last chunk*:
# $(v-1)p$. For each rank before that, two more: the way down to the last rank is one longer, and so is the way back.
# (In the simulator one more for each is enough, and keeps less: its messages take no time. Real ones do, and the
# second one hides it.)


# %% nbgrader={"grade": false, "grade_id": "todo_7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def interleaved(world: int, m: int, v: int) -> Schedule:
    """1F1B with v chunks on each rank.

    On rank r, at most min(m v, 2 (world - 1 - r) + (v - 1) world + 1) passes are alive: a pass is one micro-batch in
    one chunk.

    Raises:
        ValueError: m is no multiple of ``world``.
    """
    # TODO 7: Interleave chunks. (With v = 1 it is another way to write a 1F1B.)
    ### BEGIN SOLUTION
    if m % world:
        raise ValueError(f"{m} micro-batches are no multiple of {world} ranks")
    order = [(first + j, chunk) for first in range(0, m, world) for chunk in range(v) for j in range(world)]
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


# %% nbgrader={"grade": true, "grade_id": "test_7", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("05_pipeline_parallel/7")

# %%
plots_pipeline.timelines(
    {"interleaved, predicted": predicted(interleaved(4, 8, 2)), "interleaved, measured": measured("interleaved")}
)

# %% [markdown]
# Two shades are the two chunks. The waits of a chunk are half as long as those of a stage before, since it has half as
# many layers.
#
# ## Zero bubble
#
# A backward pass makes two kinds of gradients. That of the *input* is what the rank before waits for. Those of the
# *weights* nobody waits for until the optimizer's step. So do them apart
# ([arXiv:2401.10241](https://arxiv.org/abs/2401.10241)): I as early as possible, and W where the rank would idle.
#
# Autograd can do either, without any new kernel:
#
# | call | meaning |
# |---|---|
# | `torch.autograd.grad(output, tensors, gradient)` | the gradients for these tensors only, as a tuple. No `grad` is set, and what these do not need is not computed |
# | `…, retain_graph=True` | what autograd keeps for the backward pass stays, so that there can be another one |
#
# There is one trap. `grad(output, weights)` for W would go through the whole stage once more, from behind, and compute
# all the gradients between the layers *again*: together, I and W would take half as long again as B. So in I, ask for
# the gradients of *all layers' outputs*, too, and keep them; `passed.layers` has the layers and their outputs. In W,
# each layer goes from its own output to its own weights. No gradient is computed twice. (It
# takes each weight to be used once on the way: one used twice would be reached through the other use as well.)
#
# The schedule: **H1** of the paper. The forward passes and I are in the order of 1F1B, with I for B. Rank $r$ lets its
# first $r$ W wait: from its I of micro-batch $r$ on, each I is followed by the oldest W that is left; what is left in
# the end comes last. So the ranks at the end, who begin late, fill their bubble with W's. On each rank at most $p$
# micro-batches are alive, counted until their W: no more than what 1F1B needs on rank 0. (What is kept from I to W are
# also the gradients of the layers' outputs.)


# %% nbgrader={"grade": false, "grade_id": "todo_8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def backward_input(passed: Passed, gradient: Tensor | None) -> Tensor | None:
    """The first part of a backward pass: returns the gradient for ``passed.input``, or None where that needs none.

    ``gradient`` is as for `backward`. No ``grad`` is changed. Keep in attributes of ``passed`` what `backward_weights`
    will need.
    """
    # TODO 8: Take the backward pass apart, and fill the bubble with the weights' part. First, the input's part.
    # If all before it is frozen, a layer's output needs no gradient, and autograd will not be asked for one.
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
    # TODO 8, again: the weights' part. A ``grad`` may be None yet. Frozen weights (`requires_grad` is False) get none.
    ### BEGIN SOLUTION
    for (layer, output), gradient in zip(passed.layers, passed.gradients, strict=True):
        weights = [weight for weight in layer.parameters(recurse=False) if weight.requires_grad]
        if not weights:
            continue
        for weight, found in zip(
            weights, torch.autograd.grad(output, weights, gradient, retain_graph=True), strict=True
        ):
            weight.grad = found if weight.grad is None else weight.grad + found
    ### END SOLUTION


def zero_bubble(world: int, m: int) -> Schedule:
    """Schedule H1: at most min(m, world) micro-batches are alive on a rank, counted until their W."""
    # TODO 8, again: the schedule.
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


# %% nbgrader={"grade": true, "grade_id": "test_8", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("05_pipeline_parallel/8")

# %%
plots_pipeline.timelines(
    {"zero bubble, predicted": predicted(zero_bubble(4, 8)), "zero bubble, measured": measured("zero bubble")}
)

# %% [markdown]
# ## Predict
#
# You have seen four schedules, in pictures. To choose one you want formulas. Let the layers of one rank, all its
# chunks together, take $F$ seconds for the forward pass of a micro-batch, $I$ for the gradients between the layers and
# of the input, $W$ for the weights'. Working, a rank takes $m(F+I+W)$, whatever the schedule. What comes on top is the
# bubble. Look at rank 0 in the pictures: what does it wait for?
#
# - GPipe, 1F1B: until the first micro-batch is back, it waits for $p-1$ other ranks' forward and backward passes.
# - Interleaved: these are of chunks, $v$ times smaller.
# - Zero bubble H1: nobody waits for W, and each rank fills a part of its bubble with the W's that it has left. What
#   remains is $(p-1)(F+I-W)$. (For $m \ge p$ and $W \le I$. The paper's H2 has $(p-1)(F+I-2W)$, with up to $2p-1$
#   micro-batches alive.)
#
# **Predict** the time of a step, its bubble as a share of that time, and how much memory a rank needs for activations,
# as a multiple of what one micro-batch leaves in all its layers.


# %% nbgrader={"grade": false, "grade_id": "todo_9", "locked": false, "schema_version": 3, "solution": true, "task": false}
def step_seconds(name: str, p: int, m: int, v: int, f: float, i: float, w: float) -> float:
    """Seconds of a step by "GPipe", "1F1B", "interleaved" or "zero bubble".

    v is the number of chunks on a rank; only "interleaved" has more than 1.
    """
    # TODO 9: Predict time, bubble and memory of each schedule. First, the time.
    ### BEGIN SOLUTION
    bubble = (p - 1) * (f + i - w if name == "zero bubble" else (f + i + w) / v)
    return m * (f + i + w) + bubble
    ### END SOLUTION


def bubble_share(name: str, p: int, m: int, v: int, f: float, i: float, w: float) -> float:
    """The share of the ranks' time in which they wait, from 0 to 1."""
    # TODO 9, again: the bubble.
    ### BEGIN SOLUTION
    return 1 - m * (f + i + w) / step_seconds(name, p, m, v, f, i, w)
    ### END SOLUTION


def most_alive(name: str, p: int, m: int, v: int, rank: int) -> float:
    """Activations that a rank keeps at most, as a multiple of those of one micro-batch in all layers of the rank."""
    # TODO 9, again: the memory. The docstrings of your schedules say how many passes are alive, and a pass in one of v
    # chunks is 1 / v of a micro-batch.
    ### BEGIN SOLUTION
    if name == "interleaved":
        return min(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1) / v
    return {"GPipe": m, "1F1B": min(m, p - rank), "zero bubble": min(m, p)}[name]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_9", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("05_pipeline_parallel/9")

# %%
for name in ("GPipe", "1F1B", "interleaved", "zero bubble"):
    v = 2 if name == "interleaved" else 1
    work = SECONDS["F"], SECONDS["I"], SECONDS["W"]
    share, ideal = bubble_share(name, 4, 8, v, *work), plots_pipeline.bubble(predicted(schedule_of(name, 4, 8)))
    print(
        f"{name:12} {step_seconds(name, 4, 8, v, *work):.2f} s, bubble {share:.1%} by the formula, "
        f"{ideal:.1%} by the simulator; rank 0 keeps {most_alive(name, 4, 8, v, 0):.1f} micro-batches"
    )

# %% [markdown]
# Play with it: 64 micro-batches, 16 ranks, a W that is shorter than I. Does a smaller bubble pay for $v$ times the
# messages? What becomes of the memory of rank 0?
#
# ## Evaluation, and the log
#
# Only the last rank knows the loss. But the log is written by rank 0, and the best checkpoint is chosen by all; so all
# need it. And an evaluation is a pipeline, too: of forward passes only, without autograd, which keeps nothing. Its
# mean is over all targets of all batches that count.
#
# | call | meaning |
# |---|---|
# | `dist.broadcast(tensor, rank)` | brings what this rank has in the tensor to all |
# | `module.train(mode)`, `module.training` | switches dropout and the like; which mode it is in |


# %% nbgrader={"grade": false, "grade_id": "todo_10", "locked": false, "schema_version": 3, "solution": true, "task": false}
def on_all_ranks(value: float | None, rank: int, world: int) -> float:
    """What the last rank has as ``value``, on all ranks, as exact as float64. On the others ``value`` is None."""
    # TODO 10: Evaluate through the pipeline, and tell all ranks the loss. First, from the last rank to all.
    ### BEGIN SOLUTION
    box = torch.tensor([value if rank == world - 1 else 0.0], dtype=torch.float64)
    dist.broadcast(box, world - 1)
    return box.item()
    ### END SOLUTION


def forward_only(world: int, m: int, v: int) -> Schedule:
    """The forward passes of m micro-batches through v chunks on each rank.

    Any order is right that does not get stuck, and in which no rank waits once it has begun, at least for m >= world.
    """
    # TODO 10, again: the schedule.
    ### BEGIN SOLUTION
    return [[Action("F", j, chunk) for chunk in range(v) for j in range(m)] for _ in range(world)]
    ### END SOLUTION


def evaluate(chunks: Sequence[nn.Module], batches: Sequence[Batch], rank: int, world: int) -> float:
    """The mean loss over all targets of all batches that are not IGNORE, on every rank. Each batch has at least one.

    Evaluated in eval mode, without autograd; afterwards each chunk is in the mode in which it was.
    """
    # TODO 10, again: evaluate. A batch's losses are shares of its own mean, and another batch may have more targets.
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


# %% nbgrader={"grade": true, "grade_id": "test_10", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("05_pipeline_parallel/10")

# %% [markdown]
# Now all of it together: the language model, trained by each schedule on the same batches as one process.


# %%
def batch_of(step: int, rows: int = 8) -> tuple[Tensor, Tensor]:
    """Tokens and targets; some targets count nothing."""
    draw = torch.Generator().manual_seed(step)
    x, y = torch.randint(MODEL["vocab_size"], (2, rows, 16), generator=draw)
    return x, torch.where(torch.rand(y.shape, generator=draw) < 0.3 * torch.rand(rows, 1, generator=draw), IGNORE, y)


def train(name: str, rank: int, world: int) -> list[float]:
    """Losses of five steps, and of an evaluation."""
    model, m = small_model(), 4
    v = 2 if name == "interleaved" else 1
    stages = cut(costs_of_pieces(4, MODEL["dim"], 16, MODEL["vocab_size"]), world * v)
    chunks = [Stage(model, stages[chunk * world + rank]) for chunk in range(v)]
    del model
    optimizer = torch.optim.SGD([p for chunk in chunks for p in chunk.parameters()], lr=0.5)
    losses = []
    for step in range(5):
        losses_here = execute(schedule_of(name, world, m), chunks, make_batch(*batch_of(step), m), rank, world)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(on_all_ranks(float(sum(losses_here)) if losses_here else None, rank, world))
    return [
        *losses,
        evaluate(chunks, [make_batch(*batch_of(100), m), make_batch(*batch_of(101, rows=3), m)], rank, world),
    ]


def train_alone(_: None, rank: int, world: int) -> list[float]:
    """The same in one process."""
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
alone = run_on_ranks("05_pipeline_parallel/train_alone", [None]).results[0]
print(f"{'one process':12}", *(f"{loss:.5f}" for loss in alone))
for name in ("GPipe", "1F1B", "interleaved", "zero bubble"):
    losses = run_on_ranks("05_pipeline_parallel/train", [name] * 2).results[0]
    print(f"{name:12}", *(f"{loss:.5f}" for loss in losses))

# %% [markdown]
# ## What it costs, and when to use it
#
# - **Bytes.** A boundary between two stages costs $B \cdot T \cdot D$ numbers each way, for the whole batch, however
#   many weights the stages have. Data-parallel training sends each gradient about twice, ZeRO-3 three times, tensor
#   parallelism several times the stream *in each layer*. And a message goes to one neighbour, at a time when others
#   compute.
# - **Time.** The bubble. It is small where micro-batches are many: $m \ge 4p$ for GPipe and 1F1B gives less than 20 %.
#   But the batch cannot grow for ever, and micro-batches that are too small do not fill a GPU.
# - **Memory.** Weights, gradients and optimizer state are shared out by stages. Activations are not: rank 0 of a 1F1B
#   pipeline keeps $p$ micro-batches of $1/p$ of the layers, as much as one device keeps of one micro-batch of all
#   layers. GPipe keeps $m/p$ times as much.
# - **Balance.** All wait for the slowest stage. In a small model, the head with its large vocabulary is worth a stage
#   of its own. And a weight that two stages use, such as a tied head, would need its gradients added up between them.
#
# Use a pipeline **when** the model does not fit a node and the network between nodes is slow: tensor parallelism
# within a node, pipelines over nodes, data parallelism over all that. **Do not** use it when the model fits with FSDP
# and the network can carry that, which is simpler and has no bubble; nor for small batches, such as answering one
# request; nor where layers cost very different amounts, or samples do.
#
# | schedule | when |
# |---|---|
# | GPipe | to understand it, or when each micro-batch is recomputed anyway |
# | 1F1B | the default: the same time, less memory |
# | interleaved | few micro-batches, many layers, and a network that carries $v$ times the messages |
# | zero bubble | the same, without more messages; keeps the activations until W |
#
# ## In the script
#
# `pipeline_training` trains the course's model with `torch.distributed.pipelining`. You have built what it does:
#
# | in `pipeline_training` | here |
# |---|---|
# | `--pp N`; the rest of the ranks are data-parallel | `world`: all ranks are one pipeline |
# | `PipelineStage(module, index, number, device)` | `Stage`, and the stage's number |
# | `--schedule gpipe`, `1f1b`, `interleaved`, `zero-bubble` | `gpipe`, `one_f_one_b`, `interleaved`, `zero_bubble`: in torch, too, lists of actions for each rank (`ScheduleGPipe`, `Schedule1F1B`, `ScheduleInterleaved1F1B`, `ScheduleInterleavedZeroBubble`) |
# | `--microbatches M` | m |
# | `schedule.step(x, target=y, losses=…)` on all ranks: the first stage uses x, the last one y | `execute` |
# | `loss_fn` is a sum over the global count, with `scale_grads=False` | `loss_of_batch`: torch would divide the gradients by m once more |
# | `schedule.eval(…)` | `evaluate` |
# | the loss is sent to all ranks | `on_all_ranks` |
#
# What it adds are the gradients' all-reduce over the data-parallel ranks, once a step and not in each micro-batch; a
# norm for clipping that is summed over all stages; and one checkpoint that the serial script can load.
#
# Next: `pipeline_training`.
