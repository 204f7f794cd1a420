"""Draws every figure of the course beside itself: python images/draw.py

One function a figure. The files hold no date and no version, so that drawing them
again with the same matplotlib gives the same bytes.
"""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

HERE = Path(__file__).resolve().parent

# Told apart by the colour-blind, too (Okabe and Ito), and light enough for black text.
BLUE, ORANGE, GREEN, PINK = "#6bb7e8", "#f0b13c", "#4fbf9b", "#dd9cc0"
RED = "#d55e00"
DARK, MIDDLE = "#4a4a4a", "#b4b4b4"
INK, GREY, PALE = "#222222", "#6b6b6b", "#e9e9e9"
MONO = {"family": "DejaVu Sans Mono"}


def main() -> None:
    for name, draw in FIGURES.items():
        save(draw(), HERE / name)


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=130, metadata={"Software": None}, pil_kwargs={"optimize": True})


# ---------------------------------------------------------------------------------------------------
# What all figures use


def canvas(width: float, height: float, x: float, y: float) -> tuple[Figure, Axes]:
    """A white figure of `width` × `height` inches, with one empty set of axes of x × y units."""
    figure = Figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, x), ylim=(0, y))
    axes.axis("off")
    return figure, axes


def write(axes: Axes, x: float, y: float, text: str, size: float = 10, **how: object) -> None:
    axes.text(x, y, text, **({"fontsize": size, "color": INK, "ha": "center", "va": "center"} | how))


def cell(axes: Axes, x: float, y: float, width: float, height: float, colours: Sequence[str], text: str = "", size: float = 9) -> None:
    """A box with a stripe for each colour."""
    stripe = width / len(colours)
    for i, colour in enumerate(colours):
        axes.add_patch(Rectangle((x + i * stripe, y), stripe, height, facecolor=colour, linewidth=0))
    axes.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor="white", linewidth=1.5))
    write(axes, x + width / 2, y + height / 2, text, size)


def box(axes: Axes, x: float, y: float, width: float, height: float, colour: str = "white", edge: str = GREY, **how: object) -> None:
    shape = FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.12", facecolor=colour, edgecolor=edge, **how)
    axes.add_patch(shape)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = GREY, **how: object) -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=13, color=colour, shrinkA=0, shrinkB=0, linewidth=1.5, **how))


# ---------------------------------------------------------------------------------------------------
# The figures


def collectives() -> Figure:
    """What three ranks hold before and after; the digit of a sum tells whom it came from."""
    ranks = (BLUE, ORANGE, GREEN)
    before = [[(10**rank * n, [colour]) for n in (1, 2, 3)] for rank, colour in enumerate(ranks)]
    total = [(sum(before[rank][i][0] for rank in range(3)), list(ranks)) for i in range(3)]
    after = {
        "all-reduce": ("the whole sum, on every rank", [total] * 3),
        "all-gather": ("all vectors by rank, on every rank", [[*before[0], *before[1], *before[2]]] * 3),
        "reduce-scatter": ("one piece of the sum for each rank", [[total[rank]] for rank in range(3)]),
    }

    figure, axes = canvas(11, 4.7, 29.4, 12.8)
    left = 1.2
    for place, when in ((8.4, "before"), (2.4, "after")):
        write(axes, 0.7, place, when, 11, color=GREY, rotation=90)
    for name, (meaning, held) in after.items():
        first, width = left + 2.3, max(3, len(held[0]))  # where its cells begin
        middle = first + width / 2 - 0.8
        write(axes, middle, 12.1, name, 14, weight="bold")
        write(axes, middle, 11.2, meaning, 9.5, color=GREY)
        for rows, top in ((before, 9.2), (held, 3.2)):
            for rank, row in enumerate(rows):
                y = top - 1.4 * rank
                # The vectors stand in the middle, a piece at its place in the whole.
                start = first + (rank if len(row) == 1 else (width - len(row)) / 2)
                write(axes, (first if rows is held else start) - 0.2, y + 0.6, f"rank {rank}", 9.5, ha="right")
                for i, (number, colours) in enumerate(row):
                    cell(axes, start + i, y, 1, 1.2, colours, str(number), 10)
        arrow(axes, (first + width / 2, 6.1), (first + width / 2, 4.8), INK)
        left = first + width + 2.0
        if name != "reduce-scatter":
            axes.plot([left - 0.6] * 2, [0.2, 12.5], color=PALE, linewidth=1)
    return figure


def course() -> Figure:
    """The one script, made parallel in five ways: what of the model and of the batch each device holds."""
    layers = (BLUE, ORANGE, GREEN, PINK)
    everything = range(4)
    figure, axes = canvas(12, 7.6, 36, 22.8)

    def device(x: float, y: float, width: float, held: Callable[[int, int], float], samples: Sequence[int], first: bool, label: str) -> None:
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
            axes.add_patch(Rectangle(place, inner / 4 - 0.06, 0.75, facecolor=(DARK if first else MIDDLE) if has else PALE, linewidth=0))
            if has and width > 1.5:
                write(axes, place[0] + inner / 8 - 0.03, place[1] + 0.36, str(quarter + 1), 7, color="white" if first else INK)
        write(axes, x + width / 2, y - 0.45, label, 8, color=GREY)

    def panel(column: int, row: int, title: str, script: str, lines: str) -> tuple[float, float]:
        x, y = 0.7 + 12 * column, 13.1 - 10.9 * row
        write(axes, x, y + 8.6, title, 14, ha="left", weight="bold")
        write(axes, x + 10.4, y + 8.6, script, 8.5, ha="right", color=GREY, **MONO)
        write(axes, x, y + 7.25, lines, 9, ha="left", linespacing=1.35)
        return x, y

    def fours(x: float, y: float, held: Callable[[int, int, int], float], samples: Callable[[int], Sequence[int]], passed_on: bool = False) -> None:
        for number in range(4):
            first = number == 0 or not passed_on
            device(x + 2.65 * number, y, 2.4, lambda i, j, n=number: held(n, i, j), samples(number), first, f"device {number}")

    x, y = panel(0, 0, "One device", "single_gpu_training", "whole model, whole batch;\nthe other three devices idle")
    fours(x, y, lambda n, i, j: n == 0, lambda n: everything if n == 0 else ())
    x, y = panel(1, 0, "Data parallel (DDP)", "ddp_training", "whole model on each device, batch split;\ngradients averaged")
    fours(x, y, lambda n, i, j: 1, lambda n: [n])
    x, y = panel(2, 0, "Sharded (FSDP)", "fsdp_training", "a quarter of each layer on each device, batch\nsplit; a layer gathered only while it computes")
    fours(x, y, lambda n, i, j: 1 if j == n else 0.28, lambda n: [n])
    x, y = panel(0, 1, "Tensor parallel (TP)", "tp_training", "each layer computed in quarters, the same batch\non all; partial results summed in each layer")
    fours(x, y, lambda n, i, j: j == n, lambda n: everything)
    x, y = panel(1, 1, "Pipeline (PP)", "pipeline_training", "each device has its layers; the batch passes\nthrough them all, cut into micro-batches")
    fours(x, y, lambda n, i, j: i == n, lambda n: everything, passed_on=True)
    for number in range(3):
        arrow(axes, (x + 2.65 * number + 2.1, y + 2.2 + 1.05 * number), (x + 2.65 * number + 2.95, y + 3.1 + 1.05 * number), INK)
    x, y = panel(2, 1, "Combined (3-D)", "hybrid_training", "8 devices: 2 data-parallel × 2 pipeline stages\n× 2 tensor halves")
    for number in range(8):
        data, stage, half = number // 4, number // 2 % 2, number % 2
        place = x + 1.29 * number + (0.2 if data else 0)
        device(place, y, 1.19, lambda i, j, s=stage, h=half: i // 2 == s and j // 2 == h, (0, 1) if data == 0 else (2, 3), stage == 0, str(number))

    y = 0.55
    key = ((BLUE, 1, "held (a colour is a layer)"), (BLUE, 0.28, "gathered when needed"), (PALE, 1, "held elsewhere"),
           (DARK, 1, "quarter of the batch"), (MIDDLE, 1, "its activations"))  # fmt: skip
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
    write(axes, 22.9, 10.2, "Do the calls of\nall ranks match?\nIs the result that\nof one process?", 9, linespacing=1.4)
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
    said = "deadlock: rank 0 waits in all_reduce at\ntrain/ddp_training.py:156 (TODO 10);\nrank 1 never comes: it has finished"
    box(axes, 15.2, 0.7, 17.2, 3.2, "#fff4ec", RED, linewidth=1.5)
    write(axes, 15.8, 2.3, said, 10.5, ha="left", linespacing=1.5, **MONO)
    return figure


def ranks() -> Figure:
    """Two nodes with four ranks each, and the ring through all of them."""
    figure, axes = canvas(11, 3.1, 33, 9.3)
    for node in range(2):
        box(axes, 1.6 + 15.6 * node, 3.1, 14.2, 5.6, "#fbfbfb", "#b5b5b5")
        write(axes, 8.7 + 15.6 * node, 8.0, f"node {node}", 12, weight="bold")
    places = [2.3 + 3.3 * local + 15.6 * node for node in range(2) for local in range(4)]
    for rank, x in enumerate(places):
        box(axes, x, 4.1, 2.6, 3.0, (BLUE, ORANGE, GREEN, PINK)[rank % 4], "white")
        write(axes, x + 1.3, 6.1, f"rank {rank}", 10.5)
        write(axes, x + 1.3, 4.9, f"local {rank % 4}", 9)
        if rank < 7:
            between = rank == 3
            arrow(axes, (x + 2.6, 5.6), (places[rank + 1], 5.6), RED if between else INK)
    axes.plot([places[7] + 1.3] * 2 + [places[0] + 1.3], [4.1, 1.6, 1.6], color=RED, linewidth=1.5)
    arrow(axes, (places[0] + 1.3, 1.6), (places[0] + 1.3, 4.1), RED)
    write(axes, 16.5, 0.8, "the ring: each rank sends to the next one, the last to rank 0; red links lead from node to node", 10, color=GREY)
    return figure


def tree() -> Figure:
    """A broadcast to eight ranks in three rounds: who has the tensor, and from whom."""
    figure, axes = canvas(11, 4.2, 33, 12.6)
    height = [10.2, 7.2, 4.2, 1.2]
    for row, y in enumerate(height):
        have = 2**row
        write(axes, 4.6, y + 0.6, f"after round {row}" if row else "before", 10, ha="right", color=GREY)
        for rank in range(8):
            x = 5.6 + 3.4 * rank
            if row and have // 2 <= rank < have:
                arrow(axes, (5.6 + 3.4 * (rank - have // 2) + 1.2, height[row - 1]), (x + 1.2, y + 1.2), INK)
            cell(axes, x, y, 2.4, 1.2, [BLUE if rank < have else PALE], f"rank {rank}", 9.5)
    return figure


def ring_rounds(reduce: bool, gather: bool) -> list[tuple[str, list[list[set[int]]], list[int]]]:
    """For each moment of a ring of three ranks its name, whose numbers are in piece p of rank r ([r][p], empty where it is
    of no use), and which piece each rank sends next."""
    world = range(3)
    held = [[{r} if reduce else set(world) if p == r else set() for p in world] for r in world]
    moments = []
    for step in range(2 * (reduce + gather) + 1):
        adding = reduce and step < 2
        leaving = [(r - 1 - step if adding else r - step + 2 * reduce) % 3 for r in world]
        moments.append((f"after round {step}" if step else "before", held, leaving))
        after = [[set(numbers) for numbers in row] for row in held]
        for r in world:
            after[(r + 1) % 3][leaving[r]] |= held[r][leaving[r]]
            if adding:
                after[r][leaving[r]] -= held[r][leaving[r]]
        held = after
    return moments


def ring(reduce: bool, gather: bool) -> Figure:
    """Three ranks with three pieces each, round by round."""
    colours, moments = (BLUE, ORANGE, GREEN), ring_rounds(reduce, gather)
    wide = len(moments) > 3
    gap = 4.9 if wide else 6.4
    figure, axes = canvas(11 if wide else 8.4, 3.3, 3.2 + gap * len(moments), 9.3)
    for column, (name, held, leaving) in enumerate(moments):
        x = 2.4 + gap * column
        write(axes, x + 1.65, 8.6, name, 11, weight="bold")
        if wide and column in (1, 3):
            write(axes, x + 1.65, 0.5, "reduce-scatter" if column == 1 else "all-gather", 10, color=GREY)
        for rank in range(3):
            y = 6.2 - 2.4 * rank
            if column == 0:
                write(axes, x - 0.3, y + 0.6, f"rank {rank}", 10, ha="right")
            for piece in range(3):
                numbers = sorted(held[rank][piece])
                text = str(sum(10**n for n in numbers) * (piece + 1)) if numbers else ""
                cell(axes, x + 1.1 * piece, y, 1.1, 1.2, [colours[n] for n in numbers] or [PALE], text, 9.5)
            if column + 1 < len(moments):
                start, below, down = x + 1.1 * leaving[rank] + 0.55, 6.2 - 2.4 * ((rank + 1) % 3), rank < 2
                arrow(axes, (start, y if down else y + 1.2), (start + gap, below + 1.2 if down else below), INK, zorder=0.5)
    return figure


def all_to_all() -> Figure:
    """Three ranks with a piece for each, before and after."""
    figure, axes = canvas(8.4, 3.0, 25.2, 9.0)
    for x, when in ((4.2, "before"), (16.2, "after")):
        write(axes, x + 3.0, 8.2, when, 12, weight="bold")
        for rank in range(3):
            y = 5.9 - 2.2 * rank
            write(axes, x - 0.4, y + 0.75, f"rank {rank}", 10, ha="right")
            for place in range(3):
                source, target = (rank, place) if when == "before" else (place, rank)
                cell(axes, x + 2.0 * place, y, 2.0, 1.5, [(BLUE, ORANGE, GREEN)[source]], f"{source} to {target}", 9.5)
    arrow(axes, (11.0, 4.45), (13.4, 4.45), INK)
    return figure


def cost() -> Figure:
    """An all-reduce on four ranks, as rounds of alpha and of bytes: many short ones by a ring, few long ones by a tree."""
    figure, axes = canvas(11, 3.7, 33, 11.1)
    unit = 1.25  # of alpha, on paper
    for y, size, name in ((8.2, 0.4, "a small tensor"), (3.2, 4.0, "a large tensor")):
        write(axes, 0.6, y + 1.9, name, 11, ha="left", weight="bold")
        for row, (algorithm, rounds, share) in enumerate((("ring", 6, 1 / 4), ("tree", 4, 1))):
            x, below = 6.0, y - 1.5 * row
            write(axes, x - 0.4, below + 0.5, f"{algorithm}, {rounds} rounds", 10, ha="right")
            for _ in range(rounds):
                for width, colour in ((unit, MIDDLE), (unit * size * share, BLUE)):
                    axes.add_patch(Rectangle((x, below), width, 1.0, facecolor=colour, linewidth=0))
                    x += width
                axes.plot([x, x], [below, below + 1.0], color="white", linewidth=2)
    for x, colour, text in ((6.0, MIDDLE, "latency"), (11.2, BLUE, "bytes")):
        axes.add_patch(Rectangle((x, 0.2), 0.8, 0.7, facecolor=colour, linewidth=0))
        write(axes, x + 1.1, 0.55, text, 9.5, ha="left")
    write(axes, 32.0, 0.55, "time →", 9.5, ha="right", color=GREY)
    return figure


def data_parallel() -> Figure:
    """A step on three ranks: equal weights, other samples, other gradients, one average, and the same step on all."""
    figure, axes = canvas(11, 3.9, 33, 11.7)
    columns = (("weights", 2.6), ("samples", 8.6), ("gradient", 15.4), ("average", 22.6), ("new weights", 28.4))
    for name, x in columns:
        write(axes, x + 1.9, 11.0, name, 12, weight="bold")
    for rank, (colour, gradient) in enumerate(((BLUE, "+1"), (ORANGE, "−3"), (GREEN, "+8"))):
        y = 8.1 - 3.0 * rank
        write(axes, 2.2, y + 0.8, f"rank {rank}", 10, ha="right")
        cell(axes, 2.6, y, 3.8, 1.6, [PALE], "10", 11)
        for i in range(4):
            cell(axes, 8.6 + 0.95 * i, y, 0.95, 1.6, [colour], str(4 * rank + i + 1), 9)
        cell(axes, 15.4, y, 3.8, 1.6, [colour], gradient, 11)
        cell(axes, 22.6, y, 3.8, 1.6, [BLUE, ORANGE, GREEN], "+2", 11)
        cell(axes, 28.4, y, 3.8, 1.6, [PALE], "8", 11)
        for start, end in ((6.6, 8.4), (12.6, 15.2), (26.6, 28.2)):
            arrow(axes, (start, y + 0.8), (end, y + 0.8), INK)
        for other in range(3):
            arrow(axes, (19.3, y + 0.8), (22.4, 8.9 - 3.0 * other), colour, zorder=0.5)
    write(axes, 20.9, 0.8, "all-reduce", 10, color=GREY)
    write(axes, 13.9, 0.8, "forward, backward", 10, color=GREY)
    write(axes, 27.4, 0.8, "optimizer", 10, color=GREY)
    return figure


def overlap() -> Figure:
    """The same step in three ways: four layers' gradients become ready from the last to the first, and go out late, at once, or in pairs."""
    figure, axes = canvas(11, 5.0, 33, 15.0)
    colours, latency, size = (PINK, GREEN, ORANGE, BLUE), 2.2, 0.9
    ready = [6.0 + 2.6 * (i + 1) for i in range(4)]
    ways = (("naive", [(ready[3], [i]) for i in range(4)]), ("overlapped", [(ready[i], [i]) for i in range(4)]),
            ("two buckets", [(ready[1], [0, 1]), (ready[3], [2, 3])]))  # fmt: skip
    for row, (name, messages) in enumerate(ways):
        y = 11.2 - 4.5 * row
        write(axes, 5.4, y + 2.0, name, 12, ha="right", weight="bold")
        for i, colour in enumerate(colours):
            cell(axes, 6.0 + 2.6 * i, y + 1.6, 2.6, 1.3, [colour], f"layer {4 - i}", 9)
        end = 0.0
        for start, members in messages:
            x = max(start, end)
            axes.add_patch(Rectangle((x, y), latency, 1.2, facecolor=DARK, linewidth=0))
            for place, i in enumerate(members):
                axes.add_patch(Rectangle((x + latency + size * place, y), size, 1.2, facecolor=colours[i], linewidth=0))
            end = x + latency + size * len(members)
            axes.plot([end, end], [y, y + 1.2], color="white", linewidth=1.5)
            for i in members:
                axes.plot([ready[i]] * 2, [y + 1.2, y + 1.6], color=INK, linewidth=1.2)
        axes.plot([end, end], [y - 0.4, y + 3.1], color=RED, linewidth=1.8)
        write(axes, end + 0.3, y + 2.3, "over", 9.5, ha="left", color="#a84a00")
        write(axes, 5.4, y + 0.5, "network", 9, ha="right", color=GREY)
    for x, colour, text in ((6.0, PINK, "above: backward pass of a layer; below: its gradient goes round"), (25.4, DARK, "latency")):
        axes.add_patch(Rectangle((x, 0.5), 0.8, 0.7, facecolor=colour, linewidth=0))
        write(axes, x + 1.1, 0.85, text, 9.5, ha="left")
    write(axes, 32.4, 0.85, "time →", 9.5, ha="right", color=GREY)
    return figure


def buckets() -> Figure:
    """Parameters of a small model, from the first to the last, and the buckets that they fill from the last to the first."""
    figure, axes = canvas(11, 4.4, 33, 13.2)
    sizes, names = (6, 1, 1, 4, 2, 5, 2), ("embedding", "", "", "weight", "bias", "weight", "bias")
    cap, scale = 7, 1.25
    members, room = [[]], cap
    for index in reversed(range(len(sizes))):
        if sizes[index] > room:
            members.append([])
            room = cap
        members[-1].append(index)
        room -= sizes[index]
    colours = (PINK, GREEN, BLUE)
    bucket_of = {index: number for number, bucket in enumerate(members) for index in bucket}
    centres, x = {}, 3.2
    write(axes, 2.8, 11.0, "model", 11, ha="right", weight="bold")
    for index, size in enumerate(sizes):
        cell(axes, x, 10.3, size * scale, 1.4, [colours[bucket_of[index]]], names[index], 9)
        centres[index] = x + size * scale / 2
        x += size * scale
    arrow(axes, (x - 0.2, 12.5), (3.4, 12.5), GREY)
    write(axes, 16.3, 12.9, "the backward pass goes from the last to the first", 9.5, color=GREY)
    for number, bucket in enumerate(members):
        left, y = 22.6 - 9.7 * number, 5.0
        write(axes, left + cap * scale / 2, y - 0.7, f"bucket {number}", 11, weight="bold")
        box(axes, left - 0.1, y - 0.1, cap * scale + 0.2, 1.6, "#fbfbfb", GREY)
        place = left
        for index in bucket:
            cell(axes, place, y, sizes[index] * scale, 1.4, [colours[number]], names[index], 9)
            arrow(axes, (centres[index], 10.2), (place + sizes[index] * scale / 2, y + 1.5), MIDDLE, zorder=0.5)
            place += sizes[index] * scale
    said = ("full: its all-reduce is under way", "full next: starts after bucket 0", "full last: nothing is left to hide it behind")
    for number, text in enumerate(said):
        write(axes, 22.6 - 9.7 * number + cap * scale / 2, 3.0, text, 9.5, color=GREY)
    write(axes, 0.4, 1.0, "A bucket's outline is the cap: what does not fit opens the next one.", 9.5, ha="left", color=GREY)
    return figure


def zero_stages() -> Figure:
    """What each of three ranks holds of weights, gradients and optimizer state, stage by stage; heights are bytes in float32."""
    kinds = (("weights", 1.6, BLUE), ("gradients", 1.6, ORANGE), ("optimizer state", 3.2, GREEN))
    stages = (("stage 0", "plain data parallel", ()), ("stage 1", "optimizer state shared out", (2,)),
              ("stage 2", "and gradients", (1, 2)), ("stage 3", "and weights", (0, 1, 2)))  # fmt: skip
    figure, axes = canvas(11, 4.2, 33, 12.6)
    for column, (name, meaning, shared) in enumerate(stages):
        left = 1.0 + 8.0 * column
        write(axes, left + 3.3, 11.8, name, 13, weight="bold")
        write(axes, left + 3.3, 10.9, meaning, 9, color=GREY)
        for rank in range(3):
            x, below = left + 2.3 * rank, 3.0
            write(axes, x + 1.0, 2.4, f"rank {rank}", 9)
            for kind, (_, height, colour) in enumerate(kinds):
                axes.add_patch(Rectangle((x, below), 2.0, height, facecolor=PALE, linewidth=0))
                third = height / 3
                held = (below + (2 - rank) * third, third) if kind in shared else (below, height)
                axes.add_patch(Rectangle((x, held[0]), 2.0, held[1], facecolor=colour, linewidth=0))
                axes.add_patch(Rectangle((x, below), 2.0, height, fill=False, edgecolor="white", linewidth=1.5))
                below += height
    for x, (name, _, colour) in zip((1.0, 7.0, 13.4), kinds, strict=True):
        axes.add_patch(Rectangle((x, 0.5), 0.8, 0.7, facecolor=colour, linewidth=0))
        write(axes, x + 1.1, 0.85, name, 9.5, ha="left")
    axes.add_patch(Rectangle((21.4, 0.5), 0.8, 0.7, facecolor=PALE, linewidth=0))
    write(axes, 22.5, 0.85, "held by the other ranks", 9.5, ha="left")
    return figure


def zero_shards() -> Figure:
    """Seven numbers cut into parts for three ranks, and filled up to shards of one length."""
    colours, size = (BLUE, ORANGE, GREEN), 3
    figure, axes = canvas(9, 3.2, 27, 9.6)
    write(axes, 6.8, 8.3, "the tensor", 10, ha="right", color=GREY)
    for i in range(7):
        cell(axes, 7.4 + 1.4 * i, 7.7, 1.4, 1.2, [colours[i // size]], str(i + 1), 10)
    for place, name, y in ((6.8, "parts: views of it", 5.3), (6.8, "shards: memory of their own", 1.9)):
        write(axes, place, y + 0.6, name, 10, ha="right", color=GREY)
        for rank, colour in enumerate(colours):
            left = 7.4 + 6.2 * rank
            write(axes, left + 2.1, y - 0.55, f"rank {rank}", 9.5)
            for i in range(size):
                number = rank * size + i
                if number < 7:
                    cell(axes, left + 1.4 * i, y, 1.4, 1.2, [colour], str(number + 1), 10)
                elif y < 3:
                    cell(axes, left + 1.4 * i, y, 1.4, 1.2, [PALE], "0", 10)
    return figure


def zero_step() -> Figure:
    """Stage 3 over time: units gathered, computed and freed, forward and backward; below, the memory that weights take."""
    figure, axes = canvas(12, 4.6, 36, 13.8)
    calls = (("rest", "gather"), ("rest", "forward"), ("block 0", "gather"), ("block 0", "forward"), ("block 1", "gather"), ("block 1", "forward"), ("rest", "forward"),
             ("rest", "gather"), ("rest", "backward"), ("block 1", "gather"), ("block 1", "backward"), ("block 1", "reduce"),
             ("block 0", "gather"), ("block 0", "backward"), ("block 0", "reduce"), ("rest", "backward"), ("rest", "reduce"))  # fmt: skip
    colours = {"gather": BLUE, "forward": MIDDLE, "backward": MIDDLE, "reduce": ORANGE}
    rows, left, width, forward, gap = {"block 1": 11.3, "block 0": 9.4, "rest": 7.5}, 3.9, 1.77, 7, 1.2  # calls of the forward pass; nothing is whole after it

    def at(moment: int) -> float:
        return left + moment * width + gap * (moment >= forward)

    # From which call on a unit is whole, and in which call it is freed.
    whole = {"rest": ((0, 6), (7, 16)), "block 0": ((2, 3), (12, 14)), "block 1": ((4, 5), (9, 11))}
    for name, y in rows.items():
        write(axes, left - 0.4, y + 0.55, name if name != "rest" else "the rest", 10.5, ha="right")
        for first, last in whole[name]:
            axes.add_patch(Rectangle((at(first), y - 0.15), at(last) + width - at(first), 1.4, facecolor=PALE, linewidth=0))
    for moment, (name, call) in enumerate(calls):
        text = {"forward": "compute", "backward": "compute"}.get(call, call)
        cell(axes, at(moment), rows[name], width, 1.1, [colours[call]], text, 8)
    split = left + forward * width + gap / 2
    axes.plot([split, split], [0.9, 13.0], color=GREY, linewidth=1, linestyle="--")
    write(axes, (left + split) / 2, 13.2, "forward pass", 11, weight="bold")
    write(axes, split + 5 * width, 13.2, "backward pass", 11, weight="bold")
    size = {"rest": 1.2, "block 0": 1.5, "block 1": 1.5}
    base, shards = 1.6, 0.9
    write(axes, left - 0.4, base + 1.5, "weights\nheld", 10, ha="right")
    for moment in range(len(calls)):
        x, below = at(moment), base + shards
        axes.add_patch(Rectangle((x, base), width + gap * (moment == forward - 1), shards, facecolor=GREEN, linewidth=0))
        for name in ("rest", "block 0", "block 1"):
            if any(first <= moment <= last for first, last in whole[name]):
                axes.add_patch(Rectangle((x, below), width, size[name], facecolor=BLUE, linewidth=0))
                below += size[name]
    for x, colour, text in ((left, GREEN, "this rank's shards, of all units"), (14.6, BLUE, "whole units"), (20.0, ORANGE, "gradients reduced to shards"), (29.0, PALE, "the unit is whole")):
        axes.add_patch(Rectangle((x, 0.2), 0.8, 0.7, facecolor=colour, linewidth=0))
        write(axes, x + 1.1, 0.55, text, 9.5, ha="left")
    return figure


def wikitext2() -> Figure:
    """A run of single_gpu_training on WikiText-2; its record, metrics.jsonl, is kept beside the figures."""
    lines = [json.loads(line) for line in (HERE / "wikitext2.jsonl").read_text("utf-8").splitlines()]
    steps, epochs = ([line for line in lines if line["kind"] == kind] for kind in ("step", "epoch"))
    test = next(line for line in lines if line["kind"] == "test")
    figure = Figure(figsize=(8, 3.6), facecolor="white", layout="constrained")
    axes = figure.subplots()
    axes.plot([line["step"] for line in steps], [math.exp(line["loss"]) for line in steps], color=BLUE, linewidth=1, label="training")
    axes.plot([line["step"] for line in epochs], [math.exp(line["validation_loss"]) for line in epochs], "o", color=RED, label="validation")
    axes.axhline(math.exp(test["loss"]), color=DARK, linewidth=1, linestyle="--", label=f"test: {math.exp(test['loss']):.0f}")
    axes.set(yscale="log", xlabel="step", ylabel="perplexity")
    axes.set_yticks([100, 200, 500, 1000, 2000, 5000, 10000], ["100", "200", "500", "1,000", "2,000", "5,000", "10,000"])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


FIGURES = {
    "all_to_all.png": all_to_all, "buckets.png": buckets, "collectives.png": collectives, "cost.png": cost, "course.png": course,
    "data_parallel.png": data_parallel, "overlap.png": overlap, "ranks.png": ranks,
    "ring_all_gather.png": lambda: ring(reduce=False, gather=True), "ring_all_reduce.png": lambda: ring(reduce=True, gather=True),
    "ring_reduce_scatter.png": lambda: ring(reduce=True, gather=False), "tree.png": tree, "verdict.png": verdict, "wikitext2.png": wikitext2,
    "zero_shards.png": zero_shards, "zero_stages.png": zero_stages, "zero_step.png": zero_step,
}  # fmt: skip

if __name__ == "__main__":
    main()
