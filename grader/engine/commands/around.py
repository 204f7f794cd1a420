"""The commands around the lessons: the book and the slides."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from grader.engine.commands.arguments import STUDENTS, TEACH, Lesson, app, lesson_named
from grader.engine.commands.instructor import needs_solutions
from grader.engine.commands.screen import fail, say
from grader.engine.lesson import lessons
from utils.optional import lacks
from utils.whole import written_whole


@app.command(rich_help_panel=TEACH, hidden=STUDENTS)
def book(folder: Annotated[Path, typer.Argument(metavar="DIR", help="new or empty, or an earlier book")]) -> None:
    """Build the course as a static site, to read offline: lessons without solutions, guides, glossary."""
    needs_solutions()
    if line := lacks("myst_nb", "book"):
        fail(line)
    from grader.engine.lesson import book as maker

    try:
        pages = maker.write_book(folder.absolute(), lambda line: say(f"[dim]{escape(line)}[/]"))
    except ValueError as problem:
        fail(problem)
    say(f"{pages} pages: open {escape(str(folder / 'index.html'))}")


@app.command(rich_help_panel=TEACH, hidden=STUDENTS)
def slides(
    lesson: Lesson,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="otherwise LESSON.html, in this folder")] = None,
) -> None:
    """Make slides of a notebook: one HTML file that needs no network. Press S for the speaker's notes."""
    stem = lesson_named(lesson)
    if not lessons.is_notebook(stem):
        notebooks = ", ".join(filter(lessons.is_notebook, lessons.stems()))
        fail(f"{stem} is a script; slides are made of notebooks: {notebooks}")
    if line := lacks("sphinx_revealjs", "book"):
        fail(line)
    from grader.engine.lesson import slides as maker

    path = out or Path(f"{stem}.html")
    with written_whole(path) as part:
        part.write_text(maker.slides(stem), "utf-8")
    say(f"open {escape(str(path))}; S shows the speaker's notes")
