"""Losses of runs with `--block llama` on every axis, against one process's, 50 steps.

    python benchmarks/llama.py

For each shape and number of key heads, the largest relative difference of any line of metrics.jsonl (losses of steps,
epochs, validation and test) from the serial script's with the same block. AdamW, a text of random words, four blocks of
four heads. Four processes on few cores take minutes.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "tests")]

from benchmarks.hybrid_training import difference
from grader.engine.judge.student_in_checks import Student
from grader.engine.lesson import lessons
from grader.engine.ranks import cpu_time, run_session
from grader.engine.ranks.runner import Runner
from grader.kit import corpus, mains_on_rank, reported

ARGV = (
    "--block llama --batch-size 12 --seq-len 8 --dim 16 --heads 4 --layers 4 --optimizer adamw --lr 2e-3 --log-every 1"
).split()
STEPS = ["--epochs", "25"]  # of two steps each
# Lesson, ranks, flags.
SHAPES = (
    ("ddp_training", 2, ""),
    ("ddp_training", 4, ""),
    ("resilient_training", 2, ""),
    ("fsdp_training", 2, ""),
    ("fsdp_training", 4, "--sharding hybrid --recompute"),
    ("tp_training", 2, "--tp 2"),
    ("tp_training", 4, "--tp 2 --sequence-parallel"),
    ("tp_training", 4, "--tp 4"),
    ("tp_training", 4, "--tp 4 --sequence-parallel --recompute"),
    ("context_training", 2, "--cp 2"),
    ("context_training", 4, "--cp 4"),
    ("context_training", 2, "--cp 2 --cp-method ulysses"),
    ("context_training", 4, "--cp 4 --cp-method ulysses"),
    ("pipeline_training", 2, "--pp 2"),
    ("pipeline_training", 4, "--pp 4"),
    ("pipeline_training", 2, "--pp 2 --schedule interleaved --microbatches 2"),
    ("hybrid_training", 4, "--pp 2 --tp 2 --sequence-parallel"),
    ("hybrid_training", 4, "--cp 2 --tp 2"),
    ("hybrid_training", 4, "--cp 2 --shard 2 --cp-method ulysses"),
    ("hybrid_training", 8, "--pp 2 --tp 4 --sequence-parallel --schedule zero-bubble"),
)
KEY_HEADS = (1, 2, 4)


def serial_run(student: Student, argv: list[str]) -> list[dict]:
    return reported(student.serial(["--data", "data", "--out", "out", *argv], corpus(student)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lesson", help="this script's shapes alone")
    parser.add_argument("--json", type=Path, help="write every measurement to this file, too")
    args = parser.parse_args()
    found = []
    # Fifty steps are more than a check asks for: in seconds of CPU, in events and in bytes of what a rank says.
    cpu_time.SILENT_CPU, cpu_time.TOTAL_CPU = 60.0, 3600.0
    run_session.TOO_MANY, run_session.TOO_MUCH = 10**9, 10**12
    print("ranks  " + "  ".join(f"{heads} key heads" for heads in KEY_HEADS) + "  shape")
    with Runner() as runner:
        for lesson, world, flags in SHAPES:
            if args.lesson not in (None, lesson):
                continue
            student = Student(runner, lesson, lessons.units(lesson, "solutions"), [])
            argvs = [[*ARGV, *STEPS, "--kv-heads", str(heads)] for heads in KEY_HEADS]
            worst = []
            for argv in argvs:
                runs = [[world, [*argv, *flags.split()]]]
                how = dict(world=world, group=False, common=True, keep=[])
                job = student.call(mains_on_rank, **how, runs=runs, data=corpus(student))
                worst.append(difference(serial_run(student, argv), job))
            found.append({"lesson": lesson, "ranks": world, "flags": flags, "differences": worst})
            print(f"{world:5}  " + "  ".join(f"{x:11.1e}" for x in worst) + f"  {lesson} {flags}", flush=True)
            if args.json:
                args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
