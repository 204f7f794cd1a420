"""The figures of a run's report. Each function returns None where there is nothing to show."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from utils.report.runs import PARTS, Run, memory_of, read_lines, speed_rows
from utils.atomic_write import written_whole

# Distinguishable by colour-blind readers, too (Okabe and Ito).
COLOURS = dict(zip(PARTS, ("#999999", "#56b4e9", "#0072b2", "#f0e442", "#d55e00", "#009e73"), strict=True))
BLUE, ORANGE = "#0072b2", "#d55e00"
WIDTH = 5.0  # inches of a chart: two fit side by side on a page, and one is readable on a phone
FEW = 10  # a curve with fewer points shows each as a dot
# Minutes by GPUs, as measured for the DDP exercise of the Jülich course from which this one grew.
JUELICH = {1: 92, 4: 25, 8: 14}


def draw_loss(run: Run) -> Figure | None:
    steps, epochs = run.of("step"), run.of("epoch")
    if not steps:
        return None
    figure, axes = one_chart()
    dots = "o-" if len(steps) < FEW else "-"  # a line through one point would be invisible
    axes.plot([line["step"] for line in steps], [line["loss"] for line in steps], dots, color=BLUE, label="training")
    axes.plot(
        [line["step"] for line in epochs],
        [line["validation_loss"] for line in epochs],
        "o",
        color=ORANGE,
        label="validation",
    )
    axes.set(xlabel="step", ylabel="loss (nats per token)")
    axes.legend(frameon=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure


def draw_tokens(run: Run) -> Figure | None:
    steps = run.of("step")
    if not steps:
        return None
    figure, axes = one_chart()
    speeds = [line["tokens_per_s"] for line in steps]
    axes.plot([line["step"] for line in steps], speeds, "o-" if len(steps) < FEW else "-", color=BLUE)
    axes.set(xlabel="step", ylabel="tokens/s, all ranks", ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure


def draw_step(run: Run) -> Figure | None:
    ranks = [rank for rank in run.ranks if rank.parts]
    if not ranks:
        return None
    figure, axes = one_chart(height=1.6 + 0.35 * len(ranks))
    left = [0.0] * len(ranks)
    for part, colour in COLOURS.items():
        widths = [1000 * rank.parts[part] for rank in ranks]
        if not any(widths):  # such as waiting, without a pipeline
            continue
        axes.barh([rank.start["rank"] for rank in ranks], widths, left=left, color=colour, label=part, height=0.7)
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    axes.set(xlabel="milliseconds per step", ylabel="rank")
    axes.set_yticks([rank.start["rank"] for rank in ranks][:: 1 + len(ranks) // 32])
    axes.invert_yaxis()
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    return figure


def draw_memory(run: Run) -> Figure | None:
    if not any(rank.usage for rank in run.ranks):
        return None
    figure, axes = one_chart()
    begin = run.ranks[0].start["time"]
    for rank in run.ranks:
        number = rank.start["rank"]
        axes.plot(
            [line["time"] - begin for line in rank.usage],
            [memory_of(line) / 2**30 for line in rank.usage],
            color=f"C{number}",
            label=f"rank {number}" if len(run.ranks) <= 16 else None,
        )
    axes.set(xlabel="seconds", ylabel="GiB", ylim=(0, None))
    if len(run.ranks) <= 16:
        axes.legend(frameon=False, ncols=2)
    return figure


def draw_usage(run: Run) -> Figure | None:
    """A heat map: one row per CPU (or GPU), one column per second; each node's mean above its rows."""
    maps = []
    for kind in ("GPU", "CPU"):
        rows = usage_rows(run, kind)
        if rows:
            maps.append((kind, rows))
    if not maps:
        return None
    heights = [0.9 + max(0.22, 4.5 / max(20, len(rows))) * len(rows) for _, rows in maps]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.4), layout="constrained")
    shown = figure.subplots(len(maps), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axes, (kind, rows) in zip(shown, maps, strict=True):
        picture = axes.imshow(
            list(rows.values()), aspect="auto", interpolation="nearest", cmap="YlGnBu", vmin=0, vmax=100
        )
        axes.set_yticks(
            range(len(rows)), rows if len(rows) <= 40 else [name if "mean" in name else "" for name in rows]
        )
        axes.set(xlabel="seconds", title=f"{kind}s")
        for i, name in enumerate(rows):
            if "mean" in name:
                axes.axhline(i + 0.5, color="black", linewidth=0.8)
                if i:
                    axes.axhline(i - 0.5, color="black", linewidth=2)
    figure.colorbar(picture, ax=shown, label="percent", pad=0.01)
    return figure


def usage_rows(run: Run, kind: str) -> dict[str, list[float]]:
    """Row name -> percent in each second (nan where not measured)."""
    begin = run.ranks[0].start["time"] if run.ranks else 0.0
    seconds = 1 + int(max((line["time"] - begin for rank in run.ranks for line in rank.usage), default=0))
    rows: dict[str, list[float]] = {}
    for node in dict.fromkeys(rank.start["node"] for rank in run.ranks):
        of_node: dict[str, list[float]] = {}
        for rank in run.ranks:
            for line in rank.usage if rank.start["node"] == node else []:
                values = {f"GPU of rank {rank.start['rank']}": line["gpu"]} if kind == "GPU" and "gpu" in line else {}
                if kind == "CPU" and "cpus" in line:
                    values = {f"CPU {i}": percent for i, percent in enumerate(line["cpus"])}
                for name, percent in values.items():
                    of_node.setdefault(name, [math.nan] * seconds)[int(line["time"] - begin)] = percent
        if of_node:
            known = [
                [value for value in column if not math.isnan(value)] for column in zip(*of_node.values(), strict=True)
            ]
            rows[f"{node}: mean"] = [statistics.mean(column) if column else math.nan for column in known]
            many = len({rank.start["node"] for rank in run.ranks}) > 1
            rows |= {f"{node}: {name}" if many else name: values for name, values in of_node.items()}
    return rows


def draw_power(run: Run) -> Figure | None:
    curves = {
        f"GPU of rank {rank.start['rank']}" if kind == "watts" else f"processors, {rank.start['node']}": (rank, kind)
        for kind in ("watts", "cpu_watts")
        for rank in run.ranks
        if any(kind in line for line in rank.usage)
    }
    if not curves:
        return None
    figure, axes = one_chart()
    begin = run.ranks[0].start["time"]
    for name, (rank, kind) in curves.items():
        lines = [line for line in rank.usage if kind in line]
        axes.plot([line["time"] - begin for line in lines], [line[kind] for line in lines], label=name)
    axes.set(xlabel="seconds", ylabel="watts", ylim=(0, None))
    if len(curves) <= 16:
        axes.legend(frameon=False)
    return figure


def draw_speed(runs: dict[int, Run]) -> Figure:
    figure, axes = one_chart()
    rows = speed_rows(runs)
    fewest, most = rows[0]["processes"], max(8, *runs)
    axes.plot([1, most], [1, most], color="#999999", linestyle="--", label="ideal")
    axes.plot(
        [row["processes"] for row in rows],
        [row["speed_up"] * fewest for row in rows],
        "o-",
        color=BLUE,
        label="these runs",
    )
    axes.plot(
        list(JUELICH), [JUELICH[1] / minutes for minutes in JUELICH.values()], "x", color=ORANGE, label="Jülich, GPUs"
    )
    axes.set(xlabel="processes", ylabel="speed-up", xlim=(0, most + 0.5), ylim=(0, most + 0.5))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.legend(frameon=False)
    return figure


def loss_curve(metrics_jsonl: Path | Sequence[Path], png: Path, labels: Sequence[str] | None = None) -> None:
    """Draw training loss by step and validation loss by epoch, into a PNG.

    Args:
        metrics_jsonl: one record, or several to draw into one picture.
        png: the file to write; its folder is created.
        labels: a name for each record; by default the name of its folder.

    Raises:
        ValueError: the numbers of labels and records differ.
    """
    records = [Path(metrics_jsonl)] if isinstance(metrics_jsonl, (str, Path)) else [Path(p) for p in metrics_jsonl]
    labels = labels or [record.resolve().parent.name for record in records]
    if len(labels) != len(records):
        raise ValueError(f"{len(records)} records but {len(labels)} labels")

    figure = Figure(figsize=(2 * WIDTH, 4), layout="constrained")
    by_step, by_epoch = figure.subplots(1, 2, sharey=True)
    for record, label in zip(records, labels, strict=True):
        lines = read_lines(record)
        steps = [line for line in lines if line["kind"] == "step"]
        epochs = [line for line in lines if line["kind"] == "epoch"]
        by_step.plot(
            [line["step"] for line in steps],
            [line["loss"] for line in steps],
            "o-" if len(steps) < FEW else "-",
            label=label,
        )
        by_epoch.plot(
            [line["epoch"] for line in epochs], [line["validation_loss"] for line in epochs], marker="o", label=label
        )
    by_step.set(title="Training", xlabel="step", ylabel="loss (nats per token)")
    by_epoch.set(title="Validation", xlabel="epoch")
    by_epoch.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    for axes in (by_step, by_epoch):
        make_plain(axes)
    by_epoch.legend(frameon=False)
    png = Path(png)
    with written_whole(png) as part:
        figure.savefig(part, dpi=150, format="png")


def one_chart(height: float = 3.6) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots()
    make_plain(axes)
    axes.set_axisbelow(True)
    return figure, axes


def make_plain(axes: Axes) -> None:
    """As `utils/plots/workbook.mplstyle` has it."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
