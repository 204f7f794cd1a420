"""A function fits a screen, a comment stands at the line that it speaks of, and no line of a notebook wraps."""

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest

from grader.engine.lesson.lessons import COURSE

pytestmark = pytest.mark.skipif(not (COURSE / ".git").exists(), reason="no checkout: nobody says which files are ours")

SCREEN, MOST = 60, 100  # lines of a function
ALLOWED = 16  # functions longer than a screen: recipes, and commands with many options
IN_JUPYTERLAB = 105  # columns of a cell; a longer line wraps to column 0
LONE_BRACKET = re.compile(r"^ *[])}]+[,:]? +# (?!fmt|noqa|type)", re.MULTILINE)  # where a formatter leaves a comment


def ours() -> list[Path]:
    """What is written by hand."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=COURSE, capture_output=True, text=True, check=True).stdout
    files = [COURSE / name for name in listed.split() if not name.startswith("train/")]
    return [file for file in files if file.is_file()]


def test_a_function_fits_a_screen():
    lengths = {}
    for file in ours():
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                lengths[f"{file.relative_to(COURSE)}: {node.name}"] = node.end_lineno - node.lineno + 1
    assert len(lengths) > 1000
    long = {name: lines for name, lines in lengths.items() if lines > SCREEN}
    assert max(long.values()) <= MOST, long
    assert len(long) <= ALLOWED, long


def test_no_comment_stands_behind_a_lone_bracket():
    assert LONE_BRACKET.search("x = (\n    1,\n)  # one\n")
    assert LONE_BRACKET.search("if (\n    x\n):  # one\n")
    assert [file.name for file in ours() if LONE_BRACKET.search(file.read_text("utf-8"))] == []


def test_no_line_of_code_in_a_notebook_wraps():
    """The students' notebooks, which `./workbook build` writes; it is their source that has to change."""
    long, notebooks = [], sorted((COURSE / "notebooks").glob("*.ipynb"))
    assert len(notebooks) > 10
    for path in notebooks:
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            lines = "".join(cell["source"]).splitlines() if cell["cell_type"] == "code" else []
            long += [f"{path.stem}: {line}" for line in lines if len(line) > IN_JUPYTERLAB]
    assert not long, "\n".join(long)


def test_no_line_of_a_solution_in_a_notebook_wraps():
    for path in sorted((COURSE / "solutions" / "notebooks").glob("*.py")):
        code = re.sub(r"^# %% \[markdown\].*?(?=^# %%|\Z)", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        long = [line for line in code.splitlines() if len(line) > IN_JUPYTERLAB and not line.startswith("# %%")]
        assert not long, f"{path.stem}: {long}"
