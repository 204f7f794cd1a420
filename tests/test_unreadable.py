"""How a verdict reports code that is missing, or not Python."""

import pytest
from nbformat.v4 import new_code_cell

from course_copy import Course
from grader.engine.judge.judge import Judge, no_python
from grader.engine.lesson import lessons
from student_notebook import save, solved

LESSON = "02_data_parallel"


def verdict_on_2(runner, folder, notebook):
    save(notebook, folder / "notebooks" / f"{LESSON}.ipynb")
    others = {*lessons.titles(LESSON)} - {2}
    return Judge(runner, LESSON, str(folder), presumed=others, once=True).verdict(2)


def cell_of(notebook, words):
    return next(cell for cell in notebook.cells if cell.source.startswith(words))


def test_a_function_with_another_name_is_told_and_no_given_cell_blamed(runner, tmp_path):
    notebook = solved(LESSON)
    mine = cell_of(notebook, "def broadcast_state(")
    mine.source = mine.source.replace("broadcast_state(", "broadcast_states(")
    found = verdict_on_2(runner, tmp_path, notebook)
    assert found.message.startswith("broadcast_state is not defined; there is a broadcast_states"), found.message
    assert found.where.startswith("broadcast_states: “def broadcast_states(") and "run_on_ranks" not in found.message
    assert found.hint.startswith("`./workbook diff")


def test_a_cell_that_is_gone_is_told_even_where_a_cell_of_ones_own_fails(runner, tmp_path):
    notebook = solved(LESSON)
    notebook.cells.remove(cell_of(notebook, "def broadcast_state("))
    notebook.cells.append(new_code_cell("never_heard_of"))
    found = verdict_on_2(runner, tmp_path, notebook)
    assert found.message.startswith("broadcast_state is not defined: its cell is gone"), found.message


def test_a_cell_that_does_not_run_is_still_blamed_for_what_it_defines(runner, tmp_path):
    notebook = solved(LESSON)
    mine = cell_of(notebook, "def broadcast_state(")
    mine.source = mine.source.replace(" -> None", " -> Nothing")
    found = verdict_on_2(runner, tmp_path, notebook)
    assert "does not run: NameError: name 'Nothing' is not defined" in found.message, found.message


def test_a_function_of_a_script_with_another_name_is_told(runner, tmp_path):
    script = tmp_path / "train" / "ddp_training.py"
    script.parent.mkdir()
    source = lessons.source_path("ddp_training").read_text("utf-8")
    assert source.count("def make_samplers(") == 1
    script.write_text(source.replace("def make_samplers(", "def make_sampler("))
    others = {*lessons.titles("ddp_training")} - {4}
    found = Judge(runner, "ddp_training", str(tmp_path), presumed=others, once=True).verdict(4)
    assert "make_samplers is not defined; there is a make_sampler" in found.message, found.message


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ("    print(rank)", "      print(rank)", "further to the right"),
        ("    print(rank)", "  print(rank)", "in which no line above begins"),
        ("    x = 1\n    print(rank)", "    # nothing", "at least one line of code below it"),
        ("    print(rank)", "\tprint(rank)", "Tabs and spaces are mixed"),
        ("    print(rank)", "    print(rank", "Is a bracket, a quote or a colon missing"),
    ],
)
def test_what_is_no_python_gets_a_hint_for_what_python_says(old, new, hint):
    text = "def f(rank):\n    x = 1\n    print(rank)\n"
    assert text.count(old) == 1
    found = no_python("ddp_training", [lessons.Unit("train/ddp_training.py", text.replace(old, new), text)])
    assert hint in found.hint, (found.message, found.hint)


def test_a_cell_that_is_no_python_gets_the_same_hint(runner, tmp_path):
    notebook = solved(LESSON)
    mine = cell_of(notebook, "def broadcast_state(")
    mine.source += "\n        x = 1"
    mine.source = mine.source.replace("\n    for ", "\n      for ")
    found = verdict_on_2(runner, tmp_path, notebook)
    assert "does not run: IndentationError: unexpected indent" in found.message and "further to" in found.hint, found


def test_a_notebook_that_is_cut_off_is_told_to_reset(runner, tmp_path):
    file = tmp_path / "notebooks" / f"{LESSON}.ipynb"
    save(solved(LESSON), file)
    file.write_text(file.read_text()[:5000])
    found = Judge(runner, LESSON, str(tmp_path)).verdict(2)
    assert "not a notebook that can be read" in found.message
    assert found.hint.startswith(f"`./workbook reset {LESSON}` brings the original back"), found.hint


def test_submit_says_what_cannot_be_judged(tmp_path):
    course = Course(tmp_path / "course")
    script, notebook = course.script("ddp_training"), course.folder / "notebooks" / f"{LESSON}.ipynb"
    script.write_text("  import os\n" + script.read_text())
    notebook.write_text(notebook.read_text()[:5000])
    other = course.folder / "notebooks" / "01_collectives.ipynb"
    other.write_text(other.read_text().replace("import torch.distributed as dist", "import torch.distributed as"))
    said = course.run("submit").stdout
    assert "line 1 is not Python, so nothing in it is judged: IndentationError: unexpected indent)" in said
    assert f"{LESSON}.ipynb (warning: it cannot be read, so nothing in it is judged; ./workbook reset" in said
    assert "the cell “import math” is not Python: SyntaxError" in said, said
    assert "train/fsdp_training.py (warning: as it was given" in said and "hand in" in said
