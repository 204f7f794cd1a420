"""Which files of a submission are taken: the student's own files of some lessons, wherever they lie.

A file is known by its path in the course; else by its name, in any folder; else by what it holds, where browsers,
learning platforms or the student have renamed it. What else there is, is ignored. Names in a submission never decide
where anything is written.
"""

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

MOST_FILE = 5_000_000  # bytes; a notebook full of pictures has one or two megabytes
MOST_ARCHIVE = 50_000_000  # bytes, packed; also of everything that is searched for the course's files
MOST_READ = 150_000_000  # bytes, likewise, if archives of a submission are opened
MOST_ARCHIVES, DEEPEST = 16, 2  # that are opened: in all, and one inside the other
MOST_REASONS, LONGEST_REASON = 30, 300  # lines that are kept about why something was not taken, and their letters
MOST_HELD = 12  # names that are told where nothing of the course is found

HEAD = 512  # bytes that show what a file is
ARCHIVES = re.compile(r"\.(tar|tgz|tbz2?|txz|gz|bz2|xz|zip|7z|rar|zst)(?![^\W_])", re.IGNORECASE)  # by name
MAGIC = {b"PK\3\4": "zip", b"PK\5\6": "zip", b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\0": "xz"}
FOREIGN = {b"7z\xbc\xaf\x27\x1c": "7-Zip", b"Rar!": "RAR", b"\x28\xb5\x2f\xfd": "Zstandard"}
# Documents, packages and checkpoints that are zips by their content.
NO_ARCHIVES = re.compile(r"\.(docx|xlsx|pptx|od[tsp]|epub|pages|numbers|key|jar|whl|npz|pt|pth)$", re.IGNORECASE)
# What programs leave next to a student's work, or a copy of the course brings along.
LEFT_BY_PROGRAMS = {".venv", ".git", "__pycache__", "__MACOSX", ".ipynb_checkpoints", ".workbook", "site-packages"}
GIVEN = ("grader", "start")  # a release has the lessons in their original state there
DEFINED = re.compile(r"\b(?:def|class) \w+")
CODE = re.compile(r"\.(ipynb|py|sbatch|pbs)(?![^\W_])", re.IGNORECASE)
# Of the lines by which a file is known (see `submissions.known_by`), the part that is in one of another lesson: 0.48 at
# most in this course, where scripts begin as others end; in its own, unsolved or solved: 0.95 or more.
MOST_ALIKE = 0.6
COPY = re.compile(
    r"^(?P<time>\d{14})_|\((?P<a>\d{1,3})\)|-Copy(?P<b>\d*)|\bcopy(?: (?P<c>\d+))?\b|-(?P<d>\d{1,2})(?=\.|$)",
    re.IGNORECASE,
)


class Entry(NamedTuple):
    """What a folder or an archive holds under a name."""

    name: str
    kind: str  # "file", "folder", "link", or "device" for all else
    read: Callable[[int], bytes]  # its first bytes, so many at most; asked again, from the start


class File(NamedTuple):
    name: str  # its path in the submission
    content: bytes
    depth: int = 0  # the number of archives around it


@dataclass
class Taken:
    """The files of a submission, by path in the course, and what was not taken and why."""

    files: dict[str, bytes] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)  # archives that could not be opened: among `refused`, too
    holds: list[str] = field(default_factory=list)  # names of files, the first few

    def refuse(self, name: str, why: str) -> None:
        if len(self.refused) < MOST_REASONS:
            self.refused.append(f"{name[:LONGEST_REASON]}: {why}")
        elif len(self.refused) == MOST_REASONS:
            self.refused.append("and more")

    def leave_unread(self, name: str, why: str) -> None:
        self.refuse(name, why)
        if len(self.unread) < MOST_REASONS:
            self.unread.append(f"{name[:LONGEST_REASON]} {why}")


class Choice(NamedTuple):
    """A file taken as one of the wanted; of two, the one with the smaller rank."""

    rank: tuple[int, int, int]  # how odd its name is, how deep it lies, minus the number of a copy
    file: File


class Sieve:
    """Sorts what a submission holds.

    Attributes:
        odd: files whose names say too little: `finish` looks into them.
        archives: what must be opened first.
    """

    def __init__(self, wanted: Mapping[str, list[str]], room: int) -> None:
        """`wanted`: path in the course -> lines by which the file is known, whatever it is called. `room`: the bytes
        that may be kept of odd files and archives.
        """
        self.wanted, self.room = wanted, room
        self.taken = Taken()
        self.best: dict[str, Choice] = {}
        self.odd: list[File] = []
        self.archives: list[File] = []

    def sift(self, entries: Iterable[Entry], prefix: str = "", depth: int = 0) -> None:
        """Look at the entries of a folder, or of an archive called `prefix` inside `depth` - 1 others."""
        for entry in entries:
            inside = PurePosixPath(entry.name.replace("\\", "/"))
            name = f"{prefix}/{entry.name}" if prefix else entry.name
            if inside.is_absolute() or ".." in inside.parts or (inside.parts and ":" in inside.parts[0]):
                self.taken.refuse(name, "leads out of the submission")
            elif left_by_programs(inside):
                continue
            elif entry.kind in ("link", "device"):
                self.taken.refuse(name, f"a {entry.kind}" + " or the like" * (entry.kind == "device"))
            elif entry.kind == "file":
                self._look_at(entry, name, depth)

    def _look_at(self, entry: Entry, name: str, depth: int) -> None:
        own, odd = self.named(name)
        code = CODE.search(PurePosixPath(name).name)
        if not own and not code and looks_packed(entry, name):
            self._keep(self.archives, entry, name, MOST_ARCHIVE, depth)
            return
        if len(self.taken.holds) < MOST_HELD:
            self.taken.holds.append(name[:LONGEST_REASON])
        if own and odd < 2:
            if len(content := entry.read(MOST_FILE + 1)) > MOST_FILE:
                self.taken.refuse(name, f"longer than {MOST_FILE // 1_000_000} MB")
            else:
                self.offer(own, odd, File(name, content))
        elif code:
            self._keep(self.odd, entry, name, MOST_FILE, depth)

    def _keep(self, kept: list[File], entry: Entry, name: str, most: int, depth: int) -> None:
        """Keep a file to look into, or an archive to open, as far as there is room."""
        refuse = self.taken.leave_unread if kept is self.archives else self.taken.refuse
        if kept is self.archives and depth >= DEEPEST:
            refuse(name, "is not opened: it lies inside of too many archives")
            return
        content, room = entry.read(min(most, self.room) + 1), min(most, self.room)
        if len(content) > room:
            larger = f"it is longer than {most // 1_000_000} MB"
            refuse(name, f"is not read: {larger if room == most else 'the submission is too large'}")
        else:
            self.room -= len(content)
            kept.append(File(name, content, depth))

    def named(self, name: str) -> tuple[str, int]:
        """The wanted file that a name means, and how odd it is: 0 the path of the course, 1 its name in another folder,
        2 a name around it, such as "01_collectives (1).ipynb". ("", 3): it means none.
        """
        parts = PurePosixPath(name.replace("\\", "/")).parts
        if (own := "/".join(parts[-2:])) in self.wanted:
            return own, 0
        last = parts[-1] if parts else ""
        for own in self.wanted:
            if last == PurePosixPath(own).name:
                return own, 1
        for own in self.wanted:
            if around(PurePosixPath(own)).search(last):
                return own, 2
        return "", 3

    def offer(self, own: str, odd: int, file: File) -> None:
        """Take a file as this one, unless there is a better one."""
        parts = PurePosixPath(file.name.replace("\\", "/")).parts
        new = Choice((odd, len(parts), -sum(map(copy_number, parts))), file)
        old = self.best.setdefault(own, new)
        if old is not new:
            if new.rank < old.rank:
                self.best[own], new = new, old
            if new.file.content != self.best[own].file.content:
                self.taken.refuse(new.file.name, f"{self.best[own].file.name[:LONGEST_REASON]} is taken as {own}")

    def finish(self, heard: Callable[[], None] = lambda: None) -> Taken:
        """Look into files with odd names, and return what is taken. `heard` is called now and then while that takes
        long.
        """
        only_names, since = [], 0
        for file in self.odd:
            since += len(file.content)
            if since > MOST_FILE:
                heard()
                since = 0
            text = file.content.decode("utf-8", "replace")
            own, _ = self.named(file.name)
            if own and share(text, self.wanted[own]) >= 0.25:
                self.offer(own, 2, file)
            elif most_alike := self.by_content(file, text):
                self.offer(most_alike, 3, file)
            elif own:
                only_names.append((own, file.name))
        for own, name in only_names:
            if own not in self.best:
                self.taken.refuse(name, f"has the name of {own}, and nothing of it inside")
        self.taken.files = {own: choice.file.content for own, choice in self.best.items()}
        return self.taken

    def by_content(self, file: File, text: str) -> str:
        """The wanted file that this one is, by its lines; "" if it is none."""
        if "TODO" not in text:
            return ""
        kind = CODE.search(PurePosixPath(file.name).name)[0].lower()
        known = {own: lines for own, lines in self.wanted.items() if lines and PurePosixPath(own).suffix == kind}
        alike = {own: share(text, lines) for own, lines in known.items()}
        best = max(alike, key=alike.get, default="")
        return best if best and alike[best] > MOST_ALIKE else ""


def share(text: str, lines: list[str]) -> float:
    """The part of these lines that is in a text, as they are or as a notebook's JSON has them; 1 if there are none."""
    defined = set(DEFINED.findall(text))
    found = [line in defined or any(form in text for form in forms(line)) for line in lines]
    return sum(found) / len(found) if found else 1.0


@functools.cache
def forms(line: str) -> set[str]:
    return {line, json.dumps(line)[1:-1], json.dumps(line, ensure_ascii=False)[1:-1]}


def around(own: PurePosixPath) -> re.Pattern:
    """Names that were made from this file's: something before, between or behind."""
    stem, suffix = re.escape(own.stem), re.escape(own.suffix)
    return re.compile(rf"(?<![^\W_]){stem}(?![^\W_]).*{suffix}(?![^\W_])", re.IGNORECASE)


def copy_number(part: str) -> int:
    """Which copy a name says that it is: 1 in "x (1).ipynb" and "x-1.ipynb", a time where a platform puts one; 0 for
    none.
    """
    return max((int(next(filter(None, found.groups()), 1)) for found in COPY.finditer(part)), default=0)


def left_by_programs(path: PurePosixPath) -> bool:
    within = path.parts[:-1]
    return path.name.startswith("._") or bool(LEFT_BY_PROGRAMS & {*path.parts}) or GIVEN in {*zip(within, within[1:])}


def looks_packed(entry: Entry, name: str) -> bool:
    """Whether an entry is an archive, by its content or its name."""
    if NO_ARCHIVES.search(name) or ARCHIVES.search(PurePosixPath(name).name):
        return not NO_ARCHIVES.search(name)
    try:
        return bool(kind_of(entry.read(HEAD)))
    except Exception:  # a file that is not asked for need not be readable
        return False


def kind_of(head: bytes) -> str:
    """What kind of archive begins like this: "zip", "tar", "gz", "bz2", "xz", or the name of a kind that cannot be
    opened here; "" if none does.
    """
    for magic, kind in (MAGIC | FOREIGN).items():
        if head.startswith(magic):
            return kind
    return "tar" if head[257:262] == b"ustar" else ""


def digest(files: Iterable[File]) -> str:
    """A digest of names and contents."""
    whole = hashlib.sha256()
    for file in sorted(files):
        name = file.name.encode("utf-8", "surrogatepass")
        whole.update(name + b"\0" + hashlib.sha256(file.content).digest())
    return whole.hexdigest()
