"""Which lesson passes on which torch: python benchmarks/versions.py 2.8.0 2.15.0 [--lessons ddp_training,fsdp_training]

Makes an environment for each release with uv (`pip install uv`), of that torch and the course's other requirements;
judges the reference solutions with it, on CPUs; and trains each script for three steps on two ranks. It prints a row of
docs/versions.md for each lesson. Releases of Linux come with CUDA: some 6 GB on the disk for each, which uv shares
between environments where it can.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

COURSE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(COURSE))

from grader.engine.judge.judge import checked_lessons

SHORT = "--data random --batch-size 12 --seq-len 8 --dim 32 --heads 4 --layers 2 --epochs 1 --max-steps 3".split()


def environment(folder: Path, release: str) -> Path:
    """The Python of an environment with this torch, made anew or left from an earlier call."""
    python = folder / release / "bin" / "python"
    if not python.exists():
        rest = folder / "requirements.txt"
        lines = (COURSE / "requirements.txt").read_text().splitlines()
        lines += (COURSE / "requirements-lightning.txt").read_text().splitlines()
        rest.write_text("\n".join(line for line in lines if not line.startswith("torch==")))
        subprocess.run(["uv", "venv", "-q", "--python", sys.executable, str(folder / release)], check=True)
        install = ["uv", "pip", "install", "-q", "--python", str(python), f"torch=={release}", "-r", str(rest)]
        subprocess.run(install, check=True)
    return python


def judged(python: Path, lesson: str) -> str:
    """ "9 of 9", or also what is not judged and what fails."""
    command = [str(COURSE / "workbook"), "check", lesson, "--target", "solutions"]
    done = subprocess.run(command, env=os.environ | {"WORKBOOK_PYTHON": str(python)}, capture_output=True, text=True)
    right = re.search(r"^(\d+ of \d+) right", done.stdout, re.MULTILINE)
    wrong = re.findall(r"^✗ \w+/(\d+)", done.stdout, re.MULTILINE)
    left = re.findall(r"^– \w+/(\d+)", done.stdout, re.MULTILINE)
    parts = [right[1] if right else "no verdict"]
    parts += [f"not judged: {', '.join(left)}"] * bool(left) + [f"fails: {', '.join(wrong)}"] * bool(wrong)
    return "; ".join(parts)


def trained(python: Path, lesson: str) -> str:
    """How a script's run of three steps on two ranks ends: "runs", or its last line."""
    script = COURSE / "solutions" / "train" / f"{lesson}.py"
    if not script.exists():
        return ""
    with tempfile.TemporaryDirectory() as out:
        launch = [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        alone = [str(python)] if lesson == "single_gpu_training" else launch
        command = [*alone, str(script), *SHORT, "--device", "cpu", "--out", out]
        done = subprocess.run(command, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if line.startswith("error:")] or done.stderr.splitlines()[-1:]
    return "runs" if done.returncode == 0 else (said or ["ends"])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("releases", nargs="+", help="of torch, such as 2.8.0")
    parser.add_argument("--lessons", default="", help="some of them, with commas; without it all")
    parser.add_argument("--folder", type=Path, help="for the environments; without it a temporary one")
    args = parser.parse_args()
    lessons = args.lessons.split(",") if args.lessons else checked_lessons()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        pythons = {release: environment(folder, release) for release in args.releases}
        print(f"| lesson | {' | '.join(pythons)} |\n|---|{'---|' * len(pythons)}")
        for lesson in lessons:
            cells = ["; ".join(filter(None, (judged(p, lesson), trained(p, lesson)))) for p in pythons.values()]
            print(f"| {lesson} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
