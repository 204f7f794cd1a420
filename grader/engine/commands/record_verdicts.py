"""Records verdicts on a student's own files: progress, lessons that open, a line on the board."""

from rich.markup import escape

from grader.engine.classroom import board
from grader.engine.commands.screen import say
from grader.engine.judge.verdict import Verdict
from grader.engine.lesson import sealed_lessons
from grader.engine.lesson.progress import Entry, Progress, right


def remember(verdicts: list[Verdict]) -> None:
    """Write verdicts on the student's own files into the progress file."""
    progress = Progress()
    # A file that does not compile says nothing about what was right before.
    verdicts = [v for v in verdicts if v.cause != "no_python"]
    before = progress.read()
    progress.write({(v.lesson, v.todo): v.state for v in verdicts})
    known = progress.read()
    failed = next((v for v in verdicts if v.status == "fail"), None)
    news = [v for v in verdicts if v.passed and before.get((v.lesson, v.todo), Entry()).state != "pass"]
    if problem := board.post([*news, *([failed] if failed else [])]):
        say(f"[dim]{escape(problem)}[/]")
    # The first one comes with the failure.
    with_hint = [
        (v.lesson, v.todo) for v in verdicts if v.status == "fail" and v.cause != "not_attempted" and v.hints_seen
    ]
    progress.write({todo: 1 for todo in with_hint if not known[todo].hints})
    for lesson in sealed_lessons.unseal_due(right()):
        say(f"[green]{lesson} is open now.[/]")
