"""Writes the student's course: everything except the solutions, with a proof that none slipped in."""

import functools
import json
import re
import shutil
import subprocess
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from grader.engine.lesson import build, lessons, reference_solution, todo_regions, sealed_lessons, texts

# Only for instructors and maintainers.
LEFT_OUT = ("solutions", "tests", "benchmarks", "findings", ".ci", ".github", ".workbook", "AGENTS.md")
ASSISTANTS = Path("docs") / "assistants.md"  # what a release's AGENTS.md says: teach, do not solve
# Generated: built from the sources, since the working copies may be solved.
GENERATED = ("train", "notebooks", "sbatch", "grader/start")
LIBRARY = ("utils", "grader/engine")
# What is released where git cannot say.
WITHOUT_GIT = (
    "README.md",
    "requirements.txt",
    "requirements-lightning.txt",
    "requirements-huggingface.txt",
    "requirements-tokenizers.txt",
    "pyproject.toml",
    "workbook",
    "nbgrader_config.py",
    "LICENSE",
    ".gitignore",
    "utils",
    "grader",
    "docs",
    "images",
)

TAUGHT_BY = re.compile(r'^TAUGHT_BY = "([\d ]+)"', re.MULTILINE)  # in such a module: only these TODOs of the lesson
GIVES_AWAY = re.compile(r'^GIVES_AWAY = """([^"]+)"""', re.MULTILINE)  # in such a module: TODOs of other lessons

# A body with fewer significant characters gives nothing away ("pass", "return x").
TOO_SHORT = 20
# Characters that quoting, joining, wrapping or commenting out a body adds or moves.
INSIGNIFICANT = str.maketrans("", "", " \t\r\n\f\"'`\\,()+#")


class ReleaseError(ValueError):
    """The release was not made; the message gives the reasons, one per line."""


class Found(NamedTuple):
    """A solution found in a file of a release."""

    path: str
    line: int
    todo: str  # lesson/number
    by_design: bool  # a later lesson starts where this one ends, and the library contains what it taught

    @property
    def lesson(self) -> str:
        return self.todo.partition("/")[0]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: the solution of {self.todo}"


def release(folder: Path, selected: Sequence[str] | None = None, reveal: bool = False) -> list[str]:
    """Writes the course for students into ``folder``, which must be new or empty.

    ``selected`` names the lessons to release (default: all); the baseline is always included. A lesson that gives away
    another lesson's solutions is sealed (see `seals`); with ``reveal``, so are the reference solutions. Returns lines
    to show. Raises ReleaseError, and leaves no folder behind, if a lesson is unknown, the folder is in use, or a
    solution leaks.
    """
    released = _selection(selected)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ReleaseError(f"{folder}: not an empty folder; give a new one")
    try:
        _write(folder, released)
        sealed = _seal(folder, released)
        if reveal:
            todos = [(stem, number) for stem in released for number in lessons.titles(stem)]
            revealed = {
                f"{stem}/{n}": sealed_lessons.Sealed(
                    reference_solution.reference(stem, n), reference_solution.after(stem, n)
                )
                for stem, n in todos
            }
            sealed_lessons.seal_solutions(folder, revealed)
        leaked = [str(found) for found in _scan(folder) if not found.by_design or found.lesson in released]
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if leaked:
        shutil.rmtree(folder)
        raise ReleaseError("\n".join(leaked))
    return [*sealed, f"{folder}: {', '.join(released)}"]


def leaks(folder: Path) -> list[str]:
    """``file:line: the solution of lesson/N`` for each solution found in ``folder``.

    Searches for the whole body of each region, ignoring comments and white space, also when it is quoted, commented
    out, joined into one line or inside a notebook. These are not leaks:
    - a body of less than 20 significant characters, or one that is part of the TODO's given text;
    - a body of one line in the course's library (``utils/``, ``grader/engine/``) or in another lesson's checks: it is
    one call, which they must be free to make;
    - a later lesson's student file, which starts as its predecessor's solution, and the library's modules with answers
    (see `lessons.taught`): in a release with the earlier lesson they are sealed.
    """
    return [str(found) for found in _scan(folder) if not found.by_design]


def _selection(selected: Sequence[str] | None) -> list[str]:
    stems = lessons.stems()
    if unknown := [stem for stem in selected or () if stem not in stems]:
        raise ReleaseError(f"no lesson {', '.join(unknown)}; there are {', '.join(stems)}")
    return [stem for stem in stems if selected is None or stem in selected or stem == lessons.BASELINE]


def _write(folder: Path, released: Sequence[str]) -> None:
    for path in _shared_files():
        stem = lesson_of(path)
        if stem and (stem not in released or "answers" in path.parts):
            continue
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(lessons.COURSE / path, target)
        if stem and path == texts.file_of(stem).relative_to(lessons.COURSE):
            _put(target, texts.without_answers(target.read_text("utf-8")))
        if path == ASSISTANTS:
            _put(folder / "AGENTS.md", target.read_text("utf-8"))
    for path, text in build.student_files().items():
        if path.stem == lessons.PREFLIGHT:
            _put(folder / path, text)
        if path.stem in released:
            _put(folder / path, text)
            if path.parts[0] == "sbatch":  # a lesson without TODOs has no source to reset from
                _put(folder / "grader" / "start" / path, text)
    for stem in released:
        for source in lessons.sources(stem):
            start = folder / "grader" / "start" / source.relative_to(lessons.source_root())
            _put(start, todo_regions.strip_solutions(source.read_text("utf-8")))


def _seal(folder: Path, released: Sequence[str]) -> list[str]:
    """Seal the lessons that start with solutions of other released lessons, and the library's modules with such
    answers.

    Returns a line for each.
    """
    opened_by: dict[str, set[tuple[str, int]]] = {}  # lesson -> TODOs of other lessons that it gives away
    for found in _scan(folder):
        if found.by_design and found.lesson in released and (stem := Path(found.path).stem) in released:
            opened_by.setdefault(stem, set()).add((found.lesson, int(found.todo.partition("/")[2])))
    taught = lessons.taught(folder)
    given = {module: todos for module in taught if (todos := _given_away(module, taught[module], released))}
    files = {stem: _files_of(folder, stem) for stem in released}
    for stem in released:
        for file in files[stem]:  # the sealed modules need further ones, too
            text = file.read_text("utf-8")
            for module, todos in given.items():
                used = _imports(text, lessons.module_name(module, folder))
                if used and lessons.comes_after(stem, taught[module]) and module not in files[stem]:
                    files[stem] += _whole(module, taught)
                    opened_by.setdefault(stem, set()).update(todos)
    lines = []
    for name, (what, module) in sealed_lessons.ALSO.items():
        if todos := given.get(folder / module):
            until = [f"{lesson}/{number}" for lesson, number in sorted(todos, key=_in_order)]
            packed = _whole(folder / module, taught)
            texts = {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in packed}
            sealed_lessons.seal(folder, name, texts, until)
            lines.append(f"{what} is sealed until {_right(until)}: it has their answers")
    for stem in [stem for stem in released if stem in opened_by]:
        packed = {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in files[stem]}
        until = [f"{lesson}/{number}" for lesson, number in sorted(opened_by[stem], key=_in_order)]
        sealed_lessons.seal(folder, stem, packed, until)
        names = ", ".join(dict.fromkeys(todo.partition("/")[0] for todo in until))
        lines.append(f"{stem} is sealed until {_right(until, names)}: it begins with their solutions")
        for path in _files_of(folder, stem):
            path.unlink()
    for module in given:
        for path in _whole(module, taught):
            path.unlink(missing_ok=True)
        if module.name == "__init__.py":
            module.parent.rmdir()  # an empty folder could still be imported
    return lines


def _whole(module: Path, modules: Collection[Path]) -> list[Path]:
    """The module; for a package's __init__.py, all modules of the package."""
    if module.name != "__init__.py":
        return [module]
    return [other for other in modules if module.parent in other.parents]


def _imports(text: str, module: str) -> bool:
    """Whether a text imports this module of the library, in either form."""
    package, _, name = module.rpartition(".")
    return module in text or re.search(rf"from {package} import .*\b{name}\b", text) is not None


def _given_away(module: Path, lesson: str, released: Sequence[str]) -> set[tuple[str, int]]:
    """The TODOs of released lessons that a module of the library gives away."""
    todos, text = set(), module.read_text("utf-8")
    if lesson in released:
        only = TAUGHT_BY.search(text)
        numbers = only[1].split() if only else todo_regions.titles(lessons.source_path(lesson).read_text("utf-8"))
        todos |= {(lesson, int(number)) for number in numbers}
    if earlier := GIVES_AWAY.search(text):
        for todo in earlier[1].split():
            stem, _, number = todo.partition("/")
            todos |= {(stem, int(number))} if stem in released else set()
    return todos


def _in_order(todo: tuple[str, int]) -> tuple[int, int]:
    return lessons.ORDER.index(todo[0]), todo[1]


def _files_of(folder: Path, stem: str) -> list[Path]:
    """A lesson's own files in a release."""
    return sorted(path for name in GENERATED for path in (folder / name).rglob(f"{stem}.*"))


def _shared_files() -> list[Path]:
    """The files that are released unchanged, relative to the course."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=lessons.COURSE, capture_output=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        files = [Path(name) for name in listed.stdout.decode().split("\0") if name]
    else:
        tops = [lessons.COURSE / name for name in WITHOUT_GIT]
        everything = [file for top in tops for file in (sorted(top.rglob("*")) if top.is_dir() else [top])]
        files = [file.relative_to(lessons.COURSE) for file in everything if "__pycache__" not in file.parts]
    outside = [Path(name) for name in (*LEFT_OUT, *GENERATED)]
    return [
        file
        for file in files
        if (lessons.COURSE / file).is_file() and not any(file.is_relative_to(path) for path in outside)
    ]


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def _scan(folder: Path) -> Iterator[Found]:
    return search(sorted(path for path in folder.rglob("*") if path.is_file()), folder)


def search(files: Iterable[Path], folder: Path) -> Iterator[Found]:
    """The solutions in these files of a course in `folder`."""
    bodies, taught = list(_bodies()), lessons.taught(folder)
    for file in files:
        try:
            text = file.read_text("utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        path = file.relative_to(folder)
        haystacks = _haystacks(_unquoted(text) if file.suffix == ".ipynb" else text)
        in_library, checked = any(path.is_relative_to(name) for name in LIBRARY), lesson_of(path)
        for stem, todo, body, lines in bodies:
            if lines == 1 and (in_library or checked not in ("", stem)):
                continue
            places = [line for haystack in haystacks if (line := haystack.find(body)) is not None]
            if places:
                by_design = _starts_as(path, stem) or file in taught
                yield Found(path.as_posix(), min(places), f"{stem}/{todo}", by_design)


def lesson_of(path: Path) -> str:
    """The lesson whose checks or texts a file of the course has; "" if it has none of any."""
    top = lessons.OF_LESSONS
    inside = path.relative_to(top).parts if path.is_relative_to(top) else ()
    return inside[0] if len(inside) > 1 else ""


def _bodies() -> Iterator[tuple[str, int, str, int]]:
    """(lesson, TODO, significant characters, lines) for each solution to search for."""
    for stem in lessons.stems():
        for source in lessons.sources(stem):
            for region in todo_regions.parse(source.read_text("utf-8")):
                lines = todo_regions.normalise("\n".join(region.solution))
                body = "".join(lines).translate(INSIGNIFICANT)
                start = "\n".join(region.student).translate(INSIGNIFICANT)
                if len(body) >= TOO_SHORT and body not in start:
                    yield stem, region.todo, body, len(lines)


def _starts_as(path: Path, stem: str) -> bool:
    """Whether ``path`` is the student file of a later lesson than ``stem``."""
    generated = any(path.is_relative_to(name) for name in GENERATED)
    later = lessons.ORDER[lessons.ORDER.index(stem) + 1 :]
    return generated and path.stem in later


def _unquoted(notebook: str) -> str:
    """A notebook's JSON with its strings unquoted, line by line."""

    def line(text: str) -> str:
        try:
            value = json.loads(text.strip().removesuffix(","))
        except ValueError:
            return text
        return value.replace("\n", " ") if isinstance(value, str) else text

    return "\n".join(line(text) for text in notebook.split("\n"))


class _Haystack:
    """A file's significant characters in one string, with the line of each."""

    def __init__(self, lines: Iterable[tuple[int, str]]) -> None:
        # an escaped line end inside a string is not part of the code
        kept = [(number, line.replace("\\n", "").translate(INSIGNIFICANT)) for number, line in lines]
        self.text = "".join(line for _, line in kept)
        self.ends = list(accumulate(len(line) for _, line in kept))
        self.numbers = [number for number, _ in kept]

    def find(self, body: str) -> int | None:
        """The line on which ``body`` starts, or None."""
        at = self.text.find(body)
        return None if at < 0 else self.numbers[bisect_right(self.ends, at)]


@functools.lru_cache(maxsize=2000)  # a release is searched before it is sealed, and after
def _haystacks(text: str) -> list[_Haystack]:
    """With comments, to find a body that is commented out; and without, to find one that contains comments."""
    return [_Haystack(enumerate(text.split("\n"), start=1)), _Haystack(todo_regions.code_lines(text))]


def _right(todos: list[str], of: str = "") -> str:
    """Until when something is sealed: "3 TODOs of ddp_training are right"."""
    noun, verb = ("TODO", "is") if len(todos) == 1 else ("TODOs", "are")
    return f"{len(todos)} {noun}{of and f' of {of}'} {verb} right"
