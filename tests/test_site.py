"""The book's site and the slides, built: they are whole, need no network and give nothing away."""

import html.parser
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from grader.engine.lesson import book, lessons, release, slides
from utils.optional_packages import lacks

if line := lacks("myst_nb", "book"):
    pytest.skip(line, allow_module_level=True)


class Page(html.parser.HTMLParser):
    """What a page loads, where it links to, and the places that links can name."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loaded, self.links, self.ids = [], [], set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids.add(given.get("id"))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        self.loaded += [given[name] for name in ("src", "data") if given.get(name)]
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("book") / "site"
    book.write_book(folder, print)
    return folder


def test_the_site_is_whole_and_needs_no_network(site):
    pages = {path: Page(path) for path in site.rglob("*.html")}
    lost = []
    for path, page in pages.items():
        for target in [*page.loaded, *(link for link in page.links if not link.startswith(("http", "mailto:")))]:
            name, _, anchor = unquote(target).partition("#")
            here = (path.parent / name.partition("?")[0]).resolve() if name else path
            if target.startswith(("http", "//")) or not here.is_file():
                lost.append(f"{path.name}: {target}")
            elif anchor and here in pages and anchor not in pages[here].ids:
                lost.append(f"{path.name}: {target}: no such place")
    assert not lost
    assert {f"{stem}.html" for stem in lessons.stems()} <= {path.name for path in pages}


def test_the_site_has_formulas_search_and_no_solution(site):
    page = (site / "notebooks/06_context_parallel.html").read_text("utf-8")
    assert page.count("<math") > 10 and "$" not in re.sub(r"<pre.*?</pre>|<code.*?</code>", "", page, flags=re.DOTALL)
    assert "sequence" in (site / "searchindex.js").read_text("utf-8")
    assert not release.leaks(site)


@pytest.mark.parametrize("stem", [stem for stem in lessons.stems() if lessons.is_notebook(stem)])
def test_slides_are_one_file(stem, tmp_path):
    file = tmp_path / "slides.html"
    file.write_text(slides.slides(stem), "utf-8")
    page = Page(file)
    assert all(source.startswith("data:image/") for source in page.loaded)
    assert all(link.startswith("https://") for link in page.links)
    assert {number for number in lessons.titles(stem)} == {
        int(number) for number in re.findall(r"<strong>TODO (\d+)</strong>", file.read_text("utf-8"))
    }
    assert not release.leaks(tmp_path)
