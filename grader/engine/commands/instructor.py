"""The commands of instructors and maintainers: test, build, release, grading, mutants."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from grader.engine.classroom import records
from grader.engine.commands.arguments import STUDENTS, TEACH, Todo, Track, app, chosen, exercise_named, todo_named
from grader.engine.commands.arguments import todos_named
from grader.engine.commands.screen import console, fail, say
from grader.engine.lesson import lessons, sealed_lessons, tracks
from grader.engine.lesson.progress import exercises


Lessons = Annotated[
    str, typer.Option("--lessons", metavar="A,B/1-3", help="only these lessons, or TODOs of them; default: all")
]


@app.command(rich_help_panel=TEACH, hidden=STUDENTS)
def test(
    args: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[LESSON]... | -- ARGS",
            help="lessons, with --seeds, --seed or --premises; otherwise arguments for pytest: -- -k build",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="also run slow tests: wrong answers, a class of cheats, a real Slurm, …")
    ] = False,
    seeds: Annotated[
        int, typer.Option(min=0, metavar="N", help="only judge all right answers, with N drawn seeds")
    ] = 0,
    seed: Annotated[
        list[str] | None, typer.Option(metavar="SEED", help="like --seeds, but with this seed; may be repeated")
    ] = None,
    premises: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="only try the checks' drawn inputs and references, with N seeds; starts no ranks"
        ),
    ] = 0,
) -> None:
    """Test the workbook and the reference solutions; or only the files in ARGS."""
    import subprocess

    from grader.engine.judge import try_premises as rehearsals
    from grader.engine.judge import try_seeds as trials

    if seeds or seed or premises:
        needs_solutions()
        stems = [exercise_named(name) for name in args or []] or exercises()
        chosen = [*(seed or []), *(trials.drawn() for _ in range(premises or seeds))]
        asked = (stems, chosen, lambda line: say(escape(line)))
        raise typer.Exit(not (rehearsals.trial(*asked) if premises else trials.trial(*asked, others=True)))
    if not (lessons.COURSE / "tests").is_dir():
        fail("a student's copy of the course has no tests; ./workbook check checks your files")
    # A test spends most of its time waiting for ranks or a kernel to start; of the slow ones, some wait for Slurm.
    workers = str(min((os.cpu_count() or 1) + everything, 4))
    named = any((lessons.COURSE / arg.partition("::")[0]).exists() for arg in args or [] if not arg.startswith("-"))
    own = [*["tests"] * (not named), "-n", workers, "--dist", "worksteal", *["--all"] * everything]
    done = subprocess.run([sys.executable, "-m", "pytest", *own, *(args or [])], cwd=lessons.COURSE, check=False)
    raise typer.Exit(done.returncode)


@app.command(rich_help_panel=TEACH, hidden=STUDENTS)
def build(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[LESSON]...", help="with --check: only these lessons")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="also overwrite edited files; copies are kept")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="write nothing; report problems in sources and checks")
    ] = False,
) -> None:
    """Write the student files from solutions/."""
    from grader.engine.judge.verdict import count_of
    from grader.engine.lesson import build as builder
    from grader.engine.lesson.todo_regions import SourceError

    needs_solutions()
    if not check:
        if names:
            fail(f"build writes all lessons; to look at one alone: ./workbook build --check {names[0]}")
        try:
            for line in builder.build(force):
                say(escape(line))
        except SourceError as problem:
            fail(problem)
        return
    for name in names or []:
        if name not in builder.all_stems():
            fail(f"no lesson {name} in solutions/. There are {', '.join(builder.all_stems())}")
    chosen = names or builder.all_stems()
    problems = builder.check_sources(names)
    if not problems:  # broken sources cannot be judged
        from grader.engine.ranks.runner import Runner

        with Runner() as runner:
            runner.start()
            from grader.engine.judge import audit

            for line in audit.unchecked(chosen):
                say(escape(line))
            problems = audit.problems(runner, chosen)
    for problem in problems:
        say(escape(problem))
    say("nothing is wrong" if not problems else count_of(len(problems), "problem"))
    raise typer.Exit(bool(problems))


@app.command(rich_help_panel=TEACH, hidden=STUDENTS)
def release(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="new or empty")],
    only: Annotated[
        list[str] | None, typer.Option("--with", metavar="LESSON", help="only this lesson; may be repeated")
    ] = None,
    reveal: Annotated[
        bool, typer.Option("--reveal", help="include the reference solutions, each sealed until its TODO is right")
    ] = False,
) -> None:
    """Write the course for students, without solutions, and verify that none is left."""
    from grader.engine.lesson import release as releaser

    needs_solutions()
    try:
        lines = releaser.release(folder.absolute(), only, reveal)
    except ValueError as problem:
        fail(problem)
    for line in lines:
        say(escape(line))


@app.command(rich_help_panel=TEACH, hidden=STUDENTS)
def grade(
    submissions: Annotated[
        Path, typer.Argument(metavar="SUBMISSIONS", help="a folder with a folder or an archive for each student")
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="where records, marks and feedback go; an interrupted run continues")
    ],
    jobs: Annotated[int, typer.Option(min=1, help="submissions graded at the same time")] = 1,
    names: Lessons = "",
    track: Track = "all",
    keep: Annotated[
        str, typer.Option(metavar="last|first", help="which counts if a student handed in the same twice")
    ] = "last",
    seed: Annotated[
        str | None, typer.Option(help="seed of the checks; default: drawn, tested on the solutions, and kept in DIR")
    ] = None,
    walls: Annotated[
        str,
        typer.Option(
            "--sandbox", metavar="bubblewrap|users|off", help="users: weaker, for root in a container; off: none"
        ),
    ] = "bubblewrap",
    minutes: Annotated[float, typer.Option(min=0.1, help="time limit for one submission")] = 10.0,
    backend: Annotated[
        str, typer.Option(metavar="auto|gloo|nccl", help="the backend, the same for the whole class")
    ] = "gloo",
    again: Annotated[bool, typer.Option("--again", help="grade again; earlier results stay in the history")] = False,
    slurm: Annotated[bool, typer.Option("--slurm", help="run as an array of --jobs jobs, not on this machine")] = False,
    slurm_options: Annotated[
        str, typer.Option(metavar="A=B,…", help="options of these jobs, such as partition=batch,account=mine")
    ] = "",
) -> None:
    """Grade a class. Submissions are untrusted code, and each runs in isolation."""
    if not submissions.is_dir():
        unpack = "is a file: unpack it, and give the folder" if submissions.is_file() else "no such folder"
        fail(f"{submissions}: {unpack}")
    if walls not in ("bubblewrap", "users", "off"):
        fail(f"--sandbox {walls}: it is bubblewrap, users or off")
    if walls == "users" and jobs > 1:  # of a job array, too, whose jobs may share a node
        fail("--sandbox users: one submission at a time, for one reaches the other's ports; leave --jobs away")
    if keep not in ("last", "first"):
        fail(f"--keep {keep}: it is last or first")
    asked = counting(names, track)
    stems, todos = list(asked), {stem: numbers for stem, numbers in asked.items() if numbers}
    if not stems:
        fail(f"no lesson of the track {track} can be graded here")
    from grader.engine.classroom import grade as grading
    from grader.engine.classroom import pages
    from grader.engine.classroom.submitters import students
    from grader.engine.commands import grading_progress
    from grader.engine.lesson.release import ReleaseError
    from grader.engine.ranks import backends
    from grader.engine.walls.sandbox import NoSandbox

    try:
        found, told = students(submissions, keep)
    except ValueError as problem:
        fail(problem)
    for line in told:
        say(f"[yellow]{escape(line)}[/]")
    if not found:
        fail(f"{submissions}: there is no submission in it: no folder, no archive, no notebook, script or batch file")
    try:
        # On a cluster the GPUs are on the nodes of the jobs; a job that finds none says so in its records.
        backend = backend if slurm and backend == "nccl" else backends.for_a_class(backend).name
        grading.try_walls(walls, backend)
        if seed is None and not (out / "class.json").is_file() and lessons.has_solutions():
            seed = seed_for_a_class(stems)
        room = grading.open_class(out, stems, seed, walls, minutes, backend, todos, told)
    except (ValueError, NoSandbox, ReleaseError) as problem:
        fail(problem)
    say(f"[{'red' if 'OPEN' in room.guards else 'dim'}]{escape(room.guards)}[/]")
    say(f"[dim]a submission takes at most {records.longest(minutes) / 60:g} minutes[/]")
    if backend != "gloo":
        say(f"[dim]backend: {backend}[/]")
    left = grading.left_to_do(room, found, again)
    if done := len(found) - len(left):
        say(f"{done} of {len(found)} are graded already")
    try:
        options = dict(option.split("=", 1) for option in slurm_options.split(",") if "=" in option)
        news = grading.run_on_slurm(room, left, jobs, options) if slurm else grading.run(room, left, jobs)
        grading_progress.show(room, news, len(left))
    except grading.NoCluster as problem:
        fail(f"--slurm: {problem}")
    except KeyboardInterrupt:
        say("\nstopped; the same command continues with the rest")
        raise typer.Exit(130) from None
    for path in pages.write(room):
        say(f"{path}")
    empty = [name for name in found if records.read_record(room.record(name))["state"] == records.NOTHING]
    if empty:
        names = ", ".join(map(records.shown, empty[:5])) + (" and others" if len(empty) > 5 else "")
        say(f"[yellow]nothing of the course is in {len(empty)} of {len(found)}, which have no mark: {escape(names)}[/]")
    failed = [name for name in found if records.read_record(room.record(name))["state"] == records.FAILED]
    if failed:
        fail(
            f"{len(failed)} could not be graded, through no fault of the students:"
            f" {', '.join(map(records.shown, failed[:5]))}; the same command tries again",
            code=1,
        )


def counting(names: str, track: str) -> dict[str, list[int]]:
    """The lessons that are graded, each with the TODOs that count; none stands for all. Says which lessons are not
    graded.
    """
    asked = chosen(filter(None, names.split(",")), track) or {stem: [] for stem in exercises()}
    for stem in [stem for stem in asked if lessons.lacking(stem)]:
        if names:
            fail(lessons.lacking(stem))
        del asked[stem]
        say(escape(f"– {stem} is not graded: {lessons.lacking(stem)}"))
    for stem in sealed_lessons.sealed() if not names else ():
        if stem in lessons.ORDER and (track == "all" or stem in dict(tracks.members(track))):
            say(escape(f"– {stem} is not graded: it is sealed in this copy; ./workbook open {stem} opens it"))
    return asked


def seed_for_a_class(stems: list[str]) -> str:
    """A seed with which right answers pass: it is tested on the reference solutions, with gloo."""
    from grader.engine.judge.try_seeds import fit_for_a_class
    from grader.engine.ranks.runner import Runner

    say("[dim]testing the seed of this class on the reference solutions, once[/]")
    with Runner() as runner:
        runner.start()
        return fit_for_a_class(runner, stems, lambda line: say(escape(line)))


@app.command(rich_help_panel=TEACH, hidden=STUDENTS)
def mark(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="the folder of grade --out")],
    student: Annotated[str, typer.Argument(metavar="STUDENT")],
    todo: Todo,
    points: Annotated[float, typer.Argument(min=0, metavar="POINTS")],
    reason: Annotated[str, typer.Option(help="stored with the mark, and shown to the student")],
) -> None:
    """Override the judge's mark, with a reason."""
    from grader.engine.classroom import pages

    room = graded_class(out)
    try:
        record = records.override(room, student, "/".join(map(str, todo_named(todo))), points, reason)
    except ValueError as problem:
        fail(problem)
    pages.write(room)
    say(f"{student}: {records.points(record):g}")


@app.command(rich_help_panel=TEACH, hidden=STUDENTS)
def gradebook(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="the folder of grade --out")],
    root: Annotated[Path, typer.Option(metavar="DIR", help="nbgrader's folder")] = lessons.COURSE
    / ".workbook"
    / "nbgrader",
) -> None:
    """Put a class's marks into nbgrader's gradebook."""
    from grader.engine.classroom import gradebook as book

    room = graded_class(out)
    with console.status("writing the gradebook …") as status:

        def heard(name: str) -> None:
            if console.is_terminal:
                status.update(f"the gradebook: {escape(name)}")
            else:
                say(f"[dim]{escape(name)}[/]")

        file = book.write(room, records.records(room), root, heard)
    say(f"{file}")


def graded_class(out: Path) -> records.Class:
    if not (out / "class.json").is_file():
        fail(f"{out} has no class in it; ./workbook grade SUBMISSIONS --out {out} makes one")
    return records.load(out)


@app.command(rich_help_panel=TEACH, hidden=STUDENTS)
def autograder(
    file: Annotated[Path, typer.Argument(metavar="FILE.zip")], names: Lessons = "", track: Track = "all"
) -> None:
    """Pack the course as a Gradescope autograder: an archive to upload there."""
    from grader.engine.classroom import gradescope
    from grader.engine.lesson.release import ReleaseError

    needs_solutions()
    try:
        for line in gradescope.pack(file, chosen(filter(None, names.split(",")), track)):
            say(f"[yellow]{escape(line)}[/]")
    except ReleaseError as problem:
        fail(problem)
    say(f"{file}")


@app.command(rich_help_panel=TEACH, hidden=STUDENTS)
def mutants(
    names: Annotated[list[str] | None, typer.Argument(metavar="[LESSON | LESSON/TODO]...")] = None,
    seed: Annotated[str, typer.Option(help="seed of the checks' numbers; default: the seed for practice")] = "",
    changes: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="instead, change N places of each solution by rules; list what passes"),
    ] = 0,
) -> None:
    """Grade the grader: it must reject wrong answers and accept alternative right ones."""
    needs_solutions()
    asked: dict[str, list[int]] = {}  # lesson -> TODOs; none: all of them
    for name in names or exercises():
        lesson, numbers = todos_named(name) if "/" in name else (exercise_named(name), [])
        asked.setdefault(lesson, []).extend(numbers)
    from grader.engine.judge import mutants as grader_graded

    if changes:
        grader_graded.list_survivors(asked, changes, seed)
        return
    for lesson in asked:
        if not (lessons.folder(lesson) / "answers").is_dir():
            fail(f"there is no grader/lessons/{lesson}/answers/, which has the answers to try")
    raise typer.Exit(grader_graded.run(asked, seed))


def needs_solutions() -> None:
    if not lessons.has_solutions():
        fail("this is a student's copy of the course: it has no solutions/ to work from")
