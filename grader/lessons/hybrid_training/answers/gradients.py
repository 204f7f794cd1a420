"""Other answers to TODOs 7 and 8 of hybrid_training."""

from grader.kit import Answer

WRONG = [
    # TODO 7
    Answer(
        7,
        "all gradients",
        swap=(' if "tp" not in p.device_mesh.mesh_dim_names', ""),
        says="the ranks call different shapes",
    ),
    Answer(7, "whatever the flag says", swap=("args.sequence_parallel and args.tp > 1", "args.tp > 1"), says="norm"),
    Answer(
        7,
        "over the data axis",
        swap=('group=mesh.get_group("tp")', 'group=mesh.get_group("dp")'),
        says="which all ranks",
    ),
    Answer(7, "over all ranks", swap=(', group=mesh.get_group("tp")', ""), says=""),
    Answer(
        7,
        "the mean",
        swap=("part.copy_(total.view_as(part))", "part.copy_(total.view_as(part) / args.tp)"),
        says="which all ranks",
    ),
    Answer(7, "in a copy that nobody uses", swap=("part.copy_(", "part.clone().copy_("), says="which all ranks"),
    Answer(
        7,
        "the last norm alone",
        swap=(
            'for p in own.parameters() if "tp" not in p.device_mesh.mesh_dim_names',
            'for name, p in own.named_parameters() if name.startswith("norm.")',
        ),
        says="",
    ),
    Answer(
        7,
        "weights, and no biases",
        swap=(
            'for p in own.parameters() if "tp" not in p.device_mesh.mesh_dim_names',
            'for name, p in own.named_parameters() if "norm" in name and "weight" in name',
        ),
        says="bias",
    ),
    Answer(
        7,
        "gradients made of shards that are taken to be equal",
        """
        if args.sequence_parallel and args.tp > 1:
            for p in own.parameters():
                if "tp" not in p.device_mesh.mesh_dim_names:
                    part = p.grad.to_local().clone()
                    dist.all_reduce(part, group=mesh.get_group("tp"))
                    p.grad = DTensor.from_local(part, p.device_mesh, p.placements)
        """,
        says="attempting to assign a gradient",
    ),
    Answer(
        7,
        "gradients are put together",
        """
        if args.sequence_parallel and args.tp > 1:
            for p in own.parameters():
                full = p.grad.full_tensor().clone()
                if "tp" not in p.device_mesh.mesh_dim_names:
                    dist.all_reduce(p.grad.to_local(), group=mesh.get_group("tp"))
        """,
        says="add_up_norms: rank",
    ),
    # TODO 8
    Answer(8, "over all ranks", swap=(', group=mesh.get_group("pp")', ""), says="count twice"),
    Answer(
        8,
        "norms are added, not squares",
        swap=(("norm.square()", "norm"), ("square.sqrt()", "square")),
        says="their squares that can be",
    ),
    Answer(8, "the square", swap=("square.sqrt()", "square"), says="wrong norm"),
    Answer(8, "over the tensor axis", swap=('get_group("pp")', 'get_group("tp")'), says="wrong norm"),
    Answer(8, "over shards, once more", swap=('get_group("pp")', 'get_group("shard")'), says="wrong norm"),
    Answer(
        8,
        "the largest stage's",
        swap=("dist.all_reduce(square, group", "dist.all_reduce(square, dist.ReduceOp.MAX, group"),
        says="this stage alone",
    ),
    Answer(8, "found, and not used", swap=("norm = square.sqrt()", "whole = square.sqrt()"), says="this stage alone"),
    Answer(
        8,
        "the mean of the stages",
        swap=("norm = square.sqrt()", 'norm = (square / mesh["pp"].size()).sqrt()'),
        says="wrong norm",
    ),
    Answer(
        7,
        "only where there are no copies",
        swap=(
            "if args.sequence_parallel and args.tp > 1:",
            "if args.sequence_parallel and args.tp > 1 and args.dp == 1:",
        ),
        says="after add_up_norms",
    ),
]


RIGHT = [
    Answer(
        7,
        "asks the mesh, not the flags",
        swap=("if args.sequence_parallel and args.tp > 1:", 'if args.sequence_parallel and mesh["tp"].size() > 1:'),
    ),
    Answer(
        7,
        "a message for each",
        """
        if args.sequence_parallel and args.tp > 1:
            for name, p in own.named_parameters():
                if "norm" in name:
                    dist.all_reduce(p.grad.to_local(), group=mesh["tp"].get_group())
        """,
    ),
    Answer(
        7,
        "by DTensor's own sum",
        """
        if args.sequence_parallel:
            from torch.distributed.tensor import Partial, Replicate
            for p in own.parameters():
                if "tp" not in p.device_mesh.mesh_dim_names:
                    part = DTensor.from_local(p.grad.to_local(), mesh["tp"], [Partial()], run_check=False)
                    p.grad.to_local().copy_(part.redistribute(placements=[Replicate()]).to_local())
        """,
    ),
    Answer(
        8,
        "by all stages' norms",
        """
        norms = [torch.zeros_like(norm) for _ in range(mesh["pp"].size())]
        dist.all_gather(norms, norm.contiguous(), group=mesh["pp"].get_group())
        norm = torch.stack(norms).norm()
        """,
    ),
    Answer(
        8,
        "over all ranks, each stage as often",
        """
        square = norm ** 2 / (mesh.size() / mesh["pp"].size())
        dist.all_reduce(square)
        norm = square ** 0.5
        """,
    ),
]
