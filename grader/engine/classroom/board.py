"""The board shows the instructor which TODO each student in the room is working on.

Students who join write what their verdicts say, never code, into a shared folder, one small file each; the instructor's
page is made from these files. They are untrusted: anything unexpected in them is left out.
"""

import json
import os
import re
import secrets
import stat
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from grader.engine.judge.verdict import Verdict
from grader.engine.lesson import lessons
from grader.engine.walls.sanitize import plain_bytes, plain_text
from utils.atomic_write import write_whole

OWN = lessons.COURSE / ".workbook" / "board.json"  # which board this student has joined
PAGE = Path(__file__).with_name("board.html")
FILE = re.compile(r"[0-9a-f]{16}\.jsonl")
KEPT = 40  # lines of a student's file
MOST = 16_000  # bytes of it
NAME = 40  # letters
STUDENTS = 500
FILES = 5_000  # files read in the folder
QUIET = 15  # minutes without a verdict
STATUS = ("pass", "fail")
CAUSES = (
    *("not_attempted", "crash", "wrong_value", "mismatch", "hang"),
    *("lines_outside", "prerequisite", "no_python", "not_judged"),
)


class Entry(NamedTuple):
    """The part of a verdict that the board receives."""

    lesson: str
    todo: int
    status: str
    cause: str
    when: float  # seconds since the epoch


class Student(NamedTuple):
    name: str
    lines: list[Entry]  # oldest first
    heard: float  # when the file was written

    @property
    def at(self) -> Entry | None:
        return self.lines[-1] if self.lines else None

    @property
    def tries(self) -> int:
        """Consecutive verdicts on the student's current TODO."""
        return len(self.run())

    def run(self) -> list[Entry]:
        found: list[Entry] = []
        for line in reversed(self.lines):
            if (line.lesson, line.todo) != (self.at.lesson, self.at.todo):
                break
            found.append(line)
        return found

    def minutes(self, now: float) -> int:
        """Minutes since the first of these verdicts; 0 once it has passed."""
        return int((now - self.run()[-1].when) / 60) if self.at and self.at.status == "fail" else 0

    def quiet(self, now: float) -> int:
        return int((now - self.heard) / 60)


def join(folder: Path, name: str) -> Path:
    """Join the board in `folder` under a name. Returns the student's file. Raises OSError if it cannot be written."""
    leave()
    file = folder.resolve() / f"{secrets.token_hex(8)}.jsonl"
    write_whole(file, json.dumps({"name": plain_text(name, NAME)}) + "\n")
    OWN.parent.mkdir(exist_ok=True)
    write_whole(OWN, json.dumps({"file": str(file), "name": name}) + "\n")
    return file


def leave() -> bool:
    """Remove this student's file. False if there was no board."""
    if not OWN.is_file():
        return False
    Path(json.loads(OWN.read_text("utf-8"))["file"]).unlink(missing_ok=True)
    OWN.unlink()
    return True


def post(verdicts: list[Verdict]) -> str:
    """Add verdicts to this student's file, if a board was joined. Returns what went wrong, in one line, or ""."""
    if not verdicts or not OWN.is_file():
        return ""
    joined = json.loads(OWN.read_text("utf-8"))
    file, now = Path(joined["file"]), round(time.time())
    new = [{"todo": f"{v.lesson}/{v.todo}", "status": v.status, "cause": v.cause, "when": now} for v in verdicts]
    try:
        kept = file.read_text("utf-8").splitlines()[1:] if file.is_file() else []
        lines = [json.dumps({"name": joined["name"]}), *[*kept, *map(json.dumps, new)][-KEPT:]]
        write_whole(file, "\n".join(lines) + "\n")
    except OSError as problem:
        return f"the board was not told: {problem.strerror}; ./workbook leave ends it"
    return ""


def open_board(folder: Path) -> str:
    """Make the folder, in which all users may write but not remove another user's file. Returns a line of advice, or
    "".
    """
    if not folder.exists():
        folder.mkdir(parents=True)
        folder.chmod(0o1777)
    mode = folder.stat().st_mode
    if not mode & stat.S_ISVTX or not mode & stat.S_IWOTH:
        return f"not all users can write into {folder}, or they may remove each other's files: chmod 1777"
    return ""


def read(folder: Path) -> list[Student]:
    """The students of a board: the newest file of each account."""
    newest: dict[int, tuple[float, Path]] = {}
    for entry in islice(folder.iterdir(), FILES):
        if FILE.fullmatch(entry.name):
            about = entry.lstat()
            if stat.S_ISREG(about.st_mode) and about.st_mtime > newest.get(owner(about), (-1.0, entry))[0]:
                newest[owner(about)] = about.st_mtime, entry
    found = [student_of(path, heard) for heard, path in newest.values()]
    return [student for student in found if student][:STUDENTS]


def owner(about: os.stat_result) -> int:
    """The account that wrote a file: it has one row, however many files it writes."""
    return about.st_uid


def student_of(path: Path, heard: float) -> Student | None:
    """The student described by a file; None if this course did not write it."""
    try:
        first, *rest = [json.loads(line) for line in plain_bytes(path, MOST).decode().splitlines()[: KEPT + 1]]
        name = plain_text(str(first["name"]), NAME).strip()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    lines = [entry for line in rest if (entry := entry_of(line, heard))]
    return Student(name or "without a name", lines, heard) if lines or not rest else None


def entry_of(line: Any, heard: float) -> Entry | None:
    try:
        lesson, _, number = str(line["todo"]).partition("/")
        cause = line["cause"] if line["cause"] in CAUSES else ""
        entry = Entry(lesson, int(number), str(line["status"]), cause, min(float(line["when"]), heard))
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    return entry if entry.status in STATUS and entry.todo in titles_of(entry.lesson) else None


@cache
def titles_of(lesson: str) -> dict[int, str]:
    return lessons.titles(lesson) if lesson in lessons.stems() else {}


def page(students: list[Student], now: float) -> str:
    """The page: the current TODO of each student, longest on one TODO first; and the most frequent problems."""
    at = [(student, student.at) for student in students]
    wrong = [line for _, line in at if line and line.status == "fail" and line.cause != "not_attempted"]
    stuck = Counter(f"{line.lesson}/{line.todo}: {line.cause.replace('_', ' ')}" for line in wrong)
    places = Counter(f"{line.lesson}/{line.todo}" for _, line in at if line)
    order = sorted(students, key=lambda student: (-student.minutes(now), student.name))
    template = jinja2.Environment(autoescape=True).from_string(PAGE.read_text("utf-8"))
    return template.render(
        students=order,
        now=now,
        clock=time.strftime("%H:%M:%S", time.localtime(now)),
        stuck=stuck.most_common(8),
        places=places.most_common(12),
        titles=titles_of,
        quiet=QUIET,
    )


def follow(folder: Path, out: Path, seconds: float, pause: Callable[[float], object]) -> None:
    """Update the page repeatedly, until the pause raises. It holds no state, so it may be killed at any time."""
    while True:
        write_whole(out, page(read(folder), time.time()))
        pause(seconds)
