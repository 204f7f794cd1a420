"""What a batch file asks for, and what its calls mean: which ranks each node would have."""

from dataclasses import dataclass

from grader.engine.jobs.header import GPUS, number
from grader.engine.jobs.stand_ins import Start

# What the calls mean


@dataclass
class Ranks:
    """What one call starts: ranks on a node, and where they meet."""

    node: int
    how: str  # in the student's words: torchrun, python
    script: str
    ranks: list[int] | None  # None: dealt out when the nodes meet
    processes: int
    world: int
    place: str  # address:port, "" if it is not said or any will do
    identity: str  # of the rendezvous, "" if there is none
    hosts: bool | None  # this node is told to be the host; None: nobody is told
    visible: list[str]
    args: list[str]  # of the script
    told: str  # MASTER_ADDR:MASTER_PORT in its environment


def started(seen: dict) -> list[Ranks]:
    return sorted((meaning(Start(**start)) for start in seen["starts"]), key=lambda ranks: ranks.node)


def meaning(start: Start) -> Ranks:
    env = start.env
    visible = [
        part.strip()
        for part in env.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(GPUS)))).split(",")
        if part.strip()
    ]
    told = f"{env.get('MASTER_ADDR', '')}:{env.get('MASTER_PORT', '')}"
    args = list(start.args)
    if start.program != "torchrun" and args[:2] == ["-m", "torch.distributed.run"]:
        args = args[2:]
    elif start.program != "torchrun":
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
        return Ranks(start.node, "python", script, [rank], 1, world, told.strip(":"), "", None, visible, rest, told)

    options, script, rest = torchrun_options(args)
    nnodes = number(options.get("nnodes", "1").partition(":")[0])
    asked = options.get("nproc-per-node", "1")
    processes = len(visible) if asked in ("gpu", "auto") else number(asked)
    if "standalone" in options or nnodes == 1 and not {"rdzv-endpoint", "master-addr"} & options.keys():
        return Ranks(
            start.node,
            "torchrun",
            script,
            list(range(processes)),
            processes,
            processes,
            "",
            "",
            None,
            visible,
            rest,
            told,
        )
    if options.get("rdzv-backend", "static") == "static":
        node_rank = number(options.get("node-rank", env.get("PET_NODE_RANK", "0")))
        place = (
            options.get("rdzv-endpoint")
            or f"{options.get('master-addr', '127.0.0.1')}:{options.get('master-port', '29500')}"
        )
        ranks = [node_rank * processes + local for local in range(processes)]
        return Ranks(
            start.node,
            "torchrun",
            script,
            ranks,
            processes,
            nnodes * processes,
            place,
            "",
            node_rank == 0,
            visible,
            rest,
            told,
        )
    conf = dict(part.partition("=")[::2] for part in options.get("rdzv-conf", "").split(",") if part)
    hosts = conf["is_host"].strip().lower() in ("1", "true", "t", "yes", "y") if "is_host" in conf else None
    return Ranks(
        start.node,
        "torchrun",
        script,
        None,
        processes,
        nnodes * processes,
        options.get("rdzv-endpoint", ""),
        options.get("rdzv-id", "none"),
        hosts,
        visible,
        rest,
        told,
    )


FLAGS = {"standalone", "no-python", "run-path", "no_python", "run_path", "m", "module"}


def torchrun_options(args: list[str]) -> tuple[dict[str, str], str, list[str]]:
    """Options by their name with dashes, the script, and its arguments."""
    options: dict[str, str] = {}
    rest = list(args)
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).lstrip("-").partition("=")
        name = name.replace("_", "-")
        if name in FLAGS:
            options[name] = ""
        else:
            options[name] = value if equals else rest.pop(0) if rest else ""
    return (options, rest[0], rest[1:]) if rest else (options, "", [])
