"""Other answers to TODOs 4 to 6 of streaming_training."""

from grader.kit import Answer

WRONG = [
    Answer(
        4,
        "all rows shuffled, in pieces",
        "yield from torch.randperm(n_rows, generator=generator).split(args.block_rows * args.buffer)",
        says="all over the disk",
    ),
    Answer(
        4,
        "blocks in the order of the text",
        swap=(
            "torch.randperm(-(-n_rows // args.block_rows), generator=generator)",
            "torch.arange(-(-n_rows // args.block_rows))",
        ),
        says="neighbouring blocks",
    ),
    Answer(
        4,
        "blocks shuffled, rows not",
        swap=("rows[torch.randperm(len(rows), generator=generator)]", "rows"),
        says="blocks follow each other",
    ),
    Answer(
        4,
        "torch's own generator",
        swap=("torch.randperm(len(rows), generator=generator)", "torch.randperm(len(rows))"),
        says="two ranks have different orders",
    ),
    Answer(
        4,
        "the short block left out",
        swap=("torch.randperm(-(-n_rows // args.block_rows)", "torch.randperm(n_rows // args.block_rows"),
        says="is missing",
    ),
    Answer(4, "rows that are not there", swap=("rows = rows[rows < n_rows]\n", "\n"), says="there is a row"),
    Answer(
        4,
        "a piece for each block",
        swap=("blocks.split(args.buffer)", "blocks.split(1)"),
        says="fewer rows than the buffer allows",
    ),
    Answer(
        4,
        "each piece shuffled in the same way",
        swap=(
            "yield rows[torch.randperm(len(rows), generator=generator)]",
            "yield rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(args.seed + epoch))]",
        ),
        says="in the same way",
    ),
    Answer(
        4,
        "the same order in each epoch",
        """
        generator = torch.Generator().manual_seed(args.seed)
        blocks = torch.randperm(-(-n_rows // args.block_rows), generator=generator)
        for own in blocks.split(args.buffer):
            rows = (own[:, None] * args.block_rows + torch.arange(args.block_rows)).flatten()
            rows = rows[rows < n_rows]
            yield rows[torch.randperm(len(rows), generator=generator)]
        """,
        says="different epoch",
    ),
    Answer(5, "workers forgotten", swap=(" & (step % workers == worker)", ""), says="is read by worker"),
    Answer(
        5,
        "every reader a share of its own, whatever the loader asks for",
        "return samples % (world_size * workers) == rank * workers + worker",
        says="of step",
    ),
    Answer(
        5,
        "ranks by step, not within a step",
        """
        step = samples // args.batch_size
        return (step % world_size == rank) & (step // world_size % workers == worker)
        """,
        says="of step",
    ),
    Answer(5, "workers deal within a step", swap=("step % workers", "place % workers"), says="of step"),
    Answer(5, "ranks forgotten", "return samples // args.batch_size % workers == worker", says="is read by worker"),
    Answer(
        6,
        "workers forgotten",
        "return range(n_rows * rank // world_size, n_rows * (rank + 1) // world_size)",
        says="several",
    ),
    Answer(6, "in turn", "return range(rank * workers + worker, n_rows, world_size * workers)", says="here and there"),
    Answer(
        6,
        "the rest left out",
        """
        reader, readers = rank * workers + worker, world_size * workers
        return range(n_rows // readers * reader, n_rows // readers * (reader + 1))
        """,
        says="read by no reader",
    ),
    Answer(
        6,
        "the rest to the last one",
        """
        reader, readers = rank * workers + worker, world_size * workers
        return range(n_rows // readers * reader, n_rows if reader == readers - 1 else n_rows // readers * (reader + 1))
        """,
        says="wait for the one with the most",
    ),
    Answer(
        6,
        "rounded up",
        """
        reader, readers = rank * workers + worker, world_size * workers
        own = -(-n_rows // readers)
        return range(min(own * reader, n_rows), min(own * (reader + 1), n_rows))
        """,
        says="wait for the one with the most",
    ),
]


RIGHT = [
    Answer(
        4,
        "row by row",
        """
        blocks = torch.randperm(math.ceil(n_rows / args.block_rows), generator=generator).tolist()
        for first in range(0, len(blocks), args.buffer):
            rows = []
            for block in blocks[first : first + args.buffer]:
                rows += range(block * args.block_rows, min((block + 1) * args.block_rows, n_rows))
            order = torch.randperm(len(rows), generator=generator).tolist()
            yield torch.tensor([rows[k] for k in order])
        """,
    ),
    Answer(
        4,
        "by numpy, with a seed of seed and epoch",
        """
        drawn = np.random.default_rng((args.seed, epoch))
        blocks = drawn.permutation(-(-n_rows // args.block_rows))
        for first in range(0, len(blocks), args.buffer):
            own = blocks[first : first + args.buffer]
            rows = np.concatenate([np.arange(b * args.block_rows, min((b + 1) * args.block_rows, n_rows)) for b in own])
            drawn.shuffle(rows)
            yield torch.from_numpy(rows)
        """,
    ),
    Answer(
        5,
        "in turn within a step",
        "return (samples % world_size == rank) & (samples // args.batch_size % workers == worker)",
    ),
    Answer(
        5,
        "by the number of the batch",
        """
        batch = samples // (args.batch_size // world_size)
        return (batch % world_size == rank) & (batch // world_size % workers == worker)
        """,
    ),
    Answer(
        6,
        "the first ones have one more",
        """
        reader, readers = rank * workers + worker, world_size * workers
        own, more = divmod(n_rows, readers)
        begin = reader * own + min(reader, more)
        return range(begin, begin + own + (reader < more))
        """,
    ),
    Answer(
        6,
        "workers outside, ranks inside",
        """
        reader, readers = worker * world_size + rank, world_size * workers
        return range(reader * n_rows // readers, (reader + 1) * n_rows // readers)
        """,
    ),
]
