"""Checks of ddp_training, TODOs 4, 5, 6, 7 and 9: samples.

| TODO | achievement                        | evidence                                                   | needs          |
|------|------------------------------------|------------------------------------------------------------|----------------|
| 4    | a share of every set               | the indices that each rank's samplers yield, two epochs    |                |
| 5–7  | three loaders                      | the samples and batch sizes they yield, given our samplers, two epochs |    |
| 9    | a new order in each epoch          | whole run: what reached the model, step by step            | 1, 2, 4, 5, 8  |
"""  # noqa: E501

from itertools import combinations

import torch

from grader.kit import Wrong, each_once, expect, on_nodes, shares, todo, training

from .common import EPOCHS, LAYOUTS, serial_run, whole_run
from .ranks import BATCH, MANY, SET, SETS, loaders_on_rank, next_share, samplers_on_rank

# ---------------------------------------------------------------------------------------------------
# TODOs 1–3: setup()


# In the second every rank is number 0 on its node: an answer that confuses rank and local rank is wrong only here.
SPREAD = ((1, 3), (3, 3))


LOADING = ((1, 2), (3, 3))  # batches of unequal size on a rank


# ---------------------------------------------------------------------------------------------------
# TODO 4: samplers


@todo(4)
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


@todo(5)
def test_todo5_train_loader(student):
    check_loader(student, 0, "training")


@todo(6)
def test_todo6_validation_loader(student):
    check_loader(student, 1, "validation")


@todo(7)
def test_todo7_test_loader(student):
    check_loader(student, 2, "test")


# ---------------------------------------------------------------------------------------------------
# Whole runs: TODOs 9, 11, 13


@todo(9, needs=(1, 2, 4, 5, 8))
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
