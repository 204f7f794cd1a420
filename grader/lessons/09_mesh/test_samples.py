"""Checks of 09_mesh, TODO 3: samples.

| TODO | achievement                                | evidence                                                        | needs |
|------|--------------------------------------------|-----------------------------------------------------------------|-------|
| 3    | the samples and tokens of each rank      | samples by rank over two epochs; tokens and their places        |       |
"""  # noqa: E501

import torch

from grader.kit import expect, hinted, meshes, todo

from .common import box, shuffled, spoken
from .ranks import AXES, players_of, samples_on_rank, words_of

# ---------------------------------------------------------------------------------------------------
# TODO 3: samples and tokens


@todo(3)
def test_todo3_samples(student):
    draw = student.draw("samples")
    for world, boxes in student.several((
        (8, [{"pp": 2, "dp": 2, "tp": 2}, {"dp": 2, "shard": 2, "tp": 2}, {"shard": 4, "cp": 2}, {"cp": 4, "tp": 2},
             {"pp": 2, "dp": 1, "shard": 2, "cp": 2, "tp": 1}, {"dp": 8}]),
        (6, meshes(draw, 6, AXES, beside=("dp", "shard"))),
        (5, [{"dp": 5}]),
        (1, [{"pp": 1, "dp": 1, "tp": 1}]),
    ), 2):  # fmt: skip
        todo = []
        for sizes in boxes:
            parts = sizes.get("cp", 1)
            shape = [draw.randint(1, 3), parts * draw.randint(2, 5)]
            todo.append(
                {
                    "sizes": shuffled(draw, sizes),
                    "samples": draw.randint(33, 60),
                    "seed": draw.randint(1, 999),
                    "shape": shape,
                }
            )
        ranks = student.call(samples_on_rank, world=world, todo=todo).evidence
        for number_of_case, case in enumerate(todo):
            check_samples(case, [mine[number_of_case] for mine in ranks])


def check_samples(case, ranks):
    sizes = case["sizes"]
    told, places = f"on a mesh of {spoken(sizes)}", box(sizes)
    players = sizes.get("dp", 1) * sizes.get("shard", 1)
    numbers = {}
    for rank, (mine, place) in enumerate(zip(ranks, places, strict=True)):
        at = (place.get("dp", 0), place.get("shard", 0))
        got = mine["place"]
        right = isinstance(got, list) and len(got) == 2 and all(isinstance(part, int) for part in got)
        expect(right, f"data_place {told} is not two whole numbers", f"a number, and {players}", got, rank)
        expect(
            got[1] == players,
            f"data_place {told}: {got[1]} read different samples",
            f"{players}: the places on dp times those on shard",
            got[1],
            rank,
        )
        known = numbers.setdefault(at, got[0])
        expect(
            known == got[0],
            f"data_place {told}: rank {rank} must read the same as the other ranks at its place on dp and shard",
            known,
            got[0],
            rank,
        )
        expect(
            0 <= got[0] < players, f"data_place {told}: there is no such number", f"0 to {players - 1}", got[0], rank
        )
    expect(
        len(set(numbers.values())) == players,
        f"data_place {told}: two places on dp and shard have the same number",
        f"{players} different ones",
        sorted(numbers.values()),
    )
    with hinted(
        "Unless you pass them, a sampler takes rank and world size from the process group. Here data_place gives"
        " both; and seed and epoch make the same permutation on all ranks."
    ):
        check_sampler(case, ranks, told)
    with hinted(
        "Which dimension of a batch are its tokens? Number the tokens of a whole sequence: which numbers has the second"
        " part of two?"
    ):
        check_tokens(case, ranks, told)


def check_sampler(case, ranks, told):
    sizes, n = case["sizes"], case["samples"]
    players, places = players_of(case), box(sizes)
    for epoch in range(2):
        order = torch.randperm(n, generator=torch.Generator().manual_seed(case["seed"] + epoch)).tolist()
        read = {}
        for rank, (mine, place) in enumerate(zip(ranks, places, strict=True)):
            at, got = (place.get("dp", 0), place.get("shard", 0)), mine["epochs"][epoch]
            expect(isinstance(got, list), f"make_sampler {told} gives no samples", "samples", got, rank)
            known = read.setdefault(at, got)
            expect(
                known == got,
                f"{told}, rank {rank} does not read the samples that other ranks at its place on dp and shard read,"
                f" in epoch {epoch}",
                known[:8],
                got[:8],
                rank,
            )
        for rank, mine in enumerate(ranks):
            got = mine["epochs"][epoch]
            expect(
                len(got) == n // players,
                f"{told}, rank {rank} reads {len(got)} of {n} samples",
                n // players,
                len(got),
                rank,
            )
        for step in range(n // players):
            together, due = sorted(mine[step] for mine in read.values()), order[step * players : (step + 1) * players]
            expect(
                together == sorted(due),
                f"{told}, the ranks together do not read the samples of one process, in epoch {epoch}, turn {step}",
                f"{sorted(due)}, each once",
                together,
            )


def check_tokens(case, ranks, told):
    sizes = case["sizes"]
    x, y = words_of(case)
    for rank, (mine, place) in enumerate(zip(ranks, box(sizes), strict=True)):
        width = x.shape[1] // sizes.get("cp", 1)
        begin = place.get("cp", 0) * width
        rights = (x[:, begin : begin + width], y[:, begin : begin + width], torch.arange(begin, begin + width))
        got = mine["tokens"]
        whole = isinstance(got, list) and len(got) == 3 and all(isinstance(part, torch.Tensor) for part in got)
        expect(whole, f"my_tokens {told} does not return three tensors", "words, targets, places", str(got)[:80], rank)
        for name, part, right in zip(("words", "targets", "places"), got, rights, strict=True):
            expect(
                part.dtype in (right.dtype, torch.int64),
                f"my_tokens of words in int32, {told}: the {name} of rank {rank} have a different dtype",
                str(right.dtype).removeprefix("torch."),
                str(part.dtype).removeprefix("torch."),
                rank,
            )
            expect(
                part.shape == right.shape and bool((part == right).all()),
                f"my_tokens of sequences of {x.shape[1]} {told}: the {name} of rank {rank} are wrong",
                f"{tuple(right.shape)}: {right.flatten().tolist()[:8]}",
                f"{tuple(part.shape)}: {part.flatten().tolist()[:8]}",
                rank,
            )
