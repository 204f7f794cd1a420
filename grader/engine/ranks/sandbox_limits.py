"""The limits on what a submission in a sandbox may use, as added up by the judge."""

import re
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from grader.engine.ranks.server_connection import Connection
from grader.engine.ranks.diagnose import Fault
from grader.engine.ranks.linux_processes import Process
from grader.engine.walls import sandbox
from grader.engine.walls.sanitize import plain_bytes

LONGEST_ADDRESS = 256  # bytes of a value in the store: gloo's, of 8 ranks, have 226


def beyond(server: Connection) -> Fault | None:
    """The fault of a submission that uses more than its limits, or has stopped a process by SIGSTOP."""
    processes, memory = server.inside(), server.sandbox.memory
    for what, seen, most, unit in (
        ("memory", resident(processes, memory) / sandbox.GIB, memory / sandbox.GIB, " GiB"),
        ("processes", len(processes), sandbox.TOTAL_PROCESSES, ""),
        ("threads", sum(process.threads for process in processes), sandbox.TOTAL_THREADS, ""),
        ("sockets", server.sandbox.sockets(), sandbox.TOTAL_SOCKETS, ""),
        ("time", max(time.monotonic() - server.until, 0), 0, " s beyond its share"),
    ):
        if seen > most:
            text = f"the ranks take more {what} than a submission is given: {seen:.5g}{unit}, where {most:g} is allowed"
            return Fault("crash", text, None, expected=f"at most {most:g}{unit}", seen=f"{seen:.5g}{unit}")
    if any(process.stopped for process in processes):
        text = "a process was stopped by a signal, and nothing will resume it"
        return Fault("crash", text, None, expected="every rank ends normally", seen="a process that is stopped")
    return None


def resident(processes: list[Process], most: int) -> int:
    """The bytes of memory that these processes hold together. What forked ones share counts for each; so if that is
    more than `most`, each page is divided by the number of its users, which takes longer and may not be permitted.
    """

    def share(process: Process) -> int:
        try:
            return psutil.Process(process.pid).memory_full_info().pss
        except psutil.NoSuchProcess:
            return 0
        except psutil.AccessDenied:
            return process.resident

    total = sum(process.resident for process in processes)
    return total if total <= most else sum(map(share, processes))


# The keys in the store by which ranks meet: torch's own, those of gloo's groups, and `from_rank_0` of utils/.
KEYS = re.compile(
    rb"refcount/|cleanup/"
    rb"|/\d+/default_pg/\d+//(\w+//)?cpu//\d/\d"
    rb"|/\d+/default_pg/\d+//from rank 0/(calls of|text) \d+"
)


def posted(store: Path) -> str:
    """What ranks have left in their store though it is no meeting, in words; "" if nothing. What one writes there,
    another one can read.
    """
    try:
        left = plain_bytes(store, sandbox.MOST_STORE)
    except OSError:
        return f"a store of more than {sandbox.MOST_STORE:,} bytes, or none"
    own = [
        f"{key[:60]!r} of {len(value):,} bytes"
        for key, value in entries(left)
        if len(value) > LONGEST_ADDRESS or not KEYS.fullmatch(key)
    ]
    return f"{', '.join(own[:3])}{f' and {len(own) - 3} more' if len(own) > 3 else ''}"


def entries(store: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values in a file of torch's FileStore: before each is its length, in four bytes."""
    parts, at = [], 0
    while at < len(store):
        end = at + 4 + int.from_bytes(store[at : at + 4], sys.byteorder)
        parts.append(store[at + 4 : end])
        at = end
    yield from zip(parts[::2], [*parts[1::2], b""], strict=False)


def crowded_out(server: Connection, ranks: Collection[int | None], seconds: float) -> Fault | None:
    """The fault of ranks, of these process ids, that went without processors for so many seconds because processes that
    they left running took them.
    """
    used = 0.0
    for process in server.inside():
        with suppress(psutil.Error):
            used += sum(psutil.Process(process.pid).cpu_times()[:2]) if process.pid not in ranks else 0.0
    if used < seconds / 2:
        return None
    text = f"for {seconds:.0f} s the ranks hardly run: processes that they left running take the processors"
    return Fault("hang", text, None, expected="the code ends", seen=f"{used:.0f} s of CPU by other processes")
