"""Several checks at the same time, on a machine with more than two processors.

Helpers, forks of the judging process with ranks of their own, go ahead of the judge and look for TODOs that are right.
Any other verdict depends on the order in which TODOs are judged, such as who is to blame for a crash: the judge reaches
it alone, as if there were no helpers. So there are the same verdicts, in the same order, with and without them.
"""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress

import torch

from grader.engine.judge.judge import Judge
from grader.engine.judge.verdict import Verdict
from grader.engine.ranks.backends import Backend
from grader.engine.ranks.linux_processes import die_with_the_parent
from grader.engine.ranks.runner import Runner

RANKS = 2  # processors that the ranks of one check keep busy
MOST = 4  # helpers: a login node has many processors, and many users


def helpers(runner: Runner) -> int:
    """How many checks this machine can run at the same time: one, if it does not say, or its GPUs are in use."""
    if not runner.server.kept or runner.backend.gpus:  # without a kept server, each helper would have to load torch
        return 1
    return min(len(os.sched_getaffinity(0)) // RANKS, MOST)


class SideBySide:
    """Helpers that judge these TODOs, of (lesson, number), in this order. Use as a context manager: it leaves none.

    They are forked here, so before the process starts a thread or computes with tensors. A `count` of one is none at
    all. `folder`: as for Judge.
    """

    def __init__(self, todos: Sequence[tuple[str, int]], folder: str | None, backend: Backend, count: int) -> None:
        self.coming: dict[tuple[str, int], Future] = {}
        self.pool: ProcessPoolExecutor | None = None
        if count > 1 and len(todos) > 1:
            forks = multiprocessing.get_context("fork")
            with suppress(BrokenProcessPool, OSError):  # a machine that allows no more processes
                self.pool = ProcessPoolExecutor(count, forks, begin, (folder, backend))
                for todo in todos:
                    self.coming[todo] = self.pool.submit(judged, *todo)

    def __enter__(self) -> "SideBySide":
        return self

    def __exit__(self, *_: object) -> None:
        for helper in multiprocessing.active_children():
            helper.kill()
        if self.pool:
            self.pool.shutdown(cancel_futures=True)

    def passed(self, lesson: str, number: int) -> Verdict | None:
        """The verdict on a TODO that is right if those are that it needs; None if the judge has to judge it."""
        try:
            return self.coming.pop((lesson, number)).result()
        except (KeyError, BrokenProcessPool):  # it was not asked for; or a helper was killed
            return None


# In a helper: what it judges, with what it has learned of each lesson.
runner: Runner
target: str | None
judges: dict[str, Judge] = {}


def begin(folder: str | None, backend: Backend) -> None:
    """In a helper, before all else."""
    global runner, target
    die_with_the_parent()
    torch.set_num_threads(1)
    runner, target = Runner(kept=True, backend=backend), folder


def judged(lesson: str, number: int) -> Verdict | None:
    """In a helper: the verdict on a TODO, if it is right and all others are."""
    if lesson not in judges:
        judges[lesson] = Judge(runner, lesson, target)
    judge = judges[lesson]
    judge.presume(set(judge.checks) - {number})
    judge.known.pop(number, None)
    try:
        found = judge.verdict(number)
    except Exception:  # the judge will meet it, and say so
        return None
    return found if found.passed else None
