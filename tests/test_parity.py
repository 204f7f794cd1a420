"""The law of the course: the parallel run is the serial run. And the scripts run as typed."""

import json
import math
import os
import subprocess
import sys

import pytest

from grader import test_ddp_training as ddp
from grader.engine import lessons, regions
from grader.engine.checks import Student
from grader.engine.launch import Engine

FIFTY = [*ddp.ARGV[: ddp.ARGV.index("--epochs")], "--epochs", "25", "--max-steps", "50", "--batch-size", "12", "--seq-len", "8", "--dim", "16",
         "--heads", "2", "--layers", "2", "--optimizer", "adamw", "--lr", "2e-3", "--seed", "11"]


@pytest.fixture(scope="module")
def engine():
    with Engine() as warm:
        yield warm


@pytest.fixture(scope="module")
def solution(engine):
    return Student(engine, "ddp_training", lessons.units("ddp_training", "solutions"), [])


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_fifty_steps_of_adamw(solution, world):
    serial = ddp.training(solution.serial(FIFTY, ddp.corpus()).evidence[0])
    ranks = [ddp.training(evidence) for evidence in solution.run(FIFTY, ddp.corpus(), world=world).evidence]
    assert len(serial) == 50
    assert serial[49][1][0] < serial[0][1][0] - 0.1  # it learns: losses that stand still would agree, too
    for step in range(50):
        loss = sum(steps[step][1][0] for steps in ranks) / world
        assert math.isclose(loss, serial[step][1][0], rel_tol=1e-4), f"step {step + 1}"
        assert sorted(row for steps in ranks for row in steps[step][0]) == sorted(serial[step][0])


def test_the_start_is_the_baseline(engine, solution):
    """Before TODO 1 the exercise runs, and on one process it is the baseline."""
    start = Student(engine, "ddp_training", [u._replace(text=regions.compose(u.source)) for u in solution.units], [])
    right = ddp.reported(ddp.serial_run(solution))
    assert ddp.reported(ddp.whole_run(start, 1)) == right
    assert ddp.whole_run(start, 2).fault is None


def typed(*command, cwd=lessons.COURSE, **environment):
    """Run a command as a student types it, with nothing on PYTHONPATH."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")}
    return subprocess.run(command, cwd=cwd, env={**env, "OMP_NUM_THREADS": "1", **environment}, capture_output=True, text=True, timeout=300)


SHORT = ("--data", "random", "--max-steps", "3", "--dim", "16", "--heads", "2", "--layers", "1", "--seq-len", "16")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--local-addr=127.0.0.1")


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("script", ["train/single_gpu_training.py", "train/ddp_training.py", "solutions/train/ddp_training.py"])
def test_python_runs_it_alone(script, tmp_path):
    done = typed(sys.executable, script, *SHORT, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "test loss" in done.stdout


def test_torchrun_runs_it_on_two_processes(tmp_path):
    one = typed(sys.executable, "train/single_gpu_training.py", *SHORT, "--out", str(tmp_path / "one"))
    two = typed(*TORCHRUN, "--nproc-per-node=2", "solutions/train/ddp_training.py", *SHORT, "--out", str(tmp_path / "two"))
    assert one.returncode == two.returncode == 0, one.stderr + two.stderr
    assert two.stdout.count("test loss") == 1
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)


def test_a_batch_that_does_not_divide_is_refused_in_one_line(tmp_path):
    done = typed(*TORCHRUN, "--nproc-per-node=2", "solutions/train/ddp_training.py", *SHORT, "--batch-size", "7", "--out", str(tmp_path))
    lines = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1 and "--batch-size 7" in lines[0]


def test_from_another_folder_and_under_slurm_names(tmp_path):
    done = typed(sys.executable, str(lessons.COURSE / "solutions/train/ddp_training.py"), *SHORT, cwd=tmp_path,
                 SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_STEP_NUM_TASKS="1")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/ddp_training/model-final.pt").exists()
