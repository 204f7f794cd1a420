"""The machine that this runs on, measured in a few seconds: a `Machine` for `utils/costs`.

torchrun --local-addr 127.0.0.1 --nproc-per-node 2 utils/this_machine.py   # prints it as JSON, for ./workbook plan
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
import torch
import torch.distributed as dist

from utils.plan import Link, Machine, Reached

TRIES = 7


def measure(device: torch.device, size: int = 1024, dtype: torch.dtype = torch.float32) -> Machine:
    """What a rank has of this machine while all ranks work, which call this together, on one node.

    The fractions of `Machine` are 1, since these are measurements. Without a process group it is one device, without
    links.

    Args:
        device: this rank's.
        size: of the products, the side of square matrices.
        dtype: of the products and the messages.
    """
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    a, b = torch.rand(2, size, size, device=device, dtype=dtype)
    product = seconds(lambda: a @ b, device)
    stream = torch.zeros(2**24 if device.type == "cpu" else 2**28, device=device)
    adding = seconds(lambda: stream.add_(1), device)
    link = Link(2 * stream.nbytes / adding, 0.0)  # of one device alone: its memory
    if ranks > 1:
        small, large = torch.zeros(1, device=device), stream[: 2**22]
        latency = seconds(lambda: dist.all_reduce(small), device) / (2 * (ranks - 1))
        sending = seconds(lambda: dist.all_reduce(large), device) - 2 * (ranks - 1) * latency
        link = Link(2 * (ranks - 1) / ranks * large.nbytes / sending, latency)
    if device.type == "cpu":
        memory = psutil.virtual_memory().total // ranks
    else:
        memory = torch.get_device_module(device).get_device_properties(device).total_memory
    return Machine(
        name="this machine",
        peak=2 * size**3 / product,
        memory=memory,
        memory_bandwidth=2 * stream.nbytes / adding,
        node=ranks,
        inside=link,
        between=link,
        device_share=1.0,
        link_share=1.0,
        memory_share=1.0,
    )


def seconds(action: Callable[[], object], device: torch.device) -> float:
    """The median of some tries, each started by all ranks at once; the same on all ranks."""
    found = []
    for _ in range(TRIES + 2):  # the first ones warm up
        if dist.is_initialized():
            dist.barrier()
        synchronize(device)
        began = time.perf_counter()
        action()
        synchronize(device)
        found.append(time.perf_counter() - began)
    median = torch.tensor([statistics.median(found[2:])], device=device)
    if dist.is_initialized():
        dist.all_reduce(median, dist.ReduceOp.MAX)
    return median.item()


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()


def from_json(text: str) -> Machine:
    """The inverse of what this module prints."""
    values = json.loads(text)
    links = {name: Link(*values[name]) for name in ("inside", "between")}
    return Machine(**values | links | {"reached": Reached(*values["reached"])})


def main() -> None:
    from utils.devices import accelerator
    from utils.distributed import check_interfaces, cleanup, launch_environment

    rank = launch_environment().local_rank
    on_gpu = bool(accelerator())
    check_interfaces(on_gpu)
    device = torch.device(accelerator(), rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.accelerator.set_device_index(device)
    torch.set_num_threads(1)
    dist.init_process_group(dist.get_default_backend_for_device(device))
    found = measure(device, 8192, torch.bfloat16) if on_gpu else measure(device)
    if dist.get_rank() == 0:
        print(json.dumps(asdict(found)))
    cleanup()


if __name__ == "__main__":
    main()
