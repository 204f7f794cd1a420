"""What a rank may say. A line that is otherwise is no event: the judge reckons with what is in them, and whoever sent
it may want it to choke.
"""

import json
import math
from typing import Any

LONGEST = 200_000  # bytes of one event; the frames of an endless recursion take half of it
MOST = 1 << 48  # of whatever is counted
NEEDED = {
    "op": {"op", "name", "group", "shape", "dtype", "bytes", "detail", "where"},
    "crash": {"type", "text", "frames"},
    "broken": {"cell", "type", "text", "frames"},
    "joins": {"rank", "where"},
    "joined": {"rank", "world"},
    "future": {"work"},
}


def read(line: bytes, world: int) -> dict:
    """The event in a line; `world` is the number of ranks. Raises ValueError if it is none."""
    if len(line) > LONGEST:
        raise ValueError(f"{len(line)} bytes in one event")
    try:
        event = json.loads(line)
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

    def rank(value: Any) -> bool:
        return isinstance(value, int) and 0 <= value < world

    for name, value in event.items():
        if event["e"] == "mark" and name not in ("e", "t", "where"):
            continue  # a check's own notes, which it reads as it reads evidence
        right = (
            isinstance(value, str)
            if name in ("e", "op", "name", "type", "text", "cell")
            else (
                value is None or isinstance(value, str)
                if name in ("dtype", "detail")
                else (
                    isinstance(value, (int, float)) and math.isfinite(value)
                    if name == "t"
                    else (
                        number(value)
                        if name in ("bytes", "id", "of", "work", "tag", "status", "rank", "world")
                        else (
                            value is None or rank(value)
                            if name in ("peer", "source")
                            else (
                                isinstance(value, list) and all(map(rank, value))
                                if name == "group"
                                else (
                                    value is None
                                    or isinstance(value, list)
                                    and (all(map(number, value)) or all(map(sizes, value)))
                                    if name == "shape"
                                    else (
                                        value is None or line_of_code(value)
                                        if name == "where"
                                        else (
                                            isinstance(value, list) and all(map(line_of_code, value))
                                            if name in ("callers", "frames")
                                            else True
                                        )
                                    )
                                )
                            )
                        )
                    )
                )
            )
        )
        if not right:
            raise ValueError(f"{name} is {str(value)[:40]!r}")
    return event


def number(value: Any) -> bool:
    return isinstance(value, int) and -MOST < value < MOST


def sizes(value: Any) -> bool:
    return isinstance(value, list) and all(map(number, value))


def line_of_code(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and isinstance(value[0], str)
        and number(value[1])
        and isinstance(value[2], str)
    )
