"""Read a trained model back; and what to know of a sharded checkpoint before it is loaded."""

import pickle
from pathlib import Path

import torch
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
