"""The results of a run."""

from dataclasses import dataclass, field
from typing import Any

from grader.engine.ranks.diagnose import Fault


@dataclass
class Run:
    """What one job left: evidence, events and printed lines of each rank."""

    world: int
    fault: Fault | None = None
    evidence: list[Any] = field(default_factory=list)
    events: list[list[dict]] = field(default_factory=list)
    strange: dict[int, dict] = field(default_factory=dict)  # by rank: a function that broke its signature
    touched: dict[int, list[dict]] = field(default_factory=dict)  # by rank: what functions did to tensors of others
    stdout: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)
    broken: list[dict] = field(default_factory=list)  # cells that did not load, as rank 0 saw them
    files: dict[str, bytes] = field(default_factory=dict)  # that the ranks wrote; the lowest rank's of each name
    fault_after: float = 0.0  # seconds from the start of the run to the diagnosis
    own_time: float = 0.0  # of these, seconds in which the ranks were not held up by a busy machine
    wire: int | None = None  # bytes between the ranks, counted by the kernel; None without a sandbox
    posted: str = ""  # what ranks in a sandbox left in the store by which they meet, though it is no meeting
    second: "Run | None" = None  # for a job of two calls, the second one's results; None if it never started
