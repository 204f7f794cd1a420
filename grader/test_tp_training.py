"""Checks and hints of tp_training.

| TODO | achievement | evidence | needs |
| --- | --- | --- | --- |
| 1 | the grid, and its samples | make_mesh() for several --tp on 4 and 6 ranks; make_samplers() over two epochs |  |
| 2 | the norm over both axes | clip_gradients() on 2 × 2 ranks, norms whole and cut; bytes sent |  |
| 3 | the plan of a block | a block on 2 and 3 ranks: output, gradients, rows held, bytes each way |  |
| 4 | the vocabulary cut | loss, logits and each gradient on 2 and 3 ranks; rows held; logits never sent |  |
| 5 | positions of a cut stream | the same, with the stream cut along the sequence |  |
| 6 | the stream cut, and its norms | split() as a whole: each gradient, the stream's length; main() | 1 – 5 |

Models here are split and sharded by the check itself, unless the check is about that: so a TODO can be judged before or
without the others. They are in float64 where no data type is part of the question: there rounding hides nothing.
"""

import math
from fnmatch import fnmatch

import torch

from grader.kit import (
    Since,
    EXACT,
    SAME_WEIGHTS,
    Private,
    attempt,
    cases,
    check_checkpoint,
    check_dealt,
    check_norm,
    check_parts,
    check_refused,
    check_sent,
    check_tensor,
    corpus,
    drawn_batch,
    drawn_model,
    drawn_sizes,
    each_once,
    elements,
    expect,
    gradients,
    hinted,
    kind_of,
    losses,
    mains_on_rank,
    mark,
    must_have_gradients,
    must_move,
    parameters,
    rectangles,
    reported,
    same_losses,
    same_report,
    sent_by,
    todo,
    together,
    ring_bytes,
    check_parts_travel,
)
from utils.data import IGNORE, Windows
from utils.model import Block
from utils.releases import CUT_TWICE_SINCE

BUILDS = "DTensor's plans, FSDP over the other axis; a model that one device cannot hold"

# Here, a rank's imports of torch.distributed.* are inside functions: on the ranks they are loaded already, and the
# judge, who would wait for them for a second, needs none.

WORDS = (97, 101, 103)  # how many there are


def made_args(code, *flags):
    return code.parse_args(["--batch-size", "12", "--seq-len", "12", "--dim", "24", "--heads", "12", *flags])


def made_mesh(data, tensor):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (data, tensor), mesh_dim_names=("data", "tensor"))


def layouts(cut):
    from torch.distributed.tensor import Replicate, Shard

    return Shard(1) if cut else Replicate()


# The check's own plan; a check leaves out of it what it asks of the student.


def own_blocks(cut):
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel

    def enter():
        return PrepareModuleInput(input_layouts=layouts(cut), desired_input_layouts=Replicate())

    plan = {
        "attention": enter(),
        "mlp": enter(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=layouts(cut)),
    }
    plan |= {f"attention.{name}": ColwiseParallel() for name in "qkv"} | {
        "attention.out": RowwiseParallel(output_layouts=layouts(cut))
    }
    return {f"blocks.*.{name}": style for name, style in plan.items()}


def own_norms(cut):
    from torch.distributed.tensor.parallel import SequenceParallel

    return (
        {name: SequenceParallel() for name in ("blocks.*.attention_norm", "blocks.*.mlp_norm", "norm")} if cut else {}
    )


def own_words(cut):
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    return {
        "token_embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=layouts(cut)),
        "head": ColwiseParallel(input_layouts=layouts(cut), output_layouts=Replicate()),
    }


def own_positions(cut):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import RowwiseParallel

    return {"position_embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0))} if cut else {}


def own_loss(model):
    """From gathered logits, written in a different way from the student's."""
    from torch.distributed.tensor import DTensor, Replicate

    def loss(h, weight, y, ignore):
        h = h if isinstance(h, DTensor) else DTensor.from_local(h, weight.device_mesh, [Replicate()], run_check=False)
        logits = (h.redistribute(placements=[Replicate()]) @ weight.T).redistribute(placements=[Replicate()]).to_local()
        total = torch.nn.functional.cross_entropy(
            logits.flatten(0, -2), y.flatten(), ignore_index=ignore, reduction="sum"
        )
        return total / (y != ignore).sum().clamp(min=1)

    model.head_loss = loss


def split_by_check(model, mesh, cut):
    from torch.distributed.tensor.parallel import parallelize_module

    parallelize_module(model, mesh["tensor"], own_blocks(cut) | own_norms(cut) | own_words(cut) | own_positions(cut))
    own_loss(model)
    return model


def shard_by_check(model, mesh):
    from torch.distributed.fsdp import fully_shard

    for unit in (*model.blocks, model):
        fully_shard(unit, mesh=mesh["data"])
    return model


def serial_step(sizes, seeds):
    """Loss, logits of the first batch, weights and gradients of one process, on all batches together."""
    model = drawn_model(0, sizes)
    batches = [drawn_batch(seed, sizes) for seed in seeds]
    # A rank's loss is the mean over its own tokens, and the gradients of rows are averaged.
    loss = sum(model(x, y) for x, y in batches) / len(batches)
    loss.backward()
    with torch.no_grad():
        logits = model(batches[0][0])
    return {"loss": loss.item(), "logits": logits, "weights": parameters(model), "grads": gradients(model)}


def problem_with(plan, model):
    """Why a plan cannot be used; "" if it can."""
    from torch.distributed.tensor.parallel import ParallelStyle

    if not isinstance(plan, dict):
        return f"it is of type {type(plan).__name__}, and not a dictionary"
    for name, style in plan.items():
        if not isinstance(style, ParallelStyle):
            return f"for {name!r} it has a {type(style).__name__}, and not a ParallelStyle"
        if not any(fnmatch(module, str(name)) for module, _ in model.named_modules()):
            return f"it names {name!r}, which is not there"
    return ""


# ---------------------------------------------------------------------------------------------------
# TODO 1: the grid, and the samples


def mesh_on_rank(code, rank, world, tps):
    meshes = []
    for tp in tps:
        mesh = code.make_mesh(torch.device("cpu"), world, made_args(code, "--tp", str(tp)))
        if not hasattr(mesh, "mesh"):
            return [{"type": type(mesh).__name__}]
        meshes.append({"names": list(mesh.mesh_dim_names or ()), "ranks": mesh.mesh.tolist()})
    return meshes


def check_mesh(student):
    for world, tps in student.several(((4, (1, 2, 4)), (6, (2, 3)))):
        for rank, meshes in enumerate(student.call(mesh_on_rank, world=world, tps=tps).evidence):
            expect("type" not in meshes[0], "make_mesh returns no mesh", "a DeviceMesh", meshes[0].get("type"), rank)
            for tp, mesh in zip(tps, meshes, strict=True):
                seen, told = mesh["ranks"], f"with --tp {tp} on {world} ranks"
                right = [list(range(row, row + tp)) for row in range(0, world, tp)]
                expect(
                    all(isinstance(row, list) for row in seen),
                    f"{told} the ranks are not in a grid, with rows and columns",
                    right,
                    seen,
                    rank,
                    "A grid has two axes, also where one of them has a single entry. How long is each?",
                )
                axes = " and ".join(mesh["names"]) or "nothing"
                expect(
                    mesh["names"] == ["data", "tensor"],
                    f"{told} the axes of the grid are called {axes}, in this order",
                    ["data", "tensor"],
                    mesh["names"],
                    rank,
                    LAST_AXIS,
                )
                size, wanted = f"{len(seen)} × {len(seen[0])}", f"{world // tp} × {tp}"
                expect(
                    size == wanted,
                    f"{told} the grid is {size}: each layer is on {len(seen[0])} rank{'s' if len(seen[0]) > 1 else ''}",
                    wanted,
                    size,
                    rank,
                )
                expect(seen == right, f"{told} the ranks of a row do not have consecutive numbers", right, seen, rank)


LAST_AXIS = (
    "One axis divides the samples, the other one the layers. Which of the two needs consecutive ranks, and so comes"
    " last?"
)


def samplers_on_rank(code, rank, world, grid, sizes, seed):
    sets = tuple(Windows(torch.arange(size), 1, 0, drop_last=True) for size in sizes)
    args = made_args(code, "--seed", str(seed))
    args.tp = grid[1]  # whether it divides the heads is not asked here
    samplers = code.make_samplers(sets, made_mesh(*grid), args)
    if (
        not isinstance(samplers, (tuple, list))
        or len(samplers) != 3
        or any(not hasattr(sampler, "__iter__") for sampler in samplers)
    ):
        return {"type": type(samplers).__name__}
    epochs = []
    for epoch in (0, 1):
        samplers[0].set_epoch(epoch)
        epochs.append(list(map(int, samplers[0])))
    return {"train": epochs, "validation": list(map(int, samplers[1])), "test": list(map(int, samplers[2]))}


@todo(
    1,
    minutes=25,
    why="Tensor parallelism sends in every layer and waits for it, so its ranks belong on one node. The gradients of "
    "data parallelism are sent once a step, during the computation: they can cross the slow links between nodes. And"
    " the ranks of a row compute one result: with different samples, each adds a part of a different sum. Shapes fit,"
    " nothing fails, the loss falls a little, and the model is useless.",
    hints=(
        "How many rows are there, if each has args.tp ranks? init_device_mesh fills the grid row by row. And two ranks "
        "that split a layer must read the same samples: which of their two coordinates is the same?",
        "The last axis of init_device_mesh(device.type, (rows, columns), mesh_dim_names=…) takes consecutive ranks. "
        "The samplers' rank is a coordinate on one axis, and their world size that axis's length.",
        "DistributedSampler(train, num_replicas=…, rank=…, shuffle=True, seed=args.seed, drop_last=True) and "
        "ShardSampler(validation, rank=…, world_size=…): both numbers come from the mesh, from the same axis.",
    ),
)
def test_todo1_layout(student):
    check_mesh(student)
    check_samplers(student)


def check_samplers(student):
    draw = student.draw("samplers")
    sizes = (draw.choice((35, 37, 41)), draw.choice((11, 13)), draw.choice((7, 13)))
    seed = draw.randrange(100)
    for rows, tp in student.several(grid for grid in rectangles(draw, most=6) if grid[1] > 1):  # 1: rows are ranks
        batch, told = 4 * rows, f"on {rows} × {tp} ranks"
        ranks = student.call(samplers_on_rank, world=rows * tp, grid=(rows, tp), sizes=sizes, seed=seed).evidence
        for rank, mine in enumerate(ranks):
            expect(
                "type" not in mine,
                f"{told} make_samplers returns a {mine.get('type')}",
                "three samplers",
                mine.get("type"),
                rank,
            )
            first = ranks[rank - rank % tp]
            for name in ("train", "validation", "test"):
                expect(
                    mine[name] == first[name],
                    f"{told} ranks {rank - rank % tp} and {rank} split each layer, and read different {name} samples",
                    first[name],
                    mine[name],
                    rank,
                    "Ranks that split a layer work on the same samples. How many different readers are there, then, and"
                    " which coordinate of the grid numbers them?",
                )
        row_by_row = ranks[::tp]
        for name, size in zip(("validation", "test"), sizes[1:], strict=True):
            with hinted(
                "Each of these samples is read in one row, once. Which sampler sees to that, and which two numbers"
                " does it need?"
            ):
                each_once(name, [mine[name] for mine in row_by_row], size)
        with hinted(
            "In each step, the rows together train on what one process would. What determines the order, and what is"
            " dropped?"
        ):
            check_dealt(told, [mine["train"] for mine in row_by_row], sizes[0], seed, batch)


# ---------------------------------------------------------------------------------------------------
# TODO 2: the norm


def by_row(student, rows, tp):
    """A separate seed for each row of ranks: the ranks of a row read the same samples."""
    seeds = student.draw("rows", rows, tp).sample(range(1 << 40), rows)
    return seeds, Private([seeds[rank // tp] for rank in range(rows * tp)])


def clip_on_rank(code, rank, world, grid, sizes, seed, cuts, clips):
    seen = []
    for cut in cuts:
        mesh = made_mesh(*grid)
        model = shard_by_check(split_by_check(drawn_model(0, sizes), mesh, cut), mesh)
        model(*drawn_batch(seed, sizes)).backward()
        whole = [p.grad for p in model.parameters()]
        for clip in clips:
            for p, grad in zip(model.parameters(), whole, strict=True):
                p.grad = grad.clone()
            mark()
            norm = code.clip_gradients(model, made_args(code, "--clip", str(clip)))
            mark()
            seen.append({"norm": norm if isinstance(norm, (int, float)) else kind_of(norm), "grads": gradients(model)})
    return seen


@todo(
    2,
    minutes=20,
    why=(
        "The norm of a part is too small; and a parameter that every rank of a row holds counts args.tp times"
        " if all are summed. Adam hides either: it divides by the size of the gradient. With SGD, or a "
        "clipped step, the model depends on the number of ranks."
    ),
    hints=(
        ("Sort the parameters by p.device_mesh. If you have the norm of each group, what is the norm of all?"),
        (
            "nn.utils.get_total_norm(gradients) of DTensors on one mesh is a DTensor; full_tensor() makes it "
            "the norm of the whole. Norms combine like the sides of a right angle."
        ),
        (
            "torch.stack(norms).norm() combines them. Then nn.utils.clip_grads_with_norm_(parameters, "
            "max_norm, norm) once for each group, with the same norm, and with math.inf for --clip 0."
        ),
    ),
)
def test_todo2_clip(student):
    rows, tp = 2, 2
    sizes = drawn_sizes(student, tp, "clip", words=WORDS, layers=1)
    seeds, private = by_row(student, rows, tp)
    grads = student.reference(serial_step, sizes=sizes, seeds=seeds)["grads"]
    must_have_gradients(student, grads)
    right = math.sqrt(sum(grad.square().sum().item() for grad in grads.values()))
    cuts = student.several((False, True))
    clips = student.several((0.8 * right, 0.0, 4 * right))  # the first: more than the norm of one of two groups
    how = dict(grid=(rows, tp), sizes=sizes, seed=private, cuts=cuts, clips=clips)
    run = student.call(clip_on_rank, world=rows * tp, **how)
    events = cases(run.events)[::2]  # from clip_gradients' beginning to its end
    whole = 8 * sum(grad.numel() for grad in grads.values())
    for case, (cut, clip) in enumerate((cut, clip) for cut in cuts for clip in clips):
        held = "norms that all ranks of a row hold" if cut else "layers cut"
        told = f"with --clip {clip:.3g}, a gradient of norm {right:.4g} and {held}, on 2 × 2 ranks"
        for rank, mine in enumerate(run.evidence):
            check_norm(told, mine[case]["norm"], right, clip, rank)
        factor = min(1.0, clip / right) if clip else 1.0
        with hinted(
            "The norm is right. By which single number are the gradients of all groups scaled, and when are they left"
            " alone?"
        ):
            check_parts(
                f"{told}, after clip_gradients",
                [mine[case]["grads"] for mine in run.evidence],
                {name: grad * factor for name, grad in grads.items()},
                rel=1e-5,
            )
        hint = "A norm is one number, and each rank can take the squares of its own part. Which tensor is made whole?"
        check_sent(told, events[case], whole / 8, why="assembles whole gradients to find a norm", hint=hint)


# ---------------------------------------------------------------------------------------------------
# TODO 3: a block


def made_block(sizes):
    torch.manual_seed(0)
    block = Block(sizes["dim"], sizes["heads"], 0.0).double()
    with torch.no_grad():
        for p in block.parameters():
            p += 0.3 * torch.randn_like(p)
    draw = torch.Generator().manual_seed(1)
    x, grad = torch.randn(2, sizes["batch"], sizes["length"], sizes["dim"], dtype=torch.float64, generator=draw)
    return block, x, grad


def serial_block(sizes):
    block, x, grad = made_block(sizes)
    x.requires_grad_()
    y = block(x)
    y.backward(grad)
    return {"y": y, "x.grad": x.grad, "grads": gradients(block)}


LAYOUTS = (
    "Follow the stream from module to module. In which layout does each one pass it on, and in which does the next one"
    " expect it?"
)
BETWEEN = (
    "Between two products nothing has to be sent, if they are cut in the right order. What does each layer pass on, and"
    " must it be changed for the next one?"
)
SUMMED = (
    "The forward pass is right. Each rank has a summand of the input's gradient: which entry of the plan adds them up?"
)


def block_on_rank(code, rank, world, sizes, cut):
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import parallelize_module

    mesh = made_mesh(1, world)["tensor"]
    block, x, grad = made_block(sizes)
    plan = code.block_plan(layouts(cut))
    if problem := problem_with(plan, block):
        return {"problem": problem}

    def step():
        nonlocal x, grad
        norms = {name: style for name, style in own_norms(cut).items() if name != "norm"}
        parallelize_module(block, mesh, plan | {name.removeprefix("blocks.*."): style for name, style in norms.items()})
        if cut:
            x, grad = (tensor.chunk(world, dim=1)[rank].contiguous() for tensor in (x, grad))
        x.requires_grad_()
        mark()
        y = block(x)
        shape = list(y.shape)
        y = y.to_local() if isinstance(y, DTensor) else y
        mark()
        if y.shape == grad.shape:
            y.backward(grad)
        mark()
        return {
            "y": y,
            "shape": shape,
            "x.grad": x.grad if x.grad is not None else torch.zeros(0),
            "grads": gradients(block),
            "held": elements(p for name, p in block.named_parameters() if not name.split(".")[0].endswith("norm")),
        }

    return attempt(step)


@todo(
    3,
    minutes=25,
    why=(
        "Two consecutive products, the first cut by columns, the second by rows, need no message in between:"
        " Megatron's idea (arXiv:1909.08053). A layer then sends 8 B T D (t-1)/t numbers, forward and backward. If q,"
        " k and v each sum their own gradient, a layer sends 1.5 times as much."
    ),
    hints=(
        (
            "The plan maps names of the block's layers to styles: ColwiseParallel or RowwiseParallel. How should"
            " attention and mlp as a whole receive their input?"
        ),
        (
            "A row-parallel layer's outputs are summed, and leave as output_layouts says. PrepareModuleInput "
            "on a whole module redistributes its input once, for all layers inside."
        ),
        (
            "Eight entries: two modules, four column-parallel layers, two row-parallel ones. `layout` is the layout"
            " of the stream before and after; inside, every rank needs the whole stream."
        ),
    ),
)
def test_todo3_block(student):
    rights, trials = {}, student.several(((2, False), (3, True)))
    for world, _ in trials:
        rights[world] = student.reference(serial_block, sizes=drawn_sizes(student, world, "block", words=WORDS))
        must_have_gradients(student, rights[world]["grads"])
    for world, cut in trials:
        sizes = drawn_sizes(student, world, "block", words=WORDS)
        run = student.call(block_on_rank, world=world, sizes=sizes, cut=cut)
        ranks, right = run.evidence, rights[world]
        told = f"block_plan({'Shard(1)' if cut else 'Replicate()'}) on {world} ranks"
        for rank, seen in enumerate(ranks):
            expect(
                "problem" not in seen,
                f"block_plan returns no plan: {seen.get('problem')}",
                "{name: style, …}",
                seen.get("problem"),
                rank,
            )
        with hinted(LAYOUTS):
            check_refused(told, "the block", ranks)
        weights = 12 * sizes["dim"] ** 2
        for rank, seen in enumerate(ranks):
            expect(
                seen["held"] <= weights / world,
                f"{told}: rank {rank} holds {seen['held']:,} of the {weights:,} elements of q, k, v, out, up and down: "
                f"not all are cut",
                f"{weights // world:,}",
                f"{seen['held']:,}",
                rank,
                "A layer that the plan does not name is whole on each rank. Which of the six matrices are named?",
            )
            # Of a cut stream a rank has its tokens, else all.
            y, dx = (right[name].chunk(world, dim=1)[rank] if cut else right[name] for name in ("y", "x.grad"))
            than = "what one process has"
            check_tensor(
                f"{told}: the block's output on rank {rank}", seen["y"], y, EXACT, rank, than=than, hint=LAYOUTS
            )
            what = f"{told}: the gradient of the block's input on rank {rank}"
            check_tensor(what, seen["x.grad"], dx, EXACT, rank, than=than, hint=SUMMED)
        with hinted(SUMMED):
            check_parts(told, [seen["grads"] for seen in ranks], right["grads"])
        stream = 8 * sizes["batch"] * sizes["length"] * sizes["dim"]
        an_all_reduce = 2 * (world - 1) / world * stream
        norms = 8 * 4 * sizes["dim"] * 2 if cut else 0  # the gradients of the norms, which the check itself adds up
        for name, events in zip(("forward", "backward"), cases(run.events), strict=False):
            for rank in range(world):
                much = sent_by(events[rank], rank)
                expect(
                    much <= 2.01 * an_all_reduce + norms,
                    f"{told}: rank {rank} sends {much:,.0f} bytes in the {name} pass of a block, as in "
                    f"{much / an_all_reduce:.1f} all-reduces "
                    "of the stream",
                    f"{2 * an_all_reduce:,.0f} bytes, as in 2",
                    f"{much:,.0f} bytes",
                    rank,
                    BETWEEN if name == "forward" else "",
                )


# ---------------------------------------------------------------------------------------------------
# TODOs 4 to 6: the whole model


def model_on_rank(code, rank, world, sizes, seed, cut, asked, tp):
    """One step of a model, on each row the same; the plan of what is `asked` is the student's, the others are the
    check's.
    """
    from torch.distributed.tensor.parallel import parallelize_module

    mesh = made_mesh(world // tp, tp)
    model = drawn_model(0, sizes)
    x, y = drawn_batch(seed, sizes)
    streams = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda block, args: streams.append(list(args[0].shape)))

    if asked == "all":

        def split():
            # The layout is one thing, what is recomputed another.
            flags = ["--sequence-parallel", "--recompute"] if cut else []
            code.split(model, mesh["tensor"], made_args(code, "--tp", str(tp), *flags))
    else:
        name, own = {"words": ("ends_plan", own_words), "positions": ("position_plan", own_positions)}[asked]
        plan = getattr(code, name)(layouts(cut))
        if problem := problem_with(plan, model):
            return {"problem": f"{name} returns no plan: {problem}"}
        others = [own_blocks, own_norms, own_words, own_positions]
        others.remove(own)

        def split():
            given = {}
            for other in others:
                given |= other(cut)
            parallelize_module(model, mesh["tensor"], given | dict(plan))
            if asked == "words":
                code.share_loss(model)
            else:
                own_loss(model)

    def step():
        split()
        tokens = []  # that the last norm passes on
        model.norm.register_forward_hook(lambda norm, args, h: tokens.append(h.shape[1]))
        mark()
        try:
            loss = model(x, y)
        except Exception:
            if asked == "all" and tokens and tokens[0] < x.shape[1]:  # the line that fails is TODO 4's, and is right
                return {"refused": f"the last norm passes on {tokens[0]} of {x.shape[1]} tokens, as a plain tensor"}
            raise
        mark()
        loss.backward()
        mark()
        left = {"loss": float(loss), "dtype": str(loss.dtype), "grads": gradients(model), "streams": list(streams)}
        with torch.no_grad():
            left["nothing"] = float(model(x, torch.full_like(y, IGNORE)))
            left["logits"] = model(x)
            if asked == "words":
                left |= words_apart(model, sizes, seed, mesh["tensor"], cut, y)
        return left

    return attempt(step)


def stream_of(seed, sizes):
    draw = torch.Generator().manual_seed(seed + 1)
    return torch.randn(sizes["batch"], sizes["length"], sizes["dim"], dtype=torch.float64, generator=draw)


def words_apart(model, sizes, seed, mesh, cut, y):
    """The head on a plain stream: a rank has its own tokens where the stream is cut; the loss with another weight."""
    from torch.distributed.tensor import DTensor

    h = stream_of(seed, sizes)
    mine = h.chunk(mesh.size(), dim=1)[mesh.get_local_rank()].contiguous() if cut else h
    weight, plain = model.head.weight, {"head": model.head(mine)}
    if not isinstance(weight, DTensor):
        return plain
    more = {"run_check": False, "shape": weight.shape, "stride": weight.stride()}
    double = DTensor.from_local(2 * weight.to_local(), weight.device_mesh, weight.placements, **more)
    entering = DTensor.from_local(mine, mesh, [layouts(cut)]) if cut else mine
    loss = model.head_loss(entering, double, y, IGNORE)
    return plain | {"double": float(loss), "double_dtype": str(getattr(loss, "dtype", None))}


def digits(dtype):
    """How near a loss can be to the serial one in this dtype."""
    return 1e-6 if dtype == "torch.float32" else EXACT


def serial_words(sizes, seed):
    """What `words_apart` should find."""
    weight, h, (_, y) = drawn_model(0, sizes).head.weight.detach(), stream_of(seed, sizes), drawn_batch(seed, sizes)
    double = torch.nn.functional.cross_entropy((h @ (2 * weight.T)).flatten(0, 1), y.flatten(), ignore_index=IGNORE)
    return {"head": h @ weight.T, "double": double.item()}


def serial_model(student, world, asked):
    """Sizes, seed, and what one process does."""
    sizes = drawn_sizes(student, world, asked, words=WORDS)
    seed = student.draw("batch", asked).randrange(1 << 40)
    right = student.reference(serial_step, sizes=sizes, seeds=[seed])
    must_have_gradients(student, right["grads"])
    return sizes, seed, right


# Hints for parts of a model's check that the first hint of its TODO is not about.
HINTS = {
    ("words", "refused"): (
        "Follow the stream to the loss. In which layout, and as a plain tensor or a DTensor, does each step expect it?"
    ),
    ("words", "loss"): (
        "Both tables are one half, share_loss is the other. Which rows of the weight does the loss get, which group,"
        " and"
        " how many words?"
    ),
    ("words", "gradients"): (
        "The loss is right. Which tensors are made whole on their way into the loss, and what becomes of their"
        " gradients"
        " on the way back?"
    ),
    ("all", "parted"): (
        "The ranks hold parts of different sizes. The stream is (B, T, D): along which of its dimensions is it cut?"
    ),
    ("positions", "whole"): (
        "Here the stream is not cut: every rank uses all rows of the table. Is there anything to plan?"
    ),
    ("all", "whole"): (
        "Here the flag is not given. What is the stream's placement then, and do the norms need anything?"
    ),
    "nothing": "Here no target counts. How does the loss know which ones do, and by what is the sum divided?",
    "logits": "Every rank needs the logits of all words where the model has no targets. In which layout do they leave?",
    "head": "Here the stream is a plain tensor. What does the head's style take a plain tensor for?",
    "weight": "The loss is given a weight. Does it use that one, or one that it knows from before?",
    "sent": "From the other ranks, the loss needs three numbers for each token. Which larger tensor is made whole?",
}


def check_model(student, serial, tp, cut, asked, told, what, rows=1):
    """Loss, gradients and logits are the serial model's; returns the run and the sizes."""
    sizes, seed, right = serial
    parted = hinted(HINTS.get((asked, "parted"), ""), "mismatch")
    with hinted(HINTS.get((asked, "refused"), ""), "crash"), parted:
        run = student.call(model_on_rank, world=rows * tp, sizes=sizes, seed=seed, cut=cut, asked=asked, tp=tp)
    ranks = run.evidence
    with hinted("" if cut else HINTS.get((asked, "whole"), "")):
        check_step(told, what, ranks, right, asked)
    return run, sizes


def check_step(told, what, ranks, right, asked):
    for rank, seen in enumerate(ranks):
        expect("problem" not in seen, str(seen.get("problem")), "{name: style, …}", None, rank)
    with hinted(HINTS.get((asked, "refused"), "")):
        check_refused(told, what, ranks)
    for rank, seen in enumerate(ranks):
        # utils/loss.py sums in the dtype of its input or float32, whichever has more digits; a loss may also be told in
        # float32, as 04_tensor_parallel has it.
        expect(
            math.isclose(seen["loss"], right["loss"], rel_tol=digits(seen["dtype"])),
            f"{told}, the loss on rank {rank} is not what one process finds",
            right["loss"],
            seen["loss"],
            rank,
            HINTS.get((asked, "loss"), ""),
        )
    with hinted(HINTS.get((asked, "gradients"), "")):
        check_parts(told, [seen["grads"] for seen in ranks], right["grads"])
    for rank, seen in enumerate(ranks):
        expect(
            seen["nothing"] == 0,
            f"{told}, a batch without a target has a loss on rank {rank}: in_step's filling counts",
            0.0,
            seen["nothing"],
            rank,
            HINTS["nothing"],
        )
        logits, than = f"{told}, the logits of model(x) on rank {rank}", "the logits of all words in one process"
        check_tensor(logits, seen["logits"], right["logits"], EXACT, rank, than=than, hint=HINTS["logits"])


@todo(
    4,
    minutes=25,
    why=(
        "With 33,000 words the two tables are most of a small model, and the logits are the largest tensor of"
        " a step: B T V numbers. Cut by words, a rank has V/t of each, and the loss needs three numbers a "
        "token from the other ranks: the largest logit, the sum of exponentials, and the logit at the target."
    ),
    hints=(
        (
            "The embedding is cut by rows, its input is the same on all ranks, and its output leaves with "
            "layout. The head is a layer cut by columns, which are the rows of its weight."
        ),
        (
            "Both styles take input_layouts and output_layouts; a table looked up by row is RowwiseParallel. "
            "In share_loss the weight is a DTensor: it knows this rank's rows, the group and V; see the list "
            "above."
        ),
        (
            "model.head_loss becomes a function loss(h, weight, y, ignore) that you write. It makes h whole if it is a"
            " DTensor, and passes on the weight's local rows, the mesh's group and the weight's full number of rows."
        ),
    ),
)
def test_todo4_words(student):
    grids = student.several(((2, 2, False), (1, 3, True)))  # of two rows, the world is more than a row
    models = {tp: serial_model(student, tp, "words") for _, tp, _ in grids}
    if 3 in models:
        check_tables(student, models[3][0], 3)
    for rows, tp, cut in grids:
        told = f"with ends_plan({'Shard(1)' if cut else 'Replicate()'}) and share_loss on {rows} × {tp} ranks"
        run, sizes = check_model(student, models[tp], tp, cut, "words", told, "the model", rows)
        right = student.reference(serial_words, sizes=sizes, seed=models[tp][1])
        for rank, seen in enumerate(run.evidence):
            given = f"{told}, the head's output on rank {rank}, for a plain stream with that layout,"
            than = "the logits of all words and tokens"
            check_tensor(given, seen["head"], right["head"], EXACT, rank, than=than, hint=HINTS["head"])
            expect(
                math.isclose(seen["double"], right["double"], rel_tol=digits(seen["double_dtype"])),
                f"{told}, head_loss called with another weight gives rank {rank} a loss that is not that weight's",
                right["double"],
                seen["double"],
                rank,
                HINTS["weight"],
            )
        check_words_sent(told, run, sizes, tp)


def tables_on_rank(code, rank, world, sizes):
    """How many rows and elements of both tables a rank holds, with either layout, before anything is computed."""
    from torch.distributed.tensor.parallel import parallelize_module

    held = []
    for cut in (False, True):
        model, plan = drawn_model(0, sizes), code.ends_plan(layouts(cut))
        if problem := problem_with(plan, model):
            return [{"problem": problem}]
        parallelize_module(model, made_mesh(1, world)["tensor"], plan)
        tables = {"token_embedding.weight": model.token_embedding.weight, "head.weight": model.head.weight}
        rows = {name: len(p.to_local() if hasattr(p, "to_local") else p) for name, p in tables.items()}
        held.append({"rows": rows, "elements": {name: elements([p]) for name, p in tables.items()}})
    return held


def check_tables(student, sizes, tp):
    """Of both tables the rows of some words, and no column less."""
    words = math.ceil(sizes["vocab"] / tp)
    for rank, seen in enumerate(student.call(tables_on_rank, world=tp, sizes=sizes).evidence):
        problem = seen[0].get("problem")
        expect(not problem, f"ends_plan returns no plan: {problem}", "{name: style, …}", problem, rank)
        for layout, held in zip(("Replicate()", "Shard(1)"), seen):
            for name, rows in held["rows"].items():
                expect(
                    rows <= words and held["elements"][name] <= words * sizes["dim"],
                    f"with ends_plan({layout}) on {tp} ranks, rank {rank} holds {rows:,} rows of {name}, of "
                    f"{sizes['vocab']:,} words",
                    f"{words:,} rows",
                    f"{rows:,} rows",
                    rank,
                )


def check_words_sent(told, run, sizes, tp):
    tokens = sizes["batch"] * sizes["length"]
    # Of the stream: 4 all-reduces in each of 2 blocks, the embedding forward, h forward and backward. Of each token
    # a few numbers. And the gradients of five norms, weight and bias.
    allowed = 2 * (tp - 1) / tp * 8 * ((8 + 3) * tokens * sizes["dim"] + 4 * tokens + 10 * sizes["dim"])
    forward, backward, *_ = cases(run.events)
    for rank in range(len(run.evidence)):
        much = sent_by(forward[rank] + backward[rank], rank)
        expect(
            much <= allowed,
            f"{told}, rank {rank} sends {much:,.0f} bytes for words and loss: are logits or tables gathered?",
            f"at most {allowed:,.0f} bytes",
            f"{much:,.0f} bytes",
            rank,
            HINTS["sent"],
        )


@todo(
    5,
    minutes=10,
    further=True,
    why=(
        "The position embedding is a plain parameter that every rank has. If each rank uses T/t of its rows, "
        "it has the gradient of T/t positions, different ones on each rank: the copies drift apart, and the "
        "loss is wrong in its fourth digit, without any error."
    ),
    hints=(
        (
            "If the table is cut among the ranks like any other, DTensor takes care of the gradients. Which "
            "styles know embeddings, and along which dimension must the result be cut?"
        ),
        (
            "ColwiseParallel and RowwiseParallel both cut an nn.Embedding; output_layouts says how the result"
            " is to lie. The result is (T, D)."
        ),
        (
            "One entry if the stream is cut, none if it is whole. The stream is cut along its T, which is "
            "dimension 1 there; here T is a different dimension."
        ),
    ),
)
def test_todo5_positions(student):
    trials = student.several(((3, True), (2, False)))
    models = {world: serial_model(student, world, "positions") for world, _ in trials}
    for world, cut in trials:
        told = f"with position_plan({'Shard(1)' if cut else 'Replicate()'}) on {world} ranks"
        check_model(student, models[world], world, cut, "positions", told, "the sum of the embeddings")


@todo(
    6,
    since=Since(*CUT_TWICE_SINCE),
    minutes=15,
    further=True,
    needs=(1, 2, 3, 4, 5),
    why=(
        "Between its halves, a block's norms and their activations are the same on all ranks of a row: t "
        "times the same work and memory. Cut along the sequence, each is 1/t, and the bytes sent stay the "
        "same (arXiv:2205.05198). But then a norm's weights, which all ranks have, learn from T/t tokens on "
        "each."
    ),
    hints=(
        ("One placement for the whole stream, chosen by a flag; and one style, from the list above, for the norms."),
        (
            "The stream is (B, T, D). SequenceParallel() makes a norm's weights replicated DTensors, so that "
            "their gradients are summed over the row."
        ),
        (
            'Three names, two of them with "blocks.*." in front, all with the same style; an empty plan if '
            "the stream is whole."
        ),
    ),
)
def test_todo6_sequence(student):
    trials = student.several(((4, True), (2, False)))
    models, serial = {world: serial_model(student, world, "all") for world, _ in trials}, serial_run(student)
    must_move(student, serial)
    for world, cut in trials:
        told = f"with --tp {world}{' --sequence-parallel' if cut else ''}"
        run, sizes = check_model(student, models[world], world, cut, "all", told, "the model")
        length = sizes["length"] // world if cut else sizes["length"]
        for rank, seen in enumerate(run.evidence):
            for number, shape in enumerate(seen["streams"]):
                expect(
                    shape[1] == length,
                    f"{told}, the stream into block {number + 1} has {shape[1]} of {sizes['length']} tokens on rank "
                    f"{rank}",
                    f"{length} tokens",
                    f"{shape[1]} tokens",
                    rank,
                )
    check_law(student, serial)


# ---------------------------------------------------------------------------------------------------
# The law of the course, which TODO 6 ends with


# SGD, since Adam turns rounding into error where a gradient is zero in theory; and a rate at which the weights move.
ARGV = (
    "--epochs 1 --batch-size 12 --seq-len 8 --dim 16 --heads 4 --layers 1 --optimizer sgd --lr 0.5 --weight-decay 0 "
    "--clip 0.5 --seed 5 --log-every 1"
).split()
RUNS = [[4, [*ARGV, "--tp", "2", "--sequence-parallel"]], [2, [*ARGV, "--tp", "2"]]]


def serial_run(student):
    return student.serial(["--data", "data", "--out", "out", *ARGV], corpus(student))


@hinted(
    "Each function alone is right. Which step is the first that differs from the serial run's, and what does it"
    " use for the first time?"
)
def check_law(student, serial):
    """The parallel run is the serial run."""
    right, final = losses(serial.evidence[0]), serial.evidence[0]["weights"]
    runs = student.several(RUNS)
    run = student.call(mains_on_rank, world=4, group=None, runs=runs, data=corpus(student))
    for number, (world, flags) in enumerate(runs):
        ranks = [mine[number] for mine in run.evidence[:world]]
        told = f"with {' '.join(flags[len(ARGV) :])} on {world} ranks,"
        same_losses(told, right, ranks)
        same_report(told, reported(serial), reported(run, f"out-{number}"))
        weights = together(ranks, "weights")
        check_checkpoint(run.files[f"out-{number}/model-final.pt"], weights)
        for name, weight in final.items():
            expect(
                torch.allclose(weights[name], weight, rtol=0, atol=SAME_WEIGHTS),
                f"{told} the last weights are not the serial run's ({name})",
                "equal weights",
                "others",
            )
        for rank, seen in enumerate(ranks):
            expect(
                not seen["still_in_a_group"],
                f"{told} rank {rank} ends without leaving the process group",
                "no group",
                "a group",
                rank,
            )
        # 4 all-reduces of the stream in the block, (B, T, D), of each row's samples: two forward, two backward.
        stream = 4 * 12 // (world // 2) * 8 * 16
        due = len(right) * 4 * ring_bytes(stream, 2)
        check_parts_travel(told.rstrip(","), cases(run.events)[number][:world], due, len(right))
