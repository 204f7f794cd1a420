"""Other answers to the TODOs of hybrid_training: what real courses got wrong, and what is right as well."""

from grader.kit import Answer

NAMES = '("pp", "dp", "shard", "tp")'
SIZES = "(args.pp, args.dp, args.shard, args.tp)"
SHARE = 'mesh.get_local_rank("dp") * mesh["shard"].size() + mesh.get_local_rank("shard")'
SHARES = 'mesh["dp"].size() * mesh["shard"].size()'
BLOCKS = "for block in layers.blocks.values():\n    fully_shard(block, **options)\n"
HERE = 'if name.split(".")[0] in here'

WRONG = [
    # TODO 1
    Answer(
        1,
        "the pipeline between neighbours",
        swap=((SIZES, "(args.tp, args.dp, args.shard, args.pp)"), (NAMES, '("tp", "dp", "shard", "pp")')),
        says="no neighbours",
    ),
    Answer(
        1,
        "copies nearer than shards",
        swap=((SIZES, "(args.pp, args.shard, args.dp, args.tp)"), (NAMES, '("pp", "shard", "dp", "tp")')),
        says="axis shard",
    ),
    Answer(
        1,
        "copies outside the pipeline",
        swap=((SIZES, "(args.dp, args.pp, args.shard, args.tp)"), (NAMES, '("dp", "pp", "shard", "tp")')),
        says="not those that the order",
    ),
    Answer(1, "the sizes in another order than the names", swap=(SIZES, "(args.dp, args.pp, args.shard, args.tp)")),
    Answer(1, "names of two swapped", swap=(NAMES, '("pp", "shard", "dp", "tp")'), says="not those that the order"),
    Answer(1, "other names", swap=(NAMES, '("pipeline", "dp", "shard", "tensor")'), says="wrong names"),
    Answer(
        1,
        "one data axis",
        """
        sizes = (args.pp, args.dp * args.shard, args.tp)
        return init_device_mesh(device.type, sizes, mesh_dim_names=("pp", "data", "tp"))
        """,
        says="wrong names",
    ),
    Answer(1, "no copies", swap=(SIZES, "(args.pp, 1, args.dp * args.shard, args.tp)"), says="on the axis"),
    Answer(1, "nothing", "return None", says="returns None"),
    # TODO 2
    Answer(2, "the world as its group", swap=(", group=mesh.get_group()", ""), says=""),
    Answer(2, "stages by the rank in the world", swap=("mesh.get_local_rank()", "dist.get_rank()"), says=""),
    Answer(
        2,
        "neighbouring stages on one rank",
        swap=("range(r, n_stages, p)", "range(r * (n_stages // p), (r + 1) * (n_stages // p))"),
        says="its own stages",
    ),
    Answer(2, "one stage, whatever the schedule", swap=("p * stages_a_rank(p, args)", "p"), says="its own"),
    Answer(2, "the stages of all ranks", swap=("range(r, n_stages, p)", "range(n_stages)"), says="its own"),
    Answer(
        2,
        "memory at once",
        swap=("Layers(model, blocks[stage])", "Layers(model, blocks[stage]).to_empty(device=device)"),
        says="before it is split",
    ),
    Answer(
        2,
        "the whole model on every stage",
        swap=("Layers(model, blocks[stage])", "Layers(model, range(len(model.blocks)))"),
        says="has the wrong layers",
    ),
    Answer(
        2,
        "copies",
        swap=("Layers(model, blocks[stage])", "__import__('copy').deepcopy(Layers(model, blocks[stage]))"),
        says="copies",
    ),
    Answer(
        2, "the next rank's stages", swap=("range(r, n_stages, p)", "range((r + 1) % p, n_stages, p)"), says="its own"
    ),
    # TODO 3
    Answer(3, "nothing is split", ["pass", None], says="not split"),
    Answer(3, "the blocks alone", swap=(HERE, 'if name.startswith("blocks")'), says="not split"),
    Answer(
        3,
        "a whole stream, whatever the flag says",
        swap=(
            ("here = {", "from torch.distributed.tensor import Replicate\nhere = {"),
            ("(stream_layout(args))", "(Replicate())"),
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
    # TODO 5
    Answer(5, "copies alone", 'return mesh.get_local_rank("dp"), mesh["dp"].size()', says=""),
    Answer(5, "all ranks", "return dist.get_rank(), dist.get_world_size()", says="differ only on pp or tp"),
    Answer(5, "the places added", swap=('* mesh["shard"].size() + mesh', "+ mesh"), says=""),
    Answer(
        5,
        "copies counted by their own number",
        swap=('mesh.get_local_rank("dp") * mesh["shard"].size()', 'mesh.get_local_rank("dp") * mesh["dp"].size()'),
        says="",
    ),
    Answer(5, "the tensor axis, too", swap=(SHARES, SHARES + ' * mesh["tp"].size()'), says=""),
    Answer(
        5,
        "the pipeline for the copies",
        swap=(
            ('mesh.get_local_rank("dp")', 'mesh.get_local_rank("pp")'),
            (SHARES, 'mesh["pp"].size() * mesh["shard"].size()'),
        ),
        says="",
    ),
    Answer(5, "everybody reads all", "return 0, 1", says="reads the whole"),
    Answer(
        5,
        "the rank modulo the shares",
        f"shares = {SHARES}\nreturn dist.get_rank() % shares, shares",
        says="differ only on pp or tp",
    ),
    Answer(5, "the share alone", f"return {SHARE}", says="my_share gives"),
    # TODO 6
    Answer(6, "FSDP's division is left", swap=("shares / n_targets", "1 / n_targets"), says="what it should be"),
    Answer(
        6,
        "by its own targets",
        swap=('for axis in ("dp", "shard"):\n    dist.all_reduce(n_targets, group=mesh.get_group(axis))\n', ""),
        says="gradient of",
    ),
    Answer(6, "shards alone", swap=('("dp", "shard")', '("shard",)'), says="gradient of"),
    Answer(
        6,
        "over all ranks",
        swap=(
            'for axis in ("dp", "shard"):\n    dist.all_reduce(n_targets, group=mesh.get_group(axis))\n',
            "dist.all_reduce(n_targets)\n",
        ),
        says="what it should be",
    ),
    Answer(
        6,
        "by the number of all ranks",
        swap=(f"shares = {SHARES}", "shares = dist.get_world_size()"),
        says="what it should be",
    ),
    Answer(
        6,
        "the log's number is written over",
        swap=("n_targets = n_targets.clone()\n", ""),
        says="which it is given, is written into",
    ),
    Answer(
        6,
        "a copy is divided",
        swap=("parameter.grad *= shares / n_targets", "parameter.grad * shares / n_targets"),
        says="gradient of",
    ),
    Answer(
        6,
        "gradients are summed up once more",
        swap=(
            "    parameter.grad *= shares / n_targets",
            "    dist.all_reduce(parameter.grad.to_local(), group=mesh.get_group('dp'))\n    parameter.grad *= 1 / n_targets",
        ),
        says="",
    ),
    # TODO 7
    Answer(
        7,
        "all gradients",
        swap=(' if "tp" not in p.device_mesh.mesh_dim_names', ""),
        says="the ranks call different shapes",
    ),
    Answer(7, "whatever the flag says", swap=("args.sequence_parallel and args.tp > 1", "args.tp > 1"), says="norm"),
    Answer(
        7,
        "over the data axis",
        swap=('group=mesh.get_group("tp")', 'group=mesh.get_group("dp")'),
        says="which all ranks",
    ),
    Answer(7, "over all ranks", swap=(', group=mesh.get_group("tp")', ""), says=""),
    Answer(
        7,
        "the mean",
        swap=("part.copy_(total.view_as(part))", "part.copy_(total.view_as(part) / args.tp)"),
        says="which all ranks",
    ),
    Answer(7, "in a copy that nobody uses", swap=("part.copy_(", "part.clone().copy_("), says="which all ranks"),
    Answer(
        7,
        "the last norm alone",
        swap=(
            'for p in own.parameters() if "tp" not in p.device_mesh.mesh_dim_names',
            'for name, p in own.named_parameters() if name.startswith("norm.")',
        ),
        says="",
    ),
    Answer(
        7,
        "weights, and no biases",
        swap=(
            'for p in own.parameters() if "tp" not in p.device_mesh.mesh_dim_names',
            'for name, p in own.named_parameters() if "norm" in name and "weight" in name',
        ),
        says="bias",
    ),
    Answer(
        7,
        "gradients made of shards that are taken to be equal",
        """
        if args.sequence_parallel and args.tp > 1:
            for p in own.parameters():
                if "tp" not in p.device_mesh.mesh_dim_names:
                    part = p.grad.to_local().clone()
                    dist.all_reduce(part, group=mesh.get_group("tp"))
                    p.grad = DTensor.from_local(part, p.device_mesh, p.placements)
        """,
        says="attempting to assign a gradient",
    ),
    Answer(
        7,
        "gradients are put together",
        """
        if args.sequence_parallel and args.tp > 1:
            for p in own.parameters():
                full = p.grad.full_tensor().clone()
                if "tp" not in p.device_mesh.mesh_dim_names:
                    dist.all_reduce(p.grad.to_local(), group=mesh.get_group("tp"))
        """,
        says="add_up_norms: rank",
    ),
    # TODO 8
    Answer(8, "over all ranks", swap=(', group=mesh.get_group("pp")', ""), says="count twice"),
    Answer(
        8,
        "norms are added, not squares",
        swap=(("norm.square()", "norm"), ("square.sqrt()", "square")),
        says="their squares that can be",
    ),
    Answer(8, "the square", swap=("square.sqrt()", "square"), says="wrong norm"),
    Answer(8, "over the tensor axis", swap=('get_group("pp")', 'get_group("tp")'), says="wrong norm"),
    Answer(8, "over shards, once more", swap=('get_group("pp")', 'get_group("shard")'), says="wrong norm"),
    Answer(
        8,
        "the largest stage's",
        swap=("dist.all_reduce(square, group", "dist.all_reduce(square, dist.ReduceOp.MAX, group"),
        says="this stage alone",
    ),
    Answer(8, "found, and not used", swap=("norm = square.sqrt()", "whole = square.sqrt()"), says="this stage alone"),
    Answer(
        8,
        "the mean of the stages",
        swap=("norm = square.sqrt()", 'norm = (square / mesh["pp"].size()).sqrt()'),
        says="wrong norm",
    ),
    # TODO 9
    Answer(
        9,
        "targets counted on every rank",
        """
        losses = []
        schedule.eval(x, target=y, losses=losses, return_outputs=False)
        total += sum(loss.double() for loss in losses)
        count += (y != IGNORE).sum()
        """,
        says="2 times too small",
    ),
    Answer(9, "is the first stage of the rank the last", swap=("if losses:", "if stages[0].is_last:"), says="0 / 0"),
    Answer(9, "all tokens are counted", swap=("(y != IGNORE).sum()", "y.numel()"), says="too many targets"),
    Answer(
        9,
        "mean of batch means",
        """
        losses = []
        schedule.eval(x, target=y, losses=losses, return_outputs=False)
        if losses:
            total += torch.stack(losses).double().sum() / (y != IGNORE).sum().clamp(min=1)
            count += 1
        """,
        says="different from the loss of one process",
    ),
    Answer(9, "fails where there is no loss", swap=("if losses:", "if True:"), says=""),
    Answer(
        9,
        "the last micro-batch alone",
        swap=("torch.stack(losses).double().sum()", "losses[-1].double()"),
        says="different from the loss of one process",
    ),
    Answer(9, "only the last batch", swap=("total += torch", "total = torch"), says=""),
    Answer(
        9, "rank 0 alone evaluates", swap=("schedule.eval(", "if dist.get_rank() == 0:\n    schedule.eval("), says=""
    ),
    Answer(9, "nothing", "pass  # later", says=""),
    Answer(
        9,
        "trained, not evaluated",
        swap=("schedule.eval(", "torch.enable_grad()(schedule.step)("),
        says="leaves gradients",
    ),
    # TODO 10
    Answer(10, "lists of parameters", ["return StateDictOptions()", None], says="lists of the parameters"),
    Answer(
        10, "DTensors in the file", [None, 'save0({"model": parts, "config": config, "epoch": epoch}, path)'], says=""
    ),
    Answer(
        10,
        "rank 0's stage alone",
        [
            None,
            """
            full = {name: part.full_tensor() for name, part in parts.items()}
            save0({"model": full, "config": config, "epoch": epoch}, path)
            """,
        ],
        says="all weights",
    ),
    Answer(
        10,
        "torch's own full state dict: rank 0's stage alone",
        [
            None,
            """
            full = get_model_state_dict(own, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
            save0({"model": full, "config": config, "epoch": epoch}, path)
            """,
        ],
        says="all weights",
    ),
    Answer(10, "rank 0's parts", swap=("part.full_tensor()", "part.to_local()"), says="a part of it"),
    Answer(
        10,
        "put together by those alone who keep it",
        swap=(
            "weight = part.full_tensor()\n    if first:\n        own_weights[name] = weight.cpu()",
            "if first:\n        own_weights[name] = part.full_tensor().cpu()",
        ),
        says="",
    ),
    Answer(
        10,
        "every rank keeps its whole stage",
        swap=("    if first:\n        own_weights", "    if True:\n        own_weights"),
        says="assembles its stage",
    ),
    Answer(
        10,
        "every rank writes",
        swap=("save0({", "path.parent.mkdir(parents=True, exist_ok=True)\ntorch.save({"),
        says="all write",
    ),
    Answer(10, "gathered over the tensor axis", swap=('mesh.get_group("pp")', 'mesh.get_group("tp")'), says=""),
    Answer(10, "rank 0 alone gathers", swap=("if first:\n    stages", "if dist.get_rank() == 0:\n    stages"), says=""),
    Answer(10, "the config is lost", swap=(', "config": config', ""), says="lost an entry"),
    Answer(10, "gathered, and thrown away", swap=("full |= weights", "weights"), says="all weights"),
    Answer(
        3,
        "the plan of the whole model",
        ["parallelize_module(layers, mesh, plan_of(stream_layout(args)))", None],
        says="names layers that a stage lacks",
    ),
    Answer(
        4,
        "a policy of its own, which adds up in bfloat16",
        swap=(
            "options |= {",
            "from torch.distributed.fsdp import MixedPrecisionPolicy\n"
            'short = torch.bfloat16 if args.dtype == "bfloat16" else None\n'
            'options["mp_policy"] = MixedPrecisionPolicy(param_dtype=short)\n'
            "options |= {",
        ),
        says="adds up gradients in bfloat16",
    ),
    Answer(
        7,
        "only where there are no copies",
        swap=(
            "if args.sequence_parallel and args.tp > 1:",
            "if args.sequence_parallel and args.tp > 1 and args.dp == 1:",
        ),
        says="after add_up_norms",
    ),
    Answer(
        10,
        "a file of nothing where there is one stage",
        swap=("full = {}\nif first:", 'full = {}\nif first and mesh["pp"].size() > 1:'),
        says="all weights",
    ),
]

RIGHT = [
    Answer(
        7,
        "asks the mesh, not the flags",
        swap=("if args.sequence_parallel and args.tp > 1:", 'if args.sequence_parallel and mesh["tp"].size() > 1:'),
    ),
    Answer(
        1,
        "a mesh made of a tensor",
        f"""
        grid = torch.arange(args.pp * args.dp * args.shard * args.tp).view{SIZES}
        return DeviceMesh(device.type, grid, mesh_dim_names={NAMES})
        """,
    ),
    Answer(
        1,
        "the axes told in another order, the ranks in this one",
        f"""
        grid = torch.arange(args.pp * args.dp * args.shard * args.tp).view{SIZES}.permute(1, 2, 0, 3)
        return DeviceMesh(device.type, grid.contiguous(), mesh_dim_names=("dp", "shard", "pp", "tp"))
        """,
    ),
    Answer(
        2,
        "in one list",
        """
        n = mesh.size() * stages_a_rank(mesh.size(), args)
        numbers = [k for k in range(n) if k % mesh.size() == mesh.get_local_rank()]
        return [PipelineStage(Layers(model, by_number(len(model.blocks), n)[k]), k, n, device, group=mesh.get_group()) for k in numbers]
        """,
    ),
    Answer(
        3,
        "without what is missing",
        [
            """
            plan = plan_of(stream_layout(args))
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
    Answer(
        5,
        "by the mesh of both axes",
        """
        data = mesh["dp", "shard"]
        row, column = data.get_coordinate()
        return row * data.size(1) + column, data.size()
        """,
    ),
    Answer(
        5,
        "by the list of ranks",
        """
        ranks = mesh["dp", "shard"].mesh.flatten().tolist()
        return ranks.index(dist.get_rank()), len(ranks)
        """,
    ),
    Answer(
        6,
        "the mean of the targets",
        """
        mean = n_targets.double()
        for axis in ("shard", "dp"):
            mean = mean.clone()
            dist.all_reduce(mean, group=mesh[axis].get_group())
            mean = mean / mesh[axis].size()
        for parameter in own.parameters():
            parameter.grad.div_(mean)
        """,
    ),
    Answer(
        6,
        "all targets in a list",
        """
        counts = [torch.zeros_like(n_targets) for _ in range(dist.get_world_size())]
        dist.all_gather(counts, n_targets)
        mean = sum(counts) / len(counts)  # on tp and pp each share is there equally often
        for parameter in own.parameters():
            parameter.grad = parameter.grad / mean
        """,
    ),
    Answer(
        7,
        "a message for each",
        """
        if args.sequence_parallel and args.tp > 1:
            for name, p in own.named_parameters():
                if "norm" in name:
                    dist.all_reduce(p.grad.to_local(), group=mesh["tp"].get_group())
        """,
    ),
    Answer(
        7,
        "by DTensor's own sum",
        """
        if args.sequence_parallel:
            from torch.distributed.tensor import Partial, Replicate
            for p in own.parameters():
                if "tp" not in p.device_mesh.mesh_dim_names:
                    part = DTensor.from_local(p.grad.to_local(), mesh["tp"], [Partial()], run_check=False)
                    p.grad.to_local().copy_(part.redistribute(placements=[Replicate()]).to_local())
        """,
    ),
    Answer(
        8,
        "by all stages' norms",
        """
        norms = [torch.zeros_like(norm) for _ in range(mesh["pp"].size())]
        dist.all_gather(norms, norm.contiguous(), group=mesh["pp"].get_group())
        norm = torch.stack(norms).norm()
        """,
    ),
    Answer(
        8,
        "over all ranks, each stage as often",
        """
        square = norm ** 2 / (mesh.size() / mesh["pp"].size())
        dist.all_reduce(square)
        norm = square ** 0.5
        """,
    ),
    Answer(
        9,
        "by the stage that has the loss",
        """
        losses = []
        schedule.eval(x, target=y, losses=losses, return_outputs=False)
        if stages[-1].is_last:
            total += sum(losses)
            count += y.ne(IGNORE).sum()
        """,
    ),
    Answer(
        9,
        "one rank of the tensor axis is enough",
        """
        losses = []
        schedule.eval(x, target=y, losses=losses, return_outputs=False)
        if losses and dist.get_rank() % args.tp == 0:
            total += torch.stack(losses).double().sum()
            count += (y != IGNORE).sum()
        """,
    ),
    Answer(
        10,
        "tensor by tensor, sent to rank 0",
        [
            None,
            """
            first = [mesh.get_local_rank(axis) for axis in ("dp", "shard", "tp")] == [0, 0, 0]
            mine = []
            for name, part in parts.items():
                weight = part.full_tensor().cpu()
                mine += [(name, weight)] if first else []
            found = [None] * mesh["pp"].size()
            if first:
                dist.all_gather_object(found, dict(mine) if mesh.get_local_rank("pp") else {}, group=mesh["pp"].get_group())
            if dist.get_rank() == 0:
                full = dict(mine)
                for stage in found:
                    full.update(stage)
                save0({"model": full, "config": config, "epoch": epoch}, path)
            """,
        ],
    ),
]
