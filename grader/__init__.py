"""The grader, as a notebook uses it: `from grader import check, run_on_ranks`, then `check("01_collectives/1")`."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grader.engine.commands.notebook import RanksRun
    from grader.engine.commands.notebook_launch import Launched

OWN = "\x1e"  # in what a rank prints: here begins what the student's own function prints
_cells: dict[str, tuple[str, float]] = {}  # cell id -> the source that was last run, perhaps not saved yet, and when


class NotRight(AssertionError):
    """A TODO is not right, so nbgrader sees a failure; its text is the diagnosis."""

    def __init__(self, words: str, page: str) -> None:
        super().__init__(words)
        self.page = page

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the diagnosis, without the lines of ours that led to it."""
        return [self.page]


class RanksStopped(RuntimeError):
    """The student's function did not come to its end on the ranks; the text says why."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class NotOnARank(Exception):
    """A cell that starts ranks does so in the notebook only, not on the ranks themselves. The rest of the cell is left
    out there.
    """


class Interrupted(KeyboardInterrupt):
    """The student stopped a check."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def check(name: str, backend: str = "auto") -> None:
    """Check a TODO of the notebook that this runs in, and say what is right, or what is wrong and why.

    Args:
        name: `lesson/number`.
        backend: "gloo" (CPUs), "nccl" (GPUs), or "auto": NCCL for runs whose ranks can each have a GPU.

    Raises:
        NotRight: an AssertionError whose text is the diagnosis.
    """
    if "grader.engine.inside.rank" in sys.modules:
        return  # a cell of the student's, on a rank: it is what is being checked
    try:
        from grader.engine.commands.notebook import afterwards, verdict
        from grader.engine.judge.verdict_text import heading, page, story

        found = verdict(name, _cells, backend)
    except KeyboardInterrupt:
        raise Interrupted(
            "The check was stopped. Nothing of it is left running; run the cell again to check anew."
        ) from None
    if not found.passed:
        raise NotRight(story(found), page(found))
    print(heading(found))
    if text := afterwards(name):
        print(text)


def run_on_ranks(name: str, inputs: list[Any], timed: bool = False, backend: str = "auto") -> "RanksRun":
    """Run one of this notebook's functions on fresh ranks, one for each input, as `function(input, rank, world)`.

    What the ranks print is printed. The function is the one of the cell as it was last run, and it finds a process
    group.

    Args:
        name: `lesson/function`, as in "01_collectives/ring_all_reduce".
        inputs: for each rank a tensor, or anything that JSON can hold.
        timed: the function takes times, so the judge disturbs it as little as it can; it then needs 4 s to see a
            deadlock.
        backend: "gloo" (CPUs), "nccl" (GPUs, where the function's tensors then are), or "auto": NCCL if each rank can
            have a GPU.

    Returns:
        What each rank returned (`results`), who sent how much to whom, and when (`messages`), and what each rank
        called for all to do together (`collectives`).

    Raises:
        RanksStopped: a rank crashed, or none could move any more; the text says where.
    """
    if "grader.engine.inside.rank" in sys.modules:
        raise NotOnARank("on the ranks a cell ends where it calls run_on_ranks: define functions in cells of their own")
    try:
        from grader.engine.commands.notebook import own_run

        return own_run(name, inputs, timed, _cells, backend)
    except KeyboardInterrupt:
        raise Interrupted("The run was stopped. Nothing of it is left running.") from None


def launch(
    story: str,
    *functions: Callable,
    nproc: int = 2,
    limit: float = 180,
    samples: int = 48,
    flags: str = "",
    env: dict[str, str] | None = None,
) -> "Launched":
    """Run ddp_training by torchrun, with functions of this notebook in the place of its own, in the folder runs/STORY.

    Args:
        story: names the folder.
        functions: those to put in, each named as the script's one and its story, as in `wrap_2`; what they call of
            this notebook comes along.
        limit: seconds after which the run is ended.
        samples: of the training set.
        flags: more of the script's.
        env: more variables of the environment.

    Returns:
        How it ended, and what each rank has said: `.log(rank)`, `.log(rank, lines)`.
    """
    if "grader.engine.inside.rank" in sys.modules:
        raise NotOnARank("on the ranks a cell ends where it calls launch: define functions in cells of their own")
    try:
        from grader.engine.commands.notebook_launch import launch

        return launch(story, list(functions), nproc, limit, samples, flags, env or {})
    except ValueError as problem:
        raise RanksStopped(str(problem)) from None
    except KeyboardInterrupt:
        raise Interrupted("The run was stopped. Nothing of it is left running.") from None


def _remember(cell: Any) -> None:
    """JupyterLab names the cell it runs: what stands in it now is what the student means."""
    if getattr(cell, "cell_id", None):
        _cells[cell.cell_id] = cell.raw_cell, time.time()


def _watch_cells() -> None:
    """In a notebook's kernel, remember each cell as it runs."""
    if "IPython" in sys.modules:
        from IPython import get_ipython

        shell = get_ipython()
        if shell is not None and hasattr(shell, "kernel"):
            shell.events.register("pre_run_cell", _remember)


_watch_cells()
