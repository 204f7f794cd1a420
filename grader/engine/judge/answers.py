"""Another answer to a TODO, wrong or right, with which the grader is graded: `grader/mutants/<lesson>.py` lists them."""

import textwrap
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from grader.engine.lesson import lessons, regions


@dataclass(frozen=True)
class Answer:
    """Another answer to one TODO: its body, or what is changed in the solution's."""

    todo: int
    name: str
    body: str | list[str | None] | None = None  # of its region; a list where it has several; None is the solution's
    swap: tuple[str, str] | tuple[tuple[str, str], ...] = ()  # (old, new), or several, in the bodies of this TODO
    edits: tuple[tuple[str, str], ...] = ()  # (old, new) anywhere in the solved file
    says: str = ""  # what the verdict's message must contain
    file: str = ".sbatch"  # of a TODO of the batch files: in which of them

    def texts(self, lesson: str) -> dict[Path, str]:
        """The lesson's files with this answer in one of them. Of the batch files, the other one is as it was given."""
        all_solved = solved(lesson, lessons.titles(lesson))
        owners = [path for path, source in sources(lesson).items() if self.todo in regions.titles(source)]
        path = next((path for path in owners if path.suffix == self.file), owners[0])
        given = {other: regions.compose(sources(lesson)[other]) for other in owners if other != path}
        return all_solved | given | {path: self.text(sources(lesson)[path])}

    def text(self, source: str) -> str:
        own = regions.solutions(source, self.todo)
        given = self.body if isinstance(self.body, list) else [self.body] + [None] * (len(own) - 1)
        bodies = [
            right if body is None else textwrap.dedent(body).strip("\n") for body, right in zip(given, own, strict=True)
        ]
        for old, new in [self.swap] if self.swap and isinstance(self.swap[0], str) else self.swap:
            if sum(body.count(old) for body in bodies) != 1:
                raise ValueError(f"“{self.name}” swaps what is not in TODO {self.todo} once: {old!r}")
            bodies = [body.replace(old, new) for body in bodies]
        text = regions.compose(source, regions.titles(source), {self.todo: bodies})
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"“{self.name}” edits a text that is there {text.count(old)} times: {old!r}")
            text = text.replace(old, new)
        return text


def sources(lesson: str) -> dict[Path, str]:
    """The lesson's sources by their path in the course."""
    return {path.relative_to(lessons.source_root()): path.read_text("utf-8") for path in lessons.sources(lesson)}


def solved(lesson: str, todos: Collection[int]) -> dict[Path, str]:
    """The lesson's files with these TODOs done."""
    return {path: regions.compose(source, todos) for path, source in sources(lesson).items()}
