"""What notebooks draw: it opens as a PNG, and is drawn only when it is shown."""

import io

from matplotlib.image import imread

from grader.engine.commands.notebook import RanksRun
from grader.engine.ranks.message_rounds import Collective, Message
from utils.plots import base, collectives, data_parallel, zero


def shown(picture):
    return imread(io.BytesIO(picture._repr_png_()))


def test_message_rounds():
    sent = [Message(0, 1, 4000, 1, 5.0, 5.1), Message(1, 2, 12, 2, 5.1, 5.3)]
    assert shown(base.messages(sent, "f")).ndim == 3
    assert shown(base.messages([], "nothing")).ndim == 3


def test_costs():
    curves = {"one": ([1.0, 2.0, 4.0], [1.0, 2.1, 3.9]), "two": ([2.0, 4.0, 8.0], [2.0, 4.0, 8.0])}
    assert shown(collectives.cost([0, 1000, 2000], curves)).ndim == 3
    picture = collectives.ring_and_tree(
        {"a": (1.0, 1.0), "b": (2.0, 1.0)},
        4,
        lambda n, world: (6, 1.5 * n),
        lambda n, world: (4, 4 * n),
        lambda *_: 2e3,
    )
    assert shown(picture).ndim == 3


def test_bytes_held_and_sent():
    rank = {"weights": 4000, "gradients": 4000, "optimizer": 2700, "other": 0}
    assert shown(zero.held({"stage 1": [rank, rank | {"other": 100}]}, {"stage 1": (4000, 4000, 2666.7)})).ndim == 3
    calls = [Collective(rank, op, 2, 2000) for rank in range(2) for op in ("reduce_scatter", "all_gather")]
    assert shown(zero.sent({"stage 1": calls, "nothing": []}, {"stage 1": 4000.0, "nothing": 0.0})).ndim == 3


def test_caps():
    assert (
        shown(
            data_parallel.caps([1, 10, 100], {"a": (1.0, 1.0)}, lambda cap, alpha, beta: alpha + beta * cap, 2.0)
        ).ndim
        == 3
    )


def test_steps():
    step = {"began": 5.0, "ready": [5.1, 5.2], "backward": 5.3, "over": 5.6}
    calls = [
        Collective(0, "all_reduce", 2, 8, began, over)
        for began, over in ((4.0, 4.5), (5.1, 5.4), (5.2, 5.5), (5.25, None))
    ]
    assert data_parallel.lanes(calls[1:]) == [0, 1, 2]
    assert data_parallel.lanes([calls[0], calls[1]]) == [0, 0]
    assert shown(data_parallel.steps({"one": RanksRun([step], [], calls), "none": RanksRun([step], [], [])})).ndim == 3


def test_nothing_is_drawn_where_nobody_looks(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)  # an import of it would fail
    collectives.cost([1], {"one": ([1.0], [1.0])})
    base.messages([], "nothing")
    zero.held({"one": []}, {"one": (1, 1, 1)})
    zero.sent({"one": []}, {"one": 1})
    data_parallel.caps([], {}, max, 0.0)
    data_parallel.steps({})


def test_bytes_are_spoken():
    assert [base.spoken_bytes(n) for n in (0, 999, 4000, 1.5e6, 2.34e9)] == [
        "0 B",
        "999 B",
        "4 kB",
        "1.5 MB",
        "2.34 GB",
    ]
