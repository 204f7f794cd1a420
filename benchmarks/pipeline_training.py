"""Losses of pipelines against one process's, 50 steps.

    python benchmarks/pipeline_training.py

For each number of ranks, stages and schedule: the largest relative difference of any line of metrics.jsonl (losses of
steps, epochs, validation and test) from the serial script's. AdamW, a text of random words, four or eight blocks.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "tests")]

from grader.engine.judge.student_in_checks import Student
from grader.engine.lesson import lessons
from grader.engine.ranks.runner import Runner
from grader.kit import corpus, reported
from lesson_checks import everything
from utils.pipeline_flags import SCHEDULES

checks = everything("pipeline_training")
LONG = [*checks.ARGV, "--epochs", "25", "--optimizer", "adamw", "--lr", "2e-3"]
PIPELINES = ((2, 2, 6), (4, 4, 4), (4, 2, 3))  # ranks, of them in a pipeline, micro-batches


def difference(student: Student, ranks: int, flags: str) -> tuple[int, float]:
    """Steps made, and the largest relative difference of a loss."""
    argv = [*LONG, *flags.split()]
    serial = reported(student.serial(["--data", "data", "--out", "out", *argv[: argv.index("--pp")]], corpus(student)))
    job = student.call(checks.mains_on_rank, world=ranks, group=False, runs=[[ranks, argv]], data=corpus(student))
    worst = 0.0
    for right, seen in zip(serial, reported(job, "out-0"), strict=True):
        for name in ("loss", "validation_loss"):
            if name in right:
                worst = max(worst, abs(seen[name] / right[name] - 1))
    return sum(line["kind"] == "step" for line in serial), worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="write every measurement to this file, too")
    args = parser.parse_args()
    found = []
    print(f"{'ranks':>5} {'pp':>3}  {'schedule':12} {'steps':>5}  largest relative difference")
    with Runner() as runner:
        student = Student(runner, "pipeline_training", lessons.units("pipeline_training", "solutions"), [])
        for ranks, pp, m in PIPELINES:
            for schedule in SCHEDULES:
                layers = 8 if (schedule, pp) == ("interleaved", 4) else 4
                flags = f"--layers {layers} --pp {pp} --schedule {schedule} --microbatches {m}"
                steps, worst = difference(student, ranks, flags)
                print(f"{ranks:5} {pp:3}  {schedule:12} {steps:5}  {worst:.1e}", flush=True)
                found.append({"ranks": ranks, "pp": pp, "schedule": schedule, "steps": steps, "difference": worst})
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
