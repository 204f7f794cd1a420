"""What a TODO needs is not checked again while it is as it was when it passed."""

import pytest

from grader.engine.judge.judge import Judge
from grader.engine.judge.passed_todos import Passed
from grader.engine.judge.verdict import Wrong
from grader.engine.lesson import lessons, todo_regions

LESSON, ASKED, NEEDED, OTHER = "ddp_training", 11, {1, 2}, 9


@pytest.fixture
def checked(runner, tmp_path):
    """Asks for the verdict on one TODO of this text; returns which checks ran, and the verdict."""
    passed = Passed(LESSON, runner.backend)
    passed.path = tmp_path / "passed.json"

    def check(text, wrong=()):
        (tmp_path / "train").mkdir(exist_ok=True)
        (tmp_path / "train" / f"{LESSON}.py").write_text(text)
        judge, ran = Judge(runner, LESSON, tmp_path, passed=passed), set()

        def recorded(number, plain):
            def run(student):
                ran.add(number)
                if number in wrong:
                    raise Wrong("on purpose", 1, 2)

            run.todo = plain.todo
            return run

        judge.checks = {number: recorded(number, plain) for number, plain in judge.checks.items()}
        verdict = judge.verdict(ASKED)
        return ran, verdict

    return check


def text(**bodies):
    source = lessons.source_path(LESSON).read_text()
    own = {int(name.removeprefix("todo")): body for name, body in bodies.items()}
    return todo_regions.compose(source, set(range(1, 19)), own)


def test_a_change_is_followed_by_what_rests_on_it_alone(checked):
    assert checked(text())[0] == {ASKED, *NEEDED}
    assert checked(text())[0] == {ASKED}
    assert checked(text(todo9="pass"))[0] == {ASKED}
    assert checked(text(todo2="return 0, 0, 1"))[0] == {ASKED, 2}  # TODO 1 does not need 2
    assert checked(text(todo1="pass"))[0] == {ASKED, *NEEDED}
    elsewhere = text().replace("import argparse", "import argparse\nimport ast")
    assert elsewhere != text() and checked(elsewhere)[0] == {ASKED, *NEEDED}


def test_what_failed_is_checked_again_until_it_passes(checked):
    checked(text())
    ran, verdict = checked(text(todo2="return 0, 0, 1"), wrong={2})
    assert ran == {2} and verdict.cause == "prerequisite"
    assert checked(text(todo2="return 0, 0, 1"), wrong={2})[0] == {2}
    assert checked(text())[0] == {ASKED}  # as it was when it passed


def test_what_is_asked_for_is_checked_and_no_list_is_needed(checked, tmp_path):
    checked(text())
    (tmp_path / "passed.json").write_text("no JSON")
    assert checked(text())[0] == {ASKED, *NEEDED}
    assert checked(text(), wrong={ASKED})[1].status == "fail"


def test_another_course_or_backend_is_another_matter(runner, tmp_path, monkeypatch):
    mine = Passed(LESSON, runner.backend)
    mine.path = tmp_path / "passed.json"
    mine.note(1, ["text"], True)
    assert mine.by(1, ["text"]) and not mine.by(1, ["other text"]) and not mine.by(2, ["text"])
    monkeypatch.setattr("grader.engine.ranks.kept_server.state", lambda: "a check has changed")
    other = Passed(LESSON, runner.backend)
    other.path = mine.path
    assert not other.by(1, ["text"])
