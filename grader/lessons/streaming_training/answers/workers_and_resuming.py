"""Other answers to TODOs 7 and 8 of streaming_training."""

from grader.kit import Answer

WRONG = [
    Answer(7, "the machine's CPUs", swap=("len(os.sched_getaffinity(0))", "os.cpu_count()"), says="CPU"),
    Answer(7, "Slurm forgotten", swap=('os.environ.get("SLURM_CPUS_PER_TASK") or ', ""), says="SLURM_CPUS_PER_TASK"),
    Answer(
        7,
        "each rank takes all CPUs",
        swap=('cpus // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) - 1', "cpus - 1"),
        says="LOCAL_WORLD_SIZE",
    ),
    Answer(7, "none left for the rank", swap=('"1")) - 1, 0)', '"1")), 0)'), says="workers"),
    Answer(7, "at least one", swap=("- 1, 0)", "- 1, 1)"), says="workers"),
    Answer(7, "as many as there are", swap=("min(max(", "max(max("), says="workers"),
    Answer(7, "new workers in each epoch", swap=("    persistent_workers=args.workers > 0,\n", ""), says="new workers"),
    Answer(
        7,
        "no workers",
        swap=(("num_workers=args.workers", "num_workers=0"), ("args.workers > 0", "False")),
        says="--workers",
    ),
    Answer(7, "ordinary memory", swap=("    pin_memory=bool(accelerator()),\n", ""), says="pinned"),
    Answer(
        7,
        "the global batch on each rank",
        swap=("args.batch_size // world_size", "args.batch_size"),
        says="batches have",
    ),
    Answer(8, "begins anew", [None, "return 0, 0"], says="what seek returns"),
    Answer(8, "steps in place of samples", swap=("steps * args.batch_size", "steps"), says="what seek returns"),
    Answer(
        8, "the samples of a rank", swap=("steps * args.batch_size", "steps * args.batch_size // dist.get_world_size()")
    ),
    Answer(8, "the epoch is lost", swap=('return state["epoch"]', "return 0"), says="what seek returns"),
    Answer(
        8,
        "a list of what was read",
        swap=('"samples": steps * args.batch_size,', '"samples": steps * args.batch_size, "seen": list(range(steps)),'),
        says="not a few numbers",
    ),
    Answer(
        8,
        "a different seed is taken",
        swap=('("seed", "seq_len", "block_rows", "buffer")', '("seq_len", "block_rows", "buffer")'),
        says="seed",
    ),
    Answer(8, "a different buffer is taken", swap=('"block_rows", "buffer")', '"block_rows")'), says="buffer"),
    Answer(8, "a different text is taken", swap=(', "rows": n_rows}', "}"), says="rows"),
    Answer(8, "whatever differs", [None, 'return state["epoch"], state["samples"]'], says="is not refused"),
    Answer(
        8,
        "the workers must be as many",
        swap=('("seed", "seq_len", "block_rows", "buffer")', '("seed", "seq_len", "block_rows", "buffer", "workers")'),
        says="what seek returns",
    ),
]


RIGHT = [
    Answer(
        7,
        "step by step",
        [
            """
            cpus = len(os.sched_getaffinity(0))
            if "SLURM_CPUS_PER_TASK" in os.environ:
                cpus = int(os.environ["SLURM_CPUS_PER_TASK"])
            ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
            left = cpus // ranks - 1
            return 0 if left < 0 else min(left, MOST_WORKERS)
            """,
            """
            how = {"persistent_workers": True, "prefetch_factor": 4} if args.workers else {}
            return DataLoader(
                rows,
                args.batch_size // world_size,
                num_workers=args.workers,
                pin_memory=torch.cuda.is_available(),
                drop_last=False,
                **how,
            )
            """,
        ],
    ),
    Answer(
        8,
        "all flags of the order, spelled out",
        [
            """
            return {
                "epoch": epoch,
                "samples": args.batch_size * steps,
                "rows": n_rows,
                "seed": args.seed,
                "seq_len": args.seq_len,
                "block_rows": args.block_rows,
                "buffer": args.buffer,
            }
            """,
            """
            here = {"rows": n_rows, "seed": args.seed, "seq_len": args.seq_len, "block_rows": args.block_rows, "buffer": args.buffer}
            different = [name for name in here if state[name] != here[name]]
            if different:
                fail(f"--resume {args.resume}: {', '.join(different)} of the saved run differ")
            return state["epoch"], state["samples"]
            """,
        ],
    ),
    Answer(
        8,
        "all samples since the start, as one number",
        [
            """
            a_pass = n_rows // args.batch_size * args.batch_size
            total = epoch * (a_pass + 1) + steps * args.batch_size
            return {"samples": total, "rows": n_rows, "seed": args.seed, "seq_len": args.seq_len, "block_rows": args.block_rows, "buffer": args.buffer}
            """,
            """
            for name in ("rows", "seed", "seq_len", "block_rows", "buffer"):
                here = n_rows if name == "rows" else getattr(args, name)
                if state[name] != here:
                    fail(f"another {name}")
            return divmod(state["samples"], n_rows // args.batch_size * args.batch_size + 1)
            """,
        ],
    ),
]
