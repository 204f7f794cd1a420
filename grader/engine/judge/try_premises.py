"""Tries the premises of checks with many seeds, without ranks.

A check first proves, with its drawn numbers and its references, that wrong answers would give a different result; then
it runs the student's code. Here it stops before that code would run.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NoReturn

from grader.engine.judge import student_in_checks as of_students
from grader.engine.judge.judge import DRAWS, checks_of
from grader.engine.judge.student_in_checks import Student
from grader.engine.judge.verdict import BadDraw
from grader.engine.lesson import lessons
from grader.engine.ranks.diagnose import Unjudged
from grader.engine.ranks.runner import Runner


class Launch(Exception):
    """Raised where the student's code would run."""


class Rehearsal(Student):
    """Stands in for a student; no code is run."""

    def call(self, *_, **__) -> NoReturn:
        raise Launch

    run = submit = call


@dataclass
class Tried:
    """The results for the premises of one lesson."""

    lesson: str
    seeds: int = 0
    premises: int = 0
    redrawn: Counter[str] = field(default_factory=Counter)  # TODO and wrong answer that would pass -> how often
    broken: list[str] = field(default_factory=list)  # references that fail, premises that hold in no draw

    def __str__(self) -> str:
        words = f"{'✗' if self.broken else '✓'} {self.lesson}: {self.seeds} seeds, {self.premises:,} premises tried, "
        words += f"{self.redrawn.total()} drawn anew, {len(self.broken)} hold in no draw"
        lines = [f"    {often} × {which}" for which, often in self.redrawn.most_common()]
        return "\n".join([words, *lines, *(f"    {line}" for line in self.broken)])


def tried(runner: Runner, lesson: str, seeds: Iterable[str]) -> Tried:
    """Try the premises of each check of a lesson with each seed."""
    found, root = Tried(lesson), lessons.source_root()
    units, batch = lessons.units(lesson, root), lessons.batch_units(lesson, root)
    for seed in seeds:
        of_students.SERIAL.clear()  # runs of the baseline are not reused for another seed
        found.seeds += 1
        for check in checks_of(lesson):
            student = Rehearsal(runner, lesson, units, batch, seed)
            if why := rehearse(check, student, found):
                found.broken.append(f"TODO {check.todo.number} with seed {seed}: {why}")
            found.premises += student.premises
    return found


def rehearse(check: Callable, student: Student, found: Tried) -> str:
    """Draw until the premises of this check hold. Returns "", or why they cannot be tried or hold in no draw."""
    why = ""
    for student.again in range(DRAWS):
        try:
            check(student)
        except Launch:
            return ""
        except BadDraw as problem:
            (why,) = problem.args
            found.redrawn[f"TODO {check.todo.number}: {why}"] += 1
        except Exception as error:
            return (
                error.args[0] if isinstance(error, Unjudged) else f"the check breaks: {type(error).__name__}: {error}"
            )
        else:
            return ""
    return why


def trial(stems: list[str], seeds: list[str], say: Callable[[str], None]) -> bool:
    """Try the premises of these lessons with each seed. Returns whether all hold."""
    fine = True
    with Runner() as runner:
        for stem in stems:
            if line := lessons.lacking(stem):
                say(f"– {stem} is not tried: {line}")
                continue
            found = tried(runner, stem, seeds)
            say(str(found))
            fine = fine and not found.broken
    return fine
