"""Losses of runs over four axes against one process's, 50 steps.

    python benchmarks/hybrid_training.py

For each shape, the largest relative difference of any line of metrics.jsonl (losses of steps, epochs, validation and
test) from the serial script's. AdamW, a text of random words, four blocks. Eight processes on few cores take minutes.
"""

import argparse
import json
import math
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "tests")]

from grader.engine.judge.student_in_checks import Student
from grader.engine.lesson import lessons
from grader.engine.ranks.runner import Runner
from grader.kit import Run, corpus, reported
from lesson_checks import everything

checks = everything("hybrid_training")
LONG = [*checks.ARGV, "--layers", "4", "--epochs", "25", "--optimizer", "adamw", "--lr", "2e-3", "--log-every", "1"]
SHAPES = (
    "--pp 2 --shard 2 --tp 2",
    "--dp 2 --shard 2 --tp 2 --sequence-parallel",
    "--pp 2 --dp 2 --tp 2 --schedule zero-bubble",
    "--pp 2 --dp 2 --shard 2 --schedule interleaved --microbatches 3",
    "--pp 4 --tp 2 --schedule gpipe --microbatches 6",
    "--pp 2 --tp 4 --sequence-parallel --microbatches 4",
    "--pp 2 --dp 2 --recompute",
    "--shard 3 --tp 2",
)


def ranks_of(flags: str) -> int:
    words = flags.split()
    return math.prod(int(words[words.index(f"--{axis}") + 1]) for axis in checks.AXES if f"--{axis}" in words)


def difference(serial: list[dict], job: Run) -> float:
    """The largest relative difference of a loss."""
    worst = 0.0
    for right, seen in zip(serial, reported(job, "out-0"), strict=True):
        for name in ("loss", "validation_loss"):
            if name in right:
                worst = max(worst, abs(seen[name] / right[name] - 1))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", action="append", metavar="FLAGS", help='such as "--pp 2 --tp 2"; default: eight')
    parser.add_argument("--json", type=Path, help="write every measurement to this file, too")
    args = parser.parse_args()
    found = []
    print("ranks  steps  largest difference  shape")
    with Runner() as runner:
        student = Student(runner, "hybrid_training", lessons.units("hybrid_training", "solutions"), [])
        serial = reported(student.serial(["--data", "data", "--out", "out", *LONG], corpus(student)))
        steps = sum(line["kind"] == "step" for line in serial)
        for flags in args.shape or SHAPES:
            world = ranks_of(flags)
            runs = [[world, [*LONG, *flags.split()]]]
            job = student.call(checks.mains_on_rank, world=world, group=False, runs=runs, data=corpus(student))
            found.append({"ranks": world, "steps": steps, "difference": difference(serial, job), "shape": flags})
            print(f"{world:5}  {steps:5}  {found[-1]['difference']:18.1e}  {flags}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
