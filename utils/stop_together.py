"""All ranks of a job end when one has to: with one line, and exit code 2.

Without it, a rank whose peer is gone would wait, or end with a traceback on a lost connection.
"""

import os
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import NoReturn

import torch.distributed as dist

from utils import private

LISTEN = 0.2  # seconds from one look at the others to the next
PARTING = timedelta(seconds=60)  # the longest that a rank waits until all know that the job is over; most take none


class Parting:
    """While it is entered, this rank ends when another calls `end_all`.

    The process group may be made, and left, while this is entered.
    """

    def __enter__(self) -> "Parting":
        self.over = threading.Event()
        self.listener = threading.Thread(target=self.listen, daemon=True)
        self.listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self.listener.join()

    def listen(self) -> None:
        """The store notifies no process, so it is asked, now and then."""
        line = None
        while not self.over.wait(LISTEN):
            line = line or open_line()
            try:
                ended = line is not None and line.check(["end"])
            except RuntimeError:  # the process that held the store is gone
                return
            if ended:
                leave(line)


def end_all(message: str) -> NoReturn:
    """The first rank that comes says why, on stderr; then all ranks end."""
    line = open_line()
    if line is None or line.add("told", 1) == 1:
        print(f"error: {message}", file=sys.stderr, flush=True)
    if line is None:
        raise SystemExit(2)
    line.set("end", "")
    leave(line)


def open_line() -> dist.Store | None:
    """What all ranks can write to and read from; each call opens a new one. None without a group of several."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return dist.PrefixStore("parting", private.default_store().clone())


def leave(line: dist.Store) -> NoReturn:
    """End this process when every rank knows: earlier, the others would complain of a lost connection. Rank 0, which
    as a rule holds what they all write to, is the last to go.
    """
    rank, others = dist.get_rank(), range(1, dist.get_world_size())
    with suppress(RuntimeError):
        line.set(f"{rank} knows", "")
        line.wait([f"{other} knows" for other in (0, *others)], PARTING)
        if rank == 0:
            line.wait([f"{other} goes" for other in others], PARTING)
        else:
            line.set(f"{rank} goes", "")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(2)  # the main thread may wait for a rank that is gone
