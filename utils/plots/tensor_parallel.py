"""What 04_tensor_parallel measures, drawn."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from utils.plots.base import COLOURS, Picture, spoken_bytes

if TYPE_CHECKING:  # matplotlib is loaded when something is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = Sequence[tuple[float, float]]


def kept(measured: dict[str, float], predicted: dict[str, float], serial: float) -> Picture:
    """Bytes of activations of a block on a rank: measured (bars) and predicted (lines), compared with one process's."""

    def draw() -> "Figure":
        figure, axes = plain_axes(9, 3.4)
        names = ["one process", *predicted]
        for place, (name, colour) in enumerate(zip(names[1:], COLOURS, strict=False), 1):
            if name in measured:
                axes.bar(place, measured[name], 0.7, color=colour)
        heights = [serial, *predicted.values()]
        for place, (name, height) in enumerate(zip(names, heights, strict=True)):
            axes.hlines(
                height,
                place - 0.45,
                place + 0.45,
                color="black",
                linestyle=":",
                label="predicted" if not place else None,
            )
            top = max(height, measured.get(name, 0))
            axes.text(place, top, f"{spoken_bytes(height)} predicted", ha="center", va="bottom", fontsize=8)
        axes.set_xticks(range(len(names)), names)
        axes.set(title="What a rank keeps of one block between the passes", ylabel="bytes", ylim=(0, 1.15 * serial))
        axes.grid(axis="x", visible=False)
        axes.legend(frameon=False)
        return figure

    return Picture(draw)


def efficiency(curves: dict[str, Curve]) -> Picture:
    """Efficiency, as computed, over the number of ranks."""

    def draw() -> "Figure":
        figure, axes = plain_axes(8, 3.4)
        for (name, curve), colour, marker in zip(curves.items(), COLOURS, "os^Dv", strict=False):
            axes.plot(*zip(*curve, strict=True), marker=marker, color=colour, label=name, markersize=5)
        axes.set_xscale("log", base=2)
        ranks = [world for world, _ in next(iter(curves.values()))]
        axes.set_xticks(ranks, ranks)
        axes.set(title="Efficiency of tensor parallelism, as computed", xlabel="ranks", ylim=(0, 1.05))
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.legend(frameon=False)
        return figure

    return Picture(draw)


def rates(curves: dict[str, Curve]) -> Picture:
    """FLOP/s of products over the width of the second factor, each curve as a fraction of its largest value."""

    def draw() -> "Figure":
        figure, axes = plain_axes(8, 3.4)
        for (name, curve), colour in zip(curves.items(), COLOURS, strict=False):
            most = max(rate for _, rate in curve)
            shares = [rate / most for _, rate in curve]
            label = f"{name}, at best {most / 1e12:.3g} TFLOP/s"
            axes.plot([width for width, _ in curve], shares, "o-", color=colour, label=label, markersize=5)
        axes.set_xscale("log", base=2)
        axes.set(
            title="How fast products are", xlabel="width of the second factor", ylabel="of the best", ylim=(0, 1.1)
        )
        axes.legend(frameon=False)
        return figure

    return Picture(draw)


def losses(serial: Sequence[float], parallel: dict[str, Sequence[float]]) -> Picture:
    """Losses of the serial run (a broad line) and of parallel ones, and how far these are from it."""

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        steps = range(1, len(serial) + 1)
        left.plot(steps, serial, color="#c8c8c8", linewidth=7, label="one process")
        for (name, run), colour, style in zip(parallel.items(), COLOURS, ("-", "--", ":"), strict=False):
            left.plot(steps, run, color=colour, linestyle=style, label=name)
            apart = [max(abs(a - b) / b, 1e-9) for a, b in zip(run, serial, strict=True)]
            right.plot(steps, apart, "o-", color=colour, label=name, markersize=4)
        left.set(title="Loss", xlabel="step")
        right.set(title="Relative difference from one process", xlabel="step", yscale="log", ylim=(5e-10, 1))
        for axes in (left, right):
            axes.xaxis.get_major_locator().set_params(integer=True)
            finish(axes)
            axes.legend(frameon=False, fontsize=8)
        return figure

    return Picture(draw)


def plain_axes(width: float, height: float) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    finish(axes)
    return figure, axes


def finish(axes: "Axes") -> None:
    axes.grid()
