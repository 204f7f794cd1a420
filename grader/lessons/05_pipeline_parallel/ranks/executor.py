"""On ranks, for the checks of 05_pipeline_parallel: executor."""

import gc

import torch

from grader.kit import kind_of, raised
from utils.memory import Storages

from .common import Work, actions_of, batch_for, gradients_of, harm_to, inputs_of, plain_losses, share_of_loss, times_of

# ---------------------------------------------------------------------------------------------------
# TODO 5: one action


def input_part(passed, gradient):
    """In place of TODO 9's backward_input: computes the weights' gradients, too, and keeps them."""
    inputs = [passed.input] if passed.input.requires_grad else []
    passed.weights = [w for layer, _ in passed.layers for w in layer.parameters(recurse=False) if w.requires_grad]
    found = torch.autograd.grad(passed.output, inputs + passed.weights, gradient, retain_graph=True)
    passed.found = found[len(inputs) :]
    return found[0] if inputs else None


def weights_part(order):
    """In place of backward_weights. Adds the number of the micro-batch to `order`."""

    def backward_weights(passed):
        order.append(round(passed.input[0, 0].item()))
        for weight, new in zip(passed.weights, passed.found, strict=True):
            weight.grad = new if weight.grad is None else weight.grad + new

    return backward_weights


def act_on_rank(code, rank, world, seeds, trials):
    """A Worker for each rank of a schedule, all in this process. The check carries results from one to the next."""
    order: list[int] = []
    code.backward_input, code.backward_weights = input_part, weights_part(order)
    found = []
    for number, trial in enumerate(trials):
        order.clear()
        found.append(work_by_hand(code, [seed + 1000 * number for seed in seeds], order, **trial))
    return found


def work_by_hand(code, seeds, order, schedule, v, m, rows, width, dtype, grad=True):
    p, kind = len(schedule), getattr(torch, dtype)
    seeds = seeds[:p]
    logs, watches, workers = [[] for _ in range(p)], [Storages() for _ in range(p)], []
    weights: list[list[int]] = [[] for _ in range(p)]
    for r in range(p):
        tell = telling(logs[r])
        chunks = [Work(c * p + r, seeds[r] + 10 + c, width, kind, watches[r], tell) for c in range(v)]
        workers.append(code.Worker(chunks, batch_for(code, seeds[r], r, p, m, rows, width, dtype), r, p))
    there, wrong = {}, ""
    for r, (action, j, chunk) in in_time(schedule):
        stage, worker = chunk * p + r, workers[r]
        come = ("F", j, stage - 1) if action == "F" else None if action == "W" else ("B", j, stage + 1)
        with torch.set_grad_enabled(grad):
            given = worker.act(code.Action(action, j, chunk), there.pop(come, None))
        weights[r] += order
        order.clear()
        goes = action == "F" and stage < p * v - 1 or action in "BI" and stage > 0
        if goes and not isinstance(given, torch.Tensor):
            wrong = (
                wrong or f"{action}{j} on stage {stage} returns {kind_of(given)}, and another stage needs its result"
            )
        elif goes and list(given.shape) != [rows, 1 + width]:
            wrong = wrong or (
                f"{action}{j} on stage {stage} returns a tensor of shape {tuple(given.shape)}, and the stage that needs"
                f" it takes {(rows, 1 + width)}"
            )
        elif goes and given.requires_grad:
            wrong = wrong or f"the result of {action}{j} on stage {stage} still has its history"
        if goes and isinstance(given, torch.Tensor):
            there["F" if action == "F" else "B", j, stage] = given.detach().clone()
        if wrong:
            break
        del given
    gc.collect()
    return [
        left_by(workers[r], watches[r], r, inputs_of(seeds[0], m, rows, width, kind))
        | {"log": logs[r], "weights": weights[r], "wrong": wrong}
        for r in range(p)
    ]


def telling(log):
    def tell(**about):
        log.append({"e": "mark", **about})

    return tell


def in_time(schedule):
    """(rank, action) in an order in which they are possible: by the simulated time."""
    times, _ = times_of(schedule, dict.fromkeys("FBIW", 1))
    order = sorted((span[0], rank, n) for rank, mine in enumerate(times) for n, span in enumerate(mine))
    return [(rank, schedule[rank][n]) for _, rank, n in order]


def left_by(worker, watch, rank, inputs):
    losses = worker.losses if isinstance(worker.losses, dict) else {}
    values = [losses[j] for j in sorted(losses)]
    return {
        "losses": plain_losses(values),
        "history": any(isinstance(x, torch.Tensor) and x.requires_grad for x in values),
        "gradients": [gradients_of(chunk) for chunk in worker.chunks],
        "most": max(chunk.most for chunk in worker.chunks),
        "left": sum(watch.bytes_alive().values()),
        "harm": harm_to(worker.batch, rank == 0, inputs),
    }


# ---------------------------------------------------------------------------------------------------
# TODO 6: execute


def refused_on_rank(code, rank, world, schedule):
    """A schedule that gets stuck: its error, and whether a stage was called before."""
    watch = []
    stage = Work(rank, 1, 3, torch.float32, tell=lambda **about: watch.append(about["kind"]))
    xs = inputs_of(0, 2, 2, 3, torch.float32)
    batch = code.Batch(xs, [torch.zeros(2, dtype=torch.int64)] * 2, torch.zeros(2, 4), share_of_loss(4))
    found = raised(lambda: code.execute(actions_of(code, schedule), [stage], batch, rank, world))
    return {"raised": found and found["error"], "called": len(watch)}


def goes_on_rank(code, rank, world, questions):
    return [
        plain_pair(code.goes_to(code.Action(*action), source, p, stages)) for action, source, p, stages in questions
    ]


def plain_pair(value):
    if value is None or (isinstance(value, (tuple, list)) and all(isinstance(n, int) for n in value)):
        return value and [int(n) for n in value]
    return f"{value!r:.60}"
