"""What a student has done so far: a text file, a line for each TODO.

    ddp_training/4 fail hints=2

It may be edited, and a later version of the course may know other lessons:
lines that say nothing to this one are kept as they are. Its first line names the numbering of the TODOs: a file of
another numbering would tell of other TODOs, so it is kept aside.
"""

import re
import sys
from collections.abc import Collection
from dataclasses import dataclass

from rich.markup import escape

from grader.engine.lesson import lessons, seals, tracks
from grader.engine.lesson.lessons import titles
from grader.engine.lesson.tracks import Id
from utils.whole import written_whole

NUMBERING = "# TODO numbers of 2026-11-23"  # change it when TODOs of lessons that are in use get other numbers
LINE = re.compile(r"(\w+)/(\d+) (\w+)(?: hints=(\d+))?\s*$")


@dataclass
class Entry:
    state: str = "new"  # new | pass | fail | skipped, as last checked
    hints: int = 0  # steps of the hint that were shown


class Progress:
    """The progress file, read anew for each look: `watch` and `hint` may run side by side."""

    def __init__(self) -> None:
        self.path = lessons.COURSE / ".workbook" / "progress.txt"

    def read(self) -> dict[Id, Entry]:
        return self._parse()[0]

    def write(self, changes: dict[Id, str | int]) -> None:
        """Set states (text) or hint steps (a number); without changes the file stays as it is."""
        if not changes:
            return
        entries, foreign = self._parse()
        for todo, value in changes.items():
            entry = entries.setdefault(todo, Entry())
            if isinstance(value, str):
                entry.state = value
            else:
                entry.hints = value
        lines = [
            f"{lesson}/{number} {e.state}" + (f" hints={e.hints}" if e.hints else "")
            for (lesson, number), e in entries.items()
        ]
        with written_whole(self.path) as part:  # `watch` and `check` may run at the same time
            part.write_text("\n".join([NUMBERING, *lines, *foreign]) + "\n", "utf-8")

    def forget(self, lesson: str) -> None:
        """Drop all that is known of a lesson that begins anew."""
        known = [todo for todo in self.read() if todo[0] == lesson]
        self.write(dict.fromkeys(known, "new"))
        self.write(dict.fromkeys(known, 0))

    def _parse(self) -> tuple[dict[Id, Entry], list[str]]:
        entries, foreign = {}, []
        lines = self.path.read_text("utf-8", errors="replace").splitlines() if self.path.is_file() else []
        if lines and lines[0] != NUMBERING:
            lines = self._keep_aside()
        for line in lines[1:]:
            if found := LINE.match(line):
                lesson, number, state, hints = found.groups()
                entries[lesson, int(number)] = Entry(state, int(hints or 0))
            elif line.strip():
                foreign.append(line)
        return entries, foreign

    def _keep_aside(self) -> list[str]:
        """Move a file of another numbering out of the way, over none that is there; the student begins anew."""
        number = 1
        while (kept := self.path.with_name(f"progress-{number}.txt")).exists():
            number += 1
        self.path.rename(kept)
        print(f"the TODOs have new numbers: your progress of before is kept in .workbook/{kept.name}", file=sys.stderr)
        return []


def right() -> set[str]:
    """The TODOs that have passed, as "ddp_training/4"."""
    return {f"{lesson}/{number}" for (lesson, number), entry in Progress().read().items() if entry.state == "pass"}


def exercises() -> list[str]:
    """The lessons with something to do, in course order."""
    return [lesson for lesson in lessons.stems() if titles(lesson)]


def next_todo(among: Collection[Id] | None = None) -> Id | None:
    """The TODO to go on with; None if all have passed.

    It is the first open one from the lesson on in which the student got furthest: a student who starts in the middle is
    not sent back. What was left out before comes last. `among` limits the choice to some TODOs.
    """
    entries = Progress().read()
    todos = [(lesson, number) for lesson in exercises() for number in titles(lesson)]
    passed = {todo for todo in todos if entries.get(todo, Entry()).state == "pass"}
    furthest = max((lessons.ORDER.index(lesson) for lesson, _ in passed), default=0)
    todos.sort(key=lambda todo: lessons.ORDER.index(todo[0]) < furthest)
    return next((todo for todo in todos if todo not in passed and (among is None or todo in among)), None)


def open_todos(lesson: str, entries: dict[Id, Entry]) -> list[Id]:
    """A lesson's TODOs that have not passed."""
    todos = [(lesson, number) for number in titles(lesson)]
    return [todo for todo in todos if entries.get(todo, Entry()).state != "pass"]


def track_map(name: str) -> list[str]:
    """A line for each lesson of a track, with rich's markup: which TODOs belong to it, and how much of it is done."""
    entries, chosen = Progress().read(), tracks.members(name)
    sealed = seals.sealed()
    left = [todo for todo in chosen if entries.get(todo, Entry()).state != "pass"]
    lines = [
        f"{tracks.TRACKS[name].title}: {len(chosen)} TODOs, about {tracks.hours(tracks.minutes(chosen))};"
        f" {len(chosen) - len(left)} done, about {tracks.hours(tracks.minutes(left))} left (estimates)"
    ]
    for lesson in dict.fromkeys(lesson for lesson, _ in chosen):
        here = [todo for todo in chosen if todo[0] == lesson]
        still = [todo for todo in left if todo[0] == lesson]
        mark = "·" if len(still) == len(here) else "[yellow]▸[/]" if still else "[green]✓[/]"
        rest = (
            "[dim]sealed[/]"
            if lesson in sealed
            else f"about {tracks.hours(tracks.minutes(still))} left"
            if still
            else ""
        )
        numbers = seals.runs(number for _, number in here)
        lines.append(f"  {mark} {lesson:22} {numbers:10} [dim]{rest}[/]")
    return lines


def lesson_map() -> list[str]:
    """A line for each lesson, with rich's markup: how much of it is done."""
    entries = Progress().read()
    lines = []
    for lesson in lessons.stems():
        todos = titles(lesson)
        done = sum(entries.get((lesson, number), Entry()).state == "pass" for number in todos)
        kind = "notebook" if lessons.is_notebook(lesson) else "script"
        if not todos:
            lines.append(f"  [dim]·[/] {lesson:22} [dim]{kind:9} runs as it is given[/]")
        else:
            mark = "[green]✓[/]" if done == len(todos) else "[yellow]▸[/]" if done else "·"
            lacking = lessons.lacking(lesson)
            left = tracks.minutes(open_todos(lesson, entries))
            lines.append(
                f"  {mark} {lesson:22} [dim]{kind:9}[/] {done} of {len(todos)} TODOs"
                + (f"[dim], about {tracks.hours(left)} left[/]" if left else "")
                + (f"; {escape(lacking)}" if lacking else "")
            )
    if sealed := seals.sealed():
        passed = right()
        for lesson, until in sealed.items():
            done = sum(todo in passed for todo in until)
            lines.append(f"  [dim]· {lesson:22} sealed; {done} of the {len(until)} TODOs that open it are right[/]")
    return lines
