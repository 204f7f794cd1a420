"""The reference batch files on a real Slurm: submitted as a user would, with the losses of the serial run."""

import csv
import json
import math
import re
import subprocess
import sys

import pytest

import slurm
from benchmarks import watching
from course_copy import Course
from grader.engine.lesson import lessons, notebooks, todo_regions

pytestmark = pytest.mark.skipif(
    bool(slurm.MISSING), reason=f"{', '.join(slurm.MISSING)} not found: apt install slurm-wlm"
)

SMALL = (
    "--data random --epochs 1 --max-steps 4 --batch-size 12 --seq-len 16 --dim 16 --heads 2 --layers 2 --log-every 2"
    " --lr 0.1 --optimizer sgd --device cpu"
).split()
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
HERE = ["--cpus-per-task=2"]  # a node of JURECA has more


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    made = Course(tmp_path_factory.mktemp("course") / "course")
    for lesson in (
        "ddp_training",
        "fsdp_training",
        "tp_training",
        "expert_training",
        "context_training",
        "pipeline_training",
        "hybrid_training",
        "resilient_training",
    ):
        made.solve(lesson, tuple(lessons.titles(lesson)))
    return made


@pytest.fixture(scope="module")
def late(cluster, course):
    """A job that will meet its time limit, submitted before all others: a minute is the shortest there is."""
    options = ["--time=1", "--gres=gpu:1", "--output=late.out", "--wrap=echo begun; sleep 1000"]
    return cluster.submit(*options, cwd=course.folder)


STEPS, PAUSE = 900, 0.25  # together longer than two jobs of two minutes, less their start and the 30 s before the end
LASTING = (
    "--data random --epochs 100000 --batch-size 12 --seq-len 16 --dim 16 --heads 2 --layers 2 --log-every 1"
    f" --save-every 0 --device cpu --max-steps {STEPS}"
).split()


@pytest.fixture(scope="module")
def requeued(cluster, tmp_path_factory):
    """The folder and the number of a job that meets its limit twice, submitted before the others: it takes ten minutes.

    Slurm looks every 30 s, so the signal comes 30 to 60 s before the limit. A job that is requeued starts again when
    its credential has expired: after two minutes by default, sooner here (cred_expire). After each step it pauses, as
    if its model were large, and leaves the processors to other tests.
    """
    slow = Course(tmp_path_factory.mktemp("slow") / "course")
    slow.solve("resilient_training", tuple(lessons.titles("resilient_training")))
    script = slow.folder / "train" / "resilient_training.py"
    step = "        optimizer.step()\n"
    assert script.read_text().count(step) == 1
    script.write_text(script.read_text().replace(step, f"{step}        time.sleep({PAUSE})\n"))
    options = [*HERE, "--nodes=1", "--gres=gpu:2", "--time=2", "--signal=USR1@30"]
    batch = ["sbatch/resilient_training.sbatch", *LASTING]
    return slow.folder, cluster.submit(*options, *batch, cwd=slow.folder, WORKBOOK_PYTHON=sys.executable)


def losses(folder):
    """The lines of metrics.jsonl, without what depends on the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["kind"], line["step"], line.get("validation_loss"), line["loss"]) for line in lines]


@pytest.fixture(scope="module")
def serial(course):
    done = subprocess.run(
        [sys.executable, "train/single_gpu_training.py", *SMALL, "--out", "runs/serial"],
        cwd=course.folder,
        env=course.environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done
    return losses(course.folder / "runs" / "serial")


def submitted(cluster, folder, file, *options, flags=()):
    """sbatch, and wait for the job's end. Returns its number and its output, which is where it was submitted."""
    job, code = cluster.job(*HERE, *options, file, *SMALL, *flags, cwd=folder, WORKBOOK_PYTHON=sys.executable)
    name = file.rpartition("/")[2].partition(".")[0]
    output = folder / f"{name}-{job}.out"
    assert code == 0, (code, output.exists() and output.read_text())
    return job, output.read_text()


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("below", "name", "options", "flags"),
    [
        (False, "ddp_training", ["--nodes=2", "--gres=gpu:2"], []),
        (True, "ddp_training", ["--nodes=1", "--gres=gpu:3"], []),
        (False, "fsdp_training", ["--nodes=2", "--gres=gpu:2"], []),
        # the two ranks of a node share each layer, and the nodes are data-parallel
        (False, "tp_training", ["--nodes=2", "--gres=gpu:2"], ["--tp", "2"]),
        (False, "tp_training", ["--nodes=2", "--gres=gpu:2"], ["--tp", "2", "--sequence-parallel"]),
        # one expert is the plain model's MLP
        (False, "expert_training", ["--nodes=2", "--gres=gpu:2"], ["--experts", "1", "--top-k", "1"]),
        (False, "pipeline_training", ["--nodes=2", "--gres=gpu:2"], []),
        (False, "hybrid_training", ["--nodes=2", "--gres=gpu:2"], []),
        (False, "hybrid_training", ["--nodes=2", "--gres=gpu:2"], ["--pp", "1", "--cp", "2"]),
        (False, "context_training", ["--nodes=2", "--gres=gpu:2"], ["--cp", "2"]),
        (True, "single_gpu_training", [], []),
    ],
)
def test_a_job_has_the_losses_of_the_serial_run(cluster, course, requeued, late, serial, below, name, options, flags):
    folder, file = (course.folder / "sbatch", f"{name}.sbatch") if below else (course.folder, f"sbatch/{name}.sbatch")
    job, output = submitted(cluster, folder, file, *options, flags=flags)
    assert output.count("test loss") == 1, output
    first = next(line for line in output.splitlines() if not line.startswith("srun: "))
    assert first.startswith("2 nodes, 4 ranks on CPU, gloo, " if "--nodes=2" in options else "1 node, "), output
    for right, seen in zip(serial, losses(course.folder / "runs" / f"{name}-{job}"), strict=True):
        assert right[:2] == seen[:2]
        for a, b in zip(right[2:], seen[2:]):
            assert a == b is None or math.isclose(a, b, rel_tol=1e-4)


def test_what_a_user_sees_of_a_mistake(cluster, course):
    def refused(*options):
        return cluster.ask("sbatch", *HERE, *options, "sbatch/ddp_training.sbatch", cwd=course.folder)

    wrong = refused("--partition=dc-gpus")
    assert wrong.returncode != 0 and "invalid partition specified: dc-gpus" in wrong.stderr
    many = refused("--gres=gpu:8")
    assert many.returncode != 0 and "Requested node configuration is not available" in many.stderr


@pytest.mark.parametrize(
    ("where", "env", "words"),
    [
        ("nowhere", {}, "error: submit this from the course's folder, or from sbatch/ in it"),
        ("", {"WORKBOOK_PYTHON": "/nowhere/python"}, "error: no Python with torch on "),
    ],
)
def test_what_is_missing_is_told_in_one_line(cluster, course, where, env, words):
    folder = course.folder / where / where if where else course.folder
    folder.mkdir(parents=True, exist_ok=True)
    plain = {"PATH": "/usr/bin:/bin"}  # on which there is no torch
    job, code = cluster.job(
        *HERE,
        "--nodes=1",
        "--gres=gpu:1",
        str(course.folder / "sbatch" / "ddp_training.sbatch"),
        cwd=folder,
        **plain,
        **env,
    )
    output = (folder / f"ddp_training-{job}.out").read_text()
    assert code != 0 and output.startswith(words) and output.count("\n") == 1, output


def test_run_submits_and_follows(cluster, course, serial):
    """`./workbook run --nodes`: the command it prints, the job's output, the job's exit code."""
    # Without an account: this Slurm wants none.
    env = course.environment(WORKBOOK_PYTHON=sys.executable) | {"SLURM_CONF": cluster.env["SLURM_CONF"]}
    done = subprocess.run(
        course.command(
            "run", "ddp_training", "--nodes", "2", "--batch", "--gres=gpu:1 --cpus-per-task=2", "--", *SMALL
        ),
        cwd=course.folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done
    assert "$ sbatch --nodes=2 --gres=gpu:1 --cpus-per-task=2 sbatch/ddp_training.sbatch --data random" in done.stdout
    assert "test loss" in done.stdout and "COMPLETED" in done.stdout
    assert done.stdout.index("RUNNING") < done.stdout.index("2 nodes, 2 ranks on CPU, gloo")
    page = re.search(r"report: +(\S+)", done.stdout)
    assert page and (course.folder / page[1]).is_file(), done


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            "two ranks in different order",
            r"it can never continue.* rank 0 all_reduce .* rank 1 broadcast .*ddp_training\.py",
        ),
        ("`kill -9` of a rank", r"rank 1 (is gone|never comes)"),
    ],
)
def test_run_ends_a_job_on_two_nodes_that_can_never_go_on(cluster, course, fault, words):
    watching.plant(course, watching.FAULTS[fault])
    env = {"SLURM_CONF": cluster.env["SLURM_CONF"], "SBATCH_ACCOUNT": "mine", "WORKBOOK_PYTHON": sys.executable}
    try:
        told = watching.run(course, "--nodes", "2", "--batch", "--gres=gpu:1 --cpus-per-task=2", **env)
    finally:
        course.solve("ddp_training", tuple(lessons.titles("ddp_training")))
    assert told.code != 0 and re.search(words, told.text), told.text
    assert not cluster.ask("squeue", "-h", "-n", "ddp_training").stdout


def test_a_job_that_was_granted_gpus_and_sees_none_is_refused(cluster, course):
    job, code = cluster.job(
        *HERE,
        *("--nodes=2", "--gres=gpu:2", "sbatch/ddp_training.sbatch", *SMALL, "--device", "auto"),
        cwd=course.folder,
        WORKBOOK_PYTHON=sys.executable,
        CUDA_VISIBLE_DEVICES="",
    )
    output = (course.folder / f"ddp_training-{job}.out").read_text()
    said = [line for line in output.splitlines() if line.startswith("error: Slurm has granted 2 GPUs on ")]
    assert code == 2 and said and "Traceback" not in output, output
    assert not (course.folder / "runs" / f"ddp_training-{job}").exists()


def test_a_time_limit(cluster, course, late):
    """Late, for it takes a minute and more: Slurm says why the job ended."""
    cluster.ended(late)
    output = (course.folder / "late.out").read_text()
    assert output.startswith("begun") and "DUE TO TIME LIMIT" in output


def test_a_class_is_graded_by_an_array_of_jobs(cluster, course, tmp_path):
    """The same marks as on one machine."""
    for student, todos in {"all": range(1, 10), "half": (1, 2, 3), "nothing": ()}.items():
        target = tmp_path / "class" / student / "notebooks" / "01_collectives.ipynb"
        target.parent.mkdir(parents=True)
        source = todo_regions.compose(lessons.source_path("01_collectives").read_text("utf-8"), todos)
        target.write_text(notebooks.to_json(notebooks.to_notebook(source, "01_collectives", released=False)))
    command = course.command(
        "grade",
        str(tmp_path / "class"),
        "--out",
        str(tmp_path / "out"),
        "--lessons",
        "01_collectives",
        "--jobs",
        "2",
        "--slurm",
    )
    environment = course.environment(**cluster.env)
    done = subprocess.run(command, cwd=course.folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path / "out" / "marks.csv").open() as table:
        assert {row["student"]: row["total"] for row in csv.DictReader(table)} == {
            "all": "9",
            "half": "3",
            "nothing": "0",
        }
    # Two jobs; their results may still be on their way, for a mark counts as soon as it is there.
    assert len(list((tmp_path / "out" / "slurm").glob("*_0_log.out"))) == 2


def test_a_run_meets_its_limit_twice_and_is_requeued(cluster, course, requeued):
    run = [*TORCHRUN, "solutions/train/resilient_training.py", *LASTING, "--out", "runs/straight"]
    env = course.environment(OMP_NUM_THREADS="1")
    subprocess.run(run, cwd=course.folder, env=env, check=True, capture_output=True, timeout=1500)
    right = steps_of(course.folder / "runs" / "straight")

    folder, job = requeued
    code = cluster.ended(job, patience=3000)
    output = (folder / f"resilient_training-{job}.out").read_text()
    assert code == 0, output
    stops = re.findall(r"asked to stop: saved at step (\d+)", output)
    assert len(stops) >= 2 and re.findall(r"resumes from runs/\S+/step-(\d+)", output) == stops, output
    seen = steps_of(folder / "runs" / f"resilient_training-{job}")
    # A run that stops logs the mean since its last line, which is here each step's own.
    assert [step for step, _ in seen] == [step for step, _ in right]
    assert [loss for _, loss in seen] == pytest.approx([loss for _, loss in right], rel=1e-4)


def steps_of(folder):
    return [(step, loss) for kind, step, _, loss in losses(folder) if kind == "step"]
