"""Checks of streaming_training, TODOs 4 to 6: order and readers.

| TODO | achievement                         | evidence                                                              | needs |
|------|-------------------------------------|-----------------------------------------------------------------------|-------|
| 4    | shuffled in blocks, with a buffer   | shuffled(): pieces, blocks, seeds and epochs, on two ranks            |       |
| 5    | each training sample once           | is_own() on a grid of ranks and workers                               |       |
| 6    | each evaluated row once, neighbours | own_rows() on a grid of ranks and workers                             |       |
"""  # noqa: E501

from itertools import pairwise

from grader.kit import count_of, expect, todo

from .common import BATCH
from .ranks import dealt_on_rank, orders_on_rank, owned_on_rank

GRID = [(world, workers) for world in (1, 2, 3, 4) for workers in (1, 2, 3)]


def readers(world, workers):
    return f"on {count_of(world, 'rank')} with {count_of(workers, 'worker')} each"


# ---------------------------------------------------------------------------------------------------
# TODO 4: the order


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


@todo(4)
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


@todo(5)
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


@todo(6)
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
