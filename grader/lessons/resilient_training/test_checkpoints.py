"""Checks of resilient_training, TODOs 1, 2, 3, 4 and 9: checkpoints.

| TODO | achievement                      | evidence                                                                    | needs |
|------|----------------------------------|-----------------------------------------------------------------------------|-------|
| 1    | a checkpoint, whole or not there | save_whole() on 2 ranks: the folder's contents before each file operation and halfway through each file; leftovers of a kill do no harm |       |
| 2    | the newest one                   | find_newest() among whole, torn and unfinished ones                         |       |
| 3    | the place in the epoch           | find_epoch()                                                                |       |
| 4    | what must be saved               | contents(), restore(): saved on 2 ranks, restored on 3, 2 and 1             |       |
| 9    | saved in the background          | begin_save() on 2 ranks that continue training; one writes late             |       |

A kill leaves the file system as it is at that moment. So nothing is killed here: a hook records the folder's contents
before each file operation. Those are all the states that a kill can leave, except half-written files; the check makes
these itself.
"""  # noqa: E501

import re

import torch

from grader.kit import Fault, Wrong, count_of, expect, hinted, todo, together

from .ranks import (
    FAILURES,
    FOLDERS,
    ONTO,
    PLACE,
    begin_again_on_rank,
    begin_on_rank,
    contents_on_rank,
    drawn_part,
    find_on_rank,
    newest_on_rank,
    restore_on_rank,
    whole_on_rank,
)

# ---------------------------------------------------------------------------------------------------
# TODO 1: whole or not there


@todo(1)
def test_todo1_whole(student):
    world = 2
    parts = [drawn_part(seed) for seed in student.seeds(world)]
    student.premise(not torch.equal(*parts), "the part of one rank in place of another's")
    ranks = student.call(whole_on_rank, world=world, seed=student.seeds(world), common=True).evidence
    check_content("save_whole(state, out, 7)", ranks[0]["whole"], parts)
    for rank, seen in enumerate(ranks):
        expect(
            seen["states"] > 0,
            f"rank {rank} writes nothing: each rank has a part",
            "a file of each rank",
            f"none of rank {rank}",
            rank,
            "Which ranks make the call that saves? What this rank has, no other one can write.",
        )
        expect(
            not seen["torn"],
            f"a kill would leave no complete checkpoint: {seen['torn']}",
            "all earlier checkpoints, and step-7 once it is complete",
            seen["torn"],
            rank,
        )
    check_there("save_whole()", ranks)
    with hinted("A killed save leaves files behind. Under which names, and what does the next save do with them?"):
        check_content("save_whole(), called again after it was killed,", ranks[0]["killed"], parts)
        check_content("save_whole(), next to an incomplete folder step-7,", ranks[0]["copied"], parts)
    for rank, seen in enumerate(ranks):
        hint = "What does dcp.save do if it fails, and which line must not be reached then?"
        check_failures("save_whole()", "dcp.save", seen, rank, hint)


def check_there(told, ranks):
    for rank, seen in enumerate(ranks):
        expect(
            seen["there"],
            f"{told} returns on rank {rank} before step-7 has its name: this rank continues as if it were saved",
            "step-7, when any rank returns",
            "no step-7 yet",
            rank,
            hint="One rank renames. What do the others do meanwhile?",
        )


def check_content(told, seen, parts):
    expect("why" not in seen, f"{told} leaves no checkpoint step-7 that can be read", "step-7", seen.get("why"))
    expect(seen["step"] == 7, f"{told} leaves another checkpoint's content in step-7", 7, seen["step"])
    for rank, part in enumerate(parts):
        expect(
            torch.equal(seen["parts"][rank], part),
            f"{told}: in step-7, rank {rank}'s part is not what it gave",
            part,
            seen["parts"][rank],
            rank,
        )


# ---------------------------------------------------------------------------------------------------
# TODO 2: the newest


@todo(2)
def test_todo2_newest(student):
    (seen,) = student.call(newest_on_rank, world=1, group=False).evidence
    for (folders, right), found in zip(FOLDERS, seen, strict=True):
        told = ", ".join(f"{name}{'' if is_whole else ' (no .metadata)'}" for name, is_whole in (folders or {}).items())
        where = "a folder that is not there" if folders is None else f"a folder with {told or 'an empty folder'}"
        hint = "" if found is None or re.fullmatch(r"step-\d+", found) else DIGITS
        expect(found == right, f"find_newest() of {where} is wrong", right or "None", found or "None", hint=hint)


DIGITS = (
    "This name is not step- and a number. Which names does your test let through, apart from those with digits alone?"
)


# ---------------------------------------------------------------------------------------------------
# TODO 3: the place in the epoch


EPOCH = {
    **{(0, 4): (0, 0), (1, 4): (0, 1), (4, 4): (0, 4), (5, 4): (1, 1), (7, 4): (1, 3), (8, 4): (1, 4)},
    **{(0, 1): (0, 0), (1, 1): (0, 1), (3, 1): (2, 1)},
}


def drawn_places(draw):
    """(steps, steps of an epoch) -> the place: before, at and behind the end of a later epoch, of any length."""
    found = dict(EPOCH)
    for _ in range(3):
        an_epoch, epoch = draw.randrange(5, 13), draw.randrange(1, 5)
        end = (epoch + 1) * an_epoch
        found |= {(end - 1, an_epoch): (epoch, an_epoch - 1), (end, an_epoch): (epoch, an_epoch)}
        found[end + 1, an_epoch] = (epoch + 1, 1)
    return found


@todo(3)
def test_todo3_place(student):
    places = drawn_places(student.draw("places"))
    ((*seen,),) = student.call(find_on_rank, world=1, group=False, places=[*places]).evidence
    for case, got in zip(places, seen, strict=True):
        expect(
            tuple(got) == places[case],
            f"find_epoch({case[0]}, {case[1]}), after {case[0]} step{'s' * (case[0] != 1)} where an epoch has"
            f" {case[1]}, is wrong",
            places[case],
            tuple(got),
        )


# ---------------------------------------------------------------------------------------------------
# TODO 4: the content of a checkpoint


SAID = {"step": "the steps done", "loss": "the mean loss of the epoch so far", "best": "the lowest validation loss"}


@todo(4, in_place=("position",))
def test_todo4_contents(student):
    states = [torch.Generator().manual_seed(seed).get_state() for seed in student.seeds(2)]
    student.premise(not torch.equal(*states), "the random state of one rank in place of another's")
    saved = student.call(contents_on_rank, world=2, seed=student.seeds(2), common=True).evidence
    right, drawn = together(saved, "saved"), [seen["drawn"] for seen in saved]
    left = student.call(restore_on_rank, world=max(ONTO), group=False, files=saved[0]["files"]).evidence
    for ranks in sorted(ONTO, key=lambda ranks: abs(ranks - 2)):  # as many as saved come first
        told = f"saved on 2 ranks and restored on {ranks},"
        seen = [left[rank][str(ranks)] for rank in range(ranks)]
        for rank, mine in enumerate(seen):
            refused = mine.get("refused", "")
            hint = "Two ranks have saved. Which names are in the checkpoint then, and which ones do you ask for?"
            wanted = "restore() loads what was saved"
            expect(not refused, f"{told} restore() stops: {refused}", wanted, refused, rank, hint)
        for name, value in together(seen, "state").items():
            same = value.shape == right[name].shape and torch.equal(value, right[name])
            expect(same, f"{told} the {name.rstrip(' 0123456789')} are not what was saved", right[name], value)
        for rank, mine in enumerate(seen):
            expect(mine["lr"] == 0.25, f"{told} the optimizer's lr is not what was saved", 0.25, mine["lr"], rank)
            position = mine["position"] if isinstance(mine["position"], dict) else {}
            for name, value in PLACE.items():
                expect(
                    position.get(name) == value,
                    f"{told} {SAID.get(name, f'the position’s “{name}”')} is not what was saved",
                    value,
                    position.get(name, "nothing"),
                    rank,
                )
            check_draws(told, rank, mine, drawn)


def check_draws(told, rank, mine, drawn):
    if rank >= 2:
        expect(
            torch.equal(mine["drawn"], mine["own"]) or not any(torch.equal(mine["drawn"], other) for other in drawn),
            f"{told} rank {rank}, which did not save, draws the same random numbers as another rank",
            "its own numbers",
            mine["drawn"],
            rank,
            "The checkpoint has no random state of this rank. With which one should it continue?",
        )
        return
    others = [k for k in range(2) if k != rank and torch.equal(mine["drawn"], drawn[k])]
    what = f": it draws rank {others[0]}'s" if others else ""
    fresh = torch.equal(mine["drawn"], mine["own"])
    expect(
        torch.equal(mine["drawn"], drawn[rank]),
        f"{told} rank {rank} does not draw the random numbers that it would have drawn"
        + (": its random state is what it was before restore()" if fresh else what),
        drawn[rank],
        mine["drawn"],
        rank,
        "Loaded numbers are in a tensor. Which call makes them the generator's state, and is it made?"
        if fresh
        else "Each rank has a random state of its own. Under which name does it find it again?",
    )


# ---------------------------------------------------------------------------------------------------
# TODO 9: in the background


def mixed_up(events):
    """The collectives of one rank that a thread makes in the group of the training step, from begin_save() on."""
    place = {event["name"]: number for number, event in enumerate(events) if event["e"] == "mark"}
    step = events[place["step"] : place["end"]]
    of_training = {event["name"] for event in step if event.get("dtype") == "float32"}
    in_thread = [event for event in events[place["begin"] : place["end"]] if aside(event)]
    return [event["op"] for event in in_thread if event["name"] in of_training]


def aside(event):
    """Whether a thread made this collective, not the rank itself."""
    return event["e"] == "op" and bool(event.get("aside"))


def saves_in(events, ended):
    """What a rank did in each save, from the start of its first thread on. The last one of a run that has `ended` is
    left out: there the ranks lose their connection.
    """
    starts = [k for k, event in enumerate(events) if event["e"] == "mark" and event["name"] in ("begin", "fails")]
    saves = [events[start:stop] for start, stop in zip(starts, [*starts[1:], None])]
    for save in saves[:-1] if ended else saves:
        threads = [k for k, event in enumerate(save) if event["e"] == "mark" and event["name"] == "thread"]
        yield save[threads[0] :] if threads else []


def crossed(every, ended):
    """(rank, collective) of the first main thread that uses the saving's own group before a save's thread has made its
    last call; None if there is none. A run that has not `ended` stopped before.
    """
    made = [event for events in every for event in events if event["e"] == "op"]
    training = {event["name"] for event in made if event.get("dtype") == "float32" and not aside(event)}
    saving = {event["name"] for event in made if aside(event)} - training
    for rank, events in enumerate(every):
        saves = list(saves_in(events, ended))
        for save in saves:
            stopped = not ended and save is saves[-1]
            last = len(save) if stopped else max((k for k, event in enumerate(save) if aside(event)), default=0)
            mine = [e for e in save[:last] if e["e"] == "op" and not aside(e) and e["name"] in saving]
            if mine:
                return rank, mine[0]["op"]
    return None


def check_failures(call, raises, seen, rank, *hints):
    """`hints`: where the rank is told nothing, and where the folder has its name."""
    for step, (fails, failed) in FAILURES.items():
        told = f"{fails}, and {call} on rank {rank} says nothing about it"
        expect(seen["errors"][step], told, f"the error that {raises} raises", "no error", rank, hints[0])
        told = f"{failed}, and there is a folder step-{step}"
        expect(not seen["named"][step], told, f"no step-{step}", f"step-{step}", rank, hints[-1])


@todo(9)
def test_todo9_background(student):
    world = 2
    run = begun(student, world)
    ranks = run.evidence
    for rank, seen in enumerate(ranks):
        mixed = mixed_up(run.events[rank])
        expect(
            not mixed,
            f"while rank {rank} trains, a thread that saves makes {mixed[0] if mixed else 'none'} through the"
            " training's group: a message for saving can be mistaken for one of the training",
            "the group that begin_save() is given",
            "the training's",
            rank,
            hint="Which call starts the thread that writes, and do you tell it which group to use?",
        )
        waited = f"begin_save() on rank {rank} returns when all is written: {(seen['waited'] or [''])[0]}"
        hint = "Which call returns at once, and which one waits until all is written? Only finish() may wait."
        expect(not seen["waited"], waited, "it returns at once, and a thread writes", "it waits", rank, hint)
        expect(
            torch.equal(seen["total"], torch.full((3,), float(world))),
            f"the training's own all-reduce on rank {rank}, made while the checkpoint is written, comes out wrong:"
            " both use the same group",
            float(world),
            seen["total"],
            rank,
            "Training and saving send at the same time. Which group is for which of them?",
        )
        expect(
            not seen["early"],
            f"on rank {rank} there is a folder step-7 before the checkpoint is written",
            "no step-7 before finish()",
            "step-7",
            rank,
        )
    with hinted(
        "Training changes the state as soon as begin_save() returns. Which state is written, and from which copy?"
    ):
        check_content("begin_save() and then its finish()", ranks[0]["whole"], [seen["mine"] for seen in ranks])
    check_there("finish()", ranks)
    for rank, seen in enumerate(ranks):
        silent = "A thread that fails stops no rank. Which of its calls says so, and is it made on each rank?"
        named = "The name step-… promises a whole checkpoint. What must be known before it is given?"
        check_failures("finish()", "result()", seen, rank, silent, named)
    for world in student.several((1, 2)):
        told = f"begin_save() and finish() on {count_of(world, 'rank')}, where a killed run has left a torn step-7,"
        with hinted("Which line of TODO 1 clears away what a killed run left under the folder's name? And here?"):
            ranks = student.call(begin_again_on_rank, world=world, seed=student.seeds(world), common=True).evidence
            check_content(told, ranks[0]["whole"], [seen["mine"] for seen in ranks])


ALL_ASK = (
    "Each rank's thread writes a part, and only result() says that it has ended. Which ranks ask for it before the call"
    " that all make together, and what do the others do meanwhile?"
)


def begun(student, world):
    """The run of begin_on_rank, in which no main thread uses the saving's group while a thread does: the two would read
    each other's messages, by chance.
    """
    try:
        with hinted(ALL_ASK, "hang", "mismatch"):
            run = student.call(begin_on_rank, world=world, seed=student.seeds(world), common=True)
        every = run.events
    except Fault as fault:
        run, every, met = None, fault.events, fault
    if found := crossed(every, run is not None):
        rank, op = found
        raise Wrong(
            f"while a thread saves in the group of begin_save(), rank {rank} itself makes {op} in it: the two can take"
            " each other's messages",
            "nothing else in this group until result() has returned",
            op,
            rank,
            "While the thread writes, this group is its own. Which of your calls uses it, and could it come later?",
        )
    for rank, events in enumerate(every):
        fresh = [event["op"] for event in events if event.get("op") == "new_group"][1:]
        expect(
            not fresh,
            "begin_save() makes a group of its own at each save; these add up",
            "the group that begin_save() is given",
            "a new group",
            rank,
            "A group is made once in a run. Which one are you given for this?",
        )
    if run is None:
        met.hint = met.hint or (ALONE if met.scenario else "")
        raise met
    return run


# Where a rank stops, or waits forever, when a save fails.
ALONE = "Where one rank's writing fails, which ranks hear of it, and by which call? Each rank must make that call."
