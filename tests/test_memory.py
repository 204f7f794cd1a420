"""What is alive, in bytes: whoever keeps it, and whatever was resized."""

import torch
from torch import nn

from utils.memory import Storages, held


def test_views_count_once_and_what_is_gone_does_not():
    with Storages() as storages:
        one = torch.zeros(10)
        view = one[:3]
        two = torch.zeros(5, dtype=torch.bfloat16)
        torch.zeros(1000)
        assert storages.by_kind({"one": [one, view]}) == {"one": 40, "other": 10}
        del one, two
        assert storages.by_kind({"one": []}) == {"one": 0, "other": 40}  # the view keeps it
        view.untyped_storage().resize_(0)
        assert sum(storages.live().values()) == 0
        view.untyped_storage().resize_(40)
        assert sum(storages.live().values()) == 40


def test_what_autograd_keeps_is_alive():
    weight = nn.Parameter(torch.ones(4, 4))
    with Storages([weight]) as storages:
        loss = (weight * 2).exp().sum()
        assert storages.by_kind({"weights": [weight]}) == {
            "weights": 64,
            "other": 64,
        }  # exp's result, for the backward pass
        loss.backward()
        assert storages.by_kind({"weights": [weight], "gradients": [weight.grad]}) == {
            "weights": 64,
            "gradients": 64,
            "other": 0,
        }


def test_held_sorts_weights_gradients_and_state():
    weight = nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16))
    master = nn.Parameter(weight.detach().float())
    optimizer = torch.optim.AdamW([master])
    with Storages([weight, master]) as storages:
        weight.grad, master.grad = torch.ones_like(weight), torch.ones_like(master)
        optimizer.step()
        assert held(storages, [weight], optimizer) == {
            "gradients": 32 + 64,
            "optimizer": 64 + 2 * 64,
            "weights": 32,
            "other": 0,
        }
