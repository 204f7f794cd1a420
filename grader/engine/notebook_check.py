"""A check asked from inside a notebook: the saved file, with the cells as they were last run laid over it."""

import atexit
from pathlib import Path

from grader.engine import lessons
from grader.engine.checks import Judge, Verdict, checked_lessons
from grader.engine.launch import Engine
from grader.engine.report import heading, story


def verdict(name: str, cells: dict[str, str], engine: Engine | None) -> tuple[Engine, Verdict, str]:
    """The engine (warm, for the next check), the verdict on `lesson/number`, and the verdict in words."""
    lesson, _, number = name.partition("/")
    if lesson not in checked_lessons() or not number.isdigit():
        raise ValueError(f"{name}: no such TODO; a TODO is named LESSON/NUMBER, as 01_collectives/1")
    if engine is None:
        engine = Engine()
        atexit.register(engine.close)
    engine.start()
    judge = Judge(engine, lesson, units=lessons.units(lesson, folder_of(lesson), latest=cells))
    found = judge.verdict(int(number))
    return engine, found, heading(found) if found.passed else story(found)


def folder_of(lesson: str) -> Path:
    """Where the notebook's file lies: the kernel runs beside it. nbgrader's copies lie in no folder `notebooks`."""
    here = Path.cwd() / f"{lesson}.ipynb"
    return here if here.is_file() else lessons.student_path(lesson)
