"""What several files with checks of expert_training use: the mixture on one process, written in another way."""

import math

import torch
from torch import nn

from grader.kit import check_part, expect
from utils.model import MLP, TransformerLM

from .ranks import made_config

WORDS = (97, 101, 103)  # how many there are

# The router computes in float32: of its sums in another order 1e-6 was measured, and 1e-2 and more of a wrong one.
ROUTED = 1e-5


def routed(h, weight, bias, k):
    """Gates, experts and probabilities, token by token."""
    probs = (h.float() @ weight.float().T).softmax(dim=1)
    sums = (probs + bias).tolist()
    numbers = range(len(bias))
    experts = torch.tensor([sorted(numbers, key=lambda e, row=row: (-row[e], e))[:k] for row in sums])
    experts = experts.view(-1, k)
    gates = torch.stack([probs[n, experts[n]] for n in range(len(h))]) if len(h) else probs[:, :k]
    return gates / gates.sum(dim=1, keepdim=True) if k > 1 else gates, experts, probs


def kept(probs, experts, capacity):
    """The rule for the whole batch: each expert keeps its most probable slots."""
    kept = experts.clone()
    room = math.ceil(capacity * experts.numel() / probs.shape[1])
    for number in range(probs.shape[1]):
        slots = (experts == number).nonzero().tolist()
        slots.sort(key=lambda slot: -probs[slot[0], number].item())
        for n, j in slots[room:]:
            kept[n, j] = -1
    return kept


def mixed(h, gates, experts, mlps):
    """Every expert computes every token; gates of 0 hide what was not chosen."""
    out = torch.zeros_like(h)
    for number, mlp in enumerate(mlps):
        weight = (gates * (experts == number)).sum(dim=1, keepdim=True)
        out = out + (weight * mlp(h)).to(h.dtype)
    return out


class WholeMixture(nn.Module):
    """All experts on one process, with the names that a rank's have."""

    def __init__(self, mlp, dim, n_experts, k):
        super().__init__()
        self.k, self.capacity, self.gap = k, 0.0, math.inf
        self.router = nn.Module()
        self.router.weight = nn.Parameter(torch.empty(n_experts, dim))
        self.router.register_buffer("bias", torch.zeros(n_experts))
        self.experts = nn.ModuleDict({str(number): MLP(dim) if number else mlp for number in range(n_experts)})

    def forward(self, x):
        h, n_experts = x.flatten(0, 1), len(self.experts)
        gates, experts, probs = routed(h, self.router.weight, self.router.bias, self.k)
        self.load = torch.bincount(experts.flatten(), minlength=n_experts)
        self.balance = n_experts * (self.load / experts.numel() * probs.mean(dim=0)).sum()
        self.note_gap(probs.detach(), experts)
        if self.capacity and self.training:
            experts = kept(probs, experts, self.capacity)
        return mixed(h, gates, experts, self.experts.values()).view_as(x)

    def note_gap(self, probs, experts):
        """How near each choice was to one that rounding might make instead."""
        ordered = (probs + self.router.bias).sort(dim=1, descending=True).values
        if self.k < len(self.experts):
            self.gap = min(self.gap, (ordered[:, self.k - 1] - ordered[:, self.k]).min().item())
        room = math.ceil(self.capacity * experts.numel() / len(self.experts)) if self.capacity else 0
        for number in range(len(self.experts)):
            slots = probs[(experts == number).any(dim=1), number].sort(descending=True).values
            if room and len(slots) > room:
                self.gap = min(self.gap, (slots[room - 1] - slots[room]).item())


def whole_model(**config):
    """As `make_model` of the script draws it."""
    model = TransformerLM(**{name: size for name, size in config.items() if name not in ("n_experts", "top_k")})
    for block in model.blocks:
        block.mlp = WholeMixture(block.mlp, config["dim"], config["n_experts"], config["top_k"])
        for number, expert in enumerate(block.mlp.experts.values()):
            if number:
                nn.init.normal_(expert.up.weight, std=0.02)
                nn.init.normal_(expert.down.weight, std=0.02 / math.sqrt(2 * len(model.blocks)))
        nn.init.normal_(block.mlp.router.weight, std=0.02)
    return model


def made_whole(sizes):
    return whole_model(**made_config(sizes))


def drawn_sizes(draw, experts, k=2, layers=1):
    sizes = {"vocab": draw.choice(WORDS), "dim": draw.choice((12, 16)), "length": 6, "batch": 4, "layers": layers}
    return sizes | {"experts": experts, "k": k}


def own_names(names, rank, ep, n_experts):
    """Those that are on this rank."""
    each = n_experts // ep
    mine = {str(number) for number in range(rank % ep * each, (rank % ep + 1) * each)}
    return [name for name in names if ".experts." not in name or name.split(".experts.")[1].split(".")[0] in mine]


def check_own(told, ranks, right, ep, n_experts, rel, what="gradient", than="what one process has"):
    """Each rank has its part of the shared tensors, and of its own experts."""
    for rank, seen in enumerate(ranks):
        mine = own_names(right, rank, ep, n_experts)
        strange = sorted(set(seen) - set(mine))
        expect(not strange, f"{told}, rank {rank} has {strange[:1]}, an expert of another rank", mine, strange, rank)
        for name in mine:
            expect(name in seen, f"{told}, {name} has no {what} on rank {rank}", f"a {what}", "none", rank)
            check_part(told, name, seen[name], right[name], rank, rel, what, than)
