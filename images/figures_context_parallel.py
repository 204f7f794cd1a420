"""The figures of 06_context_parallel."""

from ink import BLUE, GREEN, GREY, INK, MIDDLE, ORANGE, PALE, PINK, arrow, canvas, cell, fill, key, note, title, write
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon

COLOURS = (BLUE, ORANGE, GREEN, PINK)


def context_ring() -> Figure:
    """Four ranks in four steps: whose keys and values each of them has; dashed, what the last sends to the first."""
    figure, axes = canvas(10.4)
    left, width, pitch, row = 4.2, 2.2, 3.85, 2.1
    title(axes, 2.6, 9.8, "queries", 10)
    for step in range(4):
        title(axes, left + width / 2 + pitch * step, 9.8, f"step {step}", 10)
    for rank in range(4):
        y = 7.9 - row * rank
        write(axes, 1.7, y + 0.6, f"rank {rank}", ha="right")
        cell(axes, 2.0, y, 1.2, 1.2, [COLOURS[rank]], f"Q{rank}")
        for step in range(4):
            x, source = left + pitch * step, (rank - step) % 4
            cell(axes, x, y, width, 1.2, [COLOURS[source]], f"K{source} V{source}")
            if step < 3 and rank < 3:
                arrow(axes, (x + width + 0.05, y + 0.4), (x + pitch - 0.05, y - row + 0.8), INK)
            elif step < 3:
                arrow(axes, (x + width + 0.05, y + 0.8), (x + pitch - 0.05, 8.3), linestyle=(0, (4, 2)))
    note(
        axes, 9.0, 0.7, "queries stay, keys and values move on;\nafter step 3, each rank's queries have met all of them"
    )
    return figure


def context_backward() -> Figure:
    """Three ranks: in each step a rank adds its part to the gradient it has; a last round returns them."""
    figure, axes = canvas(12.4)
    left, pitch, width = 2.0, 4.35, 2.9
    for step in range(4):
        title(axes, left + width / 2 + pitch * step, 11.8, f"step {step}" if step < 3 else "returned", 10)
    for rank in range(3):
        y = 8.0 - 3.1 * rank
        write(axes, 1.7, y + 1.2, f"rank {rank}", ha="right")
        for step in range(4):
            x, source = left + pitch * step, (rank - step) % 3
            if step < 3:
                cell(axes, x, y + 1.3, width, 1.2, [PALE], f"K{source} V{source}")
            parts = [COLOURS[(source + n) % 3] if n <= step else "#f6f6f6" for n in range(3)]
            cell(axes, x, y, width, 1.2, parts, f"dK{source} dV{source}")
            if step < 3 and rank < 2:
                arrow(axes, (x + width + 0.05, y + 0.6), (x + pitch - 0.05, y - 2.0), INK)
            elif step < 3:  # from the last rank to the first
                arrow(axes, (x + width + 0.05, y + 1.3), (x + pitch - 0.05, 8.6), linestyle=(0, (4, 2)))
    key(axes, 1.1, [([colour], f"part of rank {rank}") for rank, colour in enumerate(COLOURS[:3])], 2.0, 5.2)
    return figure


def context_blocks() -> Figure:
    """The square of scores for four ranks, in order and in zig-zag; the colour is the rank that has the queries."""
    figure, axes = canvas(13.8)
    ways = (
        ("in order", [0, 1, 2, 3], 1.6, (36, 100, 164, 228)),
        ("in zig-zag", [0, 1, 2, 3, 3, 2, 1, 0], 0.8, (132,) * 4),
    )
    for (name, owners, size, work), left in zip(ways, (2.2, 11.2), strict=True):
        top = 11.8
        title(axes, left + 3.2, 13.2, name)
        note(axes, left + 3.2, 12.3, "keys →")
        for row, owner in enumerate(owners):
            y = top - size * (row + 1)
            write(axes, left - 0.2, y + size / 2, f"rank {owner}" if size > 1 else str(owner), ha="right")
            for column in range(row + 1):
                x = left + size * column
                if column < row:
                    fill(axes, x, y, size, size, COLOURS[owner])
                else:
                    triangle(axes, x, y, size, COLOURS[owner])
        for cut in range(len(owners) + 1):
            for line in ([left + size * cut] * 2, [top, top - 6.4]), ([left, left + 6.4], [top - size * cut] * 2):
                axes.plot(*line, color=PALE, linewidth=0.8)
        note(axes, left + 2.2, 4.6, "pairs to compute")
        for rank, pairs in enumerate(work):
            y = 3.2 - 0.95 * rank
            write(axes, left - 0.2, y + 0.35, f"rank {rank}", ha="right")
            fill(axes, left, y, pairs / 228 * 5, 0.7, COLOURS[rank])
            write(axes, left + pairs / 228 * 5 + 0.2, y + 0.35, str(pairs), ha="left")
    return figure


def triangle(axes: Axes, x: float, y: float, size: float, colour: str) -> None:
    """Of a square on the diagonal, what the causal mask lets be seen."""
    axes.add_patch(Polygon([(x, y + size), (x, y), (x + size, y)], facecolor=colour, linewidth=0))


def context_overlap() -> Figure:
    """Steps of the ring: in turns, and with the exchange during the products."""
    figure, axes = canvas(9.2)
    compute, exchange, left = 2.5, 2.3, 0.4

    def attend(step: int, x: float, y: float) -> None:
        cell(axes, x, y, compute, 1.1, [COLOURS[step]], f"attend {step}")

    def send(x: float, y: float) -> None:
        cell(axes, x, y, exchange, 1.1, [MIDDLE], "exchange")

    title(axes, left, 8.7, "in turns", ha="left")
    title(axes, left, 4.6, "overlapped", ha="left")
    for step in range(4):
        attend(step, left + step * (compute + exchange), 7.0)
        attend(step, left + step * compute, 2.9)
        if step < 3:
            send(left + step * (compute + exchange) + compute, 5.8)
            send(left + step * compute, 1.7)
    end, soon = left + 4 * compute + 3 * exchange, left + 4 * compute
    for place, top in ((soon, 4.2), (end, 8.3)):
        axes.plot([place, place], [1.7, top], color=GREY, linewidth=1, linestyle="--")
    arrow(axes, (end, 2.6), (soon + 0.1, 2.6), INK)
    write(axes, (end + soon) / 2, 3.2, "time saved")
    note(axes, 17.6, 0.8, "time →", ha="right")
    return figure


def context_ulysses() -> Figure:
    """Three ranks, six heads, six tokens: columns before, rows in between, columns after."""
    figure, axes = canvas(9.2)
    size, lefts = 0.7, (1.0, 7.0, 13.4)
    titles = ("some tokens\nof all heads", "all tokens\nof some heads", "some tokens\nof all heads")
    for n, (left, name) in enumerate(zip(lefts, titles, strict=True)):
        title(axes, left + 3 * size, 8.3, name, 10)
        for head in range(6):
            for token in range(6):
                owner = head // 2 if n == 1 else token // 2
                cell(axes, left + size * token, 6.4 - size * head, size, size, [COLOURS[owner]])
        note(axes, left + 3 * size, 2.4, "tokens →")
    note(axes, 0.5, 5.0, "← heads", rotation=90)
    for left, end, text in ((lefts[0], lefts[1], "q, k, v"), (lefts[1], lefts[2], "output")):
        arrow(axes, (left + 6 * size + 0.2, 5.0), (end - 0.2, 5.0), INK)
        write(axes, (left + 6 * size + end) / 2, 5.6, text)
    note(axes, 9.1, 1.5, "arrows: all-to-all; attention runs in the middle, head by head")
    key(axes, 0.6, [([colour], f"rank {rank}") for rank, colour in enumerate(COLOURS[:3])], 4.4)
    return figure


FIGURES = {
    "context_backward": context_backward,
    "context_blocks": context_blocks,
    "context_overlap": context_overlap,
    "context_ring": context_ring,
    "context_ulysses": context_ulysses,
}
