"""Other answers to TODOs 11 and 12 of 04_tensor_parallel."""

from grader.kit import Answer

GENERATORS = "return torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1 + rank)"


WRONG = [
    Answer(11, "its own shards only", swap=("dist.all_reduce(shards)\n", ""), says="is wrong on rank"),
    Answer(
        11,
        "copies count t times",
        swap=("dist.all_reduce(shards)\n", "shards += copies\ncopies -= copies\ndist.all_reduce(shards)\n"),
        says="each copy is counted once on every rank",
    ),
    Answer(11, "copies do not count", swap=("(shards + copies).sqrt()", "shards.sqrt()"), says="copies are left out"),
    Answer(11, "shards do not count", swap=("(shards + copies).sqrt()", "copies.sqrt()"), says="is wrong on rank"),
    Answer(11, "no root", swap=("(shards + copies).sqrt()", "shards + copies"), says="that is its square"),
    Answer(
        11,
        "norms are added",
        swap=("(shards + copies).sqrt()", "shards.sqrt() + copies.sqrt()"),
        says="is wrong on rank",
    ),
    Answer(
        11,
        "the mean over the ranks",
        swap=("dist.all_reduce(shards)\n", "dist.all_reduce(shards)\nshards /= dist.get_world_size()\n"),
        says="is wrong on rank",
    ),
    Answer(
        11,
        "the largest rank",
        swap=("dist.all_reduce(shards)", "dist.all_reduce(shards, dist.ReduceOp.MAX)"),
        says="is wrong on rank",
    ),
    Answer(11, "a frozen one stops it", swap=("if parameter.grad is not None:", "if True:")),
    Answer(
        11,
        "a message for each parameter",
        [
            """
        total = torch.zeros(())
        for parameter in parameters:
            if parameter.grad is not None:
                squares = parameter.grad.float().square().sum()
                if is_sharded(parameter):
                    dist.all_reduce(squares)
                total += squares
        return total.sqrt()"""
        ],
        says="sends",
    ),
    Answer(
        11,
        "a number, no tensor",
        swap=("(shards + copies).sqrt()", "(shards + copies).sqrt().item()"),
        says="no tensor",
    ),
    Answer(
        11, "the weights' norm", swap=("parameter.grad.float()", "parameter.detach().float()"), says="is wrong on rank"
    ),
    Answer(
        12,
        "all ranks' own generator is the same",
        [GENERATORS.replace("seed + 1 + rank", "seed + 1"), None, None],
        says="same mask",
    ),
    Answer(
        12,
        "rank 0's own is the common one",
        [GENERATORS.replace("seed + 1 + rank", "seed + rank"), None, None],
        says="common mask",
    ),
    Answer(
        12,
        "one generator for both",
        ["generator = torch.Generator().manual_seed(seed)\nreturn generator, generator", None, None],
    ),
    Answer(
        12,
        "the common one differs",
        [GENERATORS.replace("manual_seed(seed),", "manual_seed(seed + 100 + rank),"), None, None],
        says="should be the same on all ranks",
    ),
    Answer(
        12,
        "the seed is not used",
        [GENERATORS.replace("seed + 1 + rank", "1 + rank").replace("manual_seed(seed)", "manual_seed(0)"), None, None],
        says="a different seed",
    ),
    Answer(
        12,
        "drawn from the system",
        ["own = torch.Generator()\nown.seed()\nreturn torch.Generator().manual_seed(seed), own", None, None],
        says="the same seed",
    ),
    Answer(
        12, "own masks for four ranks", swap=("seed + 1 + rank", "seed + 1 + rank % 4"), says="of 64 ranks, ranks 0"
    ),
    Answer(12, "not scaled", swap=("x * kept / (1 - p)", "x * kept"), says="divided by 1 - p"),
    Answer(12, "scaled by p", swap=("x * kept / (1 - p)", "x * kept / p")),
    Answer(12, "keeps what it should drop", swap=(">= p", "< p")),
    Answer(12, "torch's own", [None, "return F.dropout(x, p)", None]),
    Answer(
        12,
        "the generator is not used",
        swap=("torch.rand(x.shape, generator=generator)", "torch.rand(x.shape)"),
        says="same mask twice",
    ),
    Answer(
        12,
        "the generator does not move on",
        swap=("torch.rand(x.shape, generator=generator)", "torch.rand(x.shape, generator=generator.clone_state())"),
        says="same mask twice",
    ),
    Answer(12, "no gradient", swap=("return x * kept", "return x.detach() * kept"), says="autograd"),
    Answer(
        12,
        "rows are dropped, not numbers",
        swap=("torch.rand(x.shape, generator=generator)", "torch.rand(x.shape[:-1], generator=generator)[..., None]"),
    ),
    Answer(
        12, "the stream is a copy with sequence parallelism, too", swap=(" and not sequence", ""), says="draws_alike"
    ),
    Answer(12, "alike nowhere", [None, None, "return False"], says="draws_alike"),
    Answer(12, "alike everywhere", [None, None, "return not sequence"], says="draws_alike"),
    Answer(
        12,
        "the hidden layer is alike",
        swap=('("embedding", "residual")', '("embedding", "residual", "hidden")'),
        says="draws_alike",
    ),
    Answer(
        11,
        "no squares, no message",
        swap=("dist.all_reduce(shards)", "if shards > 0:\n    dist.all_reduce(shards)"),
        says="returned from gradient_norm",
    ),
    Answer(12, "seeds by multiplication", swap=("seed + 1 + rank", "seed * (rank + 2)"), says="with seed 0"),
    Answer(
        11,
        "ends at the first frozen parameter",
        swap=(
            "if parameter.grad is not None:\n        squares",
            "if parameter.grad is None:\n        break\n    else:\n        squares",
        ),
        says="shards, copies and a frozen one",
    ),
    Answer(
        11,
        "copies averaged in a second message",
        swap=(
            "dist.all_reduce(shards)\n",
            "dist.all_reduce(shards)\ndist.all_reduce(copies)\ncopies /= dist.get_world_size()\n",
        ),
        says="more than one message of one number",
    ),
    Answer(
        11,
        "a norm in float64",
        swap=(
            "torch.zeros(()), torch.zeros(())",
            "torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)",
        ),
        says="has dtype float64",
    ),
    Answer(12, "x is written in place", swap=("return x * kept / (1 - p)", "x.data *= kept\nreturn x / (1 - p)")),
    Answer(
        12,
        "the global generator",
        ["return torch.manual_seed(seed), torch.Generator().manual_seed(seed + 1 + rank)", None, None],
        says="is torch's default one",
    ),
    Answer(
        12,
        "one mask for all samples",
        swap=("torch.rand(x.shape, generator=generator)", "torch.rand(x.shape[1:], generator=generator)"),
        says="along the first dimension are dropped together",
    ),
]


RIGHT = [
    Answer(
        11,
        "a share of the copies on each rank",
        [
            """
        world = dist.get_world_size()
        total = torch.zeros(1)
        for p in parameters:
            if p.grad is not None:
                total += p.grad.float().norm() ** 2 / (1 if is_sharded(p) else world)
        dist.all_reduce(total)
        return total[0] ** 0.5"""
        ],
    ),
    Answer(
        12,
        "bernoulli, and seeds far apart",
        [
            "return torch.Generator().manual_seed(7 * seed), torch.Generator().manual_seed(7 * seed + 1000003 * "
            "(rank + 1))",
            """
        mask = torch.empty(x.shape).bernoulli_(1 - p, generator=generator).to(x.dtype)
        return x * mask * (1 / (1 - p))""",
            """
        return {"embedding": not sequence, "residual": not sequence, "attention": False, "hidden": False}[place]""",
        ],
    ),
    Answer(
        11,
        "by DTensor",
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Partial
        shards, copies = torch.zeros(()), torch.zeros(())
        for parameter in parameters:
            if parameter.grad is not None:
                (shards if is_sharded(parameter) else copies).add_(parameter.grad.float().square().sum())
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        return (DTensor.from_local(shards, mesh, [Partial()]).full_tensor() + copies).sqrt()""",
    ),
]
