"""What the benchmarks of the notebooks share: the reference solution's functions, ranks to run them on, their table."""

import ast
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.table import Table

from grader.engine.lesson import lessons, todo_regions
from utils.interfaces import LOOPBACK


def functions(lesson: str, solved: bool = True) -> dict[str, Any]:
    """The functions, classes and constants of a notebook's reference solution, or as given, and what they import."""
    source = lessons.source_path(lesson).read_text("utf-8")
    tree = ast.parse(todo_regions.compose(source, todo_regions.titles(source) if solved else ()))
    wanted = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    tree.body = [node for node in tree.body if isinstance(node, wanted) or is_constant(node)]
    names: dict[str, Any] = {"__name__": lesson}
    exec(compile(tree, f"solutions/notebooks/{lesson}.py", "exec"), names)
    return names


def is_constant(node: ast.stmt) -> bool:
    """Whether this gives values to names with a capital, a constant's or a type's, and calls nothing."""
    if not isinstance(node, ast.Assign) or any(isinstance(part, ast.Call) for part in ast.walk(node)):
        return False
    names = [part for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)]
    return all(name.id[0].isupper() for name in names)


def on_ranks(work: Callable, world: int, *arguments: Any) -> Any:
    """`work(rank, world, *arguments)` on fresh processes, by gloo, a thread each; what rank 0 returns."""
    with tempfile.TemporaryDirectory() as folder:
        answers = mp.get_context("spawn").SimpleQueue()
        mp.start_processes(run, (world, folder, answers, work, arguments), nprocs=world, start_method="spawn")
        return answers.get()


def run(rank: int, world: int, folder: str, answers: Any, work: Callable, arguments: tuple) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    answer = work(rank, world, *arguments)
    if rank == 0:
        answers.put(answer)
    dist.barrier()
    dist.destroy_process_group()


def paired(title: str, library: str, ours: list[float], theirs: list[float]) -> tuple[Table, float]:
    """A table of steps that were timed in turns, ours and the library's, in seconds; and the median ratio of speeds."""
    table = Table("pair", "ours, s", f"{library}, s", "ratio of speeds", title=title, title_justify="left")
    ratios = [other / mine for mine, other in zip(ours, theirs, strict=True)]
    for pair, (mine, other, ratio) in enumerate(zip(ours, theirs, ratios, strict=True), start=1):
        table.add_row(str(pair), f"{mine:.3f}", f"{other:.3f}", f"{ratio:.2f}")
    mine, other, ratio = (statistics.median(values) for values in (ours, theirs, ratios))
    spread = f"{ratio:.2f} ({min(ratios):.2f} … {max(ratios):.2f})"
    table.add_section()
    table.add_row("median", f"{mine:.3f}", f"{other:.3f}", spread, style="bold")
    return table, ratio
