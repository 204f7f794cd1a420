"""Parses what a rank reports. Malformed lines are rejected: the judge relies on their contents, and the sender may be
hostile.
"""

import json
import math
from collections.abc import Callable
from typing import Any

LONGEST = 200_000  # bytes of one event; the frames of an endless recursion take half of it
MOST = 1 << 48  # the largest allowed count
NOTHING = "None"  # how the result of a function that returns nothing is called
NEEDED = {
    "op": {"op", "name", "group", "shape", "dtype", "bytes", "detail", "where"},
    "crash": {"type", "text", "frames"},
    "broken": {"cell", "type", "text", "frames"},
    "joins": {"rank", "where"},
    "again": {"of", "where"},
    "strange": {"name", "returned", "promised", "where"},
    "touched": {"name", "argument", "change", "where"},
    "overwritten": {"name", "where"},
    "joined": {"rank", "world"},
    "future": {"work"},
    "product": {"size"},
    "deprecated": {"text", "where"},
    "opened": {"name", "reader", "times", "writes"},
    "read": {"bytes"},
    "unfit": {"text"},
}


def read(line: bytes, world: int) -> dict:
    """The event in a line; `world` is the number of ranks. Raises ValueError if the line is malformed."""
    if len(line) > LONGEST:
        raise ValueError(f"{len(line)} bytes in one event")
    try:
        event = json.loads(line.decode())  # in bytes, json would look for the encoding first
    except RecursionError:
        raise ValueError("too deep") from None
    if (
        not isinstance(event, dict)
        or not isinstance(event.get("e"), str)
        or not NEEDED.get(event["e"], set()) <= event.keys()
    ):
        raise ValueError("no event")
    if event["e"] == "changed" and not {"of", "work"} & event.keys():
        raise ValueError("no event")
    if event.get("op") in ("send", "recv") and not {"peer", "tag", "id"} <= event.keys():
        raise ValueError("no message")

    for name, value in event.items():
        told = event["e"] == "mark" and name not in ("e", "t", "where")  # a check's own notes, read like evidence
        if not (note if told else FIELDS.get(name, note))(value, world):
            raise ValueError(f"{name} is {str(value)[:40]!r}")
    return event


# Validators for the fields of an event in a run of `world` ranks


def note(value: Any, world: int) -> bool:
    """A value or a few; of a megabyte of brackets, the judge would make thirty."""
    parts = value if isinstance(value, list) else [value]
    return len(parts) <= 100 and not any(isinstance(part, (list, dict)) for part in parts)


def text(value: Any, world: int) -> bool:
    return isinstance(value, str)


def text_or_none(value: Any, world: int) -> bool:
    return value is None or isinstance(value, str)


def time(value: Any, world: int) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def count(value: Any, world: int) -> bool:
    return is_number(value)


def rank(value: Any, world: int) -> bool:
    return isinstance(value, int) and 0 <= value < world


def rank_or_none(value: Any, world: int) -> bool:
    return value is None or rank(value, world)


def ranks(value: Any, world: int) -> bool:
    return isinstance(value, list) and all(rank(part, world) for part in value)


def pieces(value: Any, world: int) -> bool:
    return sizes(value) and min(value, default=0) >= 0


def shape(value: Any, world: int) -> bool:
    return value is None or isinstance(value, list) and (all(map(is_number, value)) or all(map(sizes, value)))


def place(value: Any, world: int) -> bool:
    return value is None or line_of_code(value)


def places(value: Any, world: int) -> bool:
    return isinstance(value, list) and all(map(line_of_code, value))


def is_number(value: Any) -> bool:
    return isinstance(value, int) and -MOST < value < MOST


def sizes(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_number, value))


def line_of_code(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and isinstance(value[0], str)
        and is_number(value[1])
        and isinstance(value[2], str)
    )


FIELDS: dict[str, Callable[[Any, int], bool]] = (
    dict.fromkeys(
        ("e", "op", "name", "type", "text", "cell", "returned", "promised", "argument", "change", "called_as", "told"),
        text,
    )
    | dict.fromkeys(("dtype", "detail", "elsewhere"), text_or_none)
    | dict.fromkeys(("bytes", "id", "of", "work", "tag", "status", "rank", "world", "size", "reader", "times"), count)
    | dict.fromkeys(("peer", "source"), rank_or_none)
    | dict.fromkeys(("callers", "frames"), places)
    | {"t": time, "group": ranks, "pieces": pieces, "shape": shape, "where": place}
)
