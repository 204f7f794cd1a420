"""A copy of the course that tests may change, and its command line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from grader.engine.lesson import lessons, regions

# Compiled modules are copied, but those that are being written ("*.pyc.*"): to compile the course takes seconds.
LEFT_OUT = shutil.ignore_patterns(".venv", ".git", ".workbook", "runs", "*.pyc.*", ".pytest_cache", "benchmarks")


class Course:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(lessons.COURSE, folder, ignore=LEFT_OUT)
        for lesson in lessons.stems():  # as given, whatever stands in the working copy
            if not lessons.is_notebook(lesson):
                self.solve(lesson)

    def solve(self, lesson: str, todos: tuple[int, ...] = (), **bodies: str) -> None:
        """Write the student's script and batch files with these TODOs done; `todo4="…"` puts a body of one's own."""
        own = {int(name.removeprefix("todo")): body for name, body in bodies.items()}
        for path in lessons.sources(lesson):
            source = path.read_text("utf-8")
            known = regions.titles(source)
            text = regions.compose(source, todos, {number: body for number, body in own.items() if number in known})
            (self.folder / path.relative_to(lessons.source_root())).write_text(text, "utf-8")

    def script(self, lesson: str) -> Path:
        return self.folder / "train" / f"{lesson}.py"

    def progress(self) -> str:
        return (self.folder / ".workbook" / "progress.txt").read_text()

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-P", "-m", "grader.engine.commands.cli", *args]

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.folder), "COLUMNS": "100", "TERM": "dumb", **more}

    def run(self, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
        return subprocess.run(
            self.command(*args),
            cwd=cwd or self.folder,
            env=self.environment(),
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=300,
        )
