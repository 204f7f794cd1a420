"""Checks of 07_expert_parallel, TODOs 5 and 6: capacity and balance.

| TODO | achievement                           | evidence                                                   | needs  |
|------|---------------------------------------|------------------------------------------------------------|--------|
| 5    | capacity                              | the formula; which slots are kept                          |        |
| 6    | the balancing loss over all ranks     | value, gradient, bytes; unequal numbers of tokens          |        |
"""

import math

import torch

from grader.kit import (
    PARTED,
    Private,
    cases,
    check_answers,
    check_sent,
    check_shape,
    check_tensor,
    count_of,
    expect,
    hinted,
    todo,
)

from .common import HINTS, choices, right_balance, right_drop
from .ranks import balance_inputs, balanced_on_rank, dropped_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 5: capacity


@todo(5)
def test_todo5_capacity(student):
    right = {
        ("capacity", (tokens, k, experts, factor)): math.ceil(factor * tokens * k / experts)
        for tokens, k, experts, factor in (
            (16, 1, 4, 1.0),
            (16, 2, 4, 1.25),
            (10, 1, 4, 1.0),
            (7, 2, 3, 1.5),
            (100, 2, 64, 0.5),
            (0, 2, 4, 1.0),
            (1, 1, 8, 1.0),
            (3, 2, 2, 4.0),  # more than there are tokens
        )
    }
    trials = []
    for number, (n, k, experts, limit, factor, shares) in enumerate(
        (
            (12, 1, 3, 3, 1.0, 2),
            (12, 2, 4, 4, 1.25, 3),
            (10, 3, 5, 5, 0.5, 5),
            (8, 2, 3, 100, 4.0, 2),
            (6, 2, 4, 2, 1.0, 1),
            (9, 2, 6, 0, 0.5, 3),
            (0, 2, 4, 1, 1.0, 2),
            (6, 1, 2, 3, 1.0, 6),  # a share of one token, which drops nothing
        )
    ):
        for attempt in range(50):
            draw = student.draw("drop", number, attempt)
            chosen = choices(draw, n, experts, k, home=range(2), dropped=0.2 if number == 2 else 0.0)
            told_apart = (
                n == 0
                or number in (3, 5)
                or k == 1
                or right_drop(chosen, experts, limit) != by_token(chosen, experts, limit)
            )
            alone = shares != n or chosen[0] == chosen[1]  # in a share of two, one would be dropped
            if told_apart and alone:
                break
        student.premise(told_apart and alone, "slots that are dropped token by token, or in shares of two")
        trials.append([chosen, [n, k], experts, limit, factor, shares])
    check_answers(student, right, wrong="is wrong: an even share times the factor, rounded up", hints=HINTS)
    (seen,) = student.call(dropped_on_rank, world=1, group=False, trials=trials).evidence
    for found, (chosen, (n, k), experts, limit, factor, shares) in zip(seen, trials, strict=True):
        what = f"drop of {n} tokens with {count_of(k, 'choice')} of {experts} experts, limit {limit}" + (
            ", some of them -1" if any(-1 in row for row in chosen) else ""
        )
        check_shape(what, found["drop"], (n, k), torch.int64)
        expect(
            not found["shared"],
            f"{what} returns experts_NK itself: a write into the result is a write into what the balancing loss needs",
            "a copy",
            "the same memory",
            hint="The result is a new tensor, also where nothing is dropped. Which line returns what it was given?",
        )
        compare_kept(what, found["drop"].tolist(), right_drop(chosen, experts, limit), chosen)
        each = max(n // shares, 1)
        some = [chosen[first : first + each] for first in range(0, n, each)]
        due = [
            row for share in some for row in right_drop(share, experts, math.ceil(factor * (n // shares) * k / experts))
        ]
        what = (
            f"drop_in_shares of {n} tokens with {count_of(k, 'choice')} of {experts} experts, factor {factor}, "
            f"{count_of(shares, 'share')}"
        )
        check_shape(what, found["shares"], (n, k), torch.int64)
        compare_kept(what, found["shares"].tolist(), due, chosen, HINTS["shares"])


def by_token(chosen, experts, limit):
    """The wrong order: all choices of the first token, then of the next."""
    kept, taken = [], [0] * experts
    for row in chosen:
        kept.append([])
        for e in row:
            fits = e >= 0 and taken[e] < limit
            kept[-1].append(e if fits else -1)
            taken[e] += fits
    return kept


def compare_kept(what, got, due, chosen, hint=""):
    for token, (mine, right) in enumerate(zip(got, due, strict=True)):
        told = f"{what}: token {token}, which chose {chosen[token]}, keeps other slots"
        expect(mine == right, told, right, mine, hint=hint)


# ---------------------------------------------------------------------------------------------------
# TODO 6: the balancing loss


# (tokens of each rank, experts, choices). 1,100 tokens give an expert more slots than bfloat16 can count.
BALANCES = (
    ((9,), 4, 2),
    ((1100, 30), 3, 2),
    ((40, 30), 4, 1),
    ((25, 0, 40), 6, 2),
    ((8, 8, 8, 8), 3, 1),
    ((10, 30, 20, 5, 40), 5, 3),
)


@todo(6)
def test_todo6_balance(student):
    trials = []
    for number, (ns, experts, k) in enumerate(BALANCES):
        world = len(ns)
        seeds = student.draw("balance", number).sample(range(1 << 40), world)
        parts = [balance_inputs(seed, n, experts, k, r) for r, (seed, n) in enumerate(zip(seeds, ns, strict=True))]
        for probs, _ in parts:
            probs.requires_grad_()
        right = right_balance(parts, experts, k)
        right.backward()
        right = right.detach()
        local = [right_balance([part], experts, k).item() if len(part[0]) else 0.0 for part in parts]
        apart = abs(sum(local) / world - float(right))
        student.premise(world == 1 or apart > 2e-3, "a mean of local products")  # 20 times what is allowed below
        trials.append((seeds, ns, experts, k, parts, right, local))
    for seeds, ns, experts, k, parts, right, local in trials:
        world = len(ns)
        with hinted(PARTED, "hang"):
            run = student.call(balanced_on_rank, world=world, seed=Private(seeds), n=Private(ns), experts=experts, k=k)
        what = (
            f"balancing_loss on {count_of(world, 'rank')} with {', '.join(map(str, ns))} tokens, {experts} "
            f"experts, {k} a token"
        )
        for rank, found in enumerate(run.evidence):
            check_tensor(
                f"{what}: what rank {rank} finds",
                found["loss"],
                right,
                1e-4,
                rank,
                dtype=torch.float32,
                wrongs={
                    "a mean of the ranks' own losses": torch.tensor(sum(local) / world),
                    "of this rank's tokens alone": torch.tensor(local[rank]),
                },
            )
            if not ns[rank]:
                continue
            expect(
                isinstance(found["grad"], torch.Tensor),
                f"{what}: no gradient reaches the probabilities",
                "a gradient",
                "none",
                rank,
                "An all-reduce has no gradient. Which tensor of this rank is in the loss, and still has one?",
            )
            due = world * parts[rank][0].grad
            check_tensor(
                f"{what}: the gradient of rank {rank}'s probabilities",
                found["grad"],
                due,
                1e-4,
                rank,
                dtype=torch.float32,
                than=f"what it should be: {world} times (the number of ranks) the derivative of the loss, so that the"
                " ranks' average is right",
                hint=HINTS["one loss"],
            )
            (events,) = cases(run.events)
            # An all-reduce of float64 numbers, forward and backward.
            most = 2 * 2 * (world - 1) / world * 8 * (2 * experts + 2)
            enough = "a few numbers for each expert are enough, however many tokens there are"
            check_sent(what, events, most, 1 if world > 1 else 0, enough, [rank], HINTS["balance"])
