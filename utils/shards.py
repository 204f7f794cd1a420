"""A corpus on disk: tokens in files of a fixed size, with an index and checksums (`./workbook data --shards`).

    index.json            sizes, dtype, and the checksum of each file; it is written last
    vocab.json            the words, or pieces of words, by id
    train-00000.bin       tokens, little-endian uint16 or uint32; every file of a split is full, except the last one
    train.documents       where a document begins in its split, int64; not the first one, which has none before it

Nothing here reads a file as a whole except what says so: a corpus may be larger than the memory.
"""

import json
import re
import shutil
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from utils.wikitext2 import SPLITS, DataError

INDEX, VOCAB = "index.json", "vocab.json"
FILE_SIZE = 1 << 20  # bytes; of a corpus of many gigabytes, files have some hundred megabytes
EOS = "<eos>"


class File(NamedTuple):
    """One file of tokens; it holds the split's tokens first … first + tokens - 1."""

    path: Path
    first: int
    tokens: int


@dataclass
class Split:
    """Where the tokens of a split are."""

    files: list[File]
    dtype: str  # of a token, as numpy writes it: "<u2" or "<u4"
    documents: Path

    @property
    def tokens(self) -> int:
        return sum(file.tokens for file in self.files)


@dataclass
class Shards:
    """A corpus on disk. `checksums` has the CRC-32 of every file, by name."""

    folder: Path
    name: str
    vocab_size: int
    eos: int
    checksums: dict[str, int]
    train: Split
    validation: Split
    test: Split


# Written


def dtype_for(vocab_size: int) -> str:
    """The smallest of the two dtypes that holds every id."""
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


def write_shards(
    folder: Path, name: str, vocab: list[str], splits: dict[str, Iterable[np.ndarray]], file_size: int = FILE_SIZE
) -> Shards:
    """Write a corpus, document by document (1-D arrays of ids, which may be drawn as they are written).

    The folder appears complete or not at all.

    Raises:
        FileExistsError: the folder is there already, and not empty.
        OSError: it cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} is there already, and not empty")
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        dtype = dtype_for(len(vocab))
        (part / VOCAB).write_text(json.dumps(vocab, ensure_ascii=False) + "\n", "utf-8")
        found: dict[str, Any] = {"name": name, "vocab_size": len(vocab), "eos": vocab.index(EOS), "dtype": dtype}
        sums = {VOCAB: checksum(part / VOCAB)}
        for split, documents in splits.items():
            found[split] = _write_split(part, split, documents, np.dtype(dtype), file_size, sums)
        found["checksums"] = sums
        (part / INDEX).write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        if folder.exists():
            folder.rmdir()  # it is empty
        part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return open_shards(folder)


def _write_split(
    folder: Path, split: str, documents: Iterable[np.ndarray], dtype: np.dtype, file_size: int, sums: dict[str, int]
) -> list[int]:
    """Returns the tokens of each file."""
    full, sizes, done = max(file_size // dtype.itemsize, 1), [0], 0
    file = _begin(folder, split, 0)
    with (folder / f"{split}.documents").open("wb") as starts:
        for document in documents:
            if done:
                starts.write(np.array([done], "<i8").tobytes())
            done, left = done + len(document), document
            while len(left):
                if sizes[-1] == full:
                    file.close()
                    file = _begin(folder, split, len(sizes))
                    sizes.append(0)
                here, left = left[: full - sizes[-1]], left[full - sizes[-1] :]
                file.write(here.astype(dtype).tobytes())
                sizes[-1] += len(here)
    file.close()
    for path in [*folder.glob(f"{split}-*.bin"), folder / f"{split}.documents"]:
        sums[path.name] = checksum(path)
    return sizes


def _begin(folder: Path, split: str, number: int) -> BinaryIO:
    return (folder / f"{split}-{number:05}.bin").open("wb")


def checksum(path: Path) -> int:
    """The CRC-32 of a file, read a megabyte at a time."""
    found = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            found = zlib.crc32(piece, found)
    return found


# Read


def is_sharded(folder: str | Path) -> bool:
    return (Path(folder) / INDEX).is_file()


def open_shards(folder: str | Path) -> Shards:
    """Read the index, and nothing else.

    Raises:
        DataError: there is none, or it is not one of ours.
    """
    folder = Path(folder)
    try:
        found = json.loads((folder / INDEX).read_text("utf-8"))
        splits = {split: _split(folder, split, found[split], found["dtype"]) for split in SPLITS}
        sizes = {name: int(found[name]) for name in ("vocab_size", "eos")}
        sums = {str(name): int(crc) for name, crc in found["checksums"].items()}
        return Shards(folder, str(found["name"]), **sizes, checksums=sums, **splits)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DataError(f"--data {folder}: {INDEX} cannot be read; ./workbook data --shards writes one") from problem


def _split(folder: Path, split: str, sizes: list[int], dtype: str) -> Split:
    if dtype not in ("<u2", "<u4") or not sizes or not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise ValueError("no index of ours")
    firsts = np.cumsum([0, *sizes]).tolist()
    files = [File(folder / f"{split}-{n:05}.bin", firsts[n], size) for n, size in enumerate(sizes)]
    return Split(files, dtype, folder / f"{split}.documents")


def check_sizes(shards: Shards) -> None:
    """One look at each file: all are there, and as long as the index says.

    Raises:
        DataError: names the first that is not.
    """
    for split in (shards.train, shards.validation, shards.test):
        width = np.dtype(split.dtype).itemsize
        for file in split.files:
            size = file.path.stat().st_size if file.path.is_file() else -1
            if size != file.tokens * width:
                was = "is missing" if size < 0 else f"has {size:,} bytes and not {file.tokens * width:,}"
                raise DataError(f"--data {shards.folder}: {file.path.name} {was}; write the shards again")


def check_checksums(shards: Shards) -> None:
    """Read every file, and compare.

    Raises:
        DataError: names the first that differs.
    """
    check_sizes(shards)
    for name, right in shards.checksums.items():
        try:
            same = checksum(shards.folder / name) == right
        except OSError:
            same = False
        if not same:
            raise DataError(f"--data {shards.folder}: {name} is not what was written; write the shards again")


def in_memory(split: Split) -> Tensor:
    """All tokens of a split, read into memory as one tensor (1-D, int64): eight bytes a token."""
    parts = [np.fromfile(file.path, split.dtype) for file in split.files]
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))


def vocabulary(shards: Shards) -> list[str]:
    """The words, by id.

    Raises:
        DataError: they cannot be read.
    """
    try:
        return list(json.loads((shards.folder / VOCAB).read_text("utf-8")))
    except (OSError, ValueError) as problem:
        raise DataError(f"--data {shards.folder}: {VOCAB} cannot be read; write the shards again") from problem


class Documents:
    """Where the documents of a split start, but for the first. The file is mapped: its pages are read when needed."""

    def __init__(self, split: Split) -> None:
        self.starts = np.memmap(split.documents, "<i8", "r") if split.documents.stat().st_size else np.zeros(0, "<i8")

    def between(self, begin: int, end: int) -> Tensor:
        """The starts in [begin, end), counted from `begin` (1-D, int64)."""
        first, last = np.searchsorted(self.starts, [begin, end])
        return torch.from_numpy(self.starts[first:last].astype(np.int64)) - begin


# Documents of a text


HEADING = re.compile(r"= [^=].*[^=] =|= [^=] =")


def documents_of(tokens: Tensor, vocab: list[str]) -> list[np.ndarray]:
    """Cut a text, whose lines end with `<eos>`, into documents.

    A document begins at a title such as `= Title =`, as WikiText's articles do. In a text without titles, it begins
    after an empty line.
    """
    ids, eos = tokens.numpy(), vocab.index(EOS)
    ends = np.flatnonzero(ids == eos) + 1
    lines = np.concatenate([[0], ends[ends < len(ids)]])
    sign = vocab.index("=") if "=" in vocab else -1
    starts = [at for at, to in zip(lines, [*lines[1:], len(ids)]) if ids[at] == sign and _is_title(ids[at:to], vocab)]
    if not starts:  # the line before is empty: it has its <eos> alone
        starts = [
            at for at in lines if at > 0 and ids[at] != eos and (at == 1 or ids[at - 2] == eos) and ids[at - 1] == eos
        ]
    cuts = sorted({0, *map(int, starts)})
    return [ids[begin:end] for begin, end in zip(cuts, [*cuts[1:], len(ids)])]


def _is_title(line: np.ndarray, vocab: list[str]) -> bool:
    return HEADING.fullmatch(" ".join(vocab[i] for i in line[:-1])) is not None
