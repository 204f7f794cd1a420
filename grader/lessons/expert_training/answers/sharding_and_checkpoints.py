"""Other answers to TODOs 6 to 8 of expert_training."""

from grader.kit import Answer

WRONG = [
    # TODO 6
    Answer(6, "experts over all ranks", swap=('mesh=grid["data"],', "mesh=everyone,")),
    Answer(6, "experts over the row", swap=('mesh=grid["data"],', 'mesh=grid["expert"],')),
    Answer(
        6, "the rest over the column", swap=("fully_shard(block, mesh=everyone", 'fully_shard(block, mesh=grid["data"]')
    ),
    Answer(6, "experts as copies along the row", swap=('mesh=grid["data"],', "mesh=grid,")),
    Answer(
        6,
        "no unit for the router",
        swap=("    fully_shard(block.mlp.router, mesh=everyone)\n", ""),
        says="not called for a block's router",
    ),
    Answer(
        6,
        "the router in bfloat16",
        swap=(
            "fully_shard(block.mlp.router, mesh=everyone)",
            "fully_shard(block.mlp.router, mesh=everyone, mp_policy=precision(args))",
        ),
        says="router with weights in bfloat16",
    ),
    Answer(6, "experts without a policy", swap=('mesh=grid["data"], mp_policy=precision(args))', 'mesh=grid["data"])')),
    Answer(
        6,
        "no unit for a block",
        swap=("    fully_shard(block, mesh=everyone, mp_policy=precision(args))", ""),
        says="not called for a block",
    ),
    Answer(
        6,
        "a second mesh of all ranks for the router",
        swap=("fully_shard(block.mlp.router, mesh=everyone)", "fully_shard(block.mlp.router)"),
        says="on different meshes",
    ),
    Answer(
        6,
        "a unit for each expert of a block",
        swap=(
            "fully_shard(block.mlp.experts,",
            "for expert in block.mlp.experts.children():\n        fully_shard(expert,",
        ),
        says="takes fewer messages",
    ),
    Answer(6, "gradients as FSDP leaves them", [None, "pass"], says="twice"),
    Answer(6, "divided by all ranks", swap=('p.grad /= grid["expert"].size()', "p.grad /= dist.get_world_size()")),
    Answer(6, "divided by the column", swap=('p.grad /= grid["expert"].size()', 'p.grad /= grid["data"].size()')),
    Answer(6, "all gradients divided", swap=("for p in expert_parameters(model):", "for p in model.parameters():")),
    Answer(6, "multiplied", swap=("p.grad /= grid", "p.grad *= grid")),
    # TODO 7
    Answer(
        7,
        "this rank's experts alone",
        swap=('dist.all_reduce(square, group=grid.get_group("expert"))\n', ""),
        says="this rank's experts",
    ),
    Answer(
        7,
        "experts over all ranks",
        swap=('square, group=grid.get_group("expert")', "square"),
        says="once for each rank of a column",
    ),
    Answer(7, "experts over the column", swap=('get_group("expert")', 'get_group("data")')),
    Answer(
        7,
        "a sum of norms",
        swap=("(norm_of(shared).square() + square).sqrt()", "norm_of(shared) + square.sqrt()"),
        says="the sum of two norms",
    ),
    Answer(
        7,
        "norms of the row's experts added up, and then squared",
        swap=(
            'square = norm_of(experts).square()\ndist.all_reduce(square, group=grid.get_group("expert"))',
            'square = norm_of(experts)\ndist.all_reduce(square, group=grid.get_group("expert"))\nsquare.square_()',
        ),
        says="added up, not their squares",
    ),
    Answer(
        7,
        "without the shared weights",
        swap=("(norm_of(shared).square() + square).sqrt()", "square.sqrt()"),
        says="experts alone",
    ),
    Answer(
        7,
        "both squares over the row",
        swap=(
            "square = norm_of(experts).square()",
            "square = norm_of(experts).square() + norm_of(shared).square() / 1",
        ),
    ),
    Answer(7, "no square root", swap=("+ square).sqrt()", "+ square)")),
    Answer(
        7,
        "experts are not scaled",
        swap=("for parameters in (shared, experts):", "for parameters in (shared,):"),
        says="after clip_gradients",
    ),
    Answer(
        7,
        "only experts are scaled",
        swap=("for parameters in (shared, experts):", "for parameters in (experts,):"),
        says="after clip_gradients",
    ),
    Answer(7, "no limit clips to nothing", swap=("args.clip or math.inf", "args.clip"), says="after clip_gradients"),
    Answer(7, "a tensor", swap=("return norm.item()", "return norm"), says="returns"),
    # TODO 8
    Answer(
        8,
        "torch's option for whole state dicts",
        [
            """
        from torch.distributed.checkpoint.state_dict import StateDictOptions
        full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        save0({"model": full, "config": config, "epoch": epoch}, path)
        """
        ],
        says="does not hold all weights",
    ),
    Answer(
        8,
        "experts of the column are gathered, which has them all the same",
        swap=('group=grid.get_group("expert")', 'group=grid.get_group("data")'),
    ),
    Answer(
        8,
        "without biases",
        swap=("if dist.get_rank() == 0 or", 'if (dist.get_rank() == 0 and "bias" not in name) or'),
        says="bias",
    ),
    Answer(
        8,
        "every rank assembles the model",
        [
            """
        own = {n: (p.full_tensor() if isinstance(p, DTensor) else p).detach().cpu() for n, p in parts.items()}
        everyones = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, own)
        full = {name: weight for mine in everyones for name, weight in mine.items()}
        save0({"model": full, "config": config, "epoch": epoch}, path)
        """
        ],
        says="assembles more",
    ),
    Answer(
        8,
        "only the first row assembles its experts: the others' part of them is waited for",
        swap=(
            "weight = part.full_tensor() if isinstance(part, DTensor) else part",
            "if not first_row:\n        continue\n    weight = part.full_tensor() if isinstance(part, DTensor) else part",
        ),
    ),
    Answer(8, "DTensors in the file", swap=("part.full_tensor() if isinstance(part, DTensor) else part", "part")),
]


RIGHT = [
    Answer(
        6,
        "FSDP divides by what it is told",
        [
            """
        world = dist.get_world_size()
        for block in model.blocks:
            experts = fully_shard(block.mlp.experts, mesh=grid["data"], mp_policy=precision(args))
            experts.set_gradient_divide_factor(float(world))
            # Where there is one rank, nothing is added up, and forced sums would be divided twice (torch 2.13).
            experts.set_force_sum_reduction_for_comms(grid["data"].size() > 1 and grid.device_type == "cpu")
            fully_shard(block.mlp.router, mesh=everyone)
            fully_shard(block, mesh=everyone, mp_policy=precision(args))
        """,
            "pass",
        ],
    ),
    Answer(
        6,
        "in another order; multiplied by a factor",
        [
            """
        policy = precision(args)
        for block in model.blocks:
            fully_shard(block.mlp.router, mesh=everyone)
            fully_shard(block.mlp.experts, mesh=grid["data"], mp_policy=policy)
            fully_shard(block, mesh=everyone, mp_policy=policy)
        """,
            """
        factor = grid["data"].size() / dist.get_world_size()
        for block in model.blocks:
            for p in block.mlp.experts.parameters():
                p.grad.mul_(factor)
        """,
        ],
    ),
    Answer(
        7,
        "by meshes, and by a factor",
        [
            """
        square = sum(p.grad.to_local().double().square().sum() for p in experts)
        everyones = sum(p.grad.to_local().double().square().sum() for p in shared)
        total = torch.as_tensor(square + everyones)
        # Each number of the gradient is on one rank: of the shared ones and of experts alike.
        dist.all_reduce(total)
        norm = total.sqrt()
        factor = min(1.0, args.clip / (norm.item() + 1e-6)) if args.clip else 1.0
        for p in (*shared, *experts):
            p.grad.mul_(factor)
        return norm.item()
        """
        ],
    ),
    Answer(
        8,
        "tensor by tensor",
        [
            """
        full, rank, row = {}, dist.get_rank(), grid.get_group("expert")
        for name, part in parts.items():
            weight = part.full_tensor() if isinstance(part, DTensor) else part
            if ".experts." in name and grid.get_local_rank("data") == 0:
                found = [None] * grid["expert"].size() if rank == 0 else None
                dist.gather_object((name, weight.detach().cpu()), found, group=row, group_dst=0)
                full.update(found or [])
            elif rank == 0:
                full[name] = weight.detach().cpu()
        save0({"model": full, "config": config, "epoch": epoch}, path)
        """
        ],
    ),
]
