"""What the checks of 08_distributed_matmul run on ranks, in the process of the student's code."""

import math
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from grader.kit import Given, as_evidence, crossed, mark, merciless_messages, plain, raised, smaller_world
from utils.memory import SettledPeak, Storages

# ---------------------------------------------------------------------------------------------------
# Grids and matrices, as the checks have them


def shard(tensor, parts, number):
    size = -(-tensor.numel() // parts)
    mine = tensor.reshape(-1)[number * size : (number + 1) * size]
    return F.pad(mine, (0, size - len(mine)))


def taken(mine, dtype, turned=False):
    """`turned`: not contiguous, as a transposed matrix."""
    tensor = torch.tensor(mine["numbers"], dtype=getattr(torch, dtype)).view(mine["shape"])
    return tensor.T.contiguous().T if turned else tensor


# ---------------------------------------------------------------------------------------------------
# TODO 1: places, lines and blocks


def places_on_rank(code, rank, world, lengths, shapes):
    blocks = []
    for length, parts in lengths:
        found = [code.block(length, parts, number) for number in range(parts)]
        blocks.append(
            [[plain(s.start), plain(s.stop), plain(s.step)] if isinstance(s, slice) else repr(s) for s in found]
        )
    places, lines = [], []
    for shape in map(tuple, shapes):
        ranks, axes = range(math.prod(shape)), range(len(shape))
        places.append([plain(code.place(r, shape)) for r in ranks])
        lines.append([[plain(code.line(r, shape, axis)) for axis in axes] for r in ranks])
    return {"blocks": blocks, "places": places, "lines": lines}


# ---------------------------------------------------------------------------------------------------
# TODO 2: one axis


CUTS = {
    "rows": (("x_mK", "shard"), ("dx_mK", "the shard of dW")),
    "columns": (("x_MK", "w_Kn"), ("dx_MK", "dw_Kn")),
    "inner": (("x_Mk", "w_kN"), ("dx_Mk", "dw_kN")),
}


AGAIN = 3  # ranks on which a forward pass with other weights comes before the backward pass


def one_axis_on_rank(code, rank, world, todo):
    """For each number of ranks: the three products, forward and backward."""
    seen = []
    for case in todo:
        inside = smaller_world(case["ranks"], rank)
        found = {}
        for cut in CUTS:
            again = case["ranks"] == AGAIN
            if not inside:
                mark(), mark(), again and mark()
                continue
            x, w, dy = (taken(part, case["dtype"]) for part in case[cut])
            shape = (tuple(case["shape"]),) if cut == "rows" else ()
            all_given = Given(x=x, w=w, dy=dy)
            mark()
            y = getattr(code, f"by_{cut}")(x, w, *shape)
            mark()
            gradients = getattr(code, f"by_{cut}_backward")(dy, x, w, *shape)
            found[cut] = {"y": as_evidence(y), "gradients": as_evidence(gradients), "changes": all_given.changes()}
            if again:
                mark()
                getattr(code, f"by_{cut}")(x, 1 - w, *shape)
                found[cut]["again"] = as_evidence(getattr(code, f"by_{cut}_backward")(dy, x, w, *shape))
        seen.append(found)
    return seen


# ---------------------------------------------------------------------------------------------------
# TODO 3: Cannon


def cannon_on_rank(code, rank, world, todo):
    seen = []
    for case in todo:
        if not smaller_world(case["ranks"], rank):
            mark(), mark()
            seen.append(None)
            continue
        x, w, dy = (taken(part, case["dtype"]) for part in case["blocks"])
        grid = code.Grid(tuple(case["shape"]), rank, case["ranks"])
        all_given = Given(x=x, w=w, dy=dy)
        if case["merciless"]:
            merciless_messages()
        mark()
        if case["limit"]:
            with SettledPeak([x, w], case["limit"]) as peak:
                y = code.cannon(x, w, case["sizes"][1], grid)
            most = peak.most
        else:
            y, most = code.cannon(x, w, case["sizes"][1], grid), 0
        y = as_evidence(y)
        mark()
        gradients = as_evidence(code.cannon_backward(dy, x, w, tuple(case["sizes"]), grid))
        seen.append(
            {"y": y, "gradients": gradients, "most": most, "limit": case["limit"], "changes": all_given.changes()}
        )
    return seen


def refused_on_rank(code, rank, world, todo):
    """What cannon() says about each grid."""
    said = []
    for case in todo:
        inside = smaller_world(case["ranks"], rank)
        mark()
        if inside:
            x, w = (taken(part, "float32") for part in case["blocks"])
            grid = code.Grid(tuple(case["shape"]), rank, case["ranks"])
            said.append(raised(lambda x=x, w=w, grid=grid: code.cannon(x, w, 12, grid)))
    return said


# ---------------------------------------------------------------------------------------------------
# TODO 4: SUMMA


def panels_on_rank(code, rank, world, asked):
    return [plain(code.panels(k, tuple(shape))) for k, shape in asked]


def summa_on_rank(code, rank, world, todo):
    seen = []
    for case in todo:
        if not smaller_world(case["ranks"], rank):
            mark(), mark()
            seen.append(None)
            continue
        x, w, dy = (taken(part, case["dtype"], case["turned"]) for part in case["blocks"])
        grid = code.Grid(tuple(case["shape"]), rank, case["ranks"])
        all_given = Given(x=x, w=w, dy=dy)
        mark()
        with SettledPeak([x, w], case["limits"][0]) as peak:
            y = code.summa(x, w, case["k"], grid)
        forward = {"most": peak.most, "limit": case["limits"][0]}
        mark()
        with SettledPeak([x, w, dy], case["limits"][1]) as peak:
            gradients = code.summa_backward(dy, x, w, case["k"], grid)
        backward = {"most": peak.most, "limit": case["limits"][1]}
        seen.append(
            {
                "y": as_evidence(y),
                "gradients": as_evidence(gradients),
                "changes": all_given.changes(),
                "forward": forward,
                "backward": backward,
            }
        )
    return seen


# ---------------------------------------------------------------------------------------------------
# TODO 5: three axes


def three_axes_on_rank(code, rank, world, todo):
    seen, both = [], crossed_on_ranks(code, rank, todo[:2])  # while all ranks are there
    for case in todo:
        if not smaller_world(case["ranks"], rank):
            mark(), mark()
            seen.append(None)
            continue
        x, w, dy = (taken(part, case["dtype"]) for part in case["blocks"])
        grid = code.Grid(tuple(case["shape"]), rank, case["ranks"])
        x.requires_grad_(), w.requires_grad_()
        all_given = Given(x=x, w=w, dy=dy)
        mark()
        with Storages([x, w]) as storages:
            y = code.Product.apply(x, w, tuple(case["of_w"]), code.Axes(*case["axes"]), grid)
            if not (isinstance(y, torch.Tensor) and y.shape == dy.shape):
                mark()
                seen.append({"y": as_evidence(y), "gradients": [None, None], "extra": 0, "changes": {}})
                continue
            extra = 0
            for _ in range(100):  # gloo's own thread lets go of a tensor a moment after its message is over
                extra = storages.by_kind({"mine": [x, w, y]})["other"]
                if not extra:
                    break
                time.sleep(0.001)
        found = {"y": as_evidence(y), "extra": extra, "gradients": [None, None]}
        mark()
        if y.requires_grad:
            y.backward(dy)
            found["gradients"] = [as_evidence(t.grad) for t in (x, w)]
        seen.append(found | {"changes": all_given.changes(gradients=False)})
    return {"alone": seen, "crossed": both}


def crossed_on_ranks(code, rank, todo):
    """Products on all ranks, with different axes, at the same time."""
    passes = []
    for case in todo:
        grid = code.Grid(tuple(case["shape"]), rank, case["ranks"])

        def product(x, w, case=case, grid=grid):
            return code.Product.apply(x, w, tuple(case["of_w"]), code.Axes(*case["axes"]), grid)

        x, w, dy = (taken(part, case["dtype"]) for part in case["blocks"])
        passes.append((product, [x.requires_grad_(), w.requires_grad_()], dy))
    return crossed(passes)


# The layers of the lessons before, in short: what the corners of the box must do.
class Copied(torch.autograd.Function):
    """Megatron's f: nothing forward, an all-reduce of the gradient backward."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        dy = dy.clone()
        dist.all_reduce(dy)
        return dy


class Reduced(torch.autograd.Function):
    """Megatron's g: an all-reduce forward, nothing backward."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, dy):
        return dy


class Unsharded(torch.autograd.Function):
    """A weight of ZeRO's stage 3: gathered, and its gradient reduced to shards. Who uses it gathers it twice."""

    @staticmethod
    def forward(ctx, mine, shape):
        shards = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(shards, mine.detach())
        return torch.cat(shards)[: math.prod(shape)].view(shape)

    @staticmethod
    def backward(ctx, dw):
        world = dist.get_world_size()
        shards = [shard(dw, world, number).contiguous() for number in range(world)]
        mine = torch.empty_like(shards[0])
        dist.reduce_scatter(mine, shards)
        return mine, None


def corners_on_rank(code, rank, world, todo):
    """Each corner by the student's product, and by the earlier lesson's layer."""
    seen = []
    for case in todo:
        x, w, dy = (taken(part, "float32") for part in case["blocks"])
        grid = code.Grid(tuple(case["shape"]), rank, world)
        shape = tuple(case["of_w"])
        found = []
        for theirs in (False, True):
            x.grad = w.grad = None
            x.requires_grad_(), w.requires_grad_()
            mark()
            if not theirs:
                y = code.Product.apply(x, w, shape, code.Axes(0, 1, 2), grid)
            elif case["layer"] == "FSDP":
                # Makes the forward pass, and with it the all-gather, once more.
                from torch.utils.checkpoint import checkpoint

                y = checkpoint(lambda x, w: x @ Unsharded.apply(w, shape), x, w, use_reentrant=False)
            elif case["layer"] == "column-parallel":
                y = Copied.apply(x) @ w.view(shape)
            else:
                y = Reduced.apply(x @ w.view(shape))
            y.backward(dy)
            found.append([as_evidence(t) for t in (y, x.grad, w.grad)])
        seen.append(found)
    return seen


# ---------------------------------------------------------------------------------------------------
# TODO 6: an MLP


RATE, STEPS = 0.5, 2


def layer_axes(layer):
    return (0, 1, 2) if layer % 2 == 0 else (1, 0, 2)


def mlp_on_rank(code, rank, world, todo):
    seen = []
    for case in todo:
        inside = smaller_world(case["ranks"], rank)
        if not inside:
            for _ in range(1 + 2 * STEPS):
                mark()
            seen.append(None)
            continue
        grid = code.Grid(tuple(case["shape"]), rank, case["ranks"])
        x, target = (taken(part, case["dtype"]) for part in case["blocks"])
        shards = [taken(part, case["dtype"]).requires_grad_() for part in case["shards"]]
        shapes = [tuple(shape) for shape in case["shapes"]]
        axes = code.Axes(*case["last"])
        found = {"losses": [], "parts": [], "gradients": [], "broken": None}
        mark()
        products_alone(code, x, shards, shapes, grid)
        for _ in range(STEPS):
            mark()
            y = None if found["broken"] else code.mlp(x, shards, shapes, grid)
            mark()
            if found["broken"]:
                continue
            if not (isinstance(y, torch.Tensor) and y.shape == target.shape):
                found["broken"] = [
                    "mlp",
                    f"a tensor of shape {tuple(target.shape)}",
                    f"shape {tuple(y.shape)}" if isinstance(y, torch.Tensor) else type(y).__name__,
                ]
                continue
            pair = code.squared_error(y, target, case["numbers"], axes, grid)
            if not (
                isinstance(pair, (tuple, list))
                and len(pair) == 2
                and all(isinstance(t, torch.Tensor) and t.dim() == 0 for t in pair)
            ):
                shown = (
                    [list(t.shape) if isinstance(t, torch.Tensor) else type(t).__name__ for t in pair]
                    if isinstance(pair, (tuple, list))
                    else type(pair).__name__
                )
                found["broken"] = ["squared_error", "two 0-dim tensors", str(shown)]
                continue
            mine, loss = pair
            if loss.requires_grad or not mine.requires_grad:
                found["broken"] = [
                    "squared_error",
                    "a part with a gradient and a loss without one",
                    "the part has none" if not mine.requires_grad else "the loss has one",
                ]
                continue
            gradients = torch.autograd.grad(mine, shards, allow_unused=True)
            found["losses"].append(loss.double().item())
            of_its_block = (y.detach().double() - target.double()).square().sum() / case["numbers"]
            found["parts"].append([mine.double().item(), of_its_block.item()])
            found["gradients"].append([as_evidence(g) for g in gradients])
            with torch.no_grad():
                for one, g in zip(shards, gradients):
                    if g is not None and g.shape == one.shape:
                        one -= RATE * g
        seen.append(found)
    return seen


@torch.no_grad()
def products_alone(code, x, shards, shapes, grid):
    """The products of an MLP, and nothing between them."""
    for layer, (one, shape) in enumerate(zip(shards, shapes)):
        inner, outer, depth = layer_axes(layer)
        x = code.Product.apply(x, one, shape, code.Axes(inner, outer, depth), grid)


def axes_on_rank(code, rank, world, layers):
    return [plain(code.axes_of(layer)) for layer in range(layers)]


# ---------------------------------------------------------------------------------------------------
# TODOs 7 and 8: predictions


def grids_on_rank(code, rank, world, worlds, asked):
    return {
        "factorings": [plain(code.factorings(n)) for n in worlds],
        "seconds": [
            [plain(code.mlp_seconds(*sizes, tuple(shape), code.Machine(*machine))) for shape in shapes]
            for sizes, shapes, machine in asked
        ],
        "best": [
            plain(code.best_grid(*sizes, math.prod(shapes[0]), code.Machine(*machine)))
            for sizes, shapes, machine in asked
        ],
    }
