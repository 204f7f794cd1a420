"""Hooks that send DDP's gradients in fewer bytes, for `--hook`. 13_fewer_bytes builds such a hook by hand."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

HOOKS = ("bf16", "powersgd")
# Steps without compression: DDP builds its buckets anew after the first one, and torch's state goes by their numbers.
PLAIN_STEPS = 2


def bf16_hook(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean of a bucket over all ranks, sent in bfloat16: half the bytes. torch's `bf16_compress_hook` does so, too,
    but refuses gloo.
    """
    short = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
    future = dist.all_reduce(short, async_op=True).get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))


def attach(model: DistributedDataParallel, name: str, r: int) -> None:
    """Send the model's gradients by the hook of this name, one of HOOKS; r: PowerSGD's rank (arXiv:1905.13727)."""
    if name == "bf16":
        model.register_comm_hook(None, bf16_hook)
    else:
        state = PowerSGDState(None, matrix_approximation_rank=r, start_powerSGD_iter=PLAIN_STEPS)
        model.register_comm_hook(state, powerSGD_hook)
