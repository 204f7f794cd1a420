"""Other answers to TODOs 5, 6 and 9 of hybrid_training."""

from grader.kit import Answer

SHARE = 'mesh.get_local_rank("dp") * mesh["shard"].size() + mesh.get_local_rank("shard")'


SHARES = 'mesh["dp"].size() * mesh["shard"].size()'


WRONG = [
    # TODO 5
    Answer(5, "copies alone", 'return mesh.get_local_rank("dp"), mesh["dp"].size()', says=""),
    Answer(5, "all ranks", "return dist.get_rank(), dist.get_world_size()", says="differ only on pp, cp or tp"),
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
        says="differ only on pp, cp or tp",
    ),
    Answer(
        5,
        "ranks of cp read different samples",
        """
        share = (mesh.get_local_rank("dp") * mesh["shard"].size() + mesh.get_local_rank("shard")) * mesh["cp"].size()
        return share + mesh.get_local_rank("cp"), mesh["dp"].size() * mesh["shard"].size() * mesh["cp"].size()
        """,
        says="differ only on pp, cp or tp",
    ),
    Answer(5, "the share alone", f"return {SHARE}", says="my_share gives"),
    # TODO 6
    Answer(6, "FSDP's division is left", swap=("shares / n_targets", "1 / n_targets"), says="what it should be"),
    Answer(
        6,
        "by its own targets",
        swap=('for axis in ("dp", "shard", "cp"):\n    dist.all_reduce(n_targets, group=mesh.get_group(axis))\n', ""),
        says="gradient of",
    ),
    Answer(6, "shards alone", swap=('("dp", "shard", "cp")', '("shard",)'), says="gradient of"),
    Answer(6, "targets of one rank of cp", swap=('("dp", "shard", "cp")', '("dp", "shard")'), says="gradient of"),
    Answer(
        6, "FSDP's division by the ranks of cp is left", swap=(' * mesh["cp"].size()', ""), says="what it should be"
    ),
    Answer(
        6, "targets of tp, too", swap=('("dp", "shard", "cp")', '("dp", "shard", "cp", "tp")'), says="what it should be"
    ),
    Answer(
        6,
        "over all ranks",
        swap=(
            'for axis in ("dp", "shard", "cp"):\n    dist.all_reduce(n_targets, group=mesh.get_group(axis))\n',
            "dist.all_reduce(n_targets)\n",
        ),
        says="what it should be",
    ),
    Answer(
        6,
        "by the number of all ranks",
        swap=(f'shares = {SHARES} * mesh["cp"].size()', "shares = dist.get_world_size()"),
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
]


RIGHT = [
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
        for axis in ("shard", "cp", "dp"):
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
]
