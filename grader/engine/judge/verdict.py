"""The words of a check and of its answer: what a check file declares and raises, and the verdict that comes of it."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from grader.engine.ranks.diagnose import Unjudged
from grader.engine.walls import plain


def premise(holds: bool, wrong: str) -> None:
    """What is drawn for a check must tell right from wrong, or the check says nothing of the student.

    Raises:
        Unjudged: it does not; `wrong` is the wrong answer that would pass.
    """
    if not holds:
        raise Unjudged(f"the numbers drawn for this check would let pass {wrong}")


class Wrong(Exception):
    """The code ran, and did the wrong thing. `expected` and `seen` in a few words each."""

    def __init__(
        self, message: str, expected: Any = None, seen: Any = None, rank: int | None = None, hint: str = ""
    ) -> None:
        super().__init__(message)
        self.message, self.expected, self.seen, self.rank = message, expected, seen, rank
        self.hint = hint  # for this failure; the TODO's own come after it


def expect(
    right: bool, message: str, expected: Any = None, seen: Any = None, rank: int | None = None, hint: str = ""
) -> None:
    """Raise `Wrong` unless `right`."""
    if not right:
        raise Wrong(message, expected, seen, rank, hint)


@dataclass(frozen=True)
class Todo:
    """What a check file says of one TODO. Its title stands in the lesson's source."""

    number: int
    why: str
    hints: tuple[str, ...]
    needs: tuple[int, ...]
    points: int


def todo(number: int, *, why: str, hints: tuple[str, ...], needs: tuple[int, ...] = (), points: int = 1) -> Callable:
    """Mark a function as the check of a TODO. `needs`: without these TODOs it can say nothing."""

    def mark(check: Callable) -> Callable:
        check.todo = Todo(number, why, hints, needs, points)
        return check

    return mark


@dataclass
class Verdict:
    """The answer to "is this TODO right?". Its fields are those of the JSON."""

    lesson: str
    todo: int
    title: str
    status: str  # pass | fail | skipped
    # null | not_attempted | crash | wrong_value | mismatch | hang | prerequisite | not_installed | no_python
    cause: str | None
    points: int
    max_points: int
    message: str = ""
    expected: str | None = None
    seen: str | None = None
    why: str = ""
    hint: str = ""
    hints_seen: int = 1  # steps of the TODO's own hint that this verdict shows
    rank: int | None = None
    where: str | None = None

    @property
    def passed(self) -> bool:
        return self.status == "pass"

    def as_dict(self) -> dict:
        told = asdict(self)
        del told["hints_seen"]  # the course's own bookkeeping
        return told


def todos(numbers: list[int]) -> str:
    """ "TODO 4", "TODOs 1 to 12", "TODOs 9 and 11"."""
    if len(numbers) == 1:
        return f"TODO {numbers[0]}"
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"TODOs {numbers[0]} to {numbers[-1]}"
    return f"TODOs {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def text(value: Any) -> str | None:
    """What was expected or seen, short enough to read."""
    if value is None:
        return None
    return plain.plain_text(value if isinstance(value, str) else repr(value), 400)
