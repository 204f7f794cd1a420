"""The best plan for a model and a machine: all ways to distribute the model, the fastest first.

For each layout (the sizes of the axes) all settings are tried: ZeRO's stage, the pipeline's schedule and chunks, the
kind of context parallel, the micro-batch, recomputation. A setting that is skipped costs more than one that fits.
"""

import itertools
import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import NamedTuple

from utils.costs.counts import most_layers
from utils.costs.memory import memory
from utils.costs.seconds import link_of, step_time
from utils.plan import CONTEXTS, Machine, Model, Plan

TAUGHT_IN = "10_strategy"

USABLE = 0.9  # of a device's memory; the driver, the libraries and the gaps between tensors have the rest
ROOMY = 0.9  # of the usable memory: a plan that takes no more leaves a tenth free
AXES = ("dp", "shard", "tp", "pp", "cp", "ep")
SETTINGS = ("zero", "schedule", "context", "sequence_parallel", "micro_batch", "recompute")
MOST_SHARDS = 5  # sizes of the shards that are tried, of a number of replicas that has more divisors
MOST_CHUNKS = 3  # numbers of chunks that are tried


class Choice(NamedTuple):
    """One of the plans for a job. `rejected` says in a line why it is impossible; "" if it is possible."""

    plan: Plan
    rejected: str
    memory: dict[str, float]
    seconds: dict[str, float]

    @property
    def step(self) -> float:
        return sum(self.seconds.values())

    @property
    def held(self) -> float:
        return sum(self.memory.values())


def plans(
    model: Model,
    gpus: int,
    machine: Machine,
    batch: int,
    like: Plan | None = None,
    choose: Collection[str] = (*AXES, *SETTINGS),
) -> list[Choice]:
    """All ways to train a model with this global batch: first the possible ones, the fastest first, then the rejected.

    `like` has the settings of all plans: precision, and so on; and everything that is not in `choose`.
    """
    like = replace(like or Plan(batch), batch=batch)
    found = []
    for layout, reason in layouts(model, gpus, like, choose, machine):
        if reason := reason or does_not_divide(model, layout):
            found.append(Choice(layout, reason, {}, {}))
        else:
            found += chosen(model, layout, choose, machine)
    return sorted(found, key=rank_of)


def rank_of(choice: Choice) -> tuple[bool, float]:
    return bool(choice.rejected), choice.step or math.inf


def distinct(choices: Collection[Choice]) -> list[Choice]:
    """The first of all that cut the model in the same way: those that differ in more than settings and how data is
    divided. Choices come the fastest first; one that cuts sequences, too, and is no faster for it, is left out.
    """
    found: dict[tuple[int, ...], Choice] = {}
    for choice in choices:
        plan = choice.plan
        whole = ((plan.tp, plan.pp, plan.ep, fewer) for fewer in range(1, plan.cp))
        if not any(cut in found for cut in whole):
            found.setdefault((plan.tp, plan.pp, plan.ep, plan.cp), choice)
    return list(found.values())


def roomy(choice: Choice, machine: Machine) -> bool:
    """Whether a tenth of the usable memory is left."""
    return choice.held <= ROOMY * USABLE * machine.memory


# Layouts


def layouts(
    model: Model, gpus: int, like: Plan, choose: Collection[str], machine: Machine
) -> Iterator[tuple[Plan, str]]:
    """Every way to write `gpus` as a product of the axes' sizes; and why one cannot be, where that is known by then."""
    found = divisors(gpus)

    def sizes(axis: str) -> list[int]:
        return found if axis in choose else [getattr(like, axis)]

    cuts = []
    for axis in ("tp", "pp", "cp"):
        good = []
        for size in sizes(axis):
            lone = replace(like, **(dict.fromkeys(("dp", "shard", "tp", "pp", "cp"), 1) | {axis: size}))
            reason = cannot_be(model, lone, axis, machine) if axis in choose else ""
            if not reason:
                good.append(size)
            elif size <= 4 * max(machine.node, model.heads):  # larger ones cannot be, either
                yield replace(lone, dp=gpus // size), reason
        cuts.append(good)
    for tp, pp, cp in itertools.product(*cuts):
        if gpus % (tp * pp * cp):
            continue
        replicas = gpus // (tp * pp * cp)
        for shard in some(divisors(replicas), MOST_SHARDS) if "shard" in choose else [like.shard]:
            if replicas % shard == 0 and ("dp" in choose or replicas == shard * like.dp):
                layout = replace(like, tp=tp, pp=pp, cp=cp, shard=shard, dp=replicas // shard)
                eps = [like.ep] if model.experts else [1]
                if model.experts and "ep" in choose:
                    eps = divisors(math.gcd(replicas * cp * layout.folded, model.experts))
                for ep in eps:
                    yield replace(layout, ep=ep), ""


def cannot_be(model: Model, plan: Plan, axis: str, machine: Machine) -> str:
    """Why an axis cannot have this size, whatever the other axes are."""
    size = getattr(plan, axis)
    if axis == "tp" and model.heads % size:
        return f"divisibility: {model.heads} heads by {size} (tp)"
    if axis == "tp" and machine.node % size and size % machine.node:
        return f"divisibility: nodes of {machine.node} by {size} (tp)"
    if axis == "pp" and size > model.layers:
        return f"divisibility: {model.layers} layers by {size} (stages)"
    if axis == "cp" and model.sequence % size:
        return f"divisibility: {model.sequence} tokens by {size} (cp)"
    if axis == "cp" and size > 1 and model.sequence / size < (least := shortest_piece(model, plan, machine)):
        return f"context: pieces of {model.sequence // size} tokens; {math.ceil(least)} or more hide their messages"
    return ""


def shortest_piece(model: Model, plan: Plan, machine: Machine) -> float:
    """Tokens of a piece whose attention takes as long as a message with its keys and values: FLOPs over bandwidth
    (arXiv:2310.01889, section 3), and less where groups of heads use the same keys.
    """
    speed = machine.peak * machine.device_share
    bandwidth = link_of("cp", plan, machine).bandwidth * machine.link_share
    return speed / bandwidth * (model.keys + model.values) / 2 / model.scored


def divisors(number: int) -> list[int]:
    """In ascending order."""
    low = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return low + [number // divisor for divisor in reversed(low) if divisor != number // divisor]


def some(sizes: list[int], most: int) -> list[int]:
    """At most this many of them, evenly spaced, with the first and the last."""
    if len(sizes) <= most:
        return sizes
    return [sizes[round(place * (len(sizes) - 1) / (most - 1))] for place in range(most)]


# Settings


def chosen(model: Model, layout: Plan, choose: Collection[str], machine: Machine) -> Iterator[Choice]:
    """A layout with its settings. What costs time and saves memory is tried where a tenth would not be free without:
    gathering again between tensor-parallel parts, and computing again.
    """
    again = layout.tp > 1 and layout.sequence_parallel == "keep" and "sequence_parallel" in choose
    for way in ways(model, layout, choose, machine):
        found = list(grown(model, way, choose, machine))
        yield from found
        if again and not (found[0].seconds and roomy(found[0], machine)):
            yield from grown(model, replace(way, sequence_parallel="regather"), choose, machine)


def grown(model: Model, way: Plan, choose: Collection[str], machine: Machine) -> Iterator[Choice]:
    """Micro-batch sizes, growing as long as they fit and are faster."""
    fastest = math.inf
    for micro_batch in micro_batches(way) if "micro_batch" in choose else [way.micro_batch]:
        for recompute in recomputes(way) if "recompute" in choose else [way.recompute]:
            choice = judge(model, replace(way, micro_batch=micro_batch, recompute=recompute), machine)
            yield choice
            if not choice.memory or (choice.seconds and roomy(choice, machine)):
                break
        if not choice.seconds or choice.step > fastest:
            break
        fastest = choice.step


def ways(model: Model, layout: Plan, choose: Collection[str], machine: Machine) -> Iterator[Plan]:
    """Stages of ZeRO and schedules with their chunks; and the fastest way of context parallel to attend."""
    zeros = ([1, 2, 3] if layout.pp > 1 else [1, 3]) if "zero" in choose and layout.sharers > 1 else [layout.zero]
    schedules = [(layout.schedule, layout.chunks)]
    if layout.pp == 1:
        schedules = [("1f1b", 1)]
    elif "schedule" in choose or layout.schedule == "interleaved":
        several = [size for size in range(2, most_layers(model, layout) + 1) if not uneven(model, layout.pp * size)]
        schedules = [("interleaved", size) for size in some(several, MOST_CHUNKS)]
        if "schedule" in choose:
            schedules.insert(0, ("1f1b", 1))
        elif not several:
            schedules = [(layout.schedule, layout.chunks)]
    context = layout.context
    if "context" in choose and layout.cp > 1:
        others = [replace(layout, context=name) for name in CONTEXTS]
        others = [other for other in others if not does_not_divide(model, other)]
        context = min(others, key=lambda other: sum(step_time(model, other, machine).values())).context
    for zero, (schedule, chunks) in itertools.product(zeros, schedules):
        yield replace(layout, zero=zero, schedule=schedule, chunks=chunks, context=context)


def uneven(model: Model, stages: int) -> int:
    """Remaining blocks when stages have the same number; the first and the last stage may have one less."""
    return min(model.layers % stages, (model.layers + 1) % stages, (model.layers + 2) % stages)


def micro_batches(layout: Plan) -> list[int]:
    """Powers of two."""
    of_rank = max(1, layout.batch // layout.replicas)
    return [2**power for power in range(of_rank.bit_length())]


def recomputes(layout: Plan) -> list[str]:
    return ["none", "ops", "full"] if layout.fused_attention else ["none", "selective", "full"]


# Verdicts


def judge(model: Model, plan: Plan, machine: Machine) -> Choice:
    """A plan with its costs, and the reason why it is impossible."""
    if reason := does_not_divide(model, plan) or too_few(plan):
        return Choice(plan, reason, {}, {})
    held, limit = memory(model, plan), USABLE * machine.memory
    if sum(held.values()) > limit:
        kinds = ", ".join(f"{kind} {count / 2**30:.1f}" for kind, count in held.items() if count)
        return Choice(plan, f"memory: {sum(held.values()) / 2**30:.1f} GiB of {limit / 2**30:.1f} ({kinds})", held, {})
    seconds = step_time(model, plan, machine)
    axis = max(("tp", "cp", "ep", "pp", "data"), key=seconds.__getitem__)
    reason = ""
    if seconds[axis] > sum(seconds.values()) / 2:
        reason = f"network: {axis} communicates for {seconds[axis]:.2f} s in a step of {sum(seconds.values()):.2f} s"
    return Choice(plan, reason, held, seconds)


def does_not_divide(model: Model, plan: Plan) -> str:
    """Why a layout is impossible: the first number that cannot be divided; "" if all can."""
    ranks = plan.replicas * plan.cp * plan.folded
    cuts = [
        (model.heads, plan.tp, "heads", "tp"),
        (model.sequence, plan.cp * (plan.tp if plan.sequence_parallel != "off" else 1), "tokens", "cp and tp"),
        (plan.batch, plan.replicas, "sequences", "dp · shard"),
        (ranks, plan.ep, "ranks of cp, shard and dp" if plan.folded == 1 else "ranks of a stage", "ep"),
        (model.experts, plan.ep, "experts", "ep"),
    ]
    for number, by, what, whom in cuts:
        if number % by:
            return f"divisibility: {number} {what} by {by} ({whom})"
    if plan.pp > model.layers:
        return f"divisibility: {model.layers} layers by {plan.pp} (stages)"
    if plan.pp > 1 and plan.pp * plan.chunks > model.layers + 2:  # the first and the last may have none
        return f"divisibility: {model.layers} layers by {plan.pp * plan.chunks} (stages and chunks)"
    if plan.cp > 1 and plan.context == "ulysses" and model.heads % (plan.tp * plan.cp):
        return f"divisibility: {model.heads} heads by {plan.tp * plan.cp} (tp and cp)"
    return ""


def too_few(plan: Plan) -> str:
    """Why a layout's micro-batches are impossible; "" if they are possible."""
    m = plan.micro_batches
    if plan.batch % (plan.replicas * plan.micro_batch):
        parts = plan.replicas * plan.micro_batch
        return f"divisibility: {plan.batch} sequences by {parts} (dp · shard micro-batches)"
    if plan.pp > 1 and plan.schedule == "interleaved" and m % plan.pp:
        return f"divisibility: {m} micro-batches by {plan.pp} stages (interleaved)"
    if plan.pp > 1 and m < plan.pp:
        return f"divisibility: {m} micro-batch{'es' if m > 1 else ''} for {plan.pp} stages"
    return ""
