"""Checks and hints of streaming_training.

| TODO | achievement                         | evidence                                                              | needs |
|------|-------------------------------------|-----------------------------------------------------------------------|-------|
| 1    | tokens read from maps               | read_tokens() over drawn files; which it opens, how often; bytes read |       |
| 2    | no target across documents          | make_row(); thrown_away()                                             |       |
| 3    | every target weighs the same        | weighted() on 1 to 3 ranks with unequally many targets                |       |
| 4    | shuffled in blocks, with a buffer   | shuffled(): pieces, blocks, seeds and epochs, on two ranks            |       |
| 5    | each training sample once           | is_own() on a grid of ranks and workers                               |       |
| 6    | each evaluated row once, neighbours | own_rows() on a grid of ranks and workers                             |       |
| 7    | workers that stay                   | count_workers(); the processes that fill make_loader()'s batches      |       |
| 8    | the stream resumes                  | stream_state(), seek(); main() on 1 to 4 ranks, stopped and resumed, against the text in memory | 1 – 7 |
"""  # noqa: E501

import contextlib
import inspect
import io
import json
import math
import os
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch.utils.data import IterableDataset

from grader.kit import (
    REL,
    Private,
    Reporter,
    bytes_read,
    check_tensor,
    count_of,
    expect,
    hinted,
    mark,
    most_read,
    next_world,
    opened_by,
    record_training,
    reported,
    same_report,
    shares,
    sit_out,
    todo,
    watch_reads,
)
from utils.data import IGNORE
from utils.model import TransformerLM
from utils.shards import File, Split, write_shards

BUILDS = "text that does not fit: shards on disk, an order for any number of readers, documents, workers, resuming"

GRID = [(world, workers) for world in (1, 2, 3, 4) for workers in (1, 2, 3)]


def readers(world, workers):
    return f"on {count_of(world, 'rank')} with {count_of(workers, 'worker')} each"


# ---------------------------------------------------------------------------------------------------
# TODO 1: tokens


FULL = 7  # tokens in a file of the drawn sets: less than some ranges, so that these lie in three files
LARGE_FILE = 24 << 20  # bytes; the file is sparse, so that it is made in no time
ROW = 65  # tokens


def drawn_tokens(draw, size, dtype):
    """Ids, some too large for a signed number of that size; with four bytes, some that need more than two."""
    most = 1 << 16 if dtype == "<u2" else 1 << 18
    tokens = [draw.randrange(most) for _ in range(size)]
    tokens[:: max(size // 4, 1)] = [draw.randrange(most // 2, most) for _ in tokens[:: max(size // 4, 1)]]
    return tokens


def drawn_ranges(draw, size):
    """Ranges of tokens: in one file, up to a border, from a border, across one, across two and more, a single token,
    all; in a drawn order, and each twice.
    """
    at = draw.randrange(1, FULL - 2)
    found = [
        (at, at + 2),
        (2, FULL),
        (FULL, FULL + 3),
        (FULL - 1, FULL + 1),
        (at, 3 * FULL - 1),
        (2 * FULL, 2 * FULL + 1),
    ]
    found += [(0, size), (size - 2, size)]
    return draw.sample(found + found, 2 * len(found))


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


@todo(
    1,
    minutes=25,
    in_place=("maps",),
    why=(
        "A text of a terabyte fits into no memory. And a file system that serves a whole cluster is fast with a few"
        " large"
        " files, and slow with many opens: a thousand readers that open a file for each row keep all others waiting."
    ),
    hints=(
        "Which files does the range touch? Of each, which part? And what was opened at an earlier call?",
        (
            "np.memmap(path, dtype, 'r') is an array whose pages are read when they are touched. Keep it in"
            " maps[number]."
            " A file's part of the range, counted from its own first token, is a slice of it."
        ),
        (
            "For each file with file.first < end and begin < file.first + file.tokens: open it unless number is in"
            " maps,"
            " and take maps[number][max(begin - file.first, 0) : end - file.first]; then np.concatenate,"
            " .astype(np.int64),"
            " torch.from_numpy."
        ),
    ),
)
def test_todo1_tokens(student):
    draw = student.draw("tokens")
    sets = [(drawn_tokens(draw, 4 * FULL + 3, "<u2"), "<u2"), (drawn_tokens(draw, 4 * FULL + 3, "<u4"), "<u4")]
    reads = [(number, *one) for one in drawn_ranges(draw, 4 * FULL + 3) for number in (0, 1)]
    sets.append((drawn_tokens(draw, 3 * FULL, "<u2"), "<u2"))
    reads.append((2, FULL + 1, FULL + 3))
    run = student.call(reads_on_rank, world=1, group=False, sets=sets, reads=reads)
    for (number, begin, end), seen in zip(reads, run.evidence[0], strict=True):
        tokens, dtype = sets[number]
        bits = {"<u2": 16, "<u4": 32}[dtype]
        what = f"of files of {FULL} tokens of {bits} bits, what read_tokens returns for [{begin}, {end})"
        check_tensor(what, seen, torch.tensor(tokens[begin:end]), hint=BORDER)
    check_opens(run)
    check_bytes(student, draw)


BORDER = "Where does the range begin in this file, and how much of it is in the next one?"
TOUCHED = "Which files does the range touch? Open a file when something in it is asked for, and not sooner."


def check_opens(run):
    opened = opened_by(run.events[0])
    for name, times in sorted(opened.items()):
        most = max(times.values())
        expect(
            most == 1,
            f"one process opens the same file {most} times, as its rows are read",
            "once",
            f"{most} times",
            hint="What is kept in maps is still there at the next call. What is opened anew each time here?",
        )
        expect(
            not name.startswith("2-") or name == "2-00001.bin",
            "a file is opened although no token in it is asked for",
            "only the file of the range",
            name,
            hint=TOUCHED,
        )


def check_bytes(student, draw):
    a_file = LARGE_FILE // 2
    rows = [(at, at + ROW) for at in draw.sample(range(2 * a_file - ROW), 12)]
    run = student.call(large_on_rank, world=1, group=False, rows=rows)
    seen, most = most_read(run.events[0]), LARGE_FILE // 2
    expect(
        seen <= most,
        f"for {len(rows)} rows of {2 * ROW} bytes, from two files of {LARGE_FILE >> 20} MiB, {seen / 2**20:.0f} MiB"
        " are read",
        f"at most {most >> 20} MiB: the system reads a file in pages, and some more around them",
        f"{seen / 2**20:.0f} MiB",
        hint="Which call reads a file to its end, or copies all of it? A slice of a map copies nothing.",
    )


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


def drawn_rows(draw):
    """Rows with documents that start nowhere, at the first token, at the last, at several, at all; and a short one."""
    length = draw.randrange(6, 10)
    inside = sorted(draw.sample(range(1, length - 1), 2))
    rows = []
    for starts in ([], [0], [length - 1], inside, [0, *inside, length - 1], list(range(length))):
        rows.append((length, [draw.randrange(1, 99) for _ in range(length + 1)], starts))
    short = draw.randrange(2, length)
    rows.append((length, [draw.randrange(1, 99) for _ in range(short + 1)], [short - 1]))
    return draw.sample(rows, len(rows))


def drawn_counts(draw):
    """Tokens, batch size, seq_len: where nothing is left over, a short row only, whole rows only, and both."""
    found = []
    for rows, tokens in ((0, 0), (0, 1), (1, 0), (1, 1)):
        batch, length, steps = draw.randrange(3, 9), draw.randrange(4, 9), draw.randrange(2, 6)
        left = rows * draw.randrange(1, batch) * length + tokens * draw.randrange(1, length)
        found.append((steps * batch * length + left, batch, length, left))
    return draw.sample(found, len(found))


@todo(
    2,
    minutes=20,
    why=(
        "Padding each document to a row would waste half of the work where documents are short. Packed rows waste"
        " nothing,"
        " but then a row holds the end of one document and the start of the next, and a model that must predict the one"
        " from the other learns noise."
    ),
    hints=(
        "Which target is the first token of a document? What does the loss do with IGNORE?",
        (
            "y[starts] = IGNORE sets all of them. But x and y are two views of one tensor: what is written into y is"
            " in x,"
            " one place further on, unless y has its own memory."
        ),
        (
            "y = y.clone(), then y[starts] = ... . And in thrown_away: tokens less steps times a step's tokens,"
            " where the"
            " number of steps is the number of whole rows divided by the batch size, rounded down."
        ),
    ),
)
def test_todo2_documents(student):
    draw = student.draw("documents")
    rows, counts = drawn_rows(draw), drawn_counts(draw)
    eos = draw.randrange(100, 200)
    ask = [count[:3] for count in counts]
    seen = student.call(rows_on_rank, world=1, group=False, rows=rows, eos=eos, counts=ask).evidence[0]
    for (length, tokens, starts), (x, y) in zip(rows, seen["made"], strict=True):
        told = f"in a row of {length} with {len(tokens) - 1} tokens, where documents start at {starts or 'no place'},"
        missing = length - len(tokens) + 1
        right_y = [IGNORE if place in starts else token for place, token in enumerate(tokens[1:])] + [IGNORE] * missing
        check_tensor(f"{told} x", x, torch.tensor(tokens[:-1] + [eos] * missing), hint=VIEWS)
        check_tensor(f"{told} y", y, torch.tensor(right_y))
    with hinted("A row needs all its tokens, and a step all its rows. What is left of the text after the last step?"):
        for (n_tokens, batch, length, left), thrown in zip(counts, seen["thrown"], strict=True):
            told = f"of {n_tokens:,} tokens, in steps of {batch} rows of {length}, thrown_away counts {thrown}"
            expect(thrown == left, told, left, thrown)


VIEWS = "x must keep its tokens. Whose memory does y use?"


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


@todo(
    3,
    minutes=20,
    why=(
        "Ranks with few targets would count as much as ranks with many: the gradient would depend on how the batch is"
        " divided, and two runs on different numbers of ranks would no longer be the same run."
    ),
    hints=(
        "What is the mean over all targets, in terms of each rank's mean and its number of targets? What does DDP"
        " compute?",
        (
            "The global mean is the sum over ranks of loss · n, divided by the sum of n. DDP adds up the gradients and"
            " divides by the number of ranks. So a rank's loss needs a factor, for which one number must be"
            " all-reduced."
        ),
        "loss * n_targets * dist.get_world_size() / total, with total the sum of n_targets over all ranks, and never"
        " 0.",
    ),
)
def test_todo3_weights(student):
    drawn = {world: drawn_targets(student.draw("weights", world), world) for world in (1, 2, 3)}
    student.premise(all(len(set(drawn[world][0][0])) > 1 for world in (2, 3)), "equal weights")
    for world, (steps, values) in drawn.items():
        mine = Private([[[values[k][r], steps[k][r]] for k in range(len(steps))] for r in range(world)])
        ranks = student.call(weights_on_rank, world=world, mine=mine).evidence
        for rank, found in enumerate(ranks):
            for step, losses, (out, factor) in zip(steps, values, found, strict=True):
                check_weight(rank, step, losses[rank], out, factor)


def drawn_targets(draw, world):
    """Targets of each rank, and mean losses, step by step: many; none on some rank; none at all."""
    steps = [[draw.randrange(3, 400) for _ in range(world)], shares(draw, world, 30), [0] * world]
    return steps, [[draw.uniform(1, 9) if n else 0.0 for n in step] for step in steps]


def check_weight(rank, step, loss, out, factor):
    right = step[rank] * len(step) / sum(step) if sum(step) else 0.0
    told = f"where {count_of(len(step), 'rank')} have {', '.join(map(str, step))} targets, rank {rank}'s"
    expect(factor is not None, f"{told} loss has lost its way to the gradient", "a loss with a graph", "none", rank)
    # float32: two or three roundings
    check_tensor(f"{told} loss", out, torch.tensor(loss * right), 1e-5, rank)
    if sum(step):
        check_tensor(f"{told} gradient's factor", factor, torch.tensor(right), 1e-5, rank)


# ---------------------------------------------------------------------------------------------------
# TODO 4: the order


def orders_on_rank(code, rank, world, cases):
    """`cases` of (rows, epoch, seed, block, buffer). Each rank has other random numbers behind it."""
    torch.manual_seed(rank)
    return [
        [
            [int(row) for row in piece]
            for piece in code.shuffled(n, epoch, made_args(code, seed=seed, block=block, buffer=buffer))
        ]
        for n, epoch, seed, block, buffer in cases
    ]


def drawn_orders(draw):
    """Rows, block, buffer: of many whole blocks; with a short last block and a short last piece; fewer rows than a
    block; fewer blocks than a buffer; blocks of one row.
    """
    block, buffer = draw.randrange(4, 8), draw.randrange(4, 7)
    many = (block * buffer * 8, block, buffer)
    uneven = (block * (buffer * 5 + 2) + draw.randrange(1, block), block, buffer)
    small = (draw.randrange(12, 20), 64, buffer)
    few = (block * 3, block, 16)
    return [many, uneven, small, few, (draw.randrange(40, 60), 1, buffer)]


@todo(
    4,
    minutes=30,
    why=(
        "A shuffle of all rows reads each from a different place of a different file, and a disk or a file system that"
        " serves many is slow at that. But rows in the order of the text make batches of one subject. Blocks in a"
        " random"
        " order, mixed in a buffer, are nearly as random, and come from few places at a time."
    ),
    hints=(
        "There are two shuffles: which of them mixes blocks, and which rows? What must be the same on all readers?",
        (
            "torch.randperm(n, generator=generator) twice: of the number of blocks, rounded up; then, for each piece of"
            " args.buffer blocks, of its number of rows. The last block of the text may be short."
        ),
        (
            "for own in blocks.split(args.buffer): rows = (own[:, None] * args.block +"
            " torch.arange(args.block)).flatten(),"
            " without those that are n_rows or more; then yield them in the order of a randperm of their number."
        ),
    ),
)
def test_todo4_order(student):
    draw = student.draw("orders")
    shapes, seed = drawn_orders(draw), draw.randrange(1 << 20)
    cases = [(n, epoch, seed, block, buffer) for n, block, buffer in shapes for epoch in (0, 3)]
    cases += [(shapes[0][0], 0, seed + 1000, *shapes[0][1:]), (shapes[0][0], 0, seed, *shapes[0][1:])]
    ranks = student.call(orders_on_rank, world=2, group=False, cases=cases).evidence
    for case, mine, other in zip(cases, *ranks, strict=True):
        told = f"of {case[0]} rows in blocks of {case[3]}, {case[4]} blocks at a time,"
        check_order(told, case, mine)
        expect(
            mine == other,
            f"{told} two ranks have different orders: with the same seed and epoch it must be the same everywhere",
            mine[0],
            other[0],
            1,
            hint="Which generator do the numbers come from? torch's own is in a different state on each rank.",
        )
    many = ranks[0]
    expect(many[0] == many[-1], "the same seed and epoch give two different orders", many[0][0], many[-1][0])
    for what, changed in (("epoch", many[1]), ("seed", many[-2])):
        expect(many[0] != changed, f"with a different {what} the order is the same", "a different order", "the same")
    check_shuffled(many[0], shapes[0])


def check_order(told, case, pieces):
    n, _, _, block, buffer = case
    seen = [row for piece in pieces for row in piece]
    lost, beyond = sorted(set(range(n)) - set(seen)), sorted(set(seen) - set(range(n)))
    expect(not beyond, f"{told} there is a row {beyond[:1]}", f"rows 0 to {n - 1}", beyond, hint=SHORT)
    expect(not lost, f"{told} row {lost[:1]} is missing", f"{n} rows", f"{len(set(seen))} rows", hint=SHORT)
    expect(len(seen) == n, f"{told} some rows come twice", f"{n} rows", f"{len(seen)} rows")
    blocks = -(-n // block)
    for number, piece in enumerate(pieces):
        own = {row // block for row in piece}
        most = min(buffer, blocks)
        expect(
            len(own) <= most,
            f"{told} piece {number + 1} has rows of {len(own)} blocks: it reads all over the disk",
            f"rows of {count_of(most, 'block')}",
            f"rows of {count_of(len(own), 'block')}",
        )
    right = -(-blocks // buffer)
    expect(
        len(pieces) == right,
        f"{told} there are {count_of(len(pieces), 'piece')}, so rows are mixed with fewer rows than the buffer allows",
        count_of(right, "piece"),
        count_of(len(pieces), "piece"),
    )


SHORT = "How many rows does the last block have, and which block may be the last one here?"


def check_shuffled(pieces, shape):
    """Of many blocks: they are shuffled, and so are the rows within a piece, in each piece anew."""
    n, block, buffer = shape
    blocks = [list(dict.fromkeys(row // block for row in piece)) for piece in pieces]
    first = [sorted(own) for own in blocks]
    in_order = all(own == list(range(own[0], own[0] + len(own))) for own in first)
    expect(
        not in_order,
        "each piece has neighbouring blocks: the blocks are not shuffled, so an epoch goes through the text in its"
        " order",
        "blocks from anywhere in the text",
        first[0],
    )
    pairs = [(a // block, b // block) for piece in pieces for a, b in pairwise(piece)]
    same = sum(a == b for a, b in pairs) / len(pairs)
    # Of rows in a random order one pair in about `buffer` is of one block; of blocks one after the other, nearly all.
    expect(
        same < 0.6,
        f"of two rows that follow each other {same:.0%} are of one block: blocks follow each other, and are not mixed",
        f"about {1 / buffer:.0%}",
        f"{same:.0%}",
    )
    ascending = sum(a < b for piece in pieces for a, b in pairwise(piece)) / len(pairs)
    expect(
        0.2 < ascending < 0.8,
        "the rows of a piece are sorted, or in turn one from each block: they are not shuffled",
        "a random order",
        pieces[0][:8],
    )
    places = [[row % block for row in piece] for piece in pieces]
    expect(
        any(one != places[0] for one in places),
        "every piece is shuffled in the same way",
        "numbers that are drawn anew for each piece",
        "the same permutation",
        hint="A generator that is made anew, or seeded again, draws the same numbers again.",
    )


# ---------------------------------------------------------------------------------------------------
# TODOs 5 and 6: which reader


BATCH = 12


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


@todo(
    5,
    minutes=25,
    why=(
        "The usual recipe gives each rank a share and forgets the workers: then each of them reads the whole share, and"
        " every sample is trained on several times, without any error. And if the batches depend on the number of"
        " ranks or"
        " workers, no run can be repeated on a different machine."
    ),
    hints=(
        "For sample s: which step is it in, and which place in that step's batch? Which rank has it? Which worker?",
        (
            "The step is s // args.batch_size, and the place s % args.batch_size. Each rank has args.batch_size //"
            " world_size places. A loader asks worker 0 for its first batch, worker 1 for the second, and so on."
        ),
        "(place // share == rank) & (step % workers == worker), with & and not `and`: these are tensors.",
    ),
)
def test_todo5_readers(student):
    draw = student.draw("readers")
    cuts = sorted(draw.sample(range(1, 8 * BATCH), 5))
    spans = list(zip([0, *cuts], [*cuts, 8 * BATCH], strict=True))
    found = student.call(dealt_on_rank, world=1, group=False, grid=GRID, spans=spans, batch=BATCH).evidence[0]
    for (world, workers), dealt in zip(GRID, found, strict=True):
        check_readers(readers(world, workers), world, workers, dealt)


def check_readers(told, world, workers, dealt):
    everything = sorted(sample for mine in dealt for sample in mine)
    twice = sorted({sample for sample in everything if everything.count(sample) > 1})
    lost = sorted(set(range(8 * BATCH)) - set(everything))
    if twice:
        owners = [divmod(number, workers) for number, mine in enumerate(dealt) if twice[0] in mine]
        where = " and ".join(f"worker {worker} of rank {rank}" for rank, worker in owners[:2])
        expect(False, f"{told}, sample {twice[0]} is read by {where}", "each sample once", f"{len(owners)} times")
    expect(not lost, f"{told}, sample {lost[:1]} is read by no reader", "each sample once", f"never: {lost[:8]}")
    for number, mine in enumerate(dealt):
        rank, worker = divmod(number, workers)
        for step in range(8):
            here = [sample for sample in mine if sample // BATCH == step]
            right = BATCH // world if step % workers == worker else 0
            expect(
                len(here) == right,
                f"{told}, worker {worker} of rank {rank} reads {count_of(len(here), 'sample')} of step {step}: its"
                " batches"
                " are not the ones that the loader asks it for, so the rank's batches would be of several steps",
                f"{count_of(right, 'sample')}: steps come from the workers in turn",
                count_of(len(here), "sample"),
                rank,
                hint="" if workers > 1 else "How many samples of a step does each rank have?",
            )


def owned_on_rank(code, rank, world, grid, sizes):
    return [
        [
            [list(code.own_rows(n, k // workers, ranks, k % workers, workers)) for k in range(ranks * workers)]
            for n in sizes
        ]
        for ranks, workers in grid
    ]


@todo(
    6,
    minutes=15,
    why=(
        "If every reader opens every file, a job of a thousand readers opens each file a thousand times. Where the"
        " order"
        " is free, each reader can have a piece of the text for itself."
    ),
    hints=(
        "How many readers are there in all, and which number has this one? Where would you cut the rows?",
        "Reader i of r has the rows from n·i/r to n·(i + 1)/r, both rounded down: that is fair to one row.",
        "reader, readers = rank * workers + worker, world_size * workers; range(n_rows * reader // readers, ...).",
    ),
)
def test_todo6_evaluation(student):
    draw = student.draw("evaluation")
    sizes = [draw.randrange(40, 60), 2, 13, 24]  # uneven, fewer than readers, a prime, even
    found = student.call(owned_on_rank, world=1, group=False, grid=GRID, sizes=sizes).evidence[0]
    for (world, workers), by_size in zip(GRID, found, strict=True):
        for n, dealt in zip(sizes, by_size, strict=True):
            check_owned(f"{readers(world, workers)}, of {n} rows", n, dealt, workers)


def check_owned(told, n, dealt, workers):
    everything = sorted(row for mine in dealt for row in mine)
    twice = sorted({row for row in everything if everything.count(row) > 1})
    lost = sorted(set(range(n)) - set(everything))
    expect(not twice, f"{told}, row {twice[:1]} is read by several readers", "each row once", f"several times: {twice}")
    expect(not lost, f"{told}, row {lost[:1]} is read by no reader", "each row once", f"never: {lost}")
    expect(everything == list(range(n)), f"{told}, there are rows beyond them", f"rows 0 to {n - 1}", everything[-3:])
    sizes = [len(mine) for mine in dealt]
    expect(
        max(sizes) - min(sizes) <= 1,
        f"{told}, one reader has {max(sizes)} and another {min(sizes)}: the others wait for the one with the most",
        "at most one more",
        sizes,
        hint="Cut by proportion: what is left over goes to several readers, one row each.",
    )
    for number, mine in enumerate(dealt):
        rank, worker = divmod(number, workers)
        expect(
            not mine or sorted(mine) == list(range(min(mine), max(mine) + 1)),
            f"{told}, worker {worker} of rank {rank} reads here and there, so that every reader opens every file",
            "neighbouring rows",
            mine[:6],
            rank,
        )


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


@todo(
    7,
    minutes=20,
    why=(
        "While the model computes, workers read the next batches. But more workers than CPUs slow everything down; and"
        " workers that are started anew in each epoch cost seconds each time, and open all their files again."
    ),
    hints=(
        "How many CPUs has this job, and how many ranks divide them? What does a loader do with its workers after a"
        " pass?",
        (
            'Values in os.environ are text: int(os.environ.get("LOCAL_WORLD_SIZE", "1")). DataLoader takes num_workers,'
            " persistent_workers and pin_memory."
        ),
        (
            "min(max(cpus // ranks - 1, 0), MOST_WORKERS); and in the loader persistent_workers=args.workers > 0,"
            " pin_memory=torch.cuda.is_available()."
        ),
    ),
)
def test_todo7_workers(student):
    draw = student.draw("workers")
    cases = drawn_cpus(draw)
    seen = student.call(cpus_on_rank, world=1, group=False, cases=cases).evidence[0]
    for (env, cpus), count in zip(cases, seen["counts"], strict=True):
        own = int(env.get("SLURM_CPUS_PER_TASK", cpus)) // int(env.get("LOCAL_WORLD_SIZE", 1)) - 1
        right = min(max(own, 0), seen["most"])
        said = ", ".join(f"{name}={value}" for name, value in env.items()) or "no variable set"
        told = f"with {said}, and {count_of(cpus, 'CPU')} for this process, a rank has {count} workers"
        expect(count == right, told, right, count)
    batch = 4
    run = student.call(stays_on_rank, world=1, group=False, batch=batch)
    for workers, found in enumerate(run.evidence[0]):
        check_loader(f"with --workers {workers}", workers, found, batch)
    pinned = student.call(pinned_on_rank, world=1, group=False, gpus=1).evidence[0]
    expect(pinned, "where there is a GPU, the batches are not in pinned memory", "pinned memory", "ordinary memory")


def drawn_cpus(draw):
    """By Slurm, with the machine's CPUs visible or not; without it; fewer CPUs than ranks; more than a rank needs."""
    few, ranks = draw.randrange(4, 7), draw.randrange(2, 5)
    return [
        ({"SLURM_CPUS_PER_TASK": str(2 * few), "LOCAL_WORLD_SIZE": "2"}, 64),
        ({"LOCAL_WORLD_SIZE": "2"}, 2 * draw.randrange(2, 5) + 1),
        ({"LOCAL_WORLD_SIZE": str(ranks)}, ranks - 1),
        ({}, 3),
        ({"SLURM_CPUS_PER_TASK": "3"}, 64),
        ({"SLURM_CPUS_PER_TASK": "128", "LOCAL_WORLD_SIZE": str(ranks)}, 128),
    ]


def check_loader(told, workers, found, batch):
    first, second = found["made"]
    expect(
        len(first) == max(workers, 1) and ("the rank" in first) == (workers == 0),
        f"{told}, the batches come from {', '.join(first)}",
        count_of(workers, "worker") if workers else "the rank itself",
        ", ".join(first),
    )
    expect(
        all(size == batch // 2 for size in found["sizes"][:1]),
        f"{told} and --batch-size {batch}, on 2 ranks a rank's batches have {found['sizes'][0]} rows",
        batch // 2,
        found["sizes"][0],
    )
    expect(
        set(second) <= set(first),
        f"{told}, the second epoch has new workers: each starts anew, and opens its files again",
        "the same processes",
        ", ".join(second),
        hint="Which argument of DataLoader keeps workers alive from one epoch to the next?",
    )


# ---------------------------------------------------------------------------------------------------
# TODO 8: resuming


ARGV = (
    f"--epochs 2 --batch-size {BATCH} --seq-len 8 --dim 16 --heads 2 --layers 1 --optimizer sgd --lr 0.5 --clip 0 "
    "--seed 5 --log-every 1 --block 5 --buffer 3"
).split()
N_ROWS, LENGTH, WORDS = 40, 8, 49  # three steps of 12, and 4 rows left over
AN_EPOCH = N_ROWS // BATCH


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


def drawn_text(draw):
    """Tokens, and where documents start: in some parts nearly everywhere, in others hardly anywhere."""
    size = N_ROWS * LENGTH + 3
    tokens = [draw.randrange(1, WORDS) for _ in range(size)]
    dense = draw.sample(range(1, N_ROWS), N_ROWS // 4)
    cuts = {at for row in dense for at in draw.sample(range(row * LENGTH, (row + 1) * LENGTH), 6)}
    return tokens, sorted(cuts | set(draw.sample(range(1, size), 6)))


def windows(tokens):
    """Row -> its x."""
    before = [0, *tokens]
    return {tuple(before[row * LENGTH : (row + 1) * LENGTH]): row for row in range(N_ROWS)}


def trained_in_memory(tokens, cuts, order):
    """The losses of a run with the whole text in memory, that trains in each step on these rows."""
    torch.manual_seed(5)
    model = TransformerLM(WORDS, dim=16, n_heads=2, n_layers=1, max_len=LENGTH)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5, weight_decay=0.01), []
    targets = torch.tensor(tokens)
    inputs = torch.cat([torch.zeros(1, dtype=torch.int64), targets[:-1]])
    targets[cuts] = IGNORE
    for rows in order:
        places = torch.tensor(rows)[:, None] * LENGTH + torch.arange(LENGTH)
        optimizer.zero_grad()
        loss = model(inputs[places], targets[places])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def by_step(ranks, rows_of):
    """For each step: the rows that it trained on, over all ranks, and the mean loss over their targets."""
    found = []
    for parts in zip(*ranks, strict=True):
        rows = [rows_of.get(tuple(x), -1) for part in parts for x in part["x"].tolist()]
        total = sum(part["targets"] for part in parts)
        found.append((rows, sum(part["loss"] * part["targets"] for part in parts) / max(total, 1)))
    return found


@todo(
    8,
    minutes=30,
    needs=(1, 2, 3, 4, 5, 6, 7),
    why=(
        "A run of weeks is stopped many times, and resumes where there is room. If its data begin anew each time,"
        " the model"
        " sees the first part of the text over and over and the last part never; and no loss shows it."
    ),
    hints=(
        "What does the order depend on, and how far in it is the run? What do the workers know that does not count?",
        (
            "The epoch, and the samples of it that all ranks have trained on: steps times args.batch_size. For the"
            " order:"
            " args.seed, args.seq_len, args.block, args.buffer, and the number of rows."
        ),
        (
            "Return a dictionary of these seven numbers. In seek compare the last five with stream_state(0, 0,"
            " n_rows, args),"
            " call fail with the name of the first that differs, and return the first two."
        ),
    ),
)
def test_todo8_resuming(student):
    draw = student.draw("resuming")
    tokens, cuts = drawn_text(draw)
    rows_of = windows(tokens)
    student.premise(len(rows_of) == N_ROWS, "a different row with the same words")
    check_states(student, draw)
    stop = draw.randrange(AN_EPOCH + 1, 2 * AN_EPOCH)  # in the second epoch
    early = draw.randrange(1, AN_EPOCH)
    saves = ["--save-every", "1", "--max-steps"]
    runs = [
        [1, [*ARGV, "--workers", "0"]],
        [2, [*ARGV, "--workers", "2"]],
        [3, [*ARGV, "--workers", "0", *saves, str(early)]],
        [4, [*ARGV, "--workers", "1", "--resume", "out-2", *saves, str(stop)]],
        [2, [*ARGV, "--workers", "3", "--resume", "out-3"]],
        [2, [*ARGV, "--workers", "0", *saves, str(AN_EPOCH)]],
        [1, [*ARGV, "--workers", "2", "--resume", "out-5"]],
    ]
    run = student.call(streams_on_rank, world=4, group=False, common=True, runs=runs, tokens=tokens, cuts=cuts)
    left = [[mine[number] for mine in run.evidence if mine[number] is not None] for number in range(len(runs))]
    seen = [by_step(ranks, rows_of) for ranks in left]
    check_one_rank(seen[0])
    order = [rows for rows, _ in seen[0]]
    losses = student.reference(trained_in_memory, tokens=tokens, cuts=cuts, order=order)
    check_run("on 1 rank without workers", order, losses, seen[0])
    check_run("on 2 ranks with 2 workers each", order, losses, seen[1])
    check_run("on 3 ranks", order[:early], losses[:early], seen[2])
    check_run(f"resumed after step {early}, from 3 ranks on 4,", order[early:stop], losses[early:stop], seen[3])
    check_run(f"resumed after step {stop}, from 4 ranks on 2,", order[stop:], losses[stop:], seen[4])
    check_run(
        "resumed after the last step of an epoch, from 2 ranks on 1,", order[AN_EPOCH:], losses[AN_EPOCH:], seen[6]
    )
    same_report("on 2 ranks with 2 workers each", reported(run, "out-0"), reported(run, "out-1"))
    ends = [line for line in reported(run, "out-0") if line["kind"] != "step"]
    resumed = [line for line in reported(run, "out-4") if line["kind"] != "step"]
    same_report("of a resumed run,", ends[-len(resumed) :], resumed)


def check_one_rank(steps):
    """On one rank: each epoch trains on each row once, as far as they fill batches."""
    expect(
        len(steps) == 2 * AN_EPOCH,
        f"on 1 rank, two epochs of {N_ROWS} rows in batches of {BATCH} are {len(steps)} steps",
        2 * AN_EPOCH,
        len(steps),
    )
    for epoch in range(2):
        rows = [row for rows, _ in steps[epoch * AN_EPOCH : (epoch + 1) * AN_EPOCH] for row in rows]
        expect(-1 not in rows, f"in epoch {epoch + 1} a row is not in the text", "rows of the text", "an unknown row")
        expect(
            len(set(rows)) == len(rows), f"in epoch {epoch + 1} a row is trained on twice", len(rows), len(set(rows))
        )


def check_run(told, order, losses, steps):
    expect(
        len(steps) == len(order),
        f"{told} the run makes {count_of(len(steps), 'step')}",
        count_of(len(order), "step"),
        count_of(len(steps), "step"),
    )
    for number, (right, loss, (rows, seen)) in enumerate(zip(order, losses, steps, strict=True), start=1):
        lost, twice = sorted(set(right) - set(rows)), len(rows) - len(set(rows))
        expect(
            not lost and not twice and len(rows) == len(right),
            f"{told} step {number} does not train on the samples that come next",
            sorted(right),
            sorted(rows),
        )
        same = math.isclose(seen, loss, rel_tol=REL)
        expect(same, f"{told} the loss of step {number} is not the loss of a run in memory", loss, seen)


def check_states(student, draw):
    flags = dict(batch_size=draw.randrange(3, 9), seq_len=16, seed=draw.randrange(1 << 20), block=8, buffer=4)
    rows = draw.randrange(1000, 2000)
    places = [(draw.randrange(1, 5), draw.randrange(1, 9), rows, flags), (0, 0, rows, flags), (7, 90, rows, flags)]
    names = ("seed", "seq_len", "block", "buffer")
    changes = [(rows, flags | {name: flags[name] + 1}) for name in names] + [(rows + 1, flags)]
    seen = student.call(states_on_rank, world=1, group=False, places=places, changes=changes).evidence[0]
    for (epoch, steps, _, _), found in zip(places, seen["places"], strict=True):
        told = f"after {steps} steps of epoch {epoch}"
        expect(
            found["numbers"] and found["size"] <= 16,
            f"{told} the state is not a few numbers",
            "at most 16 numbers",
            found["size"],
        )
        right = {"place": [epoch, steps * flags["batch_size"]]}
        expect(
            found["again"] == right,
            f"{told} of {flags['batch_size']} samples, what seek returns for the state is wrong",
            right["place"],
            found["again"].get("place", found["again"].get("said")),
        )
    for name, found in zip((*names, "rows"), seen["changed"], strict=True):
        expect(
            found.get("code") == 2 and name in found["said"].replace("-", "_"),
            f"a state that was saved with a different {name} is not refused: the order is a different one",
            f"exit code 2, and a line that names {name}",
            found.get("said") or found.get("place"),
            hint="Which numbers of the state say what the order is, and not where the run is in it?",
        )
