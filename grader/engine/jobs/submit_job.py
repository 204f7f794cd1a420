"""A lesson's batch file, submitted to Slurm or PBS, and its output as it comes.

./workbook run ddp_training --nodes 2 --batch "--time=00:10:00" -- --epochs 1
"""

import codecs
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from grader.engine.lesson import lessons

POLL = 1.0  # seconds between requests to the scheduler, which all users share
PATIENCE = 300.0  # seconds for which an unresponsive scheduler is asked again


# Slurm's states of a job that is not over, including one that is being sent a signal, as before its time limit.
ALIVE = (
    *("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING", "SIGNALING", "STOPPED"),
    *("STAGE_OUT", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD"),
)


class State(NamedTuple):
    """A job as the scheduler sees it."""

    name: str  # PENDING, RUNNING, COMPLETED, …
    over: bool
    code: int
    output: Path
    job_name: str = ""


def run_folder(job: str, state: State) -> Path:
    """The folder into which the batch files' jobs write, unless their arguments name a different one."""
    return Path("runs") / f"{state.job_name}-{job.partition('.')[0]}"


def named_by_run(lesson: str) -> list[str]:
    """--out with the folder that RUN names, for a lesson whose batch files read RUN. They take either; but qsub passes
    no environment on, and the report reads --out alone.
    """
    files = (lessons.COURSE / "sbatch").glob(f"{lesson}.*")
    reads = any("utils/run.sh" in file.read_text("utf-8") for file in files)
    return ["--out", os.environ["RUN"]] if reads and os.environ.get("RUN") else []


def kinds() -> list[str]:
    """The schedulers of this machine."""
    return [kind for kind, program in (("sbatch", "sbatch"), ("pbs", "qsub")) if shutil.which(program)]


def command(lesson: str, kind: str, nodes: int, options: list[str], args: list[str]) -> list[str]:
    """What to type in the course's folder. Raises ValueError, with what to do, if something is missing."""
    file = f"sbatch/{lesson}.{kind}"
    if not (lessons.COURSE / file).is_file():
        raise ValueError(
            f"there is no {file}: ./workbook reset {lesson} brings it back"
            if lesson in lessons.stems()
            else f"no lesson {lesson}"
        )
    if kind == "sbatch":
        return ["sbatch", f"--nodes={nodes}", *options, file, *args]
    # The file describes a chunk; the number of chunks is ours.
    chunk = re.search(r"^#PBS -l select=\d+(:\S+)?", (lessons.COURSE / file).read_text("utf-8"), re.MULTILINE)
    variables = ["-v", f"ARGS={shlex.join(args)}"] if args else []
    return ["qsub", "-l", f"select={nodes}{chunk.group(1) or '' if chunk else ''}", *variables, *options, file]


def account_is_missing(kind: str, options: list[str]) -> str:
    """What to do where a site wants an account, as many do not; "" if one is named."""
    if any(option.startswith(("-A", "--account")) for option in options):
        return ""
    if kind == "sbatch":
        asked = (
            ""
            if os.environ.get("SBATCH_ACCOUNT")
            else "export SBATCH_ACCOUNT=<your budget> SBATCH_PARTITION=<partition>"
        )
        return asked and f'no account is named: {asked}, or add --batch "-A <your budget> -p <partition>"'
    return 'no account is named: add --batch "-A <your project> -q <queue>"'


def submit(what: list[str]) -> str:
    """Submit, and return the job's number. Raises ValueError with the scheduler's own words."""
    done = subprocess.run(what, cwd=lessons.COURSE, capture_output=True, text=True, check=False)
    found = re.search(r"\d\S*", done.stdout)
    if done.returncode or not found:
        raise ValueError((done.stderr or done.stdout).strip() or f"{what[0]} says nothing")
    return found.group()


def state(kind: str, job: str) -> State | None:
    """What the scheduler says about a job now; None if it does not answer, as happens when it is busy or restarts."""
    if kind == "sbatch":
        said = ask("scontrol", "-o", "show", "job", job) or ask(
            "sacct", "-j", job, "-X", "-n", "-P", "-o", "State,ExitCode,JobName"
        )
        return of_slurm(said)
    said = ask("qstat", "-x", "-f", job).replace("\n\t", "")
    known = dict(re.findall(r"^\s*(\w+) = (.*)$", said, re.MULTILINE))
    if "job_state" not in known:
        return None
    name = {"Q": "PENDING", "H": "HELD", "R": "RUNNING", "E": "ENDING"}.get(known["job_state"], "ENDED")
    output = Path(known.get("Output_Path", "").partition(":")[2] or "/nowhere")
    return State(name, name == "ENDED", int(known.get("Exit_status", "1")), output, known.get("Job_Name", ""))


def of_slurm(said: str) -> State | None:
    """Parse a line of scontrol, or of sacct, which remembers jobs that slurmctld has forgotten."""
    known = dict(part.partition("=")[::2] for part in said.split())
    if "|" in said:
        known = dict(zip(("JobState", "ExitCode", "JobName"), said.splitlines()[0].split("|"), strict=False))
        known["JobState"] = known["JobState"].split()[0]  # CANCELLED by 1000
    if "JobState" not in known:
        return None
    name = known["JobState"]
    over = name not in ALIVE
    code = int(known.get("ExitCode", "1:0").partition(":")[0]) or int(name != "COMPLETED")
    return State(name, over, code, Path(known.get("StdOut", "/nowhere")), known.get("JobName", ""))


def ask(*what: str) -> str:
    """What a command of the scheduler prints; "" if it fails or is missing."""
    try:
        done = subprocess.run(what, capture_output=True, text=True, check=False, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout


def cancel(kind: str, job: str) -> None:
    ask(stop_command(kind), job)


def stop_command(kind: str) -> str:
    return "scancel" if kind == "sbatch" else "qdel"


def look_again(kind: str, job: str) -> str:
    """What to type to see a job that is no longer followed."""
    return f"scontrol show job {job}" if kind == "sbatch" else f"qstat -x -f {job}"


def follow(kind: str, job: str, show: Callable[[str], object], look: Callable[[State], object] | None = None) -> State:
    """Print a job's output as it comes, and the job's states, until it is over. While it runs, `look` is called after
    each poll.

    A scheduler that does not answer is asked again, less and less often, for PATIENCE seconds. Raises ValueError, with
    what to do, if it has not answered by then; the job may still be running.
    """
    last, silent_since, pause = None, 0.0, POLL
    tail = Tail()
    while True:
        now = state(kind, job)  # first: lines printed after this are read in the next turn
        if now is None:
            silent_since = silent_since or time.monotonic()
            if time.monotonic() - silent_since > PATIENCE:
                raise ValueError(
                    f"the scheduler has said nothing of job {job} for {PATIENCE / 60:.0f} min; it may still run:"
                    f" {look_again(kind, job)}" + (f", and its output is {last.output}" if last else "")
                )
            pause = min(2 * pause, 30.0)
        else:
            silent_since, pause = 0.0, POLL
            changed = f"job {job}: {now.name}\n" if last is None or now.name != last.name else ""
            if last and not now.output.is_file():
                now = now._replace(output=last.output)  # sacct does not know where it is
            # "running" is printed before the job's output, the end after it.
            show(tail.new(now.output) + changed if now.over else changed + tail.new(now.output))
            if now.over:
                return now
            last = now
            if look and now.name == "RUNNING":
                look(now)
        time.sleep(pause)


class Tail:
    """Reads what was appended to a file since the last read."""

    def __init__(self) -> None:
        self.read, self.decoder = 0, codecs.getincrementaldecoder("utf-8")(errors="replace")

    def new(self, path: Path) -> str:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            file.seek(self.read)
            more = file.read()
        self.read += len(more)
        return self.decoder.decode(more)
