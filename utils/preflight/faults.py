"""What is wrong, a line each, with the mend."""

from collections import Counter
from statistics import median
from typing import Any

from utils import catalogue
from utils.interfaces import unknown
from utils.job import count

SLOW = 1 / 3  # of the median of the links of its kind: repeated measurements of a healthy link differ by less
OF_MACHINE = 1 / 2  # of what the machine's links should give to a program
CLOCK = 0.5  # seconds: more, and the times in logs and files of two nodes are in the wrong order
FULL = 5 * 2**30  # bytes
Facts = dict[str, Any]


def before_meeting(all_facts: list[Facts], login: Facts | None) -> list[str]:
    """What the ranks' facts say; the first rank of each node speaks for it."""
    nodes = [facts for facts in all_facts if facts["local_rank"] == 0]
    return [fault for node in nodes for fault in (*interface(node), *gpus(node), *disk(node))] + versions(nodes, login)


def interface(node: Facts) -> list[str]:
    found = [unknown(name, value, node["addresses"]) for name, value in node["interfaces"].items()]
    mend = "set SITE_INTERFACE in utils/site.sh, or leave this node out (--exclude)"
    return [f"{node['host']}: {wrong}: {mend}" for wrong in found if wrong]


def gpus(node: Facts) -> list[str]:
    if node["gpus"] < node["granted"]:
        were = "were" if node["granted"] > 1 else "was"
        return [
            f"{node['host']}: {count(node['granted'], 'GPU')} {were} granted, and torch sees {node['gpus']}: is its"
            f" torch ({node['versions']['torch']}) built for GPUs? nvidia-smi on that node says whether they are there"
        ]
    return []


def disk(node: Facts) -> list[str]:
    found = node["storage"]
    if "error" in found:
        return [f"{node['host']}: no checkpoint can be written: {found['error']}; free space, or choose another --out"]
    if found["free"] < FULL:
        return [f"{node['host']}: {found['free'] / 1e9:.1f} GB are free where runs are written; choose another --out"]
    return []


def versions(nodes: list[Facts], login: Facts | None) -> list[str]:
    """Those that differ from the login node's or, if it has said nothing, from most nodes'."""
    found = []
    for name in sorted({name for node in nodes for name in node["versions"]}):
        seen = [node["versions"].get(name, "none") for node in nodes]
        right = login["versions"].get(name) if login and name != "NCCL" else None
        where = "the login node" if right else "most nodes"
        right = right or Counter(seen).most_common(1)[0][0]
        for node, version in zip(nodes, seen, strict=True):
            if version != right:
                found.append(
                    f"{node['host']}: {name} {version}, on {where} {right}: all must run one environment, on a file"
                    " system that every node sees; look at PYTHONPATH and the modules there"
                )
    return found


def clock(offsets: dict[str, float]) -> list[str]:
    return [
        f"{host}: its clock is {offset:+.1f} s off the first node's: tell the centre; times in logs do not compare"
        for host, offset in offsets.items()
        if abs(offset) > CLOCK
    ]


def links(measured: list[dict[str, float]], hosts: list[str], machine: str) -> list[str]:
    """Links that are slower than others of their kind, or than the machine's should be."""
    found = []
    for kind, some in by_kind(measured, hosts).items():
        usual = median(link["bandwidth"] for link in some) if some else 0.0
        should = expected(machine, kind)
        for link in some:
            a, b = (f"rank {rank} on {hosts[rank]}" for rank in (link["a"], link["b"]))
            if link["bandwidth"] < SLOW * usual:
                against = f"{usual / 1e9:.3g} GB/s is usual {kind} nodes here"
            elif link["bandwidth"] < OF_MACHINE * should:
                against = f"{should / 1e9:.3g} GB/s is what {machine} should give {kind} nodes"
            else:
                continue
            found.append(
                f"{a} and {b}: {link['bandwidth'] / 1e9:.3g} GB/s, where {against}: leave the node out (--exclude), and"
                " tell the centre; NCCL_DEBUG=INFO shows which network is used"
            )
    return found


def by_kind(measured: list[dict[str, float]], hosts: list[str]) -> dict[str, list[dict[str, float]]]:
    kinds: dict[str, list[dict[str, float]]] = {"within": [], "between": []}
    for link in measured:
        kinds["within" if hosts[int(link["a"])] == hosts[int(link["b"])] else "between"].append(link)
    return kinds


def expected(machine: str, kind: str) -> float:
    """Bytes a second that a program gets at least from one link of a machine in utils/machines; 0 of another.

    Within a node it is the worst case, in which a device's links are divided among the others of its node.
    """
    if machine not in catalogue.names(catalogue.MACHINES):
        return 0.0
    known = catalogue.machine(machine)
    if kind == "between":
        return known.between.bandwidth * known.link_share
    return known.inside.bandwidth / max(1, known.node - 1) * known.link_share
