"""A rank on its own GPU or on a shared one. What differs from a CPU by design is evened out here, so that only the
meaning is judged.

| on a CPU, with gloo | on a GPU, with NCCL | here |
|---|---|---|
| a call or a wait returns when the operation is complete | it returns at once, and the GPU's stream waits | `settle`
waits for it |
| a waiting thread sleeps | a waiting thread spins | the driver is told to sleep |
| messages between two ranks go concurrently | one after another, unless batched: a correct pair hangs | they use gloo |
| hooks run in the thread that calls backward | in a thread of the GPU's | in the thread that calls |
| a new tensor is on the device of the communication | it is on the CPU, if no device is named | `OnGPU` puts it on the
GPU |

Messages: https://github.com/NVIDIA/nccl/issues/479, https://github.com/pytorch/pytorch/issues/129341.

A rank that hangs on a GPU is ended like any other, by SIGKILL: its CUDA context ends with the process, and so does the
spinning kernel. NCCL's watchdog is not used.
"""

import ctypes
import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

DEVICE = torch.device("cuda", 0)  # each rank sees one GPU, as if it were alone on a node
CU_CTX_SCHED_BLOCKING_SYNC = 4  # cuda.h


def environment(gpu: str, shared: bool) -> dict[str, str]:
    """The environment that CUDA and NCCL read when they start, after the fork.

    Args:
        gpu: as CUDA_VISIBLE_DEVICES names it.
        shared: whether other ranks use it, too.
    """
    read = {
        "CUDA_VISIBLE_DEVICES": gpu,
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",  # all ranks are on this machine: its network cards need not be looked at
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # a rank must not end because another rank did: the judge ends both
    }
    if shared:  # few blocks for each, or one rank's kernel leaves no room for another's
        read |= {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "2", "NCCL_NVLS_ENABLE": "0"}
    return read


def start() -> None:
    """Take the GPU. Raises RuntimeError or OSError if that fails."""
    driver = ctypes.CDLL("libcuda.so.1")
    number = ctypes.c_int()
    for result in (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(number), 0),
        # A thread that waits for the GPU sleeps; otherwise it spins, and looks like an endless loop.
        driver.cuDevicePrimaryCtxSetFlags(number, CU_CTX_SCHED_BLOCKING_SYNC),
    ):
        if result:
            raise RuntimeError(f"CUDA error {result} of the driver")
    torch.cuda.set_device(DEVICE)
    torch.cuda.synchronize()
    torch.autograd.set_multithreading_enabled(False)
    dist.ProcessGroupNCCL.supports_coalescing = property(lambda backend: False)  # so a batch is its messages


def settle() -> None:
    """Wait until the GPU has finished the work of this thread."""
    torch.cuda.current_stream().synchronize()


def message(host: Any, name: str, tensor: torch.Tensor, peer: int | None, channel: str) -> Any:
    """Send or receive a tensor in host memory with gloo: a GPU's messages are staged through host memory.

    Args:
        host: gloo's backend of a group of all ranks.
        name: the dispatcher's.
        peer: global rank; None is any.
        channel: messages of different channels are never matched.
    """
    tag = zlib.crc32(channel.encode()) & 0x7FFFFFFF
    if name == "recv_any_source_":
        return host.recv_anysource([tensor], tag)
    return (host.send if name == "send" else host.recv)([tensor], peer, tag)


RANDOM = {torch.rand, torch.randn, torch.randint, torch.randperm}
RANDOM_IN_PLACE = {
    getattr(torch.Tensor, name) for name in ("normal_", "uniform_", "random_", "bernoulli_", "exponential_")
}


class OnGPU(TorchFunctionMode):
    """While it is active, new tensors without a named device are on `device`, as with `torch.set_default_device`.
    Random numbers are drawn on the CPU, so that a seed gives the same numbers everywhere.
    """

    def __init__(self, device: torch.device = DEVICE) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if function in RANDOM_IN_PLACE and args[0].device == self.device:
            tensor = args[0]
            drawn = function(torch.empty_like(tensor, device="cpu", requires_grad=False), *args[1:], **kwargs)
            with torch.no_grad():
                return tensor.copy_(drawn)
        if function not in _device_constructors() or kwargs.get("device") is not None:
            return function(*args, **kwargs)
        if function not in RANDOM:
            return function(*args, **{**kwargs, "device": self.device})
        wants_grad = kwargs.pop("requires_grad", False)
        return function(*args, **{**kwargs, "device": "cpu"}).to(self.device).requires_grad_(wants_grad)
