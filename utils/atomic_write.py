"""A file that appears whole or not at all; and what to say where there is no room for it."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FULL = {
    errno.ENOSPC: "no space is left on the disk",
    errno.EDQUOT: "the quota is used up",
    errno.EFBIG: "the file is larger than is allowed here",
}


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A path to write to. At the end it becomes `path` in one step; after an exception it is gone.

    It is beside `path`, since a move from one file system to another is not atomic. The folder is made. A device or a
    pipe, such as /dev/null, is written to as it is: it is not ours to replace.
    """
    if path.is_char_device() or path.is_fifo():
        yield path
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    except OSError as problem:
        if problem.filename == str(part):
            problem.filename = str(path)  # the name that the reader of the error knows
        raise
    finally:
        with suppress(OSError):  # as in a folder that no process may write to
            part.unlink(missing_ok=True)


def write_whole(path: Path, text: str, errors: str = "strict") -> None:
    """Text into a file, in one step; `errors` is what to do about characters that UTF-8 has not, as in str.encode."""
    with written_whole(path) as part:
        part.write_text(text, "utf-8", errors)


def no_room(error: BaseException | None) -> str:
    """In words, if `error`, or what it comes from, is that the disk is full; else empty.

    torch.save reports a position in the file, and so does torch.distributed.checkpoint, which gathers what failed on
    each rank; the system's message is below, if it has come that far.
    """
    torch_says = "unexpected pos" in str(error)
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return FULL[error.errno]
        for failed, _ in getattr(error, "failures", {}).values():
            if words := no_room(failed):
                return words
        error = error.__cause__ or error.__context__
    return "a file could not be written to its end, as on a full disk" if torch_says else ""
