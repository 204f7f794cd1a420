"""Other answers to TODOs 1 and 2 of tp_training."""

from grader.kit import Answer

NAMES = 'mesh_dim_names=("data", "tensor")'


WRONG = [
    # TODO 1
    Answer(
        1,
        "the axes swapped: a layer's ranks are on several nodes",
        [f"return init_device_mesh(device.type, (args.tp, world_size // args.tp), {NAMES})", None],
        says="the grid is",
    ),
    Answer(
        1,
        "columns share a layer",
        [
            f"""
        grid = torch.arange(world_size).view(args.tp, -1).T.contiguous()
        return DeviceMesh(device.type, grid, {NAMES})
        """,
            None,
        ],
        says="consecutive numbers",
    ),
    Answer(
        1, "the names swapped", swap=('("data", "tensor")', '("tensor", "data")'), says="are called tensor and data"
    ),
    Answer(
        1,
        "all ranks share each layer",
        [f"return init_device_mesh(device.type, (1, world_size), {NAMES})", None],
        says="the grid is 1 × 4",
    ),
    Answer(
        1,
        "one axis",
        ["return init_device_mesh(device.type, (world_size,), mesh_dim_names=('data',))", None],
        says="not in a grid",
    ),
    Answer(1, "nothing", ["return None", None], says="returns None"),
    Answer(
        1,
        "the sampler of the world",
        swap=("DistributedSampler(train, rows, row, shuffle", "DistributedSampler(train, shuffle"),
        says="read different train samples",
    ),
    Answer(
        1,
        "validation over the world",
        swap=("ShardSampler(validation, row, rows)", "ShardSampler(validation)"),
        says="read different validation samples",
    ),
    Answer(
        1,
        "the test set over the world",
        swap=("ShardSampler(test, row, rows)", "ShardSampler(test)"),
        says="read different test samples",
    ),
    Answer(
        1,
        "the other axis",
        swap=(
            'row, rows = mesh.get_local_rank("data"), mesh["data"].size()',
            'row, rows = mesh.get_local_rank("tensor"), mesh["tensor"].size()',
        ),
        says="read",
    ),
    Answer(1, "the row's number among all ranks", swap=('mesh["data"].size()', "mesh.size()"), says=""),
    Answer(
        1,
        "every rank reads all",
        [
            None,
            """
        return DistributedSampler(train, 1, 0, shuffle=True, seed=args.seed, drop_last=True), ShardSampler(validation, 0, 1), ShardSampler(test, 0, 1)
        """,
        ],
        says="reads the whole",
    ),
    Answer(
        1,
        "padded",
        swap=("ShardSampler(validation, row, rows)", "DistributedSampler(validation, rows, row, shuffle=False)"),
        says="padded",
    ),
    Answer(1, "the seed is forgotten", swap=("seed=args.seed, ", ""), says="samples of the serial run"),
    Answer(1, "not shuffled", swap=("shuffle=True, seed=args.seed", "shuffle=False"), says="samples of the serial run"),
    # TODO 2
    Answer(
        2,
        "each mesh by its own norm",
        swap=(
            "nn.utils.clip_grads_with_norm_(group, args.clip or math.inf, norm)",
            "nn.utils.clip_grad_norm_(group, args.clip or math.inf)",
        ),
        says="the gradient of",
    ),
    Answer(2, "norms are added, not squares", swap=(".norm()\n", ".sum()\n"), says="larger than the norm of the whole"),
    Answer(
        2,
        "the first mesh alone",
        swap=("torch.stack(norms).norm()", "norms[0]"),
        says="smaller than the norm of the whole",
    ),
    Answer(
        2,
        "each rank by the norm of its part",
        """
        parts = [p.grad.to_local() for p in model.parameters()]
        norm = torch.stack([part.norm() for part in parts]).norm()
        for part in parts:
            part *= min(1.0, (args.clip or math.inf) / norm)
        return norm.item()
        """,
        says="the norm of a part",
    ),
    Answer(
        2,
        "all ranks' parts: what a row has several times counts several times",
        """
        parts = [p.grad.to_local() for p in model.parameters()]
        square = sum(part.square().sum() for part in parts)
        dist.all_reduce(square)
        for part in parts:
            part *= min(1.0, (args.clip or math.inf) / square.sqrt())
        return square.sqrt().item()
        """,
        says="count twice",
    ),
    Answer(2, "0 is taken for a limit", swap=("args.clip or math.inf", "args.clip"), says="--clip 0"),
    Answer(
        2,
        "gradients are put together",
        """
        full = [p.grad.full_tensor() for p in model.parameters()]
        norm = torch.stack([grad.norm() for grad in full]).norm()
        for p in model.parameters():
            p.grad.to_local().mul_(min(1.0, (args.clip or math.inf) / norm.item()))
        return norm.item()
        """,
        says="assembles whole gradients",
    ),
    Answer(
        2,
        "nothing is clipped",
        swap=("    nn.utils.clip_grads_with_norm_(group, args.clip or math.inf, norm)", "    pass"),
        says="the gradient of",
    ),
    Answer(2, "a tensor", swap=("return norm.item()", "return norm"), says="returns a Tensor"),
    Answer(
        1,
        "training pads",
        swap=("seed=args.seed, drop_last=True", "seed=args.seed"),
        says="some are repeated until all shares are equal",
    ),
    Answer(
        1,
        "tensor axis outermost",
        swap=(
            'world_size // args.tp, args.tp), mesh_dim_names=("data", "tensor',
            'args.tp, world_size // args.tp), mesh_dim_names=("tensor", "data',
        ),
        says="are called tensor and data",
    ),
    Answer(
        2,
        "no norm without a limit",
        swap=(
            "on_mesh: dict[DeviceMesh, list[nn.Parameter]] = {}",
            "if not args.clip:\n    return 0.0\non_mesh: dict[DeviceMesh, list[nn.Parameter]] = {}",
        ),
        says="it is 0, and the gradient is not",
    ),
    Answer(
        2,
        "norm after clipping",
        swap=("return norm.item()", "return min(norm.item(), args.clip or math.inf)"),
        says="it is --clip, the norm after clipping",
    ),
    Answer(
        2,
        "a mesh with a small norm is not clipped",
        swap=(
            """for group in on_mesh.values():
    nn.utils.clip_grads_with_norm_(group, args.clip or math.inf, norm)""",
            """for group, own in zip(on_mesh.values(), norms, strict=True):
    if own > args.clip:
        nn.utils.clip_grads_with_norm_(group, args.clip or math.inf, norm)""",
        ),
        says="after clip_gradients",
    ),
]


RIGHT = [
    Answer(
        1,
        "a mesh made of a tensor",
        [f"return DeviceMesh(device.type, torch.arange(world_size).view(-1, args.tp), {NAMES})", None],
    ),
    Answer(
        1,
        "by the numbers of the ranks",
        [
            None,
            """
        rows = dist.get_world_size() // mesh["tensor"].size()
        row = dist.get_rank() // mesh["tensor"].size()
        trained = DistributedSampler(train, num_replicas=rows, rank=row, seed=args.seed, drop_last=True)
        return trained, ShardSampler(validation, rank=row, world_size=rows), ShardSampler(test, rank=row, world_size=rows)
        """,
        ],
    ),
    Answer(
        2,
        "by hand: each parameter's square, over the ranks that share it",
        """
        with torch.no_grad():
            squares = []
            for p in model.parameters():
                square = p.grad.to_local().square().sum()
                for axis, placement in enumerate(p.placements):
                    if placement.is_shard() or "Shard" in type(placement).__name__:
                        dist.all_reduce(square, group=p.device_mesh.get_group(axis))
                squares.append(square if not any(q.is_partial() for q in p.grad.placements) else p.grad.full_tensor().square().sum())
            norm = torch.stack(squares).sum().sqrt()
            for p in model.parameters():
                p.grad.to_local().mul_(min(1.0, (args.clip or math.inf) / norm.item()))
        return norm.item()
        """,
    ),
    Answer(
        2,
        "this rank's value of each norm, which is a norm of norms and so already whole",
        swap=(".full_tensor() for group", ".to_local() for group"),
    ),
]
