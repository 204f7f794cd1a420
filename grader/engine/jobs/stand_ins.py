"""Runs batch files as a batch system would, with stand-ins for its commands.

`submit` writes a course of empty scripts, puts stand-ins for srun, mpiexec,
scontrol, torchrun, python and their like first on the PATH, and gives the
student's file to bash, as Slurm or PBS does on the first node of a job. srun
and mpiexec run their command once for each task with that task's environment;
torchrun and python start nothing and record how they were called. This shows
what each node would start, without a cluster.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from grader.engine.jobs.batch_header import GPUS, header, number_or_zero

SHELL = Path(__file__).resolve().parents[3] / "utils"  # what batch files source
LIMIT = 15.0  # seconds for a file that starts only stand-ins, which take a tenth of a second
# The nodes of a job, by the kind of its batch file. Slurm lists them by number, PBS as they were granted: the first is
# never the first in the alphabet.
NODES = {"sbatch": ("jrc9", "jrc10"), "pbs": ("x3102c0s7b0n0", "x3004c0s13b0n0")}
FIRST = tuple(names[0] for names in NODES.values())
ADDRESSES = {name: f"10.0.1.{number}" for names in NODES.values() for number, name in enumerate(names, start=1)}
# Job numbers: one node, submitted from the course's folder; two nodes, from the folder below. Both end with the same
# digit, because a port computed from the last digit is shared by a tenth of jobs. The first has a small remainder
# modulo 10,000 or 65,536, and its last digits, 0769, are not an octal number; the second has the largest remainder
# modulo any round number up to 60,000: so a port that can be too low or too high is so here. AGAIN is a second job of
# two nodes, for a port that depends on the number of nodes.
JOBS = {1: 12320769, 2: 12599999}
AGAIN = 12410119
# What the user passes to the script. PBS's batch files split arguments at blanks, so those for PBS have none.
ARGS = {"sbatch": ["--epochs", "3", "--data", "my  texts"], "pbs": ["--epochs", "3"]}
# In sh, since Python takes longer to start; stand-ins that launch tasks are in launchers.py.
RECORD = """#!/bin/sh
case "$1 $2" in
    *find_spec*) exit 0 ;; # is torch there? It is
    -c*) exec {python} "$@" ;;
esac
record=$(mktemp "$STAND_IN_ROOT/start-XXXXXX")
{ printf '%s\\0' "${0##*/}" "$PWD" "${STAND_IN_NODE:-0}" "$#" "$@"; env -0; } >"$record"
""".replace("{python}", shlex.quote(sys.executable))


STAND_INS = {
    "torchrun": RECORD,
    "python": RECORD,
    "python3": RECORD,
    "scontrol": '#!/bin/sh\n[ "$1" != show ] || cat "$STAND_IN_ROOT/nodes"\n',
    "hostname": '#!/bin/sh\nsed -n "$((${STAND_IN_NODE:-0} + 1))p" "$STAND_IN_ROOT/nodes"\n',
    "nslookup": '#!/bin/sh\nprintf "Server: 10.0.0.1\\n\\nName: %s\\nAddress: %s\\n" "$1" "$(getent hosts "$1")"\n',
    "getent": (
        "#!/bin/sh\nfor name; do :; done\ncase $name in "
        + " ".join(f"{name}*) echo {place} ;;" for name, place in ADDRESSES.items())
        + " esac\n"
    ),
} | {name: "#!/bin/sh\n" for name in ("module", "conda", "nvidia-smi", "sbatch", "qsub", "qdel")}


@dataclass
class Start:
    """One call of torchrun or python: where it was made, and with which arguments."""

    program: str
    args: list[str]
    env: dict[str, str]
    folder: str  # where it was called, from the course's folder
    node: int


def submit(text: str, kind: str, name: str) -> dict:
    """Run a batch file in the current folder as one job on one node and two jobs on two nodes with four GPUs each.

    `kind` is sbatch or pbs. Returns, for "1" and "2" nodes and "again", {"code", "said", "starts": [Start as dict],
    "left": whether it left processes running}.
    """
    jobs = {  # side by side
        "1": begin(text, kind, name, 1),
        "2": begin(text, kind, name, 2, submitted_from="sbatch"),
        "again": begin(text, kind, name, 2, number=AGAIN, submitted_from="sbatch"),
    }
    return {which: evidence(*job) for which, job in jobs.items()}


def begin(
    text: str,
    kind: str,
    name: str,
    nodes: int,
    programs: dict[str, str] | None = None,
    number: int = 0,
    submitted_from: str = "",
) -> tuple[subprocess.Popen, Path]:
    """Start a batch file; `programs` are additional stand-ins, `number` is the job's; it is submitted from this folder
    of the course.
    """
    root = Path.cwd() / (f"{nodes}-nodes-again" if number else f"{nodes}-nodes")
    number = number or JOBS[nodes]
    course, tools = root / "course", root / "tools"
    file = a_course(course, name) / f"{name}.{kind}"
    file.write_text(text)
    write_programs(tools, programs or {})
    (root / "nodes").write_text("".join(f"{node}\n" for node in NODES[kind][:nodes]))
    env = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "USER", "TMPDIR")}
    env.update(
        PATH=f"{tools}:/usr/bin:/bin",
        STAND_IN_ROOT=str(root),
        STAND_IN_NODES=str(nodes),
        STAND_IN_TASKS=str(tasks_a_node(text, nodes)),
    )
    folder = course / submitted_from
    env.update(slurm(nodes, number, folder) if kind == "sbatch" else pbs(number, root, folder))
    said = (root / "said").open("w")
    args = ARGS[kind] if kind == "sbatch" else []
    return (
        subprocess.Popen(
            ["bash", str(file), *args],
            cwd=folder if kind == "sbatch" else course,  # Slurm starts a job where it was submitted
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        ),
        root,
    )


def a_course(course: Path, name: str) -> Path:
    """What batch files need of the course, in a new folder; returns the folder for batch files."""
    for folder in ("train", "sbatch", "utils"):
        (course / folder).mkdir(parents=True)
    for script in ("single_gpu_training", name):
        (course / "train" / f"{script}.py").touch()
    for file in SHELL.glob("*.sh"):
        shutil.copy(file, course / "utils")
    return course / "sbatch"


def write_programs(tools: Path, more: dict[str, str]) -> None:
    tools.mkdir()
    launchers = Path(__file__).with_name("launchers.py")
    # bash, since sh would not pass on an exported function
    python = (
        f'#!/usr/bin/env bash\nexec {shlex.quote(sys.executable)} -IS {shlex.quote(str(launchers))} "${{0##*/}}" "$@"\n'
    )
    for program, script in {**STAND_INS, "srun": python, "mpiexec": python, "mpirun": python, **more}.items():
        (tools / program).write_text(script)
        (tools / program).chmod(0o755)


def evidence(process: subprocess.Popen, root: Path) -> dict:
    try:
        code = process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
        (root / "said").open("a").write(f"\nit does not end within {LIMIT:.0f} s")
    left = True
    try:
        os.killpg(process.pid, signal.SIGKILL)  # processes left in the background end with the job
    except ProcessLookupError:
        left = False
    starts = []
    for record in sorted(root.glob("start-*")):
        if "\0" not in (text := record.read_text(errors="replace")):
            continue  # it ran in the background, and ended with the job before it had written
        program, folder, node, count, *rest = text.split("\0")
        env = dict(line.partition("=")[::2] for line in rest[int(count) :] if line)
        env = {name: value for name, value in env.items() if name.startswith(TOLD)}
        starts.append(
            dict(
                program=program,
                args=rest[: int(count)],
                env=env,
                folder=os.path.relpath(folder, root / "course"),
                node=int(node),
            )
        )
    said = (root / "said").read_text(errors="replace")[-2000:].replace(f"{root}/course/", "")
    return {"code": code, "said": said, "starts": starts, "left": left}


TOLD = ("MASTER_", "CUDA_VISIBLE", "SLURM_PROCID", "SLURM_STEP_NUM", "PMI_", "RANK", "WORLD_SIZE", "PET_", "GPUS")


def slurm(nodes: int, job: int, folder: Path) -> dict[str, str]:
    """What Slurm tells a batch script on the first node."""
    first = NODES["sbatch"][0]
    names = first if nodes == 1 else "jrc[9-10]"
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_JOBID": str(job),
        "SLURM_JOB_NAME": "job",
        "SLURM_NNODES": str(nodes),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_JOB_NODELIST": names,
        "SLURM_NODELIST": names,
        "SLURM_GPUS_ON_NODE": str(GPUS),
        "SLURM_JOB_GPUS": ",".join(map(str, range(GPUS))),
        "SLURM_SUBMIT_HOST": "jrlogin01",
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURMD_NODENAME": first,
        "SLURM_CPUS_PER_TASK": "128",
        "SLURM_TOPOLOGY_ADDR": first,
        "SLURM_LAUNCH_NODE_IPADDR": ADDRESSES[first],
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(GPUS))),
        "SYSTEMNAME": "jurecadc",
    }


def pbs(job: int, root: Path, folder: Path) -> dict[str, str]:
    """What PBS tells a batch script on the first node."""
    return {
        "PBS_JOBID": f"{job}.polaris-pbs-01",
        "PBS_O_WORKDIR": str(folder),
        "PBS_JOBNAME": "job",
        "PBS_NODEFILE": str(root / "nodes"),
        "PBS_O_HOST": "polaris-login-01",
        "ARGS": " ".join(ARGS["pbs"]),
    }


def tasks_a_node(text: str, nodes: int) -> int:
    """How many tasks per node the header requests, as srun will start them."""
    options = header(text)
    asked = options.get("ntasks-per-node", "")
    return number_or_zero(asked) if asked else max(1, number_or_zero(options.get("ntasks", "")) // nodes)
