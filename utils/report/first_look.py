"""What to look at first, after a run: one line, or none where nothing stands out.

It comes from times, so it advises and does not judge. Two causes show reliably in the parts of a step: what passes
before the forward pass, and a rank that works longer than all others. A large part for communication does not: on a
small model, or a busy machine, that is how a healthy run looks.
"""

import statistics
from collections import defaultdict

from utils.report.runs import Line, Run

# Of a step, before its forward pass. A healthy run of the course spends less than 0.05; 0.21 was seen at a load of 25.
LONG = 0.4
FACTOR = 2.0  # of the work of the busiest of the other ranks
MOST_STEPS = 0.8  # of the timed steps must show it: a single one is slow for many reasons
FEWEST = 5  # steps, for a statement
OWN = 0.7  # of a node's busy processors; with less, other programs make ranks slow (by a factor of 4, at a load of 50)


def first_look(run: Run) -> str:
    """One line, or ""."""
    steps = min((len(rank.steps) for rank in run.ranks), default=0)
    return (before_forward(run) or straggler(run)) if steps >= FEWEST else ""


def before_forward(run: Run) -> str:
    for rank in sorted(run.ranks, key=lambda rank: -share(rank.parts)):
        long = sum(share(step) >= LONG for step in rank.steps)
        if share(rank.parts) >= LONG and long >= MOST_STEPS * len(rank.steps):
            where = f" on rank {rank.start['rank']}" if len(run.ranks) > 1 else ""
            return f"{share(rank.parts):.0%} of the step waits for the loader{where}, or passes between two steps"
    return ""


def share(step: Line) -> float:
    """The part before the forward pass."""
    return step["data"] / (sum(step.values()) or 1.0)


def straggler(run: Run) -> str:
    """The rank that works longer than all others, step by step."""
    if len(run.ranks) < 2 or not all(rank.communication for rank in run.ranks):
        return ""
    if any(rank.parts["waiting"] for rank in run.ranks):  # stages of a pipeline have different work
        return ""
    work = {rank.start["rank"]: sum(rank.parts.values()) - rank.parts["communication"] for rank in run.ranks}
    slow, next_slow = sorted(work, key=work.__getitem__, reverse=True)[:2]
    if not alone(run):
        return ""
    longer = work[slow] / (work[next_slow] or 1.0)
    forward = {rank.start["rank"]: [step["forward"] for step in rank.steps] for rank in run.ranks}
    others = [max(each) for each in zip(*(forward[rank] for rank in forward if rank != slow))]
    always = sum(mine > other for mine, other in zip(forward[slow], others)) >= MOST_STEPS * len(others)
    if longer < FACTOR or not always:
        return ""
    return f"rank {slow} works {longer:.1f} times as long in a step as any other rank, and all others wait for it"


def alone(run: Run) -> bool:
    """Whether each node's processors work mostly for this run, as its ranks have sampled; False if none has."""
    own, busy = defaultdict(float), {}
    for rank in run.ranks:
        node = rank.start["node"]
        own[node] += statistics.mean([line["cpu"] for line in rank.usage] or [0.0])
        if nodes := [sum(line["cpus"]) for line in rank.usage if "cpus" in line]:
            busy[node] = statistics.mean(nodes)
    return own.keys() == busy.keys() and all(own[node] >= OWN * busy[node] for node in busy)
