"""What `tp_training` teaches, for later scripts.

A plan maps the name of a module, with "*" for the number of any block, to the way the ranks of a tensor axis split it.
"""

import argparse

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, PrepareModuleInput, RowwiseParallel
from torch.distributed.tensor.placement_types import Placement

from utils.after_04_tensor_parallel import vocab_parallel_head_loss

TAUGHT_IN = "tp_training"  # no rank of that lesson can import this

Plan = dict[str, ParallelStyle]


def stream_layout(args: argparse.Namespace) -> Placement:
    """The layout of the stream, (B, T, D), on the ranks that split each layer: split along T, or replicated."""
    return Shard(1) if args.sequence_parallel else Replicate()


def plan_of(layout: Placement) -> Plan:
    """The plan for a model's layers, with a stream that has `layout`. The norms are left plain."""
    blocks = {f"blocks.*.{name}": style for name, style in block_plan(layout).items()}
    return blocks | ends_plan(layout) | position_plan(layout)


def block_plan(layout: Placement) -> Plan:
    """q, k, v and up are split by columns, out and down by rows; both halves take their input as one tensor."""
    enter = PrepareModuleInput(input_layouts=layout, desired_input_layouts=Replicate())
    return {
        "attention": enter,
        "attention.q": ColwiseParallel(),
        "attention.k": ColwiseParallel(),
        "attention.v": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=layout),
        "mlp": enter,
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=layout),
    }


def ends_plan(layout: Placement) -> Plan:
    """Each rank has the rows of some words, in both tables."""
    return {
        "token_embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=layout),
        "head": ColwiseParallel(input_layouts=layout, output_layouts=Replicate()),
    }


def position_plan(layout: Placement) -> Plan:
    """Each rank has the positions of its part of the stream, if that is split along T."""
    if layout == Shard(1):
        return {"position_embedding": ColwiseParallel(output_layouts=Shard(0))}
    return {}


def shared_head_loss(h: DTensor, weight: DTensor, y: Tensor, ignore: int) -> Tensor:
    """Like utils.loss.head_loss, but ranks split the head's words: h, (B, T, D), may be split along T."""
    group = weight.device_mesh.get_group()
    return vocab_parallel_head_loss(h.full_tensor(), weight.to_local(), y, ignore, group, weight.shape[0])
