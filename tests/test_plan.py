"""`./workbook plan`, as a student types it."""

import csv
import json
from dataclasses import asdict

import pytest
import torch
from typer.testing import CliRunner

from grader.engine.commands import screen
from grader.engine.commands.cli import app
from grader.engine.commands.plan import machine_named
from grader.engine.lesson import seals
from utils import this_machine
from utils.plan import JURECA, Plan
from utils.plots_plan import spoken


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """The command with these options; its pictures go to a folder of their own."""
    monkeypatch.setattr(screen.console, "_width", 200)  # rich asks for COLUMNS once, when it is loaded

    def run(*options: str):
        return CliRunner().invoke(app, ["plan", "--out", str(tmp_path / "plan.png"), *options])

    return run


def test_the_best_plans_are_shown_and_drawn(plan, tmp_path):
    done = plan("--model", "7b", "--gpus", "64", "--machine", "jureca", "--best", "3")
    assert done.exit_code == 0, done.output
    assert "6.71 billion parameters" in done.output and "64 devices of JURECA-DC with 40 GiB" in done.output
    assert "fitted: 0.76 of a device's peak and of its memory's, 0.70 of a link's bandwidth" in done.output
    assert str(tmp_path / "plan.png") in done.output.replace("\n", "")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "plan.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 1000 and all(row["rejected"] or float(row["products, s"]) > 0 for row in rows)
    assert {row["rejected"].partition(":")[0] for row in rows} == {"", "memory", "network", "divisibility"}


def test_each_rejected_plan_has_its_reason(plan):
    done = plan("--model", "1b", "--gpus", "4", "--machine", "polaris", "--batch", "8", "--rejected")
    assert done.exit_code == 0
    assert (
        "divisibility: 8 sequences by 16 (dp · shard micro-batches)" not in done.output
    )  # no such micro-batch is tried
    assert "pp 4, micro-batch 4" in done.output and "2 micro-batches for 4 stages" in done.output


def test_a_model_may_be_given_by_its_sizes(plan):
    done = plan("--model", "128,2,4,33278,64", "--gpus", "2", "--batch", "24")
    assert done.exit_code == 0 and "0.01 billion" in done.output


def test_where_nothing_fits_it_says_so(plan, tmp_path):
    done = plan("--model", "70b", "--gpus", "2")
    assert done.exit_code == 1 and "no plan is possible" in done.output and "memory: " in done.output
    assert not (tmp_path / "plan.png").exists() and (tmp_path / "plan.csv").exists()


@pytest.mark.parametrize(
    "options, word",
    [
        (["--model", "9b"], "7b"),
        (["--model", "10,2,3,4,5"], "heads"),
        (["--model", "0,2,3,4,5"], "hidden,layers"),
        (["--model", "128,2,4"], "3 numbers"),
        (["--gpus", "0"], "--gpus"),
        (["--machine", "selena"], "selene"),
        (["--batch", "0"], "--batch"),
        (["--schedule", "2f2b"], "1f1b"),
        (["--precision", "int8"], "mixed"),
        (["--best", "0"], "--best"),
        (["--out", "/nowhere/x.png"], "/nowhere"),
    ],
)
def test_mistakes_are_one_line(plan, options, word):
    done = plan(*options)
    assert done.exit_code == 2 and len(done.output.splitlines()) == 1 and word in done.output, done.output


def test_a_sealed_plan_says_what_opens_it(plan, monkeypatch):
    import builtins

    monkeypatch.setattr(seals, "sealed", lambda: {"plan": ["03_zero/1", "03_zero/7"]})
    monkeypatch.setattr("grader.engine.commands.plan.right", set)
    real = builtins.__import__

    def without_costs(name, *how):
        if name == "utils" and "costs" in (how[2] or ()):
            raise ImportError
        return real(name, *how)

    monkeypatch.setattr(builtins, "__import__", without_costs)
    done = plan()
    assert done.exit_code == 2 and "opens when 03_zero/1+7 are right" in done.output


def test_this_machine_is_measured():
    machine = this_machine.measure(torch.device("cpu"), size=64)
    assert machine.peak > 1e6 and machine.memory_bandwidth > 1e6 and machine.memory > 1e8 and machine.node == 1
    assert this_machine.from_json(json.dumps(asdict(machine))) == machine
    assert this_machine.from_json(json.dumps(asdict(JURECA))) == JURECA


def test_two_ranks_measure_their_link():
    machine = machine_named("here", 2)
    assert machine.node == 2 and 1e6 < machine.inside.bandwidth < 1e13 and 0 < machine.inside.latency < 1
    assert (machine.device_share, machine.link_share) == (1, 1)


def test_plans_are_told_in_few_words():
    assert spoken(Plan(8)) == "one device, micro-batch 1"
    assert spoken(Plan(8, 2, shard=2, tp=4, recompute="full")) == "shard 2 · tp 4, micro-batch 2, full recompute"
