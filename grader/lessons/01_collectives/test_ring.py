"""Checks of 01_collectives, TODOs 4 to 6: ring.

| TODO | achievement                                  | evidence                                                     | needs |
|------|----------------------------------------------|--------------------------------------------------------------|-------|
| 4, 5 | reduce-scatter and all-gather by a ring      | values; size, neighbours and rounds of all messages          |       |
| 6    | all-reduce from the two                      | the same; the predicted bytes                                | 4, 5  |
"""  # noqa: E501

import math

import torch

from grader.kit import expect, todo

from .common import check_collective, check_rounds, check_sizes, pieces

# ---------------------------------------------------------------------------------------------------
# TODOs 3–7: collectives made of messages


def total(vectors_of_ranks):
    return torch.tensor(vectors_of_ranks, dtype=torch.float64).sum(dim=0).tolist()


def ring_budget(times, rightward=False):
    """The budget of `times` (N - 1) rounds between neighbours; `rightward`: the TODO says in which direction."""

    def check(what, messages, world, piece, a_number):
        for source, target in ((message.source, message.target) for message in messages):
            expect(
                (target - source) % world in (1, world - 1),
                f"{what}: rank {source} sends to rank {target}, which is not a neighbour",
                f"only to rank {(source + 1) % world} or {(source - 1) % world}",
                f"to rank {target}",
                source,
            )
            expect(
                not rightward or target == (source + 1) % world,
                f"{what}: rank {source} sends to rank {target}, its left neighbour: this ring turns to the right",
                f"to rank {(source + 1) % world}",
                f"to rank {target}",
                source,
            )
        check_sizes(what, messages, piece, a_number)
        for rank in range(world):
            count = sum(message.source == rank for message in messages)
            expect(
                count <= times * (world - 1),
                f"{what}: rank {rank} sends {count} messages",
                f"at most {times * (world - 1)}",
                count,
                rank,
            )
        check_rounds(what, messages, times * (world - 1))

    return check


@todo(4, in_place=("tensor",))
def test_todo4_ring_reduce_scatter(student):
    asked = {(rank, world): (rank - 1) % world for world in (2, 3, 4, 7) for rank in range(world)}

    def right(vectors_of_ranks, rank):
        return pieces(total(vectors_of_ranks), len(vectors_of_ranks))[rank]

    check_collective(student, "ring_reduce_scatter", ("first_piece", asked), right, ring_budget(1, rightward=True))


@todo(5, in_place=("tensor",))
def test_todo5_ring_all_gather(student):
    def own_piece_only(vector, rank, world):
        return [
            x
            for number, piece in enumerate(pieces(vector, world))
            for x in (piece if number == rank else [math.nan] * len(piece))
        ]

    def right(vectors_of_ranks, rank):
        world = len(vectors_of_ranks)
        return [x for number, vector in enumerate(vectors_of_ranks) for x in pieces(vector, world)[number]]

    asked = {
        (rank, step, world): (rank - 1 - step) % world
        for world in (2, 3, 4, 7)
        for rank in range(world)
        for step in range(world - 1)
    }
    budget = ring_budget(1, rightward=True)
    check_collective(student, "ring_all_gather", ("arriving_piece", asked), right, budget, rubbish=own_piece_only)


@todo(6, in_place=("tensor",), needs=(4, 5))
def test_todo6_ring_all_reduce(student):
    asked = {
        (nbytes, world): 2 * (world - 1) * nbytes / world
        for world in (1, 2, 3, 4, 1024)
        for nbytes in (world, 48 * world)
    }
    check_collective(
        student,
        "ring_all_reduce",
        ("all_reduce_bytes", asked),
        lambda vectors_of_ranks, _: total(vectors_of_ranks),
        ring_budget(2),
    )
