"""A class of three through nbgrader, from the course's sources to marks, with the configuration as shipped."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell
from nbgrader.api import Gradebook

from course_copy import Course
from student_notebook import LESSON, blank, cell, filled, save

# Each cell that runs after this one warns on stderr, the test cell too.
WARN = "import warnings\nget_ipython().events.register('pre_run_cell', lambda _: warnings.warn('from torch', UserWarning))"


def cheat():
    """Nothing done, the test cell deleted, and `check` replaced after the set-up."""
    notebook = blank()
    notebook.cells.remove(cell(notebook, "test_1"))
    notebook.cells.insert(3, new_code_cell("def check(name):\n    print('fooled')"))
    return notebook


def noisy():
    """All done, and warnings."""
    notebook = filled()
    notebook.cells.insert(3, new_code_cell(WARN))
    return notebook


CLASS = {"solved": noisy, "nothing": blank, "cheat": cheat}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """nbgrader's folder, with the class graded."""
    course = Course(tmp_path_factory.mktemp("nbgrader") / "course")
    assert course.run("build").returncode == 0
    root = course.folder / ".workbook" / "nbgrader"
    nbgrader(course.folder, "generate_assignment", LESSON)
    for student, notebook in CLASS.items():
        save(notebook(), root / "submitted" / student / LESSON / f"{LESSON}.ipynb")
    nbgrader(course.folder, "autograde", LESSON, "--create")
    nbgrader(course.folder, "generate_feedback", LESSON)
    nbgrader(course.folder, "export", "--to", str(root / "grades.csv"))
    return root


def nbgrader(course: Path, *args: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-m", "nbgrader", *args], cwd=course, env=environment, text=True,
                          capture_output=True, stdin=subprocess.DEVNULL, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr


def graded(folder, student):
    """The mark, the test cell's outputs, and what of all that waits for a mark by hand."""
    with Gradebook(f"sqlite:///{folder / 'gradebook.db'}") as book:
        submission = book.find_submission(LESSON, student)
        marks = submission.score, submission.max_score, submission.needs_manual_grade
    notebook = nbformat.read(folder / "autograded" / student / LESSON / f"{LESSON}.ipynb", as_version=4)
    test = next(c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == "test_1")
    return marks, test.outputs


def test_a_right_answer_has_its_mark_though_there_are_warnings(folder):
    marks, outputs = graded(folder, "solved")
    assert marks == (1, 9, False), outputs  # TODO 1 of nine
    assert len(outputs) == 1  # the warning was taken away
    assert outputs[0].text.startswith("✓ 01_collectives/1")


def test_a_blank_answer_has_none_and_the_student_is_told_why(folder):
    marks, outputs = graded(folder, "nothing")
    assert marks == (0, 9, False)
    (error,) = outputs
    assert error.ename == "NotRight" and "TODO 1 is not done yet" in error.evalue and "Traceback" not in "".join(error.traceback)


def test_nbgrader_can_be_fooled(folder):
    """The test cell comes back, but it runs beside the student's code, which has replaced what it calls.

    nbgrader gives the mark. That is why its marks are for practice only.
    """
    marks, outputs = graded(folder, "cheat")
    assert [out.get("text") for out in outputs] == ["fooled\n"]
    assert marks == (9, 9, False)


def test_the_rest_of_nbgraders_loop(folder):
    page = (folder / "feedback" / "nothing" / LESSON / f"{LESSON}.html").read_text("utf-8")
    assert "TODO 1 is not done yet" in page
    with (folder / "grades.csv").open() as table:
        assert {row["student_id"]: float(row["score"]) for row in csv.DictReader(table)} == {"solved": 1, "nothing": 0, "cheat": 9}
