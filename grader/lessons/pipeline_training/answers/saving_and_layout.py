"""Other answers to TODOs 8 and 9 of pipeline_training."""

from grader.kit import Answer

NAMES = 'mesh_dim_names=("pp", "data")'


WRONG = [
    Answer(
        8,
        "rank 0's stage",
        """
        dist.barrier()
        save0({"model": own, "config": config, "epoch": epoch}, path)
        """,
        says="all weights",
    ),
    Answer(
        8,
        "every rank writes its own",
        'path.parent.mkdir(parents=True, exist_ok=True)\ntorch.save({"model": own, "config": config, "epoch": epoch}, '
        "path)",
        says="all write",
    ),
    Answer(
        8,
        "the copies are gathered, not the stages",
        """
        parts = [None] * mesh["data"].size() if dist.get_rank() == 0 else None
        if mesh["pp"].get_local_rank() == 0:
            dist.gather_object(own, parts, group=mesh["data"].get_group(), group_dst=0)
        if parts:
            own = {name: weight for part in parts for name, weight in part.items()}
        save0({"model": own, "config": config, "epoch": epoch}, path)
        """,
        says="all weights",
    ),
    Answer(
        8,
        "a list of stages",
        swap=(
            "own = {name: weight for part in parts for name, weight in part.items()}",
            'own = {f"stage{k}.{name}": weight for k, part in enumerate(parts) for name, weight in part.items()}',
        ),
        says="all weights",
    ),
    Answer(8, "rank 0 alone gathers", swap=('if mesh["data"].get_local_rank() == 0:', "if dist.get_rank() == 0:")),
    Answer(
        8,
        "every rank gathers",
        """
        parts = [None] * mesh["pp"].size()
        dist.all_gather_object(parts, own, group=mesh["pp"].get_group())
        full = {}
        for part in parts:
            full.update(part)
        save0({"model": full, "config": config, "epoch": epoch}, path)
        """,
        says="only rank 0 needs it",
    ),
    Answer(
        8,
        "the first rank of each pipeline gathers",
        swap=(
            ('if mesh["data"].get_local_rank() == 0:', "if True:"),
            ("if dist.get_rank() == 0 else None", 'if mesh["pp"].get_local_rank() == 0 else None'),
        ),
        says="only rank 0 needs it",
    ),
    Answer(8, "the config is lost", swap=(', "config": config', ""), says="lost an entry"),
    Answer(8, "gathered, and thrown away", swap=("if parts:", "if parts and False:"), says="all weights"),
    Answer(
        8,
        "the first of its stages alone",
        swap=(
            "dist.gather_object(own,",
            "dist.gather_object({name: p.detach().cpu() for name, p in stages[0].submod.named_parameters()},",
        ),
        says="all weights",
    ),
    Answer(
        8,
        "gathered once, and saved again",
        swap=("if parts:\n", "if parts:\n        parts = save_checkpoint.__dict__.setdefault('parts', parts)\n"),
        says="was to be written over",
    ),
    Answer(8, "written once", swap=("save0({", "if not path.exists():\n    save0({"), says="checkpoint"),
    Answer(
        9,
        "over the world",
        [
            None,
            """
        return (
            DistributedSampler(train, shuffle=True, seed=args.seed, drop_last=True),
            ShardSampler(validation), ShardSampler(test),
        )
        """,
        ],
        says="stages of one pipeline",
    ),
    Answer(
        9,
        "the training set alone",
        swap=(
            ('ShardSampler(validation, where["rank"], where["num_replicas"])', "ShardSampler(validation)"),
            ('ShardSampler(test, where["rank"], where["num_replicas"])', "ShardSampler(test)"),
        ),
        says="validation samples",
    ),
    Answer(
        9,
        "by the stage",
        swap=(
            ('mesh["data"].size()', 'mesh["pp"].size()'),
            ('mesh["data"].get_local_rank()', 'mesh["pp"].get_local_rank()'),
        ),
    ),
    Answer(
        9,
        "every rank everything",
        swap=(
            '{"num_replicas": mesh["data"].size(), "rank": mesh["data"].get_local_rank()}',
            '{"num_replicas": 1, "rank": 0}',
        ),
    ),
    Answer(
        9,
        "in the order of the text",
        swap=("shuffle=True", "shuffle=False"),
        says="does not train on the samples of the serial run",
    ),
    Answer(
        9,
        "validation is padded",
        swap=(
            'ShardSampler(validation, where["rank"], where["num_replicas"])',
            "DistributedSampler(validation, **where, shuffle=False)",
        ),
        says="is padded",
    ),
    Answer(
        9,
        "another seed a stage",
        swap=("seed=args.seed", 'seed=args.seed + mesh["pp"].get_local_rank()'),
        says="stages of one pipeline",
    ),
    Answer(
        9,
        "rows for columns",
        [f"return init_device_mesh(device.type, (world_size // args.pp, args.pp), {NAMES})", None],
        says="the axis pp has 3 ranks",
    ),
    Answer(
        9,
        "stages are neighbours",
        [
            f"""
        grid = torch.arange(world_size).view(-1, args.pp).T.contiguous()
        return DeviceMesh(device.type, grid, {NAMES})
        """,
            None,
        ],
        says="neighbours",
    ),
    Answer(
        9,
        "the names of the axes are swapped",
        swap=('("pp", "data")', '("data", "pp")'),
        says="the axis pp has 3 ranks",
    ),
    Answer(
        9,
        "a stage for every rank",
        [f"return init_device_mesh(device.type, (world_size, 1), {NAMES})", None],
        says="the axis pp has 6 ranks",
    ),
    Answer(
        9,
        "rows that go upside down",
        [f"return DeviceMesh(device.type, torch.arange(world_size).view(args.pp, -1).flip(0), {NAMES})", None],
        says="are not in ascending order",
    ),
    Answer(
        9,
        "data parallel outside, pipelines inside, as usual",
        ['return init_device_mesh(device.type, (world_size // args.pp, args.pp), mesh_dim_names=("data", "pp"))', None],
        says="are not its neighbours",
    ),
    Answer(
        9,
        "a square, whatever it is",
        [
            f"side = max(d for d in range(1, world_size + 1) if world_size % d == 0 and d * d <= world_size)\nreturn init_device_mesh(device.type, (side, world_size // side), {NAMES})",
            None,
        ],
        says="the axis pp has",
    ),
    Answer(9, "what does not divide is filled up", swap=("drop_last=True", "drop_last=False"), says="are repeated"),
    Answer(
        9,
        "by the rank in the world",
        swap=('mesh["data"].get_local_rank()', 'dist.get_rank() // mesh["pp"].size()'),
        says="",
    ),
    Answer(8, "the epoch is lost", swap=('"epoch": epoch', '"epoch": 0'), says="epoch"),
    Answer(
        8,
        "in half precision",
        swap=(
            "for part in parts for name, weight in part.items()}",
            "for part in parts for name, weight in ((n, w.bfloat16()) for n, w in part.items())}",
        ),
        says="",
    ),
    Answer(
        8,
        "parameters, with all that hangs on them",
        swap=(
            "dist.gather_object(own, parts",
            "dist.gather_object({n: nn.Parameter(w) for n, w in own.items()}, parts",
        ),
        says="which only a process group can read",
    ),
    Answer(
        8,
        "the last rank writes",
        [
            """
        if mesh["data"].get_local_rank() == 0:
            parts = [None] * mesh["pp"].size()
            dist.all_gather_object(parts, own, group=mesh["pp"].get_group())
            if mesh["pp"].get_local_rank() == mesh["pp"].size() - 1:
                own = {name: weight for part in parts for name, weight in part.items()}
                path.parent.mkdir(parents=True, exist_ok=True)
                torch.save({"model": own, "config": config, "epoch": epoch}, path)
        """
        ],
        says="",
    ),
    Answer(
        9,
        "validation shuffled by the world",
        swap=(
            (
                'ShardSampler(test, where["rank"], where["num_replicas"])',
                "ShardSampler(test, dist.get_rank(), dist.get_world_size())",
            ),
        ),
        says="test samples",
    ),
    Answer(
        9,
        "the epochs are all alike",
        swap=("shuffle=True, seed=args.seed, drop_last=True)", "shuffle=True, seed=args.seed, drop_last=True)"),
        edits=(("            samplers[0].set_epoch(epoch)\n", ""),),
        says="",
    ),
    Answer(
        9, "without the seed", swap=("shuffle=True, seed=args.seed,", "shuffle=True,"), says="samples of the serial run"
    ),
    Answer(
        9,
        "stages of the nearest square",
        swap=(
            "(args.pp, world_size // args.pp)",
            "(min(args.pp, world_size // args.pp), max(args.pp, world_size // args.pp))",
        ),
        says="the axis pp has",
    ),
    Answer(
        8,
        "names with stages",
        swap=(
            "{name: weight for part in parts for name, weight in part.items()}",
            '{f"stage{i}.{name}": weight for i, part in enumerate(parts) for name, weight in part.items()}',
        ),
        says="and there is stage0.",
    ),
]


RIGHT = [
    Answer(
        8,
        "all pipelines send their copies",
        swap=(
            ('if mesh["data"].get_local_rank() == 0:', "if True:"),
            ('mesh["pp"].size() if dist', "dist.get_world_size() if dist"),
            (', group=mesh["pp"].get_group(), group_dst=0', ", dst=0"),
        ),
    ),
    Answer(
        8,
        "tensor by tensor over the world",
        """
        mine = [list(own)] if mesh["data"].get_local_rank() == 0 else [[]]
        names = [None] * dist.get_world_size()
        dist.all_gather_object(names, mine[0])
        full = dict(own)
        for rank, theirs in enumerate(names):
            for name in theirs if rank else ():
                if dist.get_rank() == rank:
                    dist.send_object_list([own[name]], 0)
                elif dist.get_rank() == 0:
                    box = [None]
                    dist.recv_object_list(box, rank)
                    full[name] = box[0]
        save0({"model": full, "config": config, "epoch": epoch}, path)
        """,
    ),
    Answer(
        8,
        "over the world, where other pipelines give nothing",
        """
        parts = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object({} if mesh["data"].get_local_rank() else own, parts, group_dst=0)
        if parts:
            own = {name: weight.clone() for part in parts for name, weight in part.items()}
        save0({"model": own, "config": config, "epoch": epoch}, path)
        """,
    ),
    Answer(
        9,
        "by the groups",
        [
            None,
            """
        group = mesh.get_group("data")
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        return (
            DistributedSampler(train, num_replicas=size, rank=rank, shuffle=True, seed=args.seed, drop_last=True),
            ShardSampler(validation, rank=rank, world_size=size),
            ShardSampler(test, rank=rank, world_size=size),
        )
        """,
        ],
    ),
    Answer(
        9,
        "a mesh made of a tensor",
        [f"return DeviceMesh(device.type, torch.arange(world_size).view(args.pp, -1), {NAMES})", None],
    ),
    Answer(
        9,
        "by the number of pipelines, as the flags have it",
        [
            'copies = world_size // args.pp\nranks = torch.arange(world_size).reshape(args.pp, copies)\nreturn DeviceMesh(device.type, ranks, mesh_dim_names=("pp", "data"))',
            """
            shares = dist.get_world_size() // args.pp
            share = dist.get_rank() % shares
            return (
                DistributedSampler(train, shares, share, seed=args.seed, drop_last=True),
                ShardSampler(validation, share, shares), ShardSampler(test, share, shares),
            )
            """,
        ],
    ),
    Answer(
        9,
        "the axes named the other way round, and each as it must be",
        [
            'grid = torch.arange(world_size).view(args.pp, -1).T.contiguous()\nreturn DeviceMesh(device.type, grid, mesh_dim_names=("data", "pp"))',
            None,
        ],
    ),
    Answer(
        8,
        "the whole world gathers, and only one pipeline says something",
        """
        boxes = [None] * dist.get_world_size() if not dist.get_rank() else None
        dist.gather_object(own if mesh["data"].get_local_rank() == 0 else None, boxes)
        if boxes:
            for box in filter(None, boxes):
                own |= box
        save0({"model": own, "config": config, "epoch": epoch}, path)
        """,
    ),
    Answer(
        9,
        "samplers in a loop",
        [
            None,
            """
        copies = mesh["data"]
        rank, size = copies.get_local_rank(), copies.size()
        first = DistributedSampler(train, rank=rank, num_replicas=size, drop_last=True, seed=args.seed)
        return (first, *(ShardSampler(s, world_size=size, rank=rank) for s in (validation, test)))
        """,
        ],
    ),
    Answer(
        8,
        "sent tensor by tensor, and saved by torch.save",
        """
        group, p, r = mesh["pp"].get_group(), mesh["pp"].size(), mesh["pp"].get_local_rank()
        if mesh["data"].get_local_rank() == 0:
            if r:
                dist.send_object_list([[(name, tuple(w.shape)) for name, w in own.items()]], group_dst=0, group=group)
                for w in own.values():
                    dist.send(w.contiguous(), group_dst=0, group=group)
            else:
                for other in range(1, p):
                    box = [None]
                    dist.recv_object_list(box, group_src=other, group=group)
                    for name, shape in box[0]:
                        own[name] = torch.empty(shape)
                        dist.recv(own[name], group_src=other, group=group)
        if dist.get_rank() == 0:
            torch.save({"model": own, "config": config, "epoch": epoch}, path)
        """,
    ),
]
