"""Which lesson passes on which torch, as rows of docs/versions.md: python benchmarks/versions.py 2.8.0 2.15.0

Makes an environment for each release with uv (`pip install uv`), of that torch and the course's other requirements;
judges the reference solutions with it, on CPUs; and trains each script for three steps on two ranks. Wheels for Linux
come with CUDA: some 6 GB on the disk for each, which uv shares between environments where it can. They stay in
--folder; one that is there already (or a link to it), named after its release, is taken as it is.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

COURSE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(COURSE))

from grader.engine.judge.judge import checked_lessons

KEPT = COURSE / ".workbook" / "versions"  # git ignores it
LONGEST = 900  # seconds that three steps may take, on a busy machine
SHORT = "--data random --batch-size 12 --seq-len 8 --dim 32 --heads 4 --layers 2 --epochs 1 --max-steps 3".split()


def release_of(python: Path) -> str:
    """The release of torch that a Python has, such as "2.15.0"; "" without either."""
    ask = "from importlib.metadata import version; print(version('torch').partition('+')[0])"
    return subprocess.run([python, "-c", ask], capture_output=True, text=True).stdout.strip() if python.exists() else ""


def environment(folder: Path, release: str) -> Path:
    """The Python of an environment with this torch, made anew or left from an earlier call."""
    python = folder / release / "bin" / "python"
    if release_of(python) == release:  # torch comes in one piece with the rest
        return python
    if not shutil.which("uv"):
        raise SystemExit(f"error: {python} has no torch {release}, and there is no uv to make it: pip install uv")
    rest = folder / "requirements.txt"
    lines = (COURSE / "requirements.txt").read_text().splitlines()
    lines += (COURSE / "requirements-lightning.txt").read_text().splitlines()
    rest.write_text("\n".join(line for line in lines if not line.startswith("torch==")))
    commands = (
        ["uv", "venv", "-q", "--clear", "--python", sys.executable, folder / release],
        ["uv", "pip", "install", "-q", "--python", python, f"torch=={release}", "-r", rest],
    )
    for command in commands:
        if subprocess.run(command).returncode:
            raise SystemExit(f"error: no environment with torch {release}, see above")
    return python


def judged(python: Path, lesson: str) -> str:
    """ "9 of 9", or also what is not judged and what fails."""
    workbook, environment = COURSE / "workbook", os.environ | {"WORKBOOK_PYTHON": str(python)}
    command = [workbook, "check", lesson, "--target", "solutions"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    subprocess.run([workbook, "stop"], env=environment, capture_output=True)  # each lesson begins in new processes
    right = re.search(r"^(\d+ of \d+) right", done.stdout, re.MULTILINE)
    if not right:
        return f"no verdict: {last_line(done)}"
    marked = {mark: re.findall(rf"^{mark} {lesson}/(\d+)", done.stdout, re.MULTILINE) for mark in "–✗"}
    parts = [
        f"{said}: {', '.join(marked[mark])}" for mark, said in (("–", "not judged"), ("✗", "fails")) if marked[mark]
    ]
    return "; ".join([right[1], *parts])


def last_line(done: subprocess.CompletedProcess) -> str:
    """The line that says why something has ended: the script's own, or the last one."""
    lines = (done.stderr or done.stdout).splitlines() or [f"exit code {done.returncode}"]
    return next((line for line in lines if line.startswith("error:")), lines[-1])


def trained(python: Path, lesson: str) -> str:
    """How a script's run of three steps on two ranks ends: "runs", or the line that says why not; "" without one."""
    script = COURSE / "solutions" / "train" / f"{lesson}.py"
    if not script.exists():
        return ""
    launch = ["-m", "torch.distributed.run", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    alone = lesson == "single_gpu_training"
    with tempfile.TemporaryDirectory() as out:
        command = [python, *([] if alone else launch), script, *SHORT, "--device", "cpu", "--out", out]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST)
        except subprocess.TimeoutExpired:
            return f"no end of the script in {LONGEST} s"
    return "runs" if done.returncode == 0 else last_line(done)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("releases", nargs="+", help="of torch, such as 2.8.0")
    parser.add_argument("--lessons", default="all", help="some of them, with commas")
    parser.add_argument("--folder", type=Path, default=KEPT, help="where environments are kept")
    args = parser.parse_args()
    lessons = checked_lessons() if args.lessons == "all" else args.lessons.split(",")
    if unknown := set(lessons) - set(checked_lessons()):
        parser.error(f"no lesson {', '.join(sorted(unknown))}; there are {', '.join(checked_lessons())}")
    folder = args.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    pythons = {release: environment(folder, release) for release in args.releases}
    print(f"| lesson | {' | '.join(pythons)} |\n|---|{'---|' * len(pythons)}", flush=True)
    for lesson in lessons:
        cells = ["; ".join(filter(None, (judged(p, lesson), trained(p, lesson)))) for p in pythons.values()]
        print(f"| {lesson} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
