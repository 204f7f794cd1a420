"""Reads evidence as plain values, since it may be forged; `inside/evidence.py` describes the files."""

import json
import math
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from grader.engine.walls.sanitize import plain_bytes

# Bytes of one rank's evidence: a check needs a megabyte of tensors and some kilobytes of JSON, which may take fifty
# times as much in memory.
LARGEST_TREE, LARGEST = 1_000_000, 20_000_000


def read(stem: Path) -> Any:
    """Read a rank's evidence. Raises OSError if there is none, or if it is not a plain file of plausible size."""
    tree = json.loads(plain_bytes(Path(f"{stem}.json"), LARGEST_TREE))
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
    """A rank's inputs, as JSON."""
    if isinstance(value, torch.Tensor):
        return {"tensor": value.tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
    return {"value": value}


def whole(parts: list[Any]) -> torch.Tensor:
    """A tensor from the parts that ranks left: the joined parts of a DTensor, or the tensor itself. NaN where no rank
    has a part.
    """
    if isinstance(parts[0], torch.Tensor):
        return parts[0]
    if math.prod(parts[0]["shape"]) * 4 > 4 * LARGEST:  # more than so many bytes can fill
        raise ValueError(f"parts of a tensor of {parts[0]['shape']}")
    tensor = torch.full(parts[0]["shape"], float("nan"))
    for piece in parts:
        place = tuple(slice(first, first + size) for first, size in zip(piece["first"], piece["part"].shape))
        tensor[place] = piece["part"]
    return tensor
