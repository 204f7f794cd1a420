# %% [markdown]
# # When it hangs
#
# A serial program that fails says where it failed. A parallel program may stop and say nothing; or one rank of many
# dies, and all the others complain; or it continues and is wrong. This lesson tells ten such stories. In each, a
# colleague has changed your `ddp_training` a little. Run each story as it is given first, and find the cause with the
# tools of the trade; then answer a question, and fix a line or two.
#
# It builds on `02_data_parallel` and on your own `train/ddp_training.py`, which `launch` runs with `torchrun`, with a
# story's functions in place of the script's. Nothing is simulated: logs, stacks and dumps are real. All runs use CPUs
# and gloo; the text says what differs with NCCL where it matters.
#
# ![From what you see to the tool that shows the cause](../images/hangs_tools.svg)

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import sys
from pathlib import Path

here = Path.cwd().resolve()
course = next(folder for folder in (here, *here.parents) if (folder / "grader").is_dir())
sys.path.insert(0, str(course))

from grader import check

# %%
import faulthandler
import pickle
import subprocess
from argparse import Namespace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, default_collate

from grader import launch
from utils.data import IGNORE, EpochOrder, ShardSampler
from utils.distributed import launch_environment, save0

# %% [markdown]
# # Part 1: it stops

# %% [markdown]
# ## Story 1: nearly finished
#
# *"Training is over, the checkpoint is there, and the job kept running until its time limit."* The colleague had changed
# `save_checkpoint`, so that no rank continues before the file is complete.
#
# A collective waits for all ranks of its group, but not forever: a group has a **time limit**, by default 30 minutes
# with gloo and 10 with NCCL. Then the wait raises an error, whose traceback says where the rank was. So first make the
# limit short. That fixes nothing, but the ranks report. This cell does so for nearly all stories. It also sets up two
# tools: `faulthandler` prints the Python stack when C++ code aborts, and the *flight recorder* is explained below.


# %%
def setup_1() -> tuple[int, int, int, torch.device]:
    """The script's setup, with a limit of 8 seconds, stacks,
    and a dump of the flight recorder if an error ends it.
    """
    rank, local_rank, world_size = launch_environment()
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    faulthandler.enable()

    def dump(*error: Any) -> None:
        if entries := torch._C._distributed_c10d._dump_fr_trace():
            Path(f"rank_{rank}").write_bytes(entries)
        sys.__excepthook__(*error)

    sys.excepthook = dump
    return rank, local_rank, world_size, torch.device("cpu")


# %% nbgrader={"grade": false, "grade_id": "todo_1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def save_checkpoint_1(model: nn.Module, config: dict[str, Any], path: Path, epoch: int) -> None:
    """Rank 0 saves. On every rank, the call returns when the file is complete:
    then any rank may read it.
    """
    content = {"model": getattr(model, "module", model).state_dict(), "config": config, "epoch": epoch}
    # TODO 1: Let the run end, and keep the promise of this function's docstring.
    ### BEGIN SOLUTION
    save0(content, path)
    dist.barrier()
    ### STUDENT
    # if dist.get_rank() == 0:
    #     save0(content, path)
    #     dist.barrier()  # no rank continues before the file is whole
    ### END SOLUTION


# %% [markdown]
# `torchrun --log-dir DIR --redirects 3` keeps a log for each rank, and `launch` does so. Read the logs of **all**
# ranks: the rank that times out first is not the one with the fault.

# %%
run = launch("story_1", setup_1, save_checkpoint_1, env={"TORCH_FR_BUFFER_SIZE": "2000"})
print(run)
for rank in range(2):
    print(f"\n--- rank {rank}\n{run.log(rank, 26)}")

# %% [markdown]
# With a thousand ranks, reading all logs takes a day. The **flight recorder** keeps the last collectives of each rank
# in a ring buffer, with their stacks (`TORCH_FR_BUFFER_SIZE` is its length, 2000 by default; 0 switches it off). After
# a crash, `torchfrtrace` compares the dumps of all ranks. NCCL dumps automatically after a timeout
# (`TORCH_NCCL_DUMP_ON_TIMEOUT`, into files named by `TORCH_FR_DUMP_TEMP_FILE`); with gloo you call `_dump_fr_trace`,
# as `setup_1` does. More differs with gloo (torch 2.13 and 2.15). `isend` and `irecv` are not recorded, and a reduce-scatter
# appears as an all-reduce. Every entry stays `scheduled`, so the states say nothing. The group's name is empty, which
# stops the analyser; with a name filled in, it works:


# %%
def analyse(folder: Path) -> str:
    """The output of torch's analyser for the dumps rank_0, rank_1, … in a folder,
    without torch's own frames.
    """
    for path in folder.glob("rank_*"):
        seen = pickle.loads(path.read_bytes())
        if group := seen["pg_config"].pop("", None):
            seen["pg_config"]["0"] = {**group, "name": "0", "desc": "default_pg"}
            path.write_bytes(pickle.dumps(seen))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.flight_recorder.fr_trace",
        "-p",
        "rank_",
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    return "\n".join(
        line for line in (done.stdout + done.stderr).splitlines() if "site-packages" not in line
    )


# %%
print(
    analyse(run.folder)
    if list(run.folder.glob("rank_*"))
    else "no dumps: the run ended before there was one"
)

# %% [markdown]
# The analyser calls the rank that differs from the first one the culprit; here it blames rank 1, which is right. It
# finds the place, and you find the fault.
#
# With NCCL, entries have states, and the question becomes: on which rank is the last entry `completed` while it is
# `started` on the others? This course has no recorded NCCL dump; PyTorch's tutorial shows one: [Flight
# Recorder](https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html). `NCCL_DEBUG=INFO` says which
# network NCCL uses, and where it fails to start ([docs/nccl.md](../docs/nccl.md)).


# %% nbgrader={"grade": false, "grade_id": "todo_1_question", "locked": false, "schema_version": 3, "solution": true, "task": false}
def story_1() -> tuple[int, str, str]:
    """In the run as given: the rank that waits in a call which no other rank makes; that call, in
    `dist`; and the innermost function of ddp_training in which the other rank waits."""
    # TODO 1, again: what did the logs say, before you fixed anything?
    ### BEGIN SOLUTION
    return 0, "barrier", "global_mean"
    ### STUDENT
    # return -1, "", ""
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_1", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("11_when_it_hangs/1")

# %% [markdown]
# ## Story 2: the largest first
#
# *"It fails at once, with a message about bytes that I do not understand."* The colleague averages gradients by hand,
# the largest first, so that they are sent early.
#
# Collectives have no name: the k-th call of one rank meets the k-th call of every other. If ranks call in different
# orders, different tensors meet. If their sizes differ, gloo aborts with a line that names no cause; NCCL may hang,
# or compute garbage. `TORCH_DISTRIBUTED_DEBUG=DETAIL` makes ranks compare *fingerprints* (operation, shape, dtype)
# before each collective, and says on which line they differ. It is slow: for debugging only.


# %%
def wrap_2(model: nn.Module, device: torch.device) -> nn.Module:
    """No DDP: `average_gradients_2` does it by hand."""
    return model


def make_optimizer_2(model: nn.Module, args: Namespace) -> Optimizer:
    """Averages the gradients before each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    optimizer.register_step_pre_hook(lambda *_: average_gradients_2(model))
    return optimizer


# %% nbgrader={"grade": false, "grade_id": "todo_2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def average_gradients_2(model: nn.Module) -> None:
    """Replaces each gradient by its mean over all ranks, large gradients before small ones."""
    # TODO 2: Let the ranks agree on the order. "Large" is what takes long to send, not what has large
    # numbers.
    ### BEGIN SOLUTION
    parameters = sorted(model.parameters(), key=lambda p: p.numel(), reverse=True)
    ### STUDENT
    # parameters = sorted(model.parameters(), key=lambda p: p.grad.norm(), reverse=True)
    ### END SOLUTION
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


# %%
for debug in "OFF", "DETAIL":
    run = launch(
        f"story_2_{debug}", setup_1, wrap_2, make_optimizer_2, env={"TORCH_DISTRIBUTED_DEBUG": debug}
    )
    print(f"\n--- {debug}: {run}\n{run.log(0, 12)}\n{run.log(1, 12)}")


# %% nbgrader={"grade": false, "grade_id": "todo_2_question", "locked": false, "schema_version": 3, "solution": true, "task": false}
def story_2() -> tuple[str, bool]:
    """In the run as given: where the fingerprints differ first, in "operation", "shape" or "dtype"; and
    whether DETAIL would have reported anything if all gradients had one shape."""
    # TODO 2, again: what did DETAIL say, and what can it not see?
    ### BEGIN SOLUTION
    return "shape", False
    ### STUDENT
    # return "", True
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_2", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("11_when_it_hangs/2")

# %% [markdown]
# ## Story 3: one batch more
#
# *"It trains well and dies at the end of the epoch. With a different text it does not."* The colleague gives sample i
# to rank i modulo the number of ranks.
#
# A dying rank may leave no traceback, because C++ code ended it. `faulthandler.enable()`, in `setup_1`, then prints
# the Python stack of each thread. (The one in `utils/stop_together.py` is the course's own, and may come first: it watches
# whether another rank has failed.) You can also ask a rank that hangs for its stack:
# `faulthandler.register(signal.SIGUSR1)` in the program, then `kill -USR1 PID`; or, with no change to the program,
# `.venv/bin/py-spy dump --pid PID` (add `--native` for C++ frames). py-spy reads another process's memory: macOS
# requires `sudo`, like a Linux whose `/proc/sys/kernel/yama/ptrace_scope` is 1, unless py-spy started the program;
# in a container, `--cap-add SYS_PTRACE`.


# %%
def make_samplers_3(sets: tuple, args: Namespace) -> tuple:
    """This rank's samples of one epoch."""
    train, validation, test = sets
    sampler = ShardSampler(train, 0, 1)
    sampler.indices = my_part_3(
        list(EpochOrder(train, args.seed)), dist.get_rank(), dist.get_world_size()
    )
    sampler.set_epoch = lambda epoch: None
    return sampler, ShardSampler(validation), ShardSampler(test)


# %% nbgrader={"grade": false, "grade_id": "todo_3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def my_part_3(order: list[int], rank: int, world: int) -> list[int]:
    """This rank's samples, assigned to ranks in turn,
    so that step k takes the samples that one process would take.
    """
    # TODO 3: Give every rank the same number of samples, none of them twice.
    ### BEGIN SOLUTION
    whole = len(order) - len(order) % world
    return order[rank:whole:world]
    ### STUDENT
    # return order[rank::world]
    ### END SOLUTION


# %%
run = launch("story_3", setup_1, make_samplers_3, samples=47, flags="--log-every 100")
print(run)
for rank in range(2):
    print(f"\n--- rank {rank}\n{run.log(rank, 26)}")


# %% nbgrader={"grade": false, "grade_id": "todo_3_question", "locked": false, "schema_version": 3, "solution": true, "task": false}
def story_3() -> tuple[int, str, str]:
    """In the run as given: the rank with one batch too many; what it did when the run died (the
    innermost function of ddp_training in its stack);
    and the innermost function of ddp_training in the other rank's stack.
    """
    # TODO 3, again: what did the stacks say?
    ### BEGIN SOLUTION
    return 0, "train_epoch", "global_mean"
    ### STUDENT
    # return -1, "", ""
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_3", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("11_when_it_hangs/3")

# %% [markdown]
# ## Story 4: the batch that did not fit
#
# *"The network is broken: Connection reset by peer."* One rank had a batch with long sequences, which did not fit
# into memory, and the colleague skips such batches. (Here, the third batch of rank 1 asks for more than any machine
# has.)
#
# A rank that skips a step skips its collectives as well. The others wait for it, or its next call meets their
# previous one. The rule: **a rank may handle an error alone only by ending**. Then `torchrun` ends the others, and
# its summary names the rank that crashed *first*; look for that one, because all other errors follow from it. (A
# script that prints `error: …` itself, as ours does, ends without such a summary.)


# %%
def wrap_4(model: nn.Module, device: torch.device) -> nn.Module:
    """DDP. On rank 1 the third batch does not fit."""
    calls = []

    def need_memory(*_: Any) -> None:
        calls.append(1)
        if dist.get_rank() == 1 and len(calls) == 3:
            torch.empty(1 << 50)

    model.register_forward_pre_hook(need_memory)
    return DistributedDataParallel(model)


# %% nbgrader={"grade": false, "grade_id": "todo_4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def compute_loss_4(model: nn.Module, x: Tensor, y: Tensor, args: Namespace) -> Tensor:
    """The mean loss of this rank's part of the batch."""
    # TODO 4: Let the run end at the first failure, with its true cause.
    ### BEGIN SOLUTION
    return model(x, y)
    ### STUDENT
    # try:
    #     return model(x, y)
    # except RuntimeError:  # out of memory: continue without this batch
    #     return torch.zeros((), requires_grad=True)
    ### END SOLUTION


# %%
run = launch("story_4", setup_1, wrap_4, compute_loss_4)
print(run, (run.folder / "torchrun.log").read_text(), sep="\n")
for rank in range(2):
    print(f"\n--- rank {rank}\n{run.log(rank, 8)}")


# %% nbgrader={"grade": false, "grade_id": "todo_4_question", "locked": false, "schema_version": 3, "solution": true, "task": false}
def story_4() -> tuple[int, int]:
    """The rank that ran out of memory, and how many bytes it asked for."""
    # TODO 4, again: what does the log say, now that the cause is in it?
    ### BEGIN SOLUTION
    return 1, 4503599627370496
    ### STUDENT
    # return -1, 0
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_4", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("11_when_it_hangs/4")

# %% [markdown]
# ## Story 5: two nodes that do not meet
#
# *"On one node it runs. On two, nothing happens for ten minutes; then: timed out."* All ranks meet at a **store**, a
# small server that rank 0 starts at `MASTER_ADDR:MASTER_PORT`. A wrong address, port or interface looks the same from
# everywhere: silence for minutes, then this. (Here after two seconds, on a port where no process listens.)


# %%
def setup_5() -> tuple[int, int, int, torch.device]:
    """Looks for the store on a port where no process listens, for two seconds."""
    dist.TCPStore("127.0.0.1", 9, world_size=2, is_master=False, timeout=timedelta(seconds=2))


# %%
run = launch("story_5", setup_5, nproc=2)
print(run, run.log(0, 3), sep="\n")

# %% [markdown]
# The address must be the **first** node's, as seen from every node. In the colleague's batch file, each node finds
# the address on its own. The judge runs the file with stand-ins for Slurm's commands, which record what each node
# would start.


# %% nbgrader={"grade": false, "grade_id": "todo_5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def meeting_place_5() -> tuple[str, str]:
    """The command that the batch file runs before `srun`,
    and the command that each node runs before torchrun.
    """
    # TODO 5: Let all nodes meet at one address. Only the batch file itself runs on the first node.
    ### BEGIN SOLUTION
    before = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    on_each_node = ":"
    ### STUDENT
    # before = ":"
    # on_each_node = "export MASTER_ADDR=$(hostname)"
    ### END SOLUTION
    return before, on_each_node


def story_5() -> tuple[int, int]:
    """In the job as given, but on three nodes: how many ranks wait at node 0's store, and how many look
    for a store at an address where there is none."""
    # TODO 5, again: torchrun starts the store on node rank 0 only. Which address does each node find?
    ### BEGIN SOLUTION
    return 4, 8
    ### STUDENT
    # return 0, 0
    ### END SOLUTION


# %%
def batch_file_5() -> str:
    """The whole batch file, for two nodes with four GPUs each."""
    before, on_each_node = meeting_place_5()
    return f"""\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
set -eo pipefail
[ -d train ] || cd ..
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
{before}
srun bash -c '{on_each_node}
    exec torchrun --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" --nproc-per-node=4 \\
    --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" train/when_it_hangs.py'
"""


print(batch_file_5())

# %% nbgrader={"grade": true, "grade_id": "test_5", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("11_when_it_hangs/5")

# %% [markdown]
# **This is a good place to stop.** Part 2 is about runs that continue.

# %% [markdown]
# # Part 2: it continues, and is wrong or slow
#
# Here no rank complains. What helps is to **compare ranks**: what must be equal on all of them (weights, the order of
# calls), what must differ (data), what must be finite, and what must take the same time. One number from each rank,
# gathered once in a while, finds most faults.

# %% [markdown]
# ## Story 6: the batch that shrank
#
# *"The losses differ a little from one process's. Rounding?"* Samples are checked by the processes that load
# data, the loader's workers. An exception in a worker is raised again in its rank, with the worker's traceback,
# unless it is caught before. The number to compare is the count of samples in a step: over all ranks it is the global
# batch.


# %%
def checked(sample: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The sample, if it is intact. In this story, samples whose first word is number 22 are not."""
    if sample[0][0] == 22:
        raise ValueError(f"a sample that begins with word {sample[0][0]}: its checksum differs")
    return sample


def make_loaders_6(sets: tuple, samplers: tuple, args: Namespace, world_size: int) -> tuple:
    """Loaders with one worker each, which checks samples."""
    size = args.batch_size // world_size
    return tuple(
        DataLoader(
            part, size, sampler=sampler, drop_last=part is sets[0], num_workers=1, collate_fn=collate_6
        )
        for part, sampler in zip(sets, samplers, strict=True)
    )


def compute_loss_6(model: nn.Module, x: Tensor, y: Tensor, args: Namespace) -> Tensor:
    """The loss; prints how many samples it had."""
    if model.training:
        print(f"{len(x)} samples", flush=True)
    return model(x, y)


# %% nbgrader={"grade": false, "grade_id": "todo_6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def collate_6(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A batch of all `samples`."""
    # TODO 6: Lose no sample silently.
    ### BEGIN SOLUTION
    return default_collate([checked(sample) for sample in samples])
    ### STUDENT
    # sound = []
    # for sample in samples:
    #     try:
    #         sound.append(checked(sample))
    #     except ValueError:
    #         pass
    # return default_collate(sound)
    ### END SOLUTION


# %%
run = launch("story_6", setup_1, make_loaders_6, compute_loss_6)
print(run)
for rank in range(2):
    print(f"\n--- rank {rank}\n{run.log(rank, 30)}")


# %% nbgrader={"grade": false, "grade_id": "todo_6_question", "locked": false, "schema_version": 3, "solution": true, "task": false}
def story_6() -> tuple[str, str]:
    """After your fix: the type of the exception that ends the run, and where the log says that it was
    caught, "the main process" or "a worker"."""
    # TODO 6, again: what does the traceback say?
    ### BEGIN SOLUTION
    return "ValueError", "a worker"
    ### STUDENT
    # return "", ""
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_6", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("11_when_it_hangs/6")

# %% [markdown]
# ## Story 7: not a number
#
# *"The loss of the epoch is nan."* Which rank had it first, and when? After the gradients have been averaged, nothing
# shows it: NaN plus anything is NaN, so one step later all ranks have it. The number to compare is the norm of each
# rank's gradient **before** the mean. (`torch.autograd.set_detect_anomaly(True)` then names the operation, and is
# slow.)


# %%
SEEN = []


def make_optimizer_7(model: nn.Module, args: Namespace) -> Optimizer:
    """Prints this rank's norm before the mean, then averages."""

    def average(*_: Any) -> None:
        gradients = [parameter.grad for parameter in model.parameters()]
        print(f"norm {torch.cat([gradient.flatten() for gradient in gradients]).norm():.3f}", flush=True)
        for gradient in gradients:
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()

    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    optimizer.register_step_pre_hook(average)
    return optimizer


def wrap_7(model: nn.Module, device: torch.device) -> nn.Module:
    return model


def compute_loss_7(model: nn.Module, x: Tensor, y: Tensor, args: Namespace) -> Tensor:
    """In this story, the third batch of rank 1 contains only padding. Only the mask removes padding."""
    SEEN.append(1)
    if dist.get_rank() == 1 and len(SEEN) == 3:
        y = torch.full_like(y, IGNORE)
    losses_N = F.cross_entropy(model(x).flatten(0, 1), y.flatten().clamp(min=0), reduction="none")
    return masked_mean_7(losses_N, y.flatten())


# %% nbgrader={"grade": false, "grade_id": "todo_7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def masked_mean_7(losses_N: Tensor, y_N: Tensor) -> Tensor:
    """The mean of the losses whose target is not IGNORE; 0, with a gradient of zeros,
    if there is no such target.
    """
    counts_N = y_N != IGNORE
    # TODO 7: Keep the promise for a batch that contains only padding, too.
    ### BEGIN SOLUTION
    return (losses_N * counts_N).sum() / counts_N.sum().clamp(min=1)
    ### STUDENT
    # return (losses_N * counts_N).sum() / counts_N.sum()
    ### END SOLUTION


# %%
run = launch("story_7", setup_1, wrap_7, make_optimizer_7, compute_loss_7, flags="--log-every 100")
print(run)
for rank in range(2):
    print(f"\n--- rank {rank}\n{run.log(rank, 7)}")


# %% nbgrader={"grade": false, "grade_id": "todo_7_question", "locked": false, "schema_version": 3, "solution": true, "task": false}
def story_7() -> tuple[int, int, int]:
    """In the run as given: the rank whose gradient is the first that is not finite, in which step
    (from 1), and how many of the two ranks have a finite gradient one step later."""
    # TODO 7, again: what do the norms say?
    ### BEGIN SOLUTION
    return 1, 3, 0
    ### STUDENT
    # return -1, 0, -1
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_7", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("11_when_it_hangs/7")

# %% [markdown]
# ## Story 8: one is slow, all are slow
#
# *"Half the speed of last week, on all ranks alike."* All ranks show the same time for a step, because they wait for
# each other. Look at how they spend it: **the straggler is the rank that does not wait.** The report of a run
# (`--record`, `./workbook report`) has each rank's step in parts. Time in which a rank only waits for messages is
# called communication there, and most of it is waiting for other ranks.


# %%
def histograms(model: nn.Module) -> None:
    """For the dashboard: the distribution of the weights."""
    for _ in range(40):
        torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).sort()


# Without setup_1: no rank hangs in this story, but on a busy machine a rank may wait longer than 8
# seconds.
def make_optimizer_8(model: nn.Module, args: Namespace) -> Optimizer:
    optimizer, steps = torch.optim.AdamW(model.parameters(), lr=args.lr), []

    def after_step(*_: Any) -> None:
        steps.append(1)
        note_8(model, len(steps), args.log_every)

    optimizer.register_step_post_hook(after_step)
    return optimizer


# %% nbgrader={"grade": false, "grade_id": "todo_8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def note_8(model: nn.Module, step: int, log_every: int) -> None:
    """Called after each step: on every log_every-th step, rank 0 draws `histograms` of the weights."""
    # TODO 8: Do what the docstring says, and no more.
    ### BEGIN SOLUTION
    if dist.get_rank() == 0 and step % log_every == 0:
        histograms(model)
    ### STUDENT
    # if dist.get_rank() == 0:
    #     histograms(model)
    ### END SOLUTION


# %%
run = launch("story_8", make_optimizer_8, samples=240, flags="--record --log-every 20")
print(run)

from utils.plots.base import Picture
from utils.report import pictures, runs

out = run.folder / "out"
Picture(lambda: pictures.draw_step(runs.read(out))) if run.code == 0 else print(run.log(0, 30))


# %% nbgrader={"grade": false, "grade_id": "todo_8_question", "locked": false, "schema_version": 3, "solution": true, "task": false}
def story_8() -> tuple[int, str]:
    """In the run as given: the rank that all others wait for, and the part of a step in which the others
    spend more time than it does."""
    # TODO 8, again: what does the timeline say?
    ### BEGIN SOLUTION
    return 0, "communication"
    ### STUDENT
    # return -1, ""
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_8", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("11_when_it_hangs/8")

# %% [markdown]
# ## Story 9: every rank reads the same
#
# *"Four GPUs, and the loss falls no faster than with one."* The colleague draws random windows of the text, with a
# generator that has the same seed on all ranks, so that runs can be repeated. The number to compare is a checksum of
# each rank's batch. Here the fault is that it is **equal**: four ranks compute the same gradient.


# %% nbgrader={"grade": false, "grade_id": "todo_9", "locked": false, "schema_version": 3, "solution": true, "task": false}
def starts_9(step: int, batch_size: int, length: int, rank: int, world: int, seed: int) -> Tensor:
    """Where this rank's windows of a step start, (batch_size // world,) int64, drawn from range(length).

    All ranks together read what one process would read in this step, however many they are.
    """
    generator = torch.Generator().manual_seed(1_000_003 * seed + step)
    # TODO 9: Give each rank its own part of one draw.
    ### BEGIN SOLUTION
    return torch.randint(length, (batch_size,), generator=generator)[rank::world]
    ### STUDENT
    # return torch.randint(length, (batch_size // world,), generator=generator)
    ### END SOLUTION


# %%
def make_samplers_9(sets: tuple, args: Namespace) -> tuple:
    train, validation, test = sets
    rank, world = dist.get_rank(), dist.get_world_size()
    steps = [starts_9(step, args.batch_size, len(train), rank, world, args.seed) for step in range(4)]
    sampler = ShardSampler(train, 0, 1)
    sampler.indices = torch.cat(steps).tolist()
    sampler.set_epoch = lambda epoch: None
    return sampler, ShardSampler(validation), ShardSampler(test)


def compute_loss_9(model: nn.Module, x: Tensor, y: Tensor, args: Namespace) -> Tensor:
    if model.training:
        print(
            f"{len(x)} samples, checksum {(x * torch.arange(1, x.numel() + 1).view_as(x)).sum()}",
            flush=True,
        )
    return model(x, y)


run = launch("story_9", setup_1, make_samplers_9, compute_loss_9, nproc=4)
print(run)
for rank in range(4):
    print(
        f"rank {rank}:", *[line for line in run.log(rank).splitlines() if "checksum" in line], sep="\n  "
    )


# %% nbgrader={"grade": false, "grade_id": "todo_9_question", "locked": false, "schema_version": 3, "solution": true, "task": false}
def story_9() -> tuple[int, int]:
    """With a batch of 12 on 4 ranks: how many different windows all ranks together read in a step, in
    the run as given, and after your fix."""
    # TODO 9, again: what do the checksums above say?
    ### BEGIN SOLUTION
    return 3, 12
    ### STUDENT
    # return 0, 0
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_9", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("11_when_it_hangs/9")

# %% [markdown]
# ## Story 10: four models
#
# *"The loss falls, on every rank; but the checkpoint is bad."* The colleague averages gradients by hand, and sends
# rank 0's first weights to all. Equal steps keep weights **as far apart as they were**. The number to compare is a
# checksum of the weights; it must be the same on all ranks, to the last bit.


# %% nbgrader={"grade": false, "grade_id": "todo_10", "locked": false, "schema_version": 3, "solution": true, "task": false}
def wrap_10(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with rank 0's weights and buffers, on every rank."""
    for received in model.state_dict().values():
        # TODO 10: Put the received weights into the model.
        ### BEGIN SOLUTION
        dist.broadcast(received, src=0)
        ### STUDENT
        # dist.broadcast(received.clone(), src=0)  # only the weights, without their gradients
        ### END SOLUTION
    return model


# %%
def make_optimizer_10(model: nn.Module, args: Namespace) -> Optimizer:
    """Averages gradients; each rank has drawn its own first weights."""
    torch.manual_seed(dist.get_rank())
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02) if parameter.ndim > 1 else None
    wrap_10(model, torch.device("cpu"))

    def average(*_: Any) -> None:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizer.register_step_pre_hook(average)
    return optimizer


def compute_loss_10(model: nn.Module, x: Tensor, y: Tensor, args: Namespace) -> Tensor:
    loss = model(x, y)
    if model.training:
        print(
            f"loss {loss:.3f}, checksum {sum(p.double().sum() for p in model.parameters()):.6f}",
            flush=True,
        )
    return loss


run = launch("story_10", setup_1, wrap_7, make_optimizer_10, compute_loss_10, samples=240)
print(run)
for rank in range(2):
    lines = [line for line in run.log(rank).splitlines() if line.startswith("loss")]
    print(f"\n--- rank {rank}", *lines[:2], "…", *lines[-2:], sep="\n")


# %% nbgrader={"grade": false, "grade_id": "todo_10_question", "locked": false, "schema_version": 3, "solution": true, "task": false}
def story_10() -> tuple[bool, bool]:
    """In the run as given: whether every rank's loss falls; and whether the checksums of two ranks
    differ by less than 1e-4 after the last step."""
    # TODO 10, again: what do the logs say?
    ### BEGIN SOLUTION
    return True, False
    ### STUDENT
    # return False, True
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_10", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("11_when_it_hangs/10")

# %% [markdown]
# ## Recap
#
# - A collective waits for all ranks. Make the limit short, keep a log for each rank, and read all of them.
# - The first error is the cause; `Connection reset by peer` and most others are consequences.
# - A barrier, a longer limit or a `try` around the error hides a fault and moves it elsewhere.
# - Calls are matched by their order. Whatever decides on a call, or on its place in the order, must be the same on
#   all ranks.
# - Compare one number from each rank: weights equal, data different, gradients finite, samples complete, times
#   similar.
# - `./workbook preflight` checks the nodes before a long run: versions, links, storage, clocks.
#
# Further reading: torch's [flight recorder](https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html)
# and
# [`TORCH_DISTRIBUTED_DEBUG`](https://docs.pytorch.org/docs/stable/distributed.html#debugging-torch-distributed-applications);
# [py-spy](https://github.com/benfred/py-spy). How often it happens at scale: 466 interruptions of a job in 54 days, in
# The Llama 3 Herd of Models, section 3.3.4, [2407.21783](https://arxiv.org/abs/2407.21783); hangs and stragglers at
# 10,000 GPUs in MegaScale, [2402.15627](https://arxiv.org/abs/2402.15627).
#
# This lesson was about bugs. `resilient_training` is about failures without a bug, and how a run survives them.
