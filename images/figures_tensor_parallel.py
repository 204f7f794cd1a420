"""The figures of 04_tensor_parallel."""

from ink import BLUE, GREEN, GREY, MIDDLE, ORANGE, PALE, arrow, box, canvas, cell, write
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

RANKS = (BLUE, ORANGE)


def matrix(
    axes: Axes, x: float, y: float, width: float, height: float, colour: str, name: str, size: float = 11
) -> None:
    axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor="white", linewidth=1.5))
    write(axes, x + width / 2, y + height / 2, name, size)


def round_sign(axes: Axes, x: float, y: float, name: str) -> None:
    box(axes, x - 0.75, y - 0.75, 1.5, 1.5)
    write(axes, x, y, name, 15, style="italic")


def tensor_parallel_mlp() -> Figure:
    """The MLP on two ranks: X is copied by f, multiplied by columns, GELU, multiplied by rows, and summed by g."""
    figure, axes = canvas(12, 4.7, 36, 14.1)
    matrix(axes, 0.6, 5.6, 2.4, 3.0, MIDDLE, "$X$", 13)
    round_sign(axes, 5.2, 7.1, "f")
    arrow(axes, (3.2, 7.1), (4.4, 7.1))
    for rank, (colour, y) in enumerate(zip(RANKS, (8.6, 2.2), strict=True)):
        middle = y + 1.5
        arrow(axes, (6.0, 7.1), (7.6, middle))
        axes.add_patch(Rectangle((7.7, y - 0.6), 23.8, 4.2, facecolor=PALE, linewidth=0))
        write(axes, 8.0, y + 3.9, f"rank {rank}", 10.5, ha="left")
        matrix(axes, 8.2, y, 2.4, 3.0, MIDDLE, "$X$", 13)
        write(axes, 11.2, middle, "·", 18)
        for part in range(2):  # the columns of the first weight
            mine = part == rank
            matrix(
                axes,
                11.8 + 1.6 * part,
                y + 0.3,
                1.6,
                2.4,
                colour if mine else "white",
                f"$A_{part}^T$" if mine else "",
                12,
            )
        write(axes, 15.8, middle, "=", 14)
        matrix(axes, 16.5, y, 1.6, 3.0, colour, f"$Y_{rank}$", 12)
        write(axes, 19.9, middle, "gelu", 10.5)
        arrow(axes, (18.3, middle - 0.6), (21.4, middle - 0.6))
        matrix(axes, 21.6, y, 1.6, 3.0, colour, f"$G_{rank}$", 12)
        write(axes, 23.7, middle, "·", 18)
        for part in range(2):  # the rows of the second
            mine = part == rank
            matrix(
                axes,
                24.3,
                y + 1.5 - 1.5 * part,
                2.4,
                1.5,
                colour if mine else "white",
                f"$B_{part}^T$" if mine else "",
                12,
            )
        write(axes, 27.4, middle, "=", 14)
        matrix(axes, 28.6, y, 2.4, 3.0, colour, f"$Z_{rank}$", 13)
        arrow(axes, (31.6, middle), (32.4, 7.9 if rank == 0 else 6.3))
    round_sign(axes, 32.5, 7.1, "g")
    arrow(axes, (33.3, 7.1), (33.9, 7.1))
    write(axes, 34.9, 7.1, "$Z_0 + Z_1$", 12)
    write(axes, 3.2, 4.3, "forward: a copy\nbackward: the sum", 9, color=GREY)
    write(axes, 34.2, 4.6, "forward: the sum\nbackward: a copy", 9, color=GREY)
    write(
        axes,
        18.0,
        0.6,
        "a rank's columns of the hidden layer are what its rows of the second weight need: nothing is sent in between",
        10,
        color=GREY,
    )
    return figure


def tensor_parallel_words() -> Figure:
    """Four tokens looked up on two ranks that have three words each."""
    words, tokens = ("the", "cat", "sat", "on", "a", "mat"), (1, 3, 5, 0)
    figure, axes = canvas(10.5, 4.2, 31.5, 12.6)
    write(axes, 3.0, 11.6, "the table, by words", 10, color=GREY)
    for number, word in enumerate(words):
        y = 9.6 - 1.5 * number
        write(axes, 1.7, y + 0.6, f"{number}  {word}", 10, ha="right")
        cell(axes, 2.0, y, 3.4, 1.2, [RANKS[number // 3]])
    write(axes, 6.0, 8.7, "rank 0", 9.5, ha="left")
    write(axes, 6.0, 4.2, "rank 1", 9.5, ha="left")
    for column, title in ((9.6, "on rank 0"), (16.8, "on rank 1"), (25.4, "the sum, on both")):
        write(axes, column + 1.7, 11.6, title, 10, color=GREY)
        for place, number in enumerate(tokens):
            y, owner = 8.6 - 2.0 * place, number // 3
            shown = column > 20 or owner == (column > 12)
            cell(axes, column, y, 3.4, 1.2, [RANKS[owner] if shown else PALE], words[number] if shown else "0", 10)
    for place in range(4):
        write(axes, 14.9, 9.2 - 2.0 * place, "+", 13)
        write(axes, 22.8, 9.2 - 2.0 * place, "=", 13)
    return figure


def tensor_parallel_sequence() -> Figure:
    """A block on two ranks: tokens of its own between the parallel parts, heads and hidden columns of its own in "
    "them."""
    figure, axes = canvas(12.5, 4.6, 37.5, 13.8)
    parts = (("norm", 3.0, 0), ("attention", 6.0, 1), ("+", 1.4, 0), ("norm", 3.0, 0), ("MLP", 6.0, 1), ("+", 1.4, 0))
    for row, (title, y) in enumerate((("f and g", 8.4), ("sequence\nparallel", 2.4))):
        write(axes, 3.0, y + 1.2, title, 11, ha="right", weight="bold")
        x = 4.0
        for name, width, inside in parts:
            if inside:
                sign = ("f", "g") if row == 0 else ("gather", "scatter")
                x = border(axes, x, y, sign[0])
            if inside or row:  # each rank has its part: of the heads and columns, or of the tokens
                for rank, colour in enumerate(RANKS):
                    axes.add_patch(
                        Rectangle(
                            (x, y + 1.2 - 1.2 * rank), width, 1.2, facecolor=colour, edgecolor="white", linewidth=1.5
                        )
                    )
                    write(axes, x + width / 2, y + 1.8 - 1.2 * rank, name, 11)
            else:
                for rank in range(2):
                    axes.add_patch(
                        Rectangle(
                            (x, y + 1.2 - 1.2 * rank), width, 1.2, facecolor=GREEN, edgecolor="white", linewidth=1.5
                        )
                    )
                    write(axes, x + width / 2, y + 1.8 - 1.2 * rank, name, 11)
            x += width + 0.2
            if inside:
                x = border(axes, x, y, sign[1])
        write(axes, x + 0.2, y + 1.8, "rank 0", 9.5, ha="left")
        write(axes, x + 0.2, y + 0.6, "rank 1", 9.5, ha="left")
    for x, colours, text in (
        (4.0, (GREEN,), "all tokens, whole, on every rank"),
        (15.5, RANKS, "each rank its part: heads and columns, or tokens"),
    ):
        cell(axes, x, 0.35, 1.0, 0.8, colours)
        write(axes, x + 1.4, 0.75, text, 9.5, ha="left")
    write(axes, 4.0, 12.6, "all-reduces: g forward, f backward", 9.5, ha="left", color=GREY)
    write(
        axes,
        4.0,
        6.6,
        "all-gather and reduce-scatter: each the other's backward pass, half an all-reduce",
        9.5,
        ha="left",
        color=GREY,
    )
    return figure


def border(axes: Axes, x: float, y: float, name: str) -> float:
    """A border of a parallel part; returns where it ends."""
    width = 0.9 if len(name) == 1 else 1.2
    box(axes, x, y - 0.2, width, 2.8)
    write(
        axes,
        x + width / 2,
        y + 1.2,
        name,
        11 if len(name) == 1 else 8.5,
        style="italic" if len(name) == 1 else "normal",
        rotation=0 if len(name) == 1 else 90,
    )
    return x + width + 0.2


FIGURES = {
    "tensor_parallel_mlp.png": tensor_parallel_mlp,
    "tensor_parallel_sequence.png": tensor_parallel_sequence,
    "tensor_parallel_words.png": tensor_parallel_words,
}
