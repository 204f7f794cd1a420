"""What 01_collectives draws: what collectives cost, computed and measured."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from utils.plots.base import COLOURS, Picture, messages, spoken_bytes

if TYPE_CHECKING:  # matplotlib is loaded when something is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Cost = Callable[[float, int], tuple[int, float]]  # (bytes, ranks) -> (rounds, bytes one after the other)


def ring_and_tree(
    links: dict[str, tuple[float, float]],
    world: int,
    ring: Cost,
    tree: Cost,
    equal: Callable[[int, float, float], float],
) -> Picture:
    """What two algorithms take over the size, on links of (alpha, beta), and the size for which they are equal."""
    sizes = [2.0**k for k in range(10, 31)]
    costs = {"ring": [ring(size, world) for size in sizes], "tree": [tree(size, world) for size in sizes]}
    equal_sizes = [equal(world, alpha, beta) for alpha, beta in links.values()]

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 3.6), layout="constrained")
        figure.suptitle(f"All-reduce on {world} ranks, as computed")
        for axes, (name, (alpha, beta)), size in zip(
            figure.subplots(1, len(links), sharey=True, squeeze=False)[0], links.items(), equal_sizes, strict=True
        ):
            for (label, cost_of_size), colour in zip(costs.items(), COLOURS, strict=False):
                axes.plot(
                    sizes, [rounds * alpha + count * beta for rounds, count in cost_of_size], label=label, color=colour
                )
            axes.axvline(size, color="#999999", linestyle=":", label=f"equal at {spoken_bytes(size)}")
            log_axes(axes, name)
            axes.legend(frameon=False)
        return figure

    return Picture(draw)


def cost(sizes: Sequence[int], curves: dict[str, tuple[Sequence[float], Sequence[float]]]) -> Picture:
    """Measured seconds (dots) and computed ones (lines) over the size in bytes."""

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 3.8), layout="constrained")
        linear, logarithmic = figure.subplots(1, 2)
        megabytes = [size / 1e6 for size in sizes]
        for axes, x, scale in ((linear, megabytes, 1e3), (logarithmic, sizes, 1)):
            for (name, (measured, computed)), colour in zip(curves.items(), COLOURS, strict=False):
                axes.plot(x, [scale * y for y in measured], "o", color=colour, markersize=5, label=f"{name}: measured")
                axes.plot(x, [scale * y for y in computed], color=colour, label=f"{name}: computed")
        linear.set(title="time over size", xlabel="megabytes", ylabel="milliseconds")
        linear.grid()
        linear.legend(frameon=False, fontsize=8)
        log_axes(logarithmic, "the same, on logarithmic axes")
        return figure

    return Picture(draw)


def log_axes(axes: "Axes", title: str) -> None:
    """The look of a plot of seconds over bytes on logarithmic axes."""
    axes.set(title=title, xlabel="bytes", ylabel="seconds", xscale="log", yscale="log")
    axes.grid()
