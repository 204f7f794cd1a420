"""`--compile`: off by default; the same losses; and one line where there is no compiler."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from grader.engine.jobs import machine
from grader.engine.lesson.lessons import COURSE

SCRIPTS = ("single_gpu_training", "ddp_training", "fsdp_training")
SMALL = (
    "--data random --max-steps 6 --epochs 1 --dim 16 --heads 2 --layers 2 --seq-len 32 --batch-size 12 --log-every 1"
).split()


def run(script, out, *flags, **env):
    path = COURSE / "solutions" / "train" / f"{script}.py"
    start = [sys.executable] if script == "single_gpu_training" else machine.torchrun("--nproc-per-node=2")
    return subprocess.run(
        [*start, str(path), *SMALL, "--out", str(out), *flags],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **env},
        capture_output=True,
        text=True,
        timeout=1200,
    )


def losses(out):
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] in ("step", "test")]


@pytest.mark.parametrize("script", SCRIPTS)
def test_without_a_compiler_one_line(script, tmp_path):
    done = run(script, tmp_path / "out", "--compile", CXX="none-here")
    line = "error: --compile needs a compiler, and there is no none-here here: install it, or leave --compile out"
    said = [words for words in done.stderr.splitlines() if words.startswith("error:")]
    assert set(said) == {line}, done.stderr  # on a busy machine, rank 1 may say it as well
    if script == "single_gpu_training":  # else torchrun adds its own words, and ends with a code of its own
        assert done.stderr.splitlines() == [line] and done.returncode == 2
    assert done.returncode and not (tmp_path / "out" / "metrics.jsonl").exists()


@pytest.mark.long
@pytest.mark.drawn  # a compiler takes a minute for each
@pytest.mark.skipif(not shutil.which("g++"), reason="there is no g++")
@pytest.mark.parametrize("script, flags", [*((script, []) for script in SCRIPTS), ("fsdp_training", ["--recompute"])])
def test_compiled_losses_are_the_same(script, flags, tmp_path):
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    for name, more in (("plain", []), ("compiled", ["--compile"])):
        done = run(script, tmp_path / name, *flags, *more, **cache)
        assert done.returncode == 0, done.stderr
    plain, compiled = losses(tmp_path / "plain"), losses(tmp_path / "compiled")
    assert plain[5] < plain[0] - 0.001, "it learns nothing: equal losses would say nothing"
    # The same sums in a different order: 4e-7 was measured.
    assert compiled == pytest.approx(plain, rel=1e-5)
    assert (tmp_path / "cache").exists(), "nothing was compiled"
