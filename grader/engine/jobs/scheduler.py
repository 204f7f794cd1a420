"""A lesson's batch file, submitted to Slurm or PBS, and its output as it comes.

./workbook run ddp_training --nodes 2 --batch "--time=00:10:00" -- --epochs 1
"""

import os
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from grader.engine.lesson import lessons

POLL = 1.0  # seconds between two questions to the scheduler, which serves everybody


class State(NamedTuple):
    """A job as the scheduler sees it."""

    name: str  # PENDING, RUNNING, COMPLETED, …
    over: bool
    code: int
    output: Path


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
    # What it is a chunk of stands in the file; the number of chunks is ours.
    chunk = re.search(r"^#PBS -l select=\d+(:\S+)?", (lessons.COURSE / file).read_text("utf-8"), re.MULTILINE)
    told = ["-v", f"ARGS={shlex.join(args)}"] if args else []
    return ["qsub", "-l", f"select={nodes}{chunk.group(1) or '' if chunk else ''}", *told, *options, file]


def account_is_missing(kind: str, options: list[str]) -> str:
    """What to do about it; "" if an account is named."""
    if any(option.startswith(("-A", "--account")) for option in options):
        return ""
    if kind == "sbatch":
        asked = (
            "" if "SBATCH_ACCOUNT" in os.environ else "export SBATCH_ACCOUNT=<your budget> SBATCH_PARTITION=<partition>"
        )
        return asked and f'no account to run on: {asked}, or add --batch "-A <your budget> -p <partition>"'
    return 'no account to run on: add --batch "-A <your project> -q <queue>"'


def submit(what: list[str]) -> str:
    """Submit, and return the job's number. Raises ValueError with the scheduler's own words."""
    done = subprocess.run(what, cwd=lessons.COURSE, capture_output=True, text=True, check=False)
    found = re.search(r"\d\S*", done.stdout)
    if done.returncode or not found:
        raise ValueError((done.stderr or done.stdout).strip() or f"{what[0]} says nothing")
    return found.group()


def state(kind: str, job: str) -> State:
    if kind == "sbatch":
        said = ask("scontrol", "-o", "show", "job", job)
        known = dict(part.partition("=")[::2] for part in said.split())
        name = known.get("JobState", "UNKNOWN")
        over = name not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING")
        code = int(known.get("ExitCode", "1:0").partition(":")[0]) or int(name != "COMPLETED")
        return State(name, over, code, Path(known.get("StdOut", "/nowhere")))
    said = ask("qstat", "-x", "-f", job).replace("\n\t", "")
    known = dict(re.findall(r"^\s*(\w+) = (.*)$", said, re.MULTILINE))
    letter = known.get("job_state", "F")
    name = {"Q": "PENDING", "H": "HELD", "R": "RUNNING", "E": "ENDING"}.get(letter, "ENDED")
    return State(
        name,
        letter in "FX",
        int(known.get("Exit_status", "1")),
        Path(known.get("Output_Path", "/nowhere").partition(":")[2]),
    )


def ask(*what: str) -> str:
    return subprocess.run(what, capture_output=True, text=True, check=False).stdout


def follow(kind: str, job: str, show) -> State:
    """Pass on what a job prints, as it comes, and what becomes of it, until it is over."""
    before, read = "", 0
    while True:
        now = state(kind, job)  # first: what is printed after it is read in the next turn
        if now.output.is_file():
            with now.output.open("rb") as output:
                output.seek(read)
                new = output.read()
            read += len(new)
            if new:
                show(new.decode(errors="replace"))
        if now.name != before:
            show(f"job {job}: {now.name}\n")
            before = now.name
        if now.over:
            return now
        time.sleep(POLL)
