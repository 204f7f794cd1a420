"""The folder of a run has one run at a time, and says which: `run.json`.

The process that writes into it holds a lock on the file `.lock`. The system lets go of a lock when its process ends, in
whatever way, so that a killed run leaves none behind. The lock is POSIX's (fcntl), which NFS, GPFS, BeeGFS and Lustre
(mounted with `flock`) keep between nodes, too; and it is not inherited by processes that load data. It also goes when
its process closes the file, however often it has opened it: so `.lock` is for the lock alone, and never read.
"""

import errno
import fcntl
import json
import os
import shlex
import socket
import sys
import time
import uuid
from pathlib import Path
from typing import Any, TextIO

from utils.distributed import is_rank0
from utils.atomic_write import written_whole

NAME = "run.json"


class Taken(Exception):
    """Another run writes into the folder; its message says which."""


def take(folder: Path) -> TextIO:
    """Make `folder` this process's run, until the file that is returned is closed.

    Raises:
        Taken: another process has it.
        OSError: it cannot be made, or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / ".lock").open("a")
    if not locked(lock):
        lock.close()
        raise Taken(who_has(folder))
    mine = {
        "run": uuid.uuid4().hex,
        "host": socket.gethostname(),
        "process": os.getpid(),
        "job": os.environ.get("SLURM_JOB_ID") or os.environ.get("PBS_JOBID", ""),
        "began": time.time(),
        "command": shlex.join(sys.argv),
    }
    with written_whole(folder / NAME) as part:
        part.write_text(json.dumps(mine) + "\n", "utf-8")
    return lock


def locked(file: TextIO) -> bool:
    """Lock an open file; False if another process has. Where the file system has no locks, a line says so."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in (errno.EACCES, errno.EAGAIN):
            return False
        if is_rank0():
            print(
                f"{Path(file.name).parent}: this file system has no locks ({problem.strerror}), so nothing stops a"
                " second run from writing here, too",
                file=sys.stderr,
            )
    return True


def identity(folder: Path) -> dict[str, Any]:
    """What the run in `folder` says about itself; empty if it says nothing."""
    try:
        found = json.loads((folder / NAME).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def who_has(folder: Path) -> str:
    run = identity(folder)
    if not run:
        return "another process"
    job = f", job {run['job']}," if run.get("job") else ""
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(run["began"]))
    return f"process {run['process']} on {run['host']}{job} since {began}"
