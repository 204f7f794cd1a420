"""Checks and hints of pipeline_training.

| TODO | achievement                     | evidence                                                            | needs |
|------|---------------------------------|---------------------------------------------------------------------|-------|
| 1    | the model cut by cost           | the slowest stage of drawn models and heads                         |       |
| 2    | this rank's stages              | numbers, layers, group, memory on 4 ranks; one and two stages a rank |      |
| 3    | the serial run's first weights  | first_weights() on 4 ranks; who built a model; the largest message  |       |
| 4    | micro-batches that add up       | sums, gradients, targets ignored unequally; bfloat16; each schedule's gradients on 3 ranks | |
| 5    | a batch through the pipeline    | gradients and losses on 2 × 2, 4 × 1 and 1 × 4 ranks; evaluate() on 2 × 2, where shares differ and one is empty | |
| 6    | gradients over the data axis    | sum_gradients() on 2 × 2, 1 × 3 and 3 × 1 ranks; messages           |       |
| 7    | the norm of the whole gradient  | clip_gradients() on 2 × 2 and 3 × 1 ranks                           |       |
| 8    | one file of the whole model     | which rank writes; torch.load(weights_only=True) reads it here, twice | |
| 9    | the grid, samples, the whole run | make_mesh() on 6 ranks, make_samplers(); main() on 4 and 2 ranks against the serial run | 1 – 8 |

The checks cut the stages themselves, except in TODO 1: so each TODO can be judged without the others.
"""  # noqa: E501

import math
from argparse import Namespace
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from grader.kit import (
    Since,
    REL,
    TINY,
    Fault,
    Peak,
    Wrong,
    a_number,
    cases,
    check_calls,
    check_checkpoint,
    check_dealt,
    check_last_weights,
    check_norm,
    check_parts_travel,
    check_tensor,
    collectives,
    corpus,
    each_once,
    elements,
    expect,
    hinted,
    kind_of,
    mains_on_rank,
    mark,
    must_move,
    one_writer,
    ranks_of,
    record_files,
    rectangles,
    reported,
    same_report,
    saved_file,
    saved_files,
    scale_of,
    shares,
    tiny_model,
    todo,
)
from utils import releases
from utils.data import IGNORE, Windows
from utils.loss import head_loss
from utils.model import TransformerLM
from utils.pipeline_flags import SCHEDULES_SINCE, splits_backward

BUILDS = "torch's pipelines: stages, schedules, one loss, one checkpoint; with data parallel"

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


def with_stages(many):
    """The number of stages per rank in words."""
    return "" if many == 1 else f", {('two', 'three')[many - 2]} stages per rank"


def batch(seed, rows, vocab=50):
    """x and y; from row to row, more targets of y do not count."""
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.randint(vocab, (rows, 8), generator=draw), torch.randint(vocab, (rows, 8), generator=draw)
    for row in range(rows):
        y[row, : row * 7 // max(rows - 1, 1)] = IGNORE
    return x, y


def named_gradients(module):
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


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


def slowest_of(numbers, head):
    """The cost of the slowest stage, in blocks: these numbers of blocks, and the head in the last stage."""
    return max(*numbers[:-1], numbers[-1] + head) if len(numbers) > 1 else numbers[0] + head


def least_slowest(blocks, n_stages, head):
    """Tries all numbers of blocks for the last stage."""
    if n_stages == 1:
        return blocks + head
    others = n_stages - 1
    return min(max(math.ceil((blocks - n) / others), n + head) for n in range(1, blocks - others + 1))


def by_number(blocks, n_stages, head):
    return [blocks // n_stages + (k < blocks % n_stages) for k in range(n_stages)]


def with_last(blocks, n_stages, last):
    return [*by_number(blocks - last, n_stages - 1, 0), last]


def by_mean(blocks, n_stages, head):
    """The last stage gets what it lacks to the mean, rounded."""
    last = round((blocks + head) / n_stages - head)
    return with_last(blocks, n_stages, min(max(1, last), blocks - n_stages + 1))


def by_mean_of_others(blocks, n_stages, head):
    """As if the other stages could have fractions of blocks."""
    choices = range(1, blocks - n_stages + 2)
    return with_last(blocks, n_stages, min(choices, key=lambda n: max((blocks - n) / (n_stages - 1), n + head)))


def filled_up(blocks, n_stages, head):
    """Stages filled one after the other, each up to its part of the whole."""
    borders, mean = [0], (blocks + head) / n_stages
    for stage in range(1, n_stages):
        borders.append(min(max(borders[-1] + 1, round(mean * stage)), blocks - (n_stages - stage)))
    return [b - a for a, b in zip(borders, [*borders[1:], blocks])]


def drawn_cut(draw, wrong):
    """A model for which this cut looks right, and is not the best."""
    while True:
        n_stages = draw.randint(2, 5)
        blocks, head = draw.randint(n_stages + 1, 14), draw.randint(1, 20) / 4
        if slowest_of(wrong(blocks, n_stages, head), head) > least_slowest(blocks, n_stages, head):
            return blocks, n_stages, head


@todo(
    1,
    minutes=15,
    why="All ranks of a pipeline wait for its slowest stage. With WikiText-2's 33,278 words and a width of 768, the "
    "head costs as much as 3.4 blocks: with 12 blocks on two ranks, 6 and 6 make a step as long as 9.4 blocks, 8"
    " and 4 one as long as 8.",
    hints=(
        "Only one number is to be chosen: how many blocks the last stage has. How many blocks does the slowest of the"
        " other stages have then?",
        "The other stages divide the rest as evenly as they can: the largest of them has math.ceil of a quotient. "
        "by_number makes their ranges. min(…, key=…) chooses.",
        "Try every number of blocks for the last stage, from 1 up to the number that leaves one block to each other"
        " stage; the slowest stage costs the larger of two numbers; keep the best, and append the last range to"
        " by_number's.",
    ),
)
def test_todo1_cut(student):
    draw = student.draw("cut")
    fixed = [(3, 1, 5.0), (4, 4, 9.0), (6, 2, 0.1), (12, 2, 3.4), (12, 4, 3.4), (2, 2, 20.0), (7, 3, 30.0), (8, 8, 0.5)]
    tempting = (by_number, by_mean, by_mean_of_others, filled_up)
    questions = fixed + [drawn_cut(draw, wrong) for wrong in tempting for _ in range(3)]
    (found,) = student.call(cuts_on_rank, world=1, group=False, questions=questions).evidence
    for (blocks, n_stages, head), seen in zip(questions, found, strict=True):
        check_cut(blocks, n_stages, head, seen)


def check_cut(blocks, n_stages, head, seen):
    told = f"cut({blocks}, {n_stages}, {head:g})"
    listed = isinstance(seen, dict)
    expect(listed, f"{told} does not return a list of ranges", f"{n_stages} ranges", seen)
    told_lists = f"{told} returns lists, and Layers cannot read their start and stop"
    expect(seen["ranges"], told_lists, "ranges", "lists", hint="range(a, b) has a as its start and b as its stop.")
    parts = seen["blocks"]
    expect(len(parts) == n_stages, f"{told} makes {len(parts)} stages", n_stages, len(parts))
    expect(all(parts), f"{told} has a stage without a block", "at least one in each", parts)
    everything = [i for part in parts for i in part]
    expect(
        everything == [*range(blocks)], f"{told} does not have each block once, in order", [*range(blocks)], everything
    )
    numbers = [len(part) for part in parts]
    took, best = slowest_of(numbers, head), least_slowest(blocks, n_stages, head)
    equal = (
        " They have equally many blocks, and the last one has the head, too." if max(numbers) - min(numbers) < 2 else ""
    )
    expect(
        took <= best + 1e-9,
        f"{told}: of stages with {numbers} blocks the slowest costs as much as {took:g} blocks; {best:g} is possible."
        f"{equal}",
        f"{best:g}",
        f"{took:g}",
    )


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


@todo(
    2,
    minutes=20,
    why=(
        "A stage knows its number, how many there are, and the group in which it exchanges messages with its"
        " neighbours. With the whole world as its group, stage 1 of one pipeline would send to stage 2 of another."
    ),
    hints=(
        "Which of the numbers 0 … n_stages - 1 does rank r have, if it takes every p-th? And where are its blocks?",
        "A range with a step gives the numbers. Layers takes the blocks of one stage and the dtype; it is on the"
        " device “meta” until to_empty gives it memory. PipelineStage wants a group: which axis's?",
        "One loop over this rank's stage numbers: make the Layers of that stage, give them memory, wrap them in a "
        "PipelineStage with the same number, and append it.",
    ),
)
def test_todo2_stages(student):
    grids = [
        (2, 2, "1f1b", "float32"),
        (4, 1, "zero-bubble", "float32"),
        (4, 1, "interleaved", "float32"),
        (2, 2, "interleaved", "bfloat16"),
    ]
    grids = student.several(grid for grid in grids if splits_backward() or "zero-bubble" not in grid)
    try:
        run = student.call(stages_on_rank, world=4, grids=grids)
    except Fault as fault:
        if "group size" in fault.message:  # of torch's PipelineStage
            fault.hint = "Without a group, PipelineStage takes all ranks for one pipeline. Which group is yours?"
        raise
    for rank, left in enumerate(run.evidence):
        for grid, stages in zip(grids, left, strict=True):
            check_stages_of(rank, grid, stages)
    talk = [call for case in cases(run.events)[1::2] for call in collectives(case)]
    expect(
        not talk,
        f"a backward pass through a stage calls {talk[0].op if talk else ''}: gradients would be summed over the ranks"
        " in each micro-batch, and earlier micro-batches' once more each time",
        "no collective: TODO 6 sums, once per step",
        f"{len(talk)} collectives",
        talk[0].rank if talk else None,
    )


def check_stages_of(rank, grid, stages):
    pp, data, kind, dtype = grid
    told = f"with --schedule {kind} on {pp} × {data} ranks,"
    listed = isinstance(stages, list)
    expect(listed, f"{told} make_stages does not return a list of PipelineStage", "a list", stages, rank)
    chunks = 2 if kind == "interleaved" else 1
    here = rank // data
    right, seen = [here + k * pp for k in range(chunks)], [stage["stage"] for stage in stages]
    wrong = f"{told} rank {here} of its pipeline does not have its own stages"
    expect(seen == right, wrong, right, seen, rank)
    group = [rank % data + k * data for k in range(pp)]
    for stage in stages:
        check_stage(f"{told} stage {stage['stage']}", stage, pp * chunks, group, dtype, rank)
    share, peak = sum(sum(stage["right"].values()) for stage in stages), stages[0]["peak"]
    # Twice, for those who take memory for a layer and then move it.
    expect(
        peak < min(2 * share, 0.9 * stages[0]["whole"]),
        f"{told} make_stages takes memory for {peak:,} weights on rank {rank}, including other stages'",
        f"{share:,}, its own stages' weights",
        f"{peak:,}",
        rank,
    )


def check_stage(told, stage, n_stages, group, dtype, rank):
    expect(stage["of"] == n_stages, f"{told} is given the wrong number of stages", n_stages, stage["of"], rank)
    strangers = f"{told} sends to ranks outside its pipeline"
    expect(stage["group"] == group, strangers, group, stage["group"], rank)
    empty = f"{stage['meta']} weights of {told.removeprefix('with ')} have no memory yet"
    expect(not stage["meta"], empty, "all on the device", "on meta", rank)
    wrapped = [name for name in stage["names"] if name.startswith("module.")]
    expect(
        not wrapped,
        f"{told} is wrapped, by DDP for example, which expects one backward pass per step: a stage has one for each"
        " micro-batch",
        "Layers",
        wrapped[:1],
        rank,
    )
    share = sum(stage["right"].values())
    expect(
        stage["held"] == share and set(stage["names"]) == set(stage["right"]),
        f"{told} does not hold its own layers: it has memory for {stage['held']:,} weights",
        f"{share:,}, its layers' weights",
        f"{stage['held']:,}",
        rank,
    )
    expect(
        stage["bfloat16"] == (dtype == "bfloat16"),
        f"{told} with --dtype {dtype}: the layers compute in the wrong dtype",
        dtype,
        "bfloat16" if stage["bfloat16"] else "float32",
        rank,
    )
    expect(
        stage["dtypes"] == ["float32"],
        f"{told} with --dtype {dtype}: its weights are {' and '.join(stage['dtypes'])}, so small steps of the optimizer"
        " are rounded away",
        "float32 weights: --dtype is the dtype of the matrix products (autocast)",
        stage["dtypes"],
        rank,
        hint="Layers casts what it multiplies. Its weights need memory, on this device, and no other dtype.",
    )


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


def serial_weights(seed):
    return made_model(seed, **LONG).state_dict()


@todo(
    3,
    minutes=25,
    why="Stages that draw their own weights make a different model from a single process's, and a different one for"
    " each number of stages. If they all draw from the same seed, stages even repeat each other. And a model that is"
    " built whole"
    " on every rank must fit on every rank, although the cut was made to avoid that.",
    hints=(
        "One rank knows all weights, and goes through them by name. What do the others have that tells them which "
        "tensor comes next, and its shape?",
        "model on the device “meta” has names and shapes. A broadcast needs a tensor of the same shape on every rank; "
        "torch.empty(…, device=…) makes room. copy_ fills a weight in place.",
        "Rank 0 sets the seed and builds the model; then all ranks loop over the same named_parameters(): room, rank 0 "
        "fills it, broadcast, and each rank that has a weight of that name copies it. Keep nothing longer.",
    ),
)
def test_todo3_first_weights(student):
    seeds = student.draw("first").sample(range(1, 1000), 2)
    for ranks, pp, turns in student.several(((4, 2, 1), (3, 3, 2))):
        run = student.call(first_on_rank, world=ranks, seeds=seeds, pp=pp, turns=turns)
        for number, seed in enumerate(seeds):
            told = f"on {ranks} ranks, {pp} of them in a pipeline{with_stages(turns)}"
            if number:
                told += ", in the second call, with another seed"
            right = student.reference(serial_weights, seed=seed)
            check_first(told, [left[number] for left in run.evidence], cases(run.events)[number], right)


def check_first(told, ranks, events, right):
    for rank, mine in enumerate(ranks):
        for name, weight in mine["weights"].items():
            what = "has no content yet" if weight.isnan().any() else "is not the serial run's"
            expect(
                torch.equal(weight, right[name]),
                f"{told}, the first {name} {what}",
                "the weights that a single process draws from --seed",
                "different ones",
                rank,
            )
    owners = [rank for rank, mine in enumerate(ranks) if mine["built"]]
    expect(
        len(owners) <= 1,
        f"{told}, ranks {', '.join(map(str, owners))} have each had the whole model in memory",
        "one rank at most",
        f"ranks {owners}",
        owners[-1] if owners else None,
    )
    largest, whole = 4 * max(w.numel() for w in right.values()), 4 * sum(w.numel() for w in right.values())
    for rank, mine in enumerate(events):
        most = max((event["bytes"] for event in mine if event["e"] == "op"), default=0)
        # Twice, for those who send other things with it.
        expect(
            most <= 2 * largest,
            f"{told}, rank {rank} gets {most:,} bytes in one message: more than a weight, so it holds other stages' "
            "weights, too",
            f"at most {largest:,} bytes, the largest weight's",
            f"{most:,} bytes",
            rank,
        )
    for rank, mine in enumerate(ranks):
        expect(
            mine["built"] or mine["peak"] < 0.9 * whole,
            f"{told}, rank {rank} has {mine['peak']:,} bytes of weights at one moment: other stages' weights are"
            f" kept, too",
            f"its own, and one more at a time; the whole model has {whole:,} bytes",
            f"{mine['peak']:,} bytes",
            rank,
        )


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


def serial_losses(seed):
    weight = cut_stage(made_model(seed), 1, 2).head.weight
    found = []
    for h, y in micro_batches(seed):
        h.requires_grad_()
        weight.grad = None
        loss = nn.functional.cross_entropy(
            (h @ weight.T).flatten(0, 1), y.flatten(), ignore_index=IGNORE, reduction="sum"
        )
        loss.backward()
        found.append({
            "loss": loss.item(), "grads": [h.grad, weight.grad],
            "targets": int((y != IGNORE).sum()), "positive": int((y > 0).sum()),
        })  # fmt: skip
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


def serial_toy(seed, n_stages, m):
    x, y = toy_batch(seed, 2 * m)
    stages = [Toy(stage, []) for stage in range(n_stages)]
    h = x
    for stage in stages:
        h = stage(h)
    toy_loss(h, y).backward()
    losses = [toy_loss(a, b).item() for a, b in zip(h.detach().chunk(m), y.chunk(m), strict=True)]
    return {"grads": [stage.weight.grad for stage in stages], "losses": losses}


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


@todo(
    4,
    minutes=15,
    why="The mean over a batch is the mean of the micro-batches' means only if each has equally many targets. With "
    "padding, or a short last window, they do not, and the loss and all gradients depend on the number of"
    " micro-batches. If gradients are divided twice, they are m times too small, and clipping and Adam hide it.",
    hints=(
        "Where is the loss already divided, and by which numbers? Which of them is right if micro-batches have"
        " different numbers of targets?",
        "Sums can be added, means cannot. head_loss returns a mean over the targets of y that are not IGNORE.",
        "loss_of: a mean times the number that it was divided by. scale_grads: is there anything left for torch to "
        "divide?",
    ),
)
def test_todo4_loss(student):
    with hinted("What turns a mean over some targets back into their sum?"):
        check_loss_of(student)
    with hinted("The gradients are already summed over micro-batches. Where are they divided, and by what?"):
        check_scale(student)


def check_loss_of(student):
    seed = student.draw("loss").randrange(1000)
    right = student.reference(serial_losses, seed=seed)
    (left,) = student.call(loss_on_rank, world=1, group=False, seed=seed).evidence
    for k, seen in enumerate(left):
        wanted, bfloat16 = right[k % len(right)], k >= len(right)
        n, loss = wanted["targets"], seen["loss"]
        told = f"of a micro-batch with {n} targets, loss_of{' in bfloat16' if bfloat16 else ''}"
        # bfloat16 has 8 bits; 0.3 % of a sum was measured, and 1 % of a gradient.
        rel, rel_grad = (2e-2, 5e-2) if bfloat16 else (REL, REL)
        expect(isinstance(loss, float), f"{told} returns no tensor of one number", "a scalar", loss)
        if not math.isclose(loss, wanted["loss"], rel_tol=rel, abs_tol=1e-6):
            what = (
                "the mean over its targets, not the sum"
                if n and math.isclose(loss, wanted["loss"] / n, rel_tol=rel)
                else "not the sum of its losses: word 0 is a target like any other"
                if n and math.isclose(loss, wanted["loss"] / n * wanted["positive"], rel_tol=rel)
                else "not the sum of its losses"
            )
            raise Wrong(f"{told} returns {what}", wanted["loss"], loss)
        scale = scale_of(wanted["grads"])
        for name, grad, wanted_grad in zip(("h", "the head's weight"), seen["grads"], wanted["grads"], strict=True):
            expect(grad.numel() > 0, f"{told} gives {name} no gradient", "a gradient", "none")
            what = f"{told}: the gradient of {name}"
            check_tensor(what, grad, wanted_grad, rel_grad, scale=scale, than="one process's")
    exact, rough = left[0]["loss"], left[len(right)]["loss"]
    expect(
        exact != rough,
        "with layers.bfloat16 the loss equals float32's to the last bit: the head does not compute in bfloat16",
        "bfloat16",
        "float32",
    )


def check_scale(student):
    draw, world = student.draw("schedule"), 3
    seed = draw.randrange(1000)
    # The flags let more than one round of p only in whole rounds.
    kinds = [
        ("gpipe", draw.randint(5, 7)),
        *([] if releases.lacks("2.11", "GPipe with fewer micro-batches than stages") else [("gpipe", 2)]),
        ("1f1b", draw.randint(world + 1, world + 2)),
        ("interleaved", 2 * world),
        ("zero-bubble", 2 * world),
    ]
    ranks = student.call(schedules_on_rank, world=world, seed=seed, kinds=kinds).evidence
    for number, (kind, m) in enumerate(kinds):
        told = f"with --schedule {kind} and {m} micro-batches on {world} ranks,"
        n_stages = world * (2 if kind == "interleaved" else 1)
        mine = [left[number] for left in ranks]
        check_work(told, mine, m, world)
        check_toys(told, mine, student.reference(serial_toy, seed=seed, n_stages=n_stages, m=m), m, world)


def check_work(told, ranks, m, world):
    for rank, seen in enumerate(ranks):
        for chunk, rows in enumerate(seen["rows"]):
            stage = rank + chunk * world
            expect(len(rows) > 0, f"{told} stage {stage} runs no forward pass", f"{m} micro-batches", "none", rank)
            expect(
                len(rows) > 1,
                f"{told} stage {stage} runs the whole batch at once: no other rank can work in the meantime",
                f"{m} micro-batches of 2 rows",
                f"{len(rows)} of {rows[0]} rows",
                rank,
            )
            expect(
                rows == [2] * m,
                f"{told} stage {stage} runs {len(rows)} micro-batches",
                f"{m} of 2 rows",
                f"{len(rows)} of {sorted(set(rows))} rows",
                rank,
            )
            for kind, name in (("W", "weight"),) if stage == 0 else (("W", "weight"), ("B", "input")):
                done = {k for event, where, k in map(tuple, seen["log"]) if event == kind and where == stage}
                expect(
                    len(done) == m,
                    f"{told} stage {stage} computes the gradient of its {name} for {len(done)} of {m} micro-batches",
                    m,
                    len(done),
                    rank,
                )


def check_toys(told, ranks, right, m, world):
    for rank, seen in enumerate(ranks):
        for chunk, grad in enumerate(seen["grads"]):
            stage, wanted = rank + chunk * world, right["grads"][rank + chunk * world]
            expect(grad.numel() > 0, f"{told} stage {stage} gets no gradient", "a gradient", "none", rank)
            divided = "divided by the number of micro-batches: the loss is a sum, so nothing may be scaled"
            wrongs = {divided: wanted / m, "divided by the number of micro-batches twice": wanted / m**2}
            than = "the gradient of the sum of all losses"
            check_tensor(f"{told} the gradient of stage {stage}", grad, wanted, REL, rank, wrongs=wrongs, than=than)
    seen = ranks[-1]["losses"]
    expect(
        len(seen) == m
        and None not in seen
        and all(math.isclose(a, b, rel_tol=REL) for a, b in zip(seen, right["losses"], strict=True)),
        f"{told} the last stage does not report the loss of each micro-batch",
        [round(loss, 4) for loss in right["losses"]],
        seen,
        world - 1,
    )


# ---------------------------------------------------------------------------------------------------
# TODO 5: a batch through the pipeline

MICRO = 6
# Stages, pipelines, stages a rank. Two pipelines have last stages on two ranks. In a pipeline of four stages some ranks
# have neither the first nor the last; in a pipeline of one stage, this one is both.
TRAINED = ((2, 2, 1), (4, 1, 1), (2, 2, 2), (1, 4, 1))


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


def serial_batches(seed):
    """The loss and the gradients of each pipeline's two batches."""
    return [[serial_sum(batch_seed(seed, copy, k)) for k in range(2)] for copy in range(4)]


def serial_sum(seed):
    model = made_model(0, **LONG)
    x, y = batch(seed, 2 * MICRO)
    loss = model(x, y) * (y != IGNORE).sum()
    loss.backward()
    return {"loss": loss.item(), "grads": named_gradients(model)}


@todo(
    5,
    minutes=20,
    since=Since(*SCHEDULES_SINCE),
    why=(
        "One call is the pipeline: it cuts, sends, receives, runs the passes in the schedule's order, and waits for the"
        " messages in flight. Only the last stage sees a loss. A rank that reports its own loss reports nothing"
        " meaningful, and a rank that counts targets whose losses it does not have makes the validation loss too small."
    ),
    hints=(
        "One call for the passes; then look at what it has left in the list, on this rank. Where the list is empty,"
        " what does the function return, and what is added?",
        "torch.stack makes one tensor of a list of scalars; on an empty list it fails. detach() cuts the graph off. "
        "Padding rows have no target that counts.",
        "Both parts: an empty list, the call with losses= and return_outputs=False, then the sum of the list, or zero. "
        "In an evaluation sum and count belong together: both are added on the same rank, or neither.",
    ),
)
def test_todo5_batches(student):
    right = student.reference(serial_evaluation)
    student.premise(abs(right[0] - right[1]) > 1e-3, "one set in place of the other")
    with hinted("One call for the passes. What is the sum of a list that may be empty, and may still have its graph?"):
        check_training(student)
    with hinted("The same without backward passes. On which ranks are the losses, and so the targets to be counted?"):
        check_evaluating(student, right)


def check_training(student):
    seed = student.draw("train").randrange(1000)
    rights = student.reference(serial_batches, seed=seed)
    grids = student.several(TRAINED, but=TRAINED[-1:])
    run = student.call(train_on_rank, world=4, seed=seed, grids=grids)
    for number, grid in enumerate(grids):
        second = cases(run.events)[4 * number + 2]  # in the first batch stages agree on shapes
        check_batches(grid, [left[number] for left in run.evidence], second, rights)


def check_batches(grid, ranks, second, rights):
    pp, data, many = grid
    on = f"{pp} × {data} ranks{with_stages(many)}"
    for k in range(2):
        for rank, left in enumerate(ranks):
            seen, right = left[k], rights[rank % data][k]
            told = f"on rank {rank} of {on}, batch {k + 1} of 2:"
            plain = seen["loss"] is not None
            hint = "The signature says Tensor, on each rank, with or without losses: train_epoch computes with it."
            expect(
                plain,
                f"{told} train_batch does not return a tensor of one number",
                "a tensor of one number",
                seen["kind"],
                rank,
                hint,
            )
            some = any(other[k]["grads"] for other in ranks)
            expect(some, f"{told} train_batch leaves no gradient", "gradients on all stages", "none", rank)
            check_trained(told, seen, right, rank)
            check_reported_loss(told, seen["loss"], right["loss"] if rank // data == pp - 1 else 0.0, many, rank)
        for copy in range(data):
            names = {name for left in ranks[copy::data] for name in left[k]["grads"]}
            lost = sorted(set(rights[copy][k]["grads"]) - names)
            expect(
                not lost,
                f"in batch {k + 1} of 2 on {on}, {lost[0] if lost else ''} gets no gradient",
                f"{len(rights[copy][k]['grads'])} gradients",
                f"{len(names)} gradients",
            )
    talk = collectives(second)
    expect(
        not talk,
        f"train_batch calls {talk[0].op if talk else ''}: between stages there are messages, and gradients are summed"
        " later, once per step",
        "messages alone",
        f"{len(talk)} collectives",
        talk[0].rank if talk else None,
    )


def check_trained(told, seen, right, rank):
    for name, grad in seen["grads"].items():
        goal = right["grads"][name]
        than = "the gradient of the sum of all losses"
        check_tensor(f"{told} the gradient of {name}", grad, goal, REL, rank, than=than)
    expect(
        not seen["graph"],
        f"{told} the value that train_batch returns still has its graph, which keeps all activations alive",
        "a detached tensor",
        "one with a graph",
        rank,
    )
    expect(
        not seen["kept"],
        f"{told} after train_batch the outputs of {seen['kept']} micro-batches are still in memory",
        "none: their gradients are made",
        f"{seen['kept']} outputs",
        rank,
        hint="schedule.step can return the outputs, or not. What does it keep them for?",
    )


def check_reported_loss(told, loss, wanted, many, rank):
    """`wanted` is 0 on a rank without the last stage."""
    same = math.isclose(loss, wanted, rel_tol=REL, abs_tol=1e-9)
    if wanted and not same:
        what = (
            "it is the mean over micro-batches"
            if math.isclose(loss, wanted / MICRO, rel_tol=REL)
            else "the last stage is this rank's second one"
            if many > 1 and loss == 0
            else "the last stage of its pipeline is on this rank"
            if loss == 0
            else "each target must count once"
        )
        raise Wrong(f"{told} train_batch does not return the sum of the losses: {what}", wanted, loss, rank)
    expect(same, f"{told} train_batch returns a loss, which only the rank of the last stage can know", 0, loss, rank)


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


def serial_evaluation():
    model, means = made_model(0, **LONG), []
    for length in LENGTHS:
        x, y = (torch.stack(parts) for parts in zip(*text(length), strict=True))
        means.append(model(x, y).item())
    return means


def check_evaluating(student, right):
    for grid, turns in (((2, 2), (1, 2)), ((3, 1), (1,))):
        run = student.call(evaluate_on_rank, world=math.prod(grid), grid=grid, turns=turns)
        for k, many in enumerate(turns):
            check_means(grid, many, right, [left[k] for left in run.evidence])


def check_means(grid, many, right, ranks):
    pp, told = grid[0], f"on {grid[0]} × {grid[1]} ranks{with_stages(many)},"
    for rank, left in enumerate(ranks):
        for length, mean, wanted in zip(LENGTHS, left["means"], right, strict=True):
            if not math.isclose(mean, wanted, rel_tol=REL):
                what = (
                    f"a loss {pp} times too small: do ranks without the last stage count targets?"
                    if math.isclose(mean * pp, wanted, rel_tol=REL)
                    else "no number: does the rank count targets whose second stage is the last?"
                    if many > 1 and math.isnan(mean)
                    else "not the loss that one process finds: is each target counted once, and nothing else?"
                )
                samples = f"{length} sample{'s' if length > 1 else ''}"
                raise Wrong(f"{told} evaluate() of {samples} gives rank {rank} {what}", wanted, mean, rank)
        expect(not left["grads"], f"{told} evaluate() leaves gradients", "none", "gradients", rank)


# ---------------------------------------------------------------------------------------------------
# TODO 6: gradients over the data axis

# Of each run: stages, copies, stages a rank. With three stages, messages for each are more than the two allowed.
GRIDS = (((2, 2, 3),), ((1, 3, 1), (3, 1, 2)))


def drawn_gradients(module, seed):
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(p.shape, generator=draw) for name, p in sorted(module.named_parameters())}


def drawn_for(stages, seed):
    """Gradients for all stages of a rank, by name."""
    return {name: grad for k, stage in enumerate(stages) for name, grad in drawn_gradients(stage, seed + k).items()}


def give_gradients(stages, grads):
    for name, parameter in parameters_of(stages).items():
        parameter.grad = grads[name].clone()


def drawn_targets(student, data):
    """Of each of so many copies; of three, one has none, as a short batch may."""
    draw = student.draw("targets", data)
    return shares(draw, data, most=40) if data > 2 else draw.sample(range(10, 40), data)


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


def serial_sums(grid, seeds, targets):
    """For each rank the sum of its row's gradients over the row's targets, and the results easily mistaken for it."""
    pp, data, turns = grid
    found = []
    for rank in range(pp * data):
        first, model = rank // data * data, made_model(0, **LONG)
        modules = [cut_stage(model, rank // data + k * pp, pp * turns) for k in range(turns)]
        row = [drawn_for(modules, seeds[first + d]) for d in range(data)]
        means = [{name: grad / n for name, grad in grads.items()} for grads, n in zip(row, targets) if n]
        found.append({
            "right": {name: sum(grads[name] for grads in row) / sum(targets) for name in row[0]},
            "own": {name: grad / max(1, targets[rank % data]) for name, grad in row[rank % data].items()},
            "means": {name: sum(mean[name] for mean in means) / data for name in row[0]},
            "sums": {name: sum(grads[name] for grads in row) for name in row[0]},
        })  # fmt: skip
    return found


@todo(
    6,
    minutes=15,
    why=(
        "Ranks that have the same layers must take the same step, or their weights drift apart. If they are summed in"
        " every micro-batch, m times as much is sent, and earlier sums are summed again: the gradients are wrong as"
        " well."
    ),
    hints=(
        "Which ranks have the same layers, and which axis of the mesh are they on? Apart from "
        "the gradients, what must be summed, so that all divide by the same number?",
        "torch.cat of flattened gradients makes one tensor, to which the number of targets can be appended; flat.split "
        "cuts it again, and view_as gives the shape back. dist.all_reduce takes group=….",
        "Flatten and join, the number of targets last; one all-reduce over the axis of the copies; divide the rest by"
        " the last element; copy each part back into its gradient, for all stages of the rank.",
    ),
)
def test_todo6_sum_gradients(student):
    targets = {str(data): drawn_targets(student, data) for data in (1, 2, 3)}
    for grids in GRIDS:
        world = grids[0][0] * grids[0][1]
        seeds, told = student.seeds(world), " and ".join(f"{pp} × {data}" for pp, data, _ in grids)
        try:
            run = student.call(sum_on_rank, world=world, seed=seeds, grids=grids, targets=targets)
        except Fault as fault:
            if fault.cause == "mismatch":
                fault.message += (
                    f". (on {told} ranks: ranks of other rows have other layers, and so other gradients; a sum goes "
                    "along a row, the data axis)"
                )
            raise
        for k, grid in enumerate(grids):
            right = student.reference(serial_sums, grid=grid, seeds=[*seeds], targets=targets[str(grid[1])])
            ranks = [left[k] for left in run.evidence]
            check_sums(grid, ranks, collectives(cases(run.events)[2 * k]), right)


def check_sums(grid, ranks, calls, right):
    wrong = (
        ("own", "its own samples' only: nothing is summed"),
        ("means", "the mean of the pipelines' means"),
        ("sums", "the sum, not divided by the targets"),
    )
    told = f"on {grid[0]} × {grid[1]} ranks{with_stages(grid[2])},"
    for rank, seen in enumerate(ranks):
        goals = right[rank]
        for name, goal in goals["right"].items():
            grad = seen["grads"].get(name, torch.zeros(0))
            expect(grad.numel() > 0, f"{told} {name} has no gradient any more", "a gradient", "none", rank)
            wrongs = {words: goals[kind][name] for kind, words in wrong}
            than = "the sum over its row, divided by the row's targets"
            check_tensor(f"{told} the gradient of {name}", grad, goal, REL, rank, wrongs=wrongs, than=than)
    for rank, seen in enumerate(ranks):
        changed = f"{told} the caller's n_targets is changed on rank {rank}"
        expect(seen["kept"], changed, "as it was", "the sum", rank)
        mine = [call for call in calls if call.rank == rank]
        foreign = [call for call in mine if call.world != grid[1]]
        expect(
            not foreign,
            f"{told} rank {rank} talks to {foreign[0].world if foreign else 0} ranks; some do not have its layers",
            f"{grid[1]} ranks",
            f"{foreign[0].world if foreign else 0} ranks",
            rank,
        )
    check_calls(told, calls, 2, "to sum the gradients of a step; one message for all is enough")


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


def whole_gradient(seed, pp, turns):
    model, found = made_model(0, **LONG), {}
    for rank in range(pp):
        found |= drawn_for([cut_stage(model, rank + k * pp, pp * turns) for k in range(turns)], seed + 10 * rank)
    return found


@todo(
    7,
    minutes=15,
    why=(
        "Each stage has a different part of the gradient, with a different norm. If each clips by its own norm, the"
        " parts are scaled by different numbers, and the step goes in a different direction: the model depends on the"
        " number of stages. And the norm is the first thing to look at when a loss jumps."
    ),
    hints=(
        "Each rank knows the norm of its part. What can be added instead of norms, and along which axis do the parts"
        " differ?",
        "get_total_norm takes a list of gradients; the tensor that it returns can be squared, all-reduced over a "
        "group, "
        "and rooted. clip_grads_with_norm_ takes a limit: without one it is math.inf.",
        "Square, sum over the ranks that have different layers, root; clip all own parameters with this one norm, by "
        "args.clip or without limit; return the norm as a float.",
    ),
)
def test_todo7_clip(student):
    seed, trials = student.draw("clip").randrange(1000), []
    for pp, data, turns in student.several(((2, 2, 2), (3, 1, 1))):
        grads = student.reference(whole_gradient, seed=seed, pp=pp, turns=turns)
        right = math.sqrt(sum(grad.double().square().sum().item() for grad in grads.values()))
        student.premise(CLIPS[0] < right / 2 and right < CLIPS[2], "gradients that are not clipped")
        trials.append(((pp, data, turns), grads, right))
    for grid, grads, right in trials:
        pp, data, turns = grid
        run = student.call(clip_on_rank, world=pp * data, seed=seed, grid=grid)
        for rank, left in enumerate(run.evidence):
            for clip, seen in zip(CLIPS, left, strict=True):
                check_clipped(
                    f"with --clip {clip:g} on {pp} × {data} ranks{with_stages(turns)}",
                    grid,
                    clip,
                    seen,
                    right,
                    grads,
                    rank,
                )


def check_clipped(told, grid, clip, seen, right, grads, rank):
    own = math.sqrt(sum(grads[name].double().square().sum().item() for name in seen["grads"]))
    wrongs = {"the norm of this rank's part": (own, "")}
    if grid[1] > 1:
        wrongs[f"the norm of this rank's part, counted {grid[1]} times"] = own * math.sqrt(grid[1]), ""
        wrongs[f"the norm with each stage counted {grid[1]} times"] = right * math.sqrt(grid[1]), ""
    check_norm(f"{told},", seen["norm"], right, clip, rank, REL, wrongs)
    factor = min(1.0, clip / right) if clip else 1.0
    for name, grad in seen["grads"].items():
        wrongs = {"not clipped": grads[name]} if factor < 1 else {}
        than = "the whole gradient's, scaled by one number"
        check_tensor(f"{told} the gradient of {name}", grad, grads[name] * factor, REL, rank, wrongs=wrongs, than=than)


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


@todo(
    8,
    minutes=15,
    why=(
        "To use a model you need a file that loads anywhere: on one device, in a script that knows nothing about"
        " stages. Rank 0's own weights are only some of the layers."
    ),
    hints=(
        "Which ranks have layers that rank 0 lacks, and where are they on the data axis? The others need not take"
        " part.",
        "All ranks of a group call gather_object, and no others; only its first rank passes a list, with a place for"
        " each. One dictionary per rank arrives.",
        "In rank 0's pipeline: gather own over the group of the stages; then, only on rank 0, one dictionary of all"
        " parts replaces own. save0 writes it, as before.",
    ),
)
def test_todo8_save(student):
    for grid in student.several(((2, 2, 2), (3, 1, 1))):
        run = student.call(save_on_rank, world=grid[0] * grid[1], grid=grid)
        one_writer(run)
        first = student.reference(serial_weights, seed=0)
        check_checkpoint(
            run.files["saved/model.pt"], {name: weight + 1.0 for name, weight in first.items()}, epoch=3, earlier=first
        )
        whole = 4 * sum(weight.numel() for weight in first.values())
        for rank, seen in enumerate(run.evidence[1:], start=1):
            expect(
                seen["peak"] < 0.9 * whole,
                f"on {grid[0]} × {grid[1]} ranks rank {rank} assembles the whole model, too: only rank 0 needs it",
                f"its own part, of {whole:,} bytes",
                f"{seen['peak']:,} bytes",
                rank,
            )


# ---------------------------------------------------------------------------------------------------
# TODO 9: the grid, and the samples; the law of the course

SET_SIZES = (38, 11, 9)

# SGD, since Adam turns rounding into error where a gradient is zero in theory; and a rate at which the weights move.
ARGV = (
    "--epochs 2 --batch-size 12 --seq-len 8 --dim 16 --heads 2 --layers 4 --optimizer sgd --lr 0.5 --weight-decay 0 "
    "--clip 0.5 --seed 5 --log-every 1"
).split()
RUNS = (
    (4, "--pp 2 --schedule interleaved --microbatches 6"),
    (4, "--pp 4 --schedule zero-bubble --microbatches 4"),
    (2, "--pp 2 --schedule 1f1b --microbatches 3"),
)
PIPELINES = (2, 3, 6, 1)  # --pp on 6 ranks
KEPT = ("held", "steps", "still_in_a_group", "files")  # of a run: no weights, which lie in stages


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


def serial_run(student, argv=ARGV):
    return student.serial(["--data", "data", "--out", "out", *argv], corpus(student))


def same_weights(told, serial, run, out, pp):
    """The last checkpoint holds the serial run's last weights, under their names."""
    expect(
        f"{out}/model-final.pt" in run.files,
        f"{told} there is no model-final.pt",
        "model-final.pt",
        sorted(run.files)[:4],
    )
    check_last_weights(told, run.files[f"{out}/model-final.pt"], serial.evidence[0]["weights"])


@todo(
    9,
    minutes=25,
    needs=(1, 2, 3, 4, 5, 6, 7, 8),
    why=(
        "A rank's place in the grid decides which links its messages use: an all-reduce of all gradients between nodes"
        " can take longer than the pipeline saves. And if each rank reads its own samples, the loss compares"
        " predictions for one text with the words of another: it falls to the loss of a model that knows only which"
        " words are frequent, and stays there."
    ),
    hints=(
        "Count stages and copies: how long is each axis? Then ask of each axis how much it sends, whether anything can"
        " be computed meanwhile, and whether its ranks read the same samples.",
        "init_device_mesh(device_type, sizes, mesh_dim_names=names): the last axis varies fastest from rank to rank. A "
        "sampler needs two numbers, which both come from one axis of the mesh.",
        "The axis with the neighbours comes last in sizes and in names. For all three samplers: how many parts there"
        " are, and which one is this rank's, in place of the world size and the rank.",
    ),
)
def test_todo9_grid(student):
    serial = serial_run(student)
    must_move(student, serial)
    with hinted("Which ranks are neighbours in your grid, and what do they send each other?"):
        world = 6
        for rank, meshes in enumerate(student.call(mesh_on_rank, world=world, pipelines=PIPELINES).evidence):
            for pp, mesh in zip(PIPELINES, meshes, strict=True):
                check_mesh(f"with --pp {pp} on {world} ranks", mesh, pp, world // pp, rank)
    with hinted("All ranks of a pipeline read the same samples. How many parts are there, then?"):
        check_samplers(student)
    with hinted("Each TODO is right on its own. What is the first number that differs, and which TODO computes it?"):
        check_whole_runs(student, serial)


def check_mesh(told, mesh, pp, data, rank):
    axes = mesh["axes"]
    names = sorted(axes)
    kind = mesh["kind"]
    expect(bool(axes), f"{told} make_mesh returns no mesh with names", "a DeviceMesh", kind, rank)
    expect(
        names == ["data", "pp"],
        f"{told} the axes are not named pp and data, and they are looked up",
        ["data", "pp"],
        names,
        rank,
    )
    expect(
        len(axes["pp"]) == pp,
        f"{told} the axis pp has {len(axes['pp'])} ranks, and data {len(axes['data'])}",
        f"{pp} stages, {data} pipelines",
        f"{len(axes['pp'])} stages, {len(axes['data'])} pipelines",
        rank,
    )
    copies, stages = [rank // data * data + d for d in range(data)], [rank % data + k * data for k in range(pp)]
    expect(
        sorted(axes["data"]) == copies,
        f"{told} the ranks that sum gradients with rank {rank} are not its neighbours: the largest messages go between"
        " nodes",
        copies,
        axes["data"],
        rank,
    )
    expect(
        sorted(axes["pp"]) == stages and axes["pp"] == stages and axes["data"] == copies,
        f"{told} the ranks along an axis are not in ascending order, as in a process group: stages would send to the"
        " wrong ranks",
        {"pp": stages, "data": copies},
        axes,
        rank,
    )


def check_samplers(student):
    draw = student.draw("samplers")
    seed = draw.randrange(1000)
    for pp, data in (grid for grid in rectangles(draw, most=6) if grid[0] > 1):  # a pipeline has two stages or more
        told = f"on {pp} × {data} ranks"
        ranks = student.call(samplers_on_rank, world=pp * data, seed=seed, grid=(pp, data)).evidence
        for rank, seen in enumerate(ranks):
            listed = isinstance(seen, list)
            expect(listed, f"{told} make_samplers does not return three samplers", "three", seen, rank)
            head = ranks[rank % data]
            for name, mine, its in zip(("training", "validation", "test"), seen, head, strict=True):
                expect(
                    mine == its,
                    f"{told} ranks {rank % data} and {rank} are stages of one pipeline, and read different {name} "
                    f"samples",
                    its[:6],
                    mine[:6],
                    rank,
                )
        for name, size, k in (("validation", SET_SIZES[1], 1), ("test", SET_SIZES[2], 2)):
            each_once(name, [ranks[d][k] for d in range(data)], size)
        check_dealt(told, [ranks[d][0] for d in range(data)], SET_SIZES[0], seed, batch=4 * data)


def check_whole_runs(student, serial):
    world = 4
    losses = [line["loss"] for line in reported(serial) if line["kind"] == "step"]
    psi = sum(weight.numel() for weight in serial.evidence[0]["weights"].values())
    grids = student.several((ranks, flags) for ranks, flags in RUNS if splits_backward() or "zero-bubble" not in flags)
    runs = [[ranks, [*ARGV, *flags.split()]] for ranks, flags in grids]
    run = student.call(mains_on_rank, world=world, group=None, runs=runs, data=corpus(student), keep=KEPT)
    for case, (ranks, flags) in enumerate(grids):
        told, pp = f"on {ranks} ranks with {flags}", int(flags.split()[1])
        left = [mine[case] for mine in run.evidence if mine[case]]
        for rank, seen in enumerate(left):
            check_rank_of_run(told, rank, seen, len(losses), psi)
        total = sum(seen["held"] for seen in left) * pp // ranks
        together = f"{told} the stages of the pipelines hold {total:,} weights together"
        expect(total == psi, together, f"{psi:,}", f"{total:,}")
        same_report(f"{told},", reported(serial), reported(run, f"out-{case}"))
        same_weights(f"{told},", serial, run, f"out-{case}", pp)
        # The first stage sends the stream (B, T, D) of each pipeline's samples, the last one its gradient, others both.
        due = len(losses) * 4 * 12 // (ranks // pp) * 8 * 16
        check_parts_travel(told, cases(run.events)[case][:ranks], due, len(losses))


def check_rank_of_run(told, rank, seen, steps, psi):
    made = f"{told} the optimizer of rank {rank} steps {seen['steps']} times"
    expect(seen["steps"] == steps, made, steps, seen["steps"], rank)
    expect(
        seen["held"] < psi,
        f"{told} the optimizer of rank {rank} holds all {psi:,} weights",
        "its stages alone",
        f"{seen['held']:,}",
        rank,
    )
    stays = f"{told} rank {rank} ends without leaving the process group"
    expect(not seen["still_in_a_group"], stays, "no group", "a group", rank)
