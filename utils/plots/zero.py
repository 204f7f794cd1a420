"""What 03_zero draws: bytes that ranks hold and send, measured and predicted."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from utils.plots.base import COLOURS, Picture, bars_axes, losses, messages, spoken_bytes

if TYPE_CHECKING:  # matplotlib is loaded when something is drawn
    from matplotlib.figure import Figure

    from grader.engine.ranks.message_rounds import Collective


def held(measured: dict[str, Sequence[dict[str, int]]], predicted: dict[str, Sequence[float]]) -> Picture:
    """Bytes of weights, gradients and optimizer state: a bar for each rank of each scheme, and lines at their predicted
    ends.
    """
    kinds = ("weights", "gradients", "optimizer")

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 4), layout="constrained")
        axes, names, place = figure.subplots(), {}, 0.0
        for name, ranks in measured.items():
            first = place
            for mine in ranks:
                below = 0
                for kind, colour in zip((*kinds, "other"), COLOURS, strict=False):
                    if mine[kind]:
                        axes.bar(place, mine[kind], 0.9, below, color=colour, label=kind if place == 0 else None)
                    below += mine[kind]
                place += 1
            ends = [sum(predicted[name][: n + 1]) for n in range(len(kinds))]
            axes.hlines(
                ends, first - 0.5, place - 0.5, color="black", linestyle=":", label="predicted" if first == 0 else None
            )
            names[(first + place - 1) / 2] = (
                f"{name}\n{spoken_bytes(max(sum(mine.values()) for mine in ranks))}, predicted {spoken_bytes(ends[-1])}"
            )
            place += 1
        bars_axes(axes, names, "bytes held, a bar for each rank")
        return figure

    return Picture(draw)


def sent(measured: "dict[str, Sequence[Collective]]", predicted: dict[str, float]) -> Picture:
    """Bytes that each rank sent in the collectives of each scheme, in rings, and lines at the predictions."""

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 4), layout="constrained")
        axes, names, place, labelled = figure.subplots(), {}, 0.0, set()
        ops = ("all_reduce", "reduce_scatter", "all_gather")
        for name, calls in measured.items():
            first, ranks = place, sorted({call.rank for call in calls})
            for rank in ranks:
                below = 0.0
                for op, colour in zip(ops, COLOURS, strict=False):
                    height = sum(call.sent for call in calls if call.rank == rank and call.op == op)
                    if height:
                        axes.bar(place, height, 0.9, below, color=colour, label=None if op in labelled else op)
                        labelled.add(op)
                    below += height
                place += 1
            axes.hlines(
                predicted[name],
                first - 0.5,
                place - 0.5,
                color="black",
                linestyle=":",
                label="predicted" if first == 0 else None,
            )
            names[(first + place - 1) / 2] = f"{name}\n{sum(call.rank == 0 for call in calls)} collectives"
            place += 1
        bars_axes(axes, names, "bytes sent in a step, a bar for each rank")
        return figure

    return Picture(draw)
