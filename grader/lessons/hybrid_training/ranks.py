"""What the checks of hybrid_training run on ranks, in the process of the student's code."""

import math
import warnings
from argparse import Namespace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from grader.kit import (
    Peak,
    as_evidence,
    attempt,
    drawn_batch,
    drawn_model,
    elements,
    gradients,
    kind_of,
    mark,
    ranks_of,
    record_files,
    saved_file,
    saved_files,
)
from utils.data import IGNORE, Windows
from utils.model import TransformerLM

AXES = ("pp", "dp", "shard", "cp", "tp")


CPU = torch.device("cpu")


def made_args(code, shape=(), **flags):
    """Arguments as parse_args gives them, with the sizes of AXES, for any number of ranks: conditions on flags are not
    checked here.
    """
    argv = "--batch-size 24 --seq-len 12 --dim 24 --heads 12 --layers 12".split()
    world, code.check_hybrid = code.check_hybrid, lambda args, ranks: None
    args = code.parse_args(argv)
    code.check_hybrid = world
    for name, value in (dict(zip(AXES, shape)) | flags).items():
        setattr(args, name, value)
    return args


def made_mesh(pp=1, dp=1, shard=1, cp=1, tp=1):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (pp, dp, shard, cp, tp), mesh_dim_names=AXES)


def made_meshes(code, mesh, ep=1):
    """All three grids, by the check itself."""
    from torch.distributed.device_mesh import init_device_mesh

    pp, dp, shard, cp, tp = mesh.mesh.shape
    states = mesh["pp", "dp", "shard", "tp"]
    if cp > 1:
        states = init_device_mesh("cpu", (pp, dp, shard * cp, tp), mesh_dim_names=("pp", "dp", "shard", "tp"))
    sizes = (pp, dp, shard * cp // ep, ep, tp)
    experts = init_device_mesh("cpu", sizes, mesh_dim_names=("pp", "dp", "shard", "ep", "tp"))
    return code.Meshes(mesh, states, experts)


def data_axes(mesh):
    """The mesh that shard() is given, as parallelize() does."""
    return mesh["dp", "shard"] if mesh["dp"].size() > 1 else mesh["shard"]


# A stage by the check itself
def cut_by_check(model, stage, n_stages):
    from utils.after_pipeline_training import Layers
    from utils.pipeline_flags import by_number

    return Layers(model, by_number(len(model.blocks), n_stages)[stage])


def split_by_check(layers, mesh, sequence, but="nothing"):
    from torch.distributed.tensor.parallel import parallelize_module

    from utils.after_tp_training import plan_of, stream_layout

    layout = stream_layout(Namespace(sequence_parallel=sequence))
    here = [name for name, _ in layers.named_children()]
    plan = {
        name: style for name, style in plan_of(layout).items() if name.partition(".")[0] in here and but not in name
    }
    parallelize_module(layers, mesh, plan)


def shard_by_check(layers, mesh):
    from torch.distributed.fsdp import fully_shard

    for block in layers.blocks.values():
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    fully_shard(layers, mesh=mesh, reshard_after_forward=False)


def loss_by_check(layers, h, y):
    """Sum of the losses from gathered logits, written in a different way from the student's."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    weight = layers.head.weight
    if isinstance(weight, DTensor):
        cut = h.shape[1] < y.shape[1]
        h = DTensor.from_local(h, weight.device_mesh, [Shard(1) if cut else Replicate()], run_check=False)
        logits = (h.redistribute(placements=[Replicate()]) @ weight.T).redistribute(placements=[Replicate()]).to_local()
    else:
        logits = h @ weight.T
    return nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten(), ignore_index=IGNORE, reduction="sum")


def stages_by_check(mesh, sizes, sequence=False, seed=0, turns=1):
    """This rank's stages, one for each turn, split and sharded."""
    from torch.distributed.pipelining import PipelineStage

    pp, model, stages = mesh["pp"], drawn_model(seed, sizes), []
    n_stages = pp.size() * turns
    for number in range(pp.get_local_rank(), n_stages, pp.size()):
        layers = cut_by_check(model, number, n_stages)
        if mesh["tp"].size() > 1:
            split_by_check(layers, mesh["tp"], sequence)
        shard_by_check(layers, data_axes(mesh))
        stages.append(PipelineStage(layers, number, n_stages, CPU, group=pp.get_group()))
    return stages


def own_by_check(mesh, sizes, sequence=False, seed=0):
    from utils.checkpoints import joined

    return joined([stage.submod for stage in stages_by_check(mesh, sizes, sequence, seed)])


# ---------------------------------------------------------------------------------------------------
# TODO 1: the mesh


def mesh_on_rank(code, rank, world, shapes):
    found = []
    for shape in shapes:
        mesh = code.make_mesh(CPU, made_args(code, shape))
        if not hasattr(mesh, "mesh") or not hasattr(mesh, "mesh_dim_names"):
            return [{"type": kind_of(mesh)}]
        names = list(mesh.mesh_dim_names or ())
        seen = {"names": names, "axes": {}}
        if set(AXES) <= set(names):
            seen["axes"] = {axis: mesh[axis].mesh.tolist() for axis in AXES}
            # as parallelize takes it
            seen["data"] = mesh["dp", "shard"].mesh.tolist() if names.index("dp") < names.index("shard") else None
        found.append(seen)
    return found


# ---------------------------------------------------------------------------------------------------
# TODO 2: this rank's stages


def cut_stage(model, stage):
    """What one of the student's stages has, and what it should have."""
    index, n_stages, layers = stage.stage_index, stage.num_stages, len(model.blocks)
    whole = {name: p for name, p in model.named_parameters()}
    mine = dict(stage.submod.named_parameters())
    right = None
    if 0 <= index < n_stages <= layers:
        right = [name for name, _ in cut_by_check(model, index, n_stages).named_parameters()]
    return {
        "stage": index,
        "of": n_stages,
        "group": ranks_of(stage.group),
        "held": elements(mine.values()),
        "names": [*mine],
        "own": all(p is whole.get(name) for name, p in mine.items()),
        "right": right,
    }


def cut_on_rank(code, rank, world, cuts, layers):
    left = []
    for *shape, schedule in cuts:
        mesh = made_mesh(*shape)
        with torch.device("meta"):
            model = TransformerLM(50, 16, 2, layers, 8)
        stages = code.cut(model, mesh["pp"], CPU, made_args(code, shape, schedule=schedule))
        if not isinstance(stages, list) or not all(hasattr(stage, "submod") for stage in stages):
            left.append(kind_of(stages))
            continue
        left.append([cut_stage(model, stage) for stage in stages])
    return left


# ---------------------------------------------------------------------------------------------------
# TODO 3: a stage's layers, and the loss of the last one


def split_on_rank(code, rank, world, sizes, seed, sequence, n_stages):
    """All stages of a model on one tensor axis, one after the other, forward and back."""
    mesh = made_mesh(tp=world)["tp"]
    model = drawn_model(0, sizes)
    x, y = drawn_batch(seed, sizes)
    args = made_args(code, tp=world, sequence_parallel=sequence)
    stages = [cut_by_check(model, k, n_stages) for k in range(n_stages)]

    def step():
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for layers in stages if world > 1 else ():
                code.split(layers, mesh, args)
        lacking = [line.split("'")[1] for line in map(str, (w.message for w in warned)) if "plan key" in line]
        shapes, h = [], x
        mark()
        for layers in stages:
            h = layers(h)
            if hasattr(h, "placements"):
                return {"refused": "a stage returns a DTensor, and a pipeline sends plain tensors"}
            shapes.append(list(h.shape))
        mark()
        loss = code.loss_of(stages[-1], args, h, y)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            what = f"{kind_of(loss)} of no gradient" if isinstance(loss, torch.Tensor) else kind_of(loss)
            return {"returns": what}
        loss.backward()
        mark()
        grads = {}
        for layers in stages:
            grads |= gradients(layers)
        if sequence and world > 1:  # TODO 7 is judged separately
            for grad in grads.values():
                if not hasattr(grad, "placements"):
                    dist.all_reduce(grad, group=mesh.get_group())
        with torch.no_grad():
            nothing = float(code.loss_of(stages[-1], args, h.detach(), torch.full_like(y, IGNORE)))
        held = {name: elements([p]) for layers in stages for name, p in layers.named_parameters()}
        left = {"loss": float(loss), "grads": grads, "shapes": shapes, "nothing": nothing, "held": held}
        return left | {"lacking": lacking}

    return attempt(step)


# ---------------------------------------------------------------------------------------------------
# TODO 4: shards and copies


MICRO = 3


def shard_on_rank(code, rank, world, shape, sizes, seed, short):
    """Two steps of a pipeline of one stage, for in the first one torch also asks the stage for its shapes. Then, if
    `short`, with --dtype bfloat16 all is gathered, and then used in a step.
    """
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    mesh = made_mesh(*shape)
    layers = cut_by_check(drawn_model(0, sizes), 0, 1)
    if shape[-1] > 1:
        split_by_check(layers, mesh["tp"], False)
    code.shard(layers, data_axes(mesh), made_args(code, shape))

    def step():
        held = elements(layers.parameters())
        stage = PipelineStage(layers, 0, 1, CPU, group=mesh["pp"].get_group())
        schedule = ScheduleGPipe(stage, MICRO, loss_fn=partial(loss_by_check, layers), scale_grads=False)
        x, y = drawn_batch(seed, sizes, 2 * MICRO)
        for _ in range(2):
            mark()
            layers.zero_grad()
            schedule.step(x, target=y)
        found = {"held": held, "grads": gradients(layers)}
        mark()
        if short:
            others = cut_by_check(drawn_model(0, sizes), 0, 1)
            code.shard(others, data_axes(mesh), made_args(code, shape, dtype="bfloat16"))
            for unit in others.modules():
                if hasattr(unit, "unshard"):
                    unit.unshard()
            found["gathered"] = sorted({str(p.dtype).removeprefix("torch.") for p in others.parameters()})
            mark()
            found["short"] = attempt(lambda: loss_by_check(others, others(x), y).backward()) or {}
        return found

    return attempt(step)


# ---------------------------------------------------------------------------------------------------
# TODO 5: samples


def samplers_on_rank(code, rank, world, shape, sizes, seed):
    sets = tuple(Windows(torch.arange(size), 1, 0, drop_last=True) for size in sizes)
    mesh, args = made_mesh(*shape), made_args(code, shape, seed=seed)
    share = code.my_share(mesh)
    if not isinstance(share, (tuple, list)) or len(share) != 2 or not all(isinstance(n, int) for n in share):
        return {"returns": f"{share!r}"[:100]}
    if not 0 <= share[0] < share[1]:
        return {"returns": f"{tuple(share)}, and there is no part {share[0]} of {share[1]}"}
    samplers = code.make_samplers(sets, mesh, args)
    epochs = []
    for epoch in (0, 1):
        samplers[0].set_epoch(epoch)
        epochs.append(list(map(int, samplers[0])))
    return {
        "train": epochs,
        "validation": list(map(int, samplers[1])),
        "test": list(map(int, samplers[2])),
        "batch": args.batch_size,
    }


# ---------------------------------------------------------------------------------------------------
# TODOs 6 to 8: gradients


# The gradients that a check sets are multiples of the weights, which every rank has its part of.
def multiple(p, factor):
    """Each rank multiplies its part: for a product of DTensors torch would plan, for 30 ms, how to lay it out."""
    found = torch.empty_like(p)
    found.to_local().copy_(p.detach().to_local() * factor)
    return found


def set_gradients(own, factor=1.0):
    for p in own.parameters():
        p.grad = multiple(p, factor)


def divide_on_rank(code, rank, world, shape, sizes, targets):
    own = own_by_check(mesh := made_mesh(*shape), sizes)
    set_gradients(own)
    n_targets = torch.tensor(targets)
    mark()
    code.divide_gradients(own, n_targets, mesh)
    mark()
    return {"grads": gradients(own), "targets": int(n_targets)}


def norms_on_rank(code, rank, world, shape, sizes, sequence):
    mesh = made_mesh(*shape)
    own = own_by_check(mesh, sizes, sequence)
    set_gradients(own, 1.0 + mesh.get_local_rank("tp"))
    mark()
    code.add_up_norms(own, mesh, made_args(code, shape, sequence_parallel=sequence))
    mark()
    return {"grads": gradients(own), "place": mesh.get_local_rank("tp")}


def clip_on_rank(code, rank, world, shape, sizes, sequence, clips):
    mesh = made_mesh(*shape)
    own = own_by_check(mesh, sizes, sequence)
    seen = []
    for clip in clips:
        set_gradients(own)
        mark()
        norm = code.clip_gradients(own, made_meshes(code, mesh), made_args(code, shape, clip=clip))
        mark()
        number = norm if isinstance(norm, (int, float)) else kind_of(norm)
        seen.append({"norm": number, "grads": gradients(own)})
    return seen


# ---------------------------------------------------------------------------------------------------
# TODOs 11 to 13: context and experts


def grids_of(code, mesh, ep):
    """For each of the student's two grids and each axis, the ranks that this rank finds on it."""
    grids, found = code.make_meshes(mesh, made_args(code, ep=ep)), {}
    for name in ("states", "experts"):
        grid = getattr(grids, name, None)
        axes = ("pp", "dp", "shard", *(["ep"] if name == "experts" else []), "tp")
        if not hasattr(grid, "mesh_dim_names") or sorted(grid.mesh_dim_names or ()) != sorted(axes):
            what = ", ".join(grid.mesh_dim_names or ["no names"]) if hasattr(grid, "mesh_dim_names") else kind_of(grid)
            return {"strange": [name, what]}
        found[name] = {axis: grid[axis].mesh.tolist() for axis in axes}
        found[name]["dp and shard"] = attempt(lambda grid=grid: grid["dp", "shard"].mesh.tolist())
    return found


def meshes_on_rank(code, rank, world, cases):
    return [grids_of(code, made_mesh(*shape), ep) for shape, ep in cases]


def drawn_mixture(sizes):
    """In float64, with drawn weights, as drawn_model is."""
    from utils.after_expert_training import make_mixtures

    torch.manual_seed(0)
    plain = {"vocab_size": sizes["vocab"], "dim": sizes["dim"], "n_heads": sizes["heads"], "n_layers": sizes["layers"]}
    model = make_mixtures(sizes["experts"], 1, **plain, max_len=sizes["length"]).double()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.2 * torch.randn_like(p)
    return model


def own_mixture(code, shape, ep, sizes):
    """What this rank has of such a model, as one module, and the three grids."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    from utils.after_expert_training import keep_own
    from utils.checkpoints import joined

    mesh = made_mesh(*shape)
    meshes = made_meshes(code, mesh, ep)
    layers = cut_by_check(drawn_mixture(sizes), mesh["pp"].get_local_rank(), mesh["pp"].size())
    if shape[-1] > 1:
        split_by_check(layers, meshes.states["tp"], False, but=".mlp")
    for block in layers.blocks.values():
        keep_own(block.mlp, meshes.experts["ep"])
        for expert in block.mlp.experts.children() if shape[-1] > 1 else ():
            parallelize_module(expert, meshes.experts["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block.mlp.experts, mesh=data_axes(meshes.experts))
        fully_shard(block.mlp.router, mesh=data_axes(meshes.states))
    shard_by_check(layers, data_axes(meshes.states))
    return joined([layers]), meshes


def experts_on_rank(code, rank, world, shape, ep, sizes, load):
    own, meshes = own_mixture(code, shape, ep, sizes)
    set_gradients(own)
    code.divide_experts_gradients(own, meshes.experts)
    grads = gradients(own)
    mark()
    loads = code.everyones_loads(torch.tensor(load), meshes.work)
    mark()
    return {"grads": grads, "load": as_evidence(loads)}


def expert_norms_on_rank(code, rank, world, shape, ep, sizes):
    own, meshes = own_mixture(code, shape, ep, sizes)
    set_gradients(own)
    on_mesh = {}
    for p in own.parameters():
        on_mesh.setdefault(p.device_mesh, []).append(p)
    groups = list(on_mesh.values())
    norms = [nn.utils.get_total_norm([p.grad for p in group]).full_tensor() for group in groups]
    mark()
    found = code.with_all_experts(list(norms), groups, own, meshes.experts)
    mark()
    if not isinstance(found, (list, tuple)) or not all(isinstance(norm, torch.Tensor) for norm in found):
        return {"returns": kind_of(found)}
    return {"norm": float(torch.stack(list(found)).norm())}


# ---------------------------------------------------------------------------------------------------
# TODO 9: evaluation


LENGTHS = (9, 1)  # of two shares, one has a batch more; then one has nothing


class Text(torch.utils.data.Dataset):
    """Samples; the last ones have fewer targets."""

    def __init__(self, length, sizes):
        draw = torch.Generator().manual_seed(length)
        self.x, self.y = torch.randint(sizes["vocab"], (2, length, sizes["length"]), generator=draw)
        for k in range(length // 2, length):
            self.y[k, : 1 + k % (sizes["length"] - 1)] = IGNORE

    def __len__(self):
        return len(self.x)

    def __getitem__(self, k):
        return self.x[k], self.y[k]


def evaluate_on_rank(code, rank, world, shape, sizes, interleaved):
    from torch.distributed.pipelining import Schedule1F1B, ScheduleInterleaved1F1B

    from utils.data import ShardSampler

    mesh = made_mesh(*shape)
    stages = stages_by_check(mesh, sizes, turns=2 if interleaved else 1)
    loss = partial(loss_by_check, stages[-1].submod)
    if interleaved:
        schedule = ScheduleInterleaved1F1B(stages, 2, loss_fn=loss, scale_grads=False)
    else:
        schedule = Schedule1F1B(stages[0], 2, loss_fn=loss, scale_grads=False)
    _, dp, shard, _, _ = shape
    place = mesh.get_local_rank("dp") * shard + mesh.get_local_rank("shard")
    means = []
    for length in LENGTHS:
        text = Text(length, sizes)
        loader = torch.utils.data.DataLoader(text, batch_size=4, sampler=ShardSampler(text, place, dp * shard))
        args = made_args(code, shape, seq_len=sizes["length"])
        args.schedule = "interleaved" if interleaved else "1f1b"
        mean = code.evaluate(stages, schedule, loader, CPU, args)
        means.append(float(mean) if isinstance(mean, (int, float, torch.Tensor)) else kind_of(mean))
    return {"means": means, "grads": sum(len(gradients(stage.submod)) for stage in stages)}


# ---------------------------------------------------------------------------------------------------
# TODO 10: checkpoints; the law of the course


def save_on_rank(code, rank, world, shape, sizes):
    files = record_files()
    mesh = made_mesh(*shape)
    own, meshes = own_by_check(mesh, sizes), made_meshes(code, mesh)
    config = {"vocab_size": sizes["vocab"]}
    with Peak() as peak:
        code.save_checkpoint(own, meshes, config, saved_file(), 3)
    return {"files": saved_files(files), "peak": peak.most}


def pass_on(code, rank, world, sizes, shapes):
    """A model and its optimizer from shape to shape, by sharded checkpoints; what each one has after it was loaded."""
    left, position = [], {"step": 7, "loss": 2.5}
    for k, shape in enumerate(shapes):
        mesh = made_mesh(*shape)
        own = own_by_check(mesh, sizes, seed=k)  # different weights each time: only loaded ones can be right
        # Not Adam: torch plans each operation on each shape, and Adam has a dozen.
        optimizer = torch.optim.SGD(own.parameters(), lr=0.1 / (k + 1), momentum=0.9)
        if k:
            found = attempt(
                lambda own=own, optimizer=optimizer, k=k: code.load_sharded(
                    own, optimizer, {"step": 0, "loss": 0.0}, Path(f"step-{k - 1}")
                )
            )
            if isinstance(found, dict) and "refused" in found:
                return left + [found]
            state = {name: dict(optimizer.state.get(p, {})) for name, p in own.named_parameters()}
            rate = optimizer.param_groups[0].get("lr", math.nan)  # lost, where the lists of parameters differ
            weights = {name: p.detach() for name, p in own.named_parameters()}
            left.append({"weights": weights, "state": state, "position": found, "lr": float(rate)})
        else:
            for p in own.parameters():
                optimizer.state[p]["momentum_buffer"] = multiple(p, 0.5)
        if k + 1 < len(shapes):
            code.save_sharded(own, optimizer, position, Path(f"step-{k}"))
    return left
