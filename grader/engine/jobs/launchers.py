"""Stand-ins for srun and mpiexec: run the command once for each task, one after the other.

Called as `launchers.py srun ARGS…`. It imports almost nothing, because a check starts it several times.
"""

import os
import signal
import sys

# Options that take no value.
ALONE = {
    "exclusive",
    "overlap",
    "label",
    "l",
    "unbuffered",
    "u",
    "exact",
    "verbose",
    "v",
    "quiet",
    "Q",
    "multi-prog",
    "overcommit",
    "O",
    "kill-on-bad-exit",
    "K",
    "pty",
    "envall",
    "genvall",
    "line-buffer",
}


def parse(args: list[str]) -> tuple[dict[str, str], list[str]]:
    """Options by their name without dashes, and the command."""
    options: dict[str, str] = {}
    rest = list(args)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("--") and name[1:].isdecimal():
            name, equals, value = name[0], "=", name[1:]  # -n4
        if not equals and name not in ALONE and rest:
            value = rest.pop(0)
        options[name] = value
    return options, rest


def srun(options: dict[str, str], nodes: int, a_node: int) -> list[tuple[int, dict]]:
    """For each task, its node and its environment."""
    named = options.get("nodelist", options.get("w", ""))
    first = node_number(named.partition(",")[0]) if named else 0
    nodes = int(options.get("nodes", options.get("N", nodes - first if named else nodes)))
    tasks = int(options.get("ntasks", options.get("n", 0))) or int(options.get("ntasks-per-node", a_node)) * nodes
    a_node = -(-tasks // nodes)
    # From 26.05 on, Slurm may deal task numbers in another order than it lists the nodes in.
    order = [int(node) for node in os.environ.get("STAND_IN_ORDER", "").split(",") if node] or range(nodes)
    return [
        (
            first + order[task // a_node],
            dict(
                SLURM_PROCID=task,
                SLURM_LOCALID=task % a_node,
                SLURM_NODEID=order[task // a_node],
                SLURM_NTASKS=tasks,
                SLURM_STEP_NUM_TASKS=tasks,
                SLURM_STEP_ID=0,
                SLURM_STEP_GPUS=os.environ.get("SLURM_JOB_GPUS", ""),
            ),
        )
        for task in range(tasks)
    ]


def node_names() -> list[str]:
    with open(os.environ["STAND_IN_ROOT"] + "/nodes") as nodes:
        return nodes.read().split()


def node_number(name: str) -> int:
    return node_names().index(name)


def mpiexec(options: dict[str, str], nodes: int, _: int) -> list[tuple[int, dict]]:
    tasks = int(options.get("n", options.get("np", 1)))
    a_node = int(options.get("ppn", options.get("npernode", -(-tasks // nodes))))
    return [
        (
            min(task // a_node, nodes - 1),
            dict(
                PMI_RANK=task,
                PMI_SIZE=tasks,
                PALS_RANKID=task,
                PALS_LOCAL_RANKID=task % a_node,
                PALS_NODEID=task // a_node,
            ),
        )
        for task in range(tasks)
    ]


def main(program: str, args: list[str]) -> int:
    options, command = parse(args)
    if not command:
        print(f"{program}: no command", file=sys.stderr)
        return 1
    launch = srun if program == "srun" else mpiexec
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # tasks are children of a daemon, not of the shell that ignores signals
    worst = 0
    for node, variables in launch(options, int(os.environ["STAND_IN_NODES"]), int(os.environ["STAND_IN_TASKS"])):
        env = {**os.environ, **{name: str(value) for name, value in variables.items()}, "STAND_IN_NODE": str(node)}
        if program == "srun":
            env["SLURMD_NODENAME"] = env["SLURM_TOPOLOGY_ADDR"] = node_names()[node]
        code = os.spawnvpe(os.P_WAIT, command[0], command, env)
        if code == 127 and command[0] != "bash":  # the shell reports the error itself
            print(f"{program}: {command[0]}: command not found", file=sys.stderr)
        worst = max(worst, abs(code))
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
