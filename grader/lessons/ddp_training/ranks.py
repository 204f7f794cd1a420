"""What the checks of ddp_training run on ranks, in the process of the student's code."""

import contextlib
import os
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from grader.kit import TINY, save_twice, tiny_batch, tiny_model
from utils.data import Windows

BATCH = 12  # divisible by 1, 2, 3 and 4


# ---------------------------------------------------------------------------------------------------
# TODOs 1–3: setup()


def setup_on_rank(code, rank, world, mine):
    # A torch that can use NCCL, also where there is no GPU: that is usual on login nodes.
    with mock.patch.object(dist, "is_nccl_available", lambda: True):
        found_rank, local_rank, world_size, device = code.setup()
    seen = {
        "rank": found_rank,
        "local_rank": local_rank,
        "world_size": world_size,
        "device": str(device),
        "joined": dist.is_initialized(),
        "sum": None,
        "ranks": 0,
        "default": f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu",
    }
    if torch.device(device).type == "cuda" and torch.device(device).index is None:
        seen["device"] = f"cuda:{torch.cuda.current_device()}"
    if dist.is_initialized():
        total = torch.tensor([mine])
        dist.all_reduce(total)
        seen["sum"], seen["ranks"] = total.item(), dist.get_world_size()
    return seen


# ---------------------------------------------------------------------------------------------------
# TODO 4: samplers


# 35 = 2 · 12 + 11: on 2 and on 3 ranks, a padded share has a third step that one process does not make.
SETS = (35, 17, 13)


def made_args(code, seed):
    return code.parse_args(["--batch-size", str(BATCH), "--seed", str(seed)])


def samplers_on_rank(code, rank, world, seed):
    sets = tuple(Windows(torch.arange(n * 2) % 50, 2, 0, drop_last=True) for n in SETS)
    samplers = code.make_samplers(sets, made_args(code, seed))
    if not isinstance(samplers, (tuple, list)) or len(samplers) != 3 or any(s is None for s in samplers):
        return {"missing": repr(samplers)}
    train, validation, test = samplers
    epochs = []
    for epoch in range(2):
        if hasattr(train, "set_epoch"):
            train.set_epoch(epoch)
        epochs.append([int(i) for i in train])
    return {"epochs": epochs, "validation": [int(i) for i in validation], "test": [int(i) for i in test]}


# ---------------------------------------------------------------------------------------------------
# TODOs 5–7: loaders


class Numbers(torch.utils.data.Dataset):
    """Sample i is (first + i, first + i), so that each sample identifies its set."""

    def __init__(self, first, size):
        self.first, self.size = first, size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        return torch.tensor([self.first + i]), torch.tensor([self.first + i])


def loaders_on_rank(code, rank, world, dealt):
    """What each loader reads in two epochs. In the second, the training set's sampler deals other samples."""
    sizes = [sum(len(mine[which]) for mine in dealt) for which in range(len(SET))]
    sets = tuple(Numbers(MANY * which, size) for which, size in enumerate(sizes))
    samplers = tuple(dealt[rank])
    loaders = code.make_loaders(sets, samplers, made_args(code, 0), world)
    seen = [read(loader) for loader in loaders]
    samplers[0][:] = next_share(dealt, rank)
    return {"seen": seen, "again": [read(loader) for loader in loaders]}


def next_share(dealt, rank):
    """What the training set's sampler deals in the second epoch: what it has dealt to a different rank."""
    return dealt[(rank + 1) % len(dealt)][0]


def read(loader):
    return [batch[0].flatten().tolist() for batch in loader]


SET = ("training", "validation", "test")


MANY = 100  # more than any of them has


# ---------------------------------------------------------------------------------------------------
# TODO 8: one model


def wrap_on_rank(code, rank, world, seeds):
    """`seeds` of the weights and the batch are this rank's own; it must learn the others' by communication."""
    told = gpus_named(code, torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    model = tiny_model(seeds[0])  # different first weights on each rank: only communication can make them equal
    wrapped = code.wrap(model, torch.device("cpu"))
    first = {}
    for _ in range(2):  # the second pass shows whether gradients are averaged in every one
        wrapped.zero_grad()
        loss = wrapped(*tiny_batch(seeds[1]))
        # Looked at after the first forward pass: some wrappers synchronize weights no sooner.
        first = first or {name.removeprefix("module."): p.detach().clone() for name, p in wrapped.named_parameters()}
        loss.backward()
    grads = {name.removeprefix("module."): p.grad for name, p in wrapped.named_parameters()}
    return {"weights": first, "grads": grads, "gpus": told}


def gpus_named(code, device):
    """The GPUs that `wrap` tells torch's wrapper where the device is one, and no further. Empty if it tells none;
    ["other"] if it has another wrapper.
    """
    told = ["other"]

    def spy(self, module, device_ids=None, *args, **kwargs):
        told[:] = [
            torch.device(each).index if isinstance(each, str) else getattr(each, "index", each)
            for each in device_ids or ()
        ]
        raise NotImplementedError("no GPU is there")

    with mock.patch.object(DistributedDataParallel, "__init__", spy), contextlib.suppress(Exception):
        code.wrap(nn.Linear(1, 1), device)
    return told


# ---------------------------------------------------------------------------------------------------
# TODO 10: the mean over all tokens


def mean_on_rank(code, rank, world, mine):
    """`mine`: this rank's total and count of each case; it must learn the other ranks'."""
    return [
        float(code.global_mean(torch.tensor(total, dtype=torch.float64), torch.tensor(count, dtype=torch.float64)))
        for total, count in mine
    ]


# ---------------------------------------------------------------------------------------------------
# TODO 12: save once


def model_to_save(seed):
    """One of its layers has a name that ends like the wrapper's attribute."""
    model = tiny_model(seed)
    model.submodule = torch.nn.Linear(2, 3, bias=False)
    torch.nn.init.constant_(model.submodule.weight, seed)
    return model


def save_on_rank(code, rank, world):
    def save(seed, path, epoch):
        code.save_checkpoint(torch.nn.parallel.DistributedDataParallel(model_to_save(seed)), TINY, path, epoch)

    return {"files": save_twice(save)}
