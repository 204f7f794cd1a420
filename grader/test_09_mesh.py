"""Checks and hints of 09_mesh.

| TODO | achievement                                | evidence                                                        | needs |
|------|--------------------------------------------|-----------------------------------------------------------------|-------|
| 1    | bytes between nodes, the best order        | the count, for drawn boxes, nodes and bytes; the order's bytes, also where a rule is wrong |       |
| 2    | the mesh; neighbours in the pipeline       | meshes on 8, 6 and 5 ranks, wherever "pp" stands                | 1     |
| 3    | the samples and tokens of each rank      | samples by rank over two epochs; tokens and their places        |       |
| 4    | each axis's gradients                      | the table; all gradients of a model on 1, 3, 6 and 8 ranks against one process's; bytes sent | 2 |
| 5    | the norm of the whole gradient             | the norm, for drawn gradients in pieces; bytes sent             |       |
"""  # noqa: E501

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F

from grader.kit import (
    as_evidence,
    a_number,
    known,
    named_apart,
    close,
    same_numbers,
    check_calls,
    check_sent,
    check_tensor,
    sent_by,
    written,
    Fault,
    OWN_ZEROS,
    Private,
    Wrong,
    cases,
    collectives,
    expect,
    hinted,
    mark,
    meshes,
    nodes,
    numbers,
    plain,
    todo,
    zeros_in_turn,
)

BUILDS = "the mesh: the order of its axes, which rank reads what, each axis's gradients, one norm over all of them"

AXES = ("pp", "dp", "shard", "cp", "tp")

# ---------------------------------------------------------------------------------------------------
# Boxes of ranks, as the checks have them


def box(sizes):
    """Each rank's place, by axis. The sizes are in the order of the axes."""
    places = itertools.product(*(range(size) for size in sizes.values()))
    return [dict(zip(sizes, place)) for place in places]


def line_of(rank, sizes, axis):
    """The ranks that differ from this one along an axis only, by their place on it."""
    places = box(sizes)
    mine = places[rank]
    return [r for r, other in enumerate(places) if all(other[a] == mine[a] for a in sizes if a != axis)]


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


def spoken(sizes):
    return " × ".join(f"{axis} {size}" for axis, size in sizes.items())


def spoken_mesh(sizes):
    """Without the axes of one rank."""
    longer = spoken({axis: size for axis, size in sizes.items() if size > 1})
    return f"on a mesh of {longer}" if longer else "on a mesh of one rank"


@contextmanager
def on_meshes(todo: list[dict], hint: str) -> Iterator[None]:
    """A fault in here tells on which mesh it came. The rank code marks each case's start and end. `hint`: for a
    pipeline whose ranks wait for each other, where the case has none of its own.
    """
    try:
        yield
    except Fault as fault:
        begun = min(sum(event["e"] == "mark" for event in mine) for mine in fault.events) // 2
        if begun == len(todo):  # it is of no case: all have run to their end
            raise
        sizes = todo[begun]["sizes"]
        fault.message = f"{spoken_mesh(sizes)}: {fault.message}"
        if fault.cause != "crash" and (sizes["pp"] > 1 or "hint" in todo[begun]):
            fault.hint = todo[begun].get("hint", hint)
        raise


def shuffled(draw, sizes):
    """The same axes in another order."""
    return dict(draw.sample(list(sizes.items()), len(sizes)))


def mesh_of(sizes):
    """A mesh of the first ranks of the world, made by the check."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


# ---------------------------------------------------------------------------------------------------
# TODO 1: bytes between nodes


def orders_on_rank(code, rank, world, asked):
    return [
        {
            "bytes": [plain(code.bytes_between_nodes(tuple(order), dict(sizes), sent, node)) for order in orders],
            "best": as_evidence(code.best_order(dict(sizes), sent, node)),
        }
        for sizes, sent, node, orders in asked
    ]


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


@todo(
    1,
    minutes=25,
    why=(
        "Between nodes a GPU has a tenth or less of the bandwidth that it has within one. The same axes in a "
        "different order can send eighty times as much over it; and the results are the same, so it goes "
        "unnoticed."
    ),
    hints=(
        (
            "Draw 2 × 2 × 2 ranks with their numbers, four to a node. How far, in numbers, is a rank from the"
            " next one on each axis? Which of these pairs are on two nodes?"
        ),
        (
            "The stride of an axis is the product of the sizes of all axes inside it (later in the order); a "
            "rank's place on it is rank // stride % size. The node of a rank is rank // per_node. Along pp "
            "the last rank has no next one, and each pair counts twice."
        ),
        (
            "The next rank on a line is some strides away: one forward, or back to the start of the ring. Add"
            " sent[axis] if its node differs. best_order is a min over all permutations, with a key."
        ),
    ),
)
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


def meshes_on_rank(code, rank, world, wanted, given):
    meshes = []
    for sizes, sent, node in wanted:
        mesh = code.make_mesh(dict(sizes), sent, node)
        names, ranks = getattr(mesh, "mesh_dim_names", None), getattr(mesh, "mesh", None)
        meshes.append({"names": plain(list(names or ())), "ranks": plain(ranks), "kind": type(mesh).__name__})
    return {"meshes": meshes, "neighbours": [as_evidence(code.stage_neighbours(mesh_of(sizes))) for sizes in given]}


@todo(
    2,
    minutes=10,
    further=True,
    needs=(1,),
    why=(
        "The mesh is where the order of the axes is decided, once, in one line. And a pipeline that sends to "
        "rank + 1 is right only while its axis is the innermost one, where it should never be."
    ),
    hints=(
        (
            "init_device_mesh takes the sizes in the order of the names. Which rank has the next stage: rank "
            "+ 1? It is the one at the next place of my line."
        ),
        (
            "best_order gives the names; look up each name's size. The line: dist.get_process_group_ranks of "
            'the group of "pp"; my place on it: mesh.get_local_rank("pp"). line[-1] is not next to the '
            "first."
        ),
        (
            "init_device_mesh gets two tuples in the same order. Each neighbour is an entry of the line, "
            "under one condition, or None."
        ),
    ),
)
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


# ---------------------------------------------------------------------------------------------------
# TODO 3: samples and tokens


def samples_on_rank(code, rank, world, todo):
    found = []
    for case in todo:
        mesh = mesh_of(case["sizes"])
        sampler = code.make_sampler(range(case["samples"]), mesh, case["seed"])
        epochs = []
        for epoch in range(2):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            epochs.append([plain(sample) for sample in sampler] if hasattr(sampler, "__iter__") else repr(sampler))
        x, y = words_of(case)
        found.append(
            {
                "place": as_evidence(code.data_place(mesh)),
                "epochs": epochs,
                "tokens": as_evidence(code.my_tokens(x, y, mesh)),
            }
        )
    return found


def words_of(case):
    """A batch (x, y). The words are int32, so that their places cannot have the dtype from them."""
    draw = torch.Generator().manual_seed(case["seed"])
    x, y = torch.randint(99, (2, *case["shape"]), generator=draw, dtype=torch.int32)
    return x, y


@todo(
    3,
    minutes=25,
    why=(
        "If samples are divided among all ranks, the halves of one layer compute on different samples and add up what"
        " does not belong together: no error, and a loss that falls more slowly. Ranks that read the same samples"
        " where they should not do the same work twice. And along cp, a word whose place is counted from the start of"
        " its part is at the wrong place of its sentence: no error, either."
    ),
    hints=(
        (
            "Go through the five axes and ask of each: do two ranks that differ only along it need the same "
            "samples, or different ones?"
        ),
        (
            "The players are the places on dp times the places on shard, if the mesh has these axes; my "
            "number counts through both, as rows and columns. Along cp: equal parts of dimension 1, and "
            "torch.arange for their places in the whole sequence."
        ),
        (
            "In a loop over the two data axes: number = number * length + place, and players *= length. The "
            "sampler takes both; my_tokens slices both tensors in the same way."
        ),
    ),
)
def test_todo3_samples(student):
    draw = student.draw("samples")
    for world, boxes in student.several((
        (8, [{"pp": 2, "dp": 2, "tp": 2}, {"dp": 2, "shard": 2, "tp": 2}, {"shard": 4, "cp": 2}, {"cp": 4, "tp": 2},
             {"pp": 2, "dp": 1, "shard": 2, "cp": 2, "tp": 1}, {"dp": 8}]),
        (6, meshes(draw, 6, AXES, beside=("dp", "shard"))),
        (5, [{"dp": 5}]),
        (1, [{"pp": 1, "dp": 1, "tp": 1}]),
    ), 2):  # fmt: skip
        todo = []
        for sizes in boxes:
            parts = sizes.get("cp", 1)
            shape = [draw.randint(1, 3), parts * draw.randint(2, 5)]
            todo.append(
                {
                    "sizes": shuffled(draw, sizes),
                    "samples": draw.randint(33, 60),
                    "seed": draw.randint(1, 999),
                    "shape": shape,
                }
            )
        ranks = student.call(samples_on_rank, world=world, todo=todo).evidence
        for number_of_case, case in enumerate(todo):
            check_samples(case, [mine[number_of_case] for mine in ranks])


def check_samples(case, ranks):
    sizes = case["sizes"]
    told, places = f"on a mesh of {spoken(sizes)}", box(sizes)
    players = sizes.get("dp", 1) * sizes.get("shard", 1)
    numbers = {}
    for rank, (mine, place) in enumerate(zip(ranks, places, strict=True)):
        at = (place.get("dp", 0), place.get("shard", 0))
        got = mine["place"]
        right = isinstance(got, list) and len(got) == 2 and all(isinstance(part, int) for part in got)
        expect(right, f"data_place {told} is not two whole numbers", f"a number, and {players}", got, rank)
        expect(
            got[1] == players,
            f"data_place {told}: {got[1]} read different samples",
            f"{players}: the places on dp times those on shard",
            got[1],
            rank,
        )
        known = numbers.setdefault(at, got[0])
        expect(
            known == got[0],
            f"data_place {told}: rank {rank} must read the same as the other ranks at its place on dp and shard",
            known,
            got[0],
            rank,
        )
        expect(
            0 <= got[0] < players, f"data_place {told}: there is no such number", f"0 to {players - 1}", got[0], rank
        )
    expect(
        len(set(numbers.values())) == players,
        f"data_place {told}: two places on dp and shard have the same number",
        f"{players} different ones",
        sorted(numbers.values()),
    )
    with hinted(
        "Unless you pass them, a sampler takes rank and world size from the process group. Here data_place gives"
        " both; and seed and epoch make the same permutation on all ranks."
    ):
        check_sampler(case, ranks, told)
    with hinted(
        "Which dimension of a batch are its tokens? Number the tokens of a whole sequence: which numbers has the second"
        " part of two?"
    ):
        check_tokens(case, ranks, told)


def check_sampler(case, ranks, told):
    sizes, n = case["sizes"], case["samples"]
    players, places = players_of(case), box(sizes)
    for epoch in range(2):
        order = torch.randperm(n, generator=torch.Generator().manual_seed(case["seed"] + epoch)).tolist()
        read = {}
        for rank, (mine, place) in enumerate(zip(ranks, places, strict=True)):
            at, got = (place.get("dp", 0), place.get("shard", 0)), mine["epochs"][epoch]
            expect(isinstance(got, list), f"make_sampler {told} gives no samples", "samples", got, rank)
            known = read.setdefault(at, got)
            expect(
                known == got,
                f"{told}, rank {rank} does not read the samples that other ranks at its place on dp and shard read,"
                f" in epoch {epoch}",
                known[:8],
                got[:8],
                rank,
            )
        for rank, mine in enumerate(ranks):
            got = mine["epochs"][epoch]
            expect(
                len(got) == n // players,
                f"{told}, rank {rank} reads {len(got)} of {n} samples",
                n // players,
                len(got),
                rank,
            )
        for step in range(n // players):
            together, due = sorted(mine[step] for mine in read.values()), order[step * players : (step + 1) * players]
            expect(
                together == sorted(due),
                f"{told}, the ranks together do not read the samples of one process, in epoch {epoch}, turn {step}",
                f"{sorted(due)}, each once",
                together,
            )


def check_tokens(case, ranks, told):
    sizes = case["sizes"]
    x, y = words_of(case)
    for rank, (mine, place) in enumerate(zip(ranks, box(sizes), strict=True)):
        width = x.shape[1] // sizes.get("cp", 1)
        begin = place.get("cp", 0) * width
        rights = (x[:, begin : begin + width], y[:, begin : begin + width], torch.arange(begin, begin + width))
        got = mine["tokens"]
        whole = isinstance(got, list) and len(got) == 3 and all(isinstance(part, torch.Tensor) for part in got)
        expect(whole, f"my_tokens {told} does not return three tensors", "words, targets, places", str(got)[:80], rank)
        for name, part, right in zip(("words", "targets", "places"), got, rights, strict=True):
            expect(
                part.dtype in (right.dtype, torch.int64),
                f"my_tokens of words in int32, {told}: the {name} of rank {rank} have a different dtype",
                str(right.dtype).removeprefix("torch."),
                str(part.dtype).removeprefix("torch."),
                rank,
            )
            expect(
                part.shape == right.shape and bool((part == right).all()),
                f"my_tokens of sequences of {x.shape[1]} {told}: the {name} of rank {rank} are wrong",
                f"{tuple(right.shape)}: {right.flatten().tolist()[:8]}",
                f"{tuple(part.shape)}: {part.flatten().tolist()[:8]}",
                rank,
            )


# ---------------------------------------------------------------------------------------------------
# TODO 4: each axis's gradients

# Of float64 sums in another order. In float32 they would not do: where the model is sure of each word, its gradients
# are what rounding has left. A forgotten or doubled sum is half of a gradient and more.
CLOSE = 1e-9


def facts_of(code):
    return [code.Fact(cut, some, tied) for cut, some, tied in itertools.product((True, False), repeat=3)]


def due_on_rank(code, rank, world):
    return [[plain(code.due(axis, fact)) for axis in AXES] for fact in facts_of(code)]


def gradients_on_rank(code, rank, world, todo, words, drawn):
    """The gradients of a model, on each mesh; and then drawn ones."""
    torch.set_default_dtype(torch.float64)  # for the notebook's buffers of what comes from the stage before
    found, meshes = [], []
    for case, mine in zip(todo, words):
        mesh = mesh_of(case["sizes"])
        piece = code.Piece(weights_of(case["model"]), mesh, case["sequence_parallel"])
        ends = code.group_of_ends(mesh)
        meshes.append((mesh, ends))
        x, y = map(torch.tensor, mine)
        code.forward_backward(piece, x.flatten(), y.flatten(), count=case["batch"] // players_of(case) * case["length"])
        before = {name: p.grad.clone() for name, p in piece.parameters.items()}
        mark()
        code.sync_gradients(piece.parameters, piece.facts, mesh, ends)
        mark()
        dist.barrier()
        found.append(
            {
                "gradients": {name: as_evidence(p.grad) for name, p in piece.parameters.items()},
                "facts": {name: list(fact) for name, fact in piece.facts.items()},
                "kept": {name: plain(torch.equal(p.grad, before[name])) for name, p in piece.parameters.items()},
            }
        )
    return {"model": found, "drawn": [drawn_on_rank(code, *mesh, mine) for mesh, mine in zip(meshes, drawn)]}


def drawn_on_rank(code, mesh, ends, mine):
    parameters = {}
    for name, values in mine.items():
        parameters[name] = torch.nn.Parameter(torch.zeros(len(values)))
        parameters[name].grad = torch.tensor(values)
    mark()
    code.sync_gradients(parameters, {name: code.Fact(*KINDS[name]) for name in mine}, mesh, ends)
    mark()
    dist.barrier()
    return {name: as_evidence(p.grad) for name, p in parameters.items()}


# Parameters that are cut, used on some tokens, tied.
KINDS = {
    "cut": (True, False, False),
    "used on some tokens": (False, True, False),
    "used on the same tokens": (False, False, False),
    "tied": (False, False, True),
    "tied and used on some tokens": (False, True, True),
}


def drawn_for(draw, sizes):
    """name -> gradient, for each rank. Each is all zeros on a rank; ranks with the same tokens have the same."""
    world = math.prod(sizes.values())
    ranks = [
        dict(zip(KINDS, zeros_in_turn([torch.tensor(numbers(draw, 3)) for _ in KINDS], rank, world)))
        for rank in range(world)
    ]
    found = []
    for rank, place in enumerate(box(sizes)):
        first = ranks[line_of(rank, sizes, "tp")[0]]
        mine = {name: (ranks[rank] if cut or some else first)[name] for name, (cut, some, _) in KINDS.items()}
        held = place["pp"] in (0, sizes["pp"] - 1)
        found.append({name: mine[name].tolist() for name, (*_, tied) in KINDS.items() if held or not tied})
    return found


def synchronized(drawn, sizes, rank, name):
    """This rank's gradient of the serial run: the mean over samples of a sum over parts."""
    (cut, some, tied), ranks = KINDS[name], {rank}
    along = ["dp", "shard", "cp", *["tp"] * (some and not cut), *["pp"] * tied]
    for axis in along:
        ranks = {other for one in ranks for other in (line_of(one, sizes, axis) if axis in sizes else [one])}
    parts = [torch.tensor(drawn[one][name], dtype=torch.float64) for one in ranks if name in drawn[one]]
    return sum(parts) / (sizes.get("dp", 1) * sizes.get("shard", 1))


def weights_of(model):
    """All weights of the model of the notebook, drawn here, in float64."""
    words, dim, hidden, layers, seed = model
    drawn = partial(torch.randn, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weights = {"table": drawn(words, dim)}
    for layer in range(layers):
        for name, shape, scale in (("norm", (dim,), 1), ("up", (dim, hidden), dim), ("down", (hidden, dim), hidden)):
            weights[f"{layer}.{name}"] = drawn(*shape) / scale**0.5
        weights[f"{layer}.bias"] = drawn(dim)
    return weights


def text_of(case):
    draw = torch.Generator().manual_seed(case["words"])
    text = torch.randint(case["model"][0], (case["batch"], case["length"] + 1), generator=draw)
    return text[:, :-1], text[:, 1:]


def players_of(case):
    return case["sizes"].get("dp", 1) * case["sizes"].get("shard", 1)


def my_part(case, place):
    sizes = case["sizes"]
    row = place.get("dp", 0) * sizes.get("shard", 1) + place.get("shard", 0)
    width = case["length"] // sizes.get("cp", 1)
    begin = place.get("cp", 0) * width
    return [part[row :: players_of(case), begin : begin + width] for part in text_of(case)]


def serial_gradients(case, parts=1):
    """Of one process, in float64; of `parts` equal parts of the tokens, only the first counts."""
    weights = {name: w.requires_grad_() for name, w in weights_of(case["model"]).items()}
    x, y = text_of(case)
    h = weights["table"][x.flatten()]
    for layer in range(case["model"][3]):
        inner = (h * weights[f"{layer}.norm"]) @ weights[f"{layer}.up"]
        h = h + F.gelu(inner) @ weights[f"{layer}.down"] + weights[f"{layer}.bias"]
    counted = len(h) // parts
    F.cross_entropy(h[:counted] @ weights["table"].T, y.flatten()[:counted]).backward()
    return {name: w.grad for name, w in weights.items()}


def must_add_up(student, case):
    """A premise: where each rank has seen a part of the tokens, its gradients do not contain the others'."""
    sizes = case["sizes"]
    parts = math.prod(sizes.get(axis, 1) for axis in ("dp", "shard", "cp")) * sizes["tp"] ** case["sequence_parallel"]
    whole, own = (student.reference(serial_gradients, case=case, parts=count) for count in (1, parts))
    apart = max(abs(own[name].norm() / grad.norm() - 1).item() for name, grad in whole.items())
    student.premise(parts == 1 or apart > 0.05, "gradients that are left as they are")


@todo(
    4,
    in_place=("parameters",),
    minutes=25,
    further=True,
    needs=(2,),
    why=(
        "The first loss is right whatever you do here. A sum that is missing shows as replicas that drift apart, and"
        " one too many as a learning rate that you did not choose; Adam hides both for hundreds of steps."
    ),
    hints=(
        (
            "Take the norm's weight, and go through the axes: which other ranks hold this very weight? Has "
            "that rank seen different samples, different tokens of the same samples, or exactly the same?"
        ),
        (
            "dp and shard: average, always. cp: all hold everything, each has seen its tokens: sum. tp: only where it"
            " is not cut, and each has used it on some tokens. pp: only tied parameters. mesh.get_group(axis) is the"
            " line; for pp it is `ends`, which may be None."
        ),
        (
            "Two loops, over parameters and over the mesh's axes; due(axis, facts[name]) decides. An average "
            "is a sum and a division by the length of the line."
        ),
    ),
)
def test_todo4_gradients(student):
    draw = student.draw("gradients")
    worlds = {
        1: [({"pp": 1, "dp": 1, "cp": 1, "tp": 1}, False)],
        # One axis at a time, so that the verdict names it.
        3: [
            ({"pp": 1, "dp": 3, "tp": 1}, False),
            ({"pp": 1, "shard": 3, "tp": 1}, False),
            ({"pp": 1, "cp": 3, "tp": 1}, False),
            ({"pp": 1, "tp": 3}, False),
            ({"pp": 1, "tp": 3}, True),
            ({"pp": 3, "tp": 1}, False),
        ],
        8: [
            ({"pp": 2, "dp": 2, "tp": 2}, False),
            ({"pp": 2, "dp": 2, "tp": 2}, True),
            ({"pp": 4, "dp": 1, "tp": 2}, True),
            ({"pp": 1, "dp": 2, "cp": 2, "tp": 2}, True),
            ({"pp": 2, "shard": 2, "cp": 2, "tp": 1}, False),
            ({"pp": 1, "dp": 2, "shard": 2, "tp": 2}, False),
        ],
    }
    unequal = meshes(draw, 6, AXES, beside=("dp", "shard"))
    worlds[6] = [({"pp": 1, "tp": 1} | sizes, "tp" in sizes) for sizes in unequal]
    todos = {world: [] for world in worlds}
    for world, shapes in worlds.items():
        for sizes, sequence_parallel in student.several(shapes):
            layers = sizes["pp"] * draw.choice([1, 2])
            dim, hidden = draw.randint(3, 7), sizes["tp"] * draw.randint(2, 5)
            players = sizes.get("dp", 1) * sizes.get("shard", 1)
            length = sizes.get("cp", 1) * sizes["tp"] * draw.randint(2, 3)
            case = {"sizes": shuffled(draw, sizes), "sequence_parallel": sequence_parallel}
            case |= {"model": [draw.randint(9, 15), dim, hidden, layers, draw.randint(1, 999)]}
            case |= {"batch": players * draw.randint(1, 2), "length": length, "words": draw.randrange(1 << 40)}
            must_add_up(student, case)
            todos[world].append(case | {"drawn": drawn_for(draw, case["sizes"])})
    (seen,) = student.call(due_on_rank, world=1, group=False).evidence
    for world, of_world in todos.items():
        again = [{"sizes": case["sizes"], "hint": OWN_ZEROS} for case in of_world]
        with on_meshes(
            [*of_world, *again],
            "Along pp, only a tied parameter is on two stages, the two ends: `ends` is their group, and None for a"
            " stage between them.",
        ):
            told = [{name: case[name] for name in case if name not in ("words", "drawn")} for case in of_world]
            parts = [
                [[x.tolist() for x in my_part(case, box(case["sizes"])[rank])] for case in of_world]
                for rank in range(world)
            ]
            drawn = Private([[case["drawn"][rank] for case in of_world] for rank in range(world)])
            run = student.call(gradients_on_rank, world=world, todo=told, words=Private(parts), drawn=drawn)
        found = cases(run.events)
        for number_of_case, case in enumerate(of_world):
            serial, ranks = (
                student.reference(serial_gradients, case=case),
                [mine["model"][number_of_case] for mine in run.evidence],
            )
            check_gradients(serial, case, ranks, found[2 * number_of_case])
        for number_of_case, case in enumerate(of_world):
            check_drawn(case, [mine["drawn"][number_of_case] for mine in run.evidence])
    for fact, found in zip(itertools.product((True, False), repeat=3), seen, strict=True):
        cut, some, tied = fact
        for axis, got in zip(AXES, found, strict=True):
            right = "average" if axis in ("dp", "shard") else "leave"
            if axis == "cp" or (axis == "tp" and some and not cut) or (axis == "pp" and tied):
                right = "sum"
            told = ", ".join(f"{name} {value}" for name, value in zip(("cut", "some", "tied"), fact))
            expect(got == right, f'due("{axis}", …) of a parameter with {told} is wrong', right, got)


def check_drawn(case, ranks):
    on = f"{spoken_mesh(case['sizes'])}, where each gradient is all zeros on one rank"
    for rank, mine in enumerate(ranks):
        for name in case["drawn"][rank]:
            told = f"{on}: rank {rank}'s gradient of a parameter that is {name}"
            check_tensor(told, mine[name], synchronized(case["drawn"], case["sizes"], rank, name), CLOSE, rank)


def check_gradients(serial, case, ranks, events):
    sizes = case["sizes"]
    parallel = "with" if case["sequence_parallel"] else "without"
    told = f"{spoken_mesh(sizes)}, {parallel} sequence parallel"
    for rank, (mine, place) in enumerate(zip(ranks, box(sizes), strict=True)):
        most = least = 0.0
        calls = 0
        for name, got in mine["gradients"].items():
            cut, some, tied = mine["facts"][name]
            right, parts = serial[name], 0.0
            if cut:
                parts = torch.stack(right.chunk(sizes["tp"], dim=1 if name.endswith("up") else 0))
                right = parts[place["tp"]]
            whole = isinstance(got, torch.Tensor) and got.shape == right.shape
            expect(whole, f"{told}: {name} has no gradient on rank {rank}", f"of shape {tuple(right.shape)}", got, rank)
            difference = (got.double() - right).norm().item()
            if difference > CLOSE * serial[name].norm().item():  # of the whole weight: a part of it may vanish
                what = "cut" if cut else "whole, used on some tokens" if some else "whole"
                wrongs = {"it is left as this rank had it": got} if mine["kept"][name] else {}
                wrongs |= taken_for(right, parts, sizes, cut, some, tied)
                named = {words: [wrong] for words, wrong in wrongs.items()}
                done = known([got], [right], named, partial(close, rel=CLOSE))
                raise Wrong(
                    f"{told}: the gradient of {name} ({what}{', tied' if tied else ''}) on rank {rank} differs from"
                    f" one process's: {ratio(got, right)}{done and f': {done}'}",
                    f"norm {right.norm():.5g}",
                    f"norm {got.double().norm():.5g}",
                    rank,
                )
            lengths = [sizes.get(axis, 1) for axis in ("dp", "shard", "cp")]
            lengths += [sizes["tp"] if some and not cut else 1, 2 if tied and sizes["pp"] > 1 else 1]
            most += sum(2 * (length - 1) / length * right.nbytes for length in lengths)
            least += right.nbytes / 2 * (max(lengths) > 1)  # half of what comes from any one of the others
            calls += 2 * sum(length > 1 for length in lengths)  # a reduce-scatter and an all-gather are an all-reduce
        made = [call for call in collectives(events) if call.rank == rank]
        check_calls(f"{told}:", made, calls, "for gradients that each need one along each axis at most")
        check_sent(f"{told}, the gradients", events, most, least, "more than needed", [rank])


def taken_for(right, parts, sizes, cut, some, tied):
    """Wrong gradients of a parameter that differ along one axis, by name; `parts`: tp's, where it is cut."""
    wrongs = {}
    for axis in ("dp", "shard"):
        wrongs[f"added up along {axis}, and not averaged"] = right * sizes.get(axis, 1)
    wrongs["averaged along cp, where parts add up"] = right / sizes.get("cp", 1)
    if cut:
        wrongs["added up along tp, though each rank has a different part"] = parts.sum(0)
    elif some:
        wrongs["averaged along tp, where parts add up"] = right / sizes["tp"]
    else:
        wrongs["added up along tp, where all have the same: it counts once for each rank of tp"] = right * sizes["tp"]
    if tied:
        wrongs["averaged over the two ends, whose parts add up"] = right / 2
        wrongs["divided by the stages, where the parts of the two ends add up"] = right / sizes["pp"]
    return wrongs


def ratio(got, right):
    """How a gradient relates to the right one, in words."""
    times = (got.double() * right).sum().item() / right.square().sum().item()
    off = (got.double() - times * right).norm().item()
    return f"{times:.3g} times the right one" if off <= 1e-3 * right.norm().item() else "another direction"


# ---------------------------------------------------------------------------------------------------
# TODO 5: the norm of the whole gradient


def norm_on_rank(code, rank, world, todo, pieces):
    found = []
    for case, mine in zip(todo, pieces):
        mesh = mesh_of(case["sizes"])
        parameters, facts = {}, {}
        for name, cut, some, tied, values in mine:
            parameters[name] = torch.nn.Parameter(torch.zeros(len(values), dtype=getattr(torch, case["dtype"])))
            parameters[name].grad = torch.tensor(values, dtype=getattr(torch, case["dtype"]))
            facts[name] = code.Fact(cut, some, tied)
        before = {name: p.grad.clone() for name, p in parameters.items()}
        mark()
        norm = code.gradient_norm(parameters, facts, mesh)
        mark()
        kept = all(p.grad is not None and torch.equal(p.grad, before[name]) for name, p in parameters.items())
        found.append({"norm": as_evidence(norm), "kept": kept})
    return found


NAMES = ("table", "up", "norm", "bias")


def pieces_of(case, place):
    """(name, cut, some, tied, gradient) of what the rank at this place holds, the gradients synchronized."""
    stages, parts = case["sizes"]["pp"], case["sizes"]["tp"]
    found = []
    for name, cut, some, tied, stage, values in case["tensors"]:
        if place["pp"] == stage or (tied and place["pp"] in (0, stages - 1)):
            part = len(values) // parts
            mine = values[place["tp"] * part : (place["tp"] + 1) * part] if cut else values
            found.append((name, cut, some, tied, mine))
    return found


@todo(
    5,
    minutes=15,
    further=True,
    why=(
        "Clipping divides the whole gradient by its norm. If a rank counts only what it holds, each divides "
        "by a different number, and the parts no longer belong together; if it also counts what other ranks "
        "hold, all steps are too short."
    ),
    hints=(
        (
            "For each parameter: which ranks hold different numbers of it, and which the same? Squares are "
            "summed only along axes with different numbers."
        ),
        (
            "Along dp, shard and cp all ranks hold the same gradients by now. Along tp, squares of cut "
            "parameters are summed; along pp everything, but the tied table is on two stages. So keep two "
            "sums, and all-reduce one over tp, then both over pp."
        ),
        (
            "Both sums fit into one float64 tensor of two numbers: a slice of it is all-reduced over tp, the "
            "whole over pp. Skip a tied parameter on all stages but one."
        ),
    ),
)
def test_todo5_norm(student):
    draw = student.draw("norm")
    for world, boxes in student.several((
        (3, [{"pp": 1, "dp": 3, "tp": 1}, {"pp": 1, "tp": 3}, {"pp": 3, "tp": 1}, {"pp": 1, "cp": 3, "tp": 1}]),
        (8, [{"pp": 2, "dp": 2, "tp": 2}, {"pp": 4, "tp": 2}, {"pp": 2, "tp": 4},
             {"pp": 1, "shard": 2, "cp": 2, "tp": 2}]),
        (6, [{"pp": 3, "dp": 2, "tp": 1}]),
        (1, [{"pp": 1, "tp": 1}]),
    ), 2):  # fmt: skip
        todo = []
        for sizes in boxes:
            tensors, turn = [], draw.randrange(1, 4)  # the facts say what a parameter is, its name says something else
            called = dict(zip(NAMES, NAMES[turn:] + NAMES[:turn]))
            for stage in range(sizes["pp"]):
                # With many, a message for each parameter does not fit into the budget.
                ups = [("up", True, False), *((f"up_{i}", True, False) for i in range(50 * (sizes["tp"] == 4)))]
                for name, cut, some in (*ups, ("norm", False, True), ("bias", False, False)):
                    if stage == 1 and name.startswith("up") != (len(todo) % 2 == 0):
                        continue  # this stage holds nothing that is cut, or nothing else
                    values = [draw.gauss(0, 1) for _ in range(sizes["tp"] * draw.randint(2, 4))]
                    tensors.append((f"{stage}.{called.get(name, name)}", cut, some, False, stage, values))
            tensors.append((called["table"], False, True, True, 0, [draw.gauss(0, 2) for _ in range(5)]))
            # in float64 p.grad.double() is p.grad itself, and squaring it in place changes the gradient
            dtype = {1: "bfloat16", 2: "float64"}.get(len(todo), "float32") if world == 8 else "float32"
            todo.append({"sizes": shuffled(draw, sizes), "dtype": dtype, "tensors": tensors})
        with on_meshes(
            todo,
            "A stage may hold nothing that is cut, or nothing else, or no table. Do all ranks make the same calls, with"
            " as many numbers?",
        ):
            told = [{name: case[name] for name in ("sizes", "dtype")} for case in todo]
            parts = [[pieces_of(case, box(case["sizes"])[rank]) for case in todo] for rank in range(world)]
            run = student.call(norm_on_rank, world=world, todo=told, pieces=Private(parts))
        events = cases(run.events)
        for number_of_case, case in enumerate(todo):
            told = f"gradient_norm {spoken_mesh(case['sizes'])}, gradients in {case['dtype']}"
            right, close = norm_of(case, case["tensors"]), partial(math.isclose, rel_tol=1e-5)
            for rank, mine in enumerate(run.evidence):
                got = a_number(mine[number_of_case]["norm"])
                expect(
                    got is not None,
                    f"{told}: is not a number on rank {rank}",
                    f"{right:.6g}",
                    mine[number_of_case]["norm"],
                    rank,
                )
                # Sums in float32 differ by 1e-7 of the result; those in bfloat16, of 8 bits, by 1e-2 and more.
                if not close(got, right):
                    done = mistake_in(case, [seen[number_of_case]["norm"] for seen in run.evidence])
                    raise Wrong(
                        f"{told}: is wrong on rank {rank}{done and f': {done}'}", f"{right:.6g}", f"{got:.6g}", rank
                    )
                expect(
                    mine[number_of_case]["kept"], f"{told}: changes a gradient", "the same gradients", "others", rank
                )
            seen = events[2 * number_of_case]
            check_sent(told, seen, 400, 0, "a few numbers are enough")
            alone = case["sizes"]["pp"] * case["sizes"]["tp"] == 1
            sent = sum(sent_by(mine, rank) for rank, mine in enumerate(seen))
            expect(alone or sent > 0, f"{told}: no rank sends anything, so none can know the others' part", "> 0", sent)


def mistake_in(case, norms):
    """The mistake that explains the norms that all ranks have found; "" if there is none."""
    wrongs = [wrong_norms(case, rank) for rank in range(len(norms))]
    named = {words: [wrong[words] for wrong in wrongs] for words in wrongs[0]}
    right = [norm_of(case, case["tensors"])] * len(norms)
    return known([a_number(norm) or 0.0 for norm in norms], right, named, partial(math.isclose, rel_tol=1e-5))


def norm_of(case, tensors, count=lambda cut, tied: 1):
    """The norm of these gradients, the squares of each counted so many times."""
    squares = 0.0
    for _, cut, _, tied, *_, values in tensors:
        gradient = torch.tensor(values, dtype=getattr(torch, case["dtype"])).double()
        squares += count(cut, tied) * gradient.square().sum().item()
    return math.sqrt(squares)


def wrong_norms(case, rank):
    """By name, what this rank may find in place of the norm."""
    sizes, tensors = case["sizes"], case["tensors"]
    tp, ends = sizes["tp"], min(2, sizes["pp"])
    counts = {
        "the tied table is counted on both ends": lambda cut, tied: ends if tied else 1,
        "the tied table is not counted": lambda cut, tied: not tied,
        "a whole parameter is counted once for each rank of tp": lambda cut, tied: 1 if cut else tp,
    }
    for axis in ("dp", "shard", "cp"):
        size = sizes.get(axis, 1)
        counts[f"squares are added up along {axis}, whose ranks hold the same"] = lambda cut, tied, size=size: size
    norms = [norm_of(case, [tensor]) for tensor in tensors]
    return {
        **{words: norm_of(case, tensors, count) for words, count in counts.items()},
        "that is what the rank itself holds": norm_of(case, pieces_of(case, box(sizes)[rank])),
        "that is its square": norm_of(case, tensors) ** 2,
        "norms are added up, and not their squares": sum(norms),
    }
