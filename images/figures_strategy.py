"""The figures of 09_strategy."""

from ink import BLUE, DARK, GREEN, GREY, ORANGE, PALE, PINK, RED, box, canvas, cell, write
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

# Published networks: year, parameters, and where they are described.
NETWORKS = (
    ("AlexNet", 2012, 61e6),  # Krizhevsky et al., NIPS 2012
    ("VGG", 2014.4, 138e6),  # arXiv:1409.1556
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
    ("DeepSeek-V3", 2024.98, 671e9),  # arXiv:2412.19437; a mixture of experts
)
LEFT = {"GPT", "Megatron-LM", "Turing-NLG", "GPT-3", "MT-NLG", "DeepSeek-V3"}  # of its dot is the name of these


def strategy_sizes() -> Figure:
    """Parameters of published networks over the years, and how many one GPU has room for, at 16 bytes each."""
    figure = Figure(figsize=(10, 4.2), facecolor="white", layout="constrained")
    axes = figure.subplots()
    for name, year, parameters in NETWORKS:
        axes.plot(year, parameters, "o", color="#0072b2", markersize=6)
        side, where = ("right", (-7, -3)) if name in LEFT else ("left", (7, -3))
        axes.annotate(name, (year, parameters), xytext=where, textcoords="offset points", ha=side, fontsize=8.5)
    for gigabytes, name in ((16, "V100, 16 GB"), (40, "A100, 40 GB"), (80, "H100, 80 GB")):
        axes.axhline(gigabytes * 1e9 / 16, color=GREY, linewidth=1, linestyle="--")
        axes.text(2011.6, gigabytes * 1e9 / 16, name, fontsize=8.5, color=GREY, va="bottom")
    axes.set(yscale="log", ylim=(2e7, 3e12), xlim=(2011.5, 2026), ylabel="parameters")
    axes.set_title("What networks have, and what one GPU has room for (dashed: 16 bytes a parameter)", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure


def strategy_mesh() -> Figure:
    """Eight ranks on two nodes, 2 × 2 × 2, with the axes in two orders: whose lines leave the node."""
    figure, axes = canvas(12, 4.4, 36, 13.2)
    for panel, (title, axis_of_step) in enumerate(
        (("pp × dp × tp: tensor innermost", ("tp", "dp", "pp")), ("tp × dp × pp: tensor outermost", ("pp", "dp", "tp")))
    ):
        left = 0.8 + 18 * panel
        write(axes, left + 8, 12.6, title, 13, weight="bold")
        places = {}
        for node in range(2):
            x = left + 8.7 * node
            box(axes, x, 1.5, 7.4, 10.3, "#f6f6f6", "#b5b5b5")
            write(axes, x + 3.7, 11.1, f"node {node}", 10, color=GREY)
            for within in range(4):
                rank = 4 * node + within
                row, column = divmod(within, 2)
                places[rank] = (x + 0.7 + 3.5 * column, 6.9 - 4.3 * row)
                cell(axes, *places[rank], 2.5, 2.2, [PALE], f"rank {rank}", 10)
        style = {"tp": (RED, 3.4), "dp": ("#0072b2", 2.0), "pp": (DARK, 1.0)}
        for step, axis in zip((1, 2, 4), axis_of_step, strict=True):
            for rank in range(8):
                if rank // step % 2 == 0:
                    join(axes, places[rank], places[rank + step], step, *style[axis])
    for x, colour, width, text in (
        (8.0, RED, 3.4, "tensor: 8 GB"),
        (15.5, "#0072b2", 2.0, "data: 3 GB"),
        (22.4, DARK, 1.0, "pipeline: 0.1 GB each way"),
    ):
        axes.plot([x, x + 1.4], [0.5, 0.5], color=colour, linewidth=width)
        write(axes, x + 1.8, 0.5, text, 9.5, ha="left")
    return figure


def join(axes, start, end, step, colour, width):
    """A line between two ranks' cells: to the right, down, or in a bow to the other node."""
    if step == 1:
        ends, bow = ((start[0] + 2.5, start[1] + 1.1), (end[0], end[1] + 1.1)), 0.0
    elif step == 2:
        ends, bow = ((start[0] + 1.25, start[1]), (end[0] + 1.25, end[1] + 2.2)), 0.0
    else:
        ends, bow = ((start[0] + 1.6, start[1] + 2.2), (end[0] + 0.9, end[1] + 2.2)), -0.16
    axes.add_patch(
        FancyArrowPatch(
            *ends,
            arrowstyle="-",
            connectionstyle=f"arc3,rad={bow}",
            color=colour,
            linewidth=width,
            shrinkA=0,
            shrinkB=0,
        )
    )


def strategy_gradients() -> Figure:
    """Two ranks along each axis: what each one's gradient of a parameter holds, and that of the serial run."""
    figure, axes = canvas(12, 4.0, 36, 12)
    panels = (
        ("dp, shard", "other samples", [BLUE], [ORANGE], [BLUE, ORANGE]),
        ("cp", "other tokens of\nthe same samples", [BLUE, PALE], [PALE, GREEN], [BLUE, GREEN]),
        ("tp, cut", "other parts of\nthe parameter", [BLUE], [GREEN], None),
        ("tp, whole", "the same tokens", [BLUE], [BLUE], [BLUE]),
        ("tp, whole", "some tokens each", [BLUE, PALE], [PALE, GREEN], [BLUE, GREEN]),
        ("pp, tied", "other uses of\none parameter", [BLUE, PALE], [PALE, PINK], [BLUE, PINK]),
    )
    write(axes, 0.9, 5.9, "two ranks", 9.5, color=GREY, rotation=90)
    write(axes, 0.9, 2.1, "serial run", 9.5, color=GREY, rotation=90)
    for number, (axis, told, first, second, serial) in enumerate(panels):
        left = 1.6 + 5.8 * number
        write(axes, left + 2.4, 11.1, axis, 11, weight="bold")
        write(axes, left + 2.4, 9.6, told, 9.5, color=GREY)
        for rank, colours in enumerate((first, second)):
            x = left + 0.1 + 2.5 * rank
            cell(axes, x, 4.8, 2.1, 2.1, colours)
            write(axes, x + 1.05, 7.5, f"rank {rank}", 9, color=GREY)
            if serial is None:
                cell(axes, x, 1.0, 2.1, 2.1, colours)
        if serial:
            cell(axes, left + 1.35, 1.0, 2.1, 2.1, serial)
    return figure


FIGURES = {
    "strategy_gradients.png": strategy_gradients,
    "strategy_mesh.png": strategy_mesh,
    "strategy_sizes.png": strategy_sizes,
}
