"""Which NCCL this process uses, and whether it lets ranks share a GPU. Loads no torch by itself."""

import ctypes
import os


def version() -> tuple[int, int, int]:
    """Of the NCCL that torch has loaded. Starts no CUDA.

    `torch.cuda.nccl.version()` is the version of the header that torch was compiled with, whatever pip has installed
    since; this one can be newer.
    """
    try:
        library = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:  # it is linked into torch
        import torch

        return torch.cuda.nccl.version()[:3]
    code = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(code))
    return code.value // 10_000, code.value // 100 % 100, code.value % 100  # nccl.h, since 2.9


def shares_gpus() -> bool:
    """Whether the environment lets several ranks use one GPU."""
    return os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE", "0") != "0"
