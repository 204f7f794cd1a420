"""The figures of 07_expert_parallel."""

from ink import AXES, BLUE, GREEN, GREY, INK, MIDDLE, ORANGE, PALE, PINK, arrow, box, canvas, cell, note, title, write
from matplotlib.figure import Figure

EXPERTS = (BLUE, ORANGE, GREEN, PINK)


def experts() -> Figure:
    """A token's way through a block with four experts; the router chooses two."""
    figure, axes = canvas(11.2)
    middle = 6.0
    note(axes, 0.3, middle + 1.1, "token", ha="left")
    cell(axes, 0.3, middle - 0.4, 0.9, 0.8, [MIDDLE])
    arrow(axes, (1.2, middle), (2.2, middle))
    box(axes, 2.2, middle - 0.7, 1.8, 1.4)
    write(axes, 3.1, middle, "norm")
    arrow(axes, (4.0, middle), (4.9, middle))
    box(axes, 4.9, middle - 0.7, 2.3, 1.4, PALE, PALE)
    title(axes, 6.05, middle, "router", 10)
    note(axes, 4.6, middle - 2.0, "probabilities\n.55 .05 .35 .05")
    for number, colour in enumerate(EXPERTS):
        y = 9.0 - 2.0 * number
        chosen = number in (0, 2)
        box(axes, 8.6, y - 0.6, 2.9, 1.2, colour if chosen else "white", colour)
        write(axes, 10.05, y, f"expert {number}", color=INK if chosen else GREY)
        if chosen:
            end = middle + (0.3 if number == 0 else -0.3)
            arrow(axes, (7.2, middle), (8.6, y))
            arrow(axes, (11.5, y), (14.3, end))
            write(axes, 13.5, 8.2 if number == 0 else 4.7, "× .61" if number == 0 else "× .39")
    for x in (14.3, 16.0):
        box(axes, x, middle - 0.5, 1.0, 1.0)
        write(axes, x + 0.5, middle, "+", 12)
    arrow(axes, (15.3, middle), (16.0, middle))
    arrow(axes, (17.0, middle), (17.8, middle))
    axes.plot([1.7, 1.7, 16.5], [middle, 10.2, 10.2], color=GREY, linewidth=1.4)
    arrow(axes, (16.5, 10.2), (16.5, middle + 0.5))
    note(axes, 9.0, 10.7, "the residual stream")
    note(
        axes,
        9.0,
        0.9,
        "the gates are .55 and .35, divided by their sum;\nan expert is an MLP; the other two are not used",
    )
    return figure


def expert_dispatch() -> Figure:
    """Two ranks with two experts each: rows sorted, exchanged, regrouped, computed, and returned."""
    figure, axes = canvas(14.6)
    chosen = ((2, 0, 3, 0), (1, 2, 0, 2))  # the expert of each of a rank's four slots
    sorts = [sorted(range(4), key=lambda slot, mine=mine: mine[slot]) for mine in chosen]
    names = [[f"{'ab'[rank]}{slot}" for slot in range(4)] for rank in range(2)]
    leaving = [[(names[rank][slot], chosen[rank][slot]) for slot in sorts[rank]] for rank in range(2)]
    arriving = [[row for source in leaving for row in source if row[1] // 2 == rank] for rank in range(2)]
    regrouped = [sorted(rows, key=lambda row: row[1]) for rows in arriving]
    slots = [[(name, e) for name, e in zip(names[rank], chosen[rank], strict=True)] for rank in range(2)]
    columns = (("slots", slots), ("sorted", leaving), ("arrived", arriving), ("regrouped", regrouped))
    lefts, wide, height, tops = (0.6, 4.0, 7.8, 11.2), 1.3, 1.0, (12.2, 6.9)
    where = {}
    for (name, rows_of), left in zip(columns, lefts, strict=True):
        title(axes, left + wide / 2, 14.0, name, 10)
        for rank, top in enumerate(tops):
            for place, (row, expert) in enumerate(rows_of[rank]):
                y = top - height * (place + 1)
                cell(axes, left, y, wide, height, [EXPERTS[expert]], row)
                where[name, row] = (left, y + height / 2)
    for before, after in (("slots", "sorted"), ("sorted", "arrived"), ("arrived", "regrouped")):
        for row in names[0] + names[1]:
            x, y = where[before, row]
            arrow(axes, (x + wide + 0.05, y), (where[after, row][0] - 0.05, where[after, row][1]), MIDDLE)
    for rank, top in enumerate(tops):
        title(axes, 0.6, top + 0.6, f"rank {rank}", 10, ha="left")
        place = 0
        for expert in (2 * rank, 2 * rank + 1):
            count = sum(e == expert for _, e in regrouped[rank])
            y = top - height * (place + count)
            box(axes, 13.7, y + 0.1, 2.6, height * count - 0.2, EXPERTS[expert], EXPERTS[expert])
            write(axes, 15.0, y + height * count / 2, f"expert {expert}")
            arrow(axes, (12.6, y + height * count / 2), (13.7, y + height * count / 2))
            place += count
    axes.plot([16.4, 17.2, 17.2], [7.6, 7.6, 2.2], color=GREY, linewidth=1.4)
    arrow(axes, (17.2, 2.2), (0.6, 2.2))
    note(
        axes,
        9.0,
        1.0,
        "results return: the regrouping undone, the exchange with\nlengths swapped, each row back to its slot",
    )
    return figure


def expert_capacity() -> Figure:
    """Six tokens with two choices each; each expert takes three rows, first choices first."""
    figure, axes = canvas(10.8)
    first, second = (0, 0, 1, 0, 0, 2), (1, 2, 0, 1, 2, 0)
    limit, taken, kept = 3, [0, 0, 0], {}
    for choice, row in enumerate((first, second)):
        for token, expert in enumerate(row):
            kept[choice, token] = taken[expert] if taken[expert] < limit else None
            taken[expert] += 1
    title(axes, 4.0, 10.2, "token", 10, ha="right")
    for token in range(6):
        title(axes, 5.4 + 2.1 * token, 10.2, str(token), 10)
    for choice, row in enumerate((first, second)):
        y = 8.3 - 1.5 * choice
        write(axes, 4.0, y + 0.55, ("first choice", "second choice")[choice], ha="right")
        for token, expert in enumerate(row):
            x = 4.5 + 2.1 * token
            if kept[choice, token] is None:
                box(axes, x, y, 1.8, 1.1, "white", EXPERTS[expert], linestyle="--", linewidth=1.6)
                write(axes, x + 0.9, y + 0.55, "−1")
            else:
                cell(axes, x, y, 1.8, 1.1, [EXPERTS[expert]], str(expert))
    note(axes, 9.0, 5.9, "dashed: dropped. First choices are placed first,\nearlier tokens before later ones.")
    seats = [[None] * limit for _ in range(3)]
    for (choice, token), seat in kept.items():
        if seat is not None:
            seats[(first, second)[choice][token]][seat] = token
    for expert, colour in enumerate(EXPERTS[:3]):
        left = 0.25 + 6.0 * expert
        title(axes, left + 2.75, 4.1, f"expert {expert}", 10)
        for place, token in enumerate(seats[expert]):
            text = "free" if token is None else f"token {token}"
            cell(axes, left + 1.84 * place, 2.2, 1.84, 1.2, [PALE if token is None else colour], text)
    note(
        axes,
        9.0,
        0.9,
        "six tokens, two choices each, three experts, capacity factor 0.75:\n"
        "each expert takes 0.75 · 6 · 2 / 3 = 3 rows",
    )
    return figure


def expert_groups() -> Figure:
    """Four ranks in two sets: which exchange tokens (along ep), and which average their experts' gradients (dp)."""
    figure, axes = canvas(12.6)
    for rank in range(4):
        row, column = divmod(rank, 2)
        x, y = 1.9 + 8.6 * column, 8.0 - 5.4 * row
        box(axes, x, y, 6.4, 3.6, "#fbfbfb", "#b5b5b5")
        title(axes, x + 3.2, y + 3.0, f"rank {rank}", 10)
        cell(axes, x + 0.3, y + 1.4, 5.8, 1.0, [MIDDLE], "attention, router, …")
        for place in range(2):
            expert = 2 * column + place
            cell(axes, x + 0.3 + 2.9 * place, y + 0.3, 2.9, 1.0, [EXPERTS[expert]], f"expert {expert}")
    for row in range(2):
        y = 9.8 - 5.4 * row
        title(axes, 0.95, y, f"set {row}", 10)
        both(axes, (8.35, y), (10.45, y), AXES["ep"])
        write(axes, 9.4, y + 0.6, "tokens")
    for column in range(2):
        x = 5.1 + 8.6 * column
        both(axes, (x, 6.25), (x, 7.95), AXES["dp"])
        write(axes, x + 0.3, 7.1, "gradients", ha="left")
    note(
        axes,
        9.0,
        1.1,
        "tokens are exchanged along ep (orange); along dp (blue) the ranks\n"
        "average their experts' gradients; grey parts: over all four ranks",
    )
    return figure


def both(axes, start, end, colour):
    """An arrow with two heads."""
    arrow(axes, start, end, colour, arrowstyle="<|-|>", linewidth=2.4, mutation_scale=14)


FIGURES = {
    "expert_capacity": expert_capacity,
    "expert_dispatch": expert_dispatch,
    "expert_groups": expert_groups,
    "experts": experts,
}
