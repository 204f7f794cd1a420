"""The question below a story's TODO: what its run has shown, with the given lines or with the student's fix."""

from collections.abc import Sequence
from typing import Any

from grader.engine.judge.student_in_checks import Student
from grader.engine.judge.verdict import expect, hinted
from grader.kit.on_rank import answers_on_rank, plain

ANSWERS = "The fix is right; this is about the question below it. "
# Where the answer is: in what the run as given has printed, or with the fix.
AS_GIVEN = (
    "Put the given lines back for a moment (`./workbook diff {}` shows what you have changed), run the story's cell,"
    " and read what it says about all ranks again."
)


def check_story(student: Student, number: int, right: Sequence[Any], parts: Sequence[str], where: str = "") -> None:
    """The answer to a story's question: `right` has its parts, and `parts` names each in words. `where`: a hint at what
    to read again, unless it is the run as given.
    """
    with hinted(ANSWERS + (where or AS_GIVEN.format(student.lesson))):
        (seen,), *_ = student.call(answers_on_rank, world=1, group=False, calls=[[f"story_{number}", []]]).evidence
        expect(
            isinstance(seen, list) and len(seen) == len(right),
            f"story_{number}() does not return {len(right)} values",
            f"{len(right)} values",
            seen,
        )
        for said, answer, part in zip(seen, right, parts, strict=True):
            same = said == answer and type(said) is type(plain(answer))
            expect(same, f"story_{number}(): {part} is not {said!r}", "what the run showed", repr(said))
