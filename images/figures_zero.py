"""The figures of 03_zero."""

from ink import BLUE, GREEN, GREY, MIDDLE, ORANGE, PALE, canvas, cell, write
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle


def zero_stages() -> Figure:
    """What each of three ranks holds of weights, gradients and optimizer state, stage by stage; heights are bytes in
    float32.
    """
    kinds = (("weights", 1.6, BLUE), ("gradients", 1.6, ORANGE), ("optimizer state", 3.2, GREEN))
    stages = (
        ("stage 0", "plain data parallel", ()),
        ("stage 1", "optimizer state shared out", (2,)),
        ("stage 2", "and gradients", (1, 2)),
        ("stage 3", "and weights", (0, 1, 2)),
    )
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
    """Stage 3 over time: units gathered, computed and freed, forward and backward; below, the memory that weights
    take.
    """
    figure, axes = canvas(12, 4.6, 36, 13.8)
    calls = (
        ("rest", "gather"),
        ("rest", "forward"),
        ("block 0", "gather"),
        ("block 0", "forward"),
        ("block 1", "gather"),
        ("block 1", "forward"),
        ("rest", "forward"),
        ("rest", "gather"),
        ("rest", "backward"),
        ("block 1", "gather"),
        ("block 1", "backward"),
        ("block 1", "reduce"),
        ("block 0", "gather"),
        ("block 0", "backward"),
        ("block 0", "reduce"),
        ("rest", "backward"),
        ("rest", "reduce"),
    )
    colours = {"gather": BLUE, "forward": MIDDLE, "backward": MIDDLE, "reduce": ORANGE}
    rows, left, width, forward, gap = (
        {"block 1": 11.3, "block 0": 9.4, "rest": 7.5},
        3.9,
        1.77,
        7,
        1.2,
    )  # calls of the forward pass; nothing is whole after it

    def at(moment: int) -> float:
        return left + moment * width + gap * (moment >= forward)

    # From which call on a unit is whole, and in which call it is freed.
    whole = {"rest": ((0, 6), (7, 16)), "block 0": ((2, 3), (12, 14)), "block 1": ((4, 5), (9, 11))}
    for name, y in rows.items():
        write(axes, left - 0.4, y + 0.55, name if name != "rest" else "the rest", 10.5, ha="right")
        for first, last in whole[name]:
            axes.add_patch(
                Rectangle((at(first), y - 0.15), at(last) + width - at(first), 1.4, facecolor=PALE, linewidth=0)
            )
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
        axes.add_patch(
            Rectangle((x, base), width + gap * (moment == forward - 1), shards, facecolor=GREEN, linewidth=0)
        )
        for name in ("rest", "block 0", "block 1"):
            if any(first <= moment <= last for first, last in whole[name]):
                axes.add_patch(Rectangle((x, below), width, size[name], facecolor=BLUE, linewidth=0))
                below += size[name]
    for x, colour, text in (
        (left, GREEN, "this rank's shards, of all units"),
        (14.6, BLUE, "whole units"),
        (20.0, ORANGE, "gradients reduced to shards"),
        (29.0, PALE, "the unit is whole"),
    ):
        axes.add_patch(Rectangle((x, 0.2), 0.8, 0.7, facecolor=colour, linewidth=0))
        write(axes, x + 1.1, 0.55, text, 9.5, ha="left")
    return figure


FIGURES = {"zero_shards.png": zero_shards, "zero_stages.png": zero_stages, "zero_step.png": zero_step}
