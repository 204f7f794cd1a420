"""What the student's functions return, where it is not what their signature promises, and what they have done to the
tensors that they were given, or had returned before: told to the judge.

A check's rank code, and given code, use the result and fail somewhere else, most often on None; that line tells the
student nothing. So the first function that breaks its signature is reported, and the first that returns None.
"""

import ctypes
import functools
import inspect
import reprlib
import threading
import types
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Union, get_args, get_origin

import torch
import torch.distributed as dist
from torch.autograd.function import FunctionCtx
from torch.multiprocessing.reductions import StorageWeakRef

from grader.engine.inside.changed_arguments import LARGEST, Given, items, tensors_in

NOTHING = "None"
# What these arguments hold is known, so whatever else is returned is the function's own. A model or an optimizer may
# return its own tensors, call after call.
OPEN = (torch.Tensor, torch.dtype, dist.ProcessGroup, dist.Work, FunctionCtx, types.FunctionType)
OPEN += (int, float, str, slice, list, tuple, dict, type(None))
reported: list[str] = []  # reported functions, each once: a rank is its own process
running = threading.local()  # whether a student's function is running
before: dict[str, list[tuple[StorageWeakRef, int]]] = {}  # function -> the memory of its results, and their numbers


def listen(student: types.ModuleType, say: Callable[..., None]) -> None:
    """Wrap the functions of the student's module, and the methods of its classes, to report what they return against
    their signature, whoever calls them; and what they do to their arguments if the check calls them.
    """
    classes = [value for value in vars(student).values() if isinstance(value, type)]
    for owner in (student, *(kind for kind in classes if kind.__module__ == student.__name__)):
        for name, value in list(vars(owner).items()):
            if isinstance(value, staticmethod) and is_function(value.__func__, student.__name__):
                setattr(owner, name, staticmethod(heard(value.__func__, say)))
            elif is_function(value, student.__name__):
                setattr(owner, name, heard(value, say))


def is_function(value: Any, module: str) -> bool:
    """Whether `value` is a function of this module."""
    return isinstance(value, types.FunctionType) and value.__module__ == module


def heard(function: types.FunctionType, say: Callable[..., None]) -> types.FunctionType:
    wanted, code = function.__annotations__.get("return"), inspect.unwrap(function).__code__
    signature = functools.cache(lambda: inspect.signature(function))  # at the first call; it takes 0.1 ms

    def tell(kind: str, **about: str) -> None:
        last = max(line for _, _, line in code.co_lines() if line)
        name = function.__qualname__.rpartition("<locals>.")[2]
        say(e=kind, name=name, where=[code.co_filename, last, code.co_name], **about)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if getattr(running, "function", None):
            with noted(function, args, kwargs):
                value = function(*args, **kwargs)
        else:
            running.function, given = function, Given.to(signature, args, kwargs)
            try:
                with noted(function, args, kwargs):
                    value = function(*args, **kwargs)
            except (NameError, AttributeError, NotImplementedError):  # whatever the numbers
                raise
            except Exception as error:
                if told := with_numbers(given.values):
                    error.called_as = f"{function.__name__}({told})"
                raise
            finally:
                running.function = None
            for argument, change in given.changes().items():
                tell("touched", argument=argument, change=change)
            if overwrites(function.__qualname__, given, value):
                tell("overwritten")
        if not keeps(value, wanted) and (not reported or (value is None and NOTHING not in reported)):
            reported.append(kind_of(value))
            tell("strange", returned=reported[-1], promised=said(wanted))
        returns_one = is_function(value, function.__module__) and value.__annotations__.get("return") is not None
        return heard(value, say) if returns_one else value

    return call


@contextmanager
def noted(function: types.FunctionType, args: tuple, kwargs: dict[str, Any]) -> Iterator[None]:
    """An error about None that comes from in here gets a note, if the function was given None against its signature:
    then the mistake is where it was called.
    """
    try:
        yield
    except (AttributeError, TypeError) as error:
        if "None" in str(error) and not getattr(error, "__notes__", None):
            for argument in nothings(function, args, kwargs)[:1]:
                error.add_note(f"{function.__name__} is given None as {argument}")
        raise


def with_numbers(arguments: dict[str, Any]) -> str:
    """The arguments of a call, by name: numbers, words, and lists of them, and the shapes of tensors. "" if there is no
    number.
    """
    shown = {name: short(value) for name, value in arguments.items()}
    telling = any(has_number(value) and shown[name] != "…" for name, value in arguments.items())
    return ", ".join(f"{name}={value}" for name, value in shown.items()) if telling else ""


def has_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, (list, tuple)) and any(map(has_number, value)))


def short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    plain = all(isinstance(part, (int, float, str, list, tuple, type(None))) for part in items(value))
    return reprlib.repr(value) if plain else "…"


def nothings(function: types.FunctionType, args: tuple, kwargs: dict[str, Any]) -> list[str]:
    """The arguments that are None, or lists with a None in them, where the signature has no None."""
    found = []
    for name, value in inspect.signature(function).bind(*args, **kwargs).arguments.items():
        wanted = function.__annotations__.get(name)
        if wanted is None or isinstance(wanted, str) or "None" in str(wanted):
            continue
        if value is None:
            found.append(name)
        elif isinstance(value, (list, tuple)):
            found += [f"{name}[{place}]" for place, part in enumerate(value) if part is None]
    return found


def overwrites(name: str, given: Given, value: Any) -> bool:
    """Whether a result is in the memory of an earlier result of this function, whose numbers have changed since: a
    buffer that was made once. Nothing is kept alive to know that.
    """
    if not all(isinstance(part, OPEN) for argument in given.values.values() for part in items(argument)):
        return False
    theirs = {tensor.untyped_storage().data_ptr() for tensor in given.tensors.values()}
    results = (tensor for _, tensor in tensors_in("", value) if tensor.device.type == "cpu")
    mine = [storage for tensor in results if (storage := tensor.untyped_storage()).data_ptr() not in theirs]
    found = [(StorageWeakRef(storage), numbers_in(storage)) for storage in mine]
    known = [(memory, numbers) for memory, numbers in before.get(name, []) if not memory.expired()]
    before[name] = known + found
    return any(memory.cdata == old.cdata and now != then for memory, now in found for old, then in known)


def numbers_in(storage: torch.UntypedStorage) -> int:
    """A checksum of its bytes; 0 where there are none to look at."""
    if not 0 < storage.nbytes() <= LARGEST or not storage.data_ptr():
        return 0
    return zlib.crc32((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr()))


@functools.cache
def kinds(wanted: Any) -> tuple[Any, ...]:
    """The classes that an annotation allows."""
    parts = get_args(wanted) if get_origin(wanted) in (types.UnionType, Union) else (wanted,)
    found = tuple(get_origin(part) or part for part in parts)
    return (*found, int) if float in found else found


def keeps(value: Any, wanted: Any) -> bool:
    """Whether a value fits an annotation, as far as that can be checked."""
    try:
        return wanted is None or isinstance(value, kinds(wanted))
    except TypeError:  # a name in quotes
        return True


def kind_of(value: Any) -> str:
    """What a value is, in words."""
    name = type(value).__name__
    return NOTHING if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def said(wanted: Any) -> str:
    return getattr(wanted, "__name__", str(wanted)) if get_origin(wanted) is None else str(wanted)
