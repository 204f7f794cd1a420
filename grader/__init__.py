"""The grader. In a notebook: `from grader import check`, then `check("01_collectives/1")`."""

import sys
import time
from typing import Any

_cells: dict[str, tuple[str, float]] = {}  # cell id -> the source that was last run, perhaps not saved yet, and when


class NotRight(AssertionError):
    """A TODO is not right, so nbgrader sees a failure; its text is the diagnosis."""

    def __init__(self, words: str, page: str) -> None:
        super().__init__(words)
        self.page = page

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the diagnosis, without the lines of ours that led to it."""
        return [self.page]


class Interrupted(KeyboardInterrupt):
    """The student stopped a check."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def check(name: str) -> None:
    """Check a TODO of the notebook that this runs in, and say what is right, or what is wrong and why.

    Args:
        name: `lesson/number`.

    Raises:
        NotRight: an AssertionError whose text is the diagnosis.
    """
    if "grader.engine.rank" in sys.modules:
        return  # a cell of the student's, on a rank: it is what is being checked
    try:
        from grader.engine.notebook_check import verdict
        from grader.engine.report import heading, page, story

        found = verdict(name, _cells)
    except KeyboardInterrupt:
        raise Interrupted("The check was stopped. Nothing of it is left running; run the cell again to check anew.") from None
    if not found.passed:
        raise NotRight(story(found), page(found))
    print(heading(found))


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
