"""Seven ways for a parallel program to go wrong: how each is named, how fast, and what is left running.

    python benchmarks/faults.py

Each fault is put into TODO 10 of ddp_training, on rank 1 of 3, with everything else
solved, and judged as `./workbook check ddp_training/10` would. Rank 1 notes the time
right before it goes wrong; the clock stops when the verdict is there, which is after
all ranks are ended. It also starts a child of its own, which must end with it.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import textwrap
import time
import uuid
from pathlib import Path
from typing import NamedTuple

COURSE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(COURSE))

import psutil
from rich.console import Console
from rich.table import Table

from grader.engine.judge.judge import Judge
from grader.engine.lesson import lessons, todo_regions
from grader.engine.ranks import backends
from grader.engine.ranks.runner import Runner

LESSON, TODO, FAULTY = "ddp_training", 10, 1
MARK = "WORKBOOK_FAULTS"  # every process that comes of this one inherits it, orphans too


class Case(NamedTuple):
    name: str
    body: str  # of TODO 10; RANK1 is where rank 1, and only it, does `fault`
    fault: str
    cause: str
    words: str  # what the message must say, as a regular expression


REDUCE = """
sums = torch.stack([total, count])
RANK1
dist.all_reduce(sums)
return (sums[0] / sums[1]).item()
"""
MIXED = """
sums = torch.stack([total, count])
RANK1
dist.reduce(sums, 0) if dist.get_rank() == 1 else dist.all_reduce(sums)
return (sums[0] / sums[1]).item()
"""
TWICE = """
dist.all_reduce(total)
RANK1
dist.all_reduce(count)
return (total / count).item()
"""
CASES = (
    Case(
        "a skipped collective",
        REDUCE,
        "return (total / count).item()",
        "hang",
        r"deadlock: ranks 0 and 2 wait in all_reduce.*rank 1 never comes: it has finished",
    ),
    Case("another collective", MIXED, "pass", "mismatch", r"different operations: rank 0 all_reduce.*rank 1 reduce"),
    Case(
        "another shape",
        REDUCE,
        "sums = torch.stack([total, count, count])",
        "mismatch",
        r"different shapes: rank 0 all_reduce.*\(2,\).*rank 1 all_reduce.*\(3,\)",
    ),
    Case(
        "an exception on one rank",
        REDUCE,
        'raise ValueError("one rank only")',
        "crash",
        r"rank 1 stopped with ValueError: one rank only",
    ),
    Case("an endless loop", REDUCE, "while True: pass", "hang", r"rank 1 runs without end"),
    Case("os._exit(0)", REDUCE, "os._exit(0)", "crash", r"rank 1 left without reporting: .*os\._exit\(0\)"),
    # From outside, as the system does when memory is short: the rank has no last word. Known is where it was last.
    Case(
        "a killed rank",
        TWICE,
        'os.system(f"kill -9 {os.getpid()}")',
        "crash",
        r"rank 1 is gone: .*SIGKILL, last seen at train/",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--limit", type=float, default=5.0, help="seconds from the fault to its diagnosis")
    parser.add_argument("--backend", default="gloo", choices=backends.WISHES, help="what the ranks talk by")
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    args = parser.parse_args()

    os.environ[MARK] = uuid.uuid4().hex
    source = lessons.source_path(LESSON).read_text("utf-8")
    try:
        backend = backends.choose(args.backend)
        talks_by = backend.name if backend.devices(3) else "gloo"
    except backends.NoBackend as problem:
        parser.error(str(problem))
    with Runner(backend=backend) as runner, tempfile.TemporaryDirectory() as folder:
        warm_up(runner, source)
        results = [judge(runner, source, case, Path(folder) / "fault", args.limit) for case in CASES]
    left = len(descendants())
    show(results, left, talks_by)
    if args.json:
        args.json.write_text(json.dumps({"faults": results, "left_after_close": left}, indent=1) + "\n")
    raise SystemExit(0 if not left and all(result["right"] for result in results) else 1)


def warm_up(runner: Runner, source: str) -> None:
    """The solution passes: what fails below fails by its fault. And the fork-server is up."""
    verdict = verdict_on(runner, source, {})
    if not verdict.passed:
        raise SystemExit(f"the solution itself fails: {verdict.message}")


def verdict_on(runner: Runner, source: str, bodies: dict[int, str]):
    text = todo_regions.compose(source, solved=todo_regions.titles(source), bodies=bodies)
    return Judge(runner, LESSON, units=[lessons.Unit(f"train/{LESSON}.py", text, source)]).verdict(TODO)


def judge(runner: Runner, source: str, case: Case, stamp: Path, limit: float) -> dict:
    stamp.unlink(missing_ok=True)
    on_rank1 = textwrap.indent(
        "os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep',"
        f" '600')\nPath({str(stamp)!r}).write_text(repr(time.time()))\n{case.fault}",
        "    ",
    )
    body = case.body.replace("RANK1", f"if dist.get_rank() == {FAULTY}:\n{on_rank1}")
    verdict = verdict_on(runner, source, {TODO: body})
    seconds = time.time() - float(stamp.read_text())
    left = len(settled(runner))
    right = (
        verdict.status == "fail"
        and verdict.cause == case.cause
        and re.search(case.words, verdict.message, re.DOTALL) is not None
        and f"(TODO {TODO})" in (verdict.where or "")
        and seconds <= limit
        and not left
    )
    return {
        "fault": case.name,
        "right": right,
        "cause": verdict.cause,
        "rank": verdict.rank,
        "where": verdict.where,
        "seconds": round(seconds, 3),
        "left": left,
        "message": verdict.message,
    }


def settled(runner: Runner) -> list[psutil.Process]:
    """What still runs apart from the fork-server and zombies. A killed process takes a moment to vanish."""
    deadline = time.monotonic() + 0.5
    while (left := descendants(runner.server.process.pid)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def descendants(server: int | None = None) -> list[psutil.Process]:
    """All descendants of this process, found by the mark in their environment, whatever their parent is now."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.pid not in (os.getpid(), server) and process.environ().get(MARK) == os.environ[MARK]
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:  # another user's, or gone by now
            continue
    return found


def show(results: list[dict], left: int, backend: str) -> None:
    title = f"Seven faults in {LESSON}/{TODO}, on rank {FAULTY} of 3, by {backend}"
    table = Table(title=title, title_justify="left")
    for name in ("", "fault", "cause", "line", "seconds", "left"):
        table.add_column(name, justify="right" if name in ("seconds", "left") else "left")
    for r in results:
        mark = "[green]✓[/]" if r["right"] else "[red]✗[/]"
        line = (r["where"] or "unknown").removeprefix(f"train/{LESSON}.py:")
        table.add_row(mark, r["fault"], r["cause"] or "none", line, f"{r['seconds']:.2f}", str(r["left"]))
    Console().print(table)
    for r in results:
        print(f"{r['fault']}: {r['message']}")
    print(
        f"{sum(r['right'] for r in results)} of {len(results)} told apart; {left} processes left after the runner"
        " closed"
    )


if __name__ == "__main__":
    main()
