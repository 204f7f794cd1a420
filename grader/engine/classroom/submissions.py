"""Reads submissions: folders, archives and loose files with any part of train/, notebooks/ and sbatch/.

A submission may be hostile. Here it is only bytes, of a limited number: an archive is opened, and a file is looked into
or parsed, on a rank in a sandbox (`inside/read_submission.py`). Nothing is unpacked to disk, and no link is followed.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from grader.engine.lesson import student_files, submission_files, todo_regions
from grader.engine.lesson.submission_files import MOST_ARCHIVE, MOST_FILE, Sieve, Taken
from grader.engine.lesson.parsing import Cell, Outline, Parsed
from grader.engine.ranks.job import Job
from grader.engine.ranks.runner import Runner
from grader.engine.walls import sanitize

READING = "grader.engine.inside.read_submission"  # by name: it runs on a rank
TOO_LONG = "it takes too long: hand in your own files and nothing else"
MOST_ENTRIES = 20_000  # of a folder
# Failures of the machine; anything else that goes wrong with a file (e.g. its path is too long) is the submission's
# fault.
OURS = {getattr(errno, name) for name in ("EIO", "ENOSPC", "EDQUOT", "ENOMEM", "EMFILE", "ENFILE", "ESTALE", "EROFS")}


class Refused(ValueError):
    """A submission or a file of it that cannot be read; the message says why."""


def name_of(paths: list[Path]) -> str:
    """What a student's entries in the class's folder are called."""
    return ", ".join(path.name for path in paths)


def nothing_found(taken: Taken, stems: list[str]) -> str:
    """What a submission holds in place of the course's files, and which were expected."""
    expected = [own.as_posix() for stem in stems for own in student_files.own_files(stem)]
    these = " or ".join(expected) if len(expected) <= 3 else f"files such as {expected[0]}, {len(expected)} in all"
    held = ", ".join(sanitize.plain_text(name, 80) for name in taken.holds[: submission_files.MOST_HELD])
    more = " and more" if len(taken.holds) >= submission_files.MOST_HELD else ""
    return f"it holds {held + more or 'no file'}; expected: {these}, as ./workbook submit packs them"


def digest(paths: list[Path], stems: list[str]) -> str:
    """A digest that distinguishes a submission from the same student's next one: of all that may count in it."""
    try:
        found = sifted(paths, stems)
    except (Refused, OSError):
        return Taken().digest
    return submission_files.digest([*(choice.file for choice in found.best.values()), *found.odd, *found.archives])


def take(paths: list[Path], stems: list[str], inside: Runner) -> Taken:
    """Take the student's files of these lessons. What is packed is opened, and what has an odd name is looked into,
    `inside` a sandbox. Raises Refused if the submission as a whole cannot be opened.
    """
    found = sifted(paths, stems)
    if not found.odd and not found.archives:
        taken = found.finish()
    else:
        taken = taken_inside(inside, stems, found)
    if not taken.files and taken.unread:
        raise Refused(sanitize.plain_text(taken.unread[0], 300))
    return taken


def sifted(paths: list[Path], stems: list[str]) -> Sieve:
    """What these entries of the class's folder hold, by names and sizes alone."""
    found = Sieve(wanted(stems), MOST_ARCHIVE)
    for path in paths:
        try:
            if path.is_dir():
                found.sift(in_folder(path), path.name if len(paths) > 1 else "")
            else:
                found.sift([entry_of(path, path.name)])
        except (OSError, ValueError) as error:
            if isinstance(error, Refused) or getattr(error, "errno", None) in OURS:
                raise
            why = f"{path.name} cannot be read: {type(error).__name__}: {error}"
            raise Refused(sanitize.plain_text(why, 300)) from None
    return found


def taken_inside(inside: Runner, stems: list[str], found: Sieve) -> Taken:
    given = [*(choice.file for choice in found.best.values()), *found.odd, *found.archives]
    packed: dict[str, bytes | str] = {str(number): file.content for number, file in enumerate(given)}
    left, read = read_inside(
        inside, stems[0], packed, "unpacked", names=[file.name for file in given], wanted=found.wanted
    )
    lists = [left.get(name) for name in ("refused", "unread", "holds")]
    if not all(isinstance(lines, list) for lines in lists):
        what = " and ".join(file.name for file in found.archives) or "it"
        raise Refused(sanitize.plain_text(f"{what} cannot be read: {left.get('problem')}", 300))
    refused, unread, holds = ([str(line) for line in lines] for lines in lists)
    kept = {own: read[own] for own in found.wanted if own in read and len(read[own]) <= MOST_FILE}
    before = found.taken
    return Taken(kept, before.refused + refused, before.unread + unread, before.holds + holds)


def parse(inside: Runner, stem: str, text: str, notebook: bool) -> list[Cell]:
    """The cells of a student's file, parsed `inside` a sandbox. Raises Refused if it cannot be read."""
    left, _ = read_inside(inside, stem, {"file": text}, "parsed", file="file", notebook=notebook)
    if "problem" in left:
        raise Refused(str(left["problem"]))
    return cells_of(left.get("cells"))


def cells_of(values: Any) -> list[Cell]:
    """Cells from the values that their reader left. Raises Refused if these make no sense."""
    cells = []
    try:
        for cell_id, key, code, locked, text, ((error, line, functions), statements) in values:
            spans = [[str(name), int(first), int(last)] for name, first, last in functions]
            outline = Outline(str(error), int(line), spans)
            parsed = Parsed(outline, statements_in(statements, str(text).count("\n") + 1))
            cells.append(Cell(str(cell_id), str(key), bool(code), bool(locked), str(text), parsed))
    except (TypeError, ValueError, OverflowError):
        raise Refused("what its reader left makes no sense") from None
    return cells


def statements_in(values: Any, lines: int) -> list[list] | None:
    """The statements of a text with so many lines, as its reader left them. Raises ValueError if they make no sense."""
    if values is None:
        return None
    found = [[int(first), int(last), int(depth), str(code)] for first, last, depth, code in values]
    if not all(1 <= first <= last <= lines for first, last, *_ in found):
        raise ValueError("a statement outside of the text")
    return found


def read_inside(
    inside: Runner, stem: str, given: dict[str, bytes | str], function: str, **inputs: Any
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Call a function of `inside/read_submission.py` on a rank, in a folder with the `given` files. Returns what it
    says, which is a problem if it met the limits of a rank, and the files that it left.
    """
    job = Job([], stem, 1, group=False, function=f"{READING}:{function}", inputs=inputs, files=given)
    run = inside.run(job)
    if run.fault:
        return {"problem": TOO_LONG if run.fault.cause == "hang" else run.fault.message}, {}
    left = run.evidence[0]
    return left if isinstance(left, dict) else {}, run.files


def wanted(stems: list[str]) -> dict[str, list[str]]:
    """The student's files of these lessons, by path in the course, each with lines by which it is known."""
    return {
        own.as_posix(): known_by(source.read_text("utf-8"))
        for stem in stems
        for own, source in student_files.own_files(stem).items()
    }


def known_by(source: str) -> list[str]:
    """Lines that a student's file and its source both have: its TODOs, and the functions that it defines."""
    titles = [f"TODO {number}: {title}" for number, title in todo_regions.titles(source).items()]
    return titles + re.findall(r"^(?:def|class) \w+\b", source, re.MULTILINE)


def in_folder(root: Path) -> Iterator[submission_files.Entry]:
    count = 0
    for folder, below, names in os.walk(root):  # which follows no links
        inside = PurePosixPath(os.path.relpath(folder, root))
        for name in [*(name for name in below if os.path.islink(os.path.join(folder, name))), *sorted(names)]:
            count += 1
            if count > MOST_ENTRIES:
                raise Refused(f"{root.name} has more than {MOST_ENTRIES} files")
            yield entry_of(Path(folder, name), str(inside / name))
        below[:] = sorted(name for name in below if name not in submission_files.LEFT_BY_PROGRAMS)


def entry_of(path: Path, name: str) -> submission_files.Entry:
    mode = os.lstat(path).st_mode
    kind = "file" if stat.S_ISREG(mode) else "link" if stat.S_ISLNK(mode) else "device"
    return submission_files.Entry(name, kind, lambda most: sanitize.plain_bytes(path, most, cut=True))
