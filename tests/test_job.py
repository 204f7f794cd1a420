"""What a run says of itself before the first step, and what it refuses: a job that is not what it seems."""

import os
import re
import subprocess
import sys

import pynvml
import pytest
import torch
from typer.testing import CliRunner

from accelerators import pretend
from course_copy import Course
from grader.engine.commands import launch
from grader.engine.commands.cli import app
from grader.engine.jobs import machine
from grader.engine.lesson import lessons
from utils import devices, job, metrics
from utils.arguments import training_parser
from utils.metrics import Metrics

SCRIPTS = sorted(path.stem for path in (lessons.COURSE / "train").glob("*.py"))
SMALL = (
    "--data random --epochs 1 --max-steps 2 --batch-size 12 --seq-len 16 --dim 16 --heads 2 --layers 2 --log-every 1"
).split()
ON_SLURM = {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "4"}
ON_PBS = {"PBS_JOBID": "7.here", "SITE_GPUS": "4"}


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A copy of the course in which no TODO is done."""
    return Course(tmp_path_factory.mktemp("given") / "course")


def run(script, tmp_path, *flags, processes=1, **env):
    start = [sys.executable, str(script)]
    if processes > 1:
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        start.append(str(script))
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PBS_", "SITE_"))}
    return subprocess.run(
        [*start, *SMALL, "--out", str(tmp_path / "run"), *flags],
        env={**plain, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


# All call `job.prepare` first: two show what it says, with and without ranks, and all of them, that none forgot it.
SHORT = {"single_gpu_training", "ddp_training"}


@pytest.mark.parametrize(
    "lesson", [pytest.param(stem, id=stem, marks=[pytest.mark.long] * (stem not in SHORT)) for stem in SCRIPTS]
)
def test_granted_gpus_that_torch_does_not_see_are_refused(lesson, given, tmp_path):
    """Before any TODO, in one line, and nothing is written."""
    if lesson == "lightning_training":
        pytest.importorskip("lightning")
    done = run(given.script(lesson), tmp_path, **ON_SLURM, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2 and done.stdout == "", done
    assert re.match(r"error: Slurm has granted 4 GPUs on \S+, but torch sees none: ", done.stderr), done
    assert done.stderr.count("\n") == 1 and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("env", "flag", "by"),
    [
        (ON_SLURM, "auto", "Slurm has granted 4 GPUs"),
        (ON_PBS, "auto", "PBS has granted 4 GPUs"),
        ({}, "cuda", "--device cuda asks for a GPU"),
        ({}, "xpu", "--device xpu asks for a GPU"),
        (ON_SLURM, "cpu", ""),
        ({}, "auto", ""),
        ({"SITE_GPUS": "4"}, "auto", ""),  # the site's settings alone are no job
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, "auto", ""),  # which says nothing of what was granted
    ],
)
def test_what_is_refused(env, flag, by, monkeypatch, capsys):
    for name in [name for name in os.environ if name.startswith(("SLURM_", "PBS_", "SITE_", "CUDA_VISIBLE"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # monkeypatch puts back what `prepare` changes
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    pretend("cuda", 0, monkeypatch.setattr)
    args = training_parser("x").parse_args(["--device", flag])
    if not by:
        assert job.prepare(args) is None
        return
    with pytest.raises(SystemExit) as stop:
        job.prepare(args)
    assert stop.value.code == 2 and capsys.readouterr().err.startswith(f"error: {by} on ")


@pytest.mark.parametrize(
    ("processes", "gpus", "flag", "refused"),
    [(2, 1, "auto", True), (4, 2, "cuda", True), (2, 2, "auto", False), (2, 0, "auto", False), (2, 1, "cpu", False)],
)
def test_fewer_gpus_than_processes(processes, gpus, flag, refused, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    pretend("cuda", gpus, monkeypatch.setattr)
    args = training_parser("x").parse_args(["--device", flag])
    if not refused:
        assert job.prepare(args) is None
        return
    with monkeypatch.context() as with_nccl:
        with_nccl.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
        assert job.prepare(args) is None
    with pytest.raises(SystemExit) as stop:
        job.prepare(args)
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1
    assert re.search(rf"{processes} processes on \S+, and torch sees {gpus} GPU.*--device cpu", said)


@pytest.mark.parametrize(
    ("gpus", "nproc", "flags", "cpu"),
    [
        (1, "2", [], True),
        (1, "1", [], False),
        (2, "1,2,4", ["--device-memory", "1GB"], True),
        (0, "2", [], False),
        (1, "2", ["--device=cuda"], False),
    ],
)
def test_run_goes_to_the_cpu_where_gpus_are_too_few(gpus, nproc, flags, cpu, monkeypatch):
    monkeypatch.setattr("grader.engine.commands.run.gpus_here", lambda: gpus)
    done = CliRunner().invoke(app, ["run", "ddp_training", "--nproc", nproc, "--dry-run", "--", *flags])
    assert done.exit_code == 0, done.output
    assert (done.output.count("--device cpu") == len(nproc.split(","))) is cpu and ("a GPU each" in done.output) is cpu


@pytest.mark.parametrize(
    ("there", "visible", "found"), [(None, None, 0), (2, None, 2), (2, "1", 1), (2, "", 0), (2, "-1", 0), (1, "0,1", 1)]
)
def test_gpus_here(there, visible, found, monkeypatch):
    def start():
        if there is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", start)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: there)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert launch.gpus_here() == found


@pytest.mark.parametrize(
    ("kind", "asked", "cuda", "env", "words"),
    [
        ("", "auto", None, {}, ["is built for CPUs", "rm -r .venv", "./workbook start", "--device cpu"]),
        ("cuda", "auto", "13.0", {"CUDA_VISIBLE_DEVICES": ""}, ["CUDA_VISIBLE_DEVICES hides them"]),
        ("cuda", "cuda", "13.0", {"CUDA_VISIBLE_DEVICES": "0"}, ["CUDA 13.0", "driver", "nvidia-smi"]),
        ("cuda", "auto", None, {"CUDA_VISIBLE_DEVICES": "0"}, ["ROCm 7.0", "rocm-smi"]),
        ("cuda", "xpu", "13.0", {}, ["for NVIDIA's or AMD's GPUs", "--device xpu means Intel's"]),
        ("xpu", "xpu", None, {}, ["for Intel's GPUs", "sycl-ls"]),
        ("xpu", "auto", None, {"ZE_AFFINITY_MASK": "7"}, ["ZE_AFFINITY_MASK may hide them"]),
    ],
)
def test_the_refusal_names_cause_and_mend(kind, asked, cuda, env, words, monkeypatch):
    pretend(kind, 0, monkeypatch.setattr)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    for name in (*devices.HIDDEN, "ZE_AFFINITY_MASK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    said = job.why_no_gpu(asked)
    assert all(word in said for word in words) and "\n" not in said, said


def test_cpu_insists(monkeypatch):
    """--device cpu hides the GPUs from all that asks for them afterwards, the student's lines too."""
    for name in devices.HIDDEN:
        monkeypatch.setenv(name, "0,1")
    job.prepare(training_parser("x").parse_args(["--device", "cpu"]))
    assert {name: os.environ[name] for name in devices.HIDDEN} == devices.HIDDEN


@pytest.mark.parametrize(
    ("lesson", "processes", "said"),
    [
        ("single_gpu_training", 1, "1 node, 1 process on CPU, float32"),
        pytest.param(
            "ddp_training",
            2,
            "1 node, 2 processes on CPU, no process group (each trains alone), float32",
            marks=pytest.mark.long,
        ),
        pytest.param("fsdp_training", 2, "1 node, 2 ranks on CPU, gloo, float32", marks=pytest.mark.long),
    ],
)
def test_rank_0_says_first_what_runs(lesson, processes, said, given, tmp_path):
    """As given: before ddp_training's TODO 1, two processes are no two ranks, and the line says so."""
    done = run(given.script(lesson), tmp_path, "--device", "cpu", processes=processes)
    assert done.returncode == 0, done
    lines, line = done.stdout.splitlines(), f"{said}, torch {torch.__version__}, data random"
    assert lines.count(line) == 1 and done.stdout.count("torch ") == 1
    assert lines[0] == line or "trains alone" in said  # nobody waits for rank 0 there


@pytest.mark.parametrize(
    ("env", "count"),
    [
        ({}, 1),
        ({"GROUP_WORLD_SIZE": "3", "WORLD_SIZE": "12"}, 3),
        ({"SLURM_STEP_NUM_NODES": "2"}, 2),
        ({"PMI_LOCAL_SIZE": "4", "WORLD_SIZE": "8"}, 2),
    ],
)
def test_nodes(env, count, monkeypatch):
    names = "GROUP_WORLD_SIZE SLURM_STEP_NUM_NODES OMPI_COMM_WORLD_LOCAL_SIZE PMI_LOCAL_SIZE MPI_LOCALNRANKS WORLD_SIZE"
    for name in names.split():
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert job.nodes() == count


def test_a_line_now_and_then_where_there_is_no_terminal(tmp_path, monkeypatch, capsys):
    """On rank 0, once the time is up; with what is left by the speed so far."""
    clock = iter([0.0, 10.0, 20.0, 40.0, 50.0])
    monkeypatch.setattr(metrics.time, "monotonic", lambda: next(clock))
    with Metrics(tmp_path, total_steps=100) as log:
        for step in (10, 20, 40, 50):
            log.log("step", step, loss=2.5, tokens_per_s=1234.5)
    # 30 steps since the first line took 30 s, and 60 are to come
    assert capsys.readouterr().out == "step 40/100: loss 2.500, 1,234 tokens/s, about 1 min left\n"


PBSNODES = """x3004c0s13b0n0
     Mom = x3004c0s13b0n0.hsn.cm.polaris.alcf.anl.gov
     state = free
     resources_available.ncpus = 64
     resources_available.ngpus = 4

x3004c0s13b1n0
     state = job-busy
     resources_available.ngpus = 4
     resources_assigned.ngpus = 4

login01
     state = free
     resources_available.ncpus = 32
"""


def test_start_on_a_login_node_of_pbs_says_what_the_nodes_have(tmp_path, monkeypatch):
    """A stand-in for pbsnodes, with the fields of OpenPBS: no server of PBS is packaged."""
    for name, words in (("pbsnodes", PBSNODES), ("qsub", "")):
        (tmp_path / name).write_text(f"#!/bin/sh\ncat <<'END'\n{words}END\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(machine, "slurm_nodes", lambda: "")
    found = machine.compute_nodes()
    assert found["nodes"] == "1 with no GPU; 2 with gpu:4" and "python" in found["batch"].lower()
    assert ("is for CPUs" in found["batch"]) == (torch.version.cuda is None and sys.executable in found["batch"])
