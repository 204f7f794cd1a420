"""Train a model while each rank holds only a part of it: fully sharded data parallel (FSDP).

Two processes:  torchrun --local-addr 127.0.0.1 --nproc-per-node 2 train/fsdp_training.py
Four, hybrid:   torchrun --local-addr 127.0.0.1 --nproc-per-node 4 train/fsdp_training.py --sharding hybrid
Stop, resume:   torchrun --local-addr 127.0.0.1 --nproc-per-node 2 train/fsdp_training.py --save --epochs 1
                torchrun --local-addr 127.0.0.1 --nproc-per-node 4 train/fsdp_training.py --resume runs/fsdp_training
One process:    python train/fsdp_training.py
More nodes:     sbatch sbatch/fsdp_training.sbatch              (JURECA)
                qsub sbatch/fsdp_training.pbs                   (Polaris)

With DDP every rank holds all weights, all gradients and the whole optimizer state. Here each
rank holds a part of them, and a layer's weights are gathered when the layer needs them. The result is
what one process would have computed: the same losses, with less memory on each device.

It builds on 03_zero (shards, stages, mixed precision). It starts as the solution of ddp_training.py (what that lesson
taught is now in utils/after_ddp_training.py), and runs at every stage. Fill the TODOs in the order of their numbers,
which is not always the order of the lines; `./workbook check fsdp_training` says how far you have got.

A DeviceMesh arranges ranks in a grid with named axes. A DTensor is a tensor that knows how it is distributed over a
mesh. On the device "meta", tensors have shapes but no memory. DCP is torch.distributed.checkpoint.

In five lines:
- Shard each block, then the rest: weights that are sharded together are gathered together.
- full gathers weights twice per step and frees them in between; grad gathers once; hybrid keeps the gathers in a node.
- Make the optimizer after sharding: it must train the shards.
- Every rank takes part in every forward pass, even without data; norms are taken over all shards.
- Each rank saves its own shards; any number of ranks can load them.

In FSDP1 the strategies were called FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD and NO_SHARD: see docs/beside.md.
Papers: ZeRO, https://arxiv.org/abs/1910.02054; PyTorch FSDP, https://arxiv.org/abs/2304.11277; recomputing
activations, https://arxiv.org/abs/1604.06174.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

# The course's folder is the nearest one above this file that holds utils/.
sys.path.insert(0, str(next(p for p in Path(__file__).resolve().parents if (p / "utils").is_dir())))

from utils.after_ddp_training import global_mean, setup
from utils.arguments import given, training_parser, whole
from utils.checkpoints import saved_whole, to_resume
from utils.compile import add_compile, check_compiler, compiled
from utils.data import IGNORE, ShardSampler
from utils.device_memory import device_memory
from utils.devices import accelerator
from utils.distributed import check_averages, cleanup, fail, print0, save0, set_batch_size
from utils.job import prepare, say_what_runs
from utils.metrics import Metrics
from utils.model import TransformerLM
from utils.start_from import start_from
from utils.training import Loaders, Samplers, Sets, check_muon, check_position, make_optimizer, make_sets, perplexity

# What must match to resume: the order of the samples depends on it, or the optimizer keeps it.
SAME = ("batch_size", "seq_len", "seed", "lr", "weight_decay")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = training_parser("fsdp_training", optimizers=("adamw", "sgd", "muon"))
    add_compile(parser)
    add = parser.add_argument
    add("--sharding", choices=("none", "grad", "full", "hybrid"), default="full", help="which tensors are sharded over the ranks")
    add("--replicas", type=whole(1), default=2, help="copies of the model with --sharding hybrid; usually one per node")
    add("--recompute", action="store_true", help="recompute activations in the backward pass (checkpointing)")
    add("--save", action="store_true", help="save a sharded checkpoint after each epoch")
    add("--resume", type=given, metavar="FOLDER", help="resume from a sharded checkpoint, or from the newest of a run; dropout will draw different numbers")
    args = parser.parse_args(argv)
    if args.dim % args.heads:
        parser.error(f"--dim {args.dim} is not divisible by --heads {args.heads}")
    check_muon(args)
    return args


def make_mesh(device: torch.device, world_size: int, args: argparse.Namespace) -> DeviceMesh:
    """The ranks as a grid. Each row holds the model once; the ranks of a column hold the same part of it."""
    if args.sharding == "hybrid" and world_size % args.replicas:
        fail(f"--sharding hybrid: {world_size} ranks cannot hold {args.replicas} copies, see --replicas")
    # TODO 1: Arrange the ranks as the strategy needs them.
    # With none, each rank holds a copy, as in DDP. With grad and full, one copy is sharded over all ranks. With hybrid,
    # there are args.replicas copies, each sharded over neighbours: they are on one node, where links are fast.
    return init_device_mesh(device.type, (world_size, 1), mesh_dim_names=("replicate", "shard"))


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
    train_loader = DataLoader(train, sampler=train_sampler, drop_last=True, **common)
    validation_loader = DataLoader(validation, sampler=validation_sampler, **common)
    test_loader = DataLoader(test, sampler=test_sampler, **common)
    return train_loader, validation_loader, test_loader


def build_model(vocab_size: int, args: argparse.Namespace) -> TransformerLM:
    """The model, perhaps without its weights: first_weights fills them in."""
    # TODO 4: Start from the serial run's weights, while no rank except one ever holds all of them. Here, build a model
    # that takes no memory: on the device "meta" a tensor has a shape but no content. first_weights, below, fills it.
    torch.manual_seed(args.seed)  # the same on all ranks: the first weights must agree
    return TransformerLM(vocab_size, args.dim, args.heads, args.layers, args.seq_len, args.dropout, args.kv_heads)


def parallelize(model: nn.Module, mesh: DeviceMesh, args: argparse.Namespace) -> nn.Module:
    """The recipe: first what a block computes and keeps for its backward pass, then how its weights are sharded."""
    if args.compile:
        for block in model.blocks:  # one by one: FSDP gathers the weights of a block before it, in a hook
            compiled(block)
    if args.recompute:
        recompute(model)
    return shard(model, mesh, args)


def recompute(model: nn.Module) -> None:
    """Activation checkpointing (arXiv:1604.06174): keep only the input of each block, and run the block twice."""
    # TODO 8: Wrap each block, in place, so that it is computed again in the backward pass. The
    # results stay the same to the last bit. It takes a third more time, but keeps one tensor
    # for each layer instead of a dozen.
    pass


def precision(args: argparse.Namespace) -> MixedPrecisionPolicy:
    """The dtypes in which weights are gathered and gradients are added up."""
    # TODO 7: Support --dtype bfloat16.
    # Gather and compute in bfloat16: half the bytes. But reduce gradients in float32: a sum over many
    # ranks would lose small addends. The shards, which the optimizer updates, stay float32 in any case.
    return MixedPrecisionPolicy()


def shard(model: nn.Module, mesh: DeviceMesh, args: argparse.Namespace) -> nn.Module:
    """Give each rank its part of the weights, and so of the gradients and the optimizer state."""
    # With a single copy there is nothing to sum over copies, so no second axis.
    options = {"mesh": mesh if mesh["replicate"].size() > 1 else mesh["shard"], "mp_policy": precision(args)}
    # TODO 3: Shard the model over the mesh: each block, then the rest of the model.
    # Weights that are sharded together are gathered together, so with one unit per block a rank never holds more than a
    # few whole blocks (FSDP gathers the next one early), plus the rest. With full and hybrid, a block's weights are
    # freed after its forward pass and gathered again for its backward pass; with none and grad, they stay until then.
    return nn.parallel.DistributedDataParallel(model.to(mesh.device_type))


def first_weights(model: nn.Module, mesh: DeviceMesh, args: argparse.Namespace) -> None:
    """Fill the shards with the weights that a single process would start with."""
    # TODO 4, again: here, allocate memory for the shards, and fill them.
    # Drawing each shard anew would give a different model: DDP sends rank 0's weights to all ranks, fully_shard
    # does not. Only rank 0 builds the model of the serial run, from args.seed and model.config, and
    # distributes it, tensor by tensor. (With --recompute, named_parameters() has longer names than the plain model,
    # and state_dict() has the same.)
    pass


def compute_loss(model: nn.Module, x: Tensor, y: Tensor, args: argparse.Namespace) -> Tensor:
    # A sharded model has its dtype from `precision`.
    autocast = args.dtype == "bfloat16" and not isinstance(model, FSDPModule)
    with torch.autocast(x.device.type, torch.bfloat16, enabled=autocast):
        return model(x, y)


def in_step(loader: DataLoader, device: torch.device, args: argparse.Namespace) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's batches, then batches without targets, until it has as many as the rank with the most."""
    # TODO 2: Keep all ranks in step, even those that have run out of batches.
    # With a sharded model no rank computes alone: every forward pass needs all ranks' weights. But
    # shares of the validation set differ by a sample, so a rank may have one batch fewer, or none at
    # all. If every target is IGNORE, a batch of one sample or more adds nothing to the loss.
    yield from loader


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, device: torch.device, args: argparse.Namespace) -> float:
    """Mean loss over tokens. The mean of the batches' means would give a short last batch too much weight."""
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=device)
    count = torch.zeros((), dtype=torch.float64, device=device)
    for x, y in in_step(loader, device, args):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        n_targets = (y != IGNORE).sum()
        total += compute_loss(model, x, y, args).double() * n_targets
        count += n_targets
    return global_mean(total, count)


def clip_gradients(model: nn.Module, args: argparse.Namespace) -> float:
    """Scale the gradient down to a norm of at most args.clip (0: no limit). Returns its norm before."""
    # TODO 6: Clip by the norm of the whole gradient, and return that norm. A rank holds a part of the
    # gradient. The norm of that part is too small, and differs from rank to rank; scaled with it, the
    # parts would no longer form one gradient. (Parameters are now DTensors, which know which part of
    # the whole they hold.)
    if args.clip:
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    return 0.0


def train_epoch(
    model: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor]],
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
        norm = clip_gradients(model, args)
        optimizer.step()
        step += 1

        # detach: a sum of losses would otherwise keep the graph of every step alive.
        total += loss.detach().double() * y.numel()
        count += y.numel()
        if step % args.log_every == 0 or step == args.max_steps:
            epoch_total, epoch_count = epoch_total + total, epoch_count + count
            # global_mean waits for the device, so the clock may be read only now.
            mean, now = global_mean(total, count), time.perf_counter()
            speed = (step - last_step) * args.batch_size * args.seq_len / (now - last_time)
            metrics.log("step", step, epoch=epoch + 1, loss=mean, gradient_norm=norm, tokens_per_s=speed)
            total, count = torch.zeros(2, dtype=torch.float64, device=device)
            last_step, last_time = step, now
    return global_mean(epoch_total + total, epoch_count + count), step


def save_checkpoint(model: nn.Module, config: dict[str, Any], path: Path, epoch: int) -> None:
    """Weights and sizes, no objects: `utils.checkpoints.load_model` reads it anywhere."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # TODO 9: Gather the whole model, and save it in one file.
    # Each rank has only its shards, and all must contribute theirs. Only rank 0 needs the result, on the CPU: a GPU
    # may be too small for it. The names are the plain model's.
    plain = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    save0({"model": plain.state_dict(), "config": config, "epoch": epoch}, path)


def save_sharded(model: nn.Module, optimizer: torch.optim.Optimizer, position: dict[str, Any], folder: Path) -> None:
    """Everything needed to resume. No rank sees the whole, and any number of ranks can load it."""
    # TODO 10: Let each rank write what it holds: weights, optimizer state, and `position`.
    # torch.distributed.checkpoint, imported as dcp, writes a folder: a file for each rank, and an index of
    # their contents.
    pass


def load_sharded(
    model: nn.Module, optimizer: torch.optim.Optimizer, position: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """Load into model and optimizer what save_sharded wrote on any number of ranks. Returns the position."""
    # TODO 11: Let each rank read what it holds.
    # There may now be more or fewer ranks than at saving, with different shards. So loading starts from the
    # current state: its shards say what this rank needs. They are filled in place, and must then be put
    # back into model and optimizer.
    return position


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    prepare(args)  # the device that --device asks for
    if args.compile:
        check_compiler()
    rank, local_rank, world_size, device = setup()
    check_averages(device, world_size)
    set_batch_size(args, world_size)
    mesh = make_mesh(device, world_size, args)
    sets, vocab_size = make_sets(args)
    samplers = make_samplers(sets, args)
    train_loader, validation_loader, test_loader = make_loaders(sets, samplers, args, world_size)

    model = build_model(vocab_size, args)
    config = model.config  # its sizes, which every checkpoint carries
    # TODO 5: Give the optimizer the parameters that are trained.
    # Sharding replaces the model's parameters with new ones.
    optimizer = make_optimizer(model, args)
    model = parallelize(model, mesh, args)
    first_weights(model, mesh, args)
    start_from(args, model, config)  # if there is --init

    # Where the run is when an epoch is over: steps done, lowest validation loss; and what must match to resume.
    position = {"step": 0, "best": math.inf} | {name: getattr(args, name) for name in SAME}
    if args.resume:
        args.resume = to_resume(args, model)
        position = load_sharded(model, optimizer, position, Path(args.resume))

    out = Path(args.out)
    an_epoch, step, best = len(train_loader), position["step"], position["best"]
    total_steps = min(args.epochs * an_epoch, args.max_steps or args.epochs * an_epoch)
    epochs = math.ceil(total_steps / an_epoch)
    check_position(position, args, SAME, total_steps, f"--resume {args.resume}")
    start = time.perf_counter()
    metrics = Metrics(out, rank, total_steps, args.tensorboard, args.record, after=step, validated=True)
    say_what_runs(args, device)
    with metrics, device_memory(args.device_memory, device):
        for epoch in range(step // an_epoch, epochs):
            samplers[0].set_epoch(epoch)
            batches = islice(train_loader, total_steps - step)
            train_loss, step = train_epoch(model, batches, optimizer, device, args, metrics, epoch, step)
            validation_loss = evaluate(model, validation_loader, device, args)
            print0(
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
            if args.save and step % an_epoch == 0:  # not where --max-steps ends in the middle of an epoch
                with saved_whole(out, step) as folder:
                    save_sharded(model, optimizer, position | {"step": step, "best": best}, folder)

        test_loss = evaluate(model, test_loader, device, args)
        print0(f"test loss {test_loss:.4f}, perplexity {perplexity(test_loss):.1f}")
        metrics.log("test", step, loss=test_loss, seconds=time.perf_counter() - start)
        save_checkpoint(model, config, out / "model-final.pt", epochs)
    print0(f"wrote model-best.pt, model-final.pt and metrics.jsonl to {out}")
    cleanup()


if __name__ == "__main__":
    main()
