"""What a student has changed outside the TODOs, and which TODO's code is no Python.

What cannot change a result does not count: where a file is Python, its statements are compared, without docstrings and
annotations, in one spelling (`statements.py`). All else is compared line by line. No student's code is parsed here.
"""

import ast
import functools
import re
import textwrap
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from grader.engine.lesson.parsing import statements_of
from grader.engine.lesson.todo_regions import attempted, code_lines, compose, locate, todo_at


class Change(NamedTuple):
    """A line of code outside all TODOs that was changed, removed or added."""

    line: int  # 1-based, in the student's file
    text: str  # in words, quoted
    given: bool  # a given line was changed or removed; otherwise it was added


def changed_elsewhere(source: str, edited: str, statements: Sequence[Sequence] | None = None) -> list[Change]:
    """Lines of code outside all regions that were added or changed, and given ones that are missing. Indentation
    counts: a line that is moved into an `if` does something different. What cannot change a result does not count:
    docstrings, annotations, comments, and how a statement is wrapped and quoted.

    Args:
        statements: the statements of `edited`, as in a `Unit`; None if it is not Python: lines are compared then.
    """
    given = compose(source)
    if edited == given:
        return []
    both = statements_of(given), statements
    old, new = (
        list(_lines_outside(source, text) if None in both else _statements_outside(source, text, theirs))
        for text, theirs in zip((given, edited), both)
    )
    matcher = SequenceMatcher(None, [piece.key for piece in old], [piece.key for piece in new], False)
    found = []
    for kind, first, last, begin, end in matcher.get_opcodes():
        if kind == "equal":
            continue
        for before, now in zip(old[first:last], new[begin:end]):
            moved = ", indented differently" if before.code == now.code else ""
            at = now.first_unlike(before)
            found.append(Change(now.number + at, f"“{_short(now.lines[at])}”{moved}", True))
        changed = min(last - first, end - begin)
        found += [Change(piece.number, f"“{_short(piece.lines[0])}”", False) for piece in new[begin + changed : end]]
        place = new[min(begin + changed, len(new) - 1)].number if new else 1
        missing = old[first + changed : last]
        found += [Change(place, f"“{_short(piece.lines[0])}” is missing", True) for piece in missing]
    return found


class Piece(NamedTuple):
    """A line of code, or a statement; of a compound one its head."""

    number: int  # 1-based, of its first line
    lines: Sequence[str]
    depth: int  # of its indentation
    code: str  # without what does not count

    @property
    def key(self) -> tuple[int, str]:
        return self.depth, self.code

    def first_unlike(self, other: "Piece") -> int:
        """The index of its first line that the other does not have."""
        theirs = {line.strip() for line in other.lines}
        return next((at for at, line in enumerate(self.lines) if line.strip() not in theirs), 0)


def _lines_outside(source: str, text: str) -> Iterator[Piece]:
    """The lines of code outside all regions."""
    inside, lines = _inside(source, text), text.split("\n")
    for number, code in code_lines(text):
        if number not in inside:
            line = lines[number - 1].expandtabs(4)
            yield Piece(number, [lines[number - 1]], len(line) - len(line.lstrip()), code)


def _inside(source: str, text: str) -> set[int]:
    """The lines of all regions."""
    return {line for lines in locate(source, text).values() for piece in lines for line in piece}


def _statements_outside(source: str, text: str, statements: Sequence[Sequence]) -> Iterator[Piece]:
    """The statements outside all regions, in order; of one with a region inside it, the lines around that."""
    inside, lines = _inside(source, text), text.split("\n")
    plain = dict(code_lines(text))
    for first, last, depth, code in statements:
        rows = range(first, last + 1)
        if inside.isdisjoint(rows):
            if code:
                yield Piece(first, lines[first - 1 : last], depth, code)
        else:
            yield from (Piece(n, [lines[n - 1]], depth, plain[n]) for n in rows if n in plain and n not in inside)


def brought_back(source: str, edited: str) -> str:
    """The student's file in which all that was given is as it was: only the TODOs' code is the student's."""
    lines, places = edited.split("\n"), locate(source, edited)
    bodies = {
        todo: ["\n".join(lines[place.start - 1 : place.stop - 1]) for place in mine] for todo, mine in places.items()
    }
    return compose(source, (), bodies)


def rebound(given: Sequence[str], cell: str) -> list[Change]:
    """Lines of a cell of the student's own that give a new meaning to a name which the given cells bind. The cell's
    lines are only compared, not parsed.
    """
    names = set().union(*map(_names_bound, given))
    same = {line.strip() for source in given for line in source.split("\n")}
    return [
        Change(number, f"“{_short(line)}”", False)
        for number, line in enumerate(cell.split("\n"), start=1)
        if line.strip() not in same and not names.isdisjoint(_bound_by(line[:200]))
    ]


@functools.lru_cache(maxsize=256)
def _names_bound(code: str) -> set[str]:
    """The names that a given cell binds where it is not inside a function or class; of a cell with magics, none."""
    try:
        statements = ast.parse(code).body
    except SyntaxError:
        return set()
    return {name for line in map(ast.unparse, statements) for name in _bound_by(line.split("\n")[0])}


BINDS = re.compile(r"(?:def|class)\s+(?P<made>\w+)|(?:from .*)?import (?P<imported>.*)|(?P<stored>\w[\w, ]*)=[^=]")


def _bound_by(line: str) -> set[str]:
    """The names that a line without indentation binds."""
    found = BINDS.match(line)
    if not found:
        return set()
    if found["imported"]:
        return {name.split(" as ")[-1].strip("() ").split(".")[0] for name in found["imported"].split(",")}
    return {found["made"]} if found["made"] else {*re.findall(r"\w+", found["stored"])}


def todo_to_blame(source: str, edited: str, line: int) -> int | None:
    """The TODO whose code makes 1-based ``line`` a syntax error, or None.

    A line that is unchanged is not the cause; then it is the nearest changed line above, such as a ``for`` without a
    body. A given line that was indented by tabs instead is the cause itself.
    """
    text, given = edited.split("\n")[line - 1], compose(source).split("\n")
    if text.startswith("\t") and text.expandtabs(4) in given and todo_at(source, edited, line) is None:
        return None
    changed: dict[int, int | None] = {number: None for number, *_ in changed_elsewhere(source, edited)}
    for todo, places in locate(source, edited).items():
        if attempted(source, edited, todo):
            for number in (number for place in places for number in place or [place.start - 1]):
                changed[number] = None if number in changed else todo  # what two might have written belongs to neither
    return changed[max(above)] if (above := [number for number in changed if number <= line]) else None


def _short(line: str) -> str:
    return textwrap.shorten(line, 80, placeholder=" …")
