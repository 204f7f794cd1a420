"""Other answers to TODOs 6 and 7 of resilient_training."""

from grader.kit import Answer

WRONG = [
    Answer(
        7,
        "looks at its own list once more",
        swap=("return bool(stop)", "return bool(stop) or len(came) > 0"),
        says="some of them stop and the others continue",
    ),
    # 6
    Answer(
        6,
        "USR1 alone",
        swap=("(signal.SIGUSR1, signal.SIGTERM)", "(signal.SIGUSR1,)"),
        says="SIGTERM would end the process",
    ),
    Answer(
        6,
        "TERM alone",
        swap=("(signal.SIGUSR1, signal.SIGTERM)", "(signal.SIGTERM,)"),
        says="SIGUSR1 would end the process",
    ),
    Answer(6, "ignored", swap=("lambda number, frame: came.append(number)", "signal.SIG_IGN"), says="still empty"),
    Answer(
        6,
        "ends in the midst of a step",
        swap=("lambda number, frame: came.append(number)", "lambda number, frame: sys.exit(0)"),
        says="SystemExit",
    ),
    Answer(6, "called in place of given", swap=("lambda number, frame: came.append(number)", "came.append(number)")),
    Answer(
        6,
        "a list of its own",
        swap=("lambda number, frame: came.append(number)", "lambda number, frame, came=[]: came.append(number)"),
        says="still empty",
    ),
    Answer(
        6,
        "a handler that takes nothing",
        swap=("lambda number, frame: came.append(number)", "lambda: came.append(0)"),
        says="TypeError",
    ),
    # 7: trap 55
    Answer(7, "each by its own signal", "return len(came) > 0", says="continues"),
    Answer(7, "all must have heard it", swap=("dist.ReduceOp.MAX", "dist.ReduceOp.MIN"), says="continues"),
    Answer(7, "those that were asked tell each other", swap=("dist.all_reduce", "if came:\n    dist.all_reduce")),
    Answer(7, "rank 0 decides", swap=("all_reduce(stop, dist.ReduceOp.MAX)", "broadcast(stop, 0)"), says="continues"),
    Answer(
        7,
        "rank 0 learns of it",
        """
    stop = torch.tensor(len(came) > 0, dtype=torch.int32, device=device)
    dist.reduce(stop, 0, dist.ReduceOp.MAX)
    return bool(stop) and dist.get_rank() == 0
    """,
        says="continues",
    ),
    Answer(7, "the sum of all but none", swap=("return bool(stop)", "return stop is not None"), says="stops"),
    Answer(
        6,
        "always USR1 is noted",
        swap=("came.append(number)", "came.append(signal.SIGUSR1)"),
        says="the numbers of these signals",
    ),
    Answer(
        6,
        "Ctrl-C, too",
        swap=("(signal.SIGUSR1, signal.SIGTERM)", "(signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)"),
        says="no longer ends the run",
    ),
    Answer(
        7,
        "the signals of all ranks, in eight bits",
        swap=(
            ("len(came) > 0, dtype=torch.int32", "len(came), dtype=torch.uint8"),
            ("dist.all_reduce(stop, dist.ReduceOp.MAX)", "dist.all_reduce(stop)"),
        ),
        says="by SIGUSR1, 128 times, rank 0 continues",
    ),
    Answer(
        7,
        "a sum of answers in eight bits",
        swap=(("int32", "uint8"), ("dist.all_reduce(stop, dist.ReduceOp.MAX)", "dist.all_reduce(stop)")),
        says="rank 0 adds up answers in uint8: where all of 256 ranks are asked to stop, the sum is 0",
    ),
    Answer(
        7,
        "an even number of signals is none",
        swap=(
            ("torch.tensor(len(came) > 0,", "torch.tensor(len(came),"),
            ("dist.all_reduce(stop, dist.ReduceOp.MAX)", "dist.all_reduce(stop)"),
            ("return bool(stop)", "return int(stop) % 2 == 1"),
        ),
        says="continues",
    ),
]


RIGHT = [
    Answer(
        6,
        "a function with a name",
        """
    def note(number, frame):
        came.append(number)

    signal.signal(signal.SIGTERM, note)
    signal.signal(signal.SIGUSR1, note)
    """,
    ),
    Answer(
        6,
        "other signals as well",
        swap=("(signal.SIGUSR1, signal.SIGTERM)", "(signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)"),
    ),
    Answer(7, "the largest, in eight bits", swap=("int32", "uint8")),
    Answer(
        7,
        "how many have been asked",
        """
    asked = torch.tensor([float(len(came))], device=device)
    dist.all_reduce(asked)
    return asked.item() > 0
    """,
    ),
    Answer(
        7,
        "all answers on all ranks",
        """
    answers = [None] * dist.get_world_size()
    dist.all_gather_object(answers, bool(came))
    return any(answers)
    """,
    ),
]
