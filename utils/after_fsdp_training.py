"""What `fsdp_training` teaches, for later scripts.

Nothing here knows over which axes of a mesh a model is sharded: DTensors know it themselves.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils.data import DataLoader

from utils.data import IGNORE
from utils.model import TransformerLM
from utils.start_from import start_from

TAUGHT_IN = "fsdp_training"  # no rank of that lesson can import this


def recompute(model: nn.Module) -> None:
    """Activation checkpointing (arXiv:1604.06174): keep only each block's input, and run the block twice.

    The blocks are a list, as in the model, or a dictionary, as in a pipeline stage.
    """
    for name, block in list(model.blocks.named_children()):
        model.blocks.register_module(name, checkpoint_wrapper(block))


def precision(args: argparse.Namespace) -> MixedPrecisionPolicy:
    """With --dtype bfloat16 weights are gathered in bfloat16; gradients are summed, and shards kept, in float32."""
    if args.dtype == "bfloat16":
        return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return MixedPrecisionPolicy()


def first_weights(model: nn.Module, device: torch.device, args: argparse.Namespace) -> None:
    """Allocate the shards of a model on "meta", and fill them with the serial run's first weights."""
    model.to_empty(device=device)
    send_first_weights(model, model.config, args)


def send_first_weights(
    own: nn.Module,
    config: dict[str, Any],
    args: argparse.Namespace,
    strict: bool = True,
    make: Callable[..., nn.Module] = TransformerLM,
) -> None:
    """Rank 0 alone makes the serial run's model, on the CPU, and broadcasts it tensor by tensor. Each rank keeps its
    part of the tensors that its model has; with `strict` false, its model need not have all. With --init, each rank
    reads its part from a file.
    """
    if args.init:
        start_from(args, own, config)
        return
    torch.manual_seed(args.seed)
    full = make(**config).state_dict() if dist.get_rank() == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=strict)
    set_model_state_dict(own, full, options=options)


def in_step(loader: DataLoader, device: torch.device, args: argparse.Namespace) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's batches, followed by batches without targets until the rank with the most batches is done."""
    most = torch.tensor(len(loader), device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    yield from loader
    nothing = torch.zeros(1, args.seq_len, dtype=torch.int64)
    for _ in range(int(most) - len(loader)):
        yield nothing, torch.full_like(nothing, IGNORE)


def save_sharded(model: nn.Module, optimizer: torch.optim.Optimizer, position: dict[str, Any], folder: Path) -> None:
    """Everything that a resumed run needs: each rank writes its shards, and any number of ranks can load them."""
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state, "position": position}, checkpoint_id=folder)


def load_sharded(
    model: nn.Module, optimizer: torch.optim.Optimizer, position: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """Load what save_sharded wrote, on however many ranks, into model and optimizer. Returns the position."""
    weights, state = get_state_dict(model, optimizer)
    saved = {"model": weights, "optimizer": state, "position": position}
    dcp.load(saved, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    return saved["position"]
