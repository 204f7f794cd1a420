"""The book: what it gathers, and what must agree between its pages. test_site.py builds it."""

import json
import re

import pytest

from grader.engine.lesson import book, lessons, release, script_diffs, texts

COURSE = lessons.COURSE
PAPER = re.compile(r"\b(\d{4}\.\d{5})\b")


def test_each_lesson_has_three_questions_and_their_answers():
    assert not [problem for stem in lessons.stems() for problem in texts.problems(stem)]
    for stem in lessons.stems():
        assert list(texts.numbered(texts.read(stem).questions)) == [1, 2, 3] and book.questions(stem, COURSE), stem


def test_what_changes_between_scripts_gives_no_solution_away(tmp_path):
    """Each is the one before it with a few changes, and their solutions are named, not shown."""
    page = (COURSE / book.FRAME / "changes.md").read_text("utf-8")
    pairs = re.findall(r'{{ diff\("(\w+)", "(\w+)"\) }}', page)
    assert [after for _, after in pairs[:-1]] == [before for before, _ in pairs[1:]] and len(pairs) == 6
    diffs = {after: script_diffs.diff(before, after) for before, after in pairs}
    first = diffs["ddp_training"].split("\n")
    assert "+from torch.nn.parallel import DistributedDataParallel" in first
    assert "+    ...  # the solution of ddp_training/4" in first
    for name, text in diffs.items():
        (tmp_path / f"{name}.md").write_text(text)
        plain = "\n".join(line[1:] for line in text.split("\n"))  # without the marks of a diff
        (tmp_path / f"{name}-plain.md").write_text(plain)
    assert release.leaks(tmp_path) == []


def test_the_list_of_papers_has_each_that_a_lesson_cites():
    listed = set(PAPER.findall((COURSE / "docs/papers.md").read_text("utf-8")))
    texts = [*COURSE.glob("docs/*.md"), *COURSE.glob("solutions/**/*.*"), *COURSE.glob("grader/lessons/*/texts.md")]
    texts = [path for path in texts if path.suffix != ".pyc"]
    cited = {number: path.name for path in texts for number in PAPER.findall(path.read_text("utf-8"))}
    assert not {number: name for number, name in cited.items() if number not in listed}


def test_links_are_those_between_pages(tmp_path):
    for name in ("utils/model.py", "images/a.svg", "docs/nccl.md", "notebooks/x.ipynb"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    links = book.Links(tmp_path, ["docs/nccl.md", "train/ddp.md"])
    text = "[a](../docs/nccl.md#b) [c](../train/ddp.py) [`d`](../utils/model.py) [e](../utils) ![f](../images/a.svg)"
    assert links.followed(text, "notebooks/x.ipynb") == (
        "[a](../docs/nccl.md#b) [c](../train/ddp.md) [`d`](../utils/model.py.md) e ![f](../images/a.svg)"
    )
    assert links.code == {"utils/model.py"}
    assert links.followed("[x](../../etc/passwd) [y](https://a.b)", "docs/nccl.md") == "x [y](https://a.b)"


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("1")
    with pytest.raises(book.BookError, match="neither empty nor a book"):
        book.write_book(tmp_path, print)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_each_item_of_the_three_courses_is_answered_by_a_file():
    rows = re.findall(
        r"^\| ([ABC]\d+) \| .+ \| (?:`(.+)`|dropped: .+) \|$",
        (COURSE / "docs/seeds.md").read_text("utf-8"),
        re.MULTILINE,
    )
    assert [number for number, _ in rows] == [
        f"{course}{n}" for course, last in (("A", 32), ("B", 88), ("C", 19)) for n in range(1, last + 1)
    ]
    assert not [f"{number}: {name}" for number, name in rows if name and not (COURSE / name).is_file()]


def test_the_readme_is_short():
    lines = (COURSE / "README.md").read_text("utf-8").splitlines()
    assert len([line for line in lines if not line.startswith("|")]) <= 36  # and a row for each lesson


@pytest.mark.parametrize("stem", [stem for stem in lessons.stems() if lessons.is_notebook(stem)])
def test_each_heading_begins_a_slide(stem):
    notebook = json.loads((lessons.COURSE / "notebooks" / f"{stem}.ipynb").read_text("utf-8"))
    for cell in notebook["cells"]:
        lines = "".join(cell["source"]).splitlines()
        headings = [n for n, line in enumerate(lines) if cell["cell_type"] == "markdown" and re.match("##? ", line)]
        assert headings == [0] * (cell["metadata"]["slideshow"]["slide_type"] == "slide"), lines[:3]
