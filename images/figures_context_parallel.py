"""The figures of 06_context_parallel."""

from ink import BLUE, GREEN, GREY, INK, MIDDLE, ORANGE, PALE, PINK, arrow, canvas, cell, write
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle

COLOURS = (BLUE, ORANGE, GREEN, PINK)


def context_ring() -> Figure:
    """Four ranks in four steps: whose keys and values each of them has at hand."""
    figure, axes = canvas(11, 4.4, 33, 13.2)
    left, width, row = 6.6, 5.6, 2.6
    for step in range(4):
        write(axes, left + 2.6 + 6.8 * step, 12.6, f"step {step}", 11, weight="bold")
    for rank in range(4):
        y = 9.4 - row * rank
        write(axes, 0.3, y + 0.9, f"rank {rank}", 11, ha="left")
        cell(axes, 2.8, y, 2.4, 1.8, [COLOURS[rank]], f"Q{rank}", 10)
        for step in range(4):
            x, source = left + 6.8 * step, (rank - step) % 4
            cell(axes, x, y, width / 2, 1.8, [COLOURS[source]], f"K{source}", 10)
            cell(axes, x + width / 2, y, width / 2, 1.8, [COLOURS[source]], f"V{source}", 10)
            if step < 3 and rank < 3:
                arrow(axes, (x + width + 0.1, y + 0.7), (x + 6.7, y - 0.9))
            elif step < 3:
                axes.plot([x + width + 0.1, x + 6.2], [y + 0.7, y + 0.7], color=GREY, linewidth=1.5)
                write(axes, x + 6.25, y + 1.25, "to 0", 7.5, color=GREY)
    write(axes, 4.0, 0.6, "queries stay", 10, color=GREY)
    write(
        axes,
        19.6,
        0.6,
        "keys and values go round; after step 3, each rank's queries have met all of them",
        10,
        color=GREY,
    )
    return figure


def context_backward() -> Figure:
    """Three ranks: in each step a rank adds its share to the gradient at hand; a last round brings them home."""
    figure, axes = canvas(11, 4.0, 33, 12.0)
    left, pitch, width = 3.4, 7.6, 3.0
    for step in range(4):
        write(axes, left + 2.9 + pitch * step, 11.3, f"step {step}" if step < 3 else "at home", 11, weight="bold")
    for rank in range(3):
        y = 8.0 - 3.1 * rank
        write(axes, 0.3, y + 0.9, f"rank {rank}", 11, ha="left")
        for step in range(4):
            x, source = left + pitch * step, (rank - step) % 3
            if step < 3:
                cell(axes, x, y, 2.4, 1.9, [COLOURS[source]], f"K{source} V{source}", 9)
            shares = [COLOURS[(source + n) % 3] for n in range(min(step + 1, 3))]
            for n in range(3):
                colour = shares[n] if n < len(shares) else PALE
                axes.add_patch(Rectangle((x + 2.7 + width / 3 * n, y), width / 3, 1.9, facecolor=colour, linewidth=0))
            axes.add_patch(Rectangle((x + 2.7, y), width, 1.9, fill=False, edgecolor="white", linewidth=1.5))
            write(axes, x + 2.7 + width / 2, y + 0.95, f"dK{source} dV{source}", 9)
            later = x + pitch - 0.1 + (2.7 if step == 2 else 0)  # where the next step's boxes begin
            if step < 3 and rank < 2:
                arrow(axes, (x + 5.9, y + 0.6), (later, y - 1.0))
            elif step < 3:  # from the last rank round to the first
                arrow(axes, (x + 5.9, y + 1.3), (later, 8.0 + 0.5))
    write(
        axes,
        16.5,
        0.6,
        "a stripe of a gradient: the share of the rank of this colour, added while it was there",
        10,
        color=GREY,
    )
    return figure


def triangle(axes: Axes, x: float, y: float, size: float, colour: str) -> None:
    """Of a square on the diagonal, what the causal mask lets be seen."""
    axes.add_patch(Polygon([(x, y + size), (x, y), (x + size, y)], facecolor=colour, linewidth=0))


def context_blocks() -> Figure:
    """The square of scores for four ranks, in order and in zig-zag; the colour is the rank that has the queries."""
    figure, axes = canvas(11, 5.0, 33, 15.0)
    ways = (("in order", [0, 1, 2, 3], 2.6), ("in zig-zag", [0, 1, 2, 3, 3, 2, 1, 0], 1.3))
    for (name, owners, size), left, work in zip(ways, (3.4, 20.2), ((36, 100, 164, 228), (132,) * 4), strict=True):
        top = 12.6
        write(axes, left + 5.2, 14.2, name, 13, weight="bold")
        write(axes, left + 5.2, 13.3, "keys", 9.5, color=GREY)
        for row, owner in enumerate(owners):
            y = top - size * (row + 1)
            write(axes, left - 0.3, y + size / 2, f"rank {owner}", 9 if size > 2 else 7.5, ha="right")
            for column in range(len(owners)):
                x = left + size * column
                if column < row:
                    axes.add_patch(Rectangle((x, y), size, size, facecolor=COLOURS[owner], linewidth=0))
                elif column == row:
                    triangle(axes, x, y, size, COLOURS[owner])
                axes.add_patch(Rectangle((x, y), size, size, fill=False, edgecolor=PALE, linewidth=0.8))
        for rank, pairs in enumerate(work):
            x = left - 1.0 + 3.4 * rank
            axes.add_patch(Rectangle((x, 0.5), 0.7, 0.7, facecolor=COLOURS[rank], linewidth=0))
            write(axes, x + 0.9, 0.85, f"{pairs} pairs", 9, ha="left")
    write(axes, 0.5, 7.4, "queries", 9.5, color=GREY, rotation=90)
    write(axes, 17.3, 7.4, "queries", 9.5, color=GREY, rotation=90)
    return figure


def context_overlap() -> Figure:
    """Steps of the ring: in turns, and with the exchange below the products."""
    figure, axes = canvas(11, 3.6, 33, 10.8)
    compute, exchange, left = 3.6, 2.5, 5.2
    write(axes, 0.4, 8.6, "in turns", 11, ha="left", weight="bold")
    write(axes, 0.4, 4.2, "overlapped", 11, ha="left", weight="bold")
    x = left
    for step in range(4):
        cell(axes, x, 8.6, compute, 1.3, [COLOURS[step]], f"attend {step}", 9)
        x += compute
        if step < 3:
            cell(axes, x, 7.2, exchange, 1.3, [MIDDLE], f"send {step}, get {step + 1}", 7.5)
            x += exchange
    end = x
    for step in range(4):
        cell(axes, left + compute * step, 4.2, compute, 1.3, [COLOURS[step]], f"attend {step}", 9)
        if step < 3:
            cell(axes, left + compute * step, 2.8, exchange, 1.3, [MIDDLE], f"send {step}, get {step + 1}", 7.5)
    soon = left + 4 * compute
    arrow(axes, (end, 3.5), (soon + 0.2, 3.5), INK)
    write(axes, (end + soon) / 2, 4.2, "saved", 10)
    for place, top in ((soon, 5.8), (end, 10.2)):
        axes.plot([place, place], [2.2, top], color=GREY, linewidth=1, linestyle="--")
    arrow(axes, (left, 1.5), (end + 1.0, 1.5))
    write(axes, end + 1.2, 1.5, "time", 9.5, ha="left", color=GREY)
    return figure


def context_ulysses() -> Figure:
    """Three ranks, six heads, six tokens: columns before, rows in between, columns after."""
    figure, axes = canvas(11, 4.2, 33, 12.6)
    size, lefts = 1.25, (3.6, 14.0, 24.4)
    titles = ("each rank: some tokens of all heads", "all tokens of some heads", "some tokens of all heads")
    for n, (left, title) in enumerate(zip(lefts, titles, strict=True)):
        write(axes, left + 3 * size, 11.9, title, 10.5, weight="bold")
        for head in range(6):
            for token in range(6):
                owner = head // 2 if n == 1 else token // 2
                x, y = left + size * token, 9.6 - size * head
                axes.add_patch(
                    Rectangle((x, y), size, size, facecolor=COLOURS[owner], edgecolor="white", linewidth=1.5)
                )
        write(axes, left + 3 * size, 2.4, "tokens", 9.5, color=GREY)
        write(axes, left - 0.6, 9.6 - 2 * size, "heads", 9.5, color=GREY, rotation=90)
    for left, text in ((lefts[0], "q, k, v"), (lefts[1], "output")):
        arrow(axes, (left + 6 * size + 0.4, 7.1), (left + 9.4, 7.1), INK)
        write(axes, left + 6 * size + 1.1, 7.9, text, 9.5, ha="center")
        write(axes, left + 6 * size + 1.1, 6.3, "all-to-all", 8, color=GREY)
    write(axes, lefts[1] + 3 * size, 1.4, "attention happens here, head by head", 10, color=GREY)
    for rank in range(3):
        x = 3.6 + 3.2 * rank
        axes.add_patch(Rectangle((x, 0.4), 0.8, 0.7, facecolor=COLOURS[rank], linewidth=0))
        write(axes, x + 1.1, 0.75, f"rank {rank}", 9.5, ha="left")
    return figure


FIGURES = {
    "context_backward.png": context_backward,
    "context_blocks.png": context_blocks,
    "context_overlap.png": context_overlap,
    "context_ring.png": context_ring,
    "context_ulysses.png": context_ulysses,
}
