"""Other answers to the TODOs of streaming_training: what loaders get wrong, and what is right as well."""

from grader.kit import Answer

READ = """
    found = []
    for number, file in enumerate(split.files):
        if file.first < end and begin < file.first + file.tokens:
            {open}
            found.append({tokens}[max(begin - file.first, 0) : end - file.first])
    return torch.from_numpy(np.concatenate(found).astype(np.int64))
"""

WRONG = [
    Answer(
        1,
        "each file read as a whole, once",
        READ.format(
            open="if number not in maps:\n                maps[number] = np.fromfile(file.path, split.dtype)",
            tokens="maps[number]",
        ),
        says="MiB are read",
    ),
    Answer(
        1,
        "a map that is copied",
        swap=('np.memmap(file.path, split.dtype, "r")', 'np.array(np.memmap(file.path, split.dtype, "r"))'),
        says="MiB are read",
    ),
    Answer(
        1,
        "opened for each row",
        READ.format(open='tokens = np.memmap(file.path, split.dtype, "r")', tokens="tokens"),
        says="opens the same file",
    ),
    Answer(
        1,
        "all files opened at the first row",
        """
        if not maps:
            maps.update({number: np.memmap(file.path, split.dtype, "r") for number, file in enumerate(split.files)})
        found = [
            maps[number][max(begin - file.first, 0) : max(end - file.first, 0)]
            for number, file in enumerate(split.files)
            if begin < file.first + file.tokens
        ]
        return torch.from_numpy(np.concatenate(found).astype(np.int64))
        """,
        says="although no token in it is asked for",
    ),
    Answer(1, "always uint16", swap=("np.memmap(file.path, split.dtype", 'np.memmap(file.path, "<u2"'), says="32 bits"),
    Answer(
        1,
        "signed numbers",
        swap=("np.memmap(file.path, split.dtype", 'np.memmap(file.path, split.dtype.replace("u", "i")'),
    ),
    Answer(
        1,
        "only the file in which the range begins",
        """
        number, file = next((n, f) for n, f in enumerate(split.files) if begin < f.first + f.tokens)
        if number not in maps:
            maps[number] = np.memmap(file.path, split.dtype, "r")
        return torch.from_numpy(maps[number][begin - file.first : end - file.first].astype(np.int64))
        """,
        says="has shape",
    ),
    Answer(
        1,
        "two files at most",
        """
        first = next(n for n, f in enumerate(split.files) if begin < f.first + f.tokens)
        found = []
        for number in range(first, min(first + 2, len(split.files))):
            file = split.files[number]
            if file.first < end:
                if number not in maps:
                    maps[number] = np.memmap(file.path, split.dtype, "r")
                found.append(maps[number][max(begin - file.first, 0) : end - file.first])
        return torch.from_numpy(np.concatenate(found).astype(np.int64))
        """,
    ),
    Answer(2, "written into x, too", ["y[starts] = IGNORE", None], says="tokens, which it is given, is written into"),
    Answer(2, "one place too late", ["y = y.clone()\ny[(starts + 1)[starts + 1 < len(y)]] = IGNORE", None], says=" y "),
    Answer(2, "the end of a document, not its start", ["y = y.clone()\ny[starts - 1] = IGNORE", None], says=" y "),
    Answer(2, "only the first document of a row", ["y = y.clone()\ny[starts[:1]] = IGNORE", None], says=" y "),
    Answer(2, "eos in place of IGNORE", ["y = y.clone()\ny[starts] = eos", None], says=" y "),
    Answer(2, "x changed instead", ["x = x.clone()\nx[starts] = eos", None], says=" x "),
    Answer(2, "only the short row is counted", [None, "return n_tokens % args.seq_len"], says="thrown_away"),
    Answer(
        2,
        "only the short batch is counted",
        [None, "return n_tokens // args.seq_len % args.batch_size * args.seq_len"],
        says="thrown_away",
    ),
    Answer(3, "each rank a part of the mean", "return loss / dist.get_world_size()", says="rank 0's"),
    Answer(3, "without DDP's division", swap=("n_targets * dist.get_world_size() / ", "n_targets / "), says="targets"),
    Answer(3, "a sum, not a mean", "return loss * n_targets * dist.get_world_size()"),
    Answer(3, "nothing by nothing", swap=("total.clamp(min=1)", "total"), says="nan"),
    Answer(
        3, "a number that has lost its graph", swap=("return loss * ", "return loss.detach() * "), says="lost its way"
    ),
    Answer(
        3,
        "the count itself is reduced",
        """
        own = n_targets
        dist.all_reduce(n_targets)
        return loss * (own * dist.get_world_size() / n_targets.clamp(min=1))
        """,
        says="n_targets",
    ),
    Answer(
        4,
        "all rows shuffled, in pieces",
        "yield from torch.randperm(n_rows, generator=generator).split(args.block * args.buffer)",
        says="all over the disk",
    ),
    Answer(
        4,
        "blocks in the order of the text",
        swap=(
            "torch.randperm(-(-n_rows // args.block), generator=generator)",
            "torch.arange(-(-n_rows // args.block))",
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
        swap=("torch.randperm(-(-n_rows // args.block)", "torch.randperm(n_rows // args.block"),
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
        blocks = torch.randperm(-(-n_rows // args.block), generator=generator)
        for own in blocks.split(args.buffer):
            rows = (own[:, None] * args.block + torch.arange(args.block)).flatten()
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
    Answer(7, "the machine's CPUs", swap=("len(os.sched_getaffinity(0))", "os.cpu_count()"), says="CPU"),
    Answer(7, "Slurm forgotten", swap=('os.environ.get("SLURM_CPUS_PER_TASK") or ', ""), says="SLURM_CPUS_PER_TASK"),
    Answer(
        7,
        "each rank takes all CPUs",
        swap=('cpus // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) - 1', "cpus - 1"),
        says="LOCAL_WORLD_SIZE",
    ),
    Answer(7, "none left for the rank", swap=('"1")) - 1, 0)', '"1")), 0)'), says="workers"),
    Answer(7, "at least one", swap=("- 1, 0)", "- 1, 1)"), says="workers"),
    Answer(7, "as many as there are", swap=("min(max(", "max(max("), says="workers"),
    Answer(7, "new workers in each epoch", swap=("    persistent_workers=args.workers > 0,\n", ""), says="new workers"),
    Answer(
        7,
        "no workers",
        swap=(("num_workers=args.workers", "num_workers=0"), ("args.workers > 0", "False")),
        says="--workers",
    ),
    Answer(7, "ordinary memory", swap=("    pin_memory=torch.cuda.is_available(),\n", ""), says="pinned"),
    Answer(
        7,
        "the global batch on each rank",
        swap=("args.batch_size // world_size", "args.batch_size"),
        says="batches have",
    ),
    Answer(8, "begins anew", [None, "return 0, 0"], says="what seek returns"),
    Answer(8, "steps in place of samples", swap=("steps * args.batch_size", "steps"), says="what seek returns"),
    Answer(
        8, "the samples of a rank", swap=("steps * args.batch_size", "steps * args.batch_size // dist.get_world_size()")
    ),
    Answer(8, "the epoch is lost", swap=('return state["epoch"]', "return 0"), says="what seek returns"),
    Answer(
        8,
        "a list of what was read",
        swap=('"samples": steps * args.batch_size,', '"samples": steps * args.batch_size, "seen": list(range(steps)),'),
        says="not a few numbers",
    ),
    Answer(
        8,
        "a different seed is taken",
        swap=('("seed", "seq_len", "block", "buffer")', '("seq_len", "block", "buffer")'),
        says="seed",
    ),
    Answer(8, "a different buffer is taken", swap=('"block", "buffer")', '"block")'), says="buffer"),
    Answer(8, "a different text is taken", swap=(', "rows": n_rows}', "}"), says="rows"),
    Answer(8, "whatever differs", [None, 'return state["epoch"], state["samples"]'], says="is not refused"),
    Answer(
        8,
        "the workers must be as many",
        swap=('("seed", "seq_len", "block", "buffer")', '("seed", "seq_len", "block", "buffer", "workers")'),
        says="what seek returns",
    ),
]

RIGHT = [
    Answer(
        1,
        "read by position, without a map",
        """
        width, found = np.dtype(split.dtype).itemsize, []
        for number, file in enumerate(split.files):
            first, last = max(begin, file.first), min(end, file.first + file.tokens)
            if first < last:
                if number not in maps:
                    maps[number] = os.open(file.path, os.O_RDONLY)
                found.append(os.pread(maps[number], (last - first) * width, (first - file.first) * width))
        return torch.from_numpy(np.frombuffer(b"".join(found), split.dtype).astype(np.int64))
        """,
    ),
    Answer(
        1,
        "a file that stays open, and is searched",
        """
        import bisect

        width, found = np.dtype(split.dtype).itemsize, []
        number = bisect.bisect_right([file.first for file in split.files], begin) - 1
        while begin < end:
            path, first, tokens = split.files[number]
            if number not in maps:
                maps[number] = open(path, "rb", buffering=0)
            maps[number].seek((begin - first) * width)
            here = min(end, first + tokens) - begin
            found.append(np.frombuffer(maps[number].read(here * width), split.dtype))
            begin, number = begin + here, number + 1
        return torch.tensor(np.concatenate(found).astype(np.int64))
        """,
    ),
    Answer(
        1,
        "mapped by torch",
        """
        found = []
        for number, (path, first, tokens) in enumerate(split.files):
            if first < end and begin < first + tokens:
                if number not in maps:
                    dtype = torch.uint16 if split.dtype == "<u2" else torch.uint32
                    maps[number] = torch.from_file(str(path), shared=False, size=tokens, dtype=dtype)
                found.append(maps[number][max(begin - first, 0) : end - first].to(torch.int64))
        return torch.cat(found)
        """,
    ),
    Answer(
        2,
        "masked",
        [
            "y = y.index_fill(0, starts, IGNORE)",
            "return n_tokens - n_tokens // (args.batch_size * args.seq_len) * args.batch_size * args.seq_len",
        ],
    ),
    Answer(
        2,
        "the two remainders",
        [
            "y = torch.cat([y])\nfor start in starts.tolist():\n    y[start] = IGNORE",
            "rows, short = divmod(n_tokens, args.seq_len)\nreturn short + rows % args.batch_size * args.seq_len",
        ],
    ),
    Answer(
        3,
        "a mean of counts",
        """
        mean = n_targets.float()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        return loss * n_targets / mean if mean > 0 else loss
        """,
    ),
    Answer(
        3,
        "all counts gathered",
        """
        counts = [torch.zeros_like(n_targets) for _ in range(dist.get_world_size())]
        dist.all_gather(counts, n_targets)
        total = max(int(sum(counts)), 1)
        return loss * n_targets.item() * len(counts) / total
        """,
    ),
    Answer(
        4,
        "row by row",
        """
        blocks = torch.randperm(math.ceil(n_rows / args.block), generator=generator).tolist()
        for first in range(0, len(blocks), args.buffer):
            rows = []
            for block in blocks[first : first + args.buffer]:
                rows += range(block * args.block, min((block + 1) * args.block, n_rows))
            order = torch.randperm(len(rows), generator=generator).tolist()
            yield torch.tensor([rows[k] for k in order])
        """,
    ),
    Answer(
        4,
        "by numpy, with a seed of seed and epoch",
        """
        drawn = np.random.default_rng((args.seed, epoch))
        blocks = drawn.permutation(-(-n_rows // args.block))
        for first in range(0, len(blocks), args.buffer):
            own = blocks[first : first + args.buffer]
            rows = np.concatenate([np.arange(b * args.block, min((b + 1) * args.block, n_rows)) for b in own])
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
    Answer(
        7,
        "step by step",
        [
            """
            cpus = len(os.sched_getaffinity(0))
            if "SLURM_CPUS_PER_TASK" in os.environ:
                cpus = int(os.environ["SLURM_CPUS_PER_TASK"])
            ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
            left = cpus // ranks - 1
            return 0 if left < 0 else min(left, MOST_WORKERS)
            """,
            """
            how = {"persistent_workers": True, "prefetch_factor": 4} if args.workers else {}
            return DataLoader(
                rows,
                args.batch_size // world_size,
                num_workers=args.workers,
                pin_memory=torch.cuda.is_available(),
                drop_last=False,
                **how,
            )
            """,
        ],
    ),
    Answer(
        8,
        "all flags of the order, spelled out",
        [
            """
            return {
                "epoch": epoch,
                "samples": args.batch_size * steps,
                "rows": n_rows,
                "seed": args.seed,
                "seq_len": args.seq_len,
                "block": args.block,
                "buffer": args.buffer,
            }
            """,
            """
            here = {"rows": n_rows, "seed": args.seed, "seq_len": args.seq_len, "block": args.block, "buffer": args.buffer}
            different = [name for name in here if state[name] != here[name]]
            if different:
                fail(f"--resume {args.resume}: {', '.join(different)} of the saved run differ")
            return state["epoch"], state["samples"]
            """,
        ],
    ),
    Answer(
        8,
        "all samples since the start, as one number",
        [
            """
            a_pass = n_rows // args.batch_size * args.batch_size
            total = epoch * (a_pass + 1) + steps * args.batch_size
            return {"samples": total, "rows": n_rows, "seed": args.seed, "seq_len": args.seq_len, "block": args.block, "buffer": args.buffer}
            """,
            """
            for name in ("rows", "seed", "seq_len", "block", "buffer"):
                here = n_rows if name == "rows" else getattr(args, name)
                if state[name] != here:
                    fail(f"another {name}")
            return divmod(state["samples"], n_rows // args.batch_size * args.batch_size + 1)
            """,
        ],
    ),
]
