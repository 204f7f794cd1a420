"""Other answers to TODOs 4 and 5 of context_training."""

from grader.kit import Answer

WRONG = [
    # TODO 4
    Answer(4, "FSDP's mean forgotten", swap=(" * dist.get_world_size()", ""), says="FSDP divides"),
    Answer(4, "division by the ranks' own number", swap=("dist.all_reduce(everyones)", "pass"), says="factor"),
    Answer(4, "nan where nothing counts", swap=("everyones.clamp(min=1)", "everyones"), says="returns nan"),
    Answer(4, "divided by nothing", swap=(" * dist.get_world_size() / everyones.clamp(min=1)", ""), says="nothing"),
    Answer(4, "all positions count", swap=("(y != IGNORE).sum()", "torch.tensor(y.numel())"), says="factor"),
    Answer(
        4,
        "a rank without targets leaves",
        swap=("everyones = mine.clone()", "if not mine:\n        return loss * 0\n    everyones = mine.clone()"),
        says="",
    ),
    Answer(4, "the loss without its graph", swap=("return loss * mine", "return loss.detach() * mine"), says=""),
    Answer(
        4,
        "each rank's count is 1 at least",
        swap=("mine = (y != IGNORE).sum()", "mine = (y != IGNORE).sum().clamp(min=1)"),
        says="factor",
    ),
    # TODO 5
    Answer(5, "every target", swap=("(share.y != IGNORE).sum()", "share.y.numel()"), says="mean is wrong"),
    Answer(5, "a mean of means", swap=("(share.y != IGNORE).sum()", "torch.tensor(1)"), says="mean is wrong"),
    Answer(
        5,
        "windows that are short are left out",
        swap=("n_targets = (share.y != IGNORE).sum()", "n_targets = (share.y != IGNORE).all() * share.y.numel()"),
        says="mean is wrong",
    ),
    Answer(4, "targets above 0", swap=("y != IGNORE", "y > 0"), says="factor"),
    Answer(
        5,
        "targets without what --pack hides",
        swap=("(share.y != IGNORE).sum()", "(y[:, my_places(y.shape[1], mesh, args).to(y.device)] != IGNORE).sum()"),
        says="with --pack",
    ),
    Answer(5, "words above 0", swap=("share.y != IGNORE", "share.y > 0"), says="mean is wrong"),
    Answer(5, "<eos> does not count", swap=("share.y != IGNORE", "(share.y != IGNORE) & (share.y != eos)")),
]


RIGHT = [
    Answer(
        4,
        "by the mean number of targets",
        """
        mine = (y != IGNORE).sum()
        mean = mine.double()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        return loss * (mine / mean) if mean > 0 else loss
        """,
    ),
    Answer(
        4,
        "in float64",
        [
            """
        counts = torch.zeros(dist.get_world_size(), dtype=torch.float64, device=y.device)
        counts[dist.get_rank()] = (y != IGNORE).sum()
        dist.all_reduce(counts)
        if counts.sum() == 0:
            return loss * 0
        return loss * (counts[dist.get_rank()] / counts.mean())
        """
        ],
    ),
    Answer(
        5,
        "with a sum over targets",
        [
            """
        share = my_share(x, y, eos, mesh, args)
        n_targets = torch.count_nonzero(share.y + 100)
        total += float(compute_loss(model, share, args)) * n_targets
        """
        ],
    ),
]
