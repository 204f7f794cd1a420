"""The report of a run as one page, like a computing centre's job reports.

`write(folder)` reads what the run left (runs.py), draws each picture as a PNG next to the page (pictures.py), and
puts all of them into one self-contained HTML file. A folder with runs on several numbers of processes, nproc-1,
nproc-2, …, becomes a page about the speed-up.
"""

import base64
import json
import math
import shlex
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from utils.report.frame import template
from utils.report import pictures, traces, work
from utils.report.runs import COMPARED, Run, arguments, batch_of, read, records, scaling, speed_rows
from utils.atomic_write import write_whole, written_whole


def write(folder: Path) -> Path:
    """Write folder/report.html and its pictures. Returns the page. Raises ValueError if the folder has no run."""
    try:
        runs = newest_runs(folder)
        if runs[-1].folder == folder:
            return write_run(runs[-1])
        for run in runs:
            write_run(run)
        return write_speed(folder, {len(run.ranks): run for run in runs})
    except (LookupError, TypeError, AttributeError, ArithmeticError, MemoryError) as problem:  # not what a run writes
        raise ValueError(f"the records in {folder} are not a run's: {type(problem).__name__}: {problem}") from None


def newest_runs(folder: Path) -> list[Run]:
    """The folder's newest run; or, if it belongs to a comparison of process counts, all runs of that comparison."""
    found = records(folder)
    if not found or found[-1].parent == folder:
        return [read(folder)]
    runs = [read(path.parent) for path in found if path.parent != folder]
    # Runs that were started with different arguments cannot be compared.
    return sorted(
        (run for run in runs if run.ranks and arguments(run) == arguments(runs[-1])), key=lambda run: len(run.ranks)
    )


# One run


def write_run(run: Run) -> Path:
    charts = [
        ("loss.png", pictures.draw_loss, "Loss", "On the training set, and on the validation set after each epoch."),
        (
            "tokens.png",
            pictures.draw_tokens,
            "Speed",
            (
                "All ranks together. A token is a word or a punctuation mark. Above, tokens/s is the tokens of all"
                " steps after the first point over the time that they took, and one step is the time of its tokens."
            ),
        ),
        (
            "step.png",
            pictures.draw_step,
            "Where a step's time goes",
            (
                "Medians over a few steps of each rank, near the start: others may take longer. Communication is the"
                " time in which a message was in flight and nothing was computed, including the wait for a slower rank."
                " Communication hidden behind computation does not count. The loss computes its own gradient in the"
                " forward pass, so some time that is usually backward is forward here. In a pipeline, forward and"
                " backward are a rank's own computations; waiting is the time for other stages: the bubble, including"
                " messages."
            ),
        ),
        (
            "memory.png",
            pictures.draw_memory,
            "Memory of each rank",
            "Memory of the process, including PyTorch's libraries; with a GPU, the memory in use on it.",
        ),
        (
            "usage.png",
            pictures.draw_usage,
            "Utilization",
            "One row per CPU or GPU, one column per second; each node's mean comes first. Pale means idle.",
        ),
        (
            "power.png",
            pictures.draw_power,
            "Power",
            "Of each GPU, and of a node's processors, where the hardware reports it.",
        ),
    ]
    command = run.ranks[0].start["command"] if run.ranks else []
    recorded = traces.read(run.folder)
    merged = {str(traces.merge(run.folder, recorded).relative_to(run.folder)): ALL_RANKS} if recorded else {}
    return page(
        run.folder,
        title(run),
        command,
        facts(run),
        [(name, *rest) for name, draw, *rest in charts if save(draw, run, run.folder / name)],
        note=unmeasured(run),
        links=merged,
        operations=traces.most_expensive(recorded),
        ranks=len(recorded),
    )


# What the link to usage/trace.json.gz says.
ALL_RANKS = "the trace of all ranks, three steps: save it, and open it at ui.perfetto.dev"


def unmeasured(run: Run) -> str:
    """A note on what the page cannot show about this run, and why."""
    if not run.ranks:
        return (
            "This run was not recorded, so only its loss is known. ./workbook run records; otherwise, give the"
            " script --record."
        )
    if len(run.ranks) > 1 and not any(rank.communication for rank in run.ranks):
        from utils.report.recorder import PROFILED, TIMED, WARM  # imported here: it loads torch

        steps = WARM + TIMED + PROFILED
        return (
            f"Communication is measured in the first {steps} steps, and this run was shorter. Each part of a step"
            " includes its communication."
        )
    return ""


def save(draw: Callable[[Any], Figure | None], what: Any, path: Path) -> bool:
    """Save a picture if there is anything to show; otherwise remove an old one."""
    path.unlink(missing_ok=True)
    figure = draw(what)
    if figure:
        with written_whole(path) as part:
            figure.savefig(part, dpi=130, format="png")
    return figure is not None


def title(run: Run) -> str:
    if not run.ranks:
        return run.folder.resolve().name
    return f"{Path(run.ranks[0].start['command'][0]).stem} on {len(run.ranks)} rank{'s' if len(run.ranks) > 1 else ''}"


def facts(run: Run) -> dict[str, str]:
    steps, epochs, tests = run.of("step"), run.of("epoch"), run.of("test")
    out = {"it ended early": run.refused} if run.refused else {}
    out["steps"] = f"{max((line['step'] for line in run.lines), default=0):,}"
    if steps:
        out["training loss"] = f"{(epochs or steps)[-1]['loss']:.3f}"  # of the epoch, as it was printed
        out["tokens/s"] = f"{run.tokens_per_s:,.0f}"
        if run.step_seconds:
            out["one step"] = f"{1000 * run.step_seconds:,.0f} ms"
    for name, lines, key in (("validation perplexity", epochs, "validation_loss"), ("test perplexity", tests, "loss")):
        if lines:
            out[name] = f"{math.exp(min(lines[-1][key], 700)):,.1f}"
    if (compared := run.folder / COMPARED).is_file():
        for name, predicted, measured in json.loads(compared.read_text("utf-8")):
            out[f"{name} of a rank"] = f"{predicted:,.0f} predicted, {measured:,.0f} measured"
    if not run.ranks:
        return out
    first = run.ranks[0].start
    nodes = list(dict.fromkeys(rank.start["node"] for rank in run.ranks))
    if parts := run.ranks[0].parts:
        whole = sum(parts.values())
        out["data"] = f"{parts['data'] / whole:.1%} of a step"
        waits = [rank.parts["waiting"] / sum(rank.parts.values()) for rank in run.ranks if rank.parts]
        if max(waits):
            out["bubble"] = f"{statistics.mean(waits):.0%} of a step"
        if len(run.ranks) > 1 and any(rank.communication for rank in run.ranks):
            waits = [rank.parts["communication"] / sum(rank.parts.values()) for rank in run.ranks if rank.parts]
            out["communication"] = f"{min(waits):.0%}" + (f" … {max(waits):.0%}" if len(waits) > 1 else "")
            out["messages hidden by work"] = (
                f"{statistics.mean(rank.communication['hidden'] for rank in run.ranks if rank.communication):.0%}"
            )
    out |= work.facts(run)
    out["peak memory of a rank's process"] = size(max(rank.peak for rank in run.ranks))
    out["peak device memory of a rank"] = device_memory(run)
    out["nodes"] = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
    if first["job"]:
        out["job"] = first["job"]
    last = max(
        line["time"] for rank in run.ranks for line in [rank.start, *rank.usage, *([rank.end] if rank.end else [])]
    )
    out["began"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(first["time"]))
    out["took"] = f"{last - first['time']:,.0f} s" + (
        "" if all(rank.end for rank in run.ranks) else ", and did not end normally"
    )
    out["device"] = (
        f"{first['device']}, {first['threads']} thread{'s' if first['threads'] > 1 else ''} per rank, torch"
        f" {first['torch']}"
    )
    if "bfloat16" in " ".join(first["command"]) and "bfloat16" in first:
        out["bfloat16"] = first["bfloat16"]
    return out


def device_memory(run: Run) -> str:
    """Peak bytes of tensors on the rank with the most, as counted for --device-memory."""
    counted = [rank.device_memory for rank in run.ranks if rank.device_memory is not None]
    return f"{max(counted) / 1e6:,.1f} MB" if counted else "only counted with --device-memory"


# Runs on several numbers of processes

MEANT = {
    "strong": "all runs have the same global batch, and more processes divide it into smaller parts",
    "weak": "each process has the same number of sequences, so the global batch grows with the processes",
}


def write_speed(folder: Path, runs: dict[int, Run]) -> Path:
    rows = speed_rows(runs)
    found = {
        f"{row['processes']} process{'es' if row['processes'] > 1 else ''}": (
            f"{row['tokens_per_s']:,.0f} tokens/s, speed-up {row['speed_up']:.2f}, efficiency {row['efficiency']:.0%}"
        )
        for row in rows
    }
    first = next(iter(runs.values()))
    kind = scaling(first)
    found |= {"scaling": kind, "sequences per step": batch_of(first)}
    if kind == "strong":
        found["losses differ by at most"] = f"{max(row['difference'] for row in rows):.1e}, relative"
    name = title(first).partition(" on ")[0]
    save(pictures.draw_speed, runs, folder / "speed.png")
    labels = [f"{nproc} process{'es' if nproc > 1 else ''}" for nproc in runs]
    pictures.loss_curve([run.folder / "metrics.jsonl" for run in runs.values()], folder / "loss.png", labels)
    text = (
        f"This is {kind} scaling: {MEANT[kind]}. Speed-up is tokens/s divided by the tokens/s of the fewest processes,"
        " and efficiency is speed-up divided by the number of processes. Processes on one machine without GPUs compete"
        " for its cores, so more processes than cores help little. The crosses: 92, 25 and 14 minutes on 1, 4 and 8"
        " GPUs, measured in the Jülich course from which this one grew; there each GPU had 512 sequences (weak"
        " scaling)."
    )
    losses = {
        "strong": "The curves coincide: the parallel run is the serial run.",
        "weak": "They differ: with more processes a step has more sequences, and an epoch has fewer steps.",
    }
    return page(
        folder,
        f"{name}: scaling",
        arguments(first),
        found,
        [("speed.png", f"Speed-up, {kind} scaling", text), ("loss.png", "Losses", losses[kind])],
        links={
            f"{run.folder.name}/report.html": f"the report of {nproc} process{'es' if nproc > 1 else ''}"
            for nproc, run in runs.items()
        },
    )


# The page


def size(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:.2f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"


FIGURE = 14  # characters that fit on a card in one line; what is longer gets a line of the list below the cards
WHERE = ("nodes", "job", "began", "took", "device")  # these get one, too

PAGE = template("""{% extends "frame" %}
{% block title %}{{ title }}{% endblock %}
{% block style %}
  dl { margin: 1rem 0; }
  dt { color: #555; font-size: .85rem; }
  dd { font-weight: 600; }
  .figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .6rem; }
  .figures div { background: #f4f6f8; border-radius: .4rem; padding: .5rem .8rem; }
  .figures div { display: flex; flex-direction: column; justify-content: space-between; }
  .facts div { display: grid; grid-template-columns: 15rem 1fr; gap: 0 1rem; align-items: baseline; }
  .facts div { border-bottom: 1px solid #eaeef2; padding: .3rem 0; }
  @media (max-width: 40rem) { .facts div { grid-template-columns: 1fr; } }
  p { color: #444; margin: .2rem 0 .6rem; max-width: 50rem; }
  code { font-size: .85rem; overflow-wrap: anywhere; }
  main { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 28rem), 1fr)); gap: 0 2rem; }
  img { max-width: 100%; height: auto; }
  .whole { grid-column: 1 / -1; }
  table { border-collapse: collapse; font-size: .85rem; }
  th, td { text-align: left; vertical-align: top; padding: .15rem 0; overflow-wrap: anywhere; }
  .number { text-align: right; white-space: nowrap; padding-left: 1rem; }
{% endblock %}
{% block body %}
<h1>{{ title }}</h1>
{% if command %}<code>{{ command }}</code>{% endif %}
{% if note %}<p><strong>{{ note }}</strong></p>{% endif %}
{% for kind, shown in (("figures", figures), ("facts", facts)) %}
{% if shown %}
<dl class="{{ kind }}">
{% for name, value in shown.items() %}
<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>
{% endfor %}
</dl>
{% endif %}
{% endfor %}
{% for address, text in links.items() %}
<p><a href="{{ address }}">{{ text }}</a></p>
{% endfor %}
<main>
{% for picture in pictures %}
<section>
<h2>{{ picture.title }}</h2>
<p>{{ picture.text }}</p>
<img alt="{{ picture.title }}" src="data:image/png;base64,{{ picture.bytes }}">
</section>
{% endfor %}
{% if operations %}
<section class="whole">
<h2>The most expensive operations</h2>
<p>Of a step, from three that were recorded with the profiler{% if ranks > 1 %}: means over the ranks{% endif %}.
Time in an operation that it calls is that operation's
{%- if ranks > 1 %}; a message's includes the wait for other ranks{% endif %}.</p>
<table>
<tr><th>operation<th class="number">calls<th class="number">ms
{% if ranks > 1 %}<th class="number">longest<th class="number">on rank{% endif %}</tr>
{% for row in operations %}
<tr><td>{{ row.name }}<td class="number">{{ "%.1f"|format(row.calls) }}<td class="number">{{ "%.2f"|format(row.ms) }}
{% if ranks > 1 %}<td class="number">{{ "%.2f"|format(row.most) }}<td class="number">{{ row.rank }}{% endif %}</tr>
{% endfor %}
</table>
</section>
{% endif %}
</main>
{% endblock %}
""")


def page(
    folder: Path,
    title: str,
    command: list[str],
    facts: dict[str, str],
    pictures: list[tuple[str, str, str]],
    note: str = "",
    links: dict[str, str] | None = None,
    operations: Sequence[dict[str, Any]] = (),
    ranks: int = 0,
) -> Path:
    """Write folder/report.html; `pictures`: file, title, text; `operations`: rows of `traces.most_expensive`, of
    `ranks` ranks.
    """
    shown = [
        dict(title=heading, text=text, bytes=base64.b64encode((folder / name).read_bytes()).decode())
        for name, heading, text in pictures
    ]
    figures = {name: value for name, value in facts.items() if len(value) <= FIGURE and name not in WHERE}
    path = folder / "report.html"
    write_whole(  # a link of that name is replaced, and not followed
        path,
        PAGE.render(
            title=title,
            figures=figures,
            facts={name: value for name, value in facts.items() if name not in figures},
            pictures=shown,
            note=note,
            links=links or {},
            operations=operations,
            ranks=ranks,
            command=shlex.join([Path(part).name for part in command[:1]] + command[1:]),
        ),
    )
    return path
