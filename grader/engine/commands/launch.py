"""Start a script, here or as a job, and write a report when it ends."""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from grader.engine.commands.screen import fail, say
from grader.engine.lesson import lessons
from utils.watched.record import out_folder

if TYPE_CHECKING:
    from grader.engine.jobs.submit_job import State


def gpus_here() -> int:
    """GPUs that processes here may use, as the driver and CUDA_VISIBLE_DEVICES say. Loads no torch."""
    import pynvml

    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        there = pynvml.nvmlDeviceGetCount()
        named = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(there))))
        return min(there, len([name for name in named.split(",") if name.strip() not in ("", "-1")]))
    return 0


def run_once(
    script: Path, nproc: int, args: list[str], out: Path, dry_run: bool = False, most: int = 0, watched: bool = True
) -> int:
    """Run a script in `nproc` processes, recorded; its exit code. `most`: processes of the largest run to compare."""
    from grader.engine.commands.run_monitor import Watcher
    from grader.engine.jobs import machine

    # Otherwise each process uses all cores; and runs are comparable only if a process has equally many threads in each.
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // max(nproc, most))))
    options = [] if str(out) == str(out_folder(args, f"runs/{script.stem}")) else ["--out", str(out)]
    options += [flag for flag, wanted in (("--record", True), ("--watch", watched)) if wanted and flag not in args]
    typed, run = (machine.launch_command(script, nproc, [*args, *options], quiet) for quiet in (False, True))
    say(f"[dim]$ OMP_NUM_THREADS={threads} {escape(machine.shown(typed))}[/]")
    if dry_run:
        return 0
    watcher = Watcher(out, since=time.time() - 1) if watched else None  # file timestamps are coarse
    code = machine.call(run, {**os.environ, "OMP_NUM_THREADS": threads}, watcher and watcher.hopeless)
    if watcher:
        watcher.say_end(code)
    return code


def run_as_job(lesson: str, nodes: int, batch: str, args: list[str], dry_run: bool) -> int:
    """Submit a lesson's batch file, follow it, report on its run, and return its exit code; if `dry_run`, only show."""
    from grader.engine.jobs import submit_job

    args = [*submit_job.named_by_run(lesson), *args]
    job = submit(lesson, nodes, batch, args, dry_run)
    if job is None:
        return 0
    ended = follow(*job, args)
    if ended is None:
        return 130
    say_report(lessons.COURSE / out_folder(args, str(submit_job.run_folder(job[1], ended))), began=0.0)
    return ended.code


def submit(stem: str, nodes: int, batch: str, args: list[str], dry_run: bool = False) -> tuple[str, str] | None:
    """Submit sbatch/STEM.sbatch or .pbs: the scheduler's kind and the job's number; None if `dry_run`."""
    import shlex

    from grader.engine.jobs import submit_job

    kinds = submit_job.kinds()
    if not kinds and not dry_run:
        fail(
            "there is neither sbatch nor qsub here: use a login node of a cluster; --dry-run shows what would be"
            " submitted"
        )
    try:
        options = shlex.split(batch)
        for kind in kinds[:1] or ("sbatch", "pbs"):
            command = submit_job.command(stem, kind, nodes, options, args)
            say(f"[dim]$ {escape(shlex.join(command))}[/]")
            todo = submit_job.account_is_missing(kind, options)
            if todo and dry_run:
                say(f"[dim]if it is refused: {escape(todo)}[/]")
    except ValueError as problem:
        fail(problem)
    try:
        return None if dry_run else (kind, submit_job.submit(command))
    except ValueError as problem:
        fail(f"{problem} ({todo})" if todo else problem)


def follow(kind: str, job: str, args: list[str]) -> "State | None":
    """Show a job's output until it ends; None on Ctrl-C, which leaves the job running. With --watch in `args` (the
    script's), a job that can never continue is ended.
    """
    from grader.engine.commands.run_monitor import Watcher
    from grader.engine.jobs import submit_job

    watcher: Watcher | None = None

    def look(now: "State") -> None:
        nonlocal watcher
        if "--watch" not in args:
            return
        watcher = watcher or Watcher(lessons.COURSE / out_folder(args, str(submit_job.run_folder(job, now))))
        if watcher.hopeless():
            submit_job.cancel(kind, job)

    try:
        ended = submit_job.follow(kind, job, lambda text: (sys.stdout.write(text), sys.stdout.flush()), look)
    except ValueError as problem:
        fail(problem, code=1)
    except KeyboardInterrupt:
        say(f"\njob {job} continues; {submit_job.stop_command(kind)} {job} ends it")
        return None
    if watcher:
        watcher.say_end(ended.code)
    return ended


def say_report(out: Path, began: float) -> None:
    """Write the report of a run, unless it stopped before its first loss, and say where it is."""
    from grader.engine.jobs.machine import shown
    from utils.report import page, results, runs
    from utils.report.first_look import first_look

    with suppress(ValueError):
        if runs.newest(out) < began - 1:  # it is from an earlier run; a file system's clock may lag
            return
        say(f"report:     {escape(shown([str(page.write(out))]))}")
        say(f"loss curve: {escape(shown([str(out / 'loss.png')]))}")
        recent = [run for run in page.newest_runs(out) if run.ranks and run.ranks[0].start["time"] >= began - 1]
        if look := first_look(recent[-1]) if recent else "":
            say(f"first look: {look}")
        if recent:
            results.add(table := lessons.COURSE / "runs" / "results.md", recent)
            say(f"results:    {escape(shown([str(table.relative_to(lessons.COURSE))]))}, yours to complete")
