"""Other answers to the TODOs of 10_strategy."""

from grader.kit import Answer

# The region of TODO 5 that each function has.
STOP = ("needed_bandwidth", "overtaken_at", "samples_needed")


def fifth(**bodies: str) -> list[str | None]:
    """The regions of TODO 5, these ones changed."""
    return [bodies.get(name) for name in STOP]


WRONG = [
    Answer(
        4,
        "remembered without the machine",
        swap=(
            "return min(good, key=lambda plan: sum(step_seconds(model, plan, machine).values()), default=None)",
            "known = best_plan.__dict__.setdefault('known', {})\n"
            "if (model, gpus, batch) not in known:\n"
            "    known[model, gpus, batch] = min(\n"
            "        good, key=lambda plan: sum(step_seconds(model, plan, machine).values()), default=None\n"
            "    )\n"
            "return known[model, gpus, batch]",
        ),
        says="but with 20 GB",
    ),
    Answer(
        3,
        "shards arrive in the bubble",
        swap=('max(0.0, took["shard"] - passing)', 'max(0.0, took["shard"] - passing - found["bubble"])'),
        says='"data" is wrong',
    ),
    Answer(
        3,
        "gradients are hidden by the bubble",
        swap=('max(0.0, took["dp"] - last)', 'max(0.0, took["dp"] - last - found["bubble"])'),
        says='"data" is wrong',
    ),
    Answer(
        4,
        "one expert may be left over",
        swap=("if model.experts and model.experts % plan.ep:", "if model.experts and model.experts % plan.ep > 1:"),
        says="experts on ep",
    ),
    Answer(4, "91 % of the memory", swap=("> 0.9 * machine", "> 0.91 * machine"), says="memory"),
    Answer(
        2, "gradients in two bytes", swap=("2 * gathers + 4 * reductions", "2 * (gathers + reductions)"), says='"shard"'
    ),
    Answer(
        2, "gradients of copies in two bytes", swap=('"dp": (4 * 2', '"dp": (2 * 2'), says="gradients of dp in 2 bytes"
    ),
    Answer(
        2,
        "reduced in every micro-batch of a pipeline",
        swap=("1 if plan.pp > 1 else m", "m"),
        says="though there is a pipeline",
    ),
    Answer(3, "every rank pays for the slow link", swap=("members * machine.between", "machine.between"), says="link("),
    Answer(3, "a pipeline with several adapters", swap=('1 if axis in ("pp", "ep") else max', "max"), says="link("),
    Answer(3, "faster between than inside", swap=("min(machine.inside.bandwidth, ", "max(0.0, "), says="link("),
    Answer(
        3,
        "copies hide beside the whole step",
        swap=('max(0.0, took["dp"] - last)', 'max(0.0, took["dp"] - computing)'),
        says='"data" is wrong',
    ),
    Answer(
        3,
        "what is gathered hides beside the computing alone",
        swap=('took["shard"] - passing', 'took["shard"] - computing'),
        says='"data" is wrong',
    ),
    Answer(
        3,
        "a backward pass of one length",
        swap=('(3 / 4 if plan.recompute == "full" else 2 / 3)', "2 / 3"),
        says='"data" is wrong',
    ),
    Answer(4, "memory to the last byte", swap=("0.9 * machine.memory", "machine.memory"), says="memory"),
    Answer(5, "any batch is as good", fifth(samples_needed="return fewest_steps * critical"), says="samples_needed"),
    Answer(5, "steps", fifth(samples_needed="return fewest_steps * (1 + critical / batch)"), says="steps, not samples"),
    Answer(
        1, "three matrices of attention", swap=("dense = blocks * 4 *", "dense = blocks * 3 *"), says="rank_numbers"
    ),
    Answer(
        1,
        "tables on every stage",
        swap=("(stage == 0) + (stage == plan.pp - 1)", "2"),
        says="both tables are on every stage",
    ),
    Answer(
        1,
        "one table with one stage",
        swap=("(stage == 0) + (stage == plan.pp - 1)", "int(stage in (0, plan.pp - 1))"),
        says="with one stage a table is missing",
    ),
    Answer(
        1,
        "all stages but the last two keep all",
        swap=("min(plan.micro_batches, plan.pp - stage)", "min(plan.micro_batches, max(1, plan.pp - 2 * stage))"),
        says="is wrong",
    ),
    Answer(1, "all experts everywhere", swap=(" / plan.ep", ""), says="rank_numbers"),
    Answer(1, "no MLP without experts", swap=("max(1, model.experts)", "model.experts"), says="rank_numbers"),
    Answer(
        1,
        "sharded before they are asked for",
        swap=("dense / plan.tp, mlps / plan.tp", "dense / plan.tp / plan.shard, mlps / plan.tp / plan.shard"),
        says="rank_numbers",
    ),
    Answer(
        1,
        "activations that no axis cuts",
        swap=("/ (plan.cp * plan.tp) * model.hidden", "* model.hidden"),
        says="activation_bytes",
    ),
    Answer(
        1,
        "all micro-batches, as in GPipe",
        swap=("min(plan.micro_batches, plan.pp - stage)", "plan.micro_batches"),
        says="as if all micro-batches were kept",
    ),
    Answer(
        1,
        "one micro-batch alone",
        swap=("min(plan.micro_batches, plan.pp - stage)", "1"),
        says="as if one micro-batch were kept",
    ),
    Answer(1, "stages counted from the end", swap=("plan.pp - stage)", "stage + 1)"), says="activation_bytes"),
    Answer(
        1,
        "the block at hand is forgotten",
        swap=("alive * 2 * numbers + block if", "alive * 2 * numbers if"),
        says="without the block at hand",
    ),
    Answer(1, "one MLP a token", swap=("(16 + 16 * model.active)", "34"), says="activation_bytes"),
    Answer(
        1, "state is not sharded", swap=('"state": 12 * held', '"state": 12 * (dense + mlps)'), says='"state" is wrong'
    ),
    Answer(1, "experts sharded like the rest", swap=("mlps / shards", "mlps / plan.sharers"), says="memory"),
    Answer(
        1, "nothing is gathered", swap=('"gathered": (2 + 2) * gathered', '"gathered": 0.0'), says='"gathered" is wrong'
    ),
    Answer(
        1,
        "weights are gathered, gradients not",
        swap=("(2 + 2) * gathered", "2 * gathered"),
        says='"gathered" is wrong',
    ),
    Answer(1, "gathered without sharding", swap=("if plan.sharers > 1:", "if True:"), says='"gathered" is wrong'),
    Answer(
        1,
        "the whole model is gathered",
        swap=("gathered += attention / blocks + (dense - attention)", "gathered += dense"),
        says='"gathered" is wrong',
    ),
    Answer(1, "float32", swap=('"weights": 2 * held', '"weights": 4 * held'), says='"weights" is wrong'),
    Answer(
        1,
        "the last stage is the fullest",
        swap=("for stage in range(plan.pp))", "for stage in [plan.pp - 1])"),
        says="most_memory",
    ),
    Answer(1, "the sum of all stages", swap=("return max(sum(", "return sum(sum("), says="most_memory"),
    Answer(
        2,
        "the embedding multiplies, too",
        swap=("+ model.vocabulary * h\n", "+ 2 * model.vocabulary * h\n"),
        says="the embedding table is counted",
    ),
    Answer(
        2, "no scores", swap=(" + 12 * model.layers * h * model.sequence", ""), says="attention's scores are missing"
    ),
    Answer(
        2,
        "all experts compute",
        swap=("8 * h**2 * model.active", "8 * h**2 * max(1, model.experts)"),
        says="all experts compute",
    ),
    Answer(
        2, "rings send all they have", swap=("(length - 1) / length * numbers", "(length > 1) * numbers"), says="sent("
    ),
    Answer(2, "forward only", swap=("round(8 * again)", "round(4 * again)"), says='"tp" is wrong'),
    Answer(
        2,
        "recomputing sends nothing",
        swap=('1.5 if plan.recompute == "full" else 1', "1"),
        says="as if nothing were recomputed",
    ),
    Answer(
        2, "always recomputed", swap=('1.5 if plan.recompute == "full" else 1', "1.5"), says="as if all were recomputed"
    ),
    Answer(
        2,
        "one micro-batch",
        swap=("rings = round(8 * again) * blocks * m", "rings = round(8 * again) * blocks"),
        says='"tp" is wrong',
    ),
    Answer(
        2, "keys without values", swap=("(cp - 1) * 2 * numbers / t", "(cp - 1) * numbers / t"), says='"cp" is wrong'
    ),
    Answer(
        2,
        "weights are gathered once a step",
        swap=("gathers, reductions = 2 * m", "gathers, reductions = 2"),
        says='"shard" is wrong',
    ),
    Answer(
        2,
        "ranks of the context are copies, too",
        swap=("ring(plan.dp, dense / plan.sharers)", "ring(plan.dp * cp, dense / plan.sharers)"),
        says='"dp" is wrong',
    ),
    Answer(
        2,
        "the context's ranks shard nothing",
        swap=("ring(plan.sharers, dense)", "ring(plan.shard, dense)"),
        says='"shard" is wrong',
    ),
    Answer(
        1,
        "the context's ranks hold copies",
        swap=("dense / plan.sharers + mlps", "dense / plan.shard + mlps"),
        says='"weights" is wrong',
    ),
    Answer(3, "shards beside those of a context", swap=('if axis in ("shard", "ep")', 'if axis == "ep"'), says="link("),
    Answer(
        2,
        "copies average what others hold",
        swap=("dense / plan.sharers) + ring(replicas", "dense) + ring(replicas"),
        says='"dp" is wrong',
    ),
    Answer(3, "every axis within a node", swap=("if stride * length <= machine.node:", "if True:"), says="link("),
    Answer(
        3,
        "only the axis's own length",
        swap=("if stride * length <= machine.node:", "if length <= machine.node:"),
        says="link(",
    ),
    Answer(
        3,
        "from the outside",
        swap=('("tp", "cp", "shard", "dp", "pp")', '("pp", "dp", "shard", "cp", "tp")'),
        says="link(",
    ),
    Answer(
        3,
        "experts at the outermost place",
        swap=('("tp",) if axis in ("shard", "ep") else', '("tp",) if axis == "shard" else inward if axis == "ep" else'),
        says="link(",
    ),
    Answer(3, "peak speed", swap=(" * machine.device_share)", ")"), says="without device_share"),
    Answer(
        3,
        "links at their data sheet's speed",
        swap=("(cable.bandwidth * machine.link_share)", "cable.bandwidth"),
        says="without link_share",
    ),
    Answer(3, "no latency", swap=(" + messages * cable.latency", ""), says="without latency"),
    Answer(
        3,
        "recomputing costs nothing",
        swap=('4 / 3 if plan.recompute == "full" else 1', "1"),
        says='"computing" is wrong',
    ),
    Answer(
        3,
        "the bubble's share of the whole",
        swap=("(plan.pp - 1) / plan.micro_batches", "(plan.pp - 1) / (plan.micro_batches + plan.pp - 1)"),
        says='"bubble" is wrong',
    ),
    Answer(
        3,
        "nothing overlaps",
        swap=('max(0.0, took["shard"] - passing) + max(0.0, took["dp"] - last)', 'took["shard"] + took["dp"]'),
        says='"data" is wrong',
    ),
    Answer(
        3,
        "negative time",
        swap=(
            'max(0.0, took["shard"] - passing) + max(0.0, took["dp"] - last)',
            'took["shard"] - passing + took["dp"] - last',
        ),
        says='"data" is wrong',
    ),
    Answer(
        3,
        "keys hide beside everything",
        swap=('took["cp"] - computing * scores', 'took["cp"] - computing'),
        says='"cp" is wrong',
    ),
    Answer(4, "nothing is rejected", ["return ''", None], says="accepts a plan that is not possible"),
    Answer(4, "everything is rejected", ["return 'no'", None], says="rejects"),
    Answer(4, "memory is not looked at", swap=("if needed > 0.9 * machine.memory:", "if False:"), says="memory"),
    Answer(4, "heads may be cut", swap=("if model.heads % plan.tp:", "if False:"), says="heads on tp"),
    Answer(4, "layers may be cut", swap=("if model.layers % plan.pp:", "if False:"), says="layers on pp"),
    Answer(
        4,
        "tokens on cp alone",
        swap=("if model.sequence % (plan.cp * plan.tp):", "if model.sequence % plan.cp:"),
        says="tokens on cp and tp",
    ),
    Answer(
        4,
        "experts on any number",
        swap=("if model.experts and model.experts % plan.ep:", "if False:"),
        says="experts on ep",
    ),
    Answer(
        4,
        "the batch on replicas alone",
        swap=("plan.batch % (plan.replicas * plan.micro_batch)", "plan.batch % plan.replicas"),
        says="accepts a plan that is not possible",
    ),
    Answer(
        4,
        "fewer micro-batches than stages",
        swap=("if plan.micro_batches < plan.pp:", "if False:"),
        says="fewer micro-batches",
    ),
    Answer(
        4,
        "as many micro-batches as stages are too few",
        swap=("plan.micro_batches < plan.pp", "plan.pp > 1 and plan.micro_batches <= plan.pp"),
        says="rejects",
    ),
    Answer(4, "tensor parallel across nodes", swap=("if plan.tp > machine.node:", "if False:"), says="tp in a node"),
    Answer(
        4,
        "the memory of the first stage without activations",
        swap=("needed = most_memory(model, plan)", "needed = 16 * sum(rank_numbers(model, plan, 0)) / plan.shard"),
        says="memory",
    ),
    Answer(
        4,
        "the first that fits",
        [None, "return next((p for p in candidates(model, gpus, batch) if not why_not(model, p, machine)), None)"],
        says="best_plan",
    ),
    Answer(4, "the slowest", swap=("min(good", "max(good"), says="not the fastest"),
    Answer(
        4,
        "the one that needs the least memory",
        swap=("sum(step_seconds(model, plan, machine).values()), default", "most_memory(model, plan), default"),
        says="not the fastest",
    ),
    Answer(4, "the fastest, fitting or not", swap=(" if not why_not(model, plan, machine)]", "]")),
    Answer(
        4,
        "only computing counts",
        swap=(
            "sum(step_seconds(model, plan, machine).values()), default",
            'step_seconds(model, plan, machine)["computing"], default',
        ),
        says="not the fastest",
    ),
    Answer(4, "no plan is a crash", swap=(", default=None)", ")")),
    Answer(4, "always data parallel", [None, "return Plan(batch, dp=gpus)"], says="best_plan"),
    Answer(
        5,
        "an all-reduce either way",
        swap=('{"ddp": 8, "fsdp": 8, "fsdp float32": 12}[scheme]', "8"),
        says="needed_bandwidth",
    ),
    Answer(5, "4 bytes", swap=("/ 6 * speed", "/ 3 * speed"), says="needed_bandwidth"),
    Answer(5, "the forward pass alone", swap=("/ 6 * speed", "/ 2 * speed"), says="needed_bandwidth"),
    Answer(5, "more tokens need more", swap=("* speed / tokens", "* speed * tokens"), says="needed_bandwidth"),
    Answer(
        5,
        "always between nodes",
        swap=("machine.inside if gpus <= machine.node else machine.between", "machine.between"),
        says="overtaken_at",
    ),
    Answer(5, "tokens are not shared", swap=("needed_bandwidth(batch / gpus, speed", "needed_bandwidth(batch, speed")),
    Answer(5, "without the ring's factor", swap=(" * (gpus - 1) / gpus\n", "\n"), says="overtaken_at"),
    Answer(
        5, "the last that keeps up", swap=("return gpus\n", "return gpus - 1\n"), says="the last number that keeps up"
    ),
    Answer(
        5,
        "links at their data sheet's speed",
        swap=("cable.bandwidth * machine.link_share:", "cable.bandwidth:"),
        says="without link_share",
    ),
    Answer(
        5,
        "GPUs at their peak",
        swap=("speed = machine.peak * machine.device_share", "speed = machine.peak"),
        says="without device_share",
    ),
    Answer(5, "by doubling", swap=("gpus += 1", "gpus *= 2"), says="overtaken_at"),
    Answer(4, "just 90 % is too much", swap=("needed > 0.9", "needed >= 0.9"), says="rejects a plan that is possible"),
    Answer(5, "as long is longer", swap=("needed > cable", "needed >= cable"), says="as fast as four GPUs need"),
    Answer(
        4,
        "recomputed only where nothing fits without",
        swap=(
            "return min(good,",
            "good = [plan for plan in good if plan.recompute == 'none'] or good\nreturn min(good,",
        ),
        says="is not the fastest",
    ),
    Answer(3, "members rounded up", swap=("max(1, machine.node // stride)", "-(-machine.node // stride)")),
    Answer(4, "heads on tp and cp", swap=("if model.heads % plan.tp:", "if model.heads % (plan.tp * plan.cp):")),
    Answer(4, "multiples of the stages", swap=("if plan.micro_batches < plan.pp:", "if plan.micro_batches % plan.pp:")),
    Answer(5, "up to 1024 GPUs", swap=("while True:", "while gpus <= 1024:")),
    Answer(
        2,
        "a token once to each rank",
        swap=("ring(ep, model.active * numbers / t)", "ring(ep, min(model.active, ep) * numbers / t)"),
    ),
    Answer(
        4,
        "words must divide, too",
        swap=(
            "if model.layers % plan.pp:",
            "if model.vocabulary % plan.tp:\n    return 'words'\nif model.layers % plan.pp:",
        ),
    ),
    Answer(
        4,
        "tokens are looked at with cp alone",
        swap=("if model.sequence % (plan.cp * plan.tp):", "if plan.cp > 1 and model.sequence % (plan.cp * plan.tp):"),
    ),
    Answer(
        4,
        "remembered by the machine's name",
        swap=(
            """good = [plan for plan in candidates(model, gpus, batch) if not why_not(model, plan, machine)]
return min(good, key=lambda plan: sum(step_seconds(model, plan, machine).values()), default=None)""",
            """known = best_plan.__dict__.setdefault("known", {})  # the cells below ask for the same plans again
job = (model, gpus, batch, machine.name)
if job not in known:
    good = [plan for plan in candidates(model, gpus, batch) if not why_not(model, plan, machine)]
    known[job] = min(good, key=lambda plan: sum(step_seconds(model, plan, machine).values()), default=None)
return known[job]""",
        ),
        says="chooses a plan that is not possible",
    ),
    Answer(
        5,
        "bisected from above",
        swap=(
            """gpus = 2
while True:
    cable = machine.inside if gpus <= machine.node else machine.between
    needed = needed_bandwidth(batch / gpus, speed, scheme) * (gpus - 1) / gpus
    if needed > cable.bandwidth * machine.link_share:
        return gpus
    gpus += 1""",
            """
def overtaken(gpus: int) -> bool:
    cable = machine.inside if gpus <= machine.node else machine.between
    needed = needed_bandwidth(batch / gpus, speed, scheme) * (gpus - 1) / gpus
    return needed > cable.bandwidth * machine.link_share

few, many = 1, 2 * machine.node
while not overtaken(many):
    few, many = many, 2 * many
while many - few > 1:
    middle = (few + many) // 2
    few, many = (few, middle) if overtaken(middle) else (middle, many)
return many""",
        ),
        says="slow links in a node of 8",
    ),
]
RIGHT = [
    Answer(
        5,
        "bytes a parameter by name",
        fifth(
            needed_bandwidth="bytes_a_parameter = {'ddp': 4 + 4, 'fsdp': 2 + 2 + 4, 'fsdp float32': 3 * 4}[scheme]\nreturn bytes_a_parameter / (6 * tokens / speed)"
        ),
    ),
    Answer(5, "multiplied out", fifth(samples_needed="return fewest_steps * (batch + critical)")),
    Answer(
        1,
        "written otherwise",
        [
            """
            h, L = model.hidden, model.layers // plan.pp
            dense, mlps = 4 * h * h * L, 8 * h * h * L * (model.experts or 1)
            for end in (0, plan.pp - 1):
                if stage == end:
                    dense += model.vocabulary * h
            return [dense / plan.tp, mlps / (plan.tp * plan.ep)]
            """,
            None,
            None,
            None,
        ],
    ),
    Answer(
        1,
        "the first stage, with a proof",
        [None, None, None, "return sum(memory(model, plan, 0).values())  # table as head, and the most activations"],
    ),
    Answer(
        1,
        "the fullest stage by a loop",
        [
            None,
            None,
            None,
            "most = 0\nfor stage in range(plan.pp):\n    most = max(most, sum(memory(model, plan, stage).values()))\nreturn most",
        ],
    ),
    Answer(
        3,
        "one member where a line has one in a node",
        swap=(
            'members = 1 if axis in ("pp", "ep") else max(1, machine.node // stride)',
            'members = 1 if axis in ("pp", "ep") or stride > machine.node else machine.node // stride',
        ),
    ),
    Answer(
        2,
        "lists in place of tuples",
        swap=(
            "(2 * 2 * m * numbers, 2 * m) if plan.pp > 1 else (0.0, 0)",
            "[4 * m * numbers, 2 * m] if plan.pp != 1 else [0, 0]",
        ),
    ),
    Answer(
        3,
        "another order of sums",
        swap=(
            'max(0.0, took["shard"] - passing) + max(0.0, took["dp"] - last)',
            'max(0.0, took["dp"] - last) + max(0.0, took["shard"] - passing)',
        ),
    ),
    Answer(
        4,
        "reasons in one word, the best by a loop",
        [
            "bad = model.heads % plan.tp or model.layers % plan.pp or model.sequence % (plan.cp * plan.tp)\nbad = bad or (model.experts and model.experts % plan.ep) or plan.batch % (plan.replicas * plan.micro_batch)\nbad = bad or plan.micro_batches < plan.pp or plan.tp > machine.node\nreturn 'impossible' if bad or most_memory(model, plan) > 0.9 * machine.memory else ''",
            "best, least = None, math.inf\nfor plan in candidates(model, gpus, batch):\n    if not why_not(model, plan, machine):\n        seconds = sum(step_seconds(model, plan, machine).values())\n        if seconds < least:\n            best, least = plan, seconds\nreturn best",
        ],
    ),
    Answer(
        4,
        "of equally fast ones the last",
        swap=(
            "for plan in candidates(model, gpus, batch) if",
            "for plan in reversed(candidates(model, gpus, batch)) if",
        ),
    ),
]
