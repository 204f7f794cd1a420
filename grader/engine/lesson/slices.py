"""The part of a check file that runs on ranks: one function, and whatever it uses from its file.

The same file contains answers. In a process that runs a student's code, `gc.get_objects()` finds everything, however
well hidden: so the answers must not be loaded there.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path


@functools.cache
def slice_of(file: Path, name: str) -> str:
    """The source of a file with only function `name` and what it needs, each at its original line number."""
    source, defined = read(file)
    defined, left, kept = dict(defined), [name], set()
    while left:
        for statement in defined.pop(left.pop(), ()):
            kept |= set(lines_of(statement))
            left += (names := [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)])
            if "globals" in names:  # it calls functions that its inputs name
                left += [known for known in defined if known.endswith("_on_rank")]
    lines = source.split("\n")
    return "\n".join(line if number in kept else "" for number, line in enumerate(lines, start=1))


@functools.cache
def read(file: Path) -> tuple[str, dict[str, list[ast.stmt]]]:
    """The source of a file, and the statements by which each of its names is defined."""
    source = file.read_text("utf-8")
    defined: dict[str, list[ast.stmt]] = {}
    for statement in ast.parse(source).body:
        for known in set(names_of(statement)):
            defined.setdefault(known, []).append(statement)
    return source, defined


def names_of(statement: ast.stmt) -> Iterator[str]:
    """The names that a module's statement defines."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Import, ast.ImportFrom)):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
    else:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def lines_of(statement: ast.stmt) -> range:
    """The lines of a statement, including its decorators."""
    first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])
    return range(first, statement.end_lineno + 1)
