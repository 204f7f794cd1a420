"""The language model that every lesson trains: a small GPT, or with `--block llama` one of Llama's blocks.

Shapes are in the names: B sequences, T tokens, D width, H heads, K width of a
head, V words.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils import llama
from utils.data import IGNORE
from utils.loss import head_loss
from utils.products import Linear, scaled_dot_product_attention  # torch's, for processors without bfloat16, too


class Attention(nn.Module):
    """Causal self-attention. Apart, q, k and v each shard by whole heads."""

    def __init__(self, dim: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.head_dim = dim // n_heads
        self.dropout = dropout
        self.q = Linear(dim, dim, bias=False)
        self.k = Linear(dim, dim, bias=False)
        self.v = Linear(dim, dim, bias=False)
        self.out = Linear(dim, dim, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, _ = x_BTD.shape
        # -1 and not n_heads: under tensor parallelism a rank has only some of the heads.
        q_BHTK, k_BHTK, v_BHTK = (
            project(x_BTD).view(B, T, -1, self.head_dim).transpose(1, 2) for project in (self.q, self.k, self.v)
        )
        y_BHTK = self.attend(q_BHTK, k_BHTK, v_BHTK)
        return self.out(y_BHTK.transpose(1, 2).reshape(B, T, -1))

    def attend(self, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
        """Each token's mean of the values up to its own. A lesson may replace this: `attention.attend = ring`."""
        dropout = self.dropout if self.training else 0.0
        return scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, dropout_p=dropout, is_causal=True)


class MLP(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up = Linear(dim, 4 * dim, bias=False)
        self.down = Linear(4 * dim, dim, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x_BTD)))


class Block(nn.Module):
    """Pre-norm: each half reads a normed copy of the stream and adds its result to it."""

    def __init__(self, dim: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, n_heads, dropout)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = MLP(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.dropout(self.attention(self.attention_norm(x_BTD)))
        return x_BTD + self.dropout(self.mlp(self.mlp_norm(x_BTD)))


class TransformerLM(nn.Module):
    """A causal Transformer language model; its first weights depend on torch's seed alone.

    Args:
        vocab_size: V, words to choose from.
        dim: D, width of the stream; n_heads must divide it.
        max_len: tokens in the longest input; positions are learned.
        dropout: applied in training mode to embeddings, attention and each half block.
        kv_heads: 0: the blocks above; else the blocks of `utils/llama.py`, with this many heads of keys and values.

    Raises:
        ValueError: dim is not divisible by n_heads, or n_heads not by kv_heads.
    """

    # It has no buffers, and must not get any: DDP broadcasts them in every forward
    # pass, in evaluation too, and hangs there when ranks have unequal numbers of batches.

    def __init__(
        self,
        vocab_size: int,
        dim: int = 128,
        n_heads: int = 4,
        n_layers: int = 2,
        max_len: int = 256,
        dropout: float = 0.0,
        kv_heads: int = 0,
    ) -> None:
        super().__init__()
        if dim % n_heads:
            raise ValueError(f"dim {dim} is not divisible by {n_heads} heads")
        if kv_heads and n_heads % kv_heads:
            raise ValueError(f"{n_heads} heads are not divisible by {kv_heads} heads of keys and values")
        # Everything that a checkpoint needs to build the model again.
        self.config = {
            "vocab_size": vocab_size,
            "dim": dim,
            "n_heads": n_heads,
            "n_layers": n_layers,
            "max_len": max_len,
            "dropout": dropout,
        } | ({"kv_heads": kv_heads} if kv_heads else {})
        self.max_len = max_len
        self.token_embedding = nn.Embedding(vocab_size, dim)
        self.position_embedding = None if kv_heads else nn.Embedding(max_len, dim)
        self.dropout = nn.Dropout(dropout)
        if kv_heads:
            self.blocks = nn.ModuleList(llama.Block(dim, n_heads, kv_heads, dropout) for _ in range(n_layers))
            self.norm = nn.RMSNorm(dim, eps=llama.EPS)
        else:
            self.blocks = nn.ModuleList(Block(dim, n_heads, dropout) for _ in range(n_layers))
            self.norm = nn.LayerNorm(dim)
        self.head = Linear(dim, vocab_size, bias=False)
        self.head_loss = head_loss  # where ranks split the head's words, a different function replaces it
        self.init_weights()

    def init_weights(self) -> None:
        """GPT-2's: normal, 0.02; less for what adds to the stream, which 2 * n_layers halves do."""
        for name, parameter in self.named_parameters():
            if name.endswith(("attention.out.weight", "mlp.down.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * len(self.blocks)))
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor, y: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """Logits, or with targets the loss.

        Args:
            x: int64 (B, T), T at most max_len.
            y: int64 (B, T), the word that follows each of x's; IGNORE is left out.
            positions: int64 (T,) or (B, T), each word's place in its sequence, below max_len; by default 0, 1, 2, …

        Returns:
            Without y the logits, (B, T, V). With y the mean cross-entropy in nats,
            a float32 scalar; 0 where no target counts.

        Raises:
            ValueError: x is longer than max_len.
        """
        T = x.shape[1]
        if T > self.max_len:
            raise ValueError(f"input of {T} tokens, but the model was built for at most {self.max_len} (max_len)")
        h_BTD = self.token_embedding(x)
        if self.position_embedding is None:
            for block in self.blocks:
                block.attention.positions = positions
        else:
            positions = torch.arange(T, device=x.device) if positions is None else positions
            h_BTD = h_BTD + self.position_embedding(positions)
        h_BTD = self.dropout(h_BTD)
        for block in self.blocks:
            h_BTD = block(h_BTD)
        h_BTD = self.norm(h_BTD)
        return self.head(h_BTD) if y is None else self.head_loss(h_BTD, self.head.weight, y, IGNORE)
