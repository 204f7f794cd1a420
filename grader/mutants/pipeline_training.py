"""Other answers to the TODOs of pipeline_training: what real courses got wrong, and what is right as well."""

from grader.kit import Answer

NAMES = 'mesh_dim_names=("pp", "data")'
GATHER = 'dist.gather_object(own, parts, group=mesh["pp"].get_group(), group_dst=0)'

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
    Answer(4, "word 0 is no target", swap=("(y != IGNORE).sum()", "(y > 0).sum()"), says="word 0 is a target"),
    Answer(4, "mean of micro-batch means", swap=("(y != IGNORE).sum()", "1"), says="the mean over its targets"),
    Answer(4, "times all tokens", swap=("(y != IGNORE).sum()", "y.numel()"), says="not the sum"),
    Answer(4, "times the rows", swap=("(y != IGNORE).sum()", "len(y)"), says="not the sum"),
    Answer(
        4,
        "cut off from its graph",
        swap=("head_loss(h, layers.head.weight", "head_loss(h.detach(), layers.head.weight"),
        says="gives h no gradient",
    ),
    Answer(
        4,
        "in float32, whatever --dtype says",
        ["return head_loss(h, layers.head.weight, y, IGNORE) * (y != IGNORE).sum()", None],
        says="float32's to the last bit",
    ),
    Answer(
        4,
        "nan where no target counts",
        [
            """
        with torch.autocast(h.device.type, torch.bfloat16, enabled=layers.bfloat16):
            logits = layers.head(h).flatten(0, 1).float()
            return nn.functional.cross_entropy(logits, y.flatten(), ignore_index=IGNORE) * (y != IGNORE).sum()
        """,
            None,
        ],
        says="0 targets",
    ),
    Answer(
        4,
        "divided by the number of micro-batches, too",
        swap=("scale_grads = False", "scale_grads = True"),
        says="divided by the number of micro-batches",
    ),
    Answer(
        4,
        "scaled unless it is GPipe",
        swap=("scale_grads = False", 'scale_grads = args.schedule != "gpipe"'),
        says="divided by the number of micro-batches",
    ),
    Answer(
        4,
        "scaled where there are few",
        swap=("scale_grads = False", "scale_grads = args.microbatches < len(stages) * args.pp"),
        says="divided by the number of micro-batches",
    ),
    Answer(
        4,
        "a mean over the batch's rows",
        swap=("* (y != IGNORE).sum()", "* (y != IGNORE).sum() / len(y)"),
        says="not the sum",
    ),
    Answer(
        4,
        "one more, so as not to divide by zero",
        swap=("(y != IGNORE).sum()", "((y != IGNORE).sum() + 1)"),
        says="not the sum",
    ),
    Answer(
        5,
        "a stage is the first or the last, and never both",
        [
            """
        losses = []
        if stages[0].is_first:
            schedule.step(x, return_outputs=False)
        elif stages[-1].is_last:
            schedule.step(target=y, losses=losses, return_outputs=False)
        else:
            schedule.step(return_outputs=False)
        return torch.stack(losses).sum().detach() if losses else torch.zeros((), device=x.device)
        """,
            None,
        ],
    ),
    Answer(
        5,
        "only the mean of the losses",
        swap=(".sum().detach()", ".mean().detach()"),
        says="the mean over micro-batches",
    ),
    Answer(
        5,
        "is this rank's first stage the last one",
        swap=("if losses else", "if stages[0].is_last else"),
        says="this rank's second one",
    ),
    Answer(
        5,
        "the last rank of all alone has a loss",
        swap=("if losses else", "if losses and dist.get_rank() == dist.get_world_size() - 1 else"),
        says="the last stage of its pipeline",
    ),
    Answer(
        5,
        "the last stages as if the ranks of a pipeline were neighbours",
        swap=(
            "if losses else",
            "if losses and dist.get_rank() % stages[0].group_size == stages[0].group_size - 1 else",
        ),
        says="the last stage of its pipeline",
    ),
    Answer(5, "with its graph", swap=(".sum().detach()", ".sum()"), says="still has its graph"),
    Answer(
        5,
        "a number, where the signature says Tensor",
        swap=(
            "torch.stack(losses).sum().detach() if losses else torch.zeros((), device=x.device)",
            "sum(loss.item() for loss in losses)",
        ),
        says="does not return a tensor of one number",
    ),
    Answer(
        5,
        "a tensor, or else the number 0",
        swap=("else torch.zeros((), device=x.device)", "else 0"),
        says="does not return a tensor of one number",
    ),
    Answer(5, "evaluated, not trained", swap=("schedule.step(", "schedule.eval("), says="no gradient"),
    Answer(5, "nothing", ["return torch.zeros((), device=x.device)", None], says="leaves no gradient"),
    Answer(
        5,
        "a skipped last micro-batch",
        [
            """
        losses = []
        y = y.clone()
        y[-(len(y) // 4) :] = IGNORE
        schedule.step(x, target=y, losses=losses, return_outputs=False)
        return torch.stack(losses).sum().detach() if losses else torch.zeros((), device=x.device)
        """,
            None,
        ],
        says="is not the gradient of the sum of all losses",
    ),
    Answer(
        5,
        "x for a target",
        swap=("schedule.step(*inputs, target=y", "schedule.step(*inputs, target=x"),
        says="is not the gradient of the sum",
    ),
    Answer(
        5,
        "gradients reduced over all ranks in each micro-batch",
        [
            """
        losses = []
        hooks = []
        for parameter in weights(stages).values():
            def reduce(p):
                dist.all_reduce(p.grad)
            hooks.append(parameter.register_post_accumulate_grad_hook(reduce))
        schedule.step(x, target=y, losses=losses, return_outputs=False)
        for hook in hooks:
            hook.remove()
        return torch.stack(losses).sum().detach() if losses else torch.zeros((), device=x.device)
        """,
            None,
        ],
    ),
    Answer(
        5,
        "every rank reports the loss",
        [
            """
        losses = []
        schedule.step(x, target=y, losses=losses, return_outputs=False)
        total = torch.stack(losses).sum().detach() if losses else torch.zeros((), device=x.device)
        dist.all_reduce(total)
        return total
        """,
            None,
        ],
        says="only the rank of the last stage can know",
    ),
    Answer(5, "fails where there is no loss", swap=(" if losses else torch.zeros((), device=x.device)", "")),
    Answer(5, "rank 0 alone sends it", swap=("schedule.step(", "if dist.get_rank() == 0:\n        schedule.step(")),
    Answer(
        5,
        "targets counted on every rank",
        [
            None,
            """
        losses = []
        schedule.eval(x, target=y, losses=losses, return_outputs=False)
        total += sum(loss.double() for loss in losses)
        count += (y != IGNORE).sum()
        """,
        ],
        says="a loss 2 times too small",
    ),
    Answer(
        5,
        "mean of batch means",
        [
            None,
            """
        losses = []
        schedule.eval(x, target=y, losses=losses, return_outputs=False)
        if losses:
            total += torch.stack(losses).double().sum() / (y != IGNORE).sum()
            count += 1
        """,
        ],
        says="not the loss",
    ),
    Answer(5, "all tokens are counted", swap=("(y != IGNORE).sum()", "y.numel()"), says="not the loss"),
    Answer(
        5,
        "trained, not evaluated",
        swap=("schedule.eval(", "torch.enable_grad()(schedule.step)("),
        says="leaves gradients",
    ),
    Answer(
        5,
        "the last micro-batch alone",
        swap=("torch.stack(losses).double().sum()", "losses[-1].double()"),
        says="not the loss",
    ),
    Answer(
        5,
        "is this rank's first stage the last one",
        swap=("if losses:", "if stages[0].is_last:"),
        says="whose second stage is the last",
    ),
    Answer(5, "only the last batch", swap=("total += torch", "total = torch")),
    Answer(5, "fails where there is no loss", swap=("if losses:", "if True:")),
    Answer(5, "nothing", [None, "pass  # later"]),
    Answer(
        5,
        "evaluated with the graph of training",
        [
            None,
            """
        losses: list[Tensor] = []
        total += train_batch(stages, schedule, x, y)
        if stages[-1].is_last:
            count += (y != IGNORE).sum()
        """,
        ],
    ),
    Answer(6, "over all ranks", swap=(', group=mesh["data"].get_group()', ""), says="the data axis"),
    Answer(6, "over the pipeline", swap=('mesh["data"]', 'mesh["pp"]'), says="the data axis"),
    Answer(
        6,
        "not at all",
        swap=('dist.all_reduce(flat, group=mesh["data"].get_group())\n', "\n"),
        says="its own samples' only",
    ),
    Answer(
        6,
        "nothing to do for one pipeline",
        swap=(
            "parameters = list(weights(stages).values())",
            'if mesh["data"].size() == 1:\n    return\nparameters = list(weights(stages).values())',
        ),
        says="not divided",
    ),
    Answer(6, "the sum", swap=("flat[:-1] / flat[-1]", "flat[:-1]"), says="not divided"),
    Answer(
        6,
        "mean of means",
        """
        for parameter in weights(stages).values():
            parameter.grad /= n_targets
            dist.all_reduce(parameter.grad, group=mesh["data"].get_group())
            parameter.grad /= mesh["data"].size()
        """,
        says="the mean of the pipelines' means",
    ),
    Answer(
        6,
        "a message for each weight",
        """
        n_targets = n_targets.clone()
        dist.all_reduce(n_targets, group=mesh["data"].get_group())
        for parameter in weights(stages).values():
            dist.all_reduce(parameter.grad, group=mesh["data"].get_group())
            parameter.grad /= n_targets
        """,
        says="collectives to sum",
    ),
    Answer(
        6,
        "a message for each stage",
        """
        for stage in stages:
            own = list(stage.submod.parameters())
            flat = torch.cat([p.grad.flatten() for p in own] + [n_targets.float().view(1)])
            dist.all_reduce(flat, group=mesh["data"].get_group())
            sums = flat[:-1] / flat[-1]
            for parameter, part in zip(own, sums.split([p.numel() for p in own]), strict=True):
                parameter.grad.copy_(part.view_as(parameter))
        """,
        says="collectives to sum",
    ),
    Answer(
        6,
        "summed up in a copy that nobody uses",
        swap=("parameter.grad.copy_(part.view_as(parameter))", "parameter.grad.clone().copy_(part.view_as(parameter))"),
        says="the gradient of",
    ),
    Answer(
        6,
        "the last weight alone",
        swap=(
            "parameter.grad.copy_(part.view_as(parameter))",
            "new = part.view_as(parameter)\nparameter.grad.copy_(new)",
        ),
        says="the gradient of",
    ),
    Answer(
        6,
        "the first of its stages alone",
        swap=("list(weights(stages).values())", "list(weights(stages[:1]).values())"),
        says="the gradient of",
    ),
    Answer(
        6,
        "the targets of all are left in the caller's tensor",
        swap=("sums = flat[:-1] / flat[-1]", "n_targets.copy_(flat[-1])\nsums = flat[:-1] / flat[-1]"),
        says="n_targets, which it is given, is written into",
    ),
    Answer(
        6,
        "each rank divides by its own targets",
        swap=("flat[:-1] / flat[-1]", "flat[:-1] / n_targets.clamp(min=1)"),
        says="the gradient of",
    ),
    Answer(
        6,
        "no target, no part in the sum",
        swap=("flat = torch.cat(", "if not n_targets:\n    return\nflat = torch.cat("),
    ),
    Answer(
        7,
        "each stage clips by its own norm",
        "norm = nn.utils.clip_grad_norm_(parameters, args.clip or math.inf)\nreturn norm.item()",
        says="this rank's part",
    ),
    Answer(7, "norms are added, not squares", swap=((".square()", ""), ("square.sqrt()", "square")), says="wrong norm"),
    Answer(7, "over all ranks", swap=(', group=mesh["pp"].get_group()', ""), says="each stage counted 2 times"),
    Answer(7, "over the data axis", swap=('mesh["pp"]', 'mesh["data"]'), says="counted 2 times"),
    Answer(7, "0 is taken for a limit", swap=("args.clip or math.inf", "args.clip"), says="--clip 0"),
    Answer(
        7,
        "the norm is right, and the gradients are clipped by the stage's own",
        swap=(
            "nn.utils.clip_grads_with_norm_(parameters, args.clip or math.inf, norm)",
            "nn.utils.clip_grad_norm_(parameters, args.clip or math.inf)",
        ),
        says="scaled by one number",
    ),
    Answer(7, "never clipped", swap=("args.clip or math.inf", "math.inf"), says="is not clipped"),
    Answer(7, "the square", swap=("norm.item()", "square.item()"), says="wrong norm"),
    Answer(
        7,
        "the first of its stages alone",
        swap=(
            "get_total_norm([p.grad for p in parameters])",
            "get_total_norm([p.grad for p in stages[0].submod.parameters()])",
        ),
        says="wrong norm",
    ),
    Answer(
        7,
        "the last of its stages is not clipped",
        swap=("clip_grads_with_norm_(parameters,", "clip_grads_with_norm_(stages[0].submod.parameters(),"),
        says="is not clipped",
    ),
    Answer(
        7,
        "counted through all ranks, and divided by the copies after the root",
        swap=((', group=mesh["pp"].get_group()', ""), ("square.sqrt()", 'square.sqrt() / mesh["data"].size()')),
        says="wrong norm",
    ),
    Answer(
        8,
        "rank 0's stage",
        """
        dist.barrier()
        save0({"model": own, "config": config, "epoch": epoch}, path)
        """,
        says="all weights",
    ),
    Answer(
        8,
        "every rank writes its own",
        'path.parent.mkdir(parents=True, exist_ok=True)\ntorch.save({"model": own, "config": config, "epoch": epoch}, '
        "path)",
        says="all write",
    ),
    Answer(
        8,
        "the copies are gathered, not the stages",
        """
        parts = [None] * mesh["data"].size() if dist.get_rank() == 0 else None
        if mesh["pp"].get_local_rank() == 0:
            dist.gather_object(own, parts, group=mesh["data"].get_group(), group_dst=0)
        if parts:
            own = {name: weight for part in parts for name, weight in part.items()}
        save0({"model": own, "config": config, "epoch": epoch}, path)
        """,
        says="all weights",
    ),
    Answer(
        8,
        "a list of stages",
        swap=(
            "own = {name: weight for part in parts for name, weight in part.items()}",
            'own = {f"stage{k}.{name}": weight for k, part in enumerate(parts) for name, weight in part.items()}',
        ),
        says="all weights",
    ),
    Answer(8, "rank 0 alone gathers", swap=('if mesh["data"].get_local_rank() == 0:', "if dist.get_rank() == 0:")),
    Answer(
        8,
        "every rank gathers",
        """
        parts = [None] * mesh["pp"].size()
        dist.all_gather_object(parts, own, group=mesh["pp"].get_group())
        full = {}
        for part in parts:
            full.update(part)
        save0({"model": full, "config": config, "epoch": epoch}, path)
        """,
        says="only rank 0 needs it",
    ),
    Answer(
        8,
        "the first rank of each pipeline gathers",
        swap=(
            ('if mesh["data"].get_local_rank() == 0:', "if True:"),
            ("if dist.get_rank() == 0 else None", 'if mesh["pp"].get_local_rank() == 0 else None'),
        ),
        says="only rank 0 needs it",
    ),
    Answer(8, "the config is lost", swap=(', "config": config', ""), says="lost an entry"),
    Answer(8, "gathered, and thrown away", swap=("if parts:", "if parts and False:"), says="all weights"),
    Answer(
        8,
        "the first of its stages alone",
        swap=(
            "dist.gather_object(own,",
            "dist.gather_object({name: p.detach().cpu() for name, p in stages[0].submod.named_parameters()},",
        ),
        says="all weights",
    ),
    Answer(
        8,
        "gathered once, and saved again",
        swap=("if parts:\n", "if parts:\n        parts = save_checkpoint.__dict__.setdefault('parts', parts)\n"),
        says="was to be written over",
    ),
    Answer(8, "written once", swap=("save0({", "if not path.exists():\n    save0({"), says="checkpoint"),
    Answer(
        9,
        "over the world",
        [
            None,
            """
        return (
            DistributedSampler(train, shuffle=True, seed=args.seed, drop_last=True),
            ShardSampler(validation), ShardSampler(test),
        )
        """,
        ],
        says="stages of one pipeline",
    ),
    Answer(
        9,
        "the training set alone",
        swap=(
            ('ShardSampler(validation, where["rank"], where["num_replicas"])', "ShardSampler(validation)"),
            ('ShardSampler(test, where["rank"], where["num_replicas"])', "ShardSampler(test)"),
        ),
        says="validation samples",
    ),
    Answer(
        9,
        "by the stage",
        swap=(
            ('mesh["data"].size()', 'mesh["pp"].size()'),
            ('mesh["data"].get_local_rank()', 'mesh["pp"].get_local_rank()'),
        ),
    ),
    Answer(
        9,
        "every rank everything",
        swap=(
            '{"num_replicas": mesh["data"].size(), "rank": mesh["data"].get_local_rank()}',
            '{"num_replicas": 1, "rank": 0}',
        ),
    ),
    Answer(
        9,
        "in the order of the text",
        swap=("shuffle=True", "shuffle=False"),
        says="does not train on the samples of the serial run",
    ),
    Answer(
        9,
        "validation is padded",
        swap=(
            'ShardSampler(validation, where["rank"], where["num_replicas"])',
            "DistributedSampler(validation, **where, shuffle=False)",
        ),
        says="is padded",
    ),
    Answer(
        9,
        "another seed a stage",
        swap=("seed=args.seed", 'seed=args.seed + mesh["pp"].get_local_rank()'),
        says="stages of one pipeline",
    ),
    Answer(
        9,
        "rows for columns",
        [f"return init_device_mesh(device.type, (world_size // args.pp, args.pp), {NAMES})", None],
        says="the axis pp has 3 ranks",
    ),
    Answer(
        9,
        "stages are neighbours",
        [
            f"""
        grid = torch.arange(world_size).view(-1, args.pp).T.contiguous()
        return DeviceMesh(device.type, grid, {NAMES})
        """,
            None,
        ],
        says="neighbours",
    ),
    Answer(
        9,
        "the names of the axes are swapped",
        swap=('("pp", "data")', '("data", "pp")'),
        says="the axis pp has 3 ranks",
    ),
    Answer(
        9,
        "a stage for every rank",
        [f"return init_device_mesh(device.type, (world_size, 1), {NAMES})", None],
        says="the axis pp has 6 ranks",
    ),
    Answer(
        9,
        "rows that go upside down",
        [f"return DeviceMesh(device.type, torch.arange(world_size).view(args.pp, -1).flip(0), {NAMES})", None],
        says="are not in ascending order",
    ),
    Answer(
        9,
        "data parallel outside, pipelines inside, as usual",
        ['return init_device_mesh(device.type, (world_size // args.pp, args.pp), mesh_dim_names=("data", "pp"))', None],
        says="are not its neighbours",
    ),
    Answer(
        9,
        "a square, whatever it is",
        [
            f"side = max(d for d in range(1, world_size + 1) if world_size % d == 0 and d * d <= world_size)\nreturn init_device_mesh(device.type, (side, world_size // side), {NAMES})",
            None,
        ],
        says="the axis pp has",
    ),
    Answer(9, "what does not divide is filled up", swap=("drop_last=True", "drop_last=False"), says="are repeated"),
    Answer(
        9,
        "by the rank in the world",
        swap=('mesh["data"].get_local_rank()', 'dist.get_rank() // mesh["pp"].size()'),
        says="",
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
    Answer(
        4,
        "over all tokens, so that they need not be counted",
        swap=("* (y != IGNORE).sum()", "* y.numel()"),
        says="not the sum",
    ),
    Answer(
        4,
        "a sum in whole numbers of bfloat16",
        swap=("* (y != IGNORE).sum()", "* (y != IGNORE).sum().bfloat16()"),
        says="",
    ),
    Answer(4, "rows with a target", swap=("(y != IGNORE).sum()", "(y != IGNORE).any(1).sum()"), says="not the sum"),
    Answer(
        4,
        "no gradient for the head",
        swap=("head_loss(h, layers.head.weight, y", "head_loss(h, layers.head.weight.detach(), y"),
        says="the head's weight",
    ),
    Answer(
        5,
        "the last micro-batch's loss",
        [
            "losses = []\nschedule.step(x, target=y, losses=losses, return_outputs=False)\nreturn losses[-1].detach() if losses else torch.zeros((), device=x.device)",
            None,
        ],
        says="does not return the sum",
    ),
    Answer(
        5,
        "times the micro-batches",
        [
            "losses = []\nschedule.step(x, target=y, losses=losses, return_outputs=False)\nreturn torch.stack(losses).mean().detach() * len(y) if losses else torch.zeros((), device=x.device)",
            None,
        ],
        says="does not return the sum",
    ),
    Answer(
        5,
        "gradients of the batch before stay",
        [
            "losses = []\nkept = {n: p.grad.clone() for n, p in weights(stages).items() if p.grad is not None}\nschedule.step(x, target=y, losses=losses, return_outputs=False)\nfor n, p in weights(stages).items():\n    p.grad += train_batch.__dict__.setdefault(n, torch.zeros_like(p))\n    train_batch.__dict__[n] = p.grad.clone()\nreturn torch.stack(losses).sum().detach() if losses else torch.zeros((), device=x.device)",
            None,
        ],
        says="is not the gradient of the sum",
    ),
    Answer(
        5,
        "evaluation counts rows that are full",
        [
            None,
            "losses = []\nschedule.eval(x, target=y, losses=losses, return_outputs=False)\nif losses:\n    total += torch.stack(losses).double().sum()\n    count += (y != IGNORE).all(1).sum() * y.shape[1]",
        ],
        says="not the loss",
    ),
    Answer(
        5,
        "evaluation of the first batch alone",
        [
            None,
            "if not count and not total:\n    losses = []\n    schedule.eval(x, target=y, losses=losses, return_outputs=False)\n    if losses:\n        total += torch.stack(losses).double().sum()\n        count += (y != IGNORE).sum()",
        ],
        says="",
    ),
    Answer(
        6,
        "the targets of this rank, times the copies",
        swap=("flat[:-1] / flat[-1]", 'flat[:-1] / max(1, n_targets * mesh["data"].size())'),
        says="the gradient of",
    ),
    Answer(
        6,
        "the mean over the copies",
        """
        flat = torch.cat([p.grad.flatten() for p in weights(stages).values()])
        dist.all_reduce(flat, group=mesh["data"].get_group())
        flat /= mesh["data"].size() * max(1, n_targets)
        for p, part in zip(weights(stages).values(), flat.split([p.numel() for p in weights(stages).values()])):
            p.grad.copy_(part.view_as(p))
        """,
        says="the gradient of",
    ),
    Answer(
        6,
        "over the pipeline of two, which is as long",
        swap=(
            'mesh["data"].get_group()',
            'mesh["pp" if mesh["pp"].size() == mesh["data"].size() else "data"].get_group()',
        ),
        says="the data axis",
    ),
    Answer(
        7,
        "twice over the pipeline",
        swap=("norm = square.sqrt()", 'dist.all_reduce(square, group=mesh["pp"].get_group())\nnorm = square.sqrt()'),
        says="wrong norm",
    ),
    Answer(
        7,
        "0 clips nothing, and reports nothing",
        swap=("return norm.item()", "return norm.item() if args.clip else 0.0"),
        says="wrong norm",
    ),
    Answer(
        7,
        "the norm after clipping",
        swap=("return norm.item()", "return min(norm.item(), args.clip or math.inf)"),
        says="wrong norm",
    ),
    Answer(
        7,
        "the largest element",
        swap=(
            "nn.utils.get_total_norm([p.grad for p in parameters])",
            "nn.utils.get_total_norm([p.grad for p in parameters], norm_type=math.inf)",
        ),
        says="wrong norm",
    ),
    Answer(8, "the epoch is lost", swap=('"epoch": epoch', '"epoch": 0'), says="epoch"),
    Answer(
        8,
        "in half precision",
        swap=(
            "for part in parts for name, weight in part.items()}",
            "for part in parts for name, weight in ((n, w.bfloat16()) for n, w in part.items())}",
        ),
        says="",
    ),
    Answer(
        8,
        "parameters, with all that hangs on them",
        swap=(
            "dist.gather_object(own, parts",
            "dist.gather_object({n: nn.Parameter(w) for n, w in own.items()}, parts",
        ),
        says="which only a process group can read",
    ),
    Answer(
        8,
        "the last rank writes",
        [
            """
        if mesh["data"].get_local_rank() == 0:
            parts = [None] * mesh["pp"].size()
            dist.all_gather_object(parts, own, group=mesh["pp"].get_group())
            if mesh["pp"].get_local_rank() == mesh["pp"].size() - 1:
                own = {name: weight for part in parts for name, weight in part.items()}
                path.parent.mkdir(parents=True, exist_ok=True)
                torch.save({"model": own, "config": config, "epoch": epoch}, path)
        """
        ],
        says="",
    ),
    Answer(
        9,
        "validation shuffled by the world",
        swap=(
            (
                'ShardSampler(test, where["rank"], where["num_replicas"])',
                "ShardSampler(test, dist.get_rank(), dist.get_world_size())",
            ),
        ),
        says="test samples",
    ),
    Answer(
        9,
        "the epochs are all alike",
        swap=("shuffle=True, seed=args.seed, drop_last=True)", "shuffle=True, seed=args.seed, drop_last=True)"),
        edits=(("            samplers[0].set_epoch(epoch)\n", ""),),
        says="",
    ),
    Answer(
        9, "without the seed", swap=("shuffle=True, seed=args.seed,", "shuffle=True,"), says="samples of the serial run"
    ),
    Answer(
        9,
        "stages of the nearest square",
        swap=(
            "(args.pp, world_size // args.pp)",
            "(min(args.pp, world_size // args.pp), max(args.pp, world_size // args.pp))",
        ),
        says="the axis pp has",
    ),
    Answer(
        5,
        "the outputs are kept",
        swap=(
            "schedule.step(*inputs, target=y, losses=losses, return_outputs=False)",
            "schedule.step(*inputs, target=y, losses=losses)",
        ),
        says="are still in memory",
    ),
    Answer(
        8,
        "names with stages",
        swap=(
            "{name: weight for part in parts for name, weight in part.items()}",
            '{f"stage{i}.{name}": weight for i, part in enumerate(parts) for name, weight in part.items()}',
        ),
        says="and there is stage0.",
    ),
]

RIGHT = [
    Answer(
        8,
        "all pipelines send their copies",
        swap=(
            ('if mesh["data"].get_local_rank() == 0:', "if True:"),
            ('mesh["pp"].size() if dist', "dist.get_world_size() if dist"),
            (', group=mesh["pp"].get_group(), group_dst=0', ", dst=0"),
        ),
    ),
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
        4,
        "by cross_entropy, summed up",
        [
            """
        with torch.autocast(h.device.type, torch.bfloat16, enabled=layers.bfloat16):
            logits = layers.head(h).flatten(0, 1)
        return nn.functional.cross_entropy(logits.float(), y.flatten(), ignore_index=IGNORE, reduction="sum")
        """,
            None,
        ],
    ),
    Answer(
        5,
        "x and y only where they are needed",
        [
            """
        losses = []
        inputs = (x,) if any(stage.is_first for stage in stages) else ()
        last = any(stage.is_last for stage in stages)
        schedule.step(*inputs, target=y if last else None, losses=losses, return_outputs=False)
        return sum(loss.detach() for loss in losses) if losses else torch.tensor(0.0, device=x.device)
        """,
            None,
        ],
    ),
    Answer(
        5,
        "by is_last",
        [
            None,
            """
        losses = []
        schedule.eval(x, target=y, losses=losses)
        if stages[-1].is_last:
            total += sum(losses).double()
            count += int((y != IGNORE).sum())
        """,
        ],
    ),
    Answer(
        5,
        "in a helper of its own, and by inference on every rank",
        [
            """
            parts = []
            schedule.step(x, target=y, losses=parts, return_outputs=False)
            return sum((part.detach() for part in parts), torch.zeros((), device=x.device))
            """,
            """
            parts = []
            schedule.eval(x, target=y, losses=parts, return_outputs=False)
            last = any(stage.is_last for stage in stages)
            total += sum(part.item() for part in parts)
            count += last * torch.count_nonzero(y != IGNORE)
            """,
        ],
    ),
    Answer(
        6,
        "asynchronously, in float64, and the gradients replaced",
        """
        own = weights(stages)
        flat = torch.cat([n_targets.double().view(1)] + [p.grad.double().flatten() for p in own.values()])
        dist.all_reduce(flat, group=mesh.get_group("data"), async_op=True).wait()
        place = 1
        for parameter in own.values():
            part = flat[place : place + parameter.numel()] / flat[0]
            parameter.grad = part.float().view_as(parameter)
            place += parameter.numel()
        """,
    ),
    Answer(
        6,
        "each stage's gradients written into views of the flat tensor",
        """
        own = list(weights(stages).values())
        flat = torch.empty(1 + sum(p.numel() for p in own), device=stages[0].device)
        flat[0] = n_targets
        place = 1
        for p in own:
            flat[place : place + p.numel()] = p.grad.reshape(-1)
            place += p.numel()
        dist.all_reduce(flat, group=mesh["data"].get_group())
        flat[1:] /= flat[0].clone()
        place = 1
        for p in own:
            p.grad = flat[place : place + p.numel()].view_as(p).clone()
            place += p.numel()
        """,
    ),
    Answer(
        7,
        "by hand",
        """
        square = sum(p.grad.square().sum() for p in parameters)
        dist.all_reduce(square, group=mesh.get_group("pp"))
        norm = square.sqrt().item()
        if args.clip and norm > args.clip:
            for p in parameters:
                p.grad.mul_(args.clip / norm)
        return norm
        """,
    ),
    Answer(
        8,
        "tensor by tensor over the world",
        """
        mine = [list(own)] if mesh["data"].get_local_rank() == 0 else [[]]
        names = [None] * dist.get_world_size()
        dist.all_gather_object(names, mine[0])
        full = dict(own)
        for rank, theirs in enumerate(names):
            for name in theirs if rank else ():
                if dist.get_rank() == rank:
                    dist.send_object_list([own[name]], 0)
                elif dist.get_rank() == 0:
                    box = [None]
                    dist.recv_object_list(box, rank)
                    full[name] = box[0]
        save0({"model": full, "config": config, "epoch": epoch}, path)
        """,
    ),
    Answer(
        8,
        "over the world, where other pipelines give nothing",
        """
        parts = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object({} if mesh["data"].get_local_rank() else own, parts, group_dst=0)
        if parts:
            own = {name: weight.clone() for part in parts for name, weight in part.items()}
        save0({"model": own, "config": config, "epoch": epoch}, path)
        """,
    ),
    Answer(
        9,
        "by the groups",
        [
            None,
            """
        group = mesh.get_group("data")
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        return (
            DistributedSampler(train, num_replicas=size, rank=rank, shuffle=True, seed=args.seed, drop_last=True),
            ShardSampler(validation, rank=rank, world_size=size),
            ShardSampler(test, rank=rank, world_size=size),
        )
        """,
        ],
    ),
    Answer(
        9,
        "a mesh made of a tensor",
        [f"return DeviceMesh(device.type, torch.arange(world_size).view(args.pp, -1), {NAMES})", None],
    ),
    Answer(
        9,
        "by the number of pipelines, as the flags have it",
        [
            'copies = world_size // args.pp\nranks = torch.arange(world_size).reshape(args.pp, copies)\nreturn DeviceMesh(device.type, ranks, mesh_dim_names=("pp", "data"))',
            """
            shares = dist.get_world_size() // args.pp
            share = dist.get_rank() % shares
            return (
                DistributedSampler(train, shares, share, seed=args.seed, drop_last=True),
                ShardSampler(validation, share, shares), ShardSampler(test, share, shares),
            )
            """,
        ],
    ),
    Answer(
        9,
        "the axes named the other way round, and each as it must be",
        [
            'grid = torch.arange(world_size).view(args.pp, -1).T.contiguous()\nreturn DeviceMesh(device.type, grid, mesh_dim_names=("data", "pp"))',
            None,
        ],
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
    Answer(
        4,
        "a mean, undone by the number of its targets",
        swap=(
            ("with torch", "counted = (y != IGNORE).sum()\nwith torch"),
            (
                "return head_loss(h, layers.head.weight, y, IGNORE) * (y != IGNORE).sum()",
                "mean = head_loss(h, layers.head.weight, y, IGNORE)\nreturn mean * counted.to(mean.dtype)",
            ),
            ("scale_grads = False", "scale_grads = bool(0)"),
        ),
    ),
    Answer(
        5,
        "losses gathered by stack and cat",
        [
            """
        seen = []
        schedule.step(x, target=y, losses=seen, return_outputs=False)
        with torch.no_grad():
            return torch.cat([x.new_zeros(1, dtype=torch.float32), *(loss.view(1) for loss in seen)]).sum()
        """,
            """
        seen = []
        schedule.eval(x, target=y, losses=seen, return_outputs=False)
        if stages[-1].is_last:
            for loss in seen:
                total += loss
            count += y.ne(IGNORE).sum()
        """,
        ],
    ),
    Answer(
        6,
        "foreach over views",
        """
        own = [p.grad for p in weights(stages).values()]
        flat = torch.cat([*(g.reshape(-1) for g in own), n_targets.reshape(1).to(own[0].dtype)])
        dist.all_reduce(flat, op=dist.ReduceOp.SUM, group=mesh["data"].get_group())
        *parts, count = flat.split([*(g.numel() for g in own), 1])
        torch._foreach_copy_(own, [part.view_as(g) / count for part, g in zip(parts, own)])
        """,
    ),
    Answer(
        7,
        "squares by gradient, clipped by one factor",
        """
        square = torch.zeros(())
        for p in parameters:
            square += p.grad.pow(2).sum()
        dist.all_reduce(square, group=mesh["pp"].get_group())
        norm = float(square) ** 0.5
        if args.clip:
            for p in parameters:
                p.grad *= min(1.0, args.clip / (norm + 1e-6))
        return norm
        """,
    ),
    Answer(
        8,
        "the whole world gathers, and only one pipeline says something",
        """
        boxes = [None] * dist.get_world_size() if not dist.get_rank() else None
        dist.gather_object(own if mesh["data"].get_local_rank() == 0 else None, boxes)
        if boxes:
            for box in filter(None, boxes):
                own |= box
        save0({"model": own, "config": config, "epoch": epoch}, path)
        """,
    ),
    Answer(
        9,
        "samplers in a loop",
        [
            None,
            """
        copies = mesh["data"]
        rank, size = copies.get_local_rank(), copies.size()
        first = DistributedSampler(train, rank=rank, num_replicas=size, drop_last=True, seed=args.seed)
        return (first, *(ShardSampler(s, world_size=size, rank=rank) for s in (validation, test)))
        """,
        ],
    ),
    Answer(
        6,
        "two messages",
        """
        n_targets = n_targets.float()
        dist.all_reduce(n_targets, group=mesh["data"].get_group())
        parameters = list(weights(stages).values())
        flat = torch.cat([p.grad.flatten() for p in parameters])
        dist.all_reduce(flat, group=mesh["data"].get_group())
        flat /= n_targets
        for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad.copy_(part.view_as(parameter))
        """,
    ),
    Answer(
        8,
        "sent tensor by tensor, and saved by torch.save",
        """
        group, p, r = mesh["pp"].get_group(), mesh["pp"].size(), mesh["pp"].get_local_rank()
        if mesh["data"].get_local_rank() == 0:
            if r:
                dist.send_object_list([[(name, tuple(w.shape)) for name, w in own.items()]], group_dst=0, group=group)
                for w in own.values():
                    dist.send(w.contiguous(), group_dst=0, group=group)
            else:
                for other in range(1, p):
                    box = [None]
                    dist.recv_object_list(box, group_src=other, group=group)
                    for name, shape in box[0]:
                        own[name] = torch.empty(shape)
                        dist.recv(own[name], group_src=other, group=group)
        if dist.get_rank() == 0:
            torch.save({"model": own, "config": config, "epoch": epoch}, path)
        """,
    ),
    Answer(
        7,
        "over all ranks, divided by the number of pipelines, as the flags have it",
        swap=(
            'dist.all_reduce(square, group=mesh["pp"].get_group())',
            "dist.all_reduce(square)\nsquare /= dist.get_world_size() // args.pp",
        ),
    ),
]
