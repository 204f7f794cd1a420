"""Evidence: what a rank sends to the judge, as JSON and safetensors, never pickle.

Unpickling runs code, and evidence comes from processes that ran a stranger's
code. JSON and safetensors can only hold values.
"""

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from grader.engine.walls.plain import plain_bytes
from utils.whole import written_whole

LARGEST = 20_000_000  # bytes of one rank's evidence: a check needs some kilobytes


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


def read(stem: Path) -> Any:
    """Read what `write` wrote. Raises OSError if there is none, or no plain file of a likely size."""
    tree = json.loads(plain_bytes(Path(f"{stem}.json"), LARGEST))
    tensors = safetensors.torch.load(plain_bytes(Path(f"{stem}.safetensors"), LARGEST))

    def decode(item: Any) -> Any:
        if isinstance(item, list):
            return [decode(part) for part in item]
        if isinstance(item, dict):
            if "tensor" in item:
                return tensors[item["tensor"]]
            return {key: decode(part) for key, part in item["dict"].items()}
        return item

    return decode(tree)


def encoded(value: Any) -> dict:
    """What a rank is given, as JSON."""
    if isinstance(value, torch.Tensor):
        return {"tensor": value.tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
    return {"value": value}


def decoded(value: dict) -> Any:
    if "tensor" in value:
        return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"]))
    return value["value"]


def whole(parts: list[Any]) -> torch.Tensor:
    """A tensor from what each rank left of it: parts of a DTensor, put together, or itself. NaN where no rank has
    anything.
    """
    if isinstance(parts[0], torch.Tensor):
        return parts[0]
    tensor = torch.full(parts[0]["shape"], float("nan"))
    for piece in parts:
        place = tuple(slice(first, first + size) for first, size in zip(piece["first"], piece["part"].shape))
        tensor[place] = piece["part"]
    return tensor
