"""Other answers to TODOs 1 and 2 of fsdp_training."""

from grader.kit import Answer

NAMES = 'mesh_dim_names=("replicate", "shard")'


WRONG = [
    Answer(
        1,
        "one copy, whatever the strategy",
        f"return init_device_mesh(device.type, (1, world_size), {NAMES})",
        says="the grid is 1 × 6",
    ),
    Answer(
        1,
        "rows for columns",
        f"""
        copies = {{"none": world_size, "grad": 1, "full": 1, "hybrid": args.replicas}}[args.sharding]
        return init_device_mesh(device.type, (world_size // copies, copies), {NAMES})
        """,
        says="the grid is",
    ),
    Answer(
        1,
        "--replicas is not looked at",
        f"""
        copies = {{"none": world_size, "hybrid": 2}}.get(args.sharding, 1)
        return init_device_mesh(device.type, (copies, world_size // copies), {NAMES})
        """,
        says="--replicas 3",
    ),
    Answer(
        1,
        "neighbours are copies: the weights of a layer go over the slow links",
        f"""
        copies = {{"none": world_size, "hybrid": args.replicas}}.get(args.sharding, 1)
        return DeviceMesh(device.type, torch.arange(world_size).view(-1, copies).T.contiguous(), {NAMES})
        """,
        says="neighbours",
    ),
    Answer(
        2,
        "the others' last batches are left out",
        """
        least = torch.tensor(len(loader), device=device)
        dist.all_reduce(least, dist.ReduceOp.MIN)
        yield from islice(loader, int(least))
        """,
        says="; the rank with the most batches has",
    ),
    Answer(
        2,
        "the last batch again, with its targets",
        """
        most = torch.tensor(len(loader), device=device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        x = y = torch.zeros(1, args.seq_len, dtype=torch.int64)
        for x, y in loader:
            yield x, y
        for _ in range(int(most) - len(loader)):
            yield x, y
        """,
        says="a different loss",
    ),
    Answer(
        2,
        "waits at a barrier for those that have more",
        """
        yield from loader
        dist.barrier()
        """,
    ),
    Answer(
        2,
        "a rank without a sample leaves",
        """
        most = torch.tensor(len(loader), device=device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        x = None
        for x, y in loader:
            yield x, y
        for _ in range(int(most) - len(loader) if x is not None else 0):
            yield x, torch.full_like(y, IGNORE)
        """,
    ),
    Answer(
        2,
        "the sum of all batches for the most",
        swap=("dist.ReduceOp.MAX", "dist.ReduceOp.SUM"),
        says="; the rank with the most batches has",
    ),
    Answer(
        2,
        "a batch more, to be sure",
        swap=("range(int(most) - len(loader))", "range(int(most) + 1 - len(loader))"),
        says="; the rank with the most batches has",
    ),
    Answer(
        1,
        "copies and shards change places in hybrid",
        swap=('"hybrid": args.replicas', '"hybrid": world_size // args.replicas'),
    ),
    Answer(
        2,
        "batches of no samples",
        swap=("torch.zeros(1, args.seq_len, dtype=torch.int64)", "torch.zeros(0, args.seq_len, dtype=torch.int64)"),
    ),
    Answer(1, "two copies at least", swap=('"hybrid": args.replicas', '"hybrid": max(args.replicas, 2)')),
    Answer(
        1,
        "as many copies as ranks count as one copy",
        swap=('"hybrid": args.replicas}', '"hybrid": args.replicas if args.replicas < world_size else 1}'),
        says="replicas 6 on 6",
    ),
]


RIGHT = [
    Answer(
        1,
        "a mesh made of a tensor",
        f"""
        columns = {{"none": 1, "hybrid": world_size // args.replicas}}.get(args.sharding, world_size)
        return DeviceMesh(device.type, torch.arange(world_size).view(-1, columns), {NAMES})
        """,
    ),
    Answer(
        2,
        "counted without asking the others",
        """
        most = math.ceil(math.ceil(len(loader.dataset) / dist.get_world_size()) / loader.batch_size)
        for k, batch in enumerate(loader):
            yield batch
        for _ in range(len(loader), most):
            yield torch.ones(2, args.seq_len, dtype=torch.int64), torch.full((2, args.seq_len), IGNORE)
        """,
    ),
    Answer(
        2,
        "by a list of lengths",
        "lengths = [None] * dist.get_world_size()\ndist.all_gather_object(lengths, len(loader))\nyield from loader\nfor _ in range(max(lengths) - len(loader)):\n    yield torch.zeros(2, args.seq_len, dtype=torch.int64), torch.full((2, args.seq_len), IGNORE)",
    ),
    Answer(
        1,
        "a mesh of its own numbers",
        """
        copies = {"none": world_size, "grad": 1, "full": 1}.get(args.sharding, args.replicas)
        return DeviceMesh(device.type, torch.arange(world_size).view(copies, -1), mesh_dim_names=("replicate", "shard"))
        """,
    ),
    Answer(
        2,
        "each rank hears all lengths",
        """
        lengths = [torch.zeros((), dtype=torch.int64, device=device) for _ in range(dist.get_world_size())]
        dist.all_gather(lengths, torch.tensor(len(loader), device=device))
        yield from loader
        x = torch.zeros(1, args.seq_len, dtype=torch.int64)
        y = torch.full((1, args.seq_len), IGNORE)
        for _ in range(len(loader), max(int(length) for length in lengths)):
            yield x, y
        """,
    ),
    Answer(
        2,
        "at most one batch without targets: shares differ by a sample",
        swap=("for _ in range(int(most) - len(loader)):", "if int(most) > len(loader):"),
    ),
]
