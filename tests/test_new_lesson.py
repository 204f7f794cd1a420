"""A maintainer adds a notebook and a script: of each a source, a folder with checks, texts and answers, and a line."""

import json
import shutil

import pytest

from course_copy import Course

STEM, SCRIPT = "99_sums", "sums_training"
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
WITH_MAIN = """\
\"\"\"Add up what all ranks have.\"\"\"

import sys
from pathlib import Path

import torch
import torch.distributed as dist

# The course's folder is the nearest one above this file that holds utils/.
sys.path.insert(0, str(next(p for p in Path(__file__).resolve().parents if (p / "utils").is_dir())))

from utils.arguments import training_parser
from utils.distributed import cleanup, launch_environment, print0
from utils.job import prepare


def total(mine):
    # TODO 1: Add up what all ranks have.
    ### BEGIN SOLUTION
    dist.all_reduce(mine)
    return mine + 0.0
    ### STUDENT
    # return mine
    ### END SOLUTION


def main(argv=None):
    args = training_parser("sums_training").parse_args(argv)
    prepare(args)
    launch_environment()
    dist.init_process_group("gloo")
    print0(total(torch.ones(1)).item())
    dist.barrier()  # as given, nothing else keeps a rank from leaving while the other still connects
    cleanup()


if __name__ == "__main__":
    main()
"""
CHECKS = '''\
"""Checks of the lesson."""

from grader.kit import Private, expect, todo

from .ranks import total_on_rank


@todo(1, in_place=("mine",))
def test_todo1_total(student):
    numbers = student.draw("numbers").sample(range(100), 3)
    for rank, seen in enumerate(student.call(total_on_rank, world=3, mine=Private(numbers)).evidence):
        expect(seen.tolist() == [sum(numbers)], "the sum is wrong", sum(numbers), seen.tolist(), rank)
'''
RANKS = '''\
"""What runs beside the student's code."""

import torch


def total_on_rank(code, rank, world, mine):
    return code.total(torch.tensor([float(mine)]))
'''
TEXTS = """\
# the lesson

a sum over the ranks

## TODO 1

Minutes: 5

### Why

It is the sum that counts.

### Hints

1. Who has what?
2. dist.all_reduce
3. It works in place.

### After a pass

The all-reduce adds up what the ranks have, in place.

## Questions

1. One?
2. Two?
3. Three?

## Answers

1. One.
2. Two.
3. Three.
"""
ANSWERS = """\
from grader.kit import Answer

WRONG = [Answer(1, "the largest", swap=("dist.all_reduce(mine)", "dist.all_reduce(mine, dist.ReduceOp.MAX)"))]
RIGHT = [Answer(1, "one by one", "dist.barrier()\\ndist.all_reduce(mine)\\nreturn mine")]
"""


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    made = Course(tmp_path_factory.mktemp("course") / "course")
    for lesson, source in ((f"notebooks/{STEM}", SOURCE), (f"train/{SCRIPT}", WITH_MAIN)):
        stem = lesson.partition("/")[2]
        for path, text in {
            f"solutions/{lesson}.py": source,
            f"grader/lessons/{stem}/test_sum.py": CHECKS,
            f"grader/lessons/{stem}/ranks.py": RANKS,
            f"grader/lessons/{stem}/texts.md": TEXTS,
            f"grader/lessons/{stem}/answers/sum.py": ANSWERS,
        }.items():
            (made.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (made.folder / path).write_text(text)
    order = made.folder / "grader/lessons/course.toml"
    lines = f'"resilient_training",\n    "{STEM}",\n    "{SCRIPT}",'
    order.write_text(order.read_text().replace('"resilient_training",', lines, 1))
    built = made.run("build").stdout
    assert f"notebooks/{STEM}.ipynb: written" in built and f"train/{SCRIPT}.py: written" in built, built
    return made


@pytest.mark.long
def test_a_source_a_folder_and_a_line_are_a_lesson(course):
    assert "a sum over the ranks" in (course.folder / "README.md").read_text()
    assert f"## {STEM}\n\n1. One?" in (course.folder / "docs/questions.md").read_text()
    looked = course.run("build", "--check", STEM, SCRIPT)  # it judges the starts and the solutions
    assert (looked.returncode, looked.stdout) == (0, "nothing is wrong\n"), looked
    listed = course.run("status").stdout
    assert STEM in listed and SCRIPT in listed
    for lesson in (STEM, SCRIPT):
        done = course.run("check", f"{lesson}/1")
        assert done.returncode == 1 and "not done yet" in done.stdout, done
    assert "Who has what?" in course.run("hint", f"{STEM}/1").stdout
    tried = course.run("mutants", STEM, SCRIPT)
    assert tried.returncode == 0 and "2/2 wrong answers killed" in tried.stdout, tried.stdout


def test_a_script_has_options_and_batch_files(course):
    """It runs as given, with the options of all scripts, and gets the batch files of ddp_training, solved."""
    for ending in (".sbatch", ".pbs"):
        text = (course.folder / "sbatch" / f"{SCRIPT}{ending}").read_text()
        assert f"train/{SCRIPT}.py" in text and "TODO" not in text
    done = course.run("run", SCRIPT, "--nproc", "2", "--", "--device", "cpu")
    assert done.returncode == 0 and "1.0" in done.stdout.splitlines(), done.stdout + done.stderr


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
    "faults",  # each kind is looked for only where none of the kinds before it was found
    [
        [(f"solutions/notebooks/{STEM}.py", "TODO 1:", "TODO 2:", f"{STEM}: its TODOs are numbered 2, not 1 to 1")],
        [(f"grader/lessons/{STEM}/texts.md", "3. It works", "It works", f"{STEM}/texts.md: TODO 1: has 2 hints")],
        [(f"grader/lessons/{STEM}/test_sum.py", "@todo(1,", "@todo(2,", f"{STEM}/1: a TODO without a check")],
        [(f"solutions/notebooks/{STEM}.py", "mine + 0.0", "mine + 1.0", f"{STEM}/1: the solution fails")],
    ],
    ids=["numbers", "words", "checks", "solution"],
)
def test_what_a_new_lesson_lacks_is_said(course, faults):
    kept = {path: (course.folder / path).read_text() for path, *_ in faults}
    try:
        for path, old, new, _ in faults:
            assert old in kept[path]
            (course.folder / path).write_text(kept[path].replace(old, new))
        looked = course.run("build", "--check", STEM)
        assert looked.returncode == 1 and all(problem in looked.stdout for *_, problem in faults), looked
    finally:
        for path, text in kept.items():
            (course.folder / path).write_text(text)
