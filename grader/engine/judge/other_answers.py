"""Other answers to a TODO, wrong or right, that test the grader: `grader/lessons/<lesson>/answers/` has them."""

import importlib
import textwrap
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from grader.engine.lesson import lessons, todo_regions


WRONG, RIGHT = "WRONG", "RIGHT"  # the names of the two lists in each file of answers


@dataclass(frozen=True)
class Answer:
    """A different answer to one TODO: its body, or changes to the solution's."""

    todo: int
    name: str
    body: str | list[str | None] | None = None  # of its region, or a list for several regions; None is the solution's
    swap: tuple[str, str] | tuple[tuple[str, str], ...] = ()  # (old, new), or several, in the bodies of this TODO
    edits: tuple[tuple[str, str], ...] = ()  # (old, new) anywhere in the solved file
    says: str = ""  # what the verdict's message must contain
    file: str = ".sbatch"  # for a TODO in batch files: which of them

    def bodies(self, source: str) -> list[str]:
        """The body of each of the TODO's regions."""
        own = todo_regions.solutions(source, self.todo)
        given = self.body if isinstance(self.body, list) else [self.body] + [None] * (len(own) - 1)
        bodies = [
            right if body is None else textwrap.dedent(body).strip("\n") for body, right in zip(given, own, strict=True)
        ]
        for old, new in [self.swap] if self.swap and isinstance(self.swap[0], str) else self.swap:
            if sum(body.count(old) for body in bodies) != 1:
                raise ValueError(f"“{self.name}” swaps what is not in TODO {self.todo} once: {old!r}")
            bodies = [body.replace(old, new) for body in bodies]
        return bodies

    def edited(self, text: str) -> str:
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"“{self.name}” edits a text that is there {text.count(old)} times: {old!r}")
            text = text.replace(old, new)
        return text


def listed(lesson: str, kind: str) -> list[Answer]:
    """All answers of a kind to the TODOs of a lesson, file by file."""
    files = sorted((lessons.folder(lesson) / "answers").glob("*.py"))
    modules = [importlib.import_module(lessons.module_name(file)) for file in files]
    return [answer for module in modules for answer in getattr(module, kind, ())]


def answered(lesson: str, *answers: Answer) -> dict[Path, str]:
    """The lesson's solved files with these answers, each to a different TODO. If two batch files have the TODO, the one
    without the answer stays in its initial state.
    """
    texts = {}
    for path, source in sources(lesson).items():
        asked = todo_regions.titles(source)
        mine = [answer for answer in answers if answer.todo in asked]
        here = [answer for answer in mine if path.suffix in (".py", answer.file)]
        bodies = {answer.todo: answer.bodies(source) for answer in here}
        texts[path] = todo_regions.compose(source, asked if here or not mine else (), bodies)
        for answer in here:
            texts[path] = answer.edited(texts[path])
    return texts


def sources(lesson: str) -> dict[Path, str]:
    """The lesson's sources, by path in the course."""
    return {path.relative_to(lessons.source_root()): path.read_text("utf-8") for path in lessons.sources(lesson)}


def solved(lesson: str, todos: Collection[int]) -> dict[Path, str]:
    """The lesson's files with these TODOs solved."""
    return {path: todo_regions.compose(source, todos) for path, source in sources(lesson).items()}
