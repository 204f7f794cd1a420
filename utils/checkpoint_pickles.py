"""Whether a sharded checkpoint holds values only: torch.distributed.checkpoint unpickles, and a pickle can run code.

It reads `.metadata` with pickle.load, and anything but tensors (a step, a rate) with torch.load(weights_only=False);
see torch/distributed/checkpoint/filesystem.py and default_planner.py (2.13). So both are read here first, by unpicklers
that know a list of harmless names and refuse the rest:
https://docs.python.org/3/library/pickle.html#restricting-globals
"""

import io
import pickle
from pathlib import Path
from typing import Any

import torch

from utils import private

NAMES = {
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "pathlib": {"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"},
    "pathlib._local": {"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"},  # Python 3.13
}


def member(kind: Any, name: Any) -> Any:
    """In place of getattr, by which some versions of Python 3.11 pickle a member of an enumeration: 3.11.2 does, 3.11.7
    does not. Nothing else may be had by it.
    """
    formats = private.memory_formats()
    if kind is not formats or name not in formats.__members__:
        raise MoreThanValues("it asks builtins.getattr for more than a tensor's memory format")
    return formats[name]


class MoreThanValues(pickle.UnpicklingError):
    """A pickle names what is neither a tensor nor a plain value, and could run."""


class Values(pickle.Unpickler):
    """Unpickles what describes tensors, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return member
        known = name in NAMES.get(module, ()) or (module == "torch" and type(getattr(torch, name, None)) is torch.dtype)
        if not known:
            raise MoreThanValues(f"it names {module}.{name}")
        return super().find_class(module, name)


def described(folder: Path) -> dict[str, Any]:
    """What a sharded checkpoint's `.metadata` says about its entries: name -> sizes of a tensor, or nothing of them.

    Raises:
        MoreThanValues: the checkpoint holds something other than tensors and plain values.
        ValueError: it cannot be read, with the reason: it is cut, say, or a newer torch has written it.
    """
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata  # here: it takes a second

    private.read_newer_indices()
    try:
        with (folder / ".metadata").open("rb") as file:
            metadata = Values(file).load()
        entries, places = metadata.state_dict_metadata, metadata.storage_data
        for index, place in places.items():
            if Path(place.relative_path).name != place.relative_path:
                raise MoreThanValues("it reads files elsewhere")
            if isinstance(entries[index.fqn], BytesStorageMetadata):
                with (folder / place.relative_path).open("rb") as file:
                    file.seek(place.offset)
                    check_value(file.read(place.length))
    except MoreThanValues:
        raise
    except Exception as problem:  # in a file from elsewhere, anything may be wrong
        raise ValueError(first_line(problem)) from None
    return entries


def check_value(content: bytes) -> None:
    """Raise MoreThanValues unless a file of torch.save holds tensors and plain values only."""
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except pickle.UnpicklingError as problem:
        raise MoreThanValues(first_line(problem)) from None


def first_line(problem: Exception) -> str:
    return (str(problem).strip().splitlines()[:1] or [type(problem).__name__])[0][:200]
