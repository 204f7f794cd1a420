"""What several files with checks of 10_strategy use."""

import math
from dataclasses import asdict, fields

from grader.kit import Wrong, both, count_of, known, named_apart, same_numbers
from utils.plan import Link, Machine, Model, Plan

from .ranks import asked_on_rank

# ---------------------------------------------------------------------------------------------------
# Questions about models, plans and machines


def packed(value):
    """An argument as a job can hold it."""
    if isinstance(value, (Model, Plan, Machine)):
        return {"kind": type(value).__name__, "fields": asdict(value)}
    return {"pairs": [[key, part] for key, part in value.items()]} if isinstance(value, dict) else value


def shown(value):
    """An argument in a verdict: for a plan, what differs from the default."""
    if isinstance(value, Machine):
        return value.name
    if isinstance(value, (Model, Plan)):
        told = [f.name for f in fields(value) if getattr(value, f.name) != f.default]
        return f"{type(value).__name__}({', '.join(f'{name}={getattr(value, name)!r}' for name in told)})"
    return repr(value)


def check_formulas(student, right, hints={}, wrongs={}):
    """`right` has (name, arguments, answer). Of a dictionary the first kind that differs is named.

    By a function's name, `hints` has its own one, and `wrongs` what it is taken for: names and functions of the same
    arguments. A mistake is told if all that the function returns is as if it had been made.
    """
    mistakes = {}
    for name, its_wrongs in wrongs.items():
        asked = [(arguments, answer) for of, arguments, answer in right if of == name]
        its_right = [number for _, answer in asked for number in numbers_of(answer)]
        mistakes[name] = (
            its_right,
            {
                words: [number for arguments, _ in asked for number in numbers_of(wrong(*arguments))]
                for words, wrong in its_wrongs.items()
            },
        )
        named_apart(student, *mistakes[name])
    calls = [[name, [packed(part) for part in arguments]] for name, arguments, _ in right]
    (seen,) = student.call(asked_on_rank, world=1, group=False, calls=calls).evidence
    for (name, arguments, answer), got in zip(right, seen, strict=True):
        told = difference(f"{name}({', '.join(map(shown, arguments))})", answer, got)
        if told:
            taken = ""
            if name in mistakes:
                all_of_it = [numbers_of(one, like) for (of, _, like), one in zip(right, seen) if of == name]
                taken = known([number for one in all_of_it for number in one], *mistakes[name])
            message, expected, got = told
            raise Wrong(message + (taken and f": {taken}"), expected, got, hint=hints.get(name, ""))


def numbers_of(answer, like=None):
    """The numbers of an answer, which may have several; as many as the right answer, `like`, has."""
    if isinstance(like, dict):
        return [answer.get(key) for key in like] if isinstance(answer, dict) else [None] * len(like)
    if isinstance(like, tuple) and not (isinstance(answer, list) and len(answer) == len(like)):
        return [None] * len(like)
    return (
        [*answer.values()] if isinstance(answer, dict) else [*answer] if isinstance(answer, (tuple, list)) else [answer]
    )


def difference(call, answer, got):
    """(message, expected, seen); None if the answer is right. Of a dictionary, for the first kind that differs."""
    if not isinstance(answer, dict):
        return None if same_numbers(got, answer) else (f"{call} is wrong", *both(answer, got))
    keys = {str(key): part for key, part in answer.items()}
    if not isinstance(got, dict) or got.keys() != keys.keys():
        has = ", ".join(got) if isinstance(got, dict) else got
        return f"{call} has the wrong entries", ", ".join(keys), has
    for key, part in keys.items():
        if not same_numbers(got[key], part):
            return f'{call}: "{key}" is wrong', *both(part, got[key])
    return None


def drawn_machine(draw, node=None):
    node = node or draw.choice([2, 4, 8])
    inside = Link(draw.uniform(1e11, 4e11), draw.uniform(1e-6, 9e-6))
    between = Link(draw.uniform(4e9, 5e10), draw.uniform(5e-6, 4e-5))
    name = f"a machine with {count_of(node, 'GPU')} per node"
    return Machine(
        name, draw.uniform(1e14, 9e14), 8e10, 2e12, node, inside, between, draw.uniform(0.3, 0.7), draw.uniform(0.5, 1)
    )


# ---------------------------------------------------------------------------------------------------
# TODO 1: memory


def experts_of(plan):
    """Ranks that replicate, and ranks that shard, a rank's experts."""
    left = max(1, plan.shard * plan.cp // plan.ep)
    return plan.dp * plan.shard * plan.cp // (plan.ep * left), left


def rank_sizes(model, plan, stage):
    square = model.hidden * model.hidden
    attention = 4 * square * model.layers / plan.pp
    tables = model.vocabulary * model.hidden * ([0, plan.pp - 1].count(stage) if plan.pp > 1 else 2)
    mlps = 8 * square * (model.experts or 1) * model.layers / plan.pp / plan.ep
    return tuple(part / plan.tp for part in (attention, tables, mlps))


def kept(model, plan, stage, at_hand=1, alive=None):
    stream = plan.micro_batch * model.sequence * model.hidden / plan.cp / plan.tp
    whole = (16 + 16 * model.active) * stream
    copies = model.layers / plan.pp * (alive or min(plan.pp - stage, plan.micro_batches))
    return copies * whole if plan.recompute == "none" else 2 * copies * stream + at_hand * whole


def by_kind(model, plan, stage):
    attention, tables, mlps = rank_sizes(model, plan, stage)
    blocks = model.layers / plan.pp
    shards = experts_of(plan)[1]
    sharers = plan.shard * plan.cp
    mine = (attention + tables) / sharers + mlps / shards
    moment = (attention / blocks + tables) * (sharers > 1) + mlps / blocks * (shards > 1)
    found = {"weights": 2 * mine, "gradients": 2 * mine, "state": 12 * mine, "gathered": 4 * moment}
    return found | {"activations": kept(model, plan, stage)}


# ---------------------------------------------------------------------------------------------------
# TODO 2: the work of a token, and what each axis sends


INWARD = ("pp", "dp", "shard", "cp", "tp")


def work_of(model):
    """FLOPs of a token: of all, and of attention's scores."""
    block = (4 + 8 * model.active) * model.hidden**2
    scores = 12 * model.layers * model.sequence * model.hidden
    return 6 * (model.layers * block + model.hidden * model.vocabulary) + scores, scores


def traffic(model, plan, width=4, reduced=None):
    """Bytes and messages by axis; `width`: bytes of a gradient of dp, `reduced`: how often shard reduces gradients."""
    attention, tables, mlps = rank_sizes(model, plan, 0)
    dense, (copies, shards), sharers = attention + tables, experts_of(plan), plan.shard * plan.cp
    blocks, m = model.layers // plan.pp, plan.micro_batches
    stream = plan.micro_batch * model.sequence * model.hidden / plan.cp
    full = plan.recompute == "full"
    uses = blocks * m

    def gather(ranks, numbers):
        return numbers * (1 - 1 / ranks)

    reduced = reduced or (m if plan.pp == 1 else 1)
    rings, swaps = (12 if full else 8) * uses, (6 if full else 4) * uses
    once = gather(plan.dp, dense / sharers) + gather(copies, mlps / shards)
    return {
        "tp": (2 * rings * gather(plan.tp, stream), rings * (plan.tp - 1)),
        "cp": (12 * uses * (plan.cp - 1) * stream / plan.tp, 3 * uses * (plan.cp - 1)),
        "ep": (2 * swaps * gather(plan.ep, model.active * stream / plan.tp), swaps * (plan.ep - 1)),
        "pp": (4 * m * stream * (plan.pp > 1), 2 * m * (plan.pp > 1)),
        "shard": (
            (4 * m + 4 * reduced) * (gather(sharers, dense) + gather(shards, mlps)),
            (2 * m + reduced) * (blocks + 1) * (sharers - 1),
        ),
        "dp": (2 * width * once, 2 * (plan.dp - 1)),
    }


def wire(axis, plan, machine, adapters=True):
    """Bandwidth and latency of a line; without `adapters`, each rank pays for the whole slow link."""
    start = INWARD.index("cp" if axis in ("ep", "shard") else axis)
    stride = math.prod(getattr(plan, name) for name in INWARD[start + 1 :])
    ranks = getattr(plan, axis) * (plan.cp if axis == "shard" else 1)
    if stride * ranks <= machine.node:
        return machine.inside
    at_the_edge = machine.node // stride if adapters and axis not in ("pp", "ep") else 1
    bandwidth = machine.between.bandwidth * max(1, at_the_edge)
    return Link(min(machine.inside.bandwidth, bandwidth), machine.between.latency)


def times(model, plan, machine):
    work, scores = work_of(model)
    rate = machine.peak * machine.device_share * plan.world
    computing = work * plan.batch * model.sequence / rate * (1 if plan.recompute == "none" else 4 / 3)
    spent = {}
    for axis, (count, messages) in traffic(model, plan).items():
        link = wire(axis, plan, machine)
        spent[axis] = count / link.bandwidth / machine.link_share + messages * link.latency
    ring = max(0.0, spent["cp"] - computing * scores / work)
    busy = computing + spent["tp"] + spent["ep"] + spent["pp"] + ring
    backward = {"none": 2 / 3, "full": 3 / 4}[plan.recompute] * computing / plan.micro_batches
    return {
        "computing": computing,
        "tp": spent["tp"],
        "ep": spent["ep"],
        "pp": spent["pp"],
        "cp": ring,
        "bubble": busy * (plan.pp - 1) / plan.micro_batches,
        "data": max(0.0, spent["shard"] - busy) + max(0.0, spent["dp"] - backward),
    }
