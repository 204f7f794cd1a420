"""What a step of context_training and of expert_training sends, the planner's formula for it, and what a rank holds.

    python benchmarks/axes.py
    python benchmarks/axes.py --memory    # of context_training alone: a length that one device cannot hold

Two runs that differ in two steps alone differ by the bytes of these, in which the checks' recorder counts every message
(collectives as rings send them). Float32, gloo. The formula is `utils/costs/messages.py`; what it leaves out is counts
of targets and of tokens, and norms. "Numbers held" are a rank's weights; its optimizer's state grows with them.

With --memory, one sequence of 1,024 tokens is a batch, on 1, 2 and 4 ranks: the most bytes of tensors that a rank holds
at once, then the same runs with a --device-memory between the first two numbers.
"""

import argparse
import io
import json
import random
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "tests")]

import torch

from grader.engine.judge.student_in_checks import Student
from grader.engine.lesson import lessons
from grader.engine.ranks.diagnose import Fault
from grader.engine.ranks.runner import Runner
from grader.kit import cases, corpus, mains_on_rank, sent_by
from utils import costs
from utils.plan import Model, Plan

SIZES = {"batch": 4, "length": 16, "dim": 32, "heads": 4, "layers": 2}
ARGV = (
    "--epochs 1 --batch-size 4 --seq-len 16 --dim 32 --heads 4 --layers 2 --optimizer sgd --lr 0.1 --log-every 100"
).split()
RUNS = (  # script, ranks, flags, the plan's axes
    ("context_training", 2, "--cp 2", {"cp": 2}),
    ("context_training", 4, "--cp 4", {"cp": 4}),
    ("context_training", 4, "--cp 2", {"shard": 2, "cp": 2}),
    ("context_training", 2, "--cp 2 --cp-method ulysses", {"cp": 2, "context": "ulysses"}),
    ("context_training", 4, "--cp 4 --cp-method ulysses", {"cp": 4, "context": "ulysses"}),
    ("context_training", 4, "--cp 2 --recompute", {"shard": 2, "cp": 2, "recompute": "full"}),
    ("expert_training", 4, "--experts 8 --top-k 1 --ep 1", {"shard": 4, "ep": 1}),
    ("expert_training", 4, "--experts 8 --top-k 1 --ep 2", {"shard": 4, "ep": 2}),
    ("expert_training", 4, "--experts 8 --top-k 1 --ep 4", {"shard": 4, "ep": 4}),
)


def sent_a_step(student: Student, world: int, flags: str) -> tuple[float, int, int]:
    """Bytes that a rank sends in a step, on average; the most numbers that one holds; and the vocabulary's words."""
    runs = [[world, [*ARGV, *flags.split(), "--max-steps", str(steps)]] for steps in (1, 3)]
    run = student.call(mains_on_rank, world=world, group=False, runs=runs, data=corpus(student), keep=("held",))
    short, long = cases(run.events)[:2]
    sent = [(sent_by(long[rank], rank) - sent_by(short[rank], rank)) / 2 for rank in range(world)]
    saved = torch.load(io.BytesIO(run.files["out-0/model-final.pt"]), weights_only=True)
    return sum(sent) / world, max(left[0]["held"] for left in run.evidence), saved["config"]["vocab_size"]


def predicted(words: int, flags: str, axes: dict) -> float:
    """By the planner, on all axes."""
    mixture = {"experts": 8, "active": 1} if "--experts" in flags else {}
    plain = {"hidden": SIZES["dim"], "layers": SIZES["layers"], "heads": SIZES["heads"]}
    model = Model(**plain, vocabulary=words, sequence=SIZES["length"], **mixture)
    each = SIZES["batch"] // axes.get("shard", 1)
    plan = Plan(batch=SIZES["batch"], micro_batch=each, fsdp=True, precision="float32", **axes)
    return sum(sent.bytes for sent in costs.messages(model, plan).values())


LONG = (
    "--epochs 1 --max-steps 2 --batch-size 1 --seq-len 1024 --dim 64 --heads 4 --layers 2 --optimizer adamw"
    " --log-every 1 --device-memory"
).split()


def long_text() -> dict[str, str]:
    draw = random.Random(0)
    lines = ["\n".join(" ".join(draw.choices("abcdefgh", k=7)) for _ in range(n // 8)) for n in (3100, 1100, 1100)]
    return {f"data/{name}.txt": text + "\n" for name, text in zip(("train", "validation", "test"), lines, strict=True)}


def most_on_rank(code, rank, world, limit, data):
    from grader.kit import mains_on_rank
    from utils.device_memory import most_held

    mains_on_rank(code, rank, world, [[world, [*LONG, limit, "--cp", str(world)]]], data, keep=("steps",))
    return {"most": most_held("cpu")}


def memory(student: Student, json_file: Path | None) -> None:
    from benchmarks.axes import most_on_rank  # under the name by which ranks import it

    def run(world: int, limit: int) -> int:
        how = dict(world=world, group=False, limit=f"{limit}B", data=long_text())
        return max(seen["most"] for seen in student.call(most_on_rank, **how).evidence)

    most = {world: run(world, 10**12) for world in (1, 2, 4)}
    limit = (most[1] + most[2]) // 2
    print(f"ranks  most bytes held  with --device-memory {limit}B")
    for world, held in most.items():
        try:
            run(world, limit)
            ends = "trains"
        except Fault as fault:
            ends = fault.message
        print(f"{world:5}  {held:15,}  {ends}", flush=True)
    if json_file:
        json_file.write_text(json.dumps({"most": most, "limit": limit}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--memory", action="store_true", help="of context_training: what a rank holds")
    parser.add_argument("--json", type=Path, help="write every measurement to this file, too")
    args = parser.parse_args()
    if args.memory:
        with Runner() as runner:
            units = lessons.units("context_training", "solutions")
            memory(Student(runner, "context_training", units, []), args.json)
        return
    found = []
    print("ranks  numbers held  bytes a step  predicted  ratio  run")
    with Runner() as runner:
        for script, world, flags, axes in RUNS:
            student = Student(runner, script, lessons.units(script, "solutions"), [])
            sent, held, words = sent_a_step(student, world, flags)
            right = predicted(words, flags, axes)
            found.append(
                {"script": script, "ranks": world, "flags": flags, "held": held, "sent": sent, "predicted": right}
            )
            print(
                f"{world:5}  {held:12,}  {sent:12,.0f}  {right:9,.0f}  {sent / right:5.2f}  {script} {flags}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
