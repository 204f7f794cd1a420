"""resilient_training as a whole: stopped and resumed it is the run never stopped, also with dropout."""

import subprocess
import sys

import pytest
import torch

from grader.engine.judge.student_in_checks import Student
from grader.engine.lesson import lessons, todo_regions
from grader.kit import corpus, mains_on_rank, reported, together
from lesson_checks import everything

resilient = everything("resilient_training")

RUN = (
    "--epochs 3 --batch-size 12 --seq-len 8 --dim 16 --heads 2 --layers 2 --lr 1e-2 --dropout 0.2 --seed 11 --log-every"
    " 1"
).split()


@pytest.fixture(scope="module")
def solution(runner):
    return Student(runner, "resilient_training", lessons.units("resilient_training", "solutions"), [])


def mains(student, world, runs):
    job = student.call(
        mains_on_rank,
        world=world,
        group=None,
        common=True,
        runs=runs,
        data=corpus(student),
        keep=("forwards", "weights"),
    )
    return [[mine[number] for mine in job.evidence if mine[number]] for number in range(len(runs))], job


def test_with_dropout_the_same_ranks_go_on_to_the_last_bit(solution):
    """Stopped in mid-epoch and at an epoch's end: losses, weights, and the record."""
    stops = [[2, [*RUN, "--out", "run", "--max-steps", str(steps), "--save-every", "1"]] for steps in (3, 4, 6)]
    runs, job = mains(solution, 2, [[2, [*RUN, "--max-steps", "6"]], *stops])
    for straight, *parts in zip(*runs, strict=True):
        assert resilient.losses(straight) == [loss for part in parts for loss in resilient.losses(part)]
    whole_run, last = together(runs[0], "weights"), together(runs[-1], "weights")
    assert all(torch.equal(whole_run[name], last[name]) for name in whole_run)
    right = [line for line in reported(job, "out-0") if line["kind"] == "step"]
    assert [line for line in reported(job, "run") if line["kind"] == "step"] == right


def test_before_todo_1_it_trains_and_saves(solution):
    start = Student(
        solution.runner,
        "resilient_training",
        [u._replace(text=todo_regions.compose(u.source)) for u in solution.units],
        [],
    )
    (ranks, again), job = mains(start, 2, [[2, [*RUN, "--max-steps", "2", "--save-every", "1"]]] * 2)
    assert resilient.losses(ranks[0]) == resilient.losses(again[0])
    assert {"out-0/step-1/.metadata", "out-0/step-2/.metadata", "out-0/model-final.pt"} <= set(job.files)


def test_a_signal_after_its_end_does_not_make_it_fail(tmp_path):
    """A job's last signal may come while Python ends: it has restored the default by then, which is to be killed."""
    flags = [*RUN, "--data", "random", "--max-steps", "1", "--device", "cpu", "--out", str(tmp_path / "run")]
    script = f"""
import runpy, signal, sys
sys.argv[1:] = {flags}
sys.path.insert(0, ".")
runpy.run_path("solutions/train/resilient_training.py", run_name="__main__")
for number in (signal.SIGUSR1, signal.SIGTERM):
    assert signal.getsignal(number) == signal.SIG_IGN
    signal.raise_signal(number)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=lessons.COURSE, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
