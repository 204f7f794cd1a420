"""What 13_fewer_bytes draws: losses over tokens and over the bytes that a rank has sent; seconds over bandwidths."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from utils.plots.base import COLOURS, Picture

if TYPE_CHECKING:  # matplotlib is loaded when something is drawn
    from matplotlib.figure import Figure

SMOOTHED = 8  # losses, whose mean is drawn


def losses(curves: dict[str, Sequence[float]], sent: dict[str, float], tokens: int) -> Picture:
    """The losses of each method, step by step: running means, over tokens on the left and over bytes on the right.

    Args:
        sent: bytes that a rank sends in a step of each method, on average.
        tokens: of all ranks in a step.
    """

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11, 4), layout="constrained")
        over_tokens, over_bytes = figure.subplots(1, 2, sharey=True)
        for (method, mine), colour in zip(curves.items(), COLOURS, strict=False):
            steps = range(SMOOTHED, len(mine) + 1)
            means = [sum(mine[step - SMOOTHED : step]) / SMOOTHED for step in steps]
            over_tokens.plot([step * tokens for step in steps], means, color=colour, label=method)
            over_bytes.plot([step * sent[method] for step in steps], means, color=colour)
        over_tokens.set(xlabel="tokens", ylabel=f"loss, mean of {SMOOTHED} steps")
        over_bytes.set(xlabel="bytes that a rank has sent", xscale="log")
        over_tokens.legend()
        return figure

    return Picture(draw)


def seconds(found: dict[str, Sequence[float]], bandwidths: Sequence[float]) -> Picture:
    """Seconds until the loss is reached, of each method, over the bandwidth of a rank in bytes per second."""

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        for (method, mine), colour in zip(found.items(), COLOURS, strict=False):
            axes.plot([8e-6 * bandwidth for bandwidth in bandwidths], mine, color=colour, label=method)
        axes.set(xlabel="Mbit/s of a rank", ylabel="seconds until the loss is reached", xscale="log", yscale="log")
        axes.legend()
        return figure

    return Picture(draw)
