"""Other answers to TODOs 11 to 13 of hybrid_training."""

from grader.kit import Answer

STATES = "(pp, dp, shard * cp, tp)"
EXPERTS = "(pp, dp, shard * cp // args.ep, args.ep, tp)"
FOUR = '("pp", "dp", "shard", "tp")'
FIVE = '("pp", "dp", "shard", "ep", "tp")'
AXES = 'for axis in ("dp", "shard", "cp"):'
IS_EXPERT = "if group[0] in experts:"

WRONG = [
    # TODO 11
    Answer(11, "states over shard alone", swap=(STATES, "(pp, dp * cp, shard, tp)"), says="grid `states`"),
    Answer(
        11,
        "experts as neighbours' copies",
        swap=((EXPERTS, "(pp, dp, args.ep, shard * cp // args.ep, tp)"), (FIVE, '("pp", "dp", "ep", "shard", "tp")')),
        says="grid `experts`",
    ),
    Answer(
        11,
        "ep between neighbours, and tp further away",
        swap=((EXPERTS, "(pp, dp, shard * cp // args.ep, tp, args.ep)"), (FIVE, '("pp", "dp", "shard", "tp", "ep")')),
        says="on ep of the grid `experts`",
    ),
    Answer(
        11,
        "ep takes its ranks from dp",
        swap=((EXPERTS, "(pp, args.ep, dp * shard * cp // args.ep, tp)"), (FIVE, '("pp", "ep", "dp", "tp")')),
        says="other axes",
    ),
    Answer(
        11,
        "no copies of experts",
        swap=(EXPERTS, "(pp, 1, dp * shard * cp // args.ep, args.ep, tp)"),
        says="on dp of the grid `experts`",
    ),
    Answer(
        11,
        "cp next to dp in the grid of states",
        swap=(
            f"states = init_device_mesh(mesh.device_type, {STATES}, mesh_dim_names={FOUR})",
            f"order = mesh.mesh.transpose(2, 3).reshape{STATES}\n"
            f"states = DeviceMesh(mesh.device_type, order, mesh_dim_names={FOUR})",
        ),
        says="on shard of the grid `states`",
    ),
    Answer(
        11,
        "shards of experts as if there were no cp",
        """
        states = init_device_mesh(mesh.device_type, (pp, dp, shard * cp, tp), mesh_dim_names=("pp", "dp", "shard", "tp"))
        order = mesh.mesh.transpose(2, 3).reshape(pp, dp, args.ep, -1, tp)
        experts = DeviceMesh(mesh.device_type, order, mesh_dim_names=("pp", "dp", "ep", "shard", "tp"))
        """,
        says="of the grid `experts`",
    ),
    Answer(11, "every rank alone in ep", swap=(EXPERTS, "(pp, dp, shard * cp, 1, tp)"), says="grid `experts`"),
    Answer(11, "ep takes all of shard and cp", swap=(EXPERTS, "(pp, dp, 1, shard * cp, tp)"), says="grid `experts`"),
    # TODO 12
    Answer(12, "experts as everything else", ["pass", None], says="after divide_experts_gradients"),
    Answer(12, "multiplied", swap=("parameter.grad /=", "parameter.grad *="), says="after divide_experts_gradients"),
    Answer(
        12,
        "by the ranks that have the same experts",
        swap=('mesh["ep"].size()', 'mesh["shard"].size()'),
        says="after divide_experts_gradients",
    ),
    Answer(
        12,
        "by all ranks that share the batch",
        swap=('mesh["ep"].size()', '(mesh["ep"].size() * mesh["shard"].size())'),
        says="after divide_experts_gradients",
    ),
    Answer(12, "all gradients", swap=("expert_parameters(own)", "own.parameters()"), says="after divide_experts"),
    Answer(
        12,
        "a copy",
        swap=('parameter.grad /= mesh["ep"].size()', 'parameter.grad / mesh["ep"].size()'),
        says="after divide_experts",
    ),
    Answer(12, "its own counts", [None, "return load_LE"], says="of this rank's tokens alone"),
    Answer(
        12,
        "counts of all ranks, also of other stages",
        [None, "load_LE = load_LE.clone()\ndist.all_reduce(load_LE)\nreturn load_LE"],
        says="the counts (blocks",
    ),
    Answer(12, "counts without cp", swap=(AXES, 'for axis in ("dp", "shard"):'), says="the counts (blocks"),
    Answer(12, "counts without dp", swap=(AXES, 'for axis in ("shard", "cp"):'), says="the counts (blocks"),
    Answer(
        12,
        "counts once for each rank of tp",
        swap=(AXES, 'for axis in ("dp", "shard", "cp", "tp"):'),
        says="the counts (blocks",
    ),
    Answer(
        12,
        "the mean of the counts",
        swap=("return load_LE", 'return load_LE // (mesh["dp"].size() * mesh["shard"].size() * mesh["cp"].size())'),
        says="the counts (blocks",
    ),
    Answer(12, "written into its own counts", swap=("load_LE = load_LE.clone()\n", ""), says="is written into"),
    # TODO 13
    Answer(13, "this rank's experts alone", "return [*norms]", says="with this rank's experts alone"),
    Answer(13, "everything over ep", swap=(IS_EXPERT, "if True:"), says="once for each rank of ep"),
    Answer(13, "all but experts", swap=(IS_EXPERT, "if group[0] not in experts:"), says="the norm on rank"),
    Answer(
        13,
        "norms are added, not squares",
        swap=(("norm.square()", "norm.clone()"), ("square.sqrt()", "square")),
        says="not the norm",
    ),
    Answer(13, "the square", swap=("square.sqrt()", "square"), says="not the norm"),
    Answer(13, "over the ranks that share the experts", swap=('get_group("ep")', 'get_group("shard")'), says="norm"),
    Answer(13, "over all ranks", swap=(', group=mesh.get_group("ep")', ""), says="not the norm"),
    Answer(
        13,
        "without experts",
        "experts = set(expert_parameters(own))\n"
        "return [norm for norm, group in zip(norms, groups) if group[0] not in experts]",
        says="without experts",
    ),
    Answer(
        13,
        "the largest part",
        swap=("dist.all_reduce(square, group", "dist.all_reduce(square, dist.ReduceOp.MAX, group"),
        says="the norm on rank",
    ),
    Answer(13, "a number", "return float(torch.stack(norms).norm())", says="returns"),
]


RIGHT = [
    Answer(
        11,
        "from the grid's own ranks",
        """
        ranks = mesh.mesh.flatten(2, 3)
        states = DeviceMesh(mesh.device_type, ranks, mesh_dim_names=("pp", "dp", "shard", "tp"))
        rows = ranks.unflatten(2, (-1, args.ep))
        experts = DeviceMesh(mesh.device_type, rows, mesh_dim_names=("pp", "dp", "shard", "ep", "tp"))
        """,
    ),
    Answer(
        12,
        "multiplied by the part, and counts gathered",
        [
            """
            part = 1 / mesh["ep"].size()
            for p in expert_parameters(own):
                p.grad.mul_(part)
            """,
            """
            for axis in ("cp", "shard", "dp"):
                parts = [torch.empty_like(load_LE) for _ in range(mesh[axis].size())]
                dist.all_gather(parts, load_LE, group=mesh[axis].get_group())
                load_LE = torch.stack(parts).sum(dim=0)
            return load_LE
            """,
        ],
    ),
    Answer(
        13,
        "by the parameters' names, in one number",
        """
        mine = {id(p) for name, p in own.named_parameters() if ".experts." in name}
        shared = [n for n, group in zip(norms, groups) if id(group[0]) not in mine]
        experts = [n for n, group in zip(norms, groups) if id(group[0]) in mine]
        parts = [torch.zeros_like(norms[0]) for _ in range(mesh["ep"].size())]
        dist.all_gather(parts, torch.stack(experts).norm(), group=mesh["ep"].get_group())
        return [torch.stack(shared + parts).norm()]
        """,
    ),
]
