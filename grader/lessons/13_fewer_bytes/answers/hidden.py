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
        4,
        "gathered by one rank",
        swap=(
            "dist.all_gather(memories, self.memory)",
            "dist.gather(self.memory, memories if dist.get_rank() == 0 else None)",
        ),
        says="what is saved on rank 1",
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
        6,
        "the first P with as many rows",
        swap=("g.copy_(columns @ q.T)", "g.copy_(next(t for t in thin if len(t) == len(g)) @ q.T)"),
        says="has moved after step 1",
    ),
    Answer(
        6,
        "two messages for each matrix",
        """
        pairs = list(zip(bucket.parameters(), bucket.gradients(), strict=True))
        others = [g for p, g in pairs if not state.compresses(p)]
        for g, mean in zip(others, mean_over_ranks(others) if others else [], strict=True):
            g.copy_(mean)
        for p, g in pairs:
            if state.compresses(p):
                wanted = g + state.memory[p]
                mean, state.q[p] = low_rank_mean(wanted, state.q[p])
                g.copy_(mean)
                state.memory[p] = wanted - g
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future
        """,
        says="collectives",
    ),
    Answer(
        6,
        "a memory that no checkpoint has",
        swap=(
            ("g + state.memory[p]", 'g + getattr(p, "error", 0)'),
            ("state.memory[p] = wanted - g", "p.error = wanted - g"),
        ),
        says="resumed after step",
    ),
    Answer(
        6,
        "vectors first, then matrices",
        swap=(
            "future.set_result(bucket.buffer())",
            "future.set_result(torch.cat([g.reshape(-1) for g in [*others, *(g for _, g, _ in matrices)]]))",
        ),
        says="has moved after step 1",
    ),
    Answer(
        8,
        "the rows' products, however many",
        swap=(("tall = g_MN.shape[0] > g_MN.shape[1]", "tall = False"),),
        says="at a time",
    ),
    Answer(
        8,
        "the columns' products, however many",
        swap=(("tall = g_MN.shape[0] > g_MN.shape[1]", "tall = True"),),
        says="at a time",
    ),
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
