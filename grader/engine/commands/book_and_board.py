"""The commands around the lessons: the book, the slides, the board of the room, a hub's kernel."""

import getpass
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from grader.engine.commands.arguments import BEGIN, LEARN, STUDENTS, TEACH, app, lesson_named
from grader.engine.commands.instructor import needs_solutions
from grader.engine.commands.screen import fail, say
from grader.engine.lesson import lessons
from utils.optional_packages import lacks
from utils.atomic_write import write_whole, written_whole


@app.command(rich_help_panel=TEACH, hidden=STUDENTS)
def book(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a new or empty folder, or an earlier book")],
) -> None:
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
    lesson: Annotated[str, typer.Argument(metavar="LESSON", help="a notebook, such as 01_collectives")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="default: LESSON.html, in this folder")] = None,
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


@app.command(rich_help_panel=TEACH, hidden=STUDENTS)
def board(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="where students' lines are stored; created if missing")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="the page, which reloads itself")] = Path("board.html"),
    every: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="seconds between updates")] = 10,
    once: Annotated[bool, typer.Option("--once", help="write the page once and stop")] = False,
) -> None:
    """Show live which TODO each student is working on, for students who ran ./workbook join DIR."""
    from grader.engine.classroom import board as boards

    if advice := boards.open_board(folder):
        say(f"[yellow]{escape(advice)}[/]")
    if once:
        write_whole(out, boards.page(boards.read(folder), time.time()))
        return
    where = escape(str(out.resolve()))
    say(f"students run ./workbook join {escape(str(folder.resolve()))}; open {where}; Ctrl-C ends it")
    boards.follow(folder, out, every, threading.Event().wait)


@app.command(rich_help_panel=LEARN)
def join(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="the board's folder, which the instructor names")],
    name: Annotated[str, typer.Option(help="what the board calls you")] = "",
) -> None:
    """Show the instructor which TODO you are working on: each verdict adds a line to a file in DIR, never your code."""
    from grader.engine.classroom import board as boards

    if not folder.is_dir():
        fail(f"{folder}: no such folder; the instructor makes it, with ./workbook board")
    file = boards.join(folder, name or getpass.getuser())
    say(
        f"joined as {escape(name or getpass.getuser())}: TODO, verdict and time go to {escape(str(file))}, which others"
        " can read; its owner is your account. ./workbook leave removes it"
    )


@app.command(rich_help_panel=LEARN)
def leave() -> None:
    """Leave the board and remove your file there."""
    from grader.engine.classroom import board as boards

    say("your file is gone from the board" if boards.leave() else "you have joined no board")


@app.command(rich_help_panel=BEGIN)
def kernel() -> None:
    """Register this Python as the kernel "Parallel training", for a JupyterHub that starts a different one."""
    command = [sys.executable, "-m", "ipykernel", "install", "--user", "--name", "parallel-training"]
    done = subprocess.run([*command, "--display-name", "Parallel training"], capture_output=True, text=True)
    if done.returncode:
        fail((done.stderr.strip().splitlines() or ["ipykernel cannot install the kernel"])[-1])
    say(escape(f"{done.stdout.strip()}\nchoose the kernel “Parallel training” in a notebook of the hub"))
