"""What `expert_training` teaches, for later scripts: a mixture of experts as a block's MLP, dropless, with a bias.

It has no balancing loss: that depends on how a batch is cut into micro-batches, where a count of tokens adds up.

Letters in names are shapes: N tokens of this rank, D width, E experts, K experts for each token, R rows of numbers (one
for each expert that a token is sent to), L blocks.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from utils.after_07_expert_parallel import combine, dispatch
from utils.llama import SwiGLU
from utils.model import MLP, TransformerLM

TAUGHT_IN = "expert_training"  # no rank of that lesson can import this


class Router(nn.Module):
    """Chooses each token's experts. `bias` is added for the choice alone; no gradient reaches it."""

    def __init__(self, dim: int, n_experts: int, k: int) -> None:
        super().__init__()
        self.k = k
        self.weight = nn.Parameter(torch.empty(n_experts, dim))
        self.register_buffer("bias", torch.zeros(n_experts))

    def forward(self, h_ND: Tensor) -> tuple[Tensor, Tensor]:
        """gates_NK: float32; experts_NK: int64, the chosen ones."""
        probs_NE = (h_ND.float() @ self.weight.float().T).softmax(dim=-1)
        experts_NK = (probs_NE + self.bias).argsort(dim=-1, descending=True, stable=True)[:, : self.k]
        gates_NK = probs_NE.gather(1, experts_NK)
        if self.k > 1:
            gates_NK = gates_NK / gates_NK.sum(dim=-1, keepdim=True)
        return gates_NK, experts_NK


class Experts(nn.Module):
    """Experts under their numbers in the whole block: which of them a rank has does not change their names."""

    def __init__(self, first: MLP | SwiGLU, n_experts: int, dim: int) -> None:
        super().__init__()
        for number in range(n_experts):
            self.add_module(str(number), type(first)(dim) if number else first)

    def keep(self, numbers: range) -> None:
        for name, _ in list(self.named_children()):
            if int(name) not in numbers:
                delattr(self, name)

    def forward(self, rows_RD: Tensor, counts: list[int]) -> Tensor:
        """Each expert's results for its rows: the first counts[0] are the first expert's."""
        parts = rows_RD.split(counts)
        return torch.cat([expert(part) for expert, part in zip(self.children(), parts, strict=True)])


class Mixture(nn.Module):
    """Takes the place of a block's MLP. `loads` has, for each forward pass in training, how many of this rank's tokens
    chose each expert, int64 (E,): see `count_tokens`.
    """

    def __init__(self, mlp: MLP | SwiGLU, dim: int, n_experts: int, k: int) -> None:
        super().__init__()
        self.n_experts = n_experts
        self.router = Router(dim, n_experts, k)
        self.experts = Experts(mlp, n_experts, dim)
        self.row: dist.ProcessGroup | None = None  # the ranks that have all experts together
        self.loads: list[Tensor] = []

    def forward(self, x_BTD: Tensor) -> Tensor:
        h_ND = x_BTD.flatten(0, 1)
        gates_NK, experts_NK = self.router(h_ND)
        self.load_E = torch.bincount(experts_NK.flatten(), minlength=self.n_experts)
        rows_RD, counts, way = dispatch(h_ND, experts_NK, self.n_experts, self.row)
        return combine(self.experts(rows_RD, counts), gates_NK, way).view_as(x_BTD)


def make_mixtures(n_experts: int, top_k: int, **plain: Any) -> TransformerLM:
    """The model with all experts, and with expert_training's first weights, which follow from torch's seed alone."""
    model = TransformerLM(**plain)
    model.config |= {"n_experts": n_experts, "top_k": top_k}
    for block in model.blocks:
        block.mlp = Mixture(block.mlp, plain["dim"], n_experts, top_k)
        for number, expert in enumerate(block.mlp.experts.children()):
            if number:  # 0 is the plain model's MLP, and has its weights
                nn.init.normal_(expert.up.weight, std=0.02)
                nn.init.normal_(expert.down.weight, std=0.02 / math.sqrt(2 * len(model.blocks)))
        nn.init.normal_(block.mlp.router.weight, std=0.02)
    return model


def keep_own(mixture: Mixture, mesh: DeviceMesh) -> None:
    """Leave a rank of this axis its own experts, and let tokens travel along it."""
    each = mixture.n_experts // mesh.size()
    first = each * mesh.get_local_rank()
    mixture.row = mesh.get_group()
    mixture.experts.keep(range(first, first + each))


def count_tokens(block: nn.Module) -> None:
    """Note a block's loads in training. To be called after `recompute`: a pass that is computed again counts once."""

    def note(block: nn.Module, inputs: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            block.mlp.loads.append(block.mlp.load_E)

    block.register_forward_hook(note)


def own_loads(own: nn.Module, passes: int) -> Tensor:
    """How many of this rank's tokens chose each expert of each of its blocks in the last `passes` forward passes: int64
    (L, E). Before a pipeline's first micro-batch, torch makes a pass of its own, to know the shapes.
    """
    load_LE = torch.stack([sum(block.mlp.loads[-passes:]) for block in own.blocks.values()])
    for block in own.blocks.values():
        block.mlp.loads.clear()
    return load_LE


def expert_parameters(own: nn.Module) -> list[nn.Parameter]:
    """The parameters of this rank's experts, in all of its blocks."""
    return [p for block in own.blocks.values() for p in block.mlp.experts.parameters()]


def update_biases(own: nn.Module, load_LE: Tensor, rate: float) -> None:
    """After a step: make experts that had too much less likely, and others more (DeepSeek-V3, arXiv:2412.19437, section
    2.1.2). `load_LE` is all ranks'.
    """
    for block, load_E in zip(own.blocks.values(), load_LE.double(), strict=True):
        block.mlp.router.bias += rate * torch.sign(load_E.mean() - load_E)


def take_mixtures(parts: dict[str, Any], mesh: DeviceMesh) -> dict[str, Tensor]:
    """Take experts and biases out of `parts`. Returns all of the model's on rank 0, whole, on the CPU; elsewhere those
    that went there. `mesh` is the experts', with the axes pp, dp, shard, ep and tp.
    """
    first = all(mesh.get_local_rank(axis) == 0 for axis in ("dp", "shard", "tp"))
    whole = {}
    for name in [name for name in parts if ".experts." in name or name.endswith(".router.bias")]:
        part = parts.pop(name)
        weight = part.full_tensor() if isinstance(part, DTensor) else part  # all ranks that have some of it
        if first:
            whole[name] = weight.detach().cpu()
    for axis in ("ep", "pp"):  # to the first rank of a row, and from there to the first stage
        if first:
            to = mesh.get_local_rank(axis) == 0
            others = [None] * mesh[axis].size() if to else None
            dist.gather_object(whole, others, group=mesh.get_group(axis), group_dst=0)
            for weights in others or []:
                whole |= weights
            first = to
    return whole
