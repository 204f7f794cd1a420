"""Checks of hybrid_training, TODO 10: checkpoints.

| TODO | achievement | evidence | needs |
| --- | --- | --- | --- |
| 10 | checkpoints | saved on four ranks and loaded in two other shapes; one file; main() on 8 and 4 ranks against the serial run | 1 – 9 |
"""  # noqa: E501

import math

import torch

from grader.kit import (
    cases,
    check_checkpoint,
    check_last_weights,
    check_part,
    check_parts_travel,
    check_refused,
    corpus,
    drawn_sizes,
    expect,
    hinted,
    kind_of,
    mains_on_rank,
    must_move,
    one_writer,
    reported,
    ring_bytes,
    same_report,
    todo,
)

from .common import WORDS, shaped, weights_of
from .ranks import AXES, pass_on, save_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 10: checkpoints; the law of the course


# SGD, since Adam turns rounding into error where a gradient is zero in theory; and a rate at which the weights move.
ARGV = (
    "--epochs 1 --batch-size 12 --seq-len 8 --dim 16 --heads 4 --optimizer sgd --lr 0.5 --weight-decay 0 "
    "--clip 0.5 --seed 5 --log-every 1"
).split()


RUNS = (  # ranks, blocks, flags: a block for each stage, since what a stage makes of more was judged before
    (8, 2, "--pp 2 --shard 2 --tp 2 --sequence-parallel --microbatches 3"),
    (4, 4, "--pp 2 --dp 2 --schedule interleaved --microbatches 2"),
)


MODELS = [[*ARGV, "--layers", f"{layers}"] for _, layers, _ in RUNS]


KEPT = ("held", "steps", "still_in_a_group", "files")  # of a run: no weights, which lie in stages


OF_THE_STATE = (
    "This is state_options' part. By what does the optimizer's state know its parameters: by their place in a list of "
    "this rank's, or by a name that every shape knows?"
)


@todo(10, in_place=("position",), needs=(1, 2, 3, 4, 5, 6, 7, 8, 9))
def test_todo10_checkpoints(student):
    serials = [student.serial(["--data", "data", "--out", "out", *argv], corpus(student)) for argv in MODELS]
    for serial in serials:
        must_move(student, serial)
    for shape in student.several(
        ((2, 1, 1, 1, 2), (2, 1, 2, 1, 1), (3, 1, 1, 1, 1), (1, 1, 1, 1, 1)), but=[(1, 1, 1, 1, 1)]
    ):
        check_file(student, shape)
    shapes = student.several([(2, 1, 1, 1, 2), (4, 1, 1, 1, 1), (1, 2, 2, 1, 1)], 2)
    sizes = drawn_sizes(student, 2, "pass on", words=WORDS, layers=4)
    right = student.reference(weights_of, sizes=sizes)
    run = student.call(pass_on, world=4, sizes=sizes, shapes=shapes, common=True)
    for rank, left in enumerate(run.evidence):
        for k, seen in enumerate(left, start=1):
            told = f"saved with {shaped(shapes[k - 1])} and loaded with {shaped(shapes[k])}"
            with hinted(OF_THE_STATE):
                check_refused(told, "the sharded checkpoint", [seen])
            for name, weight in seen["weights"].items():
                check_part(told, name, weight, right[name], rank, what="weight")
                momentum = seen["state"][name].get("momentum_buffer")
                expect(momentum is not None, f"{told}, {name} has no momentum on rank {rank}", "its own", "none", rank)
                check_part(told, name, momentum, 0.5 * right[name], rank, what="momentum")
            position = seen["position"]
            expect(
                isinstance(position, dict) and position.get("step") == 7,
                f"{told}, the position in the run is lost",
                {"step": 7},
                position if isinstance(position, dict) else kind_of(position),
                rank,
            )
            with hinted(OF_THE_STATE):
                expect(
                    math.isclose(seen["lr"], 0.1),
                    f"{told}, the optimizer has lost its learning rate: it was saved with lists of the parameters that "
                    "one rank has"
                    if math.isnan(seen["lr"])
                    else f"{told}, the optimizer's learning rate is not the saved one",
                    0.1,
                    seen["lr"],
                    rank,
                )
    check_law(student, serials)


def check_file(student, shape):
    told = f"with {shaped(shape)}"
    # Few words, so that no tensor is a large part of the model.
    sizes = drawn_sizes(student, shape[-1], "save", *shape, words=WORDS, layers=4) | {"vocab": 13}
    run = student.call(save_on_rank, world=math.prod(shape), shape=shape, sizes=sizes)
    one_writer(run, f"{told} ")
    right = student.reference(weights_of, sizes=sizes)
    check_checkpoint(run.files["saved/model.pt"], right, epoch=3, config={"vocab_size": sizes["vocab"]})
    model = sum(8 * weight.numel() for weight in right.values())
    grid = torch.arange(math.prod(shape)).view(shape)
    for rank, seen in enumerate(run.evidence):
        first = rank in grid[:, 0, 0, 0, 0].tolist()
        # A rank needs one tensor at a time; the first one of each stage the whole stage; rank 0 the model.
        if rank and not first:
            expect(
                seen["peak"] < 0.5 * model,
                f"{told} rank {rank} assembles its stage in memory, {seen['peak']:,} bytes at once, and no rank "
                "needs that",
                f"one tensor at a time, of {model:,} bytes",
                f"{seen['peak']:,} bytes",
                rank,
            )


def check_law(student, serials):
    """The parallel run is the serial run."""
    asked = student.several(zip(RUNS, MODELS, serials, strict=True))
    run = student.call(
        mains_on_rank,
        world=8,
        group=None,
        runs=[[ranks, [*argv, *flags.split()]] for (ranks, _, flags), argv, _ in asked],
        data=corpus(student),
        keep=KEPT,
    )
    for case, ((world, layers, flags), _, serial) in enumerate(asked):
        lines, final = reported(serial), serial.evidence[0]["weights"]
        steps = [line["loss"] for line in lines if line["kind"] == "step"]
        psi = sum(weight.numel() for weight in final.values())
        told = f"on {world} ranks with {flags} --layers {layers},"
        for rank, left in enumerate(run.evidence[:world]):
            seen = left[case]
            expect(
                seen["steps"] == len(steps),
                f"{told} the optimizer of rank {rank} steps {seen['steps']} times",
                len(steps),
                seen["steps"],
                rank,
            )
            expect(
                seen["held"] < 0.6 * psi,
                f"{told} the optimizer of rank {rank} holds {seen['held']:,} of {psi:,} weights",
                "its stages, parts and shards alone",
                f"{seen['held']:,}",
                rank,
            )
            expect(
                not seen["still_in_a_group"],
                f"{told} rank {rank} ends without leaving the process group",
                "no group",
                "a group",
                rank,
            )
        same_report(told, lines, reported(run, f"out-{case}"))
        check_last_weights(told, run.files[f"out-{case}/model-final.pt"], final)
        check_parts_travel(
            told.rstrip(","), cases(run.events)[case][:world], len(steps) * due_in_a_step(flags, layers), len(steps)
        )


def due_in_a_step(flags, layers):
    """Bytes that a rank sends at least: the stream (B, T, D) of its copy's samples or its gradient to another stage,
    with --sequence-parallel a part; and in each block 4 all-reduces of it.
    """
    words = flags.split()
    dp, shard, cp, tp = (int(words[words.index(f"--{axis}") + 1]) if f"--{axis}" in words else 1 for axis in AXES[1:])
    stream = 4 * 12 / (dp * shard * cp) * 8 * 16
    return stream / tp + 4 * (layers / 2) * ring_bytes(stream, tp)
