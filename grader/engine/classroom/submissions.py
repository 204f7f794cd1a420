"""Reads submissions. Only the students' own files are taken, each as plain bytes of plausible size; the rest is
ignored.

A submission is a folder or an archive (tar in any compression, or zip) with any part of train/, notebooks/ and sbatch/,
at its top or inside one folder that packing added. It may be hostile: nothing is unpacked to disk, no link is followed,
and names in it never decide where anything is written.
"""

import bz2
import errno
import gzip
import hashlib
import lzma
import os
import stat
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from grader.engine.lesson import files
from grader.engine.walls import plain

MOST_FILE = 5_000_000  # bytes; a notebook full of pictures has one or two megabytes
MOST_ARCHIVE = 50_000_000  # bytes, packed
MOST_UNPACKED = 300_000_000  # bytes that the entries of an archive claim in total
MOST_ENTRIES = 20_000
MOST_HEADER = 10_000  # bytes of a tar header of one entry
HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
MOST_LIST = 5_000_000  # bytes of a zip file's list
MOST_REASONS = 30  # lines kept about why something was not taken
# Failures of the machine; anything else that goes wrong with a file (e.g. its path is too long) is the submission's
# fault.
OURS = {getattr(errno, name) for name in ("EIO", "ENOSPC", "EDQUOT", "ENOMEM", "EMFILE", "ENFILE", "ESTALE", "EROFS")}
ARCHIVES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar", ".zip")


class Refused(ValueError):
    """A submission that cannot be opened; the message says why."""


@dataclass
class Taken:
    """The files of a submission, by path in the course, and what was not taken and why."""

    files: dict[str, bytes] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    @property
    def digest(self) -> str:
        digest = hashlib.sha256()
        for name in sorted(self.files):
            digest.update(name.encode() + b"\0" + hashlib.sha256(self.files[name]).digest())
        return digest.hexdigest()


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
    """A digest that distinguishes a submission from the same student's next one. For an archive, it is computed from
    its bytes: the main process, which asks, opens no archive.
    """
    try:
        if path.is_dir():
            return take(path, stems).digest
        with path.open("rb") as file:
            return hashlib.sha256(file.read(MOST_ARCHIVE + 1)).hexdigest()
    except (Refused, OSError):
        return Taken().digest


def take(path: Path, stems: list[str]) -> Taken:
    """Take the student's files of these lessons. Raises Refused if the submission as a whole cannot be opened."""
    wanted = {PurePosixPath(own.as_posix()) for stem in stems for own in files.own_files(stem)}
    taken = Taken()
    entries = _folder(path, taken) if path.is_dir() else _archive(path, taken)
    depth: dict[PurePosixPath, int] = {}
    total = 0
    try:
        for name, content in entries:
            own = PurePosixPath(*name.parts[-2:])
            if own not in wanted:
                continue
            if own in depth and depth[own] <= len(name.parts):
                taken.refused.append(f"{name}: there is a second {own} nearer to the top")
                continue
            read = content()
            total += len(read)
            if total > MOST_UNPACKED:
                raise Refused(f"{path.name} has its files again and again")
            if len(read) > MOST_FILE:
                taken.refused.append(f"{name}: longer than {MOST_FILE // 1_000_000} MB")
                continue
            depth[own] = len(name.parts)
            taken.files[str(own)] = read
    except Exception as error:  # no library documents everything that a broken archive can raise
        if isinstance(error, Refused) or getattr(error, "errno", None) in OURS:
            raise
        raise Refused(plain.plain_text(f"{path.name} cannot be read: {type(error).__name__}: {error}", 300)) from None
    finally:
        more = len(taken.refused) - MOST_REASONS
        taken.refused[:] = [plain.plain_text(reason, 300) for reason in taken.refused[:MOST_REASONS]] + [
            f"and {more} more"
        ] * (more > 0)
    return taken


def _folder(root: Path, taken: Taken) -> Iterator[tuple]:
    count = 0
    for folder, below, names in os.walk(root):  # which follows no links
        inside = PurePosixPath(os.path.relpath(folder, root))
        for name in below:
            if os.path.islink(os.path.join(folder, name)):
                taken.refused.append(f"{inside / name}: a link")
        for name in sorted(names):
            count += 1
            if count > MOST_ENTRIES:
                raise Refused(f"{root.name} has more than {MOST_ENTRIES} files")
            path = Path(folder, name)
            kind = os.lstat(path).st_mode
            if not stat.S_ISREG(kind):
                taken.refused.append(f"{inside / name}: {'a link' if stat.S_ISLNK(kind) else 'no plain file'}")
            else:
                yield PurePosixPath(inside, name), lambda path=path: plain.plain_bytes(path, MOST_FILE + 1, cut=True)
        below[:] = sorted(name for name in below if name not in (".venv", ".git", "__pycache__"))


def _archive(path: Path, taken: Taken) -> Iterator[tuple]:
    if path.stat().st_size > MOST_ARCHIVE:
        raise Refused(f"{path.name} is longer than {MOST_ARCHIVE // 1_000_000} MB")
    if path.name.lower().endswith(".zip"):
        if listed(path) > MOST_LIST:  # zipfile reads the whole list, however long
            raise Refused(f"{path.name} has a list of more than {MOST_LIST // 1_000_000} MB")
        with zipfile.ZipFile(path) as archive:
            entries = [
                (
                    i.filename,
                    i.file_size,
                    stat.S_ISLNK(i.external_attr >> 16),
                    not i.is_dir(),
                    lambda i=i: archive.open(i).read(MOST_FILE + 1),
                )
                for i in archive.infolist()
            ]
            yield from _safe(path, entries, taken)
    else:
        unpack = {".gz": gzip.open, ".tgz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}.get(
            path.suffix.lower(), open
        )
        # A stream: nothing is read before it was checked. A tar's headers may have any length, so there is a limit.
        with (
            unpack(path, "rb") as packed,
            tarfile.open(fileobj=Limited(packed, path.name), mode="r|", tarinfo=Header) as archive,
        ):
            yield from _safe(
                path,
                (
                    (
                        m.name + "/" * m.isdir(),
                        m.size,
                        m.issym() or m.islnk(),
                        m.isreg(),
                        lambda m=m: archive.extractfile(m).read(MOST_FILE + 1),
                    )
                    for m in archive
                ),
                taken,
            )


def listed(path: Path) -> int:
    """The size in bytes of a zip file's list of entries, as zipfile reads it from the record at the end.

    https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, 4.3.16; a file that is longer than 4 GB has -1 there.
    """
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 65_557))
        tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    return int.from_bytes(tail[at + 12 : at + 16], "little") if at >= 0 else 0


class Header(tarfile.TarInfo):
    """A tar header of plausible length: tarfile takes quadratic time for long pax headers."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:  # made to be overridden, its comment says
        if self.type in HEADERS and self.size > MOST_HEADER:
            raise Refused(f"a header of {self.size} bytes")
        return super()._proc_member(archive)


class Limited:
    """A stream that raises when more comes out of it than an archive may contain."""

    def __init__(self, stream: Any, name: str) -> None:
        self.stream, self.name, self.left = stream, name, MOST_UNPACKED

    def read(self, size: int) -> bytes:
        data = self.stream.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise Refused(f"{self.name} unpacks to more than {MOST_UNPACKED // 1_000_000} MB")
        return data


def _safe(path: Path, entries, taken: Taken) -> Iterator[tuple]:
    """The safe files among entries (name, size, whether it is a link, whether it is a plain file, how to read it)."""
    unpacked = 0
    for count, (name, size, link, file, content) in enumerate(entries):
        unpacked += max(size, 0)
        if unpacked > MOST_UNPACKED or count > MOST_ENTRIES:
            raise Refused(f"{path.name} unpacks to more than {MOST_UNPACKED // 1_000_000} MB or {MOST_ENTRIES} files")
        inside = PurePosixPath(name.replace("\\", "/"))
        if link:
            taken.refused.append(f"{name}: a link")
        elif inside.is_absolute() or ".." in inside.parts or (inside.parts and ":" in inside.parts[0]):
            taken.refused.append(f"{name}: leads out of the submission")
        elif file:
            yield inside, content
        elif not name.endswith("/"):
            taken.refused.append(f"{name}: a device or the like")
