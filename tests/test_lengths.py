"""A function fits a screen."""

import ast
import subprocess

import pytest

from grader.engine.lesson.lessons import COURSE

SCREEN, MOST = 60, 100  # lines of a function
ALLOWED = 15  # functions longer than a screen: recipes, and commands with many options


def lengths() -> dict[str, int]:
    """Lines of each function of what is written by hand."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=COURSE, capture_output=True, text=True, check=True).stdout
    found = {}
    for name in listed.split():
        path = COURSE / name
        if not name.startswith("train/") and path.is_file():
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.FunctionDef):
                    found[f"{name}: {node.name}"] = node.end_lineno - node.lineno + 1
    return found


@pytest.mark.skipif(not (COURSE / ".git").exists(), reason="no checkout: nobody says which files are ours")
def test_a_function_fits_a_screen():
    found = lengths()
    assert len(found) > 1000
    long = {name: lines for name, lines in found.items() if lines > SCREEN}
    assert max(long.values()) <= MOST, long
    assert len(long) <= ALLOWED, long
