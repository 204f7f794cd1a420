"""Other answers to TODOs 2 to 5 of 04_tensor_parallel."""

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
    Answer(
        2,
        "copies that lie in memory as what they are given",
        swap=(
            ("gradient.clone(memory_format=torch.contiguous_format)", "gradient.clone()"),
            ("x.clone(memory_format=torch.contiguous_format)", "x.clone()"),
        ),
        says="not contiguous",
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
        3,
        "the row layer's bias is the whole layer's own",
        swap=("self.bias = None if whole.bias is None else replicated(whole.bias)", "self.bias = whole.bias"),
        says="lies in the memory of the whole layer",
    ),
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
]


RIGHT = [
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
]
