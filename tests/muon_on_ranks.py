"""What `test_muon.py` runs on ranks: steps of the sharded Muon, with gradients that are made up."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from utils.after_13_fewer_bytes import Muon

# Five rows on four ranks: one has none. Wide, tall, square; a vector, which is AdamW's.
SHAPES, OTHERS = [(12, 20), (5, 8), (24, 6), (7, 7), (12, 20)], [(9,)]
LR, DECAY, STEPS = 0.02, 0.1, 3
DTYPES = torch.float32, torch.bfloat16  # of Newton–Schulz


def made(shape, *seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(hash(seed) % 2**31)) * 10.0 ** -seed[-1]


def first(number):
    return made([*SHAPES, *OTHERS][number], 1, number, 0)


def gradient(number, step):
    return made([*SHAPES, *OTHERS][number], 2, number, step)


def stepped(code, rank, world, copies):
    """For each dtype: the weights after each step, whole."""
    return [steps_in(dtype, world, copies) for dtype in DTYPES]


def steps_in(dtype, world, copies):
    own = nn.ParameterList(nn.Parameter(first(number)) for number in range(len(SHAPES) + len(OTHERS)))
    if copies:
        axes = ("replicate", "shard")
        mesh = init_device_mesh("cpu", (copies, world // copies), mesh_dim_names=axes)
        fully_shard(own, mesh=mesh if copies > 1 else mesh["shard"])
    parameters = list(own.parameters())
    optimizer = Muon(parameters[:-1], parameters[-1:], lr=LR, weight_decay=DECAY, dtype=dtype)
    seen = []
    for step in range(STEPS):
        for number, p in enumerate(parameters):
            g = gradient(number, step)
            p.grad = distribute_tensor(g, p.device_mesh, p.placements) if isinstance(p, DTensor) else g
        optimizer.step()
        seen.append([(p.full_tensor() if isinstance(p, DTensor) else p).detach().clone() for p in parameters])
    return seen
