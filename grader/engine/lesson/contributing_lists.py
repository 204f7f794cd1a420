"""Two lists for `CONTRIBUTING.md`: files, each with the first sentence of its docstring, and the kit's signatures."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from grader.engine.lesson import lessons, parsing

# Folders whose files are listed one by one; a glob stands for all files of lessons.
FOLDERS = ("utils", "grader", "images", "tests", "benchmarks")
OF_A_LESSON = """\
- `course.toml` The one register: the order of the lessons, what some of them need, and the tracks.
- `*/test_*.py` The checks, of a few TODOs in each file.
- `*/common.py` What several of these files use.
- `*/ranks.py`, `*/ranks/*.py` What runs in the process of the student's code: all that a rank loads of the folder.
- `*/texts.md` Every word of the lesson outside its source: what it builds, minutes, reasons, hints, questions.
- `*/answers/*.py` Wrong answers that the checks must reject, and right ones that must pass."""
OF_LESSONS = {
    "images/figures_*.py": "The figures of a lesson.",
    "utils/after_*.py": "What a lesson has taught, for later scripts.",
}


def tree() -> str:
    """A list of files below each folder's name and description."""
    found = []
    for top in FOLDERS:
        for folder in [lessons.COURSE / top, *sorted((lessons.COURSE / top).rglob("*/"))]:
            if folder == lessons.folder(""):
                found += [f"**`{lessons.OF_LESSONS.as_posix()}/`** {sentence(folder / '__init__.py')}", OF_A_LESSON]
            elif not folder.is_relative_to(lessons.folder("")) and (lines := list(files_of(folder))):
                about = sentence(folder / "__init__.py")
                found.append(f"**`{folder.relative_to(lessons.COURSE).as_posix()}/`** {about}".rstrip())
                found.append("\n".join(lines))
    return "\n\n".join(found)


def findings() -> str:
    """A line for each finding: its script, what it is about, and with which version it was seen."""
    lines = []
    for path in sorted((lessons.COURSE / "findings").glob("*.sh")):
        _, title, package, *_ = path.read_text("utf-8").split("\n")
        version = package.removeprefix("# Package: ").partition(" Date:")[0].rstrip(".")
        lines.append(f"- [{title.removeprefix('# ')}]({path.name}): {version}")
    return "\n".join(lines)


def files_of(folder: Path) -> Iterator[str]:
    """A line for each Python file of a folder."""
    listed = set()
    for path in sorted(folder.glob("*.py")):
        name = path.relative_to(lessons.COURSE)
        glob = next((glob for glob in OF_LESSONS if name.match(glob)), name.as_posix())
        if path.name != "__init__.py" and glob not in listed:
            yield f"- `{Path(glob).name}` {OF_LESSONS.get(glob) or sentence(path)}"
            listed.add(glob)


def sentence(path: Path) -> str:
    """The first sentence of a file's docstring; "" where there is neither."""
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) if path.is_file() else None
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", " ".join((text or "").split("\n\n")[0].split()))[0]


def signatures() -> str:
    """The functions of the kit that take arguments, file by file, as check files import them."""
    kit = lessons.COURSE / "grader" / "kit"
    imports = [line for line in ast.parse((kit / "__init__.py").read_text("utf-8")).body if hasattr(line, "module")]
    found = []
    for line in sorted(imports, key=lambda line: line.module):
        path = lessons.COURSE / Path(*line.module.split(".")).with_suffix(".py")
        names = {alias.name for alias in line.names}
        lines = [
            f"{node.name}({ast.unparse(parsing.without_annotations(node.args))})"
            for node in (ast.parse(path.read_text("utf-8")).body if path.is_file() else ())
            if isinstance(node, ast.FunctionDef) and node.name in names
        ]
        if lines:
            found.append("\n".join([f"# {path.relative_to(lessons.COURSE)}", *sorted(lines)]))
    return "```python\n" + "\n\n".join(found) + "\n```"
