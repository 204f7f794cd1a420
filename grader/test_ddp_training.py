"""Checks and hints of ddp_training.

| TODO | achievement                        | evidence                                                   | needs          |
|------|------------------------------------|------------------------------------------------------------|----------------|
| 1    | one process group                  | setup() on 2 and 3 ranks: a sum over the ranks; the backend |                |
| 2    | rank, local rank, world size       | what setup() returns on 1 × 3 and 2 × 1 (nodes × ranks)    | 1              |
| 3    | its own device | the same, where nodes seem to have GPUs                    | 1, 2           |
| 4    | a share of every set               | the indices that each rank's samplers yield, two epochs    |                |
| 5–7  | three loaders                      | the samples and batch sizes they yield, given our samplers, two epochs |    |
| 8    | one model                          | first weights; gradients against one process; bytes reduced |               |
| 9    | a new order in each epoch          | whole run: what reached the model, step by step            | 1, 2, 4, 5, 8  |
| 10   | the mean over all tokens           | global_mean() of other totals and counts on each rank      |                |
| 11   | said once                          | whole run: the lines of each rank, and the losses in them  | 1, 2           |
| 12   | saved once, without the wrapper    | who wrote; what the file holds; that it loads here         |                |
| 13   | the group is left; the run is the serial run | whole runs on 1, 2, 3 and 4 ranks                | 1 – 12         |
| 14   | four GPUs per node | the batch file's header; for PBS what its processes are told |              |
| 15   | all of them visible                | what the processes of a job see                            | 14             |
| 16   | a place to meet                    | address and port, in two jobs on 1 and 2 nodes             |                |
| 17   | one process for each GPU           | what each node starts, in jobs of 1 and 2 nodes            | 15, 16         |
| 18   | two nodes                          | the batch file's header                                    |                |

TODOs 14 – 18 are in ddp_training.sbatch and in ddp_training.pbs; one of the two is enough.
"""  # noqa: E501

import contextlib
import math
import os
import re
from itertools import combinations
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from grader.kit import (
    count_of,
    LARGE,
    TINY,
    Fault,
    Private,
    Wrong,
    batch,
    LOCAL,
    check_checkpoint,
    check_launches,
    check_tensor,
    corpus,
    each_once,
    expect,
    first_node,
    header,
    layouts,
    hinted,
    is_first_node,
    numbers,
    on_nodes,
    one_writer,
    reported,
    same_run,
    save_twice,
    shares,
    stand_ins,
    tiny_batch,
    tiny_model,
    todo,
    training,
)
from utils.data import Windows

BUILDS = "process group, samplers, loaders, wrapping, one loss and one checkpoint for all ranks; its batch files"

BATCH = 12  # divisible by 1, 2, 3 and 4


# ---------------------------------------------------------------------------------------------------
# TODOs 1–3: setup()


LAYOUTS = ((1, 3), (2, 2))  # nodes, ranks: in the second, rank and local rank differ
# In the second every rank is number 0 on its node: an answer that confuses rank and local rank is wrong only here.
SPREAD = ((1, 3), (3, 3))
LOADING = ((1, 2), (3, 3))  # batches of unequal size on a rank


def set_up(student, world, **how):
    """setup() on ranks, each with a number that the others do not know. Returns the run, and the sum over all ranks."""
    draw = student.draw("setup", world)
    numbers = [draw.randrange(1 << 40) for _ in range(world)]
    return student.call(setup_on_rank, world=world, group=False, mine=Private(numbers), **how), sum(numbers)


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


@todo(
    1,
    minutes=20,
    why=(
        "Without a group there is no communication: each process would train its own model, and the other GPUs "
        "would repeat the same work."
    ),
    hints=(
        "One call makes all processes meet. It is in torch.distributed, which is imported as dist.",
        (
            "dist.init_process_group takes the backend's name; torchrun has put everything else into the environment. "
            "torch.cuda.is_available() says whether NCCL can be used."
        ),
        'dist.init_process_group(...), with "nccl" in place of the dots if torch.cuda.is_available(), else "gloo".',
    ),
)
def test_todo1_process_group(student):
    for nodes, world in (*LAYOUTS, (1, 1)):
        ranks, total, events = joined(student, world=world, nodes=nodes)
        for rank, seen in enumerate(ranks):
            elsewhere = next((e.get("elsewhere") for e in events[rank] if e["e"] == "joins"), None)
            expect(
                not elsewhere,
                f"rank {rank} looks for the others at {elsewhere}, not where the environment says: another job, or"
                " a second node, could never meet there",
                "MASTER_ADDR and MASTER_PORT, which init_process_group reads itself",
                elsewhere,
                rank,
            )
            expect(
                seen["ranks"] == world,
                f"rank {rank}'s group has {seen['ranks']} ranks, not {world}",
                world,
                seen["ranks"],
                rank,
            )
            expect(
                seen["sum"] in (total, None),
                "a sum over the group does not contain every rank once",
                total,
                seen["sum"],
                rank,
            )
    for nodes, gpus in ((1, 2), (2, 1)):
        _, _, events = joined(student, world=2, nodes=nodes, gpus=gpus)
        asked = next(iter(backends(events[:1])), "none")
        where = "a machine with GPUs" if nodes == 1 else "nodes with a GPU each"
        expect("nccl" in asked or asked == "None", f"on {where} the group does not use NCCL", "nccl", asked, 0)


def joined(student, world, **how):
    """What each rank found, the sum, and the events, where each must have joined a group. Later errors belong to
    TODOs 2 and 3.
    """
    total = None
    try:
        run, total = set_up(student, world, **how)
        ranks, events = run.evidence, run.events
    except Fault as fault:
        events = fault.events
        expect(
            how.get("gpus") or not any("nccl" in backend for backend in backends(events)),
            "without GPUs the group uses NCCL: torch can have NCCL where no GPU is, on a login node say",
            "gloo",
            "nccl",
        )
        # Joining takes all ranks: one speaks for all.
        group = next((e["world"] for mine in events for e in mine if e["e"] == "joined"), None)
        if group is None and not (fault.cause == "crash" and "process group" in fault.message):
            raise  # it failed before that
        ranks = [{"joined": group is not None, "ranks": group, "sum": None}] * world
    for rank, seen in enumerate(ranks):
        expect(seen["joined"], f"after setup() rank {rank} is in no process group", "a process group", "none", rank)
    return ranks, total, events


def backends(events):
    """The backends that the ranks have asked for."""
    return [e["detail"] for mine in events for e in mine if e.get("op") == "init_process_group"]


@todo(
    2,
    minutes=10,
    needs=(1,),
    why=(
        "A rank must know which share of the work is its own; and on a second node the first process "
        "has rank 4, say, but local rank 0."
    ),
    hints=(
        "Two of the three are known to the group that was just joined; only the launcher knows the third.",
        "dist.get_rank() and dist.get_world_size(); torchrun leaves LOCAL_RANK in os.environ, as text.",
        "local_rank = int(os.environ[...]), and the other two from dist.",
    ),
)
def test_todo2_identifiers(student):
    alike = [(nodes, world // nodes) for nodes, world in LAYOUTS] + layouts(student.draw("layouts"))[1:]
    told = {
        (a_node,) * nodes: f"{count_of(nodes, 'node')} with {count_of(a_node, 'rank')}{' each' * (nodes > 1)}"
        for nodes, a_node in alike
    }
    for sizes, layout in (told | {(1, 2): "a node with 1 rank and one with 2"}).items():
        world, places = sum(sizes), [place for size in sizes for place in range(size)]
        for rank, seen in enumerate(set_up(student, world, nodes=sizes)[0].evidence):
            for name, right in (("rank", rank), ("local_rank", places[rank]), ("world_size", world)):
                expect(
                    not isinstance(seen[name], str),
                    f"{name} is text, like everything in os.environ",
                    right,
                    repr(seen[name]),
                    rank,
                )
                hint = UNEQUAL if sizes == (1, 2) else ""
                what = f"on {layout}, {name} of rank {rank} is wrong"
                expect(seen[name] == right, what, right, seen[name], rank, hint)


UNEQUAL = "How many ranks other nodes have does not matter here. Which program counts the processes of this node?"


@todo(
    3,
    minutes=15,
    needs=(1, 2),
    why=(
        "If two processes of a node use the same GPU, other GPUs are idle, and NCCL refuses to work. The rank itself"
        " cannot be the index: on the second node it is larger than the number of GPUs there."
    ),
    hints=(
        "Which of the identifiers counts from 0 on every node?",
        'torch.device("cuda", index); torch.cuda.set_device makes it the default of this process.',
        'If there are GPUs: device = torch.device("cuda", ...) with the number of this process on its node.',
    ),
)
def test_todo3_device(student):
    for rank, seen in enumerate(set_up(student, 3)[0].evidence):
        expect(seen["device"] == "cpu", "without GPUs the device is not the CPU", "cpu", seen["device"], rank)
    drawn = [(nodes, gpus, gpus) for nodes, gpus in layouts(student.draw("layouts"))]
    for nodes, a_node, gpus in student.several([*drawn, (2, 2, 3)], but=drawn):  # the last has more GPUs than ranks
        ranks = set_up(student, nodes * a_node, nodes=nodes, gpus=gpus)[0].evidence
        layout = f"{nodes} × {gpus} (nodes × GPUs)" + f", {a_node} ranks on each node" * (a_node < gpus)
        for rank, seen in enumerate(ranks):
            right = f"cuda:{rank % a_node}"
            expect(
                seen["device"] == right, f"on {layout}, rank {rank} takes the wrong device", right, seen["device"], rank
            )
        for rank, seen in enumerate(ranks):
            right = f"cuda:{rank % a_node}"
            expect(
                seen["default"] == right,
                f"on {layout}, rank {rank} puts whatever names no device on {seen['default']}:"
                " its own GPU must also be the process's default",
                f"{right} by default",
                seen["default"],
                rank,
                hint="The device itself is right. Which call of torch.cuda makes it the default of this process?",
            )


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


@todo(
    4,
    minutes=15,
    why=(
        "Two ranks that read the same sample do the same work twice; a sample that pads a set counts twice "
        "in the reported loss; and a rank with one step more than the others waits for them forever."
    ),
    hints=(
        (
            "A sampler decides which indices a loader reads. Two kinds are already imported. All ranks must make the"
            " same number of training steps; but in validation and test no sample may count twice. Which is for which?"
        ),
        (
            "Training: DistributedSampler, which takes shuffle, seed and drop_last. Validation and test: ShardSampler."
            " Both ask the process group for rank and world size."
        ),
        (
            "Return three: DistributedSampler(train, shuffle=True, seed=..., drop_last=...), and a ShardSampler for"
            " each of the other two. With drop_last=False it would pad the training set."
        ),
    ),
)
def test_todo4_samplers(student):
    seed = student.draw("seed").randrange(1 << 20)
    n_train, n_validation, n_test = SETS
    layouts = ((1, 2), *SPREAD)
    unequal = all(size % world for _, world in layouts for size in (n_train, n_validation, n_test))
    student.premise(unequal, "a padded share")
    for nodes, world in layouts:
        with on_nodes(nodes, world):
            check_samplers(student, nodes, world, seed)


def check_samplers(student, nodes, world, seed):
    n_train, n_validation, n_test = SETS
    ranks = student.call(samplers_on_rank, world=world, nodes=nodes, seed=seed).evidence
    for rank, seen in enumerate(ranks):
        expect(
            "missing" not in seen,
            f"make_samplers does not return three samplers on rank {rank}",
            "three samplers",
            seen.get("missing"),
            rank,
        )
    for name, size in (("validation", n_validation), ("test", n_test)):
        each_once(name, [seen[name] for seen in ranks], size)
    steps = n_train // BATCH
    share = BATCH // world
    for epoch in range(2):
        order = torch.randperm(n_train, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
        dealt = [seen["epochs"][epoch] for seen in ranks]
        for rank, mine in enumerate(dealt):
            left = len(mine) % share
            expect(
                len(mine) // share == steps,
                f"in training rank {rank} of {world} has samples for {len(mine) // share} steps, one process for "
                f"{steps}: the sampler does not give each rank an equal part, or it pads the set",
                f"{steps} steps of {share} samples",
                f"{len(mine) // share} steps of {share} samples" + (f", and {left} more" if left else ""),
                rank,
                hint="DistributedSampler pads the set until the ranks divide it, unless you tell it otherwise.",
            )
            for other in range(rank):
                twice = sorted(set(mine) & set(dealt[other]))
                expect(
                    not twice,
                    f"ranks {other} and {rank} of {world} both train on sample {twice[:1]}",
                    "no sample twice",
                    twice,
                    rank,
                )
        for step in range(steps):
            right = sorted(order[step * BATCH : (step + 1) * BATCH])
            seen = sorted(i for mine in dealt for i in mine[step * share : (step + 1) * share])
            expect(
                seen == right,
                f"in epoch {epoch + 1}, step {step + 1}, {world} ranks together do not read the samples that one "
                "process reads: is the order shuffled by args.seed and the epoch?",
                right,
                seen,
            )


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


def draw_shares(student, world):
    """Each sample of a set on one rank, in a drawn order; no length is divisible by a batch. A training share holds a
    whole global batch; of the other two sets some rank has none, as where a set has fewer samples than there are ranks.
    """
    draw, local = student.draw("shares", world), BATCH // world
    counts = [[times * local + 1 if times else 0 for times in shares(draw, world)] for _ in SET[1:]]
    dealt = [deal(draw, sizes) for sizes in ([BATCH + 1] * world, *counts)]
    return [list(mine) for mine in zip(*dealt, strict=True)]


def deal(draw, sizes):
    """As many parts as sizes, of the samples of a set that is as large as all of them."""
    order = draw.sample(range(sum(sizes)), sum(sizes))
    return [order[sum(sizes[:k]) : sum(sizes[: k + 1])] for k in range(len(sizes))]


SET = ("training", "validation", "test")
MANY = 100  # more than any of them has


def check_loader(student, which, name):
    for nodes, world in LOADING:
        with on_nodes(nodes, world):
            check_loader_on(student, nodes, world, which, name)


def check_loader_on(student, nodes, world, which, name):
    dealt = draw_shares(student, world)
    ranks = student.call(loaders_on_rank, world=world, nodes=nodes, dealt=dealt).evidence
    for rank, mine in enumerate(ranks):
        check_its_set(f"rank {rank} of {world}", mine["seen"][which], dealt[rank], which, rank)
    for rank, mine in enumerate(ranks):
        told, batches = f"rank {rank} of {world}", [[n % MANY for n in batch] for batch in mine["seen"][which]]
        if which == 0:
            check_training_batches(told, batches, dealt[rank][0], BATCH // world, rank)
            check_next_epoch(told, mine["again"][0], batches, next_share(dealt, rank), BATCH // world, rank)
        else:
            seen, size = [n for batch in batches for n in batch], sum(len(shares[which]) for shares in dealt)
            check_all_read(told, name, seen, dealt[rank][which], size, rank)
            again = [n % MANY for batch in mine["again"][which] for n in batch]
            check_all_read(f"{told}, in the second epoch,", name, again, dealt[rank][which], size, rank)


def check_its_set(told, batches, dealt, which, rank):
    """Samples of the loader's own set, and not those that the sampler of a different set deals."""
    other = next((SET[n // MANY] for batch in batches for n in batch if n // MANY != which), None)
    expect(
        other is None,
        f"{told} reads the {other} set where the {SET[which]} set belongs",
        f"the {SET[which]} set",
        f"the {other} set",
        rank,
    )
    seen, own = sorted(n % MANY for batch in batches for n in batch), sorted(dealt[which])
    taken = next((SET[k] for k in range(3) if seen and seen != own and seen == sorted(dealt[k])), None)
    expect(
        taken is None,
        f"{told} reads the {SET[which]} samples that the {taken} set's sampler deals",
        dealt[which],
        seen,
        rank,
    )


def check_training_batches(told, batches, share, local, rank):
    """The sampler's samples, in batches of a rank's part, without a short one."""
    right = [share[k : k + local] for k in range(0, BATCH, local)]
    seen = [n for batch in batches for n in batch]
    if batches and seen[:local] == share[:local]:
        expect(
            len(batches[0]) == local,
            f"{told} trains on batches of {len(batches[0])}: --batch-size {BATCH} is the global"
            f" batch, and a rank's part of it is {local}",
            f"batches of {local}",
            [len(b) for b in batches],
            rank,
        )
        expect(
            batches[len(right) :] != [share[BATCH:]],
            f"{told} trains on a last batch of {len(batches[-1])}: in training a "
            "short batch is left out, on all ranks alike",
            [len(b) for b in right],
            [len(b) for b in batches],
            rank,
        )
    expect(
        batches == right, f"{told} does not train on the samples that its sampler deals", right[0], batches[:1], rank
    )


def check_next_epoch(told, again, before, share, local, rank):
    expect(
        again != before,
        f"in the second epoch {told} trains on the samples of the first, in the same order, though its sampler deals"
        " others: the loader keeps those that the sampler dealt when the loader was made",
        share,
        [n for batch in again for n in batch],
        rank,
        "A loader asks its sampler at the start of each epoch. What does yours hold, the sampler or its first order?",
    )
    check_training_batches(f"in the second epoch {told}", again, share, local, rank)


def check_all_read(told, name, seen, share, size, rank):
    """The sampler's samples, all of them."""
    expect(
        len(share) == size or sorted(seen) != list(range(size)),
        f"{told} reads the whole {name} set: its sampler is not used",
        share,
        f"all {len(seen)} samples",
        rank,
    )
    lost = [i for i in share if i not in seen]
    expect(not lost, f"{told} drops {name} samples {lost}; every one counts", share, seen, rank)
    expect(
        sorted(seen) == sorted(share),
        f"{told} does not read the {name} samples that its sampler deals",
        share,
        seen,
        rank,
    )


@todo(
    5,
    minutes=10,
    why=(
        "Each rank works on its part of the global batch. If each took the whole batch size, N ranks would make steps N"
        " times as large: a different training run from a single process's, with different losses."
    ),
    hints=(
        "Two arguments of the loader change: which indices it reads, and how many at a time.",
        (
            "DataLoader takes sampler=; the batch size of a rank is the global one divided by the number of ranks. The"
            " short last batch is still dropped."
        ),
        "As before, but with batch_size=args.batch_size // ... and sampler=train_sampler.",
    ),
)
def test_todo5_train_loader(student):
    check_loader(student, 0, "training")


@todo(
    6,
    minutes=5,
    why=(
        "Together the ranks read the validation set once. A rank that reads the whole set saves no time; one that drops"
        " its last batch changes the loss that decides which checkpoint is the best."
    ),
    hints=(
        "Like TODO 5, but nothing may be dropped.",
        "DataLoader takes sampler=; it drops nothing unless drop_last is set.",
        "DataLoader(validation, batch_size=... as in TODO 5, sampler=validation_sampler, and no drop_last).",
    ),
)
def test_todo6_validation_loader(student):
    check_loader(student, 1, "validation")


@todo(
    7,
    minutes=5,
    why="The test set needs the same care as the validation set: its loss is the number that gets published.",
    hints=(
        "Like TODO 6, with a different set.",
        "DataLoader(test, batch_size=..., sampler=...).",
        "sampler=test_sampler, and the rest as in TODO 6.",
    ),
)
def test_todo7_test_loader(student):
    check_loader(student, 2, "test")


# ---------------------------------------------------------------------------------------------------
# TODO 8: one model


def gradients_on_one_process(seeds):
    """For each rank's batch, the gradients that one process with rank 0's weights computes."""
    model, own = tiny_model(seeds[0][0]), []
    for _, seed in seeds:
        model.zero_grad()
        model(*tiny_batch(seed)).backward()
        own.append({name: p.grad.clone() for name, p in model.named_parameters()})
    return own


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


@todo(
    8,
    minutes=10,
    why=(
        "Ranks that do not exchange gradients train models that drift apart: N trainings, each on a part of the data;"
        " and the saved model has seen only one part."
    ),
    hints=(
        "torch has a wrapper that does both: equal first weights, and gradients averaged during the backward pass.",
        "DistributedDataParallel, imported above. Its device_ids is for GPUs; on the CPU it is None.",
        "Return DistributedDataParallel(model, device_ids=...) with [device] there on a GPU, else None.",
    ),
)
def test_todo8_wrap(student):
    world = 3
    draw = student.draw("wrap")
    seeds = [[draw.randrange(1 << 40), draw.randrange(1 << 40)] for _ in range(world)]
    own = student.reference(gradients_on_one_process, seeds=seeds)
    mean = {name: sum(g[name] for g in own) / world for name in own[0]}
    apart = any(not torch.allclose(mean[name], own[0][name], rtol=1e-2, atol=1e-5) for name in mean)
    student.premise(apart, "the gradients of one rank")
    for nodes in (1, world):
        with on_nodes(nodes, world):
            check_wrap(student, nodes, world, seeds, own, mean)


def check_wrap(student, nodes, world, seeds, own, mean):
    run = student.call(wrap_on_rank, world=world, nodes=nodes, seeds=Private(seeds))
    ranks = run.evidence
    for rank, seen in enumerate(ranks):
        own_gpu = rank % (world // nodes)
        expect(
            seen["gpus"] in (["other"], [own_gpu]),
            f"on GPU {own_gpu} of its node, rank {rank} tells DistributedDataParallel"
            f" {'a different GPU' if seen['gpus'] else 'no GPU'}",
            [own_gpu],
            seen["gpus"],
            rank,
        )
        for name in mean:
            expect(
                name in seen["weights"],
                f"the wrapped model has no parameter {name} on rank {rank}",
                name,
                sorted(seen["weights"])[:3],
                rank,
            )
            check_tensor(
                f"the first {name} on rank {rank} of {world}",
                seen["weights"][name],
                ranks[0]["weights"][name],
                rank=rank,
                than="rank 0's",
            )
    for rank, seen in enumerate(ranks):
        for name, right in mean.items():
            grad = seen["grads"][name]
            expect(grad is not None, f"{name} has no gradient on rank {rank}", "a gradient", None, rank)
            summed = right * world, "All ranks' gradients are in the sum: by what must it be divided?"
            check_tensor(
                f"after backward on rank {rank} of {world}, the gradient of {name}",
                grad,
                right,
                1e-4,  # float32 sums in a different order: 1e-6 measured
                rank,
                wrongs={
                    "the gradient of this rank's batch alone: nothing is averaged over the ranks": own[rank][name],
                    f"summed over the {world} ranks, not averaged": summed,
                },
                than="what one process computes on the whole batch",
            )
    held = sum(grad.numel() * grad.element_size() for grad in mean.values())
    for rank, events in enumerate(run.events):
        sent = sum(e["bytes"] for e in events if e["e"] == "op")
        expect(
            sent >= 2 * held,
            f"rank {rank} gave {sent} bytes to the others in two backward passes; its gradients are "
            f"{held} bytes each time",
            f"at least {2 * held} bytes",
            f"{sent} bytes",
            rank,
        )


# ---------------------------------------------------------------------------------------------------
# TODO 10: the mean over all tokens


def draw_means(student):
    """Totals and counts of three ranks, by case. First, rank 1 has most tokens and the largest mean; then rank 2 has
    none; then all have about as many, but more than float32 and int32 can count; last, rank 0's total is nan. An answer
    that weights ranks instead of tokens shows.
    """
    draw, cases = student.draw("means"), []
    for last in (1, 0):
        counts = [float(draw.randrange(2, 5)), float(draw.randrange(10, 20)), float(last * draw.randrange(2, 5))]
        totals = [counts[0] * draw.uniform(1, 2), counts[1] * draw.uniform(4, 6), counts[2] * draw.uniform(2, 3)]
        cases.append((totals, counts))
    many = [int(number) + LARGE for number in numbers(draw, 3)]
    cases.append(([count * draw.uniform(1, 6) for count in many], [float(count) for count in many]))
    return [*cases, ([math.nan, *totals[1:]], counts)]  # a rank that has diverged, which must show


def mean_on_rank(code, rank, world, mine):
    """`mine`: this rank's total and count of each case; it must learn the other ranks'."""
    return [
        float(code.global_mean(torch.tensor(total, dtype=torch.float64), torch.tensor(count, dtype=torch.float64)))
        for total, count in mine
    ]


@todo(
    10,
    minutes=10,
    why=(
        "The last rank often has fewer tokens. A mean of means gives them more weight than other tokens, so the loss"
        " changes with the number of ranks; and a rank with no tokens at all has no mean."
    ),
    hints=(
        "Which two numbers, known for all ranks together, give the mean?",
        "dist.all_reduce adds a tensor up over all ranks, in place. It must be called for both, on every rank.",
        "all_reduce the total, all_reduce the count (or both stacked in one tensor), then divide and take .item().",
    ),
)
def test_todo10_global_mean(student):
    world = 3
    for nodes in (1, world):
        with on_nodes(nodes, world):
            check_means(student, nodes, world)


def check_means(student, nodes, world):
    cases = draw_means(student)
    ranks = student.call(
        mean_on_rank,
        world=world,
        nodes=nodes,
        anywhere=True,
        mine=Private([[(totals[rank], counts[rank]) for totals, counts in cases] for rank in range(world)]),
    ).evidence
    for case, (totals, counts) in enumerate(cases):
        right = sum(totals) / sum(counts)
        means = [t / c if c else math.nan for t, c in zip(totals, counts, strict=True)]
        for rank, values in enumerate(ranks):
            value = values[case]
            if math.isnan(right):
                told = (
                    f"global_mean is {value}, where rank 0's total is nan: a run that has diverged would look healthy"
                )
                expect(math.isnan(value), told, "nan", value, rank)
                continue
            if math.isclose(value, right, rel_tol=1e-12):  # both are float64, with a last digit of 1e-15
                continue
            if math.isclose(value, means[rank], rel_tol=1e-6):
                what = f"it is rank {rank}'s own mean: nothing is reduced over the ranks"
            elif math.isclose(value, sum(means) / world, rel_tol=1e-6) or math.isnan(value):
                what = (
                    f"it is the mean of the ranks' means, which gives a rank of {counts[0]:g} tokens the same weight as"
                    f" one of {counts[1]:g}. Reduce the sum and the count, then divide once"
                )
            elif math.isclose(value, right * world, rel_tol=1e-6) or math.isclose(value, sum(means), rel_tol=1e-6):
                what = "it is a sum over the ranks that is not divided by the right number"
            elif math.isclose(value, right, rel_tol=1e-6):
                what = "its last digits are lost. Totals and counts are float64; in which dtype are they added up?"
            else:
                what = "it is not the sum of the totals over the sum of the counts"
            raise Wrong(
                f"global_mean of totals {[round(t, 3) for t in totals]} and counts {counts} is wrong on rank {rank}:"
                f" {what}",
                right,
                value,
                rank,
            )


# ---------------------------------------------------------------------------------------------------
# Whole runs: TODOs 9, 11, 13


EPOCHS = 4  # epoch % 2 and epoch % 3 are not the epoch
# SGD, since Adam turns rounding into error where a gradient is zero in theory; and a learning rate that moves weights.
ARGV = (
    f"--data data --out out --epochs {EPOCHS} --batch-size {BATCH} --seq-len 8 --dim 16 --heads 2 --layers 1 "
    "--optimizer sgd --lr 0.5 --seed 5 --log-every 2"
).split()


def whole_run(student, world, nodes=1):
    return student.run(ARGV, corpus(student), world=world, nodes=nodes)


def serial_run(student):
    return student.serial(ARGV, corpus(student))


@todo(
    9,
    minutes=10,
    needs=(1, 2, 4, 5, 8),
    why=(
        "The sampler's order depends on the seed and the epoch. If it is never told the epoch, every epoch has the same"
        " batches in the same order, without a warning, and the model learns less from them."
    ),
    hints=(
        "The sampler of the training set has a method for it.",
        "set_epoch, called before the loader is read in each epoch.",
        "Call set_epoch on samplers[0] with the number of this epoch, counted from 0.",
    ),
)
def test_todo9_epoch(student):
    serial = training(serial_run(student).evidence[0])
    an_epoch = len(serial) // EPOCHS
    first = [sorted(serial[k][0]) for k in range(0, len(serial), an_epoch)]
    student.premise(all(a != b for a, b in combinations(first, 2)), "the same order in two epochs")
    for nodes, world in LAYOUTS:
        ranks = [training(evidence) for evidence in whole_run(student, world, nodes).evidence]
        for rank, steps in enumerate(ranks):
            expect(
                len(steps) == len(serial),
                f"rank {rank} of {world} makes {len(steps)} training steps, one process makes {len(serial)}",
                len(serial),
                len(steps),
                rank,
            )
        for k in range(len(serial)):
            seen = sorted(row for steps in ranks for row in steps[k][0])
            if seen != sorted(serial[k][0]):
                before = range(k - an_epoch, -1, -an_epoch)
                again = [j for j in before if seen == sorted(row for steps in ranks for row in steps[j][0])]
                raise Wrong(
                    (
                        f"epoch {k // an_epoch + 1} trains on the batches of epoch {again[0] // an_epoch + 1}, in the"
                        " same order"
                        if again
                        else (
                            f"in step {k + 1} the {world} ranks do not train on the samples that one process trains on"
                            " (one process counts epochs from 0)"
                        )
                    ),
                    "the samples of the serial run",
                    f"different ones, first in step {k + 1}",
                )


@todo(
    11,
    minutes=10,
    needs=(1, 2),
    why=(
        "If each of a thousand ranks prints a line, no one can read the output; one line is enough, since all ranks"
        " have the same numbers."
    ),
    hints=(
        "One rank prints, the others stay silent. There is a helper for it among the imports.",
        "print0 of utils.distributed prints on rank 0 only; `if rank == 0:` does the same.",
        "Put print0 in place of print, in all three places.",
    ),
)
def test_todo11_print(student):
    def lines(text):
        # Without the lines that report progress in a long run: they depend on the clock.
        return [line for line in text.splitlines() if line.strip() and not line.startswith("step ")]

    serial = serial_run(student)
    right = len(lines(serial.stdout[0]))
    losses = [f"{loss:.4f}" for loss in measured(serial).values()]
    student.premise(len(set(losses)) == len(losses), "one loss in place of another")
    for nodes, world in LAYOUTS:
        run = whole_run(student, world, nodes)
        printed = [lines(text) for text in run.stdout]
        speakers = [rank for rank, said in enumerate(printed) if said]
        total = sum(len(said) for said in printed)
        with on_nodes(nodes, world):
            expect(
                total >= right,
                f"{world} ranks together print {total} lines, one process prints {right}: some output is missing",
                f"{right} lines",
                f"{total} lines",
            )
            if total > right or len(speakers) > 1:
                second = speakers[1] if len(speakers) > 1 else speakers[0]
                raise Wrong(
                    f"{world} ranks print {total} lines where one process prints {right}; rank {second} prints"
                    f" “{printed[second][0][:60]}”",
                    f"{right} lines, by one rank",
                    f"{total} lines, by ranks {speakers}",
                    second,
                )
            check_printed(printed[speakers[0]], measured(run), speakers[0])


def measured(run):
    """The losses of a run that are worth a line, as its metrics.jsonl has them."""
    found = {}
    for line in reported(run):
        if line["kind"] == "epoch":
            found[f"the validation loss of epoch {line['epoch']}"] = line["validation_loss"]
        elif line["kind"] == "test":
            found["the test loss"] = line["loss"]
    return found


def check_printed(lines, losses, rank):
    """Each loss is among the numbers that are printed, rounded as they are: to half of the last digit."""
    numbers = re.findall(r"\d+\.\d+", " ".join(lines))
    for what, loss in losses.items():
        expect(
            not math.isfinite(loss)
            or any(abs(float(number) - loss) < 0.51 * 0.1 ** len(number.partition(".")[2]) for number in numbers),
            f"rank {rank} does not print {what}, which is {loss:.4f}",
            f"{loss:.4f}",
            [line for line in lines if re.search(r"\d\.\d", line)],
            rank,
            "The number of lines is right. Which numbers does each of the three places print?",
        )


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


@todo(
    12,
    minutes=10,
    why=(
        "Ranks that write one file at the same time can break it. And a pickled wrapper, or weights whose names"
        " start with “module.”, can be loaded only by a program that wraps its model in the same way."
    ),
    hints=(
        "Two questions: which rank saves, and what. The wrapper keeps the given model in an attribute.",
        "save0 of utils.distributed saves on rank 0 only; a DistributedDataParallel has the plain model as .module.",
        (
            "Take model.module if model is a DistributedDataParallel, and give save0 the same dictionary with its"
            " state_dict()."
        ),
    ),
)
def test_todo12_save(student):
    for nodes, world in ((1, 2), (3, 3)):
        with on_nodes(nodes, world):
            check_save(student, nodes, world)


def check_save(student, nodes, world):
    run = student.call(save_on_rank, world=world, nodes=nodes)
    writers = one_writer(run)
    check_checkpoint(
        run.files["saved/model.pt"],
        model_to_save(seed=0).state_dict(),
        epoch=3,
        config=TINY,
        earlier=model_to_save(seed=1).state_dict(),
    )
    alone = student.call(save_on_rank, world=1)  # rank 0 and the last one, with a model that is also wrapped
    expect(
        "saved/model.pt" in alone.files,
        f"rank {writers[0]} saves; a process that runs alone is rank 0, and saves nothing",
        "rank 0 saves",
        f"rank {writers[0]} saves",
        writers[0],
    )
    with hinted(
        "This file was saved by a single process. Its model is wrapped, too: look at the model, not at the world size."
    ):
        check_checkpoint(alone.files["saved/model.pt"], model_to_save(seed=0).state_dict())


# ---------------------------------------------------------------------------------------------------
# TODO 13: leave the group; and the law of the course


@todo(
    13,
    minutes=10,
    needs=tuple(range(1, 13)),
    why=(
        "A process that ends while NCCL is still working can hang or crash the others. This check also looks back"
        " over the whole script: the parallel run must be the serial run, on any number of ranks."
    ),
    hints=(
        "It is the counterpart of TODO 1, when all work is done.",
        "dist.destroy_process_group, or the helper in utils.distributed that may be called with or without a group.",
        "Call the imported clean-up helper as the last statement of main.",
    ),
)
def test_todo13_clean_up(student):
    serial = serial_run(student)
    for nodes, world in (*LAYOUTS, (2, 4), (1, 1)):
        run = whole_run(student, world, nodes)
        for rank, evidence in enumerate(run.evidence):
            expect(
                not evidence["still_in_a_group"],
                f"rank {rank} of {world} ends without leaving the process group",
                "no group",
                "a group",
                rank,
            )
        with on_nodes(nodes, world):
            same_run(serial, run, world)


# ---------------------------------------------------------------------------------------------------
# TODOs 14–18: the batch files, run by stand-ins of the schedulers' commands (grader/engine/jobs/)


@todo(
    14,
    minutes=5,
    why=(
        "The scheduler grants as many as you request, and no process can use more. But GPUs that were requested and are"
        " idle cost the same."
    ),
    hints=(
        (
            "For Slurm it is one of the #SBATCH lines; Polaris always gives whole nodes, so there it is a variable of"
            " the file."
        ),
        "#SBATCH --gres=gpu:... asks for GPUs on each node; for PBS the number is in GPUS, exported.",
        "Change the 1 into the number of GPUs of a node.",
    ),
)
def test_todo14_gpus(student):
    for unit in student.batch_files(14):
        if unit.name.endswith(".sbatch"):
            seen = header.gpus_asked(unit.text)
        else:
            student.submit(unit, 1)
            seen = batch.number_or_zero(student.variable("GPUS"))
            expect(
                student.variable("GPUS"),
                f"{unit.name} does not tell its processes GPUS: is it exported?",
                header.GPUS,
                "no GPUS in the environment",
            )
        expect(
            seen == header.GPUS,
            f"{unit.name} asks for {seen} GPU{'s' if seen != 1 else ''} per node{slip(unit)}",
            f"{header.GPUS} GPUs",
            f"{seen}",
        )


def slip(unit):
    """A likely reason why a directive does not mean what was intended."""
    found = header.slip(unit.text)
    return f": {found}" if found else ""


@todo(
    15,
    minutes=10,
    needs=(14,),
    why=(
        "CUDA_VISIBLE_DEVICES hides every GPU that it does not name. With one GPU visible, four processes would use the"
        " same one, or torchrun would start just one, and three granted GPUs would be idle for hours: check this first"
        " in a job's report."
    ),
    hints=(
        "The given line names one GPU. They are numbered from 0.",
        "A list with commas. Slurm says in SLURM_GPUS_ON_NODE how many there are; `seq -s , 0 3` counts.",
        "export CUDA_VISIBLE_DEVICES=0,1,... up to the last one.",
    ),
)
def test_todo15_visible(student):
    right = [str(n) for n in range(header.GPUS)]
    for unit in student.batch_files(15):
        for nodes in stand_ins.JOBS:
            for ranks in student.submit(unit, nodes):
                of = f"each of its {nodes} nodes" if nodes > 1 else "the job"
                expect(
                    sorted(set(ranks.visible)) == right,
                    f"by {unit.name} the processes see GPU {', '.join(ranks.visible) or 'none'}; {of} has"
                    f" {header.GPUS}",
                    f"GPUs {', '.join(right)}",
                    ", ".join(ranks.visible),
                )


@todo(
    16,
    minutes=10,
    why=(
        "Processes on different nodes know nothing of each other until they meet at one address. Two jobs that choose"
        " the same port on one node disturb each other: one of them fails or, worse, they join."
    ),
    hints=(
        "The scheduler knows the job's nodes; use the first one. And it gives each job a number.",
        (
            'Slurm: scontrol show hostnames "$SLURM_JOB_NODELIST" lists the nodes, and SLURM_JOB_ID is the number. PBS:'
            " the lines of the file $PBS_NODEFILE, and PBS_JOBID, whose number ends at the first dot. Arithmetic is $(("
            " ... ))."
        ),
        "export MASTER_ADDR=$(... | head -n 1)$NODE_SUFFIX and MASTER_PORT=$((20000 + the job's number % 20000)).",
    ),
)
def test_todo16_meeting_place(student):
    for unit in student.batch_files(16):
        first, ports, slow = first_node(unit.name), [], []  # slow: names of the first node on the slow network
        for nodes in stand_ins.JOBS:
            for ranks in student.submit(unit, nodes):
                place, _, port = (ranks.address if ranks.address.strip(":") else ranks.place).rpartition(":")
                said = f"; it says: {student.said.strip().splitlines()[-1]}" if student.said.strip() else ""
                for name, value in (("MASTER_ADDR", place), ("MASTER_PORT", port)):
                    expect(
                        value,
                        f"by {unit.name} the processes are told no {name}{said}",
                        f"{name} in their environment",
                        "none",
                        hint=OCTAL if "value too great for base" in said else "",
                    )
                expect(
                    is_first_node(place) or (nodes == 1 and place in LOCAL),
                    f"by {unit.name} the processes on node {ranks.node} of {nodes} look for the others at {place}"
                    + (", which is each node itself" if place in LOCAL else f", which is not the first node{said}"),
                    f"{first}$NODE_SUFFIX" if unit.name.endswith(".sbatch") else first,
                    place,
                )
                slow += [place] if place.split(".")[0] == first else []
                expect(
                    port.isdecimal() and 1024 <= int(port) < 65536,
                    f"by {unit.name} the processes meet at port “{port}”",
                    "1024 … 65535",
                    port,
                )
                ports.append(port)
        expect(
            len(set(ports)) > 1,
            f"{unit.name} meets at port {ports[0]} in every job: two jobs with a node in common would collide",
            "a different port for each job",
            ports[0],
        )
        again = (student.submit(unit, 2, again=True)[0].address or ":").rpartition(":")[2]
        expect(
            again not in ports,
            f"{unit.name} meets at port {again} in two jobs: they differ in their numbers, {stand_ins.AGAIN} and"
            f" {stand_ins.JOBS[2]}, and not in their nodes, so by what does the port differ?",
            "a different port for each job",
            again,
        )
        expect(
            not slow or not unit.name.endswith(".sbatch"),
            f"by {unit.name} the processes look for the first node at {first}, its name on the slow"
            " network: on JURECA $NODE_SUFFIX is i",
            f"{first}$NODE_SUFFIX",
            first,
        )


OCTAL = "To bash, a number that starts with 0 is octal and has no 8 or 9: one job in twenty fails. Specify base 10."


@todo(
    17,
    minutes=10,
    needs=(15, 16),
    why=(
        "Each GPU needs its own process, and each process needs its own rank. If a variable is expanded too early, on"
        " the first node, all nodes believe that they are that node, and the job waits until its time is over."
    ),
    hints=(
        (
            "srun and mpiexec run one command on each node; that command is torchrun, and torchrun starts the processes"
            " of its node. docs/launching.md explains its arguments."
        ),
        (
            "torchrun takes --nnodes, --node-rank, --nproc-per-node, --master-addr and --master-port. A node's own"
            " number is SLURM_NODEID or PMI_RANK there: put the command into bash -c '...', in single quotes, so that"
            " only the node's shell reads it."
        ),
        (
            'srun --cpu-bind=none bash -c \'torchrun --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" ...'
            ' train/ddp_training.py "$@"\' bash "$@"; the word bash at the end becomes the inner shell\'s name,'
            " the arguments follow it; --cpu-bind=none lets the processes use all cores. On Polaris mpiexec"
            ' -n "$NODES" --ppn 1 --hostfile "$PBS_NODEFILE" instead of srun.'
        ),
    ),
)
def test_todo17_launch(student):
    for unit in student.batch_files(17):
        check_launches(student, unit)


@todo(
    18,
    minutes=5,
    why=(
        "This is what all earlier TODOs were for: one number adds nodes. What ran on one node runs on two, with the"
        " same losses, if every process learns its place from the scheduler, not from a number in the file."
    ),
    hints=("It is one number in the header.", "#SBATCH --nodes=..., or select=... of #PBS -l.", "Change the 1 into 2."),
)
def test_todo18_nodes(student):
    for unit in student.batch_files(18):
        seen = header.nodes_asked(unit.text)
        expect(
            seen == 2, f"{unit.name} asks for {seen} node{'s' if seen != 1 else ''}{slip(unit)}", "2 nodes", f"{seen}"
        )
        if "gpus" in header.header(unit.text):
            a_node = header.gpus_asked(unit.text)
            expect(
                a_node == header.GPUS,
                f"{unit.name} asks for {a_node} GPUs per node: --gpus counts the GPUs of the whole job",
                f"{header.GPUS} on each",
                f"{a_node} on each",
            )
