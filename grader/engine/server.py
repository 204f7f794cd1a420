"""The fork-server: a process with torch loaded that forks a fresh process for each rank.

Starting Python and torch takes two seconds; forking a process that has both
takes a hundredth of one. The server runs no tensor operation and starts no
thread, because a fork after either may hang. What a rank does to its process
dies with it.

The judge speaks to it in JSON lines over one socket:

    judge   {"folder": F, "world": N, "module": M}   fork N ranks for the job in F
    server  {"pids": [...]}
    server  {"gone": pid, "status": wait status}     once for each rank
    judge   {"sweep": true}                          kill the ranks and whatever they have left behind
    server  {"swept": true}

Ranks that were killed and have left nothing are not waited for: they run no
more, and may take their time to end while the next ones start.
"""

import ctypes
import gc
import importlib
import json
import os
import pkgutil
import random
import select
import signal
import socket
import sys

import numpy
import psutil
import safetensors.torch  # noqa: F401  what every rank needs is loaded here, once
import torch
import torch._dynamo  # the first operation that is observed would load it, for over a second
import torch.distributed
import torch.distributed.algorithms._checkpoint.checkpoint_wrapper
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.nn.parallel
import torch.utils.data.distributed

import utils
from grader.engine import observe, rank

for part in pkgutil.iter_modules(utils.__path__, "utils."):  # what the students' code imports
    importlib.import_module(part.name)


PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
MADV_COLLAPSE = 25  # linux/mman.h, from Linux 6.1


def serve(judge: socket.socket) -> None:
    """Answer the judge until it hangs up. Reaps every rank; leaves none behind."""
    torch.set_num_threads(1)  # inherited by the ranks; takes no thread by itself
    # Inherited as well, and nothing is drawn here: two runs of the same code agree. (`torch.manual_seed` would also
    # prepare for GPUs, in 5 ms on each rank.)
    torch.default_generator.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the judge decides when to stop

    kernels = observe.stand_before_collectives()  # noqa: F841  held until this process ends

    if sys.platform == "linux":  # what a rank leaves behind becomes a child of this process, however it hides
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)

    living: set[int] = set()
    try:
        judge.sendall(b'{"ready": true}\n')
        listen(judge, (wake_read, wake_write), living)
    except (BrokenPipeError, ConnectionResetError):  # the judge is gone
        pass
    finally:
        sweep()


def listen(judge: socket.socket, wake: tuple[int, int], living: set[int]) -> None:
    """Fork, reap and sweep as the judge asks and SIGCHLD wakes, until the judge hangs up."""
    lines = judge.makefile("r")
    tidy = False
    while True:
        ready, _, _ = select.select([judge, wake[0]], [], [], None if living or tidy else 0.5)
        if not ready:
            join_pages()
            tidy = True
        if wake[0] in ready:
            os.read(wake[0], 4096)
            reap(judge, living, os.WNOHANG)
        if judge in ready:
            line = lines.readline()
            if not line:
                return
            job = json.loads(line)
            if "sweep" in job:
                for pid in living:
                    os.kill(pid, signal.SIGKILL)
                if any(process.pid not in living for process in psutil.Process().children(recursive=True)):
                    reap(judge, living)
                    sweep()
                judge.sendall(b'{"swept": true}\n')
                continue
            tidy = False
            checks = importlib.import_module(job["module"])  # loaded before the fork, so loaded once
            if package := getattr(checks, "PACKAGE", ""):  # the same, and only where such a lesson is asked for
                importlib.import_module(package)
            rank.compile_units(job["folder"])  # compiled before the fork, so compiled once
            gc.freeze()  # the collector would touch, and so copy, every page that the ranks share with this process
            pids = [fork(job, number, (judge, *wake)) for number in range(job["world"])]
            living.update(pids)
            judge.sendall(json.dumps({"pids": pids}).encode() + b"\n")


def reap(judge: socket.socket, living: set[int], how: int = 0) -> None:
    """Tell the judge of each rank that is gone."""
    for pid in list(living):
        done, status = os.waitpid(pid, how)
        if done:
            living.discard(pid)
            judge.sendall(json.dumps({"gone": pid, "status": status}).encode() + b"\n")


def sweep() -> None:
    """Kill all that descends from this process."""
    while left := psutil.Process().children(recursive=True):
        for process in left:
            try:
                process.kill()
                process.wait()
            except psutil.NoSuchProcess:
                pass


def join_pages() -> None:
    """When idle on Linux: put this process's memory into huge pages. A fork, which copies the table of pages, then
    takes 1.5 ms in place of 8, and so does the end of a rank; but joining them takes most of a second."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    with open("/proc/self/maps") as maps:
        private = [line.split() for line in maps]
    for span, rights, _, _, _, *name in private:
        if rights.startswith("rw") and (not name or name == ["[heap]"]):
            start, stop = (int(address, 16) for address in span.split("-"))
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), MADV_COLLAPSE)  # a wish: it may be refused


def fork(job: dict, number: int, inherited: tuple) -> int:
    """Fork rank `number` of `job`, in a session of its own so that its group can be killed."""
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        os.setsid()
        die_with_the_server()
        signal.set_wakeup_fd(-1)
        for number_or_socket in inherited:  # a rank must not be able to speak as the server
            os.close(number_or_socket if isinstance(number_or_socket, int) else number_or_socket.detach())
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        rank.main(job["folder"], number)
        status = 0
    finally:
        os._exit(status)


def die_with_the_server() -> None:
    """On Linux the kernel ends a rank whose server is gone, however it went, and whatever the rank is doing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:  # it went before the line above
        os._exit(70)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
