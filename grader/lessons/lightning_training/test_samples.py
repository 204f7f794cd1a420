"""Checks of lightning_training, TODOs 6 and 7: samples.

| TODO | achievement                      | evidence                                                                  | needs |
|------|----------------------------------|---------------------------------------------------------------------------|-------|
| 6    | a share of the training set      | the samples that each rank's loader yields, two epochs                     |       |
| 7    | a share of the other two         | the same                                                                   |       |
"""  # noqa: E501

import math

import torch

from grader.kit import each_once, expect, hinted, on_nodes, todo

from .ranks import BATCH, SETS, loaders_on_rank

SPREAD = ((1, 3), (3, 3))  # in the second every rank is number 0 on its node


LOADING = ((1, 2), *SPREAD)


# ---------------------------------------------------------------------------------------------------
# TODOs 6 and 7: loaders


def train_batches(student, nodes, world, seed):
    return student.call(loaders_on_rank, world=world, nodes=nodes, seed=seed).evidence


@todo(6)
def test_todo6_train_loader(student):
    student.premise(all(SETS[0] % world for _, world in LOADING), "a padded share")
    for nodes, world in LOADING:
        with on_nodes(nodes, world):
            check_train_loader(student, nodes, world)


def check_train_loader(student, nodes, world):
    seed, n_train = student.draw("seed", nodes, world).randrange(1 << 20), SETS[0]
    ranks = train_batches(student, nodes, world, seed)
    for epoch in range(2):
        order = torch.randperm(n_train, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
        for rank, seen in enumerate(ranks):
            check_batches(rank, world, seen["epochs"][epoch])
        for step in range(n_train // BATCH):
            right = sorted(order[step * BATCH : (step + 1) * BATCH])
            seen = sorted(i for rank in ranks for i in rank["epochs"][epoch][step])
            twice = sorted({i for i in seen if seen.count(i) > 1})
            expect(
                not twice,
                f"in epoch {epoch + 1}, step {step + 1}, sample {twice[:1]} is on several of {world} ranks",
                "no sample twice",
                twice,
                hint=(
                    "Each rank takes a share by its number. Which of its numbers does no other rank have, on any node?"
                ),
            )
            expect(
                seen == right,
                f"in epoch {epoch + 1}, step {step + 1}, {world} ranks together do not read the samples that one"
                " process reads: is the order shuffled by args.seed and the epoch?",
                right,
                seen,
                hint="One order is dealt to all ranks. What determines the shuffle, and is it the same on all of them?",
            )


def check_batches(rank, world, mine):
    """What one rank of several reads in an epoch of training, batch by batch."""
    n_train, steps, share = SETS[0], SETS[0] // BATCH, BATCH // world
    strange = [i for batch in mine for i in batch if i >= n_train]
    expect(
        not strange,
        f"rank {rank} of {world} trains on samples of a different set",
        "the training set",
        strange[:1],
        rank,
        "Data has three sets. Which one does the loader get, and which one the sampler?",
    )
    expect(
        mine and len(mine[0]) == share,
        f"rank {rank} of {world} trains on batches of {len(mine[0]) if mine else 0}: --batch-size {BATCH}"
        f" is the global batch, and a rank's part of it is {share}",
        f"batches of {share}",
        [len(batch) for batch in mine],
        rank,
        "Over how many ranks is the global batch divided, and which object knows that number?",
    )
    read = sum(len(batch) for batch in mine)
    expect(
        read <= math.ceil(n_train / world),
        f"rank {rank} of {world} reads {read} of {n_train} samples in an epoch, more than a share: the ranks"
        " together read some twice",
        f"{steps * share} samples",
        read,
        rank,
        "Which sampler deals to one rank of several, and is it told how many there are?",
    )
    expect(
        [len(batch) for batch in mine] == [share] * steps,
        f"rank {rank} of {world} makes steps of {[len(batch) for batch in mine]} samples in an epoch, "
        f"one process makes {steps} of {BATCH}: is the share padded, or a short batch kept?",
        [share] * steps,
        [len(batch) for batch in mine],
        rank,
        "Samples that do not divide can be dropped or repeated, by the sampler and by the loader. What does each do?",
    )


@todo(7)
def test_todo7_evaluation_loader(student):
    student.premise(all(size % world for _, world in LOADING for size in SETS[1:3]), "a padded share")
    for nodes, world in LOADING:
        with on_nodes(nodes, world):
            check_evaluation_loaders(student, nodes, world)


def check_evaluation_loaders(student, nodes, world):
    ranks = train_batches(student, nodes, world, seed=7)
    for name, first, size in (("validation", 100, SETS[1]), ("test", 200, SETS[2])):
        other = [i for seen in ranks for i in seen[name] if not first <= i < first + size]
        expect(
            not other,
            f"the {name} loader reads a different set",
            f"the {name} set",
            f"sample {other[0] % 100 if other else ''} of another",
            hint="Each loader has its own set, and so has its sampler. Which one is named here?",
        )
        whole = [rank for rank, seen in enumerate(ranks) if len(set(seen[name])) == size > 1]
        expect(
            not whole,
            f"rank {whole[:1]} of {world} reads the whole {name} set: so does one process, in the same time",
            "a share",
            f"all {size} samples",
        )
        with hinted(
            "Nothing may be dropped or repeated. Which sampler deals like that, and which number of a rank does it get?"
        ):
            each_once(name, [[i - first for i in seen[name]] for seen in ranks], size)
