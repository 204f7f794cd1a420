"""Draw what a mixture of experts does on ranks: a student's own runs in 07_expert_parallel."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from utils.plots.base import COLOURS, Picture, bars_axes, bytes_table

if TYPE_CHECKING:  # matplotlib is loaded when something is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from grader.engine.ranks.message_rounds import Collective

Rows = Sequence[Sequence[int]]  # for each rank, how many rows it sends to each expert


def journey(rows: Rows, calls: "Sequence[Collective]") -> Picture:
    """Rows that each expert gets, by rank of origin; and the bytes of all all-to-alls from each rank to each."""

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        world = len(rows)
        figure = Figure(figsize=(11, 0.9 + 0.5 * max(world, 5)), layout="constrained")
        bars, table = figure.subplots(1, 2, width_ratios=(1.5, 1))
        by_expert(bars, rows)
        counts = [[0] * world for _ in range(world)]
        for call in calls:
            for target, nbytes in call.pieces:
                counts[call.rank][target] += nbytes
        bytes_table(table, counts)
        return figure

    return Picture(draw)


def by_expert(axes: "Axes", rows: Rows) -> None:
    """A bar for each expert, in it a colour for each rank that its rows come from."""
    world, experts = len(rows), len(rows[0])
    below = [0] * experts
    for rank, mine in enumerate(rows):
        axes.bar(range(experts), mine, 0.85, below, color=COLOURS[rank % len(COLOURS)], label=f"from rank {rank}")
        below = [a + b for a, b in zip(below, mine, strict=True)]
    axes.axhline(sum(below) / experts, color="black", linestyle=":", label="even")
    each = experts // world
    axes.set_xticks(range(experts), [f"{e}\nrank {e // each}" if e % each == 0 else e for e in range(experts)])
    axes.set(title="rows of each expert", ylim=(0, 1.3 * max(below)))
    axes.tick_params(axis="x", length=0)
    axes.legend(frameon=False, ncols=5, fontsize=8, loc="upper center")


def layer(calls: "Sequence[Collective]", predicted: Sequence[tuple[int, int]]) -> Picture:
    """Bytes that each rank sent in each of a layer's all-to-alls, and lines at their predicted ends.

    Predicted are bytes forward and backward, by rank.
    """
    names = ("counts", "rows", "results", "gradients of results", "gradients of rows")

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 3.8), layout="constrained")
        axes, below = figure.subplots(), 0.0
        for rank, (forward, backward) in enumerate(predicted):
            below = 0.0
            for number, call in enumerate(call for call in calls if call.rank == rank):
                name = names[number] if number < len(names) else "more"
                colour = COLOURS[number % len(COLOURS)]
                axes.bar(rank, call.sent, 0.8, below, color=colour, label=name if rank == 0 else None)
                below += call.sent
            ends = (forward, forward + backward)
            axes.hlines(
                ends, rank - 0.45, rank + 0.45, color="black", linestyle=":", label=None if rank else "predicted"
            )
        bars_axes(axes, {rank: f"rank {rank}" for rank in range(len(predicted))}, "bytes sent in a layer")
        axes.margins(y=0.35)
        return figure

    return Picture(draw)


def loads(runs: dict[str, Sequence[Sequence[Sequence[int]]]]) -> Picture:
    """Each expert's share of all slots, step by step, stacked: a panel for each run.

    ``runs[name][rank][step][expert]`` counts slots.
    """

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.2 * len(runs), 3.6), layout="constrained")
        panels = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
        for axes, (name, ranks) in zip(panels, runs.items(), strict=True):
            steps = [[sum(counts) for counts in zip(*of_ranks, strict=True)] for of_ranks in zip(*ranks, strict=True)]
            experts = len(steps[0])
            curves = [[100 * counts[e] / sum(counts) for counts in steps] for e in range(experts)]
            colours = [COLOURS[e % len(COLOURS)] for e in range(experts)]
            axes.stackplot(range(len(steps)), curves, colors=colours, edgecolor="white", linewidth=0.5)
            axes.set(title=name, xlabel="step", xlim=(0, len(steps) - 1), ylim=(0, 100))
            axes.set_yticks([100 * e / experts for e in range(experts + 1)], minor=False)
            axes.set_yticklabels([f"{100 * e / experts:.0f}%" for e in range(experts + 1)])
        panels[0].set_ylabel("share of the slots, a colour for each expert")
        return figure

    return Picture(draw)
