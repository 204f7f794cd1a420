"""Writes the records of a class into nbgrader's gradebook: formgrader then shows every TODO, also the ones of scripts
and batch files.

Each lesson is an assignment, each TODO a cell with marks. formgrader opens a notebook made for it, which was never run:
the student's lines for each TODO, followed by the judge's verdict.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbgrader.api import Gradebook
from sqlalchemy.exc import SAWarning

from grader.engine.classroom import records, submissions
from grader.engine.judge.verdict import Verdict
from grader.engine.judge.verdict_text import heading, story
from grader.engine.lesson import lessons, parsing, todo_regions
from utils.atomic_write import write_whole


def write(room: records.Class, graded: list[dict], root: Path, heard: Callable[[str], None] = lambda _: None) -> Path:
    """Put the marks into ROOT/gradebook.db, and the notebooks below it. Returns the gradebook.

    `heard` is called with the current lesson or student, since nbgrader takes a while for each.
    """
    root.mkdir(parents=True, exist_ok=True)
    # nbgrader calls alembic by name; it is in Python's folder
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    file = root / "gradebook.db"
    with warnings.catch_warnings(), Gradebook(f"sqlite:///{file}") as book:
        warnings.simplefilter("ignore", SAWarning)  # warnings about nbgrader's own use of its database
        for stem in room.stems:
            heard(stem)
            book.update_or_create_assignment(stem)
            book.update_or_create_notebook(stem, stem)
            for number in room.counted(stem):
                book.update_or_create_grade_cell(
                    f"test_{number}", stem, stem, cell_type="code", max_score=points_of(stem, number)
                )
        for record in graded:
            if record["state"] in records.UNMARKED:
                continue
            student = records.file_name(record["student"])
            heard(student)
            book.update_or_create_student(
                student, first_name=records.shown(record["student"]) if student != record["student"] else None
            )
            own = records.marks(record)
            changed = {change["todo"] for change in record["overrides"]}
            for stem in room.stems:
                book.update_or_create_submission(stem, student, timestamp=record["graded"])
                for verdict in (v for v in record["verdicts"] if v["lesson"] == stem):
                    id = f"{stem}/{verdict['todo']}"
                    mark = book.find_grade(f"test_{verdict['todo']}", stem, stem, student)
                    mark.auto_score, mark.needs_manual_grade = verdict["points"], id not in own  # not judged
                    if id in changed:  # marks given in formgrader itself stay
                        mark.manual_score = own[id]
                book.db.commit()
                text = nbformat.writes(notebook(room, record, stem))
                for kind in ("submitted", "autograded"):
                    target = root / kind / student / stem / f"{stem}.ipynb"
                    write_whole(target, text, errors="backslashreplace")
    return file


def points_of(stem: str, number: int) -> int:
    from grader.engine.judge.judge import checks_of

    return next(check.todo.points for check in checks_of(stem) if check.todo.number == number)


def notebook(room: records.Class, record: dict, stem: str) -> nbformat.NotebookNode:
    """The notebook that formgrader shows for one lesson of one student."""
    taken, kept = room.taken(record["student"]), room.cells(record["student"], stem)

    def read(*_: object) -> list[parsing.Cell]:
        return submissions.cells_of(json.loads(kept.read_text("utf-8")))

    try:
        units = [*lessons.units(stem, taken, read=read), *lessons.batch_units(stem, taken)]
    except (FileNotFoundError, ValueError):
        units = []
    book = new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Parallel training", "language": "python"}}
    )
    for verdict in (Verdict(**v) for v in record["verdicts"] if v["lesson"] == stem):
        book.cells.append(new_markdown_cell(f"## {verdict.todo}. {verdict.title}"))
        for unit in units:
            lines = unit.text.split("\n")
            for span in todo_regions.locate(unit.source, unit.text).get(verdict.todo, []) if unit.source else []:
                book.cells.append(new_code_cell("\n".join([f"# {unit.name}", *(lines[line - 1] for line in span)])))
        text = heading(verdict) if verdict.passed else story(verdict)
        output = (
            new_output("stream", name="stdout", text=text)
            if verdict.passed
            else new_output("error", ename="NotRight", evalue=verdict.message, traceback=[text])
        )
        cell = new_code_cell(f'check("{stem}/{verdict.todo}")', outputs=[output])
        cell.metadata.nbgrader = {
            "grade": True,
            "grade_id": f"test_{verdict.todo}",
            "locked": True,
            "points": verdict.max_points,
            "schema_version": 3,
            "solution": False,
            "task": False,
            "cell_type": "code",
        }
        book.cells.append(cell)
    return book
