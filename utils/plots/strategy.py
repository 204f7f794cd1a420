"""What 10_strategy draws: memory and time of plans, scaling; and the planner."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from utils import catalogue
from utils.plan import Machine, Model, Plan
from utils.plots.base import COLOURS, Picture, tidy

if TYPE_CHECKING:  # matplotlib is loaded when something is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# One colour an axis, as in all figures (images/ink.py).
AXES = {"dp": "#0072b2", "shard": "#56b4e9", "ep": "#e69f00", "cp": "#cc79a7", "tp": "#d55e00", "pp": "#009e73"}


def memory(plans: Mapping[str, Mapping[str, float]], limit: float) -> Picture:
    """Bytes of the fullest rank by kind, a bar for each plan, and what a GPU has."""
    return Picture(lambda: stacked(plans, 1e9, "GB on the fullest rank", limit))


def seconds(plans: Mapping[str, Mapping[str, float]]) -> Picture:
    """Seconds of a step by what they go to, a bar for each plan."""
    return Picture(lambda: stacked(plans, 1.0, "seconds per step"))


def beside_planner(
    lesson: Callable[[Model, Plan, Machine], Mapping[str, float]], model: Model, plans: Sequence[Plan], machine: Machine
) -> Picture:
    """Seconds of a step by what they go to, for each plan by the lesson's formulas and by the planner's, and how far
    apart they are. Where the planner is sealed, the lesson's alone.
    """
    bars: dict[str, Mapping[str, float]] = {}
    for plan in plans:
        mine, name = lesson(model, plan, machine), f"{axes_of(plan)}, {plan.micro_batch} at a time"
        try:
            from utils import costs
        except ImportError:
            bars[name] = mine
            continue
        theirs = costs.step_time(model, plan, machine)
        ratio = sum(mine.values()) / sum(theirs.values())
        bars[f"{name}: yours, {ratio:.2f} of"] = mine
        bars[f"{name}: the planner's"] = {
            "computing": theirs["products"] + theirs["recompute"],
            **{kind: theirs[kind] for kind in ("tp", "ep", "pp", "cp", "bubble", "data")},
            "not in yours": theirs["traffic"] + theirs["launch"] + theirs["optimizer"],
        }
    return Picture(lambda: stacked(bars, 1.0, "seconds per step"))


def stacked(bars: Mapping[str, Mapping[str, float]], unit: float, label: str, limit: float | None = None) -> "Figure":
    """Horizontal bars in parts."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.0 + 0.42 * len(bars)), layout="constrained")
    axes = figure.subplots()
    kinds = list(dict.fromkeys(kind for parts in bars.values() for kind in parts))
    for number, kind in enumerate(kinds):
        left = [sum(parts.get(other, 0.0) for other in kinds[:number]) / unit for parts in bars.values()]
        width = [parts.get(kind, 0.0) / unit for parts in bars.values()]
        axes.barh(range(len(bars)), width, 0.7, left, color=COLOURS[number % len(COLOURS)], label=kind)
    for place, parts in enumerate(bars.values()):
        total = sum(parts.values()) / unit
        axes.text(total, place, f" {total:.3g}", va="center", fontsize=8)
    if limit is not None:
        axes.axvline(limit / unit, color="black", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.set(xlabel=label)
    axes.margins(x=0.08)
    tidy(axes)
    axes.legend(frameon=False, fontsize=8, ncols=len(kinds), loc="lower right", bbox_to_anchor=(1, 1))
    return figure


def axes(plans: Mapping[float, Plan | None]) -> Picture:
    """Lengths of the axes of the best plan over the model's parameters, in billions."""

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 2.8), layout="constrained")
        table = figure.subplots()
        names = [axis for axis in AXES if any(plan and getattr(plan, axis) > 1 for plan in plans.values())]
        for column, plan in enumerate(plans.values()):
            for row, axis in enumerate(names):
                if plan and (size := getattr(plan, axis)) > 1:
                    table.barh(row, 0.9, 0.8, column - 0.45, color=AXES[axis], alpha=0.6)
                    table.text(column, row, str(size), ha="center", va="center", fontsize=10)
            if not plan:
                table.text(column, (len(names) - 1) / 2, "does not fit", rotation=90, ha="center", va="center")
        table.set_xticks(range(len(plans)), [f"{billions:.3g}" for billions in plans])
        table.set_yticks(range(len(names)), names)
        table.set(xlim=(-0.5, len(plans) - 0.5), ylim=(len(names) - 0.5, -0.5))
        table.set(title="Axes of the best plan", xlabel="billions of parameters")
        table.tick_params(length=0)
        table.spines["left"].set_visible(False)
        return figure

    return Picture(draw)


def scaling(
    runs: Mapping[str, Mapping[int, Mapping[str, float]]],
    efficiency: Callable[[dict[int, float], str], dict[int, float]],
) -> Picture:
    """Seconds of a step by what they go to, over the number of GPUs, and the efficiency, for each kind of scaling.

    A run's name begins with "strong" or "weak".
    """
    totals = {name: {gpus: sum(parts.values()) for gpus, parts in steps.items()} for name, steps in runs.items()}
    found = {name: efficiency(seconds, name.split()[0]) for name, seconds in totals.items()}

    def draw() -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11, 3.8), layout="constrained")
        for panel, (name, steps) in zip(figure.subplots(1, len(runs), squeeze=False)[0], runs.items(), strict=True):
            below = [0.0] * len(steps)
            for number, kind in enumerate(next(iter(steps.values()))):
                height = [parts[kind] for parts in steps.values()]
                panel.bar(range(len(steps)), height, 0.7, below, color=COLOURS[number % len(COLOURS)], label=kind)
                below = [a + b for a, b in zip(below, height, strict=True)]
            for place, (top, gpus) in enumerate(zip(below, steps, strict=True)):
                panel.text(place, top, f"{100 * found[name][gpus]:.0f}%", ha="center", va="bottom", fontsize=8)
            panel.set_xticks(range(len(steps)), list(steps))
            panel.margins(y=0.12)  # room for the labels above, below the title
            panel.set(title=f"{name}; above: efficiency", xlabel="GPUs", ylabel="seconds per step")
            panel.title.set_fontsize(10)
            tidy(panel)
        panel.legend(frameon=False, fontsize=8)
        return figure

    return Picture(draw)


class Later:
    """Something slow, for a cell's last line: it runs where the page is shown, not on ranks that run the cells.

    Args:
        show: may print, and returns something to show, or None.
    """

    def __init__(self, show: Callable[[], Picture | None]) -> None:
        self.show = show

    def _ipython_display_(self) -> None:
        from IPython.display import display

        try:
            picture = self.show()
        except NotImplementedError as error:  # IPython would not report it
            print(f"not done yet: {error}")
            return
        if picture is not None:
            display(picture)


# The planner


SHOWN = 8  # plans of the table


class Planner:
    """The course's planner, for a notebook: with sliders where widgets run, and a table elsewhere."""

    def __init__(self, model: str = "7b", gpus: int = 64, machine: str = "jureca", batch: int = 256) -> None:
        self.model, self.gpus, self.machine, self.batch = model, gpus, machine, batch

    def _ipython_display_(self) -> None:
        from IPython.display import Markdown, display

        try:
            from utils import costs  # noqa: F401  in a release it is sealed until this lesson's TODOs are right
        except ImportError:
            display(Markdown("*The planner opens when the TODOs of this notebook are right: it has their answers.*"))
            return
        try:
            import ipywidgets
        except ImportError:
            show(self.model, self.gpus, self.machine, self.batch)
            return
        powers = ipywidgets.SelectionSlider
        controls = {
            "model": ipywidgets.Dropdown(
                options=catalogue.names(catalogue.MODELS), value=self.model, description="model"
            ),
            "gpus": powers(options=[2**n for n in range(10)], value=self.gpus, description="GPUs"),
            "machine": ipywidgets.Dropdown(
                options=catalogue.names(catalogue.MACHINES), value=self.machine, description="machine"
            ),
            "batch": powers(options=[2**n for n in range(3, 12)], value=self.batch, description="batch"),
        }
        for control in controls.values():
            control.continuous_update = False
        shown = ipywidgets.interactive_output(show, controls)
        both = ipywidgets.VBox([ipywidgets.HBox(list(controls.values())), shown])
        good = [choice for choice in self.plans() if not choice.rejected]
        static = table(catalogue.model(self.model), catalogue.machine(self.machine), good[:SHOWN])
        display(both._repr_mimebundle_() | {"text/markdown": static}, raw=True)  # the page shows what it can

    def plans(self) -> list[Any]:
        from utils import costs

        return costs.plans(catalogue.model(self.model), self.gpus, catalogue.machine(self.machine), self.batch)


def planner() -> Planner:
    """The cell's last line."""
    return Planner()


def show(model: str, gpus: int, machine: str, batch: int) -> None:
    """A table of the fastest plans, why others cannot be, and pictures of memory and time."""
    from IPython.display import Image, Markdown, display

    from utils import costs

    chosen = costs.plans(catalogue.model(model), gpus, catalogue.machine(machine), batch)
    good = [choice for choice in chosen if not choice.rejected]
    display(Markdown(table(catalogue.model(model), catalogue.machine(machine), good[:SHOWN])))
    rejected = len(chosen) - len(good)
    reasons = [choice.rejected.partition(":")[0] for choice in chosen if choice.rejected]
    counted = ", ".join(f"{reason} {reasons.count(reason):,}" for reason in dict.fromkeys(reasons))
    display(Markdown(f"{len(good):,} plans can be, and {rejected:,} cannot ({counted})."))
    if good:
        names = [f"{number}: {axes_of(choice.plan)}" for number, choice in enumerate(good[:SHOWN], start=1)]
        memories = dict(zip(names, [choice.memory for choice in good], strict=False))
        times = dict(zip(names, [choice.seconds for choice in good], strict=False))
        for picture in (memory(memories, catalogue.machine(machine).memory), seconds(times)):
            display(Image(picture._repr_png_()))


def table(model: Model, machine: Machine, good: Sequence[Any]) -> str:
    """The plans as Markdown: axes, micro-batch, recomputing, memory, seconds and their error, share of the peak."""
    from utils import costs

    lines = [
        "| | axes | at a time | recomputed | GB | s a step | ± | of the peak |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for number, choice in enumerate(good, start=1):
        plan, share = choice.plan, costs.share_of_peak(model, choice.plan, machine)
        spread = costs.band(model, plan, machine).spread
        held, took = sum(choice.memory.values()) / 1e9, sum(choice.seconds.values())
        told = (
            number,
            axes_of(plan),
            plan.micro_batch,
            plan.recompute,
            f"{held:.1f}",
            f"{took:.3g}",
            f"{spread:.0%}",
            f"{100 * share:.0f}%",
        )
        lines.append("| " + " | ".join(map(str, told)) + " |")
    return "\n".join(lines) if good else "*No plan can be.*"


def axes_of(plan: Plan) -> str:
    """The axes that are longer than 1."""
    return " × ".join(f"{axis} {size}" for axis in AXES if (size := getattr(plan, axis)) > 1) or "one GPU"
