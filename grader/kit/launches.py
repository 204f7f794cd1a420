"""What a batch file starts on each node: every GPU has one process, all are ranks of one world, and the script gets the
user's arguments as they were."""

import shlex

from grader.engine.jobs import batch_file, batch_header, stand_ins
from grader.engine.judge.student_in_checks import Student
from grader.engine.judge.verdict import Wrong, count_of, expect
from grader.engine.lesson.lessons import Unit

LOCAL = ("localhost", "127.0.0.1")


def is_first_node(place: str) -> bool:
    """By its name, by its name on InfiniBand, by either in full, or by its address."""
    name = place.split(".")[0]
    return name.removesuffix("i") in stand_ins.FIRST or place in map(stand_ins.ADDRESSES.get, stand_ins.FIRST)


def first_node(name: str) -> str:
    """The first node of a job of the batch file of this name."""
    return stand_ins.NODES[name.rpartition(".")[2]][0]


def check_launches(student: Student, unit: Unit) -> None:
    """On one node and on two; arguments with blanks last, for they fail in whatever fails otherwise, too."""
    starts = {nodes: student.submit(unit, nodes) for nodes in stand_ins.JOBS}
    for nodes, mine in starts.items():
        check_launch(unit.name, mine, nodes)
    check_ports(unit.name, [*starts.values(), student.submit(unit, 2, again=True)])
    for nodes, mine in starts.items():
        check_blanks(unit.name, mine, nodes)


def check_launch(name: str, starts: list[batch_file.Ranks], nodes: int) -> None:
    """Every GPU of every node has one process, and all processes are ranks of one world."""
    job = f"{name}, on {count_of(nodes, 'node')}"
    check_call(job, name, starts)
    for node in range(nodes):
        check_node(job, starts, node)
    world = nodes * batch_header.GPUS
    for ranks in starts:
        expect(
            ranks.world == world,
            f"{job}: node {ranks.node} believes in a world of {ranks.world} ranks, {world} are started: is it told how "
            "many nodes there are?",
            f"{world} ranks",
            f"{ranks.world}",
        )
    if all(ranks.ranks is not None for ranks in starts):
        check_ranks(job, starts, world)
    else:
        check_rendezvous(job, starts)
    if nodes > 1:
        check_place(job, starts, first_node(name))


def check_call(job: str, name: str, starts: list[batch_file.Ranks]) -> None:
    """torchrun is called as it can be, for the script, with the batch file's arguments."""
    for ranks in starts:
        expect(
            not ranks.refused,
            f"{job}: torchrun refuses its arguments: {ranks.refused}",
            "a call that torchrun accepts",
            ranks.refused,
        )
        expect(
            not ranks.behind,
            f"{job}: {ranks.behind[0].partition('=')[0] if ranks.behind else ''} stands after the script, so torchrun"
            " hands it to the script, and does not read it",
            "torchrun's arguments before the script",
            shlex.join(ranks.behind),
        )
    lesson, _, kind = name.removeprefix("sbatch/").rpartition(".")
    scripts = {ranks.script for ranks in starts}
    expect(
        scripts == {f"train/{lesson}.py"},
        f"{job}: the script started is not train/{lesson}.py in the course's folder",
        f"train/{lesson}.py",
        ", ".join(sorted(scripts)),
    )
    args = stand_ins.ARGS[kind]
    for ranks in starts:
        words = " ".join(ranks.args).split()
        expect(
            holds(words, " ".join(args).split()) and {"--size", "--out"} <= set(words),
            f"{job}: the script on node {ranks.node} is not given the "
            "batch file's arguments. In bash -c '…' the first argument is the shell's name, and the script's arguments"
            " follow it",
            '"$@": --size gpu --out … ' + shlex.join(args),
            shlex.join(ranks.args) or "no arguments",
        )


def check_blanks(name: str, starts: list[batch_file.Ranks], nodes: int) -> None:
    """What the user gave as one argument is one."""
    job = f"{name}, on {count_of(nodes, 'node')}"
    args = stand_ins.ARGS[name.rpartition(".")[2]]
    for ranks in starts:
        expect(
            holds(ranks.args, args),
            f"{job}: the script on node {ranks.node} is not given the arguments as they were: one has blanks in it, and"
            ' only "$@", in quotes, keeps it one',
            shlex.join(args),
            shlex.join(ranks.args),
        )


def holds(given: list[str], args: list[str]) -> bool:
    """Whether `args` are among those given, one after the other."""
    return any(given[k : k + len(args)] == args for k in range(len(given)))


def check_node(job: str, starts: list[batch_file.Ranks], node: int) -> None:
    here = [ranks for ranks in starts if ranks.node == node]
    expect(
        here,
        f"{job}: node {node} starts nothing, its {batch_header.GPUS} GPUs are idle. What should run on each node goes"
        " through srun or mpiexec",
        "a torchrun on each node",
        f"started on nodes {sorted({ranks.node for ranks in starts})} only",
    )
    count = sum(ranks.processes for ranks in here)
    how = f"{len(here)} × {here[0].how}"
    expect(
        count == batch_header.GPUS,
        f"{job}: node {node} starts {count} process{'es' if count != 1 else ''} ({how}) for {batch_header.GPUS} GPUs",
        f"{batch_header.GPUS} processes on each node",
        f"{count} by {how}",
    )


def check_ranks(job: str, starts: list[batch_file.Ranks], world: int) -> None:
    """Each rank is started once."""
    for k, ranks in enumerate(starts):
        for other in starts[k + 1 :]:
            twice = sorted(set(ranks.ranks) & set(other.ranks))
            if twice:
                raise Wrong(
                    f"{job}: nodes {ranks.node} and {other.node} both start rank {twice[0]}. A node's number is"
                    " known on that node only; outside of single quotes the first node expands it, for all",
                    "each rank once",
                    f"rank {twice[0]} twice",
                )
    missing = sorted(set(range(world)) - {rank for ranks in starts for rank in ranks.ranks})
    expect(not missing, f"{job}: no process is rank {missing[:1]}", f"ranks 0 to {world - 1}", f"missing: {missing}")


def check_place(job: str, starts: list[batch_file.Ranks], first: str) -> None:
    """All nodes meet on the first one."""
    places = {ranks.place for ranks in starts}
    expect(
        len(places) == 1 and all(places),
        f"{job}: the nodes do not meet in one place",
        "one address and port",
        ", ".join(sorted(places)),
    )
    place = places.pop().rpartition(":")[0]
    expect(
        is_first_node(place),
        f"{job}: the nodes look for each other at {place}, which is not the first node",
        first,
        place,
    )


def check_ports(name: str, jobs: list[list[batch_file.Ranks]]) -> None:
    """Two jobs that may have a node in common do not meet at one port. A rendezvous has an id for that."""
    ports = [
        {ranks.place.rpartition(":")[2] for ranks in starts if ranks.place and not ranks.identity} for starts in jobs
    ]
    met = set.union(*ports)
    expect(
        len(met) != 1 or sum(map(bool, ports)) < 2,
        f"{name}: torchrun meets at port {', '.join(met)} in every job, so two jobs with a node in common would"
        " collide: is it told MASTER_PORT?",
        '--master-port="$MASTER_PORT", or another way to the job\'s own port',
        f"port {', '.join(met)} in jobs {', '.join(map(str, (*stand_ins.JOBS.values(), stand_ins.AGAIN)))}",
    )


def check_rendezvous(job: str, starts: list[batch_file.Ranks]) -> None:
    """torchrun's own way of assigning ranks (--rdzv-backend=c10d)."""
    identities = {ranks.identity for ranks in starts}
    expect(
        len(identities) == 1,
        f"{job}: each node has its own rendezvous id, so the nodes never meet",
        "one --rdzv-id for all",
        ", ".join(sorted(identities)),
    )
    told = {ranks.node: ranks.hosts for ranks in starts}
    if any(hosts is not None for hosts in told.values()):
        hosts = sorted(node for node, is_host in told.items() if is_host)
        expect(
            hosts == [0],
            f"{job}: the host of the rendezvous is node {', '.join(map(str, hosts)) or 'none'}; it must be the first"
            " node only. In double quotes the first node answers the question, for all",
            "node 0",
            hosts,
        )
