"""Other answers to TODOs 7 and 8 of 06_context_parallel."""

from grader.kit import Answer

# Tokens of their own order on each rank: any order will do, as long as positions follow.
FLATTENED = """
mine = (y_BT != IGNORE).sum()
sums = torch.stack([model(x_BT, y_BT, positions_T).detach() * mine, mine])
dist.all_reduce(sums)
total, count = sums[0].item(), max(sums[1].item(), 1)
(model(x_BT, y_BT, positions_T) * mine / count).backward()
gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
dist.all_reduce(gradients)
sizes = [parameter.numel() for parameter in model.parameters()]
for parameter, part in zip(model.parameters(), gradients.split(sizes)):
    parameter.grad = part.view_as(parameter)
return total / count
"""


WRONG = [
    Answer(8, "no target at all: 0 / 0", swap=("everybodys.clamp(min=1)", "everybodys"), says="loss of step 3 of 3"),
    Answer(
        8,
        "no targets, no backward pass",
        swap=(
            "loss.backward()\nfor parameter in model.parameters():\n    dist.all_reduce(parameter.grad)",
            "if mine > 0:\n    loss.backward()\nfor parameter in model.parameters():\n    if parameter.grad is None:\n"
            "        parameter.grad = torch.zeros_like(parameter)\n    dist.all_reduce(parameter.grad)",
        ),
        says="rank",
    ),
    Answer(
        8,
        "set for all models",
        [
            None,
            """
            def attend_in_ring(self, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
                blocks = in_zigzag(rank, world, q_BHTK.shape[2] // 2)
                return RingAttention.apply(q_BHTK, k_BHTK, v_BHTK, blocks, rank, world)

            type(model.blocks[0].attention).attend = attend_in_ring
            """,
            None,
        ],
        says="another model",
    ),
    Answer(
        7,
        "keys only",
        swap=("world - 1, 2 * (world - 1) * nbytes", "world - 1, (world - 1) * nbytes"),
        says="ring_cost",
    ),
    Answer(
        7,
        "the whole way round",
        swap=("world - 1, 2 * (world - 1) * nbytes", "world, 2 * world * nbytes"),
        says="ring_cost",
    ),
    Answer(
        7, "its own part is sent, too", swap=("4 * (world - 1) / world * nbytes", "4 * nbytes"), says="ulysses_cost"
    ),
    Answer(7, "q, k and v alone", swap=("return 4, 4 * (world - 1)", "return 3, 3 * (world - 1)"), says="ulysses_cost"),
    Answer(
        7,
        "as many ranks as heads",
        swap=("max(ranks for ranks in range(1, available + 1) if heads % ranks == 0)", "min(heads, available)"),
        says="most_ranks",
    ),
    Answer(
        7,
        "one product",
        swap=("itemsize * flops / (2 * bandwidth)", "itemsize * flops / bandwidth"),
        says="hiding_length",
    ),
    Answer(
        7,
        "bits for bytes: no itemsize",
        swap=("itemsize * flops / (2 * bandwidth)", "flops / bandwidth"),
        says="hiding_length",
    ),
    Answer(
        7, "half the work, half the length", swap=("2 * length if causal", "length / 2 if causal"), says="hiding_length"
    ),
    Answer(
        8,
        "positions restart at 0",
        swap=(
            "return x_BT[:, positions], y_BT[:, positions], positions",
            "return x_BT[:, positions], y_BT[:, positions], torch.arange(len(positions))",
        ),
    ),
    Answer(
        8,
        "targets are not dealt like tokens",
        swap=("y_BT[:, positions], positions", "y_BT.chunk(world, dim=1)[rank], positions"),
        says="tensor of targets is not what is at its positions",
    ),
    Answer(
        8,
        "in order, with zig-zag's mask",
        swap=(
            "positions_of(pieces_of(rank, world), tokens // (2 * world))",
            "positions_of([2 * rank, 2 * rank + 1], tokens // (2 * world))",
        ),
        says="on 2 ranks, ",
    ),
    Answer(
        8,
        "what is too much is dropped",
        swap=(
            "if tokens % (2 * world):\n    raise ValueError(\n"
            '        f"{tokens} tokens cannot be divided into {2 * world} equal pieces,"\n'
            '        f" two for each of {world} ranks"\n    )\n',
            "",
        ),
        says="not refused",
    ),
    Answer(8, "each rank attends to itself", [None, "pass", None], says="one process's"),
    Answer(
        8,
        "only the first block",
        swap=("for block in model.blocks:", "for block in model.blocks[:1]:"),
        says="is not one process's",
    ),
    Answer(
        8,
        "the ring of contiguous pieces",
        swap=("in_zigzag(rank, world, q_BHTK.shape[2] // 2)", "in_order(rank, world, q_BHTK.shape[2])"),
        says="one process's",
    ),
    Answer(
        8,
        "no mask at all",
        swap=(
            "RingAttention.apply(q_BHTK, k_BHTK, v_BHTK, blocks, rank, world)",
            "RingAttention.apply(q_BHTK, k_BHTK, v_BHTK, everything, rank, world)",
        ),
        says="one process's",
    ),
    Answer(
        8,
        "the length of the longest sequence",
        swap=(
            "blocks = in_zigzag(rank, world, q_BHTK.shape[2] // 2)",
            "blocks = in_zigzag(rank, world, model.max_len // (2 * world))",
        ),
    ),
    Answer(
        8,
        "gradients averaged",
        swap=(
            "    dist.all_reduce(parameter.grad)",
            "    dist.all_reduce(parameter.grad)\n    parameter.grad /= dist.get_world_size()",
        ),
        says="0.5 times one process's",
    ),
    Answer(
        8,
        "each rank has its own gradients",
        swap=("for parameter in model.parameters():\n    dist.all_reduce(parameter.grad)\n", ""),
        says="the gradient of",
    ),
    Answer(8, "mean of the ranks' means", swap=("* mine / everybodys.clamp(min=1)", "/ dist.get_world_size()")),
    Answer(8, "divided by all tokens", swap=("everybodys = mine.clone()", "everybodys = torch.tensor(y_BT.numel())")),
    Answer(8, "the loss of this rank", swap=("dist.all_reduce(total)\n", ""), says="the loss of step 1"),
    Answer(
        8,
        "positions are not given to the model",
        swap=("model(x_BT, y_BT, positions_T)", "model(x_BT, y_BT)"),
        says="not one process's",
    ),
    Answer(
        8,
        "all blocks, and all of the sequence: every rank runs the whole model",
        ["places = torch.arange(x_BT.shape[1])\nreturn x_BT, y_BT, places", "pass", None],
        says="my_share",
    ),
    Answer(
        8,
        "checks the ranks, not the pieces",
        swap=("if tokens % (2 * world):", "if tokens % world:"),
        says="is not refused",
    ),
    Answer(
        8,
        "returns before the backward pass without targets",
        swap=(
            "loss = model(x_BT, y_BT, positions_T) *",
            "if everybodys == 0:\n    return 0.0\nloss = model(x_BT, y_BT, positions_T) *",
        ),
        says="without a target on any rank",
    ),
    Answer(
        8,
        "set only once",
        swap=(
            "    block.attention.attend = attend_in_ring",
            '    if "attend" not in vars(block.attention):\n        block.attention.attend = attend_in_ring',
        ),
    ),
]


RIGHT = [
    Answer(
        7,
        "bytes by whole numbers where they are",
        swap=("4 * (world - 1) / world * nbytes", "4 * nbytes - 4 * nbytes / world"),
    ),
    Answer(
        7,
        "the greatest divisor, from above",
        swap=(
            "return max(ranks for ranks in range(1, available + 1) if heads % ranks == 0)",
            "ranks = min(available, heads)\nwhile heads % ranks:\n    ranks -= 1\nreturn ranks",
        ),
    ),
    Answer(8, "one all-reduce for all gradients", [None, None, FLATTENED]),
    Answer(
        8,
        "the overlapped ring",
        [
            None,
            """
        class Overlapped(torch.autograd.Function):
            @staticmethod
            def forward(ctx, q, k, v):
                ctx.blocks = in_zigzag(rank, world, q.shape[2] // 2)
                out, lse = overlapped_forward(q, k, v, ctx.blocks, rank, world)
                ctx.save_for_backward(q, k, v, out, lse)
                return out

            @staticmethod
            def backward(ctx, grad):
                return overlapped_backward(*ctx.saved_tensors, grad, ctx.blocks, rank, world)

        for block in model.blocks:
            block.attention.attend = Overlapped.apply""",
            None,
        ],
    ),
    Answer(
        8,
        "one process where there is one rank",
        swap=(
            "for block in model.blocks:\n    block.attention.attend = attend_in_ring",
            "for block in model.blocks if world > 1 else ():\n    block.attention.attend = attend_in_ring",
        ),
    ),
]
