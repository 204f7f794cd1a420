"""What several files with checks of 11_when_it_hangs use."""

from grader.kit import answers_on_rank, expect, hinted, plain

ANSWERS = "The fix is right; this is about the question below it. "


# Where the answer is: in the logs of the run as given, or with the fix.
AS_GIVEN = (
    "Put the given lines back for a moment (`./workbook diff 11_when_it_hangs` shows what you have changed), run the"
    " story's cell, and read the logs of all ranks again."
)


FIXED = "Run the story's cell with your fix in it, and read the log of the rank that failed, to its last line."


def check_story(student, number, right, parts, where=AS_GIVEN):
    """The answer to a story's question: `right` has its parts, and `parts` names each in words."""
    with hinted(ANSWERS + where):
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
