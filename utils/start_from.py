"""Starts a run from the weights that `./workbook export` has written: `--init FOLDER`.

Each rank reads what it holds: torch.distributed.checkpoint knows safetensors, and which part of a tensor a DTensor has.
torch 2.8 reads each file as a whole for that, later releases the parts alone. The optimizer starts anew.
"""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import nn

from utils.data import DataError, corpus_words
from utils.distributed import fail, from_rank0, is_rank0

# In config.json, and free to differ in the run that starts: these change no weight and no first loss.
FREE = ("dropout",)
FLAGS = {"n_heads": "heads", "n_layers": "layers", "max_len": "seq-len", "n_experts": "experts", "vocab_size": "data"}


def start_from(args: argparse.Namespace, own: nn.Module, config: dict[str, Any]) -> None:
    """Fill a model with the weights in args.init, in place; without --init, do nothing. All ranks call it, before the
    first step.

    Args:
        own: what this rank trains, under the names of the whole model: all of it or some layers, whole or sharded,
            wrapped or not. Its weights are where they stay.
        config: the sizes of the whole model.

    Exits with code 2, and one line, if the folder has no such model, or its words are not this run's.
    """
    if not args.init:
        return
    from torch.distributed.checkpoint import HuggingFaceStorageReader, load  # here: it takes a second
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    folder = Path(args.init)
    if problem := from_rank0(why_not(folder, config, args.data) if is_rank0() else ""):
        fail(f"--init {folder}: {problem}")
    weights = get_model_state_dict(own)  # names without wrappers; the tensors are the model's own
    here = shapes_in(folder)
    wrong = [name for name, weight in weights.items() if here.get(name) != tuple(weight.shape)]
    if wrong := first_of_all(wrong):
        fail(f"--init {folder}: it has no {wrong} of this model's shape; it is not whole")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process needs no process group
        load(weights, storage_reader=HuggingFaceStorageReader(str(folder)))


def why_not(folder: Path, config: dict[str, Any], data: str | None) -> str:
    """Why a run with a model of these sizes, on this text, cannot start from the folder; "" if it can."""
    try:
        there = json.loads((folder / "config.json").read_text("utf-8"))
        sizes = {name: there[name] for name in config if name in there}
        shapes_in(folder)
    except (OSError, ValueError, TypeError, SafetensorError):
        return "./workbook export has not written it, or it is not whole"
    for name, here in config.items():
        free = name in FREE or (name == "max_len" and config.get("kv_heads"))  # llama blocks have no table of places
        if sizes.get(name) != here and not free:
            return f"its {name} is {sizes.get(name, 'not known')}, and here it is {here}: see --{flag_of(name)}"
    if more := [name for name in there if name not in config]:
        return f"its model has {more[0]} {there[more[0]]}, and this one has none: see --{flag_of(more[0])}"
    try:
        words = json.loads((folder / "vocab.json").read_text("utf-8"))
    except FileNotFoundError:
        return ""  # then their number must do
    except (OSError, ValueError):
        return "its vocab.json cannot be read"
    try:
        if words != corpus_words(data):
            return "its words differ from the words of this run's text, although there are as many: see --data"
    except DataError as problem:
        return str(problem)
    return ""


def flag_of(size: str) -> str:
    """The flag that sets one of the model's sizes."""
    return FLAGS.get(size, size).replace("_", "-")


def shapes_in(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor in the folder; reads the files' headers alone."""
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    return found


def first_of_all(wrong: list[str]) -> str:
    """The first name in the ranks' lists, the same on all ranks; "" if they are empty."""
    if not dist.is_initialized():
        return next(iter(wrong), "")
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, wrong[:1])
    return next((name for names in found for name in names), "")
