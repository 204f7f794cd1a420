"""Turns a notebook into slides: one self-contained reveal.js file.

A slide shows the heading, the first sentence, pictures, tables, formulas, lists and what a TODO achieves. The rest of
the prose becomes the speaker's notes (press S). A cell's slide type is in its metadata: "slide" starts a slide, "skip"
is left out, "notes" appears only in the notes. `notebooks.slide_type` gives each cell its type; a type in the source
takes precedence.
"""

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jinja2
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin
from nbformat import NotebookNode

from grader.engine.lesson import lessons, notebooks, tracks

FRAME = Path("docs") / "book" / "slides.html"
FULL = 10  # lines of text that fit on a slide, approximately
PICTURE = 7  # the height of a picture in lines of text
SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z*`$\[])")


class Slide(NamedTuple):
    """HTML."""

    shown: str
    notes: str


class Block(NamedTuple):
    """A paragraph, list, table …: one block of a text."""

    kind: str  # the name of its first token, less "_open"
    tokens: list[Token]

    @property
    def text(self) -> str:
        return "\n".join(token.content for token in self.tokens if token.type == "inline")


def slides(stem: str) -> str:
    """The slides of a released notebook, as the text of one HTML file."""
    notebook = notebooks.to_notebook(lessons.source_path(stem).read_text("utf-8"), stem, released=True)
    columns = [[*parts(column)] for column in columns_of(notebook, stem)]
    title = notebook.cells[0].source.splitlines()[0].removeprefix("# ")
    frame = jinja2.Template((lessons.COURSE / FRAME).read_text("utf-8"))
    return frame.render(title=title, columns=columns, **library())


def library() -> dict[str, str]:
    """reveal.js, from the package that contains it, without its fonts: the browser's are used."""
    import sphinx_revealjs

    folder = Path(sphinx_revealjs.__file__).parent / "_static" / "revealjs"
    read = {
        "reveal": "dist/reveal.js",
        "speaker": "plugin/notes/notes.js",
        "base": "dist/reveal.css",
        "theme": "dist/theme/white.css",
    }
    texts = {name: (folder / path).read_text("utf-8") for name, path in read.items()}
    styles = texts.pop("base") + re.sub(r"@import url\([^)]*\);", "", texts.pop("theme"))
    scripts = {name: re.sub(r"//# sourceMappingURL=.*", "", text) for name, text in texts.items()}
    return {"styles": styles, **{name: text.replace("</script", r"<\/script") for name, text in scripts.items()}}


def markdown() -> MarkdownIt:
    from docutils.utils.math.latex2mathml import tex2mathml  # of requirements-book.txt, which one may not have

    def formula(text: str, options: dict[str, bool]) -> str:
        return tex2mathml(re.sub(r"\\dots\b", r"\\ldots", " ".join(text.split())), as_block=options["display_mode"])

    return MarkdownIt("commonmark").enable("table").use(dollarmath_plugin, renderer=formula)


def columns_of(notebook: NotebookNode, stem: str) -> Iterator[list[Block]]:
    """The blocks of each slide and of the slides below it."""
    column: list[Block] = []
    for cell in notebook.cells:
        kind = cell.metadata["slideshow"]["slide_type"]
        if kind == "slide" and column:
            yield column
            column = []
        if kind != "skip":
            blocks = blocks_of(cell.source) if cell.cell_type == "markdown" else todos_of(cell.source, stem)
            column += [Block("said", block.tokens) if kind == "notes" else block for block in blocks]
    yield column


def blocks_of(text: str) -> list[Block]:
    blocks: list[Block] = []
    for token in markdown().parse(text):
        if token.level == 0 and token.nesting >= 0:
            blocks.append(Block(token.type.removesuffix("_open"), []))
        blocks[-1].tokens.append(token)
    return blocks


def todos_of(code: str, stem: str) -> list[Block]:
    """A cell's TODOs: what each achieves, and its minutes. Other code is not shown on slides."""
    efforts, titles = tracks.efforts(stem), lessons.titles(stem)
    numbers = dict.fromkeys(int(number) for number in re.findall(r"# TODO (\d+):", code))
    said = [f"**TODO {n}** ({efforts[n].minutes} min): {titles[n]}" for n in numbers]
    return [Block("todo", blocks_of(text)[0].tokens) for text in said]


def parts(column: list[Block]) -> Iterator[Slide]:
    """The slides of a column: as many as its visible parts need, each with the heading."""
    heading, shown, notes, lines = "", "", "", 0
    for block in column:
        if block.kind == "heading" and block.tokens[0].tag in ("h1", "h2"):
            heading = html(block.tokens)
            continue
        if (seen := to_be_seen(block)) is None:
            notes += html(block.tokens)
            if not shown and block.kind == "paragraph":
                shown, lines = html(blocks_of(SENTENCE.split(block.text)[0])[0].tokens), 2
            continue
        if shown and lines + height(block) > FULL:
            yield Slide(heading + shown, notes)
            shown, notes, lines = "", "", 0
        shown, lines = shown + seen, lines + height(block)
    yield Slide(heading + shown, notes)


def to_be_seen(block: Block) -> str | None:
    """What a slide shows of a block; None if it is prose."""
    if block.kind == "todo":
        return f'<div class="todo">{html(block.tokens)}</div>'
    if block.kind == "said":
        return None
    pictured = any(child.type == "image" for token in block.tokens for child in token.children or ())
    return None if block.kind == "paragraph" and not pictured else html(block.tokens)


def height(block: Block) -> int:
    """The approximate height of the block in lines of text."""
    if any(child.type == "image" for token in block.tokens for child in token.children or ()):
        return PICTURE
    if block.kind in ("fence", "code_block"):
        return block.tokens[0].content.count("\n") * 2 // 3 + 1
    inline = [token for token in block.tokens if token.type == "inline"]
    if block.kind == "table":
        return len([token for token in block.tokens if token.type == "tr_open"])
    return max(2, sum(1 + len(token.content) // 90 for token in inline))


def html(tokens: list[Token]) -> str:
    """A block as HTML, with embedded pictures; links within the course become plain text."""
    renderer = markdown()
    text = renderer.renderer.render(tokens, renderer.options, {})
    text = re.sub(r'<a href="(?!https?:)[^"]*">(.*?)</a>', r"\1", text, flags=re.DOTALL)
    return re.sub(r'<img src="\.\./images/([^"]+)"', lambda found: f'<img src="{picture(found[1])}"', text)


def picture(name: str) -> str:
    kind = {"svg": "svg+xml", "png": "png"}[name.rpartition(".")[2]]
    data = base64.b64encode((lessons.COURSE / "images" / name).read_bytes()).decode()
    return f"data:image/{kind};base64,{data}"
