"""What several files with checks of context_training use."""

import math

import torch

from grader.kit import EXACT, Private, check_tensor, expect

from .ranks import attend_on_rank, drawn_attention, numbered

WORDS = (97, 101, 103)  # how many there are


def zigzag(rank, world, tokens):
    """The places of a rank's tokens: an early piece and a late one."""
    size = tokens // (2 * world)
    return [piece * size + i for piece in (rank, 2 * world - 1 - rank) for i in range(size)]


def right_places(method, rank, world, tokens):
    if method == "ring" and world > 1:
        return zigzag(rank, world, tokens)
    return list(range(rank * tokens // world, (rank + 1) * tokens // world))


def masked_attention(q, k, v, documents=None):
    """Attention of whole sequences, from the scores: (B, H, T, K)."""
    tokens = q.shape[2]
    seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()[None, None]
    if documents is not None:
        seen = seen & (documents[:, None, :, None] == documents[:, None, None, :])
    scores = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf)
    return scores.softmax(dim=-1) @ v


# ---------------------------------------------------------------------------------------------------
# TODO 3: attention


def serial_attention(seed, sizes, ends=()):
    documents = numbered(ends, sizes) if ends else None
    q, k, v, grad = drawn_attention(seed, sizes)
    for tensor in (q, k, v):
        tensor.requires_grad_()
    out = masked_attention(q, k, v, documents)
    out.backward(grad)
    return {"output": out.detach(), "gradient of q": q.grad, "gradient of k": k.grad, "gradient of v": v.grad}


def attention_case(student, method, cp, *purpose):
    draw = student.draw("attention", method, cp, *purpose)
    heads = cp * draw.choice((1, 2)) if method == "ulysses" else draw.choice((1, 3, 5))
    sizes = {"batch": 2, "heads": heads, "tokens": 2 * cp * draw.choice((2, 3)), "width": draw.choice((3, 4))}
    return sizes, draw


def check_attention(student, method, grid, seeds, sizes, ends=(), same=()):
    """Output and gradients of each rank's tokens, against whole sequences."""
    rows, cp = grid
    wholes = [student.reference(serial_attention, seed=seed, sizes=sizes, ends=ends) for seed in seeds]
    unmasked = [student.reference(serial_attention, seed=seed, sizes=sizes, ends=()) for seed in seeds]
    places = Private([right_places(method, rank % cp, cp, sizes["tokens"]) for rank in range(rows * cp)])
    how = dict(grid=grid, method=method, sizes=sizes, places=places, ends=ends, same=same)
    private = Private([seeds[rank // cp] for rank in range(rows * cp)])
    run = student.call(attend_on_rank, world=rows * cp, seed=private, **how)
    told = f"on {rows} × {cp} ranks by {method}" + (", with documents" if ends else "")
    for what in ("output", "gradient of q", "gradient of k", "gradient of v"):
        for rank, seen in enumerate(run.evidence):
            places = right_places(method, rank % cp, cp, sizes["tokens"])
            right = wholes[rank // cp][what][:, :, places]
            name = f"{told}, the {what} of rank {rank}'s tokens"
            expect(what in seen, f"{name} is not there: autograd does not reach it", "a gradient", "none", rank)
            alone = student.reference(alone_attention, seed=seeds[rank // cp], sizes=sizes, places=places)
            of = "the gradient of an" if what != "output" else "the"
            wrongs = {f"{of} attention to this rank's keys alone, in the order in which they are stored": alone[what]}
            if ends:
                wrongs[f"{of} attention without documents"] = unmasked[rank // cp][what][:, :, places]
            check_tensor(
                name,
                seen[what],
                right,
                EXACT,
                rank,
                wrongs=wrongs,
                than="the whole sequence's",
                hint=DOCUMENTS if ends else "",
            )
    return run, told


DOCUMENTS = (
    "Without documents it is right. Which pairs of places are of one document, and does every block know, whichever"
    " rank its keys are from?"
)


def alone_attention(seed, sizes, places):
    q, k, v, grad = (tensor[:, :, places].clone() for tensor in drawn_attention(seed, sizes))
    for tensor in (q, k, v):
        tensor.requires_grad_()
    out = masked_attention(q, k, v)
    out.backward(grad)
    return {"output": out.detach(), "gradient of q": q.grad, "gradient of k": k.grad, "gradient of v": v.grad}


def drawn_ends(draw, sizes):
    """Where documents begin in two sequences: one in the first, two in the second, all at different places."""
    places = draw.sample(range(1, sizes["tokens"]), 3)
    return [places[:1], sorted(places[1:])]
