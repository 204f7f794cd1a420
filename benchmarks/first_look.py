"""What `./workbook run` would tell to look at first: after the ten slow stories of 12_why_it_is_slow, and healthy runs.

    python benchmarks/first_look.py stories
    python benchmarks/first_look.py stories 2 9 --flags "--dim 192 --max-steps 60"
    python benchmarks/first_look.py healthy

Each story runs as given and with its fix, as its cell in the notebook launches it, for 16 recorded steps or more. The
healthy runs are the course's scripts, on one to four ranks; the last five beside eight busy processes. Whatever is said
about a healthy run or a fixed story is a false alarm: the exit code is 1 if there is one. "work" is how many
times as long the busiest rank works as the next one.
"""

import argparse
import ast
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from grader.engine.commands import notebook_launch
from grader.engine.jobs import machine
from grader.engine.lesson import lessons, todo_regions
from reference import is_constant
from utils.report import runs
from utils.report.first_look import first_look

LESSON = "12_why_it_is_slow"
LIMIT = 900  # seconds of a run
BUSY = 8  # processes of an artificial load
STEPS = "--record --max-steps 16"
TINY = "--dim 32 --heads 2 --layers 1 --batch-size 12 --seq-len 16"
MIDDLE = "--dim 64 --batch-size 12 --seq-len 32"
WIDE = "--dim 128 --layers 3 --batch-size 12 --seq-len 32"
HEALTHY = [  # script, ranks, flags
    ("single_gpu", 1, ""),
    ("single_gpu", 1, TINY),
    ("ddp", 1, WIDE),
    ("ddp", 2, ""),
    ("ddp", 3, TINY),
    ("ddp", 4, WIDE),
    ("ddp", 2, "--workers 1"),
    ("fsdp", 2, ""),
    ("fsdp", 4, "--recompute"),
    ("tp", 2, "--tp 2"),
    ("pipeline", 2, "--pp 2"),
    ("context", 2, "--cp 2"),
    ("expert", 2, "--ep 2"),
    ("hybrid", 4, "--tp 2 --pp 2"),
    ("streaming", 3, ""),
]
LOADED = [
    ("single_gpu", 1, ""),
    ("ddp", 2, TINY),
    ("ddp", 4, ""),
    ("fsdp", 3, WIDE),
    ("resilient", 2, "--save-every 5"),
]


class Told(NamedTuple):
    """A run: its name, how it was, and what is said about it."""

    name: str
    how: str
    load: float
    look: str
    largest: str  # part of a step, on the rank that has most of it
    longer: float  # how many times as long the busiest rank works as the next one; 0 with one rank


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that compute all the time; they end with this one."""
    spin = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
    processes = [subprocess.Popen([sys.executable, "-c", spin], start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def told(name: str, how: str, command: list[str], folder: Path, out: Path) -> Told:
    """Run the command, a thread for each rank, and read what it has recorded in `out`."""
    load = os.getloadavg()[0]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        sys.exit(f"{name}, {how}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    run = runs.read(out)
    shares = [(seconds / sum(rank.parts.values()), part) for rank in run.ranks for part, seconds in rank.parts.items()]
    work = sorted(sum(rank.parts.values()) - rank.parts["communication"] for rank in run.ranks)
    share, part = max(shares)
    return Told(name, how, load, first_look(run), f"{part} {share:.0%}", work[-1] / work[-2] if work[1:] else 0.0)


def healthy(numbers: list[int], flags: str) -> Iterator[Told]:
    for number in numbers:
        processes = BUSY if number > len(HEALTHY) else 0
        script, nproc, own = [*HEALTHY, *LOADED][number - 1]
        given = f"--data random {MIDDLE} {STEPS} {own} {flags}"
        how = f"{nproc} rank{'s' * (nproc > 1)}{f', {BUSY} busy processes' * (processes > 0)}"
        with tempfile.TemporaryDirectory() as folder, busy(processes):
            options = ["--out", f"{folder}/out", *shlex.split(given)]
            command = machine.launch_command(lessons.source_path(f"{script}_training"), nproc, options, quiet=True)
            yield told(f"{script} {own}", how, command, folder, Path(folder, "out"))


def stories(numbers: list[int], flags: str) -> Iterator[Told]:
    for how in ("slow", "fixed"):
        for number in numbers:
            with tempfile.TemporaryDirectory() as folder:
                yield told(f"story {number}", how, *launched(Path(folder), number, how == "fixed", flags))


def launched(folder: Path, number: int, fixed: bool, flags: str) -> tuple[list[str], Path, Path]:
    """The command of a story's cell, and its folders. What `launch` writes is in `folder` and not among the course's
    runs.
    """
    source = lessons.source_path(LESSON).read_text("utf-8")
    text = todo_regions.compose(source, todo_regions.titles(source) if fixed else ())
    (folder / "notebook.py").write_text(text, "utf-8")
    tree = ast.parse(text)
    call = next(node for node in ast.walk(tree) if isinstance(node, ast.Call) and starts(node, f"slow_{number}"))
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    tree.body = [
        node for node in tree.body if isinstance(node, kept) or is_constant(node) and node.lineno < call.lineno
    ]
    names: dict[str, Any] = {"__name__": "__main__"}  # `launch` takes a notebook's functions along
    exec(compile(tree, str(folder / "notebook.py"), "exec"), names)
    functions = [names[argument.id] for argument in call.args[1:]]
    asked = {word.arg: eval(compile(ast.Expression(word.value), "notebook", "eval"), names) for word in call.keywords}
    (folder / "utils").symlink_to(lessons.COURSE / "utils")  # the script looks for it above itself
    (folder / "ddp_training.py").write_text(notebook_launch.script(), "utf-8")
    (folder / "story.py").write_text(notebook_launch.program(functions), "utf-8")
    notebook_launch.write_corpus(folder / "data", max(asked.get("samples", 0), 960))
    given = f"--data data --out out {notebook_launch.SMALL} {asked.get('flags', '')} {STEPS} {flags}"
    command = [*machine.torchrun("--nproc-per-node=2"), str(folder / "story.py"), *shlex.split(given)]
    return command, folder, folder / "out"


def starts(call: ast.Call, story: str) -> bool:
    """Whether this is the call of `launch` that runs the story."""
    first = call.args[0] if call.args else None
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    return name == "launch" and isinstance(first, ast.Constant) and first.value == story


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("stories", "healthy"))
    parser.add_argument("numbers", type=int, nargs="*", help="of the stories, or of the healthy runs; by default all")
    parser.add_argument("--flags", default="", help="more flags for the script")
    args = parser.parse_args()
    most, tried = (10, stories) if args.what == "stories" else (len(HEALTHY) + len(LOADED), healthy)
    if unknown := [number for number in args.numbers if not 1 <= number <= most]:
        parser.error(f"there is no number {unknown[0]}; there are 1 to {most}")
    row = "{:46} {:28} {:>4} {:>18} {:>6}  {}".format
    print(row("run", "how", "load", "largest part", "work", "first look"))
    alarms = 0
    for run in tried(args.numbers or [*range(1, most + 1)], args.flags):
        alarms += bool(run.look) and run.how != "slow"
        longer = f"{run.longer:.1f}" if run.longer else ""
        # At once: all of them take minutes.
        print(row(run.name, run.how, f"{run.load:.0f}", run.largest, longer, run.look), flush=True)
    print(f"torch {torch.__version__}; {alarms} false alarm{'s' * (alarms != 1)}")
    sys.exit(bool(alarms))


if __name__ == "__main__":
    main()
