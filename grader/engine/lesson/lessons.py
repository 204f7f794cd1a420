"""Where a lesson's files are, and the graded code in them.

A lesson is a stem. Its source is in ``solutions/`` or, in a student's copy of
the course and without solutions, in ``grader/start/``; its student files are in
``train/``, ``notebooks/`` and ``sbatch/``. There is no register of lessons
except the file system; only their order is written down.
"""

import ast
import hashlib
import re
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from grader.engine.lesson import regions

if TYPE_CHECKING:
    from nbformat import NotebookNode

# nbformat's validator would load a grammar of international web addresses, which takes two seconds and which our
# notebooks do not need. If the module cannot be imported, it works without.
sys.modules.setdefault("rfc3987_syntax", None)

COURSE = Path(__file__).resolve().parents[3]

ORDER = (
    "00_one_device",
    "single_gpu_training",
    "01_collectives",
    "02_data_parallel",
    "ddp_training",
    "lightning_training",
    "03_zero",
    "fsdp_training",
    "resilient_training",
    "04_tensor_parallel",
    "tp_training",
    "05_pipeline_parallel",
    "pipeline_training",
    "06_context_parallel",
    "07_expert_parallel",
    "08_distributed_matmul",
    "09_mesh",
    "10_strategy",
    "hybrid_training",
    "11_when_it_hangs",
)

BASELINE = "single_gpu_training"  # complete as given: the serial run, which every parallel run must equal
BATCH = (".sbatch", ".pbs")  # for Slurm, for PBS
PREFLIGHT = "preflight"  # the batch file that belongs to no lesson
WITH_BATCH_TODOS = "ddp_training"  # the lesson with TODOs in its batch files; later scripts get them solved
MOST_CODE, MOST_LINES = 500_000, 20_000  # characters of a script, or of all cells of a notebook
MOST_CELLS = 1000


class Unit(NamedTuple):
    """A piece of a student's lesson that runs as a whole: a script or a cell."""

    name: str  # "train/ddp_training.py" or "notebooks/01_collectives.ipynb, cell 5"
    text: str
    source: str  # its source, with regions; "" for a cell that the student added


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
        found = regions.titles(source.read_text("utf-8")) | found
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
    """The module name of a file of the course: utils.plots.base for utils/plots/base.py."""
    return ".".join(file.relative_to(course).with_suffix("").parts).removesuffix(".__init__")


def lacking(stem: str) -> str:
    """One line that says how to install the additional package that a lesson needs, if it is missing; else "".

    The lesson's check file names it, `PACKAGE = "lightning"`, but does not import it; the fork-server does.
    """
    from utils.optional import lacks  # here, since nbgrader uses this module where utils/ is missing

    package = said_by_checks(stem, "PACKAGE")
    return lacks(package) if package else ""


def said_by_checks(stem: str, name: str) -> str:
    """The value in a line `NAME = "…"` of a lesson's check file, which is not imported; "" if there is none."""
    checks = COURSE / "grader" / f"test_{stem}.py"
    found = re.search(rf'^{name} = "(.+)"$', checks.read_text("utf-8"), re.MULTILINE) if checks.is_file() else None
    return found[1] if found else ""


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


def units(stem: str, target: str | Path | None = None, latest: dict[str, Ran] | None = None) -> list[Unit]:
    """The graded code of a lesson: the script, or all of the student's code cells in order.

    ``target`` is the folder to grade, or the file itself. ``latest`` has a notebook's cells as a kernel last ran them,
    by cell id: it knows them before they are saved. A new cell that is not yet in the file comes last. Cells that the
    course locks (tests, set-up) are left out, and so are magics and shell lines. Raises FileNotFoundError, or
    ValueError for an unreadable notebook.
    """
    source = source_path(stem).read_text("utf-8")
    path = student_path(stem, target) if target is None or not Path(target).is_file() else Path(target)
    text = path.read_text("utf-8-sig", errors="replace")  # Python, too, takes no notice of a byte order mark
    if not is_notebook(stem):
        return [Unit(f"train/{path.name}", of_likely_size(text, path), source)]

    given = read_percent(source, stem).cells
    known = {_key(cell): cell.source for cell in given}
    cells = read_percent(text, stem).cells if path.suffix == ".py" else _read_notebook(text, path)
    if latest:
        _bring_up_to_date(cells, latest, path.stat().st_mtime)
    of_likely_size("".join(cell.source for cell in cells), path)
    there = [
        Unit(f"notebooks/{stem}.ipynb, cell {number}", without_magics(cell.source), known.get(_key(cell), ""))
        for number, cell in enumerate(cells, start=1)
        if cell.cell_type == "code" and not is_locked(cell) and not _is_foreign(cell.source)
    ]
    keys = {_key(cell) for cell in cells if cell.cell_type == "code"}
    gone = [cell for cell in given if _key(cell) not in keys and _is_graded(cell)]
    return there + [Unit(f"notebooks/{stem}.ipynb", "", cell.source) for cell in gone]


def of_likely_size(code: str, path: Path) -> str:
    """The code, unless it is implausibly long: it is compared with the source line by line, and a lesson has a few
    hundred lines.
    """
    if len(code) > MOST_CODE or code.count("\n") > MOST_LINES:
        raise ValueError(f"{path}: more code than a lesson has ({len(code):,} characters, {MOST_CODE:,} are read)")
    return code


def batch_units(stem: str, target: str | Path | None = None) -> list[Unit]:
    """The lesson's batch files with TODOs, as far as they exist."""
    folder = COURSE / (target or "")
    found = []
    for source in sources(stem):
        path, text = folder / "sbatch" / source.name, source.read_text("utf-8")
        if source.suffix in BATCH and regions.titles(text) and path.is_file():
            mine = path.read_bytes().decode("utf-8", errors="replace")  # with its ends of lines, which sbatch looks at
            found.append(Unit(f"sbatch/{source.name}", of_likely_size(mine, path), text))
    return found


def _bring_up_to_date(cells: list["NotebookNode"], latest: dict[str, Ran], saved: float) -> None:
    from nbformat.v4 import new_code_cell

    missing = dict(latest)
    for cell in cells:
        if ran := missing.pop(cell.get("id", ""), None):
            cell.source = ran.source
    # A cell that ran before the file was saved, and is not in it, was deleted.
    cells += [new_code_cell(ran.source) for ran in missing.values() if ran.when > saved]


def read_percent(source: str, stem: str) -> "NotebookNode":
    """A py:percent source as a notebook whose cell ids are derived from it, not random."""
    import jupytext  # imported here, so that a script's check does not wait for it

    notebook = jupytext.reads(source, fmt="py:percent")
    for index, cell in enumerate(notebook.cells):
        place = hashlib.sha256(f"{stem}/{index}".encode()).hexdigest()[:8]
        cell.id = _nbgrader(cell).get("grade_id", place)
        cell.metadata.pop("lines_to_next_cell", None)  # jupytext's own note
    return notebook


def is_locked(cell: "NotebookNode") -> bool:
    """Whether the cell belongs to the course: a test, or a cell that nbgrader restores."""
    marks = _nbgrader(cell)
    return not marks.get("solution") and bool(marks.get("grade") or marks.get("locked"))


# What parsing raises for text that is not Python. The last two: nested too deeply for the parser.
NO_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)

# Cell magics whose cell is still Python; cells with any other magic are left out.
PYTHON_CELL = re.compile(r"\s*%%(time|timeit|capture|prun)\b")
MAGIC = re.compile(r"(\s*+)(%{1,2}[a-zA-Z]|!|\?|[\w, ]+=\s*(%[a-zA-Z]|!)|[\w.*]+\?{1,2}\s*$)")


def without_magics(code: str) -> str:
    """The code with ``pass`` in place of each magic, shell line or ``help?``, so that line numbers stay the same."""
    try:
        ast.parse(code)
        return code  # then a line that starts with % continues the line above
    except NO_PYTHON:
        lines = code.split("\n")
        return "\n".join(f"{m.group(1)}pass" if (m := MAGIC.match(line)) else line for line in lines)


def _is_foreign(code: str) -> bool:
    return code.lstrip().startswith("%%") and not PYTHON_CELL.match(code)


def _is_graded(cell: "NotebookNode") -> bool:
    """Whether other cells may use what this source cell defines: it is not a test, and it defines something."""
    makes = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign)
    return (
        cell.cell_type == "code"
        and not is_locked(cell)
        and any(isinstance(line, makes) for line in ast.parse(without_magics(cell.source)).body)
    )


def _nbgrader(cell: "NotebookNode") -> dict[str, Any]:
    return cell.metadata.get("nbgrader", {})


def _key(cell: "NotebookNode") -> str:
    """The key by which a student's cell is matched to its source."""
    return _nbgrader(cell).get("grade_id") or cell.get("id", "")


def _read_notebook(text: str, path: Path) -> list["NotebookNode"]:
    import nbformat

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # cells without an id, as written by some editors
            if text.count('"cell_type"') > MOST_CELLS:  # each takes a millisecond to read
                raise ValueError(f"more than {MOST_CELLS} cells")
            cells = nbformat.reads(text, as_version=4).cells
        # nbformat only logs problems; the fields used here must exist
        for cell in cells:
            if not (cell.cell_type and isinstance(cell.source, str) and isinstance(_key(cell), str)):
                raise TypeError("a cell without source")
        return cells
    except Exception as error:  # nbformat raises many kinds of errors for unknown versions
        reason = str(error).split("\n")[0][:80] or type(error).__name__
        raise ValueError(f"{path}: not a notebook that can be read ({reason})") from None
