"""Other answers to the TODOs of 09_strategy."""

from grader.kit import Answer

# The region of TODO 9 that each function has, and how many there are.
STOP = ("efficiency", "serial_share", "most_gpus", "needed_bandwidth", "overtaken_at", "samples_needed")


def ninth(**bodies: str) -> list[str | None]:
    """The regions of TODO 9, these ones changed."""
    return [bodies.get(name) for name in STOP]


WRONG = [
    Answer(
        1,
        "the first axis changes fastest",
        swap=("zip(order, shape, strict=True)", "zip(order[::-1], shape[::-1], strict=True)"),
        says="bytes_between_nodes",
    ),
    Answer(
        1,
        "the pipeline is a ring",
        swap=('axis == "pp" and place == length - 1', "False"),
        says="along pp the last stage sends on to the first",
    ),
    Answer(
        1,
        "a ring that nothing comes back on",
        swap=(('axis == "pp" and place == length - 1', "False"), ('(2 if axis == "pp" else 1)', "1")),
        says="pp is taken for a ring",
    ),
    Answer(
        1, "activations, but no gradients", swap=('(2 if axis == "pp" else 1)', "1"), says="along pp nothing comes back"
    ),
    Answer(
        1,
        "rings that do not close",
        swap=('axis == "pp" and place == length - 1', "place == length - 1"),
        says="rings are not closed",
    ),
    Answer(
        1,
        "counted once, and not for all ranks",
        swap=("for rank in range(math.prod(shape)):", "for rank in range(per_node):"),
        says="bytes_between_nodes",
    ),
    Answer(
        1,
        "all that is sent, wherever it goes",
        swap=("if following // per_node != rank // per_node:", "if following != rank:"),
        says="bytes_between_nodes",
    ),
    Answer(1, "as if all lines had two ranks", swap=("(place + 1) % length", "1 - place"), says="bytes_between_nodes"),
    Answer(1, "the worst order", swap=("min(orders", "max(orders"), says="best_order"),
    Answer(1, "as the axes come", [None, "return tuple(sizes)"], says="best_order"),
    Answer(
        1,
        "always the rule",
        [None, "return tuple(axis for axis in ('pp', 'dp', 'shard', 'cp', 'tp') if axis in sizes)"],
        says="best_order",
    ),
    Answer(
        1,
        "who sends most, wherever its line is long",
        [None, "return tuple(sorted(sizes, key=sizes.get))"],
        says="best_order",
    ),
    Answer(
        1,
        "who sends most innermost",
        [None, "return tuple(sorted(sizes, key=lambda axis: sent[axis]))"],
        says="best_order is not the one that sends the fewest bytes",
    ),
    Answer(
        1,
        "whose line sends most innermost",
        [None, "return tuple(sorted(sizes, key=lambda axis: sent[axis] * sizes[axis]))"],
        says="best_order is not the one that sends the fewest bytes",
    ),
    Answer(
        2,
        "as the axes come",
        ["return init_device_mesh('cpu', tuple(sizes.values()), mesh_dim_names=tuple(sizes))", None],
        says="make_mesh",
    ),
    Answer(
        2,
        "names in the best order, sizes as they come",
        swap=("tuple(sizes[axis] for axis in order)", "tuple(sizes.values())"),
        says="make_mesh",
    ),
    Answer(
        2,
        "tensor outermost",
        swap=("order = best_order(sizes, sent, per_node)", "order = best_order(sizes, sent, per_node)[::-1]"),
        says="make_mesh",
    ),
    Answer(
        2,
        "axes of one rank are left out",
        swap=(
            "order = best_order(sizes, sent, per_node)",
            "order = tuple(a for a in best_order(sizes, sent, per_node) if sizes[a] > 1)",
        ),
        says="make_mesh",
    ),
    Answer(
        2,
        "the next rank by number",
        [
            None,
            "stage, stages, rank = mesh.get_local_rank('pp'), mesh['pp'].size(), dist.get_rank()\nreturn (rank - 1 if stage else None), (rank + 1 if stage + 1 < stages else None)",
        ],
        says="stage_neighbours",
    ),
    Answer(
        2,
        "a pipeline is outermost",
        [
            None,
            "stage, stages, rank = mesh.get_local_rank('pp'), mesh['pp'].size(), dist.get_rank()\nstride = dist.get_world_size() // stages\nreturn (rank - stride if stage else None), (rank + stride if stage + 1 < stages else None)",
        ],
        says="stage_neighbours",
    ),
    Answer(
        2,
        "round in a ring",
        swap=("line[stage - 1] if stage > 0 else None", "line[stage - 1]"),
        says="stage_neighbours",
    ),
    Answer(
        2,
        "places, not ranks",
        swap=('dist.get_process_group_ranks(mesh.get_group("pp"))', "list(range(mesh['pp'].size()))"),
        says="stage_neighbours",
    ),
    Answer(2, "after, then before", swap=("return before, after", "return after, before"), says="stage_neighbours"),
    Answer(
        3, "dealt out over the world", ["return dist.get_rank(), dist.get_world_size()", None, None], says="data_place"
    ),
    Answer(3, "ranks that shard read the same", swap=('("dp", "shard")', '("dp",)'), says="data_place"),
    Answer(3, "context ranks read other samples", swap=('("dp", "shard")', '("dp", "shard", "cp")'), says="data_place"),
    Answer(3, "stages read other samples", swap=('("dp", "shard")', '("pp", "dp", "shard")'), says="data_place"),
    Answer(
        3,
        "numbers that collide",
        swap=("number = number * mesh[axis].size() + mesh.get_local_rank(axis)", "number += mesh.get_local_rank(axis)"),
        says="the same number",
    ),
    Answer(
        3,
        "a sampler over the world",
        swap=("DistributedSampler(data, players, number, shuffle=True", "DistributedSampler(data, shuffle=True"),
        says="does not read the samples",
    ),
    Answer(3, "in order", swap=("shuffle=True", "shuffle=False"), says="samples of one process"),
    Answer(3, "the seed dropped", swap=("seed=seed", "seed=0"), says="samples of one process"),
    Answer(3, "filled up", swap=("drop_last=True", "drop_last=False"), says="reads"),
    Answer(3, "each rank a seed of its own", swap=("seed=seed", "seed=seed + number"), says="samples of one process"),
    Answer(
        3, "places from 0 on each rank", swap=("torch.arange(mine.start, mine.stop)", "torch.arange(t)"), says="places"
    ),
    Answer(
        3,
        "places of the words' dtype",
        swap=("torch.arange(mine.start, mine.stop)", "torch.arange(mine.start, mine.stop, dtype=x_BT.dtype)"),
        says="the places of rank 0 have another dtype",
    ),
    Answer(3, "targets whole", swap=("y_BT[:, mine]", "y_BT"), says="targets"),
    Answer(
        3,
        "sequences in place of tokens",
        swap=("return x_BT[:, mine], y_BT[:, mine]", "return x_BT[mine], y_BT[mine]"),
        says="words",
    ),
    Answer(
        3,
        "dealt out by turns",
        swap=(
            "return x_BT[:, mine], y_BT[:, mine], torch.arange(mine.start, mine.stop)",
            "return x_BT[:, part::parts], y_BT[:, part::parts], torch.arange(part, x_BT.shape[1], parts)",
        ),
        says="of rank",
    ),
    Answer(
        3,
        "a row of copies is as long as there are copies",
        swap=("number = number * mesh[axis].size() +", "number = number * players +"),
    ),
    Answer(4, "averaged over all", ["return 'average'", None], says="averaged along cp, where parts add up"),
    Answer(4, "added up over data", swap=('return "average"', 'return "sum"'), says="added up along dp"),
    Answer(
        4,
        "averaged along the context",
        swap=('if axis == "cp":\n    return "sum"', 'if axis == "cp":\n    return "average"'),
        says="0.333 times the right one: averaged along cp",
    ),
    Answer(
        4,
        "norms left alone",
        swap=('"sum" if fact.some and not fact.cut else "leave"', '"leave"'),
        says="left as this rank had it",
    ),
    Answer(
        4,
        "norms averaged along tp",
        swap=(
            '"sum" if fact.some and not fact.cut else "leave"',
            '"average" if fact.some and not fact.cut else "leave"',
        ),
        says="averaged along tp, where parts add up",
    ),
    Answer(
        4,
        "whole gradients added up along tp",
        swap=('"sum" if fact.some and not fact.cut else "leave"', '"leave" if fact.cut else "sum"'),
        says="it counts once for each rank of tp",
    ),
    Answer(
        4,
        "what is cut is added up",
        swap=("fact.some and not fact.cut", "fact.cut or fact.some"),
        says="though each rank has another part",
    ),
    Answer(4, "the tied table left alone", swap=('"sum" if fact.tied else "leave"', '"leave"'), says="table"),
    Answer(
        4,
        "the tied table averaged",
        swap=('return "sum" if fact.tied else "leave"', 'return "average" if fact.tied else "leave"'),
        says="divided by the stages",
    ),
    Answer(
        4,
        "the tied table averaged over those who have it",
        swap=(
            ('return "sum" if fact.tied else "leave"', 'return "average" if fact.tied else "leave"'),
            ("mesh[axis].size()", "dist.get_world_size(group)"),
        ),
        says="averaged over the two ends",
    ),
    Answer(4, "the table right, the doing empty", [None, "return"], says="on rank"),
    Answer(4, "divided by all ranks", swap=("mesh[axis].size()", "dist.get_world_size()"), says="times the right one"),
    Answer(4, "never divided", swap=('if what == "average":', "if False:"), says="times the right one"),
    Answer(
        4,
        "only the first parameter",
        swap=("for name, parameter in parameters.items():", "for name, parameter in list(parameters.items())[:1]:"),
        says="on rank",
    ),
    Answer(
        4,
        "added up twice, halved",
        swap=(
            "dist.all_reduce(parameter.grad, group=group)",
            "dist.all_reduce(parameter.grad, group=group)\n        dist.all_reduce(parameter.grad, group=group)\n        parameter.grad /= dist.get_world_size(group)",
        ),
        says="bytes",
    ),
    Answer(
        4,
        "tied over all stages",
        swap=('ends if axis == "pp" else mesh.get_group(axis)', "mesh.get_group(axis)"),
        says="returned from sync_gradients",
    ),
    Answer(
        4,
        "tied over all stages of a long pipeline",
        swap=(
            'ends if axis == "pp" else mesh.get_group(axis)',
            'ends if axis == "pp" and mesh["pp"].size() < 4 else mesh.get_group(axis)',
        ),
        says="have returned from sync_gradients",
    ),
    Answer(
        4, "what shards is forgotten", swap=('axis in ("dp", "shard")', 'axis == "dp"'), says="added up along shard"
    ),
    Answer(
        5,
        "what the rank holds",
        ["return torch.stack([p.grad.norm() for p in parameters.values()]).norm().item()"],
        says="that is what rank 0 holds",
    ),
    Answer(
        5,
        "over all ranks, copies counted",
        [
            "total = sum(p.grad.double().square().sum() for p in parameters.values())\ntotal = torch.zeros((), dtype=torch.float64) + total\ndist.all_reduce(total)\nreturn total.sqrt().item()"
        ],
        says="squares are added up along dp",
    ),
    Answer(
        5,
        "whole parameters count t times",
        swap=("dist.all_reduce(mine[:1], group", "dist.all_reduce(mine, group"),
        says="what is whole is counted once for each rank of tp",
    ),
    Answer(
        5,
        "squares in place of gradients that are in float64 already",
        swap=(".double().square().sum()", ".double().square_().sum()"),
        says="gradients in float64: changes a gradient",
    ),
    Answer(
        5, "stages not added up", swap=('dist.all_reduce(mine, group=mesh.get_group("pp"))', ""), says="another on rank"
    ),
    Answer(
        5,
        "parts not added up",
        swap=('dist.all_reduce(mine[:1], group=mesh.get_group("tp"))', ""),
        says="another on rank",
    ),
    Answer(
        5,
        "the table counts twice",
        swap=('facts[name].tied and mesh.get_local_rank("pp") > 0', "False"),
        says="the tied table is counted on both ends",
    ),
    Answer(
        5,
        "the table never counts",
        swap=('facts[name].tied and mesh.get_local_rank("pp") > 0', "facts[name].tied"),
        says="the tied table is not counted",
    ),
    Answer(
        5,
        "norms added up",
        swap=("parameter.grad.double().square().sum()", "parameter.grad.double().norm()"),
        says="another on rank",
    ),
    Answer(
        5,
        "norms added up, without a root",
        swap=(
            ("parameter.grad.double().square().sum()", "parameter.grad.double().norm()"),
            ("mine.sum().sqrt().item()", "mine.sum().item()"),
        ),
        says="norms are added up, and not their squares",
    ),
    Answer(
        5,
        "the table and what is whole, wherever they are",
        swap=(
            ('facts[name].tied and mesh.get_local_rank("pp") > 0', "False"),
            ("dist.all_reduce(mine[:1], group", "dist.all_reduce(mine, group"),
        ),
        says="what is whole is counted once for each rank of tp",
    ),
    Answer(
        5,
        "in the gradients' dtype",
        swap=("parameter.grad.double().square().sum()", "parameter.grad.square().sum()"),
        says="bfloat16",
    ),
    Answer(5, "without the root", swap=("mine.sum().sqrt().item()", "mine.sum().item()"), says="that is its square"),
    Answer(
        5,
        "what is used on some tokens adds up",
        swap=("0 if facts[name].cut else 1", "0 if facts[name].cut or facts[name].some else 1"),
        says="another on rank",
    ),
    Answer(
        5,
        "only with parameters of its own kind",
        swap=(
            'dist.all_reduce(mine[:1], group=mesh.get_group("tp"))',
            'if mine[0] > 0:\n    dist.all_reduce(mine[:1], group=mesh.get_group("tp"))\nelse:\n    dist.all_reduce(mine, group=mesh.get_group("tp"))',
        ),
        says="on rank",
    ),
    Answer(
        5,
        "the gradients travel",
        swap=(
            "mine = torch.zeros(2, dtype=torch.float64)",
            "dist.all_reduce(torch.cat([p.grad.double().flatten() for p in parameters.values()] + [torch.zeros(200, dtype=torch.float64)])[:100])\nmine = torch.zeros(2, dtype=torch.float64)",
        ),
        says="bytes",
    ),
    Answer(
        6, "three matrices of attention", swap=("dense = blocks * 4 *", "dense = blocks * 3 *"), says="rank_numbers"
    ),
    Answer(
        6,
        "tables on every stage",
        swap=("(stage == 0) + (stage == plan.pp - 1)", "2"),
        says="both tables are on every stage",
    ),
    Answer(
        6,
        "one table with one stage",
        swap=("(stage == 0) + (stage == plan.pp - 1)", "int(stage in (0, plan.pp - 1))"),
        says="with one stage a table is missing",
    ),
    Answer(6, "all experts everywhere", swap=(" / plan.ep", ""), says="rank_numbers"),
    Answer(6, "no MLP without experts", swap=("max(1, model.experts)", "model.experts"), says="rank_numbers"),
    Answer(
        6,
        "sharded before they are asked for",
        swap=("dense / plan.tp, mlps / plan.tp", "dense / plan.tp / plan.shard, mlps / plan.tp / plan.shard"),
        says="rank_numbers",
    ),
    Answer(
        6,
        "activations that no axis cuts",
        swap=("/ (plan.cp * plan.tp) * model.hidden", "* model.hidden"),
        says="activation_bytes",
    ),
    Answer(
        6,
        "all micro-batches, as in GPipe",
        swap=("min(plan.micro_batches, plan.pp - stage)", "plan.micro_batches"),
        says="as if all micro-batches were kept",
    ),
    Answer(
        6,
        "one micro-batch alone",
        swap=("min(plan.micro_batches, plan.pp - stage)", "1"),
        says="as if one micro-batch were kept",
    ),
    Answer(6, "stages counted from the end", swap=("plan.pp - stage)", "stage + 1)"), says="activation_bytes"),
    Answer(
        6,
        "the block at hand is forgotten",
        swap=("alive * 2 * numbers + block if", "alive * 2 * numbers if"),
        says="without the block at hand",
    ),
    Answer(6, "one MLP a token", swap=("(15 + 19 * model.active)", "34"), says="activation_bytes"),
    Answer(
        6, "state is not sharded", swap=('"state": 12 * held', '"state": 12 * (dense + mlps)'), says='"state" is wrong'
    ),
    Answer(6, "experts sharded like the rest", swap=("mlps / shards", "mlps / plan.shard"), says="memory"),
    Answer(
        6, "nothing is gathered", swap=('"gathered": (2 + 2) * gathered', '"gathered": 0.0'), says='"gathered" is wrong'
    ),
    Answer(
        6,
        "weights are gathered, gradients not",
        swap=("(2 + 2) * gathered", "2 * gathered"),
        says='"gathered" is wrong',
    ),
    Answer(6, "gathered without sharding", swap=("if plan.shard > 1:", "if True:"), says='"gathered" is wrong'),
    Answer(
        6,
        "the whole model is gathered",
        swap=("gathered += attention / blocks + (dense - attention)", "gathered += dense"),
        says='"gathered" is wrong',
    ),
    Answer(6, "float32", swap=('"weights": 2 * held', '"weights": 4 * held'), says='"weights" is wrong'),
    Answer(
        6,
        "the last stage is the fullest",
        swap=("for stage in range(plan.pp))", "for stage in [plan.pp - 1])"),
        says="most_memory",
    ),
    Answer(6, "the sum of all stages", swap=("return max(sum(", "return sum(sum("), says="most_memory"),
    Answer(
        7,
        "the embedding multiplies, too",
        swap=("+ model.vocabulary * h\n", "+ 2 * model.vocabulary * h\n"),
        says="the embedding table is counted",
    ),
    Answer(
        7, "no scores", swap=(" + 12 * model.layers * h * model.sequence", ""), says="attention's scores are missing"
    ),
    Answer(
        7,
        "all experts compute",
        swap=("8 * h**2 * model.active", "8 * h**2 * max(1, model.experts)"),
        says="all experts compute",
    ),
    Answer(
        7, "rings send all they have", swap=("(length - 1) / length * numbers", "(length > 1) * numbers"), says="sent("
    ),
    Answer(7, "forward only", swap=("round(8 * again)", "round(4 * again)"), says='"tp" is wrong'),
    Answer(
        7,
        "recomputing sends nothing",
        swap=('1.5 if plan.recompute == "full" else 1', "1"),
        says="as if nothing were recomputed",
    ),
    Answer(
        7, "always recomputed", swap=('1.5 if plan.recompute == "full" else 1', "1.5"), says="as if all were recomputed"
    ),
    Answer(
        7,
        "one micro-batch",
        swap=("rings = round(8 * again) * blocks * m", "rings = round(8 * again) * blocks"),
        says='"tp" is wrong',
    ),
    Answer(
        7, "keys without values", swap=("(cp - 1) * 2 * numbers / t", "(cp - 1) * numbers / t"), says='"cp" is wrong'
    ),
    Answer(
        7,
        "weights are gathered once a step",
        swap=("2 * 3 * m * (ring(plan.shard", "2 * 3 * (ring(plan.shard"),
        says='"shard" is wrong',
    ),
    Answer(
        7, "the context shares no gradients", swap=("copies = plan.dp * cp", "copies = plan.dp"), says='"dp" is wrong'
    ),
    Answer(7, "copies average what others hold", swap=("dense / plan.shard)", "dense)"), says='"dp" is wrong'),
    Answer(
        7,
        "every axis within a node",
        swap=("machine.inside if span <= machine.node else machine.between", "machine.inside"),
        says="link(",
    ),
    Answer(
        7,
        "only the axis's own length",
        swap=("for name in inside[: inside.index(axis) + 1]", "for name in (axis,)"),
        says="link(",
    ),
    Answer(
        7,
        "from the outside",
        swap=('("tp", "cp", "shard", "dp", "pp")', '("pp", "dp", "shard", "cp", "tp")'),
        says="link(",
    ),
    Answer(7, "experts at the outermost place", swap=("plan.ep * plan.cp * plan.tp", "plan.world"), says="link("),
    Answer(7, "peak speed", swap=(" * machine.device_share)", ")"), says="without device_share"),
    Answer(
        7,
        "links at their data sheet's speed",
        swap=("(cable.bandwidth * machine.link_share)", "cable.bandwidth"),
        says="without link_share",
    ),
    Answer(7, "no latency", swap=(" + messages * cable.latency", ""), says="without latency"),
    Answer(
        7,
        "recomputing costs nothing",
        swap=('4 / 3 if plan.recompute == "full" else 1', "1"),
        says='"computing" is wrong',
    ),
    Answer(
        7,
        "the bubble's share of the whole",
        swap=("(plan.pp - 1) / plan.micro_batches", "(plan.pp - 1) / (plan.micro_batches + plan.pp - 1)"),
        says='"bubble" is wrong',
    ),
    Answer(
        7,
        "nothing overlaps",
        swap=('max(0.0, took["shard"] + took["dp"] - computing)', 'took["shard"] + took["dp"]'),
        says='"data" is wrong',
    ),
    Answer(
        7,
        "negative time",
        swap=('max(0.0, took["shard"] + took["dp"] - computing)', 'took["shard"] + took["dp"] - computing'),
        says='"data" is wrong',
    ),
    Answer(
        7,
        "keys hide beside everything",
        swap=('took["cp"] - computing * scores', 'took["cp"] - computing'),
        says='"cp" is wrong',
    ),
    Answer(8, "nothing is rejected", ["return ''", None], says="lets pass"),
    Answer(8, "everything is rejected", ["return 'no'", None], says="rejects"),
    Answer(8, "memory is not looked at", swap=("if needed > machine.memory:", "if False:"), says="memory"),
    Answer(8, "heads may be cut", swap=("if model.heads % plan.tp:", "if False:"), says="heads on tp"),
    Answer(8, "layers may be cut", swap=("if model.layers % plan.pp:", "if False:"), says="layers on pp"),
    Answer(
        8,
        "tokens on cp alone",
        swap=("if model.sequence % (plan.cp * plan.tp):", "if model.sequence % plan.cp:"),
        says="tokens on cp and tp",
    ),
    Answer(
        8,
        "experts on any number",
        swap=("if model.experts and model.experts % plan.ep:", "if False:"),
        says="experts on ep",
    ),
    Answer(
        8,
        "the batch on replicas alone",
        swap=("plan.batch % (plan.replicas * plan.micro_batch)", "plan.batch % plan.replicas"),
        says="lets pass",
    ),
    Answer(
        8,
        "fewer micro-batches than stages",
        swap=("if plan.micro_batches < plan.pp:", "if False:"),
        says="fewer micro-batches",
    ),
    Answer(
        8,
        "as many micro-batches as stages are too few",
        swap=("plan.micro_batches < plan.pp", "plan.pp > 1 and plan.micro_batches <= plan.pp"),
        says="rejects",
    ),
    Answer(8, "tensor parallel across nodes", swap=("if plan.tp > machine.node:", "if False:"), says="tp in a node"),
    Answer(
        8,
        "the memory of the first stage without activations",
        swap=("needed = most_memory(model, plan)", "needed = 16 * sum(rank_numbers(model, plan, 0)) / plan.shard"),
        says="memory",
    ),
    Answer(
        8,
        "the first that fits",
        [None, "return next((p for p in candidates(model, gpus, batch) if not why_not(model, p, machine)), None)"],
        says="best_plan",
    ),
    Answer(8, "the slowest", swap=("min(good", "max(good"), says="not the fastest"),
    Answer(
        8,
        "the one that needs the least memory",
        swap=("sum(step_seconds(model, plan, machine).values()), default", "most_memory(model, plan), default"),
        says="not the fastest",
    ),
    Answer(8, "the fastest, fitting or not", swap=(" if not why_not(model, plan, machine)]", "]")),
    Answer(
        8,
        "only computing counts",
        swap=(
            "sum(step_seconds(model, plan, machine).values()), default",
            'step_seconds(model, plan, machine)["computing"], default',
        ),
        says="not the fastest",
    ),
    Answer(8, "no plan is a crash", swap=(", default=None)", ")")),
    Answer(8, "always data parallel", [None, "return Plan(batch, dp=gpus)"], says="best_plan"),
    Answer(9, "weak as strong", swap=('if scaling == "strong" else 1)', "if True else 1)"), says="efficiency"),
    Answer(9, "relative to one GPU", swap=("fewest / gpus if", "1 / gpus if"), says="efficiency"),
    Answer(9, "the speed-up", swap=('(fewest / gpus if scaling == "strong" else 1)', "1"), says="efficiency"),
    Answer(
        9, "relative to the first that was measured", swap=("min(seconds)", "next(iter(seconds))"), says="efficiency"
    ),
    Answer(9, "relative to the last that was measured", swap=("min(seconds)", "[*seconds][-1]"), says="efficiency"),
    Answer(
        9,
        "what is left over the ideal",
        ninth(serial_share="return seconds_many / seconds_one - 1 / gpus"),
        says="serial_share",
    ),
    Answer(
        9,
        "the lost efficiency",
        ninth(serial_share="return 1 - seconds_one / (gpus * seconds_many)"),
        says="serial_share",
    ),
    Answer(9, "one over the share", ninth(most_gpus="return math.floor(1 / share)"), says="most_gpus"),
    Answer(
        9,
        "rounded",
        swap=("math.floor((1 / least - 1 + share) / share + 1e-9)", "round((1 / least - 1 + share) / share)"),
        says="most_gpus",
    ),
    Answer(9, "one too many", swap=("+ 1e-9)", "+ 1)"), says="most_gpus"),
    Answer(9, "an all-reduce either way", swap=('(3 if scheme == "fsdp" else 2)', "2"), says="needed_bandwidth"),
    Answer(9, "4 bytes", swap=("* 2 / 6 * speed", "* 4 / 6 * speed"), says="needed_bandwidth"),
    Answer(9, "the forward pass alone", swap=("* 2 / 6 * speed", "* 2 / 2 * speed"), says="needed_bandwidth"),
    Answer(9, "more tokens need more", swap=("* speed / tokens", "* speed * tokens"), says="needed_bandwidth"),
    Answer(
        9,
        "always between nodes",
        swap=("machine.inside if gpus <= machine.node else machine.between", "machine.between"),
        says="overtaken_at",
    ),
    Answer(9, "tokens are not shared", swap=("needed_bandwidth(batch / gpus, speed", "needed_bandwidth(batch, speed")),
    Answer(9, "without the ring's factor", swap=(" * (gpus - 1) / gpus\n", "\n"), says="overtaken_at"),
    Answer(
        9, "the last that keeps up", swap=("return gpus\n", "return gpus - 1\n"), says="the last number that keeps up"
    ),
    Answer(
        9,
        "links at their data sheet's speed",
        swap=("cable.bandwidth * machine.link_share:", "cable.bandwidth:"),
        says="without link_share",
    ),
    Answer(
        9,
        "GPUs at their peak",
        swap=("speed = machine.peak * machine.device_share", "speed = machine.peak"),
        says="without device_share",
    ),
    Answer(9, "by doubling", swap=("gpus += 1", "gpus *= 2"), says="overtaken_at"),
    Answer(9, "steps", ninth(samples_needed="return fewest_steps * (1 + critical / batch)"), says="steps, not samples"),
    Answer(9, "any batch is as good", ninth(samples_needed="return fewest_steps * critical"), says="samples_needed"),
    Answer(10, "ZeRO is plain data parallel", swap=('"ZeRO": {"sharded"}', '"ZeRO": {"data"}'), says="ZeRO"),
    Answer(10, "ZeRO is both", swap=('"ZeRO": {"sharded"}', '"ZeRO": {"sharded", "data"}'), says="ZeRO"),
    Answer(
        10,
        "PipeDream has no copies",
        swap=('"PipeDream": {"data", "pipeline"}', '"PipeDream": {"pipeline"}'),
        says="PipeDream",
    ),
    Answer(
        10,
        "micro-batches are an axis",
        swap=('"GPipe": {"pipeline"}', '"GPipe": {"pipeline", "data"}'),
        says="GPipe: its row says nothing of “data”",
    ),
    Answer(
        10,
        "Megatron is tensor alone",
        swap=('"Megatron-LM": {"data", "tensor"}', '"Megatron-LM": {"tensor"}'),
        says="Megatron-LM",
    ),
    Answer(10, "to swap is an axis", swap=('"KARMA": {"data"}', '"KARMA": {"data", "pipeline"}'), says="KARMA"),
    Answer(
        10,
        "Megatron's name for everything",
        swap=('"AxoNN": {"data", "pipeline"}', '"AxoNN": {"data", "tensor"}'),
        says="AxoNN",
    ),
    Answer(
        10,
        "DeepSpeed is ZeRO",
        swap=('"DeepSpeed": {"sharded", "tensor", "pipeline"}', '"DeepSpeed": {"sharded"}'),
        says="DeepSpeed",
    ),
    Answer(
        10,
        "all axes for all",
        [
            "return {name: {'data', 'tensor', 'pipeline', 'sharded'} for name in 'FlexFlow PipeDream DDP GPipe Megatron-LM TorchGPipe KARMA LBANN ZeRO AxoNN DeepSpeed'.split() + ['Mesh TensorFlow']}",
            None,
        ],
        says="says nothing of",
    ),
    Answer(10, "one is forgotten", swap=('"LBANN": {"data", "tensor"},', ""), says="LBANN"),
    Answer(10, "an axis of its own name", swap=('"DDP": {"data"}', '"DDP": {"data parallel"}'), says="no axis"),
    Answer(
        10,
        "tensor and pipeline mixed up",
        [
            None,
            "return {'data': '02_data_parallel', 'sharded': '03_zero', 'tensor': '05_pipeline_parallel', 'pipeline': '04_tensor_parallel'}",
        ],
        says="built_in",
    ),
    Answer(
        10, "sharded was in lesson 02", swap=('"sharded": "03_zero"', '"sharded": "02_data_parallel"'), says="built_in"
    ),
]

RIGHT = [
    Answer(
        1,
        "by coordinates",
        [
            """
            shape = [sizes[axis] for axis in order]
            places = list(itertools.product(*map(range, shape)))
            number = {place: rank for rank, place in enumerate(places)}
            total = 0
            for place in places:
                for i, axis in enumerate(order):
                    if axis == "pp" and place[i] + 1 == shape[i]:
                        continue
                    there = number[*place[:i], (place[i] + 1) % shape[i], *place[i + 1 :]]
                    if there // per_node != number[place] // per_node:
                        total = total + sent[axis] + (sent[axis] if axis == "pp" else 0)
            return total
            """,
            "return sorted(itertools.permutations(sizes), key=lambda o: bytes_between_nodes(o, sizes, sent, per_node))[0]",
        ],
    ),
    Answer(
        1,
        "as a list, of several best ones the last",
        [
            None,
            "return min(reversed(list(itertools.permutations(sizes))), key=lambda o: bytes_between_nodes(list(o), sizes, sent, per_node))",
        ],
    ),
    Answer(
        2,
        "from the mesh's own table",
        [
            "order = list(best_order(sizes, sent, per_node))\nranks = torch.arange(dist.get_world_size()).view([sizes[a] for a in order])\nreturn DeviceMesh('cpu', ranks, mesh_dim_names=tuple(order))",
            """
            axis = mesh.mesh_dim_names.index("pp")
            place = list(mesh.get_coordinate())
            def at(stage):
                if not 0 <= stage < mesh.size(axis):
                    return None
                other = place[:axis] + [stage] + place[axis + 1 :]
                return mesh.mesh[tuple(other)].item()
            return at(place[axis] - 1), at(place[axis] + 1)
            """,
        ],
    ),
    Answer(
        2,
        "by strides",
        [
            None,
            "axis = mesh.mesh_dim_names.index('pp')\nstride, stage = math.prod(mesh.mesh.shape[axis + 1 :]), mesh.get_local_rank('pp')\nrank = dist.get_rank()\nreturn [rank - stride if stage else None, rank + stride if stage + 1 < mesh.size(axis) else None]",
        ],
    ),
    Answer(3, "numbered the other way round", swap=('for axis in ("dp", "shard"):', 'for axis in ("shard", "dp"):')),
    Answer(
        3,
        "a sampler of one's own",
        [
            None,
            """
            class Dealt(Sampler):
                epoch = 0
                def set_epoch(self, epoch):
                    self.epoch = epoch
                def __iter__(self):
                    number, players = data_place(mesh)
                    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed + self.epoch)).tolist()
                    return iter(order[number :: players][: len(data) // players])
                def __len__(self):
                    return len(data) // data_place(mesh)[1]
            return Dealt()
            """,
            "parts = mesh['cp'].size() if 'cp' in mesh.mesh_dim_names else 1\npart = mesh.get_local_rank('cp') if parts > 1 else 0\nplaces = torch.arange(x_BT.shape[1])\nreturn x_BT.chunk(parts, 1)[part], y_BT.chunk(parts, 1)[part], places.chunk(parts)[part]",
        ],
    ),
    Answer(
        4,
        "averaged before it is added up",
        [
            None,
            """
            works = []
            for axis in reversed(mesh.mesh_dim_names):
                group = mesh.get_group(axis) if axis != "pp" else ends
                for name, parameter in parameters.items():
                    todo = due(axis, facts[name])
                    if group is not None and todo != "leave":
                        if todo == "average":
                            parameter.grad.div_(mesh.size(mesh.mesh_dim_names.index(axis)))
                        works.append(dist.all_reduce(parameter.grad, group=group, async_op=True))
                for work in works:
                    work.wait()
            """,
        ],
    ),
    Answer(
        4,
        "all gradients of one kind in one vector",
        [
            """
            table = {"dp": "average", "shard": "average", "cp": "sum"}
            table["tp"] = "leave" if fact.cut or not fact.some else "sum"
            table["pp"] = "sum" if fact.tied else "leave"
            return table[axis]
            """,
            """
            for axis in mesh.mesh_dim_names:
                group = ends if axis == "pp" else mesh.get_group(axis)
                for kind in ("average", "sum"):
                    mine = [p for name, p in parameters.items() if due(axis, facts[name]) == kind]
                    if mine and group is not None:
                        flat = torch.cat([p.grad.flatten() for p in mine])
                        dist.all_reduce(flat, group=group)
                        if kind == "average":
                            flat /= mesh[axis].size()
                        for p, part in zip(mine, flat.split([p.numel() for p in mine])):
                            p.grad = part.view_as(p).clone()
            """,
        ],
    ),
    Answer(
        5,
        "copies divided out",
        """
        total = torch.zeros(1, dtype=torch.float64)
        stages, parts = mesh["pp"].size(), mesh["tp"].size()
        for name, p in parameters.items():
            held_by = (1 if facts[name].cut else parts) * (2 if facts[name].tied and stages > 1 else 1)
            total += p.grad.double().pow(2).sum() / held_by
        for axis in ("pp", "tp"):
            dist.all_reduce(total, group=mesh.get_group(axis))
        return total.sqrt()[0]
        """,
    ),
    Answer(
        5,
        "counted by the first of each line, gathered as float32",
        """
        first = mesh.get_local_rank("tp") == 0
        total = torch.zeros(())
        for name, p in parameters.items():
            if facts[name].tied and mesh.get_local_rank("pp") != 0:
                continue
            if facts[name].cut or first:
                total += p.grad.float().norm() ** 2
        dist.all_reduce(total, group=mesh.get_group("tp"))
        dist.all_reduce(total, group=mesh.get_group("pp"))
        return float(total) ** 0.5
        """,
    ),
    Answer(
        6,
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
        6,
        "the first stage, with a proof",
        [None, None, None, "return sum(memory(model, plan, 0).values())  # table as head, and the most activations"],
    ),
    Answer(
        6,
        "the fullest stage by a loop",
        [
            None,
            None,
            None,
            "most = 0\nfor stage in range(plan.pp):\n    most = max(most, sum(memory(model, plan, stage).values()))\nreturn most",
        ],
    ),
    Answer(
        7,
        "spans from the outside",
        swap=(
            "math.prod(getattr(plan, name) for name in inside[: inside.index(axis) + 1])",
            "plan.world // math.prod(getattr(plan, name) for name in inside[inside.index(axis) + 1 :])",
        ),
    ),
    Answer(
        7,
        "lists in place of tuples, other order of sums",
        swap=(
            (
                "(2 * 2 * m * numbers, 2 * m) if plan.pp > 1 else (0.0, 0)",
                "[4 * m * numbers, 2 * m] if plan.pp != 1 else [0, 0]",
            ),
            ('took["shard"] + took["dp"] - computing', '-computing + took["dp"] + took["shard"]'),
        ),
    ),
    Answer(
        8,
        "reasons in one word, the best by a loop",
        [
            "bad = model.heads % plan.tp or model.layers % plan.pp or model.sequence % (plan.cp * plan.tp)\nbad = bad or (model.experts and model.experts % plan.ep) or plan.batch % (plan.replicas * plan.micro_batch)\nbad = bad or plan.micro_batches < plan.pp or plan.tp > machine.node\nreturn 'impossible' if bad or most_memory(model, plan) > machine.memory else ''",
            "best, least = None, math.inf\nfor plan in candidates(model, gpus, batch):\n    if not why_not(model, plan, machine):\n        seconds = sum(step_seconds(model, plan, machine).values())\n        if seconds < least:\n            best, least = plan, seconds\nreturn best",
        ],
    ),
    Answer(
        8,
        "of equally fast ones the last",
        swap=(
            "for plan in candidates(model, gpus, batch) if",
            "for plan in reversed(candidates(model, gpus, batch)) if",
        ),
    ),
    Answer(
        9,
        "Karp and Flatt's form",
        ninth(
            serial_share="speedup = seconds_one / seconds_many\nreturn (1 / speedup - 1 / gpus) / (1 - 1 / gpus)",
            samples_needed="return fewest_steps * (batch + critical)",
        ),
    ),
    Answer(
        9,
        "by trying",
        ninth(
            most_gpus="gpus = 1\nwhile 1 / ((gpus + 1) * share + 1 - share) >= least - 1e-12:\n    gpus += 1\nreturn gpus",
            needed_bandwidth="bytes_a_parameter = {'ddp': 4, 'fsdp': 6}[scheme]\nreturn bytes_a_parameter / (6 * tokens / speed)",
        ),
    ),
    Answer(
        10,
        "lists in place of sets, lesson 08 for tensor",
        [
            "sets = {'FlexFlow': 'data tensor', 'PipeDream': 'pipeline data', 'DDP': 'data', 'GPipe': 'pipeline', 'Mesh TensorFlow': 'tensor data', 'Megatron-LM': 'tensor data', 'TorchGPipe': 'pipeline', 'KARMA': 'data', 'LBANN': 'data tensor', 'ZeRO': 'sharded', 'AxoNN': 'pipeline data', 'DeepSpeed': 'pipeline tensor sharded'}\nreturn {name: axes.split() for name, axes in sets.items()}",
            "return {'data': '02_data_parallel', 'sharded': '03_zero', 'pipeline': '05_pipeline_parallel', 'tensor': '08_distributed_matmul'}",
        ],
    ),
    Answer(10, "frozen sets", swap=('"DDP": {"data"}', '"DDP": frozenset(["data"])')),
]
