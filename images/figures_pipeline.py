"""The figures of 05_pipeline_parallel."""

from collections.abc import Iterator

from ink import BLUE, GREEN, GREY, ORANGE, PALE, arrow, box, canvas, write
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

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

# As in utils/plots_pipeline.py, light for the first chunk.
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


def schedule(axes: Axes, name: str, below: float, ranks: tuple[str, ...], ticks: dict[str, int], tick: float) -> None:
    """A schedule; the ranks' lanes are PALE, and where nothing covers them is the bubble."""
    left, height = 2.2, 1.0
    write(axes, left, below + 4.75, name, 11, weight="bold", ha="left")
    placed = [list(boxes(actions, ticks)) for actions in ranks]
    last = max(begin + length for mine in placed for _, begin, length in mine)
    for rank, mine in enumerate(placed):
        y = below + (3 - rank) * 1.1
        write(axes, left - 0.3, y + height / 2, f"rank {rank}", 9, ha="right")
        axes.add_patch(Rectangle((left, y), last * tick, height, facecolor=PALE, linewidth=0))
        for action, begin, length in mine:
            corner = left + begin * tick, y
            axes.add_patch(
                Rectangle(corner, length * tick, height, facecolor=SHADES[action[0]], edgecolor="white", linewidth=1)
            )
            write(axes, corner[0] + length * tick / 2, y + height / 2, action[1:], 7.5)


def legend(axes: Axes, entries: tuple[tuple[str, str], ...], y: float, pitch: float) -> None:
    for number, (colour, text) in enumerate(entries):
        x = 2.2 + pitch * number
        axes.add_patch(Rectangle((x, y), 0.7, 0.6, facecolor=colour, linewidth=0))
        write(axes, x + 1.0, y + 0.3, text, 9, ha="left")


def pipeline_schedules() -> Figure:
    """GPipe and 1F1B, as long as one another."""
    figure, axes = canvas(11.5, 4.5, 32.5, 12.8)
    one = {"F": 1, "B": 2}
    schedule(axes, "GPipe", 7.2, GPIPE, one, 0.9)
    schedule(axes, "1F1B", 1.4, ONE_F_ONE_B, one, 0.9)
    entries = (SHADES["F"], "F, forward"), (SHADES["B"], "B, backward"), (PALE, "bubble: the rank waits")
    legend(axes, entries, 0.3, 6.0)
    return figure


def pipeline_late_schedules() -> Figure:
    """Interleaved with two chunks, and zero bubble, on the scale of the other figure."""
    figure, axes = canvas(11.5, 4.5, 32.5, 12.8)
    schedule(axes, "interleaved, two chunks on each rank", 7.2, INTERLEAVED, {"F": 1, "B": 2}, 0.45)
    schedule(axes, "zero bubble (H1)", 1.4, ZERO_BUBBLE, {"F": 1, "I": 1, "W": 1}, 0.9)
    entries = (
        (SHADES["F"], "F of chunk 0"),
        (SHADES["f"], "F of chunk 1"),
        (SHADES["B"], "B of chunk 0, or I"),
        (SHADES["b"], "B of chunk 1"),
        (SHADES["W"], "W, for the weights"),
    )
    legend(axes, entries, 0.3, 5.6)
    return figure


def pipeline_stages() -> Figure:
    """A model in four stages: activations go forward, gradients come back, and weights stay where they are."""
    figure, axes = canvas(11, 3.4, 33, 10.2)
    pieces = (
        ("embeddings", "block 0", "block 1"),
        ("block 2", "block 3", "block 4"),
        ("block 5", "block 6"),
        ("block 7", "norm, head"),
    )
    for rank, names in enumerate(pieces):
        left = 0.8 + 8.3 * rank
        box(axes, left, 2.6, 5.6, 5.6, colour="white")
        write(axes, left + 2.8, 8.8, f"rank {rank}: stage {rank}", 11, weight="bold")
        for number, name in enumerate(names):
            y = 6.7 - 1.55 * number
            axes.add_patch(Rectangle((left + 0.5, y), 4.6, 1.1, facecolor=GREEN, linewidth=0))
            write(axes, left + 2.8, y + 0.55, name, 9.5)
        if rank < 3:
            arrow(axes, (left + 5.7, 6.4), (left + 8.2, 6.4), BLUE)
            arrow(axes, (left + 8.2, 4.4), (left + 5.7, 4.4), ORANGE)
            write(axes, left + 6.95, 7.0, "B · T · D", 8, color=GREY)
            write(axes, left + 6.95, 3.8, "B · T · D", 8, color=GREY)
    write(axes, 0.8, 1.5, "tokens go in on the first rank, targets on the last", 9.5, ha="left", color=GREY)
    for x, colour, text in (
        (0.8, GREEN, "weights: each on one rank"),
        (11.0, BLUE, "activations"),
        (17.2, ORANGE, "gradients"),
    ):
        axes.add_patch(Rectangle((x, 0.3), 0.7, 0.6, facecolor=colour, linewidth=0))
        write(axes, x + 1.0, 0.6, text, 9.5, ha="left")
    return figure


FIGURES = {
    "pipeline_late_schedules.png": pipeline_late_schedules,
    "pipeline_schedules.png": pipeline_schedules,
    "pipeline_stages.png": pipeline_stages,
}
