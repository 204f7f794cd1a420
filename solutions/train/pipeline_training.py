"""Train a model that is cut into stages, one after the other: pipeline parallelism.

Two stages:     torchrun --local-addr 127.0.0.1 --nproc-per-node 2 train/pipeline_training.py
Two pipelines:  torchrun --local-addr 127.0.0.1 --nproc-per-node 4 train/pipeline_training.py --pp 2
Two stages per rank:
    torchrun --local-addr 127.0.0.1 --nproc-per-node 2 train/pipeline_training.py --layers 4 --schedule interleaved
One process:    python train/pipeline_training.py
More nodes:     sbatch sbatch/pipeline_training.sbatch          (JURECA)
                qsub sbatch/pipeline_training.pbs               (Polaris)

With FSDP every rank runs all layers, and fetches their weights to do so. Here each rank keeps some layers, and the
activations travel: forward from stage to stage, and their gradients back. While a message is in flight, both ranks can
work on other micro-batches, so stages may be on different nodes. The result is what one process would have computed.

It builds on 05_pipeline_parallel, part 1 (stages, micro-batches, schedules), and starts as the solution of
fsdp_training.py, without what it does not need (earlier solutions are in utils/after_ddp_training.py). It runs at any
time: until the last TODO is done, the pipeline has one stage, and all ranks divide the batch. Fill the TODOs in the
order of their numbers, which is not always the order of the lines; `./workbook check pipeline_training` says how far
you have got.

The ranks are a grid, a DeviceMesh with two axes: along "pp" are the stages of one pipeline, along "data" the ranks that
have the same layers and divide the batch. Shapes: B sequences in a batch, b in a micro-batch, T tokens, D width.

    mesh["pp"].size()                  how many ranks this axis has
    mesh["pp"].get_local_rank()        which of them this rank is, from 0
    mesh["pp"].get_group()             the process group of the ranks along this axis, passed as group=…
    PipelineStage(module, number, n_stages, device, group=…)
                                       a stage for torch's schedules; its messages go to the ranks of the group
    module.to_empty(device=device)     allocates uninitialized memory for a module on the device "meta", which has none
    schedule.step(*inputs, target=y, losses=a_list, return_outputs=False)
                                       cuts x and y into micro-batches and does all passes; all ranks make this call.
                                       inputs is (x,) on the rank of the first stage and () on the others, where torch
                                       2.11 refuses an x. The last stage takes y, and leaves its losses in the list
    schedule.eval(…)                   the same with forward passes only
    stage.is_first                     whether a stage is the first; a rank's stages are in order
    dist.gather_object(obj, list_of_None_or_None, group=…, group_dst=0)
                                       sends one object from each rank of a group to its first rank; only that rank
                                       passes a list, with a place for each object

Why not wrap a stage in DDP? It counts one backward pass for each forward pass, and a pipeline makes several forward
passes first. With GPipe, in torch 2.13 and 2.15, the second step ends in "INTERNAL ASSERT FAILED" (it has counted
parameters twice); with static_graph=True it runs, and the last stage's gradients are never averaged. So gradients are
summed by hand, once per step (TODO 6); fully_shard, from the previous lesson, would also work.

In five lines:
- Cut by cost: all ranks wait for the slowest stage, and the last one has the head.
- torch's schedules do the passes and the messages; you give them stages, a loss, and the number of micro-batches.
- Losses are sums; everything is divided once, by the number of targets of all pipelines.
- Gradients are summed over ranks with the same layers, the norm for clipping over ranks with different ones.
- The ranks of a pipeline read the same samples; copies of a stage are neighbours, because they send the most.

Papers: GPipe, https://arxiv.org/abs/1811.06965; 1F1B and interleaved, https://arxiv.org/abs/2104.04473; zero bubble,
https://arxiv.org/abs/2401.10241; all of these in one PyTorch code base, TorchTitan, https://arxiv.org/abs/2410.06511.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    _PipelineSchedule,
)
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

# The course's folder is the nearest one above this file that holds utils/.
sys.path.insert(0, str(next(p for p in Path(__file__).resolve().parents if (p / "utils").is_dir())))

from utils.after_ddp_training import global_mean, setup
from utils.arguments import training_parser
from utils.checkpoints import joined
from utils.data import IGNORE, ShardSampler
from utils.device_memory import device_memory
from utils.devices import accelerator
from utils.distributed import cleanup, launch_environment, print0, save0
from utils.job import prepare, say_what_runs
from utils.llama_sizes import attention_parameters, mlp_parameters
from utils.loss import head_loss
from utils.metrics import Metrics
from utils.model import TransformerLM
from utils.pipeline_flags import add_pipeline_flags, by_number, check_pipeline, check_schedules, stages_a_rank
from utils.start_from import start_from
from utils.training import Loaders, Samplers, Sets, make_optimizer, make_sets, perplexity


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = training_parser("pipeline_training")
    add_pipeline_flags(parser)
    args = parser.parse_args(argv)
    if args.dim % args.heads:
        parser.error(f"--dim {args.dim} is not divisible by --heads {args.heads}")
    check_pipeline(args, launch_environment().world_size)
    return args


def make_mesh(device: torch.device, world_size: int, args: argparse.Namespace) -> DeviceMesh:
    """The ranks in a grid with the axes "pp" and "data"."""
    # TODO 9: Lay out the ranks, and distribute the samples to match.
    # init_device_mesh fills the grid row by row, so the ranks along its last axis are neighbours: on one node, where
    # links are fast. In a step, a stage sends the next stage the stream of one micro-batch at a time, while it works
    # on another; the ranks with the same layers sum all gradients of a stage, and wait for the result. Which axis
    # gets the neighbours? With args.pp stages along "pp", all that you have written becomes a pipeline.
    ### BEGIN SOLUTION
    return init_device_mesh(device.type, (args.pp, world_size // args.pp), mesh_dim_names=("pp", "data"))
    ### STUDENT
    # return init_device_mesh(device.type, (1, world_size), mesh_dim_names=("pp", "data"))
    ### END SOLUTION


def make_samplers(sets: Sets, mesh: DeviceMesh, args: argparse.Namespace) -> Samplers:
    """Which samples this rank reads, in which order."""
    train, validation, test = sets
    # TODO 9, again: the samples. x enters the first stage, and the y that belongs to it enters the last. If they come
    # from different texts, there is no error. Which ranks read the same samples, and which read different ones?
    # DistributedSampler takes num_replicas= and rank=; ShardSampler(dataset, rank, world_size) takes the same two
    # numbers.
    ### BEGIN SOLUTION
    where = {"num_replicas": mesh["data"].size(), "rank": mesh["data"].get_local_rank()}
    return (
        DistributedSampler(train, **where, shuffle=True, seed=args.seed, drop_last=True),
        ShardSampler(validation, where["rank"], where["num_replicas"]),
        ShardSampler(test, where["rank"], where["num_replicas"]),
    )
    ### STUDENT
    # return (
    #     DistributedSampler(train, shuffle=True, seed=args.seed, drop_last=True),
    #     ShardSampler(validation),
    #     ShardSampler(test),
    # )
    ### END SOLUTION


def make_loaders(sets: Sets, samplers: Samplers, args: argparse.Namespace, pipelines: int) -> Loaders:
    """This pipeline's batches of (x, y)."""
    train, validation, test = sets
    train_sampler, validation_sampler, test_sampler = samplers
    common = {"batch_size": args.batch_size // pipelines, "num_workers": args.workers}
    common["pin_memory"] = bool(accelerator())
    train_loader = DataLoader(train, sampler=train_sampler, drop_last=True, **common)
    validation_loader = DataLoader(validation, sampler=validation_sampler, **common)
    test_loader = DataLoader(test, sampler=test_sampler, **common)
    return train_loader, validation_loader, test_loader


def head_in_blocks(model: TransformerLM) -> float:
    """The cost of the head in units of a block: operations of a forward pass for one token, as in 05/1."""
    dim, length, words = (model.config[name] for name in ("dim", "max_len", "vocab_size"))
    matrices = 12 * dim**2
    if "kv_heads" in model.config:
        matrices = attention_parameters(dim, model.config["n_heads"], model.config["kv_heads"]) + mlp_parameters(dim)
    return 2 * dim * words / (2 * matrices + 4 * length * dim)


def cut(blocks: int, n_stages: int, head: float) -> list[range]:
    """The numbers of the blocks of each stage, in order; every stage has at least one.

    The last stage also has the head, which costs as much as `head` blocks.
    """
    # TODO 1: Cut the model so that its slowest stage is as fast as possible. by_number gives every stage the same
    # number of blocks, and some of them one more if there is a remainder: that looks fair, but adds the head to a
    # stage that is already full. The embeddings cost next to nothing. Where two cuts are equally fast, either is right.
    ### BEGIN SOLUTION
    if n_stages == 1:
        return [range(blocks)]
    others = n_stages - 1
    choices = range(1, blocks - others + 1)  # blocks of the last stage; each other stage keeps at least one
    last = min(choices, key=lambda n: max(math.ceil((blocks - n) / others), n + head))
    return [*by_number(blocks - last, others), range(blocks - last, blocks)]
    ### STUDENT
    # return by_number(blocks, n_stages)
    ### END SOLUTION


class Layers(nn.Module):
    """One stage's layers of a model: these blocks, and what comes before the first block and after the last. Modules of
    other stages are None. All weights keep their names from the whole model.

    The first stage takes tokens, int64 (B, T); the others take the stream, float32 (B, T, D), and all return it.
    The last one returns it normed: its head belongs to the loss.
    """

    def __init__(self, model: TransformerLM, blocks: range, bfloat16: bool = False) -> None:
        super().__init__()
        self.dropout, self.bfloat16 = model.dropout, bfloat16
        first, last = blocks.start == 0, blocks.stop == len(model.blocks)
        self.token_embedding = model.token_embedding if first else None
        self.position_embedding = model.position_embedding if first else None
        self.blocks = nn.ModuleDict({str(i): model.blocks[i] for i in blocks})
        self.norm = model.norm if last else None
        self.head = model.head if last else None

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bfloat16):
            if self.token_embedding is not None:
                positions_T = torch.arange(x.shape[1], device=x.device)
                x = self.token_embedding(x)
                if self.position_embedding is not None:  # a llama block turns queries and keys instead
                    x = x + self.position_embedding(positions_T)
                x = self.dropout(x)
            for block in self.blocks.values():
                x = block(x)
            return x if self.norm is None else self.norm(x)


def build_model(vocab_size: int, args: argparse.Namespace) -> TransformerLM:
    """The whole model, to take layers from. Its weights have shapes but no memory."""
    with torch.device("meta"):
        return TransformerLM(vocab_size, args.dim, args.heads, args.layers, args.seq_len, args.dropout, args.kv_heads)


def make_stages(
    model: TransformerLM, mesh: DeviceMesh, device: torch.device, args: argparse.Namespace
) -> list[PipelineStage]:
    """This rank's stages, in order; each holds its Layers. Only their weights have memory, not yet initialized."""
    bfloat16 = args.dtype == "bfloat16"
    p, r = mesh["pp"].size(), mesh["pp"].get_local_rank()
    n_stages = p * stages_a_rank(p, args)
    blocks = cut(len(model.blocks), n_stages, head_in_blocks(model))
    # TODO 2: Make the stages of this rank.
    # With one stage per rank, rank r of a pipeline has stage r. With two (stages_a_rank) it also has stage r + p.
    # Between the two stages of a rank lies one stage of each other rank, and while a micro-batch is there, this rank
    # can work on another. Messages go to the ranks of this pipeline only.
    ### BEGIN SOLUTION
    stages = []
    for stage in range(r, n_stages, p):
        layers = Layers(model, blocks[stage], bfloat16).to_empty(device=device)
        stages.append(PipelineStage(layers, stage, n_stages, device, group=mesh["pp"].get_group()))
    return stages
    ### STUDENT
    # layers = Layers(model, range(len(model.blocks)), bfloat16).to_empty(device=device)
    # return [PipelineStage(layers, 0, 1, device, group=mesh["pp"].get_group())]
    ### END SOLUTION


def weights(stages: list[PipelineStage]) -> dict[str, nn.Parameter]:
    """All parameters that this rank trains, by their names in the whole model."""
    return {name: weight for stage in stages for name, weight in stage.submod.named_parameters()}


@torch.no_grad()
def first_weights(stages: list[PipelineStage], model: TransformerLM, args: argparse.Namespace) -> None:
    """Fill the stages with the weights that one process would start from. `model` has names and shapes."""
    # TODO 3: Start from the serial run's weights, and let at most one rank hold them all.
    # Stages that draw their own weights would together be a different model. The serial run sets args.seed and builds
    # TransformerLM(**model.config). Let rank 0 do that, and send the weights out tensor by tensor; weights(stages) is
    # what a rank keeps. dist.broadcast(tensor, 0) fills the tensor on all ranks with rank 0's.
    ### BEGIN SOLUTION
    own = weights(stages)
    torch.manual_seed(args.seed)
    whole_model = TransformerLM(**model.config) if dist.get_rank() == 0 else model
    for name, weight in whole_model.named_parameters():
        sent = torch.empty(weight.shape, device=stages[0].device)
        if dist.get_rank() == 0:
            sent.copy_(weight)
        dist.broadcast(sent, 0)
        if name in own:
            own[name].copy_(sent)
    ### STUDENT
    # torch.manual_seed(args.seed)  # the same on all ranks: the first weights must agree
    # whole_model = TransformerLM(**model.config).state_dict()
    # for name, weight in weights(stages).items():
    #     weight.copy_(whole_model[name])
    ### END SOLUTION


def loss_of(layers: Layers, h: Tensor, y: Tensor) -> Tensor:
    """What a micro-batch adds to the loss, a scalar. h: the last stage's output (b, T, D); y: its targets (b, T)."""
    # TODO 4: Let the micro-batches add up to the batch.
    # torch adds up the gradients of the micro-batches. With scale_grads=True, its default, it then divides them by
    # the number of micro-batches. TODO 6 divides, too: once, by the number of all targets in all pipelines. A target
    # that is IGNORE does not count, so the number that counts differs between micro-batches. head_loss returns the
    # mean over the targets that count, and 0 where none does. What must be returned here, and where is the division?
    ### BEGIN SOLUTION
    with torch.autocast(h.device.type, torch.bfloat16, enabled=layers.bfloat16):
        return head_loss(h, layers.head.weight, y, IGNORE) * (y != IGNORE).sum()
    ### STUDENT
    # with torch.autocast(h.device.type, torch.bfloat16, enabled=layers.bfloat16):
    #     return head_loss(h, layers.head.weight, y, IGNORE)
    ### END SOLUTION


def make_schedule(stages: list[PipelineStage], loss: Callable, args: argparse.Namespace) -> _PipelineSchedule:
    """The order in which stages work on micro-batches. `loss(h, y)` is what a micro-batch adds to the loss."""
    kinds = {
        "gpipe": ScheduleGPipe,  # all forward passes, then all backward passes
        "1f1b": Schedule1F1B,  # alternating, each backward pass as early as possible
        "interleaved": ScheduleInterleaved1F1B,  # the same, with more and smaller stages
        "zero-bubble": ScheduleInterleavedZeroBubble,  # weight gradients are computed where a rank would have waited
    }
    # TODO 4, again: must gradients be divided by the number of micro-batches?
    ### BEGIN SOLUTION
    scale_grads = False
    ### STUDENT
    # scale_grads = True
    ### END SOLUTION
    several = args.schedule in ("interleaved", "zero-bubble")  # these two take all stages of a rank
    return kinds[args.schedule](
        stages if several else stages[0], n_microbatches=args.microbatches, loss_fn=loss, scale_grads=scale_grads
    )


def train_batch(stages: list[PipelineStage], schedule: _PipelineSchedule, x: Tensor, y: Tensor) -> Tensor:
    """Forward and backward passes over this pipeline's part of a batch: leaves the gradients of the sum of its losses.

    Returns:
        That sum, without a graph, on the rank that has the last stage; 0 on the others.
    """
    # TODO 5: Send a batch through the pipeline, forward and back; in an evaluation, only forward.
    # One call of the schedule does it. Think of what each rank knows afterwards: the list of losses stays empty on
    # every rank but one. The returned value is for the log, so it must not keep the graph; nor should the call keep
    # the outputs.
    ### BEGIN SOLUTION
    losses: list[Tensor] = []
    inputs = (x,) if stages[0].is_first else ()
    schedule.step(*inputs, target=y, losses=losses, return_outputs=False)
    return torch.stack(losses).sum().detach() if losses else torch.zeros((), device=x.device)
    ### STUDENT
    # layers = stages[0].submod
    # h = layers(x)
    # with torch.autocast(x.device.type, torch.bfloat16, enabled=layers.bfloat16):
    #     loss = head_loss(h, layers.head.weight, y, IGNORE) * (y != IGNORE).sum()
    # loss.backward()
    # return loss.detach()
    ### END SOLUTION


def sum_gradients(stages: list[PipelineStage], n_targets: Tensor, mesh: DeviceMesh) -> None:
    """Turn the gradients into the gradients of the mean over all pipelines' targets. `n_targets`, 0-dim: this pipeline's."""
    # TODO 6: Sum gradients and targets along the right axis, and divide once.
    # Sum over the ranks that have the same layers and different samples; gradients of other layers do not belong in
    # this sum. Budget: one or two all-reduces per step in all; with a message for each weight or stage, you pay
    # the latency each time.
    ### BEGIN SOLUTION
    parameters = list(weights(stages).values())
    flat = torch.cat([p.grad.flatten() for p in parameters] + [n_targets.float().view(1)])
    dist.all_reduce(flat, group=mesh["data"].get_group())
    sums = flat[:-1] / flat[-1]
    for parameter, part in zip(parameters, sums.split([p.numel() for p in parameters]), strict=True):
        parameter.grad.copy_(part.view_as(parameter))
    ### STUDENT
    # n_targets = n_targets.clone()
    # dist.all_reduce(n_targets)
    # for parameter in weights(stages).values():
    #     dist.all_reduce(parameter.grad)
    #     parameter.grad /= n_targets
    ### END SOLUTION


def clip_gradients(stages: list[PipelineStage], mesh: DeviceMesh, args: argparse.Namespace) -> float:
    """Limit the gradient's norm to args.clip (0: no limit). Returns the norm before clipping."""
    parameters = weights(stages).values()
    # TODO 7: Clip by the norm of the whole gradient, and return that norm.
    # A stage that clips with its own part's norm scales its step differently: the stages no longer train one
    # model. Norms cannot be added, but their squares can. After TODO 6 some ranks have equal gradients, which must
    # not be counted twice. nn.utils.get_total_norm(gradients) and nn.utils.clip_grads_with_norm_(parameters, limit,
    # norm) are the two halves of clip_grad_norm_.
    ### BEGIN SOLUTION
    square = nn.utils.get_total_norm([p.grad for p in parameters]).square()
    dist.all_reduce(square, group=mesh["pp"].get_group())
    norm = square.sqrt()
    nn.utils.clip_grads_with_norm_(parameters, args.clip or math.inf, norm)
    return norm.item()
    ### STUDENT
    # return nn.utils.clip_grad_norm_(parameters, args.clip or math.inf).item()
    ### END SOLUTION


def fill(x: Tensor, y: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Pad a short batch to `rows` rows; the loss ignores padding. x and y: int64 (B, T)."""
    # The stages have agreed on the shape of a micro-batch, and receive into tensors of that shape. A short batch at the
    # end of the validation set would be cut into smaller pieces, and gloo does not compare lengths: the rest of such a
    # tensor keeps rows of the batch before.
    missing = rows - len(x)
    return torch.cat([x, x.new_zeros(missing, x.shape[1])]), torch.cat([y, y.new_full((missing, y.shape[1]), IGNORE)])


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
    for x, y in loader:
        x, y = fill(x, y, loader.batch_size)
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        # TODO 5, again: add this batch to total, the sum of the losses, and to count, its targets. global_mean sums
        # both over all ranks and divides. Each target must be counted once, on whichever rank.
        ### BEGIN SOLUTION
        losses: list[Tensor] = []
        inputs = (x,) if stages[0].is_first else ()
        schedule.eval(*inputs, target=y, losses=losses, return_outputs=False)
        if losses:
            total += torch.stack(losses).double().sum()
            count += (y != IGNORE).sum()
        ### STUDENT
        # layers = stages[0].submod
        # h = layers(x)
        # with torch.autocast(x.device.type, torch.bfloat16, enabled=layers.bfloat16):
        #     loss = head_loss(h, layers.head.weight, y, IGNORE)
        # total += loss.double() * (y != IGNORE).sum()
        # count += (y != IGNORE).sum()
        ### END SOLUTION
    return global_mean(total, count)


def train_epoch(
    stages: list[PipelineStage],
    schedule: _PipelineSchedule,
    loader: DataLoader,
    optimizer: torch.optim.Optimizer,
    mesh: DeviceMesh,
    device: torch.device,
    args: argparse.Namespace,
    metrics: Metrics,
    epoch: int,
    step: int,
) -> tuple[int, float]:
    """One pass over the training set, or up to args.max_steps. Returns the steps taken so far, and the mean loss."""
    for stage in stages:
        stage.submod.train()
    # Sums and counts: since the last line of the log, and over the epoch.
    total, count, epoch_total, epoch_count = torch.zeros(4, dtype=torch.float64, device=device)
    last_step, last_time = step, time.perf_counter()
    for x, y in islice(loader, args.max_steps - step if args.max_steps else None):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        n_targets = (y != IGNORE).sum()
        optimizer.zero_grad()
        loss = train_batch(stages, schedule, x, y)
        sum_gradients(stages, n_targets, mesh)
        norm = clip_gradients(stages, mesh, args)
        optimizer.step()
        step += 1

        total += loss.double()
        if stages[-1].is_last:  # this rank knows the loss
            count += n_targets
        if step % args.log_every == 0 or step == args.max_steps:
            epoch_total, epoch_count = epoch_total + total, epoch_count + count
            # global_mean waits for the device, so the clock may be read only now.
            mean, now = global_mean(total, count), time.perf_counter()
            speed = (step - last_step) * args.batch_size * args.seq_len / (now - last_time)
            metrics.log("step", step, epoch=epoch + 1, loss=mean, gradient_norm=norm, tokens_per_s=speed)
            total, count = torch.zeros(2, dtype=torch.float64, device=device)
            last_step, last_time = step, now
    return step, global_mean(epoch_total + total, epoch_count + count)


def save_checkpoint(
    stages: list[PipelineStage], mesh: DeviceMesh, config: dict[str, Any], path: Path, epoch: int
) -> None:
    """Weights and sizes, no objects: `utils.checkpoints.load_model` reads it anywhere."""
    own = {name: weight.detach().cpu() for name, weight in weights(stages).items()}
    # TODO 8: Put the whole model together on rank 0, and save it in one file.
    # Each rank of rank 0's pipeline has a part that its other ranks lack; the other pipelines hold copies. The
    # serial script can load one dictionary with the names of the whole model. No rank but rank 0 may hold it whole.
    ### BEGIN SOLUTION
    if mesh["data"].get_local_rank() == 0:
        parts = [None] * mesh["pp"].size() if dist.get_rank() == 0 else None
        dist.gather_object(own, parts, group=mesh["pp"].get_group(), group_dst=0)
        if parts:
            own = {name: weight for part in parts for name, weight in part.items()}
    save0({"model": own, "config": config, "epoch": epoch}, path)
    ### STUDENT
    # save0({"model": own, "config": config, "epoch": epoch}, path)
    ### END SOLUTION


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    prepare(args)  # the device that --device asks for
    check_schedules()
    rank, local_rank, world_size, device = setup()
    mesh = make_mesh(device, world_size, args)
    sets, vocab_size = make_sets(args)
    samplers = make_samplers(sets, mesh, args)
    train_loader, validation_loader, test_loader = make_loaders(sets, samplers, args, mesh["data"].size())

    model = build_model(vocab_size, args)
    stages = make_stages(model, mesh, device, args)
    first_weights(stages, model, args)
    start_from(args, joined([stage.submod for stage in stages]), model.config)  # if there is --init
    schedule = make_schedule(stages, partial(loss_of, stages[-1].submod), args)
    optimizer = make_optimizer(nn.ModuleList(stage.submod for stage in stages), args)

    out = Path(args.out)
    total_steps = min(args.epochs * len(train_loader), args.max_steps or math.inf)
    step, best, start = 0, math.inf, time.perf_counter()
    metrics = Metrics(out, rank, total_steps, args.tensorboard, args.record)
    say_what_runs(args, device)
    with metrics, device_memory(args.device_memory, device):
        for epoch in range(args.epochs):
            samplers[0].set_epoch(epoch)
            step, train_loss = train_epoch(
                stages, schedule, train_loader, optimizer, mesh, device, args, metrics, epoch, step
            )
            validation_loss = evaluate(stages, schedule, validation_loader, device, args)
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
                save_checkpoint(stages, mesh, model.config, out / "model-best.pt", epoch + 1)
            if step == total_steps:
                break

        test_loss = evaluate(stages, schedule, test_loader, device, args)
        print0(f"test loss {test_loss:.4f}, perplexity {perplexity(test_loss):.1f}")
        metrics.log("test", step, loss=test_loss, seconds=time.perf_counter() - start)
        save_checkpoint(stages, mesh, model.config, out / "model-final.pt", epoch + 1)
    print0(f"wrote model-best.pt, model-final.pt and metrics.jsonl to {out}")
    cleanup()


if __name__ == "__main__":
    main()
