"""Pictures of plans: what each needs of a device's memory, and where its step's time goes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from utils.plan import Machine, Plan
from utils.plots.base import COLOURS, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Costs = dict[str, float]  # bytes or seconds, by kind
GIB = 2**30  # bytes


AXES = ("dp", "shard", "tp", "pp", "cp", "ep")


def axes_in_words(plan: Plan) -> str:
    """Its axes of more than one rank."""
    axes = [f"{axis} {getattr(plan, axis)}" for axis in AXES if getattr(plan, axis) > 1]
    return " · ".join(axes) or "one device"


def spoken(plan: Plan) -> str:
    """A plan in a few words: its axes, its micro-batch, what it computes again."""
    again = "" if plan.recompute == "none" else f", {plan.recompute} recompute"
    return f"{axes_in_words(plan)}, micro-batch {plan.micro_batch}{again}"


def costs(
    found: Sequence[tuple[Plan, Costs, Costs]],
    machine: Machine,
    usable: float,
    title: str = "",
    spreads: Sequence[float] = (),
) -> Picture:
    """For each plan its memory and its seconds, by kind, as bars; the line is what plans may hold of a device.
    `spreads` are the fractions of its time by which each plan may be off.
    """

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(13, 1.9 + 0.42 * len(found)), layout="constrained")
        figure.suptitle(title or machine.name)
        left, right = figure.subplots(1, 2, sharey=True)
        bars(left, [{kind: value / GIB for kind, value in memory.items()} for _, memory, _ in found])
        has, limit = machine.memory / GIB, usable * machine.memory / GIB
        left.axvline(limit, color="#d55e00", linewidth=1.5)
        told = f"limit: {limit:.1f} of {has:.1f} GiB"
        left.text(limit, len(found) - 0.5, told, fontsize=7, rotation=90, ha="right", va="bottom", color="#d55e00")
        left.set(xlabel="GiB on a device", xlim=(0, 1.05 * has))
        bars(right, [seconds for _, _, seconds in found])
        right.set(xlabel="seconds of a step" + (", ± the error seen in published runs" if spreads else ""))
        totals = [sum(seconds.values()) for _, _, seconds in found]
        errors = [total * spread for total, spread in zip(totals, spreads, strict=False)]
        right.errorbar(totals[: len(errors)], range(len(errors)), xerr=errors, fmt="none", ecolor="black", capsize=3)
        left.set_yticks(range(len(found)), [spoken(plan) for plan, _, _ in found], fontsize=8)
        left.invert_yaxis()
        return figure

    return Picture(draw)


def bars(axes: "Axes", rows: Sequence[Costs]) -> None:
    """A bar for each row, of a part for each kind that any row has."""
    kinds = [kind for kind in dict.fromkeys(kind for row in rows for kind in row) if any(row.get(kind) for row in rows)]
    begins = [0.0] * len(rows)
    for number, kind in enumerate(kinds):
        values = [row.get(kind, 0.0) for row in rows]
        # more kinds than colours: hatched from there on
        hatch = "//" if number >= len(COLOURS) else None
        axes.barh(range(len(rows)), values, left=begins, color=COLOURS[number % len(COLOURS)], hatch=hatch, label=kind)
        begins = [begin + value for begin, value in zip(begins, values, strict=True)]
    axes.legend(frameon=False, fontsize=7, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
