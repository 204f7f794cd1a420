"""Other answers to TODOs 3 and 4 of hybrid_training."""

from grader.kit import Answer

BLOCKS = "for block in layers.blocks.values():\n    fully_shard(block, **options)\n"


HERE = 'if name.split(".")[0] in here'


WRONG = [
    # TODO 3
    Answer(3, "nothing is split", ["pass", None], says="not split"),
    Answer(3, "the blocks alone", swap=(HERE, 'if name.startswith("blocks")'), says="not split"),
    Answer(
        3,
        "a whole stream, whatever the flag says",
        swap=(
            ("here = {", "from torch.distributed.tensor import Replicate\nhere = {"),
            ("model_plan(args)", "plan_of(Replicate())"),
        ),
        says="tokens",
    ),
    Answer(3, "the mean of a micro-batch", swap=(" * (y != IGNORE).sum()", ""), says="the mean over the targets"),
    Answer(3, "times all tokens", swap=("(y != IGNORE).sum()", "y.numel()"), says="not the sum"),
    Answer(
        3,
        "the loss of the plain model",
        [None, "return head_loss(h, layers.head.weight, y, IGNORE) * (y != IGNORE).sum()"],
        says="",
    ),
    Answer(
        3,
        "a rank's own words alone",
        [
            None,
            """
            weight = layers.head.weight
            rows = weight.to_local() if isinstance(weight, DTensor) else weight
            if isinstance(weight, DTensor):
                h = DTensor.from_local(h, weight.device_mesh, [stream_layout(args)]).full_tensor()
                y = y - weight.device_mesh.get_local_rank() * len(rows)
                y = y.where((y >= 0) & (y < len(rows)), IGNORE)
            return head_loss(h, rows, y, IGNORE) * (y != IGNORE).sum()
            """,
        ],
        says="not the sum",
    ),
    Answer(
        3,
        "the tables are gathered",
        [
            None,
            """
            weight = layers.head.weight
            if isinstance(weight, DTensor):
                h = DTensor.from_local(h, weight.device_mesh, [stream_layout(args)]).full_tensor()
                weight = weight.full_tensor()
            return head_loss(h, weight, y, IGNORE) * (y != IGNORE).sum()
            """,
        ],
        says="",
    ),
    Answer(
        3,
        "logits are gathered",
        [
            None,
            """
            from torch.distributed.tensor import Replicate
            weight = layers.head.weight
            if isinstance(weight, DTensor):
                h = DTensor.from_local(h, weight.device_mesh, [stream_layout(args)])
                logits = (h.redistribute(placements=[Replicate()]) @ weight.T).full_tensor()
            else:
                logits = h @ weight.T
            return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=IGNORE, reduction="sum")
            """,
        ],
        says="gathered",
    ),
    Answer(
        3, "h is taken for whole", swap=("[stream_layout(args)]", "[torch.distributed.tensor.Replicate()]"), says=""
    ),
    Answer(
        3,
        "cut off from its graph",
        swap=("shared_head_loss(h, weight, y, IGNORE)", "shared_head_loss(h.detach(), weight, y, IGNORE)"),
        says="",
    ),
    # TODO 4
    Answer(4, "shards alone: copies drift apart", swap=('"mesh": mesh', '"mesh": mesh["shard"]'), says="gradient of"),
    Answer(4, "an axis that is not there", swap=('"mesh": mesh', '"mesh": mesh["dp", "shard"]'), says="mesh_dim_names"),
    Answer(4, "copies alone", swap=('"mesh": mesh', '"mesh": mesh["dp"]'), says=""),
    Answer(4, "sharded over both axes", swap=('"mesh": mesh', '"mesh": mesh._flatten()'), says="ranks outside"),
    Answer(4, "all ranks", swap=('"mesh": mesh, ', ""), says=""),
    Answer(4, "gathered for each micro-batch", swap=(', "reshard_after_forward": False', ""), says="times in a step"),
    Answer(4, "one unit", swap=(BLOCKS, ""), says="in 1 part: not every block"),
    Answer(
        4,
        "the last block is in no unit of its own",
        swap=("in layers.blocks.values()", "in [*layers.blocks.values()][:-1]"),
        says="in 2 parts",
    ),
    Answer(4, "the blocks alone", swap=("\nfully_shard(layers, **options)", "\n"), says=""),
    Answer(4, "nothing", "return", says="more than its shard"),
    Answer(
        4,
        "what is in no block without its precision",
        swap=("fully_shard(layers, **options)", "fully_shard(layers, mesh=mesh, reshard_after_forward=False)"),
        says="gathers weights in bfloat16 and float64",
    ),
    Answer(
        4,
        "nothing sharded on one rank, and its precision lost",
        swap=("options |= {", "if mesh.size() == 1:\n    return\noptions |= {"),
        says="computes with weights in float64",
    ),
    Answer(4, "no precision at all", swap=("options |= {", "options = {"), says="gathers weights in float64"),
    Answer(
        3,
        "the plan of the whole model",
        ["parallelize_module(layers, mesh, model_plan(args))", None],
        says="names layers that a stage lacks",
    ),
    Answer(
        4,
        "a policy of its own, in which sums are as short as weights",
        swap=(
            "options |= {",
            "from torch.distributed.fsdp import MixedPrecisionPolicy\n"
            'short = torch.bfloat16 if args.dtype == "bfloat16" else None\n'
            'options["mp_policy"] = MixedPrecisionPolicy(param_dtype=short, reduce_dtype=short)\n'
            "options |= {",
        ),
        says="adds up gradients in",
    ),
]


RIGHT = [
    Answer(
        3,
        "without what is missing",
        [
            """
            plan = model_plan(args)
            for name in ("token_embedding", "position_embedding", "head"):
                if getattr(layers, name) is None:
                    plan.pop(name, None)
            parallelize_module(layers, mesh, plan)
            """,
            None,
        ],
    ),
    Answer(
        3,
        "the loss by hand",
        [
            None,
            """
            from utils.after_04_tensor_parallel import vocab_parallel_head_loss
            weight, n = layers.head.weight, (y != IGNORE).sum()
            if args.tp == 1:
                return head_loss(h, weight, y, IGNORE) * n
            whole = DTensor.from_local(h, weight.device_mesh, [stream_layout(args)]).full_tensor()
            group = weight.device_mesh.get_group()
            return n * vocab_parallel_head_loss(whole, weight.to_local(), y, IGNORE, group, weight.shape[0])
            """,
        ],
    ),
    Answer(4, "more and smaller units", swap=("values():", "values():\n    fully_shard(block.attention, **options)")),
    Answer(
        4,
        "the flag set afterwards",
        """
        for block in [*layers.blocks.values(), layers]:
            fully_shard(block, mesh=mesh, **options)
        layers.set_reshard_after_forward(False)
        """,
    ),
]
