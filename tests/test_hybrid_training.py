"""hybrid_training as a whole: every shape is the serial run, also across a stop; what is refused; where ranks stand."""

import io
import json
import math
import subprocess
import sys

import pytest
import torch

from benchmarks.hybrid_training import ranks_of
from grader.engine.lesson import lessons, todo_regions
from grader.kit import Student, corpus, mains_on_rank, reported, same_report
from lesson_checks import everything
from utils.after_expert_training import make_mixtures
from utils.arguments import training_parser
from utils.hybrid_flags import add_hybrid_flags, check_hybrid
from utils.model import TransformerLM

checks = everything("hybrid_training")

ADAM = [*checks.ARGV, *"--layers 4 --optimizer adamw --lr 1e-2 --epochs 2".split()]  # the last of a flag counts


@pytest.fixture(scope="module")
def solution(runner):
    return Student(runner, "hybrid_training", lessons.units("hybrid_training", "solutions"), [])


def mains(student, runs):
    """One job in which main() runs with each of these (ranks, flags)."""
    runs = [[ranks, [*ADAM, *flags.split()]] for ranks, flags in runs]
    most = max(ranks for ranks, _ in runs)
    how = dict(world=most, group=False, common=True)
    return student.call(mains_on_rank, **how, runs=runs, data=corpus(student), keep=checks.KEPT)


def serial(student, argv=ADAM):
    return reported(student.serial(["--data", "data", "--out", "out", *argv], corpus(student)))


SHAPES = (
    "--pp 2 --shard 2 --tp 2",
    "--dp 2 --shard 2 --tp 2 --sequence-parallel",
    "--pp 2 --dp 2 --tp 2 --schedule zero-bubble --sequence-parallel",
    "--pp 2 --dp 2 --shard 2 --schedule interleaved --microbatches 3",
    "--pp 4 --tp 2 --schedule gpipe --microbatches 6",
    "--shard 3 --tp 2",
    "--pp 2 --dp 2 --recompute",
    "--pp 2 --cp 2 --tp 2 --sequence-parallel",
    "--cp 2 --shard 2 --cp-method ulysses",
)


@pytest.mark.drawn
@pytest.mark.parametrize("flags", SHAPES)
def test_every_shape_is_the_serial_run(solution, flags):
    right = serial(solution)
    steps = [line["loss"] for line in right if line["kind"] == "step"]
    assert steps[-1] < steps[0] - 0.01  # it learns: losses that stand still would agree, too
    job = mains(solution, [(ranks_of(flags), flags)])
    same_report(flags, right, reported(job, "out-0"))


MIXTURES = (
    "--pp 2 --cp 2 --ep 2 --schedule interleaved --microbatches 2 --recompute",
    "--shard 2 --tp 2 --ep 2",
    "--dp 2 --cp 2",
)


def test_a_mixture_is_that_of_one_rank_in_every_shape(solution):
    """Also where a run is stopped, and goes on in another shape; and the last file has all experts of all stages."""
    more = "--experts 4 --save-every 1"
    runs = [(ranks_of(flags), f"{more} {flags}") for flags in MIXTURES]
    runs += [(4, f"{more} --shard 4 --ep 4 --resume out-0/step-1"), (1, f"{more} --resume out-3/step-2")]
    job = mains(solution, [*runs, (1, more)])
    right = reported(job, f"out-{len(runs)}")
    steps = {line["step"]: line["loss"] for line in right if line["kind"] == "step"}
    for k in range(len(MIXTURES)):
        same_report(runs[k][1], right, reported(job, f"out-{k}"))
    for k in (3, 4):
        seen = [line for line in reported(job, f"out-{k}") if line["kind"] == "step"]
        assert seen and all(line["loss"] == pytest.approx(steps[line["step"]], rel=1e-4) for line in seen)
    for k in range(len(runs)):
        saved = torch.load(io.BytesIO(job.files[f"out-{k}/model-final.pt"]), weights_only=True)
        make_mixtures(**saved["config"]).load_state_dict(saved["model"])


def test_bfloat16_is_near(solution):
    right = serial(solution)
    job = mains(solution, [(4, "--pp 2 --tp 2 --sequence-parallel --dtype bfloat16")])
    for a, b in zip(right, reported(job, "out-0"), strict=True):
        assert a["loss"] != b["loss"] and math.isclose(a["loss"], b["loss"], rel_tol=1e-2)


def test_a_checkpoint_through_four_shapes(solution):
    """One step in each; the losses are those of a run that was never stopped. The last one's file loads anywhere."""
    shapes = ("--pp 2 --tp 2", "--dp 2 --pp 2 --schedule interleaved", "--tp 2 --sequence-parallel", "--shard 1")
    runs = []
    for k, flags in enumerate(shapes):
        resumed = f"--resume out-{k - 1}/step-{k}" if k else ""
        runs.append((ranks_of(flags), f"{flags} --save-every 1 --max-steps {k + 1} {resumed}"))
    job = mains(solution, runs)
    right = {line["step"]: line["loss"] for line in serial(solution) if line["kind"] == "step"}
    for k, flags in enumerate(shapes):
        (step,) = [line for line in reported(job, f"out-{k}") if line["kind"] == "step"]
        assert step["step"] == k + 1 and step["loss"] == pytest.approx(right[k + 1], rel=1e-4), flags
    whole = solution.serial(["--data", "data", "--out", "out", *ADAM, "--max-steps", "4"], corpus(solution))
    for k in range(len(shapes)):
        saved = torch.load(io.BytesIO(job.files[f"out-{k}/model-final.pt"]), weights_only=True)
        TransformerLM(**saved["config"]).load_state_dict(saved["model"])
    for name, weight in whole.evidence[0]["weights"].items():
        assert torch.allclose(saved["model"][name], weight, rtol=1e-3, atol=1e-4), name  # AdamW's rounding


@pytest.mark.parametrize("solved", range(13))
def test_it_runs_at_every_stage(solution, solved):
    text = [u._replace(text=todo_regions.compose(u.source, set(range(1, solved + 1)))) for u in solution.units]
    start = Student(solution.runner, "hybrid_training", text, [])
    shape = "--pp 2 --tp 2 --sequence-parallel" if solved < 10 else "--pp 2 --cp 2 --experts 2 --ep 2"
    job = mains(start, [(4, f"{shape} --max-steps 2 --epochs 1")])
    assert [line["kind"] for line in reported(job, "out-0")] == ["step", "step", "epoch", "test"]
    if solved < 2:  # nothing is shared out yet: it is the serial run, on each rank
        steps = [line["loss"] for line in serial(start) if line["kind"] == "step"]
        assert [line["loss"] for line in reported(job, "out-0")][:2] == pytest.approx(steps[:2], rel=1e-4)


REFUSED = [
    (8, "--pp 2 --tp 2 --dp 3", "--dp 3 × --shard 1 × --tp 2 × --pp 2 is 12 ranks, and there are 8"),
    (1, "--tp 2", "is 2 ranks, and there is 1"),
    (1, "--compare --max-steps 2", "--compare watches step 3, and --max-steps 2 ends before it"),
    (6, "--shard 4", "--dp 1 × --shard 4 × --tp 1 × --pp 1 is 4 ranks, and there are 6"),
    (3, "--tp 3", "--heads 4 is not divisible by --tp 3"),
    (2, "--tp 2 --dropout 0.1", "--dropout 0.1 with --tp 2"),
    (2, "--pp 2 --dropout 0.1", "--dropout 0.1 with --pp 2"),
    (4, "--pp 4", "--layers 2 is too few for 4 stages (--pp 4, --schedule 1f1b)"),
    (2, "--pp 2 --schedule interleaved", "--layers 2 is too few for 4 stages"),
    (10, "--dp 2", "is not divisible by 10 ranks of the data axes (--dp 2 × --shard 5)"),
    (2, "--pp 2 --microbatches 7", "--microbatches 7 does not divide the 24 sequences"),
    (3, "--pp 3 --layers 3 --microbatches 2", "--schedule 1f1b with --pp 3 needs --microbatches 3 or more, not 2"),
    (4, "--tp 4 --seq-len 6 --sequence-parallel", "--seq-len 6 is not divisible by --tp 4"),
    (2, "--dim 30", "--dim 30 is not divisible by --heads 4"),
    (4, "--cp 3", "--dp 1 × --shard 1 × --cp 3 × --tp 1 × --pp 1 is 3 ranks, and there are 4"),
    (3, "--cp 3 --seq-len 64", "--seq-len 64 is not divisible by 6, the pieces of --cp 3 by ring"),
    (4, "--cp 2 --tp 2 --heads 2 --cp-method ulysses", "--heads 2 on --tp 2 ranks is not divisible by --cp 2"),
    (2, "--cp 2 --dropout 0.1", "--dropout 0.1 with --cp 2"),
    (
        4,
        "--cp 2 --tp 2 --seq-len 6 --sequence-parallel --cp-method ulysses",
        "--seq-len 6 on --cp 2 ranks is not divisible by --tp 2",
    ),
    (2, "--ep 2", "--ep 2 divides experts, and there are none: give --experts"),
    (2, "--experts 3 --ep 2", "--experts 3 is not divisible by --ep 2"),
    (3, "--experts 4 --ep 2", "--ep 2 does not divide the 3 ranks of --shard 3 × --cp 1"),
    (1, "--experts 1", "--top-k 2 is more than --experts 1"),
    (2, "--experts 4 --tp 2 --sequence-parallel", "--sequence-parallel with --experts"),
]


@pytest.mark.parametrize(("ranks", "flags", "words"), REFUSED)
def test_what_makes_no_run_is_refused_in_one_line(ranks, flags, words, capsys):
    parser = training_parser("hybrid_training")
    add_hybrid_flags(parser)
    with pytest.raises(SystemExit) as end:
        check_hybrid(parser.parse_args(flags.split()), ranks)
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.count("\n") == 1 and words in said, said


@pytest.mark.parametrize(
    ("ranks", "flags", "shard", "microbatches"),
    [(8, "--pp 2 --tp 2", 2, 2), (8, "--pp 2 --tp 2 --dp 2", 1, 2), (1, "", 1, 1), (4, "", 4, 1)],
)
def test_what_is_not_told_is_what_the_others_leave(ranks, flags, shard, microbatches):
    parser = training_parser("hybrid_training")
    add_hybrid_flags(parser)
    args = parser.parse_args(flags.split())
    check_hybrid(args, ranks)
    assert (args.shard, args.microbatches) == (shard, microbatches)


def test_as_typed_on_four_processes(tmp_path):
    """torchrun, from another folder; the losses are those of the serial script, which goes on with its checkpoint."""
    short = "--data random --max-steps 3 --dim 16 --heads 2 --seq-len 16 --log-every 1".split()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    one, many = (
        str(lessons.COURSE / f"solutions/train/{name}.py") for name in ("single_gpu_training", "hybrid_training")
    )
    axes = ["--pp", "2", "--tp", "2"]
    commands = {
        "one": [sys.executable, one],
        "four": [*torchrun, "--local-addr=127.0.0.1", "--nproc-per-node=4", many, *axes],
    }
    seen = {}
    for name, command in commands.items():
        done = subprocess.run(
            [*command, *short, "--out", name], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0 and done.stdout.count("test loss") == 1, done
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        seen[name] = [json.loads(line)["loss"] for line in lines]
    assert seen["four"] == pytest.approx(seen["one"], rel=1e-4)


def test_a_mistake_is_one_line_before_the_ranks_meet(tmp_path):
    done = subprocess.run(
        [sys.executable, "solutions/train/hybrid_training.py", "--pp", "2", "--out", str(tmp_path)],
        cwd=lessons.COURSE,
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = "error: --dp 1 × --shard 1 × --tp 1 × --pp 2 is 2 ranks, and there is 1\n"
    assert done.returncode == 2 and done.stderr == said, done
