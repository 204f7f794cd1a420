"""Other answers to TODOs 6 to 10 of 11_when_it_hangs."""

from grader.kit import Answer

WRONG = [
    Answer(
        6,
        "the first alone is checked",
        ["checked(samples[0])\nreturn default_collate(samples)", None],
        says="without any error",
    ),
    Answer(
        6,
        "all but the last are checked",
        ["return default_collate([*map(checked, samples[:-1]), samples[-1]])", None],
        says="without any error",
    ),
    Answer(
        9,
        "in int32",
        swap=("generator=generator)", "generator=generator, dtype=torch.int32)"),
        says="what starts_9 returns is in int32, not in int64",
    ),
    Answer(
        8,
        "a barrier, too",
        [
            "if step % log_every == 0:\n    if dist.get_rank() == 0:\n        histograms(model)\n    dist.barrier()",
            None,
        ],
        says="wait for each other once more",
    ),
    Answer(
        8,
        "drawn in eval mode, and left there",
        ["if dist.get_rank() == 0 and step % log_every == 0:\n    model.eval()\n    histograms(model)", None],
        says="is left in evaluation mode",
    ),
    Answer(
        6,
        "a copy of another sample in its place",
        [
            """
            sound = []
            for sample in samples:
                try:
                    sound.append(checked(sample))
                except ValueError:
                    sound.append(samples[0])
            return default_collate(sound)
            """,
            None,
        ],
        says="without any error",
    ),
    Answer(6, "not checked", ["return default_collate(samples)", None], says="without any error"),
    Answer(
        6,
        "told to the log",
        [
            """
            sound = []
            for sample in samples:
                try:
                    sound.append(checked(sample))
                except ValueError as problem:
                    print(problem)
            return default_collate(sound)
            """,
            None,
        ],
        says="without any error",
    ),
    Answer(6, "the main process", [None, 'return "ValueError", "the main process"'], says="where it was caught"),
    Answer(
        7,
        "nan_to_num",
        ["return ((losses_N * counts_N).sum() / counts_N.sum()).nan_to_num()", None],
        says="all are padding: the gradient",
    ),
    Answer(
        7,
        "no gradient",
        [
            """
            if not counts_N.any():
                return torch.zeros(())
            return losses_N[counts_N].mean()
            """,
            None,
        ],
        says="all are padding: the mean has no gradient",
    ),
    Answer(
        7,
        "one more in the denominator",
        ["return (losses_N * counts_N).sum() / (counts_N.sum() + 1)", None],
        says="the mean is wrong",
    ),
    Answer(7, "padding counts", ["return (losses_N * counts_N).mean()", None], says="one is padding"),
    Answer(7, "one rank is spared", [None, "return 1, 3, 1"], says="one step later"),
    Answer(8, "all ranks draw", ["if step % log_every == 0:\n    histograms(model)", None], says="rank 1 draws"),
    Answer(8, "never", ["pass", None], says="rank 0 draws in 0"),
    Answer(
        8,
        "one step off",
        ["if dist.get_rank() == 0 and step % log_every == 1:\n    histograms(model)", None],
        says="rank 0 draws",
    ),
    Answer(8, "the rank that waits", [None, 'return 1, "communication"'], says="the rank that all wait for"),
    Answer(
        9,
        "a seed for each rank",
        [
            """
            generator.manual_seed(1_000_003 * seed + 1009 * rank + step)
            return torch.randint(length, (batch_size // world,), generator=generator)
            """,
            None,
        ],
        says="the parallel run is a different run",
    ),
    Answer(
        9,
        "a part of the text for each rank",
        swap=(
            ", (batch_size,), generator=generator)[rank::world]",
            " // world, (batch_size // world,), generator=generator) + rank * (length // world)",
        ),
        says="the parallel run is a different run",
    ),
    Answer(9, "the first part for all", swap=("[rank::world]", "[: batch_size // world]"), says="same windows"),
    Answer(9, "the whole batch for all", swap=("[rank::world]", ""), says="not every rank has"),
    Answer(9, "twelve at once", [None, "return 12, 12"], says="as given"),
    Answer(
        10, "received by a copy", ["dist.broadcast(received.detach().clone(), src=0)", None], says="is not rank 0's"
    ),
    Answer(10, "a barrier", ["dist.barrier()", None], says="is not rank 0's"),
    Answer(
        10,
        "parameters without buffers",
        [
            "if received.ndim and received is not model.state_dict().get('1.running_mean'):\n    dist.broadcast(received, src=0) "
            "if any(received.data_ptr() == p.data_ptr() for p in model.parameters()) else None",
            None,
        ],
        says="running_mean is not rank 0's",
    ),
    Answer(10, "the last rank's", swap=("src=0", "src=dist.get_world_size() - 1"), says="is not rank 0's"),
    Answer(
        10,
        "the mean of all, which is nobody's",
        [
            "if received.is_floating_point():\n    dist.all_reduce(received)\n    received /= dist.get_world_size()",
            None,
        ],
        says="is not rank 0's",
    ),
    Answer(10, "they meet", [None, "return True, True"], says="whether the checksums"),
    Answer(
        7,
        "a zero of which the losses know nothing",
        [
            """
            if not counts_N.any():
                return torch.zeros((), requires_grad=True)
            return losses_N[counts_N].mean()
            """,
            None,
        ],
        says="none that reaches the losses",
    ),
    Answer(
        10,
        "floating-point numbers only",
        ["if received.is_floating_point():\n    dist.broadcast(received, src=0)", None],
        says="num_batches_tracked is not rank 0's",
    ),
    Answer(
        7,
        "losses that are not 0",
        ["masked_N = losses_N * counts_N\nreturn masked_N.sum() / masked_N.count_nonzero().clamp(min=1)", None],
    ),
    Answer(
        9,
        "each window once",
        ["return torch.randint(length, (batch_size,), generator=generator).unique()[rank::world]", None],
    ),
    Answer(
        9,
        "all windows but the last",
        ["return torch.randint(length - 1, (batch_size,), generator=generator)[rank::world]", None],
        says="never drawn",
    ),
    Answer(
        7,
        "divided by the mean count of all ranks",
        [
            """
            number = counts_N.sum().float()
            if dist.is_initialized():
                dist.all_reduce(number)
                number /= dist.get_world_size()
            return (losses_N * counts_N).sum() / number.clamp(min=1)
            """,
            None,
        ],
        says="the mean is wrong",
    ),
]


RIGHT = [
    Answer(
        6,
        "a loop that checks",
        [
            """
            for number, sample in enumerate(samples):
                try:
                    checked(sample)
                except ValueError as problem:
                    raise ValueError(f"sample {number} of its batch: {problem}") from problem
            return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])
            """,
            None,
        ],
    ),
    Answer(
        7,
        "a branch",
        [
            """
            if not counts_N.any():
                return 0 * losses_N.sum()
            return losses_N[counts_N].mean()
            """,
            None,
        ],
    ),
    Answer(8, "a way out first", ["if dist.get_rank() or step % log_every:\n    return\nhistograms(model)", None]),
    Answer(
        9,
        "in one piece",
        swap=(
            "return torch.randint(length, (batch_size,), generator=generator)[rank::world",
            "draws = torch.randint(length, (batch_size,), generator=generator)\nreturn draws.chunk(world)[rank",
        ),
    ),
    Answer(
        10,
        "received, then copied",
        [
            """
            copy = received.clone()
            dist.broadcast(copy, src=0)
            received.copy_(copy)
            """,
            None,
        ],
    ),
    Answer(
        9,
        "windows of which none is drawn twice",
        ["return torch.randperm(length, generator=generator)[:batch_size][rank::world]", None],
    ),
]
