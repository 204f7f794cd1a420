"""The figures of 03_zero."""

import itertools

from ink import BLUE, GREEN, GREY, INK, MIDDLE, ORANGE, PALE, RED, arrow, canvas, cell, fill, key, note, title, write
from matplotlib.axes import Axes
from matplotlib.figure import Figure

RANKS = (BLUE, ORANGE, GREEN)


def zero_stages() -> Figure:
    """What each of three ranks holds of weights, gradients and optimizer state, stage by stage; heights are bytes in
    float32.
    """
    kinds = (("weights", 1.5, BLUE), ("gradients", 1.5, ORANGE), ("optimizer state", 3.0, GREEN))
    stages = (
        ("stage 0", "plain data\nparallel", ()),
        ("stage 1", "optimizer\nstate sharded", (2,)),
        ("stage 2", "gradients\nas well", (1, 2)),
        ("stage 3", "weights\nas well", (0, 1, 2)),
    )
    figure, axes = canvas(13.2)
    for column, (name, meaning, sharded) in enumerate(stages):
        left = 0.3 + 4.45 * column
        title(axes, left + 2.05, 12.6, name)
        note(axes, left + 2.05, 11.3, meaning)
        for rank in range(3):
            x, below = left + 1.4 * rank, 4.0
            write(axes, x + 0.65, 3.5, str(rank))
            for kind, (_, height, colour) in enumerate(kinds):
                third = height / 3
                held = (below + (2 - rank) * third, third) if kind in sharded else (below, height)
                fill(axes, x, below, 1.3, height, PALE)
                fill(axes, x, held[0], 1.3, held[1], colour)
                fill(axes, x, below, 1.3, height, "none", edgecolor="white", linewidth=1.5)
                below += height
    note(axes, 9.0, 2.7, "ranks 0 to 2 in each stage; heights are bytes")
    key(axes, 1.6, [([colour], name) for name, _, colour in kinds], 0.8)
    key(axes, 0.6, (([PALE], "held by the other ranks"),), 0.8)
    return figure


def zero_shards() -> Figure:
    """Seven numbers cut into parts for three ranks, and filled up to shards of one length."""
    figure, axes = canvas(9.6)
    title(axes, 0.3, 9.0, "the tensor", 10, ha="left")
    for i in range(7):
        cell(axes, 0.3 + 1.2 * i, 7.4, 1.2, 1.1, [RANKS[i // 3]], str(i + 1))
    for name, y in (("parts: views of it", 4.1), ("shards: memory of their own, padded to one length", 0.3)):
        title(axes, 0.3, y + 2.3, name, 10, ha="left")
        for rank, colour in enumerate(RANKS):
            left = 0.3 + 6.0 * rank
            write(axes, left + 1.8, y + 1.55, f"rank {rank}")
            for i in range(3):
                number = rank * 3 + i
                if number < 7 or y < 3:
                    text, fills = (str(number + 1), colour) if number < 7 else ("0", PALE)
                    cell(axes, left + 1.2 * i, y, 1.2, 1.1, [fills], text)
    return figure


def zero_step() -> Figure:
    """Stage 3 in turns: units gathered, computed and freed, forward and backward; below each, the memory that weights
    take.
    """
    passes = (
        ("forward pass", (("rest", "gather"), ("rest", "forward"), ("block 0", "gather"), ("block 0", "forward"),
                          ("block 1", "gather"), ("block 1", "forward"), ("rest", "forward"))),
        ("backward pass", (("rest", "backward"), ("block 1", "gather"), ("block 1", "backward"), ("block 1", "reduce"),
                           ("block 0", "gather"), ("block 0", "backward"), ("block 0", "reduce"), ("rest", "backward"),
                           ("rest", "reduce"))),
    )  # fmt: skip
    # In each pass, the first and the last call in which a unit is whole.
    whole = (
        {"rest": (0, 6), "block 0": (2, 3), "block 1": (4, 5)},
        {"rest": (0, 8), "block 0": (4, 6), "block 1": (1, 3)},
    )
    colours = {"gather": BLUE, "forward": MIDDLE, "backward": MIDDLE, "reduce": ORANGE}
    figure, axes = canvas(17.6)
    left, width = 2.4, 1.7
    for number, (name, calls) in enumerate(passes):
        top = 17.0 - 7.7 * number
        title(axes, 0.3, top, name, ha="left")
        for row, unit in enumerate(("block 1", "block 0", "rest")):
            y = top - 1.9 - 1.2 * row
            write(axes, left - 0.2, y + 0.5, unit, ha="right")
            first, last = whole[number][unit]
            fill(axes, left + first * width, y - 0.08, (last - first + 1) * width, 1.16, PALE)
            for moment, (of, call) in enumerate(calls):
                if of == unit:
                    said = {"forward": "run", "backward": "run"}.get(call, call)
                    cell(axes, left + moment * width, y, width, 1.0, [colours[call]], said)
        write(axes, left - 0.2, top - 6.0, "weights\nheld", ha="right")
        for moment in range(len(calls)):
            x, height = left + moment * width, 0.5
            for unit in ("rest", "block 0", "block 1"):
                first, last = whole[number][unit]
                height += 0.75 * (first <= moment <= last)
            fill(axes, x, top - 6.8, width, height, BLUE)
            fill(axes, x, top - 6.8, width, 0.5, GREEN)
    entries = ((([BLUE], "whole"), ([GREEN], "this rank's shards"), ([PALE], "the unit is whole")),)
    key(axes, 1.7, entries[0], 0.8)
    note(axes, 0.8, 0.7, "in turns: while it gathers or reduces, nothing is computed", ha="left")
    return figure


def lane(axes: Axes, y: float, name: str, calls: list[tuple[float, float, str, str]]) -> float:
    """One stream of calls (start, length, text, colour) over time; returns where the last one ends."""
    write(axes, 2.5, y + 0.5, name, ha="right", color=GREY)
    for start, length, text, colour in calls:
        cell(axes, 2.8 + start, y, length, 1.0, [colour], text)
    return max(start + length for start, length, *_ in calls)


def fsdp_prefetch() -> Figure:
    """A step of three blocks, in turns and with prefetch: the next block is gathered, and the last one's gradients are
    reduced, while another block computes.
    """
    figure, axes = canvas(15.4)
    g, f, b, r = 0.8, 1.0, 1.4, 0.8  # lengths of gather, forward, backward, reduce-scatter
    calls = [("g", 0), ("F", 0), ("g", 1), ("F", 1), ("g", 2), ("F", 2), ("B", 2), ("r", 2)]
    calls += [(call, block) for block in (1, 0) for call in "gBr"]
    length, network, compute, slow = {"g": g, "F": f, "B": b, "r": r}, [], [], 0.0
    for call, block in calls:
        (network if call in "gr" else compute).append((slow, call, block))
        slow += length[call]
    title(axes, 0.3, 14.8, "in turns", ha="left")
    lanes(axes, 13.0, network, compute, length)

    back = g + 3 * f  # where the backward pass starts: all but the first gather was hidden
    compute = [(g, "F", 0), (g + f, "F", 1), (g + 2 * f, "F", 2)]
    compute += [(back, "B", 2), (back + b, "B", 1), (back + 2 * b, "B", 0)]
    network = [(0, "g", 0), (g, "g", 1), (g + f, "g", 2), (back, "g", 1), (back + b, "g", 0)]
    network += [(back + b + g, "r", 2), (back + 2 * b + r / 4, "r", 1), (back + 3 * b, "r", 0)]
    fast = back + 3 * b + r
    title(axes, 0.3, 10.3, "with prefetch and overlap", ha="left")
    lanes(axes, 8.5, network, compute, length)
    for end, y, top in ((slow, 11.6, 14.1), (fast, 7.1, 9.8)):
        axes.plot([2.8 + end] * 2, [y, top], color=RED, linewidth=1.8)
    axes.plot([2.8 + slow] * 2, [8.2, 11.6], color=GREY, linewidth=1, linestyle="--")
    arrow(axes, (2.8 + slow, 8.4), (2.9 + fast, 8.4), INK)
    write(axes, 2.8 + (slow + fast) / 2, 8.9, "time saved")

    title(axes, 0.3, 6.2, "weights held, with prefetch", ha="left")
    write(axes, 2.5, 4.0, "memory", ha="right", color=GREY)
    # Each block is whole from the start of its gather to the end of its use; the last one for both passes.
    whole = [(0, g + f), (g, g + 2 * f), (g + f, back + b), (back, back + 2 * b), (back + b, back + 3 * b)]
    moments = sorted({0.0, fast, *(time for span in whole for time in span)})
    for begin, end in itertools.pairwise(moments):
        units = sum(start <= begin and end <= stop for start, stop in whole)
        fill(axes, 2.8 + begin, 3.3, end - begin, 0.4 + 0.75 * units, BLUE)
    fill(axes, 2.8, 3.3, fast, 0.4, GREEN)
    note(axes, 17.6, 3.6, "time →", ha="right")
    key(axes, 2.3, (([BLUE], "g: gather; whole weights"), ([MIDDLE], "F, B: compute")), 0.8, 8.6)
    key(axes, 1.4, (([ORANGE], "r: reduce-scatter"), ([GREEN], "this rank's shards")), 0.8, 8.6)
    note(axes, 0.8, 0.5, "what prefetch costs: two blocks are whole at once", ha="left")
    return figure


def lanes(axes: Axes, y: float, network: list, compute: list, length: dict[str, float]) -> None:
    """Two streams of calls (start, call, block) over time."""
    colours = {"g": BLUE, "F": MIDDLE, "B": MIDDLE, "r": ORANGE}
    for below, name, stream in ((y, "network", network), (y - 1.2, "compute", compute)):
        write(axes, 2.5, below + 0.5, name, ha="right", color=GREY)
        for start, call, block in stream:
            cell(axes, 2.8 + start, below, length[call], 1.0, [colours[call]], f"{call}{block}")


FIGURES = {
    "fsdp_prefetch": fsdp_prefetch,
    "zero_shards": zero_shards,
    "zero_stages": zero_stages,
    "zero_step": zero_step,
}
