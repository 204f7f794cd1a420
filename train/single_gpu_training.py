"""Train a small Transformer language model on one device.

Any machine:    python train/single_gpu_training.py
A quick try:    python train/single_gpu_training.py --data builtin --max-steps 20
One GPU node:   sbatch sbatch/single_gpu_training.sbatch       (JURECA)
                qsub sbatch/single_gpu_training.pbs            (Polaris)

It is complete and runs as it is. It uses one device, however many there are: the
next lesson, ddp_training.py, changes that. To see every flag, use --help.
"""

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler, SequentialSampler

# The course's folder is the nearest one above this file that holds utils/.
sys.path.insert(0, str(next(p for p in Path(__file__).resolve().parents if (p / "utils").is_dir())))

from utils.arguments import training_parser
from utils.compile import add_compile, check_compiler, compiled
from utils.data import IGNORE, DataError, EpochOrder, Windows, load_corpus
from utils.device_memory import device_memory
from utils.devices import accelerator
from utils.distributed import check_alone, fail, set_batch_size
from utils.job import prepare, say_what_runs
from utils.metrics import Metrics
from utils.model import TransformerLM
from utils.atomic_write import written_whole
from utils.start_from import start_from

Sets = tuple[Windows, Windows, Windows]  # train, validation, test
Samplers = tuple[Sampler, Sampler, Sampler]
Loaders = tuple[DataLoader, DataLoader, DataLoader]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = training_parser("single_gpu_training")
    add_compile(parser)
    args = parser.parse_args(argv)
    check_alone("single_gpu_training.py", "ddp_training.py")
    if args.dim % args.heads:
        parser.error(f"--dim {args.dim} is not divisible by --heads {args.heads}")
    return args


def setup() -> tuple[int, int, int, torch.device]:
    """Who am I? Returns rank, local_rank, world_size and this rank's device."""
    device = torch.device(accelerator() or "cpu")
    return 0, 0, 1, device


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
    """Which samples are read, in which order: training in a new one each epoch."""
    train, validation, test = sets
    return EpochOrder(train, args.seed), SequentialSampler(validation), SequentialSampler(test)


def make_loaders(sets: Sets, samplers: Samplers, args: argparse.Namespace) -> Loaders:
    """Batches of (x, y). Training leaves a short last batch out: all its steps weigh the same."""
    train, validation, test = sets
    train_sampler, validation_sampler, test_sampler = samplers
    common = {
        "batch_size": args.batch_size,
        "num_workers": args.workers,
        "pin_memory": bool(accelerator()),
    }
    return (
        DataLoader(train, sampler=train_sampler, drop_last=True, **common),
        DataLoader(validation, sampler=validation_sampler, **common),
        DataLoader(test, sampler=test_sampler, **common),
    )


def wrap(model: nn.Module, device: torch.device) -> nn.Module:
    """Make the model parallel. On one device there is nothing to do."""
    return model


def make_optimizer(model: nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    if args.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    # Fused: one pass over weights, gradients and moments, where separate operations make a dozen.
    return torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)


def global_mean(total: Tensor, count: Tensor) -> float:
    """total / count, both 0-dim float64, over all ranks. Here there is one."""
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
    with written_whole(path) as part, part.open("wb") as file:
        torch.save({"model": model.state_dict(), "config": config, "epoch": epoch}, file)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    prepare(args)  # the device that --device asks for
    if args.compile:
        check_compiler()
    rank, local_rank, world_size, device = setup()
    set_batch_size(args, world_size)
    sets, vocab_size = make_sets(args)
    samplers = make_samplers(sets, args)
    train_loader, validation_loader, test_loader = make_loaders(sets, samplers, args)

    torch.manual_seed(args.seed)  # the same on all ranks: the first weights must agree
    model = TransformerLM(vocab_size, args.dim, args.heads, args.layers, args.seq_len, args.dropout, args.kv_heads)
    config = model.config  # its sizes, which every checkpoint carries
    start_from(args, model, config)  # if there is --init
    model = model.to(device)
    if args.compile:
        compiled(model)
    model = wrap(model, device)
    optimizer = make_optimizer(model, args)  # after wrap, which may replace the parameters

    out = Path(args.out)
    step, best = 0, math.inf
    total_steps = min(args.epochs * len(train_loader), args.max_steps or math.inf)
    start = time.perf_counter()
    metrics = Metrics(out, rank, total_steps, args.tensorboard, args.record)
    say_what_runs(args, device)
    with metrics, device_memory(args.device_memory, device):
        for epoch in range(args.epochs):
            train_loss, step = train_epoch(model, train_loader, optimizer, device, args, metrics, epoch, step)
            validation_loss = evaluate(model, validation_loader, device, args)
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
        print(f"test loss {test_loss:.4f}, perplexity {perplexity(test_loss):.1f}")
        metrics.log("test", step, loss=test_loss, seconds=time.perf_counter() - start)
        save_checkpoint(model, config, out / "model-final.pt", epoch + 1)
    print(f"wrote model-best.pt, model-final.pt and metrics.jsonl to {out}")


if __name__ == "__main__":
    main()
