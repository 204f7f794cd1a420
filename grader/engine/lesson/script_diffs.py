"""What changes from one script to the next: a diff of the two, solved, in which each solution is a single line."""

import ast
import difflib
import functools

from grader.engine.lesson import lessons, todo_regions

AROUND = 2  # unchanged lines shown around a change


def diff(before: str, after: str) -> str:
    """The diff between the scripts of two lessons, as a block of Markdown."""
    names = [f"train/{stem}.py" for stem in (before, after)]
    lines = difflib.unified_diff(told(before), told(after), *names, n=AROUND, lineterm="")
    return "\n".join(["````diff", *lines, "````"])


def told(stem: str) -> list[str]:
    """The lines of a finished script, without its docstring. A solution, also of an earlier lesson's TODO, is one line
    that names the TODO: readers have it before them, and other readers not yet.
    """
    text = todo_regions.without_todos(lessons.source_path(stem).read_text("utf-8"))
    text = text.removeprefix(f'"""{ast.get_docstring(ast.parse(text), clean=False)}"""\n').lstrip("\n")
    lines, code = text.split("\n"), list(todo_regions.code_lines(text))
    for todo, body in solutions():
        for at in range(len(code) - len(body), -1, -1):
            if [line for _, line in code[at : at + len(body)]] == body:
                first, last = code[at][0], code[at + len(body) - 1][0]
                here = lines[first - 1]
                indent = here[: len(here) - len(here.lstrip())]
                lines[first - 1] = f"{indent}...  # the solution of {todo}"
                lines[first:last] = [""] * (last - first)
                code[at : at + len(body)] = []
    blank = [n for n, line in enumerate(lines) if not line and (n == 0 or not lines[n - 1])]
    return [line for n, line in enumerate(lines) if n not in set(blank)]


@functools.cache
def solutions() -> list[tuple[str, list[str]]]:
    """(lesson/TODO, its lines of code) for each region of a script, the longest first."""
    found = []
    for stem in lessons.stems():
        if not lessons.is_notebook(stem):
            for region in todo_regions.parse(lessons.source_path(stem).read_text("utf-8")):
                if body := todo_regions.normalise("\n".join(region.solution)):
                    found.append((f"{stem}/{region.todo}", body))
    return sorted(found, key=lambda solution: -len(solution[1]))
