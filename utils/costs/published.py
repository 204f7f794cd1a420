"""How far off the planner is: published step times against its predictions.

The runs are in `utils/published`, whose README.md names those that constants were fitted to; all others test them. Ten
constants are fitted to runs of models without experts, and two to mixtures, to minimize errors of the time: what
products reach on an A100, an H100, a B200 and a GB300, the fractions of the memory's and of the links' bandwidth, and
`utils.plan.Reached`.
"""

import csv
import math
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
NEAR = 0.15  # an error of the predicted time
SHARE = 0.8  # of the runs, that a plan's error is taken from
ENOUGH = 5  # runs, to say something about a kind


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
    return (*found, *_megatron_core(read["settings"]["megatron-core"]), *_llm_foundry("a100"), *_llm_foundry("h100"))


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


def _megatron_core(common: dict[str, Any]) -> list[Run]:
    """NVIDIA's tables. DeepSeek-V3's extra layer for multi-token prediction is one more block, without its head."""
    found = []
    with (HERE / "megatron_core.csv").open() as file:
        for line in csv.DictReader(file):
            numbers = ("gpus", "batch", "micro_batch", "sequence", "fsdp", "tp", "pp", "cp", "chunks", "ep", "speed")
            gpus, batch, micro, length, fsdp, tp, pp, cp, chunks, ep, speed = (int(line[key]) for key in numbers)
            model, machine = catalogue.model(line["model"]), catalogue.machine(line["machine"])
            extra = int(line["model"] == "deepseek-v3" and line["experts"] != "without MTP")
            plan = Plan(batch, micro, shard=gpus // (tp * pp * cp), tp=tp, pp=pp, cp=cp, ep=ep, chunks=chunks, **common)
            precision = {"bf16": "bfloat16-gradients", "fp8": "float8", "mxfp8": "mxfp8"}[line["precision"]]
            fp8 = line["precision"] != "bf16"
            offload = int(line["offload"])
            plan = replace(plan, precision=precision, fp8=fp8, zero=3 if fsdp else 1, offload=offload)
            if pp > 1 and chunks > 1:
                plan = replace(plan, schedule="interleaved")
            if model.experts:
                plan = replace(plan, fold=True, once_per_node=True, capacity=float(line["experts"] == "capacity"))
                plan = replace(plan, overlap_ep=line["overlap"] == "1", fused_experts=line["fused"] == "1")
            axes = "".join(
                f", {axis} {getattr(plan, axis)}" for axis in ("tp", "pp", "cp", "ep") if getattr(plan, axis) > 1
            )
            name = f"{line['model']} on {gpus} {line['machine'].upper()}, {line['precision']}{axes}, {line['release']}"
            kind = "mixtures" if model.experts else "Megatron-Core" if machine.chip == "H100" else "dense"
            seconds = batch * length / gpus / speed
            model = replace(model, sequence=length, layers=model.layers + extra)
            family, source = f"{machine.chip} {kind}", "utils/published/README.md"
            found.append(Run(family, name, source, model, plan, machine, seconds, bool(int(line["fitted"]))))
    return found


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
            plan = Plan(
                gpus * micro * number,
                micro,
                shard=gpus,
                recompute=line["recompute"],
                fused_loss=True,
                attention="triton",
            )
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
    """How far off the planner is for runs that were not fitted: predicted by published time."""

    name: str
    ratios: tuple[float, ...]  # ascending

    @property
    def near(self) -> float:
        """The fraction of runs within NEAR."""
        return sum(abs(found - 1) <= NEAR for found in self.ratios) / len(self.ratios)

    @property
    def spread(self) -> float:
        """The error that SHARE of the runs do not exceed."""
        errors = sorted(abs(found - 1) for found in self.ratios)
        return errors[math.ceil(SHARE * len(errors)) - 1]

    def summary(self) -> str:
        low, high = self.ratios[0], self.ratios[-1]
        return (
            f"{self.name}: {low:.2f} to {high:.2f} of the published time in {len(self.ratios)} runs it was not fitted"
            f" to, {self.near:.0%} within {NEAR:.0%}"
        )

    def told(self) -> str:
        """The spread as a plan's error."""
        return f"± {self.spread:.0%}, seen on {len(self.ratios)} runs of this kind ({self.name})"


@cache
def families() -> tuple[Family, ...]:
    """In the order of the runs."""
    found: dict[str, list[float]] = {}
    for run in runs():
        if not run.fitted:
            found.setdefault(run.family, []).append(ratio(run))
    return tuple(Family(name, tuple(sorted(ratios))) for name, ratios in found.items())


LONG = 32768  # tokens


def kind(model: Model, plan: Plan) -> str:
    """What decides how well a plan can be predicted."""
    if model.experts:
        return "mixtures"
    if model.sequence >= LONG:
        return "long sequences"
    if plan.fp8:
        return "in 8 bits"
    return "tensor or pipeline parallel" if plan.tp * plan.pp > 1 else "data parallel"


def band(model: Model, plan: Plan, machine: Machine) -> Family:
    """The unseen runs that say how far off a plan's time may be: of its kind, on this chip; with fewer than ENOUGH, of
    its kind on all chips.
    """
    return _band(kind(model, plan), machine.chip)


@cache
def _band(name: str, chip: str) -> Family:
    unseen = [run for run in runs() if not run.fitted and kind(run.model, run.plan) == name]
    own = [run for run in unseen if run.machine.chip == chip]
    where = chip if len(own) >= ENOUGH else "all chips"
    ratios = sorted(map(ratio, own if len(own) >= ENOUGH else unseen))
    return Family(f"{where}, {name}", tuple(ratios))


def tied(first: float, first_spread: float, other: float, other_spread: float) -> bool:
    """Whether a slower plan may be as fast as the first: whether their bands overlap."""
    return other * (1 - other_spread) <= first * (1 + first_spread)
