"""Other answers to the TODOs of 04_tensor_parallel."""

from grader.kit import Answer

SUM = """
total = x.clone(memory_format=torch.contiguous_format)
dist.all_reduce(total)
return total
"""
SUM_BACK = SUM.replace("x.clone", "gradient.clone")

SIZE = "size = -(-whole.shape[dim] // world)\n"
LINEAR = "return F.linear(x, self.weight, self.bias)"
ROW_INIT = """
self.weight = sharded(whole.weight, 1, rank, world)
self.bias = None if whole.bias is None else replicated(whole.bias)
"""

MLP_INIT = "self.up = ColumnLinear(whole.up, rank, world)\nself.down = RowLinear(whole.down, rank, world)"

HEADS = """
heads = whole.q.out_features // whole.head_dim
if heads % world:
    raise ValueError(f"{heads} heads cannot be divided evenly among {world} ranks")
"""
FUSED_FORWARD = """
x_BTD = self.enter(x_BTD)
B, T, _ = x_BTD.shape
q, k, v = F.linear(x_BTD, self.qkv).chunk(3, dim=-1)
q, k, v = (part.view(B, T, -1, self.head_dim).transpose(1, 2) for part in (q, k, v))
y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
return self.out(y.transpose(1, 2).reshape(B, T, -1), self.join)
"""

LOSS = """
logits = logits.float()
maximum = logits.detach().amax(dim=-1)
dist.all_reduce(maximum, dist.ReduceOp.MAX)
logits = logits - maximum[..., None]
mine = (y >= first) & (y < first + logits.shape[-1])
at_target = logits.gather(-1, (y - first).where(mine, 0)[..., None])[..., 0].where(mine, 0)
total, at_target = g(torch.stack([logits.exp().sum(dim=-1), at_target]))
counts = y != ignore
return ((total.log() - at_target) * counts).sum() / counts.sum().clamp(min=1)
"""
TWO_SUMS = "g(torch.stack([logits.exp().sum(dim=-1), at_target]))"

FINISH = """
for parameter in parameters:
    if CHOSEN and parameter.grad is not None:
        dist.all_reduce(parameter.grad)
"""
NOT_SHARDED = "not is_sharded(parameter)"

KEEPS = "return 4 * batch * length * dim * "
GENERATORS = "return torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1 + rank)"
SECONDS = "return products + 4 * all_reduce_seconds(nbytes, world, within if world <= per_node else between)"

WRONG = [
    Answer(
        4,
        "each rank adds the bias before the sum",
        [
            None,
            "h = F.gelu(self.up(self.enter(x_BTD)))\nreturn self.join(F.linear(h, self.down.weight, self.down.bias))",
        ],
        says="is the right one with its bias 4 times: once from each rank",
    ),
    Answer(
        4,
        "the bias is left out",
        [None, "return self.join(F.linear(F.gelu(self.up(self.enter(x_BTD))), self.down.weight))"],
        says="is the right one without its bias",
    ),
    Answer(6, "always joined by g", swap=("return self.join(", "return g("), says="a different `join` than g"),
    Answer(
        2,
        "copies that lie in memory as what they are given",
        swap=(
            ("gradient.clone(memory_format=torch.contiguous_format)", "gradient.clone()"),
            ("x.clone(memory_format=torch.contiguous_format)", "x.clone()"),
        ),
        says="not contiguous",
    ),
    Answer(
        6,
        "the first word by how many words a rank has itself",
        swap=("rank * -(-whole.num_embeddings // world)", "rank * len(self.weight)"),
        says="the output on rank",
    ),
    Answer(
        13,
        "bits for bytes",
        swap=("nbytes / world / bandwidth", "nbytes * 8 / world / bandwidth"),
        says="all_reduce_seconds",
    ),
    Answer(
        1,
        "the tokens of one FSDP rank",
        "return fsdp_bytes(dim, world) / tensor_parallel_bytes(1, 1, dim, world) / world",
        says="even_tokens",
    ),
    Answer(
        1,
        "the tokens of all ranks, counted on each",
        "return world * fsdp_bytes(dim, world) / tensor_parallel_bytes(1, 1, dim, world)",
        says="even_tokens",
    ),
    Answer(1, "the norms forgotten", "return 4.5 * dim", says="even_tokens"),
    Answer(1, "an all-reduce as one way round the ring", "return 9 * dim + 3", says="even_tokens"),
    Answer(1, "FSDP gathers once", "return 3 * dim + 1", says="even_tokens"),
    Answer(
        1,
        "the other way up",
        "return tensor_parallel_bytes(1, 1, dim, world) / fsdp_bytes(dim, world)",
        says="even_tokens",
    ),
    Answer(2, "f has no sum backward", [None, "return gradient", None, None], says="f of a tensor"),
    Answer(2, "g sums backward, too", [None, None, None, SUM_BACK], says="g of a tensor"),
    Answer(
        2,
        "g through torch.distributed.nn",
        edits=(
            ("    return SumOverRanks.apply(x)", "    return dist_nn.all_reduce(x.contiguous())"),
            (
                "import torch.distributed as dist\n",
                "import torch.distributed as dist\nimport torch.distributed.nn.functional as dist_nn\n",
            ),
        ),
        swap=(),
        body=[None] * 4,
        says="backward",
    ),
    Answer(2, "f and g swapped", [SUM, "return gradient", "return x.view_as(x)", SUM_BACK], says="the result on rank"),
    Answer(2, "a plain all-reduce, no copy", [None, None, "dist.all_reduce(x.detach())\nreturn x.view_as(x)", None]),
    Answer(2, "the gradient is summed in place", [None, "dist.all_reduce(gradient)\nreturn gradient", None, None]),
    Answer(
        2,
        "the mean",
        [None, None, SUM.replace("return total", "return total / dist.get_world_size()"), None],
        says="times what it should be",
    ),
    Answer(
        2,
        "the largest",
        [None, None, SUM.replace("all_reduce(total)", "all_reduce(total, dist.ReduceOp.MAX)"), None],
        says="the result on rank",
    ),
    Answer(
        2,
        "everything gathered, and added up here",
        [
            None,
            None,
            """
        pieces = [torch.empty(x.shape, dtype=x.dtype) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, x.contiguous())
        return sum(pieces)""",
            None,
        ],
        says="sends",
    ),
    Answer(
        2,
        "f sends forward, to be sure that all have the same",
        [
            "total = x.clone(memory_format=torch.contiguous_format)\ndist.broadcast(total, 0)\nreturn total",
            None,
            None,
            None,
        ],
        says="the result on rank",
    ),
    Answer(
        2,
        "summed in float32, and left there",
        [None, None, SUM.replace("total = x.clone", "total = x.float().clone"), None],
        says="is in float32",
    ),
    Answer(2, "nothing at all", ["return x", "return gradient", "return x", "return gradient"], says="g of a tensor"),
    Answer(
        3,
        "a clone with the whole's strides",
        swap=(".clone(memory_format=torch.contiguous_format)", ".clone()"),
        says="my_shard of a transposed tensor",
    ),
    Answer(
        5,
        "refuses as many heads as ranks",
        swap=("if heads % world:", "if heads % world or heads <= world > 1:"),
        says="ValueError",
    ),
    Answer(
        8,
        "sends what need not be contiguous",
        swap=("dist.all_gather(pieces, x_BTD.contiguous())", "dist.all_gather(pieces, x_BTD)"),
        says="gives all_gather a tensor that is not contiguous",
    ),
    Answer(
        13,
        "the last worthwhile in the table",
        [
            None,
            None,
            """
            alone = products[0][1]
            good = [
                world
                for world, seconds in products
                if alone >= least * world * block_seconds(seconds, nbytes, world, per_node, within, between)
            ]
            return good[-1]
            """,
        ],
        says="largest_worthwhile",
    ),
    Answer(3, "a view", swap=(".clone(memory_format=torch.contiguous_format)", ""), says="view of the whole"),
    Answer(
        3,
        "contiguous, but for rows a view",
        swap=(".clone(memory_format=torch.contiguous_format)", ".contiguous()"),
        says="view of the whole",
    ),
    Answer(
        3,
        "not contiguous",
        [
            SIZE
            + """
part = whole.split(size, dim)[rank]
turned = tuple(reversed(range(part.dim())))
return part.permute(turned).contiguous().clone().permute(turned)""",
            None,
            None,
            None,
            None,
        ],
        says="not contiguous",
    ),
    Answer(3, "rounded down", swap=("-(-whole.shape[dim] // world)", "whole.shape[dim] // world"), says="my_shard"),
    Answer(3, "always the first dimension", swap=("whole.split(size, dim)", "whole.split(size, 0)"), says="my_shard"),
    Answer(
        3,
        "every other row",
        [SIZE + "return torch.stack(whole.unbind(dim)[rank::world], dim)", None, None, None, None],
        says="my_shard",
    ),
    Answer(
        3,
        "the column layer cut by inputs",
        swap=("sharded(whole.weight, 0, rank, world)", "sharded(whole.weight, 1, rank, world)"),
        says="shape",
    ),
    Answer(
        3, "the column layer's bias is whole", swap=("sharded(whole.bias, 0, rank, world)", "replicated(whole.bias)")
    ),
    Answer(
        3,
        "the column layer's bias is forgotten",
        swap=("F.linear(x, self.weight, self.bias)", "F.linear(x, self.weight)"),
        says="the output on rank",
    ),
    Answer(
        3,
        "f in the column layer",
        swap=("F.linear(x, self.weight, self.bias)", "F.linear(f(x), self.weight, self.bias)"),
        says="gradient of the input",
    ),
    Answer(
        3,
        "the bias is added before the sum",
        [None, None, None, None, "return join(F.linear(x, self.weight, self.bias))"],
        says="the output on rank",
    ),
    Answer(
        3,
        "the bias is added by rank 0 alone, the copies have no gradient",
        [
            None,
            None,
            None,
            None,
            """
        y = F.linear(x, self.weight)
        if self.bias is not None and dist.get_rank() == 0:
            y = y + self.bias
        return join(y)""",
        ],
        says="the gradient of bias on rank",
    ),
    Answer(
        3,
        "the row layer's bias is forgotten",
        [None, None, None, None, "return join(F.linear(x, self.weight))"],
        says="the output on rank",
    ),
    Answer(
        3,
        "the row layer's bias is cut",
        [None, None, None, ROW_INIT.replace("replicated(whole.bias)", "sharded(whole.bias, 0, rank, world)"), None],
    ),
    Answer(3, "no sum", [None, None, None, None, LINEAR], says="the output on rank"),
    Answer(
        3,
        "always g",
        [None, None, None, None, "y = g(F.linear(x, self.weight))\nreturn y if self.bias is None else y + self.bias"],
    ),
    Answer(
        3,
        "weights of its own",
        [
            None,
            None,
            None,
            "self.weight = sharded(torch.randn_like(whole.weight), 1, rank, world)\n"
            + ROW_INIT.strip().splitlines()[1],
            None,
        ],
        says="weight of rank",
    ),
    Answer(
        3,
        "not marked",
        swap=(
            "sharded(whole.weight, 0, rank, world)",
            "nn.Parameter(my_shard(whole.weight.detach(), 0, rank, world), whole.weight.requires_grad)",
        ),
        says="not marked as sharded",
    ),
    Answer(
        3,
        "a frozen weight is trained",
        swap=(
            "sharded(whole.weight, 0, rank, world)",
            "nn.Parameter(my_shard(whole.weight.detach(), 0, rank, world))\nself.weight.sharded = True",
        ),
        says="frozen",
    ),
    Answer(
        3,
        "the whole layer is kept",
        [None, None, None, ROW_INIT + "self.whole = [whole]", None],
        says="keeps the whole layer alive",
    ),
    Answer(
        3,
        "nothing is cut: whole products, sliced",
        [
            None,
            "self.weight, self.bias = whole.weight, whole.bias\nself.place = rank, world",
            "return F.linear(x, self.weight, self.bias).split(-(-len(self.weight) // self.place[1]), "
            "-1)[self.place[0]]",
            None,
            None,
        ],
    ),
    Answer(
        4,
        "rows, then columns",
        [
            "self.up = RowLinear(whole.up, rank, world)\nself.down = ColumnLinear(whole.down, rank, world)",
            "return self.down(F.gelu(self.up(self.enter(x_BTD), self.join)))",
        ],
    ),
    Answer(
        4,
        "no border where it begins",
        swap=("self.up(self.enter(x_BTD))", "self.up(x_BTD)"),
        says="gradient of the input",
    ),
    Answer(4, "always f", swap=("self.enter(x_BTD)", "f(x_BTD)"), says="`enter`"),
    Answer(4, "always g", swap=(", self.join)", ")"), says="`join`"),
    Answer(4, "entered twice", swap=("self.enter(x_BTD)", "self.enter(self.enter(x_BTD))")),
    Answer(
        4,
        "joined twice",
        swap=(
            "return self.down(F.gelu(self.up(self.enter(x_BTD))), self.join)",
            "return self.join(self.down(F.gelu(self.up(self.enter(x_BTD))), self.join))",
        ),
        says="the output on rank",
    ),
    Answer(4, "another nonlinearity", swap=("F.gelu(", "F.relu("), says="the output on rank"),
    Answer(
        4,
        "gelu's approximation",
        swap=("F.gelu(self.up(self.enter(x_BTD)))", 'F.gelu(self.up(self.enter(x_BTD)), approximate="tanh")'),
        says="the output on rank",
    ),
    Answer(
        4,
        "no nonlinearity",
        swap=("F.gelu(self.up(self.enter(x_BTD)))", "self.up(self.enter(x_BTD))"),
        says="the output on rank",
    ),
    Answer(
        4,
        "the MLP as it is, on each rank",
        ["self.up, self.down = whole.up, whole.down", "return self.down(F.gelu(self.up(x_BTD)))"],
    ),
    Answer(
        4,
        "the whole hidden layer, and a part of it used",
        [
            """
        self.up, self.down, self.place = copy.deepcopy(whole.up), RowLinear(whole.down, rank, world), (rank, world)""",
            """
        h = F.gelu(self.up(self.enter(x_BTD)))
        return self.down(h.split(-(-h.shape[-1] // self.place[1]), -1)[self.place[0]], self.join)""",
        ],
    ),
    Answer(
        4,
        "nn's layers, cut, and all-reduced past autograd",
        [
            None,
            """
        y = F.linear(F.gelu(self.up(self.enter(x_BTD))), self.down.weight)
        dist.all_reduce(y)
        return y if self.down.bias is None else y + self.down.bias""",
        ],
    ),
    Answer(
        5,
        "an f for each of q, k and v",
        [
            None,
            """
        q, k, v = (p(self.enter(x_BTD)) for p in (self.q, self.k, self.v))
        B, T, _ = q.shape
        q, k, v = (part.view(B, T, -1, self.head_dim).transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, T, -1), self.join)""",
        ],
        says="backward",
    ),
    Answer(
        5,
        "the length is taken before the border",
        swap=("x_BTD = self.enter(x_BTD)\nB, T, _ = x_BTD.shape", "B, T, _ = x_BTD.shape\nx_BTD = self.enter(x_BTD)"),
    ),
    Answer(5, "no f", swap=("x_BTD = self.enter(x_BTD)\n", ""), says="gradient of the input"),
    Answer(5, "always g", swap=(", self.join)", ")"), says="`join`"),
    Answer(5, "heads are not looked at", swap=("if heads % world:", "if False:"), says="not refused"),
    Answer(
        5, "the width is looked at", swap=("if heads % world:", "if whole.q.out_features % world:"), says="not refused"
    ),
    Answer(
        5,
        "fewer heads than ranks alone are refused",
        swap=("if heads % world:", "if heads < world:"),
        says="not refused",
    ),
    Answer(
        5,
        "an assertion",
        swap=(
            'raise ValueError(f"{heads} heads cannot be divided evenly among {world} ranks")',
            'raise AssertionError(f"{heads} heads, {world} ranks")',
        ),
        says="not refused",
    ),
    Answer(
        5,
        "an error without numbers",
        swap=(
            'f"{heads} heads cannot be divided evenly among {world} ranks"',
            '"heads cannot be divided evenly among the ranks"',
        ),
        says="does not say in one line",
    ),
    Answer(5, "not causal", swap=("is_causal=True", "is_causal=False"), says="the output on rank"),
    Answer(
        5,
        "heads and positions swapped",
        swap=("y_BHTK.transpose(1, 2).reshape(B, T, -1)", "y_BHTK.reshape(B, T, -1)"),
        says="the output on rank",
    ),
    Answer(
        5, "one head of all", swap=(".view(B, T, -1, self.head_dim)", ".view(B, T, 1, -1)"), says="the output on rank"
    ),
    Answer(5, "out cut by rows", swap=("RowLinear(whole.out, rank, world)", "ColumnLinear(whole.out, rank, world)")),
    Answer(
        5,
        "fused, and cut in one piece",
        [
            HEADS + "whole_qkv = torch.cat([whole.q.weight, whole.k.weight, whole.v.weight])\n"
            "self.qkv = sharded(whole_qkv, 0, rank, world)\nself.out = RowLinear(whole.out, rank, world)",
            FUSED_FORWARD,
        ],
        says="the output on rank",
    ),
    Answer(5, "the attention as it is, on each rank", [HEADS + "self.whole = whole", "return self.whole(x_BTD)"]),
    Answer(
        5,
        "keys and values whole",
        [
            HEADS
            + "self.q = ColumnLinear(whole.q, rank, world)\n"
            + "self.k, self.v = copy.deepcopy(whole.k), copy.deepcopy(whole.v)\n"
            "self.out = RowLinear(whole.out, rank, world)\nself.place = rank, world",
            """
        x_BTD = self.enter(x_BTD)
        B, T, _ = x_BTD.shape
        q = self.q(x_BTD).view(B, T, -1, self.head_dim).transpose(1, 2)
        k, v = (p(x_BTD).view(B, T, -1, self.head_dim).transpose(1, 2) for p in (self.k, self.v))
        k, v = (part.chunk(self.place[1], 1)[self.place[0]] for part in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, T, -1), self.join)""",
        ],
    ),
    Answer(
        6,
        "foreign words read a row",
        swap=("self.join(rows_BTD.where(mine_BT[..., None], 0))", "self.join(rows_BTD)"),
        says="the output on rank",
    ),
    Answer(
        6,
        "foreign words make row 0 zero",
        [
            None,
            """
        mine_BT = (x_BT >= self.first) & (x_BT < self.first + len(self.weight))
        places = (x_BT - self.first).where(mine_BT, 0)
        return self.join(F.embedding(places, self.weight).where((places > 0)[..., None], 0))""",
        ],
        says="the output on rank",
    ),
    Answer(
        6,
        "first, rounded down",
        swap=("rank * -(-whole.num_embeddings // world)", "rank * (whole.num_embeddings // world)"),
    ),
    Answer(
        6,
        "the last word of each rank is lost",
        swap=("x_BT < self.first + len(self.weight)", "x_BT < self.first + len(self.weight) - 1"),
        says="the output on rank",
    ),
    Answer(
        6,
        "the first word of each rank is lost",
        swap=("(x_BT >= self.first)", "(x_BT > self.first)"),
        says="the output on rank",
    ),
    Answer(
        6,
        "words after mine are looked up",
        swap=("(x_BT >= self.first) & (x_BT < self.first + len(self.weight))", "x_BT >= self.first"),
    ),
    Answer(
        6,
        "no sum",
        swap=("self.join(rows_BTD.where(mine_BT[..., None], 0))", "rows_BTD.where(mine_BT[..., None], 0)"),
        says="the output on rank",
    ),
    Answer(
        6, "cut by columns", swap=("sharded(whole.weight, 0, rank, world)", "sharded(whole.weight, 1, rank, world)")
    ),
    Answer(
        6,
        "the whole table on each rank",
        ["self.weight, self.first = whole.weight, 0", "return F.embedding(x_BT, self.weight)"],
        says="has shape",
    ),
    Answer(
        6,
        "the table is gathered to look up",
        [
            None,
            """
        size = -(-32 // dist.get_world_size())
        pieces = [torch.zeros(size, self.weight.shape[1]) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, F.pad(self.weight.detach(), (0, 0, 0, size - len(self.weight))))
        return F.embedding(x_BT % size, self.weight.new_ones(1) * pieces[0])""",
        ],
    ),
    Answer(
        6,
        "a table that learns nothing",
        swap=(
            "F.embedding((x_BT - self.first).where(mine_BT, 0), self.weight)",
            "F.embedding((x_BT - self.first).where(mine_BT, 0), self.weight.detach())",
        ),
    ),
    Answer(
        6,
        "summed past autograd's back",
        [
            None,
            """
        mine_BT = (x_BT >= self.first) & (x_BT < self.first + len(self.weight))
        rows_BTD = F.embedding((x_BT - self.first).where(mine_BT, 0), self.weight).where(mine_BT[..., None], 0).detach()
        dist.all_reduce(rows_BTD)
        return rows_BTD""",
        ],
    ),
    Answer(
        7,
        "each rank's own maximum",
        swap=("dist.all_reduce(maximum, dist.ReduceOp.MAX)\n", ""),
        says="is wrong on rank",
    ),
    Answer(
        7, "the sum of the maxima", swap=("dist.all_reduce(maximum, dist.ReduceOp.MAX)", "dist.all_reduce(maximum)")
    ),
    Answer(
        7, "no maximum: large logits overflow", swap=("logits = logits - maximum[..., None]\n", ""), says="large logits"
    ),
    Answer(
        7, "each rank's own sum", swap=(TWO_SUMS, "(logits.exp().sum(dim=-1), g(at_target))"), says="is wrong on rank"
    ),
    Answer(
        7,
        "the target's logit of its rank only",
        swap=(TWO_SUMS, "(g(logits.exp().sum(dim=-1)), at_target)"),
        says="is wrong on rank",
    ),
    Answer(7, "foreign targets read a logit", swap=("[..., 0].where(mine, 0)", "[..., 0]"), says="is wrong on rank"),
    Answer(
        7,
        "sums without a gradient",
        swap=(
            f"total, at_target = {TWO_SUMS}",
            "total, at_target = logits.detach().exp().sum(dim=-1), g(at_target)\ndist.all_reduce(total)",
        ),
        says="gradient",
    ),
    Answer(
        7,
        "the maximum has a gradient",
        swap=(
            "maximum = logits.detach().amax(dim=-1)\ndist.all_reduce(maximum, dist.ReduceOp.MAX)",
            "maximum = logits.amax(dim=-1)\ndist.all_reduce(maximum.data, dist.ReduceOp.MAX)",
        ),
        says="gradient",
    ),
    Answer(
        7, "nan where no target counts", swap=("counts.sum().clamp(min=1)", "counts.sum()"), says="all targets ignored"
    ),
    Answer(
        7,
        "ignored targets are in the mean",
        swap=("counts.sum().clamp(min=1)", "counts.numel()"),
        says="is wrong on rank",
    ),
    Answer(
        7,
        "ignored targets count as a loss",
        swap=("counts = y != ignore", "counts = torch.ones_like(y, dtype=torch.bool)"),
        says="some targets ignored",
    ),
    Answer(7, "every other ignore than -100", swap=("counts = y != ignore", "counts = y != IGNORE"), says="ignore = 3"),
    Answer(
        7,
        "what is not on this rank is ignored",
        swap=("counts = y != ignore", "counts = mine & (y != ignore)"),
        says="",
    ),
    Answer(7, "computed in bfloat16", swap=("logits = logits.float()\n", ""), says="bfloat16"),
    Answer(
        7,
        "the logits are gathered",
        [
            """
        world = dist.get_world_size()
        widths = torch.zeros(world, dtype=torch.int64)
        widths[dist.get_rank()] = logits.shape[-1]
        dist.all_reduce(widths)
        most = int(widths.max())
        padded = F.pad(logits.detach().float(), (0, most - logits.shape[-1]), value=-torch.inf).contiguous()
        pieces = [torch.empty_like(padded) for _ in range(world)]
        dist.all_gather(pieces, padded)
        pieces[dist.get_rank()] = F.pad(logits.float(), (0, most - logits.shape[-1]), value=-torch.inf)
        whole, counts = torch.cat(pieces, dim=-1), y != ignore
        losses = F.cross_entropy(whole.flatten(0, -2), y.where(counts, 0).flatten(), reduction="none")
        return (losses * counts.flatten()).sum() / counts.sum().clamp(min=1)"""
        ],
        says="bytes",
    ),
    Answer(
        7,
        "the mean of the ranks' losses",
        [
            """
        mine = (y >= first) & (y < first + logits.shape[-1]) & (y != ignore)
        loss = F.cross_entropy(logits.float().flatten(0, -2), (y - first).where(mine, 0).flatten(), reduction="none")
        return g((loss * mine.flatten()).sum() / mine.sum().clamp(min=1)) / dist.get_world_size()"""
        ],
    ),
    Answer(7, "t times the gradient", swap=("return ((total.log()", "return f((total.log()"), says=""),
    Answer(
        8,
        "gathered along the batch",
        swap=("torch.cat(pieces, dim=1)", "torch.cat(pieces, dim=0)"),
        says="gather_sequence",
    ),
    Answer(
        8,
        "gathered, rank 0 last",
        swap=("torch.cat(pieces, dim=1)", "torch.cat(pieces[::-1], dim=1)"),
        says="the result on rank",
    ),
    Answer(
        8,
        "an all-reduce, and a slice of it",
        [
            None,
            """
        total = x_BTD.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size(), dim=1)[dist.get_rank()].contiguous()""",
            None,
            None,
        ],
        says="sends",
    ),
    Answer(
        8,
        "gathered by an all-reduce of zeros",
        [
            """
        n, world = x_BTD.shape[1], dist.get_world_size()
        whole = x_BTD.new_zeros(x_BTD.shape[0], n * world, x_BTD.shape[2])
        whole[:, dist.get_rank() * n : (dist.get_rank() + 1) * n] = x_BTD
        dist.all_reduce(whole)
        return whole""",
            None,
            None,
            None,
        ],
        says="sends",
    ),
    Answer(8, "the mean", [None, None, "return reduced(gradient) / dist.get_world_size()", None], says="backward"),
    Answer(
        8,
        "the gradient of its own tokens, not summed",
        [None, None, "return gradient.chunk(dist.get_world_size(), dim=1)[dist.get_rank()].contiguous()", None],
        says="gather_sequence",
    ),
    Answer(
        8,
        "the gradient of its own tokens, zeros else",
        [
            None,
            None,
            None,
            """
        n, rank = gradient.shape[1], dist.get_rank()
        whole = gradient.new_zeros(gradient.shape[0], n * dist.get_world_size(), gradient.shape[2])
        whole[:, rank * n : (rank + 1) * n] = gradient
        return whole""",
        ],
        says="scatter_sequence",
    ),
    Answer(8, "the wrong way round", [None, None, "return gathered(gradient)", "return reduced(gradient)"]),
    Answer(
        8,
        "the largest of the ranks",
        swap=("dist.reduce_scatter(mine, pieces)", "dist.reduce_scatter(mine, pieces, dist.ReduceOp.MAX)"),
        says="the result on rank",
    ),
    Answer(
        8, "the tokens of the next rank", swap=(", pieces)", ", pieces[1:] + pieces[:1])"), says="the result on rank"
    ),
    Answer(
        8,
        "no sum: each rank's own tokens",
        [None, "return x_BTD.chunk(dist.get_world_size(), dim=1)[dist.get_rank()].contiguous()", None, None],
        says="the result on rank",
    ),
    Answer(9, "nothing", ["pass"], says="a copy"),
    Answer(9, "all of them", [FINISH.replace("CHOSEN", "True")], says="a shard"),
    Answer(
        9,
        "the mean",
        [FINISH.replace("CHOSEN", NOT_SHARDED) + "        parameter.grad /= dist.get_world_size()\n"],
        says="the mean",
    ),
    Answer(
        9, "norms and biases only", [FINISH.replace("CHOSEN", NOT_SHARDED + " and parameter.dim() == 1")], says="a copy"
    ),
    Answer(9, "matrices only", [FINISH.replace("CHOSEN", NOT_SHARDED + " and parameter.dim() > 1")], says="a copy"),
    Answer(
        9,
        "the first one without a gradient is the last",
        [
            """
        for parameter in parameters:
            if parameter.grad is None:
                break
            if not is_sharded(parameter):
                dist.all_reduce(parameter.grad)"""
        ],
        says="a copy",
    ),
    Answer(9, "the last is left out", swap=("in parameters:", "in list(parameters)[:-1]:"), says="a copy"),
    Answer(9, "the shards, and not the copies", [FINISH.replace("CHOSEN", "is_sharded(parameter)")]),
    Answer(9, "those without a gradient, too", [FINISH.replace("CHOSEN and parameter.grad is not None", NOT_SHARDED)]),
    Answer(
        9,
        "a gradient for everybody",
        swap=(
            " and parameter.grad is not None:",
            ":\n        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad",
        ),
        says="makes a gradient for",
    ),
    Answer(
        9,
        "rank 0's for all",
        [FINISH.replace("CHOSEN", NOT_SHARDED).replace("all_reduce(parameter.grad)", "broadcast(parameter.grad, 0)")],
        says="a copy",
    ),
    Answer(
        9,
        "copies are made instead: the weights",
        [FINISH.replace("CHOSEN", NOT_SHARDED).replace("all_reduce(parameter.grad)", "broadcast(parameter.data, 0)")],
        says="a copy",
    ),
    Answer(10, "all of it is divided", KEEPS + "16 / world", says="block_keeps"),
    Answer(
        10,
        "sequence parallel keeps no whole norm",
        swap=(
            'norms / world if how == "sequence, gathered again" else norms',
            'norms if how == "tensor" else norms / world',
        ),
        says="block_keeps",
    ),
    Answer(
        10,
        "sequence parallel keeps the stream whole",
        swap=('stream if how == "tensor" else stream / world', "stream"),
        says="block_keeps",
    ),
    Answer(10, "inside is whole", swap=("numbers = inside / world", "numbers = inside"), says="block_keeps"),
    Answer(
        10,
        "two bytes a number",
        swap=("return 4 * batch * length * dim * numbers", "return 2 * batch * length * dim * numbers"),
        says="block_keeps",
    ),
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
        13,
        "no latency",
        swap=("(latency + nbytes / world / bandwidth)", "nbytes / world / bandwidth"),
        says="all_reduce_seconds",
    ),
    Answer(
        13,
        "one latency",
        swap=(
            "2 * (world - 1) * (latency + nbytes / world / bandwidth)",
            "latency + 2 * (world - 1) * nbytes / world / bandwidth",
        ),
        says="all_reduce_seconds",
    ),
    Answer(
        13,
        "whole tensors each round",
        swap=("nbytes / world / bandwidth", "nbytes / bandwidth"),
        says="all_reduce_seconds",
    ),
    Answer(13, "one way round", swap=("return 2 * (world - 1)", "return (world - 1)"), says="all_reduce_seconds"),
    Answer(13, "two all-reduces", swap=("products + 4 *", "products + 2 *"), says="block_seconds"),
    Answer(
        13, "always within the node", swap=("within if world <= per_node else between", "within"), says="block_seconds"
    ),
    Answer(13, "a full node goes out", swap=("world <= per_node", "world < per_node"), says="block_seconds"),
    Answer(
        13,
        "hidden behind the products",
        [
            None,
            SECONDS.replace("products + 4 * all_reduce", "max(products, 4 * all_reduce").replace(
                "else between)", "else between))"
            ),
            None,
        ],
        says="block_seconds",
    ),
    Answer(
        13,
        "stops at the first that does not pay",
        [
            None,
            None,
            """
        alone, best = products[0][1], 1
        for world, seconds in products:
            if alone < least * world * block_seconds(seconds, nbytes, world, per_node, within, between):
                break
            best = world
        return best""",
        ],
        says="largest_worthwhile",
    ),
    Answer(
        13,
        "the fastest",
        [
            None,
            None,
            "return min(products, key=lambda row: block_seconds(row[1], nbytes, row[0], per_node, within, between))[0]",
        ],
        says="largest_worthwhile",
    ),
    Answer(
        13,
        "speed-up, not efficiency",
        swap=("alone >= least * world * block_seconds", "alone >= least * block_seconds"),
        says="largest_worthwhile",
    ),
    Answer(
        13,
        "products alone",
        [None, None, "return max(world for world, seconds in products if products[0][1] >= least * world * seconds)"],
        says="largest_worthwhile",
    ),
    Answer(
        2,
        "g keeps one buffer for each shape",
        [
            None,
            None,
            """
        buffers = SumOverRanks.__dict__.get("buffers")
        if buffers is None:
            buffers = SumOverRanks.buffers = {}
        total = buffers.setdefault((x.shape, x.dtype), torch.empty(x.shape, dtype=x.dtype))
        total.copy_(x)
        dist.all_reduce(total)
        return total.view_as(total)""",
            None,
        ],
        says="is overwritten by a later one",
    ),
    Answer(
        2,
        "f keeps one buffer for each shape",
        [
            None,
            """
        buffers = CopyToRanks.__dict__.get("buffers")
        if buffers is None:
            buffers = CopyToRanks.buffers = {}
        total = buffers.setdefault((gradient.shape, gradient.dtype), torch.empty(gradient.shape, dtype=gradient.dtype))
        total.copy_(gradient)
        dist.all_reduce(total)
        return total""",
            None,
            None,
        ],
        says="is overwritten by a later one",
    ),
    Answer(
        2,
        "nothing to send of a zero gradient",
        [None, "if not gradient.any():\n    return gradient\n" + SUM_BACK, None, None],
        says="has returned from backward",
    ),
    Answer(
        2,
        "nothing to send of zeros",
        [None, None, "if not x.any():\n    return x.clone()\n" + SUM, None],
        says="rank 2",
    ),
    Answer(
        6,
        "none of my words, nothing to join",
        [
            None,
            """
        mine_BT = (x_BT >= self.first) & (x_BT < self.first + len(self.weight))
        if not mine_BT.any():
            return self.weight.new_zeros(*x_BT.shape, self.weight.shape[1])
        rows_BTD = F.embedding((x_BT - self.first).where(mine_BT, 0), self.weight)
        return self.join(rows_BTD.where(mine_BT[..., None], 0))""",
        ],
        says="has returned from forward",
    ),
    Answer(
        8,
        "the sum goes into this rank's piece",
        swap=("mine = torch.empty_like(pieces[0])", "mine = pieces[dist.get_rank()]"),
        says="which it is given, is written into",
    ),
    Answer(
        9,
        "all in one message, also where there is nothing",
        [
            """
        gradients = [p.grad for p in parameters if not is_sharded(p) and p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        for gradient, total in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
            gradient.copy_(total.view_as(gradient))"""
        ],
        says="non-empty",
    ),
    Answer(
        11,
        "no squares, no message",
        swap=("dist.all_reduce(shards)", "if shards > 0:\n    dist.all_reduce(shards)"),
        says="returned from gradient_norm",
    ),
    Answer(12, "seeds by multiplication", swap=("seed + 1 + rank", "seed * (rank + 2)"), says="with seed 0"),
    Answer(13, "more than the least", swap=("if alone >= least", "if alone > least"), says="largest_worthwhile"),
    Answer(
        8,
        "chunks that are not contiguous",
        swap=(
            "[piece.contiguous() for piece in x_BTD.chunk(dist.get_world_size(), dim=1)]",
            "list(x_BTD.chunk(dist.get_world_size(), dim=1))",
        ),
        says="is not what it should be",
    ),
    Answer(
        6,
        "the indices are shifted where they lie",
        swap=("(x_BT - self.first).where(mine_BT, 0)", "x_BT.sub_(self.first).where(mine_BT, 0)"),
        says="x_BT, which it is given, is written into",
    ),
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
    Answer(
        3,
        "the row layer's bias is the whole layer's own",
        swap=("self.bias = None if whole.bias is None else replicated(whole.bias)", "self.bias = whole.bias"),
        says="lies in the memory of the whole layer",
    ),
    Answer(
        9,
        "what is trainable has a gradient",
        swap=("parameter.grad is not None", "parameter.requires_grad"),
        says="stopped with TypeError",
    ),
    Answer(12, "x is written in place", swap=("return x * kept / (1 - p)", "x.data *= kept\nreturn x / (1 - p)")),
    Answer(
        5,
        "T before enter",
        [
            None,
            """
        B, T, _ = x_BTD.shape
        x_BTD = self.enter(x_BTD)
        q_BHTK, k_BHTK, v_BHTK = (
            project(x_BTD).view(B, T, -1, self.head_dim).transpose(1, 2) for project in (self.q, self.k, self.v)
        )
        y_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        return self.out(y_BHTK.transpose(1, 2).reshape(B, T, -1), self.join)
    """,
        ],
        says="returns twice as many tokens, fails on rank 0: RuntimeError",
    ),
    Answer(
        6,
        "no graph where no word is mine",
        [
            None,
            """
        mine_BT = (x_BT >= self.first) & (x_BT < self.first + len(self.weight))
        if mine_BT.any():
            rows_BTD = F.embedding((x_BT - self.first).where(mine_BT, 0), self.weight)
            rows_BTD = rows_BTD.where(mine_BT[..., None], 0)
        else:
            rows_BTD = torch.zeros(*x_BT.shape, self.weight.shape[1])
        return self.join(rows_BTD)
    """,
        ],
        says="the gradient of its rows on rank 0 is None",
    ),
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
    Answer(
        3,
        "a bias of zeros is none",
        swap=(
            "None if whole.bias is None else replicated(whole.bias)",
            "None if whole.bias is None or not whole.bias.any() else replicated(whole.bias)",
        ),
    ),
    Answer(
        3,
        "inputs of three dimensions",
        [
            None,
            None,
            """
            B, T, _ = x.shape
            y_BTF = (x.reshape(B * T, -1) @ self.weight.T).view(B, T, -1)
            return y_BTF if self.bias is None else y_BTF + self.bias
            """,
            None,
            None,
        ],
    ),
    Answer(
        4,
        "takes the layers out of the whole",
        swap=(
            "self.down = RowLinear(whole.down, rank, world)",
            "self.down = RowLinear(whole.down, rank, world)\nwhole.up = whole.down = nn.Identity()",
        ),
        says="lacks parameters afterwards",
    ),
    Answer(
        4,
        "enters only with gradients",
        swap=("self.enter(x_BTD)", "(self.enter(x_BTD) if torch.is_grad_enabled() else x_BTD)"),
    ),
    Answer(
        9,
        "gradients of zeros are not sent",
        swap=(
            "not is_sharded(parameter) and parameter.grad is not None",
            "parameter.grad is not None and not is_sharded(parameter) and parameter.grad.any()",
        ),
    ),
]

RIGHT = [
    Answer(1, "solved for the tokens", "return 4.5 * dim + 1.5"),
    Answer(
        2,
        "functional collectives",
        [
            None,
            None,
            """
        import torch.distributed._functional_collectives as functional
        return functional.wait_tensor(functional.all_reduce(x.contiguous(), "sum", dist.group.WORLD))""",
            None,
        ],
    ),
    Answer(
        2,
        "asynchronously, handed on as they are",
        [
            "return x",
            """
        total = torch.empty_like(gradient, memory_format=torch.contiguous_format).copy_(gradient)
        work = dist.all_reduce(total, async_op=True)
        work.wait()
        return total""",
            None,
            "return gradient.clone()",
        ],
    ),
    Answer(
        3,
        "narrow, and products by @",
        [
            """
        size = (whole.shape[dim] + world - 1) // world
        first = rank * size
        return whole.narrow(dim, first, min(size, whole.shape[dim] - first)).contiguous().clone()""",
            None,
            """
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias""",
            None,
            """
        y = join(x @ self.weight.T)
        if self.bias is not None:
            y = self.bias + y
        return y""",
        ],
    ),
    Answer(
        3,
        "chunk, into a new tensor",
        [
            "part = whole.chunk(world, dim)[rank]\nreturn torch.empty(part.shape, dtype=part.dtype).copy_(part)",
            None,
            None,
            None,
            None,
        ],
    ),
    Answer(
        4,
        "step by step",
        [
            None,
            """
        hidden = self.up(self.enter(x_BTD))
        hidden = torch.nn.GELU()(hidden)
        return self.down(hidden, join=self.join)""",
        ],
    ),
    Answer(
        4,
        "weights of its own, other names",
        [
            """
        self.first = sharded(whole.up.weight, 0, rank, world)
        self.second = sharded(whole.down.weight, 1, rank, world)
        self.biases = nn.ParameterList()
        if whole.up.bias is not None:
            self.biases.append(sharded(whole.up.bias, 0, rank, world))
            self.biases.append(replicated(whole.down.bias))
        for p, whole_p in zip(self.biases, (whole.up.bias, whole.down.bias)):
            p.sharded = whole_p is whole.up.bias""",
            """
        up, down = self.biases if len(self.biases) else (None, None)
        y = self.join(F.linear(F.gelu(F.linear(self.enter(x_BTD), self.first, up)), self.second))
        return y if down is None else y + down""",
        ],
    ),
    Answer(
        5,
        "fused, and cut in each of its parts",
        [
            HEADS
            + "parts = [my_shard(layer.weight.detach(), 0, rank, world) for layer in (whole.q, whole.k, whole.v)]\n"
            "self.trains = [layer.weight.requires_grad for layer in (whole.q, whole.k, whole.v)]\n"
            "self.qkv = nn.Parameter(torch.cat(parts), any(self.trains))\nself.qkv.sharded = True\n"
            "self.out = RowLinear(whole.out, rank, world)",
            FUSED_FORWARD.replace("self.qkv)", "self.weight())")
            + """
""",
        ],
        edits=(
            (
                "class ParallelEmbedding(nn.Module):",
                """def fused_weight(self):
    parts = zip(self.qkv.chunk(3), self.trains)
    return torch.cat([part if trains else part.detach() for part, trains in parts])


ParallelAttention.weight = fused_weight


class ParallelEmbedding(nn.Module):""",
            ),
        ),
    ),
    Answer(
        5,
        "the softmax written out",
        [
            None,
            """
        x_BTD = self.enter(x_BTD)
        B, T, _ = x_BTD.shape
        q, k, v = (p(x_BTD).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for p in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / self.head_dim**0.5
        scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
        return self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2), self.join)""",
        ],
    ),
    Answer(
        6,
        "times the mask",
        [
            None,
            """
        mine = (x_BT >= self.first) & (x_BT < self.first + len(self.weight))
        return self.join(self.weight[(x_BT - self.first).clamp(0, len(self.weight) - 1)] * mine.unsqueeze(-1))""",
        ],
    ),
    Answer(
        6,
        "a product with one-hot rows",
        [
            None,
            """
        words = torch.arange(self.first, self.first + len(self.weight))
        return self.join((x_BT[..., None] == words).float() @ self.weight)""",
        ],
    ),
    Answer(
        7,
        "three messages, and the largest gathered",
        [
            LOSS.replace(
                "dist.all_reduce(maximum, dist.ReduceOp.MAX)",
                """
pieces = [torch.empty_like(maximum) for _ in range(dist.get_world_size())]
dist.all_gather(pieces, maximum)
maximum = torch.stack(pieces).amax(dim=0)""".strip(),
            ).replace(f"total, at_target = {TWO_SUMS}", "total = g(logits.exp().sum(dim=-1))\nat_target = g(at_target)")
        ],
    ),
    Answer(
        7,
        "sums written where autograd does not look",
        swap=(
            f"total, at_target = {TWO_SUMS}",
            "total = logits.exp().sum(dim=-1)\ndist.all_reduce(total.data)\ndist.all_reduce(at_target.data)",
        ),
    ),
    Answer(
        7,
        "selected, not multiplied",
        [
            LOSS.replace(
                "return ((total.log() - at_target) * counts).sum() / counts.sum().clamp(min=1)",
                """
losses = (total.log() - at_target).where(counts, 0)
return losses.sum() / max(1, int(counts.sum()))""".strip(),
            )
        ],
    ),
    Answer(
        8,
        "all to all, added up here",
        [
            None,
            """
        world = dist.get_world_size()
        leaving = torch.stack([piece.contiguous() for piece in x_BTD.chunk(world, dim=1)])
        arriving = torch.empty_like(leaving)
        dist.all_to_all_single(arriving, leaving)
        return arriving.sum(dim=0)""",
            None,
            None,
        ],
    ),
    Answer(
        8,
        "one tensor, moved",
        [
            """
        world = dist.get_world_size()
        whole = torch.empty(world, *x_BTD.shape, dtype=x_BTD.dtype)
        dist.all_gather(list(whole), x_BTD.contiguous())
        return whole.transpose(0, 1).flatten(1, 2)""",
            None,
            None,
            None,
        ],
    ),
    Answer(
        9,
        "all in one message",
        [
            """
        chosen = [p for p in parameters if not is_sharded(p) and p.grad is not None]
        if chosen:
            flat = torch.cat([p.grad.flatten() for p in chosen])
            dist.all_reduce(flat)
            for p, part in zip(chosen, flat.split([p.numel() for p in chosen])):
                p.grad.copy_(part.view_as(p))"""
        ],
    ),
    Answer(
        10,
        "case by case",
        """
        tokens = 4 * batch * length * dim
        times = {"tensor": 4 + 12 / world, "sequence": 2 + 14 / world, "sequence, gathered again": 16 / world}
        return tokens * times[how]""",
    ),
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
        13,
        "from the back",
        [
            "return 2 * (world - 1) * link[0] + 2 * (world - 1) / world * nbytes / link[1]",
            None,
            """
        for world, seconds in sorted(products, reverse=True):
            if products[0][1] / (world * block_seconds(seconds, nbytes, world, per_node, within, between)) >= least:
                return world""",
        ],
    ),
    Answer(
        8,
        "by DTensor",
        [
            """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        return DTensor.from_local(x_BTD.contiguous(), mesh, [Shard(1)]).full_tensor()""",
            """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Partial, Shard
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        return DTensor.from_local(x_BTD, mesh, [Partial()]).redistribute(mesh, [Shard(1)]).to_local().contiguous()""",
            None,
            None,
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
