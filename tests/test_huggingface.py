"""docs/huggingface/: Trainer and Accelerate train as one process of the course does; an export becomes their Llama.

They are optional: see requirements-huggingface.txt.
"""

import json
import subprocess
import sys

import pytest
import torch

from grader.engine.lesson import lessons
from grader.kit import Student, corpus
from utils.atomic_write import write_whole
from utils.export import export
from utils.model import TransformerLM
from utils.optional_packages import lacks

LACKING = lacks("transformers", "huggingface") or lacks("accelerate", "huggingface")
pytestmark = pytest.mark.skipif(bool(LACKING), reason=LACKING)

EXAMPLES = lessons.COURSE / "docs" / "huggingface"
# Two steps in an epoch: the order changes 25 times.
FIFTY = (
    "--epochs 25 --max-steps 50 --batch-size 12 --seq-len 8 --dim 16 --heads 2 --layers 2 --lr 5e-3 --seed 11"
    " --log-every 1 --device cpu"
).split()
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]


def losses(command, data, out):
    done = subprocess.run(
        [*command, *FIFTY, "--data", data, "--out", out],
        cwd=lessons.COURSE,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "step"]


def test_fifty_steps_on_two_ranks_are_the_serial_runs(runner, tmp_path):
    for name, text in corpus(Student(runner, "ddp_training", [], [])).items():
        write_whole(tmp_path / name, text)
    baseline = lessons.COURSE / "solutions" / "train" / "single_gpu_training.py"
    right = losses([sys.executable, baseline], tmp_path / "data", tmp_path / "serial")
    assert len(right) == 50 and right[-1] < right[0] - 0.1  # it learns: losses that stand still would agree, too
    for name in ("with_accelerate", "with_trainer"):
        command = [*TORCHRUN, "--nproc-per-node=2", EXAMPLES / f"{name}.py"]
        assert losses(command, tmp_path / "data", tmp_path / name) == pytest.approx(right, rel=1e-4), name
        loaded = torch.load(tmp_path / name / "model-final.pt")
        assert loaded["epoch"] == 25 and TransformerLM(**loaded["config"]).load_state_dict(loaded["model"])


def test_a_llama_block_is_theirs(tmp_path):
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    model = TransformerLM(40, 24, 4, 2, 16, kv_heads=2)
    for weight in model.parameters():  # norms begin as ones, which would hide a permutation
        torch.nn.init.normal_(weight, std=0.3)
    run = tmp_path / "run"
    run.mkdir()
    torch.save({"model": model.state_dict(), "config": model.config, "epoch": 1}, run / "model-final.pt")
    export(run, tmp_path / "out", "", 5_000)
    command = [sys.executable, EXAMPLES / "as_llama.py", tmp_path / "out", tmp_path / "llama"]
    subprocess.run(command, check=True, timeout=120)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
    x = torch.randint(40, (3, 16))
    with torch.no_grad():
        torch.testing.assert_close(theirs(x).logits, model(x), rtol=1e-4, atol=1e-5)
    for wrong in ([run, tmp_path / "other"], [tmp_path / "out", tmp_path / "llama"]):
        done = subprocess.run([*command[:2], *wrong], capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done
