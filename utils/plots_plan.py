"""Pictures of plans: what each needs of a device's memory, and where its step's time goes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from utils.plan import Machine, Plan
from utils.plots import COLOURS, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Costs = dict[str, float]  # bytes or seconds, by kind


def spoken(plan: Plan) -> str:
    """A plan in a few words: its axes of more than one rank, its micro-batch, what it computes again."""
    axes = [
        f"{axis} {getattr(plan, axis)}" for axis in ("dp", "shard", "tp", "pp", "cp", "ep") if getattr(plan, axis) > 1
    ]
    again = "" if plan.recompute == "none" else f", {plan.recompute} recompute"
    return f"{' · '.join(axes) or 'one device'}, micro-batch {plan.micro_batch}{again}"


def costs(found: Sequence[tuple[Plan, Costs, Costs]], machine: Machine, title: str = "") -> Picture:
    """For each plan its memory and its seconds, by kind, as bars; the line is what a device has."""

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(13, 1.9 + 0.42 * len(found)), layout="constrained")
        figure.suptitle(title or machine.name)
        left, right = figure.subplots(1, 2, sharey=True)
        bars(left, [{kind: value / 1e9 for kind, value in memory.items()} for _, memory, _ in found])
        left.axvline(machine.memory / 1e9, color="#d55e00", linewidth=1.5)
        left.set(xlabel="GB on a device", xlim=(0, 1.05 * machine.memory / 1e9))
        bars(right, [seconds for _, _, seconds in found])
        right.set(xlabel="seconds of a step")
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
    axes.spines[["top", "right"]].set_visible(False)
