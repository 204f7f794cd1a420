"""Checks of 01_collectives, TODOs 3 and 7: broadcast and all to all.

| TODO | achievement                                  | evidence                                                     | needs |
|------|----------------------------------------------|--------------------------------------------------------------|-------|
| 3    | broadcast by a tree                          | values; N - 1 messages; their rounds; the predicted rounds   |       |
| 7    | all-to-all                                   | the same                                                     |       |
"""  # noqa: E501

import math

from grader.kit import count_of, expect, todo

from .common import check_collective, check_rounds, check_sizes, pieces

# ---------------------------------------------------------------------------------------------------
# TODOs 3–7: collectives made of messages


TREES = (2, 3, 4, 5, 8, 9, 1)  # 8 are the most for three rounds; on 9 it takes a fourth


def tree_budget(what, messages, world, piece, a_number):
    for rank in range(world):
        count = sum(message.target == rank for message in messages)
        expect(
            count <= (rank != 0),
            f"{what}: rank {rank} receives {count_of(count, 'message')}",
            "one each, rank 0 none",
            count,
            rank,
        )
    check_rounds(what, messages, (world - 1).bit_length())


def exchange_budget(what, messages, world, piece, a_number):
    check_sizes(what, messages, piece, a_number)
    for rank in range(world):
        count = sum(message.source == rank for message in messages)
        expect(count <= world - 1, f"{what}: rank {rank} sends {count} messages", f"at most {world - 1}", count, rank)
    check_rounds(what, messages, world - 1)


@todo(3, in_place=("tensor",))
def test_todo3_tree_broadcast(student):
    asked = {(world,): (world - 1).bit_length() for world in (1, 2, 3, 4, 5, 8, 9, 1024, 1025)}

    def rubbish(vector, rank, world):
        return vector if rank == 0 else [math.nan] * len(vector)

    check_collective(
        student,
        "tree_broadcast",
        ("tree_rounds", asked),
        lambda vectors_of_ranks, rank: vectors_of_ranks[0],
        tree_budget,
        rubbish,
        TREES,
    )


@todo(7)
def test_todo7_all_to_all(student):
    def right(vectors_of_ranks, rank):
        return [x for vector in vectors_of_ranks for x in pieces(vector, len(vectors_of_ranks))[rank]]

    asked = {
        (nbytes, world): (world - 1) * nbytes / world for world in (1, 2, 3, 4, 1024) for nbytes in (world, 48 * world)
    }
    check_collective(student, "all_to_all", ("all_to_all_bytes", asked), right, exchange_budget)
