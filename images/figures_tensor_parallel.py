"""The figures of 04_tensor_parallel."""

from ink import AXES, BLUE, GREEN, MIDDLE, ORANGE, PALE, arrow, box, canvas, cell, fill, key, note, title, write
from matplotlib.axes import Axes
from matplotlib.figure import Figure

RANKS = (BLUE, ORANGE)


def round_sign(axes: Axes, x: float, y: float, name: str) -> None:
    box(axes, x - 0.5, y - 0.6, 1.0, 1.2, edge=AXES["tp"], linewidth=1.8)
    write(axes, x, y, name, 14, style="italic")


def tensor_parallel_mlp() -> Figure:
    """The MLP on two ranks: X is copied by f, multiplied by columns, GELU, multiplied by rows, and summed by g."""
    figure, axes = canvas(13.4)
    middle = 7.4
    round_sign(axes, 0.9, middle, "f")
    round_sign(axes, 17.1, middle, "g")
    cell(axes, 0.3, 10.2, 1.2, 2.0, [MIDDLE])
    write(axes, 0.9, 11.2, "$X$", 12)
    arrow(axes, (0.9, 10.1), (0.9, middle + 0.65))
    arrow(axes, (17.1, middle + 0.65), (17.1, 10.1))
    write(axes, 17.8, 10.7, "$Z_0 + Z_1$", 11, ha="right")
    for rank, (colour, y) in enumerate(zip(RANKS, (8.0, 3.4), strict=True)):
        line = y + 1.5
        fill(axes, 2.3, y - 0.3, 13.2, 3.6, PALE)
        title(axes, 2.5, y + 3.8 if rank == 0 else y - 0.8, f"rank {rank}", 10, ha="left")
        arrow(axes, (1.4, middle), (2.3, line))
        arrow(axes, (15.5, line), (16.6, middle + (0.25 if rank == 0 else -0.25)))
        cell(axes, 2.5, y + 0.5, 1.2, 2.0, [MIDDLE])
        write(axes, 3.1, line, "$X$", 12)
        write(axes, 4.0, line, "·", 14)
        for part in range(2):  # the columns of the first weight, and the rows of the second
            mine = part == rank
            fill(axes, 4.3 + 1.05 * part, y + 0.7, 1.05, 1.6, colour if mine else "white", edgecolor="white")
            fill(axes, 11.6, y + 1.5 - 1.1 * part, 1.6, 1.1, colour if mine else "white", edgecolor="white")
            if mine:
                write(axes, 4.82 + 1.05 * part, line, f"$A_{part}^T$", 11)
                write(axes, 12.4, y + 2.05 - 1.1 * part, f"$B_{part}^T$", 11)
        write(axes, 6.8, line, "=", 12)
        for x, name in ((7.2, f"$Y_{rank}$"), (10.1, f"$G_{rank}$")):
            cell(axes, x, y + 0.5, 1.1, 2.0, [colour])
            write(axes, x + 0.55, line, name, 11)
        arrow(axes, (8.4, y + 1.2), (10.0, y + 1.2))
        write(axes, 9.2, y + 1.8, "gelu")
        write(axes, 11.4, line, "·", 14)
        write(axes, 13.5, line, "=", 12)
        cell(axes, 13.9, y + 0.5, 1.3, 2.0, [colour])
        write(axes, 14.55, line, f"$Z_{rank}$", 11)
    note(axes, 0.3, 1.3, "f: forward a copy, backward the sum; g: forward the sum, backward a copy.", ha="left")
    note(axes, 0.3, 0.6, "In between nothing is sent: B's rows on a rank fit A's columns there.", ha="left")
    return figure


def tensor_parallel_words() -> Figure:
    """Four tokens looked up on two ranks that have three words each."""
    words, tokens = ("the", "cat", "sat", "on", "a", "mat"), (1, 3, 5, 0)
    figure, axes = canvas(9.8)
    title(axes, 2.2, 9.2, "the table", 10)
    for number, word in enumerate(words):
        y = 7.4 - 1.3 * number
        write(axes, 1.8, y + 0.5, f"{number}  {word}", ha="right")
        cell(axes, 2.0, y, 1.6, 1.0, [RANKS[number // 3]])
    for rank, y in enumerate((6.6, 2.7)):
        write(axes, 3.8, y, f"rank {rank}", ha="left")
    for column, name in ((6.0, "on rank 0"), (10.1, "on rank 1"), (14.8, "sum, on both")):
        title(axes, column + 1.3, 9.2, name, 10)
        for place, number in enumerate(tokens):
            y, owner = 7.0 - 1.8 * place, number // 3
            shown = column > 12 or owner == (column > 8)
            cell(axes, column, y, 2.6, 1.2, [RANKS[owner] if shown else PALE], words[number] if shown else "0")
    for place in range(4):
        write(axes, 9.35, 7.6 - 1.8 * place, "+", 12)
        write(axes, 13.8, 7.6 - 1.8 * place, "=", 12)
    note(axes, 11.7, 0.7, "four tokens: cat on mat the")
    return figure


def tensor_parallel_sequence() -> Figure:
    """A block on two ranks with f and g, where norms run on all tokens; and sequence parallel, where each rank's norms
    run on its own tokens.
    """
    figure, axes = canvas(13.6)
    rows = (
        ("f and g", 8.8, ("f", "g"), "all-reduces: g's forward, f's backward"),
        (
            "sequence parallel",
            3.4,
            ("all-gather", "reduce-scatter"),
            "each is the other's backward; half an all-reduce each",
        ),
    )
    for name, y, signs, says in rows:
        title(axes, 0.3, y + 4.2, name, ha="left")
        note(axes, 0.9 + 0.3 * len(name), y + 4.2, says, ha="left")
        x = 1.9
        for rank in range(2):
            write(axes, 1.7, y + 2.45 - 1.5 * rank, f"rank {rank}", ha="right")
        for part, width, inside in (
            ("norm", 1.5, 0), ("attention", 2.6, 1), ("+", 0.6, 0), ("norm", 1.5, 0), ("MLP", 1.5, 1), ("+", 0.6, 0),
        ):  # fmt: skip
            if inside:
                x = border(axes, x, y, signs[0])
            for rank, colour in enumerate(RANKS if inside or name != "f and g" else (GREEN, GREEN)):
                cell(axes, x, y + 1.7 - 1.5 * rank, width, 1.5, [colour], part)
            x += width + 0.1
            if inside:
                x = border(axes, x, y, signs[1])
    entries = (([GREEN], "all tokens, on every rank"), (RANKS, "a part on each: heads, columns or tokens"))
    key(axes, 1.2, entries, 0.4, 7.4)
    return figure


def border(axes: Axes, x: float, y: float, name: str) -> float:
    """A border of a parallel part; returns where it ends."""
    low, high, spelled = (y - 0.1, 3.6, len(name) > 1)
    box(axes, x + 0.05, low - 0.3 * spelled, 0.9, high + 0.6 * spelled, edge=AXES["tp"], linewidth=1.6)
    style = {"rotation": 90} if spelled else {"style": "italic", "size": 13}
    write(axes, x + 0.5, low + high / 2, name, **style)
    return x + 1.1


FIGURES = {
    "tensor_parallel_mlp": tensor_parallel_mlp,
    "tensor_parallel_sequence": tensor_parallel_sequence,
    "tensor_parallel_words": tensor_parallel_words,
}
