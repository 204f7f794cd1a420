"""Other answers to TODOs 1 to 3 of streaming_training."""

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
    Answer(1, "open for writing", swap=(', "r")', ")"), says="for writing"),
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
]
