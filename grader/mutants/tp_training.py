"""Other answers to the TODOs of tp_training: what real courses got wrong, and what is right as well."""

from grader.kit import Answer

NAMES = 'mesh_dim_names=("data", "tensor")'
ROWS = """return init_device_mesh(device.type, (world_size // args.tp, args.tp), mesh_dim_names=("data", "tensor"))"""

WRONG = [
    # TODO 1
    Answer(
        1,
        "the axes swapped: a layer's ranks are on several nodes",
        [f"return init_device_mesh(device.type, (args.tp, world_size // args.tp), {NAMES})", None],
        says="the grid is",
    ),
    Answer(
        1,
        "columns share a layer",
        [
            f"""
        grid = torch.arange(world_size).view(args.tp, -1).T.contiguous()
        return DeviceMesh(device.type, grid, {NAMES})
        """,
            None,
        ],
        says="consecutive numbers",
    ),
    Answer(
        1, "the names swapped", swap=('("data", "tensor")', '("tensor", "data")'), says="are called tensor and data"
    ),
    Answer(
        1,
        "all ranks share each layer",
        [f"return init_device_mesh(device.type, (1, world_size), {NAMES})", None],
        says="the grid is 1 × 4",
    ),
    Answer(
        1,
        "one axis",
        ["return init_device_mesh(device.type, (world_size,), mesh_dim_names=('data',))", None],
        says="not in a grid",
    ),
    Answer(1, "nothing", ["return None", None], says="returns None"),
    Answer(
        1,
        "the sampler of the world",
        swap=("DistributedSampler(train, rows, row, shuffle", "DistributedSampler(train, shuffle"),
        says="read different train samples",
    ),
    Answer(
        1,
        "validation over the world",
        swap=("ShardSampler(validation, row, rows)", "ShardSampler(validation)"),
        says="read different validation samples",
    ),
    Answer(
        1,
        "the test set over the world",
        swap=("ShardSampler(test, row, rows)", "ShardSampler(test)"),
        says="read different test samples",
    ),
    Answer(
        1,
        "the other axis",
        swap=(
            'row, rows = mesh.get_local_rank("data"), mesh["data"].size()',
            'row, rows = mesh.get_local_rank("tensor"), mesh["tensor"].size()',
        ),
        says="read",
    ),
    Answer(1, "the row's number among all ranks", swap=('mesh["data"].size()', "mesh.size()"), says=""),
    Answer(
        1,
        "every rank reads all",
        [
            None,
            """
        return DistributedSampler(train, 1, 0, shuffle=True, seed=args.seed, drop_last=True), ShardSampler(validation, 0, 1), ShardSampler(test, 0, 1)
        """,
        ],
        says="reads the whole",
    ),
    Answer(
        1,
        "padded",
        swap=("ShardSampler(validation, row, rows)", "DistributedSampler(validation, rows, row, shuffle=False)"),
        says="padded",
    ),
    Answer(1, "the seed is forgotten", swap=("seed=args.seed, ", ""), says="samples of the serial run"),
    Answer(1, "not shuffled", swap=("shuffle=True, seed=args.seed", "shuffle=False"), says="samples of the serial run"),
    # TODO 2
    Answer(
        2,
        "each mesh by its own norm",
        swap=(
            "nn.utils.clip_grads_with_norm_(group, args.clip or math.inf, norm)",
            "nn.utils.clip_grad_norm_(group, args.clip or math.inf)",
        ),
        says="the gradient of",
    ),
    Answer(2, "norms are added, not squares", swap=(".norm()\n", ".sum()\n"), says="larger than the norm of the whole"),
    Answer(
        2,
        "the first mesh alone",
        swap=("torch.stack(norms).norm()", "norms[0]"),
        says="smaller than the norm of the whole",
    ),
    Answer(
        2,
        "each rank by the norm of its part",
        """
        parts = [p.grad.to_local() for p in model.parameters()]
        norm = torch.stack([part.norm() for part in parts]).norm()
        for part in parts:
            part *= min(1.0, (args.clip or math.inf) / norm)
        return norm.item()
        """,
        says="the norm of a part",
    ),
    Answer(
        2,
        "all ranks' parts: what a row has several times counts several times",
        """
        parts = [p.grad.to_local() for p in model.parameters()]
        square = sum(part.square().sum() for part in parts)
        dist.all_reduce(square)
        for part in parts:
            part *= min(1.0, (args.clip or math.inf) / square.sqrt())
        return square.sqrt().item()
        """,
        says="count twice",
    ),
    Answer(2, "0 is taken for a limit", swap=("args.clip or math.inf", "args.clip"), says="--clip 0"),
    Answer(
        2,
        "gradients are put together",
        """
        full = [p.grad.full_tensor() for p in model.parameters()]
        norm = torch.stack([grad.norm() for grad in full]).norm()
        for p in model.parameters():
            p.grad.to_local().mul_(min(1.0, (args.clip or math.inf) / norm.item()))
        return norm.item()
        """,
        says="assembles whole gradients",
    ),
    Answer(
        2,
        "nothing is clipped",
        swap=("    nn.utils.clip_grads_with_norm_(group, args.clip or math.inf, norm)", "    pass"),
        says="the gradient of",
    ),
    Answer(2, "a tensor", swap=("return norm.item()", "return norm"), says="returns a Tensor"),
    # TODO 3
    Answer(
        3,
        "q, k and v each add up their gradient: four all-reduces backward",
        swap=(('"attention": enter,\n', ""), ('"mlp": enter,\n', "")),
        says="",
    ),
    Answer(
        3,
        "only the MLP",
        """
        return {
            "mlp": PrepareModuleInput(input_layouts=layout, desired_input_layouts=Replicate()),
            "mlp.up": ColwiseParallel(),
            "mlp.down": RowwiseParallel(output_layouts=layout),
        }
        """,
        says="not all are cut",
    ),
    Answer(
        3,
        "up by rows, down by columns",
        swap=(
            ('"mlp.up": ColwiseParallel()', '"mlp.up": RowwiseParallel(input_layouts=Replicate())'),
            (
                '"mlp.down": RowwiseParallel(output_layouts=layout)',
                '"mlp.down": ColwiseParallel(output_layouts=layout)',
            ),
        ),
        says="",
    ),
    Answer(
        3,
        "the hidden layer is gathered",
        swap=(
            ('"mlp.up": ColwiseParallel()', '"mlp.up": ColwiseParallel(output_layouts=Replicate())'),
            (
                '"mlp.down": RowwiseParallel(output_layouts=layout)',
                '"mlp.down": RowwiseParallel(input_layouts=Replicate(), output_layouts=layout)',
            ),
        ),
        says="sends",
    ),
    Answer(
        3,
        "the layout is forgotten",
        swap=(
            ('"attention.out": RowwiseParallel(output_layouts=layout)', '"attention.out": RowwiseParallel()'),
            ('"mlp.down": RowwiseParallel(output_layouts=layout)', '"mlp.down": RowwiseParallel()'),
        ),
        says="Shard(1)",
    ),
    Answer(
        3,
        "a cut stream is taken for a whole one",
        swap=("input_layouts=layout", "input_layouts=Replicate()"),
        says="Shard(1)",
    ),
    Answer(3, "out is not cut", swap=('    "attention.out": RowwiseParallel(output_layouts=layout),\n', "")),
    Answer(3, "a list", "return [ColwiseParallel(), RowwiseParallel()]", says="no plan"),
    Answer(3, "another model's names", 'return {"attention.wq": ColwiseParallel()}', says="attention.wq"),
    # TODO 4
    Answer(
        4,
        "the head alone",
        swap=('    "token_embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=layout),\n', ""),
    ),
    Answer(
        4,
        "the embedding alone",
        [
            """
        return {"token_embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=layout)}
        """,
            "pass",
        ],
        says="rows of head.weight",
    ),
    Answer(4, "the loss of the plain model", [None, "pass"]),
    Answer(
        4,
        "logits are gathered",
        [
            None,
            """
        def loss(h, weight, y, ignore):
            h = h if isinstance(h, DTensor) else DTensor.from_local(h, weight.device_mesh, [Replicate()], run_check=False)
            logits = (h.redistribute(placements=[Replicate()]) @ weight.T).full_tensor()
            total = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=ignore, reduction="sum")
            return total / (y != ignore).sum().clamp(min=1)
        model.head_loss = loss
        """,
        ],
        says="gathered",
    ),
    Answer(
        4,
        "the weights are gathered",
        [
            None,
            """
        from utils.loss import head_loss
        def loss(h, weight, y, ignore):
            h = h.full_tensor() if isinstance(h, DTensor) else h
            return head_loss(h, weight.full_tensor(), y, ignore)
        model.head_loss = loss
        """,
        ],
        says="",
    ),
    Answer(
        4,
        "a rank's own words alone",
        [
            None,
            """
        from utils.loss import head_loss
        def loss(h, weight, y, ignore):
            h = h.full_tensor() if isinstance(h, DTensor) else h
            rows = weight.to_local()
            y = (y - dist.get_rank(weight.device_mesh.get_group()) * len(rows))
            y = y.where((0 <= y) & (y < len(rows)), ignore)
            return head_loss(h, rows, y, ignore)
        model.head_loss = loss
        """,
        ],
        says="the loss on rank",
    ),
    Answer(
        4,
        "torch's loss_parallel: a batch without a target is nan",
        [
            None,
            """
        from torch.distributed.tensor.parallel import loss_parallel
        def loss(h, weight, y, ignore):
            h = h if isinstance(h, DTensor) else DTensor.from_local(h, weight.device_mesh, [Replicate()], run_check=False)
            logits = h.redistribute(placements=[Replicate()]) @ weight.T
            with loss_parallel():
                return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=ignore)
        model.head_loss = loss
        """,
        ],
    ),
    Answer(
        4,
        "a cut h is taken for the whole",
        [
            None,
            """
        def loss(h, weight, y, ignore):
            h = h.to_local() if isinstance(h, DTensor) else h
            return vocab_parallel_head_loss(h, weight.to_local(), y, ignore, weight.device_mesh.get_group(), weight.shape[0])
        model.head_loss = loss
        """,
        ],
        says="",
    ),
    Answer(
        4,
        "the sum leaves whole, though the stream is cut",
        swap=("output_layouts=layout", "output_layouts=Replicate()"),
        says="Shard(1)",
    ),
    # TODO 5
    Answer(
        5,
        "each rank looks up its positions in a table of its own",
        """
        class Cut(ParallelStyle):
            def _apply(self, module, mesh):
                module.register_forward_hook(lambda module, args, out: out.chunk(mesh.size())[mesh.get_local_rank()])
                return module
        return {"position_embedding": Cut()} if layout == Shard(1) else {}
        """,
        says="gradient of position_embedding",
    ),
    Answer(
        5,
        "every rank takes the first positions",
        """
        class Cut(ParallelStyle):
            def _apply(self, module, mesh):
                module.register_forward_hook(lambda module, args, out: out.chunk(mesh.size())[0])
                return module
        return {"position_embedding": Cut()} if layout == Shard(1) else {}
        """,
        says="the loss on rank",
    ),
    Answer(5, "D is cut", 'return {"position_embedding": ColwiseParallel()} if layout == Shard(1) else {}'),
    Answer(5, "cut along D in place of T", swap=("Shard(0)", "Shard(1)"), says=""),
    Answer(5, "always cut", 'return {"position_embedding": ColwiseParallel(output_layouts=Shard(0))}', says=""),
    Answer(5, "all of them on every rank", swap=("output_layouts=Shard(0)", "output_layouts=Replicate()")),
    # TODO 6
    Answer(6, "the flag alone: norms learn from their own tokens", [None, "return {}"], says="the last norm passes on"),
    Answer(
        6,
        "not with --recompute",
        swap=("if args.sequence_parallel", "if args.sequence_parallel and not args.recompute"),
    ),
    Answer(6, "the blocks' norms alone", swap=((', "norm")', ")"),), says="the last norm passes on"),
    Answer(
        6,
        "the last norm alone",
        swap=(('"blocks.*.attention_norm", "blocks.*.mlp_norm", "norm"', '"norm",'),),
        says="attention_norm",
    ),
    Answer(6, "always cut", ["return Shard(1)", None], says="of"),
    Answer(6, "never cut", ["return Replicate()", None], says="tokens"),
    Answer(6, "B is cut", ["return Shard(0) if args.sequence_parallel else Replicate()", None], says=""),
    Answer(6, "D is cut", ["return Shard(2) if args.sequence_parallel else Replicate()", None], says=""),
    Answer(
        1,
        "training pads",
        swap=("seed=args.seed, drop_last=True", "seed=args.seed"),
        says="some are repeated until all shares are equal",
    ),
    Answer(
        4,
        "the embedding cut by columns",
        swap=(
            '"token_embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=layout)',
            '"token_embedding": ColwiseParallel(output_layouts=layout)',
        ),
        says="rows of token_embedding.weight",
    ),
    Answer(
        4,
        "the head's input is taken as whole",
        swap=("ColwiseParallel(input_layouts=layout,", "ColwiseParallel(input_layouts=Replicate(),"),
        says="the head's output",
    ),
    Answer(
        4,
        "the weight of the first batch for ever",
        [
            None,
            """
        kept = []

        def loss(h: Tensor, weight: DTensor, y: Tensor, ignore: int) -> Tensor:
            h_BTD = h.full_tensor() if isinstance(h, DTensor) else h
            kept.append(weight)
            group = weight.device_mesh.get_group()
            return vocab_parallel_head_loss(h_BTD, kept[0].to_local(), y, ignore, group, weight.shape[0])

        model.head_loss = loss
        """,
        ],
        says="another weight",
    ),
    Answer(4, "the group of all ranks", swap=("weight.device_mesh.get_group()", "dist.group.WORLD")),
    Answer(
        4,
        "h stays a DTensor",
        swap=("h_BTD = h.full_tensor() if isinstance(h, DTensor) else h", "h_BTD = h"),
        says="mixed torch.Tensor and DTensor",
    ),
    Answer(
        1,
        "tensor axis outermost",
        swap=(
            'world_size // args.tp, args.tp), mesh_dim_names=("data", "tensor',
            'args.tp, world_size // args.tp), mesh_dim_names=("tensor", "data',
        ),
        says="are called tensor and data",
    ),
    Answer(
        2,
        "no norm without a limit",
        swap=(
            "on_mesh: dict[DeviceMesh, list[nn.Parameter]] = {}",
            "if not args.clip:\n    return 0.0\non_mesh: dict[DeviceMesh, list[nn.Parameter]] = {}",
        ),
        says="it is 0, and the gradient is not",
    ),
    Answer(
        2,
        "norm after clipping",
        swap=("return norm.item()", "return min(norm.item(), args.clip or math.inf)"),
        says="it is --clip, the norm after clipping",
    ),
    Answer(
        4,
        "head by its columns",
        swap=(
            '"head": ColwiseParallel(input_layouts=layout, output_layouts=Replicate())',
            '"head": RowwiseParallel(input_layouts=layout, output_layouts=Replicate())',
        ),
        says="rows of head.weight",
    ),
    Answer(
        6,
        "cut along the batch",
        swap=("Shard(1) if args.sequence_parallel", "Shard(0) if args.sequence_parallel"),
        says="the ranks call different shapes",
    ),
    Answer(
        5,
        "words, too",
        swap=(
            'return {"position_embedding": ColwiseParallel(output_layouts=Shard(0))}',
            'cut = ColwiseParallel(output_layouts=Shard(0))\n    return {"position_embedding": cut, "token_embedding": cut}',
        ),
    ),
    Answer(
        2,
        "a mesh with a small norm is not clipped",
        swap=(
            """for group in on_mesh.values():
    nn.utils.clip_grads_with_norm_(group, args.clip or math.inf, norm)""",
            """for group, own in zip(on_mesh.values(), norms, strict=True):
    if own > args.clip:
        nn.utils.clip_grads_with_norm_(group, args.clip or math.inf, norm)""",
        ),
        says="after clip_gradients",
    ),
]

RIGHT = [
    Answer(
        1,
        "a mesh made of a tensor",
        [f"return DeviceMesh(device.type, torch.arange(world_size).view(-1, args.tp), {NAMES})", None],
    ),
    Answer(
        1,
        "by the numbers of the ranks",
        [
            None,
            """
        rows = dist.get_world_size() // mesh["tensor"].size()
        row = dist.get_rank() // mesh["tensor"].size()
        trained = DistributedSampler(train, num_replicas=rows, rank=row, seed=args.seed, drop_last=True)
        return trained, ShardSampler(validation, rank=row, world_size=rows), ShardSampler(test, rank=row, world_size=rows)
        """,
        ],
    ),
    Answer(
        2,
        "by hand: each parameter's square, over the ranks that share it",
        """
        with torch.no_grad():
            squares = []
            for p in model.parameters():
                square = p.grad.to_local().square().sum()
                for axis, placement in enumerate(p.placements):
                    if placement.is_shard() or "Shard" in type(placement).__name__:
                        dist.all_reduce(square, group=p.device_mesh.get_group(axis))
                squares.append(square if not any(q.is_partial() for q in p.grad.placements) else p.grad.full_tensor().square().sum())
            norm = torch.stack(squares).sum().sqrt()
            for p in model.parameters():
                p.grad.to_local().mul_(min(1.0, (args.clip or math.inf) / norm.item()))
        return norm.item()
        """,
    ),
    Answer(
        3,
        "each input by itself, where that costs no more",
        """
        plan = {name: PrepareModuleInput(input_layouts=(layout,), desired_input_layouts=(Replicate(),)) for name in ("attention", "mlp")}
        for name in ("attention.q", "attention.k", "attention.v", "mlp.up"):
            plan[name] = ColwiseParallel(input_layouts=Replicate(), output_layouts=Shard(-1))
        for name in ("attention.out", "mlp.down"):
            plan[name] = RowwiseParallel(input_layouts=Shard(-1), output_layouts=layout)
        return plan
        """,
    ),
    Answer(
        4,
        "through logits that stay cut",
        [
            None,
            """
        def loss(h, weight, y, ignore):
            h = h if isinstance(h, DTensor) else DTensor.from_local(h, weight.device_mesh, [Replicate()], run_check=False)
            return vocab_parallel_head_loss(h.full_tensor(), weight.to_local(), y, ignore, weight.device_mesh.get_group("tensor"), len(weight))
        model.head_loss = loss
        """,
        ],
    ),
    Answer(
        5,
        "the table cut by positions",
        swap=(
            "ColwiseParallel(output_layouts=Shard(0))",
            "RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0))",
        ),
    ),
    Answer(
        6,
        "for whatever layout: a norm on whole tokens is what it was",
        [
            None,
            """
        if isinstance(layout, Replicate):
            return {}
        return {"blocks.*.attention_norm": SequenceParallel(sequence_dim=1), "blocks.*.mlp_norm": SequenceParallel(), "norm": SequenceParallel()}
        """,
        ],
    ),
    Answer(
        2,
        "this rank's value of each norm, which is a norm of norms and so already whole",
        swap=(".full_tensor() for group", ".to_local() for group"),
    ),
    Answer(
        4,
        "a loss in float32, as 04 has taught",
        swap=(
            "weight.to_local(), y, ignore, group, weight.shape[0])",
            "weight.to_local(), y, ignore, group, weight.shape[0]).float()",
        ),
    ),
]
