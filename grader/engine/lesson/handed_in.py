"""Which files of a submission are taken: the student's own files of some lessons, by their names.

They lie at the top of what is handed in, or inside folders that packing added. What else there is, is ignored. Names in
a submission never decide where anything is written.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

MOST_FILE = 5_000_000  # bytes; a notebook full of pictures has one or two megabytes
MOST_REASONS, LONGEST_REASON = 30, 300  # lines that are kept about why something was not taken, and their letters


class Entry(NamedTuple):
    """What a folder or an archive holds under a name."""

    name: str
    kind: str  # "file", "folder", "link", or "device" for all else
    read: Callable[[int], bytes]  # its first bytes, so many at most


@dataclass
class Taken:
    """The files of a submission, by path in the course, and what was not taken and why."""

    files: dict[str, bytes] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    @property
    def digest(self) -> str:
        digest = hashlib.sha256()
        for name in sorted(self.files):
            digest.update(name.encode() + b"\0" + hashlib.sha256(self.files[name]).digest())
        return digest.hexdigest()

    def refuse(self, name: str, why: str) -> None:
        if len(self.refused) < MOST_REASONS:
            self.refused.append(f"{name[:LONGEST_REASON]}: {why}")
        elif len(self.refused) == MOST_REASONS:
            self.refused.append("and more")


def take(entries: Iterable[Entry], wanted: Collection[str]) -> Taken:
    """The wanted files among these; of two with one name, the one nearer to the top."""
    taken, depth = Taken(), {}
    for entry in entries:
        inside = PurePosixPath(entry.name.replace("\\", "/"))
        own = str(PurePosixPath(*inside.parts[-2:]))
        if inside.is_absolute() or ".." in inside.parts or (inside.parts and ":" in inside.parts[0]):
            taken.refuse(entry.name, "leads out of the submission")
        elif entry.kind in ("link", "device"):
            taken.refuse(entry.name, f"a {entry.kind}" + " or the like" * (entry.kind == "device"))
        elif entry.kind == "file" and own in wanted:
            if depth.get(own, len(inside.parts) + 1) <= len(inside.parts):
                taken.refuse(entry.name, f"there is a second {own} nearer to the top")
            elif len(content := entry.read(MOST_FILE + 1)) > MOST_FILE:
                taken.refuse(entry.name, f"longer than {MOST_FILE // 1_000_000} MB")
            else:
                depth[own], taken.files[own] = len(inside.parts), content
    return taken
