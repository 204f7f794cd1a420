"""`fsdp_training --optimizer muon`: the serial Muon on any number of ranks, across a stop, too; its bytes; its seal."""

import importlib.util
import sys
from types import SimpleNamespace

import pytest
import torch

from grader.engine.lesson import lessons, release, sealed_lessons
from grader.engine.ranks.job import Job
from grader.engine.ranks.message_rounds import collectives
from grader.kit import Student, corpus, mains_on_rank, reported
from muon_on_ranks import DECAY, DTYPES, LR, OTHERS, SHAPES, STEPS, first, gradient
from utils import after_13_fewer_bytes as taught
from utils import training

sys.path.insert(0, str(lessons.COURSE / "benchmarks"))

from reference import functions

lesson = functions("13_fewer_bytes")


def test_the_functions_are_the_lessons():
    for number, shape in enumerate(SHAPES):
        g = gradient(number, 0)
        assert torch.equal(taught.newton_schulz(g), lesson["newton_schulz"](g))
        assert taught.cost(shape) == lesson["cost"](shape)
    assert taught.owners(SHAPES, 3) == lesson["owners"](SHAPES, 3)


def serial(dtype):
    """The weights after each step of one process, by the lesson's function in this dtype; None: by torch's Muon, which
    has bfloat16 alone.
    """
    weights = [torch.nn.Parameter(first(number)) for number in range(len(SHAPES) + len(OTHERS))]
    adamw = torch.optim.AdamW(weights[-1:], lr=LR, weight_decay=DECAY)
    muon = torch.optim.Muon(weights[:-1], lr=LR, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
    averages, seen = [torch.zeros(shape) for shape in SHAPES], []
    for step in range(STEPS):
        for number, p in enumerate(weights):
            p.grad = gradient(number, step)
        adamw.step()
        if dtype is None:
            muon.step()
        for p, average in zip(weights, averages) if dtype else ():
            average.lerp_(p.grad, 0.05)
            update = lesson["newton_schulz"](p.grad.lerp(average, 0.95).to(dtype)).float()
            p.data = p.data * (1 - LR * DECAY) - LR * 0.2 * max(p.shape) ** 0.5 * update
        seen.append([p.detach().clone() for p in weights])
    return seen


def held(rows, world, rank):
    """The rows that a rank has of a matrix that is cut into `world` parts."""
    size = -(-rows // world)
    return max(0, min(size, rows - rank * size))


def bytes_by_formula(rank, world, copies, size):
    """What a rank sends in a step: its rows of what others of its copy own, and the others' rows of what it owns."""
    shards, sent = world // copies, 0
    for (m, n), owner in zip(SHAPES, taught.owners(SHAPES, world)):
        mine = held(m, shards, rank % shards)
        if owner == rank:
            sent += (copies * m - mine) * n
        elif owner // shards == rank // shards:
            sent += mine * n
    return size * sent


@pytest.mark.parametrize(("world", "copies"), [(1, 1), (2, 1), (3, 1), (4, 1), (4, 2), (3, 3), (3, 0)])
def test_a_step_is_the_serial_step(runner, world, copies):
    """copies: of the model; 0: parameters that are no DTensors, as in DDP."""
    how = {"lesson": "", "function": "tests.muon_on_ranks:stepped", "world": world, "inputs": {"copies": copies}}
    run = runner.run(Job(lessons.units("fsdp_training", "solutions"), **how))
    assert run.fault is None, run.fault
    for mine in run.evidence:
        for dtype, seen in zip(DTYPES, mine, strict=True):
            for due, apart in ((serial(dtype), 1e-6), (serial(None), 0.06)):
                before = [first(number) for number in range(len(SHAPES) + len(OTHERS))]
                for step, right in zip(seen, due, strict=True):
                    for was, weight, its in zip(before, step, right, strict=True):
                        # Of how far it has moved, besides the weights' own rounding. torch's bfloat16 is 1.1 % from
                        # our float32, and 3.9 % from our bfloat16, which rounds at other places.
                        assert (weight - its).norm() <= apart * (its - was).norm() + 1e-6 * its.norm()
                        assert (its - was).norm() > 1e-3 * its.norm()
    sent = [[c.sent for c in collectives(run.events) if c.rank == r and c.op == "all_to_all"] for r in range(world)]
    for rank in range(world):
        due = STEPS * sum(bytes_by_formula(rank, world, copies or world, dtype.itemsize) for dtype in DTYPES)
        assert sum(sent[rank]) == due


ARGV = (
    "--epochs 25 --batch-size 12 --seq-len 8 --dim 16 --heads 2 --layers 2 --optimizer muon --lr 5e-3 --seed 11 "
    "--log-every 1"
).split()


def losses_of(student, wanted):
    """The losses of each run of main(), by name. All are made in one job, those on more ranks first."""
    how = dict(world=4, group=False, common=True, data=corpus(student), keep=[])
    job = student.call(mains_on_rank, runs=list(wanted.values()), **how)
    lines = [reported(job, f"out-{number}") for number in range(len(wanted))]
    return {
        name: [line["loss"] for line in mine if line["kind"] == "step"]
        for name, mine in zip(wanted, lines, strict=True)
    }


def test_fifty_steps_and_a_stop(runner):
    student = Student(runner, "", lessons.units("fsdp_training", "solutions"), [])
    short = [*ARGV, "--epochs", "3"]  # two steps each
    wanted = {
        "saved": [4, [*short, "--sharding", "hybrid", "--save"]],
        "resumed": [4, [*short, "--sharding", "hybrid", "--resume", "out-0/step-2"]],
        "4": [4, [*ARGV, "--sharding", "hybrid"]],
        "resumed on 3": [3, [*short, "--resume", "out-0/step-2"]],
        "3": [3, [*ARGV, "--recompute"]],
        "2": [2, ARGV],
        "1": [1, ARGV],
    }
    losses = losses_of(student, wanted)
    right = losses["1"]
    assert len(right) == 50 and right[-1] < right[0] - 0.1
    for name in ("2", "3", "4"):
        assert losses[name] == pytest.approx(right, rel=1e-4), name
    assert losses["resumed"] == losses["saved"][2:]
    assert losses["resumed on 3"] == pytest.approx(right[2:6], rel=1e-4)


def test_fifty_steps_in_bfloat16(runner):
    student = Student(runner, "", lessons.units("fsdp_training", "solutions"), [])
    short = [*ARGV, "--dtype", "bfloat16"]
    losses = losses_of(student, {"4": [4, short], "2": [2, short], "1": [1, short], "float32": [1, ARGV]})
    right = losses["1"]
    assert len(right) == 50 and right[-1] < right[0] - 0.1 and right != losses["float32"]
    for name in ("2", "4"):
        # Products of activations are rounded, too, and summed over other batches: over three seeds, 7.2e-4 at most.
        assert losses[name] == pytest.approx(right, rel=3e-3), name


def test_a_sealed_muon_is_one_line(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "13_fewer_bytes" in name else find(name))
    training.check_muon(SimpleNamespace(optimizer="adamw"))
    with pytest.raises(SystemExit) as stop:
        training.check_muon(SimpleNamespace(optimizer="muon"))
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --optimizer muon") and "./workbook open muon" in line


@pytest.mark.long
def test_a_release_opens_it_with_the_lessons_todos(tmp_path, monkeypatch):
    said = release.release(tmp_path / "out")
    assert "--optimizer muon is sealed until 2 TODOs are right: it has their answers" in said
    assert not (tmp_path / "out" / "utils" / "after_13_fewer_bytes.py").exists()
    assert (tmp_path / "out" / "train" / "fsdp_training.py").exists() or "fsdp_training is sealed" in "".join(said)
    monkeypatch.setattr(lessons, "COURSE", tmp_path / "out")
    assert sealed_lessons.sealed()["muon"] == ["13_fewer_bytes/8", "13_fewer_bytes/9"]
    assert sealed_lessons.unseal_due({"13_fewer_bytes/8", "13_fewer_bytes/9"}) == ["muon"]
    assert (tmp_path / "out" / "utils" / "after_13_fewer_bytes.py").is_file()
