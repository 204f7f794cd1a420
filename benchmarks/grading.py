"""How fast a class is graded, and whether each mark is right; beside it `nbgrader autograde` of the same notebooks.

    python benchmarks/grading.py                 a class of 30, on one worker and on two
    python benchmarks/grading.py --students 8 --nbgrader 2

The class: solved, as given, half done, and one wrong answer each (those of grader/mutants/). A submission's right mark is
known: a wrong answer to TODO k loses k, and what needs k; all else is right. nbgrader grades a few of the same notebooks, one
after the other, as it does. Its time is that of all its processes' CPU, and so is ours: both are given by the kernel.
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
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from grader.engine import grade, lessons, mutants, notebooks, regions

NOTEBOOKS = [stem for stem in lessons.stems() if lessons.is_notebook(stem)]


class Deserved(NamedTuple):
    """Of one lesson of one submission: the TODOs that must have marks, and those that must have none. The others need a wrong one first."""

    marks: set[int]
    none: set[int]


def submissions(count: int) -> dict[str, dict[str, tuple[str, Deserved]]]:
    """student -> lesson -> (the source of what is handed in, the marks that it deserves)."""
    found = {}
    for number in range(count):
        kind = ("solved", "given", "half", "wrong", "wrong")[number % 5]
        mine = found[f"{number:02}-{kind}"] = {}
        for stem in NOTEBOOKS:
            source, todos = lessons.source_path(stem).read_text("utf-8"), list(lessons.titles(stem))
            if kind == "wrong":
                answers = importlib.import_module(f"grader.mutants.{stem}").WRONG
                answer = answers[(7 * number) % len(answers)]
                mine[stem] = answer.text(source), Deserved(set(todos) - {answer.todo} - mutants.dependents(stem, answer.todo), {answer.todo})
            else:
                done = {"solved": todos, "given": [], "half": todos[: len(todos) // 2]}[kind]
                mine[stem] = regions.compose(source, done), Deserved(set(done), set(todos) - set(done))
    return found


def right(record: dict, deserved: dict[str, tuple[str, Deserved]]) -> bool:
    passed = {stem: {v["todo"] for v in record["verdicts"] if v["lesson"] == stem and v["status"] == "pass"} for stem in deserved}
    return all(passed[stem] >= each.marks and not passed[stem] & each.none for stem, (_, each) in deserved.items())


def timed(command: list[str], **more) -> tuple[float, float]:
    """Seconds by the clock and of CPU, its children's included."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return time.perf_counter() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--students", type=int, default=30, help="submissions in the class")
    parser.add_argument("--nbgrader", type=int, default=3, help="so many of them nbgrader grades, too")
    args = parser.parse_args()
    class_ = submissions(args.students)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for student, mine in class_.items():
            for stem, (text, _) in mine.items():
                target = root / "class" / student / "notebooks" / f"{stem}.ipynb"
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(notebooks.to_json(notebooks.to_notebook(text, stem, released=False)), "utf-8")
        workbook = [sys.executable, "-P", "-m", "grader.engine.cli"]
        environment = {**os.environ, "PYTHONPATH": str(lessons.COURSE)}
        print(f"{args.students} submissions of {', '.join(NOTEBOOKS)}, {sum(len(lessons.titles(s)) for s in NOTEBOOKS)} TODOs each")
        ours = 0.0
        for jobs in (1, 2):
            out = root / f"out-{jobs}"
            wall, cpu = timed([*workbook, "grade", str(root / "class"), "--out", str(out), "--lessons", ",".join(NOTEBOOKS), "--jobs", str(jobs)],
                              cwd=lessons.COURSE, env=environment)
            records = {student: json.loads((out / "records" / f"{grade.file_name(student)}.json").read_text()) for student in class_}
            good = sum(right(records[student], mine) for student, mine in class_.items())
            print(f"grade --jobs {jobs}: {wall:6.1f} s, {60 * args.students / wall:5.1f} submissions a minute, "
                  f"{cpu / args.students:5.2f} s of CPU each; marks right: {good} of {args.students}")
            ours = cpu / args.students
        if args.nbgrader:
            course = root / "course"
            shutil.copytree(lessons.COURSE, course, ignore=shutil.ignore_patterns(".venv", ".git", ".workbook", "runs", "__pycache__"))
            subprocess.run([*workbook, "build"], cwd=course, env={**os.environ, "PYTHONPATH": str(course)}, capture_output=True, check=True)
            plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            total_wall = total_cpu = 0.0
            chosen = list(class_)[: args.nbgrader]
            for stem in NOTEBOOKS:
                subprocess.run([sys.executable, "-m", "nbgrader", "generate_assignment", stem], cwd=course, env=plain, capture_output=True, check=True)
                for student in chosen:
                    target = course / ".workbook" / "nbgrader" / "submitted" / student / stem / f"{stem}.ipynb"
                    target.parent.mkdir(parents=True)
                    shutil.copy(root / "class" / student / "notebooks" / f"{stem}.ipynb", target)
                wall, cpu = timed([sys.executable, "-m", "nbgrader", "autograde", stem, "--create"], cwd=course, env=plain)
                total_wall, total_cpu = total_wall + wall, total_cpu + cpu
            print(f"nbgrader autograde:{total_wall:6.1f} s for {len(chosen)}, {total_cpu / len(chosen):5.2f} s of CPU each: "
                  f"{total_cpu / len(chosen) / ours:.1f} times ours")


if __name__ == "__main__":
    main()
