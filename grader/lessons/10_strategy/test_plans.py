"""Checks of 10_strategy, TODOs 4 and 5: plans.

| TODO | achievement                       | evidence                                                              | needs |
|------|-----------------------------------|-----------------------------------------------------------------------|-------|
| 4    | impossible plans; the best plan | plans with one thing wrong each; the time of the choice               | 1, 2, 3 |
| 5    | when to stop                      | the formulas                                                          |       |
"""  # noqa: E501

import itertools
from dataclasses import replace
from functools import lru_cache

from grader.kit import expect, hinted, nodes, todo
from utils.plan import Link, Machine, Model, Plan

from .common import by_kind, check_formulas, drawn_machine, packed, shown, times
from .ranks import asked_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 1: memory


def fullest(model, plan):
    return max(sum(by_kind(model, plan, stage).values()) for stage in range(plan.pp))


# ---------------------------------------------------------------------------------------------------
# TODO 4: the best plan


def cannot(model, plan, machine):
    """Which rule a plan breaks; "" if none."""
    pieces = plan.replicas * plan.micro_batch
    rules = {
        "heads on tp": model.heads % plan.tp == 0,
        "layers on pp": model.layers % plan.pp == 0,
        "tokens on cp and tp": model.sequence % (plan.cp * plan.tp) == 0,
        "experts on ep": not model.experts or model.experts % plan.ep == 0,
        "the batch on micro-batches of replicas": plan.batch % pieces == 0,
        "fewer micro-batches than stages": plan.batch // pieces >= plan.pp,
        "tp in a node": plan.tp <= machine.node,
    }
    broken = next((rule for rule, holds in rules.items() if not holds), "")
    return broken or ("memory" if fullest(model, plan) > 0.9 * machine.memory else "")


def all_plans(model, gpus, batch):
    for dp, shard, cp, tp in itertools.product([n for n in range(1, gpus + 1) if gpus % n == 0], repeat=4):
        if gpus % (dp * shard * cp * tp):
            continue
        if cp > 1 and model.sequence // cp < 2048:
            continue
        pp = gpus // (dp * shard * cp * tp)
        eps = [e for e in (1, 2, 4, 8, 16) if e == 1 or (model.experts and dp * shard * cp % e == 0)]
        for ep, micro_batch, recompute in itertools.product(eps, (1, 2, 4), ("none", "full")):
            if max(ep, shard * cp) % min(ep, shard * cp) == 0:
                yield Plan(batch, micro_batch, dp, shard, tp, pp, cp, ep, recompute=recompute)


@lru_cache(maxsize=64)
def fastest_of(model, gpus, batch, machine):
    """The fastest plan that can be, and its seconds; None if none can."""
    good = [plan for plan in all_plans(model, gpus, batch) if not cannot(model, plan, machine)]
    best = min(good, key=lambda plan: sum(times(model, plan, machine).values()), default=None)
    return best and (best, sum(times(model, best, machine).values()))


FORTY = Machine("GPUs of 40 GB, four a node", 312e12, 40e9, 1.5e12, 4, Link(250e9, 5e-6), Link(12.5e9, 10e-6), 0.5, 0.8)


CASES = (  # the notebook's, and the axes that each of them is about
    (Model(768, 12, 12, 32000, 1024), 4, 64, {"dp", "shard"}),
    (Model(4096, 32, 32, 32000, 2048), 8, 64, {"shard"}),
    (Model(2048, 24, 16, 32000, 131072), 16, 2, {"cp"}),
    (Model(2048, 12, 16, 32000, 2048, experts=32, active=2), 16, 256, {"ep"}),
    (Model(6144, 48, 48, 32000, 2048), 64, 256, {"pp"}),  # large: everything
)


BROKEN = (  # a model, a plan, and the rule that it breaks
    (Model(768, 12, 6, 5000, 1024), Plan(16, tp=4), "heads on tp"),
    (Model(768, 10, 8, 5000, 1024), Plan(16, pp=4), "layers on pp"),
    (Model(768, 12, 8, 5000, 1026), Plan(16, cp=4), "tokens on cp and tp"),
    (Model(768, 12, 8, 5000, 1028), Plan(16, cp=2, tp=4), "tokens on cp and tp"),
    (Model(768, 12, 8, 5000, 1026), Plan(16, tp=4), "tokens on cp and tp"),
    (Model(768, 12, 8, 5000, 1024, experts=6, active=2), Plan(16, dp=4, ep=4), "experts on ep"),
    (Model(768, 12, 9, 5000, 1024), Plan(16, tp=4), "heads on tp"),  # these five with a remainder of one
    (Model(768, 9, 8, 5000, 1024), Plan(16, pp=4), "layers on pp"),
    (Model(768, 12, 8, 5000, 1025), Plan(16, cp=4), "tokens on cp and tp"),
    (Model(768, 12, 8, 5000, 1024, experts=5, active=2), Plan(16, dp=4, ep=4), "experts on ep"),
    (Model(768, 12, 8, 5000, 1024), Plan(17, dp=4), "the batch on micro-batches of replicas"),
    (Model(768, 12, 8, 5000, 1024), Plan(18, dp=4), "the batch on micro-batches of replicas"),
    (Model(768, 12, 8, 5000, 1024), Plan(12, shard=4, micro_batch=2), "the batch on micro-batches of replicas"),
    (Model(768, 12, 8, 5000, 1024), Plan(2, pp=4), "fewer micro-batches than stages"),
    (Model(768, 12, 8, 5000, 1024), Plan(16, dp=4, pp=4, micro_batch=2), "fewer micro-batches than stages"),
    (Model(768, 12, 8, 5000, 1024), Plan(16, tp=8), "tp in a node"),
    (Model(4096, 32, 32, 32000, 2048), Plan(64, dp=8), "memory"),
    (Model(4096, 32, 32, 32000, 2048), Plan(64, shard=8, micro_batch=4), "memory"),
    (Model(4096, 32, 32, 32000, 2048), Plan(64, pp=4, micro_batch=2), "memory"),
)


@todo(4, needs=(1, 2, 3))
def test_todo4_best(student):
    draw = student.draw("best")
    asked = [(model, plan, FORTY) for model, plan, _ in BROKEN]
    for model, plan, rule in BROKEN:
        student.premise(cannot(model, plan, FORTY) == rule, f"a plan that breaks a different rule, not “{rule}”")
    for model, gpus, batch, about in CASES:
        plans, (best, _) = list(all_plans(model, gpus, batch)), fastest_of(model, gpus, batch, FORTY)
        solved = any(getattr(best, axis) > 1 for axis in about)
        student.premise(solved, f"a case about {about} that is solved without it")
        asked += [(model, plan, FORTY) for plan in draw.sample(plans, 12)]
        asked.append((model, best, FORTY))
    small, four = Model(768, 12, 12, 32000, 1024), Plan(16, pp=4, dp=4)
    asked.append((small, four, FORTY))  # as many micro-batches as stages
    for model, possible in (
        (small, Plan(24, pp=4, dp=4)),  # 6 micro-batches for 4 stages
        (small, Plan(16, tp=2, cp=4, dp=2)),  # 12 heads on tp, not on cp
        (replace(small, vocabulary=32001), Plan(16, tp=4, dp=4)),  # words need not divide
    ):
        student.premise(not cannot(model, possible, FORTY), "a plan that is not possible")
        asked.append((model, possible, FORTY))
    for share in (0.905, 0.895):  # of the memory: one is too much
        asked.append((small, four, replace(FORTY, memory=fullest(small, four) / share)))
    ninths = replace(small, hidden=9 * 256)  # so that 90 % of the memory are a whole number of bytes
    full = replace(FORTY, memory=fullest(ninths, four) / 9 * 10)
    student.premise(0.9 * full.memory == fullest(ninths, four) and not cannot(ninths, four, full), "more than 90 %")
    asked.append((ninths, four, full))
    questions = [(*case[:3], FORTY) for case in CASES]
    wide = Model(5120, 40, 40, 32000, 2048)  # on 64 GPUs some plans fit without recomputing, and one with it is faster
    fits = any(plan.recompute == "none" and not cannot(wide, plan, FORTY) for plan in all_plans(wide, 64, 64))
    student.premise(fits and fastest_of(wide, 64, 64, FORTY)[0].recompute == "full", "plans that need no recomputing")
    questions.append((wide, 64, 64, FORTY))
    twenty = replace(FORTY, memory=20e9)  # of the same name
    best = [fastest_of(wide, 64, 64, machine)[0] for machine in (FORTY, twenty)]
    student.premise(best[0] != best[1], "the plan for another machine")
    questions.append((wide, 64, 64, twenty))
    questions.append((Model(8192, 80, 64, 32000, 2048), 4, 64, FORTY))  # fits nowhere
    for _ in range(2):
        model = Model(256 * draw.randint(3, 12), 4 * draw.randint(3, 8), 8, 1000 * draw.randint(8, 60), 2048)
        questions.append((model, draw.choice([4, 8]), draw.choice([32, 64]), drawn_machine(draw, 4)))
    calls = [["why_not", [packed(part) for part in arguments]] for arguments in asked]
    (seen,) = student.call(asked_on_rank, world=1, group=False, calls=calls).evidence
    for (model, plan, machine), got in zip(asked, seen, strict=True):
        rule, told = cannot(model, plan, machine), f"why_not({shown(model)}, {shown(plan)}, {machine.name})"
        expect(isinstance(got, str), f"{told} is not a text", "a few words" if rule else '""', got)
        expect(bool(got) or not rule, f"{told} accepts a plan that is not possible: {rule}", "a reason", '""')
        expect(not got or bool(rule), f"{told} rejects a plan that is possible", '""', got)
    calls = [["best_plan", [packed(part) for part in arguments]] for arguments in questions]
    (seen,) = student.call(asked_on_rank, world=1, group=False, calls=calls).evidence
    for (model, gpus, batch, machine), got in zip(questions, seen, strict=True):
        with hinted("First leave out the plans for which why_not gives a reason. Compare the others by their seconds."):
            check_best(model, gpus, batch, machine, got)


def check_best(model, gpus, batch, machine, got):
    size = "" if machine.memory == FORTY.memory else f", but with {machine.memory / 1e9:.0f} GB"
    told = f"best_plan({shown(model)}, {gpus} GPUs, batch {batch}, {machine.name}{size})"
    best = fastest_of(model, gpus, batch, machine)
    if best is None:
        expect(got is None, f"{told}: no plan can be", "None", got)
        return
    expect(isinstance(got, dict) and "plan" in got, f"{told} is not a plan", shown(best[0]), got)
    plan = Plan(**got["plan"])
    sizes = [plan.micro_batch, plan.dp, plan.shard, plan.tp, plan.pp, plan.cp, plan.ep]
    expect(min(sizes) >= 1, f"{told} is not a plan: an axis has no rank", shown(best[0]), shown(plan))
    expect(
        plan.world == gpus and plan.batch == batch,
        f"{told} is a plan for different GPUs or a different batch",
        shown(best[0]),
        shown(plan),
    )
    broken = cannot(model, plan, machine)
    expect(not broken, f"{told} chooses a plan that is not possible: {broken}", shown(best[0]), shown(plan))
    seconds = sum(times(model, plan, machine).values())
    expect(
        seconds <= best[1] * (1 + 1e-9),
        f"{told} is not the fastest: it takes {seconds / best[1]:.3f} times as long",
        f"{best[1]:.4g} s with {shown(best[0])}",
        f"{seconds:.4g} s with {shown(plan)}",
    )


# ---------------------------------------------------------------------------------------------------
# TODO 5: when to stop


BYTES = {"ddp": 8, "fsdp": 8, "fsdp float32": 12}  # of a parameter in a step: weights in 2 bytes, gradients in 4


def crossing_at(batch, scheme, machine):
    """The fewest GPUs on which the bytes of a parameter take longer than the FLOPs of its tokens."""
    for gpus in itertools.count(2):
        link = machine.inside if gpus <= machine.node else machine.between
        count = BYTES[scheme] * (gpus - 1) / gpus
        if count / (link.bandwidth * machine.link_share) > 6 * batch / gpus / (machine.peak * machine.device_share):
            return gpus


@todo(5)
def test_todo5_stop(student):
    draw = student.draw("stop")
    right = []
    for scheme in BYTES:
        for _ in range(2):
            tokens, speed = draw.uniform(500, 50000), draw.uniform(5e13, 5e14)
            right.append(("needed_bandwidth", (tokens, speed, scheme), BYTES[scheme] / (6 * tokens / speed)))
        for _, node in nodes(draw):
            machine = drawn_machine(draw, node)
            batch = float(draw.randint(10**4, 10**6))
            right.append(("overtaken_at", (batch, scheme, machine), crossing_at(batch, scheme, machine)))
        slow = Machine("slow links everywhere", 3e14, 4e10, 1e12, 4, Link(1e9, 0.0), Link(1e9, 0.0))
        right.append(("overtaken_at", (1e5, scheme, slow), crossing_at(1e5, scheme, slow)))
        within = Machine(
            "fast links in a node of 8, slow ones between", 3e14, 4e10, 1e12, 8, Link(1e12, 0), Link(1e9, 0)
        )
        student.premise(crossing_at(1e4, scheme, within) == 9, "the slow links for GPUs of one node")
        right.append(("overtaken_at", (1e4, scheme, within), 9))
        inside = Machine(
            "slow links in a node of 8, fast ones between", 3e14, 4e10, 1e12, 8, Link(4e9, 0), Link(1e12, 0)
        )
        seconds = BYTES[scheme] / (inside.inside.bandwidth * inside.link_share)
        batch = draw.uniform(2.2, 5.8) * seconds * inside.peak * inside.device_share / 6
        student.premise(crossing_at(batch, scheme, inside) <= 8, "the first number of GPUs on several nodes")
        right.append(("overtaken_at", (batch, scheme, inside), crossing_at(batch, scheme, inside)))
    fast = Machine("fast links everywhere", 3e14, 4e10, 1e12, 8, Link(1e12, 0), Link(1e11, 0))
    batch = draw.uniform(0.9e7, 1.1e7)  # thousands of GPUs; a round number may be just as fast, but for rounding
    right.append(("overtaken_at", (batch, "ddp", fast), crossing_at(batch, "ddp", fast)))
    even = Machine("as fast as four GPUs need", 2.0**40, 4e10, 1e12, 8, Link(3 * 2.0**21, 0), Link(3 * 2.0**21, 0))
    even = replace(even, link_share=1.0, device_share=1.0)  # with powers of 2 nothing is rounded, in whatever order
    student.premise(crossing_at(2.0**20, "fsdp float32", even) == 5, "no GPUs on which both take equally long")
    right.append(("overtaken_at", (2.0**20, "fsdp float32", even), 5))
    for _ in range(2):
        batch, critical, steps = draw.uniform(10, 9999), draw.uniform(100, 5000), draw.uniform(1e3, 1e5)
        right.append(("samples_needed", (batch, critical, steps), steps * (batch + critical)))
    check_formulas(
        student,
        right,
        hints={
            "needed_bandwidth": "Bytes of a step over seconds of its computing: how many bytes and how many FLOPs has a"
            " parameter, with all tokens of a GPU?",
            "overtaken_at": "Try 2 GPUs, then 3, … With each the tokens of a GPU are fewer. What is needed, how much"
            " of it does a ring send, and what does the link really give?",
            "samples_needed": "The formula of the text gives steps. How many samples has a step?",
        },
        wrongs={
            "overtaken_at": {
                "without link_share": lambda *of: crossing_at(*of[:2], replace(of[2], link_share=1.0)),
                "without device_share": lambda *of: crossing_at(*of[:2], replace(of[2], device_share=1.0)),
                "that is the last number that keeps up": lambda *of: crossing_at(*of) - 1,
            },
            "samples_needed": {
                "these are steps, not samples": lambda batch, critical, steps: steps * (1 + critical / batch)
            },
        },
    )
