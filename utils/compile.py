"""`--compile`: torch.compile, and one clear line where it cannot work."""

import os
import shutil
import sys
from typing import TypeVar

import torch
from torch import nn

from utils.arguments import Parser
from utils.devices import accelerator
from utils.distributed import fail

Model = TypeVar("Model", bound=nn.Module)


def add_compile(parser: Parser) -> None:
    """The flag, for a script whose model can be compiled."""
    parser.add_argument("--compile", action="store_true", help="compile the model; needs a C++ compiler")


def check_compiler() -> None:
    """Exit with code 2 unless torch.compile finds what it needs: for a CPU it writes C++; for a GPU, Triton needs C."""
    if accelerator():
        names = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    else:
        names = [os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")]
    if not any(map(shutil.which, names)):
        fail(
            f"--compile needs a compiler, and there is no {' or '.join(names)} here: install it, or leave --compile out"
        )


def compiled(module: Model) -> Model:
    """The module, with its forward pass compiled at the first call, and again for other shapes. Its weights keep their
    names; and the module's hooks (of DDP, FSDP and --record) stay outside what is compiled.
    """
    module.forward = torch.compile(module.forward)
    return module
