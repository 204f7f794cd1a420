"""How long a student waits for a verdict, and how long the same takes started cold.

    python benchmarks/latency.py

In one run, in turns, on a copy of the course: ddp_training is saved while `watch` looks,
and the clock runs from the save to the verdict on the screen. The same check of TODO 10
is started cold, by torchrun; and pytest on the lesson's solutions gives seconds a check.
"""

import argparse
import json
import os
import queue
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

COURSE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(COURSE))

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from grader.engine.lesson import lessons, todo_regions

LESSON, TODO = "ddp_training", 10
TODOS = len(lessons.titles(LESSON))
# Two wrong answers, so that each save changes the file. Either is found out by one run of two ranks.
WRONG = ("return (total / count).item()", "dist.all_reduce(total)\nreturn (total / count).item()")
WATCH = (
    "from grader.engine.ranks.runner import Runner; from grader.engine.commands.watch import Watch\n"
    "with Runner() as e: Watch(e, {lesson!r}).run()"
)
# What the check does on ranks, and nothing more. The file is the student's.
COLD = """
import importlib.util, math, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
spec = importlib.util.spec_from_file_location("student", sys.argv[1])
student = importlib.util.module_from_spec(spec)
spec.loader.exec_module(student)
totals, counts = torch.tensor([[6.0, 40.0], [3.0, 10.0]], dtype=torch.float64)
value = student.global_mean(totals[dist.get_rank()].clone(), counts[dist.get_rank()].clone())
if dist.get_rank() == 0:
    print("right" if math.isclose(value, 46 / 13, rel_tol=1e-6) else "wrong")
dist.destroy_process_group()
"""
ROWS = {  # what is measured: its title, and the seconds it may take at most
    "watch_todo": (f"save to verdict in watch, {LESSON}/{TODO} (one 2-rank run)", 0.5),
    "watch_lesson": (f"save to verdict in watch, all of {LESSON}", 2.0),
    "cold_todo": (f"the check of {LESSON}/{TODO}, cold: torchrun, 2 ranks", None),
    "pytest_check": (f"pytest grader/lessons/{LESSON} --target solutions, for each check", 0.6),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7, help="turns; the table shows their medians")
    parser.add_argument("--json", type=Path, help="write every measurement to this file, too")
    args = parser.parse_args()
    if args.repeats < 1:
        parser.error("--repeats must be at least 1")

    load = os.getloadavg()[0]
    seconds: dict[str, list[float]] = {name: [] for name in ROWS}
    with tempfile.TemporaryDirectory(prefix="wb-latency-") as folder:
        course = copy_course(Path(folder) / "course")
        with Watched(course) as watched:
            for _ in track(range(args.repeats), "measuring", console=Console(stderr=True), transient=True):
                turn(watched, course, seconds)
    show(seconds, load)
    if args.json:
        machine = {
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "load_before": load,
        }
        args.json.write_text(json.dumps({"machine": machine, "seconds": seconds}, indent=1) + "\n")


def turn(watched: "Watched", course: Path, seconds: dict[str, list[float]]) -> None:
    """One measurement of each kind."""
    watched.save(student_file(WRONG[0]))  # from here on TODO 10 is the one worked on, and told first
    watched.wait_for(LESSON)
    began = watched.save(student_file(WRONG[1]))
    seconds["watch_todo"].append(watched.wait_for("after the save") - began)
    watched.wait_for(LESSON)
    began = watched.save(student_file(None))
    seconds["watch_lesson"].append(watched.wait_for(LESSON, f"{TODOS} of {TODOS}") - began)
    seconds["cold_todo"].append(cold(course))
    if (each := pytest_check(course)) is not None:
        seconds["pytest_check"].append(each)


def student_file(body: str | None) -> str:
    """The lesson with all TODOs solved, but for `body` in TODO 10."""
    source = lessons.source_path(LESSON).read_text("utf-8")
    return todo_regions.compose(source, solved=todo_regions.titles(source), bodies={TODO: body} if body else {})


def copy_course(target: Path) -> Path:
    """A copy to save into, with the batch files solved: the student's own files are left alone."""
    shutil.copytree(
        COURSE,
        target,
        ignore=shutil.ignore_patterns(".venv", ".git", ".workbook", "runs", "__pycache__", ".pytest_cache"),
    )
    for source in lessons.sources(LESSON)[1:]:
        text = source.read_text("utf-8")
        (target / "sbatch" / source.name).write_text(
            todo_regions.compose(text, solved=todo_regions.titles(text)), "utf-8"
        )
    return target


def environment(course: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(course), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


class Watched:
    """`workbook watch` on a course, and when each line of it came."""

    def __init__(self, course: Path) -> None:
        self.course, self.file = course, course / "train" / f"{LESSON}.py"
        self.lines: queue.SimpleQueue[tuple[float, str] | None] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", WATCH.format(lesson=LESSON)],
            cwd=self.course,
            env=environment(self.course),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self.listen, daemon=True).start()
        self.wait_for(LESSON)  # the first verdicts, on the file as it is
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(timeout=10)

    def listen(self) -> None:
        for line in self.process.stdout:
            self.lines.put((time.perf_counter(), line.rstrip()))
        self.lines.put(None)

    def save(self, text: str) -> float:
        """Save the file as an editor does. Returns when."""
        beside = self.file.with_suffix(".saving")
        beside.write_text(text, "utf-8")
        began = time.perf_counter()
        os.replace(beside, self.file)
        return began

    def wait_for(self, *words: str) -> float:
        """When the line came that has these words and is no verdict's story: the bar of the lesson, or the note before
        it.
        """
        heard = []
        while True:
            try:
                said = self.lines.get(timeout=120)
            except queue.Empty:
                said = None
            if said is None:
                raise SystemExit("watch said nothing more:\n" + "\n".join(heard))
            when, line = said
            heard.append(line)
            if all(word in line for word in words) and (
                "after the save" in line or re.search(rf" \d+ of {TODOS} ", line)
            ):
                return when


def timed(call: Callable[[], subprocess.CompletedProcess]) -> tuple[float, subprocess.CompletedProcess]:
    began = time.perf_counter()
    done = call()
    return time.perf_counter() - began, done


def cold(course: Path) -> float:
    """Seconds of the same check by torchrun, from nothing to its answer."""
    script = course / "cold.py"
    script.write_text(COLD)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
        f"train/{LESSON}.py",
    ]
    took, done = timed(
        lambda: subprocess.run(
            command, cwd=course, env=environment(course), capture_output=True, text=True, check=False
        )
    )
    if "right" not in done.stdout:
        raise SystemExit(f"the cold check failed:\n{done.stdout}{done.stderr}")
    return took


def pytest_check(course: Path) -> float | None:
    """Seconds of pytest on the lesson's solutions for each of its checks; None if it does not pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"grader/lessons/{LESSON}"]
    command += ["--target", "solutions"]
    took, done = timed(
        lambda: subprocess.run(
            command, cwd=course, env=environment(course), capture_output=True, text=True, check=False
        )
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    return took / int(passed.group(1)) if done.returncode == 0 and passed else None


def show(seconds: dict[str, list[float]], load: float) -> None:
    table = Table(
        title=f"Seconds, medians of {len(seconds['cold_todo'])} turns; {os.cpu_count()} cores, load before {load:.1f}",
        title_justify="left",
    )
    for name in ("", "median", "least", "most", "aim"):
        table.add_column(name, justify="right" if name else "left")
    for name, (title, aim) in ROWS.items():
        values = seconds[name]
        if not values:
            table.add_row(title, "failed", "", "", "")
            continue
        median = statistics.median(values)
        colour = "" if aim is None else "[green]" if median <= aim else "[red]"
        table.add_row(
            title,
            f"{colour}{median:.2f}",
            f"{min(values):.2f}",
            f"{max(values):.2f}",
            "" if aim is None else f"≤ {aim}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
