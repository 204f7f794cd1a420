"""Checks of 12_why_it_is_slow, TODOs 1 to 5: a rank that waits, or works in vain. No clock is read.

| TODO | achievement                     | what is counted                                                   |
|------|---------------------------------|-------------------------------------------------------------------|
| 1    | a number is read when it is due | reads in each step; tensors that autograd keeps; the means        |
| 2    | a text is decoded once          | opens and decodings, over several batches; the batches            |
| 3    | recomputing what does not fit   | forward passes of each block; loss and gradients, to the last bit |
| 4    | validation without a graph      | tensors kept for a backward pass; the mean over the ranks         |
| 5    | few shapes                      | widths of batches, each a graph; what is in them                  |

Each TODO has a question as well, about the run as given or with the fix. Its answers come from real runs (torch 2.13,
gloo).
"""

import math

import torch

from grader.kit import REL, Private, check_shape, check_story, check_tensor, count_of, expect, tiny_model, todo

from .common import BOTH
from .ranks import batches_on_rank, evaluate_on_rank, notes_on_rank, pad_on_rank, plain_gradients, recompute_on_rank

HINTS = {
    "mean": "Each of the last log_every losses counts once. How many are noted when the mean is due, and which?",
    "due": "How many losses are noted in the log_every-th step, once its own is among them?",
    "read": "What of a loss can be noted without looking at its number? Mind conditions, prints and conversions, too.",
    "read once": "The mean of the noted losses fits into one tensor. Which number of it is read, and how often?",
    "pair": "`cut_2` returns the pair (x, y) as a batch needs it.",
    "windows": "The batch has the windows with the given numbers, in the order of the numbers.",
    "second text": "batches_2 may be called for several texts. What is kept must belong to one call, not to all.",
    "block": "A block is wrapped once, in its place, and is still called by the model.",
    "same": "Recomputing changes no number. What else has changed in the model?",
    "validation": "Each batch weighs by its targets that are not IGNORE, and all batches count.",
    "frozen": "A parameter that was frozen before must be frozen afterwards. Must parameters change at all?",
    "width": "The width must hold the longest sample of the batch: all samples, at any place in it.",
    "targets": "The given lines pad y with IGNORE. What have you changed in them?",
}

# ---------------------------------------------------------------------------------------------------
# 1: numbers that are read from the device


@todo(1, in_place=("noted",))
def test_todo01_note_loss(student):
    draw = student.draw("losses")
    every = draw.randrange(3, 6)
    losses = [draw.uniform(1, 4) for _ in range(3 * every + 1)]
    (seen,) = student.call(notes_on_rank, world=1, group=False, losses=losses, log_every=every).evidence
    for step, got in enumerate(seen, 1):
        told, due = f"with log_every={every}, step {step}", step % every == 0
        if due:
            right = sum(value**2 for value in losses[step - every : step]) / every
            is_mean = isinstance(got["mean"], float) and math.isclose(got["mean"], right, rel_tol=REL)
            whole = f"{told}: what it returns is not the mean of the last {every} losses"
            expect(is_mean, whole, right, got["mean"], hint=HINTS["mean"])
        else:
            what = f"{told}: it returns something, though nothing is due"
            expect(got["mean"] is None, what, None, got["mean"], hint=HINTS["due"])
        expect(
            got["reads"] <= due,
            f"{told} reads from the device {count_of(got['reads'], 'time')}",
            "once, where a mean is due" if due else "no read: the step returns nothing",
            got["reads"],
            hint=HINTS["read once" if due else "read"],
        )
        expect(
            not got["alive"],
            f"{told}: the loss is kept with its graph, and so are the activations of the step",
            "no tensor is kept for a backward pass",
            count_of(got["alive"], "tensor"),
            hint="What does a loss drag along, and which method of a tensor leaves it behind?",
        )
    check_story(student, 1, (3, 1), ("the number of reads as given", "the number with the fix"), BOTH)


# ---------------------------------------------------------------------------------------------------
# 2: reading and decoding


LONG = 1000  # words; with fewer, all else for a batch needs as much memory


@todo(2)
def test_todo02_batches(student):
    draw = student.draw("text")
    seq_len, windows = draw.randrange(3, 6), draw.randrange(9, 14)
    # The second is so long that objects for its words need more memory than all else for a batch.
    texts = [[draw.randrange(31) for _ in range(count * seq_len + 1)] for count in (windows, 5000)]
    orders = [draw.sample(range(windows), 4) for _ in range(4)]
    name = f"text-{draw.randrange(10**9)}.txt"
    call = dict(name=name, texts=texts, orders=orders, seq_len=seq_len)
    (both,) = student.call(batches_on_rank, world=1, group=False, **call).evidence
    for told, words, seen in zip(("", "of a second text, "), texts, both, strict=True):
        check_batches(told, torch.tensor(words), orders, seq_len, seen)
    check_story(student, 2, ("data", 1600), ("the longest part of a step", "the number of words decoded for each one"))


def check_batches(told, text, orders, seq_len, seen):
    for number, (order, batch) in enumerate(zip(orders, seen["batches"], strict=True)):
        pair = isinstance(batch, list) and len(batch) == 2
        expect(pair, f"{told}a batch is not a pair (x, y)", "(x, y)", str(batch)[:80], hint=HINTS["pair"])
        for part, found, shift in zip("xy", batch, (0, 1), strict=True):
            right = torch.stack([text[i * seq_len + shift : (i + 1) * seq_len + shift] for i in order])
            hint = HINTS["second text" if told else "windows"]
            check_tensor(f"{told}batch {number}: {part}", found, right, dtype=torch.int64, hint=hint)
    for what in ("decoded", "opened"):
        expect(
            seen[what] == 1 or not seen[what] and what == "decoded",
            f"for {len(orders)} batches {told}the text is {what} {count_of(seen[what], 'time')}".replace(
                ", the", " the"
            ),
            "once",
            count_of(seen[what], "time"),
            hint=HINTS["second text"] if told and not seen[what] else "",
        )
    # A list of all words has 8 bytes for each.
    most = 4 * len(text)
    expect(
        len(text) < LONG or seen["peak"] < most,
        f"the text of {len(text)} words is read once, and decoded again for each batch: the last one makes as many"
        " Python objects as there are words",
        f"less than {most} bytes of them",
        seen["peak"],
        hint="What is kept from batch to batch: words, or their numbers?",
    )


# ---------------------------------------------------------------------------------------------------
# 3: blocks that are computed again


def recomputing(draw):
    """(blocks, kept, budget): all fit, with room for more; exactly; some; exactly some; none."""
    kept = draw.randrange(1000, 2000)
    layers = draw.sample(range(2, 6), 4)
    some = [draw.randrange(1, n) for n in layers]
    extra, most = draw.randrange(1, kept), draw.randrange(kept // 2 + 1, kept)  # most: nearly one more fits
    return [
        (layers[0], kept, kept * (layers[0] + 1) + extra),
        (layers[1], kept, kept * layers[1]),
        (layers[2], kept, kept * some[2] + most),
        (layers[3], kept, kept * some[3]),
        (layers[0], kept, extra),
    ]


@todo(3, in_place=("model",))
def test_todo03_recompute(student):
    draw = student.draw("budgets")
    cases, seed = student.several(recomputing(draw), 2), draw.randrange(1000)
    right = [student.reference(plain_gradients, seed=seed, layers=layers) for layers, _, _ in cases]
    (seen,) = student.call(recompute_on_rank, world=1, group=False, seed=seed, cases=cases).evidence
    for (layers, kept, budget), got, due in zip(cases, seen, right, strict=True):
        told = f"{layers} blocks that keep {kept} bytes each, and {budget} bytes for all"
        twice = sum(times > 1 for times in got["computed"])
        fit = min(layers, budget // kept)
        none = f"{told}: a block is not computed at all"
        expect(min(got["computed"]) > 0, none, "once, or twice", got["computed"], hint=HINTS["block"])
        expect(
            max(got["computed"]) <= 2,
            f"{told}: a block is computed {count_of(max(got['computed']), 'time')}",
            "once, or twice",
            got["computed"],
            hint=HINTS["block"],
        )
        expect(
            twice >= layers - fit,
            f"{told}: only {count_of(twice, 'block')} recompute, and the others do not fit",
            f"{layers - fit} at least",
            twice,
            hint="How many blocks may keep their activations? All others must recompute.",
        )
        expect(
            twice <= layers - fit,
            f"{told}: {count_of(twice, 'block')} recompute, though {fit} fit",
            f"{layers - fit}",
            twice,
        )
        check_tensor(f"{told}: the loss", got["loss"], due["loss"], hint=HINTS["same"])
        for name, gradient in due["gradients"].items():
            what = f"{told}: the gradient of {name}"
            check_tensor(what, got["gradients"].get(name), gradient, hint=HINTS["same"])
    check_story(student, 3, (8, 5), ("the count as given", "the count with the fix"), BOTH)


# ---------------------------------------------------------------------------------------------------
# 4: validation


def mean_loss(seed, batches):
    """Over all words that count, by one process."""
    model, total, count = tiny_model(seed), 0.0, 0
    with torch.no_grad():
        for x, y in batches:
            targets = (torch.tensor(y) != -100).sum().item()
            total, count = total + model(torch.tensor(x), torch.tensor(y)).item() * targets, count + targets
    return total / count


def drawn_batches(draw, sizes):
    """Batches of so many rows, as lists; the last words of most rows are padding, far more in the first batch."""
    rows = [[[[draw.randrange(50) for _ in range(8)] for _ in range(size)] for _ in "xy"] for size in sizes]
    for number, (_, y) in enumerate(rows):
        for row in y:
            pads = draw.randrange(3) if number else draw.randrange(5, 8)
            row[8 - pads :] = [-100] * pads
    return rows


@todo(4, in_place=("model",))
def test_todo04_evaluate(student):
    draw = student.draw("batches")
    seed = draw.randrange(1000)
    batches = [drawn_batches(draw, (2, 2, 1)), drawn_batches(draw, (2, 1))]
    right = student.reference(mean_loss, seed=seed, batches=[*batches[0], *batches[1]])
    own = [student.reference(mean_loss, seed=seed, batches=mine) for mine in batches]
    student.premise(abs(sum(own) / 2 - right) > 1e-4 * right, "the mean of the ranks' means")
    run = student.call(evaluate_on_rank, world=2, seed=seed, batches=Private(batches))
    for rank, got in enumerate(run.evidence):
        mean = got["mean"]
        is_mean = isinstance(mean, float) and math.isclose(mean, right, rel_tol=REL)
        what = "it does not return the mean loss over the words of all ranks"
        expect(is_mean, what, right, mean, rank, HINTS["validation"])
        expect(not got["dropout"], "a batch of the validation is computed in training mode", "eval mode", None, rank)
        expect(
            not got["kept"],
            f"in {len(batches[rank])} batches of validation, autograd keeps {count_of(got['kept'], 'tensor')}"
            " for a backward pass that never comes",
            "none",
            got["kept"],
            rank,
        )
        expect(
            got["trains"],
            "after the validation, nothing can be trained any more",
            "gradients are computed as before",
            "they are switched off",
            rank,
            hint="What you switch off for the validation must be on again afterwards.",
        )
        expect(
            got["same"],
            "after the validation, other parameters are trained than before",
            "those that were trained before; one was frozen",
            "others",
            rank,
            hint=HINTS["frozen"],
        )
    check_story(student, 4, (4, 0), ("the number of batches as given", "the number with the fix"), BOTH)


# ---------------------------------------------------------------------------------------------------
# 5: shapes


def check_padded(told, batch, x, y):
    """Each sample is in its row as it was; what follows it is padding."""
    width = x.shape[1] if x.ndim == 2 else 0
    longest = max(len(words) for words in batch)
    for part, found in (("x", x), ("y", y)):
        shape = (len(batch), max(width, longest))
        check_shape(f"{told}: {part}", found, shape, torch.int64, hint=HINTS["width"])
    for row, words in enumerate(batch):
        count = len(words)
        whole = x[row, :count].tolist() == words and y[row, :count].tolist() == [word + 1 for word in words]
        what = f"{told}: sample {row} is not at the start of its row, or not whole"
        expect(whole, what, words[:6], x[row].tolist(), hint=HINTS["width"])
        expect(
            bool((y[row, count:] == -100).all()),
            f"{told}: targets after the end of sample {row} count in the loss",
            -100,
            y[row, count:],
            hint=HINTS["targets"],
        )
    expect(
        width < longest + 16,
        f"{told} of at most {count_of(longest, 'word')} is {width} words wide: the model computes too much padding",
        f"less than {longest + 16}",
        width,
        hint="Few shapes are one half of the task. How many words of padding does a short batch get?",
    )


@todo(5)
def test_todo05_pad(student):
    draw = student.draw("lengths")
    longest = draw.sample(range(1, 65), 40) + [1, 16, 17, 48, 49, 64]
    batches = []
    for most in longest:
        lengths = [most, draw.randrange(1, most + 1)]
        draw.shuffle(lengths)
        batches.append([[draw.randrange(31) for _ in range(length)] for length in lengths])
    (seen,) = student.call(pad_on_rank, world=1, group=False, batches=batches).evidence
    for batch, pair in zip(batches, seen, strict=True):
        expect(isinstance(pair, list) and len(pair) == 2, "a batch is not a pair (x, y)", "(x, y)", str(pair)[:80])
        check_padded(f"a batch of samples of {' and '.join(str(len(words)) for words in batch)} words", batch, *pair)
    widths = sorted({x.shape[1] for x, _ in seen})
    expect(
        len(widths) <= 4,
        f"{len(batches)} batches have {len(widths)} different widths, and a graph is compiled for each",
        "at most 4",
        widths,
    )
    check_story(
        student, 5, ("x", 6, 4), ("the tensor", "the number of graphs as given", "the number with the fix"), BOTH
    )
