"""A stand-in accelerator of type xpu goes all the way of a run; and only the files listed here know CUDA by name."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

import accelerators
from accelerators import HELD, NAME, TOTAL, pretend, pretend_xpu
from grader.engine.jobs import machine
from grader.engine.lesson import lessons
from tests.test_bad_values import loaded
from utils import device_memory, devices, job
from utils.after_ddp_training import setup
from utils.arguments import training_parser
from utils.preflight import facts

COURSE = lessons.COURSE
SOLUTIONS = "solutions/train"
SMALL = (
    "--data random --epochs 1 --max-steps 14 --batch-size 12 --seq-len 16 --dim 16 --heads 2 --layers 2 --log-every 2"
).split()
OF_A_JOB = ("SLURM_", "PBS_", "SITE_", "RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_", "ZE_", "NCCL_")


@pytest.fixture
def xpu(monkeypatch):
    """Two GPUs of Intel's, and no job. What torch.xpu was asked for."""
    for name in [name for name in os.environ if name.startswith(OF_A_JOB)] + list(devices.HIDDEN):
        monkeypatch.delenv(name, raising=False)
    return pretend_xpu(2, monkeypatch.setattr)


def prepare(*flags):
    return job.prepare(training_parser("x").parse_args(list(flags)))


# One process


@pytest.mark.parametrize(("flag", "granted"), [("auto", ""), ("auto", "12"), ("xpu", ""), ("xpu", "12")])
def test_prepare_takes_what_is_there(flag, granted, xpu, monkeypatch):
    monkeypatch.setenv("PBS_JOBID", "7.aurora")
    monkeypatch.setenv("SITE_GPUS", granted)
    prepare("--device", flag)
    assert devices.accelerator() == "xpu" and devices.count() == 2


@pytest.mark.parametrize(
    ("kind", "gpus", "flag", "words"),
    [
        ("xpu", 2, "cuda", ["--device cuda asks for one of NVIDIA's or AMD's GPUs on ", "take --device xpu"]),
        ("cuda", 2, "xpu", ["--device xpu asks for one of Intel's GPUs on ", "take --device cuda"]),
        ("xpu", 0, "xpu", ["--device xpu asks for a GPU on ", "but torch sees none: ", "sycl-ls"]),
        ("cuda", 0, "xpu", ["--device xpu asks for a GPU on ", "is built for NVIDIA's or AMD's GPUs"]),
        ("", 0, "xpu", ["--device xpu asks for a GPU on ", "is built for CPUs"]),
    ],
)
def test_a_device_that_is_not_there_is_one_line(kind, gpus, flag, words, xpu, monkeypatch, capsys):
    pretend(kind, gpus, monkeypatch.setattr)
    with pytest.raises(SystemExit) as stop:
        prepare("--device", flag)
    (line,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and line.startswith("error: ") and all(word in line for word in words), line


@pytest.mark.parametrize("by_torchrun", [True, False])
def test_mpiexecs_numbers_are_torchruns_and_not_its_processes(by_torchrun, xpu, monkeypatch):
    """XCCL would take a process that has them for one of MPI's."""
    monkeypatch.setenv("PMI_RANK", "1")
    if by_torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    prepare()
    assert ("PMI_RANK" in os.environ) is not by_torchrun


def test_cpu_insists_where_torch_counts_without_sycl(xpu):
    prepare("--device", "cpu")
    assert torch.accelerator.is_available() and devices.accelerator() == "" and devices.count() == 0


def test_apples_gpus_are_none_of_ours(monkeypatch):
    pretend("mps", 1, monkeypatch.setattr)
    assert devices.accelerator() == devices.built_for() == "" and devices.count() == 0


def test_setup_joins_by_xccl_with_the_gpu_of_its_local_rank(xpu, monkeypatch):
    asked = []
    monkeypatch.setattr(dist, "init_process_group", lambda *how, **more: asked.append((how, more)))
    monkeypatch.setenv("MASTER_ADDR", "n1")
    for name, value in (("RANK", 3), ("LOCAL_RANK", 1), ("WORLD_SIZE", 4), ("MASTER_PORT", 2)):
        monkeypatch.setenv(name, str(value))
    own = torch.device("xpu", 1)
    assert setup() == (3, 1, 4, own) and torch.accelerator.current_device_index() == 1
    assert asked == [(("xccl",), {"device_id": own})]


def test_seeds_and_random_states_are_the_devices(xpu):
    torch.manual_seed(7)
    assert xpu["seeds"] == [7]
    resilient = loaded("resilient_training")
    state = resilient.random_state()
    drawn = torch.rand(2)
    resilient.set_random_state(state)
    assert xpu["states"] == 1 and torch.equal(torch.rand(2), drawn)


def test_memory_is_limited_and_counted_by_torch_xpu(xpu, monkeypatch, capsys):
    own = torch.device("xpu", 1)
    assert device_memory.most_held("xpu") == HELD
    line = device_memory.refused_by_gpu(None, own, "Tried to allocate 3.00 MiB.")
    assert "activations and other 123.5 MB" in line and "asks for 3.00 MiB more" in line
    if hasattr(torch.xpu, "set_per_process_memory_fraction"):  # torch 2.8 has none
        with device_memory.device_memory(TOTAL // 4, own):
            assert xpu["fraction"] == (0.25, own)
        monkeypatch.delattr(torch.xpu, "set_per_process_memory_fraction")
    with pytest.raises(SystemExit) as stop, device_memory.device_memory(10**9, own):
        pass
    assert stop.value.code == 2 and capsys.readouterr().err.count("\n") == 1


def test_what_start_and_preflight_say_of_it(xpu, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.version, "xpu", "20250301", raising=False)
    found = machine.found()
    assert found["GPUs"] == f"2 × {NAME}" and found["backend"] == "xccl"
    seen = facts.facts(1, 1, tmp_path)
    assert (seen["device"], seen["gpus"], seen["versions"]["XPU"]) == (NAME, 2, "20250301")
    assert "NCCL" not in seen["versions"]


# Whole runs


def launched(*command, ranks=0):
    start = [sys.executable]
    if ranks:
        start += ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}"]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(OF_A_JOB)}
    for name in devices.HIDDEN:
        plain.pop(name, None)
    done = subprocess.run(
        [*start, *map(str, command)],
        cwd=COURSE,
        env={**plain, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")]  # as torch 2.8 prints


def losses(out):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    found = [line["loss"] for line in lines if "loss" in line]
    assert len(found) > 7
    return found


@pytest.mark.long
def test_two_ranks_meet_by_xccl_record_what_they_use_and_train_as_one_cpu(tmp_path):
    serial, out = tmp_path / "cpu", tmp_path / "xpu"
    launched(f"{SOLUTIONS}/single_gpu_training.py", *SMALL, "--device", "cpu", "--out", serial)
    command = accelerators.__file__, 2, f"{SOLUTIONS}/ddp_training.py", *SMALL, "--record", "--out", out
    said = launched(*command, ranks=2)
    assert said[0].startswith(f"1 node, 2 ranks on {NAME}, xccl, float32, torch ")
    assert losses(out) == pytest.approx(losses(serial), rel=1e-6)  # sums over ranks are rounded in another order
    for rank in range(2):
        noted = [json.loads(line) for line in (out / "usage" / f"rank-{rank}.jsonl").read_text().splitlines()]
        assert noted[0]["device"] == NAME and noted[0]["bfloat16"] == "by the GPU's own units"
        assert noted[-1]["kind"] == "end" and noted[-1]["device_memory"] == HELD
        assert any(line["kind"] == "parts" for line in noted)


@pytest.mark.long
def test_preflight_measures_its_links(tmp_path):
    said = launched(accelerators.__file__, 2, "-m", "utils.preflight", "--out", tmp_path, ranks=2)
    assert f"ranks 0 and 1 on {NAME}" in said[0] and said[1].startswith("within nodes: 1 link") and "✓" in said[-1]


# Sites


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (
            {"PBS_O_HOST": "aurora-uan-0011", "PBS_JOBID": "7.aurora"},
            ["module load frameworks", "GPUS 12 0", "hsn0 hsn0", "http://proxy.alcf.anl.gov:3128"],
        ),
        ({"SLURM_CLUSTER_NAME": "lumi", "SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "8"}, ["GPUS 0 8", "hsn0 hsn0", ""]),
    ],
)
def test_what_a_job_there_is_told(job, said):
    """utils/site.sh, as a batch file reads it."""
    tell = 'echo "GPUS ${SITE_GPUS:-0} ${SLURM_GPUS_ON_NODE:-0}"; echo "$GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME"'
    script = f'set -eo pipefail; module() {{ echo "module $*"; }}; . utils/site.sh; {tell}; echo "${{http_proxy:-}}"'
    plain = {name: value for name, value in os.environ.items() if not name.startswith(OF_A_JOB)}
    for name in ("SYSTEMNAME", "http_proxy", "https_proxy"):
        plain.pop(name, None)
    env = {**plain, "WORKBOOK_PYTHON": sys.executable, **job}
    done = subprocess.run(["bash", "-c", script], cwd=COURSE, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.splitlines() == said, done


# Who may name CUDA: those that are about NVIDIA's GPUs, or about a name of NVIDIA's that others have taken over.
NAMES_CUDA = {
    "utils/devices.py": "the kinds of device themselves, and the variable that hides NVIDIA's",
    "utils/arguments.py": "what --device offers",
    "utils/job.py": "why torch sees no GPU: CUDA's version, and the variable that hides them",
    "utils/nccl.py": "the version of NCCL that is loaded",
    "utils/preflight/facts.py": "the version of CUDA, and of NCCL where there is one",
    "utils/report/recorder.py": "NVML and NVTX: both know NVIDIA's GPUs only",
    "utils/private.py": "each kind's module, whose notes of stacks a test turns off",
    "grader/engine/classroom/records.py": "a variable that a class's workers keep",
    "grader/engine/commands/launch.py": "GPUs as NVML counts them, and the variable that hides them",
    "grader/engine/commands/notebook_launch.py": "a variable that hides GPUs",
    "grader/engine/inside/observe.py": "checks on GPUs use NCCL, whose groups have a backend for each kind of device",
    "grader/engine/inside/on_gpu.py": "the same: their ranks start CUDA after a fork",
    "grader/engine/inside/pretended_gpus.py": "GPUs as a student's code may look for them, by either name",
    "grader/engine/inside/rank.py": "what a torch for CUDA does after a fork",
    "grader/engine/jobs/batch_file.py": "batch files name their GPUs in CUDA_VISIBLE_DEVICES; AMD's read it, too",
    "grader/engine/jobs/stand_ins.py": "the same",
    "grader/engine/ranks/backends.py": "checks on GPUs use NCCL",
    "grader/engine/ranks/cpu_time.py": "how long CUDA and NCCL take to start",
    "grader/engine/ranks/run_session.py": "the variable that shows a rank its GPU",
    "grader/engine/ranks/kept_server.py": "variables that keep CUDA out of a process that forks",
    "grader/engine/walls/enter_sandbox.py": "CUDA's need for addresses",
    "grader/engine/walls/sandbox.py": "the same",
    "grader/lessons/ddp_training/ranks.py": "the GPUs that the judge pretends",
    "grader/lessons/ddp_training/test_process_group.py": "the same",
    "grader/lessons/lightning_training/ranks.py": "the same",
    "solutions/train/ddp_training.py": "the two kinds, in a comment",
    "solutions/train/lightning_training.py": "the accelerators that Lightning has",
    "solutions/notebooks/00_one_device.py": "the call by its best known name, in the text",
    "solutions/notebooks/01_collectives.py": "CUDA's streams, in the text",
    "solutions/notebooks/12_why_it_is_slow.py": "a copy to a GPU, in the text",
    "benchmarks/gpu.py": "a benchmark of NVIDIA's GPUs, with NCCL",
    "benchmarks/resilience.py": "a variable that hides GPUs",
    "benchmarks/versions.py": "what PyPI's torch brings",
    "benchmarks/watching.py": "a variable that hides GPUs",
}


def test_only_listed_files_name_cuda():
    """Answers of students may; the rest asks for the device's kind (utils/devices.py) or torch.accelerator."""
    files = [
        path.relative_to(COURSE).as_posix()
        for folder in ("utils", "grader", "solutions", "benchmarks")
        for path in (COURSE / folder).rglob("*.py")
    ]
    named = re.compile("cuda", re.IGNORECASE)
    there = {name for name in files if "/answers/" not in name and named.search((COURSE / name).read_text("utf-8"))}
    assert there == {name for name in NAMES_CUDA if (COURSE / name).exists()}, there ^ NAMES_CUDA.keys()
