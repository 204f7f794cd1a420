"""What 09_mesh and 10_strategy draw, and its planner."""

import io
import sys

import pytest
from matplotlib.image import imread

from utils import catalogue, costs  # noqa: F401  costs is there to be taken away
from utils.plan import Plan
from utils.plots import mesh
from utils.plots import strategy as plots


def shown(picture):
    return imread(io.BytesIO(picture._repr_png_()))


def test_pictures():
    orders = {("pp", "tp"): 1.0, ("tp", "pp"): 8.0}
    parts = {"computing": 1.0, "tp": 0.5}
    for picture in (
        mesh.orders(orders, orders),
        mesh.samples([[0, 2], [0, 2], [1, 3], [1, 3]], {"dp": 2, "tp": 2}),
        mesh.training({"one process": [[3.0, 1.0], [2.0, 1.0]], "pp 2": [[3.0, 1.0], [2.0001, 1.0]]}),
        plots.memory({"dp 8": {"weights": 1e9, "state": 6e9}}, 5e9),
        plots.seconds({"dp 8": parts}),
        plots.axes({1.0: Plan(8, dp=8), 100.0: Plan(8, shard=2, tp=4), 9999.0: None}),
        plots.scaling({"strong": {1: parts, 2: parts}}, lambda seconds, scaling: dict.fromkeys(seconds, 1.0)),
    ):
        assert shown(picture).ndim == 3


@pytest.fixture
def displayed(monkeypatch):
    """What a notebook's page is given: objects, or raw data."""
    found = []
    monkeypatch.setattr("IPython.display.display", lambda thing, **how: found.append(thing))
    return found


def test_planner_shows_a_table_and_pictures(displayed):
    plots.show("7b", 8, "jureca", 64)
    table, told, *pictures = displayed
    assert table.data.count("\n") == 1 + plots.SHOWN
    assert "plans can be" in told.data and len(pictures) == 2


def test_planner_says_when_nothing_fits(displayed):
    plots.show("175b", 1, "jureca", 8)
    table, told = displayed
    assert table.data == "*No plan can be.*" and told.data.startswith("0 plans can be")


def test_where_no_widget_runs_the_page_has_the_table(displayed):
    plots.Planner(gpus=8, batch=64)._ipython_display_()
    data = displayed[-1]
    assert "application/vnd.jupyter.widget-view+json" in data and data["text/markdown"].startswith("| |")


def test_a_lessons_seconds_stand_beside_the_planners(monkeypatch):
    model, machine = catalogue.model("7b"), catalogue.machine("jureca")
    plans = [Plan(256, 4, shard=64), Plan(256, 4, dp=8, tp=4, pp=2)]

    def lesson(model, plan, machine):
        return {"computing": 1.5, "data": 0.5}

    both = plots.beside_planner(lesson, model, plans, machine)
    assert shown(both).ndim == 3
    monkeypatch.setitem(sys.modules, "utils.costs", None)
    monkeypatch.delattr("utils.costs")
    assert shown(plots.beside_planner(lesson, model, plans, machine)).shape != shown(both).shape


def test_where_the_costs_are_sealed_the_planner_says_so(displayed, monkeypatch):
    monkeypatch.setitem(sys.modules, "utils.costs", None)
    monkeypatch.delattr("utils.costs")
    plots.planner()._ipython_display_()
    (told,) = displayed
    assert "opens when" in told.data


def test_what_comes_later_is_asked_when_it_is_shown(displayed, capsys):
    def todo():
        raise NotImplementedError("TODO 8")

    plots.Later(lambda: "a picture")._ipython_display_()
    plots.Later(lambda: print("a line"))._ipython_display_()
    plots.Later(todo)._ipython_display_()
    assert displayed == ["a picture"] and capsys.readouterr().out == "a line\nnot done yet: TODO 8\n"
