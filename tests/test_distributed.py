"""Who am I, who prints and saves, and how a run stops."""

import ctypes
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from utils import distributed
from utils.after_ddp_training import setup
from utils.arguments import SIZES, training_parser
from utils.distributed import LAUNCHERS, cleanup, launch_environment, print0, save0, set_batch_size

ROOT = Path(__file__).parents[1]


@pytest.fixture
def env(monkeypatch):
    """Replace what launchers say about this process: env(NAME=value, …)."""
    names = {name for launcher in LAUNCHERS for name in launcher} | {"MASTER_ADDR", "MASTER_PORT"}
    monkeypatch.setattr(os, "environ", os.environ.copy())

    def replace(**values: str) -> None:
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(values)

    replace()
    return replace


MASTER = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def exported() -> tuple[str, ...]:
    return tuple(os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def test_torchrun_is_believed_and_left_alone(env):
    slurm = {"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    env(RANK="5", LOCAL_RANK="1", WORLD_SIZE="8", **MASTER, **slurm)
    assert launch_environment() == (5, 1, 8)
    assert exported() == ("5", "1", "8", "node0", "29500")


@pytest.mark.parametrize(
    "launcher",
    [
        {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "8"},
        {"PMI_RANK": "5", "PALS_LOCAL_RANKID": "1", "PMI_SIZE": "8"},
        {"PMI_RANK": "5", "MPI_LOCALRANKID": "1", "PMI_SIZE": "8"},
        {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "8"},
    ],
    ids=["srun", "pals", "mpich", "openmpi"],
)
def test_other_launchers_become_torchruns_names(env, launcher):
    env(**launcher, **MASTER)
    assert launch_environment() == (5, 1, 8)
    assert exported() == ("5", "1", "8", "node0", "29500")
    assert launch_environment() == (5, 1, 8), "asked again, it says the same"

    env(**launcher)
    with pytest.raises(ValueError, match="8 processes and no MASTER_ADDR: the batch file must export it"):
        launch_environment()


def test_mpiexec_inside_slurm_counts_its_processes_not_its_helpers(env):
    slurm = {"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    env(PMI_RANK="5", MPI_LOCALRANKID="1", PMI_SIZE="8", **MASTER, **slurm)
    assert launch_environment() == (5, 1, 8)


def test_a_batch_script_without_srun_is_one_process(env):
    env(SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NTASKS="8", SLURM_JOB_ID="1")
    assert launch_environment() == (0, 0, 1)


def test_alone_it_is_a_world_of_one(env):
    env()
    assert launch_environment() == (0, 0, 1)
    assert exported()[:4] == ("0", "0", "1", "127.0.0.1")
    assert 0 < int(os.environ["MASTER_PORT"]) < 65536


@pytest.mark.parametrize("half", [{"RANK": "1"}, {"RANK": "0", "WORLD_SIZE": "2"}])
def test_half_of_torchruns_names_are_refused(env, half):
    env(**half)
    with pytest.raises(ValueError, match="start the script with torchrun"):
        launch_environment()


def test_setup_joins_and_cleanup_leaves(env, capsys):
    env()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    rank, local_rank, world_size, device = setup()
    try:
        assert (rank, local_rank, world_size) == (0, 0, 1)
        assert device.type == ("cuda" if torch.cuda.is_available() else "cpu")
        assert dist.get_world_size() == 1
        assert torch.equal(torch.get_rng_state(), state), "no seed of its own on each rank"
        os.environ["RANK"] = "1"  # the group is believed, not the environment
        print0("from", "rank 0", sep=": ")
    finally:
        cleanup()
    cleanup()
    assert not dist.is_initialized()
    assert capsys.readouterr().out == "from: rank 0\n"


def test_only_rank_0_prints_and_saves(env, tmp_path, capsys):
    path = tmp_path / "new" / "folder" / "model.pt"
    env(RANK="1")
    print0("no")
    save0({"a": 1}, path)
    assert capsys.readouterr().out == "" and not path.parent.exists()
    env(RANK="0")
    print0("yes")
    save0({"a": 1}, path)
    assert capsys.readouterr().out == "yes\n"
    assert torch.load(path) == {"a": 1}


@pytest.mark.parametrize(("rank", "waits"), [("0", []), ("1", [distributed.PATIENCE])])
def test_a_rank_that_fails_lets_rank_0_speak_first(rank, waits, env, monkeypatch, capsys):
    env(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", TORCHELASTIC_RESTART_COUNT="0")
    slept, before = [], signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(distributed.time, "sleep", lambda seconds: slept.append((seconds, capsys.readouterr().err)))
    with pytest.raises(SystemExit, match="2"):
        distributed.fail("no such file")
    signal.signal(signal.SIGTERM, before)
    assert slept == [(seconds, "") for seconds in waits]
    assert capsys.readouterr().err == "error: no such file\n"  # once, whoever says it


def test_a_save_that_fails_leaves_the_old_file_whole(env, tmp_path):
    path = tmp_path / "model.pt"
    save0({"a": 1}, str(path))
    with pytest.raises((AttributeError, pickle.PicklingError)):
        save0({"a": lambda: 0}, path)
    assert torch.load(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]


def batch(*flags):
    return training_parser("ddp_training").parse_args(flags)


def test_the_global_batch_divides(env, capsys):
    args = batch("--batch-size", "24")
    set_batch_size(args, 1), set_batch_size(args, 4)
    assert args.batch_size == 24
    env(RANK="1")
    with pytest.raises(SystemExit) as stop:
        set_batch_size(batch("--batch-size", "25"), 4)
    assert stop.value.code == 2 and capsys.readouterr().err == ""
    env(RANK="0")
    with pytest.raises(SystemExit):
        set_batch_size(batch("--batch-size", "25"), 4)
    line = capsys.readouterr().err
    assert "--batch-size 25" in line and "4 ranks" in line and "28" in line and line.count("\n") == 1


def test_the_batch_of_a_rank_times_the_ranks(capsys):
    args = batch("--batch-size-per-rank", "5")
    set_batch_size(args, 3), set_batch_size(args, 3)  # a pipeline's flags are checked twice
    assert args.batch_size == 15
    with pytest.raises(SystemExit):
        batch("--batch-size-per-rank", "24", "--batch-size", "24")
    (line,) = capsys.readouterr().err.splitlines()
    assert "not allowed with" in line


def test_a_size_sets_what_was_not_given():
    small, large = batch(), batch("--dim", "64", "--size", "gpu", "--size", "node")
    assert vars(small) | SIZES["laptop"] == vars(small) and small.batch_size_per_rank is None
    assert vars(large) | SIZES["node"] | {"dim": 64} == vars(large)
    assert batch("--size", "gpu", "--batch-size-per-rank", "8").batch_size == 8


RANKS = """
import torch, torch.distributed as dist
from utils.data import ShardSampler
from utils.after_ddp_training import setup
from utils.arguments import SIZES, training_parser
from utils.distributed import cleanup, print0
rank, local_rank, world_size, device = setup()
shards = [None] * world_size
dist.all_gather_object(shards, list(ShardSampler(range(5))))
print0(world_size, shards)
cleanup()
"""


def test_two_processes_started_as_by_srun_find_each_other(env, tmp_path):
    env()
    launch_environment()  # picks a free port
    port = os.environ["MASTER_PORT"]
    env()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANKS],
            env=os.environ
            | {"PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "CUDA_VISIBLE_DEVICES": ""}
            | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_STEP_NUM_TASKS": "2"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        out = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert "2 [[0, 2, 4], [1, 3]]" in out[0]
    assert "[[" not in out[1]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a thread is doing")
def test_who_leaves_waits_until_gloos_threads_sleep():
    """Or one of them may still hold a tensor when Python ends, which aborts the process."""
    at_rest, over = threading.Event(), threading.Event()

    def busy():
        ctypes.CDLL(None).prctl(15, b"pt_gloo_runloop", 0, 0, 0)  # PR_SET_NAME of linux/prctl.h
        started.set()
        hashlib.sha256(bytes(200_000_000))  # runs without Python's lock
        at_rest.set()
        over.wait()

    started = threading.Event()
    thread = threading.Thread(target=busy)
    thread.start()
    started.wait()
    distributed.let_gloo_rest(seconds=60)
    rested = at_rest.is_set()
    over.set()
    thread.join()
    assert rested
