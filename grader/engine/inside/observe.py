"""Reports what a rank does to the judge, as it happens.

An event is sent BEFORE each collective or message (so a call that never returns is still known), and around each wait.
Every one passes through the dispatcher, so DDP's reducer, FSDP, DTensor and plain `dist` calls all show. Events are
JSON lines on the socket that each rank has to the judge:

    {"e": "op", "op": "all_reduce", "group": [0, 1], "name": "0", "shape": [4],
     "dtype": "float32", "bytes": 16, "detail": "SUM", "where": [unit, line, function]}
                                    "ours": the check itself made the call;
                                     an all-to-all has "pieces" as well: the bytes for each rank of the group;
                                     "gaps": one of its tensors is not contiguous, as NCCL requires
    {"e": "wait"} {"e": "done"}      the thread is inside a wait; "of": for this message; "work": for
                                     this collective
    {"e": "starts"} {"e": "started"} on a GPU: around a call, since NCCL may not start before the other ranks arrive
    {"e": "again", "of": 3}          it is about to wait a second time for a message
    {"e": "changed", "of": 3}        the tensor of a message (or "work": of a collective) was written to before it
                                     completed
    {"e": "future", "work": 3}       the future of a collective was taken, so waits for it cannot be seen
    {"e": "mark"}                    a check starts its next case; "told": in words, for a verdict on what stops here
    {"e": "joins", "rank": 1}        it asks to be this rank of the process group; "elsewhere": at an address that is
                                     not the launcher's
    {"e": "strange", "name": "wrap", "returned": "None", "promised": "Module"}
                                     a student's function returned a value that does not fit its signature
    {"e": "touched", "name": "attend", "argument": "k", "change": "is written into"}
                                     a student's function changed one of its arguments
    {"e": "overwritten", "name": "gathered"}
                                     and this to what it had returned before
    {"e": "deprecated", "text": "`torch.x` is deprecated."}
                                     a line of the student's calls what a package is going to remove
    {"e": "boundary"}                the rank returned from the first of two calls, and waits until all ranks have
    {"e": "opened", …} {"e": "read", …}
                                     a file, and how many bytes; see `reads.py`
    {"e": "forward"} {"e": "step"}   signs of progress: the model ran, the optimizer stepped
    {"e": "crash", …} {"e": "exit", …} {"e": "end"}
    {"e": "fit"} {"e": "unfit", "text": why}
                                     the first event of a rank that needs a GPU: whether it can use one

A message (send, recv) has its own number on its rank, "id", and a collective has one, "work". All events have the time
"t", in seconds, and "aside" if they come from a thread that the main thread does not wait for.
"""

import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from grader.engine.inside import on_gpu
from grader.engine.inside.in_flight import PendingCollective, PendingMessage, begin, depart, finish, watch_waits
from grader.engine.inside.pretended_gpus import pretend_gpus
from utils import private
from utils.distributed import cleanup
from utils.watched.calls import aside, described, intercept, members_of, tensors_sent

leave: Callable[[int], None] = os._exit  # the real one: `watch` replaces it for the student


STORE = "store"  # the file by which the ranks of a call meet
PATIENT = 0.2  # seconds for which a patient judge waits for events


class Reporter:
    """A rank's connection to the judge, and what it must know to report its calls."""

    mine: "Reporter | None" = None  # this rank's, from `watch` on
    merciless: bool  # see `merciless_messages`
    patient: bool  # in a run that measures time, events are sent later: receiving them takes a processor

    def __init__(self, end: socket.socket, job: dict) -> None:
        self.units = {unit["name"] for unit in job["units"]}
        self.pid = os.getpid()
        self.unsaid: list[dict] = []
        self.ranks = job["world"]
        self.on_gpu = bool(job["devices"])
        self.backend = "cpu:gloo,cuda:nccl" if self.on_gpu else "gloo"  # process groups that the checks make
        self.lock = threading.Lock()
        self.socket = end
        self.begin(Path(job["folder"]))
        self.say(e="here")

    def begin(self, folder: Path) -> None:
        """Start the process's first or second call, which leaves its traces in this folder."""
        self.folder, self.own = folder, folder / os.environ["RANK"]
        self.merciless = self.patient = False
        self.messages = 0
        self.collectives = 0
        # These references keep a work alive, so that its id stays unique.
        self.in_flight: dict[dist.Work, PendingMessage | PendingCollective] = {}
        self.over: WeakKeyDictionary[dist.Work, int] = WeakKeyDictionary()  # messages already waited for
        self.results: dict[int, int] = {}  # address of a result -> the collective that C++ called for it
        self.world = self.ranks
        self.host: Any = None  # on GPUs, messages use this gloo backend of all ranks
        self.lives = 0  # number of default process groups so far: a later one reuses the names of groups
        self.meetings = 0
        stacks = open(self.own / "stacks", "w")
        faulthandler.enable(stacks)  # on SIGSEGV or SIGABRT the line of code is known
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=False)  # the judge asks where this rank is

    def say(self, **event: Any) -> None:
        if os.getpid() != self.pid:  # e.g. a data loader's worker, not a rank
            return
        if aside():
            event["aside"] = True
        event["t"] = time.monotonic()  # one clock for all processes of a machine
        with self.lock:
            self.unsaid.append(event)
            if (
                not self.patient
                or event["e"] not in ("op", "wait", "done")
                or event["t"] - self.unsaid[0]["t"] > PATIENT
            ):
                self.socket.sendall(b"".join(json.dumps(event).encode() + b"\n" for event in self.unsaid))
                self.unsaid = []

    def release(self) -> None:
        """Stay until the judge has heard all ranks: an early exit would break the peers' connections."""
        while self.socket.recv(1):
            pass

    def frames(self) -> list[list]:
        """The lines of the student's code on the stack, innermost first: [unit, line, function]."""
        frame, found = sys._getframe(1), []
        while frame is not None:
            if frame.f_code.co_filename in self.units:
                found.append([frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name])
            frame = frame.f_back
        return found

    def where(self) -> list | None:
        """The innermost of these lines, or None."""
        return next(iter(self.frames()), None)

    def ours(self, frames: list) -> bool:
        """Whether the check's own code is running, with these `frames`. (A backward pass may run in another thread.)"""
        return not frames and threading.current_thread() is threading.main_thread()


def next_world(ranks: int) -> None:
    """Limit the next process group to the first `ranks` ranks, as if a job had been started with so many."""
    Reporter.mine.world = ranks
    os.environ.update(WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE="1" if Reporter.mine.on_gpu else str(ranks))


def sit_out() -> None:
    """This rank is not in the next process group, but perhaps in a later one: then it must count as the others do."""
    Reporter.mine.meetings += 1
    Reporter.mine.lives += 1


def smaller_world(ranks: int, rank: int) -> bool:
    """Shrink the process group to the first `ranks` ranks. Returns whether `rank` is still in it."""
    if dist.is_initialized() and dist.get_world_size() != ranks:
        dist.barrier()  # no rank may close its connections while another rank waits for the last call's messages
        cleanup()
        next_world(ranks)
        if rank < ranks:
            dist.init_process_group(Reporter.mine.backend)
    return rank < ranks


def watch(reporter: Reporter, job: dict) -> None:
    """From now on, report everything that this process does to the judge."""

    def exit_seen(status: int) -> None:
        reporter.say(e="exit", status=status, where=reporter.where())
        leave(status)

    os._exit = exit_seen

    kill = os.kill

    def kill_seen(pid: int, number: int) -> None:
        reporter.say(e="kill", where=reporter.where())
        kill(pid, number)

    os.kill = kill_seen
    watch_waits(reporter)
    watch_rendezvous(reporter, job)
    if job["gpus"]:
        pretend_gpus(job["gpus"])
    Reporter.mine = reporter


def merciless_messages() -> None:
    """From now on, each message behaves in the worst permitted way.

    It arrives at its wait and no earlier. If a tensor in flight is written to before the wait, the judge is told. The
    same holds for collectives that work in place, such as an all-reduce.
    """
    Reporter.mine.merciless = True


def mark(**about: Any) -> None:
    """Tell the judge that a check's next case starts. `told`: the case in words, for a verdict on what stops in it."""
    Reporter.mine.say(e="mark", **about)


def meet_in_files(reporter: Reporter) -> None:
    """Make ranks rendezvous through a file of the run, not at a port."""

    def meet(url: str, timeout: Any = None, **_: Any):
        parsed = urllib.parse.urlparse(url)
        asked = dict(urllib.parse.parse_qsl(parsed.query))
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        elsewhere = parsed.netloc if parsed.netloc not in ("", address) else None  # not at the launcher's address
        rank = int(asked.get("rank", os.environ["RANK"]))
        world = int(asked.get("world_size", os.environ["WORLD_SIZE"]))
        reporter.say(e="joins", rank=rank, elsewhere=elsewhere, where=reporter.where())
        reporter.meetings += 1
        store = dist.FileStore(str(reporter.folder / STORE), world)
        yield dist.PrefixStore(str(reporter.meetings), store), rank, world

    for scheme in ("env", "tcp"):
        private.rendezvous_handlers()[scheme] = meet


def watch_rendezvous(reporter: Reporter, job: dict) -> None:
    """Report the joining and making of process groups like collectives, and make ranks rendezvous through files."""
    from torch.distributed import device_mesh  # imported here, since the judge does not need it

    meet_in_files(reporter)
    init, new_group = dist.init_process_group, dist.new_group

    def joining(op: str, detail: str | None) -> list | None:
        """Report a call that all ranks make together, with the same arguments; returns the line that makes it."""
        frames = reporter.frames()
        where = next(iter(frames), None)
        reporter.say(
            e="op",
            op=op,
            group=list(range(reporter.world)),
            name=f"world {reporter.lives}",
            shape=None,
            dtype=None,
            bytes=0,
            detail=detail,
            where=where,
            ours=reporter.ours(frames),
        )
        return where

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        reporter.lives += 1
        where = joining("init_process_group", str(backend))
        # With a device, NCCL splits the groups of a mesh from this one: a process that has destroyed a world before is
        # then ended by SIGSEGV (torch 2.11, NCCL 2.32). Without it, each group is made anew.
        kwargs.pop("device_id", None)
        if job["gpus"]:  # without a GPU, gloo replaces nccl; the judge knows what was requested
            backend = "gloo" if backend is None or "nccl" in backend else backend
        reporter.say(e="wait")
        init(backend, *args, **kwargs)
        kept.add(dist.group.WORLD)
        if reporter.on_gpu:
            reporter.host = new_group(backend="gloo")._get_backend(torch.device("cpu"))
        reporter.say(e="done")
        reporter.say(e="joined", rank=dist.get_rank(), world=dist.get_world_size(), where=where)

    def watched_new_group(ranks: Iterable[int] | None = None, *args: Any, **kwargs: Any) -> Any:
        ranks = None if ranks is None else list(ranks)
        if not kwargs.get("use_local_synchronization"):  # otherwise only its members make the call
            joining("new_group", "all ranks" if ranks is None else f"ranks {sorted(ranks)}")
        reporter.say(e="wait")
        group = new_group(ranks, *args, **kwargs)
        if isinstance(group, dist.ProcessGroup):  # this rank is in it
            kept.add(group)
        reporter.say(e="done")
        return group

    for module in (dist, c10d, device_mesh):
        module.init_process_group = init_process_group
        module.new_group = watched_new_group


# Groups live as long as the process. Gloo's destructor joins its threads with the GIL held, and a thread
# that drops the last reference to a tensor that Python has seen (here, every tensor) needs the GIL: deadlock. And it
# closes connections: those of a rank that is still making the group would be reset.
kept: set[dist.ProcessGroup] = set()
ended: set[dist.ProcessGroup] = set()  # groups of the first call: gloo itself would still serve them


def intercept_collectives() -> list[torch.library.Library]:
    """Give every operation of c10d a kernel that reports it and then runs it. Called once, before any fork."""
    return intercept(reporting)


def reporting(operation: Any, name: str, below: Any) -> Callable:
    """Make the reporting kernel of one operation."""
    arguments = [argument.name for argument in operation._schema.arguments]

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        reporter = Reporter.mine
        if reporter is None:
            return operation.redispatch(keys & below, *args, **kwargs)
        given = dict(zip(arguments, args)) | kwargs
        event = announce(reporter, name, given) if "process_group" in given else {}
        if "id" in event:
            message = depart(reporter, event, name, given)
            if reporter.host is not None:
                channel = f"{event['name']}/{event['tag']}"
                work = on_gpu.message(reporter.host, name, given["tensors"][0], event["peer"], channel).boxed()
            else:
                work = operation.redispatch(keys & below, **given)
            reporter.in_flight[dist.Work.unbox(work)] = message
            return work
        caller = sys._getframe(1).f_code.co_filename
        if event and (caller == c10d.__file__ or caller in reporter.units):  # not DDP's reducer, which waits in C++
            call = begin(reporter, event, name, given)
            answer = start(reporter, operation, keys & below, given)
            boxed = answer[-1] if isinstance(answer, tuple) else answer
            work = None if boxed is None else dist.Work.unbox(boxed)
            if work is not None:
                reporter.in_flight[work] = call
            elif reporter.on_gpu:  # the call is not asynchronous, so it is on the stream: nothing is waited for
                reporter.say(e="wait", **call.about)
                on_gpu.settle()
                finish(reporter, call)
                reporter.say(e="done", **call.about)
            return answer
        blocks = name in ("wait_tensor", "monitored_barrier_")
        if event:
            remember_result(reporter, event, given)
            if not blocks:
                return start(reporter, operation, keys & below, given)
        about = waited_for(reporter, given["tensor"]) if name == "wait_tensor" else {}
        if blocks:
            reporter.say(e="wait", **about)
        try:
            answer = operation.redispatch(keys & below, *args, **kwargs)
            if blocks and reporter.on_gpu:
                on_gpu.settle()
            return answer
        finally:
            if blocks:
                reporter.say(e="done", **about)

    return kernel


def start(reporter: Reporter, operation: Any, keys: Any, given: dict) -> Any:
    """Start a collective. In its first collective an NCCL group busy-waits for all its ranks."""
    if not reporter.on_gpu:
        return operation.redispatch(keys, **given)
    reporter.say(e="starts")
    try:
        return operation.redispatch(keys, **given)
    finally:
        reporter.say(e="started")


RESULTS = ("tensors", "output_tensor", "output_tensors", "outputs", "output")


def remember_result(reporter: Reporter, event: dict, given: dict) -> None:
    """Record the memory that will hold the result of a collective called from C++, such as a functional one."""
    found = next((given[name] for name in RESULTS if given.get(name) is not None), [])
    for tensor in found if isinstance(found, (list, tuple)) else [found]:
        if isinstance(tensor, torch.Tensor):
            reporter.results[tensor.untyped_storage().data_ptr()] = event["work"]


def waited_for(reporter: Reporter, tensor: torch.Tensor) -> dict:
    """The collective that a functional wait waits for."""
    work = reporter.results.pop(tensor.untyped_storage().data_ptr(), None)
    return {} if work is None else {"work": work}


def announce(reporter: Reporter, name: str, given: dict) -> dict:
    """Report a collective or message that is about to start; returns the event."""
    group = dist.ProcessGroup.unbox(given["process_group"])
    if group in ended:
        raise ValueError(f"process group {group.group_name} is not registered: it has been destroyed")
    kept.add(group)
    members = members_of(group)
    peer = given.get("dst", given.get("src"))
    if peer is not None and not 0 <= peer < len(members):  # gloo would wait for it forever
        raise ValueError(f"there is no rank {peer} in a group of {len(members)}: they count from 0")
    frames = reporter.frames()
    where, *callers = frames or [None]
    event = described(name, given, members) | dict(
        name=f"{reporter.lives}/{group.group_name}",
        group=sorted(members),
        where=where,
        callers=callers,
        ours=reporter.ours(frames),
    )
    if any(t.layout == torch.strided and not in_order(t) for t in tensors_in(given.values())):
        event["gaps"] = True  # NCCL refuses such a tensor
    if event["op"] == "all_to_all":
        event["pieces"] = pieces(tensors_sent(name, given), given.get("input_split_sizes"), len(members))
    if event["op"] in ("send", "recv"):
        event["id"] = reporter.messages
        reporter.messages += 1
    else:
        event["work"] = reporter.collectives
        reporter.collectives += 1
    reporter.say(e="op", **event)
    return event


def in_order(tensor: torch.Tensor) -> bool:
    """Whether a tensor is contiguous, or in channels_last, which NCCL takes, too (`check_gpu_single_tensor`)."""
    return tensor.is_contiguous(memory_format=private.memory_format(tensor))


def tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors in these arguments, including those in lists and in lists of lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def pieces(sent: list[torch.Tensor], sizes: list[int] | None, ranks: int) -> list[int]:
    """The bytes that an all-to-all sends to each rank of the group, itself included: of one tensor per rank, or of one
    tensor that is split along its first dimension.
    """
    if sizes is None:
        return [t.numel() * t.element_size() for t in sent]
    nbytes, rows = sent[0].numel() * sent[0].element_size(), len(sent[0])
    return [nbytes * max(size, 0) // max(rows, 1) for size in sizes] or [nbytes // ranks] * ranks
