"""Checks of tp_training, TODOs 5 and 6: sequence.

| TODO | achievement | evidence | needs |
| --- | --- | --- | --- |
| 5 | positions of a cut stream | the same, with the stream cut along the sequence |  |
| 6 | the stream cut, and its norms | split() as a whole: each gradient, the stream's length; main() | 1 – 5 |
"""

import torch

from grader.kit import (
    SAME_WEIGHTS,
    Since,
    cases,
    check_checkpoint,
    check_parts_travel,
    corpus,
    expect,
    hinted,
    losses,
    mains_on_rank,
    must_move,
    reported,
    ring_bytes,
    same_losses,
    same_report,
    todo,
    together,
)
from utils.releases import CUT_TWICE_SINCE

from .common import check_model, serial_model

# ---------------------------------------------------------------------------------------------------
# TODOs 4 to 6: the whole model


@todo(5)
def test_todo5_positions(student):
    trials = student.several(((3, True), (2, False)))
    models = {world: serial_model(student, world, "positions") for world, _ in trials}
    for world, cut in trials:
        told = f"with position_plan({'Shard(1)' if cut else 'Replicate()'}) on {world} ranks"
        check_model(student, models[world], world, cut, "positions", told, "the sum of the embeddings")


@todo(6, since=Since(*CUT_TWICE_SINCE), needs=(1, 2, 3, 4, 5))
def test_todo6_sequence(student):
    trials = student.several(((4, True), (2, False)))
    models, serial = {world: serial_model(student, world, "all") for world, _ in trials}, serial_run(student)
    must_move(student, serial)
    for world, cut in trials:
        told = f"with --tp {world}{' --sequence-parallel' if cut else ''}"
        run, sizes = check_model(student, models[world], world, cut, "all", told, "the model")
        length = sizes["length"] // world if cut else sizes["length"]
        for rank, seen in enumerate(run.evidence):
            for number, shape in enumerate(seen["streams"]):
                expect(
                    shape[1] == length,
                    f"{told}, the stream into block {number + 1} has {shape[1]} of {sizes['length']} tokens on rank "
                    f"{rank}",
                    f"{length} tokens",
                    f"{shape[1]} tokens",
                    rank,
                )
    check_law(student, serial)


# ---------------------------------------------------------------------------------------------------
# The law of the course, which TODO 6 ends with


# SGD, since Adam turns rounding into error where a gradient is zero in theory; and a rate at which the weights move.
ARGV = (
    "--epochs 1 --batch-size 12 --seq-len 8 --dim 16 --heads 4 --layers 1 --optimizer sgd --lr 0.5 --weight-decay 0 "
    "--clip 0.5 --seed 5 --log-every 1"
).split()


RUNS = [[4, [*ARGV, "--tp", "2", "--sequence-parallel"]], [2, [*ARGV, "--tp", "2"]]]


def serial_run(student):
    return student.serial(["--data", "data", "--out", "out", *ARGV], corpus(student))


@hinted(
    "Each function alone is right. Which step is the first that differs from the serial run's, and what does it"
    " use for the first time?"
)
def check_law(student, serial):
    """The parallel run is the serial run."""
    right, final = losses(serial.evidence[0]), serial.evidence[0]["weights"]
    runs = student.several(RUNS)
    run = student.call(mains_on_rank, world=4, group=None, runs=runs, data=corpus(student))
    for number, (world, flags) in enumerate(runs):
        ranks = [mine[number] for mine in run.evidence[:world]]
        told = f"with {' '.join(flags[len(ARGV) :])} on {world} ranks,"
        same_losses(told, right, ranks)
        same_report(told, reported(serial), reported(run, f"out-{number}"))
        weights = together(ranks, "weights")
        check_checkpoint(run.files[f"out-{number}/model-final.pt"], weights)
        for name, weight in final.items():
            expect(
                torch.allclose(weights[name], weight, rtol=0, atol=SAME_WEIGHTS),
                f"{told} the last weights are not the serial run's ({name})",
                "equal weights",
                "others",
            )
        for rank, seen in enumerate(ranks):
            expect(
                not seen["still_in_a_group"],
                f"{told} rank {rank} ends without leaving the process group",
                "no group",
                "a group",
                rank,
            )
        # 4 all-reduces of the stream in the block, (B, T, D), of each row's samples: two forward, two backward.
        stream = 4 * 12 // (world // 2) * 8 * 16
        due = len(right) * 4 * ring_bytes(stream, 2)
        check_parts_travel(told.rstrip(","), cases(run.events)[number][:world], due, len(right))
