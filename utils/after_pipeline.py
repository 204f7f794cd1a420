"""What `pipeline_training` has taught, for the scripts that come after it.

Shapes: B sequences of a micro-batch, T tokens, D width of the model.
"""

import argparse
import math
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    _PipelineSchedule,
)

from utils.data import IGNORE
from utils.loss import head_loss
from utils.model import TransformerLM
from utils.pipeline import stages_a_rank

TAUGHT_IN = "pipeline_training"  # no rank of that lesson can import this


class Layers(nn.Module):
    """The layers of a model that one stage has. Those that are elsewhere are None.

    The first stage takes tokens, int64 (B, T); the others take the stream, float32 (B, T, D), and all return it.
    The last one returns it normed: its head belongs to the loss.
    """

    def __init__(self, model: TransformerLM, stage: int, n_stages: int, bfloat16: bool = False) -> None:
        super().__init__()
        self.dropout, self.bfloat16 = model.dropout, bfloat16
        first, last = stage == 0, stage == n_stages - 1
        begin, end = (math.ceil(k * len(model.blocks) / n_stages) for k in (stage, stage + 1))
        self.token_embedding = model.token_embedding if first else None
        self.position_embedding = model.position_embedding if first else None
        self.blocks = nn.ModuleDict({str(i): model.blocks[i] for i in range(begin, end)})
        self.norm = model.norm if last else None
        self.head = model.head if last else None

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bfloat16):
            if self.token_embedding is not None:
                positions_T = torch.arange(x.shape[1], device=x.device)
                x = self.dropout(self.token_embedding(x) + self.position_embedding(positions_T))
            for block in self.blocks.values():
                x = block(x)
            return x if self.norm is None else self.norm(x)


def make_stages(
    model: TransformerLM, mesh: DeviceMesh, device: torch.device, args: argparse.Namespace
) -> list[PipelineStage]:
    """This rank's stages, in their order; each holds its Layers. There is memory for the weights, and nothing in it."""
    bfloat16 = args.dtype == "bfloat16"
    p, r = mesh["pp"].size(), mesh["pp"].get_local_rank()
    n_stages = p * stages_a_rank(p, args)
    stages = []
    for stage in range(r, n_stages, p):
        layers = Layers(model, stage, n_stages, bfloat16).to_empty(device=device)
        stages.append(PipelineStage(layers, stage, n_stages, device, group=mesh["pp"].get_group()))
    return stages


def weights(stages: list[PipelineStage]) -> dict[str, nn.Parameter]:
    """All that this rank trains, by the names in the whole model."""
    return {name: weight for stage in stages for name, weight in stage.submod.named_parameters()}


@torch.no_grad()
def first_weights(stages: list[PipelineStage], model: TransformerLM, args: argparse.Namespace) -> None:
    """Fill the stages with what one process would start from. `model` has names and shapes."""
    own = weights(stages)
    torch.manual_seed(args.seed)
    whole_model = TransformerLM(**model.config) if dist.get_rank() == 0 else model
    for name, weight in whole_model.named_parameters():
        sent = torch.empty(weight.shape, device=stages[0].device)
        if dist.get_rank() == 0:
            sent.copy_(weight)
        dist.broadcast(sent, 0)
        if name in own:
            own[name].copy_(sent)


def loss_of(layers: Layers, h: Tensor, y: Tensor) -> Tensor:
    """What the last stage makes of its output h, (b, T, D), and the targets y, (b, T), of one micro-batch: a scalar."""
    with torch.autocast(h.device.type, torch.bfloat16, enabled=layers.bfloat16):
        return head_loss(h, layers.head.weight, y, IGNORE) * (y != IGNORE).sum()


def make_schedule(stages: list[PipelineStage], loss: Callable, args: argparse.Namespace) -> _PipelineSchedule:
    """Who works when on which micro-batch. `loss(h, y)` gives the sum of a micro-batch's losses."""
    how = {"n_microbatches": args.microbatches, "loss_fn": loss, "scale_grads": False}
    if args.schedule == "gpipe":
        return ScheduleGPipe(stages[0], **how)
    if args.schedule == "1f1b":
        return Schedule1F1B(stages[0], **how)
    if args.schedule == "interleaved":
        return ScheduleInterleaved1F1B(stages, **how)
    return ScheduleInterleavedZeroBubble(stages, **how)


def train_batch(stages: list[PipelineStage], schedule: _PipelineSchedule, x: Tensor, y: Tensor) -> Tensor:
    """Forward and backward passes of this pipeline's share of a batch: leaves the gradients of the sum of its losses.

    Returns:
        That sum, without a graph, on the rank that has the last stage; on the others 0.
    """
    losses: list[Tensor] = []
    schedule.step(x, target=y, losses=losses, return_outputs=False)
    return torch.stack(losses).sum().detach() if losses else torch.zeros((), device=x.device)


def fill(x: Tensor, y: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """A short batch with as many rows as the others, of which the new ones count nothing. x and y: int64 (b, T)."""
    missing = rows - len(x)
    return torch.cat([x, x.new_zeros(missing, x.shape[1])]), torch.cat([y, y.new_full((missing, y.shape[1]), IGNORE)])
