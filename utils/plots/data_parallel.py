"""What 02_data_parallel draws: steps with their all-reduces, the size of buckets, losses."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from utils.plots.base import COLOURS, Picture, losses, messages, spoken_bytes

if TYPE_CHECKING:  # matplotlib is loaded when something is drawn
    from matplotlib.figure import Figure

    from grader.engine.commands.notebook import RanksRun
    from grader.engine.ranks.message_rounds import Collective


def caps(
    sizes: Sequence[int],
    links: dict[str, tuple[float, float]],
    ends: Callable[[int, float, float], float],
    backward: float,
) -> Picture:
    """Seconds of a backward pass and its communication over the size of buckets, `ends(size, alpha, beta)`, and of the
    backward pass alone.
    """

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 3.6), layout="constrained")
        axes = figure.subplots()
        for (name, (alpha, beta)), colour in zip(links.items(), COLOURS, strict=False):
            axes.plot(
                sizes, [1000 * ends(size, alpha, beta) for size in sizes], "o-", markersize=4, color=colour, label=name
            )
        axes.axhline(1000 * backward, color="#999999", linestyle=":", label="the backward pass alone")
        axes.set(
            title="Until the last all-reduce is over, as computed",
            xlabel="bytes a bucket holds at most",
            ylabel="milliseconds",
            xscale="log",
            ylim=(0, None),
        )
        axes.grid()
        axes.legend(frameon=False)
        return figure

    return Picture(draw)


def steps(runs: "dict[str, RanksRun]") -> Picture:
    """Training steps of rank 0, one below the other: the backward pass, its gradients, and the all-reduces in as many
    lanes as overlap.

    Each run's results have, for each rank, the times "began", "ready" (several), "backward" and "over" of a step,
    in seconds.
    """

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        panels = []
        for name, run in runs.items():
            step = run.results[0]
            calls = [
                c
                for c in run.collectives
                if c.rank == 0 and c.op == "all_reduce" and step["began"] <= c.began <= step["over"]
            ]
            panels.append((name, step, calls, lanes(calls)))
        rows_of = [1 + max(lane, default=0) for *_, lane in panels]
        height = [2 + min(0.35 * rows, 4) for rows in rows_of]  # many lanes are thin
        figure = Figure(figsize=(11, 0.6 + 0.5 * sum(height)), layout="constrained")
        rows = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=height)[:, 0]
        for axes, (name, step, calls, lane), count in zip(rows, panels, rows_of, strict=True):
            start, pitch = step["began"], min(0.35, 4 / count)
            axes.barh(0, 1000 * (step["backward"] - start), left=0, height=0.8, color="#c8c8c8")
            axes.vlines([1000 * (t - start) for t in step["ready"]], -0.4, 0.4, color="#4a4a4a", linewidth=0.8)
            for call, row in zip(calls, lane, strict=True):
                left, y = 1000 * (call.began - start), 0.8 + pitch * (row + 0.5)
                colour = COLOURS[row % len(COLOURS)]
                if call.over is None:
                    axes.plot(left, y, marker=">", color=colour, markersize=5)
                else:
                    axes.barh(
                        y,
                        1000 * (call.over - call.began),
                        left=left,
                        height=0.85 * pitch,
                        color=colour,
                        edgecolor="white",
                        linewidth=0.4,
                    )
            axes.axvline(1000 * (step["over"] - start), color="#d55e00", linewidth=1.2)
            total = spoken_bytes(sum(call.bytes for call in calls))
            axes.set_title(
                f"{name}: {len(calls)} all-reduces of {total} in all, over after"
                f" {1000 * (step['over'] - start):.1f} ms",
                loc="left",
                fontsize=10,
            )
            axes.set(yticks=[], ylim=(0.9 + pitch * count, -0.6))
            axes.spines["left"].set_visible(False)
        rows[-1].set_xlabel("milliseconds from the start of the backward pass (grey; a tick: a gradient is ready)")
        return figure

    return Picture(draw)


def lanes(calls: "Sequence[Collective]") -> list[int]:
    """For each call the lowest lane in which no earlier one is still under way."""
    busy: list[float] = []  # until when, lane by lane
    found = []
    for call in calls:
        lane = next((n for n, until in enumerate(busy) if until <= call.began), len(busy))
        busy[lane : lane + 1] = [call.began if call.over is None else call.over]
        found.append(lane)
    return found
