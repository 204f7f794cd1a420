"""The figures of 09_mesh and 10_strategy."""

from ink import AXES, BLUE, GREEN, GREY, ORANGE, PALE, PINK, box, canvas, cell, fill, note, title, write
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

# Published networks: year, parameters, and where they are described.
NETWORKS = (
    ("AlexNet", 2012, 61e6),  # Krizhevsky et al., NIPS 2012
    ("VGG", 2014.7, 138e6),  # arXiv:1409.1556
    ("ResNet-152", 2015.9, 60e6),  # arXiv:1512.03385
    ("GPT", 2018.4, 117e6),  # Radford et al. 2018
    ("BERT", 2018.8, 340e6),  # arXiv:1810.04805
    ("GPT-2", 2019.1, 1.5e9),  # Radford et al. 2019
    ("Megatron-LM", 2019.7, 8.3e9),  # arXiv:1909.08053
    ("Turing-NLG", 2020.1, 17e9),  # Microsoft, February 2020
    ("GPT-3", 2020.4, 175e9),  # arXiv:2005.14165
    ("MT-NLG", 2021.8, 530e9),  # arXiv:2201.11990
    ("BLOOM", 2022.5, 176e9),  # arXiv:2211.05100
    ("Llama 2", 2023.5, 70e9),  # arXiv:2307.09288
    ("Llama 3.1", 2024.5, 405e9),  # arXiv:2407.21783
)
# Mixtures of experts: of all their parameters a token uses a part.
MIXTURES = (
    ("DeepSeek-V3", 2024.98, 671e9),  # arXiv:2412.19437, 37e9 of them for a token
    ("DeepSeek-V4-Pro", 2026.31, 1.6e12),  # huggingface.co/deepseek-ai/DeepSeek-V4-Pro, April 2026, 49e9
    ("Kimi K3", 2026.56, 2.8e12),  # arXiv:2607.24653
)
RIGHT = {"AlexNet", "VGG", "ResNet-152", "BERT", "GPT-2", "Llama 2", "BLOOM", "Llama 3.1"}  # of the dot is their name


def strategy_sizes() -> Figure:
    """Parameters of published networks over the years, and how many one GPU has room for, at 16 bytes each."""
    figure = Figure(figsize=(6, 4.6), facecolor="white", layout="constrained")
    axes = figure.subplots()
    for networks, mark in ((NETWORKS, "o"), (MIXTURES, "D")):
        for name, year, parameters in networks:
            axes.plot(year, parameters, mark, color="#3b6ea5", markersize=5)
            side, where = ("left", (6, -3.5)) if name in RIGHT else ("right", (-6, -3.5))
            axes.annotate(name, (year, parameters), xytext=where, textcoords="offset points", ha=side, fontsize=10)
    for gigabytes, name, at in (
        (16, "V100, 16 GB", "top"),
        (80, "H100, 80 GB", "top"),
        (192, "B200, 192 GB", "bottom"),
    ):
        axes.axhline(gigabytes * 1e9 / 16, color=GREY, linewidth=1, linestyle="--", zorder=0)
        where = (4, -3 if at == "top" else 3)
        place = (2011.5, gigabytes * 1e9 / 16)
        axes.annotate(name, place, xytext=where, textcoords="offset points", va=at, fontsize=10, color=GREY)
    axes.set(yscale="log", ylim=(2e7, 1e13), xlim=(2011.5, 2027.5), ylabel="parameters")
    axes.set_xticks(range(2012, 2027, 2))
    axes.set_yticks([10.0**power for power in range(8, 14)])
    axes.set_title(
        "Parameters of networks (diamond: mixture of experts);\ndashed: room on one GPU, at 16 bytes each", fontsize=10
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure


def strategy_mesh() -> Figure:
    """Eight ranks on two nodes, 2 × 2 × 2, with the axes in two orders: which lines leave the node."""
    figure, axes = canvas(19.4)
    orders = (
        ("tensor innermost: pp × dp × tp", ("tp", "dp", "pp")),
        ("tensor outermost: tp × dp × pp", ("pp", "dp", "tp")),
    )
    style = {"tp": 4.0, "dp": 2.6, "pp": 1.4}
    for number, (name, axis_of_step) in enumerate(orders):
        low = 10.7 - 8.6 * number
        title(axes, 9.0, low + 8.0, name)
        places = {}
        for node in range(2):
            x = 0.4 + 8.9 * node
            box(axes, x, low, 8.3, 7.2, "#f6f6f6", "#b5b5b5")
            note(axes, x + 4.15, low + 6.6, f"node {node}")
            for within in range(4):
                rank = 4 * node + within
                row, column = divmod(within, 2)
                places[rank] = (x + 0.6 + 4.5 * column, low + 3.6 - 3.1 * row)
                cell(axes, *places[rank], 2.6, 1.6, [PALE], f"rank {rank}")
        for step, axis in zip((1, 2, 4), axis_of_step, strict=True):
            for rank in range(8):
                if rank // step % 2 == 0:
                    join(axes, places[rank], places[rank + step], step, AXES[axis], style[axis])
    for y, axis, text in (
        (1.3, "tp", "tensor: 8 GB"),
        (0.6, "pp", "pipeline: 0.1 GB each way"),
        (1.3, "dp", "data: 3 GB"),
    ):
        x = 9.6 if axis == "dp" else 1.2
        axes.plot([x, x + 1.2], [y, y], color=AXES[axis], linewidth=style[axis])
        write(axes, x + 1.5, y, text, ha="left")
    return figure


def join(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], step: int, colour: str, width: float
) -> None:
    """A line between two ranks' cells: to the right, down, or in a bow to the other node."""
    if step == 1:
        ends, bow = ((start[0] + 2.6, start[1] + 0.8), (end[0], end[1] + 0.8)), 0.0
    elif step == 2:
        ends, bow = ((start[0] + 1.3, start[1]), (end[0] + 1.3, end[1] + 1.6)), 0.0
    else:
        ends, bow = ((start[0] + 1.7, start[1] + 1.6), (end[0] + 0.9, end[1] + 1.6)), -0.12
    line = {"arrowstyle": "-", "connectionstyle": f"arc3,rad={bow}", "color": colour, "linewidth": width}
    axes.add_patch(FancyArrowPatch(*ends, shrinkA=0, shrinkB=0, **line))


def strategy_gradients() -> Figure:
    """Two ranks along each axis: what each one's gradient of a parameter is, and what the serial run's is."""
    figure, axes = canvas(17.8)
    # What each rank has, and the serial run: bars with numbers, of stacked terms (or, side by side, of an average).
    rows = (
        (("dp", "shard"), "different samples", ((4, [BLUE]),), ((2, [ORANGE]),), ((3, [BLUE, ORANGE]),)),
        (
            ("cp",),
            "different tokens\nof the same samples",
            ((1, [BLUE]),),
            ((2, [GREEN]),),
            ((1, [BLUE]), (2, [GREEN])),
        ),
        (("tp",), "cut: each rank has\nits own part", ((3, [BLUE]),), ((2, [PINK]),), None),
        (("tp",), "whole, used on\nthe same tokens", ((3, [BLUE]),), ((3, [BLUE]),), ((3, [BLUE]),)),
        (("tp",), "whole, used on\nsome tokens each", ((2, [BLUE]),), ((1, [GREEN]),), ((2, [BLUE]), (1, [GREEN]))),
        (("pp",), "tied: used in\ntwo places", ((1, [BLUE]),), ((2, [PINK]),), ((1, [BLUE]), (2, [PINK]))),
    )
    for x, name in ((10.1, "rank 0"), (12.6, "rank 1"), (15.9, "serial run")):
        title(axes, x, 17.2, name, 10)
    for number, (names, says, first, second, serial) in enumerate(rows):
        y = 14.4 - 2.55 * number
        for place, axis in enumerate(names):
            fill(axes, 0.3 + 0.4 * place, y, 0.32, 1.9, AXES[axis])
        title(axes, 1.3, y + 0.95, ", ".join(names), ha="left")
        write(axes, 4.3, y + 0.95, says, ha="left", linespacing=1.3)
        bar(axes, 10.1, y, first)
        bar(axes, 12.6, y, second)
        for x, terms in ((15.9, serial),) if serial else ((15.2, first), (16.6, second)):
            bar(axes, x, y, terms)
    note(axes, 9.0, 0.6, "a bar: one parameter's gradient; how do the ranks' become the serial run's?")
    return figure


def bar(axes: Axes, x: float, y: float, terms: tuple[tuple[int, list[str]], ...]) -> None:
    """A bar on `y` around `x`: stacked terms (height, colours), and their sum above."""
    below = y
    for height, colours in terms:
        cell(axes, x - 0.6, below, 1.2, 0.4 * height, colours)
        below += 0.4 * height
    write(axes, x, below + 0.35, str(sum(height for height, _ in terms)))


FIGURES = {"strategy_gradients": strategy_gradients, "strategy_mesh": strategy_mesh, "strategy_sizes": strategy_sizes}
