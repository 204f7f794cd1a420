"""Helpers for a process that is one of several: launch, rank 0's output, leaving, errors."""

import argparse
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist

from utils import private, releases
from utils.interfaces import GLOO, NAMES, addresses, stay_here, unknown
from utils.atomic_write import written_whole

PATIENCE = 60  # seconds for which a failing rank lets rank 0 report first


class Launch(NamedTuple):
    """The number of this process: among all (0 … world_size - 1), and on its node."""

    rank: int
    local_rank: int
    world_size: int


# Each launcher's names of (rank, local rank, world size). The first complete set wins. MPI goes before Slurm, because
# inside a Slurm job an mpiexec may start its helpers, one per node, with srun: then Slurm's numbers count the helpers.
LAUNCHERS = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PALS_LOCAL_RANKID", "PMI_SIZE"),  # mpiexec on Polaris
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),  # MPICH, Intel MPI
    # Not SLURM_NTASKS: a batch script has it, although no srun has started it.
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"),  # srun
)


def launch_environment() -> Launch:
    """Find out how this process was started; then set what `init_process_group` reads.

    RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set if they are missing, and never changed. A process
    without a launcher is a world of one. On one machine gloo uses loopback, unless GLOO_SOCKET_IFNAME is set.

    Raises:
        ValueError: the environment is incomplete; it says which launcher has to complete it.
    """
    env, launch = os.environ, launched()
    for name, value in zip(LAUNCHERS[0], launch, strict=True):
        if env.setdefault(name, str(value)) != str(value):
            raise ValueError(
                f"{name} is {env[name]} in the environment, but by its launcher {value}: "
                f"unset {name}, or start the script with torchrun"
            )
    if launch.world_size == 1:
        env.setdefault("MASTER_ADDR", "127.0.0.1")
        env.setdefault("MASTER_PORT", str(_free_port()))
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in env:
            raise ValueError(
                f"{launch.world_size} processes and no {name}: the batch file must export it, "
                "the same for all (the files in sbatch/ do), or start the script with torchrun"
            )
    stay_here(alone=launch.world_size == 1)
    return launch


def launched() -> Launch:
    """The launcher's numbers; without a launcher, a world of one."""
    for names in LAUNCHERS:
        if all(name in os.environ for name in names):
            return Launch(*(int(os.environ[name]) for name in names))
    return Launch(rank=0, local_rank=0, world_size=1)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def cleanup() -> None:
    """Leave the process group, if there is one."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        let_gloo_rest()


def let_gloo_rest(seconds: float = 5.0) -> None:
    """Wait until gloo's threads sleep, and so have released the last tensors.

    A thread that releases one while Python is shutting down needs a lock that is no longer granted, and the process
    aborts although all its work is done (https://github.com/pytorch/pytorch/pull/179291). Only Linux reports what a
    thread is doing; elsewhere this does nothing.
    """
    deadline = time.monotonic() + seconds
    running = [thread for thread in Path("/proc/self/task").glob("*") if "gloo" in _about(thread, "comm")]
    while running and time.monotonic() < deadline:
        time.sleep(0.001)  # no signal reports it; and meanwhile a thread can take Python's lock
        running = [thread for thread in running if _about(thread, "stat").rpartition(")")[2].split()[:1] == ["R"]]


def _about(thread: Path, file: str) -> str:
    """What Linux reports about a thread; nothing once it has ended."""
    try:
        return (thread / file).read_text()
    except OSError:
        return ""


def is_rank0() -> bool:
    """Whether this is the process that prints and saves; before `setup` the environment says so."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return int(os.environ.get("RANK", "0")) == 0


def from_rank0(text: str) -> str:
    """Rank 0's value, on all ranks; each call waits for rank 0. Without a group, this process's value.

    It is sent through the store at which the ranks met, so it is not a collective, and not counted as one.
    """
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return text
    store = dist.PrefixStore("from rank 0", private.default_store())
    call = store.add(f"calls of {dist.get_rank()}", 1)
    if dist.get_rank() == 0:
        store.set(f"text {call}", text)
    return store.get(f"text {call}").decode()


def print0(*args: Any, **kwargs: Any) -> None:
    """`print`, on rank 0 only."""
    if is_rank0():
        print(*args, **kwargs)


def save0(obj: Any, path: str | Path) -> None:
    """`torch.save`, on rank 0 only. The file appears complete or not at all; its folder is created."""
    if not is_rank0():
        return
    # Into a file opened by Python: with its own file, torch.save cannot report that the disk is full.
    with written_whole(Path(path)) as part, part.open("wb") as file:
        torch.save(obj, file)


def fail(message: object) -> NoReturn:
    """Stop with exit code 2; rank 0 says why, in one line on stderr.

    torchrun ends all ranks as soon as one has ended, and rank 0 may still be importing torch. So the others wait to be
    ended, and report the reason themselves if that does not happen within PATIENCE.
    """
    if not is_rank0() and "TORCHELASTIC_RESTART_COUNT" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(PATIENCE)
        print(f"error: {message}", file=sys.stderr, flush=True)
    print0(f"error: {message}", file=sys.stderr, flush=True)
    raise SystemExit(2)


def refuse(message: str) -> NoReturn:
    """Stop with exit code 2, and say why in one line from each node, where another node may be different."""
    if launched().local_rank == 0:
        print(f"error: {message}", file=sys.stderr, flush=True)
    raise SystemExit(2)


def check_interfaces(on_gpu: bool) -> None:
    """Refuse variables that name no interface of this node: gloo, or NCCL with GPUs, would end in a traceback on each
    rank. A process that is alone needs none of them.
    """
    for name in NAMES if on_gpu else (GLOO,):
        if launched().world_size > 1 and (wrong := unknown(name, os.environ.get(name, "^"), addresses())):
            refuse(f"{socket.gethostname()}: {wrong}: name one of these, or unset {name}")


def check_averages(device: torch.device, ranks: int) -> None:
    """Stop with one line where fully_shard, over so many ranks, would add their gradients up and not average them."""
    if device.type == "cpu" and ranks > 1 and (lacking := releases.lacks(*releases.AVERAGES_SINCE)):
        fail(lacking)


def check_alone(script: str, instead: str) -> None:
    """Stop if this is one of several processes, which would all do the same, and overwrite each other's files."""
    if (ranks := launched().world_size) > 1:
        fail(f"{script} is one process's, and {ranks} were started: start it with python, or take {instead}")


def set_batch_size(args: argparse.Namespace, ranks: int, axis: str = "ranks") -> None:
    """Make args.batch_size the global batch: --batch-size, or --batch-size-per-rank for each data-parallel rank. Stop
    unless all of them get equally many sequences.

    Ranks with unequal parts would weight the samples of a step unequally, and the parallel run would no longer be the
    serial one.

    Args:
        ranks: how many ranks divide the batch.
        axis: what the message calls them.
    """
    if args.batch_size_per_rank:
        args.batch_size = ranks * args.batch_size_per_rank
    if args.batch_size % ranks:
        above = args.batch_size + ranks - args.batch_size % ranks
        fail(
            f"--batch-size {args.batch_size} is the global batch and is not divisible by {ranks} {axis}; "
            f"take {above}, or another multiple of {ranks}"
        )
