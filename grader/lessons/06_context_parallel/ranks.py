"""What the checks of 06_context_parallel run on ranks, in the process of the student's code."""

import gc
import math
import random
import weakref

import torch

from grader.kit import (
    Reporter,
    as_evidence,
    crossed,
    kind_of,
    mark,
    merciless_messages,
    raised,
    watch_products,
    without,
)
from utils.data import IGNORE
from utils.memory import Storages
from utils.model import TransformerLM

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


# ---------------------------------------------------------------------------------------------------
# TODOs 2, 3 and 5: the ring


# Shape on each rank, dtype, how loud the queries are, how the sequence is distributed, on how many ranks.
RINGS = (
    ((1, 2, 6, 4), "float32", 1.0, "everything", (3, 5, 6, 8)),
    ((2, 3, 3, 4), "float64", 1.0, "everything", (1, 2)),
    ((1, 2, 4, 4), "float32", 2.0, "zig-zag", (1, 2)),
    ((1, 1, 3, 4), "float32", 1.0, "in order", (3,)),
)


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


# ---------------------------------------------------------------------------------------------------
# TODO 6: Ulysses


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


# ---------------------------------------------------------------------------------------------------
# TODO 8: the model


WORDS, STEPS = 13, 3


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
