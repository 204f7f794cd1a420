"""Train the same model on many devices: DistributedDataParallel (DDP).

Two processes:  torchrun --local-addr 127.0.0.1 --nproc-per-node 2 train/ddp_training.py
One process:    python train/ddp_training.py
More nodes:     sbatch sbatch/ddp_training.sbatch              (JURECA)
                qsub sbatch/ddp_training.pbs                   (Polaris)

Every process has the whole model and a share of each batch, and the gradients are
averaged before each step. The result is what one process would have computed:
the same losses, sooner.

It builds on 02_data_parallel (the averages) and 01_collectives (rank, local rank, world size). It starts as
single_gpu_training.py and runs at every stage. Before TODO 1, two processes train two models independently. Fill the
TODOs in the order of their numbers, which is not always the order of the lines; `./workbook check ddp_training` says
how far you have got. TODOs 14 to 18 are in the batch files.

In five lines:
- Each process has one device, one rank and a whole copy of the model; all copies start equal.
- A sampler gives each rank its own share of each set; tell it the epoch, or every epoch has the same order.
- The batch size is global: with N ranks, each takes 1/N of it, so each step is the same as in one process.
- Losses are added up over ranks as sums and counts, and divided once; validation drops no sample and counts none twice.
- All ranks take part in every collective; one prints and saves.

Papers and manuals: PyTorch DDP, https://arxiv.org/abs/2006.15704; large batches, https://arxiv.org/abs/1706.02677;
https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html; torchrun, docs/launching.md.
"""

import argparse
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler
from torch.utils.data.distributed import DistributedSampler

# The course's folder is the nearest one above this file that holds utils/.
sys.path.insert(0, str(next(p for p in Path(__file__).resolve().parents if (p / "utils").is_dir())))

from utils import hooks
from utils.arguments import training_parser, whole
from utils.compile import add_compile, check_compiler, compiled
from utils.data import IGNORE, DataError, EpochOrder, ShardSampler, Windows, load_corpus
from utils.device_memory import device_memory
from utils.devices import accelerator
from utils.distributed import cleanup, fail, launch_environment, print0, save0, set_batch_size
from utils.job import prepare, say_what_runs
from utils.metrics import Metrics
from utils.model import TransformerLM
from utils.start_from import start_from

Sets = tuple[Windows, Windows, Windows]  # train, validation, test
Samplers = tuple[Sampler | None, Sampler | None, Sampler | None]
Loaders = tuple[DataLoader, DataLoader, DataLoader]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = training_parser("ddp_training")
    add_compile(parser)
    add = parser.add_argument
    add("--hook", choices=hooks.HOOKS, help="send gradients in fewer bytes: in bfloat16, or as matrices of low rank")
    add("--hook-rank", type=whole(1), default=2, help="rank of the matrices with --hook powersgd")
    args = parser.parse_args(argv)
    if args.dim % args.heads:
        parser.error(f"--dim {args.dim} is not divisible by --heads {args.heads}")
    return args


def setup() -> tuple[int, int, int, torch.device]:
    """Join the other processes. Returns rank, local_rank, world_size and this rank's device."""
    launch_environment()  # whatever launched us, RANK, LOCAL_RANK, WORLD_SIZE, … are in os.environ now

    # TODO 1: Join the process group.
    # Processes cannot communicate before they have met. With GPUs they use NCCL (on Intel's: XCCL),
    # otherwise gloo; everything else is in the environment.
    pass

    # TODO 2: Find out which rank this process is. Its number among all processes, its number on
    # its own node, and the number of processes. On two nodes, the first two of these numbers
    # differ.
    rank, local_rank, world_size = 0, 0, 1

    # TODO 3: Choose this process's own device. A node with four GPUs runs four processes, and
    # each must use a different GPU, which must also be the default for code that names no
    # device. Without GPUs, the device is the CPU, as before.
    device = torch.device(accelerator() or "cpu")
    return rank, local_rank, world_size, device


def make_sets(args: argparse.Namespace) -> tuple[Sets, int]:
    """The three sets, and the size of the vocabulary."""
    try:
        corpus = load_corpus(args.data)
    except DataError as problem:
        fail(problem)
    train = Windows(corpus.train, args.seq_len, corpus.eos, drop_last=True)
    validation = Windows(corpus.validation, args.seq_len, corpus.eos, drop_last=False)
    test = Windows(corpus.test, args.seq_len, corpus.eos, drop_last=False)
    if len(train) < args.batch_size:
        fail(
            f"{corpus.name} has {len(train)} sequences of --seq-len {args.seq_len} to train on, fewer than one "
            f"--batch-size {args.batch_size}: make one of them smaller, or use more text"
        )
    return (train, validation, test), len(corpus.vocab)


def make_samplers(sets: Sets, args: argparse.Namespace) -> Samplers:
    """Which samples this rank reads, in which order."""
    train, validation, test = sets
    # TODO 4: Give each rank its own share of every set.
    # Training: shuffled with args.seed, the same number of samples on every rank, none read twice.
    # Validation and test: each sample on exactly one rank, even if the number of ranks does not divide the set;
    # utils/data.py has a sampler for that.
    return None, None, None


def make_loaders(sets: Sets, samplers: Samplers, args: argparse.Namespace, world_size: int) -> Loaders:
    """This rank's batches of (x, y)."""
    train, validation, test = sets
    train_sampler, validation_sampler, test_sampler = samplers
    common = {"num_workers": args.workers, "pin_memory": bool(accelerator())}

    # TODO 5: Load this rank's share of the training set.
    # args.batch_size is global: the batches of all ranks together must be as large as the
    # batch of a single process.
    train_loader = DataLoader(
        train, batch_size=args.batch_size, sampler=EpochOrder(train, args.seed), drop_last=True, **common
    )

    # TODO 6: Load this rank's share of the validation set. Nothing may be dropped here, not
    # even the last sample. The size of its batches changes no result; a rank's part of the
    # global batch certainly fits into memory.
    validation_loader = DataLoader(validation, batch_size=args.batch_size, **common)

    # TODO 7: Load this rank's share of the test set.
    test_loader = DataLoader(test, batch_size=args.batch_size, **common)
    return train_loader, validation_loader, test_loader


def wrap(model: nn.Module, device: torch.device) -> nn.Module:
    """Make the model parallel."""
    # TODO 8: Train one model, not one per rank.
    # All ranks must start from the same weights, and average their gradients in every backward
    # pass. Then equal steps keep the weights equal. On a GPU, say which GPU the model is on.
    return model


def make_optimizer(model: nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    if args.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    # Fused: one pass over weights, gradients and moments, where separate operations make a dozen.
    return torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)


def global_mean(total: Tensor, count: Tensor) -> float:
    """The sum of all ranks' totals over the sum of their counts; both 0-dim float64."""
    # TODO 10: Find the mean over the tokens of all ranks.
    # Every rank has its own total and its own count, and the counts may differ. Reduce both, then
    # divide once: a mean of the ranks' means would weight their tokens unequally. Leave the arguments as they are.
    return (total / count).item()


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
    loader: DataLoader,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    args: argparse.Namespace,
    metrics: Metrics,
    epoch: int,
    step: int,
) -> tuple[float, int]:
    """One pass over the training set, from `step` on. Returns its mean loss and the step reached."""
    model.train()
    # Sums and counts: since the last line of the log, and over the epoch.
    total, count, epoch_total, epoch_count = torch.zeros(4, dtype=torch.float64, device=device)
    last_step, last_time = step, time.perf_counter()
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        loss = compute_loss(model, x, y, args)
        optimizer.zero_grad()
        loss.backward()
        if args.clip:
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        step += 1

        # detach: a sum of losses would otherwise keep the graph of every step alive.
        total += loss.detach().double() * y.numel()
        count += y.numel()
        stop = step == args.max_steps
        if step % args.log_every == 0 or stop:
            epoch_total, epoch_count = epoch_total + total, epoch_count + count
            # global_mean waits for the device, so the clock may be read only now.
            mean, now = global_mean(total, count), time.perf_counter()
            tokens = (step - last_step) * args.batch_size * args.seq_len
            metrics.log("step", step, epoch=epoch + 1, loss=mean, tokens_per_s=tokens / (now - last_time))
            total, count = torch.zeros(2, dtype=torch.float64, device=device)
            last_step, last_time = step, now
        if stop:
            break
    return global_mean(epoch_total + total, epoch_count + count), step


def perplexity(loss: float) -> float:
    """The effective number of words that the model chooses from; infinite for a run that diverged."""
    return math.inf if loss > 700 else math.exp(loss)


def save_checkpoint(model: nn.Module, config: dict[str, Any], path: Path, epoch: int) -> None:
    """Weights and sizes, no objects: `utils.checkpoints.load_model` reads it anywhere."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # TODO 12: Save once, and save the model, not its wrapper.
    # All ranks have the same weights, and must not write the same file at the same time. A program
    # without DDP must be able to load the file: the names of the weights are those
    # of the plain model.
    torch.save({"model": model.state_dict(), "config": config, "epoch": epoch}, path)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    prepare(args)  # the device that --device asks for
    if args.compile:
        check_compiler()
    rank, local_rank, world_size, device = setup()
    set_batch_size(args, world_size)
    sets, vocab_size = make_sets(args)
    samplers = make_samplers(sets, args)
    train_loader, validation_loader, test_loader = make_loaders(sets, samplers, args, world_size)

    torch.manual_seed(args.seed)  # the same on all ranks: the first weights must agree
    model = TransformerLM(vocab_size, args.dim, args.heads, args.layers, args.seq_len, args.dropout, args.kv_heads)
    config = model.config  # its sizes, which every checkpoint carries
    start_from(args, model, config)  # if there is --init
    model = model.to(device)
    if args.compile:
        compiled(model)
    model = wrap(model, device)
    if args.hook and isinstance(model, DistributedDataParallel):
        hooks.attach(model, args.hook, args.hook_rank)
    optimizer = make_optimizer(model, args)  # after wrap, which may replace the parameters

    out = Path(args.out)
    step, best = 0, math.inf
    total_steps = min(args.epochs * len(train_loader), args.max_steps or math.inf)
    start = time.perf_counter()
    metrics = Metrics(out, rank, total_steps, args.tensorboard, args.record)
    say_what_runs(args, device)
    with metrics, device_memory(args.device_memory, device):
        for epoch in range(args.epochs):
            # TODO 9: Shuffle the samples anew in every epoch.
            # The sampler shuffles with seed and epoch, and knows the epoch only if you tell it.
            pass
            train_loss, step = train_epoch(model, train_loader, optimizer, device, args, metrics, epoch, step)
            validation_loss = evaluate(model, validation_loader, device, args)
            # TODO 11: Print once.
            # All ranks have the same result, so one of them prints it. There are three places.
            print(
                f"[{epoch + 1}/{args.epochs}] train loss {train_loss:.4f}, "
                f"validation loss {validation_loss:.4f}, perplexity {perplexity(validation_loss):.1f}"
            )
            seconds = time.perf_counter() - start
            metrics.log(
                "epoch", step, epoch=epoch + 1, loss=train_loss, validation_loss=validation_loss, seconds=seconds
            )
            if epoch == 0 or validation_loss < best:
                best = validation_loss
                save_checkpoint(model, config, out / "model-best.pt", epoch + 1)
            if step == total_steps:
                break

        test_loss = evaluate(model, test_loader, device, args)
        # TODO 11, again: the second place.
        print(f"test loss {test_loss:.4f}, perplexity {perplexity(test_loss):.1f}")
        metrics.log("test", step, loss=test_loss, seconds=time.perf_counter() - start)
        save_checkpoint(model, config, out / "model-final.pt", epoch + 1)
    # TODO 11, again: the third place.
    print(f"wrote model-best.pt, model-final.pt and metrics.jsonl to {out}")

    # TODO 13: Leave the process group.
    # This closes its connections and threads in order, and no rank ends while another still
    # waits for it.
    pass


if __name__ == "__main__":
    main()
