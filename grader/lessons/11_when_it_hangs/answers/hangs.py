"""Other answers to TODOs 1 to 5 of 11_when_it_hangs."""

from grader.kit import Answer

WRONG = [
    Answer(
        2,
        "by the numbers that are not 0",
        swap=("key=lambda p: p.numel()", "key=lambda p: int(p.grad.count_nonzero())"),
        says="rank",
    ),
    Answer(
        2,
        "by the norm where sizes are equal",
        swap=("key=lambda p: p.numel()", "key=lambda p: (p.numel(), p.grad.norm().item())"),
        says="is not the mean over the ranks",
    ),
    Answer(
        2,
        "by rank 0's norms",
        [
            """
            parameters = list(model.parameters())
            norms = torch.stack([p.grad.norm() for p in parameters])
            dist.broadcast(norms, src=0)
            parameters = [parameters[i] for i in norms.argsort(descending=True).tolist()]
            """,
            None,
        ],
        says="small gradients go before",
    ),
    Answer(
        5,
        "the node that the job was submitted on",
        ["before = 'export MASTER_ADDR=$SLURM_SUBMIT_HOST'\non_each_node = ':'", None],
        says="login",
    ),
    Answer(
        1,
        "one barrier more, in the other branch",
        [
            """
            if dist.get_rank() == 0:
                save0(content, path)
                dist.barrier()
            else:
                dist.all_reduce(torch.zeros(1))
            """,
            None,
        ],
        says="skipped a call",
    ),
    Answer(
        1,
        "one barrier more for all",
        [
            """
            if dist.get_rank() == 0:
                save0(content, path)
                dist.barrier()
            dist.barrier()
            """,
            None,
        ],
        says="skipped a call",
    ),
    Answer(
        1,
        "the others do not wait, in a try",
        [
            """
            try:
                if dist.get_rank() == 0:
                    save0(content, path)
                    dist.barrier()
            except RuntimeError:
                pass
            """,
            None,
        ],
        says="rank",
    ),
    Answer(1, "no barrier at all", ["save0(content, path)", None], says="before the others can know"),
    Answer(1, "the barrier first", ["dist.barrier()\nsave0(content, path)", None], says="before the others can know"),
    Answer(
        1,
        "every rank saves",
        ["path.parent.mkdir(exist_ok=True)\ntorch.save(content, path)\ndist.barrier()", None],
        says="write the checkpoint",
    ),
    Answer(1, "the other rank is blamed", [None, 'return 1, "all_reduce", "global_mean"'], says="the rank that waits"),
    Answer(1, "the function above it", [None, 'return 0, "barrier", "evaluate"'], says="the function in which"),
    Answer(
        2,
        "a barrier before, and the norm as before",
        swap=(
            "parameters = sorted(model.parameters(), key=lambda p: p.numel",
            "dist.barrier()\nparameters = sorted(model.parameters(), key=lambda p: p.grad.norm",
        ),
        says="",
    ),
    Answer(2, "as they come", ["parameters = list(model.parameters())", None], says="small gradients go before"),
    Answer(
        2,
        "the order is right on rank 0 only",
        [
            """
            key = (lambda p: p.numel()) if dist.get_rank() == 0 else (lambda p: p.grad.norm())
            parameters = sorted(model.parameters(), key=key, reverse=True)
            """,
            None,
        ],
    ),
    Answer(2, "DETAIL sees all", [None, 'return "shape", True'], says="whether DETAIL"),
    Answer(2, "another operation", [None, 'return "operation", False'], says="where the fingerprints"),
    Answer(
        3, "padded", ["return (order + order[: -len(order) % world])[rank::world]", None], says="read twice, by rank"
    ),
    Answer(
        3,
        "in one piece",
        ["each = len(order) // world\nreturn order[rank * each : (rank + 1) * each]", None],
        says="what rank 0 reads in step 1 belongs to step 0",
    ),
    Answer(
        3,
        "rank 0 has one less",
        ["return order[rank::world][: len(order) // world - (rank == 0)]", None],
        says="rank 0 has no sample, while rank 1 still trains",
    ),
    Answer(
        3,
        "one is always dropped",
        ["return order[rank::world][: len(order) // world - 1]", None],
        says="is missing on every rank, though a sample is left for each",
    ),
    Answer(3, "all ranks read all", ["return order[: len(order) // world]", None], says="read twice"),
    Answer(3, "the rank that died", [None, 'return 1, "global_mean", "train_epoch"'], says="the rank with one batch"),
    Answer(
        4,
        "a loss with a gradient of zeros",
        [
            """
            try:
                return model(x, y)
            except RuntimeError:
                return sum(p.sum() for p in model.parameters()) * 0
            """,
            None,
        ],
        says="as if nothing had happened",
    ),
    Answer(
        4,
        "once more, then skipped",
        [
            """
            for _ in range(2):
                try:
                    return model(x, y)
                except RuntimeError:
                    pass
            return torch.zeros((), requires_grad=True)
            """,
            None,
        ],
        says="as if nothing had happened",
    ),
    Answer(
        4,
        "an exit without a word",
        [
            """
            try:
                return model(x, y)
            except RuntimeError:
                raise SystemExit(0)
            """,
            None,
        ],
        says="ends the process",
    ),
    Answer(
        4,
        "another error, cut off from its cause",
        [
            """
            try:
                return model(x, y)
            except RuntimeError:
                failed = True
            raise ValueError("this batch cannot be trained on")
            """,
            None,
        ],
        says="the cause is lost",
    ),
    Answer(4, "the rank that complains", [None, "return 0, 4503599627370496"], says="the rank"),
    Answer(
        5,
        "each node itself, before srun in quotes",
        swap=(
            ("'export MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)'", '":"'),
            ('on_each_node = ":"', 'on_each_node = "export MASTER_ADDR=localhost"'),
        ),
        says="not the first node",
    ),
    Answer(5, "the last node", swap=("head -n 1", "tail -n 1"), says="not the first node"),
    Answer(5, "not exported", swap=("'export MASTER_ADDR", "'MASTER_ADDR"), says="not the first node"),
    Answer(5, "all twelve wait at node 0", [None, "return 12, 0"], says="how many ranks wait at node 0"),
    Answer(5, "node 1 looks in vain, not node 2", [None, "return 4, 4"], says="how many ranks look where no store is"),
    Answer(
        4,
        "once more, which may go well",
        ["try:\n    return model(x, y)\nexcept RuntimeError:\n    return model(x, y)", None],
        says="as if nothing had happened",
    ),
    Answer(
        4,
        "another error, and the first one is suppressed",
        [
            """
            try:
                return model(x, y)
            except RuntimeError:
                raise ValueError("this batch cannot be trained on") from None
            """,
            None,
        ],
        says="the cause is lost",
    ),
    Answer(
        4,
        "an exit by sys",
        ["try:\n    return model(x, y)\nexcept RuntimeError:\n    sys.exit(0)", None],
        says="ends the process",
    ),
    Answer(1, "a barrier that is not awaited", ["save0(content, path)\ndist.barrier(async_op=True)", None]),
    Answer(
        1,
        "named behind the barrier",
        [
            'part = path.with_suffix(".part")\nsave0(content, part)\ndist.barrier()\n'
            "if dist.get_rank() == 0:\n    part.rename(path)",
            None,
        ],
    ),
    Answer(1, "a barrier in odd epochs", ["save0(content, path)\nif epoch % 2:\n    dist.barrier()", None]),
    Answer(
        4,
        "ends at the second failure",
        [
            "try:\n    return model(x, y)\nexcept RuntimeError:\n"
            "    args.failures = getattr(args, 'failures', 0) + 1\n    if args.failures > 1:\n        raise\n"
            "    return torch.zeros((), requires_grad=True)",
            None,
        ],
    ),
    Answer(
        5,
        "the first in the alphabet",
        [
            "before = 'export MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | sort | head -n 1)'\n"
            "on_each_node = ':'",
            None,
        ],
    ),
    Answer(
        5,
        "a port for each node",
        swap=('on_each_node = ":"', "on_each_node = 'export MASTER_PORT=$((MASTER_PORT + SLURM_NODEID))'"),
        says="different ports",
    ),
    Answer(
        1,
        "the first two meet",
        swap=(
            ("save0(content", "pair = dist.new_group(list(range(min(2, dist.get_world_size()))))\nsave0(content"),
            ("dist.barrier()", "if dist.get_rank() < 2:\n    dist.barrier(group=pair)"),
        ),
        says="rank 2 returns, whether the file is complete or not",
    ),
    Answer(
        1,
        "names of DDP",
        ['save0({"model": model.state_dict(), "config": config, "epoch": epoch}, path)\ndist.barrier()', None],
        says="the file does not have the given content",
    ),
    Answer(
        3,
        "at least one sample",
        ["return order[rank::world][: max(1, len(order) // world)]", None],
        says="1 sample on 2 ranks: in step 0, rank 1 has no sample, while rank 0 still trains",
    ),
]


RIGHT = [
    Answer(
        1,
        "a message to all, into the folder that is there",
        ["if dist.get_rank() == 0:\n    torch.save(content, path)\ndist.broadcast(torch.zeros(1), src=0)", None],
    ),
    Answer(
        1,
        "torch.save on rank 0, then a reduction for all",
        [
            """
            if dist.get_rank() == 0:
                path.parent.mkdir(parents=True, exist_ok=True)
                torch.save(content, path)
            dist.all_reduce(torch.zeros(1))
            """,
            None,
        ],
    ),
    Answer(
        2,
        "by bytes, and by name where they are equal",
        [
            """
            named = sorted(model.named_parameters(), key=lambda pair: (-pair[1].nbytes, pair[0]))
            parameters = [parameter for _, parameter in named]
            """,
            None,
        ],
    ),
    Answer(3, "cut after it is dealt", ["return order[rank::world][: len(order) // world]", None]),
    Answer(
        4,
        "told first, then raised",
        [
            """
            try:
                return model(x, y)
            except RuntimeError as problem:
                print(f"rank {dist.get_rank()}: {problem}")
                raise
            """,
            None,
        ],
    ),
    Answer(
        4,
        "another error, from the first",
        [
            """
            try:
                return model(x, y)
            except RuntimeError as problem:
                raise RuntimeError(f"rank {dist.get_rank()} has too little memory") from problem
            """,
            None,
        ],
    ),
    Answer(
        5,
        "on each node, the first of the list",
        swap=(
            ("'export MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)'", '":"'),
            (
                'on_each_node = ":"',
                'on_each_node = "export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"',
            ),
        ),
    ),
    Answer(
        4,
        "told on stderr, by what the first cell imports, then raised",
        [
            """
            try:
                return model(x, y)
            except RuntimeError as problem:
                print(f"rank {dist.get_rank()}: {problem}", file=sys.stderr)
                raise
            """,
            None,
        ],
    ),
]
