"""Train over five axes at once: pipeline, copies, shards, context and tensor parallel (arXiv:2104.04473, 2407.21783).

Eight processes, 2 x 2 x 2:
    torchrun --local-addr 127.0.0.1 --nproc-per-node 8 train/hybrid_training.py --pp 2 --shard 2 --tp 2
Also cut the stream:
    torchrun --local-addr 127.0.0.1 --nproc-per-node 4 train/hybrid_training.py --pp 2 --tp 2 --sequence-parallel
Long sequences, and a mixture of experts on the same ranks:
    torchrun --local-addr 127.0.0.1 --nproc-per-node 4 train/hybrid_training.py --pp 2 --cp 2 --experts 4 --ep 2
Stop, and resume in a different shape:
    torchrun --local-addr 127.0.0.1 --nproc-per-node 4 train/hybrid_training.py --pp 2 --tp 2 --save-every 50
    python train/hybrid_training.py --resume runs/hybrid_training/step-50
What the planner predicts for a step, next to the time and memory that it takes (--max-steps shortens the training, not
the evaluation after it):
    torchrun --local-addr 127.0.0.1 --nproc-per-node 4 train/hybrid_training.py --pp 2 --tp 2 --max-steps 4 --compare
One process:    python train/hybrid_training.py
More nodes:     sbatch sbatch/hybrid_training.sbatch              (JURECA)
                qsub sbatch/hybrid_training.pbs                   (Polaris)

A rank has a place on each of five axes, and each axis divides something different:

    axis    its ranks have the same        and split                    they send, each step
    pp      samples                        the layers                   activations of a micro-batch to the next stage
    dp      layers, and shards of them     the batch                    gradients of their shards (all-reduce)
    shard   layers                         the batch, and all states    weights (all-gather), gradients (reduce-scatter)
    cp      samples and layers             tokens, and all states       keys and values, in each layer (ring, all-to-all)
    tp      samples, tokens and layers     each layer                   the stream, several times a layer (all-reduce)

Experts (--experts) have no axis of their own. Ranks of shard and cp have different tokens and the same layers, and --ep
of them divide a block's experts: in each layer, rows of the stream travel to their experts and back (all-to-all).

It builds on 09_mesh (axes), 10_strategy (plans), pipeline_training, tp_training, context_training and expert_training:
it starts as the solution of tp_training.py, with the stages and schedules of pipeline_training.py (what those taught is
in utils/after_tp_training.py and utils/after_pipeline_training.py), and runs at every stage: as given, the ranks of an
axis that you have not reached yet all do the same work. TODOs 1 to 10 make it right for plain models, 11 saves memory
with --cp and places experts, and 12 and 13 make it right for --experts. Fill the TODOs in the order of their numbers,
which is not always the order of the lines; `./workbook check hybrid_training` says how far you have got.

Experts are dropless, and a bias alone balances their load: a balancing loss, or a capacity, would depend on how the batch
is cut into micro-batches.

Words: the *stream* is the tensor (B, T, D) that flows from block to block; a *mesh* is a grid of ranks with named axes; a
*DTensor* knows how it is cut over a mesh; a tensor on the *meta device* has a shape and takes no memory; DCP is
torch.distributed.checkpoint, in which each rank saves its own shards. Papers: all axes on one mesh, arXiv:2410.06511;
shards and copies (HSDP), arXiv:2304.11277; experts folded into the other axes, arXiv:2504.14960.
"""

import argparse
import logging
import math
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

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
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineSchedule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

# The course's folder is the nearest one above this file that holds utils/.
sys.path.insert(0, str(next(p for p in Path(__file__).resolve().parents if (p / "utils").is_dir())))

from utils.after_context_training import ContextAttention, places_of
from utils.after_ddp_training import global_mean, setup
from utils.after_expert_training import (
    count_tokens,
    expert_parameters,
    keep_own,
    make_mixtures,
    own_loads,
    take_mixtures,
    update_biases,
)
from utils.after_fsdp_training import in_step, precision, recompute, send_first_weights
from utils.after_pipeline_training import Layers, fill, make_schedule, train_batch
from utils.after_resilient_training import find_epoch
from utils.after_tp_training import Plan, plan_of, shared_head_loss, stream_layout
from utils.arguments import given, training_parser, whole
from utils.compare_plan import Beside
from utils.checkpoints import check_chunks, joined, saved_whole, to_resume
from utils.data import IGNORE, ShardSampler
from utils.device_memory import device_memory
from utils.devices import accelerator
from utils.distributed import cleanup, launch_environment, print0, save0
from utils.hybrid_flags import add_hybrid_flags, check_hybrid
from utils.job import prepare, say_what_runs
from utils.llama import share_key_heads
from utils.loss import head_loss
from utils.metrics import Metrics
from utils.model import TransformerLM
from utils.pipeline_flags import by_number, check_schedules, stages_a_rank
from utils.training import Loaders, Samplers, Sets, check_position, make_optimizer, make_sets, perplexity

# What must match to resume: the order of the samples depends on it, or the optimizer keeps it.
SAME = ("batch_size", "seq_len", "experts", "top_k", "bias_rate", "seed", "lr", "weight_decay")
# DTensor warns of every redistribution over several axes.
logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = training_parser("hybrid_training")
    add_hybrid_flags(parser)
    add = parser.add_argument
    add("--save-every", type=whole(0), default=0, help="steps between sharded checkpoints; 0: none")
    add("--resume", type=given, metavar="FOLDER", help="resume from a sharded checkpoint, or from a run's newest one, in any shape")
    args = parser.parse_args(argv)
    check_hybrid(args, launch_environment().world_size)
    return args


def make_mesh(device: torch.device, args: argparse.Namespace) -> DeviceMesh:
    """The ranks on five axes, named like the flags: pp, dp, shard, cp and tp."""
    # TODO 1: Order the axes. init_device_mesh numbers the ranks along the last axis first, and consecutive ranks are
    # on one node, where links are fast; the ranks of the first axis are furthest apart. The table above names the
    # messages along each axis. Which of them sends most, and which must wait for each message? As given, the losses
    # would be right, but on several nodes every layer would wait for the network.
    sizes = (args.dp, args.shard, args.cp, args.tp, args.pp)
    return init_device_mesh(device.type, sizes, mesh_dim_names=("dp", "shard", "cp", "tp", "pp"))


class Meshes(NamedTuple):
    """The same ranks in three grids. pp, dp and tp are the same axes in all of them."""

    work: DeviceMesh  # pp, dp, shard, cp, tp: who computes what
    states: DeviceMesh  # pp, dp, shard, tp: which rank has which part of weights, gradients and the optimizer's state
    experts: DeviceMesh  # pp, dp, shard, ep, tp: the same for experts


def make_meshes(mesh: DeviceMesh, args: argparse.Namespace) -> Meshes:
    """`mesh`, and the two grids by which states are divided."""
    pp, dp, shard, cp, tp = (mesh[axis].size() for axis in ("pp", "dp", "shard", "cp", "tp"))
    # TODO 11: Let ranks of cp divide the states, too, and let ep take its ranks from shard and cp.
    # Ranks that differ on cp have different tokens of the same samples: FSDP treats them as it treats ranks with
    # different samples, so the axis "shard" of these two grids has shard times cp ranks, or what ep leaves of them. The
    # ranks of ep, args.ep, have different experts of the same block, and rows travel among them in every layer: they are
    # neighbours, next to tp. In all three grids a rank has the same place on pp, dp and tp, and along an axis the ranks'
    # numbers rise: a process group sorts its ranks, and FSDP divides by places. As given, ranks of cp keep
    # copies of all states, as ranks of dp do: the losses are right, and --cp saves no such memory. And every rank has all
    # experts.
    ranks = mesh.mesh.permute([mesh.mesh_dim_names.index(name) for name in ("pp", "dp", "cp", "shard", "tp")])
    copies = ranks.flatten(1, 2)
    states = DeviceMesh(mesh.device_type, copies, mesh_dim_names=("pp", "dp", "shard", "tp"))
    alone = copies.unsqueeze(3)  # until then, every rank is alone on ep
    experts = DeviceMesh(mesh.device_type, alone, mesh_dim_names=("pp", "dp", "shard", "ep", "tp"))
    return Meshes(mesh, states, experts)


def my_share(mesh: DeviceMesh) -> tuple[int, int]:
    """The number of this rank's part of the samples, from 0, and the number of parts."""
    # TODO 5: Divide the samples among the ranks of both data axes, and of no other axis.
    # Ranks that differ only on dp or shard work on different samples. Ranks that differ on cp have different tokens of
    # the same samples, ranks that differ on tp compute one result together, and ranks that differ on pp work on the same
    # samples in turn: they all read the same.
    return mesh.get_local_rank("shard"), mesh["shard"].size()


def make_samplers(sets: Sets, mesh: DeviceMesh, args: argparse.Namespace) -> Samplers:
    """The samples that this rank reads, in order."""
    train, validation, test = sets
    share, shares = my_share(mesh)
    return (
        DistributedSampler(train, shares, share, shuffle=True, seed=args.seed, drop_last=True),
        ShardSampler(validation, share, shares),
        ShardSampler(test, share, shares),
    )


def make_loaders(sets: Sets, samplers: Samplers, mesh: DeviceMesh, args: argparse.Namespace) -> Loaders:
    """This rank's batches of (x, y): its part of the global batch."""
    train, validation, test = sets
    train_sampler, validation_sampler, test_sampler = samplers
    _, shares = my_share(mesh)
    common = {"batch_size": args.batch_size // shares, "num_workers": args.workers}
    common["pin_memory"] = bool(accelerator())
    train_loader = DataLoader(train, sampler=train_sampler, drop_last=True, **common)
    validation_loader = DataLoader(validation, sampler=validation_sampler, **common)
    test_loader = DataLoader(test, sampler=test_sampler, **common)
    return train_loader, validation_loader, test_loader


def model_maker(args: argparse.Namespace) -> Callable[..., TransformerLM]:
    """What makes the whole model from the sizes in a checkpoint's config."""
    return make_mixtures if args.experts else TransformerLM


def build_model(vocab_size: int, args: argparse.Namespace) -> TransformerLM:
    """The whole model on the meta device, to take layers from: its weights have shapes, and take no memory."""
    sizes = {"vocab_size": vocab_size, "dim": args.dim, "n_heads": args.heads, "n_layers": args.layers}
    sizes |= {"max_len": args.seq_len, "dropout": args.dropout, "kv_heads": args.kv_heads}
    if args.experts:
        sizes |= {"n_experts": args.experts, "top_k": args.top_k}
    with torch.device("meta"):
        return model_maker(args)(**sizes)


def parallelize(
    model: TransformerLM, meshes: Meshes, device: torch.device, args: argparse.Namespace
) -> list[PipelineStage]:
    """The recipe: this rank's stages, its part of each of their layers, its shard of that part; and then the memory.

    The order matters: a layer is split after its stage is chosen, and its parts are sharded after it is split.
    fully_shard before parallelize_module would shard whole layers, which could then not be cut.
    """
    work, states, experts = meshes
    stages = cut(model, work["pp"], device, args)
    # DTensor compares the layouts along all axes at once, so each axis makes the first step slower, even one of size 1.
    data = ("dp", "shard") if states["dp"].size() > 1 else ("shard",)
    for stage in stages:
        divide_tokens(stage.submod, work["cp"], device, args)
        if work["tp"].size() > 1:
            split(stage.submod, states["tp"], args)
            share_key_heads(stage.submod.blocks, work.get_group("tp"), args.kv_heads)  # for a llama block
        if args.experts:
            divide_experts(stage.submod, experts)
        if args.recompute:
            recompute(stage.submod)
        if args.experts:
            shard_mixtures(stage.submod, states[data], experts[data], args)
        shard(stage.submod, states[data], args)
        stage.submod.to_empty(device=device)
    return stages


def divide_tokens(layers: Layers, mesh: DeviceMesh, device: torch.device, args: argparse.Namespace) -> None:
    """As in context_training: let a stage's blocks attend over the context axis, `mesh`, and tell the stage which
    tokens of each sequence it has.
    """
    if mesh.size() > 1:
        layers.places = places_of(mesh.get_local_rank(), mesh.size(), args.seq_len, args.cp_method).to(device)
        for block in layers.blocks.values():
            block.attention.attend = ContextAttention(mesh.get_group(), args.cp_method)
            block.attention.positions = layers.places  # for a llama block


def own_tokens(stages: list[PipelineStage], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Of whole sequences, int64 (B, T), what this rank's stages have: (B, T / cp)."""
    places = stages[0].submod.places
    return (x, y) if places is None else (x[:, places], y[:, places])


def divide_experts(layers: Layers, mesh: DeviceMesh) -> None:
    """As in expert_training: keep this rank's experts. Ranks that split each layer split each expert as they would the
    MLP; the router is whole. `mesh` has the axes of the experts.
    """
    for block in layers.blocks.values():
        keep_own(block.mlp, mesh["ep"])
        if mesh["tp"].size() > 1:
            for expert in block.mlp.experts.children():
                parallelize_module(expert, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})


def shard_mixtures(layers: Layers, states: DeviceMesh, experts: DeviceMesh, args: argparse.Namespace) -> None:
    """As in expert_training: units of their own for a block's experts, over the ranks that have the same ones, and for
    its router, which stays in float32.
    """
    for block in layers.blocks.values():
        count_tokens(block)
        fully_shard(block.mlp.experts, mesh=experts, mp_policy=precision(args), reshard_after_forward=False)
        fully_shard(block.mlp.router, mesh=states, reshard_after_forward=False)


def cut(model: TransformerLM, mesh: DeviceMesh, device: torch.device, args: argparse.Namespace) -> list[PipelineStage]:
    """This rank's stages, in order. `mesh` is the pipeline axis."""
    # TODO 2: Make the stages of this rank, and take no memory for them.
    # With p ranks in a pipeline, rank r of it has stage r, and if stages_a_rank(p, args) is 2, stage r + p, too. On a mesh
    # of one axis, mesh.size(), mesh.get_local_rank() and mesh.get_group() need no name.
    # by_number(len(model.blocks), n_stages) lists the blocks of every stage: equally many, as the planner counts them.
    # Layers(model, blocks) takes a stage's layers from the model; they stay on the meta device, since they will be split
    # twice more. PipelineStage(layers, stage, n_stages, device, group=…).
    alone, _ = dist.new_subgroups(1)  # until then, each rank is a pipeline on its own
    return [PipelineStage(Layers(model, range(len(model.blocks))), 0, 1, device, group=alone)]


def model_plan(args: argparse.Namespace) -> Plan:
    """The plan for a whole model. Of a mixture, `divide_experts` splits the experts."""
    plan = plan_of(stream_layout(args))
    return {name: style for name, style in plan.items() if not (args.experts and ".mlp" in name)}


def split(layers: Layers, mesh: DeviceMesh, args: argparse.Namespace) -> None:
    """Split a stage's layers among the ranks of `mesh`, the tensor axis. In place."""
    # TODO 3: Split the layers that this stage has, and no others.
    # model_plan(args) is the plan for a whole model, {name: style}, with names like "blocks.*.attention.q", and the
    # names of both embeddings and of the head. parallelize_module(layers, mesh, plan) warns of names that a stage lacks;
    # layers.named_children() gives the names that it has. The norms stay whole: see TODO 7.
    pass


def shard(layers: Layers, mesh: DeviceMesh, args: argparse.Namespace) -> None:
    """Shard what this rank has of its layers. In place. `mesh`: copies (dp) × shards, or shards alone."""
    options = {"mp_policy": precision(args)}
    # TODO 4: Decide how a stage is sharded: its copies must stay equal, and its weights be gathered once a step.
    # Of the five axes only dp and shard are in `mesh`, and dp only if there are copies. Given a mesh with two axes,
    # fully_shard keeps copies along the first and shards along the second (HSDP); given one axis, it shards along that.
    # The other axes are not its concern: pp and tp have cut the layers already. As given, copies along dp are never
    # averaged; and a block's weights are gathered for its forward and again for its backward pass, which is twice for
    # each micro-batch. tp_training treats the modules outside its blocks differently. Keep each block a unit of its
    # own, so that one computes while the next is gathered.
    options["mesh"] = mesh["shard"]
    for block in layers.blocks.values():
        fully_shard(block, **options)
    fully_shard(layers, **options)


def loss_of(layers: Layers, args: argparse.Namespace, h: Tensor, y: Tensor) -> Tensor:
    """Sum of the losses of one micro-batch. h: (b, T, D), the last stage's output, or with --sequence-parallel this
    rank's T/tp tokens of it; y: int64 (b, T), the targets. With --cp, T is this rank's number of tokens.
    """
    # TODO 3, again: the loss, where the head's words are split.
    # layers.head.weight is then a DTensor, and shared_head_loss(h, weight, y, IGNORE) finds the mean. It needs to
    # know how h is placed on these ranks: DTensor.from_local(h, mesh, [layout]) makes a DTensor of each rank's part.
    # The mesh is weight.device_mesh: while FSDP has gathered the weight, that is the tensor axis alone (between steps
    # it has the data axes, too). head_loss, too, returns a mean over the targets that count.
    return head_loss(h, layers.head.weight, y, IGNORE) * (y != IGNORE).sum()


def divide_gradients(own: nn.Module, n_targets: Tensor, mesh: DeviceMesh) -> None:
    """Turn gradients of sums into gradients of the mean over the whole batch's targets. `n_targets`: this rank's,
    0-dim."""
    # TODO 6: Divide once by the targets of the whole batch, and undo FSDP's own division.
    # loss_of returns sums, so each rank's gradients belong to a sum over its micro-batches. FSDP has averaged them over
    # the ranks of dp, shard and cp, so it has divided by the number of these ranks. mesh.get_group("dp") is the group of
    # an axis; ranks that differ on cp have different targets of the same samples, and ranks that differ on tp or pp have
    # the same targets, which count once.
    for parameter in own.parameters():
        parameter.grad /= n_targets


def divide_experts_gradients(own: nn.Module, mesh: DeviceMesh) -> None:
    """After divide_gradients: the same for this rank's experts. In place. `mesh` has the axes of the experts."""
    # TODO 12: Divide the experts' gradients by the right number, and count their tokens. First, the gradients.
    # divide_gradients has multiplied every gradient by the same number, the one that undoes an average over all ranks of
    # dp, shard and cp. An expert's gradient has come from the tokens of all those ranks, but over how many ranks has
    # FSDP averaged it? expert_parameters(own) lists this rank's.
    pass


def everyones_loads(load_LE: Tensor, mesh: DeviceMesh) -> Tensor:
    """How many tokens of the whole batch chose each expert of each of this rank's blocks: int64 (L, E). `load_LE`: how
    many of this rank's did.
    """
    # TODO 12, again: the counts, by which every rank moves its biases alike. Which ranks have different tokens of the
    # batch, and the same blocks? Ranks of a pipeline have other blocks, with counts of the same shape.
    return load_LE


def add_up_norms(own: nn.Module, mesh: DeviceMesh, args: argparse.Namespace) -> None:
    """Give parameters that all ranks of the tensor axis hold whole the gradient of all tokens."""
    # TODO 7: With --sequence-parallel, sum the gradients of the norms over the tensor axis.
    # With the flag, each rank's norms see T/tp tokens, so their gradients are parts of a sum; parameters that are cut over
    # the tensor axis have their complete gradient. p.device_mesh.mesh_dim_names tells over which axes a parameter is
    # cut. p.grad.to_local() is a view of this rank's shard of a gradient, and may be written to. A message for each
    # is right; one for all has less latency: torch.cat of flattened tensors makes one vector, tensor.split(sizes) takes
    # it apart. Without the flag every rank has seen all tokens, and nothing is sent.
    pass


def clip_gradients(own: nn.Module, meshes: Meshes, args: argparse.Namespace) -> float:
    """Clip the gradient's norm to args.clip (0: no limit). Returns the norm before clipping."""
    mesh = meshes.work
    on_mesh: dict[DeviceMesh, list[nn.Parameter]] = {}
    for p in own.parameters():
        on_mesh.setdefault(p.device_mesh, []).append(p)
    norms = [nn.utils.get_total_norm([p.grad for p in group]).full_tensor() for group in on_mesh.values()]
    if args.experts:
        norms = with_all_experts(norms, list(on_mesh.values()), own, meshes.experts)
    norm = torch.stack(norms).norm()
    # TODO 8: Make it the norm over all axes, in which each parameter counts once.
    # As in tp_training, DTensors have computed the norm of this rank's stages: over shards and split layers, with no copy
    # counted twice. The other ranks of the pipeline have different layers; squares of norms can be summed.
    pass
    for group in on_mesh.values():
        # foreach=False: with a list, torch plans the operation for every DTensor in it; one by one, once for each shape.
        nn.utils.clip_grads_with_norm_(group, args.clip or math.inf, norm, foreach=False)
    return norm.item()


def with_all_experts(
    norms: list[Tensor], groups: list[list[nn.Parameter]], own: nn.Module, mesh: DeviceMesh
) -> list[Tensor]:
    """The norm of each group of this rank's parameters, over all ranks of its stages. `norms` are over the ranks that
    share the group's parameters. `mesh` has the axes of the experts.
    """
    # TODO 13: Let the experts of all ranks of ep count, and everything else once.
    # Parameters are in one group if they are on one mesh: the experts on theirs, which has the axis ep; layers that tp
    # cuts, and those that it leaves whole, on the grid of the states. The norms of these are complete. Different ranks
    # of ep have different experts of the same blocks.
    # expert_parameters(own) lists this rank's.
    return norms


@torch.no_grad()
def evaluate(
    stages: list[PipelineStage],
    schedule: _PipelineSchedule,
    loader: DataLoader,
    device: torch.device,
    args: argparse.Namespace,
) -> float:
    """Mean loss over tokens, on all ranks."""
    for stage in stages:
        stage.submod.eval()
    total = torch.zeros((), dtype=torch.float64, device=device)
    count = torch.zeros((), dtype=torch.float64, device=device)
    for x, y in in_step(loader, device, args):
        x, y = own_tokens(stages, *fill(x, y, loader.batch_size))
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        inputs = (x,) if stages[0].is_first else ()
        # TODO 9: Add this batch's losses to total and its number of targets to count, on the ranks that know them.
        # schedule.eval leaves the sums of its micro-batches in the list, on the ranks of the last stage. All ranks of
        # the tensor axis have them there: each target counts args.tp times in both sums, and the quotient is right.
        # Rows added by `fill` and batches added by `in_step` have no target that counts.
        losses: list[Tensor] = []
        schedule.eval(*inputs, target=y, losses=losses, return_outputs=False)
        total += sum(loss / y.numel() for loss in losses)  # a mean of the batches' means
        count += 1
    return global_mean(total, count)


class Pipeline(NamedTuple):
    """What this rank has of the pipeline: its stages, the schedule that runs them, and all their layers as one."""

    stages: list[PipelineStage]
    schedule: _PipelineSchedule
    own: nn.Module


def train_epoch(
    pipeline: Pipeline,
    loader: Iterable[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    meshes: Meshes,
    args: argparse.Namespace,
    metrics: Metrics,
    beside: Beside,
    epoch: int,
    before: float,
    position: dict[str, Any],
) -> float:
    """One pass over the training set, or the rest of one in which an earlier run gave this rank `before` tokens.
    Returns the whole pass's mean loss.

    `position` is kept up to date, and saved every args.save_every steps.
    """
    stages, schedule, own = pipeline
    device = stages[0].device
    for stage in stages:
        stage.submod.train()
    # Sums and counts: since the last line of the log, and over the epoch.
    total, count, epoch_total, epoch_count = torch.zeros(4, dtype=torch.float64, device=device)
    if stages[-1].is_last:
        epoch_count += before
        epoch_total += position["loss"] * epoch_count
    step, last_step, last_time = position["step"], position["step"], time.perf_counter()
    for x, y in loader:
        x, y = own_tokens(stages, x.to(device, non_blocking=True), y.to(device, non_blocking=True))
        n_targets = (y != IGNORE).sum()
        optimizer.zero_grad()
        with beside.step(optimizer):
            loss = train_batch(stages, schedule, x, y)
            divide_gradients(own, n_targets, meshes.work)
            if args.experts:
                divide_experts_gradients(own, meshes.experts)
            add_up_norms(own, meshes.work, args)
            norm = clip_gradients(own, meshes, args)
            optimizer.step()
            if args.experts:
                load_LE = everyones_loads(own_loads(own, args.microbatches), meshes.work)
                update_biases(own, load_LE, args.bias_rate)
        step += 1

        total += loss.double()
        if stages[-1].is_last:  # this rank knows the loss
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
            with saved_whole(Path(args.out), step) as folder:
                save_sharded(own, optimizer, position, folder)
    return global_mean(epoch_total + total, epoch_count + count)


def state_options() -> StateDictOptions:
    """The options that name weights and the optimizer's state in a sharded checkpoint."""
    # TODO 10: Save the run so that it can resume in any shape, and the model so that anyone can load it.
    # First the run: name the optimizer's state by its parameters.
    # As given, it has lists of this rank's parameters ("param_groups"). These differ from stage to stage, and only one
    # rank's would be written: a different shape could not read it. With flatten_optimizer_state_dict=True everything is
    # in one dictionary, by the parameters' names in the whole model.
    return StateDictOptions()


def save_sharded(own: nn.Module, optimizer: torch.optim.Optimizer, position: dict[str, Any], folder: Path) -> None:
    """Save what it takes to resume: each rank writes its shards, and ranks in any shape can load them."""
    weights, state = get_state_dict(own, optimizer, options=state_options())
    dcp.save({"model": weights, "optimizer": state, "position": position}, checkpoint_id=folder)


def load_sharded(
    own: nn.Module, optimizer: torch.optim.Optimizer, position: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """Load what save_sharded wrote, in any shape, into model and optimizer. Returns the position."""
    options = state_options()
    weights, state = get_state_dict(own, optimizer, options=options)
    saved = {"model": weights, "optimizer": state, "position": position}
    dcp.load(saved, checkpoint_id=folder)
    set_state_dict(own, optimizer, model_state_dict=weights, optim_state_dict=state, options=options)
    return saved["position"]


def save_checkpoint(own: nn.Module, meshes: Meshes, config: dict[str, Any], path: Path, epoch: int) -> None:
    """Weights and sizes, no objects: `utils.checkpoints.load_model` reads it anywhere, unless it has experts."""
    mesh, parts = meshes.states, get_model_state_dict(own)  # DTensors, by their names in the whole model
    experts = take_mixtures(parts, meshes.experts) if "n_experts" in config else {}
    # TODO 10, again: the model, whole, on rank 0, in one file.
    # Each part is a DTensor: part.full_tensor() assembles it, over any axes. All ranks that have a shard of it must call
    # it, and all get the result; keep it only where it is needed. A rank has only its own stages' parts, so one rank of
    # each stage sends them to rank 0: the first one on dp, shard and tp. `mesh` is the grid of the states, in which cp is
    # part of shard; mesh.get_local_rank(axis) tells the place on an axis. As in pipeline_training,
    # dist.gather_object(obj, list_of_None_or_None, group=…, group_dst=0) sends the objects of all ranks of a group to
    # its first rank.
    full = parts
    save0({"model": full | experts, "config": config, "epoch": epoch}, path)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    prepare(args)  # the device that --device asks for
    check_schedules()
    rank, local_rank, world_size, device = setup()
    mesh = make_mesh(device, args)
    meshes = make_meshes(mesh, args)
    sets, vocab_size = make_sets(args)
    samplers = make_samplers(sets, mesh, args)
    train_loader, validation_loader, test_loader = make_loaders(sets, samplers, mesh, args)

    model = build_model(vocab_size, args)
    if args.resume:
        args.resume = to_resume(args, model)
    stages = parallelize(model, meshes, device, args)
    own = joined([stage.submod for stage in stages])
    check_chunks(own)
    send_first_weights(own, model.config, args, strict=False, make=model_maker(args))
    schedule = make_schedule(stages, partial(loss_of, stages[-1].submod, args), args)
    optimizer = make_optimizer(own, args)
    beside = Beside(args, model.config, meshes, stages, own)

    # The state of the run: steps done, mean loss of this epoch so far, lowest validation loss; and what must match.
    position = {"step": 0, "loss": 0.0, "best": math.inf} | {name: getattr(args, name) for name in SAME}
    if args.resume:
        position = load_sharded(own, optimizer, position, Path(args.resume))
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
            before = done * train_loader.batch_size * args.seq_len // args.cp  # tokens of this rank
            train_loss = train_epoch(
                Pipeline(stages, schedule, own), batches, optimizer, meshes, args, metrics, beside, epoch, before, position
            )
            done = 0
            validation_loss = evaluate(stages, schedule, validation_loader, device, args)
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
                save_checkpoint(own, meshes, model.config, out / "model-best.pt", epoch + 1)
            if step == total_steps:
                break

        test_loss = evaluate(stages, schedule, test_loader, device, args)
        print0(f"test loss {test_loss:.4f}, perplexity {perplexity(test_loss):.1f}")
        metrics.log("test", step, loss=test_loss, seconds=time.perf_counter() - start)
        save_checkpoint(own, meshes, model.config, out / "model-final.pt", epoch + 1)
    print0(f"wrote model-best.pt, model-final.pt and metrics.jsonl to {out}")
    cleanup()


if __name__ == "__main__":
    main()
