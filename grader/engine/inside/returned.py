"""What the student's functions return, where it is not what their signature promises, and what they have done to the
tensors that they were given: told to the judge.

A check's rank code, and code that was given, go on with what they got and break where they stand, on None most often:
then that line says nothing to the student. So a function that keeps its promise is not noted; of those that do not, the
first is, and the first that returns None.
"""

import functools
import inspect
import threading
import types
from collections.abc import Callable
from typing import Any, Union, get_args, get_origin

from grader.engine.inside.given import Given

NOTHING = "None"
told: list[str] = []  # what was returned, each once: a rank is its own process
running = threading.local()  # whether a function of the student's is


def listen(student: types.ModuleType, say: Callable[..., None]) -> None:
    """Have the functions of the student's module, and the methods of its classes, tell what they return against their
    signature, whatever calls them; and what they do to their arguments, where the check calls them.
    """
    classes = [value for value in vars(student).values() if isinstance(value, type)]
    for owner in (student, *(kind for kind in classes if kind.__module__ == student.__name__)):
        for name, value in list(vars(owner).items()):
            if isinstance(value, staticmethod) and is_function(value.__func__, student.__name__):
                setattr(owner, name, staticmethod(heard(value.__func__, say)))
            elif is_function(value, student.__name__):
                setattr(owner, name, heard(value, say))


def is_function(value: Any, module: str) -> bool:
    """Whether it is a function of this module."""
    return isinstance(value, types.FunctionType) and value.__module__ == module


def heard(function: types.FunctionType, say: Callable[..., None]) -> types.FunctionType:
    wanted, code = function.__annotations__.get("return"), inspect.unwrap(function).__code__

    def tell(kind: str, **about: str) -> None:
        last = max(line for _, _, line in code.co_lines() if line)
        name = function.__qualname__.rpartition("<locals>.")[2]
        say(e=kind, name=name, where=[code.co_filename, last, code.co_name], **about)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if getattr(running, "function", None):
            value = function(*args, **kwargs)
        else:
            running.function, given = function, Given.to(function, args, kwargs)
            try:
                value = function(*args, **kwargs)
            finally:
                running.function = None
            for argument, change in given.changes().items():
                tell("touched", argument=argument, change=change)
        if not keeps(value, wanted) and (not told or (value is None and NOTHING not in told)):
            told.append(kind_of(value))
            tell("strange", returned=told[-1], promised=said(wanted))
        returns_one = is_function(value, function.__module__) and value.__annotations__.get("return") is not None
        return heard(value, say) if returns_one else value

    return call


@functools.cache
def kinds(wanted: Any) -> tuple[Any, ...]:
    """The classes that an annotation allows."""
    parts = get_args(wanted) if get_origin(wanted) in (types.UnionType, Union) else (wanted,)
    found = tuple(get_origin(part) or part for part in parts)
    return (*found, int) if float in found else found


def keeps(value: Any, wanted: Any) -> bool:
    """Whether a value is what an annotation promises, as far as that can be told."""
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
