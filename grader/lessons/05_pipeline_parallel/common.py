"""What several files with checks of 05_pipeline_parallel use."""

import itertools
import math

import torch

from grader.kit import check_delivery, check_tensor, count_of, expect, hinted, rehearse, scale_of

from .ranks.common import (
    Work,
    counted_in,
    execute_on_rank,
    gradients_of,
    inputs_of,
    needed_for,
    schedules_on_rank,
    share_of_loss,
    targets_of,
    times_of,
)

# Gradients are sums over micro-batches in a different order from the reference: in float32 they differ by 2e-7 of the
# largest number, in float64 by 1e-16. A micro-batch left out changes them by a tenth, at least; see the premises.
REL = {"float32": 1e-4, "float64": 1e-10}


BYTES = {"float32": 4, "float64": 8}


# ---------------------------------------------------------------------------------------------------
# Stages that tell what they do


def stage_seed(seeds, stage, world):
    return seeds[stage % world] + 10 + stage // world


def serial(seeds, v, m, rows, width, dtype, leave_out=None):
    """One process that has all stages: the micro-batches' losses, and each stage's gradients."""
    world, kind = len(seeds), getattr(torch, dtype)
    stages = [Work(s, stage_seed(seeds, s, world), width, kind, tell=lambda **_: None) for s in range(world * v)]
    ys = targets_of(seeds[-1], m, rows, width)
    loss_of, losses = share_of_loss(counted_in(ys)), []
    for number, (x, y) in enumerate(zip(inputs_of(seeds[0], m, rows, width, kind), ys)):
        for stage in stages:
            x = stage(x)
        loss = loss_of(x, y)
        losses.append(loss.item())
        if number != leave_out:
            loss.backward()
    return {"losses": losses, "gradients": [gradients_of(stage) for stage in stages]}


def check_gradients(told, right, seen, rank, stage, rel):
    scale = scale_of(right.values())
    for name, gradient in right.items():
        got = seen.get(name)
        what = f"{told}: the gradient of {name} of stage {stage}, on rank {rank},"
        if gradient is None:
            expect(got is None, f"{what} should not exist: the weight is frozen", "None", "a gradient", rank)
            continue
        there = isinstance(got, torch.Tensor)
        expect(there, f"{what} is missing: no backward pass reached it", "a gradient", "None", rank)
        check_tensor(what, got, gradient, rel, rank, scale=scale, than="one process's")


def check_messages(told, events, sizes, collectives_allowed=False, more=0):
    """`sizes` maps (source, target) to the bytes that must go from one to the other; `more` bytes may."""
    messages, _ = rehearse(events)
    if not collectives_allowed:
        calls = [
            (rank, event["op"])
            for rank, mine in enumerate(events)
            for event in mine
            if event["e"] == "op" and "id" not in event and len(event["group"]) > 1
        ]
        rank, call = calls[0] if calls else (None, "")
        expect(
            not calls,
            f"{told}: rank {rank} calls {call}, a collective of all ranks; stages send messages only to their"
            " neighbours",
            "messages alone",
            call,
            rank,
        )
    for pair in sorted({*sizes, *((message.source, message.target) for message in messages)}):
        sent = sum(message.bytes for message in messages if (message.source, message.target) == pair)
        wanted = sizes.get(pair, 0)
        expect(
            wanted <= sent <= wanted + more,
            f"{told}: rank {pair[0]} sends rank {pair[1]} {sent:,} bytes; activations and gradients that cross there"
            f" are {wanted:,}",
            f"{wanted:,} bytes",
            f"{sent:,} bytes",
            pair[0],
        )


def bytes_between(p, v, nbytes, back=True):
    """The bytes from rank to rank, if this many cross each boundary between two stages, forward and back."""
    sizes = {}
    for stage in range(p * v - 1):
        a, b = stage % p, (stage + 1) % p
        for pair in ((a, b), (b, a)) if back else ((a, b),):
            if a != b:
                sizes[pair] = sizes.get(pair, 0) + nbytes
    return sizes


def notes(events, kinds):
    """The passes that a rank's stages reported: [(kind, stage, micro-batch)]."""
    return [(e["kind"], e["stage"], e["microbatch"]) for e in events if e["e"] == "mark" and e.get("kind") in kinds]


def events_of_trials(events, trials):
    """The events of each rank in each trial, which begins with mark(kind="trial")."""
    found = [[] for _ in range(trials)]
    for mine in events:
        parts = [[]]
        for event in mine:
            if event["e"] == "mark" and event.get("kind") == "trial":
                parts.append([])
            elif event["e"] != "end":
                parts[-1].append(event)
        for number, part in enumerate(parts[1:]):
            found[number].append(part)
    return found


# ---------------------------------------------------------------------------------------------------
# Schedules


def spoken_action(action):
    return f"{action[0]}{action[1]}" + (f" of chunk {action[2]}" if action[2] else "")


def length_of(schedule, seconds, message=0):
    return max(mine[-1][1] for mine in times_of(schedule, seconds, message)[0] if mine)


def most_alive(actions, frees):
    """The largest number of passes alive at once: forward, and not yet freed."""
    alive = most = 0
    for kind, _, _ in actions:
        alive += (kind == "F") - (kind in frees)
        most = max(most, alive)
    return most


def check_actions(told, schedule, p, m, v, kinds):
    """Whether each rank does everything once, and no rank waits forever."""
    wanted = f"a list of actions for each of {count_of(p, 'rank')}"
    expect(isinstance(schedule, list), f"{told} is not a schedule: it returns {schedule}", wanted, schedule)
    expect(len(schedule) == p, f"{told} has {len(schedule)} lists of actions", wanted, len(schedule))
    for rank, actions in enumerate(schedule):
        expect(
            bool(actions),
            f"{told}: rank {rank} does nothing, its list of actions is empty",
            f"{len(kinds) * m * v} actions",
            "none",
            rank,
        )
        everything = [[kind, number, chunk] for chunk in range(v) for number in range(m) for kind in kinds]
        for action in everything:
            expect(
                action in actions,
                f"{told}: rank {rank} never does {spoken_action(action)}",
                spoken_action(action),
                f"{len(actions)} others",
                rank,
            )
        for action in actions:
            expect(
                action in everything,
                f"{told}: rank {rank} does {spoken_action(action)}, which does not exist here",
                f"{', '.join(kinds)} of {m} micro-batches",
                spoken_action(action),
                rank,
            )
            times = actions.count(action)
            expect(times == 1, f"{told}: rank {rank} does {spoken_action(action)} {times} times", "once", times, rank)
    _, stuck = times_of(schedule, dict.fromkeys("FBIW", 1))
    where, what = (stuck[0], spoken_action(stuck[1])) if stuck else ("", "")
    expect(
        stuck is None,
        f"{told} gets stuck: rank {where} waits forever for what {what} needs",
        "a schedule that finishes",
        f"rank {where} at {what}",
    )


def random_schedule(draw, p, m, v, split):
    """A random schedule that finishes: again and again, some rank does some action that is possible."""
    schedule, done = [[] for _ in range(p)], set()
    last = p * v - 1
    kinds = "FIW" if split else "FB"
    todo_left = {(kind, number, stage) for kind in kinds for number in range(m) for stage in range(p * v)}

    def possible(kind, number, stage):
        need = needed_for(kind, number, stage, last)
        return need is None or (need[0] if need[0] == "F" or split else "B", *need[1:]) in done

    while todo_left:
        kind, number, stage = chosen = draw.choice(sorted(act for act in todo_left if possible(*act)))
        todo_left.remove(chosen)
        done.add(chosen)
        schedule[stage % p].append([kind, number, stage // p])
    return schedule


def gpipe_schedule(p, m):
    return [[["F", j, 0] for j in range(m)] + [["B", j, 0] for j in range(m)] for _ in range(p)]


# ---------------------------------------------------------------------------------------------------
# TODO 4: GPipe, and times


def read(*ranks):
    """A schedule from one string per rank, as `Action` writes it: "F0 F0/1 B0/1 B0"."""
    return [[read_action(action) for action in actions.split()] for actions in ranks]


def read_action(written):
    number, _, chunk = written[1:].partition("/")
    return [written[0], int(number), int(chunk or 0)]


CROSSED = "rank 0 wants B0 before F1, rank 1 F1 before B0"


STUCK = {  # schedules that do not come to their end, by the reason
    CROSSED: read("F0 B0 F1 B1", "F0 F1 B0 B1"),
    "the last rank goes backward before it goes forward": read("F0 B0", "B0 F0"),
    "rank 1 leaves out micro-batch 1": read("F0 F1 B0 B1", "F0 B0"),
    "W comes before I": read("F0 W0 I0"),
    "rank 1 wants F2, which rank 0 never does": read("F0 F1 B0", "F0 B0 F2 B2"),
    "rank 0 wants chunk 1 before chunk 0": read("F0/1 F0 B0/1 B0", "F0 F0/1 B0/1 B0"),
}


# ---------------------------------------------------------------------------------------------------
# TODO 5: one action


def sizes_drawn(draw, dtype="float32"):
    return dict(rows=draw.randrange(2, 5), width=draw.randrange(3, 6), dtype=dtype)


def name_of(trial):
    """The schedule that is executed, in words."""
    schedule, v, m = trial["schedule"], trial["v"], trial["m"]
    p = len(schedule)
    chunks = f" with {v} chunks each" if v > 1 else ""
    off = "" if trial.get("grad", True) else ", without autograd"
    return f"{trial['name']} on {count_of(p, 'rank')}{chunks}, {m} micro-batches, {trial['dtype']}{off}"


def nameless(trial):
    return {key: value for key, value in trial.items() if key != "name"}


def serial_of(trials, seeds):
    """For `serial`: the same weights and batches."""
    asked = []
    for number, trial in enumerate(trials):
        given = {key: value for key, value in trial.items() if key not in ("name", "schedule", "grad")}
        asked.append(given | {"seeds": [seed + 1000 * number for seed in seeds[: len(trial["schedule"])]]})
    return asked


def fixed_trial(draw, name, schedule, m, v=1, dtype="float32", **more):
    return dict(name=name, schedule=schedule, v=v, m=m, **sizes_drawn(draw, dtype), **more)


def check_rank(told, trial, events, seen, right, rank):
    """A rank's results of a schedule: its passes, losses, gradients; the memory it kept, and any change to the
    batch."""
    p, v = len(trial["schedule"]), trial["v"]
    check_order(told, events, trial, rank)
    check_losses(told, seen, right["losses"] if rank == p - 1 else [], rank, REL[trial["dtype"]])
    if trial.get("grad", True):
        for chunk in range(v):
            stage = chunk * p + rank
            rel = REL[trial["dtype"]]
            check_gradients(told, right["gradients"][stage], seen["gradients"][chunk], rank, stage, rel)
        check_kept(told, trial, seen, rank)
    else:
        check_nothing_kept(told, trial, seen, rank)
    harm = seen["harm"]
    expect(not harm, f"{told}: on rank {rank} {harm}", "the batch as it was", harm, rank)


def check_losses(told, seen, wanted, rank, rel):
    got = seen["losses"]
    expect(
        isinstance(got, list),
        f"{told}: the losses of rank {rank} are {got}",
        "tensors of one number each",
        got,
        rank,
        hint="detach() cuts the history off and leaves a tensor; item() makes a number, for which a GPU must be idle.",
    )
    expect(
        len(got) == len(wanted),
        f"{told}: rank {rank} has {len(got)} losses;"
        f" {'the last stage is on it' if wanted else 'the last stage is elsewhere'}",
        len(wanted),
        len(got),
        rank,
    )
    for number, (a, b) in enumerate(zip(got, wanted)):
        same = math.isclose(a, b, rel_tol=rel, abs_tol=1e-6)
        expect(same, f"{told}: the loss of micro-batch {number} is wrong", b, a, rank)
    expect(
        not seen["history"],
        f"{told}: the losses of rank {rank} keep their history",
        "tensors that need no gradient",
        "some that do",
        rank,
    )


def check_kept(told, trial, seen, rank):
    stream = trial["rows"] * trial["width"] * BYTES[trial["dtype"]]
    unit = 3 * stream  # kept of a pass, as far as it is watched
    come = trial["rows"] * (1 + trial["width"]) * BYTES[trial["dtype"]] if rank or trial["v"] > 1 else 0
    actions = trial["schedule"][rank]
    most = most_alive(actions, "W" if any(kind == "W" for kind, *_ in actions) else "B")
    # A name may hold the last `Passed` until the next one takes it, when autograd has let go of its part already.
    expect(
        seen["most"] <= most * (unit + come) + stream + come,
        f"{told}: rank {rank} keeps {seen['most']:,} bytes of activations at once, of"
        f" {seen['most'] / (unit + come):.3g} passes; in the schedule at most {most} are alive: what stays after a"
        " backward pass?",
        f"{most * (unit + come):,} bytes",
        f"{seen['most']:,} bytes",
        rank,
    )
    expect(
        seen["most"] >= unit,
        f"{told}: rank {rank} keeps {seen['most']:,} bytes of activations at most, less than one pass makes",
        f"{unit:,} bytes",
        f"{seen['most']:,} bytes",
        rank,
    )
    expect(
        seen["left"] == 0,
        f"{told}: after the last action rank {rank} still keeps {seen['left']:,} bytes of activations",
        "0 bytes",
        f"{seen['left']:,} bytes",
        rank,
    )


def check_nothing_kept(told, trial, seen, rank):
    one = 2 * trial["rows"] * trial["width"] * BYTES[trial["dtype"]]  # what the two layers of a stage give
    # A pass may be let go of only when the next one is made: twice its layers, and not five or ten times.
    expect(
        seen["most"] <= 2 * one and seen["left"] == 0,
        f"{told}: rank {rank} keeps the activations of {max(seen['most'], seen['left']) / one:g} passes, though no"
        " backward pass will come",
        f"of at most 2 passes at once, {2 * one:,} bytes; in the end nothing",
        f"{seen['most']:,} bytes at once, {seen['left']:,} in the end",
        rank,
    )


def check_order(told, events, trial, rank):
    """The stages reported the schedule's passes, in its order."""
    rows, p = [trial["rows"], 1 + trial["width"]], len(trial["schedule"])
    shapes = [e["rows"] for e in events if e["e"] == "mark" and e.get("kind") == "forward"]
    expect(
        all(shape == rows for shape in shapes),
        f"{told}: rank {rank} computes a forward pass of something other than one micro-batch",
        f"shape {rows}",
        next((s for s in shapes if s != rows), ""),
        rank,
    )
    wanted = [
        ("forward" if kind == "F" else "back", chunk * p + rank, number)
        for kind, number, chunk in trial["schedule"][rank]
        if kind != "W"
    ]
    seen = notes(events, ("forward", "back"))
    for number, (a, b) in enumerate(itertools.zip_longest(seen, wanted)):
        expect(
            a == b,
            f"{told}: pass {number + 1} of rank {rank} is not the one that the schedule asks for",
            spoken_pass(b),
            spoken_pass(a),
            rank,
        )


def spoken_pass(done):
    if done is None:
        return "nothing"
    kind, stage, number = done
    return (
        f"{'the forward pass' if kind == 'forward' else 'the backward pass'} of"
        f" {f'micro-batch {number}' if number >= 0 else 'rubbish'} on stage {stage}"
    )


# ---------------------------------------------------------------------------------------------------
# TODO 6: execute


OWN_MEMORY = (
    "The worker keeps what arrives until the backward pass. Is each message received in memory of its own, or is one"
    " written over another?"
)


def check_trials(student, trials):
    """Execute schedules for one number of ranks, one after the other. Their results are compared with one process's,
    their passes with the schedule.
    """
    p = len(trials[0]["schedule"])
    seeds = student.seeds(p)
    with hinted(OWN_MEMORY, "crash"):
        run = student.call(execute_on_rank, world=p, seed=seeds, trials=[nameless(trial) for trial in trials])
    rights = [student.reference(serial, **one) for one in serial_of(trials, [*seeds])]
    found = []
    for number, (trial, right) in enumerate(zip(trials, rights, strict=True)):
        events = events_of_trials(run.events, len(trials))[number]
        check_trial(f"execute, {name_of(trial)}", trial, events, [left[number] for left in run.evidence], right)
        found.append(events)
    return found


def check_trial(told, trial, events, ranks, right):
    schedule, p, v = trial["schedule"], len(trial["schedule"]), trial["v"]
    for rank, mine in enumerate(events):
        if len(notes(mine, ("forward", "back"))) < sum(kind != "W" for kind, *_ in schedule[rank]):
            check_order(told, mine, trial, rank)  # an action left out may leave messages in flight
    check_delivery(told, events)
    one = trial["rows"] * (1 + trial["width"]) * BYTES[trial["dtype"]]
    for rank, seen in enumerate(ranks):
        check_rank(told, trial, events[rank], seen, right, rank)
        check_in_flight(told, trial, seen, rank, one)
    check_messages(told, events, bytes_between(p, v, trial["m"] * one, back=trial.get("grad", True)))


def check_in_flight(told, trial, seen, rank, one):
    """A tensor that is passed on is kept while it is alive, and while its message is in flight. Half of the
    micro-batches are more than any bound that does not grow with them, if they are many.
    """
    alive, m = most_alive(trial["schedule"][rank], "BW"), trial["m"]
    if m >= MANY:
        expect(
            seen["out"] <= (alive + m // 2) * one,
            f"{told}: rank {rank} still has {seen['out'] // one} of the tensors that it has sent, and {alive} passes"
            " are alive: with more micro-batches there would be more, for they are freed only at the end",
            "a number that does not grow with the micro-batches",
            f"{seen['out'] // one} of {m}",
            rank,
            hint="A tensor that is sent stays in memory until you wait for its work. When is a send surely complete?",
        )


MANY = 24


# ---------------------------------------------------------------------------------------------------
# TODOs 7 and 8: 1F1B and interleaved


def schedules_of(student, name, sizes):
    """The schedules that the student's function returns for these sizes."""
    (seen,) = student.call(schedules_on_rank, world=1, group=False, name=name, sizes=sizes).evidence
    return seen["schedules"]


def check_alive(told, schedule, frees, limits):
    for rank, (actions, limit) in enumerate(zip(schedule, limits, strict=True)):
        most = most_alive(actions, frees)
        first = next((n for n, (kind, _, _) in enumerate(actions) if kind != "F"), len(actions))
        all_first = first == sum(kind == "F" for kind, _, _ in actions) and first > limit
        why = ": all forward passes come first" if all_first else ""
        message = f"{told}: on rank {rank} {most} passes are alive at once{why}"
        expect(most <= limit, message, f"at most {limit}", most, rank)
