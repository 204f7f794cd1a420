"""The figures of 01_collectives."""

from ink import BLUE, GREEN, GREY, INK, MIDDLE, ORANGE, PALE, PINK, RED, arrow, box, canvas, cell, write
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle


def collectives() -> Figure:
    """What three ranks hold before and after; the digit of a sum tells whom it came from."""
    ranks = (BLUE, ORANGE, GREEN)
    before = [[(10**rank * n, [colour]) for n in (1, 2, 3)] for rank, colour in enumerate(ranks)]
    total = [(sum(before[rank][i][0] for rank in range(3)), list(ranks)) for i in range(3)]
    after = {
        "all-reduce": ("the whole sum, on every rank", [total] * 3),
        "all-gather": ("all vectors by rank, on every rank", [[*before[0], *before[1], *before[2]]] * 3),
        "reduce-scatter": ("one piece of the sum for each rank", [[total[rank]] for rank in range(3)]),
    }

    figure, axes = canvas(11, 4.7, 29.4, 12.8)
    left = 1.2
    for place, when in ((8.4, "before"), (2.4, "after")):
        write(axes, 0.7, place, when, 11, color=GREY, rotation=90)
    for name, (meaning, held) in after.items():
        first, width = left + 2.3, max(3, len(held[0]))  # where its cells begin
        middle = first + width / 2 - 0.8
        write(axes, middle, 12.1, name, 14, weight="bold")
        write(axes, middle, 11.2, meaning, 9.5, color=GREY)
        for rows, top in ((before, 9.2), (held, 3.2)):
            for rank, row in enumerate(rows):
                y = top - 1.4 * rank
                # The vectors stand in the middle, a piece at its place in the whole.
                start = first + (rank if len(row) == 1 else (width - len(row)) / 2)
                write(axes, (first if rows is held else start) - 0.2, y + 0.6, f"rank {rank}", 9.5, ha="right")
                for i, (number, colours) in enumerate(row):
                    cell(axes, start + i, y, 1, 1.2, colours, str(number), 10)
        arrow(axes, (first + width / 2, 6.1), (first + width / 2, 4.8), INK)
        left = first + width + 2.0
        if name != "reduce-scatter":
            axes.plot([left - 0.6] * 2, [0.2, 12.5], color=PALE, linewidth=1)
    return figure


def ranks() -> Figure:
    """Two nodes with four ranks each, and the ring through all of them."""
    figure, axes = canvas(11, 3.1, 33, 9.3)
    for node in range(2):
        box(axes, 1.6 + 15.6 * node, 3.1, 14.2, 5.6, "#fbfbfb", "#b5b5b5")
        write(axes, 8.7 + 15.6 * node, 8.0, f"node {node}", 12, weight="bold")
    places = [2.3 + 3.3 * local + 15.6 * node for node in range(2) for local in range(4)]
    for rank, x in enumerate(places):
        box(axes, x, 4.1, 2.6, 3.0, (BLUE, ORANGE, GREEN, PINK)[rank % 4], "white")
        write(axes, x + 1.3, 6.1, f"rank {rank}", 10.5)
        write(axes, x + 1.3, 4.9, f"local {rank % 4}", 9)
        if rank < 7:
            between = rank == 3
            arrow(axes, (x + 2.6, 5.6), (places[rank + 1], 5.6), RED if between else INK)
    axes.plot([places[7] + 1.3] * 2 + [places[0] + 1.3], [4.1, 1.6, 1.6], color=RED, linewidth=1.5)
    arrow(axes, (places[0] + 1.3, 1.6), (places[0] + 1.3, 4.1), RED)
    write(
        axes,
        16.5,
        0.8,
        "the ring: each rank sends to the next one, the last to rank 0; red links lead from node to node",
        10,
        color=GREY,
    )
    return figure


def tree() -> Figure:
    """A broadcast to eight ranks in three rounds: who has the tensor, and from whom."""
    figure, axes = canvas(11, 4.2, 33, 12.6)
    height = [10.2, 7.2, 4.2, 1.2]
    for row, y in enumerate(height):
        have = 2**row
        write(axes, 4.6, y + 0.6, f"after round {row}" if row else "before", 10, ha="right", color=GREY)
        for rank in range(8):
            x = 5.6 + 3.4 * rank
            if row and have // 2 <= rank < have:
                arrow(axes, (5.6 + 3.4 * (rank - have // 2) + 1.2, height[row - 1]), (x + 1.2, y + 1.2), INK)
            cell(axes, x, y, 2.4, 1.2, [BLUE if rank < have else PALE], f"rank {rank}", 9.5)
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


def ring(reduce: bool, gather: bool) -> Figure:
    """Three ranks with three pieces each, round by round."""
    colours, moments = (BLUE, ORANGE, GREEN), ring_rounds(reduce, gather)
    wide = len(moments) > 3
    gap = 4.9 if wide else 6.4
    figure, axes = canvas(11 if wide else 8.4, 3.3, 3.2 + gap * len(moments), 9.3)
    for column, (name, held, leaving) in enumerate(moments):
        x = 2.4 + gap * column
        write(axes, x + 1.65, 8.6, name, 11, weight="bold")
        if wide and column in (1, 3):
            write(axes, x + 1.65, 0.5, "reduce-scatter" if column == 1 else "all-gather", 10, color=GREY)
        for rank in range(3):
            y = 6.2 - 2.4 * rank
            if column == 0:
                write(axes, x - 0.3, y + 0.6, f"rank {rank}", 10, ha="right")
            for piece in range(3):
                numbers = sorted(held[rank][piece])
                text = str(sum(10**n for n in numbers) * (piece + 1)) if numbers else ""
                cell(axes, x + 1.1 * piece, y, 1.1, 1.2, [colours[n] for n in numbers] or [PALE], text, 9.5)
            if column + 1 < len(moments):
                start, below, down = x + 1.1 * leaving[rank] + 0.55, 6.2 - 2.4 * ((rank + 1) % 3), rank < 2
                arrow(
                    axes,
                    (start, y if down else y + 1.2),
                    (start + gap, below + 1.2 if down else below),
                    INK,
                    zorder=0.5,
                )
    return figure


def all_to_all() -> Figure:
    """Three ranks with a piece for each, before and after."""
    figure, axes = canvas(8.4, 3.0, 25.2, 9.0)
    for x, when in ((4.2, "before"), (16.2, "after")):
        write(axes, x + 3.0, 8.2, when, 12, weight="bold")
        for rank in range(3):
            y = 5.9 - 2.2 * rank
            write(axes, x - 0.4, y + 0.75, f"rank {rank}", 10, ha="right")
            for place in range(3):
                source, target = (rank, place) if when == "before" else (place, rank)
                cell(axes, x + 2.0 * place, y, 2.0, 1.5, [(BLUE, ORANGE, GREEN)[source]], f"{source} to {target}", 9.5)
    arrow(axes, (11.0, 4.45), (13.4, 4.45), INK)
    return figure


def cost() -> Figure:
    """An all-reduce on four ranks, as rounds of alpha and of bytes: many short ones by a ring, few long ones by a
    tree.
    """
    figure, axes = canvas(11, 3.7, 33, 11.1)
    unit = 1.25  # of alpha, on paper
    for y, size, name in ((8.2, 0.4, "a small tensor"), (3.2, 4.0, "a large tensor")):
        write(axes, 0.6, y + 1.9, name, 11, ha="left", weight="bold")
        for row, (algorithm, rounds, share) in enumerate((("ring", 6, 1 / 4), ("tree", 4, 1))):
            x, below = 6.0, y - 1.5 * row
            write(axes, x - 0.4, below + 0.5, f"{algorithm}, {rounds} rounds", 10, ha="right")
            for _ in range(rounds):
                for width, colour in ((unit, MIDDLE), (unit * size * share, BLUE)):
                    axes.add_patch(Rectangle((x, below), width, 1.0, facecolor=colour, linewidth=0))
                    x += width
                axes.plot([x, x], [below, below + 1.0], color="white", linewidth=2)
    for x, colour, text in ((6.0, MIDDLE, "latency"), (11.2, BLUE, "bytes")):
        axes.add_patch(Rectangle((x, 0.2), 0.8, 0.7, facecolor=colour, linewidth=0))
        write(axes, x + 1.1, 0.55, text, 9.5, ha="left")
    write(axes, 32.0, 0.55, "time →", 9.5, ha="right", color=GREY)
    return figure


FIGURES = {
    "all_to_all.png": all_to_all,
    "collectives.png": collectives,
    "cost.png": cost,
    "ranks.png": ranks,
    "ring_all_gather.png": lambda: ring(reduce=False, gather=True),
    "ring_all_reduce.png": lambda: ring(reduce=True, gather=True),
    "ring_reduce_scatter.png": lambda: ring(reduce=True, gather=False),
    "tree.png": tree,
}
