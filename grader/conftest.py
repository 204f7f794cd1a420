"""`pytest grader`: the same verdicts as everywhere, as pytest tells them.

pytest collects the checks; `Judge` reaches the verdicts, in order and each
once, also for needed TODOs that were not selected.
"""

import importlib
import json
from pathlib import Path

import pytest

from grader.engine.judge.judge import Judge
from grader.engine.judge.verdict import Verdict
from grader.engine.judge.verdict_text import story
from grader.engine.lesson import lessons, sealed_lessons
from grader.engine.lesson.progress import right
from grader.engine.ranks import backends
from grader.engine.ranks.runner import Runner

runner, judges, verdicts = Runner(), {}, {}


def pytest_addoption(parser):
    group = parser.getgroup("workbook")
    group.addoption("--target", help="folder to grade, with train/ and notebooks/ in it (default: the course)")
    group.addoption(
        "--backend",
        default="auto",
        metavar="auto|gloo|nccl",
        help="what ranks talk by (default: nccl where there are GPUs)",
    )
    group.addoption("--json", metavar="FILE", help="write the verdicts to FILE")


def pytest_configure(config):
    target = config.getoption("--target")
    if target and not (lessons.COURSE / target).is_dir():
        raise pytest.UsageError(f"--target {target}: no such folder")
    runner.start()  # it loads torch while pytest imports the checks
    try:
        runner.backend = backends.choose(config.getoption("--backend"))
    except backends.NoBackend as problem:
        runner.close()
        raise pytest.UsageError(str(problem)) from None
    for number in range(1, 31):
        config.addinivalue_line("markers", f"todo{number}: the checks of TODO {number}")


class CheckFile(pytest.Module):
    """A file of checks, imported by its own name, as `Judge` imports it: the folders of lessons have equal files in
    them, and names that pytest does not take for packages.
    """

    def _getobj(self):
        return importlib.import_module(lessons.module_name(self.path))


def pytest_pycollect_makemodule(module_path, parent):
    return CheckFile.from_parent(parent, path=module_path) if module_path.is_relative_to(lessons.folder("")) else None


def pytest_report_header():
    return runner.backend.story() or None


def pytest_collection_modifyitems(items):
    checks = [item for item in items if hasattr(getattr(item, "function", None), "todo")]
    for item in checks:
        item.add_marker(f"todo{item.function.todo.number}")
    # A check file is in the order in which it reads best; verdicts come in the order of the TODOs.
    checks.sort(key=lambda item: (item.path.parent.name, item.function.todo.number))
    items[:] = checks + [item for item in items if item not in checks]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    todo = getattr(pyfuncitem.function, "todo", None)
    if todo is None:
        return None  # a test like any other
    lesson = Path(pyfuncitem.path).parent.name
    if lesson in sealed_lessons.sealed():
        pytest.skip(sealed_lessons.waits_for(lesson, right()))
    if lesson not in judges:
        judges[lesson] = Judge(runner, lesson, pyfuncitem.config.getoption("--target"))
    verdict = judges[lesson].verdict(todo.number)
    verdicts[lesson, todo.number] = verdict
    if verdict.status == "skipped" and verdict.cause != "not_judged":
        pytest.skip(verdict.message)
    if not verdict.passed:
        pytest.fail(story(verdict), pytrace=False)
    return True


@pytest.fixture
def student():
    """The argument of every check. `Judge` passes the real one."""


def pytest_sessionfinish(session):
    if path := session.config.getoption("--json"):
        final = [judges[lesson].verdict(number) for lesson, number in verdicts]
        Path(path).write_text(json.dumps([Verdict.as_dict(v) for v in final], indent=2) + "\n")


def pytest_unconfigure():
    runner.close()
