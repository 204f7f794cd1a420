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
    from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING as ENCODING

    if kind is not ENCODING or name not in ENCODING.__members__:
        raise pickle.UnpicklingError("it asks builtins.getattr for more than a tensor's memory format")
    return ENCODING[name]


class Values(pickle.Unpickler):
    """Unpickles what describes tensors, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return member
        known = name in NAMES.get(module, ()) or (module == "torch" and type(getattr(torch, name, None)) is torch.dtype)
        if not known:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


def described(folder: Path) -> dict[str, Any]:
    """What a sharded checkpoint's `.metadata` says about its entries: name -> sizes of a tensor, or nothing of them.

    Raises:
        ValueError: the checkpoint holds something other than tensors and plain values.
    """
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata  # here: it takes a second

    try:
        with (folder / ".metadata").open("rb") as file:
            metadata = Values(file).load()
        entries, places = metadata.state_dict_metadata, metadata.storage_data
        for index, place in places.items():
            if Path(place.relative_path).name != place.relative_path:
                raise ValueError("it reads files elsewhere")
            if isinstance(entries[index.fqn], BytesStorageMetadata):
                with (folder / place.relative_path).open("rb") as file:
                    file.seek(place.offset)
                    torch.load(io.BytesIO(file.read(place.length)), weights_only=True)
    except Exception as problem:  # in a file from elsewhere, anything may be wrong
        what = str(problem).strip().splitlines()[:1] or [type(problem).__name__]
        raise ValueError(f"it holds more than tensors and plain values ({what[0][:200]})") from None
    return entries
