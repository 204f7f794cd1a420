"""Commands that run a script, test nodes before that, show a run or write its model: run, preflight, report, export."""

import json
import os
import time
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from grader.engine.commands.arguments import LEARN, Lesson, app, lesson_named, own_file
from grader.engine.commands.launch import follow, gpus_here, run_as_job, run_once, say_report, submit
from grader.engine.commands.screen import fail, say
from grader.engine.lesson import lessons
from utils import nccl
from utils.arguments import size
from utils.watched.record import forget, out_folder


@app.command(rich_help_panel=LEARN)
def run(
    lesson: Lesson,
    args: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="arguments for the script, such as -- --epochs 1")
    ] = None,
    nproc: Annotated[
        str,
        typer.Option(
            metavar="N[,N]...",
            help="processes; several numbers, such as 1,2,4, compare the speed",
            show_default="2, the baseline 1",
        ),
    ] = "",
    nodes: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="submit the batch file as a job on N nodes, and follow its output"),
    ] = None,
    batch: Annotated[
        str, typer.Option(metavar="OPTIONS", help='options for sbatch or qsub, such as "--time=00:10:00"')
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show the command")] = False,
    watched: Annotated[
        bool,
        typer.Option(
            "--watch/--no-watch", help="report which rank waits for which, and end a run that can never continue"
        ),
    ] = True,
) -> None:
    """Run a lesson's script in several processes on this machine, or with its batch file on several nodes."""
    lesson = lesson_named(lesson)
    if lessons.is_notebook(lesson):
        fail(f"{lesson} is a notebook: ./workbook lab opens it")
    if nodes:
        raise typer.Exit(run_as_job(lesson, nodes, batch, [*(args or []), "--record", *["--watch"] * watched], dry_run))
    script = lessons.student_path(lesson)
    if not script.is_file():
        fail(f"there is no {own_file(lesson)}: ./workbook reset {lesson} brings it back")
    if lacking := lessons.lacking(lesson):
        fail(lacking)
    counts = nproc.split(",") if nproc else ["1" if lesson == lessons.BASELINE else "2"]
    if not all(count.isdecimal() and int(count) for count in counts):
        fail(f"--nproc {nproc}: a number of processes, or several, as in --nproc 1,2,4")
    counts = sorted({int(count) for count in counts})
    args = args or []
    named = any(arg.partition("=")[0] == "--device" for arg in args)
    if not named and not nccl.shares_gpus() and 0 < (gpus := gpus_here()) < counts[-1]:
        args = [*args, "--device", "cpu"]
        here = "there is only 1" if gpus == 1 else f"there are only {gpus}"
        say(f"{counts[-1]} processes need a GPU each and {here}, so they train on the CPU")
    out = out_folder(args, f"runs/{lesson}")
    code, began = 0, time.time()
    for count in counts:
        folder = out / f"nproc-{count}" if len(counts) > 1 else out
        code = code or run_once(script, count, args, folder, dry_run, counts[-1], watched)
        forget(folder)
    if not dry_run and code != 130:
        say_report(out, began)
    raise typer.Exit(code)


@app.command(rich_help_panel=LEARN)
def preflight(
    args: Annotated[list[str] | None, typer.Argument(metavar="-- ARGS", help="such as -- --out FOLDER")] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="run as a job on N nodes; default: on this machine")
    ] = None,
    batch: Annotated[
        str, typer.Option(metavar="OPTIONS", help='options for sbatch or qsub, such as "-A <budget>"')
    ] = "",
) -> None:
    """Before a long run, check the versions, devices, links, storage and clock of each node."""
    from grader.engine.jobs import machine
    from utils.preflight.facts import versions
    from utils.atomic_write import written_whole

    if not nodes:
        from utils import devices

        torchrun = machine.torchrun(f"--nproc-per-node={devices.count() or 2}")
        command = [*torchrun, "-m", "utils.preflight", *(args or [])]
        raise typer.Exit(machine.call(command, {**os.environ, "OMP_NUM_THREADS": "1"}))
    login = lessons.COURSE / "runs" / "preflight" / "login.json"
    with written_whole(login) as part:
        part.write_text(json.dumps({"versions": versions()}), "utf-8")
    job = submit(lessons.PREFLIGHT, nodes, batch, ["--login", str(login.relative_to(lessons.COURSE)), *(args or [])])
    ended = follow(*job, args=[])
    raise typer.Exit(130 if ended is None else ended.code)


Run = Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a run, such as runs/ddp_training")]


def folder_of(run: Path) -> Path:
    """The folder: relative to the user's folder, to the course folder or to its runs/."""
    for folder in (run, lessons.COURSE / run, lessons.COURSE / "runs" / run):
        if folder.is_dir():
            return folder
    fail(f"{run}: no such folder; a run writes into runs/LESSON, or where its --out says")


@app.command(rich_help_panel=LEARN)
def report(run: Run) -> None:
    """Plot a run: loss, speed, where a step's time goes, memory, utilization. Writes one HTML page, and PNGs."""
    folder = folder_of(run)
    from utils.report import page  # imported here: matplotlib takes a second

    try:
        say(escape(str(page.write(folder))))
    except ValueError as problem:
        fail(problem)


@app.command(rich_help_panel=LEARN)
def export(
    run: Run,
    checkpoint: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="which: model-best.pt, model-final.pt or step-NUMBER",
            show_default="model-final.pt; without it the last step-NUMBER, or model-best.pt",
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="where to; an export of this run there is replaced", show_default="RUN/export"
        ),
    ] = None,
    shard_size: Annotated[str, typer.Option(metavar="SIZE", help="largest file of weights, such as 300MB")] = "5GB",
) -> None:
    """Write a run's model as safetensors, with its sizes, words and a model card; `--init` of a script reads it."""
    folder = folder_of(run)
    try:
        nbytes = size(shard_size)
    except ArgumentTypeError as problem:
        fail(f"--shard-size {problem}")
    from utils import export as exports  # imported here: it loads torch

    to = out or folder / "export"
    try:
        files, remarks = exports.export(folder, to, checkpoint, nbytes)
    except ValueError as problem:
        fail(problem)
    say(escape(f"{to}: {', '.join(files)}"))
    for remark in remarks:
        say(escape(remark))
