"""The figures of 01_collectives."""

from ink import (
    BLUE, GREEN, GREY, INK, MIDDLE, ORANGE, PALE, PINK, arrow, box, canvas, cell, fill, key, note, title, write,
)  # fmt: skip
from matplotlib.axes import Axes
from matplotlib.figure import Figure

RANKS = (BLUE, ORANGE, GREEN)


def collectives() -> Figure:
    """What three ranks hold before and after; a colour tells which rank it came from."""
    given = [[(10**rank * n, [colour]) for n in (1, 2, 3)] for rank, colour in enumerate(RANKS)]
    empty = [("", [PALE])] * 3
    total = [(sum(given[rank][i][0] for rank in range(3)), RANKS) for i in range(3)]
    rows = (
        ("broadcast", "one rank's tensor, on every rank", [given[0], empty, empty], [given[0]] * 3),
        ("all-reduce", "the sum (or mean, minimum, maximum), on every rank", given, [total] * 3),
        ("all-gather", "all tensors in order of rank, on every rank", given, [[*given[0], *given[1], *given[2]]] * 3),
        ("reduce-scatter", "one piece of the sum on each rank", given, [[total[rank]] for rank in range(3)]),
    )
    figure, axes = canvas(19.4)
    for number, (name, meaning, before, after) in enumerate(rows):
        top = 18.8 - 4.8 * number
        title(axes, 0.3, top, name, 12, ha="left")
        note(axes, 0.9 + 0.3 * len(name), top - 0.03, meaning, ha="left")
        for rank in range(3):
            y = top - 1.65 - 1.05 * rank
            write(axes, 1.8, y + 0.5, f"rank {rank}", ha="right")
            for i, (text, colours) in enumerate(before[rank]):
                cell(axes, 2.1 + 1.1 * i, y, 1.1, 1.0, colours, str(text))
            start = 7.4 + (1.1 * rank if len(after[rank]) == 1 else 0)  # a piece stands at its place in the whole
            for i, (text, colours) in enumerate(after[rank]):
                cell(axes, start + 1.1 * i, y, 1.1, 1.0, colours, str(text))
        arrow(axes, (5.8, top - 2.2), (7.0, top - 2.2), INK)
    return figure


def no_communication() -> Figure:
    """Four devices that train without communication: equal at first, four models after one step."""
    figure, axes = canvas(9.2)
    for x, name in ((2.9, "weights"), (6.8, "samples"), (11.0, "gradient"), (15.8, "weights after\na step")):
        title(axes, x, 8.5, name, 10)
    steps = ((BLUE, 1, 9), (ORANGE, -3, 13), (GREEN, 8, 2), (PINK, 2, 8))
    for rank, (colour, gradient, weight) in enumerate(steps):
        y = 6.4 - 1.7 * rank
        write(axes, 1.7, y + 0.6, f"rank {rank}", ha="right")
        cell(axes, 2.0, y, 1.8, 1.2, [PALE], "10")
        for i in range(3):
            cell(axes, 5.3 + i, y, 1.0, 1.2, [colour], str(3 * rank + i + 1))
        cell(axes, 10.0, y, 2.0, 1.2, [colour], f"{gradient:+d}".replace("-", "−"))
        cell(axes, 14.8, y, 2.0, 1.2, [colour], str(weight))
        for start, end in ((4.0, 5.1), (8.5, 9.8), (12.2, 14.6)):
            arrow(axes, (start, y + 0.6), (end, y + 0.6), INK)
    note(axes, 9.0, 0.5, "four times the work, and four models: none has learned from all samples")
    return figure


def ranks() -> Figure:
    """Two nodes with four ranks each, and the ring through all of them."""
    figure, axes = canvas(11.6)
    for node, y in ((0, 6.6), (1, 1.6)):
        box(axes, 0.4, y, 17.2, 4.0, "#fbfbfb", "#b5b5b5")
        title(axes, 9.0, y + 3.4, f"node {node}")
    places = {rank: (1.3 + 4.2 * (rank if rank < 4 else 7 - rank), 6.9 if rank < 4 else 1.9) for rank in range(8)}
    for rank, (x, y) in places.items():
        box(axes, x, y, 2.8, 2.6, (BLUE, ORANGE, GREEN, PINK)[rank % 4], "white")
        write(axes, x + 1.4, y + 1.7, f"rank {rank}", 11)
        write(axes, x + 1.4, y + 0.8, f"local {rank % 4}")
        then = places[(rank + 1) % 8]
        if then[1] == y:
            end = (then[0], y + 1.3) if rank < 4 else (then[0] + 2.8, y + 1.3)
            arrow(axes, (x + 2.8 if rank < 4 else x, y + 1.3), end, INK)
        else:  # to the other node
            down = rank == 3
            ends = (x + 1.4, y if down else y + 2.6), (x + 1.4, then[1] + 2.6 if down else then[1])
            arrow(axes, *ends, INK, linewidth=3.2, mutation_scale=16)
    title(axes, 9.0, 11.1, "world size 8: ranks 0 to 7", 10)
    note(axes, 9.0, 0.7, "the ring: each rank sends to the next, the last to rank 0;\nthick: from node to node")
    return figure


def tree() -> Figure:
    """A broadcast to eight ranks in three rounds: which ranks have the tensor, and from where."""
    figure, axes = canvas(9.6)
    height = [6.8, 4.7, 2.6, 0.5]
    title(axes, 2.2, 9.0, "rank", ha="right", size=10)
    for row, y in enumerate(height):
        have = 2**row
        write(axes, 2.2, y + 0.5, f"round {row}" if row else "before", ha="right", color=GREY)
        for rank in range(8):
            x = 2.8 + 1.9 * rank
            if row == 0:
                title(axes, x + 0.7, 9.0, str(rank), 10)
            if row and have // 2 <= rank < have:
                start = 2.8 + 1.9 * (rank - have // 2) + 0.7, height[row - 1]
                arrow(axes, start, (x + 0.7, y + 1.0), INK)
            cell(axes, x, y, 1.4, 1.0, [BLUE if rank < have else PALE])
    return figure


def ring_rounds(reduce: bool, gather: bool) -> list[tuple[str, list[list[set[int]]], list[int]]]:
    """For each moment of a ring of three ranks its name, whose numbers are in piece p of rank r ([r][p], empty where
    it is of no use), and which piece each rank sends next."""
    world = range(3)
    held = [[{r} if reduce else set(world) if p == r else set() for p in world] for r in world]
    moments = []
    for step in range(2 * (reduce + gather) + 1):
        adding = reduce and step < 2
        leaving = [(r - 1 - step if adding else r - step + 2 * reduce) % 3 for r in world]
        moments.append((f"after round {step}" if step else "before", held, leaving))
        after = [[set(numbers) for numbers in row] for row in held]
        for r in world:
            after[(r + 1) % 3][leaving[r]] |= held[r][leaving[r]]
            if adding:
                after[r][leaving[r]] -= held[r][leaving[r]]
        held = after
    return moments


def ring_row(axes: Axes, top: float, moments: list[tuple[str, list[list[set[int]]], list[int]]]) -> None:
    """Three moments of three ranks from left to right; the arrows are the messages between them."""
    for column, (name, held, leaving) in enumerate(moments):
        x = 2.0 + 6.1 * column
        title(axes, x + 1.65, top, name, 10)
        for rank in range(3):
            y = top - 1.7 - 1.9 * rank
            if column == 0:
                write(axes, x - 0.3, y + 0.5, f"rank {rank}", ha="right")
            for piece in range(3):
                numbers = sorted(held[rank][piece])
                text = str(sum(10**n for n in numbers) * (piece + 1)) if numbers else ""
                cell(axes, x + 1.1 * piece, y, 1.1, 1.0, [RANKS[n] for n in numbers] or [PALE], text)
            if column < 2:  # from the piece's lower edge to where it arrives; the last rank's goes up to rank 0
                to, down = (rank + 1) % 3, rank < 2
                at = 1.1 * leaving[rank] + 0.55
                below = top - 1.7 - 1.9 * to
                start, end = (x + at, y if down else y + 1.0), (x + 6.1 + at, below + 1.0 if down else below)
                arrow(axes, start, end, INK if down else GREY, zorder=0.5, linestyle="-" if down else (0, (4, 2)))


def ring(reduce: bool, gather: bool) -> Figure:
    """Three ranks with three pieces each, round by round; dashed, what the last rank sends to the first."""
    moments = ring_rounds(reduce, gather)
    if not (reduce and gather):
        figure, axes = canvas(7.2)
        ring_row(axes, 6.6, moments)
        return figure
    figure, axes = canvas(16.6)
    title(axes, 0.3, 16.0, "reduce-scatter", 12, ha="left")
    ring_row(axes, 14.8, moments[:3])
    title(axes, 0.3, 7.7, "all-gather", 12, ha="left")
    ring_row(axes, 6.5, moments[2:])
    return figure


def all_to_all() -> Figure:
    """Three ranks with a piece for each, before and after."""
    figure, axes = canvas(5.6)
    for x, when in ((2.0, "before"), (11.8, "after")):
        title(axes, x + 2.85, 5.1, when)
        for rank in range(3):
            y = 3.3 - 1.4 * rank
            write(axes, x - 0.3, y + 0.6, f"rank {rank}", ha="right")
            for place in range(3):
                source, target = (rank, place) if when == "before" else (place, rank)
                cell(axes, x + 1.9 * place, y, 1.9, 1.2, [RANKS[source]], f"{source} to {target}")
    arrow(axes, (8.1, 2.5), (9.4, 2.5), INK)
    return figure


def cost() -> Figure:
    """An all-reduce on four ranks, as rounds of latency and of bytes: many short ones in a ring, few long ones in a
    tree.
    """
    figure, axes = canvas(8.6)
    unit = 0.68  # of latency, on paper
    for top, size, name in ((8.1, 0.4, "a small tensor"), (4.5, 4.0, "a large tensor")):
        title(axes, 0.3, top, name, ha="left")
        for row, (algorithm, rounds, part) in enumerate((("ring, 6 rounds", 6, 1 / 4), ("tree, 4 rounds", 4, 1))):
            x, y = 4.1, top - 1.5 - 1.2 * row
            write(axes, 3.8, y + 0.45, algorithm, ha="right")
            for _ in range(rounds):
                for width, colour in ((unit, MIDDLE), (unit * size * part, BLUE)):
                    fill(axes, x, y, width, 0.9, colour)
                    x += width
                axes.plot([x, x], [y, y + 0.9], color="white", linewidth=2)
    key(axes, 0.7, (([MIDDLE], "latency"), ([BLUE], "bytes")), x=4.1)
    note(axes, 17.7, 0.7, "time →", ha="right")
    return figure


FIGURES = {
    "all_to_all": all_to_all,
    "collectives": collectives,
    "cost": cost,
    "no_communication": no_communication,
    "ranks": ranks,
    "ring_all_gather": lambda: ring(reduce=False, gather=True),
    "ring_all_reduce": lambda: ring(reduce=True, gather=True),
    "ring_reduce_scatter": lambda: ring(reduce=True, gather=False),
    "tree": tree,
}
