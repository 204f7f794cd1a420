"""Turns of phrase that were translated word by word stay out of what students read."""

import re

import pytest

from grader.engine.lesson.lessons import COURSE

TEXTS = [
    COURSE / "README.md",
    *sorted((COURSE / "docs").glob("*.md")),
    *sorted(path for path in (COURSE / "solutions").rglob("*") if path.suffix in (".py", ".md", ".sbatch", ".pbs")),
    *sorted(
        path
        for ending in ("py", "md")
        for path in (COURSE / "grader/lessons").rglob(f"*.{ending}")
        if "answers" not in path.parts
    ),
]

HABITS = {
    r"\bfor ever\b": "modern English writes forever; here a rank waits forever",
    r"\bto and fro\b": "back and forth",
    r"\bas it were\b|\bin truth\b": "they excuse a word: choose the right one",
    r"\b(go|goes|went) round\b": "keys and values rotate, messages pass through a ring",
    r"\bshould you (want|wish|need)\b|\bmay be had\b|\bcan be had\b": "plain word order: if you want …",
    r"\bat home\b": "a row is back on its own rank",
    r"\bfor good\b": "permanently",
    r"\bby (gloo|NCCL)\b": "ranks communicate with a library",
    r"\bhas a say\b|\bhave a say\b|\bhas no say\b": "all points are used; an axis does not index",
    r"\bthe begin\b|\bits begin\b": "begin is a verb; the noun is start",
}


STIFF = {
    r"\b([Ss]ome|[Nn]o|[Aa]ny|[Ee]very)body\b|\b[Ww]hoever\b": "ranks are not persons: no rank, whichever rank",
    r"\b[Ww]ho (keeps|has|holds|sends|adds|needs|owns|waits|calls|writes|reads|gets|takes|does)\b": "which rank",
    r"\b(that|those) of\b|\bof (which|whom)\b|\ball that is\b": "name the thing again",
    r"\bother ones\b|\banother one\b|\b(is|are) others\b|\bothers than\b": "different, differs",
    r"\b(have|has|had) (\w+ )?in common\b|\bshare each\b": "the same; split",
    r"\bbeside (the|its|a|an|one|each|it|that)\b|\bby (torch|seed|DCP)\b": "next to, apart from, against; with",
    r"\bdo(es)? not divide by\b|\bmade? (\w+ )?steps?\b": "is not divisible by; a run takes steps",
    r"\bhence\b|\bupon\b|\bthereof\b|\bwhereby\b|\bif need be\b|\beach by itself\b": "so, independently",
    r"\bfrom [\w ]{1,25} on\b(?=[.,;:])": "starting with; in every later one",
    r"\bon (its|their) way\b|\bold friends?\b|\bfor nothing\b": "in flight, special cases, wasted",
    r"(?<![Tt]here )\b(is|are) no (?!longer|more|less|faster|better|worse)[a-z]+": "is not a …",
    r"\b(tells?|told|said|says) of\b": "reports, says about",
    r"\b(goes|gone|going|go) on\b": "resumes, continues",
    r"\bdue (is|are) (?!None)": "expected",
    r"\bno error says so\b": "without any error",
    r"\bin earnest\b|\bstands? (in line|in the way)\b": "really, waits",
    r"\bbe (that|it) [a-z]": "whether",
    r"\bas (good|right)(?= as|[.,;:]|$)": "equally right",
    r"\b(dealt|deals|dealing) out\b|\blets? (it|them|the whole) go\b": "divide, distribute; free",
}
ROOMS = ("grader", "utils", "images", "benchmarks")  # and the texts above; tests and other answers speak to maintainers
MOST_FOR_STUDENTS, MOST = 8, 42  # lines


def stiff(paths: list) -> list[str]:
    """The lines that have one of these turns, once for each."""
    return [
        f"{path.relative_to(COURSE)}:{number}: {line.strip()} ({instead})"
        for path in paths
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        for turn, instead in STIFF.items()
        if re.search(turn, line)
    ]


def test_few_stiff_turns_are_left():
    rooms = {path for room in ROOMS for path in (COURSE / room).rglob("*.py") if "answers" not in path.parts}
    everywhere = sorted(rooms | {*TEXTS, COURSE / "CONTRIBUTING.md", *(COURSE / "grader").glob("*.md")})
    for paths, most in ((TEXTS, MOST_FOR_STUDENTS), (everywhere, MOST)):
        found = stiff(paths)
        assert len(found) <= most, "\n".join(found)


@pytest.mark.parametrize("habit", HABITS)
def test_what_students_read_has_no_such_turn(habit):
    found = [
        f"{path.relative_to(COURSE)}:{number}: {line.strip()}"
        for path in TEXTS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(habit, line)
    ]
    assert not found, f"{HABITS[habit]}\n" + "\n".join(found)


def test_the_patterns_find_what_they_are_for():
    old = "It waits for ever, by gloo, to and fro; as it were, keys go round until they are at home."
    old += " A hint, should you want it."
    assert sum(bool(re.search(habit, old)) for habit in HABITS) == 7
