"""Checks of 06_context_parallel, TODOs 1 to 3: ring attention.

| TODO | achievement                 | evidence                                                         | needs   |
|------|-----------------------------|------------------------------------------------------------------|---------|
| 1    | attention in pieces         | each function against float64; pieces hidden in part and wholly   |         |
| 2    | keys and values rotate      | values on 1 to 8 ranks; messages; bytes alive on 3 ranks and 8   | 1       |
| 3    | gradients travel back       | a block's gradients; all on 1 to 6 ranks; memory saved | 1, 2    |

The reference is one process that has the whole sequence, in float64. Each rank draws its own queries, keys and values,
with a seed that no other rank knows. Their memory layout is the model's: heads and tokens swapped, so not contiguous.
Messages have the worst timing that is allowed: they arrive when they are waited for, and nothing buffers them.

A ring must avoid holding the whole sequence. So the peak of live bytes may not depend on the number of
ranks: with pieces of one size, 5 to 8 ranks hold as much each as 3 do.
"""

import math

import torch

from grader.kit import (
    CROSSED,
    WAITING,
    cases,
    check_answers,
    check_delivery,
    check_tensor,
    count_of,
    expect,
    hinted,
    todo,
)

from .common import (
    SPOKEN,
    TRACKED,
    check_does_not_grow,
    check_forward,
    check_gradients,
    check_part,
    check_parts,
    check_ring,
    expected,
    must_attend_elsewhere,
    nbytes,
    ring_worlds,
    tolerance,
    whole,
)
from .ranks import (
    CROSSED_WAYS,
    RINGS,
    SPLITS,
    block_on_rank,
    crossed_on_rank,
    draw,
    gradient_of,
    reference,
    split,
    split_on_rank,
    start_on_rank,
    through_ring_on_rank,
)

# ---------------------------------------------------------------------------------------------------
# TODO 1: pieces


@todo(1)
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


@todo(2, needs=(1,))
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


@todo(3, needs=(1, 2))
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
