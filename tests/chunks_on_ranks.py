"""What `test_chunks.py` runs on ranks: tables that tensor parallelism and fully_shard cut, one after the other."""

from contextlib import suppress

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from utils.checkpoints import check_chunks


def table(rows, mesh):
    """Rows of which each knows its number."""
    own = nn.Sequential(nn.Linear(2, rows, bias=False))
    own[0].weight = nn.Parameter(torch.arange(2.0 * rows).view(rows, 2))
    parallelize_module(own, mesh["tp"], {"0": ColwiseParallel()})
    fully_shard(own, mesh=mesh["shard"])
    return own


def sent_saved_loaded(code, rank, world, shape, sizes):
    """For each number of rows: what this rank holds; whether the table is refused; whether it can be saved; and what is
    there after it was handed out by rank 0, and after it was saved and loaded.
    """
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("shard", "tp"))
    seen = []
    for rows in sizes:
        own = table(rows, mesh)
        found = {"held": own[0].weight.detach().clone(), "refused": False, "saved": False}
        try:
            check_chunks(own)
        except SystemExit:
            found["refused"] = True
        with suppress(dcp.api.CheckpointException):
            dcp.save(get_model_state_dict(own), checkpoint_id=f"table-{rows}")
            found["saved"] = True
        if not found["refused"]:
            full = {"0.weight": torch.arange(2.0 * rows).view(rows, 2)} if rank == 0 else {}
            own[0].weight.data.zero_()
            set_model_state_dict(own, full, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
            found["handed out"] = own[0].weight.detach().clone()
            own[0].weight.data.zero_()
            weights = get_model_state_dict(own)
            dcp.load(weights, checkpoint_id=f"table-{rows}")
            set_model_state_dict(own, weights)
            found["loaded"] = own[0].weight.detach().clone()
        dist.barrier()
        seen.append(found)
    return seen
