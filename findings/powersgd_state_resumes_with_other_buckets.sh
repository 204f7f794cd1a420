#!/usr/bin/env bash
# A run resumed with PowerSGD's saved state is another run: DDP starts with its first buckets again
# Package: torch 2.13.0 (CPU, gloo); the same with 2.15.0. Date: 2026-11-29
# Expected: the documentation of DDP's communication hooks has PowerSGDState saved in a checkpoint and loaded again, "to
# enable trainer restarts"; so the resumed run goes on as the uninterrupted one.
# Happens: the state's memory (error_dict, p and q) is kept by the number of a bucket, flat, in that bucket's order. After
# its first backward pass DDP rebuilds its buckets in the order in which gradients came. The state was saved after that;
# the resumed run's first step has the first order again, so each memory is added to other parameters. No warning.
# With one backward pass before the state is loaded, whose gradients are thrown away, both runs agree to the last bit.
# Output seen: resumed 0.813 of the movement away; with a backward pass first 0.0   (the distance of the weights from the
# uninterrupted run's, as a part of how far the resumed steps move them)
# How to run: bash powersgd_state_resumes_with_other_buckets.sh   (needs Python 3.11+ and pip; exits 0 if the behaviour is still as stated here)
# A Python that already has torch can be given instead of the new environment: FINDING_PYTHON=/path/to/python
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python=${FINDING_PYTHON:-}
if [ -z "$python" ]; then
    python3 -m venv "$here/venv"
    python="$here/venv/bin/python"
    "$python" -m pip install -q torch==2.13.0 numpy==2.4.6
fi
export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo} OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore
cat > "$here/finding.py" <<'PYTHON'
import copy
import datetime
import os
import pickle
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

STOP, STEPS = 5, 10


def wrapped(weights):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.Tanh(), torch.nn.Linear(16, 24))
    if weights:
        model.load_state_dict(weights)
    return DistributedDataParallel(model)


def loss_of(ddp, step, rank):
    torch.manual_seed(100 * step + rank)
    return (ddp(torch.randn(8, 24)) - torch.randn(8, 24)).square().mean()


def train(ddp, steps, rank):
    for step in steps:
        ddp.zero_grad()
        loss_of(ddp, step, rank).backward()
        with torch.no_grad():
            for weight in ddp.parameters():
                weight -= 0.5 * weight.grad
    return torch.cat([weight.detach().flatten() for weight in ddp.parameters()])


def body(rank, world):
    ddp = wrapped(None)
    state = powersgd.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1)
    ddp.register_comm_hook(state, powersgd.powerSGD_hook)
    half = train(ddp, range(STOP), rank)
    saved, kept = copy.deepcopy(ddp.module.state_dict()), pickle.dumps(state)
    whole = train(ddp, range(STOP, STEPS), rank)

    def resumed(backward_first):
        again = wrapped(saved)
        if backward_first:
            loss_of(again, 0, rank).backward()  # train sets these gradients to zero
        again.register_comm_hook(pickle.loads(kept), powersgd.powerSGD_hook)
        return train(again, range(STOP, STEPS), rank)

    return [((resumed(first) - whole).norm() / (whole - half).norm()).item() for first in (False, True)]


def run(rank, world, where):
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method="file://" + where, rank=rank, world_size=world, timeout=limit)
    seen = [None] * world
    dist.all_gather_object(seen, body(rank, world))
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print("torch", torch.__version__)
        for number, (plain, after) in enumerate(seen):
            print(f"rank {number}: resumed {plain:.3g} of the movement away; with a backward pass first {after}")
        judge(seen)


def judge(seen):
    assert all(plain > 0.01 and after == 0.0 for plain, after in seen), seen


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(run, args=(2, os.path.join(folder, "store")), nprocs=2, start_method="fork")
    print("as stated")
PYTHON
"$python" "$here/finding.py"
