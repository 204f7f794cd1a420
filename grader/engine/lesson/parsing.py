"""What parsers say of a student's file, as plain values.

A stranger's file is parsed in its sandbox (`inside/read_submission.py`); other rooms only compare its lines.
"""

import ast
import functools
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from grader.engine.lesson.statements import statements, without_annotations

if TYPE_CHECKING:
    from nbformat import NotebookNode

# nbformat's validator would load a grammar of international web addresses, which takes two seconds and which our
# notebooks do not need. If the module cannot be imported, it works without.
sys.modules.setdefault("rfc3987_syntax", None)

MOST_CODE, MOST_LINES = 500_000, 20_000  # characters of a script, or of all cells of a notebook
MOST_CELLS = 1000
# What parsing raises for text that is not Python. The last two: nested too deeply for the parser.
NO_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)

# Cell magics whose cell is still Python; cells with any other magic are left out.
PYTHON_CELL = re.compile(r"\s*%%(time|timeit|capture|prun)\b")
MAGIC = re.compile(r"(\s*+)(%{1,2}[a-zA-Z]|!|\?|[\w, ]+=\s*(%[a-zA-Z]|!)|[\w.*]+\?{1,2}\s*$)")


class Outline(NamedTuple):
    """What Python's parser finds in a piece of code."""

    error: str  # why it does not compile; "" if it does
    line: int  # 1-based, of the error
    functions: list[list]  # [name, first line, last line] of each function and class, from the outermost inwards


class Parsed(NamedTuple):
    """All that is asked about a piece of code."""

    outline: Outline
    statements: list[list] | None  # as `statements_of` returns them


class Cell(NamedTuple):
    """A cell of a notebook, or a script as a whole."""

    id: str
    key: str  # by which it is matched to its source
    code: bool  # as opposed to text
    locked: bool  # whether it is the course's
    text: str  # without magics, if it is Python
    parsed: Parsed | None = None  # if it was parsed where the cell was read

    @property
    def runs(self) -> bool:
        """Whether it is the student's code, in Python."""
        return self.code and not self.locked and not is_foreign(self.text)


def cells(text: str, notebook: bool) -> list[Cell]:
    """The cells of a notebook; a script is one cell. Raises ValueError if it cannot be read, or is implausibly long."""
    if not notebook:
        return [Cell("", "", True, False, of_likely_size(text))]
    nodes = read_notebook(text)
    of_likely_size("".join(node.source for node in nodes))
    return [cell_of(node) for node in nodes]


def of_likely_size(code: str) -> str:
    """The code, unless it is implausibly long: it is compared with the source line by line, and a lesson has a few
    hundred lines.
    """
    if len(code) > MOST_CODE or code.count("\n") > MOST_LINES:
        raise ValueError(f"more code than a lesson has ({len(code):,} characters, {MOST_CODE:,} are read)")
    return code


def read_notebook(text: str) -> list["NotebookNode"]:
    import nbformat

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # cells without an id, as written by some editors
            if text.count('"cell_type"') > MOST_CELLS:  # each takes a millisecond to read
                raise ValueError(f"more than {MOST_CELLS} cells")
            nodes = nbformat.reads(text, as_version=4).cells
        # nbformat only logs problems; the fields used here must exist
        for node in nodes:
            if not (node.cell_type and isinstance(node.source, str) and isinstance(key(node), str)):
                raise TypeError("a cell without source")
        return nodes
    except Exception as error:  # nbformat raises many kinds of errors for unknown versions
        reason = str(error).split("\n")[0][:80] or type(error).__name__
        raise ValueError(f"not a notebook that can be read ({reason})") from None


def cell_of(node: "NotebookNode") -> Cell:
    code = node.cell_type == "code"
    cell = Cell(str(node.get("id", "")), key(node), code, is_locked(node), "")
    return edited(cell, node.source) if code else cell


def edited(cell: Cell, source: str) -> Cell:
    """The cell with this source."""
    return cell._replace(text=source if is_foreign(source) else without_magics(source))


@functools.lru_cache(maxsize=256)
def outline(code: str) -> Outline:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nodes, error, line = [], "", 0
        try:
            tree = ast.parse(code)
            nodes = list(ast.walk(tree))
            compile(tree, "<source>", "exec", dont_inherit=True)
        except NO_PYTHON as problem:
            error = f"{type(problem).__name__}: {getattr(problem, 'msg', problem)}"
            line = getattr(problem, "lineno", None) or 1
    named = [node for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return Outline(error, line, [[node.name, node.lineno, node.end_lineno] for node in named])


@functools.lru_cache(maxsize=256)
def statements_of(code: str) -> list[list] | None:
    """[first line, last line, depth, code] of each statement, see `statements`; None for what is not Python. Only what
    was changed is asked for them: in one spelling they take as long as the outline.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return list(statements(ast.parse(code)))
        except NO_PYTHON:
            return None


def without_magics(code: str) -> str:
    """The code with ``pass`` in place of each magic, shell line or ``help?``, so that line numbers stay the same."""
    try:
        ast.parse(code)
        return code  # then a line that starts with % continues the line above
    except NO_PYTHON:
        lines = code.split("\n")
        return "\n".join(f"{m.group(1)}pass" if (m := MAGIC.match(line)) else line for line in lines)


LONGEST_LINE = 500  # characters
ANNOTATED = re.compile(r"(async )?def |\*{0,2}\w+: |\) ->")  # how a line begins that may have annotations


@functools.lru_cache(maxsize=10_000)
def bare(line: str) -> str:
    """A line of code without indentation and annotations: the head of a function or a part of it, or an assignment."""
    text = line.strip()
    if len(text) > LONGEST_LINE or not ANNOTATED.match(text):
        return text
    for before, after in (("", ""), ("", " pass"), ("def f(", " pass"), ("def f(", "): pass")):
        try:
            (statement,) = ast.parse(before + text + after).body
        except NO_PYTHON:
            continue
        if isinstance(statement, ast.AnnAssign):
            value = f" = {ast.unparse(statement.value)}" if statement.value else ""
            return f"{ast.unparse(statement.target)}{value}"
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inside = ast.unparse(without_annotations(statement.args))
            return inside if before else f"def {statement.name}({inside}):"
        break
    return text


def is_locked(node: "NotebookNode") -> bool:
    """Whether the cell belongs to the course: a test, or a cell that nbgrader restores."""
    marks = nbgrader(node)
    return not marks.get("solution") and bool(marks.get("grade") or marks.get("locked"))


def is_foreign(code: str) -> bool:
    return code.lstrip().startswith("%%") and not PYTHON_CELL.match(code)


def nbgrader(node: "NotebookNode") -> dict[str, Any]:
    return node.metadata.get("nbgrader", {})


def key(node: "NotebookNode") -> str:
    """The key by which a student's cell is matched to its source."""
    return nbgrader(node).get("grade_id") or node.get("id", "")
