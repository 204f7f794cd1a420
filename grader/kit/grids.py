"""A grid of ranks with a data axis and one more, whose ranks work on the same samples or tokens: tp, cp, ep."""

from collections.abc import Callable, Sequence

from grader.engine.judge.student_in_checks import Student
from grader.engine.judge.verdict import expect, hinted
from grader.kit.scripts import check_dealt, each_once
from grader.kit.drawn_sizes import rectangles
from grader.kit.split_on_rank import grids_on_rank


def check_grids(student: Student, flag: str, axes: list[str], argv: Sequence[str], last_axis: str) -> None:
    """make_mesh() for several values of a flag, on 4 and 6 ranks: rows of consecutive ranks.

    Args:
        argv: further flags, with which each value is accepted.
        last_axis: the hint where the axes are in another order.
    """
    for world, sizes in student.several(((4, (1, 2, 4)), (6, (2, 3)))):
        flags = [[*argv, flag, str(size)] for size in sizes]
        for rank, meshes in enumerate(student.call(grids_on_rank, world=world, flags=flags).evidence):
            expect("type" not in meshes[0], "make_mesh returns no mesh", "a DeviceMesh", meshes[0].get("type"), rank)
            for size, mesh in zip(sizes, meshes, strict=True):
                check_grid(f"with {flag} {size} on {world} ranks", mesh, world, size, axes, rank, last_axis)


def check_grid(told: str, mesh: dict, world: int, size: int, axes: list[str], rank: int, last_axis: str) -> None:
    seen, right = mesh["ranks"], [list(range(row, row + size)) for row in range(0, world, size)]
    grid = all(isinstance(row, list) for row in seen)
    two = "A grid has two axes, also where one of them has a single entry. How long is each?"
    expect(grid, f"{told} the ranks are not in a grid, with rows and columns", right, seen, rank, two)
    names = " and ".join(mesh["names"]) or "nothing"
    called = f"{told} the axes of the grid are called {names}, in this order"
    expect(mesh["names"] == axes, called, axes, mesh["names"], rank, last_axis)
    shape, wanted = f"{len(seen)} × {len(seen[0])}", f"{world // size} × {size}"
    expect(shape == wanted, f"{told} the grid is {shape}", wanted, shape, rank)
    expect(seen == right, f"{told} the ranks of a row do not have consecutive numbers", right, seen, rank)


def check_row_samplers(student: Student, samplers_on_rank: Callable, share: str) -> None:
    """make_samplers() on grids of up to six ranks, over two epochs: the ranks of a row read the same samples, and the
    rows together what one process does.

    Args:
        samplers_on_rank: a function of the lesson's ranks: its grid, the sets' sizes, a seed. It returns `dealt`.
        share: what the ranks of a row do, in words: "split each layer".
    """
    draw = student.draw("samplers")
    sizes = (draw.choice((35, 37, 41)), draw.choice((11, 13)), draw.choice((7, 13)))
    seed = draw.randrange(100)
    for rows, size in student.several(grid for grid in rectangles(draw, most=6) if grid[1] > 1):  # 1: rows are ranks
        told = f"on {rows} × {size} ranks"
        how = dict(grid=(rows, size), sizes=sizes, seed=seed)
        ranks = student.call(samplers_on_rank, world=rows * size, **how).evidence
        for rank, mine in enumerate(ranks):
            returned = mine.get("type")
            expect("type" not in mine, f"{told} make_samplers returns a {returned}", "three samplers", returned, rank)
            check_same_samples(told, rank, rank - rank % size, mine, ranks[rank - rank % size], share)
        row_by_row = ranks[::size]
        for name, number in zip(("validation", "test"), sizes[1:], strict=True):
            with hinted(
                "Each of these samples is read in one row, once. Which sampler sees to that, and which two numbers"
                " does it need?"
            ):
                each_once(name, [mine[name] for mine in row_by_row], number)
        with hinted(
            "In each step, the rows together train on what one process would. What determines the order, and what is"
            " dropped?"
        ):
            check_dealt(told, [mine["train"] for mine in row_by_row], sizes[0], seed, 4 * rows)


def check_same_samples(told: str, rank: int, first: int, mine: dict, its: dict, share: str) -> None:
    for name in ("train", "validation", "test"):
        expect(
            mine[name] == its[name],
            f"{told} ranks {first} and {rank} {share}, and read different {name} samples",
            its[name],
            mine[name],
            rank,
            "The ranks of a row read the same samples. How many different readers are there, then, and which coordinate"
            " of the grid numbers them?",
        )
