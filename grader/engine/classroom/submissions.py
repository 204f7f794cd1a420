"""Reads submissions: a folder or an archive (tar in any compression, or zip) with any part of train/, notebooks/ and
sbatch/.

A submission may be hostile. Here it is only bytes, of a limited number: an archive is unpacked, and a file is parsed,
on a rank in a sandbox (`inside/reading.py`). Nothing is unpacked to disk, and no link is followed.
"""

import errno
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from grader.engine.lesson import files, handed_in
from grader.engine.lesson.handed_in import MOST_FILE, Taken
from grader.engine.lesson.parsing import Cell, Outline
from grader.engine.ranks.job import Job
from grader.engine.ranks.runner import Runner
from grader.engine.walls import plain

READING = "grader.engine.inside.reading"  # by name: it runs on a rank
TOO_LONG = "it takes too long: hand in your own files and nothing else"
MOST_ARCHIVE = 50_000_000  # bytes, packed
MOST_ENTRIES = 20_000  # of a folder
# Failures of the machine; anything else that goes wrong with a file (e.g. its path is too long) is the submission's
# fault.
OURS = {getattr(errno, name) for name in ("EIO", "ENOSPC", "EDQUOT", "ENOMEM", "EMFILE", "ENFILE", "ESTALE", "EROFS")}
ARCHIVES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar", ".zip")


class Refused(ValueError):
    """A submission or a file of it that cannot be read; the message says why."""


def students(folder: Path) -> dict[str, Path]:
    """The submissions in a folder: student -> folder or archive. A student's name is the entry's name without its
    suffix.
    """
    names: dict[Path, str] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        ending = next((end for end in ARCHIVES if path.name.lower().endswith(end)), "")
        if path.is_symlink() or not (path.is_dir() or ending):
            continue
        names[path] = path.name[: len(path.name) - len(ending)] if ending and not path.is_dir() else path.name
    while twice := {name for name, count in Counter(names.values()).items() if count > 1}:
        # If names collide, each student is called by the full name of the entry, which is unique.
        names |= {path: path.name for path, name in names.items() if name in twice}
    return {name: path for path, name in names.items()}


def digest(path: Path, stems: list[str]) -> str:
    """A digest that distinguishes a submission from the same student's next one: of an archive's bytes, or of the files
    in a folder.
    """
    try:
        return of_folder(path, stems).digest if path.is_dir() else hashlib.sha256(of_archive(path)).hexdigest()
    except (Refused, OSError):
        return Taken().digest


def take(path: Path, stems: list[str], inside: Runner) -> Taken:
    """Take the student's files of these lessons. An archive is unpacked `inside` a sandbox. Raises Refused if the
    submission as a whole cannot be opened.
    """
    if path.is_dir():
        return of_folder(path, stems)
    packed, own = of_archive(path), wanted(stems)
    name = "packed" + next(end for end in ARCHIVES if path.name.lower().endswith(end))
    left, found = read_inside(inside, stems[0], {name: packed}, "unpacked", archive=name, wanted=own)
    refused = left.get("refused")
    if not isinstance(refused, list):
        raise Refused(plain.plain_text(f"{path.name} cannot be read: {left.get('problem')}", 300))
    kept = {name: found[name] for name in own if name in found and len(found[name]) <= MOST_FILE}
    return Taken(kept, [str(line) for line in refused])


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
        for cell_id, key, code, locked, text, (error, line, functions) in values:
            spans = [[str(name), int(first), int(last)] for name, first, last in functions]
            outline = Outline(str(error), int(line), spans)
            cells.append(Cell(str(cell_id), str(key), bool(code), bool(locked), str(text), outline))
    except (TypeError, ValueError, OverflowError):
        raise Refused("what its reader left makes no sense") from None
    return cells


def read_inside(
    inside: Runner, stem: str, given: dict[str, bytes | str], function: str, **inputs: Any
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Call a function of `inside/reading.py` on a rank, in a folder with the `given` files. Returns what it says, which
    is a problem if it met the limits of a rank, and the files that it left.
    """
    module = f"grader.test_{stem}"  # what a rank may load is determined by its lesson
    job = Job([], module, 1, group=False, function=f"{READING}:{function}", inputs=inputs, files=given)
    run = inside.run(job)
    if run.fault:
        return {"problem": TOO_LONG if run.fault.cause == "hang" else run.fault.message}, {}
    left = run.evidence[0]
    return left if isinstance(left, dict) else {}, run.files


def wanted(stems: list[str]) -> list[str]:
    return [own.as_posix() for stem in stems for own in files.own_files(stem)]


def of_archive(path: Path) -> bytes:
    try:
        return plain.plain_bytes(path, MOST_ARCHIVE)
    except OSError as error:
        if error.errno:
            raise
        raise Refused(f"{path.name} is longer than {MOST_ARCHIVE // 1_000_000} MB") from None


def of_folder(path: Path, stems: list[str]) -> Taken:
    try:
        return handed_in.take(in_folder(path), wanted(stems))
    except (OSError, ValueError) as error:
        if isinstance(error, Refused) or getattr(error, "errno", None) in OURS:
            raise
        raise Refused(plain.plain_text(f"{path.name} cannot be read: {type(error).__name__}: {error}", 300)) from None


def in_folder(root: Path) -> Iterator[handed_in.Entry]:
    count = 0
    for folder, below, names in os.walk(root):  # which follows no links
        inside = PurePosixPath(os.path.relpath(folder, root))
        for name in [*(name for name in below if os.path.islink(os.path.join(folder, name))), *sorted(names)]:
            count += 1
            if count > MOST_ENTRIES:
                raise Refused(f"{root.name} has more than {MOST_ENTRIES} files")
            path = Path(folder, name)
            mode = os.lstat(path).st_mode
            kind = "file" if stat.S_ISREG(mode) else "link" if stat.S_ISLNK(mode) else "device"
            yield handed_in.Entry(
                str(inside / name), kind, lambda most, path=path: plain.plain_bytes(path, most, cut=True)
            )
        below[:] = sorted(name for name in below if name not in (".venv", ".git", "__pycache__"))
