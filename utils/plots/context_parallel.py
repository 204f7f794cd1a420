"""What the student's runs of 06_context_parallel draw: work of each rank, bytes sent, losses and activations."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from utils.plots.base import COLOURS, Picture, bars_axes, messages, spoken_bytes

if TYPE_CHECKING:  # matplotlib is loaded when something is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALE = "#c8c8c8"


def work(measured: dict[str, Sequence[dict[str, int]]], predicted: dict[str, Sequence[int]]) -> Picture:
    """Pairs of query and key: a bar for each rank of each way to deal; "seen" in colour, the rest of "computed" pale.

    The lines are the predicted ones that are seen. The slowest rank sets the pace, so the most is told.
    """

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 3.6), layout="constrained")
        rows = figure.subplots(1, len(measured), sharey=True, squeeze=False)[0]
        for axes, (name, ranks) in zip(rows, measured.items(), strict=True):
            seen, computed = ([mine[kind] for mine in ranks] for kind in ("seen", "computed"))
            axes.bar(range(len(ranks)), computed, color=PALE, label="computed, and masked out")
            axes.bar(range(len(ranks)), seen, color=COLOURS[0], label="seen")
            for rank, (line, number) in enumerate(zip(predicted[name], seen, strict=True)):
                axes.hlines(
                    line, rank - 0.4, rank + 0.4, color="black", linestyle=":", label="predicted" if rank == 0 else None
                )
                axes.text(rank, number / 2, str(number), ha="center", va="center", color="white", fontsize=9)
            mean = sum(seen) / len(seen)
            axes.set(
                title=f"{name}: at most {max(seen) / mean:.2f} × the mean", xlabel="rank", xticks=range(len(ranks))
            )
        rows[0].set_ylabel("pairs of query and key")
        rows[-1].legend(frameon=False, fontsize=8)
        rows[-1].margins(y=0.2)
        return figure

    return Picture(draw)


def sent(measured: dict[str, dict[int, float]], predicted: dict[str, dict[int, float]]) -> Picture:
    """Bytes that a rank sends over the number of ranks, for one length: measured (dots) and predicted (lines)."""

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 3.6), layout="constrained")
        axes = figure.subplots()
        for (name, points), colour in zip(measured.items(), COLOURS, strict=False):
            axes.plot(points.keys(), points.values(), "o", color=colour, label=f"{name}: measured")
            axes.plot(predicted[name].keys(), predicted[name].values(), color=colour, label=f"{name}: predicted")
        ranks = sorted({n for points in measured.values() for n in points})
        axes.set(title="Sent by a rank in one layer's forward pass", xlabel="ranks", xticks=ranks, ylim=(0, None))
        bytes_axis(axes)
        axes.legend(frameon=False, fontsize=8)
        return figure

    return Picture(draw)


def trained(runs: dict[int, Sequence[dict]]) -> Picture:
    """Losses over the steps, and bytes of activations of each rank; the line is 1 / N of the bytes of one rank
    alone."""

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11, 3.8), layout="constrained")
        losses, held = figure.subplots(1, 2, width_ratios=(1, 1.4))
        for (n, ranks), colour, size in zip(runs.items(), COLOURS, (11, 7, 3, 2, 1), strict=False):
            values = ranks[0]["losses"]
            losses.plot(range(1, len(values) + 1), values, "o-", markersize=size, color=colour, label=counted(n))
        losses.set(title="Loss, over all ranks' tokens", xlabel="step", ylabel="nats per token")
        losses.grid()
        losses.legend(frameon=False)
        serial = max((mine["activations"] for mine in runs.get(1, ())), default=None)
        place, names = 0.0, {}
        for n, ranks in runs.items():
            first = place
            for mine in ranks:
                held.bar(place, mine["activations"], 0.9, color=COLOURS[1], label="measured" if place == 0 else None)
                place += 1
            if serial:
                label = "one rank's / N" if first == 0 else None
                held.hlines(serial / n, first - 0.5, place - 0.5, color="black", linestyle=":", label=label)
            names[(first + place - 1) / 2] = f"{counted(n)}\n{spoken_bytes(max(mine['activations'] for mine in ranks))}"
            place += 1
        bars_axes(held, names, "activations held, a bar for each rank")
        return figure

    return Picture(draw)


def bytes_axis(axes: "Axes") -> None:
    """The look of a plot of bytes."""
    axes.yaxis.set_major_formatter(lambda count, _: spoken_bytes(count))
    axes.grid()


def counted(ranks: int) -> str:
    return f"{ranks} rank{'s' if ranks > 1 else ''}"
