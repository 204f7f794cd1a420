"""How many bytes of tensors are alive, and what they are for.

A tensor is a view of a *storage*, the memory itself. Several tensors may share one; a storage lives as long as any
tensor needs it, also one that only autograd keeps; and its size may be changed under the tensors. So bytes are counted
by storages, each once, with the size that they have at that moment.

Some tensors do not own memory: a DTensor says how large the whole is, and wraps the part that is here. Of those the
part is counted.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from utils import private
from utils.distributed import let_gloo_rest
from utils.private import TorchDispatchMode, is_traceable_wrapper_subclass, tree_leaves

Found = TypeVar("Found")


def storages_of(tensor: Any) -> Iterator[torch.UntypedStorage]:
    """The memory behind a tensor: of one that wraps others (a DTensor, a collective's result to come) theirs.

    Single numbers (0-dim tensors: a loss, Adam's count of steps) and integers (tokens) are left out, and so is what is
    no tensor, or on the device "meta".
    """
    if not isinstance(tensor, Tensor) or not tensor.dim() or not tensor.is_floating_point():
        return
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from storages_of(getattr(tensor, name))
    elif (storage := tensor.untyped_storage()).device.type != "meta":
        yield storage


class Storages(TorchDispatchMode):
    """While it is entered, notes the storage of whatever an operation returns; it keeps none of them alive.

    What lives for a moment inside an operation on DTensors is noted, too: such an operation is many, on the local parts
    and between the ranks, and it is these that are looked at. `storages_of` says which are left out.

    Args:
        tensors: what was there before.
    """

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.noted: dict[StorageWeakRef, int] = {}  # bytes, as last seen; the newest come last
        self.note(tensors)

    def note(self, tensors: Iterable[Any]) -> None:
        for storage in itertools.chain.from_iterable(map(storages_of, tensors)):
            self.noted[StorageWeakRef(storage)] = storage.nbytes()

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # the wrapper's turn, whose operations on what it wraps come here again
        result = operation(*args, **(kwargs or {}))
        self.note([result] if isinstance(result, Tensor) else tree_leaves(result))
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and keeping `torch.compile` out would cost 3 µs per operation."""
        return False

    def bytes_alive(self) -> dict[int, int]:
        """The bytes of each storage that is alive and not empty, by an address of it."""
        found = {}
        for ref in list(self.noted):
            storage = private.storage_of(ref)
            if storage is None:
                del self.noted[ref]
            else:
                self.noted[ref] = found[ref.cdata] = storage.nbytes()
        return {address: nbytes for address, nbytes in found.items() if nbytes}

    def by_kind(self, kinds: Mapping[str, Iterable[Tensor]]) -> dict[str, int]:
        """Bytes alive for each kind of tensors, and for "other". A tensor of two kinds counts as the first."""
        return by_kind(self.bytes_alive(), kinds)


def by_kind(alive: Mapping[int, int], kinds: Mapping[str, Iterable[Tensor]]) -> dict[str, int]:
    """What `Storages.bytes_alive` has found, by kind."""
    left, found = dict(alive), {}
    for kind, tensors in kinds.items():
        mine = {StorageWeakRef(storage).cdata for tensor in tensors for storage in storages_of(tensor)}
        found[kind] = sum(left.pop(address, 0) for address in mine)
    return found | {"other": sum(left.values())}


class Peak(Storages):
    """Knows the most bytes that were alive at once since `most` was set to 0, as it is at first.

    Counting everything takes longer than most operations. So a new storage adds to a sum, and one that is gone is
    subtracted only when the sum would exceed the peak: newest first, because most storages live briefly.
    """

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        self.most = self.at_most = 0
        super().__init__(tensors)

    def note(self, tensors: Iterable[Any]) -> None:
        for tensor in tensors:
            for storage in storages_of(tensor):
                ref, nbytes = StorageWeakRef(storage), storage.nbytes()
                self.at_most += nbytes - self.noted.get(ref, 0)
                self.noted[ref] = nbytes
                if self.at_most > self.most:
                    self.forget()
                if self.at_most > self.most:
                    self.count(tensor, ref)

    def forget(self) -> None:
        """Subtract what is gone, until the sum no longer exceeds the peak."""
        gone = []
        for ref in reversed(self.noted):
            if self.at_most <= self.most:
                break
            if ref.expired():
                gone.append(ref)
                self.at_most -= self.noted[ref]
        for ref in gone:
            del self.noted[ref]

    def count(self, newest: Tensor, ref: StorageWeakRef) -> None:
        """Called when there seems to be a new peak, with the newest tensor and its storage."""
        self.at_most = sum(self.bytes_alive().values())
        self.most = max(self.most, self.at_most)


class SettledPeak(Peak):
    """A peak above `limit` counts only if it lasts: gloo's own thread lets go of a tensor a moment after its message is
    over.
    """

    def __init__(self, tensors: Iterable[Tensor] = (), limit: float = 0.0) -> None:
        self.limit = limit
        super().__init__(tensors)

    def count(self, newest: Tensor, ref: StorageWeakRef) -> None:
        settled(self.bytes_alive, lambda alive: sum(alive.values()) > max(self.limit, self.most))
        super().count(newest, ref)


def held(storages: Storages, parameters: Iterable[Tensor], optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes of weights, gradients and optimizer state: of these parameters, and of what the optimizer trains.

    What the optimizer trains counts as a weight where it has a weight's dtype, else (float32 copies of bfloat16
    weights) as state.
    """
    weights, trained = list(parameters), [p for group in optimizer.param_groups for p in group["params"]]
    state = [value for values in optimizer.state.values() for value in values.values() if isinstance(value, Tensor)]
    copies = [p for p in trained if p.dtype not in {weight.dtype for weight in weights}]
    kinds = {
        "gradients": [p.grad for p in (*weights, *trained) if p.grad is not None],
        "optimizer": state + copies,
        "weights": [*weights, *trained],
    }
    return at_rest(storages, kinds)


def at_rest(storages: Storages, kinds: Mapping[str, Iterable[Tensor]]) -> dict[str, int]:
    """`storages.by_kind`, once nothing is let go of any more."""
    kinds = {kind: list(tensors) for kind, tensors in kinds.items()}
    return settled(lambda: storages.by_kind(kinds), lambda found: found["other"] > 0)


def settled(look: Callable[[], Found], may_shrink: Callable[[Found], bool]) -> Found:
    """What `look` finds once it stays as it is, or may no longer shrink: gloo's own threads hold a tensor for a moment
    after its message is over, and for longer where the processors are busy.
    """
    found, since = look(), time.monotonic()
    deadline = since + 2.0
    while may_shrink(found) and time.monotonic() < min(deadline, since + 0.1):
        let_gloo_rest(seconds=0.1)
        time.sleep(0.001)  # there is no signal for it
        if (now := look()) != found:
            found, since = now, time.monotonic()
    return found
