"""Other answers to TODOs 1 to 3 of 13_fewer_bytes."""

from grader.kit import Answer

WRONG = [
    Answer(
        1,
        "the largest number becomes 448",
        swap=(
            "return (torch.frexp(largest_B1).exponent - 1 - 8).clamp(-127, 127)",
            "return torch.log2(largest_B1 / 448).ceil().nan_to_num(0, 0, 0).clamp(-127, 127).int()",
        ),
        says="the exponent of block",
    ),
    Answer(
        1,
        "a logarithm in float32",
        swap=(
            "return (torch.frexp(largest_B1).exponent - 1 - 8).clamp(-127, 127)",
            "return (torch.log2(largest_B1).floor().nan_to_num(0, 0, 0) - 8).clamp(-127, 127).int()",
        ),
        says="just below a power of two",
    ),
    Answer(1, "frexp's exponent as it is", swap=("exponent - 1 - 8", "exponent - 8"), says="the exponent of block"),
    Answer(1, "the largest becomes 1", swap=("exponent - 1 - 8", "exponent - 1"), says="the exponent of block"),
    Answer(1, "no end of the range", swap=(".clamp(-127, 127)", ""), says="hardly has"),
    Answer(
        1,
        "one scale for all blocks",
        swap=("blocks_B32.abs().amax(dim=1, keepdim=True)", "blocks_B32.abs().max().expand(len(blocks_B32), 1)"),
    ),
    Answer(1, "the sign is forgotten", swap=("blocks_B32.abs().amax", "blocks_B32.amax"), says="the exponent of block"),
    Answer(
        1,
        "the scale comes first",
        swap=(
            "torch.cat([codes_B32, (exponents_B1 + 127).to(torch.uint8)], dim=1)",
            "torch.cat([(exponents_B1 + 127).to(torch.uint8), codes_B32], dim=1)",
        ),
    ),
    Answer(
        1,
        "a bias of 128, both ways",
        swap=(("(exponents_B1 + 127)", "(exponents_B1 + 128)"), ("int() - 127", "int() - 128")),
        says="is not its scale's code",
    ),
    Answer(
        1,
        "numbers with two bits of mantissa",
        swap=("scaled_B32.to(torch.float8_e4m3fn)", "scaled_B32.to(torch.float8_e5m2)"),
    ),
    Answer(
        1, "rounded down to whole numbers", swap=("scaled_B32.to(torch.float8", "scaled_B32.trunc().to(torch.float8")
    ),
    Answer(1, "the padding stays", swap=(".view(-1)[:length]", ".view(-1)"), says="what unpack returns"),
    Answer(
        1,
        "the scale is not undone",
        swap=("torch.ldexp(values_B32, exponents_B1)", "values_B32"),
        says="what unpack returns",
    ),
    Answer(
        1,
        "bytes taken for numbers",
        swap=(".contiguous().view(torch.float8_e4m3fn).float()", ".float()"),
        says="what unpack returns",
    ),
    Answer(2, "to the nearest", swap=("torch.rand(values.shape, generator=draw)", "0.5"), says="the mean of"),
    Answer(2, "always down", swap=(" + torch.rand(values.shape, generator=draw)", ""), says="the mean of"),
    Answer(
        2,
        "one random number for all",
        swap=("torch.rand(values.shape, generator=draw)", "torch.rand((), generator=draw)"),
        says="the mean of",
    ),
    Answer(
        2,
        "not from draw",
        swap=("torch.rand(values.shape, generator=draw)", "torch.rand(values.shape)"),
        says="same seed",
    ),
    Answer(
        2,
        "rounded twice",
        swap=("torch.rand(values.shape, generator=draw)", "torch.rand(values.shape, generator=draw).round()"),
        says="the mean of",
    ),
    Answer(2, "no smallest distance", swap=(".clamp(min=-6)", ""), says="not its neighbours"),
    Answer(2, "the smallest distance too large", swap=("clamp(min=-6)", "clamp(min=-5)"), says="not its neighbours"),
    Answer(2, "a distance of two", swap=("exponents - 3", "exponents - 2"), says="not its neighbours"),
    Answer(
        2,
        "one distance for all",
        swap=("torch.frexp(values).exponent - 1", "torch.frexp(values.abs().max()).exponent - 1"),
    ),
    Answer(
        2,
        "towards zero",
        swap=(
            "torch.floor(values / steps + torch.rand(values.shape, generator=draw))",
            "torch.trunc(values / steps + torch.rand(values.shape, generator=draw))",
        ),
    ),
    Answer(
        3,
        "all ranks send all of it",
        [
            """
            world = dist.get_world_size()
            rows = pack(numbers, draw)
            everything = [torch.empty_like(rows) for _ in range(world)]
            dist.all_gather(everything, rows)
            return torch.stack([unpack(their, len(numbers)) for their in everything]).sum(dim=0) / world
            """,
            None,
        ],
    ),
    Answer(
        3,
        "an all-reduce in float32",
        ["total = numbers.clone()\ndist.all_reduce(total)\nreturn total / dist.get_world_size()", None],
        says="is not what it should be",
    ),
    Answer(3, "the sum", swap=(".sum(dim=0) / world", ".sum(dim=0)"), says="what it should be"),
    Answer(
        3,
        "its own part as it was",
        swap=(
            "return unpack(torch.cat(parts), len(numbers))",
            "whole = unpack(torch.cat(parts), world * size)\n"
            "whole[dist.get_rank() * size :][:size] = mean\nreturn whole[: len(numbers)]",
        ),
        says="get different numbers",
    ),
    Answer(
        3,
        "summed in bfloat16",
        swap=(".view(world, size).sum(dim=0)", ".view(world, size).bfloat16().sum(dim=0).float()"),
    ),
    Answer(
        3,
        "the mean is sent in float32",
        swap=(
            ("mine = pack(mean, draw)", "mine = mean"),
            ("return unpack(torch.cat(parts), len(numbers))", "return torch.cat(parts)[: len(numbers)]"),
        ),
    ),
    Answer(
        3,
        "draw is not passed on",
        swap=(("len(numbers))), draw)", "len(numbers))))"), ("pack(mean, draw)", "pack(mean)")),
        says="`draw` is not used",
    ),
    Answer(3, "parts of the wrong ranks", swap=("view(world, size).sum(dim=0)", "view(size, world).sum(dim=1)")),
    Answer(3, "32 bytes for 32 numbers", swap=("* 33 * blocks", "* 32 * blocks"), says="bytes_in_8_bits"),
    Answer(
        3,
        "no padding in the formula",
        [None, "return 2 * (world - 1) * 33 * length // (32 * world)"],
        says="bytes_in_8_bits",
    ),
    Answer(3, "one way only", swap=("return 2 * (world - 1)", "return (world - 1)"), says="bytes_in_8_bits"),
]

RIGHT = [
    Answer(
        1,
        "through float64",
        [
            """
            largest = blocks_B32.double().abs().amax(dim=1, keepdim=True)
            return (torch.log2(largest).floor().nan_to_num(0, 0, -120) - 8).clamp(-127, 127).int()
            """,
            """
            codes = scaled_B32.to(torch.float8_e4m3fn).view(torch.uint8)
            rows = torch.empty(len(codes), 33, dtype=torch.uint8)
            rows[:, :32], rows[:, 32:] = codes, exponents_B1 + 127
            return rows
            """,
            """
            values = rows_B33[:, :32].clone().view(torch.float8_e4m3fn).double()
            return (values * 2.0 ** (rows_B33[:, 32:].double() - 127)).float().flatten()[:length]
            """,
        ],
    ),
    Answer(
        2,
        "between two neighbours, by chance",
        """
        exponents = (torch.frexp(values.abs()).exponent - 1).clamp(min=-6)
        steps = torch.exp2((exponents - 3).float())
        low = torch.floor(values / steps)
        up = torch.rand(values.shape, generator=draw, dtype=torch.float64) < (values / steps - low)
        return (low + up) * steps
        """,
    ),
    Answer(
        3,
        "a list of parts",
        [
            """
            world, rank = dist.get_world_size(), dist.get_rank()
            blocks = -(-len(numbers) // (32 * world))
            full = torch.zeros(world * blocks * 32)
            full[: len(numbers)] = numbers
            rows = pack(full, draw)
            arrived = torch.empty_like(rows)
            dist.all_to_all_single(arrived, rows)
            mean = torch.zeros(32 * blocks)
            for theirs in arrived.chunk(world):
                mean += unpack(theirs, 32 * blocks) / world
            mine = pack(mean, draw)
            everything = torch.empty(world * len(mine), 33, dtype=torch.uint8)
            dist.all_gather(list(everything.chunk(world)), mine)
            return unpack(everything, len(numbers))
            """,
            "return (world - 1) * 2 * math.ceil(length / (32 * world)) * 33",
        ],
    ),
]
