"""Other answers to TODOs 3, 4 and 8 of fsdp_training."""

from grader.kit import Answer

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
        "in two halves, through views",  # findings/dtensor_writes_through_views_are_lost.sh
        [
            (
                'with torch.device("meta"):\n    return TransformerLM(vocab_size, args.dim, args.heads, args.layers,'
                " args.seq_len, args.dropout)"
            ),
            """
        from torch.distributed.tensor import Replicate
        model.to_empty(device=mesh.device_type)
        torch.manual_seed(args.seed)
        full = TransformerLM(**model.config).state_dict() if dist.get_rank() == 0 else {}
        with torch.no_grad():
            for name, weight in model.state_dict().items():
                whole = full[name] if full else torch.empty(weight.shape)
                dist.broadcast(whole, 0)
                grid, half = weight.device_mesh, len(whole) // 2
                for first, values in ((0, whole[:half]), (half, whole[half:])):
                    part = weight.narrow(0, first, len(values))
                    part.copy_(DTensor.from_local(values, grid, [Replicate()] * grid.ndim))
        """,
        ],
        says="the first token_embedding.weight",
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
        3, "grad frees its weights as well", swap=('args.sharding in ("full", "hybrid")', 'args.sharding != "none"')
    ),
    Answer(
        8,
        "every second block",
        swap=(
            "model.blocks[i] = checkpoint_wrapper(block)",
            "model.blocks[i] = checkpoint_wrapper(block) if i % 2 == 0 else block",
        ),
    ),
    Answer(
        4,
        "dropout is forgotten",
        swap=("args.seq_len, args.dropout, args.kv_heads)", "args.seq_len, 0.0, args.kv_heads)"),
        says="build_model makes has dropout 0.0",
    ),
    Answer(
        4,
        "names of named_parameters(), which --recompute makes longer",
        [None, BROADCASTS.replace("model.state_dict()", "model.named_parameters()")],
        says="_checkpoint_wrapped_module",
    ),
    Answer(
        3,
        "a mesh by its name",
        swap=("return fully_shard(model, **options,", 'return fully_shard(model, mesh="shard",'),
        says="at train/fsdp_training.py",
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
]


RIGHT = [
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
        8,
        "through apply",
        "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing\nblocks = set(model.blocks)\napply_activation_checkpointing(model, check_fn=lambda module: module in blocks)",
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
    Answer(4, "by broadcasts and chunks of its own", [None, BROADCASTS]),
]
