"""Batch files: read as a scheduler reads them, run by stand-ins, and Polaris's once for real."""

import ast
import json
import math
import os
import re
import subprocess
import sys

import pytest

from course_copy import Course
from grader.engine.jobs import batch_file, batch_header, launchers, stand_ins
from grader.engine.jobs import submit_job as job_scheduler
from grader.engine.lesson import build, lessons, todo_regions

SOURCES = lessons.COURSE / "solutions" / "sbatch"
FILES = sorted(path.name for path in SOURCES.iterdir())
LATER = [stem for stem in lessons.stems() if not lessons.is_notebook(stem) and not lessons.sources(stem)[1:]]


@pytest.mark.parametrize(
    ("head", "gpus", "nodes"),
    [
        ("#SBATCH --gres=gpu:4\n#SBATCH --nodes=2", 4, 2),
        ("#SBATCH --gres=gpu:A100:3 # of which kind\n#SBATCH -N 2", 3, 2),
        ("#SBATCH --gpus-per-node=2\n#SBATCH -N2-4", 2, 2),
        ("#SBATCH --gpus=8\n#SBATCH --nodes 2", 4, 2),
        ("#SBATCH --gpus-per-task=1\n#SBATCH --ntasks-per-node=4", 4, 1),
        ("# #SBATCH --gres=gpu:4", 0, 1),
        ("echo\n#SBATCH --gres=gpu:4\n#SBATCH --nodes=2", 0, 1),
        ("#PBS -l select=2:system=polaris\n#PBS -l walltime=00:10:00", 0, 2),
    ],
)
def test_headers(head, gpus, nodes):
    text = f"#!/bin/bash\n{head}\n"
    assert (batch_header.gpus_asked(text), batch_header.nodes_asked(text)) == (gpus, nodes)


@pytest.mark.parametrize(
    ("launch", "args", "tasks"),
    [
        (launchers.srun, ["--cpu-bind=none", "x"], [(0, 0), (1, 1)]),
        (launchers.srun, ["--cpu-bind", "none", "-n4", "x"], [(0, 0), (0, 1), (1, 2), (1, 3)]),
        (launchers.srun, ["--overlap", "-N", "1", "x", "-N"], [(0, 0)]),
        (launchers.mpiexec, ["-n", "2", "--ppn", "1", "x"], [(0, 0), (1, 1)]),
        (launchers.mpiexec, ["-n", "4", "--ppn", "2", "--depth=8", "x"], [(0, 0), (0, 1), (1, 2), (1, 3)]),
    ],
)
def test_launchers(launch, args, tasks):
    options, command = launchers.parse(args)
    assert command[0] == "x"
    assert [(node, told.get("SLURM_PROCID", told.get("PMI_RANK"))) for node, told in launch(options, 2, 1)] == tasks


@pytest.mark.parametrize("kind", ["sbatch", "pbs"])
def test_the_baseline_starts_one_process_on_one_gpu(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "single_gpu_training"
    seen = stand_ins.submit((SOURCES / f"{name}.{kind}").read_text(), kind, name)["1"]
    assert seen["code"] == 0, seen
    (ranks,) = batch_file.started(seen)
    assert (ranks.how, ranks.processes, ranks.visible, ranks.script) == (
        "python",
        1,
        ["0"],
        "train/single_gpu_training.py",
    )


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("kind", ["sbatch", "pbs"])
@pytest.mark.parametrize("lesson", LATER)
def test_later_files_start_a_process_on_each_gpu(lesson, kind, nodes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = build.batch_file(lesson, f".{kind}")
    assert "TODO" not in text.replace("TODOs", "") and f"train/{lesson}.py" in text
    seen = stand_ins.submit(text, kind, lesson)[str(nodes)]
    assert seen["code"] == 0, seen
    starts = batch_file.started(seen)
    assert [rank for ranks in starts for rank in ranks.ranks] == list(range(4 * nodes))
    args = stand_ins.ARGS[kind]
    assert {(ranks.world, len(ranks.visible), ranks.script, tuple(ranks.args[-len(args) :])) for ranks in starts} == {
        (4 * nodes, 4, f"train/{lesson}.py", tuple(args))
    }


@pytest.mark.parametrize("kind", ["sbatch", "pbs"])
def test_arguments_reach_the_script(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "ddp_training"
    text = (
        (SOURCES / f"{name}.{kind}")
        .read_text()
        .replace("source utils/site.sh", 'source utils/site.sh; ARGS="--epochs 3"; set -- --epochs 3')
    )
    for start in stand_ins.submit(text, kind, name)["2"]["starts"]:
        assert start["args"][-2:] == ["--epochs", "3"] and start["folder"] == "."


def test_a_file_that_never_ends_is_stopped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stand_ins, "LIMIT", 0.2)
    seen = stand_ins.submit("#!/bin/bash\nwhile :; do :; done\n", "sbatch", "ddp_training")["1"]
    assert seen["code"] != 0 and "does not end" in seen["said"]


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".pbs")])
def test_polaris_would_take_the_header(name):
    """By its queues as documented: debug takes 1 to 2 nodes for up to an hour, and every job names its file systems."""
    text = (SOURCES / name).read_text()
    lines = [line for line in text.splitlines() if line.startswith("#PBS")]
    assert all("#" not in line[1:] for line in lines)  # PBS would take a comment for a value
    options = batch_header.header(text)
    assert 1 <= batch_header.nodes_asked(text) <= 2 and "system=polaris" in options["select"]
    hours, minutes, seconds = map(int, options["walltime"].split(":"))
    assert 0 < hours * 3600 + minutes * 60 + seconds <= 3600
    assert options["filesystems"].split(":") == ["home", "eagle"] and options["place"] == "scatter"
    # The user's own; a directive would be somebody else's.
    assert not any(re.match(r"#PBS -[Aq]", line) for line in lines)
    assert len(re.search(r"#PBS -N (.*)", text).group(1)) <= 15


@pytest.mark.parametrize("name", FILES)
def test_a_batch_file_is_good_bash(name):
    done = subprocess.run(["bash", "-n", SOURCES / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done


MPIEXEC = """#!{python}
import os, signal, subprocess, sys
sys.path.insert(0, {course!r})
from grader.engine.jobs import launchers
options, command = launchers.parse(sys.argv[1:])
tasks = [told for _, told in launchers.mpiexec(options, 2, 1)]
shells = [{{**os.environ, **{{k: str(v) for k, v in told.items()}}}} for told in tasks]
running = {{subprocess.Popen(command, env=env).pid for env in shells}}
worst = 0
while running:
    pid, status = os.wait()
    running.discard(pid)
    worst = max(worst, abs(os.waitstatus_to_exitcode(status)))
    if worst:  # the others would wait for it
        for left in running:
            os.kill(left, signal.SIGTERM)
sys.exit(worst)
"""
SMALL = (
    "--data random --epochs 1 --max-steps 2 --batch-size 12 --seq-len 16 --dim 16 --heads 2 --layers 1 --log-every 1 "
    "--optimizer sgd --device cpu"
).split()


@pytest.mark.long
def test_polaris_for_real_but_for_its_machine(tmp_path):
    """Two "nodes" × two processes, by a stand-in for mpiexec that starts all tasks at once: the losses of the serial
    run.
    """
    course = Course(tmp_path / "course")
    course.solve("ddp_training", tuple(lessons.titles("ddp_training")))
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (
        ("mpiexec", MPIEXEC.format(python=sys.executable, course=str(lessons.COURSE))),
        ("module", "#!/bin/sh\n"),
        ("conda", "#!/bin/sh\n"),
    ):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (tmp_path / "nodes").write_text("127.0.0.1\nlocalhost\n")
    file = course.folder / "sbatch" / "ddp_training.pbs"
    file.write_text(file.read_text().replace("GPUS=4", "GPUS=2"))
    env = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "WORKBOOK_PYTHON": sys.executable,
        "ARGS": " ".join(SMALL),
        "PBS_JOBID": f"{os.getpid()}.here",
        "PBS_JOBNAME": "ddp_training",
        "PBS_NODEFILE": str(tmp_path / "nodes"),
        "PBS_O_WORKDIR": str(course.folder / "sbatch"),
        "PBS_O_HOST": "polaris-login-01",
        "SITE_INTERFACE": "",  # this machine has no hsn0
    }
    done = subprocess.run(
        ["bash", file], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0 and done.stdout.count("test loss") == 1, done
    serial = subprocess.run(
        [sys.executable, "train/single_gpu_training.py", *SMALL, "--out", "runs/serial"],
        cwd=course.folder,
        env=course.environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert serial.returncode == 0, serial
    right, seen = (
        [json.loads(line)["loss"] for line in (course.folder / "runs" / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("serial", f"ddp_training-{os.getpid()}")
    )
    assert all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(right, seen, strict=True))


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return Course(tmp_path_factory.mktemp("course") / "course")


def run(course, *args, lesson="ddp_training", **env):
    return subprocess.run(
        course.command("run", lesson, *args),
        cwd=course.folder,
        env=course.environment(**env),
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def scheduler(folder, program, text="exit 1"):
    folder.mkdir()
    (folder / program).write_text(f"#!/bin/bash\n{text}\n")
    (folder / program).chmod(0o755)
    return str(folder)  # and nothing else on the PATH: this machine may have a scheduler


def test_without_a_scheduler(course, tmp_path):
    nowhere = {"PATH": str(tmp_path)}
    shown = run(course, "--nodes", "2", "--dry-run", "--", "--epochs", "1", **nowhere)
    assert shown.returncode == 0, shown
    assert "$ sbatch --nodes=2 sbatch/ddp_training.sbatch --epochs 1 --record --watch" in shown.stdout
    assert (
        "$ qsub -l select=2:system=polaris -v 'ARGS=--epochs 1 --record --watch' sbatch/ddp_training.pbs"
        in shown.stdout
    )
    refused = run(course, "--nodes", "2", **nowhere)
    assert refused.returncode == 2 and "neither sbatch nor qsub" in refused.stderr and refused.stderr.count("\n") == 1


def test_an_account_that_is_missing(course, tmp_path):
    """The scheduler decides: many sites want none, or know the user's. What it says comes first."""
    refuses = scheduler(tmp_path / "bin", "sbatch", "echo sbatch: error: Invalid account >&2; exit 1")
    done = run(course, "--nodes", "1", PATH=refuses, SBATCH_ACCOUNT="")
    assert done.returncode == 2 and done.stderr.startswith(
        "workbook: sbatch: error: Invalid account (no account is named: export SBATCH_ACCOUNT="
    ), done


def test_a_scheduler_that_fails_twice_is_asked_again(tmp_path, monkeypatch):
    """It restarts, say, while the job runs on; that it runs is said before what it prints."""
    (tmp_path / "out").write_text("test loss 3\n")
    answers = iter(
        [
            "JobState=PENDING",
            "",
            "",
            f"JobState=RUNNING StdOut={tmp_path}/out",
            f"JobState=COMPLETED ExitCode=0:0 JobName=x StdOut={tmp_path}/out",
        ]
    )
    monkeypatch.setattr(job_scheduler, "ask", lambda program, *_: next(answers) if program == "scontrol" else "")
    monkeypatch.setattr(job_scheduler.time, "sleep", lambda _: None)
    shown = []
    ended = job_scheduler.follow("sbatch", "7", shown.append)
    assert "".join(shown) == "job 7: PENDING\njob 7: RUNNING\ntest loss 3\njob 7: COMPLETED\n"
    assert ended.code == 0 and str(job_scheduler.run_folder("7", ended)) == "runs/x-7"


def test_a_scheduler_that_stays_silent(monkeypatch):
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr(job_scheduler, "ask", lambda *_: "")
    monkeypatch.setattr(job_scheduler.time, "sleep", lambda _: None)
    monkeypatch.setattr(job_scheduler.time, "monotonic", lambda: float(next(clock)))
    with pytest.raises(ValueError, match="it may still run: scontrol show job 7"):
        job_scheduler.follow("sbatch", "7", print)


def test_what_slurmctld_has_forgotten_sacct_knows():
    # Shortly before its limit, a job is being sent a signal, and runs on.
    assert not job_scheduler.of_slurm("JobState=SIGNALING ExitCode=0:0").over
    assert job_scheduler.of_slurm("CANCELLED by 1000|0:15|x\n")[:3] == ("CANCELLED", True, 1)


def test_what_the_scheduler_says_is_passed_on(course, tmp_path):
    path = scheduler(tmp_path / "bin", "qsub", "echo 'qsub: Unknown queue' >&2; exit 1")
    done = run(course, "--nodes", "1", "--batch", "-A me -q nowhere", PATH=path)
    assert done.returncode == 2 and done.stderr == "workbook: qsub: Unknown queue\n", done


def test_a_job_of_pbs_is_followed(course, tmp_path):
    path = scheduler(tmp_path / "bin", "qsub", "echo 77.polaris")
    (tmp_path / "out").write_text("test loss 3\n")
    (tmp_path / "bin" / "qstat").write_text(
        "#!/bin/sh\nprintf 'Job Id: 77\\n    job_state = F\\n    Exit_status = 3\\n    Output_Path ="
        f" host:{tmp_path}\\n\\t/out\\n'\n"
    )
    (tmp_path / "bin" / "qstat").chmod(0o755)
    done = run(course, "--nodes", "1", "--batch", "-A me", PATH=path)
    assert done.returncode == 3 and "test loss 3" in done.stdout and "job 77.polaris: ENDED" in done.stdout, done


# Trains where the batch file would: it finds the folder in the same way.
SBATCH = """
while [ "${{1%.sbatch}}" = "$1" ]; do shift; done
shift
SLURM_JOB_NAME=resilient_training SLURM_JOB_ID=77
source utils/run.sh "$@"
{python} train/single_gpu_training.py {args} --record --out "$RUN" >{out} 2>&1
echo "Submitted batch job 77"
"""


@pytest.mark.parametrize(
    ("env", "args", "folder"),
    [
        ({}, [], "resilient_training-77"),
        ({"RUN": "runs/old one"}, [], "old one"),
        ({"RUN": "runs/older"}, ["--out", "runs/new"], "new"),
    ],
)
def test_the_report_is_about_the_folder_in_which_the_job_has_trained(course, tmp_path, env, args, folder):
    out = tmp_path / "out"
    path = scheduler(tmp_path / "bin", "sbatch", SBATCH.format(python=sys.executable, args=" ".join(SMALL), out=out))
    (tmp_path / "bin" / "scontrol").write_text(
        f"#!/bin/sh\necho JobState=COMPLETED ExitCode=0:0 JobName=resilient_training StdOut={out}\n"
    )
    (tmp_path / "bin" / "scontrol").chmod(0o755)
    done = run(course, "--nodes", "1", "--", *args, lesson="resilient_training", PATH=path, **env)
    assert done.returncode == 0 and "test loss" in done.stdout, done
    assert re.search(r"report: +(.+)", done.stdout).group(1).strip("'") == f"runs/{folder}/report.html", done.stdout


def test_where_to_train_reaches_a_job_of_pbs(course, tmp_path):
    """qsub hands no environment on. Only files that read RUN are told."""
    env = {"PATH": str(tmp_path), "RUN": "runs/old"}
    shown = run(course, "--nodes", "1", "--dry-run", lesson="resilient_training", **env)
    assert "-v 'ARGS=--out runs/old --record --watch' sbatch/resilient_training.pbs" in shown.stdout, shown
    shown = run(course, "--nodes", "1", "--dry-run", **env)
    assert "runs/old" not in shown.stdout and "$ sbatch --nodes=1 sbatch/ddp_training.sbatch" in shown.stdout, shown


QSTAT = r"""#!/bin/sh
[ "$*" = "-f 7.here" ] && printf '%s\n\t%s\n' "Job Id: 7.here
    Job_Name = resilient
    queue = small
    Account_Name = ours
    project = _pbs_project_default
    Resource_List.filesystems = home:eagle
    Resource_List.place = scatter
    Resource_List.select = 3:system=polaris:ncpus=64
    Resource_List.walltime = 00:30:00
    Variable_List = PBS_O_HOME=/home/a,PBS_O_PATH=/bin:/usr/bin,ARGS=--epochs 5,SITE_INTER" \
    "FACE=hsn0,GONE=1,WORKBOOK_PYTHON=/a/python"
"""


def handed_on(tmp_path, script, qsub='echo "$@" >>"$ASKED"; echo 8.here'):
    """Run lines of a batch file of PBS after utils/next_job.sh: how they end, and what qsub is given."""
    tools, asked = tmp_path / "tools", tmp_path / "asked"
    tools.mkdir()
    for name, text in (("qstat", QSTAT), ("qsub", f"#!/bin/sh\n{qsub}\n"), ("qdel", '#!/bin/sh\necho qdel "$@"\n')):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", f"set -eo pipefail; source utils/next_job.sh; {script}"],
        cwd=lessons.COURSE,
        env={
            **{"PATH": f"{tools}:/usr/bin:/bin", "ASKED": str(asked), "PBS_JOBID": "7.here", "PBS_O_QUEUE": "prod"},
            **{"ARGS": "--epochs 5", "SITE_INTERFACE": "hsn0", "WORKBOOK_PYTHON": "/a/python"},
        },
        capture_output=True,
        text=True,
    )
    return done, asked.read_text() if asked.exists() else ""


def solution(number):
    """The lines of resilient_training.pbs that a TODO asks for."""
    source = (SOURCES / "resilient_training.pbs").read_text()
    return re.findall(r"### BEGIN SOLUTION\n(.*?)\n###", source.partition(f"# TODO {number}:")[2], re.DOTALL)[0]


def test_the_next_job_of_pbs_is_submitted_like_the_first(tmp_path):
    done, asked = handed_on(tmp_path, f"RUN=runs/x; {solution(11)}; echo next is $NEXT")
    assert done.returncode == 0 and done.stdout == "next is 8.here\n", done
    assert asked == (
        "-q prod -A ours -l filesystems=home:eagle -l place=scatter -l select=3:system=polaris:ncpus=64"
        " -l walltime=00:30:00 -W depend=afterok:7.here -v ARGS,RUN,ARGS,SITE_INTERFACE,WORKBOOK_PYTHON"
        " sbatch/resilient_training.pbs\n"
    )


def test_where_qsub_refuses_a_job_of_pbs_trains_nevertheless(tmp_path):
    refuses = "echo 'qsub: no valid account' >&2; exit 1"
    done, _ = handed_on(tmp_path, f'{solution(11)}; echo trains; qdel "$NEXT"; echo ends', qsub=refuses)
    assert done.returncode == 0 and done.stdout == "trains\nends\n", done
    assert done.stderr == "qsub: no valid account\nwarning: qsub refuses, so no job follows this one\n"


@pytest.mark.parametrize(
    ("args", "given", "folder"),
    [
        ([], "", "runs/job-7"),
        ([], "runs/b", "runs/b"),
        (["--epochs", "5", "--out", "runs/a b"], "runs/b", "runs/a b"),
        (["--out=runs/a", "--epochs", "5"], "", "runs/a"),
    ],
)
@pytest.mark.parametrize("kind", ["SLURM", "PBS"])
def test_the_folder_of_a_run_is_where_it_is_told_to_be(kind, args, given, folder):
    named = {"SLURM": {"SLURM_JOB_NAME": "job", "SLURM_JOB_ID": "7"}, "PBS": {"PBS_JOBNAME": "job", "PBS_JOBID": "7.x"}}
    command = ["bash", "-c", 'set -eo pipefail; source utils/run.sh "$@"; echo "$RUN"', "bash", *args]
    env = {**named[kind], "PATH": "/usr/bin:/bin", **({"RUN": given} if given else {})}
    assert subprocess.run(command, cwd=lessons.COURSE, env=env, capture_output=True, text=True).stdout == f"{folder}\n"


def test_preflight_meets_at_the_node_of_task_0(tmp_path, monkeypatch):
    """From Slurm 26.05 on, task numbers may be dealt in another order than the list of nodes has."""
    monkeypatch.chdir(tmp_path)
    for order, first in ((None, "jrc9"), ([1, 0], "jrc10")):
        (tmp_path / first).mkdir()
        monkeypatch.chdir(tmp_path / first)
        text = (SOURCES / "preflight.sbatch").read_text()
        if order:
            text = text.replace("source utils/site.sh", "source utils/site.sh; export STAND_IN_ORDER=1,0")
        seen = stand_ins.submit(text, "sbatch", "ddp_training")["2"]
        assert seen["code"] == 0 and len(seen["starts"]) == 8, seen
        for start in seen["starts"]:
            assert start["env"]["MASTER_ADDR"] == f"{first}i"
            assert (start["env"]["SLURM_PROCID"] == "0") <= (stand_ins.NODES["sbatch"][start["node"]] == first)


def of_a_notebook(lesson, *functions):
    """What the last of these functions of the solved notebook returns."""
    source, names = lessons.source_path(lesson).read_text("utf-8"), {}
    tree = ast.parse(todo_regions.compose(source, todo_regions.titles(source)))
    tree.body = [node for node in tree.body if getattr(node, "name", "") in functions]
    exec(compile(tree, lesson, "exec"), names)
    return names[functions[-1]]()


OF_SLURM = {f"{lesson}.sbatch": build.batch_file(lesson, ".sbatch") for lesson in LATER} | {
    "11_when_it_hangs": of_a_notebook("11_when_it_hangs", "meeting_place_5", "batch_file_5")
}


@pytest.mark.parametrize("name", OF_SLURM)
def test_a_job_works_where_it_starts_and_not_where_it_was_submitted(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told, elsewhere = stand_ins.slurm, tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(stand_ins, "slurm", lambda nodes, job, folder: told(nodes, job, elsewhere))  # sbatch -D
    seen = stand_ins.submit(OF_SLURM[name], "sbatch", "when_it_hangs")["2"]
    assert seen["code"] == 0 and {start["folder"] for start in seen["starts"]} == {"."}, seen


def test_torchrun_meets_at_the_first_node_whatever_order_tasks_are_dealt_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (SOURCES / "ddp_training.sbatch").read_text()
    text = text.replace("source utils/site.sh", "source utils/site.sh; export STAND_IN_ORDER=1,0")
    starts = batch_file.started(stand_ins.submit(text, "sbatch", "ddp_training")["2"])
    assert [(ranks.ranks, ranks.place.partition(":")[0]) for ranks in starts] == [
        ([0, 1, 2, 3], "jrc9i"),
        ([4, 5, 6, 7], "jrc9i"),
    ]
