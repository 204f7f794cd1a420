"""Bytes that are alive, whatever keeps them alive and whatever was resized."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from utils.memory import Peak, Storages, held


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
        assert sum(storages.bytes_alive().values()) == 0
        view.untyped_storage().resize_(40)
        assert sum(storages.bytes_alive().values()) == 40


def test_what_autograd_keeps_is_alive():
    weight = nn.Parameter(torch.ones(4, 4))
    with Storages([weight]) as storages:
        loss = (weight * 2).exp().sum()
        # Exp's result, for the backward pass.
        assert storages.by_kind({"weights": [weight]}) == {"weights": 64, "other": 64}
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


@pytest.fixture
def mesh():
    """Rank 1 of 4, that nobody answers: shapes and bytes are right, and numbers are not."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield init_device_mesh("cpu", (4,))
    dist.destroy_process_group()


PART, WHOLE = 16 * 8 * 4, 64 * 8 * 4  # bytes of a quarter of 64 x 8 float32 numbers, and of all


def test_a_dtensor_counts_as_the_part_that_is_here(mesh):
    sharded = DTensor.from_local(torch.zeros(16, 8), mesh, [Shard(0)])
    with Storages([sharded]) as storages:
        twice = sharded * 2
        assert storages.by_kind({"weights": [sharded]}) == {"weights": PART, "other": PART}
        del twice
        assert sum(storages.bytes_alive().values()) == PART


def test_what_lives_for_a_moment_inside_an_operation_on_dtensors_counts(mesh):
    """full @ sharded: the part is gathered, multiplied with, and gone."""
    sharded = DTensor.from_local(torch.zeros(16, 8), mesh, [Shard(0)])
    with Peak([sharded]) as storages:
        gathered = sharded.redistribute(mesh, [Replicate()])
        assert sum(storages.bytes_alive().values()) == PART + WHOLE
        del gathered
        assert sum(storages.bytes_alive().values()) == PART
        storages.most = 0
        total = (sharded.full_tensor() * 2).sum()  # a number does not count
        assert sum(storages.bytes_alive().values()) == PART and total.dim() == 0
    assert storages.most == PART + 2 * WHOLE


def test_gradients_of_dtensors_are_parts_too(mesh):
    weight = nn.Parameter(DTensor.from_local(torch.zeros(16, 8), mesh, [Shard(0)]))
    factor = DTensor.from_local(torch.ones(16, 8), mesh, [Shard(0)])
    optimizer = torch.optim.SGD([weight], momentum=0.9)
    with Storages([weight]) as storages:
        (weight * factor).sum().backward()
        optimizer.step()
        assert held(storages, [weight], optimizer) == {
            "gradients": PART,
            "optimizer": PART,
            "weights": PART,
            "other": 0,
        }


def test_what_has_no_memory_does_not_count():
    with Storages() as storages:
        kept = torch.zeros(64, 8, device="meta") * 2
        assert sum(storages.bytes_alive().values()) == 0 and kept.shape == (64, 8)
