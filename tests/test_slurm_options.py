"""Batch files as users submit them to a real Slurm: without GPUs, with more tasks, without their environment, from
elsewhere, again after an end; and where Slurm deals task numbers in another order than it lists the nodes.
"""

import re
import sys
import time

import pytest

import slurm
from course_copy import Course
from grader.engine.jobs import batch_header
from grader.engine.lesson import lessons

pytestmark = pytest.mark.skipif(
    bool(slurm.MISSING), reason=f"{', '.join(slurm.MISSING)} not found: apt install slurm-wlm"
)

SMALL = (
    "--data random --epochs 1 --max-steps 2 --batch-size 12 --seq-len 16 --dim 16 --heads 2 --layers 1 --log-every 1"
    " --optimizer sgd --device cpu"
).split()
LASTING = "--epochs 100000 --max-steps 100000 --save-every 5".split()
HERE = ["--cpus-per-task=2"]  # a node of JURECA has more
FILES = sorted(path.stem for path in (lessons.COURSE / "sbatch").glob("*.sbatch"))
FIRST, SECOND = slurm.NODES[:2]


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    made = Course(tmp_path_factory.mktemp("course") / "course")
    for lesson in ("ddp_training", "resilient_training"):
        made.solve(lesson, tuple(lessons.titles(lesson)))
    return made


def ended(cluster, course, file, *options, args=SMALL, cwd=None, patience=300.0, **env):
    """sbatch, and wait: the job's exit code and what it printed."""
    env = {"WORKBOOK_PYTHON": sys.executable, "SITE_GPUS": "", **env}
    folder = cwd or course.folder
    output = course.folder / "%j.out"
    command = [*HERE, f"--output={output}", *options, str(course.folder / "sbatch" / f"{file}.sbatch"), *args]
    job, code = cluster.job(*command, cwd=folder, patience=patience, **env)
    return code, (course.folder / f"{job}.out").read_text()


@pytest.mark.parametrize("file", FILES)
def test_a_job_without_gpus_is_told_in_one_line(cluster, course, file):
    code, said = ended(cluster, course, file, "--gres=none", "--nodes=1")
    assert code == 2 and said.startswith("error: Slurm has granted this job no GPUs: ask for them (--gres=gpu:4)"), said
    assert said.count("\n") == 1, said


def test_where_slurm_counts_no_gpus_the_site_says_how_many_a_node_has(cluster, course):
    code, said = ended(cluster, course, "ddp_training", "--gres=none", "--nodes=2", SITE_GPUS="2")
    assert code == 0 and "2 nodes, 4 ranks on CPU" in said and "test loss" in said, said
    auto = [*SMALL, "--device", "auto"]
    code, said = ended(cluster, course, "ddp_training", "--gres=none", "--nodes=1", args=auto, SITE_GPUS="2")
    assert code == 2 and "error: the site has granted 2 GPUs on " in said and "Traceback" not in said, said


@pytest.mark.parametrize("file", ["ddp_training", "resilient_training"])
def test_more_tasks_than_nodes_are_refused_at_once(cluster, course, file):
    code, said = ended(cluster, course, file, "--ntasks-per-node=2", "--nodes=2", "--gres=gpu:2", "--cpus-per-task=1")
    lines = [line for line in said.splitlines() if not line.startswith("srun: ")]
    assert code == 2 and lines == [
        "error: srun starts 4 torchruns on 2 nodes, and one on each starts all its processes: submit with"
        " --ntasks-per-node=1"
    ], said


def test_without_the_users_environment(cluster, course):
    """Not even PATH: the Python is the course's own."""
    own = course.folder / ".venv" / "bin"
    own.mkdir(parents=True, exist_ok=True)
    (own / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (own / "python").chmod(0o755)
    code, said = ended(cluster, course, "ddp_training", "--export=NONE", "--nodes=2", "--gres=gpu:2")
    assert code == 0 and "2 nodes, 4 ranks on CPU" in said and "test loss" in said, said


@pytest.mark.parametrize("below", ["", "sbatch"])
def test_from_elsewhere(cluster, course, tmp_path, below):
    where = f"--chdir={course.folder / below}"
    code, said = ended(cluster, course, "ddp_training", where, "--nodes=1", "--gres=gpu:2", cwd=tmp_path)
    assert code == 0 and "test loss" in said and not list(tmp_path.iterdir()), said


@pytest.mark.parametrize("how", ["--out", "RUN"])
def test_a_cancelled_run_goes_on_where_a_new_job_is_told_to(cluster, course, how):
    options = [*HERE, f"--output={course.folder}/%j.out", "--nodes=1", "--gres=gpu:2"]
    batch = ["sbatch/resilient_training.sbatch", *SMALL]
    env = {"WORKBOOK_PYTHON": sys.executable}
    first = cluster.submit(*options, *batch, *LASTING, cwd=course.folder, **env)
    run = f"runs/resilient_training-{first}"
    deadline = time.monotonic() + 300
    while not list((course.folder / run).glob("step-*")):
        assert time.monotonic() < deadline, (course.folder / f"{first}.out").read_text()
        time.sleep(0.1)  # a folder can only be looked at
    cluster.ask("scancel", first)
    cluster.ended(first)
    told, env = (["--out", run], env) if how == "--out" else ([], {**env, "RUN": run})
    more = ["--max-steps", "100000", "--epochs", "1", *told]
    code, said = ended(cluster, course, "resilient_training", *options, args=[*SMALL, *more], **env)
    assert code == 0 and re.search(rf"resumes from {run}/step-\d+", said) and "test loss" in said, said
    assert (course.folder / run / "model-final.pt").is_file()


TWO = [f"--nodelist={FIRST},{SECOND}", "--nodes=2", "--gres=gpu:2"]


def dealt_backwards(folder, tasks_a_node):
    """An environment in which steps deal task 0 to the job's second node, as Slurm from 26.05 on may do: the list of
    nodes and SLURM_NODEID keep their order.
    """
    hosts = folder / "hosts"
    hosts.write_text(f"{SECOND}\n" * tasks_a_node + f"{FIRST}\n" * tasks_a_node)
    return {"SLURM_HOSTFILE": str(hosts), "SLURM_DISTRIBUTION": "arbitrary"}


def test_preflight_meets_at_the_node_of_task_0(cluster, course, tmp_path):
    code, said = ended(cluster, course, "preflight", *TWO, args=[], **dealt_backwards(tmp_path, 2))
    assert "between nodes: 2 links" in said and "never came" not in said and "cannot reach" not in said, said
    assert f"{SECOND}: ranks 0 and 1 on CPU" in said and f"{FIRST}: ranks 2 and 3 on CPU" in said, said


def test_torchrun_meets_at_the_first_node_of_the_list(cluster, course, tmp_path):
    code, said = ended(cluster, course, "ddp_training", *TWO, **dealt_backwards(tmp_path, 1))
    assert code == 0 and "2 nodes, 4 ranks on CPU" in said and "test loss" in said, said


def test_without_torchrun_as_the_guide_has_it(cluster, course, tmp_path):
    """docs/launching.md: each task is a rank, and the address is asked of task 0."""
    lines = re.search(r"```bash\n(export MASTER_ADDR=\$\(srun.*?)```", guide(), re.DOTALL)[1]
    batch = course.folder / "sbatch" / "by_srun.sbatch"
    file = (course.folder / "sbatch" / "ddp_training.sbatch").read_text()
    assert file.count("\nsrun ") == 1
    batch.write_text(f"{file.partition(chr(10) + 'srun ')[0]}\n{lines}")
    options = [*TWO, "--ntasks-per-node=2", "--cpus-per-task=1"]
    code, said = ended(cluster, course, "by_srun", *options, **dealt_backwards(tmp_path, 2))
    assert code == 0 and "2 nodes, 4 ranks on CPU" in said and "test loss" in said, said


HEADS = [
    "#SBATCH --nodes=2",
    "#SBATCH --nodes 2",
    "#SBATCH -N 2",
    "#SBATCH -N2",
    "#SBATCH -N2-4",
    "#SBATCH -HN2",  # options in one word
    "#SBATCH\t--nodes=2",
    "#SBATCH--nodes=2",
    "#SBATCH --nodes=2 # two",
    "#SBATCH --nodes=2#two",
    "#SBATCH --job-name='a # b' --nodes=2",
    "#SBATCH --nodes=1\n#SBATCH --nodes=2",
    "#SBATCH --nodes=2\n#SBATCH --nodes=1",
    "#SBATCH --nodes=2 --ntasks-per-nod=1",  # abbreviated
    "#SBATCH --nodes=2 --gres=gpu:4",
    "#SBATCH --nodes=2 --gres=gpu",
    "#SBATCH --nodes=2 --gpus-per-node=2",
    "#SBATCH --nodes=2 --requeue --exclusive",
    "\n#SBATCH --nodes=2",
    "   \n#SBATCH --nodes=2",
    "# a comment\n#SBATCH --nodes=2",
    "  # an indented comment\n#SBATCH --nodes=2",
    "\t# an indented comment\n#SBATCH --nodes=2",
    "true\n#SBATCH --nodes=2",
    "  true\n#SBATCH --nodes=2",
    "set -e # -e\n#SBATCH --nodes=2",
    ": <<X\n#SBATCH --nodes=2\nX",
    " #SBATCH --nodes=2",
    "# SBATCH --nodes=2",
    "##SBATCH --nodes=2",
    "#sbatch --nodes=2",
    "#SBATCHX --nodes=2",
    "#SBATCH nodes=2",
    "#SBATCH --nodes=2 word",
    "#SBATCH --requeue word --nodes=2",
    "#SBATCH --nodez=2",
    "#SBATCH --node=2",  # --nodes, --nodelist or --nodefile
    "#SBATCH --nodes= 2",
    "#SBATCH -N=2",
    "#SBATCH --job-name='a --nodes=2",
]


@pytest.mark.parametrize("head", HEADS)
def test_a_header_is_read_as_slurm_reads_it(cluster, tmp_path, head):
    text = f"#!/bin/bash\n{head}\ntrue\n"
    (tmp_path / "job").write_text(text)
    said = cluster.ask("sbatch", "--parsable", "--hold", "job", cwd=tmp_path)
    if said.returncode:
        assert batch_header.header(text) == {} and batch_header.slip(text), said
        return
    job = dict(re.findall(r"(\w+)=(\S+)", cluster.ask("scontrol", "show", "job", "-o", said.stdout.strip()).stdout))
    cluster.ask("scancel", said.stdout.strip())
    gpus = re.search(r"gpu:?(\d*)$", job.get("TresPerNode", ""))
    real = int(job["NumNodes"].partition("-")[0]), int(gpus[1] or 1) if gpus else 0
    assert (batch_header.nodes_asked(text), batch_header.gpus_asked(text)) == real, job
    assert "nodes" in batch_header.header(text) or batch_header.slip(text) or head.startswith((":", "##")), head


def test_a_file_without_an_interpreter(cluster, tmp_path):
    (tmp_path / "job").write_text(text := "#SBATCH --nodes=2\ntrue\n")
    assert cluster.ask("sbatch", "--hold", "job", cwd=tmp_path).returncode and "#!" in batch_header.slip(text)


def test_the_options_are_slurms(cluster):
    """By its own help: all are known, and which of them take a value."""
    listed = re.findall(r"^\s+(?:-\w,?\s+)?--([a-z-]+)(\[?=|)", cluster.ask("sbatch", "--help").stdout, re.MULTILINE)
    known = {name: sign for name, sign in listed if name not in ("help", "usage", "version")}
    assert len(known) > 70 and known.keys() <= batch_header.KNOWN
    assert {name for name, sign in known.items() if sign == "="} <= batch_header.VALUED
    letters = dict(re.findall(r"^\s+-(\w),?\s+--([a-z-]+)", cluster.ask("sbatch", "--help").stdout, re.MULTILINE))
    assert {k: v for k, v in letters.items() if k not in "hV"} == batch_header.SHORT | batch_header.SHORT_ALONE


def guide():
    return (lessons.COURSE / "docs" / "launching.md").read_text("utf-8")
