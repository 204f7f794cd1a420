"""Paths through the course: the time that each TODO takes, and tracks of TODOs for half a day, one day and two days.

A TODO's minutes are estimates, declared with its check: `@todo(4, minutes=20, further=True, …)`. They are read here
without importing the check file, which would load PyTorch.
"""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from grader.engine.lesson import lessons, seals

Id = tuple[str, int]  # lesson, TODO


class Track(NamedTuple):
    """A selection of TODOs, in course order, that fits into some hours."""

    title: str
    hours: float
    todos: tuple[str, ...]  # "ddp_training/1-3+5"


HALF = ("00_one_device/1-2", "01_collectives/1+4-6", "02_data_parallel/1-3", "ddp_training/1-11")
ONE = (*HALF, "02_data_parallel/4+8-9", "ddp_training/12-13", "03_zero/1-2+7", "fsdp_training/1-4")
TWO = (
    *ONE,
    "03_zero/3-4",
    "04_tensor_parallel/1-5",
    "05_pipeline_parallel/1-4",
    "09_mesh/1",
    "10_strategy/1-4",
    "11_when_it_hangs/1",
)
TRACKS = {"half": Track("half a day", 4, HALF), "day": Track("one day", 7, ONE), "two": Track("two days", 14, TWO)}


class Effort(NamedTuple):
    """The time that a TODO takes a student."""

    minutes: int  # estimated
    further: bool  # the lesson's main thread does not need it


MARKED = re.compile(r"^@(todo\(.*?\n?\))$", re.MULTILINE | re.DOTALL)


def efforts(stem: str) -> dict[int, Effort]:
    """TODO -> effort, also for a sealed lesson; empty if it has no checks."""
    return _read(lessons.COURSE / "grader" / f"test_{stem}.py")


@cache
def _read(checks: Path) -> dict[int, Effort]:
    found = {}
    for marked in MARKED.findall(checks.read_text("utf-8")) if checks.is_file() else ():
        call = ast.parse(marked, mode="eval").body
        words = {word.arg: word.value for word in call.keywords}
        further = words.get("further")
        found[call.args[0].value] = Effort(words["minutes"].value, further is not None and further.value)
    return found


def members(name: str) -> list[Id]:
    """The TODOs of a track, in course order, as far as this copy of the course has their lessons."""
    here = {*lessons.stems(), *seals.sealed()}
    found = []
    for part in TRACKS[name].todos:
        stem, _, numbers = part.partition("/")
        if stem in here:
            found += [(stem, number) for number in spelled_out(numbers)]
    return sorted(found, key=lambda todo: (lessons.ORDER.index(todo[0]), todo[1]))


def spelled_out(numbers: str) -> list[int]:
    """ "1-3+5" as 1, 2, 3, 5."""
    found: list[int] = []
    for span in numbers.split("+"):
        first, _, last = span.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def minutes(todos: list[Id]) -> int:
    """The sum of the estimates."""
    return sum(efforts(stem)[number].minutes for stem, number in todos if number in efforts(stem))


def hours(minutes: int) -> str:
    """ "40 min", "3 h", "3 h 20 min"."""
    whole, rest = divmod(minutes, 60)
    return " ".join(words for count, words in ((whole, f"{whole} h"), (rest, f"{rest} min")) if count) or "0 min"
