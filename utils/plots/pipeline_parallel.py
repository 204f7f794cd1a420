"""Timelines of pipelines, and what their ranks keep, for notebooks and reports.

A timeline is, for each rank, a list of notes (kind, micro-batch, chunk, begin, end): kind is F, B, or B's parts I
and W; times are in seconds.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from utils.plots.base import COLOURS, Picture, spoken_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Note = tuple[str, int, int, float, float]
Timeline = Sequence[Sequence[Note]]

# The same kind has the same colour in every figure of the lesson; the second shade is for odd chunks.
SHADES = {
    "F": ("#9ccdf0", "#4f9fd4"),
    "B": ("#f3c877", "#d99a1f"),
    "I": ("#f3c877", "#d99a1f"),
    "W": ("#9bdcc0", "#4fae8a"),
}
NAMES = {"F": "F, forward", "B": "B, backward", "I": "I, backward for the input", "W": "W, backward for the weights"}


def span(timeline: Timeline) -> tuple[float, float]:
    """From the start of the first note to the end of the last one, of all ranks."""
    notes = [note for rank in timeline for note in rank]
    return min((note[3] for note in notes), default=0.0), max((note[4] for note in notes), default=0.0)


def bubble(timeline: Timeline) -> float:
    """The share of the ranks' time, from the first start to the last end, in which they do nothing: from 0 to 1."""
    first, last = span(timeline)
    busy = sum(note[4] - note[3] for rank in timeline for note in rank)
    return 1 - busy / (len(timeline) * (last - first)) if last > first else 0.0


def with_whole_backwards(timeline: Timeline) -> list[list[Note]]:
    """The same with I and W of a micro-batch, which follow each other, as one B."""
    whole = []
    for rank in timeline:
        backward: dict[tuple[int, int], Note] = {}
        for kind, microbatch, chunk, begin, end in rank:
            if kind != "F":
                _, _, _, first, last = backward.get((microbatch, chunk), ("B", microbatch, chunk, begin, end))
                backward[microbatch, chunk] = ("B", microbatch, chunk, min(first, begin), max(last, end))
        whole.append(sorted([note for note in map(tuple, rank) if note[0] == "F"] + list(backward.values()), key=start))
    return whole


def start(note: Note) -> float:
    return note[3]


def timelines(drawn: dict[str, Timeline]) -> Picture:
    """Timelines below each other, on one scale, each with its length and its bubble."""

    def draw() -> "Figure":
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch

        ranks = max(len(timeline) for timeline in drawn.values())
        figure = Figure(figsize=(12, (0.75 + 0.3 * ranks) * len(drawn) + 0.5), layout="constrained")
        rows = figure.subplots(len(drawn), 1, sharex=True, squeeze=False)[:, 0]
        kinds = set()
        for axes, (name, timeline) in zip(rows, drawn.items(), strict=True):
            first, last = span(timeline)
            for rank, notes in enumerate(timeline):
                for kind, microbatch, chunk, begin, end in notes:
                    left, width = 1000 * (begin - first), 1000 * (end - begin)
                    axes.barh(
                        rank,
                        width,
                        left=left,
                        height=0.86,
                        color=SHADES[kind][chunk % 2],
                        edgecolor="white",
                        linewidth=0.8,
                    )
                    axes.text(left + width / 2, rank, str(microbatch), ha="center", va="center", fontsize=7)
                    kinds.add(kind)
            axes.set_title(
                f"{name}: {1000 * (last - first):.0f} ms, bubble {bubble(timeline):.1%}", loc="left", fontsize=10
            )
            axes.set(yticks=range(len(timeline)), ylabel="rank", ylim=(len(timeline) - 0.45, -0.55))
            axes.spines["left"].set_visible(False)
            axes.tick_params(axis="y", length=0)
        rows[-1].set_xlabel("milliseconds; the numbers are the micro-batches'")
        patches = [Patch(color=SHADES[kind][0], label=NAMES[kind]) for kind in NAMES if kind in kinds]
        rows[0].legend(handles=patches, ncols=4, frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1))
        return figure

    return Picture(draw)


def alive(measured: dict[str, Sequence[dict[str, float]]], predicted: dict[str, Sequence[float]]) -> Picture:
    """Bytes of activations that each rank keeps at most, divided by one micro-batch's there, and lines at the
    predictions.

    Of each rank ``measured`` has the bytes "most", and "one" micro-batch's.
    """

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 3.4), layout="constrained")
        axes, ticks, place = figure.subplots(), {}, 0
        for (name, ranks), colour in zip(measured.items(), COLOURS, strict=False):
            for rank, seen in enumerate(ranks):
                axes.bar(place, seen["most"] / seen["one"], 0.85, color=colour, label=name if rank == 0 else None)
                axes.text(place, seen["most"] / seen["one"] + 0.1, spoken_bytes(seen["most"]), ha="center", fontsize=8)
                label = "predicted" if place == 0 else None
                axes.hlines(
                    predicted[name][rank], place - 0.45, place + 0.45, color="black", linestyle=":", label=label
                )
                ticks[place] = f"rank {rank}"
                place += 1
            place += 1
        axes.set_xticks(list(ticks), list(ticks.values()), fontsize=8)
        axes.set(ylabel="micro-batches alive, at most")
        axes.tick_params(axis="x", length=0)
        axes.legend(frameon=False, ncols=4)
        return figure

    return Picture(draw)
