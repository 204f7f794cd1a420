"""Other answers to TODOs 6 and 7 of 04_tensor_parallel."""

from grader.kit import Answer

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


WRONG = [
    Answer(6, "always joined by g", swap=("return self.join(", "return g("), says="a different `join` than g"),
    Answer(
        6,
        "the first word by how many words a rank has itself",
        swap=("rank * -(-whole.num_embeddings // world)", "rank * len(self.weight)"),
        says="the output on rank",
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
        6,
        "the indices are shifted where they lie",
        swap=("(x_BT - self.first).where(mine_BT, 0)", "x_BT.sub_(self.first).where(mine_BT, 0)"),
        says="x_BT, which it is given, is written into",
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
]


RIGHT = [
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
]
