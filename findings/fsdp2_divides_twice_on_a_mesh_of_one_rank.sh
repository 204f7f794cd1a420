#!/usr/bin/env bash
# fully_shard: on a mesh of one rank, set_gradient_divide_factor with forced sums divides gradients twice
# Package: torch 2.13.0 (CPU, gloo); the same with 2.15.0. Date: 2026-11-28
# Expected: set_gradient_divide_factor(4) divides the gradient by 4, with set_force_sum_reduction_for_comms(True), too:
# "Sets a custom divide factor for the gradient reduction."
# Happens: where the mesh has one rank, nothing is reduced; the gradient is divided while it is copied, and once more
# after that, as it is after a forced sum. So it is divided by 16. Without forced sums it is right on one rank; on more
# ranks gloo then refuses ("Cannot use ReduceOp.PREMUL_SUM with Gloo"). Experts have a mesh of one rank where all ranks
# divide them.
# Output seen: gradients divided by 16.0 with forced sums, and by 4.0 without
# How to run: bash fsdp2_divides_twice_on_a_mesh_of_one_rank.sh   (needs Python 3.11+ and pip; exits 0 if the behaviour is still as stated here)
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
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def divided_by(forced):
    layer = nn.Linear(3, 2, bias=False)
    x = torch.ones(5, 3)
    layer(x).sum().backward()
    right, layer.weight.grad = layer.weight.grad, None
    fully_shard(layer, mesh=init_device_mesh("cpu", (1,)))
    layer.set_gradient_divide_factor(4.0)
    layer.set_force_sum_reduction_for_comms(forced)
    layer(x).sum().backward()
    return (right / layer.weight.grad.full_tensor()).mean().item()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, "store"), rank=0, world_size=1)
        seen = divided_by(True), divided_by(False)
        dist.destroy_process_group()
    print("torch", torch.__version__)
    print("divided by", seen[0], "with forced sums, and by", seen[1], "without")
    assert seen == (16.0, 4.0), seen
    print("as stated")
PYTHON
"$python" "$here/finding.py"
