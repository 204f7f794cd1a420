"""How far off the planner is: published step times against its predictions.

The runs are in `utils/published`: `runs.toml`, and llm-foundry's tables for PyTorch's FSDP. Four numbers are fitted, to
minimize the sum of squared errors over the runs marked `fitted`: the fraction of the peak that products reach on A100s
(0.762) and on H100s at 500 W (0.556), and for all machines the fractions of the memory's and of the links' bandwidth
(0.775, 0.690). All other runs test them.
"""

import csv
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from utils import catalogue
from utils.costs.counts import flops
from utils.costs.seconds import step_time
from utils.plan import Machine, Model, Plan

TAUGHT_IN = "10_strategy"

HERE = Path(catalogue.HERE) / "published"
NEAR, FAR, SHARE = 0.15, 0.35, 0.8  # a family is had if this share of its runs is as near, and none as far off


@dataclass(frozen=True)
class Run:
    """A published run."""

    family: str  # by the kind of device and of parallelism
    name: str
    source: str
    model: Model
    plan: Plan
    machine: Machine
    seconds: float  # of a step
    fitted: bool = False
    unverified: bool = False
    held: float = 0.0  # bytes of a device; 0: not published


@cache
def runs() -> tuple[Run, ...]:
    """All of them, in the order of their files."""
    read = tomllib.loads((HERE / "runs.toml").read_text("utf-8"))
    found = [_run(entry, read["settings"]) for entry in read["run"]]
    return (*found, *_llm_foundry("a100"), *_llm_foundry("h100"))


def _run(entry: dict[str, Any], settings: dict[str, dict[str, Any]]) -> Run:
    model = entry["model"]
    model = catalogue.model(model) if isinstance(model, str) else Model(**model)
    model = replace(model, sequence=entry.get("sequence", model.sequence))
    plan = Plan(**_common(entry.get("like"), settings) | entry["plan"])
    tokens = plan.batch * model.sequence / plan.world
    seconds = entry.get("seconds")
    if "tokens" in entry:
        seconds = tokens / entry["tokens"]
    elif "TFLOPs" in entry:
        seconds = flops(model, tokens) / entry["TFLOPs"] / 1e12
    elif "counted_TFLOPs" in entry:
        seconds = counted_flops(model, tokens) / entry["counted_TFLOPs"] / 1e12
    told = {key: entry.get(key, False) for key in ("fitted", "unverified")}
    machine, held = catalogue.machine(entry["machine"]), entry.get("held_GiB", 0.0) * 2**30
    return Run(entry["family"], entry["name"], entry["source"], model, plan, machine, seconds, held=held, **told)


def _common(like: str | None, settings: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if like is None:
        return {}
    own = dict(settings[like])
    return _common(own.pop("like", None), settings) | own


def counted_flops(model: Model, tokens: float) -> float:
    """The FLOPs that arXiv:2104.04473 counts (its equation 3): with full recomputation."""
    h, layers, s, words = model.hidden, model.layers, model.sequence, model.vocabulary
    return 96 * tokens * layers * h**2 * (1 + s / (6 * h) + words / (16 * layers * h))


# github.com/mosaicml/llm-foundry, scripts/train/benchmarking/README.md: tokens a second of each GPU, by FSDP alone
# (FULL_SHARD), with 50,368 words and a tied head; nodes of eight with 1,600 Gb/s, of H100s taken for 3,200. The H100s
# ran in 2023, with attention in Triton.
SIZES = {  # hidden, layers, heads
    "70b": (8192, 80, 64),
    "30b": (7168, 48, 56),
    "13b": (5120, 40, 40),
    "7b": (4096, 32, 32),
    "3b": (2560, 32, 20),
    "1b": (2048, 24, 16),
    "760m": (1536, 24, 12),
    "350m": (1024, 24, 16),
    "125m": (768, 12, 12),
}


def _llm_foundry(chip: str) -> list[Run]:
    found = []
    with (HERE / f"llm_foundry_{chip}.csv").open() as file:
        for line in csv.DictReader(file):
            length, gpus, micro, number = (int(line[k]) for k in ("sequence", "gpus", "micro_batch", "micro_batches"))
            model = Model(*SIZES[line["model"]], vocabulary=50368, sequence=length, tied=True)
            fp8 = line.get("precision") == "fp8"
            plan = Plan(gpus * micro * number, micro, shard=gpus, recompute=line["recompute"], whole_logits=True)
            machine = catalogue.machine(f"a100-{line['memory']}" if chip == "a100" else "h100")
            name = f"{line['model']}, {length} tokens, {gpus} GPUs of {line['memory']} GB{', fp8' if fp8 else ''}"
            family = "A100 FSDP" if chip == "a100" else "H100 FSDP of 2023"
            seconds = micro * number * length / int(line["speed"])
            found.append(Run(family, name, "llm-foundry", model, replace(plan, fp8=fp8), machine, seconds))
    return found


def ratio(run: Run) -> float:
    """Predicted by published."""
    return sum(step_time(run.model, run.plan, run.machine).values()) / run.seconds


@dataclass(frozen=True)
class Family:
    """How far off the planner is for one family: of the runs that were not fitted, predicted by published."""

    name: str
    ratios: tuple[float, ...]  # ascending

    @property
    def near(self) -> float:
        """The fraction of runs within NEAR."""
        return sum(abs(found - 1) <= NEAR for found in self.ratios) / len(self.ratios)

    @property
    def had(self) -> bool:
        return self.near >= SHARE and max(abs(found - 1) for found in self.ratios) <= FAR

    @property
    def middle(self) -> tuple[float, float]:
        """The range of ratios of the middle four fifths of the runs."""
        last = len(self.ratios) - 1
        return self.ratios[round(0.1 * last)], self.ratios[round(0.9 * last)]

    def summary(self) -> str:
        low, high = self.ratios[0], self.ratios[-1]
        beyond = "" if self.had else "; more than this planner should be off"
        return (
            f"{self.name}: {low:.2f} to {high:.2f} of the published time in {len(self.ratios)} runs it was not fitted"
            f" to, {self.near:.0%} within {NEAR:.0%}{beyond}"
        )


@cache
def families() -> tuple[Family, ...]:
    """In the order of the runs."""
    found: dict[str, list[float]] = {}
    for run in runs():
        if not run.fitted:
            found.setdefault(run.family, []).append(ratio(run))
    return tuple(Family(name, tuple(sorted(ratios))) for name, ratios in found.items())


def families_of(machine: Machine) -> list[Family]:
    """The runs on this kind of device; for a device without published runs, "others"."""
    own = [family for family in families() if machine.chip and family.name.startswith(f"{machine.chip} ")]
    return own or [family for family in families() if family.name == "others"]


def span(seconds: float, families: list[Family]) -> tuple[float, float]:
    """The range of a predicted time, if it is as far off as the middle four fifths of these families' runs; families
    without runs are left out.
    """
    middles = [family.middle for family in families if family.had] or [family.middle for family in families]
    return seconds / max(high for _, high in middles), seconds / min(low for low, _ in middles)
