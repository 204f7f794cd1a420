"""The engine's rooms: who may import from whom."""

import ast
from pathlib import Path

import pytest

from grader.engine.lesson.lessons import COURSE

ENGINE = COURSE / "grader" / "engine"
# From the top: a room imports from itself and from rooms in later rows. What people see lies above all rooms.
ROWS = [("",), ("classroom",), ("judge",), ("ranks", "jobs"), ("walls",), ("lesson",)]
ROW = {room: number for number, rooms in enumerate(ROWS) for room in rooms}


def room_of(parts: tuple[str, ...]) -> str:
    """The room in which a module of the engine lies; "" for the modules above the rooms."""
    return parts[0] if parts and parts[0] in ROW else ""


def imports(file: Path) -> set[str]:
    """The rooms from which a file imports, also within its functions."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("grader.engine."):
                found.add(room_of(tuple(name.removeprefix("grader.engine.").split("."))))
    return found


FILES = sorted(ENGINE.rglob("*.py"))


def test_every_room_has_a_row_and_a_sentence():
    folders = {path.parent.name for path in ENGINE.glob("*/__init__.py")}
    assert folders == ROW.keys() - {""}
    assert all(ast.get_docstring(ast.parse(path.read_text("utf-8"))) for path in ENGINE.rglob("__init__.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ENGINE).as_posix())
def test_a_room_imports_only_from_itself_and_from_rooms_below(file):
    own = room_of(file.relative_to(ENGINE).parts[:-1])
    above = {room for room in imports(file) if room != own and ROW[room] <= ROW[own]}
    assert not above, f"{file.relative_to(ENGINE)} imports from {sorted(above)}"


def test_the_test_sees_imports():
    assert imports(ENGINE / "judge" / "judge.py") >= {"judge", "lesson", "ranks"}
