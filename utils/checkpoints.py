"""Read a trained model back; what to know of a sharded checkpoint before it is loaded, and before it can be saved."""

import math
import pickle
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from utils.distributed import fail
from utils.model import TransformerLM


def load_model(path: str | Path, device: str | torch.device = "cpu") -> TransformerLM:
    """Rebuild the model that a training script saved; no process group is needed.

    Args:
        path: a file with {"model": state dict, "config": sizes}.
        device: where the weights go.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is something else, or holds the weights of a wrapped model.
    """
    try:
        # weights_only: a checkpoint from somewhere else must not be able to run code.
        saved = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as problem:
        raise ValueError(f"{path} is not a checkpoint that holds plain tensors only") from problem
    if not isinstance(saved, dict) or not {"model", "config"} <= saved.keys():
        raise ValueError(f'{path} is not a checkpoint of a lesson: it needs the keys "model" and "config"')
    if any(key.startswith("module.") for key in saved["model"]):
        raise ValueError(f'{path} holds the weights of the DDP wrapper ("module. …"): save model.module.state_dict()')
    try:
        model = TransformerLM(**saved["config"]).to(device)
        model.load_state_dict(saved["model"])
    except (TypeError, RuntimeError) as problem:
        raise ValueError(f"the weights in {path} do not fit its config") from problem
    return model


def check_sharded(folder: str | Path, model: nn.Module) -> None:
    """Stop with one line unless `folder` is a sharded checkpoint (torch.distributed.checkpoint) of such a model."""
    import torch.distributed.checkpoint as dcp  # here, for it takes a second, and only this function needs it

    try:
        saved = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    except (OSError, EOFError, pickle.UnpicklingError):
        fail(f"--resume {folder}: no sharded checkpoint; give a folder that --save-every wrote, such as step-100")
    for name, parameter in model.named_parameters():
        name = name.replace("_checkpoint_wrapped_module.", "")  # of a block that is computed again
        found = [entry for key, entry in saved.items() if key.endswith(f".{name}")]
        sizes = [tuple(entry.size) for entry in found if hasattr(entry, "size")]
        if tuple(parameter.shape) not in sizes:
            what = f"is {sizes[0]} there and {tuple(parameter.shape)} here" if sizes else "is not there"
            fail(f"--resume {folder}: it is of another model: {name} {what}")


def check_chunks(own: nn.Module) -> None:
    """Stop with one line, on all ranks, if torch does not know which rows of a table they hold. Every rank calls it.

    Tensor parallelism cuts a table, and fully_shard what is left. For some uneven sizes torch (2.13) takes the parts to
    lie elsewhere: "currently, we cannot handle strided sharding if the dp dimension is not even"
    (torch/distributed/_state_dict_utils.py). Then first weights cannot be handed out, and dcp.save fails hours later.
    """
    from torch.distributed.tensor import DTensor  # here, for they take a second, and only this function needs them
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    lost = None
    for name, p in own.named_parameters():
        if isinstance(p, DTensor):
            told, _ = compute_local_shape_and_global_offset(p.shape, p.device_mesh, p.placements)
            if tuple(told) != tuple(p.to_local().shape):
                cuts = [p.device_mesh.size(axis) for axis, where in enumerate(p.placements) if not where.is_replicate()]
                lost = name, len(p), cuts
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, lost)
    for name, rows, cuts in filter(None, found):
        fail(
            f"the {rows} rows of {name}, cut into {' × '.join(map(str, cuts))} parts, are more than PyTorch keeps "
            f"track of, and could not be saved: take a --tp that divides {rows} (1 always does), at most 2 shards, or "
            f"a vocabulary padded to {rows + -rows % math.prod(cuts)} words"
        )
