"""What a run is: the device that it was granted, and the line that says so before the first step."""

import argparse
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

from utils import devices, nccl, private
from utils.data import corpus_name
from utils.distributed import check_interfaces, is_rank0, launch_environment, print0, refuse
from utils.products import has_units
from utils.end_with_launcher import end_with_starter


def prepare(args: argparse.Namespace) -> None:
    """Make sure, before anything else, that this process ends with its launcher and has the device of --device. With
    --watch, what it does is noted after this call.

    Exits with code 2 where there should be GPUs and torch sees none: a job that trains on CPUs without a word wastes
    the hours of the GPUs; and where there are fewer than processes. It must come before the first call that looks for
    GPUs, since torch looks at the environment once.
    """
    end_with_starter()
    private.read_newer_indices()
    with suppress(AttributeError):  # in a notebook it is not a file
        sys.stdout.reconfigure(line_buffering=True)  # in a batch job's file, each line is there at once
    if args.device == "cpu":
        devices.hide()
    by, granted = granted_gpus()
    if args.watch:
        from utils.watched import rank

        rank.begin(Path(args.out), launch_environment(), several_nodes=nodes() > 1)
    found = devices.accelerator()
    if found and args.device in devices.MAKERS and args.device != found:
        refuse(
            f"--device {args.device} asks for one of {devices.MAKERS[args.device]} GPUs on {socket.gethostname()}, and"
            f" those that torch sees are {devices.MAKERS[found]}: take --device {found}"
        )
    if args.device != "cpu" and (granted or args.device != "auto") and not found:
        asked = f"{by} has granted {count(granted, 'GPU')}" if granted else f"--device {args.device} asks for a GPU"
        refuse(f"{asked} on {socket.gethostname()}, but torch sees none: {why_no_gpu(args.device)}")
    processes, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), devices.count()
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ  # then all see the same GPUs
    if args.device != "cpu" and by_torchrun and 0 < gpus < processes and not nccl.shares_gpus():
        there = f"{processes} processes on {socket.gethostname()}, and torch sees {count(gpus, 'GPU')}"
        refuse(
            f"torchrun starts {there}: each process needs its own. Start only {gpus}, or train on CPUs with"
            " --device cpu; docs/students.md says how processes can share one"
        )
    if found == "xpu" and by_torchrun:
        # Where mpiexec has started torchrun, its variables describe torchrun. XCCL, if it sees one of them, takes this
        # process for MPI's and does not tell oneCCL which of the node's processes it is (ProcessGroupXCCL of
        # intel/torch-xpu-ops, with_mpirun).
        for name in ("MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_RANK", "PMI_SIZE", "PMIX_RANK"):
            os.environ.pop(name, None)
    check_interfaces(on_gpu=bool(found))
    if args.dtype == "bfloat16" and not has_units(found or "cpu"):
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


def why_no_gpu(asked: str = "auto") -> str:
    """What is wrong with this process's torch or environment, and what to do about it. `asked`: by --device."""
    cpu, built = "with --device cpu it trains on CPUs", devices.built_for()
    if not built:
        return (
            f"torch {torch.__version__} of {sys.executable} is built for CPUs. On a login node, `rm -r .venv` and"
            f" ./workbook start install the one for GPUs; WORKBOOK_PYTHON=… takes the site's own; {cpu}"
        )
    if asked in devices.MAKERS and asked != built:
        return (
            f"torch {torch.__version__} of {sys.executable} is built for {devices.MAKERS[built]} GPUs, and"
            f" --device {asked} means {devices.MAKERS[asked]}; WORKBOOK_PYTHON=… takes a different Python; {cpu}"
        )
    if built == "xpu":
        hidden = os.environ.get(devices.SYCL) or os.environ.get("ZE_AFFINITY_MASK")
        hides = f"{devices.SYCL} or ZE_AFFINITY_MASK may hide them" if hidden else "sycl-ls shows what its driver sees"
        return f"torch {torch.__version__} is built for {devices.MAKERS[built]} GPUs: {hides}; {cpu}"
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1", "NoDevFiles"):
        return f"CUDA_VISIBLE_DEVICES hides them all, see your batch file; {cpu}"
    if torch.version.cuda is None:  # AMD's
        return f"torch {torch.__version__} is built for ROCm {torch.version.hip}: rocm-smi shows what is there; {cpu}"
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
    print0(
        f"{count(nodes(), 'node')}, {ranks} on {devices.name(device)}{backend}, {args.dtype},"
        f" torch {torch.__version__}, data {corpus_name(args.data)}"
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
