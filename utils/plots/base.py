"""What several lessons' pictures use, and the pictures that several lessons show.

A drawing for a notebook is a `Picture`: the last line of a cell shows it. No backend is chosen, no global state touched
for longer than a picture takes.
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from utils.atomic_write import written_whole

if TYPE_CHECKING:  # matplotlib is loaded when something is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from grader.engine.ranks.message_rounds import Message

STYLE = Path(__file__).with_name("workbook.mplstyle")
# Told apart by the colour-blind, too (Okabe and Ito).
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c7c00", "#4a4a4a")


class Picture:
    """A figure that is drawn when a notebook shows it: on ranks, which run the same cells, it is not drawn."""

    def __init__(self, draw: "Callable[[], Figure]") -> None:
        self.draw = draw

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        self.draw_into(png, "png")
        return png.getvalue()

    def save(self, path: Path) -> None:
        """In the format that the path's ending names, such as .png or .svg."""
        with written_whole(path) as part:
            self.draw_into(part, path.suffix.removeprefix("."))

    def draw_into(self, file: "Path | io.BytesIO", kind: str) -> None:
        from matplotlib import style

        with style.context(STYLE):  # also while it is saved: ticks and their grid are made only then
            self.draw().savefig(file, dpi=110, format=kind)


def messages(sent: Sequence["Message"], title: str) -> Picture:
    """How many bytes each rank sent to each other, and the messages in rounds and by the clock, a colour per sender."""

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        world = 1 + max((max(m.source, m.target) for m in sent), default=0)
        figure = Figure(figsize=(12, 0.9 + 0.42 * max(world, 4)), layout="constrained")
        figure.suptitle(f"{title}: {len(sent)} messages")
        table, rounds, clock = figure.subplots(1, 3, width_ratios=(1, 1.3, 1.3))
        nbytes = [[0] * world for _ in range(world)]
        for m in sent:
            nbytes[m.source][m.target] += m.bytes
        bytes_table(table, nbytes)

        last = max((m.round for m in sent), default=1)
        began = min((m.sent for m in sent), default=0.0)
        for m in sent:
            colour = COLOURS[m.source % len(COLOURS)]
            arrow(rounds, (m.round - 1, m.source), (m.round, m.target), colour)
            arrow(clock, (1000 * (m.sent - began), m.source), (1000 * (m.arrived - began), m.target), colour)
        rounds.set(title=f"in {last} round{'s' if last > 1 else ''}", xlabel="round", xlim=(-0.1, last + 0.1))
        rounds.set_xticks([n + 0.5 for n in range(last)], range(1, last + 1))
        rounds.vlines(range(last + 1), -0.5, world - 0.5, color="#dddddd", linewidth=1, zorder=0)
        clock.set(title="by the clock, from call to arrival", xlabel="milliseconds")
        clock.set_xlim(0, 1030 * max((m.arrived - began for m in sent), default=0.001))
        for axes in (rounds, clock):
            axes.set(ylabel="rank", yticks=range(world), ylim=(world - 0.6, -0.4))
            axes.hlines(range(world), *axes.get_xlim(), color="#eeeeee", linewidth=4, zorder=0)
            axes.spines["left"].set_visible(False)
            axes.tick_params(axis="y", length=0)
        return figure

    return Picture(draw)


def bytes_table(axes: "Axes", counts: list[list[int]]) -> None:
    """Bytes from each rank (row) to each rank (column)."""
    world, most = len(counts), max(map(max, counts), default=0)
    axes.imshow(counts, cmap="Blues", vmin=0, vmax=1.6 * most or 1, aspect="auto")
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            if count:
                axes.text(j, i, spoken_bytes(count), ha="center", va="center", fontsize=8 if world <= 4 else 6)
    axes.set(title="bytes", xlabel="to rank", ylabel="from rank", xticks=range(world), yticks=range(world))
    axes.tick_params(length=0)


def arrow(axes: "Axes", start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    axes.annotate(
        "", end, start, arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.5, "shrinkA": 0, "shrinkB": 0}
    )


def spoken_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def losses(serial: Sequence[float], parallel: dict[str, Sequence[float]]) -> Picture:
    """Losses of parallel runs (dots) on the serial run's (line), step by step; and how far they lie apart."""

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 3.6), layout="constrained")
        curves, apart = figure.subplots(1, 2)
        steps = range(1, len(serial) + 1)
        curves.plot(steps, serial, color="#999999", label="one process")
        for (name, mine), colour in zip(parallel.items(), COLOURS, strict=False):
            curves.plot(steps, mine, "o", color=colour, markersize=3, label=name)
            differences = [abs(a - b) / b for a, b in zip(mine, serial, strict=True)]
            apart.semilogy(steps, [max(x, 1e-9) for x in differences], "o", color=colour, markersize=3, label=name)
        apart.axhline(1e-4, color="#999999", linestyle=":", label="what the checks allow")
        curves.set(title="loss", xlabel="step")
        apart.set(title="relative difference", xlabel="step", ylim=(5e-10, 1))
        for axes in (curves, apart):
            axes.grid()
            axes.legend(frameon=False, fontsize=8)
        return figure

    return Picture(draw)


def bars_axes(axes: "Axes", names: dict[float, str], what: str) -> None:
    """The look of a plot of bars, with names at these places."""
    axes.set_xticks(list(names), list(names.values()), fontsize=9)
    axes.set(ylabel=what)
    axes.yaxis.set_major_formatter(lambda count, _: spoken_bytes(count))
    axes.margins(y=0.25)
    axes.tick_params(axis="x", length=0)
    axes.legend(frameon=False, ncols=4, loc="upper right")


def tidy(axes: "Axes") -> None:
    axes.tick_params(axis="x", length=0)
