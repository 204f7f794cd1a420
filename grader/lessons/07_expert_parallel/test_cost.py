"""Checks of 07_expert_parallel, TODO 8: cost.

| TODO | achievement                           | evidence                                                   | needs  |
|------|---------------------------------------|------------------------------------------------------------|--------|
| 8    | bytes, messages, slowdown, predicted  | the formulas                                               |        |
"""

from grader.kit import check_answers, todo
from grader.kit import shares as uneven_shares

# ---------------------------------------------------------------------------------------------------
# TODO 8: predictions


@todo(8)
def test_todo8_costs(student):
    draw, right = student.draw("costs"), {}
    shapes = ((1, 3), (2, 1), (2, 2), (3, 2), (4, 1), (5, 3), (8, 1))
    for world, each in shapes:
        table = [uneven_shares(draw, world * each, most=20) for _ in range(world)]
        dim, size, rank = draw.choice((8, 64, 100)), draw.choice((2, 4)), draw.randrange(world)
        mine = range(rank * each, (rank + 1) * each)
        leaves = sum(n for e, n in enumerate(table[rank]) if e not in mine)
        returns = sum(table[r][e] for r in range(world) for e in mine if r != rank)
        both = (leaves + returns) * dim * size
        right["layer_bytes", (tuple(map(tuple, table)), rank, dim, size)] = (both + 8 * each * (world - 1), both)
        work = [
            sum(table[r][e] for r in range(world) for e in range(first * each, (first + 1) * each))
            for first in range(world)
        ]
        right["slowdown", (tuple(map(tuple, table)),)] = max(work) * world / sum(work)
    for world in (1, 2, 5, 64):
        right["layer_messages", (world,)] = (3 * (world - 1), 2 * (world - 1))
    hints = {
        "slowdown": "All wait for the rank with most rows. How many rows would each have if the load were even?",
        "layer_messages": (
            "How many exchanges does a layer make forward, and how many backward? To how many ranks is each?"
        ),
    }
    check_answers(student, right, wrong="is not what will happen", hints=hints)
