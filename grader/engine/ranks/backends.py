"""The backend of a run's ranks: gloo on CPUs, or NCCL on this machine's GPUs.

This module makes the choice and words it. What a rank with a GPU does is in `on_gpu.py`, what the walls leave open for
it in `walls/sandbox.py`. Nothing here starts CUDA, since a process with CUDA cannot fork.
"""

from dataclasses import dataclass

from utils import nccl

WISHES = ("auto", "gloo", "nccl")
SHARES = (2, 30)  # since this NCCL, several ranks may use one GPU: NCCL_MULTI_RANK_GPU_ENABLE
RANKS_A_GPU = 9  # how many may then share it: as many as the largest run of any check


class NoBackend(ValueError):
    """The requested backend is not available; the message says why."""


@dataclass(frozen=True)
class Backend:
    """The backends that the runs of a runner may use.

    Args:
        gpus: as CUDA_VISIBLE_DEVICES names them; empty: all runs use gloo.
        nccl: version of NCCL.
        strict: refuse a run that NCCL cannot do.
    """

    gpus: tuple[str, ...] = ()
    nccl: tuple[int, ...] = ()
    strict: bool = False

    @property
    def most(self) -> int:
        """The most ranks that a run with NCCL can have."""
        return len(self.gpus) * (RANKS_A_GPU if self.shares else 1)

    @property
    def shares(self) -> bool:
        """Whether ranks can share a GPU."""
        return self.nccl >= SHARES

    @property
    def name(self) -> str:
        return "nccl" if self.gpus else "gloo"

    def devices(self, world: int) -> list[str]:
        """The GPU of each rank of such a run; empty if it uses gloo. Raises NoBackend if `strict` forbids that."""
        if world <= self.most:
            return [self.gpus[rank % len(self.gpus)] for rank in range(world)]
        if self.strict:
            raise NoBackend(f"a run of {world} ranks: {self.limit()}")
        return []

    def limit(self) -> str:
        """How many ranks NCCL can have here, and what would allow more, in words."""
        here = f"NCCL {dotted(self.nccl)} can have {self.most} here, {RANKS_A_GPU if self.shares else 1} a GPU"
        return here if self.shares else f"{here}. {remedy()}"

    def story(self) -> str:
        """The chosen backend, in one line; "" if there is no choice."""
        if not self.gpus:
            return ""
        on = f"NCCL {dotted(self.nccl)}, on {len(self.gpus)} GPU{'s' if len(self.gpus) > 1 else ''}"
        if self.most >= RANKS_A_GPU:
            return f"backend: {on}"
        larger = "are refused" if self.strict else "use gloo, on CPUs"
        return f"backend: {on}; runs of more than {self.most} rank{'s' * (self.most > 1)} {larger}. {remedy()}"


GLOO = Backend()


def choose(wish: str) -> Backend:
    """The backend for a request. Raises NoBackend if it is not available."""
    if wish not in WISHES:
        raise NoBackend(f"--backend {wish}: must be auto, gloo or nccl")
    if wish == "gloo":
        return GLOO
    if why := lacking():
        if wish == "nccl":
            raise NoBackend(f"--backend nccl: {why}")
        return GLOO
    import torch

    return Backend(visible(torch.cuda.device_count()), nccl.version(), strict=wish == "nccl")


def for_a_class(wish: str) -> Backend:
    """All submissions of a class are graded with one backend, so NCCL is chosen only if it can do every run."""
    chosen = choose(wish)
    if chosen.most >= RANKS_A_GPU or not chosen.gpus:
        return chosen
    if wish == "nccl":
        raise NoBackend(
            f"--backend nccl: a class is graded by one backend, and some checks run {RANKS_A_GPU} ranks: "
            f"{chosen.limit()}"
        )
    return GLOO


def lacking() -> str:
    """Why NCCL cannot be used on this machine; "" if it can."""
    import torch
    import torch.distributed as dist

    if not (torch.backends.cuda.is_built() and dist.is_nccl_available()):
        return f"this torch ({torch.__version__}) has no NCCL; a torch for CUDA has (https://pytorch.org/get-started)"
    if torch.version.cuda is None:  # a torch for ROCm, which calls RCCL nccl
        return "the checks use NVIDIA's driver, and this torch is for AMD's GPUs"
    if not torch.cuda.device_count():  # asks NVML, which does not start CUDA
        return "torch sees no GPU here (nvidia-smi and CUDA_VISIBLE_DEVICES say which there are)"
    return ""


def visible(count: int) -> tuple[str, ...]:
    """The names of the GPUs that this process may use."""
    import os

    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return tuple(name.strip() for name in named.split(",") if name.strip())[:count] or tuple(map(str, range(count)))


def remedy() -> str:
    """What lets ranks share a GPU: what to install, and what to set."""
    import torch

    package = f"nvidia-nccl-cu{(torch.version.cuda or '13').partition('.')[0]}"
    return (
        f"From NCCL {dotted(SHARES)} on they can share one: pip install '{package}>={dotted(SHARES)}', then ./workbook"
        " stop (the checks set NCCL_MULTI_RANK_GPU_ENABLE=1; for runs of your own, set it yourself)"
    )


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
