"""Verifies that a lesson's checks fit its sources, for `./workbook build --check`.

`build.check_sources` reads the sources; here the judge checks them.
"""

import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from grader.engine.judge.judge import Judge, checked_lessons, checks_of
from grader.engine.lesson import lessons, todo_regions
from grader.engine.lesson.lessons import titles
from grader.engine.lesson.progress import exercises
from grader.engine.ranks.runner import Runner


def problems(runner: Runner, chosen: Collection[str]) -> list[str]:
    """The problems of these lessons, one line each."""
    found = [
        f"{lesson}: has TODOs and no checks in grader/lessons/{lesson}/"
        for lesson in exercises()
        if lesson in chosen and lesson not in checked_lessons()
    ]
    for lesson in [lesson for lesson in checked_lessons() if lesson in chosen]:
        about_checks = list(said(lesson))
        if about_checks or not lessons.lacking(lesson):  # without its package the judge cannot check it
            found += about_checks or [*starts(runner, lesson), *solutions(runner, lesson)]
    return found


def unchecked(chosen: Collection[str]) -> list[str]:
    """Which of these lessons cannot be checked here, and what they need."""
    return [
        f"{lesson} is not checked: {line}"
        for lesson in checked_lessons()
        if lesson in chosen and (line := lessons.lacking(lesson))
    ]


def said(lesson: str) -> Iterator[str]:
    """TODOs without a check, and checks without a TODO. What their texts lack, `texts.problems` says."""
    checks = {check.todo.number for check in checks_of(lesson)}
    for number in sorted(checks ^ titles(lesson).keys()):
        yield (
            f"{lesson}/{number}: a check without a TODO"
            if number in checks
            else f"{lesson}/{number}: a TODO without a check"
        )


def starts(runner: Runner, lesson: str) -> Iterator[str]:
    """TODOs that pass in the file as given."""
    with tempfile.TemporaryDirectory() as folder:
        for source in lessons.sources(lesson):
            path = Path(folder) / source.relative_to(lessons.source_root())
            path.parent.mkdir(exist_ok=True)
            path.write_text(todo_regions.compose(source.read_text("utf-8")), "utf-8")
        for verdict in Judge(runner, lesson, folder).verdicts():
            if verdict.passed:
                yield f"{lesson}/{verdict.todo}: passes before anything is done"


def solutions(runner: Runner, lesson: str) -> Iterator[str]:
    """TODOs whose reference solution fails."""
    for verdict in Judge(runner, lesson, str(lessons.source_root())).verdicts():
        if not verdict.passed:
            yield f"{lesson}/{verdict.todo}: the solution fails: {verdict.message}"
