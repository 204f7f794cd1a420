"""Other answers to the TODOs of fsdp_training: what real courses got wrong, and what is right as well."""

from grader.kit import Answer

NAMES = 'mesh_dim_names=("replicate", "shard")'

# TODO 4, the second part.
BROADCASTS = """
model.to_empty(device=mesh.device_type)
torch.manual_seed(args.seed)
full = TransformerLM(**model.config).state_dict() if dist.get_rank() == 0 else None
with torch.no_grad():
    for name, p in dict(model.state_dict()).items():
        whole = full[name] if full else torch.empty(p.shape)
        dist.broadcast(whole, 0)
        part = whole
        for axis, where in enumerate(p.placements):
            if where.is_shard():
                parts, at = whole.chunk(p.device_mesh.size(axis)), p.device_mesh.get_local_rank(axis)
                part = parts[at] if at < len(parts) else whole[:0]
        p.to_local().copy_(part)
"""

WRONG = [
    Answer(
        1,
        "one copy, whatever the strategy",
        f"return init_device_mesh(device.type, (1, world_size), {NAMES})",
        says="the grid is 1 × 6",
    ),
    Answer(
        1,
        "rows for columns",
        f"""
        copies = {{"none": world_size, "grad": 1, "full": 1, "hybrid": args.replicas}}[args.sharding]
        return init_device_mesh(device.type, (world_size // copies, copies), {NAMES})
        """,
        says="the grid is",
    ),
    Answer(
        1,
        "--replicas is not looked at",
        f"""
        copies = {{"none": world_size, "hybrid": 2}}.get(args.sharding, 1)
        return init_device_mesh(device.type, (copies, world_size // copies), {NAMES})
        """,
        says="--replicas 3",
    ),
    Answer(
        1,
        "neighbours are copies: the weights of a layer go over the slow links",
        f"""
        copies = {{"none": world_size, "hybrid": args.replicas}}.get(args.sharding, 1)
        return DeviceMesh(device.type, torch.arange(world_size).view(-1, copies).T.contiguous(), {NAMES})
        """,
        says="neighbours",
    ),
    Answer(
        2,
        "the others' last batches are left out",
        """
        least = torch.tensor(len(loader), device=device)
        dist.all_reduce(least, dist.ReduceOp.MIN)
        yield from islice(loader, int(least))
        """,
        says="; the rank with the most batches has",
    ),
    Answer(
        2,
        "the last batch again, with its targets",
        """
        most = torch.tensor(len(loader), device=device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        x = y = torch.zeros(1, args.seq_len, dtype=torch.int64)
        for x, y in loader:
            yield x, y
        for _ in range(int(most) - len(loader)):
            yield x, y
        """,
        says="a different loss",
    ),
    Answer(
        2,
        "waits at a barrier for those that have more",
        """
        yield from loader
        dist.barrier()
        """,
    ),
    Answer(
        2,
        "a rank without a sample leaves",
        """
        most = torch.tensor(len(loader), device=device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        x = None
        for x, y in loader:
            yield x, y
        for _ in range(int(most) - len(loader) if x is not None else 0):
            yield x, torch.full_like(y, IGNORE)
        """,
    ),
    Answer(
        3,
        "the root first",
        """
        fully_shard(model, **options, reshard_after_forward=False)
        for block in model.blocks:
            fully_shard(block, **options)
        return model
        """,
        says="cut already",
    ),
    Answer(3, "only the root: one unit", "return fully_shard(model, **options)", says="at once"),
    Answer(
        3,
        "only layers of a class that the model does not use",
        """
        for module in model.modules():
            if isinstance(module, nn.TransformerEncoderLayer):
                fully_shard(module, **options)
        return model
        """,
        says="nothing is sharded",
    ),
    Answer(
        3,
        "the root is forgotten",
        """
        for block in model.blocks:
            fully_shard(block, **options, reshard_after_forward=args.sharding in ("full", "hybrid"))
        return model
        """,
        says="more than its share",
    ),
    Answer(
        3,
        "the mesh is forgotten",
        """
        for block in model.blocks:
            fully_shard(block, reshard_after_forward=args.sharding in ("full", "hybrid"))
        return fully_shard(model, reshard_after_forward=False)
        """,
        says="not one whole copy",
    ),
    Answer(
        3,
        "full keeps what it gathered",
        """
        for block in model.blocks:
            fully_shard(block, **options, reshard_after_forward=False)
        return fully_shard(model, **options)
        """,
        says="twice, once for each pass",
    ),
    Answer(
        3,
        "grad gathers twice",
        """
        for block in model.blocks:
            fully_shard(block, **options)
        return fully_shard(model, **options)
        """,
        says="once: they stay",
    ),
    Answer(
        3,
        "none is freed",
        swap=('args.sharding in ("full", "hybrid")', 'args.sharding != "grad"'),
        says="they must stay",
    ),
    Answer(
        3,
        "gradients are not put together",
        """
        for module in (*model.blocks, model):
            fully_shard(module, **options, reshard_after_forward=module is not model and args.sharding in ("full", "hybrid"))
        model.set_requires_gradient_sync(False)
        return model
        """,
    ),
    Answer(
        4,
        "each rank fills its shards by the same seed",
        [
            (
                'with torch.device("meta"):\n    return TransformerLM(vocab_size, args.dim, args.heads, args.layers,'
                " args.seq_len, args.dropout)"
            ),
            """
        model.to_empty(device=mesh.device_type)
        torch.manual_seed(args.seed)
        for parameter in model.parameters():
            nn.init.normal_(parameter.to_local(), std=0.02)
        """,
        ],
    ),
    Answer(
        4,
        "another seed on each rank: a model stitched of several inits",
        [
            (
                "torch.manual_seed(args.seed + dist.get_rank())\n"
                "return TransformerLM(vocab_size, args.dim, args.heads, args.layers, args.seq_len, args.dropout)"
            ),
            "pass",
        ],
        says="not the serial run's",
    ),
    Answer(
        4,
        "memory, and nothing in it",
        [
            (
                'with torch.device("meta"):\n    return TransformerLM(vocab_size, args.dim, args.heads, args.layers,'
                " args.seq_len, args.dropout)"
            ),
            "model.to_empty(device=mesh.device_type)",
        ],
    ),
    Answer(
        4,
        "the seed is forgotten",
        [
            (
                'with torch.device("meta"):\n    return TransformerLM(vocab_size, args.dim, args.heads, args.layers,'
                " args.seq_len, args.dropout)"
            ),
            """
        model.to_empty(device=mesh.device_type)
        full = TransformerLM(**model.config).state_dict() if dist.get_rank() == 0 else {}
        set_model_state_dict(model, full, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
        """,
        ],
        says="not the serial run's",
    ),
    Answer(
        4,
        "the whole model on every rank",
        [
            (
                'with torch.device("meta"):\n    return TransformerLM(vocab_size, args.dim, args.heads, args.layers,'
                " args.seq_len, args.dropout)"
            ),
            """
        model.to_empty(device=mesh.device_type)
        torch.manual_seed(args.seed)
        full = TransformerLM(**model.config).state_dict()
        set_model_state_dict(model, full, options=StateDictOptions(full_state_dict=True))
        """,
        ],
        says="whole model in memory",
    ),
    Answer(
        5,
        "of another model",
        """
        optimizer = make_optimizer(TransformerLM(**config), args)
        model = parallelize(model, mesh, args)
        first_weights(model, mesh, args)
        """,
        says="leaves the weights as they were",
    ),
    Answer(
        5,
        "the new parameters are added to the old ones",
        """
        optimizer = make_optimizer(model, args)
        model = parallelize(model, mesh, args)
        first_weights(model, mesh, args)
        optimizer.add_param_group({"params": list(model.parameters())})
        """,
        says="which the model no longer has",
    ),
    Answer(
        6,
        "each rank by the norm of its part",
        """
        parts = [p.grad.to_local() for p in model.parameters()]
        norm = torch.stack([part.norm() for part in parts]).norm()
        for part in parts:
            part *= min(1.0, (args.clip or math.inf) / norm)
        return norm.item()
        """,
        says="this rank's part",
    ),
    Answer(
        6,
        "copies are counted, too",
        """
        parts = [p.grad.to_local() for p in model.parameters()]
        square = sum(part.square().sum() for part in parts)
        dist.all_reduce(square)
        for part in parts:
            part *= min(1.0, (args.clip or math.inf) / square.sqrt())
        return square.sqrt().item()
        """,
        says="two copies",
    ),
    Answer(
        6,
        "0 is taken for a limit",
        "return nn.utils.clip_grad_norm_(model.parameters(), args.clip).full_tensor().item()",
        says="--clip 0",
    ),
    Answer(
        6,
        "elements are clipped, not the norm",
        """
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
        if args.clip:
            nn.utils.clip_grad_value_(model.parameters(), args.clip)
        return norm.full_tensor().item()
        """,
        says="gradient of",
    ),
    Answer(
        7,
        "gradients are added up in bfloat16, too",
        """
        return MixedPrecisionPolicy(param_dtype=torch.bfloat16 if args.dtype == "bfloat16" else None)
        """,
        says="added up in bfloat16",
    ),
    Answer(
        7,
        "always in bfloat16",
        "return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)",
        says="--dtype float32",
    ),
    Answer(
        7,
        "only the sum is short",
        """
        return MixedPrecisionPolicy(reduce_dtype=torch.bfloat16 if args.dtype == "bfloat16" else None)
        """,
        says="gathered in float32",
    ),
    Answer(
        8,
        "the wrapper is thrown away",
        """
        for block in model.blocks:
            block = checkpoint_wrapper(block)
        """,
        says="run 2 times",
    ),
    Answer(
        8,
        "the whole model at once",
        """
        from functools import partial
        from torch.utils.checkpoint import checkpoint
        model.forward = partial(checkpoint, model.forward, use_reentrant=False)
        """,
        says="whole model runs again",
    ),
    Answer(8, "only the first block", "model.blocks[0] = checkpoint_wrapper(model.blocks[0])", says="run 3 times"),
    Answer(9, "rank 0's state dict", 'save0({"model": model.state_dict(), "config": config, "epoch": epoch}, path)'),
    Answer(
        9,
        "rank 0's parts",
        """
        parts = {name: part.to_local() for name, part in model.state_dict().items()}
        save0({"model": parts, "config": config, "epoch": epoch}, path)
        """,
        says="is a part of it",
    ),
    Answer(
        9,
        "rows of all ranks, where some have a copy of others'",
        """
        full = {}
        for name, value in model.state_dict().items():
            rows = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
            dist.gather_object(value.to_local().cpu(), rows, dst=0)
            if rows:
                full[name] = torch.cat(rows)
        save0({"model": full, "config": config, "epoch": epoch}, path)
        """,
        says="has more numbers than the model",
    ),
    Answer(
        9,
        "every rank writes",
        """
        full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        torch.save({"model": full, "config": config, "epoch": epoch}, path)
        """,
        says="all write",
    ),
    Answer(
        9,
        "rank 0 alone asks for the parts",
        """
        if dist.get_rank() == 0:
            full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
            torch.save({"model": full, "config": config, "epoch": epoch}, path)
        """,
        says="rank 0 waits",
    ),
    Answer(
        10,
        "one file, by rank 0",
        """
        weights, state = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        save0({"model": weights, "optimizer": state, "position": position}, folder / "all.pt")
        """,
        says="no checkpoint in the folder",
    ),
    Answer(
        10,
        "put together first",
        swap=("optimizer)", "optimizer, options=StateDictOptions(full_state_dict=True))"),
        says="state is assembled",
    ),
    Answer(
        10,
        "the weights alone",
        'dcp.save({"model": get_model_state_dict(model), "position": position}, checkpoint_id=folder)',
        says="optimizer's state",
    ),
    Answer(10, "the position is forgotten", swap=(', "position": position', ""), says="position is not in"),
    Answer(10, "rank 0 alone writes", swap=("dcp.save", "if dist.get_rank() == 0:\n    dcp.save")),
    Answer(11, "torch.load of a folder", "return torch.load(folder)", says="IsADirectoryError"),
    Answer(
        11,
        "the weights alone",
        """
        saved = {"model": get_model_state_dict(model), "position": position}
        dcp.load(saved, checkpoint_id=folder)
        return saved["position"]
        """,
        says="the optimizer's",
    ),
    Answer(
        11,
        "loaded into copies that nobody uses",
        """
        weights, state = get_state_dict(model, optimizer)
        saved = {"model": {name: weight.clone() for name, weight in weights.items()}, "optimizer": state, "position": position}
        dcp.load(saved, checkpoint_id=folder)
        return saved["position"]
        """,
        says="the model's",
    ),
    Answer(
        11,
        "the position stays where it was",
        """
        weights, state = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
        return position
        """,
        says="the position",
    ),
    Answer(
        11,
        "not given back: what is no tensor stays as it was",
        """
        weights, state = get_state_dict(model, optimizer)
        saved = {"model": weights, "optimizer": state, "position": position}
        dcp.load(saved, checkpoint_id=folder)
        return saved["position"]
        """,
        says="lr",
    ),
    Answer(
        2,
        "the sum of all batches for the most",
        swap=("dist.ReduceOp.MAX", "dist.ReduceOp.SUM"),
        says="; the rank with the most batches has",
    ),
    Answer(
        2,
        "a batch more, to be sure",
        swap=("range(int(most) - len(loader))", "range(int(most) + 1 - len(loader))"),
        says="; the rank with the most batches has",
    ),
    Answer(
        3,
        "the policy is dropped",
        swap=(
            ("    fully_shard(block, **options,", '    fully_shard(block, mesh=options["mesh"],'),
            ("fully_shard(model, **options,", 'fully_shard(model, mesh=options["mesh"],'),
        ),
        says="is the mp_policy in options given to every fully_shard",
    ),
    Answer(
        3,
        "the policy for the blocks alone",
        swap=("fully_shard(model, **options,", 'fully_shard(model, mesh=options["mesh"],'),
        says="must have the same dtype",
    ),
    Answer(
        4,
        "the whole state dict to all, as an object",
        [
            None,
            """
        model.to_empty(device=mesh.device_type)
        torch.manual_seed(args.seed)
        full = [TransformerLM(**model.config).state_dict() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(full, src=0)
        set_model_state_dict(model, full[0], options=StateDictOptions(full_state_dict=True))
        """,
        ],
        says="the whole model is assembled there",
    ),
    Answer(
        4,
        "each tensor to all, and all of them kept",
        [
            None,
            """
        model.to_empty(device=mesh.device_type)
        torch.manual_seed(args.seed)
        own = TransformerLM(**model.config).state_dict() if dist.get_rank() == 0 else {}
        full = {}
        for name, parameter in model.state_dict().items():
            full[name] = own[name].detach().clone() if own else torch.empty(parameter.shape)
            dist.broadcast(full[name], src=0)
        set_model_state_dict(model, full, options=StateDictOptions(full_state_dict=True))
        """,
        ],
        says="the whole model is assembled there",
    ),
    Answer(
        6,
        "the local norm of a plain tensor",
        "parts = [p.grad.to_local() for p in model.parameters()]\nnorm = torch.sqrt(sum(g.double().square().sum() for g in parts))\nif args.clip and norm > args.clip:\n    for g in parts:\n        g.mul_(args.clip / norm)\nreturn norm.item()",
        says="it is the norm of this rank's part",
    ),
    Answer(
        6,
        "infinite norm",
        swap=("args.clip or math.inf)", "args.clip or math.inf, norm_type=math.inf)"),
        says="wrong norm",
    ),
    Answer(
        7,
        "float16 for bfloat16",
        swap=("param_dtype=torch.bfloat16", "param_dtype=torch.float16"),
        says="weights are gathered in float16",
    ),
    Answer(
        8,
        "other draws of dropout",
        swap=("checkpoint_wrapper(block)", "checkpoint_wrapper(block, preserve_rng_state=False)"),
        says="--dropout 0.5 the loss or a gradient differs",
    ),
    Answer(
        8,
        "every other block",
        swap=("for i, block in enumerate(model.blocks):\n", "for i, block in list(enumerate(model.blocks))[::2]:\n"),
        says="the 2 blocks run 3 times",
    ),
    Answer(
        9,
        "put together on all ranks",
        swap=("cpu_offload=True", "cpu_offload=False"),
        says="in save_checkpoint, rank 1 has",
    ),
    Answer(
        9,
        "names with the prefix of recomputed blocks",
        'full = {name: p.full_tensor().detach() for name, p in model.named_parameters()}\nsave0({"model": full, "config": config, "epoch": epoch}, path)',
        says="the wrapper's names",
    ),
    Answer(9, "epoch 0", swap=('"epoch": epoch', '"epoch": 0'), says="“epoch” is not what save_checkpoint was given"),
    Answer(
        9,
        "the first rank of each node",
        swap=("save0({", 'if os.environ["LOCAL_RANK"] == "0":\n    torch.save({'),
        edits=(("import math\nimport sys\n", "import math\nimport os\nimport sys\n"),),
        says="on 3 nodes with 2 ranks each, ranks [0, 2, 4] all write",
    ),
    Answer(
        9, "never written over", swap=("save0({", "path.exists() or save0({"), says="an earlier checkpoint at this path"
    ),
    Answer(
        10,
        "the optimizer's own numbers, without its groups",
        swap=('"optimizer": state', '"optimizer": optimizer.state_dict()["state"]'),
        says="there is no lr",
    ),
    Answer(
        11,
        "weights only, by the model's own loader",
        swap=(
            "set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)",
            "model.load_state_dict(weights)",
        ),
        says="the optimizer's",
    ),
    Answer(
        9,
        "put together tensor by tensor, and all of it kept on every rank",
        """
        full = {}
        for name, parameter in model.state_dict().items():
            full[name] = parameter.full_tensor().cpu() if isinstance(parameter, DTensor) else parameter
        save0({"model": full, "config": config, "epoch": epoch}, path)
        """,
        says="in save_checkpoint, rank 1 has",
    ),
    Answer(
        1,
        "copies and shards change places in hybrid",
        swap=('"hybrid": args.replicas', '"hybrid": world_size // args.replicas'),
    ),
    Answer(
        2,
        "batches of no samples",
        swap=("torch.zeros(1, args.seq_len, dtype=torch.int64)", "torch.zeros(0, args.seq_len, dtype=torch.int64)"),
    ),
    Answer(
        3, "grad frees its weights as well", swap=('args.sharding in ("full", "hybrid")', 'args.sharding != "none"')
    ),
    Answer(6, "no clipping clips to nothing", swap=("args.clip or math.inf", "args.clip")),
    Answer(
        7,
        "a loss in bfloat16",
        swap=("reduce_dtype=torch.float32)", "reduce_dtype=torch.float32, output_dtype=torch.bfloat16)"),
    ),
    Answer(
        8,
        "every second block",
        swap=(
            "model.blocks[i] = checkpoint_wrapper(block)",
            "model.blocks[i] = checkpoint_wrapper(block) if i % 2 == 0 else block",
        ),
    ),
    Answer(10, "nobody writes down the position", swap=(', "position": position}', "}")),
    Answer(
        11,
        "the optimizer begins anew",
        swap=(
            "set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)",
            "model.load_state_dict(weights)",
        ),
    ),
    Answer(
        4,
        "dropout is forgotten",
        swap=("args.seq_len, args.dropout)", "args.seq_len)"),
        says="build_model makes has dropout 0.0",
    ),
    Answer(
        4,
        "names of named_parameters(), which --recompute makes longer",
        [None, BROADCASTS.replace("model.state_dict()", "model.named_parameters()")],
        says="_checkpoint_wrapped_module",
    ),
    Answer(
        5,
        "without weight decay",
        swap=("optimizer = make_optimizer(model, args)", "optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)"),
        says="not the serial run's",
    ),
    Answer(
        6,
        "small gradients are scaled up",
        """
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()]).full_tensor()
        if args.clip:
            for p in model.parameters():
                p.grad.mul_(args.clip / norm)
        return norm.item()
        """,
        says="the gradient of",
    ),
    Answer(
        6,
        "the norm after clipping",
        swap=(
            "return norm.full_tensor().item() if isinstance(norm, DTensor) else norm.item()",
            "norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])\nreturn norm.full_tensor().item()",
        ),
        says="it is --clip, the norm after clipping",
    ),
    Answer(
        3,
        "a mesh by its name",
        swap=("return fully_shard(model, **options,", 'return fully_shard(model, mesh="shard",'),
        says="at train/fsdp_training.py",
    ),
    Answer(1, "two copies at least", swap=('"hybrid": args.replicas', '"hybrid": max(args.replicas, 2)')),
    Answer(6, "a limit of 1 for none", swap=("args.clip or math.inf", "args.clip or 1.0")),
    Answer(
        11,
        "steps counted from 0 again",
        swap=(
            'return saved["position"]',
            "for held in optimizer.state.values():\n"
            '    held.get("step", torch.zeros(())).zero_()\n'
            'return saved["position"]',
        ),
        says=".step is not what was saved",
    ),
    Answer(
        3,
        "all blocks are gathered before the first one runs",
        swap=(
            "return fully_shard(model, **options, reshard_after_forward=False)",
            "fully_shard(model, **options, reshard_after_forward=False)\n"
            "model.set_modules_to_forward_prefetch([*model.blocks])\nreturn model",
        ),
        says="before the first block has run",
    ),
    Answer(
        3,
        "all blocks are gathered at the start of the backward pass",
        swap=(
            "return fully_shard(model, **options, reshard_after_forward=False)",
            "fully_shard(model, **options, reshard_after_forward=False)\n"
            "model.set_modules_to_backward_prefetch([*model.blocks])\nreturn model",
        ),
        says="before the last block's backward pass is over",
    ),
    Answer(
        5,
        "cut when it has been filled",
        """
        first_weights(model, mesh, args)
        model = parallelize(model, mesh, args)
        optimizer = make_optimizer(model, args)
        """,
        says="each rank has the whole model in memory",
    ),
    Answer(
        1,
        "as many copies as ranks count as one copy",
        swap=('"hybrid": args.replicas}', '"hybrid": args.replicas if args.replicas < world_size else 1}'),
        says="replicas 6 on 6",
    ),
    Answer(
        6,
        "no limit is a limit of a million",
        swap=("args.clip or math.inf", "args.clip or 1e6"),
        says="with --clip 0 the gradient",
    ),
    Answer(
        7,
        "bfloat16 sums with --sharding none",
        swap=("reduce_dtype=torch.float32", 'reduce_dtype=None if args.sharding == "none" else torch.float32'),
        says="--sharding none",
    ),
]

RIGHT = [
    Answer(
        1,
        "a mesh made of a tensor",
        f"""
        columns = {{"none": 1, "hybrid": world_size // args.replicas}}.get(args.sharding, world_size)
        return DeviceMesh(device.type, torch.arange(world_size).view(-1, columns), {NAMES})
        """,
    ),
    Answer(
        2,
        "counted without asking the others",
        """
        most = math.ceil(math.ceil(len(loader.dataset) / dist.get_world_size()) / loader.batch_size)
        for k, batch in enumerate(loader):
            yield batch
        for _ in range(len(loader), most):
            yield torch.ones(2, args.seq_len, dtype=torch.int64), torch.full((2, args.seq_len), IGNORE)
        """,
    ),
    Answer(
        3,
        "more and smaller units, the root's gathered twice as well",
        """
        for module in (model.token_embedding, model.position_embedding, *model.blocks, model):
            fully_shard(module, **options, reshard_after_forward=args.sharding not in ("none", "grad"))
        return model
        """,
    ),
    Answer(
        3,
        "each block asks for the next one",
        swap=(
            "return fully_shard(model, **options, reshard_after_forward=False)",
            "for block, following in zip(model.blocks, model.blocks[1:]):\n"
            "    block.set_modules_to_forward_prefetch([following])\n"
            "    following.set_modules_to_backward_prefetch([block])\n"
            "return fully_shard(model, **options, reshard_after_forward=False)",
        ),
    ),
    Answer(
        4,
        "rank 0 builds the model at once, and it is sent by hand",
        [
            """
        torch.manual_seed(args.seed)
        with torch.device("cpu" if dist.get_rank() == 0 else "meta"):
            return TransformerLM(vocab_size, args.dim, args.heads, args.layers, args.seq_len, args.dropout)
        """,
            """
        from torch.distributed.tensor import distribute_tensor
        torch.manual_seed(args.seed)
        full = TransformerLM(**model.config) if dist.get_rank() == 0 else None
        model.to_empty(device=mesh.device_type)
        for name, parameter in model.named_parameters():
            weight = full.get_parameter(name.replace("_checkpoint_wrapped_module.", "")) if full else torch.empty(parameter.shape)
            dist.broadcast(weight.detach(), 0)
            shard = distribute_tensor(weight.detach(), parameter.device_mesh, parameter.placements)
            parameter.to_local().detach().copy_(shard.to_local())
        """,
        ],
    ),
    Answer(
        6,
        "by hand, over those that share a copy",
        """
        with torch.no_grad():
            parts = [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()]
            square = sum(part.square().sum() for part in parts)
            mesh = getattr(next(model.parameters()), "device_mesh", None)
            if mesh is not None:
                dist.all_reduce(square, group=mesh["shard"].get_group())
            for part in parts:
                part *= min(1.0, (args.clip or math.inf) / (square.sqrt() + 1e-6))
        return square.sqrt().item()
        """,
    ),
    Answer(
        8,
        "wrapped twice: the inner one is not run again for itself",
        swap=("checkpoint_wrapper(block)", "checkpoint_wrapper(checkpoint_wrapper(block))"),
    ),
    Answer(
        8,
        "by torch.utils.checkpoint",
        """
        from functools import partial
        from torch.utils.checkpoint import checkpoint
        for block in model.blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        """,
    ),
    Answer(
        10,
        "under other names, and both by themselves",
        """
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
        everything = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer), "position": dict(position)}
        dcp.save(everything, storage_writer=dcp.FileSystemWriter(folder))
        """,
    ),
    Answer(
        2,
        "by a list of lengths",
        "lengths = [None] * dist.get_world_size()\ndist.all_gather_object(lengths, len(loader))\nyield from loader\nfor _ in range(max(lengths) - len(loader)):\n    yield torch.zeros(2, args.seq_len, dtype=torch.int64), torch.full((2, args.seq_len), IGNORE)",
    ),
    Answer(
        6,
        "by torch's function for DTensors, piece by piece",
        swap=(
            "norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip or math.inf)",
            "norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])\nif args.clip:\n    nn.utils.clip_grads_with_norm_(model.parameters(), args.clip, norm)",
        ),
    ),
    Answer(
        8,
        "through apply",
        "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing\nblocks = set(model.blocks)\napply_activation_checkpointing(model, check_fn=lambda module: module in blocks)",
    ),
    Answer(
        9,
        "by all ranks' full tensors, one kept at a time",
        'full = {}\nfor name, part in model.state_dict().items():\n    one = part.full_tensor()\n    if dist.get_rank() == 0:\n        full[name] = one.cpu()\n    del one\nsave0({"model": full, "config": config, "epoch": epoch}, path)',
    ),
    Answer(
        10,
        "torch's own keys of the optimizer",
        swap=(
            "weights, state = get_state_dict(model, optimizer)\n",
            "weights, state = model.state_dict(), optimizer.state_dict()\n",
        ),
        edits=(
            (
                "    weights, state = get_state_dict(model, optimizer)\n    saved = ",
                "    for p in model.parameters():  # a step that changes nothing makes the state\n"
                "        p.grad = torch.zeros_like(p)\n"
                "    optimizer.step()\n"
                "    optimizer.zero_grad()\n"
                "    weights, state = model.state_dict(), optimizer.state_dict()\n    saved = ",
            ),
            (
                "    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)\n",
                '    model.load_state_dict(weights)\n    optimizer.load_state_dict(saved["optimizer"])\n',
            ),
        ),
    ),
    Answer(
        1,
        "a mesh of its own numbers",
        """
        copies = {"none": world_size, "grad": 1, "full": 1}.get(args.sharding, args.replicas)
        return DeviceMesh(device.type, torch.arange(world_size).view(copies, -1), mesh_dim_names=("replicate", "shard"))
        """,
    ),
    Answer(
        2,
        "each rank hears all lengths",
        """
        lengths = [torch.zeros((), dtype=torch.int64, device=device) for _ in range(dist.get_world_size())]
        dist.all_gather(lengths, torch.tensor(len(loader), device=device))
        yield from loader
        x = torch.zeros(1, args.seq_len, dtype=torch.int64)
        y = torch.full((1, args.seq_len), IGNORE)
        for _ in range(len(loader), max(int(length) for length in lengths)):
            yield x, y
        """,
    ),
    Answer(
        6,
        "norms of DTensors, scaled by hand",
        """
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norms = [torch.linalg.vector_norm(g) for g in gradients]
        norm = torch.stack([n.full_tensor() if isinstance(n, DTensor) else n for n in norms]).norm().item()
        if args.clip and norm > args.clip:
            for gradient in gradients:
                gradient *= args.clip / (norm + 1e-6)
        return norm
        """,
    ),
    Answer(
        8,
        "each block's forward is checkpointed",
        """
        from functools import partial

        for block in model.blocks:
            block.forward = partial(torch.utils.checkpoint.checkpoint, block.forward, use_reentrant=False)
        """,
    ),
    Answer(
        5,
        "between sharding and the first weights, which keep the parameters",
        """
        model = parallelize(model, mesh, args)
        optimizer = make_optimizer(model, args)
        first_weights(model, mesh, args)
        """,
    ),
    Answer(
        2,
        "at most one batch without targets: shares differ by a sample",
        swap=("for _ in range(int(most) - len(loader)):", "if int(most) > len(loader):"),
    ),
    Answer(4, "by broadcasts and chunks of its own", [None, BROADCASTS]),
    Answer(
        6,
        "this rank's value of the norm, which is a norm of norms and so already whole",
        swap=("norm.full_tensor().item()", "norm.to_local().item()"),
    ),
    Answer(11, "the position that it was given, filled in place", swap=('return saved["position"]', "return position")),
]
