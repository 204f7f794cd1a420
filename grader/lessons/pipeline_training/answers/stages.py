"""Other answers to TODOs 1 to 3 of pipeline_training."""

from grader.kit import Answer

WRONG = [
    Answer(
        1,
        "equally many blocks, whatever the head costs",
        "return [range(round(k * blocks / n_stages), round((k + 1) * blocks / n_stages)) for k in range(n_stages)]",
        says="and the last one has the head, too",
    ),
    Answer(
        1,
        "the head counts as one block",
        """
        ends = by_number(blocks + 1, n_stages)
        return [*ends[:-1], range(ends[-1].start, blocks)] if len(ends[-1]) > 1 or n_stages == 1 else by_number(blocks, n_stages)
        """,
        says="the slowest costs",
    ),
    Answer(
        1,
        "the head's blocks are taken off the mean",
        """
        if n_stages == 1:
            return [range(blocks)]
        last = min(max(1, round((blocks + head) / n_stages - head)), blocks - n_stages + 1)
        return [*by_number(blocks - last, n_stages - 1), range(blocks - last, blocks)]
        """,
        says="the slowest costs",
    ),
    Answer(
        1,
        "the last stage has the head alone",
        "return [*by_number(blocks, n_stages - 1), range(blocks, blocks)] if n_stages > 1 else [range(blocks)]",
        says="a stage without a block",
    ),
    Answer(
        1,
        "the last stage has one block, always",
        "return [*by_number(blocks - 1, n_stages - 1), range(blocks - 1, blocks)] if n_stages > 1 else [range(blocks)]",
        says="the slowest costs",
    ),
    Answer(
        1,
        "the others' mean in place of their largest",
        swap=("max(math.ceil((blocks - n) / others), n + head)", "max((blocks - n) / others, n + head)"),
        says="the slowest costs",
    ),
    Answer(1, "the head counts twice", swap=("n + head)", "n + 2 * head)"), says="the slowest costs"),
    Answer(1, "the fastest of the slow ones", swap=("min(choices", "max(choices"), says="the slowest costs"),
    Answer(
        1,
        "the head on the first stage",
        swap=(
            "return [*by_number(blocks - last, others), range(blocks - last, blocks)]",
            "return [range(last), *(range(part.start + last, part.stop + last) for part in by_number(blocks - last, others))]",
        ),
        says="the slowest costs",
    ),
    Answer(
        1,
        "numbers from 0 on every stage",
        swap=("range(blocks - last, blocks)]", "range(last)]"),
        says="each block once",
    ),
    Answer(
        1,
        "how many blocks, not which",
        swap=(
            "return [*by_number(blocks - last, others), range(blocks - last, blocks)]",
            "return [*map(len, by_number(blocks - last, others)), last]",
        ),
        says="does not return a list of ranges",
    ),
    Answer(
        1,
        "filled up to the mean",
        """
        mean = (blocks + head) / n_stages
        parts, start = [], 0
        for stage in range(n_stages - 1):
            stop = min(max(start + 1, round(mean * (stage + 1))), blocks - (n_stages - 1 - stage))
            parts.append(range(start, stop))
            start = stop
        return [*parts, range(start, blocks)]
        """,
        says="the slowest costs",
    ),
    Answer(2, "the world as its group", swap=(', group=mesh["pp"].get_group()', ""), says="cannot be larger"),
    Answer(2, "the other axis' group", swap=('group=mesh["pp"].get_group()', 'group=mesh["data"].get_group()')),
    Answer(2, "stages by the rank in the world", swap=("range(r, n_stages, p)", "range(dist.get_rank(), n_stages, p)")),
    Answer(
        2,
        "neighbouring stages on one rank",
        swap=("range(r, n_stages, p)", "range(r * (n_stages // p), (r + 1) * (n_stages // p))"),
        says="its own stages",
    ),
    Answer(
        2, "one stage, whatever the schedule", swap=("range(r, n_stages, p)", "range(r, p, p)"), says="its own stages"
    ),
    Answer(2, "the stages of all ranks", swap=("range(r, n_stages, p)", "range(n_stages)"), says="its own stages"),
    Answer(2, "no memory", swap=(".to_empty(device=device)", ""), says="no memory yet"),
    Answer(
        2,
        "memory for the whole model, of which stages are cut",
        swap=(
            ("stages = []", "model.to_empty(device=device)\nstages = []"),
            ("bfloat16).to_empty(device=device)", "bfloat16)"),
        ),
        says="including other stages'",
    ),
    Answer(
        2,
        "memory for the stages of all ranks, and only its own are kept",
        swap=(
            "stages = []",
            "stages = []\n"
            "everyone = [Layers(model, blocks[stage], bfloat16).to_empty(device=device) for stage in range(n_stages)]",
        ),
        says="including other stages'",
    ),
    Answer(
        2,
        "weights in bfloat16",
        swap=(".to_empty(device=device)", ".to_empty(device=device).to(torch.bfloat16 if bfloat16 else torch.float32)"),
        says="its weights are bfloat16",
    ),
    Answer(2, "the dtype is dropped", swap=(", bfloat16)", ")"), says="wrong dtype"),
    Answer(
        2,
        "the whole model on every stage",
        swap=("Layers(model, blocks[stage], bfloat16)", "Layers(model, range(len(model.blocks)), bfloat16)"),
        says="does not hold its own layers",
    ),
    Answer(
        2,
        "data-parallel gradients reduced in each micro-batch",
        """
        copies = mesh["data"].get_group()
        stages = []
        for stage in range(r, n_stages, p):
            layers = Layers(model, blocks[stage], bfloat16).to_empty(device=device)
            for parameter in layers.parameters():
                parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad, group=copies))
            stages.append(PipelineStage(layers, stage, n_stages, device, group=mesh["pp"].get_group()))
        return stages
        """,
        says="in each micro-batch",
    ),
    Answer(
        2,
        "DDP round a stage",
        """
        stages = []
        for stage in range(r, n_stages, p):
            layers = Layers(model, blocks[stage], bfloat16).to_empty(device=device)
            wrapped = nn.parallel.DistributedDataParallel(layers, process_group=mesh["data"].get_group())
            stages.append(PipelineStage(wrapped, stage, n_stages, device, group=mesh["pp"].get_group()))
        return stages
        """,
        says="is wrapped",
    ),
    Answer(
        2,
        "the blocks of its place on the rank",
        """
        stages = []
        for k, stage in enumerate(range(r, n_stages, p)):
            layers = Layers(model, blocks[r + k], bfloat16).to_empty(device=device)
            stages.append(PipelineStage(layers, stage, n_stages, device, group=mesh["pp"].get_group()))
        return stages
        """,
        says="does not hold its own layers",
    ),
    Answer(
        2,
        "p stages in all",
        swap=(
            "PipelineStage(layers, stage, n_stages, device",
            "PipelineStage(layers, stage, max(p, stage + 1), device",
        ),
        says="the wrong number of stages",
    ),
    Answer(
        3,
        "own first weights a stage",
        """
        torch.manual_seed(args.seed + dist.get_rank())
        for name, weight in weights(stages).items():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)
            else:
                weight.fill_(float(name.endswith("weight")))
        """,
        says="not the serial run's",
    ),
    Answer(
        3,
        "the same seed on each stage: they repeat each other",
        """
        torch.manual_seed(args.seed)
        for name, weight in weights(stages).items():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)
            else:
                weight.fill_(float(name.endswith("weight")))
        """,
        says="not the serial run's",
    ),
    Answer(3, "the seed is forgotten", swap=("torch.manual_seed(args.seed)\n", "\n"), says="not the serial run's"),
    Answer(3, "nothing", "weights(stages)", says="no content"),
    Answer(
        3,
        "the whole model on every rank",
        """
        torch.manual_seed(args.seed)
        full = TransformerLM(**model.config).state_dict()
        for name, weight in weights(stages).items():
            weight.copy_(full[name])
        """,
        says="whole model in memory",
    ),
    Answer(
        3,
        "the whole state dict to every rank",
        """
        torch.manual_seed(args.seed)
        box = [TransformerLM(**model.config).state_dict() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(box, 0)
        for name, weight in weights(stages).items():
            weight.copy_(box[0][name])
        """,
        says="in one message",
    ),
    Answer(
        3,
        "sent within a pipeline, by a rank that has nothing",
        """
        own = weights(stages)
        torch.manual_seed(args.seed)
        full = TransformerLM(**model.config).state_dict() if dist.get_rank() == 0 else {}
        for name, weight in own.items():
            if name in full:
                weight.copy_(full[name])
        """,
        says="no content",
    ),
    Answer(3, "sent, and not kept", swap=("own[name].copy_(sent)", "own[name] = sent"), says="no content"),
    Answer(
        3,
        "all is kept until it has come",
        """
        own = weights(stages)
        torch.manual_seed(args.seed)
        full = TransformerLM(**model.config).state_dict() if dist.get_rank() == 0 else {}
        sent, works = {}, []
        for name, weight in model.named_parameters():
            sent[name] = full[name].to(stages[0].device) if full else torch.empty(weight.shape, device=stages[0].device)
            works.append(dist.broadcast(sent[name], 0, async_op=True))
        for work in works:
            work.wait()
        for name, weight in own.items():
            weight.data = sent[name]
        """,
        says="are kept, too",
    ),
    Answer(
        3,
        "the first of its stages alone",
        swap=("own = weights(stages)", "own = dict(stages[0].submod.named_parameters())"),
        says="two stages per rank",
    ),
    Answer(
        3, "the last of its stages alone", swap=("weights(stages)", "weights(stages[-1:])"), says="two stages per rank"
    ),
    Answer(
        3,
        "the seed of the first call",
        swap=(
            "torch.manual_seed(args.seed)",
            "torch.manual_seed(first_weights.__dict__.setdefault('seed', args.seed))",
        ),
        says="in the second call",
    ),
    Answer(
        3,
        "the model of the first call",
        """
        own = weights(stages)
        torch.manual_seed(args.seed)
        if dist.get_rank() == 0 and not hasattr(build_model, "whole"):
            build_model.whole = TransformerLM(**model.config)
        whole_model = build_model.whole if dist.get_rank() == 0 else model
        for name, weight in whole_model.named_parameters():
            sent = torch.empty(weight.shape, device=stages[0].device)
            if dist.get_rank() == 0:
                sent.copy_(weight)
            dist.broadcast(sent, 0)
            if name in own:
                own[name].copy_(sent)
        """,
        says="in the second call",
    ),
    Answer(
        1,
        "as if the head were on a stage of its own",
        "return [range(blocks)] if n_stages == 1 else [*by_number(blocks - 1, n_stages - 1), range(blocks - 1, blocks)] if head > 1 else by_number(blocks, n_stages)",
        says="the slowest costs",
    ),
    Answer(
        1,
        "one block less than the others, always",
        swap=(
            "last = min(choices, key=lambda n: max(math.ceil((blocks - n) / others), n + head))",
            "last = max(1, blocks // n_stages - 1)",
        ),
        says="the slowest costs",
    ),
    Answer(
        1,
        "what does not divide goes to the last of the others",
        swap=(
            "[*by_number(blocks - last, others), range(blocks - last, blocks)]",
            "[*(range(k * ((blocks - last) // others), (k + 1) * ((blocks - last) // others) if k < others - 1 else blocks - last) for k in range(others)), range(blocks - last, blocks)]",
        ),
        says="the slowest costs",
    ),
    Answer(1, "the head in whole blocks", swap=("n + head)", "n + round(head))"), says="the slowest costs"),
    Answer(2, "the stages in the wrong order", swap=("return stages", "return stages[::-1]"), says="its own stages"),
    Answer(2, "memory on meta", swap=(".to_empty(device=device)", '.to_empty(device="meta")'), says="no memory yet"),
    Answer(
        2,
        "the layers of the whole model's end",
        swap=("blocks[stage]", "blocks[-1 - stage]"),
        says="does not hold its own layers",
    ),
    Answer(
        2,
        "two stages if there are blocks for them",
        swap=("range(r, n_stages, p)", "range(r, min(2 * p, len(model.blocks)), p)"),
        says="",
    ),
    Answer(
        3,
        "only the shapes of matrices are sent",
        swap=("    dist.broadcast(sent, 0)\n", "    if sent.dim() > 1:\n        dist.broadcast(sent, 0)\n"),
        says="is not the serial run's",
    ),
    Answer(
        3,
        "in half precision",
        swap=(
            "sent = torch.empty(weight.shape, device=stages[0].device)",
            "sent = torch.empty(weight.shape, device=stages[0].device, dtype=torch.bfloat16)",
        ),
        says="is not the serial run's",
    ),
    Answer(
        3,
        "rank 0 keeps its own draw, the others what is sent",
        swap=(
            "if name in own:\n        own[name].copy_(sent)",
            "if name in own and dist.get_rank():\n        own[name].copy_(sent)",
        ),
        says="has no content yet",
    ),
    Answer(
        3,
        "each pipeline's first rank builds it",
        swap=("dist.get_rank() == 0 else model", "stages[0].is_first else model"),
        says="whole model in memory",
    ),
    Answer(
        3,
        "one rank after the other builds it whole",
        """
        own = weights(stages)
        for turn in range(dist.get_world_size()):
            if turn == dist.get_rank():
                torch.manual_seed(args.seed)
                full = TransformerLM(**model.config).state_dict()
                for name, weight in own.items():
                    weight.copy_(full[name])
                del full
            dist.barrier()
        """,
        says="whole model in memory",
    ),
]


RIGHT = [
    # With one block less in the last stage, the others have one more: a fraction of a block never decides.
    Answer(1, "the head in whole blocks", swap=("n + head)", "n + int(head))")),
    Answer(
        1,
        "by 05/1's cut, with at least one block in the last stage",
        """
        from itertools import combinations
        best = None
        for places in combinations(range(1, blocks), n_stages - 1):
            borders = (0, *places, blocks)
            parts = [range(a, b) for a, b in zip(borders, borders[1:])]
            worst = max(len(part) + (head if part.stop == blocks else 0) for part in parts)
            if best is None or worst < best[0]:
                best = worst, parts
        return best[1]
        """,
    ),
    Answer(
        1,
        "block by block to whoever is fastest",
        """
        sizes = [1] * n_stages
        for _ in range(blocks - n_stages):
            costs = [n + (head if k == n_stages - 1 else 0) for k, n in enumerate(sizes)]
            sizes[costs.index(min(costs))] += 1
        ends = [sum(sizes[: k + 1]) for k in range(n_stages)]
        return [range(end - size, end) for size, end in zip(sizes, ends)]
        """,
    ),
    Answer(
        2,
        "by the ranks of the group",
        """
        group = mesh.get_group("pp")
        p, r = dist.get_world_size(group), dist.get_rank(group)
        chunks = stages_a_rank(p, args)
        made = []
        for k in range(chunks):
            layers = Layers(model, blocks[r + k * p], bfloat16=bfloat16)
            made.append(PipelineStage(layers.to_empty(device=device), r + k * p, p * chunks, device, group=group))
        return made
        """,
    ),
    Answer(
        3,
        "messages to those alone who need them",
        """
        own = weights(stages)
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, list(own))
        torch.manual_seed(args.seed)
        whole = TransformerLM(**model.config) if dist.get_rank() == 0 else None
        for name, weight in model.named_parameters():
            for rank, names in enumerate(everyone):
                if name in names and dist.get_rank() == 0:
                    if rank == 0:
                        own[name].copy_(whole.get_parameter(name))
                    else:
                        dist.send(whole.get_parameter(name).detach(), rank)
                elif name in names and dist.get_rank() == rank:
                    dist.recv(own[name].detach(), 0)
        """,
    ),
    Answer(
        3,
        "a few weights in flight at a time",
        """
        own = weights(stages)
        torch.manual_seed(args.seed)
        full = TransformerLM(**model.config).state_dict() if dist.get_rank() == 0 else {}
        going = []
        for name, weight in [*model.named_parameters(), *4 * [("", None)]]:
            if name:
                sent = full[name].to(stages[0].device) if full else torch.empty(weight.shape, device=stages[0].device)
                going.append((name, sent, dist.broadcast(sent, 0, async_op=True)))
            if len(going) == 4 or going and not name:
                first, sent, work = going.pop(0)
                work.wait()
                if first in own:
                    own[first].data = sent
        """,
    ),
    Answer(
        1,
        "by what is left for the last one",
        """
        best = by_number(blocks, n_stages)
        def worst(parts):
            return max(len(part) + head * (part.stop == blocks) for part in parts)
        for last in range(1, blocks - n_stages + 2):
            if n_stages > 1:
                start = blocks - last
                parts = by_number(start, n_stages - 1) + [range(start, blocks)]
                if worst(parts) < worst(best):
                    best = parts
        return best
        """,
    ),
    Answer(
        2,
        "each in a comprehension",
        """
        def made(number):
            module = Layers(model, blocks[number], bfloat16)
            return PipelineStage(module.to_empty(device=device), number, n_stages, device, group=mesh.get_group("pp"))
        return [made(k) for k in range(n_stages) if k % p == r]
        """,
    ),
    Answer(
        3,
        "several small ones together",
        """
        own, group = weights(stages), []
        if dist.get_rank() == 0:
            torch.manual_seed(args.seed)
            source = dict(TransformerLM(**model.config).named_parameters())
        for name, weight in model.named_parameters():
            box = source[name].detach().clone() if dist.get_rank() == 0 else torch.empty_like(weight, device=stages[0].device)
            dist.broadcast(box, src=0)
            target = own.get(name)
            if target is not None:
                target.data.copy_(box)
        """,
    ),
]
