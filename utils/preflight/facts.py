"""What a rank sees before it has met the others: no message is sent here, so nothing can hang."""

import os
import platform
import re
import shutil
import socket
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from utils import devices, interfaces, nccl
from utils.job import granted_gpus

COURSE = Path(__file__).resolve().parents[2]
CHECKPOINT = 64 * 2**20  # bytes that are written to see how fast the storage is


def facts(rank: int, local_rank: int, out: Path) -> dict[str, Any]:
    """Everything that a node, and this rank on it, can say alone; JSON."""
    kind, gpus = devices.accelerator(), devices.count()
    return {
        "rank": rank,
        "local_rank": local_rank,
        "host": os.environ.get("SLURMD_NODENAME", socket.gethostname()),
        "device": devices.name(torch.device(kind, local_rank % gpus) if gpus else torch.device("cpu")),
        "gpus": gpus,
        "granted": granted_gpus()[1],
        "address": own_address(),
        "interfaces": {name: os.environ[name] for name in interfaces.NAMES if name in os.environ},
        "addresses": interfaces.addresses(),
        "versions": versions(),
        "storage": storage(out, rank) if local_rank == 0 else None,
    }


def own_address() -> str:
    """The address from which this node reaches MASTER_ADDR; nothing is sent to find out."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 9))
        return sock.getsockname()[0]
    return "none"


def versions() -> dict[str, str]:
    """Of Python, torch and what it brings, and of every package in requirements.txt."""
    found = {"Python": platform.python_version(), "torch": str(torch.__version__), "CUDA": str(torch.version.cuda)}
    for name, version in (("ROCm", torch.version.hip), ("XPU", torch.version.xpu)):
        if version:
            found[name] = str(version)
    if devices.accelerator() == "cuda":
        found["NCCL"] = ".".join(map(str, nccl.version()))
    for name in re.findall(r"^([\w-]+)", (COURSE / "requirements.txt").read_text("utf-8"), re.MULTILINE):
        if name not in found:
            with suppress(metadata.PackageNotFoundError):
                found[name] = metadata.version(name)
    return found


def storage(out: Path, rank: int) -> dict[str, Any]:
    """Free bytes where runs are written, and bytes a second of a small checkpoint; or why it cannot be written.

    A quota is not asked for, since each centre has its own command: a write shows the limit.
    """
    file = out / f".preflight-{rank}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out).free
        content, begun = os.urandom(2**20), time.perf_counter()
        with file.open("wb") as target:
            for _ in range(CHECKPOINT // len(content)):
                target.write(content)
            target.flush()
            os.fsync(target.fileno())
        return {"free": free, "speed": CHECKPOINT / (time.perf_counter() - begun)}
    except OSError as problem:
        return {"error": f"{problem.strerror} ({out})"}
    finally:
        with suppress(OSError):
            file.unlink(missing_ok=True)
