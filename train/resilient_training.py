"""Train for longer than one job: stopped at its limit, killed, or after losing a node, the run resumes where it was.

Two processes:  torchrun --local-addr 127.0.0.1 --nproc-per-node 2 train/resilient_training.py --save-every 20
Resume:         the same line again, whatever ended the run; also with a different --nproc-per-node
Unattended:     export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # otherwise, on gloo, new ranks may find old addresses
                torchrun --local-addr 127.0.0.1 --nproc-per-node 2 --max-restarts 3 train/resilient_training.py
One process:    python train/resilient_training.py --save-every 20
More nodes:     sbatch sbatch/resilient_training.sbatch              (JURECA)
                qsub sbatch/resilient_training.pbs                   (Polaris)

The folder --out is the run: the script resumes from the newest checkpoint in it, and starts from scratch if there is
none. Whatever happens in between, the run has the losses of a run that was never stopped. No checkpoint is deleted:
remove old folders step-… yourself, and unfinished-… when no run writes there.

It builds on fsdp_training (sharded checkpoints with DCP, torch.distributed.checkpoint). It starts as that script's
solution with --sharding full (what that lesson taught is now in utils/after_fsdp_training.py), and runs at any time.
Fill the TODOs in the order of their numbers, which is not always the order of the lines; `./workbook check
resilient_training` says how far you have got.

In five lines:
- Write a checkpoint under a temporary name, and rename it when all ranks have written: it is complete or absent.
- Save everything that changes from step to step; state that differs between ranks needs one name per rank.
- A script that may be restarted at any time looks for the newest checkpoint; all ranks load the same one.
- A signal handler only sets a flag; after each step all ranks agree whether to stop.
- The global batch and the order of the samples do not depend on the number of ranks.

Papers: the best interval between checkpoints, Young 1974, https://doi.org/10.1145/361147.361115; checkpoints while
training continues, CheckFreq, https://www.usenix.org/conference/fast21/presentation/mohan; failures in a run of 54 days
on 16,384 GPUs, Llama 3, https://arxiv.org/abs/2407.21783 (section 3.3.4).
"""

import argparse
import math
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

# The course's folder is the nearest one above this file that holds utils/.
sys.path.insert(0, str(next(p for p in Path(__file__).resolve().parents if (p / "utils").is_dir())))

from utils.after_ddp_training import global_mean, setup
from utils.after_fsdp_training import first_weights, in_step, precision, recompute
from utils.arguments import training_parser, whole
from utils.data import IGNORE, ShardSampler
from utils.device_memory import device_memory
from utils.devices import accelerator
from utils.distributed import check_averages, cleanup, fail, from_rank0, print0, save0, set_batch_size
from utils.job import prepare, say_what_runs
from utils.metrics import Metrics
from utils.model import TransformerLM
from utils.training import Loaders, Samplers, Sets, check_position, make_optimizer, make_sets, perplexity

# What must match to resume: the order of the samples depends on it, or the optimizer's state holds it.
SAME = ("batch_size", "seq_len", "seed", "lr", "weight_decay")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = training_parser("resilient_training")
    add = parser.add_argument
    add("--recompute", action="store_true", help="recompute activations in the backward pass (checkpointing)")
    add("--save-every", type=whole(0), default=50, help="steps between checkpoints; 0: only when stopped")
    add("--async-save", action="store_true", help="write checkpoints while training continues")
    args = parser.parse_args(argv)
    if args.dim % args.heads:
        parser.error(f"--dim {args.dim} is not divisible by --heads {args.heads}")
    return args


# A checkpoint: its content, how it is written, how it is found


def generators() -> ModuleType:
    """The module of torch with the generator of this rank's device."""
    return torch.get_device_module(accelerator()) if accelerator() else torch


def random_state() -> Tensor:
    """The state of the generator that this rank's dropout draws from."""
    return generators().get_rng_state()


def set_random_state(state: Tensor) -> None:
    state = state.clone()  # torch takes a tensor for a whole storage, and a row of a larger one is none
    generators().set_rng_state(state)


def contents(model: nn.Module, optimizer: torch.optim.Optimizer, position: dict[str, Any]) -> dict[str, Any]:
    """Everything that a checkpoint holds, by name. Every rank contributes its part."""
    weights, state = get_state_dict(model, optimizer)
    # TODO 4: Save everything that the run needs to resume as if it had not stopped. `position` has the steps done, the
    # mean loss of this epoch so far, the lowest validation loss, and what must match to resume. Dropout draws from
    # random_state(), which differs from rank to rank. dcp.save treats values differently: for a sharded tensor each
    # rank writes its shards; any other value with one name on several ranks is written once, by one of them.
    return {"model": weights, "optimizer": state, "position": {"step": position["step"]}}


def restore(
    model: nn.Module, optimizer: torch.optim.Optimizer, position: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """Load a checkpoint, on however many ranks, into model and optimizer. Returns the position."""
    saved = contents(model, optimizer, position)
    # TODO 4, again: restore everything that was saved.
    # dcp.load fills the dictionary that it is given, and raises an error for a name that the checkpoint does not
    # have. There may be more ranks now than when it was saved: a rank without a random state in the checkpoint keeps
    # its own. saved_names(folder) lists the names.
    dcp.load(saved, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
    return position | saved["position"]


def saved_names(folder: Path) -> set[str]:
    """The names that dcp.save has written there; nested dictionaries are joined with dots: position.step."""
    return set(dcp.FileSystemReader(folder).read_metadata().state_dict_metadata)


def saved_batch_size(folder: Path) -> int | None:
    """The global batch size that was saved; None if the checkpoint has none."""
    if "position.batch_size" not in saved_names(folder):
        return None
    saved = {"position": {"batch_size": 0}}
    dcp.load(saved, checkpoint_id=folder)
    return saved["position"]["batch_size"]


def save_whole(state: dict[str, Any], out: Path, step: int) -> None:
    """Write the checkpoint out/step-STEP. All ranks call it."""
    # TODO 1: Whenever all processes are killed, every folder step-NUMBER must be a complete checkpoint, and earlier
    # checkpoints must still exist. dcp.save makes the folder; each rank writes its file; when all have done so, rank 0
    # adds .metadata and the call returns. Renaming a folder is atomic: it happens, or it does not. The leftovers of a
    # killed run must not get in the way: a folder cannot be renamed to a folder that exists and is not empty
    # (`shutil.rmtree` removes one). When the call returns on any rank, the checkpoint has its name.
    dcp.save(state, checkpoint_id=out / f"step-{step}")


def begin_save(state: dict[str, Any], out: Path, step: int, group: dist.ProcessGroup) -> Callable[[], None]:
    """Start writing the checkpoint out/step-STEP while training continues. Returns the function that completes it."""
    # TODO 9: Copy the state now, and write it in the background. dcp.async_save takes the arguments of dcp.save; it
    # copies the tensors to CPU memory, and returns a future while a thread writes. The future's result() waits for
    # the end, and raises any error. The threads of all ranks communicate while the ranks themselves do: pass as
    # process_group the `group` that nothing else uses, so that the messages do not mix. The folder must not get its
    # final name earlier than in TODO 1, nor after an error, which finish() must raise. As in TODO 1, leftovers must not
    # get in the way, and the checkpoint has its name when finish() returns on any rank.
    save_whole(state, out, step)
    return lambda: None


def find_newest(out: Path) -> Path | None:
    """The folder of the newest complete checkpoint in a run's folder; None if there is none."""
    # TODO 2: Find the checkpoint with the most steps. Sorted by name, step-90 comes after step-100. Sorted by time, a
    # copied checkpoint comes last. A checkpoint's name is step- and a number, and nothing else: step-50.part is none.
    # And a folder may be incomplete, if a script without TODO 1, or a copy, was killed while it wrote it. A complete one
    # contains .metadata, which is written last.
    return None


# A run that resumes


def choose_start(out: Path) -> Path | None:
    """The checkpoint that the run resumes from; None: it starts from scratch. The same on all ranks."""
    # TODO 5: Resume without being told from which checkpoint: at night there is no operator. torchrun
    # --max-restarts restarts all processes when one is lost, and a scheduler restarts the job, both with the same
    # command. All ranks must start from the same checkpoint, but on a network file system, some see a new folder
    # later than others. from_rank0(text) returns rank 0's text on every rank.
    return None


def find_epoch(step: int, an_epoch: int) -> tuple[int, int]:
    """The epoch, from 0, that a run is in after `step` steps, and how many of its `an_epoch` steps are done."""
    # TODO 3: Find the place in the data at which to resume.
    # Otherwise some samples count twice in their epoch, and others not at all. After the last step of an epoch, the
    # run is still in it: validation comes next.
    return 0, 0


def share_batch(args: argparse.Namespace, saved: int | None, world_size: int) -> None:
    """Set args.batch_size, the global batch. `saved` is the run's batch size so far, None at its start."""
    # TODO 8: Keep the global batch, however many ranks the run resumes with.
    # --batch-size-per-rank 6 makes 24 on four ranks, and would make 18 on the three that are left: a different
    # optimizer step, with different samples. set_batch_size multiplies args.batch_size_per_rank, unless that is None,
    # and stops the run where the ranks cannot divide the batch. A different --batch-size is refused further down.
    set_batch_size(args, world_size)


# A run that is asked to stop


def listen() -> list[int]:
    """The signals that have asked this process to stop: a list that grows as they arrive."""
    came: list[int] = []
    # TODO 6: Record the numbers of SIGUSR1 and SIGTERM, and continue. Ctrl-C still ends the run.
    # Without a handler each of them ends the process. A handler may run between any two lines of the program, even in
    # the middle of a step, and at different places on different ranks, so it must not save. signal.signal(number,
    # handler) installs handler(number, frame).
    pass
    return came


def agree_to_stop(came: list[int], device: torch.device) -> bool:
    """Whether to stop after this step: the same answer on all ranks. All call it after every step."""
    # TODO 7: Stop all ranks at the same step, as soon as one of them has been asked to.
    # A signal reaches the ranks at different moments, or only one of them. If one rank saves while another starts its
    # next step, each waits for the other.
    return False


# Training, as in fsdp_training


def make_samplers(sets: Sets, args: argparse.Namespace) -> Samplers:
    """Which samples this rank reads, in which order."""
    train, validation, test = sets
    return (
        DistributedSampler(train, shuffle=True, seed=args.seed, drop_last=True),
        ShardSampler(validation),
        ShardSampler(test),
    )


def make_loaders(sets: Sets, samplers: Samplers, args: argparse.Namespace, world_size: int) -> Loaders:
    """This rank's batches of (x, y)."""
    train, validation, test = sets
    train_sampler, validation_sampler, test_sampler = samplers
    common = {"batch_size": args.batch_size // world_size, "num_workers": args.workers}
    common["pin_memory"] = bool(accelerator())
    # A loader draws a number whenever it starts. It must not come from dropout's generator, which must not depend on
    # stops.
    common["generator"] = torch.Generator()
    train_loader = DataLoader(train, sampler=train_sampler, drop_last=True, **common)
    validation_loader = DataLoader(validation, sampler=validation_sampler, **common)
    test_loader = DataLoader(test, sampler=test_sampler, **common)
    return train_loader, validation_loader, test_loader


def build_model(vocab_size: int, device: torch.device, args: argparse.Namespace) -> nn.Module:
    """The model, sharded over all ranks, with the serial run's first weights."""
    with torch.device("meta"):
        model = TransformerLM(vocab_size, args.dim, args.heads, args.layers, args.seq_len, args.dropout, args.kv_heads)
    if args.recompute:
        recompute(model)
    options = {"mesh": init_device_mesh(device.type, (dist.get_world_size(),)), "mp_policy": precision(args)}
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options, reshard_after_forward=False)
    first_weights(model, device, args)
    torch.manual_seed(args.seed + dist.get_rank())  # from here on only dropout draws: each rank drops different values
    return model


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, device: torch.device, args: argparse.Namespace) -> float:
    """Mean loss over tokens. The mean of the batches' means would give a short last batch too much weight."""
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=device)
    count = torch.zeros((), dtype=torch.float64, device=device)
    for x, y in in_step(loader, device, args):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        n_targets = (y != IGNORE).sum()
        total += model(x, y).double() * n_targets
        count += n_targets
    return global_mean(total, count)


def train_epoch(
    model: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    args: argparse.Namespace,
    metrics: Metrics,
    epoch: int,
    done: int,
    position: dict[str, Any],
    came: list[int],
    group: dist.ProcessGroup,
) -> tuple[float, bool]:
    """The rest of one pass over the training set, after `done` of its steps. Returns the pass's mean loss, and
    whether it was stopped before its end.

    `position` is kept up to date; it is saved every args.save_every steps, and when a signal `came` that asks to stop.
    The ranks use `group` for saving while they train.
    """
    model.train()
    # Sums and counts: since the last line of the log, and over the epoch.
    total, count, epoch_total, epoch_count = torch.zeros(4, dtype=torch.float64, device=device)
    # The part of this epoch that an earlier job did counts, too: here, this rank's fraction of it.
    epoch_count += done * args.batch_size * args.seq_len / dist.get_world_size()
    epoch_total += position["loss"] * epoch_count
    step, last_step, last_time, stopped = position["step"], position["step"], time.perf_counter(), False
    finish: Callable[[], None] = list  # completes the checkpoint that is being written; none is, so far
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip or math.inf).full_tensor().item()
        optimizer.step()
        step += 1

        # detach: a sum of losses would otherwise keep the graph of every step alive.
        total += loss.detach().double() * y.numel()
        count += y.numel()
        position["step"], stopped = step, agree_to_stop(came, device)
        if step % args.log_every == 0 or step == args.max_steps or stopped:
            epoch_total, epoch_count = epoch_total + total, epoch_count + count
            # global_mean waits for the device, so only now may the clock be read.
            mean, now = global_mean(total, count), time.perf_counter()
            speed = (step - last_step) * args.batch_size * args.seq_len / (now - last_time)
            metrics.log("step", step, epoch=epoch + 1, loss=mean, gradient_norm=norm, tokens_per_s=speed)
            total, count = torch.zeros(2, dtype=torch.float64, device=device)
            last_step, last_time = step, now
        if stopped or (args.save_every and step % args.save_every == 0):
            position["loss"] = global_mean(epoch_total + total, epoch_count + count)
            finish()
            state, finish = contents(model, optimizer, position), lambda: None
            if args.async_save and not stopped:
                finish = begin_save(state, Path(args.out), step, group)
            else:
                save_whole(state, Path(args.out), step)
        if stopped:
            break
    finish()
    return global_mean(epoch_total + total, epoch_count + count), stopped


def save_model(model: nn.Module, config: dict[str, Any], path: Path, epoch: int) -> None:
    """Weights and sizes, no objects: `utils.checkpoints.load_model` reads it anywhere."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    full = get_model_state_dict(model, options=options)  # on all ranks; rank 0 gets it
    save0({"model": full, "config": config, "epoch": epoch}, path)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    prepare(args)  # the device that --device asks for
    came = listen()  # early: a signal that comes before this line ends the process
    rank, local_rank, world_size, device = setup()
    check_averages(device, world_size)
    group = dist.new_group(backend="gloo")  # for saving during training
    out = Path(args.out)
    folder = choose_start(out)
    share_batch(args, saved_batch_size(folder) if folder else None, world_size)
    sets, vocab_size = make_sets(args)
    samplers = make_samplers(sets, args)
    train_loader, validation_loader, test_loader = make_loaders(sets, samplers, args, world_size)
    model = build_model(vocab_size, device, args)
    optimizer = make_optimizer(model, args)

    # The state of the run: steps done, mean loss of this epoch so far, lowest validation loss; and what must match.
    position = {"step": 0, "loss": 0.0, "best": math.inf} | {name: getattr(args, name) for name in SAME}
    if folder:
        position = restore(model, optimizer, position, folder)
    first_epoch, done = find_epoch(position["step"], len(train_loader))
    total_steps = min(args.epochs * len(train_loader), args.max_steps or math.inf)
    check_position(position, args, SAME, total_steps, folder)

    start = time.perf_counter()
    metrics = Metrics(out, rank, total_steps, args.tensorboard, args.record, after=position["step"])
    say_what_runs(args, device)
    print0(f"resumes from {folder}" if folder else f"starts; no checkpoint in {out}")
    with metrics, device_memory(args.device_memory, device):
        for epoch in range(first_epoch, args.epochs):
            samplers[0].set_epoch(epoch)
            batches = islice(train_loader, done, done + total_steps - position["step"])
            train_loss, stopped = train_epoch(
                model, batches, optimizer, device, args, metrics, epoch, done, position, came, group
            )
            if stopped:
                print0(f"asked to stop: saved at step {position['step']}; the same command resumes from there")
                break
            done = 0
            validation_loss = evaluate(model, validation_loader, device, args)
            print0(
                f"[{epoch + 1}/{args.epochs}] train loss {train_loss:.4f}, "
                f"validation loss {validation_loss:.4f}, perplexity {perplexity(validation_loss):.1f}"
            )
            step, seconds = position["step"], time.perf_counter() - start
            metrics.log(
                "epoch", step, epoch=epoch + 1, loss=train_loss, validation_loss=validation_loss, seconds=seconds
            )
            if epoch == 0 or validation_loss < position["best"]:
                position["best"] = validation_loss
                save_model(model, model.config, out / "model-best.pt", epoch + 1)
            if step == total_steps:
                break
        if not stopped:
            test_loss = evaluate(model, test_loader, device, args)
            print0(f"test loss {test_loss:.4f}, perplexity {perplexity(test_loss):.1f}")
            metrics.log("test", step, loss=test_loss, seconds=time.perf_counter() - start)
            save_model(model, model.config, out / "model-final.pt", epoch + 1)
            print0(f"wrote model-best.pt, model-final.pt and metrics.jsonl to {out}")
    cleanup()


if __name__ == "__main__":
    main()
    # While Python shuts down, either signal would still kill the process, and a finished run would count as failed.
    for late in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(late, signal.SIG_IGN)
