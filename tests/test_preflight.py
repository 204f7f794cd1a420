"""Preflight on the tests' Slurm: healthy, and with a fault on one of two nodes, planted in that node's environment."""

import subprocess
import sys

import pytest

import slurm
from course_copy import Course
from utils.preflight import faults, links
from utils.preflight.__main__ import numbered

on_slurm = pytest.mark.skipif(bool(slurm.MISSING), reason=f"{', '.join(slurm.MISSING)} not found")
SECOND = slurm.NODES[1]
OPTIONS = [f"--nodelist={slurm.NODES[0]},{SECOND}", "--nodes=2", "--gres=gpu:2", "--cpus-per-task=2"]
# Python reads it before anything else: here torch is another one, there rank 3 needs long to send to rank 1.
OTHER_TORCH = "import torch\ntorch.__version__ = '2.9.1+elsewhere'\n"
SLOW_LINK = """\
import time
import torch.distributed as dist
send = dist.send
def slow_send(tensor, dst, *more):
    time.sleep(tensor.nbytes / 5e6 if (dist.get_rank(), dst) == (3, 1) else 0)
    return send(tensor, dst, *more)
dist.send = slow_send
"""


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return Course(tmp_path_factory.mktemp("course") / "course")


def preflight(cluster, course, *args):
    job, code = cluster.job(
        *OPTIONS, "sbatch/preflight.sbatch", *args, cwd=course.folder, WORKBOOK_PYTHON=sys.executable, SITE_GPUS=""
    )
    # The tests' GPUs are names only, and preflight rightly says of each node that torch sees none.
    lines = (course.folder / f"preflight-{job}.out").read_text().splitlines()
    return code, lines, [line for line in lines if line.startswith("✗") and "GPUs were granted" not in line]


@on_slurm
def test_a_healthy_machine(cluster, course):
    code, lines, wrong = preflight(cluster, course)
    assert not wrong and code == 1, lines  # 1: the GPUs
    assert sum("2 GPUs were granted, and torch sees 0" in line for line in lines) == 2, lines
    for node, ranks in zip(slurm.NODES, ("0 and 1", "2 and 3")):
        (line,) = [line for line in lines if line.startswith(f"{node}: ranks {ranks} on CPU, address 127.")]
        assert "torch " in line and "clock " in line and "MB/s" in line
    assert any(line.startswith("within nodes: 2 links, latency") for line in lines)
    assert any(line.startswith("between nodes: 2 links, latency") for line in lines)


@on_slurm
@pytest.mark.parametrize(
    ("plant", "starts"),
    [
        ("interface", f"✗ {SECOND}: GLOO_SOCKET_IFNAME=ib7 names no interface that is up; it has lo"),
        ("torch", f"✗ {SECOND}: torch 2.9.1+elsewhere, on most nodes "),
        ("link", f"✗ rank 1 on {slurm.NODES[0]} and rank 3 on {SECOND}: "),
        ("disk", f"✗ {SECOND}: no checkpoint can be written: No space left on device"),
    ],
)
def test_a_planted_fault_is_one_line(cluster, course, tmp_path, plant, starts):
    env, args = {"PYTHONPATH": str(tmp_path)}, ["--out", str(tmp_path / "run")]
    if plant == "interface":
        env = {"GLOO_SOCKET_IFNAME": "ib7"}
    elif plant == "disk":  # rank 2 is the first of the second node
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / ".preflight-2").symlink_to("/dev/full")
    else:
        (tmp_path / "sitecustomize.py").write_text(OTHER_TORCH if plant == "torch" else SLOW_LINK)
    with cluster.planted(SECOND, **env):
        code, lines, wrong = preflight(cluster, course, *args)
    assert code == 1 and len(wrong) == 1 and wrong[0].startswith(starts), lines


@on_slurm
def test_the_command_compares_with_the_login_node(cluster, course):
    done = subprocess.run(
        course.command("preflight", "--nodes", "2", "--batch", " ".join(OPTIONS[:1] + OPTIONS[2:])),
        cwd=course.folder,
        env=course.environment(
            WORKBOOK_PYTHON=sys.executable, SLURM_CONF=cluster.env["SLURM_CONF"], SBATCH_ACCOUNT="mine"
        ),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "$ sbatch --nodes=2" in done.stdout and "--login runs/preflight/login.json" in done.stdout, done
    assert done.returncode == 1 and "between nodes: 2 links" in done.stdout, done


def node(**other):
    healthy = {
        "host": "n1",
        "local_rank": 0,
        "gpus": 4,
        "granted": 4,
        "interfaces": {"NCCL_SOCKET_IFNAME": "hsn", "GLOO_SOCKET_IFNAME": "hsn0"},
        "addresses": {"lo": "127.0.0.1", "hsn0": "10.0.0.1"},
        "versions": {"torch": "2.13.0"},
        "storage": {"free": 1e12, "speed": 1e9},
    }
    return healthy | other


def test_what_faults_are():
    assert faults.before_meeting([node(), node(host="n2")], {"versions": {"torch": "2.13.0"}}) == []
    # NCCL takes a prefix of an interface's name, gloo its whole name only
    assert len(faults.interface(node(interfaces={"GLOO_SOCKET_IFNAME": "hsn"}))) == 1
    (line,) = faults.before_meeting([node()], {"versions": {"torch": "2.11.0"}})
    assert "torch 2.13.0, on the login node 2.11.0" in line
    assert len(faults.gpus(node(gpus=3))) == len(faults.disk(node(storage={"free": 1e9, "speed": 1}))) == 1
    assert faults.clock({"n1": 0.0, "n2": -2.0})[0].startswith("n2: its clock is -2.0 s off")


def test_a_link_that_is_as_slow_as_all_others_is_found_by_the_machines_own_speed():
    hosts = ["a", "b"]
    slow = [{"a": 0, "b": 1, "latency": 1e-5, "bandwidth": 1e9}]
    assert faults.links(slow, hosts, "") == [] and len(faults.links(slow, hosts, "jureca")) == 1


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([0], "rank 0"), ([0, 1], "ranks 0 and 1"), ([4, 5, 6, 7], "ranks 4-7"), ([0, 2, 4], "ranks 0, 2 and 4")],
)
def test_numbers_of_ranks(ranks, words):
    assert numbered(ranks) == words


def test_one_is_one():
    (line,) = faults.gpus(node(granted=1, gpus=0))
    assert "1 GPU was granted, and torch sees 0" in line


def test_pairs():
    assert links.pairs(["a", "a", "b", "b"]) == [(0, 1), (2, 3), (0, 2), (1, 3)]
    assert links.pairs(["a", "b", "c"]) == [(0, 1), (1, 2), (2, 0)]
