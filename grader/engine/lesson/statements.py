"""Python's statements, one by one, as plain values: what can change a result, in one spelling."""

import ast
import copy
from collections.abc import Iterator


def statements(tree: ast.Module) -> Iterator[list]:
    """[first line, last line, depth of its indentation, code] of each statement, in order; of a compound one, of its
    head, and of each decorator before it. Its code has no annotations, and is "" if it does nothing, as a docstring.
    """
    for statement, depth, opens in _below(tree):
        for decorator in getattr(statement, "decorator_list", ()):
            yield [decorator.lineno, decorator.end_lineno, depth, f"@{ast.unparse(decorator)}"]
        code = _code(statement)
        yield [*_span(statement), depth, opens + code if code else ""]


BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")  # the fields of a node that hold statements
BESIDE = (*BLOCKS, "decorator_list")  # those that are no part of a head


def _below(
    parent: ast.AST, depth: int = 0, in_class: bool = False
) -> Iterator[tuple[ast.stmt | ast.excepthandler | ast.match_case, int, str]]:
    """All statements below a node: with their depth, and the name of the block that they open ("else", …). A class
    keeps its annotations, which may be its fields.
    """
    for field in BLOCKS:
        opens = f"{field}: " if field in ("orelse", "finalbody") else ""
        for statement in getattr(parent, field, ()):
            if not in_class and isinstance(statement, ast.AnnAssign):
                assigned = ast.Assign([statement.target], statement.value) if statement.value else ast.Pass()
                statement = ast.copy_location(assigned, statement)
            yield statement, depth, opens
            yield from _below(statement, depth + 1, isinstance(statement, ast.ClassDef))
            opens = ""


def _span(statement: ast.AST) -> tuple[int, int]:
    """The first and the last line of a statement; of a compound one, of its head."""
    if not hasattr(statement, "body"):
        return statement.lineno, statement.end_lineno
    head = [part for name, value in ast.iter_fields(statement) if name not in BESIDE for part in _nodes(value)]
    rows = [node.lineno for part in head for node in ast.walk(part) if hasattr(node, "lineno")]
    first = getattr(statement, "lineno", None) or min(rows)
    return min([first, *rows]), max([first, *rows])


def _nodes(value: object) -> list[ast.AST]:
    return [part for part in (value if isinstance(value, list) else [value]) if isinstance(part, ast.AST)]


def _code(statement: ast.AST) -> str:
    """A statement in one spelling, without annotations; "" if it does nothing, as a docstring. Of a compound one, its
    head.
    """
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return ""
    if not hasattr(statement, "body"):
        return "" if isinstance(statement, ast.Pass) else ast.unparse(statement)
    empty = {name: [] for name in BESIDE if hasattr(statement, name)} | {"body": [ast.Pass()]}
    head = type(statement)(**dict(ast.iter_fields(statement)) | empty)
    if isinstance(head, ast.Try):
        return "try:"
    if isinstance(head, ast.Match):
        return f"match {ast.unparse(head.subject)}:"
    if isinstance(head, (ast.FunctionDef, ast.AsyncFunctionDef)):
        head.args, head.returns = without_annotations(head.args), None
    return ast.unparse(ast.copy_location(head, statement) if hasattr(statement, "lineno") else head)


def without_annotations(arguments: ast.arguments) -> ast.arguments:
    """A function's arguments, by name and default."""
    plain = copy.deepcopy(arguments)
    for node in ast.walk(plain):
        if isinstance(node, ast.arg):
            node.annotation = None
    return plain
