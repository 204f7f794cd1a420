"""What `06_context_parallel` teaches, for later scripts: attention over the ranks of a group, in a ring and by Ulysses.

A sequence of T tokens is on N ranks, C = T / N tokens each. Letters in names are shapes, as in the model: B sequences,
H heads, C queries or keys of a rank, K numbers per head.
"""

import math
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from utils.products import scaled_dot_product_attention, with_heads_of

TAUGHT_IN = "06_context_parallel"  # no rank of that lesson can import this

# Rows of queries, columns of keys, and which query sees which key: (rows, columns), or (B, 1, rows, columns) where the
# sequences of a batch differ; None where all keys are seen.
Block = tuple[slice, slice, Tensor | None]


def places_in_zigzag(rank: int, world: int, tokens: int) -> Tensor:
    """The places in the sequence of a rank's tokens, int64 (tokens / world,): two of 2 * world pieces, an early one and
    a late one, so that under a causal mask all ranks have the same work (arXiv:2407.21783, section 3.3.2).
    """
    pieces = torch.arange(tokens).view(2 * world, -1)
    return torch.cat([pieces[rank], pieces[2 * world - 1 - rank]])


def in_zigzag(rank: int, world: int, tokens: int) -> Callable[[int], list[Block]]:
    """For the ring: what a rank's queries see of another rank's keys, if `tokens` tokens are distributed in zig-zag.
    No block is hidden as a whole.
    """
    size = tokens // (2 * world)
    halves = slice(0, size), slice(size, 2 * size)

    def blocks(source: int) -> list[Block]:
        found: list[Block] = []
        for rows, mine in zip(halves, (rank, 2 * world - 1 - rank)):
            for columns, theirs in zip(halves, (source, 2 * world - 1 - source)):
                if theirs <= mine:
                    diagonal = torch.ones(size, size, dtype=torch.bool).tril() if theirs == mine else None
                    found.append((rows, columns, diagonal))
        return found

    return blocks


TILE = 128  # queries whose scores are in memory at a time


def tiles(blocks: list[Block], queries: int) -> Iterator[Block]:
    """The same blocks, cut so that none has more than TILE rows: a rank's scores would outweigh all else it keeps."""
    for rows, columns, mask in blocks:
        first, after, _ = rows.indices(queries)
        for start in range(first, after, TILE):
            end = min(start + TILE, after)
            yield slice(start, end), columns, None if mask is None else mask[..., start - first : end - first, :]


def scores(q_BHCK: Tensor, k_BHCK: Tensor, mask: Tensor | None) -> Tensor:
    """The score of each query with each key, in float32 or better; minus infinity where a key is hidden."""
    exact = torch.promote_types(q_BHCK.dtype, torch.float32)  # of bfloat16 a softmax would keep two digits
    scores_BHCC = (q_BHCK @ k_BHCK.transpose(-2, -1)).to(exact) / math.sqrt(q_BHCK.shape[-1])
    return scores_BHCC if mask is None else scores_BHCC.masked_fill(~mask.to(q_BHCK.device), -math.inf)


def finite(lse: Tensor) -> Tensor:
    """The same, but never minus infinity, so that minus infinity minus this is still minus infinity."""
    return lse.clamp(min=torch.finfo(lse.dtype).min)


def start_to_pass_on(tensors: list[Tensor], group: dist.ProcessGroup) -> tuple[list[Tensor], list[dist.Work]]:
    """Start to send tensors to the next rank of the group, and to receive as many from the one before."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    after, before = (dist.get_global_rank(group, (rank + step) % world) for step in (1, -1))
    leaving = [tensor.contiguous() for tensor in tensors]
    arriving = [torch.empty_like(tensor) for tensor in leaving]
    # In one batch: NCCL runs the messages of a stream one after the other, and all ranks would begin with a send.
    sends = [dist.P2POp(dist.isend, tensor, after, group) for tensor in leaving]
    receives = [dist.P2POp(dist.irecv, tensor, before, group) for tensor in arriving]
    return arriving, dist.batch_isend_irecv(sends + receives)


def finish(works: list[dist.Work]) -> None:
    for work in works:
        work.wait()


def sum_of_groups(gradient_BHCK: Tensor, k: Tensor) -> Tensor:
    """The gradient of keys or values like k from those of their copies, one for each head of queries: the sum over each
    group of heads. The backward pass of `with_heads_of`.
    """
    H, G = gradient_BHCK.shape[1], k.shape[1]
    return gradient_BHCK if H == G else gradient_BHCK.unflatten(1, (G, H // G)).sum(dim=2)


class RingAttention(torch.autograd.Function):
    """Queries stay, keys and values rotate (arXiv:2310.01889). The softmax is computed block by block, and in the
    backward pass once more (arXiv:2205.14135): what is saved does not grow with the number of ranks.
    """

    @staticmethod
    def forward(
        ctx,
        q_BHCK: Tensor,
        k_BHCK: Tensor,
        v_BHCK: Tensor,
        blocks: Callable[[int], list[Block]],
        group: dist.ProcessGroup,
    ) -> Tensor:
        rank, world = dist.get_rank(group), dist.get_world_size(group)
        exact = torch.promote_types(q_BHCK.dtype, torch.float32)
        out_BHCK = torch.zeros_like(q_BHCK, dtype=exact)
        lse_BHC = out_BHCK.new_full(q_BHCK.shape[:-1], -math.inf)
        k, v = k_BHCK, v_BHCK
        for step in range(world):
            arriving, works = start_to_pass_on([k, v], group) if step < world - 1 else ([], [])
            for rows, columns, mask in tiles(blocks((rank - step) % world), q_BHCK.shape[2]):
                scores_BHCC = scores(q_BHCK[:, :, rows], with_heads_of(q_BHCK, k[:, :, columns]), mask)
                new_BHC = torch.logaddexp(lse_BHC[:, :, rows], scores_BHCC.logsumexp(dim=-1))
                weights_BHCC = (scores_BHCC - finite(new_BHC)[..., None]).exp()
                kept_BHC = (lse_BHC[:, :, rows] - finite(new_BHC)).exp()
                out_BHCK[:, :, rows] *= kept_BHC[..., None]
                out_BHCK[:, :, rows] += weights_BHCC.to(v.dtype) @ with_heads_of(q_BHCK, v[:, :, columns])
                lse_BHC[:, :, rows] = new_BHC
            finish(works)
            k, v = arriving or (k, v)
        out_BHCK = out_BHCK.to(q_BHCK.dtype)
        ctx.save_for_backward(q_BHCK, k_BHCK, v_BHCK, out_BHCK, lse_BHC)
        ctx.blocks, ctx.group = blocks, group
        return out_BHCK

    @staticmethod
    def backward(ctx, grad_out_BHCK: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out_BHCK, lse_BHC = ctx.saved_tensors
        rank, world = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        delta_BHC = (grad_out_BHCK * out_BHCK).sum(dim=-1, dtype=lse_BHC.dtype)
        grad_q, grad_k, grad_v = (torch.zeros_like(tensor, dtype=lse_BHC.dtype) for tensor in (q, k, v))
        for step in range(world):
            arriving, works = start_to_pass_on([k, v], ctx.group) if step < world - 1 else ([], [])
            for rows, columns, mask in tiles(ctx.blocks((rank - step) % world), q.shape[2]):
                grad_out = grad_out_BHCK[:, :, rows]
                keys, values = (with_heads_of(q, part[:, :, columns]) for part in (k, v))
                weights_BHCC = (scores(q[:, :, rows], keys, mask) - finite(lse_BHC[:, :, rows])[..., None]).exp()
                grad_weights_BHCC = grad_out @ values.transpose(-2, -1)
                grad_scores_BHCC = weights_BHCC * (grad_weights_BHCC - delta_BHC[:, :, rows, None])
                grad_scores_BHCC = (grad_scores_BHCC / math.sqrt(q.shape[-1])).to(q.dtype)
                grad_q[:, :, rows] += grad_scores_BHCC @ keys
                grad_k[:, :, columns] += sum_of_groups(grad_scores_BHCC.transpose(-2, -1) @ q[:, :, rows], k)
                grad_v[:, :, columns] += sum_of_groups(weights_BHCC.to(v.dtype).transpose(-2, -1) @ grad_out, v)
            finish(works)
            k, v = arriving or (k, v)
            if world > 1:  # N rounds: the last one brings them back to the rank that has these keys
                (grad_k, grad_v), works = start_to_pass_on([grad_k, grad_v], ctx.group)
                finish(works)
        return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype), None, None


def ring_attention(
    q_BHCK: Tensor, k_BHCK: Tensor, v_BHCK: Tensor, blocks: Callable[[int], list[Block]], group: dist.ProcessGroup
) -> Tensor:
    """Attention of this rank's queries to the keys of all ranks of the group: (B, H, C, K).

    Args:
        q_BHCK, k_BHCK, v_BHCK: of this rank's tokens, of one shape on all ranks of the group. k and v may have fewer
            heads than q, each for a group of consecutive ones.
        blocks: for each rank, by its number in the group, what this rank's queries see of its keys. A query
            that sees no key at all gets zeros.
        group: all of its ranks must call this.
    """
    return RingAttention.apply(q_BHCK, k_BHCK, v_BHCK, blocks, group)


class Exchange(torch.autograd.Function):
    """All-to-all of N equal pieces of dimension `apart` for N pieces along dimension `together`; its gradient returns
    on the same path.
    """

    @staticmethod
    def forward(ctx, x: Tensor, apart: int, together: int, group: dist.ProcessGroup) -> Tensor:
        ctx.back = together, apart, group
        return exchange(x, apart, together, group)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        return exchange(grad, *ctx.back), None, None, None


def exchange(x: Tensor, apart: int, together: int, group: dist.ProcessGroup) -> Tensor:
    leaving = torch.stack(x.chunk(dist.get_world_size(group), dim=apart))
    arriving = torch.empty_like(leaving)
    dist.all_to_all_single(arriving, leaving, group=group)
    return torch.cat(arriving.unbind(), dim=together)


def ulysses(
    q_BHCK: Tensor, k_BHCK: Tensor, v_BHCK: Tensor, group: dist.ProcessGroup, mask: Tensor | None = None
) -> Tensor:
    """Causal attention of this rank's queries, (B, H, C, K): tokens are exchanged for heads, and back
    (arXiv:2309.14509). Rank r of the group has the r-th C tokens of the sequence.

    Args:
        k_BHCK, v_BHCK: may have fewer heads than q, each for a group of consecutive ones.
        mask: which query of the whole sequence sees which key, in place of the causal mask: (B, 1, T, T).

    Raises:
        ValueError: the number of ranks does not divide the number of heads.
    """
    heads, world = q_BHCK.shape[1], dist.get_world_size(group)
    if heads % world:
        raise ValueError(f"{heads} heads cannot be divided evenly among {world} ranks")
    # Fewer heads of keys than ranks: as many copies of each as make one for every rank, and no more.
    copies = world // math.gcd(world, k_BHCK.shape[1])
    if copies > 1:
        k_BHCK, v_BHCK = (part.repeat_interleave(copies, dim=1) for part in (k_BHCK, v_BHCK))
    q, k, v = (Exchange.apply(tensor, 1, 2, group) for tensor in (q_BHCK, k_BHCK, v_BHCK))
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
    return Exchange.apply(out, 2, 1, group)
