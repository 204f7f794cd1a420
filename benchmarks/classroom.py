"""Honest students in a class with attackers: do they get the marks and messages of a class without?

    python benchmarks/classroom.py                              20 honest students, all attacks of tests/hostile/
    python benchmarks/classroom.py --honest 4 --attackers 11    fewer; the attacks are taken evenly from the list

The honest are graded alone first; then among attackers, with two workers, as a job array on a real Slurm of this
machine (where its programs are installed), and with the command killed twice by `kill -9`. The seed is the same, so a
submission's draws are, too, and its record has the same verdicts, word by word.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "tests")]

import slurm
from grader.engine.classroom import records
from grader.engine.judge import mutants
from grader.engine.judge.other_answers import WRONG, listed
from grader.engine.lesson import lessons, notebooks, todo_regions
from hostile.corpus import LESSON, Attack
from hostile.posts import ALL

WORKBOOK = [sys.executable, "-P", "-m", "grader.engine.commands.cli"]


def honest(count: int) -> dict[str, str]:
    """Notebooks by student: with more and more done, each third with a wrong answer."""
    source, todos = lessons.source_path(LESSON).read_text("utf-8"), list(lessons.titles(LESSON))
    wrong = listed(LESSON, WRONG)
    found = {}
    for number in range(count):
        text = todo_regions.compose(source, todos[: number % (len(todos) + 1)])
        if number % 3 == 2:
            text = next(iter(mutants.answered(LESSON, wrong[5 * number % len(wrong)]).values()))
        found[f"student-{number:02}"] = notebooks.to_json(notebooks.to_notebook(text, LESSON, released=False))
    return found


def hand_in(folder: Path, texts: dict[str, str], attacks: list[Attack]) -> Path:
    """A class in a folder; between the honest, by name, are the attackers."""
    for student, text in texts.items():
        target = folder / student / "notebooks" / f"{LESSON}.ipynb"
        target.parent.mkdir(parents=True)
        target.write_text(text)
    for number, attack in enumerate(attacks):
        attack.make(folder / f"student-{number % len(texts):02}-{number:03}")
    return folder


def command(class_: Path, out: Path, *options: str) -> list[str]:
    return [*WORKBOOK, "grade", str(class_), "--out", str(out), "--lessons", LESSON, "--seed", "s", *options]


def graded(class_: Path, out: Path, *options: str, env: dict[str, str] | None = None) -> None:
    here = {**(env or os.environ), "PYTHONPATH": str(lessons.COURSE)}
    done = subprocess.run(
        command(class_, out, *options), cwd=lessons.COURSE, env=here, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):  # 1: some could not be graded
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])


def killed_twice(class_: Path, out: Path) -> None:
    """Each time when some submissions more are over."""
    journal = out / "journal.jsonl"
    for kill in (1, 2):
        process = subprocess.Popen(
            command(class_, out, "--jobs", "2"),
            cwd=lessons.COURSE,
            env={**os.environ, "PYTHONPATH": str(lessons.COURSE)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while process.poll() is None and (not journal.exists() or len(journal.read_text().splitlines()) < 3 * kill):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    graded(class_, out, "--jobs", "2")


def on_slurm(class_: Path, out: Path) -> None:
    with slurm.Slurm(out.parent / "slurm") as running:
        graded(class_, out, "--slurm", "--jobs", "2", env=running.env)


def said(out: Path, students: list[str]) -> dict[str, list]:
    """What each is told: marks and messages."""
    found = {name: json.loads((out / "records" / f"{records.file_name(name)}.json").read_text()) for name in students}
    return {name: [record["state"], records.marks(record), record["verdicts"]] for name, record in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--honest", type=int, default=20, help="students who only do their exercises")
    parser.add_argument("--attackers", type=int, default=len(ALL), help="so many of the attacks")
    args = parser.parse_args()
    texts = honest(args.honest)
    attacks = [ALL[number * len(ALL) // args.attackers] for number in range(args.attackers)]
    ways: dict[str, Callable[[Path, Path], None]] = {
        "--jobs 2": lambda class_, out: graded(class_, out, "--jobs", "2"),
        "--slurm": on_slurm,
        "kill -9, twice": killed_twice,
    }
    if slurm.MISSING:
        print(f"without --slurm: {', '.join(slurm.MISSING)} not found")
        del ways["--slurm"]
    different = 0
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        graded(hand_in(root / "alone", texts, []), root / "out-alone", "--jobs", "2")
        right = said(root / "out-alone", list(texts))
        class_ = hand_in(root / "class", texts, attacks)
        print(f"{args.honest} honest students, {len(attacks)} attackers")
        for number, (way, grade) in enumerate(ways.items()):
            began = time.perf_counter()
            grade(class_, root / f"out-{number}")
            seconds = time.perf_counter() - began
            seen = said(root / f"out-{number}", list(texts))
            wrong = [student for student in texts if seen[student] != right[student]]
            print(
                f"{way:15} {seconds:6.0f} s; of the honest as without attackers: {len(texts) - len(wrong)}", flush=True
            )
            for student in wrong:
                print(f"    {student}: {seen[student]}\n    alone: {right[student]}")
            different += len(wrong)
    return min(different, 99)


if __name__ == "__main__":
    sys.exit(main())
