"""Checks of 06_context_parallel, TODOs 7 and 8: cost and training.

| TODO | achievement                 | evidence                                                         | needs   |
|------|-----------------------------|------------------------------------------------------------------|---------|
| 7    | costs, predicted            | the formulas                                                     |         |
| 8    | the model, distributed      | losses, gradients, weights of the serial run; activations alive  | 1 to 4  |
"""

import itertools
import math

import torch

from grader.kit import check_answers, check_tensor, count_of, expect, hinted, near, scale_of, todo
from utils.memory import Storages

from .common import check_parts, check_refused
from .ranks import STEPS, batch_of, made_model, trained_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 6: Ulysses


@todo(7)
def test_todo7_costs(student):
    right, draw = {}, student.draw("costs")
    for nbytes_, world in ((4096, 1), *((24 * draw.randrange(99, 9999), world) for world in range(2, 9))):
        right["ring_cost", (nbytes_, world)] = (world - 1, 2 * (world - 1) * nbytes_)
        right["ulysses_cost", (nbytes_, world)] = (4, 4 * (world - 1) / world * nbytes_)
    for heads, available in itertools.product(range(1, 13), range(1, 10)):
        right["most_ranks", (heads, available)] = max(n for n in range(1, available + 1) if heads % n == 0)
    for flops, bandwidth, itemsize in ((400e12, 450e9, 2), (400e12, 50e9, 2), (1e10, 1e9, 4)):
        right["hiding_length", (flops, bandwidth, itemsize, False)] = itemsize * flops / (2 * bandwidth)
        right["hiding_length", (flops, bandwidth, itemsize, True)] = itemsize * flops / bandwidth
    hints = {
        "most_ranks": "A head is on one rank, and each rank has equally many. Which numbers of ranks allow that?",
        "hiding_length": (
            "At this length the products of a step take as long as its messages. Which of the two grows faster with the"
            " length, and which of them does a causal mask change?"
        ),
    }
    check_answers(student, right, wrong="is not what will happen", hints=hints)


# ---------------------------------------------------------------------------------------------------
# TODO 8: the model


REL = 1e-4  # as in all lessons: sums of float32 in a different order differ by less


def trained_serially(seed, world):
    """One process that has the whole sequence; and the activations of one that has as much of it as a rank."""
    model = made_model(world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    found = {"losses": []}
    x, y = batch_of(seed, 0, world)
    first = x.shape[1] // world
    with Storages(model.parameters()) as storages:
        loss = model(x[:, :first], y[:, :first])
        found["activations"] = storages.by_kind({"weights": model.parameters()})["other"]
    del loss
    found["first"] = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(*batch_of(seed, step, world))
        loss.backward()
        found["losses"].append(loss.item())
        if step == 0:
            found["gradients"] = {name: p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
    found["weights"] = dict(model.named_parameters())
    with torch.no_grad():
        found["logits"] = model(batch_of(seed, STEPS, world)[0])
    return found


@todo(8, needs=(1, 2, 3, 4))
def test_todo8_model(student):
    pick = student.draw("model")
    # 7 ranks take two seconds, and show no more.
    many = student.draw("ranks", "model").randrange(3, 6)
    worlds = student.several((1, 2, many), but=(1, many))
    asked = [(pick.randrange(1 << 40), world) for world in worlds]
    rights = [student.reference(trained_serially, seed=seed, world=world) for seed, world in asked]
    for right in rights:
        # Of the weights themselves: losses of two batches may be alike, however far these have moved.
        still = [name for name, weight in right["weights"].items() if torch.equal(weight, right["first"][name])]
        student.premise(not still, f"a {still[:1]} that never moves")
    for (seed, world), right in zip(asked, rights, strict=True):
        ranks = student.call(trained_on_rank, world=world, seed=seed).evidence
        told = f"on {count_of(world, 'rank')}"
        check_shares(told, world, seed, [mine["shares"] for mine in ranks])
        for rank, mine in enumerate(ranks):
            check_training(told, mine, right, rank)
    check_refused(student, "my_share", "token", parts=2)


@hinted("Which positions belong to a rank, as in TODO 4? Its tokens and targets are those at these positions.")
def check_shares(told, world, seed, ranks):
    """Each token of each step is on one rank, with its target."""
    for step in range(STEPS):
        x, y = batch_of(seed, step, world)
        for rank, shares in enumerate(ranks):
            check_share(told, world, x, y, shares[step], rank)
        places = sorted(place for shares in ranks for place in shares[step][2].tolist())
        expect(
            places == list(range(x.shape[1])),
            f"my_share {told}: not every one of {x.shape[1]} tokens is on one rank",
            "each token once",
            places,
        )


def check_share(told, world, x, y, share, rank):
    """A rank's tokens and targets are those at its positions."""
    check_parts(f"my_share {told}", share, ("tokens", "targets", "positions"), rank)
    for name, part in zip(("tokens", "targets", "positions"), share):
        expect(
            isinstance(part, torch.Tensor) and part.dtype == torch.int64,
            f"my_share {told}: the {name} of rank {rank} are not an int64 tensor",
            "int64",
            part.dtype if isinstance(part, torch.Tensor) else part,
            rank,
        )
    places = share[2]
    expect(
        places.dim() == 1 and len(places) == x.shape[1] // world,
        f"my_share {told} of {x.shape[1]} tokens: rank {rank} has a different number of positions",
        f"{x.shape[1] // world}, 1-D",
        tuple(places.shape),
        rank,
    )
    expect(
        bool((places >= 0).all()) and bool((places < x.shape[1]).all()),
        f"my_share {told}: positions of rank {rank} lie outside the sequence",
        f"0 to {x.shape[1] - 1}",
        places.tolist(),
        rank,
    )
    for name, part, all_of_them in (("tokens", share[0], x), ("targets", share[1], y)):
        good = all_of_them[:, places]
        check_tensor(
            f"my_share {told}: rank {rank}'s tensor of {name}", part, good, rank=rank, than="what is at its positions"
        )


OF_ZERO = "The loss is 0 then, and so are its gradients. An optimizer skips a parameter without one."


def check_training(told, mine, right, rank):
    """What a rank has after some steps is what one process has."""
    expect(
        mine["another"],
        f"after use_ring of one model, another model {told} attends differently, too, on rank {rank}",
        "only that one model attends with the ring",
        "others of its class as well",
        rank,
        "Which object do you change: a layer of this model, or something that all models use?",
    )
    for step, (loss, good) in enumerate(zip(mine["losses"], right["losses"], strict=True), start=1):
        expect(
            isinstance(loss, (int, float)),
            f"backward_pass {told} returns no number on rank {rank}",
            "a number",
            loss if isinstance(loss, str) else type(loss).__name__,
            rank,
            "The caller wants the loss of the whole sequence, as a number. Which part of it does each rank have, and"
            " as what?",
        )
        if step == 1:
            check_loss(told, step, loss, good, rank)
    scale = scale_of(right["gradients"].values())
    for name, good in right["gradients"].items():
        got = mine["gradients"][name]
        gradient = f"{told}, after the first backward_pass the gradient of {name} on rank {rank}"
        hint = (
            "Each rank has its part of the gradient. What makes the whole of the parts, and are all parameters in it?"
        )
        check_tensor(gradient, got, good, REL, rank, scale=scale, than="one process's", hint=hint)
    for step, (loss, good) in enumerate(zip(mine["losses"], right["losses"], strict=True), start=1):
        check_loss(told, step, loss, good, rank)
    nothing = f"backward_pass {told} without a target on any rank leaves no gradient on rank {rank}"
    expect(not mine["without"], nothing, "gradients of 0", f"none in {', '.join(mine['without'])}", rank, OF_ZERO)
    for name, good in right["weights"].items():
        moved = good - right["first"][name]
        expect(
            near(mine["weights"][name] - good + moved, moved, 10 * REL),
            f"{told}, after {STEPS} steps {name} on rank {rank} is not one process's",
            good,
            mine["weights"][name],
            rank,
        )
    good = right["logits"][:, mine["places"]]
    logits = f"{told}, the tensor of logits under torch.no_grad() on rank {rank}"
    hint = "Training is right. What does the model do differently where autograd is off, or at another length?"
    check_tensor(logits, mine["logits"], good, 10 * REL, rank, than="one process's", hint=hint)
    # Up to copies of a layer's q, k and v that are contiguous: 3 of about 16 parts.
    most = round(1.25 * right["activations"])
    expect(
        mine["activations"] <= most,
        f"{told}, rank {rank} keeps {mine['activations']:,} bytes of activations for the backward pass; one "
        "process with as many tokens as a rank keeps "
        f"{right['activations']:,}",
        f"at most {most:,} bytes",
        f"{mine['activations']:,} bytes",
        rank,
        "Which tensor on this rank has more tokens than the rank's share, and why is it kept?",
    )


def check_loss(told, step, loss, good, rank):
    expect(
        math.isclose(loss, good, rel_tol=REL),
        f"{told}, the loss of step {step} of {STEPS} on rank {rank} is not one process's",
        good,
        loss,
        rank,
    )
