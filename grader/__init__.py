"""The grader. In a notebook: `from grader import check`, then `check("01_collectives/1")`."""

from typing import Any

_cells: dict[str, str] = {}  # cell id -> the source that was last run, which may not be saved yet
_engine: Any = None


def check(name: str) -> None:
    """Check a TODO of the notebook that this runs in, and say what is right, or what is wrong and why.

    Args:
        name: `lesson/number`.

    Raises:
        AssertionError: the TODO is not right (so that nbgrader sees it); its message is the diagnosis.
    """
    from grader.engine.notebook_check import verdict

    global _engine
    _engine, found, words = verdict(name, _cells, _engine)
    if not found.passed:
        raise AssertionError(words)
    print(words)


def _remember(cell: Any) -> None:
    """JupyterLab names the cell it runs: what stands in it now is what the student means."""
    if getattr(cell, "cell_id", None):
        _cells[cell.cell_id] = cell.raw_cell


def _watch_cells() -> None:
    """In a notebook's kernel, remember each cell as it runs."""
    import sys

    if "IPython" in sys.modules:
        from IPython import get_ipython

        shell = get_ipython()
        if shell is not None and hasattr(shell, "kernel"):
            shell.events.register("pre_run_cell", _remember)


_watch_cells()
