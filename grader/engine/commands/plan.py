"""The command that plans a training run: all ways to distribute a model over a machine, and their costs."""

import math
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from grader.engine.commands.arguments import LEARN, app
from grader.engine.commands.screen import console, fail, say
from grader.engine.lesson import lessons, sealed_lessons
from grader.engine.lesson.progress import right

if TYPE_CHECKING:
    from grader.engine.commands.plan_output import Training
    from utils.plan import Machine, Model, Plan

MOST = 10_000_000  # devices
ENDINGS = (".png", ".svg", ".csv", ".json")
SETTLED = ("dp", "shard", "tp", "pp", "cp", "ep", "micro_batch", "zero", "chunks")  # numbers in --check
WORDS = ("schedule", "context", "recompute", "sequence_parallel")  # words in --check
UNITS = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


@app.command(rich_help_panel=LEARN)
def plan(
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="7b, gpt2, llama3-8b, …; a file like those in utils/models; a Hugging Face config.json; or"
            " hidden,layers,heads,vocabulary,tokens",
        ),
    ] = "7b",
    gpus: Annotated[
        int | None, typer.Option(metavar="N", help="devices, over all nodes  [default: 64; with here, all]")
    ] = None,
    machine: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="jureca, polaris, h100, …; a file like those in utils/machines; or here, which is measured",
        ),
    ] = "jureca",
    batch: Annotated[int | None, typer.Option(metavar="N", help="sequences per step  [default: 4 per device]")] = None,
    sequence: Annotated[
        int | None, typer.Option(metavar="N", help="tokens per sequence  [default: the model's]")
    ] = None,
    tokens: Annotated[
        str,
        typer.Option(
            metavar="N", help="tokens in the whole training run, such as 300B or 15T: shows days, GPU-hours, energy"
        ),
    ] = "",
    check: Annotated[
        str, typer.Option(metavar="PLAN", help="only this plan, such as dp=64,tp=8,pp=16, with its costs by kind")
    ] = "",
    schedule: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="gpipe, 1f1b, interleaved, zero-bubble  [default: the faster of 1f1b and interleaved]"
        ),
    ] = "",
    precision: Annotated[
        str, typer.Option(metavar="NAME", help="mixed, sharded, megatron, float8, …  [default: mixed; on CPUs float32]")
    ] = "",
    compiled: Annotated[
        bool, typer.Option("--compile", help="fuse all operations except matrix products, as torch.compile does")
    ] = False,
    fp8: Annotated[bool, typer.Option("--fp8", help="compute the blocks' matrix products in 8 bits")] = False,
    async_tp: Annotated[bool, typer.Option("--async-tp", help="overlap tensor-parallel messages and products")] = False,
    attention: Annotated[
        str,
        typer.Option(metavar="NAME", help="flash2 (torch's); tuned: for the chip (cuDNN, FlashAttention-3); unfused"),
    ] = "flash2",
    capacity: Annotated[
        float, typer.Option(metavar="X", help="rows of an expert, as a multiple of the mean  [default: dropless]")
    ] = 0.0,
    overlap_ep: Annotated[bool, typer.Option("--overlap-ep", help="overlap experts' messages and computing")] = False,
    best: Annotated[int, typer.Option(metavar="N", help="number of plans to show")] = 10,
    rejected: Annotated[bool, typer.Option("--rejected", help="show each rejected plan, too")] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="a .png, .svg, .csv or .json  [default: runs/plan/NAME.png and .csv]"),
    ] = None,
) -> None:
    """Plan a training run: list the ways to distribute a model, fastest first, and why other plans are rejected."""
    try:
        from utils.costs import AXES, SETTINGS, distinct, plans
    except ImportError:
        fail(
            sealed_lessons.waits_for("plan", right()) if "plan" in sealed_lessons.sealed() else "utils/costs is missing"
        )
    from grader.engine.commands import plan_output

    if best < 1:
        fail(f"--best {best}: at least one")
    if out:
        refuse_unwritable(out)
    settled = settings_of(check)
    if gpus is None and settled:
        gpus = math.prod(settled.get(axis, 1) for axis in ("dp", "shard", "tp", "pp", "cp"))
    training = described(model, machine, gpus, batch, sequence, tokens, precision)
    like = with_schedule(training.like, schedule)
    like = replace(like, compiled=compiled, fp8=fp8, overlap_tp=async_tp)
    training = replace(training, like=with_experts(like, training.model, attention, capacity, overlap_ep))
    if fp8 and not training.machine.peak_fp8:
        fail(f"--fp8: {training.machine.name} cannot compute in 8 bits")
    one = plan_of(training, settled) if settled else None
    plan_output.introduce(training)
    if one:
        raise typer.Exit(plan_output.one(training, one))
    choose = [kind for kind in (*AXES, *SETTINGS) if kind != "schedule" or not schedule]
    with console.status("comparing all plans …"):
        found = plans(training.model, training.gpus, training.machine, training.batch, training.like, choose)
    possible = distinct([choice for choice in found if not choice.rejected])
    plan_output.tell(training, found, possible[:best], rejected)
    name = re.sub(r"[^\w.-]+", "-", f"{Path(model).stem}-{training.gpus}-{Path(machine).stem}")
    files = [out] if out else [lessons.COURSE / "runs" / "plan" / f"{name}{ending}" for ending in (".png", ".csv")]
    for file in files:
        if plan_output.write(training, found, possible[:best], file):
            say(f"wrote {escape(str(file))}")
    if not possible:
        fail("no plan is possible", code=1)


# What is asked for


def refuse_unwritable(out: Path) -> None:
    """Before the table, not after it."""
    if out.suffix not in ENDINGS:
        fail(f"--out {out}: the name must end in one of {', '.join(ENDINGS)}")
    if not out.absolute().parent.is_dir():
        fail(f"--out {out}: there is no folder {out.parent}")
    if out.is_dir():
        fail(f"--out {out}: that is a folder")
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        fail(f"--out {out}: it cannot be written here")


def described(
    model: str, machine: str, gpus: int | None, batch: int | None, sequence: int | None, tokens: str, precision: str
) -> "Training":
    """The options, validated."""
    from grader.engine.commands.plan_output import Training
    from utils import catalogue
    from utils.plan import PRECISIONS, Plan, piece_on

    if precision and precision not in PRECISIONS:
        fail(f"--precision {precision}: there are {', '.join(PRECISIONS)}")
    if gpus is not None and not 1 <= gpus <= MOST:
        fail(f"--gpus {gpus}: from 1 to {MOST:,}")
    if sequence is not None and not 1 <= sequence <= MOST:
        fail(f"--sequence {sequence}: from 1 to {MOST:,} tokens")
    whole = number_of(tokens)
    try:
        shape = catalogue.model(model)
        host = measured(gpus) if machine == "here" else catalogue.machine(machine)
    except catalogue.Unreadable as problem:
        fail(problem)
    except OSError as problem:
        fail(f"{problem.filename}: {problem.strerror}")
    gpus = gpus or (host.node if machine == "here" else 64)
    batch = 4 * gpus if batch is None else batch
    if not 1 <= batch <= 1000 * MOST:
        fail(f"--batch {batch}: from 1 to {1000 * MOST:,} sequences")
    shape = replace(shape, sequence=sequence or shape.sequence)
    if whole and whole < batch * shape.sequence:
        fail(f"--tokens {tokens}: less than one step, which has {batch * shape.sequence:,}")
    on_cpus = machine == "here" and not has_gpus()
    precision = precision or ("float32" if on_cpus else "mixed")
    like = Plan(batch, precision=precision, piece=piece_on("cpu" if on_cpus else "gpu"))
    title = f"{model} on {gpus:,} device{'s' if gpus > 1 else ''} of {host.name}, {batch:,} sequences a step"
    return Training(shape, host, gpus, batch, like, whole, title)


def number_of(text: str) -> float:
    """300B, 15T, 1e12 as a number; "" as 0."""
    if not text:
        return 0.0
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d{1,2})?)([kmbgt]?)", text.strip().lower())
    number = float(found[1]) * UNITS[found[2]] if found else 0.0
    if not 1 <= number <= 1e18:
        fail(f"--tokens {text}: a number such as 300B, 15T or 1e12")
    return number


def with_schedule(like: "Plan", schedule: str) -> "Plan":
    from utils.plan import SCHEDULES

    if schedule and schedule not in SCHEDULES:
        fail(f"--schedule {schedule}: there are {', '.join(SCHEDULES)}")
    return replace(like, schedule=schedule or "1f1b")


def with_experts(like: "Plan", model: "Model", attention: str, capacity: float, overlap_ep: bool) -> "Plan":
    """The kernel of attention, and what only a mixture of experts has."""
    from utils.plan import ATTENTIONS

    if attention not in ATTENTIONS:
        fail(f"--attention {attention}: there are {', '.join(ATTENTIONS)}")
    if not (capacity == 0 or 1 <= capacity <= 1000):
        fail(f"--capacity {capacity:g}: 1 or more times the mean")
    if (capacity or overlap_ep) and not model.experts:
        fail(f"--{'capacity' if capacity else 'overlap-ep'}: this model has no experts")
    return replace(like, attention=attention, capacity=capacity, overlap_ep=overlap_ep)


def settings_of(check: str) -> dict[str, int | str]:
    """Parse dp=64,tp=8 into validated numbers and words."""
    found: dict[str, int | str] = {}
    for part in filter(None, (part.strip() for part in check.split(","))):
        name, sign, value = part.partition("=")
        if not sign:
            fail(f"--check {check}: {part} is not a setting such as tp=8")
        if name in found:
            fail(f"--check {check}: {name} twice")
        if name in WORDS:
            found[name] = value
        elif name in SETTLED:
            least = 0 if name == "zero" else 1
            if not (value.isascii() and value.isdecimal() and least <= int(value) <= MOST):
                fail(f"--check {check}: {name} is {value!r}, and must be a number from {least} to {MOST:,}")
            found[name] = int(value)
        else:
            fail(f"--check {check}: no setting {name!r}; there are {', '.join((*SETTLED, *WORDS))}")
    if check and not found:
        fail("--check: a plan, such as dp=64,tp=8,pp=16")
    return found


def plan_of(training: "Training", settled: dict[str, int | str]) -> "Plan":
    """The plan that --check describes."""
    from utils.plan import CONTEXTS, RECOMPUTES, SCHEDULES

    allowed = {"schedule": SCHEDULES, "context": CONTEXTS, "recompute": RECOMPUTES}
    allowed["sequence_parallel"] = ("off", "keep", "regather")
    for name, words in allowed.items():
        if settled.get(name, words[0]) not in words:
            fail(f"--check: {name} is {settled[name]!r}; there are {', '.join(words)}")
    if settled.get("zero", 1) > 3:
        fail(f"--check: zero is {settled['zero']}; there are 0 (copies), 1, 2, 3")
    plan = replace(training.like, **settled)
    if settled.get("chunks", 1) > 1 and "schedule" not in settled:
        plan = replace(plan, schedule="interleaved")
    if plan.schedule != "interleaved" and plan.chunks > 1:
        fail(f"--check: {plan.schedule} has one chunk on each rank; only interleaved has {plan.chunks}")
    if plan.world != training.gpus:
        fail(f"--check: dp · shard · tp · pp · cp is {plan.world:,}, and --gpus {training.gpus:,}")
    return plan


# This machine


def has_gpus() -> bool:
    from utils import devices  # imported here, like whatever loads torch

    return bool(devices.accelerator())


def devices_here() -> int:
    from utils import devices

    return devices.count() or os.cpu_count() or 1


def measured(gpus: int | None) -> "Machine":
    """This machine, measured with this many ranks, at most one per device or core."""
    from grader.engine.jobs import machine
    from utils import this_machine

    here = devices_here()
    if gpus is not None and gpus > here:
        fail(f"--gpus {gpus}: this machine has {here} {'GPU' if has_gpus() else 'core'}{'s' if here > 1 else ''}")
    script = lessons.COURSE / "utils" / "this_machine.py"
    done = subprocess.run(
        machine.launch_command(script, gpus or here, [], quiet=True), capture_output=True, text=True, check=False
    )
    if done.returncode:
        fail(f"this machine could not be measured: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    return this_machine.from_json(done.stdout.strip().splitlines()[-1])
