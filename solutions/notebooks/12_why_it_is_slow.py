# %% [markdown]
# # Why it is slow
#
# A slow program gives the right result, so nothing complains. This lesson tells ten stories of runs that are right and
# slow. In each, a colleague has changed your `ddp_training` a little. Run each story as it is given first, and find out
# *what* is slow, on *which* rank, and *how much* of the step it takes; then answer a question, and fix a line or two.
#
# It uses `launch`, as `11_when_it_hangs` does: it runs your own `train/ddp_training.py`, whose TODOs 1 to 13 must be
# right, with a story's functions in place of the script's. The runs are small and your computer does other things as well, so the seconds that you see vary
# widely. **Counts do not vary**: how often a step reads a number from the device, how many messages it sends, how many
# blocks it computes, how many graphs it compiles. Find the cause by its time, and prove it by its count. The judge
# never looks at a clock: it counts, and compares the losses, because leaving work out is not a cure.

# %% [markdown]
# | what you ask | where you look |
# |---|---|
# | which part of a step is long, on which rank? | `--record`, then `./workbook report`: each rank's step in parts |
# | which operations does a step call, and how often? | the profiler's trace: `table`, below, or <https://ui.perfetto.dev> |
# | what is a rank doing right now? | `.venv/bin/py-spy dump --pid PID` (or `top` in place of `dump`) |
# | why is it compiled again? | `TORCH_LOGS=recompiles` |
# | what does autograd keep? | `torch.autograd.graph.saved_tensors_hooks` |
# | how much is computed? | `torch.utils.flop_counter.FlopCounterMode` |
#
# On a cluster, [docs/profiling.md](../docs/profiling.md) continues with Nsight Systems and HTA.

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import sys
from pathlib import Path

here = Path.cwd().resolve()
course = next(folder for folder in (here, *here.parents) if (folder / "grader").is_dir())
sys.path.insert(0, str(course))

from grader import check

# %%
import random
import threading
import time
import weakref
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, default_collate
from torch.utils.flop_counter import FlopCounterMode

from grader import launch
from utils.atomic_write import written_whole
from utils.data import IGNORE
from utils.metrics import Metrics
from utils.report.traces import table
from utils.training import make_sets

# `--record` traces steps 13 to 15, so these runs have 16.
RECORDED = "--record --log-every 8 --max-steps 16"

# %% [markdown]
# # Part 1: a rank that waits, or works in vain
#
# These five would be as slow on a single device.

# %% [markdown]
# ## Story 1: the number on the screen
#
# *"Only a progress line. It cannot cost anything."* A GPU works behind the program: Python queues kernels, and runs
# ahead of them. `.item()`, `float(t)`, `if t > 0`, `print(t)`, `.tolist()` and `.cpu()` need the number itself. So Python
# waits until the GPU has computed everything in its queue; then the queue is empty, and the GPU waits for Python. A trace
# shows `aten::item` and, below it, `aten::_local_scalar_dense`. On a CPU, as here, the call returns at once; its count is
# the same. (Adam's own count of steps is a tensor on the CPU: one `item` for each parameter and step, without a wait.)


# %% nbgrader={"grade": false, "grade_id": "todo_1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def note_loss_1(noted: list, loss: Tensor, log_every: int) -> float | None:
    """Notes the loss of a step in `noted`. In every log_every-th step it empties `noted` and returns the
    mean of the losses in it; otherwise it returns None.
    """
    # TODO 1: Read from the device only where a number is returned, and then once. Nothing else may be
    # kept of a step.
    ### BEGIN SOLUTION
    noted.append(loss.detach())
    if len(noted) < log_every:
        return None
    mean = torch.stack(noted).mean().item()
    ### STUDENT
    # noted.append(loss.item())
    # mean = sum(noted) / len(noted)
    # if len(noted) < log_every:
    #     return None
    ### END SOLUTION
    noted.clear()
    return mean


# %%
NOTED = []


def compute_loss_1(model: nn.Module, x: Tensor, y: Tensor, args: Namespace) -> Tensor:
    """The loss, with a progress line in every third step."""
    loss = model(x, y)
    if model.training and (mean := note_loss_1(NOTED, loss, 3)) is not None:
        print(f"loss {mean:.3f}", flush=True)
    return loss


def make_optimizer_1(model: nn.Module, args: Namespace) -> Optimizer:
    """SGD, which has no count of steps that would be read."""
    return torch.optim.SGD(model.parameters(), lr=args.lr)


run = launch("slow_1", compute_loss_1, make_optimizer_1, samples=192, flags=RECORDED)
print(run, run.log(0, 4), table(run.folder / "out", "aten::item", "aten::add_"), sep="\n")


# %% nbgrader={"grade": false, "grade_id": "todo_1_question", "locked": false, "schema_version": 3, "solution": true, "task": false}
def story_1() -> tuple[int, int]:
    """How many numbers note_loss_1 reads from the device on each rank in the three recorded steps
    together: in the run as given, and with the fix. (The table is per step.)"""
    # TODO 1, again: what does the table say, before and after?
    ### BEGIN SOLUTION
    return 3, 1
    ### STUDENT
    # return 0, 0
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_1", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("12_why_it_is_slow/1")

# %% [markdown]
# ## Story 2: the loader that reads everything
#
# *"The model is small, and the GPU is idle most of the time."* If a step waits for its batch, the part `data` of the
# step is long. Workers (`num_workers`) hide that time only while there are processors left; first look at what is done
# for a batch.


# %%
def decode_2(path: Path) -> Tensor:
    """All words of a text, as numbers: opens, reads and decodes the file."""
    words = [int(word[1:]) for word in path.read_text().split()]
    print(f"decoded {len(words)} words", flush=True)
    return torch.tensor(words)


def cut_2(tokens: Tensor, numbers: list[int], seq_len: int) -> tuple[Tensor, Tensor]:
    """The windows with these numbers, and the word that follows each of their words: (windows,
    seq_len) each.
    """
    starts = torch.tensor(numbers)[:, None] * seq_len + torch.arange(seq_len)
    return tokens[starts], tokens[starts + 1]


# %% nbgrader={"grade": false, "grade_id": "todo_2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def batches_2(path: Path, seq_len: int) -> Callable[[list[int]], tuple[Tensor, Tensor]]:
    """The function that makes a batch of the windows with the given numbers,
    from the text in this file.
    """
    # TODO 2: Read and decode the text once, and not again for each batch.
    ### BEGIN SOLUTION
    tokens = decode_2(path)
    return lambda numbers: cut_2(tokens, numbers, seq_len)
    ### STUDENT
    # return lambda numbers: cut_2(decode_2(path), numbers, seq_len)
    ### END SOLUTION


# %%
def make_loaders_2(sets: tuple, samplers: tuple, args: Namespace, world_size: int) -> tuple:
    """The loader of training makes its batches with `batches_2`."""
    size = args.batch_size // world_size
    batch = batches_2(Path(args.data) / "train.txt", args.seq_len)
    train = DataLoader(
        range(len(sets[0]) - 1), size, sampler=samplers[0], drop_last=True, collate_fn=batch
    )
    return (
        train,
        DataLoader(sets[1], size, sampler=samplers[1]),
        DataLoader(sets[2], size, sampler=samplers[2]),
    )


def make_samplers_2(sets: tuple, args: Namespace) -> tuple:
    """Windows in order: rank r takes the windows r, r + world, r + 2 · world and so on."""
    rank, world = dist.get_rank(), dist.get_world_size()
    parts = [torch.utils.data.Subset(part, range(rank, len(part) - 1, world)) for part in sets]
    samplers = [torch.utils.data.SequentialSampler(part) for part in parts]
    samplers[0].set_epoch = lambda epoch: None
    return tuple(samplers)


run = launch("slow_2", make_loaders_2, make_samplers_2, samples=9600, flags=RECORDED)
print(run, *run.log(0).splitlines()[:3], sep="\n")

from utils.plots.base import Picture
from utils.report import pictures, runs

out = run.folder / "out"
Picture(lambda: pictures.draw_step(runs.read(out))) if run.code == 0 else print(run.log(0, 30))


# %% nbgrader={"grade": false, "grade_id": "todo_2_question", "locked": false, "schema_version": 3, "solution": true, "task": false}
def story_2() -> tuple[str, int]:
    """In the run as given: the longest part of a step; and how many words a rank decodes for each word
    that it trains on. (A rank trains on 6 windows of 8 words in a step.)"""
    # TODO 2, again: what do the timeline and the log say?
    ### BEGIN SOLUTION
    return "data", 1600
    ### STUDENT
    # return "", 0
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_2", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("12_why_it_is_slow/2")

# %% [markdown]
# ## Story 3: computed twice, though it fits
#
# *"Since we ran out of memory once, we recompute activations."* A block that recomputes keeps only its input, and is
# computed again in the backward pass: a third more time (`fsdp_training` 8). It is worth that where memory is short, and
# only for as many blocks as do not fit. In a trace, operations of the forward pass show up twice in a step.


# %% nbgrader={"grade": false, "grade_id": "todo_3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def recompute_3(model: nn.Module, kept: int, budget: int) -> None:
    """Makes blocks recompute, in place, so that all blocks together keep at most `budget` bytes for the
    backward pass. A block that does not recompute keeps `kept` bytes; what the others keep is neglected.
    """
    # TODO 3: Recompute as few blocks as possible.
    ### BEGIN SOLUTION
    for number in range(len(model.blocks) - budget // kept):
        model.blocks[number] = checkpoint_wrapper(model.blocks[number])
    ### STUDENT
    # for number in range(len(model.blocks)):
    #     model.blocks[number] = checkpoint_wrapper(model.blocks[number])
    ### END SOLUTION


# %%
def wrap_3(model: nn.Module, device: torch.device) -> nn.Module:
    """DDP. A block keeps 40 kB, and there is memory for 130 kB."""
    recompute_3(model, 40_000, 130_000)
    return DistributedDataParallel(model)


run = launch("slow_3", wrap_3, samples=192, flags=f"{RECORDED} --layers 4")
print(run, table(run.folder / "out", "aten::gelu", "aten::gelu_backward"), sep="\n")


# %% nbgrader={"grade": false, "grade_id": "todo_3_question", "locked": false, "schema_version": 3, "solution": true, "task": false}
def story_3() -> tuple[int, int]:
    """How often a step computes GELU in these four blocks, forward: in the run as given,
    and with the fix.
    """
    # TODO 3, again: what does the table say?
    ### BEGIN SOLUTION
    return 8, 5
    ### STUDENT
    # return 0, 0
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_3", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("12_why_it_is_slow/3")

# %% [markdown]
# ## Story 4: a validation that prepares for training
#
# *"Validation needs more memory than training, and dies on the large set."* Without `no_grad`, each forward pass keeps
# its activations for a backward pass that never comes. Here a sum holds on to them: the sum of the losses is the end of
# a graph that grows with each batch. `saved_tensors_hooks` sees each tensor that autograd keeps; this cell counts those
# that are still alive.

# %%
ALIVE = {}


def keep(saved: Tensor) -> Tensor:
    """Called for each tensor that autograd saves; what it returns is kept until the graph is gone."""
    kept = saved.detach()
    ALIVE[id(kept)] = 1
    weakref.finalize(kept, ALIVE.pop, id(kept), None)
    return kept


def give_back(kept: Tensor) -> Tensor:
    return kept


def compute_loss_4(model: nn.Module, x: Tensor, y: Tensor, args: Namespace) -> Tensor:
    """The loss; in validation it prints how many tensors are kept for a backward pass."""
    with torch.autograd.graph.saved_tensors_hooks(keep, give_back):
        loss = model(x, y)
    if not model.training:
        print(f"{len(ALIVE)} tensors are kept", flush=True)
    return loss


# %% nbgrader={"grade": false, "grade_id": "todo_4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def evaluate_4(model: nn.Module, loader: Any, device: torch.device, args: Namespace) -> float:
    """Mean loss over the tokens of all ranks."""
    model.eval()
    total, count = torch.zeros(2, dtype=torch.float64, device=device)
    # TODO 4: Keep nothing for a backward pass.
    ### BEGIN SOLUTION
    with torch.no_grad():
        for x, y in loader:
            n_targets = (y != IGNORE).sum()
            total = total + compute_loss_4(model, x, y, args).double() * n_targets
            count = count + n_targets
    ### STUDENT
    # for x, y in loader:
    #     n_targets = (y != IGNORE).sum()
    #     total = total + compute_loss_4(model, x, y, args).double() * n_targets
    #     count = count + n_targets
    ### END SOLUTION
    sums = torch.stack([total.detach(), count])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


# %%
run = launch("slow_4", compute_loss_4, evaluate_4, flags="--batch-size 4 --max-steps 2")
print(run, run.log(0), sep="\n")


# %% nbgrader={"grade": false, "grade_id": "todo_4_question", "locked": false, "schema_version": 3, "solution": true, "task": false}
def story_4() -> tuple[int, int]:
    """On rank 0: how many batches' activations are kept at the end of the first validation, in the run
    as given and with the fix."""
    # TODO 4, again: by how much does the number of tensors grow with each batch?
    ### BEGIN SOLUTION
    return 4, 0
    ### STUDENT
    # return 0, -1
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_4", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("12_why_it_is_slow/4")

# %% [markdown]
# ## Story 5: a new shape in each step
#
# *"`--compile` made it slower."* `torch.compile` makes a program for the shapes that it has seen. For a new shape it
# compiles again, which takes seconds to minutes, or, after eight times, gives up and runs without. (Without
# `dynamic=False` it makes a program for any length at the second one, which is slower for each of them.) So texts of
# different lengths are padded to a few lengths. `TORCH_LOGS=recompiles` says what has changed. The backend `eager`
# makes graphs and no programs: to count them, no compiler is needed. (Compare the validation loss of both runs: in its
# log, the script weighs the training loss of a batch by all its places, also those with padding.)


# %%
def documents_5(samples: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """In this story samples differ in length: the first word's number, doubled,
    says how long each is.
    """
    return [(x[: 2 * int(x[0]) + 2], y[: 2 * int(x[0]) + 2]) for x, y in samples]


# %% nbgrader={"grade": false, "grade_id": "todo_5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def pad_5(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A batch of samples (x, y) of different lengths, 1 to 64 words each: x padded at its end with 0,
    y with IGNORE.
    """
    longest = max(len(x) for x, _ in samples)
    # TODO 5: Make batches of at most four different widths, none of them 16 or more words wider than its
    # longest sample.
    ### BEGIN SOLUTION
    width = -(-longest // 16) * 16
    ### STUDENT
    # width = longest
    ### END SOLUTION
    x = torch.stack([F.pad(x, (0, width - len(x))) for x, _ in samples])
    y = torch.stack([F.pad(y, (0, width - len(y)), value=IGNORE) for _, y in samples])
    return x, y


# %%
def wrap_5(model: nn.Module, device: torch.device) -> nn.Module:
    """DDP of a compiled model."""
    return DistributedDataParallel(torch.compile(model, backend="eager", dynamic=False))


def make_loaders_5(sets: tuple, samplers: tuple, args: Namespace, world_size: int) -> tuple:
    """Loaders that pad with `pad_5`."""

    def batch(samples: list) -> tuple[Tensor, Tensor]:
        x, y = pad_5(documents_5(samples))
        print(f"a batch of {x.shape[1]} words", flush=True)
        return x, y

    size = args.batch_size // world_size
    return tuple(
        DataLoader(part, size, sampler=sampler, collate_fn=batch)
        for part, sampler in zip(sets, samplers, strict=True)
    )


flags = "--batch-size 4 --seq-len 64 --max-steps 6 --log-every 8"
run = launch(
    "slow_5", wrap_5, make_loaders_5, samples=240, flags=flags, env={"TORCH_LOGS": "recompiles"}
)
log = run.log(0).splitlines()
print(run, *(line for line in log if "words" in line or "loss" in line), sep="\n")
against_the_first_graph = [line.rpartition("] ")[2] for line in log if " - 0/0: " in line]
print(*against_the_first_graph, sep="\n")


# %% nbgrader={"grade": false, "grade_id": "todo_5_question", "locked": false, "schema_version": 3, "solution": true, "task": false}
def story_5() -> tuple[str, int, int]:
    """The tensor whose size the log names; and how many graphs the six steps of training need on rank 0:
    in the run as given, and with the fix."""
    # TODO 5, again: what does the log say, before and after?
    ### BEGIN SOLUTION
    return "x", 6, 4
    ### STUDENT
    # return "", 0, 0
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_5", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("12_why_it_is_slow/5")

# %% [markdown]
# **This is a good place to stop.** In part 2, ranks send too much, or wait for each other.

# %% [markdown]
# # Part 2: ranks that send, and ranks that wait
#
# A message costs a start, α, and its bytes, β for each (`01_collectives`). So too many messages are slow, and so are too
# many bytes. Where a rank waits in a collective, either the message is long, or another rank comes late.

# %% [markdown]
# ## Story 6: a message for each parameter
#
# *"Our gradients are small, and still the network is the bottleneck."* The colleague averages gradients by hand. DDP does
# it with the same number of bytes, in buckets of 25 MB.


# %%
def wrap_6(model: nn.Module, device: torch.device) -> nn.Module:
    """No DDP: `average_gradients_6` does it by hand."""
    return model


def make_optimizer_6(model: nn.Module, args: Namespace) -> Optimizer:
    """Averages the gradients before each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    optimizer.register_step_pre_hook(lambda *_: average_gradients_6(model))
    return optimizer


# %% nbgrader={"grade": false, "grade_id": "todo_6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def average_gradients_6(model: nn.Module) -> None:
    """Replaces each gradient by its mean over all ranks. All gradients have one dtype, and need not be
    contiguous; a frozen parameter has none.
    """
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    # TODO 6: Send the same bytes in a single message.
    ### BEGIN SOLUTION
    bucket = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(bucket)
    bucket /= dist.get_world_size()
    for gradient, mean in zip(
        gradients, bucket.split([gradient.numel() for gradient in gradients]), strict=True
    ):
        gradient.copy_(mean.view_as(gradient))
    ### STUDENT
    # for gradient in gradients:
    #     dist.all_reduce(gradient)
    #     gradient /= dist.get_world_size()
    ### END SOLUTION


# %%
run = launch("slow_6", wrap_6, make_optimizer_6, samples=192, flags=RECORDED)
print(run, table(run.folder / "out", "gloo:all_reduce"), sep="\n")


# %% nbgrader={"grade": false, "grade_id": "todo_6_question", "locked": false, "schema_version": 3, "solution": true, "task": false}
def story_6() -> tuple[int, bool]:
    """In the run as given: how many messages a step takes; and whether the fix sends fewer bytes."""
    # TODO 6, again: what does the table say, before and after?
    ### BEGIN SOLUTION
    return 15, False
    ### STUDENT
    # return 0, True
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_6", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("12_why_it_is_slow/6")

# %% [markdown]
# ## Story 7: averaged four times, used once
#
# *"With four micro-batches a step takes more than four times as long."* A batch that does not fit is computed in parts,
# and their gradients add up. Only the sum is needed, but DDP averages in every backward pass, unless it is told not to:
# in `model.no_sync()`, forward and backward leave gradients local, and the next backward pass outside it averages all
# that has added up.


# %% nbgrader={"grade": false, "grade_id": "todo_7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def accumulate_7(model: DistributedDataParallel, parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Adds the gradient of the mean loss over parts of equal size to the model's.
    Returns this rank's mean loss.
    """
    total = torch.zeros(())
    # TODO 7: Average over the ranks once. Still only one part, with its activations, fits at a time.
    ### BEGIN SOLUTION
    for number, (x, y) in enumerate(parts):
        with model.no_sync() if number < len(parts) - 1 else nullcontext():
            loss = model(x, y) / len(parts)
            loss.backward()
        total += loss.detach()
    ### STUDENT
    # for x, y in parts:
    #     loss = model(x, y) / len(parts)
    #     loss.backward()
    #     total += loss.detach()
    ### END SOLUTION
    return total


# %%
def train_epoch_7(
    model: nn.Module,
    loader: Any,
    optimizer: Optimizer,
    device: torch.device,
    args: Namespace,
    metrics: Metrics,
    epoch: int,
    step: int,
) -> tuple[float, int]:
    """The script's loop, with each batch in micro-batches of two samples."""
    model.train()
    began = time.perf_counter()
    for x, y in loader:
        optimizer.zero_grad()
        loss = accumulate_7(model, list(zip(x.split(2), y.split(2), strict=True)))
        optimizer.step()
        step += 1
        if step == args.max_steps:
            break
    tokens_per_s = step * args.batch_size * args.seq_len / (time.perf_counter() - began)
    metrics.log("step", step, epoch=epoch + 1, loss=loss.item(), tokens_per_s=tokens_per_s)
    return loss.item(), step


run = launch("slow_7", train_epoch_7, samples=256, flags=f"{RECORDED} --batch-size 16")
print(run, table(run.folder / "out", "gloo:all_reduce"), sep="\n")


# %% nbgrader={"grade": false, "grade_id": "todo_7_question", "locked": false, "schema_version": 3, "solution": true, "task": false}
def story_7() -> tuple[int, float]:
    """In the run as given: how many all-reduces a step takes;
    and the fraction of their bytes that the fix saves.
    """
    # TODO 7, again: what does the table say, before and after?
    ### BEGIN SOLUTION
    return 4, 0.75
    ### STUDENT
    # return 0, 0.0
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_7", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("12_why_it_is_slow/7")

# %% [markdown]
# ## Story 8: a metric in a pickle
#
# *"Only the accuracy, and only one line."* `all_gather_object` pickles an object, sends its size, then pads the pickle
# to the largest size and sends it to every rank, and every rank unpickles all of them. With NCCL the pickle is first
# copied to the GPU. It is made for a name or a configuration, once. A metric is a few sums.


# %% nbgrader={"grade": false, "grade_id": "todo_8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def accuracy_8(right_N: Tensor) -> float:
    """The fraction of words that were guessed, over the words of all ranks. `right_N`: whether each word
    of this rank was; bool, (N,), and N differs from rank to rank.
    """
    # TODO 8: Send a few numbers in one message, and pickle nothing.
    ### BEGIN SOLUTION
    sums = torch.tensor([right_N.sum(), right_N.numel()], dtype=torch.float64, device=right_N.device)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()
    ### STUDENT
    # gathered = [None] * dist.get_world_size()
    # dist.all_gather_object(gathered, right_N)
    # return torch.cat(gathered).double().mean().item()
    ### END SOLUTION


# %%
def compute_loss_8(model: nn.Module, x: Tensor, y: Tensor, args: Namespace) -> Tensor:
    """The loss. In training, rank 0 prints the accuracy of each step."""
    logits = model(x)
    if model.training:
        accuracy = accuracy_8((logits.argmax(dim=-1) == y).flatten())
        if dist.get_rank() == 0:
            print(f"{accuracy:.1%} of the words were guessed", flush=True)
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=IGNORE)


run = launch("slow_8", compute_loss_8, samples=192, flags=RECORDED)
print(run, run.log(0, 2), table(run.folder / "out", "gloo:all_gather", "gloo:all_reduce"), sep="\n")


# %% nbgrader={"grade": false, "grade_id": "todo_8_question", "locked": false, "schema_version": 3, "solution": true, "task": false}
def story_8() -> tuple[int, int]:
    """How many collectives a rank calls in a step for the accuracy: in the run as given, and with the
    fix. (DDP calls one for the gradients.)"""
    # TODO 8, again: what does the table say, before and after?
    ### BEGIN SOLUTION
    return 2, 1
    ### STUDENT
    # return 0, 0
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_8", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("12_why_it_is_slow/8")

# %% [markdown]
# ## Story 9: one rank has the long ones
#
# *"Rank 1 spends most of its time in communication. Is its network card broken?"* Texts differ in length. The colleague
# sorts the documents of each step by length, which is right, and gives each rank a piece of the sorted list, which is
# not. All ranks show the same time for a step, and those that wait look guilty, because waiting is called communication.
# What differs is the work. `FlopCounterMode` counts it.


# %% nbgrader={"grade": false, "grade_id": "todo_9", "locked": false, "schema_version": 3, "solution": true, "task": false}
def deal_9(lengths: list[int], world: int) -> list[list[int]]:
    """For each rank, the documents of one step that it computes, by their places in `lengths` (in
    sequences). Each document is one rank's. There may be fewer documents than ranks.
    """
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    # TODO 9: Balance the work: the ranks with the most and the fewest sequences may differ by the
    # longest document at most.
    ### BEGIN SOLUTION
    return [order[rank::world] for rank in range(world)]
    ### STUDENT
    # each = -(-len(order) // world)
    # return [order[rank * each : (rank + 1) * each] for rank in range(world)]
    ### END SOLUTION


# %%
def train_epoch_9(
    model: nn.Module,
    loader: Any,
    optimizer: Optimizer,
    device: torch.device,
    args: Namespace,
    metrics: Metrics,
    epoch: int,
    step: int,
) -> tuple[float, int]:
    """The script's loop, for documents of several sequences. Each word of the step weighs the same,
    on any rank.
    """
    model.train()
    rank, world, next_one = dist.get_rank(), dist.get_world_size(), 0
    began = time.perf_counter()
    while step < args.max_steps:
        lengths = random.Random(step).sample([1, 1, 2, 2, 4, 4, 8, 8], 8)
        starts = [next_one + sum(lengths[:number]) for number in range(8)]
        mine = [starts[n] + i for n in deal_9(lengths, world)[rank] for i in range(lengths[n])]
        x, y = default_collate([loader.dataset[number] for number in mine])
        optimizer.zero_grad()
        with FlopCounterMode(display=False) as flops:
            loss = model(x, y) * len(x) * world / sum(lengths)  # DDP averages over ranks
            loss.backward()
        optimizer.step()
        print(f"step {step}: {len(x)} sequences, {flops.get_total_flops() / 1e6:.1f} MFLOP", flush=True)
        step, next_one = step + 1, next_one + sum(lengths)
    tokens_per_s = next_one * args.seq_len / (time.perf_counter() - began)
    metrics.log("step", step, epoch=epoch + 1, loss=loss.item(), tokens_per_s=tokens_per_s)
    return loss.item(), step


run = launch("slow_9", train_epoch_9, samples=480, flags=f"{RECORDED} --dim 64 --seq-len 8")
for rank in range(2):
    print(
        f"--- rank {rank}",
        *[line for line in run.log(rank).splitlines() if "FLOP" in line][:3],
        sep="\n",
    )


# %% nbgrader={"grade": false, "grade_id": "todo_9_question", "locked": false, "schema_version": 3, "solution": true, "task": false}
def story_9() -> tuple[int, int]:
    """In the run as given: the rank that the other waits for,
    and how many times the other's FLOPs it computes.
    """
    # TODO 9, again: what do the logs say?
    ### BEGIN SOLUTION
    return 0, 4
    ### STUDENT
    # return -1, 0
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_9", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("12_why_it_is_slow/9")

# %% [markdown]
# ## Story 10: everyone waits for the disk
#
# *"Every ten minutes, all GPUs are idle for one."* Rank 0 writes the checkpoint, and the others wait for it in their next
# collective. Only the copy of the weights must be made while training stands still: at memory's speed. A thread can
# write it while training continues. But then a tensor that is written must not be the one that is trained.


# %%
def write_10(content: dict[str, Any], path: Path) -> None:
    """Writes a checkpoint, which appears whole or not at all."""
    with written_whole(path) as part:
        torch.save(content, part)
        waits = threading.current_thread() is threading.main_thread()
        print(
            f"{part.stat().st_size} bytes, {'while training stands still' if waits else 'in a thread'}",
            flush=True,
        )


# %% nbgrader={"grade": false, "grade_id": "todo_10", "locked": false, "schema_version": 3, "solution": true, "task": false}
def save_checkpoint_10(model: nn.Module, config: dict[str, Any], path: Path, epoch: int) -> None:
    """Rank 0 saves the weights of this moment, and training continues meanwhile. The file is complete
    before the program ends.
    """
    weights = getattr(model, "module", model).state_dict()
    if dist.get_rank() == 0:
        # TODO 10: Let `write_10` do its work while training continues.
        ### BEGIN SOLUTION
        weights = {name: weight.clone() for name, weight in weights.items()}
        content = {"model": weights, "config": config, "epoch": epoch}
        threading.Thread(target=write_10, args=(content, path)).start()
        ### STUDENT
        # write_10({"model": weights, "config": config, "epoch": epoch}, path)
        ### END SOLUTION


# %%
run = launch("slow_10", save_checkpoint_10, flags="--dim 64 --log-every 2")
print(run, run.log(0), sep="\n")


# %% nbgrader={"grade": false, "grade_id": "todo_10_question", "locked": false, "schema_version": 3, "solution": true, "task": false}
def story_10() -> tuple[int, int, int]:
    """In the run as given: how many checkpoints are written; how many of the two ranks stand still
    meanwhile; and with the fix, how many are written while training stands still."""
    # TODO 10, again: what do the logs say?
    ### BEGIN SOLUTION
    return 2, 2, 0
    ### STUDENT
    # return 0, 0, -1
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_10", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("12_why_it_is_slow/10")

# %% [markdown]
# # To read only
#
# Two causes need a GPU or a second node, so this course cannot show them on your computer:
#
# - **Copies from pageable memory.** `x.to("cuda", non_blocking=True)` overlaps with computation only if x is in pinned
#   memory (`pin_memory=True` in the loader, as in `ddp_training`). Otherwise the driver first copies to a pinned buffer,
#   and the call waits. In a trace: `Memcpy HtoD (Pageable -> Device)`.
# - **An axis of the mesh across the slow link.** Tensor parallelism sends in every layer, so its ranks belong on one
#   node (`09_mesh` 1 counts the bytes).

# %% [markdown]
# # Recap
#
# - First ask which part of a step, on which rank: the report. Then which operation, how often: the trace. Then count.
# - The rank that waits is not the slow one.
# - Do nothing in each step that is needed every hundredth; do nothing twice whose result is at hand.
# - A message has a start and bytes: few messages, and only bytes that are needed.
# - A fix is one if the losses are the same.
#
# Further reading: PyTorch's [performance tuning
# guide](https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html) and its
# [profiler](https://docs.pytorch.org/docs/stable/profiler.html); buckets and `no_sync` in PyTorch DDP,
# [2006.15704](https://arxiv.org/abs/2006.15704); recomputing in [1604.06174](https://arxiv.org/abs/1604.06174);
# stragglers at 10,000 GPUs in MegaScale, [2402.15627](https://arxiv.org/abs/2402.15627).
