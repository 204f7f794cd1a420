"""The course's rooms: who may import from whom, and what runs on which side of the wall."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from grader.engine.lesson import build, contributing_lists, lessons, release
from grader.engine.lesson.lessons import COURSE

GRADER = COURSE / "grader"
ENGINE = GRADER / "engine"
# From the top: a room of the engine imports from itself and from rooms in later rows.
ROWS = [("commands",), ("classroom",), ("judge",), ("ranks", "jobs"), ("inside",), ("walls",), ("lesson",)]
ROW = {room: number for number, rooms in enumerate(ROWS) for room in rooms}
# What runs in the student's process is known to what is forked there, and to what the checks do there: nobody who
# judges reckons with it.
ON_RANK = {"kit/on_rank.py", "kit/split_on_rank.py", "kit/tiny_model.py"}
KNOW_INSIDE = {"engine/ranks/fork_server.py", "kit/__init__.py"} | ON_RANK
OF_THE_JUDGE = {"judge", "ranks", "jobs", "walls", "lesson"}  # what a part of the kit may import that runs in pytest


def imported(file: Path, for_types: bool = False) -> set[str]:
    """The modules from which a file imports, also within its functions, by their whole names; what it needs for its
    annotations alone only with `for_types`.
    """
    tree = ast.parse(file.read_text("utf-8"))
    for node in ast.walk(tree):
        if not for_types and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def rooms(file: Path) -> set[str]:
    """The engine's rooms from which a file imports."""
    names = [name.split(".") for name in imported(file) if name.startswith("grader.engine.")]
    return {parts[2] for parts in names}


def spoken(file: Path) -> str:
    return file.relative_to(GRADER).as_posix()


FILES = sorted(path for path in ENGINE.rglob("*.py") if path.parent != ENGINE)
KIT = sorted((GRADER / "kit").glob("*.py"))
LESSONS = GRADER / "lessons"
OF_LESSONS = sorted(LESSONS.glob("*/**/*.py"))
RANKS = [path for path in OF_LESSONS if "ranks" in (path.stem, path.parent.name)]
# Of the kit a rank uses what is on its side of the wall, and what draws values and sizes; `ends` runs a batch file.
FOR_RANKS = {
    f"grader.kit.{name}" for name in ("on_rank", "split_on_rank", "tiny_model", "drawn_values", "drawn_sizes")
} | {"grader.engine.jobs.job_endings"}
LIBRARY = sorted((COURSE / "utils").rglob("*.py"))


def test_every_room_has_a_row_and_a_sentence():
    assert {path.parent.name for path in ENGINE.glob("*/__init__.py")} == ROW.keys()
    assert [path.name for path in ENGINE.glob("*.py")] == ["__init__.py"]
    assert all(ast.get_docstring(ast.parse(path.read_text("utf-8"))) for path in ENGINE.rglob("__init__.py"))


@pytest.mark.parametrize("file", FILES, ids=spoken)
def test_a_room_imports_only_from_itself_and_from_rooms_below(file):
    own = file.relative_to(ENGINE).parts[0]
    above = {room for room in rooms(file) if room != own and ROW[room] <= ROW[own]}
    assert not above, f"{spoken(file)} imports from {sorted(above)}"
    assert not [name for name in imported(file) if name.startswith("grader.kit")]


@pytest.mark.parametrize("file", [path for path in [*FILES, *KIT] if "inside" not in path.parts], ids=spoken)
def test_nobody_who_judges_knows_what_runs_in_the_students_process(file):
    assert "inside" not in rooms(file) or spoken(file) in KNOW_INSIDE


@pytest.mark.parametrize("file", [path for path in KIT if path.name != "__init__.py"], ids=spoken)
def test_a_part_of_the_kit_is_on_one_side_of_the_wall(file):
    assert rooms(file) <= ({"inside"} if spoken(file) in ON_RANK else OF_THE_JUDGE)


@pytest.mark.parametrize("file", OF_LESSONS, ids=spoken)
def test_a_lessons_files_import_from_the_kit_alone_and_from_each_other(file):
    of_ours = {name for name in imported(file) if name.startswith("grader.")}
    assert all(name.startswith("grader.kit.") and name.count(".") == 2 for name in of_ours), of_ours


def siblings(file: Path) -> set[str]:
    """The modules of its lesson from which a file imports, as in `from .ranks import …`."""
    return {
        node.module or "."
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.level
    }


def origin(name: str) -> str:
    """The module in which a name of the kit is defined."""
    (found,) = [
        node.module
        for node in ast.parse((GRADER / "kit" / "__init__.py").read_text("utf-8")).body
        if isinstance(node, ast.ImportFrom) and name in [alias.asname or alias.name for alias in node.names]
    ] or [""]
    return f"{found}.{name}" if found == "grader.engine.jobs" else found


def strangers(file: Path) -> set[str]:
    """What a file of a lesson imports although it has no place on a rank: checks, answers, and the judge's part of the
    kit.
    """
    of_lesson = {name for name in siblings(file) if name.startswith((".", "test_", "common", "answers", "ranks"))}
    if file.parent.name == "ranks":  # `.common` is the ranks' own there
        of_lesson = {name for name in of_lesson if not (file.parent / f"{name}.py").is_file()}
    names = [name.rpartition(".")[2] for name in imported(file) if name.startswith("grader.kit.")]
    of_judge = {f"{origin(name)}: {name}" for name in names}
    inside = ("grader.engine.inside.", "utils.")
    return of_lesson | {
        name for name in of_judge if name.partition(":")[0] not in FOR_RANKS and not name.startswith(inside)
    }


@pytest.mark.parametrize("file", RANKS, ids=spoken)
def test_what_runs_on_ranks_imports_nothing_of_the_judges(file):
    assert strangers(file) == set()


@pytest.mark.parametrize("file", sorted(LESSONS.glob("*/test_*.py")), ids=spoken)
def test_what_the_judge_imports_is_seen_as_such(file):
    """Or the test above could not fail."""
    assert any(name.endswith(": todo") for name in strangers(file))


def decides(file: Path) -> set[str]:
    """What in a file would decide, or tell how: tolerances, hints, premises, verdicts."""
    tree = ast.parse(file.read_text("utf-8"))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    telling = r"(REL|ABS|TOLERANCE|EXACT|HINTS?|expect|Wrong|Fault|allclose|isclose|rtol|atol|premise)(_\w+)?"
    return {name for name in names if name and re.fullmatch(telling, name)}


@pytest.mark.parametrize("file", RANKS, ids=spoken)
def test_what_runs_on_ranks_has_no_tolerance_and_nothing_expected(file):
    assert decides(file) == set()


@pytest.mark.skipif(not lessons.has_solutions(), reason="a student's copy has no answers to look for")
def test_what_runs_on_ranks_has_no_answer():
    """The search is the one of `release`: the whole body of each region, however it is written."""
    for file in RANKS:
        stem = file.relative_to(LESSONS).parts[0]
        told = [found for found in release.search([file], GRADER.parent) if found.lesson == stem]
        assert told == [], told


@pytest.mark.parametrize("file", LIBRARY, ids=lambda file: file.relative_to(COURSE).as_posix())
def test_the_library_does_not_know_the_grader(file):
    assert not [name for name in imported(file) if name.startswith("grader")]


def test_what_a_lesson_has_taught_is_named_after_it():
    taught = lessons.taught()
    named = [path for path in LIBRARY if path.name.startswith("after_")]
    assert len(named) > 4
    assert all(path.stem == f"after_{taught[path]}" for path in named)


def test_the_test_sees_imports():
    assert rooms(ENGINE / "judge" / "judge.py") >= {"judge", "lesson", "ranks"}
    assert "grader.kit.todo" in imported(LESSONS / "01_collectives" / "test_ring.py")
    assert "inside" in rooms(GRADER / "kit" / "on_rank.py")


def arrows() -> dict[str, set[str]]:
    """Which modules of the engine each of them imports, for types and within functions, too."""
    modules = {".".join(path.relative_to(COURSE).with_suffix("").parts): path for path in FILES}
    return {
        module: {part for name in imported(path, True) for part in (name, name.rpartition(".")[0]) if part in modules}
        for module, path in modules.items()
    }


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """What is left when all that imports nothing that is left has been taken away, again and again."""
    left = dict(arrows)
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    return sorted(left)


def test_no_circle_of_imports():
    found = arrows()
    assert "grader.engine.ranks.server_connection" in found["grader.engine.ranks.run_session"]
    assert circle(found) == []


def test_a_circle_is_seen():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


def test_contributing_names_every_file_with_its_sentence():
    text = (COURSE / build.CONTRIBUTING).read_text("utf-8")
    assert f"\n{contributing_lists.tree()}\n<!-- end of files -->" in text, "run ./workbook build"
    assert f"\n{contributing_lists.signatures()}\n<!-- end of signatures -->" in text, "run ./workbook build"
    assert "\ncheck_tensor(what, seen, right, rel=0.0, rank=None, *, dtype=None," in contributing_lists.signatures()
    for path in [*FILES, *KIT, *LIBRARY]:
        assert contributing_lists.sentence(path) or path.name == "__init__.py", f"{spoken(path)} has no docstring"


def test_what_contributing_points_to_is_there():
    text = (COURSE / build.CONTRIBUTING).read_text("utf-8").partition("## Files")[0]
    named = re.findall(r"(?:`|\()((?:[a-z_]+/)+[\w.*]*)", text)
    named = [f"grader/engine/{name}" if name.partition("/")[0] in ROW else name for name in named if "NAME" not in name]
    assert len(named) > 40
    elsewhere = {"grader/start/", "grader/sealed/"}  # in a release
    assert not [name for name in named if not (COURSE / name).exists() and name not in elsewhere and "_X." not in name]


def named_in_vain(file: Path) -> list[str]:
    """What a file takes from a module of the engine, as `module.name`, and is not there. No linter looks for it."""
    tree = ast.parse(file.read_text("utf-8"))
    modules: dict[str, list] = {}  # by the name that they have in the file; two may have the same one
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grader.engine."):
            for alias in node.names:
                if (COURSE / node.module.replace(".", "/") / f"{alias.name}.py").is_file():
                    module = importlib.import_module(f"{node.module}.{alias.name}")
                    modules.setdefault(alias.asname or alias.name, []).append(module)
    used = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    return [
        f"{node.value.id}.{node.attr}"
        for node in used
        if node.value.id in modules and not any(hasattr(module, node.attr) for module in modules[node.value.id])
    ]


def test_what_is_taken_of_a_module_is_there(tmp_path):
    files = [
        *FILES,
        *KIT,
        *OF_LESSONS,
        *sorted((COURSE / "tests").rglob("*.py")),
        *(COURSE / "benchmarks").glob("*.py"),
    ]
    found = {file.relative_to(COURSE).as_posix(): named_in_vain(file) for file in files}
    assert {name: names for name, names in found.items() if names} == {}
    (tmp_path / "x.py").write_text("from grader.engine.lesson import lessons\n\nlessons.no_such_name\n")
    assert named_in_vain(tmp_path / "x.py") == ["lessons.no_such_name"]
