"""The commands of a student at work: status, check, watch, hint, diff, reset, solution, submit."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from grader.engine.commands.arguments import (
    LEARN,
    Backend,
    Lesson,
    Todo,
    Track,
    app,
    backend_named,
    chosen,
    completed,
    exercise_named,
    lesson_named,
    own_file,
    say_next,
    todo_named,
    track_named,
    unreadable,
)
from grader.engine.commands.screen import COLOURS, fail, say, say_reference
from grader.engine.judge.verdict_text import MARK
from grader.engine.lesson import lessons, reference_solution, sealed_lessons
from grader.engine.lesson.lessons import titles
from grader.engine.lesson.progress import Entry, Progress, exercises, lesson_map, next_todo, right, track_map
from utils.atomic_write import write_whole

if TYPE_CHECKING:
    from grader.engine.judge.verdict import Verdict


@app.command("list", hidden=True)  # what many type first
@app.command(rich_help_panel=LEARN)
def status(
    only: Annotated[str | None, typer.Argument(metavar="[LESSON]", help="default: all lessons")] = None,
    track: Track = "all",
) -> None:
    """List the lessons and their TODOs: what is done, what is next, and how long it takes."""
    if track_named(track):
        if only:
            fail(f"either a lesson or a track: {only} has TODOs outside of the track {track}")
        say("\n".join(track_map(track)))
        say_next(track)
        return
    if only:
        only = lesson_named(only)
    entries = Progress().read()
    lines = lesson_map()
    for lesson, line in zip(lessons.stems(), lines):
        if only not in (None, lesson):
            continue
        say(line)
        for number, title in titles(lesson).items():
            state = entries.get((lesson, number), Entry()).state
            say(f"     [{COLOURS.get(state, 'default')}]{MARK.get(state, '·')} {number:2}  {escape(title)}[/]")
    for line in lines[len(lessons.stems()) :] if only is None else ():  # the sealed ones
        say(line)
    say("[dim]✓ right   ✗ wrong   – waits for another TODO   · not started   ▸ lesson begun[/]")
    say_next(lesson=only)


@app.command(rich_help_panel=LEARN)
def check(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[LESSON[/TODOS]]...", help="such as 02 or 02/1-3+5; default: all lessons"),
    ] = None,
    track: Track = "all",
    target: Annotated[
        Path | None, typer.Option(metavar="DIR", help="check the train/ and notebooks/ in this folder")
    ] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="also write the verdicts to this file")] = None,
    backend: Backend = "auto",
) -> None:
    """Check TODOs: which are right, and what is wrong with the rest."""
    asked = to_check(what or [], track)
    folder = target and existing_folder(target)
    if json and not json.absolute().parent.is_dir():
        fail(f"--json {json}: there is no folder {json.parent}")

    from grader.engine.ranks import kept_server

    if (code := kept_server.hand_over(sys.argv[1:], started=True)) is not None:
        raise typer.Exit(code)

    from json import dumps

    found = judged(asked, folder, backend)
    if not found:
        fail(f"{', '.join(asked)} has no checks yet" if asked else "nothing could be checked")
    if folder is None:
        from grader.engine.commands.record_verdicts import remember

        remember(found)
    if json:
        write_whole(json, dumps([verdict.as_dict() for verdict in found], indent=2) + "\n")
    passed = sum(verdict.passed for verdict in found)
    alone = what and len(found) == passed == 1 and folder is None
    if alone and reference_solution.reference(found[0].lesson, found[0].todo):
        say_reference(found[0].lesson, found[0].todo)
    unread = sum(verdict.cause == "no_python" for verdict in found)
    say(f"\n{passed} of {len(found)} right" + (f", {unread} not judged" if unread else ""))
    for message in dict.fromkeys(verdict.message for verdict in found if verdict.passed and verdict.message):
        say(escape(f"Right, but {message}"))
    unjudged = any(verdict.cause == "not_judged" for verdict in found)
    raise typer.Exit(3 if unjudged else passed < len(found))


def judged(asked: dict[str, list[int]], folder: str | None, backend: str) -> list["Verdict"]:
    """The verdicts on these TODOs, each said as soon as it is known. No TODO means all of a lesson, no lesson all."""
    from grader.engine.ranks.runner import Runner

    with Runner(kept=True) as runner:
        whole = not asked or not all(asked.values())
        runner.start(many=whole)  # before anything is loaded that the ranks must not see
        from grader.engine.commands.screen import say_verdict
        from grader.engine.judge.judge import Judge, checked_lessons, checks_of
        from grader.engine.judge.passed_todos import Passed
        from grader.engine.judge.side_by_side import SideBySide, helpers

        runner.backend = backend_named(backend)
        found: list[Verdict] = []
        todos: dict[str, list[int]] = {}
        for stem in checked_lessons():
            if asked and stem not in asked:
                continue
            if lacking := lessons.lacking(stem):
                say(escape(f"– {stem} is not checked: {lacking}"))
                continue
            todos[stem] = asked.get(stem) or sorted(check.todo.number for check in checks_of(stem))
        every = [(stem, number) for stem, numbers in todos.items() for number in numbers]
        with SideBySide(every, folder, runner.backend, helpers(runner)) as ahead:
            for stem, numbers in todos.items():
                passed = None if folder else Passed(stem, runner.backend)
                judge = Judge(runner, stem, folder, passed=passed, ahead=ahead.passed)
                for verdict in map(judge.verdict, numbers):
                    known = verdict.cause == "no_python" and any(v.cause == "no_python" for v in found)
                    if not known:  # once: it belongs to no TODO
                        say_verdict(verdict, brief=any(before.status == "fail" for before in found))
                    found.append(verdict)
        return found


def to_check(names: list[str], track: str) -> dict[str, list[int]]:
    """The lessons and TODOs that are asked for; none stands for all. Ends the command if they cannot be checked."""
    asked = chosen(names, track)
    for lesson in asked if names else ():
        if lacking := lessons.lacking(lesson):
            fail(lacking)
    waiting = [stem for stem in sealed_lessons.sealed() if stem in dict(track_named(track) or [])]
    if waiting and not asked:
        fail(sealed_lessons.waits_for(waiting[0], right()))
    return asked


def existing_folder(target: Path) -> str:
    """Relative to the user's folder, or to the course folder."""
    for folder in (target.absolute(), lessons.COURSE / target):
        if folder.is_dir():
            return str(folder)
    fail(f"--target {target}: no such folder")


@app.command(rich_help_panel=LEARN)
def watch(
    lesson: Annotated[
        str | None, typer.Argument(metavar="[LESSON]", help="default: the first unfinished lesson")
    ] = None,
    track: Track = "all",
    backend: Backend = "auto",
) -> None:
    """Check a lesson each time you save it, and show the next failure."""
    only = track_named(track)
    here = [stem for stem in exercises() if only is None or stem in dict(only)]
    todo = next_todo(only)
    lesson = exercise_named(lesson) if lesson else todo[0] if todo else here[-1]
    if lesson not in here:
        fail(f"{lesson} is not on the track {track}, which has {', '.join(here)}")

    from grader.engine.ranks.runner import Runner

    with Runner(kept=True) as runner:
        runner.start()
        from grader.engine.commands.watch import Watch
        from grader.engine.judge.judge import checked_lessons

        if lesson not in checked_lessons():
            fail(f"{lesson} has no checks yet")
        runner.backend = backend_named(backend)
        say(f"watching {own_file(lesson)} …")
        Watch(runner, lesson, only).run()


@app.command(rich_help_panel=LEARN)
def stop() -> None:
    """Stop the background server that `check`, `watch` and notebooks share."""
    from grader.engine.ranks import kept_server

    say("stopped" if kept_server.stop() else "none is running")


@app.command(rich_help_panel=LEARN)
def hint(todo: Todo) -> None:
    """Give a hint; each further call gives the next one."""
    lesson, number = todo_named(todo)
    from grader.engine.commands.watch import climb
    from grader.engine.judge.judge import checked_lessons

    if lesson not in checked_lessons():
        fail(f"{lesson} has no hints yet")
    say(escape(climb(lesson, number)))


@app.command(rich_help_panel=LEARN)
def diff(lesson: Lesson) -> None:
    """Show what you changed in a lesson."""
    from grader.engine.lesson import student_files

    lesson = lesson_named(lesson)
    try:
        lines = student_files.diff(lesson)
    except (FileNotFoundError, ValueError) as problem:
        fail(unreadable(problem, lesson))
    for line in lines:
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "default")
        say(f"[{colour}]{escape(line)}[/]")


@app.command(rich_help_panel=LEARN)
def reset(lesson: Lesson) -> None:
    """Restore a lesson to its original state; a copy of your files is kept."""
    from grader.engine.lesson import student_files

    lesson = lesson_named(lesson)
    for line in student_files.reset(lesson):
        say(escape(line))
    Progress().forget(lesson)


@app.command(rich_help_panel=LEARN)
def solution(todo: Todo) -> None:
    """Show the reference solution of a TODO that you have solved, beside yours."""
    lesson, number = todo_named(todo)
    if reference_solution.reference(lesson, number) is None:
        fail("the solutions are not in this copy of the course: your instructor keeps them", 1)
    name = f"{lesson}/{number}"
    if name not in right():
        fail(f"make it pass first (./workbook check {name}); for a hint: ./workbook hint {name}", 1)
    say_reference(lesson, number)


@app.command("open", rich_help_panel=LEARN)
def open_lesson(
    lesson: Annotated[str, typer.Argument(metavar="LESSON", help="such as fsdp_training; or plan, or muon")],
    yes: Annotated[bool, typer.Option("--yes", help="do not ask first")] = False,
) -> None:
    """Unseal a lesson early. It brings answers to TODOs of earlier lessons: those that you have not solved are named,
    and you are asked first.
    """
    lesson = completed(lesson) or lesson_named(lesson)
    if lesson not in sealed_lessons.sealed():
        say(f"{lesson} is not sealed")
        return
    say(f"{lesson} comes with answers to TODOs that you have not solved: {sealed_lessons.missing(lesson, right())}")
    say("It opens on its own when they are right. If you open it now, avoid reading ahead.")
    if not yes and not sys.stdin.isatty():
        fail(f"not opened: ./workbook open {lesson} --yes opens it without asking")
    if not yes and not typer.confirm(f"Open {lesson} now?"):
        raise typer.Exit(1)
    written = sealed_lessons.unseal(lesson)
    is_lesson = lesson in lessons.ORDER
    say(f"{lesson} is open: {f'your file is {own_file(lesson)}' if is_lesson else sealed_lessons.ALSO[lesson][0]}")
    for name, taught in answers_in(written).items():
        say(f"  {name} has answers of {taught}")


def answers_in(written: list[str]) -> dict[str, str]:
    """The library's modules among these files, a package as its folder -> the lesson whose answers they have."""
    found = {}
    for file, taught in lessons.taught(lessons.COURSE).items():
        name = file.relative_to(lessons.COURSE)
        if name.as_posix() in written:
            found[(name if name.parent == Path("utils") else name.parent).as_posix()] = taught
    return found


@app.command(rich_help_panel=LEARN)
def submit(
    out: Annotated[Path, typer.Option(metavar="FILE", help="the archive to write")] = Path("submission.tar.gz"),
) -> None:
    """Pack your files into the archive that you hand in."""
    from grader.engine.lesson import student_files

    try:
        for line in student_files.pack(out, exercises()):
            say(f"  {escape(line)}")
    except ValueError as problem:
        fail(problem)
    say(f"hand in {escape(str(out))}")
