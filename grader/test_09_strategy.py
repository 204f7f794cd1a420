"""Checks and hints of 09_strategy.

| TODO | achievement                                | evidence                                                        | needs |
|------|--------------------------------------------|-----------------------------------------------------------------|-------|
| 1    | bytes between nodes, the best order        | the count, for drawn boxes, nodes and bytes; the order's bytes, also where a rule is wrong |       |
| 2    | the mesh; neighbours in the pipeline       | meshes on 8, 6 and 5 ranks, wherever "pp" stands                | 1     |
| 3    | who reads which samples, which tokens      | samples by rank over two epochs; tokens and their places        |       |
| 4    | each axis's gradients                      | the table; all gradients of a model on 1, 3, 6 and 8 ranks beside those of one process; bytes sent | 2 |
| 5    | the norm of the whole gradient             | the norm, for drawn gradients in pieces; bytes sent             |       |
| 6    | memory by kind                             | the formulas, for drawn models and plans                        |       |
| 7    | time of a step                             | the formulas, for drawn models, plans and machines              | 6     |
| 8    | what cannot be; the best plan              | plans with one thing wrong each; the time of the choice         | 6, 7  |
| 9    | when to stop                               | the formulas                                                    |       |
| 10   | frameworks                                 | the two tables                                                  |       |

TODOs 6 to 8 have references of their own here: the planner's formulas are finer (utils/costs), and what it gives is
not asked for.
"""  # noqa: E501

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from functools import lru_cache, partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from grader.kit import Fault, Wrong, cases, collectives, expect, hinted, mark, plain, premise, todo
from utils.plan import Link, Machine, Model, Plan

BUILDS = "the mesh, who reads what, each axis's gradients; memory and time of a plan, and the best plan for a case"

AXES = ("pp", "dp", "shard", "cp", "tp")

# ---------------------------------------------------------------------------------------------------
# Boxes of ranks, as the checks have them


def box(sizes):
    """Each rank's place, by axis. The sizes stand in the order of the axes."""
    places = itertools.product(*(range(size) for size in sizes.values()))
    return [dict(zip(sizes, place)) for place in places]


def line_of(rank, sizes, axis):
    """The ranks that differ from this one along an axis only, by their place on it."""
    places = box(sizes)
    mine = places[rank]
    return [r for r, other in enumerate(places) if all(other[a] == mine[a] for a in sizes if a != axis)]


def crossing(sizes, sent, per_node, rings=("dp", "shard", "cp", "tp"), both_ways=("pp",)):
    """Bytes between nodes; the sizes stand in the order of the axes."""
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
    """A fault in here tells on which mesh it came. The rank code marks each case's begin and end. `hint`: for a
    pipeline whose ranks wait for one another.
    """
    try:
        yield
    except Fault as fault:
        begun = min(sum(event["e"] == "mark" for event in mine) for mine in fault.events) // 2
        sizes = todo[min(begun, len(todo) - 1)]["sizes"]
        fault.message = f"{spoken_mesh(sizes)}: {fault.message}"
        if fault.cause != "crash" and sizes["pp"] > 1:
            fault.hint = hint
        raise


def shuffled(draw, sizes):
    """The same axes in another order."""
    return dict(draw.sample(list(sizes.items()), len(sizes)))


def mesh_of(sizes):
    """A mesh of the first ranks of the world, made by the check."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def said(value):
    """What the student's function returned, as evidence can hold it."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {str(key): said(part) for key, part in value.items()}
    return [said(part) for part in value] if isinstance(value, (list, tuple)) else plain(value)


def number(value):
    """A number that came as such or as a tensor of one; None for anything else."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def same(got, right):
    """To rounding errors of float64: these are formulas."""
    if isinstance(right, dict):
        return isinstance(got, dict) and got.keys() == right.keys() and all(same(got[k], right[k]) for k in right)
    if isinstance(right, (tuple, list)):
        return isinstance(got, list) and len(got) == len(right) and all(map(same, got, right))
    found = number(got)
    return found is not None and math.isclose(found, right, rel_tol=1e-9, abs_tol=1e-15)


def known(got: Any, wrongs: dict[str, Any], close: Callable = same) -> str:
    """What was done, where the answer is one of these wrong values, which go by name; else nothing."""
    return next((f": {words}" for words, wrong in wrongs.items() if close(got, wrong)), "")


def moved(events):
    """Bytes that each rank sends in these events."""
    totals = [0.0] * len(events)
    for call in collectives(events):
        totals[call.rank] += call.sent
    for rank, mine in enumerate(events):
        totals[rank] += sum(event["bytes"] for event in mine if event["e"] == "op" and event["op"] == "send")
    return totals


# ---------------------------------------------------------------------------------------------------
# TODO 1: bytes between nodes


def orders_on_rank(code, rank, world, asked):
    return [
        {
            "bytes": [plain(code.bytes_between_nodes(tuple(order), dict(sizes), sent, node)) for order in orders],
            "best": said(code.best_order(dict(sizes), sent, node)),
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
        sent, node = {axis: float(draw.randint(1, 99)) for axis in sizes}, draw.choice([2, 3, 4, 6])
        ruled = sorted(sizes, key=lambda axis: rule(axis, sizes[axis], sent[axis]))
        fewest = min(crossing(order, sent, node) for order in all_orders(sizes))
        if crossing({axis: sizes[axis] for axis in ruled}, sent, node) > 1.01 * fewest:
            return sizes, sent, node


@todo(
    1,
    minutes=25,
    why=(
        "Between nodes a GPU has a tenth or less of the bandwidth that it has within one. The same axes in another"
        " order can send eighty times as much over it; and nobody notices, for the results are the same."
    ),
    hints=(
        (
            "Draw 2 × 2 × 2 ranks with their numbers, four to a node. How far, in numbers, is a rank from the next one"
            " on each axis? Which of these pairs are in two nodes?"
        ),
        (
            "The stride of an axis is the product of the sizes of all axes inside it (later in the order); a rank's"
            " place on it is rank // stride % size. The node of a rank is rank // per_node. Along pp the last has no"
            " next one, and each pair counts twice."
        ),
        (
            "following = rank + ((place + 1) % size - place) * stride; if following // per_node != rank // per_node,"
            " add sent[axis]. best_order: min(itertools.permutations(sizes), key=…)."
        ),
    ),
)
def test_todo1_orders(student):
    draw = student.draw("orders")
    asked = [({"pp": 2, "dp": 2, "tp": 2}, {"pp": 0.1e9, "dp": 3e9, "tp": 8e9}, 4)]
    boxes = [{"pp": 3, "dp": 2, "tp": 2}, {"dp": 2, "shard": 2, "cp": 2, "tp": 2}, {"dp": 1, "tp": 4, "pp": 4}]
    boxes += [{"pp": 4, "tp": 3, "dp": 2}, {"pp": 1, "dp": 6, "tp": 1}, {"pp": 5, "tp": 1}]
    for sizes in boxes:
        sizes = shuffled(draw, sizes)
        asked.append((sizes, {axis: float(draw.randint(1, 999)) for axis in sizes}, draw.choice([2, 3, 4, 6])))
    asked.append(({"dp": 2, "tp": 4}, {"dp": 5.0, "tp": 7.0}, 8))  # all in one node
    asked += [misled(draw, rule) for rule in RULES]
    questions = []
    for sizes, sent, node in asked:
        orders = all_orders(sizes)
        questions.append((sizes, sent, node, [list(order) for order in draw.sample(orders, min(6, len(orders)))]))
    (seen,) = student.call(orders_on_rank, world=1, group=False, asked=questions).evidence
    for (sizes, sent, node, orders), found in zip(questions, seen, strict=True):
        told = f"{spoken(sizes)}, {node} ranks a node, sending {sent}"
        for order, count in zip(orders, found["bytes"], strict=True):
            placed = {axis: sizes[axis] for axis in order}
            right = crossing(placed, sent, node)
            if not same(count, right):
                ends = {
                    "along pp the last stage sends on to the first": crossing(placed, sent, node, rings=AXES),
                    "pp is taken for a ring like the others": crossing(placed, sent, node, rings=AXES, both_ways=()),
                    "along pp nothing comes back": crossing(placed, sent, node, both_ways=()),
                }
                taken = known(count, ends | {"rings are not closed": crossing(placed, sent, node, rings=())})
                look = "Look at a line of pp by itself: who has a next one, and what goes over a border of two stages?"
                raise Wrong(
                    f"bytes_between_nodes in the order {' × '.join(order)} is wrong for {told}{taken}",
                    written(right),
                    written(count),
                    hint=look if "pp" in taken else "",
                )
    for (sizes, sent, node, _), found in zip(questions, seen, strict=True):
        told = f"{spoken(sizes)}, {node} ranks a node, sending {sent}"
        counts = {tuple(order): crossing(order, sent, node) for order in all_orders(sizes)}
        best = tuple(found["best"]) if isinstance(found["best"], list) else found["best"]
        fewest = min(counts, key=counts.get)
        with hinted("What does bytes_between_nodes say of each order? No rule knows all lines and all nodes."):
            expect(best in counts, f"best_order is no order of the axes of {told}", fewest, best)
            expect(
                math.isclose(counts[best], counts[fewest], rel_tol=1e-9),
                f"best_order is not the one that sends the fewest bytes between nodes, for {told}",
                f"{counts[fewest]:,.10g} bytes, as with {' × '.join(fewest)}",
                f"{counts[best]:,.10g} bytes with {' × '.join(best)}",
            )
    premise(len({tuple(found["best"]) for found in seen}) > 2, "always the same order")


# ---------------------------------------------------------------------------------------------------
# TODO 2: the mesh, and the neighbours


def meshes_on_rank(code, rank, world, wanted, given):
    meshes = []
    for sizes, sent, node in wanted:
        mesh = code.make_mesh(dict(sizes), sent, node)
        names, ranks = getattr(mesh, "mesh_dim_names", None), getattr(mesh, "mesh", None)
        meshes.append({"names": plain(list(names or ())), "ranks": plain(ranks), "kind": type(mesh).__name__})
    return {"meshes": meshes, "neighbours": [said(code.stage_neighbours(mesh_of(sizes))) for sizes in given]}


@todo(
    2,
    minutes=10,
    further=True,
    needs=(1,),
    why=(
        "The mesh is where the order of the axes is decided, once, in one line. And a pipeline that sends to rank + 1"
        " is right only as long as its axis is the innermost one, where it should never be."
    ),
    hints=(
        (
            "The sizes must be given to init_device_mesh in the order of the names. Who is the next stage's rank: is it"
            " rank + 1? The one at the next place of my line."
        ),
        (
            "best_order gives the names; look up each name's size. The line: dist.get_process_group_ranks of the"
            ' group of "pp"; my place on it: mesh.get_local_rank("pp"). line[-1] is no neighbour of the first.'
        ),
        (
            "init_device_mesh('cpu', tuple(sizes[axis] for axis in order), mesh_dim_names=order). line[stage - 1] if"
            " stage > 0, line[stage + 1] if there is one."
        ),
    ),
)
def test_todo2_mesh(student):
    draw = student.draw("meshes")
    traffic = {"pp": 1.0, "dp": 20.0, "shard": 50.0, "cp": 90.0, "tp": 300.0}
    odd = {"pp": 300.0, "dp": 90.0, "shard": 50.0, "cp": 20.0, "tp": 1.0}  # no model; but who sends most sits closest
    for world, boxes in (
        (8, [{"pp": 2, "dp": 2, "tp": 2}, {"dp": 2, "cp": 1, "tp": 4}, {"pp": 4, "shard": 2},
             {"dp": 8, "tp": 1, "pp": 1}]),
        (6, [{"tp": 2, "pp": 3}, {"pp": 2, "dp": 3}]),
        (5, [{"pp": 5, "tp": 1}]),
    ):  # fmt: skip
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
            for (sizes, sent, node), mesh in zip(wanted, seen["meshes"], strict=True):
                told = f"make_mesh for {spoken(sizes)} with {node} ranks a node, sending {sent}"
                expect(mesh["kind"] == "DeviceMesh", f"{told}, is no mesh", "a DeviceMesh", mesh["kind"], rank)
                shape = torch.tensor(mesh["ranks"]).shape
                found = dict(zip(mesh["names"], shape))
                expect(found == sizes, f"{told}, has other axes", sizes, found, rank)
                expect(
                    torch.tensor(mesh["ranks"]).flatten().tolist() == list(range(world)),
                    f"{told}, does not hold the ranks row by row",
                    list(range(world)),
                    mesh["ranks"],
                    rank,
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
                line = line_of(rank, sizes, "pp")
                stage = line.index(rank)
                right = [line[stage - 1] if stage else None, line[stage + 1] if stage + 1 < len(line) else None]
                expect(
                    found == right,
                    f"stage_neighbours of rank {rank} on a mesh of {spoken(sizes)} are others",
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
            {"place": said(code.data_place(mesh)), "epochs": epochs, "tokens": said(code.my_tokens(x, y, mesh))}
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
        "Dealt out over all ranks, the halves of one layer compute on different samples and add up what does not belong"
        " together: no error, and a loss that falls more slowly. Ranks that read the same where they should not do"
        " the same work twice. And along cp a word whose place is counted from its part's begin is at another place of"
        " its sentence: no error, either."
    ),
    hints=(
        (
            "Go through the five axes and ask of each: do two ranks that differ along it only need the same samples,"
            " or other ones?"
        ),
        (
            "Players are the places on dp times those on shard, as far as the mesh has these axes; my number counts"
            " through both, as rows and columns. Along cp: equal parts of dimension 1, and"
            " torch.arange(begin, end) for their places in the whole sequence."
        ),
        (
            'number = number * mesh[axis].size() + mesh.get_local_rank(axis) for axis in ("dp", "shard") if it is in'
            " mesh.mesh_dim_names. DistributedSampler(data, players, number, shuffle=True, seed=seed, drop_last=True)."
            " x[:, part * t : (part + 1) * t]."
        ),
    ),
)
def test_todo3_samples(student):
    draw = student.draw("samples")
    for world, boxes in (
        (8, [{"pp": 2, "dp": 2, "tp": 2}, {"dp": 2, "shard": 2, "tp": 2}, {"shard": 4, "cp": 2}, {"cp": 4, "tp": 2},
             {"pp": 2, "dp": 1, "shard": 2, "cp": 2, "tp": 1}, {"dp": 8}]),
        (6, [{"dp": 3, "tp": 2}, {"cp": 3, "shard": 2}, {"dp": 3, "shard": 2}, {"dp": 2, "shard": 3}]),
        (5, [{"dp": 5}]),
        (1, [{"pp": 1, "dp": 1, "tp": 1}]),
    ):  # fmt: skip
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
            f"data_place {told}: rank {rank} must read the same as the others at its place on dp and shard",
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
        "A sampler asks the process group how many play, and who I am, unless it is told. Here data_place knows; and"
        " seed and epoch make the same permutation for all."
    ):
        check_sampler(case, ranks, told)
    with hinted(
        "Which dimension of a batch are its tokens? Number those of a whole sequence: which numbers has the second part"
        " of two?"
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
                f"{told}, rank {rank} does not read the samples that others at its place on dp and shard read,"
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
                f"my_tokens of words in int32, {told}: the {name} of rank {rank} have another dtype",
                str(right.dtype).removeprefix("torch."),
                str(part.dtype).removeprefix("torch."),
                rank,
            )
            expect(
                part.shape == right.shape and bool((part == right).all()),
                f"my_tokens of sequences of {x.shape[1]} {told}: the {name} of rank {rank} are others",
                f"{tuple(right.shape)}: {right.flatten().tolist()[:8]}",
                f"{tuple(part.shape)}: {part.flatten().tolist()[:8]}",
                rank,
            )


# ---------------------------------------------------------------------------------------------------
# TODO 4: each axis's gradients

# float32 sums in another order: gradients were 4e-7 of their norm apart at most; a forgotten or doubled sum is 0.5 and
# more, since it is a whole part of them.
CLOSE = 1e-4


def facts_of(code):
    return [code.Fact(cut, some, tied) for cut, some, tied in itertools.product((True, False), repeat=3)]


def due_on_rank(code, rank, world):
    return [[plain(code.due(axis, fact)) for axis in AXES] for fact in facts_of(code)]


def gradients_on_rank(code, rank, world, todo):
    found = []
    for case in todo:
        mesh = mesh_of(case["sizes"])
        piece = code.Piece(weights_of(case["model"]), mesh, case["sequence_parallel"])
        ends = code.group_of_ends(mesh)
        place = box(case["sizes"])[rank]
        x, y = my_part(case, place)
        code.forward_backward(piece, x.flatten(), y.flatten(), count=case["batch"] // players_of(case) * case["length"])
        before = {name: p.grad.clone() for name, p in piece.parameters.items()}
        mark()
        code.sync_gradients(piece.parameters, piece.facts, mesh, ends)
        mark()
        dist.barrier()
        found.append(
            {
                "gradients": {name: said(p.grad) for name, p in piece.parameters.items()},
                "facts": {name: list(fact) for name, fact in piece.facts.items()},
                "before": {name: grad.norm().item() for name, grad in before.items()},
                "kept": {name: plain(torch.equal(p.grad, before[name])) for name, p in piece.parameters.items()},
            }
        )
    return found


def weights_of(model):
    """All weights of the model of the notebook, drawn here."""
    words, dim, hidden, layers, seed = model
    draw = torch.Generator().manual_seed(seed)
    weights = {"table": torch.randn(words, dim, generator=draw)}
    for layer in range(layers):
        for name, shape, scale in (("norm", (dim,), 1), ("up", (dim, hidden), dim), ("down", (hidden, dim), hidden)):
            weights[f"{layer}.{name}"] = torch.randn(*shape, generator=draw) / scale**0.5
        weights[f"{layer}.bias"] = torch.randn(dim, generator=draw)
    return weights


def text_of(case):
    draw = torch.Generator().manual_seed(case["model"][-1] + 1)
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


def serial_gradients(case):
    """Of one process, in float64."""
    weights = {name: w.double().requires_grad_() for name, w in weights_of(case["model"]).items()}
    x, y = text_of(case)
    h = weights["table"][x.flatten()]
    for layer in range(case["model"][3]):
        inner = (h * weights[f"{layer}.norm"]) @ weights[f"{layer}.up"]
        h = h + F.gelu(inner) @ weights[f"{layer}.down"] + weights[f"{layer}.bias"]
    F.cross_entropy(h @ weights["table"].T, y.flatten()).backward()
    return {name: w.grad for name, w in weights.items()}


@todo(
    4,
    minutes=25,
    further=True,
    needs=(2,),
    why=(
        "The first loss is right whatever you do here. What is forgotten shows as replicas that drift apart, and what"
        " is added up once too often as a learning rate that nobody chose; Adam hides both for hundreds of steps."
    ),
    hints=(
        (
            "Take the norm's weight, and go through the axes: who else holds this very weight? Has that rank seen other"
            " samples, other tokens of the same samples, or exactly the same?"
        ),
        (
            "dp and shard: average, always. cp: all hold everything, each has seen its tokens: sum. tp: only where it"
            " is not cut, and each has used it on some tokens. pp: only what is tied. mesh.get_group(axis) is the line;"
            " for pp it is `ends`, which may be None."
        ),
        (
            "For each parameter and each axis of mesh.mesh_dim_names: what = due(axis, facts[name]); if it is not"
            ' "leave" and there is a group, dist.all_reduce(parameter.grad, group=group); if it is "average",'
            " parameter.grad /= mesh[axis].size()."
        ),
    ),
)
def test_todo4_gradients(student):
    (seen,) = student.call(due_on_rank, world=1, group=False).evidence
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
        6: [({"pp": 3, "dp": 1, "tp": 2}, True), ({"pp": 2, "dp": 3, "tp": 1}, False)],
    }
    for world, shapes in worlds.items():
        todo = []
        for sizes, sequence_parallel in shapes:
            layers = sizes["pp"] * draw.choice([1, 2])
            dim, hidden = draw.randint(3, 7), sizes["tp"] * draw.randint(2, 5)
            players = sizes.get("dp", 1) * sizes.get("shard", 1)
            length = sizes.get("cp", 1) * sizes["tp"] * draw.randint(2, 3)
            case = {"sizes": shuffled(draw, sizes), "sequence_parallel": sequence_parallel}
            case |= {"model": [draw.randint(9, 15), dim, hidden, layers, draw.randint(1, 999)]}
            todo.append(case | {"batch": players * draw.randint(1, 2), "length": length})
        with on_meshes(
            todo,
            "Along pp only what is tied is shared, and by the two ends alone: `ends` is their group, and None for a"
            " stage between them.",
        ):
            run = student.call(gradients_on_rank, world=world, todo=todo)
        found = cases(run.events)
        for number_of_case, case in enumerate(todo):
            check_gradients(student, case, [mine[number_of_case] for mine in run.evidence], found[2 * number_of_case])
    for fact, found in zip(itertools.product((True, False), repeat=3), seen, strict=True):
        cut, some, tied = fact
        for axis, got in zip(AXES, found, strict=True):
            right = "average" if axis in ("dp", "shard") else "leave"
            if axis == "cp" or (axis == "tp" and some and not cut) or (axis == "pp" and tied):
                right = "sum"
            told = ", ".join(f"{name} {value}" for name, value in zip(("cut", "some", "tied"), fact))
            expect(got == right, f'due("{axis}", …) of a parameter with {told} is another', right, got)


def check_gradients(student, case, ranks, events):
    sizes = case["sizes"]
    parallel = "with" if case["sequence_parallel"] else "without"
    told = f"{spoken_mesh(sizes)}, {parallel} sequence parallel"
    serial = student.reference(serial_gradients, case=case)
    sent = moved(events)
    apart, shared = 0.0, False
    for rank, (mine, place) in enumerate(zip(ranks, box(sizes), strict=True)):
        most = 0.0
        for name, got in mine["gradients"].items():
            cut, some, tied = mine["facts"][name]
            right, parts = serial[name], 0.0
            if cut:
                parts = torch.stack(right.chunk(sizes["tp"], dim=1 if name.endswith("up") else 0))
                right = parts[place["tp"]]
            whole = isinstance(got, torch.Tensor) and got.shape == right.shape
            expect(whole, f"{told}: {name} has no gradient on rank {rank}", f"of shape {tuple(right.shape)}", got, rank)
            difference = (got.double() - right).norm().item()
            apart = max(apart, abs(mine["before"][name] / right.norm().item() - 1))
            if difference > CLOSE * right.norm().item():
                what = "cut" if cut else "whole, used on some tokens" if some else "whole"
                wrongs = {"it is left as this rank had it": got} if mine["kept"][name] else {}
                wrongs |= taken_for(right, parts, sizes, cut, some, tied)
                done = known(got.double(), wrongs, lambda a, b: (a - b).norm() <= CLOSE * right.norm())
                raise Wrong(
                    f"{told}: the gradient of {name} ({what}{', tied' if tied else ''}) on rank {rank} is not that of"
                    f" one process: {ratio(got, right)}{done}",
                    f"norm {right.norm():.5g}",
                    f"norm {got.double().norm():.5g}",
                    rank,
                )
            lengths = [sizes.get(axis, 1) for axis in ("dp", "shard", "cp")]
            lengths += [sizes["tp"] if some and not cut else 1, 2 if tied and sizes["pp"] > 1 else 1]
            most += sum(2 * (length - 1) / length * 4 * right.numel() for length in lengths)
        expect(
            sent[rank] <= most + 1e-6,
            f"{told}: rank {rank} sends {sent[rank]:,.0f} bytes for its gradients; more than is due",
            f"at most {most:,.0f} bytes",
            f"{sent[rank]:,.0f} bytes",
            rank,
        )
        shared = shared or most > 0
    premise(not shared or apart > 0.05, "gradients that are left as they are")


def taken_for(right, parts, sizes, cut, some, tied):
    """Wrong gradients of a parameter that differ along one axis, by name; `parts`: those of tp, where it is cut."""
    wrongs = {}
    for axis in ("dp", "shard"):
        wrongs[f"added up along {axis}, and not averaged"] = right * sizes.get(axis, 1)
    wrongs["averaged along cp, where parts add up"] = right / sizes.get("cp", 1)
    if cut:
        wrongs["added up along tp, though each rank has another part"] = parts.sum(0)
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


def norm_on_rank(code, rank, world, todo):
    found = []
    for case in todo:
        mesh = mesh_of(case["sizes"])
        place = box(case["sizes"])[rank]
        parameters, facts = {}, {}
        for name, cut, some, tied, values in pieces_of(case, place):
            parameters[name] = torch.nn.Parameter(torch.zeros(len(values), dtype=getattr(torch, case["dtype"])))
            parameters[name].grad = torch.tensor(values, dtype=getattr(torch, case["dtype"]))
            facts[name] = code.Fact(cut, some, tied)
        before = {name: p.grad.clone() for name, p in parameters.items()}
        mark()
        norm = code.gradient_norm(parameters, facts, mesh)
        mark()
        kept = all(p.grad is not None and torch.equal(p.grad, before[name]) for name, p in parameters.items())
        found.append({"norm": said(norm), "kept": kept})
    return found


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
        "Clipping divides the whole gradient by its norm. If a rank counts only what it holds, each divides by another"
        " number, and the parts no longer belong together; if it counts what others hold as well, all steps are too"
        " short."
    ),
    hints=(
        (
            "For each parameter: which ranks hold other numbers of it, which the same ones? Only along axes with other"
            " numbers do squares add up."
        ),
        (
            "Along dp, shard and cp all ranks hold the same gradients by now. Along tp only what is cut adds up; along"
            " pp everything, but the tied table is on two stages. So keep two sums, and all-reduce one over tp, then"
            " both over pp."
        ),
        (
            "mine = torch.zeros(2, dtype=torch.float64); add p.grad.double().square().sum() to one of the two, unless"
            ' it is tied and mesh.get_local_rank("pp") > 0. dist.all_reduce(mine[:1], group=mesh.get_group("tp")), then'
            " mine over pp; the root of the sum."
        ),
    ),
)
def test_todo5_norm(student):
    draw = student.draw("norm")
    for world, boxes in (
        (3, [{"pp": 1, "dp": 3, "tp": 1}, {"pp": 1, "tp": 3}, {"pp": 3, "tp": 1}, {"pp": 1, "cp": 3, "tp": 1}]),
        (8, [{"pp": 2, "dp": 2, "tp": 2}, {"pp": 4, "tp": 2}, {"pp": 2, "tp": 4},
             {"pp": 1, "shard": 2, "cp": 2, "tp": 2}]),
        (6, [{"pp": 3, "dp": 2, "tp": 1}]),
        (1, [{"pp": 1, "tp": 1}]),
    ):  # fmt: skip
        todo = []
        for sizes in boxes:
            tensors = []
            for stage in range(sizes["pp"]):
                for name, cut, some in (("up", True, False), ("norm", False, True), ("bias", False, False)):
                    if stage == 1 and (name == "up") != (len(todo) % 2 == 0):
                        continue  # this stage holds nothing that is cut, or nothing else
                    values = [draw.gauss(0, 1) for _ in range(sizes["tp"] * draw.randint(2, 4))]
                    tensors.append((f"{stage}.{name}", cut, some, False, stage, values))
            tensors.append(("table", False, True, True, 0, [draw.gauss(0, 2) for _ in range(5)]))
            # in float64 p.grad.double() is p.grad itself, and whoever squares it in place changes the gradient
            dtype = {1: "bfloat16", 2: "float64"}.get(len(todo), "float32") if world == 8 else "float32"
            todo.append({"sizes": shuffled(draw, sizes), "dtype": dtype, "tensors": tensors})
        with on_meshes(
            todo,
            "A stage may hold nothing that is cut, or nothing else, or no table. Do all ranks make the same calls, with"
            " as many numbers?",
        ):
            run = student.call(norm_on_rank, world=world, todo=todo)
        events = cases(run.events)
        for number_of_case, case in enumerate(todo):
            told = f"gradient_norm {spoken_mesh(case['sizes'])}, gradients in {case['dtype']}"
            right, close = norm_of(case, case["tensors"]), partial(math.isclose, rel_tol=1e-5)
            for rank, mine in enumerate(run.evidence):
                got = number(mine[number_of_case]["norm"])
                expect(
                    got is not None,
                    f"{told}: is no number on rank {rank}",
                    f"{right:.6g}",
                    mine[number_of_case]["norm"],
                    rank,
                )
                # Sums in float32 differ by 1e-7 of the result; those in bfloat16, of 8 bits, by 1e-2 and more.
                if not close(got, right):
                    done = known(got, wrong_norms(case, rank), close)
                    raise Wrong(f"{told}: is another on rank {rank}{done}", f"{right:.6g}", f"{got:.6g}", rank)
                expect(
                    mine[number_of_case]["kept"], f"{told}: changes a gradient", "the same gradients", "others", rank
                )
            for rank, count in enumerate(moved(events[2 * number_of_case])):
                expect(
                    count <= 400,
                    f"{told}: rank {rank} sends {count:,.0f} bytes; some numbers are enough",
                    "at most 400 bytes",
                    f"{count:,.0f} bytes",
                    rank,
                )


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
    others = {axis: size for axis, size in sizes.items() if axis not in ("tp", "pp") and size > 1}
    counts = {
        "the tied table is counted on both ends": lambda cut, tied: ends if tied else 1,
        "the tied table is not counted": lambda cut, tied: not tied,
        "what is whole is counted once for each rank of tp": lambda cut, tied: 1 if cut else tp,
    }
    for axis, size in others.items():
        counts[f"squares are added up along {axis}, whose ranks hold the same"] = lambda cut, tied, size=size: size
    norms = [norm_of(case, [tensor]) for tensor in tensors]
    return {
        **{words: norm_of(case, tensors, count) for words, count in counts.items()},
        f"that is what rank {rank} holds": norm_of(case, pieces_of(case, box(sizes)[rank])),
        "that is its square": norm_of(case, tensors) ** 2,
        "norms are added up, and not their squares": sum(norms),
    }


# ---------------------------------------------------------------------------------------------------
# Questions about models, plans and machines

KINDS = {"Model": Model, "Plan": Plan, "Machine": Machine}


def asked_on_rank(code, rank, world, calls):
    """What the student's functions return: calls are (name, arguments)."""
    found = []
    for name, arguments in calls:
        answer = getattr(code, name)(*map(built, arguments))
        found.append({"plan": asdict(answer)} if isinstance(answer, Plan) else said(answer))
    return found


def packed(value):
    """An argument as a job can hold it."""
    if isinstance(value, (Model, Plan, Machine)):
        return {"kind": type(value).__name__, "fields": asdict(value)}
    return {"pairs": [[key, part] for key, part in value.items()]} if isinstance(value, dict) else value


def built(value):
    if not isinstance(value, dict):
        return value
    if "pairs" in value:
        return {key: part for key, part in value["pairs"]}
    given = dict(value["fields"])
    for name in ("inside", "between"):
        if name in given:
            given[name] = Link(*given[name])
    return KINDS[value["kind"]](**given)


def shown(value):
    """An argument in a verdict: of a plan, what is not as by default."""
    if isinstance(value, Machine):
        return value.name
    if isinstance(value, (Model, Plan)):
        told = [f.name for f in fields(value) if getattr(value, f.name) != f.default]
        return f"{type(value).__name__}({', '.join(f'{name}={getattr(value, name)!r}' for name in told)})"
    return repr(value)


def written(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {written(part)}" for key, part in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(map(written, value)) + ")"
    if number(value) is None:
        return str(value)
    return f"{value:,.8g}" if abs(value) < 1e6 and value % 1 else f"{value:,.3f}".removesuffix(".000")


def check_formulas(student, right, hints={}, wrongs={}):
    """`right` has (name, arguments, answer). Of a dictionary the first kind that differs is named.

    By a function's name, `hints` has its own one, and `wrongs` what it is taken for: names and functions of the same
    arguments.
    """
    calls = [[name, [packed(part) for part in arguments]] for name, arguments, _ in right]
    (seen,) = student.call(asked_on_rank, world=1, group=False, calls=calls).evidence
    for (name, arguments, answer), got in zip(right, seen, strict=True):
        call, mine = f"{name}({', '.join(map(shown, arguments))})", wrongs.get(name, {})
        with hinted(hints.get(name, "")):
            if not isinstance(answer, dict):
                if not same(got, answer):
                    taken = known(got, {words: wrong(*arguments) for words, wrong in mine.items()})
                    raise Wrong(f"{call} is wrong{taken}", written(answer), written(got))
                continue
            keys = {str(key): part for key, part in answer.items()}
            expect(
                isinstance(got, dict) and got.keys() == keys.keys(),
                f"{call} has other entries",
                ", ".join(keys),
                ", ".join(got) if isinstance(got, dict) else got,
            )
            for key, part in keys.items():
                if not same(got[key], part):
                    taken = known(got[key], {words: wrong(*arguments)[key] for words, wrong in mine.items()})
                    raise Wrong(f'{call}: "{key}" is wrong{taken}', written(part), written(got[key]))


def drawn_model(draw, mixture=False, layers=None):
    hidden = 64 * draw.randint(4, 90)
    return Model(
        hidden, layers or 8 * draw.randint(1, 6), 16, 1000 * draw.randint(5, 90), 256 * draw.randint(1, 40),
        experts=16 if mixture else 0, active=draw.choice([2, 3]) if mixture else 1,
    )  # fmt: skip


def drawn_plan(draw, **axes):
    replicas = axes.get("dp", 1) * axes.get("shard", 1)
    micro_batch = draw.choice([1, 2, 3])
    how = dict(micro_batch=micro_batch, recompute=draw.choice(["none", "full"])) | axes
    return Plan(batch=replicas * how["micro_batch"] * draw.choice([1, 2, 3, 8, 12]), **how)


SPREADS = (
    {}, {"dp": 4}, {"shard": 8}, {"dp": 2, "shard": 4}, {"tp": 4}, {"pp": 4}, {"cp": 4}, {"shard": 2, "pp": 2},
    {"dp": 3, "shard": 2, "cp": 2, "tp": 4, "pp": 8}, {"tp": 8, "pp": 2, "dp": 2}, {"cp": 2, "tp": 2, "shard": 4},
)  # fmt: skip
MIXTURES = (
    {"dp": 8, "ep": 4}, {"shard": 8, "ep": 2}, {"shard": 4, "ep": 4, "pp": 2}, {"dp": 4, "shard": 2, "ep": 4, "tp": 2},
    {"dp": 4, "shard": 2, "ep": 8, "cp": 2}, {"shard": 4},
)  # fmt: skip


def drawn_pairs(draw):
    """Models with plans: each way to spread one, and experts."""
    pairs = [(drawn_model(draw), drawn_plan(draw, **axes)) for axes in SPREADS]
    pairs += [(drawn_model(draw, mixture=True), drawn_plan(draw, **axes)) for axes in MIXTURES]
    again = [(drawn_model(draw), drawn_plan(draw, recompute=how, pp=4)) for how in ("none", "full")]
    return pairs + again


def drawn_machine(draw, node=None):
    node = node or draw.choice([2, 4, 8])
    inside = Link(draw.uniform(1e11, 4e11), draw.uniform(1e-6, 9e-6))
    between = Link(draw.uniform(4e9, 5e10), draw.uniform(5e-6, 4e-5))
    name = f"a machine with {node} GPUs a node"
    return Machine(
        name, draw.uniform(1e14, 9e14), 8e10, 2e12, node, inside, between, draw.uniform(0.3, 0.7), draw.uniform(0.5, 1)
    )


# ---------------------------------------------------------------------------------------------------
# TODO 6: memory


def experts_of(plan):
    """Ranks that replicate, and ranks that shard, a rank's experts."""
    left = max(1, plan.shard // plan.ep)
    return plan.dp * plan.shard // (plan.ep * left), left


def rank_sizes(model, plan, stage):
    square = model.hidden * model.hidden
    attention = 4 * square * model.layers / plan.pp
    tables = model.vocabulary * model.hidden * ([0, plan.pp - 1].count(stage) if plan.pp > 1 else 2)
    mlps = 8 * square * (model.experts or 1) * model.layers / plan.pp / plan.ep
    return tuple(part / plan.tp for part in (attention, tables, mlps))


def numbers_with(model, plan, stage, tables):
    """As `rank_numbers`, with so many tables on a stage."""
    attention, _, mlps = rank_sizes(model, plan, stage)
    return attention + tables(stage, plan.pp - 1) * model.vocabulary * model.hidden / plan.tp, mlps


def kept(model, plan, stage, at_hand=1, alive=None):
    stream = plan.micro_batch * model.sequence * model.hidden / plan.cp / plan.tp
    whole = (15 + 19 * model.active) * stream
    copies = model.layers / plan.pp * (alive or min(plan.pp - stage, plan.micro_batches))
    return copies * whole if plan.recompute == "none" else 2 * copies * stream + at_hand * whole


def by_kind(model, plan, stage):
    attention, tables, mlps = rank_sizes(model, plan, stage)
    blocks = model.layers / plan.pp
    shards = experts_of(plan)[1]
    mine = (attention + tables) / plan.shard + mlps / shards
    moment = (attention / blocks + tables) * (plan.shard > 1) + mlps / blocks * (shards > 1)
    found = {"weights": 2 * mine, "gradients": 2 * mine, "state": 12 * mine, "gathered": 4 * moment}
    return found | {"activations": kept(model, plan, stage)}


def fullest(model, plan):
    return max(sum(by_kind(model, plan, stage).values()) for stage in range(plan.pp))


@todo(
    6,
    minutes=40,
    why=(
        "A plan that runs out of memory has cost a place in the queue. And whoever forgets the activations, or what is"
        " gathered for a moment, finds that what fits on paper does not fit."
    ),
    hints=(
        (
            "Start with one GPU and no sharding, and check the 112 GB of 7 billion parameters. Then add one axis at a"
            " time: what of it becomes smaller?"
        ),
        (
            "rank_numbers: layers / pp blocks of 4 h² and of 8 h² times experts / ep; V h for stage 0, V h for the"
            " last (both if pp is 1); all over tp. Activations: b s h / (cp tp) numbers, times 15 + 19 active, times"
            " layers / pp, times min(m, pp - stage)."
        ),
        (
            "held = dense / plan.shard + mlps / of_experts(plan)[1]; 2, 2 and 12 of it. Gathered, if shard > 1:"
            " 4 * (4 h² / tp + tables), and the block's MLPs, 4 * mlps / (layers / pp), if of_experts says that they"
            " are sharded. Recomputed: 2 bytes a number for all blocks alive, and one block whole."
        ),
    ),
)
def test_todo6_memory(student):
    draw = student.draw("memory")
    right, last_is_fullest = [], False
    pairs = [*drawn_pairs(draw), (Model(4096, 32, 32, 32000, 2048), Plan(batch=64, shard=8))]
    # A large vocabulary and few tokens: the last stage holds as much as the first, and keeps less; the first is fuller.
    pairs.append((Model(1024, 8, 16, 200000, 256), Plan(batch=8, pp=4, shard=1)))
    for model, plan in pairs:
        for stage in sorted({0, plan.pp // 2, plan.pp - 1}):
            attention, tables, mlps = rank_sizes(model, plan, stage)
            right.append(("rank_numbers", (model, plan, stage), (attention + tables, mlps)))
    for model, plan in pairs:
        for stage in sorted({0, plan.pp // 2, plan.pp - 1}):
            right.append(("activation_bytes", (model, plan, stage), kept(model, plan, stage)))
    for model, plan in pairs:
        for stage in sorted({0, plan.pp // 2, plan.pp - 1}):
            right.append(("memory", (model, plan, stage), by_kind(model, plan, stage)))
    for model, plan in pairs:
        stages = [sum(by_kind(model, plan, stage).values()) for stage in range(plan.pp)]
        last_is_fullest |= plan.pp > 1 and stages[-1] < stages[0]
        right.append(("most_memory", (model, plan), max(stages)))
    premise(last_is_fullest, "the memory of the last stage for the largest")
    check_formulas(
        student,
        right,
        hints={
            "activation_bytes": "First one block and one micro-batch: tokens on this rank, times h, times bytes. How"
            " many blocks and micro-batches are kept at the same time? Recomputed, what is there besides, while a block"
            " is at hand?",
            "memory": "Each kind is bytes times numbers. Whose numbers does `shard` divide, and by how many ranks are"
            " the experts' divided? Gathered is what is whole for a moment: which blocks are, and what beside them?",
            "most_memory": "Which stage is the fullest depends on the model: the ends have tables, the first keeps the"
            " most activations. Compare.",
        },
        wrongs={
            "rank_numbers": {
                "both tables are on every stage": partial(numbers_with, tables=lambda stage, last: 2),
                "with one stage a table is missing": partial(
                    numbers_with, tables=lambda stage, last: stage in (0, last)
                ),
            },
            "activation_bytes": {
                "without the block at hand": partial(kept, at_hand=0),
                "as if one micro-batch were kept": partial(kept, alive=1),
                "as if all micro-batches were kept": lambda *of: kept(*of, alive=of[1].micro_batches),
            },
        },
    )


# ---------------------------------------------------------------------------------------------------
# TODO 7: time

INWARD = ("pp", "dp", "shard", "cp", "tp")


def work_of(model):
    """FLOPs of a token: of all, and of attention's scores."""
    block = (4 + 8 * model.active) * model.hidden**2
    scores = 12 * model.layers * model.sequence * model.hidden
    return 6 * (model.layers * block + model.hidden * model.vocabulary) + scores, scores


def traffic(model, plan):
    attention, tables, mlps = rank_sizes(model, plan, 0)
    dense, (copies, shards) = attention + tables, experts_of(plan)
    blocks, m = model.layers // plan.pp, plan.micro_batches
    stream = plan.micro_batch * model.sequence * model.hidden / plan.cp
    full = plan.recompute == "full"
    uses = blocks * m

    def gather(ranks, numbers):
        return numbers * (1 - 1 / ranks)

    everyone = plan.dp * plan.cp
    rings, swaps = (12 if full else 8) * uses, (6 if full else 4) * uses
    once = gather(everyone, dense / plan.shard) + gather(copies * plan.cp, mlps / shards)
    return {
        "tp": (2 * rings * gather(plan.tp, stream), rings * (plan.tp - 1)),
        "cp": (12 * uses * (plan.cp - 1) * stream / plan.tp, 3 * uses * (plan.cp - 1)),
        "ep": (2 * swaps * gather(plan.ep, model.active * stream / plan.tp), swaps * (plan.ep - 1)),
        "pp": (4 * m * stream * (plan.pp > 1), 2 * m * (plan.pp > 1)),
        "shard": (6 * m * (gather(plan.shard, dense) + gather(shards, mlps)), 3 * m * (blocks + 1) * (plan.shard - 1)),
        "dp": (4 * once, 2 * (everyone - 1)),
    }


def wire(axis, plan, machine):
    if axis == "ep":
        reach = plan.tp * plan.cp * plan.ep
    else:
        reach = math.prod(getattr(plan, name) for name in INWARD[INWARD.index(axis) :])
    return machine.between if reach > machine.node else machine.inside


def without_latency(machine):
    return replace(machine, inside=machine.inside._replace(latency=0), between=machine.between._replace(latency=0))


def times(model, plan, machine):
    work, scores = work_of(model)
    rate = machine.peak * machine.device_share * plan.world
    computing = work * plan.batch * model.sequence / rate * (1 if plan.recompute == "none" else 4 / 3)
    spent = {}
    for axis, (count, messages) in traffic(model, plan).items():
        link = wire(axis, plan, machine)
        spent[axis] = count / link.bandwidth / machine.link_share + messages * link.latency
    ring = max(0.0, spent["cp"] - computing * scores / work)
    busy = computing + spent["tp"] + spent["ep"] + spent["pp"] + ring
    return {
        "computing": computing,
        "tp": spent["tp"],
        "ep": spent["ep"],
        "pp": spent["pp"],
        "cp": ring,
        "bubble": busy * (plan.pp - 1) / plan.micro_batches,
        "data": max(0.0, spent["shard"] + spent["dp"] - computing),
    }


@todo(
    7,
    minutes=65,
    needs=(6,),
    why=(
        "A plan is chosen by its time, and on paper that takes a millisecond. Who leaves out the bubble chooses deep"
        " pipelines; who leaves out where a line lies lets tensor parallel cross nodes."
    ),
    hints=(
        (
            "Do it for one axis at a time: how often in a step, how many numbers each time, over which link? Then add"
            " up what is waited for."
        ),
        (
            "A ring's share is (N - 1) / N. Blocks of a rank: layers // pp, and each of the m micro-batches goes"
            " through all of them. The span of an axis: its size times those of tp, cp, shard, dp inside it."
            " bandwidth * link_share, peak * device_share."
        ),
        (
            "tp: 8 (or 12) · blocks · m rings of n h; cp: 3 · blocks · m · (cp - 1) messages of 2 n h / t numbers; ep:"
            " 4 (or 6) · blocks · m of (ep - 1) / ep · active · n h / t; shard: 3 m rings; dp: 2 rings over dp · cp."
            " 2 bytes a number. bubble: (computing + tp + ep + pp + cp) · (pp - 1) / m."
        ),
    ),
)
def test_todo7_time(student):
    draw = student.draw("time")
    pairs = drawn_pairs(draw)
    machines = [drawn_machine(draw, node) for node in (2, 4, 8)]
    # All that can overlap must be longer than the computing somewhere, and shorter elsewhere.
    pairs += [(Model(512, 8, 8, 5000, 16384), Plan(batch=4, cp=4)), (Model(4096, 8, 32, 5000, 128), Plan(8, cp=8))]
    pairs += [
        (Model(2048, 8, 16, 90000, 128), Plan(8, dp=4, shard=2)),
        (Model(2048, 8, 16, 5000, 4096), Plan(64, dp=4)),
    ]
    answers = [times(model, plan, machine) for model, plan in pairs for machine in machines]
    for part in ("cp", "data"):
        premise(any(found[part] > 0 for found in answers), f"messages of {part} that cost nothing")
        premise(any(found[part] == 0 for found in answers), f"messages of {part} that are waited for")
    right = [("token_flops", (model,), work_of(model)[0]) for model, _ in pairs]
    right += [("sent", (model, plan), traffic(model, plan)) for model, plan in pairs]
    for (_, plan), machine in itertools.product(pairs, machines):
        for axis in ("tp", "cp", "shard", "dp", "pp") + (("ep",) if plan.ep > 1 else ()):
            right.append(("link", (axis, plan, machine), tuple(wire(axis, plan, machine))))
    for (model, plan), machine in itertools.product(pairs, machines):
        right.append(("step_seconds", (model, plan, machine), times(model, plan, machine)))
    check_formulas(
        student,
        right,
        hints={
            "token_flops": "What is multiplied by a token's numbers: which matrices of a block, of which experts, and"
            " which of the two tables? Then the scores.",
            "link": "How many ranks lie between the first and the last of a line, both counted? All of the axes inside"
            " it are there, too.",
            "step_seconds": "A line's seconds are bytes over what the link gives, and messages times latency. What of"
            " them goes on beside the computing? The bubble is a share of all that a micro-batch takes or waits for.",
        },
        wrongs={
            "token_flops": {
                "the embedding table is counted, too": lambda model: (
                    work_of(model)[0] + 6 * model.hidden * model.vocabulary
                ),
                "attention's scores are missing": lambda model: work_of(model)[0] - work_of(model)[1],
                "all experts compute": lambda model: work_of(replace(model, active=max(1, model.experts)))[0],
            },
            "sent": {
                "as if nothing were recomputed": lambda model, plan: traffic(model, replace(plan, recompute="none")),
                "as if all were recomputed": lambda model, plan: traffic(model, replace(plan, recompute="full")),
            },
            "step_seconds": {
                "without link_share": lambda *of: times(*of[:2], replace(of[2], link_share=1.0)),
                "without device_share": lambda *of: times(*of[:2], replace(of[2], device_share=1.0)),
                "without latency": lambda *of: times(*of[:2], without_latency(of[2])),
            },
        },
    )


# ---------------------------------------------------------------------------------------------------
# TODO 8: the best plan


def cannot(model, plan, machine):
    """Which rule a plan breaks; "" if none."""
    pieces = plan.replicas * plan.micro_batch
    rules = {
        "heads on tp": model.heads % plan.tp == 0,
        "layers on pp": model.layers % plan.pp == 0,
        "tokens on cp and tp": model.sequence % (plan.cp * plan.tp) == 0,
        "experts on ep": not model.experts or model.experts % plan.ep == 0,
        "the batch on micro-batches of replicas": plan.batch % pieces == 0,
        "fewer micro-batches than stages": plan.batch // pieces >= plan.pp,
        "tp in a node": plan.tp <= machine.node,
    }
    broken = next((rule for rule, holds in rules.items() if not holds), "")
    return broken or ("memory" if fullest(model, plan) > machine.memory else "")


def all_plans(model, gpus, batch):
    for dp, shard, cp, tp in itertools.product([n for n in range(1, gpus + 1) if gpus % n == 0], repeat=4):
        if gpus % (dp * shard * cp * tp):
            continue
        pp = gpus // (dp * shard * cp * tp)
        eps = [e for e in (1, 2, 4, 8, 16) if e == 1 or (model.experts and dp * shard % e == 0)]
        for ep, micro_batch, recompute in itertools.product(eps, (1, 2, 4), ("none", "full")):
            if max(ep, shard) % min(ep, shard) == 0:
                yield Plan(batch, micro_batch, dp, shard, tp, pp, cp, ep, recompute=recompute)


@lru_cache(maxsize=64)
def fastest_of(model, gpus, batch, machine):
    """The fastest plan that can be, and its seconds; None if none can."""
    good = [plan for plan in all_plans(model, gpus, batch) if not cannot(model, plan, machine)]
    best = min(good, key=lambda plan: sum(times(model, plan, machine).values()), default=None)
    return best and (best, sum(times(model, best, machine).values()))


FORTY = Machine("GPUs of 40 GB, four a node", 312e12, 40e9, 1.5e12, 4, Link(250e9, 5e-6), Link(12.5e9, 10e-6), 0.5, 0.8)
CASES = (  # those of the notebook, and the axes that each of them is about
    (Model(768, 12, 12, 32000, 1024), 4, 64, {"dp", "shard"}),
    (Model(4096, 32, 32, 32000, 2048), 8, 64, {"shard"}),
    (Model(2048, 24, 16, 32000, 131072), 16, 2, {"cp"}),
    (Model(2048, 12, 16, 32000, 2048, experts=32, active=2), 16, 256, {"ep"}),
    (Model(6144, 48, 48, 32000, 2048), 64, 256, {"pp"}),  # large: all of it
)
BROKEN = (  # a model, a plan, and the rule that it breaks
    (Model(768, 12, 6, 5000, 1024), Plan(16, tp=4), "heads on tp"),
    (Model(768, 10, 8, 5000, 1024), Plan(16, pp=4), "layers on pp"),
    (Model(768, 12, 8, 5000, 1026), Plan(16, cp=4), "tokens on cp and tp"),
    (Model(768, 12, 8, 5000, 1028), Plan(16, cp=2, tp=4), "tokens on cp and tp"),
    (Model(768, 12, 8, 5000, 1024, experts=6, active=2), Plan(16, dp=4, ep=4), "experts on ep"),
    (Model(768, 12, 8, 5000, 1024), Plan(18, dp=4), "the batch on micro-batches of replicas"),
    (Model(768, 12, 8, 5000, 1024), Plan(12, shard=4, micro_batch=2), "the batch on micro-batches of replicas"),
    (Model(768, 12, 8, 5000, 1024), Plan(2, pp=4), "fewer micro-batches than stages"),
    (Model(768, 12, 8, 5000, 1024), Plan(16, dp=4, pp=4, micro_batch=2), "fewer micro-batches than stages"),
    (Model(768, 12, 8, 5000, 1024), Plan(16, tp=8), "tp in a node"),
    (Model(4096, 32, 32, 32000, 2048), Plan(64, dp=8), "memory"),
    (Model(4096, 32, 32, 32000, 2048), Plan(64, shard=8, micro_batch=4), "memory"),
    (Model(4096, 32, 32, 32000, 2048), Plan(64, pp=4, micro_batch=2), "memory"),
)


@todo(
    8,
    minutes=30,
    needs=(6, 7),
    why=(
        "Between the best plan and a plausible one lies a factor of two, which on a thousand GPUs is a matter of"
        " millions; and most of the thousand plans cannot be at all."
    ),
    hints=(
        "First the divisions, one rule at a time; memory last. Then keep those without a reason, and compare times.",
        (
            "model.heads % plan.tp, model.layers % plan.pp, model.sequence % (plan.cp * plan.tp), plan.batch %"
            " (plan.replicas * plan.micro_batch), plan.micro_batches < plan.pp, plan.tp > machine.node, and"
            " most_memory(model, plan) > machine.memory."
        ),
        (
            "good = [plan for plan in candidates(…) if not why_not(…)]; min(good, key=lambda plan:"
            " sum(step_seconds(model, plan, machine).values()), default=None)."
        ),
    ),
)
def test_todo8_best(student):
    draw = student.draw("best")
    asked = [(model, plan, FORTY) for model, plan, _ in BROKEN]
    for model, plan, rule in BROKEN:
        premise(cannot(model, plan, FORTY) == rule, f"a plan that breaks another rule than “{rule}”")
    for model, gpus, batch, _ in CASES:
        plans = list(all_plans(model, gpus, batch))
        asked += [(model, plan, FORTY) for plan in draw.sample(plans, 12)]
        asked.append((model, fastest_of(model, gpus, batch, FORTY)[0], FORTY))
    asked.append((Model(768, 12, 12, 32000, 1024), Plan(16, pp=4, dp=4), FORTY))  # as many micro-batches as stages
    questions = [(*case[:3], FORTY) for case in CASES]
    questions.append((Model(8192, 80, 64, 32000, 2048), 4, 64, FORTY))  # fits nowhere
    for _ in range(2):
        model = Model(256 * draw.randint(3, 12), 4 * draw.randint(3, 8), 8, 1000 * draw.randint(8, 60), 2048)
        questions.append((model, draw.choice([4, 8]), draw.choice([32, 64]), drawn_machine(draw, 4)))
    calls = [["why_not", [packed(part) for part in arguments]] for arguments in asked]
    (seen,) = student.call(asked_on_rank, world=1, group=False, calls=calls).evidence
    for (model, plan, machine), got in zip(asked, seen, strict=True):
        rule, told = cannot(model, plan, machine), f"why_not({shown(model)}, {shown(plan)}, {machine.name})"
        expect(isinstance(got, str), f"{told} is no text", "a few words" if rule else '""', got)
        expect(bool(got) or not rule, f"{told} lets pass what cannot be: {rule}", "a reason", '""')
        expect(not got or bool(rule), f"{told} rejects a plan that can be", '""', got)
    calls = [["best_plan", [packed(part) for part in arguments]] for arguments in questions]
    (seen,) = student.call(asked_on_rank, world=1, group=False, calls=calls).evidence
    for (model, gpus, batch, machine), got in zip(questions, seen, strict=True):
        with hinted(
            "First leave out what why_not gives a reason for. What is left, compare by the sum of its seconds."
        ):
            check_best(model, gpus, batch, machine, got)
    for model, gpus, batch, about in CASES:
        best, _ = fastest_of(model, gpus, batch, FORTY)
        premise(any(getattr(best, axis) > 1 for axis in about), f"a case about {about} that is solved without it")


def check_best(model, gpus, batch, machine, got):
    told = f"best_plan({shown(model)}, {gpus} GPUs, batch {batch}, {machine.name})"
    best = fastest_of(model, gpus, batch, machine)
    if best is None:
        expect(got is None, f"{told}: no plan can be", "None", got)
        return
    expect(isinstance(got, dict) and "plan" in got, f"{told} is no plan", shown(best[0]), got)
    plan = Plan(**got["plan"])
    sizes = [plan.micro_batch, plan.dp, plan.shard, plan.tp, plan.pp, plan.cp, plan.ep]
    expect(min(sizes) >= 1, f"{told} is no plan: an axis has no rank", shown(best[0]), shown(plan))
    expect(plan.world == gpus and plan.batch == batch, f"{told} is a plan for others", shown(best[0]), shown(plan))
    broken = cannot(model, plan, machine)
    expect(not broken, f"{told} takes a plan that cannot be: {broken}", shown(best[0]), shown(plan))
    seconds = sum(times(model, plan, machine).values())
    expect(
        seconds <= best[1] * (1 + 1e-9),
        f"{told} is not the fastest: it takes {seconds / best[1]:.3f} times as long",
        f"{best[1]:.4g} s with {shown(best[0])}",
        f"{seconds:.4g} s with {shown(plan)}",
    )


# ---------------------------------------------------------------------------------------------------
# TODO 9: when to stop


def crossing_at(batch, scheme, machine):
    """The fewest GPUs on which the bytes of a parameter take longer than the FLOPs of its tokens."""
    for gpus in itertools.count(2):
        link = machine.inside if gpus <= machine.node else machine.between
        count = {"ddp": 4, "fsdp": 6}[scheme] * (gpus - 1) / gpus
        if count / (link.bandwidth * machine.link_share) > 6 * batch / gpus / (machine.peak * machine.device_share):
            return gpus


@todo(
    9,
    minutes=30,
    further=True,
    why=(
        "GPUs that wait cost as much as GPUs that work. On paper you see beforehand where the next one adds more"
        " waiting than speed, and whether a larger batch would really make up for it."
    ),
    hints=(
        (
            "Write the times down: what one GPU takes, what N take if all is well, what they took. For the network:"
            " bytes a second is bytes of a step over seconds of its computing."
        ),
        (
            "Strong: T₁ / (N T_N), relative to the fewest GPUs measured. Solve T_N = T₁ (f + (1 - f) / N) for f, and"
            " 1 / (f N + 1 - f) = least for N. FSDP: 6 Ψ bytes in 6 Ψ tokens / speed seconds. Steps times batch are"
            " samples."
        ),
        (
            "f = (T_N / T₁ - 1 / N) / (1 - 1 / N). N = (1 / least - 1 + f) / f, rounded down. needed_bandwidth: speed /"
            " tokens for FSDP, 2/3 of it for DDP. overtaken_at: try gpus = 2, 3, …: needed_bandwidth(batch / gpus, …)"
            " * (gpus - 1) / gpus > bandwidth * link_share. samples: fewest_steps * (batch + critical)."
        ),
    ),
)
def test_todo9_stop(student):
    draw = student.draw("stop")
    right = []
    for _ in range(3):
        one, f = draw.uniform(50, 500), draw.uniform(0.005, 0.2)
        counts = sorted(draw.sample([1, 2, 3, 4, 8, 12, 16, 64], 4))
        order = [counts[1], counts[0], *counts[2:]]  # the fewest are neither first nor last
        measured = {n: one * (f + (1 - f) / n) * draw.uniform(1, 1.1) for n in order}
        for scaling in ("strong", "weak"):
            base = measured[counts[0]] * (counts[0] if scaling == "strong" else 1)
            answer = {n: base / (took * (n if scaling == "strong" else 1)) for n, took in measured.items()}
            right.append(("efficiency", (measured, scaling), answer))
    for n in (2, 5, 8, 64):
        one, many = draw.uniform(50, 500), draw.uniform(20, 49)
        right.append(("serial_share", (n, one, many), (many * n - one) / (one * (n - 1))))
    right += [
        ("most_gpus", arguments, answer)
        for arguments, answer in (
            ((0.1, 0.5), 11),
            ((0.01, 0.5), 101),
            ((0.25, 0.8), 2),
            ((0.5, 0.9), 1),
            ((1.0, 1.0), 1),
            ((0.2, 0.5), 6),
        )
    ]
    for _ in range(3):
        share, least = draw.uniform(0.003, 0.3), draw.uniform(0.3, 0.95)
        most = next(n for n in itertools.count(1) if 1 / ((n + 1) * (share + (1 - share) / (n + 1))) < least)
        right.append(("most_gpus", (share, least), most))
    for scheme in ("ddp", "fsdp"):
        for _ in range(2):
            tokens, speed = draw.uniform(500, 50000), draw.uniform(5e13, 5e14)
            count = 4 if scheme == "ddp" else 6
            right.append(("needed_bandwidth", (tokens, speed, scheme), count / (6 * tokens / speed)))
        for node in (2, 4, 8):
            machine = drawn_machine(draw, node)
            batch = float(draw.randint(10**4, 10**6))
            right.append(("overtaken_at", (batch, scheme, machine), crossing_at(batch, scheme, machine)))
        slow = Machine("slow links everywhere", 3e14, 4e10, 1e12, 4, Link(1e9, 0.0), Link(1e9, 0.0))
        right.append(("overtaken_at", (1e5, scheme, slow), crossing_at(1e5, scheme, slow)))
        within = Machine(
            "fast links in a node of 8, slow ones between", 3e14, 4e10, 1e12, 8, Link(1e12, 0), Link(1e9, 0)
        )
        premise(crossing_at(1e4, scheme, within) == 9, "the slow links for GPUs of one node")
        right.append(("overtaken_at", (1e4, scheme, within), 9))
    for _ in range(2):
        batch, critical, steps = draw.uniform(10, 9999), draw.uniform(100, 5000), draw.uniform(1e3, 1e5)
        right.append(("samples_needed", (batch, critical, steps), steps * (batch + critical)))
    check_formulas(
        student,
        right,
        hints={
            "serial_share": "Amdahl's law with these seconds has one unknown, f. What is 1/N of the time, and what is"
            " left?",
            "most_gpus": "The efficiency on N GPUs is T₁ / (N T_N); put Amdahl's T_N into it. Where is it `least`?",
            "needed_bandwidth": "Bytes of a step over seconds of its computing: how many bytes and how many FLOPs has a"
            " parameter, with all tokens of a GPU?",
            "overtaken_at": "Try 2 GPUs, then 3, … With each the tokens of a GPU are fewer. What is needed, how much"
            " of it does a ring send, and what does the link really give?",
            "samples_needed": "The formula of the text gives steps. How many samples has a step?",
        },
        wrongs={
            "overtaken_at": {
                "without link_share": lambda *of: crossing_at(*of[:2], replace(of[2], link_share=1.0)),
                "without device_share": lambda *of: crossing_at(*of[:2], replace(of[2], device_share=1.0)),
                "that is the last number that keeps up": lambda *of: crossing_at(*of) - 1,
            },
            "samples_needed": {
                "these are steps, not samples": lambda batch, critical, steps: steps * (1 + critical / batch)
            },
        },
    )


# ---------------------------------------------------------------------------------------------------
# TODO 10: frameworks

FRAMEWORKS = {
    "FlexFlow": "data tensor",
    "PipeDream": "data pipeline",
    "DDP": "data",
    "GPipe": "pipeline",
    "Mesh TensorFlow": "data tensor",
    "Megatron-LM": "data tensor",
    "TorchGPipe": "pipeline",
    "KARMA": "data",
    "LBANN": "data tensor",
    "ZeRO": "sharded",
    "AxoNN": "data pipeline",
    "DeepSpeed": "sharded tensor pipeline",
}
BUILT = {
    "data": {"02_data_parallel"},
    "sharded": {"03_zero"},
    "tensor": {"04_tensor_parallel", "08_distributed_matmul"},
    "pipeline": {"05_pipeline_parallel"},
}


def frameworks_on_rank(code, rank, world):
    axes, built = code.axes_of_frameworks(), code.built_in()
    listed = {}
    if isinstance(axes, dict):
        for name, mine in axes.items():
            listed[str(name)] = (
                sorted(map(str, mine)) if isinstance(mine, (set, frozenset, list, tuple)) else repr(mine)
            )
    return {"axes": listed, "built": said(built) if isinstance(built, dict) else repr(built)}


@todo(
    10,
    minutes=35,
    why=(
        "Names of frameworks change every year; axes do not. Who sees which axes a new one has knows what it costs,"
        " where it fits, and what it cannot do."
    ),
    hints=(
        "Take a row, and underline what is cut up. Whose samples are different? Who holds a part of a layer?",
        (
            "“Its own samples”, “copies”, “average their gradients”: data; and if each holds a part of weights,"
            " gradients or state besides: sharded. “Stages”: pipeline. A dimension of a layer, its parameters, its"
            " input by channels: tensor."
        ),
        (
            "Only one axis: DDP, GPipe, TorchGPipe, KARMA, ZeRO. Three: DeepSpeed. All others have two, and data is one"
            " of them."
        ),
    ),
)
def test_todo10_frameworks(student):
    (seen,) = student.call(frameworks_on_rank, world=1, group=False).evidence
    missing = FRAMEWORKS.keys() - seen["axes"].keys()
    expect(
        not missing,
        f"axes_of_frameworks says nothing of {', '.join(sorted(missing))}",
        "twelve names",
        list(seen["axes"]),
    )
    for name, right in FRAMEWORKS.items():
        got = seen["axes"][name]
        expect(isinstance(got, list), f"{name}: no set of axes", "a set", got)
        strange = [axis for axis in got if axis not in BUILT]
        expect(not strange, f"{name}: there is no axis {strange}", ", ".join(BUILT), got)
        wrong = set(got) - set(right.split())
        lacking = set(right.split()) - set(got)
        expect(
            not wrong,
            f"{name}: its row says nothing of “{', '.join(sorted(wrong))}”",
            f"{len(right.split())} axes, each named by what the row cuts",
            got,
        )
        expect(
            not lacking,
            f"{name}: its row cuts something more",
            f"{len(right.split())} axes, each named by what the row cuts",
            got,
        )
    built = seen["built"]
    expect(isinstance(built, dict), "built_in is no dictionary", "four axes, a notebook each", built)
    for axis, lessons in BUILT.items():
        got = built.get(axis)
        expect(
            isinstance(got, str) and got.removesuffix(".ipynb") in lessons,
            f"built_in: “{axis}” was not built in {got}",
            "the notebook's name, as 01_collectives",
            got,
            hint="In which lesson were samples dealt out, the state sharded, a layer cut, the layers put into stages?",
        )
