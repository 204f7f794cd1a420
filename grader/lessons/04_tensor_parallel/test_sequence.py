"""Checks of 04_tensor_parallel, TODOs 8 and 9: sequence.

| TODO | achievement | evidence | needs |
|------|-------------|----------|-------|
| 8 | gather and scatter along the sequence | values, gradients and messages, on 1 to 4 ranks |  |
| 9 | gradients of what saw some tokens only | values; the model with sequence parallelism | 2 to 8 |
"""

import math

import torch

from grader.kit import COPIED, check_tensor, count_of, expect, frozen_in_turn, todo

from .common import check_border, check_training, in_one_run, training_job
from .ranks import ZEROS, finished_on_rank, small

# ---------------------------------------------------------------------------------------------------
# TODOs 2 and 8: the boundary functions


@todo(8)
def test_todo8_sequence(student):
    draw = student.draw("sequence")

    def tokens(tensors, rank):
        return sum(tensors).chunk(len(tensors), dim=1)[rank]

    right = {
        "gather_sequence": lambda xs, upstreams, rank: (torch.cat(xs, dim=1), tokens(upstreams, rank)),
        "scatter_sequence": lambda xs, upstreams, rank: (tokens(xs, rank), torch.cat(upstreams, dim=1)),
    }
    trials = []
    for world in (1, 2, 3, 4):
        for dtype, size, turned in (("float32", 4, True), ("float64", 8, False))[: 2 if world == 3 else 1]:
            # Of a batch of one, chunks along the sequence are contiguous, and so may be views of what was given.
            part = [draw.randrange(2, 5) if turned else 1, draw.randrange(1, 4), draw.randrange(2, 6)]
            zeros = not turned
            whole = [part[0], part[1] * world, part[2]]
            nbytes = (world - 1) * size * math.prod(part)
            trials.append((world, "gather_sequence", part, whole, dtype, turned, zeros, nbytes, nbytes))
            trials.append((world, "scatter_sequence", whole, part, dtype, turned, zeros, nbytes, nbytes))
    check_border(
        student,
        trials,
        right,
        hint_forward=(
            "Gathered: all tokens, along the sequence, in the order of the ranks. Reduced: of the sum over the ranks,"
            " which tokens does this rank keep?"
        ),
        hint_sent=(
            "Each direction is half an all-reduce: a rank sends its own tokens, or its summands of the others' tokens."
            " Is anything sent that is thrown away afterwards?"
        ),
    )


# ---------------------------------------------------------------------------------------------------
# TODOs 7, 9 and 11: the whole model


@todo(9, needs=(2, 3, 4, 5, 6, 7, 8))
def test_todo9_finished(student):
    jobs = [training_job(student, world, sequence=True) for world in (2, 3, 4)]
    # In a separate run: where shards are added up, too, the model stops before it can report that.
    trials = []
    for place, unused in frozen_in_turn(student.draw("finished"), 7):
        trials.append([*["a copy", "a shard"] * 3, "a copy"])
        trials[-1][place], trials[-1][unused] = "a frozen one", "one that was not used"
    trials.append([*["a copy", ZEROS, "a shard"] * 2, "a copy"])
    done = in_one_run(student, [(world, finished_on_rank, dict(cases=trials), None) for world in (2, 3)])
    for world, _, ranks, _ in done[finished_on_rank]:
        numbers = [small(seed) for seed in student.seeds(3)[:world]]
        for rank, seen in enumerate(ranks):
            for kinds, grads in zip(trials, seen, strict=True):
                check_finished(world, rank, numbers, kinds, grads)
    check_training(in_one_run(student, jobs))


def check_finished(world, rank, numbers, kinds, grads):
    for number, (what, grad) in enumerate(zip(kinds, grads, strict=True)):
        turned = grad is not None and grad.dim() == 4
        told = f"finish_gradients on {count_of(world, 'rank')}: the gradient of {what}"
        told += f"{', in channels_last,' if turned else ''} on rank {rank}"
        if what not in ("a copy", ZEROS, "a shard"):
            told = f"finish_gradients makes a gradient for {what.replace('one', 'parameter')}"
            hint = "Such a parameter has no gradient on any rank. Is there anything to sum?"
            expect(grad is None, told, "None", "a gradient", rank, hint)
            continue
        every = [a_number + 100 * number for a_number in numbers]
        right = float({"a copy": sum(every), ZEROS: sum(every[1:]), "a shard": every[rank]}[what])
        expect(grad is not None, f"{told} is gone", right, "None", rank)
        wanted = torch.full(grad.shape, right)
        why = (
            "The loss is already divided by the tokens of all ranks. Is there anything left to divide its gradients by?"
        )
        mean = {"the mean of all ranks, not the sum": (wanted / world, why)} if what != "a shard" else {}
        check_tensor(told, grad, wanted, 0.0, rank, wrongs=mean, hint=COPIED if turned else "")
