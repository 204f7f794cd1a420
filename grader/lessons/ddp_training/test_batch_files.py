"""Checks of ddp_training, TODOs 14 to 18: batch files.

| TODO | achievement                        | evidence                                                   | needs          |
|------|------------------------------------|------------------------------------------------------------|----------------|
| 14   | four GPUs per node | the batch file's header; for PBS what its processes are told |              |
| 15   | all of them visible                | what the processes of a job see                            | 14             |
| 16   | a place to meet                    | address and port, in two jobs on 1 and 2 nodes             |                |
| 17   | one process for each GPU           | what each node starts, in jobs of 1 and 2 nodes            | 15, 16         |
| 18   | two nodes                          | the batch file's header                                    |                |

TODOs 14 – 18 are in ddp_training.sbatch and in ddp_training.pbs; one of the two is enough.
"""  # noqa: E501

from grader.kit import (
    LOCAL,
    batch_file,
    check_launches,
    expect,
    first_node,
    batch_header,
    is_first_node,
    stand_ins,
    todo,
)

# ---------------------------------------------------------------------------------------------------
# TODOs 14–18: the batch files, run by stand-ins of the schedulers' commands (grader/engine/jobs/)


@todo(14)
def test_todo14_gpus(student):
    for unit in student.batch_files(14):
        if unit.name.endswith(".sbatch"):
            seen = batch_header.gpus_asked(unit.text)
        else:
            student.submit(unit, 1)
            seen = batch_file.number_or_zero(student.variable("GPUS"))
            expect(
                student.variable("GPUS"),
                f"{unit.name} does not tell its processes GPUS: is it exported?",
                batch_header.GPUS,
                "no GPUS in the environment",
            )
        expect(
            seen == batch_header.GPUS,
            f"{unit.name} asks for {seen} GPU{'s' if seen != 1 else ''} per node{slip(unit)}",
            f"{batch_header.GPUS} GPUs",
            f"{seen}",
        )


def slip(unit):
    """A likely reason why a directive does not mean what was intended."""
    found = batch_header.slip(unit.text)
    return f": {found}" if found else ""


@todo(15, needs=(14,))
def test_todo15_visible(student):
    right = [str(n) for n in range(batch_header.GPUS)]
    for unit in student.batch_files(15):
        for nodes in stand_ins.JOBS:
            for ranks in student.submit(unit, nodes):
                of = f"each of its {nodes} nodes" if nodes > 1 else "the job"
                expect(
                    sorted(set(ranks.visible)) == right,
                    f"by {unit.name} the processes see GPU {', '.join(ranks.visible) or 'none'}; {of} has"
                    f" {batch_header.GPUS}",
                    f"GPUs {', '.join(right)}",
                    ", ".join(ranks.visible),
                )


@todo(16)
def test_todo16_meeting_place(student):
    for unit in student.batch_files(16):
        first, ports, slow = first_node(unit.name), [], []  # slow: names of the first node on the slow network
        for nodes in stand_ins.JOBS:
            for ranks in student.submit(unit, nodes):
                place, _, port = (ranks.address if ranks.address.strip(":") else ranks.place).rpartition(":")
                said = f"; it says: {student.said.strip().splitlines()[-1]}" if student.said.strip() else ""
                for name, value in (("MASTER_ADDR", place), ("MASTER_PORT", port)):
                    expect(
                        value,
                        f"by {unit.name} the processes are told no {name}{said}",
                        f"{name} in their environment",
                        "none",
                        hint=OCTAL if "value too great for base" in said else "",
                    )
                expect(
                    is_first_node(place) or (nodes == 1 and place in LOCAL),
                    f"by {unit.name} the processes on node {ranks.node} of {nodes} look for the others at {place}"
                    + (", which is each node itself" if place in LOCAL else f", which is not the first node{said}"),
                    f"{first}$NODE_SUFFIX" if unit.name.endswith(".sbatch") else first,
                    place,
                )
                slow += [place] if place.split(".")[0] == first else []
                expect(
                    port.isdecimal() and 1024 <= int(port) < 65536,
                    f"by {unit.name} the processes meet at port “{port}”",
                    "1024 … 65535",
                    port,
                )
                ports.append(port)
        expect(
            len(set(ports)) > 1,
            f"{unit.name} meets at port {ports[0]} in every job: two jobs with a node in common would collide",
            "a different port for each job",
            ports[0],
        )
        again = (student.submit(unit, 2, again=True)[0].address or ":").rpartition(":")[2]
        expect(
            again not in ports,
            f"{unit.name} meets at port {again} in two jobs: they differ in their numbers, {stand_ins.AGAIN} and"
            f" {stand_ins.JOBS[2]}, and not in their nodes, so by what does the port differ?",
            "a different port for each job",
            again,
        )
        expect(
            not slow or not unit.name.endswith(".sbatch"),
            f"by {unit.name} the processes look for the first node at {first}, its name on the slow"
            " network: on JURECA $NODE_SUFFIX is i",
            f"{first}$NODE_SUFFIX",
            first,
        )


OCTAL = "To bash, a number that starts with 0 is octal and has no 8 or 9: one job in twenty fails. Specify base 10."


@todo(17, needs=(15, 16))
def test_todo17_launch(student):
    for unit in student.batch_files(17):
        check_launches(student, unit)


@todo(18)
def test_todo18_nodes(student):
    for unit in student.batch_files(18):
        seen = batch_header.nodes_asked(unit.text)
        expect(
            seen == 2, f"{unit.name} asks for {seen} node{'s' if seen != 1 else ''}{slip(unit)}", "2 nodes", f"{seen}"
        )
        if "gpus" in batch_header.header(unit.text):
            a_node = batch_header.gpus_asked(unit.text)
            expect(
                a_node == batch_header.GPUS,
                f"{unit.name} asks for {a_node} GPUs per node: --gpus counts the GPUs of the whole job",
                f"{batch_header.GPUS} on each",
                f"{a_node} on each",
            )
