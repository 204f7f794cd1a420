"""A class while it is graded: the current TODO of each submission, its marks so far, and the time left."""

import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from grader.engine.classroom import records
from grader.engine.commands.screen import console, say

PULSE = 10.0  # seconds between lines, without a terminal for a table


def show(room: records.Class, news: Iterator[dict], total: int) -> None:
    """Show the events of a class until all submissions are graded: a table on a terminal, else a line for each
    submission, and now and then a line with the TODO that one has reached.
    """
    progress = Progress(
        TextColumn("submissions"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    )
    bar = progress.add_task("submissions", total=total)
    at: dict[str, dict] = {}  # student -> lesson, right so far, since when
    said = time.monotonic()

    def table() -> Group:
        rows = Table("student", "lesson", "right", "since", box=None)
        for student, now in at.items():
            rows.add_row(
                escape(records.shown(student)),
                now["lesson"],
                f"{now['right']}/{now['asked']}",
                f"{time.monotonic() - now['since']:.0f} s",
            )
        return Group(rows, progress)

    terminal = sys.stdout.isatty()
    with (
        Live(table(), console=console, refresh_per_second=4, transient=True, get_renderable=table)
        if terminal
        else nullcontext()
    ):
        for item in news:
            now = at.setdefault(item["student"], {"lesson": "", "right": 0, "asked": 0, "since": time.monotonic()})
            if item.get("over"):
                del at[item["student"]]
                progress.advance(bar)
                say(line(records.read_record(room.record(item["student"]))))
                said = time.monotonic()
            else:
                now["lesson"] = item["lesson"]
                now["asked"] += 1
                now["right"] += item["status"] == "pass"
                if not terminal and time.monotonic() - said > PULSE:
                    said = time.monotonic()
                    place = f"{records.shown(item['student'])}: {item['lesson']}/{item['todo']}"
                    say(f"[dim]{escape(place)}, {now['right']} of {now['asked']} right so far[/]")


def line(record: dict) -> str:
    """A line about a graded submission, in rich's markup."""
    most = sum(verdict["max_points"] for verdict in record["verdicts"])
    said = f"{escape(records.shown(record['student']))}: "
    if record["state"] == records.FAILED:
        return f"[red]{said}could not be graded: {escape(record['why'])}[/]"
    if record["state"] == records.NOTHING:
        return f"[yellow]{said}{records.NOTHING}: {escape(record['why'])}[/]"
    said += f"{records.points(record):g} of {most}"
    if record["state"] == records.REFUSED:
        said += f", refused: {escape(record['refused'][0])}"
    if record["flags"]:
        said += f"[yellow], please check: {escape(record['flags'][0]['reason'])}[/]"
    return said
