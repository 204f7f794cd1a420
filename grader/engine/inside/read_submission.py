"""Reads a submission on a rank of its own, in the sandbox: opens archives, looks into files, parses a student's file.

No code of the student's runs here. But an archive or a file can make a library run endlessly, take all memory or end
the process: then it meets the limits of a rank. The judge takes what this leaves as it takes evidence.
"""

import bz2
import gzip
import io
import lzma
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import nbformat  # noqa: F401  what parses notebooks is loaded here, once, and not by each rank

from grader.engine.inside import observe
from grader.engine.lesson import submission_files, parsing


class NoArchive(ValueError):
    """What cannot be opened here; the message says why."""


OPENERS = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}


def unpacked(names: list[str], wanted: dict[str, list[str]]) -> dict:
    """Take the wanted files from those in the current folder, called 0, 1, … there and `names` by the student; and from
    the archives among them. What is taken then lies in this folder, by its path in the course. Returns the lines of a
    `Taken`: {"refused": …, "unread": …, "holds": …}.
    """
    sieve = submission_files.Sieve(wanted, submission_files.MOST_READ)
    files = [submission_files.File(name, Path(str(number)).read_bytes()) for number, name in enumerate(names)]
    sieve.sift(entry_of(file) for file in files)
    alone = len(files) == 1  # then its name says nothing that tells its files apart
    opened = 0
    while sieve.archives:
        file = sieve.archives.pop(0)
        opened += 1
        if opened > submission_files.MOST_ARCHIVES:
            sieve.taken.leave_unread(file.name, f"is not read: more than {submission_files.MOST_ARCHIVES} archives")
            continue
        open_one(sieve, file, "" if alone and file.depth == 0 else file.name)
        at_work()
    taken = sieve.finish(at_work)
    for number in range(len(names)):
        Path(str(number)).unlink()
    for name, content in taken.files.items():
        target = Path(name)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(content)
    return {"refused": taken.refused, "unread": taken.unread, "holds": taken.holds}


def at_work() -> None:
    """Tell the judge that this loop ends: our steps, one of which begins here, are limited in number."""
    if observe.Reporter.mine:
        observe.Reporter.mine.say(e="step")


def entry_of(file: submission_files.File) -> submission_files.Entry:
    return submission_files.Entry(file.name, "file", lambda most: file.content[:most])


def open_one(sieve: submission_files.Sieve, file: submission_files.File, prefix: str) -> None:
    """Sift an archive. If it breaks on the way, nothing of it counts."""
    before = dict(sieve.best), len(sieve.odd), len(sieve.archives), len(sieve.taken.refused), len(sieve.taken.unread)
    kind = submission_files.kind_of(file.content[: submission_files.HEAD])
    try:
        with entries(file.content, kind) as inside:
            sieve.sift(inside, prefix, file.depth + 1)
    except Exception as error:  # no library documents everything that a broken archive can raise
        sieve.best, odd, archives, refused, unread = before
        del sieve.odd[odd:], sieve.archives[archives:], sieve.taken.refused[refused:], sieve.taken.unread[unread:]
        known = isinstance(error, NoArchive)
        sieve.taken.leave_unread(file.name, f"cannot be read: {'' if known else f'{type(error).__name__}: '}{error}")


@contextmanager
def entries(content: bytes, kind: str) -> Iterator[Iterator[submission_files.Entry]]:
    """What an archive holds, whatever it is called."""
    with io.BytesIO(content) as packed:
        if kind == "zip":
            with zipfile.ZipFile(packed) as archive:
                yield in_zip(archive)
        elif kind in OPENERS or kind == "tar":
            with (
                OPENERS[kind](packed, "rb") if kind in OPENERS else packed as unpacked,
                tarfile.open(fileobj=unpacked, mode="r|") as archive,
            ):
                yield in_tar(archive)
        else:
            what = f"it is a {kind} archive" if kind else "it is not an archive" if content else "it is empty"
            raise NoArchive(f"{what}, and here .tar, .tar.gz, .tar.bz2, .tar.xz and .zip are opened")


def in_zip(archive: zipfile.ZipFile) -> Iterator[submission_files.Entry]:
    for entry in archive.infolist():
        kind = "link" if stat.S_ISLNK(entry.external_attr >> 16) else "folder" if entry.is_dir() else "file"
        yield submission_files.Entry(entry.filename, kind, first_bytes(lambda entry=entry: archive.open(entry)))


def in_tar(archive: tarfile.TarFile) -> Iterator[submission_files.Entry]:
    for entry in archive:
        kind = "folder" if entry.isdir() else "link" if entry.issym() or entry.islnk() else "device"
        kind = "file" if entry.isreg() else kind
        yield submission_files.Entry(entry.name, kind, first_bytes(lambda entry=entry: archive.extractfile(entry)))


def first_bytes(begin: Callable[[], IO[bytes]]) -> Callable[[int], bytes]:
    """A function that returns the first bytes of a stream, and may be asked again for more: a tar in a stream is read
    once.
    """
    streams, held = [], bytearray()

    def read(most: int) -> bytes:
        if not streams:
            streams.append(begin())
        held.extend(streams[0].read(max(0, most - len(held))))
        return bytes(held[:most])

    return read


def parsed(file: str, notebook: bool) -> dict:
    """Parse a student's file. Returns {"cells": …} as lists, or {"problem": why it cannot be read}."""
    try:
        text = Path(file).read_text("utf-8")
        cells = [
            cell._replace(parsed=parsing.Parsed(parsing.outline(cell.text), parsing.statements_of(cell.text)))
            for cell in parsing.cells(text, notebook)
        ]
    except ValueError as problem:
        return {"problem": str(problem)}
    return {"cells": [list(cell) for cell in cells]}
