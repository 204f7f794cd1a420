"""The command line, and the lessons and TODOs that its arguments name."""

import difflib
import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from grader.engine.commands.screen import fail, say
from grader.engine.lesson import lessons, sealed_lessons, todo_regions, tracks
from grader.engine.lesson.lessons import titles
from grader.engine.lesson.progress import exercises, next_todo, right

if TYPE_CHECKING:
    from grader.engine.ranks import backends

app = typer.Typer(
    help="Learn parallel training: fill in TODOs, see at once which are right.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


BEGIN, LEARN, TEACH = "To begin", "To learn", "For instructors and maintainers"


STUDENTS = not lessons.has_solutions()  # this is a student's copy of the course


Lesson = Annotated[str, typer.Argument(metavar="LESSON", help="such as ddp_training; a unique prefix is enough")]


Todo = Annotated[str, typer.Argument(metavar="LESSON/TODO", help="such as ddp_training/4")]


Track = Annotated[
    str, typer.Option(metavar="half|day|two|all", help="the TODOs that fit into half a day, a day, two days")
]


Backend = Annotated[
    str,
    typer.Option(
        metavar="auto|gloo|nccl",
        help="the communication backend: nccl on GPUs, gloo on CPUs; auto: nccl where possible",
    ),
]


def backend_named(wish: str) -> "backends.Backend":
    """Also prints the chosen backend if there was a choice. Loads torch."""
    from grader.engine.ranks import backends

    try:
        chosen = backends.choose(wish)
    except backends.NoBackend as problem:
        fail(problem)
    if chosen.story():
        say(f"[dim]{escape(chosen.story())}[/]")
    return chosen


def lesson_named(name: str) -> str:
    """The lesson of this name, or the only one whose name begins with it; not a sealed one."""
    stems, lesson = lessons.stems(), completed(name)
    if not lesson and (meant := completed(name.partition("/")[0])):
        fail(f"{name}: give a lesson here, without TODOs: {meant}")
    if lesson in sealed_lessons.sealed():
        fail(sealed_lessons.waits_for(lesson, right()))
    if not lesson:
        close = [stem for stem in stems if stem.startswith(name)] or difflib.get_close_matches(name, stems, n=1)
        fail(f"no lesson {name}" + (f", did you mean {close[0]}?" if close else ".") + f" There are {', '.join(stems)}")
    return lesson


def completed(name: str) -> str:
    """The only lesson, sealed ones included, whose name begins with this; "" if there is none, or more than one."""
    known = [*lessons.stems(), *sealed_lessons.sealed()]
    meant = [stem for stem in known if stem.startswith(name)]
    return name if name in known else meant[0] if len(meant) == 1 else ""


def exercise_named(name: str) -> str:
    lesson = lesson_named(name)
    if not titles(lesson):
        fail(f"{lesson} has no TODOs, it runs as given; these have TODOs: {', '.join(exercises())}")
    return lesson


def todo_named(name: str) -> tuple[str, int]:
    """The one TODO of this name."""
    lesson, numbers = todos_named(name)
    if not numbers:
        fail(f"which TODO? {lesson} has {lesson}/1 to {lesson}/{max(titles(lesson))}")
    if len(numbers) > 1:
        fail(f"{name} is more than one TODO; give one, such as {lesson}/{numbers[0]}")
    return lesson, numbers[0]


def todos_named(name: str) -> tuple[str, list[int]]:
    """The lesson and the TODOs of a name as `status` prints them, such as "02_data_parallel/1-3+5"; no TODO stands for
    all.
    """
    begun, slash, numbers = name.partition("/")
    lesson = exercise_named(begun)
    known = titles(lesson)
    if not slash:
        return lesson, []
    try:
        found = tracks.spelled_out(numbers.replace(",", "+"))
    except ValueError:
        found = []
    if not found or not set(found) <= set(known):
        fail(f"there is no TODO {name}; {lesson} has 1 to {max(known)}: {lesson}/1 is the first")
    return lesson, list(dict.fromkeys(found))


def chosen(names: Iterable[str], track: str = "all") -> dict[str, list[int]]:
    """The lessons, in course order, and the TODOs that are asked for by their names and by a track; no TODO stands for
    all of the lesson.
    """
    found: dict[str, list[int]] = {}
    for lesson, numbers in map(todos_named, names):
        before = found.get(lesson)
        found[lesson] = [] if before == [] or not numbers else [*(before or []), *numbers]
    for lesson, number in track_named(track) or []:
        if lesson in sealed_lessons.sealed():
            continue
        if found.get(lesson) != []:
            found.setdefault(lesson, []).append(number)
    return {lesson: sorted(set(found[lesson])) for lesson in sorted(found, key=lessons.ORDER.index)}


def track_named(name: str) -> list[tracks.Id] | None:
    """The TODOs of a track; None for the whole course."""
    if name not in (*tracks.TRACKS, "all"):
        fail(f"no track {name}; there are {', '.join(tracks.TRACKS)} and all")
    return None if name == "all" else tracks.members(name)


def say_next(track: str = "all", lesson: str | None = None) -> None:
    """What to do next: in the whole course, on a track, or in a lesson while it has something left."""
    chosen = track_named(track)
    todo = (lesson and next_todo([(lesson, number) for number in titles(lesson)])) or next_todo(chosen)
    waiting = [lesson for lesson in sealed_lessons.sealed() if chosen and lesson in dict(chosen)]
    if todo is None and waiting:
        say("\n" + escape(sealed_lessons.waits_for(waiting[0], right())))
    elif todo is None and chosen:
        script = next(lesson for lesson, _ in reversed(chosen) if not lessons.is_notebook(lesson))
        names = [*tracks.TRACKS, "all"]
        longer = names[names.index(track) + 1]
        say(f"\nThis track is done: ./workbook run {script} shows what you have built.")
        say(f"Go on with ./workbook status --track {longer}")
    elif todo is None:
        say("\nAll TODOs are done.")
    else:
        where = "in JupyterLab (./workbook lab)" if lessons.is_notebook(todo[0]) else "in an editor"
        option = f" --track {track}" if chosen else ""
        say(
            f"\nNext: [bold]./workbook watch {todo[0]}{option}[/], and open {own_file(*todo)} {where}: TODO {todo[1]},"
            f" {escape(titles(todo[0])[todo[1]])}"
        )


def own_file(lesson: str, number: int | None = None) -> str:
    """The student's file, or the file of one TODO: a batch file for this machine's scheduler, if the TODO is in one."""
    if number is not None and (
        batch := [u.name for u in lessons.batch_units(lesson) if number in todo_regions.titles(u.source)]
    ):
        return next((name for name in batch if name.endswith(".pbs") == bool(shutil.which("qsub"))), batch[0])
    return str(lessons.student_path(lesson).relative_to(lessons.COURSE))


def unreadable(problem: Exception, lesson: str) -> str:
    if isinstance(problem, FileNotFoundError):
        return f"there is no {problem.filename}: ./workbook reset {lesson} brings it back"
    return str(problem)
