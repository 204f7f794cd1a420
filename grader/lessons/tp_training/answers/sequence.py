"""Other answers to TODOs 5 and 6 of tp_training."""

from grader.kit import Answer

WRONG = [
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
]


RIGHT = [
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
]
