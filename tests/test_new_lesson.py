"""A maintainer adds a lesson: one source, one file of checks, one of other answers, and nothing else by hand."""

import json
import shutil

import pytest

from course_copy import Course

STEM = "11_when_it_hangs"  # in the order of the lessons, and not there yet
CELL = (
    '# %% nbgrader={"grade": false, "grade_id": "todo_1", "locked": false, "schema_version": 3, "solution": true,'
    ' "task": false}'
)
SOURCE = f"""\
# %% [markdown]
# # A sum over the ranks

# %%
import torch.distributed as dist

{CELL}
def total(mine):
    # TODO 1: Add up what all ranks have.
    ### BEGIN SOLUTION
    dist.all_reduce(mine)
    return mine + 0.0
    ### END SOLUTION
"""
CHECKS = '''\
"""Checks of the lesson."""

import torch

from grader.kit import Private, expect, todo


def total_on_rank(code, rank, world, mine):
    return code.total(torch.tensor([float(mine)]))


@todo(1, minutes=5, why="It is the sum that counts.", hints=("Who has what?", "dist.all_reduce", "It works in place."))
def test_todo1_total(student):
    numbers = student.draw("numbers").sample(range(100), 3)
    for rank, seen in enumerate(student.call(total_on_rank, world=3, mine=Private(numbers)).evidence):
        expect(seen.tolist() == [sum(numbers)], "the sum is wrong", sum(numbers), seen.tolist(), rank)
'''
ANSWERS = """\
from grader.kit import Answer

WRONG = [Answer(1, "the largest", swap=("dist.all_reduce(mine)", "dist.all_reduce(mine, dist.ReduceOp.MAX)"))]
RIGHT = [Answer(1, "one by one", "dist.barrier()\\ndist.all_reduce(mine)\\nreturn mine")]
"""


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    made = Course(tmp_path_factory.mktemp("course") / "course")
    for path, text in {
        f"solutions/notebooks/{STEM}.py": SOURCE,
        f"grader/test_{STEM}.py": CHECKS,
        f"grader/mutants/{STEM}.py": ANSWERS,
    }.items():
        (made.folder / path).write_text(text)
    return made


def test_three_files_are_a_lesson(course, tmp_path):
    assert f"notebooks/{STEM}.ipynb: written" in course.run("build").stdout
    assert STEM in course.run("status").stdout
    done = course.run("check", f"{STEM}/1")
    assert done.returncode == 1 and "not done yet" in done.stdout
    assert "Who has what?" in course.run("hint", f"{STEM}/1").stdout
    assert course.run("check", STEM, "--target", "solutions").returncode == 0
    tried = course.run("mutants", STEM)
    assert tried.returncode == 0 and "1/1 wrong answers killed" in tried.stdout, tried.stdout

    assert course.run("release", str(tmp_path / "students"), "--with", STEM).returncode == 0
    assert (tmp_path / "students" / "notebooks" / f"{STEM}.ipynb").is_file()

    handed_in = tmp_path / "class" / "ann" / "notebooks"
    handed_in.mkdir(parents=True)
    notebook = json.loads((course.folder / "notebooks" / f"{STEM}.ipynb").read_text())
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"]).replace(
            'raise NotImplementedError("TODO 1")', "dist.all_reduce(mine)\n    return mine"
        )
    (handed_in / f"{STEM}.ipynb").write_text(json.dumps(notebook))
    done = course.run("grade", str(tmp_path / "class"), "--out", str(tmp_path / "marks"), "--lessons", STEM)
    assert done.returncode == 0 and "ann: 1 of 1" in done.stdout, done
    shutil.rmtree(tmp_path / "marks")
