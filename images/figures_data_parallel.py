"""The figures of 02_data_parallel."""

from ink import BLUE, DARK, GREEN, GREY, INK, MIDDLE, ORANGE, PALE, PINK, RED, arrow, box, canvas, cell, fill
from ink import key, note, title, write
from matplotlib.figure import Figure

RANKS = (BLUE, ORANGE, GREEN, PINK)


def data_parallel() -> Figure:
    """A step on three ranks: equal weights, different samples and gradients, one average, and the same step on all."""
    figure, axes = canvas(8.8)
    for name, x in (("weights", 2.7), ("samples", 6.6), ("gradient", 10.4), ("average", 13.8), ("new\nweights", 16.9)):
        title(axes, x, 8.1, name, 10)
    for rank, (colour, gradient) in enumerate(zip(RANKS, ("+1", "−3", "+8"), strict=False)):
        y = 5.8 - 1.9 * rank
        write(axes, 1.7, y + 0.6, f"rank {rank}", ha="right")
        cell(axes, 2.0, y, 1.4, 1.2, [PALE], "10")
        for i in range(4):
            cell(axes, 5.0 + 0.8 * i, y, 0.8, 1.2, [colour], str(4 * rank + i + 1))
        cell(axes, 9.6, y, 1.6, 1.2, [colour], gradient)
        cell(axes, 13.0, y, 1.6, 1.2, RANKS[:3], "+2")
        cell(axes, 16.2, y, 1.4, 1.2, [PALE], "8")
        for start, end in ((3.5, 4.9), (8.3, 9.5), (14.7, 16.1)):
            arrow(axes, (start, y + 0.6), (end, y + 0.6), INK)
        for to in range(3):
            arrow(axes, (11.3, y + 0.6), (12.9, 6.4 - 1.9 * to), colour, zorder=0.5)
    for x, text in ((8.9, "forward,\nbackward"), (12.1, "all-reduce"), (15.5, "optimizer")):
        note(axes, x, 1.6, text, va="top")
    return figure


def ddp_nodes() -> Figure:
    """DDP on two nodes of four GPUs: a process, a whole model and its own samples on each GPU; the gradients' ring runs
    inside the nodes, and twice between them.
    """
    figure, axes = canvas(15.0)
    for node, y in ((0, 8.6), (1, 2.2)):
        box(axes, 0.4, y, 17.2, 5.4, "#fbfbfb", "#b5b5b5")
        title(axes, 9.0, y + 4.8, f"node {node}")
        for place in range(4):
            rank = 4 * node + (place if node == 0 else 3 - place)
            x = 1.1 + 4.2 * place
            box(axes, x, y + 0.4, 3.2, 3.8, "white", GREY)
            write(axes, x + 1.6, y + 3.6, f"rank {rank}")
            cell(axes, x + 0.3, y + 1.9, 2.6, 1.1, [PALE], "model")
            cell(axes, x + 0.3, y + 0.6, 2.6, 1.1, [RANKS[rank % 4]], f"{4 * rank + 1} … {4 * rank + 4}")
            if place < 3:
                ends = (x + 3.2, y + 2.4), (x + 4.2, y + 2.4)
                arrow(axes, *(ends if node == 0 else ends[::-1]), INK)
    arrow(axes, (15.3, 9.0), (15.3, 6.4), INK, linewidth=3.2, mutation_scale=16)
    arrow(axes, (2.7, 6.4), (2.7, 9.0), INK, linewidth=3.2, mutation_scale=16)
    note(axes, 9.0, 8.1, "between nodes: InfiniBand, some 25 to 50 GB/s per card")
    title(axes, 9.0, 14.5, "world size 8: one process, one model, 4 of 32 samples on each GPU", 10)
    note(
        axes,
        9.0,
        1.2,
        "in a node: NVLink, hundreds of GB/s.\nThe gradients' ring crosses nodes twice: the slow links set its pace.",
    )
    return figure


def overlap() -> Figure:
    """The same step in three ways: four layers' gradients become ready from the last to the first, and are sent late,
    at once, or in pairs.
    """
    figure, axes = canvas(13.4)
    colours, latency, size, layer, left = (PINK, GREEN, ORANGE, BLUE), 1.3, 0.55, 1.85, 2.5
    ready = [left + layer * (i + 1) for i in range(4)]
    ways = (
        ("naive", [(ready[3], [i]) for i in range(4)]),
        ("overlapped", [(ready[i], [i]) for i in range(4)]),
        ("two buckets", [(ready[1], [0, 1]), (ready[3], [2, 3])]),
    )
    for row, (name, messages) in enumerate(ways):
        y = 9.3 - 4.0 * row
        title(axes, 0.3, y + 3.2, name, ha="left")
        write(axes, 2.3, y + 1.9, "backward", ha="right", color=GREY)
        write(axes, 2.3, y + 0.5, "network", ha="right", color=GREY)
        for i, colour in enumerate(colours):
            cell(axes, left + layer * i, y + 1.4, layer, 1.1, [colour], f"layer {4 - i}")
        end = 0.0
        for start, members in messages:
            x = max(start, end)
            fill(axes, x, y, latency, 1.0, DARK)
            for place, i in enumerate(members):
                fill(axes, x + latency + size * place, y, size, 1.0, colours[i])
                axes.plot([ready[i]] * 2, [y + 1.0, y + 1.4], color=INK, linewidth=1.2)
            end = x + latency + size * len(members)
            axes.plot([end, end], [y, y + 1.0], color="white", linewidth=1.5)
        axes.plot([end, end], [y - 0.3, y + 2.5], color=RED, linewidth=1.8)
        write(axes, end - 0.1, y + 2.9, "done", color=RED)
    key(axes, 0.5, (([DARK], "latency"), (colours, "sending the layer's gradient")), left)
    note(axes, 17.7, 0.5, "time →", ha="right")
    return figure


def buckets() -> Figure:
    """Parameters of a small model, from the first to the last, and the buckets that they fill from the last to the
    first.
    """
    figure, axes = canvas(11.6)
    sizes, cap, scale = (6, 1, 1, 4, 2, 5, 2), 7, 0.78
    members, room = [[]], cap
    for index in reversed(range(len(sizes))):
        if sizes[index] > room:
            members.append([])
            room = cap
        members[-1].append(index)
        room -= sizes[index]
    colours = (PINK, GREEN, BLUE)
    bucket_of = {index: number for number, bucket in enumerate(members) for index in bucket}
    centres, x = {}, 0.8
    arrow(axes, (17.2, 11.1), (14.4, 11.1))
    note(axes, 14.1, 11.1, "the backward pass: from parameter 6 to 0", ha="right")
    for index, size in enumerate(sizes):
        cell(axes, x, 9.2, size * scale, 1.1, [colours[bucket_of[index]]], str(index))
        centres[index] = x + size * scale / 2
        x += size * scale
    said = (
        "full first: sent while\nthe others fill",
        "next: sent after\nbucket 0",
        "last: no work is left\nto hide it behind",
    )
    for number, bucket in enumerate(members):
        left, y = 12.15 - 5.75 * number, 4.7
        title(axes, left + cap * scale / 2, y - 0.7, f"bucket {number}", 10)
        box(axes, left - 0.08, y - 0.08, cap * scale + 0.16, 1.26, "#fbfbfb", GREY)
        place = left
        for index in bucket:
            cell(axes, place, y, sizes[index] * scale, 1.1, [colours[number]], str(index))
            arrow(axes, (centres[index], 9.1), (place + sizes[index] * scale / 2, y + 1.25), MIDDLE, zorder=0.5)
            place += sizes[index] * scale
        note(axes, left + cap * scale / 2, y - 1.8, said[number])
    note(
        axes,
        9.0,
        0.9,
        "parameters: 0 embedding; 1, 2 norm; 3, 4 linear layer; 5, 6 head.\n"
        "A bucket's outline is its cap: what does not fit opens the next one.",
    )
    return figure


FIGURES = {"buckets": buckets, "data_parallel": data_parallel, "ddp_nodes": ddp_nodes, "overlap": overlap}
