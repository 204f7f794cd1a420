"""Turns a py:percent source into the .ipynb that a student gets.

nbgrader makes the release, with one preprocessor of ours in place of its
ClearSolutions, so that a region means the same in a notebook as in a script.
``nbgrader_config.py`` uses the same list.
"""

from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader.converters import GenerateAssignment
from nbgrader.preprocessors import (
    ClearSolutions,
    IncludeHeaderFooter,
    InstantiateTests,
    NbGraderPreprocessor,
    SaveCells,
)
from nbgrader.utils import is_solution

from grader.engine.lesson import lessons, todo_regions

# The kernel that every installation has, so that the notebook opens anywhere.
KERNEL = {"name": "python3", "display_name": "Parallel training", "language": "python"}


class ClearRegions(NbGraderPreprocessor):
    """Replaces each solution with the student's text, by the grammar of ``regions``."""

    def preprocess_cell(
        self, cell: NotebookNode, resources: dict[str, Any], cell_index: int
    ) -> tuple[NotebookNode, dict[str, Any]]:
        if cell.cell_type != "code":
            return cell, resources
        found = bool(todo_regions.parse(cell.source, f"cell {cell_index + 1}"))
        if found != is_solution(cell):
            raise todo_regions.SourceError(
                f'cell {cell_index + 1}: a cell with a TODO region must be marked "solution": true, and no other may be'
            )
        if found:
            cell.source = todo_regions.compose(cell.source)
        return cell, resources


# nbgrader's steps in nbgrader's order, with ours replacing one.
STEPS = [
    ClearRegions if step is ClearSolutions else step
    for step in GenerateAssignment.preprocessors.default(GenerateAssignment)
]
# These need a gradebook, a kernel or files of their own, and do not change our cells.
OUTSIDE_THE_BUILD = (IncludeHeaderFooter, InstantiateTests, SaveCells)


def to_notebook(percent_source: str, lesson: str, released: bool) -> NotebookNode:
    """The notebook of a lesson: complete, or ``released`` as the student gets it.

    The same source gives the same notebook, cell ids included.
    """
    notebook = lessons.read_percent(percent_source, lesson)
    for cell in notebook.cells:
        cell.metadata.setdefault("slideshow", {"slide_type": slide_type(cell)})
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    if released:
        for step in STEPS:
            if step not in OUTSIDE_THE_BUILD:
                notebook, _ = step().preprocess(notebook, {})
    nbformat.validate(notebook)
    return notebook


def slide_type(cell: NotebookNode) -> str:
    """The Jupyter slide type of a cell: a heading of the first two levels starts a slide, a TODO a slide below it,
    prose continues one; other code is left out.
    """
    if cell.cell_type == "markdown":
        return "slide" if cell.source.startswith(("# ", "## ")) else "-"
    return "subslide" if is_solution(cell) else "skip"


def to_json(notebook: NotebookNode) -> str:
    """The text of an .ipynb file."""
    return nbformat.writes(notebook) + "\n"
