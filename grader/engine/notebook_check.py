"""A check asked from inside a notebook: the saved file, with the cells as they were last run laid over it."""

import atexit
from pathlib import Path

from grader.engine import lessons
from grader.engine.checks import Judge, Verdict, checked_lessons
from grader.engine.launch import Engine

engine = Engine()  # warm from the first check to the kernel's end
atexit.register(engine.close)


def verdict(name: str, cells: dict[str, tuple[str, float]]) -> Verdict:
    """The verdict on `lesson/number`. `cells`: what was last run, and when, by cell id."""
    lesson, _, number = name.partition("/")
    if lesson not in checked_lessons() or not number.isdigit():
        raise ValueError(f"{name}: no such TODO; a TODO is named LESSON/NUMBER, as 01_collectives/1")
    engine.start()
    latest = {key: lessons.Ran(*cell) for key, cell in cells.items()}
    judge = Judge(engine, lesson, target=folder_of(lesson), latest=latest)
    return judge.verdict(int(number))


def folder_of(lesson: str) -> Path:
    """Where the notebook's file lies: the kernel runs beside it. nbgrader's copies lie in no folder `notebooks`."""
    here = Path.cwd() / f"{lesson}.ipynb"
    return here if here.is_file() else lessons.student_path(lesson)
