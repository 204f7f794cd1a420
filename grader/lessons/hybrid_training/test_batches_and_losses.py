"""Checks of hybrid_training, TODOs 5, 6 and 9: batches and losses.

| TODO | achievement | evidence | needs |
| --- | --- | --- | --- |
| 5 | samples along two axes | make_samplers() on 8, 6 and 4 ranks, over two epochs | |
| 6 | divided once | divide_gradients() on three shapes of 4 ranks, shares with unequal targets | |
| 9 | evaluation | evaluate() on 2 × 2 ranks, where shares differ and one is empty; one and two stages a rank | |
"""

import math
from contextlib import contextmanager

import torch

from grader.kit import (
    Private,
    Since,
    Wrong,
    check_dealt,
    check_part,
    drawn_model,
    drawn_sizes,
    each_once,
    expect,
    meshes,
    shares,
    todo,
)
from utils.data import IGNORE
from utils.pipeline_flags import SCHEDULES_SINCE

from .common import WORDS, check_little, many, shaped, weights_of
from .ranks import AXES, LENGTHS, Text, divide_on_rank, evaluate_on_rank, samplers_on_rank


@contextmanager
def where(told):
    """Whatever is told inside says for which shape."""
    try:
        yield
    except Wrong as problem:
        problem.message = f"{told}, {problem.message}"
        raise


# ---------------------------------------------------------------------------------------------------
# TODO 5: samples


@todo(5)
def test_todo5_share(student):
    draw = student.draw("samplers")
    sizes = (draw.choice((61, 67, 71)), draw.choice((11, 13)), draw.choice((7, 13)))
    seed = draw.randrange(100)
    drawn = [tuple(mesh.get(axis, 1) for axis in AXES) for mesh in meshes(draw, 6, AXES, beside=("dp", "shard"))]
    for shape in student.several((*drawn, (1, 2, 2, 1, 2), (1, 4, 1, 1, 1)), but=[(1, 2, 2, 1, 2)]):
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
            first = int(grid[0, place[1], place[2], 0, 0])
            for name in ("train", "validation", "test"):
                expect(
                    mine[name] == ranks[first][name],
                    f"{told} ranks {first} and {rank} differ only on pp, cp or tp, and read different {name} samples",
                    ranks[first][name],
                    mine[name],
                    rank,
                )
        readers = [ranks[int(first)] for first in grid[0, :, :, 0, 0].flatten()]
        for name, size in zip(("validation", "test"), sizes[1:], strict=True):
            with where(told):
                each_once(name, [mine[name] for mine in readers], size)
        check_dealt(told, [mine["train"] for mine in readers], sizes[0], seed, readers[0]["batch"])


# ---------------------------------------------------------------------------------------------------
# TODOs 6 to 8: gradients


@todo(6)
def test_todo6_divide(student):
    for shape in student.several(((1, 2, 2, 1, 1), (2, 1, 2, 1, 1), (1, 2, 1, 1, 2), (1, 1, 2, 2, 1), (1, 1, 1, 1, 2))):
        _, dp, shard, cp, tp = shape
        parts, world = dp * shard * cp, math.prod(shape)
        sizes = drawn_sizes(student, tp, "divide", *shape, words=WORDS)
        counts = shares(student.draw("targets", *shape), parts, most=60)  # of a micro-batch none may count
        targets = Private([counts[rank // tp % parts] for rank in range(world)])
        told = f"with {shaped(shape)} and {', '.join(map(str, counts))} targets on the data ranks"
        run = student.call(divide_on_rank, world=world, shape=shape, sizes=sizes, targets=targets)
        right = student.reference(weights_of, sizes=sizes)
        factor = parts / sum(counts)
        for rank, seen in enumerate(run.evidence):
            for name, grad in seen["grads"].items():
                # Numbers of targets may become float32 in a message: 6e-8 of them.
                check_part(f"{told}, after divide_gradients", name, grad, right[name] * factor, rank, rel=1e-6)
            own = counts[rank // tp % parts]
            expect(
                seen["targets"] == own,
                f"{told}, divide_gradients writes into the n_targets of rank {rank}, which the log still needs",
                own,
                seen["targets"],
                rank,
            )
        check_little(told, "divide_gradients", run, 64, "three numbers")


# ---------------------------------------------------------------------------------------------------
# TODO 9: evaluation


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


@todo(9, since=Since(*SCHEDULES_SINCE))
def test_todo9_evaluate(student):
    trials = []
    for shape, interleaved in student.several(
        (((2, 1, 2, 1, 1), True), ((2, 1, 1, 1, 2), False), ((1, 2, 2, 1, 1), False))
    ):
        layers = 4 if interleaved else 2  # a block for each stage
        sizes = drawn_sizes(student, shape[-1], "evaluate", *shape, words=WORDS, layers=layers) | {"length": 6}
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
