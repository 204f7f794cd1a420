"""What `context_training` teaches, for later scripts: which tokens of a sequence a rank has, and how they attend.

Letters in names are shapes: B sequences, T tokens, C of them on a rank, H heads, K numbers per head.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from utils.after_06_context_parallel import in_zigzag, places_in_zigzag, ring_attention, ulysses

TAUGHT_IN = "context_training"  # no rank of that lesson can import this


def places_of(rank: int, ranks: int, tokens: int, method: str) -> Tensor:
    """The places of a rank's tokens in a sequence of `tokens` tokens, int64 (C,), in the order of its memory."""
    if method == "ring" and ranks > 1:
        return places_in_zigzag(rank, ranks, tokens)
    return torch.arange(tokens).chunk(ranks)[rank]


class ContextAttention:
    """Causal attention over the tokens of all ranks of a group: takes the place of `attend` in a block's attention."""

    def __init__(self, group: dist.ProcessGroup, method: str) -> None:
        self.group, self.method = group, method

    def __call__(self, q_BHCK: Tensor, k_BHCK: Tensor, v_BHCK: Tensor) -> Tensor:
        """The output of this rank's queries, (B, H, C, K), from the keys and values of all ranks of the group."""
        if self.method == "ulysses":
            return ulysses(q_BHCK, k_BHCK, v_BHCK, self.group)
        rank, ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        blocks = in_zigzag(rank, ranks, q_BHCK.shape[2] * ranks)
        return ring_attention(q_BHCK, k_BHCK, v_BHCK, blocks, self.group)
