"""Lessons that give away another lesson's solutions, sealed until those TODOs are right.

A script starts where the one before it ends, and the library contains what earlier lessons taught. In a release such a
lesson is one file, `grader/sealed/LESSON.seal`: a line with the TODOs that open it, then its packed files. This keeps
an honest student from reading ahead by accident. It is not a secret: `./workbook open LESSON` opens it at any time.

With `release --reveal`, the reference solutions and the texts about them are also sealed; each opens with its own TODO.
"""

import base64
import json
import zlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from grader.engine.lesson import lessons
from utils.atomic_write import write_whole

FOLDER = Path("grader") / "sealed"
# Commands and options that need a module or a package of the library that gives answers away are sealed like a lesson:
# the name that `./workbook open` takes -> what it is, and the module.
ALSO = {
    "plan": ("the command plan", "utils/costs/__init__.py"),
    "muon": ("--optimizer muon", "utils/after_13_fewer_bytes.py"),
}
REVEALED = "solutions.seal"


class Sealed(NamedTuple):
    """The texts shown for a TODO once it is right."""

    solution: str | None  # None if the release does not have it
    after: str  # a few sentences about it


def seal(course: Path, stem: str, files: Mapping[str, str], until: Collection[str]) -> None:
    """Pack a lesson's files (path in the course -> text) in `course`; the TODOs in `until` open them."""
    _write(course / FOLDER / f"{stem}.seal", " ".join(until), dict(files))


def sealed() -> dict[str, list[str]]:
    """What is sealed, lessons in course order first: name -> TODOs (such as "ddp_training/4") that open it."""
    found = {}
    for stem in (*lessons.ORDER, *ALSO):
        path = lessons.COURSE / FOLDER / f"{stem}.seal"
        if path.is_file():
            with path.open(encoding="utf-8") as file:
                found[stem] = file.readline().split()
    return found


def unseal(stem: str) -> list[str]:
    """Write a sealed lesson's files without overwriting any; returns their paths in the course."""
    path = lessons.COURSE / FOLDER / f"{stem}.seal"
    written = []
    for name, text in _read(path).items():
        file = lessons.COURSE / name
        if not file.exists():
            write_whole(file, text)
            written.append(name)
    path.unlink()
    return written


def unseal_due(right: Collection[str]) -> list[str]:
    """Unseal the lessons that are opened by the TODOs that are `right`; returns them."""
    due = [stem for stem, until in sealed().items() if set(until) <= set(right)]
    for stem in due:
        unseal(stem)
    return due


def missing(stem: str, right: Collection[str]) -> str:
    """The TODOs that a sealed lesson or command waits for, as "ddp_training/2-3, 03_zero/1"."""
    missing: dict[str, list[int]] = {}
    for todo in sealed()[stem]:
        if todo not in right:
            lesson, _, number = todo.partition("/")
            missing.setdefault(lesson, []).append(int(number))
    return ", ".join(f"{lesson}/{runs(numbers)}" for lesson, numbers in missing.items())


def waits_for(stem: str, right: Collection[str]) -> str:
    """One line that says why a lesson or a command is sealed, and what opens it."""
    return (
        f"{stem} is sealed because it contains solutions of other lessons: it opens when"
        f" {missing(stem, right)} are right; ./workbook open {stem} opens it now"
    )


def runs(numbers: Iterable[int]) -> str:
    """1, 2, 3, 5 as "1-3+5"."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return "+".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def seal_solutions(course: Path, solutions: Mapping[str, Sealed]) -> None:
    """Pack reference solutions, TODO ("ddp_training/4") -> texts; each is shown when its TODO is right."""
    _write(course / FOLDER / REVEALED, "reference solutions", dict(solutions))


def sealed_solution(todo: str) -> Sealed:
    """The reference solution of a TODO, if the release has it."""
    path = lessons.COURSE / FOLDER / REVEALED
    return Sealed(*_read(path).get(todo, (None, ""))) if path.is_file() else Sealed(None, "")


def _write(path: Path, first: str, content: Mapping) -> None:
    packed = base64.encodebytes(zlib.compress(json.dumps(content).encode(), 9)).decode()
    write_whole(path, f"{first}\n{packed}")


def _read(path: Path) -> dict:
    packed = path.read_text("utf-8").partition("\n")[2]
    return json.loads(zlib.decompress(base64.decodebytes(packed.encode())))
