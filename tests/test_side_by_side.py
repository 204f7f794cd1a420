"""Checks at the same time: the same verdicts in the same order, and nothing left."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from course_copy import Course, Student
from grader.engine.judge import side_by_side
from grader.engine.judge.side_by_side import SideBySide
from grader.engine.lesson.lessons import COURSE, source_root
from grader.engine.ranks.backends import GLOO

LESSON, TODOS = "ddp_training", [("ddp_training", 1), ("ddp_training", 2), ("ddp_training", 3)]
HERE = "    return min(len(os.sched_getaffinity(0)) // RANKS, MOST)\n"


def said(course: Course, count: int) -> str:
    """What `check` says with so many helpers, whatever the machine has; one stands for none."""
    file = course.folder / "grader" / "engine" / "judge" / "side_by_side.py"
    text = file.read_text()
    file.write_text(text.replace(HERE, f"    return {count}\n"))
    assert text != file.read_text()
    with tempfile.TemporaryDirectory(prefix="wb-") as temporary, Student(course, Path(temporary)) as student:
        done = student.run("check", LESSON)
        assert done.returncode == 1 and not done.stderr, done
        assert len(student.servers()) == 1
    file.write_text(text)
    return done.stdout


def test_the_verdicts_are_the_same_with_helpers_and_without(tmp_path):
    course = Course(tmp_path / "course")
    course.solve(LESSON, (1, 2, 3, 4, 6, 7, 8), todo5="1 / 0")
    alone = said(course, 1)
    assert f"✓ {LESSON}/1 " in alone and f"✗ {LESSON}/5 " in alone
    assert said(course, 3) == alone


def test_helpers_find_what_is_right():
    with SideBySide(TODOS, str(source_root()), GLOO, 2) as ahead:
        assert [ahead.passed(*todo).status for todo in TODOS] == ["pass"] * 3


def ends_itself(lesson, number):
    os.kill(os.getpid(), signal.SIGKILL)


def never_ends(lesson, number):
    signal.pause()


def test_what_a_killed_helper_would_have_said_the_judge_finds_out(monkeypatch):
    monkeypatch.setattr(side_by_side, "judged", ends_itself)
    with SideBySide(TODOS, None, GLOO, 2) as ahead:
        assert [ahead.passed(*todo) for todo in TODOS] == [None] * 3


def test_helpers_end_with_the_command(monkeypatch):
    monkeypatch.setattr(side_by_side, "judged", never_ends)
    with SideBySide(TODOS, None, GLOO, 2) as ahead:
        assert len(multiprocessing.active_children()) == 2
        assert ahead.passed(LESSON, 9) is None  # nobody was asked for it
    assert multiprocessing.active_children() == []


JUDGE = f"""
import multiprocessing, signal
from grader.engine.judge import side_by_side
from grader.engine.ranks.backends import GLOO
def never_ends(lesson, number):
    signal.pause()
side_by_side.judged = never_ends
with side_by_side.SideBySide({TODOS}, None, GLOO, 2):
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    signal.pause()
"""


def test_helpers_end_with_a_judge_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", JUDGE], cwd=COURSE, stdout=subprocess.PIPE, text=True) as judge:
        helpers = [psutil.Process(int(pid)) for pid in judge.stdout.readline().split()]
        judge.kill()
    assert len(helpers) == 2
    assert not psutil.wait_procs(helpers, timeout=60)[1]


def test_one_check_has_no_helper():
    with SideBySide(TODOS[:1], None, GLOO, 4) as ahead:
        assert multiprocessing.active_children() == []
        assert ahead.passed(*TODOS[0]) is None
