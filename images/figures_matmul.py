"""The figures of 08_distributed_matmul."""

from ink import BLUE, DARK, GREEN, INK, MIDDLE, ORANGE, PALE, PINK, arrow, canvas, cell, fill, key, note, title
from ink import write
from matplotlib.axes import Axes
from matplotlib.figure import Figure

RANKS = (BLUE, ORANGE, GREEN, PINK, "#b7dcf5", "#f8dea4")


def matrix(
    axes: Axes, left: float, top: float, widths: list[float], heights: list[float], colours: list, texts: list = ()
) -> None:
    """A matrix of blocks, from the top left; `colours` and `texts` by row and column, a block's colours its stripes."""
    y = top
    for row, height in enumerate(heights):
        y -= height
        x = left
        for column, width in enumerate(widths):
            cell(axes, x, y, width, height, colours[row][column], texts[row][column] if texts else "")
            x += width


def matmul_one_d() -> Figure:
    """Y = XW cut by rows, by columns and along the inner dimension: what each of two ranks has, and what is sent."""
    figure, axes = canvas(16.6)
    cuts = (
        ("by rows", "(FSDP)", "W is gathered forward and backward; its gradient is reduce-scattered"),
        ("by columns", "(Megatron's first layer)", "forward: nothing; backward: all-reduce of X's gradient"),
        ("by the inner dimension", "(Megatron's second layer)", "forward: all-reduce of Y; backward: nothing"),
    )
    for number, (name, also, sent) in enumerate(cuts):
        top = 16.0 - 4.9 * number
        title(axes, 0.3, top, name, ha="left")
        note(axes, 0.9 + 0.3 * len(name), top, also, ha="left")
        write(axes, 0.3, top - 0.9, sent, ha="left")
        for rank, colour in enumerate((BLUE, ORANGE)):
            left, low = 0.9 + 9.0 * rank, top - 3.9
            mine, other = [colour], [PALE]
            halves = [mine, other] if rank == 0 else [other, mine]
            down, across, same = [[half] for half in halves], [halves], [[[MIDDLE]]]
            x, w, y = ((down, down, down), (same, across, across), (across, down, [[mine]]))[number]
            for at, wide, high, colours, text in (
                (0, 1.4, 2.2, x, "X"),
                (2.1, 2.0, 1.4, w, "W"),
                (4.9, 2.0, 2.2, y, "Y"),
            ):
                base = low + 1.1 + high / 2
                rows, columns = len(colours), len(colours[0])
                matrix(axes, left + at, base, [wide / columns] * columns, [high / rows] * rows, colours)
                title(axes, left + at + wide / 2, low + 1.1, "part" if number == 2 and text == "Y" else text, 10)
            write(axes, left + 1.75, low + 1.1, "·", 14)
            write(axes, left + 4.5, low + 1.1, "=", 12)
            write(axes, left - 0.35, low + 1.1, f"rank {rank}", rotation=90)
    key(
        axes,
        1.5,
        (([BLUE], "rank 0's"), ([ORANGE], "rank 1's"), ([MIDDLE], "the same on both"), ([PALE], "not here")),
        0.4,
    )
    note(axes, 0.4, 0.6, "part: a term of a sum, in the full shape", ha="left")
    return figure


def matmul_grid() -> Figure:
    """A matrix of 5 × 7 on a grid of 2 × 3, and the two lines through rank 4."""
    figure, axes = canvas(10.0)
    side, left, top = 1.2, 0.3, 8.4
    row_of, column_of = [0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 2, 2]
    for i in range(5):
        for j in range(7):
            cell(
                axes,
                left + side * j,
                top - side * (i + 1),
                side,
                side,
                [RANKS[3 * row_of[i] + column_of[j]]],
                f"{i},{j}",
            )
    title(axes, left + 3.5 * side, 9.3, "the matrix")
    title(axes, 13.7, 9.3, "the grid")
    for rank in range(6):
        row, column = divmod(rank, 3)
        cell(axes, 9.9 + 2.75 * column, 6.0 - 3.2 * row, 2.1, 1.9, [RANKS[rank]], f"rank {rank}\nat {row}, {column}")
    fill(axes, 9.5, 2.45, 8.3, 2.6, "none", edgecolor=DARK, linewidth=1.6, linestyle="--")
    fill(axes, 12.3, 2.1, 2.8, 6.3, "none", edgecolor=DARK, linewidth=1.6, linestyle=":")
    note(axes, 9.0, 0.9, "rank 4's lines: along axis 0 dotted, along axis 1 dashed")
    return figure


def matmul_cannon() -> Figure:
    """Cannon on 3 × 3 ranks: the skew brings blocks together whose inner indices agree; each step changes that index
    by one.
    """
    figure, axes = canvas(19.4)
    colours, panels = (BLUE, ORANGE, GREEN), ("as given", "after the skew: step 0", "step 1", "step 2")
    for number, name in enumerate(panels):
        left, top = 0.4 + 9.1 * (number % 2), 18.8 - 8.5 * (number // 2)
        title(axes, left + 4.1, top, name)
        for i in range(3):
            for j in range(3):
                x, y = left + 2.8 * j, top - 2.8 - 2.35 * i
                of_x, of_w = (j, i) if number == 0 else ((i + j + number - 1) % 3,) * 2
                cell(axes, x, y + 1.0, 2.6, 1.0, [colours[of_x]], f"X {i},{of_x}")
                cell(axes, x, y, 2.6, 1.0, [colours[of_w]], f"W {of_w},{j}")
                if number == 0 and i == j:
                    fill(axes, x - 0.05, y - 0.05, 2.7, 2.1, "none", edgecolor=INK, linewidth=1.8)
    note(
        axes,
        9.0,
        1.1,
        "as given, the inner indices agree only on the diagonal; after the skew,\n"
        "everywhere. Before each step X moves one to the left and W one up.",
    )
    return figure


def matmul_summa() -> Figure:
    """A panel of SUMMA on 2 × 3 ranks: broadcast along rows and columns of the grid, multiplied everywhere."""
    figure, axes = canvas(16.4)
    top, tall, wide, high = 8.6, 2.6, 1.8, 1.9
    x_left, y_left, w_bottom, across = 0.3, 7.4, 10.0, 2.1
    for i in range(2):
        y = top - tall * (i + 1)
        for j in range(3):
            cell(axes, x_left + wide * j, y, wide, tall, [PALE])
            write(
                axes, x_left + wide * j + (0.45 if j == 1 else 0.9), y + tall / 2, f"X {i},{j}", rotation=90 * (j == 1)
            )
            cell(axes, y_left + across * j, y, across, tall, [PALE])
            write(axes, y_left + across * j + 1.3, y + 0.9, f"Y {i},{j}")
            fill(axes, y_left + across * j + 0.1, y + 0.12, 0.45, tall - 0.24, BLUE)
            fill(axes, y_left + across * j + 0.65, y + tall - 0.6, 1.35, 0.45, ORANGE)
        fill(axes, x_left + 1.5 * wide, y + 0.06, wide / 2, tall - 0.12, BLUE)
        arrow(axes, (x_left + 3 * wide + 0.2, y + tall / 2), (y_left - 0.2, y + tall / 2), INK)
    for j in range(3):
        for i in range(2):
            cell(axes, y_left + across * j, w_bottom + high * (1 - i), across, high, [PALE])
            write(axes, y_left + across * (j + 0.5), w_bottom + high * (1 - i) + 0.5, f"W {i},{j}")
        fill(axes, y_left + across * j + 0.06, w_bottom + 1.0, across - 0.12, 0.85, ORANGE)
        arrow(axes, (y_left + across * (j + 0.5), w_bottom - 0.1), (y_left + across * (j + 0.5), top + 0.1), INK)
    note(axes, 10.5, 15.3, "the ranks that have W's panel (orange)\nbroadcast it along their columns")
    note(axes, 0.3, 10.6, "the ranks that have\nX's panel (blue)\nbroadcast it along\ntheir rows", ha="left")
    note(axes, 13.9, 6.0, "each rank adds\nthe product to\nits block of Y", ha="left")
    base = 1.4  # the line of k
    for label, parts, y in (("X's cuts of k", 3, base + 0.55), ("W's cuts of k", 2, base - 0.55)):
        axes.plot([x_left, x_left + 3 * wide], [y, y], color=INK, linewidth=1.2)
        for cut in range(parts + 1):
            at = x_left + 3 * wide * cut / parts
            axes.plot([at, at], [y - 0.22, y + 0.22], color=INK, linewidth=1.2)
        note(axes, x_left + 3 * wide + 0.4, y, label, ha="left")
    fill(axes, x_left + 1.5 * wide, base - 0.8, wide / 2, 1.6, BLUE, alpha=0.35)
    note(axes, 10.2, base, "make four panels;\nthe third one is drawn", ha="left")
    return figure


def cube(axes: Axes, x: float, y: float, side: float, deep: float, colours: list[list[list[str]]]) -> None:
    """Eight ranks as a box, the back first: colours[i][j][l] of the rank at x = i, y = j, z = l."""
    for depth in (1, 0):
        for row in range(2):
            for column in range(2):
                at = (x + side * 1.5 * column + deep * depth, y - side * 1.5 * row + deep * depth)
                fill(axes, *at, side, side, colours[row][column][depth], edgecolor="white", linewidth=1.5)
                write(axes, at[0] + side / 2, at[1] + side / 2, str(4 * row + 2 * column + depth))


def matmul_three_d() -> Figure:
    """Eight ranks as a box of 2 × 2 × 2, coloured by the block of X, W and Y that each has, and the collectives along
    the axes.
    """
    figure, axes = canvas(14.2)
    kinds = (
        ("X", "cut along x and z,\nthe same along y", lambda i, j, d: 2 * i + d,
         "along y:\nall-reduce of\nits gradient"),
        ("W", "cut along x and y,\nin shards along z", lambda i, j, d: 2 * i + j,
         "along z:\nall-gather, twice;\nreduce-scatter of\nits gradient"),
        ("Y", "cut along y and z,\na sum along x", lambda i, j, d: 2 * j + d, "along x:\nall-reduce of Y"),
    )  # fmt: skip
    for number, (name, how, of, sent) in enumerate(kinds):
        left = 2.1 + 5.4 * number
        colours = [[[RANKS[of(i, j, d)] for d in range(2)] for j in range(2)] for i in range(2)]
        title(axes, left + 2.3, 13.6, name, 13)
        note(axes, left + 2.3, 12.1, how)
        cube(axes, left, 7.6, 1.5, 1.0, colours)
        write(axes, left + 2.3, 4.7, sent, va="top", linespacing=1.35)
    for end, at, text in (((0.7, 6.0), (0.7, 5.5), "x"), ((1.7, 8.6), (1.75, 8.1), "y"), ((1.5, 9.4), (1.5, 9.9), "z")):
        arrow(axes, (0.7, 8.6), end, INK)
        title(axes, *at, text)
    note(axes, 9.0, 0.9, "one colour: one block of the matrix\n(of W, both ranks of a colour hold shards)")
    return figure


def matmul_two_layers() -> Figure:
    """The blocks of two layers on 2 × 2 ranks: what the first leaves is cut as the second needs it, with the axes
    swapped.
    """
    figure, axes = canvas(17.4)
    light, full, pale, deep = "#b7dcf5", BLUE, "#f8dea4", ORANGE
    by_x, by_y = [[[light], [full]]], [[[pale], [deep]]]
    mixed = [[[x, y] for y in (pale, deep)] for x in (light, full)]
    turned = [[[y, x] for x in (light, full)] for y in (pale, deep)]
    texts_x, texts_y = [["x = 0", "x = 1"]], [["y = 0", "y = 1"]]
    layers = (
        ("layer 0: inner axis x, outer axis y", "X", by_x, texts_x, mixed, [["0,0", "0,1"], ["1,0", "1,1"]],
         "Y, then GELU", by_y, texts_y, "along x",
         "its columns are cut along y, as a product with\nthe inner axis y needs them: nothing is sent"),
        ("layer 1: inner axis y, outer axis x", "Y", by_y, texts_y, turned, [["0,0", "1,0"], ["0,1", "1,1"]],
         "the output", by_x, texts_x, "along y", "cut like X: ready for the next layer"),
    )  # fmt: skip
    for number, (name, x, its, tx, weight, tw, y, left_over, ty, along, says) in enumerate(layers):
        top = 16.8 - 8.9 * number
        title(axes, 0.3, top, name, ha="left")
        for at, text in ((2.2, x), (8.2, "W at (x, y)"), (15.6, y)):
            write(axes, at, top - 1.3, text)
        matrix(axes, 0.3, top - 1.9, [1.9] * 2, [3.4], its, tx)
        matrix(axes, 6.0, top - 1.9, [2.2] * 2, [1.7] * 2, weight, tw)
        matrix(axes, 13.4, top - 1.9, [2.2] * 2, [3.4], left_over, ty)
        write(axes, 5.1, top - 3.6, "·", 16)
        arrow(axes, (10.6, top - 3.6), (13.2, top - 3.6), INK)
        note(axes, 11.9, top - 2.6, f"all-reduce\n{along}")
        note(axes, 17.8, top - 6.6, says, ha="right")
    return figure


FIGURES = {
    "matmul_cannon": matmul_cannon,
    "matmul_grid": matmul_grid,
    "matmul_one_d": matmul_one_d,
    "matmul_summa": matmul_summa,
    "matmul_three_d": matmul_three_d,
    "matmul_two_layers": matmul_two_layers,
}
