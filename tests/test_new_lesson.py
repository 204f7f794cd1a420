"""A maintainer adds a lesson: source, checks, texts after a pass, other answers, questions, a line of the order."""

import json
import shutil

import pytest

from course_copy import Course

STEM = "99_sums"
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

BUILDS = "a sum over the ranks"


def total_on_rank(code, rank, world, mine):
    return code.total(torch.tensor([float(mine)]))


@todo(1, minutes=5, why="It is the sum that counts.", hints=("Who has what?", "dist.all_reduce", "It works in place."),
      in_place=("mine",))
def test_todo1_total(student):
    numbers = student.draw("numbers").sample(range(100), 3)
    for rank, seen in enumerate(student.call(total_on_rank, world=3, mine=Private(numbers)).evidence):
        expect(seen.tolist() == [sum(numbers)], "the sum is wrong", sum(numbers), seen.tolist(), rank)
'''
AFTER = "## 1\nThe all-reduce adds up what the ranks have, in place.\n"
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
        f"solutions/after/{STEM}.md": AFTER,
    }.items():
        (made.folder / path).write_text(text)
    for path in ("docs/questions.md", "solutions/answers.md"):
        with (made.folder / path).open("a") as file:
            file.write(f"\n## {STEM}\n\n1. One?\n2. Two?\n3. Three?\n")
    order = made.folder / "grader/engine/lesson/lessons.py"
    order.write_text(order.read_text().replace('"resilient_training",', f'"resilient_training",\n    "{STEM}",'))
    assert f"notebooks/{STEM}.ipynb: written" in made.run("build").stdout
    return made


def test_four_files_three_questions_and_a_line_are_a_lesson(course):
    assert "a sum over the ranks" in (course.folder / "README.md").read_text()
    looked = course.run("build", "--check", STEM)
    assert (looked.returncode, looked.stdout) == (0, "nothing is wrong\n"), looked
    assert STEM in course.run("status").stdout
    done = course.run("check", f"{STEM}/1")
    assert done.returncode == 1 and "not done yet" in done.stdout
    assert "Who has what?" in course.run("hint", f"{STEM}/1").stdout
    assert course.run("check", STEM, "--target", "solutions").returncode == 0
    tried = course.run("mutants", STEM)
    assert tried.returncode == 0 and "1/1 wrong answers killed" in tried.stdout, tried.stdout


@pytest.mark.long  # of the course's own lessons, test_release shows the first half; a class takes its time in any case
def test_it_is_released_and_graded_like_the_others(course, tmp_path):
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


@pytest.mark.parametrize(
    ("path", "old", "new", "problem"),
    [
        (f"solutions/notebooks/{STEM}.py", "TODO 1:", "TODO 2:", f"{STEM}: its TODOs are numbered 2, not 1 to 1"),
        (f"grader/test_{STEM}.py", "BUILDS =", "BUILD =", f"grader/test_{STEM}.py: has no BUILDS"),
        (f"grader/test_{STEM}.py", "@todo(1,", "@todo(2,", f"{STEM}/1: a TODO without a check"),
        (f"solutions/after/{STEM}.md", "## 1", "## 2", f"{STEM}/1: solutions/after/{STEM}.md has a text"),
        ("docs/questions.md", "3. Three?", "", f"{STEM}: docs/questions.md has no 1 to 3 under ## {STEM}"),
        (f"solutions/notebooks/{STEM}.py", "mine + 0.0", "mine + 1.0", f"{STEM}/1: the solution fails"),
    ],
)
def test_what_a_new_lesson_lacks_is_said(course, path, old, new, problem):
    file = course.folder / path
    text = file.read_text()
    assert old in text
    try:
        file.write_text(text.replace(old, new))
        looked = course.run("build", "--check", STEM)
        assert looked.returncode == 1 and problem in looked.stdout, looked
    finally:
        file.write_text(text)
