"""What several files with checks of 06_context_parallel use."""

import math

import torch

from grader.kit import (
    WAITING,
    Wrong,
    cases,
    check_delivery,
    check_refusals,
    check_tensor,
    collectives,
    count_of,
    expect,
    hinted,
)

from .ranks import DTYPES, RINGS, attention, draw, of_world, pieces, refused_on_rank, ring_on_rank

# ---------------------------------------------------------------------------------------------------
# What the ranks are given, and the reference


def positions(rank, world, tokens, dealt):
    """The positions of a rank's tokens in the whole sequence."""
    mine = pieces(rank, world, dealt)
    size = tokens // len(mine)
    return torch.cat([torch.arange(piece * size, (piece + 1) * size) for piece in mine])


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
# TODOs 2, 3 and 5: the ring


def some_ranks(student, purpose):
    """4, 5, 6 or 7: each of TODOs 4 and 6 has its own."""
    return student.draw("ranks", purpose).randrange(4, 8)


def ring_worlds(student, purpose):
    """One rank, a pair, three; and many, whose bytes are compared with three's. Eight, the slowest, run once."""
    many = 8 if purpose == "ring_forward" else student.draw("ranks", purpose).randrange(5, 7)
    return student.several((1, 2, 3, many), but=(1, many))


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


SPOKEN = {"q": "queries", "k": "keys", "v": "values"}


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


# ---------------------------------------------------------------------------------------------------
# TODO 6: Ulysses


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
