"""What 13_fewer_bytes draws."""

import io

from matplotlib.image import imread

from utils.plots import fewer_bytes as plots


def test_losses_over_tokens_and_over_bytes():
    curves = {"float32": [4.0 - step / 10 for step in range(20)], "8 bits": [4.0 - step / 11 for step in range(20)]}
    picture = plots.losses(curves, {"float32": 4000.0, "8 bits": 1000.0}, tokens=100)
    assert imread(io.BytesIO(picture._repr_png_())).ndim == 3
    over_tokens, over_bytes = picture.draw().axes
    for axes, ends in ((over_tokens, {2000}), (over_bytes, {80_000, 20_000})):
        assert {line.get_xdata()[-1] for line in axes.lines} == ends
        assert all(len(line.get_xdata()) == 20 - plots.SMOOTHED + 1 for line in axes.lines)


def test_seconds_over_bandwidths():
    picture = plots.seconds({"float32": [9.0, 2.0], "8 bits": [3.0, 2.5]}, [1e6, 1e8])
    assert imread(io.BytesIO(picture._repr_png_())).ndim == 3
    (axes,) = picture.draw().axes
    assert [list(line.get_xdata()) for line in axes.lines] == [[8, 800]] * 2
