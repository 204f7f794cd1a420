"""Pretended GPUs, so that the choices of a rank's code can be checked without one."""

from typing import Any

import torch
import torch.distributed as dist


def pretend_gpus(a_node: int) -> None:
    """Make the code see GPUs on this node, so that its choices can be checked without one."""
    chosen = {"index": 0}

    def choose(device: Any) -> None:
        index = device if isinstance(device, int) else torch.device(device).index
        chosen["index"] = 0 if index is None else index

    for owner, name, stand_in in (
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "device_count", lambda: a_node),
        (torch.cuda, "set_device", choose),
        (torch.cuda, "current_device", lambda: chosen["index"]),
        (torch.accelerator, "is_available", lambda: True),
        (torch.accelerator, "device_count", lambda: a_node),
        (torch.accelerator, "current_accelerator", lambda *_, **__: torch.device("cuda")),
        (torch.accelerator, "set_device_index", choose),
        (torch.accelerator, "current_device_index", lambda: chosen["index"]),
        (dist, "is_nccl_available", lambda: True),
    ):
        setattr(owner, name, stand_in)
