"""python tests/hostile/table.py [PART OF A NAME]…: the corpus, attack by attack: what it deserves, what it got, how long
it took, what the worker held of memory at most, what stopped it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from nbformat import from_dict
from nbgrader.api import Gradebook

from course_copy import Course
from grader.engine.walls import sandbox
from hostile.posts import ALL
from hostile.corpus import CHECK_REDEFINED, LESSON, TRANSFORMER, notebook
from hostile.trials import said, trials
from student_notebook import save


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only attacks whose name holds one of these")
    parser.add_argument("--users", action="store_true", help="behind walls between users instead of bubblewrap")
    parser.add_argument("--say", action="store_true", help="also what is said of it")
    parser.add_argument("--nbgrader", action="store_true", help="instead: what nbgrader gives for the two that fool it")
    args = parser.parse_args()
    if args.nbgrader:
        return nbgrader()
    chosen = [
        attack
        for attack in ALL
        if (not args.names or any(part in attack.name for part in args.names)) and (attack.users or not args.users)
    ]
    walls = sandbox.USERS if args.users else sandbox.BUBBLEWRAP
    bad = 0
    print(f"{'attack':50} {'deserved':>8} {'given':>5} {'s':>5} {'MiB':>5}  guard")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)  # other users must get through
        for trial in trials(Path(folder) / "class", walls, chosen):
            attack = trial.attack
            print(
                f"{attack.name:50} {attack.marks:8} {trial.marks:5g} {trial.seconds:5.1f} {trial.peak >> 20:5} "
                f" {attack.guard}",
                flush=True,
            )
            if args.say:
                print(f"    {said(trial.record)}")
            for problem in trial.wrong:
                print(f"    WRONG: {problem}", flush=True)
            bad += bool(trial.wrong)
    return bad


def nbgrader() -> int:
    """`nbgrader autograde` on a notebook with nothing done, in which one cell was added."""
    submitted = {"check redefined": CHECK_REDEFINED, "an input transformer": TRANSFORMER}
    with tempfile.TemporaryDirectory() as folder:
        course = Course(Path(folder) / "course")
        course.run("build")
        root = course.folder / ".workbook" / "nbgrader"
        for number, cell in enumerate(submitted.values()):
            save(
                from_dict(notebook("return tensor", cell)),
                root / "submitted" / f"student-{number}" / LESSON / f"{LESSON}.ipynb",
            )
        for command in (["generate_assignment", LESSON], ["autograde", LESSON, "--create"]):
            subprocess.run(
                [sys.executable, "-m", "nbgrader", *command],
                cwd=course.folder,
                capture_output=True,
                check=True,
                timeout=600,
            )
        with Gradebook(f"sqlite:///{root / 'gradebook.db'}") as book:
            for number, name in enumerate(submitted):
                given = book.find_submission(LESSON, f"student-{number}")
                print(f"{name:50} deserved 0, nbgrader gives {given.score:g} of {given.max_score:g}")
    return 0


if __name__ == "__main__":
    sys.exit(min(main(), 99))
