"""What the checks of streaming_training run on ranks, in the process of the student's code."""

import contextlib
import inspect
import io
import json
import os
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch.utils.data import IterableDataset

from grader.kit import Reporter, bytes_read, mark, next_world, record_training, sit_out, watch_reads
from utils.shards import File, Split, write_shards

# ---------------------------------------------------------------------------------------------------
# TODO 1: tokens


FULL = 7  # tokens in a file of the drawn sets: less than some ranges, so that these lie in three files


LARGE_FILE = 24 << 20  # bytes; the file is sparse, so that it is made in no time


def made_split(folder, number, tokens, dtype):
    files = []
    for first in range(0, len(tokens), FULL):
        path, part = folder / f"{number}-{len(files):05}.bin", np.array(tokens[first : first + FULL], dtype)
        path.write_bytes(part.tobytes())
        files.append(File(path, first, len(part)))
    return Split(files, dtype, folder / "none")


def reads_on_rank(code, rank, world, sets, reads):
    """`sets` of (tokens, dtype); `reads` of (set, begin, end), in turn. For each set its own maps."""
    folder = Path("drawn")
    folder.mkdir()
    splits = [made_split(folder, number, *one) for number, one in enumerate(sets)]
    maps, watch = [{} for _ in sets], watch_reads(folder)
    found = [code.read_tokens(splits[number], maps[number], begin, end) for number, begin, end in reads]
    watch.report()
    return found


def large_on_rank(code, rank, world, rows):
    """Rows of two large files, of zeros but for the rows."""
    folder = Path("large")
    folder.mkdir()
    a_file, files = LARGE_FILE // 2, []
    for number in range(2):
        path = folder / f"{number}.bin"
        with path.open("wb") as file:
            file.truncate(LARGE_FILE)
        files.append(File(path, number * a_file, a_file))
    split, maps = Split(files, "<u2", folder / "none"), {}
    read = inspect.unwrap(code.read_tokens)  # as it is: the judge looks into what a function is given, all of it
    read(made_split(folder, 2, list(range(2 * FULL)), "<u2"), {}, 1, FULL + 1)  # so that its own code is there
    return [int(row.sum()) for row in bytes_read(lambda: [read(split, maps, *row) for row in rows])]


# ---------------------------------------------------------------------------------------------------
# TODO 2: documents


def made_args(code, **flags):
    words = [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return code.parse_args(words)


def rows_on_rank(code, rank, world, rows, eos, counts):
    """`rows` of (seq_len, tokens, starts); `counts` of (tokens, batch size, seq_len)."""
    made = [
        code.make_row(
            torch.tensor(tokens), torch.tensor(starts, dtype=torch.int64), eos, made_args(code, seq_len=length)
        )
        for length, tokens, starts in rows
    ]
    thrown = [code.thrown_away(n, made_args(code, batch_size=batch, seq_len=length)) for n, batch, length in counts]
    return {"made": [list(row) for row in made], "thrown": thrown}


# ---------------------------------------------------------------------------------------------------
# TODO 3: every target weighs the same


def weights_on_rank(code, rank, world, mine):
    """`mine`: (loss, targets) of each of this rank's steps. What the step's loss becomes, and its gradient's factor."""
    found = []
    for value, n_targets in mine:
        loss = torch.tensor(value, requires_grad=True)
        out = code.weighted(loss, torch.tensor(n_targets))
        (factor,) = torch.autograd.grad(out, loss, allow_unused=True) if out.requires_grad else (None,)
        found.append([out.detach(), factor])
    return found


# ---------------------------------------------------------------------------------------------------
# TODO 4: the order


def orders_on_rank(code, rank, world, cases):
    """`cases` of (rows, epoch, seed, block, buffer). Each rank has other random numbers behind it."""
    torch.manual_seed(rank)
    return [
        [
            [int(row) for row in piece]
            for piece in code.shuffled(n, epoch, made_args(code, seed=seed, block_rows=block, buffer=buffer))
        ]
        for n, epoch, seed, block, buffer in cases
    ]


# ---------------------------------------------------------------------------------------------------
# TODOs 5 and 6: which reader


def dealt_on_rank(code, rank, world, grid, spans, batch):
    """For each (world, workers): the samples of each reader, asked for span after span."""
    args, found = made_args(code, batch_size=batch), []
    for ranks, workers in grid:
        dealt = []
        for number in range(ranks * workers):
            mine = []
            for begin, end in spans:
                samples = torch.arange(begin, end)
                own = code.is_own(samples, number // workers, ranks, number % workers, workers, args)
                mine += samples[own].tolist()
            dealt.append(mine)
        found.append(dealt)
    return found


def owned_on_rank(code, rank, world, grid, sizes):
    return [
        [
            [list(code.own_rows(n, k // workers, ranks, k % workers, workers)) for k in range(ranks * workers)]
            for n in sizes
        ]
        for ranks, workers in grid
    ]


# ---------------------------------------------------------------------------------------------------
# TODO 7: workers


class Numbered(IterableDataset):
    """Samples (process, number): which process has made them."""

    def __iter__(self):
        for number in range(6):
            yield torch.tensor([os.getpid()]), torch.tensor([number])


def cpus_on_rank(code, rank, world, cases):
    """count_workers() where the environment and the CPUs of the process are these; only there."""
    found = []
    for env, cpus in cases:
        with (
            mock.patch.dict(os.environ, env),
            mock.patch.object(os, "sched_getaffinity", lambda _, n=cpus: set(range(n))),
        ):
            for name in {"SLURM_CPUS_PER_TASK", "LOCAL_WORLD_SIZE"} - env.keys():
                os.environ.pop(name, None)
            with mock.patch.object(os, "cpu_count", lambda: 512):
                found.append(code.count_workers())
    return {"counts": found, "most": code.MOST_WORKERS}


def stays_on_rank(code, rank, world, batch):
    """For 0, 1 and 2 workers: two passes over a loader, the processes that made their samples, numbered."""
    found = []
    for workers in (0, 1, 2):
        loader = code.make_loader(Numbered(), made_args(code, batch_size=batch, workers=workers), 2)
        passes = [[(*pids.flatten().tolist(), len(pids)) for pids, _ in loader] for _ in range(2)]
        names = {
            pid: f"process {number}"
            for number, pid in enumerate(dict.fromkeys(p for one in passes for b in one for p in b[:-1]))
        }
        names[os.getpid()] = "the rank"
        made = [sorted({names[pid] for one in batches for pid in one[:-1]}) for batches in passes]
        found.append({"made": made, "sizes": [one[-1] for one in passes[0]]})
        del loader
    return found


def pinned_on_rank(code, rank, world):
    return bool(code.make_loader(Numbered(), made_args(code, batch_size=4, workers=0), 2).pin_memory)


# ---------------------------------------------------------------------------------------------------
# TODO 8: resuming


N_ROWS, LENGTH, WORDS = 40, 8, 49  # three steps of 12, and 4 rows left over


def states_on_rank(code, rank, world, places, changes):
    """`places` of (epoch, steps, rows, flags): the state there, and what seek makes of it. `changes` of (rows, flags):
    what seek makes of the first state, where these differ.
    """
    found = []
    for epoch, steps, rows, flags in places:
        args = made_args(code, **flags)
        state = code.stream_state(epoch, steps, rows, args)
        numbers = all(isinstance(value, (int, float)) for value in state.values())
        kept = json.loads(json.dumps(state)) if numbers else {}
        again = sought(code, kept, rows, made_args(code, **flags | {"workers": 3})) if numbers else None
        found.append({"numbers": numbers, "size": len(state), "again": again})
    epoch, steps, rows, flags = places[0]
    state = code.stream_state(epoch, steps, rows, made_args(code, **flags))
    return {"places": found, "changed": [sought(code, state, n, made_args(code, **other)) for n, other in changes]}


def sought(code, state, rows, args):
    """What seek returns; or with which code it ends, and its line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            place = code.seek(dict(state), rows, args)
        return {"place": [int(number) for number in place]}
    except SystemExit as end:
        return {"code": end.code if isinstance(end.code, int) else 1, "said": said.getvalue()}


def streams_on_rank(code, rank, world, runs, tokens, cuts):
    """main(), run after run: for each (ranks, flags), the batches that reached the model. Files have 50 tokens."""
    documents = np.split(np.array(tokens), cuts)
    vocab = ["<eos>", *(f"w{number}" for number in range(1, WORDS))]
    data = f"shards-{rank}"  # each rank writes its own, so that none must wait for another
    write_shards(Path(data), "drawn", vocab, {split: documents for split in ("train", "validation", "test")}, 100)
    record, left = record_training(Reporter.mine), []
    for number, (ranks, flags) in enumerate(runs):
        mark()
        if rank >= ranks:
            sit_out()
            left.append(None)
            continue
        next_world(ranks)
        record.begin()
        code.main(["--data", data, "--out", f"out-{number}", *flags])
        left.append([seen for seen in record.forwards if seen["training"]])
    return left
