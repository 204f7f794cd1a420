"""The baseline script, in process and as typed."""

import importlib.util
import json
import math
import os
import pty
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from utils.checkpoints import load_model
from utils.data import EpochOrder, load_corpus
from utils.report.pictures import loss_curve
from utils.products import has_units

SCRIPT = Path(__file__).parents[1] / "solutions" / "train" / "single_gpu_training.py"
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}

TINY = "--dim 16 --heads 2 --layers 1 --seq-len 32 --batch-size 96 --log-every 4".split()


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("single_gpu_training", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # two are slower on tensors so small, and far slower on a busy machine
    yield module
    torch.set_num_threads(before)


def run(script, out: Path, *flags: str) -> list[dict]:
    script.main([*TINY, "--data", "random", "--out", str(out), *flags])
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_its_record_and_its_model(script, tmp_path, capsys):
    lines = run(script, tmp_path / "run", "--epochs", "2", "--tensorboard")
    printed = capsys.readouterr().out

    steps = [line for line in lines if line["kind"] == "step"]
    n_steps = 50_021 // 32 // 96 * 2
    assert [line["step"] for line in steps] == list(range(4, n_steps + 1, 4))
    assert all(line["tokens_per_s"] > 0 and 3.5 < line["loss"] < 4.5 for line in steps)
    assert [(line["epoch"], line["step"]) for line in lines if line["kind"] == "epoch"] == [
        (1, n_steps // 2),
        (2, n_steps),
    ]
    assert lines[-1]["kind"] == "test"
    assert "[1/2] train loss" in printed and "[2/2] train loss" in printed and "perplexity" in printed
    assert f"test loss {lines[-1]['loss']:.4f}" in printed
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))

    # The saved model has the loss that was reported: a mean over every token of the test set.
    model, tokens = load_model(tmp_path / "run" / "model-final.pt"), load_corpus("random").test
    n = len(tokens) // 32 * 32
    x, y = torch.cat([torch.zeros(1, dtype=torch.int64), tokens[:-1]]), tokens
    with torch.no_grad():
        total = model(x[:n].view(-1, 32), y[:n].view(-1, 32)).double() * n
        total += model(x[n:][None], y[n:][None]).double() * (len(tokens) - n)
    assert lines[-1]["loss"] == pytest.approx(total.item() / len(tokens), rel=1e-6)


def test_the_loss_of_an_epoch_is_the_mean_of_its_steps(script, tmp_path):
    lines = run(script, tmp_path, "--log-every", "1", "--max-steps", "5")
    steps = [line["loss"] for line in lines if line["kind"] == "step"]
    assert len(steps) == 5
    assert [line["loss"] for line in lines if line["kind"] == "epoch"] == [pytest.approx(sum(steps) / 5)]


def test_the_same_seed_gives_the_same_run(script, tmp_path):
    def outcome(name: str, *flags: str):
        lines = run(script, tmp_path / name, "--max-steps", "8", *flags)
        return [line["loss"] for line in lines], load_model(tmp_path / name / "model-final.pt").state_dict()

    losses, weights = outcome("a")
    again_losses, again_weights = outcome("b")
    assert losses == again_losses
    assert all(torch.equal(weights[name], again_weights[name]) for name in weights)
    assert losses != outcome("c", "--seed", "1")[0]


def test_it_takes_the_steps_that_it_should(script, tmp_path):
    """The first steps under SGD against a loop written out here."""
    plain = "--optimizer sgd --lr 0.5 --weight-decay 0 --clip 0"
    lines = run(script, tmp_path, *f"{plain} --log-every 1 --max-steps 3".split())

    corpus = load_corpus("random")
    torch.manual_seed(0)
    model = script.TransformerLM(50, 16, 2, 1, 32, 0.0)
    windows = script.Windows(corpus.train, 32, corpus.eos, drop_last=True)
    order = list(EpochOrder(windows, seed=0))
    expected = []
    for step in range(3):
        batch = [windows[i] for i in order[step * 96 : (step + 1) * 96]]
        logits = model(torch.stack([x for x, _ in batch]))
        loss = F.cross_entropy(logits.flatten(0, 1), torch.cat([y for _, y in batch]))
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.5 * parameter.grad
        expected.append(loss.item())
    assert [line["loss"] for line in lines[:3]] == pytest.approx(expected, rel=1e-5)
    assert expected[2] < expected[0] - 1e-4, "else equality would prove nothing"


def test_it_learns_english(script, tmp_path):
    lines = run(script, tmp_path, *"--data builtin --lr 1e-2 --batch-size 24 --max-steps 12 --log-every 1".split())
    assert lines[0]["loss"] > 8 and lines[11]["loss"] < lines[0]["loss"] - 1


def test_bfloat16_and_workers(script, tmp_path, capsys):
    lines = run(script, tmp_path, *"--max-steps 4 --dtype bfloat16 --workers 1".split())
    slow = not torch.cuda.is_available() and not has_units("cpu")
    assert ("no units for bfloat16" in capsys.readouterr().err) == slow
    same = run(script, tmp_path, *"--max-steps 4".split())
    assert lines[0]["loss"] == pytest.approx(same[0]["loss"], rel=1e-2)
    assert lines[0]["loss"] != same[0]["loss"]


def test_evaluate_weighs_by_tokens(script):
    """Batches of different sizes: the mean of their means would be another number."""

    def model(x, y):
        return y[y != -100].float().mean()

    model.eval = lambda: None
    full, short = torch.tensor([[1, 1, 1, 1]]), torch.tensor([[6, -100, -100, -100]])
    batches = [(torch.zeros(1, 4), full), (torch.zeros(1, 4), short)]
    args = SimpleNamespace(dtype="float32")
    assert script.evaluate(model, batches, torch.device("cpu"), args) == 2.0


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--epochs 0", "0 is less than 1"),
        ("--batch-size many", "'many' is not a whole number"),
        ("--lr nan", "nan is not from 0"),
        ("--dropout 1", "not from 0 to below 1"),
        ("--dim 30 --heads 4", "--dim 30 is not divisible by --heads 4"),
        ("--optimizer adagrad", "invalid choice"),
        ("--gpus 4", "unrecognized arguments"),
        ("--data nowhere", "--data nowhere: no such folder"),
        ("--seq-len 100000", "fewer than one --batch-size 96"),
        ("--batch-size 5000", "fewer than one --batch-size 5000"),
        ("--out /dev/null/x", "choose another folder"),
    ],
)
def test_a_bad_value_is_one_line_and_exit_code_2(script, tmp_path, capsys, flags, message):
    with pytest.raises(SystemExit) as stop:
        run(script, tmp_path / "run", *flags.split())
    captured = capsys.readouterr()
    assert stop.value.code == 2
    assert message in captured.err and captured.err.count("\n") == 1
    assert captured.out == "" and not (tmp_path / "run").exists()


def test_as_typed_in_another_folder(tmp_path):
    """A script finds utils/ from wherever it is called, and imports nothing heavy that it does not use."""
    code = (
        "import runpy, sys; sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "print([m for m in ('datasets', 'tensorboard', 'matplotlib', 'rich', 'pyarrow') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(SCRIPT), *TINY, "--data", "random", "--max-steps", "2"]
    done = subprocess.run(command, cwd=tmp_path, env=ONE_THREAD, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("metrics.jsonl to runs/single_gpu_training\n[]\n")
    assert done.stderr == ""
    assert (tmp_path / "runs" / "single_gpu_training" / "model-best.pt").is_file()


def test_on_a_terminal_the_bar_leaves_the_lines_whole(tmp_path):
    main, terminal = pty.openpty()
    command = [sys.executable, str(SCRIPT), *TINY, "--data", "random", "--max-steps", "8", "--out", str(tmp_path)]
    env = ONE_THREAD | {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(command, stdout=terminal, stderr=terminal, env=env)
    os.close(terminal)
    shown = b""
    try:
        while chunk := os.read(main, 65536):
            shown += chunk
    except OSError:  # how a terminal says that nobody writes to it any more
        pass
    os.close(main)
    assert process.wait(timeout=60) == 0
    text = shown.decode()
    assert "[1/3] train loss" in text and "perplexity" in text and "tokens/s" in text
    assert "8/8" in text


def test_curves_are_drawn(script, tmp_path):
    run(script, tmp_path / "one", "--max-steps", "8")
    run(script, tmp_path / "two", "--max-steps", "8", "--seed", "1")
    records = [tmp_path / name / "metrics.jsonl" for name in ("one", "two")]
    loss_curve(records[0], tmp_path / "new" / "one.png")
    loss_curve(records, tmp_path / "both.png", labels=["seed 0", "seed 1"])
    for png in ("new/one.png", "both.png"):
        assert (tmp_path / png).read_bytes().startswith(b"\x89PNG")
    # in a process of its own: another test may have loaded it
    code = "import sys; from utils.report.pictures import loss_curve as draw; draw(*sys.argv[1:])"
    code += "; print('matplotlib.pyplot' in sys.modules)"
    command = [sys.executable, "-c", code, str(records[0]), str(tmp_path / "again.png")]
    assert subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True).stdout == "False\n"
    with pytest.raises(ValueError, match="2 records but 1 labels"):
        loss_curve(records, tmp_path / "x.png", labels=["one"])


def test_a_run_that_blew_up_is_reported_not_crashed(script):
    assert script.perplexity(1e4) == math.inf and math.isnan(script.perplexity(math.nan))
    assert script.perplexity(math.log(50)) == pytest.approx(50)
