"""What the student's functions return, where it is not what their signature promises: told to the judge.

A check's rank code, and code that was given, go on with what they got and break where they stand, on None most often:
then that line says nothing to the student. So a function that keeps its promise is not noted; of those that do not, the
first is, and the first that returns None.
"""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, Union, get_args, get_origin

NOTHING = "None"
told: list[str] = []  # what was returned, each once: a rank is a process of its own


def listen(student: types.ModuleType, tell: Callable[..., None]) -> None:
    """Have the functions of the student's module, and the methods of its classes, tell what they return against their
    signature, whoever calls them.
    """
    classes = [value for value in vars(student).values() if isinstance(value, type)]
    for owner in (student, *(kind for kind in classes if kind.__module__ == student.__name__)):
        for name, value in list(vars(owner).items()):
            if isinstance(value, staticmethod) and promises(value.__func__, student.__name__):
                setattr(owner, name, staticmethod(heard(value.__func__, tell)))
            elif promises(value, student.__name__):
                setattr(owner, name, heard(value, tell))


def promises(value: Any, module: str) -> bool:
    """Whether it is a function of this module that says what it returns."""
    return (
        isinstance(value, types.FunctionType)
        and value.__module__ == module
        and value.__annotations__.get("return") is not None
    )


def heard(function: types.FunctionType, tell: Callable[..., None]) -> types.FunctionType:
    wanted, code = function.__annotations__["return"], inspect.unwrap(function).__code__

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        if not keeps(value, wanted) and (not told or (value is None and NOTHING not in told)):
            last = max(line for _, _, line in code.co_lines() if line)
            told.append(kind_of(value))
            tell(
                name=function.__qualname__.rpartition("<locals>.")[2],
                returned=told[-1],
                promised=said(wanted),
                where=[code.co_filename, last, code.co_name],
            )
        return heard(value, tell) if promises(value, function.__module__) else value

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
