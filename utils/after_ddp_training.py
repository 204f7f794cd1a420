"""What `ddp_training` teaches, for later scripts."""

import torch
import torch.distributed as dist
from torch import Tensor

from utils import devices
from utils.distributed import launch_environment

TAUGHT_IN = "ddp_training"  # no rank of that lesson can import this


def setup() -> tuple[int, int, int, torch.device]:
    """Join the process group, with NCCL if there are GPUs (with XCCL if they are Intel's), and with gloo if not.

    Returns:
        rank, local_rank, world_size, and the device of this rank.

    It seeds nothing: a different seed on each rank would give each its own first weights.
    """
    rank, local_rank, world_size = launch_environment()
    if kind := devices.accelerator():
        # If the launcher shows each rank only its own GPU, that GPU has number 0.
        device = torch.device(kind, local_rank % devices.count())
        torch.accelerator.set_device_index(device)
        dist.init_process_group(dist.get_default_backend_for_device(kind), device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    return rank, local_rank, world_size, device


def global_mean(total: Tensor, count: Tensor) -> float:
    """The sum of all ranks' totals over the sum of their counts; both 0-dim float64."""
    sums = torch.stack([total, count])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()
