"""The head and its loss in one, a piece of the tokens at a time.

With V words the logits of N tokens are N × V numbers: for 4,096 tokens and 33,278
words half a gigabyte, and `cross_entropy` and its backward pass go over as much
several times. Nothing of it outlives the loss. So a piece of the logits is made,
turned into the loss and, since the loss's own gradient is known there and then
(softmax less one at the target), into the gradients of what it was made from;
then the next piece takes its place. The matrix products are the same as before;
what is saved is memory, and the time to move it.
"""

import torch
from torch import Tensor

PIECE = 16_000_000  # logits at a time: rows enough for a fast matrix product, 64 MB in float32


class HeadLoss(torch.autograd.Function):
    """Sum of the cross-entropies of `h @ weight.T`. Its gradients are made in the forward pass, if `learn`."""

    @staticmethod
    def forward(ctx, h_ND: Tensor, weight_VD: Tensor, y_N: Tensor, ignore: int, learn: bool) -> Tensor:
        device = h_ND.device
        factors = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else h_ND.dtype
        exact = torch.promote_types(h_ND.dtype, torch.float32)  # of what is summed up
        h_ND, factor_VD = h_ND.to(factors), weight_VD.to(factors)
        total = torch.zeros((), dtype=exact, device=device)
        grad_h_ND = torch.empty_like(h_ND) if learn else None
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=exact) if learn else None
        rows = max(1, min(len(h_ND), PIECE // len(weight_VD)))
        places = h_ND.new_empty(rows, len(weight_VD)), h_ND.new_empty(rows, len(weight_VD), dtype=exact)  # fresh memory costs as much as the softmax
        for start in range(0, len(h_ND), rows):
            h_CD, y_C1 = h_ND[start : start + rows], y_N[start : start + rows, None]
            counts_C1 = (y_C1 != ignore).to(exact)
            target_C1 = y_C1.where(y_C1 != ignore, 0)
            logits_CV, p_CV = (place[: len(h_CD)] for place in places)
            torch.mm(h_CD, factor_VD.T, out=logits_CV)
            torch.softmax(logits_CV, dim=1, dtype=exact, out=p_CV)  # one kernel for what else goes over all logits five times
            # The largest logit is there, and its p = exp(0) / sum of exp(logit - largest): so the sum is known, however small p is at the target.
            log_sum_C1 = logits_CV.amax(dim=1, keepdim=True).to(exact) - p_CV.amax(dim=1, keepdim=True).log()
            total += ((log_sum_C1 - logits_CV.gather(1, target_C1)) * counts_C1).sum()
            if learn:
                grad_CV = p_CV.scatter_add_(1, target_C1, torch.full_like(counts_C1, -1)).to(factors)
                torch.mm(grad_CV, factor_VD, out=grad_h_ND[start : start + rows]).mul_(counts_C1.to(factors))
                h_CD = h_CD * counts_C1.to(factors)  # what does not count gives the weights nothing either
                if factors == exact:
                    grad_weight_VD.addmm_(grad_CV.T, h_CD)
                else:
                    grad_weight_VD += grad_CV.T @ h_CD
        if learn:
            ctx.save_for_backward(grad_h_ND, grad_weight_VD)
            ctx.weight_dtype = weight_VD.dtype
        return total

    @staticmethod
    def backward(ctx, grad_total: Tensor) -> tuple[Tensor | None, ...]:
        grad_h_ND, grad_weight_VD = ctx.saved_tensors
        return grad_h_ND * grad_total, (grad_weight_VD * grad_total).to(ctx.weight_dtype), None, None, None


def head_loss(h: Tensor, weight: Tensor, y: Tensor, ignore: int) -> Tensor:
    """Mean cross-entropy in nats of the logits `h @ weight.T`, as a scalar of at least float32; 0 where no target counts.

    Args:
        h: (…, D), the stream after its last norm.
        weight: (V, D), the head's.
        y: int64 (…), targets; `ignore` counts nothing.
    """
    learn = torch.is_grad_enabled() and (h.requires_grad or weight.requires_grad)
    total = HeadLoss.apply(h.flatten(0, -2), weight, y.flatten(), ignore, learn)
    return total / (y != ignore).sum().clamp(min=1)
