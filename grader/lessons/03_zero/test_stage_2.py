"""Checks of 03_zero, TODOs 6 and 7: stage 2.

| TODO | achievement                             | evidence                                                                                       | needs   |
|------|-----------------------------------------|------------------------------------------------------------------------------------------------|---------|
| 6    | stage 2: gradients reduced when ready   | as of 4, SGD alone; whole gradients alive in the backward pass; two backward passes a step     | 2, 3    |
| 7    | bytes a rank sends, predicted           | the formulas                                                                                   |         |
"""  # noqa: E501

import torch

from grader.kit import OWN_ZEROS, Private, check_answers, check_tensor, hinted, todo, zeros_in_turn

from .common import REL, check_stage, stage_trials, undivided
from .ranks import zeros_on_rank

# ---------------------------------------------------------------------------------------------------
# TODOs 1 and 7: predictions


@todo(7)
def test_todo7_sent_bytes(student):
    check_answers(
        student,
        {
            ("sent_bytes", (nbytes, world, stage)): (2 + (stage == 3)) * (world - 1) / world * nbytes
            for nbytes, world in ((28_000_000_000, 64), (4, 1), (360, 2), (360, 3), (10, 4), *undivided(student))
            for stage in range(4)
        },
        wrong="is not what will happen",
    )


# ---------------------------------------------------------------------------------------------------
# TODOs 4, 6 and 9: the stages


def check_zeros(student):
    world = 2
    slopes = [zeros_in_turn([2.0 + number for number in range(world)], rank, world) for rank in range(world)]
    with hinted(OWN_ZEROS):
        run = student.call(zeros_on_rank, world=world, slopes=Private(slopes))
        for rank, seen in enumerate(run.evidence):
            for number, grad in enumerate(seen["grads"]):
                right = torch.full((2 - rank,), 2 * sum(mine[number] for mine in slopes) / world)
                told = f"where rank {number}'s gradients are all zeros, the gradient of the part on rank {rank}"
                check_tensor(told, grad, right, REL, rank, than="the sum over two passes of the mean over all ranks")


@todo(6, needs=(2, 3))
def test_todo6_stage_2(student):
    trials = stage_trials(student, 2)
    check_stage(student, 2, trials)
    check_zeros(student)
