"""Reads a trained model back; writes sharded checkpoints, each complete or absent, and each with the name of its run.

A sharded checkpoint is a folder written by torch.distributed.checkpoint: a part for each rank, and an index. To these,
`saved_whole` adds `checkpoint.json`: the run, the torch that wrote it, and every file's size. Each part ends with the
checkpoint's own name, after the last tensor, where nothing is read: this distinguishes it from another run's part with
the same name and size.
"""

import argparse
import json
import math
import os
import pickle
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn

from utils import checkpoint_pickles, private, releases, run_folder
from utils.distributed import fail, from_rank0, is_rank0, print0
from utils.model import TransformerLM

CONTENTS = "checkpoint.json"


def load_model(path: str | Path, device: str | torch.device = "cpu") -> TransformerLM:
    """Rebuild the model that a training script saved; no process group is needed.

    Args:
        path: a file with {"model": state dict, "config": sizes}.
        device: where the weights go.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is something else, or contains the weights of a wrapped model.
    """
    saved = load_whole(path, device)
    if "n_experts" in saved["config"]:
        raise ValueError(f"{path} is a mixture of experts, which make_model in train/expert_training.py builds")
    try:
        model = TransformerLM(**saved["config"]).to(device)
        model.load_state_dict(saved["model"])
    except (TypeError, RuntimeError) as problem:
        raise ValueError(f"the weights in {path} do not fit its config") from problem
    return model


def load_whole(path: str | Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    """What a script has saved in one file: "model", a plain model's weights by name; "config", its sizes; "epoch".

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is something else, or contains the weights of a wrapped model.
    """
    try:
        # weights_only: a checkpoint of unknown origin must not be able to run code.
        saved = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise
    except (OSError, EOFError, RuntimeError, IndexError, pickle.UnpicklingError) as problem:  # "text": IndexError
        raise ValueError(f"{path} is not a checkpoint that holds plain tensors only") from problem
    if not isinstance(saved, dict) or not {"model", "config"} <= saved.keys():
        raise ValueError(f'{path} is not a checkpoint of a lesson: it needs the keys "model" and "config"')
    if any(key.startswith("module.") for key in saved["model"]):
        raise ValueError(f'{path} holds the weights of the DDP wrapper ("module. …"): save model.module.state_dict()')
    return saved


# Sharded: written


@contextmanager
def saved_whole(out: Path, step: int) -> Iterator[Path]:
    """A folder in which all ranks save. When they are done, it becomes `out/step-STEP` in one atomic move.

    A save that fails or is killed before that leaves a folder with a hidden name, which the next save removes. On
    SIGTERM, as at a job's time limit, a line says from where to resume.
    """
    name = from_rank0(uuid.uuid4().hex)
    folder = out / f".step-{step}.{name}.part"
    if is_rank0():
        for left in out.glob(".step-*.part"):  # the run has the folder for itself, so no process writes them any more
            shutil.rmtree(left, ignore_errors=True)
    before = signal.getsignal(signal.SIGTERM)
    heeds = threading.current_thread() is threading.main_thread()
    try:
        if heeds:
            signal.signal(signal.SIGTERM, lambda *_: interrupted(out, step))
        yield folder
        if is_rank0() and (folder / ".metadata").is_file():  # the ranks write this last, when each has its part
            seal(folder, step, name)
            move(folder, out / f"step-{step}")
    finally:
        if heeds:
            signal.signal(signal.SIGTERM, before)
        if is_rank0():
            shutil.rmtree(folder, ignore_errors=True)


def interrupted(out: Path, step: int) -> NoReturn:
    whole = newest(out)
    print0(
        f"ended by SIGTERM while step-{step} was being saved, which leaves nothing; "
        + (f"--resume {out} resumes from {whole.name}" if whole else "no checkpoint had been saved before"),
        flush=True,
    )
    raise SystemExit(128 + signal.SIGTERM)


def seal(folder: Path, step: int, name: str) -> None:
    """Write the checkpoint's name into all parts, and the list of all files, and flush them to disk."""
    for part in folder.glob("*.distcp"):
        with part.open("ab") as file:
            file.write(name.encode())
            file.flush()
            os.fsync(file.fileno())
    contents = {
        "checkpoint": name,
        "step": step,
        "saved": time.time(),
        "run": run_folder.identity(folder.parent),
        "torch": torch.__version__,
        "files": {path.name: path.stat().st_size for path in folder.iterdir()},
    }
    with (folder / CONTENTS).open("w", encoding="utf-8") as file:
        json.dump(contents, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def move(folder: Path, to: Path) -> None:
    """Move a checkpoint to its name atomically. If an earlier run's checkpoint has that name, in two steps, so that one
    of them is always complete.
    """
    if to.exists():
        old = folder.with_suffix(".old.part")
        to.replace(old)
        folder.replace(to)
        shutil.rmtree(old, ignore_errors=True)
    else:
        folder.replace(to)


# Sharded: found and checked


def newest(out: Path) -> Path | None:
    """The newest complete checkpoint in a run's folder."""
    found = [folder for folder in out.glob("step-*") if not why_not(folder)]
    return max(found, key=lambda folder: contents_of(folder)["saved"], default=None)


def contents_of(folder: Path) -> dict[str, Any]:
    """The contents of checkpoint.json; empty if there are none."""
    try:
        found = json.loads((folder / CONTENTS).read_text("utf-8"))
        return found if {"checkpoint", "saved", "run", "files"} <= found.keys() else {}
    except (OSError, ValueError, AttributeError):
        return {}


def why_not(folder: Path) -> str:
    """What is wrong with a sharded checkpoint; empty if it is complete and all parts are from one save."""
    contents = contents_of(folder)
    if not contents:
        return f"no sharded checkpoint, for it has no {CONTENTS}; the scripts write them, such as step-100"
    name = contents["checkpoint"].encode()
    for file, size in contents["files"].items():
        path = folder / file
        if not path.is_file():
            return f"it is not whole: {file} is missing"
        if path.suffix == ".distcp" and not ends_with(path, name):
            return f"its part {file} is of another checkpoint, or cut"
        if path.stat().st_size != size:
            return f"{file} has {path.stat().st_size:,} bytes, and had {size:,}"
    return ""


def ends_with(path: Path, name: bytes) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(name)))
        return file.read() == name


def to_resume(args: argparse.Namespace, model: nn.Module) -> str:
    """The checkpoint that --resume names: the folder itself, or the newest complete one in the folder of a run.

    Stops with one line unless it is complete, and fits this model and optimizer.
    """
    given = folder = Path(args.resume)
    if not (given / CONTENTS).is_file() and not (given / ".metadata").is_file() and (found := newest(given)):
        folder = found
        broken = [f"{path.name} is not whole" for path in sorted(given.glob("step-*")) if why_not(path)]
        broken += [f"{path.name.split('.')[1]} was not saved to its end" for path in given.glob(".step-*.part")]
        print0("; ".join([*broken, f"resumes from {folder}"]))
    if problem := why_not(folder):
        fail(f"--resume {given}: {problem}")
    check_fits(folder, model, args.optimizer)
    return str(folder)


def check_fits(folder: Path, model: nn.Module, optimizer: str) -> None:
    """Stop with one line unless `folder` is a sharded checkpoint that fits this model and this optimizer."""
    try:
        saved = checkpoint_pickles.described(folder)
    except checkpoint_pickles.MoreThanValues as problem:
        fail(f"--resume {folder}: it holds more than tensors and plain values ({problem})")
    except ValueError as problem:
        writer, here = contents_of(folder).get("torch"), torch.__version__
        fail(
            f"--resume {folder}: "
            + (f"torch {writer} wrote it, and torch {here}, which runs here," if writer else f"torch {here}")
            + f" cannot read it ({problem})"
        )
    for name, parameter in model.named_parameters():
        name = name.replace("_checkpoint_wrapped_module.", "")  # prefix of a block that is recomputed
        found = [entry for key, entry in saved.items() if key.endswith(f".{name}")]
        sizes = [tuple(entry.size) for entry in found if hasattr(entry, "size")]
        if tuple(parameter.shape) not in sizes:
            what = f"is {sizes[0]} there and {tuple(parameter.shape)} here" if sizes else "is not there"
            fail(f"--resume {folder}: it is of another model: {name} {what}")
    has = {key.rpartition(".")[2] for key in saved}
    there = "muon" if "momentum_buffer" in has else "adamw" if "exp_avg" in has else "sgd"  # Muon has AdamW's, too
    if there != optimizer:
        fail(f"--resume {folder}: it was saved with --optimizer {there}")


def check_chunks(own: nn.Module) -> None:
    """Stop with one line, on all ranks, if torch does not know which rows of a table they hold. Every rank calls it.

    Tensor parallelism cuts a table, and fully_shard cuts the parts again. For some uneven sizes torch (2.15) computes
    wrong offsets: "currently, we cannot handle strided sharding if the dp dimension is not even"
    (torch/distributed/_state_dict_utils.py). Then first weights cannot be distributed, and dcp.save fails hours later.
    And before 2.10, where such parts are uneven, `full_tensor` returns other numbers, without a word.
    """
    from torch.distributed.tensor import DTensor  # imported here: it takes a second, and only this function needs it

    lost, uneven = None, ""
    for name, p in own.named_parameters():
        if isinstance(p, DTensor):
            cuts = [p.device_mesh.size(axis) for axis, where in enumerate(p.placements) if not where.is_replicate()]
            if private.told_shape(p) != tuple(p.to_local().shape):
                lost = name, len(p), cuts
            elif any(map(private.is_strided, p.placements)) and min(cuts) > 1 and len(p) % math.prod(cuts):
                uneven = uneven or f"the {len(p)} rows of {name}, cut into {' × '.join(map(str, cuts))} parts"
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, lost)
    for name, rows, cuts in filter(None, found):
        fail(
            f"the {rows} rows of {name}, cut into {' × '.join(map(str, cuts))} parts, are more than PyTorch keeps "
            f"track of, and could not be saved: take a --tp that divides {rows} (1 always does), at most 2 shards, or "
            f"a vocabulary padded to {rows + -rows % math.prod(cuts)} words"
        )
    if uneven and (lacking := releases.lacks(*releases.CUT_TWICE_SINCE)):  # on all ranks alike, if none has ended above
        fail(f"{uneven}: {lacking}; or take --tp 1, or as many as there are ranks")


def joined(parts: list[nn.Module]) -> nn.Module:
    """One module with everything that this rank trains, under the names of the whole model. It uses the same weights,
    and is never run: it is for the optimizer and for checkpoints.
    """
    own = nn.Module()
    own.blocks = nn.ModuleDict()
    for part in parts:
        own.blocks.update(part.blocks)
        for name, child in part.named_children():
            if name != "blocks":
                own.add_module(name, child)
    return own
