"""A student's progress: a text file with a line for each TODO.

    ddp_training/4 fail hints=2

It may be edited, and another version of the course may have different lessons:
unknown lines are kept as they are. The first line names the numbering of the
TODOs: in a file with a different numbering the lines mean different TODOs, so it
is set aside.
"""

import re
import sys
from collections.abc import Collection
from dataclasses import dataclass

from rich.markup import escape

from grader.engine.lesson import lessons, sealed_lessons, tracks
from grader.engine.lesson.lessons import titles
from grader.engine.lesson.tracks import Id
from utils.atomic_write import written_whole

NUMBERING = "# TODO numbers of 2026-11-23"  # change it when TODOs of published lessons are renumbered
LINE = re.compile(r"(\w+)/(\d+) (\w+)(?: hints=(\d+))?\s*$")


@dataclass
class Entry:
    state: str = "new"  # new | pass | fail | skipped, as last checked
    hints: int = 0  # how many hints were shown


class Progress:
    """The progress file, read again each time: `watch` and `hint` may run at the same time."""

    def __init__(self) -> None:
        self.path = lessons.COURSE / ".workbook" / "progress.txt"

    def read(self) -> dict[Id, Entry]:
        return self._parse()[0]

    def write(self, changes: dict[Id, str | int]) -> None:
        """Set states (text) or numbers of hints (int); without changes the file is not written."""
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
        """Forget a lesson that starts again from its original state."""
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
        """Move a file with a different numbering aside, without overwriting any; progress starts empty."""
        number = 1
        while (kept := self.path.with_name(f"progress-{number}.txt")).exists():
            number += 1
        self.path.rename(kept)
        print(f"the TODOs have new numbers: your earlier progress is kept in .workbook/{kept.name}", file=sys.stderr)
        return []


def right() -> set[str]:
    """The TODOs that have passed, as "ddp_training/4"."""
    return {f"{lesson}/{number}" for (lesson, number), entry in Progress().read().items() if entry.state == "pass"}


def exercises() -> list[str]:
    """The lessons with TODOs, in course order."""
    return [lesson for lesson in lessons.stems() if titles(lesson)]


def next_todo(among: Collection[Id] | None = None) -> Id | None:
    """The TODO to do next; None if all have passed.

    It is the first open one from the furthest lesson on in which the student has passed a TODO: a student who starts in
    the middle is not sent back. Earlier open TODOs come last. `among` limits the choice to some TODOs.
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
    """A line for each lesson of a track, in rich's markup: its TODOs on the track, and how much is done."""
    entries, chosen = Progress().read(), tracks.members(name)
    sealed = sealed_lessons.sealed()
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
        name = f"{lesson}/{sealed_lessons.runs(number for _, number in here)}"  # as `check` reads it
        lines.append(f"  {mark} {name:33} [dim]{rest}[/]")
    return lines


def lesson_map() -> list[str]:
    """A line for each lesson, in rich's markup: how much of it is done."""
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
    if sealed := sealed_lessons.sealed():
        passed = right()
        for lesson, until in sealed.items():
            done = sum(todo in passed for todo in until)
            lines.append(f"  [dim]· {lesson:22} sealed; {done} of the {len(until)} TODOs that open it are right[/]")
    return lines
