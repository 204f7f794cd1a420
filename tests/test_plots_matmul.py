"""What 08_distributed_matmul draws."""

import io

import pytest
from matplotlib.image import imread

from utils.plots import distributed_matmul as plots


def shown(picture):
    return imread(io.BytesIO(picture._repr_png_()))


def test_rank_correlation():
    assert plots.rank_correlation([1, 2, 3], [10, 20, 99]) == pytest.approx(1)
    assert plots.rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert plots.rank_correlation([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(0.6)
    assert plots.rank_correlation([1, 1, 2], [1, 1, 2]) == pytest.approx(1)  # equal ones share their places
    assert plots.rank_correlation([1, 1, 1], [1, 2, 3]) == 0


def test_pictures():
    assert shown(plots.losses({"one process": [3.0, 2.0], "1 × 2 × 2": [3.0, 2.0001]})).ndim == 3
    assert shown(plots.grids({(1, 2, 2): 1.0, (4, 1, 1): 2.0}, {(1, 2, 2): 1.5, (4, 1, 1): 1.0})).ndim == 3
