"""Checks of 04_tensor_parallel, TODOs 2 to 5: layers.

| TODO | achievement | evidence | needs |
|------|-------------|----------|-------|
| 2 | f and g | values, gradients, messages, on 1 to 5 ranks, three dtypes |  |
| 3 | column- and row-parallel layers | against the serial layer: values, gradients, steps, bytes, messages | 2 |
| 4 | the MLP | the same; the largest tensor that is made | 2, 3 |
| 5 | attention by whole heads | the same; heads that cannot be divided | 2, 3 |

The first loss proves nothing: the gradient of every parameter is compared, and what becomes of it in some steps of SGD.
Parameters are compared by name where the student's module has the serial module's names, and otherwise by what the
module does after the steps.

Ranks all work on the same samples. Bytes held are counted in live storages, bytes sent as rings send them.

To start ranks takes longer than most of what is asked of them. So all jobs of a check are done in one run, on as many
ranks as it needs and then on ever fewer.
"""

import math

import torch

from grader.kit import check_refusals, check_tensor, count_of, expect, frozen_in_turn, hinted, ring_bytes, todo

from .common import JOIN, REL, check_border, check_layers, drawn, has_all, layer_jobs
from .ranks import LAYER, borders_on_rank, cut, given, joined_on_rank, made, refused_on_rank, shards_on_rank

BORDERS = (
    "Here `enter` and `join` are different functions from f and g, as in part 2. Which ones does the forward pass call,"
    " where, and how often?"
)


LONGER = (
    "In part 2, `enter` gathers the sequence: its result has more tokens than its argument. Which of the two do the"
    " sizes in your forward pass come from?"
)


# ---------------------------------------------------------------------------------------------------
# TODOs 2 and 8: the boundary functions


@todo(2)
def test_todo2_pair(student):
    draw = student.draw("pair")
    right = {
        "f": lambda xs, upstreams, rank: (xs[rank], sum(upstreams)),
        "g": lambda xs, upstreams, rank: (sum(xs), upstreams[rank]),
    }
    trials = []
    for world in (1, 2, 3, 4, 5):
        kinds = (("float32", 4, True), ("float64", 8, False), ("bfloat16", 2, False))
        for dtype, size, turned in kinds[: 3 if world == 3 else 1]:
            shape = [draw.randrange(2, 5), draw.randrange(2, 6), draw.randrange(2, 7)]
            nbytes = ring_bytes(size * math.prod(shape), world)
            zeros = dtype == "bfloat16"  # a zero counts, too, and a rank that sends none of it is waited for
            trials.append((world, "f", shape, shape, dtype, turned, zeros, 0, nbytes))
            trials.append((world, "g", shape, shape, dtype, turned, zeros, nbytes, 0))
    check_border(student, trials, right)


# ---------------------------------------------------------------------------------------------------
# TODOs 3 to 6: layers


VIEW = "A slice is a view: it has the strides of the whole tensor, and keeps it alive. What makes a tensor of its own?"


def check_my_shard(student, shapes):
    (seen,) = student.call(shards_on_rank, world=1, group=False, shapes=shapes).evidence
    ranks = [(shape, dim, r, n, turned) for shape, dim, n, turned in shapes for r in range(n)]
    for (shape, dim, r, n, turned), mine in zip(ranks, seen, strict=True):
        whole = torch.arange(float(math.prod(shape))).view(shape)
        right, told = (
            cut(whole, dim, r, n),
            f"my_shard of a {'transposed ' * turned}tensor of shape {tuple(shape)}, along dimension {dim}, for rank {r}"
            f" of {n}",
        )
        with hinted(
            "Along which dimension is it cut? A part is rounded up: where does the one of rank r begin, and end?"
        ):
            expect(not mine["fault"], f"{told} is {mine['fault']}", tuple(right.shape), mine["fault"])
            check_tensor(told, mine["part"], right)
        contiguous = mine["contiguous"]
        expect(contiguous, f"{told} is not contiguous", "a contiguous tensor", "strides of the whole one", hint=VIEW)
        expect(
            mine["bytes"] <= 4 * right.numel(),
            f"{told} keeps {mine['bytes']} bytes alive, its {right.numel()} numbers need {4 * right.numel()}: "
            "it is a view of the whole tensor",
            f"{4 * right.numel()} bytes",
            f"{mine['bytes']} bytes",
            hint=VIEW,
        )


@todo(3, needs=(2,))
def test_todo3_linear(student):
    draw = student.draw("linear")
    shapes = [
        [[7, 3], 0, 3],
        [[4, 6], 1, 2],
        [[4, 6], 1, 4],
        [[5], 0, 2],
        [[6, 4, 5], 2, 3],
        [[draw.randrange(9, 20), 2], 0, draw.randrange(2, 5)],
    ]
    shapes = [(shape, dim, n, False) for shape, dim, n in shapes if (n - 1) * -(-shape[dim] // n) < shape[dim]]
    shapes += [([6, 4], dim, 2, True) for dim in (0, 1)]
    trials = {world: [] for world in (1, 2, 3, 4)}
    for world in trials:
        with_bias = "of zeros" if world == 3 else True
        for kind, bias in (("column", with_bias), ("row", with_bias), ("column", False), ("row", False)):
            inner = draw.choice([n for n in range(9, 25) if has_all(n, world)])
            frozen = 0 if not bias and world == 2 else None
            trials[world].append(drawn(draw, kind, draw.randrange(5, 11), inner, bias=bias, frozen=frozen))
    seed = draw.randrange(1 << 30)
    jobs = layer_jobs(student, trials)
    check_my_shard(student, shapes)
    done = check_layers(student, jobs, [(1, joined_on_rank, dict(seed=seed), None)])
    ((_, _, (seen,), _),) = done[joined_on_rank]
    right = student.reference(serial_joined, seed=seed)
    told = "RowLinear given another `join` than g"
    with hinted(JOIN):
        expect(not seen["fault"], f"{told} returns {seen['fault']}", tuple(right.shape), seen["fault"])
        check_tensor(f"the output of {told}", seen["y"], right, REL, than="the result, with the bias added last")


def serial_joined(seed):
    layer = made("row", seed, 4, 6, 1, True, None)
    return (3 * given("row", seed, 4, 6)[0][..., 3:] @ layer.weight[:, 3:].T + layer.bias).detach()


@todo(4, needs=(2, 3))
def test_todo4_mlp(student):
    draw = student.draw("mlp")
    trials, places = {}, dict(zip((2, 3, 4), (place for place, _ in frozen_in_turn(draw, 4))))
    for world in (1, 2, 3, 4):
        width = draw.choice((5, 6, 7))
        trials[world] = [
            drawn(draw, "mlp", width, 4 * width),
            drawn(draw, "mlp", width, 4 * width, bias=True, frozen=places.get(world)),
        ]
    sizes = dict(kind="mlp", seed=draw.randrange(1 << 30), width=6, inner=24, heads=1)
    done = check_layers(student, layer_jobs(student, trials), [(2, borders_on_rank, sizes, sizes)])
    check_borders_used(student, done)


@todo(5, needs=(2, 3))
def test_todo5_attention(student):
    draw = student.draw("attention")
    trials, places = {world: [] for world in (1, 2, 3, 4)}, {}
    for world, (place, _) in zip((2, 3, 2), frozen_in_turn(draw, 4)):
        places.setdefault(world, []).append(place)
    for world in trials:
        for place in (None, *places.get(world, ())):
            heads = world * draw.randrange(1 if world > 2 else 2, 4)
            trials[world].append(drawn(draw, "attention", heads * draw.randrange(2, 4), 1, heads, frozen=place))
    sizes = dict(kind="attention", seed=draw.randrange(1 << 30), width=12, inner=1, heads=4)
    more = [(2, borders_on_rank, sizes, sizes)]
    more += [(world, refused_on_rank, dict(most=2 * world + 2), None) for world in (2, 3, 4)]
    for world in (2, 3):  # a head a rank is just enough
        trials[world].append(drawn(draw, "attention", 2 * world, 1, world))
    done = check_layers(student, layer_jobs(student, trials), more)
    check_borders_used(student, done)
    for world, _, ranks, _ in done[refused_on_rank]:
        check_refusals(
            [[((heads, world), said) for heads, said in enumerate(mine["said"], start=1)] for mine in ranks],
            refused=lambda heads, world: heads % world != 0,
            told=lambda heads, world: f"ParallelAttention of {count_of(heads, 'head')} on {count_of(world, 'rank')}",
            words=lambda heads, world: (heads, world),
            hint="Which two numbers decide whether each rank gets whole heads, and at which line are both known?",
        )


def serial_borders(kind, seed, width, inner, heads):
    """What the ranks' outputs add up to: each rank's partial sum is joined by doubling it."""
    x = given(kind, seed, width, inner)[0]
    return 2 * made(kind, seed, width, inner, heads, False, None)(2 * torch.cat([x, x], dim=1)).detach()


def times(number):
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number} times")


@hinted(BORDERS)
def check_borders_used(student, done):
    """The boundary functions come as arguments: boundary functions other than f and g are used as well."""
    ((_, sizes, ranks, _),) = done[borders_on_rank]
    name = LAYER[sizes["kind"]][0]
    for rank, mine in enumerate(ranks):
        error = mine.get("error")
        told = f"{name}, made with an `enter` that returns twice as many tokens, fails on rank {rank}"
        expect(not error, f"{told}: {error}", "an output for all these tokens", error, rank, LONGER)
        for boundary in ("enter", "join"):
            expect(
                len(mine[boundary]) == 2,
                f"{name} made with a different `{boundary}` from {'f' if boundary == 'enter' else 'g'} calls it "
                f"{times(len(mine[boundary]))} in two forward passes, of which the first is without gradients",
                "twice",
                times(len(mine[boundary])),
                rank,
            )
        expect(
            not mine["not due"],
            f"{name} made with different boundary functions gives rank {rank} {mine['not due']}",
            (3, 14, sizes["width"]),
            mine["not due"],
            rank,
        )
    right = student.reference(serial_borders, **sizes)
    total = sum(mine["y"] for mine in ranks)
    told = f"{name} made with boundary functions other than f and g: the sum of the ranks' outputs"
    check_tensor(told, total, right, REL, than="twice the serial output")
