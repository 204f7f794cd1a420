"""Reads a submission on a rank of its own, in the sandbox: unpacks an archive, parses a student's file.

No code of the student's runs here. But an archive or a file can make a library run endlessly, take all memory or end
the process: then it meets the limits of a rank. The judge takes what this leaves as it takes evidence.
"""

import bz2
import gzip
import lzma
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import nbformat  # noqa: F401  what parses notebooks is loaded here, once, and not by each rank

from grader.engine.lesson import handed_in, parsing


def unpacked(archive: str, wanted: list[str]) -> dict:
    """Unpack the wanted files of an archive in the current folder, and remove it. Returns {"refused": …}, a line for
    each entry that is not taken, or {"problem": why the archive cannot be read}.
    """
    path = Path(archive)
    try:
        taken = handed_in.take(in_zip(path) if path.suffix.lower() == ".zip" else in_tar(path), wanted)
    except Exception as error:  # no library documents everything that a broken archive can raise
        return {"problem": f"{type(error).__name__}: {error}"[:300]}
    finally:
        path.unlink()
    for name, content in taken.files.items():
        target = Path(name)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(content)
    return {"refused": taken.refused}


def in_zip(path: Path) -> Iterator[handed_in.Entry]:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            kind = "link" if stat.S_ISLNK(entry.external_attr >> 16) else "folder" if entry.is_dir() else "file"
            yield handed_in.Entry(entry.filename, kind, lambda most, entry=entry: archive.open(entry).read(most))


def in_tar(path: Path) -> Iterator[handed_in.Entry]:
    openers = {".gz": gzip.open, ".tgz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    with (
        openers.get(path.suffix.lower(), open)(path, "rb") as packed,
        tarfile.open(fileobj=packed, mode="r|") as archive,
    ):
        for entry in archive:
            kind = "folder" if entry.isdir() else "link" if entry.issym() or entry.islnk() else "device"
            kind = "file" if entry.isreg() else kind
            yield handed_in.Entry(entry.name, kind, lambda most, entry=entry: archive.extractfile(entry).read(most))


def parsed(file: str, notebook: bool) -> dict:
    """Parse a student's file. Returns {"cells": …} as lists, or {"problem": why it cannot be read}."""
    try:
        text = Path(file).read_text("utf-8")
        cells = [cell._replace(outline=parsing.outline(cell.text)) for cell in parsing.cells(text, notebook)]
    except ValueError as problem:
        return {"problem": str(problem)}
    return {"cells": [list(cell) for cell in cells]}
