"""What 00_one_device draws: phases, products under the roof, memory; and what it measures for that."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from utils.memory import Storages
from utils.model import TransformerLM
from utils.plots.base import COLOURS, Picture, bars_axes, spoken_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PHASES = ("data", "forward", "backward", "optimizer")
KINDS = ("weights", "gradients", "optimizer", "activations")
Moments = dict[str, tuple[float, float, float, float]]  # moment -> bytes of each of KINDS


def phases(shown: dict[str, tuple[dict[str, float], tuple[float, float]]]) -> Picture:
    """For each model: the measured phases of a step (seconds), and below them the same time, divided between forward
    and backward as their FLOPs are.
    """

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 1.7 * len(shown) + 0.5), layout="constrained")
        colours = dict(zip(PHASES, COLOURS[3::-1], strict=True))
        for axes, (name, (seconds, flops)) in zip(
            figure.subplots(len(shown), 1, squeeze=False)[:, 0], shown.items(), strict=True
        ):
            computing = seconds["forward"] + seconds["backward"]
            by_flops = {"forward": flops[0] * computing / sum(flops), "backward": flops[1] * computing / sum(flops)}
            for row, parts in enumerate((seconds, by_flops)):
                left = 0.0 if row == 0 else 1000 * seconds["data"]
                for phase, took in parts.items():
                    axes.barh(row, 1000 * took, left=left, color=colours[phase], label=None if row else phase)
                    left += 1000 * took
            axes.set(xlabel="milliseconds")
            axes.set_title(name, fontsize=10, loc="left")
            axes.set_yticks((0, 1), ("measured", "by FLOPs"))
            axes.invert_yaxis()
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
        return figure

    return Picture(draw)


def product_speed(m: int, k: int, n: int) -> float:
    """FLOPs a second of a product of m × k by k × n in float32: the median of seven tries, on torch's threads."""
    x, w, y = torch.rand(m, k), torch.rand(k, n), torch.empty(m, n)
    took = []
    for _ in range(8):
        began = time.perf_counter()
        torch.mm(x, w, out=y)
        took.append(time.perf_counter() - began)
    return 2 * m * k * n / statistics.median(took[1:])


def roofline(
    tokens: Sequence[int], intensities: Sequence[float], speeds: Sequence[float], attainable: Callable[[float], float]
) -> Picture:
    """Measured speeds of products (dots, by their tokens) under the roof, over the FLOPs for each byte."""
    wide = [min(intensities) / 2 * 1.1**step for step in range(200)]
    wide = [value for value in wide if value <= 2 * max(intensities)]
    roof = [attainable(value) for value in wide]

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot(wide, [value / 1e9 for value in roof], color=COLOURS[0], label="attainable")
        axes.plot(intensities, [value / 1e9 for value in speeds], "o", color=COLOURS[1], label="measured, by tokens")
        for x, y, count in zip(intensities, speeds, tokens, strict=True):
            axes.annotate(str(count), (x, y / 1e9), xytext=(0, -14), textcoords="offset points", ha="center")
        axes.set(xlabel="FLOPs for each byte", ylabel="GFLOP/s", xscale="log", yscale="log")
        axes.grid()
        axes.legend(frameon=False)
        return figure

    return Picture(draw)


def moments(model: TransformerLM, sequences: int, seq_len: int) -> Moments:
    """Train two steps with AdamW on random tokens; the bytes of each kind at three moments of the second."""
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randint(model.config["vocab_size"], (2, sequences, seq_len)).unbind()
    model(x, y).backward()
    optimizer.step()
    optimizer.zero_grad()
    state = [value for of_one in optimizer.state.values() for value in of_one.values()]
    storages = Storages([*model.parameters(), *state])

    def held() -> tuple[float, ...]:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found = storages.by_kind({"weights": model.parameters(), "gradients": gradients, "optimizer": state})
        return tuple(found.values())

    found = {}
    with storages:
        loss = model(x, y)
        found["after forward"] = held()
        loss.backward()
        found["after backward"] = held()
        optimizer.step()
        found["after the step"] = held()
    return found


def memory(measured: Moments, predicted: Moments) -> Picture:
    """Two bars for each moment of a step: bytes by kind, as measured and (hatched) as predicted."""

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 4), layout="constrained")
        axes, names = figure.subplots(), {}
        for place, (moment, kinds) in enumerate(measured.items()):
            for side, values in ((-0.2, kinds), (0.2, predicted[moment])):
                below = 0.0
                for kind, count, colour in zip(KINDS, values, COLOURS, strict=False):
                    label = kind if place == 0 and side < 0 else None
                    hatch = "//" if side > 0 else None
                    axes.bar(
                        place + side, count, 0.36, below, color=colour, label=label, hatch=hatch, edgecolor="white"
                    )
                    below += count
            totals = spoken_bytes(sum(kinds)), spoken_bytes(sum(predicted[moment]))
            names[place] = f"{moment}\nmeasured {totals[0]}, predicted {totals[1]}"
        bars_axes(axes, names, "bytes")
        return figure

    return Picture(draw)
