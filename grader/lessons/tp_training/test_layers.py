"""Checks of tp_training, TODOs 3 and 4: layers.

| TODO | achievement | evidence | needs |
| --- | --- | --- | --- |
| 3 | the plan of a block | a block on 2 and 3 ranks: output, gradients, rows held, bytes each way |  |
| 4 | the vocabulary cut | loss, logits and each gradient on 2 and 3 ranks; rows held; logits never sent |  |
"""

import math

import torch

from grader.kit import (
    EXACT,
    cases,
    check_parts,
    check_refused,
    check_tensor,
    drawn_batch,
    drawn_model,
    drawn_sizes,
    expect,
    gradients,
    hinted,
    must_have_gradients,
    sent_by,
    todo,
)
from utils.data import IGNORE

from .common import HINTS, WORDS, check_model, digits, serial_model
from .ranks import block_on_rank, made_block, stream_of, tables_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 3: a block


def serial_block(sizes):
    block, x, grad = made_block(sizes)
    x.requires_grad_()
    y = block(x)
    y.backward(grad)
    return {"y": y, "x.grad": x.grad, "grads": gradients(block)}


LAYOUTS = (
    "Follow the stream from module to module. In which layout does each one pass it on, and in which does the next one"
    " expect it?"
)


BETWEEN = (
    "Between two products nothing has to be sent, if they are cut in the right order. What does each layer pass on, and"
    " must it be changed for the next one?"
)


SUMMED = (
    "The forward pass is right. Each rank has a summand of the input's gradient: which entry of the plan adds them up?"
)


@todo(3)
def test_todo3_block(student):
    rights, trials = {}, student.several(((2, False), (3, True)))
    for world, _ in trials:
        rights[world] = student.reference(serial_block, sizes=drawn_sizes(student, world, "block", words=WORDS))
        must_have_gradients(student, rights[world]["grads"])
    for world, cut in trials:
        sizes = drawn_sizes(student, world, "block", words=WORDS)
        run = student.call(block_on_rank, world=world, sizes=sizes, cut=cut)
        ranks, right = run.evidence, rights[world]
        told = f"block_plan({'Shard(1)' if cut else 'Replicate()'}) on {world} ranks"
        for rank, seen in enumerate(ranks):
            expect(
                "problem" not in seen,
                f"block_plan returns no plan: {seen.get('problem')}",
                "{name: style, …}",
                seen.get("problem"),
                rank,
            )
        with hinted(LAYOUTS):
            check_refused(told, "the block", ranks)
        weights = 12 * sizes["dim"] ** 2
        for rank, seen in enumerate(ranks):
            expect(
                seen["held"] <= weights / world,
                f"{told}: rank {rank} holds {seen['held']:,} of the {weights:,} elements of q, k, v, out, up and down: "
                f"not all are cut",
                f"{weights // world:,}",
                f"{seen['held']:,}",
                rank,
                "A layer that the plan does not name is whole on each rank. Which of the six matrices are named?",
            )
            # Of a cut stream a rank has its tokens, else all.
            y, dx = (right[name].chunk(world, dim=1)[rank] if cut else right[name] for name in ("y", "x.grad"))
            than = "what one process has"
            check_tensor(
                f"{told}: the block's output on rank {rank}", seen["y"], y, EXACT, rank, than=than, hint=LAYOUTS
            )
            what = f"{told}: the gradient of the block's input on rank {rank}"
            check_tensor(what, seen["x.grad"], dx, EXACT, rank, than=than, hint=SUMMED)
        with hinted(SUMMED):
            check_parts(told, [seen["grads"] for seen in ranks], right["grads"])
        stream = 8 * sizes["batch"] * sizes["length"] * sizes["dim"]
        an_all_reduce = 2 * (world - 1) / world * stream
        norms = 8 * 4 * sizes["dim"] * 2 if cut else 0  # the gradients of the norms, which the check itself adds up
        for name, events in zip(("forward", "backward"), cases(run.events), strict=False):
            for rank in range(world):
                much = sent_by(events[rank], rank)
                expect(
                    much <= 2.01 * an_all_reduce + norms,
                    f"{told}: rank {rank} sends {much:,.0f} bytes in the {name} pass of a block, as in "
                    f"{much / an_all_reduce:.1f} all-reduces "
                    "of the stream",
                    f"{2 * an_all_reduce:,.0f} bytes, as in 2",
                    f"{much:,.0f} bytes",
                    rank,
                    BETWEEN if name == "forward" else "",
                )


# ---------------------------------------------------------------------------------------------------
# TODOs 4 to 6: the whole model


def serial_words(sizes, seed):
    """What `words_apart` should find."""
    weight, h, (_, y) = drawn_model(0, sizes).head.weight.detach(), stream_of(seed, sizes), drawn_batch(seed, sizes)
    double = torch.nn.functional.cross_entropy((h @ (2 * weight.T)).flatten(0, 1), y.flatten(), ignore_index=IGNORE)
    return {"head": h @ weight.T, "double": double.item()}


@todo(4)
def test_todo4_words(student):
    grids = student.several(((2, 2, False), (1, 3, True)))  # of two rows, the world is more than a row
    models = {tp: serial_model(student, tp, "words") for _, tp, _ in grids}
    if 3 in models:
        check_tables(student, models[3][0], 3)
    for rows, tp, cut in grids:
        told = f"with ends_plan({'Shard(1)' if cut else 'Replicate()'}) and share_loss on {rows} × {tp} ranks"
        run, sizes = check_model(student, models[tp], tp, cut, "words", told, "the model", rows)
        right = student.reference(serial_words, sizes=sizes, seed=models[tp][1])
        for rank, seen in enumerate(run.evidence):
            given = f"{told}, the head's output on rank {rank}, for a plain stream with that layout,"
            than = "the logits of all words and tokens"
            check_tensor(given, seen["head"], right["head"], EXACT, rank, than=than, hint=HINTS["head"])
            expect(
                math.isclose(seen["double"], right["double"], rel_tol=digits(seen["double_dtype"])),
                f"{told}, head_loss called with another weight gives rank {rank} a loss that is not that weight's",
                right["double"],
                seen["double"],
                rank,
                HINTS["weight"],
            )
        check_words_sent(told, run, sizes, tp)


def check_tables(student, sizes, tp):
    """Of both tables the rows of some words, and no column less."""
    words = math.ceil(sizes["vocab"] / tp)
    for rank, seen in enumerate(student.call(tables_on_rank, world=tp, sizes=sizes).evidence):
        problem = seen[0].get("problem")
        expect(not problem, f"ends_plan returns no plan: {problem}", "{name: style, …}", problem, rank)
        for layout, held in zip(("Replicate()", "Shard(1)"), seen):
            for name, rows in held["rows"].items():
                expect(
                    rows <= words and held["elements"][name] <= words * sizes["dim"],
                    f"with ends_plan({layout}) on {tp} ranks, rank {rank} holds {rows:,} rows of {name}, of "
                    f"{sizes['vocab']:,} words",
                    f"{words:,} rows",
                    f"{rows:,} rows",
                    rank,
                )


def check_words_sent(told, run, sizes, tp):
    tokens = sizes["batch"] * sizes["length"]
    # Of the stream: 4 all-reduces in each of 2 blocks, the embedding forward, h forward and backward. Of each token
    # a few numbers. And the gradients of five norms, weight and bias.
    allowed = 2 * (tp - 1) / tp * 8 * ((8 + 3) * tokens * sizes["dim"] + 4 * tokens + 10 * sizes["dim"])
    forward, backward, *_ = cases(run.events)
    for rank in range(len(run.evidence)):
        much = sent_by(forward[rank] + backward[rank], rank)
        expect(
            much <= allowed,
            f"{told}, rank {rank} sends {much:,.0f} bytes for words and loss: are logits or tables gathered?",
            f"at most {allowed:,.0f} bytes",
            f"{much:,.0f} bytes",
            rank,
            HINTS["sent"],
        )
