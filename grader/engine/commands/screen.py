"""Output of the commands: reports go to stdout, one line about a mistake to stderr."""

import textwrap
from typing import NoReturn

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from grader.engine.judge.verdict import Verdict
from grader.engine.judge.verdict_text import heading, story
from grader.engine.lesson import reference_solution

COLOURS = {"pass": "green", "fail": "red", "skipped": "dim", "new": "default"}

console = Console(highlight=False, soft_wrap=True)


def fail(message: object, code: int = 2) -> NoReturn:
    """End the command with one line."""
    typer.echo(f"workbook: {message}", err=True)
    raise typer.Exit(code)


def say(text: str = "") -> None:
    """Print text with rich's markup; flushed, because it may be read through a pipe."""
    console.print(text)
    console.file.flush()


def say_reference(lesson: str, number: int) -> None:
    """The reference solution of a TODO next to the student's lines (or below them, if both do not fit), with comments
    on it.
    """
    mine, theirs = reference_solution.own(lesson, number), reference_solution.reference(lesson, number) or ""
    widths = [max((len(line) for line in text.splitlines()), default=0) for text in (mine, theirs)]
    if reference_solution.same(mine, theirs):
        say(f"[dim]Yours is the same as the reference, line by line:[/]\n{escape(theirs)}\n")
    elif sum(widths) + 6 > console.width:  # folded code is hard to read, and truncated code is lost
        say(f"[bold]yours[/]\n{escape(mine)}\n\n[bold]the reference[/]\n{escape(theirs)}\n")
    else:
        table = Table("yours", "the reference", box=box.SIMPLE_HEAD, padding=(0, 1), expand=console.is_terminal)
        table.add_row(escape(mine), escape(theirs))
        console.print(table, soft_wrap=False)
    if text := reference_solution.after(lesson, number):
        say(escape(textwrap.fill(text, min(console.width, 100), break_long_words=False)))


def say_verdict(verdict: Verdict, brief: bool = False) -> None:
    """Print a verdict: one line, and for a failure what is wrong, where, why it matters and what to try. `brief`: only
    the line for a TODO that was not started.
    """
    if verdict.cause == "no_python":
        say(f"[{COLOURS['fail']}]✗ {escape(verdict.message)}[/]")
        return
    say(f"[{COLOURS[verdict.state]}]{escape(heading(verdict))}[/]")
    if verdict.passed:
        return
    if brief and verdict.cause == "not_attempted":
        return
    for line in [f"  {verdict.message}", *story(verdict).splitlines()[1:]]:
        wrapped = textwrap.wrap(
            line, console.width - 2, initial_indent="  ", subsequent_indent=" " * 13, break_long_words=False
        )
        say(escape("\n".join(wrapped)))
