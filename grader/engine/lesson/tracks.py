"""Paths through the course: the time that each TODO takes, and tracks of TODOs for half a day, one day and two days."""

from typing import NamedTuple

from grader.engine.lesson import lessons, sealed_lessons, texts

Id = tuple[str, int]  # lesson, TODO


class Track(NamedTuple):
    """A selection of TODOs, in course order, that fits into some hours."""

    title: str
    hours: float
    todos: tuple[str, ...]  # "ddp_training/1-3+5"


def track(name: str) -> Track:
    """A track of the register, with the TODOs of the shorter track that it comes `after`."""
    about = lessons.REGISTER["tracks"][name]
    before = track(about["after"]).todos if "after" in about else ()
    return Track(about["title"], about["hours"], (*before, *about["todos"]))


TRACKS = {name: track(name) for name in lessons.REGISTER["tracks"]}


def efforts(stem: str) -> dict[int, texts.Words]:
    """TODO -> the words that say how long it takes, also for a sealed lesson; empty if it has no texts."""
    return texts.read(stem).todos


def members(name: str) -> list[Id]:
    """The TODOs of a track, in course order, as far as this copy of the course has their lessons."""
    here = {*lessons.stems(), *sealed_lessons.sealed()}
    found = []
    for part in TRACKS[name].todos:
        stem, _, numbers = part.partition("/")
        if stem in here:
            found += [(stem, number) for number in spelled_out(numbers)]
    return sorted(found, key=lambda todo: (lessons.ORDER.index(todo[0]), todo[1]))


def spelled_out(numbers: str) -> list[int]:
    """ "1-3+5" as 1, 2, 3, 5."""
    found: list[int] = []
    for span in numbers.split("+"):
        first, _, last = span.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def minutes(todos: list[Id]) -> int:
    """The sum of the estimates."""
    return sum(efforts(stem)[number].minutes for stem, number in todos if number in efforts(stem))


def hours(minutes: int) -> str:
    """ "40 min", "3 h", "3 h 20 min"."""
    whole, rest = divmod(minutes, 60)
    return " ".join(words for count, words in ((whole, f"{whole} h"), (rest, f"{rest} min")) if count) or "0 min"
