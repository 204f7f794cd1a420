"""The command that plans a training: all ways to spread a model over a machine, and what each costs."""

import csv
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from grader.engine.commands.arguments import LEARN, app
from grader.engine.commands.screen import console, fail, say
from grader.engine.lesson import lessons, seals
from grader.engine.lesson.progress import right

if TYPE_CHECKING:
    from utils.costs import Choice
    from utils.plan import Machine, Model

SCHEDULES = "gpipe, 1f1b, interleaved or zero-bubble"
STYLE = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False}
COLUMNS = ("dp", "shard", "tp", "pp", "cp", "ep")


@app.command(rich_help_panel=LEARN)
def plan(
    model: Annotated[
        str, typer.Option(metavar="NAME", help="1b, 7b, 13b, 70b, 175b, or hidden,layers,heads,words,tokens")
    ] = "7b",
    gpus: Annotated[int, typer.Option(metavar="N", help="devices, over all nodes")] = 64,
    machine: Annotated[
        str, typer.Option(metavar="NAME", help="jureca, polaris, selene, or here, which is measured")
    ] = "jureca",
    batch: Annotated[int | None, typer.Option(metavar="N", help="sequences in a step  [default: 4 a device]")] = None,
    schedule: Annotated[str, typer.Option(metavar="NAME", help=f"of a pipeline: {SCHEDULES}")] = "1f1b",
    best: Annotated[int, typer.Option(metavar="N", help="plans to show")] = 10,
    rejected: Annotated[bool, typer.Option("--rejected", help="show each rejected plan, too")] = False,
    precision: Annotated[
        str,
        typer.Option(metavar="NAME", help="mixed, sharded, megatron or float32", show_default="mixed; on CPUs float32"),
    ] = "",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="the picture  [default: runs/plan/NAME.png]")] = None,
) -> None:
    """Plan a training: all ways to spread a model over devices, the fastest first, and why not the others."""
    try:
        from utils import costs
    except ImportError:
        fail(seals.waits_for("plan", right()) if "plan" in seals.sealed() else "utils/costs.py is missing")
    from utils.plan import PRECISIONS, SCHEDULES, Plan

    shape = model_named(model)
    if gpus < 1:
        fail(f"--gpus {gpus}: at least one")
    batch = 4 * gpus if batch is None else batch
    if batch < 1:
        fail(f"--batch {batch}: at least one sequence")
    if schedule not in SCHEDULES:
        fail(f"--schedule {schedule}: there are {', '.join(SCHEDULES)}")
    if precision and precision not in PRECISIONS:
        fail(f"--precision {precision}: there are {', '.join(PRECISIONS)}")
    if best < 1:
        fail(f"--best {best}: at least one")
    picture = out or lessons.COURSE / "runs" / "plan" / f"{model.replace(',', '-')}-{gpus}-{machine}.png"
    if out and not out.absolute().parent.is_dir():
        fail(f"--out {out}: there is no folder {out.parent}")
    host = machine_named(machine, gpus)
    precision = precision or ("float32" if host.name == "this machine" and not has_gpus() else "mixed")
    like = Plan(batch, schedule=schedule, chunks=2 if schedule == "interleaved" else 1, precision=precision)

    found = costs.plans(shape, gpus, host, batch, like)
    possible = [choice for choice in found if not choice.rejected]
    devices = f"{gpus} device{'s' if gpus > 1 else ''}"
    say(
        f"{model}: {costs.parameters(shape) / 1e9:.2f} billion parameters, {shape.sequence:,} tokens; {devices} of"
        f" {host.name} with {host.memory / 2**30:.0f} GiB; {batch} sequences a step, {schedule}, {like.precision}"
    )
    say(
        f"[dim]fitted: {host.device_share:.2f} of a device's peak and of its memory's, {host.link_share:.2f} of a"
        " link's bandwidth[/]"
    )
    if possible:
        show(possible[:best], shape, host)
    say(told_of_rejected([choice for choice in found if choice.rejected], len(found)))
    if rejected:
        show_rejected([choice for choice in found if choice.rejected])
    picture.parent.mkdir(parents=True, exist_ok=True)
    write(found, picture.with_suffix(".csv"))
    if not possible:
        fail(f"no plan is possible; {picture.with_suffix('.csv')} has every one, and why not", code=1)
    from utils import plots_plan

    title = f"{model} on {devices} of {host.name}, {batch} sequences a step"
    drawn = plots_plan.costs([(c.plan, c.memory, c.seconds) for c in possible[:best]], host, title)
    picture.write_bytes(drawn._repr_png_())
    say(f"wrote {escape(str(picture))}, and every plan to {escape(picture.with_suffix('.csv').name)} beside it")


def has_gpus() -> bool:
    import torch

    return torch.cuda.is_available()


def model_named(name: str) -> "Model":
    from utils.plan import MODELS, Model

    if name in MODELS:
        return MODELS[name]
    sizes = name.split(",")
    if len(sizes) != 5 or not all(size.isdecimal() and int(size) for size in sizes):
        given = f"{len(sizes)} numbers; " if len(sizes) > 1 else ""
        fail(f"--model {name}: {given}there are {', '.join(MODELS)}; or give hidden,layers,heads,words,tokens")
    model = Model(*map(int, sizes))
    if model.hidden % model.heads:
        fail(f"--model {name}: {model.hidden} does not divide by {model.heads} heads")
    return model


def machine_named(name: str, gpus: int) -> "Machine":
    from utils.plan import MACHINES

    if name in MACHINES:
        return MACHINES[name]
    if name != "here":
        fail(f"--machine {name}: there are {', '.join(MACHINES)} and here")
    import torch

    from grader.engine.jobs import machine
    from utils import this_machine

    ranks = min(gpus, torch.cuda.device_count() or os.cpu_count() or 1)
    script = lessons.COURSE / "utils" / "this_machine.py"
    done = subprocess.run(
        machine.launch_command(script, ranks, [], quiet=True), capture_output=True, text=True, check=False
    )
    if done.returncode:
        fail(f"this machine could not be measured: {(done.stderr.strip() or 'it says nothing').splitlines()[-1]}")
    return this_machine.from_json(done.stdout.strip().splitlines()[-1])


def show(choices: "list[Choice]", model: "Model", machine: "Machine") -> None:
    """The plans that can be, the fastest first."""
    from utils import costs

    axes = [axis for axis in COLUMNS if axis != "ep" or model.experts]
    table = Table("", *axes, "micro", "again", "GB", "s", "MFU", "beside products", **STYLE)
    for column in table.columns[:-1]:
        column.justify = "right"
    for number, (plan, _, memory, seconds) in enumerate(choices, start=1):
        table.add_row(
            str(number),
            *(str(getattr(plan, axis)) for axis in axes),
            str(plan.micro_batch),
            plan.recompute,
            f"{sum(memory.values()) / 1e9:.1f}",
            f"{sum(seconds.values()):.3g}",
            f"{costs.share_of_peak(model, plan, machine):.0%}",
            beside_products(seconds),
        )
    console.print(table, soft_wrap=False)


def beside_products(seconds: dict[str, float]) -> str:
    """The other parts of a step that take a twentieth of it or more; at most two, the longest first."""
    step = sum(seconds.values())
    others = [kind for kind in seconds if kind != "products" and seconds[kind] >= step / 20]
    longest = sorted(others, key=seconds.__getitem__, reverse=True)[:2]
    return ", ".join(f"{kind} {seconds[kind] / step:.0%}" for kind in longest)


def told_of_rejected(choices: "list[Choice]", total: int) -> str:
    """How many there are for each reason, and the nearest miss of each."""
    lines = [f"{total - len(choices)} of {total} plans are possible; rejected:"]
    for kind, count in Counter(choice.rejected.partition(":")[0] for choice in choices).most_common():
        first = next(choice for choice in choices if choice.rejected.startswith(kind))
        lines.append(f"  {count:5} {escape(first.rejected)}  [dim]({named(first)})[/]")
    return "\n".join([*lines, "[dim]  --rejected shows each[/]"] if choices else lines[:1])


def show_rejected(choices: "list[Choice]") -> None:
    table = Table("plan", "why not", **STYLE)
    for choice in choices:
        table.add_row(named(choice), escape(choice.rejected))
    console.print(table, soft_wrap=False)


def named(choice: "Choice") -> str:
    from utils.plots_plan import spoken

    return spoken(choice.plan)


def write(choices: "list[Choice]", path: Path) -> None:
    """Every plan, with what it costs or why it cannot be."""
    settings = (*COLUMNS, "micro_batch", "recompute")
    bytes_of = list(dict.fromkeys(kind for choice in choices for kind in choice.memory))
    seconds_of = list(dict.fromkeys(kind for choice in choices for kind in choice.seconds))
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(
            [*settings, "rejected", *(f"{kind}, B" for kind in bytes_of), *(f"{kind}, s" for kind in seconds_of)]
        )
        for plan, why, memory, seconds in choices:
            row = [getattr(plan, name) for name in settings]
            costs = [*(memory.get(kind, "") for kind in bytes_of), *(seconds.get(kind, "") for kind in seconds_of)]
            rows.writerow([*row, why, *costs])
