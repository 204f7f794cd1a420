"""A rank on its own GPU or on a shared one. What differs from a CPU by design is evened out here, so that only the
meaning is judged.

| on a CPU, with gloo | on a GPU, with NCCL | here |
|---|---|---|
| a call or a wait returns when the operation is complete | it returns at once, and the GPU's stream waits | `settle`
waits for it |
| a waiting thread sleeps | a waiting thread spins | the driver is told to sleep |
| messages between two ranks go concurrently | one after another, unless batched: a correct pair hangs | they use gloo |
| hooks run in the thread that calls backward | in a thread of the GPU's | in the thread that calls |
| a new tensor is on the device of the communication | it is on the CPU, if no device is named | `as_default` puts it
on the GPU |

Messages: https://github.com/NVIDIA/nccl/issues/479, https://github.com/pytorch/pytorch/issues/129341.

A rank that hangs on a GPU is ended like any other, by SIGKILL: its CUDA context ends with the process, and so does the
spinning kernel. NCCL's watchdog is not used.
"""

import contextlib
import ctypes
import functools
import zlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from utils import private

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
    # In 2.15 "nccl" is the second of these; older releases have the first alone.
    for name in ("ProcessGroupNCCL", "ProcessGroupNCCL2", "ProcessGroupNCCLLazy"):
        if kind := getattr(dist.distributed_c10d, name, None):
            kind.supports_coalescing = property(lambda backend: False)  # so a batch is its messages


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


IN_PLACE = ("normal_", "uniform_", "random_", "bernoulli_", "exponential_")
RANDOM = ("rand", "randn", "randint", "randperm")
RANDOM_LIKE = ("rand_like", "randn_like", "randint_like")
NEW = sorted(private.constructors() & set(dir(torch)) - set(RANDOM))


@contextlib.contextmanager
def as_default(device: torch.device = DEVICE) -> Iterator[None]:
    """While it is entered, new tensors without a named device are on `device`, and random numbers are drawn on the CPU,
    so that a seed gives the same numbers everywhere.

    `torch.set_default_device` does the first, but not in a backward pass: its mode is off in what it has called, and
    `backward` is called by it, as are the functions of `torch.nn.init`. So the functions themselves are replaced.
    """
    with contextlib.ExitStack() as replaced:
        for names, owner, wrapper in (
            (NEW, torch, placed),
            (RANDOM, torch, drawn),
            (RANDOM_LIKE, torch, drawn_like),
            (IN_PLACE, torch.Tensor, drawn_in_place),
        ):
            for name in names:
                replacement = wrapper(getattr(owner, name), device)
                replaced.enter_context(mock.patch.object(owner, name, replacement))
        yield


def placed(function: Callable, device: torch.device) -> Callable:
    """A function that makes a tensor: on `device`, if none is named."""

    @functools.wraps(function)
    def make(*args: Any, **how: Any) -> torch.Tensor:
        return function(*args, **how | {"device": named(how) or device})

    return make


def named(how: dict) -> torch.device | str | None:
    """The device that a call names, or a `with torch.device(…)` around it."""
    around = private.devices_around()
    return how.get("device") or (around[-1] if around else None)


def by_cpu(how: dict) -> bool:
    """Whether the CPU can draw: a generator belongs to one device."""
    return how.get("generator") is None or how["generator"].device.type == "cpu"


def drawn(function: Callable, device: torch.device) -> Callable:
    """A function that draws a tensor."""

    @functools.wraps(function)
    def draw(*args: Any, **how: Any) -> torch.Tensor:
        if torch.device(named(how) or device).type != device.type or not by_cpu(how):  # a rank sees one GPU
            return function(*args, **how)
        wants_grad = how.pop("requires_grad", False)
        return function(*args, **how | {"device": "cpu"}).to(device).requires_grad_(wants_grad)

    return draw


def drawn_like(function: Callable, device: torch.device) -> Callable:
    """A function that draws a tensor with the shape of a given one."""

    @functools.wraps(function)
    def draw(tensor: torch.Tensor, *args: Any, **how: Any) -> torch.Tensor:
        if not plain_on(tensor, device) or how.get("device") is not None or not by_cpu(how):
            return function(tensor, *args, **how)
        wants_grad = how.pop("requires_grad", False)
        shape = torch.empty_like(tensor, device="cpu", requires_grad=False)
        return function(shape, *args, **how).to(device).requires_grad_(wants_grad)

    return draw


def drawn_in_place(method: Callable, device: torch.device) -> Callable:
    """A method that fills a tensor with random numbers."""

    @functools.wraps(method)
    def fill(tensor: torch.Tensor, *args: Any, **how: Any) -> torch.Tensor:
        if not plain_on(tensor, device) or not by_cpu(how):
            return method(tensor, *args, **how)
        numbers = method(torch.empty_like(tensor, device="cpu", requires_grad=False), *args, **how)
        with torch.no_grad():
            return tensor.copy_(numbers)

    return fill


def plain_on(tensor: torch.Tensor, device: torch.device) -> bool:
    """Whether it is on `device`, and not one of several parts (a DTensor draws by itself)."""
    return tensor.device == device and type(tensor) in (torch.Tensor, torch.nn.Parameter)
