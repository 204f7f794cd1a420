"""`kill -9` of a rank, of torchrun and of `./workbook run` at random moments: what is left, and what a resumed run is
worth.

    python benchmarks/kills.py                  # 20 moments, two of them in a save
    python benchmarks/kills.py --moments 40 --seed 7

Each time `./workbook run tp_training` (solved) starts on two ranks and saves every few steps. One of its processes is
killed at a moment drawn over the whole length of a run, so also while torch is being imported, or as soon as a save has
begun. Then the clock runs until neither torchrun nor a rank is left; the run is resumed from its newest whole
checkpoint; and its losses are compared with a run's that was not killed. The exit code is 1 if a process is left
after ten seconds, or a loss differs.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

COURSE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(COURSE), str(COURSE / "tests")]

import psutil
from rich.console import Console
from rich.table import Table

from course_copy import Course
from grader.engine.lesson import lessons, todo_regions
from utils.checkpoints import newest
from utils.report.runs import read_lines

STEPS, EVERY = 24, 4
FLAGS = (
    f"--device cpu --data random --epochs 9 --max-steps {STEPS} --save-every {EVERY} --batch-size 12 --seq-len 64"
    " --dim 128 --layers 2 --log-every 1"
).split()
LONG = 10.0  # seconds for which a process may be left
PATIENCE = 300.0  # seconds for what a busy machine must do at some time


class Killed(NamedTuple):
    whom: str
    when: str
    left: float  # seconds until no process was
    resumed: int  # from this step, 0 for none
    difference: float  # of a loss, relative, at most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the moments")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    console, chance = Console(), random.Random(args.seed)
    console.print(f"seed {args.seed}")
    with tempfile.TemporaryDirectory() as folder:
        course = Course(Path(folder) / "course")
        todos = tuple(todo_regions.titles(lessons.source_path("tp_training").read_text("utf-8")))
        course.solve("tp_training", todos)
        began = time.monotonic()
        finish(start(course, "whole"))
        length, wanted = time.monotonic() - began, losses(course.folder / "whole")
        assert sorted(wanted) == list(range(1, STEPS + 1)), "the run that is not killed has no loss for each step"
        console.print(f"a run of {STEPS} steps takes {length:.0f} s here")
        found = []
        for number in range(args.moments):
            whom = ("rank", "torchrun", "run")[number % 3]
            moment, save = chance.uniform(0, length), chance.randrange(2 * EVERY, STEPS + 1, EVERY)
            in_a_save = number in (1, args.moments - 1)
            found.append(killed(course, f"run-{number}", whom, moment, save if in_a_save else 0, wanted))
            console.print(f"[dim]{number + 1}: {found[-1]}[/]")
    show(console, found)
    if args.json:
        args.json.write_text(json.dumps([each._asdict() for each in found], indent=2) + "\n", "utf-8")
    sys.exit(any(each.left > LONG or each.difference > 0 for each in found))


def killed(course: Course, name: str, whom: str, moment: float, save: int, wanted: dict[int, float]) -> Killed:
    """Kill one of a run's processes after so many seconds, or while step `save` is saved; resume it, and compare.

    A process that is not there yet is killed as soon as it is; if the run ends before, another run is started.
    """
    out = course.folder / name
    run = start(course, name)
    began = time.monotonic()
    victims: list[psutil.Process] = []
    while run.poll() is None and not victims:
        due = any(out.glob(f".step-{save}.*.part")) if save else time.monotonic() - began > moment
        victims = [each for each in processes(out) if role(each) == whom] if due else []
        time.sleep(0.005)  # a process table can only be asked
    if not victims:
        shutil.rmtree(out, ignore_errors=True)
        return killed(course, name, whom, 0.8 * moment, save, wanted)
    when = f"in the save of {save}" if save else f"{time.monotonic() - began:.1f} s"
    when += f", step {max(losses(out), default=0)}"
    victims[-1].kill()
    ended = time.monotonic()
    # A `run` that lives is busy with the report of what there was; torchrun and ranks have no more to do.
    while any(role(each) != "run" for each in processes(out)) and time.monotonic() - ended < PATIENCE:
        time.sleep(0.05)
    left = time.monotonic() - ended
    run.wait()
    whole = newest(out)
    resumed = int(whole.name.removeprefix("step-")) if whole else 0
    finish(start(course, name, *(["--resume", str(out)] if whole else [])))
    got = losses(out)
    assert got.keys() == wanted.keys(), f"{name}: steps {sorted(got)}"
    return Killed(whom, when, left, resumed, max(abs(got[step] / wanted[step] - 1) for step in wanted))


def start(course: Course, name: str, *more: str) -> subprocess.Popen:
    said = (course.folder / "said").open("w")
    command = course.command("run", "tp_training", "--nproc", "2", "--", *FLAGS, *more)
    command += ["--out", str(course.folder / name)]
    return subprocess.Popen(command, cwd=course.folder, env=course.environment(), stdout=said, stderr=said)


def finish(run: subprocess.Popen) -> None:
    if code := run.wait(PATIENCE):
        raise SystemExit(f"a run that was not killed ended with exit code {code}")


def losses(out: Path) -> dict[int, float]:
    """By step; of one that is there twice, the last."""
    return {line["step"]: line["loss"] for line in read_lines(out / "metrics.jsonl") if line["kind"] == "step"}


def processes(out: Path) -> list[psutil.Process]:
    """Those of the run that writes to this folder, by their command."""
    found = psutil.process_iter(["cmdline", "status"])
    return [p for p in found if str(out) in (p.info["cmdline"] or []) and p.info["status"] != psutil.STATUS_ZOMBIE]


def role(process: psutil.Process) -> str:
    words = " ".join(process.info["cmdline"])
    return "run" if "grader.engine" in words else "torchrun" if "bin/torchrun" in words else "rank"


def show(console: Console, found: list[Killed]) -> None:
    table = Table("killed", "when", "all gone after, s", "resumed from step", "losses differ by")
    for each in found:
        table.add_row(each.whom, each.when, f"{each.left:.2f}", str(each.resumed), f"{each.difference:.1e}")
    console.print(table)
    console.print(f"at most {max(each.left for each in found):.2f} s, and {max(e.difference for e in found):.1e}")


if __name__ == "__main__":
    main()
