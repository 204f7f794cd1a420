"""A real Slurm on this machine: four nodes, four GPUs each by name, none in fact."""

import getpass
import os
import random
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from grader.engine.jobs.submit_job import ALIVE

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scancel", "scontrol")
FOUND = {name: shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin") for name in PROGRAMS}
MISSING = [name for name, path in FOUND.items() if path is None]
NODES = [f"127.0.0.{n}" for n in range(1, 5)]  # an address each, so that nobody must be taught their names

# MinJobAge: seconds for which a job that has ended can be asked about, 300 if nothing is said.
CONF = """
ClusterName=mini
SlurmctldHost=localhost
SlurmctldPort={ports[4]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=30
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
ReturnToService=2
KillWait=3
MinJobAge=86400
EnforcePartLimits=ALL
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
TaskProlog={folder}/prolog
GresTypes=gpu
{nodes}
PartitionName=dc-gpu Nodes=ALL Default=YES MaxTime=24:00:00 State=UP
PartitionName=dc-gpu-devel Nodes=127.0.0.[1-2] MaxTime=02:00:00 State=UP
"""


class Slurm:
    """Daemons in a folder; use as a context manager, which ends them and every job."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, []
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))},
            "SLURM_CONF": str(folder / "slurm.conf"),
        }

    def __enter__(self) -> "Slurm":
        for name in ("state", "dev", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        for gpu in range(4):
            (self.folder / "dev" / f"nvidia{gpu}").touch()
        ports = free_ports(5)
        lines = [
            f"NodeName={node} NodeHostname=localhost NodeAddr={node} Port={port} CPUs=4 RealMemory=4000 Gres=gpu:4"
            " State=UNKNOWN"
            for node, port in zip(NODES, ports)
        ]
        (self.folder / "slurm.conf").write_text(
            CONF.format(folder=self.folder, ports=ports, user=getpass.getuser(), nodes="\n".join(lines))
        )
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/dev/nvidia[0-3]\n")
        # What a task of a node finds in its environment: `plant` puts lines there.
        (self.folder / "prolog").write_text(f'#!/bin/sh\ncat "{self.folder}/planted-$SLURMD_NODENAME" 2>/dev/null\n:\n')
        (self.folder / "prolog").chmod(0o755)
        try:
            self.start("slurmctld", "-D", "-c")
            for node in NODES:
                self.start("slurmd", "-D", "-N", node)
            deadline = time.monotonic() + 60
            idle = ("sinfo", "-h", "-N", "-p", "dc-gpu", "-t", "idle", "-o", "%N")
            while len(self.ask(*idle).stdout.split()) < len(NODES):
                assert time.monotonic() < deadline, (self.folder / "slurmctld.log").read_text()[-2000:]
                time.sleep(0.1)
        except BaseException:
            self.end()  # nobody else would: the context was not entered
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.ask("scancel", "-u", getpass.getuser())
        deadline = time.monotonic() + 20
        while self.ask("squeue", "-h").stdout.strip() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.end()

    def end(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @contextmanager
    def planted(self, node: str, **env: str) -> Iterator[None]:
        """On one node, tasks have another environment meanwhile."""
        lines = self.folder / f"planted-{node}"
        lines.write_text("".join(f"export {name}={value}\n" for name, value in env.items()))
        try:
            yield
        finally:
            lines.unlink()

    def start(self, program: str, *args: str) -> None:
        log = (self.folder / f"{program}.out").open("a")
        self.processes.append(
            subprocess.Popen([FOUND[program], *args], env=self.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        )

    def ask(self, program: str, *args: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [FOUND[program], *args],
            cwd=cwd,
            env={**self.env, **env},
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=300,
        )

    def job(self, *args: str, patience: float = 300.0, **how: Any) -> tuple[str, int]:
        """Submit by sbatch, and wait for the job's end: its number, and its exit code. `sbatch --wait` asks ever more
        rarely.
        """
        number = self.submit(*args, **how)
        return number, self.ended(number, patience)

    def submit(self, *args: str, **how: Any) -> str:
        """Submit by sbatch: the job's number."""
        done = self.ask("sbatch", "--parsable", *args, **how)
        assert done.returncode == 0, done
        return done.stdout.split(";")[0].strip()

    def ended(self, number: str, patience: float = 300.0) -> int:
        """Wait for a job's end, so many seconds at most; its exit code."""
        deadline = time.monotonic() + patience
        while True:
            told = dict(
                re.findall(r"(JobState|ExitCode)=(\S+)", self.ask("scontrol", "show", "job", "-o", number).stdout)
            )
            if told["JobState"] not in ALIVE:
                return int(told["ExitCode"].split(":")[0])
            assert time.monotonic() < deadline, told
            time.sleep(0.2)  # a queue can only be asked


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now, from below those that Linux gives to outgoing connections: one of these may be taken
    by anybody until the daemon asks for it.
    """
    found: list[int] = []
    for port in random.sample(range(15000, 32000), 1000):
        with socket.socket() as each, suppress(OSError):
            each.bind(("", port))
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("no free ports")
