"""What several files with checks of 07_expert_parallel use."""

import torch

from grader.kit import check_tensor, count_of, expect

# Sums in a different order. Measured with three draws, relative to the largest number: float32 gradients differ by
# 1e-6, what the router gives, whose logits may be hundreds, by 6e-6; bfloat16 results by 4e-3, gradients by 2e-2.
REL = {"torch.float32": 1e-4, "torch.bfloat16": 3e-2, "torch.float64": 1e-4}


# Two runs of the same training add up in a different order. Of 200 draws of each training below, the router's logits
# of the ranks and of one process differed by 2.6e-5 at most (3e-6 in the median; the largest logit was 4.2), and
# every choice was the same. So two logits may come nearer to each other by 5.2e-5; this is twice that.
MARGIN = 1e-4


NEEDED = "more than is needed elsewhere"


# Hints for parts of a check that the first hint of its TODO is not about.
HINTS = {
    "counts": "A rank sends every other rank the counts for that rank's own experts. How many numbers are these?",
    "sent": "A row goes to the rank of its expert, and nowhere else. Which rows stay, and is any sent twice?",
    "regroup": "What arrives is ordered by the rank that it comes from. For each row, which expert is it for?",
    "capacity": "How many slots are there? How many does an expert get if all get equally many?",
    "shares": "Each share drops as if it were alone, as a rank would. Of how many tokens is its limit, then?",
    "balance": "Which sums does the loss take: one for each token, or one for each expert? Which go into one message?",
    "one loss": (
        "The loss's value comes from all ranks, but no gradient passes through the all-reduce. Which tensor of this"
        " rank"
        " has a gradient, and what factor does it need? A detached term corrects its value."
    ),
    "way back": "The forward pass is right. Follow a row's gradient back, step by step: where does it go astray?",
}


# ---------------------------------------------------------------------------------------------------
# TODO 2: the mixture on one process


def choices(draw, n, experts, k, home=None, dropped=0.0, avoid=None):
    """k different experts for each of n tokens, as lists. With `home`, a range, three in four are from it; no token
    chooses `avoid`.
    """
    chosen = []
    for _ in range(n):
        pool = [e for e in range(experts) if e != avoid]
        mine = [e for e in pool if home is not None and e in home]
        some = draw.sample(mine, min(k, len(mine))) if mine and draw.random() < 0.75 else []
        some += draw.sample([e for e in pool if e not in some], k - len(some))
        chosen.append([-1 if draw.random() < dropped else e for e in some])
    return chosen


def right_mixture(h, gates, chosen, experts):
    """Token by token, in float64 if they are."""
    out = [torch.zeros_like(row) for row in h]
    for n, of_token in enumerate(chosen):
        for j, e in enumerate(of_token):
            if e >= 0:
                out[n] = out[n] + gates[n, j] * experts[e](h[n : n + 1])[0]
    return torch.stack(out) if out else 0 * h


def check_work(what, seen, due, rank=None, first=0):
    """Rows that each expert computed. `due` by expert; the first is number `first`."""
    for number, (mine, rows) in enumerate(zip(seen, due, strict=True), first):
        expect(
            len(mine["calls"]) > 0,
            f"{what}: expert {number} is never called"
            + ("" if rows else ". No token chose it; call it on zero rows, so that its gradient is zero, not missing"),
            f"one call, {count_of(rows, 'row')}",
            "no call",
            rank,
            "An expert that is not called has no gradient, not one of zero. Does each of them run, even with no rows?",
        )
        done = sum(mine["calls"])
        expect(
            done == rows,
            f"{what}: expert {number} computes {count_of(done, 'row')}; {rows} chose it",
            count_of(rows, "row"),
            count_of(done, "row"),
            rank,
        )
        expect(
            len(mine["calls"]) == 1,
            f"{what}: expert {number} is called {len(mine['calls'])} times",
            "one call",
            f"{len(mine['calls'])} calls",
            rank,
            "A token's choices are different experts. How do you get all rows of one expert at once?",
        )


def check_gradients(what, seen, inputs, layers, rel, rank=None, first=0, dtype=torch.float32):
    """Gradients of the inputs and of the experts, compared with the reference's. The gates are in float32, all
    else is in `dtype`.
    """
    spoken = {"h": "the tokens", "gates": "the gates"}
    # An expert's gradient is a sum over its tokens, of terms of size one, and may nearly cancel. Of 3,000 draws in
    # bfloat16, it was wrong by up to 0.22 of itself, but by at most 0.026 of the larger of itself and 1.
    scale = 2.0 if dtype == torch.bfloat16 else 0.1
    for name, tensor in inputs.items():
        due = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        if not due.numel():
            continue
        told = f"{what}: no gradient reaches {spoken[name]}"
        expect(isinstance(seen[name], torch.Tensor), told, "a gradient", "none", rank)
        told = f"{what}: the gradient of {spoken[name]}"
        kind = torch.float32 if name == "gates" else dtype
        check_tensor(told, seen[name], due, rel, rank, dtype=kind, than="one process's")
    for number, (mine, layer) in enumerate(zip(seen["experts"], layers, strict=True), first):
        for name in ("weight", "bias"):
            due = getattr(layer, name).grad
            due = torch.zeros_like(getattr(layer, name)) if due is None else due
            expect(
                isinstance(mine[name], torch.Tensor),
                f"{what}: no gradient reaches expert {number}; one that was not chosen has a gradient of zero",
                "a gradient",
                "none",
                rank,
            )
            told = f"{what}: the gradient of expert {number}'s {name}"
            check_tensor(told, mine[name], due, rel, rank, dtype=dtype, scale=scale, than="one process's")


# ---------------------------------------------------------------------------------------------------
# TODO 4: the way back, and gradients


def traffic(chosen, place, each, row_bytes):
    """(most, least) bytes that a member of a group sends in one pass: its rows, and results of others' rows.

    The least is for a token that goes to a rank once, though two of its experts are there.
    """

    def rows(source, target):
        slots = [e // each for row in chosen[source] for e in row if e // each == target]
        tokens = [row for row in chosen[source] if any(e // each == target for e in row)]
        return len(slots), len(tokens)

    pairs = [rows(place, other) for other in range(len(chosen)) if other != place] + [
        rows(other, place) for other in range(len(chosen)) if other != place
    ]
    return row_bytes * sum(pair[0] for pair in pairs), row_bytes * sum(pair[1] for pair in pairs)


# ---------------------------------------------------------------------------------------------------
# What is right, on one process


def load_of(chosen, experts):
    return [sum(row.count(e) for row in chosen) for e in range(experts)]


def right_drop(chosen, experts, limit):
    """Slot by slot: first choices of all tokens, then second ones."""
    kept, taken = [[-1] * len(row) for row in chosen], [0] * experts
    for j in range(len(chosen[0]) if chosen else 0):
        for n, row in enumerate(chosen):
            if row[j] >= 0 and taken[row[j]] < limit:
                kept[n][j] = row[j]
                taken[row[j]] += 1
    return kept


def right_balance(parts, experts, k):
    """Of all tokens in `parts`, (probabilities, choices)."""
    probs, chosen = (torch.cat([part[i] for part in parts]) for i in range(2))
    f = torch.stack([(chosen == e).sum() for e in range(experts)]).double() / (len(chosen) * k)
    return experts * (f * probs.double().mean(dim=0)).sum()
