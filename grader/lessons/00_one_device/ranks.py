"""What the checks of 00_one_device run on ranks, in the process of the student's code."""

import math

import torch
from torch import nn

# ---------------------------------------------------------------------------------------------------
# TODO 2: a step on a clock that the work moves


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Backward(torch.autograd.Function):
    """Changes nothing; its backward pass takes its time."""

    @staticmethod
    def forward(ctx, number, clock, seconds):
        ctx.clock, ctx.seconds = clock, seconds
        return number.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.clock.now += ctx.seconds
        return grad, None, None


class Line(nn.Module):
    """The loss of a weight and a bias: the mean of (w x + b - y)²."""

    def __init__(self, weight, bias, clock):
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.tensor(n, dtype=torch.float64)) for n in (weight, bias))
        self.clock, self.spans = clock, None

    def forward(self, x, y):
        self.clock.now += self.spans["forward"]
        return Backward.apply(((self.weight * x + self.bias - y) ** 2).mean(), self.clock, self.spans["backward"])


class Descent(torch.optim.SGD):
    clock = spans = None

    def step(self, closure=None):
        self.clock.now += self.spans["optimizer"]
        return super().step(closure)


def steps_on_rank(code, rank, world, line, rate, steps):
    """What timed_step returns for each step: steps have spans, x and y. The optimizer has a group a parameter."""
    clock = Clock()
    model = Line(*line, clock)
    optimizer = Descent([{"params": [p]} for p in model.parameters()], lr=rate)
    optimizer.clock = clock
    found = []

    def batches():
        for step in steps:
            clock.now += step["spans"]["data"]
            yield torch.tensor(step["x"], dtype=torch.float64), torch.tensor(step["y"], dtype=torch.float64)

    reading = batches()
    for step in steps:
        model.spans = optimizer.spans = step["spans"]
        answer = code.timed_step(reading, model, optimizer, clock)
        pair = isinstance(answer, (tuple, list)) and len(answer) == 2
        loss, seconds = answer if pair else (None, None)
        found.append(
            {
                "pair": pair,
                "kind": type(loss).__name__,
                "loss": float(loss) if isinstance(loss, (int, float, torch.Tensor)) else math.nan,
                "seconds": {str(k): float(v) for k, v in seconds.items()} if isinstance(seconds, dict) else {},
                "line": [model.weight.item(), model.bias.item()],
                "graph": any(p.grad is not None and p.grad.requires_grad for p in model.parameters()),
            }
        )
    return found


# ---------------------------------------------------------------------------------------------------
# TODOs 3 to 8: formulas


def efficiencies_on_rank(code, rank, world, cases):
    """step_efficiency for each case: pairs of devices and seconds, and a scaling."""
    answers = []
    for pairs, scaling in cases:
        answer = code.step_efficiency({int(n): seconds for n, seconds in pairs}, scaling)
        items = answer.items() if isinstance(answer, dict) else ()
        answers.append([[int(n), float(value)] for n, value in items])
    return answers


def decisions_on_rank(code, rank, world, cases):
    """What the student decides: its answer as [way, devices]."""
    answers = [code.decide(*case) for case in cases]
    return [[str(a[0]), a[1]] if isinstance(a, (tuple, list)) and len(a) == 2 else [str(a), None] for a in answers]
