"""Other answers to TODOs 5 to 7 of fsdp_training."""

from grader.kit import Answer

WRONG = [
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
        short = torch.bfloat16 if args.dtype == "bfloat16" else None
        return MixedPrecisionPolicy(param_dtype=short, reduce_dtype=short)
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
    Answer(6, "no clipping clips to nothing", swap=("args.clip or math.inf", "args.clip")),
    Answer(
        7,
        "a loss in bfloat16",
        swap=("reduce_dtype=torch.float32)", "reduce_dtype=torch.float32, output_dtype=torch.bfloat16)"),
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
    Answer(6, "a limit of 1 for none", swap=("args.clip or math.inf", "args.clip or 1.0")),
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
        6,
        "no limit is a limit of a million",
        swap=("args.clip or math.inf", "args.clip or 1e6"),
        says="with --clip 0 the gradient",
    ),
    Answer(
        7,
        "bfloat16 sums with --sharding none",
        swap=(
            "reduce_dtype=torch.float32",
            'reduce_dtype=torch.bfloat16 if args.sharding == "none" else torch.float32',
        ),
        says="--sharding none",
    ),
]


RIGHT = [
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
        6,
        "by torch's function for DTensors, piece by piece",
        swap=(
            "norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip or math.inf)",
            "norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])\nif args.clip:\n    nn.utils.clip_grads_with_norm_(model.parameters(), args.clip, norm)",
        ),
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
        5,
        "between sharding and the first weights, which keep the parameters",
        """
        model = parallelize(model, mesh, args)
        optimizer = make_optimizer(model, args)
        first_weights(model, mesh, args)
        """,
    ),
    Answer(
        6,
        "this rank's value of the norm, which is a norm of norms and so already whole",
        swap=("norm.full_tensor().item()", "norm.to_local().item()"),
    ),
]
