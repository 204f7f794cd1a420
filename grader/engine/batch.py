"""Batch files, run as a batch system would run them, by stand-ins for its commands.

`submit` writes a course of empty scripts, puts stand-ins for srun, mpiexec,
scontrol, torchrun, python and their like first on the PATH, and gives the
student's file to bash, as Slurm or PBS does on the first node of a job. srun
and mpiexec run their command once for each task with that task's environment;
torchrun and python start nothing and write down how they were called. So what
each node would start is known, without a cluster.

`started` says what those calls mean: which ranks each node would have.
"""

import difflib
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SITE = Path(__file__).resolve().parents[2] / "utils" / "site.sh"
GPUS = 4  # on a node of JURECA-DC and of Polaris
LIMIT = 15.0  # seconds for a file that starts nothing but stand-ins, which take a tenth of one on a machine that is not busy
NODES = ("jrc0101", "jrc0102")
# Two jobs: from the course's folder on one node, and from the folder below on two. Both end with the
# same digit, for a port by the last digit of its number is one that one job in ten has.
JOBS = {1: 12004241, 2: 12004251}
ARGS = ["--epochs", "3"]  # that the user gives to the script

# In sh, for Python takes longer to start; what launches others is in launchers.py.
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
    "scontrol": '#!/bin/sh\n[ "$1" = show ] && cat "$STAND_IN_ROOT/nodes"\n',
    "hostname": f"#!/bin/sh\necho {NODES[0]}\n",
    "nslookup": '#!/bin/sh\nprintf "Server: 10.0.0.1\\n\\nName: %s\\nAddress: %s\\n" "$1" "$(getent hosts "$1")"\n',
    "getent": (
        f"#!/bin/sh\nfor name; do :; done\ncase $name in {NODES[0]}*) echo 10.0.1.1 ;; {NODES[1]}*) echo 10.0.1.2 ;;"
        " esac\n"
    ),
} | {name: "#!/bin/sh\n" for name in ("module", "conda", "nvidia-smi", "sbatch", "qsub")}


@dataclass
class Start:
    """One call of torchrun or python, where it was made and with what."""

    program: str
    args: list[str]
    env: dict[str, str]
    folder: str  # where it was called, from the course's folder
    node: int


def submit(text: str, kind: str, name: str) -> dict:
    """Run a batch file in the current folder as a job of one and a job of two nodes, four GPUs each; evidence of both.

    `kind` is sbatch or pbs. Returns, for "1" and "2" nodes, {"code", "said", "starts": [Start as dict]}.
    """
    jobs = {nodes: begin(text, kind, name, nodes) for nodes in JOBS}  # side by side
    return {str(nodes): evidence(*job) for nodes, job in jobs.items()}


def begin(text: str, kind: str, name: str, nodes: int) -> tuple[subprocess.Popen, Path]:
    root = Path.cwd() / f"{nodes}-nodes"
    course, tools = root / "course", root / "tools"
    for folder in ("train", "sbatch", "utils"):
        (course / folder).mkdir(parents=True)
    for script in ("single_gpu_training", name):
        (course / "train" / f"{script}.py").touch()
    shutil.copy(SITE, course / "utils")
    file = course / "sbatch" / f"{name}.{kind}"
    file.write_text(text)
    tools.mkdir()
    launchers = Path(__file__).with_name("launchers.py")
    python = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -IS {shlex.quote(str(launchers))} "${{0##*/}}" "$@"\n'
    for program, script in {**STAND_INS, "srun": python, "mpiexec": python, "mpirun": python}.items():
        (tools / program).write_text(script)
        (tools / program).chmod(0o755)
    (root / "nodes").write_text("".join(f"{node}\n" for node in NODES[:nodes]))
    env = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "USER", "TMPDIR")}
    env.update(
        PATH=f"{tools}:/usr/bin:/bin",
        STAND_IN_ROOT=str(root),
        STAND_IN_NODES=str(nodes),
        STAND_IN_TASKS=str(tasks_a_node(text, nodes)),
    )
    env.update(slurm(nodes) if kind == "sbatch" else pbs(nodes, root))
    env["SLURM_SUBMIT_DIR" if kind == "sbatch" else "PBS_O_WORKDIR"] = str(course if nodes == 1 else course / "sbatch")
    said = (root / "said").open("w")
    args = ARGS if kind == "sbatch" else []
    return (
        subprocess.Popen(
            ["bash", str(file), *args], cwd=course, env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said
        ),
        root,
    )


def evidence(process: subprocess.Popen, root: Path) -> dict:
    try:
        code = process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
        (root / "said").open("a").write(f"\nit does not end within {LIMIT:.0f} s")
    starts = []
    for record in sorted(root.glob("start-*")):
        program, folder, node, count, *rest = record.read_bytes().decode(errors="replace").split("\0")
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
    return {"code": code, "said": said, "starts": starts}


TOLD = ("MASTER_", "CUDA_VISIBLE", "SLURM_PROCID", "SLURM_STEP_NUM", "PMI_", "RANK", "WORLD_SIZE", "PET_", "GPUS")


def slurm(nodes: int) -> dict[str, str]:
    """What Slurm tells a batch script on the first node."""
    names, job = NODES[0] if nodes == 1 else "jrc[0101-0102]", JOBS[nodes]
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_JOBID": str(job),
        "SLURM_JOB_NAME": "job",
        "SLURM_NNODES": str(nodes),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_JOB_NODELIST": names,
        "SLURM_NODELIST": names,
        "SLURM_GPUS_ON_NODE": str(GPUS),
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURMD_NODENAME": NODES[0],
        "SLURM_CPUS_PER_TASK": "128",
        "SLURM_TOPOLOGY_ADDR": NODES[0],
        "SLURM_LAUNCH_NODE_IPADDR": address(NODES[0]),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(GPUS))),
        "SYSTEMNAME": "jurecadc",
    }


def pbs(nodes: int, root: Path) -> dict[str, str]:
    """What PBS tells a batch script on the first node."""
    return {
        "PBS_JOBID": f"{JOBS[nodes]}.polaris-pbs-01",
        "PBS_JOBNAME": "job",
        "PBS_NODEFILE": str(root / "nodes"),
        "PBS_O_HOST": "polaris-login-01",
        "ARGS": " ".join(ARGS),
    }


def address(node: str) -> str:
    return f"10.0.1.{NODES.index(node) + 1}"


def tasks_a_node(text: str, nodes: int) -> int:
    """How many tasks a node the header asks for, as srun will start them."""
    options = header(text)
    asked = options.get("ntasks-per-node", "")
    return number(asked) if asked else max(1, number(options.get("ntasks", "")) // nodes)


SHORT = {
    "N": "nodes",
    "n": "ntasks",
    "G": "gpus",
    "t": "time",
    "p": "partition",
    "A": "account",
    "J": "job-name",
    "o": "output",
    "c": "cpus-per-task",
}


def header(text: str) -> dict[str, str]:
    """The directives of a batch file: long names -> values; PBS's resources by their own names."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            break  # Slurm reads no further
        if line.startswith("#SBATCH"):
            words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
            for word, after in zip(words, [*words[1:], ""]):
                if word.startswith("--"):
                    name, _, value = word[2:].partition("=")
                    found[name] = value or after
                elif word.startswith("-") and word[1:2] in SHORT:
                    found[SHORT[word[1]]] = word[2:].removeprefix("=") or after
        elif line.startswith("#PBS -l"):
            for part in line.removeprefix("#PBS -l").strip().split(","):
                name, _, value = part.partition("=")
                found[name] = value
    return found


# Long options of sbatch (its man page, 24.05) that a course's job may use.
KNOWN = set(SHORT.values()) | set(
    """array begin chdir comment constraint contiguous core-spec cpu-freq cpus-per-gpu dependency distribution
    error exclude exclusive export get-user-env gpu-bind gpu-freq gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint hold
    input licenses mail-type mail-user mem mem-bind mem-per-cpu mem-per-gpu mincpus network nice nodelist no-requeue ntasks-per-core
    ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode overcommit oversubscribe parsable power priority profile qos quiet reboot
    requeue reservation signal sockets-per-node spread-job switches thread-spec threads-per-core time-min tmp tres-per-task uid verbose wait
    wckey""".split()
)


def slip(text: str) -> str:
    """Why a directive of a batch file may not be read as it was meant; "" if nothing is strange."""
    over = False
    for line in text.splitlines():
        over = over or bool(line.strip() and not line.startswith("#"))
        if over and line.startswith(("#SBATCH", "#PBS")):
            return f"“{line}” stands below the first command, where no directive is read any more"
        if not over and re.match(r"#\s+(SBATCH|PBS)\b|#(sbatch|pbs|Sbatch|SBACTH)\b", line):
            return f"“{line}” is a comment; a directive begins with #SBATCH or #PBS, without a space"
    unknown = next((name for name in header(text) if "#SBATCH" in text and name not in KNOWN), "")
    close = difflib.get_close_matches(unknown, KNOWN, n=1)
    if not unknown and not header(text).get("gres", "gpu").startswith("gpu:"):
        return f"in --gres={header(text)['gres']} nothing is called gpu" if "gres" in header(text) else ""
    return f"Slurm has no option --{unknown}" + (f"; --{close[0]}?" if close else "") if unknown else ""


def nodes_asked(text: str) -> int:
    """The nodes that the header asks for; 1 where it is silent."""
    options = header(text)
    number = re.match(r"\d+", options.get("select", options.get("nodes", "1")))
    return int(number.group()) if number else 1


def gpus_asked(text: str) -> int:
    """The GPUs a node that a Slurm header asks for."""
    options = header(text)
    if "gpus" in options and options["gpus"].rpartition(":")[2].isdecimal():
        return int(options["gpus"].rpartition(":")[2]) // nodes_asked(text)
    for name in ("gres", "gpus-per-node", "gpus-per-task"):
        pattern = r"gpu(?::[^,:]+)?:(\d+)" if name == "gres" else r"(?:[^,:]+:)?(\d+)"
        found = re.fullmatch(pattern, options.get(name, "").split(",")[0])
        if found:
            return int(found.group(1)) * (int(options.get("ntasks-per-node", 1)) if name == "gpus-per-task" else 1)
    return 0


# What the calls mean


@dataclass
class Ranks:
    """What one call starts: ranks on a node, and where they meet."""

    node: int
    how: str  # in the student's words: torchrun, python
    script: str
    ranks: list[int] | None  # None: dealt out when the nodes meet
    processes: int
    world: int
    place: str  # address:port, "" if it is not said or any will do
    identity: str  # of the rendezvous, "" if there is none
    hosts: bool | None  # this node is told to be the host; None: nobody is told
    visible: list[str]
    args: list[str]  # of the script
    told: str  # MASTER_ADDR:MASTER_PORT in its environment


def started(seen: dict) -> list[Ranks]:
    return sorted((meaning(Start(**start)) for start in seen["starts"]), key=lambda ranks: ranks.node)


def meaning(start: Start) -> Ranks:
    env = start.env
    visible = [
        part.strip()
        for part in env.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(GPUS)))).split(",")
        if part.strip()
    ]
    told = f"{env.get('MASTER_ADDR', '')}:{env.get('MASTER_PORT', '')}"
    args = list(start.args)
    if start.program != "torchrun" and args[:2] == ["-m", "torch.distributed.run"]:
        args = args[2:]
    elif start.program != "torchrun":
        rank, world = next(
            (
                (int(env[r]), int(env[w]))
                for r, w in (("RANK", "WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
                if r in env and w in env
            ),
            (0, 1),
        )
        while args and args[0].startswith("-"):
            args.pop(0)
        script, rest = (args[0], args[1:]) if args else ("", [])
        return Ranks(start.node, "python", script, [rank], 1, world, told.strip(":"), "", None, visible, rest, told)

    options, script, rest = torchrun_options(args)
    nnodes = number(options.get("nnodes", "1").partition(":")[0])
    asked = options.get("nproc-per-node", "1")
    processes = len(visible) if asked in ("gpu", "auto") else number(asked)
    if "standalone" in options or nnodes == 1 and not {"rdzv-endpoint", "master-addr"} & options.keys():
        return Ranks(
            start.node,
            "torchrun",
            script,
            list(range(processes)),
            processes,
            processes,
            "",
            "",
            None,
            visible,
            rest,
            told,
        )
    if options.get("rdzv-backend", "static") == "static":
        node_rank = number(options.get("node-rank", env.get("PET_NODE_RANK", "0")))
        place = (
            options.get("rdzv-endpoint")
            or f"{options.get('master-addr', '127.0.0.1')}:{options.get('master-port', '29500')}"
        )
        ranks = [node_rank * processes + local for local in range(processes)]
        return Ranks(
            start.node,
            "torchrun",
            script,
            ranks,
            processes,
            nnodes * processes,
            place,
            "",
            node_rank == 0,
            visible,
            rest,
            told,
        )
    conf = dict(part.partition("=")[::2] for part in options.get("rdzv-conf", "").split(",") if part)
    hosts = conf["is_host"].strip().lower() in ("1", "true", "t", "yes", "y") if "is_host" in conf else None
    return Ranks(
        start.node,
        "torchrun",
        script,
        None,
        processes,
        nnodes * processes,
        options.get("rdzv-endpoint", ""),
        options.get("rdzv-id", "none"),
        hosts,
        visible,
        rest,
        told,
    )


FLAGS = {"standalone", "no-python", "run-path", "no_python", "run_path", "m", "module"}


def torchrun_options(args: list[str]) -> tuple[dict[str, str], str, list[str]]:
    """Options by their name with dashes, the script, and its arguments."""
    options: dict[str, str] = {}
    rest = list(args)
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).lstrip("-").partition("=")
        name = name.replace("_", "-")
        if name in FLAGS:
            options[name] = ""
        else:
            options[name] = value if equals else rest.pop(0) if rest else ""
    return (options, rest[0], rest[1:]) if rest else (options, "", [])


def number(text: str) -> int:
    """0 for what is no number, or none that a job can have: an option whose variable was empty, say."""
    return int(text) if text.strip().isdecimal() and len(text.strip()) < 6 else 0
