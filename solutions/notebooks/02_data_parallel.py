# %% [markdown]
# # Data parallel
#
# Every rank has the whole model and a part of each batch, its **share**. Each rank computes the
# gradients of its share; then the ranks average them, and all take the same step. That is
# `DistributedDataParallel`, **DDP** for short. Here you build it: first naively, then so
# that it communicates while it still computes, then with fewer and longer messages.
#
# *Builds on*: the all-reduce, its ring and its cost (`01_collectives`); why we train on several devices, strong and
# weak scaling (`00_one_device`).
#
# ![Three ranks with equal models and different samples: their gradients differ, the average is the whole batch's](../images/data_parallel.svg)
#
# [DDP, step by step](../images/ddp_steps.html) shows one step frame by frame (arrow keys, offline). On several nodes
# the same happens, but the ring that carries the gradients also crosses the network between the nodes:
#
# ![DDP on two nodes of four GPUs: a process, a whole model and four samples on each; the ring crosses nodes twice](../images/ddp_nodes.svg)
#
# One law holds for everything that you write: **the parallel run is the serial run.** At the end, the gradients
# on each rank are the gradients that one process would compute from all samples.

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import sys
from pathlib import Path

here = Path.cwd().resolve()
course = next(folder for folder in (here, *here.parents) if (folder / "grader").is_dir())
sys.path.insert(0, str(course))

from grader import check

# %%
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from grader import run_on_ranks
from utils.plots import data_parallel as plots
from utils.model import TransformerLM

# %% [markdown]
# ## What is averaged, and what it costs
#
# A loss is a mean over samples, and so is its gradient. Rank $r$ has $n_r$ samples, and the
# gradient of their mean loss is $g_r$. From these, **predict** the gradient of the mean over all
# samples. When is it simply the mean of the $g_r$?
#
# The gradients go through a ring all-reduce, as in lesson 01. **Predict** how many bytes each
# rank sends in a step, if gradients are float32 numbers. How does that change when you double
# the number of ranks? And when you double the batch?


# %% nbgrader={"grade": false, "grade_id": "todo_1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def whole_gradient(gradients: list[Tensor], samples: list[int]) -> Tensor:
    """The gradient of the mean loss over all samples, from each rank's gradient and number of samples.

    The gradients have one shape and dtype, which may be any; the result has the same.
    """
    # TODO 1: Predict the gradient of the whole batch, and how many bytes it costs. First the gradient.
    # The ranks may have unequal numbers of samples; one may have none. Leave `gradients` unchanged.
    ### BEGIN SOLUTION
    weighted = [gradient * count for gradient, count in zip(gradients, samples, strict=True)]
    return torch.stack(weighted).sum(dim=0) / sum(samples)
    ### END SOLUTION


def step_bytes(parameters: int, world: int) -> float:
    """How many bytes each rank sends in a step of data-parallel training with ring all-reduces."""
    # TODO 1, again: the bytes, for this number of trainable parameters, with gradients in float32.
    # Assume that they can be cut evenly: the result need not be a whole number.
    ### BEGIN SOLUTION
    return 2 * (world - 1) / world * 4 * parameters
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_1", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("02_data_parallel/1")

# %% [markdown]
# GPT-2 has 124 million parameters.

# %%
for world in (1, 2, 8, 1024):
    print(f"{world:5} ranks: each sends {plots.spoken_bytes(step_bytes(124_000_000, world))} per step")

# %% [markdown]
# ## Equal first weights
#
# Equal gradients keep models equal only if the models start equal. Ranks with different seeds or
# different checkpoints do not. So rank 0 broadcasts its own state once, before training:
#
# - the **parameters**, including the frozen ones: they are not trained, but they are used;
# - the **buffers**, which are state but not parameters, such as the running mean of a batch
#   norm. Not all of them are in `state_dict()`, and not all are floating-point numbers.
#
# This lesson needs only these calls of `torch.distributed`, imported as `dist`. In a notebook cell that runs on
# ranks, the ranks are already connected; a script calls `dist.init_process_group` first.
#
# | call | what it does |
# |---|---|
# | `dist.get_rank()`, `dist.get_world_size()` | this rank's number, and how many ranks there are |
# | `dist.broadcast(tensor, src=0)` | afterwards `tensor` holds, on every rank, what it held on rank 0; **in place** |
# | `dist.all_reduce(tensor)` | afterwards `tensor` holds, on every rank, the sum over all ranks; **in place** |
# | `dist.all_reduce(tensor, async_op=True)` | the same, but it returns at once, with a *work*; it is complete after `work.wait()` |
# | `dist.init_process_group(backend)` | in a script: connect to the other ranks, with gloo on CPUs and NCCL on GPUs |
#
# Autograd does not allow in-place writes to a parameter that requires a gradient: `parameter.detach()` is the same
# memory without autograd.
#
# Two layers may use one parameter: the input embedding and the head of a language model
# often do. Such a parameter is **tied**. It is one tensor and need not be sent twice. Also, other objects
# (such as the optimizer) already refer to the model's tensors: write into them, and do not replace them.


# %% nbgrader={"grade": false, "grade_id": "todo_2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def broadcast_state(model: nn.Module) -> None:
    """Give all ranks the parameters and buffers of rank 0, in place."""
    # TODO 2: Give every rank the state of rank 0.
    # Budget: each tensor is broadcast once, even a tied one.
    ### BEGIN SOLUTION
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_2", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("02_data_parallel/2")


# %%
def first_weights(_: None, rank: int, world: int) -> list[float]:
    """The sum of a model's weights before and after, on ranks with different seeds."""
    torch.manual_seed(rank)
    model = TransformerLM(vocab_size=100, dim=16, n_heads=2, n_layers=1, max_len=8)
    before = sum(p.sum().item() for p in model.parameters())
    broadcast_state(model)
    return [before, sum(p.sum().item() for p in model.parameters())]


# %%
run = run_on_ranks("02_data_parallel/first_weights", [None] * 3)
for rank, (before, after) in enumerate(run.results):
    print(f"rank {rank}: sum of the weights {before:+.3f} before, {after:+.3f} after")
print(f"rank 0 made {sum(call.rank == 0 for call in run.collectives)} calls")

# %% [markdown]
# ## Naive: all-reduce after the backward pass
#
# Let each rank finish its backward pass, and then average one gradient after the other. This is correct, and every
# framework's first version did it.
#
# It is less simple than it looks, since all ranks must make **the same calls in the same order**:
#
# - A frozen parameter gets no gradient, on any rank. It costs nothing, even if its `.grad` still holds the gradient of
#   a step before it was frozen.
# - A parameter may be unused in a pass on one rank only: an expert, for example, that none of this
#   rank's tokens chose. Then its `.grad` is `None` here, and a tensor elsewhere. This rank
#   must make the call as well; what does it contribute? And like all ranks, it takes the average.
#
# The usual way is to add up and to divide by the number of ranks. `ReduceOp.AVG` does both in one
# call. NCCL has long had it, and gloo averages correctly with torch 2.13 and 2.15; older releases refuse it
# on gloo, and some silently return the sum (pytorch issue 162338). So code that must run anywhere
# adds up and then divides. Dividing first is equally correct: it protects float16 from overflow,
# but small numbers may vanish.


# %% nbgrader={"grade": false, "grade_id": "todo_3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def average_gradients(model: nn.Module) -> None:
    """After the backward pass: leave in each parameter's ``grad`` the mean over all ranks."""
    # TODO 3: Average the gradients after the backward pass.
    # Budget: at most one all-reduce for each trainable parameter, even a tied one, and none for a
    # frozen one. All ranks have the same number of samples.
    ### BEGIN SOLUTION
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_3", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("02_data_parallel/3")

# %% [markdown]
# Look at one of your steps. The next cell takes a few steps of a small language model and records,
# in the last one, when each gradient was ready and when the backward pass was complete.

# %%
CAP = 1_000_000  # bytes in a bucket, for later


def watched_step(method: str, rank: int, world: int) -> dict:
    """Times in seconds of one step: its backward pass, each gradient,
    and the end of all communication.
    """
    torch.manual_seed(0)
    model = TransformerLM(vocab_size=1000, dim=128, n_heads=4, n_layers=4, max_len=64)
    ready = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: ready.append(time.monotonic()))
    x, y = torch.randint(1000, (2, 4, 64), generator=torch.Generator().manual_seed(rank))
    if method == "overlapped":
        finish = reduce_when_ready(model)
    elif method == "buckets":
        finish = Bucketed(model, CAP).finish
    elif method == "torch":
        model = with_torch(model, [(x, y)], CAP)
    for _ in range(4):  # the first steps connect the ranks, and allocate what later ones reuse
        model.zero_grad()
        loss = model(x, y)
        dist.barrier()
        ready.clear()
        began = time.monotonic()
        loss.backward()
        backward = time.monotonic()
        if method == "naive":
            average_gradients(model)
        elif method != "torch":
            finish()
        over = time.monotonic()
    return {"began": began, "ready": ready, "backward": backward, "over": over}


# %%
runs = {"naive": run_on_ranks("02_data_parallel/watched_step", ["naive"] * 2, timed=True)}
plots.steps(runs)

# %% [markdown]
# The grey bar is the backward pass of rank 0; a tick marks a gradient that is ready; each
# coloured bar is an all-reduce, from the call to the end of the wait for it. All of them come
# after the backward pass: while the rank computes, the network is idle, and while the network
# works, the rank waits.

# %% [markdown]
# ## Overlapped: all-reduce each gradient as soon as it is ready
#
# The backward pass goes through the layers from the last to the first, and the gradients of the last layer are ready
# long before the first layer's. They could already be in flight.
#
# ![Three timelines of a step: all communication after the backward pass, one message for each gradient, two buckets](../images/overlap.svg)
#
# Assume that the network does one all-reduce at a time, in the order in which they were
# started. (NCCL does so within a process group.)
# **Predict** when the last one is complete, if gradient $i$ is ready after $t_i$ seconds and
# its all-reduce takes $c_i$ seconds.
#
# PyTorch tells you when a gradient is ready, if you register a hook:
#
# | call | the hook is called |
# |---|---|
# | `parameter.register_hook(f)` | with the gradient of **this pass**, before it is added to `parameter.grad` |
# | `parameter.register_post_accumulate_grad_hook(f)` | with the parameter, after its `.grad` is complete |
#
# And `dist.all_reduce(tensor, async_op=True)` returns at once, with a *work*. Until
# `work.wait()` the tensor belongs to the all-reduce: neither read it nor write to it. A hook
# that waits would stop the backward pass. (With NCCL, the GPU's stream waits instead of the
# CPU, with the same effect.)


# %% nbgrader={"grade": false, "grade_id": "todo_4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def communication_ends(ready: list[float], seconds: list[float]) -> float:
    """When the last all-reduce ends: number i can start at ``ready[i]`` (ascending),
    and takes ``seconds[i]``.
    """
    # TODO 4: Overlap communication with the backward pass. First your prediction: when does it end?
    ### BEGIN SOLUTION
    end = 0.0
    for start, duration in zip(ready, seconds, strict=True):
        end = max(start, end) + duration
    return end
    ### END SOLUTION


def reduce_when_ready(model: nn.Module) -> Callable[[], None]:
    """Average each gradient as soon as it is ready, in every later backward pass.

    Returns the function to call after each backward pass: it leaves in each ``grad`` the mean over all
    ranks.
    """
    # TODO 4, again: the hooks, and the function that finishes. Average the content of `grad` after this
    # pass: an earlier backward pass may have left something there. Here all ranks use all
    # parameters. Budget: one all-reduce for each trainable parameter, started before the next
    # gradient is ready; no wait until the backward pass is complete.
    ### BEGIN SOLUTION
    started = []

    def start(parameter: nn.Parameter) -> None:
        started.append((dist.all_reduce(parameter.grad, async_op=True), parameter))

    def finish() -> None:
        for work, parameter in started:
            work.wait()
            parameter.grad /= dist.get_world_size()
        started.clear()

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(start)
    return finish
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_4", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("02_data_parallel/4")

# %%
runs["overlapped"] = run_on_ranks("02_data_parallel/watched_step", ["overlapped"] * 2, timed=True)
plots.steps(runs)

# %% [markdown]
# The all-reduces now start within the backward pass. (A bar ends when the wait for it ends, and the waits
# come after the backward pass: the all-reduce itself may be complete long before. Whether the step is
# shorter depends on the hardware: if the processors that compute also move the bytes,
# little is gained, or something is lost. With GPUs, the network works in parallel.)

# %% [markdown]
# ## Buckets
#
# Every message has its latency, and a model has hundreds of small parameters, such as biases and norms. So
# several gradients are sent in one message: a **bucket**. It is sent when its last gradient is ready.
# Few large buckets pay few latencies, but a single bucket for everything would bring back the naive version.
#
# Buckets are filled in **reverse** order of the parameters, because gradients become ready in
# roughly that order. Otherwise the first bucket would wait for the last gradient.


# %% nbgrader={"grade": false, "grade_id": "todo_5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def assign_buckets(sizes: list[int], cap: int) -> list[list[int]]:
    """The buckets, in the order in which they are filled: for each, its parameters' indices in the same
    order.

    Args:
        sizes: the parameters' bytes, in the model's order; one may be 0. Leave them unchanged.
        cap: bytes that a bucket holds at most, unless a single parameter has more.
    """
    # TODO 5: Assign parameters to buckets, from the last parameter to the first.
    # Four of 4 bytes each, with a cap of 8, give [[3, 2], [1, 0]]. Each parameter is in exactly one
    # bucket; neighbours in a bucket are neighbours in the model; a parameter that is larger than the cap
    # is alone in its bucket.
    # Budget: as few buckets as these rules allow. If several answers have that many, each of them is
    # right.
    ### BEGIN SOLUTION
    buckets: list[list[int]] = []
    room = 0
    for index in reversed(range(len(sizes))):
        if not buckets or sizes[index] > room:
            buckets.append([])
            room = cap
        buckets[-1].append(index)
        room -= sizes[index]
    return buckets
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_5", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("02_data_parallel/5")

# %% [markdown]
# What is a good cap? Your two functions can answer that. Suppose that the 48 blocks of the largest GPT-2, with 1.5
# billion parameters, take half a second for their backward pass on each of 64 ranks, and that gradients become ready at
# an even pace. A ring all-reduce of $S$ bytes takes $2(N-1)(\alpha + \beta S/N)$. Which cap makes the step shortest,
# and why do both smaller and larger caps make it longer?

# %%
BACKWARD = 0.5  # seconds


def step_ends(cap: int, alpha: float, beta: float, world: int = 64) -> float:
    """Seconds from the start of the backward pass to the end of the last all-reduce."""
    width = 1600
    attention = [width, width, 3 * width**2, 3 * width, width**2, width]  # norm, q k v, output
    mlp = [width, width, 4 * width**2, 4 * width, 4 * width**2, width]
    sizes = [4 * count for count in 48 * [*attention, *mlp]]
    ready, seconds, done = [], [], 0
    for bucket in assign_buckets(sizes, cap):
        nbytes = sum(sizes[index] for index in bucket)
        done += nbytes
        ready.append(BACKWARD * done / sum(sizes))
        seconds.append(2 * (world - 1) * (alpha + beta * nbytes / world))
    return communication_ends(ready, seconds)


# %%
links = {
    "5 µs, 25 GB/s": (5e-6, 1 / 25e9),
    "5 µs, 50 GB/s": (5e-6, 1 / 50e9),
    "20 µs, 50 GB/s": (20e-6, 1 / 50e9),
}
plots.caps([2**k for k in range(12, 34)], links, step_ends, BACKWARD)

# %% [markdown]
# To the left, each of many messages pays its latency. To the right, there are few buckets, so the last one, which
# cannot start before the backward pass is complete, is large. In between, little changes: a weight that is larger
# than the cap has its own bucket, whatever the cap.

# %% [markdown]
# ## DDP with buckets
#
# Now combine the two. When a bucket's last gradient is ready, its gradients are copied into one
# long vector, and an all-reduce of that vector is started. At the end the averages are copied back.
#
# ![Parameters fill buckets from the last to the first; a full bucket is sent while the others still fill](../images/buckets.svg)
#
# Two rules make it right in all cases:
#
# - **Buckets are started in the order of their numbers**, on all ranks. If a later one is full first, it waits.
#   Otherwise two ranks whose gradients become ready in different orders would add up two different buckets.
# - **Buckets that are not full at the end are sent at the end.** A parameter that this pass did not use has
#   no new gradient, but all ranks must make the call. The rank contributes what the parameter's `grad` holds:
#   the result of earlier passes, or zeros if it is `None`.


# %% nbgrader={"grade": false, "grade_id": "todo_6", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Bucketed:
    """Averages a model's gradients over the ranks, in buckets, while the backward pass is running.

    Set ``sync`` to False before a backward pass to only accumulate gradients on each rank.
    """

    def __init__(self, model: nn.Module, cap: int) -> None:
        """Buckets of at most ``cap`` bytes, from `assign_buckets`. All parameters are float32 and on one
        device; they and their gradients need not be contiguous."""
        self.sync = True
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.buckets = assign_buckets([4 * parameter.numel() for parameter in self.parameters], cap)
        # TODO 6: Communicate in buckets during the backward pass.
        # Here, prepare the first pass: register `ready` as a hook, and allocate the vectors.
        ### BEGIN SOLUTION
        self.vectors = []  # one for each bucket
        self.places = {}  # parameter -> the number of its bucket, and its place in the vector
        for number, bucket in enumerate(self.buckets):
            members = [self.parameters[index] for index in bucket]
            lengths = [member.numel() for member in members]
            self.vectors.append(members[0].new_zeros(sum(lengths)))
            for member, piece in zip(members, self.vectors[number].split(lengths), strict=True):
                self.places[member] = number, piece.view_as(member)
                member.register_post_accumulate_grad_hook(self.ready)
        self.missing = [len(bucket) for bucket in self.buckets]  # gradients that are not ready yet
        self.filled = set()
        self.works = []
        ### END SOLUTION

    def ready(self, parameter: nn.Parameter) -> None:
        """The hook: this parameter's gradient is complete."""
        if self.sync:
            self.fill(parameter)

    def fill(self, parameter: nn.Parameter) -> None:
        """Put a gradient into its bucket, and start every bucket that can be started."""
        # TODO 6, again: start a bucket that is now full, but never before a bucket with a lower number.
        # Budget: one all-reduce for each bucket, started as soon as the rules allow, and no wait here.
        ### BEGIN SOLUTION
        number, piece = self.places[parameter]
        if parameter.grad is None:
            piece.zero_()
        else:
            torch.div(parameter.grad, dist.get_world_size(), out=piece)  # while it is in the cache
        self.filled.add(parameter)
        self.missing[number] -= 1
        while len(self.works) < len(self.buckets) and self.missing[len(self.works)] == 0:
            self.works.append(dist.all_reduce(self.vectors[len(self.works)], async_op=True))
        ### END SOLUTION

    def finish(self) -> None:
        """After a backward pass with ``sync``: leave the mean over all ranks in each ``grad``; prepare
        the next pass."""
        # TODO 6, again: start the remaining buckets, wait, copy back. You may divide before or after the
        # sum.
        ### BEGIN SOLUTION
        for parameter in self.parameters:
            if parameter not in self.filled:
                self.fill(parameter)
        for work in self.works:
            work.wait()
        for parameter, (_, piece) in self.places.items():
            if parameter.grad is None:
                parameter.grad = piece.clone()
            else:
                parameter.grad.copy_(piece)
        self.missing = [len(bucket) for bucket in self.buckets]
        self.filled.clear()
        self.works.clear()
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_6", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("02_data_parallel/6")

# %%
runs["buckets"] = run_on_ranks("02_data_parallel/watched_step", ["buckets"] * 2, timed=True)
plots.steps(runs)

# %% [markdown]
# The same bytes, in fewer messages. Only the last bucket is left after the backward pass:
# it holds the first parameters, whose gradients are ready last.

# %% [markdown]
# ## Accumulation without communication
#
# A batch that does not fit into memory is cut into $k$ **micro-batches**, whose gradients add up
# before the step. The ranks need only the sum, so only the last backward pass has to
# communicate. **Predict** how many bytes you save, before you look at the table below.
#
# Here all micro-batches of all ranks have the same number of samples, and one may occur twice. Remember that
# gradients *add up*, and that you want the gradient of a mean.


# %% nbgrader={"grade": false, "grade_id": "todo_7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def accumulate(model: nn.Module, reducer: Bucketed, micro_batches: list[tuple[Tensor, Tensor]]) -> None:
    """Leave in each ``grad`` the gradient of the mean loss over all micro-batches of all ranks.

    Args:
        model: ``model(x, y)`` returns the mean loss of a micro-batch. Gradients are None or zero before
            the call.
        reducer: for this model; ``sync`` may be True or False before the call.
        micro_batches: this rank's pairs (x, y), at least one. Every rank has the same number.
    """
    # TODO 7: Accumulate gradients without communication.
    # Each micro-batch has its own backward pass; in the last one, and not before, the reducer begins to
    # send.
    # Budget: a rank sends as many bytes as for a single micro-batch.
    ### BEGIN SOLUTION
    for number, (x, y) in enumerate(micro_batches, start=1):
        reducer.sync = number == len(micro_batches)
        loss = model(x, y) / len(micro_batches)
        loss.backward()
    reducer.finish()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_7", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("02_data_parallel/7")


# %%
def accumulated(number: int, rank: int, world: int) -> None:
    """A batch of 12 samples per rank, in this number of micro-batches."""
    model = TransformerLM(vocab_size=1000, dim=64, n_heads=2, n_layers=2, max_len=16)
    x, y = torch.randint(1000, (2, 12, 16), generator=torch.Generator().manual_seed(rank))
    accumulate(model, Bucketed(model, 100_000), list(zip(x.chunk(number), y.chunk(number), strict=True)))


# %%
print("micro-batches  all-reduces  bytes given to them  if each micro-batch did so")
for number in (1, 2, 3, 6):
    calls = run_on_ranks("02_data_parallel/accumulated", [number] * 2).collectives
    mine = [call.bytes for call in calls if call.rank == 0]
    print(f"{number:13} {len(mine):12} {sum(mine):20,} {number * sum(mine):27,}")

# %% [markdown]
# ## Unequal shares
#
# The number of ranks seldom divides the last batch of an epoch, and sequences of text have unequal numbers of
# tokens that count. Your reducer takes the plain mean over the ranks, which is now the wrong mean: you predicted
# the right one in TODO 1. You need not change the reducer: each rank can correct its loss by a factor.
# Which one?


# %% nbgrader={"grade": false, "grade_id": "todo_8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def weighted(loss: Tensor, count: int) -> Tensor:
    """From the mean loss of this rank's ``count`` samples, the loss to call ``backward`` on.

    The plain mean over the ranks of its gradients is the gradient of the mean over all ranks' samples.
    """
    # TODO 8: Weight the loss of unequal shares.
    # A rank with no samples has count 0 and a loss of 0; at least one rank has samples. Leave the given
    # loss unchanged: it is also reported.
    # Budget: one all-reduce of one number.
    ### BEGIN SOLUTION
    total = torch.tensor(float(count), device=loss.device)
    dist.all_reduce(total)
    return loss * (count * dist.get_world_size() / total)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_8", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("02_data_parallel/8")

# %% [markdown]
# ## The same with PyTorch
#
# `DistributedDataParallel` is what you wrote, in C++. Wrapped around a model, it gives all ranks the
# state of rank 0, fills buckets from the last parameter to the first, and starts them from hooks. It waits before
# `backward` returns, so there is no `finish`. Options make it do more:
#
# | here | there |
# |---|---|
# | `broadcast_state` | in the constructor; buffers again in each forward pass (`broadcast_buffers`) |
# | the cap of `assign_buckets` | `bucket_cap_mb`, in units of $2^{20}$ bytes |
# | what `finish` does for unused parameters | `find_unused_parameters=True`: without it, an error in the next pass, or a rank that waits forever |
# | `sync = False` | `with ddp.no_sync():` around the forward **and** the backward pass |


# %% nbgrader={"grade": false, "grade_id": "todo_9", "locked": false, "schema_version": 3, "solution": true, "task": false}
def with_torch(
    model: nn.Module, micro_batches: list[tuple[Tensor, Tensor]], cap: int
) -> DistributedDataParallel:
    """Wrap the model, and leave in each ``grad`` the gradient of the mean loss over all micro-batches of
    all ranks.
    """
    # TODO 9: Let PyTorch's DistributedDataParallel do the same.
    # The ranks' models may differ at the start, and passes may leave parameters unused. The budget is
    # the same as for `accumulate`: no gradient is sent before the last backward pass, and then in
    # buckets of about `cap` bytes.
    ### BEGIN SOLUTION
    ddp = DistributedDataParallel(model, bucket_cap_mb=cap / 2**20, find_unused_parameters=True)
    *others, last = micro_batches
    with ddp.no_sync():
        for x, y in others:
            (ddp(x, y) / len(micro_batches)).backward()
    x, y = last
    (ddp(x, y) / len(micro_batches)).backward()
    return ddp
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_9", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("02_data_parallel/9")

# %%
runs["torch"] = run_on_ranks("02_data_parallel/watched_step", ["torch"] * 2, timed=True)
plots.steps(runs)

# %% [markdown]
# Now compare all four. PyTorch waits for its all-reduces inside `backward`, so its backward
# pass ends with the last of them. Only the C++ code knows when each one ends, so only their starts are drawn.
# One of its all-reduces is small and is not a bucket: it tells all ranks which parameters were used. Its buckets follow
# a slightly different rule from yours.

# %% [markdown]
# ## The law, with your own code
#
# **The parallel run is the serial run.** Now train the course's model with your own code: rank 0's first weights from
# `broadcast_state`, gradients averaged by your buckets. The text is a random chain of 60 "words": each of them can be
# followed by only four. One process takes batches of 12 windows; three ranks take 4 windows of each batch.


# %%
def made_text() -> Tensor:
    """3000 words out of 60, each drawn from the four that may follow the word before."""
    draw = torch.Generator().manual_seed(0)
    followers = torch.randint(60, (60, 4), generator=draw)
    words = [0]
    for choice in torch.randint(4, (2999,), generator=draw).tolist():
        words.append(int(followers[words[-1], choice]))
    return torch.tensor(words)


def batch_of(text: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """The global batch of a step: 12 windows of 16 words, and the words that follow.
    The same on every rank.
    """
    starts = torch.randint(len(text) - 16, (12,), generator=torch.Generator().manual_seed(step))
    windows = torch.stack([text[start : start + 17] for start in starts.tolist()])
    return windows[:, :-1], windows[:, 1:]


def small_model(seed: int) -> TransformerLM:
    torch.manual_seed(seed)
    return TransformerLM(vocab_size=60, dim=32, n_heads=2, n_layers=2, max_len=16)


STEPS = 60


def train_alone(text: Tensor) -> list[float]:
    """The loss of each step on one process."""
    model, losses = small_model(seed=0), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(*batch_of(text, step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_together(text: Tensor, rank: int, world: int) -> list[float]:
    """The same on ranks that start with different weights: this rank's losses,
    of its share of each batch.
    """
    model, losses = small_model(seed=rank), []
    broadcast_state(model)
    reducer = Bucketed(model, 20_000)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch_of(text, step)
        loss = model(x[rank::world], y[rank::world])
        loss.backward()
        reducer.finish()
        optimizer.step()
        losses.append(loss.item())
    return losses


# %%
text = made_text()
shares = run_on_ranks("02_data_parallel/train_together", [text] * 3).results
plots.losses(
    train_alone(text), {"3 ranks, your buckets": [sum(step) / 3 for step in zip(*shares, strict=True)]}
)

# %% [markdown]
# On the left the dots lie on the line; the right-hand picture shows the difference: the rounding of sums in a
# different order, and no more. If anything in the parallel run were wrong, a weight or a sample, the difference would
# be a thousand times larger.

# %% [markdown]
# ## In the script
#
# The next lesson, `train/ddp_training.py`, uses all of this:
#
# | in the script | what it does, in terms of what you built |
# |---|---|
# | `wrap` | `DistributedDataParallel(model)`: the broadcast of TODO 2, the hooks and buckets of TODOs 4 to 6 |
# | `make_samplers`, `make_loaders` | equal shares of each batch, so that the plain mean is right (TODO 1) |
# | `global_mean` | the mean over unequal shares in validation: sums and counts, divided once (TODO 8) |
# | the training loop | `backward` communicates; nothing else in the loop knows about other ranks |
#
# The models of the course's scripts have no buffers, no unused and no tied parameters, so plain
# `DistributedDataParallel(model)` is enough.

# %% [markdown]
# ## Recap
#
# 1. Copies of the model start equal and take equal steps, so they stay equal.
# 2. The gradient of the whole batch is the mean of the ranks' gradients, weighted by their samples; with equal
#    shares, the plain mean.
# 3. All ranks make the same calls in the same order, even for parameters that they did not use.
# 4. Gradients are sent in buckets, last layers first, while the backward pass computes the rest. Each rank sends just
#    under 8 bytes per parameter and step, on any number of ranks.
# 5. Each rank still holds all weights, gradients and optimizer state. Lesson 03 divides them among the ranks.
#
# *Papers.* PyTorch DDP, with the three stages of this lesson and the best bucket sizes on its machines, in sections 3
# and 4: Li et al., 2020 ([arXiv:2006.15704](https://arxiv.org/abs/2006.15704)). Overlap and tensor fusion in Horovod:
# [arXiv:1802.05799](https://arxiv.org/abs/1802.05799). Large batches and the learning rate:
# [arXiv:1706.02677](https://arxiv.org/abs/1706.02677).
#
# Next: [`train/ddp_training.py`](../train/ddp_training.py).
