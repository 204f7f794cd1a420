"""What the checks of a lesson are made of, for tests of what these checks compare."""

import importlib
from types import SimpleNamespace

from grader.engine.lesson import lessons


def everything(stem: str) -> SimpleNamespace:
    """All names of a lesson's check files and of what runs on ranks for them."""
    names = [lessons.module_name(file) for file in (*lessons.folder(stem).glob("common.py"), *lessons.checks(stem))]
    modules = map(importlib.import_module, [*lessons.on_ranks(stem), *names])
    return SimpleNamespace(**{name: value for module in modules for name, value in vars(module).items()})
