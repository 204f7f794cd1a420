"""How fast two ranks exchange messages: one pair at a time, so that no pair slows another."""

import time

import torch
import torch.distributed as dist

SMALL, LARGE = 1024, 8 * 2**20  # bytes
ROUNDS = {SMALL: 20, LARGE: 5}


def pairs(hosts: list[str]) -> list[tuple[int, int]]:
    """All pairs within a node; between nodes each rank with its like on the next node. `hosts`: of each rank."""
    names = list(dict.fromkeys(hosts))
    members = [[rank for rank, host in enumerate(hosts) if host == name] for name in names]
    found = [(a, b) for ranks in members for i, a in enumerate(ranks) for b in ranks[i + 1 :]]
    rings = zip(members, members[1:] + (members[:1] if len(members) > 2 else []), strict=False)
    return found + [pair for here, there in rings for pair in zip(here, there, strict=False)]


def measure(hosts: list[str], rank: int, device: torch.device) -> list[dict[str, float]]:
    """Seconds and bytes a second of each pair in which this rank is the first; every rank calls it."""
    found = []
    for a, b in pairs(hosts):
        dist.barrier()
        if rank in (a, b):
            times = {size: ping_pong(b if rank == a else a, rank == a, size, device) for size in ROUNDS}
            if rank == a:
                # half of there and back; the small message's time is the latency that the large one has, too
                latency = times[SMALL] / 2
                found.append({"a": a, "b": b, "latency": latency, "bandwidth": LARGE / (times[LARGE] / 2)})
    dist.barrier()
    return found


def ping_pong(other: int, first: bool, size: int, device: torch.device) -> float:
    """The shortest time of several in which a message goes to the other rank and comes back; one before warms up."""
    message, best = torch.zeros(size, dtype=torch.uint8, device=device), float("inf")
    for turn in range(ROUNDS[size] + 1):
        begun = time.perf_counter()
        for sends in (first, not first):
            if sends:
                dist.send(message, other)
            else:
                dist.recv(message, other)
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        if turn:
            best = min(best, time.perf_counter() - begun)
    return best
