"""Makes a stranger's files and texts safe to read and to show."""

import os
import re
import stat
import unicodedata
from pathlib import Path
from typing import Any

LONGEST = 2000  # letters of one string in a record
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # a terminal's colours


def plain_bytes(path: Path, limit: int, cut: bool = False) -> bytes:
    """The content of a file that a stranger may have put there: follows no link, never blocks, reads at most `limit`
    bytes.

    Raises OSError if it is not a plain file, or if it is longer, unless it may be `cut`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or (about.st_size > limit and not cut):
            raise OSError(f"{path.name}: no plain file of at most {limit} bytes")
        return file.read(limit)


def plain_text(said: str, most: int) -> str:
    """A stranger's text made safe to show: without characters that control a terminal or change the reading direction,
    and not too long.
    """
    shown = "".join(
        c for c in ESCAPES.sub("", said[: 4 * most]) if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs")
    )
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def cleaned(value: Any) -> Any:
    """The same value with every string in it made safe to show."""
    if isinstance(value, str):
        return plain_text(value, LONGEST)
    if isinstance(value, dict):
        return {cleaned(name): cleaned(part) for name, part in value.items()}
    return [cleaned(part) for part in value] if isinstance(value, list) else value
