r"""Train on sequences that no device holds: context parallel (CP), with all weights sharded over all ranks.

Each with a quarter:  torchrun --local-addr 127.0.0.1 --nproc-per-node 4 train/context_training.py --cp 4
Tokens for heads:     torchrun --local-addr 127.0.0.1 --nproc-per-node 4 train/context_training.py --cp 2 --cp-method ulysses
Documents kept apart: torchrun --local-addr 127.0.0.1 --nproc-per-node 2 train/context_training.py --cp 2 --pack
Stop and resume:      torchrun --local-addr 127.0.0.1 --nproc-per-node 4 train/context_training.py --cp 4 --save-every 50
                      python train/context_training.py --resume runs/context_training/step-100
One process:          python train/context_training.py
More nodes:           sbatch sbatch/context_training.sbatch              (JURECA)
                      qsub sbatch/context_training.pbs                   (Polaris)

It builds on 06_context_parallel (attention in a ring, and by all-to-all; what you built there is now in
utils/after_06_context_parallel.py) and on fsdp_training: it starts as that script's solution
(utils/after_fsdp_training.py), and runs at every stage. Fill the TODOs in the order of their numbers, which is not
always the order of the lines; `./workbook check context_training` says how far you have got.

Words: a *row* is the ranks that hold one sequence together, each a part of its tokens; a *place* is where a token is
in its whole sequence, counted from 0. A *mesh* is a grid of ranks with named axes. Letters in names are shapes: B
sequences, T tokens of a sequence, C tokens of it on one rank, H heads, K numbers per head.

A sequence that does not fit. One sequence of 2,048 tokens is a whole batch, which data parallel cannot divide. When all
TODOs are right, run this on 1, 2 and 4 ranks, each with its own --out, and fill the table from the reports (a run that
stops names the limit and what it held):

    ./workbook run context_training --nproc 4 -- --cp 4 --data random --max-steps 5 --batch-size 1 --seq-len 2048 \
        --device-memory 30MB

    ranks   --cp   exit code   seconds per step   peak device memory of a rank
    1       1
    2       2
    4       4

Which parts of a rank's memory does --cp make smaller: activations, weights, the optimizer's state? What would --batch-size 4
on 4 x 1 ranks need, in comparison, and what would it send?

In the libraries: torch.distributed.tensor.experimental.context_parallel(mesh, buffers=[x, y], buffer_seq_dims=[1, 1])
is a context in which the buffers are cut in zig-zag, in place, and in which F.scaled_dot_product_attention attends over
the ranks of the mesh. It is what torchtitan uses. It has a ring for three GPU kernels (flash, memory-efficient, cuDNN)
and for no other, in torch 2.13 as in 2.15, which still calls it a prototype: on a CPU both raise an error (no sharding
strategy for its flash attention). Megatron-LM has both methods of this script (--cp-comm-type p2p, a2a).

Papers: ring attention, arXiv:2310.01889; Ulysses, arXiv:2309.14509; both shards and documents as Llama 3 trained with
them, arXiv:2407.21783, section 3.3.2.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

# The course's folder is the nearest one above this file that holds utils/.
sys.path.insert(0, str(next(p for p in Path(__file__).resolve().parents if (p / "utils").is_dir())))

from utils.after_06_context_parallel import Block, in_zigzag, places_in_zigzag, ring_attention, ulysses
from utils.after_ddp_training import global_mean, setup
from utils.after_fsdp_training import first_weights, in_step, load_sharded, precision, recompute, save_sharded
from utils.after_resilient_training import find_epoch
from utils.arguments import given, training_parser, whole
from utils.checkpoints import check_chunks, saved_whole, to_resume
from utils.data import IGNORE, ShardSampler
from utils.device_memory import device_memory
from utils.devices import accelerator
from utils.distributed import check_averages, cleanup, fail, print0, save0, set_batch_size
from utils.job import prepare, say_what_runs
from utils.metrics import Metrics
from utils.model import TransformerLM
from utils.products import scaled_dot_product_attention
from utils.training import Loaders, Samplers, Sets, check_position, make_optimizer, make_sets, perplexity

# What must match to resume: the order of the samples and the loss depend on it, or the optimizer keeps it.
SAME = ("batch_size", "seq_len", "pack", "seed", "lr", "weight_decay")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = training_parser("context_training")
    add = parser.add_argument
    add("--cp", type=whole(1), default=1, help="ranks that divide the tokens of a sequence")
    add(
        "--cp-method", choices=("ring", "ulysses"), default="ring", help="how attention reaches the other ranks' tokens"
    )
    add("--pack", action="store_true", help="a token sees its own document only; <eos> ends one, as it ends each line")
    add("--recompute", action="store_true", help="recompute activations in the backward pass (checkpointing)")
    add("--save-every", type=whole(0), default=0, help="steps between sharded checkpoints; 0: none")
    add(
        "--resume",
        type=given,
        metavar="FOLDER",
        help="resume from a sharded checkpoint, or from a run's newest one, with any --cp",
    )
    args = parser.parse_args(argv)
    if args.dim % args.heads:
        parser.error(f"--dim {args.dim} is not divisible by --heads {args.heads}")
    if args.cp_method == "ulysses" and args.heads % args.cp:
        parser.error(f"--heads {args.heads} is not divisible by --cp {args.cp}: Ulysses cannot split heads; a ring can")
    pieces = args.cp if args.cp_method == "ulysses" else 2 * args.cp
    if args.cp > 1 and args.seq_len % pieces:
        parser.error(
            f"--seq-len {args.seq_len} is not divisible by {pieces}, the pieces of --cp {args.cp} by {args.cp_method}"
        )
    if args.dropout and args.cp > 1:
        # Each rank draws for its own tokens alone, in another order than one process draws for all.
        parser.error(
            f"--dropout {args.dropout:g} cannot be combined with --cp {args.cp}: the masks would not be the serial run's"
        )
    return args


def make_mesh(device: torch.device, world_size: int, args: argparse.Namespace) -> DeviceMesh:
    """The ranks in a grid. A row divides the tokens of its sequences; a column divides the batch."""
    if world_size % args.cp:
        fail(f"--cp {args.cp}: {world_size} ranks are not a multiple of it; start more, or choose a different --cp")
    # TODO 1: Lay out the ranks: which of them hold one sequence, and which samples each reads. First, the grid.
    # Its axes are called data and context, and the context axis has args.cp ranks. Ranks with consecutive numbers are on
    # one node, and init_device_mesh numbers the ranks row by row, so the ranks of its last axis are consecutive. The
    # ranks of the context axis exchange keys and values in every layer.
    return init_device_mesh(device.type, (world_size, 1), mesh_dim_names=("data", "context"))


def make_samplers(sets: Sets, mesh: DeviceMesh, args: argparse.Namespace) -> Samplers:
    """The samples that this rank reads, in order."""
    train, validation, test = sets
    # TODO 1, again: the samples. As given, each rank reads its own: then the parts that the ranks of a row hold are of
    # different sequences, which raises no error. mesh.get_local_rank(axis) is this rank's number along an axis,
    # mesh[axis].size() the number of ranks along it.
    # (Mind the order: DistributedSampler takes num_replicas, rank; ShardSampler takes rank, world_size.)
    return (
        DistributedSampler(train, shuffle=True, seed=args.seed, drop_last=True),
        ShardSampler(validation),
        ShardSampler(test),
    )


def make_loaders(sets: Sets, samplers: Samplers, mesh: DeviceMesh, args: argparse.Namespace) -> Loaders:
    """This rank's batches of (x, y): a row's part of the global batch, in whole sequences."""
    train, validation, test = sets
    train_sampler, validation_sampler, test_sampler = samplers
    common = {"batch_size": args.batch_size // mesh["data"].size(), "num_workers": args.workers}
    common["pin_memory"] = bool(accelerator())
    train_loader = DataLoader(train, sampler=train_sampler, drop_last=True, **common)
    validation_loader = DataLoader(validation, sampler=validation_sampler, **common)
    test_loader = DataLoader(test, sampler=test_sampler, **common)
    return train_loader, validation_loader, test_loader


class Share(NamedTuple):
    """What a rank has of a batch. C is T / cp."""

    x: Tensor  # (B, C) its tokens
    y: Tensor  # (B, C) their targets
    positions: Tensor  # (C,), or (B, C) with --pack: what the position embedding is given
    documents: Tensor | None  # with --pack, (B, T): the number of each token's document in its whole sequence


def my_places(tokens: int, mesh: DeviceMesh, args: argparse.Namespace) -> Tensor:
    """The places of this rank's tokens in a sequence of `tokens` tokens, int64 (C,), in the order of the rank's memory."""
    if mesh["context"].size() == 1:  # a row of one rank has whole sequences, of any length
        return torch.arange(tokens)
    # TODO 2: Give each rank its part of every sequence. First, which places.
    # Under a causal mask a late token sees more keys than an early one. In a ring every rank waits for the one with the
    # most work, so places_in_zigzag(rank, world, tokens) gives each rank one early and one late piece. Ulysses has the
    # whole sequence on each rank while it attends: its parts are consecutive.
    return torch.arange(tokens)


def my_share(x: Tensor, y: Tensor, eos: int, mesh: DeviceMesh, args: argparse.Namespace) -> Share:
    """This rank's share of a batch of whole sequences x and y, both int64 (B, T)."""
    places = my_places(x.shape[1], mesh, args).to(x.device)
    documents = None
    positions = torch.arange(x.shape[1], device=x.device)
    if args.pack:
        # The token before a document's first word is <eos>, so that word's target is predicted from nothing.
        y = y.masked_fill(x == eos, IGNORE)
        documents = (x == eos).cumsum(dim=1)
        positions = positions_in(documents)
    # TODO 2, again: the share itself. Tokens, targets and positions follow the places; `documents` stays whole, since a
    # rank needs to know the other ranks' documents, too. With wrong positions the model still trains, but learns
    # nonsense.
    return Share(x, y, positions, documents)


def positions_in(documents: Tensor) -> Tensor:
    """Each token's position in its document, from 0: int64 (B, T). `documents` has each token's document, (B, T),
    numbered along the sequence.
    """
    # TODO 7: Keep documents apart, wherever they are packed. First, positions start anew in every document.
    # A sequence may begin in the middle of a document: the rest of it starts at position 0, too.
    return torch.arange(documents.shape[1], device=documents.device).expand_as(documents)


def same_document(documents: Tensor, queries: Tensor, keys: Tensor) -> Tensor | None:
    """Which queries, at the places `queries`, and keys, at the places `keys`, are of one document: bool
    (B, 1, len(queries), len(keys)), the 1 for all heads; None: all are.
    """
    # TODO 7, again: the mask between any two sets of places. A document may continue on another rank.
    return None


class ContextAttention:
    """Causal attention over all tokens of a row: takes the place of `attend` in each block's attention."""

    def __init__(self, mesh: DeviceMesh, args: argparse.Namespace) -> None:
        self.mesh, self.args = mesh, args
        self.documents: Tensor | None = None  # of the batch at hand; `compute_loss` sets it

    def __call__(self, q_BHCK: Tensor, k_BHCK: Tensor, v_BHCK: Tensor) -> Tensor:
        """The output of this rank's queries, (B, H, C, K), from the keys and values of all ranks of the row."""
        tokens = q_BHCK.shape[2] * self.mesh["context"].size()
        if self.mesh["context"].size() == 1:  # this rank has whole sequences
            mask = self.whole_mask(tokens)
            return scaled_dot_product_attention(q_BHCK, k_BHCK, v_BHCK, attn_mask=mask, is_causal=mask is None)
        # TODO 3: Attend to the tokens of the whole row, by args.cp_method.
        # As given, a rank's queries see this rank's keys alone, in the order in which they are stored. ring_attention(q, k, v,
        # blocks, group) and ulysses(q, k, v, group, mask) attend over the ranks of a process group; ring_blocks and
        # whole_mask, below, make their blocks and their mask. mesh.get_group(axis) is the group of the ranks in
        # line with this one along that axis.
        return scaled_dot_product_attention(q_BHCK, k_BHCK, v_BHCK, is_causal=True)

    def ring_blocks(self, tokens: int) -> Callable[[int], list[Block]]:
        """For `ring_attention`: what this rank's queries see of each rank's keys, in a sequence of `tokens` tokens."""
        rank, world = self.mesh.get_local_rank("context"), self.mesh["context"].size()
        causal = in_zigzag(rank, world, tokens)
        mine = places_in_zigzag(rank, world, tokens)

        def blocks(source: int) -> list[Block]:
            theirs = places_in_zigzag(source, world, tokens)
            return [
                (rows, columns, self.visible(mine[rows], theirs[columns], mask))
                for rows, columns, mask in causal(source)
            ]

        return blocks

    def whole_mask(self, tokens: int) -> Tensor | None:
        """For `ulysses`: the mask of whole sequences of `tokens` tokens, (B, 1, T, T); None is the causal mask."""
        places = torch.arange(tokens)
        causal = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        return None if self.documents is None else self.visible(places, places, causal)

    def visible(self, rows: Tensor, columns: Tensor, causal: Tensor | None) -> Tensor | None:
        """Which queries see which keys, from the causal mask (None: all) and, with --pack, from the documents."""
        same = None if self.documents is None else same_document(self.documents, rows, columns)
        if causal is None or same is None:
            return same if causal is None else causal
        return causal.to(same.device) & same


def attend_over_context(model: nn.Module, mesh: DeviceMesh, args: argparse.Namespace) -> ContextAttention:
    """Let each block attend over the context axis. Returns what they attend with."""
    attention = ContextAttention(mesh, args)
    for block in model.blocks:
        block.attention.attend = attention
    return attention


def parallelize(model: nn.Module, mesh: DeviceMesh, args: argparse.Namespace) -> nn.Module:
    """The recipe: attend over the row, choose what a block keeps, shard the weights over all ranks."""
    attend_over_context(model, mesh, args)
    if args.recompute:
        recompute(model)
    return shard(model, mesh, args)


def shard(model: nn.Module, mesh: DeviceMesh, args: argparse.Namespace) -> nn.Module:
    """Give each rank its part of the weights, and so of the gradients and the optimizer's state."""
    # TODO 6: Shard the weights over all ranks, rows and columns alike.
    # As given, the ranks of a row hold the same shards, and the gradients are averaged over the data axis alone: each
    # copy learns from its own part of the sequences, and they drift apart. The ranks of a row have different tokens, just
    # as the ranks of a column have, so FSDP can treat all of them alike, as torchtitan and Megatron-LM do: then each
    # rank holds 1/N of weights and state, whatever --cp is. fully_shard takes a mesh of one axis; with two axes it
    # shards over the second, and keeps copies along the first.
    options = {"mesh": mesh["data"], "mp_policy": precision(args)}
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options, reshard_after_forward=False)  # its backward pass comes at once


def compute_loss(model: nn.Module, share: Share, args: argparse.Namespace) -> Tensor:
    """Mean loss over this rank's targets; 0 where none counts."""
    for block in model.blocks:
        block.attention.attend.documents = share.documents
    # A sharded model has its dtype from `precision`.
    autocast = args.dtype == "bfloat16" and not isinstance(model, FSDPModule)
    with torch.autocast(share.x.device.type, torch.bfloat16, enabled=autocast):
        return model(share.x, share.y, share.positions)


def objective(loss: Tensor, y: Tensor) -> Tensor:
    """What this rank's backward pass starts from: `loss` is the mean over the targets y of this rank, (B, C)."""
    # TODO 4: Let every target of the global batch count alike.
    # FSDP averages the gradients of all ranks, so as given each rank counts alike. That is the serial run's gradient as
    # long as all ranks have equally many targets that count (y != IGNORE). With --pack they have not; a rank may have
    # none, and all together may have none, where `loss` is 0. (`loss` itself is what the log adds up; leave it as it is.)
    return loss


@torch.no_grad()
def evaluate(
    model: nn.Module, loader: DataLoader, eos: int, mesh: DeviceMesh, device: torch.device, args: argparse.Namespace
) -> float:
    """Mean loss over tokens. A mean of batch means would give a short last batch too much weight."""
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=device)
    count = torch.zeros((), dtype=torch.float64, device=device)
    for x, y in in_step(loader, device, args):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        # TODO 5: Validate on shares, too.
        # As given, each rank counts the targets of the whole sequences, though it saw only its part. The last window of
        # a set is padded with targets that do not count, all at its end: on some ranks and not on others.
        share = my_share(x, y, eos, mesh, args)
        n_targets = (y != IGNORE).sum()
        total += compute_loss(model, share, args).double() * n_targets
        count += n_targets
    return global_mean(total, count)


def clip_gradients(model: nn.Module, args: argparse.Namespace) -> float:
    """Clip the gradient's norm to args.clip (0: no limit). Returns the norm before clipping."""
    # As in fsdp_training: all parameters are sharded over one mesh, so the norm of the whole is one call.
    norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip or math.inf)
    return norm.full_tensor().item()


def train_epoch(
    model: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    eos: int,
    mesh: DeviceMesh,
    device: torch.device,
    args: argparse.Namespace,
    metrics: Metrics,
    epoch: int,
    position: dict[str, Any],
) -> float:
    """One pass over the training set, or the rest of one. Returns the whole pass's mean loss.

    `position` has the mean loss and the number of targets of the pass's first part, if an earlier run did that. It is
    kept up to date, and saved every args.save_every steps.
    """
    model.train()
    # Sums and counts: since the last line of the log, and over the epoch.
    total, count, epoch_total, epoch_count = torch.zeros(4, dtype=torch.float64, device=device)
    epoch_count += position["targets"] / dist.get_world_size()  # any rank may count them, or all of them some
    epoch_total += position["loss"] * epoch_count
    step, last_step, last_time = position["step"], position["step"], time.perf_counter()
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        share = my_share(x, y, eos, mesh, args)
        loss = compute_loss(model, share, args)
        optimizer.zero_grad()
        objective(loss, share.y).backward()
        norm = clip_gradients(model, args)
        optimizer.step()
        step += 1

        # detach: a sum of losses would otherwise keep the graph of every step alive.
        n_targets = (share.y != IGNORE).sum()
        total += loss.detach().double() * n_targets
        count += n_targets
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
            targets = epoch_count + count
            dist.all_reduce(targets)
            position["targets"] = targets.item()
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
    check_averages(device, world_size)
    mesh = make_mesh(device, world_size, args)
    set_batch_size(args, mesh["data"].size(), "ranks of the data axis")
    sets, vocab_size = make_sets(args)
    eos = sets[0].eos
    samplers = make_samplers(sets, mesh, args)
    train_loader, validation_loader, test_loader = make_loaders(sets, samplers, mesh, args)

    with torch.device("meta"):  # no memory yet
        model = TransformerLM(vocab_size, args.dim, args.heads, args.layers, args.seq_len, args.dropout, args.kv_heads)
    config, model = model.config, parallelize(model, mesh, args)  # its sizes, which every checkpoint carries
    check_chunks(model)
    first_weights(model, device, args)
    optimizer = make_optimizer(model, args)

    # Steps done; of this epoch so far the mean loss and the number of targets; lowest validation loss; what must match.
    position = {"step": 0, "loss": 0.0, "targets": 0.0, "best": math.inf} | {name: getattr(args, name) for name in SAME}
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
            position |= {} if done else {"loss": 0.0, "targets": 0.0}
            train_loss = train_epoch(model, batches, optimizer, eos, mesh, device, args, metrics, epoch, position)
            done = 0
            validation_loss = evaluate(model, validation_loader, eos, mesh, device, args)
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

        test_loss = evaluate(model, test_loader, eos, mesh, device, args)
        print0(f"test loss {test_loss:.4f}, perplexity {perplexity(test_loss):.1f}")
        metrics.log("test", step, loss=test_loss, seconds=time.perf_counter() - start)
        save_checkpoint(model, config, out / "model-final.pt", epoch + 1)
    print0(f"wrote model-best.pt, model-final.pt and metrics.jsonl to {out}")
    cleanup()


if __name__ == "__main__":
    main()
