"""Draw the records of runs, and what notebooks measure.

What is drawn for a notebook is a `Picture`: the last line of a cell shows it. No backend is chosen, no global state
touched.
"""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # matplotlib is loaded when something is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from grader.engine.commands.notebook import RanksRun
    from grader.engine.ranks.messages import Collective, Message

# Told apart by the colour-blind, too (Okabe and Ito).
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c7c00", "#4a4a4a")


class Picture:
    """A figure that is drawn when a notebook shows it: on ranks, which run the same cells, nobody looks."""

    def __init__(self, draw: "Callable[[], Figure]") -> None:
        self.draw = draw

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        self.draw().savefig(png, dpi=110)
        return png.getvalue()

    def save(self, path: "Path") -> None:
        """In the format that the path's ending names, such as .png or .svg."""
        self.draw().savefig(path, dpi=110)


def messages(sent: Sequence["Message"], title: str) -> Picture:
    """Who sent how many bytes to whom, and the messages in rounds and by the clock, a colour for each sender."""

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        world = 1 + max((max(m.source, m.target) for m in sent), default=0)
        figure = Figure(figsize=(12, 0.9 + 0.42 * max(world, 4)), layout="constrained")
        figure.suptitle(f"{title}: {len(sent)} messages")
        table, rounds, clock = figure.subplots(1, 3, width_ratios=(1, 1.3, 1.3))
        bytes_table(
            table,
            [
                [sum(m.bytes for m in sent if (m.source, m.target) == (i, j)) for j in range(world)]
                for i in range(world)
            ],
        )

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
            axes.spines[["top", "right", "left"]].set_visible(False)
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
        linear.spines[["top", "right"]].set_visible(False)
        linear.grid(alpha=0.3)
        linear.legend(frameon=False, fontsize=8)
        log_axes(logarithmic, "the same, on logarithmic axes")
        return figure

    return Picture(draw)


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
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
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
            axes.spines[["top", "right", "left"]].set_visible(False)
        rows[-1].set_xlabel("milliseconds from the begin of the backward pass (grey; a tick: a gradient is ready)")
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


def held(measured: dict[str, Sequence[dict[str, int]]], predicted: dict[str, Sequence[float]]) -> Picture:
    """Bytes of weights, gradients and optimizer state: a bar for each rank of each scheme, and lines where they were
    predicted to end.
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
    """Bytes that each rank sent in the collectives of each scheme, by rings, and lines where they were predicted to
    be.
    """

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


def losses(serial: Sequence[float], parallel: dict[str, Sequence[float]]) -> Picture:
    """Losses of parallel runs (dots) on those of the serial run (line), step by step; and how far they lie apart."""

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
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.3)
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
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=4, loc="upper right")


def log_axes(axes: "Axes", title: str) -> None:
    """The look of a plot of seconds over bytes on logarithmic axes."""
    axes.set(title=title, xlabel="bytes", ylabel="seconds", xscale="log", yscale="log")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)


def read_lines(path: Path) -> list[dict]:
    """The JSON lines of a record; a run that was killed may have left half of the last one, or none."""
    lines = []
    for text in path.read_text("utf-8").splitlines() if path.is_file() else []:
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines


def loss_curve(metrics_jsonl: Path | Sequence[Path], png: Path, labels: Sequence[str] | None = None) -> None:
    """Draw training loss by step and validation loss by epoch, into a PNG.

    Args:
        metrics_jsonl: one record, or several to lay over one another.
        png: the file to write; its folder is made.
        labels: a name for each record; by default the name of its folder.

    Raises:
        ValueError: as many labels as records are needed.
    """
    from matplotlib.figure import Figure

    records = [Path(metrics_jsonl)] if isinstance(metrics_jsonl, (str, Path)) else [Path(p) for p in metrics_jsonl]
    labels = labels or [record.resolve().parent.name for record in records]
    if len(labels) != len(records):
        raise ValueError(f"{len(records)} records but {len(labels)} labels")

    figure = Figure(figsize=(10, 4), layout="constrained")
    by_step, by_epoch = figure.subplots(1, 2, sharey=True)
    for record, label in zip(records, labels, strict=True):
        lines = read_lines(record)
        steps = [line for line in lines if line["kind"] == "step"]
        epochs = [line for line in lines if line["kind"] == "epoch"]
        by_step.plot([line["step"] for line in steps], [line["loss"] for line in steps], label=label)
        by_epoch.plot(
            [line["epoch"] for line in epochs], [line["validation_loss"] for line in epochs], marker="o", label=label
        )
    by_step.set(title="Training", xlabel="step", ylabel="loss (nats per token)")
    by_epoch.set(title="Validation", xlabel="epoch")
    by_epoch.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    for axes in (by_step, by_epoch):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    by_epoch.legend(frameon=False)
    png = Path(png)
    png.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(png, dpi=150)
