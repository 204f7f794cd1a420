"""The block of Llama (arXiv:2302.13971, arXiv:2407.21783), for `--block llama`: RMSNorm, rotary positions, grouped
queries and SwiGLU. Its layers have the names of the GPT's block in `utils/model.py`, and are split in the same way.

Shapes are in the names: B sequences, T tokens, D width, H heads, G heads of keys and values, K width of a head.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from utils.llama_sizes import hidden_width
from utils.products import Linear, scaled_dot_product_attention

EPS = 1e-5  # in the norms
BASE = 10_000.0  # of the rotary angles (arXiv:2104.09864, section 3.2.2)


def rotate(x_BHTK: Tensor, positions: Tensor) -> Tensor:
    """Rotary positions (arXiv:2104.09864, equation 34): the numbers i and i + K/2 of a head are the two coordinates of
    a point, which is turned by the angle position · BASE^(-2i/K). So the product of a query and a key depends on how
    far apart they are, not on where. (The paper pairs neighbours; Hugging Face's Llama has this order.)

    Args:
        x_BHTK: queries or keys; K is even.
        positions: int64, (T,) or (B, T): each token's place in its whole sequence, wherever the token is held.
    """
    half = x_BHTK.shape[-1] // 2
    exact = torch.promote_types(x_BHTK.dtype, torch.float32)  # in bfloat16, places above 256 would fall together
    frequencies = BASE ** -(torch.arange(half, dtype=exact, device=x_BHTK.device) / half)
    angles = positions[..., None] * frequencies  # (T, K/2) or (B, T, K/2)
    if positions.dim() == 2:
        angles = angles[:, None]  # for all heads
    cos, sin = angles.cos(), angles.sin()
    a, b = x_BHTK.to(exact).split(half, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x_BHTK.dtype)


class Attention(nn.Module):
    """Causal self-attention in which each head of keys and values serves a group of H / G consecutive heads of queries
    (arXiv:2305.13245).

    Under tensor parallelism q, k and v are split by whole heads. If there are more ranks than heads of keys, a rank has
    a part of a head, and `sharers` are the ranks that have the whole of it together: see `share_key_heads`.
    """

    def __init__(self, dim: int, n_heads: int, kv_heads: int, dropout: float) -> None:
        super().__init__()
        self.head_dim = dim // n_heads
        self.dropout = dropout
        self.q = Linear(dim, dim, bias=False)
        self.k = Linear(dim, kv_heads * self.head_dim, bias=False)
        self.v = Linear(dim, kv_heads * self.head_dim, bias=False)
        self.out = Linear(dim, dim, bias=False)
        self.positions: Tensor | None = None  # of the tokens, (T,) or (B, T); None: 0, 1, 2, …
        self.sharers: dist.ProcessGroup | None = None

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, _ = x_BTD.shape
        q, k, v = self.q(x_BTD), self.k(x_BTD), self.v(x_BTD)
        if self.sharers is not None:
            k, v = KeyHeads.apply(torch.stack([k, v]), self.sharers)
        q_BHTK, k_BGTK, v_BGTK = (part.view(B, T, -1, self.head_dim).transpose(1, 2) for part in (q, k, v))
        places = torch.arange(T, device=x_BTD.device) if self.positions is None else self.positions
        y_BHTK = self.attend(rotate(q_BHTK, places), rotate(k_BGTK, places), v_BGTK)
        return self.out(y_BHTK.transpose(1, 2).reshape(B, T, -1))

    def attend(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor) -> Tensor:
        """As the GPT's, and with fewer heads of keys and values. A lesson may replace it."""
        dropout = self.dropout if self.training else 0.0
        return scaled_dot_product_attention(q_BHTK, k_BGTK, v_BGTK, dropout_p=dropout, is_causal=True)


class KeyHeads(torch.autograd.Function):
    """Keys and values of a whole head from the parts of it that the ranks of a group have: each rank of the group uses
    them for heads of queries of its own, so their gradients are added up over these ranks, and no others.
    """

    @staticmethod
    def forward(ctx, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, part, group=group)
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        parts = [part.contiguous() for part in gradient.chunk(dist.get_world_size(ctx.group), dim=-1)]
        total = torch.empty_like(parts[0])
        dist.reduce_scatter(total, parts, group=ctx.group)
        return total, None


def share_key_heads(blocks: nn.ModuleList | nn.ModuleDict, ranks: dist.ProcessGroup, kv_heads: int) -> None:
    """Let each head of keys and values be whole on all ranks that have heads of its group. In place.

    `ranks` split every layer; all of them must call this. Nothing changes where each rank has heads of keys of its own,
    or the blocks are the GPT's (`kv_heads` is 0).
    """
    world, rank = dist.get_world_size(ranks), dist.get_rank(ranks)
    if not kv_heads or kv_heads % world == 0:
        return
    size = world // kv_heads
    members = dist.get_process_group_ranks(ranks)[rank // size * size :][:size]
    group = dist.new_group(members, use_local_synchronization=True)  # other ranks need not call it
    for block in blocks.children():
        block.attention.sharers = group


class SwiGLU(nn.Module):
    """An MLP with a gate (arXiv:2002.05202). Of each pair of up's rows one makes the gate, one what it lets through: so
    ranks that divide the rows have both, as they have the hidden numbers of a plain MLP.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        hidden = hidden_width(dim)
        self.up = Linear(dim, 2 * hidden, bias=False)
        self.down = Linear(hidden, dim, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate, value = self.up(x_BTD).unflatten(-1, (-1, 2)).unbind(-1)
        return self.down(F.silu(gate) * value)


class Block(nn.Module):
    """Pre-norm, as the GPT's."""

    def __init__(self, dim: int, n_heads: int, kv_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(dim, eps=EPS)
        self.attention = Attention(dim, n_heads, kv_heads, dropout)
        self.mlp_norm = nn.RMSNorm(dim, eps=EPS)
        self.mlp = SwiGLU(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.dropout(self.attention(self.attention_norm(x_BTD)))
        return x_BTD + self.dropout(self.mlp(self.mlp_norm(x_BTD)))
