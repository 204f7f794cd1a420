"""What an instructor is told while a class is graded and afterwards; and `lab` for root."""

import json
import os

from typer.testing import CliRunner

from grader.engine.classroom import pages
from grader.engine.commands import grading_progress
from grader.engine.commands.cli import app
from grader.engine.lesson import lessons


def failed(message):
    return {"cause": "wrong_value", "message": message}


def test_one_cause_on_different_ranks_is_told_once():
    found = pages.commonest(
        [
            failed("the sum on rank 0 is 3, not 6"),
            failed("the sum on rank 2 is 5.5, not 12"),
            failed("the sum on ranks 1 and 3 is 1e-3, not 9"),
            failed("the mean on rank 0 is 3, not 6"),
        ]
    )
    assert found == [
        ("wrong value: the sum on rank 0 is 3, not 6", 3),
        ("wrong value: the mean on rank 0 is 3, not 6", 1),
    ]


def test_todos_that_wait_for_another_are_told_once():
    waits = [{"cause": "prerequisite", "message": m} for m in ("TODO 1 first", "TODO 2 first: it stops this check")]
    assert pages.commonest(waits) == [("another TODO first", 2)]


def test_a_long_submission_says_which_todo_it_has_reached(monkeypatch):
    said = []
    monkeypatch.setattr(grading_progress, "say", said.append)
    monkeypatch.setattr(grading_progress, "PULSE", -1.0)  # a line for each TODO
    news = [
        {"student": "ann", "lesson": "01_collectives", "todo": n, "status": s} for n, s in ((1, "pass"), (2, "fail"))
    ]
    grading_progress.show(None, iter(news), 1)
    assert said == [
        "[dim]ann: 01_collectives/1, 1 of 1 right so far[/]",
        "[dim]ann: 01_collectives/2, 1 of 2 right so far[/]",
    ]


def test_lab_tells_root_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(lessons, "COURSE", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("JUPYTER_PATH", "")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["lab"])
    assert done.exit_code == 2 and len(done.output.splitlines()) == 1, done.output
    assert "--allow-root" in done.output
    started = []
    monkeypatch.setattr(os, "execv", lambda program, command: started.append(command))
    assert CliRunner().invoke(app, ["lab", "--no-browser", "--", "--allow-root"]).exit_code == 0
    assert "--no-browser" in started[0] and "--allow-root" in started[0]
    assert CliRunner().invoke(app, ["lab", "--port", "8917", "--allow-root", "--ip=0.0.0.0"]).exit_code == 0
    assert started[1][-4:] == ["--port", "8917", "--allow-root", "--ip=0.0.0.0"]
    overrides = tmp_path / ".workbook" / "jupyter" / "settings" / "overrides.json"
    given = json.loads(overrides.read_text())
    assert given["@jupyterlab/notebook-extension:tracker"]["codeCellConfig"] == {"lineWrap": True}
