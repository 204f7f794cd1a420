"""The report of a run as one page, in the way of a computing centre's job reports.

`write(folder)` reads what the run left (metrics.jsonl, and usage/ if it ran with
--record), draws each picture as a PNG beside the page, and puts all of them into
one HTML file that needs no other. A folder that holds runs of several numbers of
processes, nproc-1, nproc-2, …, becomes a page on how the speed grows.
"""

import base64
import math
import shlex
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from utils.plots import loss_curve, read_lines

# Told apart by the colour-blind, too (Okabe and Ito).
COLOURS = {
    "data": "#999999",
    "forward": "#56b4e9",
    "backward": "#0072b2",
    "communication": "#d55e00",
    "optimizer": "#009e73",
}
BLUE, ORANGE = "#0072b2", "#d55e00"
# Minutes by GPUs, as measured for the DDP exercise of the Jülich course from which this one grew.
JUELICH = {1: 92, 4: 25, 8: 14}
Line = dict[str, Any]


@dataclass
class Rank:
    """What one rank noted."""

    start: Line
    usage: list[Line] = field(default_factory=list)
    steps: list[Line] = field(default_factory=list)  # seconds of each part of a step
    communication: Line | None = None
    end: Line | None = None

    @property
    def parts(self) -> dict[str, float]:
        """Median seconds of each part of a step; time with nothing but a message under way is a part of its own."""
        if not self.steps:
            return {}
        parts = {part: statistics.median(step[part] for step in self.steps) for part in self.steps[0]}
        shares = self.communication["shares"] if self.communication else {}
        alone = {part: seconds * shares.get(part, 0.0) for part, seconds in parts.items()}
        parts = {part: parts[part] - alone[part] for part in parts}
        return {part: sum(alone.values()) if part == "communication" else parts[part] for part in COLOURS}

    @property
    def peak(self) -> int:
        """Bytes: of the GPU if there is one, else of the process."""
        return (
            (self.end or {}).get("peak_gpu_memory")
            or (self.end or {}).get("peak_memory")
            or max((memory(line) for line in self.usage), default=0)
        )


@dataclass
class Run:
    """What a run left in its folder."""

    folder: Path
    lines: list[Line]  # of metrics.jsonl
    ranks: list[Rank]

    def of(self, kind: str) -> list[Line]:
        return [line for line in self.lines if line["kind"] == kind]

    @property
    def tokens_per_s(self) -> float:
        """Median over the run, without the first line, in which all is started."""
        speeds = [line["tokens_per_s"] for line in self.of("step")]
        return statistics.median(speeds[1:] or speeds or [0.0])


def read(folder: Path) -> Run:
    """Raises ValueError if there is no run in the folder."""
    lines = read_lines(folder / "metrics.jsonl")
    if not any(line["kind"] == "step" for line in lines):
        raise ValueError(f"there is no run in {folder}: its metrics.jsonl is missing, or has no steps yet")
    ranks = []
    for file in sorted((folder / "usage").glob("rank-*.jsonl"), key=lambda path: int(path.stem.removeprefix("rank-"))):
        by_kind: dict[str, list[Line]] = {}
        for line in read_lines(file):
            by_kind.setdefault(line["kind"], []).append(line)
        if start := by_kind.get("start"):
            steps = [step for line in by_kind.get("parts", []) for step in line["steps"]]
            ranks.append(
                Rank(
                    start[0],
                    by_kind.get("usage", []),
                    steps,
                    *(by_kind.get(kind, [None])[0] for kind in ("communication", "end")),
                )
            )
    return Run(folder, lines, ranks)


def write(folder: Path) -> Path:
    """Write folder/report.html and its pictures. Returns the page. Raises ValueError if the folder has no run."""
    found = records(folder)
    if not found or found[-1].parent == folder:
        return write_run(read(folder))
    runs = [read(path.parent) for path in found if path.parent != folder]
    latest = runs[-1]
    # Runs that were started otherwise, some other day, are no comparison.
    alike = sorted(
        (run for run in runs if run.ranks and arguments(run) == arguments(latest)), key=lambda run: len(run.ranks)
    )
    for run in alike:
        write_run(run)
    return write_speed(folder, {len(run.ranks): run for run in alike})


def records(folder: Path) -> list[Path]:
    """The metrics.jsonl of the folder's own run and of those on several numbers of processes, the newest last."""
    return sorted(
        [*folder.glob("metrics.jsonl"), *folder.glob("nproc-*/metrics.jsonl")], key=lambda path: path.stat().st_mtime
    )


def newest(folder: Path) -> float:
    """When a run in the folder last wrote a line; seconds since 1970, 0 if none did."""
    return max((path.stat().st_mtime for path in records(folder)), default=0.0)


def arguments(run: Run) -> list[str]:
    """The command of a run, but for its folder."""
    command = run.ranks[0].start["command"] if run.ranks else []
    return [part for before, part in zip(["", *command], command, strict=False) if "--out" not in (before, part)]


# One run


def write_run(run: Run) -> Path:
    pictures = [
        (
            "loss.png",
            draw_loss,
            "Loss and speed",
            "The loss of the training set, and of the validation set after each epoch. A token is a word or a sign.",
        ),
        (
            "step.png",
            draw_step,
            "Where a step's time goes",
            (
                "Medians over a few steps of each rank. Communication is the time in which a message was under way and"
                " nothing was computed: also the wait for a slower rank. What is hidden behind the backward pass does"
                " not count. The loss makes its own gradient in the forward pass, so part of what elsewhere is backward"
                " is forward here."
            ),
        ),
        ("memory.png", draw_memory, "Memory of each rank", "What the process holds; on a GPU, what is in use on it."),
        (
            "usage.png",
            draw_usage,
            "Utilisation",
            "A row a CPU or GPU, once a second; above those of a node, its mean. What is pale is idle.",
        ),
        ("power.png", draw_power, "Power", "Of each GPU, in watts."),
    ]
    command = run.ranks[0].start["command"] if run.ranks else []
    return page(
        run.folder,
        title(run),
        command,
        facts(run),
        [(name, *rest) for name, draw, *rest in pictures if save(draw, run, run.folder / name)],
        note=(
            ""
            if run.ranks
            else (
                "This run was not recorded, so its loss is all that there is. "
                "./workbook run records; elsewhere, give the script --record."
            )
        ),
    )


def save(draw: Callable[[Any], Figure | None], what: Any, path: Path) -> bool:
    """Draw a picture, if there is anything to see; an old one goes."""
    path.unlink(missing_ok=True)
    figure = draw(what)
    if figure:
        figure.savefig(path, dpi=130)
    return figure is not None


def title(run: Run) -> str:
    if not run.ranks:
        return run.folder.resolve().name
    return f"{Path(run.ranks[0].start['command'][0]).stem} on {len(run.ranks)} rank{'s' if len(run.ranks) > 1 else ''}"


def facts(run: Run) -> dict[str, str]:
    steps, epochs, tests = run.of("step"), run.of("epoch"), run.of("test")
    out = {
        "steps": f"{max(line['step'] for line in run.lines):,}",
        "training loss": f"{steps[-1]['loss']:.3f}",
        "tokens/s": f"{run.tokens_per_s:,.0f}",
    }
    for name, lines, key in (("validation perplexity", epochs, "validation_loss"), ("test perplexity", tests, "loss")):
        if lines:
            out[name] = f"{math.exp(min(lines[-1][key], 700)):,.1f}"
    if not run.ranks:
        return out
    first = run.ranks[0].start
    nodes = list(dict.fromkeys(rank.start["node"] for rank in run.ranks))
    if parts := run.ranks[0].parts:
        whole = sum(parts.values())
        out["one step"] = f"{1000 * whole:,.0f} ms"
        out["of it data"] = f"{parts['data'] / whole:.1%}"
        if len(run.ranks) > 1 and any(rank.communication for rank in run.ranks):
            waits = [rank.parts["communication"] / sum(rank.parts.values()) for rank in run.ranks if rank.parts]
            out["communication"] = f"{min(waits):.0%}" + (f" … {max(waits):.0%}" if len(waits) > 1 else "")
            out["messages hidden by work"] = (
                f"{statistics.mean(rank.communication['hidden'] for rank in run.ranks if rank.communication):.0%}"
            )
    out["memory of a rank, at most"] = size(max(rank.peak for rank in run.ranks))
    out["nodes"] = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
    if first["job"]:
        out["job"] = first["job"]
    last = max(
        line["time"] for rank in run.ranks for line in [rank.start, *rank.usage, *([rank.end] if rank.end else [])]
    )
    out["began"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(first["time"]))
    out["took"] = f"{last - first['time']:,.0f} s" + (
        "" if all(rank.end for rank in run.ranks) else ", and did not end in order"
    )
    out["device"] = (
        f"{first['device']}, {first['threads']} thread{'s' if first['threads'] > 1 else ''} a rank, torch"
        f" {first['torch']}"
    )
    if "bfloat16" in " ".join(first["command"]) and "bfloat16" in first:
        out["bfloat16"] = first["bfloat16"]
    return out


def draw_loss(run: Run) -> Figure:
    figure, (loss, speed) = axes_in_a_row(2)
    steps, epochs = run.of("step"), run.of("epoch")
    loss.plot([line["step"] for line in steps], [line["loss"] for line in steps], color=BLUE, label="training")
    loss.plot(
        [line["step"] for line in epochs],
        [line["validation_loss"] for line in epochs],
        "o",
        color=ORANGE,
        label="validation",
    )
    loss.set(xlabel="step", ylabel="loss (nats per token)")
    loss.legend(frameon=False)
    speed.plot([line["step"] for line in steps], [line["tokens_per_s"] for line in steps], color=BLUE)
    speed.set(xlabel="step", ylabel="tokens/s, all ranks", ylim=(0, None))
    for axes in (loss, speed):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def draw_step(run: Run) -> Figure | None:
    ranks = [rank for rank in run.ranks if rank.parts]
    if not ranks:
        return None
    figure, (axes,) = axes_in_a_row(1, height=1.3 + 0.35 * len(ranks))
    left = [0.0] * len(ranks)
    for part, colour in COLOURS.items():
        widths = [1000 * rank.parts[part] for rank in ranks]
        axes.barh([rank.start["rank"] for rank in ranks], widths, left=left, color=colour, label=part, height=0.7)
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    axes.set(xlabel="milliseconds of a step", ylabel="rank")
    axes.set_yticks([rank.start["rank"] for rank in ranks][:: 1 + len(ranks) // 32])
    axes.invert_yaxis()
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(COLOURS), frameon=False)
    return figure


def draw_memory(run: Run) -> Figure | None:
    if not any(rank.usage for rank in run.ranks):
        return None
    figure, (axes,) = axes_in_a_row(1, height=3)
    begin = run.ranks[0].start["time"]
    for rank in run.ranks:
        number = rank.start["rank"]
        axes.plot(
            [line["time"] - begin for line in rank.usage],
            [memory(line) / 2**30 for line in rank.usage],
            color=f"C{number}",
            label=f"rank {number}" if len(run.ranks) <= 16 else None,
        )
    axes.set(xlabel="seconds", ylabel="GiB", ylim=(0, None))
    if len(run.ranks) <= 16:
        axes.legend(frameon=False, ncols=4)
    return figure


def memory(line: Line) -> int:
    return line.get("gpu_memory", line["memory"])


def draw_usage(run: Run) -> Figure | None:
    """A heat map: a row a CPU (and a GPU), a column a second; the mean of each node above it."""
    maps = []
    for kind in ("GPU", "CPU"):
        rows = usage_rows(run, kind)
        if rows:
            maps.append((kind, rows))
    if not maps:
        return None
    heights = [0.9 + max(0.22, 4.5 / max(20, len(rows))) * len(rows) for _, rows in maps]
    figure = Figure(figsize=(10, sum(heights) + 0.4), layout="constrained")
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
    """Percent in each second (nan where nobody looked), by the name of the row."""
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
    if not any("watts" in line for rank in run.ranks for line in rank.usage):
        return None
    figure, (axes,) = axes_in_a_row(1, height=3)
    begin = run.ranks[0].start["time"]
    for rank in run.ranks:
        lines = [line for line in rank.usage if "watts" in line]
        axes.plot(
            [line["time"] - begin for line in lines],
            [line["watts"] for line in lines],
            label=f"rank {rank.start['rank']}",
        )
    axes.set(xlabel="seconds", ylabel="watts", ylim=(0, None))
    axes.legend(frameon=False, ncols=4)
    return figure


# Runs on several numbers of processes


def write_speed(folder: Path, runs: dict[int, Run]) -> Path:
    rows = speed_rows(runs)
    found = {
        f"{row['processes']} process{'es' if row['processes'] > 1 else ''}": (
            f"{row['tokens_per_s']:,.0f} tokens/s, speed-up {row['speed_up']:.2f}, efficiency {row['efficiency']:.0%}"
        )
        for row in rows
    }
    worst = max(row["difference"] for row in rows)
    found["losses differ by at most"] = f"{worst:.1e}, relative"
    name = title(next(iter(runs.values()))).partition(" on ")[0]
    save(draw_speed, runs, folder / "speed.png")
    labels = [f"{nproc} process{'es' if nproc > 1 else ''}" for nproc in runs]
    loss_curve([run.folder / "metrics.jsonl" for run in runs.values()], folder / "loss.png", labels)
    text = (
        "Speed-up is tokens/s over those of the fewest processes, and efficiency is speed-up by process. Processes on"
        " one machine without GPUs share its cores, so more of them bring little. The crosses: 92, 25 and 14 minutes on"
        " 1, 4 and 8 GPUs, measured in the Jülich course from which this one grew."
    )
    return page(
        folder,
        f"{name}: how the speed grows",
        arguments(next(iter(runs.values()))),
        found,
        [
            ("speed.png", "Speed-up", text),
            ("loss.png", "Losses", "Laid over one another: the parallel run is the serial run."),
        ],
        links={
            f"{run.folder.name}/report.html": f"the report of {nproc} process{'es' if nproc > 1 else ''}"
            for nproc, run in runs.items()
        },
    )


def speed_rows(runs: dict[int, Run]) -> list[dict[str, float]]:
    """By number of processes: tokens_per_s, speed_up, efficiency, and the largest relative difference of a loss."""
    fewest, base = next(iter(runs.items()))
    losses = {line["step"]: line["loss"] for line in base.of("step")}
    rows = []
    for nproc, run in runs.items():
        speed_up = run.tokens_per_s / (base.tokens_per_s or 1.0)
        differences = [
            abs(line["loss"] / losses[line["step"]] - 1) for line in run.of("step") if losses.get(line["step"])
        ]
        rows.append(
            dict(
                processes=nproc,
                tokens_per_s=run.tokens_per_s,
                speed_up=speed_up,
                efficiency=speed_up * fewest / nproc,
                difference=max(differences, default=0.0),
            )
        )
    return rows


def draw_speed(runs: dict[int, Run]) -> Figure:
    figure, (axes,) = axes_in_a_row(1, height=4)
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
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    return figure


# The page


def axes_in_a_row(columns: int, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(10, height), layout="constrained")
    found = list(figure.subplots(1, columns, squeeze=False)[0])
    for axes in found:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
    return figure, found


def size(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:.2f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
  h1 { font-size: 1.6rem; margin-bottom: .2rem; }
  h2 { font-size: 1.15rem; margin: 2.2rem 0 .2rem; }
  dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr)); gap: .6rem; margin: 1rem 0; }
  dl div { background: #f4f6f8; border-radius: .4rem; padding: .5rem .8rem; }
  dl .wide { grid-column: 1 / -1; }
  dt { color: #555; font-size: .85rem; }
  dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
  p { color: #444; margin: .2rem 0 .6rem; max-width: 50rem; }
  code { font-size: .85rem; overflow-wrap: anywhere; }
  img { max-width: 100%; height: auto; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
{% if command %}<code>{{ command }}</code>{% endif %}
{% if note %}<p><strong>{{ note }}</strong></p>{% endif %}
<dl>
{% for name, value in facts.items() %}
<div{% if value|length > 26 %} class="wide"{% endif %}><dt>{{ name }}</dt><dd>{{ value }}</dd></div>
{% endfor %}</dl>
{% for address, text in links.items() %}<p><a href="{{ address }}">{{ text }}</a></p>
{% endfor %}
{% for picture in pictures %}<h2>{{ picture.title }}</h2>
<p>{{ picture.text }}</p>
<img alt="{{ picture.title }}" src="data:image/png;base64,{{ picture.bytes }}">
{% endfor %}
</body>
</html>
"""


def page(
    folder: Path,
    title: str,
    command: list[str],
    facts: dict[str, str],
    pictures: list[tuple[str, str, str]],
    note: str = "",
    links: dict[str, str] | None = None,
) -> Path:
    """Write folder/report.html; `pictures`: file, title, text."""
    shown = [
        dict(title=heading, text=text, bytes=base64.b64encode((folder / name).read_bytes()).decode())
        for name, heading, text in pictures
    ]
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(PAGE)
    path = folder / "report.html"
    path.write_text(
        template.render(
            title=title,
            facts=facts,
            pictures=shown,
            note=note,
            links=links or {},
            command=shlex.join([Path(part).name for part in command[:1]] + command[1:]),
        ),
        "utf-8",
    )
    return path
