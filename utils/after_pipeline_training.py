"""What `pipeline_training` teaches, for later scripts.

Shapes: B sequences of a batch, T tokens, D width of the model.
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    _PipelineSchedule,
)

from utils.data import IGNORE
from utils.model import TransformerLM

TAUGHT_IN = "pipeline_training"  # no rank of that lesson can import this


class Layers(nn.Module):
    """The layers of one stage: these blocks, and on the first and last stage what comes before and after all blocks.
    Layers of other stages are None. All weights have the same names as in the whole model.

    The first stage takes tokens, int64 (B, T); the others take the stream, float32 (B, T, D), and all return it.
    The last stage returns it normed; its head is part of the loss. Where a rank has some tokens of each sequence alone,
    `places` says which: int64 (T,), their places in the whole sequence.
    """

    def __init__(self, model: TransformerLM, blocks: range, bfloat16: bool = False) -> None:
        super().__init__()
        self.dropout, self.bfloat16 = model.dropout, bfloat16
        self.places: Tensor | None = None
        first, last = blocks.start == 0, blocks.stop == len(model.blocks)
        self.token_embedding = model.token_embedding if first else None
        self.position_embedding = model.position_embedding if first else None
        self.blocks = nn.ModuleDict({str(i): model.blocks[i] for i in blocks})
        self.norm = model.norm if last else None
        self.head = model.head if last else None

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bfloat16):
            if self.token_embedding is not None:
                positions_T = torch.arange(x.shape[1], device=x.device) if self.places is None else self.places
                x = self.token_embedding(x)
                if self.position_embedding is not None:  # Llama's blocks know their tokens' places
                    x = x + self.position_embedding(positions_T)
                x = self.dropout(x)
            for block in self.blocks.values():
                x = block(x)
            return x if self.norm is None else self.norm(x)


def make_schedule(stages: list[PipelineStage], loss: Callable, args: argparse.Namespace) -> _PipelineSchedule:
    """Which stage works when on which micro-batch. `loss(h, y)` gives what a micro-batch adds to the loss."""
    kinds = {
        "gpipe": ScheduleGPipe,  # all forward passes, then all backward passes
        "1f1b": Schedule1F1B,  # alternating, as soon as possible
        "interleaved": ScheduleInterleaved1F1B,  # the same, with more and smaller stages
        "zero-bubble": ScheduleInterleavedZeroBubble,  # weight gradients are computed where a rank would have waited
    }
    scale_grads = False
    several = args.schedule in ("interleaved", "zero-bubble")  # these two take all stages of a rank
    return kinds[args.schedule](
        stages if several else stages[0], n_microbatches=args.microbatches, loss_fn=loss, scale_grads=scale_grads
    )


def train_batch(stages: list[PipelineStage], schedule: _PipelineSchedule, x: Tensor, y: Tensor) -> Tensor:
    """Forward and backward passes over this pipeline's part of a batch: leaves the gradients of the sum of its losses.

    Returns:
        That sum, without a graph, on the rank with the last stage; 0 on the others.
    """
    losses: list[Tensor] = []
    inputs = (x,) if stages[0].is_first else ()
    schedule.step(*inputs, target=y, losses=losses, return_outputs=False)
    return torch.stack(losses).sum().detach() if losses else torch.zeros((), device=x.device)


def fill(x: Tensor, y: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Pad a short batch to as many rows as the others; the loss ignores padding. x and y: int64 (B, T)."""
    # The stages have agreed on the shape of a micro-batch, and receive into tensors of that shape: a short batch at the
    # end of the validation set would be cut into smaller pieces, or fewer, and a stage would wait forever.
    missing = rows - len(x)
    return torch.cat([x, x.new_zeros(missing, x.shape[1])]), torch.cat([y, y.new_full((missing, y.shape[1]), IGNORE)])
