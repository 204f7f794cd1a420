"""Other answers to TODOs 1 and 2 of hybrid_training."""

from grader.kit import Answer

NAMES = '("pp", "dp", "shard", "cp", "tp")'


SIZES = "(args.pp, args.dp, args.shard, args.cp, args.tp)"


WRONG = [
    # TODO 1
    Answer(
        1,
        "the pipeline between neighbours",
        swap=(
            (SIZES, "(args.tp, args.dp, args.shard, args.cp, args.pp)"),
            (NAMES, '("tp", "dp", "shard", "cp", "pp")'),
        ),
        says="no neighbours",
    ),
    Answer(
        1,
        "copies nearer than shards",
        swap=(
            (SIZES, "(args.pp, args.shard, args.dp, args.cp, args.tp)"),
            (NAMES, '("pp", "shard", "dp", "cp", "tp")'),
        ),
        says="axis shard",
    ),
    Answer(
        1,
        "copies outside the pipeline",
        swap=(
            (SIZES, "(args.dp, args.pp, args.shard, args.cp, args.tp)"),
            (NAMES, '("dp", "pp", "shard", "cp", "tp")'),
        ),
        says="not those that the order",
    ),
    Answer(
        1, "the sizes in another order than the names", swap=(SIZES, "(args.dp, args.pp, args.shard, args.cp, args.tp)")
    ),
    Answer(
        1, "names of two swapped", swap=(NAMES, '("pp", "shard", "dp", "cp", "tp")'), says="not those that the order"
    ),
    Answer(1, "other names", swap=(NAMES, '("pipeline", "dp", "shard", "cp", "tensor")'), says="wrong names"),
    Answer(
        1,
        "one data axis",
        """
        sizes = (args.pp, args.dp * args.shard, args.cp, args.tp)
        return init_device_mesh(device.type, sizes, mesh_dim_names=("pp", "data", "cp", "tp"))
        """,
        says="wrong names",
    ),
    Answer(1, "no copies", swap=(SIZES, "(args.pp, 1, args.dp * args.shard, args.cp, args.tp)"), says="on the axis"),
    Answer(
        1,
        "tokens further apart than samples",
        swap=(
            (SIZES, "(args.pp, args.dp, args.cp, args.shard, args.tp)"),
            (NAMES, '("pp", "dp", "cp", "shard", "tp")'),
        ),
        says="not those that the order",
    ),
    Answer(1, "nothing", "return None", says="returns None"),
    # TODO 2
    Answer(2, "the world as its group", swap=(", group=mesh.get_group()", ""), says=""),
    Answer(2, "stages by the rank in the world", swap=("mesh.get_local_rank()", "dist.get_rank()"), says=""),
    Answer(
        2,
        "neighbouring stages on one rank",
        swap=("range(r, n_stages, p)", "range(r * (n_stages // p), (r + 1) * (n_stages // p))"),
        says="its own stages",
    ),
    Answer(2, "one stage, whatever the schedule", swap=("p * stages_a_rank(p, args)", "p"), says="its own"),
    Answer(2, "the stages of all ranks", swap=("range(r, n_stages, p)", "range(n_stages)"), says="its own"),
    Answer(
        2,
        "memory at once",
        swap=("Layers(model, blocks[stage])", "Layers(model, blocks[stage]).to_empty(device=device)"),
        says="before it is split",
    ),
    Answer(
        2,
        "the whole model on every stage",
        swap=("Layers(model, blocks[stage])", "Layers(model, range(len(model.blocks)))"),
        says="has the wrong layers",
    ),
    Answer(
        2,
        "copies",
        swap=("Layers(model, blocks[stage])", "__import__('copy').deepcopy(Layers(model, blocks[stage]))"),
        says="copies",
    ),
    Answer(
        2, "the next rank's stages", swap=("range(r, n_stages, p)", "range((r + 1) % p, n_stages, p)"), says="its own"
    ),
]


RIGHT = [
    Answer(
        1,
        "a mesh made of a tensor",
        f"""
        grid = torch.arange(args.pp * args.dp * args.shard * args.cp * args.tp).view{SIZES}
        return DeviceMesh(device.type, grid, mesh_dim_names={NAMES})
        """,
    ),
    Answer(
        1,
        "the axes told in another order, the ranks in this one",
        f"""
        grid = torch.arange(args.pp * args.dp * args.shard * args.cp * args.tp).view{SIZES}.permute(1, 2, 0, 3, 4)
        return DeviceMesh(device.type, grid.contiguous(), mesh_dim_names=("dp", "shard", "pp", "cp", "tp"))
        """,
    ),
    Answer(
        2,
        "in one list",
        """
        n = mesh.size() * stages_a_rank(mesh.size(), args)
        numbers = [k for k in range(n) if k % mesh.size() == mesh.get_local_rank()]
        return [PipelineStage(Layers(model, by_number(len(model.blocks), n)[k]), k, n, device, group=mesh.get_group()) for k in numbers]
        """,
    ),
]
