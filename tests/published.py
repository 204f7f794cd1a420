"""How far off the planner is, run by run: what is predicted, beside what others have published.

    python tests/published.py            # a line for each run, but llm-foundry's; and each family's errors
    python tests/published.py --all      # llm-foundry's, too
    python tests/published.py --fit      # the four shares again, from the runs that are marked as fitted

The runs and their settings are in `utils/published`, the comparison in `utils/costs/published.py`.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from utils import costs
from utils.costs import published
from utils.costs.published import Run

GIB = 2**30
SHARES = ("A100", "memory", "link", "H100 at 500 W")


def with_shares(run: Run, shares: list[float]) -> Run:
    """The run on a machine with these shares, by the order of SHARES."""
    a100, memory, link, h100 = shares
    device = a100 if run.machine.chip == "A100" else h100
    return replace(run, machine=replace(run.machine, device_share=device, memory_share=memory, link_share=link))


def squares(shares: list[float]) -> float:
    """The sum of the squared errors of the fitted runs."""
    return sum((published.ratio(with_shares(run, shares)) - 1) ** 2 for run in published.runs() if run.fitted)


def fit(error: Callable[[list[float]], float] = squares) -> list[float]:
    """The shares with the least error: from a start, steps along each of them, that are halved where none helps."""
    found, step = [0.7, 0.8, 0.7, 0.6], 0.08
    least = error(found)
    while step > 1e-4:
        tries = [found[:k] + [min(1.0, found[k] + way)] + found[k + 1 :] for k in range(4) for way in (step, -step)]
        best = min(tries, key=error)
        if error(best) < least:
            found, least = best, error(best)
        else:
            step /= 2
    return found


def rank(run: Run) -> int | None:
    """The place of the published axes among the distinct plans, from 1; None if they are rejected. Free are the axes
    that the software had; all else is as in the run.
    """
    data = [axis for axis in ("dp", "shard") if getattr(run.plan, axis) > 1] or ["dp"]
    choose = (*data, "tp", "pp", "cp")
    found = costs.plans(run.model, run.plan.world, run.machine, run.plan.batch, run.plan, choose)
    cuts = [
        (choice.plan.tp, choice.plan.pp, choice.plan.cp)
        for choice in costs.distinct([choice for choice in found if not choice.rejected])
    ]
    own = (run.plan.tp, run.plan.pp, run.plan.cp)
    return cuts.index(own) + 1 if own in cuts else None


def main() -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)
    if "--fit" in sys.argv:
        for name, share in zip(SHARES, fit(), strict=True):
            console.print(f"{name}: {share:.3f}")
        return
    for family in published.families():
        runs = [run for run in published.runs() if run.family == family.name]
        if "--all" not in sys.argv:
            runs = [run for run in runs if run.source != "llm-foundry"]
        table = Table(
            "", "published, s", "predicted, s", "ratio", "GiB held", "predicted", "place", title=family.summary()
        )
        for run in runs:
            ratio, held = published.ratio(run), sum(costs.memory(run.model, run.plan).values())
            table.add_row(
                run.name + (" (fitted)" if run.fitted else "") + (" (unverified)" if run.unverified else ""),
                f"{run.seconds:.2f}",
                f"{ratio * run.seconds:.2f}",
                f"{ratio:.2f}",
                f"{run.held / GIB:.1f}" if run.held else "",
                f"{held / GIB:.1f}",
                str(rank(run) or "-") if run.source != "llm-foundry" else "",
            )
        console.print(table)


if __name__ == "__main__":
    main()
