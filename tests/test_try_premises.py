"""Premises of checks: they come before the student's code, and are tried without it."""

import pytest

from grader.engine.judge.judge import DRAWS
from grader.engine.judge.try_premises import Rehearsal, Tried, rehearse
from grader.engine.judge.student_in_checks import Student
from grader.engine.judge.verdict import todo
from grader.engine.ranks.diagnose import Unjudged
from grader.engine.ranks.runner import Runner


def on_rank(code, rank, world):
    return rank


def rehearsed(check):
    """What is told of a check after its rehearsal, and how many premises it tried."""
    found, student = Tried("01_collectives", seeds=1), Rehearsal(Runner(), "01_collectives", [], [], "a1")
    why = rehearse(check, student, found)
    return why, student.premises, found.redrawn


def checking(function):
    return todo(7)(function)


@pytest.mark.parametrize("launch", ["call", "run", "submit"])
def test_a_rehearsal_ends_where_the_students_code_would_run(launch):
    @checking
    def check(student):
        student.premise(True, "…")
        getattr(student, launch)(on_rank)
        raise AssertionError("it goes on")

    assert rehearsed(check) == ("", 1, {})


def test_a_premise_that_fails_is_drawn_anew_and_counted():
    seen = []

    @checking
    def check(student):
        seen.append(student.draw("numbers").random())
        student.premise(len(seen) > 2, "anything")
        student.call(on_rank)

    why, premises, redrawn = rehearsed(check)
    assert (why, premises) == ("", 3) and list(redrawn.values()) == [2]
    assert "TODO 7" in next(iter(redrawn)) and "this would pass: anything" in next(iter(redrawn))
    assert len(set(seen)) == 3, "each time other numbers"


def test_a_premise_that_holds_in_no_draw_is_told():
    @checking
    def check(student):
        student.premise(False, "anything")

    why, premises, _ = rehearsed(check)
    assert "this would pass: anything" in why and premises == DRAWS


def test_a_check_that_breaks_before_the_students_code_is_told():
    @checking
    def check(student):
        student.premise([1][1], "…")

    assert rehearsed(check)[0].startswith("the check breaks: IndexError")


def test_a_premise_after_the_students_code_is_refused():
    student = Student(None, "01_collectives", [], [])
    student.premise(True, "…")
    student.recent.append(object())
    with pytest.raises(Unjudged, match="after the student's code"):
        student.premise(True, "…")


def test_what_a_lesson_is_told_by():
    found = Tried("03_zero", seeds=200, premises=2412)
    assert str(found) == "✓ 03_zero: 200 seeds, 2,412 premises tried, 0 drawn anew, 0 hold in no draw"
    found.redrawn["TODO 5: alike"] += 2
    found.broken.append("TODO 8 with seed ab: alike")
    assert str(found).splitlines() == [
        "✗ 03_zero: 200 seeds, 2,412 premises tried, 2 drawn anew, 1 hold in no draw",
        "    2 × TODO 5: alike",
        "    TODO 8 with seed ab: alike",
    ]
