"""`launch` for notebooks: run the training script under torchrun, with some of its functions replaced.

The script is ddp_training: the reference where the course has it, else the student's own. The notebook's functions, as
they are now, replace the script's: `wrap_2`, of story 2, replaces `wrap`. The folder runs/STORY has everything:
`story.py`, a small text to train on, and a log of each rank.
"""

import ast
import inspect
import os
import random
import re
import shutil
import subprocess
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from grader.engine.jobs import machine
from grader.engine.lesson import lessons, todo_regions
from utils.interfaces import GLOO, LOOPBACK
from utils.end_with_launcher import STARTER

SCRIPT = "ddp_training"
SMALL = "--batch-size 12 --seq-len 8 --dim 16 --heads 2 --layers 1 --epochs 1 --log-every 1 --clip 0"
# With gloo, on CPUs, on any machine: the stories quote gloo's messages.
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", GLOO: LOOPBACK}


class Launched:
    """How a run ended."""

    def __init__(self, folder: Path, code: int | None, seconds: float) -> None:
        self.folder, self.code, self.seconds = folder, code, seconds  # code is None if the run had to be ended

    def log(self, rank: int, lines: int = 1000) -> str:
        """The last lines that a rank printed: its stdout, then its stderr."""
        logs = sorted(self.folder.glob(f"logs/*/attempt_0/{rank}/std*.log"), reverse=True)
        printed = [line for path in logs for line in path.read_text(errors="replace").splitlines()]
        # faulthandler's last line has a thousand characters and does not help here
        return "\n".join([line for line in printed if line and not line.startswith("Extension modules")][-lines:])

    def __repr__(self) -> str:
        how = "had to be ended" if self.code is None else f"ended with exit code {self.code}"
        return f"{how} after {self.seconds:.0f} s; its folder is {self.folder}"


def launch(
    story: str, functions: list[Callable], nproc: int, limit: float, samples: int, flags: str, env: dict[str, str]
) -> Launched:
    """See `grader.launch`. Raises ValueError where there is no script to run."""
    folder = lessons.COURSE / "runs" / story
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / f"{SCRIPT}.py").write_text(script(), "utf-8")
    (folder / "story.py").write_text(program(functions), "utf-8")
    write_corpus(folder / "data", samples)
    torchrun = machine.torchrun(f"--nproc-per-node={nproc}", "--log-dir", str(folder / "logs"), "--redirects", "3")
    given = ["--data", str(folder / "data"), "--out", str(folder / "out"), *SMALL.split(), *flags.split()]
    began = time.monotonic()
    process = subprocess.Popen(
        [*torchrun, str(folder / "story.py"), *given],
        env={**os.environ, **ENVIRONMENT, **env, STARTER: str(os.getpid())},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=(folder / "torchrun.log").open("w"),
        stderr=subprocess.STDOUT,
    )
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        if process.poll() is None:
            process.terminate()  # torchrun ends its ranks
            process.wait()
    return Launched(folder, code, time.monotonic() - began)


def script() -> str:
    """The text of the script that all stories use. Raises ValueError if the student's script is not done."""
    source = lessons.source_path(SCRIPT).read_text("utf-8")
    if lessons.has_solutions():
        return todo_regions.compose(source, todo_regions.titles(source))
    text = lessons.student_path(SCRIPT).read_text("utf-8")
    todo = [number for number in todo_regions.titles(source) if not todo_regions.attempted(source, text, number)]
    if todo:
        numbers = ", ".join(map(str, sorted(todo)))
        raise ValueError(f"launch runs your train/{SCRIPT}.py, and its TODOs {numbers} are not done yet")
    return text


def program(functions: list[Callable]) -> str:
    """The script with its functions replaced by these."""
    parts: dict[str, str] = {}
    for function in functions:
        collect(function.__name__, function, parts)
    names = [function.__name__ for function in functions]
    placed = [f"{SCRIPT}.{re.sub(r'_[0-9]+$', '', name)} = {name}" for name in names]
    return "\n\n".join(
        [
            '"""Rewritten by each `launch`: change the notebook\'s cell, not this file."""',
            "from __future__ import annotations",
            f"import sys\n\nsys.path[:0] = [{str(lessons.COURSE)!r}]\nimport {SCRIPT}",
            *parts.values(),
            "\n".join(placed),
            f'if __name__ == "__main__":\n    {SCRIPT}.main()\n',
        ]
    )


def collect(name: str, value: Any, parts: dict[str, str]) -> None:
    """Add to `parts`, by name, the code that makes `value`, after the code of everything that it uses."""
    if name in parts:
        return
    if isinstance(value, ModuleType):
        parts[name] = f"import {value.__name__} as {name}"
    elif inspect.isfunction(value) and value.__module__ == "__main__":
        parts[name] = ""  # it may call itself
        source = textwrap.dedent(inspect.getsource(value)).strip()
        written = inspect.unwrap(value)  # a decorator's function is made elsewhere, of names that are not the cell's
        for used in [*names_of(written.__code__), *names_of_decorators(source)]:
            if used in written.__globals__:
                collect(used, written.__globals__[used], parts)
        del parts[name]
        parts[name] = source
    elif hasattr(value, "__qualname__"):
        parts[name] = f"from {value.__module__} import {value.__qualname__} as {name}"
    else:
        parts[name] = f"{name} = {value!r}"


def names_of_decorators(source: str) -> list[str]:
    """The names that the decorators of a function use."""
    decorators = ast.parse(source).body[0].decorator_list
    return [node.id for part in decorators for node in ast.walk(part) if isinstance(node, ast.Name)]


def names_of(code: CodeType) -> list[str]:
    """The global names that some code, with its inner definitions, uses."""
    inner = [name for part in code.co_consts if isinstance(part, CodeType) for name in names_of(part)]
    return [*code.co_names, *inner]


def write_corpus(folder: Path, samples: int) -> None:
    """Write a small text in which most words are determined by the word before them. The training set has this many
    samples of 8.
    """
    folder.mkdir()
    draw = random.Random(0)
    for split, windows in (("train", samples), ("validation", 13), ("test", 11)):
        word, words = 0, []
        for _ in range(windows * 8 + 1):
            word = (3 * word + 1) % 31 if draw.random() < 0.9 else draw.randrange(31)
            words.append(f"w{word}")
        (folder / f"{split}.txt").write_text(" ".join(words[:-1]) + "\n")
