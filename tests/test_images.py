"""The committed figures are what the scripts draw, and can be read on a telephone."""

import functools
import hashlib
import importlib.util
import re

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from PIL import Image

from grader.engine.lesson.lessons import COURSE
from utils.plots.strategy import AXES as SHADES

IMAGES = COURSE / "images"
spec = importlib.util.spec_from_file_location("draw", IMAGES / "draw.py")
draw = importlib.util.module_from_spec(spec)
spec.loader.exec_module(draw)  # and from now on its folder is searched, too
from ink import AXES, drawn  # noqa: E402

draw_once = functools.cache(lambda name: draw.FIGURES[name]())
frames_once = functools.cache(lambda name: [*draw.STEPS[name][1]()])
STALE = "run python images/draw.py"


def differ(drawn: str, committed: str) -> bool:
    """Whether two drawings differ by more than another processor's rounding."""
    number = re.compile(r"-?\d+\.\d+")
    if number.sub("#", drawn) != number.sub("#", committed):
        return True
    pairs = zip(number.findall(drawn), number.findall(committed), strict=True)
    return any(abs(float(one) - float(other)) > 0.02 for one, other in pairs)


@pytest.mark.parametrize("name", draw.FIGURES)
def test_figure_is_up_to_date(name):
    committed = (IMAGES / f"{name}.svg").read_text("utf-8")
    assert not differ(drawn(draw_once(name), name), committed), STALE
    # The picture of pixels says of which drawing it was made.
    made_of = Image.open(IMAGES / f"{name}.png").text["Source"]
    assert made_of == hashlib.sha256(committed.encode()).hexdigest(), STALE


@pytest.mark.parametrize("name", draw.STEPS)
def test_page_is_up_to_date(name, tmp_path):
    draw.write_page(draw.STEPS[name][0], frames_once(name), tmp_path / f"{name}.html")
    new, committed = ((folder / f"{name}.html").read_text("utf-8") for folder in (tmp_path, IMAGES))
    assert not differ(new, committed), STALE


def test_another_number_is_a_difference():
    assert differ('<path d="M 1.50 2"/>', '<path d="M 1.60 2"/>')
    assert differ('<path d="M 1.50 2"/>', '<rect d="M 1.50 2"/>')
    assert not differ('<path d="M 1.500000 2"/>', '<path d="M 1.500001 2"/>')


def test_every_file_has_its_function():
    for suffix in ("png", "svg"):
        assert {path.stem for path in IMAGES.glob(f"*.{suffix}")} == set(draw.FIGURES)
    assert {path.stem for path in IMAGES.glob("*.html")} == set(draw.STEPS)


def figures():
    yield from ((name, draw_once(name)) for name in draw.FIGURES)
    for name in draw.STEPS:
        yield from ((f"{name} {number}", figure) for number, (_, figure) in enumerate(frames_once(name), 1))


def test_text_is_large_enough_and_apart():
    """9 pixels on a screen 400 wide; all of it on the picture, and none on another."""
    for name, figure in figures():
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw_without_rendering()
        width, height = figure.get_size_inches() * figure.dpi
        texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
        boxes = [text.get_window_extent(renderer) for text in texts]
        for number, (text, box) in enumerate(zip(texts, boxes, strict=True)):
            said = f"{name}: {text.get_text()!r}"
            assert text.get_fontsize() / 72 * 400 / (width / figure.dpi) >= 9, said
            assert -0.5 <= box.x0 and -0.5 <= box.y0 and box.x1 <= width + 0.5 and box.y1 <= height + 0.5, said
            for other in range(number):
                across = min(box.x1, boxes[other].x1) - max(box.x0, boxes[other].x0)
                along = min(box.y1, boxes[other].y1) - max(box.y0, boxes[other].y0)
                assert across < 1 or along < 1, f"{said} lies on {texts[other].get_text()!r}"


def test_what_texts_show_is_there_and_has_words():
    texts = [COURSE / "README.md", *(COURSE / "solutions" / "notebooks").glob("*.py"), *(COURSE / "docs").glob("*.md")]
    shown = set()
    for path in texts:
        for words, target in re.findall(r"(!\[[^\]]*)?\]\(((?:\.\./)*images/[^)]+)\)", path.read_text("utf-8")):
            name = target.split("images/")[1]
            assert (IMAGES / name).is_file(), f"{path.name}: {target}"
            assert name.endswith(".html") or len(words) > 20, f"{path.name}: {target} has no alternative text"
            shown.add(name)
    assert len(shown) > 40


def test_an_axis_has_one_colour_in_figures_and_plots():
    assert SHADES == AXES and len(set(AXES.values())) == 6
