"""Checks of 08_distributed_matmul, TODOs 5 and 6: three axes.

| TODO | achievement                         | evidence                                                         | needs |
|------|-------------------------------------|------------------------------------------------------------------|-------|
| 5    | AxoNN's product on three axes       | boxes of 1 to 8 ranks; bytes kept; compared with FSDP, Megatron  | 1     |
| 6    | an MLP, its second layer transposed | losses and gradients against one process's; bytes sent    | 1, 5  |
"""  # noqa: E501

import itertools
import math

import torch
import torch.nn.functional as F

from grader.kit import (
    CROSSED,
    Private,
    Wrong,
    cases,
    check_answers,
    check_tensor,
    count_of,
    expect,
    hinted,
    moved_by,
    todo,
)

from .common import (
    HINTS,
    boxes,
    check_kept,
    check_moved,
    check_results,
    coordinates,
    given,
    largest,
    matrix,
    piece,
    spoken,
)
from .ranks import RATE, STEPS, axes_on_rank, corners_on_rank, layer_axes, mlp_on_rank, shard, taken, three_axes_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 5: three axes


def three_axes_blocks(x, w, dy, shape, axes, rank):
    """What a rank of a box is given of X, W and dY, the shape of its block of W, and what is right of Y, dX and dW.

    W and dW are shards of its block.
    """
    inner, outer, depth = axes
    at = coordinates(rank, shape)
    rows = piece(x.shape[0], shape[depth], at[depth])
    between = piece(x.shape[1], shape[inner], at[inner])
    columns = piece(w.shape[1], shape[outer], at[outer])
    block = w[between, columns]
    held = [x[rows, between], shard(block, shape[depth], at[depth]), dy[rows, columns]]
    y, dx, dw = x @ w, dy @ w.T, x.T @ dy
    return (
        held,
        list(block.shape),
        [y[rows, columns], dx[rows, between], shard(dw[between, columns], shape[depth], at[depth])],
    )


def three_axes_moved(m, k, n, inner, outer, depth, size):
    """Bytes that a rank sends forward and backward, at most; each tensor is cut into pieces that are rounded up."""
    rows, between, columns = largest(m, depth), largest(k, inner), largest(n, outer)
    weights = (depth - 1) * -(-between * columns // depth)
    y = 2 * (inner - 1) * -(-rows * columns // inner)
    dx = 2 * (outer - 1) * -(-rows * between // outer)
    return size * (weights + y), size * (2 * weights + dx)


# The first two for the products that are made at the same time.
AXES_5 = ((1, 0, 2), (0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 2, 0), (2, 0, 1))


@todo(5, needs=(1,))
def test_todo5_three_axes(student):
    check_numbers_sent(student)
    plans = []
    for ranks in range(8, 0, -1):
        draw = student.draw("boxes", ranks)
        shapes = boxes(ranks, 3)
        cube = [(2, 2, 2)] * 2 if ranks == 8 else []  # all lines are equally long: shapes do not tell a wrong axis
        for shape in cube + [draw.choice(shapes)]:
            axes = AXES_5[len(plans) % len(AXES_5)]
            divides = ranks == 4  # there the formula holds to the byte
            m, k, n = draw.sample([4, 8, 12, 16], 3) if divides else draw.sample(range(3, 14), 3)
            dtype = draw.choice(["float32", "float64"])
            if shape == (2, 2, 2) and len(plans) < 2:  # the two that are made at the same time: only the axes differ
                m, k, n = (8, 4, 12)
                dtype = "float32"
            plans.append((shape, axes, dtype, [matrix(draw, *size, dtype) for size in ((m, k), (k, n), (m, n))]))
    plans[2:] = student.several(plans[2:], 2)
    todo = Private([[three_axes_case(plan, rank) for plan in plans] for rank in range(8)])
    run = student.call(three_axes_on_rank, world=8, todo=todo)
    calls = iter(cases(run.events))
    for number, (shape, axes, dtype, (x, w, dy)) in enumerate(plans):
        ranks, (m, k), n = math.prod(shape), x.shape, w.shape[1]
        inner, outer, depth = (shape[axis] for axis in axes)
        told = f"Product on {spoken(shape)} ranks, axes {axes}, m = {m}, k = {k}, n = {n}, {dtype}"
        right = [three_axes_blocks(x, w, dy, shape, axes, rank)[2] for rank in range(ranks)]
        seen = [run.evidence[rank]["alone"][number] for rank in range(ranks)]
        check_results(told, ["Y"], [mine["y"] for mine in seen], [mine[0] for mine in right], dtype)
        gradients = [mine["gradients"] for mine in seen]
        check_results(f"{told}, backward", ["dX", "the shard of dW"], gradients, [mine[1:] for mine in right], dtype)
        check_kept(told, seen)
        for rank, mine in enumerate(seen):
            expect(
                mine["extra"] == 0,
                f"{told}: after the forward pass rank {rank} keeps {mine['extra']:,} bytes more than X, its shard and "
                "Y, for the backward pass",
                "0 bytes",
                f"{mine['extra']:,} bytes",
                rank,
                HINTS["saved"],
            )
        most = three_axes_moved(m, k, n, inner, outer, depth, 4 if dtype == "float32" else 8)
        for direction, limit in zip(("forward", "backward"), most):
            check_moved(f"{told}, {direction}", next(calls), [limit] * ranks, "more than the formula says")
    with hinted(CROSSED):
        check_crossed(plans, [mine["crossed"] for mine in run.evidence])
    check_corners(student)


def check_crossed(plans, seen):
    for number, (shape, axes, dtype, matrices) in enumerate(plans[:2]):
        told = f"Product on {spoken(shape)} ranks with the axes of two layers, both forward passes first: axes {axes}"
        right = [three_axes_blocks(*matrices, shape, axes, rank)[2][1:] for rank in range(8)]
        check_results(told, ["dX", "the shard of dW"], [mine[number] for mine in seen], right, dtype)


def check_numbers_sent(student):
    answers = {}
    for m, k, n, x, y, z in (
        (48, 96, 144, 2, 3, 4),
        (48, 96, 144, 1, 1, 8),
        (40, 24, 16, 1, 4, 1),
        (40, 24, 16, 4, 1, 1),
        (6, 4, 10, 1, 1, 1),
    ):
        gathered = (z - 1) / z * k * n / (x * y)
        answers["numbers_sent_3d", (m, k, n, x, y, z)] = (
            2 * gathered,
            gathered,
            2 * (x - 1) / x * m * n / (z * y),
            2 * (y - 1) / y * m * k / (z * x),
        )
    check_answers(student, answers, wrong="is not what will happen")


def three_axes_case(plan, rank):
    """What a rank is given for one product."""
    shape, axes, dtype, (x, w, dy) = plan
    case = {"ranks": math.prod(shape), "shape": list(shape), "axes": list(axes), "dtype": dtype}
    if rank < math.prod(shape):
        held, of_w, _ = three_axes_blocks(x, w, dy, shape, axes, rank)
        case |= {"blocks": [given(t) for t in held], "of_w": of_w}
    return case


@hinted(
    "At a corner of the box, two of the three axes have one rank each. Which collectives are left, and what does"
    " the other layer send there?"
)
def check_corners(student):
    """FSDP and Megatron are corners: the same numbers and the same bytes as the layers of the lessons before."""
    world = 4
    corners = {"FSDP": (1, 1, world), "column-parallel": (1, world, 1), "row-parallel": (world, 1, 1)}
    draw = student.draw("corners")
    m, k, n = draw.sample([4, 8, 12, 16, 20], 3)
    x, w, dy = (matrix(draw, *size) for size in ((m, k), (k, n), (m, n)))
    todo = Private()
    for rank in range(world):
        mine = []
        for layer, shape in corners.items():
            held, of_w, _ = three_axes_blocks(x, w, dy, shape, (0, 1, 2), rank)
            mine.append({"layer": layer, "shape": list(shape), "of_w": of_w, "blocks": [given(t) for t in held]})
        todo.append(mine)
    run = student.call(corners_on_rank, world=world, todo=todo)
    calls = iter(cases(run.events))
    for number, (layer, shape) in enumerate(corners.items()):
        own, theirs = ([moved_by(mine, rank) for rank, mine in enumerate(next(calls))] for _ in range(2))
        told = f"on {spoken(shape)} ranks Product is not a {layer} layer"
        pairs = [run.evidence[rank][number] for rank in range(world)]
        check_results(told, ["Y", "dX", "the shard of dW"], [a for a, _ in pairs], [b for _, b in pairs])
        for rank in range(world):
            expect(
                abs(own[rank] - theirs[rank]) < 1,
                f"{told}: rank {rank} sends {own[rank]:,.0f} bytes, and there {theirs[rank]:,.0f}",
                f"{theirs[rank]:,.0f} bytes",
                f"{own[rank]:,.0f} bytes",
                rank,
            )


# ---------------------------------------------------------------------------------------------------
# TODO 6: an MLP


# Losses and weights differ from one process's by the order in which float32 numbers are added.
# Gradients are compared by their norms. A missing sum, or replicas that count twice, change them by a tenth and more.
CLOSE = 1e-4


def serial_mlp(x, target, weights):
    x, target = (taken(part, "float64") for part in (x, target))
    weights = [taken(part, "float64").requires_grad_() for part in weights]
    found = {"losses": [], "gradients": []}
    for _ in range(STEPS):
        y = x
        for layer, w in enumerate(weights):
            y = (F.gelu(y) if layer else y) @ w
        loss = (y - target).square().mean()
        gradients = torch.autograd.grad(loss, weights)
        found["losses"].append(loss.item())
        found["gradients"].append(list(gradients))
        with torch.no_grad():
            for w, g in zip(weights, gradients):
                w -= RATE * g
    return found


def normal(draw, rows, columns, scale):
    return torch.tensor([draw.gauss(0, scale) for _ in range(rows * columns)], dtype=torch.float64).view(rows, columns)


def check_axes(student):
    (axes,) = student.call(axes_on_rank, world=1, group=False, layers=5).evidence
    for layer, found in enumerate(axes):
        expect(
            found == list(layer_axes(layer)),
            f"axes_of({layer}) does not fit the blocks that the layer before it leaves",
            "inner {}, outer {}, depth {}".format(*layer_axes(layer)),
            found,
        )


@todo(6, needs=(1, 5))
def test_todo6_mlp(student):
    plans = []
    for shape in ((2, 2, 2), (7, 1, 1), (3, 1, 2), (1, 1, 5), (2, 2, 1), (1, 2, 1), (1, 1, 1)):
        draw = student.draw("mlp", shape)
        layers = 3 if shape in ((2, 2, 2), (3, 1, 2), (2, 2, 1)) else 2
        m, *dims = draw.sample(range(5, 14), 2 + layers)
        m = 4 if shape == (1, 1, 5) else m  # one rank has no rows
        matrices = [normal(draw, m, dims[0], 1.0), normal(draw, m, dims[-1], 1.0)]
        weights = [normal(draw, k, n, k**-0.5) for k, n in itertools.pairwise(dims)]
        plans.append((shape, draw.choice(["float32", "float64"]), matrices, weights))
    plans = student.several(plans, 2)
    whole = [[given(x), given(target), [given(w) for w in weights]] for _, _, (x, target), weights in plans]
    serial = [student.reference(serial_mlp, x=x, target=target, weights=weights) for x, target, weights in whole]
    for right in serial:
        student.premise(right["losses"][-1] < 0.999 * right["losses"][0], "a model that does not train")
    check_axes(student)
    todo = Private([[mlp_case(plan, rank) for plan in plans] for rank in range(8)])
    run = student.call(mlp_on_rank, world=8, todo=todo)
    calls = iter(cases(run.events))
    for number, plan in enumerate(plans):
        seen = [run.evidence[rank][number] for rank in range(math.prod(plan[0]))]
        alone, *parts = [next(calls, [[]] * 8) for _ in range(1 + 2 * STEPS)]
        steps = [[a + b for a, b in zip(*parts[step : step + 2])] for step in range(0, 2 * STEPS, 2)]
        check_mlp(plan, seen, serial[number], steps)
        check_nothing_between(plan[0], seen, alone, parts[0])


def mlp_case(plan, rank):
    """What a rank is given for one MLP: its blocks of x and of the target, its shards of the weights."""
    shape, dtype, (x, target), weights = plan
    last = layer_axes(len(weights) - 1)
    case = {
        "ranks": math.prod(shape),
        "shape": list(shape),
        "dtype": dtype,
        "last": list(last),
        "numbers": target.numel(),
    }
    if rank < math.prod(shape):
        at = coordinates(rank, shape)
        rows = piece(len(x), shape[2], at[2])
        case["blocks"] = [
            given(x[rows, piece(x.shape[1], shape[0], at[0])]),
            given(target[rows, piece(target.shape[1], shape[last[1]], at[last[1]])]),
        ]
        blocks = [weight_block(w, layer, shape, at) for layer, w in enumerate(weights)]
        case |= {
            "shards": [given(shard(w, shape[2], at[2])) for w in blocks],
            "shapes": [list(w.shape) for w in blocks],
        }
    return case


def check_mlp(plan, seen, right, steps):
    shape, dtype, (x, target), weights = plan
    ranks = math.prod(shape)
    sizes = " → ".join(str(size) for size in (weights[0].shape[0], *(w.shape[1] for w in weights)))
    told = f"an MLP of {sizes} on {spoken(shape)} ranks, {len(x)} tokens, {dtype}"
    size = 4 if dtype == "float32" else 8
    most = 64.0  # for the loss
    for layer, w in enumerate(weights):
        inner, outer, depth = (shape[axis] for axis in layer_axes(layer))
        most += sum(three_axes_moved(len(x), *w.shape, inner, outer, depth, size))
    for rank, mine in enumerate(seen):
        if mine["broken"]:
            name, expected, found = mine["broken"]
            what = f"{told}: {name} does not return what it should on rank {rank}"
            raise Wrong(what, expected, found, rank, HINTS[name])
    for step in range(STEPS):
        for rank, mine in enumerate(seen):
            loss, found = right["losses"][step], mine["losses"][step]
            if step == 0:
                check_gradients(told, mine["gradients"][0], right["gradients"][0], shape, rank, dtype)
            expect(
                abs(found - loss) <= CLOSE * loss,
                f"{told}: the loss of step {step + 1} on rank {rank} differs from one process's",
                loss,
                found,
                rank,
                HINTS["printed"],
            )
            part, of_its_block = mine["parts"][step]
            expect(
                abs(part - of_its_block) <= CLOSE * loss,
                f"{told}: the part of the loss that squared_error returns on rank {rank} is not its block's",
                of_its_block,
                part,
                rank,
                HINTS["part"],
            )
            if step == STEPS - 1:
                last = mine["gradients"][-1], right["gradients"][-1]
                check_gradients(f"{told}, step {STEPS}", *last, shape, rank, dtype)
        why = "more than the products and the loss need"
        check_moved(f"{told}, a step", steps[step], [most] * ranks, why, hint=HINTS["between"])


def check_nothing_between(shape, seen, alone, forward):
    for rank in range(len(seen)):
        most, made = (len([e for e in part[rank] if e["e"] == "op"]) for part in (alone, forward))
        expect(
            made <= most,
            f"mlp on {spoken(shape)} ranks sends more than its products: rank {rank} makes {count_of(made, 'call')},"
            f" and the products alone make {most}",
            f"{most} calls",
            made,
            rank,
            HINTS["between"],
        )


def weight_block(w, layer, shape, at):
    inner, outer, _ = layer_axes(layer)
    return w[piece(w.shape[0], shape[inner], at[inner]), piece(w.shape[1], shape[outer], at[outer])]


def check_gradients(told, seen, right, shape, rank, dtype):
    at = coordinates(rank, shape)
    for layer, (found, whole) in enumerate(zip(seen, right, strict=True)):
        expected = shard(weight_block(whole, layer, shape, at), shape[2], at[2])
        check_tensor(
            f"{told}: the gradient of layer {layer} on rank {rank}",
            found,
            expected,
            CLOSE,
            rank,
            dtype=getattr(torch, dtype),
            scale=whole.norm().item() / math.prod(shape) ** 0.5,
            than="its shard of one process's",
            hint=HINTS["gradient"],
        )
