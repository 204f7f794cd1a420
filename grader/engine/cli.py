"""./workbook COMMAND: the one command line of the course.

Each command is a few lines; what it does lies in a module of its own, imported
when it is needed, so that `./workbook --help` need not wait for torch.
"""

import difflib
import itertools
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.markup import escape
from typer.exceptions import TyperException

from grader.engine import lessons
from grader.engine.diagnose import Unjudged
from grader.engine.lessons import titles
from grader.engine.progress import Entry, Progress, exercises, lesson_map, next_todo
from grader.engine.screen import COLOURS, console, fail, say

app = typer.Typer(
    help="Learn parallel training: fill in TODOs, see at once which are right.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
BEGIN, LEARN, TEACH = "To begin", "To learn", "For instructors and maintainers"
BASELINE = "single_gpu_training"
STUDENTS = lessons.source_root().name != "solutions"  # this is a student's copy of the course

Lesson = Annotated[str, typer.Argument(metavar="LESSON", help="such as ddp_training")]
Todo = Annotated[str, typer.Argument(metavar="LESSON/TODO", help="such as ddp_training/4")]


# What the user names


def lesson_named(name: str) -> str:
    stems = lessons.stems()
    if name not in stems:
        close = difflib.get_close_matches(name, stems, n=1)
        fail(f"no lesson {name}" + (f", did you mean {close[0]}?" if close else ".") + f" There are {', '.join(stems)}")
    return name


def exercise_named(name: str) -> str:
    if not titles(lesson_named(name)):
        fail(f"{name} has no TODOs, it runs as it is given; there are {', '.join(exercises())}")
    return name


def todo_named(name: str) -> tuple[str, int]:
    lesson, _, number = name.partition("/")
    known = titles(exercise_named(lesson))
    if not number:
        fail(f"which TODO? {lesson} has {lesson}/1 to {lesson}/{max(known)}")
    if not number.isdecimal() or int(number) not in known:
        fail(f"{name} is no TODO; {lesson} has 1 to {max(known)}: {lesson}/1 is the first")
    return lesson, int(number)


def say_next() -> None:
    todo = next_todo()
    if todo is None:
        say("\nAll TODOs are done.")
    else:
        where = "in JupyterLab (./workbook lab)" if lessons.is_notebook(todo[0]) else "in an editor"
        say(
            f"\nNext: [bold]./workbook watch {todo[0]}[/], and open {own_file(*todo)} {where}: TODO {todo[1]},"
            f" {escape(titles(todo[0])[todo[1]])}"
        )


def own_file(lesson: str, number: int | None = None) -> str:
    """The student's file, or that of one TODO: a batch file for this machine's scheduler, if it is in those."""
    if number is not None and (
        batch := [u.name for u in lessons.batch_units(lesson) if number in lessons.regions.titles(u.source)]
    ):
        return next((name for name in batch if name.endswith(".pbs") == bool(shutil.which("qsub"))), batch[0])
    return str(lessons.student_path(lesson).relative_to(lessons.COURSE))


# To begin


@app.command(rich_help_panel=BEGIN)
def start() -> None:
    """Look at this machine, train the baseline for half a minute, say what to do next."""
    from grader.engine import machine

    for name, value in machine.found().items():
        say(f"  [dim]{name:10}[/]{escape(value)}")
    say("\nTraining a small language model on one device, without the network:")
    out, began = lessons.COURSE / "runs" / "start", time.time()
    # One pass over the built-in text: 75 steps, half a minute on two cores.
    short = ["--data", "builtin", "--epochs", "1", "--max-steps", "75", "--batch-size", "12", "--log-every", "2"]
    if code := run_once(lessons.student_path(BASELINE), 1, short, out):
        fail("the baseline does not run, see above; ./workbook reset single_gpu_training brings it back", code)
    say_report(out, began)
    say("\nThe lessons:\n" + "\n".join(lesson_map()))
    say_next()


@app.command(rich_help_panel=BEGIN)
def data() -> None:
    """Download WikiText-2 (13 MB) into the cache: on a cluster, once on a login node."""
    from utils.data import DataError, download_wikitext2, load_corpus

    try:
        download_wikitext2()
        corpus = load_corpus("wikitext-2")
    except DataError as problem:
        fail(problem)
    counts = ", ".join(f"{len(getattr(corpus, split)):,} {split}" for split in ("train", "validation", "test"))
    say(f"wikitext-2 is in the cache: {counts} tokens, {len(corpus.vocab):,} types")


@app.command(rich_help_panel=BEGIN)
def lab(
    args: Annotated[list[str] | None, typer.Argument(metavar="-- ARGS", help="for JupyterLab")] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="only print the address")] = False,
) -> None:
    """Open the notebooks in JupyterLab."""
    from ipykernel.kernelspec import install

    from grader.engine.notebooks import KERNEL

    folder = lessons.COURSE / ".workbook" / "jupyter"
    # Under .workbook, so that no other Jupyter of this user is given our kernel.
    install(prefix=str(folder), kernel_name=KERNEL["name"], display_name=KERNEL["display_name"])
    paths = [str(folder / "share" / "jupyter"), os.environ.get("JUPYTER_PATH", "")]
    os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, paths))
    # It would ask whether it may fetch news, each new user and each browser, before anything can be read.
    settings = folder / "settings"
    settings.mkdir(exist_ok=True)
    (settings / "overrides.json").write_text(
        '{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false}}\n'
    )
    os.chdir(lessons.COURSE)  # the root is the course, for the notebooks show pictures of images/
    options = [
        f"--ServerApp.root_dir={lessons.COURSE}",
        "--LabApp.default_url=/lab/tree/notebooks",
        f"--LabApp.app_settings_dir={settings}",
    ]
    options += ["--no-browser"] * no_browser
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", *options, *(args or [])])


# To learn


@app.command("list", hidden=True)  # what many type first
@app.command(rich_help_panel=LEARN)
def status(
    only: Annotated[str | None, typer.Argument(metavar="[LESSON]", help="without it, all lessons")] = None,
) -> None:
    """List the lessons and their TODOs: what is done, what is next."""
    if only:
        lesson_named(only)
    entries = Progress().read()
    marks = {"pass": "✓", "fail": "✗", "skipped": "–"}
    for lesson, line in zip(lessons.stems(), lesson_map(), strict=True):
        if only not in (None, lesson):
            continue
        say(line)
        for number, title in titles(lesson).items():
            state = entries.get((lesson, number), Entry()).state
            say(f"     [{COLOURS.get(state, 'default')}]{marks.get(state, '·')} {number:2}  {escape(title)}[/]")
    say_next()


@app.command(rich_help_panel=LEARN)
def check(
    what: Annotated[str | None, typer.Argument(metavar="[LESSON[/TODO]]", help="without it, all lessons")] = None,
    target: Annotated[
        Path | None, typer.Option(metavar="DIR", help="grade the train/ and notebooks/ in this folder")
    ] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="write the verdicts to this file, too")] = None,
) -> None:
    """Check TODOs: which are right, and what is wrong with the others."""
    lesson, number = todo_named(what) if what and "/" in what else (what and exercise_named(what), None)
    if lesson and (lacking := lessons.lacking(lesson)):
        fail(lacking)
    folder = target and existing_folder(target)
    if json and not json.absolute().parent.is_dir():
        fail(f"--json {json}: there is no folder {json.parent}")

    from grader.engine.launch import Engine

    with Engine() as engine:
        engine.start()  # it loads torch while we load the checks
        from json import dumps

        from grader.engine.checks import Judge, checked_lessons
        from grader.engine.loop import remember
        from grader.engine.screen import say_verdict

        found = []
        for stem in checked_lessons():
            if lesson in (None, stem):
                if lacking := lessons.lacking(stem):
                    say(escape(f"– {stem} is not checked: {lacking}"))
                    continue
                judge = Judge(engine, stem, folder)
                for verdict in judge.verdicts() if number is None else [judge.verdict(number)]:
                    say_verdict(verdict, brief=any(before.status == "fail" for before in found))
                    found.append(verdict)
    if not found:
        fail(f"{lesson} has no checks yet" if lesson else "nothing could be checked")
    if folder is None:
        remember(found)
    if json:
        json.write_text(dumps([verdict.as_dict() for verdict in found], indent=2) + "\n", "utf-8")
    passed = sum(verdict.passed for verdict in found)
    say(f"\n{passed} of {len(found)} right")
    raise typer.Exit(passed < len(found))


def existing_folder(target: Path) -> str:
    """As seen from where the user is, or from the course folder."""
    for folder in (target.absolute(), lessons.COURSE / target):
        if folder.is_dir():
            return str(folder)
    fail(f"--target {target}: no such folder")


@app.command(rich_help_panel=LEARN)
def watch(
    lesson: Annotated[str | None, typer.Argument(metavar="[LESSON]", help="without it, the first unfinished")] = None,
) -> None:
    """Check a lesson each time you save it, and show the next failure."""
    todo = next_todo()
    lesson = exercise_named(lesson) if lesson else todo[0] if todo else exercises()[-1]

    from grader.engine.launch import Engine

    with Engine() as engine:
        engine.start()
        from grader.engine.checks import checked_lessons
        from grader.engine.loop import Watch

        if lesson not in checked_lessons():
            fail(f"{lesson} has no checks yet")
        say(f"watching {own_file(lesson)} …")
        Watch(engine, lesson).run()


@app.command(rich_help_panel=LEARN)
def hint(todo: Todo) -> None:
    """Give a hint; each call one step more."""
    lesson, number = todo_named(todo)
    from grader.engine.checks import checked_lessons
    from grader.engine.loop import climb

    if lesson not in checked_lessons():
        fail(f"{lesson} has no hints yet")
    say(escape(climb(lesson, number)))


@app.command(rich_help_panel=LEARN)
def diff(lesson: Lesson) -> None:
    """Show what you changed in a lesson."""
    from grader.engine import files

    try:
        lines = files.diff(lesson_named(lesson))
    except (FileNotFoundError, ValueError) as problem:
        fail(unreadable(problem, lesson))
    for line in lines:
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "default")
        say(f"[{colour}]{escape(line)}[/]")


@app.command(rich_help_panel=LEARN)
def reset(lesson: Lesson) -> None:
    """Bring a lesson back as it was given; your files are kept aside."""
    from grader.engine import files

    for line in files.reset(lesson_named(lesson)):
        say(escape(line))
    Progress().forget(lesson)


@app.command(rich_help_panel=LEARN)
def solution(todo: Todo) -> None:
    """Show the reference solution of a TODO that you have solved."""
    lesson, number = todo_named(todo)
    if lessons.source_root().name != "solutions":
        fail("the solutions are not in this copy of the course: your instructor keeps them", 1)
    if Progress().read().get((lesson, number), Entry()).state != "pass":
        fail(f"first make it pass (./workbook check {todo}); a hint? ./workbook hint {todo}", 1)
    import textwrap

    from rich.syntax import Syntax

    from grader.engine import regions

    found = [(path, region) for path in lessons.sources(lesson) for region in regions.parse(path.read_text("utf-8"))]
    for path, region in found:
        if region.todo == number:
            text = textwrap.dedent("\n".join([*region.intro, *region.solution]))
            console.print(Syntax(text, "python", background_color="default") if console.is_terminal else escape(text))


@app.command(rich_help_panel=LEARN)
def run(
    lesson: Lesson,
    args: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="for the script, such as -- --epochs 1")
    ] = None,
    nproc: Annotated[
        str,
        typer.Option(
            metavar="N[,N]...", help="processes; several numbers compare the speed", show_default="2, the baseline 1"
        ),
    ] = "",
    nodes: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="submit the batch file as a job of N nodes, and follow its output"),
    ] = None,
    batch: Annotated[str, typer.Option(metavar="OPTIONS", help='for sbatch or qsub, such as "--time=00:10:00"')] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show the command")] = False,
) -> None:
    """Run a lesson's script in several processes on this machine, or by its batch file on several nodes."""
    if lessons.is_notebook(lesson_named(lesson)):
        fail(f"{lesson} is a notebook: ./workbook lab opens it")
    if nodes:
        raise typer.Exit(run_as_job(lesson, nodes, batch, [*(args or []), "--record"], dry_run))
    script = lessons.student_path(lesson)
    if not script.is_file():
        fail(f"there is no {own_file(lesson)}: ./workbook reset {lesson} brings it back")
    if lacking := lessons.lacking(lesson):
        fail(lacking)
    counts = nproc.split(",") if nproc else ["1" if lesson == BASELINE else "2"]
    if not all(count.isdecimal() and int(count) for count in counts):
        fail(f"--nproc {nproc}: a number of processes, or several, as in --nproc 1,2,4")
    counts = sorted({int(count) for count in counts})
    sizes = [int(value) for value in values_of("--batch-size", args or []) if value.isdecimal()]
    for count in counts:
        if sizes and sizes[-1] % count:  # the script says so, too, but torchrun says much more after it
            fail(
                f"--batch-size {sizes[-1]} is the global batch and does not divide by {count} processes; take"
                f" {sizes[-1] + count - sizes[-1] % count}"
            )
    out = out_folder(args or [], f"runs/{lesson}")
    code, began = 0, time.time()
    for count in counts:
        folder = out / f"nproc-{count}" if len(counts) > 1 else out
        code = code or run_once(script, count, args or [], folder, dry_run)
    if not dry_run:
        say_report(out, began)
    raise typer.Exit(code)


def run_once(script: Path, nproc: int, args: list[str], out: Path, dry_run: bool = False) -> int:
    """Run a script in `nproc` processes, recorded; its exit code."""
    from grader.engine import machine

    # Each process would take all cores for itself.
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // nproc)))
    options = [] if str(out) == str(out_folder(args, f"runs/{script.stem}")) else ["--out", str(out)]
    options += ["--record"] * ("--record" not in args)
    command = machine.launch_command(script, nproc, [*args, *options])
    say(f"[dim]$ OMP_NUM_THREADS={threads} {escape(machine.shown(command))}[/]")
    return 0 if dry_run else machine.call(command, env={**os.environ, "OMP_NUM_THREADS": threads})


def run_as_job(lesson: str, nodes: int, batch: str, args: list[str], dry_run: bool) -> int:
    """Submit a lesson's batch file, follow it, and return its exit code; if `dry_run`, only show the command."""
    import shlex

    from grader.engine import scheduler

    kinds = scheduler.kinds()
    if not kinds and not dry_run:
        fail(
            "there is neither sbatch nor qsub here: go to a login node of a cluster; --dry-run shows what would be"
            " submitted"
        )
    options = shlex.split(batch)
    try:
        commands = {
            kind: scheduler.command(lesson, kind, nodes, options, args) for kind in kinds[:1] or ("sbatch", "pbs")
        }
        for kind, command in commands.items():
            say(f"[dim]$ {escape(shlex.join(command))}[/]")
            if todo := scheduler.account_is_missing(kind, options):
                say(f"[dim]before it is submitted: {escape(todo)}[/]") if dry_run else fail(todo)
        if dry_run:
            return 0
        kind = kinds[0]
        job = scheduler.submit(commands[kind])
    except ValueError as problem:
        fail(problem)
    stop, began = "scancel" if kind == "sbatch" else "qdel", time.time()
    try:
        code = scheduler.follow(kind, job, lambda text: (sys.stdout.write(text), sys.stdout.flush())).code
        say_report(lessons.COURSE / out_folder(args, f"runs/{lesson}"), began)
        return code
    except KeyboardInterrupt:
        say(f"\njob {job} goes on; {stop} {job} ends it")
        return 130


def values_of(option: str, args: list[str]) -> list[str]:
    """What a script is given for one of its own options."""
    given = [after for flag, after in itertools.pairwise(args) if flag == option]
    return given + [arg.removeprefix(f"{option}=") for arg in args if arg.startswith(f"{option}=")]


def out_folder(args: list[str], default: str) -> Path:
    """Where a script writes, by its own --out."""
    return Path(([default] + values_of("--out", args))[-1])


def say_report(out: Path, began: float) -> None:
    """Write the report of a run, unless it stopped before it had a loss to report, and say where it is."""
    from grader.engine.machine import shown
    from utils import report

    with suppress(ValueError):
        if report.newest(out) >= began - 1:  # of this run; a file system's clock may lag
            say(f"report:     {escape(shown([str(report.write(out))]))}")
            say(f"loss curve: {escape(shown([str(out / 'loss.png')]))}")


@app.command(rich_help_panel=LEARN)
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a run, such as runs/ddp_training")],
) -> None:
    """Draw a run: loss, speed, where a step's time goes, memory, utilisation. One HTML page, and PNGs."""
    from utils import report

    folder = next(
        (folder for folder in (run, lessons.COURSE / run, lessons.COURSE / "runs" / run) if folder.is_dir()), None
    )
    if folder is None:
        fail(f"{run}: no such folder; a run writes into runs/LESSON, or where its --out says")
    try:
        say(escape(str(report.write(folder))))
    except ValueError as problem:
        fail(problem)


@app.command(rich_help_panel=LEARN)
def submit(
    out: Annotated[Path, typer.Option(metavar="FILE", help="the archive to write")] = Path("submission.tar.gz"),
) -> None:
    """Pack your files into the archive that you hand in."""
    from grader.engine import files

    try:
        for line in files.pack(out, exercises()):
            say(f"  {escape(line)}")
    except ValueError as problem:
        fail(problem)
    say(f"hand in {escape(str(out))}")


# For instructors and maintainers


@app.command(rich_help_panel=TEACH, hidden=STUDENTS)
def test(
    args: Annotated[list[str] | None, typer.Argument(metavar="-- ARGS", help="for pytest, such as -- -k build")] = None,
) -> None:
    """Test the workbook: its own tests, then the checks on the reference solutions."""
    import subprocess

    workers = str(min(os.cpu_count() or 1, 4))  # a test waits much: for ranks to start, for a kernel
    suites = [["tests", "-n", workers, "--dist", "worksteal"]] if (lessons.COURSE / "tests").is_dir() else []
    if (lessons.COURSE / "solutions").is_dir():
        suites.append(["grader", "--target", "solutions"])
    if not suites:
        fail("a student's copy of the course has no tests; ./workbook check checks your files")
    codes = [
        subprocess.run(
            [sys.executable, "-m", "pytest", *suite, *(args or [])], cwd=lessons.COURSE, check=False
        ).returncode
        for suite in suites
    ]
    nothing_selected = 5
    failed = [code for code in codes if code not in (0, nothing_selected)]
    raise typer.Exit(failed[0] if failed else min(codes))


@app.command(rich_help_panel=TEACH, hidden=STUDENTS)
def build(
    force: Annotated[bool, typer.Option("--force", help="also over edited files, which are kept aside")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="write nothing; say what is wrong with sources and checks")
    ] = False,
) -> None:
    """Write the student files from solutions/."""
    from grader.engine import build as builder
    from grader.engine.regions import SourceError

    needs_solutions()
    if not check:
        try:
            for line in builder.build(force):
                say(escape(line))
        except SourceError as problem:
            fail(problem)
        return
    problems = builder.check_sources()
    if not problems:  # broken sources can not be judged
        from grader.engine.launch import Engine

        with Engine() as engine:
            engine.start()
            from grader.engine import audit

            for line in audit.unchecked():
                say(escape(line))
            problems = audit.problems(engine)
    for problem in problems:
        say(escape(problem))
    say("nothing is wrong" if not problems else f"{len(problems)} problems")
    raise typer.Exit(bool(problems))


@app.command(rich_help_panel=TEACH, hidden=STUDENTS)
def release(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="new or empty")],
    only: Annotated[
        list[str] | None, typer.Option("--with", metavar="LESSON", help="only this one; may be repeated")
    ] = None,
) -> None:
    """Write the students' course: without solutions, and proven to be."""
    from grader.engine import release as releaser

    needs_solutions()
    try:
        lines = releaser.release(folder.absolute(), only)
    except ValueError as problem:
        fail(problem)
    for line in lines:
        say(escape(line))


@app.command(rich_help_panel=TEACH, hidden=STUDENTS)
def grade(
    submissions: Annotated[
        Path, typer.Argument(metavar="SUBMISSIONS", help="a folder with a folder or archive of each student")
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="where records, marks and feedback go; one that was begun is gone on with"),
    ],
    jobs: Annotated[int, typer.Option(min=1, help="so many submissions at a time")] = 1,
    names: Annotated[str, typer.Option("--lessons", metavar="A,B", help="only these; otherwise all")] = "",
    seed: Annotated[
        str | None,
        typer.Option(help="what the checks draw their numbers from; otherwise drawn by chance, and kept in DIR"),
    ] = None,
    walls: Annotated[
        str,
        typer.Option("--sandbox", metavar="auto|required|off", help="required: rather grade nobody than without walls"),
    ] = "auto",
    minutes: Annotated[float, typer.Option(min=0.1, help="for one submission")] = 10.0,
    again: Annotated[
        bool, typer.Option("--again", help="also those that are graded; what was there stays in their history")
    ] = False,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="in an array of --jobs jobs, instead of on this machine")
    ] = False,
    slurm_options: Annotated[
        str, typer.Option(metavar="A=B,…", help="for these jobs, such as partition=batch,account=mine")
    ] = "",
) -> None:
    """Grade a class: strangers' code, each submission behind walls of its own."""
    if not submissions.is_dir():
        fail(f"{submissions}: no such folder")
    if walls not in ("auto", "required", "off"):
        fail(f"--sandbox {walls}: it is auto, required or off")
    stems = sorted({exercise_named(name) for name in names.split(",") if name} or exercises(), key=lessons.ORDER.index)
    for stem in [stem for stem in stems if lessons.lacking(stem)]:
        if names:
            fail(lessons.lacking(stem))
        stems.remove(stem)
        say(escape(f"– {stem} is not graded: {lessons.lacking(stem)}"))
    from grader.engine import grade as grading
    from grader.engine import live, pages
    from grader.engine.release import ReleaseError
    from grader.engine.sandbox import NoSandbox
    from grader.engine.submissions import students

    if not (found := students(submissions)):
        fail(f"{submissions}: there is no submission in it, that is, no folder and no archive")
    try:
        guards = grading.guards_for(walls)
        room = grading.open_class(out, stems, seed, guards, minutes)
    except (ValueError, NoSandbox, ReleaseError) as problem:
        fail(problem)
    say(f"[dim]{escape(str(guards))}[/]" if "OPEN" not in str(guards) else f"[red]{escape(str(guards))}[/]")
    left = grading.left_to_do(room, found, again)
    if done := len(found) - len(left):
        say(f"{done} of {len(found)} are graded already")
    try:
        options = dict(option.split("=", 1) for option in slurm_options.split(",") if "=" in option)
        news = grading.run_on_slurm(room, left, jobs, options) if slurm else grading.run(room, left, jobs)
        live.show(room, news, len(left))
    except grading.NoCluster as problem:
        fail(f"--slurm: {problem}")
    except KeyboardInterrupt:
        say("\nstopped; the same command goes on with the rest")
        raise typer.Exit(130) from None
    for path in pages.write(room):
        say(f"{path}")
    failed = [name for name in found if grading.read_record(room.record(name))["state"] == grading.FAILED]
    if failed:
        fail(
            f"{len(failed)} could not be graded, by no fault of theirs: {', '.join(map(live.shown, failed[:5]))}; the"
            " same command tries them once more",
            code=1,
        )


@app.command(rich_help_panel=TEACH, hidden=STUDENTS)
def mark(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="what grade --out was given")],
    student: Annotated[str, typer.Argument(metavar="STUDENT")],
    todo: Todo,
    points: Annotated[float, typer.Argument(min=0, metavar="POINTS")],
    reason: Annotated[str, typer.Option(help="kept with the mark, and shown to the student")],
) -> None:
    """Give another mark than the judge's, with a reason."""
    from grader.engine import grade as grading
    from grader.engine import pages

    room = graded_class(out)
    try:
        record = grading.override(room, student, "/".join(map(str, todo_named(todo))), points, reason)
    except ValueError as problem:
        fail(problem)
    pages.write(room)
    say(f"{student}: {grading.points(record):g}")


@app.command(rich_help_panel=TEACH, hidden=STUDENTS)
def gradebook(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="what grade --out was given")],
    root: Annotated[Path, typer.Option(metavar="DIR", help="nbgrader's folder")] = lessons.COURSE
    / ".workbook"
    / "nbgrader",
) -> None:
    """Put a class's marks into nbgrader's gradebook."""
    from grader.engine import grade as grading
    from grader.engine import gradebook as book

    room = graded_class(out)
    say(f"{book.write(room, grading.records(room), root)}")


def graded_class(out: Path) -> "Class":  # noqa: F821
    from grader.engine import grade as grading

    if not (out / "class.json").is_file():
        fail(f"{out} has no class in it; ./workbook grade SUBMISSIONS --out {out} makes one")
    return grading.load(out)


@app.command(rich_help_panel=TEACH, hidden=STUDENTS)
def autograder(
    file: Annotated[Path, typer.Argument(metavar="FILE.zip")],
    names: Annotated[str, typer.Option("--lessons", metavar="A,B", help="only these; otherwise all")] = "",
) -> None:
    """Make the course a Gradescope autograder: an archive to upload there."""
    from grader.engine import gradescope
    from grader.engine.release import ReleaseError

    needs_solutions()
    try:
        gradescope.pack(file, [exercise_named(name) for name in names.split(",") if name])
    except ReleaseError as problem:
        fail(problem)
    say(f"{file}")


@app.command(rich_help_panel=TEACH, hidden=STUDENTS)
def mutants(names: Annotated[list[str] | None, typer.Argument(metavar="[LESSON | LESSON/TODO]...")] = None) -> None:
    """Grade the grader: wrong answers it must reject, other right ones it must accept."""
    needs_solutions()
    chosen: dict[str, list[int]] = {}  # lesson -> TODOs; none: all of them
    for name in names or exercises():
        lesson, number = todo_named(name) if "/" in name else (exercise_named(name), None)
        chosen.setdefault(lesson, []).extend([number] if number else [])
    from grader.engine import mutants as grader_graded

    raise typer.Exit(grader_graded.run(chosen))


def needs_solutions() -> None:
    if lessons.source_root().name != "solutions":
        fail("this is a student's copy of the course: it has no solutions/ to work from")


def unreadable(problem: Exception, lesson: str) -> str:
    if isinstance(problem, FileNotFoundError):
        return f"there is no {problem.filename}: ./workbook reset {lesson} brings it back"
    return str(problem)


def main() -> NoReturn:
    try:
        # Otherwise a mistake would be told in a box of five lines.
        code = app(prog_name="./workbook", standalone_mode=False)
    except TyperException as mistake:
        message = mistake.format_message()
        if "No such option" in message:
            message += " What is meant for the script or for pytest goes after --"
        if message:  # none after the help that `./workbook` alone gives
            typer.echo(f"workbook: {message} (--help explains the commands)", err=True)
        code = 2
    except Unjudged as problem:
        typer.echo(f"workbook: {problem}", err=True)
        code = 3
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as problem:
        typer.echo(f"workbook: {problem.filename or ''}: {problem.strerror or problem}", err=True)
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
