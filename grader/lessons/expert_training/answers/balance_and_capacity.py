"""Other answers to TODOs 4 and 5 of expert_training."""

from grader.kit import Answer

WRONG = [
    # TODO 4
    Answer(
        4,
        "the mean over blocks",
        swap=(
            "block.mlp.balance for block in model.blocks)",
            "block.mlp.balance for block in model.blocks) / len(model.blocks)",
        ),
        says="the mean over blocks",
    ),
    Answer(4, "without its weight", swap=("args.balance * sum", "sum"), says="objective is wrong"),
    Answer(
        4,
        "the last block alone",
        ["return loss + args.balance * model.blocks[-1].mlp.balance", None, None],
        says="objective is wrong",
    ),
    Answer(
        4,
        "a loss without a gradient",
        swap=("sum(block.mlp.balance for", "sum(block.mlp.balance.detach() for"),
        says="the gradients of objective",
    ),
    Answer(
        4,
        "the loss itself is changed",
        ["loss += args.balance * sum(block.mlp.balance for block in model.blocks)\nreturn loss", None, None],
        says="written into",
    ),
    Answer(
        4,
        "the mean over the ranks",
        swap=(
            "block.mlp.balance for block in model.blocks)",
            "block.mlp.balance for block in model.blocks) / dist.get_world_size()",
        ),
        says="divided by the number of ranks",
    ),
    Answer(
        4,
        "the loads of the ranks that exchange tokens",
        swap=("dist.all_reduce(load_LE)", "dist.all_reduce(load_LE, group=model.blocks[0].mlp.row)"),
        says="the load of the ranks of its row alone",
    ),
    Answer(4, "this rank's load", swap=("dist.all_reduce(load_LE)\n", ""), says="this rank's load alone"),
    Answer(
        4,
        "the mean load of the ranks",
        swap=("return load_LE", "return load_LE // dist.get_world_size()"),
        says="everyones_load",
    ),
    Answer(
        4,
        "a message for each block",
        [
            None,
            """
        for block in model.blocks:
            dist.all_reduce(block.mlp.load_E)
        return torch.stack([block.mlp.load_E for block in model.blocks])
        """,
            None,
        ],
        says="3 calls",
    ),
    Answer(
        4, "crowded experts get more", swap=("load_E.mean() - load_E", "load_E - load_E.mean()"), says="the wrong way"
    ),
    Answer(
        4,
        "a step as long as the distance",
        swap=("torch.sign(load_E.mean() - load_E)", "(load_E.mean() - load_E)"),
        says="the bias of block",
    ),
    Answer(4, "the bias starts anew", swap=("router.bias += args", "router.bias[:] = args"), says="after step 2"),
    Answer(
        4,
        "the mean over all blocks",
        swap=("torch.sign(load_E.mean() - load_E)", "torch.sign(load_LE.double().mean() - load_E)"),
        says="the bias of block",
    ),
    Answer(
        4,
        "an even load rises",
        swap=("torch.sign(load_E.mean() - load_E)", "torch.where(load_E > load_E.mean(), -1.0, 1.0)"),
        says="the bias of block",
    ),
    Answer(
        4,
        "the mean load as a whole number",
        swap=("load_E.mean() - load_E", "load_E.mean().floor() - load_E"),
        says="the bias of block",
    ),
    Answer(
        4,
        "the mean load, rounded up",
        swap=("load_E.mean() - load_E", "load_E.mean().ceil() - load_E"),
        says="the bias of block",
    ),
    Answer(
        4,
        "the median in place of the mean",
        swap=("load_E.mean() - load_E", "load_E.median() - load_E"),
        says="the bias of block",
    ),
    Answer(
        4,
        "the first block alone",
        [
            None,
            None,
            "load_E = load_LE[0].double()\nmodel.blocks[0].mlp.router.bias += args.bias_rate * torch.sign(load_E.mean() - load_E)",
        ],
        says="the bias of block",
    ),
    # TODO 5
    Answer(
        5,
        "each rank by its own slots",
        [
            """
        n_experts, kept = probs_NE.shape[1], torch.zeros_like(experts_NK, dtype=torch.bool)
        room = math.ceil(capacity * experts_NK.numel() / n_experts)
        for expert in range(n_experts):
            slots = (experts_NK == expert).nonzero()
            best = slots[probs_NE[slots[:, 0], expert].argsort(descending=True)[:room]]
            kept[best[:, 0], best[:, 1]] = True
        return experts_NK.where(kept, -1)
        """
        ],
        says="what drop returns",
    ),
    Answer(5, "the least probable slots stay", swap=("descending=True", "descending=False"), says="least probable"),
    Answer(
        5,
        "the first slots stay",
        swap=("slots[all_probs[slots].argsort(descending=True, stable=True)[:room]]", "slots[:room]"),
    ),
    Answer(
        5, "a capacity for one rank's slots", swap=("len(all_probs) / n_experts", "len(all_probs) / n_experts / world")
    ),
    Answer(
        5, "one choice counts", swap=("len(all_probs) / n_experts", "len(all_probs) / experts_NK.shape[1] / n_experts")
    ),
    Answer(5, "rounded down", swap=("math.ceil", "int")),
    Answer(5, "the part of the first rank", swap=("kept.chunk(world)[rank]", "kept.chunk(world)[0]")),
    Answer(5, "one place too many", swap=("[:room]", "[: room + 1]")),
    Answer(
        5,
        "the batch's most probable slots, whatever their expert",
        swap=("(all_experts == expert)", "(all_experts >= 0)"),
    ),
    Answer(5, "dropped slots go to expert 0", swap=("view_as(experts_NK), -1)", "view_as(experts_NK), 0)")),
]


RIGHT = [
    Answer(
        4,
        "each in another way",
        [
            """
        total = loss
        for block in model.blocks:
            total = total + block.mlp.balance * args.balance
        return total
        """,
            """
        counts = torch.cat([block.mlp.load_E for block in model.blocks])
        dist.all_reduce(counts, op=dist.ReduceOp.SUM)
        return counts.view(len(model.blocks), -1)
        """,
            """
        crowd = load_LE.float() - load_LE.float().mean(dim=1, keepdim=True)
        for i, block in enumerate(model.blocks):
            block.mlp.router.bias[crowd[i] > 1e-4] -= args.bias_rate
            block.mlp.router.bias[crowd[i] < -1e-4] += args.bias_rate
        """,
        ],
    ),
    Answer(
        5,
        "by a threshold for each expert",
        [
            """
        n_experts, world = probs_NE.shape[1], dist.get_world_size()
        table = torch.full_like(probs_NE, -1.0).scatter(1, experts_NK, probs_NE.gather(1, experts_NK))
        tables = [torch.empty_like(table) for _ in range(world)]
        dist.all_gather(tables, table)
        room = math.ceil(capacity * world * experts_NK.numel() / n_experts)
        everyones = torch.cat(tables).sort(dim=0, descending=True).values
        least = everyones[room - 1] if room <= len(everyones) else torch.full_like(everyones[0], -2.0)
        return experts_NK.where((table >= least).gather(1, experts_NK), -1)
        """
        ],
    ),
]
