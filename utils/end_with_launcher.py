"""A process that ends when its launcher is gone, even by `kill -9`, which nothing can catch."""

import ctypes
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

STARTER = "WORKBOOK_STARTER"  # the launcher's process number, as `./workbook run` and utils/bin/torchrun pass it on
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>: the signal that the kernel sends when the parent ends
POLL = 1.0  # seconds, where the kernel sends none


@functools.cache  # once a process: main may run again, in a sandbox that does not show who the parent is
def end_with_starter() -> None:
    """Let this process be killed when its launcher ends, or kill it now if that is too late.

    torchrun and `./workbook run` are launchers. Without one nothing happens: what a shell has started with `&` or
    nohup outlives the shell, as always. DataLoader's workers look after themselves.
    """
    told = os.environ.pop(STARTER, "")  # popped: it is not the starter of what this process starts
    if not told and "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    starter = int(told or os.getppid())
    if not told and _is_adopted():
        _end()
    if sys.platform == "linux" and os.getppid() == starter:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != starter:  # it ended just before, and the kernel will say nothing
            _end()
    else:
        threading.Thread(target=_watch, args=(starter,), daemon=True).start()


def with_starter() -> Callable[[], None] | None:
    """For Popen's `preexec_fn`: the process ends with the thread that starts it from its first moment. By
    `end_with_starter` alone it would import torch to the end before. None where the kernel has no such signal.
    """
    if sys.platform != "linux":
        return None
    starter, prctl = os.getpid(), ctypes.CDLL(None).prctl  # looked up here: little is safe after a fork

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != starter:
            os._exit(1)

    return ask


def _is_adopted() -> bool:
    """Whether torchrun, which has not said its number, ended before this process could ask for its parent's.

    torchrun makes each of its processes the leader of a session, and has loaded torch. A leader whose parent has not,
    or does not let us look, has been adopted, by init or by a service manager. Without a /proc, the answer is no.
    """
    if os.getsid(0) != os.getpid():
        return False  # something is between torchrun and this process
    try:
        return "libtorch" not in Path(f"/proc/{os.getppid()}/maps").read_text()
    except PermissionError:
        return True
    except OSError:
        return False


def _watch(starter: int) -> None:
    while not _is_gone(starter):
        time.sleep(POLL)
    _end()


def _is_gone(process: int) -> bool:
    """Also where it has ended, and its own parent has not asked for its exit code yet."""
    try:
        os.kill(process, 0)  # asks only whether it is there
    except ProcessLookupError:
        return True
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
