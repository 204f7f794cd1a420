"""Checks and hints of 06_context_parallel.

| TODO | achievement                 | evidence                                                         | needs   |
|------|-----------------------------|------------------------------------------------------------------|---------|
| 1    | attention in pieces         | each function against float64; pieces hidden in part and wholly   |         |
| 2    | keys and values rotate      | values on 1 to 8 ranks; messages; bytes alive on 3 ranks and 8   | 1       |
| 3    | gradients travel back       | a block's gradients; all on 1 to 6 ranks; memory saved | 1, 2    |
| 4    | the causal mask, in zig-zag | blocks cover each visible pair once; values, gradients, work of each | 1, 2, 3 |
| 5    | exchanges hidden            | as 2 and 3; products between the start and the wait              | 1, 2, 3 |
| 6    | Ulysses                     | both swaps, values, gradients on 1 to 8 ranks; bytes sent, alive |         |
| 7    | costs, predicted            | the formulas                                                     |         |
| 8    | the model, distributed      | losses, gradients, weights of the serial run; activations alive  | 1 to 4  |

The reference is one process that has the whole sequence, in float64. Each rank draws its own queries, keys and values,
with a seed that no other rank knows. Their memory layout is the model's: heads and tokens swapped, so not contiguous.
Messages have the worst timing that is allowed: they arrive when they are waited for, and nothing buffers them.

A ring must avoid holding the whole sequence. So the peak of live bytes may not depend on the number of
ranks: with pieces of one size, 5 to 8 ranks hold as much each as 3 do.
"""

import gc
import itertools
import math
import random
import weakref

import torch

from grader.kit import (
    CROSSED,
    WAITING,
    Fault,
    Reporter,
    Wrong,
    as_evidence,
    cases,
    check_answers,
    check_delivery,
    check_refusals,
    check_tensor,
    collectives,
    count_of,
    crossed,
    expect,
    hinted,
    kind_of,
    mark,
    merciless_messages,
    near,
    place,
    raised,
    scale_of,
    todo,
    unsorted,
    watch_products,
    without,
)
from utils.data import IGNORE
from utils.memory import Storages
from utils.model import TransformerLM

BUILDS = "ring attention with its backward pass, zig-zag, overlap; Ulysses; which when"

DTYPES = {"float32": torch.float32, "float64": torch.float64}


# ---------------------------------------------------------------------------------------------------
# What the ranks are given, and the reference


def draw(seed, shape, dtype, number, loud=1.0):
    """So many tensors (B, H, T, K), the first of them, the queries, `loud`; drawn in float32, whatever the dtype."""
    B, H, T, K = shape
    drawn = torch.randn(4, B, T, H, K, generator=torch.Generator().manual_seed(seed))[:number]
    tensors = [tensor.to(DTYPES[dtype]).transpose(1, 2) for tensor in drawn]
    return [tensors[0] * loud, *tensors[1:]]


def pieces(rank, world, dealt):
    """Which pieces of the sequence a rank has: one of N in order, or two of 2 N in zig-zag."""
    last = 2 * world - 1
    return [rank, last - rank] if dealt == "zig-zag" else [rank]


def positions(rank, world, tokens, dealt):
    """The positions of a rank's tokens in the whole sequence."""
    mine = pieces(rank, world, dealt)
    size = tokens // len(mine)
    return torch.cat([torch.arange(piece * size, (piece + 1) * size) for piece in mine])


def blocks_of(rank, world, tokens, dealt):
    """The right answer to what a ring asks: all scores without a mask, else those that the causal mask shows. Three
    tokens and more are asked for row by row: a part of the blocks, such as the last, is less than half of the work.
    """

    def blocks(source):
        if dealt == "everything":
            rows = [slice(None)] if tokens < 3 else [slice(row, row + 1) for row in range(tokens)]
            return [(some, slice(None), None) for some in rows]
        mine, theirs = pieces(rank, world, dealt), pieces(source, world, dealt)
        size, found = tokens // len(mine), []
        for i, piece in enumerate(mine):
            for j, other in enumerate(theirs):
                if other <= piece:
                    mask = torch.ones(size, size, dtype=torch.bool).tril() if other == piece else None
                    found.append((slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size), mask))
        return found

    return blocks


def attention(q, k, v, mask=None):
    """In one piece: output and log-sum-exp."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1) @ v, scores.logsumexp(dim=-1)


def whole(seeds, shape, loud, dealt, quiet=None):
    """One process in float64: each rank's part of output, log-sum-exp and three gradients; and rank 0 alone. `quiet`: a
    rank whose output has a gradient of zeros.
    """
    world, T = len(seeds), shape[2]
    *qkv, grad = zip(*(draw(seed, shape, "float64", 4, loud) for seed in seeds))
    grad = [part * (rank != quiet) for rank, part in enumerate(grad)]
    q, k, v = (torch.cat(parts, dim=2).requires_grad_() for parts in qkv)
    places = torch.cat([positions(rank, world, T, dealt) for rank in range(world)])
    mask = None if dealt == "everything" else places[None, :] <= places[:, None]
    out, lse = attention(q, k, v, mask)
    out.backward(torch.cat(grad, dim=2))
    scores = q @ k.transpose(-2, -1) / math.sqrt(shape[-1])
    found = {"out": out, "lse": lse, "q": q.grad, "k": k.grad, "v": v.grad}
    ranks = [{name: tensor.narrow(2, rank * T, T).detach() for name, tensor in found.items()} for rank in range(world)]
    alone = attention(*(tensor[:, :, :T] for tensor in (q, k, v)), None if mask is None else mask[:T, :T])[0]
    return {"ranks": ranks, "largest": scores.abs().max().item(), "alone": alone.detach()}


def tolerance(dtype, largest):
    """Relative. A score is rounded in its last bits, and the exponential turns that into an error of the same
    size; the rest are sums in a different order. Where a softmax is almost 0 or 1, gradients are tiny differences of
    larger numbers: so no norm counts as less than a tenth per number."""
    return 16 * torch.finfo(DTYPES[dtype]).eps * (2 + largest)


# Hints for parts that several TODOs have.
RETURNED = "Which tensors does the docstring say that it returns, and in which order?"
RING = (
    "Count the steps. In how many of them is something sent on, what is it, and to whom? A rank talks to its two"
    " neighbours alone."
)
GROWS = "List what a rank needs at one moment: its own, what it computes with, what arrives. What else is still held?"
TRACKED = "Autograd tracks what a Function's apply returns. Is that what is returned here?"


def check_parts(what, seen, names, rank=None):
    """A tuple or list of as many tensors as there are names."""
    right = isinstance(seen, list) and len(seen) == len(names)
    shown = (
        f"{len(seen)} values" if isinstance(seen, list) else "one tensor" if isinstance(seen, torch.Tensor) else seen
    )
    told = f"{what} does not return {len(names)} tensors: {', '.join(names)}"
    expect(right, told, f"{len(names)} tensors", shown, rank, RETURNED)


def check_part(what, seen, right, rel, rank=None, dtype=None, wrongs=None, hint=""):
    """A tensor of this dtype is `right`, which is in float64."""
    at = f"on rank {rank}, " if rank is not None else ""
    scale = math.sqrt(right.numel()) / 10
    check_tensor(f"{at}{what}", seen, right, rel, rank, dtype=DTYPES[dtype], scale=scale, wrongs=wrongs, hint=hint)


def check_ring(what, events, world, least, most):
    """Messages between neighbours only, of `least` to `most` bytes from each rank, and no collective that moves any."""
    messages = check_delivery(what, events)
    for call in collectives(events):
        raise Wrong(
            f"{what}: rank {call.rank} calls {call.op} of {call.bytes:,} bytes; in a ring a rank communicates only "
            "with its neighbours",
            "messages between neighbours",
            call.op,
            call.rank,
            RING,
        )
    for message in messages:
        expect(
            (message.target - message.source) % world in (1, world - 1),
            f"{what}: rank {message.source} sends to rank {message.target}, which is not a neighbour",
            f"to rank {(message.source + 1) % world}",
            f"to rank {message.target}",
            message.source,
            RING,
        )
    for rank in range(world):
        sent = sum(message.bytes for message in messages if message.source == rank)
        expect(
            sent <= most,
            f"{what}: rank {rank} sends {sent:,} bytes, more than the budget",
            f"at most {most:,} bytes",
            f"{sent:,} bytes",
            rank,
            RING,
        )
        expect(
            sent >= least,
            f"{what}: rank {rank} sends {sent:,} bytes, which is less than the others need from it",
            f"{least:,} bytes or more",
            f"{sent:,} bytes",
            rank,
            RING,
        )


def check_does_not_grow(what, alive, unit):
    """`alive`: ranks -> the bytes alive on each rank, at most; `unit`: the bytes of one rank's keys."""
    if len(alive) < 2:  # in a second pass
        return
    few, many = sorted(alive)
    for rank, most in enumerate(alive[many]):
        before = max(alive[few])
        expect(
            most <= before + unit,
            f"{what}: with {many} ranks, rank {rank} holds {most:,} bytes at a time, with {few} ranks and the same"
            f" number of tokens per rank {before:,}. What a rank holds must not grow with the ring; one rank's keys"
            f" have {unit:,} bytes",
            f"{before:,} bytes",
            f"{most:,} bytes",
            rank,
            GROWS,
        )


def spoken(shape, dtype, world):
    B, H, T, K = shape
    return f"{count_of(world, 'rank')}, q, k and v of shape ({B}, {H}, {T}, {K}), {dtype}"


def nbytes(shape, dtype):
    return math.prod(shape) * DTYPES[dtype].itemsize


# ---------------------------------------------------------------------------------------------------
# TODO 1: pieces

# Shapes of queries, sizes of the pieces of the keys, dtype, and how loud queries are: at 250, exponentials overflow.
SPLITS = (
    ((2, 3, 5, 4), (3, 1, 4), "float32", 1.0),
    ((1, 2, 7, 8), (2, 5), "float32", 250.0),
    ((1, 1, 4, 2), (1, 1, 1, 2), "float64", 1.0),
)


def split(seed, number):
    """Case `number` in float64: queries, keys, values, the mask, and the columns of each piece.

    Some queries see nothing of a piece, one nothing of the first two, one nothing at all, and one only the key of its
    smallest score; but in the first case nothing is hidden.
    """
    shape, sizes, dtype, loud = SPLITS[number]
    B, H, T, K = shape
    S = sum(sizes)
    generator = torch.Generator().manual_seed(seed + number)
    q, k, v = (torch.randn(B, H, length, K, generator=generator).double() for length in (T, S, S))
    mask = torch.rand(T, S, generator=generator) < 0.6
    mask[0, -1], mask[0, : sizes[0] + sizes[1] - (len(sizes) == 2)] = True, False
    mask[1, : sizes[0]] = False
    mask[1, -1] = True
    mask[2] = False
    begin = S - sizes[-1]
    mask[3] = torch.arange(S) == begin + (q[0, 0, 3] @ k[0, 0, begin:].T).argmin()
    ends = [sum(sizes[:n]) for n in range(len(sizes) + 1)]
    return q * loud, k, v, None if number == 0 else mask, [slice(a, b) for a, b in zip(ends, ends[1:])]


def reference(q, k, v, mask):
    """Attention where a query may see no key: 0, and minus infinity."""
    out, lse = attention(q, k, v, mask)
    return out.nan_to_num(0.0), lse


def split_on_rank(code, rank, world, seed):
    """The results of `attend` for each piece, and of `merge` for two right pieces."""
    found = []
    for number, (_, _, dtype, _) in enumerate(SPLITS):
        q, k, v, mask, columns = split(seed, number)
        cast = [tensor.to(DTYPES[dtype]) for tensor in (q, k, v)]
        masks = [None if mask is None else mask[:, piece] for piece in columns]
        attended = [
            as_evidence(code.attend(cast[0], cast[1][:, :, piece], cast[2][:, :, piece], seen))
            for piece, seen in zip(columns, masks)
        ]
        right = [
            [tensor.to(DTYPES[dtype]) for tensor in reference(q, k[:, :, piece], v[:, :, piece], seen)]
            for piece, seen in zip(columns, masks)
        ]
        merged, so_far = [], right[0]
        for n, piece in enumerate(right[1:], start=2):
            merged.append(as_evidence(code.merge(*(tensor.clone() for tensor in (*so_far, *piece)))))
            seen = None if mask is None else mask[:, : columns[n - 1].stop]
            so_far = [
                tensor.to(DTYPES[dtype])
                for tensor in reference(q, k[:, :, : columns[n - 1].stop], v[:, :, : columns[n - 1].stop], seen)
            ]
        found.append({"attended": attended, "merged": merged})
    return found


@todo(
    1,
    minutes=15,
    why=(
        "This lesson, and every fast attention kernel, is built on one fact: a softmax can be computed in pieces, in"
        " any order, if you keep one number per row. A mask that hides a whole piece occurs in every causal ring."
    ),
    hints=(
        (
            "One piece: the weights are exp(score - log-sum-exp), and they add up to 1. Two pieces: which fraction of"
            " the new sum is each old sum?"
        ),
        (
            "scores(…).logsumexp(dim=-1) is the log-sum-exp; (scores - lse[..., None]).exp() @ v the output."
            " torch.logaddexp gives the log-sum-exp of both; (lse - both).exp() is the fraction. Before you subtract"
            " something, clamp it so that it is not minus infinity: then -inf minus it is -inf, and its exponential 0."
        ),
        (
            "attend: lse = s.logsumexp(-1); ((s - finite(lse)[..., None]).exp() @ v, lse). merge: both = "
            "torch.logaddexp(lse, new_lse); old and new outputs times "
            "(lse - finite(both)).exp()[..., None] and (new_lse - finite(both)).exp()[..., None], added; and both. "
            "finite(x) = x.clamp(min=torch.finfo(x.dtype).min)."
        ),
    ),
)
def test_todo1_pieces(student):
    seed = student.draw("pieces").randrange(1 << 40)
    largest_scores = []
    for number, (shape, _, _, loud) in enumerate(SPLITS):
        q, k, *_ = split(seed, number)
        largest_scores.append((q @ k.transpose(-2, -1)).abs().max().item() / math.sqrt(shape[-1]))
        student.premise(loud == 1.0 or largest_scores[-1] > 89, "an exponential without its maximum")
    (seen,) = student.call(split_on_rank, world=1, group=False, seed=seed).evidence
    for number, ((_, sizes, dtype, _), largest, found) in enumerate(zip(SPLITS, largest_scores, seen, strict=True)):
        q, k, v, mask, columns = split(seed, number)
        rel = tolerance(dtype, largest)
        about = f"{dtype}, scores up to {largest:.0f}{'' if mask is None else ', masked'}"
        for n, (piece, parts) in enumerate(zip(columns, found["attended"], strict=True), start=1):
            hidden = None if mask is None else mask[:, piece]
            told = f"attend to piece {n} of {len(sizes)} ({sizes[n - 1]} of {sum(sizes)} keys, {about})"
            check_parts(told, parts, ("output", "log-sum-exp"))
            right = reference(q, k[:, :, piece], v[:, :, piece], hidden)
            if (
                hidden is not None
                and not hidden.any(dim=1).all()
                and isinstance(parts[0], torch.Tensor)
                and parts[0].shape == right[0].shape
            ):
                blind = parts[0][:, :, ~hidden.any(dim=1)]
                expect(
                    not blind.isnan().any(),
                    f"{told}: the output of a query that sees none of these keys is nan",
                    "0",
                    "nan",
                    hint=BLIND,
                )
                expect(
                    bool((blind == 0).all()),
                    f"{told}: the output of a query that sees none of these keys is not 0",
                    "0",
                    blind,
                    hint=BLIND,
                )
            for name, part, good in zip(("output", "log-sum-exp"), parts, right):
                check_part(f"{told}: the {name}", part, good, rel, dtype=dtype, hint=HARD if number else "")
        for n, parts in enumerate(found["merged"], start=2):
            told = f"merge {'piece 1' if n == 2 else f'pieces 1 to {n - 1}'} with piece {n} ({about})"
            check_parts(told, parts, ("output", "log-sum-exp"))
            end = columns[n - 1].stop
            right = reference(q, k[:, :, :end], v[:, :, :end], None if mask is None else mask[:, :end])
            for name, part, good in zip(("output", "log-sum-exp"), parts, right):
                check_part(f"{told}: the {name}", part, good, rel, dtype=dtype, hint=HARD if number else MERGED)


BLIND = "All scores of such a query are minus infinity, and so is their log-sum-exp. What is one minus the other?"
HARD = "Here scores are large, or hidden. What is e to the power of the largest, and minus infinity minus itself?"
MERGED = "Two pieces have two sums of exponentials. Which fraction of their total is each, and what is it a factor of?"


# ---------------------------------------------------------------------------------------------------
# TODOs 2, 3 and 5: the ring

# Shape on each rank, dtype, how loud the queries are, how the sequence is distributed, on how many ranks.
RINGS = (
    ((1, 2, 6, 4), "float32", 1.0, "everything", (3, 5, 6, 8)),
    ((2, 3, 3, 4), "float64", 1.0, "everything", (1, 2)),
    ((1, 2, 4, 4), "float32", 2.0, "zig-zag", (1, 2)),
    ((1, 1, 3, 4), "float32", 1.0, "in order", (3,)),
)


def some_ranks(student, purpose):
    """4, 5, 6 or 7: each of TODOs 4 and 6 has its own."""
    return student.draw("ranks", purpose).randrange(4, 8)


def ring_worlds(student, purpose):
    """One rank, a pair, three; and many, whose bytes are compared with three's. Eight, the slowest, run once."""
    many = 8 if purpose == "ring_forward" else student.draw("ranks", purpose).randrange(5, 7)
    return student.several((1, 2, 3, many), but=(1, many))


def of_world(world):
    return [case for case in RINGS if world in case[4]]


def start_on_rank(code, rank, world, seed):
    """One exchange by the student's function, which does not wait; then the wait."""
    merciless_messages()
    given = [*draw(seed, (1, 2, 3, 2), "float32", 2), torch.arange(5) + seed % 1000]
    mark()
    answer = code.start_to_pass_on(given, rank, world)
    mark()
    if not isinstance(answer, tuple) or len(answer) != 2:
        return {"parts": as_evidence(answer) if isinstance(answer, tuple) else kind_of(answer)}
    arriving, works = answer
    right = isinstance(works, (list, tuple)) and all(hasattr(work, "wait") for work in works)
    for work in works if right else ():
        if work in Reporter.mine.in_flight:  # a second wait for one message would never end
            work.wait()
    return {"parts": [None, None], "arrived": as_evidence(arriving), "works": len(works) if right else kind_of(works)}


def ring_on_rank(code, rank, world, seed, forward, backward):
    """The student's rings of these names, in each case of this number of ranks; the second, if any, after the first."""
    merciless_messages()
    found = []
    for number, (shape, dtype, loud, dealt, _) in enumerate(of_world(world)):
        q, k, v, grad = draw(seed + number, shape, dtype, 4, loud)
        blocks = blocks_of(rank, world, shape[2], dealt)
        mark()
        with watch_products((q, k, v)) as watch:
            result = as_evidence(getattr(code, forward)(q, k, v, blocks, rank, world))
        mine = {"result": result, "most": watch.most, "grads": None}
        mark()
        if backward and isinstance(result, list) and len(result) == 2:
            with watch_products((q, k, v, *result, grad)) as watch:
                mine["grads"] = as_evidence(getattr(code, backward)(q, k, v, *result, grad, blocks, rank, world))
            mine["most backward"] = watch.most
        found.append(mine)
    return found


def expected(student, world, seeds):
    """For each case of this number of ranks: its number, its description, the case, and the result of one process."""
    for number, (shape, dtype, loud, dealt, _) in enumerate(of_world(world)):
        own_seeds = [seed + number for seed in seeds]
        right = student.reference(whole, seeds=own_seeds, shape=shape, loud=loud, dealt=dealt)
        told = spoken(shape, dtype, world) + (
            "" if dealt == "everything" else f", causal, distributed {dealt_out(dealt)}"
        )
        yield number, told, shape, dtype, dealt, right


def must_attend_elsewhere(student, name):
    """A premise of `check_forward`."""
    for world in ring_worlds(student, name):
        for _, _, _, dtype, dealt, right in expected(student, world, student.seeds(world)):
            if world > 1 and dealt == "everything":
                apart = (right["alone"] - right["ranks"][0]["out"]).norm()
                near_enough = apart <= 100 * tolerance(dtype, right["largest"])
                student.premise(not near_enough, "a rank that attends to its own keys only")


def check_forward(student, name, backward=""):
    """The forward ring on all numbers of ranks: values, messages, live bytes. Returns the runs."""
    runs, alive = {}, {}
    for world in ring_worlds(student, name):
        seeds = student.seeds(world)
        with hinted(WAITING, "hang"):
            run = runs[world] = student.call(ring_on_rank, world=world, seed=seeds, forward=name, backward=backward)
        marked = cases(run.events)
        for number, told, shape, dtype, dealt, right in expected(student, world, seeds):
            what, rel = f"{name} on {told}", tolerance(dtype, right["largest"])
            unit = nbytes(shape, dtype)
            for rank in range(world):
                seen, good = run.evidence[rank][number], right["ranks"][rank]
                check_parts(what, seen["result"], ("output", "log-sum-exp"), rank)
                check_part(f"the output of {what},", seen["result"][0], good["out"], rel, rank, dtype)
                check_part(f"the log-sum-exp of {what},", seen["result"][1], good["lse"], rel, rank, dtype)
            check_ring(what, marked[2 * number], world, 2 * (world - 1) * unit, 2 * (world - 1) * unit)
            if number == 0 and world >= 3:
                alive[world] = [seen[0]["most"] for seen in run.evidence]
    shape, dtype, *_ = RINGS[0]
    check_does_not_grow(f"{name} of {shape[2]} tokens per rank", alive, nbytes(shape, dtype))
    return runs


def dealt_out(dealt):
    return "in zig-zag" if dealt == "zig-zag" else dealt


@todo(
    2,
    minutes=25,
    needs=(1,),
    why=(
        "Now only the number of GPUs limits the length of a sequence: a rank holds three "
        "pieces, however many there are."
    ),
    hints=(
        (
            "In step 0 a rank has its own keys, in step 1 its left neighbour's. A step is: attend, then send on the"
            " pieces that you have just used."
        ),
        (
            "start_to_pass_on: contiguous tensors to send, torch.empty_like for what arrives, isend to (rank + 1) %"
            " world and irecv from (rank - 1) % world for each; works in one list. ring_forward: nothing_yet(q), then"
            " attend_blocks with blocks(at_hand(rank, step, world)) in each step, and pass_on in all but the last."
        ),
        (
            "at_hand: (rank - step) % world. for step in range(world): attend_blocks(out, lse, q, k, v, "
            "blocks(at_hand(rank, step, world))); if step < world - 1: "
            "k, v = pass_on([k, v], rank, world). Then return out, lse."
        ),
    ),
)
def test_todo2_ring(student):
    must_attend_elsewhere(student, "ring_forward")
    right = {
        ("at_hand", (rank, step, world)): (rank - step) % world
        for world in (1, 2, 3, 8)
        for rank in range(world)
        for step in range(world)
    }
    check_answers(student, right, wrong="is not what will happen")
    for world in (1, 3):
        seeds = student.seeds(world)
        with hinted(WAITING, "hang"):
            run = student.call(start_on_rank, world=world, seed=seeds)
        for rank, seen in enumerate(run.evidence):
            what = f"start_to_pass_on of three tensors on {count_of(world, 'rank')}"
            check_parts(what, seen["parts"], ("what arrives", "the works"), rank)
            expect(
                isinstance(seen["works"], int),
                f"{what}: the second value is not a list of works",
                "a list of works",
                seen["works"],
                rank,
                "isend and irecv return at once. What do they return, and where is it needed?",
            )
            waits = [event for event in cases(run.events)[0][rank] if event["e"] == "wait"]
            expect(
                not waits,
                f"{what}: rank {rank} waits before it returns; the caller may have something to do meanwhile",
                "no wait",
                f"{len(waits)} waits",
                rank,
                "The messages may be under way when this function returns. Where are they waited for, and with what?",
            )
            left = seeds[(rank - 1) % world]
            sent = [*draw(left, (1, 2, 3, 2), "float32", 2), torch.arange(5) + left % 1000]
            expect(
                isinstance(seen["arrived"], list) and len(seen["arrived"]) == 3,
                f"{what}: not as many tensors arrive as are sent",
                3,
                seen["arrived"] if isinstance(seen["arrived"], str) else len(seen["arrived"]),
                rank,
                ARRIVING,
            )
            for n, (got, good) in enumerate(zip(seen["arrived"], sent)):
                arrives = f"{what}: what arrives at rank {rank} as tensor {n}"
                than = f"what rank {(rank - 1) % world} has sent"
                check_tensor(arrives, got, good, rank=rank, than=than, hint=ARRIVING)
        check_delivery(what, [sum((case[rank] for case in cases(run.events)), []) for rank in range(world)])
    check_forward(student, "ring_forward")


ARRIVING = "For each tensor that is sent one arrives, of its shape and dtype. From which rank, and into which memory?"


def block_on_rank(code, rank, world, seed):
    """The gradients of one block of scores, in rows that also have other keys."""
    found = []
    for number, (_, _, dtype, _) in enumerate(SPLITS):
        q, k, v, mask, columns = split(seed, number)
        out, lse = reference(q, k, v, mask)
        grad = gradient_of(seed, number)
        piece = columns[-1]
        arguments = [q, k[:, :, piece], v[:, :, piece], lse, (grad * out).sum(dim=-1), grad]
        q, k, v, lse, delta, grad = (tensor.to(DTYPES[dtype]) for tensor in arguments)
        seen = code.attend_backward(q, k, v, None if mask is None else mask[:, piece], lse, delta, grad)
        found.append(as_evidence(seen))
    return found


def gradient_of(seed, number):
    shape = SPLITS[number][0]
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + 100 + number)).double()


def block_gradients(seed, number):
    """The same by autograd, in float64: what the last piece's scores add."""
    q, k, v, mask, columns = split(seed, number)
    of_block = torch.zeros(q.shape[-2], k.shape[-2], dtype=torch.bool)
    of_block[:, columns[-1]] = True
    here, elsewhere = q.clone().requires_grad_(), q
    k, v = k.requires_grad_(), v.requires_grad_()
    scores = torch.where(of_block, *(part @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) for part in (here, elsewhere)))
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    blind = scores.isinf().all(dim=-1, keepdim=True)
    weights = scores.masked_fill(blind, 0.0).softmax(dim=-1).masked_fill(blind, 0.0)
    (weights @ v).backward(gradient_of(seed, number))
    return here.grad, k.grad[:, :, columns[-1]], v.grad[:, :, columns[-1]]


def through_ring_on_rank(code, rank, world, seed):
    """Forward and backward through the student's Function, in each case of this number of ranks."""
    merciless_messages()
    found = []
    for number, (shape, dtype, loud, dealt, _) in enumerate(of_world(world)):
        *given, grad = draw(seed + number, shape, dtype, 4, loud)
        q, k, v = (tensor.requires_grad_() for tensor in given)
        blocks = blocks_of(rank, world, shape[2], dealt)
        with watch_products((q, k, v, grad)) as watch:
            there = sum(watch.bytes_alive().values())
            mark()
            out = code.RingAttention.apply(q, k, v, blocks, rank, world)
            result = as_evidence(out)
            saved, watch.most = sum(watch.bytes_alive().values()) - there, 0
            saved -= result.untyped_storage().nbytes() if isinstance(result, torch.Tensor) else 0
            learns = isinstance(out, torch.Tensor) and out.requires_grad
            mark()
            gc.disable()  # which ends circles, some time
            if learns:
                out.backward(grad)
            written = isinstance(result, torch.Tensor) and not torch.equal(out, result)
            left = weakref.ref(out) if learns else lambda: None
            del out
            kept = left() is not None
            gc.enable()
        found.append(
            {
                "out": result,
                "saved": saved,
                "most": watch.most,
                "learns": learns,
                "kept": kept,
                "written": written,
                "grads": {name: as_evidence(t.grad) for name, t in zip("qkv", (q, k, v))},
            }
        )
    return found


def crossed_on_rank(code, rank, world, seed, shape):
    """Through the student's Function twice, with different blocks, at the same time."""
    passes = []
    for number, dealt in enumerate(CROSSED_WAYS):
        *given, grad = draw(seed + number, shape, "float32", 4)
        grad *= rank != number  # as where all targets of a rank are IGNORE
        blocks = blocks_of(rank, world, shape[2], dealt)

        def through(q, k, v, blocks=blocks):
            return code.RingAttention.apply(q, k, v, blocks, rank, world)

        passes.append((through, [tensor.requires_grad_() for tensor in given], grad))
    return crossed(passes)


CROSSED_WAYS = "everything", "zig-zag"
SPOKEN = {"q": "queries", "k": "keys", "v": "values"}


@todo(
    3,
    minutes=35,
    needs=(1, 2),
    why=(
        "Half of the work, and most of the mistakes: if gradients end one rank away from their keys, the model still"
        " seems to learn. Autograd would have saved every piece that passed: the whole sequence again."
    ),
    hints=(
        (
            "A block: write the five formulas in their order. The ring: follow rank 0's keys through three ranks, step"
            " by step, and note which ranks have added something to their gradient."
        ),
        (
            "The weights of a block are (scores - finite(lse)[..., None]).exp(). delta is (grad_out * out).sum(dim=-1),"
            " once, before the ring. blocks_backward adds to three tensors of zeros. Keys and values are sent on in"
            " all steps but the last; the gradients of keys and values in every step, including the last."
            " save_for_backward(q, k, v, out, lse)."
        ),
        (
            "ds = p * (dp - delta[..., None]) / sqrt(K); return ds @ k, ds.transpose(-2, -1) @ q, p.transpose(-2, -1) @"
            " grad_out. In each step: blocks_backward(…); if step < world - 1: k, v = pass_on([k, v], …); then grad_k,"
            " grad_v = pass_on([grad_k, grad_v], …). The Function's backward returns the three and None, None, None."
        ),
    ),
)
def test_todo3_backward(student):
    seed = student.draw("block").randrange(1 << 40)
    student.premise(hides_the_loudest(seed), "a mask that comes after the exponential")
    (seen,) = student.call(block_on_rank, world=1, group=False, seed=seed).evidence
    for number, (shape, sizes, dtype, _) in enumerate(SPLITS):
        q, k, *_ = split(seed, number)
        largest = (q @ k.transpose(-2, -1)).abs().max().item() / math.sqrt(shape[-1])
        masked = "" if number == 0 else ", masked"
        what = f"attend_backward, a block of {shape[2]} queries and {sizes[-1]} of {sum(sizes)} keys ({dtype}{masked})"
        check_parts(what, seen[number], ("the gradients of q", "of k", "of v"))
        gradients = student.reference(block_gradients, seed=seed, number=number)
        for name, got, right in zip("qkv", seen[number], gradients):
            check_part(
                f"{what}: the gradient of the {SPOKEN[name]}", got, right, 4 * tolerance(dtype, largest), dtype=dtype
            )
    saved, alive = {}, {}
    for world in ring_worlds(student, "backward"):
        seeds = student.seeds(world)
        with hinted(WAITING, "hang"):
            run = student.call(through_ring_on_rank, world=world, seed=seeds)
        marked = cases(run.events)
        for number, told, shape, dtype, _, right in expected(student, world, seeds):
            what, unit = f"RingAttention on {told}", nbytes(shape, dtype)
            rel = 4 * tolerance(dtype, right["largest"])  # a gradient is a sum of differences of such numbers
            for rank in range(world):
                mine = run.evidence[rank][number]
                good, hint = (
                    right["ranks"][rank]["out"],
                    "The forward pass is the ring of TODO 2. Which of its results is returned?",
                )
                check_part(f"the output of {what},", mine["out"], good, rel, rank, dtype, hint=hint)
                told_learns = f"{what}: the output on rank {rank} needs no gradient, though q, k and v do"
                expect(mine["learns"], told_learns, "requires_grad", "none", rank, TRACKED)
                expect(
                    not mine["kept"],
                    f"{what}: after the backward pass, the output on rank {rank} is kept in a circle: it refers to ctx,"
                    " and an attribute of ctx to it",
                    "tensors in ctx.save_for_backward",
                    "the output in an attribute",
                    rank,
                    "How can ctx keep a tensor without making a circle?",
                )
                expect(
                    not mine["written"],
                    f"{what}: the backward pass writes into the output of the forward pass on rank {rank}",
                    "the output as it was returned",
                    "other numbers",
                    rank,
                    "Others may still read that output. Which operation of the backward pass works in place?",
                )
            check_gradients(what, [seen[number]["grads"] for seen in run.evidence], right["ranks"], rel, dtype)
            forward, backward = marked[2 * number : 2 * number + 2]
            once = 2 * (world - 1) * unit
            check_ring(f"the forward pass of {what}", forward, world, once, once)
            check_ring(f"the backward pass of {what}", backward, world, 2 * once, 2 * once + 2 * unit * (world > 1))
            if number == 0 and world >= 3:
                saved[world] = [seen[0]["saved"] for seen in run.evidence]
                alive[world] = [seen[0]["most"] for seen in run.evidence]
    shape, dtype, *_ = RINGS[0]
    check_does_not_grow(
        f"between forward and backward pass of RingAttention, {shape[2]} tokens per rank", saved, nbytes(shape, dtype)
    )
    check_does_not_grow(f"the backward pass of RingAttention, {shape[2]} tokens per rank", alive, nbytes(shape, dtype))
    with hinted(CROSSED):
        check_crossed(student)


def hides_the_loudest(seed):
    """Whether a hidden score exceeds the one that is seen by so much that its exponential overflows."""
    q, k, *_ = split(seed, 1)
    shape, sizes, *_ = SPLITS[1]
    scores = (q[0, 0, 3] @ k[0, 0].T)[-sizes[-1] :] / math.sqrt(shape[-1])
    return bool(scores.max() - scores.min() > 89)


def check_crossed(student):
    world, shape = 2, (1, 2, 4, 4)
    seeds = student.seeds(world)
    rights = [
        student.reference(whole, seeds=[s + number for s in seeds], shape=shape, loud=1.0, dealt=dealt, quiet=number)
        for number, dealt in enumerate(CROSSED_WAYS)
    ]
    ranks = student.call(crossed_on_rank, world=world, seed=seeds, shape=shape).evidence
    for number, right in enumerate(rights):
        what = f"RingAttention with the blocks of two layers, both forward passes first: layer {number + 1}"
        grads = [dict(zip("qkv", mine[number])) for mine in ranks]
        check_gradients(what, grads, right["ranks"], 4 * tolerance("float32", right["largest"]), "float32", CROSSED)


# Hints for the gradients of a ring, by what they are of.
STAY = "Queries stay on their rank. What does each step add to their gradient, and from which keys?"
TRAVEL = "Follow rank 0's keys, step by step. Which ranks have added to their gradient, and where does it end up?"


def check_gradients(what, seen, right, rel, dtype, hint=""):
    """The gradients of q, k and v on all ranks; and if they are wrong, which rank's they are."""
    world = len(seen)
    for name in "qkv":
        for rank in range(world):
            others = {
                f"rank {other}'s gradient of the {SPOKEN[name]}: it is not back yet": right[other][name]
                for other in range(world)
                if other != rank
            }
            gradient = f"the gradient of the {SPOKEN[name]}, {what},"
            told = hint or (STAY if name == "q" else TRAVEL)
            check_part(gradient, seen[rank][name], right[rank][name], rel, rank, dtype, others, told)


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


@todo(
    5,
    minutes=40,
    further=True,
    needs=(1, 2, 3),
    why=(
        "Without it every step costs its products and its messages, one after the other. With it a ring over slow "
        "links costs no more than the attention, if pieces are long enough: "
        "TODO 7 says how long."
    ),
    hints=(
        (
            "Three things in a step: start the exchange, compute with what you have, wait. In the last step there is no"
            " exchange."
        ),
        (
            "start_to_pass_on returns what arrives and the works; do not touch what arrives before work.wait() has been"
            " called for all of them. Keep the current keys and values in their names until then."
        ),
        (
            "next_pair, works = start_to_pass_on([k, v], rank, world); attend_blocks(…); for work in works:"
            " work.wait(); k, v = next_pair. Backward the same around blocks_backward, and then grad_k, grad_v ="
            " pass_on([grad_k, grad_v], rank, world)."
        ),
    ),
)
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


def deal_on_rank(code, rank, world, lists):
    """Which pieces each rank has, where they are, and which blocks pairs of lists of pieces need."""
    dealt = [[as_evidence(code.pieces_of(r, n)) for r in range(n)] for n in range(1, 9)]
    where = [as_evidence(code.positions_of(list(mine), size)) for mine, _, size in lists]
    blocks = []
    for mine, theirs, size in lists:
        found = code.causal_blocks(list(mine), list(theirs), size)
        blocks.append(
            kind_of(found)
            if not isinstance(found, (list, tuple))
            else [described(block, len(mine) * size, len(theirs) * size) for block in found]
        )
    return {"dealt": dealt, "where": where, "blocks": blocks}


def described(block, rows, columns):
    """A block as [first row, end, first column, end, mask], or what it is instead."""
    if (
        not isinstance(block, (list, tuple))
        or len(block) != 3
        or not all(isinstance(part, slice) for part in block[:2])
    ):
        return (
            kind_of(block)
            if not isinstance(block, (list, tuple))
            else f"{len(block)} parts: {', '.join(type(part).__name__ for part in block)}"
        )
    (first, last, step), (left, end, stride) = block[0].indices(rows), block[1].indices(columns)
    mask = block[2]
    if step != 1 or stride != 1:
        return "slices with steps"
    if mask is not None and not (isinstance(mask, torch.Tensor) and mask.dtype == torch.bool):
        return f"a mask that is {str(mask.dtype) if isinstance(mask, torch.Tensor) else type(mask).__name__}"
    if mask is not None and list(mask.shape) != [last - first, end - left]:
        return f"a mask of shape {tuple(mask.shape)} for {last - first} queries and {end - left} keys"
    return [first, last, left, end, None if mask is None else mask.int()]


def seen_pairs(mine, theirs, size):
    """Which of my queries sees which of their keys."""
    q, k = (torch.cat([torch.arange(piece * size, (piece + 1) * size) for piece in held]) for held in (mine, theirs))
    return k[None, :] <= q[:, None]


def dealt_on_rank(code, rank, world, seed, shape):
    """Forward and backward with the student's ring and blocks; products are counted."""
    merciless_messages()
    *given, grad = draw(seed, shape, "float32", 4)
    q, k, v = (tensor.requires_grad_() for tensor in given)
    mine = [code.pieces_of(source, world) for source in range(world)]
    size = shape[2] // 2
    with watch_products((q, k, v)):
        mark()
        out = code.RingAttention.apply(
            q, k, v, lambda source: code.causal_blocks(list(mine[rank]), list(mine[source]), size), rank, world
        )
        mark()
        out.backward(grad)
    return {
        "out": as_evidence(out),
        "grads": {name: as_evidence(t.grad) for name, t in zip("qkv", (q, k, v))},
        "positions": as_evidence(code.positions_of(list(mine[rank]), size)),
    }


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


@todo(
    4,
    minutes=20,
    further=True,
    needs=(1, 2, 3),
    why=(
        "The slowest rank sets the pace. In order, the last of many ranks works twice as long as the mean, and all "
        "others wait for it in every layer; in zig-zag no rank waits, and half of all "
        "scores are never computed."
    ),
    hints=(
        (
            "Draw the square of scores for two ranks, cut into four pieces a side, and colour the lower triangle by"
            " the rank of its row. Which two rows together have as much colour as the other two?"
        ),
        (
            "Piece p's queries see p whole pieces and their own triangle: p * size * size + size * (size + 1) // 2"
            " pairs. Ranks have pieces rank and 2 * world - 1 - rank. causal_blocks takes two loops: an earlier piece"
            " is completely visible, the same piece is visible as a triangle, a later one not at all. The slices"
            " depend on the place in the list, the comparison on the number of the piece."
        ),
        (
            "for i, piece in enumerate(mine): for j, other in enumerate(theirs): rows = slice(i * size, (i + 1) *"
            " size), columns likewise with j; if other < piece: (rows, columns, None); elif other == piece: (rows,"
            " columns, torch.ones(size, size, dtype=torch.bool).tril()). positions_of: torch.cat of torch.arange(piece"
            " * size, (piece + 1) * size)."
        ),
    ),
)
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


# ---------------------------------------------------------------------------------------------------
# TODO 6: Ulysses

# Ranks -> heads, numbers per head. One of 4 to 7 is drawn. On 8 ranks the live bytes are checked; there a head has so
# many numbers that the scores, which a student may hold, are small in comparison.
ULYSSES = {1: (3, 4), 2: (4, 4), 3: (6, 4), 4: (8, 4), 5: (5, 4), 6: (12, 4), 7: (7, 4), 8: (8, 64)}
# What may be alive at a time, in multiples of one rank's queries, and of the scores of its heads. On 8 ranks the
# solution needs 11 in the forward pass and 15 in the backward pass; with queries, keys and values in one tensor it is
# 17. An answer that makes room for all heads of all tokens needs 32 and 45.
ALIVE, ALIVE_SCORES = 20, 8


def swaps_on_rank(code, rank, world, seed, shape, dtype):
    """Both exchanges, separately; causal attention, forward and backward; and bytes."""
    *given, grad = draw(seed, shape, dtype, 4)
    B, H, T, K = shape
    mine = draw(seed + 1, (B, H // world, world * T, K), dtype, 1)[0]
    there = as_evidence(code.tokens_to_heads(given[0], world))
    back = as_evidence(code.heads_to_tokens(mine, world))
    q, k, v = (tensor.requires_grad_() for tensor in given)
    with watch_products((q, k, v, grad)) as watch:
        mark()
        out = code.ulysses(q, k, v, world)
        result = as_evidence(out)
        mark()
        learns = isinstance(out, torch.Tensor) and out.requires_grad
        if learns:
            forward, watch.most = watch.most, 0
            out.backward(grad)
    return {
        "there": there,
        "back": back,
        "out": result,
        "learns": learns,
        "most": {"forward": forward, "backward": watch.most} if learns else {},
        "grads": {name: as_evidence(t.grad) for name, t in zip("qkv", (q, k, v))},
    }


def refused_on_rank(code, rank, world, name, grid):
    """The answers to so many heads (`ulysses`) or tokens (`my_share`)."""
    said = []
    for n in grid:
        qkv, xy = torch.randn(3, 1, n, 2, 4), torch.zeros(2, 1, n, dtype=torch.int64)
        given = (*qkv, world) if name == "ulysses" else (*xy, rank, world)
        mark()
        said.append(raised(lambda given=given: getattr(code, name)(*given)))
    return said


def check_refused(student, name, what, parts):
    """Numbers that are not divisible by `parts` times the ranks are refused, in one line that has both, before anything
    is sent.
    """
    world = student.draw("refused", name).randrange(2, 5)
    grid = range(1, 2 * parts * world + 2)
    run = student.call(refused_on_rank, world=world, name=name, grid=[*grid])
    check_refusals(
        [zip([(n,) for n in grid], said, strict=True) for said in run.evidence],
        refused=lambda n: n % (parts * world) != 0,
        told=lambda n: f"{name} of {count_of(n, what)} on {count_of(world, 'rank')}",
        words=lambda n: (n, parts * world),
        hint=f"Into how many equal parts must the {what}s be cut, and at which line is it known whether they can be?",
    )
    for n, events in zip(grid, cases(run.events), strict=True):
        for rank, mine in enumerate(events):
            sent = [event["op"] for event in mine if event["e"] == "op" and event["bytes"]]
            told = f"{name} of {count_of(n, what)} on {count_of(world, 'rank')} is refused after something was sent"
            hint = "What cannot be done is refused first. Which call comes before that?"
            expect(n % (parts * world) == 0 or not sent, told, "no call", sent, rank, hint)


@todo(
    6,
    minutes=25,
    why=(
        "It is the simplest way to long sequences, and it changes nothing inside the attention: any kernel and any mask"
        " that works on one device works here. Its bytes shrink with the number of ranks."
    ),
    hints=(
        (
            "Which dimension must come first, so that part j is what rank j needs? In the first exchange it is the"
            " heads, in world groups; in the inverse it is the tokens."
        ),
        (
            "x.unflatten(1, (world, -1)) makes the groups of heads a dimension; movedim(1, 0) brings it to"
            " the front; .contiguous(), torch.empty_like, all_to_all_single. What arrives is (rank, B, heads, T, K):"
            " move the ranks before the tokens with movedim(0, 2), and flatten(2, 3). Back: unflatten(2, …), movedim(2,"
            " 0); then movedim(0, 1) and flatten(1, 2)."
        ),
        (
            "backward of TokensToHeads: heads_to_tokens of the gradient, and None for world; the other one the other"
            " way round. ulysses: if q.shape[1] % world: raise ValueError(…); three times TokensToHeads.apply(x,"
            " world); F.scaled_dot_product_attention(…, is_causal=True); HeadsToTokens.apply(out, world)."
        ),
    ),
)
def test_todo6_ulysses(student):
    pick = student.draw("ulysses")
    for world in student.several((1, 2, 3, some_ranks(student, "ulysses"), 8), but=(1, 8)):
        heads, numbers_a_head = ULYSSES[world]
        shape = (pick.randrange(1, 3), heads, pick.randrange(2, 4), numbers_a_head)
        seeds, (B, H, T, K) = student.seeds(world), shape
        right = student.reference(whole, seeds=[*seeds], shape=shape, loud=1.0, dealt="in order")
        dtype = "float64" if world == 2 else "float32"
        run = student.call(swaps_on_rank, world=world, seed=seeds, shape=shape, dtype=dtype)
        rel = tolerance(dtype, right["largest"])
        everyones = torch.cat([draw(seed, shape, dtype, 1)[0] for seed in seeds], dim=2)
        of_heads = torch.cat([draw(seed + 1, (B, H // world, world * T, K), dtype, 1)[0] for seed in seeds], dim=1)
        told = spoken(shape, dtype, world)
        for rank, mine in enumerate(run.evidence):
            group = slice(rank * H // world, (rank + 1) * H // world)
            for name, got, good in (
                ("tokens_to_heads", mine["there"], everyones[:, group]),
                ("heads_to_tokens", mine["back"], of_heads[:, :, rank * T : (rank + 1) * T]),
            ):
                check_part(f"what {name} returns on {told},", got, good.double(), 0.0, rank, dtype)
            what, good = f"the output of ulysses on {told}", right["ranks"][rank]["out"]
            check_part(what, mine["out"], good, 4 * rel, rank, dtype, hint=SWAPPED)
            expect(
                mine["learns"],
                f"ulysses on {told}: the output on rank {rank} needs no gradient, though q, k and v do",
                "requires_grad",
                "none",
                rank,
                TRACKED,
            )
        grads = [mine["grads"] for mine in run.evidence]
        check_gradients(f"ulysses on {told}", grads, right["ranks"], 16 * rel, dtype, SWAPPED_BACK)
        unit = nbytes(shape, dtype)
        for direction, events in zip(("forward", "backward"), cases(run.events), strict=True):
            check_swaps(f"the {direction} pass of ulysses on {told}", events, 4 * (world - 1) / world * unit)
        if world == 8:
            scores = B * (H // world) * (world * T) ** 2 * DTYPES[dtype].itemsize
            check_alive(told, run.evidence, unit, ALIVE * unit + ALIVE_SCORES * scores)
    check_refused(student, "ulysses", "head", parts=1)


SWAPPED = "Both exchanges are right. What goes through the first, what is computed with all tokens, what comes back?"
SWAPPED_BACK = (
    "The forward pass is right. Where must the gradient of what was swapped go, and which exchange takes it there?"
)
SHARE_SENT = "How many tensors are exchanged, and which part of each can stay on its rank?"


def check_swaps(told, events, budget):
    """Each rank sends the bytes that the others need from it, and no more."""
    messages, calls = check_delivery(told, events), collectives(events)
    for rank in range(len(events)):
        waits = [event for event in events[rank] if event["e"] == "op" and event["op"] == "barrier"]
        expect(
            not waits,
            f"{told}: rank {rank} also waits at a barrier, though the exchanges wait for everything needed",
            "no barrier",
            f"{len(waits)} of them",
            rank,
            "An exchange ends when its tensors are there. What else would a rank wait for?",
        )
        sent = sum(message.bytes for message in messages if message.source == rank)
        sent += sum(call.sent for call in calls if call.rank == rank)
        expect(
            sent <= budget * 1.001,
            f"{told}: rank {rank} sends {sent:,.0f} bytes, more than the budget",
            f"at most {budget:,.0f} bytes",
            f"{sent:,.0f} bytes",
            rank,
            SHARE_SENT,
        )
        expect(
            sent >= budget * 0.999,
            f"{told}: rank {rank} sends {sent:,.0f} bytes, which is less than the others need from it",
            f"{budget:,.0f} bytes",
            f"{sent:,.0f} bytes",
            rank,
            SHARE_SENT,
        )


def check_alive(told, ranks, unit, most):
    for rank, mine in enumerate(ranks):
        for direction, alive in mine["most"].items():
            expect(
                alive <= most,
                f"the {direction} pass of ulysses on {told}: rank {rank} has {alive:,} bytes alive at a time; its "
                f"queries have {unit:,}. It needs its own heads of all tokens, and its own tokens of all heads: a "
                "few copies of these, and the scores",
                f"at most {most:,} bytes",
                f"{alive:,} bytes",
                rank,
                "Which tensor has all heads of all tokens? No rank needs that at any moment.",
            )


@todo(
    7,
    minutes=10,
    why=(
        "Two lines of arithmetic decide between the two before any code runs: does the number of ranks divide the"
        " number of heads, and is a rank's share long enough for the ring to hide its messages?"
    ),
    hints=(
        "Count tensors and rounds. The ring sends two tensors in each round, Ulysses a part of four tensors, once.",
        (
            "The ring: world - 1 rounds of 2 * nbytes. Ulysses: q, k, v and the output, (world - 1) / world of each."
            " For the length: per head and sequence a step computes 2 * c * K * c operations, twice, and sends c * K"
            " numbers, twice. Set operations / flops equal to bytes / bandwidth, and solve for c."
        ),
        (
            "(world - 1, 2 * (world - 1) * nbytes); (4, 4 * (world - 1) / world * nbytes); the largest number up to "
            "available for which heads % ranks == 0; itemsize * flops / (2 * bandwidth), "
            "twice that if causal."
        ),
    ),
)
def test_todo7_costs(student):
    right, draw = {}, student.draw("costs")
    for nbytes_, world in ((4096, 1), *((24 * draw.randrange(99, 9999), world) for world in range(2, 9))):
        right["ring_cost", (nbytes_, world)] = (world - 1, 2 * (world - 1) * nbytes_)
        right["ulysses_cost", (nbytes_, world)] = (4, 4 * (world - 1) / world * nbytes_)
    for heads, available in itertools.product(range(1, 13), range(1, 10)):
        right["most_ranks", (heads, available)] = max(n for n in range(1, available + 1) if heads % n == 0)
    for flops, bandwidth, itemsize in ((400e12, 450e9, 2), (400e12, 50e9, 2), (1e10, 1e9, 4)):
        right["hiding_length", (flops, bandwidth, itemsize, False)] = itemsize * flops / (2 * bandwidth)
        right["hiding_length", (flops, bandwidth, itemsize, True)] = itemsize * flops / bandwidth
    hints = {
        "most_ranks": "A head is on one rank, and each rank has equally many. Which numbers of ranks allow that?",
        "hiding_length": (
            "At this length the products of a step take as long as its messages. Which of the two grows faster with the"
            " length, and which of them does a causal mask change?"
        ),
    }
    check_answers(student, right, wrong="is not what will happen", hints=hints)


# ---------------------------------------------------------------------------------------------------
# TODO 8: the model

WORDS, STEPS = 13, 3
REL = 1e-4  # as in all lessons: sums of float32 in a different order differ by less


def made_model(world):
    torch.manual_seed(0)
    return TransformerLM(WORDS, dim=12, n_heads=2, n_layers=2, max_len=8 * world)


def batch_of(seed, step, world):
    """Tokens and targets of a step, of lengths that differ. In the first one no target of a whole piece counts, in the
    second one no target of some rank, in the third one none at all.
    """
    draw_from = torch.Generator().manual_seed(seed + step)
    tokens = 2 * world * (4 if step % 2 == 0 else 2)
    x, y = (torch.randint(WORDS, (2, tokens), generator=draw_from) for _ in range(2))
    y[torch.rand(2, tokens, generator=draw_from) < 0.3] = IGNORE
    y[0, 0] = y[0, -1] = 1
    one, _, every = without(random.Random(seed), world)
    silent = {0: [1], 1: [piece for rank in one if world > 1 for piece in pieces(rank, world, "zig-zag")]}
    silent[2] = [piece for rank in every for piece in pieces(rank, world, "zig-zag")]
    size = tokens // (2 * world)
    for piece in silent.get(step, ()):
        y[:, piece * size : (piece + 1) * size] = IGNORE
    return x, y


def trained_on_rank(code, rank, world, seed):
    """Some steps of SGD on a sequence that is divided among the ranks."""
    model, another = made_model(world), made_model(world)
    with torch.no_grad():
        alone = torch.arange(4)[None] + rank
        before = another(alone)
        code.use_ring(model, 0, 1)  # until the next call
        code.use_ring(model, rank, world)
        after = another(alone)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    found = {"losses": [], "shares": [], "another": torch.equal(before, after)}
    for step in range(STEPS):
        share = code.my_share(*batch_of(seed, step, world), rank, world)
        found["shares"].append(as_evidence(share))
        if not (isinstance(share, tuple) and len(share) == 3 and all(isinstance(part, torch.Tensor) for part in share)):
            return found
        if step == 0:
            with Storages(model.parameters()) as storages:
                loss = model(*share)
                found["activations"] = storages.by_kind({"weights": model.parameters()})["other"]
            del loss
        optimizer.zero_grad()
        loss = code.backward_pass(model, *share)
        found["losses"].append(loss if isinstance(loss, float) else as_evidence(loss))
        if step == 2:  # no target on any rank
            found["without"] = [name for name, p in model.named_parameters() if p.grad is None]
        if step == 0:
            found["gradients"] = {name: as_evidence(p.grad) for name, p in model.named_parameters()}
        optimizer.step()
    found["weights"] = dict(model.named_parameters())
    with torch.no_grad():
        x, _, places = code.my_share(*batch_of(seed, STEPS, world), rank, world)
        found["places"], found["logits"] = places, model(x, positions=places)
    return found


def trained_serially(seed, world):
    """One process that has the whole sequence; and the activations of one that has as much of it as a rank."""
    model = made_model(world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    found = {"losses": []}
    x, y = batch_of(seed, 0, world)
    first = x.shape[1] // world
    with Storages(model.parameters()) as storages:
        loss = model(x[:, :first], y[:, :first])
        found["activations"] = storages.by_kind({"weights": model.parameters()})["other"]
    del loss
    found["first"] = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(*batch_of(seed, step, world))
        loss.backward()
        found["losses"].append(loss.item())
        if step == 0:
            found["gradients"] = {name: p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
    found["weights"] = dict(model.named_parameters())
    with torch.no_grad():
        found["logits"] = model(batch_of(seed, STEPS, world)[0])
    return found


@todo(
    8,
    minutes=30,
    further=True,
    needs=(1, 2, 3, 4),
    why=(
        "With the first weights, a wrong position, target or mask changes the loss in the fourth digit, and an averaged"
        " gradient not at all: such a run can last for weeks unnoticed. Only a comparison of its gradients with those"
        " of one process shows it."
    ),
    hints=(
        (
            "By what would one process divide the sum of all losses? Each rank can compute its part of the result, and "
            "of its gradient, if it knows this one number."
        ),
        (
            "my_share: positions_of(pieces_of(rank, world), size) with size = tokens // (2 * world); x[:, positions],"
            " y[:, positions], positions. use_ring: a function of q, k and v that calls RingAttention.apply with"
            " in_zigzag(rank, world, q.shape[2] // 2). backward_pass: count targets with (y != IGNORE).sum(),"
            " all_reduce a clone of it; loss = model(x, y, positions) * mine / all_counts."
        ),
        (
            "loss.backward(); for parameter in model.parameters(): dist.all_reduce(parameter.grad); total ="
            " loss.detach(); dist.all_reduce(total); return total.item()."
        ),
    ),
)
def test_todo8_model(student):
    pick = student.draw("model")
    # 7 ranks take two seconds, and show no more.
    many = student.draw("ranks", "model").randrange(3, 6)
    worlds = student.several((1, 2, many), but=(1, many))
    asked = [(pick.randrange(1 << 40), world) for world in worlds]
    rights = [student.reference(trained_serially, seed=seed, world=world) for seed, world in asked]
    for right in rights:
        # Of the weights themselves: losses of two batches may be alike, however far these have moved.
        still = [name for name, weight in right["weights"].items() if torch.equal(weight, right["first"][name])]
        student.premise(not still, f"a {still[:1]} that never moves")
    for (seed, world), right in zip(asked, rights, strict=True):
        ranks = student.call(trained_on_rank, world=world, seed=seed).evidence
        told = f"on {count_of(world, 'rank')}"
        check_shares(told, world, seed, [mine["shares"] for mine in ranks])
        for rank, mine in enumerate(ranks):
            check_training(told, mine, right, rank)
    check_refused(student, "my_share", "token", parts=2)


@hinted("Which positions belong to a rank, as in TODO 4? Its tokens and targets are those at these positions.")
def check_shares(told, world, seed, ranks):
    """Each token of each step is on one rank, with its target."""
    for step in range(STEPS):
        x, y = batch_of(seed, step, world)
        for rank, shares in enumerate(ranks):
            check_share(told, world, x, y, shares[step], rank)
        places = sorted(place for shares in ranks for place in shares[step][2].tolist())
        expect(
            places == list(range(x.shape[1])),
            f"my_share {told}: not every one of {x.shape[1]} tokens is on one rank",
            "each token once",
            places,
        )


def check_share(told, world, x, y, share, rank):
    """A rank's tokens and targets are those at its positions."""
    check_parts(f"my_share {told}", share, ("tokens", "targets", "positions"), rank)
    for name, part in zip(("tokens", "targets", "positions"), share):
        expect(
            isinstance(part, torch.Tensor) and part.dtype == torch.int64,
            f"my_share {told}: the {name} of rank {rank} are not an int64 tensor",
            "int64",
            part.dtype if isinstance(part, torch.Tensor) else part,
            rank,
        )
    places = share[2]
    expect(
        places.dim() == 1 and len(places) == x.shape[1] // world,
        f"my_share {told} of {x.shape[1]} tokens: rank {rank} has a different number of positions",
        f"{x.shape[1] // world}, 1-D",
        tuple(places.shape),
        rank,
    )
    expect(
        bool((places >= 0).all()) and bool((places < x.shape[1]).all()),
        f"my_share {told}: positions of rank {rank} lie outside the sequence",
        f"0 to {x.shape[1] - 1}",
        places.tolist(),
        rank,
    )
    for name, part, all_of_them in (("tokens", share[0], x), ("targets", share[1], y)):
        good = all_of_them[:, places]
        check_tensor(
            f"my_share {told}: rank {rank}'s tensor of {name}", part, good, rank=rank, than="what is at its positions"
        )


OF_ZERO = "The loss is 0 then, and so are its gradients. An optimizer skips a parameter without one."


def check_training(told, mine, right, rank):
    """What a rank has after some steps is what one process has."""
    expect(
        mine["another"],
        f"after use_ring of one model, another model {told} attends differently, too, on rank {rank}",
        "only that one model attends with the ring",
        "others of its class as well",
        rank,
        "Which object do you change: a layer of this model, or something that all models use?",
    )
    for step, (loss, good) in enumerate(zip(mine["losses"], right["losses"], strict=True), start=1):
        expect(
            isinstance(loss, (int, float)),
            f"backward_pass {told} returns no number on rank {rank}",
            "a number",
            loss if isinstance(loss, str) else type(loss).__name__,
            rank,
            "The caller wants the loss of the whole sequence, as a number. Which part of it does each rank have, and"
            " as what?",
        )
        if step == 1:
            check_loss(told, step, loss, good, rank)
    scale = scale_of(right["gradients"].values())
    for name, good in right["gradients"].items():
        got = mine["gradients"][name]
        gradient = f"{told}, after the first backward_pass the gradient of {name} on rank {rank}"
        hint = (
            "Each rank has its part of the gradient. What makes the whole of the parts, and are all parameters in it?"
        )
        check_tensor(gradient, got, good, REL, rank, scale=scale, than="one process's", hint=hint)
    for step, (loss, good) in enumerate(zip(mine["losses"], right["losses"], strict=True), start=1):
        check_loss(told, step, loss, good, rank)
    nothing = f"backward_pass {told} without a target on any rank leaves no gradient on rank {rank}"
    expect(not mine["without"], nothing, "gradients of 0", f"none in {', '.join(mine['without'])}", rank, OF_ZERO)
    for name, good in right["weights"].items():
        moved = good - right["first"][name]
        expect(
            near(mine["weights"][name] - good + moved, moved, 10 * REL),
            f"{told}, after {STEPS} steps {name} on rank {rank} is not one process's",
            good,
            mine["weights"][name],
            rank,
        )
    good = right["logits"][:, mine["places"]]
    logits = f"{told}, the tensor of logits under torch.no_grad() on rank {rank}"
    hint = "Training is right. What does the model do differently where autograd is off, or at another length?"
    check_tensor(logits, mine["logits"], good, 10 * REL, rank, than="one process's", hint=hint)
    # Up to copies of a layer's q, k and v that are contiguous: 3 of about 16 parts.
    most = round(1.25 * right["activations"])
    expect(
        mine["activations"] <= most,
        f"{told}, rank {rank} keeps {mine['activations']:,} bytes of activations for the backward pass; one "
        "process with as many tokens as a rank keeps "
        f"{right['activations']:,}",
        f"at most {most:,} bytes",
        f"{mine['activations']:,} bytes",
        rank,
        "Which tensor on this rank has more tokens than the rank's share, and why is it kept?",
    )


def check_loss(told, step, loss, good, rank):
    expect(
        math.isclose(loss, good, rel_tol=REL),
        f"{told}, the loss of step {step} of {STEPS} on rank {rank} is not one process's",
        good,
        loss,
        rank,
    )
