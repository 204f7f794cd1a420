"""Checks of 09_mesh, TODOs 1 and 2: axes.

| TODO | achievement                                | evidence                                                        | needs |
|------|--------------------------------------------|-----------------------------------------------------------------|-------|
| 1    | bytes between nodes, the best order        | the count, for drawn boxes, nodes and bytes; the order's bytes, also where a rule is wrong |       |
| 2    | the mesh; neighbours in the pipeline       | meshes on 8, 6 and 5 ranks, wherever "pp" stands                | 1     |
"""  # noqa: E501

import itertools
import math

import torch

from grader.kit import Wrong, expect, hinted, known, meshes, named_apart, nodes, numbers, same_numbers, todo, written

from .common import line_of, shuffled, spoken
from .ranks import AXES, meshes_on_rank, orders_on_rank

# ---------------------------------------------------------------------------------------------------
# Boxes of ranks, as the checks have them


def crossing(sizes, sent, per_node, rings=("dp", "shard", "cp", "tp"), both_ways=("pp",)):
    """Bytes between nodes; the sizes are in the order of the axes."""
    total = 0.0
    for axis in sizes:
        lines = {tuple(line_of(rank, sizes, axis)) for rank in range(math.prod(sizes.values()))}
        for line in lines:
            pairs = list(itertools.pairwise(line))
            if axis in rings and len(line) > 1:
                pairs.append((line[-1], line[0]))
            if axis in both_ways:
                pairs += [(b, a) for a, b in pairs]
            total += sent[axis] * sum(a // per_node != b // per_node for a, b in pairs)
    return total


def all_orders(sizes):
    return [{axis: sizes[axis] for axis in order} for order in itertools.permutations(sizes)]


# ---------------------------------------------------------------------------------------------------
# TODO 1: bytes between nodes


# By what the axes may be sorted, the least outermost, without a look at the lines.
RULES = (
    lambda axis, size, sent: sent,
    lambda axis, size, sent: sent * (2 if axis == "pp" else 1),
    lambda axis, size, sent: sent * size,
    lambda axis, size, sent: size,
    lambda axis, size, sent: -size,
)


def misled(draw, rule):
    """A box and its nodes, drawn such that an order by this rule sends more than it must."""
    while True:
        sizes = dict(zip(draw.sample(AXES, 2), draw.sample([2, 3, 4, 6], 2)))
        sent, node = dict(zip(sizes, numbers(draw, 3, most=99))), draw.choice([2, 3, 4, 6])
        ruled = sorted(sizes, key=lambda axis: rule(axis, sizes[axis], sent[axis]))
        fewest = min(crossing(order, sent, node) for order in all_orders(sizes))
        if crossing({axis: sizes[axis] for axis in ruled}, sent, node) > 1.01 * fewest:
            return sizes, sent, node


@todo(1)
def test_todo1_orders(student):
    draw = student.draw("orders")
    sizes = {"pp": 2, "dp": 2, "tp": 2}  # twice, and another axis sends least
    asked = [(sizes, {"pp": 0.1e9, "dp": 3e9, "tp": 8e9}, 4), (sizes, {"pp": 8e9, "dp": 3e9, "tp": 0.1e9}, 4)]
    boxes = [{"pp": 3, "dp": 2, "tp": 2}, {"dp": 2, "shard": 2, "cp": 2, "tp": 2}, {"dp": 1, "tp": 4, "pp": 4}]
    boxes += [{"pp": 4, "tp": 3, "dp": 2}, {"pp": 1, "dp": 6, "tp": 1}, {"pp": 5, "tp": 1}]
    per_node = [gpus for _, gpus in nodes(draw)] + [draw.randrange(2, 7)]
    for sizes, node in zip(boxes, per_node, strict=True):
        sizes = shuffled(draw, sizes)
        asked.append((sizes, dict(zip(sizes, numbers(draw, 5, "zero", "tie", "large", most=999))), node))
    asked.append(({"dp": 2, "tp": 4}, {"dp": 5.0, "tp": 7.0}, 8))  # all in one node
    sizes = shuffled(draw, {"pp": 3, "dp": 2, "tp": 2})  # twelve ranks, which do not fill whole nodes
    asked.append((sizes, dict(zip(sizes, numbers(draw, 3, most=99))), draw.choice((5, 7))))
    asked += [misled(draw, rule) for rule in RULES]
    questions = []
    for sizes, sent, node in asked:
        orders = all_orders(sizes)
        questions.append((sizes, sent, node, [list(order) for order in draw.sample(orders, min(6, len(orders)))]))
    bests = {
        tuple(min(all_orders(sizes), key=lambda order: crossing(order, sent, node))) for sizes, sent, node in asked
    }
    student.premise(len(bests) > 2, "always the same order")
    placed = [
        ({axis: sizes[axis] for axis in order}, sent, node)
        for sizes, sent, node, orders in questions
        for order in orders
    ]
    counts = [crossing(*one) for one in placed]
    named = {
        "along pp the last stage sends on to the first": [crossing(*one, rings=AXES) for one in placed],
        "pp is taken for a ring like the other axes": [crossing(*one, rings=AXES, both_ways=()) for one in placed],
        "along pp nothing comes back": [crossing(*one, both_ways=()) for one in placed],
        "rings are not closed": [crossing(*one, rings=()) for one in placed],
    }
    named_apart(student, counts, named)
    (seen,) = student.call(orders_on_rank, world=1, group=False, asked=questions).evidence
    for (sizes, sent, node, orders), found in zip(questions, seen, strict=True):
        told = f"{spoken(sizes)}, {node} ranks per node, sending {sent}"
        for order, count in zip(orders, found["bytes"], strict=True):
            placed = {axis: sizes[axis] for axis in order}
            right = crossing(placed, sent, node)
            if not same_numbers(count, right):
                taken = known([count for one in seen for count in one["bytes"]], counts, named)
                look = (
                    "Look at a line of pp alone: which ranks have a next one, and what crosses the boundary between "
                    "two stages?"
                )
                raise Wrong(
                    f"bytes_between_nodes in the order {' × '.join(order)} is wrong for {told}{taken and f': {taken}'}",
                    written(right),
                    written(count),
                    hint=look if "pp" in taken else "",
                )
    check_best(asked, [found["best"] for found in seen])


def check_best(asked, seen):
    """best_order's answers: any order that sends the fewest bytes is right."""
    for (sizes, sent, node), found in zip(asked, seen, strict=True):
        told = f"{spoken(sizes)}, {node} ranks per node, sending {sent}"
        counts = {tuple(order): crossing(order, sent, node) for order in all_orders(sizes)}
        best = tuple(found) if isinstance(found, list) else found
        fewest = min(counts, key=counts.get)
        with hinted("What does bytes_between_nodes say about each order? No rule of thumb covers all lines and nodes."):
            expect(best in counts, f"best_order does not return an order of the axes of {told}", fewest, best)
            expect(
                math.isclose(counts[best], counts[fewest], rel_tol=1e-9),
                f"best_order is not the one that sends the fewest bytes between nodes, for {told}",
                f"{counts[fewest]:,.10g} bytes, as with {' × '.join(fewest)}",
                f"{counts[best]:,.10g} bytes with {' × '.join(best)}",
            )


# ---------------------------------------------------------------------------------------------------
# TODO 2: the mesh, and the neighbours


@todo(2, needs=(1,))
def test_todo2_mesh(student):
    draw = student.draw("meshes")
    traffic = {"pp": 1.0, "dp": 20.0, "shard": 50.0, "cp": 90.0, "tp": 300.0}
    # No model sends so; but here, too, the axis that sends most is closest.
    odd = {"pp": 300.0, "dp": 90.0, "shard": 50.0, "cp": 20.0, "tp": 1.0}
    for world, boxes in student.several(
        (
            # With axes of one rank several orders are equally good.
            (5, [{"pp": 5, "tp": 1}, {"dp": 5, "shard": 1, "tp": 1}]),
            (8, [{"pp": 2, "dp": 2, "tp": 2}, {"dp": 8, "tp": 1, "pp": 1}, *meshes(draw, 8, ("pp", "shard", "cp"))]),
            (6, meshes(draw, 6, ("pp", "dp", "tp"))),
        )
    ):
        wanted, given = [], []
        for sizes in boxes:
            node = draw.choice([2, 4]) if world == 8 else draw.choice([2, 3])
            wanted.append(
                (shuffled(draw, sizes), {axis: (traffic, odd)[len(wanted) % 2][axis] for axis in sizes}, node)
            )
            if "pp" in sizes:
                given += [shuffled(draw, sizes), dict(reversed(sizes.items()))]
        ranks = student.call(meshes_on_rank, world=world, wanted=wanted, given=given).evidence
        for rank, seen in enumerate(ranks):
            for (sizes, sent, node), mesh, first in zip(wanted, seen["meshes"], ranks[0]["meshes"], strict=True):
                told = f"make_mesh for {spoken(sizes)} with {node} ranks per node, sending {sent}"
                expect(mesh["kind"] == "DeviceMesh", f"{told}, is not a mesh", "a DeviceMesh", mesh["kind"], rank)
                shape = torch.tensor(mesh["ranks"]).shape
                found = dict(zip(mesh["names"], shape))
                expect(found == sizes, f"{told}, has the wrong axes", sizes, found, rank)
                expect(
                    torch.tensor(mesh["ranks"]).flatten().tolist() == list(range(world)),
                    f"{told}, does not hold the ranks row by row",
                    list(range(world)),
                    mesh["ranks"],
                    rank,
                )
                expect(
                    mesh["names"] == first["names"],
                    f"{told}, has its axes in a different order on rank {rank} than on rank 0",
                    " × ".join(first["names"]),
                    " × ".join(found),
                    rank,
                    "All ranks make one mesh. Where several orders are equally good, does each rank choose the same?",
                )
                fewest = min(crossing(order, sent, node) for order in all_orders(sizes))
                count = crossing(found, sent, node)
                expect(
                    count <= fewest * (1 + 1e-9),
                    f"{told}, sends more between nodes than another order of the axes",
                    f"{fewest:g} bytes",
                    f"{count:g} bytes in the order {' × '.join(found)}",
                    rank,
                )
            for sizes, found in zip(given, seen["neighbours"], strict=True):
                check_neighbours(sizes, found, rank)


def check_neighbours(sizes, found, rank):
    line = line_of(rank, sizes, "pp")
    stage = line.index(rank)
    right = [line[stage - 1] if stage else None, line[stage + 1] if stage + 1 < len(line) else None]
    expect(
        found == right,
        f"stage_neighbours of rank {rank} on a mesh of {spoken(sizes)} are different ones",
        tuple(right),
        tuple(found) if isinstance(found, list) else found,
        rank,
        hint="Which ranks are on my line along pp, and where on it am I? Is the next one rank + 1?",
    )
