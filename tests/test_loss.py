"""The loss by pieces is the loss: exact against cross_entropy in float64, whatever the pieces."""

import pytest
import torch
import torch.nn.functional as F

from utils import plan
from utils.loss import head_loss

IGNORE = -100


def tensors(dtype=torch.float64, N=7, D=5, V=11):
    draw = torch.Generator().manual_seed(0)
    h = torch.randn(2, N, D, generator=draw, dtype=dtype, requires_grad=True)
    weight = torch.randn(V, D, generator=draw, dtype=dtype, requires_grad=True)
    y = torch.randint(V, (2, N), generator=draw)
    y[0, 3] = y[1, 0] = IGNORE
    return h, weight, y


def plain(h, weight, y):
    return F.cross_entropy(
        (h @ weight.T).flatten(0, 1).float() if h.dtype == torch.bfloat16 else (h @ weight.T).flatten(0, 1),
        y.flatten(),
        ignore_index=IGNORE,
    )


@pytest.mark.parametrize("tokens", [1, 16, 32, 90, 1000])
def test_exact_in_float64(monkeypatch, tokens):
    h, weight, y = tensors(N=45)
    monkeypatch.setattr(plan, "PIECE_ON_CPU", tokens * len(weight))
    seen, right = head_loss(h, weight, y, IGNORE), plain(h, weight, y)
    torch.testing.assert_close(seen, right, rtol=1e-14, atol=0)
    for a, b in zip(
        torch.autograd.grad(3 * seen, (h, weight)), torch.autograd.grad(3 * right, (h, weight)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-15)
    with torch.no_grad():
        torch.testing.assert_close(head_loss(h, weight, y, IGNORE), right, rtol=1e-14, atol=0)


def test_large_logits_do_not_overflow():
    h, weight, y = tensors(torch.float32)
    seen = head_loss(h * 1e4, weight, y, IGNORE)
    torch.testing.assert_close(seen, plain(h * 1e4, weight, y))
    assert all(g.isfinite().all() for g in torch.autograd.grad(seen, (h, weight)))


def test_no_target_no_loss_and_no_gradient():
    h, weight, y = tensors()
    seen = head_loss(h, weight, torch.full_like(y, IGNORE), IGNORE)
    assert seen == 0 and all((g == 0).all() for g in torch.autograd.grad(seen, (h, weight)))


def test_a_second_backward_pass_gives_the_same():
    h, weight, y = tensors()
    seen = head_loss(h, weight, y, IGNORE)
    first = torch.autograd.grad(seen, (h, weight), retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(first, torch.autograd.grad(seen, (h, weight)), strict=True))


def test_a_frozen_head_or_stream():
    h, weight, y = tensors()
    (right,) = torch.autograd.grad(plain(h, weight, y), h)
    torch.testing.assert_close(torch.autograd.grad(head_loss(h, weight.detach(), y, IGNORE), h)[0], right)
    (right,) = torch.autograd.grad(plain(h, weight, y), weight)
    torch.testing.assert_close(torch.autograd.grad(head_loss(h.detach(), weight, y, IGNORE), weight)[0], right)


@pytest.mark.parametrize("how", ["autocast", "parameters"])
def test_bfloat16_sums_in_float32(how):
    """The factors are rounded, 8 bits; the sums are not: the loss is right to a bit of bfloat16."""
    h, weight, y = tensors(torch.float32, N=300, V=50)
    right = plain(h, weight, y)
    if how == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            seen = head_loss(h, weight, y, IGNORE)
    else:
        seen = head_loss(h.bfloat16(), weight.bfloat16(), y, IGNORE)
    assert seen.dtype == torch.float32
    torch.testing.assert_close(seen, right, rtol=2**-8, atol=0)
    for a, b in zip(torch.autograd.grad(seen, (h, weight)), torch.autograd.grad(right, (h, weight)), strict=True):
        assert a.dtype == torch.float32 and F.cosine_similarity(a.flatten(), b.flatten(), dim=0) > 0.999
