"""Checks of hybrid_training, TODOs 7 and 8: gradients.

| TODO | achievement | evidence | needs |
| --- | --- | --- | --- |
| 7 | the norms' gradients | add_up_norms() with and without the flag, a width that does not divide: which gradients change, bytes sent | |
| 8 | the norm over all axes | clip_gradients() on three shapes of 4 ranks | |
"""  # noqa: E501

import math

from grader.kit import Fault, check_norm, check_part, drawn_model, drawn_sizes, todo

from .common import WORDS, check_little, shaped, weights_of
from .ranks import clip_on_rank, cut_by_check, norms_on_rank

# ---------------------------------------------------------------------------------------------------
# TODOs 6 to 8: gradients


@todo(7)
def test_todo7_norms(student):
    # A width of 4 for each head does not divide into 3 shards.
    alone = ((1, 2, 1, 1, 2), False), ((2, 1, 2, 1, 1), True)  # nothing is to be sent
    for shape, sequence in student.several(
        (((1, 1, 3, 1, 2), True), ((1, 2, 1, 1, 3), True), ((2, 1, 1, 1, 2), True), *alone)
    ):
        tp = shape[-1]
        sizes = drawn_sizes(student, tp, "norms", *shape, words=WORDS)
        sizes["dim"] = 4 * sizes["heads"]
        told = f"with {shaped(shape)}{' --sequence-parallel' if sequence else ''}"
        try:
            run = student.call(norms_on_rank, world=math.prod(shape), shape=shape, sizes=sizes, sequence=sequence)
        except Fault as fault:
            if fault.cause == "mismatch":  # a cut parameter has shards of unequal sizes
                fault.hint = (
                    "These ranks have unequal parts of something that is cut. A parameter that is whole on each of them"
                    " has the same size everywhere: which parameters are that?"
                )
            elif "assign a gradient of size" in fault.message:  # raised by DTensor.from_local without a shape
                fault.hint = (
                    "This width is not divisible by --shard, and DTensor.from_local takes all shards to be equal. What "
                    "p.grad.to_local() gives can be written to, and the gradient stays as large as it was."
                )
            raise
        right = student.reference(weights_of, sizes=sizes)
        due = sequence and tp > 1
        for rank, seen in enumerate(run.evidence):
            for name, grad in seen["grads"].items():
                whole = "norm" in name
                factor = tp * (tp + 1) / 2 if due and whole else 1.0 + seen["place"]
                who = "which all ranks of the tensor axis hold" if whole else "which they split"
                check_part(f"{told}, after add_up_norms", f"{name}, {who},", grad, right[name] * factor, rank)
        norms = 8 * sum(p.numel() for name, p in right.items() if "norm" in name) if due else 0
        check_little(told, "add_up_norms", run, 2 * norms, "the norms alone" if due else "nothing has to be sent")


def norms_of_stages(sizes, n_stages):
    """The norm of each stage's weights."""
    model = drawn_model(0, sizes)
    stages = [cut_by_check(model, k, n_stages) for k in range(n_stages)]
    return [math.sqrt(sum(p.detach().square().sum().item() for p in stage.parameters())) for stage in stages]


@todo(8)
def test_todo8_clip(student):
    clipped = ((2, 1, 1, 1, 2), True), ((2, 1, 2, 1, 1), False), ((2, 2, 1, 1, 1), False), ((3, 1, 1, 1, 1), False)
    for shape, sequence in student.several(clipped):
        sizes = drawn_sizes(student, shape[-1], "clip", *shape, words=WORDS, layers=3)
        weights = student.reference(weights_of, sizes=sizes)
        right = math.sqrt(sum(weight.square().sum().item() for weight in weights.values()))
        parts = student.reference(norms_of_stages, sizes=sizes, n_stages=shape[0])
        clips = (right / 4, 0.0, right * 4)
        run = student.call(
            clip_on_rank, world=math.prod(shape), shape=shape, sizes=sizes, sequence=sequence, clips=clips
        )
        for case, clip in enumerate(clips):
            told = f"with {shaped(shape)}, --clip {clip:.3g} and a gradient of norm {right:.4g}"
            for rank, mine in enumerate(run.evidence):
                wrongs = {
                    "the stages' norms added up, and it is their squares that can be": (sum(parts), ""),
                    "the norm of this stage alone": (parts[rank * shape[0] // math.prod(shape)], ""),
                }
                check_norm(told, mine[case]["norm"], right, clip, rank, wrongs=wrongs)
                factor = min(1.0, clip / right) if clip else 1.0
                for name, grad in mine[case]["grads"].items():
                    check_part(f"{told}, after clip_gradients", name, grad, weights[name] * factor, rank, rel=1e-5)
        whole = 8 * sum(weight.numel() for weight in weights.values())
        check_little(f"with {shaped(shape)}", "clip_gradients", run, whole / 8, "a few numbers")
