"""What streaming_training is given: shards of any corpus, its checkpoint read back, and what a worker died of."""

import argparse
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from utils.data import Corpus, DataError, load_corpus
from utils.distributed import fail, from_rank0, is_rank0
from utils.stop_together import end_all
from utils.shards import Shards, check_sizes, documents_of, is_sharded, open_shards, write_shards
from utils.atomic_write import no_room

CHECKPOINT = "stream.pt"


def find_shards(args: argparse.Namespace) -> Shards:
    """The shards in --data; of another corpus, rank 0 writes shards into the run's folder first, unless they are there.

    Exits with code 2 where there is too little text, or where the shards are not as they were written.
    """
    folder = Path(args.data or "") if is_sharded(args.data or "") else Path(args.out) / "shards"
    try:
        problem = from_rank0(_ready(args, folder) if is_rank0() else "")
        if problem:
            fail(problem)
        return open_shards(folder)
    except DataError as problem:
        fail(problem)


def _ready(args: argparse.Namespace, folder: Path) -> str:
    """On rank 0: see to it that the folder has the shards; or say why not."""
    try:
        if folder != Path(args.data or ""):
            corpus = load_corpus(args.data)
            if too_little := _too_little(corpus.name, len(corpus.train), args):
                return too_little
            if not is_sharded(folder) or open_shards(folder).name != corpus.name:
                write_corpus(corpus, folder)
        shards = open_shards(folder)
        check_sizes(shards)
        return _too_little(shards.name, shards.train.tokens, args)
    except DataError as problem:
        return str(problem)
    except OSError as problem:
        return f"--out {args.out}: {no_room(problem) or problem.strerror or problem}; choose another folder"


def _too_little(name: str, n_tokens: int, args: argparse.Namespace) -> str:
    n_rows = n_tokens // args.seq_len
    if n_rows >= args.batch_size:
        return ""
    return (
        f"{name} has {n_rows} sequences of --seq-len {args.seq_len} to train on, fewer than one "
        f"--batch-size {args.batch_size}: make one of them smaller, or use more text"
    )


def write_corpus(corpus: Corpus, folder: Path, **how: Any) -> Shards:
    """Write a corpus that is in memory as shards; `how` as in `write_shards`."""
    splits = {split: documents_of(getattr(corpus, split), corpus.vocab) for split in ("train", "validation", "test")}
    return write_shards(folder, corpus.name, corpus.vocab, splits, **how)


def load_checkpoint(args: argparse.Namespace, same: Sequence[str]) -> dict[str, Any] | None:
    """What `--resume` names; None without it. Exits with code 2 if it is not this script's checkpoint, or if the flags
    `same` had other values.
    """
    if args.resume is None:
        return None
    path = Path(args.resume) / CHECKPOINT
    if not from_rank0("there" if path.is_file() else ""):
        fail(f"--resume {args.resume}: there is no {CHECKPOINT} in it; --save-every writes it into the folder of a run")
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        for name in same:
            if saved["same"][name] != getattr(args, name):
                fail(f"--resume {args.resume}: it was saved with --{name.replace('_', '-')} {saved['same'][name]}")
        if not {"model", "optimizer", "stream", "progress"} <= saved.keys():
            raise KeyError("an entry")
        return saved
    except Exception as problem:  # torch's reader of pickles raises anything, such as IndexError for a text
        fail(f"--resume {args.resume}: {path.name} cannot be read ({type(problem).__name__})")


# Workers that die


@contextmanager
def failures_told() -> Iterator[None]:
    """If a worker of a loader fails inside, all ranks end at once, with one line that says why, and exit code 2."""
    try:
        yield
    except Exception as problem:
        if line := died_of(problem):
            end_all(line)
        raise


def died_of(problem: BaseException) -> str:
    """Which worker failed, and of what; empty if `problem` is not about a worker.

    PyTorch raises a worker's exception again, with its traceback as text; of a killed one it knows the signal, which
    may be in the error that caused this one.
    """
    text = str(problem)
    if found := re.search(r"Caught (\w+) in DataLoader worker process (\d+)", text):
        last = text.strip().splitlines()[-1]
        return f"worker {found[2]} of a loader failed: {last}"
    if found := re.search(r"DataLoader worker \(pid (\d+)\) is killed by signal: (.*?)\.( |$)", text, re.DOTALL):
        killed = signal.strsignal(signal.SIGKILL) in found[2]
        why = "; a job that runs out of memory is killed like this: use fewer --workers" if killed else ""
        return f"a worker of a loader, process {found[1]}, was ended by a signal: {found[2]}{why}"
    before = problem.__cause__ or problem.__context__
    if before is not None and (line := died_of(before)):
        return line
    if found := re.search(r"DataLoader worker \(pid\(s\) ([\d, ]+)\) exited unexpectedly", text):
        return f"a worker of a loader, process {found[1]}, ended before its work was done"
    return ""
