"""The reference solutions pass their checks with the practice numbers; test_mutants.py tries numbers that a class might
draw.
"""

import pytest

from grader.engine.judge.judge import Judge, checked_lessons
from grader.engine.lesson import lessons

TODOS = [(lesson, number) for lesson in checked_lessons() for number in lessons.titles(lesson)]


@pytest.mark.parametrize(("lesson", "todo"), TODOS)
def test_a_solution_passes(runner, lesson, todo):
    """Each TODO by itself, so that several workers divide them; the other TODOs have tests of their own."""
    if missing := lessons.lacking(lesson):
        pytest.skip(missing)
    others = lessons.titles(lesson).keys() - {todo}
    verdict = Judge(runner, lesson, str(lessons.source_root()), presumed=others).verdict(todo)
    assert verdict.passed, f"{lesson}/{todo} {verdict.cause}: {verdict.message}"
