"""A student's own files: their original state, how they differ from it, and packing them to hand in."""

import difflib
import hashlib
import io
import json
import tarfile
from pathlib import Path

from grader.engine.lesson import build, lessons, todo_regions
from utils.atomic_write import write_whole, written_whole


def own_files(lesson: str) -> dict[Path, Path]:
    """The lesson's student files, relative to the course, each with its source."""
    found = {}
    for source in lessons.sources(lesson):
        path = source.relative_to(lessons.source_root())
        found[path.with_suffix(".ipynb") if path.parts[0] == "notebooks" else path] = source
    return found


def pristine(path: Path, source: Path) -> str:
    """The original text of a student file."""
    if path.suffix != ".ipynb":
        return todo_regions.compose(source.read_text("utf-8"))
    from grader.engine.lesson import notebooks  # nbgrader takes seconds to import; scripts need none

    return notebooks.to_json(notebooks.to_notebook(source.read_text("utf-8"), path.stem, released=True))


def readable(path: Path, text: str) -> list[str]:
    """The lines that are compared: for a notebook, the lines of its cells, without outputs and ids."""
    if path.suffix != ".ipynb":
        return text.splitlines()
    try:
        cells = json.loads(text)["cells"]
        texts = [(c["cell_type"], "".join(c["source"])) for c in cells]
    except (ValueError, LookupError, TypeError):
        raise ValueError(
            f"{path} is not a notebook that can be read; ./workbook reset {path.stem} brings it back"
        ) from None
    return [
        line for kind, source in texts for line in ("# %%" + " [markdown]" * (kind == "markdown"), *source.splitlines())
    ]


def diff(lesson: str) -> list[str]:
    """The student's changes, as a unified diff."""
    lines: list[str] = []
    for path, source in own_files(lesson).items():
        mine = (lessons.COURSE / path).read_text("utf-8", errors="replace")
        lines += difflib.unified_diff(
            readable(path, pristine(path, source)),
            readable(path, mine),
            f"{path} as given",
            f"{path} yours",
            lineterm="",
        )
    return lines


def reset(lesson: str) -> list[str]:
    """Restore the lesson's files to their original state. Returns a line for each."""
    report = []
    for path, source in own_files(lesson).items():
        file, text = lessons.COURSE / path, pristine(path, source)
        if file.is_file():
            if file.read_text("utf-8", errors="replace") == text:
                report.append(f"{path}: is as it was given")
                continue
            report.append(f"{path}: your file is now {build.keep_aside(file).relative_to(lessons.COURSE)}")
        file.parent.mkdir(exist_ok=True)
        write_whole(file, text)
        report.append(f"{path}: as it was given")
    return report


def pack(archive: Path, stems: list[str]) -> list[str]:
    """Pack the student's files of some lessons. Returns a line for each file; raises ValueError if there are none.

    The archive's manifest.json records the version of the course and a description of each file.
    """
    report, contents = [], {}
    for stem, path, source in ((stem, p, s) for stem in stems for p, s in own_files(stem).items()):
        file = lessons.COURSE / path
        if file.is_symlink() or not file.is_file():
            report.append(f"left out: {path} ({'a link' if file.is_symlink() else 'not there'})")
            continue
        contents[path.as_posix()] = file.read_bytes()
        warning = "as it was given, nothing done" if is_pristine(path, source) else unjudgeable(stem, path)
        report.append(f"{path} (warning: {warning})" if warning else f"{path}")
    if not contents:
        raise ValueError("there is nothing to hand in: none of the lessons' files is there")
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    manifest = {"course": {stem: course_digest(stem) for stem in stems}, "files": digests}
    contents["manifest.json"] = (json.dumps(manifest, indent=1) + "\n").encode()
    if not archive.name.endswith((".tar.gz", ".tgz")):
        raise ValueError(f"--out {archive}: the archive is a .tar.gz, and its name must say so")
    if not archive.absolute().parent.is_dir():
        raise ValueError(f"--out {archive}: there is no folder {archive.parent}")
    with written_whole(archive) as part, tarfile.open(part, "w:gz") as tar:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)  # plain: no owner, permissions or time
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return report


def unjudgeable(lesson: str, path: Path) -> str:
    """Why no TODO in a file, or in one of its cells, can be judged; "" if it can be read, and is Python."""
    if path.suffix not in (".py", ".ipynb"):
        return ""
    try:
        units = lessons.units(lesson)
    except ValueError:
        told = "it cannot be read, so nothing in it is judged"
        return f"{told}; ./workbook reset {lesson} brings the original back, and keeps yours"
    for unit in units:
        what, line, _ = unit.outline
        if what and lessons.is_notebook(lesson):
            return f"the cell “{next(filter(str.strip, unit.text.splitlines()), '').strip()}” is not Python: {what}"
        if what:
            return f"line {line} is not Python, so nothing in it is judged: {what}"
    return ""


def is_pristine(path: Path, source: Path) -> bool:
    """Whether a file is unchanged; a notebook that was only run counts as unchanged."""
    mine = (lessons.COURSE / path).read_text("utf-8", errors="replace")
    try:
        return bool(todo_regions.parse(source.read_text("utf-8"))) and readable(path, mine) == readable(
            path, pristine(path, source)
        )
    except ValueError:  # an unreadable notebook has been changed
        return False


def course_digest(lesson: str) -> str:
    """The version of the lesson: the same in the full course and in its releases."""
    texts = [source.read_text("utf-8") for source in lessons.sources(lesson)]
    texts = [todo_regions.strip_solutions(text) for text in texts if todo_regions.titles(text)] or texts
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()
