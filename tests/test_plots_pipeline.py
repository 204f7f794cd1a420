"""Timelines and memory of pipelines, as notebooks draw them."""

import io

import pytest
from matplotlib.image import imread

from utils.plots import pipeline_parallel as plots

TIMELINE = [
    [("F", 0, 0, 5.0, 6.0), ("F", 1, 0, 6.0, 7.0), ("W", 0, 0, 8.0, 9.0), ("I", 0, 0, 9.0, 10.0)],
    [("F", 0, 1, 6.0, 7.0), ("I", 0, 1, 7.0, 8.0)],
]


def test_the_bubble_is_the_share_of_the_ranks_time_in_which_they_wait():
    assert plots.span(TIMELINE) == (5.0, 10.0)
    assert plots.bubble(TIMELINE) == pytest.approx(1 - 6 / 10)
    assert plots.bubble([[]]) == 0.0


def test_two_parts_of_a_backward_pass_are_drawn_as_one():
    whole = plots.with_whole_backwards(TIMELINE)
    assert whole[0] == [("F", 0, 0, 5.0, 6.0), ("F", 1, 0, 6.0, 7.0), ("B", 0, 0, 8.0, 10.0)]
    assert plots.bubble(whole) == plots.bubble(TIMELINE)


def test_pictures():
    peaks = {"GPipe": [{"most": 800, "one": 100}, {"most": 100, "one": 100}]}
    for picture in (plots.timelines({"one": TIMELINE, "two": TIMELINE}), plots.alive(peaks, {"GPipe": [8, 1]})):
        assert imread(io.BytesIO(picture._repr_png_())).ndim == 3


def test_nothing_is_drawn_where_nobody_looks(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)  # an import of it would fail
    plots.timelines({"one": TIMELINE})
    plots.alive({}, {})
