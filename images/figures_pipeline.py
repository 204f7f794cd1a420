"""The figures of 05_pipeline_parallel."""

from collections.abc import Iterator

from ink import AXES, BLUE, GREEN, ORANGE, PALE, arrow, box, canvas, fill, key, note, title, write
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Schedules of four ranks and eight micro-batches, a string for each rank: what it does, and for how many ticks it is
# idle (-6). A small letter is an action of its second chunk.
GPIPE = (
    "F0 F1 F2 F3 F4 F5 F6 F7 -9 B0 B1 B2 B3 B4 B5 B6 B7",
    "-1 F0 F1 F2 F3 F4 F5 F6 F7 -6 B0 B1 B2 B3 B4 B5 B6 B7",
    "-2 F0 F1 F2 F3 F4 F5 F6 F7 -3 B0 B1 B2 B3 B4 B5 B6 B7",
    "-3 F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7",
)
ONE_F_ONE_B = (
    "F0 F1 F2 F3 -6 B0 F4 B1 F5 B2 F6 B3 F7 B4 -1 B5 -1 B6 -1 B7",
    "-1 F0 F1 F2 -4 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 -1 B6 -1 B7",
    "-2 F0 F1 -2 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 -1 B7",
    "-3 F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
)
INTERLEAVED = (
    (
        "F0 F1 F2 F3 f0 f1 f2 f3 F4 F5 F6 -3 b0 F7 b1 -1 f4 b2 f5 b3 f6 B0 f7 B1 B2 -1 B3 -1 b4 -1 b5 -1 b6 -1 b7 B4 B5"
        " B6 B7"
    ),
    "-1 F0 F1 F2 F3 f0 f1 f2 f3 F4 -2 b0 F5 b1 F6 b2 F7 b3 f4 B0 f5 B1 f6 B2 f7 B3 -1 b4 -1 b5 -1 b6 -1 b7 B4 B5 B6 B7",
    "-2 F0 F1 F2 F3 f0 f1 f2 -1 b0 f3 b1 F4 b2 F5 b3 F6 B0 F7 B1 f4 B2 f5 B3 f6 b4 f7 b5 -1 b6 -1 b7 B4 B5 B6 B7",
    "-3 F0 F1 F2 F3 f0 b0 f1 b1 f2 b2 f3 b3 F4 B0 F5 B1 F6 B2 F7 B3 f4 b4 f5 b5 f6 b6 f7 b7 B4 B5 B6 B7",
)
ZERO_BUBBLE = (
    "F0 F1 F2 F3 -3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7",
    "-1 F0 F1 F2 -2 I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7",
    "-2 F0 F1 -1 I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W5 W6 W7",
    "-3 F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7",
)

# As in the notebook's plots: light for the first chunk.
SHADES = {"F": "#9ccdf0", "B": "#f3c877", "I": "#f3c877", "W": "#9bdcc0", "f": "#4f9fd4", "b": "#d99a1f"}


def boxes(actions: str, ticks: dict[str, int]) -> Iterator[tuple[str, int, int]]:
    """(action, begin, ticks) of one rank."""
    begin = 0
    for action in actions.split():
        if action.startswith("-"):
            begin += int(action[1:])
            continue
        length = ticks[action[0].upper()]
        yield action, begin, length
        begin += length


def schedule(axes: Axes, name: str, top: float, ranks: tuple[str, ...], ticks: dict[str, int], tick: float) -> float:
    """A schedule; the ranks' lanes are PALE, and where nothing covers them is the bubble. Returns where it ends."""
    left, height = 0.9, 1.0
    title(axes, 0.3, top, name, ha="left")
    placed = [list(boxes(actions, ticks)) for actions in ranks]
    last = max(begin + length for mine in placed for _, begin, length in mine)
    for rank, mine in enumerate(placed):
        y = top - 1.6 - 1.1 * rank
        write(axes, left - 0.2, y + height / 2, str(rank), ha="right")
        fill(axes, left, y, last * tick, height, PALE)
        for action, begin, length in mine:
            x = left + begin * tick
            fill(axes, x, y, length * tick, height, SHADES[action[0]], edgecolor="white", linewidth=0.8)
            write(axes, x + length * tick / 2, y + height / 2, action[1:])
    return left + last * tick


def pipeline_schedules() -> Figure:
    """GPipe and 1F1B, as long as one another, on the same four ranks with eight micro-batches."""
    figure, axes = canvas(15.2)
    one = {"F": 1, "B": 2}
    end = schedule(axes, "GPipe", 14.6, GPIPE, one, 0.5)
    schedule(axes, "1F1B", 8.4, ONE_F_ONE_B, one, 0.5)
    arrow(axes, (0.9, 2.7), (end, 2.7))
    note(axes, 9.0, 2.1, "rows: ranks 0 to 3; 33 units of time, 9 of them idle on each rank")
    key(axes, 0.8, (([SHADES["F"]], "forward"), ([SHADES["B"]], "backward"), ([PALE], "bubble: the rank waits")), 0.9)
    return figure


def pipeline_late_schedules() -> Figure:
    """Interleaved with two chunks, and zero bubble, both on one scale of time."""
    figure, axes = canvas(16.4)
    schedule(axes, "interleaved, two chunks on each rank", 15.8, INTERLEAVED, {"F": 1, "B": 2}, 0.3)
    schedule(axes, "zero bubble (H1)", 9.6, ZERO_BUBBLE, {"F": 1, "I": 1, "W": 1}, 0.6)
    entries = (
        (([SHADES["F"]], "F, chunk 0"), ([SHADES["f"]], "F, chunk 1"), ([PALE], "bubble")),
        (([SHADES["B"]], "B, chunk 0; or I"), ([SHADES["b"]], "B, chunk 1"), ([SHADES["W"]], "W, weights only")),
    )
    for row, three in enumerate(entries):
        key(axes, 1.9 - row, three, 0.9, 5.6)
    note(axes, 9.0, 3.5, "rows: ranks 0 to 3; both on one scale of time")
    return figure


def pipeline_stages() -> Figure:
    """A model in four stages: activations go forward, gradients come back, and weights stay where they are."""
    figure, axes = canvas(10.0)
    pieces = (
        ("embeddings", "block 0", "block 1"),
        ("block 2", "block 3", "block 4"),
        ("block 5", "block 6"),
        ("block 7", "norm, head"),
    )
    for rank, names in enumerate(pieces):
        left = 0.2 + 4.65 * rank
        box(axes, left, 3.2, 3.4, 4.8, edge=AXES["pp"], linewidth=1.6)
        title(axes, left + 1.7, 9.4, f"rank {rank}", 10)
        write(axes, left + 1.7, 8.6, f"stage {rank}")
        for number, name in enumerate(names):
            y = 6.7 - 1.5 * number
            fill(axes, left + 0.2, y, 3.0, 1.1, GREEN)
            write(axes, left + 1.7, y + 0.55, name)
        if rank < 3:
            arrow(axes, (left + 3.45, 6.6), (left + 4.6, 6.6), BLUE, linewidth=2.4)
            arrow(axes, (left + 4.6, 4.6), (left + 3.45, 4.6), ORANGE, linewidth=2.4)
            note(axes, left + 4.02, 5.6, "B·T·D")
    note(axes, 9.0, 2.3, "tokens enter on the first rank, targets on the last")
    key(axes, 0.9, (([GREEN], "weights, each on one rank"), ([BLUE], "activations"), ([ORANGE], "gradients")), 0.8)
    return figure


FIGURES = {
    "pipeline_late_schedules": pipeline_late_schedules,
    "pipeline_schedules": pipeline_schedules,
    "pipeline_stages": pipeline_stages,
}
