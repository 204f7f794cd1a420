"""The grader is itself graded: wrong answers are rejected by their TODO, and right ones accepted."""

import importlib

import pytest
from typer.testing import CliRunner

from grader.engine.commands import instructor
from grader.engine.commands.cli import app
from grader.engine.judge import other_answers, mutants, mutations, try_seeds
from grader.engine.judge.judge import checked_lessons


# Of so many answers one is tried, another each time, and at least one of a TODO or a lesson. ./workbook mutants tries
# all, for over an hour.
ONE_IN = 24


def judged_rightly(lesson, trials, again=""):
    if missing := mutants.lessons.lacking(lesson):
        pytest.skip(missing)
    wrongly = [trial for trial in trials if not trial.right]
    assert not wrongly, "\n".join(f"{t.kind}, TODO {t.todo}, {t.name}: {t.seen}{again}" for t in wrongly)


@pytest.mark.parametrize("lesson", checked_lessons())
def test_a_right_answer_is_accepted(runner, lesson):
    judged_rightly(lesson, mutants.right_answers(runner, lesson, mutants.lessons.titles(lesson), one_in=ONE_IN))


EVERY_TODO = [(lesson, todo) for lesson in checked_lessons() for todo in mutants.lessons.titles(lesson)]


@pytest.mark.drawn
@pytest.mark.parametrize(("lesson", "todo"), EVERY_TODO)
def test_a_wrong_answer_fails_by_its_todo(runner, lesson, todo):
    judged_rightly(lesson, mutants.wrong_answers(runner, lesson, [todo], one_in=ONE_IN))


@pytest.mark.drawn
@pytest.mark.parametrize(("lesson", "todo"), EVERY_TODO)
def test_a_lesson_is_judged_half_done(runner, lesson, todo):
    seed = try_seeds.drawn()
    judged_rightly(lesson, mutants.half_done(runner, lesson, [todo], seed), f" (--seed {seed})")


@pytest.mark.parametrize("lesson", checked_lessons())
def test_every_todo_has_a_wrong_answer(lesson):
    numbers = set(mutants.lessons.titles(lesson))
    assert {answer.todo for answer in other_answers.listed(lesson, other_answers.WRONG)} == numbers


def test_a_judge_that_accepts_everything_is_found_out(runner, monkeypatch):
    """The trials themselves can fail: a check that says nothing lets every mutant through."""
    module = importlib.import_module("grader.lessons.01_collectives.test_places")

    def blind(student):
        return None

    blind.todo = module.test_todo1_three_collectives.todo
    monkeypatch.setattr(module, "test_todo1_three_collectives", blind)
    found = list(mutants.trials(runner, "01_collectives", only=[1]))
    assert all(not trial.right for trial in found if trial.kind not in ("right", "alone"))


def test_each_place_of_a_solution_can_be_changed():
    body = (
        "for part in parts:\n    if part.size > 1:\n        send(part.clone(), rank, async_op=True)\nreturn total / 2"
    )
    found = dict(mutations.changes(body))
    assert len({*found.values()}) == len(found) and all(text != body for text in found.values())
    for words in ("without “send(", "all but the last of parts", "> 1” turned", "without .clone", "0 for rank"):
        assert any(words in name for name in found), words


def test_what_passes_although_it_was_changed_is_listed():
    done = CliRunner().invoke(app, ["mutants", "09_mesh/5", "--changes", "2"])
    assert done.exit_code == 0 and "of 2 changes pass" in done.output


def test_a_lesson_without_answers_is_one_line(monkeypatch):
    monkeypatch.setattr(instructor, "exercise_named", lambda name: name)
    done = CliRunner().invoke(app, ["mutants", "a_new_lesson"])
    assert done.exit_code == 2 and isinstance(done.exception, SystemExit)
    assert "there is no grader/lessons/a_new_lesson/answers/" in done.output
