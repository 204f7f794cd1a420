"""Verifies that a lesson's checks fit its sources, for `./workbook build --check`.

`build.check_sources` reads the sources; here the judge checks them.
"""

import re
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from grader.engine.judge.judge import Judge, check_module, checked_lessons, checks_of
from grader.engine.lesson import lessons, reference, regions
from grader.engine.lesson.lessons import titles
from grader.engine.lesson.progress import exercises
from grader.engine.ranks.runner import Runner

HINTS = 3  # the direction, the API, almost the line
LONGEST = 400  # characters of an after-text
QUESTIONS = 3  # to discuss, each with an answer


def problems(runner: Runner, chosen: Collection[str]) -> list[str]:
    """The problems of these lessons, one line each."""
    found = [
        f"{lesson}: has TODOs and no grader/test_{lesson}.py"
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
    """TODOs without a check, checks without a TODO, and missing texts."""
    checks = {check.todo.number: check.todo for check in checks_of(check_module(lesson))}
    for number in sorted(checks.keys() ^ titles(lesson).keys()):
        yield (
            f"{lesson}/{number}: a check without a TODO"
            if number in checks
            else f"{lesson}/{number}: a TODO without a check"
        )
    for number, about in checks.items():
        if len(about.hints) != HINTS or not all(hint.strip() for hint in about.hints):
            yield f"{lesson}/{number}: has {len(about.hints)} hints, not {HINTS} with words in them"
        if not about.why.strip():
            yield f"{lesson}/{number}: does not say why it matters"
    if lessons.has_solutions():
        texts = reference.texts(lesson)
        for number in sorted(texts.keys() ^ titles(lesson).keys()):
            yield f"{lesson}/{number}: solutions/after/{lesson}.md has a text without a TODO, or lacks one"
        for number in (number for number, text in texts.items() if not 0 < len(text) <= LONGEST):
            yield f"{lesson}/{number}: {len(texts[number])} characters to read after a pass, not 1 to {LONGEST}"
        for path in ("docs/questions.md", "solutions/answers.md"):
            numbers = paragraphs(path).get(lesson, [])
            if numbers != list(range(1, QUESTIONS + 1)):
                yield f"{lesson}: {path} has no 1 to {QUESTIONS} under ## {lesson}"


def paragraphs(path: str) -> dict[str, list[int]]:
    """Heading -> the numbers of its paragraphs, in a file of questions or answers."""
    _, *found = re.split(r"^## (.+)\n", (lessons.COURSE / path).read_text("utf-8"), flags=re.MULTILINE)
    return {
        name: [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]
        for name, text in zip(found[::2], found[1::2], strict=True)
    }


def starts(runner: Runner, lesson: str) -> Iterator[str]:
    """TODOs that pass in the file as given."""
    with tempfile.TemporaryDirectory() as folder:
        for source in lessons.sources(lesson):
            path = Path(folder) / source.relative_to(lessons.source_root())
            path.parent.mkdir(exist_ok=True)
            path.write_text(regions.compose(source.read_text("utf-8")), "utf-8")
        for verdict in Judge(runner, lesson, folder).verdicts():
            if verdict.passed:
                yield f"{lesson}/{verdict.todo}: passes before anything is done"


def solutions(runner: Runner, lesson: str) -> Iterator[str]:
    """TODOs whose reference solution fails."""
    for verdict in Judge(runner, lesson, str(lessons.source_root())).verdicts():
        if not verdict.passed:
            yield f"{lesson}/{verdict.todo}: the solution fails: {verdict.message}"
