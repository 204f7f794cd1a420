"""What the checks of pipeline_training run on ranks, in the process of the student's code."""

import math
from argparse import Namespace
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from grader.kit import (
    TINY,
    Peak,
    a_number,
    elements,
    kind_of,
    mark,
    ranks_of,
    record_files,
    saved_file,
    saved_files,
    tiny_model,
)
from utils.data import IGNORE, Windows
from utils.loss import head_loss
from utils.model import TransformerLM

# A rank's imports of torch.distributed.pipelining and .device_mesh are inside functions: on the ranks they are loaded
# already, and the judge, who would wait for them, needs none.
SIZES = TINY | {"n_layers": 3}


CPU = torch.device("cpu")


def made_args(code, *flags, pp=1, data=1):
    """Flags of a run on this grid: 12 sequences, 8 blocks, micro-batches of one sequence."""
    sizes = "--batch-size 12 --seq-len 8 --dim 16 --heads 2 --layers 8".split()
    return code.parse_args([*sizes, "--pp", str(pp), "--microbatches", str(12 // data), *flags])


def made_mesh(pp, data):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (pp, data), mesh_dim_names=("pp", "data"))


def made_model(seed, **more):
    return tiny_model(seed, **SIZES | more)


class Cut(nn.Module):
    """A stage with these blocks, cut by the check itself."""

    def __init__(self, model, blocks, bfloat16=False):
        super().__init__()
        self.bfloat16, self.dropout = bfloat16, model.dropout
        first, last = blocks.start == 0, blocks.stop == len(model.blocks)
        self.token_embedding = model.token_embedding if first else None
        self.position_embedding = model.position_embedding if first else None
        self.blocks = nn.ModuleDict({str(i): model.blocks[i] for i in blocks})
        self.norm, self.head = (model.norm, model.head) if last else (None, None)

    def forward(self, x):
        if self.token_embedding is not None:
            x = self.token_embedding(x) + self.position_embedding(torch.arange(x.shape[1]))
        for block in self.blocks.values():
            x = block(x)
        return x if self.norm is None else self.norm(x)


def blocks_of(blocks, n_stages):
    """The blocks of each stage; the first stage takes the remainder."""
    later = blocks // n_stages
    borders = [0, *(blocks - later * k for k in reversed(range(n_stages)))]
    return [range(*pair) for pair in zip(borders, borders[1:])]


def cut_stage(model, stage, n_stages, bfloat16=False):
    return Cut(model, blocks_of(len(model.blocks), n_stages)[stage], bfloat16)


def made_stage(module, stage, n_stages, group):
    from torch.distributed.pipelining import PipelineStage

    return PipelineStage(module, stage, n_stages, CPU, group=group)


def cut_stages(mesh, turns=1, **more):
    """This rank's stages of a model with at least one block for each."""
    pp, model = mesh["pp"], made_model(0, **more)
    n_stages = turns * pp.size()
    mine = range(pp.get_local_rank(), n_stages, pp.size())
    return [made_stage(cut_stage(model, k, n_stages), k, n_stages, pp.get_group()) for k in mine]


def loss_sum(module, h, y):
    return head_loss(h, module.head.weight, y, IGNORE) * (y != IGNORE).sum()


def one_f_one_b(stages, m):
    from torch.distributed.pipelining.schedules import Schedule1F1B, ScheduleInterleaved1F1B

    how = {"loss_fn": partial(loss_sum, stages[-1].submod), "scale_grads": False}
    return Schedule1F1B(stages[0], m, **how) if len(stages) == 1 else ScheduleInterleaved1F1B(stages, m, **how)


def batch(seed, rows, vocab=50):
    """x and y; from row to row, more targets of y do not count."""
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.randint(vocab, (rows, 8), generator=draw), torch.randint(vocab, (rows, 8), generator=draw)
    for row in range(rows):
        y[row, : row * 7 // max(rows - 1, 1)] = IGNORE
    return x, y


def parameters_of(stages):
    return {name: p for stage in stages for name, p in stage.submod.named_parameters()}


# ---------------------------------------------------------------------------------------------------
# TODO 1: cut by cost


def cuts_on_rank(code, rank, world, questions):
    return [plain_ranges(code.cut(*question)) for question in questions]


def plain_ranges(value):
    """Lists of numbers as evidence can hold them; anything else described in words."""
    if isinstance(value, (list, tuple)) and all(isinstance(part, (range, list, tuple)) for part in value):
        kinds = [[int(i) for i in part] for part in value]
        return {"blocks": kinds, "ranges": all(isinstance(part, range) for part in value)}
    return kind_of(value)


# ---------------------------------------------------------------------------------------------------
# TODO 2: this rank's stages


def stages_on_rank(code, rank, world, grids):
    # TODO 1 is judged separately.
    code.Layers, code.cut = (Cut, lambda blocks, n_stages, head: blocks_of(blocks, n_stages))
    left = []
    for pp, data, kind, dtype in grids:
        args = made_args(code, "--schedule", kind, "--dtype", dtype, pp=pp, data=data)
        with torch.device("meta"):
            model = TransformerLM(**SIZES | {"n_layers": 9})
        mesh = made_mesh(pp, data)
        mark(name="make")
        with Peak() as peak:
            stages = code.make_stages(model, mesh, CPU, args)
        if not isinstance(stages, (list, tuple)) or not all(hasattr(stage, "submod") for stage in stages):
            left.append(kind_of(stages))
            continue
        left.append([left_of(stage, model) | {"peak": peak.most // 4} for stage in stages])
        mark(name="back")
        for stage in stages:
            for parameter in stage.submod.parameters():
                parameter.sum().backward()
    return left


def left_of(stage, model):
    module = stage.submod
    right = (
        cut_stage(model, stage.stage_index, stage.num_stages)
        if stage.num_stages <= len(model.blocks)
        else Cut(model, range(9))
    )
    return {
        "stage": stage.stage_index,
        "of": stage.num_stages,
        "group": ranks_of(stage.group),
        "held": elements(module.parameters()),
        "meta": sum(p.is_meta for p in module.parameters()),
        "bfloat16": bool(getattr(module, "bfloat16", False)),
        "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in module.parameters()}),
        "names": [name for name, _ in module.named_parameters()],
        "right": {name: p.numel() for name, p in right.named_parameters()},
        "whole": sum(p.numel() for p in model.parameters()),
    }


# ---------------------------------------------------------------------------------------------------
# TODO 3: first weights


# So many blocks that what a rank has of them, and a few weights more, is far from the whole model.
LONG = {"n_layers": 6}


def first_on_rank(code, rank, world, seeds, pp, turns):
    """Ranks whose generators differ, so that only weights that were sent can be equal; with one seed, then with
    another.
    """
    built = []  # this rank's models with weights
    init = TransformerLM.init_weights

    def count(model):
        init(model)
        if model.head.weight.device.type != "meta":
            built.append(model)

    with torch.device("meta"):
        model = TransformerLM(**SIZES | LONG)
    mesh, left = made_mesh(pp, world // pp), []
    made = [cut_stages(mesh, turns, **LONG) for _ in seeds]
    TransformerLM.init_weights = count
    for seed, stages in zip(seeds, made, strict=True):
        for p in parameters_of(stages).values():
            nn.init.constant_(p, math.nan)
        args = made_args(code, "--seed", str(seed), pp=pp, data=world // pp)
        torch.manual_seed(1000 + rank)
        built.clear()
        mark(name="first")
        with Peak(parameters_of(stages).values()) as peak:
            code.first_weights(stages, model, args)
        left.append({"built": len(built), "weights": parameters_of(stages), "peak": peak.most})
    return left


# ---------------------------------------------------------------------------------------------------
# TODO 4: micro-batches that add up


def loss_on_rank(code, rank, world, seed):
    left = []
    for bfloat16 in (False, True):
        layers = cut_stage(made_model(seed), 1, 2, bfloat16)
        for h, y in micro_batches(seed):
            h.requires_grad_()
            layers.zero_grad()
            loss = code.loss_of(layers, h, y)
            tensor = isinstance(loss, torch.Tensor) and loss.numel() == 1
            if tensor and loss.requires_grad:
                loss.backward()
            grads = [torch.zeros(0) if t.grad is None else t.grad for t in (h, layers.head.weight)]
            left.append({"loss": loss.item() if tensor else kind_of(loss), "grads": grads})
    return left


def micro_batches(seed):
    """Streams and targets: all targets count, some, none; and more than bfloat16 can count. The last one is word 0."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for rows, ignored in ((2, 0), (3, 13), (2, 16), (35, 13)):
        h, y = torch.randn(rows, 8, 16, generator=draw), torch.randint(50, (rows, 8), generator=draw)
        y.view(-1)[-1] = 0
        y.view(-1)[:ignored] = IGNORE
        found.append((h, y))
    return found


class Note(torch.autograd.Function):
    """Passes its input on, and records when its gradient passes."""

    @staticmethod
    def forward(ctx, tensor, log, event):
        ctx.log, ctx.event = log, event
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, grad):
        ctx.log.append(ctx.event)
        return grad, None, None


class Toy(nn.Module):
    """A stage that records its work: [kind, stage, micro-batch], kind F, B (its input's gradient) or W (its
    weight's)."""

    def __init__(self, stage, log):
        super().__init__()
        draw = torch.Generator().manual_seed(stage)
        self.weight = nn.Parameter(torch.randn(4, 4, generator=draw) / 2)
        self.stage, self.log, self.rows, self.begun = stage, log, [], 0

    def forward(self, x):
        k, self.begun = self.begun, self.begun + 1
        self.log.append(["F", self.stage, k])
        self.rows.append(len(x))
        if x.requires_grad:
            x = Note.apply(x, self.log, ["B", self.stage, k])
        return torch.tanh(x @ Note.apply(self.weight, self.log, ["W", self.stage, k]))


def toy_loss(h, y):
    return ((h - y) ** 2).sum()


def toy_batch(seed, rows):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=draw), torch.randn(rows, 4, generator=draw)


def schedules_on_rank(code, rank, world, seed, kinds):
    """Two steps with each schedule: in the first, the stages agree on shapes, and run once more for that."""
    return [schedule_on_rank(code, rank, world, seed, kind, m) for kind, m in kinds]


def schedule_on_rank(code, rank, world, seed, kind, m):
    log: list = []
    chunks = 2 if kind == "interleaved" else 1
    toys = [Toy(rank + k * world, log) for k in range(chunks)]
    stages = [made_stage(toy, toy.stage, chunks * world, dist.group.WORLD) for toy in toys]
    schedule = code.make_schedule(stages, toy_loss, Namespace(schedule=kind, microbatches=m, pp=world))
    x, y = toy_batch(seed, 2 * m)
    for _ in range(2):
        log.clear()
        losses: list = []
        for toy in toys:
            toy.zero_grad()
            toy.rows, toy.begun = [], 0
        schedule.step(*((x,) if stages[0].is_first else ()), target=y, losses=losses)
    grads = [torch.zeros(0) if toy.weight.grad is None else toy.weight.grad for toy in toys]
    rows, losses = [toy.rows for toy in toys], [a_number(loss) for loss in losses]
    return {"log": log, "rows": rows, "grads": grads, "losses": losses}


# ---------------------------------------------------------------------------------------------------
# TODO 5: a batch through the pipeline


MICRO = 6


def batch_seed(seed, copy, k):
    """Of a pipeline's batch `k`: each pipeline has its own."""
    return seed + 2 * copy + k


def train_on_rank(code, rank, world, seed, grids):
    """Two batches on each grid, each with its own gradients."""
    from torch.multiprocessing.reductions import StorageWeakRef

    left, outputs = [], []
    for pp, data, many in grids:
        mesh = made_mesh(pp, data)
        copy = mesh["data"].get_local_rank()
        stages = cut_stages(mesh, many, **LONG)
        stages[-1].submod.register_forward_hook(
            lambda layers, x, h: outputs.append(StorageWeakRef(h.untyped_storage())) if not h.is_meta else None
        )
        schedule = one_f_one_b(stages, MICRO)
        left.append([])
        for k in range(2):
            mark(name=str(k))
            for stage in stages:
                stage.submod.zero_grad()
            outputs.clear()
            loss = code.train_batch(stages, schedule, *batch(batch_seed(seed, copy, k), 2 * MICRO))
            mark(name="")
            graph = isinstance(loss, torch.Tensor) and loss.requires_grad
            grads = {name: p.grad for name, p in parameters_of(stages).items() if p.grad is not None}
            kept = sum(not output.expired() for output in outputs)
            number = a_number(loss) if isinstance(loss, torch.Tensor) else None
            left[-1].append({"loss": number, "kind": kind_of(loss), "graph": graph, "grads": grads, "kept": kept})
    return left


LENGTHS = (11, 1)  # on 2 pipelines in batches of 4: 2 and 2 batches, the last ones short; and 1 and none


def text(windows):
    return Windows(torch.arange(windows * 8 - 3) * 7 % 50, 8, 0, drop_last=False)


def evaluate_on_rank(code, rank, world, grid, turns):
    from utils.data import ShardSampler

    mesh = made_mesh(*grid)
    args, left = made_args(code, pp=grid[0], data=grid[1]), []
    for many in turns:
        stages, means = cut_stages(mesh, many, **LONG), []
        schedule = one_f_one_b(stages, 4)
        for length in LENGTHS:
            mine = ShardSampler(text(length), mesh["data"].get_local_rank(), grid[1])
            loader = torch.utils.data.DataLoader(text(length), batch_size=4, sampler=mine)
            means.append(float(code.evaluate(stages, schedule, loader, CPU, args)))
        left.append({"means": means, "grads": any(p.grad is not None for p in parameters_of(stages).values())})
    return left


# ---------------------------------------------------------------------------------------------------
# TODO 6: gradients over the data axis


def drawn_gradients(module, seed):
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(p.shape, generator=draw) for name, p in sorted(module.named_parameters())}


def drawn_for(stages, seed):
    """Gradients for all stages of a rank, by name."""
    return {name: grad for k, stage in enumerate(stages) for name, grad in drawn_gradients(stage, seed + k).items()}


def give_gradients(stages, grads):
    for name, parameter in parameters_of(stages).items():
        parameter.grad = grads[name].clone()


def sum_on_rank(code, rank, world, seed, grids, targets):
    left = []
    for pp, data, turns in grids:
        mesh = made_mesh(pp, data)
        stages = cut_stages(mesh, turns, **LONG)
        give_gradients(stages, drawn_for([stage.submod for stage in stages], seed))
        n_targets = torch.tensor(targets[str(data)][mesh["data"].get_local_rank()])
        before = n_targets.item()
        mark(name="sum")
        code.sum_gradients(stages, n_targets, mesh)
        mark(name="")
        grads = {name: p.grad for name, p in parameters_of(stages).items() if p.grad is not None}
        left.append({"grads": grads, "kept": n_targets.item() == before})
    return left


# ---------------------------------------------------------------------------------------------------
# TODO 7: clipping


CLIPS = (0.05, 0.0, 1e4)


def clip_on_rank(code, rank, world, seed, grid):
    pp, data, turns = grid
    mesh = made_mesh(pp, data)
    stages = cut_stages(mesh, turns, **LONG)
    left = []
    for clip in CLIPS:
        give_gradients(stages, drawn_for([stage.submod for stage in stages], seed + 10 * mesh["pp"].get_local_rank()))
        norm = code.clip_gradients(stages, mesh, made_args(code, "--clip", str(clip), pp=pp, data=data))
        grads = {name: p.grad for name, p in parameters_of(stages).items() if p.grad is not None}
        left.append({"norm": norm if isinstance(norm, (int, float)) else kind_of(norm), "grads": grads})
    return left


# ---------------------------------------------------------------------------------------------------
# TODO 8: one file


def save_on_rank(code, rank, world, grid):
    """Twice at one path, and between the two the weights are changed."""
    files = record_files()
    pp, data, turns = grid
    mesh = made_mesh(pp, data)
    stages = cut_stages(mesh, turns, **LONG)
    with Peak() as peak:
        for epoch in (2, 3):
            code.save_checkpoint(stages, mesh, SIZES | LONG, saved_file(), epoch)
            with torch.no_grad():
                for p in parameters_of(stages).values():
                    p.add_(1.0 if epoch == 2 else 0.0)
    return {"files": saved_files(files), "peak": peak.most}


# ---------------------------------------------------------------------------------------------------
# TODO 9: the grid, and the samples; the law of the course


SET_SIZES = (38, 11, 9)


def mesh_on_rank(code, rank, world, pipelines):
    """The ranks along each axis, of each mesh."""
    meshes = []
    for pp in pipelines:
        mesh = code.make_mesh(CPU, world, made_args(code, pp=pp, data=world // pp))
        names = getattr(mesh, "mesh_dim_names", None)
        axes = {name: mesh[name].mesh.flatten().tolist() for name in names or ()}
        meshes.append({"axes": axes, "kind": kind_of(mesh)})
    return meshes


def samplers_on_rank(code, rank, world, seed, grid):
    pp, data = grid
    sets = [torch.utils.data.TensorDataset(torch.arange(size)) for size in SET_SIZES]
    code.check_pipeline = lambda args, world: None  # whether the flags go together is not asked here
    args = made_args(code, "--seed", str(seed), pp=pp, data=data)
    samplers = code.make_samplers(sets, made_mesh(*grid), args)
    if not isinstance(samplers, (tuple, list)) or len(samplers) != 3:
        return kind_of(samplers)
    epochs = []
    for epoch in range(3):
        if hasattr(samplers[0], "set_epoch"):
            samplers[0].set_epoch(epoch)
        epochs.append([int(i) for i in samplers[0]])
    return [epochs, *([int(i) for i in sampler] for sampler in samplers[1:])]
