"""What the student's functions return to a check, where it is not what their signature promises.

A check's rank code goes on with what it got, and breaks where it stands, on None most often: then its own line says
nothing to the student. So a function that keeps its promise is not noted, and of one that does not, the first time is.
"""

import functools
import types
from collections.abc import Callable
from typing import Any, Union, get_origin


class Heard(types.ModuleType):
    """The student's module as a check has it. Its own code finds its functions without this."""

    __tell__: Callable[[dict], None]  # is told of the first promise that is not kept

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if isinstance(value, types.FunctionType) and value.__module__ == super().__getattribute__("__name__"):
            return heard(value, super().__getattribute__("__tell__"))
        return value


first: list[dict] = []  # at most one: a rank is a process of its own


def heard(function: types.FunctionType, tell: Callable[[dict], None]) -> types.FunctionType:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        wanted = function.__annotations__.get("return")
        if not first and not keeps(value, wanted):
            last = max(line for _, _, line in function.__code__.co_lines() if line)
            text = f"{function.__name__} returns {spoken(value)}, where its signature says {said(wanted)}"
            first.append({"text": text, "where": [function.__code__.co_filename, last, function.__name__]})
            tell(first[0])
        return value

    return call


def keeps(value: Any, wanted: Any) -> bool:
    """Whether a value is what an annotation promises, as far as that can be told."""
    if wanted is None:
        return True
    union = get_origin(wanted) in (types.UnionType, Union)
    try:
        return isinstance(value, wanted if union else get_origin(wanted) or wanted) or (wanted, type(value)) == (
            float,
            int,
        )
    except TypeError:  # a union with lists in it, a name in quotes
        return True


def spoken(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def said(wanted: Any) -> str:
    return getattr(wanted, "__name__", str(wanted)) if get_origin(wanted) is None else str(wanted)
