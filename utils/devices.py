"""Which kind of device a process trains on. All that differs between the kinds is asked of torch, by this name:
`torch.accelerator`, `torch.get_device_module(kind)`, `dist.get_default_backend_for_device(kind)`.
"""

import os

import torch

# Each torch is built for one kind: NVIDIA's GPUs or AMD's, which ROCm's torch calls cuda, too; Intel's; or CPUs alone.
# Apple's mps is not among them: no library connects ranks on it, so scripts train on the CPU there.
MAKERS = {"cuda": "NVIDIA's or AMD's", "xpu": "Intel's"}
# Variables that hide every GPU of NVIDIA's, AMD's and Intel's. SYCL reads the last one; newer releases of torch count
# Intel's GPUs without SYCL at first, so `accelerator` reads it, too.
SYCL = "ONEAPI_DEVICE_SELECTOR"
HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", SYCL: "*:cpu"}


def built_for() -> str:
    """The kind of accelerator for which this torch is built, whether or not there is one: "cuda", "xpu" or ""."""
    kind = torch.accelerator.current_accelerator()
    return kind.type if kind is not None and kind.type in MAKERS else ""


def accelerator() -> str:
    """The kind of GPU that this process can use: "cuda", "xpu"; "" where there are only CPUs."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None or kind.type not in MAKERS:
        return ""
    return "" if kind.type == "xpu" and os.environ.get(SYCL) == HIDDEN[SYCL] else kind.type


def count() -> int:
    """How many accelerators this process sees."""
    return torch.accelerator.device_count() if accelerator() else 0


def hide() -> None:
    """Let this process, and those that it starts, see CPUs only. It must come before torch looks for the first time."""
    os.environ.update(HIDDEN)


def name(device: torch.device) -> str:
    """What its maker calls it."""
    return "CPU" if device.type == "cpu" else torch.get_device_module(device).get_device_name(device)
