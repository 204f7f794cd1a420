"""A copy of the course that tests may change, and its command line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

from grader.engine.lesson import lessons, todo_regions

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
            known = todo_regions.titles(source)
            text = todo_regions.compose(
                source, todos, {number: body for number, body in own.items() if number in known}
            )
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


class Student:
    """A course, and a folder for temporary files of its own, so that its servers are nobody else's. A context manager;
    afterwards none of them is left.

    The folder's name must be short: a socket's address is.
    """

    def __init__(self, course: Course, temporary: Path) -> None:
        self.course, self.temporary = course, temporary
        self.environment = course.environment(TMPDIR=str(temporary))
        for name in ("CI", "PYTEST_CURRENT_TEST", "WORKBOOK_NO_SERVER"):
            self.environment.pop(name, None)

    def __enter__(self) -> "Student":
        return self

    def __exit__(self, *_: object) -> None:
        self.run("stop")
        left = psutil.wait_procs(self.processes(), timeout=60)[1]
        assert not left, left

    def run(self, *args: str, limit: float = 300) -> subprocess.CompletedProcess:
        return subprocess.run(
            self.course.command(*args),
            cwd=self.course.folder,
            env=self.environment,
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=limit,
        )

    def servers(self) -> dict[str, psutil.Process]:
        """The servers that are kept, by their addresses."""
        found = {}
        for process in sorted(self.processes(), key=psutil.Process.create_time):  # its children have the same words
            line = process.info["cmdline"] or []
            if "grader.engine.ranks.fork_server" in line and line[-1].startswith(str(self.temporary)):
                found.setdefault(line[-1], process)
        return found

    def processes(self) -> list[psutil.Process]:
        """All that runs for this student."""
        found = []
        for process in psutil.process_iter(["environ", "cmdline"]):
            if (process.info["environ"] or {}).get("TMPDIR") == str(self.temporary):
                found.append(process)
        return found
