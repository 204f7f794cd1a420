"""Checks of ddp_training, TODOs 1, 2, 3 and 13: process group.

| TODO | achievement                        | evidence                                                   | needs          |
|------|------------------------------------|------------------------------------------------------------|----------------|
| 1    | one process group                  | setup() on 2 and 3 ranks: a sum over the ranks; the backend |                |
| 2    | rank, local rank, world size       | what setup() returns on 1 × 3 and 2 × 1 (nodes × ranks)    | 1              |
| 3    | its own device | the same, where nodes seem to have GPUs                    | 1, 2           |
| 13   | the group is left; the run is the serial run | whole runs on 1, 2, 3 and 4 ranks                | 1 – 12         |
"""  # noqa: E501

from grader.kit import Fault, Private, count_of, expect, layouts, on_nodes, same_run, todo

from .common import LAYOUTS, serial_run, whole_run
from .ranks import setup_on_rank

# ---------------------------------------------------------------------------------------------------
# TODOs 1–3: setup()


def set_up(student, world, **how):
    """setup() on ranks, each with a number that the others do not know. Returns the run, and the sum over all ranks."""
    draw = student.draw("setup", world)
    numbers = [draw.randrange(1 << 40) for _ in range(world)]
    return student.call(setup_on_rank, world=world, group=False, mine=Private(numbers), **how), sum(numbers)


@todo(1)
def test_todo1_process_group(student):
    for nodes, world in (*LAYOUTS, (1, 1)):
        ranks, total, events = joined(student, world=world, nodes=nodes)
        for rank, seen in enumerate(ranks):
            elsewhere = next((e.get("elsewhere") for e in events[rank] if e["e"] == "joins"), None)
            expect(
                not elsewhere,
                f"rank {rank} looks for the others at {elsewhere}, not where the environment says: another job, or"
                " a second node, could never meet there",
                "MASTER_ADDR and MASTER_PORT, which init_process_group reads itself",
                elsewhere,
                rank,
            )
            expect(
                seen["ranks"] == world,
                f"rank {rank}'s group has {seen['ranks']} ranks, not {world}",
                world,
                seen["ranks"],
                rank,
            )
            expect(
                seen["sum"] in (total, None),
                "a sum over the group does not contain every rank once",
                total,
                seen["sum"],
                rank,
            )
    for nodes, gpus in ((1, 2), (2, 1)):
        _, _, events = joined(student, world=2, nodes=nodes, gpus=gpus)
        asked = next(iter(backends(events[:1])), "none")
        where = "a machine with GPUs" if nodes == 1 else "nodes with a GPU each"
        expect("nccl" in asked or asked == "None", f"on {where} the group does not use NCCL", "nccl", asked, 0)


def joined(student, world, **how):
    """What each rank found, the sum, and the events, where each must have joined a group. Later errors belong to
    TODOs 2 and 3.
    """
    total = None
    try:
        run, total = set_up(student, world, **how)
        ranks, events = run.evidence, run.events
    except Fault as fault:
        events = fault.events
        expect(
            how.get("gpus") or not any("nccl" in backend for backend in backends(events)),
            "without GPUs the group uses NCCL: torch can have NCCL where no GPU is, on a login node say",
            "gloo",
            "nccl",
        )
        # Joining takes all ranks: one speaks for all.
        group = next((e["world"] for mine in events for e in mine if e["e"] == "joined"), None)
        if group is None and not (fault.cause == "crash" and "process group" in fault.message):
            raise  # it failed before that
        ranks = [{"joined": group is not None, "ranks": group, "sum": None}] * world
    for rank, seen in enumerate(ranks):
        expect(seen["joined"], f"after setup() rank {rank} is in no process group", "a process group", "none", rank)
    return ranks, total, events


def backends(events):
    """The backends that the ranks have asked for."""
    return [e["detail"] for mine in events for e in mine if e.get("op") == "init_process_group"]


@todo(2, needs=(1,))
def test_todo2_identifiers(student):
    alike = [(nodes, world // nodes) for nodes, world in LAYOUTS] + layouts(student.draw("layouts"))[1:]
    told = {
        (a_node,) * nodes: f"{count_of(nodes, 'node')} with {count_of(a_node, 'rank')}{' each' * (nodes > 1)}"
        for nodes, a_node in alike
    }
    for sizes, layout in (told | {(1, 2): "a node with 1 rank and one with 2"}).items():
        world, places = sum(sizes), [place for size in sizes for place in range(size)]
        for rank, seen in enumerate(set_up(student, world, nodes=sizes)[0].evidence):
            for name, right in (("rank", rank), ("local_rank", places[rank]), ("world_size", world)):
                expect(
                    not isinstance(seen[name], str),
                    f"{name} is text, like everything in os.environ",
                    right,
                    repr(seen[name]),
                    rank,
                )
                hint = UNEQUAL if sizes == (1, 2) else ""
                what = f"on {layout}, {name} of rank {rank} is wrong"
                expect(seen[name] == right, what, right, seen[name], rank, hint)


UNEQUAL = "How many ranks other nodes have does not matter here. Which program counts the processes of this node?"


@todo(3, needs=(1, 2))
def test_todo3_device(student):
    for rank, seen in enumerate(set_up(student, 3)[0].evidence):
        expect(seen["device"] == "cpu", "without GPUs the device is not the CPU", "cpu", seen["device"], rank)
    drawn = [(nodes, gpus, gpus) for nodes, gpus in layouts(student.draw("layouts"))]
    for nodes, a_node, gpus in student.several([*drawn, (2, 2, 3)], but=drawn):  # the last has more GPUs than ranks
        ranks = set_up(student, nodes * a_node, nodes=nodes, gpus=gpus)[0].evidence
        layout = f"{nodes} × {gpus} (nodes × GPUs)" + f", {a_node} ranks on each node" * (a_node < gpus)
        for rank, seen in enumerate(ranks):
            right = f"cuda:{rank % a_node}"
            expect(
                seen["device"] == right, f"on {layout}, rank {rank} takes the wrong device", right, seen["device"], rank
            )
        for rank, seen in enumerate(ranks):
            right = f"cuda:{rank % a_node}"
            expect(
                seen["default"] == right,
                f"on {layout}, rank {rank} puts whatever names no device on {seen['default']}:"
                " its own GPU must also be the process's default",
                f"{right} by default",
                seen["default"],
                rank,
                hint="The device itself is right. Which call of torch.accelerator makes it the process's default?",
            )


# ---------------------------------------------------------------------------------------------------
# TODO 13: leave the group; and the law of the course


@todo(13, needs=tuple(range(1, 13)))
def test_todo13_clean_up(student):
    serial = serial_run(student)
    for nodes, world in (*LAYOUTS, (2, 4), (1, 1)):
        run = whole_run(student, world, nodes)
        for rank, evidence in enumerate(run.evidence):
            expect(
                not evidence["still_in_a_group"],
                f"rank {rank} of {world} ends without leaving the process group",
                "no group",
                "a group",
                rank,
            )
        with on_nodes(nodes, world):
            same_run(serial, run, world)
