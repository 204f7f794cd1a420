"""How fast a class is graded, and whether each mark is right; compared with `nbgrader autograde` of the same notebooks.

    python benchmarks/grading.py                 a class of 6, on one worker and on two
    python benchmarks/grading.py --students 8 --nbgrader 2

The class: solved, as given, half done, one wrong answer in each lesson (from grader/mutants/), and hostile
(from tests/hostile/). A submission's right mark is known: a wrong answer to TODO k loses k, and what needs k;
all else is right. nbgrader grades the first few of the same notebooks, one after the other, as it does. Its time is
that of all its processes' CPU, and so is
ours: both are given by the kernel.
"""

import argparse
import importlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "tests")]

from grader.engine.classroom import records
from grader.engine.judge import mutants
from grader.engine.lesson import lessons, notebooks, regions
from hostile.corpus import ATTACKS

NOTEBOOKS = [stem for stem in lessons.stems() if lessons.is_notebook(stem)]
WORKBOOK = [sys.executable, "-P", "-m", "grader.engine.commands.cli"]


class Submission(NamedTuple):
    """`hand_in(path)` writes it; `right(record)` tells whether it got the marks that it deserves."""

    hand_in: Callable[[Path], None]
    right: Callable[[dict], bool]


def submissions(count: int) -> dict[str, Submission]:
    """A class, by student."""
    found = {}
    for number in range(count):
        kind = ("solved", "given", "half", "wrong", "wrong", "hostile")[number % 6]
        if kind == "hostile":
            attack = ATTACKS[11 * number % len(ATTACKS)]
            found[f"{number:02}-hostile"] = Submission(
                attack.make,
                lambda record, attack=attack: (record["state"], records.points(record)) == (attack.state, attack.marks),
            )
            continue
        texts, marks, none = {}, set(), set()  # the others need a wrong one first
        for stem in NOTEBOOKS:
            source, todos = lessons.source_path(stem).read_text("utf-8"), list(lessons.titles(stem))
            if kind == "wrong":
                answers = importlib.import_module(f"grader.mutants.{stem}").WRONG
                answer = answers[7 * number % len(answers)]
                texts[stem], done, wrong = (
                    next(iter(mutants.answered(stem, answer).values())),
                    set(todos) - mutants.dependents(stem, answer.todo),
                    {answer.todo},
                )
            else:
                done = {"solved": todos, "given": [], "half": todos[: len(todos) // 2]}[kind]
                texts[stem], wrong = regions.compose(source, done), set(todos) - set(done)
            marks |= {f"{stem}/{todo}" for todo in done}
            none |= {f"{stem}/{todo}" for todo in wrong}
        found[f"{number:02}-{kind}"] = Submission(
            lambda path, texts=texts: write(path, texts),
            lambda record, marks=marks, none=none: got(record, marks, none),
        )
    return found


def write(path: Path, texts: dict[str, str]) -> None:
    (path / "notebooks").mkdir(parents=True)
    for stem, text in texts.items():
        (path / "notebooks" / f"{stem}.ipynb").write_text(
            notebooks.to_json(notebooks.to_notebook(text, stem, released=False)), "utf-8"
        )


def got(record: dict, marks: set[str], none: set[str]) -> bool:
    given = {todo for todo, points in records.marks(record).items() if points}
    return given >= marks and not given & none


def timed(command: list[str], **more) -> tuple[float, float]:
    """Seconds by the clock and of CPU, its children's included."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return time.perf_counter() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def copied(folder: Path) -> Path:
    """The course in a folder of its own, built, with nbgrader's settings."""
    shutil.copytree(
        lessons.COURSE, folder, ignore=shutil.ignore_patterns(".venv", ".git", ".workbook", "runs", "__pycache__")
    )
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    subprocess.run([*WORKBOOK, "build"], cwd=folder, env=environment, capture_output=True, check=True)
    return folder


def graded_here(root: Path, class_: dict[str, Submission], jobs: int) -> float:
    """The class by `grade --jobs`, with a line that tells how fast and how right; seconds of CPU a submission."""
    out = root / f"out-{jobs}"
    options = ["--out", str(out), "--lessons", ",".join(NOTEBOOKS), "--jobs", str(jobs)]
    wall, cpu = timed(
        [*WORKBOOK, "grade", str(root / "class"), *options],
        cwd=lessons.COURSE,
        env={**os.environ, "PYTHONPATH": str(lessons.COURSE)},
    )
    found = {
        student: json.loads((out / "records" / f"{records.file_name(student)}.json").read_text()) for student in class_
    }
    wrong = [student for student, submission in class_.items() if not submission.right(found[student])]
    print(
        f"grade --jobs {jobs}: {wall:6.1f} s, {60 * len(class_) / wall:5.1f} submissions a minute, "
        f"{cpu / len(class_):5.2f} s of CPU each; marks right: {len(class_) - len(wrong)} of {len(class_)}",
        flush=True,
    )
    for student in wrong:
        print(f"    {student}: {found[student]['state']}, {records.marks(found[student])}")
    return cpu / len(class_)


def graded_by_nbgrader(root: Path, chosen: list[str]) -> tuple[float, float]:
    """The notebooks of these students by `nbgrader autograde`: seconds by the clock and of CPU."""
    course = copied(root / "course")
    nbgrader = [sys.executable, "-m", "nbgrader"]
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    wall = cpu = 0.0
    for stem in NOTEBOOKS:
        subprocess.run([*nbgrader, "generate_assignment", stem], cwd=course, env=plain, capture_output=True, check=True)
        for student in chosen:
            target = course / ".workbook" / "nbgrader" / "submitted" / student / stem / f"{stem}.ipynb"
            target.parent.mkdir(parents=True)
            shutil.copy(root / "class" / student / "notebooks" / f"{stem}.ipynb", target)
        seconds = timed([*nbgrader, "autograde", stem, "--create"], cwd=course, env=plain)
        wall, cpu = wall + seconds[0], cpu + seconds[1]
    return wall, cpu


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--students", type=int, default=6, help="submissions in the class; every sixth is of one kind")
    parser.add_argument("--nbgrader", type=int, default=1, help="so many of them nbgrader grades, too")
    args = parser.parse_args()
    class_ = submissions(args.students)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "class").mkdir()
        for student, submission in class_.items():
            submission.hand_in(root / "class" / student)
        todos = sum(len(lessons.titles(stem)) for stem in NOTEBOOKS)
        print(f"{args.students} submissions of {', '.join(NOTEBOOKS)}, {todos} TODOs each", flush=True)
        ours = [graded_here(root, class_, jobs) for jobs in (1, 2)]
        if args.nbgrader:
            chosen = list(class_)[: args.nbgrader]
            wall, cpu = graded_by_nbgrader(root, chosen)
            print(
                f"nbgrader autograde:{wall:6.1f} s for {len(chosen)}, {cpu / len(chosen):5.2f} s of CPU each: "
                f"{cpu / len(chosen) / ours[-1]:.1f} times ours"
            )


if __name__ == "__main__":
    main()
