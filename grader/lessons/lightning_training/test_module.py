"""Checks of lightning_training, TODOs 1 to 3: module.

| TODO | achievement                      | evidence                                                                  | needs |
|------|----------------------------------|---------------------------------------------------------------------------|-------|
| 1    | the loss of a step               | training_step() of a batch, against the model's own loss; what it leaves untouched |  |
| 2    | the optimizer                    | weights after two epochs with what configure_optimizers() makes, for two sets of flags |  |
| 3    | the mean over all tokens         | Lightning validates on 3 ranks with unequal shares: what it has logged     |       |

Here, a rank's imports of lightning are inside functions: on the ranks it is loaded already, and the judge does not need
it.
"""  # noqa: E501

import math

import torch

from grader.kit import REL, Wrong, check_tensor, expect, near, scale_of, tiny_batch, tiny_model, todo

from .ranks import FLAGS, evaluated_batches, optimizer_on_rank, sharp_model, step_on_rank, validate_on_rank, weights

# ---------------------------------------------------------------------------------------------------
# TODO 1: the step


def one_step():
    model = tiny_model(seed=0)
    loss = model(*tiny_batch(0))
    loss.backward()
    return {"loss": loss.item(), "grads": {name: p.grad for name, p in model.named_parameters()}}


@todo(1)
def test_todo1_training_step(student):
    right = student.reference(one_step)
    for seen in student.call(step_on_rank, world=2, group=False).evidence:
        check_step(seen, right)


def check_step(seen, right):
    expect(
        seen["loss"] is not None,
        f"training_step returns no loss, but a {seen['kind']}: Lightning then makes no step, or stops",
        "a scalar tensor",
        seen["kind"],
    )
    expect(
        not seen["asks"],
        "training_step logs with sync_dist: that is one more all-reduce in every step, and Report logs already",
        "only the loss",
        "self.log(…, sync_dist=True)",
        hint="What does this step need to know of the other ranks' losses? What is logged is logged elsewhere.",
    )
    expect(
        not seen["moved"],
        "training_step makes the optimizer's step itself; Lightning would make a second one",
        "weights as they were",
        seen["moved"][:1],
        hint=IN_TURN,
    )
    expect(
        not seen["backward"],
        "training_step calls backward itself; Lightning calls it once more, so the gradient counts twice or the graph"
        " is gone",
        "no gradient yet",
        f"gradients of {len(seen['backward'])} parameters",
        hint=IN_TURN,
    )
    expect(
        seen["graph"],
        "the loss that training_step returns has no graph, so it has no gradients",
        "a tensor that requires grad",
        "only a number",
        hint=GRAPH,
    )
    expect(
        math.isclose(seen["loss"], right["loss"], rel_tol=REL),
        "training_step does not return the mean loss of its batch",
        right["loss"],
        seen["loss"],
    )
    scale = scale_of(right["grads"].values())
    for name, grad in right["grads"].items():
        told = f"backward from the loss that training_step returns, which Lightning calls, gives {name}"
        none = f"{told} no gradient: the graph ends before the model"
        expect(name in seen["grads"], none, "a gradient", "none", hint=GRAPH)
        check_tensor(f"{told} a gradient that", seen["grads"][name], grad, REL, scale=scale, hint=GRAPH)


IN_TURN = (
    "Lightning makes the forward pass, the backward pass and the step in turn. Which of them does it leave to you?"
)


GRAPH = "Follow the loss back to the parameters. Which call makes a new tensor, or a number, without its graph?"


# ---------------------------------------------------------------------------------------------------
# TODO 2: the optimizer


def right_steps():
    left = []
    for _, name, _, lr, _, decay in FLAGS:
        model, kind = tiny_model(seed=0), {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name]
        optimizer = kind(model.parameters(), lr=float(lr), weight_decay=float(decay))
        for number in (0, 1, 0, 1):
            model.zero_grad()
            model(*tiny_batch(number)).backward()
            optimizer.step()
        left.append({"lr": float(lr), "weights": weights(model)})
    return left


@todo(2)
def test_todo2_optimizer(student):
    right = student.reference(right_steps)
    adamw, sgd, _ = (steps["weights"] for steps in right)
    student.premise(any(not torch.allclose(adamw[name], sgd[name], rtol=1e-2) for name in adamw), "the other optimizer")
    for left in student.call(optimizer_on_rank, world=2, group=False).evidence:
        check_optimizers(left, right)


def check_optimizers(left, right):
    for flags, seen, steps in zip(FLAGS, left, right, strict=True):
        told, wanted = f"with {' '.join(flags)}", steps["weights"]
        expect(
            "kind" not in seen, f"{told}, configure_optimizers returns no optimizer", "an optimizer", seen.get("kind")
        )
        expect(
            seen["moved"] == len(wanted),
            f"{told}, the optimizer has {seen['moved']} of the {len(wanted)} parameters",
            len(wanted),
            seen["moved"],
            hint="Which parameters does it get: the whole module's, or only a part's?",
        )
        rate = next((rate for rate in seen["rates"] if rate != steps["lr"]), steps["lr"])
        expect(
            rate == steps["lr"],
            f"{told}, the learning rate on each of two ranks is {rate:g} after two epochs: no flag asks for that",
            steps["lr"],
            rate,
            hint="--lr is the rate of all parameters, in every step and on any number of ranks. What changes yours?",
        )
        wrong = [name for name in wanted if not near(seen["weights"][name], wanted[name], REL)]
        expect(
            not wrong,
            f"{told}, four steps of the optimizer give different weights: is it the right kind, with both settings?",
            "equal weights",
            f"different weights, such as {wrong[:1]}",
            hint="Three flags are about the optimizer. Which of them does not reach it?",
        )


# ---------------------------------------------------------------------------------------------------
# TODO 3: logging


# Hints, by what a wrong mean is said to be.
SUMS = {
    " alone": (
        "Lightning reduces what one rank has logged, unless it is asked for more. Which argument asks for all ranks?"
    ),
    "it counts": "Which targets has the model's loss left out? The count is of all others, of all ranks.",
}


def right_sums(world):
    """(total, count) of all tokens; and for each rank the means of its batches."""
    model = sharp_model()
    batches = [[(model(x, y).item(), int((y >= 0).sum())) for x, y in evaluated_batches(rank)] for rank in range(world)]
    flat = [pair for mine in batches for pair in mine]
    return sum(m * n for m, n in flat), sum(n for _, n in flat), [[m for m, _ in mine] for mine in batches]


@todo(3)
def test_todo3_sums(student):
    world = 3
    total, count, means = student.reference(right_sums, world=world)
    right, flat = total / count, [mean for mine in means for mean in mine]
    wrong = {"the mean of the batches' means": sum(flat) / len(flat)}
    wrong |= {f"the mean of the batches of rank {rank} alone": sum(mine) / len(mine) for rank, mine in enumerate(means)}
    for mean, value in wrong.items():
        student.premise(not math.isclose(value, right, rel_tol=10 * REL), mean)
    for rank, logged in enumerate(student.call(validate_on_rank, world=world, group=False).evidence):
        expect(
            {"total", "count"} <= set(logged),
            f"after a validation, rank {rank} does not have both sums in its log",
            "total and count",
            sorted(logged),
            rank,
        )
        expect(
            logged["count"] > 0, f"rank {rank} has logged a count of {logged['count']:g}", count, logged["count"], rank
        )
        seen = logged["total"] / logged["count"]
        if not math.isclose(seen, right, rel_tol=REL):
            what = next(
                (f": it is {words}" for words, value in wrong.items() if math.isclose(seen, value, rel_tol=REL)), ""
            )
            if not what and not math.isclose(logged["count"], count, rel_tol=1e-6):
                what = f": it counts {logged['count']:g} tokens, there are {count}"
            raise Wrong(
                f"on {world} ranks of unequal shares, total / count on rank {rank} is not the mean over all"
                f" tokens{what}",
                right,
                seen,
                rank,
                next((hint for words, hint in SUMS.items() if words in what), ""),
            )
        expect(
            math.isclose(logged["count"], count, rel_tol=1e-6),
            f"rank {rank} has logged a count of {logged['count']:g}; all ranks together have {count} tokens that count",
            count,
            logged["count"],
            rank,
        )
