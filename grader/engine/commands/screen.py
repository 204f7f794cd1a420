"""How the commands speak: reports on stdout, one line about a mistake on stderr."""

import textwrap
from typing import NoReturn

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from grader.engine.judge.verdict import Verdict
from grader.engine.judge.words import heading, story
from grader.engine.lesson import reference

COLOURS = {"pass": "green", "fail": "red", "skipped": "dim"}

console = Console(highlight=False, soft_wrap=True)


def fail(message: object, code: int = 2) -> NoReturn:
    """End the command with one line."""
    typer.echo(f"workbook: {message}", err=True)
    raise typer.Exit(code)


def say(text: str = "") -> None:
    """Print text with rich's markup; flushed, since somebody may read it through a pipe."""
    console.print(text)
    console.file.flush()


def say_reference(lesson: str, number: int) -> None:
    """The reference solution of a TODO beside the student's lines (below them where both do not fit), and what there
    is to say about it.
    """
    mine, theirs = reference.own(lesson, number), reference.reference(lesson, number) or ""
    widths = [max((len(line) for line in text.splitlines()), default=0) for text in (mine, theirs)]
    if reference.same(mine, theirs):
        say(f"[dim]Yours is the reference's, line by line:[/]\n{escape(theirs)}\n")
    elif sum(widths) + 6 > console.width:  # a line of code that is folded is hard to read, and one that is cut is lost
        say(f"[bold]yours[/]\n{escape(mine)}\n\n[bold]the reference[/]\n{escape(theirs)}\n")
    else:
        table = Table("yours", "the reference", box=box.SIMPLE_HEAD, padding=(0, 1), expand=console.is_terminal)
        table.add_row(escape(mine), escape(theirs))
        console.print(table, soft_wrap=False)
    if text := reference.after(lesson, number):
        say(escape(textwrap.fill(text, min(console.width, 100), break_long_words=False)))


def say_verdict(verdict: Verdict, brief: bool = False) -> None:
    """A line, and for a failure what is wrong, where, why it matters and what to try; `brief`: of one that was not
    begun, no more than the line.
    """
    if verdict.cause == "no_python":
        say(f"[{COLOURS['fail']}]✗ {escape(verdict.message)}[/]")
        return
    say(f"[{COLOURS[verdict.status]}]{escape(heading(verdict))}[/]")
    if verdict.passed:
        return
    if brief and verdict.cause == "not_attempted":
        return
    for line in [f"  {verdict.message}", *story(verdict).splitlines()[1:]]:
        wrapped = textwrap.wrap(
            line, console.width - 2, initial_indent="  ", subsequent_indent=" " * 13, break_long_words=False
        )
        say(escape("\n".join(wrapped)))
