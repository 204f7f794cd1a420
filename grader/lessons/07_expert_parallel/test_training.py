"""Checks of 07_expert_parallel, TODOs 7 and 9: training.

| TODO | achievement                           | evidence                                                   | needs  |
|------|---------------------------------------|------------------------------------------------------------|--------|
| 7    | groups; whose gradients are averaged  | members of groups; gradients and bytes                     |        |
| 9    | the course's model, trained           | losses, gradients, weights, bytes held and sent            | 1, 3–7 |
"""

import math

import torch

from grader.kit import COPIED, Private, cases, check_sent, check_tensor, count_of, expect, hinted, near, todo

from .common import HINTS, MARGIN, NEEDED, load_of, right_balance, right_drop, traffic
from .ranks import (
    LENGTH,
    OWN,
    OWN_DTYPES,
    SHARED,
    SHARED_DTYPES,
    STEPS,
    WEIGHT,
    WIDTH,
    Whole,
    averaged_on_rank,
    gradients_for,
    grouped_on_rank,
    lm,
    lm_batch,
    margin,
    trained_on_rank,
)

MOVED = 1e-2


# ---------------------------------------------------------------------------------------------------
# TODO 7: groups and gradients


GROUPS = ((4, 2), (4, 1), (3, 3), (6, 3), (1, 1))


@todo(7, in_place=("shared", "experts"))
def test_todo7_gradients(student):
    for world, spread in student.several(GROUPS, but=GROUPS[-1:]):
        check_groups(student, world, spread)
    for world, spread in student.several(((4, 2), (6, 2), (3, 3), (2, 1))):
        seeds = student.draw("gradients", world).sample(range(1 << 40), world)
        run = student.call(averaged_on_rank, world=world, spread=spread, seed=Private(seeds))
        what = f"average_gradients on {count_of(world, 'rank')}, spread {spread}"
        (events,) = cases(run.events)
        for rank, found in enumerate(run.evidence):
            holders = list(range(rank % spread, world, spread))
            for name, kind, shapes, dtypes, who in (
                ("shared", 0, SHARED, SHARED_DTYPES, range(world)),
                ("experts", 1, OWN, OWN_DTYPES, holders),
            ):
                drawn = [gradients_for(seeds[r] + kind, shapes, dtypes, r, world) for r in who]
                sums = [sum(parts) for parts in zip(*drawn, strict=True)]
                spoken = "a shared parameter" if name == "shared" else "an expert's parameter"
                for got, given, total in zip(found[name], found["given"][kind], sums, strict=True):
                    turned = total.dim() == 4
                    divisors = {1, len(holders), spread, world * world} - {world}
                    check_tensor(
                        f"{what}: the gradient of {spoken}{', in channels_last,' if turned else ''} on rank {rank}",
                        got,
                        total / world,
                        1e-5,
                        rank,
                        wrongs={f"divided by {n}, not by {world}": total / n for n in sorted(divisors)},
                        than=f"the sum over ranks {[*who]}, divided by {world}",
                        hint=COPIED if turned else AVERAGED,
                    )
                    expect(
                        torch.equal(got, given),
                        f"{what}: {spoken} on rank {rank} gets a new tensor as its gradient: change the one that is"
                        " there, in place",
                        "the same tensor, with different numbers",
                        "a different tensor",
                        rank,
                        "Other code may hold the gradient's tensor: a bucket, or a list of gradients. Which operations"
                        " write into a tensor?",
                    )
            expect(
                found["weights"],
                f"{what}: rank {rank}'s parameters themselves have changed",
                "only gradients",
                "also weights",
                rank,
                "Which tensor is written into: the parameter, or its gradient?",
            )
            # The shared gradients, of two dtypes, may be joined in one message: then all of them are float64.
            size = 8 * sum(map(math.prod, SHARED)), 4 * sum(map(math.prod, OWN))
            most = 2 * (world - 1) / world * size[0] + 2 * (len(holders) - 1) / len(holders) * size[1]
            hint = "Whose gradients must reach all ranks, and whose only those that hold the same experts?"
            check_sent(what, events, most, 0, f"all-reduces send {most:,.0f}", [rank], hint)


AVERAGED = (
    "The whole loss is the mean of all ranks' losses. Which ranks hold this parameter, and by what is the sum of their"
    " gradients divided?"
)


EVERY_GROUP = (
    "Every rank takes part in making every group, also one that it is not in. How many groups are there in all, and how"
    " many does each rank make?"
)


def check_groups(student, world, spread):
    with hinted(EVERY_GROUP, "hang", "mismatch"):
        ranks = student.call(grouped_on_rank, world=world, spread=spread).evidence
    for rank, found in enumerate(ranks):
        what = f"make_groups on {count_of(world, 'rank')}, spread {spread}"
        groups = found["groups"]
        expect(isinstance(groups, list), f"{what} does not return two groups", "two groups", groups, rank)
        first = rank - rank % spread
        due = [list(range(first, first + spread)), list(range(rank % spread, world, spread))]
        for name, got, right in zip(("that exchanges tokens", "that holds the same experts"), groups, due, strict=True):
            expect(
                isinstance(got, list),
                f"{what}: rank {rank}'s group {name} is {got}, not a group with this rank in it",
                f"ranks {right}",
                got,
                rank,
                "Every rank takes part in making every group. Which of all these groups does it return?",
            )
            expect(
                got == right,
                f"{what}: rank {rank}'s group {name} has the wrong members",
                f"ranks {right}",
                f"ranks {got}",
                rank,
            )


# ---------------------------------------------------------------------------------------------------
# TODO 9: the course's model


class SerialMixture(Whole):
    """The mixture on one process. It keeps what it did. `limit`: in place of the one that follows from the tokens."""

    limit = None

    def forward(self, x):
        h = x.flatten(0, 1)
        logits = h @ self.router.T
        probs = logits.softmax(dim=1)
        chosen = logits.argsort(dim=1, descending=True, stable=True)[:, : self.k]
        gates = probs.gather(1, chosen)
        gates = gates if self.k == 1 else gates / gates.sum(dim=1, keepdim=True)
        self.balance = right_balance([(probs, chosen)], len(self.experts), self.k)
        self.margin = margin(logits.detach(), self.k)
        each = len(h) // self.shares
        shares = [chosen[first : first + each].tolist() for first in range(0, len(h), each)]
        self.load = [load_of(share, len(self.experts)) for share in shares]
        if self.factor is not None:
            limit = self.limit or math.ceil(self.factor * each * self.k / len(self.experts))
            self.last_limit = limit
            shares = [right_drop(share, len(self.experts), limit) for share in shares]
        self.kept = shares
        index = torch.tensor([row for share in shares for row in share])
        out = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            # Dense: all tokens, most times zero.
            out = out + ((index == number) * gates).sum(dim=1, keepdim=True) * expert(h)
        return out.view_as(x)


def serial(seeds, experts, k, factor):
    """One process that has all ranks' batches: losses, first gradients, last weights; what was routed in step 1."""
    model = lm(experts, k, factor, len(seeds), SerialMixture)
    first = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses, gradients, smallest, kept, load, dropped = [], {}, math.inf, [], [], 0
    for step in range(STEPS + 1):
        x, y = (torch.cat(parts) for parts in zip(*(lm_batch(seed, step) for seed in seeds)))
        loss = model(x, y)
        layers = [block.mlp for block in model.blocks]
        smallest = min(smallest, *(layer.margin for layer in layers))
        losses.append(loss.item())
        for layer in layers:
            dropped += sum(row.count(-1) for share in layer.kept for row in share)
        if step == STEPS:
            break
        optimizer.zero_grad()
        (loss + WEIGHT * sum(layer.balance for layer in layers)).backward()
        if step == 0:
            gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
            kept, load = [layer.kept for layer in layers], [layer.load for layer in layers]
            balance = sum(layer.balance.item() for layer in layers)
        limits = [getattr(layer, "last_limit", None) for layer in layers]
        optimizer.step()
    with torch.no_grad():
        for layer, limit in zip(layers, limits):
            layer.limit = limit
        kept_limit = model(x, y).item()
        for layer in layers:
            layer.limit, layer.factor = None, None
        dropless = model(x, y).item()
        for layer in layers:
            layer.factor = 0.0
        losses.append(model(x, y).item())
    return {
        "losses": losses,
        "kept limit": kept_limit,
        "dropless": dropless,
        "first": first,
        "gradients": gradients,
        "weights": dict(model.named_parameters()),
        "margin": smallest,
        "kept": kept,
        "load": load,
        "dropped": dropped,
        "balance": balance,
    }


# (ranks, ranks that one set is spread over, experts per rank, choices, factor of the capacity)
TRAININGS = ((2, 2, 2, 2, 1.0), (3, 3, 1, 1, None), (4, 2, 3, 2, 1.25))


@todo(9, in_place=("model", "shared", "experts"), needs=(1, 3, 4, 5, 6, 7))
def test_todo9_training(student):
    trials = []
    for world, spread, each, k, factor in student.several(TRAININGS, but=TRAININGS[1:2]):  # which drops nothing
        how = dict(experts=spread * each, k=k, factor=factor)
        for attempt in range(20):
            seeds = student.draw("training", world, attempt).sample(range(1 << 40), world)
            right = student.reference(serial, seeds=seeds, **how)
            new_limit = factor is None or not math.isclose(right["kept limit"], right["losses"][STEPS], rel_tol=1e-3)
            if right["margin"] > MARGIN and (factor is None or right["dropped"]) and new_limit:
                break
        student.premise(right["margin"] > MARGIN, "a choice that rounding makes")
        student.premise(factor is None or right["dropped"] > 0, "a layer that drops nothing")
        student.premise(new_limit, "a layer that keeps the limit of the first batch")
        trials.append((world, spread, each, seeds, how, right))
    apart = max(abs(right["dropless"] - right["losses"][-1]) for *_, right in trials)
    student.premise(apart > 4e-3, "a layer that drops in training only")
    for trial in trials:
        check_training(student, *trial)


def check_training(student, world, spread, each, seeds, how, right):
    told_size = f"{world} ranks, {how['experts']} experts over {spread} of them, {how['k']} per token, " + (
        "dropless" if how["factor"] is None else f"capacity factor {how['factor']}"
    )
    run = student.call(trained_on_rank, world=world, spread=spread, seed=Private(seeds), **how)
    for rank, found in enumerate(run.evidence):
        check_spread(told_size, found, right, each, rank)
        expect(
            "loss" not in found,
            f"whole_loss on {told_size} does not return two numbers, as tensors",
            "loss, and what to minimize",
            found.get("loss"),
            rank,
            "One number is compared with the serial run's, the other is minimized. What does each consist of?",
        )
        without, hint = found.get("without", [""])[0], "Does each rank run all of its experts, even without a row?"
        told = f"{told_size}: no gradient reaches {without} on rank {rank}"
        expect(not without, told, "a gradient", "none", rank, hint)
    for number, due in enumerate(right["losses"][:1]):
        check_loss(told_size, run.evidence, number, due)
    # Coarse, because after a wrong layer the next one routes differently; gradients are the sharper test.
    excess = sum(found["total"] - found["losses"][0] for found in run.evidence) / world
    due = WEIGHT * right["balance"]
    expect(
        math.isclose(excess, due, rel_tol=1e-2),
        f"{told_size}: the number to be minimized is not the loss and {WEIGHT} times each block's balancing loss",
        f"{due:.5f} more than the loss",
        f"{excess:.5f} more than the loss",
        hint=(
            "Each block has a balancing loss of its own while it runs. What is the sum of them, and where is it added?"
        ),
    )
    with hinted(
        "The first loss is right. Over which ranks is this parameter's gradient averaged, and in which list is it?"
    ):
        check_first_gradients(told_size, run.evidence, right, world, spread, each)
    with hinted("load is what the tokens have chosen. Is it counted before some of their slots are dropped, or after?"):
        check_load(told_size, run.evidence, right)
    for number, due in enumerate(right["losses"]):
        check_loss(told_size, run.evidence, number, due, right["dropless"])
    check_last_weights(told_size, run.evidence, right, spread, each)
    for rank, found in enumerate(run.evidence):
        told = f"{told_size}: parallel_forward of a tensor that is not contiguous, on rank {rank},"
        good, seen = found["layouts"]
        check_tensor(told, seen, good, 1e-4, rank, than="what it is of the same numbers in order", hint=LAYOUT)
        told = f"{told_size}: parallel_forward after a call with more tokens, on rank {rank},"
        than = "what it was before that call"
        check_tensor(told, good, found["before more tokens"], 1e-4, rank, than=than, hint=CALLS)
        told, due = (
            f"{told_size}: the load on rank {rank} is not the number of slots in the last call",
            2 * LENGTH * how["k"],
        )
        load = found["last load"]
        counted = int(load.sum()) if isinstance(load, torch.Tensor) else load
        expect(counted == due, told, count_of(due, "slot"), counted, rank, CALLS)
        told = f"{told_size}: parallel_forward of bfloat16 tokens, with experts in bfloat16, on rank {rank}"
        expect(found["dtype"] == "bfloat16", f"{told} returns {found['dtype']}", "bfloat16", found["dtype"], rank)
    check_sent_in_training(told_size, cases(run.events)[:2], spread, each, how["experts"], right["kept"])


CALLS = "Each call has tokens of its own. What does the layer keep from an earlier call, and does the next one use it?"


LAYOUT = "Its numbers are the same, and lie in memory in a different order. Which line relies on that order?"


def check_spread(told_size, found, right, each, rank):
    """What spread_experts has left on a rank: memory, and the two lists."""
    sizes = {name: p.numel() for name, p in right["weights"].items()}
    of_one = sum(size for name, size in sizes.items() if ".experts.0." in name)
    of_all = sum(size for name, size in sizes.items() if ".experts." not in name)
    expect(
        isinstance(found["lists"], list),
        f"spread_experts on {told_size} does not return two lists of parameters",
        "two lists",
        found["lists"],
        rank,
    )
    held, due = found["held"], of_all + each * of_one
    expect(
        held <= due,
        f"{told_size}: after spread_experts, rank {rank} has memory for {held:,} weights; its share is "
        f"{due:,}, with {count_of(each, 'expert')} per layer",
        f"{due:,} weights",
        f"{held:,} weights",
        rank,
        "Which experts are this rank's? Something still refers to the memory of the others.",
    )
    names = [name for name in right["weights"] if ".experts." not in name]
    own = [
        f"blocks.{b}.mlp.experts.{e}.{part}.weight" for b in range(2) for e in range(each) for part in ("up", "down")
    ]
    for what, got, those in (
        ("what all ranks hold", found["lists"][0], names),
        ("this rank's experts", found["lists"][1], own),
    ):
        stray = sorted(set(got) ^ set(those)) or [name for name in got if got.count(name) > 1]
        expect(
            not stray,
            f"spread_experts on {told_size}: the list of {what} on rank {rank} is wrong: {stray[0] if stray else ''}",
            f"{len(those)} parameters",
            f"{len(got)} parameters",
            rank,
            "Which parameters do all ranks hold alike, and which are only on some of them? Each is in one list, once.",
        )


def check_load(told_size, ranks, right):
    for rank, found in enumerate(ranks):
        for layer in range(2):
            due = right["load"][layer][rank]
            load, than = found["load"][layer], f"how many of rank {rank}'s slots chose each expert"
            check_tensor(f"{told_size}: block {layer}'s load", load, torch.tensor(due), rank=rank, than=than)


def check_sent_in_training(told_size, passes, spread, each, experts, kept):
    """Forward and backward, a rank sends the tokens that are not its own, counts, and the balancing losses."""
    for direction, events in zip(("forward", "backward"), passes, strict=True):
        for rank in range(len(events)):
            members = range(rank - rank % spread, rank - rank % spread + spread)
            layers = [traffic([layer[r] for r in members], rank % spread, each, 4 * WIDTH) for layer in kept]
            small = 2 * (8 * (experts - each) + 2 * 8 * (2 * experts + 2))  # counts and balancing losses of two layers
            most, least = sum(layer[0] for layer in layers) + small, sum(layer[1] for layer in layers)
            check_sent(f"{told_size}, {direction}", events, most, least, NEEDED, [rank], HINTS["sent"])


def check_loss(told_size, ranks, number, due, dropless=None):
    """`dropless`: the loss of an evaluation in which no slot is dropped."""
    seen = sum(found["losses"][number] for found in ranks) / len(ranks)
    which = (
        f"loss {number + 1} of {STEPS}",
        "the loss of an evaluation after the last step, with more tokens than a step has,",
        "the loss of an evaluation with a capacity factor of 0.0, where every slot is dropped,",
    )[max(number - STEPS + 1, 0)]
    hint = (
        "",
        "Here there are more tokens than in a step. Which number of tokens sets the limit?",
        "A factor of 0.0 is a factor, also in an evaluation. How does the layer tell that there is none?",
    )[max(number - STEPS + 1, 0)]
    told = f"{told_size}: {which} is not one process's"
    if number >= STEPS and dropless and math.isclose(seen, dropless, rel_tol=1e-4):
        told += ": no slot is dropped in it"
        if number == STEPS:
            hint = "The serial layer drops whenever it has a factor. On what else does yours depend?"
    expect(math.isclose(seen, due, rel_tol=1e-4), told, due, seen, hint=hint)


def in_serial(name, rank, spread, each):
    """The serial model's name for a parameter of this rank."""
    parts = name.split(".")
    if "experts" in parts:
        place = parts.index("experts") + 1
        parts[place] = str(int(parts[place]) + each * (rank % spread))
    return ".".join(parts)


def check_first_gradients(told_size, ranks, right, world, spread, each):
    for rank, found in enumerate(ranks):
        for name, got in found["gradients"].items():
            due = right["gradients"][in_serial(name, rank, spread, each)]
            told = f"{told_size}: the first gradient of {name} on rank {rank}"
            check_tensor(told, got, due, 1e-4, rank, scale=1e-3, than="one process's")


def check_last_weights(told_size, ranks, right, spread, each):
    for rank, found in enumerate(ranks):
        for name, got in found["weights"].items():
            there = in_serial(name, rank, spread, each)
            weight, first = right["weights"][there], right["first"][there]
            moved = float((weight - first).norm())
            expect(
                near(got - first, weight - first, 1e-4, MOVED),
                f"{told_size}: {name} on rank {rank} is not what one process has after {STEPS} steps",
                f"moved by {moved:.5g}",
                f"moved by {float((got - first).norm()):.5g}, and {float((got - weight).norm()):.2g} away",
                rank,
            )
