"""How fast a class is graded, and whether each mark is right; compared with `nbgrader autograde` of the same notebooks.

    python benchmarks/grading.py                 a class of 6, on one worker and on two
    python benchmarks/grading.py --students 8 --nbgrader 2
    python benchmarks/grading.py --scripts       all scripts with their batch files; nbgrader cannot grade them

The class: solved, as given, half done, one wrong answer in each lesson (from grader/lessons/), and, with the notebooks,
hostile (from tests/hostile/). A submission's right mark is known: a wrong answer to TODO k loses k, and what needs k;
all else is right. nbgrader grades the first few of the same notebooks, one after the other, as it does. Its time is
that of all its processes' CPU, and so is ours: both are given by the kernel.
"""

import argparse
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
from grader.engine.judge import other_answers, mutants
from grader.engine.lesson import lessons, notebooks
from hostile.corpus import ATTACKS, LESSON

WORKBOOK = [sys.executable, "-P", "-m", "grader.engine.commands.cli"]


class Submission(NamedTuple):
    """`hand_in(path)` writes it; `right(record)` tells whether it got the marks that it deserves."""

    hand_in: Callable[[Path], None]
    right: Callable[[dict], bool]


def submissions(count: int, stems: list[str]) -> dict[str, Submission]:
    """A class, by student."""
    found, kinds = {}, ["solved", "given", "half", "wrong", "wrong"] + ["hostile"] * (LESSON in stems)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        if kind == "hostile":
            attack = ATTACKS[11 * number % len(ATTACKS)]
            found[f"{number:02}-hostile"] = Submission(
                attack.make,
                lambda record, attack=attack: (record["state"], records.points(record)) == (attack.state, attack.marks),
            )
            continue
        texts, marks, none = {}, set(), set()  # the others need a wrong one first
        for stem in stems:
            todos = list(lessons.titles(stem))
            if kind == "wrong":
                known = other_answers.listed(stem, other_answers.WRONG)
                answer = known[7 * number % len(known)]
                files, done = other_answers.answered(stem, answer), set(todos) - mutants.dependents(stem, answer.todo)
                wrong = {answer.todo}
            else:
                done = {"solved": todos, "given": [], "half": todos[: len(todos) // 2]}[kind]
                files, wrong = other_answers.solved(stem, done), set(todos) - set(done)
            texts |= {path: as_handed_in(stem, path, text) for path, text in files.items()}
            marks |= {f"{stem}/{todo}" for todo in done}
            none |= {f"{stem}/{todo}" for todo in wrong}
        found[f"{number:02}-{kind}"] = Submission(
            lambda path, texts=texts: write(path, texts),
            lambda record, marks=marks, none=none: got(record, marks, none),
        )
    return found


def as_handed_in(stem: str, path: Path, text: str) -> str:
    """A source as a student hands it in: of a notebook's, the .ipynb."""
    return notebooks.to_json(notebooks.to_notebook(text, stem, released=False)) if is_notebook(path) else text


def is_notebook(path: Path) -> bool:
    return path.parts[0] == "notebooks"


def write(submission: Path, texts: dict[Path, str]) -> None:
    for path, text in texts.items():
        target = submission / (path.with_suffix(".ipynb") if is_notebook(path) else path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")


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


def graded_here(root: Path, class_: dict[str, Submission], stems: list[str], jobs: int) -> float:
    """The class by `grade --jobs`, with a line that tells how fast and how right; seconds of CPU a submission."""
    out = root / f"out-{jobs}"
    options = ["--out", str(out), "--lessons", ",".join(stems), "--jobs", str(jobs)]
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


def graded_by_nbgrader(root: Path, chosen: list[str], stems: list[str]) -> tuple[float, float]:
    """These notebooks of these students by `nbgrader autograde`: seconds by the clock and of CPU."""
    course = copied(root / "course")
    nbgrader = [sys.executable, "-m", "nbgrader"]
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    wall = cpu = 0.0
    for stem in stems:
        subprocess.run([*nbgrader, "generate_assignment", stem], cwd=course, env=plain, capture_output=True, check=True)
        for student in chosen:
            target = course / ".workbook" / "nbgrader" / "submitted" / student / stem / f"{stem}.ipynb"
            target.parent.mkdir(parents=True)
            shutil.copy(root / "class" / student / "notebooks" / f"{stem}.ipynb", target)
        seconds = timed([*nbgrader, "autograde", stem, "--create"], cwd=course, env=plain)
        wall, cpu = wall + seconds[0], cpu + seconds[1]
    return wall, cpu


def main() -> None:
    judged = [stem for stem in lessons.stems() if lessons.titles(stem) and not lessons.lacking(stem)]
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--students", type=int, default=6, help="submissions in the class, of each kind in turn")
    parser.add_argument("--lessons", metavar="A,B", help="what they hand in; without it, all notebooks")
    parser.add_argument("--scripts", action="store_true", help="all scripts with their batch files, not the notebooks")
    parser.add_argument("--nbgrader", type=int, default=1, help="so many of them nbgrader grades, too, if notebooks")
    args = parser.parse_args()
    stems = args.lessons.split(",") if args.lessons else [s for s in judged if lessons.is_notebook(s) != args.scripts]
    class_ = submissions(args.students, stems)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "class").mkdir()
        for student, submission in class_.items():
            submission.hand_in(root / "class" / student)
        todos = sum(len(lessons.titles(stem)) for stem in stems)
        print(f"{args.students} submissions of {', '.join(stems)}, {todos} TODOs each", flush=True)
        ours = [graded_here(root, class_, stems, jobs) for jobs in (1, 2)]
        if args.nbgrader and all(map(lessons.is_notebook, stems)):
            chosen = list(class_)[: args.nbgrader]
            wall, cpu = graded_by_nbgrader(root, chosen, stems)
            print(
                f"nbgrader autograde:{wall:6.1f} s for {len(chosen)}, {cpu / len(chosen):5.2f} s of CPU each: "
                f"{cpu / len(chosen) / ours[-1]:.1f} times ours"
            )


if __name__ == "__main__":
    main()
