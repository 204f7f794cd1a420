"""Checks of context_training, TODOs 4 and 5: losses.

| TODO | achievement | evidence | needs |
| --- | --- | --- | --- |
| 4 | every target counts alike | objective()'s factor, with unequal numbers of targets, or none |  |
| 5 | validation | evaluate() on 2 × 2 and 3 ranks, with windows that end in the middle | 2, 3 |
"""

import math

import torch
import torch.nn.functional as F

from grader.kit import check_tensor, expect, shares, todo
from utils.data import IGNORE

from .common import WORDS, zigzag
from .ranks import EOS, evaluate_on_rank, objective_on_rank, small_model, text_of

# ---------------------------------------------------------------------------------------------------
# TODO 4: the loss that is trained


@todo(4)
def test_todo4_objective(student):
    draw = student.draw("objective")
    worlds = student.several((4, 3))
    drawn = {}  # world -> the counts of each case, and the loss of each rank in it; 0 where no target counts
    for world in worlds:
        unequal = shares(draw, world, most=8)
        counts = [unequal, [0] * world, [draw.randrange(1, 9)] * world]
        drawn[world] = counts, [draw.uniform(1, 3) if any(mine) else 0.0 for mine in counts]
        student.premise(len(set(unequal)) > 1, "the mean of the ranks' means")
    for world in worlds:
        counts, loss = drawn[world]
        run = student.call(objective_on_rank, world=world, counts=counts, loss=loss)
        for number, mine in enumerate(counts):
            for rank, seen in enumerate(run.evidence):
                check_factor(mine, seen[number], loss[number], rank)


def check_factor(counts, seen, loss, rank):
    world, total = len(counts), sum(counts)
    told = f"where {world} ranks have {', '.join(map(str, counts[:-1]))} and {counts[-1]} targets that count"
    expect(not isinstance(seen["made"], str), f"{told} objective returns {seen['made']}", "a loss", seen["made"], rank)
    expect(seen["factor"] is not None, f"{told} no gradient reaches the loss on rank {rank}", "one", "none", rank)
    right = counts[rank] * world / total if total else 0.0
    if not total:  # the loss is 0, and so is what is made of it, whatever its factor
        whole = seen["made"].item() == 0 and math.isfinite(seen["factor"].item())
        hint = "No target counts anywhere, as in a batch of empty lines. What is divided by, then?"
        expect(whole, f"{told}, objective returns {seen['made'].item()} on rank {rank}", 0.0, seen["made"], rank, hint)
        return
    mistakes = {
        "its number of targets over the number of all targets, and then FSDP divides by the ranks": counts[rank]
        / total,
        "1: each rank counts alike, however many targets it has": 1.0,
        "its number of targets, divided by nothing": float(counts[rank]),
        "the number of all targets": float(total),
    }
    check_tensor(
        f"{told}, the factor by which objective scales rank {rank}'s loss",
        seen["factor"],
        torch.tensor(right, dtype=torch.float64),
        1e-6,  # counts may be divided in float32
        rank,
        wrongs={words: torch.tensor(value, dtype=torch.float64) for words, value in mistakes.items()} if right else {},
    )
    kept = math.isclose(seen["loss"].item(), loss, rel_tol=1e-12)
    expect(kept, f"{told} objective changes the loss that the log adds up", loss, seen["loss"].item(), rank)


# ---------------------------------------------------------------------------------------------------
# TODO 5: validation


@torch.no_grad()
def serial_evaluation(sizes, lengths, cp, pack):
    """The mean over all targets; and the mean that takes each part of a row for a whole row."""
    model, means = small_model(0, sizes), []
    for length in lengths:
        total = count = wrong = weight = 0.0
        for x, y in text_of(length, sizes["length"], sizes["vocab"]):
            y = y.masked_fill(x == EOS, IGNORE) if pack else y
            each = F.cross_entropy(model(x[None])[0], y, ignore_index=IGNORE, reduction="none")
            total, count = total + each.sum().item(), count + (y != IGNORE).sum().item()
            for rank in range(cp):
                places = zigzag(rank, cp, sizes["length"])
                counted = (y[places] != IGNORE).sum().item()
                wrong += each[places].sum().item() / max(counted, 1) * (y != IGNORE).sum().item()
                weight += (y != IGNORE).sum().item()
        means.append((total / count, wrong / weight))
    return means


@todo(5, needs=(2, 3), in_place=("model",))  # its mode
def test_todo5_evaluate(student):
    draw = student.draw("evaluate")
    trials = [(False, (2, 2)), (True, (1, 3))]
    chosen = {}
    for pack, (rows, cp) in student.several(trials):
        length = 4 * cp
        sizes = {"vocab": 5 if pack else draw.choice(WORDS), "dim": 12, "heads": 3, "length": length}
        # A window of one token; one that ends in a later piece; fewer windows than rows.
        lengths = [3 * length + 1, 2 * length + draw.randrange(2, length), length - 1]
        means = student.reference(serial_evaluation, sizes=sizes, lengths=lengths, cp=cp, pack=pack)
        told_apart = any(not math.isclose(right, wrong, rel_tol=1e-4) for right, wrong in means)
        student.premise(told_apart, "a row's number of targets for a rank's")
        chosen[pack, rows, cp] = sizes, lengths, means
    for (pack, rows, cp), (sizes, lengths, means) in chosen.items():
        how = dict(grid=(rows, cp), method="ring", sizes=sizes, lengths=lengths, pack=pack)
        run = student.call(evaluate_on_rank, world=rows * cp, **how)
        for rank, seen in enumerate(run.evidence):
            for length, (right, _), mean in zip(lengths, means, seen, strict=True):
                told = f"on {rows} × {cp} ranks{' with --pack' * pack}, evaluate's mean is wrong for a text of {length}"
                same = math.isclose(mean, right, rel_tol=1e-6)
                expect(same, f"{told} words in windows of {sizes['length']}", right, mean, rank)
