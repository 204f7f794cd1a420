"""Train on text that does not fit into memory: shards on disk, read by several processes, and resumed anywhere.

Two processes:  torchrun --local-addr 127.0.0.1 --nproc-per-node 2 train/streaming_training.py --workers 2
Larger text:    ./workbook data --shards; then --data runs/shards/wikitext-2
Stop, resume:   torchrun --local-addr 127.0.0.1 --nproc-per-node 2 train/streaming_training.py --save-every 20 --max-steps 50
                torchrun --local-addr 127.0.0.1 --nproc-per-node 4 train/streaming_training.py --resume runs/streaming_training
One process:    python train/streaming_training.py
More nodes:     sbatch sbatch/streaming_training.sbatch              (JURECA)
                qsub sbatch/streaming_training.pbs                   (Polaris)

The tokens are in files of a fixed size (utils/shards.py). Rows of --seq-len tokens are cut from them, without padding,
and read in an order that depends on the seed and the epoch alone. Each rank has --workers processes that read ahead; a
reader is one of them, or the rank itself with --workers 0. The losses are the same on any number of ranks and workers,
and the same as with the whole text in memory.

It builds on ddp_training (samplers, the global batch). It starts as that script's solution, with the text in memory
(what that lesson taught is in utils/after_ddp_training.py), and runs at every stage. Fill the TODOs in the order of
their numbers, which is not always the order of the lines; `./workbook check streaming_training` says how far you have
got.

In five lines:
- A few large files, each opened once by each reader and mapped; a map's pages are the system's, and it may drop them.
- The order is a function of seed and epoch, never of the ranks: shuffle blocks, then rows within a buffer of blocks.
- A reader is a rank and a worker: together they read each row once, and each batch is the same on any number of them.
- Targets do not cross documents, so ranks have unequally many: weight each rank's loss by its targets.
- The state of the stream is a few numbers: count what the model has trained on, not what the workers have read ahead.

Papers and manuals: shuffling blocks and a buffer, CorgiPile, https://arxiv.org/abs/2206.05830; packing without
truncation, https://arxiv.org/abs/2404.10830; https://docs.pytorch.org/docs/stable/data.html; what other libraries do
about the same five points, and formats measured: docs/data.md.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

# The course's folder is the nearest one above this file that holds utils/.
sys.path.insert(0, str(next(p for p in Path(__file__).resolve().parents if (p / "utils").is_dir())))

from utils.after_ddp_training import global_mean, setup
from utils.arguments import given, training_parser, whole
from utils.data import IGNORE
from utils.device_memory import device_memory
from utils.devices import accelerator
from utils.distributed import cleanup, fail, print0, save0, set_batch_size
from utils.job import prepare, say_what_runs
from utils.metrics import Metrics
from utils.model import TransformerLM
from utils.shards import Documents, Shards, Split, in_memory
from utils.start_from import start_from
from utils.streams import failures_told, find_shards, load_checkpoint
from utils.training import make_optimizer, perplexity

# What must match to resume, apart from the stream: the sizes of the model, and what the optimizer's state depends on.
SAME = ("batch_size", "dim", "heads", "layers", "optimizer", "lr", "weight_decay")
MOST_WORKERS = 4  # of a rank; to read a row takes far less than to train on it


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = training_parser("streaming_training")
    add = parser.add_argument
    add("--block-rows", type=whole(1), default=256, help="rows that stay together in shuffling: neighbours on the disk")
    add("--buffer", type=whole(1), default=16, help="blocks whose rows are mixed with each other")
    add("--save-every", type=whole(0), default=0, help="steps between checkpoints; 0: none")
    add("--resume", type=given, metavar="FOLDER", help="resume from the checkpoint of a run; dropout will draw different numbers")
    parser.set_defaults(workers=None)
    args = parser.parse_args(argv)
    if args.dim % args.heads:
        parser.error(f"--dim {args.dim} is not divisible by --heads {args.heads}")
    if args.workers is None:
        args.workers = count_workers()
    return args


# Reading: tokens, rows


def read_tokens(split: Split, maps: dict[int, Any], begin: int, end: int) -> Tensor:
    """The tokens [begin, end) of a split, 1-D int64. Each process has its own `maps`, empty at first."""
    # TODO 1: Read these tokens, and no others.
    # split.files are the files, in order: file.path, file.first (the position of its first token), file.tokens. A token
    # is of split.dtype. The range may begin in one file and end in another. Do not read a file as a whole: map it into
    # memory, for reading only, and copy only the range. And do not open a file for every row: on a cluster's file system
    # an open is slow, and thousands of readers share it. What you keep in `maps`, under the file's number, is there at the next call.
    ### BEGIN SOLUTION
    found = [np.zeros(0, split.dtype)]
    for number, file in enumerate(split.files):
        if file.first < end and begin < file.first + file.tokens:
            if number not in maps:
                maps[number] = np.memmap(file.path, split.dtype, "r")
            found.append(maps[number][max(begin - file.first, 0) : end - file.first])
    return torch.from_numpy(np.concatenate(found).astype(np.int64))
    ### STUDENT
    # if not maps:
    #     maps[0] = in_memory(split)
    # return maps[0][begin:end]
    ### END SOLUTION


def make_row(tokens: Tensor, starts: Tensor, eos: int, args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """(x, y) of a row: y has its tokens, and x the token before each of them; both int64 of shape (args.seq_len,).

    `tokens` has the token before the row, then the row's own; fewer than args.seq_len at the end of a text that is
    evaluated. `starts` has the places in the row, from 0, at which documents start.
    """
    x, y = tokens[:-1], tokens[1:]
    missing = args.seq_len - len(y)
    # TODO 2: Train on no target that crosses documents.
    # Rows are cut from the documents one after the other, so there is no padding; but the first token of a document
    # cannot be predicted from the document before it, which has nothing to do with it. The loss ignores a target that
    # is IGNORE. x is unchanged.
    ### BEGIN SOLUTION
    y = y.clone()  # x and y are views of the same numbers
    y[starts] = IGNORE
    ### STUDENT
    # pass
    ### END SOLUTION
    if missing:
        x = torch.cat([x, x.new_full((missing,), eos)])
        y = torch.cat([y, y.new_full((missing,), IGNORE)])
    return x, y


def thrown_away(n_tokens: int, args: argparse.Namespace) -> int:
    """How many of a training set's tokens are in no step of an epoch."""
    # TODO 2, again: count what packing costs at the end.
    # What is left over after the last whole row is in no row, and rows that do not fill a global batch are in no step.
    ### BEGIN SOLUTION
    a_step = args.batch_size * args.seq_len
    return n_tokens - n_tokens // args.seq_len // args.batch_size * a_step
    ### STUDENT
    # return 0
    ### END SOLUTION


# Order: which rows, in which order, on which reader


def shuffled(n_rows: int, epoch: int, args: argparse.Namespace) -> Iterator[Tensor]:
    """All rows of an epoch, 0 … n_rows - 1, in the order in which they are trained on; piece after piece."""
    generator = torch.Generator().manual_seed(args.seed + epoch)
    # TODO 4: Shuffle without reading all over the disk.
    # Rows that are neighbours on the disk form a block: args.block_rows rows, fewer in the last one. Shuffle the blocks.
    # Then take args.buffer blocks at a time, and yield their rows as one tensor, shuffled among each other: a piece comes
    # from few places of the disk. Draw everything from `generator`: the order must be the same on every reader.
    ### BEGIN SOLUTION
    blocks = torch.randperm(-(-n_rows // args.block_rows), generator=generator)
    for own in blocks.split(args.buffer):
        rows = (own[:, None] * args.block_rows + torch.arange(args.block_rows)).flatten()
        rows = rows[rows < n_rows]
        yield rows[torch.randperm(len(rows), generator=generator)]
    ### STUDENT
    # yield torch.randperm(n_rows, generator=generator)
    ### END SOLUTION


def is_own(samples: Tensor, rank: int, world_size: int, worker: int, workers: int, args: argparse.Namespace) -> Tensor:
    """Which of these training samples this reader reads, as booleans. Sample 0 is the first one of this pass."""
    # TODO 5: Deal the samples to the readers.
    # Step k trains on the samples k·B … (k+1)·B - 1, with B = args.batch_size, whatever the number of ranks and workers;
    # each rank takes equally many of them. A rank gets its batches from its workers in turn: the first from worker 0,
    # the second from worker 1, and so on, each batch from one worker. With --workers 0, worker is 0 and workers is 1.
    ### BEGIN SOLUTION
    step, place = samples // args.batch_size, samples % args.batch_size
    return (place // (args.batch_size // world_size) == rank) & (step % workers == worker)
    ### STUDENT
    # return samples % world_size == rank
    ### END SOLUTION


def own_rows(n_rows: int, rank: int, world_size: int, worker: int, workers: int) -> range:
    """The rows that this reader reads of a set that is evaluated."""
    # TODO 6: Divide the rows among all readers, so that each file is opened by as few of them as possible.
    # Here the order does not matter. Each row is read by exactly one reader, and no reader has more than one row more
    # than another. A reader's rows must be neighbours: a file that lies within one reader's rows is opened once.
    ### BEGIN SOLUTION
    reader, readers = rank * workers + worker, world_size * workers
    return range(n_rows * reader // readers, n_rows * (reader + 1) // readers)
    ### STUDENT
    # return range(rank, n_rows, world_size)
    ### END SOLUTION


class Rows(IterableDataset):
    """The rows of a split that this reader reads, as (x, y). A worker has a copy of it, which lives as long as it does."""

    def __init__(
        self, split: Split, eos: int, args: argparse.Namespace, rank: int, world_size: int, train: bool
    ) -> None:
        self.split, self.eos, self.args, self.rank, self.world_size = split, eos, args, rank, world_size
        self.train = train
        self.n_rows = split.tokens // args.seq_len if train else math.ceil(split.tokens / args.seq_len)
        # The epoch, and how many of its samples the run has trained on: in memory that the workers see, too.
        self.place = torch.zeros(2, dtype=torch.int64).share_memory_()
        self.maps: dict[int, Any] = {}
        self.documents: Documents | None = None

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        if self.train:
            rows = self.training_rows(worker, workers)
        else:
            rows = own_rows(self.n_rows, self.rank, self.world_size, worker, workers)
        for row in rows:
            yield self.read(row)

    def training_rows(self, worker: int, workers: int) -> Iterator[int]:
        epoch, done = self.place.tolist()
        left = self.n_rows // self.args.batch_size * self.args.batch_size - done  # samples of this pass
        first = -done
        for rows in shuffled(self.n_rows, epoch, self.args):
            samples = torch.arange(first, first + len(rows))
            first += len(rows)
            here = (samples >= 0) & (samples < left)
            own = is_own(samples[here], self.rank, self.world_size, worker, workers, self.args)
            yield from rows[here][own].tolist()

    def read(self, row: int) -> tuple[Tensor, Tensor]:
        begin = row * self.args.seq_len
        end = min(begin + self.args.seq_len, self.split.tokens)
        tokens = read_tokens(self.split, self.maps, max(begin - 1, 0), end)
        if begin == 0:
            tokens = torch.cat([tokens.new_tensor([self.eos]), tokens])
        self.documents = self.documents or Documents(self.split)
        return make_row(tokens, self.documents.between(begin, end), self.eos, self.args)


# Workers


def count_workers() -> int:
    """How many workers each rank has without --workers."""
    # TODO 7: Use the CPUs that this process may use, and no more.
    # The machine may have more CPUs than the job. Slurm says in SLURM_CPUS_PER_TASK how many its task has; where it says
    # nothing, os.sched_getaffinity(0) has the CPUs of this process (macOS has os.cpu_count() alone). The
    # LOCAL_WORLD_SIZE ranks of the node divide them (both variables may be missing: then it is one rank), and each needs
    # one for itself. Return what is left for a rank's workers: at most MOST_WORKERS; 0 where nothing is left.
    ### BEGIN SOLUTION
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cpus = int(os.environ.get("SLURM_CPUS_PER_TASK") or own)
    return min(max(cpus // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) - 1, 0), MOST_WORKERS)
    ### STUDENT
    # return 0
    ### END SOLUTION


def make_loader(rows: Rows, args: argparse.Namespace, world_size: int) -> DataLoader:
    """This rank's batches of (x, y)."""
    # TODO 7, again: make a loader for workers that stay.
    # Without more words, a loader starts its workers anew in each epoch, and each opens its files again: keep them
    # (DataLoader takes persistent_workers, which must be False where there are no workers). Each worker has two batches
    # ready, by default, before they are asked for. Where there is a GPU, the batches should be in pinned memory, which a
    # GPU reads while it computes.
    ### BEGIN SOLUTION
    return DataLoader(
        rows,
        batch_size=args.batch_size // world_size,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        pin_memory=bool(accelerator()),
    )
    ### STUDENT
    # return DataLoader(rows, batch_size=args.batch_size // world_size, num_workers=args.workers)
    ### END SOLUTION


# Resuming


def stream_state(epoch: int, steps: int, n_rows: int, args: argparse.Namespace) -> dict[str, int]:
    """The state of the stream after `steps` steps of this epoch: a few numbers, by name."""
    # TODO 8: Save where the stream is.
    # A resumed run continues with the very next sample, on more ranks or fewer, with more workers or fewer. A list of the
    # samples so far would grow with the run; what the workers have read ahead is not trained on. Which numbers say where
    # the stream is, and which must be the same again, so that the order is? Names: the flags' own (seq_len
    # for --seq-len), with "epoch", "samples" and "rows" for the rest. --batch-size is looked at elsewhere.
    ### BEGIN SOLUTION
    place = {"epoch": epoch, "samples": steps * args.batch_size, "rows": n_rows}
    return place | {name: getattr(args, name) for name in ("seed", "seq_len", "block_rows", "buffer")}
    ### STUDENT
    # return {}
    ### END SOLUTION


def seek(state: dict[str, int], n_rows: int, args: argparse.Namespace) -> tuple[int, int]:
    """The epoch, and how many of its samples have been trained on, of a stream that was saved in this state."""
    # TODO 8, again: resume from there.
    # Refuse with fail("…") a state of a different order, and name what differs: with different rows, or a different
    # seed, samples would be read twice, and others never, without a word.
    ### BEGIN SOLUTION
    for name, right in stream_state(0, 0, n_rows, args).items():
        if name not in ("epoch", "samples") and state[name] != right:
            fail(f"--resume {args.resume}: it was saved with {name} {state[name]}, and here it is {right}")
    return state["epoch"], state["samples"]
    ### STUDENT
    # return 0, 0
    ### END SOLUTION


# Training, as in ddp_training


def weighted(loss: Tensor, n_targets: Tensor) -> Tensor:
    """The loss to call backward on, from the mean over this rank's targets."""
    # TODO 3: Give every target the same weight.
    # DDP averages the gradients of the ranks. But some targets are ignored, so ranks have unequally many, and a mean of
    # the ranks' means would depend on how the batch is divided. Scale this rank's loss, so that DDP's average is the
    # gradient of the mean over the targets of the global batch. A rank without a target adds nothing; where no
    # rank has one, the loss is 0, not nan.
    ### BEGIN SOLUTION
    total = n_targets.clone()
    dist.all_reduce(total)
    return loss * (n_targets * dist.get_world_size() / total.clamp(min=1))
    ### STUDENT
    # return loss
    ### END SOLUTION


def compute_loss(model: nn.Module, x: Tensor, y: Tensor, args: argparse.Namespace) -> Tensor:
    with torch.autocast(x.device.type, torch.bfloat16, enabled=args.dtype == "bfloat16"):
        return model(x, y)


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, device: torch.device, args: argparse.Namespace) -> float:
    """Mean loss over tokens. The mean of the batches' means would give a short last batch too much weight."""
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=device)
    count = torch.zeros((), dtype=torch.float64, device=device)
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        n_targets = (y != IGNORE).sum()
        total += compute_loss(model, x, y, args).double() * n_targets
        count += n_targets
    return global_mean(total, count)


def train_epoch(
    model: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    args: argparse.Namespace,
    metrics: Metrics,
    progress: dict[str, Any],
    stream: Rows,
) -> float:
    """The rest of one pass over the training set. Returns the pass's mean loss.

    `progress` is kept up to date, and saved every args.save_every steps: the steps done, in all and in this epoch; and
    the sums of this epoch's losses and targets, over all ranks.
    """
    model.train()
    total, count = torch.zeros(2, dtype=torch.float64, device=device)  # since the last line of the log
    sums = torch.zeros(2, dtype=torch.float64, device=device)  # of this epoch: losses, targets; on this rank
    if dist.get_rank() == 0:
        sums += torch.tensor([progress["loss"], progress["targets"]], dtype=torch.float64, device=device)
    last_step, last_time = progress["step"], time.perf_counter()
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        n_targets = (y != IGNORE).sum()
        loss = compute_loss(model, x, y, args)
        optimizer.zero_grad()
        weighted(loss, n_targets).backward()
        if args.clip:
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        progress["step"] += 1
        progress["of_epoch"] += 1
        step, stop = progress["step"], progress["step"] == args.max_steps

        total += loss.detach().double() * n_targets
        count += n_targets
        if step % args.log_every == 0 or stop:
            sums += torch.stack([total, count])
            # global_mean waits for the device, so the clock may be read only now.
            mean, now = global_mean(total, count), time.perf_counter()
            tokens = (step - last_step) * args.batch_size * args.seq_len
            speed = tokens / (now - last_time)
            metrics.log("step", step, epoch=progress["epoch"] + 1, loss=mean, tokens_per_s=speed)
            total, count = torch.zeros(2, dtype=torch.float64, device=device)
            last_step, last_time = step, now
        if args.save_every and (step % args.save_every == 0 or stop):
            everywhere = sums + torch.stack([total, count])
            dist.all_reduce(everywhere)
            progress["loss"], progress["targets"] = everywhere.tolist()
            save_stream(model, optimizer, progress, stream, args)
        if stop:
            break
    sums += torch.stack([total, count])
    return global_mean(*sums)


def save_stream(
    model: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any], stream: Rows, args: argparse.Namespace
) -> None:
    """Everything that a resumed run needs, in one file: with DDP all ranks have the same."""
    state = stream_state(progress["epoch"], progress["of_epoch"], stream.n_rows, args)
    saved = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "stream": state}
    same = {name: getattr(args, name) for name in SAME}
    save0(saved | {"progress": dict(progress), "same": same}, Path(args.out) / "stream.pt")


def save_checkpoint(model: nn.Module, config: dict[str, Any], path: Path, epoch: int) -> None:
    """Weights and sizes, no objects: `utils.checkpoints.load_model` reads it anywhere."""
    save0({"model": model.module.state_dict(), "config": config, "epoch": epoch}, path)


def go_on(
    saved: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, n_rows: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Load a checkpoint into model and optimizer. Returns the progress."""
    epoch, samples = seek(saved["stream"], n_rows, args)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["progress"] | {"epoch": epoch, "of_epoch": samples // args.batch_size}


def make_sets(shards: Shards, args: argparse.Namespace, rank: int, world_size: int) -> tuple[Rows, Rows, Rows]:
    """Training, validation and test set."""
    splits = (shards.train, shards.validation, shards.test)
    return tuple(Rows(split, shards.eos, args, rank, world_size, split is shards.train) for split in splits)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    prepare(args)  # the device that --device asks for
    rank, local_rank, world_size, device = setup()
    set_batch_size(args, world_size)
    saved = load_checkpoint(args, SAME)
    shards = find_shards(args)
    train, validation, test = make_sets(shards, args, rank, world_size)
    loaders = (make_loader(rows, args, world_size) for rows in (train, validation, test))
    train_loader, validation_loader, test_loader = loaders

    torch.manual_seed(args.seed)  # the same on all ranks: the first weights must agree
    model = TransformerLM(shards.vocab_size, args.dim, args.heads, args.layers, args.seq_len, args.dropout, args.kv_heads)
    config = model.config  # its sizes, which every checkpoint carries
    start_from(args, model, config)  # if there is --init
    model = DistributedDataParallel(model.to(device), device_ids=[device] if device.type != "cpu" else None)
    optimizer = make_optimizer(model, args)

    progress = {"step": 0, "epoch": 0, "of_epoch": 0, "loss": 0.0, "targets": 0.0, "best": math.inf}
    if saved:
        progress |= go_on(saved, model, optimizer, train.n_rows, args)
    out, start = Path(args.out), time.perf_counter()
    total_steps = min(args.epochs * (train.n_rows // args.batch_size), args.max_steps or math.inf)
    if progress["step"] > total_steps:
        fail(f"--resume {args.resume}: it has already taken {progress['step']} steps, and this run has {total_steps}")
    metrics = Metrics(out, rank, total_steps, args.tensorboard, args.record, after=progress["step"])
    say_what_runs(args, device)
    print0(
        f"{args.workers} workers for each rank; {train.n_rows:,} rows in {len(train.split.files)} files; of each epoch "
        f"{thrown_away(train.split.tokens, args):,} tokens are thrown away (TODO 2 counts them)"
    )
    with metrics, device_memory(args.device_memory, device), failures_told():
        for epoch in range(progress["epoch"], args.epochs):
            train.place[0], train.place[1] = epoch, progress["of_epoch"] * args.batch_size
            progress["epoch"] = epoch
            batches = islice(train_loader, total_steps - progress["step"])
            train_loss = train_epoch(model, batches, optimizer, device, args, metrics, progress, train)
            validation_loss = evaluate(model, validation_loader, device, args)
            print0(
                f"[{epoch + 1}/{args.epochs}] train loss {train_loss:.4f}, "
                f"validation loss {validation_loss:.4f}, perplexity {perplexity(validation_loss):.1f}"
            )
            step, seconds = progress["step"], time.perf_counter() - start
            metrics.log(
                "epoch", step, epoch=epoch + 1, loss=train_loss, validation_loss=validation_loss, seconds=seconds
            )
            if epoch == 0 or validation_loss < progress["best"]:
                progress["best"] = validation_loss
                save_checkpoint(model, config, out / "model-best.pt", epoch + 1)
            progress |= {"of_epoch": 0, "loss": 0.0, "targets": 0.0}
            if step == total_steps:
                break

        test_loss = evaluate(model, test_loader, device, args)
        print0(f"test loss {test_loss:.4f}, perplexity {perplexity(test_loss):.1f}")
        metrics.log("test", step, loss=test_loss, seconds=time.perf_counter() - start)
        save_checkpoint(model, config, out / "model-final.pt", epoch + 1)
    print0(f"wrote model-best.pt, model-final.pt and metrics.jsonl to {out}")
    cleanup()


if __name__ == "__main__":
    main()
