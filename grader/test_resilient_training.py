"""Checks and hints of resilient_training.

| TODO | achievement                      | evidence                                                                    | needs |
|------|----------------------------------|-----------------------------------------------------------------------------|-------|
| 1    | a checkpoint, whole or not there | save_whole() on 2 ranks: the folder's contents before each file operation and halfway through each file; leftovers of a kill do no harm |       |
| 2    | the newest one                   | find_newest() among whole, torn and unfinished ones                         |       |
| 3    | the place in the epoch           | find_epoch()                                                                |       |
| 4    | what must be saved               | contents(), restore(): saved on 2 ranks, restored on 3, 2 and 1             |       |
| 5    | the automatic start              | choose_start() on 3 ranks that do not see the same folders                  |       |
| 6    | signals are noted                | listen(): both signals, twice                                               |       |
| 7    | all stop together                | agree_to_stop() on 3 ranks, each asked alone in turn                        |       |
| 8    | the global batch stays           | share_batch(); main() on 4, 3 and 1 ranks, stopped by a signal in mid-epoch and at the end of an epoch | 1 – 7 |
| 9    | saved in the background          | begin_save() on 2 ranks that continue training; one writes late             |       |
| 10   | told before the limit            | the batch file, run to the limit: which signals reach the training and torchrun, and when |       |
| 11   | the job is resubmitted           | the batch file, done, failed, and at the limit: whether another job follows | 10    |

A kill leaves the file system as it is at that moment. So nothing is killed here: a hook records the folder's contents
before each file operation. Those are all the states that a kill can leave, except half-written files; the check makes
these itself.
"""  # noqa: E501

import math
import os
import re
import signal
import sys
import threading
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

from grader.kit import (
    REL,
    Fault,
    Reporter,
    Wrong,
    check_launches,
    corpus,
    count_of,
    ends,
    expect,
    header,
    hinted,
    losses,
    mains_on_rank,
    mark,
    next_world,
    reported,
    same_report,
    todo,
    together,
    training,
    cases,
    ring_bytes,
    check_parts_travel,
)

BUILDS = "a run longer than its job: checkpoints that survive any kill, signals, restarts, fewer ranks, requeues"

# ---------------------------------------------------------------------------------------------------
# TODO 1: whole or not there

CHANGES = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate")


def tree(folder):
    """Path of each file in the folder -> its content. Another rank may be writing to it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        try:
            found[path.relative_to(folder).as_posix()] = path.read_bytes() if path.is_file() else None
        except FileNotFoundError:
            continue
    return found


class Watch:
    """The contents of `folder` before each change that this process makes to its files, and each file cut short."""

    def __init__(self, folder):
        self.folder, self.on, self.states = folder, False, []
        self.busy = threading.local()
        sys.addaudithook(self.before)

    def before(self, event, args):
        if not self.on or event not in CHANGES or getattr(self.busy, "now", False):
            return
        if not isinstance(args[0], (str, bytes, os.PathLike)):
            return
        path = Path(os.path.abspath(os.fsdecode(args[0])))
        if event == "open" and not (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        if not path.is_relative_to(self.folder.resolve()):
            return
        self.busy.now = True
        name = path.relative_to(self.folder.resolve()).as_posix()
        what = f"{event.removeprefix('os.')} of {name}"
        state = tree(self.folder)
        self.states.append((f"before the {what}", state))
        if event == "open":
            self.states.append((f"while {name} is written", state | {name: b"cut"}))
        self.busy.now = False


def move_late(folder, returned):
    """The move that gives `folder` its name waits for another rank to return, but at most 0.3 s: a rank that waits for
    the move does not return.
    """

    def before(event, args):
        if event == "os.rename" and Path(os.fsdecode(args[1])).name == folder.name:
            deadline = time.monotonic() + 0.3
            while time.monotonic() < deadline and not returned.exists():
                time.sleep(0.01)

    sys.addaudithook(before)


def drawn_part(seed):
    return torch.rand(50, generator=torch.Generator().manual_seed(seed))


def whole_on_rank(code, rank, world, seed):
    import torch.distributed.checkpoint as dcp

    mine = {f"part-{rank}": drawn_part(seed), "position": {"step": 7}}
    out, seen = Path("out"), {}
    for step in range(4):
        dcp.save({**mine, "position": {"step": step}}, checkpoint_id=out / f"step-{step}")
    before = tree(out)
    watch, returned = Watch(out), Path("returned")
    move_late(out / "step-7", returned)
    dist.barrier()
    watch.on = True
    code.save_whole(mine, out, 7)
    watch.on = False
    seen["there"] = (out / "step-7" / ".metadata").is_file()
    returned.touch()
    dist.barrier()
    after = tree(out)
    seen["torn"] = first_torn(before, watch.states, after)
    seen["states"] = len(watch.states)
    seen["whole"] = content(out / "step-7", world)
    # What a kill leaves: the last state in which the new one had not its name, but something was there.
    left = [state for _, state in watch.states if len(state) > len(before) and not files_of(state, "step-7")]
    for place, files in (("killed", left[-1] if left else {}), ("copied", {"step-7/__0_0.distcp": b"torn"})):
        if rank == 0:
            put(Path(place), before | files)
        dist.barrier()
        code.save_whole(mine, Path(place), 7)
        dist.barrier()
        seen[place] = content(Path(place) / "step-7", world)
    seen["mine"] = mine[f"part-{rank}"]
    return seen | where_it_fails(rank, lambda step: code.save_whole(mine, out, step), out)


def files_of(state, folder):
    """The files of one folder in a state, by name."""
    return {name.removeprefix(f"{folder}/"): held for name, held in state.items() if name.startswith(f"{folder}/")}


def first_torn(before, states, after):
    """The moment at which a kill would leave an incomplete folder step-…, or no good one; "" if there is none."""
    earlier = {name.partition("/")[0] for name in before}
    right = {folder: files_of(before, folder) for folder in earlier} | {"step-7": files_of(after, "step-7")}
    for when, state in [*states, ("at the end", after)]:
        there = {name.partition("/")[0] for name in state if re.match(r"step-\d+(/|$)", name)}
        for folder in sorted(there):
            if files_of(state, folder) != right.get(folder):
                return f"{when}, {folder} exists but is incomplete"
        if not there:
            return f"{when}, there is no checkpoint at all"
        if gone := sorted(earlier - there):
            return f"{when}, the earlier checkpoint {gone[0]} no longer exists"
    return ""


def put(folder, files):
    for name, held in files.items():
        path = folder / name
        if held is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(held)


def content(folder, world):
    """The contents of a checkpoint, read by one process: the ranks' parts, and the step; or why it cannot be read."""
    import torch.distributed.checkpoint as dcp

    state = {f"part-{rank}": torch.zeros(50) for rank in range(world)} | {"position": {"step": 0}}
    try:
        dcp.load(state, checkpoint_id=folder, no_dist=True)
    except (Exception, dcp.api.CheckpointException) as error:
        return {"why": f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"}
    return {"parts": [state[f"part-{rank}"] for rank in range(world)], "step": state["position"]["step"]}


@todo(
    1,
    minutes=20,
    why=(
        "A run may be killed at any moment, and quite likely during a save, since many saves take minutes. If a"
        " script writes straight into the folder that the next job reads, it will sometimes leave no usable"
        " checkpoint: the new one is incomplete, but looks complete."
    ),
    hints=(
        "Write to a place where no run looks, and rename it when it is complete. Which rank renames, and what must"
        " have happened before?",
        (
            "dcp.save(state, checkpoint_id=...) makes its folder under any name, and overwrites what it finds there."
            " Path.rename(new) is atomic; one rank must call it. dist.get_rank() says which rank this is."
        ),
        (
            'part = out / f"unfinished-{step}"; dcp.save into it; then on rank 0 remove an incomplete folder with'
            " the final name, and rename; a barrier makes the other ranks wait for that."
        ),
    ),
)
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

# Names with and without .metadata in them -> the newest.
FOLDERS = (
    ({"step-90": 1, "step-100": 1}, "step-100"),
    ({"step-9": 1, "step-10": 1, "step-8": 1}, "step-10"),
    ({"step-999": 1, "step-1000": 1, "step-123456": 1}, "step-123456"),
    ({"step-40": 1, "step-50": 0}, "step-40"),
    ({"step-40": 1, "unfinished-60": 1, "step-50.part": 1, "step-last": 1}, "step-40"),
    ({"step-40": 1, "step-step-90": 1, "step-1_000": 1, "step-+70": 1, "step-100-old": 1}, "step-40"),
    ({"step-300": 0}, None),
    ({"step-40": 1, "another-run/step-900": 1}, "step-40"),
    ({}, None),
    (None, None),  # the folder of a run that has not begun
)


def newest_on_rank(code, rank, world):
    seen = []
    for case, (folders, _) in enumerate(FOLDERS):
        out = Path(f"case-{case}")
        for age, (name, is_whole) in enumerate(reversed((folders or {}).items())):
            made_checkpoint(out / name, is_whole)
            os.utime(out / name, (1e9 + age, 1e9 + age))  # the first in the list was touched last: by time it is wrong
        if folders is not None:
            out.mkdir(exist_ok=True)
        found = code.find_newest(out)
        seen.append(None if found is None else os.path.relpath(found, out))
    return seen


def made_checkpoint(folder, is_whole):
    folder.mkdir(parents=True)
    (folder / "__0_0.distcp").write_bytes(b"")
    if is_whole:
        (folder / ".metadata").write_bytes(b"")


@todo(
    2,
    minutes=10,
    why=(
        "At night the run must find it on its own. Text sorts by characters, and 9 comes after 1: step 90 looks newer"
        " than step 100, and each restart repeats the same steps."
    ),
    hints=(
        "Among the folders named step- and a number, leave out the incomplete ones, and compare the numbers.",
        'out.glob("step-*") gives paths, none where there is no folder; path.name.removeprefix("step-"),'
        " str.isdecimal() and int() turn their names into numbers. path.is_file() says whether a file exists.",
        'Collect int(...) of the names of all folders with (folder / ".metadata").is_file(); then'
        ' out / f"step-{max(...)}", or None where there are none.',
    ),
)
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


def find_on_rank(code, rank, world, places):
    return [[int(n) for n in code.find_epoch(*case)] for case in places]


@todo(
    3,
    minutes=10,
    why=(
        "A run that restarts its epoch trains twice on some samples and never reaches others. Step k has the same"
        " samples on any number of ranks, so the number of steps is all you need."
    ),
    hints=(
        (
            "Divide the steps by the steps of an epoch: the quotient is the epoch, the remainder the steps done in it."
            " Then look at the last step of an epoch."
        ),
        "With // and %, or divmod, of step - 1 for a step that is not the first. Before the first step it is (0, 0).",
        "epoch = max(step - 1, 0) // ..., and the steps done are step minus the steps of earlier epochs.",
    ),
)
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

PLACE = {"step": 17, "loss": 2.5, "best": 3.25, "batch_size": 12, "seq_len": 8, "seed": 5, "lr": 0.1}
FRESH = {"step": 0, "loss": 0.0, "best": math.inf, "batch_size": 0, "seq_len": 0, "seed": 0, "lr": 0.0}
ONTO = (3, 2, 1)  # ranks that restore what 2 have saved


def small(ranks, seed, steps):
    """A sharded model, and an optimizer that has taken some steps."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(seed)
    model = fully_shard(torch.nn.Linear(5, 4), mesh=init_device_mesh("cpu", (ranks,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25 if steps else 0.5, momentum=0.9)
    for _ in range(steps):
        model(torch.rand(2, 5)).sum().backward()
        optimizer.step()
    return model, optimizer


def small_state(model, optimizer):
    buffers = [optimizer.state[p].get("momentum_buffer", torch.zeros(0)) for p in model.parameters()]
    return {f"weights {n}": p for n, p in enumerate(model.parameters())} | {
        f"momentum {n}": buffer for n, buffer in enumerate(buffers)
    }


def contents_on_rank(code, rank, world, seed):
    import torch.distributed.checkpoint as dcp

    model, optimizer = small(world, seed=1, steps=2)
    torch.manual_seed(seed)
    torch.rand(7)  # the state of a generator is not its seed
    state = code.contents(model, optimizer, dict(PLACE))
    drawn = torch.rand(3)
    dcp.save(state, checkpoint_id=Path("saved"))
    dist.barrier()
    files = {name: held.hex() for name, held in tree(Path("saved")).items()} if rank == 0 else {}
    return {"drawn": drawn, "saved": small_state(model, optimizer), "files": files}


def restore_on_rank(code, rank, world, files):
    import torch.distributed.checkpoint as dcp

    left, folder = {}, Path(f"saved-for-{rank}")
    put(folder, {name: bytes.fromhex(held) for name, held in files.items()})
    for ranks in ONTO:
        if rank < ranks:
            next_world(ranks)
            dist.init_process_group("gloo")
            model, optimizer = small(ranks, seed=9, steps=0)
            torch.manual_seed(1000 + rank)
            own = torch.rand(3)
            torch.manual_seed(1000 + rank)
            try:
                position = code.restore(model, optimizer, dict(FRESH), folder)
            except dcp.api.CheckpointException as error:  # which gives no rank's reason
                left[str(ranks)] = {"refused": str(next(iter(error.failures.values()))[0]).splitlines()[0]}
                dist.destroy_process_group()
                continue
            left[str(ranks)] = {
                "drawn": torch.rand(3),
                "own": own,
                "state": small_state(model, optimizer),
                "lr": optimizer.param_groups[0]["lr"],
                "position": position if isinstance(position, dict) else repr(position),
            }
            dist.destroy_process_group()
    return left


SAID = {"step": "the steps done", "loss": "the mean loss of the epoch so far", "best": "the lowest validation loss"}


@todo(
    4,
    in_place=("position",),
    minutes=20,
    why=(
        "State that is not saved is reset silently. Without the lowest validation loss the next epoch, however bad,"
        " is the best so far, and overwrites model-best.pt. Without the random states, dropout repeats the same"
        " masks, and the run no longer continues the one that was stopped."
    ),
    hints=(
        "Go through everything that main() and train_epoch() change from step to step. What differs between the ranks?",
        (
            "position is a dictionary, and is saved as it is. A tensor that differs between ranks needs one name per"
            ' rank, as in f"...-{dist.get_rank()}". saved_names(folder) lists the names that were saved: ask for'
            " no others."
        ),
        (
            'In contents add "position": position, and random_state() under a name for this rank. In restore take that'
            " name out of `saved` if it is not in saved_names(folder), dcp.load, and give it to set_random_state()."
        ),
    ),
)
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
# TODO 5: the start

# What each of three ranks sees of the run's folder, and how often its torchrun says that it has restarted.
VIEWS = (
    ([(20, 40), (20,), (20, 40)], (0, 0, 0)),
    ([(60,), (60, 80), (60, 80)], (1, 0, 2)),
    ([(), (), ()], (1, 1, 1)),
    ([(20,), (), (20,)], (0, 0, 0)),
    ([(), (20,), (20,)], (0, 0, 0)),
)


def start_on_rank(code, rank, world):
    def newest(out):
        steps = [int(folder.name.removeprefix("step-")) for folder in Path(out).glob("step-*")]
        return Path(out) / f"step-{max(steps)}" if steps else None

    code.find_newest, found = newest, []
    for case, (views, restarts) in enumerate(VIEWS):
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(restarts[rank])
        here, out = Path.cwd(), Path("run")  # by one path each rank sees a folder of its own
        mine = here / f"case-{case}-seen-by-{rank}"
        (mine / out).mkdir(parents=True)
        os.chdir(mine)
        for step in views[rank]:
            made_checkpoint(out / f"step-{step}", True)
        dist.barrier()
        start = code.choose_start(out)
        if start is not None:
            start = start.name if start.is_absolute() else os.path.relpath(start, out)
        os.chdir(here)
        found.append(start)
    return found


@todo(
    5,
    minutes=10,
    why=(
        "A lost process, a time limit, a node that fails: after each of them, something runs the same command again,"
        " at night. A script that then starts at step 0 loses days, and one whose ranks start from different"
        " checkpoints trains a mixture of two models."
    ),
    hints=(
        "If there is a checkpoint, resume; else start from scratch. Nothing else matters. And let one rank decide for"
        " all.",
        (
            "find_newest(out) is TODO 2. from_rank0(text) takes and returns text; every rank must call it. torchrun's"
            " restart count is kept on each node separately, and is 0 again in the next job."
        ),
        'name = from_rank0(str(... or "")), and Path(name), or None where the text is empty.',
    ),
)
def test_todo5_start(student):
    ranks = student.call(start_on_rank, world=3, common=True).evidence
    for case, (views, _) in enumerate(VIEWS):
        found = [seen[case] for seen in ranks]
        steps = {f"step-{step}" for view in views for step in view}
        told = f"where rank 0 sees {words(views[0])}, and rank 1 {words(views[1])},"
        blind = not all(views)  # then all may also agree to start from scratch
        for rank, name in enumerate(found):
            expect(
                name in steps or (blind and name is None),
                f"{told} choose_start() on rank {rank} " + ("starts from scratch" if name is None else f"takes {name}"),
                "a checkpoint that is there" if steps else "None: there is no checkpoint",
                name or "None",
                rank,
            )
        expect(
            len(set(found)) == 1,
            f"{told} the ranks do not start from the same checkpoint",
            "one for all ranks",
            ", ".join(f"{name} on rank {rank}" for rank, name in enumerate(found)),
            hint="Ranks may see different folders. Which rank decides, and how does its answer reach the others?",
        )


def words(steps):
    return " and ".join(f"step-{step}" for step in steps) or "nothing"


# ---------------------------------------------------------------------------------------------------
# TODOs 6 and 7: asked to stop


def listen_on_rank(code, rank, world):
    unheeded, raised, counts, interrupt = [], "", [], signal.getsignal(signal.SIGINT)
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, _: unheeded.append(number))  # else a signal would end the check
    came = code.listen()
    counts.append(len(came))
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1):
        try:
            signal.raise_signal(number)
        except BaseException as error:
            raised = f"{type(error).__name__} at {signal.Signals(number).name}"
        counts.append(len(came))
    changed = signal.getsignal(signal.SIGINT) != interrupt
    return {
        "counts": counts,
        "unheeded": unheeded,
        "raised": raised,
        "came": [int(n) for n in came],
        "changed": changed,
    }


@todo(
    6,
    minutes=10,
    why=(
        "A signal is the only warning that a scheduler gives before it kills. It arrives between any two lines, in"
        " the middle of an optimizer step or of a collective: a state saved there belongs to no step, and other ranks"
        " are at different places."
    ),
    hints=(
        "For each of the two signals, install a handler that leaves a note for the training loop.",
        "signal.signal(signal.SIGTERM, handler) installs handler(number, frame), which can append to the list `came`.",
        "For both numbers: signal.signal(number, a function of (number, frame) that calls came.append(number)).",
    ),
)
def test_todo6_listen(student):
    (seen,) = student.call(listen_on_rank, world=1, group=False).evidence
    names = [signal.Signals(number).name for number in dict.fromkeys(seen["unheeded"])]
    expect(not names, f"{' and '.join(names)} would end the process: no handler records it", "a handler", "none")
    told = f"a handler raises {seen['raised']}, in the middle of a step"
    hint = "In the middle of a step nothing can be saved. What is the least that a handler can do?"
    expect(not seen["raised"], told, "a note", seen["raised"], hint=hint)
    expect(seen["counts"][0] == 0, "`came` is not empty before a signal came", 0, seen["counts"][0])
    for number, count in zip(("SIGUSR1", "SIGTERM"), seen["counts"][1:]):
        hint = "A handler is called with the number of its signal. In which list does it leave it?"
        expect(count > 0, f"after {number} the list that listen() returned is still empty", "a note", "none", hint=hint)
    right = [int(number) for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1)]
    told = "after SIGUSR1, SIGTERM and again SIGUSR1 the list does not have the numbers of these signals"
    expect(
        seen["came"] == right,
        told,
        right,
        seen["came"],
        hint="One note for each signal. What is a handler called with?",
    )
    hint = "A scheduler sends two signals. Every other one keeps the handler that it has."
    expect(not seen["changed"], "Ctrl-C (SIGINT) no longer ends the run", "its own handler", "a new one", hint=hint)


def agree_on_rank(code, rank, world):
    device, answers = torch.device("cpu"), []
    for asked, numbers in ASKED:
        answers.append(bool(code.agree_to_stop([int(n) for n in numbers] if rank in asked else [], device)))
    came = Came()
    with signalled_by_then(came) if rank == 1 else nullcontext():
        answers.append(bool(code.agree_to_stop(came, device)))
    return answers


class Came(list):
    """A list of signals that a handler may extend during a call. (Only of a plain list the judge asks that it stays as
    it is.)
    """


def signalled_by_then(came):
    """SIGTERM comes when this rank starts a collective."""
    say = Reporter.mine.say

    def said(**event):
        say(**event)
        if event["e"] == "op":
            came.append(int(signal.SIGTERM))

    return mock.patch.object(Reporter.mine, "say", said)


# Which of three ranks have been asked, and by which signals; also an even number of ranks, and of signals; and many.
ASKED = (
    ((), ()),
    ((0,), (signal.SIGUSR1,)),
    ((1,), (signal.SIGTERM,)),
    ((2,), (signal.SIGUSR1, signal.SIGTERM)),
    ((), ()),
    ((0, 2), (signal.SIGUSR1,)),
    ((0, 1, 2), (signal.SIGTERM,)),
    ((0, 2), (signal.SIGUSR1,) * 128),  # together 256, which is 0 in eight bits
)


@todo(
    7,
    minutes=10,
    why=(
        "Saving takes all ranks. If rank 1 has received the signal and rank 0 has not, rank 1 starts to save, and rank"
        " 0 starts the next step: both wait, until the limit kills them with nothing saved."
    ),
    hints=(
        "Each rank has a yes or a no; all must learn whether there is a yes. So all ranks call it, also those without"
        " a signal.",
        "dist.all_reduce(tensor, dist.ReduceOp.MAX) leaves the largest on all ranks; the tensor must be on the device.",
        "A tensor of int(len(came) > 0) on the device; all_reduce it with MAX; return it as a bool.",
    ),
)
def test_todo7_agree(student):
    run = student.call(agree_on_rank, world=3)
    ranks = run.evidence
    for case, (asked, numbers) in enumerate(ASKED):
        who = {0: "no rank", 3: "every rank"}.get(len(asked), f"rank {' and rank '.join(map(str, asked))} alone")
        names = {signal.Signals(number).name: numbers.count(number) for number in numbers}
        by = " and ".join(f"{name}, {count} times" if count > 1 else name for name, count in names.items())
        by = by and f" by {by}"
        for rank, answers in enumerate(ranks):
            expect(
                answers[case] == bool(asked),
                f"where {who} has been asked to stop{by}, rank {rank} " + ("stops" if answers[case] else "continues"),
                bool(asked),
                answers[case],
                rank,
            )
    last = [answers[-1] for answers in ranks]
    told = "if a signal reaches rank 1 while the ranks are agreeing, some of them stop and the others continue"
    expect(len(set(last)) == 1, told, "the same on all ranks", last, 1, LATE)
    sums = [(rank, event["dtype"]) for rank, mine in enumerate(run.events) for event in mine if is_sum(event)]
    for rank, dtype in sums:
        told = f"rank {rank} adds up answers in {dtype}: where all of 256 ranks are asked to stop, the sum is 0"
        fits = getattr(torch, dtype).itemsize > 1
        expect(fits, told, "a sum that cannot be 0, or the largest", f"a sum in {dtype}", rank, EIGHT_BITS)


def is_sum(event):
    return event["e"] == "op" and event["op"] == "all_reduce" and event["detail"] == "SUM"


EIGHT_BITS = (
    "How many ranks may a job have, and how far does this dtype count? Or is there an operation that cannot overflow?"
)

LATE = (
    "What a rank learns after the ranks have agreed belongs to the next step. When does each rank look at its own list?"
)


# ---------------------------------------------------------------------------------------------------
# TODO 8: the batch, and the whole

FLAGS = (
    "--epochs 3 --seq-len 8 --dim 16 --heads 2 --layers 1 --optimizer sgd --lr 0.5 --weight-decay 0 --clip 0.5 --seed 5"
    " --log-every 1"
).split()
# flags of the batch, the run's batch so far, ranks -> the batch; None: refused
BATCHES = (
    (["--batch-size-per-rank", "6"], None, 4, 24),
    (["--batch-size-per-rank", "6"], 24, 3, 24),
    (["--batch-size-per-rank", "6"], 24, 1, 24),
    (["--batch-size-per-rank", "6"], 24, 5, None),
    (["--batch-size", "24"], 24, 3, 24),
    (["--batch-size", "12"], 24, 3, 12),
    (["--batch-size", "12"], None, 2, 12),
)
# Two steps an epoch: stopped after step 1, in mid-epoch; after step 4, an epoch's end; and the rest.
CHAIN = ((4, ["--batch-size-per-rank", "3"], 1), (3, ["--batch-size-per-rank", "3"], 3), (1, ["--batch-size", "12"], 0))


def share_on_rank(code, rank, world):
    seen = []
    for flags, saved, ranks, _ in BATCHES:
        args = code.parse_args(flags)
        try:
            code.share_batch(args, saved, ranks)
            seen.append(args.batch_size)
        except SystemExit as end:
            seen.append(f"exit code {end.code}")
    return seen


def chain_on_rank(code, rank, world, data):
    """main(), job after job in one folder; after a given number of steps, one rank gets a signal."""
    plain, agree, at = code.main, code.agree_to_stop, {}
    mine = [step for ranks, _, step in CHAIN if rank < ranks]

    def main(argv):
        at.update(steps=0, stop=mine.pop(0))
        plain(argv)

    def signalled(came, device):
        at["steps"] += 1
        if at["steps"] == at["stop"] and rank == 1:
            signal.raise_signal(signal.SIGUSR1)
        return agree(came, device)

    code.main, code.agree_to_stop = main, signalled
    runs = [[ranks, ["--out", "run", *FLAGS, *batch]] for ranks, batch, _ in CHAIN]
    return mains_on_rank(code, rank, world, runs, data, keep=("forwards", "weights"))


@todo(
    8,
    minutes=15,
    further=True,
    needs=tuple(range(1, 8)),
    why=(
        "A node fails, and the run resumes on the others. If the batch shrinks, training changes: the noise differs,"
        " an epoch has more steps, and step k no longer has the same samples."
    ),
    hints=(
        "The size per rank matters only in the first job. From then on the run knows its global batch.",
        "`saved` is None at first. With args.batch_size_per_rank = None set_batch_size takes args.batch_size as it is.",
        "If saved and args.batch_size_per_rank: set args.batch_size to saved, and the other to None. Then the call.",
    ),
)
def test_todo8_batch(student):
    (seen,) = student.call(share_on_rank, world=1, group=False).evidence
    for (flags, saved, ranks, right), got in zip(BATCHES, seen, strict=True):
        so_far = f"of a run whose batch so far is {saved}" if saved else "at the start of a run"
        expect(
            got == right if right else got == "exit code 2",
            f"with {' '.join(flags)}, {so_far}, on {ranks} rank{'s' * (ranks > 1)}, the global batch is wrong",
            right or "exit code 2: the batch is not divisible by the ranks",
            got,
            hint="Here the flag gives the global batch itself. What is there to work out?"
            if "--batch-size" in flags
            else ""
            if right
            else "A global batch must divide by the ranks. Which call sees to that, and what does it look at?",
        )
    check_chain(student)


@hinted(
    "Each function alone is right. What does a job take over from the one before: its step, its batch, its place"
    " in the epoch?"
)
def check_chain(student):
    """The run over three jobs, each on fewer ranks, is the serial run."""
    flags = ["--data", "data", "--out", "out", *FLAGS, "--batch-size", "12"]
    serial = student.serial(flags, corpus(student))
    right = losses(serial.evidence[0])
    windows = [sorted(rows) for rows, _ in training(serial.evidence[0]).values()]
    run = student.call(chain_on_rank, world=4, group=None, data=corpus(student), common=True)
    step = 0
    for job, (ranks, _, stop) in enumerate(CHAIN):
        left = [mine[job] for mine in run.evidence[:ranks]]
        told = f"in job {job + 1}, on {ranks} rank{'s' * (ranks > 1)},"
        made = min(map(len, map(losses, left)))
        due = stop or len(right) - step
        expect(
            made == due,
            f"{told} {made} steps are made" + (f", though rank 1 gets a signal after step {step + stop}" * bool(stop)),
            due,
            made,
        )
        for k in range(made):
            rows = sorted(row for mine in left for row in list(training(mine).values())[k][0])
            expect(
                rows == windows[step + k],
                f"{told} step {step + k + 1} does not train on the samples of a run without a stop",
                f"the samples of step {step + k + 1}",
                next((f"step {n + 1}'s" for n, other in enumerate(windows) if rows == other), "others"),
            )
            mean = sum(losses(mine)[k] for mine in left) / ranks
            same = math.isclose(mean, right[step + k], rel_tol=REL)
            expect(same, f"{told} the loss of step {step + k + 1} is not the serial run's", right[step + k], mean)
        if ranks > 1:
            due = made * ring_bytes(sum(weight.nbytes for weight in serial.evidence[0]["weights"].values()), ranks)
            check_parts_travel(told.rstrip(","), cases(run.events)[job][:ranks], due, made)
        step += made
    same_report("over three jobs,", reported(serial), reported(run, "run"))
    for name, weight in serial.evidence[0]["weights"].items():
        seen = run.evidence[0][-1]["weights"][name]
        seen = seen if isinstance(seen, torch.Tensor) else together([run.evidence[0][-1]], "weights")[name]
        same = torch.allclose(seen, weight, rtol=1e-3, atol=1e-5)
        expect(same, f"after three jobs the last weights are not the serial run's ({name})", weight, seen)


# ---------------------------------------------------------------------------------------------------
# TODO 9: in the background


def mixed_up(events):
    """The collectives of one rank that a thread makes in the group of the training step, from begin_save() on."""
    begin, step, end, *_ = [number for number, event in enumerate(events) if event["e"] == "mark"]
    of_training = {event["name"] for event in events[step:end] if event.get("dtype") == "float32"}
    in_thread = [event for event in events[begin:end] if event["e"] == "op" and event.get("aside")]
    return [event["op"] for event in in_thread if event["name"] in of_training]


def crossed(every, ended):
    """(rank, collective) of the first main thread that uses the saving's own group before its thread has made its last;
    None if there is none. A run that has not `ended` stopped before.
    """
    own, training, saving = [], set(), set()
    for events in every:
        marks = [k for k, event in enumerate(events) if event["e"] == "mark"] or [0]
        own.append([event for event in events[marks[0] : marks[-1] if ended else None] if event["e"] == "op"])
        training |= {e["name"] for e in own[-1] if e.get("dtype") == "float32" and not e.get("aside")}
        saving |= {e["name"] for e in own[-1] if e.get("aside")}
    for rank, made in enumerate(own):
        last = max((k for k, event in enumerate(made) if event.get("aside")), default=0) if ended else len(made)
        mine = [event for event in made[:last] if not event.get("aside") and event["name"] in saving - training]
        if mine:
            return rank, mine[0]["op"]
    return None


def waits_for_the_end():
    """Whether the main thread is in a future's result(), or joins a thread: it does nothing before the writing ends."""
    frame = sys._current_frames().get(threading.main_thread().ident)
    while frame is not None:
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        if file.endswith("futures/_base.py") and function in ("result", "wait"):
            return True
        if file.endswith("threading.py") and function == "join":
            return True
        frame = frame.f_back
    return False


def begin_on_rank(code, rank, world, seed):
    """Both ranks make a step of their training, which takes a collective, while rank 1 writes."""
    import torch.distributed.checkpoint as dcp

    group, returned = dist.new_group(backend="gloo"), Path("returned")
    move_late(Path("step-7"), returned)
    begun, stepped, finished, waited, early, out = *(threading.Event() for _ in range(3)), [], [], Path("out")
    write = dcp.FileSystemWriter.write_data

    def late(self, *args):
        begun.set()
        if (out / "step-7").exists():
            early.append(True)
        if threading.current_thread() is threading.main_thread():
            waited.append("in the main thread")
        elif rank == 1:
            while not stepped.wait(0.01):
                if not waited and waits_for_the_end():
                    waited.append("the main thread waits for it")
                    break
            # Luck must not hide a finish() that does not wait: it returns first. Who looks again and again waits, too.
            for _ in range(100):
                if finished.wait(0.01) or waits_for_the_end():
                    break
        return write(self, *args)

    dcp.FileSystemWriter.write_data = late
    mine = torch.rand(50, generator=torch.Generator().manual_seed(seed))
    state, given = {f"part-{rank}": mine, "position": {"step": 7}}, mine.clone()
    before = set(threading.enumerate())
    mark(name="begin")
    finish = code.begin_save(state, out, 7, group)
    mine.zero_()
    state["position"]["step"] = 8
    if set(threading.enumerate()) > before:
        begun.wait()  # now the ranks have agreed on which rank writes what
    mark(name="step")
    total = torch.ones(3)
    dist.all_reduce(total)
    mark(name="end")
    stepped.set()
    finish()
    finished.set()
    there = (out / "step-7" / ".metadata").is_file()
    returned.touch()
    mark(name="finished")
    dist.barrier()
    seen = {
        "waited": waited,
        "early": early,
        "there": there,
        "total": total,
        "whole": content(out / "step-7", world),
        "mine": given,
    }
    dcp.FileSystemWriter.write_data = write
    return seen | where_it_fails(rank, lambda step: code.begin_save(state, out, step, group)(), out)


def begin_again_on_rank(code, rank, world, seed):
    """A save over what a killed run has left under the folder's name."""
    group, out = dist.new_group(backend="gloo"), Path("out")
    if rank == 0:
        put(out, {"step-7/__0_0.distcp": b"torn"})
    dist.barrier()
    code.begin_save({f"part-{rank}": drawn_part(seed), "position": {"step": 7}}, out, 7, group)()
    dist.barrier()
    return {"whole": content(out / "step-7", world), "mine": drawn_part(seed)}


def error_of(call):
    """The kind of exception that it raises, or nothing."""
    import torch.distributed.checkpoint as dcp

    try:
        call()
    except (Exception, dcp.api.CheckpointException) as raised:
        return type(raised).__name__
    return ""


def full_disk(*args):
    raise OSError("no space left on device")


def lost(*args):
    raise RuntimeError("Connection closed by peer")


def where_it_fails(rank, save, out):
    """What a failing save raises, and whether its folder has its name all the same. In step 9 rank 1 cannot write, and
    torch raises an exception of its own on all ranks. In step 11 the ranks cannot tell each other that they have
    written: an ordinary exception.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.utils import _DistWrapper

    failing = {
        9: (dcp.FileSystemWriter, "write_data", full_disk if rank == 1 else dcp.FileSystemWriter.write_data),
        11: (_DistWrapper, "all_reduce", lost),
    }
    seen = {"errors": {}, "named": {}}
    for step, (where, name, fails) in failing.items():
        mark(name="fails", told=f"where {FAILURES[str(step)][0]}")
        with mock.patch.object(where, name, fails):
            seen["errors"][str(step)] = error_of(partial(save, step))
        seen["named"][str(step)] = (out / f"step-{step}").exists()
    return seen


FAILURES = {
    "9": ("rank 1 cannot write, its disk is full", "rank 1 could not write, its disk was full"),
    "11": ("the ranks lose their connection while they write", "the ranks have lost their connection while they wrote"),
}


def check_failures(call, raises, seen, rank, *hints):
    """`hints`: where the rank is told nothing, and where the folder has its name."""
    for step, (fails, failed) in FAILURES.items():
        told = f"{fails}, and {call} on rank {rank} says nothing about it"
        expect(seen["errors"][step], told, f"the error that {raises} raises", "no error", rank, hints[0])
        told = f"{failed}, and there is a folder step-{step}"
        expect(not seen["named"][step], told, f"no step-{step}", f"step-{step}", rank, hints[-1])


@todo(
    9,
    minutes=20,
    further=True,
    why=(
        "Writing a large model's checkpoint takes minutes, and the GPUs wait. Copying it to CPU memory takes a"
        " second; from then on it can be written while training continues. But the checkpoint must hold the state of"
        " one step, and the messages for saving must not mix with the training's."
    ),
    hints=(
        "Which part of TODO 1 can happen now, and which only when everything is written? The second part belongs in"
        " the function that you return.",
        (
            "dcp.async_save(state, checkpoint_id=..., process_group=group) returns a future. An inner function sees the"
            " variables of the outer one. The rename comes after .result(), on one rank."
        ),
        (
            "writing = dcp.async_save(... under another name ...); def finish(): writing.result(), then the lines after"
            " dcp.save in TODO 1; return finish."
        ),
    ),
)
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


# ---------------------------------------------------------------------------------------------------
# TODOs 10 and 11: the batch file

BATCH_FILE = "a batch file is a process of its own, which keeps nothing"
JOB, NEXT = "12320769", "12320999"  # the job's number, and the number of a job that it submits
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def ends_on_rank(code, rank, world, text, kind):
    return {how: ends.run(text, kind, "resilient_training", how) for how in ends.WAYS}


def ended(student, unit):
    return student.call(ends_on_rank, world=1, group=False, text=unit.text, kind=unit.name.rpartition(".")[2]).evidence[
        0
    ]


def last_words(seen):
    return next((f": {line.strip()}" for line in reversed(seen["said"].splitlines()) if line.strip()), "")


@todo(
    10,
    minutes=20,
    once=BATCH_FILE,
    further=True,
    why=(
        "At its limit a job is killed, and all training since the last checkpoint is lost. A minute's warning is"
        " enough to save, if it reaches the training processes; a signal that ends torchrun ends them, too."
    ),
    hints=(
        "Two things: ask for a signal early enough, and make sure that torchrun survives it, or passes it on.",
        (
            "Slurm: a directive --signal=NAME@SECONDS, and within bash -c a trap of that signal before torchrun; or"
            " TERM, which torchrun passes on; its exit code is then not 0. PBS: put timeout -s TERM SECONDS before"
            " torchrun, and treat its exit code 124 as success: command || [ $? -eq ... ]."
        ),
        (
            'Within the quotes of bash -c: trap "" SIGNAL; then the command as it is. For PBS: timeout, the signal'
            " and the seconds before torchrun, and at its end whatever turns that exit code into success."
        ),
    ),
)
def test_todo10_told(student):
    for unit in student.batch_files(10):
        ways = ended(student, unit)
        seen = ways["limit"]
        check_told(unit, seen)
        notice, least = notice_of(unit, seen)
        expect(
            least <= notice <= 1800,
            f"{unit.name}: the training is told {notice:g} seconds before the limit",
            f"{least} to 1800 seconds",
            f"{notice:g} seconds",
            hint=(
                "From the signal to the limit there must be time to finish a step and to save. How many seconds are"
                " left?"
            ),
        )
        expect(
            seen["code"] == 0,
            f"{unit.name}: the training has saved and ended normally, but the batch file ends as if it had"
            f" failed{last_words(seen)}",
            "exit code 0",
            f"exit code {seen['code']}",
            hint=(
                "After a stop that was asked for, one command has an exit code that is not 0. Which one, and what is"
                " it?"
            ),
        )
        expect(
            ways["fails"]["code"] != 0,
            f"{unit.name}: the training fails with its own error, and the batch file ends as if it had not",
            "an exit code that is not 0",
            "exit code 0",
            hint=(
                "Which exit codes does your line turn into success? At most one of them says that the run was asked to"
                " stop."
            ),
        )
        kill = min((seconds for seconds in map(seconds_of, seen["kills"]) if seconds), default=math.inf)
        expect(
            kill >= least,
            f"{unit.name}: {kill:g} s after its signal, timeout kills torchrun, and so the processes"
            " that are about to save",
            f"{least} s or more, or no -k",
            f"{kill:g} s",
            hint="What does -k of timeout do, and after how many seconds? A step must end until then, and a save.",
        )
        with hinted("The signals are right now. Which words of the command that starts the training have changed?"):
            check_launches(student, unit)


def check_told(unit, seen):
    """A signal reaches the training's processes, and does not end them."""
    expect(
        not seen["killed"] or seen["told"] or seen["code"] != -9,
        f"{unit.name}: the job reaches its time limit, and no signal has reached the training",
        "USR1 or TERM, a minute or more before the limit",
        "no signal",
    )
    expect(
        seen["code"] in (0, -9) or seen["code"] > 0,
        f"{unit.name}: the signal goes to the shell that reads this file, to no other process, and ends it",
        "a signal that reaches the processes that srun starts",
        "the shell ends, and the job with it",
        hint="A directive can ask for a signal to the shell, or to what srun has started. Which does yours?",
    )
    expect(
        not {"mpiexec", "mpirun"} & set(seen["ends"]),
        f"{unit.name}: timeout sends the signal to mpiexec, not to the torchrun that mpiexec starts on each node",
        "timeout in front of torchrun",
        "timeout in front of mpiexec",
        hint="What does each node run? timeout sends the signal to the command that follows it.",
    )
    expect(
        not seen["killed"],
        f"{unit.name}: the signal ends torchrun{last_words(seen)}; its processes end with it",
        "torchrun continues until its processes have saved",
        "torchrun is killed",
    )
    expect(
        not seen["stopped"] or seen["told"],
        f"{unit.name}: the training gets {seen['stopped']}, to which the script does not listen: it ends at once,"
        " without a checkpoint",
        "USR1 or TERM",
        seen["stopped"],
        hint="torchrun passes on the signal that it gets. To which of those that it passes on does the script listen?",
    )
    expect(
        seen["told"],
        f"{unit.name}: no signal reaches the training's processes before the limit{last_words(seen)}",
        "USR1 or TERM",
        "no signal",
    )


def notice_of(unit, seen):
    """Seconds from the signal to the limit, and the least allowed."""
    if unit.name.endswith(".sbatch"):
        seconds = header.header(unit.text).get("signal", "").rpartition("@")[2]
        return (int(seconds) if seconds.isdecimal() else 60), 60
    hours, minutes, seconds = (int(part) for part in header.header(unit.text)["walltime"].split(":"))
    return 3600 * hours + 60 * minutes + seconds - max(map(seconds_of, seen["after"]), default=0), 60


def seconds_of(duration):
    """As `timeout` and `sleep` read it: 3400, 55m, 0.5h; 0 if it is not a duration."""
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)([smhd]?)", duration)
    return float(found[1]) * UNITS[found[2] or "s"] if found else 0


@todo(
    11,
    once=BATCH_FILE,
    minutes=15,
    further=True,
    needs=(10,),
    why=(
        "A month of training is thirty jobs of one day, too many to submit by hand. But a run that fails must not be"
        " resubmitted automatically: it would fail every minute until the budget is gone."
    ),
    hints=(
        "A job ends in one of three ways: done, failed, or stopped at the limit. After which of them must another job"
        " follow?",
        (
            "[ -f FILE ] || command runs the command unless the file is there. Slurm: scontrol requeue and the job's"
            " number. PBS: NEXT=$(qsub -W depend=afterok:$PBS_JOBID -v ARGS,RUN FILE), and qdel it once the training is"
            " done."
        ),
        (
            '[ -f "$RUN/..." ] || the call that puts this job back into the queue, by its Slurm number; for PBS ask'
            " the opposite question, and qdel the waiting job."
        ),
    ),
)
def test_todo11_again(student):
    for unit in student.batch_files(11):
        seen = ended(student, unit)
        for how, told in (
            ("limit", "stopped at its limit, before the training is done"),
            ("done", "that is done"),
            ("fails", "that fails with its own error"),
        ):
            again, asked = follows(seen[how]), "; ".join(seen[how]["asked"])
            expect(
                again == (how == "limit"),
                f"after a job {told} "
                + ("another follows" if again else f"none follows{last_words(seen[how])}")
                + f", by {unit.name}",
                "another job" if how == "limit" else "no further job",
                asked or "no request to the scheduler",
            )
        expect(
            seen["done"]["code"] == 0,
            f"{unit.name}: the training is done, and the batch file ends as if it had failed{last_words(seen['done'])}",
            "exit code 0",
            f"exit code {seen['done']['code']}",
            hint="A batch file's exit code is its last command's; `[ … ] && command` has 1 if the answer is no.",
        )
        for call in seen["limit"]["asked"]:
            check_handed_on(unit, call)


def follows(seen):
    """Whether another job runs after this one, judging by the calls to the scheduler, in order."""
    again = False
    for call in seen["asked"]:
        words = call.split()
        if words[0] == "scontrol":
            again = again or (words[1] == "requeue" and words[-1] == JOB)
        elif words[0] == "qdel":
            again = again and words[-1].split(".")[0] != NEXT
        elif words[0] == "qsub":
            found = re.search(r"depend=(\w+):(\d+)", call)
            kind = found[1] if found and found[2] == JOB else ("never" if found else "afterany")
            again = {"afterok": seen["code"] == 0, "afternotok": seen["code"] != 0, "afterany": True}.get(kind, False)
    return again


def check_handed_on(unit, call):
    if not call.startswith("qsub"):
        return
    handed = re.search(r"-v ?(\S+)", call)
    names = [part.partition("=")[0] for part in handed[1].split(",")] if handed else []
    for name, what in (
        ("RUN", "writes into a different folder, and starts from scratch"),
        ("ARGS", "has different arguments"),
    ):
        expect(
            name in names or " -V" in call,
            f"with {unit.name} the next job is not told {name}: it {what}",
            "-v ARGS,RUN",
            call,
            hint="The next job starts with none of this job's variables. Which ones does it need to continue this run?",
        )
