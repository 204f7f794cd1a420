"""What the checks of tp_training run on ranks, in the process of the student's code."""

from fnmatch import fnmatch

import torch

from grader.kit import attempt, dealt, drawn_batch, drawn_model, elements, gradients, kind_of, mark
from utils.data import IGNORE, Windows
from utils.model import Block


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


def samplers_on_rank(code, rank, world, grid, sizes, seed):
    sets = tuple(Windows(torch.arange(size), 1, 0, drop_last=True) for size in sizes)
    args = made_args(code, "--seed", str(seed))
    args.tp = grid[1]  # whether it divides the heads is not asked here
    return dealt(code.make_samplers(sets, made_mesh(*grid), args))


# ---------------------------------------------------------------------------------------------------
# TODO 2: the norm


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
