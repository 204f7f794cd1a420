"""What 06_context_parallel draws opens as a PNG."""

import io

from matplotlib.image import imread

from utils.plots import context_parallel as plots


def shown(picture):
    return imread(io.BytesIO(picture._repr_png_()))


def test_work():
    measured = {
        "in order": [{"computed": 64, "seen": 36}, {"computed": 128, "seen": 100}],
        "zig-zag": [{"computed": 80, "seen": 68}] * 2,
    }
    assert shown(plots.work(measured, {"in order": [36, 100], "zig-zag": [68, 68]})).ndim == 3


def test_bytes_sent():
    costs = {"ring": {2: 4096, 4: 6144}, "Ulysses": {2: 4096, 4: 3072.0}}
    assert shown(plots.sent(costs, costs)).ndim == 3


def test_losses_and_activations():
    rank = {"losses": [3.0, 2.5], "activations": 4000}
    assert shown(plots.trained({1: [rank], 2: [rank | {"activations": 2100}] * 2})).ndim == 3
    assert shown(plots.trained({2: [rank] * 2})).ndim == 3


def test_nothing_is_drawn_where_nobody_looks(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)  # an import of it would fail
    plots.work({}, {})
    plots.sent({}, {})
    plots.trained({})
