"""The reference solution of a TODO, and what is to be said about it, to lay beside one's own once that is right.

The texts are in solutions/after/<lesson>.md, under a heading with the TODO's number each. Like all of solutions/ they
are in no release, or sealed with the solution.
"""

import re
import textwrap

from grader.engine.lesson import lessons, regions, seals

HEADING = re.compile(r"^## (\d+)$", re.MULTILINE)


def reference(lesson: str, number: int) -> str | None:
    """The reference's lines; None in a release without them."""
    if not lessons.has_solutions():
        return seals.sealed_solution(f"{lesson}/{number}").solution
    bodies: list[str] = []
    for source in lessons.sources(lesson):
        bodies = bodies or regions.solutions(source.read_text("utf-8"), number)  # of two batch files, the first
    return "\n\n".join(bodies)


def after(lesson: str, number: int) -> str:
    """Why the reference does it in its way, and what others cost or gain; "" where there are no solutions."""
    if not lessons.has_solutions():
        return seals.sealed_solution(f"{lesson}/{number}").after
    return texts(lesson).get(number, "")


def texts(lesson: str) -> dict[int, str]:
    """What solutions/after has on each TODO of a lesson, each in one line."""
    path = lessons.COURSE / "solutions" / "after" / f"{lesson}.md"
    _, *parts = HEADING.split(path.read_text("utf-8")) if path.is_file() else [""]
    return {int(number): " ".join(text.split()) for number, text in zip(parts[::2], parts[1::2], strict=True)}


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
