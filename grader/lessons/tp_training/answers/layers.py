"""Other answers to TODOs 3 and 4 of tp_training."""

from grader.kit import Answer

WRONG = [
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
        4,
        "head by its columns",
        swap=(
            '"head": ColwiseParallel(input_layouts=layout, output_layouts=Replicate())',
            '"head": RowwiseParallel(input_layouts=layout, output_layouts=Replicate())',
        ),
        says="rows of head.weight",
    ),
]


RIGHT = [
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
        4,
        "a loss in float32, as 04 has taught",
        swap=(
            "weight.to_local(), y, ignore, group, weight.shape[0])",
            "weight.to_local(), y, ignore, group, weight.shape[0]).float()",
        ),
    ),
]
