"""The hooks of `--hook`: bfloat16 on gloo, torch's PowerSGD and the lesson's own, and a script with each of them."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from grader.engine.lesson.lessons import COURSE
from utils import hooks
from utils.interfaces import LOOPBACK

SHAPE, R = (20, 30), 2


def gradients(ddp, rank, steps):
    """The averaged gradient of each step, of batches that differ from rank to rank."""
    found = []
    for step in range(steps):
        ddp.zero_grad()
        x = torch.randn(6, SHAPE[1], generator=torch.Generator().manual_seed(10 * step + rank))
        ddp(x).square().mean().backward()
        found.append(ddp.module.weight.grad.clone())
    return found


def wrapped():
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Linear(SHAPE[1], SHAPE[0], bias=False))


def compared(rank, world, lesson):
    """Plain, bf16's and both PowerSGDs' gradients; ours continues with the state that torch's has after two steps."""
    plain, short, torchs = wrapped(), wrapped(), wrapped()
    hooks.attach(short, "bf16", R)
    state = PowerSGDState(None, matrix_approximation_rank=R, start_powerSGD_iter=hooks.PLAIN_STEPS)
    torchs.register_comm_hook(state, powerSGD_hook)
    seen = {"plain": gradients(plain, rank, 5), "bf16": gradients(short, rank, 1)}
    gradients(torchs, rank, 3)
    ours = lesson["PowerSGD"](model := wrapped().module, R)
    ours.q[model.weight] = state.q_memory_dict[0].view(SHAPE[1], R).clone()
    ours.memory[model.weight] = state.error_dict[0].view(SHAPE).clone()
    own = DistributedDataParallel(model)
    own.register_comm_hook(ours, lesson["power_sgd_hook"])
    seen |= {"torch": gradients(torchs, rank, 2), "ours": gradients(own, rank, 2)}
    return seen


def on_rank(rank, world, folder):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    sys.path.insert(0, str(COURSE / "benchmarks"))
    from reference import functions

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    torch.save(compared(rank, world, functions("13_fewer_bytes")), f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def seen():
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(on_rank, (2, folder), nprocs=2, start_method="spawn")
        return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]


def test_bfloat16_is_the_mean_to_eight_bits(seen):
    for mine in seen:
        apart = (mine["bf16"][0] - mine["plain"][0]).norm() / mine["plain"][0].norm()
        assert 0 < apart < 2**-7  # both summands and the sum are rounded, by 2 ** -9 of a number at most each
        assert torch.equal(mine["bf16"][0], seen[0]["bf16"][0])


def test_torchs_powersgd_is_the_lessons(seen):
    for mine in seen:
        for step, (torchs, ours) in enumerate(zip(mine["torch"], mine["ours"], strict=True)):
            # A hook that compresses nothing would agree with itself; this one is far from the plain mean.
            assert (ours - mine["plain"][step]).norm() > 0.05 * ours.norm()
            assert (torchs - ours).norm() <= 1e-4 * ours.norm(), step


def losses_of(out, *flags):
    command = [sys.executable, "utils/bin/torchrun", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    command += ["solutions/train/ddp_training.py", "--data", "random", "--max-steps", "6", "--log-every", "1"]
    command += ["--dim", "16", "--heads", "2", "--layers", "1", "--seq-len", "8", "--optimizer", "sgd", "--lr", "0.3"]
    done = subprocess.run(
        [*command, "--out", str(out), *flags], cwd=COURSE, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "step"]


@pytest.mark.long
def test_a_script_trains_with_each_hook(tmp_path):
    plain = losses_of(tmp_path / "plain")
    for flags in (["--hook", "bf16"], ["--hook", "powersgd", "--hook-rank", "4"]):
        mine = losses_of(tmp_path / flags[1], *flags)
        assert len(mine) == len(plain) and mine[0] == plain[0] and mine != plain
        assert mine == pytest.approx(plain, rel=1e-2)
