"""Other answers to TODOs 1 to 3 of 03_zero."""

from grader.kit import Answer

BYTES = """
each = bytes_a_parameter(precision)
return tuple(n * parameters / (world if stage >= first else 1) for n, first in zip(each, (3, 2, 1)))
"""


GATHER = """
mine = torch.cat(shards)
table = mine.new_empty(world, len(mine))
dist.all_gather(list(table), mine)
return [columns.reshape(-1) for columns in table.split([len(shard) for shard in shards], dim=1)]
"""


REDUCE = """
sizes = [shard_size(tensor.numel(), world) for tensor in tensors]
rows = [torch.cat([filled(my_part(t, r, world), size) for t, size in zip(tensors, sizes)]) for r in range(world)]
mine = torch.empty_like(rows[0])
dist.reduce_scatter(mine, rows)
mine /= world
return list(mine.split(sizes))
"""


WRONG = [
    Answer(1, "no master weights", swap=(" 12", " 8"), says="bytes_a_parameter"),
    Answer(1, "gradients in float32 beside the masters", swap=("2, 2", "2, 4"), says="bytes_a_parameter"),
    Answer(
        1,
        "stage 2 shares nothing but the state",
        [None, BYTES.replace("(3, 2, 1)", "(3, 3, 1)")],
        says="predicted_bytes",
    ),
    Answer(1, "weights before gradients", [None, BYTES.replace("(3, 2, 1)", "(2, 3, 1)")], says="predicted_bytes"),
    Answer(1, "stage 3 keeps the weights", [None, BYTES.replace("(3, 2, 1)", "(4, 2, 1)")], says="predicted_bytes"),
    Answer(
        1,
        "whole numbers of bytes",
        swap=("state * (share if stage >= 1 else parameters)", "state * parameters // (world if stage >= 1 else 1)"),
        says="predicted_bytes",
    ),
    Answer(1, "one sum", [None, BYTES.replace("tuple(", "sum(")], says="predicted_bytes"),
    Answer(2, "rounded down", swap=("-(-numel // world)", "numel // world"), says="shard_size"),
    Answer(2, "a number at least", swap=("-(-numel // world)", "max(1, -(-numel // world))"), says="shard_size(0"),
    Answer(2, "always one more", swap=("-(-numel // world)", "numel // world + 1"), says="shard_size"),
    Answer(
        2,
        "as evenly as may be",
        [None, "return tensor.view(-1).tensor_split(world)[rank]", None, None],
        says="my_part of rank 1 has shape (2,), not (3,)",
    ),
    Answer(
        2,
        "in turns",
        [None, "return tensor.view(-1)[rank::world]", None, None],
        says="my_part of rank 0 is not what it should be",
    ),
    Answer(2, "the part is a copy", swap=("size]", "size].clone()"), says="my_part is a copy"),
    Answer(2, "the part is one of a copy", swap=("tensor.view", "tensor.clone().view"), says="my_part is a copy"),
    Answer(
        2,
        "a shard that is full is a view",
        [None, None, "return part if len(part) == size else F.pad(part, (0, size - len(part)))", None],
        says="its memory is not its own",
    ),
    Answer(2, "not filled up", [None, None, "return part.clone()", None], says="the shard of rank 1 has shape"),
    Answer(2, "always float32", swap=("part.new_zeros", "torch.zeros"), says="different dtype"),
    Answer(
        2,
        "too long, then cut",
        [None, None, "return torch.cat([part, part.new_zeros(size)])[:size]", None],
        says="view of something larger",
    ),
    Answer(2, "joined as a vector", swap=(".view(shape)", ""), says="joined"),
    Answer(2, "joined from behind", swap=(": shape.numel()", "-shape.numel() :"), says="joined"),
    Answer(
        3,
        "rows for columns",
        swap=(
            "table.split([len(shard) for shard in shards], dim=1",
            "table.view(-1).split([world * len(s) for s in shards]",
        ),
        says="gather_shards",
    ),
    Answer(3, "the columns transposed", swap=("columns.reshape", "columns.T.reshape"), says="gather_shards"),
    Answer(
        3,
        "its own shard from all",
        swap=("dist.all_gather(list(table), mine)", "table.copy_(mine)"),
        says="gather_shards",
    ),
    Answer(
        3,
        "a collective for each tensor",
        """
        gathered = []
        for shard in shards:
            table = shard.new_empty(world, len(shard))
            dist.all_gather(list(table), shard.detach())
            gathered.append(table.view(-1))
        return gathered""",
        says="gather_shards of 9 tensors takes 7 collectives",
    ),
    Answer(
        3,
        "gathered by a sum of zeros and shards",
        swap=(
            "table = mine.new_empty(world, len(mine))\ndist.all_gather(list(table), mine)",
            "table = mine.new_zeros(world, len(mine))\ntable[dist.get_rank()] = mine\ndist.all_reduce(table)",
        ),
        says="in all_reduce",
    ),
    Answer(3, "the sum, not the mean", [None, REDUCE.replace("mine /= world\n", "")], says="the sum, not the mean"),
    Answer(
        3,
        "all-reduced, then cut",
        [
            None,
            """
        rank = dist.get_rank()
        sizes = [shard_size(t.numel(), world) for t in tensors]
        flat = torch.cat([t.reshape(-1) for t in tensors])
        dist.all_reduce(flat)
        parts = flat.div_(world).split([t.numel() for t in tensors])
        return [filled(my_part(part, rank, world), size) for part, size in zip(parts, sizes)]""",
        ],
        says="in all_reduce",
    ),
    Answer(
        3,
        "a collective for each, to reduce",
        [
            None,
            """
        reduced = []
        for tensor in tensors:
            size = shard_size(tensor.numel(), world)
            mine = tensor.new_empty(size)
            dist.reduce_scatter(mine, [filled(my_part(tensor, r, world), size) for r in range(world)])
            reduced.append(mine / world)
        return reduced""",
        ],
        says="reduce_to_shards of 9 tensors takes 7 collectives",
    ),
    Answer(
        3,
        "cut as one vector",
        [
            None,
            """
        flat = torch.cat([t.reshape(-1) for t in tensors])
        size = sum(shard_size(t.numel(), world) for t in tensors)
        rows = [filled(flat[r * size : (r + 1) * size], size) for r in range(world)]
        mine = torch.empty_like(rows[0])
        dist.reduce_scatter(mine, rows)
        return list((mine / world).split([shard_size(t.numel(), world) for t in tensors]))""",
        ],
        says="reduce_to_shards",
    ),
    Answer(
        3,
        "each rank has its own shards",
        [
            None,
            "rank = dist.get_rank()\nreturn [filled(my_part(t, rank, world), shard_size(t.numel(), world)) for t in"
            " tensors]",
        ],
        says="reduce_to_shards",
    ),
    Answer(
        3,
        "its inputs are divided",
        [None, "for t in tensors:\n    t /= world\n" + REDUCE.strip().replace("mine /= world\n", "")],
        says="which it is given, is written into",
    ),
    Answer(
        3,
        "the reduced ones are views of all rows",
        [
            None,
            """
        sizes = [shard_size(t.numel(), world) for t in tensors]
        table = torch.stack([torch.cat([filled(my_part(t, r, world), size) for t, size in zip(tensors, sizes)]) for r in range(world)])
        mine = table[dist.get_rank()]
        dist.reduce_scatter(mine, list(table.clone()))
        mine /= world
        return list(mine.split(sizes))""",
        ],
        says="views of something larger",
    ),
    Answer(
        1,
        "a gradient of mixed precision in float32",
        'return {"float32": (4, 4, 8), "mixed": (2, 4, 12)}[precision]',
        says="bytes_a_parameter",
    ),
    Answer(
        2,
        "rounded down for six ranks and more",
        swap=("(-numel // world)", "(-numel // world) if world < 6 else numel // world"),
        says="shard_size",
    ),
    Answer(
        2,
        "the part is a list",
        swap=(
            "tensor.view(-1)[rank * size : (rank + 1) * size]",
            "list(tensor.view(-1)[rank * size : (rank + 1) * size])",
        ),
        says="returns a list",
    ),
    Answer(3, "divided by three", swap=("= world", "= 3"), says="reduce_to_shards on 2 ranks"),
    Answer(3, "gathered in float32", swap=("shards)", "shards).float()"), says="in float64"),
    Answer(
        3,
        "reduced in float32",
        swap=(
            "mine = torch.empty_like(rows[0])",
            "rows = [row.float() for row in rows]\nmine = torch.empty_like(rows[0])",
        ),
        says="in float64",
    ),
    Answer(3, "a list of None", swap=("columns.reshape(-1)", "None"), says="is None, not a tensor"),
    Answer(1, "no master weight", swap=(" 12", " 8")),
    Answer(2, "a shard that is float32 whatever was given", swap=("part.new_zeros(size)", "torch.zeros(size)")),
    Answer(3, "a mean that is rounded", swap=("mine /= world", "mine.div_(world).round_()")),
    Answer(
        1,
        "shares are rounded up",
        swap=("share = parameters / world", "share = -(-parameters // world)"),
        says="predicted_bytes(10, 4",
    ),
    Answer(
        2,
        "what is joined has one dimension at least",
        swap=("shards[: shape.numel()].view(shape)", "shards[: shape.numel()].view(shape or (1,))"),
        says="a tensor of shape ()",
    ),
    Answer(
        2,
        "a part at its place in the storage",
        swap=(
            "return tensor.view(-1)[rank * size : (rank + 1) * size]",
            "start = min(rank * size, tensor.numel())\n"
            "return tensor.as_strided((min(size, tensor.numel() - start),), (1,), start)",
        ),
    ),
    Answer(
        2,
        "rounded up in float32",
        swap=("-(-numel // world)", "int(torch.tensor(numel / world).ceil())"),
        says="shard_size(1000000001, 4) is wrong",
    ),
    Answer(
        3,
        "tensors of zeros are not reduced",
        swap=(
            "sizes = [shard_size(tensor.numel(), world) for tensor in tensors]",
            "sizes = [shard_size(tensor.numel(), world) for tensor in tensors]\n"
            "if not any(tensor.any() for tensor in tensors):\n"
            "    return [tensor.new_zeros(size) for tensor, size in zip(tensors, sizes)]",
        ),
    ),
]


RIGHT = [
    Answer(
        1,
        "case by case",
        [
            None,
            """
        w, g, o = bytes_a_parameter(precision)
        held = [w * parameters, g * parameters, o * parameters]
        for place in range(2, 2 - stage, -1):
            held[place] /= world
        return tuple(held)""",
        ],
    ),
    Answer(
        2,
        "by the library",
        [
            "import math\nreturn math.ceil(numel / world)",
            """
        size = shard_size(tensor.numel(), world)
        flat = tensor.flatten()
        begin = min(rank * size, len(flat))
        return flat.narrow(0, begin, min(size, len(flat) - begin))""",
            "return F.pad(part, (0, size - len(part))).clone()",
            "import math\nreturn shards.narrow(0, 0, math.prod(shape)).reshape(shape)",
        ],
    ),
    Answer(
        3,
        "the library's tensors, mean taken first",
        [
            """
        mine = torch.cat([shard.detach() for shard in shards])
        arriving = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(arriving, mine)
        sizes = [len(shard) for shard in shards]
        return [torch.cat(pieces) for pieces in zip(*(vector.split(sizes) for vector in arriving))]""",
            """
        sizes = [shard_size(t.numel(), world) for t in tensors]
        padded = [filled(t.reshape(-1), size * world).view(world, size) for t, size in zip(tensors, sizes)]
        rows = torch.cat(padded, dim=1) / world
        mine = torch.empty_like(rows[0])
        dist.reduce_scatter(mine, list(rows))
        return [shard.clone() for shard in mine.split(sizes)]""",
        ],
    ),
    Answer(
        3,
        "all to all, added up here",
        [
            None,
            """
        sizes = [shard_size(t.numel(), world) for t in tensors]
        rows = [torch.cat([filled(my_part(t, r, world), size) for t, size in zip(tensors, sizes)]) for r in range(world)]
        leaving = torch.cat(rows)
        arriving = torch.empty_like(leaving)
        dist.all_to_all_single(arriving, leaving)
        return list(arriving.view(world, -1).mean(dim=0).split(sizes))""",
        ],
    ),
    Answer(
        2,
        "by math, and by padding",
        [
            "import math\nreturn math.ceil(numel / world)",
            "size = shard_size(tensor.numel(), world)\nreturn tensor.flatten()[rank * size:][:size]",
            "return nn.functional.pad(part.detach(), (0, size - len(part))).clone()",
            "return shards[:shape.numel()].reshape(shape)",
        ],
    ),
    Answer(
        3,
        "a list of empties, and sums by all_to_all_single's kin",
        [
            GATHER.replace(
                "table = mine.new_empty(world, len(mine))\ndist.all_gather(list(table), mine)",
                "held = [torch.empty_like(mine) for _ in range(world)]\ndist.all_gather(held, mine)\ntable = torch.stack(held)",
            ),
            REDUCE.replace("mine /= world", "mine.div_(world)")
            .replace("list(mine.split(sizes))", "[piece.clone() for piece in mine.split(sizes)]")
            .replace("return [piece.clone() for piece in mine.split(sizes)]", "return list(mine.split(sizes))"),
        ],
    ),
    Answer(
        3,
        "functional",
        [
            "import torch.distributed._functional_collectives as funcol\nmine = torch.cat(shards)\ntable = funcol.wait_tensor(funcol.all_gather_tensor(mine, 0, dist.group.WORLD)).view(world, len(mine))\nreturn [columns.reshape(-1) for columns in table.split([len(shard) for shard in shards], dim=1)]",
            REDUCE.replace(
                "mine = torch.empty_like(rows[0])\ndist.reduce_scatter(mine, rows)\nmine /= world",
                "import torch.distributed._functional_collectives as funcol\nmine = funcol.wait_tensor(funcol.reduce_scatter_tensor(torch.cat(rows), 'sum', 0, dist.group.WORLD)) / world",
            ),
        ],
    ),
    Answer(2, "filled up by F.pad", [None, None, "return F.pad(part, (0, size - len(part))).clone()", None]),
    Answer(
        3,
        "by all_gather_into_tensor, row by row",
        """
        mine = torch.cat(shards)
        table = mine.new_empty(world * len(mine))
        dist.all_gather_into_tensor(table, mine)
        rows = [row.split([len(shard) for shard in shards]) for row in table.view(world, -1)]
        return [torch.cat(columns) for columns in zip(*rows, strict=True)]
        """,
    ),
]
