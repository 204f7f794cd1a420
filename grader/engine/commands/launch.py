"""How a script is started, here or as a job, and reported on when it is over."""

import itertools
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from rich.markup import escape

from grader.engine.commands.screen import fail, say
from grader.engine.lesson import lessons


def run_once(script: Path, nproc: int, args: list[str], out: Path, dry_run: bool = False, most: int = 0) -> int:
    """Run a script in `nproc` processes, recorded; its exit code. `most`: processes of the largest run to compare."""
    from grader.engine.jobs import machine

    # Each process would take all cores for itself; and runs compare if a process has the same in all of them.
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // max(nproc, most))))
    options = [] if str(out) == str(out_folder(args, f"runs/{script.stem}")) else ["--out", str(out)]
    options += ["--record"] * ("--record" not in args)
    typed, run = (machine.launch_command(script, nproc, [*args, *options], quiet) for quiet in (False, True))
    say(f"[dim]$ OMP_NUM_THREADS={threads} {escape(machine.shown(typed))}[/]")
    return 0 if dry_run else machine.call(run, env={**os.environ, "OMP_NUM_THREADS": threads})


def run_as_job(lesson: str, nodes: int, batch: str, args: list[str], dry_run: bool) -> int:
    """Submit a lesson's batch file, follow it, and return its exit code; if `dry_run`, only show the command."""
    import shlex

    from grader.engine.jobs import scheduler

    kinds = scheduler.kinds()
    if not kinds and not dry_run:
        fail(
            "there is neither sbatch nor qsub here: go to a login node of a cluster; --dry-run shows what would be"
            " submitted"
        )
    options = shlex.split(batch)
    try:
        commands = {
            kind: scheduler.command(lesson, kind, nodes, options, args) for kind in kinds[:1] or ("sbatch", "pbs")
        }
        for kind, command in commands.items():
            say(f"[dim]$ {escape(shlex.join(command))}[/]")
            if todo := scheduler.account_is_missing(kind, options):
                say(f"[dim]before it is submitted: {escape(todo)}[/]") if dry_run else fail(todo)
        if dry_run:
            return 0
        kind = kinds[0]
        job = scheduler.submit(commands[kind])
    except ValueError as problem:
        fail(problem)
    stop, began = "scancel" if kind == "sbatch" else "qdel", time.time()
    try:
        code = scheduler.follow(kind, job, lambda text: (sys.stdout.write(text), sys.stdout.flush())).code
        say_report(lessons.COURSE / out_folder(args, f"runs/{lesson}"), began)
        return code
    except KeyboardInterrupt:
        say(f"\njob {job} goes on; {stop} {job} ends it")
        return 130


def values_of(option: str, args: list[str]) -> list[str]:
    """What a script is given for one of its own options."""
    given = [after for flag, after in itertools.pairwise(args) if flag == option]
    return given + [arg.removeprefix(f"{option}=") for arg in args if arg.startswith(f"{option}=")]


def out_folder(args: list[str], default: str) -> Path:
    """Where a script writes, by its own --out."""
    return Path(([default] + values_of("--out", args))[-1])


def say_report(out: Path, began: float) -> None:
    """Write the report of a run, unless it stopped before it had a loss to report, and say where it is."""
    from grader.engine.jobs.machine import shown
    from utils import report, results, runs

    with suppress(ValueError):
        if runs.newest(out) < began - 1:  # not of this run; a file system's clock may lag
            return
        say(f"report:     {escape(shown([str(report.write(out))]))}")
        say(f"loss curve: {escape(shown([str(out / 'loss.png')]))}")
        recent = [run for run in report.newest_runs(out) if run.ranks and run.ranks[0].start["time"] >= began - 1]
        if recent:
            results.add(table := lessons.COURSE / "runs" / "results.md", recent)
            say(f"results:    {escape(shown([str(table.relative_to(lessons.COURSE))]))}, yours to complete")
