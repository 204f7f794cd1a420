"""What 09_mesh draws: bytes between nodes, samples by rank, training."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from utils.plots.base import COLOURS, Picture, tidy

if TYPE_CHECKING:  # matplotlib is loaded when something is drawn
    from matplotlib.figure import Figure

Order = tuple[str, ...]


def orders(predicted: Mapping[Order, float], measured: Mapping[Order, float]) -> Picture:
    """Bytes between nodes for each order of the axes, predicted and measured, the fewest first."""

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 3.6), layout="constrained")
        axes = figure.subplots()
        ordered = sorted(predicted, key=lambda order: predicted[order])
        for shift, name, bars in ((-0.2, "predicted", predicted), (0.2, "what the ranks sent", measured)):
            places = [place + shift for place in range(len(ordered))]
            colour = COLOURS[0 if bars is predicted else 1]
            axes.bar(places, [bars[order] / 1000 for order in ordered], 0.38, color=colour, label=name)
        axes.set_xticks(range(len(ordered)), [" × ".join(order) for order in ordered])
        axes.set(title="What leaves a node, by the order of the axes (outermost first)", ylabel="kilobytes")
        tidy(axes)
        axes.legend(frameon=False)
        return figure

    return Picture(draw)


def samples(first: Sequence[Sequence[int]], shape: Mapping[str, int]) -> Picture:
    """The first samples that each rank reads. Ranks with the same ones have one colour."""
    kinds = list(dict.fromkeys(tuple(mine) for mine in first))

    def draw() -> "Figure":
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle

        figure = Figure(figsize=(9, 0.8 + 0.36 * len(first)), layout="constrained")
        axes = figure.subplots()
        for rank, mine in enumerate(first):
            place, coordinates = rank, {}
            for axis, size in reversed(shape.items()):
                place, coordinates[axis] = divmod(place, size)
            told = ", ".join(f"{axis} {coordinates[axis]}" for axis in shape)
            axes.text(-0.1, rank, f"rank {rank} ({told})", ha="right", va="center", fontsize=9)
            for column, sample in enumerate(mine):
                colour = COLOURS[kinds.index(tuple(mine)) % len(COLOURS)]
                axes.add_patch(Rectangle((column, rank - 0.4), 0.94, 0.8, color=colour, alpha=0.55))
                axes.text(column + 0.47, rank, str(sample), ha="center", va="center", fontsize=9)
        axes.set(xlim=(-2.5, max(len(mine) for mine in first)), ylim=(len(first) - 0.4, -0.6))
        axes.set_title("The samples of the first step, by rank", fontsize=10)
        axes.axis("off")
        return figure

    return Picture(draw)


def training(runs: Mapping[str, Sequence[Sequence[float]]]) -> Picture:
    """Losses over the steps, and how far losses and norms of gradients are from the first run's.

    Each run has pairs of them, by step.
    """

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11, 3.8), layout="constrained")
        shown, *differences = figure.subplots(1, 3)
        serial = next(iter(runs.values()))
        for number, (name, steps) in enumerate(runs.items()):
            how = dict(color=COLOURS[number % len(COLOURS)], linestyle=("-", "--", "-.", ":")[number % 4])
            shown.plot(range(1, len(steps) + 1), [loss for loss, _ in steps], label=name, **how)
            for what, axes in enumerate(differences if number else ()):
                apart = [abs(a[what] - b[what]) / b[what] for a, b in zip(steps, serial, strict=True)]
                axes.plot(range(1, len(steps) + 1), apart, **how)
        shown.set(title="loss", xlabel="step")
        shown.legend(frameon=False, fontsize=7)
        for axes, name in zip(differences, ("loss", "norm of the gradient"), strict=True):
            axes.set(title=f"{name}: relative difference from one process", xlabel="step", ylim=(0, 1e-5))
            axes.title.set_fontsize(9)
        for axes in (shown, *differences):
            axes.grid()
            tidy(axes)
        return figure

    return Picture(draw)
