"""The committed figures are what the script draws."""

import importlib.util

import numpy as np
import pytest
from matplotlib.image import imread

from grader.engine.lesson.lessons import COURSE

spec = importlib.util.spec_from_file_location("draw", COURSE / "images" / "draw.py")
draw = importlib.util.module_from_spec(spec)
spec.loader.exec_module(draw)


@pytest.mark.parametrize("name", draw.FIGURES)
def test_figure_is_up_to_date(name, tmp_path):
    draw.save(draw.FIGURES[name](), tmp_path / name)
    drawn, committed = imread(tmp_path / name), imread(COURSE / "images" / name)
    assert drawn.shape == committed.shape, "run python images/draw.py"
    # Pixels, not bytes: another zlib compresses otherwise, and another processor may round a letter's edge otherwise.
    other = (np.abs(drawn - committed) > 0.25).any(axis=-1)
    assert other.sum() < 10, "run python images/draw.py"


def test_every_figure_has_its_function():
    assert {path.name for path in (COURSE / "images").glob("*.png")} == set(draw.FIGURES)
