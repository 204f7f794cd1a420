"""Other answers to the TODOs of pipeline_training: what real courses got wrong, and what is right as well."""

from grader.kit import Answer

BLOCKS = "{str(i): model.blocks[i] for i in range(begin, end)}"
NAMES = 'mesh_dim_names=("pp", "data")'
GATHER = 'dist.gather_object(own, parts, group=mesh["pp"].get_group(), group_dst=0)'

WRONG = [
    Answer(
        1,
        "a stage that has all weights",
        swap=(BLOCKS, "{str(i): block for i, block in enumerate(model.blocks)}"),
        says="holds all blocks",
    ),
    Answer(
        1,
        "keys that begin at 0 on every stage",
        swap=(BLOCKS, "{str(k): model.blocks[i] for k, i in enumerate(range(begin, end))}"),
        says="begin at 0",
    ),
    Answer(
        1,
        "a list in place of a dictionary",
        """
        first, last = stage == 0, stage == n_stages - 1
        begin, end = (math.ceil(k * len(model.blocks) / n_stages) for k in (stage, stage + 1))
        self.token_embedding = model.token_embedding if first else None
        self.position_embedding = model.position_embedding if first else None
        self.blocks = nn.ModuleList(model.blocks[begin:end])
        self.norm = model.norm if last else None
        self.head = model.head if last else None
        """,
    ),
    Answer(
        1,
        "what does not divide is left out",
        swap=(
            "begin, end = (math.ceil(k * len(model.blocks) / n_stages) for k in (stage, stage + 1))",
            "begin, end = (k * (len(model.blocks) // n_stages) for k in (stage, stage + 1))",
        ),
        says="the blocks that are its share",
    ),
    Answer(
        1,
        "the last stages have one more",
        swap=("math.ceil(k * len(model.blocks) / n_stages)", "k * len(model.blocks) // n_stages"),
        says="the blocks that are its share",
    ),
    Answer(
        1,
        "as many as the first one, until there are no more",
        swap=(
            "begin, end = (math.ceil(k * len(model.blocks) / n_stages) for k in (stage, stage + 1))",
            "share = math.ceil(len(model.blocks) / n_stages)\n"
            "begin, end = (min(k * share, len(model.blocks)) for k in (stage, stage + 1))",
        ),
        says="the blocks that are its share",
    ),
    Answer(
        1,
        "the head is on every stage",
        swap=("self.head = model.head if last else None", "self.head = model.head"),
        says="holds the head",
    ),
    Answer(
        1,
        "both embeddings are on every stage",
        swap=("model.token_embedding if first else None", "model.token_embedding"),
        says="holds the token_embedding",
    ),
    Answer(1, "norm on every stage", swap=("model.norm if last else None", "model.norm"), says="holds the norm"),
    Answer(1, "every n-th block", swap=("range(begin, end)", "range(stage, len(model.blocks), n_stages)")),
    Answer(
        1,
        "copies",
        swap=(BLOCKS, "{str(i): __import__('copy').deepcopy(model.blocks[i]) for i in range(begin, end)}"),
        says="copies",
    ),
    Answer(2, "the world as its group", swap=(', group=mesh["pp"].get_group()', ""), says="cannot be larger"),
    Answer(2, "the other axis' group", swap=('group=mesh["pp"].get_group()', 'group=mesh["data"].get_group()')),
    Answer(2, "stages by the rank in the world", swap=('mesh["pp"].get_local_rank()', "dist.get_rank()")),
    Answer(
        2,
        "neighbouring stages on one rank",
        swap=("range(r, n_stages, p)", "range(r * (n_stages // p), (r + 1) * (n_stages // p))"),
        says="the stages that are its own",
    ),
    Answer(
        2,
        "one stage, whatever the schedule",
        swap=("p * stages_a_rank(p, args)", "p"),
        says="the stages that are its own",
    ),
    Answer(
        2,
        "the stages of all ranks",
        swap=("range(r, n_stages, p)", "range(n_stages)"),
        says="the stages that are its own",
    ),
    Answer(2, "no memory", swap=(".to_empty(device=device)", ""), says="no memory yet"),
    Answer(
        2,
        "memory for the whole model, of which stages are cut",
        swap=(
            ("stages = []", "model.to_empty(device=device)\nstages = []"),
            ("bfloat16).to_empty(device=device)", "bfloat16)"),
        ),
        says="other stages' among them",
    ),
    Answer(
        2,
        "memory for the stages of all ranks, and only its own are kept",
        swap=(
            "stages = []",
            "stages = []\n"
            "everyone = [Layers(model, stage, n_stages, bfloat16).to_empty(device=device) for stage in range(n_stages)]",
        ),
        says="other stages' among them",
    ),
    Answer(2, "the dtype is dropped", swap=(", bfloat16)", ")"), says="another dtype"),
    Answer(
        2,
        "the whole model on every stage",
        swap=("Layers(model, stage, n_stages, bfloat16)", "Layers(model, 0, 1, bfloat16)"),
        says="has memory for",
    ),
    Answer(
        2,
        "data-parallel gradients reduced in each micro-batch",
        """
        p, r = mesh["pp"].size(), mesh["pp"].get_local_rank()
        n_stages = p * stages_a_rank(p, args)
        copies = mesh["data"].get_group()
        stages = []
        for stage in range(r, n_stages, p):
            layers = Layers(model, stage, n_stages, bfloat16).to_empty(device=device)
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
        p, r = mesh["pp"].size(), mesh["pp"].get_local_rank()
        n_stages = p * stages_a_rank(p, args)
        stages = []
        for stage in range(r, n_stages, p):
            layers = Layers(model, stage, n_stages, bfloat16).to_empty(device=device)
            wrapped = nn.parallel.DistributedDataParallel(layers, process_group=mesh["data"].get_group())
            stages.append(PipelineStage(wrapped, stage, n_stages, device, group=mesh["pp"].get_group()))
        return stages
        """,
        says="is wrapped",
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
        says="is kept, too",
    ),
    Answer(
        3,
        "the first of its stages alone",
        swap=("own = weights(stages)", "own = dict(stages[0].submod.named_parameters())"),
        says="two stages a rank",
    ),
    Answer(
        3, "the last of its stages alone", swap=("weights(stages)", "weights(stages[-1:])"), says="two stages a rank"
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
        "return head_loss(h, layers.head.weight, y, IGNORE) * (y != IGNORE).sum()",
        says="float32 to the last bit",
    ),
    Answer(
        4,
        "nan where no target counts",
        """
        with torch.autocast(h.device.type, torch.bfloat16, enabled=layers.bfloat16):
            logits = layers.head(h).flatten(0, 1).float()
            return nn.functional.cross_entropy(logits, y.flatten(), ignore_index=IGNORE) * (y != IGNORE).sum()
        """,
        says="0 targets",
    ),
    Answer(
        5,
        "GPipe, whatever is asked for",
        "return ScheduleGPipe(stages[0], **{'n_microbatches': args.microbatches, 'loss_fn': loss, 'scale_grads': "
        "False})",
        says="at a time",
    ),
    Answer(
        5, "loss scaled by m twice", swap=(', "scale_grads": False', ""), says="divided by the number of micro-batches"
    ),
    Answer(5, "all micro-batches at once", swap=("args.microbatches", "1")),
    Answer(
        5,
        "all at once, in GPipe alone",
        swap=(
            "return ScheduleGPipe(stages[0], **how)",
            "return ScheduleGPipe(stages[0], **how | {'n_microbatches': 1})",
        ),
        says="the whole batch at once",
    ),
    Answer(
        5,
        "the empty schedule",
        """
        class Empty:
            def step(self, x, target=None, losses=None, return_outputs=True):
                for stage in stages:
                    for parameter in stage.submod.parameters():
                        parameter.grad = torch.zeros_like(parameter)
            eval = step
        return Empty()
        """,
        says="runs no forward pass",
    ),
    Answer(
        5,
        "zero gradients",
        """
        how = {"n_microbatches": args.microbatches, "loss_fn": lambda h, y: loss(h, y) * 0, "scale_grads": False}
        return ScheduleGPipe(stages[0], **how)
        """,
        says="not that of the sum",
    ),
    Answer(
        5,
        "a skipped last micro-batch",
        """
        how = {"n_microbatches": args.microbatches - 1, "loss_fn": loss, "scale_grads": False}
        schedule = ScheduleGPipe(stages[0], **how)
        plain = schedule.step
        def step(x, target=None, **more):
            kept = len(x) - len(x) // args.microbatches
            return plain(x[:kept], target=target[:kept], **more)
        schedule.step = step
        return schedule
        """,
        says="micro-batches",
    ),
    Answer(
        5,
        "the last micro-batch has no loss",
        """
        calls = []
        def most(h, y):
            calls.append(y)
            return loss(h, y) * (len(calls) % args.microbatches != 0)
        return ScheduleGPipe(stages[0], args.microbatches, loss_fn=most, scale_grads=False)
        """,
        says="not that of the sum",
    ),
    Answer(
        5,
        "activations detached",
        """
        how = {"n_microbatches": args.microbatches, "loss_fn": loss, "scale_grads": False}
        for stage in stages:
            stage.submod.register_forward_pre_hook(lambda layers, args: tuple(arg.detach() for arg in args))
        return ScheduleGPipe(stages[0], **how)
        """,
    ),
    Answer(
        5,
        "interleaved goes breadth first",
        swap=(
            "return ScheduleInterleaved1F1B(stages, **how)",
            "from torch.distributed.pipelining import ScheduleLoopedBFS\n    return ScheduleLoopedBFS(stages, **how)",
        ),
    ),
    Answer(
        5,
        "zero bubble that is 1F1B",
        swap=("return ScheduleInterleavedZeroBubble(stages, **how)", "return Schedule1F1B(stages[0], **how)"),
        says="at once, with that of its input",
    ),
    Answer(
        5,
        "1F1B is taken for zero bubble",
        swap=("return Schedule1F1B(stages[0], **how)", "return ScheduleInterleavedZeroBubble(stages, **how)"),
        says="at a time",
    ),
    Answer(5, "the names of two are swapped", swap=('"gpipe"', '"1f1b"')),
    Answer(
        6,
        "a stage is the first or the last, and never both",
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
    ),
    Answer(
        6,
        "only the mean of the losses",
        swap=(".sum().detach()", ".mean().detach()"),
        says="the mean over micro-batches",
    ),
    Answer(
        6,
        "is this rank's first stage the last one",
        swap=("if losses else", "if stages[0].is_last else"),
        says="this rank's second one",
    ),
    Answer(6, "with its graph", swap=(".sum().detach()", ".sum()"), says="still has its graph"),
    Answer(6, "evaluated, not trained", swap=("schedule.step(", "schedule.eval("), says="no gradient"),
    Answer(6, "nothing", "return torch.zeros((), device=x.device)", says="leaves no gradient"),
    Answer(
        6,
        "a skipped last micro-batch",
        """
        losses = []
        y = y.clone()
        y[-(len(y) // 4) :] = IGNORE
        schedule.step(x, target=y, losses=losses, return_outputs=False)
        return torch.stack(losses).sum().detach() if losses else torch.zeros((), device=x.device)
        """,
        says="some micro-batch is missing",
    ),
    Answer(6, "x for a target", swap=("target=y", "target=x"), says="not that of the sum"),
    Answer(
        6,
        "gradients reduced over all ranks in each micro-batch",
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
    ),
    Answer(
        6,
        "every rank reports the loss",
        """
        losses = []
        schedule.step(x, target=y, losses=losses, return_outputs=False)
        total = torch.stack(losses).sum().detach() if losses else torch.zeros((), device=x.device)
        dist.all_reduce(total)
        return total
        """,
        says="which only the last stage can know",
    ),
    Answer(6, "fails where there is no loss", swap=(" if losses else torch.zeros((), device=x.device)", "")),
    Answer(6, "rank 0 alone sends it", swap=("schedule.step(x", "if dist.get_rank() == 0:\n        schedule.step(x")),
    Answer(7, "over all ranks", swap=(', group=mesh["data"].get_group()', ""), says="the data axis"),
    Answer(7, "over the pipeline", swap=('mesh["data"]', 'mesh["pp"]'), says="the data axis"),
    Answer(
        7,
        "not at all",
        swap=('dist.all_reduce(flat, group=mesh["data"].get_group())\n', "\n"),
        says="its own samples alone",
    ),
    Answer(
        7,
        "nothing to do for one pipeline",
        swap=(
            "parameters = list(weights(stages).values())",
            'if mesh["data"].size() == 1:\n    return\nparameters = list(weights(stages).values())',
        ),
        says="not divided",
    ),
    Answer(7, "the sum", swap=("flat[:-1] / flat[-1]", "flat[:-1]"), says="not divided"),
    Answer(
        7,
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
        7,
        "a message for each weight",
        """
        n_targets = n_targets.clone()
        dist.all_reduce(n_targets, group=mesh["data"].get_group())
        for parameter in weights(stages).values():
            dist.all_reduce(parameter.grad, group=mesh["data"].get_group())
            parameter.grad /= n_targets
        """,
        says="collectives to sum up",
    ),
    Answer(
        7,
        "summed up in a copy that nobody uses",
        swap=("parameter.grad.copy_(part.view_as(parameter))", "parameter.grad.clone().copy_(part.view_as(parameter))"),
        says="the gradient of",
    ),
    Answer(
        7,
        "the last weight alone",
        """
        parameters = list(weights(stages).values())
        flat = torch.cat([p.grad.flatten() for p in parameters] + [n_targets.float().view(1)])
        dist.all_reduce(flat, group=mesh["data"].get_group())
        sums = flat[:-1] / flat[-1]
        for parameter, part in zip(parameters, sums.split([p.numel() for p in parameters]), strict=True):
            new = part.view_as(parameter)
        parameter.grad.copy_(new)
        """,
        says="the gradient of",
    ),
    Answer(
        8,
        "each stage clips by its own norm",
        "norm = nn.utils.clip_grad_norm_(parameters, args.clip or math.inf)\nreturn norm.item()",
        says="this stage's part",
    ),
    Answer(8, "norms are added, not squares", swap=((".square()", ""), ("square.sqrt()", "square")), says="wrong norm"),
    Answer(8, "over all ranks", swap=(', group=mesh["pp"].get_group()', ""), says="counts each stage 2 times"),
    Answer(8, "over the data axis", swap=('mesh["pp"]', 'mesh["data"]'), says="wrong norm"),
    Answer(8, "0 is taken for a limit", swap=("args.clip or math.inf", "args.clip"), says="--clip 0"),
    Answer(
        8,
        "the norm is right, and the gradients are clipped by the stage's own",
        swap=(
            "nn.utils.clip_grads_with_norm_(parameters, args.clip or math.inf, norm)",
            "nn.utils.clip_grad_norm_(parameters, args.clip or math.inf)",
        ),
        says="scaled by one number",
    ),
    Answer(8, "never clipped", swap=("args.clip or math.inf", "math.inf"), says="is not clipped"),
    Answer(8, "the square", swap=("norm.item()", "square.item()"), says="wrong norm"),
    Answer(
        9,
        "targets that count",
        swap=("y.new_full((missing, y.shape[1]), IGNORE)", "y.new_zeros(missing, y.shape[1])"),
        says="whose targets count",
    ),
    Answer(
        9,
        "IGNORE among the tokens",
        swap=("x.new_zeros(missing, x.shape[1])", "x.new_full((missing, x.shape[1]), IGNORE)"),
        says="no token",
    ),
    Answer(
        9,
        "new rows on top",
        "missing = rows - len(x)\nreturn torch.cat([x.new_zeros(missing, x.shape[1]), x]), "
        "torch.cat([y.new_full((missing, y.shape[1]), IGNORE), y])",
        says="changes the rows",
    ),
    Answer(
        9, "in float32", swap=("x.new_zeros(missing, x.shape[1])", "torch.zeros(missing, x.shape[1])"), says="dtype"
    ),
    Answer(9, "one row more at most", swap=("rows - len(x)", "min(rows - len(x), 1)"), says="another shape"),
    Answer(
        9,
        "y is left",
        swap=("torch.cat([y, y.new_full((missing, y.shape[1]), IGNORE)])", "y"),
        says="gives y another shape",
    ),
    Answer(
        10,
        "targets counted on every rank",
        """
        losses = []
        schedule.eval(x, target=y, losses=losses, return_outputs=False)
        total += sum(loss.double() for loss in losses)
        count += (y != IGNORE).sum()
        """,
        says="a loss 2 times too small",
    ),
    Answer(
        10,
        "mean of batch means",
        """
        losses = []
        schedule.eval(x, target=y, losses=losses, return_outputs=False)
        if losses:
            total += torch.stack(losses).double().sum() / (y != IGNORE).sum()
            count += 1
        """,
        says="another loss",
    ),
    Answer(10, "all tokens are counted", swap=("(y != IGNORE).sum()", "y.numel()"), says="another loss"),
    Answer(
        10,
        "trained, not evaluated",
        swap=("schedule.eval(", "torch.enable_grad()(schedule.step)("),
        says="leaves gradients",
    ),
    Answer(
        10,
        "the last micro-batch alone",
        swap=("torch.stack(losses).double().sum()", "losses[-1].double()"),
        says="another loss",
    ),
    Answer(
        10,
        "is this rank's first stage the last one",
        swap=("if losses:", "if stages[0].is_last:"),
        says="whose second stage is the last",
    ),
    Answer(10, "only the last batch", swap=("total += torch", "total = torch")),
    Answer(10, "fails where there is no loss", swap=("if losses:", "if True:")),
    Answer(10, "nothing", "pass  # later"),
    Answer(
        11,
        "rank 0's stage",
        """
        dist.barrier()
        save0({"model": own, "config": config, "epoch": epoch}, path)
        """,
        says="all weights",
    ),
    Answer(
        11,
        "every rank writes its own",
        'path.parent.mkdir(parents=True, exist_ok=True)\ntorch.save({"model": own, "config": config, "epoch": epoch}, '
        "path)",
        says="all write",
    ),
    Answer(
        11,
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
        11,
        "a list of stages",
        swap=(
            "own = {name: weight for part in parts for name, weight in part.items()}",
            'own = {f"stage{k}.{name}": weight for k, part in enumerate(parts) for name, weight in part.items()}',
        ),
        says="all weights",
    ),
    Answer(11, "rank 0 alone gathers", swap=('if mesh["data"].get_local_rank() == 0:', "if dist.get_rank() == 0:")),
    Answer(
        11,
        "every rank gathers",
        """
        parts = [None] * mesh["pp"].size()
        dist.all_gather_object(parts, own, group=mesh["pp"].get_group())
        full = {}
        for part in parts:
            full.update(part)
        save0({"model": full, "config": config, "epoch": epoch}, path)
        """,
        says="rank 0 alone needs it",
    ),
    Answer(
        11,
        "the first rank of each pipeline gathers",
        swap=(
            ('if mesh["data"].get_local_rank() == 0:', "if True:"),
            ("if dist.get_rank() == 0 else None", 'if mesh["pp"].get_local_rank() == 0 else None'),
        ),
        says="rank 0 alone needs it",
    ),
    Answer(11, "the config is lost", swap=(', "config": config', ""), says="lost an entry"),
    Answer(11, "gathered, and thrown away", swap=("if parts:", "if parts and False:"), says="all weights"),
    Answer(
        12,
        "over the world",
        """
        return (
            DistributedSampler(train, shuffle=True, seed=args.seed, drop_last=True),
            ShardSampler(validation), ShardSampler(test),
        )
        """,
        says="stages of one pipeline",
    ),
    Answer(
        12,
        "the training set alone",
        swap=(
            ('ShardSampler(validation, where["rank"], where["num_replicas"])', "ShardSampler(validation)"),
            ('ShardSampler(test, where["rank"], where["num_replicas"])', "ShardSampler(test)"),
        ),
        says="validation samples",
    ),
    Answer(
        12,
        "by the stage",
        swap=(
            ('mesh["data"].size()', 'mesh["pp"].size()'),
            ('mesh["data"].get_local_rank()', 'mesh["pp"].get_local_rank()'),
        ),
    ),
    Answer(
        12,
        "every rank everything",
        swap=(
            '{"num_replicas": mesh["data"].size(), "rank": mesh["data"].get_local_rank()}',
            '{"num_replicas": 1, "rank": 0}',
        ),
    ),
    Answer(12, "in the order of the text", swap=("shuffle=True", "shuffle=False"), says="the serial run"),
    Answer(
        12,
        "validation is padded",
        swap=(
            'ShardSampler(validation, where["rank"], where["num_replicas"])',
            "DistributedSampler(validation, **where, shuffle=False)",
        ),
        says="is padded",
    ),
    Answer(
        12,
        "another seed a stage",
        swap=("seed=args.seed", 'seed=args.seed + mesh["pp"].get_local_rank()'),
        says="stages of one pipeline",
    ),
    Answer(
        13,
        "rows for columns",
        f"return init_device_mesh(device.type, (world_size // args.pp, args.pp), {NAMES})",
        says="the grid is",
    ),
    Answer(
        13,
        "stages are neighbours",
        f"""
        grid = torch.arange(world_size).view(-1, args.pp).T.contiguous()
        return DeviceMesh(device.type, grid, {NAMES})
        """,
        says="neighbours",
    ),
    Answer(13, "the names of the axes are swapped", swap=('("pp", "data")', '("data", "pp")'), says="other names"),
    Answer(
        13,
        "a stage for every rank",
        f"return init_device_mesh(device.type, (world_size, 1), {NAMES})",
        says="the grid is",
    ),
]

RIGHT = [
    Answer(
        1,
        "shares by counting, and modules taken in a loop",
        """
        n = len(model.blocks)
        sizes = [n // n_stages + (k < n % n_stages) for k in range(n_stages)]
        begin = sum(sizes[:stage])
        for name in ("token_embedding", "position_embedding"):
            setattr(self, name, getattr(model, name) if stage == 0 else None)
        self.blocks = nn.ModuleDict()
        for i in range(begin, begin + sizes[stage]):
            self.blocks[str(i)] = model.blocks[i]
        for name in ("norm", "head"):
            setattr(self, name, getattr(model, name) if stage == n_stages - 1 else None)
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
            layers = Layers(model, r + k * p, p * chunks, bfloat16=bfloat16)
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
        """
        with torch.autocast(h.device.type, torch.bfloat16, enabled=layers.bfloat16):
            logits = layers.head(h).flatten(0, 1)
        return nn.functional.cross_entropy(logits.float(), y.flatten(), ignore_index=IGNORE, reduction="sum")
        """,
    ),
    Answer(
        5,
        "by a table, with another class of zero bubble",
        """
        from torch.distributed.pipelining.schedules import get_schedule_class
        name = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zero-bubble": "InterleavedZeroBubble"}
        kind = get_schedule_class(name[args.schedule])
        whom = stages[0] if args.schedule in ("gpipe", "1f1b") else stages
        return kind(whom, args.microbatches, loss_fn=loss, scale_grads=False)
        """,
    ),
    Answer(
        5,
        "the loss scaled up, and the gradients down again",
        """
        m = args.microbatches
        schedule = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}
        kind = schedule.get(args.schedule, ScheduleInterleavedZeroBubble)
        whom = stages if args.schedule in ("interleaved", "zero-bubble") else stages[0]
        made = kind(whom, m, loss_fn=loss)
        made.scale_grads = False
        return made
        """,
    ),
    Answer(
        6,
        "x and y only where they are needed",
        """
        losses = []
        inputs = (x,) if any(stage.is_first for stage in stages) else ()
        last = any(stage.is_last for stage in stages)
        schedule.step(*inputs, target=y if last else None, losses=losses)
        return sum(loss.detach() for loss in losses) if losses else torch.tensor(0.0, device=x.device)
        """,
    ),
    Answer(
        7,
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
        8,
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
        9,
        "by functional.pad",
        """
        below = (0, 0, 0, rows - len(x))
        return nn.functional.pad(x, below), nn.functional.pad(y, below, value=IGNORE)
        """,
    ),
    Answer(
        9,
        "the last row again, without its targets",
        """
        if len(x) == rows:
            return x, y
        more = x[-1:].repeat(rows - len(x), 1)
        return torch.cat([x, more]), torch.cat([y, torch.full_like(more, IGNORE)])
        """,
    ),
    Answer(
        10,
        "by is_last",
        """
        losses = []
        schedule.eval(x, target=y, losses=losses)
        if stages[-1].is_last:
            total += sum(losses).double()
            count += int((y != IGNORE).sum())
        """,
    ),
    Answer(
        11,
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
        11,
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
        12,
        "by the groups",
        """
        group = mesh.get_group("data")
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        return (
            DistributedSampler(train, num_replicas=size, rank=rank, shuffle=True, seed=args.seed, drop_last=True),
            ShardSampler(validation, rank=rank, world_size=size),
            ShardSampler(test, rank=rank, world_size=size),
        )
        """,
    ),
    Answer(
        13,
        "a mesh made of a tensor",
        f"return DeviceMesh(device.type, torch.arange(world_size).view(args.pp, -1), {NAMES})",
    ),
]
