"""What several files with checks of tp_training use."""

import math

import torch

from grader.kit import (
    EXACT,
    check_parts,
    check_refused,
    check_tensor,
    drawn_batch,
    drawn_model,
    drawn_sizes,
    expect,
    gradients,
    hinted,
    must_have_gradients,
    parameters,
)

from .ranks import model_on_rank

# Here, a rank's imports of torch.distributed.* are inside functions: on the ranks they are loaded already, and the
# judge, who would wait for them for a second, needs none.
WORDS = (97, 101, 103)  # how many there are


def serial_step(sizes, seeds):
    """Loss, logits of the first batch, weights and gradients of one process, on all batches together."""
    model = drawn_model(0, sizes)
    batches = [drawn_batch(seed, sizes) for seed in seeds]
    # A rank's loss is the mean over its own tokens, and the gradients of rows are averaged.
    loss = sum(model(x, y) for x, y in batches) / len(batches)
    loss.backward()
    with torch.no_grad():
        logits = model(batches[0][0])
    return {"loss": loss.item(), "logits": logits, "weights": parameters(model), "grads": gradients(model)}


# ---------------------------------------------------------------------------------------------------
# TODOs 4 to 6: the whole model


def digits(dtype):
    """How near a loss can be to the serial one in this dtype."""
    return 1e-6 if dtype == "torch.float32" else EXACT


def serial_model(student, world, asked):
    """Sizes, seed, and what one process does."""
    sizes = drawn_sizes(student, world, asked, words=WORDS)
    seed = student.draw("batch", asked).randrange(1 << 40)
    right = student.reference(serial_step, sizes=sizes, seeds=[seed])
    must_have_gradients(student, right["grads"])
    return sizes, seed, right


# Hints for parts of a model's check that the first hint of its TODO is not about.
HINTS = {
    ("words", "refused"): (
        "Follow the stream to the loss. In which layout, and as a plain tensor or a DTensor, does each step expect it?"
    ),
    ("words", "loss"): (
        "Both tables are one half, share_loss is the other. Which rows of the weight does the loss get, which group,"
        " and"
        " how many words?"
    ),
    ("words", "gradients"): (
        "The loss is right. Which tensors are made whole on their way into the loss, and what becomes of their"
        " gradients"
        " on the way back?"
    ),
    ("all", "parted"): (
        "The ranks hold parts of different sizes. The stream is (B, T, D): along which of its dimensions is it cut?"
    ),
    ("positions", "whole"): (
        "Here the stream is not cut: every rank uses all rows of the table. Is there anything to plan?"
    ),
    ("all", "whole"): (
        "Here the flag is not given. What is the stream's placement then, and do the norms need anything?"
    ),
    "nothing": "Here no target counts. How does the loss know which ones do, and by what is the sum divided?",
    "logits": "Every rank needs the logits of all words where the model has no targets. In which layout do they leave?",
    "head": "Here the stream is a plain tensor. What does the head's style take a plain tensor for?",
    "weight": "The loss is given a weight. Does it use that one, or one that it knows from before?",
    "sent": "From the other ranks, the loss needs three numbers for each token. Which larger tensor is made whole?",
}


def check_model(student, serial, tp, cut, asked, told, what, rows=1):
    """Loss, gradients and logits are the serial model's; returns the run and the sizes."""
    sizes, seed, right = serial
    parted = hinted(HINTS.get((asked, "parted"), ""), "mismatch")
    with hinted(HINTS.get((asked, "refused"), ""), "crash"), parted:
        run = student.call(model_on_rank, world=rows * tp, sizes=sizes, seed=seed, cut=cut, asked=asked, tp=tp)
    ranks = run.evidence
    with hinted("" if cut else HINTS.get((asked, "whole"), "")):
        check_step(told, what, ranks, right, asked)
    return run, sizes


def check_step(told, what, ranks, right, asked):
    for rank, seen in enumerate(ranks):
        expect("problem" not in seen, str(seen.get("problem")), "{name: style, …}", None, rank)
    with hinted(HINTS.get((asked, "refused"), "")):
        check_refused(told, what, ranks)
    for rank, seen in enumerate(ranks):
        # utils/loss.py sums in the dtype of its input or float32, whichever has more digits; a loss may also be told in
        # float32, as 04_tensor_parallel has it.
        expect(
            math.isclose(seen["loss"], right["loss"], rel_tol=digits(seen["dtype"])),
            f"{told}, the loss on rank {rank} is not what one process finds",
            right["loss"],
            seen["loss"],
            rank,
            HINTS.get((asked, "loss"), ""),
        )
    with hinted(HINTS.get((asked, "gradients"), "")):
        check_parts(told, [seen["grads"] for seen in ranks], right["grads"])
    for rank, seen in enumerate(ranks):
        expect(
            seen["nothing"] == 0,
            f"{told}, a batch without a target has a loss on rank {rank}: in_step's filling counts",
            0.0,
            seen["nothing"],
            rank,
            HINTS["nothing"],
        )
        logits = f"{told}, the tensor of logits that model(x) returns on rank {rank}"
        than = "the logits of all words in one process"
        check_tensor(logits, seen["logits"], right["logits"], EXACT, rank, than=than, hint=HINTS["logits"])
