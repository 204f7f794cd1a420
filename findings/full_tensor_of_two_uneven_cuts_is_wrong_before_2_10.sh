#!/usr/bin/env bash
# full_tensor() of a table that tensor parallelism and fully_shard both cut unevenly is wrong in torch 2.9, without an error
# Package: torch 2.9.1 (CPU, gloo); the same with 2.8.0, right in 2.13.0. Date: 2026-11-28
# Expected: each rank's part is right, so joining the parts gives the weights again; get_model_state_dict with
# full_state_dict=True, which joins in the same way, then saves them.
# Happens: on 2 × 2 ranks a table of 14 rows comes back with wrong rows, though every rank holds the right part; with 12, 13
# and 16 rows it comes back right. So a saved model is wrong for some sizes of the vocabulary and right for others.
# Output seen: 12 right, 13 right, 14 wrong, 16 right with torch 2.9.1; all right with torch 2.13.0
# How to run: bash full_tensor_of_two_uneven_cuts_is_wrong_before_2_10.sh   (needs Python 3.11+ and pip; exits 0 if the behaviour is still as stated here)
# A Python that already has torch can be given instead of the new environment: FINDING_PYTHON=/path/to/python
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${FINDING_PYTHON:-}
if [ -z "$python" ]; then
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/python" -m pip install -q "torch==2.9.1" "numpy==2.3.5"
    python=$folder/venv/bin/python
fi
export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo} OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore
cat >"$folder/run.py" <<'PY'
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROWS = (12, 13, 14, 16)


def rank_main(rank, store, result):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh, words = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor")), []
    for rows in ROWS:
        head = torch.nn.Linear(3, rows, bias=False)
        table = torch.arange(3.0 * rows).reshape(rows, 3)
        head.weight.data.copy_(table)
        parallelize_module(head, mesh["tensor"], ColwiseParallel())
        fully_shard(head, mesh=mesh["data"])
        whole = head.weight.full_tensor()
        words.append(f"{rows} {'right' if torch.equal(whole, table) else 'wrong'}")
    if rank == 0:
        print(f"torch {torch.__version__}: {', '.join(words)}")
        with open(result, "w") as file:
            file.write(", ".join(words))
    dist.destroy_process_group()


if __name__ == "__main__":
    store, result = sys.argv[1:]
    mp.spawn(rank_main, (store, result), nprocs=4)
    new = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 10)
    seen = [words.split()[1] for words in open(result).read().split(", ")]
    sys.exit(seen != ["right", "right", "right" if new else "wrong", "right"])
PY
"$python" "$folder/run.py" "$folder/store" "$folder/result"
echo "as stated"
