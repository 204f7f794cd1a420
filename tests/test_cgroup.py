"""Control groups: found in either version, and what they really limit, where this machine lets us make one."""

import os
import subprocess
import textwrap

import pytest

from grader.engine.lesson import lessons
from grader.engine.ranks import pulse
from grader.engine.ranks.runner import Runner
from grader.engine.ranks.job import Job
from grader.engine.walls import cgroup, sandbox

MIB = 1 << 20
WALLS = sandbox.NONE if sandbox.lacking(sandbox.BUBBLEWRAP) else sandbox.BUBBLEWRAP


def tree(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize("parent", ["a.slice", "a.slice/me.scope"])
def test_version_2_beside_us_or_below_us(tmp_path, parent):
    tree(
        tmp_path,
        {"a.slice/me.scope/cgroup.subtree_control": "", f"{parent}/cgroup.subtree_control": "cpu memory pids\n"},
    )
    (folder,) = cgroup.make(5, 7, tmp_path, "0::/a.slice/me.scope\n").folders
    assert folder.parent == tmp_path / parent
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"memory.max": "5", "pids.max": "7"}


def test_version_1_has_a_folder_for_each(tmp_path):
    for name in ("memory/a", "pids"):
        (tmp_path / name).mkdir(parents=True)
    group = cgroup.make(5, 7, tmp_path, "5:cpu,cpuacct:/x\n4:memory:/a\n3:pids:/\n0::/\n")
    assert [folder.parent for folder in group.folders] == [tmp_path / "memory" / "a", tmp_path / "pids"]
    assert [path.read_text() for folder in group.folders for path in folder.iterdir()] == ["5", "7"]


@pytest.mark.parametrize("own", ["0::/nowhere\n", "0::/\n", "4:memory:/gone\n3:pids:/\n", ""])
def test_none_where_it_may_not_be(tmp_path, own):
    tree(tmp_path, {"cgroup.subtree_control": "cpu\n", "pids/tasks": ""})
    assert cgroup.make(5, 7, tmp_path, own) is None
    assert not list(tmp_path.rglob("workbook-*"))


def test_what_a_killed_worker_has_left_goes(tmp_path):
    tree(tmp_path, {"cgroup.subtree_control": "memory pids"})
    gone = subprocess.Popen(["true"])
    gone.wait()
    (left := tmp_path / f"workbook-{gone.pid}-x").mkdir()
    (ours := tmp_path / f"workbook-{os.getpid()}-y").mkdir()
    assert cgroup.make(5, 7, tmp_path, "0::/\n") and not left.exists() and ours.exists()


@pytest.fixture
def held(monkeypatch):
    """A runner in a sandbox whose control group alone holds it back: the judge's own counts and the limits of a
    process are far away.
    """
    probe = cgroup.make(MIB, 1)
    if probe is None:
        pytest.skip("control groups cannot be made here")
    probe.remove()
    for name in ("TOTAL_MEMORY", "TOTAL_PROCESSES", "TOTAL_THREADS", "MEMORY", "PROCESSES"):
        monkeypatch.setattr(sandbox, name, 1 << 50)
    monkeypatch.setattr(sandbox, "KEPT_MEMORY", 900 * MIB)
    monkeypatch.setattr(sandbox, "KEPT_PROCESSES", 60)
    monkeypatch.setattr(pulse, "SILENT_CPU", pulse.TOTAL_CPU)  # to be given so much memory may take a busy machine long
    with Runner() as outside, Runner(outside, WALLS, lessons.COURSE, ["tests.on_ranks"]) as inside:
        yield inside
        folders = inside.server.sandbox.group.folders
        assert "control groups" in inside.server.sandbox.guards.limits
    assert not [folder for folder in folders if folder.exists()]


def run(runner, body):
    text = (
        "import os, time\ndef work(rank, world):\n" + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"
    )
    return runner.run(
        Job(
            [lessons.Unit("train/x.py", text, "")],
            module="tests.on_ranks",
            function="tests.on_ranks:work",
            world=1,
            group=False,
        )
    )


def test_the_kernel_counts_processes_and_memory(held):
    forks = run(
        held,
        """
        started = 0
        try:
            while started < 200:
                if os.fork() == 0:
                    time.sleep(10_000)
                    os._exit(0)
                started += 1
        except OSError as error:
            return [started, error.strerror]
        """,
    )
    assert forks.fault is None, forks.fault.message
    started, why = forks.evidence[0]
    assert why == "Resource temporarily unavailable" and 30 < started < 60, forks.evidence
    few = run(held, "return len(bytes(100 << 20))")
    assert few.fault is None, few.fault.message
    assert few.evidence == [100 * MIB]
    much = run(held, "return len(b'x' * (2000 << 20))")
    assert much.evidence == [None] and "SIGKILL" in much.fault.message, much.fault
