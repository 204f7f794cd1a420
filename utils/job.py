"""What a run is: the device that it was granted, and the line that says so before the first step."""

import argparse
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

from utils import nccl, private
from utils.data import corpus_name
from utils.distributed import check_interfaces, is_rank0, launch_environment, print0, refuse
from utils.products import has_units
from utils.end_with_launcher import end_with_starter


def prepare(args: argparse.Namespace) -> None:
    """Make sure, before anything else, that this process ends with its launcher and has the device of --device. With
    --watch, what it does is noted after this call.

    Exits with code 2 where there should be GPUs and torch sees none: a job that trains on CPUs without a word wastes
    the hours of the GPUs; and where there are fewer than processes. It must come before the first call of torch.cuda,
    which looks at the environment once.
    """
    end_with_starter()
    private.read_newer_indices()
    with suppress(AttributeError):  # in a notebook it is not a file
        sys.stdout.reconfigure(line_buffering=True)  # in a batch job's file, each line is there at once
    if args.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    by, granted = granted_gpus()
    if args.watch:
        from utils.watched import rank

        rank.begin(Path(args.out), launch_environment(), several_nodes=nodes() > 1)
    if args.device != "cpu" and (granted or args.device == "cuda") and not torch.cuda.is_available():
        asked = f"{by} has granted {count(granted, 'GPU')}" if granted else "--device cuda asks for a GPU"
        refuse(f"{asked} on {socket.gethostname()}, but torch sees none: {why_no_gpu()}")
    processes, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ  # then all see the same GPUs
    if args.device != "cpu" and by_torchrun and 0 < gpus < processes and not nccl.shares_gpus():
        there = f"{processes} processes on {socket.gethostname()}, and torch sees {count(gpus, 'GPU')}"
        refuse(
            f"torchrun starts {there}: each process needs its own. Start only {gpus}, or train on CPUs with"
            " --device cpu; docs/students.md says how processes can share one"
        )
    check_interfaces(torch.cuda.is_available())
    if args.dtype == "bfloat16" and not torch.cuda.is_available() and not has_units("cpu"):
        print0(
            "this processor has no units for bfloat16: with --dtype bfloat16 it rounds, but is no faster than with"
            " float32",
            file=sys.stderr,
        )


def granted_gpus() -> tuple[str, int]:
    """Which scheduler has granted GPUs on this node to this job, and how many; ("", 0) where none are known of.

    Slurm says so where it counts them. PBS does not: there the site's settings know what its nodes have
    (utils/site.sh). Not CUDA_VISIBLE_DEVICES, which our batch files set themselves, whatever was granted.
    """
    env = os.environ
    granted = ("Slurm", "SLURM_GPUS_ON_NODE", "SLURM_JOB_ID"), ("PBS", "SITE_GPUS", "PBS_JOBID")
    for by, name, job in (*granted, ("the site", "SITE_GPUS", "SLURM_JOB_ID")):
        if job in env and env.get(name, "").isdecimal() and int(env[name]):
            return by, int(env[name])
    return "", 0


def why_no_gpu() -> str:
    """What is wrong with this process's torch or environment, and what to do about it."""
    cpu = "with --device cpu it trains on CPUs"
    if torch.version.cuda is None:
        return (
            f"torch {torch.__version__} of {sys.executable} is built for CPUs. On a login node, `rm -r .venv` and"
            f" ./workbook start install the one for GPUs; WORKBOOK_PYTHON=… takes the site's own; {cpu}"
        )
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1", "NoDevFiles"):
        return f"CUDA_VISIBLE_DEVICES hides them all, see your batch file; {cpu}"
    return (
        f"torch {torch.__version__} is built for CUDA {torch.version.cuda}, and the driver may be older: nvidia-smi"
        f" shows what it takes; {cpu}"
    )


def nodes() -> int:
    """On how many nodes this run is, by its launcher."""
    env = os.environ
    for name in ("GROUP_WORLD_SIZE", "SLURM_STEP_NUM_NODES"):  # torchrun (its agents), srun
        if name in env:
            return int(env[name])
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_LOCAL_SIZE", "MPI_LOCALNRANKS"):  # Open MPI, Polaris, Intel MPI
        if name in env:
            return -(-int(env.get("WORLD_SIZE", "1")) // int(env[name]))
    return 1


def say_what_runs(args: argparse.Namespace, device: torch.device) -> None:
    """Rank 0's first line: nodes, ranks, device, backend, dtype, torch and data, as they are now."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if dist.is_initialized():
        ranks, backend = count(dist.get_world_size(), "rank"), f", {dist.get_backend()}"
    elif processes > 1:  # before the TODO that joins them
        ranks, backend = f"{processes} processes", ", no process group (each trains alone)"
    else:
        ranks, backend = "1 process", ""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print0(
        f"{count(nodes(), 'node')}, {ranks} on {name}{backend}, {args.dtype}, torch {torch.__version__},"
        f" data {corpus_name(args.data)}"
    )
    if is_rank0() and (line := left_behind(args)):
        print(line)


def left_behind(args: argparse.Namespace) -> str:
    """One line if --out has a checkpoint from before, and this run, without --resume, does not start from it."""
    if getattr(args, "resume", "") is not None:
        return ""
    from utils.checkpoints import newest  # here: only scripts that can resume need them
    from utils.streams import CHECKPOINT

    out = Path(args.out)
    found = newest(out) or (out / CHECKPOINT if (out / CHECKPOINT).is_file() else None)
    if not found:
        return ""
    return (
        f"{out} has a checkpoint of an earlier run, {found.name}: this run starts from scratch;"
        f" the same command with --resume {out} resumes from there"
    )


def count(number: int, what: str) -> str:
    """1 rank, 2 ranks."""
    return f"{number} {what}" + "s" * (number > 1)
