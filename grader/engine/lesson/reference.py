"""The reference solution of a TODO, to lay beside one's own once that is right."""

import textwrap

from grader.engine.lesson import lessons, regions, seals


def reference(lesson: str, number: int) -> str | None:
    """The reference's lines; None in a release without them."""
    if not lessons.has_solutions():
        return seals.sealed_solution(f"{lesson}/{number}")
    bodies: list[str] = []
    for source in lessons.sources(lesson):
        bodies = bodies or regions.solutions(source.read_text("utf-8"), number)  # of two batch files, the first
    return "\n\n".join(bodies)


def own(lesson: str, number: int) -> str:
    """The student's lines of a TODO."""
    bodies = []
    for unit in lessons.units(lesson) + lessons.batch_units(lesson):
        lines = unit.text.split("\n")
        for place in regions.locate(unit.source, unit.text).get(number, []) if unit.source else ():
            bodies.append(textwrap.dedent("\n".join(lines[place.start - 1 : place.stop - 1])))
    return "\n\n".join(bodies)


def same(mine: str, theirs: str) -> bool:
    """Whether the two are one, comments and white space aside."""
    return regions.normalise(mine) == regions.normalise(theirs)
