"""Wrong answers that nobody thought of: a reference solution with one small change, made by a rule.

The answers in `grader/lessons/` are mistakes that somebody had in mind when the check was written. Here every place of
a solution is changed in turn, as mutation testing does (DeMillo, Lipton and Sayward 1978): a line is left out, a
comparison turned, a bound moved by one, an argument dropped, a copy forgotten, a rank taken for rank 0. Most changes
give wrong answers, and the check must reject those. Some do not change what the code does; which ones, only a reader
can say. So the result is a list to read, and not a test.
"""

import ast
import copy
import random
from collections.abc import Callable, Iterator

from grader.engine.judge.other_answers import Answer, sources
from grader.engine.lesson import todo_regions

TURNED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
# Names that are put in place of another.
TAKEN_FOR = {
    "min": "max",
    "max": "min",
    "SUM": "MAX",
    "MAX": "SUM",
    "any": "all",
    "all": "any",
    "float32": "float64",
    "float64": "float32",
    "zeros_like": "ones_like",
    "ones_like": "zeros_like",
    "empty_like": "zeros_like",
    "no_grad": "enable_grad",
}
# What these are where code is tried first: on rank 0 of 2.
RANKS = ("rank", "local_rank", "stage", "index", "me")
WORLDS = ("world", "world_size", "ranks", "size")

# What is done, in words, and what makes the new node of the old one.
Change = tuple[str, Callable[[ast.AST], ast.AST | list[ast.AST] | None]]


def changed(lesson: str, todo: int, most: int = 0, seed: str = "") -> list[Answer]:
    """Answers to a TODO of a script or notebook, each the solution with one change; at most `most` of them, drawn."""
    found: dict[tuple[str, ...], str] = {}
    for path, source in sources(lesson).items():
        if path.suffix == ".py" and todo in todo_regions.titles(source):
            bodies = todo_regions.solutions(source, todo)
            for place, body in enumerate(bodies):
                for words, text in changes(body):
                    found.setdefault((*bodies[:place], text, *bodies[place + 1 :]), words)
    drawn = list(found.items())
    if most and len(drawn) > most:
        drawn = random.Random(f"{seed}/{lesson}/{todo}").sample(drawn, most)
    return [Answer(todo, words, body=list(bodies)) for bodies, words in drawn]


def changes(body: str) -> Iterator[tuple[str, str]]:
    """Every change of a region's body: in words, and the new body."""
    tree = ast.parse(body)
    same = ast.unparse(tree)
    for number, node in enumerate(ast.walk(tree)):
        for words, change in changes_of(node):
            other = copy.deepcopy(tree)
            target = next(node for place, node in enumerate(ast.walk(other)) if place == number)
            text = ast.unparse(ast.fix_missing_locations(Replaced(target, change(target)).visit(other)))
            if text != same:
                yield f"line {getattr(node, 'lineno', 0)}: {words}", text


class Replaced(ast.NodeTransformer):
    """A tree in which one node is replaced."""

    def __init__(self, old: ast.AST, new: ast.AST | list[ast.AST] | None) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST | list[ast.AST] | None:
        return self.new if node is self.old else self.generic_visit(node)


def changes_of(node: ast.AST) -> Iterator[Change]:
    """What can be done to one node."""
    short = " ".join(ast.unparse(node).split())[:60] if isinstance(node, (ast.expr, ast.stmt)) else ""
    if isinstance(node, ast.stmt):
        yield from changes_of_statement(node, short)
    elif isinstance(node, (ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare)):
        yield from changes_of_operation(node, short)
    elif isinstance(node, ast.Call):
        yield from changes_of_call(node, short)
    else:
        yield from changes_of_value(node)


def changes_of_statement(node: ast.stmt, short: str) -> Iterator[Change]:
    match node:
        case ast.Expr(value=ast.Constant()):
            pass  # a docstring
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Assert():
            yield f"without “{short}”", lambda _: ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield f"without “{short}”", lambda _: ast.Pass()
        case ast.If():
            yield f"always “{ast.unparse(node.test)}”", lambda old: old.body
            yield f"never “{ast.unparse(node.test)}”", lambda old: old.orelse or ast.Pass()
        case ast.With():
            yield f"without “with {ast.unparse(node.items[0])}”", lambda old: old.body
        case ast.For():
            first, last = ast.Slice(lower=ast.Constant(1)), ast.Slice(upper=ast.Constant(-1))
            yield f"all but the first of {ast.unparse(node.iter)}", lambda old: sliced(old, first)
            yield f"all but the last of {ast.unparse(node.iter)}", lambda old: sliced(old, last)
        case ast.Break() | ast.Continue():
            yield f"without “{short}”", lambda _: ast.Pass()


def changes_of_operation(node: ast.expr, short: str) -> Iterator[Change]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in TURNED:
            yield f"“{short}” turned", lambda old: with_field(old, "ops", [TURNED[type(old.ops[0])]()])
        case ast.BinOp(op=op):
            if type(op) in TURNED:
                yield f"“{short}” with another sign", lambda old: with_field(old, "op", TURNED[type(old.op)]())
            yield f"“{short}”: its left side only", lambda old: old.left
            yield f"“{short}”: its right side only", lambda old: old.right
        case ast.BoolOp():
            yield f"“{short}”: and for or", lambda old: with_field(old, "op", TURNED[type(old.op)]())
            yield f"“{short}”: only its first", lambda old: old.values[0]
            yield f"“{short}”: only its last", lambda old: old.values[-1]
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield f"“{short}” without its sign", lambda old: old.operand


def changes_of_value(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.IfExp():
            yield f"always “{ast.unparse(node.body)}”", lambda old: old.body
            yield f"always “{ast.unparse(node.orelse)}”", lambda old: old.orelse
        case ast.Constant(value=bool()):
            yield f"{not node.value} for {node.value}", lambda old: ast.Constant(not old.value)
        case ast.Constant(value=int()):
            yield f"{node.value + 1} for {node.value}", lambda old: ast.Constant(old.value + 1)
        case ast.Slice():
            if node.lower:
                yield "a slice from the start", lambda old: with_field(old, "lower", None)
            if node.upper:
                yield "a slice to the end", lambda old: with_field(old, "upper", None)
        case ast.Name(id=name, ctx=ast.Load()) if name in RANKS:
            yield f"0 for {name}", lambda _: ast.Constant(0)
        case ast.Name(id=name, ctx=ast.Load()) if name in WORLDS:
            yield f"2 for {name}", lambda _: ast.Constant(2)
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in TAKEN_FOR:
            field = "id" if isinstance(node, ast.Name) else "attr"
            yield f"{TAKEN_FOR[name]} for {name}", lambda old: with_field(old, field, TAKEN_FOR[name])


def changes_of_call(node: ast.Call, short: str) -> Iterator[Change]:
    for place, keyword in enumerate(node.keywords):
        if keyword.arg:
            yield f"“{short}” without {keyword.arg}=", lambda old, place=place: without(old, "keywords", place)
    method = isinstance(node.func, ast.Attribute)
    if method and not (node.args and isinstance(node.func.value, ast.Name | ast.Attribute)):
        yield f"“{short}” without .{node.func.attr}", lambda old: old.func.value
    if len(node.args) == 1 and not node.keywords and not isinstance(node.args[0], ast.Starred):
        yield f"“{short}”: its argument", lambda old: old.args[0]
    if len(node.args) > 1:
        yield (
            f"“{short}”: its first two arguments swapped",
            lambda old: with_field(old, "args", [old.args[1], old.args[0], *old.args[2:]]),
        )
        yield f"“{short}” without its last argument", lambda old: without(old, "args", len(old.args) - 1)


def with_field(node: ast.AST, field: str, value: object) -> ast.AST:
    setattr(node, field, value)
    return node


def without(node: ast.AST, field: str, place: int) -> ast.AST:
    return with_field(node, field, [part for number, part in enumerate(getattr(node, field)) if number != place])


def sliced(loop: ast.For, part: ast.Slice) -> ast.For:
    items = ast.Call(ast.Name("list", ast.Load()), [loop.iter], [])
    return with_field(loop, "iter", ast.Subscript(items, part, ast.Load()))
