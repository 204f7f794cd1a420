"""The figures of 07_expert_parallel."""

from ink import BLUE, GREEN, GREY, INK, MIDDLE, ORANGE, PALE, PINK, arrow, box, canvas, cell, write
from matplotlib.figure import Figure

EXPERTS = (BLUE, ORANGE, GREEN, PINK)


def experts() -> Figure:
    """A token's way through a block with four experts, of which the router chooses two."""
    figure, axes = canvas(11, 3.6, 33, 10.8)
    middle = 5.4
    write(axes, 1.5, middle + 0.9, "token", 10, color=GREY)
    cell(axes, 0.7, middle - 0.5, 1.6, 1.0, [MIDDLE])
    arrow(axes, (2.5, middle), (4.0, middle))
    box(axes, 4.0, middle - 0.8, 3.0, 1.6)
    write(axes, 5.5, middle, "norm", 10)
    arrow(axes, (7.0, middle), (8.6, middle))
    box(axes, 8.6, middle - 0.8, 3.4, 1.6, PALE, PALE)
    write(axes, 10.3, middle, "router", 11, weight="bold")
    write(axes, 10.3, middle - 2.0, "probabilities\n.55  .05  .35  .05", 9, color=GREY, linespacing=1.5)
    for number, colour in enumerate(EXPERTS):
        y = 9.0 - 2.4 * number
        chosen = number in (0, 2)
        box(axes, 16.0, y - 0.75, 5.0, 1.5, colour if chosen else "white", colour)
        write(axes, 18.5, y, f"expert {number}: an MLP", 10, color=INK if chosen else GREY)
        if chosen:
            gate = (0.61, None, 0.39)[number]
            arrow(axes, (12.0, middle), (16.0, y))
            arrow(axes, (21.0, y), (26.0, middle + (0.45 if number == 0 else -0.45)))
            write(axes, 24.4, y - 0.55 if number == 0 else y - 0.25, f"× {gate}", 10)
    box(axes, 26.0, middle - 0.7, 1.4, 1.4)
    write(axes, 26.7, middle, "+", 14)
    arrow(axes, (27.4, middle), (29.4, middle))
    box(axes, 29.4, middle - 0.7, 1.4, 1.4)
    write(axes, 30.1, middle, "+", 14)
    arrow(axes, (30.8, middle), (32.6, middle))
    axes.plot([3.2, 3.2, 30.1], [middle, 10.3, 10.3], color=GREY, linewidth=1.5)
    arrow(axes, (30.1, 10.3), (30.1, middle + 0.7))
    write(axes, 25.2, 9.85, "the residual stream", 9.5, color=GREY)
    write(axes, 16.0, 0.4, "The gates are .55 and .35, divided by their sum.", 9.5, ha="left", color=GREY)
    return figure


def expert_dispatch() -> Figure:
    """Two ranks with two experts each: rows sorted, exchanged, regrouped, computed, and on their way back."""
    figure, axes = canvas(12, 5, 36, 15)
    chosen = ((2, 0, 3, 0), (1, 2, 0, 2))  # the expert of each of a rank's four slots
    sorts = [sorted(range(4), key=lambda slot, mine=mine: mine[slot]) for mine in chosen]
    names = [[f"{'ab'[rank]}{slot}" for slot in range(4)] for rank in range(2)]
    leaving = [[(names[rank][slot], chosen[rank][slot]) for slot in sorts[rank]] for rank in range(2)]
    arriving = [[row for source in leaving for row in source if row[1] // 2 == rank] for rank in range(2)]
    regrouped = [sorted(rows, key=lambda row: row[1]) for rows in arriving]
    slots = [[(name, e) for name, e in zip(names[rank], chosen[rank], strict=True)] for rank in range(2)]
    columns = (("slots", slots), ("sorted", leaving), ("arrived", arriving), ("regrouped", regrouped))
    lefts, height = (3.4, 9.6, 17.0, 23.2), 1.1
    tops = (12.8, 6.6)
    for rank, top in enumerate(tops):
        write(axes, 1.4, top - 1.6, f"rank {rank}", 11, weight="bold")
    where = {}
    for (title, rows_of), left in zip(columns, lefts, strict=True):
        write(axes, left + 1.3, 13.9, title, 11, weight="bold")
        for rank, top in enumerate(tops):
            for place, (name, expert) in enumerate(rows_of[rank]):
                y = top - height * (place + 1)
                cell(axes, left, y, 2.6, height, [EXPERTS[expert]], name, 10)
                where[title, name] = (left, y + height / 2)
    for before, after in (("slots", "sorted"), ("sorted", "arrived"), ("arrived", "regrouped")):
        for rank in range(2):
            for name in names[rank]:
                x, y = where[before, name]
                arrow(axes, (x + 2.7, y), (where[after, name][0] - 0.1, where[after, name][1]), MIDDLE)
    write(axes, 14.6, 13.9, "exchange", 10, color=GREY)
    for rank, top in enumerate(tops):
        place = 0
        for expert in (2 * rank, 2 * rank + 1):
            count = sum(e == expert for _, e in regrouped[rank])
            y = top - height * (place + count)
            box(axes, 27.4, y + 0.12, 4.2, height * count - 0.24, EXPERTS[expert], EXPERTS[expert])
            write(axes, 29.5, y + height * count / 2, f"expert {expert}", 10)
            arrow(axes, (25.9, y + height * count / 2), (27.4, y + height * count / 2))
            place += count
    arrow(axes, (32.4, 0.7), (3.4, 0.7), GREY)
    write(
        axes,
        17.8,
        1.35,
        "results go back: the regrouping undone, the exchange with lengths swapped, each row to its slot",
        9.5,
        color=GREY,
    )
    axes.plot([32.4, 32.4, 31.7], [0.7, 7.4, 7.4], color=GREY, linewidth=1.5)
    write(axes, 33.0, 10.6, "colour:\nthe expert", 9, ha="left", color=GREY, linespacing=1.4)
    return figure


def expert_capacity() -> Figure:
    """Six tokens with two choices each; each expert takes four slots, first choices first."""
    figure, axes = canvas(10, 3.7, 30, 11.1)
    first, second = (0, 0, 1, 0, 0, 2), (1, 2, 0, 1, 2, 0)
    limit, taken, kept = 3, [0, 0, 0], {}
    for choice, row in enumerate((first, second)):
        for token, expert in enumerate(row):
            kept[choice, token] = taken[expert] if taken[expert] < limit else None
            taken[expert] += 1
    for token in range(6):
        write(axes, 5.6 + 1.9 * token, 10.2, f"token {token}", 9.5, color=GREY)
    for choice, row in enumerate((first, second)):
        y = 8.2 - 1.7 * choice
        write(axes, 4.3, y + 0.6, ("first choice", "second choice")[choice], 10, ha="right")
        for token, expert in enumerate(row):
            colour = EXPERTS[expert] if kept[choice, token] is not None else "white"
            cell(
                axes,
                4.7 + 1.9 * token,
                y,
                1.7,
                1.2,
                [colour],
                f"{expert}" if kept[choice, token] is not None else "-1",
                10,
            )
            if kept[choice, token] is None:
                box(axes, 4.75 + 1.9 * token, y + 0.05, 1.6, 1.1, "white", EXPERTS[expert], linestyle="--", zorder=2)
                write(axes, 5.55 + 1.9 * token, y + 0.6, "-1", 10, zorder=3)
    seats = [[None] * limit for _ in range(3)]
    for (choice, token), seat in kept.items():
        if seat is not None:
            seats[(first, second)[choice][token]][seat] = (token, choice)
    for expert, colour in enumerate(EXPERTS[:3]):
        left = 1.6 + 9.4 * expert
        write(axes, left + 3.3, 4.4, f"expert {expert}", 11, weight="bold")
        for place, seat in enumerate(seats[expert]):
            text = "free" if seat is None else f"token {seat[0]}"
            cell(axes, left + 2.2 * place, 2.4, 2.1, 1.4, [PALE if seat is None else colour], text, 9)
    write(
        axes,
        15.0,
        1.2,
        "Six tokens, two choices each, three experts, factor 0.75: each takes 0.75 · 6 · 2 / 3 = 3.",
        10,
        color=GREY,
    )
    write(
        axes,
        22.6,
        7.9,
        "dashed: dropped.\nFirst choices sit down first,\nearlier tokens before later ones.",
        10,
        ha="center",
        color=GREY,
        linespacing=1.5,
    )
    return figure


def expert_groups() -> Figure:
    """Four ranks in two sets: who exchanges tokens, whose gradients are averaged."""
    figure, axes = canvas(9, 4.2, 27, 12.6)
    for rank in range(4):
        row, column = divmod(rank, 2)
        x, y = 5.2 + 9.2 * column, 7.6 - 5.0 * row
        box(axes, x, y, 6.4, 3.4, "#fbfbfb", "#b5b5b5")
        write(axes, x + 3.2, y + 2.85, f"rank {rank}", 10.5, weight="bold")
        cell(axes, x + 0.3, y + 1.35, 5.8, 0.95, [MIDDLE], "attention, router, …", 9)
        for place in range(2):
            expert = 2 * column + place
            cell(axes, x + 0.3 + 2.9 * place, y + 0.3, 2.9, 0.95, [EXPERTS[expert]], f"expert {expert}", 9)
    for row in range(2):
        y = 9.3 - 5.0 * row
        write(axes, 2.6, y, f"set {row}", 11, weight="bold")
        axes.annotate("", (14.3, y), (11.7, y), arrowprops={"arrowstyle": "<|-|>", "color": INK, "linewidth": 1.6})
        write(axes, 13.0, y + 0.6, "tokens", 9.5)
    for column in range(2):
        x = 8.4 + 9.2 * column
        axes.annotate("", (x, 6.1), (x, 7.6), arrowprops={"arrowstyle": "<|-|>", "color": INK, "linewidth": 1.6})
        write(axes, x + 0.3, 6.85, "these experts' gradients", 9.5, ha="left")
    write(axes, 13.2, 1.3, "The gradients of what is grey are reduced over all four ranks.", 10, color=GREY)
    return figure


FIGURES = {
    "expert_capacity.png": expert_capacity,
    "expert_dispatch.png": expert_dispatch,
    "expert_groups.png": expert_groups,
    "experts.png": experts,
}
