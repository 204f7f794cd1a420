"""Checks of 05_pipeline_parallel, TODOs 5 and 6: executor.

| TODO | achievement                    | evidence                                                                    | needs    |
|------|--------------------------------|-----------------------------------------------------------------------------|----------|
| 5    | one action                     | order of the passes, losses, gradients, bytes kept; no messages             |          |
| 6    | any schedule executed          | the same on ranks, several in a row; messages, sends in flight, no autograd | 4, 5     |
"""  # noqa: E501

import itertools

from grader.kit import count_of, expect, hinted, todo

from .common import (
    CROSSED,
    MANY,
    REL,
    STUCK,
    check_rank,
    check_trials,
    fixed_trial,
    gpipe_schedule,
    name_of,
    nameless,
    random_schedule,
    read,
    serial,
    serial_of,
    sizes_drawn,
    spoken_action,
)
from .ranks.common import needed_for, times_of
from .ranks.executor import act_on_rank, goes_on_rank, refused_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 5: one action


def drawn_trial(draw, p, m, v, split=False, dtype="float32"):
    schedule = random_schedule(draw, p, m, v, split)
    return dict(name="a drawn schedule", schedule=schedule, v=v, m=m, **sizes_drawn(draw, dtype))


CROSSING = read("F0 F1 B0 B1", "F1 F0 B1 B0")


def in_turn(m):
    """On two ranks: many have finished when one more comes."""
    first = "F0 " + " ".join(f"F{j + 1} B{j}" for j in range(m - 1)) + f" B{m - 1}"
    return read(first, " ".join(f"F{j} B{j}" for j in range(m)))


def ahead(m):
    """On two ranks: both compute forward passes in advance, so that each message travels during a pass."""
    first = [f"F{j}" for j in range(5)] + [word for j in range(m - 5) for word in (f"B{j}", f"F{j + 5}")]
    first += [f"B{j}" for j in range(m - 5, m)]
    return read(" ".join(first), "F0 " + " ".join(f"F{j + 1} B{j}" for j in range(m - 1)) + f" B{m - 1}")


def forward_passes(p, m, v):
    return [[["F", j, chunk] for chunk in range(v) for j in range(m)] for _ in range(p)]


@todo(5, in_place=("arrived",))
def test_todo5_act(student):
    draw = student.draw("act")
    trials = [
        fixed_trial(draw, "GPipe", gpipe_schedule(3, 4), 4),
        fixed_trial(
            draw, "a schedule whose ranks take the micro-batches in different orders", CROSSING, 2, dtype="float64"
        ),
        fixed_trial(draw, "forward and backward in turn", in_turn(6), 6),
        drawn_trial(draw, 1, 2, 2),
        drawn_trial(draw, 2, 3, 2),
        drawn_trial(draw, 4, 5, 1),
    ]
    split = [drawn_trial(draw, 1, 3, 1, split=True), drawn_trial(draw, 3, 4, 2, split=True, dtype="float64")]
    off = [fixed_trial(draw, "forward passes alone", forward_passes(2, 5, 2), 5, v=2, grad=False)]
    rights = [serial_rights(student, some) for some in (trials, split, off)]
    check_workers(student, trials, rights[0])
    with hinted(
        "Between I and W of a micro-batch, others pass forward and back. What does W need, and when can it be freed?"
    ):
        check_workers(student, split, rights[1])
    with hinted("Without autograd no backward pass comes. Is anything of a forward pass still kept?"):
        check_workers(student, off, rights[2])


def serial_rights(student, trials):
    rights = [student.reference(serial, **one) for one in serial_of(trials, [*student.seeds(4)])]
    stages = [stage for right in rights for stage in right["gradients"]]
    student.premise(all(map(any_gradient, stages)), "gradients that are zero")
    return rights


def check_workers(student, trials, rights):
    seeds, given = [*student.seeds(4)], [nameless(trial) for trial in trials]
    (found,) = student.call(act_on_rank, world=1, group=False, seeds=seeds, trials=given).evidence
    for trial, ranks, right in zip(trials, found, rights, strict=True):
        check_by_hand(f"Worker.act, {name_of(trial)}", trial, ranks, right)


def any_gradient(stage):
    return any(g is not None and g.abs().max() > 0 for g in stage.values())


def check_by_hand(told, trial, ranks, right):
    schedule = trial["schedule"]
    for rank, seen in enumerate(ranks):
        if not seen["wrong"]:
            continue
        expect(False, f"{told}: {seen['wrong']}", "a tensor like the stream, without history", seen["wrong"], rank)
    for rank, seen in enumerate(ranks):
        check_rank(told, trial, seen["log"], seen, right, rank)
        wanted = [number for kind, number, _ in schedule[rank] if kind == "W"]
        expect(
            seen["weights"] == wanted,
            f"{told}: rank {rank} gives backward_weights the wrong micro-batches",
            wanted,
            seen["weights"],
            rank,
        )


# ---------------------------------------------------------------------------------------------------
# TODO 6: execute


@todo(6, needs=(4, 5))
def test_todo6_execute(student):
    draw = student.draw("execute")
    off = fixed_trial(draw, "forward passes alone", forward_passes(2, 5, 2), 5, v=2, grad=False)
    crossing = "a schedule whose ranks take the micro-batches in different orders"
    by_ranks = [
        [
            fixed_trial(draw, "GPipe", gpipe_schedule(3, 4), 4),
            drawn_trial(draw, 3, 4, 1),  # its lists are as long as GPipe's
            fixed_trial(draw, "GPipe", gpipe_schedule(3, 2), 2),
        ],
        [
            fixed_trial(draw, crossing, CROSSING, 2, dtype="float64"),
            fixed_trial(draw, "forward and backward in turn", in_turn(MANY), MANY),
            fixed_trial(draw, "a schedule in which no result is needed at once", ahead(12), 12),
            drawn_trial(draw, 2, 3, 2),
            drawn_trial(draw, 2, draw.randrange(4, 7), 1),
            off,
        ],
        [drawn_trial(draw, 1, 2, 2)],
        [drawn_trial(draw, 4, 5, 1)],
    ]
    last_one_counts(student, by_ranks[0])
    travelling = all(len(early_for(ahead(12), rank)) >= SOME for rank in (0, 1))
    student.premise(travelling, "a message that is waited for at once")
    with hinted("Which stage comes next for F, and which for B? A stage's rank is its number modulo the ranks."):
        check_goes_to(student)
    with hinted("in_ticks raises what simulate raises. Is it called before anything is computed?"):
        check_refused(student)
    for trials in student.several(by_ranks):
        for trial, events in zip(trials, check_trials(student, trials), strict=True):
            for rank, mine in enumerate(events):
                check_travel(f"execute, {name_of(trial)}", early_for(trial["schedule"], rank), mine, rank)


SOME = 4  # so many messages that could travel during a pass show a habit


def early_for(schedule, rank):
    """The passes of a rank that need a message which was sent before its last pass began: it can travel meanwhile."""
    times, _ = times_of(schedule, dict.fromkeys("FBIW", 1))
    world, last = len(schedule), max(c * len(schedule) + r for r, mine in enumerate(schedule) for _, _, c in mine)
    sent = {
        ("F" if kind == "F" else "I", number, chunk * world + source): (source, begin)
        for source, actions in enumerate(schedule)
        for (kind, number, chunk), (begin, _) in zip(actions, times[source], strict=True)
        if kind != "W"
    }
    found, passes = [], [begin for (kind, *_), (begin, _) in zip(schedule[rank], times[rank]) if kind != "W"]
    for (kind, number, chunk), (begin, _) in zip(schedule[rank], times[rank], strict=True):
        source, when = sent.get(needed_for(kind, number, chunk * world + rank, last), (rank, 0))
        if source != rank and any(when < other < begin for other in passes):
            found.append((kind, number, chunk))
    return found


def check_travel(told, early, events, rank):
    """Of the messages that are there before they are needed, half or more are not waited for until another pass has
    been computed.
    """
    posted, travelled, passes = {}, 0, 0
    for event in events:
        passes += event["e"] == "mark" and event.get("kind") in ("forward", "back")
        if event["e"] == "op" and event["op"] == "recv":
            posted[event["id"]] = passes
        elif event["e"] == "wait" and event.get("of") in posted:
            travelled += passes > posted.pop(event["of"])
    expect(
        len(early) < SOME or 2 * travelled >= len(early),
        f"{told}: {len(early)} messages to rank {rank} are sent before the pass that precedes their use, and"
        f" {travelled} travel while this rank computes it; for the others it waits at once, or receives them only when"
        " it needs them",
        f"{len(early)} that travel meanwhile",
        travelled,
        rank,
        "A receive that is posted costs nothing until you wait for it. Which pass is the first that needs its tensor?",
    )


def check_goes_to(student):
    questions = []
    for p, v in ((1, 1), (2, 1), (3, 2), (4, 3)):
        for kind, chunk, source, number in itertools.product("FBIW", range(v), range(p), (0, 2)):
            questions.append(([kind, number, chunk], source, p, p * v))
    (answers,) = student.call(goes_on_rank, world=1, group=False, questions=questions).evidence
    for (action, source, p, stages), answer in zip(questions, answers, strict=True):
        stage = action[2] * p + source + {"F": 1, "B": -1, "I": -1, "W": 0}[action[0]]
        wanted = None if action[0] == "W" or not 0 <= stage < stages else [stage, stage % p]
        expect(
            answer == wanted,
            f"{spoken_action(action)} of rank {source} of {p}, with {count_of(stages, 'stage')}: goes_to"
            " does not say which stage and rank need its result",
            str(wanted),
            str(answer),
        )


def check_refused(student):
    for rank, seen in enumerate(student.call(refused_on_rank, world=2, schedule=STUCK[CROSSED]).evidence):
        what = f"{seen['raised'] or 'nothing'}, {seen['called']} passes"
        expect(
            seen["raised"] == "ValueError" and not seen["called"],
            f"execute, a schedule that gets stuck: rank {rank} raises {seen['raised'] or 'nothing'}, after"
            f" {seen['called']} passes",
            "ValueError, before anything is computed",
            what,
            rank,
        )


def last_one_counts(student, trials):
    """A premise: a last micro-batch that is left out changes some gradient of each stage."""
    (one, *_) = serial_of(trials, [*student.seeds(len(trials[0]["schedule"]))])
    whole, less = (student.reference(serial, **one, leave_out=left) for left in (None, one["m"] - 1))
    for a, b in zip(whole["gradients"], less["gradients"], strict=True):
        seen = any((a[n] - b[n]).abs().max() > 10 * REL["float32"] * a[n].abs().max() for n in a if a[n] is not None)
        student.premise(seen, "a last micro-batch that is left out")
