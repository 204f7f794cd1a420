# %% [markdown]
# # Strategy: which axes, and how many ranks on each
#
# In `09_mesh` you put the axes together. This lesson chooses among them before anything runs: does a plan fit into
# memory, how long does a step take, and when should you stop adding GPUs?
#
# It builds on `00_one_device` (FLOPs, memory of a step, scaling), on the bytes of `03_zero` and `04_tensor_parallel`,
# on the bubble of `05_pipeline_parallel` and on the axes of `09_mesh`. A **plan** says how many ranks there are on each
# axis, and how a batch is cut. Bytes travel over a **link**, which has a bandwidth and a latency.

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import sys
from pathlib import Path

here = Path.cwd().resolve()
course = next(folder for folder in (here, *here.parents) if (folder / "grader").is_dir())
sys.path.insert(0, str(course))

from grader import check

# %%
import itertools
import math

from utils import catalogue
from utils.plan import Link, Machine, Model, Plan
from utils.plots import strategy as plots

# %% [markdown]
# ## Does it fit?
#
# The speed of a plan that does not fit is irrelevant, so memory comes first. `utils/plan.py` describes:
#
# - `Model`: `hidden` (h), `layers` (L), `heads`, `vocabulary` (V), `sequence` (s), and the `experts` of each block, of
#   which a token uses `active`. `experts=0` is one plain MLP.
# - `Plan`: `batch` (sequences in a step, over all ranks), `micro_batch` (b, sequences at a time), the five axes, `ep`
#   (ranks among which experts are spread), and `recompute`, "none" or "full". It computes `world`, `replicas` (dp ·
#   shard), `micro_batches` (m, of each replica) and `sharers` (shard · cp). Its other fields are the planner's.
# - `Machine`: `peak`, `memory`, `node` (GPUs in one), and its links.
#
# Take a rank of stage $r$ (from 0) of $p$. A block has $4h^2$ numbers in its attention and $8h^2$ in each MLP. The
# first stage has the embedding table, too, and the last one the head, $Vh$ each. Norms, biases and positions are
# left out; the stages divide the layers evenly.
#
# Ranks that divide a sequence have the same weights, so they need not all hold the same state: `06_context_parallel`
# ends with that. As in torchtitan and Megatron-Core, the `sharers`, shard · cp ranks, shard it.
#
# | kind | what a rank holds |
# |---|---|
# | weights, gradients, state | 2, 2 and 12 bytes a number (mixed precision, lesson 03). `tp` cuts the numbers, the `sharers` shard them |
# | gathered | with several `sharers`: one block's weights and gradients, unsharded, and the table's and head's all the time, as in `fsdp_training`; 2 bytes each |
# | activations | 32 bytes for each of a token's h numbers, in each block and micro-batch: 16 for attention and norms, 16 for each MLP that the token goes to. `tp`, with sequence parallelism, and `cp` cut the tokens. (Dropout's masks would add 2, [arXiv:2205.05198](https://arxiv.org/abs/2205.05198)) |
# | … recomputed | 2 bytes for each number between blocks, and the whole block that is being computed |
# | … in a pipeline | 1F1B (lesson 05): stage $r$ keeps min(m, p - r) micro-batches, for its blocks |
#
# Each of the `ep` ranks has different experts. These ranks are taken from the `sharers` first, then from `dp`; what is
# left of them shards and replicates the experts:


# %%
def of_experts(plan: Plan) -> tuple[int, int]:
    """Ranks that replicate, and ranks that shard, the experts of a rank. Without experts, `ep` is 1:
    dp and sharers.
    """
    if plan.ep <= plan.sharers:
        return plan.dp, plan.sharers // plan.ep
    return plan.dp * plan.sharers // plan.ep, 1


# %% [markdown]
# **Predict**: a 7B model on 8 GPUs of 40 GB. With which of dp 8, shard 8, and tp 4 × pp 2 does it fit? And which
# kind then takes the most memory?


# %% nbgrader={"grade": false, "grade_id": "todo_1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def rank_numbers(model: Model, plan: Plan, stage: int) -> tuple[float, float]:
    """Numbers on a rank of this stage, without sharding: of attention, table and head; and of MLPs."""
    # TODO 1: Predict what a rank holds, by kind. First, the numbers before sharding: which of them does
    # `tp` cut, and which does `ep` spread?
    ### BEGIN SOLUTION
    blocks, ends = model.layers / plan.pp, (stage == 0) + (stage == plan.pp - 1)
    dense = blocks * 4 * model.hidden**2 + ends * model.vocabulary * model.hidden
    mlps = blocks * 8 * model.hidden**2 * max(1, model.experts) / plan.ep
    return dense / plan.tp, mlps / plan.tp
    ### END SOLUTION


def activation_bytes(model: Model, plan: Plan, stage: int) -> float:
    """Bytes that a rank of this stage keeps for the backward pass, at most."""
    # TODO 1, again: the activations.
    ### BEGIN SOLUTION
    numbers = plan.micro_batch * model.sequence / (plan.cp * plan.tp) * model.hidden
    block = numbers * (16 + 16 * model.active)
    alive = model.layers / plan.pp * min(plan.micro_batches, plan.pp - stage)
    return alive * 2 * numbers + block if plan.recompute == "full" else alive * block
    ### END SOLUTION


def memory(model: Model, plan: Plan, stage: int) -> dict[str, float]:
    """Bytes on a rank of this stage: of "weights", "gradients", "state",
    "gathered" and "activations".
    """
    # TODO 1, again: all kinds. `of_experts` says how many ranks shard MLPs; with one, they are not
    # gathered.
    ### BEGIN SOLUTION
    dense, mlps = rank_numbers(model, plan, stage)
    shards = of_experts(plan)[1]
    held = dense / plan.sharers + mlps / shards
    blocks = model.layers / plan.pp
    attention = blocks * 4 * model.hidden**2 / plan.tp
    gathered = 0.0
    if plan.sharers > 1:
        gathered += attention / blocks + (dense - attention)
    if shards > 1:
        gathered += mlps / blocks
    return {
        "weights": 2 * held,
        "gradients": 2 * held,
        "state": 12 * held,
        "gathered": (2 + 2) * gathered,
        "activations": activation_bytes(model, plan, stage),
    }
    ### END SOLUTION


def most_memory(model: Model, plan: Plan) -> float:
    """Bytes on the rank that holds the most."""
    # TODO 1, again: which stage is it?
    ### BEGIN SOLUTION
    return max(sum(memory(model, plan, stage).values()) for stage in range(plan.pp))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_1", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("10_strategy/1")

# %% [markdown]
# Your prediction for 8 GPUs of JURECA. The dashed line is 90 % of their memory: a tenth is left for the driver, NCCL
# and gaps between tensors. (40 GiB are 42.9 GB.)

# %%
SEVEN, CLUSTER = catalogue.model("7b"), catalogue.machine("jureca")
shown = {}
for axes in (
    {"dp": 8},
    {"shard": 8},
    {"tp": 4, "pp": 2},
    {"shard": 2, "tp": 4},
    {"shard": 8, "recompute": "full"},
):
    plan = Plan(batch=64, **axes)
    kinds = [memory(SEVEN, plan, stage) for stage in range(plan.pp)]
    shown[", ".join(f"{axis} {size}" for axis, size in axes.items())] = max(
        kinds, key=lambda kind: sum(kind.values())
    )
plots.memory(shown, 0.9 * CLUSTER.memory)

# %% [markdown]
# ## How long is a step?
#
# A step consists of computing, waiting for messages, and the pipeline's bubble.
#
# **Computing.** A number that multiplies a token takes 6 FLOPs, forward and backward (`00_one_device`): the head
# counts, the embedding table does not, and of the experts only the active ones count. Attention's scores add $12Lhs$
# for each token. Recomputing adds a third to everything. Each rank gets an equal share of a step's work. A GPU does
# `peak · device_share` FLOPs a second; the share, 0.78, was fitted to published runs.
#
# **Messages**: what a rank of the first stage sends in a step. A micro-batch has $n = b \cdot s/\text{cp}$ tokens on a
# rank. A number takes 2 bytes; weights' gradients are reduced in float32, as in the scripts, and take **4**. A *ring*
# over $N$ ranks is an all-gather or a reduce-scatter: each rank sends $(N - 1)/N$ of the numbers, in $N - 1$ messages.
# An all-reduce is two rings.
#
# | axis | sends | numbers | messages |
# |---|---|---|---|
# | `tp` | for each block and micro-batch: 4 all-gathers, 4 reduce-scatters; with recomputing, 6 and 6 | a ring's, of $nh$ | $t - 1$ each |
# | `cp` | for each block and micro-batch: K and V in the forward pass; K and V again, and both gradients, in the backward pass: three pairs (recomputing is not counted) | a pair is $2nh/t$ numbers, sent cp - 1 times | cp - 1 a pair |
# | `ep` | for each block and micro-batch: 4 all-to-alls; with recomputing, 6 | (ep - 1)/ep of active · $nh/t$ | ep - 1 each |
# | `pp` | for each micro-batch: activations to the next stage; and their gradients, which come back and are counted here | $nh$ each way | 1 each way |
# | `shard` | over all `sharers`; for each micro-batch: 2 all-gathers of weights (recomputing uses the second), and a reduce-scatter of gradients; in a pipeline only one reduce-scatter a step, since torch's stages accumulate unsharded gradients | a ring's, of `rank_numbers` | $N - 1$ a ring, with one ring for each block and one for table and head |
# | `dp` | once a step: an all-reduce of gradients over the copies | two rings', of `rank_numbers` after sharding | $2(N - 1)$, for everything at once |
#
# On `shard` and `dp`, `of_experts` has the ranks that the MLPs' rings go over, in place of sharers and dp; messages are
# counted for the other numbers alone. A line of one rank sends nothing.


# %% nbgrader={"grade": false, "grade_id": "todo_2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def token_flops(model: Model) -> float:
    """FLOPs of a token, forward and backward, without recomputing."""
    # TODO 2: Count the work of a token, and the messages of each axis in a step. First, the work.
    ### BEGIN SOLUTION
    h = model.hidden
    numbers = model.layers * (4 * h**2 + 8 * h**2 * model.active) + model.vocabulary * h
    return 6 * numbers + 12 * model.layers * h * model.sequence
    ### END SOLUTION


def sent(model: Model, plan: Plan) -> dict[str, tuple[float, int]]:
    """Bytes and messages that a rank of stage 0 sends in a step, on "tp", "cp", "ep", "pp",
    "shard" and "dp".
    """
    # TODO 2, again: the messages. `rank_numbers` has the numbers of a rank.
    ### BEGIN SOLUTION
    t, cp, ep, m = plan.tp, plan.cp, plan.ep, plan.micro_batches
    blocks = model.layers // plan.pp
    numbers = plan.micro_batch * model.sequence / cp * model.hidden
    again = 1.5 if plan.recompute == "full" else 1
    dense, mlps = rank_numbers(model, plan, 0)
    replicas, shards = of_experts(plan)

    def ring(length: int, numbers: float) -> float:
        return (length - 1) / length * numbers

    gathers, reductions = 2 * m, 1 if plan.pp > 1 else m
    unsharded = ring(plan.sharers, dense) + ring(shards, mlps)
    rings = round(8 * again) * blocks * m
    swaps = round(4 * again) * blocks * m
    return {
        "tp": (2 * rings * ring(t, numbers), rings * (t - 1)),
        "cp": (2 * 3 * blocks * m * (cp - 1) * 2 * numbers / t, 3 * blocks * m * (cp - 1)),
        "ep": (2 * swaps * ring(ep, model.active * numbers / t), swaps * (ep - 1)),
        "pp": (2 * 2 * m * numbers, 2 * m) if plan.pp > 1 else (0.0, 0),
        "shard": (
            (2 * gathers + 4 * reductions) * unsharded,
            (gathers + reductions) * (blocks + 1) * (plan.sharers - 1),
        ),
        "dp": (
            4 * 2 * (ring(plan.dp, dense / plan.sharers) + ring(replicas, mlps / shards)),
            2 * (plan.dp - 1),
        ),
    }
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_2", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("10_strategy/2")

# %% [markdown]
# Bytes become seconds over a link, and some of these seconds are hidden.
#
# **Links.** Axes are placed from the inside in the order tp, cp, shard, dp, pp; the lines of `shard`, which
# has all sharers, and of `ep` start where `cp` does. A line's *stride* is the product of the sizes inside it: for `dp`,
# tp · cp · shard. If stride times the line's ranks is at most a node's GPUs, the line uses `machine.inside`.
#
# A ring of `tp`, `cp`, `shard` or `dp` that leaves its node visits all its members in one node before it moves to the
# next. It has `node // stride` members in a node (at least 1), and as many network adapters: each rank gets that many
# times `machine.between.bandwidth`, at most `machine.inside.bandwidth`, with the latency of `machine.between`. `pp` and
# `ep` use one adapter.
#
# A line takes bytes / (bandwidth · `link_share`) + messages · latency.
#
# **Overlap.** Ranks wait for `tp`, `ep` and `pp`. For each of the other axes, only the time by which it exceeds what
# hides it counts:
#
# - `cp` is hidden by attention's scores: $12Lhs$ of a token's FLOPs, and the same fraction of the computing time;
# - `shard` by the *passes*, since the next block is gathered early: computing, `tp`, `ep`, `pp` and the rest of `cp`;
# - `dp` by the backward pass of the last micro-batch: computing / m times 2/3, with recomputing 3/4.
#
# **Bubble.** $(p - 1)/m$ times the seconds of the passes.


# %% nbgrader={"grade": false, "grade_id": "todo_3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def link(axis: str, plan: Plan, machine: Machine) -> Link:
    """The bandwidth and the latency that a rank has along this axis."""
    # TODO 3: Predict the time of a step. First, does a line of this axis leave the node, and through how
    # many adapters?
    ### BEGIN SOLUTION
    inward = ("tp", "cp", "shard", "dp", "pp")
    before = ("tp",) if axis in ("shard", "ep") else inward[: inward.index(axis)]
    stride = math.prod(getattr(plan, name) for name in before)
    length = plan.sharers if axis == "shard" else getattr(plan, axis)
    if stride * length <= machine.node:
        return machine.inside
    members = 1 if axis in ("pp", "ep") else max(1, machine.node // stride)
    bandwidth = min(machine.inside.bandwidth, members * machine.between.bandwidth)
    return Link(bandwidth, machine.between.latency)
    ### END SOLUTION


def step_seconds(model: Model, plan: Plan, machine: Machine) -> dict[str, float]:
    """Seconds of a step: "computing", "tp", "ep", "pp", "cp", "bubble" and "data",
    whose sum is the step.
    """
    # TODO 3, again: the time. "data" is the part of shard and dp that nothing hides.
    ### BEGIN SOLUTION
    flops = token_flops(model)
    scores = 12 * model.layers * model.hidden * model.sequence / flops
    again = 4 / 3 if plan.recompute == "full" else 1
    computing = (
        plan.batch * model.sequence * flops * again / (plan.world * machine.peak * machine.device_share)
    )
    took = {}
    for axis, (count, messages) in sent(model, plan).items():
        cable = link(axis, plan, machine)
        took[axis] = count / (cable.bandwidth * machine.link_share) + messages * cable.latency
    found = {"computing": computing} | {axis: took[axis] for axis in ("tp", "ep", "pp")}
    found["cp"] = max(0.0, took["cp"] - computing * scores)
    passing = sum(found.values())
    found["bubble"] = passing * (plan.pp - 1) / plan.micro_batches
    last = computing / plan.micro_batches * (3 / 4 if plan.recompute == "full" else 2 / 3)
    found["data"] = max(0.0, took["shard"] - passing) + max(0.0, took["dp"] - last)
    return found
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_3", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("10_strategy/3")

# %% [markdown]
# The 7B model on 64 GPUs. Which part would a network twice as fast shorten?

# %%
shown = {}
for axes in (
    {"shard": 64},
    {"dp": 16, "shard": 4},
    {"dp": 16, "tp": 4},
    {"tp": 16, "shard": 4},
    {"dp": 8, "tp": 4, "pp": 2},
):
    plan = Plan(batch=256, micro_batch=4, recompute="full", **axes)
    shown[" × ".join(f"{axis} {size}" for axis, size in axes.items())] = step_seconds(
        SEVEN, plan, CLUSTER
    )
plots.seconds(shown)

# %% [markdown]
# Here are your times and the course's planner's, whose formulas are more detailed. Yours leave out only small terms:
# work that is not a product (5 to 8 % of a step), the optimizer (up to 2 %), the last block's message, which nothing
# hides (1 to 2 %), and the memory bandwidth that messages take (up to 5 %).

# %%
SIX = [{"shard": 64}, {"dp": 16, "shard": 4}, {"dp": 16, "tp": 4}, {"shard": 4, "tp": 16}]
SIX += [{"dp": 8, "tp": 4, "pp": 2}, {"dp": 4, "shard": 8, "pp": 2}]
plots.beside_planner(
    step_seconds, SEVEN, [Plan(256, 4, recompute="full", **axes) for axes in SIX], CLUSTER
)

# %% [markdown]
# ## Choose
#
# Now try all plans: about a thousand for 64 GPUs, good and bad. Reject the infeasible ones, and take the fastest of the
# rest.


# %%
def factorings(number: int, factors: int) -> list[tuple[int, ...]]:
    """All ways to write a number as a product of this many factors, in order."""
    if factors == 1:
        return [(number,)]
    first = [side for side in range(1, number + 1) if number % side == 0]
    return [(side, *rest) for side in first for rest in factorings(number // side, factors - 1)]


def axes_and_copies(plan: Plan) -> tuple[int, int]:
    """A key that sorts the simplest plans first: fewest axes, then most plain copies."""
    return sum(size > 1 for size in (plan.dp, plan.shard, plan.tp, plan.pp, plan.cp)), -plan.dp


def candidates(model: Model, gpus: int, batch: int) -> list[Plan]:
    """Plans for this many GPUs, feasible or not, the simplest first; with 1, 2 or 4 sequences at a time,
    and recomputed or not.
    """
    found = []
    for dp, shard, cp, tp, pp in factorings(gpus, 5):
        if cp > 1 and model.sequence // cp < 2048:
            continue  # pieces so short compute for less time than their keys travel (arXiv:2310.01889)
        sharers = shard * cp
        spread = [ep for ep in (1, 2, 4, 8, 16) if ep == 1 or (model.experts and dp * sharers % ep == 0)]
        for ep, micro_batch, recompute in itertools.product(spread, (1, 2, 4), ("none", "full")):
            if ep <= sharers and sharers % ep == 0 or ep > sharers and ep % sharers == 0:
                found.append(Plan(batch, micro_batch, dp, shard, tp, pp, cp, ep, recompute=recompute))
    return sorted(found, key=axes_and_copies)


# %% nbgrader={"grade": false, "grade_id": "todo_4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def why_not(model: Model, plan: Plan, machine: Machine) -> str:
    """In a few words, why this plan is infeasible; "" if it is not."""
    # TODO 4: Find the best plan for a model and a machine. First, infeasible plans: pieces of unequal
    # size (heads on tp, layers on pp, tokens on cp · tp, experts on ep, the batch on micro-batches of
    # replicas), fewer micro-batches than stages, a tensor axis that leaves the node, or more than 90 %
    # of the memory.
    ### BEGIN SOLUTION
    if model.heads % plan.tp:
        return f"{model.heads} heads on tp {plan.tp}"
    if model.layers % plan.pp:
        return f"{model.layers} layers on pp {plan.pp}"
    if model.sequence % (plan.cp * plan.tp):
        return f"{model.sequence} tokens on cp {plan.cp} and tp {plan.tp}"
    if model.experts and model.experts % plan.ep:
        return f"{model.experts} experts on ep {plan.ep}"
    if plan.batch % (plan.replicas * plan.micro_batch):
        return f"a batch of {plan.batch} on {plan.replicas} replicas, {plan.micro_batch} at a time"
    if plan.micro_batches < plan.pp:
        return f"{plan.micro_batches} micro-batches for {plan.pp} stages"
    if plan.tp > machine.node:
        return f"tp {plan.tp} leaves the node"
    needed = most_memory(model, plan)
    if needed > 0.9 * machine.memory:
        return f"{needed / 1e9:.0f} GB on a GPU of {machine.memory / 1e9:.0f}"
    return ""
    ### END SOLUTION


def best_plan(model: Model, gpus: int, batch: int, machine: Machine) -> Plan | None:
    """The fastest of the feasible `candidates`; None if there is none."""
    # TODO 4, again: choose.
    ### BEGIN SOLUTION
    good = [plan for plan in candidates(model, gpus, batch) if not why_not(model, plan, machine)]
    return min(good, key=lambda plan: sum(step_seconds(model, plan, machine).values()), default=None)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_4", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("10_strategy/4")

# %% [markdown]
# Four cases. **Predict** the axes of each: a small model on 4 GPUs; one that does not fit on a GPU; a long sequence; a
# mixture of experts.


# %%
def spoken_plan(plan: Plan) -> str:
    """The axes that are longer than 1, and how the plan runs."""
    axes = [
        f"{axis} {size}"
        for axis in ("dp", "shard", "ep", "cp", "tp", "pp")
        if (size := getattr(plan, axis)) > 1
    ]
    recomputed = ", recomputed" if plan.recompute == "full" else ""
    return f"{' × '.join(axes) or 'one GPU'}; {plan.micro_batch} at a time{recomputed}"


CASES = {
    "a small model": (Model(768, 12, 12, 32000, 1024), 4, 64),
    "one that does not fit": (SEVEN, 8, 64),
    "a long sequence": (Model(2048, 24, 16, 32000, 131072), 16, 2),
    "a mixture of experts": (Model(2048, 12, 16, 32000, 2048, experts=32, active=2), 16, 256),
}


def show_cases() -> None:
    for name, (model, gpus, batch) in CASES.items():
        plan = best_plan(model, gpus, batch, CLUSTER)
        seconds, needed = sum(step_seconds(model, plan, CLUSTER).values()), most_memory(model, plan)
        print(f"{name}, {gpus} GPUs: {spoken_plan(plan)}; {seconds:.2f} s a step, {needed / 1e9:.0f} GB")


plots.Later(show_cases)  # called when the page shows it, not on each rank of each check

# %% [markdown]
# The ALCF's course puts the choice in one sentence: *a simple model: data parallel; a large language model:
# everything.* Is that so? Let your choice answer, for models of 0.1 to 500 billion parameters on 512 GPUs.
# **Predict** the size from which the best plan has a pipeline.

# %%
FAMILY = [
    Model(768, 12, 12, 32000, 2048), Model(2048, 24, 16, 32000, 2048), SEVEN,
    Model(6144, 48, 48, 32000, 2048), Model(8192, 80, 64, 32000, 2048),
    Model(12288, 96, 96, 32000, 2048), Model(16384, 160, 128, 32000, 2048),
]  # fmt: skip


def axes_of(plan: Plan) -> set[str]:
    """The axes that are longer than 1; both kinds of data parallel are one."""
    names = {"dp": "data", "shard": "data", "cp": "context", "tp": "tensor", "pp": "pipeline"}
    return {name for axis, name in names.items() if getattr(plan, axis) > 1}


def show_family() -> plots.Picture:
    chosen = {}
    for model in FAMILY:
        billions = (model.layers * 12 * model.hidden**2 + 2 * model.vocabulary * model.hidden) / 1e9
        chosen[billions] = best_plan(model, 512, 1024, CLUSTER)
        plan = chosen[billions]
        print(f"{billions:6.1f} billion: {spoken_plan(plan) if plan else 'does not fit'}")
    simple, *_, large = (plan for billions, plan in chosen.items() if plan and billions < 200)
    print("a simple model: data parallel:", axes_of(simple) == {"data"})
    print("a large language model: everything:", axes_of(large) >= {"data", "tensor", "pipeline"})
    return plots.axes(chosen)


plots.Later(show_family)

# %% [markdown]
# ## When to stop adding GPUs
#
# `00_one_device` found that point from measurements. Here you find it before you measure, from the network and from the
# data.
#
# **From the network.** For each of Ψ parameters, FSDP gathers a weight twice, in 2 bytes, and reduces a gradient in 4:
# $8\Psi$ bytes, in each micro-batch. DDP all-reduces gradients in 4 bytes: $2 \cdot 4\Psi$, as much, but once a step.
# FSDP in float32 sends $12\Psi$. Meanwhile each GPU computes $6\Psi$ FLOPs for each of its tokens. Ψ cancels: whether
# the network keeps up depends on the **tokens of a GPU** alone. With a fixed batch, more GPUs mean fewer tokens on
# each.
#
# **From the data.** Beyond the *critical batch*, larger batches bring little
# ([arXiv:1812.06162](https://arxiv.org/abs/1812.06162), section 2.2). With batches of $B$, the same loss takes
# $S = S_\text{min} (1 + B_\text{crit}/B)$ steps: at $B_\text{crit}$, twice the minimum.


# %% nbgrader={"grade": false, "grade_id": "todo_5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def needed_bandwidth(tokens: float, speed: float, scheme: str) -> float:
    """Bytes a second that each of many GPUs must send so that communication takes as long as computing.

    ``tokens`` is a GPU's tokens in a step, ``speed`` its FLOPs a second, ``scheme`` "ddp", "fsdp" or
    "fsdp float32".
    """
    # TODO 5: Find when to stop adding GPUs. First, what network do they need? Attention's scores are
    # left out.
    ### BEGIN SOLUTION
    return {"ddp": 8, "fsdp": 8, "fsdp float32": 12}[scheme] / 6 * speed / tokens
    ### END SOLUTION


def overtaken_at(batch: float, scheme: str, machine: Machine) -> int:
    """The fewest GPUs on which communication takes longer than computing, for batches of this many
    tokens in all.

    For few GPUs the ring's factor (N - 1)/N matters. GPUs of one node use the links inside it; more GPUs
    use those between nodes, with an adapter for each GPU. Latency is left out.
    """
    # TODO 5, again: strong scaling. Where is the crossing? One GPU sends nothing.
    ### BEGIN SOLUTION
    speed = machine.peak * machine.device_share
    gpus = 2
    while True:
        cable = machine.inside if gpus <= machine.node else machine.between
        needed = needed_bandwidth(batch / gpus, speed, scheme) * (gpus - 1) / gpus
        if needed > cable.bandwidth * machine.link_share:
            return gpus
        gpus += 1
    ### END SOLUTION


def samples_needed(batch: float, critical: float, fewest_steps: float) -> float:
    """Samples until the same loss is reached, with this batch."""
    # TODO 5, again: weak scaling. What does a larger batch cost?
    ### BEGIN SOLUTION
    return batch * fewest_steps * (1 + critical / batch)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_5", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("10_strategy/5")

# %% [markdown]
# What network does FSDP need on our cluster, and on how many GPUs is a batch of four million tokens too small?

# %%
speed = CLUSTER.peak * CLUSTER.device_share
for tokens in (1024, 4096, 16384):
    needed = needed_bandwidth(tokens, speed, "fsdp") / 1e9
    print(f"FSDP with {tokens:6,} tokens per GPU: {needed:5.1f} GB/s per GPU")
million = 4e6
for scheme in ("fsdp", "fsdp float32"):
    gpus = overtaken_at(million, scheme, CLUSTER)
    print(
        f"{scheme}: with batches of 4 million tokens,"
        f" communication takes longer than computing on {gpus} GPUs"
    )

# %% [markdown]
# So **FSDP needs a fast network**: with few tokens on each GPU, tens of GB/s from every GPU of a node at once. Without
# it, shard within a node and replicate across nodes (`--sharding hybrid` in `fsdp_training`), let a pipeline cross
# nodes, or give each GPU more tokens.
#
# The best plan at every size, with a fixed batch and with a batch that grows:


# %%
def efficiency(seconds: dict[int, float], scaling: str) -> dict[int, float]:
    """The efficiency for each number of GPUs, relative to the fewest.
    ``scaling`` is "strong" or "weak".
    """
    fewest = min(seconds)
    work = {gpus: fewest / gpus if scaling == "strong" else 1 for gpus in seconds}
    return {gpus: work[gpus] * seconds[fewest] / took for gpus, took in seconds.items()}


def show_scaling() -> plots.Picture:
    strong, weak = {}, {}
    for gpus in (8, 16, 32, 64, 128, 256):
        strong[gpus] = step_seconds(SEVEN, best_plan(SEVEN, gpus, 256, CLUSTER), CLUSTER)
        weak[gpus] = step_seconds(SEVEN, best_plan(SEVEN, gpus, 4 * gpus, CLUSTER), CLUSTER)
    runs = {"strong scaling: the same batch": strong, "weak scaling: 4 sequences a GPU": weak}
    return plots.scaling(runs, efficiency)


plots.Later(show_scaling)

# %% [markdown]
# [Who did it first](../docs/frameworks.md) says which framework introduced which axis, and which has all of them today.

# %% [markdown]
# ## The planner
#
# Your formulas come within 20 % of the course's planner here. The planner's, in `utils/costs`, count more (norms, other
# precisions, SwiGLU, grouped heads, schedules, stages of ZeRO), and are tested against some 320 published runs. On the
# command line:
#
# ```bash
# ./workbook plan --model 7b --gpus 64 --machine jureca
# ```
#
# and here, with sliders. (Without widgets, there is a table.) Its best plan may differ from your `best_plan`, at nearly
# the same time. Where the times differ, find out which part does.

# %%
plots.planner()

# %% [markdown]
# ## hybrid_training
#
# Next, the script: `hybrid_training` does all of this with PyTorch's own pieces, on the course's model, with `--cp` and
# with `--ep`, too.
#
# | here and in `09_mesh` | there |
# |---|---|
# | `make_mesh` | `make_mesh`: `--pp --dp --shard --cp --tp` give one `init_device_mesh`, the pipeline outermost, the tensor axis innermost |
# | `data_place`, `make_sampler` | `my_share`, `make_samplers` |
# | `Piece` | `parallelize`: first `cut`, this rank's stages; then `split`, its part of their layers (DTensor); then `shard` (FSDP along shard, copies along dp) |
# | `forward_backward` | a schedule of `torch.distributed.pipelining`, chosen by `--schedule` |
# | `sync_gradients` | FSDP averages along dp and shard, DTensor sums the cut parameters along tp, `add_up_norms` the whole ones; the model is untied, so nothing is summed along pp |
# | `gradient_norm` | `clip_gradients`: DTensor over shards and parts, the script over stages |
# | `memory`, `step_seconds` | the plan's prediction, next to the measurement, in its report |
#
# One difference from your formula: in a pipeline, it keeps a block's gathered weights until the step's last backward
# pass. It sends less but holds more. With how many micro-batches does that begin to pay?

# %% [markdown]
# ## Recap
#
# - Each axis has its price: `dp` memory for copies, `shard` gathering, `tp` waiting in every layer, `cp` keys and
#   values, `ep` two exchanges a layer, `pp` a bubble. Together they cost complexity.
# - Four questions decide: how large is the model, how many GPUs are there, how fast is the network, and what is already
#   implemented?
# - It fits: `dp`. It does not: `shard`, as long as each GPU has thousands of tokens. Layers too wide or too few tokens:
#   `tp`, within a node. More nodes than the network can feed: `pp` across them. Sequences too long: `cp`. Experts:
#   `ep`.
# - Before another GPU: is the first one busy? Before another axis: do recomputing or a smaller micro-batch make it fit?
# - Whatever the plan, the parallel run is the serial run: its losses, its gradients, its norm.
#
# Papers: mixed precision and ZeRO, [1910.02054](https://arxiv.org/abs/1910.02054); activations,
# [2205.05198](https://arxiv.org/abs/2205.05198); 3-D parallelism at scale,
# [2104.04473](https://arxiv.org/abs/2104.04473); the critical batch, [1812.06162](https://arxiv.org/abs/1812.06162).
#
# Next: `hybrid_training`. (`resilient_training` has shown how to keep such a run alive for days.)
