"""From a py:percent source to the student's notebook, by nbgrader and by our build alike."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbgrader.nbgraderformat import MetadataValidator

from grader.engine.lesson import build, lessons, notebooks, parsing, todo_regions

COURSE = Path(__file__).resolve().parents[1]


def cell_header(grade_id: str, **marks: bool | int) -> str:
    nbgrader = {"grade": False, "locked": False, "solution": False, "task": False} | marks
    return "# %% nbgrader=" + json.dumps(nbgrader | {"grade_id": grade_id, "schema_version": 3})


SOURCE = f"""\
# %% [markdown]
# # A notebook
# with words

{cell_header("setup", locked=True)}
import sys

{cell_header("todo_1", solution=True)}
def f(x):
    # TODO 1: Give it back.
    ### BEGIN SOLUTION
    return x
    ### END SOLUTION

# %%
# %matplotlib inline
print(f(1))

{cell_header("test_1", grade=True, locked=True, points=1)}
check("01_collectives/1")
"""


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course with one notebook."""
    monkeypatch.setattr(lessons, "COURSE", tmp_path)
    source = tmp_path / "solutions" / "notebooks" / "01_collectives.py"
    source.parent.mkdir(parents=True)
    source.write_text(SOURCE)
    build.build()
    return tmp_path


def student_notebook(course: Path) -> nbformat.NotebookNode:
    return nbformat.read(course / "notebooks" / "01_collectives.ipynb", as_version=4)


def test_the_release_holds_the_start_and_locks_what_is_the_courses():
    released = notebooks.to_notebook(SOURCE, "01_collectives", released=True)
    text, setup, todo, _, test = released.cells
    assert text.source == "# A notebook\nwith words"
    assert 'raise NotImplementedError("TODO 1")' in todo.source
    assert "return x" not in notebooks.to_json(released)
    assert (setup.metadata.editable, test.metadata.editable) == (False, False)
    assert todo.metadata.deletable is False and "editable" not in todo.metadata
    assert [cell.id for cell in (setup, todo, test)] == ["setup", "todo_1", "test_1"]
    assert released.metadata.kernelspec.name == "python3"


def test_the_complete_notebook_keeps_its_regions():
    complete = notebooks.to_notebook(SOURCE, "01_collectives", released=False)
    assert todo_regions.compose(complete.cells[2].source, [1]).endswith("return x")


@pytest.mark.parametrize("released", [True, False])
def test_the_same_source_gives_the_same_bytes(released):
    first, second = (notebooks.to_json(notebooks.to_notebook(SOURCE, "x", released)) for _ in range(2))
    assert first == second
    notebook = nbformat.reads(first, as_version=4)
    nbformat.validate(notebook)
    MetadataValidator().validate_nb(notebook)
    assert notebooks.to_json(notebook) == first


@pytest.mark.parametrize(
    "wrong",
    [
        SOURCE.replace('"solution": true', '"solution": false'),
        SOURCE.replace("    ### BEGIN SOLUTION\n    return x\n    ### END SOLUTION\n", "").replace("# TODO 1:", "#"),
    ],
)
def test_a_region_and_nbgraders_mark_go_together(wrong):
    with pytest.raises(todo_regions.SourceError, match='cell 3: .*"solution": true'):
        notebooks.to_notebook(wrong, "x", released=True)


def test_units_are_the_students_cells_in_order(course):
    todo, own = lessons.units("01_collectives")
    assert todo.name == "notebooks/01_collectives.ipynb, cell 3"
    assert todo_regions.compose(todo.source) == todo.text
    assert own.name.endswith("cell 4") and own.text == "pass\nprint(f(1))"


def test_a_students_new_cell_is_graded_in_its_place_and_its_test_cell_is_not(course):
    notebook = student_notebook(course)
    fresh = [nbformat.v4.new_code_cell(text) for text in ("y = 2", "%%bash\nls", "!pip list\nz = 3", "%%time\nw = 4")]
    notebook.cells[2:2] = fresh
    notebook.cells[-1].source = "pass  # cheating"
    nbformat.write(notebook, course / "notebooks" / "01_collectives.ipynb")
    units = lessons.units("01_collectives")
    assert [unit.text.split("\n")[0] for unit in units] == ["y = 2", "pass", "pass", "def f(x):", "pass"]
    assert [bool(unit.source) for unit in units] == [False, False, False, True, True]
    assert [unit.name.split()[-1] for unit in units] == ["3", "5", "6", "7", "8"]


def test_the_percent_form_of_a_notebook_can_be_graded_too(course):
    todo, _ = lessons.units("01_collectives", "solutions")
    assert todo.name == "notebooks/01_collectives.ipynb, cell 3"
    assert todo.text == todo.source

    solved = course / "solved" / "notebooks" / "01_collectives.py"
    solved.parent.mkdir(parents=True)
    solved.write_text(todo_regions.compose(SOURCE, [1]))
    todo, _ = lessons.units("01_collectives", "solved")
    assert todo.text == todo_regions.compose(todo.source, [1])


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"cells": 3}', '{"cells": [3], "nbformat": 4}', "<html>"])
def test_an_unreadable_notebook_is_one_clear_line(course, text):
    (course / "notebooks" / "01_collectives.ipynb").write_text(text)
    with pytest.raises(ValueError, match=r"01_collectives.ipynb: not a notebook") as caught:
        lessons.units("01_collectives")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = 7\n% 2", "x = 7\n% 2"),
        ("x = (7\n% 2)", "x = (7\n% 2)"),
        ("if x:\n    %time f()\n    y = 1", "if x:\n    pass\n    y = 1"),
        ("f?\nfiles = !ls\nn = %who_ls", "pass\npass\npass"),
        ("if broken(\nx = 1", "if broken(\nx = 1"),
    ],
)
def test_magics_leave_and_lines_keep_their_number(code, expected):
    assert parsing.without_magics(code) == expected


def test_the_courses_notebooks_validate_and_test_every_todo():
    for path in sorted((COURSE / "solutions" / "notebooks").glob("*.py")):
        source = path.read_text("utf-8")
        released = notebooks.to_notebook(source, path.stem, released=True)
        MetadataValidator().validate_nb(released)
        tests = [cell.source for cell in released.cells if cell.metadata.get("nbgrader", {}).get("grade")]
        assert tests == [f'check("{path.stem}/{todo}")' for todo in todo_regions.titles(source)]
        first = next(cell for cell in released.cells if cell.cell_type == "code")
        assert "from grader import check" in first.source


@pytest.mark.long  # as all of nbgrader's own commands
def test_nbgrader_itself_makes_the_same_release(course):
    """The real notebook, `nbgrader generate_assignment` and the shipped configuration."""
    shutil.copy(COURSE / "nbgrader_config.py", course)
    os.symlink(COURSE / "grader", course / "grader")
    shutil.copy(COURSE / "solutions" / "notebooks" / "01_collectives.py", course / "solutions" / "notebooks")
    build.build()
    subprocess.run(
        [sys.executable, "-m", "nbgrader", "generate_assignment", "01_collectives"],
        cwd=course,
        check=True,
        capture_output=True,
        timeout=120,
    )
    release = course / ".workbook" / "nbgrader" / "release" / "01_collectives" / "01_collectives.ipynb"
    theirs, ours = nbformat.read(release, as_version=4), student_notebook(course)
    assert [cell.source for cell in theirs.cells] == [cell.source for cell in ours.cells]
    assert [cell.metadata for cell in theirs.cells] == [cell.metadata for cell in ours.cells]
    litter = {path.name for path in course.iterdir()}
    assert litter <= {".workbook", "grader", "nbgrader_config.py", "notebooks", "solutions"}


@pytest.mark.parametrize("lesson, folder", [("11_when_it_hangs", "story"), ("12_why_it_is_slow", "slow")])
def test_each_question_comes_after_the_logs_that_it_asks_about(lesson, folder):
    text = lessons.source_path(lesson).read_text("utf-8")
    for story in range(1, 11):
        launched = re.search(rf'launch\(\s*f?"{folder}_{story}[_"]', text)
        assert launched and launched.start() < text.index(f"def story_{story}("), story
