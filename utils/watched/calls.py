"""Collectives and messages as they pass through torch's dispatcher: DDP's reducer, FSDP, DTensor and plain `dist` calls
alike.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from utils import private

# The argument whose shape must agree on all ranks of a group. The others
# (all-to-all, barrier) may differ, or have none.
AGREED = {
    "allreduce_": "tensors",
    "broadcast_": "tensors",
    "reduce_": "tensors",
    "allgather_": "input_tensors",
    "_allgather_base_": "input_tensor",
    "gather_": "input_tensors",
    "scatter_": "output_tensors",
    "reduce_scatter_": "output_tensors",
    "_reduce_scatter_base_": "output_tensor",
    "allgather_into_tensor_coalesced_": "inputs",
    "reduce_scatter_tensor_coalesced_": "outputs",
    "allreduce_coalesced_": "tensors",
    "allgather_coalesced_": "input_list",
}
SPOKEN = {  # the dispatcher's name -> the name that was typed
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "gather_": "gather",
    "scatter_": "scatter",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "recv_": "recv",
    "recv_any_source_": "recv",
    "monitored_barrier_": "barrier",
}


def intercept(reporting: Callable[[Any, str, Any], Callable]) -> list[torch.library.Library]:
    """Give every operation of c10d our own kernel, reporting(operation, name, keys below), which then runs the
    operation.

    BackendSelect is the last dispatch key before a device's own kernel, and nothing else uses it for these operations.
    Other operations cost nothing; a TorchDispatchMode would see every operation, and take a quarter of a small run's
    time. The kernels last as long as the returned object.
    """
    key, below = private.dispatch_key("BackendSelect")
    libraries = []
    for namespace in ("c10d", "_c10d_functional"):
        library = torch.library.Library(namespace, "IMPL")
        for full_name in private.operations(namespace):
            if namespace == "c10d" or full_name.endswith("::wait_tensor"):
                name, _, overload = full_name.removeprefix(f"{namespace}::").partition(".")
                operation = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
                library.impl(full_name, reporting(operation, name, below), key.name, with_keyset=True)
        libraries.append(library)
    return libraries


def aside() -> bool:
    """Whether this is a thread started by Python's threading, for which the main thread does not wait.

    Autograd has its own threads, one for each GPU, in which hooks of DDP and FSDP call collectives; the main thread
    waits for these.
    """
    if threading.get_ident() == threading.main_thread().ident:
        return False
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name == "_bootstrap"


def members_of(group: dist.ProcessGroup) -> dict[int, int]:
    """The ranks of a group: global rank -> rank in the group."""
    return next(
        (ranks for g, ranks in private.ranks_of_groups().items() if getattr(g, "group_name", None) == group.group_name),
        {},
    )


def members_in_order(members: dict[int, int]) -> list[int]:
    """Global ranks by their rank in the group."""
    return sorted(members, key=members.get)


def tensors_sent(name: str, given: dict) -> list[torch.Tensor]:
    """The tensors that a rank passes to a collective or message."""
    tensors = given.get(AGREED.get(name, ""))
    sent = tensors if tensors is not None else given.get("tensors", given.get("input_tensors", given.get("input")))
    return [t for t in (sent if isinstance(sent, (list, tuple)) else [sent]) if isinstance(t, torch.Tensor)]


def described(name: str, given: dict, members: dict[int, int]) -> dict[str, Any]:
    """A description of a call of the dispatcher's operation `name`: what the ranks of a group must agree on."""
    event: dict[str, Any] = dict(op=SPOKEN.get(name, name.rstrip("_")), shape=None, dtype=None, bytes=0, detail=None)
    if sent := tensors_sent(name, given):
        event["bytes"] = sum(t.numel() * t.element_size() for t in sent)
        event["dtype"] = str(sent[0].dtype).removeprefix("torch.")
        if given.get(AGREED.get(name, "")) is not None or event["op"] in ("send", "recv"):
            event["shape"] = [list(t.shape) for t in sent] if len(sent) > 1 else list(sent[0].shape)
    if "root_rank" in given:
        event["detail"] = f"root {given['root_rank']}"
    elif "reduce_op" in given:
        event["detail"] = reduction()
    if event["op"] in ("send", "recv"):
        peer = given.get("dst", given.get("src"))
        event["peer"] = None if peer is None else members_in_order(members)[peer]
        event["tag"] = given.get("tag", 0)
    return event


def reduction() -> str | None:
    """SUM, MAX, …: opaque in the dispatcher, so read from the frame of the `dist` call. None for C++ callers."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != c10d.__file__:
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename == c10d.__file__:
        op = frame.f_locals.get("op")
        if isinstance(op, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
            # A reduction with a factor has no name of its own, but a kind.
            return str(getattr(op, "op", op)).rpartition(".")[2]
        frame = frame.f_back
    return None
