"""A second call in the process of the first one shows what the student's code kept in between.

Nothing else is kept. What a run was given is reset: process group, environment, folder, random numbers, and everything
that the judge counts.
"""

import os
import random
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules import module as modules

from grader.engine.inside import observe, return_values
from utils import private
from utils.distributed import cleanup
from utils.model import TransformerLM

# Hooks on all modules, which a run with --record sets.
HOOKS = [hooks for name, hooks in vars(modules).items() if name.startswith("_global_") and isinstance(hooks, dict)]


class Start:
    """The state of the process before the student's code is called."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self.drawn = random.getstate(), torch.get_rng_state()
        self.dtype = torch.get_default_dtype()
        self.hooks = [dict(hooks) for hooks in HOOKS]
        self.save, self.forward = torch.save, TransformerLM.forward  # which the recording of a run replaces

    def restore(self) -> None:
        os.environ.clear()
        os.environ.update(self.environment)
        random.setstate(self.drawn[0])
        torch.set_rng_state(self.drawn[1])
        torch.set_default_dtype(self.dtype)
        for hooks, before in zip(HOOKS, self.hooks):
            hooks.clear()
            hooks.update(before)
        torch.save, TransformerLM.forward = self.save, self.forward


kept: list[Any] = []  # messages of the first call that are still in flight: gloo may still write there


def between(reporter: observe.Reporter, start: Start) -> Path:
    """Wait until every rank has returned from the first call, and reset. Returns the second call's folder."""
    sys.settrace(None)
    kept.append(dict(reporter.in_flight))
    sys.stdout.flush()
    sys.stderr.flush()
    reporter.say(e="boundary")
    reporter.socket.recv(1)  # the judge has heard all ranks, and has read what they printed
    for printed in (1, 2):
        with suppress(OSError):  # the student's code may have replaced descriptors 1 and 2
            os.ftruncate(printed, 0)  # in a sandbox, two calls have no more disk space than one
    if dist.is_initialized():
        cleanup()
    observe.ended |= observe.kept
    private.forget_layouts()  # DTensor's layouts name the groups that have ended
    start.restore()
    reporter.begin(reporter.folder / "second")
    return_values.reported.clear()
    return reporter.folder
