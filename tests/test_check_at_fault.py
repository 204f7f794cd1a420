"""A mistake of a check is told as that, and costs the student nothing."""

import pytest
import torch

from grader.engine.judge.judge import Judge
from grader.engine.judge.verdict import BadCheck, todo
from grader.engine.lesson import lessons, todo_regions
from grader.kit import check_tensor, expect
from tests import on_ranks

LESSON = "01_collectives"


def no_reference():
    raise ImportError("there is no such module")


def without_right(student):
    check_tensor("the sum", student.call(on_ranks.three, world=1).evidence[0])


def in_another_order(student):
    check_tensor(student.call(on_ranks.three, world=1).evidence[0], "the sum", torch.full((3,), 3.0))


def breaks_on_ranks(student):
    student.call(on_ranks.breaks, world=1)


def with_reference(student):
    student.reference(no_reference)


def after_the_code(student):
    student.call(on_ranks.three, world=1)
    student.premise(True, "anything")


def judged(runner, check, units=None):
    judge = Judge(runner, LESSON, str(lessons.source_root()), units=units)
    judge.checks[2] = todo(2)(lambda student: check(student))
    return judge


@pytest.mark.parametrize(
    ("check", "told"),
    [
        (without_right, "TypeError: check_tensor() missing 1 required positional argument: 'right'"),
        (in_another_order, "check_tensor is called with something else than (what, seen, right)"),
        (breaks_on_ranks, "KeyError: 'no such key'"),
        (with_reference, "its own reference fails: ImportError: there is no such module"),
        (after_the_code, "a premise of this check comes after the student's code has run"),
    ],
)
def test_a_checks_own_mistake_is_not_the_students(runner, check, told):
    judge = judged(runner, check)
    found = judge.verdict(2)
    assert (found.status, found.cause, found.points) == ("skipped", "not_judged", 0)
    assert found.message.startswith("not judged and not marked: the check is at fault, so tell your instructor: ")
    assert told in found.message, found.message
    assert judge.verdict(3).passed  # the others are judged all the same


def test_what_the_code_left_is_the_students(runner):
    def check(student):
        expect(student.call(on_ranks.first_of, world=1).evidence[0].sum() == 2, "the sum is wrong")

    units = lessons.units(LESSON, lessons.source_root())
    at = next(n for n, unit in enumerate(units) if 2 in todo_regions.titles(unit.source))
    units[at] = units[at]._replace(text=f"{units[at].text}\nwrong = True\n")
    found = judged(runner, check, units).verdict(2)
    assert found.status == "fail" and "the check cannot read what the code left: AttributeError" in found.message, found


def test_without_solutions_a_call_that_fits_no_signature_is_the_checks(runner, monkeypatch):
    judge = judged(runner, with_reference)
    monkeypatch.setattr(lessons, "has_solutions", lambda: False)
    for mistake in (TypeError("f() missing 1 required positional argument: 'x'"), NameError("x"), ImportError("x")):
        with pytest.raises(BadCheck):
            judge._must_be_the_codes(2, judge.student, mistake)
    judge._must_be_the_codes(2, judge.student, TypeError("unsupported operand type(s) for +: 'int' and 'str'"))
