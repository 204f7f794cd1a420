"""Builds the course as a book: a static site of the guides, and of the lessons as students get them.

The pages come from a fresh release, so that they contain only what students may see; Sphinx turns them into a site that
needs no network. Then the site, too, is searched for solutions.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import jinja2
import nbformat

from grader.engine.lesson import build, lessons, todo_regions, release, script_diffs, tracks

FRAME = Path("docs") / "book"  # Sphinx's settings, the first page, a style
# In this order, as far as they exist.
GUIDES = (
    "docs/students.md",
    "docs/planning.md",
    "docs/data.md",
    "docs/instructors.md",
    "docs/teaching.md",
    "docs/sites.md",
    "grader/THREATS.md",
    "CONTRIBUTING.md",
)
QUESTIONS = Path("docs") / "questions.md"
CHANGES = "docs/changes.md"  # made from docs/book/changes.md: it has the differences between the scripts
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#|mailto:)([^)\s]+)\)")
CODE = (".py", ".sbatch", ".pbs", ".sh", ".toml")


class BookError(ValueError):
    """The book was not written; the message says why."""


def write_book(folder: Path, say: Callable[[str], None]) -> int:
    """Write the site into `folder`, which must be new, empty, or an earlier book. Returns the number of pages.

    Raises BookError, and leaves the folder unchanged, if it contains anything else, Sphinx complains, or the site would
    contain a solution.
    """
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / "objects.inv").is_file())):
        raise BookError(f"{folder}: it is neither empty nor a book; give a new folder")
    with tempfile.TemporaryDirectory() as made:
        course, source, site = (Path(made) / name for name in ("course", "source", "site"))
        release.release(course)
        pages = gather(course, source)
        say(f"{len(pages)} pages are gathered; Sphinx builds the site")
        done = subprocess.run(
            [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "--keep-going", source, site],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise BookError(f"Sphinx refuses:\n{done.stderr.strip().replace(str(source), '')}")
        shutil.rmtree(site / ".doctrees")
        if leaked := release.leaks(site):
            raise BookError("\n".join(leaked))
        if folder.exists():
            shutil.rmtree(folder)
        shutil.copytree(site, folder)
    return len(pages)


def gather(course: Path, source: Path) -> list[str]:
    """Write Sphinx's source for the course released in `course`. Returns the names of the pages, without suffix.

    Pages have the same paths as their files in the course, so that links between files become links between pages.
    """
    shutil.copytree(course / "images", source / "images")
    (source / "_static").mkdir()
    shutil.copy2(course / FRAME / "book.css", source / "_static")
    shutil.copy2(course / FRAME / "conf.py", source)
    guides = [name for name in GUIDES if (course / name).is_file()]
    own = {*guides, QUESTIONS.as_posix()}
    beside = [name for path in sorted((course / "docs").glob("*.md")) if (name := f"docs/{path.name}") not in own]
    texts = {name: (course / name).read_text("utf-8") for name in (*guides, *beside)}
    texts[CHANGES] = jinja2.Template((course / FRAME / "changes.md").read_text("utf-8")).render(diff=script_diffs.diff)
    beside.append(CHANGES)
    taken = [stem for stem in lessons.ORDER if stem in lessons.stems()]
    names = [page_of(stem) for stem in taken]
    links = Links(course, [*texts, *names])
    for stem, name in zip(taken, names, strict=True):
        if lessons.is_notebook(stem):
            links.write_notebook(source / name, with_frame(stem, course), name)
        else:
            texts[name] = script_page(stem, course)
    for name, text in texts.items():
        links.write(source / name, text, name)
    frame = jinja2.Template((course / FRAME / "index.md").read_text("utf-8"))
    index = frame.render(
        table=links.followed(build.lessons_table(), "index.md"),
        guides="\n".join(map(without_ending, guides)),
        lessons="\n".join(entry(name, course) for name in names),
        beside="\n".join(map(without_ending, beside)),
    )
    (source / "index.md").write_text(index, "utf-8")
    code = links.write_code(source)
    return sorted({"index", *map(without_ending, texts), *map(without_ending, names), *code})


def page_of(stem: str) -> str:
    """The file of a lesson's page: its notebook, or a text about its script."""
    path = lessons.student_path(stem).relative_to(lessons.COURSE)
    return path.with_suffix(".ipynb" if lessons.is_notebook(stem) else ".md").as_posix()


def without_ending(name: str) -> str:
    return Path(name).with_suffix("").as_posix()


def todo_list(stem: str) -> str:
    """The lesson's TODOs with their minutes, and the command that checks them."""
    efforts = tracks.efforts(stem)
    rows = [
        f"| {number} | {title} | {efforts[number].minutes}{' (further)' * efforts[number].further} |"
        for number, title in lessons.titles(stem).items()
    ]
    if not rows:
        return ""
    took = tracks.hours(tracks.minutes([(stem, number) for number in lessons.titles(stem)]))
    table = "\n".join(["| TODO | what it achieves | minutes |", "|---|---|---|", *rows])
    return f"In the workbook: `./workbook watch {stem}`. Its TODOs take about {took}.\n\n{table}\n"


def questions(stem: str, course: Path) -> str:
    """The lesson's section of docs/questions.md, "" if it has none."""
    file = course / QUESTIONS
    _, *parts = re.split(r"^## (\S+)\n", file.read_text("utf-8"), flags=re.MULTILINE) if file.is_file() else [""]
    return dict(zip(parts[::2], parts[1::2], strict=True)).get(stem, "").strip()


def with_frame(stem: str, course: Path) -> nbformat.NotebookNode:
    """A released notebook with the list of its TODOs after the first cell, and its questions at the end."""
    notebook = nbformat.read(course / page_of(stem), as_version=4)
    one_title(notebook)
    notebook.metadata.language_info["pygments_lexer"] = "ipython3"  # a cell may begin with ! or %
    notebook.cells.insert(1, nbformat.v4.new_markdown_cell(todo_list(stem)))
    if asked := questions(stem, course):
        notebook.cells.append(nbformat.v4.new_markdown_cell(f"## Questions\n\n{asked}"))
    return notebook


def one_title(notebook: nbformat.NotebookNode) -> None:
    """Give a notebook with several parts one title: every later heading moves down a level."""
    texts = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    if sum(len(re.findall(r"^# ", cell.source, re.MULTILINE)) for cell in texts) > 1:
        for cell in texts:
            cell.source = re.sub(r"^#", "##", cell.source, flags=re.MULTILINE)
        texts[0].source = texts[0].source.removeprefix("#")


def entry(name: str, course: Path) -> str:
    """A lesson's line in the table of contents: a notebook's number and title, or a script's name."""
    stem = Path(name).stem
    if not lessons.is_notebook(stem):
        return f"{stem} <{without_ending(name)}>"
    title = nbformat.read(course / name, as_version=4).cells[0].source.splitlines()[0].removeprefix("# ")
    return f"{stem[:2]} {title} <{without_ending(name)}>"


def script_page(stem: str, course: Path) -> str:
    """A script's page: its docstring, its TODOs, its text unless it is sealed, its questions."""
    name = lessons.student_path(stem).relative_to(lessons.COURSE)
    text = todo_regions.compose(lessons.source_path(stem).read_text("utf-8"))
    said = re.match(r'"""(.*?)"""', text, re.DOTALL)
    parts = [f"# {stem}", f"```text\n{said[1].strip()}\n```" if said else "", todo_list(stem)]
    if (course / name).is_file():
        parts += ["## The script as it is given", f"```python\n{(course / name).read_text('utf-8').rstrip()}\n```"]
    else:
        parts.append(
            "The script begins with the solutions of earlier lessons, so it is not printed here. In the workbook it"
            f" opens on its own when those are right, or with `./workbook open {stem}`."
        )
    if asked := questions(stem, course):
        parts.append(f"## Questions\n\n{asked}")
    return "\n\n".join(part for part in parts if part) + "\n"


class Links:
    """Turns links between the course's files into links between the book's pages.

    A link to code adds a page with that code. A link to anything that is not in the book, such as a folder, becomes
    plain text.
    """

    def __init__(self, course: Path, pages: list[str]) -> None:
        self.course, self.pages = course, set(pages)
        self.code: set[str] = set()  # files of the course that some page links to

    def write(self, path: Path, text: str, name: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.followed(text, name), "utf-8")

    def write_notebook(self, path: Path, notebook: nbformat.NotebookNode, name: str) -> None:
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = self.followed(cell.source, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, path)

    def write_code(self, source: Path) -> list[str]:
        """Write a page for each linked file of code. Returns their names."""
        for name in sorted(self.code):
            text = (self.course / name).read_text("utf-8").rstrip()
            language = {".py": "python", ".toml": "toml"}.get(Path(name).suffix, "bash")
            page = f"---\norphan: true\n---\n\n# {name}\n\n````{language}\n{text}\n````\n"
            (source / f"{name}.md").parent.mkdir(parents=True, exist_ok=True)
            (source / f"{name}.md").write_text(page, "utf-8")
        return sorted(self.code)

    def followed(self, text: str, name: str) -> str:
        """A page's text with links as in the book; `name` is the page's path in the course."""
        folder = (self.course / name).parent

        def link(found: re.Match[str]) -> str:
            words, (path, _, anchor) = found[1], found[2].partition("#")
            here = Path(*(part for part in (folder / path).parts if part != ".")).resolve()
            if not here.is_relative_to(self.course):
                return words
            target = here.relative_to(self.course).as_posix()
            up = "../" * name.count("/")
            for page in (target, str(Path(target).with_suffix(".md"))):
                if page in self.pages:
                    return f"[{words}]({up}{page}{'#' * bool(anchor)}{anchor})"
            if here.is_file() and here.suffix in CODE:
                self.code.add(target)
                return f"[{words}]({up}{target}.md)"
            return found[0] if target.startswith("images/") and here.is_file() else words

        return LINK.sub(link, text)
