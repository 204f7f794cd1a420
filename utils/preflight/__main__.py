"""python -m utils.preflight, one process a GPU, started by srun, mpiexec or torchrun. Rank 0 prints the report."""

import argparse
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from utils.devices import accelerator
from utils.distributed import launch_environment
from utils.job import count
from utils.preflight import faults
from utils.preflight.facts import facts
from utils.preflight.links import measure
from utils.end_with_launcher import end_with_starter

PATIENCE = timedelta(seconds=60)  # for a rank that does not come


def main() -> int:
    parser = argparse.ArgumentParser(prog="preflight", description="Is this machine ready for a long run?")
    parser.add_argument("--out", type=Path, default=Path("runs/preflight"), help="folder to write to, as a run would")
    parser.add_argument("--login", type=Path, help="the login node's facts, as ./workbook preflight writes them")
    args = parser.parse_args()
    end_with_starter()
    rank, local_rank, world = launch_environment()
    own = facts(rank, local_rank, args.out)
    # torchrun has a store already; without it rank 0 opens one, at the address where a run's ranks would meet.
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        store = dist.TCPStore(*where, world, serves, PATIENCE, wait_for_workers=False)
        store.set(f"facts/{rank}", json.dumps(own))
    except (dist.DistError, RuntimeError, OSError) as problem:
        why = str(problem).splitlines()[0]
        print(f"✗ rank {rank} on {own['host']} cannot reach {where[0]}:{where[1]}, where all meet: {why}", flush=True)
        return 1
    found = lead(store, world, args.login, own) if rank == 0 else None
    if local_rank == 0 and rank:
        store.wait([f"ping/{rank}"], 3 * PATIENCE)
        store.set(f"pong/{rank}", str(time.time()))
    store.wait(["go"], 3 * PATIENCE)
    hosts = json.loads(store.get("go"))
    if hosts:
        exchange(store, rank, local_rank, world, hosts)
    return report(store, found, world, hosts) if rank == 0 else last_word(store, rank)


def lead(store: dist.TCPStore, world: int, login: Path | None, own: dict[str, Any]) -> dict[str, Any]:
    """Rank 0: wait for all facts, compare the clocks, and say whether the ranks can meet at all."""
    known, deadline = [own], time.monotonic() + PATIENCE.total_seconds()
    missing = []
    for rank in range(1, world):
        left = max(1.0, deadline - time.monotonic())
        try:
            store.wait([f"facts/{rank}"], timedelta(seconds=left))
            known.append(json.loads(store.get(f"facts/{rank}")))
        except RuntimeError:
            missing.append(rank)
    wrong = [f"rank {rank} never came: its node does not reach {own['host']}, or did not start it" for rank in missing]
    wrong += faults.before_meeting(known, json.loads(login.read_text("utf-8")) if login else None)
    offsets = {each["host"]: clock_offset(store, each["rank"]) for each in known if each["local_rank"] == 0}
    wrong += faults.clock(offsets)
    can_meet = not missing and not any(faults.interface(each) for each in known)
    store.set("go", json.dumps([each["host"] for each in known] if can_meet else []))
    return {"known": known, "wrong": wrong, "offsets": offsets}


def clock_offset(store: dist.TCPStore, rank: int) -> float:
    """Seconds that a rank's clock is ahead of ours, taken in the middle of question and answer."""
    if rank == 0:
        return 0.0
    asked = time.time()
    store.set(f"ping/{rank}", "")
    theirs = float(store.get(f"pong/{rank}"))
    return theirs - (asked + time.time()) / 2


def exchange(store: dist.TCPStore, rank: int, local_rank: int, world: int, hosts: list[str]) -> None:
    """Form the group, as a run would, and measure the links of this rank."""
    device = torch.device(accelerator(), local_rank) if accelerator() else torch.device("cpu")
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)
    try:
        group = dist.PrefixStore("preflight", store)
        backend = dist.get_default_backend_for_device(device)
        dist.init_process_group(backend, store=group, rank=rank, world_size=world, timeout=PATIENCE)
        links = measure(hosts, rank, device)
        dist.destroy_process_group()
        store.set(f"links/{rank}", json.dumps(links))
    except (dist.DistError, RuntimeError) as problem:
        store.set(f"links/{rank}", json.dumps(str(problem).splitlines()[0]))


def report(store: dist.TCPStore, found: dict[str, Any], world: int, hosts: list[str]) -> int:
    """Rank 0: one line a node, one for each kind of link, one for each fault; the exit code."""
    wrong, measured = found["wrong"], []
    for rank in range(world if hosts else 0):
        links = json.loads(store.get(f"links/{rank}"))
        if isinstance(links, str):
            wrong.append(f"rank {rank} on {hosts[rank]}: the ranks do not come together: {links}")
        else:
            measured += links
    machine = os.environ.get("SITE_MACHINE", "")
    if hosts and not any("come together" in line for line in wrong):
        wrong += faults.links(measured, hosts, machine if accelerator() else "")
    for node in found["known"]:
        if node["local_rank"] == 0:
            ranks = [each["rank"] for each in found["known"] if each["host"] == node["host"]]
            kept = node["storage"]
            disk = kept.get("error") or f"{kept['free'] / 1e9:,.0f} GB free, {kept['speed'] / 1e6:,.0f} MB/s"
            print(
                f"{node['host']}: {numbered(ranks)} on {node['device']}, address {node['address']}, Python"
                f" {node['versions']['Python']}, torch {node['versions']['torch']}, clock"
                f" {found['offsets'][node['host']]:+.3f} s, storage {disk}"
            )
    for kind, some in faults.by_kind(measured, hosts).items() if measured else ():
        if some:
            should = faults.expected(machine, kind)
            print(
                f"{kind} nodes: {count(len(some), 'link')}, latency"
                f" {median(link['latency'] for link in some) * 1e6:.0f} µs,"
                f" bandwidth {median(link['bandwidth'] for link in some) / 1e9:.3g} GB/s (slowest"
                f" {min(link['bandwidth'] for link in some) / 1e9:.3g})"
                + (f"; the machine should give {should / 1e9:.3g} GB/s" if should else "")
            )
    print("".join(f"✗ {line}\n" for line in wrong) or "✓ nothing wrong was found\n", end="", flush=True)
    store.set("over", str(int(bool(wrong))))
    for rank in range(1, world):  # the store ends with this process: the others read their last word first
        if any(each["rank"] == rank for each in found["known"]):
            store.wait([f"read/{rank}"], PATIENCE)
    return int(bool(wrong))


def numbered(ranks: list[int]) -> str:
    """rank 0, ranks 0 and 1, ranks 0-3, ranks 0, 2 and 4: a node's ranks need not be neighbours."""
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    first, last = ", ".join(map(str, ranks[:-1])), ranks[-1]
    return f"ranks {first} and {last}" if first else f"rank {last}"


def last_word(store: dist.TCPStore, rank: int) -> int:
    store.wait(["over"], 3 * PATIENCE)
    code = int(store.get("over"))
    store.set(f"read/{rank}", "")
    return code


if __name__ == "__main__":
    sys.exit(main())
