"""What the benchmarks of the notebooks share: the reference solution's functions, and ranks to run them on."""

import ast
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from grader.engine.lesson import lessons, regions


def functions(lesson: str) -> dict[str, Any]:
    """The functions and classes of a notebook's reference solution, and what they import."""
    source = lessons.source_path(lesson).read_text("utf-8")
    tree = ast.parse(regions.compose(source, regions.titles(source)))
    wanted = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    tree.body = [node for node in tree.body if isinstance(node, wanted)]
    names: dict[str, Any] = {"__name__": lesson}
    exec(compile(tree, f"solutions/notebooks/{lesson}.py", "exec"), names)
    return names


def on_ranks(work: Callable, world: int, *arguments: Any) -> Any:
    """`work(rank, world, *arguments)` on fresh processes, by gloo, a thread each; what rank 0 returns."""
    with tempfile.TemporaryDirectory() as folder:
        answers = mp.get_context("spawn").SimpleQueue()
        mp.start_processes(run, (world, folder, answers, work, arguments), nprocs=world, start_method="spawn")
        return answers.get()


def run(rank: int, world: int, folder: str, answers: Any, work: Callable, arguments: tuple) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    answer = work(rank, world, *arguments)
    if rank == 0:
        answers.put(answer)
    dist.barrier()
    dist.destroy_process_group()
