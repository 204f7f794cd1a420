"""Evidence: what a rank writes for the judge, as JSON and safetensors, never pickle; `ranks/evidence.py` reads it.

Unpickling runs code, and evidence comes from processes that ran a stranger's
code. JSON and safetensors can only hold values.
"""

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from utils.whole import written_whole


def write(stem: Path, value: Any) -> None:
    """Write `value` (dicts, lists, numbers, strings, tensors) to `stem`.json and .safetensors.

    The JSON comes last and is moved into place: where it is, all of it is.
    """
    tensors: dict[str, torch.Tensor] = {}

    def encode(item: Any) -> Any:
        if hasattr(item, "to_local"):  # a DTensor: the part of it that is here, and where it belongs
            from torch.distributed.tensor import _utils  # here: on ranks it is loaded already, and the judge needs none

            _, first = _utils.compute_local_shape_and_global_offset(item.shape, item.device_mesh, item.placements)
            return {"dict": {"part": encode(item.to_local()), "first": list(first), "shape": list(item.shape)}}
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


def decoded(value: dict) -> Any:
    """What a rank was given, from its JSON."""
    if "tensor" in value:
        return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"]))
    return value["value"]
