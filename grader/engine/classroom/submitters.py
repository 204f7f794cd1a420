"""Whose the entries of a class's folder are: by the names that learning platforms give them, or by their own.

    Moodle       Student One_123456_assignsubmission_file_/…        Student One
    Canvas       studentone_LATE_31415_92653_submission.tar.gz      studentone
    Blackboard   gradebook_COURSE_TASK_ab12_attempt_2026-11-20-14-05-33_submission.tar.gz    ab12
    ILIAS        One_Student_ab12_6789/…                            ab12
    otherwise    Student One.tar.gz, Student One/, Student One (1).zip, Student One_01_collectives.ipynb

A platform's number, not the name, says who is who. Of two entries that are the same file of the same student, one
counts. Each entry is a student's, or told.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from grader.engine.lesson import submission_files, lessons
from grader.engine.lesson.submission_files import copy_number
from grader.engine.walls import sanitize

MOODLE = re.compile(r"(?P<student>.+?)_(?P<id>\d+)_assignsubmission_(?P<kind>[a-z]+)(?:_(?P<file>.*))?", re.DOTALL)
CANVAS = re.compile(r"(?P<student>.+?)_(?P<late>LATE_)?(?P<id>\d+)_(?:(?P<time>\d+)_(?P<file>.+)|(?:text|link)\.html)")
CANVAS_ANONYMOUS = re.compile(r"(?P<late>LATE_)?(?P<student>anon_(?P<id>[^_]+))_(?P<time>\d+)_(?P<file>.+)")
BLACKBOARD = re.compile(r"(?P<student>.+?)_attempt_(?P<time>\d{4}(?:-\d\d){5})(?:_(?P<file>.+)|\.txt)")
ILIAS = re.compile(r"[^_]+_[^_]+_(?P<student>[^_]+)_(?P<id>\d+)")
LATE = re.compile(r"[ _-]+LATE(?![^\W_])", re.IGNORECASE)
MARKS_OF_COPIES = re.compile(r" ?\(\d{1,3}\)|[ -]+copy(?: \d+)?(?![^\W_])|^copy of |-Copy\d*", re.IGNORECASE)
ENDING = re.compile(r"(\.(tar|tgz|tbz2?|txz|gz|bz2|xz|zip|7z|rar|zst))+$", re.IGNORECASE)
SYSTEMS = {"__MACOSX", "Thumbs.db", "desktop.ini", "System Volume Information", "$RECYCLE.BIN", "lost+found"}
KINDS = ("notebooks", "train", "sbatch")


class Owned(NamedTuple):
    """An entry, whose it is, and what is known of its place among the same student's entries."""

    student: str
    id: str  # the platform's; "" for a name alone
    file: str  # that the student handed in, without marks of copies; entries that share it are versions of one
    order: tuple  # the later one is larger
    path: Path


class Handed(NamedTuple):
    """A class's submissions: student -> entries; and a line for each entry that is none, or does not count."""

    students: dict[str, list[Path]]
    told: list[str]


def students(folder: Path, keep: str = "last") -> Handed:
    """The submissions in a folder. `keep`: which of a student's versions of one file counts, "first" or "last".

    Raises ValueError if the folder is itself a submission, or holds a single folder with a class in it.
    """
    paths, told, left_out = [], [], []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in SYSTEMS:
            left_out.append(path.name)
        elif why := no_submission(path):
            told.append(f"{shown(path)} is not graded: {why}")
        else:
            paths.append(path)
    if kind := next((path.name for path in paths if path.name in KINDS and path.is_dir()), None):
        raise ValueError(f"{folder} is one submission, with {kind}/ in it: give the folder that it lies in")
    if len(paths) == 1 and (below := class_within(paths[0])):
        raise ValueError(f"{folder} holds nothing but {shown(paths[0])}/, in which {below} lie: give that folder")
    if left_out:
        told.append(f"not looked at: {', '.join(sanitize.plain_text(name, 80) for name in left_out)}")
    counted: dict[tuple[str, str], list[Owned]] = {}
    for versions in by_version(owners(paths)):
        versions.sort(key=lambda owned: owned.order, reverse=keep == "last")
        first, *others = versions
        counted.setdefault((first.student, first.id), []).append(first)
        for other in others:
            which = "later" if keep == "last" else "earlier"
            told.append(f"{shown(other.path)} does not count: {shown(first.path)} is the same student's, and {which}")
    names = unique(counted)
    return Handed({names[key]: [owned.path for owned in owned_by] for key, owned_by in counted.items()}, told)


def class_within(path: Path) -> str:
    """How many submissions a platform's names show in a folder; "" if none, or one, which may be the student's own."""
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    known = [name for name in names if by_platform(name) or ILIAS.fullmatch(name)]
    return f"{len(known)} submissions" if len(known) > 1 and len(known) == len(names) else ""


def no_submission(path: Path) -> str:
    """Why an entry cannot be a submission; "" if it can."""
    if path.is_symlink():
        return "a link is not followed"
    if path.is_dir():
        return ""
    if not path.is_file():
        return "it is neither a file nor a folder"
    if submission_files.CODE.search(path.name) or submission_files.ARCHIVES.search(path.name) or by_platform(path.name):
        return ""
    if not submission_files.NO_ARCHIVES.search(path.name) and submission_files.kind_of(
        sanitize.plain_bytes(path, 512, cut=True)
    ):
        return ""
    return "it is neither a folder or an archive nor a notebook, script or batch file"


def by_platform(name: str) -> re.Match | None:
    """What a platform's name says, if it is one of a file or a folder alike."""
    return next(filter(None, (form.fullmatch(name) for form in (MOODLE, CANVAS_ANONYMOUS, CANVAS, BLACKBOARD))), None)


def owners(paths: list[Path]) -> list[Owned]:
    found = [of_platform(path, said) if (said := by_platform(path.name)) else of_name(path) for path in paths]
    if found and all(path.is_dir() and ILIAS.fullmatch(path.name) for path in paths):
        found = [of_platform(path, ILIAS.fullmatch(path.name)) for path in paths]
    return without_assignment(found)


def of_platform(path: Path, said: re.Match) -> Owned:
    parts = said.groupdict()
    file = parts.get("file") or parts.get("kind") or path.suffix
    time = int((parts.get("time") or "0").replace("-", ""))
    return Owned(
        parts["student"],
        parts.get("id") or "",
        re.sub(r"-\d{1,2}(?=\.)", "", MARKS_OF_COPIES.sub("", file)),
        order(path, time, bool(parts.get("late"))),
        path,
    )


def of_name(path: Path) -> Owned:
    """The owner of an entry that no platform has named. A loose notebook or script may name its lesson, too. team-1 and
    team-2 are two.
    """
    if path.is_dir():
        return Owned(path.name, "", "", order(path), path)
    late = bool(LATE.search(path.name))
    name = MARKS_OF_COPIES.sub("", LATE.sub("", path.name))
    if submission_files.CODE.search(name):
        name = submission_files.CODE.split(name)[0]
        lesson = next((stem for stem in lessons.ORDER if re.search(rf"(?<![^\W_]){stem}(?![^\W_])", name)), "")
        rest = name.replace(lesson, "", 1).strip(" _-.,") if lesson else name
        return Owned(rest or name, "", f"{lesson}{path.suffix}" if rest else "", order(path, late=late), path)
    return Owned(ENDING.sub("", name) or name, "", "", order(path, late=late), path)


def without_assignment(found: list[Owned]) -> list[Owned]:
    """Without what Blackboard puts before the students' names, the same for all: no two become one by it."""
    named = [owned for owned in found if BLACKBOARD.fullmatch(owned.path.name)]
    if not named:
        return found
    before = os.path.commonprefix([owned.student for owned in named])
    if len({owned.student for owned in named}) == 1:  # a class of one: names have no underscore, as a rule
        before = named[0].student
    before = before[: before.rfind("_") + 1]
    return [owned._replace(student=owned.student.removeprefix(before)) if owned in named else owned for owned in found]


def order(path: Path, time: int = 0, late: bool = False) -> tuple:
    return time, late, copy_number(path.name), path.lstat().st_mtime_ns, path.name


def by_version(found: Iterable[Owned]) -> list[list[Owned]]:
    groups: dict[tuple[str, ...], list[Owned]] = {}
    for owned in found:
        groups.setdefault((owned.id, owned.student, owned.file), []).append(owned)
    return [*groups.values()]


def unique(keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """A name for each (student, id): with the platform's number where two students have the same."""
    keys = [*keys]
    alike = Counter(student for student, _ in keys)
    names: dict[tuple[str, str], str] = {}
    for student, id in keys:
        name = f"{student} ({id})" if alike[student] > 1 and id else student
        while name in names.values():
            name += " (another)"
        names[student, id] = name
    return names


def shown(path: Path) -> str:
    return sanitize.plain_text(path.name, 120)
