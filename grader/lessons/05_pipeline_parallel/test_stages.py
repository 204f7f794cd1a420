"""Checks of 05_pipeline_parallel, TODOs 1 to 3: stages.

| TODO | achievement                    | evidence                                                                    | needs    |
|------|--------------------------------|-----------------------------------------------------------------------------|----------|
| 1    | the model cut by cost          | costs; the slowest stage of drawn costs; names, values, bytes of stages     |          |
| 2    | one stage at a time            | loss and gradients on 1 to 5 ranks, twice; messages; who computed what      |          |
| 3    | micro-batches                  | loss and gradients, targets ignored unequally; memory kept |          |

Each rank draws its stages' weights from a seed that no other rank has; only the first rank draws the inputs, and only
the last the targets. So a rank can get right gradients only through messages. The stages report each pass through them:
the number of the micro-batch travels with it, in the first column of the stream.
"""  # noqa: E501

import itertools
import math

import torch
import torch.nn.functional as F

from grader.kit import (
    check_answers,
    check_delivery,
    check_refusals,
    check_tensor,
    count_of,
    expect,
    hinted,
    lengths,
    numbers,
    shares,
    todo,
)
from utils.data import IGNORE

from .common import BYTES, REL, bytes_between, check_gradients, check_messages, events_of_trials, notes
from .ranks.common import Work, gradients_of, inputs_of, share_of_loss
from .ranks.stages import (
    cuts_of,
    cuts_on_rank,
    losses_on_rank,
    made_tokens,
    naive_on_rank,
    split_on_rank,
    stages_on_rank,
    targets_with_gaps,
    tiny_model,
)

# ---------------------------------------------------------------------------------------------------
# TODO 1: cut


def block_cost(dim, length):
    return 24 * dim * dim + 4 * length * dim


def slowest(costs, stages):
    """The cost of the slowest stage in the best cut: the lowest limit that stages filled one after the other can
    keep."""
    spans = {sum(costs[a:b]) for a in range(len(costs)) for b in range(a + 1, len(costs) + 1)}
    for limit in sorted(spans):
        needed, load = 1, 0
        for cost in costs:
            if load + cost > limit:
                needed, load = needed + 1, 0
            load += cost
        if max(costs) <= limit and needed <= stages:
            return limit
    return max(spans)


def filled_up(costs, stages):
    """The slowest stage if stages are filled one after the other, up to the mean: it looks right, and is not."""
    loads, mean = [0], sum(costs) / stages
    for number, cost in enumerate(costs):
        left = len(costs) - number
        full = loads[-1] + cost > mean or left < stages - len(loads) + 1
        if number and len(loads) < stages and full:
            loads.append(0)
        loads[-1] += cost
    return max(loads)


def drawn_costs(draw, stages):
    """Filling stages one after the other does not find the best cut of these. None is large: its stage would decide."""
    while True:
        costs = numbers(draw, draw.randrange(5, 9), "zero", "tie", "whole", most=20)
        if filled_up(costs, stages) > slowest(costs, stages):
            return costs, stages


BLOCKS = (3, 4, 11)  # of eleven, the last one, "10", sorts as text before "2"


def piece_of(name, blocks):
    """The piece of the tiny model that a parameter belongs to."""
    if "embedding" in name:
        return 0
    return 1 + int(name.split(".")[1]) if name.startswith("blocks.") else blocks + 1


@todo(1)
def test_todo1_cut(student):
    draw = student.draw("cut")
    with hinted("Count the numbers in a piece's weights, twice. Attention has two more products, without a weight."):
        right = {}
        sizes = [(4, 64, 64, 2000), (1, 10, 3, 7), (12, 768, 1024, 50257)]
        sizes.append((draw.randrange(2, 9), 2 * draw.randrange(4, 99), draw.randrange(5, 99), draw.randrange(50, 999)))
        for layers, dim, length, vocab in sizes:
            costs = (0.0, *[float(block_cost(dim, length))] * layers, 2.0 * dim * vocab)
            right["costs_of_pieces", (layers, dim, length, vocab)] = costs
        check_answers(student, right, wrong="is not what these pieces cost")
    with hinted("A cut costs as much as its slowest stage. Which of all possible cuts costs least?"):
        check_cuts(student, draw)
    with hinted("Which modules of the model belong to these pieces, and what are they called in the model?"):
        check_stages(student)


def check_cuts(student, draw):
    costs = [
        ([1.0, 1.0, 1.0, 9.0], 2),
        ([5.0], 1),
        ([4.0, 4.0, 4.0], 3),
        ([0.0, 1.0, 1.0, 1.0, 1.0, 3.0], 3),
        ([9.0, 1.0, 1.0, 1.0], 2),
        ([0.0] + [1.0] * 9 + [6.0], 4),
        ([1.0, 8.0, 5.0, 4.0, 7.0, 2.0, 6.0], 3),  # the most even stages differ from these
        ([1.125, 1.0, 1.375], 2),  # rounded, the two cuts cost the same
        ([1.375, 1.0, 1.125], 2),
    ]
    costs = student.several(costs + [drawn_costs(draw, stages) for stages in (2, 2, 3, 3, 4)], 5)
    grid = list(itertools.product(range(1, 7), repeat=2))
    (seen,) = student.call(cuts_on_rank, world=1, group=False, costs=costs, grid=grid).evidence
    for (mine, stages), found in zip(costs, seen["cuts"], strict=True):
        check_one_cut(mine, stages, found["cut"])
        expect(found["kept"], f"cut({mine}, {stages}) changes the list of costs", "the same list", "another")
    check_refusals(
        [zip(grid, seen["refused"], strict=True)],
        refused=lambda n, stages: n < stages,
        told=lambda n, stages: f"cut({[1.0] * n}, {stages}), {count_of(n, 'piece')} in {stages} stages,",
    )


def check_one_cut(mine, stages, found):
    what = f"cut({mine}, {stages})"
    listed = isinstance(found, list)
    expect(listed, f"{what} does not return a list of lists of numbers", f"{stages} lists of numbers", found)
    expect(
        len(found) == stages and all(found),
        f"{what} does not make {stages} stages with at least one piece each",
        f"{stages} stages",
        found,
    )
    flat = [n for part in found for n in part]
    everything = list(range(len(mine)))
    expect(flat == everything, f"{what} does not have each piece once, in order", everything, found)
    took, best = max(sum(mine[n] for n in part) for part in found), slowest(mine, stages)
    told = f"{what}: the slowest stage costs {took:g}, in a better cut {best:g}"
    expect(took == best, told, f"{best:g}", f"{took:g}: {found}")


def same_output(h, right):
    return isinstance(h, torch.Tensor) and h.shape == right.shape and torch.allclose(h, right, rtol=1e-6, atol=1e-6)


def check_stages(student):
    models = student.several(BLOCKS)
    (seen,) = student.call(stages_on_rank, world=1, group=False, models=models).evidence
    cuts = [(blocks, cut) for blocks in models for cut in cuts_of(blocks)]
    for (blocks, cut), found in zip(cuts, seen, strict=True):
        for pieces, state, held in zip(cut, found["state"], found["bytes"], strict=True):
            check_stage(blocks, pieces, state, held)
        expect(
            same_output(*found["train"]),
            f"the stages {cut} in a row do not give the model's output (dropout 0.2, same seed)",
            "the model's logits, of shape [2, 4, 23]",
            f"something else, of shape {found['shape']}",
        )
        expect(
            same_output(*found["eval"]),
            f"the stages {cut} in a row, in eval mode, do not give the model's output: is dropout still on?",
            "the model's logits in eval mode",
            "something else",
            hint="eval() reaches the modules that are registered. As what does the stage keep the model's dropout?",
        )
        expect(
            len(found["whole"]) == len(list(tiny_model(blocks).parameters())) and all(found["whole"].values()),
            f"making the stages {cut} changes the model that they are taken from",
            "the same weights",
            "a changed model",
        )


def check_stage(blocks, pieces, state, held):
    what = f"the stage of pieces {pieces} (of {blocks + 2}: embeddings, {blocks} blocks, norm and head)"
    sizes = {name: 4 * p.numel() for name, p in tiny_model(blocks).named_parameters()}
    own = {name for name in sizes if piece_of(name, blocks) in pieces}
    for name in sorted(own - state.keys()):
        more = sorted(state.keys() - sizes.keys())
        named = f"; it has {more[0]}" if more else ""
        expect(False, f"{what} has no parameter that is called {name}{named}", name, sorted(state)[:6])
    for name in sorted(state.keys() - own):
        known = f"{what} holds {name}, which belongs to piece {piece_of(name, blocks)}" if name in sizes else ""
        expect(
            False,
            known or f"{what} has {name}, which the model does not have",
            f"the weights of pieces {pieces} alone",
            f"{len(state)} parameters, {len(own)} of them its own",
        )
    for name, same in state.items():
        expect(same, f"{what}: {name} does not have the model's values", "the model's", "other values")
    own_bytes = sum(sizes[name] for name in own)
    expect(
        held <= own_bytes,
        f"{what} keeps {held:,} bytes alive: it has the weights of other stages, though it does not name them as its"
        " own",
        f"{own_bytes:,} bytes",
        f"{held:,} bytes",
    )


# ---------------------------------------------------------------------------------------------------
# TODO 2: one stage at a time


def naive_serial(seeds, rows, width, dtype):
    return [naive_alone([seed + 1000 * n for seed in seeds], rows + n, width, dtype) for n in range(2)]


def naive_alone(seeds, rows, width, dtype):
    kind = getattr(torch, dtype)
    stages = [Work(s, seed + 10, width, kind, tell=lambda **_: None) for s, seed in enumerate(seeds)]
    x, y = inputs_of(seeds[0], 1, rows, width, kind)[0], targets_with_gaps(seeds[-1], rows, width)
    for stage in stages:
        x = stage(x)
    loss = share_of_loss(max(1, int((y >= 0).sum())))(x, y)
    loss.backward()
    return {"loss": loss.item(), "gradients": [gradients_of(stage) for stage in stages]}


@todo(2)
def test_todo2_naive(student):
    draw = student.draw("naive")
    trials = []
    grids = [(1, "float32"), (2, "float64"), (3, "float32"), (5, "float32")]
    for world, dtype in student.several(grids, but=grids[:1]):
        sizes = dict(rows=draw.randrange(2, 6), width=draw.randrange(3, 6), dtype=dtype)
        seeds = student.seeds(world)
        rights = student.reference(naive_serial, seeds=[*seeds], **sizes)
        present = [g for right in rights for stage in right["gradients"] for g in stage.values() if g is not None]
        student.premise(all(g.abs().max() > 0 for g in present), "gradients that are zero")
        trials.append((world, seeds, sizes, rights))
    for world, seeds, sizes, rights in trials:
        run, dtype = student.call(naive_on_rank, world=world, seed=seeds, **sizes), sizes["dtype"]
        for number, (right, events) in enumerate(zip(rights, events_of_trials(run.events, 2), strict=True)):
            ordinal = "" if number == 0 else ", the second one in this process,"
            rows = sizes["rows"] + number
            told = f"a batch of {rows} rows in {dtype}{ordinal} on {count_of(world, 'rank')}"
            check_delivery(told, events)
            for rank, left in enumerate(run.evidence):
                check_naive_rank(told, events[rank], left[number], right, rank, world, REL[dtype])
            nbytes = rows * (1 + sizes["width"]) * BYTES[dtype]
            check_messages(told, events, bytes_between(world, 1, nbytes))


def check_naive_rank(told, events, seen, right, rank, world, rel):
    passes = notes(events, ("forward", "back"))
    expect(
        passes[:1] == [("forward", rank, 0)],
        f"{told}: rank {rank} computes no forward pass of the stream that started on the first rank",
        "one forward pass",
        passes[:2],
        rank,
    )
    expect(
        [p[0] for p in passes] == ["forward", "back"],
        f"{told}: rank {rank} computes {spoken_passes(passes)}",
        "a forward pass, then a backward pass",
        spoken_passes(passes),
        rank,
    )
    loss = seen["loss"]
    if rank == world - 1:
        what = "no loss" if loss is None else "a loss that differs from one process's"
        same = isinstance(loss, float) and math.isclose(loss, right["loss"], rel_tol=rel)
        expect(same, f"{told}: the last rank returns {what}", f"{right['loss']:.6f}", loss, rank)
        expect(
            not seen["history"],
            f"{told}: the loss that is returned keeps its history, and with it all activations",
            "a tensor that needs no gradient",
            "one that does",
            rank,
        )
    else:
        expect(loss is None, f"{told}: rank {rank} returns a loss, but has no losses", "None", loss, rank)
    check_gradients(told, right["gradients"][rank], seen["gradients"], rank, rank, rel)
    expect(
        not seen["like"],
        f"{told}: on rank {rank} the caller's `like` is changed: something was received into it, or it was asked for a"
        " gradient",
        "a fresh tensor in each call",
        "`like` itself",
        rank,
    )
    expect(
        not seen["x"],
        f"{told}: the caller's x is asked for a gradient, which no rank needs",
        "x as it was given",
        "x with requires_grad",
        rank,
    )


def spoken_passes(passes):
    """[(kind, stage, micro-batch)] in words."""
    words = [f"{kind} {number}" if number >= 0 else f"{kind} of rubbish" for kind, _, number in passes]
    return ", ".join(words if len(words) < 12 else [*words[:11], "…"]) or "nothing"


# ---------------------------------------------------------------------------------------------------
# TODO 3: micro-batches


def whole_batch(rows, counted):
    x, y = made_tokens(rows, 4, counted)
    model = tiny_model()
    loss = model(x, y)
    loss.backward()
    means = [model(x[r : r + 1], y[r : r + 1]).item() for r in range(rows) if counted[r]]
    return {"loss": loss.item(), "gradients": gradients_of(model), "mean of means": sum(means) / max(1, len(means))}


@todo(3)
def test_todo3_microbatches(student):
    draw = student.draw("microbatches")
    many = draw.randrange(2, 6)
    cases = [(rows, shares(draw, rows, most=4), m) for m in (1, many) for rows in lengths(draw, m) if rows]
    cases += [(4, [4, 1, 0, 0], 2), (4, [0, 0, 0, 0], 2)]
    rights = [student.reference(whole_batch, rows=rows, counted=counted) for rows, counted, _ in cases]
    unequal = rights[-2]
    apart = abs(unequal["mean of means"] - unequal["loss"]) > 1e-4 * unequal["loss"]
    student.premise(apart, "a mean of means")
    with hinted("How many rows does each micro-batch have, and how many are then missing at the end of the batch?"):
        (seen,) = student.call(split_on_rank, world=1, group=False, cases=cases).evidence
        for (rows, counted, m), found in zip(cases, seen, strict=True):
            what = f"split(x, y, {m}) of {rows} rows"
            check_split(what, found, rows, counted, m)
    (seen,) = student.call(losses_on_rank, world=1, group=False, cases=cases).evidence
    for (rows, counted, m), right, found in zip(cases, rights, seen, strict=True):
        told = f"a batch of {rows} rows with {counted} targets that count, in {m} micro-batch{'es' if m > 1 else ''}"
        with hinted("By which number is each micro-batch's sum divided, so that the shares add up to the mean?"):
            check_shares(told, found, rows, counted)
        with hinted("What happens to each micro-batch before the next one begins, and what stays of it?"):
            check_accumulated(told, found, right, rows, counted, m)


def check_split(what, found, rows, counted, m):
    two = found["xs"] is not None
    expect(two, f"{what} does not return two lists of tensors", "(inputs, targets)", "something else")
    x, y = made_tokens(rows, 4, counted)
    size = math.ceil(rows / m)
    for name, parts, whole, fill in (("inputs", found["xs"], x, 0), ("targets", found["ys"], y, IGNORE)):
        shapes = [list(part.shape) for part in parts]
        across = any(part.dim() == 2 and part.shape[1] != 4 for part in parts)
        wrong_way = ": the batch is the first dimension" if across else ""
        expect(
            shapes == [[size, 4]] * m,
            f"{what}: the {name} of a batch of {rows} rows of 4 tokens have the wrong shapes{wrong_way}",
            [[size, 4]] * m,
            shapes,
        )
        got, padding = torch.cat(list(parts)), torch.full((m * size - rows, 4), fill)
        check_tensor(f"{what}: the tensor of {name}", got[:rows], whole, than="the batch's rows in order")
        check_tensor(f"{what}: the padding in the tensor of {name}", got[rows:], padding)


def check_shares(told, found, rows, counted):
    y = made_tokens(rows, 4, counted)[1]
    logits = torch.randn(rows, 4, 23, generator=torch.Generator().manual_seed(5))
    shares = [
        F.cross_entropy(logits[row], y[row], ignore_index=IGNORE, reduction="sum").item() / max(1, sum(counted))
        for row in range(rows)
    ]
    close = isinstance(found["shares"], list) and all(
        math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-7) for a, b in zip(found["shares"], shares, strict=True)
    )
    expect(
        close,
        f"loss_of_batch, {told}: the share of a row is not the sum of its losses divided by the number of targets that"
        " count in the whole batch",
        rounded(shares),
        rounded(found["shares"]),
    )


def check_accumulated(told, found, right, rows, counted, m):
    loss, size = found["loss"], math.ceil(rows / m)
    expect(
        isinstance(loss, float) and math.isclose(loss, right["loss"], rel_tol=1e-4, abs_tol=1e-6),
        f"accumulate, {told}: the loss is not the whole batch's",
        f"{right['loss']:.6f}",
        loss,
    )
    expect(
        not found["history"],
        f"accumulate, {told}: the loss that is returned keeps its history",
        "a tensor that needs no gradient",
        "one that does",
    )
    shapes = [shape for shape, _ in found["passes"]]
    told_inputs = f"accumulate, {told}: the model is called on something other than the micro-batches"
    expect(shapes == [[size, 4]] * m, told_inputs, [[size, 4]] * m, shapes)
    for number, (_, nbytes) in enumerate(found["passes"]):
        expect(
            nbytes == 0,
            f"accumulate, {told}: when micro-batch {number} begins, {nbytes:,} bytes of activations of earlier ones"
            " are still kept",
            "0 bytes",
            f"{nbytes:,} bytes",
        )
    if sum(counted):
        check_gradients(f"accumulate, {told}", right["gradients"], found["gradients"], 0, 0, REL["float32"])
        return
    for name, gradient in found["gradients"].items():
        expect(
            gradient is None or not gradient.any(),
            f"accumulate, {told}: no target counts, and {name} has a gradient",
            "zeros",
            "numbers" if gradient.isfinite().all() else "nan",
        )


def rounded(values):
    return [round(x, 5) for x in values] if isinstance(values, list) else values
