"""What all figures are drawn with.

A figure is 6 inches wide and its text has at least 10 points, so that on a telephone 400 pixels wide a letter still has
9 pixels: one picture serves telephone, notebook and slide. Lengths are in units of a third of an inch.

Light colours fill what ranks (or layers, experts, blocks) hold, and a label says which. The full colours are kept for
the axes of the mesh, one for each in every figure.
"""

import hashlib
import io
import re
from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from PIL import Image, PngImagePlugin

WIDTH = 18

# Told apart by the colour-blind, too (Okabe and Ito), and light enough for black text.
BLUE, ORANGE, GREEN, PINK = "#6bb7e8", "#f0b13c", "#4fbf9b", "#dd9cc0"
RED = "#c4262e"
DARK, MIDDLE = "#4a4a4a", "#b4b4b4"
INK, GREY, PALE = "#222222", "#5f5f5f", "#e9e9e9"
MONO = {"family": "monospace"}
# matplotlib's own, and what is as wide and found elsewhere.
FONTS = {
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
    "font.monospace": ["DejaVu Sans Mono", "Menlo", "Consolas", "monospace"],
}

# Okabe and Ito's own, for lines, frames and headings: one colour an axis, in all figures.
AXES = {"dp": "#0072b2", "shard": "#56b4e9", "tp": "#d55e00", "pp": "#009e73", "cp": "#cc79a7", "ep": "#e69f00"}


def canvas(height: float) -> tuple[Figure, Axes]:
    """A white figure of WIDTH × `height` units, with one empty set of axes in these units."""
    figure = Figure(figsize=(WIDTH / 3, height / 3), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(0, height))
    axes.axis("off")
    return figure, axes


def write(axes: Axes, x: float, y: float, text: str, size: float = 10, **how: object) -> None:
    axes.text(x, y, text, **({"fontsize": size, "color": INK, "ha": "center", "va": "center"} | how))


def title(axes: Axes, x: float, y: float, text: str, size: float = 11, **how: object) -> None:
    write(axes, x, y, text, size, weight="bold", **how)


def note(axes: Axes, x: float, y: float, text: str, **how: object) -> None:
    write(axes, x, y, text, **({"color": GREY, "linespacing": 1.35} | how))


def fill(axes: Axes, x: float, y: float, width: float, height: float, colour: str, **how: object) -> None:
    axes.add_patch(Rectangle((x, y), width, height, **({"facecolor": colour, "linewidth": 0, "clip_on": False} | how)))


def cell(
    axes: Axes, x: float, y: float, width: float, height: float, colours: Sequence[str], text: str = "", **how: object
) -> None:
    """A box with a stripe for each colour."""
    stripe = width / len(colours)
    for i, colour in enumerate(colours):
        fill(axes, x + i * stripe, y, stripe, height, colour)
    fill(axes, x, y, width, height, "none", edgecolor="white", linewidth=1.5)
    if text:
        write(axes, x + width / 2, y + height / 2, text, **how)


def box(
    axes: Axes, x: float, y: float, width: float, height: float, colour: str = "white", edge: str = GREY, **how: object
) -> None:
    shape = FancyBboxPatch(
        (x, y),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.12",
        facecolor=colour,
        edgecolor=edge,
        clip_on=False,
        **how,
    )
    axes.add_patch(shape)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = GREY, **how: object) -> None:
    style = {
        "arrowstyle": "-|>",
        "mutation_scale": 11,
        "shrinkA": 0,
        "shrinkB": 0,
        "linewidth": 1.4,
        "clip_on": False,
    } | how
    axes.add_patch(FancyArrowPatch(start, end, color=colour, **style))


def key(axes: Axes, y: float, entries: Sequence[tuple[Sequence[str], str]], x: float = 0.4, pitch: float = 0) -> None:
    """What the colours mean, in a row from `x` on; `pitch` apart, or as far as the words reach."""
    for colours, text in entries:
        cell(axes, x, y - 0.3, 0.6, 0.6, colours)
        write(axes, x + 0.8, y, text, ha="left")
        x += pitch or 1.4 + 0.25 * len(text)


def drawn(figure: Figure, salt: str) -> str:
    """The figure as SVG, without date and version, and without what matplotlib writes and nothing needs. Letters stay
    letters, which a reader can search and a browser can enlarge.
    """
    written = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": salt} | FONTS):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text[text.index("<svg") :], flags=re.DOTALL)
    asked_for = set(re.findall(r"#([\w-]+)[\")]", text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in asked_for else "", text)
    text = re.sub(r"\s*\n\s*", " ", text)
    text = re.sub(r"<g> ?(<(?:path|use)[^>]*/>) ?</g>", r"\1", text)
    return re.sub(r"> <", ">\n<", text).strip() + "\n"


def save(figure: Figure, path: Path) -> None:
    """Writes `path`.svg, which is the same whenever the same matplotlib draws it, and `path`.png, of 256 colours, which
    holds the SVG's hash and so shows from which drawing it was made.
    """
    svg = drawn(figure, path.name)
    path.with_suffix(".svg").write_text(svg, "utf-8")
    pixels = io.BytesIO()
    figure.savefig(pixels, dpi=130)
    source = PngImagePlugin.PngInfo()
    source.add_text("Source", hashlib.sha256(svg.encode()).hexdigest())
    few = Image.open(pixels).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(path.with_suffix(".png"), optimize=True, pnginfo=source)
