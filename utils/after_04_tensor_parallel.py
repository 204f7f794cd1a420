"""What `04_tensor_parallel` teaches, for later scripts.

The head and its loss, computed in pieces of tokens as in `utils/loss.py`, with the words divided among the ranks
(Megatron-LM, arXiv:1909.08053, section 3). The logits are never gathered: the ranks exchange a few numbers per token,
twice.
"""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from utils import loss
from utils.products import factor

TAUGHT_IN = "04_tensor_parallel"  # no rank of that lesson can import this
TAUGHT_BY = "1 2 3 4 5 6 7 8 9 10 11 12 13"  # not the last TODO, which tp_training needs for --block llama alone


class VocabParallelHeadLoss(torch.autograd.Function):
    """Sum of the cross-entropies; its gradients are computed in the forward pass if `learn`. W is V / ranks, rounded
    up.
    """

    @staticmethod
    def forward(
        ctx, h_ND: Tensor, weight_WD: Tensor, y_N: Tensor, ignore: int, learn: bool, rows: int, group: dist.ProcessGroup
    ) -> Tensor:
        exact = torch.promote_types(h_ND.dtype, torch.float32)  # the sums' dtype
        ctx.weight_dtype, present = weight_WD.dtype, len(weight_WD)
        h_ND = factor(h_ND)
        weight_WD = factor(weight_WD)
        if present < rows:  # the last ranks may have fewer rows, or none
            weight_WD = F.pad(weight_WD, (0, 0, 0, rows - present))
        y_N = y_N - rows * dist.get_rank(group)  # numbers of this rank's rows, where the target is one of them
        ignore -= rows * dist.get_rank(group)
        total = h_ND.new_zeros((), dtype=exact)
        grad_h_ND = torch.empty_like(h_ND) if learn else None
        grad_weight_WD = torch.zeros_like(weight_WD, dtype=exact) if learn else None
        # Each piece is a message, so all ranks must cut in the same way: by `rows`, not by the rows on this rank.
        columns = loss.tokens_of_a_piece(len(h_ND), rows, h_ND.device)
        for start in range(0, len(h_ND), columns):
            h_CD, y_1C = h_ND[start : start + columns], y_N[None, start : start + columns]
            counts_1C = (y_1C != ignore).to(exact)
            mine_1C = (y_1C >= 0) & (y_1C < present) & (y_1C != ignore)
            target_1C = y_1C.where(mine_1C, 0)
            # A column for each token, and in units of log 2, as in utils/loss.py.
            logits_WC = h_ND.new_empty(rows, len(h_CD))
            torch.addmm(logits_WC, weight_WD, h_CD.T, beta=0, alpha=1 / math.log(2), out=logits_WC)
            logits_WC[present:] = -math.inf
            max_1C = logits_WC.amax(dim=0, keepdim=True).to(exact)
            dist.all_reduce(max_1C, dist.ReduceOp.MAX, group)
            e_WC = logits_WC.to(exact).sub_(max_1C)
            at_target_1C = e_WC.gather(0, target_1C).where(mine_1C, 0)
            sums_2C = torch.cat([e_WC.exp2_().sum(dim=0, keepdim=True), at_target_1C])
            dist.all_reduce(sums_2C, group=group)
            sum_1C, at_target_1C = sums_2C[:1], sums_2C[1:]
            total += ((sum_1C.log2() - at_target_1C) * counts_1C).sum()
            if learn:
                e_WC.scatter_add_(0, target_1C, -sum_1C * mine_1C)
                scale_C1 = (counts_1C / sum_1C).T
                grad_WC = e_WC.to(h_ND.dtype)
                torch.mm(grad_WC.T, weight_WD, out=grad_h_ND[start : start + columns]).mul_(scale_C1)
                h_CD = (h_CD * scale_C1).to(h_ND.dtype)
                if h_ND.dtype == exact:
                    grad_weight_WD.addmm_(grad_WC, h_CD)
                else:
                    grad_weight_WD += grad_WC @ h_CD
        if learn:
            dist.all_reduce(grad_h_ND, group=group)  # each rank knows what its own words say of h
            ctx.save_for_backward(grad_h_ND, grad_weight_WD[:present])
        return total * math.log(2)

    @staticmethod
    def backward(ctx, grad_total: Tensor) -> tuple[Tensor | None, ...]:
        grad_h_ND, grad_weight_VD = ctx.saved_tensors
        return grad_h_ND * grad_total, (grad_weight_VD * grad_total).to(ctx.weight_dtype), *[None] * 5


def vocab_parallel_head_loss(
    h: Tensor, weight_local: Tensor, y: Tensor, ignore: int, group: dist.ProcessGroup, vocab_size: int
) -> Tensor:
    """Like utils.loss.head_loss: mean cross-entropy in nats, a scalar of at least float32; 0 if no target counts.

    All ranks of the group call it, and all get the same loss, and the same gradient of h.

    Args:
        h: (…, D), the stream after its last norm, the same on all ranks.
        weight_local: (V_local, D), this rank's rows of the head's weight, in pieces as DTensor's Shard(0) cuts them:
            V / ranks each, rounded up, and fewer or none at the end.
        y: int64 (…), targets as numbers of the whole vocabulary; `ignore` is left out.
        vocab_size: V, words on all ranks together.
    """
    learn = torch.is_grad_enabled() and (h.requires_grad or weight_local.requires_grad)
    rows = math.ceil(vocab_size / dist.get_world_size(group))
    if h.shape[:-1] != y.shape:
        raise ValueError(
            f"h has tokens of shape {tuple(h.shape[:-1])}, the targets {tuple(y.shape)}: a stream that is cut along its"
            " tokens must be made whole first"
        )
    total = VocabParallelHeadLoss.apply(h.flatten(0, -2), weight_local, y.flatten(), ignore, learn, rows, group)
    return total / (y != ignore).sum().clamp(min=1)
