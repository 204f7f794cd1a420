"""What the course uses of torch's private names: in one module, and there in this torch as its list says."""

import ast
import importlib
from pathlib import Path

import pytest

from grader.engine.lesson.lessons import COURSE
from utils import private, releases

HERE = releases.number(releases.installed())
FILES = sorted(
    path
    for folder in ("utils", "grader", "solutions")
    for path in (COURSE / folder).rglob("*.py")
    if "mutants" not in path.parts and path.name != "private.py"
)


def is_there(name: str) -> bool:
    """Whether a module, or an attribute of one, has this dotted name."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        try:
            for part in parts[length:]:
                found = getattr(found, part)
        except AttributeError:
            return False
        return True
    return False


@pytest.mark.parametrize("name", [*private.NAMES, *private.TYPED])
def test_this_torch_has_each_name_from_the_listed_release_on(name):
    since = (private.NAMES | private.TYPED)[name]
    assert is_there(name) == (HERE >= releases.number(since)), f"torch {releases.installed()}: {name}"


def imported(path: Path) -> set[str]:
    """The private names of torch that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute):
            names.add(ast.unparse(node))
    parts = {name: name.split(".") for name in names}
    return {name for name, own in parts.items() if own[0] == "torch" and any(map(is_private, own))}


def is_private(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")


def test_no_other_module_imports_a_private_name():
    for path in FILES:
        may = (
            set(private.TYPED)
            if path.is_relative_to(COURSE / "solutions") or path.name.startswith(("after_", "test_", "ranks"))
            else set()
        )
        if path.parent.name == "resilient_training":
            may = may | {name for name in private.NAMES if name.endswith("._DistWrapper")}  # a check lets it fail
        strange = {name for name in imported(path) if not any(name in allowed for allowed in may)}
        assert not strange, f"{path.relative_to(COURSE)} has {sorted(strange)}"


def test_the_cache_of_layouts_is_emptied_on_every_release():
    from torch.distributed.tensor import DTensor

    private.forget_layouts()
    cache = DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache
    assert cache.cache_info().currsize == 0
