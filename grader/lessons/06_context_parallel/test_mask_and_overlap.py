"""Checks of 06_context_parallel, TODOs 4 and 5: mask and overlap.

| TODO | achievement                 | evidence                                                         | needs   |
|------|-----------------------------|------------------------------------------------------------------|---------|
| 4    | the causal mask, in zig-zag | blocks cover each visible pair once; values, gradients, work of each | 1, 2, 3 |
| 5    | exchanges hidden            | as 2 and 3; products between the start and the wait              | 1, 2, 3 |
"""

import math

import torch

from grader.kit import Fault, cases, check_answers, check_tensor, count_of, expect, hinted, place, todo, unsorted

from .common import (
    check_does_not_grow,
    check_forward,
    check_gradients,
    check_part,
    check_parts,
    check_ring,
    expected,
    must_attend_elsewhere,
    nbytes,
    some_ranks,
    spoken,
    tolerance,
)
from .ranks import RINGS, attention, deal_on_rank, dealt_on_rank, draw

# ---------------------------------------------------------------------------------------------------
# TODOs 2, 3 and 5: the ring


def check_hidden(what, events, world, least):
    """Of what each rank sends and receives, `least` bytes are in flight during at least half of a step's products."""
    for rank, mine in enumerate(events):
        total = sum(event["size"] for event in mine if event["e"] == "product")
        expect(
            total > 0,
            f"{what}: on rank {rank} the judge sees no matrix product",
            "products: @, einsum or attention",
            "none",
            rank,
        )
        for op in ("send", "recv"):
            began, done, hidden, seen = {}, 0, 0, []
            for event in mine:
                if event["e"] == "product":
                    done += event["size"]
                elif event.get("op") == op:
                    began[event["id"]] = done, event
                elif event["e"] == "wait" and event.get("of") in began:
                    start, message = began.pop(event["of"])
                    seen.append(done - start)
                    if done - start >= total / world / 2:
                        hidden += message["bytes"]
                        continue
                    exposed = message
            if hidden >= least:
                continue
            share = 100 * max(seen, default=0) * world / total
            where = exposed["where"]
            raise Fault(
                "wrong_value",
                f"{what}: of what rank {rank} {'sends' if op == 'send' else 'receives'}, {hidden:,} bytes are under "
                "way while it computes at least half of a step's "
                f"products; {least:,} should be. Between the start and the wait of the i{op} at {place(where)} it "
                "makes too few, or none",
                rank,
                where,
                expected=f"{least:,} bytes",
                seen=f"{hidden:,} bytes; at best {share:.0f} % of a step's products lie between start and wait",
            )


@todo(5, needs=(1, 2, 3))
def test_todo5_overlap(student):
    must_attend_elsewhere(student, "overlapped_forward")
    runs, alive = check_forward(student, "overlapped_forward", "overlapped_backward"), {}
    for world, run in runs.items():
        marked = cases(run.events)
        for number, told, shape, dtype, dealt, right in expected(student, world, student.seeds(world)):
            what, unit = f"overlapped_backward on {told}", nbytes(shape, dtype)
            for rank in range(world):
                names = ("the gradients of q", "of k", "of v")
                check_parts(what, run.evidence[rank][number]["grads"], names, rank)
            grads = [dict(zip("qkv", seen[number]["grads"])) for seen in run.evidence]
            check_gradients(what, grads, right["ranks"], 4 * tolerance(dtype, right["largest"]), dtype)
            forward, backward = marked[2 * number : 2 * number + 2]
            check_ring(what, backward, world, 4 * (world - 1) * unit, (4 * world - 2) * unit if world > 1 else 0)
            if number == 0 and world >= 3:
                alive[world] = [seen[0]["most backward"] for seen in run.evidence]
            if dealt == "everything" and world > 1:  # where all steps have the same work, on two ranks in three blocks
                least = 2 * (world - 1) * unit
                check_hidden(f"overlapped_forward on {told}", forward, world, least)
                check_hidden(what, backward, world, least)
    shape, dtype, *_ = RINGS[0]
    check_does_not_grow(f"overlapped_backward of {shape[2]} tokens per rank", alive, nbytes(shape, dtype))


# ---------------------------------------------------------------------------------------------------
# TODO 4: the work of each rank


def seen_pairs(mine, theirs, size):
    """Which of my queries sees which of their keys."""
    q, k = (torch.cat([torch.arange(piece * size, (piece + 1) * size) for piece in held]) for held in (mine, theirs))
    return k[None, :] <= q[:, None]


def causal(seeds, shape, order):
    """One process; `order` has the pieces of each rank, in its order."""
    size = shape[2] // 2
    places = torch.cat([torch.arange(piece * size, (piece + 1) * size) for mine in order for piece in mine])
    *qkv, grad = zip(*(draw(seed, shape, "float64", 4) for seed in seeds))
    q, k, v = (torch.cat(parts, dim=2).requires_grad_() for parts in qkv)
    out, _ = attention(q, k, v, places[None, :] <= places[:, None])
    out.backward(torch.cat(grad, dim=2))
    found = {"out": out, "q": q.grad, "k": k.grad, "v": v.grad}
    return [
        {name: tensor.narrow(2, rank * shape[2], shape[2]).detach() for name, tensor in found.items()}
        for rank in range(len(seeds))
    ]


@todo(4, needs=(1, 2, 3))
def test_todo4_causal(student):
    pick = student.draw("deal")
    check_pairs_of(student, pick)
    lists = [
        ([0], [0], 3),
        ([1], [0], 2),
        ([0], [1], 2),
        ([0, 7], [0, 7], 2),
        ([2, 5], [3, 4], 1),
        ([1, 6], [0, 7], 3),
        *(
            (unsorted(pick, pick.sample(range(9), 3)), pick.sample(range(9), n), pick.randrange(1, 5))
            for n in (1, 2, 3)
        ),
        (pick.sample(range(9), 1), unsorted(pick, pick.sample(range(9), 3)), pick.randrange(1, 5)),
    ]
    (seen,) = student.call(deal_on_rank, world=1, group=False, lists=lists).evidence
    for n, dealt in enumerate(seen["dealt"], start=1):
        check_deal(n, dealt)
    for (mine, theirs, size), where, blocks in zip(lists, seen["where"], seen["blocks"], strict=True):
        right = [position for piece in mine for position in range(piece * size, (piece + 1) * size)]
        hint = "Where does piece p begin in the sequence, and where does it end? The pieces keep the order of the list."
        check_tensor(f"positions_of({mine}, {size})", where, torch.tensor(right), hint=hint)
        check_blocks(mine, theirs, size, blocks)
    check_causal_ring(student, pick, seen["dealt"])


def check_pairs_of(student, pick):
    asked = [([r], n) for r, n in ((0, 8), (3, 8), (1, 1))] + [
        ([0, 7], 4),
        ([3, 4], 4),
        (unsorted(pick, pick.sample(range(12), 3)), pick.randrange(2, 9)),
    ]
    check_answers(
        student,
        {
            ("pairs_of", (mine, size)): sum(piece * size * size + size * (size + 1) // 2 for piece in mine)
            for mine, size in ((tuple(mine), size) for mine, size in asked)
        },
        wrong="is not what will happen",
    )


def check_deal(n, dealt):
    """Each piece is on one rank, and all ranks have equally much work."""
    told = f"pieces_of on {count_of(n, 'rank')}"
    whole_numbers = all(isinstance(mine, list) and all(isinstance(piece, int) for piece in mine) for mine in dealt)
    expect(whole_numbers, f"{told} does not return a list of numbers for each rank", "a list of two numbers", dealt)
    expect(
        sorted(piece for mine in dealt for piece in mine) == list(range(2 * n)),
        f"{told}: not every one of {2 * n} pieces is on one rank",
        list(range(2 * n)),
        dealt,
    )
    work = [sum(2 * piece + 1 for piece in mine) for mine in dealt]  # in halves of a square
    expect(
        len(set(work)) == 1,
        f"{told}: the ranks have unequal work, in triangles of a piece",
        f"{2 * n * 2 * n // n} each",
        work,
    )


@hinted(
    "A pair of pieces is visible as a whole, as a triangle, or not at all. Which numbers decide that, and which"
    " say where its rows and columns are?"
)
def check_blocks(mine, theirs, size, blocks):
    """Each pair of a query and a key that it may see is in one block, and little is computed in vain."""
    told = f"causal_blocks({mine}, {theirs}, {size})"
    expect(isinstance(blocks, list), f"{told} returns no list", "a list of blocks", blocks)
    covered, area = torch.zeros(len(mine) * size, len(theirs) * size), 0
    for block in blocks:
        expect(
            isinstance(block, list),
            f"{told} has an entry that is not a block: {block}",
            "(slice, slice, mask or None)",
            block,
        )
        first, last, left, end, mask = block
        expect(
            mask is None or mask.numel() == 1 or not mask.all(),
            f"{told} has a mask where everything is visible: a product with it does unnecessary work",
            "None",
            "a mask of ones",
        )
        covered[first:last, left:end] += 1 if mask is None else mask
        area += (last - first) * (end - left)
    right = seen_pairs(mine, theirs, size)
    future = int((covered[~right] > 0).sum())
    expect(future == 0, f"{told} lets queries see keys that come after them", "0 pairs", f"{future} pairs")
    missing, twice = int((covered[right] == 0).sum()), int((covered[right] > 1).sum())
    expect(
        missing == 0,
        f"{told} hides keys that queries must see",
        f"{int(right.sum())} pairs",
        f"{int(right.sum()) - missing} pairs",
    )
    expect(
        twice == 0, f"{told} has pairs in two blocks: they would count twice", "each pair once", f"{twice} pairs twice"
    )
    needed = sum(other <= piece for piece in mine for other in theirs) * size * size
    spare = size * size if mine == theirs and len(mine) > 1 else 0  # one block for all of a rank's own pieces is enough
    expect(
        area <= needed + spare,
        f"{told} computes {area} scores, and a mask hides more of them than it must: blocks in which nothing is"
        " visible need no work",
        f"{needed} scores",
        f"{area} scores",
    )


@hinted(
    "Pieces and blocks are right alone. Which pieces have the keys that are at hand in a step, and does each rank"
    " compute only what its queries see?"
)
def check_causal_ring(student, pick, dealt):
    """The ring as a whole: output, gradients, and how many scores each rank computes."""
    worlds = student.several((1, 2, 3, some_ranks(student, "causal")), but=(1,))
    for world in worlds:
        shape = (1, 2, 2 * pick.randrange(2, 5), 4)
        seeds, order = student.seeds(world), dealt[world - 1]
        right = student.reference(causal, seeds=[*seeds], shape=shape, order=order)
        run = student.call(dealt_on_rank, world=world, seed=seeds, shape=shape)
        size, (forward, _) = shape[2] // 2, cases(run.events)
        told = f"a causal ring on {spoken(shape, 'float32', world)}"
        for rank, mine in enumerate(run.evidence):
            check_part(
                f"the output of {told}", mine["out"], right[rank]["out"], 4 * tolerance("float32", 4), rank, "float32"
            )
            made = sum(event["size"] for event in forward[rank] if event["e"] == "product") / (
                2 * math.prod(shape) / shape[2]
            )
            visible = sum(piece * size * size + size * (size + 1) // 2 for piece in order[rank])
            most = (2 * world + 2) * size * size  # 2 N + 1 blocks, and one more: see `spare`
            expect(
                made <= most,
                f"{told}: rank {rank} computes {made:.0f} pairs of a query and a key, and {visible} of them are"
                " visible",
                f"at most {most}",
                f"{made:.0f}",
                rank,
            )
        check_gradients(told, [mine["grads"] for mine in run.evidence], right, 16 * tolerance("float32", 4), "float32")
