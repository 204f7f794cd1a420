"""Tensors, lists and modules passed to a function, and what it did to them.

Tensors are read without torch operations, so nothing is created that a monitor of memory or operations would see.
"""

import ctypes
import dataclasses
import inspect
import types
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy
import torch

from utils import private

LARGEST = 64 << 20  # bytes of a tensor that are read: crc32 takes 20 ms for so many, and no check has more
MOST = 1000  # tensors in one call
ITEMS = 10_000  # in the lists and dictionaries of one argument


class Given:
    """A snapshot of some named values: their tensors, alone or in lists, dictionaries and dataclasses, the contents of
    the lists and dictionaries, and of modules the mode and the names of parameters.
    """

    def __init__(self, **values: Any) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        for name, value in values.items():
            for place, tensor in tensors_in(name, value):
                if len(self.tensors) < MOST:
                    self.tensors[place] = tensor
        self.before = {name: look(tensor) for name, tensor in self.tensors.items()}
        self.values = values
        self.held = {name: items(value) for name, value in values.items()}
        self.modules = {name: value for name, value in values.items() if isinstance(value, torch.nn.Module)}
        self.modes = {name: modes(module) for name, module in self.modules.items()}
        self.parameters = {name: parameters(module) for name, module in self.modules.items()}

    @classmethod
    def to(cls, signature: Callable[[], inspect.Signature], args: tuple, kwargs: dict[str, Any]) -> "Given":
        """A snapshot of the arguments of a call, by their names; of a module's method, the module's mode, too."""
        try:
            named = signature().bind(*args, **kwargs).arguments
        except (TypeError, ValueError):  # the call itself will raise
            named = {}
        own = named.pop("self", None)
        given = cls(**named)
        if isinstance(own, torch.nn.Module) and hasattr(own, "_modules"):  # its constructor has run
            given.modules["self"], given.modes["self"] = own, modes(own)
        return given

    def changes(self, gradients: bool = True) -> dict[str, str]:
        """name -> what has changed since then, in words. `gradients`: compare gradients, too; not after the check
        itself ran a backward pass through the tensors.
        """
        found = {name: difference(old, look(self.tensors[name]), gradients) for name, old in self.before.items()}
        others = [name for name, old in self.held.items() if not_held(self.values[name], old)]
        left = {name: left_in(mode, modes(self.modules[name])) for name, mode in self.modes.items()}
        lost = [name for name, had in self.parameters.items() if had - parameters(self.modules[name])]
        return (
            dict.fromkeys(others, "has other items afterwards")
            | dict.fromkeys(lost, "lacks parameters afterwards")
            | {name: change for name, change in (found | left).items() if change}
        )

    def shared_with(self, result: Any) -> list[str]:
        """The name of the argument whose memory a result, or one of several results, uses."""
        parts = result if isinstance(result, (list, tuple)) else [result]
        mine = {part.untyped_storage().data_ptr() for part in parts if isinstance(part, torch.Tensor) and part.numel()}
        return [name for name in self.before if self.tensors[name].untyped_storage().data_ptr() in mine]


def tensors_in(name: str, value: Any, depth: int = 4) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(getattr(value, "_local_tensor", None), torch.Tensor):  # a DTensor
        yield name, value._local_tensor
    elif type(value) in (torch.Tensor, torch.nn.Parameter):
        yield name, value
    elif depth and isinstance(value, (list, tuple)):
        for number, part in enumerate(value):
            yield from tensors_in(f"{name}[{number}]", part, depth - 1)
    elif depth and isinstance(value, dict):
        for key, part in value.items():
            yield from tensors_in(f"{name}[{key!r}]", part, depth - 1)
    elif depth and (isinstance(value, types.SimpleNamespace) or dataclasses.is_dataclass(value)):
        for key, part in getattr(value, "__dict__", {}).items():
            yield from tensors_in(f"{name}.{key}", part, depth - 1)


def items(value: Any) -> list[Any]:
    """The items of a list or a dictionary, and of lists and dictionaries nested in it."""
    found, waiting = [], [value]
    while waiting and len(found) < ITEMS:
        part = waiting.pop()
        found.append(part)
        if type(part) in (list, tuple):
            found.append(len(part))
            waiting.extend(part)
        elif type(part) is dict:
            found.extend(part)
            waiting.extend(part.values())
    return found


def not_held(value: Any, before: list[Any]) -> bool:
    """Whether a list or a dictionary has different items than before: different objects, numbers or strings."""
    now = items(value)
    same = (a is b or (type(a) is type(b) in (int, float, str) and a == b) for a, b in zip(now, before))
    return len(now) != len(before) or not all(same)


def modes(module: torch.nn.Module) -> dict[str, bool]:
    """Which of its modules are in training mode, by name."""
    return {name: part.training for name, part in module.named_modules()}


def parameters(module: torch.nn.Module) -> set[str]:
    return {plain_name(name) for name, _ in module.named_parameters()}


def plain_name(name: str) -> str:
    """A parameter's name in the plain model, without what wrappers add to it."""
    return name.replace("_checkpoint_wrapped_module.", "").removeprefix("module.")


def left_in(before: dict[str, bool], now: dict[str, bool]) -> str:
    """The mode in which a module is left, in words; "" if that is its mode of before."""
    for name, mode in before.items():
        if now.get(name, mode) != mode:
            return f"is left in {'evaluation' if mode else 'training'} mode"
    return ""


class Look(NamedTuple):
    """A snapshot of one tensor."""

    kind: tuple  # shape and dtype
    numbers: int
    strides: tuple[int, ...]
    requires_grad: bool
    grad: int | None  # its numbers
    attributes: frozenset[str]  # given to it by name


def look(tensor: torch.Tensor) -> Look:
    with private.without_overrides():
        grad = tensor.grad if tensor.is_leaf else None
        return Look(
            (tuple(tensor.shape), tensor.dtype),
            checksum(tensor),
            tensor.stride() if tensor.layout == torch.strided else (),
            tensor.requires_grad,
            None if grad is None else checksum(grad),
            frozenset(vars(tensor)),
        )


def checksum(tensor: torch.Tensor) -> int:
    """A checksum of its bytes, so that a NaN equals itself. 0 if it has no readable bytes."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided or tensor.is_meta:
        return 0
    if not tensor.numel() or tensor.numel() * tensor.element_size() > LARGEST or not tensor.data_ptr():
        return 0
    if tensor.device.type != "cpu":
        with private.without_modes():
            tensor = tensor.detach().cpu()
    size, shape, strides = tensor.element_size(), tuple(tensor.shape), tensor.stride()
    span = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides))
    memory = (ctypes.c_char * (span * size)).from_address(tensor.data_ptr())
    if span == tensor.numel():
        return zlib.crc32(memory)
    numbers = numpy.ndarray(shape, f"V{size}", memory, strides=[size * stride for stride in strides])
    return zlib.crc32(numbers.tobytes())


def difference(old: Look, new: Look, gradients: bool) -> str:
    """The difference in words; "" if there is none."""
    if new.kind != old.kind:
        return "has another shape or dtype afterwards"
    if new.numbers != old.numbers:
        return "is written into"
    if new.strides != old.strides:
        return "has other strides afterwards"
    if new.requires_grad != old.requires_grad:
        return f"requires {'a' if new.requires_grad else 'no'} gradient afterwards"
    if more := sorted(new.attributes - old.attributes):
        return f"has the attribute “{more[0]}” afterwards"
    if not gradients or new.grad == old.grad:
        return ""
    if (new.grad is None) != (old.grad is None):
        return f"has {'no gradient any more' if new.grad is None else 'a gradient'} afterwards"
    return "has another gradient afterwards"
