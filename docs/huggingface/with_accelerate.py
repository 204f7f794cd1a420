"""ddp_training's run with Accelerate: your own loop, with the ranks' work prepared. The same losses.

Two processes:  torchrun --local-addr 127.0.0.1 --nproc-per-node 2 docs/huggingface/with_accelerate.py
One process:    python docs/huggingface/with_accelerate.py

docs/huggingface.md says what Accelerate does differently unless it is told, and how to start this under Slurm.
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

# The course's folder is the nearest one above this file that holds utils/.
sys.path.insert(0, str(next(p for p in Path(__file__).resolve().parents if (p / "utils").is_dir())))

from utils.arguments import training_parser
from utils.data import IGNORE, EpochOrder
from utils.distributed import cleanup, fail, launch_environment, print0, save0, set_batch_size
from utils.job import prepare, say_what_runs
from utils.metrics import Metrics
from utils.model import TransformerLM
from utils.optional_packages import lacks
from utils.start_from import start_from
from utils.training import make_optimizer, make_sets, perplexity

if problem := lacks("accelerate", "huggingface"):
    fail(problem)

from accelerate import Accelerator, DataLoaderConfiguration  # below the line that says how to install it


def global_mean(accelerator: Accelerator, total: Tensor, count: Tensor) -> float:
    """The sum of all ranks' totals over the sum of their counts; both 0-dim float64."""
    total, count = accelerator.reduce(torch.stack([total, count]), reduction="sum")
    return (total / count).item()


@torch.no_grad()
def evaluate(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> float:
    """Mean loss over tokens. Without DDP around the model, ranks may have unequal numbers of batches."""
    model.eval()
    total, count = torch.zeros(2, dtype=torch.float64, device=accelerator.device)
    for x, y in loader:
        n_targets = (y != IGNORE).sum()
        with accelerator.autocast():
            total += model(x, y).double() * n_targets
        count += n_targets
    return global_mean(accelerator, total, count)


def train_epoch(
    accelerator: Accelerator,
    model: nn.Module,
    loader: DataLoader,
    optimizer: torch.optim.Optimizer,
    args: argparse.Namespace,
    metrics: Metrics,
    epoch: int,
    step: int,
) -> int:
    """One pass over the training set, from `step` on. Returns the step reached."""
    model.train()
    total, count = torch.zeros(2, dtype=torch.float64, device=accelerator.device)  # since the last line of the log
    last_step, last_time = step, time.perf_counter()
    for x, y in loader:
        with accelerator.autocast():
            loss = model(x, y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        if args.clip:
            accelerator.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        step += 1
        total += loss.detach().double() * y.numel()
        count += y.numel()
        stop = step == args.max_steps
        if step % args.log_every == 0 or stop:
            mean, now = global_mean(accelerator, total, count), time.perf_counter()
            speed = (step - last_step) * args.batch_size * args.seq_len / (now - last_time)
            metrics.log("step", step, epoch=epoch + 1, loss=mean, tokens_per_s=speed)
            total, count = torch.zeros(2, dtype=torch.float64, device=accelerator.device)
            last_step, last_time = step, now
        if stop:
            break
    return step


def main(argv: list[str] | None = None) -> None:
    args = training_parser("with_accelerate").parse_args(argv)
    prepare(args)  # the device that --device asks for
    rank, _, world_size = launch_environment()
    set_batch_size(args, world_size)
    (train, validation, _), vocab_size = make_sets(args)
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        mixed_precision="bf16" if args.dtype == "bfloat16" else "no",
        # A loader's batch is the global one, divided among the ranks; by default each rank takes a whole one. And no
        # sample is repeated so that all ranks have equally many, as the default would in the validation set.
        dataloader_config=DataLoaderConfiguration(split_batches=True, even_batches=False),
    )

    torch.manual_seed(args.seed)  # the same on all ranks: the first weights must agree
    plain = TransformerLM(vocab_size, args.dim, args.heads, args.layers, args.seq_len, args.dropout, args.kv_heads)
    start_from(args, plain, plain.config)  # if there is --init
    model, optimizer, train_loader, validation_loader = accelerator.prepare(
        plain,
        make_optimizer(plain, args),
        DataLoader(train, args.batch_size, sampler=EpochOrder(train, args.seed), drop_last=True),
        DataLoader(validation, args.batch_size),
    )

    step, out = 0, Path(args.out)
    total_steps = min(args.epochs * len(train_loader), args.max_steps or args.epochs * len(train_loader))
    metrics = Metrics(out, rank, total_steps, args.tensorboard, args.record)
    say_what_runs(args, accelerator.device)
    with metrics:
        for epoch in range(args.epochs):
            step = train_epoch(accelerator, model, train_loader, optimizer, args, metrics, epoch, step)
            loss = evaluate(accelerator, plain, validation_loader)
            print0(f"[{epoch + 1}/{args.epochs}] validation loss {loss:.4f}, perplexity {perplexity(loss):.1f}")
            if step == total_steps:
                break
        save0({"model": plain.state_dict(), "config": plain.config, "epoch": epoch + 1}, out / "model-final.pt")
    print0(f"wrote model-final.pt and metrics.jsonl to {out}")
    cleanup()


if __name__ == "__main__":
    main()
