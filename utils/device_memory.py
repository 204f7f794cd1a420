"""Limits the memory of a device: `--device-memory 300MB`.

On a GPU, torch itself enforces the limit. On the CPU, the storages of tensors are counted, and the operation that
exceeds the limit is the last one. Either way, the job ends with one line: what was requested, and what was held, by
kind. `most_held` is what a run would have needed, for its report.
"""

import gc
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from utils.distributed import fail, let_gloo_rest
from utils.memory import Peak, Storages, by_kind, settled, storages_of
from utils.private import tree_leaves


@contextmanager
def device_memory(limit: int | None, device: torch.device) -> Iterator[None]:
    """While active, this rank's tensors may take `limit` bytes of `device`. None means all that the device has.

    Tensors that exist at the start count. Use it inside the rank's `Metrics`, which records the line and ends all ranks
    of the job with exit code 2.

    Raises:
        OutOfMemory: more is requested.
    """
    try:
        if limit is None:
            yield
        elif device.type == "cpu":
            with LimitedStorages(limit):
                yield
        else:
            gpu = torch.get_device_module(device)
            if not hasattr(gpu, "set_per_process_memory_fraction"):  # torch 2.8 has none for Intel's
                fail(
                    f"--device-memory: torch {torch.__version__} cannot limit the memory of Intel's GPUs; leave it out"
                )
            there = gpu.get_device_properties(device).total_memory
            gpu.set_per_process_memory_fraction(min(1.0, limit / there), device)
            yield
    except torch.OutOfMemoryError as problem:
        raise OutOfMemory(refused_by_gpu(limit, device, str(problem))) from problem
    except RuntimeError as problem:
        if "DefaultCPUAllocator" not in str(problem):
            raise
        asked = str(problem).partition("DefaultCPUAllocator: ")[2].splitlines()[0]
        raise OutOfMemory(f"out of memory: {asked}") from problem


def most_held(device_type: str) -> int | None:
    """The most bytes of the device that this rank's tensors took at once; None if they were not counted: on the CPU
    without --device-memory.
    """
    if device_type != "cpu":
        return torch.get_device_module(device_type).max_memory_allocated()
    return LimitedStorages.newest.most if LimitedStorages.newest else None


# On the CPU


class OutOfMemory(RuntimeError):
    """More memory was requested than there is. The message is the line with which the job ends."""


class LimitedStorages(Peak):
    """Raises `OutOfMemory` in the first operation after which more than `limit` bytes of tensors are alive."""

    newest: ClassVar["LimitedStorages | None"] = None  # the process has one device

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __enter__(self) -> "LimitedStorages":
        # They are noted without looking for a peak at each one: a single count follows.
        Storages.note(self, [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)])
        alive = self.bytes_alive()
        self.at_most = self.most = sum(alive.values())
        LimitedStorages.newest = self
        if self.at_most > self.limit:
            raise OutOfMemory(what_is_held(self.limit, by_kind(alive, owners()), "before the first step"))
        return super().__enter__()

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        # Arguments, too: FSDP grows and shrinks the storage of gathered weights, so it may have grown.
        if result is not NotImplemented:
            self.note(tree_leaves((args, kwargs)))
        return result

    def count(self, newest: Tensor, ref: StorageWeakRef) -> None:
        """Raises OutOfMemory if what is alive exceeds the limit."""
        host = for_the_host()
        let_gloo_rest(seconds=0.1)  # a new maximum does not count if it includes tensors that gloo is about to free
        alive = settled(self.bytes_alive, lambda alive: not host and sum(alive.values()) > self.limit)
        self.at_most = sum(alive.values())
        if host:
            return
        if self.at_most > self.limit:
            asked = alive.pop(ref.cdata)
            shape = f"{' × '.join(map(str, newest.shape))}, {str(newest.dtype).removeprefix('torch.')}"
            what = f" ({shape})" if newest.nbytes == asked else ""  # otherwise it is a view of something larger
            raise OutOfMemory(
                what_is_held(self.limit, by_kind(alive, owners()), f"and asks for {size(asked)} more{what}")
            )
        self.most = max(self.most, self.at_most)


def for_the_host() -> bool:
    """Whether a tensor made now would be in host memory if this were a GPU: the parts of a state dict requested with
    `cpu_offload`, and tensors written to a file.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == torch.serialization.__file__:
            return True
        info = frame.f_locals.get("info") if frame.f_code.co_name == "_get_model_state_dict" else None
        if getattr(info, "cpu_offload", False):
            return True
        frame = frame.f_back
    return False


# On a GPU


def refused_by_gpu(limit: int | None, device: torch.device, message: str) -> str:
    """The line, from torch's own message and its allocator's statistics."""
    asked = re.search(r"Tried to allocate ([\d.]+ \w+)", message)
    left, held = torch.get_device_module(device).memory_allocated(device), {}
    seen: set[int] = set()
    for kind, tensors in owners().items():
        found = {s.data_ptr(): s.nbytes() for tensor in tensors for s in storages_of(tensor) if s.device == device}
        held[kind] = sum(nbytes for address, nbytes in found.items() if address not in seen)
        seen |= found.keys()
    return what_is_held(
        limit,
        held | {"other": max(0, left - sum(held.values()))},
        f"and asks for {asked[1]} more" if asked else "and asks for more",
    )


# The message of both


def owners() -> dict[str, list[Tensor]]:
    """All gradients, optimizer states, weights gathered by FSDP, and other weights of this process, wherever they are
    referenced.
    """
    things = gc.get_objects()
    weights = [t for t in things if issubclass(type(t), Tensor) and isinstance(t, nn.Parameter)]
    optimizers = [t for t in things if issubclass(type(t), torch.optim.Optimizer)]
    state = [value for o in optimizers for values in o.state.values() for value in tree_leaves(values)]
    return {
        "gradients": [weight.grad for weight in weights if weight.grad is not None],
        "optimizer": [value for value in state if isinstance(value, Tensor)],
        "gathered": [tensor for thing in things for tensor in gathered(thing)],
        "weights": weights,
    }


def gathered(thing: object) -> Iterator[Tensor]:
    """The whole weights that FSDP has gathered from shards. It is not imported, so its classes are found by name."""
    if type(thing).__name__ == "FSDPParam":
        yield from thing.all_gather_outputs
        if hasattr(thing, "_unsharded_param"):
            yield thing._unsharded_param
    elif type(thing).__name__ == "FSDPParamGroup" and (result := getattr(thing, "_all_gather_result", None)):
        yield result.all_gather_output


def what_is_held(limit: int | None, held: Mapping[str, int], asked: str) -> str:
    """The line about what is held. `held`: bytes by kind."""
    grouped = dist.is_available() and dist.is_initialized()
    rank = f"rank {dist.get_rank()} of {dist.get_world_size()}" if grouped else "it"
    names = {
        "weights": "weights",
        "gathered": "weights gathered",
        "gradients": "gradients",
        "optimizer": "optimizer",
        "other": "activations and other",
    }
    # Most jobs gather nothing.
    kinds = ", ".join(f"{names[kind]} {size(held[kind])}" for kind in names if held[kind] or kind != "gathered")
    of = f" (--device-memory {size(limit)})" if limit else ""
    return f"out of memory{of}: {rank} holds {size(sum(held.values()))} ({kinds}) {asked}"


def size(nbytes: int) -> str:
    """Bytes in a readable unit."""
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:,.1f} kB"
