"""What all figures are drawn with."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

# Told apart by the colour-blind, too (Okabe and Ito), and light enough for black text.
BLUE, ORANGE, GREEN, PINK = "#6bb7e8", "#f0b13c", "#4fbf9b", "#dd9cc0"
RED = "#d55e00"
DARK, MIDDLE = "#4a4a4a", "#b4b4b4"
INK, GREY, PALE = "#222222", "#6b6b6b", "#e9e9e9"
MONO = {"family": "DejaVu Sans Mono"}


def canvas(width: float, height: float, x: float, y: float) -> tuple[Figure, Axes]:
    """A white figure of `width` × `height` inches, with one empty set of axes of x × y units."""
    figure = Figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, x), ylim=(0, y))
    axes.axis("off")
    return figure, axes


def write(axes: Axes, x: float, y: float, text: str, size: float = 10, **how: object) -> None:
    axes.text(x, y, text, **({"fontsize": size, "color": INK, "ha": "center", "va": "center"} | how))


def cell(
    axes: Axes, x: float, y: float, width: float, height: float, colours: Sequence[str], text: str = "", size: float = 9
) -> None:
    """A box with a stripe for each colour."""
    stripe = width / len(colours)
    for i, colour in enumerate(colours):
        axes.add_patch(Rectangle((x + i * stripe, y), stripe, height, facecolor=colour, linewidth=0))
    axes.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor="white", linewidth=1.5))
    write(axes, x + width / 2, y + height / 2, text, size)


def box(
    axes: Axes, x: float, y: float, width: float, height: float, colour: str = "white", edge: str = GREY, **how: object
) -> None:
    shape = FancyBboxPatch(
        (x, y), width, height, boxstyle="round,pad=0,rounding_size=0.12", facecolor=colour, edgecolor=edge, **how
    )
    axes.add_patch(shape)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = GREY, **how: object) -> None:
    axes.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=13, color=colour, shrinkA=0, shrinkB=0, linewidth=1.5, **how
        )
    )


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=130, metadata={"Software": None}, pil_kwargs={"optimize": True})
