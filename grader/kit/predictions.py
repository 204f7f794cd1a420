"""Questions that have a number as their answer: what the checks of the notebooks ask before anything runs."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch


from grader.engine.judge.student_in_checks import Student
from grader.engine.judge.verdict import expect
from grader.engine.ranks.diagnose import Fault
from grader.kit.on_rank import a_number, answers_on_rank


def check_answers(
    student: Student,
    right: dict[tuple[str, tuple], Any],
    rel: float = 1e-9,
    wrong: str = "is wrong",
    hint: Callable[[Any, Any], str] = lambda answer, guess: "",
    hints: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """`right` maps (name, arguments) to the answer, a number or several. They are compared to `rel`: by default
    formulas, in float64. `hint` says what a wrong guess suggests, if it suggests anything; `hints` has a hint for each
    name that the TODO's first hint is not about, wrong or crashed.
    """
    calls = [[name, list(map(listed, arguments))] for name, arguments in right]
    try:
        (seen,) = student.call(answers_on_rank, world=1, group=False, calls=calls).evidence
    except Fault as fault:
        lines = [fault.where, *fault.callers] if fault.where else []
        fault.hint = fault.hint or next((hints[line[2]] for line in reversed(lines) if line[2] in hints), "")
        raise
    for ((name, arguments), answer), guess in zip(right.items(), seen, strict=True):
        call = f"{name}({', '.join(map(spoken, arguments))})"
        if isinstance(answer, tuple):
            expect(
                isinstance(guess, list) and len(guess) == len(answer),
                f"{call} does not return {len(answer)} numbers",
                spoken(answer),
                spoken(guess),
            )
        pairs = zip(answer, guess, strict=True) if isinstance(answer, tuple) else [(answer, guess)]
        close = all(isinstance(g, (int, float)) and math.isclose(g, a, rel_tol=rel) for a, g in pairs)
        expect(
            close,
            f"{call} {wrong}",
            *both(answer, guess, spoken),
            hint="" if close else hint(answer, guess) or hints.get(name, ""),
        )


def listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def spoken(value: Any, digits: int = 10) -> str:
    """Numbers, rounded so that they can be read; of many, the first and the last."""
    if isinstance(value, (list, tuple)):
        shown = [spoken(part, digits) for part in value]
        return f"({', '.join(shown if len(shown) < 6 else [*shown[:4], '…', shown[-1]])})"
    return (
        f"{value:,.{max(digits, 10)}g}"
        if isinstance(value, float)
        else repr(value)
        if isinstance(value, str)
        else str(value)
    )


def same_numbers(seen: Any, right: Any) -> bool:
    """Whether a number, or several in lists and dictionaries, are right, to rounding errors of float64."""
    if isinstance(right, dict):
        return (
            isinstance(seen, dict)
            and seen.keys() == right.keys()
            and all(same_numbers(seen[k], right[k]) for k in right)
        )
    if isinstance(right, (tuple, list)):
        return isinstance(seen, list) and len(seen) == len(right) and all(map(same_numbers, seen, right))
    found = a_number(seen)
    return found is not None and math.isclose(found, right, rel_tol=1e-9, abs_tol=1e-15)


def known(
    seen: Sequence[Any],
    right: Sequence[Any],
    wrongs: Mapping[str, Sequence[Any]],
    same: Callable[[Any, Any], bool] = same_numbers,
) -> str:
    """The mistake that gives all of these results, of `wrongs`: what was done -> its results, as many. "" where none or
    several fit. One number may be wrong for many reasons, so give all that a function has returned; and a zero has
    more reasons still, so a mistake that differs from `right` only where it gives zeros is not told.
    """

    def fits(wrong: Sequence[Any]) -> bool:
        tells = any(
            not same(mistaken, due) and not is_zero(mistaken) for mistaken, due in zip(wrong, right, strict=True)
        )
        return tells and all(same(got, mistaken) for got, mistaken in zip(seen, wrong, strict=True))

    fitting = [words for words, wrong in wrongs.items() if fits(wrong)]
    return fitting[0] if len(fitting) == 1 else ""


def is_zero(value: Any) -> bool:
    return not value.any() if isinstance(value, torch.Tensor) else value == 0


def named_apart(student: Student, right: Sequence[float], wrongs: Mapping[str, Sequence[float]]) -> None:
    """Premises: with what was drawn, each of these mistakes gives other numbers than the right answer, and than each
    other mistake.
    """
    named = {"the right answer": right, **wrongs}
    for (one, first), (other, second) in itertools.combinations(named.items(), 2):
        student.premise(not all(map(same_numbers, first, second)), f"“{other}”, or it would be told as “{one}”")


def written(value: Any, digits: int = 8) -> str:
    """Numbers for a verdict, in lists and dictionaries, with commas in the thousands; with more `digits` if asked."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {written(part, digits)}" for key, part in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(written(part, digits) for part in value) + ")"
    if a_number(value) is None:
        return str(value)
    if digits > 8 or abs(value) < 1e6 and value % 1:
        return f"{value:,.{digits}g}"
    return f"{value:,.3f}".removesuffix(".000")


def both(expected: Any, seen: Any, write: Callable[[Any, int], str] = written) -> tuple[str, str]:
    """What was expected and what was seen for a verdict, with enough digits to differ."""
    told = "", ""
    for digits in (8, 10, 12, 14, 17):
        told = write(expected, digits), write(seen, digits)
        if told[0] != told[1]:
            break
    return told
