"""What `07_expert_parallel` teaches, for later scripts: rows to their experts and back, and a loss that balances them.

Letters in names are shapes: N tokens of this rank, D width, E experts, K experts for each token, W ranks of a group, L
experts on each of them (E = W L), and R rows, one for each token and expert that it is sent to.
"""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

TAUGHT_IN = "07_expert_parallel"  # no rank of that lesson can import this


class Way(NamedTuple):
    """How rows came to their experts, for their results to go back."""

    slots_R: Tensor  # which slot each row was sent for: slot n K + j is choice j of token n
    order_R: Tensor  # where each row, sorted by expert, was among the rows that arrived
    leaving: list[int]  # how many rows went to each rank
    arriving: list[int]  # how many came from each
    group: dist.ProcessGroup


def exchange_rows(rows_RD: Tensor, leaving: list[int], arriving: list[int], group: dist.ProcessGroup) -> Tensor:
    arrived_RD = rows_RD.new_empty(sum(arriving), rows_RD.shape[1])
    dist.all_to_all_single(arrived_RD, rows_RD.contiguous(), arriving, leaving, group=group)
    return arrived_RD


class Exchange(torch.autograd.Function):
    """`exchange_rows`; the gradients of rows go back to where the rows came from."""

    @staticmethod
    def forward(ctx, rows_RD: Tensor, leaving: list[int], arriving: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.back = arriving, leaving, group
        return exchange_rows(rows_RD, leaving, arriving, group)

    @staticmethod
    def backward(ctx, grad_RD: Tensor) -> tuple[Tensor | None, ...]:
        return exchange_rows(grad_RD, *ctx.back), None, None, None


def dispatch(
    h_ND: Tensor, experts_NK: Tensor, n_experts: int, group: dist.ProcessGroup
) -> tuple[Tensor, list[int], Way]:
    """Send each token's row to the ranks that have its experts. Rank r of the group has experts r L to r L + L - 1.

    Args:
        experts_NK: int64; where it is -1, nothing is sent.
        group: all of its ranks must call this, also those without a token.

    Returns:
        The rows that have arrived here from all ranks of the group, sorted by expert; how many there are for each of
        this rank's L experts; and what `combine` needs.
    """
    K, world = experts_NK.shape[1], dist.get_world_size(group)
    experts_S = experts_NK.flatten()
    chosen = experts_S >= 0
    slots_R = experts_S.argsort(stable=True)[(~chosen).sum() :]
    counts_E = torch.bincount(experts_S[chosen], minlength=n_experts)

    arriving_E = torch.empty_like(counts_E)
    dist.all_to_all_single(arriving_E, counts_E, group=group)
    arriving_WL = arriving_E.view(world, -1).cpu()
    leaving, arriving = counts_E.view(world, -1).sum(dim=1).tolist(), arriving_WL.sum(dim=1).tolist()
    rows_RD = Exchange.apply(h_ND[slots_R // K], leaving, arriving, group)

    # They have arrived by source, and from each source by expert.
    expert_R = torch.arange(arriving_WL.shape[1]).repeat(world).repeat_interleave(arriving_WL.flatten())
    order_R = expert_R.argsort(stable=True).to(h_ND.device)
    return rows_RD[order_R], arriving_WL.sum(dim=0).tolist(), Way(slots_R, order_R, leaving, arriving, group)


def combine(results_RD: Tensor, gates_NK: Tensor, way: Way) -> Tensor:
    """Send the experts' results back. Returns each token's sum of them, times its gates: (N, D), in their dtype.

    `results_RD` are in the order in which `dispatch` returned the rows. A token without a slot gets zeros.
    """
    returned_RD = Exchange.apply(results_RD[way.order_R.argsort()], way.arriving, way.leaving, way.group)
    N, K = gates_NK.shape
    gated_RD = gates_NK.flatten()[way.slots_R, None] * returned_RD
    out_ND = returned_RD.new_zeros(N, returned_RD.shape[1])
    return out_ND.index_add(0, way.slots_R // K, gated_RD.to(returned_RD.dtype))


def balancing_loss(probs_NE: Tensor, experts_NK: Tensor) -> Tensor:
    """E times the sum over experts of their share of all slots times their mean probability, over the tokens of all
    ranks (arXiv:2101.03961, eq. 4): 1 if both are even. A float32 scalar, the same on all ranks.

    Its gradient is the number of ranks times the derivative, so that the mean over ranks is right.
    """
    E, world = probs_NE.shape[1], dist.get_world_size()
    own_E = probs_NE.sum(dim=0)
    slots_E = torch.bincount(experts_NK.flatten(), minlength=E).to(own_E.dtype)
    totals = torch.cat([slots_E, own_E.detach(), own_E.new_tensor([experts_NK.shape[0]])])
    dist.all_reduce(totals)
    all_slots_E, all_probs_E, tokens = totals[:E], totals[E:-1], totals[-1]
    f_E = all_slots_E / (tokens * experts_NK.shape[1])
    P_E = (world * own_E + (all_probs_E - world * own_E).detach()) / tokens
    return E * (f_E * P_E).sum()
