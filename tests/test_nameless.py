"""On one machine nothing depends on a name service: not even this machine's own name has to resolve."""

import os
import re
import shlex
import subprocess
import sys

import pytest

import nameless
from course_copy import Course
from grader.engine.lesson import lessons
from utils import interfaces
from utils.distributed import check_interfaces
from utils.interfaces import LOOPBACK

SMALL = (
    "--data random --epochs 1 --max-steps 2 --batch-size 12 --seq-len 16 --dim 16 --heads 2 --layers 1 --log-every 1"
    " --optimizer sgd --device cpu"
).split()
STORY = """
from grader import launch
run = launch("planted", samples=24)
print(run, (run.folder / "torchrun.log").read_text(), run.log(0), "CODE", run.code)
"""


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    made = Course(tmp_path_factory.mktemp("course") / "course")
    made.solve("ddp_training", tuple(lessons.titles("ddp_training")))
    return made


@pytest.fixture(scope="module")
def there(course, tmp_path_factory):
    """Run a command on such a machine: what it says, and the names that were asked for."""
    folder = tmp_path_factory.mktemp("machine")
    if why := nameless.missing(folder):
        pytest.skip(f"no namespaces here: {why}")
    plain = {name: value for name, value in os.environ.items() if "SOCKET_IFNAME" not in name}
    env = {**plain, **course.environment(OMP_NUM_THREADS="1", PATH=f"{os.path.dirname(sys.executable)}:/usr/bin:/bin")}
    return lambda *command, **more: nameless.run(
        list(command), folder, cwd=course.folder, env={**env, **more}, timeout=300
    )


def test_the_guides_own_line_trains(there, course):
    """torchrun itself asks for the name, for its records, but needs no answer."""
    (line,) = re.findall(r"^(torchrun .* train/ddp_training\.py) +# two$", guide(), re.MULTILINE)
    done, _ = there(*shlex.split(line), *SMALL, "--out", "runs/guide")
    assert done.returncode == 0 and "1 node, 2 ranks on CPU, gloo" in done.stdout and "test loss" in done.stdout, done
    assert "hostname" not in done.stderr.replace("The hostname of the client socket", ""), done  # gloo's look-up


def test_every_line_that_starts_torchrun_on_one_machine_is_like_it():
    """Of the scripts' docstrings and of the students' guide."""
    texts = [guide(), *(path.read_text("utf-8") for path in (lessons.COURSE / "solutions" / "train").glob("*.py"))]
    lines = [line for text in texts for line in re.findall(r"torchrun .*--nproc-per-node \d.*", text)]
    assert len(lines) > 10
    assert not [line for line in lines if "--local-addr 127.0.0.1" not in line]


def test_run_trains_and_asks_for_no_name(there, course):
    done, asked = there(*course.command("run", "ddp_training", "--nproc", "2", "--", *SMALL))
    assert done.returncode == 0 and "1 node, 2 ranks on CPU, gloo" in done.stdout and "test loss" in done.stdout, done
    assert nameless.NAME not in str(asked), asked


def test_preflight_asks_for_no_name(there, course):
    done, asked = there(*course.command("preflight"))
    assert "✓ nothing wrong was found" in done.stdout and done.returncode == 0, done
    assert nameless.NAME not in str(asked), asked


def test_a_story_of_the_notebook_asks_for_no_name(there):
    done, asked = there(sys.executable, "-c", STORY)
    assert "CODE 0" in done.stdout and "test loss" in done.stdout, done
    assert nameless.NAME not in str(asked), asked


def test_the_judge_asks_for_no_name(there, course):
    """Nor do a notebook's run_on_ranks and check: they use the same ranks."""
    done, asked = there(*course.command("check", "ddp_training/1"))
    assert done.returncode == 0 and "✓ ddp_training/1" in done.stdout, done
    assert nameless.NAME not in str(asked), asked


def test_an_interface_that_is_not_there_is_told_in_one_line(course):
    name = "GLOO_SOCKET_IFNAME"
    done = run(course, "run", "ddp_training", "--nproc", "2", "--", *SMALL, GLOO_SOCKET_IFNAME="ib0")
    assert done.returncode == 2, done
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(
        rf"error: \S+: {name}=ib0 names no interface that is up; it has .*\blo0? \(127\.0\.0\.1\).*: name one of these,"
        rf" or unset {name}",
        line,
    ), line


def test_an_interface_that_is_not_there_matters_to_nobody_who_is_alone(course):
    done = run(course, "run", "ddp_training", "--nproc", "1", "--", *SMALL, GLOO_SOCKET_IFNAME="ib0")
    assert done.returncode == 0 and "test loss" in done.stdout, done


@pytest.mark.parametrize(("on_gpu", "refused"), [(True, True), (False, False)])
def test_nccls_interface_matters_on_gpus(on_gpu, refused, monkeypatch, capsys):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    if not refused:
        return check_interfaces(on_gpu)
    with pytest.raises(SystemExit) as stop:
        check_interfaces(on_gpu)
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1 and "NCCL_SOCKET_IFNAME=ib0 names no interface" in said


@pytest.mark.parametrize(("named", "used"), [("", None), ("ib0", LOOPBACK), ("^docker", None), (LOOPBACK, None)])
def test_ranks_of_the_judge_use_no_interface_that_is_not_there(named, used, monkeypatch):
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    if named:
        monkeypatch.setenv("NCCL_SOCKET_IFNAME", named)
    found = interfaces.here()
    assert found["GLOO_SOCKET_IFNAME"] == LOOPBACK and found.get("NCCL_SOCKET_IFNAME") == used


def guide() -> str:
    return (lessons.COURSE / "docs" / "students.md").read_text("utf-8")


def run(course, *args, **env):
    return subprocess.run(
        course.command(*args),
        cwd=course.folder,
        env=course.environment(OMP_NUM_THREADS="1", **env),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=300,
    )
