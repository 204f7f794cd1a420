"""How far off the planner is, run by run: what is predicted, beside what others have published.

    python tests/published.py            # a line for each run, but llm-foundry's; and each family's errors
    python tests/published.py --all      # llm-foundry's, too
    python tests/published.py --fit      # the constants again, from the runs that are marked as fitted

The runs and their settings are in `utils/published`, the comparison in `utils/costs/published.py`.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from utils import catalogue, costs
from utils.costs import published
from utils.costs.published import Run
from utils.plan import LINK_SHARE, MEMORY_SHARE, Reached

GIB = 2**30
CSV = "utils/published/README.md"  # the source of NVIDIA's tables
# What is fitted to the runs of models without experts, in this order; and to mixtures afterwards.
DENSE = ("A100", "H100 at 500 W", "B200", "GB300", "memory", "link", "fp8", "attention", "hidden", "ring")
MIXTURES = ("experts", "launch")
SHARE_OF = {"A100": "selene", "H100": "h100-500w", "B200": "b200", "B300": "gb300"}  # by chip, the machine fitted
ROBUST = 0.1  # an error beyond it counts linearly: releases and misprints differ by more than any formula


def fitted() -> dict[str, float]:
    """The constants as they are."""
    chips = {chip: catalogue.machine(name).device_share for chip, name in SHARE_OF.items()}
    own = zip(DENSE[:4], chips.values(), strict=True)
    return dict(own) | {"memory": MEMORY_SHARE, "link": LINK_SHARE} | Reached()._asdict()


def with_constants(run: Run, found: dict[str, float]) -> Run:
    """The run on its machine, if these were the constants. A chip's clock, and what its products reach, is taken to
    grow with the cube root of its power.
    """
    machine = run.machine
    if machine.chip in SHARE_OF:
        base, share = catalogue.machine(SHARE_OF[machine.chip]), found[DENSE[list(SHARE_OF).index(machine.chip)]]
        share *= machine.device_share / base.device_share
    else:
        share = machine.device_share
    reached = Reached(**{name: found[name] for name in Reached._fields})
    return replace(
        run,
        machine=replace(
            machine, device_share=share, memory_share=found["memory"], link_share=found["link"], reached=reached
        ),
    )


def fit(names: tuple[str, ...], mixtures: bool, start: dict[str, float]) -> dict[str, float]:
    """The constants with the least error over the fitted runs: Gauss and Newton's steps, damped (Levenberg 1944), on
    errors beyond ROBUST with less weight.
    """
    runs = [run for run in published.runs() if run.fitted and bool(run.model.experts) == mixtures]
    found, damping = dict(start), 1e-3

    def errors(values: dict[str, float]) -> torch.Tensor:
        return torch.tensor([published.ratio(with_constants(run, values)) - 1 for run in runs], dtype=torch.float64)

    def cost(error: torch.Tensor) -> float:
        return float(((1 + (error / ROBUST) ** 2).sqrt() - 1).sum())

    now = errors(found)
    for _ in range(60):
        columns = [(errors(found | {name: 1.001 * found[name]}) - now) / 0.001 for name in names]
        jacobian, weight = torch.stack(columns, 1), (1 + (now / ROBUST) ** 2) ** -0.5
        normal = jacobian.T @ (weight[:, None] * jacobian)
        step = torch.linalg.solve(normal + damping * torch.eye(len(names)), -jacobian.T @ (weight * now))
        tried = found | {name: found[name] * (1 + float(part)) for name, part in zip(names, step, strict=True)}
        after = errors(tried)
        if cost(after) < cost(now):
            done = step.abs().max() < 1e-4
            found, now, damping = tried, after, damping / 3
            if done:
                break
        elif damping > 1e6:
            break
        else:
            damping *= 4
    return found


def fit_all() -> dict[str, float]:
    return fit(MIXTURES, True, fit(DENSE, False, fitted()))


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
        for name, share in fit_all().items():
            console.print(f"{name}: {share:.4g}")
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
                str(rank(run) or "-") if run.source not in ("llm-foundry", CSV) else "",
            )
        console.print(table)


if __name__ == "__main__":
    main()
