"""What the profiler saw, on all ranks: one trace of all, and which operations a step calls, how often and for how long.

`--record` leaves usage/trace-R.json.gz for each rank R, three steps in Chrome's trace event format ("Trace Event
Format", Google). Here these become one file, usage/trace.json.gz, in which a rank is a process: its pid is the rank.
"""

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from utils.atomic_write import written_whole

Event = dict[str, Any]
Traces = dict[int, dict[str, Any]]  # rank -> its trace
MOST = 16  # ranks that are read: each has some megabytes
MESSAGES = ("gloo:", "nccl")  # how the names of communication begin
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")  # categories
LAST_PART = "optimizer"  # the range that ends a step, see recorder.py
SHOWN = 10


class Operation(NamedTuple):
    """One operation of a rank's steps."""

    name: str
    calls: float  # in a step
    seconds: float  # in a step, without the operations that it calls


def read(folder: Path) -> Traces:
    """The traces of a run's first MOST ranks; a rank whose file is missing or cut off is left out."""
    found = {}
    for rank in range(MOST):
        try:
            with gzip.open(folder / "usage" / f"trace-{rank}.json.gz", "rt", encoding="utf-8") as file:
                found[rank] = json.load(file)
        except (OSError, EOFError, ValueError):
            continue
    return found


def merge(folder: Path, traces: Traces) -> Path:
    """Write folder/usage/trace.json.gz, with all these ranks on one axis of time, and return its path.

    Ranks of different nodes are as well aligned as the clocks of their nodes.
    """
    first = min(trace.get("baseTimeNanoseconds", 0) for trace in traces.values())
    events: list[Event] = []
    for rank, trace in traces.items():
        about = {"process_name": {"name": f"rank {rank}"}, "process_sort_index": {"sort_index": rank}}
        events += [{"ph": "M", "name": name, "pid": rank, "tid": 0, "args": args} for name, args in about.items()]
        later = (trace.get("baseTimeNanoseconds", 0) - first) / 1000  # a trace counts microseconds from its own base
        events += [of_rank(event, rank, later) for event in trace["traceEvents"] if event["name"] not in about]
    path = folder / "usage" / "trace.json.gz"
    content = {"displayTimeUnit": "ms", "baseTimeNanoseconds": first, "traceEvents": events}
    with written_whole(path) as part:
        part.write_bytes(gzip.compress(json.dumps(content).encode(), compresslevel=5, mtime=0))
    return path


def of_rank(event: Event, rank: int, later: float) -> Event:
    """The event in the trace of all ranks. Arrows are joined by their id, which must not meet another rank's."""
    changed = event | {"pid": rank}
    if "ts" in event:
        changed["ts"] = event["ts"] + later
    if "id" in event:
        changed["id"] = f"{rank}.{event['id']}"
    return changed


def most_expensive(traces: Traces) -> list[dict[str, Any]]:
    """The operations that take longest, as rows: name, calls and milliseconds of a step, as means over the ranks, and
    the rank on which it takes longest.
    """
    by_name: dict[str, dict[int, Operation]] = defaultdict(dict)
    for rank, trace in traces.items():
        for operation in operations(trace["traceEvents"]):
            by_name[operation.name][rank] = operation
    rows = []
    for name, ranks in by_name.items():
        calls, seconds = (sum(each) / len(traces) for each in zip(*((o.calls, o.seconds) for o in ranks.values())))
        slowest = max(ranks, key=lambda rank: ranks[rank].seconds)
        rows.append(dict(name=name, calls=calls, ms=1000 * seconds, rank=slowest, most=1000 * ranks[slowest].seconds))
    return sorted(rows, key=lambda row: -row["ms"])[:SHOWN]


def operations(events: list[Event]) -> list[Operation]:
    """The operations of a rank's recorded steps, those that take longest first. On a GPU, they are its kernels."""
    spans = [event for event in events if event["ph"] == "X"]
    steps = sum(event["name"] == LAST_PART for event in spans if event.get("cat") == "user_annotation") or 1
    on_gpu = any(event.get("cat") in ON_GPU for event in spans)
    calls: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    by_thread: dict[Any, list[Event]] = defaultdict(list)
    for event in spans:
        if event.get("cat") in ON_GPU if on_gpu else is_operation(event):
            by_thread[event["tid"]].append(event)
    for mine in by_thread.values():
        outer: list[Event] = []  # the operations that are still running
        for event in sorted(mine, key=lambda event: (event["ts"], -event["dur"])):
            while outer and event["ts"] >= outer[-1]["ts"] + outer[-1]["dur"]:
                outer.pop()
            if outer and not on_gpu:
                seconds[outer[-1]["name"]] -= event["dur"] / 1e6
            calls[event["name"]] += 1
            seconds[event["name"]] += event["dur"] / 1e6
            outer.append(event)
    found = [Operation(name, calls[name] / steps, seconds[name] / steps) for name in calls]
    return sorted(found, key=lambda operation: -operation.seconds)


def is_operation(event: Event) -> bool:
    """Whether a span is one of torch's operations or a message, and not a range such as `forward`."""
    return event.get("cat") == "cpu_op" or event["name"].startswith(MESSAGES)


def table(folder: Path, *names: str) -> str:
    """For each rank its most expensive operations, or those with these names: calls and milliseconds in a step."""
    lines = []
    for rank, trace in read(folder).items():
        found = operations(trace["traceEvents"])
        shown = [operation for operation in found if operation.name in names] if names else found[:SHOWN]
        for name, calls, seconds in shown:
            lines.append(f"rank {rank}: {name:<40} {calls:7.1f} calls {1000 * seconds:9.2f} ms")
    return "\n".join(lines) or "no trace: the run was not recorded, or had fewer than 13 steps"
