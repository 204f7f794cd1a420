"""Checks of streaming_training, TODOs 1 to 3: documents.

| TODO | achievement                         | evidence                                                              | needs |
|------|-------------------------------------|-----------------------------------------------------------------------|-------|
| 1    | tokens read from maps               | read_tokens() over drawn files; which it opens, how often; bytes read |       |
| 2    | no target across documents          | make_row(); thrown_away()                                             |       |
| 3    | every target weighs the same        | weighted() on 1 to 3 ranks with unequally many targets                |       |
"""  # noqa: E501

import torch

from grader.kit import Private, check_tensor, count_of, expect, hinted, most_read, opened_by, shares, todo
from utils.data import IGNORE

from .ranks import FULL, LARGE_FILE, large_on_rank, reads_on_rank, rows_on_rank, weights_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 1: tokens


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


@todo(1, in_place=("maps",))
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
        expect(
            not any(event.get("writes") and event["name"] == name for event in run.events[0]),
            "a file is opened for writing: a shared corpus may not allow that, and one slip changes it",
            "reading only",
            name,
            hint="In which mode does numpy map a file if none is named?",
        )
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


@todo(2)
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


@todo(3)
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
    have = "has" if len(step) == 1 else "have"
    told = f"where {count_of(len(step), 'rank')} {have} {', '.join(map(str, step))} targets, rank {rank}'s"
    nowhere = "" if sum(step) else "By what do you divide where no rank has a target?"
    expect(factor is not None, f"{told} loss has lost its way to the gradient", "a loss with a graph", "none", rank)
    # float32: two or three roundings
    check_tensor(f"{told} loss", out, torch.tensor(loss * right), 1e-5, rank, hint=nowhere)
    if sum(step):
        check_tensor(f"{told} gradient's factor", factor, torch.tensor(right), 1e-5, rank)
