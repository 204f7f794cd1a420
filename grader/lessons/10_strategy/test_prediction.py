"""Checks of 10_strategy, TODOs 1 to 3: prediction.

| TODO | achievement                       | evidence                                                              | needs |
|------|-----------------------------------|-----------------------------------------------------------------------|-------|
| 1    | memory by kind                    | the formulas, for drawn models and plans                              |       |
| 2    | work of a token; what each axis sends | the formulas, for drawn models and plans                          | 1     |
| 3    | time of a step                    | the formulas, for drawn models, plans and machines                    | 1, 2  |

TODOs 1 to 4 have their own references here: the planner's formulas are finer (utils/costs), and what it gives is not
asked for.
"""  # noqa: E501

import itertools
from dataclasses import replace
from functools import partial

from grader.kit import todo
from utils.plan import Link, Model, Plan

from .common import by_kind, check_formulas, drawn_machine, kept, rank_sizes, times, traffic, wire, work_of

# ---------------------------------------------------------------------------------------------------
# Questions about models, plans and machines


def drawn_model(draw, mixture=False, layers=None):
    hidden = 64 * draw.randint(4, 90)
    return Model(
        hidden, layers or 8 * draw.randint(1, 6), 16, 1000 * draw.randint(5, 90), 256 * draw.randint(1, 40),
        experts=16 if mixture else 0, active=draw.choice([3, 6]) if mixture else 1,  # more than ranks on ep, and fewer
    )  # fmt: skip


def drawn_plan(draw, times=(1, 2, 3, 8, 12), **axes):
    """`times`: micro-batches to choose from."""
    replicas = axes.get("dp", 1) * axes.get("shard", 1)
    micro_batch = draw.choice([1, 2, 3])
    how = dict(micro_batch=micro_batch, recompute=draw.choice(["none", "full"])) | axes
    return Plan(batch=replicas * how["micro_batch"] * draw.choice(times), **how)


SPREADS = (
    {}, {"dp": 4}, {"shard": 8}, {"dp": 2, "shard": 4}, {"tp": 4}, {"pp": 4}, {"cp": 4}, {"shard": 2, "pp": 2},
    {"dp": 3, "shard": 2, "cp": 2, "tp": 4, "pp": 8}, {"tp": 8, "pp": 2, "dp": 2}, {"cp": 2, "tp": 2, "shard": 4},
)  # fmt: skip


MIXTURES = (
    {"dp": 8, "ep": 4}, {"shard": 8, "ep": 2}, {"shard": 4, "ep": 4, "pp": 2}, {"dp": 4, "shard": 2, "ep": 4, "tp": 2},
    {"dp": 4, "shard": 2, "ep": 8, "cp": 2}, {"shard": 4},
)  # fmt: skip


def drawn_pairs(draw):
    """Models with plans: each way to spread one, and experts."""
    pairs = [(drawn_model(draw), drawn_plan(draw, **axes)) for axes in SPREADS]
    pairs += [(drawn_model(draw, mixture=True), drawn_plan(draw, **axes)) for axes in MIXTURES]
    few, as_many, more = (1, 2, 3), (4,), (5, 6, 7, 9)  # micro-batches, beside stages
    for how, counts in itertools.product(("none", "full"), (few, as_many, more)):
        pairs.append((drawn_model(draw), drawn_plan(draw, counts, recompute=how, pp=4)))
    return pairs


# ---------------------------------------------------------------------------------------------------
# TODO 1: memory


def numbers_with(model, plan, stage, tables):
    """As `rank_numbers`, with so many tables on a stage."""
    attention, _, mlps = rank_sizes(model, plan, stage)
    return attention + tables(stage, plan.pp - 1) * model.vocabulary * model.hidden / plan.tp, mlps


@todo(1)
def test_todo1_memory(student):
    draw = student.draw("memory")
    right, last_is_fullest = [], False
    pairs = [*drawn_pairs(draw), (Model(4096, 32, 32, 32000, 2048), Plan(batch=64, shard=8))]
    # A large vocabulary and few tokens: the last stage holds as much as the first, and keeps less; the first is fuller.
    pairs.append((Model(1024, 8, 16, 200000, 256), Plan(batch=8, pp=4, shard=1)))
    for model, plan in pairs:
        for stage in sorted({0, plan.pp // 2, plan.pp - 1}):
            attention, tables, mlps = rank_sizes(model, plan, stage)
            right.append(("rank_numbers", (model, plan, stage), (attention + tables, mlps)))
    for model, plan in pairs:
        for stage in sorted({0, plan.pp // 2, plan.pp - 1}):
            right.append(("activation_bytes", (model, plan, stage), kept(model, plan, stage)))
    for model, plan in pairs:
        for stage in sorted({0, plan.pp // 2, plan.pp - 1}):
            right.append(("memory", (model, plan, stage), by_kind(model, plan, stage)))
    for model, plan in pairs:
        stages = [sum(by_kind(model, plan, stage).values()) for stage in range(plan.pp)]
        last_is_fullest |= plan.pp > 1 and stages[-1] < stages[0]
        right.append(("most_memory", (model, plan), max(stages)))
    student.premise(last_is_fullest, "the memory of the last stage for the largest")
    check_formulas(
        student,
        right,
        hints={
            "activation_bytes": "First one block and one micro-batch: tokens on this rank, times h, times bytes. How"
            " many blocks and micro-batches are kept at the same time? With recomputing, what else is there while a"
            " block is recomputed?",
            "memory": "Each kind is bytes times numbers. What do shard · cp ranks divide, and by how many ranks are"
            " the experts' divided? “Gathered” is whole for a moment: which blocks are, and which tables?",
            "most_memory": "The ends have tables, and an earlier stage keeps more micro-batches. Which stage is behind"
            " no other in either?",
        },
        wrongs={
            "rank_numbers": {
                "both tables are on every stage": partial(numbers_with, tables=lambda stage, last: 2),
                "with one stage a table is missing": partial(
                    numbers_with, tables=lambda stage, last: stage in (0, last)
                ),
            },
            "activation_bytes": {
                "without the block at hand": partial(kept, at_hand=0),
                "as if one micro-batch were kept": partial(kept, alive=1),
                "as if all micro-batches were kept": lambda *of: kept(*of, alive=of[1].micro_batches),
            },
        },
    )


# ---------------------------------------------------------------------------------------------------
# TODO 2: the work of a token, and what each axis sends


def without_latency(machine):
    return replace(machine, inside=machine.inside._replace(latency=0), between=machine.between._replace(latency=0))


@todo(2, needs=(1,))
def test_todo2_sent(student):
    pairs = timed_pairs(student.draw("sent"))
    right = [("token_flops", (model,), work_of(model)[0]) for model, _ in pairs]
    right += [("sent", (model, plan), traffic(model, plan)) for model, plan in pairs]
    check_formulas(
        student,
        right,
        hints={
            "token_flops": "Which matrices multiply a token's numbers: which in a block, which experts, and"
            " which of the two tables? Then the scores."
        },
        wrongs={
            "token_flops": {
                "the embedding table is counted, too": lambda model: (
                    work_of(model)[0] + 6 * model.hidden * model.vocabulary
                ),
                "attention's scores are missing": lambda model: work_of(model)[0] - work_of(model)[1],
                "all experts compute": lambda model: work_of(replace(model, active=max(1, model.experts)))[0],
            },
            "sent": {
                "as if nothing were recomputed": lambda model, plan: traffic(model, replace(plan, recompute="none")),
                "as if all were recomputed": lambda model, plan: traffic(model, replace(plan, recompute="full")),
                "gradients of dp in 2 bytes": partial(traffic, width=2),
                "reduced in every micro-batch, though there is a pipeline": lambda model, plan: traffic(
                    model, plan, reduced=plan.micro_batches
                ),
            },
        },
    )


def timed_pairs(draw):
    """Models with plans in which each kind of message is longer than the computing somewhere, and shorter elsewhere."""
    return [
        *drawn_pairs(draw),
        (Model(512, 8, 8, 5000, 16384), Plan(batch=4, cp=4)),
        (Model(4096, 8, 32, 5000, 128), Plan(8, cp=8)),
        (Model(2048, 8, 16, 90000, 128), Plan(8, dp=4, shard=2)),
        (Model(2048, 8, 16, 5000, 4096), Plan(64, dp=4)),
        (Model(4096, 8, 32, 5000, 128), Plan(8, shard=2, pp=4)),
        (Model(4096, 8, 32, 5000, 128), Plan(8, dp=2, pp=4)),
    ]


# ---------------------------------------------------------------------------------------------------
# TODO 3: the time of a step


@todo(3, needs=(1, 2))
def test_todo3_time(student):
    draw = student.draw("time")
    pairs = timed_pairs(draw)
    machines = [drawn_machine(draw, node) for node in (1, 2, 4, 8)]  # as axes divide nodes
    even = Link(draw.uniform(2e10, 3e10), 5e-6)  # as many adapters as members would be faster than the links inside
    machines.append(replace(drawn_machine(draw, 8), name="a machine of even links", inside=even, between=even))
    answers = [times(model, plan, machine) for model, plan in pairs for machine in machines]
    for part in ("cp", "data"):
        student.premise(any(found[part] > 0 for found in answers), f"messages of {part} that cost nothing")
        student.premise(any(found[part] == 0 for found in answers), f"messages of {part} that are waited for")
    both = [min(found["data"], found["bubble"]) > 0.01 * sum(found.values()) for found in answers]
    student.premise(any(both), "shards that arrive in the bubble")
    lines = [(plan, machine) for (_, plan), machine in itertools.product(pairs, machines)]
    several = [wire("dp", *line) != wire("dp", *line, adapters=False) for line in lines]
    student.premise(
        any(several) and not all(several), "a ring that crosses once, however many members it has in a node"
    )
    right = []
    for (_, plan), machine in itertools.product(pairs, machines):
        for axis in ("tp", "cp", "shard", "dp", "pp") + (("ep",) if plan.ep > 1 else ()):
            right.append(("link", (axis, plan, machine), tuple(wire(axis, plan, machine))))
    for (model, plan), machine in itertools.product(pairs, machines):
        right.append(("step_seconds", (model, plan, machine), times(model, plan, machine)))
    odd, eight = Plan(24, tp=3, dp=8), drawn_machine(draw, 8)  # 3 does not divide 8: two whole strides in a node
    right.append(("link", ("dp", odd, eight), tuple(wire("dp", odd, eight))))
    check_formulas(
        student,
        right,
        hints={
            "link": "How many ranks are there from a line's first to its last? All ranks of the axes inside it are in"
            " between.",
            "step_seconds": "A line's seconds are bytes over what the link gives, and messages times latency. Which"
            " of them overlap with computing? The bubble is a fraction of all the time that a micro-batch takes or"
            " waits for.",
        },
        wrongs={
            "link": {"every rank pays for the slow link": lambda *of: tuple(wire(*of, adapters=False))},
            "step_seconds": {
                "without link_share": lambda *of: times(*of[:2], replace(of[2], link_share=1.0)),
                "without device_share": lambda *of: times(*of[:2], replace(of[2], device_share=1.0)),
                "without latency": lambda *of: times(*of[:2], without_latency(of[2])),
            },
        },
    )
