"""Checks of context_training, TODOs 1 to 3: layout and attention.

| TODO | achievement | evidence | needs |
| --- | --- | --- | --- |
| 1 | the grid, and its samples | make_mesh() for several --cp on 4 and 6 ranks; make_samplers() over two epochs |  |
| 2 | a rank's share of each sequence | my_places() and my_share() by both methods, on 1 to 4 ranks |  |
| 3 | attention over the row | the output and all three gradients, by both methods; bytes sent |  |
"""

import torch

from grader.kit import cases, check_grids, check_row_samplers, check_tensor, expect, sent_by, todo
from utils.data import IGNORE

from .common import attention_case, check_attention, drawn_ends, right_places, zigzag
from .ranks import EOS, numbered, packed_share_on_rank, samplers_on_rank, share_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 1: the grid, and the samples


LAST_AXIS = (
    "One axis divides the samples, the other one the tokens of a sequence. Which of the two communicates in every"
    " layer, and so needs consecutive ranks?"
)


@todo(1)
def test_todo1_layout(student):
    check_grids(student, "--cp", ["data", "context"], ["--seq-len", "48", "--dim", "24", "--heads", "12"], LAST_AXIS)
    check_row_samplers(student, samplers_on_rank, "hold parts of one sequence")


# ---------------------------------------------------------------------------------------------------
# TODO 2: the share


def drawn_text(student, rows, tokens, *purpose):
    """x and y, (rows, tokens), all of them different, without EOS; and some targets that do not count."""
    draw = torch.Generator().manual_seed(student.draw("text", *purpose).randrange(1 << 40))
    numbers = 1 + torch.randperm(2 * rows * tokens, generator=draw)
    x, y = numbers.view(2, rows, tokens)
    y[torch.rand(y.shape, generator=draw) < 0.1] = IGNORE
    return x, y


@todo(2)
def test_todo2_share(student):
    draw = student.draw("share")
    trials = [("ring", (1, 3)), ("ulysses", (1, 2)), ("ring", (2, 2)), ("ulysses", (1, 4)), ("ring", (1, 1))]
    for method, (rows, cp) in student.several(trials, but=[("ring", (1, 1))]):
        tokens = 2 * cp * draw.choice((2, 3, 4))
        x, y = drawn_text(student, draw.choice((2, 3)), tokens, method, cp)
        told = f"with --cp {cp} --cp-method {method}"
        run = student.call(share_on_rank, world=rows * cp, grid=(rows, cp), method=method, x=x.tolist(), y=y.tolist())
        for rank, seen in enumerate(run.evidence):
            check_places(told, seen["places"], method, rank % cp, cp, tokens, rank)
        for rank, seen in enumerate(run.evidence):
            check_share(told, seen["share"], x, y, right_places(method, rank % cp, cp, tokens), rank)
    check_packed_share(student)


def check_packed_share(student):
    """With --pack: positions that differ from sequence to sequence, and whole documents."""
    draw = student.draw("packed share")
    tokens, cp = 12, 3
    x, y = drawn_text(student, 2, tokens, "packed")
    x[0, draw.randrange(1, 6)] = EOS
    x[1, [0, draw.randrange(6, 12)]] = EOS
    positions = torch.tensor([draw.sample(range(48), tokens) for _ in range(2)])
    how = dict(x=x.tolist(), y=y.tolist(), positions=positions.tolist())
    run = student.call(packed_share_on_rank, world=cp, grid=(1, cp), **how)
    whole = {"x": x, "y": y.masked_fill(x == EOS, IGNORE), "positions": positions}
    hint = "With --pack each sequence has positions of its own, and `documents` is needed whole. What is cut, and how?"
    for rank, share in enumerate(run.evidence):
        expect(isinstance(share, dict), f"with --pack my_share returns {share}", "a Share", share, rank)
        for name, tensor in whole.items():
            told = f"with --pack --cp {cp}, what the share has as {name} on rank {rank}"
            check_tensor(told, share.get(name), tensor[:, zigzag(rank, cp, tokens)], rank=rank, hint=hint)
        told = f"with --pack --cp {cp}, what the share has as documents on rank {rank}"
        check_tensor(told, share.get("documents"), (x == EOS).cumsum(dim=1), rank=rank, hint=hint)


def check_places(told, seen, method, number, cp, tokens, rank):
    right = torch.tensor(right_places(method, number, cp, tokens))
    other = "ulysses" if method == "ring" else "ring"
    work = "its causal work is not an equal share" if method == "ring" else "Ulysses takes the parts as consecutive"
    check_tensor(
        f"{told}, what my_places returns for {tokens} tokens on rank {number} of a row",
        seen,
        right,
        rank=rank,
        wrongs={
            f"the order that --cp-method {other} needs: {work}": torch.tensor(right_places(other, number, cp, tokens)),
            "every place: nothing is divided": torch.arange(tokens),
        },
    )


def check_share(told, share, x, y, places, rank):
    hint = "Tokens, targets and positions are of the same places. Which of them is cut differently?"
    expect(isinstance(share, dict), f"{told} my_share returns {share}", "a Share", share, rank)
    whole = {"x": x, "y": y, "positions": torch.arange(x.shape[1])}
    for name in ("x", "y", "positions"):
        right = whole[name][..., places]
        check_tensor(
            f"{told}, what the share has as {name} on rank {rank}",
            share.get(name),
            right,
            rank=rank,
            wrongs={
                "whole: no rank divides it": whole[name],
                "numbered on the rank, and not in the sequence": torch.arange(len(places)),
            }
            if len(places) < x.shape[1]
            else {},
            hint=hint,
        )
    documents = share.get("documents")
    expect(documents is None, f"{told} and no --pack, the share has documents", None, documents, rank, hint)


# ---------------------------------------------------------------------------------------------------
# TODO 3: attention


@todo(3)
def test_todo3_attention(student):
    trials = [("ring", (1, 3)), ("ulysses", (2, 2)), ("ring", (2, 2)), ("ulysses", (1, 4))]
    for method, (rows, cp) in student.several(trials):
        sizes, draw = attention_case(student, method, cp, rows)
        seeds = draw.sample(range(1 << 40), rows)
        run, told = check_attention(student, method, (rows, cp), seeds, sizes)
        # 06's formulas, forward: 2 (N - 1) times a rank's queries in a ring, 4 (N - 1) / N of them by Ulysses.
        mine = 8 * sizes["batch"] * sizes["heads"] * sizes["tokens"] // cp * sizes["width"]
        due = 2 * (cp - 1) * mine if method == "ring" else 4 * (cp - 1) / cp * mine
        for rank, events in enumerate(cases(run.events)[0]):
            much = sent_by(events, rank)
            expect(
                much <= 1.01 * due,
                f"{told} rank {rank} sends {much:,.0f} bytes forward: more than this method takes",
                f"{due:,.0f} bytes",
                f"{much:,.0f} bytes",
                rank,
                "Each method has its own call. Which one does this flag ask for?",
            )
    for method, (rows, cp) in student.several([("ring", (1, 2)), ("ulysses", (1, 2))]):
        sizes, draw = attention_case(student, method, cp, rows, "masked")
        ends = drawn_ends(draw, sizes)
        documents = numbered(ends, sizes)
        same = (documents[:, :, None] == documents[:, None, :]).tolist()
        check_attention(student, method, (rows, cp), draw.sample(range(1 << 40), rows), sizes, ends, same)
