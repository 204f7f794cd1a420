"""Writes the student files from their sources, without overwriting a student's work."""

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from grader.engine.lesson import contributing_lists, lessons, todo_regions, texts, tracks
from utils.atomic_write import write_whole

README = "README.md"
AS_GIVEN = "nothing: it runs as given, on one device"  # of a lesson without TODOs
TEACHING = "docs/teaching.md"
QUESTIONS = "docs/questions.md"
ASKED = """# Questions

Three to discuss for each lesson. Instructors find answers in `grader/lessons/NAME/texts.md`, from which
`./workbook build` makes this page; homework is under *Further work* in [reading.md](reading.md).
"""
CONTRIBUTING = "CONTRIBUTING.md"
FINDINGS = "findings/README.md"


def student_files() -> dict[Path, str]:
    """Path in the course → text, for all generated files."""
    root = lessons.source_root()
    files: dict[Path, str] = {}
    for path in sorted([*root.glob("train/*.py"), *root.glob("sbatch/*.*")]):
        todo_regions.parse(path.read_text("utf-8"), _name(path))  # an error that names the file
        files[path.relative_to(root)] = todo_regions.compose(path.read_text("utf-8"))
    for path in sorted(root.glob("train/*.py")):
        for kind in lessons.BATCH:
            name = Path("sbatch") / f"{path.stem}{kind}"
            if path.stem != lessons.BASELINE and name not in files and _batch_source(kind).is_file():
                files[name] = batch_file(path.stem, kind)
    for path in sorted(root.glob("notebooks/*.py")):
        from grader.engine.lesson import notebooks  # nbgrader takes seconds to import; scripts need none

        todo_regions.parse(path.read_text("utf-8"), _name(path))
        notebook = notebooks.to_notebook(path.read_text("utf-8"), path.stem, released=True)
        files[path.relative_to(root).with_suffix(".ipynb")] = notebooks.to_json(notebook)
    return files


def batch_file(stem: str, kind: str) -> str:
    """The batch file of a script without its own: ddp_training's, solved."""
    text = todo_regions.without_todos(_batch_source(kind).read_text("utf-8"))
    solved = f"# It is the batch file of {lessons.WITH_BATCH_TODOS}, solved.\n"
    text = re.sub(r"# As given(.|\n)*?(?=#(SBATCH|PBS))", solved, text, count=1)
    text = text.replace(f"#PBS -N {lessons.WITH_BATCH_TODOS}", f"#PBS -N {stem[:15]}")  # PBS accepts no longer name
    return text.replace(lessons.WITH_BATCH_TODOS, stem).replace(
        f"file of {stem}", f"file of {lessons.WITH_BATCH_TODOS}"
    )


def _batch_source(kind: str) -> Path:
    return lessons.source_root() / "sbatch" / f"{lessons.WITH_BATCH_TODOS}{kind}"


def build(force: bool = False) -> list[str]:
    """Writes what changed and returns a line for each file written or left alone.

    A file that a student edited is left alone; with ``force`` it is first copied aside.
    """
    recorded = _recorded()
    report: list[str] = []
    for path, text in student_files().items():
        file = lessons.COURSE / path
        if file.is_file() and file.read_text("utf-8") != text and _edited(path, recorded):
            if not force:
                report.append(f"{path}: edited, left as it is (--force writes it anew and keeps yours aside)")
                continue
            report.append(f"{path}: your file is now {keep_aside(file).relative_to(lessons.COURSE)}")
        if not file.is_file() or file.read_text("utf-8") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, text)
            report.append(f"{path}: written")
        recorded[str(path)] = _digest(text.encode())
    for name, text in pages_to_write().items():
        write_whole(lessons.COURSE / name, text)
        report.append(f"{name}: written")
    _write_nbgrader_sources()
    record = _workbook() / "built.json"
    record.parent.mkdir(exist_ok=True)
    write_whole(record, json.dumps(recorded, indent=1, sort_keys=True) + "\n")
    return report


def pages_to_write() -> dict[str, str]:
    """Path → text, for the pages that are made here, or have a table made here, and are out of date."""
    tables = [
        (README, "lessons", lessons_table),
        (TEACHING, "tracks", tracks_tables),
        (CONTRIBUTING, "signatures", contributing_lists.signatures),
        (CONTRIBUTING, "files", contributing_lists.tree),
        (FINDINGS, "findings", contributing_lists.findings),
        (FINDINGS, "findings", contributing_lists.findings),
    ]
    changed: dict[str, str] = {}
    for name, what, table in tables:
        path = lessons.COURSE / name
        if lessons.has_solutions() and path.is_file():
            text = changed.get(name) or path.read_text("utf-8")
            between = rf"(?<=<!-- {what}: written by \./workbook build -->\n)(.|\n)*?(?=<!-- end of {what} -->)"
            made = re.sub(between, lambda _, table=table: f"{table()}\n", text)
            changed |= {name: made} if made != text else {}
    page = lessons.COURSE / QUESTIONS
    if lessons.has_solutions() and page.parent.is_dir():
        made = questions()
        changed |= {QUESTIONS: made} if not page.is_file() or page.read_text("utf-8") != made else {}
    return changed


def questions() -> str:
    """The page with the questions of all lessons."""
    asked = [f"## {stem}\n\n{texts.read(stem).questions}\n" for stem in lessons.stems()]
    return "\n".join([ASKED, *asked])


def lessons_table() -> str:
    """The table of lessons: TODOs, hours, and what is built in each."""
    rows = ["| lesson | TODOs | hours | what you build |", "|---|---|---|---|"]
    for stem in lessons.stems():
        link = f"[`{stem}`]({lessons.student_path(stem).relative_to(lessons.COURSE).as_posix()})"
        number = len(lessons.titles(stem))
        what = texts.read(stem).builds if number else AS_GIVEN
        hours = tracks.minutes([(stem, n) for n in lessons.titles(stem)]) / 60
        rows.append(f"| {link} | {number or ''} | {f'{hours:.1f}' if number else ''} | {what} |")
    return "\n".join(rows)


def tracks_tables() -> str:
    """For each track, a table of each lesson's TODOs in it, and their minutes."""
    parts = []
    for name, track in tracks.TRACKS.items():
        todos = tracks.members(name)
        took = tracks.hours(tracks.minutes(todos))
        parts.append(f"**{track.title.capitalize()}**: {took}, `./workbook status --track {name}`\n")
        rows = ["| lesson | TODOs | minutes |", "|---|---|---|"]
        for stem in dict.fromkeys(stem for stem, _ in todos):
            own = [number for of, number in todos if of == stem]
            minutes = tracks.minutes([(stem, number) for number in own])
            rows.append(f"| `{stem}` | {', '.join(map(str, own))} | {minutes} |")
        parts.append("\n".join(rows) + "\n")
    return "\n".join(["", *parts])


def keep_aside(path: Path) -> Path:
    """Copies a student's file to ``.workbook/kept/`` and returns the copy."""
    kept = _workbook() / "kept" / f"{path.name}.{datetime.now():%Y%m%d-%H%M%S-%f}"
    kept.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy2(path, kept))


def check_sources(only: Sequence[str] | None = None) -> list[str]:
    """Problems in the sources, and files that do not match them, one line each; for all lessons, or `only` these."""
    chosen = only or all_stems()
    problems = [problem for stem in chosen for problem in _check_stem(stem)]
    problems += [problem for stem in chosen if lessons.folder(stem).is_dir() for problem in texts.problems(stem)]
    if problems:
        return problems  # broken sources build nothing worth comparing
    files = student_files()
    for path, text in files.items():
        file = lessons.COURSE / path
        if (not only or path.stem in only) and (
            not file.is_file() or file.read_text("utf-8", errors="replace") != text
        ):
            problems.append(f"{path}: not what its source builds; run ./workbook build")
    if only:
        return problems  # tables and stray files belong to no lesson
    problems += [f"{name}: not the table of this course; run ./workbook build" for name in pages_to_write()]
    for kind in ("train/*.py", "notebooks/*.ipynb", "sbatch/*.*"):
        for file in sorted(lessons.COURSE.glob(kind)):
            if file.relative_to(lessons.COURSE) not in files:
                problems.append(f"{_name(file)}: has no source in {_name(lessons.source_root())}/")
    return problems


def _check_stem(stem: str) -> Iterator[str]:
    """Problems within the sources of one lesson, whose TODOs are numbered together."""
    if stem not in lessons.ORDER:
        yield f"{stem}: not in the order of the lessons (grader/lessons/course.toml)"
    seen: dict[int, str] = {}  # TODO → title
    for path in lessons.sources(stem):
        name = _name(path)
        try:
            found = todo_regions.parse(path.read_text("utf-8"), name)
        except todo_regions.SourceError as error:
            yield str(error)
            continue
        here: set[int] = set()  # TODOs that opened in this file; a batch file of each kind has them all
        for region in found:
            where = f"{name}:{region.first}: TODO {region.todo}"
            if region.todo not in seen:
                if not region.title:
                    yield f"{where} opens with 'again', but there is none before it"
                seen[region.todo] = region.title
            elif region.title and region.title != seen[region.todo]:
                yield f"{where} is '{region.title}' here and '{seen[region.todo]}' above"
            elif region.title and region.todo in here:
                yield f"{where} opens twice; write '# TODO {region.todo}, again:'"
            here.add(region.todo)
            start = "\n".join(region.student)
            if todo_regions.normalise("\n".join(region.solution)) == todo_regions.normalise(start):
                yield f"{where} starts as its solution"
            if path.suffix != ".py" and "raise NotImplementedError" in start:
                yield f"{where} needs a STUDENT part: a batch file cannot raise"
    # numbered in the order of work, which may differ from the order in the file
    if sorted(seen) != list(range(1, len(seen) + 1)):
        yield f"{stem}: its TODOs are numbered {', '.join(map(str, sorted(seen)))}, not 1 to {len(seen)}"


def all_stems() -> list[str]:
    """Lessons in order, then any stem that is missing from the order."""
    root = lessons.source_root()
    found = {path.stem for kind in ("train/*.py", "notebooks/*.py", "sbatch/*.*") for path in root.glob(kind)}
    return lessons.stems() + sorted(found - set(lessons.stems()) - {lessons.PREFLIGHT})


def _write_nbgrader_sources() -> None:
    """Write notebooks with their solutions to where nbgrader_config.py makes nbgrader look."""
    for path in sorted((lessons.COURSE / "solutions" / "notebooks").glob("*.py")):
        from grader.engine.lesson import notebooks

        text = notebooks.to_json(notebooks.to_notebook(path.read_text("utf-8"), path.stem, released=False))
        file = _workbook() / "nbgrader" / "source" / path.stem / f"{path.stem}.ipynb"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")


def _edited(path: Path, recorded: dict[str, str]) -> bool:
    """Whether the file differs from the last build's and from git's."""
    content = (lessons.COURSE / path).read_bytes()
    if recorded.get(str(path)) == _digest(content):
        return False
    head = subprocess.run(
        ["git", "show", f"HEAD:./{path.as_posix()}"], cwd=lessons.COURSE, capture_output=True, check=False
    )
    return head.returncode != 0 or head.stdout != content


def _recorded() -> dict[str, str]:
    """Path → digest of the file that the last build wrote."""
    record = _workbook() / "built.json"
    return json.loads(record.read_text("utf-8")) if record.is_file() else {}


def _workbook() -> Path:
    return lessons.COURSE / ".workbook"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _name(path: Path) -> str:
    return path.relative_to(lessons.COURSE).as_posix()
