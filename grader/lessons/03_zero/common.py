"""What several files with checks of 03_zero use."""

import math

import torch

from grader.kit import cases, check_shape, collectives, count_of, expect, hinted, lengths, near

from .ranks import OPTIONS, batch, in_groups, made_model, train_on_rank

# Losses differ from one process's by the order in which float32 numbers are added: over 60 draws by 2.8e-7 at
# most in ten steps, and weights under SGD by 7e-7 of their change, where that is more than MOVED. A rank that trains
# alone ends with different weights, which is asserted below.
REL, MOVED = 1e-4, 1e-2


def serial(seeds, kind, odd, layers, steps, passes):
    """One process that has all ranks' batches: losses, weights, and the optimizer's state dictionary in the middle and
    at the end.
    """
    model, unmoved, losses, still, states = made_model(odd, layers), made_model(odd, layers), [], [], []
    optimizer = getattr(torch.optim, kind)(
        in_groups([p for p in model.parameters() if p.requires_grad]), **OPTIONS[kind]
    )
    for step in range(steps):
        optimizer.zero_grad()
        for number in range(passes):
            x, y = (torch.cat(parts) for parts in zip(*(batch(seed, step, number) for seed in seeds)))
            loss = model(x, y)
            loss.backward()
            losses.append(loss.item())
            with torch.no_grad():
                still.append(unmoved(x, y).item())
        optimizer.step()
        if step == steps // 2 - 1:
            middle = {
                number: {name: value.clone() for name, value in values.items()}
                for number, values in optimizer.state_dict()["state"].items()
            }
            states.append({"state": middle, "param_groups": optimizer.state_dict()["param_groups"]})
    return {
        "losses": losses,
        "still": still,
        "weights": model.state_dict(),
        "first": made_model(odd, layers).state_dict(),
        "states": states,
        "evaluated": model(*batch(0, 0, 0)).item(),
    }


def share(shapes, world):
    """Numbers in the shards of these tensors."""
    return sum(math.ceil(math.prod(shape) / world) for shape in shapes)


def own(shapes, world, rank):
    """The same, without padding."""
    sizes = [(math.prod(shape), math.ceil(math.prod(shape) / world)) for shape in shapes]
    return sum(min(size, max(0, n - rank * size)) for n, size in sizes)


def shapes_of(odd=False, layers=1):
    """Of all parameters, and of those that are trained."""
    parameters = list(made_model(odd, layers).parameters())
    return [p.shape for p in parameters], [p.shape for p in parameters if p.requires_grad]


# ---------------------------------------------------------------------------------------------------
# TODOs 1 and 7: predictions


def undivided(student):
    """Numbers of parameters or bytes, and of ranks, that mostly do not divide them."""
    draw = student.draw("divided")
    return [(n, world) for world in (3, draw.choice((5, 6, 7))) for n in lengths(draw, world)]


# ---------------------------------------------------------------------------------------------------
# TODOs 2 and 3: shards, and how they are sent


VIEWS = "Which operations on a tensor give a view of it, and which take new memory?"


# ---------------------------------------------------------------------------------------------------
# TODOs 4, 6 and 9: the stages


def check_state(told, names, rank):
    """Every part has a state; otherwise ranks that gather it would wait for the one that has none."""
    expect(
        not names,
        f"{told}, the optimizer of rank {rank} has no state for its part of {', '.join(names)}: an empty part, too,"
        " needs a gradient",
        "a state for each part",
        f"none for {', '.join(names)}",
        rank,
        "An optimizer makes state for what has a `grad`. Ranks that gather the state all go through it alike.",
    )


# What is wrong with what a rank holds, sends or steps is the same kind of failure in every stage, and for masters.
HINTS = {
    ("too much", "optimizer"): "For which tensors does the optimizer make a state, and how long are those tensors?",
    ("too much", "gradients"): "Which gradients are still referred to, though nothing needs them any more?",
    ("too much", "weights"): "What keeps more memory alive than expected: a whole weight that is not freed, or a view?",
    ("too little", "optimizer"): "An optimizer makes its state in its first step, for what it holds and has a `grad`.",
    ("too little", "gradients"): "An optimizer steps what has a `grad`. What does it hold, and which line sets that?",
    ("too little", "weights"): "Which weights does no rank hold between the steps?",
    (
        "sent",
        "gradients",
    ): "A rank steps only its part. Which numbers of the mean does it need, and from how many ranks?",
    ("sent", "weights"): "After the step a rank has new numbers only in its part. Which numbers do the others lack?",
    "odd": (
        "Here one weight is used twice, some are frozen, and a step may have several backward passes. Which of these"
        " does"
        " that line not expect?"
    ),
    "collectives": "One call can send several tensors, one after the other.",
    "leaves": "A result of autograd is not a leaf. A leaf can use the same memory; ask for its gradient.",
    "options": "A group is a dictionary. What else is in it, apart from parameters?",
}


def check_held(told, seen, limits, rank, whole):
    """`limits`: kind -> (least, most) bytes. `whole`: kind -> bytes of an unsharded one. Gradients come first:
    where there are none, the optimizer has no state either.
    """
    for kind in ("gradients", "weights", "optimizer"):
        least, most = limits[kind]
        what = "optimizer state" if kind == "optimizer" else kind
        due = f"its share is {most:,}" if most < whole[kind] else f"the whole is {most:,}"
        more = f"{seen[kind]:,} bytes of {what}; {due}" + (
            ": they are views of something larger, or exist twice" if most >= whole[kind] else ""
        )
        if seen[kind] >= whole[kind] > most:
            more = (
                f"{seen[kind]:,} bytes of {what}, as much as a rank that trains alone, or more: nothing is sharded, or"
                " what was sharded is not freed"
            )
        expect(
            seen[kind] <= most,
            f"{told}, rank {rank} holds {more}",
            f"{most:,} bytes",
            f"{seen[kind]:,} bytes",
            rank,
            HINTS["too much", kind],
        )
        less = f"{told}, rank {rank} holds {seen[kind]:,} bytes of {what}, and {due}: was it ever made here?"
        if kind == "gradients":
            less = f"{told}, rank {rank} holds {seen[kind]:,} bytes of gradients before the step, and {due}" + (
                ": none reaches the parameters that its optimizer trains" if not seen[kind] else ""
            )
        too_little = HINTS["too little", kind]
        expect(least <= seen[kind], less, f"{least:,} bytes", f"{seen[kind]:,} bytes", rank, too_little)
    expect(
        seen["other"] == 0,
        f"{told}, rank {rank} holds {seen['other']:,} bytes apart from weights, gradients and optimizer state:"
        " temporary tensors are still there",
        "0 bytes",
        f"{seen['other']:,} bytes",
        rank,
        "A temporary tensor is still referred to: by a list, by a closure, or by a view of it.",
    )


def limits_of(stage, odd, layers, world, rank, state):
    """(kind -> least and most bytes before a step, kind -> bytes where nothing is sharded)."""
    everything, trained = shapes_of(odd, layers)
    psi, learned = sum(map(math.prod, everything)), sum(map(math.prod, trained))
    part, shard = own(trained, world, rank), share(trained, world)
    whole = {"weights": 4 * psi, "gradients": 4 * learned, "optimizer": state * learned}
    return {
        "weights": (
            (4 * own(everything, world, rank), 4 * share(everything, world)) if stage == 3 else (4 * psi, 4 * psi)
        ),
        "gradients": (4 * part, 4 * shard) if stage >= 2 else (4 * learned, 4 * learned),
        "optimizer": (state * part, state * shard),
    }, whole


def check_traffic(told, calls, stage, odd, layers, world, passes):
    """Bytes that each rank sends in one step, by what they are for."""
    everything, trained = shapes_of(odd, layers)
    padded = {"gathered": share(everything if stage == 3 else trained, world), "reduced": share(trained, world)}
    least = {
        "gathered": sum(map(math.prod, everything if stage == 3 else trained)) / world,
        "reduced": sum(map(math.prod, trained)) / world,
    }
    gathers = 2 * passes if stage == 3 else 1
    reduces = passes if stage >= 2 else 1
    units = layers + 1
    most = {1: (1, 1), 2: (1, len(trained) * passes), 3: (gathers * units, passes * units)}[stage]
    for rank in range(world):
        mine = [call for call in calls if call.rank == rank]
        sums = [call for call in mine if call.op not in ("all_gather", "broadcast")]
        rest = [call for call in mine if call.op in ("all_gather", "broadcast")]
        expect(
            len(mine) > 0,
            f"{told}, rank {rank} sends nothing at all in a step: each rank trains alone",
            "gradients, and weights",
            "no collective",
            rank,
            "The mean over all ranks, and the parts that others have stepped: which of your functions bring them?",
        )
        for what, found, times, key, number in (
            ("gradients", sums, reduces, "reduced", most[1]),
            ("weights", rest, gathers, "gathered", most[0]),
        ):
            nbytes = sum(call.sent for call in found)
            upper = 4 * (world - 1) * padded[key] * times
            lower = 4 * (world - 1) * least[key] * (1 if stage == 3 and key == "gathered" else times)
            by = ", ".join(sorted({call.op for call in found})) or "nothing"
            expect(
                nbytes <= upper,
                f"{told}, rank {rank} sends {nbytes:,.0f} bytes of {what} in a step, by {by}",
                f"at most {upper:,} bytes",
                f"{nbytes:,.0f} bytes",
                rank,
                HINTS["sent", what],
            )
            expect(
                nbytes >= lower,
                f"{told}, rank {rank} sends only {nbytes:,.0f} bytes of {what} in a step, by {by}",
                f"{lower:,.0f} bytes or more",
                f"{nbytes:,.0f} bytes",
                rank,
                HINTS["sent", what],
            )
            expect(
                len(found) <= number,
                f"{told}, rank {rank} makes {len(found)} collectives for {what} in a step",
                f"at most {number}",
                len(found),
                rank,
                HINTS["collectives"],
            )


def serial_run(student, seeds, **how):
    """What one process does with all ranks' batches; neither the first weights nor one rank's batches give it."""
    right = student.reference(serial, seeds=[*seeds], **how)
    alone = student.reference(serial, seeds=seeds[:1], **how)
    moves = abs(right["losses"][-1] - right["still"][-1]) > 10 * REL * right["still"][-1]
    student.premise(moves, "weights that never move")
    apart = [
        (alone["weights"][name] - weight).norm() > 0.1 * (weight - right["first"][name]).norm()
        for name, weight in right["weights"].items()
    ]
    student.premise(any(apart), "ranks that train alone")
    return right


def check_losses(told, ranks, right, hint="", after=0):
    """The ranks' batches are of one size, so the mean of their losses is the loss of all. `hint`: for the losses
    `after` so many.
    """
    for number, loss in enumerate(right):
        seen = sum(mine["losses"][number] for mine in ranks) / len(ranks)
        expect(
            math.isclose(seen, loss, rel_tol=REL),
            f"{told}, loss {number + 1} of {len(right)} is not one process's",
            loss,
            seen,
            hint=hint
            if hint and number >= after
            else "Until then all losses were right. Which numbers did the last step change, and with which gradient?"
            if number
            else "",
        )


def put_together(shards, shape):
    return torch.cat([shard.view(-1) for shard in shards])[: math.prod(shape)].view(shape)


def check_weights(told, ranks, right, sharded):
    for name, weight in right["weights"].items():
        first, copies = right["first"][name], [mine["weights"][name] for mine in ranks]
        if sharded:
            copies = [put_together(copies, weight.shape)]
        moved = (weight - first).norm()
        for rank, copy in enumerate(copies):
            whose = "" if sharded else f" on rank {rank}"
            still = ": it has not changed" if moved and torch.equal(copy, first) else ""
            check_shape(f"{told}, {name}{whose}", copy, weight.shape, weight.dtype, rank)
            expect(
                near(copy - first, weight - first, REL, MOVED),
                f"{told}, {name}{whose} is not what one process has after the last step{still}",
                f"moved by {moved:.5g}",
                f"moved by {(copy - first).norm():.5g}, and {(copy - weight).norm():.2g} away",
                hint="Is it stepped, and is the stepped tensor a view of the weight itself?"
                if still
                else "With which gradient was it stepped: the mean over all ranks, of exactly these numbers?",
            )


# (optimizer, ranks, tied and frozen, layers, steps, backward passes a step). The step of stage 2 is stage 1's, so
# there it is the gradients that count. Stage 3 has two blocks in one trial, since with one alone a unit is all there
# is.
TRIALS = {
    1: (("AdamW", 2, False, 1, 10, 1), ("SGD", 3, True, 1, 2, 1)),
    2: (("SGD", 3, True, 1, 3, 2),),
    3: (("AdamW", 2, False, 1, 10, 1), ("SGD", 3, True, 2, 2, 2)),
}


def stage_trials(student, stage):
    """(ranks, their seeds, how they train, what one process does), of each."""
    trials = []
    for kind, world, odd, layers, steps, passes in student.several(TRIALS[stage]):
        how = dict(kind=kind, odd=odd, layers=layers, steps=steps, passes=passes)
        seeds = student.seeds(world)
        trials.append((world, seeds, how, serial_run(student, seeds, **how)))
    return trials


def check_stage(student, stage, trials):
    for world, seeds, how, right in trials:
        kind, odd, layers, _, passes = how.values()
        told = (
            f"stage {stage}, {kind} on {count_of(world, 'rank')}"
            + (", head tied, some parameters frozen" if odd else "")
            + (", two backward passes per step" if passes > 1 else "")
        )
        with hinted(HINTS["odd"] if odd else "", "crash"):
            run = student.call(train_on_rank, world=world, seed=seeds, stage=stage, **how)
        ranks = run.evidence
        calls = collectives(cases(run.events)[0])
        for rank, mine in enumerate(ranks):
            limits, whole = limits_of(stage, odd, layers, world, rank, state=8 if kind == "AdamW" else 4)
            for number, bytes_held in enumerate(mine["held"], start=1):
                after = "" if number == passes else ", after the first of them"
                check_held(told + after, bytes_held, limits, rank, whole)
            check_state(told, mine["stateless"], rank)
            if stage == 2:
                expect(
                    mine["gradients"] <= 1,
                    f"{told}, rank {rank} holds {mine['gradients']} whole gradients at once in the backward pass",
                    "one at a time",
                    mine["gradients"],
                    rank,
                )
            if stage == 3:
                check_whole(told, mine["whole"], made_model(odd, layers), rank)
        check_traffic(told, calls, stage, odd, layers, world, passes)
        check_losses(told, ranks, right["losses"])
        if stage == 3:
            for rank, mine in enumerate(ranks):
                wrong = [loss for loss in mine["evaluated"] if not math.isclose(loss, right["evaluated"], rel_tol=REL)]
                expect(
                    not wrong,
                    f"{told}, an evaluation after the last step gives rank {rank} a different loss from one "
                    "process: are the weights gathered again?",
                    f"{right['evaluated']:.6f}",
                    ", ".join(f"{loss:.6f}" for loss in wrong),
                    rank,
                    "The last step has changed the shards. Does a forward pass gather them also without gradients, and"
                    " in evaluation mode?",
                )
        if kind == "SGD":  # with AdamW, rounding errors grow where a gradient is small
            check_weights(told, ranks, right, sharded=stage == 3)


# ---------------------------------------------------------------------------------------------------
# TODOs 8 and 9: units


def check_whole(told, seen, model, rank):
    """Bytes of whole weights, from moment to moment: of a block while it computes, and of the rest."""
    in_block = 4 * sum(p.numel() for p in model.blocks[0].parameters())
    inside = {p for block in model.blocks for p in block.parameters()}
    rest = 4 * sum(p.numel() for p in model.parameters() if p not in inside)
    for moment, nbytes in seen.items():
        most = rest + in_block if "block" in moment else rest if "between" in moment else 0
        expect(
            nbytes <= most,
            (
                f"{told}, rank {rank} has {nbytes:,} bytes of whole weights at {moment}"
                if "time" in moment
                else f"{told}, rank {rank} has {nbytes:,} bytes of whole weights in {moment}"
            ),
            f"at most {most:,} bytes",
            f"{nbytes:,} bytes",
            rank,
            "Which units are needed at this moment? For each of the others: which call should have freed it, and when?",
        )
