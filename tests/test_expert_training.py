"""expert_training: the parallel run is the run of one process, for every layout of the ranks, and across a stop."""

import io
import json
import math

import pytest
import torch

from grader.engine.lesson import lessons, todo_regions
from grader.kit import Student, corpus, losses, mains_on_rank, reported, same_losses, same_report
from lesson_checks import everything

experts = everything("expert_training")

FIFTY = (
    "--epochs 25 --max-steps 50 --batch-size 12 --seq-len 8 --dim 16 --heads 4 --layers 2 --optimizer adamw --lr 2e-3 "
    "--seed 11 --log-every 1"
).split()


@pytest.fixture(scope="module")
def solution(runner):
    return Student(runner, "expert_training", lessons.units("expert_training", "solutions"), [])


def mains(student, runs):
    """What each run left, run by run, and the job that all of them were. Each run has as many ranks or fewer."""
    job = student.call(
        mains_on_rank,
        world=max(world for world, _ in runs),
        group=False,
        common=True,
        runs=runs,
        data=corpus(student),
        keep=("forwards", "still_in_a_group"),
    )
    return [[mine[number] for mine in job.evidence if mine[number]] for number in range(len(runs))], job


def loads(job, out):
    lines = job.files[f"{out}/metrics.jsonl"].decode().splitlines()
    return [line["load"] for line in map(json.loads, lines) if line["kind"] == "step"]


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("world", "flags"),
    [
        (2, "--experts 4 --ep 2"),
        (4, "--experts 4 --ep 4"),
        (4, "--experts 4 --ep 2"),
        (3, "--experts 4 --ep 1"),
        (3, "--experts 6 --ep 3 --top-k 3"),
        (4, "--experts 4 --ep 2 --top-k 1 --recompute"),
    ],
)
def test_fifty_steps_of_adamw(solution, world, flags):
    serial = [*FIFTY, *flags.split(), "--ep", "1"]  # the last of a flag counts
    (ranks, (one,)), job = mains(solution, [[world, [*FIFTY, *flags.split()]], [1, serial]])
    expected = losses(one)
    assert len(expected) == 50 and expected[-1] < expected[0] - 0.1
    same_losses(flags, expected, ranks)
    same_report(flags, reported(job, "out-1"), reported(job, "out-0"))
    assert loads(job, "out-0") == loads(job, "out-1")
    worst = max(
        abs(sum(step) / world / wanted - 1)
        for step, wanted in zip(zip(*map(losses, ranks), strict=True), expected, strict=True)
    )
    print(f"\n{world} ranks {flags}: {worst:.1e}")


def test_one_expert_is_the_plain_model(solution):
    serial = solution.serial(["--data", "data", "--out", "out", *FIFTY], corpus(solution))
    (ranks,), job = mains(solution, [[3, [*FIFTY, "--experts", "1", "--top-k", "1"]]])
    same_losses("one expert", losses(serial.evidence[0]), ranks)
    same_report("one expert", reported(serial), reported(job, "out-0"))


def test_biases_balance_the_load(solution):
    """Without the loss, too: the busiest expert has less to do than with neither."""

    def busiest(job, out):
        late = torch.tensor(loads(job, out)[30:], dtype=torch.float64).sum(dim=0)
        return (late.max(dim=1).values / late.mean(dim=1)).mean().item()

    flags = [*FIFTY, "--experts", "4", "--top-k", "1", "--ep", "2", "--balance", "0"]
    _, job = mains(solution, [[2, [*flags, "--bias-rate", "0"]], [2, [*flags, "--bias-rate", "0.005"]]])
    assert busiest(job, "out-1") < busiest(job, "out-0")


def test_stopped_on_four_ranks_gone_on_with_on_others(solution):
    argv = [*FIFTY, "--max-steps", "8", "--experts", "4", "--seed", "3"]
    stopped = ["--resume", "out-0/step-3"]
    runs = [[4, [*argv, "--ep", "4", "--save-every", "3"]], [4, [*argv, "--ep", "2", *stopped]],
            [3, [*argv, *stopped]], [2, [*argv, "--ep", "2", *stopped]], [1, [*argv, *stopped]]]  # fmt: skip
    left, job = mains(solution, runs)
    whole = [line for line in reported(job, "out-0") if line["step"] > 3]
    for number, (world, flags) in enumerate(runs[1:], start=1):
        told = f"gone on with on {world} ranks, {' '.join(flags[len(argv) :])},"
        same_report(told, whole, reported(job, f"out-{number}"))
        assert loads(job, f"out-{number}") == loads(job, "out-0")[3:]


def test_bfloat16_is_near(solution):
    argv = [*FIFTY, "--max-steps", "3", "--experts", "4", "--ep", "2"]
    (ranks, right), _ = mains(solution, [[4, [*argv, "--dtype", "bfloat16"]], [4, argv]])
    means = [[sum(step) / 4 for step in zip(*map(losses, run), strict=True)] for run in (ranks, right)]
    assert means[0] == pytest.approx(means[1], rel=1e-2) and means[0] != means[1]


def test_a_model_file_has_every_expert_once(solution):
    _, job = mains(solution, [[4, [*FIFTY, "--max-steps", "1", "--experts", "6", "--ep", "2"]]])
    saved = torch.load(io.BytesIO(job.files["out-0/model-final.pt"]), weights_only=True)
    config = saved["config"]
    model = experts.whole_model(**config)
    model.load_state_dict(saved["model"])
    assert config["n_experts"] == 6 and all(math.isfinite(w.sum().item()) for w in saved["model"].values())


@pytest.mark.parametrize("solved", range(9))
def test_it_runs_at_every_stage(solution, solved):
    units = [
        unit._replace(text=todo_regions.compose(unit.source, set(range(1, solved + 1)))) for unit in solution.units
    ]
    part = Student(solution.runner, "expert_training", units, [])
    _, job = mains(part, [[4, [*FIFTY, "--max-steps", "2", "--experts", "4", "--ep", "2", "--dtype", "bfloat16"]]])
    assert [line["kind"] for line in reported(job, "out-0")][-2:] == ["epoch", "test"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--experts 4 --ep 3", "--experts 4 is not divisible by --ep 3"),
        ("--experts 2 --top-k 3", "--top-k 3 is more than --experts 2"),
    ],
)
def test_what_can_not_be_is_refused_when_arguments_are_read(solution, flags, words, capsys):
    space = {"__name__": "read", "__file__": str(lessons.COURSE / "solutions/train/expert_training.py")}
    exec(compile(solution.units[0].text, "expert_training.py", "exec"), space)
    with pytest.raises(SystemExit) as stop:
        space["parse_args"](flags.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and words in line
