"""A model that ranks split, made alike on each of them and in one process, and what each rank has of it."""

import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from grader.kit.on_rank import plain_name
from utils.data import IGNORE
from utils.model import TransformerLM


def drawn_model(seed: int, sizes: dict[str, int]) -> TransformerLM:
    """In float64, where rounding hides nothing."""
    torch.manual_seed(seed)
    model = TransformerLM(sizes["vocab"], sizes["dim"], sizes["heads"], sizes["layers"], sizes["length"]).double()
    with torch.no_grad():
        for p in model.parameters():  # at the first weights, attention and the norms hardly matter
            p += 0.2 * torch.randn_like(p)
    return model


def drawn_batch(seed: int, sizes: dict[str, int], rows: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """x and y, (rows, length) each; some targets do not count, and not equally many in each batch."""
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.randint(sizes["vocab"], (2, rows or sizes["batch"], sizes["length"]), generator=draw)
    y[0, : 1 + seed % 2] = IGNORE
    return x, y


def parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {plain_name(name): p for name, p in model.named_parameters()}


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """By name. What DTensor has still to add up over the ranks, as it does before anyone uses it, is added up here."""
    found = {}
    for name, p in parameters(model).items():
        if p.grad is not None:
            partial = hasattr(p.grad, "placements") and any(placement.is_partial() for placement in p.grad.placements)
            found[name] = p.grad.redistribute(placements=p.placements) if partial else p.grad
    return found


def grids_on_rank(code: Any, rank: int, world: int, flags: list[list[str]]) -> list[dict[str, Any]]:
    """The axes and ranks of what make_mesh() returns, with each of these flags."""
    meshes = []
    for some in flags:
        mesh = code.make_mesh(torch.device("cpu"), world, code.parse_args(some))
        if not hasattr(mesh, "mesh"):
            return [{"type": type(mesh).__name__}]
        meshes.append({"names": list(mesh.mesh_dim_names or ()), "ranks": mesh.mesh.tolist()})
    return meshes


def dealt(samplers: Any) -> dict[str, Any]:
    """What the three samplers that make_samplers() returned read: of training samples, two epochs."""
    listed = isinstance(samplers, (tuple, list)) and len(samplers) == 3
    if not listed or any(not hasattr(sampler, "__iter__") for sampler in samplers):
        return {"type": type(samplers).__name__}
    train, validation, test = samplers
    epochs = []
    for number in (0, 1):
        train.set_epoch(number)
        epochs.append(list(map(int, train)))
    return {"train": epochs, "validation": list(map(int, validation)), "test": list(map(int, test))}


def attempt(step: Callable[[], Any]) -> Any:
    """What `step` returns; or, where torch refuses what was made of a model, its reason. A crash in the student's lines
    stays one.
    """
    try:
        return step()
    except Exception as error:
        if any(frame.filename.startswith("train/") for frame in traceback.extract_tb(error.__traceback__)):
            raise
        return {"refused": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"[:300]}
