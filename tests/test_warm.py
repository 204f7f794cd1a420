"""A server that has judged other lessons judges like one that has just started."""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from course_copy import Course, Student
from grader.engine.judge.judge import checked_lessons
from grader.engine.lesson import lessons

LESSONS = [lesson for lesson in checked_lessons() if not lessons.lacking(lesson)]
ORDERS = {
    "as taught": LESSONS,
    "backwards": LESSONS[::-1],
    "shuffled": random.Random("warm").sample(LESSONS, len(LESSONS)),
}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return Course(tmp_path_factory.mktemp("course") / "course")


@pytest.fixture
def student(course):
    with tempfile.TemporaryDirectory(prefix="wb-") as temporary, Student(course, Path(temporary)) as student:
        yield student


def verdicts(student: Student, what: str) -> list[dict]:
    """The verdicts on solutions."""
    file = student.temporary / "verdicts.json"
    done = student.run("check", what, "--target", "solutions", "--json", str(file), limit=1200)
    assert done.returncode == 0, (what, done.stdout[-2000:], done.stderr[-2000:])
    return json.loads(file.read_text())


def test_a_reference_finds_what_an_earlier_lesson_must_not(student):
    """The server begins with 01, from which the pipeline's module is withheld; a reference of hybrid's imports it."""
    warm = [verdicts(student, what) for what in ("01_collectives/1", "hybrid_training/8")]
    assert len(student.servers()) == 1 and all(verdict["status"] == "pass" for (verdict,) in warm), warm


@pytest.mark.long
@pytest.mark.drawn
@pytest.mark.parametrize("lesson", LESSONS)
def test_cold(student, lesson):
    """What the warm ones below are compared with."""
    assert {verdict["status"] for verdict in verdicts(student, lesson)} == {"pass"}


@pytest.mark.long
@pytest.mark.drawn
@pytest.mark.parametrize("order", ORDERS)
def test_all_lessons_one_after_the_other(student, order):
    for lesson in ORDERS[order]:
        found = verdicts(student, lesson)
        assert [verdict["todo"] for verdict in found] == list(lessons.titles(lesson))
        assert all(verdict["status"] == "pass" and not verdict["message"] for verdict in found), (order, lesson, found)
    assert len(student.servers()) == 1


LIBRARY = """
import json, sys
from grader.engine.inside import rank
rank.load_plain_library()
for lesson in sys.argv[1:]:
    rank.load_library(lesson)
real = {name: module for name, module in sys.modules.items() if not isinstance(module, rank.Withheld)}
mine = {name: module for name, module in real.items() if name.startswith("utils.")}
old = [  # of modules that have been unloaded since
    f"{name}.{key}"
    for name, module in mine.items()
    for key, value in vars(module).items()
    if isinstance(value, type) and value.__module__ in mine
    and getattr(mine[value.__module__], value.__qualname__, value) is not value
]
print(json.dumps([sorted(mine), old]))
"""


def library(*served: str) -> list[list[str]]:
    """The modules of the library in a server that has served these lessons; and classes in them that are outdated."""
    told = subprocess.run(
        [sys.executable, "-c", LIBRARY, *served], capture_output=True, text=True, cwd=lessons.COURSE, timeout=300
    )
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


@pytest.mark.parametrize("lesson", ["03_zero", "11_when_it_hangs"])
def test_the_library_is_the_lessons_whatever_was_served_before(lesson):
    fresh = library(lesson)
    assert fresh[0] and not fresh[1]
    assert library("hybrid_training", "02_data_parallel", "11_when_it_hangs", "10_strategy", lesson) == fresh
