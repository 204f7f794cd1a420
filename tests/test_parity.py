"""The law of the course: the parallel run is the serial run. And the scripts run as typed."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch

from grader.engine.judge.student_in_checks import Student
from grader.engine.lesson import lessons, todo_regions
from grader.kit import reported, same_report
from lesson_checks import everything

ddp = everything("ddp_training")
fsdp = everything("fsdp_training")
lightning = everything("lightning_training")

FIFTY = (
    "--data data --out out --epochs 25 --max-steps 50 --batch-size 12 --seq-len 8 --dim 16 --heads 2 --layers 2 "
    "--optimizer adamw --lr 2e-3 --seed 11"
).split()
WRITTEN = (".lock", "run.json", "metrics.jsonl", "model-best.pt", "model-final.pt")


@pytest.fixture(scope="module")
def solution(runner):
    return Student(runner, "ddp_training", lessons.units("ddp_training", "solutions"), [])


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_fifty_steps_of_adamw(solution, world):
    serial = ddp.training(solution.serial(FIFTY, ddp.corpus(solution)).evidence[0])
    ranks = [ddp.training(evidence) for evidence in solution.run(FIFTY, ddp.corpus(solution), world=world).evidence]
    assert len(serial) == 50
    assert serial[49][1][0] < serial[0][1][0] - 0.1  # it learns: losses that stand still would agree, too
    for step in range(50):
        loss = sum(steps[step][1][0] for steps in ranks) / world
        assert math.isclose(loss, serial[step][1][0], rel_tol=1e-4), f"step {step + 1}"
        assert sorted(row for steps in ranks for row in steps[step][0]) == sorted(serial[step][0])


def test_the_start_is_the_baseline(runner, solution):
    """Before TODO 1 the exercise runs, and on one process it is the baseline."""
    start = Student(
        runner, "ddp_training", [u._replace(text=todo_regions.compose(u.source)) for u in solution.units], []
    )
    right = reported(ddp.serial_run(solution))
    assert reported(ddp.whole_run(start, 1)) == right
    assert ddp.whole_run(start, 2).fault is None


@pytest.fixture(scope="module")
def sharded(runner):
    return Student(runner, "fsdp_training", lessons.units("fsdp_training", "solutions"), [])


ADAM = [*fsdp.ARGV, *"--layers 2 --optimizer adamw --lr 1e-2 --log-every 1".split()]  # the last of a flag counts


def mains(student, world, runs):
    """What each run left, run by run; and the job that all of them were."""
    job = student.call(fsdp.mains_on_rank, world=world, group=False, common=True, runs=runs, data=ddp.corpus(student))
    return [[mine[number] for mine in job.evidence if mine[number]] for number in range(len(runs))], job


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_strategy_is_the_serial_run(sharded, world):
    strategies = [strategy for strategy in fsdp.STRATEGIES if strategy != "hybrid" or world % 2 == 0]
    serial = fsdp.serial_run(sharded, ADAM)
    right = fsdp.losses(serial.evidence[0])
    assert right[-1] < right[0] - 0.01
    runs = [[world, [*ADAM, "--sharding", strategy]] for strategy in strategies] + [[world, [*ADAM, "--recompute"]]]
    left, job = mains(sharded, world, runs)
    for number, ranks in enumerate(left):
        told = f"on {world} ranks {' '.join(runs[number][1][-2:])}"
        fsdp.same_losses(told, right, ranks)
        fsdp.same_report(told, reported(serial), reported(job, f"out-{number}"))
        fsdp.check_checkpoint(job.files[f"out-{number}/model-final.pt"], fsdp.together(ranks, "weights"))


def test_adam_goes_on_after_a_stop(sharded):
    """Saved by 2 × 2 ranks, in bfloat16: the same ranks go on to the last bit. In float32, and on other ranks: to
    1e-4.
    """
    argv = [*ADAM, "--epochs", "3"]
    runs = [
        [4, [*argv, "--sharding", "hybrid", "--save"]],
        [4, [*argv, "--sharding", "hybrid", "--resume", "out-0/step-2"]],
        [4, [*argv, "--dtype", "bfloat16", "--save"]],
        [4, [*argv, "--dtype", "bfloat16", "--resume", "out-2/step-4"]],
        [2, [*argv, "--resume", "out-0/step-2", "--save"]],
        [1, [*argv, "--sharding", "none", "--resume", "out-4/step-4"]],
    ]
    left, job = mains(sharded, 4, runs)
    right = fsdp.losses(fsdp.serial_run(sharded, argv).evidence[0])
    for whole_run, resumed, at in ((0, 1, 2), (2, 3, 4)):
        for before, after in zip(left[whole_run], left[resumed], strict=True):
            assert fsdp.losses(before)[at:] == fsdp.losses(after)
        first, again = (fsdp.together(left[number], "weights") for number in (whole_run, resumed))
        assert all(torch.equal(first[name], again[name]) for name in first)
    assert fsdp.losses(left[2][0]) != fsdp.losses(left[0][0])  # bfloat16 does something
    fsdp.same_losses("on 2 ranks", right[2:], left[4])
    fsdp.same_losses("on 1 rank", right[4:], left[5])
    assert [line["kind"] for line in reported(job, "out-5")] == ["step", "step", "epoch", "test"]


def test_the_start_is_ddp(sharded):
    """Before TODO 1 the script trains with DDP, as its predecessor's solution does."""
    start = Student(
        sharded.runner, "fsdp_training", [u._replace(text=todo_regions.compose(u.source)) for u in sharded.units], []
    )
    serial = fsdp.serial_run(start)
    (ranks,), job = mains(start, 2, [[2, fsdp.ARGV]])
    fsdp.same_losses("on 2 ranks", fsdp.losses(serial.evidence[0]), ranks)
    fsdp.check_checkpoint(job.files["out-0/model-final.pt"], fsdp.together(ranks, "weights"))


@pytest.fixture(scope="module")
def lit(runner):
    if missing := lessons.lacking("lightning_training"):
        pytest.skip(missing)
    return Student(runner, "lightning_training", lessons.units("lightning_training", "solutions"), [])


def after_the_first(said):
    """The lines after the first one, which says on how many ranks the run is."""
    return said.split("\n", 1)[1]


def quiet(run, serial):
    """Rank 0 says what the serial run says, the others nothing; and nothing is written but its files."""
    assert (run.stderr[0], any(run.stderr[1:]), any(run.stdout[1:])) == (serial.stderr[0], False, False)
    assert {name for name in run.files if not name.startswith("data/")} == {f"out/{name}" for name in WRITTEN}


@pytest.mark.parametrize("world", [1, 2, 3])
def test_fifty_steps_of_lightning(lit, world):
    serial, run = lit.serial(FIFTY, ddp.corpus(lit)), lit.run(FIFTY, ddp.corpus(lit), world=world)
    right, ranks = ddp.training(serial.evidence[0]), [ddp.training(evidence) for evidence in run.evidence]
    assert run.stdout[0].startswith(f"1 node, {world} rank")
    assert after_the_first(run.stdout[0]) == after_the_first(serial.stdout[0])
    quiet(run, serial)
    for step in range(50):
        loss = sum(steps[step][1][0] for steps in ranks) / world
        assert math.isclose(loss, right[step][1][0], rel_tol=1e-4), f"step {step + 1}"
        assert sorted(row for steps in ranks for row in steps[step][0]) == sorted(right[step][0])


@pytest.mark.parametrize("flags", [["--max-steps", "3"], ["--dtype", "bfloat16"], ["--clip", "0.01"], ["--clip", "0"]])
def test_lightning_knows_the_flags(lit, flags):
    """Stopped in the midst of an epoch, in bfloat16, clipped and not: each is the serial run with the same flags."""
    argv = [*lightning.ARGV, *flags]
    serial, run = lit.serial(argv, ddp.corpus(lit)), lit.run(argv, ddp.corpus(lit), world=2)
    quiet(run, serial)
    for want, got in zip(reported(serial), reported(run), strict=True):
        # bfloat16 rounds the products of 12 samples otherwise than those of 6: 5e-5 was measured.
        rel = 1e-3 if "bfloat16" in flags else 1e-4
        assert all(math.isclose(got[name], value, rel_tol=rel) for name, value in want.items() if name != "kind"), (
            want,
            got,
        )


@pytest.mark.parametrize("solved", [0, 5, 8])
def test_lightning_runs_at_every_stage(lit, solved):
    part = Student(
        lit.runner,
        "lightning_training",
        [u._replace(text=todo_regions.compose(u.source, set(range(1, solved + 1)))) for u in lit.units],
        [],
    )
    for world in (1, 2):
        assert part.run(lightning.ARGV, ddp.corpus(part), world=world).stdout[0].count("test loss") == 1


def typed(*command, cwd=lessons.COURSE, **environment):
    """Run a command as a student types it, with nothing on PYTHONPATH."""
    env = {
        k: v
        for k, v in os.environ.items()
        if k not in ("PYTHONPATH", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    }
    return subprocess.run(
        command,
        cwd=cwd,
        env={**env, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


SHORT = ("--data", "random", "--max-steps", "3", "--dim", "16", "--heads", "2", "--layers", "1", "--seq-len", "16")
TORCHRUN = (
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--rdzv-backend=c10d",
    "--rdzv-endpoint=localhost:0",
    "--local-addr=127.0.0.1",
)


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "script",
    [
        "train/single_gpu_training.py",
        "train/ddp_training.py",
        "solutions/train/ddp_training.py",
        "train/fsdp_training.py",
        "solutions/train/fsdp_training.py",
    ],
)
def test_python_runs_it_alone(script, tmp_path):
    done = typed(sys.executable, script, *SHORT, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "test loss" in done.stdout


def test_torchrun_runs_it_on_two_processes(tmp_path):
    one = typed(sys.executable, "train/single_gpu_training.py", *SHORT, "--out", str(tmp_path / "one"))
    two = typed(
        *TORCHRUN, "--nproc-per-node=2", "solutions/train/ddp_training.py", *SHORT, "--out", str(tmp_path / "two")
    )
    assert one.returncode == two.returncode == 0, one.stderr + two.stderr
    assert two.stdout.count("test loss") == 1
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)


def test_lightning_as_typed(lit, tmp_path):
    """Alone, and on two processes of torchrun, in another folder: nothing is said beyond its lines, and nothing
    written but its files.
    """
    script = str(lessons.COURSE / "solutions/train/lightning_training.py")
    two = typed(*TORCHRUN, "--nproc-per-node=2", script, *SHORT, "--record", "--out", "two", cwd=tmp_path)
    one = typed(sys.executable, script, *SHORT, "--out", "one", cwd=tmp_path)
    assert two.returncode == one.returncode == 0, two.stderr + one.stderr
    assert two.stdout.startswith("1 node, 2 ranks") and one.stdout.count("\n") == 4 and not one.stderr
    assert after_the_first(two.stdout) == after_the_first(one.stdout).replace("one", "two")
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    assert {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()} == {
        *(f"{run}/{name}" for run in ("one", "two") for name in WRITTEN),
        "two/usage/rank-0.jsonl",
        "two/usage/rank-1.jsonl",
    }


def test_a_batch_that_does_not_divide_is_refused_in_one_line(tmp_path):
    done = typed(
        *TORCHRUN,
        "--nproc-per-node=2",
        "solutions/train/ddp_training.py",
        *SHORT,
        "--batch-size",
        "7",
        "--out",
        str(tmp_path),
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1 and "--batch-size 7" in lines[0]


def test_tp_stops_and_goes_on_as_typed(tmp_path):
    """Saved on two processes, gone on with on one; and what cannot be is refused in one line."""
    script = "solutions/train/tp_training.py"
    one = typed(
        sys.executable, "train/single_gpu_training.py", *SHORT, "--log-every", "1", "--out", str(tmp_path / "one")
    )
    two = typed(
        *TORCHRUN,
        "--nproc-per-node=2",
        script,
        *SHORT,
        "--log-every",
        "1",
        "--save-every",
        "2",
        "--out",
        str(tmp_path / "two"),
    )
    assert one.returncode == two.returncode == 0 and two.stdout.count("test loss") == 1, one.stderr + two.stderr
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    resume = ("--log-every", "1", "--resume", str(tmp_path / "two" / "step-2"), "--out", str(tmp_path / "three"))
    three = typed(sys.executable, script, *SHORT, *resume)
    assert three.returncode == 0, three.stderr
    assert losses(tmp_path / "three") == pytest.approx(losses(tmp_path / "one")[2:], rel=1e-4)
    for flags, words in (
        (("--seed", "9"), "saved with --seed 0"),
        (("--max-steps", "1"), "has already taken 2 steps"),
        (("--dim", "32"), "another model"),
    ):
        done = typed(sys.executable, script, *SHORT, *resume, *flags)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and words in done.stderr, done


def test_copies_that_the_ranks_can_not_hold_are_refused_in_one_line(tmp_path):
    done = typed(
        sys.executable, "solutions/train/fsdp_training.py", *SHORT, "--sharding", "hybrid", "--out", str(tmp_path)
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--replicas" in done.stderr, done


def test_from_another_folder_and_under_slurm_names(tmp_path):
    done = typed(
        sys.executable,
        str(lessons.COURSE / "solutions/train/ddp_training.py"),
        *SHORT,
        cwd=tmp_path,
        SLURM_PROCID="0",
        SLURM_LOCALID="0",
        SLURM_STEP_NUM_TASKS="1",
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/ddp_training/model-final.pt").exists()


@pytest.fixture(scope="module")
def streamed(runner):
    return Student(runner, "streaming_training", lessons.units("streaming_training", "solutions"), [])


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_a_stream_is_the_serial_run(streamed, world):
    """With all rows in one block its order is the serial run's; and a text of one document has all its targets."""
    argv = [*FIFTY, "--block-rows", "100000", "--workers", str(world % 3), "--out"]
    serial = ddp.training(streamed.serial(FIFTY, ddp.corpus(streamed)).evidence[0])
    run = streamed.run([*argv, "out"], ddp.corpus(streamed), world=world, common=True)
    ranks = [ddp.training(evidence) for evidence in run.evidence]
    for step in range(50):
        loss = sum(steps[step][1][0] for steps in ranks) / world
        assert math.isclose(loss, serial[step][1][0], rel_tol=1e-4), f"step {step + 1}"
        assert sorted(row for steps in ranks for row in steps[step][0]) == sorted(serial[step][0])


def test_the_stream_begins_as_ddp(runner, streamed):
    """Before TODO 1 the exercise runs, with the losses of its predecessor's solution, on one process and on two."""
    units = [unit._replace(text=todo_regions.compose(unit.source)) for unit in streamed.units]
    start = Student(runner, "streaming_training", units, [])
    serial = reported(start.serial(ddp.ARGV, ddp.corpus(start)))
    for world in (1, 2):
        run = start.run(ddp.ARGV, ddp.corpus(start), world=world, common=True)
        same_report(f"on {world} ranks", serial, reported(run))
