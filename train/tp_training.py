r"""Train a model whose layers are divided among ranks: tensor parallel (TP), with fully sharded data parallel.

Each layer on two:    torchrun --local-addr 127.0.0.1 --nproc-per-node 4 train/tp_training.py --tp 2
Also cut the stream:  torchrun --local-addr 127.0.0.1 --nproc-per-node 4 train/tp_training.py --tp 4 --sequence-parallel
Stop and resume:      torchrun --local-addr 127.0.0.1 --nproc-per-node 4 train/tp_training.py --tp 4 --save-every 50
                      python train/tp_training.py --resume runs/tp_training/step-100
One process:          python train/tp_training.py
More nodes:           sbatch sbatch/tp_training.sbatch              (JURECA)
                      qsub sbatch/tp_training.pbs                   (Polaris)

It builds on 04_tensor_parallel (the layers) and on fsdp_training: it starts as that script's solution (what that lesson
taught is now in utils/after_fsdp_training.py), and runs at every stage. Fill the TODOs in the order of their numbers,
which is not always the order of the lines; `./workbook check tp_training` says how far you have got.

Words: the *stream* is the tensor (B, T, D) that flows from block to block: B sequences of T tokens, D numbers each. A
*mesh* is a grid of ranks with named axes. A *DTensor* is a tensor that knows how it is cut over a mesh. A tensor on the
*meta device* has a shape and takes no memory.

A model that does not fit (after the ALCF's hands-on). Four ranks train on one batch of four sequences, with less memory
than that needs. When all six TODOs are right, run this as it is, then with --tp 2 and with --tp 4, each with its own
--out, and fill the table from the reports (a run that stops names the limit and what it held):

    ./workbook run tp_training --nproc 4 -- --data random --max-steps 20 --batch-size 4 --dim 512 --device-memory 57MB

    ranks   --tp   exit code   seconds per step   peak device memory of a rank
    4 x 1   1
    2 x 2   2
    1 x 4   4

--tp 1 needs more than the limit, --tp 2 less. (The whole copy that rank 0 saves at the end is not counted.) With --tp 1
each rank has one sequence, and a quarter of everything that the optimizer needs, and still runs out of memory: the
forward pass gathers a whole block. Which of these numbers does --tp make smaller, and which not? What is --sequence-parallel
worth here, and with --seq-len 512?

Papers: Megatron-LM, arXiv:1909.08053; sequence parallelism, arXiv:2205.05198; DTensor and FSDP together, arXiv:2410.06511.
"""

import argparse
import logging
import math
import sys
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist  # noqa: F401  for what you may need
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Placement
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

# The course's folder is the nearest one above this file that holds utils/.
sys.path.insert(0, str(next(p for p in Path(__file__).resolve().parents if (p / "utils").is_dir())))

from utils.after_ddp_training import global_mean, setup
from utils.after_fsdp_training import first_weights, in_step, load_sharded, precision, recompute, save_sharded
from utils.after_resilient_training import find_epoch
from utils.after_04_tensor_parallel import vocab_parallel_head_loss
from utils.arguments import given, training_parser, whole
from utils.checkpoints import check_chunks, saved_whole, to_resume
from utils.data import IGNORE, ShardSampler
from utils.device_memory import device_memory
from utils.devices import accelerator
from utils.distributed import check_averages, cleanup, fail, print0, save0, set_batch_size
from utils.job import prepare, say_what_runs
from utils.llama import share_key_heads
from utils.llama_sizes import cannot_split
from utils.metrics import Metrics
from utils.model import TransformerLM
from utils.training import Loaders, Samplers, Sets, check_position, make_optimizer, make_sets, perplexity

# What must match to resume: the order of the samples depends on it, or the optimizer keeps it.
SAME = ("batch_size", "seq_len", "seed", "lr", "weight_decay")
# DTensor warns of every redistribution over several axes.
logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
Plan = dict[str, ParallelStyle]  # name of a module, "*" for the number of any block -> how it is cut


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = training_parser("tp_training")
    add = parser.add_argument
    add("--tp", type=whole(1), default=1, help="ranks that split each layer; at most one node's")
    add("--sequence-parallel", action="store_true", help="also cut the stream between the layers, along the sequence")
    add("--recompute", action="store_true", help="recompute activations in the backward pass (checkpointing)")
    add("--save-every", type=whole(0), default=0, help="steps between sharded checkpoints; 0: none")
    add("--resume", type=given, metavar="FOLDER", help="resume from a sharded checkpoint, or from a run's newest one, with any --tp")
    args = parser.parse_args(argv)
    if args.dim % args.heads:
        parser.error(f"--dim {args.dim} is not divisible by --heads {args.heads}")
    if args.heads % args.tp:
        parser.error(f"--heads {args.heads} is not divisible by --tp {args.tp}: heads cannot be split")
    if problem := cannot_split(args):
        parser.error(problem)
    if args.dropout and args.tp > 1:
        # Ranks must drop the same numbers where they hold copies, and different ones elsewhere: one seed cannot do both.
        parser.error(
            f"--dropout {args.dropout:g} cannot be combined with --tp {args.tp}: the masks would not be the serial run's"
        )
    if args.sequence_parallel and args.seq_len % args.tp:
        parser.error(f"--seq-len {args.seq_len} is not divisible by --tp {args.tp}, which --sequence-parallel needs")
    return args


def make_mesh(device: torch.device, world_size: int, args: argparse.Namespace) -> DeviceMesh:
    """The ranks in a grid. A row splits every layer; a column splits the batch."""
    if world_size % args.tp:
        fail(f"--tp {args.tp}: {world_size} ranks are not a multiple of it; start more, or choose a different --tp")
    # TODO 1: Lay out the ranks: which of them split each layer, and which samples each reads. First, the grid.
    # Its axes are called data and tensor, and the tensor axis has args.tp ranks. Ranks with consecutive numbers are on
    # one node, and init_device_mesh numbers the ranks row by row, so the ranks of its last axis are consecutive. Which
    # of the two axes must that be? Ask what each sends, how often, and whether it can wait.
    return init_device_mesh(device.type, (world_size, 1), mesh_dim_names=("data", "tensor"))


def make_samplers(sets: Sets, mesh: DeviceMesh, args: argparse.Namespace) -> Samplers:
    """The samples that this rank reads, in order."""
    train, validation, test = sets
    # TODO 1, again: the samples. As given, each rank reads its own: that raises no error for any grid, and the loss falls.
    # Which ranks must read the same samples? mesh.get_local_rank(axis) is this rank's number along an axis,
    # mesh[axis].size() the number of ranks along it.
    # (Mind the order: DistributedSampler takes num_replicas, rank; ShardSampler takes rank, world_size.)
    return (
        DistributedSampler(train, shuffle=True, seed=args.seed, drop_last=True),
        ShardSampler(validation),
        ShardSampler(test),
    )


def make_loaders(sets: Sets, samplers: Samplers, mesh: DeviceMesh, args: argparse.Namespace) -> Loaders:
    """This rank's batches of (x, y): a row's part of the global batch."""
    train, validation, test = sets
    train_sampler, validation_sampler, test_sampler = samplers
    common = {"batch_size": args.batch_size // mesh["data"].size(), "num_workers": args.workers}
    common["pin_memory"] = bool(accelerator())
    train_loader = DataLoader(train, sampler=train_sampler, drop_last=True, **common)
    validation_loader = DataLoader(validation, sampler=validation_sampler, **common)
    test_loader = DataLoader(test, sampler=test_sampler, **common)
    return train_loader, validation_loader, test_loader


def parallelize(model: nn.Module, mesh: DeviceMesh, args: argparse.Namespace) -> nn.Module:
    """The recipe: split the layers, choose what a block keeps, shard the weights."""
    if mesh["tensor"].size() > 1:
        split(model, mesh["tensor"], args)
    if args.recompute:
        recompute(model)
    return shard(model, mesh, args)


def split(model: nn.Module, mesh: DeviceMesh, args: argparse.Namespace) -> None:
    """Split each layer among the ranks of `mesh`, the tensor axis. In place."""
    layout = stream_layout(args)
    plan = {f"blocks.*.{name}": style for name, style in block_plan(layout).items()}
    plan |= ends_plan(layout) | position_plan(layout) | norms_plan(layout)
    if args.block == "llama":  # its layers have the names of the gpt's, and it has no table of positions
        plan.pop("position_embedding", None)
        share_key_heads(model.blocks, mesh.get_group(), args.kv_heads)
    if plan:
        parallelize_module(model, mesh, plan)
    share_loss(model)


# What TODOs 3 to 6 use. A layout says how a tensor is placed on the ranks of the axis: Replicate() is the whole on
# each rank, Shard(d) is cut along dimension d. Where two layouts differ, DTensor redistributes, in both passes.
#
#   ColwiseParallel(input_layouts=Replicate(),    nn.Linear: each rank has some rows of `weight`, so some outputs.
#                   output_layouts=Shard(-1))     nn.Embedding: each rank has some columns of the table.
#   RowwiseParallel(input_layouts=Shard(-1),      nn.Linear: each rank has some columns of `weight`; the outputs are
#                   output_layouts=Replicate())   summed. nn.Embedding: some rows of the table; takes Replicate() indices.
#   PrepareModuleInput(input_layouts=…,           changes nothing but the input of a module, once for all layers in it:
#                      desired_input_layouts=…)   from the layout that it has to the layout that they want
#   SequenceParallel()                            a norm whose input is Shard(1); its weights are whole on each rank
#       input_layouts    the layout of the input, if that is a plain tensor
#       output_layouts   the layout that the output gets: the sum of a row-parallel layer becomes Replicate() by
#                        an all-reduce, or Shard(1) by a reduce-scatter. It is a plain tensor again, the local part;
#                        a SequenceParallel norm's alone stays a DTensor.
#   t.to_local()               of a DTensor: this rank's part, a plain tensor, without communication
#   t.full_tensor()            the whole, a plain tensor on each rank; all ranks must call it
#   t.device_mesh              the mesh that it is on; .get_group() is the process group of a mesh with one axis
#   t.shape                    of the whole


def block_plan(layout: Placement) -> Plan:
    """How a block's layers are split. `layout` is the stream's, (B, T, D), where it enters and leaves each half of the
    block: Replicate(), the whole on each rank, or Shard(1), cut along T.
    """
    # TODO 3: Split a block so that it takes 2 all-reduces forward and 2 backward.
    # Its layers are attention.q, .k, .v and .out, and mlp.up and .down: which are cut by columns, which by rows? In
    # between, a rank has its heads, or its part of the hidden layer, and needs no other rank. Each half communicates at
    # its end in the forward pass, and at its start in the backward pass, where the gradients of its input are summed.
    # q, k and v have the same input: three sums, unless attention as a whole takes its input once.
    return {}


def ends_plan(layout: Placement) -> Plan:
    """How the words are split: in the token embedding, whose sum gets `layout`, and in the head."""
    # TODO 4: Give each rank the rows of some words, in both tables. A rank looks up the words that it has and uses
    # zeros for the others; the ranks' results are summed. The head's input has `layout`, and its output is whole
    # logits, for code that calls model(x). (In practice both tables are padded with rows that no token uses:
    # Megatron-LM takes a multiple of 128 × tp, so GPT-2's 50,257 words become 50,432 for two ranks. Then all parts are
    # equal, products are fast, and FSDP can cut each part again. Here nothing is padded, so the loss is the serial
    # run's; `check_chunks` in main stops before the first step if the parts are so uneven that PyTorch could not save
    # them.)
    return {}


def share_loss(model: nn.Module) -> None:
    """Let the model, called with targets, compute its loss where the head's words are split."""

    # TODO 4, again: the loss. In training no rank may ever have whole logits. The forward pass calls model.head_loss(h,
    # weight, y, ignore) with the head's weight, which is now a DTensor; so model(x, y) crashes: “got mixed torch.Tensor
    # and DTensor”. In the forward pass FSDP has gathered the weight, so it is on the tensor axis alone. Replace
    # head_loss with your own function around vocab_parallel_head_loss(h, rows, y, ignore, group, V), which needs this
    # rank's rows, the group and the number of words. If h is a DTensor cut along T, make it whole first. (torch's own
    # loss_parallel() takes logits as a DTensor, so it holds all of a rank's logits at once; and gives nan if no target
    # of a batch counts, as 04_tensor_parallel shows. in_step makes such batches.)
    pass


def position_plan(layout: Placement) -> Plan:
    """How the position embedding is split. It is added to the stream, which has `layout`."""
    # TODO 5: Give each rank the positions of its part of the stream, if that is cut along T.
    # The embedding returns (T, D): it has no B, so its T is dimension 0. Cut its table, too, by
    # rows or by columns: a whole copy on each rank would learn only that rank's positions.
    return {}


def stream_layout(args: argparse.Namespace) -> Placement:
    """The layout of the stream on the ranks of a row, from the embeddings to the last norm."""
    # TODO 6: Cut the stream, (B, T, D), along the sequence, with --sequence-parallel (arXiv:2205.05198).
    # A rank then keeps 1/tp of it around the norms for the backward pass, and sends as much as before: an all-reduce
    # is a reduce-scatter and an all-gather.
    return Replicate()


def norms_plan(layout: Placement) -> Plan:
    """The plan of the norms on a stream with `layout`: two in each block, "blocks.*.NAME", and the model's last one."""
    # TODO 6, again: the norms. Each rank has their whole weights and sees a part of the tokens, so the ranks' gradients
    # must be summed. Otherwise the copies drift apart without any error, and the last norm would give the head
    # only this rank's T/tp tokens, as a plain tensor.
    return {}


def shard(model: nn.Module, mesh: DeviceMesh, args: argparse.Namespace) -> nn.Module:
    """Shard what each rank has of its layers over the data axis, and with it gradients and the optimizer's state."""
    # Ranks of one column have the same part of each layer and read different samples: they shard that part, and average
    # its gradients. Ranks of a row have different parts: there is nothing to shard. A single row is wrapped, too, since
    # the wrapper also sets the model's dtype.
    options = {"mesh": mesh["data"], "mp_policy": precision(args)}
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options, reshard_after_forward=False)  # its backward pass comes at once


def compute_loss(model: nn.Module, x: Tensor, y: Tensor, args: argparse.Namespace) -> Tensor:
    # A sharded model has its dtype from `precision`.
    autocast = args.dtype == "bfloat16" and not isinstance(model, FSDPModule)
    with torch.autocast(x.device.type, torch.bfloat16, enabled=autocast):
        return model(x, y)


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, device: torch.device, args: argparse.Namespace) -> float:
    """Mean loss over tokens. A mean of batch means would give a short last batch too much weight."""
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=device)
    count = torch.zeros((), dtype=torch.float64, device=device)
    for x, y in in_step(loader, device, args):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        n_targets = (y != IGNORE).sum()
        total += compute_loss(model, x, y, args).double() * n_targets
        count += n_targets
    return global_mean(total, count)  # each row counts args.tp times, in both


def clip_gradients(model: nn.Module, args: argparse.Namespace) -> float:
    """Clip the gradient's norm to args.clip (0: no limit). Returns the norm before clipping."""
    # TODO 2: Clip by the norm of the whole gradient, over both axes.
    # From TODO 3 on, some parameters are cut over data and tensor, others over data alone, and the call below refuses
    # to mix them. p.device_mesh is a parameter's mesh. nn.utils.get_total_norm(tensors) returns a DTensor, too;
    # nn.utils.clip_grads_with_norm_(parameters, max_norm, norm) scales with a norm that you give it. Both take DTensors
    # of one mesh only, so call each once for each mesh.
    norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip or math.inf)
    return norm.full_tensor().item()


def train_epoch(
    model: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    args: argparse.Namespace,
    metrics: Metrics,
    epoch: int,
    before: float,
    position: dict[str, Any],
) -> float:
    """One pass over the training set, or the rest of one in which an earlier run gave this rank `before` tokens.
    Returns the whole pass's mean loss.

    `position` is kept up to date, and saved every args.save_every steps.
    """
    model.train()
    # Sums and counts: since the last line of the log, and over the epoch.
    total, count, epoch_total, epoch_count = torch.zeros(4, dtype=torch.float64, device=device)
    epoch_count += before
    epoch_total += position["loss"] * epoch_count
    step, last_step, last_time = position["step"], position["step"], time.perf_counter()
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
            # global_mean waits for the device, so only now may the clock be read.
            mean, now = global_mean(total, count), time.perf_counter()
            speed = (step - last_step) * args.batch_size * args.seq_len / (now - last_time)
            metrics.log("step", step, epoch=epoch + 1, loss=mean, gradient_norm=norm, tokens_per_s=speed)
            total, count = torch.zeros(2, dtype=torch.float64, device=device)
            last_step, last_time = step, now
        position["step"] = step
        if args.save_every and step % args.save_every == 0:
            position["loss"] = global_mean(epoch_total + total, epoch_count + count)
            with saved_whole(Path(args.out), step) as folder:
                save_sharded(model, optimizer, position, folder)
    return global_mean(epoch_total + total, epoch_count + count)


def save_checkpoint(model: nn.Module, config: dict[str, Any], path: Path, epoch: int) -> None:
    """Weights and sizes, no objects: `utils.checkpoints.load_model` reads it anywhere."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # As in fsdp_training: it assembles parts over any axes.
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    full = get_model_state_dict(model, options=options)  # on all ranks; rank 0 gets it
    save0({"model": full, "config": config, "epoch": epoch}, path)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    prepare(args)  # the device that --device asks for
    rank, local_rank, world_size, device = setup()
    mesh = make_mesh(device, world_size, args)
    check_averages(device, mesh["data"].size())
    set_batch_size(args, mesh["data"].size(), "ranks of the data axis")
    sets, vocab_size = make_sets(args)
    samplers = make_samplers(sets, mesh, args)
    train_loader, validation_loader, test_loader = make_loaders(sets, samplers, mesh, args)

    with torch.device("meta"):  # no memory yet
        model = TransformerLM(vocab_size, args.dim, args.heads, args.layers, args.seq_len, args.dropout, args.kv_heads)
    config = model.config  # its sizes, which every checkpoint carries
    model = parallelize(model, mesh, args)
    check_chunks(model)
    first_weights(model, device, args)
    optimizer = make_optimizer(model, args)

    # The state of the run: steps done, mean loss of this epoch so far, lowest validation loss; and what must match.
    position = {"step": 0, "loss": 0.0, "best": math.inf} | {name: getattr(args, name) for name in SAME}
    if args.resume:
        args.resume = to_resume(args, model)
        position = load_sharded(model, optimizer, position, Path(args.resume))
    first_epoch, done = find_epoch(position["step"], len(train_loader))

    out = Path(args.out)
    total_steps = min(args.epochs * len(train_loader), args.max_steps or math.inf)
    check_position(position, args, SAME, total_steps, f"--resume {args.resume}")
    start = time.perf_counter()
    metrics = Metrics(out, rank, total_steps, args.tensorboard, args.record, after=position["step"])
    say_what_runs(args, device)
    with metrics, device_memory(args.device_memory, device):
        for epoch in range(first_epoch, args.epochs):
            samplers[0].set_epoch(epoch)
            batches = islice(train_loader, done, done + total_steps - position["step"])
            before = done * args.batch_size * args.seq_len / mesh["data"].size()  # of this rank
            train_loss = train_epoch(model, batches, optimizer, device, args, metrics, epoch, before, position)
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
                save_checkpoint(model, config, out / "model-best.pt", epoch + 1)
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
