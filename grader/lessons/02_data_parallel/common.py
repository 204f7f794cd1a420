"""What several files with checks of 02_data_parallel use."""

import torch

from grader.kit import Fault, Wrong, check_tensor, collectives, expect, near, place, ring_bytes, scale_of, sent_by

from .ranks import WORLD, Net, gradients, loss_of, made_model, trained

# Sums of float32 numbers in a different order: over 1500 draws at most 3e-5 of a gradient's norm was seen, where the
# ranks' gradients nearly cancel, and that is 4e-8 of the norm of all gradients; where they do not, 1e-5. A wrong one
# differs by 1e-2 of its norm and more.
REL = 1e-4


REL_IN_FLOAT64 = 1e-10  # a gradient that was in float32 on the way differs by 1e-8


def gradient_bytes(a_number=4):
    return [a_number * parameter.numel() for parameter in trained(Net()).values()]


def serial(passes, seeds, dtype="float32"):
    """Gradients of the mean loss over the passes, as `loss_of` has them, of all ranks, on one process.

    It works through the ranks' shares one after the other, since a batch norm of the whole batch would differ.
    """
    model = made_model().to(getattr(torch, dtype))
    for rank, seed in enumerate(seeds):
        for one in passes:
            (loss_of(model, seed, rank, *one) / len(passes) / len(seeds)).backward()
    return gradients(model)


def parts(events, begin="mark"):
    """One rank's events from each mark to the next one."""
    found = []
    for event in events:
        if event["e"] == begin:
            found.append([])
        elif found:
            found[-1].append(event)
    return found


def ops(events):
    return [event for event in events if event["e"] == "op"]


# Hints for parts that several TODOs have.
MISSING = "A rank may have no gradient where the others have one. What does it count as, and where is it made?"


NOT_OVER = "Until you have waited for its work, a tensor belongs to its collective. Which line has to come later?"


NO_WAIT = "With async_op=True a call returns at once. What does it return, and where is that waited for?"


HELD_UP = "While a hook waits, nothing is computed. Which function is called when nothing is left to compute?"


TOO_MANY = "Which tensors are sent, and how often? A tied parameter is one tensor with two names."


def check_gradients(what, seen, right, rank, world=WORLD):
    scale = scale_of(right.values())
    for name, wanted in right.items():
        grad = seen.get(name)
        told = f"{what}: on rank {rank}, {name} has no gradient afterwards"
        expect(grad is not None, told, "a gradient", "None", rank, MISSING)
        wrongs = {
            "summed over the ranks, not averaged": (
                world * wanted,
                "Every gradient is there, but N times too large: which division is missing? (In some releases of"
                " torch, ReduceOp.AVG on gloo is a sum.)",
            ),
            "divided once too often": (
                wanted / world,
                "Every gradient is there, but too small by one factor: what is divided in two places?",
            ),
        }
        told, than = f"{what}: on rank {rank}, the gradient of {name}", "one process's gradient of all samples"
        rel = REL if wanted.dtype == torch.float32 else REL_IN_FLOAT64
        check_tensor(told, grad, wanted, rel, rank, scale=scale, wrongs=wrongs, than=than)


def check_step(what, seen, right, rank, world=WORLD):
    """What `left_by_step` found."""
    check_gradients(what, seen["gradients"], right, rank, world)
    told = f"{what}: on rank {rank}, a frozen parameter has another gradient than before"
    hint = "A frozen parameter learns nothing, on any rank. How can a loop tell it from the others?"
    expect(seen["kept"], told, "as it was", "other numbers", rank, hint)


def check_waited(what, events, hint=""):
    """Every collective was waited for, and its tensor was not touched before."""
    for rank, mine in enumerate(events):
        for call in collectives([mine]):
            if call.written:
                raise Fault(
                    "wrong_value",
                    f"{what}: rank {rank} writes into the tensor of its {call.op}"
                    + (f" at {place(call.written_at)}," if call.written_at else f", started at {place(call.where)},")
                    + " before that is over",
                    rank,
                    call.written_at or call.where,
                    expected="the same numbers until the wait is over",
                    seen="different numbers",
                    hint=hint or NOT_OVER,
                )
            if call.over is None:
                raise Fault(
                    "wrong_value",
                    f"{what}: rank {rank} never waits for its {call.op}, at {place(call.where)}: its result is used"
                    " before it has arrived",
                    rank,
                    call.where,
                    expected=f"a wait for each {call.op}",
                    seen="no wait",
                    hint=hint or NO_WAIT,
                )


def check_budget(what, events, rank, most, nbytes, unit, world=WORLD):
    """No more collectives than `most`, and no more bytes sent than a ring needs for gradients of `nbytes` bytes."""
    calls = ops(events)
    expect(
        len(calls) <= most,
        f"{what}: rank {rank} makes {len(calls)} calls; the budget is one for each {unit}",
        f"at most {most}",
        len(calls),
        rank,
        TOO_MANY,
    )
    budget, sent = ring_bytes(nbytes, world), sent_by(events, rank)
    padding = 2 * 4 * world  # where all gradients are cut into equal pieces
    expect(
        sent <= budget + padding,
        f"{what}: rank {rank} sends {sent:,.0f} bytes through the ring, more than the trainable gradients need",
        f"at most {budget:,.0f}",
        f"{sent:,.0f}",
        rank,
        TOO_MANY,
    )


def check_no_wait_inside(what, events, rank):
    """No wait from the start of a backward pass to its end."""
    inside, call = False, None
    for event in events:
        inside = event["e"] == "backward" or (inside and event["e"] != "backward over")
        call = event if event["e"] == "op" else call
        if inside and event["e"] == "wait":
            raise Fault(
                "wrong_value",
                f"{what}: rank {rank} waits inside the backward pass, at {place(call and call['where'])}: nothing is"
                " computed meanwhile",
                rank,
                call and call["where"],
                expected="waits after the backward pass",
                seen="a wait in a hook",
                hint=HELD_UP,
            )


# ---------------------------------------------------------------------------------------------------
# TODO 5: buckets


def fewest(sizes, cap):
    """The smallest number of runs of neighbours: filling from one end is optimal."""
    count, room = 0, -1
    for size in reversed(sizes):
        if size > room:
            count, room = count + 1, cap
        room -= size
    return count


# ---------------------------------------------------------------------------------------------------
# TODOs 6 and 7: DDP with buckets


def upto(events, what):
    return events[: next(place for place, event in enumerate(events) if event["e"] == what)]


def check_scaled(what, seen, right, rank, count):
    """A common error with its own message: sums over `count` micro-batches."""
    scale = count * scale_of(right.values())
    if count > 1 and all(
        name in seen and near(seen[name], count * wanted, REL, scale) for name, wanted in right.items()
    ):
        raise Wrong(
            f"{what}: on rank {rank}, the gradients are {count} times the mean over all micro-batches: they add up",
            "the gradient of a mean",
            f"{count} times it",
            rank,
            hint="Gradients of the micro-batches add up; you want the gradient of their mean. By what must a loss be"
            " divided?",
        )
