"""Checks of 07_expert_parallel, TODOs 3 and 4: dispatch.

| TODO | achievement                           | evidence                                                   | needs  |
|------|---------------------------------------|------------------------------------------------------------|--------|
| 3    | rows brought to their experts         | order, counts, rows, bytes on 1 to 7 ranks, and in groups  |        |
| 4    | results combined, gradients sent back | against one process on 1 to 8 ranks; rows computed; bytes  | 3      |
"""

import torch

from grader.kit import Private, cases, check_sent, check_shape, check_tensor, count_of, expect, hinted, todo
from grader.kit import shares as uneven_shares

from .common import HINTS, NEEDED, REL, check_gradients, check_work, choices, right_mixture, traffic
from .ranks import (
    ROW_DTYPES,
    WIDTH,
    Expert,
    back_on_rank,
    combined_on_rank,
    exchanged_on_rank,
    gates_for,
    generator,
    members,
    row_numbers,
    sorted_on_rank,
    travelled_on_rank,
)

# ---------------------------------------------------------------------------------------------------
# TODO 3: sorted, exchanged, regrouped


@hinted(
    "Number the slots token by token, choice by choice. Which of two slots of one expert comes first, and what"
    " becomes of a slot that is -1?"
)
def check_sort(student):
    trials = []
    for number, (n, k, experts, dropped) in enumerate(
        ((6, 2, 4, 0.0), (40, 1, 3, 0.2), (25, 3, 5, 0.3), (0, 2, 4, 0.0), (4, 1, 6, 1.0), (6000, 2, 3, 0.1))
    ):
        draw = student.draw("sort", number)
        trials.append([choices(draw, n, experts, k, dropped=dropped, avoid=1), [n, k], experts])
    (seen,) = student.call(sorted_on_rank, world=1, group=False, trials=trials).evidence
    for found, (chosen, (n, k), experts) in zip(seen, trials, strict=True):
        what = f"sort_slots of {n} tokens with {count_of(k, 'choice')} of {experts} experts" + (
            ", some of them -1" if any(-1 in row for row in chosen) else ""
        )
        flat = [e for row in chosen for e in row]
        slots = sorted((slot for slot, e in enumerate(flat) if e >= 0), key=lambda slot: (flat[slot], slot))
        counts = [flat.count(e) for e in range(experts)]
        expect(isinstance(found, list), f"{what} does not return two tensors", "slots, counts", found)
        check_shape(f"{what}: the first result, slots,", found[0], (len(slots),), torch.int64)
        check_tensor(f"{what}: the second result, counts,", found[1], torch.tensor(counts))
        got = found[0].tolist()
        at = next((place for place, (a, b) in enumerate(zip(got, slots, strict=True)) if a != b), 0)
        told = f"{what}: the slots are in the wrong order, first at {at}"
        expect(got == slots, told, slots[at : at + 20], got[at : at + 20])


# (ranks, experts per rank, ranks in a group): a group of fewer than all ranks has every second, or every third, one.
EXCHANGES = ((1, 2, 1), (2, 3, 2), (3, 1, 3), (4, 2, 2), (7, 1, 7))


def tables(draw, size, each):
    """For each trial the rows from each rank of a group (row) to each expert (column).

    A usual one, one with a rank that has no tokens and a rank whose experts no token chose, one where most stay, one
    without any row, and one with a rank that has neither tokens nor a chosen expert.
    """
    experts = size * each
    common = [uneven_shares(draw, experts) for _ in range(size)]
    idle = [
        [0 if r == size - 1 or e // each == 0 else draw.randrange(1, 6) for e in range(experts)] for r in range(size)
    ]
    homely = [
        [draw.randrange(6, 9) if e // each == r else draw.randrange(2) for e in range(experts)] for r in range(size)
    ]
    alone = size // 2
    left_out = [[0 if alone in (r, e // each) else draw.randrange(1, 6) for e in range(experts)] for r in range(size)]
    return [common, idle, homely, [[0] * experts for _ in range(size)], left_out]


@todo(3)
def test_todo3_exchange(student):
    check_sort(student)
    for world, each, size in student.several(EXCHANGES, 2):
        draw = student.draw("exchange", world)
        offsets = draw.sample(range(1, 250), world)
        groups = members(world, size)
        of_group = [tables(draw, size, each) for _ in groups]
        counts, arriving = [None] * world, [None] * world
        for ranks, some in zip(groups, of_group, strict=True):
            for place, rank in enumerate(ranks):
                counts[rank] = [table[place] for table in some]
                arriving[rank] = [[row[place * each : (place + 1) * each] for row in table] for table in some]
        run = student.call(
            exchanged_on_rank,
            world=world,
            size=size,
            counts=Private(counts),
            arriving=Private(arriving),
            offset=Private(offsets),
        )
        marked = cases(run.events)
        told_size = (
            count_of(world, "rank")
            + (f" in groups of {size}" if size < world else "")
            + f", {count_of(each, 'expert')} each"
        )
        for number, kind in enumerate(
            (
                "",
                "; the last has no tokens, the first rank's experts are not chosen",
                "; most tokens stay",
                "; no rank has a token",
                "; one rank has nothing to send, and gets nothing",
            )
        ):
            for ranks, some in zip(groups, of_group, strict=True):
                table = some[number]
                for place, rank in enumerate(ranks):
                    found, mine = run.evidence[rank][number], slice(place * each, (place + 1) * each)
                    what = f"exchange_counts on {told_size}{kind}"
                    due = torch.tensor([row[mine] for row in table])
                    told = f"{what}: what rank {rank} is told"
                    check_tensor(told, found["counts"], due, rank=rank, hint=HINTS["counts"])
                    numbers = each * (size - 1)
                    sent = marked[2 * number]
                    check_sent(what, sent, 8 * numbers, 4 * numbers, NEEDED, [rank], HINTS["counts"])

                    dtype = ROW_DTYPES[number % 3]
                    what = f"exchange_rows in {dtype} on {told_size}{kind}"
                    pieces = []
                    for source, other in enumerate(ranks):
                        begin = sum(table[source][: place * each])
                        pieces.append(
                            row_numbers(offsets[other], sum(table[source]), dtype)[
                                begin : begin + sum(table[source][mine])
                            ]
                        )
                    due = torch.cat(pieces)
                    than = "the others' rows for it, in the order of the ranks"
                    check_tensor(f"{what}: what rank {rank} gets", found["rows"], due, rank=rank, than=than)
                    leaves = 3 * due.element_size() * (sum(table[place]) - sum(table[place][mine]))
                    check_sent(what, marked[2 * number + 1], leaves, leaves, NEEDED, [rank], HINTS["sent"])

                    of_expert = [e for row in table for e, count in enumerate(row[mine]) for _ in range(count)]
                    due = sorted(range(len(of_expert)), key=lambda i: (of_expert[i], i))
                    what = f"regroup({[row[mine] for row in table]})"
                    due = torch.tensor(due, dtype=torch.int64)
                    check_tensor(what, found["regrouped"], due, rank=rank, hint=HINTS["regroup"])


# ---------------------------------------------------------------------------------------------------
# TODO 4: the way back, and gradients


# (ranks, experts per rank, choices, ranks of a group, which rank has no tokens)
JOURNEYS = (
    (1, 3, 2, 1, None),
    (2, 1, 1, 2, None),
    (2, 2, 2, 2, 1),
    (3, 3, 2, 3, None),
    (4, 2, 2, 2, None),
    (5, 1, 2, 5, 3),
    (8, 1, 1, 8, None),
)


def check_exchange_gradient(student):
    world = 3
    draw = student.draw("gradient")
    table = [[2, 1, 3], [0, 2, 1], [4, 0, 1]]
    offsets, backwards = draw.sample(range(1, 250), world), draw.sample(range(1, 250), world)
    arriving = [[row[r] for row in table] for r in range(world)]
    ranks = student.call(
        back_on_rank,
        world=world,
        leaving=Private(table),
        arriving=Private(arriving),
        offset=Private(offsets),
        backwards=Private(backwards),
    ).evidence
    weights = [row_numbers(backwards[r], sum(arriving[r]), "float32") for r in range(world)]
    for rank, found in enumerate(ranks):
        due = torch.cat([weights[r][sum(arriving[r][:rank]) :][: table[rank][r]] for r in range(world)])
        for name, gradient, how in (("first", due, ""), ("second", torch.ones_like(due), " of a sum")):
            what = f"Exchange on {count_of(world, 'rank')}: the gradient{how}"
            than = "each row's, back where the row came from"
            check_tensor(f"{what} on rank {rank}", found[name], gradient, 1e-4, rank, than=than)


def check_combine(student):
    draw, trials = student.draw("combine"), []
    for n, k, dtype in ((5, 2, "float32"), (4, 1, "float32"), (6, 3, "bfloat16"), (3, 2, "float32")):
        count = 0 if n == 3 else n * k - k  # one token, at least, has fewer rows
        trials.append([n, k, draw.sample(range(n * k), count), dtype, draw.randrange(1 << 40)])
    (seen,) = student.call(combined_on_rank, world=1, group=False, trials=trials).evidence
    for found, (n, k, slots, dtype, seed) in zip(seen, trials, strict=True):
        what = f"combine of {len(slots)} rows in {dtype} for {n} tokens with {count_of(k, 'choice')}"
        rows = torch.randn(len(slots), 5, generator=generator(seed)).to(getattr(torch, dtype))
        gates, right = gates_for(seed + 1, n, k), torch.zeros(n, 5, dtype=torch.float64)
        for row, slot in zip(rows.double(), slots, strict=True):
            right[slot // k] += gates[slot // k, slot % k].double() * row
        than = f"what it should be: row i is the result for slot {slots}[i]"
        check_tensor(what, found, right, REL[f"torch.{dtype}"], dtype=rows.dtype, than=than)


@todo(4, needs=(3,))
def test_todo4_journey(student):
    with hinted(
        "The gradients of the rows that left this rank return on the same path: an exchange again. Which rank now sends"
        " how many rows to which?"
    ):
        check_exchange_gradient(student)
    with hinted(
        "Row i is the result for slot slots_R[i]: which token is that, and which gate? A token's results add up, and"
        " a token without results gets zeros."
    ):
        check_combine(student)
    for world, each, k, size, without in student.several(JOURNEYS, but=JOURNEYS[:1]):
        check_journey(student, world, each, k, size, without)


def check_journey(student, world, each, k, size, without):
    draw, experts = student.draw("journey", world, each), size * each
    groups = members(world, size)
    place_of = {rank: (g, place) for g, ranks in enumerate(groups) for place, rank in enumerate(ranks)}
    homes = [range(place_of[r][1] * each, (place_of[r][1] + 1) * each) for r in range(world)]
    ns = [0 if r == without else draw.randrange(5, 9) for r in range(world)]
    avoid = experts - 1 if experts > 2 else None
    chosen = [choices(draw, ns[r], experts, k, homes[r], dropped=0.15, avoid=avoid) for r in range(world)]
    seeds, of_expert = (
        [draw.randrange(1 << 40) for _ in range(world)],
        [[draw.randrange(1 << 40) for _ in range(experts)] for _ in groups],
    )
    mine = [[of_expert[place_of[r][0]][e] for e in homes[r]] for r in range(world)]
    run = student.call(
        travelled_on_rank,
        world=world,
        size=size,
        k=k,
        n=Private(ns),
        chosen=Private(chosen),
        seeds=Private(mine),
        seed=Private(seeds),
    )
    forward, backward = cases(run.events)
    what = (
        f"parallel_mixture on {count_of(world, 'rank')}"
        + (f" in groups of {size}" if size < world else "")
        + f", {count_of(experts, 'expert')}, {k} per token"
        + (f", none on rank {without}" if without is not None else "")
    )
    for g, ranks in enumerate(groups):
        layers = [Expert(WIDTH, seed).double() for seed in of_expert[g]]
        inputs, outs = {}, {}
        for r in ranks:
            h = torch.randn(ns[r], WIDTH, generator=generator(seeds[r])).double().requires_grad_()
            gates = gates_for(seeds[r] + 1, ns[r], k).double().requires_grad_()
            inputs[r], outs[r] = {"h": h, "gates": gates}, right_mixture(h, gates, chosen[r], layers)
        sum((outs[r] * torch.randn(ns[r], WIDTH, generator=generator(seeds[r] + 2))).sum() for r in ranks).backward()
        for r in ranks:
            check_shape(f"{what}: the result on rank {r}", run.evidence[r]["out"], (ns[r], WIDTH), torch.float32, r)
        for place, r in enumerate(ranks):
            rows = [sum(row.count(e) for other in ranks for row in chosen[other]) for e in homes[r]]
            check_work(f"{what}, rank {r}", run.evidence[r]["experts"], rows, r, homes[r][0])
            most, least = traffic([chosen[other] for other in ranks], place, each, 4 * WIDTH)
            check_sent(f"{what}, forward", forward, most + 8 * (experts - each), least, NEEDED, [r], HINTS["sent"])
            check_sent(f"{what}, backward", backward, most, least, NEEDED, [r], HINTS["sent"])
        for r in ranks:
            told = f"{what}: the result on rank {r}"
            check_tensor(told, run.evidence[r]["out"], outs[r].detach(), 1e-4, r, dtype=torch.float32)
        for r in ranks:
            mine = [layers[e] for e in homes[r]]
            with hinted(HINTS["way back"]):
                check_gradients(f"{what}, rank {r}", run.evidence[r], inputs[r], mine, 1e-4, r, homes[r][0])
