"""The head and its loss in one, a piece of the tokens and of the words at a time.

With V words the logits of N tokens are N × V numbers: for 4,096 tokens and 33,278 words half a gigabyte, and
`cross_entropy` and its backward pass go over as much several times. Nothing of it outlives the loss. So the logits of a
piece of the tokens are made, turned into the loss and, since the loss's own gradient is known there and then (softmax
less one at the target), into the gradients of what they were made from; then the next piece takes their place. The
matrix products are the same as before; it saves memory, and the time to move it.

A processor's caches hold the logits of all words for a few tokens only, and so few make slow products. So on a CPU the
words come in pieces, too, and what is known of a piece while it is in the cache is corrected when a larger logit turns
up (online softmax, arXiv:1805.02867).
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
        tokens = tokens_of_a_piece(N, V, h_ND.device)
        words = words_of_a_piece(V, tokens, h_ND.device)
        place = h_ND.new_empty(tokens * (V if learn else words))  # of all pieces: fresh memory costs as much as passes
        for start in range(0, N, tokens):
            h_CD, y_C1 = h_ND[start : start + tokens], y_N[start : start + tokens, None]
            counts_C1 = y_C1 != ignore
            y_C1 = y_C1.where(counts_C1, 0)
            target_C1, largest_C1, sum_C1, sum_CD, pieces = over_words(h_CD, weight_VD, y_C1, words, place, learn)
            top_C1 = torch.maximum(largest_C1, target_C1)
            others_C1 = sum_C1 * (largest_C1 - top_C1).exp2()
            all_C1 = others_C1 + (target_C1 - top_C1).exp2()
            total += ((all_C1.log2() + (top_C1 - target_C1)) * counts_C1).sum()
            if learn:
                # Factors with one number per token are put to the small factors; what does not count gives no gradient.
                scale_C1 = counts_C1 / all_C1
                at_target_C1 = -others_C1 * scale_C1
                sum_CD *= (largest_C1 - top_C1).exp2() * scale_C1
                grad_h_ND[start : start + tokens] = sum_CD.addcmul_(at_target_C1, weight_VD[y_C1[:, 0]].to(exact))
                for first, e_CW, of_piece_C1 in pieces:
                    scaled_CD = (h_CD * ((of_piece_C1 - top_C1).exp2() * scale_C1)).to(h_ND.dtype)
                    add_product(grad_weight_VD[first : first + words], e_CW.T, scaled_CD)
                grad_weight_VD.index_add_(0, y_C1[:, 0], at_target_C1 * h_CD)
        if learn:
            ctx.save_for_backward(grad_h_ND, grad_weight_VD)
        return total * math.log(2)

    @staticmethod
    def backward(ctx, grad_total: Tensor) -> tuple[Tensor | None, ...]:
        grad_h_ND, grad_weight_VD = ctx.saved_tensors
        return grad_h_ND * grad_total, (grad_weight_VD * grad_total).to(ctx.weight_dtype), None, None, None


def over_words(
    h_CD: Tensor, weight_VD: Tensor, y_C1: Tensor, words: int, place: Tensor, learn: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, list[tuple[int, Tensor, Tensor]]]:
    """Go over the words once, so many at a time.

    Returns:
        Of each token, in units of log 2: the target's logit; of the other words the largest one, and the sum of
        2^(logit - largest); if `learn`, also the sum of their rows of the weight, each times its power. Then, for each
        piece, its first word, its powers (C, words), and the largest logit that was known when they were made.
    """
    exact, device = torch.promote_types(h_CD.dtype, torch.float32), h_CD.device
    C, D = h_CD.shape
    target_C1, sum_C1, sum_CD = (h_CD.new_zeros(C, n, dtype=exact) for n in (1, 1, D))
    largest_C1 = target_C1 + torch.finfo(exact).min
    at_PC1 = y_C1 - torch.arange(0, len(weight_VD), words, device=device)[:, None, None]
    here_PC1 = (at_PC1 >= 0) & (at_PC1 < words)
    at_PC1 = at_PC1.clamp_(0, words - 1)
    rows_C = torch.arange(C, device=device)
    pieces = []
    for first, at_C1, here_C1 in zip(range(0, len(weight_VD), words), at_PC1, here_PC1, strict=True):
        weight_WD = weight_VD[first : first + words]
        W, begin = len(weight_WD), C * first if learn else 0
        logits_CW = place[begin : begin + C * W].view(C, W)
        # In units of log 2, that is, exp(logit) is exp2(logit / log 2): exp2 takes a CPU 0.6 times as long as exp.
        torch.addmm(logits_CW, h_CD, weight_WD.T, beta=0, alpha=1 / math.log(2), out=logits_CW)
        # Without the target, whose probability less one is minus the others' sum, without cancellation.
        at_C1 = at_C1.clamp(max=W - 1)
        logit_C1 = logits_CW.gather(1, at_C1)
        target_C1 = logit_C1.to(exact).where(here_C1, target_C1)
        # Not scatter_: torch.compile copies for it, and writes this in place.
        logits_CW[rows_C, at_C1[:, 0]] = logit_C1.masked_fill(here_C1, -math.inf)[:, 0]
        e_CW = logits_CW.to(exact)
        before_C1, largest_C1 = largest_C1, torch.maximum(largest_C1, e_CW.amax(dim=1, keepdim=True))
        e_CW.sub_(largest_C1).exp2_()
        correction_C1 = (before_C1 - largest_C1).exp2_()
        sum_C1.mul_(correction_C1).add_(e_CW.sum(dim=1, keepdim=True))
        if learn:
            if logits_CW.dtype != exact:
                logits_CW.copy_(e_CW)
            add_product(sum_CD.mul_(correction_C1), logits_CW, weight_WD)
            pieces.append((first, logits_CW, largest_C1))
    return target_C1, largest_C1, sum_C1, sum_CD, pieces


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, where total may be more exact than its factors."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


def tokens_of_a_piece(tokens: int, words: int, device: torch.device) -> int:
    """How many tokens are taken at a time: a multiple of 16, so that each row of a piece begins on a cache line."""
    most = max(1, plan.piece_on(device.type) // words // 16 * 16)
    equal = math.ceil(tokens / math.ceil(tokens / most))
    return min(most, tokens, math.ceil(equal / 16) * 16)


def words_of_a_piece(words: int, tokens: int, device: torch.device) -> int:
    """How many words are taken at a time, for so many tokens: on a CPU, logits that fit a core's cache."""
    return words if device.type != "cpu" else max(1, min(words, plan.CACHED // tokens // 16 * 16))


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
