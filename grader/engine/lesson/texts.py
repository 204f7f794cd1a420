"""The words of a lesson: `grader/lessons/NAME/texts.md`, which has one form for all lessons.

    # NAME

    what is built, for the README's table

    ## TODO 4

    Minutes: 20 (further)

    ### Why

    why it matters

    ### Hints

    1. the direction
    2. the call
    3. nearly the line

    ### After a pass

    how the reference does it, and what alternatives cost or gain

    ## Questions

    1. three to discuss

    ## Answers

    1. and what to say about them

Headings and the word “Minutes” are the form; the rest may be changed or translated. Lines may break anywhere. A TODO is
`(further)` if the lesson's main thread does not need it. In a release, the parts `After a pass` and `Answers` are gone.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from grader.engine.lesson import lessons

MINUTES = re.compile(r"^Minutes: (\d+)( \(further\))?$", re.MULTILINE)
SOLVED = "After a pass"  # the part of a TODO that follows its solution
PARTS = ("Why", "Hints", SOLVED)
ASKED, ANSWERED = "Questions", "Answers"
HINTS = 3  # the direction, the API, almost the line
LONGEST = 400  # characters to read after a pass
QUESTIONS = 3  # to discuss, each with an answer


class Words(NamedTuple):
    """What is said about one TODO."""

    minutes: int = 0  # estimated, from reading the task to the verdict; 0: the file does not say
    further: bool = False  # the lesson's main thread does not need it
    why: str = ""
    hints: tuple[str, ...] = ()
    after: str = ""  # once it has passed: how the reference does it, and what alternatives cost or gain


class Texts(NamedTuple):
    """What is said about one lesson."""

    builds: str  # what is built in it, for the README's table
    todos: dict[int, Words]
    questions: str  # a numbered list, in Markdown
    answers: str


def file_of(stem: str) -> Path:
    return lessons.folder(stem) / "texts.md"


def read(stem: str) -> Texts:
    """The words of a lesson; empty ones if it has no such file."""
    file = file_of(stem)
    return parsed(file.read_text("utf-8") if file.is_file() else "")


def words(stem: str, number: int) -> Words:
    """The words about a TODO; empty ones if there are none."""
    return read(stem).todos.get(number, Words())


@lru_cache(maxsize=64)
def parsed(text: str) -> Texts:
    """A lesson's words from the text of their file."""
    sections = split(text, "## ")
    todos = {
        int(heading.removeprefix("TODO ")): of_todo(body)
        for heading, body in sections.items()
        if re.fullmatch(r"TODO \d+", heading)
    }
    builds = in_one_line(re.sub(r"^# .*\n", "", sections[""]))
    return Texts(builds, todos, sections.get(ASKED, "").strip(), sections.get(ANSWERED, "").strip())


def of_todo(body: str) -> Words:
    """The words about one TODO from its section."""
    parts = split(body, "### ")
    effort = MINUTES.search(parts[""])
    minutes, further = (int(effort[1]), bool(effort[2])) if effort else (0, False)
    hints = tuple(map(in_one_line, numbered(parts.get("Hints", "")).values()))
    return Words(minutes, further, in_one_line(parts.get("Why", "")), hints, in_one_line(parts.get(SOLVED, "")))


def split(text: str, mark: str) -> dict[str, str]:
    """Heading -> text below it, for the headings that begin with `mark`; "" for the text above the first one."""
    before, *found = re.split(rf"^{mark}(.+)\n", text, flags=re.MULTILINE)
    return {"": before} | {heading.strip(): body for heading, body in zip(found[::2], found[1::2], strict=True)}


def numbered(text: str) -> dict[int, str]:
    """The parts of a numbered list, by number."""
    _, *found = re.split(r"^(\d+)\.(?:\s|\Z)", text.strip(), flags=re.MULTILINE)
    return {int(number): part for number, part in zip(found[::2], found[1::2], strict=True)}


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def without_answers(text: str) -> str:
    """The file as students get it: nothing that follows a solution, and no answers to its questions."""
    text = re.sub(rf"^### {SOLVED}\n(.|\n)*?(?=^## |\Z)", "", text, flags=re.MULTILINE)
    return re.sub(rf"^## {ANSWERED}\n(.|\n)*?(?=^## |\Z)", "", text, flags=re.MULTILINE).rstrip() + "\n"


def problems(stem: str) -> Iterator[str]:
    """What is missing in a lesson's words, or has no place there, one line each."""
    file = file_of(stem)
    name, numbers = file.relative_to(lessons.COURSE).as_posix(), lessons.titles(stem)
    if not file.is_file():
        yield f"{name}: there is no such file"
        return
    text, whole = file.read_text("utf-8"), lessons.has_solutions()
    found = parsed(text)
    if numbers and not found.builds:
        yield f"{name}: does not say what is built, for the table of README.md: a line below the first heading"
    expected = {f"TODO {number}" for number in numbers} | {ASKED} | ({ANSWERED} if whole else set())
    for heading in sorted(split(text, "## ").keys() ^ expected - {""}):
        if heading:
            yield f"{name}: {'has no' if heading in expected else 'nothing belongs to its'} section “{heading}”"
    for number in sorted(found.todos.keys() & numbers.keys()):
        yield from (f"{name}: TODO {number}: {problem}" for problem in lacking(found.todos[number], whole))
    for heading, part in ((ASKED, found.questions), (ANSWERED, found.answers))[: 1 + whole]:
        if list(numbered(part)) != list(range(1, QUESTIONS + 1)):
            yield f"{name}: {heading}: not numbered 1 to {QUESTIONS}"


def lacking(words: Words, whole: bool) -> Iterator[str]:
    """What the words about a TODO lack; `whole`: what follows its solution belongs to them."""
    if not words.minutes:
        yield "has no line “Minutes: 20” or “Minutes: 20 (further)”"
    elif words.minutes % 5:
        yield f"{words.minutes} minutes are not a multiple of five"
    if not words.why:
        yield "does not say why it matters"
    if len(words.hints) != HINTS or not all(words.hints):
        yield f"has {len(words.hints)} hints, not {HINTS} with words in them"
    if whole and not 0 < len(words.after) <= LONGEST:
        yield f"{len(words.after)} characters to read after a pass, not 1 to {LONGEST}"
