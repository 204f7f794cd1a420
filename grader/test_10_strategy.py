"""Checks and hints of 10_strategy.

| TODO | achievement                       | evidence                                                              | needs |
|------|-----------------------------------|-----------------------------------------------------------------------|-------|
| 1    | memory by kind                    | the formulas, for drawn models and plans                              |       |
| 2    | work of a token; what each axis sends | the formulas, for drawn models and plans                          | 1     |
| 3    | time of a step                    | the formulas, for drawn models, plans and machines                    | 1, 2  |
| 4    | impossible plans; the best plan | plans with one thing wrong each; the time of the choice               | 1, 2, 3 |
| 5    | when to stop                      | the formulas                                                          |       |

TODOs 1 to 4 have their own references here: the planner's formulas are finer (utils/costs), and what it gives is not
asked for.
"""  # noqa: E501

import itertools
import math
from dataclasses import asdict, fields, replace
from functools import lru_cache, partial


from grader.kit import as_evidence, both, count_of, known, named_apart, nodes, same_numbers, Wrong, expect, hinted, todo
from utils.plan import Link, Machine, Model, Plan

BUILDS = "memory, messages and time of a plan; the best plan for a model and a machine; when to stop adding GPUs"


# ---------------------------------------------------------------------------------------------------
# Questions about models, plans and machines

KINDS = {"Model": Model, "Plan": Plan, "Machine": Machine}


def asked_on_rank(code, rank, world, calls):
    """What the student's functions return: calls are (name, arguments)."""
    found = []
    for name, arguments in calls:
        answer = getattr(code, name)(*map(built, arguments))
        found.append({"plan": asdict(answer)} if isinstance(answer, Plan) else as_evidence(answer))
    return found


def packed(value):
    """An argument as a job can hold it."""
    if isinstance(value, (Model, Plan, Machine)):
        return {"kind": type(value).__name__, "fields": asdict(value)}
    return {"pairs": [[key, part] for key, part in value.items()]} if isinstance(value, dict) else value


def built(value):
    if not isinstance(value, dict):
        return value
    if "pairs" in value:
        return {key: part for key, part in value["pairs"]}
    given = dict(value["fields"])
    for name in ("inside", "between"):
        if name in given:
            given[name] = Link(*given[name])
    return KINDS[value["kind"]](**given)


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
    for how, times in itertools.product(("none", "full"), (few, as_many, more)):
        pairs.append((drawn_model(draw), drawn_plan(draw, times, recompute=how, pp=4)))
    return pairs


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


def numbers_with(model, plan, stage, tables):
    """As `rank_numbers`, with so many tables on a stage."""
    attention, _, mlps = rank_sizes(model, plan, stage)
    return attention + tables(stage, plan.pp - 1) * model.vocabulary * model.hidden / plan.tp, mlps


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


def fullest(model, plan):
    return max(sum(by_kind(model, plan, stage).values()) for stage in range(plan.pp))


@todo(
    1,
    minutes=40,
    why=(
        "A plan that runs out of memory has cost a place in the queue. Without the activations, or the "
        "weights that are gathered for a moment, what fits on paper does not fit."
    ),
    hints=(
        (
            "Start with one GPU and no sharding, and check the 112 GB of 7 billion parameters. Then add one "
            "axis at a time: which kinds become smaller?"
        ),
        (
            "rank_numbers: layers / pp blocks of 4 h² and of 8 h² times experts / ep; V h for stage 0, V h "
            "for the last (both if pp is 1); all over tp. Activations: b s h / (cp tp) numbers, times 16 + 16"
            " active, times layers / pp, times min(m, pp - stage)."
        ),
        (
            "Divide what a rank holds by the shards of its part: plan.sharers for the dense part, of_experts"
            " for MLPs. One block and the tables are gathered, before that division, and nothing if there is one shard."
        ),
    ),
)
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


def without_latency(machine):
    return replace(machine, inside=machine.inside._replace(latency=0), between=machine.between._replace(latency=0))


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


@todo(
    2,
    minutes=35,
    needs=(1,),
    why=(
        "Which axis sends what, and how often, decides which of them may cross nodes. The numbers differ by a"
        " factor of a thousand: counting beats guessing."
    ),
    hints=(
        "Take one axis at a time: how often in a step is it used, how many numbers are sent each time, and to which"
        " ranks?",
        (
            "A ring sends (N - 1)/N of the numbers. A rank has layers // pp blocks, and each micro-batch goes"
            " through all of them. Recomputing repeats the forward pass's collectives of tp and ep, but not of cp."
        ),
        (
            "For an axis used in each block and micro-batch: uses * blocks * m, times what one use sends, times 2"
            " bytes; messages alike, with N - 1 in place of (N - 1)/N. rank_numbers gives what shard and dp send,"
            " of_experts over how many ranks the MLPs go."
        ),
    ),
)
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


@todo(
    3,
    minutes=25,
    needs=(1, 2),
    why=(
        "A plan is chosen by its time, and on paper that takes a millisecond. Leave out the bubble, and you choose deep"
        " pipelines; leave out where a line lies, and tensor parallelism crosses nodes."
    ),
    hints=(
        ("First the seconds that each axis would take alone, over its link. Then ask: what runs at the same time?"),
        (
            "A line spans its own size times the sizes of all axes inside it. An axis takes bytes / "
            "(bandwidth * link_share) + messages * latency. Work that overlaps costs only the time by which "
            "it is longer than the work that hides it."
        ),
        (
            'step_seconds: "computing", then took[axis] for tp, ep and pp; max(0.0, …) for what overlaps. The'
            " bubble is (p - 1) / m of everything a micro-batch computes or waits for; data comes after it."
        ),
    ),
)
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


@todo(
    4,
    minutes=30,
    needs=(1, 2, 3),
    why=(
        "The best plan is twice as fast as a plausible one, and on a thousand GPUs that is worth millions; "
        "and most of the thousand plans are infeasible."
    ),
    hints=(
        (
            "First the divisions, one rule at a time; memory last. Then keep the plans without a reason, and "
            "compare times."
        ),
        (
            "Six rules are a remainder (%), or a comparison of two fields of plan, model and machine. 90 % of"
            " the memory is a limit for most_memory(model, plan)."
        ),
        "min takes a key and a default. A plan's time is the sum of the parts of step_seconds.",
    ),
)
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


@todo(
    5,
    minutes=20,
    further=True,
    why=(
        "GPUs that wait cost as much as GPUs that work. On paper you see in advance where the next one adds more"
        " waiting than speed, and whether a larger batch would make up for it."
    ),
    hints=(
        (
            "Take one parameter of FSDP: how many bytes does a GPU send for it in a step, and how many FLOPs does it"
            " compute with it? Bandwidth is the one over the seconds of the other."
        ),
        (
            "needed_bandwidth: add up what each collective sends for a parameter; computing takes 6 Ψ FLOPs a token."
            " overtaken_at: try 2, 3, … GPUs, with a ring's factor and the link that so many GPUs need. Steps times"
            " batch are samples."
        ),
        (
            "needed_bandwidth: bytes * speed / (6 * tokens), with the bytes of one parameter. overtaken_at: a loop over"
            " gpus that compares needed_bandwidth(batch / gpus, …) * (gpus - 1) / gpus with what the link gives."
        ),
    ),
)
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
