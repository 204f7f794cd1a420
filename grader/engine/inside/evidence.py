"""Evidence: what a rank writes for the judge, as JSON and safetensors, never pickle; `ranks/evidence.py` reads it.

Unpickling runs code, and evidence comes from processes that ran a stranger's
code. JSON and safetensors can only hold values.
"""

import json
import math
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from utils import private
from utils.atomic_write import written_whole


def write(stem: Path, value: Any) -> None:
    """Write `value` (dicts, lists, numbers, strings, tensors) to `stem`.json and .safetensors.

    The JSON comes last and is moved into place: if it exists, it is complete.
    """
    tensors: dict[str, torch.Tensor] = {}

    def encode(item: Any) -> Any:
        if hasattr(item, "to_local"):  # a DTensor: its local part, and where that part belongs
            return {"dict": {"part": encode(item.to_local()), "first": first_of(item), "shape": list(item.shape)}}
        if isinstance(item, torch.Tensor):
            name = str(len(tensors))
            tensors[name] = item.detach().cpu().contiguous().clone()
            return {"tensor": name}
        if isinstance(item, dict):
            return {"dict": {str(key): encode(part) for key, part in item.items()}}
        if isinstance(item, (list, tuple)):
            return [encode(part) for part in item]
        if item is None or isinstance(item, (bool, int, float, str)):
            return item
        raise TypeError(f"evidence cannot hold a {type(item).__name__}")

    tree = encode(value)
    safetensors.torch.save_file(tensors, f"{stem}.safetensors")
    with written_whole(Path(f"{stem}.json")) as part:
        part.write_text(json.dumps(tree))


def first_of(tensor: Any) -> list[int]:
    """The offset of this rank's part of a DTensor, in each dimension.

    Computed here: torch's own `compute_local_shape_and_global_offset` (2.13) is wrong for some uneven sizes that both
    fully_shard and tensor parallelism cut ("currently, we cannot handle strided sharding if the dp dimension is not
    even", torch/distributed/_state_dict_utils.py). Each dimension is cut as torch.chunk cuts it, a strided one last:
    fully_shard cuts the parts that tensor parallelism made.
    """
    first, size, mesh = [0] * tensor.dim(), list(tensor.shape), tensor.device_mesh
    here = mesh.get_coordinate()  # known without the groups, which a script has destroyed at its end
    cuts = [(axis, placement) for axis, placement in enumerate(tensor.placements) if hasattr(placement, "dim")]
    for axis, placement in sorted(cuts, key=lambda cut: private.is_strided(cut[1])):
        left, length = size[placement.dim], math.ceil(size[placement.dim] / mesh.size(axis))
        begin = min(left, here[axis] * length)
        first[placement.dim] += begin
        size[placement.dim] = min(length, left - begin)
    return first


def decoded(value: dict) -> Any:
    """A rank's inputs, decoded from JSON."""
    if "tensor" in value:
        return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"]))
    return value["value"]
