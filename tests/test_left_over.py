"""No process outlives what has started it: run, torchrun or a rank is killed at random moments."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from grader.engine.lesson import lessons

ENDLESS = (
    "--data random --epochs 1000 --batch-size 12 --seq-len 16 --dim 16 --heads 2 --layers 2 --log-every 1 --device cpu"
).split()
# Seconds until nothing is left. What `run` starts ends with it at any moment. A rank of plain torchrun whose launcher
# is killed while it imports torch learns of it when it has done so: two seconds, and far more on a busy machine.
LONG = {"run": 10, "torchrun": 60}
SCRIPT = lessons.COURSE / "train" / "fsdp_training.py"


def own(out: Path) -> list[psutil.Process]:
    """Processes that write to this folder: run, torchrun and its ranks."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if str(out) in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def left(out: Path) -> list[psutil.Process]:
    return [each for each in own(out) if role(each) != "run"]


def role(process: psutil.Process) -> str:
    words = " ".join(process.info["cmdline"])
    return (
        "run"
        if "grader.engine" in words
        else "torchrun"
        if "torchrun" in words or "distributed.run" in words
        else "rank"
    )


def start(how: str, out: Path) -> subprocess.Popen:
    command = {
        "run": [sys.executable, "-P", "-m", "grader.engine.commands.cli", "run", "fsdp_training", "--nproc", "2", "--"],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SCRIPT)],
    }[how]
    env = {**os.environ, "PYTHONPATH": str(lessons.COURSE), "OMP_NUM_THREADS": "1"}
    said = (out.parent / "said").open("w")
    return subprocess.Popen([*command, *ENDLESS, "--out", str(out)], env=env, stdout=said, stderr=said)


def until(true, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)  # a process table can only be asked
    return bool(true())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread looks once a second")
@pytest.mark.parametrize(
    ("how", "whom"),  # how it was started, and who of that is killed; the others see it in the same two ways
    [
        ("run", "run"),
        ("torchrun", "rank"),
        pytest.param("run", "torchrun", marks=pytest.mark.long),
        pytest.param("run", "rank", marks=pytest.mark.long),
        pytest.param("torchrun", "torchrun", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("draw", range(int(os.environ.get("KILLS", "1"))))
def test_nothing_is_left_after_kill_9(how, whom, draw, tmp_path):
    out, chance = tmp_path / "out", random.Random(f"{how}/{whom}/{draw}")
    started = start(how, out)
    try:
        assert until(lambda: any(role(each) == whom for each in own(out)), 60)
        time.sleep(chance.uniform(0, 12))  # while it imports, meets or trains: any moment is one to be killed at
        victims = [each for each in own(out) if role(each) == whom]
        assert victims, (tmp_path / "said").read_text()
        chance.choice(victims).kill()
        # `run`, if it lives, is busy with the report of what the run was; torchrun and ranks have no more to do.
        assert until(lambda: not left(out), LONG[how]), [(role(each), each.pid) for each in left(out)]
    finally:
        for each in own(out):
            each.kill()
        started.wait()


@pytest.mark.parametrize("nproc", ["1", "2"])
def test_ctrl_c_of_run_is_one_line_and_130(nproc, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-P", "-m", "grader.engine.commands.cli", "run", "fsdp_training", "--nproc", nproc, "--"]
    env = {**os.environ, "PYTHONPATH": str(lessons.COURSE), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, *ENDLESS, "--out", str(out)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    record = out / "metrics.jsonl"
    assert until(lambda: record.is_file() and record.read_text(), 90)  # a step; the first line comes before it
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of its group
    said = process.communicate(timeout=60)[0].splitlines()
    assert process.returncode == 130 and not own(out), said
    assert said[0].startswith("$ ") and re.match(r"1 node, ", said[1]) and said[2:] == ["stopped by Ctrl-C"], said
