"""What counts as a change to what was given, and how a verdict reports it."""

import ast
import dataclasses

import pytest

from grader.engine.judge.other_answers import WRONG, answered, listed
from grader.engine.judge.mutants import judge_of
from grader.engine.lesson import changes, lessons, parsing, todo_regions

SOURCE = '''\
import os


class Point:
    """A place."""

    x: int = 0


def shared(items: list[int], of: int = 1, *, name: str = "a") -> list[int]:
    """The items of a rank."""
    for item in items:
        if item:
            break
    else:
        print("none")
    return items[
        of:
    ]


def main(rank: int) -> None:
    # TODO 1: Say it.
    ### BEGIN SOLUTION
    print(rank)
    ### END SOLUTION
    total: int = 0
    print(
        total,
        # TODO 2: The rank.
        ### BEGIN SOLUTION
        rank,
        ### STUDENT
        # 0,
        ### END SOLUTION
        os.environ,
    )
'''


def changed(source: str, edited: str) -> list[changes.Change]:
    return changes.changed_elsewhere(source, edited, parsing.statements_of(edited))


def told(*swaps: tuple[str, str]) -> list[str]:
    text = todo_regions.compose(SOURCE, (1, 2))
    for old, new in swaps:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return [change.text for change in changed(SOURCE, text)]


@pytest.mark.parametrize(
    "swap",
    [
        ('    """The items of a rank."""\n', ""),
        ('    """A place."""\n', '    """Something else.\n\n    And more.\n    """\n\n'),
        ("items: list[int], of: int = 1", "items, of=1"),
        (") -> list[int]:", "):"),
        ("total: int = 0", "total = 0"),
        ("total: int = 0", "total: int\n    total = 0"),
        ('name: str = "a"', "name: str = 'a'"),
        ("items[\n        of:\n    ]", "items[of:]"),
        ("(items: list[int],", "(\n    items: list[int],"),
        ("        if item:\n", "\n        # one of them\n        if (item):\n"),
    ],
)
def test_what_cannot_change_a_result_is_no_change(swap):
    assert told(swap) == []


@pytest.mark.parametrize(
    ("swap", "text"),
    [
        ("    x: int = 0", "“x = 0”"),  # of a class it may make a field
        ("of: int = 1", '“def shared(items: list[int], of: int = 2, *, name: str = "a") -> list[int]:”'),
        ("    else:\n        print", '“print("none")”, indented differently'),
        ("        of:\n", "“of + 1:”"),
        ("        total,\n", "“-total,”"),
        ("        os.environ,\n", "“os.environ,” is missing"),
    ],
)
def test_what_can_is_told_by_its_line(swap, text):
    news = {"    x: int = 0": "    x = 0", "of: int = 1": "of: int = 2", "        of:\n": "        of + 1:\n"}
    news |= {"    else:\n        print": "    if True:\n        print"} | {"        total,\n": "        -total,\n"}
    found = told((swap, news.get(swap, "")))
    assert text in found or (swap.startswith("    else") and found), found


def test_a_decorator_is_an_added_line_and_the_function_below_is_unchanged():
    text = todo_regions.compose(SOURCE, (1, 2)).replace("def main(", "@torch.no_grad()\ndef main(")
    assert [(change.text, change.given) for change in changed(SOURCE, text)] == [("“@torch.no_grad()”", False)]


def undressed(text: str) -> str:
    """Python without docstrings, and functions without annotations."""
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and len(body) > 1 and isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            first = body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                lines[first.lineno - 1 : first.end_lineno] = [""] * (first.end_lineno - first.lineno + 1)
        if isinstance(node, ast.arg) and node.annotation and node.lineno == node.annotation.end_lineno:
            line = lines[node.lineno - 1].encode()
            begin, end = node.col_offset + len(node.arg.encode()), node.annotation.end_col_offset
            lines[node.lineno - 1] = (line[:begin] + b" " * (end - begin) + line[end:]).decode()
    return "\n".join(lines)


@pytest.mark.parametrize("lesson", lessons.stems())
def test_no_lesson_needs_its_docstrings_and_annotations(lesson):
    source = lessons.source_path(lesson).read_text("utf-8")
    cells = [source]
    if lessons.is_notebook(lesson):
        cells = [cell.source for cell in lessons.read_percent(source, lesson).cells if cell.cell_type == "code"]
    some = 0
    for cell in cells:
        given = parsing.without_magics(todo_regions.compose(cell))
        if given == todo_regions.compose(cell):
            some += undressed(given) != given
            assert changed(cell, undressed(given)) == [], cell[:80]
    assert some


def test_the_students_code_is_kept_where_the_course_is_brought_back():
    mine = todo_regions.compose(SOURCE, (), {1: "print(rank + 1)", 2: "rank + 1,"})
    edited = mine.replace("import os\n", "").replace("total: int = 0", "total = 1")
    assert changed(SOURCE, edited) and changes.brought_back(SOURCE, edited) == mine
    assert changes.brought_back(SOURCE, "") == todo_regions.compose(SOURCE, (), {1: "", 2: ""})


def verdict(runner, todo: int, name: str, *edits: tuple[str, str]):
    """The verdict on one of 01's wrong answers, with other lines edited, too."""
    lesson = "01_collectives"
    wrong = listed(lesson, WRONG)
    answer = next(answer for answer in wrong if (answer.todo, answer.name) == (todo, name))
    answer = dataclasses.replace(answer, edits=edits)
    judge = judge_of(runner, lesson, answered(lesson, answer), {*lessons.titles(lesson)} - {todo}, once=True)
    return judge.verdict(todo)


DOCSTRING = '    """What each rank holds after an all-reduce (sum) of the 1-D tensors ``inputs``."""\n'
GIVEN = "        for _ in range(10):\n            dist.barrier()"


def test_a_docstring_that_is_gone_takes_no_diagnosis_away(runner):
    plain = verdict(runner, 4, "all send first")
    assert plain.message.startswith("deadlock: rank 0 waits in send")
    bare = verdict(runner, 4, "all send first", (DOCSTRING, ""))
    assert (bare.message, bare.cause, bare.hint) == (plain.message, plain.cause, plain.hint)


def test_a_line_that_is_changed_stands_beside_the_diagnosis(runner):
    plain = verdict(runner, 4, "all send first")
    beside = verdict(runner, 4, "all send first", (GIVEN, GIVEN.replace("10", "20")))
    assert beside.message.startswith(plain.message), beside.message
    assert "lines that were given are changed or gone" in beside.message and "`./workbook diff" in beside.message
    assert (beside.cause, beside.hint) == ("hang", plain.hint)
