"""Read a trained model back."""

import pickle
from pathlib import Path

import torch

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
