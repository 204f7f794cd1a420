"""One run in a folder at a time; and a run that cannot go on says so in one line, with nothing cut left behind."""

import json
import os
import resource
import signal
import subprocess
import sys

import pytest

from grader.engine.lesson import lessons
from utils import run_folder
from utils.atomic_write import no_room, written_whole

TINY = "--data random --batch-size 4 --seq-len 8 --dim 16 --heads 2 --layers 1 --max-steps 3 --log-every 1".split()
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def process(launcher, script, *flags, **how):
    return subprocess.Popen(
        [*launcher, f"solutions/train/{script}.py", *TINY, *flags],
        cwd=lessons.COURSE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **how,
    )


def ended(started, seconds=240):
    try:
        out, err = started.communicate(timeout=seconds)
    finally:
        started.kill()
    return started.returncode, out, err


def errors(text):
    """What the ranks say. torchrun's own report of them, with one traceback of its own, is its own."""
    lines = [line for line in text.splitlines() if line.startswith(("error: ", "[rank"))]
    mine = text.count("Traceback") - ("ChildFailedError" in text)
    return lines + ["a traceback"] * mine


def hold(folder):
    """A process that has the folder until it is killed."""
    code = (
        "import pathlib, sys; from utils import run_folder; kept = run_folder.take(pathlib.Path(sys.argv[1]));"
        " print('has it', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        cwd=lessons.COURSE,
        env={**os.environ, "SLURM_JOB_ID": "4711"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout.readline() == b"has it\n"
    return holder


@pytest.mark.parametrize(
    ("launcher", "script"), [([sys.executable], "single_gpu_training"), (TORCHRUN, "ddp_training")], ids=["one", "two"]
)
def test_a_second_run_is_told_who_has_the_folder(launcher, script, tmp_path):
    out = tmp_path / "run"
    (out / "usage").mkdir(parents=True)
    for name in ("usage/0.jsonl", "metrics.jsonl"):
        (out / name).write_text(f"{name} of another run\n")
    holder = hold(out)
    try:
        before = {out / name: (out / name).read_bytes() for name in ("usage/0.jsonl", "metrics.jsonl", "run.json")}
        code, said, err = ended(process(launcher, script, "--out", str(out), "--record"))
    finally:
        holder.kill()
        holder.wait()
    assert code != 0 and "train loss" not in said
    (line,) = errors(err)
    assert f"process {holder.pid} on " in line and "job 4711" in line and "since" in line
    assert code == 2 or launcher == TORCHRUN
    assert {path: path.read_bytes() for path in before} == before


def test_the_lock_goes_with_its_process_and_not_to_its_children(tmp_path):
    holder = hold(tmp_path)
    with pytest.raises(run_folder.Taken, match=f"process {holder.pid}"):
        run_folder.take(tmp_path)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    kept = run_folder.take(tmp_path)
    assert run_folder.identity(tmp_path)["process"] == os.getpid()  # and looking there does not lose the lock
    child = os.fork()  # as a worker of a DataLoader
    if child == 0:
        try:
            run_folder.take(tmp_path)
        except run_folder.Taken:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    kept.close()


def test_the_baseline_refuses_several_processes(tmp_path):
    code, _, err = ended(process(TORCHRUN, "single_gpu_training", "--out", str(tmp_path / "run")))
    (line,) = errors(err)
    assert code != 0 and "2 were started" in line and "ddp_training.py" in line and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("launcher", "script"), [([sys.executable], "single_gpu_training"), (TORCHRUN, "ddp_training")], ids=["one", "two"]
)
def test_a_loss_that_is_not_finite_ends_the_run(launcher, script, tmp_path):
    code, _, err = ended(process(launcher, script, "--lr", "1e30", "--clip", "0", "--out", str(tmp_path)))
    (line,) = errors(err)
    assert code == 2 or launcher == TORCHRUN
    assert "loss at step" in line and "is nan" in line or "is inf" in line
    assert not list(tmp_path.glob("*.pt"))
    kinds = [json.loads(text)["kind"] for text in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert set(kinds) <= {"step"}


def small_files():
    """Stands in for a full disk, anywhere: no file can grow beyond 60 kB. Python and torch get an error from write."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))


@pytest.mark.parametrize(
    ("launcher", "script", "flags"),
    [
        pytest.param([sys.executable], "single_gpu_training", [], id="single"),
        pytest.param(TORCHRUN, "ddp_training", [], id="ddp"),
        pytest.param(TORCHRUN, "tp_training", ["--save-every", "1"], id="tp", marks=pytest.mark.long),
        pytest.param(
            [sys.executable], "pipeline_training", ["--microbatches", "2"], id="pipeline", marks=pytest.mark.long
        ),
    ],
)
def test_a_full_disk_is_one_line_and_no_cut_file(launcher, script, flags, tmp_path):
    code, _, err = ended(
        process(launcher, script, "--dim", "64", "--out", str(tmp_path), *flags, preexec_fn=small_files)
    )
    (line,) = errors(err)
    assert code == 2 or launcher == TORCHRUN
    assert f"--out {tmp_path}: " in line and ("larger than is allowed" in line or "as on a full disk" in line), line
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "metrics.jsonl", "run.json"}
    assert all(json.loads(text) for text in (tmp_path / "metrics.jsonl").read_text().splitlines())


def test_what_a_full_disk_says():
    with pytest.raises(OSError) as problem, open("/dev/full", "w") as file:
        file.write("x")
    assert no_room(problem.value) == "no space is left on the disk"
    assert no_room(ValueError("x")) == no_room(None) == ""


def test_what_cannot_be_written_whole_is_not_there(tmp_path):
    with pytest.raises(RuntimeError), written_whole(tmp_path / "a" / "b") as part:
        part.write_text("half")
        raise RuntimeError
    assert not list((tmp_path / "a").iterdir())


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    """Nor is a device: as root, a file would take the place of /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with written_whole(pipe) as part:
        part.write_text("x")
    assert pipe.is_fifo() and os.read(reader, 9) == b"x"
    os.close(reader)


def test_what_cannot_be_written_is_named_as_its_reader_knows_it(tmp_path):
    """Not by the name that it has while it is written."""
    with pytest.raises(FileNotFoundError) as problem, written_whole(tmp_path / "b") as part:
        part.read_text()
    assert problem.value.filename == str(tmp_path / "b")
