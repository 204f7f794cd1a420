"""Losses of runs over five axes, and of mixtures of experts, against one process's, 50 steps.

    python benchmarks/hybrid_training.py

For each shape, the largest relative difference of any line of metrics.jsonl (losses of steps, epochs, validation and
test) from the serial script's; of a mixture, from this script's on one rank. AdamW, a text of random words, four
blocks. Eight processes on few cores take minutes.
"""

import argparse
import json
import math
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "tests")]

from grader.engine.judge.student_in_checks import Student
from grader.engine.lesson import lessons
from grader.engine.ranks import cpu_time, run_session
from grader.engine.ranks.runner import Runner
from grader.kit import Run, corpus, reported
from lesson_checks import everything

checks = everything("hybrid_training")
LONG = [*checks.ARGV, "--layers", "4", "--epochs", "25", "--optimizer", "adamw", "--lr", "2e-3", "--log-every", "1"]
SHAPES = (
    # each axis alone
    "--pp 2",
    "--dp 2",
    "--shard 2",
    "--tp 2",
    "--cp 2",
    "--cp 4",
    "--cp 2 --cp-method ulysses",
    "--shard 2 --experts 4",
    "--shard 2 --experts 4 --ep 2",
    "--shard 4 --experts 4 --ep 4",
    # with context and experts
    "--pp 2 --cp 2",
    "--cp 2 --tp 2 --sequence-parallel",
    "--cp 2 --shard 2 --cp-method ulysses",
    "--pp 2 --cp 2 --experts 4 --ep 2",
    "--tp 2 --shard 2 --experts 4 --ep 2",
    "--cp 2 --shard 2 --experts 4 --ep 4 --top-k 1",
    "--cp 2 --dp 2 --experts 4 --ep 2 --recompute",
    "--pp 2 --cp 2 --shard 2 --experts 4 --ep 4 --schedule interleaved --microbatches 2",
    "--cp 2 --shard 2 --tp 2 --experts 4 --ep 2",
    "--pp 2 --cp 2 --tp 2 --sequence-parallel --schedule zero-bubble",
    # without
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


def mixture_of(flags: str) -> str:
    """Those of the flags that make another model of it."""
    words = flags.split()
    return " ".join(f"{name} {words[words.index(name) + 1]}" for name in ("--experts", "--top-k") if name in words)


def on_one(student: Student, mixture: str) -> list[dict]:
    """Lines of the serial run."""
    if not mixture:
        return reported(student.serial(["--data", "data", "--out", "out", *LONG], corpus(student)))
    runs = [[1, [*LONG, *mixture.split()]]]
    return reported(student.call(checks.mains_on_rank, world=1, group=False, runs=runs, data=corpus(student)), "out-0")


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
    parser.add_argument("--shape", action="append", metavar="FLAGS", help='such as "--pp 2 --tp 2"; default: all')
    parser.add_argument("--json", type=Path, help="write every measurement to this file, too")
    args = parser.parse_args()
    found = []
    # Fifty steps are more than a check asks for: in seconds of CPU, in events and in bytes of what a rank says.
    cpu_time.SILENT_CPU, cpu_time.TOTAL_CPU = 60.0, 3600.0
    run_session.TOO_MANY, run_session.TOO_MUCH = 10**9, 10**12
    print("ranks  steps  largest difference  shape")
    with Runner() as runner:
        student = Student(runner, "hybrid_training", lessons.units("hybrid_training", "solutions"), [])
        shapes = args.shape or SHAPES
        serials = {mixture: on_one(student, mixture) for mixture in dict.fromkeys(map(mixture_of, shapes))}
        for flags in shapes:
            world, serial = ranks_of(flags), serials[mixture_of(flags)]
            steps = sum(line["kind"] == "step" for line in serial)
            runs = [[world, [*LONG, *flags.split()]]]
            job = student.call(checks.mains_on_rank, world=world, group=False, runs=runs, data=corpus(student))
            found.append({"ranks": world, "steps": steps, "difference": difference(serial, job), "shape": flags})
            print(f"{world:5}  {steps:5}  {found[-1]['difference']:18.1e}  {flags}", flush=True)
            if args.json:
                args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
