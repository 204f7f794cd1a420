"""What an older torch lacks is refused by itself, in one line that names the release which has it."""

import sys
import sysconfig
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch

from grader.engine.jobs import missing_packages
from grader.engine.judge.judge import Judge
from grader.engine.lesson.lessons import COURSE
from grader.engine.ranks.backends import GLOO, Backend
from grader.engine.ranks.run import Run
from grader.engine.ranks.run_files import Traces
from utils import distributed, pipeline_flags, releases
from utils.arguments import training_parser


@pytest.fixture
def old(monkeypatch):
    monkeypatch.setattr(releases, "installed", lambda: "2.8.0a0+gitba56102")


def judged(lesson: str, number: int, gpus: tuple[str, ...] = ()) -> str:
    """What is said of a TODO before anything runs; "" if it would be judged."""
    judge = Judge(SimpleNamespace(backend=Backend(gpus) if gpus else GLOO), lesson, "solutions")
    return judge._too_new(number)


def test_a_todo_and_what_needs_it_are_not_judged_and_the_others_are(old):
    line = judged("fsdp_training", 3)
    assert "needs torch 2.9 or newer, and this is torch 2.8.0a0+gitba56102" in line and "\n" not in line
    assert judged("fsdp_training", 11) == line  # it needs TODO 3
    assert not judged("fsdp_training", 1) and not judged("fsdp_training", 3, gpus=("0",))
    assert "2.10 or newer" in judged("pipeline_training", 5) and not judged("pipeline_training", 4)
    assert "2.10 or newer" in judged("tp_training", 6, gpus=("0",))


def test_with_the_courses_own_torch_everything_is_judged():
    for lesson, number in (
        ("fsdp_training", 11),
        ("pipeline_training", 9),
        ("tp_training", 6),
        ("hybrid_training", 10),
    ):
        assert not judged(lesson, number)


def test_scripts_say_that_torch_is_too_old(monkeypatch, capsys):
    monkeypatch.setattr(releases, "installed", lambda: "2.7.1")
    with pytest.raises(SystemExit) as stop:
        training_parser("ddp_training")
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1 and said.startswith(f"error: torch 2.7.1 in {sys.executable}")


@pytest.mark.parametrize("what", ["schedules", "gpipe"])
def test_an_option_is_refused_in_one_line(old, monkeypatch, capsys, what):
    args = Namespace(
        pp=4, schedule="gpipe", microbatches=2, layers=4, batch_size=8, batch_size_per_rank=None, dropout=0
    )
    with pytest.raises(SystemExit) as stop:
        pipeline_flags.check_schedules() if what == "schedules" else pipeline_flags.check_pipeline(args, 4)
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1 and "this is torch 2.8.0a0" in said


def test_every_script_that_shards_asks_whether_it_averages():
    scripts = {path.stem: path.read_text("utf-8") for path in (COURSE / "solutions" / "train").glob("*.py")}
    shard = {stem for stem, text in scripts.items() if "fully_shard(" in text}
    asks = {stem for stem, text in scripts.items() if "check_averages(device" in text}
    # A pipeline's schedule needs a newer torch anyway.
    assert shard == asks | {"hybrid_training"} and len(asks) >= 5


def test_sums_in_place_of_averages_are_refused_on_cpus_alone(old, monkeypatch, capsys):
    distributed.check_averages(torch.device("cuda"), 2)
    distributed.check_averages(torch.device("cpu"), 1)
    with pytest.raises(SystemExit):
        distributed.check_averages(torch.device("cpu"), 2)
    assert "needs torch 2.9 or newer" in capsys.readouterr().err


def test_the_command_for_missing_packages_keeps_the_sites_torch(monkeypatch):
    there = {"torch": "2.8.0a0+gitba56102", "numpy": "1.26.4"}
    monkeypatch.setattr(missing_packages, "version", there.get)
    monkeypatch.setattr(releases, "installed", lambda: there["torch"])
    needed = "torch==2.13.0\nnumpy==2.4.6\nrich==15.0.0\n"
    assert missing_packages.problem(needed).endswith(" torch==2.8.0a0+gitba56102 numpy==1.26.4 rich")
    monkeypatch.setattr(missing_packages, "access", lambda path, how: False)
    monkeypatch.setattr(missing_packages.site, "ENABLE_USER_SITE", True)
    assert "pip install --user torch==2.8.0a0" in missing_packages.problem(needed)
    monkeypatch.setattr(missing_packages.site, "ENABLE_USER_SITE", False)  # PYTHONNOUSERSITE, as in many a module
    line = missing_packages.problem(needed)
    assert "-m venv --system-site-packages" in line and "export WORKBOOK_PYTHON=" in line and "\n" not in line
    monkeypatch.setattr(sys, "prefix", f"{sys.base_prefix}-site")  # an environment: what is made from it must see it
    seen = f"echo {sysconfig.get_path('purelib')} > {missing_packages.COURSE}/.venv-site/"
    assert seen in missing_packages.problem(needed)
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert "echo " not in missing_packages.problem(needed)


def test_what_gloo_prints_is_not_the_students(tmp_path):
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        chatter = f"[Gloo] Rank {rank} is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n"
        (tmp_path / str(rank) / "stdout").write_text(f"{chatter}loss 1.0\n{chatter}")
    run = Run(world=2)
    Traces(tmp_path, ()).collect(run)
    assert run.stdout == ["loss 1.0\n"] * 2
