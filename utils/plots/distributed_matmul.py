"""What 08_distributed_matmul draws: training on grids, predicted and measured times of grids."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from utils.plots.base import COLOURS, Picture, messages

if TYPE_CHECKING:  # matplotlib is loaded when something is drawn
    from matplotlib.figure import Figure

Shape = tuple[int, ...]


def spoken_grid(shape: Shape) -> str:
    return " × ".join(map(str, shape))


def centred_places(values: Sequence[float]) -> list[float]:
    """The place of each in ascending order, from the middle one; equal numbers share theirs."""
    places = [(sum(y < x for y in values) + sum(y <= x for y in values)) / 2 for x in values]
    middle = sum(places) / len(places)
    return [place - middle for place in places]


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's: 1 if both are in the same order, -1 if in the opposite one. Equal numbers share their places.

    It is 0 where one of the two has no order at all.
    """
    centred = [centred_places(values) for values in (first, second)]
    squares = [sum(x * x for x in found) for found in centred]
    product = sum(x * y for x, y in zip(*centred, strict=True))
    return product / (squares[0] * squares[1]) ** 0.5 if all(squares) else 0.0


def losses(curves: dict[str, Sequence[float]]) -> Picture:
    """Losses over the steps: on top of each other if the parallel runs are the serial run. Below, how far each is from
    the first.
    """

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 3.8), layout="constrained")
        shown, apart = figure.subplots(1, 2)
        serial = next(iter(curves.values()))
        styles = ("-", "--", "-.", ":")
        for number, (name, curve) in enumerate(curves.items()):
            colour, style = COLOURS[number % len(COLOURS)], styles[number % len(styles)]
            shown.plot(range(1, len(curve) + 1), curve, style, color=colour, label=name)
            if number:
                differences = [abs(a - b) / b for a, b in zip(curve, serial, strict=True)]
                apart.plot(range(1, len(curve) + 1), differences, style, color=colour, label=name)
        shown.set(title="loss", xlabel="step", yscale="log")
        apart.set(title="relative difference from one process", xlabel="step", ylim=(0, None))
        for axes in (shown, apart):
            axes.grid()
            axes.legend(frameon=False, fontsize=8)
        return figure

    return Picture(draw)


def grids(predicted: dict[Shape, float], measured: dict[Shape, float]) -> Picture:
    """Seconds of a step on each grid, predicted and measured, in the order of the prediction; and the rank correlation
    of the two.
    """

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 3.8), layout="constrained")
        axes = figure.subplots()
        order = sorted(predicted, key=predicted.get)
        for shift, (name, seconds) in zip((-0.2, 0.2), (("predicted", predicted), ("measured", measured)), strict=True):
            colour = COLOURS[0 if name == "predicted" else 1]
            axes.bar(
                [place + shift for place in range(len(order))],
                [1000 * seconds[shape] for shape in order],
                0.38,
                color=colour,
                label=name,
            )
        correlation = rank_correlation([predicted[shape] for shape in order], [measured[shape] for shape in order])
        axes.set(
            title=f"A step on {len(order)} grids: rank correlation {correlation:.2f}",
            xlabel="grid: x × y × z",
            ylabel="milliseconds",
        )
        axes.set_xticks(range(len(order)), [spoken_grid(shape) for shape in order])
        axes.tick_params(axis="x", length=0)
        axes.legend(frameon=False)
        return figure

    return Picture(draw)
