"""The student's notebook in a copy of the course, and a kernel to run it in as JupyterLab does."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import nbformat
import psutil
from jupyter_client.manager import start_new_kernel
from nbformat import NotebookNode

from grader.engine.lesson import lessons, notebooks, todo_regions

LESSON = "01_collectives"
SUM = "total = torch.stack(inputs).sum(dim=0)\nreturn [total.clone() for _ in inputs]"
MEAN = SUM.replace("sum", "mean")
GATHER = "return [torch.cat(inputs) for _ in inputs]"
SCATTER = "total = torch.stack(inputs).sum(dim=0)\nreturn [chunk.clone() for chunk in total.chunk(len(inputs))]"


def blank() -> NotebookNode:
    """The notebook as the student gets it."""
    source = lessons.source_path(LESSON).read_text("utf-8")
    return notebooks.to_notebook(source, LESSON, released=True)


def filled(reduce: str = SUM) -> NotebookNode:
    """TODO 1 done, with this all-reduce."""
    notebook = blank()
    cell(notebook, "todo_1").source = answer(reduce)
    return notebook


def solved(lesson: str = LESSON) -> NotebookNode:
    """All TODOs done."""
    source = lessons.source_path(lesson).read_text("utf-8")
    return notebooks.to_notebook(todo_regions.compose(source, todo_regions.titles(source)), lesson, released=False)


def answer(reduce: str = SUM) -> str:
    """The cell of TODO 1 with this all-reduce."""
    cells = lessons.read_percent(lessons.source_path(LESSON).read_text("utf-8"), LESSON).cells
    text = next(c.source for c in cells if c.get("id") == "todo_1")
    return todo_regions.compose(text, (), {1: [reduce, GATHER, SCATTER]})


def cell(notebook: NotebookNode, key: str) -> NotebookNode:
    return next(c for c in notebook.cells if c.get("id") == key)


def save(notebook: NotebookNode, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, file)


class Shown(NamedTuple):
    """What stands below a cell that ran, without colours."""

    text: str
    error: str = ""  # the name of the exception


class Kernel:
    """A kernel beside a notebook. A context manager; afterwards nothing of it is left."""

    def __init__(self, cwd: Path, environment: Mapping[str, str] = os.environ) -> None:
        environment = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
        self.manager, self.client = start_new_kernel(startup_timeout=180, cwd=str(cwd), env=environment)
        self.process = psutil.Process(self.manager.provisioner.pid)

    def __enter__(self) -> "Kernel":
        return self

    def __exit__(self, *_: object) -> None:
        everything = [self.process, *self.process.children(recursive=True)]
        self.client.stop_channels()
        self.manager.shutdown_kernel()
        left = psutil.wait_procs(everything, timeout=60)[1]
        for process in left:
            process.kill()
        assert not left, f"left running: {left}"

    def run(self, cell: NotebookNode) -> Shown:
        return self.shown(self.begin(cell))

    def begin(self, cell: NotebookNode) -> str:
        """Start a cell as JupyterLab does, which names it; returns the request's id."""
        content = {
            "code": cell.source,
            "silent": False,
            "store_history": True,
            "allow_stdin": False,
            "stop_on_error": True,
        }
        request = self.client.session.msg("execute_request", content, metadata={"cellId": cell.id})
        self.client.shell_channel.send(request)
        return request["header"]["msg_id"]

    def shown(self, request: str) -> Shown:
        """Wait for the cell's end."""
        text, error = "", ""
        while True:
            message = self.client.get_iopub_msg(timeout=180)
            kind, content = message["msg_type"], message["content"]
            if message["parent_header"].get("msg_id") != request:
                continue
            if kind == "stream":
                text += content["text"]
            elif kind == "error":
                text, error = text + "\n".join(content["traceback"]), content["ename"]
            elif kind == "status" and content["execution_state"] == "idle":
                return Shown(re.sub(r"\x1b\[[\d;]*m", "", text), error)
