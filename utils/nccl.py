"""Which NCCL this process uses. It can be newer than the one that torch was built with."""

import ctypes
import os

import torch


def version() -> tuple[int, int, int]:
    """Of the NCCL that torch has loaded. Starts no CUDA.

    `torch.cuda.nccl.version()` is the version of the header that torch was compiled with, whatever pip has installed
    since.
    """
    try:
        library = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:  # it is linked into torch
        return torch.cuda.nccl.version()[:3]
    code = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(code))
    return code.value // 10_000, code.value // 100 % 100, code.value % 100  # nccl.h, since 2.9
