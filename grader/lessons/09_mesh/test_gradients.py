"""Checks of 09_mesh, TODOs 4 and 5: gradients.

| TODO | achievement                                | evidence                                                        | needs |
|------|--------------------------------------------|-----------------------------------------------------------------|-------|
| 4    | each axis's gradients                      | the table; all gradients of a model on 1, 3, 6 and 8 ranks against one process's; bytes sent | 2 |
| 5    | the norm of the whole gradient             | the norm, for drawn gradients in pieces; bytes sent             |       |
"""  # noqa: E501

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F

from grader.kit import (
    COPIED,
    OWN_ZEROS,
    Fault,
    Private,
    Wrong,
    a_number,
    cases,
    check_calls,
    check_sent,
    check_tensor,
    close,
    collectives,
    expect,
    known,
    meshes,
    numbers,
    sent_by,
    todo,
    zeros_in_turn,
)

from .common import box, line_of, shuffled, spoken
from .ranks import AXES, DRAWN, KINDS, due_on_rank, gradients_on_rank, norm_on_rank, players_of, weights_of

# ---------------------------------------------------------------------------------------------------
# Boxes of ranks, as the checks have them


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


# ---------------------------------------------------------------------------------------------------
# TODO 4: each axis's gradients


# Of float64 sums in another order. In float32 they would not do: where the model is sure of each word, its gradients
# are what rounding has left. A forgotten or doubled sum is half of a gradient and more.
CLOSE = 1e-9


def drawn_for(draw, sizes):
    """name -> gradient, for each rank. Each is all zeros on a rank; ranks with the same tokens have the same."""
    world = math.prod(sizes.values())
    ranks = [
        dict(zip(KINDS, zeros_in_turn([torch.tensor(numbers(draw, math.prod(DRAWN))) for _ in KINDS], rank, world)))
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


def text_of(case):
    draw = torch.Generator().manual_seed(case["words"])
    text = torch.randint(case["model"][0], (case["batch"], case["length"] + 1), generator=draw)
    return text[:, :-1], text[:, 1:]


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


@todo(4, in_place=("parameters",), needs=(2,))
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
    on = f"{spoken_mesh(case['sizes'])}, where each gradient lies in channels_last, and is all zeros on one rank"
    for rank, mine in enumerate(ranks):
        for name in case["drawn"][rank]:
            told = f"{on}: rank {rank}'s gradient of a parameter that is {name}"
            right = synchronized(case["drawn"], case["sizes"], rank, name).view(DRAWN)
            check_tensor(told, mine[name], right, CLOSE, rank, hint=COPIED)


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


def drawn_tensors(draw, sizes, number):
    """(name, cut, some, tied, stage, values) of all parameters of box `number`. In every second box the last of several
    stages has only zeros of its own, in the others the first parts of what is cut are zeros.
    """
    tensors, turn = [], draw.randrange(1, 4)  # the facts say what a parameter is, its name says something else
    called = dict(zip(NAMES, NAMES[turn:] + NAMES[:turn]))
    for stage in range(sizes["pp"]):
        # With many, a message for each parameter does not fit into the budget.
        ups = [("up", True, False), *((f"up_{i}", True, False) for i in range(50 * (sizes["tp"] == 4)))]
        for name, cut, some in (*ups, ("norm", False, True), ("bias", False, False)):
            if stage == 1 and name.startswith("up") != (number % 2 == 0):
                continue  # this stage holds nothing that is cut, or nothing else
            values = [draw.gauss(0, 1) for _ in range(sizes["tp"] * draw.randint(2, 4))]
            if number % 2 and cut and sizes["tp"] > 1:
                values[: len(values) // sizes["tp"]] = [0.0] * (len(values) // sizes["tp"])
            elif number % 2 == 0 and 0 < stage == sizes["pp"] - 1:
                values = [0.0] * len(values)
            tensors.append((f"{stage}.{called.get(name, name)}", cut, some, False, stage, values))
    tensors.append((called["table"], False, True, True, 0, [draw.gauss(0, 2) for _ in range(5)]))
    return tensors


@todo(5)
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
            tensors = drawn_tensors(draw, sizes, len(todo))
            # in float64 p.grad.double() is p.grad itself, and squaring it in place changes the gradient
            dtype = {1: "bfloat16", 2: "float64"}.get(len(todo), "float32") if world == 8 else "float32"
            todo.append({"sizes": shuffled(draw, sizes), "dtype": dtype, "tensors": tensors})
        with on_meshes(
            todo,
            "A stage may hold nothing that is cut, or nothing else, or no table, and a rank only zeros. Do all ranks"
            " make the same calls, with as many numbers?",
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
