"""What a batch file requests, and what its calls mean: which ranks each node would run."""

import argparse
import os
from dataclasses import dataclass
from unittest import mock

from torch.distributed.run import get_args_parser

from grader.engine.jobs.batch_header import GPUS, number_or_zero
from grader.engine.jobs.stand_ins import Start


@dataclass
class Ranks:
    """What one call starts: ranks on a node, and where they rendezvous."""

    node: int
    how: str  # as the student wrote it: torchrun, python
    script: str
    args: list[str]  # of the script
    processes: int
    world: int
    ranks: list[int] | None  # None: assigned when the nodes meet
    visible: list[str]
    address: str  # MASTER_ADDR:MASTER_PORT in its environment
    place: str = ""  # address:port, "" if it is not given or any works
    identity: str = ""  # of the rendezvous, "" if there is none
    hosts: bool | None = None  # whether this node is told to be the host; None: no node is told
    refused: str = ""  # why torchrun would refuse its arguments
    behind: tuple[str, ...] = ()  # torchrun's options that stand after the script, and so go to the script


def started(seen: dict) -> list[Ranks]:
    """By node."""
    return sorted((meaning(Start(**start)) for start in seen["starts"]), key=lambda ranks: ranks.node)


def meaning(start: Start) -> Ranks:
    """The ranks that one call of torchrun or python would start."""
    if start.program == "torchrun":
        return by_torchrun(start, start.args)
    if start.args[:2] == ["-m", "torch.distributed.run"]:
        return by_torchrun(start, start.args[2:])
    return by_launcher(start)


def by_launcher(start: Start) -> Ranks:
    """One process: srun or mpiexec has set its rank in the environment."""
    env, args = start.env, list(start.args)
    rank, world = next(
        (
            (int(env[r]), int(env[w]))
            for r, w in (("RANK", "WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
            if r in env and w in env
        ),
        (0, 1),
    )
    while args and args[0].startswith("-"):
        args.pop(0)
    script, rest = (args[0], args[1:]) if args else ("", [])
    address = meeting_place(env)
    visible, place = visible_gpus(env), address.strip(":")
    return Ranks(start.node, "python", script, rest, 1, world, [rank], visible, address, place)


def by_torchrun(start: Start, args: list[str]) -> Ranks:
    """As many processes as torchrun is asked to start."""
    visible = visible_gpus(start.env)
    try:
        options = torchrun_options(args, start.env)
    except ValueError as problem:
        address = meeting_place(start.env)
        return Ranks(start.node, "torchrun", "", [], 0, 0, [], visible, address, refused=str(problem))
    nnodes = number_or_zero(options.nnodes.partition(":")[0])
    asked = options.nproc_per_node
    processes = len(visible) if asked in ("gpu", "auto") else number_or_zero(asked)
    ranks = Ranks(
        start.node,
        "torchrun",
        options.training_script,
        options.training_script_args,
        processes,
        nnodes * processes,
        None,
        visible,
        meeting_place(start.env),
        behind=torchruns_own(options.training_script_args),
    )
    if options.standalone or nnodes == 1 and not (options.rdzv_endpoint or options.master_addr):
        ranks.ranks, ranks.world = list(range(processes)), processes
    elif options.rdzv_backend == "static":
        first = options.node_rank * processes
        ranks.ranks = list(range(first, first + processes))
        ranks.place = options.rdzv_endpoint or f"{options.master_addr or '127.0.0.1'}:{options.master_port or 29500}"
        ranks.hosts = options.node_rank == 0
    else:
        conf = dict(part.partition("=")[::2] for part in options.rdzv_conf.split(",") if part)
        ranks.place, ranks.identity = options.rdzv_endpoint, options.rdzv_id
        if "is_host" in conf:
            ranks.hosts = conf["is_host"].strip().lower() in ("1", "true", "t", "yes", "y")
    return ranks


def torchrun_options(args: list[str], env: dict[str, str]) -> argparse.Namespace:
    """torchrun's arguments, parsed by its own parser, which also reads PET_… from the environment.

    Raises ValueError if it would refuse them.
    """
    given = {name: value for name, value in env.items() if name.startswith("PET_")}
    with mock.patch.dict(os.environ, given):
        parser = get_args_parser()
    parser.set_defaults(master_addr=given.get("PET_MASTER_ADDR", ""))  # so "" means that none was given
    with mock.patch.object(parser, "error", refuse), mock.patch.object(parser, "print_help", lambda: refuse("--help")):
        return parser.parse_args(args)


def torchruns_own(args: list[str]) -> tuple[str, ...]:
    """The arguments that are torchrun's by their names, in either spelling: --master-port=…, --master_port."""
    known = {name for action in get_args_parser()._actions for name in action.option_strings if name.startswith("--")}
    return tuple(word for word in args if word.partition("=")[0] in known - {"--help"})


def refuse(message: str) -> None:
    raise ValueError(message)


def visible_gpus(env: dict[str, str]) -> list[str]:
    named = env.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(GPUS))))
    return [part.strip() for part in named.split(",") if part.strip()]


def meeting_place(env: dict[str, str]) -> str:
    return f"{env.get('MASTER_ADDR', '')}:{env.get('MASTER_PORT', '')}"
