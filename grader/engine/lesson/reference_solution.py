"""The reference solution of a TODO, with a comment, to compare with one's own once that is right.

The comment is the part `After a pass` of the lesson's texts. Like the solution it is not released, or sealed with it.
"""

import textwrap

from grader.engine.lesson import lessons, todo_regions, sealed_lessons, texts


def reference(lesson: str, number: int) -> str | None:
    """The reference solution; None in a release without solutions."""
    if not lessons.has_solutions():
        return sealed_lessons.sealed_solution(f"{lesson}/{number}").solution
    bodies: list[str] = []
    for source in lessons.sources(lesson):
        bodies = bodies or todo_regions.solutions(source.read_text("utf-8"), number)  # of two batch files, the first
    return "\n\n".join(bodies)


def after(lesson: str, number: int) -> str:
    """Why the reference does it this way, and what alternatives cost or gain; "" if there are no solutions."""
    if not lessons.has_solutions():
        return sealed_lessons.sealed_solution(f"{lesson}/{number}").after
    return texts.words(lesson, number).after


def own(lesson: str, number: int) -> str:
    """The student's lines of a TODO."""
    bodies = []
    for unit in lessons.units(lesson) + lessons.batch_units(lesson):
        lines = unit.text.split("\n")
        for place in todo_regions.locate(unit.source, unit.text).get(number, []) if unit.source else ():
            bodies.append(textwrap.dedent("\n".join(lines[place.start - 1 : place.stop - 1])))
    return "\n\n".join(bodies)


def same(mine: str, theirs: str) -> bool:
    """Whether the two are the same, apart from comments and white space."""
    return todo_regions.normalise(mine) == todo_regions.normalise(theirs)
