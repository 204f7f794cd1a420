"""Other answers to TODOs 1 to 3 of 10_strategy."""

from grader.kit import Answer

WRONG = [
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
        2, "gradients in two bytes", swap=("2 * gathers + 4 * reductions", "2 * (gathers + reductions)"), says='"shard"'
    ),
    Answer(
        2,
        "gradients of copies in two bytes",
        swap=("4 * 2 * (ring(plan.dp", "2 * 2 * (ring(plan.dp"),
        says="gradients of dp in 2 bytes",
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
    Answer(3, "members rounded up", swap=("max(1, machine.node // stride)", "-(-machine.node // stride)")),
    Answer(
        2,
        "a token once to each rank",
        swap=("ring(ep, model.active * numbers / t)", "ring(ep, min(model.active, ep) * numbers / t)"),
    ),
]


RIGHT = [
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
]
