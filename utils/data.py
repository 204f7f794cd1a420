"""Corpora of words, windows over them, and the order in which they are read."""

import math
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from utils.shards import check_checksums, in_memory, is_sharded, open_shards, vocabulary
from utils.wikitext2 import SPLITS, DataError, download_wikitext2, wikitext2_is_cached, wikitext2_rows

__all__ = [
    "IGNORE",
    "Corpus",
    "DataError",
    "EpochOrder",
    "ShardSampler",
    "Windows",
    "corpus_name",
    "corpus_words",
    "download_wikitext2",
    "load_corpus",
    "wikitext2_is_cached",
]

EOS, UNK = "<eos>", "<unk>"
IGNORE = -100  # the target that the loss ignores, as in torch's cross_entropy


@dataclass
class Corpus:
    """Three splits of token ids (1-D, int64), and the words of the ids: `vocab[id]`."""

    name: str
    train: Tensor
    validation: Tensor
    test: Tensor
    vocab: list[str]

    @property
    def eos(self) -> int:
        """The id of the token that ends every line."""
        return self.vocab.index(EOS)


def load_corpus(name: str | None) -> Corpus:
    """Load a corpus as words: whitespace separates words, and `<eos>` ends each line.

    The vocabulary is the training split's, in order of first appearance. Unknown words of the other splits become
    `<unk>`; nothing is dropped.

    Args:
        name: `wikitext-2`; `builtin`, the language reference inside every Python;
            `random`, words drawn independently, which no model can predict; a folder with train, validation and test as
            .txt or .parquet (column `text`), or one that `./workbook data --shards` has written; or None: WikiText-2 if
            it is in the cache, else builtin.

    Raises:
        DataError: there is no such corpus, or it cannot be read.
    """
    name = corpus_name(name)
    if name == "random":
        return _random_corpus()
    if name == "wikitext-2":
        return _encode(name, wikitext2_rows())
    if name == "builtin":
        return _encode(name, _builtin_lines())
    if is_sharded(name):
        return _from_shards(Path(name))
    if Path(name).is_dir():
        return _encode(name, {split: _read_split(Path(name), split) for split in SPLITS})
    raise DataError(f"--data {name}: no such folder; give a folder, wikitext-2, builtin or random")


def corpus_name(name: str | None) -> str:
    """The corpus that `load_corpus` loads for this name: itself, or the default for None."""
    if name is None:
        return "wikitext-2" if wikitext2_is_cached() else "builtin"
    return name


def corpus_words(name: str | None) -> list[str]:
    """The words of `load_corpus(name)` by id, without its text where that is on disk.

    Raises:
        DataError: there is no such corpus, or it cannot be read.
    """
    name = corpus_name(name)
    return vocabulary(open_shards(name)) if is_sharded(name) else load_corpus(name).vocab


def _encode(name: str, lines: dict[str, Iterable[str]]) -> Corpus:
    words: dict[str, list[str]] = {}
    for split in SPLITS:
        words[split] = []
        for line in lines[split]:
            words[split] += line.split()
            words[split].append(EOS)
        if not words[split]:
            raise DataError(f"--data {name}: {split} is empty; put at least one line into it")

    ids = {word: i for i, word in enumerate(dict.fromkeys(words["train"]))}
    if not ids.keys() >= {*words["validation"], *words["test"]}:
        ids.setdefault(UNK, len(ids))
    unk = ids.get(UNK, -1)  # -1 is never used: then there are no unknown words

    def tensor(split: str) -> Tensor:
        found = (ids.get(word, unk) for word in words[split])
        return torch.from_numpy(np.fromiter(found, dtype=np.int64, count=len(words[split])))

    return Corpus(name, tensor("train"), tensor("validation"), tensor("test"), list(ids))


def _from_shards(folder: Path) -> Corpus:
    shards = open_shards(folder)
    check_checksums(shards)
    splits = [in_memory(split) for split in (shards.train, shards.validation, shards.test)]
    return Corpus(str(folder), *splits, vocabulary(shards))


def _read_split(folder: Path, split: str) -> list[str]:
    names = ("validation", "valid") if split == "validation" else (split,)
    # `train-*.parquet` are the names on the hub, so that a copy of its folder works.
    patterns = ("{}.txt", "{}.parquet", "{}-*.parquet")
    for pattern in (pattern.format(name) for name in names for pattern in patterns):
        if paths := sorted(folder.glob(pattern)):
            return [line for path in paths for line in _read_file(path)]
    raise DataError(f"--data {folder}: no {split}.txt or {split}.parquet in it; it needs train, validation and test")


def _read_file(path: Path) -> list[str]:
    try:
        if path.suffix == ".txt":
            with path.open(encoding="utf-8") as file:
                return list(file)
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path, columns=["text"])
        return [row or "" for row in table["text"].to_pylist()]
    except UnicodeDecodeError as problem:
        raise DataError(f"--data: {path} is not UTF-8 text (byte {problem.start}); convert it first") from problem
    except (OSError, KeyError, ValueError) as problem:  # pyarrow's errors are OSError or ValueError
        raise DataError(f"--data: {path} cannot be read; a .parquet needs a column named text") from problem


def _builtin_lines() -> dict[str, list[str]]:
    try:
        from pydoc_data.topics import topics
    except ImportError as problem:
        raise DataError("this Python comes without pydoc_data; use --data random or --data DIR") from problem
    lines: dict[str, list[str]] = {split: [] for split in SPLITS}
    for i, topic in enumerate(sorted(topics)):
        split = {3: "validation", 6: "test"}.get(i % 10, "train")
        lines[split] += topics[topic].splitlines()
    return lines


def _random_corpus() -> Corpus:
    # Sizes without useful divisors: the last window is short, and ranks get uneven parts.
    generator = torch.Generator().manual_seed(0)
    vocab = [EOS, *(f"w{i}" for i in range(1, 50))]
    splits = [torch.randint(len(vocab), (size,), generator=generator) for size in (50_021, 10_007, 10_009)]
    return Corpus("random", *splits, vocab)


class Windows(Dataset):
    """Cut a text into windows in which every token is predicted from those before it.

    Item i is (x, y), both int64 of shape (seq_len,): y is the i-th window, and x holds the token before each token of
    y. The very first token of x is `eos`.

    Args:
        tokens: 1-D, int64.
        seq_len: tokens in a window.
        eos: id of the token that precedes the text and fills a short x.
        drop_last: drop a short last window (for training). Otherwise it is padded, y with IGNORE, so that every token
        is predicted exactly once.
    """

    def __init__(self, tokens: Tensor, seq_len: int, eos: int, drop_last: bool) -> None:
        if seq_len < 1:
            raise ValueError(f"seq_len must be at least 1, not {seq_len}")
        self.seq_len, self.eos = seq_len, eos
        self.targets = tokens
        self.inputs = torch.cat([tokens.new_tensor([eos]), tokens[:-1]])
        self.n_windows = len(tokens) // seq_len if drop_last else math.ceil(len(tokens) / seq_len)

    def __len__(self) -> int:
        return self.n_windows

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        if not 0 <= i < self.n_windows:
            raise IndexError(f"window {i} of {self.n_windows}")
        window = slice(i * self.seq_len, (i + 1) * self.seq_len)
        x, y = self.inputs[window], self.targets[window]
        missing = self.seq_len - len(y)
        if missing:
            x = torch.cat([x, x.new_full((missing,), self.eos)])
            y = torch.cat([y, y.new_full((missing,), IGNORE)])
        return x, y


class EpochOrder(Sampler[int]):
    """The serial order of training: epoch e is `randperm` with seed + e; each `iter` is the next epoch.

    It is the permutation that `DistributedSampler(shuffle=True, seed=seed)` distributes after `set_epoch(e)`, so that
    a parallel run can repeat a serial one.
    """

    def __init__(self, dataset: Sized, seed: int) -> None:
        self.n, self.seed, self.epoch = len(dataset), seed, 0

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        self.epoch += 1
        return iter(torch.randperm(self.n, generator=generator).tolist())

    def __len__(self) -> int:
        return self.n


class ShardSampler(Sampler[int]):
    """A rank's part of a data set to evaluate: samples rank, rank + world_size, and so on.

    Nothing is padded or repeated, so the parts may differ by one sample. (DistributedSampler makes them equal, and
    counts some samples twice.)

    Args:
        dataset: anything with a length.
        rank, world_size: by default the process group's; 0 and 1 without one.
    """

    def __init__(self, dataset: Sized, rank: int | None = None, world_size: int | None = None) -> None:
        grouped = dist.is_available() and dist.is_initialized()
        if rank is None:
            rank = dist.get_rank() if grouped else 0
        if world_size is None:
            world_size = dist.get_world_size() if grouped else 1
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not one of {world_size} ranks")
        self.indices = range(rank, len(dataset), world_size)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)
