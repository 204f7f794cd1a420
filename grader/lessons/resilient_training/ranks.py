"""What the checks of resilient_training run on ranks, in the process of the student's code."""

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

from grader.kit import Reporter, job_endings, mains_on_rank, mark, next_world

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


# ---------------------------------------------------------------------------------------------------
# TODO 3: the place in the epoch


def find_on_rank(code, rank, world, places):
    return [[int(n) for n in code.find_epoch(*case)] for case in places]


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


# ---------------------------------------------------------------------------------------------------
# TODO 9: in the background


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
                if not waited and waits_for_the_end() and not stepped.is_set():  # or it is finish() that waits
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
    with threads_noted():
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


def threads_noted(told=""):
    """A context in which the judge hears of each thread that Python starts."""
    start = threading.Thread.start

    def noted(thread):
        mark(name="thread", told=told)
        start(thread)

    return mock.patch.object(threading.Thread, "start", noted)


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
        mark(name="fails", told=(told := f"where {FAILURES[str(step)][0]}"))
        with mock.patch.object(where, name, fails), threads_noted(told):
            seen["errors"][str(step)] = error_of(partial(save, step))
        seen["named"][str(step)] = (out / f"step-{step}").exists()
    return seen


FAILURES = {
    "9": ("rank 1 cannot write, its disk is full", "rank 1 could not write, its disk was full"),
    "11": ("the ranks lose their connection while they write", "the ranks have lost their connection while they wrote"),
}


# ---------------------------------------------------------------------------------------------------
# TODOs 10 and 11: the batch file


def ends_on_rank(code, rank, world, text, kind):
    return {how: job_endings.run(text, kind, "resilient_training", how) for how in job_endings.WAYS}
