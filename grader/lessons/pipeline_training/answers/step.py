"""Other answers to TODOs 4 to 7 of pipeline_training."""

from grader.kit import Answer

WRONG = [
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
    Answer(
        5,
        "the outputs are kept",
        swap=(
            "schedule.step(*inputs, target=y, losses=losses, return_outputs=False)",
            "schedule.step(*inputs, target=y, losses=losses)",
        ),
        says="are still in memory",
    ),
]


RIGHT = [
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
        7,
        "over all ranks, divided by the number of pipelines, as the flags have it",
        swap=(
            'dist.all_reduce(square, group=mesh["pp"].get_group())',
            "dist.all_reduce(square)\nsquare /= dist.get_world_size() // args.pp",
        ),
    ),
]
