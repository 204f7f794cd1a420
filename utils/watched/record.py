"""What one rank is doing: a small file in the run's folder, of a fixed size, written in place.

It is mapped into memory, so that a note takes microseconds and survives `kill -9`. Its parts are JSON padded with
blanks, except where stated:

    WHO      rank, world, process, host, start time
    STATE    three numbers: calls so far; whether the main thread is inside a wait; for which call, -1 if unknown
    BEAT     once a second: CPU seconds, the lines that are running, calls of each group so far
    GROUPS   the ranks of each group, by name
    GONE     how the rank ended, according to itself
    CALLS    the last collectives and messages, in turns
"""

import itertools
import json
import mmap
import os
import shutil
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.atomic_write import written_whole

FOLDER = "watch"  # in the run's
LAST = 64  # calls that are kept
STATE_FORMAT = struct.Struct("<qqq")
SIZES = {"who": 512, "state": 64, "beat": 8192, "groups": 16384, "gone": 2048}
CALL = 1024  # bytes
AT = {name: sum(list(SIZES.values())[:number]) for number, name in enumerate(SIZES)}
encoded = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode  # json.dumps makes one each time
CALLS_AT = sum(SIZES.values())
SIZE = CALLS_AT + LAST * CALL


class Record:
    """A rank's own file, created empty. Raises OSError if that fails."""

    def __init__(self, folder: Path, rank: int, world: int, **more: Any) -> None:
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        path = folder / FOLDER / f"rank-{rank}"
        with written_whole(path) as part:
            with part.open("w+b") as file:
                file.write(bytes(SIZE))  # reserves all of its space: writing to a map on a full disk would crash
                file.flush()
                self.map = mmap.mmap(file.fileno(), SIZE)
            self.put("who", {"rank": rank, "world": world, "pid": os.getpid(), "host": socket.gethostname(), **more})
            self.state(0, False)

    def put(self, name: str, value: Any) -> bool:
        """Write a part; returns False, without writing, if it is too long."""
        return self.write(AT[name], SIZES[name], value)

    def call(self, number: int, event: dict) -> None:
        """Write the rank's call `number`, from 0."""
        at = CALLS_AT + number % LAST * CALL
        if not self.write(at, CALL, {"n": number, **event}):
            self.write(at, CALL, {"n": number, **event, "callers": [], "shape": None})

    def state(self, calls: int, waiting: bool, of: int = -1) -> None:
        STATE_FORMAT.pack_into(self.map, AT["state"], calls, waiting, of)

    def write(self, at: int, size: int, value: Any) -> bool:
        text = encoded(value).encode()
        if len(text) > size:
            return False
        self.map[at : at + size] = text.ljust(size)
        return True


@dataclass
class Seen:
    """A rank as its file shows it. A part that was being written at this moment is missing: look again."""

    who: dict[str, Any]
    calls: list[dict[str, Any]]  # the last, in order
    count: int  # of calls so far
    waiting: bool
    of: int  # the number of the call that it waits for; -1: unknown
    beat: dict[str, Any]
    groups: dict[str, list[int]]
    gone: dict[str, Any]

    @property
    def rank(self) -> int:
        return self.who["rank"]


def read(folder: Path, since: float = 0.0) -> list[Seen]:
    """All ranks, in order, of the run in `folder` that began after `since` (seconds since 1970); [] while one is
    missing.
    """
    seen = {}
    for path in (folder / FOLDER).glob("rank-*"):
        if (one := read_one(path)) and one.who["created"] >= since:
            seen[one.rank] = one
    world = seen[0].who["world"] if 0 in seen else 0
    ranks = [seen[rank] for rank in range(world) if rank in seen and seen[rank].who["world"] == world]
    # A launcher that restarts all ranks counts how often; files of the same count belong together.
    return ranks if len({one.who.get("life") for one in ranks}) == 1 and len(ranks) == world else []


def read_one(path: Path) -> Seen | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if len(content) != SIZE:
        return None
    parts = {name: loaded(content[AT[name] : AT[name] + SIZES[name]]) for name in SIZES if name != "state"}
    if not parts["who"]:
        return None
    count, waiting, of = STATE_FORMAT.unpack_from(content, AT["state"])
    places = (CALLS_AT + number * CALL for number in range(LAST))
    calls = [call for at in places if (call := loaded(content[at : at + CALL])) and call["n"] < count]
    return Seen(calls=sorted(calls, key=lambda call: call["n"]), count=count, waiting=bool(waiting), of=of, **parts)


def loaded(part: bytes) -> dict:
    """The contents of a part; {} while it is empty or half written."""
    try:
        return json.loads(part.strip(b" \0"))
    except ValueError:
        return {}


def out_folder(args: list[str], default: str) -> Path:
    """The folder that a script writes to: its --out."""
    given = [after for flag, after in itertools.pairwise(args) if flag == "--out"]
    return Path([default, *given, *(arg.removeprefix("--out=") for arg in args if arg.startswith("--out="))][-1])


def forget(folder: Path) -> None:
    """Remove the records of a run that left nothing else, with the folders that were made for them in runs/."""
    if folder.is_dir() and [path.name for path in folder.iterdir()] == [FOLDER]:
        shutil.rmtree(folder)
        for parent in folder.parents:
            if "runs" in (parent.name, parent.parent.name) and not any(parent.iterdir()):
                parent.rmdir()


def note_ends(folder: Path, ends: dict[int, str]) -> None:
    """Store a launcher's report on ranks that have ended: rank -> how, such as "SIGKILL" or "exit code 1"."""
    if not (folder / FOLDER).is_dir():
        return  # the run is not watched
    text = json.dumps({str(rank): how for rank, how in ends.items()})
    (folder / FOLDER / f"ended-{socket.gethostname()}-{os.getpid()}.json").write_text(text, "utf-8")


def read_ends(folder: Path, since: float = 0.0) -> dict[int, str]:
    """What launchers reported about ranks that have ended, if that was after `since`."""
    ends: dict[int, str] = {}
    for path in (folder / FOLDER).glob("ended-*.json"):
        if path.stat().st_mtime >= since:
            ends |= {int(rank): how for rank, how in loaded(path.read_bytes()).items()}
    return ends
