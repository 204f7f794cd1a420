"""What this machine has, in a few lines, and how to launch a script on it."""

import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from grader.engine.jobs.submit_job import ask
from grader.engine.lesson import lessons
from utils.end_with_launcher import STARTER, with_starter

LOOK = 1.0  # seconds between looks at a run
# Without --local-addr, torchrun lets the ranks meet at this machine's own name, which may not resolve.
HERE = ("--standalone", "--local-addr=127.0.0.1")


def found() -> dict[str, str]:
    """What `start` reports: pairs of a name and a few words."""
    import torch
    import torch.distributed as dist

    from utils import devices
    from utils.products import bfloat16_way
    from utils.wikitext2 import wikitext2_is_cached

    kind = devices.accelerator()
    if kind:
        gpus = f"{devices.count()} × {devices.name(torch.device(kind, 0))}"
    else:
        gpus = f"none, {os.cpu_count()} CPU cores" + (
            " (there is a GPU driver, but this torch does not use it)" if shutil.which("nvidia-smi") else ""
        )
    schedulers = [
        f"{name} ({command})" for command, name in (("sbatch", "Slurm"), ("qsub", "PBS")) if shutil.which(command)
    ]
    return {
        "Python": f"{platform.python_version()}, {sys.executable}",
        "torch": torch.__version__,
        "GPUs": gpus,
        "backend": dist.get_default_backend_for_device(kind or "cpu"),
        "bfloat16": bfloat16_way(kind or "cpu"),
        "data": (
            "wikitext-2, in the cache"
            if wikitext2_is_cached()
            else "builtin; wikitext-2 needs a network: ./workbook data"
        ),
        "scheduler": ", ".join(schedulers) or "none: everything runs right here",
        **compute_nodes(),
    }


def compute_nodes() -> dict[str, str]:
    """What the scheduler says about its nodes, and which Python a batch file would use there; nothing without a
    scheduler.
    """
    nodes = slurm_nodes() or pbs_nodes()
    if not nodes:
        return {}
    # As on a login node: within a job, which may have been granted no GPUs, site.sh would refuse.
    site = "unset SLURM_JOB_ID && . utils/site.sh >/dev/null && command -v python"
    said = ask("bash", "-lc", f"cd {shlex.quote(str(lessons.COURSE))} && {site}").strip().splitlines()
    python = said[-1:] or ["none that has torch: see utils/site.sh"]
    from utils import devices

    warn = " (its torch is for CPUs; these nodes have GPUs)" if "gpu" in nodes and not devices.built_for() else ""
    return {"nodes": nodes, "batch": python[0] + (warn if python[0] == sys.executable else "")}


def slurm_nodes() -> str:
    """By partition."""
    parts = [line.split() for line in ask("sinfo", "-h", "-o", "%P %D %G").splitlines()]
    return "; ".join(f"{name.rstrip('*')}: {count} with {what}" for name, count, what in parts)


def pbs_nodes() -> str:
    """Grouped by GPUs per node: a PBS queue does not say which nodes it has."""
    # A line that is not indented is a node's name; its contents follow, indented.
    nodes = re.split(r"^(?=\S)", ask("pbsnodes", "-a"), flags=re.MULTILINE)
    gpus = [re.search(r"^\s+resources_available\.ngpus = (\d+)", node, re.MULTILINE) for node in nodes if node.strip()]
    counts = Counter(int(found[1]) if found else 0 for found in gpus)
    return "; ".join(f"{count} with {f'gpu:{each}' if each else 'no GPU'}" for each, count in sorted(counts.items()))


def torchrun(*options: str) -> list[str]:
    """The course's torchrun, for processes on this machine."""
    return [sys.executable, "-P", str(lessons.COURSE / "utils" / "bin" / "torchrun"), *HERE, *options]


def launch_command(script: Path, nproc: int, args: list[str], quiet: bool = False) -> list[str]:
    """What to type to run a script in `nproc` processes on this node; if `quiet`, with our utils/bin/torchrun."""
    if nproc == 1:
        return [sys.executable, str(script), *args]
    processes = f"--nproc-per-node={nproc}"
    if quiet:
        return [*torchrun(processes), str(script), *args]
    installed = Path(sys.executable).with_name("torchrun")
    start = [str(installed)] if installed.exists() else [sys.executable, "-m", "torch.distributed.run"]
    return [*start, *HERE, processes, str(script), *args]


def shown(command: list[str]) -> str:
    """The command as a user would type it in the current folder."""
    here = os.getcwd() + os.sep
    return shlex.join(part.removeprefix(here) for part in command)


def call(command: list[str], env: dict[str, str], hopeless: Callable[[], bool] | None = None) -> int:
    """Run a command on this terminal and return its exit code; it does not outlive us, whatever ends us.

    On Ctrl-C or SIGTERM it gets SIGTERM, on the second one SIGKILL, and the exit code is 130 or 143. If `hopeless`,
    called once a second, returns true, it is killed and the exit code is 1.
    """
    stops: list[int] = []

    def stop(number: int, _: object) -> None:
        process.kill() if stops else process.terminate()
        stops.append(number)

    # The command inherits that it is ignored: otherwise the terminal's Ctrl-C reaches it, too, and causes a traceback.
    old = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    try:
        process = subprocess.Popen(command, env={**env, STARTER: str(os.getpid())}, preexec_fn=with_starter())
        for number in (signal.SIGINT, signal.SIGTERM):
            old.setdefault(number, signal.getsignal(number))
            signal.signal(number, stop)
        code = wait(process, hopeless)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
    if stops:
        shown_again = "\033[?25h\n" if sys.stdout.isatty() else ""  # a progress bar had hidden the cursor
        print(f"{shown_again}stopped by {'Ctrl-C' if stops[0] == signal.SIGINT else 'SIGTERM'}", flush=True)
        return 128 + stops[0]
    return code if code >= 0 else 128 - code  # as a shell reports it


def wait(process: subprocess.Popen, hopeless: Callable[[], bool] | None) -> int:
    """The exit code of a process, which is killed if `hopeless` says so."""
    while hopeless is not None:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(LOOK)
        if hopeless():
            # The ranks first: a rank whose launcher is gone prints a long message. SIGKILL, since they may handle
            # SIGTERM.
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            process.wait()
            return 1
    return process.wait()
