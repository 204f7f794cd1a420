"""Where a lesson's files are, and the graded code in them.

A lesson is a stem. Its source is in ``solutions/`` or, in a student's copy of
the course and without solutions, in ``grader/start/``; its student files are in
``train/``, ``notebooks/`` and ``sbatch/``. What the grader knows about it is in
``grader/lessons/NAME/``: checks (``test_*.py``), what of them runs on ranks
(``ranks.py`` or ``ranks/``), texts, and answers. The one register of lessons is
``grader/lessons/course.toml``.
"""

import ast
import functools
import hashlib
import re
import tomllib
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from grader.engine.lesson import parsing, todo_regions

if TYPE_CHECKING:
    from nbformat import NotebookNode

COURSE = Path(__file__).resolve().parents[3]

OF_LESSONS = Path("grader") / "lessons"  # in the course: a folder for each lesson, and the register
REGISTER = tomllib.loads((COURSE / OF_LESSONS / "course.toml").read_text("utf-8"))

ORDER = tuple(REGISTER["order"])
BASELINE = REGISTER["baseline"]  # complete as given: the serial run, which every parallel run must equal
PREFLIGHT = REGISTER["preflight"]  # the batch file that belongs to no lesson
WITH_BATCH_TODOS = REGISTER["batch_files"]  # the lesson with TODOs in its batch files; later scripts get them solved
BATCH = (".sbatch", ".pbs")  # for Slurm, for PBS


class Unit(NamedTuple):
    """A piece of a student's lesson that runs as a whole: a script or a cell."""

    name: str  # "train/ddp_training.py" or "notebooks/01_collectives.ipynb, cell 5"
    text: str
    source: str  # its source, with regions; "" for a cell that the student added
    known: parsing.Parsed | None = None  # if it is a stranger's: it was parsed in a sandbox
    place: int | None = None  # of its source among the cells of the course's notebook

    @property
    def outline(self) -> parsing.Outline:
        return self.known.outline if self.known else parsing.outline(self.text)

    @property
    def statements(self) -> list[list] | None:
        return self.known.statements if self.known else parsing.statements_of(self.text)


class Ran(NamedTuple):
    """A notebook's cell as a kernel last ran it."""

    source: str
    when: float  # seconds since the epoch


def source_root() -> Path:
    """The folder of the sources: complete in solutions/, stripped in a release."""
    return COURSE / "solutions" if has_solutions() else COURSE / "grader" / "start"


def has_solutions() -> bool:
    """Whether this is the whole course; a student's copy has no solutions."""
    return (COURSE / "solutions").is_dir()


def sources(stem: str) -> list[Path]:
    """All source files of a lesson: first the graded file, then the batch files."""
    root = source_root()
    graded = [root / kind / f"{stem}.py" for kind in ("train", "notebooks")]
    batch = [path for kind in BATCH if (path := root / "sbatch" / f"{stem}{kind}").is_file()]
    return [path for path in graded if path.is_file()] + batch


def stems() -> list[str]:
    """The lessons that exist, in course order."""
    return [stem for stem in ORDER if source_path(stem).is_file()]


def source_path(stem: str) -> Path:
    """The lesson's source: a script, or a notebook in py:percent form."""
    script = source_root() / "train" / f"{stem}.py"
    return script if script.is_file() else source_root() / "notebooks" / f"{stem}.py"


def comes_after(stem: str, earlier: str) -> bool:
    """Whether one lesson is later in the course than another; not true of a lesson and itself."""
    return ORDER.index(stem) > ORDER.index(earlier)


def titles(stem: str) -> dict[int, str]:
    """The lesson's TODOs in order: number -> title."""
    found: dict[int, str] = {}
    for source in sources(stem):
        found = todo_regions.titles(source.read_text("utf-8")) | found
    return dict(sorted(found.items()))


TAUGHT_IN = re.compile(r'^TAUGHT_IN = "(\w+)"', re.MULTILINE)  # in a module of utils/: the lesson whose answers it has


def taught(course: Path = COURSE) -> dict[Path, str]:
    """The library's modules with answers: file -> the lesson that teaches them."""
    modules = {path: TAUGHT_IN.search(path.read_text("utf-8")) for path in sorted((course / "utils").rglob("*.py"))}
    return {path: found[1] for path, found in modules.items() if found}


def ahead(lesson: str, taught: dict[Path, str]) -> list[Path]:
    """The modules with answers to this lesson or a later one."""
    later = ORDER[ORDER.index(lesson) :] if lesson in ORDER else ()
    return [path for path, teaches in taught.items() if teaches in later]


def module_name(file: Path, course: Path = COURSE) -> str:
    """The module name of a file of the course: utils.plots.base for utils/plots/base.py. It need not be an identifier:
    lessons begin with a number.
    """
    return ".".join(file.relative_to(course).with_suffix("").parts).removesuffix(".__init__")


def folder(stem: str) -> Path:
    """Where the checks, texts and answers of a lesson are."""
    return COURSE / OF_LESSONS / stem


def checks(stem: str) -> list[Path]:
    """The files with a lesson's checks."""
    return sorted(folder(stem).glob("test_*.py"))


def on_ranks(stem: str) -> list[str]:
    """The names of the modules of a lesson's checks that ranks load, and no others of its folder."""
    files = [*folder(stem).glob("ranks.py"), *sorted(folder(stem).glob("ranks/*.py"))]
    return [module_name(file) for file in files]


def package(stem: str) -> str:
    """The package that a lesson needs in addition; "" if there is none."""
    return REGISTER["packages"].get(stem, "")


def lacking(stem: str) -> str:
    """One line that says how to install the additional package that a lesson needs, if it is missing; else ""."""
    from utils.optional_packages import lacks  # here, since nbgrader uses this module where utils/ is missing

    return lacks(package(stem)) if package(stem) else ""


def is_notebook(stem: str) -> bool:
    return source_path(stem).parent.name == "notebooks"


def student_path(stem: str, target: str | Path | None = None) -> Path:
    """The file to grade in the folder ``target`` (relative to the course, which is the default).

    A folder of sources also works: a script with regions is a complete program, and a notebook may be in py:percent
    form.
    """
    folder = COURSE / (target or "")
    if not is_notebook(stem):
        return folder / "train" / f"{stem}.py"
    notebook = folder / "notebooks" / f"{stem}.ipynb"
    percent = notebook.with_suffix(".py")
    return percent if percent.is_file() and not notebook.exists() else notebook


def units(
    stem: str,
    target: str | Path | None = None,
    latest: dict[str, Ran] | None = None,
    read: Callable[[str, bool], list[parsing.Cell]] = parsing.cells,
) -> list[Unit]:
    """The graded code of a lesson: the script, or all of the student's code cells in order.

    ``target`` is the folder to grade, or the file itself. ``latest`` has a notebook's cells as a kernel last ran them,
    by cell id: it knows them before they are saved. A new cell that is not yet in the file comes last. Cells that the
    course locks (tests, set-up) are left out, and so are magics and shell lines. ``read`` parses the file: a stranger's
    in a sandbox. Raises FileNotFoundError, or ValueError for a file that cannot be read.
    """
    source = source_path(stem).read_text("utf-8")
    path = student_path(stem, target) if target is None or not Path(target).is_file() else Path(target)
    text = path.read_text("utf-8-sig", errors="replace")  # Python, too, takes no notice of a byte order mark
    percent = is_notebook(stem) and path.suffix == ".py"
    try:
        cells = [*map(parsing.cell_of, _percent_cells(text, stem))] if percent else read(text, is_notebook(stem))
    except ValueError as problem:
        raise ValueError(f"{path}: {problem}") from None
    if not is_notebook(stem):
        return [Unit(f"train/{path.name}", cells[0].text, source, cells[0].parsed)]

    given = _percent_cells(source, stem)
    known = {parsing.key(node): (node.source, place) for place, node in enumerate(given)}
    if latest:
        _bring_up_to_date(cells, latest, path.stat().st_mtime)
    there = []
    for number, cell in enumerate(cells, start=1):
        if cell.runs:
            own, place = known.get(cell.key, ("", None))
            there.append(Unit(f"notebooks/{stem}.ipynb, cell {number}", cell.text, own, cell.parsed, place))
    keys = {cell.key for cell in cells if cell.code}
    gone = [(place, node) for place, node in enumerate(given) if parsing.key(node) not in keys and _is_graded(node)]
    return there + [Unit(f"notebooks/{stem}.ipynb", "", node.source, place=place) for place, node in gone]


def moved_cells(units: list[Unit]) -> list[Unit]:
    """Given cells of a notebook that are not in the course's order: as few as explain the student's order."""
    there = [unit for unit in units if unit.place is not None and unit.text.strip()]
    order = [unit.place for unit in there]
    kept = SequenceMatcher(None, sorted(order), order, False).get_matching_blocks()
    in_order = {place for block in kept for place in range(block.b, block.b + block.size)}
    return [unit for place, unit in enumerate(there) if place not in in_order]


def batch_units(stem: str, target: str | Path | None = None) -> list[Unit]:
    """The lesson's batch files with TODOs, as far as they exist."""
    folder = COURSE / (target or "")
    found = []
    for source in sources(stem):
        path, text = folder / "sbatch" / source.name, source.read_text("utf-8")
        if source.suffix in BATCH and todo_regions.titles(text) and path.is_file():
            mine = path.read_bytes().decode("utf-8", errors="replace")  # with its ends of lines, which sbatch looks at
            try:
                found.append(Unit(f"sbatch/{source.name}", parsing.of_likely_size(mine), text))
            except ValueError as problem:
                raise ValueError(f"{path}: {problem}") from None
    return found


def _bring_up_to_date(cells: list[parsing.Cell], latest: dict[str, Ran], saved: float) -> None:
    missing = dict(latest)
    for number, cell in enumerate(cells):
        if ran := missing.pop(cell.id, None):
            cells[number] = parsing.edited(cell, ran.source)
    # A cell that ran before the file was saved, and is not in it, was deleted.
    new = parsing.Cell("", "", True, False, "")
    cells += [parsing.edited(new, ran.source) for ran in missing.values() if ran.when > saved]


def read_percent(source: str, stem: str) -> "NotebookNode":
    """A py:percent source as a notebook whose cell ids are derived from it, not random."""
    import jupytext  # imported here, so that a script's check does not wait for it

    notebook = jupytext.reads(source, fmt="py:percent")
    for index, cell in enumerate(notebook.cells):
        place = hashlib.sha256(f"{stem}/{index}".encode()).hexdigest()[:8]
        cell.id = parsing.nbgrader(cell).get("grade_id", place)
        cell.metadata.pop("lines_to_next_cell", None)  # jupytext's own note
    return notebook


@functools.lru_cache(maxsize=8)  # jupytext takes 0.1 s to read a source, and each verdict asks for it
def _percent_cells(source: str, stem: str) -> tuple["NotebookNode", ...]:
    """The cells of a py:percent source, to be read only."""
    return tuple(read_percent(source, stem).cells)


def _is_graded(node: "NotebookNode") -> bool:
    """Whether other cells may use what this source cell defines: it is not a test, and it defines something."""
    makes = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign)
    return (
        node.cell_type == "code"
        and not parsing.is_locked(node)
        and any(isinstance(line, makes) for line in ast.parse(parsing.without_magics(node.source)).body)
    )
