"""Checks of 08_distributed_matmul, TODOs 7 and 8: cost.

| TODO | achievement                         | evidence                                                         | needs |
|------|-------------------------------------|------------------------------------------------------------------|-------|
| 7    | the best grid                       | the formulas; the choice is one of the fastest                   | 5     |
| 8    | when the network sets the pace      | the formulas                                                     |       |
"""  # noqa: E501

import math

from grader.kit import check_answers, count_of, expect, hinted, todo

from .common import HINTS, boxes
from .ranks import grids_on_rank

# ---------------------------------------------------------------------------------------------------
# TODOs 7 and 8: predictions


def mlp_time(m, dim, hidden, shape, alpha, beta, speed, cores):
    world = math.prod(shape)
    total = 12 * m * dim * hidden / world / speed * max(1, world / cores)
    for k, n, (inner, outer, depth) in ((dim, hidden, shape), (hidden, dim, (shape[1], shape[0], shape[2]))):
        numbers = 3 * (depth - 1) / depth * k * n / (inner * outer) + 2 * (inner - 1) / inner * m * n / (depth * outer)
        numbers += 2 * (outer - 1) / outer * m * k / (depth * inner)
        total += (3 * (depth - 1) + 2 * (inner - 1) + 2 * (outer - 1)) * alpha + 4 * numbers * beta
    return total


@todo(7, needs=(5,))
def test_todo7_best_grid(student):
    draw = student.draw("costs")
    answers = layer_costs(draw)
    worlds, asked = (1, 4, 7, 8, 12, 64), []
    for world, sizes, machine in (
        (8, (4096, 64, 256), (2e-4, 1e-9, 2e10, 2)),
        (8, (4096, 64, 256), (2e-2, 1e-9, 2e10, 2)),  # the same on a machine with slower messages
        (8, (64, 512, 2048), (2e-4, 1e-9, 2e10, 2)),
        (64, (16384, 4096, 16384), (5e-6, 4e-11, 1e14, 64)),
        (64, (1024, 4096, 16384), (5e-6, 4e-11, 1e14, 64)),
        (6, (24, 12, 60), (1e-3, 1e-9, 1e9, 4)),
        (1, (24, 12, 60), (1e-3, 1e-9, 1e9, 2)),
        (
            draw.choice([12, 16, 24]),
            tuple(draw.randrange(48, 4800, 48) for _ in range(3)),
            (draw.uniform(1e-6, 1e-3), draw.uniform(1e-11, 1e-8), 1e11, 8),
        ),
        *(uneven(draw, axes) for axes in ((0,), (1,), (2,), (0, 1, 2))),
    ):
        shapes = (
            boxes(world, 3) if world < 30 else [(a, b, world // (a * b)) for a in (1, 2, 4, 8) for b in (1, 2, 4, 8)]
        )
        asked.append([sizes, shapes, machine])
    every = [
        {tuple(shape): mlp_time(*sizes, shape, *machine) for shape in all_boxes(math.prod(shapes[0]))}
        for sizes, shapes, machine in asked
    ]
    student.premise(len({max(min(times, key=times.get)) for times in every}) > 1, "always the same kind of grid")
    check_answers(student, answers, wrong="is not what the layer sends", hints=HINTS)
    (seen,) = student.call(grids_on_rank, world=1, group=False, worlds=worlds, asked=asked).evidence
    for world, found in zip(worlds, seen["factorings"], strict=True):
        check_factorings(world, found)
    for (sizes, shapes, machine), all_of_them, times, best in zip(
        asked, every, seen["seconds"], seen["best"], strict=True
    ):
        for shape, found in zip(shapes, times, strict=True):
            right = mlp_time(*sizes, shape, *machine)
            close = isinstance(found, (int, float)) and math.isclose(found, right, rel_tol=1e-9)
            expect(
                close,
                f"mlp_seconds{(*sizes, shape)} with alpha {machine[0]:.3g}, beta {machine[1]:.3g}, speed "
                f"{machine[2]:.3g} and {machine[3]} cores is not what the formulas give",
                right,
                found,
            )
        check_best(sizes, all_of_them, best)


def divides(shape, m, dim, hidden):
    x, y, z = shape
    return m % z == 0 and dim % x == 0 and hidden % y == 0


def uneven(draw, axes):
    """A world, sizes and a machine, drawn such that the fastest grid does not divide the sizes; grids that do, if any,
    are slower. Which of m, dim and hidden are one more than a multiple of the world: `axes`.
    """
    while True:
        world = draw.choice([8, 12, 16, 24])
        sizes = tuple(draw.randrange(48, 4800, 48) + (axis in axes) for axis in range(3))
        machine = (draw.uniform(1e-6, 1e-3), draw.uniform(1e-11, 1e-8), 1e11, 8)
        times = {tuple(shape): mlp_time(*sizes, shape, *machine) for shape in all_boxes(world)}
        even = [time for shape, time in times.items() if divides(shape, *sizes)]
        if min(even, default=math.inf) > 1.01 * min(times.values()):
            return world, sizes, machine


@hinted(HINTS["best"])
def check_best(sizes, all_of_them, best):
    world = math.prod(next(iter(all_of_them)))
    fastest = min(all_of_them, key=all_of_them.get)
    chosen = tuple(best) if isinstance(best, list) else best
    expect(
        chosen in all_of_them,
        f"best_grid for {world} ranks does not return a grid of {count_of(world, 'rank')}",
        fastest,
        best,
    )
    expect(
        math.isclose(all_of_them[chosen], all_of_them[fastest], rel_tol=1e-9),
        f"best_grid for m, dim, hidden = {sizes} on {count_of(world, 'rank')} is not the fastest one: it takes "
        f"{all_of_them[chosen] / all_of_them[fastest]:.2f} times as long",
        fastest,
        chosen,
        hint="" if divides(fastest, *sizes) else "The grid need not divide a dimension evenly. Which grids are tried?",
    )


def layer_costs(draw):
    """(layer_cost, its arguments) -> messages, and numbers sent."""
    answers = {}
    for inner, outer, depth in ((1, 1, 1), (2, 1, 1), (1, 3, 1), (1, 1, 4), (2, 4, 3)):
        m, k, n = (draw.randrange(24, 480, 24) for _ in range(3))
        numbers = 3 * (depth - 1) / depth * k * n / (inner * outer) + 2 * (inner - 1) / inner * m * n / (depth * outer)
        numbers += 2 * (outer - 1) / outer * m * k / (depth * inner)
        answers["layer_cost", (m, k, n, inner, outer, depth)] = (
            3 * (depth - 1) + 2 * (inner - 1) + 2 * (outer - 1),
            numbers,
        )
    return answers


@hinted(HINTS["factorings"])
def check_factorings(world, found):
    right = all_boxes(world)
    expect(
        isinstance(found, list) and all(isinstance(shape, list) for shape in found),
        f"factorings({world}) is not a list of grids",
        f"{len(right)} grids",
        found,
    )
    expect(
        sorted(found) == right,
        f"factorings({world}) do not contain each grid of three axes exactly once",
        f"{len(right)} grids",
        f"{len(found)} grids: {found}"[:300],
    )
    expect(found == right, f"factorings({world}) are not in ascending order", right, found)


def all_boxes(world):
    return [[x, y, world // (x * y)] for x in range(1, world + 1) for y in range(1, world + 1) if world % (x * y) == 0]


@todo(8)
def test_todo8_network(student):
    draw = student.draw("roofline")
    answers = {}
    for itemsize, world in ((2, 2), (4, 3), (8, 8), (2, 1)):  # one rank sends nothing
        speed, bandwidth = draw.uniform(1e12, 9e14), draw.uniform(1e10, 5e12)
        answers["smallest_block", (speed, bandwidth, itemsize)] = itemsize * speed / bandwidth
        width = (world - 1) / world * itemsize * speed / bandwidth
        answers["smallest_width", (speed, bandwidth, itemsize, world)] = width
    check_answers(student, answers, wrong="is not the size at which both take the same time")
