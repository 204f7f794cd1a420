"""The output of `plan`: tables, files, and the expected error."""

import csv
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.markup import escape
from rich.table import Table

from grader.engine.commands.screen import console, say
from utils import costs
from utils.costs import published
from utils.plots.plan import GIB, axes_in_words, spoken
from utils.atomic_write import write_whole, written_whole

if TYPE_CHECKING:
    from utils.costs import Choice
    from utils.plan import Machine, Model, Plan

STYLE = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False}
AXES = ("dp", "shard", "tp", "pp", "cp", "ep")
SETTINGS = (*AXES, "micro_batch", "zero", "schedule", "chunks", "context", "sequence_parallel", "recompute")
MOST_ROWS = 1_000_000  # of a file


@dataclass(frozen=True)
class Training:
    """A training run to plan."""

    model: "Model"
    machine: "Machine"
    gpus: int
    batch: int
    like: "Plan"
    tokens: float  # in the whole training run; 0: not given
    title: str


def introduce(training: Training) -> None:
    """Print the training run to plan, and the available memory."""
    model, machine, like = training.model, training.machine, training.like
    nodes = -(-training.gpus // machine.node)
    how = [like.precision, *(word for word, on in (("compiled", like.compiled), ("fp8", like.fp8)) if on)]
    active = f" ({costs.active_parameters(model) / 1e9:.2f} for each token)" if model.experts else ""
    say(
        f"{escape(training.title)}: {costs.parameters(model) / 1e9:.2f} billion parameters{active},"
        f" {model.sequence:,} tokens per sequence; {nodes:,} node{'s' if nodes > 1 else ''} of {machine.node};"
        f" {', '.join(how)}"
    )
    usable, shares = costs.USABLE * machine.memory, (machine.device_share, machine.memory_share, machine.link_share)
    reached = (
        f"Products reach {shares[0]:.0%} of {machine.peak / 1e12:,.0f} TFLOP/s, memory {shares[1]:.0%} and links"
        f" {shares[2]:.0%} of their bandwidth."
    )
    if shares == (1, 1, 1):
        reached = f"Measured: {machine.peak / 1e9:,.0f} GFLOP/s, {machine.memory_bandwidth / 1e9:,.1f} GB/s of memory."
    say(
        f"[dim]A device has {machine.memory / GIB:.1f} GiB, and {usable / GIB:.1f} of them are usable: a tenth is left"
        f" to the driver, to NCCL and to gaps between tensors. {reached}[/]"
    )


def tell(training: Training, found: "Sequence[Choice]", shown: "Sequence[Choice]", rejected: bool) -> None:
    """Print the possible plans, and why the others are rejected."""
    if shown:
        show(training, shown)
        tell_of_roomy(training, found, shown)
        if training.tokens:
            tell_of_training(training, shown[0])
        tell_of_errors(training, shown)
    misses = [choice for choice in found if choice.rejected]
    say(told_of_rejected(misses, len(found)))
    if rejected:
        table = Table("plan", "why not", **STYLE)
        for choice in misses:
            table.add_row(spoken(choice.plan), escape(choice.rejected))
        console.print(table, soft_wrap=False)


def show(training: Training, choices: "Sequence[Choice]") -> None:
    """Print the fastest plan for each way to cut the model."""
    table = Table(**STYLE)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("axes", min_width=11)
    table.add_column("settings", min_width=11)
    for name in ("GiB", "s a step", "±", "tokens/s", "of peak"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("beside products", min_width=12)
    equal = ties(training, choices)
    for number, choice in enumerate(choices, start=1):
        table.add_row(
            "1=" if 1 < equal >= number else str(number),
            axes_in_words(choice.plan),
            settings_in_words(choice.plan),
            f"{choice.held / GIB:.1f}",
            f"{choice.step:.3g}",
            f"{published.band(training.model, choice.plan, training.machine).spread:.0%}",
            f"{training.batch * training.model.sequence / choice.step:,.0f}",
            f"{costs.share_of_peak(training.model, choice.plan, training.machine):.0%}",
            beside_products(choice.seconds),
        )
    console.print(table, soft_wrap=False)


def ties(training: Training, choices: "Sequence[Choice]") -> int:
    """How many of these plans, the fastest first, may be as fast as the first one."""
    spreads = [published.band(training.model, choice.plan, training.machine).spread for choice in choices]
    first = choices[0]
    equal = [published.tied(first.step, spreads[0], choice.step, spread) for choice, spread in zip(choices, spreads)]
    return equal.index(False) if False in equal else len(equal)


def settings_in_words(plan: "Plan") -> str:
    """The micro-batch, ZeRO's stage, the pipeline's schedule, the kind of context parallel, and recomputation."""
    words = [f"{plan.micro_batch} at a time", *([f"ZeRO-{plan.zero}"] if plan.sharers > 1 else [])]
    if plan.pp > 1:
        words.append(f"{plan.schedule} × {plan.chunks}" if plan.chunks > 1 else plan.schedule)
    if plan.cp > 1:
        words.append(plan.context)
    if plan.tp > 1 and plan.sequence_parallel == "regather":
        words.append("reshard")
    if plan.recompute != "none":
        words.append(f"recompute {plan.recompute}")
    return ", ".join(words)


def beside_products(seconds: dict[str, float]) -> str:
    """The other parts that take 5 % of a step or more; at most two, the longest first."""
    step = sum(seconds.values())
    others = [kind for kind in seconds if kind != "products" and seconds[kind] >= step / 20]
    longest = sorted(others, key=seconds.__getitem__, reverse=True)[:2]
    return ", ".join(f"{kind} {seconds[kind] / step:.0%}" for kind in longest)


def tell_of_roomy(training: Training, found: "Sequence[Choice]", shown: "Sequence[Choice]") -> None:
    """The fastest plan that leaves a tenth of the limit free, if it is not the fastest of all."""
    if costs.roomy(shown[0], training.machine):
        return
    roomy = next((choice for choice in found if not choice.rejected and costs.roomy(choice, training.machine)), None)
    if roomy is None:
        say("No plan leaves a tenth of that memory free.")
        return
    say(
        f"With a tenth of that memory free, the fastest is {spoken(roomy.plan)}: {roomy.step:.3g} s per step"
        f" ({roomy.step / shown[0].step - 1:+.0%}), {roomy.held / GIB:.1f} GiB."
    )


def tell_of_training(training: Training, choice: "Choice") -> None:
    """Days, GPU-hours and energy for all tokens, with the fastest plan."""
    steps = training.tokens / (training.batch * training.model.sequence)
    hours = steps * choice.step / 3600
    energy = f", {hours * training.gpus * training.machine.power / 1e9:,.3g} GWh" if training.machine.power else ""
    if training.machine.power and hours * training.gpus * training.machine.power < 1e8:
        energy = f", {hours * training.gpus * training.machine.power / 1e6:,.3g} MWh"
    by = f" by the boards' {training.machine.power:.0f} W" if training.machine.power else ""
    say(
        f"{training.tokens:.3g} tokens with the first plan: {steps:,.0f} steps, {hours / 24:,.3g} days,"
        f" {hours * training.gpus:,.0f} GPU-hours{energy}{by}; without restarts, checkpoints and evaluation."
    )


def tell_of_errors(training: Training, choices: "Sequence[Choice]") -> None:
    """How well the planner predicted unseen runs of each kind, and which plans are therefore a tie."""
    first = published.band(training.model, choices[0].plan, training.machine)
    low, high = (choices[0].step * (1 + way * first.spread) for way in (-1, 1))
    say(f"{choices[0].step:.3g} s {first.told()}: {low:.3g} to {high:.3g} s. Four of five such runs were that close.")
    if len(choices) > 1:
        equal = ties(training, choices)
        of_all = (
            f"the first {equal} are a tie: their times ± error overlap" if equal > 1 else "the first is the fastest"
        )
        say(f"Of these plans, {of_all}.")
    others = [published.band(training.model, choice.plan, training.machine) for choice in choices[1:]]
    for family in dict.fromkeys(family for family in others if family != first):
        say(f"[dim]Other plans: {family.told()}.[/]")


def told_of_rejected(choices: "Sequence[Choice]", total: int) -> str:
    """The number of rejected plans for each reason, and the nearest miss."""
    lines = [f"{total - len(choices):,} of {total:,} plans are possible; rejected:"]
    for kind, count in Counter(choice.rejected.partition(":")[0] for choice in choices).most_common():
        first = next(choice for choice in choices if choice.rejected.startswith(kind))
        lines.append(f"  {count:6,} {escape(first.rejected)}  [dim]({spoken(first.plan)})[/]")
    return "\n".join([*lines, "[dim]  --rejected shows each[/]"] if choices else lines[:1])


def one(training: Training, plan: "Plan") -> int:
    """Print the costs of one plan, by kind. Returns the exit code."""
    choice = costs.judge(training.model, plan, training.machine)
    if reason := costs.does_not_divide(training.model, plan) or choice.rejected:
        say(f"{spoken(plan)} is not possible: {escape(reason)}")
    if not choice.memory:
        return 1
    table = Table("memory of the fullest device", "GiB", **STYLE)
    for kind, held in choice.memory.items():
        table.add_row(kind, f"{held / GIB:.2f}")
    table.add_row("together", f"{choice.held / GIB:.2f}")
    table.columns[1].justify = "right"
    console.print(table, soft_wrap=False)
    if choice.seconds:
        table = Table("time of a step", "s", "", **STYLE)
        for kind, seconds in choice.seconds.items():
            table.add_row(kind, f"{seconds:.3f}", f"{seconds / choice.step:.0%}")
        table.add_row("together", f"{choice.step:.3f}", "")
        table.columns[1].justify = table.columns[2].justify = "right"
        console.print(table, soft_wrap=False)
        share = costs.share_of_peak(training.model, plan, training.machine)
        say(f"{training.batch * training.model.sequence / choice.step:,.0f} tokens/s; {share:.0%} of the peak")
        if training.tokens:
            tell_of_training(training, choice)
        tell_of_errors(training, [choice])
    return 1 if choice.rejected else 0


def write(training: Training, found: "Sequence[Choice]", shown: "Sequence[Choice]", file: Path) -> bool:
    """Write a file in the format of its suffix: a picture of the plans shown, or all plans as CSV or JSON. False if
    there is nothing to draw.
    """
    if file.suffix in (".png", ".svg"):
        if not shown:
            return False
        from utils.plots import plan as plots

        spreads = [published.band(training.model, choice.plan, training.machine).spread for choice in shown]
        shown = [choice[:1] + choice[2:] for choice in shown]
        drawn = plots.costs(shown, training.machine, costs.USABLE, training.title, spreads)
        file.parent.mkdir(parents=True, exist_ok=True)
        drawn.save(file)
        return True
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".json":
        plans = [described(training, choice) for choice in found[:MOST_ROWS]]
        write_whole(file, json.dumps({"title": training.title, "plans": plans}, indent=1) + "\n")
    else:
        write_csv(training, found[:MOST_ROWS], file)
    return True


def described(training: Training, choice: "Choice") -> dict[str, Any]:
    """A plan with its costs, or with the reason for its rejection."""
    fields: dict[str, Any] = {name: getattr(choice.plan, name) for name in SETTINGS}
    fields |= {"rejected": choice.rejected, "memory, B": choice.memory, "seconds": choice.seconds}
    if choice.seconds:
        found = published.band(training.model, choice.plan, training.machine)
        fields["tokens/s"] = training.batch * training.model.sequence / choice.step
        fields["error of the time"] = {"±": found.spread, "runs": len(found.ratios), "kind": found.name}
    return fields


def write_csv(training: Training, choices: "Sequence[Choice]", file: Path) -> None:
    bytes_of = list(dict.fromkeys(kind for choice in choices for kind in choice.memory))
    seconds_of = list(dict.fromkeys(kind for choice in choices for kind in choice.seconds))
    with written_whole(file) as part, part.open("w", newline="", encoding="utf-8") as opened:
        rows = csv.writer(opened)
        kinds = (*(f"{kind}, B" for kind in bytes_of), *(f"{kind}, s" for kind in seconds_of))
        rows.writerow([*SETTINGS, "rejected", "tokens/s", "±", *kinds])
        for choice in choices:
            speed = training.batch * training.model.sequence / choice.step if choice.seconds else ""
            error = published.band(training.model, choice.plan, training.machine).spread if choice.seconds else ""
            costs = [*(choice.memory.get(kind, "") for kind in bytes_of)]
            costs += [choice.seconds.get(kind, "") for kind in seconds_of]
            rows.writerow([*(getattr(choice.plan, name) for name in SETTINGS), choice.rejected, speed, error, *costs])
