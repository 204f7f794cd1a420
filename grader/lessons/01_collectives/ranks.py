"""What the checks of 01_collectives run on ranks, in the process of the student's code."""

import os

import torch
import torch.distributed as dist

from grader.kit import as_evidence, mark, merciless_messages, plain

NAMES = ("all_reduce", "all_gather", "reduce_scatter")


def predict_on_rank(code, rank, world, mine, dtype):
    """The predictions for all ranks, made on this rank, which learns all inputs from a real all-gather; and what
    this rank really gets.
    """
    dtype = getattr(torch, dtype)
    mine = torch.tensor(mine, dtype=dtype)
    reduced = mine.clone()
    dist.all_reduce(reduced)
    gathered = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(gathered, mine)
    scattered = mine.new_empty(len(mine) // world)
    dist.reduce_scatter(scattered, list(mine.chunk(world)))
    inputs = [vector.tolist() for vector in gathered]

    predictions, shared, left = {}, {}, {}
    for name in NAMES:
        left[name] = [torch.tensor(x, dtype=dtype) for x in inputs]
        held = getattr(code, name)([*left[name]])
        predictions[name] = held
        places = (
            {h.data_ptr() for h in held if isinstance(h, torch.Tensor)} if isinstance(held, (list, tuple)) else set()
        )
        shared[name] = isinstance(held, (list, tuple)) and len(places) < len(held)
    return {
        "real": {"all_reduce": reduced, "all_gather": torch.cat(gathered), "reduce_scatter": scattered},
        "predicted": predictions,
        "shared": shared,
        "left": left,
    }


# ---------------------------------------------------------------------------------------------------
# TODO 2: places


def places_on_rank(code, rank, world):
    """All answers, given by rank 0, which is told nothing about the other ranks."""
    a_node = int(os.environ["LOCAL_WORLD_SIZE"])
    answers = None
    if rank == 0:
        answers = {
            "place": [plain(code.node_and_local_rank(r, a_node)) for r in range(world)],
            "rank": [plain(code.rank_at(*divmod(r, a_node), a_node)) for r in range(world)],
            "links": [plain(code.links_between_nodes(nodes, each)) for nodes, each in MACHINES],
        }
    return answers


MACHINES = ((1, 4), (2, 1), (2, 4), (5, 3), (3, 6))  # nodes, ranks per node


# ---------------------------------------------------------------------------------------------------
# TODOs 3–7: collectives made of messages


def collective_on_rank(code, rank, world, name, dtypes, mine):
    """A function of the student on this rank's vector of each case; the rank knows no other rank's vector."""
    merciless_messages()
    held = []
    for dtype, vector in zip(dtypes, mine, strict=True):
        mark()
        result = getattr(code, name)(torch.tensor(vector, dtype=getattr(torch, dtype)), rank, world)
        held.append(as_evidence(result))
    return held
