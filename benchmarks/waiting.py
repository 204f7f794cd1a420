"""What users wait for, and what it holds in memory, in this tree and in an earlier one.

    git worktree add ../before COMMIT
    python benchmarks/waiting.py ../before                      every row but the two long ones
    python benchmarks/waiting.py ../before --rows check kept    some
    python benchmarks/waiting.py ../before --rows start test    fresh clones, installed anew; the short tests

Both trees run under the Python that runs this, in turns, so its torch must suit both. Ratios are of medians, new to
old: below 1 is better, but more submissions an hour are better, too. CPU seconds count all processes that a command
starts, or, in check, all of the machine's; they depend less on what else the machine does.

`throughput.py` measures training.
"""

import argparse
import importlib.util
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import track
from rich.table import Table

NEW = Path(__file__).resolve().parents[1]
MAKE_CLASS = """
import sys
from pathlib import Path
from grader.engine.lesson import lessons, notebooks
out, count, *stems = sys.argv[1:]
for student in range(int(count)):
    for stem in stems:
        source = lessons.source_path(stem)
        script = source.parent.name == "train"
        name = f"train/{stem}.py" if script else f"notebooks/{stem}.ipynb"
        file = Path(out, f"student-{student}", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text()
        file.write_text(text if script else notebooks.to_json(notebooks.to_notebook(text, stem, released=False)))
"""
FAST, SLOW = ("cold", "check", "class", "kept", "peak", "save"), ("start", "test")


class Measured(threading.Thread):
    """A command: its seconds, the CPU seconds of its processes, and the most memory they shared out, in MB (PSS)."""

    def __init__(self, tree: Path, *command: str, memory: bool = False, **environment: str | None) -> None:
        super().__init__(daemon=True)
        self.most, self.over = 0.0, False
        env = {**os.environ, "PYTHONPATH": str(tree), "WORKBOOK_NO_SERVER": "1", **environment}
        env = {name: value for name, value in env.items() if value is not None}
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(command, cwd=tree, env=env, stdout=said, stderr=said)
            self.process = psutil.Process(process.pid)
            if memory:
                self.start()
            code = process.wait()
            self.seconds, self.over = time.monotonic() - started, True
            said.seek(0)
            self.said = said.read()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if code:
            raise SystemExit(f"error: in {tree}, {' '.join(command)} ended with {code}: {self.said[-500:]}")

    def run(self) -> None:
        while not self.over:
            self.most = max(self.most, shared_out([self.process, *self.below()]))
            time.sleep(0.02)  # between two samples

    def below(self) -> list[psutil.Process]:
        try:
            return self.process.children(recursive=True)
        except psutil.Error:
            return []


def shared_out(processes: list[psutil.Process]) -> float:
    """Their memory, in MB; of a page in several processes each has its part (PSS, Linux)."""
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except (psutil.Error, AttributeError):
            continue
    return total / 2**20


def workbook(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "grader.engine.commands.cli", *arguments]


def lessons_of(tree: Path) -> set[str]:
    """Those that can be checked: one has no TODOs, and one needs a package of its own."""
    sources = [path for kind in ("train", "notebooks") for path in (tree / "solutions" / kind).glob("*.py")]
    found = {path.stem for path in sources if "TODO 1" in path.read_text()}
    return found if importlib.util.find_spec("lightning") else found - {"lightning_training"}


def cold(tree: Path, args: argparse.Namespace) -> dict[str, float]:
    done = Measured(tree, *workbook("check", "ddp_training/1", "--target", "solutions"))
    return {"check of one TODO, no server there, s": done.seconds, "  CPU, s": done.cpu}


def check(tree: Path, args: argparse.Namespace) -> dict[str, float]:
    every = set(args.lessons) == lessons_of(tree)  # a tree may take one name only, but none means all
    with tempfile.TemporaryDirectory() as folder:
        file, before = Path(folder, "verdicts.json"), busy()
        named = [] if every else args.lessons
        done = Measured(tree, *workbook("check", *named, "--target", "solutions", "--json", str(file)))
        count, cpu = len(json.loads(file.read_text())), busy() - before
    return {"check of solutions, s for each TODO": done.seconds / count, "  CPU, s for each TODO": cpu / count}


def busy() -> float:
    """CPU seconds of the whole machine so far: the ranks' time is not added to the time of the command."""
    times = psutil.cpu_times()
    return times.user + times.system


def class_(tree: Path, args: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        Measured(tree, sys.executable, "-c", MAKE_CLASS, f"{folder}/class", str(args.students), *args.lessons)
        command = workbook("grade", f"{folder}/class", "--out", f"{folder}/out", "--jobs", "2", "--seed", "a1")
        done = Measured(tree, *command, "--lessons", ",".join(args.lessons))
    return {
        "a class, submissions an hour": 3600 * args.students / done.seconds,
        "  CPU, s for each submission": done.cpu / args.students,
    }


def kept(tree: Path, args: argparse.Namespace) -> dict[str, float]:
    """What is left of two checks of different lessons."""
    with tempfile.TemporaryDirectory(prefix="wb-") as temporary:
        env = {"TMPDIR": temporary, "WORKBOOK_NO_SERVER": None, "CI": None}
        for todo in ("ddp_training/1", "01_collectives/2"):
            Measured(tree, *workbook("check", todo, "--target", "solutions"), **env)
        left = [process for process in psutil.process_iter() if of(process, temporary)]
        found = {"memory that stays after check, MB": shared_out(left), "  processes": float(len(left))}
        Measured(tree, *workbook("stop"), **env)
    return found


def of(process: psutil.Process, temporary: str) -> bool:
    try:
        return process.environ().get("TMPDIR") == temporary
    except psutil.Error:
        return False


def peak(tree: Path, args: argparse.Namespace) -> dict[str, float]:
    done = Measured(tree, *workbook("check", "hybrid_training", "--target", "solutions"), memory=True)
    return {"most memory in check of hybrid_training, MB": done.most}


def save(tree: Path, args: argparse.Namespace) -> dict[str, float]:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        Measured(tree, sys.executable, "benchmarks/latency.py", "--repeats", "3", "--json", file.name)
        found = json.load(file)
    return {"save to verdict, s": statistics.median(found.get("seconds", found)["watch_todo"])}


def start(tree: Path, args: argparse.Namespace) -> dict[str, float]:
    """A fresh clone until "installed"; downloads and caches are its own."""
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        clone = Path(folder, "clone")
        subprocess.run(["git", "clone", "-q", "-c", "advice.detachedHead=false", str(tree), str(clone)], check=True)
        caches = {"UV_CACHE_DIR": f"{folder}/uv", "PIP_CACHE_DIR": f"{folder}/pip", "XDG_CACHE_HOME": f"{folder}/cache"}
        return {
            "./workbook in a fresh clone until it is installed, s": Measured(
                clone, "./workbook", "status", **caches
            ).seconds
        }


def test(tree: Path, args: argparse.Namespace) -> dict[str, float]:
    done = Measured(tree, *workbook("test"))
    passed = int(re.search(r"(\d+) passed", done.said)[1])
    return {"./workbook test, s": done.seconds, "  CPU, s": done.cpu, "  tests": float(passed)}


ROWS = {
    "cold": cold,
    "check": check,
    "class": class_,
    "kept": kept,
    "peak": peak,
    "save": save,
    "start": start,
    "test": test,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("before", type=Path, help="the folder of the earlier tree")
    parser.add_argument("--rows", nargs="+", choices=[*FAST, *SLOW], default=FAST, help="what is measured")
    parser.add_argument("--pairs", type=int, default=5, help="turns; the table shows medians")
    parser.add_argument(
        "--lessons", nargs="+", metavar="LESSON", help="of check and class; default: all that both have"
    )
    parser.add_argument("--students", type=int, default=4, help="of the class, each with all of these lessons solved")
    parser.add_argument("--folder", type=Path, help="where clones go; default: the system's folder for temporary files")
    parser.add_argument("--json", type=Path, help="write every measurement to this file, too")
    args = parser.parse_args()
    before = args.before.resolve()
    if not (before / "workbook").is_file():
        parser.error(f"there is no course in {before}: git worktree add {before} COMMIT makes one")
    both = lessons_of(NEW) & lessons_of(before)
    if lacking := sorted(set(args.lessons or ()) - both):
        parser.error(f"--lessons: {', '.join(lacking)} is not in both trees")
    args.lessons = args.lessons or sorted(both)

    found: dict[str, dict[str, list[float]]] = {}
    turns = [
        (row, tree)
        for row in args.rows
        for pair in range(args.pairs)
        for tree in (before, NEW)[:: -1 if pair % 2 else 1]
    ]
    for row, tree in track(turns, description="measuring", console=Console(stderr=True)):
        for name, value in ROWS[row](tree, args).items():
            found.setdefault(name, {}).setdefault("new" if tree == NEW else "before", []).append(value)
    table = Table(
        "what", "before", "now", "ratio, least … most", title=f"{args.pairs} pairs, load {os.getloadavg()[0]:.1f}"
    )
    for name, by_tree in found.items():
        ratios = [new / old for new, old in zip(by_tree["new"], by_tree["before"])]
        old, new = (statistics.median(by_tree[which]) for which in ("before", "new"))
        table.add_row(name, f"{old:,.2f}", f"{new:,.2f}", f"{new / old:.2f}, {min(ratios):.2f} … {max(ratios):.2f}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
