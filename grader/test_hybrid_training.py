"""Checks and hints of hybrid_training.

| TODO | achievement | evidence | needs |
| --- | --- | --- | --- |
| 1 | the order of the axes | make_mesh() on 8 and 6 ranks: which ranks each rank finds on each axis | |
| 2 | this rank's stages | cut() on 4 ranks: numbers, groups, layers, no memory; one and two stages a rank | |
| 3 | a stage's layers shared | split() and loss_of() on 1, 2 and 3 ranks, stage by stage: loss, each gradient, bytes | |
| 4 | shards and copies | shard() on 2 × 2 and 3 × 1 ranks: weights held, each gradient, gathered once a step; in bfloat16 | |
| 5 | samples along two axes | make_samplers() on 8, 6 and 4 ranks, over two epochs | |
| 6 | divided once | divide_gradients() on three shapes of 4 ranks, shares with unequal targets | |
| 7 | the norms' gradients | add_up_norms() with and without the flag, a width that does not divide: which gradients change, bytes sent | |
| 8 | the norm over all axes | clip_gradients() on three shapes of 4 ranks | |
| 9 | evaluation | evaluate() on 2 × 2 ranks, where shares differ and one is empty; one and two stages a rank | |
| 10 | checkpoints | saved on four ranks and loaded in two other shapes; one file; main() on 8 and 4 ranks against the serial run | 1 – 9 |

Stages are cut, split and sharded by the check itself, unless the check is about that: so a TODO can be judged before or
without the others. They are in float64 where no data type is part of the question: there rounding hides nothing.
"""  # noqa: E501

import math
import warnings
from argparse import Namespace
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from grader.kit import (
    Since,
    EXACT,
    Fault,
    Peak,
    Private,
    Wrong,
    attempt,
    cases,
    check_checkpoint,
    check_dealt,
    check_last_weights,
    check_norm,
    check_part,
    check_parts,
    check_parts_travel,
    check_refused,
    check_sent,
    corpus,
    count_of,
    drawn_batch,
    drawn_model,
    drawn_sizes,
    each_once,
    elements,
    expect,
    gradients,
    hinted,
    kind_of,
    mains_on_rank,
    mark,
    meshes,
    must_have_gradients,
    must_move,
    one_writer,
    ranks_of,
    record_files,
    reported,
    ring_bytes,
    same_report,
    saved_file,
    saved_files,
    sent_by,
    shares,
    todo,
)
from utils.data import IGNORE, Windows
from utils.model import TransformerLM
from utils.pipeline_flags import SCHEDULES_SINCE
from utils.releases import AVERAGES_SINCE

BUILDS = "four axes at once: pipeline, copies, shards and tensor parallel on one mesh; one checkpoint for all shapes"

# A rank's imports of torch.distributed.* and of utils.after_* are inside functions: on the ranks they are loaded
# already, and the judge, who would wait for them, needs none.

WORDS = (53, 59, 61)  # how many there are
AXES = ("pp", "dp", "shard", "tp")
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


def made_mesh(pp=1, dp=1, shard=1, tp=1):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (pp, dp, shard, tp), mesh_dim_names=AXES)


def data_axes(mesh):
    """The mesh that shard() is given, as parallelize() does."""
    return mesh["dp", "shard"] if mesh["dp"].size() > 1 else mesh["shard"]


def shaped(shape):
    """A shape in words: "pp 2 × tp 2"."""
    return " × ".join(f"{axis} {size}" for axis, size in zip(AXES, shape, strict=True) if size > 1) or "one rank"


# A stage by the check itself


def cut_by_check(model, stage, n_stages):
    from utils.after_pipeline_training import Layers
    from utils.pipeline_flags import by_number

    return Layers(model, by_number(len(model.blocks), n_stages)[stage])


def split_by_check(layers, mesh, sequence):
    from torch.distributed.tensor.parallel import parallelize_module

    from utils.after_tp_training import plan_of, stream_layout

    layout = stream_layout(Namespace(sequence_parallel=sequence))
    here = [name for name, _ in layers.named_children()]
    plan = {name: style for name, style in plan_of(layout).items() if name.partition(".")[0] in here}
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


def many(number, what):
    return f"{number} {what}{'s' if number > 1 else ''}"


@contextmanager
def where(told):
    """Whatever is told inside says for which shape."""
    try:
        yield
    except Wrong as problem:
        problem.message = f"{told}, {problem.message}"
        raise


# ---------------------------------------------------------------------------------------------------
# TODO 1: the mesh

SHAPES_1 = {8: ((1, 2, 2, 2), (2, 2, 1, 2), (2, 1, 2, 2), (1, 4, 2, 1)), 6: ((3, 1, 1, 2), (1, 2, 3, 1))}


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


@todo(
    1,
    minutes=20,
    why=(
        "Tensor parallelism sends in every layer, and waits for it: it pays on the links inside a node. A "
        "pipeline sends one micro-batch's activations from stage to stage, while others are computed: it can "
        "cross nodes. The gradients of shards and copies are in between."
    ),
    hints=(
        "For each axis: how many messages are sent between two optimizer steps, how large are they, and does a rank "
        "wait for each?",
        "Tensor: several a layer, and it waits for each. Shards: all weights and gradients, once a step. Copies: the "
        "gradients of one shard, once a step. Pipeline: one micro-batch's activations, while the next is computed.",
        "Sort the four by that: what can cross nodes comes first, what cannot comes last. Sizes and names follow the "
        "same order.",
    ),
)
def test_todo1_mesh(student):
    for world, shapes in student.several(SHAPES_1.items()):
        for rank, found in enumerate(student.call(mesh_on_rank, world=world, shapes=shapes).evidence):
            what = found[0].get("type")
            expect(what is None, "make_mesh returns no mesh", "a DeviceMesh", what, rank)
            for shape, seen in zip(shapes, found, strict=True):
                told, names = f"with {shaped(shape)} on {world} ranks", seen["names"]
                expect(
                    sorted(names) == sorted(AXES),
                    f"{told} the axes have the wrong names, and they are looked up by name",
                    list(AXES),
                    names,
                    rank,
                )
                grid = torch.arange(world).view(shape)
                place = [int(i) for i in (grid == rank).nonzero()[0]]
                for k, axis in reversed(list(enumerate(AXES))):
                    index = [*place]
                    index[k] = slice(None)
                    right, mine = grid[tuple(index)].tolist(), seen["axes"][axis]
                    expect(
                        len(mine) == len(right),
                        f"{told} rank {rank} finds {len(mine)} ranks on the axis {axis}",
                        right,
                        mine,
                        rank,
                    )
                    where = "no neighbours" if axis == "tp" else "not those that the order of the axes asks for"
                    expect(
                        mine == right, f"{told} the ranks of rank {rank}'s axis {axis} are {where}", right, mine, rank
                    )
                right = grid[place[0], :, :, place[3]].tolist()
                expect(
                    seen["data"] == right,
                    f'{told} mesh["dp", "shard"], over which fully_shard copies and shards, is a different grid',
                    right,
                    seen["data"],
                    rank,
                )


# ---------------------------------------------------------------------------------------------------
# TODO 2: this rank's stages

CUTS = [(2, 1, 1, 2, "1f1b"), (4, 1, 1, 1, "zero-bubble"), (2, 2, 1, 1, "interleaved"), (4, 1, 1, 1, "interleaved")]


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


@todo(
    2,
    minutes=20,
    why=(
        "Each rank takes its layers first, and the later steps work on these alone. If a stage took memory "
        "before it is split and sharded, every rank would need room for a whole stage, and never use it."
    ),
    hints=(
        (
            "It is pipeline_training's make_stages, without the memory. Which stages does rank r have, if it "
            "takes every p-th of n_stages?"
        ),
        ("mesh.size(), mesh.get_local_rank() and mesh.get_group() belong to the pipeline, since mesh is that axis."),
        (
            "One loop over this rank's stages, each a PipelineStage of Layers(model, its blocks) with the "
            "pipeline's group."
        ),
    ),
)
def test_todo2_cut(student):
    cuts, layers = student.several(CUTS), student.draw("cut").choice((8, 9, 11))
    try:
        run = student.call(cut_on_rank, world=4, cuts=cuts, layers=layers)
    except Fault as fault:
        if "group size" in fault.message:  # of torch's PipelineStage
            fault.hint = "Without a group, PipelineStage makes a pipeline of all ranks. Which group is this axis's?"
        raise
    for rank, left in enumerate(run.evidence):
        for (*shape, schedule), stages in zip(cuts, left, strict=True):
            told = f"with {shaped(shape)} and --schedule {schedule}, {layers} blocks,"
            expect(isinstance(stages, list), f"{told} cut returns no list of PipelineStage", "a list", stages, rank)
            p, place = shape[0], rank * shape[0] // 4  # pp is the first axis
            chunks = 2 if schedule == "interleaved" else 1
            right, seen = [place + k * p for k in range(chunks)], [stage["stage"] for stage in stages]
            expect(
                seen == right,
                f"{told} rank {rank}, which is rank {place} of its pipeline, does not have its own stages",
                right,
                seen,
                rank,
            )
            group = [rank % (4 // p) + k * (4 // p) for k in range(p)]
            for stage in stages:
                number = stage["stage"]
                expect(
                    stage["of"] == p * chunks,
                    f"{told} stage {number} is given the wrong number of stages",
                    p * chunks,
                    stage["of"],
                    rank,
                )
                expect(
                    stage["group"] == group,
                    f"{told} stage {number} sends to ranks outside its pipeline",
                    group,
                    stage["group"],
                    rank,
                )
                expect(
                    stage["names"] == stage["right"],
                    f"{told} stage {number} has the wrong layers",
                    f"{len(stage['right'])} weights",
                    f"{len(stage['names'])} weights",
                    rank,
                )
                expect(
                    stage["held"] == 0,
                    f"{told} stage {number} has memory for {stage['held']:,} weights before it is split",
                    "none",
                    f"{stage['held']:,} weights",
                    rank,
                )
                expect(
                    stage["own"],
                    f"{told} the layers of stage {number} are copies of the model's",
                    "the model's own",
                    "copies",
                    rank,
                )


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


def serial_step(sizes, seeds, rows=None):
    """Sum of the losses of all batches together, its gradients, and how many targets count."""
    model = drawn_model(0, sizes)
    total = targets = 0
    for seed in seeds:
        x, y = drawn_batch(seed, sizes, rows)
        n = (y != IGNORE).sum()
        total, targets = total + model(x, y) * n, targets + int(n)
    total.backward()
    return {"loss": total.item(), "targets": targets, "grads": gradients(model)}


OF_THE_LOSS = (
    "The stage is right; now its loss. Both functions give means over the targets that count, and a sum is asked for."
    " And does the one for a split head know how h is placed on the ranks?"
)


@todo(
    3,
    minutes=25,
    why=(
        "What tp_training did to a model can be done to each of its stages: the plan names layers, and a "
        "stage has some of them. Plain tensors go between stages; with the stream cut, each rank sends only "
        "its T/tp tokens, so a pipeline sends tp times less. The loss belongs to no layer: only the last "
        "stage has targets."
    ),
    hints=(
        ("For each name in the plan, look at what comes before the first dot: is it one of the stage's children?"),
        (
            "named_children() of a stage has “blocks”, and on the first and the last stage more. For the "
            "loss, h must become a DTensor on the weight's mesh, with the stream's layout."
        ),
        (
            "A dictionary comprehension keeps the entries that this stage has. The loss has two cases, by the"
            " type of the weight; in both, a mean times a count is a sum."
        ),
    ),
)
def test_todo3_split(student):
    trials = []
    for world, sequence, n_stages in student.several(((1, False, 1), (2, False, 3), (3, True, 2)), but=[(1, False, 1)]):
        layers = student.draw("blocks", world).choice((n_stages, n_stages + 1))
        sizes = drawn_sizes(student, world, "split", words=WORDS, layers=layers)
        seed = student.draw("batch", world, sequence).randrange(1 << 40)
        right = student.reference(serial_step, sizes=sizes, seeds=[seed])
        some_count = right["targets"] not in (1, sizes["batch"] * sizes["length"])
        student.premise(some_count, "a batch whose targets all count")
        must_have_gradients(student, right["grads"])
        trials.append((world, sequence, n_stages, sizes, seed, right))
    for world, sequence, n_stages, sizes, seed, right in trials:
        flags = f"--tp {world}{' --sequence-parallel' if sequence else ''}"
        told = f"with {flags}, and {many(sizes['layers'], 'block')} in {many(n_stages, 'stage')}"
        run = student.call(split_on_rank, world=world, sizes=sizes, seed=seed, sequence=sequence, n_stages=n_stages)
        check_refused(told, "a stage", run.evidence)
        for rank, seen in enumerate(run.evidence):
            with hinted(OF_THE_LOSS):
                expect(
                    "returns" not in seen,
                    f"{told}, loss_of returns {seen.get('returns')}",
                    "a tensor of one number, with its graph",
                    seen.get("returns"),
                    rank,
                )
            expect(
                not seen["lacking"],
                f"{told}, split() names layers that a stage lacks, such as {seen['lacking'][:1]}: torch warns of each"
                " in every run",
                "the layers that the stage has",
                seen["lacking"][:3],
                rank,
            )
            check_held(told, sizes, world, seen["held"], rank)
            length = sizes["length"] // world if sequence else sizes["length"]
            for stage, shape in enumerate(seen["shapes"]):
                expect(
                    shape[1] == length,
                    f"{told}, stage {stage} hands on {shape[1]} of {sizes['length']} tokens on rank {rank}",
                    f"{length} tokens",
                    f"{shape[1]} tokens",
                    rank,
                )
            with hinted(OF_THE_LOSS):
                check_loss_of(told, seen, right, rank)
        check_parts(told, [seen["grads"] for seen in run.evidence], right["grads"])
        if world > 1:
            check_sent_3(told, run, sizes, world)


def check_loss_of(told, seen, right, rank):
    loss, wanted = seen["loss"], right["loss"]
    if not math.isclose(loss, wanted, rel_tol=EXACT):
        mean = math.isclose(loss, wanted / right["targets"], rel_tol=1e-4)
        what = "the mean over the targets" if mean else "a number that is not the sum over the targets that count"
        raise Wrong(f"{told}, loss_of gives rank {rank} {what}", wanted, loss, rank)
    expect(
        seen["nothing"] == 0,
        f"{told}, a micro-batch without a target has a loss on rank {rank}",
        0.0,
        seen["nothing"],
        rank,
    )


def check_held(told, sizes, tp, held, rank):
    """Of all that can be cut a rank holds its part."""
    D, V = sizes["dim"], sizes["vocab"]
    rows = math.ceil(V / tp)
    for name, much in held.items():
        if "norm" in name or name.startswith("position"):
            continue
        share = rows * D if name.startswith(("token", "head")) else (1 if "attention" in name else 4) * D * D // tp
        expect(
            much <= share,
            f"{told}, rank {rank} holds {much:,} elements of {name}: it is not split",
            f"{share:,}",
            f"{much:,}",
            rank,
        )


def check_sent_3(told, run, sizes, world):
    """No more than the plan's all-reduces, and three numbers a token for the loss: logits are never gathered."""
    stream = 8 * sizes["batch"] * sizes["length"] * sizes["dim"]
    tokens = 8 * sizes["batch"] * sizes["length"]
    # Of the stream 4 all-reduces in each block, one for the embedding, and one for h, forward and backward.
    allowed = 2 * (world - 1) / world * ((4 * sizes["layers"] + 3) * stream + 4 * tokens) * 1.01
    forward, loss, *_ = cases(run.events)
    for rank in range(world):
        much = sent_by(forward[rank] + loss[rank], rank)
        expect(
            much <= allowed,
            f"{told}, rank {rank} sends {much:,.0f} bytes in a step: are logits or tables gathered?",
            f"at most {allowed:,.0f} bytes",
            f"{much:,.0f} bytes",
            rank,
        )


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
    if shape[3] > 1:
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


def share_of(sizes, shard, tp):
    """Elements that one rank holds at most."""
    total = 0
    model = TransformerLM(sizes["vocab"], sizes["dim"], sizes["heads"], sizes["layers"], sizes["length"])
    for name, p in model.named_parameters():
        n, m = p.shape[0], math.prod(p.shape[1:])
        if tp > 1 and "norm" not in name and not name.startswith("position"):
            n, m = (n, m // tp) if name.endswith(("out.weight", "down.weight")) else (math.ceil(n / tp), m)
        total += math.ceil(n / shard) * m
    return total


def by_data(student, shape, *purpose):
    """A separate seed for each part of the batch: ranks that differ on pp or tp have the same samples."""
    _, dp, shard, tp = shape
    seeds = student.draw("data", *purpose).sample(range(1 << 40), dp * shard)
    return seeds, Private([seeds[rank // tp % (dp * shard)] for rank in range(math.prod(shape))])


@todo(
    4,
    since=Since(*AVERAGES_SINCE, on_cpus=True),
    minutes=15,
    why=(
        "Copies send the gradients of one shard, once a step; shards send all weights and all gradients. So "
        "use as few shards as memory allows, and place copies of them further away. In a pipeline each "
        "micro-batch passes through all blocks: weights freed after each would be gathered m times."
    ),
    hints=(
        'What does mesh["shard"] leave out of `mesh`? And what becomes of a block\'s weights once its forward pass is '
        "over?",
        "`mesh` has its axes already, in the order that fully_shard takes them. reshard_after_forward decides whether "
        "gathered weights are freed after the forward pass, or stay until the last backward pass.",
        "The two loops stay as they are; `options` gets two entries.",
    ),
)
def test_todo4_shard(student):
    trials = []
    for shape in student.several(((1, 2, 2, 1), (1, 1, 3, 1), (1, 2, 1, 2), (1, 1, 1, 1)), but=[(1, 1, 1, 1)]):
        sizes = drawn_sizes(student, shape[3], "shard", *shape, words=WORDS)
        seeds, private = by_data(student, shape, "shard", *shape)
        right = student.reference(serial_step, sizes=sizes, seeds=seeds, rows=2 * MICRO)
        must_have_gradients(student, right["grads"])
        trials.append((shape, sizes, seeds, private, right))
    for shape, sizes, seeds, private, right in trials:
        tp, shard = shape[3], shape[2]
        told = f"with {shaped(shape)}"
        short = shape[2] == 3 or math.prod(shape) == 1  # one alone gathers nothing, and yet has a dtype
        run = student.call(shard_on_rank, world=math.prod(shape), shape=shape, sizes=sizes, seed=private, short=short)
        check_refused(told, "a step", run.evidence)
        share = share_of(sizes, shard, tp)
        for rank, seen in enumerate(run.evidence):
            expect(
                seen["held"] <= share,
                f"{told}, rank {rank} holds {seen['held']:,} weights, more than its shard of what its layers have",
                f"{share:,}",
                f"{seen['held']:,}",
                rank,
            )
        check_parts(
            f"{told}, averaged over {len(seeds)} shares",
            [seen["grads"] for seen in run.evidence],
            {name: grad / len(seeds) for name, grad in right["grads"].items()},
        )
        check_gathered(told, run, shape, sizes, share)
        if short:
            check_short(told, run, shape[2] > 1)


def check_short(told, run, gathers):
    """With --dtype bfloat16 all weights are gathered in it, also those that are in no block, and gradients are added up
    in float32.
    """

    def dtypes_of(op, events):
        return sorted({event["dtype"] for event in events if event["e"] == "op" and event["op"] == op})

    gathered, stepped = cases(run.events)[2:4]
    for rank, seen in enumerate(run.evidence):
        dtypes = dtypes_of("all_gather", gathered[rank]) if gathers else seen["gathered"]
        expect(
            dtypes == ["bfloat16"],
            f"{told} and --dtype bfloat16, rank {rank} {'gathers' if gathers else 'computes with'} weights in"
            f" {' and '.join(dtypes) or 'no dtype'}: is the mp_policy in options given to every fully_shard?",
            "bfloat16",
            dtypes,
            rank,
        )
    check_refused(f"{told} and --dtype bfloat16", "a step", [seen["short"] for seen in run.evidence])
    for rank, events in enumerate(stepped if gathers else ()):
        summed = dtypes_of("reduce_scatter", events)
        expect(
            summed == ["float32"],
            f"{told} and --dtype bfloat16, rank {rank} adds up gradients in {' and '.join(summed) or 'no dtype'}: the"
            " mp_policy in options asks for float32",
            "float32",
            summed,
            rank,
            "precision() has made the policy. What becomes of it, between `options` and the calls?",
        )


def check_gathered(told, run, shape, sizes, share):
    """In a step each weight is gathered once, among the ranks of the shard axis, block by block."""
    grid = torch.arange(math.prod(shape)).view(shape)
    for rank, events in enumerate(cases(run.events)[1]):
        calls = [event for event in events if event["e"] == "op" and event["op"] == "all_gather" and event["bytes"]]
        calls = [event for event in calls if len(event["group"]) > 1]
        place = (grid == rank).nonzero()[0]
        among = grid[place[0], place[1], :, place[3]].tolist()
        if len(among) == 1:
            continue
        others = [event["group"] for event in calls if event["group"] != among]
        expect(
            not others,
            f"{told}, rank {rank} gathers weights from ranks outside its shard axis",
            among,
            others[0] if others else None,
            rank,
        )
        much = sum(event["bytes"] for event in calls)
        often = f"{much / (8 * share):.1f} times"
        with hinted("A unit that is gathered again has been freed. For which of the modules is that still so?"):
            expect(
                much <= 1.05 * 8 * share,
                f"{told}, rank {rank} sends its shard {often} in a step of {MICRO} micro-batches",
                "once",
                often,
                rank,
            )
        expect(
            len(calls) > sizes["layers"],
            f"{told}, rank {rank} gathers all weights in {count_of(len(calls), 'part')}: not every block is a unit",
            f"{sizes['layers'] + 1} parts: the blocks, and the rest",
            count_of(len(calls), "part"),
            rank,
            "fully_shard makes one unit of what it is given and has not been cut before. What is it given, one by one?",
        )


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


@todo(
    5,
    minutes=10,
    why=(
        "The ranks of a pipeline, and the ranks that split a layer, compute one result. With samples of its "
        "own on each, x would enter at one end and a different text's y at the other; shapes fit, nothing "
        "fails, and the model learns which words are frequent. And copies that read the same samples do the "
        "same work twice."
    ),
    hints=(
        (
            "Number the ranks of a grid of dp rows and shard columns, row by row. What is this rank's number,"
            " and how many are there?"
        ),
        ("mesh.get_local_rank(axis) is a rank's place on an axis, mesh[axis].size() how many places it has."),
        "A row's number times the length of a row, plus the place in it.",
    ),
)
def test_todo5_share(student):
    draw = student.draw("samplers")
    sizes = (draw.choice((61, 67, 71)), draw.choice((11, 13)), draw.choice((7, 13)))
    seed = draw.randrange(100)
    drawn = [tuple(mesh.get(axis, 1) for axis in AXES) for mesh in meshes(draw, 6, AXES, beside=("dp", "shard"))]
    for shape in student.several((*drawn, (1, 2, 2, 2), (1, 4, 1, 1)), but=[(1, 2, 2, 2)]):
        world, told = math.prod(shape), f"with {shaped(shape)}"
        ranks = student.call(samplers_on_rank, world=world, shape=shape, sizes=sizes, seed=seed).evidence
        grid = torch.arange(world).view(shape)
        for rank, mine in enumerate(ranks):
            expect(
                "returns" not in mine,
                f"{told} my_share gives rank {rank} {mine.get('returns')}",
                "(part, parts), two whole numbers",
                mine.get("returns"),
                rank,
            )
            place = (grid == rank).nonzero()[0]
            first = int(grid[0, place[1], place[2], 0])
            for name in ("train", "validation", "test"):
                expect(
                    mine[name] == ranks[first][name],
                    f"{told} ranks {first} and {rank} differ only on pp or tp, and read different {name} samples",
                    ranks[first][name],
                    mine[name],
                    rank,
                )
        readers = [ranks[int(first)] for first in grid[0, :, :, 0].flatten()]
        for name, size in zip(("validation", "test"), sizes[1:], strict=True):
            with where(told):
                each_once(name, [mine[name] for mine in readers], size)
        check_dealt(told, [mine["train"] for mine in readers], sizes[0], seed, readers[0]["batch"])


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


def weights_of(sizes):
    return {name: p.detach() for name, p in drawn_model(0, sizes).named_parameters()}


def divide_on_rank(code, rank, world, shape, sizes, targets):
    own = own_by_check(mesh := made_mesh(*shape), sizes)
    set_gradients(own)
    n_targets = torch.tensor(targets)
    mark()
    code.divide_gradients(own, n_targets, mesh)
    mark()
    return {"grads": gradients(own), "targets": int(n_targets)}


@todo(
    6,
    minutes=15,
    why=(
        "A mean over all targets is one sum divided by the other. FSDP knows nothing about targets: it divides "
        "by the number of ranks, which would be right for means over equally many targets. With padding or packing, "
        "ranks have different numbers of targets, and the model would depend on how the batch was divided: a "
        "little, so it goes unnoticed."
    ),
    hints=(
        (
            "Undo one division, then make the other: which two numbers does that take, each known for both "
            "data axes together?"
        ),
        (
            "dist.all_reduce(n_targets, group=…) along one data axis, then along the other; on a copy, since "
            "the caller still needs its own. FSDP has divided by the product of the two sizes."
        ),
        "Each parameter.grad is multiplied once, in place, by a quotient of two numbers.",
    ),
)
def test_todo6_divide(student):
    for shape in student.several(((1, 2, 2, 1), (2, 1, 2, 1), (1, 2, 1, 2), (1, 1, 1, 2))):
        _, dp, shard, tp = shape
        world = math.prod(shape)
        sizes = drawn_sizes(student, tp, "divide", *shape, words=WORDS)
        counts = shares(student.draw("targets", *shape), dp * shard, most=60)  # of a micro-batch none may count
        targets = Private([counts[rank // tp % (dp * shard)] for rank in range(world)])
        told = f"with {shaped(shape)} and {', '.join(map(str, counts))} targets on the data ranks"
        run = student.call(divide_on_rank, world=world, shape=shape, sizes=sizes, targets=targets)
        right = student.reference(weights_of, sizes=sizes)
        factor = dp * shard / sum(counts)
        for rank, seen in enumerate(run.evidence):
            for name, grad in seen["grads"].items():
                # Numbers of targets may become float32 in a message: 6e-8 of them.
                check_part(f"{told}, after divide_gradients", name, grad, right[name] * factor, rank, rel=1e-6)
            own = counts[rank // tp % (dp * shard)]
            expect(
                seen["targets"] == own,
                f"{told}, divide_gradients writes into the n_targets of rank {rank}, which the log still needs",
                own,
                seen["targets"],
                rank,
            )
        check_little(told, "divide_gradients", run, 64, "two numbers")


def check_little(told, name, run, allowed, what):
    """Between the first two marks no rank sends more bytes than allowed."""
    check_sent(f"{told}, {name}", cases(run.events)[0], allowed, why=f"{what} would do")


def norms_on_rank(code, rank, world, shape, sizes, sequence):
    mesh = made_mesh(*shape)
    own = own_by_check(mesh, sizes, sequence)
    set_gradients(own, 1.0 + mesh.get_local_rank("tp"))
    mark()
    code.add_up_norms(own, mesh, made_args(code, shape, sequence_parallel=sequence))
    mark()
    return {"grads": gradients(own), "place": mesh.get_local_rank("tp")}


@todo(
    7,
    minutes=15,
    further=True,
    why=(
        "FSDP sums over the data axes, DTensor over the tensor axis where a layer is cut. The norms belong to"
        " neither: every rank has them whole, and uses them on its own tokens alone. Without this sum the "
        "copies drift apart, and nothing says so: the first loss is right to the last bit, and the later ones"
        " in three digits."
    ),
    hints=(
        (
            "Which parameters were not named in the plan? Each rank of the tensor axis has the gradient of "
            "its own tokens for them."
        ),
        (
            'Their p.device_mesh.mesh_dim_names has no "tp". p.grad.to_local() is a view that you may write '
            "to. torch.cat of flattened parts makes one message, and split with their sizes takes it apart."
        ),
        (
            "Collect the parts, concatenate, all-reduce over the tensor axis, split, and copy_ each piece "
            "back in the part's shape."
        ),
    ),
)
def test_todo7_norms(student):
    # A width of 4 for each head does not divide into 3 shards.
    alone = ((1, 2, 1, 2), False), ((2, 1, 2, 1), True)  # nothing is to be sent
    for shape, sequence in student.several((((1, 1, 3, 2), True), ((1, 2, 1, 3), True), ((2, 1, 1, 2), True), *alone)):
        tp = shape[3]
        sizes = drawn_sizes(student, tp, "norms", *shape, words=WORDS)
        sizes["dim"] = 4 * sizes["heads"]
        told = f"with {shaped(shape)}{' --sequence-parallel' if sequence else ''}"
        try:
            run = student.call(norms_on_rank, world=math.prod(shape), shape=shape, sizes=sizes, sequence=sequence)
        except Fault as fault:
            if fault.cause == "mismatch":  # a cut parameter has shards of unequal sizes
                fault.hint = (
                    "These ranks have unequal parts of something that is cut. A parameter that is whole on each of them"
                    " has the same size everywhere: which parameters are that?"
                )
            elif "assign a gradient of size" in fault.message:  # raised by DTensor.from_local without a shape
                fault.hint = (
                    "This width is not divisible by --shard, and DTensor.from_local takes all shards to be equal. What "
                    "p.grad.to_local() gives can be written to, and the gradient stays as large as it was."
                )
            raise
        right = student.reference(weights_of, sizes=sizes)
        due = sequence and tp > 1
        for rank, seen in enumerate(run.evidence):
            for name, grad in seen["grads"].items():
                whole = "norm" in name
                factor = tp * (tp + 1) / 2 if due and whole else 1.0 + seen["place"]
                who = "which all ranks of the tensor axis hold" if whole else "which they split"
                check_part(f"{told}, after add_up_norms", f"{name}, {who},", grad, right[name] * factor, rank)
        norms = 8 * sum(p.numel() for name, p in right.items() if "norm" in name) if due else 0
        check_little(told, "add_up_norms", run, 2 * norms, "the norms alone" if due else "nothing has to be sent")


def norms_of_stages(sizes, n_stages):
    """The norm of each stage's weights."""
    model = drawn_model(0, sizes)
    stages = [cut_by_check(model, k, n_stages) for k in range(n_stages)]
    return [math.sqrt(sum(p.detach().square().sum().item() for p in stage.parameters())) for stage in stages]


def clip_on_rank(code, rank, world, shape, sizes, sequence, clips):
    mesh = made_mesh(*shape)
    own = own_by_check(mesh, sizes, sequence)
    seen = []
    for clip in clips:
        set_gradients(own)
        mark()
        norm = code.clip_gradients(own, mesh, made_args(code, shape, clip=clip))
        mark()
        number = norm if isinstance(norm, (int, float)) else kind_of(norm)
        seen.append({"norm": number, "grads": gradients(own)})
    return seen


@todo(
    8,
    minutes=10,
    further=True,
    why=(
        "A stage that clips with its own part's norm takes a different step from the others. And a sum over all ranks"
        " would count a copy's gradients once for each copy, and a norm's once for each rank of the tensor axis. Adam"
        " hides either: it divides by the size of the gradient."
    ),
    hints=(
        ("What does each rank know already, and which ranks have different layers? The square of a norm is a sum."),
        ("One axis alone has different layers. An all-reduce over its group adds up the stages, and no copies."),
        "Square, all-reduce, root.",
    ),
)
def test_todo8_clip(student):
    clipped = ((2, 1, 1, 2), True), ((2, 1, 2, 1), False), ((2, 2, 1, 1), False), ((3, 1, 1, 1), False)
    for shape, sequence in student.several(clipped):
        sizes = drawn_sizes(student, shape[3], "clip", *shape, words=WORDS, layers=3)
        weights = student.reference(weights_of, sizes=sizes)
        right = math.sqrt(sum(weight.square().sum().item() for weight in weights.values()))
        parts = student.reference(norms_of_stages, sizes=sizes, n_stages=shape[0])
        clips = (right / 4, 0.0, right * 4)
        run = student.call(
            clip_on_rank, world=math.prod(shape), shape=shape, sizes=sizes, sequence=sequence, clips=clips
        )
        for case, clip in enumerate(clips):
            told = f"with {shaped(shape)}, --clip {clip:.3g} and a gradient of norm {right:.4g}"
            for rank, mine in enumerate(run.evidence):
                wrongs = {
                    "the stages' norms added up, and it is their squares that can be": (sum(parts), ""),
                    "the norm of this stage alone": (parts[rank * shape[0] // math.prod(shape)], ""),
                }
                check_norm(told, mine[case]["norm"], right, clip, rank, wrongs=wrongs)
                factor = min(1.0, clip / right) if clip else 1.0
                for name, grad in mine[case]["grads"].items():
                    check_part(f"{told}, after clip_gradients", name, grad, weights[name] * factor, rank, rel=1e-5)
        whole = 8 * sum(weight.numel() for weight in weights.values())
        check_little(f"with {shaped(shape)}", "clip_gradients", run, whole / 8, "a few numbers")


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
    _, dp, shard, _ = shape
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


def serial_evaluation(sizes):
    model, found = drawn_model(0, sizes), []
    for length in LENGTHS:
        text = Text(length, sizes)
        means = [model(text.x[k : k + 4], text.y[k : k + 4]).item() for k in range(0, length, 4)]
        found.append((model(text.x, text.y).item(), sum(means) / len(means)))
    return found


def counted_wrongly(length, shape, sizes):
    """By which factors a mean is too small where every token counts: of the samples, or of filled batches, too."""
    targets, tokens = int((Text(length, sizes).y != IGNORE).sum()), sizes["length"]
    shares = shape[1] * shape[2]
    batches = math.ceil(math.ceil(length / shares) / 4)
    return targets / (length * tokens), targets / (4 * batches * shares * tokens)


@todo(
    9,
    since=Since(*SCHEDULES_SINCE),
    minutes=15,
    further=True,
    why=(
        "The validation loss decides which weights are kept, on a rank that may not know it. All ranks' sums "
        "and counts are added up and divided once: so a rank without a loss must count no targets."
    ),
    hints=(
        "The code is the same on all ranks, except for one question: is there anything in the list?",
        ("torch.stack(losses) makes one tensor of the list; each loss in it is a sum already. Which targets count?"),
        (
            "Under one condition, add to total the sum of the losses in float64, and to count the targets "
            "that are not IGNORE."
        ),
    ),
)
def test_todo9_evaluate(student):
    trials = []
    for shape, interleaved in student.several((((2, 1, 2, 1), True), ((2, 1, 1, 2), False), ((1, 2, 2, 1), False))):
        layers = 4 if interleaved else 2  # a block for each stage
        sizes = drawn_sizes(student, shape[3], "evaluate", *shape, words=WORDS, layers=layers) | {"length": 6}
        right = student.reference(serial_evaluation, sizes=sizes)
        student.premise(abs(right[0][0] - right[0][1]) > 1e-6 * right[0][0], "batches with equal means")
        trials.append((shape, interleaved, sizes, right))
    for shape, interleaved, sizes, right in trials:
        told = f"with {shaped(shape)}{' and --schedule interleaved' if interleaved else ''}"
        run = student.call(evaluate_on_rank, world=math.prod(shape), shape=shape, sizes=sizes, interleaved=interleaved)
        for rank, left in enumerate(run.evidence):
            for length, mean, (wanted, _) in zip(LENGTHS, left["means"], right, strict=True):
                same = isinstance(mean, float) and math.isclose(mean, wanted, rel_tol=1e-8)
                if not same:
                    p = shape[0]
                    small = p > 1 and isinstance(mean, float) and math.isclose(mean * p, wanted, rel_tol=1e-8)
                    padded = isinstance(mean, float) and any(
                        math.isclose(mean, wanted * part, rel_tol=1e-8)
                        for part in counted_wrongly(length, shape, sizes)
                    )
                    if isinstance(mean, float) and math.isnan(mean):
                        what = "no loss, but 0 / 0: does no rank count? With interleaved stages the last one is its "
                        what += "rank's second"
                    elif small:
                        what = f"a loss {p} times too small: do ranks without the last stage count targets?"
                    elif padded:
                        what = "a loss of too many targets: do some count that are IGNORE, or were only filled up?"
                    else:
                        what = "different from the loss of one process: is each target counted once, and nothing else?"
                    samples = many(length, "sample")
                    raise Wrong(f"{told}, evaluate() of {samples} gives rank {rank} {what}", wanted, mean, rank)
            expect(
                not left["grads"], f"{told}, evaluate() leaves gradients on rank {rank}", "none", left["grads"], rank
            )


# ---------------------------------------------------------------------------------------------------
# TODO 10: checkpoints; the law of the course


def save_on_rank(code, rank, world, shape, sizes):
    files = record_files()
    mesh = made_mesh(*shape)
    own = own_by_check(mesh, sizes)
    config = {"vocab_size": sizes["vocab"]}
    with Peak() as peak:
        code.save_checkpoint(own, mesh, config, saved_file(), 3)
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


# SGD, since Adam turns rounding into error where a gradient is zero in theory; and a rate at which the weights move.
ARGV = (
    "--epochs 1 --batch-size 12 --seq-len 8 --dim 16 --heads 4 --optimizer sgd --lr 0.5 --weight-decay 0 "
    "--clip 0.5 --seed 5 --log-every 1"
).split()
RUNS = (  # ranks, blocks, flags: a block for each stage, since what a stage makes of more was judged before
    (8, 2, "--pp 2 --shard 2 --tp 2 --sequence-parallel --microbatches 3"),
    (4, 4, "--pp 2 --dp 2 --schedule interleaved --microbatches 2"),
)
MODELS = [[*ARGV, "--layers", f"{layers}"] for _, layers, _ in RUNS]
KEPT = ("held", "steps", "still_in_a_group", "files")  # of a run: no weights, which lie in stages


OF_THE_STATE = (
    "This is state_options' part. By what does the optimizer's state know its parameters: by their place in a list of "
    "this rank's, or by a name that every shape knows?"
)


@todo(
    10,
    in_place=("position",),
    minutes=35,
    further=True,
    needs=(1, 2, 3, 4, 5, 6, 7, 8, 9),
    why=(
        "A cluster gives you 64 GPUs today and 16 tomorrow, and the model's users have one. So a checkpoint "
        "must not depend on the shape in which it was trained: whole names, whole tensors, or shards that "
        "know their place in them."
    ),
    hints=(
        (
            "All ranks that have a part of a tensor must take part in assembling it; one rank of each stage "
            "then sends its tensors to rank 0. Which ranks are these?"
        ),
        (
            "part.full_tensor() on all ranks; keep the result where this rank is first on dp, shard and tp. "
            "Only there, gather_object along the pipeline."
        ),
        (
            "gather_object fills a list with one entry for each stage on rank 0, and takes None elsewhere. "
            "Then one dictionary of all stages' entries is saved. For the sharded checkpoint, one option is "
            "enough."
        ),
    ),
)
def test_todo10_checkpoints(student):
    serials = [student.serial(["--data", "data", "--out", "out", *argv], corpus(student)) for argv in MODELS]
    for serial in serials:
        must_move(student, serial)
    for shape in student.several(((2, 1, 1, 2), (2, 1, 2, 1), (3, 1, 1, 1), (1, 1, 1, 1)), but=[(1, 1, 1, 1)]):
        check_file(student, shape)
    shapes = student.several([(2, 1, 1, 2), (4, 1, 1, 1), (1, 2, 2, 1)], 2)
    sizes = drawn_sizes(student, 2, "pass on", words=WORDS, layers=4)
    right = student.reference(weights_of, sizes=sizes)
    run = student.call(pass_on, world=4, sizes=sizes, shapes=shapes, common=True)
    for rank, left in enumerate(run.evidence):
        for k, seen in enumerate(left, start=1):
            told = f"saved with {shaped(shapes[k - 1])} and loaded with {shaped(shapes[k])}"
            with hinted(OF_THE_STATE):
                check_refused(told, "the sharded checkpoint", [seen])
            for name, weight in seen["weights"].items():
                check_part(told, name, weight, right[name], rank, what="weight")
                momentum = seen["state"][name].get("momentum_buffer")
                expect(momentum is not None, f"{told}, {name} has no momentum on rank {rank}", "its own", "none", rank)
                check_part(told, name, momentum, 0.5 * right[name], rank, what="momentum")
            position = seen["position"]
            expect(
                isinstance(position, dict) and position.get("step") == 7,
                f"{told}, the position in the run is lost",
                {"step": 7},
                position if isinstance(position, dict) else kind_of(position),
                rank,
            )
            with hinted(OF_THE_STATE):
                expect(
                    math.isclose(seen["lr"], 0.1),
                    f"{told}, the optimizer has lost its learning rate: it was saved with lists of the parameters that "
                    "one rank has"
                    if math.isnan(seen["lr"])
                    else f"{told}, the optimizer's learning rate is not the saved one",
                    0.1,
                    seen["lr"],
                    rank,
                )
    check_law(student, serials)


def check_file(student, shape):
    told = f"with {shaped(shape)}"
    # Few words, so that no tensor is a large part of the model.
    sizes = drawn_sizes(student, shape[3], "save", *shape, words=WORDS, layers=4) | {"vocab": 13}
    run = student.call(save_on_rank, world=math.prod(shape), shape=shape, sizes=sizes)
    one_writer(run, f"{told} ")
    right = student.reference(weights_of, sizes=sizes)
    check_checkpoint(run.files["saved/model.pt"], right, epoch=3, config={"vocab_size": sizes["vocab"]})
    model = sum(8 * weight.numel() for weight in right.values())
    grid = torch.arange(math.prod(shape)).view(shape)
    for rank, seen in enumerate(run.evidence):
        first = rank in grid[:, 0, 0, 0].tolist()
        # A rank needs one tensor at a time; the first one of each stage the whole stage; rank 0 the model.
        if rank and not first:
            expect(
                seen["peak"] < 0.5 * model,
                f"{told} rank {rank} assembles its stage in memory, {seen['peak']:,} bytes at once, and no rank "
                "needs that",
                f"one tensor at a time, of {model:,} bytes",
                f"{seen['peak']:,} bytes",
                rank,
            )


def check_law(student, serials):
    """The parallel run is the serial run."""
    asked = student.several(zip(RUNS, MODELS, serials, strict=True))
    run = student.call(
        mains_on_rank,
        world=8,
        group=None,
        runs=[[ranks, [*argv, *flags.split()]] for (ranks, _, flags), argv, _ in asked],
        data=corpus(student),
        keep=KEPT,
    )
    for case, ((world, layers, flags), _, serial) in enumerate(asked):
        lines, final = reported(serial), serial.evidence[0]["weights"]
        steps = [line["loss"] for line in lines if line["kind"] == "step"]
        psi = sum(weight.numel() for weight in final.values())
        told = f"on {world} ranks with {flags} --layers {layers},"
        for rank, left in enumerate(run.evidence[:world]):
            seen = left[case]
            expect(
                seen["steps"] == len(steps),
                f"{told} the optimizer of rank {rank} steps {seen['steps']} times",
                len(steps),
                seen["steps"],
                rank,
            )
            expect(
                seen["held"] < 0.6 * psi,
                f"{told} the optimizer of rank {rank} holds {seen['held']:,} of {psi:,} weights",
                "its stages, parts and shards alone",
                f"{seen['held']:,}",
                rank,
            )
            expect(
                not seen["still_in_a_group"],
                f"{told} rank {rank} ends without leaving the process group",
                "no group",
                "a group",
                rank,
            )
        same_report(told, lines, reported(run, f"out-{case}"))
        check_last_weights(told, run.files[f"out-{case}/model-final.pt"], final)
        check_parts_travel(
            told.rstrip(","), cases(run.events)[case][:world], len(steps) * due_in_a_step(flags, layers), len(steps)
        )


def due_in_a_step(flags, layers):
    """Bytes that a rank sends at least: the stream (B, T, D) of its copy's samples or its gradient to another stage,
    with --sequence-parallel a part; and in each block 4 all-reduces of it.
    """
    words = flags.split()
    dp, shard, tp = (int(words[words.index(f"--{axis}") + 1]) if f"--{axis}" in words else 1 for axis in AXES[1:])
    stream = 4 * 12 / (dp * shard) * 8 * 16
    return stream / tp + 4 * (layers / 2) * ring_bytes(stream, tp)
