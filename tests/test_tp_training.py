"""tp_training: the parallel run is the serial run, for every way to lay out four ranks, and across a stop."""

import io
import math

import pytest
import torch
from torch.utils.data import DataLoader

from grader.engine.lesson import lessons, todo_regions
from grader.kit import Student, corpus, losses, mains_on_rank, reported, same_losses, same_report, together
from lesson_checks import everything
from utils.data import IGNORE, Windows, load_corpus
from utils.model import TransformerLM

tp = everything("tp_training")

FIFTY = (
    "--epochs 25 --max-steps 50 --batch-size 12 --seq-len 8 --dim 16 --heads 4 --layers 2 --optimizer adamw --lr 2e-3 "
    "--seed 11 --log-every 10"
).split()


@pytest.fixture(scope="module")
def solution(runner):
    return Student(runner, "tp_training", lessons.units("tp_training", "solutions"), [])


def mains(student, runs):
    """What each run left, run by run; and the job that all of them were."""
    job = student.call(
        mains_on_rank, world=max(world for world, _ in runs), group=False, common=True, runs=runs, data=corpus(student)
    )
    return [[mine[number] for mine in job.evidence if mine[number]] for number in range(len(runs))], job


def serial(student, argv):
    return student.serial(["--data", "data", "--out", "out", *argv], corpus(student))


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("world", "flags"),
    [
        (2, ["--tp", "2"]),
        (4, ["--tp", "4"]),
        (4, ["--tp", "2"]),
        (2, ["--tp", "2", "--sequence-parallel"]),
        (4, ["--tp", "4", "--sequence-parallel"]),
        (4, ["--tp", "2", "--sequence-parallel"]),
        (4, ["--tp", "2", "--sequence-parallel", "--recompute"]),
    ],
)
def test_fifty_steps_of_adamw(solution, world, flags):
    right = serial(solution, FIFTY)
    expected = losses(right.evidence[0])
    assert len(expected) == 50 and expected[-1] < expected[0] - 0.1
    (ranks,), job = mains(solution, [[world, [*FIFTY, *flags]]])
    same_losses(" ".join(flags), expected, ranks)
    same_report(" ".join(flags), reported(right), reported(job, "out-0"))
    worst = max(
        abs(sum(step) / world / wanted - 1)
        for step, wanted in zip(zip(*map(losses, ranks), strict=True), expected, strict=True)
    )
    print(f"\n{world} ranks {' '.join(flags)}: {worst:.1e}")


def validation_loss(model, folder, seq_len):
    """Of a plain model on one process, over the windows of the validation set in a folder: the mean over tokens."""
    found = load_corpus(str(folder))
    total, count = 0.0, 0
    for x, y in DataLoader(Windows(found.validation, seq_len, found.eos, drop_last=False), batch_size=5):
        with torch.no_grad():
            total += model(x, y).item() * int((y != IGNORE).sum())
        count += int((y != IGNORE).sum())
    return total / count


def test_a_checkpoint_of_tp_4_is_read_by_one_process(solution, tmp_path):
    """The file loads in the plain model, which finds the validation loss that the run has written down."""
    (ranks,), job = mains(solution, [[4, [*tp.ARGV, "--tp", "4"]]])
    saved = torch.load(io.BytesIO(job.files["out-0/model-final.pt"]), weights_only=True)
    model = TransformerLM(**saved["config"])
    model.load_state_dict(saved["model"])
    weights = together(ranks, "weights")
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    validation = [line["validation_loss"] for line in reported(job, "out-0") if line["kind"] == "epoch"]
    for name, text in corpus(solution).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    alone = validation_loss(model.eval(), tmp_path / "data", seq_len=8)
    print(f"\nvalidation loss: {validation[-1]:.6f} on four ranks, {alone:.6f} on one process")
    assert math.isclose(validation[-1], alone, rel_tol=1e-5)
    found = [line["validation_loss"] for line in reported(serial(solution, tp.ARGV)) if line["kind"] == "epoch"]
    assert math.isclose(validation[-1], found[-1], rel_tol=1e-4)


def test_stopped_with_tp_4_gone_on_with_on_other_grids(solution):
    argv = [*tp.ARGV, "--epochs", "2"]
    stopped = ["--resume", "out-0/step-3"]
    runs = [[4, [*argv, "--tp", "4", "--sequence-parallel", "--save-every", "3"]], [4, [*argv, "--tp", "2", *stopped]],
            [2, [*argv, "--tp", "2", "--sequence-parallel", *stopped]], [1, [*argv, *stopped]]]  # fmt: skip
    left, job = mains(solution, runs)
    whole = serial(solution, argv)
    right = losses(whole.evidence[0])
    same_losses("on 4 ranks", right, left[0])
    for number, (world, flags) in enumerate(runs[1:], start=1):
        told = f"gone on with on {world} ranks, {' '.join(flags[len(argv) :])},"
        same_losses(told, right[3:], left[number])
        same_report(told, [line for line in reported(whole) if line["step"] > 3], reported(job, f"out-{number}"))


def test_bfloat16_is_near(solution):
    argv = [*tp.ARGV, "--dtype", "bfloat16"]
    (ranks,), _ = mains(solution, [[4, [*argv, "--tp", "2", "--sequence-parallel"]]])
    right = losses(serial(solution, argv).evidence[0])
    means = [sum(step) / 4 for step in zip(*map(losses, ranks), strict=True)]
    assert means == pytest.approx(right, rel=1e-2) and losses(ranks[0]) != right


@pytest.mark.parametrize("solved", range(7))
def test_it_runs_at_every_stage(solution, solved):
    units = [
        unit._replace(text=todo_regions.compose(unit.source, set(range(1, solved + 1)))) for unit in solution.units
    ]
    part = Student(solution.runner, "tp_training", units, [])
    (ranks,), job = mains(part, [[4, [*tp.ARGV, "--tp", "2", "--sequence-parallel"]]])
    assert [line["kind"] for line in reported(job, "out-0")][-2:] == ["epoch", "test"]
    if solved == 0:  # it is fsdp_training's solution
        same_losses("as given", losses(serial(part, tp.ARGV).evidence[0])[:2], ranks)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--heads", "4", "--tp", "3"], "--heads 4 is not divisible by --tp 3"),
        (["--dropout", "0.1", "--tp", "2"], "--dropout 0.1"),
        (["--seq-len", "7", "--tp", "2", "--sequence-parallel"], "--seq-len 7"),
    ],
)
def test_what_can_not_be_is_refused_when_arguments_are_read(solution, flags, words, capsys):
    space = {"__name__": "read", "__file__": str(lessons.COURSE / "solutions/train/tp_training.py")}
    exec(compile(solution.units[0].text, "tp_training.py", "exec"), space)
    with pytest.raises(SystemExit) as stop:
        space["parse_args"](flags)
    (line,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and words in line


def test_a_batch_that_does_not_divide_names_the_axis(solution, capsys):
    from argparse import Namespace

    from utils.distributed import set_batch_size

    with pytest.raises(SystemExit):
        set_batch_size(Namespace(batch_size=7, batch_size_per_rank=None), 2, "ranks of the data axis")
    assert "is not divisible by 2 ranks of the data axis" in capsys.readouterr().err
