"""The figures of the README."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from ink import BLUE, DARK, GREEN, GREY, INK, MIDDLE, MONO, ORANGE, PALE, PINK, RED, arrow, box, canvas, write
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

HERE = Path(__file__).resolve().parent


def course() -> Figure:
    """The one script, made parallel in five ways: what of the model and of the batch each device holds."""
    layers = (BLUE, ORANGE, GREEN, PINK)
    everything = range(4)
    figure, axes = canvas(12, 7.6, 36, 22.8)

    def device(
        x: float,
        y: float,
        width: float,
        held: Callable[[int, int], float],
        samples: Sequence[int],
        first: bool,
        label: str,
    ) -> None:
        """A device that holds quarter j of layer i as strongly as `held(i, j)`, and these quarters of the batch."""
        box(axes, x, y, width, 6.1, "#fbfbfb", "#b5b5b5")
        inner, left = width - 0.4, x + 0.2
        for layer, colour in enumerate(layers):
            for quarter in everything:
                place = (left + quarter * inner / 4, y + 1.75 + layer * 1.05)
                strength = held(layer, quarter)
                axes.add_patch(Rectangle(place, inner / 4, 0.85, facecolor=PALE, linewidth=0))
                axes.add_patch(Rectangle(place, inner / 4, 0.85, facecolor=colour, alpha=strength, linewidth=0))
        for quarter in everything:
            place = (left + quarter * inner / 4 + 0.03, y + 0.45)
            has = quarter in samples
            axes.add_patch(
                Rectangle(
                    place, inner / 4 - 0.06, 0.75, facecolor=(DARK if first else MIDDLE) if has else PALE, linewidth=0
                )
            )
            if has and width > 1.5:
                write(
                    axes,
                    place[0] + inner / 8 - 0.03,
                    place[1] + 0.36,
                    str(quarter + 1),
                    7,
                    color="white" if first else INK,
                )
        write(axes, x + width / 2, y - 0.45, label, 8, color=GREY)

    def panel(column: int, row: int, title: str, script: str, lines: str) -> tuple[float, float]:
        x, y = 0.7 + 12 * column, 13.1 - 10.9 * row
        write(axes, x, y + 8.6, title, 14, ha="left", weight="bold")
        write(axes, x + 10.4, y + 8.6, script, 8.5, ha="right", color=GREY, **MONO)
        write(axes, x, y + 7.25, lines, 9, ha="left", linespacing=1.35)
        return x, y

    def fours(
        x: float,
        y: float,
        held: Callable[[int, int, int], float],
        samples: Callable[[int], Sequence[int]],
        passed_on: bool = False,
    ) -> None:
        for number in range(4):
            first = number == 0 or not passed_on
            device(
                x + 2.65 * number,
                y,
                2.4,
                lambda i, j, n=number: held(n, i, j),
                samples(number),
                first,
                f"device {number}",
            )

    x, y = panel(0, 0, "One device", "single_gpu_training", "whole model, whole batch;\nthe other three devices idle")
    fours(x, y, lambda n, i, j: n == 0, lambda n: everything if n == 0 else ())
    x, y = panel(
        1, 0, "Data parallel (DDP)", "ddp_training", "whole model on each device, batch split;\ngradients averaged"
    )
    fours(x, y, lambda n, i, j: 1, lambda n: [n])
    x, y = panel(
        2,
        0,
        "Sharded (FSDP)",
        "fsdp_training",
        "a quarter of each layer on each device, batch\nsplit; a layer gathered only while it computes",
    )
    fours(x, y, lambda n, i, j: 1 if j == n else 0.28, lambda n: [n])
    x, y = panel(
        0,
        1,
        "Tensor parallel (TP)",
        "tp_training",
        "each layer computed in quarters, the same batch\non all; partial results summed in each layer",
    )
    fours(x, y, lambda n, i, j: j == n, lambda n: everything)
    x, y = panel(
        1,
        1,
        "Pipeline (PP)",
        "pipeline_training",
        "each device has its layers; the batch passes\nthrough them all, cut into micro-batches",
    )
    fours(x, y, lambda n, i, j: i == n, lambda n: everything, passed_on=True)
    for number in range(3):
        arrow(
            axes,
            (x + 2.65 * number + 2.1, y + 2.2 + 1.05 * number),
            (x + 2.65 * number + 2.95, y + 3.1 + 1.05 * number),
            INK,
        )
    x, y = panel(
        2, 1, "Combined (3-D)", "hybrid_training", "8 devices: 2 data-parallel × 2 pipeline stages\n× 2 tensor halves"
    )
    for number in range(8):
        data, stage, half = number // 4, number // 2 % 2, number % 2
        place = x + 1.29 * number + (0.2 if data else 0)
        device(
            place,
            y,
            1.19,
            lambda i, j, s=stage, h=half: i // 2 == s and j // 2 == h,
            (0, 1) if data == 0 else (2, 3),
            stage == 0,
            str(number),
        )

    y = 0.55
    key = (
        (BLUE, 1, "held (a colour is a layer)"),
        (BLUE, 0.28, "gathered when needed"),
        (PALE, 1, "held elsewhere"),
        (DARK, 1, "quarter of the batch"),
        (MIDDLE, 1, "its activations"),
    )
    for place, (colour, alpha, meaning) in zip((0.7, 9.2, 16.4, 22.0, 29.0), key, strict=True):
        axes.add_patch(Rectangle((place, y - 0.35), 0.8, 0.7, facecolor=PALE, linewidth=0))
        axes.add_patch(Rectangle((place, y - 0.35), 0.8, 0.7, facecolor=colour, alpha=alpha, linewidth=0))
        write(axes, place + 1.1, y, meaning, 9.5, ha="left")
    return figure


def verdict() -> Figure:
    """From the student's file to a verdict that is reached outside of it."""
    figure, axes = canvas(11, 5.2, 33, 15.6)

    box(axes, 0.6, 9.05, 6.2, 4.2)
    write(axes, 3.7, 12.45, "your file", 12, weight="bold")
    write(axes, 3.7, 11.2, "train/ddp_training.py", 9, **MONO)
    write(axes, 3.7, 9.9, "# TODO 10: …", 9, color=GREY, **MONO)

    write(axes, 12.0, 14.6, "one fresh process a rank", 10, color=GREY)
    for rank, colour in enumerate((BLUE, ORANGE, GREEN)):
        y = 12.3 - 1.9 * rank
        box(axes, 9.2, y, 5.6, 1.5, colour, colour)
        write(axes, 12.0, y + 0.75, f"rank {rank}: your code", 10)
        arrow(axes, (6.8, 11.15), (9.2, y + 0.75))
        arrow(axes, (14.8, y + 0.75), (20.2, y + 0.75))
    write(axes, 17.5, 13.6, "events, evidence", 10, color=GREY)

    box(axes, 20.2, 8.0, 5.4, 6.1, "#f4f4f4", INK, linewidth=1.5)
    write(axes, 22.9, 13.2, "the judge", 12, weight="bold")
    write(axes, 22.9, 12.1, "runs none of your code", 9)
    write(
        axes, 22.9, 10.2, "Do the calls of\nall ranks match?\nIs the result that\nof one process?", 9, linespacing=1.4
    )
    arrow(axes, (25.6, 12.3), (27.8, 12.3))
    arrow(axes, (25.6, 9.6), (27.8, 9.6))
    box(axes, 27.8, 11.4, 4.6, 1.8, "#ffffff", "#00815e", linewidth=1.5)
    write(axes, 30.1, 12.3, "right", 12, weight="bold", color="#00694d")
    box(axes, 27.8, 8.4, 4.6, 2.4, "#ffffff", RED, linewidth=1.5)
    write(axes, 30.1, 10.1, "wrong", 12, weight="bold", color="#a84a00")
    write(axes, 30.1, 9.1, "rank, line, TODO", 9)

    box(axes, 20.2, 5.6, 5.4, 1.5, PALE, PALE)
    write(axes, 22.9, 6.35, "the serial run", 10)
    arrow(axes, (22.9, 7.1), (22.9, 8.0))

    write(axes, 0.6, 4.3, "A deadlock, known at once:", 10, ha="left", weight="bold")
    for rank, (colour, y) in enumerate(((BLUE, 2.6), (ORANGE, 0.9))):
        write(axes, 2.3, y + 0.5, f"rank {rank}", 9, ha="right")
        box(axes, 2.7, y, 3.2 if rank == 0 else 5.1, 1.0, colour, colour)
    box(axes, 6.0, 2.6, 6.8, 1.0, "white", BLUE, linestyle="--", linewidth=1.5)
    write(axes, 9.4, 3.1, "waits in all_reduce …", 9)
    write(axes, 8.0, 1.4, "has finished", 9, ha="left")
    arrow(axes, (13.2, 2.3), (14.8, 2.3))
    said = (
        "deadlock: rank 0 waits in all_reduce at\ntrain/ddp_training.py:156 (TODO 10);\nrank 1 never comes: it has"
        " finished"
    )
    box(axes, 15.2, 0.7, 17.2, 3.2, "#fff4ec", RED, linewidth=1.5)
    write(axes, 15.8, 2.3, said, 10.5, ha="left", linespacing=1.5, **MONO)
    return figure


def wikitext2() -> Figure:
    """A run of single_gpu_training on WikiText-2; its record, metrics.jsonl, is kept beside the figures."""
    lines = [json.loads(line) for line in (HERE / "wikitext2.jsonl").read_text("utf-8").splitlines()]
    steps, epochs = ([line for line in lines if line["kind"] == kind] for kind in ("step", "epoch"))
    test = next(line for line in lines if line["kind"] == "test")
    figure = Figure(figsize=(8, 3.6), facecolor="white", layout="constrained")
    axes = figure.subplots()
    axes.plot(
        [line["step"] for line in steps],
        [math.exp(line["loss"]) for line in steps],
        color=BLUE,
        linewidth=1,
        label="training",
    )
    axes.plot(
        [line["step"] for line in epochs],
        [math.exp(line["validation_loss"]) for line in epochs],
        "o",
        color=RED,
        label="validation",
    )
    axes.axhline(
        math.exp(test["loss"]), color=DARK, linewidth=1, linestyle="--", label=f"test: {math.exp(test['loss']):.0f}"
    )
    axes.set(yscale="log", xlabel="step", ylabel="perplexity")
    axes.set_yticks(
        [100, 200, 500, 1000, 2000, 5000, 10000], ["100", "200", "500", "1,000", "2,000", "5,000", "10,000"]
    )
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


FIGURES = {"course.png": course, "verdict.png": verdict, "wikitext2.png": wikitext2}
