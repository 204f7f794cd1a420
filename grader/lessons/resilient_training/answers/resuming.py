"""Other answers to TODOs 5 and 8 of resilient_training."""

from grader.kit import Answer

WRONG = [
    Answer(
        5,
        "only who sees one asks",
        "newest = find_newest(out)\nreturn Path(from_rank0(str(newest))) if newest else None",
        says="nothing will wake it",
    ),
    Answer(
        5,
        "without the run's folder",
        'newest = find_newest(out)\nname = from_rank0(newest.name if newest else "")\nreturn Path(name) if name else None',
        says="choose_start() on rank 0 takes ../step-40",
    ),
    # 5: trap 59
    Answer(
        5,
        "only where torchrun says that it has restarted",
        """
    import os
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return None
    return find_newest(out)
    """,
        says="starts from scratch",
    ),
    Answer(5, "each rank finds its own", "return find_newest(out)", says="do not start from the same"),
    Answer(
        5,
        "rank 0 alone goes on",
        "return find_newest(out) if dist.get_rank() == 0 else None",
        says="starts from scratch",
    ),
    Answer(
        5,
        "an empty path where there is none",
        'return Path(from_rank0(str(find_newest(out) or "")))',
        says="where rank 0 sees nothing",
    ),
    Answer(
        5,
        "the word None for a folder",
        "return Path(from_rank0(str(find_newest(out))))",
        says="where rank 0 sees nothing",
    ),
    Answer(
        5,
        "only rank 0 asks the store",
        """
    found = find_newest(out)
    if found is None or dist.get_rank() == 0:
        found = from_rank0(str(found or ""))
    return Path(found) if found else None
    """,
    ),
    # 8: trap 58
    Answer(
        8, "whatever was asked for, the old one", swap=(" and args.batch_size_per_rank", ""), says="--batch-size 12"
    ),
    Answer(
        8,
        "a rank's part stays cut",
        swap=("batch_size, args.batch_size_per_rank = saved, None", "batch_size_per_rank = saved // world_size"),
        says="on 5 ranks",
    ),
    Answer(
        8,
        "not checked whether it divides",
        """
    if saved and args.batch_size_per_rank:
        args.batch_size = saved
    else:
        set_batch_size(args, world_size)
    """,
        says="on 5 ranks",
    ),
    Answer(
        8,
        "the other flag stays",
        swap=("args.batch_size, args.batch_size_per_rank = saved, None", "args.batch_size = saved"),
        says="on 3 ranks",
    ),
    Answer(
        8,
        "the first job has none",
        """
    args.batch_size, args.batch_size_per_rank = saved, None
    set_batch_size(args, world_size)
    """,
    ),
    Answer(5, "a string", swap=("Path(name) if name else None", "name or None")),
    Answer(
        5,
        "each rank its own where rank 0's is not there yet",
        swap=(
            "return Path(name) if name else None",
            "return Path(name) if name and Path(name).is_dir() else find_newest(out)",
        ),
        says="do not start from the same checkpoint",
    ),
    Answer(
        5,
        "each rank its own where rank 0 sees none",
        swap=("return Path(name) if name else None", "return Path(name) if name else find_newest(out)"),
        says="where rank 0 sees nothing, and rank 1 step-20, the ranks do not start from the same checkpoint",
    ),
]


RIGHT = [
    Answer(
        5,
        "by a collective, the number alone",
        """
    found = find_newest(out)
    step = torch.tensor(int(found.name.removeprefix("step-")) if found else -1)
    dist.broadcast(step, 0)
    return out / f"step-{int(step)}" if step >= 0 else None
    """,
    ),
    Answer(
        5,
        "the newest that all ranks see",
        """
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, find_newest(out))
    if None in found:
        return None
    return min(found, key=lambda folder: int(folder.name.removeprefix("step-")))
    """,
    ),
    Answer(
        8,
        "what each rank gets",
        """
    if saved is not None and args.batch_size_per_rank is not None:
        args.batch_size_per_rank = None
        args.batch_size = saved
    set_batch_size(args, world_size)
    """,
    ),
    Answer(
        8,
        "with a message of its own",
        """
    if saved and args.batch_size_per_rank:
        if saved % world_size:
            fail(f"the run's batch of {saved} is not divisible by {world_size} ranks")
        args.batch_size = saved
    else:
        set_batch_size(args, world_size)
    """,
    ),
]
