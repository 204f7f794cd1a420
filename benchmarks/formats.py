"""Formats of tokens on disk, and libraries that read them: how fast, how many opens, how many bytes.

    python benchmarks/formats.py formats            # memory maps, Arrow, HDF5, one file a document: 1 and 4 workers
    python benchmarks/formats.py libraries          # the five points of streaming_training, tried on what is installed

HDF5 needs requirements-h5py.txt; of the libraries those that are not installed are left out, with a line. The formats
hold the same random tokens and are read in the same order, shuffled in blocks, by a plain DataLoader; their files are
not in the page cache when it starts. An open from Python is noted by the reader itself; one
from C shows as a file that a reader has open or mapped. Bytes are those that the readers fetched from the disk, read
ahead by the system or not.
"""

import argparse
import importlib.metadata
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

COURSE = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(COURSE)]  # not this folder, whose streaming.py would hide the package of that name

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from utils.optional_packages import lacks

SEQ_LEN, BATCH = 64, 24
BLOCK, BUFFER = 256, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=("formats", "libraries"))
    parser.add_argument("--tokens", type=int, default=20_000_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=COURSE / "runs" if (COURSE / "runs").is_dir() else None) as folder:
        {"formats": formats, "libraries": libraries}[args.what](args, Path(folder), Console())


# Formats: how each is written, and how rows are read from it


def documents(tokens: int) -> Iterator[np.ndarray]:
    draw = np.random.default_rng(0)
    while tokens > 0:
        size = min(int(draw.integers(1000, 6000)), tokens)
        yield draw.integers(1, 50_000, size, dtype=np.uint16)
        tokens -= size


def as_maps(folder: Path, everything: np.ndarray, cuts: np.ndarray) -> None:
    for number, first in enumerate(range(0, len(everything), 4 << 20)):
        everything[first : first + (4 << 20)].tofile(folder / f"{number:05}.bin")


def from_maps(folder: Path, cuts: np.ndarray) -> Callable[[int, int], np.ndarray]:
    maps = [np.memmap(path, np.uint16, "r") for path in sorted(folder.glob("*.bin"))]

    def read(begin: int, end: int) -> np.ndarray:
        first, last = begin >> 22, (end - 1) >> 22
        parts = [maps[first][begin - (first << 22) :][: end - begin]]
        if last != first:
            parts.append(maps[last][: end - (last << 22)])
        return np.concatenate(parts)

    return read


def as_arrow(folder: Path, everything: np.ndarray, cuts: np.ndarray) -> None:
    import pyarrow as pa

    rows = everything[: len(everything) // SEQ_LEN * SEQ_LEN]
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows), SEQ_LEN)
    with (
        pa.OSFile(str(folder / "rows.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, pa.schema([("row", column.type)])) as out,
    ):
        for first in range(0, len(column), 1 << 16):
            out.write_batch(pa.record_batch([column[first : first + (1 << 16)]], names=["row"]))


def from_arrow(folder: Path, cuts: np.ndarray) -> Callable[[int, int], np.ndarray]:
    import pyarrow as pa

    column = pa.ipc.open_file(pa.memory_map(str(folder / "rows.arrow"))).read_all()["row"]
    chunks = [chunk.flatten().to_numpy() for chunk in column.chunks]  # views of the map
    a_chunk = (1 << 16) * SEQ_LEN

    def read(begin: int, end: int) -> np.ndarray:
        parts = [chunks[begin // a_chunk][begin % a_chunk :][: end - begin]]
        if (end - 1) // a_chunk != begin // a_chunk:
            parts.append(chunks[end // a_chunk][: end % a_chunk])
        return np.concatenate(parts)

    return read


def as_hdf5(folder: Path, everything: np.ndarray, cuts: np.ndarray) -> None:
    import h5py

    with h5py.File(folder / "tokens.h5", "w") as file:
        file.create_dataset("tokens", data=everything)


def from_hdf5(folder: Path, cuts: np.ndarray) -> Callable[[int, int], np.ndarray]:
    import h5py

    # This runs in the worker: HDF5's handles do not survive a fork.
    tokens = h5py.File(folder / "tokens.h5", "r")["tokens"]
    return lambda begin, end: tokens[begin:end]


def as_files(folder: Path, everything: np.ndarray, cuts: np.ndarray) -> None:
    for number, (begin, end) in enumerate(zip(cuts[:-1], cuts[1:])):
        everything[begin:end].tofile(folder / f"{number:06}.bin")


def from_files(folder: Path, cuts: np.ndarray) -> Callable[[int, int], np.ndarray]:
    def read(begin: int, end: int) -> np.ndarray:
        parts, number = [], int(np.searchsorted(cuts, begin, "right")) - 1
        while begin < end:
            here = min(end, int(cuts[number + 1])) - begin
            path = folder / f"{number:06}.bin"
            parts.append(np.fromfile(path, np.uint16, here, offset=2 * (begin - int(cuts[number]))))
            begin, number = begin + here, number + 1
        return np.concatenate(parts)

    return read


FORMATS = {
    "memory maps": (as_maps, from_maps, ""),
    "Arrow": (as_arrow, from_arrow, ""),
    "HDF5": (as_hdf5, from_hdf5, "h5py"),
    "a file a document": (as_files, from_files, ""),
}


class Rows(IterableDataset):
    """Rows in blocks, shuffled, with a buffer: as many as are asked for, divided among the workers batch by batch."""

    def __init__(
        self, folder: Path, opened: Callable[[], Callable[[int, int], np.ndarray]], n_rows: int, wanted: int
    ) -> None:
        self.folder, self.opened = folder, opened
        blocks = np.random.default_rng(1).permutation(n_rows // BLOCK)[: -(-wanted // BLOCK // BUFFER) * BUFFER]
        self.order = np.concatenate([self.mixed(blocks[k : k + BUFFER]) for k in range(0, len(blocks), BUFFER)])[
            :wanted
        ]

    def mixed(self, blocks: np.ndarray) -> np.ndarray:
        return np.random.default_rng(2).permutation((blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel())

    def __iter__(self) -> Iterator[torch.Tensor]:
        noting_opens(self.folder)
        info, read = get_worker_info(), self.opened()
        batches = self.order.reshape(-1, BATCH)[info.id :: info.num_workers]
        for row in batches.ravel():
            begin = max(int(row) * SEQ_LEN - 1, 0)
            yield torch.from_numpy(read(begin, begin + SEQ_LEN + 1).astype(np.int64))


def formats(args: argparse.Namespace, folder: Path, console: Console) -> None:
    table = Table("format", "workers", "samples/s", "first batch, s", "opens", "read, MB", "files", "on disk, MB")
    pieces = list(documents(args.tokens))
    everything, cuts = np.concatenate(pieces), np.cumsum([0, *map(len, pieces)])
    wanted = min(40_000, args.tokens // SEQ_LEN) // (BLOCK * BUFFER) * BLOCK * BUFFER // BATCH * BATCH
    for name, (write, opened, package) in FORMATS.items():
        if package and (line := lacks(package)):
            console.print(line)
            continue
        own = folder / name.replace(" ", "-")
        own.mkdir()
        write(own, everything, cuts)
        on_disk = sum(path.stat().st_size for path in own.iterdir()) / 1e6
        for workers in (1, 4):
            forget(own)
            rows = Rows(own, lambda opened=opened, own=own: opened(own, cuts), args.tokens // SEQ_LEN - 1, wanted)
            speed, first, count, read = timed(rows, own, workers)
            entries = f"{speed:,.0f}", f"{first:.2f}", f"{count:,}", f"{read / 1e6:.1f}"
            table.add_row(name, str(workers), *entries, str(len([*own.iterdir()])), f"{on_disk:.1f}")
    console.print(f"{args.tokens:,} tokens in {len(pieces):,} documents; {wanted:,} rows of {SEQ_LEN} are read")
    console.print(table)


def timed(rows: "Rows", folder: Path, workers: int) -> tuple[float, float, int, int]:
    """Samples a second after the first batch, seconds until it, opens, bytes from the disk."""
    began = time.perf_counter()
    loader = DataLoader(rows, batch_size=BATCH, num_workers=workers, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    first, count = time.perf_counter() - began, 0
    pids = [worker.pid for worker in batches._workers]
    began = time.perf_counter()
    for batch in batches:
        count += len(batch)
        if count == 400 * BATCH:  # all workers have begun, and none has finished
            seen = held(folder, pids)
    speed = count / (time.perf_counter() - began)
    return speed, first, opens(folder, seen), sum(map(from_disk, pids))


def from_disk(pid: int) -> int:
    """The bytes that the process had fetched from storage; 0 where all was in the page cache."""
    found = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(found["read_bytes"])


def forget(folder: Path) -> None:
    """Ask the system to drop these files from the page cache, so that the next reader fetches them."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def noting_opens(folder: Path) -> None:
    """From now on, this process notes each file of the folder that it opens from Python, next to the folder."""
    into = os.open(folder.with_suffix(".opened"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def audit(event: str, args: tuple) -> None:
        if event == "open" and isinstance(args[0], (str, os.PathLike)) and os.fspath(args[0]).startswith(f"{folder}/"):
            os.write(into, f"{os.getpid()} {os.path.basename(args[0])}\n".encode())

    sys.addaudithook(audit)


def held(folder: Path, pids: list[int]) -> set[str]:
    """The files of the folder that these processes have open, or mapped, now: those that C opened are among them."""
    found = set()
    for pid in pids:
        mapped = [line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        opened = [os.path.realpath(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
        found |= {f"{pid} {os.path.basename(name)}" for name in mapped + opened if name.startswith(f"{folder}/")}
    return found


def opens(folder: Path, seen: set[str]) -> int:
    """How often files of the folder were opened: from Python, as noted; and those `seen` that are not noted."""
    notes = folder.with_suffix(".opened")
    noted = notes.read_text().splitlines() if notes.is_file() else []
    notes.unlink(missing_ok=True)
    return len(noted) + len(seen - set(noted))


# Libraries: five questions, each tried on 60 numbered samples in files of 10


SAMPLES, A_FILE = 60, 10


def libraries(args: argparse.Namespace, folder: Path, console: Console) -> None:
    table = Table(
        "library",
        "version",
        "1 rank × 2 workers",
        "order on 2 ranks the same",
        "resumed in the middle",
        "on other workers",
    )
    for name, (package, tried) in LIBRARIES.items():
        if find_spec(package) is None:
            console.print(f"{name} is not installed")
            continue
        own = folder / package
        own.mkdir()
        try:
            answers = tried(own)
        except Exception as problem:
            answers = [f"{type(problem).__name__}: {problem}"[:200]]
        table.add_row(name, importlib.metadata.version(name), *answers)
    console.print(table)


def told(seen: list[int]) -> str:
    """How often the samples came."""
    twice, lost = len(seen) - len(set(seen)), SAMPLES - len(set(seen))
    return "each once" if not twice and not lost else f"{twice} twice, {lost} never"


def same_steps(orders: list[list[int]], serial: list[int], batch: int) -> str:
    """Whether each step has the same samples: `orders` has each rank's, `batch` is global."""
    own = batch // len(orders)
    steps = [{s for order in orders for s in order[k * own : (k + 1) * own]} for k in range(SAMPLES // batch)]
    return "yes" if steps == [set(serial[k * batch : (k + 1) * batch]) for k in range(SAMPLES // batch)] else "no"


def flat(loader: Any) -> list[int]:
    return [int(n) for batch in loader for n in batch]


def webdataset(folder: Path) -> list[str]:
    import webdataset as wds

    for number in range(SAMPLES // A_FILE):
        with wds.TarWriter(str(folder / f"{number:05}.tar")) as out:
            for n in range(number * A_FILE, (number + 1) * A_FILE):
                out.write({"__key__": f"{n:05}", "n.txt": str(n)})
    urls = [str(path) for path in sorted(folder.glob("*.tar"))]

    def on(rank: int, world: int, workers: int) -> list[int]:
        def by_node(shards: Iterator, group: Any = None) -> Iterator:
            return (shard for k, shard in enumerate(shards) if k % world == rank)

        data = (
            wds.WebDataset(urls, shardshuffle=100, seed=5, nodesplitter=by_node)
            .shuffle(20, rng=random.Random(5))
            .decode()
        )
        return flat(DataLoader(data.map(lambda sample: int(sample["n.txt"])), batch_size=6, num_workers=workers))

    return [told(on(0, 1, 2)), same_steps([on(0, 2, 0), on(1, 2, 0)], on(0, 1, 0), 12), "no state", "no state"]


def streaming(folder: Path) -> list[str]:
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    with MDSWriter(out=str(folder / "mds"), columns={"n": "int"}, size_limit=400) as out:
        for n in range(SAMPLES):
            out.write({"n": n})

    def on(rank: int, world: int, workers: int, state: dict | None = None, stop: int = 0) -> tuple[list[int], dict]:
        clean_stale_shared_memory()
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE="1", LOCAL_RANK="0")
        own = 12 // world
        data = StreamingDataset(local=str(folder / "mds"), shuffle=True, batch_size=own, num_canonical_nodes=1)
        loader = StreamingDataLoader(data, batch_size=own, num_workers=workers)
        if state:
            loader.load_state_dict(state)
        seen = []
        for number, batch in enumerate(loader, start=1):
            seen += batch["n"].tolist()
            if number == stop:
                break
        return seen, loader.state_dict()

    serial, _ = on(0, 1, 0)
    first, state = on(0, 1, 2, stop=2)
    resumed = {w: "next sample" if first + on(0, 1, w, state)[0] == serial else "others" for w in (2, 3)}
    ranks = "each rank needs its own process and torch.distributed: not tried"
    return [told(on(0, 1, 2)[0]), ranks, resumed[2], resumed[3]]


def hugging_face(folder: Path) -> list[str]:
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node

    whole = Dataset.from_dict({"n": list(range(SAMPLES))}).to_iterable_dataset(num_shards=SAMPLES // A_FILE)
    shuffled = whole.shuffle(seed=5, buffer_size=20)

    def on(rank: int, world: int, workers: int) -> list[int]:
        data = split_dataset_by_node(shuffled, rank, world)
        return [int(n) for batch in DataLoader(data, batch_size=6, num_workers=workers) for n in batch["n"]]

    serial = on(0, 1, 0)
    data, first = shuffled, []
    for row in data:
        first.append(row["n"])
        if len(first) == 24:
            break
    state = data.state_dict()
    data.load_state_dict(state)
    rest = [row["n"] for row in data]
    resumed = "next sample" if first + rest == serial else told(first + rest)
    return [told(on(0, 1, 2)), same_steps([on(0, 2, 0), on(1, 2, 0)], serial, 12), resumed, "a state for each worker"]


class Numbers(IterableDataset):
    """SAMPLES numbers, divided among the workers, with the state that StatefulDataLoader asks each worker for."""

    def __init__(self) -> None:
        self.done = 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        own = range(SAMPLES)[info.id :: info.num_workers] if info else range(SAMPLES)
        for n in own[self.done :]:
            self.done += 1
            yield n
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


def stateful(folder: Path) -> list[str]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def on(workers: int, state: dict | None = None, stop: int = 0) -> tuple[list[int], dict]:
        loader = StatefulDataLoader(Numbers(), batch_size=6, num_workers=workers)
        if state:
            loader.load_state_dict(state)
        seen = []
        for number, batch in enumerate(loader, start=1):
            seen += batch.tolist()
            if number == stop:
                break
        return seen, loader.state_dict()

    first, state = on(2, stop=4)
    resumed = told(first + on(2, state)[0])
    try:
        other = told(first + on(3, state)[0])
    except Exception as problem:
        other = f"refused ({type(problem).__name__})"
    return [told(on(2)[0]), "left to the sampler or dataset", resumed, other]


LIBRARIES = {
    "webdataset": ("webdataset", webdataset),
    "mosaicml-streaming": ("streaming", streaming),
    "datasets": ("datasets", hugging_face),
    "torchdata": ("torchdata", stateful),
}


if __name__ == "__main__":
    main()
