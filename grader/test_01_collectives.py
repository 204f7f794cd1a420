"""Checks and hints of 01_collectives.

| TODO | achievement                                  | evidence                                                | needs |
|------|----------------------------------------------|---------------------------------------------------------|-------|
| 1    | what three collectives return on each rank   | predictions beside the real ones, on 2, 3 and 4 ranks   |       |
"""

import random

import torch
import torch.distributed as dist

from grader.engine.checks import expect, todo

NAMES = ("all_reduce", "all_gather", "reduce_scatter")


def predict_on_rank(student, rank, world, inputs):
    """The student's predictions for all ranks, and what this rank really gets."""
    mine = torch.tensor(inputs[rank])
    reduced = mine.clone()
    dist.all_reduce(reduced)
    gathered = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(gathered, mine)
    scattered = torch.empty(len(mine) // world)
    dist.reduce_scatter(scattered, list(mine.chunk(world)))

    predictions, shared = {}, {}
    for name in NAMES:
        held = getattr(student, name)([torch.tensor(x) for x in inputs])
        predictions[name] = held
        places = {h.data_ptr() for h in held if isinstance(h, torch.Tensor)} if isinstance(held, (list, tuple)) else set()
        shared[name] = isinstance(held, (list, tuple)) and len(places) < len(held)
    return {"real": {"all_reduce": reduced, "all_gather": torch.cat(gathered), "reduce_scatter": scattered},
            "predicted": predictions, "shared": shared}


@todo(
    1,
    why="Every parallel scheme of this course is made of these three. Who can say what each rank holds afterwards can say what a "
    "scheme sends, and what it keeps.",
    hints=(
        "Take two ranks with two numbers each, and write down what each holds afterwards. The sum is over ranks, position by position.",
        "torch.stack puts the vectors below one another, .sum(dim=0) adds them up; torch.cat joins them; .chunk cuts a vector into "
        "equal pieces. A list comprehension makes one result for each rank, .clone() a tensor of its own.",
        "all_reduce: a clone of the sum for each rank. all_gather: torch.cat of the inputs for each rank. reduce_scatter: the sum's "
        "chunks, one for each rank.",
    ),
)
def test_todo1_three_collectives(student):
    for world in (2, 3, 4):
        draw = random.Random(world)
        inputs = [[float(draw.randrange(100)) for _ in range(2 * world)] for _ in range(world)]
        seen = student.call(predict_on_rank, world=world, inputs=inputs)
        for name in NAMES:
            real = [ranks["real"][name] for ranks in seen]
            held = seen[0]["predicted"][name]
            expect(isinstance(held, list) and len(held) == world, f"{name} does not return a list of what each of {world} ranks holds",
                   f"{world} tensors", f"{len(held)} entries" if isinstance(held, list) else type(held).__name__)
            for rank in range(world):
                expect(isinstance(held[rank], torch.Tensor), f"{name} predicts no tensor for rank {rank} of {world}", "a tensor",
                       type(held[rank]).__name__, rank)
                right, guess = real[rank].tolist(), held[rank].double().tolist()
                expect(guess == right, f"after a real {name} of {inputs}, rank {rank} of {world} holds something else than predicted",
                       right, guess, rank)
            expect(not seen[0]["shared"][name], f"{name} gives two ranks the same memory; ranks share none, so each needs a tensor of its own",
                   "a tensor of its own for each rank", "one tensor for several")
