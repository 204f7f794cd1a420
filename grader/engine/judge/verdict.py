"""What a check declares and raises, and the resulting verdict."""

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from grader.engine.ranks.diagnose import Fault, Unjudged
from grader.engine.walls import sanitize
from utils import releases


class BadDraw(Unjudged):
    """The numbers drawn for a check do not distinguish right from wrong; others may."""


class BadCheck(Unjudged):
    """The check itself is mistaken, so the code is not judged."""


class Wrong(Exception):
    """The code ran and did the wrong thing. `expected` and `seen` are a few words each."""

    # What a `Fault` has in addition.
    cause, where, also, callers, ops = "wrong_value", None, (), (), ()

    def __init__(
        self, message: str, expected: Any = None, seen: Any = None, rank: int | None = None, hint: str = ""
    ) -> None:
        super().__init__(message)
        self.message, self.rank = message, rank
        self.expected, self.seen = apart(expected, seen)
        self.hint = hint  # for this failure; the TODO's own hints come after it


def apart(expected: Any, seen: Any) -> tuple[Any, Any]:
    """Two values shortened so that they visibly differ: numbers with enough digits; of tensors or lists of numbers of
    equal length, the elements where they differ most; of long lists of names, the names that only one has. Anything
    else as it is.
    """
    if is_number(expected) and is_number(seen):
        whole = isinstance(expected, int) and isinstance(seen, int)
        return (not whole and in_digits([expected], [seen])) or (expected, seen)
    if are_names(expected) and are_names(seen) and max(len(expected), len(seen)) > SHOWN:
        return names_apart(expected, seen)
    a, b = flat(expected), flat(seen)
    if not a or not b or shape(expected) != shape(seen):
        return described(expected), described(seen)
    gaps = [abs(x - y) if math.isfinite(x) and math.isfinite(y) else math.inf * (x != y) for x, y in zip(a, b)]
    worst = max(range(len(a)), key=lambda n: -1.0 if math.isnan(gaps[n]) else gaps[n])
    part, place = around(worst, shape(expected))
    digits = in_digits(a[part], b[part])
    if digits and len(a) > SHOWN:
        digits = tuple(f"{words} ({place})" for words in digits)
    return digits or (described(expected), described(seen))


SHOWN = 6  # shown numbers of a tensor, or names of a list


def around(worst: int, sizes: tuple[int, ...]) -> tuple[slice, str]:
    """The numbers around one of a flattened tensor, and where they are. Of a matrix only numbers of one row: a flat
    list of several rows would not show which number is which.
    """
    count, width = math.prod(sizes), sizes[-1] if sizes else 1
    if len(sizes) < 2 or width == 1:
        begin = max(0, min(worst - SHOWN // 2, count - SHOWN))
        return slice(begin, begin + SHOWN), f"numbers {begin + 1} to {begin + SHOWN} of {count}"
    row, column = divmod(worst, width)
    begin = max(0, min(column - SHOWN // 2, width - SHOWN))
    end, index = min(begin + SHOWN, width), []
    for size in reversed(sizes[:-1]):
        row, place = divmod(row, size)
        index.insert(0, place)
    start = worst - column
    return slice(start + begin, start + end), f"[{', '.join(map(str, index))}, {begin}:{end}] of shape {sizes}"


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def are_names(value: Any) -> bool:
    return isinstance(value, (list, tuple, set)) and all(isinstance(name, str) for name in value)


def names_apart(expected: Collection[str], seen: Collection[str]) -> tuple[Any, Any]:
    missing, more = sorted(set(expected) - set(seen)), sorted(set(seen) - set(expected))
    if not missing and not more:  # e.g. the same names in a different order
        return expected, seen
    right = f"{len(expected)} names" + (f", with {some(missing)}" if missing else f", without {some(more)}")
    return right, f"{len(seen)} names" + (f", without {some(missing)}" if missing else f", with {some(more)}")


def some(names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return f"{shown} and {len(names) - SHOWN} more" if len(names) > SHOWN else shown


def shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if hasattr(value, "detach") else (len(value),)


def described(value: Any) -> Any:
    """A tensor, or a long list of numbers, as its size and first numbers; anything else as it is."""
    numbers = flat(value)
    if numbers is None or (isinstance(value, (list, tuple)) and len(value) <= SHOWN):
        return value
    size = f"shape {shape(value)}" if hasattr(value, "detach") else f"{len(numbers)} numbers"
    return f"{size}: {', '.join(f'{float(n):.5g}' for n in numbers[:SHOWN])}{', …' if len(numbers) > SHOWN else ''}"


def flat(value: Any) -> list[float] | None:
    """The numbers of a tensor, or of a list of floats; None for anything else."""
    if hasattr(value, "detach"):
        value = value.detach().flatten().tolist()
    elif not isinstance(value, (list, tuple)) or not any(isinstance(number, float) for number in value):
        return None
    return list(value) if all(map(is_number, value)) else None


def in_digits(expected: list[float], seen: list[float]) -> tuple[str, str] | None:
    """Both numbers with enough digits to differ; None if no number of digits suffices."""
    for digits in range(5, 18):
        a, b = (", ".join(f"{float(n):.{digits}g}" for n in numbers) for numbers in (expected, seen))
        if a != b:
            return a, b
    return None


def expect(
    right: bool, message: str, expected: Any = None, seen: Any = None, rank: int | None = None, hint: str = ""
) -> None:
    """Raise `Wrong` unless `right`."""
    if not right:
        raise Wrong(message, expected, seen, rank, hint)


@contextmanager
def hinted(hint: str, *causes: str, told: str = "") -> Iterator[None]:
    """Failures in this block get this hint before the TODO's own hints, whose first is about a different part of the
    TODO. With `causes`, such as "hang", only such failures do. `told`: the scenario, in words, for what stops the ranks
    in it; what a check raises itself says that already.
    """
    try:
        yield
    except (Wrong, Fault) as problem:
        if not causes or problem.cause in causes:
            problem.hint = problem.hint or hint
        if told and isinstance(problem, Fault):
            problem.message = f"{told}: {problem.message}"
        raise


class Since(NamedTuple):
    """What a check needs of torch: `what` has come with this release, on GPUs perhaps earlier."""

    release: str
    what: str
    on_cpus: bool = False  # only there

    def lacking(self, on_gpus: bool) -> str:
        """One line if this torch is older; else ""."""
        return "" if on_gpus and self.on_cpus else releases.lacks(self.release, self.what)


@dataclass(frozen=True)
class Todo:
    """A check's declaration of its TODO. The title is in the lesson's source; why it matters and its hints are in the
    lesson's texts.
    """

    number: int
    needs: tuple[int, ...]
    points: int
    in_place: tuple[str, ...]
    once: str
    since: Since | None


def todo(
    number: int,
    *,
    needs: tuple[int, ...] = (),
    points: int = 1,
    in_place: tuple[str, ...] = (),
    once: str = "",
    since: Since | None = None,
) -> Callable:
    """Mark a function as the check of a TODO.

    `needs`: without these TODOs the check cannot run. `in_place`: names of arguments that the student's functions may
    change. `once`: why the check is not called a second time in one process. `since`: below that
    release of torch neither this TODO nor what needs it is judged.
    """

    def mark(check: Callable) -> Callable:
        check.todo = Todo(number, needs, points, in_place, once, since)
        return check

    return mark


@dataclass
class Verdict:
    """The answer to "is this TODO right?". Its fields are the JSON's."""

    lesson: str
    todo: int
    title: str
    status: str  # pass | fail | skipped
    # null | not_attempted | crash | wrong_value | mismatch | hang | prerequisite | not_installed | no_python
    # lines_outside: given lines are changed or gone; with them as they were, the TODO is right
    # not_judged: the check is at fault, no draw of its numbers tells right from wrong, or torch is too old; so no mark
    cause: str | None
    points: int
    max_points: int
    message: str = ""
    expected: str | None = None
    seen: str | None = None
    why: str = ""
    hint: str = ""
    hints_seen: int = 1  # how many of the TODO's own hints this verdict shows
    rank: int | None = None
    where: str | None = None

    @property
    def passed(self) -> bool:
        return self.status == "pass"

    @property
    def state(self) -> str:
        """The status; but "new" for a TODO that was not started: nothing in it is wrong."""
        return "new" if self.cause == "not_attempted" else self.status

    def as_dict(self) -> dict:
        fields = asdict(self)
        del fields["hints_seen"]  # internal bookkeeping
        return fields


def todos(numbers: list[int]) -> str:
    """ "TODO 4", "TODOs 1 to 12", "TODOs 9 and 11"."""
    if len(numbers) == 1:
        return f"TODO {numbers[0]}"
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"TODOs {numbers[0]} to {numbers[-1]}"
    return f"TODOs {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def count_of(number: int, noun: str) -> str:
    """ "1 rank", "3 ranks"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


ALIKE = ", by what is shown of it"  # when expected and seen would read the same


def text(value: Any) -> str | None:
    """What was expected or seen, short enough to read."""
    if value is None:
        return None
    return sanitize.plain_text(value if isinstance(value, str) else repr(value), 400)
