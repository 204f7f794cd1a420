"""Reports which files a rank, and the processes that it starts, open in a folder; and how many bytes a call reads.

{"e": "opened", "name": "train-00001.bin", "reader": 0, "times": 2, "writes": false}
                                 the rank's process 0 (the first that opened a file) has opened the file so often, and
                                 whether for writing, too
{"e": "read", "bytes": 4096}     the most that a call can have read, of files that are read and of files that are mapped

A process that a rank has forked, such as a loader's worker, has no connection to the judge: it leaves a line in a file,
and the rank reports all lines together. What C++ opens on its own, as pyarrow does, no hook sees.
"""

import os
import resource
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from grader.engine.inside.observe import Reporter


class watch_reads:
    """From now on, notes each file below `folder` that this process, or one that it forks, opens."""

    def __init__(self, folder: Path) -> None:
        self.folder = os.path.realpath(folder)
        self.notes = Reporter.mine.own / "opened"
        self.into = os.open(self.notes, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        sys.addaudithook(self.audit)

    def audit(self, event: str, args: tuple) -> None:
        if self.into is None or event != "open" or not isinstance(args[0], (str, bytes)):
            return
        path = os.path.abspath(os.fsdecode(args[0]))
        if os.path.dirname(path) == self.folder:
            writes = int(isinstance(args[1], str) and not {*"wax+"}.isdisjoint(args[1]))
            # a short line is written whole
            os.write(self.into, f"{os.getpid()} {writes} {os.path.basename(path)}\n".encode())

    def report(self) -> None:
        """Tell the judge what was opened so far, and stop noting it."""
        os.close(self.into)
        self.into = None
        lines = [line.split(" ", 2) for line in self.notes.read_text().splitlines()]
        readers = list(dict.fromkeys(pid for pid, _, _ in lines))
        written = {(pid, name) for pid, writes, name in lines if writes == "1"}
        for (pid, name), times in Counter((pid, name) for pid, _, name in lines).items():
            Reporter.mine.say(
                e="opened", name=name, reader=readers.index(pid), times=times, writes=(pid, name) in written
            )


def bytes_read(call: Callable[[], Any]) -> Any:
    """What `call` returns. The judge is told how many bytes it can have read at most: of files that it reads, the bytes
    of all `read` calls; of files that it maps, by how much this process grew.
    """
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts anew
    before, grown = passed_by_read(), most_resident()
    result = call()
    read, grown = passed_by_read() - before, most_resident() - grown
    Reporter.mine.say(e="read", bytes=max(read, grown, 0))
    return result


def passed_by_read() -> int:
    """The bytes that `read` calls of this process have returned; 0 where the system does not say."""
    with suppress(OSError):
        return int(Path("/proc/self/io").read_text().split()[1])
    return 0


def most_resident() -> int:
    """The most bytes of memory that this process has had, mapped files included."""
    with suppress(OSError):
        status = Path("/proc/self/status").read_text().splitlines()
        found = [line.split()[1] for line in status if line.startswith("VmHWM")]
        if found:
            return int(found[0]) * 1024
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kibibytes if sys.platform == "darwin" else kibibytes * 1024
