"""Questions that have a number as their answer: what the checks of the notebooks ask before anything runs."""

import math
from collections.abc import Callable
from typing import Any

from grader.engine.judge.student import Student
from grader.engine.judge.verdict import expect
from grader.kit.on_rank import answers_on_rank


def check_answers(
    student: Student,
    right: dict[tuple[str, tuple], Any],
    rel: float = 1e-9,
    wrong: str = "is wrong",
    hint: Callable[[Any, Any], str] = lambda answer, guess: "",
) -> None:
    """`right` maps (name, arguments) to the answer, a number or several. They are compared to `rel`: by default
    formulas, in float64. `hint` says what a wrong guess suggests, if it suggests anything.
    """
    (seen,) = student.call(
        answers_on_rank, world=1, group=False, calls=[[name, list(map(listed, arguments))] for name, arguments in right]
    ).evidence
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
        expect(close, f"{call} {wrong}", spoken(answer), spoken(guess), hint="" if close else hint(answer, guess))


def listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def spoken(value: Any) -> str:
    """Numbers, rounded so that they can be read; of many, the first and the last."""
    if isinstance(value, (list, tuple)):
        shown = [spoken(part) for part in value]
        return f"({', '.join(shown if len(shown) < 6 else [*shown[:4], '…', shown[-1]])})"
    return f"{value:,.10g}" if isinstance(value, float) else repr(value) if isinstance(value, str) else str(value)
