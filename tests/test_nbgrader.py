"""A class of three through nbgrader, from the course's sources to marks, with the configuration as shipped; and an
honest student's marks, in whatever way they are given."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell
from nbgrader.api import Gradebook

from course_copy import Course
from grader.engine.judge.other_answers import WRONG, listed
from grader.engine.lesson import lessons, todo_regions
from student_notebook import LESSON, Kernel, blank, cell, save

# Each cell that runs after this one warns on stderr, the test cell too.
WARN = (
    "import warnings\nget_ipython().events.register('pre_run_cell', lambda _: warnings.warn('from torch', UserWarning))"
)


def cheat():
    """Nothing done, the test cell deleted, and `check` replaced after the set-up."""
    notebook = blank()
    notebook.cells.remove(cell(notebook, "test_1"))
    notebook.cells.insert(3, new_code_cell("def check(name):\n    print('fooled')"))
    return notebook


def honest():
    """TODO 4 wrong, and so 6 cannot be checked; 8 not begun; the rest right. And warnings."""
    wrong = next(answer.body for answer in listed(LESSON, WRONG) if answer.todo == 4)
    text = todo_regions.compose(lessons.source_path(LESSON).read_text("utf-8"), {1, 2, 3, 5, 6, 7, 9}, {4: wrong})
    notebook = blank()
    for own in lessons.read_percent(text, LESSON).cells:
        cell(notebook, own.id).source = own.source
    notebook.cells.insert(3, new_code_cell(WARN))
    return notebook


HONEST = {1: 1, 2: 1, 3: 1, 4: 0, 5: 1, 6: 0, 7: 1, 8: 0, 9: 1}
CLASS = {"honest": honest, "nothing": blank, "cheat": cheat}


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
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *args],
        cwd=course,
        env=environment,
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


def test_before_build_nbgrader_is_told_to_build(tmp_path):
    course = Course(tmp_path / "course")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", LESSON]
    done = subprocess.run(command, cwd=course.folder, env=environment, text=True, capture_output=True, timeout=600)
    told = "nbgrader_config.py: there is no .workbook/nbgrader/source; run ./workbook build first"
    assert done.returncode and done.stderr.splitlines().count(told) == 1, done.stderr


def graded(folder, student):
    """The mark, the test cell's outputs, and what of all that waits for a mark by hand."""
    with Gradebook(f"sqlite:///{folder / 'gradebook.db'}") as book:
        submission = book.find_submission(LESSON, student)
        marks = submission.score, submission.max_score, submission.needs_manual_grade
    notebook = nbformat.read(folder / "autograded" / student / LESSON / f"{LESSON}.ipynb", as_version=4)
    test = next(c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == "test_1")
    return marks, test.outputs


def test_a_right_answer_has_its_mark_though_there_are_warnings(folder):
    marks, outputs = graded(folder, "honest")
    assert marks == (sum(HONEST.values()), 9, False), outputs
    assert len(outputs) == 1  # the warning was taken away
    assert outputs[0].text.startswith("✓ 01_collectives/1")


def test_a_blank_answer_has_none_and_the_student_is_told_why(folder):
    marks, outputs = graded(folder, "nothing")
    assert marks == (0, 9, False)
    (error,) = outputs
    assert (
        error.ename == "NotRight"
        and "TODO 1 is not done yet" in error.evalue
        and "Traceback" not in "".join(error.traceback)
    )


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
        assert {row["student_id"]: float(row["score"]) for row in csv.DictReader(table)} == {
            "honest": 6,
            "nothing": 0,
            "cheat": 9,
        }


def by_nbgrader(folder):
    with Gradebook(f"sqlite:///{folder / 'gradebook.db'}") as book:
        (notebook,) = book.find_submission(LESSON, "honest").notebooks
        return {int(mark.name.removeprefix("test_")): mark.score for mark in notebook.grades}


def by_the_cells(folder):
    """As the student sees them, in a kernel of the course."""
    course, marks = folder.parents[1], {}
    save(honest(), course / "notebooks" / f"{LESSON}.ipynb")
    with Kernel(course / "notebooks") as kernel:
        for own in honest().cells:
            shown = kernel.run(own) if own.cell_type == "code" else None
            if shown and own.id.startswith("test_"):
                marks[int(own.id.removeprefix("test_"))] = 0 if shown.error else 1
    return marks


def by_pytest(folder):
    target = folder / "target"
    save(honest(), target / "notebooks" / f"{LESSON}.ipynb")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "grader",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        LESSON,
        "--target",
        str(target),
        "--json",
        str(target / "marks.json"),
    ]
    subprocess.run(command, cwd=lessons.COURSE, capture_output=True, timeout=300, check=False)
    return {mark["todo"]: mark["points"] for mark in json.loads((target / "marks.json").read_text())}


def by_grade(folder):
    course = Course(folder / "instructor")
    save(honest(), folder / "class" / "honest" / "notebooks" / f"{LESSON}.ipynb")
    done = course.run("grade", str(folder / "class"), "--out", str(folder / "out"), "--lessons", LESSON)
    assert done.returncode == 0, done.stderr
    record = json.loads((folder / "out" / "records" / "honest.json").read_text())
    return {mark["todo"]: mark["points"] for mark in record["verdicts"]}


@pytest.mark.parametrize("way", [by_nbgrader, by_the_cells, by_pytest, by_grade])
def test_an_honest_students_marks_are_the_same_whoever_asks(folder, way):
    assert way(folder) == HONEST
