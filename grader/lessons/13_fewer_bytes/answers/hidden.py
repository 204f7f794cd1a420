"""Answers to 13_fewer_bytes that one call, one text or even sizes would hide."""

from grader.kit import Answer

WRONG = [
    Answer(
        2,
        "one number for each block",
        swap=("torch.rand(values.shape, generator=draw)", "torch.rand((*values.shape[:-1], 1), generator=draw)"),
        says="are rounded the same way",
    ),
    Answer(
        2,
        "the same numbers in each call",
        swap=("generator=draw", "generator=torch.Generator().manual_seed(draw.initial_seed())"),
        says="second call",
    ),
    Answer(
        3,
        "nearest the second time",
        swap=("pack(mean, draw)", "pack(mean)"),
        says="the means are rounded to the nearest",
    ),
    Answer(
        3,
        "nearest the first time",
        swap=("world * size - len(numbers))), draw)", "world * size - len(numbers))))"),
        says="own numbers are rounded to the nearest",
    ),
    Answer(
        4,
        "a threshold",
        swap=("vector.abs().topk(k).indices", "(vector.abs() >= vector.abs().topk(k).values.min()).nonzero().view(-1)"),
        says="numbers that are as large",
    ),
    Answer(
        5,
        "two tensors",
        swap=(
            "(p_MR,) = mean_over_ranks([matrix_MN @ q_NR])",
            "p_MR = torch.stack([mean_over_ranks([matrix_MN @ q])[0] for q in q_NR.T], dim=1)",
        ),
        says="collectives in a step",
    ),
    Answer(6, "buckets have matrices", swap=("if matrices:", "if True:")),
    Answer(
        8,
        "each rank begins with itself",
        swap=(
            "loads.index(min(loads))",
            "min(range(world), key=lambda r: (loads[r], (r - dist.get_rank()) % world if dist.is_initialized() else r))",
        ),
        says="different answers",
    ),
    Answer(
        10,
        "by name",
        swap=("key=lambda name: seconds(runs[name], link)", "key=lambda name: (seconds(runs[name], link), name)"),
        says="the wrong run is the fastest",
    ),
]
