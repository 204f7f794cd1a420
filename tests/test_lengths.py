"""A function fits a screen, and a comment stands at the line that it speaks of."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from grader.engine.lesson.lessons import COURSE

pytestmark = pytest.mark.skipif(not (COURSE / ".git").exists(), reason="no checkout: nobody says which files are ours")

SCREEN, MOST = 60, 100  # lines of a function
ALLOWED = 16  # functions longer than a screen: recipes, and commands with many options
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
