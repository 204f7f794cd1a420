"""What `./workbook run` says about runs that hang, die, or are only slow; and what watching costs.

    python benchmarks/watching.py                      # three faults, and three healthy runs of some minutes
    python benchmarks/watching.py --cost --pairs 9     # CPU seconds of a step of ddp_training, with and without it

Faults and delays are planted in ddp_training, solved, in a copy of the course. The clock runs from the fault until
`run` says so.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

COURSE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(COURSE), str(COURSE / "tests")]

from rich.console import Console
from rich.table import Table

from course_copy import Course
from grader.engine.lesson import lessons

SMALL = (
    "--device cpu --data random --epochs 1 --max-steps 12 --batch-size 12 --seq-len 16 --dim 16 --heads 2 --layers 2"
    " --log-every 3"
).split()
PATIENCE = 900.0  # seconds for a run
STEP = "        step += 1\n"  # the end of a step, in train_epoch
NOTE = "print('PLANTED', flush=True)"
RANK = "dist.get_rank()"


class Plant(NamedTuple):
    old: str
    new: str


def in_step(code: str) -> Plant:
    """What is done at the end of step 5; `SECONDS` are a delay's."""
    lines = "".join(f"            {line}\n" for line in [NOTE, *code.split("\n")])
    return Plant(STEP, f"{STEP}        if step == 5:\n{lines}")


FAULTS = {
    "a collective under `if rank == 0`": in_step(f"if {RANK} == 0:\n    dist.all_reduce(torch.ones(3))"),
    "two ranks in different order": in_step(
        f"calls = [lambda: dist.all_reduce(torch.ones(3)), lambda: dist.broadcast(torch.ones(7), 0)]\n"
        f"for call in calls[:: 1 - 2 * {RANK}]:\n    call()"
    ),
    "`kill -9` of a rank": in_step(f"import os\nif {RANK} == 1:\n    os.kill(os.getpid(), 9)"),
    "an exception on a rank": in_step(f"if {RANK} == 1:\n    raise ValueError('a bad sample')"),
    "a rank out of memory": in_step(f"if {RANK} == 1:\n    torch.empty(10**15)"),
    "a rank leaves its loop early": in_step(f"if {RANK} == 1:\n    break"),
}
SLOW = {
    "rank 0 saves slowly": Plant(
        "    save0({",
        f"    if 'best' in path.name:\n        {NOTE}\n        time.sleep(SECONDS * ({RANK} == 0))\n    save0({{",
    ),
    "a slow loader on one rank": in_step(f"if {RANK} == 1:\n    time.sleep(SECONDS)"),
    "a slow first step on one rank": Plant(
        STEP,
        f"        if step == 0 and {RANK} == 0:\n            {NOTE}\n            began = time.monotonic()\n"
        f"            while time.monotonic() - began < SECONDS:\n                torch.ones(9) @ torch.ones(9)\n{STEP}",
    ),
}
# The command line, with other patience than STANDSTILL's minutes.
RUN = (
    "from grader.engine.ranks import standstill; standstill.STANDSTILL = {patience};"
    "from grader.engine.commands.cli import main; main()"
)


class Told(NamedTuple):
    """What a run has said, and when."""

    began: float  # seconds since 1970
    code: int
    lines: list[tuple[float, str]]  # seconds after the fault, and the line

    def after(self, words: str) -> float:
        """When these words came first."""
        return next(at for at, line in self.lines if words in line)

    @property
    def text(self) -> str:
        return "\n".join(line for _, line in self.lines)


def plant(course: Course, what: Plant, seconds: float = 0.0) -> None:
    course.solve("ddp_training", tuple(lessons.titles("ddp_training")))
    script = course.script("ddp_training")
    text = script.read_text("utf-8")
    if text.count(what.old) != 1:
        raise RuntimeError(f"{what.old!r} is {text.count(what.old)} times in the script")
    script.write_text(text.replace(what.old, what.new.replace("SECONDS", str(seconds))), "utf-8")


def run(
    course: Course, *options: str, patience: float = 180.0, nproc: int = 2, flags: tuple[str, ...] = (), **env: str
) -> Told:
    """./workbook run ddp_training, to its end."""
    began = time.time()
    command = [sys.executable, "-P", "-c", RUN.format(patience=patience), "run", "ddp_training", *options]
    process = subprocess.Popen(
        [*command, *(["--nproc", str(nproc)] if "--nodes" not in options else []), "--", *SMALL, *flags],
        cwd=course.folder,
        env=course.environment(OMP_NUM_THREADS="1", COLUMNS="1000", **env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    lines, struck = [], None
    try:
        for line in process.stdout:
            struck = time.monotonic() if struck is None and "PLANTED" in line else struck
            lines.append((time.monotonic() - (struck or time.monotonic()), line.rstrip()))
        return Told(began, process.wait(PATIENCE), lines)
    finally:
        process.kill()
        process.wait()


# What it says


SAYS = r"it can never continue|is gone|nothing has moved|skipped a call|the ranks part"


def said(told: Told) -> tuple[float, str]:
    """The first word of `run` itself on a fault."""
    return next(((at, line) for at, line in told.lines if re.search(SAYS, line)), (0.0, "nothing"))


def show_faults(slow: float, patience: float) -> None:
    print("| run | exit code | says | after, s |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        course = Course(Path(folder) / "course")
        for name, what in (FAULTS | SLOW).items():
            plant(course, what, slow)
            told = run(course, patience=patience)
            at, line = said(told)
            print(f"| {name} | {told.code} | {line} | {at:.0f} |", flush=True)


# What it costs


def on_rank(pairs: int, steps: int) -> None:
    """On a rank that torchrun has started: blocks of steps as `start` sizes them, with and without notes, in turns."""
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d
    from torch.nn.parallel import DistributedDataParallel

    from utils.distributed import launch_environment
    from utils.model import TransformerLM
    from utils.watched.rank import Rank

    launch = launch_environment()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(TransformerLM(10_000, 128, 4, 2, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randint(10_000, (2, 12 // launch.world_size, 64))
    plain = c10d.Work.wait
    found: dict[str, list[float]] = {"without": [], "with": []}
    for turn in range(-1, pairs):  # the first warms up
        for kind in ("without", "with") if turn % 2 else ("with", "without"):
            if kind == "with":
                notes = Rank(Path(os.environ["WATCHED"]), launch, several_nodes=False)
                notes.watch()
            for number in range(steps + 1):
                if number == 1:  # the first is not counted: what is new is looked up by the dispatcher
                    before = time.process_time()
                loss = model(x, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                dist.all_reduce(torch.zeros(2))  # more of them than ddp_training makes, which logs now and then
            spent = (time.process_time() - before) / steps
            if kind == "with":
                notes.gone, c10d.Work.wait = True, plain
                for library in notes.kernels:
                    library._destroy()
            if turn >= 0:
                found[kind].append(spent)
    both = [None] * launch.world_size
    dist.all_gather_object(both, found)
    if launch.rank == 0:
        totals = {}
        for kind in found:
            totals[kind] = [sum(each) for each in zip(*(one[kind] for one in both))]
        print("FOUND", json.dumps(totals))
    dist.destroy_process_group()


def show_cost(pairs: int, steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command = [*torchrun, __file__, "--on-rank", "--pairs", str(pairs), "--steps", str(steps)]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "WATCHED": folder, "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.partition("FOUND ")[2].splitlines()[0])
    ratios = [b / a for a, b in zip(found["without"], found["with"], strict=True)]
    table = Table("without, CPU ms a step", "with", "ratio", "least … most", title=f"medians of {pairs} pairs")
    medians = [f"{1000 * statistics.median(values):.1f}" for values in found.values()]
    table.add_row(*medians, f"{statistics.median(ratios):.3f}", f"{min(ratios):.3f} … {max(ratios):.3f}")
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--slow", type=float, default=240, help="seconds for which a healthy run stands still")
    parser.add_argument("--patience", type=float, default=180, help="seconds after which run reports a standstill")
    parser.add_argument("--cost", action="store_true", help="measure what watching costs")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--steps", type=int, default=12, help="of a block")
    parser.add_argument("--on-rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.on_rank:
        on_rank(args.pairs, args.steps)
    elif args.cost:
        show_cost(args.pairs, args.steps)
    else:
        show_faults(args.slow, args.patience)


if __name__ == "__main__":
    main()
