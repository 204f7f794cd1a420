"""How a job ends: a batch file run to its end, with stand-ins that train, fail, or meet the time limit.

Slurm's --signal is sent as Slurm would send it: to all processes of the steps, or to the batch shell alone (B:). Under
PBS, `timeout` and `sleep` measure time: their stand-ins return at once when the limit is near. The stand-in for
torchrun handles signals as torchrun does: it forwards the ones it handles to a process that records them as the
course's scripts do, and dies from other signals, unless they are ignored. The process ends, too, at a signal to which
the scripts do not listen.
"""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from grader.engine.jobs import stand_ins
from grader.engine.jobs.batch_header import header

# The training finishes in time; stops with an error; is still running at the time limit.
WAYS = ("done", "fails", "limit")

# Seconds from the signal to the limit in which no process of the job could run. The stand-ins receive it within
# hundredths of a second.
NOTICE, LOOK = 3.0, 0.02

TORCHRUN = """
import os, signal, sys
root, args = os.environ["STAND_IN_ROOT"], sys.argv[1:]
how = open(f"{root}/how").read()
out = args[len(args) - args[::-1].index("--out")] if "--out" in args else "runs/none"
os.makedirs(out, exist_ok=True)
open(f"{out}/model-best.pt", "w").close()  # since the first epoch, however the run ends
open(f"{root}/out-{os.getpid()}", "w").write(out)
if how != "limit":
    if how == "done":
        open(f"{out}/model-final.pt", "w").close()
    sys.exit(2 * (how == "fails"))
handled = ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"]
for word, after in zip(args, args[1:] + [""]):
    if word.replace("_", "-").startswith("--signals-to-handle"):
        handled = (word.partition("=")[2] or after).split(",")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
worker = os.fork()
if not worker:
    os.setsid()
    heard = [signal.SIGUSR1, signal.SIGTERM]
    ends = [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2]
    ends = [number for number in ends if signal.getsignal(number) != signal.SIG_IGN]
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    open(f"{root}/worker-{os.getpid()}", "w").close()
    came = signal.sigwait(heard + ends)
    what = "told" if came in heard else "stopped"
    open(f"{root}/{what}-{os.getpid()}", "w").write(signal.Signals(came).name)
    os._exit(0 if came in heard else 1)
passed = []
def forward(number, _):
    passed.append(number)
    try:
        os.kill(worker, number)
    except ProcessLookupError:
        pass
for name in handled:
    signal.signal(getattr(signal, name.strip()), forward)
open(f"{root}/agent-{os.getpid()}", "w").close()
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1, signal.SIGTERM])
_, status = os.waitpid(worker, 0)
open(f"{root}/ended-{os.getpid()}", "w").close()
sys.exit(128 + passed[0] if passed else os.waitstatus_to_exitcode(status))
"""

TIMEOUT = """
import os, re, signal, subprocess, sys, time
root, args, name, kills, keeps = os.environ["STAND_IN_ROOT"], sys.argv[1:], "TERM", "", False
while args and args[0].startswith("-"):
    word = args.pop(0)
    keeps = keeps or word in ("--preserve-status", "-p")
    found = re.fullmatch("(-s|-k|--signal|--kill-after)=?(.*)", word)
    value = found and (found[2] or args.pop(0))
    if found and found[1] in ("-s", "--signal"):
        name = value
    elif found:
        kills = value
open(f"{root}/kills-{os.getpid()}", "w").write(kills)
open(f"{root}/after-{os.getpid()}", "w").write(args.pop(0))
open(f"{root}/ends-{os.getpid()}", "w").write(os.path.basename(args[0]))
child = subprocess.Popen(args)
while child.poll() is None and not os.path.exists(f"{root}/limit"):
    time.sleep(0.02)
if child.poll() is not None:
    sys.exit(child.returncode)
child.send_signal(getattr(signal, "SIG" + name.removeprefix("SIG")))
code = child.wait()
sys.exit(code if keeps else 124)
"""

SLEEP = """
import os, sys, time
root = os.environ["STAND_IN_ROOT"]
open(f"{root}/after-{os.getpid()}", "w").write(sys.argv[1])
while not os.path.exists(f"{root}/limit"):
    time.sleep(0.02)
"""

# Records what the scheduler is asked for: one line per call, in the file `asked`.
ASKED = """#!/bin/sh
[ "${0##*/} $1" = "scontrol show" ] && exec cat "$STAND_IN_ROOT/nodes"
echo "${0##*/} $*" >>"$STAND_IN_ROOT/asked"
[ "${0##*/}" = qsub ] && echo 12320999.polaris-pbs-01
:
"""


def run(text: str, kind: str, name: str, how: str) -> dict:
    """Run a job on one node, in the current folder, which ends as `how` says.

    Returns {"code", "said", "asked": what schedulers were asked for, "told": the signal that the training
    received, "" if none, "stopped": a signal to which it does not listen, and that ended it, "killed": whether torchrun
    died from it, "after": the seconds given to `timeout` and `sleep`, "kills": those given to `timeout -k`, "ends": the
    programs given to `timeout`, "out": the folders given to the training}.
    """
    here = Path.cwd()
    (here / how).mkdir()
    os.chdir(here / how)
    try:
        python = {"torchrun": TORCHRUN, "timeout": TIMEOUT, "sleep": SLEEP}
        programs = {name: f"#!{sys.executable} -IS\n{code}" for name, code in python.items()}
        programs |= dict.fromkeys(("scontrol", "qsub", "qdel", "sbatch", "qalter"), ASKED)
        (Path.cwd() / "1-nodes").mkdir()
        (Path.cwd() / "1-nodes" / "how").write_text(how)
        process, root = stand_ins.begin(text, kind, name, 1, programs, submitted_from="sbatch" if how == "done" else "")
    finally:
        os.chdir(here)
    if how == "limit":
        near_limit(process, root, header(text).get("signal", ""))
    said = stand_ins.evidence(process, root)
    for worker in root.glob("worker-*"):  # a worker that received no signal still waits, in its own session
        with suppress(ProcessLookupError):
            os.kill(int(worker.name.partition("-")[2]), signal.SIGKILL)
    return {
        "code": said["code"],
        "said": said["said"],
        "asked": (root / "asked").read_text().splitlines() if (root / "asked").exists() else [],
        "told": next((path.read_text() for path in root.glob("told-*")), ""),
        "stopped": next((path.read_text() for path in root.glob("stopped-*")), ""),
        "killed": len(list(root.glob("agent-*"))) > len(list(root.glob("ended-*"))),
        "after": [path.read_text() for path in root.glob("after-*")],
        "kills": [path.read_text() for path in root.glob("kills-*")],
        "ends": [path.read_text() for path in root.glob("ends-*")],
        "out": [path.read_text() for path in root.glob("out-*")],
    }


def near_limit(process: subprocess.Popen, root: Path, asked: str) -> None:
    """Simulate the time limit: send the signal that --signal asks for, once the training has started."""
    deadline = time.monotonic() + stand_ins.LIMIT
    while len(started(root)) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    (root / "limit").touch()
    found = re.fullmatch(r"(?:([RB]+):)?(?:SIG)?(\w+?)(?:@\d+)?", asked)
    if found and process.poll() is None:
        number = int(found[2]) if found[2].isdecimal() else getattr(signal, f"SIG{found[2]}", 0)
        shell = "B" in (found[1] or "")
        pids = [process.pid] if shell else [int(path.name.partition("-")[2]) for path in started(root)]
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
    deadline, idle = time.monotonic() + stand_ins.LIMIT, 0
    while not list(root.glob("told-*")) and process.poll() is None and idle < NOTICE and time.monotonic() < deadline:
        time.sleep(LOOK)
        idle += 0 if is_held_up(process.pid) else LOOK
    if not list(root.glob("told-*")):
        process.kill()  # it got no signal, and the limit comes


def is_held_up(pid: int) -> bool:
    """Whether this process or one that it started could run: on a busy machine a signal takes its time."""
    with suppress(psutil.Error):
        job = psutil.Process(pid)
        return any(part.status() == psutil.STATUS_RUNNING for part in [job, *job.children(recursive=True)])
    return False


def started(root: Path) -> list[Path]:
    return [*root.glob("agent-*"), *root.glob("worker-*")]
