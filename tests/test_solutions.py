"""The reference solutions pass their checks: with the practice numbers, and with numbers that a class might draw."""

import pytest

from grader.engine.judge import seeds
from grader.engine.judge.judge import Judge, checked_lessons
from grader.engine.lesson import lessons

TODOS = [(lesson, number) for lesson in checked_lessons() for number in lessons.titles(lesson)]


@pytest.mark.parametrize(
    "numbers",
    ["practice", pytest.param("drawn", marks=pytest.mark.long)],  # a second seed is drawn in test_mutants.py
)
@pytest.mark.parametrize(("lesson", "todo"), TODOS)
def test_a_solution_passes(runner, lesson, todo, numbers):
    """Each TODO by itself, so that several workers divide them; the other TODOs have tests of their own."""
    if missing := lessons.lacking(lesson):
        pytest.skip(missing)
    seed = "" if numbers == "practice" else seeds.drawn()
    others = lessons.titles(lesson).keys() - {todo}
    judge = Judge(runner, lesson, str(lessons.source_root()), seed=seed, presumed=others)
    verdict = judge.verdict(todo)
    again = f"; again: ./workbook test {lesson} --seed {seed}" if seed else ""
    assert verdict.passed, f"{lesson}/{todo} {verdict.cause}: {verdict.message}{again}"
