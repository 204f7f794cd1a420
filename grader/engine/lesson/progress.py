"""What a student has done so far: a text file, a line for each TODO.

    ddp_training/4 fail hints=2

It may be edited, and a later version of the course may know other lessons:
lines that say nothing to this one are kept as they are.
"""

import re
from dataclasses import dataclass

from rich.markup import escape

from grader.engine.lesson import lessons
from grader.engine.lesson.lessons import titles
from utils.whole import written_whole

LINE = re.compile(r"(\w+)/(\d+) (\w+)(?: hints=(\d+))?\s*$")
Id = tuple[str, int]  # lesson, TODO


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
            part.write_text("\n".join([*lines, *foreign]) + "\n", "utf-8")

    def forget(self, lesson: str) -> None:
        """Drop all that is known of a lesson that begins anew."""
        known = [todo for todo in self.read() if todo[0] == lesson]
        self.write(dict.fromkeys(known, "new"))
        self.write(dict.fromkeys(known, 0))

    def _parse(self) -> tuple[dict[Id, Entry], list[str]]:
        entries, foreign = {}, []
        lines = self.path.read_text("utf-8", errors="replace").splitlines() if self.path.is_file() else []
        for line in lines:
            if found := LINE.match(line):
                lesson, number, state, hints = found.groups()
                entries[lesson, int(number)] = Entry(state, int(hints or 0))
            elif line.strip():
                foreign.append(line)
        return entries, foreign


def exercises() -> list[str]:
    """The lessons with something to do, in course order."""
    return [lesson for lesson in lessons.stems() if titles(lesson)]


def next_todo() -> Id | None:
    """The first TODO, in course order, that has not passed."""
    entries = Progress().read()
    todos = ((lesson, number) for lesson in exercises() for number in titles(lesson))
    return next((todo for todo in todos if entries.get(todo, Entry()).state != "pass"), None)


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
            lines.append(
                f"  {mark} {lesson:22} [dim]{kind:9}[/] {done} of {len(todos)} TODOs"
                + (f"; {escape(lacking)}" if lacking else "")
            )
    return lines
