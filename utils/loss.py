"""The head and its loss in one, a piece of the tokens at a time.

With V words the logits of N tokens are N × V numbers: for 4,096 tokens and 33,278 words half a gigabyte, and
`cross_entropy` and its backward pass go over as much several times. Nothing of it outlives the loss. So a piece of the
logits is made, turned into the loss and, since the loss's own gradient is known there and then (softmax less one at the
target), into the gradients of what it was made from; then the next piece takes its place. The matrix products are the
same as before; it saves memory, and the time to move it.
"""

import math

import torch
from torch import Tensor

from utils import plan
from utils.products import factor


class HeadLoss(torch.autograd.Function):
    """Sum of the cross-entropies of `h @ weight.T`. Its gradients are made in the forward pass, if `learn`."""

    @staticmethod
    def forward(ctx, h_ND: Tensor, weight_VD: Tensor, y_N: Tensor, ignore: int, learn: bool) -> Tensor:
        exact = torch.promote_types(h_ND.dtype, torch.float32)  # the sums' dtype
        ctx.weight_dtype = weight_VD.dtype
        h_ND, weight_VD = factor(h_ND), factor(weight_VD)
        N, V = len(h_ND), len(weight_VD)
        total = h_ND.new_zeros((), dtype=exact)
        grad_h_ND = torch.empty_like(h_ND) if learn else None
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=exact) if learn else None
        columns = tokens_of_a_piece(N, V, h_ND.device)
        logits = h_ND.new_empty(V * columns)  # one place for all pieces: fresh memory costs as much as the softmax
        softmax = logits if h_ND.dtype == exact else torch.empty_like(logits, dtype=exact)
        for start in range(0, N, columns):
            h_CD, y_1C = h_ND[start : start + columns], y_N[None, start : start + columns]
            counts_1C = (y_1C != ignore).to(exact)
            target_1C = y_1C.where(y_1C != ignore, 0)
            # A column for each token, and not a row: in this order BLAS makes the three products a quarter faster.
            # In units of log 2, that is, exp(logit) is exp2(logit / log 2): exp2 takes a CPU 0.6 times as long as exp.
            logits_VC, e_VC = (place[: V * len(h_CD)].view(V, -1) for place in (logits, softmax))
            torch.addmm(logits_VC, weight_VD, h_CD.T, beta=0, alpha=1 / math.log(2), out=logits_VC)
            torch.sub(logits_VC, logits_VC.amax(dim=0, keepdim=True).to(exact), out=e_VC)
            at_target_1C = e_VC.gather(0, target_1C)
            sum_1C = e_VC.exp2_().sum(dim=0, keepdim=True)
            total += ((sum_1C.log2() - at_target_1C) * counts_1C).sum()
            if learn:
                # The softmax is e / sum. Factors with one number per token are put to the small factors; what does
                # not count gives no gradient.
                e_VC.scatter_add_(0, target_1C, -sum_1C)
                scale_C1 = (counts_1C / sum_1C).T
                grad_VC = e_VC.to(h_ND.dtype)
                torch.mm(grad_VC.T, weight_VD, out=grad_h_ND[start : start + columns]).mul_(scale_C1)
                h_CD = (h_CD * scale_C1).to(h_ND.dtype)
                if h_ND.dtype == exact:
                    grad_weight_VD.addmm_(grad_VC, h_CD)
                else:
                    grad_weight_VD += grad_VC @ h_CD
        if learn:
            ctx.save_for_backward(grad_h_ND, grad_weight_VD)
        return total * math.log(2)

    @staticmethod
    def backward(ctx, grad_total: Tensor) -> tuple[Tensor | None, ...]:
        grad_h_ND, grad_weight_VD = ctx.saved_tensors
        return grad_h_ND * grad_total, (grad_weight_VD * grad_total).to(ctx.weight_dtype), None, None, None


def tokens_of_a_piece(tokens: int, words: int, device: torch.device) -> int:
    """How many tokens are taken at a time: a multiple of 16, so that each row of a piece begins on a cache line."""
    return max(1, min(tokens, plan.piece_on(device.type) // words // 16 * 16))


def head_loss(h: Tensor, weight: Tensor, y: Tensor, ignore: int) -> Tensor:
    """Mean cross-entropy in nats of the logits `h @ weight.T`, as a scalar of at least float32; 0 where no target
    counts.

    Args:
        h: (…, D), the stream after its last norm.
        weight: (V, D), the head's.
        y: int64 (…), targets; `ignore` is left out.
    """
    learn = torch.is_grad_enabled() and (h.requires_grad or weight.requires_grad)
    total = HeadLoss.apply(h.flatten(0, -2), weight, y.flatten(), ignore, learn)
    return total / (y != ignore).sum().clamp(min=1)
