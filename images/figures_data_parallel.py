"""The figures of 02_data_parallel."""

from ink import BLUE, DARK, GREEN, GREY, INK, MIDDLE, ORANGE, PALE, PINK, RED, arrow, box, canvas, cell, write
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle


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
    """The same step in three ways: four layers' gradients become ready from the last to the first, and go out late, at
    once, or in pairs.
    """
    figure, axes = canvas(11, 5.0, 33, 15.0)
    colours, latency, size = (PINK, GREEN, ORANGE, BLUE), 2.2, 0.9
    ready = [6.0 + 2.6 * (i + 1) for i in range(4)]
    ways = (
        ("naive", [(ready[3], [i]) for i in range(4)]),
        ("overlapped", [(ready[i], [i]) for i in range(4)]),
        ("two buckets", [(ready[1], [0, 1]), (ready[3], [2, 3])]),
    )
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
    for x, colour, text in (
        (6.0, PINK, "above: backward pass of a layer; below: its gradient goes round"),
        (25.4, DARK, "latency"),
    ):
        axes.add_patch(Rectangle((x, 0.5), 0.8, 0.7, facecolor=colour, linewidth=0))
        write(axes, x + 1.1, 0.85, text, 9.5, ha="left")
    write(axes, 32.4, 0.85, "time →", 9.5, ha="right", color=GREY)
    return figure


def buckets() -> Figure:
    """Parameters of a small model, from the first to the last, and the buckets that they fill from the last to the
    first.
    """
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
    said = (
        "full: its all-reduce is under way",
        "full next: starts after bucket 0",
        "full last: nothing is left to hide it behind",
    )
    for number, text in enumerate(said):
        write(axes, 22.6 - 9.7 * number + cap * scale / 2, 3.0, text, 9.5, color=GREY)
    write(
        axes,
        0.4,
        1.0,
        "A bucket's outline is the cap: what does not fit opens the next one.",
        9.5,
        ha="left",
        color=GREY,
    )
    return figure


FIGURES = {"buckets.png": buckets, "data_parallel.png": data_parallel, "overlap.png": overlap}
