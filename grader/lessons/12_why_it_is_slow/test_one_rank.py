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
            expect(is_mean, f"{told}: what it returns is not the mean of the last {every} losses", right, got["mean"])
        else:
            expect(got["mean"] is None, f"{told}: it returns something, though nothing is due", None, got["mean"])
        expect(
            got["reads"] <= due,
            f"{told} reads from the device {count_of(got['reads'], 'time')}",
            "once, where a mean is due" if due else "no read: the step returns nothing",
            got["reads"],
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


@todo(2)
def test_todo02_batches(student):
    draw = student.draw("text")
    seq_len, windows = draw.randrange(3, 6), draw.randrange(9, 14)
    words = [draw.randrange(31) for _ in range(windows * seq_len + 1)]
    orders = [draw.sample(range(windows), 4) for _ in range(4)]
    name = f"text-{draw.randrange(10**9)}.txt"
    call = dict(name=name, words=words, orders=orders, seq_len=seq_len)
    (seen,) = student.call(batches_on_rank, world=1, group=False, **call).evidence
    text = torch.tensor(words)
    for number, (order, batch) in enumerate(zip(orders, seen["batches"], strict=True)):
        expect(isinstance(batch, list) and len(batch) == 2, "a batch is not a pair (x, y)", "(x, y)", str(batch)[:80])
        for part, found, shift in zip("xy", batch, (0, 1), strict=True):
            right = torch.stack([text[i * seq_len + shift : (i + 1) * seq_len + shift] for i in order])
            check_tensor(f"batch {number}: {part}", found, right, dtype=torch.int64)
    for what in ("decoded", "opened"):
        expect(
            seen[what] == 1 or not seen[what] and what == "decoded",
            f"for {len(orders)} batches, the text is {what} {count_of(seen[what], 'time')}",
            "once",
            count_of(seen[what], "time"),
        )
    check_story(student, 2, ("data", 1600), ("the longest part of a step", "the number of words decoded for each one"))


# ---------------------------------------------------------------------------------------------------
# 3: blocks that are computed again


def recomputing(draw):
    """(blocks, kept, budget): all fit, with room for more; exactly; some; exactly some; none."""
    kept = draw.randrange(1000, 2000)
    layers = draw.sample(range(2, 6), 4)
    some = [draw.randrange(1, n) for n in layers]
    extra = draw.randrange(1, kept)
    return [
        (layers[0], kept, kept * (layers[0] + 1) + extra),
        (layers[1], kept, kept * layers[1]),
        (layers[2], kept, kept * some[2] + extra),
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
        expect(min(got["computed"]) > 0, f"{told}: a block is not computed at all", "once, or twice", got["computed"])
        expect(
            max(got["computed"]) <= 2,
            f"{told}: a block is computed {count_of(max(got['computed']), 'time')}",
            "once, or twice",
            got["computed"],
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
        check_tensor(f"{told}: the loss", got["loss"], due["loss"])
        for name, gradient in due["gradients"].items():
            check_tensor(f"{told}: the gradient of {name}", got["gradients"].get(name), gradient)
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
    """Batches of so many rows, as lists; the last word of some rows is padding."""
    rows = [[[[draw.randrange(50) for _ in range(8)] for _ in range(size)] for _ in "xy"] for size in sizes]
    for _, y in rows:
        for row in y:
            row[-1] = draw.choice([row[-1], -100])
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
        expect(is_mean, "it does not return the mean loss over the words of all ranks", right, mean, rank)
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
    check_story(student, 4, (4, 0), ("the number of batches as given", "the number with the fix"), BOTH)


# ---------------------------------------------------------------------------------------------------
# 5: shapes


def check_padded(told, batch, x, y):
    """Each sample is in its row as it was; what follows it is padding."""
    width = x.shape[1] if x.ndim == 2 else 0
    longest = max(len(words) for words in batch)
    for part, found in (("x", x), ("y", y)):
        check_shape(f"{told}: {part}", found, (len(batch), max(width, longest)), torch.int64)
    for row, words in enumerate(batch):
        count = len(words)
        whole = x[row, :count].tolist() == words and y[row, :count].tolist() == [word + 1 for word in words]
        expect(whole, f"{told}: sample {row} is not at the start of its row, or not whole", words[:6], x[row].tolist())
        expect(
            bool((y[row, count:] == -100).all()),
            f"{told}: targets after the end of sample {row} count in the loss",
            -100,
            y[row, count:],
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
