"""Accelerators that are not there: what torch reports of them, and a stand-in of type xpu for a whole run.

python tests/accelerators.py 2 train/ddp_training.py …   as if this node had two of Intel's GPUs; or -m MODULE

Tensors that are put on the stand-in stay on the CPU, and messages go by gloo: so the numbers are the CPU's, and what is
tried is that nothing on the way asks for CUDA, and that the run says xpu and xccl wherever it says what it runs on.
"""

import functools
import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

NAME, HELD, TOTAL = "Stand-in for a GPU Max 1550", 123_456_789, 64 * 2**30


def pretend(kind, gpus, replace=setattr):
    """Let this torch be built for `kind` ("cuda", "xpu"; "" for CPUs only) and see `gpus` of them on this node.

    Args:
        replace: monkeypatch.setattr, where it must end with the test.
    """
    chosen = {"index": 0}

    def current(check_available=False):
        return torch.device(kind) if kind and (gpus or not check_available) else None

    def choose(device):
        device = torch.device(kind, device) if isinstance(device, int) else torch.device(device)
        assert device.type == kind and 0 <= device.index < gpus, device
        chosen["index"] = device.index

    for name, stand_in in {
        "current_accelerator": current,
        "is_available": lambda: gpus > 0,
        "device_count": lambda: gpus,
        "set_device_index": choose,
        "current_device_index": lambda: chosen["index"],
        "current_stream": lambda device=None: SimpleNamespace(is_capturing=lambda: False),
        "synchronize": lambda device=None: None,
    }.items():
        replace(torch.accelerator, name, stand_in)


def pretend_xpu(gpus, replace=setattr):
    """The same for Intel's GPUs, with what torch.xpu tells of them. Returns what it was asked for."""
    pretend("xpu", gpus, replace)
    asked = {"seeds": [], "states": 0, "fraction": None}

    def fraction(value, device=None):
        asked["fraction"] = value, device

    def state():
        asked["states"] += 1
        return torch.get_rng_state()

    for name, stand_in in {
        "is_available": lambda: gpus > 0,
        "device_count": lambda: gpus,
        "get_device_name": lambda device=None: NAME,
        "get_device_properties": lambda device=None: SimpleNamespace(name=NAME, total_memory=TOTAL),
        "memory_allocated": lambda device=None: HELD,
        "max_memory_allocated": lambda device=None: HELD,
        "set_per_process_memory_fraction": fraction,
        "manual_seed_all": asked["seeds"].append,
        "get_rng_state": state,
        "set_rng_state": torch.set_rng_state,
    }.items():
        if hasattr(torch.xpu, name):  # torch 2.8 cannot limit the memory of one
            replace(torch.xpu, name, stand_in)
    return asked


class StaysOnTheCpu(TorchFunctionMode):
    """What is put on an xpu stays on the CPU, and so does what is pinned for it."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.pin_memory:
            return args[0]
        if function is torch.device:
            return function(*args, **(kwargs or {}))
        return function(*map(on_cpu, args), **{name: on_cpu(value) for name, value in (kwargs or {}).items()})


def on_cpu(value):
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "xpu" else value


def connect_by_gloo():
    """Groups that are asked for with xccl use gloo, and say xccl; DDP, told which xpu its model is on, is not."""
    join, wrap = dist.init_process_group, torch.nn.parallel.DistributedDataParallel.__init__

    @functools.wraps(join)
    def joined(backend=None, **how):
        assert backend == "xccl", backend
        own = how.pop("device_id", None)
        assert own is None or own == torch.device("xpu", torch.accelerator.current_device_index()), own
        join("gloo", **how)
        dist.get_backend = lambda group=None: backend

    @functools.wraps(wrap)
    def wrapped(self, module, device_ids=None, **how):
        assert device_ids == [torch.device("xpu", torch.accelerator.current_device_index())], device_ids
        wrap(self, module, **how)

    dist.init_process_group, torch.nn.parallel.DistributedDataParallel.__init__ = joined, wrapped


if __name__ == "__main__":
    pretend_xpu(int(sys.argv[1]))
    connect_by_gloo()
    sys.path.insert(0, os.getcwd())
    with StaysOnTheCpu():
        if sys.argv[2] == "-m":
            sys.argv = sys.argv[3:]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = sys.argv[2:]
            runpy.run_path(str(Path(sys.argv[0]).resolve()), run_name="__main__")
