"""The figure of 11_when_it_hangs."""

from ink import BLUE, GREEN, GREY, INK, ORANGE, PINK, arrow, box, canvas, title, write
from matplotlib.figure import Figure

# What is seen; what to look at, and whose stories those are; what that tells.
WAYS = (
    ("nothing happens", "a short time limit,\neach rank's log", "where each\nrank is", BLUE),
    ("one of many\nranks dies", "the first error, stacks:\nfaulthandler, py-spy", "which rank, which line", ORANGE),
    ("it stops, but where?", "fingerprints (DETAIL),\nthe flight recorder", "which calls\ndo not match", GREEN),
    ("it continues,\nwrong or slow", "a number from each rank:\nnorm, checksum, time", "which rank differs", PINK),
)


def hangs_tools() -> Figure:
    """From what one sees of a broken run to the tool that tells, and to what it tells."""
    figure, axes = canvas(11.3)
    for x, name in ((2.9, "you see"), (9.0, "look at"), (15.1, "it shows")):
        title(axes, x, 10.6, name)
    for number, (seen, tool, tells, colour) in enumerate(WAYS):
        y = 7.9 - 2.4 * number
        for x, width, text, fill in ((0.2, 5.2, seen, "white"), (6.2, 5.8, tool, colour), (12.8, 5.0, tells, "white")):
            box(axes, x, y, width, 1.8, fill, GREY)
            write(axes, x + width / 2, y + 0.9, text)
        arrow(axes, (5.4, y + 0.9), (6.2, y + 0.9), INK)
        arrow(axes, (12.0, y + 0.9), (12.8, y + 0.9), INK)
    return figure


FIGURES = {"hangs_tools": hangs_tools}
