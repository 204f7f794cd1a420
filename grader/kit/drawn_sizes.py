"""Sizes that checks draw: by class, so that every class that decides comes with every seed.

Sizes hide mistakes: a square mesh, one stage a rank, shares of equal size, never more than two GPUs on a node.
`tests/test_draws.py` counts which class comes how often.
"""

import random
from collections.abc import Sequence

from grader.kit.drawn_values import unsorted


def pipelines(draw: random.Random, chunks: Sequence[int] = (1,), groups: bool = False) -> list[tuple[int, int, int]]:
    """(ranks, micro-batches, chunks on a rank): one rank; as many micro-batches as ranks; several times as many; on
    five ranks or seven, and on six or eight; and unless `groups` of as many micro-batches as ranks are wanted: fewer,
    more but no multiple. Each of `chunks` comes, which are five at most.
    """
    same, several, more = (draw.randrange(2, 5) for _ in range(3))
    sizes = [(1, draw.randrange(2, 6)), (same, same), (several, several * draw.randrange(2, 4))]
    sizes += [(many, 2 * many) for many in (draw.choice((5, 7)), draw.choice((6, 8)))]
    if not groups:
        less = draw.randrange(3, 6)
        sizes += [(less, draw.randrange(1, less)), (more, more * draw.randrange(1, 3) + draw.randrange(1, more))]
    first = draw.randrange(len(chunks))
    return [(p, m, chunks[(first + number) % len(chunks)]) for number, (p, m) in enumerate(sizes)]


def rectangles(draw: random.Random, most: int = 8) -> list[tuple[int, int]]:
    """Meshes of `most` ranks or fewer: one with more columns than rows, one with more rows than columns, both above
    one; a row; a column.
    """
    unequal = [(a, b) for a in range(2, most) for b in range(a + 1, most) if a * b <= most]
    wide, tall = draw.choice(unequal), draw.choice(unequal)
    found = [wide, tall[::-1], (1, draw.randrange(2, most + 1)), (draw.randrange(2, most + 1), 1)]
    draw.shuffle(found)
    return found


def meshes(
    draw: random.Random, ranks: int, axes: Sequence[str], beside: tuple[str, str] = ("", "")
) -> list[dict[str, int]]:
    """Meshes of two axes with unequal sides, 2 and `ranks` // 2; `ranks` is even and greater than four. Each axis is
    once the longer side and once the shorter; the two in `beside` meet. The axes come in a drawn order.
    """
    order = [axis for axis in axes if axis not in beside]
    draw.shuffle(order)
    order += draw.sample([axis for axis in beside if axis], len([axis for axis in beside if axis]))
    found = []
    for one, other in zip(order, order[1:] + order[:1], strict=True):
        sides = [(one, 2), (other, ranks // 2)]
        draw.shuffle(sides)
        found.append(dict(sides))
    return found


def shares(draw: random.Random, ranks: int, most: int = 6) -> list[int]:
    """How many items each rank has. Of two ranks and more one has none; of four and more two have equally many; of
    three and more the order is neither ascending nor descending.
    """
    some, other = draw.sample(range(1, most + 1), 2)
    if ranks < 3:
        return draw.sample([some, 0][:ranks], ranks)
    rest = [draw.choice((0, some, other, most)) for _ in range(ranks - 4)]
    return unsorted(draw, [0, some, other, some][:ranks] + rest)


def ones_in_turn(draw: random.Random, ranks: int, most: int = 9) -> list[list[int]]:
    """How many items each rank has, in as many cases as ranks: a different one in each has a single item, so that a
    product with its count is the factor itself. The others have 2 to `most`; of three ranks and more one has none in
    each second case, beginning with the first.
    """
    cases = []
    for number, one in enumerate(draw.sample(range(ranks), ranks)):
        found = [draw.randrange(2, most + 1) for _ in range(ranks)]
        if ranks > 2 and number % 2 == 0:
            found[draw.choice([place for place in range(ranks) if place != one])] = 0
        found[one] = 1
        cases.append(found)
    return cases


def without(draw: random.Random, ranks: int) -> list[list[int]]:
    """Ranks that have nothing that counts, such as a target of a loss, in three cases: one; all but one; all."""
    order = draw.sample(range(ranks), ranks)
    return [sorted(order[:1]), sorted(order[1:]), sorted(order)]


def lengths(draw: random.Random, ranks: int) -> list[int]:
    """Items that `ranks` ranks divide: none; fewer than ranks; as many; a multiple; one more than a multiple; one less.
    For one rank: none, one, several.
    """
    if ranks == 1:
        return [0, 1, draw.randrange(2, 9)]
    times = draw.randrange(2, 5)
    found = [0, draw.randrange(1, ranks), ranks, times * ranks, times * ranks + 1, (times + 1) * ranks - 1]
    draw.shuffle(found)
    return found


def layouts(draw: random.Random) -> list[tuple[int, int]]:
    """(nodes, GPUs on each) of eight ranks or fewer: one node with five to eight, and two with three or four."""
    return [(1, draw.randrange(5, 9)), (2, draw.randrange(3, 5))]


def nodes(draw: random.Random) -> list[tuple[int, int]]:
    """(nodes, GPUs on each): one GPU, two, an odd number above one, four or six, eight; on one to four nodes, and on
    one node and on three or four for one of them each.
    """
    gpus = [1, 2, draw.choice((3, 5, 7)), draw.choice((4, 6)), 8]
    draw.shuffle(gpus)
    return list(zip([1, draw.randrange(3, 5), *(draw.randrange(1, 4) for _ in gpus[2:])], gpus, strict=True))
