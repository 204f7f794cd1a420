"""The fork-server: a process with torch loaded that forks a fresh process for each rank.

Starting Python and torch takes two seconds; forking a process that has both
takes a hundredth of a second. The server runs no tensor operation and starts no
thread, because a fork after either may hang. What a rank does to its process
ends with it.

The judge talks to it in JSON lines over one socket:

    judge   {"folder": F, "world": N, "units": …}    fork N ranks for this job (see rank.py); with the text come
                                                     N descriptors, each a rank's own connection to the judge
    server  {"pids": [...]}
    server  {"gone": pid, "status": wait status}     once for each rank
    judge   {"sweep": true}                          kill the ranks and everything they left running
    server  {"swept": true}
    judge   {"enter": P, "walls": W, "gpus": false, "lesson": L, "packages": [...]}
                                                     fork a server like this one that lives in the sandbox whose first
                                                     process is P (see sandbox.py), with GPUs or without, for a lesson
                                                     that needs these packages; with the text comes its connection
    server  {"entered": pid}

Killed ranks that left nothing running are not waited for: they no longer run,
and may finish exiting while the next ones start.
"""

import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import sys
import traceback
import types
from collections.abc import Callable, Collection
from pathlib import Path

gc.disable()  # while all below is loaded: none of it is garbage, and looking takes a fifth of the time

import numpy
import numpy.ctypeslib  # safetensors would load it, on each rank
import safetensors.torch  # noqa: F401  what every rank needs is loaded here, once
import torch
import torch.distributed
import torch.distributed.algorithms.ddp_comm_hooks
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel
import torch.nn.parallel
import torch.utils.data.distributed
import torch.utils.serialization.config

from grader.engine.inside import observe, rank
from grader.engine.lesson import lessons
from grader.engine.ranks import kept_server
from grader.engine.ranks.linux_processes import die_with_the_parent, processes_below
from grader.engine.walls import enter_sandbox as walls
from utils import devices, private, releases

gc.enable()


ShutIn = Callable[[list[str], int], None]  # what a rank does to itself: the places that are left to it, its number
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
MADV_COLLAPSE = 25  # linux/mman.h, from Linux 6.1
JOIN_AFTER = 50  # ranks: by then, forks have cost as much more as joining pages costs
SANDBOX = 25  # ranks, about, that are forked in a sandbox


def serve(judge: socket.socket, address: str | None = None) -> None:
    """Serve the judge until it hangs up. Reaps every rank; leaves none running.

    With an `address`, be a kept server: a child serves this judge, and further children those who call there.
    """
    devices.hide()  # a GPU in use does not survive a fork; a rank that needs one names it again
    private.load_early()
    releases.installed()  # kept: it is read from the disk
    rank.load_plain_library()
    torch.set_num_threads(1)  # inherited by the ranks; starts no thread itself
    # Also inherited, and nothing is drawn here: two runs of the same code agree. (`torch.manual_seed` would also
    # prepare for GPUs, which takes 5 ms on each rank.)
    torch.default_generator.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the judge decides when to stop
    note_no_stacks()
    kernels = observe.intercept_collectives()  # noqa: F841  held until this process ends
    importlib.import_module("grader.kit")  # and with it everything that a check needs
    private.forget_rules()
    if address:
        does = {kept_server.ATTEND: attend, kept_server.RUN: run_command}
        kept_server.keep(judge, Path(address), does, join_pages)
    else:
        attend(judge)


def fork_from_command(end: socket.socket, judges: socket.socket, environment: dict[str, str], many: bool) -> int:
    """Fork a server from the command that needs it, so that torch is loaded once for both and is in memory once.
    `judges` is the command's end of the connection. `many`: the server is going to fork many ranks. Returns its process
    id.
    """
    if many:
        join_pages()
    sys.stdout.flush()  # or the server would print it again
    sys.stderr.flush()
    if pid := os.fork():
        torch.set_num_threads(os.cpu_count() or 1)
        return pid
    status = 70
    try:
        os.setsid()
        judges.close()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.chdir(lessons.COURSE)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv[:] = [__file__]
        serve(end)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def note_no_stacks() -> None:
    """Keep torch from noting stacks for its own messages: that takes 2 % of the ranks' time."""
    for module in private.noting_stacks():
        module.traceback = types.SimpleNamespace(**vars(traceback) | {"format_stack": list, "extract_stack": list})


def run_command(connection: socket.socket) -> None:
    """Run a command that was handed over: it judges, so nothing of the library is withheld from it."""
    rank.forget_answers()
    torch.set_num_threads(os.cpu_count() or 1)
    cli = importlib.import_module("grader.engine.commands.cli")  # imported by name: it is above this room
    kept_server.take_over(connection, cli.main)


def attend(judge: socket.socket, shut_in: ShutIn | None = None) -> None:
    """The main loop of a server that is ready. In a sandbox its ranks are `shut_in`."""
    wake = os.pipe()
    os.set_blocking(wake[1], False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake[1])
    if sys.platform == "linux":  # whatever a rank leaves running becomes a child of this process, however it hides
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)

    try:
        judge.sendall(b'{"ready": true}\n')
        listen(judge, wake, shut_in)
    except (BrokenPipeError, ConnectionResetError):  # the judge is gone
        pass
    finally:
        sweep()


def listen(judge: socket.socket, wake: tuple[int, int], shut_in: ShutIn | None) -> None:
    """Fork, reap and sweep on the judge's requests and on SIGCHLD, until the judge hangs up."""
    # Not twice, nor in a sandbox: what is in huge pages already is shared, and would be copied.
    joins = shut_in is None and not joined
    living: set[int] = set()  # ranks
    inside: set[int] = set()  # servers in sandboxes
    forked = 1  # ranks since pages were joined; the start counts as one
    while True:
        idle = kept_server.IDLE if joins and forked and not living else None
        ready, _, _ = select.select([judge, wake[0]], [], [], idle)
        if not ready:
            join_pages()
            forked = 0
        if wake[0] in ready:
            os.read(wake[0], 4096)
            reap(judge, living, os.WNOHANG)
            inside -= {pid for pid in inside if os.waitpid(pid, os.WNOHANG)[0]}
        if judge in ready:
            job, ends = hear(judge)
            if job is None:
                return
            if "sweep" in job:
                for pid in living:
                    os.kill(pid, signal.SIGKILL)
                if any(process.pid not in living for process in processes_below({os.getpid(), *living}, inside)):
                    reap(judge, living)
                    sweep(inside)
                judge.sendall(b'{"swept": true}\n')
                continue
            if joins and forked >= JOIN_AFTER:  # between two runs, so that no rank's end is reported late
                join_pages()
                forked = 0
            if "enter" in job:
                for package in job["packages"]:
                    importlib.import_module(package)
                inside.add(pid := fork_inside(job, ends[0], (judge.fileno(), *wake)))
                forked += SANDBOX
                os.close(ends[0])
                judge.sendall(json.dumps({"entered": pid}).encode() + b"\n")
                continue
            load_checks(job)
            rank.compile_units(job)  # before the fork, so once for all ranks
            gc.freeze()  # the garbage collector would write to, and so copy, every page shared with this process
            pids = [fork(job, number, ends, (judge.fileno(), *wake), shut_in) for number in range(job["world"])]
            for end in ends:
                os.close(end)
            living.update(pids)
            forked += len(pids)
            judge.sendall(json.dumps({"pids": pids}).encode() + b"\n")


def load_checks(job: dict) -> None:
    """Load what a job's ranks need in addition to the student's code: before the fork, so only once."""
    rank.load_library(job["lesson"])
    if job["package"]:
        importlib.import_module(job["package"])
    module = (job["function"] or "").partition(":")[0]
    # A check's own reference is loaded by its rank, which runs none of the student's code; in this process it would
    # stay.
    if module and (job["units"] or not module.startswith("grader.lessons.")):
        importlib.import_module(module)


def hear(judge: socket.socket) -> tuple[dict | None, list[int]]:
    """The judge's next message and the descriptors that came with it; None if it has hung up."""
    text, ends = b"", []
    while not text.endswith(b"\n"):  # it waits for an answer before it sends more
        part, came, _, _ = socket.recv_fds(judge, 1 << 20, 64)
        if not part:
            return None, []
        text, ends = text + part, ends + came
    return json.loads(text), ends


def reap(judge: socket.socket, living: set[int], how: int = 0) -> None:
    """Report each rank that is gone to the judge."""
    for pid in list(living):
        done, status = os.waitpid(pid, how)
        if done:
            living.discard(pid)
            judge.sendall(json.dumps({"gone": pid, "status": status}).encode() + b"\n")


def sweep(inside: Collection[int] = ()) -> None:
    """Kill all descendants of this process, except servers in sandboxes and their descendants."""
    while left := processes_below({os.getpid()}, inside):
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        for process in left:
            with contextlib.suppress(ChildProcessError):  # a child of one of them, so soon a child of this process
                os.waitpid(process.pid, 0)


joined = False  # whether the memory of this process was moved into huge pages, by itself or by one that forked it


def join_pages() -> None:
    """On Linux, when idle or before many ranks: move this process's memory into huge pages. A fork, which copies the
    page table, and a rank's exit then take a third less CPU; but moving takes as much as 25 ranks save.
    """
    global joined
    joined = True
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    with open("/proc/self/maps") as maps:
        private = [line.split() for line in maps]
    for span, rights, _, _, _, *name in private:
        if rights.startswith("rw") and (not name or name == ["[heap]"]):
            start, stop = (int(address, 16) for address in span.split("-"))
            # Optional: it may be refused.
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), MADV_COLLAPSE)


def fork_inside(job: dict, end: int, inherited: tuple[int, ...]) -> int:
    """Fork a server for the sandbox whose first process is `job["enter"]`; its judge has the other side of `end`."""
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        signal.set_wakeup_fd(-1)
        for other in inherited:
            os.close(other)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        # Loaded here: in the release inside, earlier lessons' modules may be sealed, and checks are not there.
        rank.load_library(job["lesson"])
        rank.load_lesson(job["lesson"])
        walls.enter(job["enter"], job["gpus"])
        die_with_the_parent()
        shut_in = functools.partial(walls.shut_in, walls=job["walls"], gpus=job["gpus"])
        walls.try_out(shut_in)
        attend(socket.socket(fileno=end), shut_in)
        status = 0
    finally:
        os._exit(status)


def fork(job: dict, number: int, ends: list[int], inherited: tuple[int, ...], shut_in: ShutIn | None) -> int:
    """Fork rank `number` of `job`, in its own session, so that its group can be killed."""
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        os.setsid()
        use_batch_scheduling()
        signal.set_wakeup_fd(-1)
        for other in {*inherited, *ends} - {ends[number]}:  # it cannot send messages as the server or as another rank
            os.close(other)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if shut_in:
            shut_in(rank.places(job, number), number)
        die_with_the_parent()  # not earlier: the kernel forgets it for a process that becomes another user's
        rank.main(job, number, socket.socket(fileno=ends[number]))
        status = 0
    finally:
        os._exit(status)


def use_batch_scheduling() -> None:
    """On Linux, let a woken thread of this process wait until a processor is free; it preempts no other thread.

    Otherwise gloo's receiving thread, woken by a message, preempts the sending thread, which holds a lock, and then
    spins on that lock. With four ranks on two processors a check took 3.1 s, not 2.0.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # optional: a container may refuse it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), *sys.argv[2:])
    os._exit(0)  # nothing is left, and Python would take nearly a second to take torch apart
