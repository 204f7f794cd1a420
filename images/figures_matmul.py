"""The figures of 08_distributed_matmul."""

from ink import BLUE, DARK, GREEN, GREY, INK, ORANGE, PALE, PINK, arrow, canvas, cell, write
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

RANKS = (BLUE, ORANGE, GREEN, PINK, "#9fd1f0", "#f6d38a")


def matrix(
    axes: Axes,
    left: float,
    top: float,
    widths: list[float],
    heights: list[float],
    colours: list[list[list[str]]],
    texts: list[list[str]] | None = None,
    size: float = 9,
) -> None:
    """A matrix of blocks, from the top left; each block has a list of colours, its stripes."""
    y = top
    for row, height in enumerate(heights):
        y -= height
        x = left
        for column, width in enumerate(widths):
            text = texts[row][column] if texts else ""
            cell(axes, x, y, width, height, colours[row][column], text, size)
            x += width


def matmul_one_d() -> Figure:
    """Y = XW cut by rows, by columns and along the inner dimension, on two ranks: whose is what, and what has to be
    sent.
    """
    figure, axes = canvas(11.5, 4.6, 34.5, 13.8)
    both = [BLUE, ORANGE]
    cuts = (
        ("by rows", "FSDP", "gather W forward and backward,\nreduce-scatter its gradient"),
        ("by columns", "Megatron's first layer", "forward nothing,\nall-reduce the gradient of X"),
        ("by the inner dimension", "Megatron's second layer", "all-reduce Y,\nbackward nothing"),
    )
    for number, (name, meaning, sent) in enumerate(cuts):
        left = 0.9 + 11.5 * number
        write(axes, left + 5.0, 13.1, name, 13, weight="bold")
        write(axes, left + 5.0, 12.2, meaning, 10, color=GREY)
        m, k, n, top = 4.0, 2.0, 3.0, 7.6
        x, w, y = left, left + k + 1.0, left + k + 1.0
        if number == 0:
            matrix(axes, x, top, [k], [m / 2] * 2, [[[BLUE]], [[ORANGE]]])
            matrix(axes, w, top + 3.2, [n], [k / 2] * 2, [[[BLUE]], [[ORANGE]]])
            matrix(axes, y, top, [n], [m / 2] * 2, [[[BLUE]], [[ORANGE]]])
        elif number == 1:
            matrix(axes, x, top, [k], [m], [[both]])
            matrix(axes, w, top + 3.2, [n / 2] * 2, [k], [[[BLUE], [ORANGE]]])
            matrix(axes, y, top, [n / 2] * 2, [m], [[[BLUE], [ORANGE]]])
        else:
            matrix(axes, x, top, [k / 2] * 2, [m], [[[BLUE], [ORANGE]]])
            matrix(axes, w, top + 3.2, [n], [k / 2] * 2, [[[BLUE]], [[ORANGE]]])
            matrix(axes, y, top, [n], [m], [[both]], [["sum"]])
        write(axes, x - 0.45, top - m / 2, "X", 12, weight="bold")
        write(axes, w + n + 0.5, top + 2.2, "W", 12, weight="bold")
        write(axes, y + n + 0.5, top - m / 2, "Y", 12, weight="bold")
        if number == 0:
            write(axes, w + n + 1.0, top + 2.2, "as shards", 9, ha="left", color=GREY)
        write(axes, left + 5.0, 2.4, sent, 10)
    for x, colour, text in ((11.2, BLUE, "rank 0"), (15.0, ORANGE, "rank 1")):
        axes.add_patch(Rectangle((x, 0.4), 0.8, 0.7, facecolor=colour, linewidth=0))
        write(axes, x + 1.1, 0.75, text, 9.5, ha="left")
    for stripe, colour in enumerate((BLUE, ORANGE)):
        axes.add_patch(Rectangle((18.8 + 0.4 * stripe, 0.4), 0.4, 0.7, facecolor=colour, linewidth=0))
    write(axes, 19.9, 0.75, "the same on both", 9.5, ha="left")
    return figure


def matmul_grid() -> Figure:
    """A matrix of 5 × 7 on a grid of 2 × 3, and the two lines through rank 4."""
    figure, axes = canvas(10, 3.6, 30, 10.8)
    side, left, top = 1.35, 2.2, 9.0
    row_of, column_of = [0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 2, 2]
    for i in range(5):
        for j in range(7):
            rank = 3 * row_of[i] + column_of[j]
            cell(axes, left + side * j, top - side * (i + 1), side, side, [RANKS[rank]], f"{i},{j}", 8)
    write(axes, left + 3.5 * side, 9.9, "the matrix", 11, weight="bold")
    write(axes, 23.2, 9.9, "the grid", 11, weight="bold")
    for rank in range(6):
        row, column = divmod(rank, 3)
        x, y = 18.2 + 3.6 * column, 6.0 - 3.6 * row
        cell(axes, x, y, 2.8, 2.2, [RANKS[rank]], f"rank {rank}\nat {row}, {column}", 10)
    axes.add_patch(Rectangle((17.7, 2.0), 11.0, 3.0, fill=False, edgecolor=DARK, linewidth=1.6, linestyle="--"))
    axes.add_patch(Rectangle((21.4, 1.6), 3.6, 7.1, fill=False, edgecolor=DARK, linewidth=1.6, linestyle=":"))
    write(axes, 23.2, 0.9, "rank 4's lines: along axis 0 dotted, along axis 1 dashed", 9.5, color=GREY)
    return figure


def matmul_cannon() -> Figure:
    """Cannon on 3 × 3 ranks: the skew brings blocks together whose inner indices agree; each step changes that index
    by one.
    """
    figure, axes = canvas(12, 4.4, 36, 13.2)
    colours = (BLUE, ORANGE, GREEN)
    panels = ("given", "after the skew: step 0", "step 1", "step 2")
    for number, name in enumerate(panels):
        left = 0.8 + 9.0 * number
        write(axes, left + 3.8, 12.4, name, 12, weight="bold")
        for i in range(3):
            for j in range(3):
                x, y = left + 2.6 * j, 8.7 - 3.1 * i
                of_x, of_w = (j, i) if number == 0 else ((i + j + number - 1) % 3,) * 2
                cell(axes, x, y + 1.15, 2.4, 1.15, [colours[of_x]], f"X {i},{of_x}", 9)
                cell(axes, x, y, 2.4, 1.15, [colours[of_w]], f"W {of_w},{j}", 9)
                if number == 0 and i == j:
                    axes.add_patch(Rectangle((x - 0.05, y - 0.05), 2.5, 2.4, fill=False, edgecolor=INK, linewidth=1.6))
    write(axes, 4.6, 1.5, "the inner indices agree\non the diagonal only", 9.5, color=GREY)
    write(
        axes, 22.6, 1.5, "they agree everywhere; before each step X goes\none to the left and W one up", 9.5, color=GREY
    )
    return figure


def matmul_summa() -> Figure:
    """A panel of SUMMA on 2 × 3 ranks: broadcast along rows and columns of the grid, multiplied everywhere."""
    figure, axes = canvas(11.5, 4.8, 34.5, 14.4)
    top, tall, wide = 8.3, 2.9, 2.6
    x_left, y_left, w_bottom = 3.0, 14.6, 9.3
    # X: 2 × 3 blocks; the panel is the right half of the middle column of blocks
    for i in range(2):
        for j in range(3):
            cell(axes, x_left + wide * j, top - tall * (i + 1), wide, tall, [PALE])
            write(axes, x_left + wide * j + 0.65, top - tall * (i + 0.5), f"X {i},{j}", 9)
        axes.add_patch(
            Rectangle(
                (x_left + 1.5 * wide, top - tall * (i + 1) + 0.06),
                wide / 2,
                tall - 0.12,
                facecolor=BLUE,
                linewidth=0,
                alpha=0.75,
            )
        )
        for j in range(3):
            cell(axes, y_left + 2.9 * j, top - tall * (i + 1), 2.9, tall, [PALE], f"Y {i},{j}", 9)
            axes.add_patch(
                Rectangle(
                    (y_left + 2.9 * j + 0.1, top - tall * (i + 1) + 0.12), 0.6, tall - 0.24, facecolor=BLUE, linewidth=0
                )
            )
            axes.add_patch(
                Rectangle((y_left + 2.9 * j + 0.8, top - tall * i - 0.72), 2.0, 0.6, facecolor=ORANGE, linewidth=0)
            )
        arrow(
            axes, (x_left + 3 * wide + 0.3, top - tall * (i + 0.5)), (y_left - 0.3, top - tall * (i + 0.5)), "#0072b2"
        )
    heights = (2.0, 2.0)
    for j in range(3):
        y = w_bottom + sum(heights)
        for i, height in enumerate(heights):
            y -= height
            cell(axes, y_left + 2.9 * j, y, 2.9, height, [PALE])
            write(axes, y_left + 2.9 * j + 1.45, y + 0.6, f"W {i},{j}", 9)
        axes.add_patch(
            Rectangle((y_left + 2.9 * j + 0.06, w_bottom + 1.3), 2.78, 0.65, facecolor=ORANGE, linewidth=0, alpha=0.75)
        )
        arrow(axes, (y_left + 2.9 * (j + 0.5), w_bottom - 0.1), (y_left + 2.9 * (j + 0.5), top + 0.1), "#c07800")
    write(axes, 24.6, 12.6, "those who have the panel of W\nbroadcast it along their columns", 10, ha="left")
    write(axes, x_left, 9.4, "those who have the panel of X\nbroadcast it along their rows", 10, ha="left")
    write(axes, 24.6, 5.4, "each rank multiplies\nits two pieces, and\nadds to its block of Y", 10, ha="left")
    # the line of k
    base = 1.1
    for label, parts, y in (("X cuts k", 3, base + 0.55), ("W cuts k", 2, base - 0.35)):
        write(axes, 2.6, y, label, 9, ha="right", color=GREY)
        axes.plot([x_left, x_left + 3 * wide], [y, y], color=INK, linewidth=1.2)
        for cut in range(parts + 1):
            at = x_left + 3 * wide * cut / parts
            axes.plot([at, at], [y - 0.22, y + 0.22], color=INK, linewidth=1.2)
    axes.add_patch(Rectangle((x_left + 1.5 * wide, base - 0.6), wide / 2, 1.4, facecolor=BLUE, alpha=0.35, linewidth=0))
    write(axes, x_left + 3 * wide + 0.4, base + 0.1, "four panels; the third one is drawn", 9, ha="left", color=GREY)
    return figure


def cube(axes: Axes, x: float, y: float, side: float, deep: float, colours: list[list[list[str]]]) -> None:
    """Eight ranks as a box, the back first: colours[i][j][l] of the rank at x = i, y = j, z = l."""
    for depth in (1, 0):
        for row in range(2):
            for column in range(2):
                at = (x + side * 1.5 * column + deep * depth, y - side * 1.5 * row + deep * depth)
                rank = 4 * row + 2 * column + depth
                axes.add_patch(
                    Rectangle(at, side, side, facecolor=colours[row][column][depth], edgecolor="white", linewidth=1.5)
                )
                write(axes, at[0] + side / 2, at[1] + side / 2, str(rank), 10)


def matmul_three_d() -> Figure:
    """Eight ranks as a box of 2 × 2 × 2, coloured by the block of X, W and Y that each has, and the collectives along
    the axes.
    """
    figure, axes = canvas(12, 5.0, 36, 15.0)
    kinds = (
        ("X", "cut along x and z,\nthe same along y", lambda i, j, d: 2 * i + d, "along y: all-reduce of its gradient"),
        (
            "W",
            "cut along x and y,\nin shards along z",
            lambda i, j, d: 2 * i + j,
            "along z: all-gather of its shards, twice;\nreduce-scatter of its gradient",
        ),
        ("Y", "cut along y and z,\na sum along x", lambda i, j, d: 2 * j + d, "along x: all-reduce of Y"),
    )  # fmt: skip
    for number, (name, how, of, sent) in enumerate(kinds):
        left = 4.3 + 10.8 * number
        colours = [[[RANKS[of(i, j, d)] for d in range(2)] for j in range(2)] for i in range(2)]
        write(axes, left + 3.3, 14.3, name, 14, weight="bold")
        write(axes, left + 3.3, 12.7, how, 10, color=GREY)
        cube(axes, left, 7.4, 2.0, 1.35, colours)
        write(axes, left + 3.3, 2.2, sent, 10)
    arrow(axes, (1.9, 8.8), (1.9, 5.2), INK)
    arrow(axes, (1.9, 8.8), (3.6, 8.8), INK)
    arrow(axes, (1.9, 8.8), (2.9, 9.8), INK)
    for x, y, text in ((1.9, 4.7, "x"), (3.9, 8.4, "y"), (3.15, 10.15, "z")):
        write(axes, x, y, text, 11, weight="bold")
    write(
        axes,
        18.0,
        0.6,
        "one colour: one block of the matrix (of W, its shards are on both ranks of that colour)",
        9.5,
        color=GREY,
    )
    return figure


def matmul_two_layers() -> Figure:
    """The blocks of two layers on 2 × 2 ranks: what the first leaves is cut as the second needs it, with the axes
    swapped.
    """
    figure, axes = canvas(12, 3.4, 36, 10.2)
    write(axes, 8.5, 9.4, "layer 0: inner axis x, outer axis y", 12, weight="bold")
    write(axes, 26.5, 9.4, "layer 1: inner axis y, outer axis x", 12, weight="bold")
    by_x = [[["#9fd1f0", "#9fd1f0"], ["#6bb7e8", "#6bb7e8"]]]
    by_y = [[["#f6d38a", "#f6d38a"], ["#f0b13c", "#f0b13c"]]]
    mixed = [[["#9fd1f0", "#f6d38a"], ["#9fd1f0", "#f0b13c"]], [["#6bb7e8", "#f6d38a"], ["#6bb7e8", "#f0b13c"]]]
    turned = [[["#f6d38a", "#9fd1f0"], ["#f6d38a", "#6bb7e8"]], [["#f0b13c", "#9fd1f0"], ["#f0b13c", "#6bb7e8"]]]
    texts_x, texts_y = [["x = 0", "x = 1"]], [["y = 0", "y = 1"]]
    places = [["0,0", "0,1"], ["1,0", "1,1"]]
    matrix(axes, 1.2, 6.6, [1.9] * 2, [3.6], by_x, texts_x, 9)
    matrix(axes, 6.6, 6.5, [2.6] * 2, [1.7] * 2, mixed, places, 9)
    matrix(axes, 15.6, 6.6, [2.6] * 2, [3.6], by_y, texts_y, 9)
    matrix(axes, 22.6, 7.0, [1.9] * 2, [2.2] * 2, turned, [["0,0", "1,0"], ["0,1", "1,1"]], 9)
    matrix(axes, 30.6, 6.6, [1.9] * 2, [3.6], by_x, texts_x, 9)
    for x, y, text in (
        (3.1, 7.3, "X"),
        (9.2, 7.6, "W of layer 0, at (x, y)"),
        (18.2, 7.3, "Y, then GELU"),
        (24.5, 7.6, "W of layer 1, at (x, y)"),
        (32.5, 7.3, "the output"),
    ):
        write(axes, x, y, text, 10)
    for start, end in ((5.3, 6.3), (12.2, 15.3), (21.0, 22.4), (26.8, 30.3)):
        arrow(axes, (start, 4.8), (end, 4.8), INK)
    write(axes, 13.7, 3.9, "all-reduce\nalong x", 9.5)
    write(axes, 28.5, 3.9, "all-reduce\nalong y", 9.5)
    write(
        axes,
        18.2,
        1.5,
        "columns cut along y: just what a product\nwith the inner axis y wants; nothing is sent",
        10,
        color=GREY,
    )
    write(axes, 32.5, 1.5, "cut as X was:\non to the next layer", 10, color=GREY)
    return figure


FIGURES = {
    "matmul_cannon.png": matmul_cannon,
    "matmul_grid.png": matmul_grid,
    "matmul_one_d.png": matmul_one_d,
    "matmul_summa.png": matmul_summa,
    "matmul_three_d.png": matmul_three_d,
    "matmul_two_layers.png": matmul_two_layers,
}
